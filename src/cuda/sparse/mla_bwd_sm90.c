/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Hopper, the host's side: kernel rows from kernels/variants/mla_bwd_sm90.def. What a launch
 * consists of stands in mla_bwd_steps.c; the device's side: kernels/sm90/mla_bwd/specialized.cu,
 * mla_bwd/lockstep.cu and mla_bwd/pingpong.cu. */
#include "core/problem.h"
#include "cuda/sparse/mla_bwd.h"
#include "kernels/params/mla_sm90.h"

static struct attn_cuda_mla_bwd_main main_of(const struct attn_kernel *k) {
    const struct kp_mla_bwd_sm90_config *c = k->impl;
    return (struct attn_cuda_mla_bwd_main){
        .symbol = c->symbol,
        .head_block = 64 * c->ctas,
        .dist_blocks = c->ctas,
        .threads = c->even ? KP_MLA_BWD_SM90_EVEN_THREADS : KP_MLA_BWD_SM90_THREADS,
        .shared_bytes = KP_MLA_BWD_SM90_SHARED(c->dim),
        .ctas = 1,
        .cluster = c->ctas,
        .permuted = c->even && !c->deterministic,
        .parts = !c->deterministic || c->even,
        .together = c->even && !c->deterministic,
        .ahead = c->even == 2 && !c->deterministic ? KP_MLA_BWD_SM90_AHEAD : 0,
        .stored_bytes = !c->deterministic ? 0
                        : c->even         ? 2
                                          : 4,
        .sum_time = c->deterministic && c->even == 2 && c->ctas == 2 ? 0.31 : 0,
    };
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_bwd_sm90_config *c = k->impl;
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    if (c->even && p->batch * p->seq_q > INT32_MAX / ((int64_t)p->heads_q + 1)) {
        attn_text_add(why, "counts queries and heads in 31 bits");
        return 0;
    }
    return !attn_cuda_mla_bwd_refuse(&m, dev, p, why);
}

/* Seconds of a tile at D = 576, measured on an H100 (docs/kernels/mla_bwd_sm90.md): with sums that the second-level
 * cache holds, and with larger ones, whose slots come in order. */
static double tile_time(const struct kp_mla_bwd_sm90_config *c, int large) {
    if (c->deterministic && c->even == 2) return c->ctas == 2 ? 6.8e-6 : 9.2e-6;
    if (c->deterministic) return !c->even ? 18e-6 : c->ctas == 2 ? 8.6e-6 : 10.5e-6;
    if (!c->even) return large ? 9e-6 : 8.1e-6;
    if (c->even == 2) return c->ctas == 2 ? (large ? 6e-6 : 5.7e-6) : large ? 7.45e-6 : 6.8e-6;
    return large ? 7.5e-6 : 7.3e-6; /* f16, and pairs only where rows are stored */
}

/* Rounds of work tiles over the SMs, a work tile or, where it can be split, a key tile at least; heads are padded to 64
 * (pairs: 128), slots to 64. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_bwd_sm90_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double blocks = (double)c->ctas * (double)((p->heads_q + 64 * c->ctas - 1) / (64 * c->ctas));
    const double work_tiles = (double)p->batch * (double)p->seq_q * blocks, tiles = (double)((p->topk + 63) / 64);
    const double least = !c->deterministic || c->even ? 1 / (tiles < 1 ? 1 : tiles) : 1;
    const double whole = work_tiles / l->n_sms < least ? least : work_tiles / l->n_sms;
    const double keys = 2 * (double)p->batch * (double)p->seq_k * (double)p->dim_qk;
    const double tile = c->near ? (5 * keys <= l->l2_bytes ? 9e-6 : 10.5e-6)
                                : tile_time(c, 8 * (double)p->seq_k * (double)p->dim_qk > l->l2_bytes);
    return 2e-5 + whole * (c->even ? 8e-6 : 6e-6) + whole * tiles * tile * c->dim / 576;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    return attn_cuda_mla_bwd_workspace(&m, dev, p);
}
static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    (void)p;
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    return attn_cuda_mla_bwd_prepare(&m, dev);
}
static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    return attn_cuda_mla_bwd_launch(&m, dev, p, args);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_bwd_sm90_config config_##tail = {.symbol = "attn_mla_bwd_sm90_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_bwd_sm90.def"
#undef VARIANT

/* A line begins with .dtype and .deterministic, members of both. */
#define VARIANT(tail, source, dtype_of_line, deterministic_of_line, ...)                                               \
    {.name = "attn_mla_bwd_sm90_" #tail,                                                                               \
     .arch = "sm90",                                                                                                   \
     .summary = "D as in the name, any heads, any topk, any strides; _det: bit-equal dkv",                             \
     .op = ATTN_OP_MLA_BWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     deterministic_of_line,                                                                                            \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .alignment_bytes = 16,                                                                                            \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_bwd_sm90_rows[] = {
#include "kernels/variants/mla_bwd_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_bwd_sm90_rows =
    sizeof attn_cuda_mla_bwd_sm90_rows / sizeof attn_cuda_mla_bwd_sm90_rows[0];
