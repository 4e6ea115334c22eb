/* SPDX-License-Identifier: MIT
 * Dense backward on mma.sync, the host's side: kernel rows from kernels/variants/sdpa_bwd_sm80.def and what each
 * refuses. The device's side: kernels/sm80/sdpa_bwd.cu and what its header names. */
#include "core/problem.h"
#include "cuda/dense/bwd_steps.h"

static struct attn_cuda_bwd_main main_of(const struct attn_kernel *k) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    return (struct attn_cuda_bwd_main){.symbol = c->symbol,
                                       .keys = c->keys,
                                       .rows = c->rows,
                                       .dim = c->dim,
                                       .dim_v = c->dim,
                                       .full = c->full,
                                       .row_warps = c->q_rows,
                                       .dim_warps = c->warps / c->q_rows,
                                       .ordered = k->deterministic,
                                       .threads = 32 * c->warps,
                                       .shared_bytes = KP_SDPA_BWD_SHARED_BYTES(*c)};
}

static int refuse_features(const struct kp_sdpa_bwd_config *c, const attn_problem *p, struct attn_text *why) {
    const char *missing = p->softcap > 0  ? "softcap"
                          : p->alibi      ? "ALiBi"
                          : p->mask_dtype ? "a mask"
                          : attn_core_has(p, ATTN_SINK) && !attn_core_has(p, ATTN_LSE_WITH_SINK)
                              ? "a sink that lse excludes"
                              : NULL;
    if (!c->full && missing) attn_text_add(why, "has no code for %s: the _full variants do", missing);
    return !c->full && missing;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return !refuse_features(k->impl, p, why) && !attn_cuda_bwd_refuse(dev, &m, p, why);
}

/* ------------------------------------------------------------------ estimate ----------------------- */

/* The share of the device's rate that the problem's CTAs reach: a multiprocessor without one does nothing, and one of
 * two that fit does two thirds of what both do. */
static double occupancy(const struct kp_sdpa_bwd_config *c, const struct attn_cuda_limits *l, const attn_problem *p) {
    const double tiles = (double)p->batch * (double)p->heads_k * (double)attn_cuda_blocks(p->seq_k, c->keys),
                 sms = l->n_sms, alone = c->ctas > 1 ? 0.67 : 1;
    if (tiles >= sms * c->ctas) return 1;
    if (tiles <= sms) return alone * (tiles > 1 ? tiles : 1) / sms;
    return alone + (1 - alone) * (tiles - sms) / (sms * (c->ctas - 1));
}

/* Rates are fractions of the 1024 multiply-adds a cycle of mma.sync at 1.7 GHz, the padding to the variant's dims
 * counted; fewer warps on a multiprocessor than a row is made for hide less. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double dims = (double)(3 * p->dim_qk + 2 * p->dim_v), peak = 2048 * 1.7e9 * l->n_sms * occupancy(c, l, p);
    const double padding = dims > 0 ? 5 * c->dim / dims : 1;
    const int32_t fit = l->shared_per_sm / (KP_SDPA_BWD_SHARED_BYTES(*c) + 1024);
    const double rate = (c->full ? 0.35 : 0.6) * (fit < c->ctas ? 0.6 : 1) * (k->deterministic ? 0.75 : 1);
    const double compute = amount->flops * padding / (peak * rate);
    const double memory =
        (amount->bytes + 12.0 * (double)(p->batch * p->heads_q) * (double)p->seq_q * c->dim) / (2e10 * l->n_sms);
    return 1e-5 + (compute + memory) * (1 + 1e-4 * c->dim) * (1 + 1e-3 * (128 - c->keys));
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return attn_cuda_bwd_workspace(dev, &m, p);
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return attn_cuda_bwd_prepare(dev, &m, p);
}

/* ------------------------------------------------------------------ launch ------------------------- */

static void write_prepared(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                           void *out) {
    const struct attn_cuda_bwd_main m = main_of(k);
    attn_cuda_bwd_write_prepared(dev, &m, p, out);
}

static attn_status launch_prepared(const struct attn_kernel *k, const struct attn_core_device *dev,
                                   const attn_problem *p, const void *from, const attn_args *args) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return attn_cuda_bwd_launch(dev, &m, p, from, args, NULL);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct attn_cuda_bwd_prepared prepared = {0};
    write_prepared(k, dev, p, &prepared);
    return launch_prepared(k, dev, p, &prepared, args);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* Each variant makes two rows: sums of dQ in any order, and in the order of the key tiles. */
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_bwd_config config_##tail = {.symbol = "attn_sdpa_bwd_sm80_" #tail, __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_sm80.def"
#undef VARIANT

#define ROW(tail, ordered_tail, is_ordered, words, dtype_of_line)                                                      \
    {.name = "attn_sdpa_bwd_sm80_" #tail ordered_tail,                                                                 \
     .arch = "sm80",                                                                                                   \
     .summary = "D and DV to the number in the name, any strides; softcap, ALiBi, mask: _full rows only" words,        \
     .op = ATTN_OP_SDPA_BWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = is_ordered,                                                                                      \
     .bit_stable = is_ordered,                                                                                         \
     .features = ATTN_CUDA_SM80,                                                                                       \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace,                                                                                           \
     ATTN_CUDA_PREPARED_AS(struct attn_cuda_bwd_prepared)},
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROW(tail, "", 0, "; dQ is summed in any order", dtype_of_line)                                                     \
    ROW(tail, "_ordered", 1, "; dQ is summed in order", dtype_of_line)
const struct attn_kernel attn_cuda_sdpa_bwd_rows[] = {
#include "kernels/variants/sdpa_bwd_sm80.def"
};
#undef VARIANT
const int32_t attn_cuda_n_sdpa_bwd_rows = sizeof attn_cuda_sdpa_bwd_rows / sizeof attn_cuda_sdpa_bwd_rows[0];
