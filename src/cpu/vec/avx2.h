/* SPDX-License-Identifier: MIT
 * Vector layer of avx2/ukr.c: the handful of operations that ukr/row_tpl.h and ukr/gemm_tpl.h are written in.
 * Arithmetic (+ - *) uses the compilers' vector operators. No algorithm lives here. */
#ifndef ATTN_CPU_VEC_AVX2_H
#define ATTN_CPU_VEC_AVX2_H
#include <immintrin.h>
#include <stdint.h>

/* n ones, then zeros: a window into a table */
static const int32_t tail_ones32[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
static const int64_t tail_ones64[8] = {-1, -1, -1, -1, 0, 0, 0, 0};

#define V32_LANES 8
typedef __m256 v32;
typedef __m256i v32_tail;
static inline v32_tail v32_tail_of(int64_t n) { return _mm256_loadu_si256((const __m256i *)(tail_ones32 + 8 - n)); }
static inline v32 v32_set(float x) { return _mm256_set1_ps(x); }
static inline v32 v32_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v32_store(float *p, v32 x) { _mm256_storeu_ps(p, x); }
static inline v32 v32_load_tail(const float *p, v32_tail m) { return _mm256_maskload_ps(p, m); }
static inline void v32_store_tail(float *p, v32_tail m, v32 x) { _mm256_maskstore_ps(p, m, x); }
static inline v32 v32_fill_tail(v32 x, v32_tail m, v32 other) {
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(m));
}
static inline v32 v32_fma(v32 a, v32 b, v32 c) { return _mm256_fmadd_ps(a, b, c); }
static inline v32 v32_fms(v32 a, v32 b, v32 c) { return _mm256_fmsub_ps(a, b, c); }
static inline v32 v32_nfma(v32 a, v32 b, v32 c) { return _mm256_fnmadd_ps(a, b, c); }
/* max, min: the second operand if either is NaN */
static inline v32 v32_max(v32 a, v32 b) { return _mm256_max_ps(a, b); }
static inline v32 v32_min(v32 a, v32 b) { return _mm256_min_ps(a, b); }
static inline v32 v32_inverse(v32 x) { return _mm256_set1_ps(1) / x; }
static inline v32 v32_abs(v32 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline v32 v32_sign_of(v32 x, v32 sign) { return _mm256_or_ps(x, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f))); }
static inline float v32_sum(v32 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float v32_largest(v32 a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline int v32_any_nan(v32 a, v32 b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }
/* x where test is not 0 (a NaN test counts as not 0), else 0 */
static inline v32 v32_where_nonzero(v32 test, v32 x) {
    return _mm256_and_ps(_mm256_cmp_ps(test, _mm256_setzero_ps(), _CMP_NEQ_UQ), x);
}
/* 2^n with n in the low bits of `magic + n`, -127 <= n <= 128; -127 gives 0 */
static inline v32 v32_exp2i(v32 t) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23));
}

/* 2^x = 2^floor(x) 2^(x - floor(x)) in two parts: x - floor(x), and p 2^floor(x). From -127 down the power is 0, from
 * 128 up infinity; -inf is in the range of both. */
static inline v32 v32_floor_in_range(v32 x) {
    return _mm256_floor_ps(v32_min(v32_set(128), v32_max(v32_set(-127), x))); /* a NaN passes */
}
static inline v32 v32_above_floor(v32 x) {
    return v32_min(v32_set(128), v32_max(v32_set(-127), x)) - v32_floor_in_range(x);
}
static inline v32 v32_scale_floor(v32 p, v32 x) {
    const v32 power = v32_floor_in_range(x) + v32_set(0x1.8p23f + 127); /* in the low bits */
    return p * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(power), 23));
}
/* 1 / x, within 2^-11 */
static inline v32 v32_reciprocal(v32 x) { return _mm256_rcp_ps(x); }

