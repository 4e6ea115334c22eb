/* SPDX-License-Identifier: MIT
 * Vector layer of avx512/ukr.c: the handful of operations that ukr/row_tpl.h and ukr/gemm_tpl.h are written in.
 * Arithmetic (+ - *) uses the compilers' vector operators. No algorithm lives here. */
#ifndef ATTN_CPU_VEC_AVX512_H
#define ATTN_CPU_VEC_AVX512_H
#include <immintrin.h>
#include <stdint.h>

#define VEC_SCALES /* there is scale2 */
#define V32_LANES  16
typedef __m512 v32;
typedef __mmask16 v32_tail;
static inline v32_tail v32_tail_of(int64_t n) { return (__mmask16)((1u << n) - 1u); }
static inline v32 v32_set(float x) { return _mm512_set1_ps(x); }
static inline v32 v32_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v32_store(float *p, v32 x) { _mm512_storeu_ps(p, x); }
static inline v32 v32_load_tail(const float *p, v32_tail m) { return _mm512_maskz_loadu_ps(m, p); }
static inline void v32_store_tail(float *p, v32_tail m, v32 x) { _mm512_mask_storeu_ps(p, m, x); }
static inline v32 v32_fill_tail(v32 x, v32_tail m, v32 other) { return _mm512_mask_mov_ps(other, m, x); }
static inline v32 v32_fma(v32 a, v32 b, v32 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v32 v32_fms(v32 a, v32 b, v32 c) { return _mm512_fmsub_ps(a, b, c); }
static inline v32 v32_nfma(v32 a, v32 b, v32 c) { return _mm512_fnmadd_ps(a, b, c); }
/* max, min: the second operand if either is NaN */
static inline v32 v32_max(v32 a, v32 b) { return _mm512_max_ps(a, b); }
static inline v32 v32_min(v32 a, v32 b) { return _mm512_min_ps(a, b); }
/* 1 / x for x between 1 and 2, within 1.2e-7; a division takes the time of 32 multiply-adds */
static inline v32 v32_inverse(v32 x) {
    const v32 r = _mm512_rcp14_ps(x);
    return v32_fma(r, v32_nfma(r, x, v32_set(1)), r);
}
static inline v32 v32_abs(v32 a) { return _mm512_abs_ps(a); }
static inline v32 v32_sign_of(v32 x, v32 sign) { return _mm512_or_ps(x, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f))); }
static inline float v32_sum(v32 a) { return _mm512_reduce_add_ps(a); }
static inline float v32_largest(v32 a) { return _mm512_reduce_max_ps(a); }
static inline int v32_any_nan(v32 a, v32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
/* x where test is not 0 (a NaN test counts as not 0), else 0 */
static inline v32 v32_where_nonzero(v32 test, v32 x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, _mm512_setzero_ps(), _CMP_NEQ_UQ), x);
}
/* 2^n with n in the low bits of `magic + n`, -127 <= n <= 128; -127 gives 0 */
static inline v32 v32_exp2i(v32 t) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127)), 23));
}
/* x 2^n with n whole, inf and 0 (or a denormal) where that is out of range */
static inline v32 v32_scale2(v32 x, v32 n) { return _mm512_scalef_ps(x, n); }

/* 2^x = 2^floor(x) 2^(x - floor(x)) in two parts: x - floor(x), 0 of -inf by definition of the instruction, and
 * p 2^floor(x). */
static inline v32 v32_above_floor(v32 x) { return _mm512_reduce_ps(x, 0x01); }
static inline v32 v32_scale_floor(v32 p, v32 x) { return _mm512_scalef_ps(p, x); }
/* 1 / x, within 2^-11 */
static inline v32 v32_reciprocal(v32 x) { return _mm512_rcp14_ps(x); }

