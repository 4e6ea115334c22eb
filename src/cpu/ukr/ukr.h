/* SPDX-License-Identifier: MIT
 * Microkernels: the few inner loops that attention is made of, one table per instruction set (c/ukr.c, avx2/ukr.c,
 * avx512/ukr.c). Drivers (sdpa_*.c, mla_*.c) own blocking, masks and threads and see only this table.
 * f16 and bf16 are widened to f32 when a block is packed; f64 has its own entries. Buffers are 64-byte aligned, rows of
 * panels are `ld` elements apart with ld a multiple of 16 (f32) or 8 (f64); no entry reads or writes past the n it is
 * given. */
#ifndef ATTN_CPU_UKR_UKR_H
#define ATTN_CPU_UKR_UKR_H
#include "attn.h"

#include "cpu/ukr/decode.h"
#include "cpu/ukr/transposed.h"

struct attn_ukr {
    const char *isa;    /* "c", "avx2", "avx512" */
    int32_t mr32, nr32; /* register tile of gemm_f32: hints for choosing block sizes */
    int32_t mr64, nr64;

    /* C[m,n] = A[m,k] B[k,n] (accumulate = 0) or += (1). A is addressed as a[i*a_row + l*a_col], so that a transposed A
     * costs nothing; B and C are row-major with unit columns. Any m, n, k >= 0 (k = 0 with accumulate = 0 zero-fills).
     */
    void (*gemm_f32)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                     int64_t ldb, float *c, int64_t ldc, int accumulate);
    void (*gemm_f64)(int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_col, const double *b,
                     int64_t ldb, double *c, int64_t ldc, int accumulate);

    /* C[m,n] = A[m,k] B[n,k]^T, rows of A and B with unit columns: for few rows of A (decode), where packing B costs
     * more than it saves. Elements do not depend on how m and n are cut (neither do those of gemm), but differ from
     * gemm's in rounding. */
    void (*gemm_nt_f32)(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                        float *c, int64_t ldc);
    void (*gemm_nt_f64)(int64_t m, int64_t n, int64_t k, const double *a, int64_t lda, const double *b, int64_t ldb,
                        double *c, int64_t ldc);

    /* The same two with B of f16 or bf16 as it is in memory (`dtype`), widened on the way: for few rows of A, A with
     * unit columns. NULL where widening costs too much to be done more than once. */
    void (*gemm_half)(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                      int32_t dtype, float *c, int64_t ldc, int accumulate);
    void (*gemm_nt_half)(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                         int32_t dtype, float *c, int64_t ldc);

    /* Largest element that is not NaN; -inf if there is none. */
    float (*max_f32)(const float *s, int64_t n);
    double (*max_f64)(const double *s, int64_t n);

    /* s[j] = exp(s[j] - max) in place, returns the sum (f32: within 2e-7 + 3e-9 |s[j] - max| relative per element).
     * s[j] = -inf gives exactly 0, a NaN gives NaN. max is finite, and no s[j] larger than it by 2^20 or more. */
    float (*exp_f32)(float *s, int64_t n, float max);
    double (*exp_f64)(double *s, int64_t n, double max);

    /* s[j] = cap * tanh(s[j] / cap); with d not NULL also d[j] = 1 - tanh^2. NaN stays NaN. */
    void (*softcap_f32)(float *s, float *d, int64_t n, float cap);
    void (*softcap_f64)(double *s, double *d, int64_t n, double cap);

    /* dp[j] = p[j] * (dp[j] - delta); exactly 0 where p[j] is 0, whatever dp[j] holds */
    void (*dsoftmax_f32)(const float *p, float *dp, int64_t n, float delta);
    void (*dsoftmax_f64)(const double *p, double *dp, int64_t n, double delta);

    /* s[j] = exp(s[j] - lse) of the backward, where no term of a sum is larger than 1 by much and f32 need not be as
     * exact: within 2e-7 + 4e-8 |lse| of it. lse is finite or infinity, which gives 0. */
    void (*exp_lse_f32)(float *s, int64_t n, float lse);
    void (*exp_lse_f64)(double *s, int64_t n, double lse);

    /* Both at once for rows whose scores are s: s becomes p = exp(s - lse[r]), dp becomes dsoftmax, to the bits of
     * exp_lse and dsoftmax. Rows are ld apart. */
    void (*score_bwd_f32)(int64_t rows, int64_t n, float *s, float *dp, int64_t ld, const float *lse,
                          const float *delta);
    void (*score_bwd_f64)(int64_t rows, int64_t n, double *s, double *dp, int64_t ld, const double *lse,
                          const double *delta);

    /* y[j] *= factor */
    void (*scale_f32)(float *y, int64_t n, float factor);
    void (*scale_f64)(double *y, int64_t n, double factor);

    /* y[j] *= x[j]; 0 stays 0 whatever x[j] holds */
    void (*mul_f32)(float *y, const float *x, int64_t n);
    void (*mul_f64)(double *y, const double *x, int64_t n);

    /* s[j] += slope * (first + j), or with distance s[j] -= slope * (|first + j| - nearest) */
    void (*alibi_f32)(float *s, int64_t n, float slope, float first, int distance, float nearest);
    void (*alibi_f64)(double *s, int64_t n, double slope, double first, int distance, double nearest);

    /* y[j] += x[j] */
    void (*add_f32)(float *y, const float *x, int64_t n);
    void (*add_f64)(double *y, const double *x, int64_t n);

    /* s[j] = -inf where keep[j] is 0 */
    void (*hide_f32)(float *s, const uint8_t *keep, int64_t n);
    void (*hide_f64)(double *s, const uint8_t *keep, int64_t n);

    /* sum a[j]*b[j] */
    float (*dot_f32)(const float *a, const float *b, int64_t n);
    double (*dot_f64)(const double *a, const double *b, int64_t n);

    /* 1 if no element is NaN or infinite */
    int (*finite_f32)(const float *x, int64_t n);
    int (*finite_f64)(const double *x, int64_t n);

    /* Unit-stride row between a tensor dtype (F32, F16, BF16) and f32, times factor (1: exact copy); rounds to nearest
     * even. */
    void (*widen)(float *dst, const void *src, int32_t dtype, int64_t n, float factor);
    void (*narrow)(void *dst, int32_t dtype, const float *src, int64_t n, float factor);

    const struct attn_ukr_transposed *transposed;                        /* or NULL */
    const struct attn_ukr_decode *decode_f32, *decode_f16, *decode_bf16; /* or NULL; q is f32 */

    /* Transpose: dst[c*ld + r] = src[r*ld_src + c], r < rows, c < cols. */
    void (*transpose_f32)(float *dst, int64_t ld, const float *src, int64_t ld_src, int64_t rows, int64_t cols);
    void (*transpose_f64)(double *dst, int64_t ld, const double *src, int64_t ld_src, int64_t rows, int64_t cols);
};
extern const struct attn_ukr attn_ukr_c, attn_ukr_avx2, attn_ukr_avx512;
#endif
