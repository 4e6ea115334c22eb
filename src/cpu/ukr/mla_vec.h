/* SPDX-License-Identifier: MIT
 * Element-wise loops of the MLA kernels over blocks [keys][heads]: written once here, compiled once per instruction set
 * by c/mla_vec.c, avx2/mla_vec.c and avx512/mla_vec.c. A block keeps the heads innermost, so every statistic of a
 * softmax row (max, sum, lse, delta) is a vector over heads and nothing is ever reduced across a register. n is a
 * multiple of 16. */
#ifndef ATTN_CPU_UKR_MLA_VEC_H
#define ATTN_CPU_UKR_MLA_VEC_H
#include "cpu/ukr/bf16.h"
#include "cpu/ukr/sparse.h"
#include "cpu/ukr/ukr.h"

struct mla_vec {
    /* s *= scale; max[h] = larger of max[h] and the column's elements. A NaN sticks. */
    void (*scale_max)(float *s, int64_t ld, int64_t rows, int64_t n, float scale, float *max);
    void (*sub)(float *s, const float *x, int64_t n);                    /* s -= x           */
    void (*scale_sub)(float *s, const float *x, int64_t n, float scale); /* s = s * scale - x */
    void (*add)(float *s, const float *x, int64_t n);                    /* s += x           */
    /* ds holds dP on entry: ds = p * (g * ds - c) * scale, then p *= g. */
    void (*score_bwd)(float *ds, float *p, const float *g, const float *c, int64_t n, float scale);
};
extern const struct mla_vec attn_cpu_mla_vec_c, attn_cpu_mla_vec_avx2, attn_cpu_mla_vec_avx512;

/* One instruction set, as the `impl` of a kernel row. */
struct mla_isa {
    const struct attn_ukr *ukr;
    const struct mla_vec *vec;
    const struct attn_ukr_bf16 *bf16;     /* not NULL, for bf16 alone: products take operands of pairs (bf16.h) */
    double flops;                         /* per second and thread: a rough figure for ranking */
    int64_t block;                        /* rows per block, an even number; at least MLA_HEADS */
    const struct attn_ukr_sparse *sparse; /* NULL: rows are gathered; else products read them where they are, and block
                                           * is a multiple of ATTN_SPARSE_ROWS */
};

#ifdef ATTN_CPU_MLA_VEC_TABLE /* the name of the table to define */
static void scale_max(float *s, int64_t ld, int64_t rows, int64_t n, float scale, float *restrict max) {
    for (int64_t r = 0; r < rows; ++r) {
        float *restrict x = s + r * ld;
        for (int64_t h = 0; h < n; ++h) {
            float v = x[h] * scale, m = max[h];
            x[h] = v;
            max[h] = ((v > m) | (v != v)) ? v : m;
        }
    }
}
static void sub(float *restrict s, const float *restrict x, int64_t n) {
    for (int64_t h = 0; h < n; ++h) s[h] -= x[h];
}
static void scale_sub(float *restrict s, const float *restrict x, int64_t n, float scale) {
    for (int64_t h = 0; h < n; ++h) s[h] = s[h] * scale - x[h];
}
static void add(float *restrict s, const float *restrict x, int64_t n) {
    for (int64_t h = 0; h < n; ++h) s[h] += x[h];
}
static void score_bwd(float *restrict ds, float *restrict p, const float *restrict g, const float *restrict c,
                      int64_t n, float scale) {
    for (int64_t h = 0; h < n; ++h) {
        ds[h] = p[h] * (g[h] * ds[h] - c[h]) * scale;
        p[h] *= g[h];
    }
}
const struct mla_vec ATTN_CPU_MLA_VEC_TABLE = {scale_max, sub, scale_sub, add, score_bwd};
#endif
#endif
