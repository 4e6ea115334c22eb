/* SPDX-License-Identifier: MIT
 * Rows of the portable sparse MLA backward (kernels/sm80/mla_bwd.cu): what each refuses and how fast it should be. What
 * a launch consists of stands in mla_bwd_steps.c. */
#include "cuda/sparse/mla_bwd.h"
#include "core/problem.h"

static struct attn_cuda_mla_bwd_main main_of(const struct attn_kernel *k) {
    const struct kp_mla_bwd_config *c = k->impl;
    return (struct attn_cuda_mla_bwd_main){
        .symbol = c->symbol,
        .head_block = c->heads,
        .threads = KP_MLA_BWD_THREADS(*c),
        .shared_bytes = KP_MLA_BWD_SHARED(c->dtype, c->dim, c->heads, c->slots, c->head_warps),
        .stored_bytes = c->deterministic ? 4 : 0,
    };
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_bwd_config *c = k->impl;
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    return !attn_cuda_mla_bwd_refuse(&m, dev, p, why);
}

/* Products run at a share of mma.sync's 1024 multiply-adds a cycle at 1.7 GHz, the heads padded to whole blocks. Each
 * block adds its own f32 row per slot to memory, at 20 GB/s a multiprocessor; stored rows are read again. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_mla_bwd_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double heads = (double)((p->heads_q + c->heads - 1) / c->heads), rate = 2048 * 1.7e9 * l->n_sms;
    const double share = c->heads * c->slots >= 4096 ? 0.5 : c->heads * c->slots >= 2048 ? 0.4 : 0.25;
    const double padding = p->heads_q > 0 ? heads * c->heads / (double)p->heads_q : 1;
    const double compute = amount->flops * padding / (rate * share);
    const double rows = (double)p->batch * (double)p->seq_q * (double)p->topk * heads;
    const double traffic = rows * 4 * c->dim * (c->deterministic ? 2 : 1) / (2e10 * l->n_sms);
    return 2e-5 + compute + traffic * (c->deterministic ? 1 : 0.5);
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
    static const struct kp_mla_bwd_config config_##tail = {.symbol = "attn_mla_bwd_sm80_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_bwd_sm80.def"
#undef VARIANT

/* A line begins with .dtype and .deterministic, members of both. */
#define VARIANT(tail, source, dtype_of_line, deterministic_of_line, ...)                                               \
    {.name = "attn_mla_bwd_sm80_" #tail,                                                                               \
     .arch = "sm80",                                                                                                   \
     .summary = "D as in the name, any heads, slots, strides; _det: bit-equal dkv",                                    \
     .op = ATTN_OP_MLA_BWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     deterministic_of_line,                                                                                            \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .features = ATTN_CUDA_SM80,                                                                                       \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_bwd_rows[] = {
#include "kernels/variants/mla_bwd_sm80.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_bwd_rows = sizeof attn_cuda_mla_bwd_rows / sizeof attn_cuda_mla_bwd_rows[0];
