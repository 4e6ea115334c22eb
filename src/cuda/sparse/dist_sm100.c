/* SPDX-License-Identifier: MIT
 * Attention distribution on Blackwell, the host's side: kernel rows from kernels/variants/dist_sm100.def. The device's
 * side: kernels/sm100/dist/dist.cu, kernels/smxx/dist_norm.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/sparse/dist.h"
#include "cuda/sparse/mla_maps.h"
#include "kernels/params/mla_sm100.h"

/* A function of problem and device alone: pairs of CTAs at once, queries, parts of a query and their tiles. */
struct geometry {
    int64_t pairs, queries, splits, share;
};
static struct geometry lay_out(const struct attn_core_device *dev, const attn_problem *p) {
    const int32_t n_sms = attn_cuda_limits_of(dev)->n_sms;
    const int64_t tiles = attn_cuda_blocks(p->topk, KP_DIST_SM100_KEYS);
    struct geometry g = {.pairs = n_sms > 1 ? n_sms / 2 : 1, .splits = 1};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0 || p->topk <= 0) return g;
    g.queries = p->batch * p->seq_q;
    g.splits = attn_cuda_mla_splits(g.queries, tiles, g.pairs, g.pairs, 1, 0);
    g.share = attn_cuda_blocks(tiles, g.splits);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_dist_sm100_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why) || attn_cuda_refuse_tensor_maps(dev, why)) return 0;
    if (p->heads_q > c->heads) {
        attn_text_add(why, "holds %d heads at most", c->heads);
        return 0;
    }
    return !attn_cuda_mla_refuse(p, why) && !attn_cuda_dist_refuse(dev, c->symbol, KP_DIST_SM100_SHARED(c->dim), why);
}
static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    return attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_Q, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_KV, role, why);
}

/* Counted, not timed: clocks of a tile of 256 slots at 1.85 GHz, its slowest unit at 0.75 of its rate
 * (docs/kernels/dist_sm100.md). */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_dist_sm100_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    const double rounds = (double)g.queries * (double)g.splits / (double)g.pairs;
    const double tile = (c->heads == 128 ? 2900 : 2600) * 4 / 3.0 * c->dim / 576;
    return 4e-6 + (p->dist_norm == ATTN_DIST_L1 ? 4e-6 : 0) +
           (rounds < 1 ? 1 : rounds) * ((double)g.share * tile + 2000) / 1.85e9;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_dist_sm100_config *c = k->impl;
    return attn_cuda_dist_prepare(dev, c->symbol, KP_DIST_SM100_SHARED(c->dim), p);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_dist_sm100_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    struct kp_dist_sm100 kp = {.dist = attn_cuda_dist_params(p, args), .share = g.share};
    if (g.queries == 0) return ATTN_OK;
    kp.dist.work_tiles = g.queries * g.splits;
    kp.dist.blocks = 1;
    kp.dist.splits = (int32_t)g.splits;
    kp.kv_rows = attn_cuda_mla_map_rows(&kp.dist.in);
    TRY(attn_cuda_mla_map_heads(dev, "q", &kp.dist.in, &kp.dist.in.q, c->dim, (uint32_t)c->heads / 2, 64, &kp.q));
    TRY(attn_cuda_mla_map_keys(dev, &kp.dist.in, 64, &kp.kv));
    const struct attn_cuda_grid grid = {.x = (uint32_t)(2 * attn_cuda_lesser(kp.dist.work_tiles, g.pairs)),
                                        .y = 1,
                                        .z = 1,
                                        .threads = KP_DIST_SM100_THREADS,
                                        .cluster = 2,
                                        .shared_bytes = (uint32_t)KP_DIST_SM100_SHARED(c->dim)};
    TRY(attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream));
    return attn_cuda_dist_norm(dev, &kp.dist, p, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_dist_sm100_config config_##tail = {.symbol = "attn_dist_sm100_" #tail, __VA_ARGS__};
#include "kernels/variants/dist_sm100.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_dist_sm100_" #tail,                                                                                 \
     .arch = "sm100",                                                                                                  \
     .summary = "simulated, not yet run on silicon; D and the most heads in the name, any topk",                       \
     .op = ATTN_OP_DIST,                                                                                               \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .alignment_bytes = 16,                                                                                            \
     .refuses_strides = refuses_strides,                                                                               \
     .features = ATTN_CUDA_SM100A,                                                                                     \
     .impl = &config_##tail,                                                                                           \
     .workspace = attn_cuda_dist_workspace},
const struct attn_kernel attn_cuda_dist_sm100_rows[] = {
#include "kernels/variants/dist_sm100.def"
};
#undef VARIANT
const int32_t attn_cuda_n_dist_sm100_rows = sizeof attn_cuda_dist_sm100_rows / sizeof attn_cuda_dist_sm100_rows[0];
