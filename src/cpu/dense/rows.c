/* SPDX-License-Identifier: MIT
 * The dense kernels' rows: forward and backward, five instruction sets, four dtypes and e4m3, one driver each. */
#include "cpu/dense/fwd_direct.h"

/* The rate of AMX is a rough one of Granite Rapids: it ranks above all others. */
static const struct attn_cpu_sdpa_isa isa_amx = {&attn_ukr_avx512, &attn_ukr_bf16_amx, 0, 800e9},
                                      isa_amx_bf16x2 = {&attn_ukr_avx512, &attn_ukr_bf16_amx, 2, 400e9},
                                      isa_amx_bf16x3 = {&attn_ukr_avx512, &attn_ukr_bf16_amx, 3, 200e9},
                                      isa_avx512bf16 = {&attn_ukr_avx512, &attn_ukr_bf16_avx512bf16, 0, 160e9},
                                      isa_avx512 = {&attn_ukr_avx512, NULL, 0, 90e9},
                                      isa_avx2 = {&attn_ukr_avx2, NULL, 0, 75e9}, isa_c = {&attn_ukr_c, NULL, 0, 12e9};

/* Extents whose products would not fit in 64 bits never get here with real tensors; without tensors they could. */
static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    enum { LOG2_MOST = 40 };
    (void)k, (void)dev;
    if (p->dim_qk > 512 || p->dim_v > 512) {
        attn_text_add(why, "head dims %lld and %lld: 512 is the most", (long long)p->dim_qk, (long long)p->dim_v);
        return 0;
    }
    const double rows = (double)p->batch * (double)p->heads_q * (double)(p->seq_q > 0 ? p->seq_q : 1);
    if (rows > (double)(INT64_C(1) << LOG2_MOST) || p->seq_k > INT64_C(1) << LOG2_MOST) {
        attn_text_add(why, "more than 2^%d query rows or keys", LOG2_MOST);
        return 0;
    }
    return 1;
}

static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct attn_cpu_sdpa_isa *isa = k->impl;
    const double rate = isa->rate * (p->dtype == ATTN_F64 ? 0.5 : 1) * dev->threads;
    return 5e-6 + (amount->flops * (p->op == ATTN_OP_SDPA_BWD ? 1.2 : 1) + 20 * amount->bytes) / rate;
}

#define OPERATOR(op, direct)                                                                                           \
    static uint64_t workspace_##op(const struct attn_kernel *k, const struct attn_core_device *dev,                    \
                                   const attn_problem *p) {                                                            \
        return (uint64_t)attn_cpu_sdpa_##op##_workspace(k->impl, p, dev->threads);                                     \
    }                                                                                                                  \
    static attn_status launch_##op(const struct attn_kernel *k, const struct attn_core_device *dev,                    \
                                   const attn_problem *p, const attn_args *args) {                                     \
        if (direct(k->impl, dev, p, args)) return ATTN_OK;                                                             \
        const uint32_t mode = attn_base_float_begin(dev->subnormals);                                                  \
        attn_cpu_sdpa_##op(k->impl, dev, p, args);                                                                     \
        attn_base_float_end(mode);                                                                                     \
        return ATTN_OK;                                                                                                \
    }
#define NEVER(isa, dev, p, args) 0
OPERATOR(fwd, attn_cpu_fwd_direct)
OPERATOR(bwd, NEVER)

#define ROW(OP, fn, isa, FEATURE, dt, DT, MATH) ROW_OF(OP, fn, isa, isa_##isa, FEATURE, dt, DT, MATH)
#define ROW_OF(OP, fn, isa, IMPL, FEATURE, dt, DT, MATH)                                                               \
    {                                                                                                                  \
        .name = "attn_sdpa_" #fn "_" #isa "_" #dt "_any", .arch = #isa,                                                \
        .summary = "any D and DV to 512, any strides, all features; products and sums in " MATH, .op = OP,             \
        .backend = ATTN_BACKEND_CPU, .dtype = DT,                                                                      \
        .math_dtype = (MATH)[0] == 'b' ? ATTN_BF16                                                                     \
                      : DT == ATTN_F64 ? ATTN_F64                                                                      \
                                       : ATTN_F32,                                                                     \
        .accumulator_dtype = DT == ATTN_F64 ? ATTN_F64 : ATTN_F32, .device_type = ATTN_DEVICE_TYPE_CPU,                \
        .deterministic = 1, .bit_stable = 1, .out_f32 = 1, .max_logits = 1, .features = FEATURE, .impl = &IMPL,        \
        .supports = supports, .estimate = estimate, .workspace = workspace_##fn, .launch = launch_##fn                 \
    }
