/* SPDX-License-Identifier: MIT
 * Attention distribution on Hopper, the host's side: kernel rows from kernels/variants/dist_sm90.def. The device's
 * side: kernels/sm90/dist/dist.cu, kernels/smxx/dist_norm.cu. */
#include "core/problem.h"
#include "cuda/sparse/dist.h"
#include "kernels/params/mla_sm90.h"

static int64_t work_tiles(const attn_problem *p) {
    return p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0 ? 0 : p->batch * p->seq_q;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_dist_sm90_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    if (p->heads_q > 64 * c->head_blocks) {
        attn_text_add(why, "holds %d heads at most", 64 * c->head_blocks);
        return 0;
    }
    return !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_dist_refuse(dev, c->symbol, KP_DIST_SM90_SHARED(c->dim, c->head_blocks), why);
}

/* Tiles of 64 slots over the multiprocessors: queries left over after whole rounds are cut. A tile of 64 heads
 * takes 1.3 us, which the gather sets, one of 128 heads 2.3. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_dist_sm90_config *c = k->impl;
    const int64_t n_sms = attn_cuda_limits_of(dev)->n_sms, whole = work_tiles(p) / n_sms,
                  left = work_tiles(p) - whole * n_sms;
    const int64_t tiles = (p->topk + 63) / 64, parts = left ? n_sms / left : 1, last = (tiles + parts - 1) / parts;
    const double work = (double)(whole * tiles + (left ? last : 0)), pieces = (double)(whole + (left > 0));
    return 4e-6 + (p->dist_norm == ATTN_DIST_L1 ? 4e-6 : 0) + pieces * 2e-6 +
           work * (0.3e-6 + 1e-6 * c->head_blocks) * c->dim / 576;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_dist_sm90_config *c = k->impl;
    return attn_cuda_dist_prepare(dev, c->symbol, KP_DIST_SM90_SHARED(c->dim, c->head_blocks), p);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_dist_sm90_config *c = k->impl;
    if (work_tiles(p) == 0) return ATTN_OK;
    struct kp_dist kp = attn_cuda_dist_params(p, args);
    kp.work_tiles = work_tiles(p);
    kp.blocks = kp.splits = 1;
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser(kp.work_tiles * attn_cuda_blocks(p->topk, 64), attn_cuda_limits_of(dev)->n_sms),
        .y = 1,
        .z = 1,
        .threads = KP_MLA_FWD_SM90_THREADS,
        .shared_bytes = (uint32_t)KP_DIST_SM90_SHARED(c->dim, c->head_blocks)};
    return attn_cuda_dist_launch(dev, c->symbol, &grid, &kp, p, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_dist_sm90_config config_##tail = {.symbol = "attn_dist_sm90_" #tail, __VA_ARGS__};
#include "kernels/variants/dist_sm90.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_dist_sm90_" #tail,                                                                                  \
     .arch = "sm90",                                                                                                   \
     .summary = "D and the most heads in the name, any topk, any strides",                                             \
     .op = ATTN_OP_DIST,                                                                                               \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .workspace = attn_cuda_dist_workspace},
const struct attn_kernel attn_cuda_dist_sm90_rows[] = {
#include "kernels/variants/dist_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_dist_sm90_rows = sizeof attn_cuda_dist_sm90_rows / sizeof attn_cuda_dist_sm90_rows[0];
