/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Hopper, the host's side: kernel rows from kernels/variants/mla_fwd_sm90.def. The device's side:
 * kernels/sm90/mla_fwd_wgmma.cu. */
#include "core/problem.h"
#include "cuda/cuda_mla.h"
#include "kernels/kparams_mla_sm90.h"

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t items(const attn_problem *p) {
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return 0;
    return p->batch * p->seq_q * ((p->heads_q + 63) / 64);
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    if (p->op != k->op || p->dtype != k->dtype) {
        attn_text_add(why, "serves another operator or dtype");
        return 0;
    }
    if (p->dim_qk != c->dim) {
        attn_text_add(why, "made for head dim %d", c->dim);
        return 0;
    }
    return !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_FWD_SM90_SHARED(c->dim), why);
}

/* Rounds of items over the multiprocessors; heads are padded to 64, slots to 64. Rates are what was measured. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double rounds = (double)((items(p) + l->n_sms - 1) / l->n_sms), tiles = (double)((p->topk + 63) / 64);
    return 4e-6 + rounds * (1.5e-6 + tiles * 1.7e-6 * (c->dim + 512) / 1088);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k, (void)dev, (void)p;
    return 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    (void)p;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim));
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    if (items(p) == 0) return ATTN_OK;
    struct kp_mla_fwd_sm90 kp = {0};
    attn_cuda_mla_inputs(&kp.in, p, args);
    kp.out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp.lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp.max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    const struct attn_cuda_grid grid = {.x = (uint32_t)lesser(items(p), attn_cuda_limits_of(dev)->n_sms),
                                        .y = 1,
                                        .z = 1,
                                        .threads = KP_MLA_FWD_SM90_THREADS,
                                        .shared_bytes = (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim)};
    return attn_cuda_launch(dev, attn_cuda_variant_find(c->symbol), &grid, &kp, sizeof kp, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_fwd_sm90_config config_##tail = {.symbol = "attn_mla_fwd_sm90_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_fwd_sm90.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_mla_fwd_sm90_" #tail,                                                                               \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, any heads, any topk, any strides",                                        \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_fwd_sm90_rows[] = {
#include "kernels/variants/mla_fwd_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_sm90_rows =
    sizeof attn_cuda_mla_fwd_sm90_rows / sizeof attn_cuda_mla_fwd_sm90_rows[0];