#define ROWS(OP, fn, isa, FEATURE)                                                                                     \
    ROW(OP, fn, isa, FEATURE, f32, ATTN_F32, "f32"), ROW(OP, fn, isa, FEATURE, f16, ATTN_F16, "f32"),                  \
        ROW(OP, fn, isa, FEATURE, bf16, ATTN_BF16, "f32"), ROW(OP, fn, isa, FEATURE, f64, ATTN_F64, "f64")

/* e4m3 is widened to f32, times its scale, where rows are loaded and blocks packed: the f32 driver from there on. */
#define ROW_E4M3(isa, FEATURE)                                                                                         \
    ROW_OF(ATTN_OP_SDPA_FWD, fwd, isa, isa_##isa, FEATURE, e4m3, ATTN_E4M3, "f32, to which e4m3 is widened")

const struct attn_kernel attn_cpu_sdpa_rows[] = {
    ROW(ATTN_OP_SDPA_FWD, fwd, amx, ATTN_CPU_AMX, bf16, ATTN_BF16, "bf16, sums in f32"),
    ROW(ATTN_OP_SDPA_BWD, bwd, amx, ATTN_CPU_AMX, bf16, ATTN_BF16, "bf16, sums in f32"),
    ROW_OF(ATTN_OP_SDPA_FWD, fwd, amx, isa_amx_bf16x2, ATTN_CPU_AMX, f16, ATTN_F16,
           "f32, many rows on tiles in exact halves of bf16"),
    ROW_OF(ATTN_OP_SDPA_FWD, fwd, amx, isa_amx_bf16x3, ATTN_CPU_AMX, f32, ATTN_F32,
           "f32, many rows on tiles in three exact terms of bf16"),
    ROW_OF(ATTN_OP_SDPA_BWD, bwd, amx, isa_amx_bf16x2, ATTN_CPU_AMX, f16, ATTN_F16,
           "f32, many rows on tiles in three exact terms of bf16"),
    ROW_OF(ATTN_OP_SDPA_BWD, bwd, amx, isa_amx_bf16x3, ATTN_CPU_AMX, f32, ATTN_F32,
           "f32, many rows on tiles in three exact terms of bf16"),
    ROW(ATTN_OP_SDPA_FWD, fwd, avx512bf16, ATTN_CPU_BF16, bf16, ATTN_BF16, "bf16, sums in f32"),
    ROW(ATTN_OP_SDPA_BWD, bwd, avx512bf16, ATTN_CPU_BF16, bf16, ATTN_BF16, "bf16, sums in f32"),
    ROWS(ATTN_OP_SDPA_FWD, fwd, avx512, ATTN_CPU_AVX512),
    ROWS(ATTN_OP_SDPA_BWD, bwd, avx512, ATTN_CPU_AVX512),
    ROWS(ATTN_OP_SDPA_FWD, fwd, avx2, ATTN_CPU_AVX2),
    ROWS(ATTN_OP_SDPA_BWD, bwd, avx2, ATTN_CPU_AVX2),
    ROWS(ATTN_OP_SDPA_FWD, fwd, c, ATTN_CPU_C),
    ROWS(ATTN_OP_SDPA_BWD, bwd, c, ATTN_CPU_C),
    ROW_E4M3(avx512, ATTN_CPU_AVX512),
    ROW_E4M3(avx2, ATTN_CPU_AVX2),
    ROW_E4M3(c, ATTN_CPU_C),
};
const int32_t attn_cpu_n_sdpa_rows = sizeof attn_cpu_sdpa_rows / sizeof attn_cpu_sdpa_rows[0];
