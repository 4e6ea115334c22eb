/* SPDX-License-Identifier: MIT
 * The MLA kernels' rows: three operators, five instruction sets, three dtypes, one driver each. bf16 and f16 are
 * widened to f32 when rows are gathered, but for bf16 on AVX-512 BF16 and AMX. */
#include "attn.h"
#include "cpu/sparse/gather.h"

/* AMX: every block loads and stores all sums as tiles, by count the time of some 40 rows' products. */
static const struct mla_isa isa_amx = {
    &attn_ukr_avx512, &attn_cpu_mla_vec_avx512, &attn_ukr_bf16_amx, 800e9, 256, NULL};
static const struct mla_isa isa_avx512bf16 = {&attn_ukr_avx512,          &attn_cpu_mla_vec_avx512,
                                              &attn_ukr_bf16_avx512bf16, 200e9,
                                              MLA_PLACE_BLOCK,           &attn_ukr_sparse_avx512bf16};
static const struct mla_isa isa_avx512 = {&attn_ukr_avx512, &attn_cpu_mla_vec_avx512, NULL, 100e9, MLA_BLOCK, NULL};
static const struct mla_isa isa_avx2 = {&attn_ukr_avx2, &attn_cpu_mla_vec_avx2, NULL, 80e9, MLA_BLOCK, NULL};
static const struct mla_isa isa_c = {&attn_ukr_c, &attn_cpu_mla_vec_c, NULL, 6e9, MLA_BLOCK, NULL};

/* The operator's definition (D 576 or 512, DV 512, one kv head) is checked with the problem; what is left is what this
 * driver itself assumes. */
static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct mla_isa *isa = k->impl;
    (void)dev;
    if (mla_in_place(isa) && (p->dim_qk % 32 || p->dim_v % 32 || p->dim_qk > MLA_PLACE_DEPTH)) {
        attn_text_add(why, "head dims %lld and %lld: wants multiples of 32, at most %d", (long long)p->dim_qk,
                      (long long)p->dim_v, (int)MLA_PLACE_DEPTH);
        return 0;
    }
    if (p->dim_qk % 16 || p->dim_v % 16 || p->dim_v > p->dim_qk) {
        attn_text_add(why, "head dims %lld and %lld: wants multiples of 16, dv at most d", (long long)p->dim_qk,
                      (long long)p->dim_v);
        return 0;
    }
    if (p->heads_k != 1) {
        attn_text_add(why, "%lld kv heads: has 1", (long long)p->heads_k);
        return 0;
    }
    return 1;
}

static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)p;
    const struct mla_isa *isa = k->impl;
    return 1e-5 + amount->flops / (isa->flops * dev->threads);
}

#define OPERATOR(op)                                                                                                   \
    static uint64_t workspace_##op(const struct attn_kernel *k, const struct attn_core_device *dev,                    \
                                   const attn_problem *p) {                                                            \
                                                                                                                       \
        return attn_cpu_mla_##op##_workspace(k->impl, p, dev->threads);                                                \
    }                                                                                                                  \
    static attn_status launch_##op(const struct attn_kernel *k, const struct attn_core_device *dev,                    \
                                   const attn_problem *p, const attn_args *args) {                                     \
        const uint32_t mode = attn_base_float_begin(dev->subnormals);                                                  \
        attn_cpu_mla_##op(k->impl, dev, p, args);                                                                      \
        attn_base_float_end(mode);                                                                                     \
        return ATTN_OK;                                                                                                \
    }
OPERATOR(fwd)
OPERATOR(bwd)
OPERATOR(dist)

#define ROW(word, ATTN_OP, fn, isa, FEATURES, dt, ATTN_DT, PRODUCTS)                                                   \
    {                                                                                                                  \
        .name = "attn_" word "_" #isa "_" #dt "_any", .arch = #isa,                                                    \
        .summary = "any HQ, TOPK and strides, all features; " PRODUCTS ", valid rows alone", .op = ATTN_OP,            \
        .backend = ATTN_BACKEND_CPU, .dtype = ATTN_DT, .math_dtype = (PRODUCTS)[0] == 'b' ? ATTN_BF16 : ATTN_F32,      \
        .accumulator_dtype = ATTN_F32, .device_type = ATTN_DEVICE_TYPE_CPU, .deterministic = 1, .bit_stable = 1,       \
        .out_f32 = 1, .features = FEATURES, .impl = &isa_##isa, .supports = supports, .estimate = estimate,            \
        .workspace = workspace_##fn, .launch = launch_##fn                                                             \
    }
#define ROWS_ISA(isa, FEATURES, dt, ATTN_DT, PRODUCTS)                                                                 \
    ROW("mla_fwd", ATTN_OP_MLA_FWD, fwd, isa, FEATURES, dt, ATTN_DT, PRODUCTS),                                        \
        ROW("mla_bwd", ATTN_OP_MLA_BWD, bwd, isa, FEATURES, dt, ATTN_DT, PRODUCTS),                                    \
        ROW("dist", ATTN_OP_DIST, dist, isa, FEATURES, dt, ATTN_DT, PRODUCTS)
#define ROWS(isa, FEATURES)                                                                                            \
    ROWS_ISA(isa, FEATURES, bf16, ATTN_BF16, "f32 products"), ROWS_ISA(isa, FEATURES, f16, ATTN_F16, "f32 products"),  \
        ROWS_ISA(isa, FEATURES, f32, ATTN_F32, "f32 products")

const struct attn_kernel attn_cpu_mla_rows[] = {
    ROWS_ISA(amx, ATTN_CPU_AMX, bf16, ATTN_BF16, "bf16 products"),
    ROWS_ISA(avx512bf16, ATTN_CPU_BF16, bf16, ATTN_BF16, "bf16 products"),
    ROWS(avx512, ATTN_CPU_AVX512),
    ROWS(avx2, ATTN_CPU_AVX2),
    ROWS(c, ATTN_CPU_C),
};
const int32_t attn_cpu_n_mla_rows = sizeof attn_cpu_mla_rows / sizeof attn_cpu_mla_rows[0];