/* Yes or no for each lane. */
typedef __mmask16 v32_mask;
static inline v32_mask v32_lt(v32 a, v32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline v32_mask v32_eq(v32 a, v32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline v32_mask v32_ne(v32 a, v32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_OQ); } /* a NaN: no */
static inline v32_mask v32_not_le(v32 a, v32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
static inline v32_mask v32_and(v32_mask a, v32_mask b) { return a & b; }
static inline v32 v32_pick(v32_mask m, v32 yes, v32 no) { return _mm512_mask_mov_ps(no, m, yes); }
static inline uint32_t v32_bits(v32_mask m) { return _cvtmask16_u32(m); }
static inline v32_mask v32_any_bit(const uint32_t *words, uint32_t bits) { /* of a word for each lane */
    return _mm512_test_epi32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32((int32_t)bits));
}
static inline v32_mask v32_mask_of(uint32_t bits) { return (__mmask16)bits; } /* a bit for each lane */
static inline v32 v32_of_int32(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
/* x = m 2^e with m from 3/4 to 3/2, of a positive normal x: m; e */
static inline v32 v32_split(v32 x, v32 *e) {
    const v32 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
    *e = _mm512_getexp_ps(x) - _mm512_getexp_ps(m);
    return m;
}

/* c[j] = sum of the lanes of s[j], j < 8 */
static inline void v32_store_sums(float *c, const v32 *s) {
    __m512 t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(s[2 * i], s[2 * i + 1]), _mm512_unpackhi_ps(s[2 * i], s[2 * i + 1]));
    for (int i = 0; i < 2; i++) {
        __m512d lo = _mm512_castps_pd(t[2 * i]), hi = _mm512_castps_pd(t[2 * i + 1]);
        u[i] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)), _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
    }
    __m512 w = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88), _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    w = _mm512_add_ps(w, _mm512_shuffle_f32x4(w, w, 0xb1)); /* 128-bit parts: s0-3 twice, s4-7 twice */
    _mm256_storeu_ps(c, _mm512_castps512_ps256(_mm512_shuffle_f32x4(w, w, 0x08)));
}

#define V64_LANES 8
typedef __m512d v64;
typedef __mmask8 v64_tail;
static inline v64_tail v64_tail_of(int64_t n) { return (__mmask8)((1u << n) - 1u); }
static inline v64 v64_set(double x) { return _mm512_set1_pd(x); }
static inline v64 v64_load(const double *p) { return _mm512_loadu_pd(p); }
static inline void v64_store(double *p, v64 x) { _mm512_storeu_pd(p, x); }
static inline v64 v64_load_tail(const double *p, v64_tail m) { return _mm512_maskz_loadu_pd(m, p); }
static inline void v64_store_tail(double *p, v64_tail m, v64 x) { _mm512_mask_storeu_pd(p, m, x); }
static inline v64 v64_fill_tail(v64 x, v64_tail m, v64 other) { return _mm512_mask_mov_pd(other, m, x); }
static inline v64 v64_fma(v64 a, v64 b, v64 c) { return _mm512_fmadd_pd(a, b, c); }
static inline v64 v64_nfma(v64 a, v64 b, v64 c) { return _mm512_fnmadd_pd(a, b, c); }
static inline v64 v64_max(v64 a, v64 b) { return _mm512_max_pd(a, b); }
static inline v64 v64_min(v64 a, v64 b) { return _mm512_min_pd(a, b); }
static inline v64 v64_inverse(v64 x) { return _mm512_set1_pd(1) / x; }
static inline v64 v64_abs(v64 a) { return _mm512_abs_pd(a); }
static inline v64 v64_sign_of(v64 x, v64 sign) { return _mm512_or_pd(x, _mm512_and_pd(sign, _mm512_set1_pd(-0.0))); }
static inline double v64_sum(v64 a) { return _mm512_reduce_add_pd(a); }
static inline double v64_largest(v64 a) { return _mm512_reduce_max_pd(a); }
static inline int v64_any_nan(v64 a, v64 b) { return _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q) != 0; }
static inline v64 v64_where_nonzero(v64 test, v64 x) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(test, _mm512_setzero_pd(), _CMP_NEQ_UQ), x);
}
static inline v64 v64_exp2i(v64 t) {
    return _mm512_castsi512_pd(
        _mm512_slli_epi64(_mm512_add_epi64(_mm512_castpd_si512(t), _mm512_set1_epi64(1023)), 52));
}
static inline v64 v64_scale2(v64 x, v64 n) { return _mm512_scalef_pd(x, n); }
static inline void v64_store_sums(double *c, const v64 *s) {
    __m512d t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = _mm512_add_pd(_mm512_unpacklo_pd(s[2 * i], s[2 * i + 1]), _mm512_unpackhi_pd(s[2 * i], s[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        u[i] = _mm512_add_pd(_mm512_shuffle_f64x2(t[2 * i], t[2 * i + 1], 0x88),
                             _mm512_shuffle_f64x2(t[2 * i], t[2 * i + 1], 0xdd));
    /* u[0]: parts s01 s01 s23 s23, u[1]: s45 s45 s67 s67 */
    _mm512_storeu_pd(c, _mm512_add_pd(_mm512_shuffle_f64x2(u[0], u[1], 0x88), _mm512_shuffle_f64x2(u[0], u[1], 0xdd)));
}
#endif
