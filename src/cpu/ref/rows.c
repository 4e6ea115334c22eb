/* SPDX-License-Identifier: MIT
 * The reference kernels' rows: every operator and dtype, every feature, chosen when nothing else accepts. */
#include "cpu/ref/ref.h"

/* The scratch of a task must stay far below 2^64 bytes; nothing else is refused. */
static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    enum { LOG2_MOST = 36 };
    const struct {
        const char *name;
        int64_t extent;
    } bounded[] = {{"seq_k", p->seq_k}, {"topk", p->topk}, {"heads_q", p->heads_q}};
    (void)k, (void)dev;
    for (size_t i = 0; i < sizeof bounded / sizeof bounded[0]; ++i)
        if (bounded[i].extent > INT64_C(1) << LOG2_MOST) {
            attn_text_add(why, "%s %lld is over 2^%d", bounded[i].name, (long long)bounded[i].extent, LOG2_MOST);
            return 0;
        }
    return 1;
}

/* About 1e9 operations per second and thread. Masked pairs are counted: good enough for the last resort. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    if (k->op == ATTN_OP_MLA_JOIN)
        return 1e-6 + 500e-9 * (double)p->batch * (double)p->seq_q * (double)p->topk / dev->threads;
    double rows = (double)p->batch * (double)p->heads_q * (double)p->seq_q, d = (double)p->dim_qk,
           dv = (double)p->dim_v;
    double flops = 0, keys = 0;
    switch (k->op) {
    case ATTN_OP_SDPA_FWD: keys = (double)p->seq_k, flops = 2 * (d + dv) + 20; break;
    case ATTN_OP_SDPA_BWD: keys = (double)p->seq_k, flops = 4 * (2 * d + dv) + 40; break;
    case ATTN_OP_MLA_FWD: keys = (double)p->topk, flops = 2 * (d + dv) + 20; break;
    case ATTN_OP_MLA_BWD: keys = (double)p->topk, flops = 4 * (2 * d + dv) + 40; break;
    default: keys = (double)p->topk, flops = 2 * d + 20; break;
    }
    return 1e-6 + rows * keys * flops / (1e9 * dev->threads);
}

static int64_t doubles(const attn_problem *p) {
    switch (p->op) {
    case ATTN_OP_SDPA_FWD: return attn_cpu_ref_sdpa_fwd_doubles(p);
    case ATTN_OP_SDPA_BWD: return attn_cpu_ref_sdpa_bwd_doubles(p);
    case ATTN_OP_MLA_FWD: return attn_cpu_ref_mla_fwd_doubles(p);
    case ATTN_OP_MLA_BWD: return attn_cpu_ref_mla_bwd_doubles(p);
    case ATTN_OP_MLA_JOIN: return attn_cpu_ref_mla_join_doubles(p);
    default: return attn_cpu_ref_dist_doubles(p);
    }
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k;
    return attn_cpu_ref_bytes(dev, doubles(p));
}

#define ROW(OP, op_name, DTYPE, dtype_name)                                                                            \
    {                                                                                                                  \
        .name = "attn_" #op_name "_ref_" #dtype_name "_any", .arch = "ref",                                            \
        .summary = "everything the operator defines; double precision, slow", .op = ATTN_OP_##OP,                      \
        .backend = ATTN_BACKEND_REF, .dtype = ATTN_##DTYPE, .math_dtype = ATTN_F64, .accumulator_dtype = ATTN_F64,     \
        .device_type = ATTN_DEVICE_TYPE_CPU, .deterministic = 1, .bit_stable = 1, .out_f32 = 1, .max_logits = 1,       \
        .features = ATTN_CPU_C, .supports = supports, .estimate = estimate, .workspace = workspace,                    \
        .launch = attn_cpu_ref_##op_name                                                                               \
    }
#define ROWS3(OP, op_name) ROW(OP, op_name, F32, f32), ROW(OP, op_name, F16, f16), ROW(OP, op_name, BF16, bf16)

const struct attn_kernel attn_cpu_ref_rows[] = {
    ROWS3(SDPA_FWD, sdpa_fwd),
    ROW(SDPA_FWD, sdpa_fwd, F64, f64),
    ROW(SDPA_FWD, sdpa_fwd, E4M3, e4m3),
    ROWS3(SDPA_BWD, sdpa_bwd),
    ROW(SDPA_BWD, sdpa_bwd, F64, f64),
    ROWS3(MLA_FWD, mla_fwd),
    ROWS3(MLA_BWD, mla_bwd),
    ROWS3(DIST, dist),
    ROW(MLA_JOIN, mla_join, I32, i32),
};
const int32_t attn_cpu_n_ref_rows = sizeof attn_cpu_ref_rows / sizeof attn_cpu_ref_rows[0];