/* Yes or no for each lane. */
typedef __m256 v32_mask;
static inline v32_mask v32_lt(v32 a, v32 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline v32_mask v32_eq(v32 a, v32 b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline v32_mask v32_ne(v32 a, v32 b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_OQ); } /* a NaN: no */
static inline v32_mask v32_not_le(v32 a, v32 b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
static inline v32_mask v32_and(v32_mask a, v32_mask b) { return _mm256_and_ps(a, b); }
static inline v32 v32_pick(v32_mask m, v32 yes, v32 no) { return _mm256_blendv_ps(no, yes, m); }
static inline uint32_t v32_bits(v32_mask m) { return (uint32_t)_mm256_movemask_ps(m); }
static inline v32_mask v32_any_bit(const uint32_t *words, uint32_t bits) { /* of a word for each lane */
    const __m256i all = _mm256_set1_epi32((int32_t)bits),
                  x = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)words), all);
    return _mm256_castsi256_ps(_mm256_xor_si256(_mm256_cmpeq_epi32(x, _mm256_setzero_si256()), _mm256_set1_epi32(-1)));
}
static inline v32_mask v32_mask_of(uint32_t bits) { /* a bit for each lane */
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)bits), lane), lane));
}
static inline v32 v32_of_int32(const int32_t *p) {
    return _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* x = m 2^e with m from 3/4 to 3/2, of a positive normal x: m; e */
static inline v32 v32_split(v32 x, v32 *e) {
    const __m256i bits = _mm256_castps_si256(x), above = _mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f400000)),
                  n = _mm256_srai_epi32(above, 23);
    *e = _mm256_cvtepi32_ps(n);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(n, 23)));
}

/* c[j] = sum of the lanes of s[j], j < 8 */
static inline void v32_store_sums(float *c, const v32 *s) {
    for (int i = 0; i < 8; i += 4) {
        __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(s[i], s[i + 1]), _mm256_hadd_ps(s[i + 2], s[i + 3]));
        _mm_storeu_ps(c + i, _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
    }
}

#define V64_LANES 4
typedef __m256d v64;
typedef __m256i v64_tail;
static inline v64_tail v64_tail_of(int64_t n) { return _mm256_loadu_si256((const __m256i *)(tail_ones64 + 4 - n)); }
static inline v64 v64_set(double x) { return _mm256_set1_pd(x); }
static inline v64 v64_load(const double *p) { return _mm256_loadu_pd(p); }
static inline void v64_store(double *p, v64 x) { _mm256_storeu_pd(p, x); }
static inline v64 v64_load_tail(const double *p, v64_tail m) { return _mm256_maskload_pd(p, m); }
static inline void v64_store_tail(double *p, v64_tail m, v64 x) { _mm256_maskstore_pd(p, m, x); }
static inline v64 v64_fill_tail(v64 x, v64_tail m, v64 other) {
    return _mm256_blendv_pd(other, x, _mm256_castsi256_pd(m));
}
static inline v64 v64_fma(v64 a, v64 b, v64 c) { return _mm256_fmadd_pd(a, b, c); }
static inline v64 v64_nfma(v64 a, v64 b, v64 c) { return _mm256_fnmadd_pd(a, b, c); }
static inline v64 v64_max(v64 a, v64 b) { return _mm256_max_pd(a, b); }
static inline v64 v64_min(v64 a, v64 b) { return _mm256_min_pd(a, b); }
static inline v64 v64_inverse(v64 x) { return _mm256_set1_pd(1) / x; }
static inline v64 v64_abs(v64 a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
static inline v64 v64_sign_of(v64 x, v64 sign) { return _mm256_or_pd(x, _mm256_and_pd(sign, _mm256_set1_pd(-0.0))); }
static inline double v64_sum(v64 a) {
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
static inline double v64_largest(v64 a) {
    __m128d s = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(s, _mm_unpackhi_pd(s, s)));
}
static inline int v64_any_nan(v64 a, v64 b) { return _mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_UNORD_Q)) != 0; }
static inline v64 v64_where_nonzero(v64 test, v64 x) {
    return _mm256_and_pd(_mm256_cmp_pd(test, _mm256_setzero_pd(), _CMP_NEQ_UQ), x);
}
static inline v64 v64_exp2i(v64 t) {
    return _mm256_castsi256_pd(
        _mm256_slli_epi64(_mm256_add_epi64(_mm256_castpd_si256(t), _mm256_set1_epi64x(1023)), 52));
}
static inline void v64_store_sums(double *c, const v64 *s) {
    for (int i = 0; i < 8; i += 2) {
        __m256d t = _mm256_hadd_pd(s[i], s[i + 1]);
        _mm_storeu_pd(c + i, _mm_add_pd(_mm256_castpd256_pd128(t), _mm256_extractf128_pd(t, 1)));
    }
}
#endif
