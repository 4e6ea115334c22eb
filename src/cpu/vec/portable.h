/* SPDX-License-Identifier: MIT
 * Vector layer of c/ukr.c: 16-byte GNU vectors, which every compiler lowers to the baseline (SSE2, NEON) or to scalars.
 * No fused multiply-add: a * b + c rounds twice here. No algorithm lives here. */
#ifndef ATTN_CPU_VEC_PORTABLE_H
#define ATTN_CPU_VEC_PORTABLE_H
#include <stdint.h>
#include <string.h>

/* One definition for both element types: T scalar, I integer of its width, P prefix, L lanes, BIAS and SHIFT of the
 * exponent. */
#define VEC_LAYER(P, T, I, L, BIAS, SHIFT)                                                                             \
    typedef T P __attribute__((vector_size(16)));                                                                      \
    typedef I P##_bits __attribute__((vector_size(16)));                                                               \
    typedef int64_t P##_tail; /* lanes in use */                                                                       \
    static inline P##_tail P##_tail_of(int64_t n) { return n; }                                                        \
    static inline P P##_set(T x) {                                                                                     \
        P r;                                                                                                           \
        for (int i = 0; i < L; i++) r[i] = x;                                                                          \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline P P##_load(const T *p) {                                                                             \
        P x;                                                                                                           \
        memcpy(&x, p, sizeof x);                                                                                       \
        return x;                                                                                                      \
    }                                                                                                                  \
    static inline void P##_store(T *p, P x) { memcpy(p, &x, sizeof x); }                                               \
    static inline P P##_load_tail(const T *p, P##_tail n) {                                                            \
        P x = {0};                                                                                                     \
        for (int i = 0; i < L; i++)                                                                                    \
            if (i < n) x[i] = p[i];                                                                                    \
        return x;                                                                                                      \
    }                                                                                                                  \
    static inline void P##_store_tail(T *p, P##_tail n, P x) {                                                         \
        for (int i = 0; i < L; i++)                                                                                    \
            if (i < n) p[i] = x[i];                                                                                    \
    }                                                                                                                  \
    static inline P P##_fill_tail(P x, P##_tail n, P other) {                                                          \
        for (int i = 0; i < L; i++)                                                                                    \
            if (i >= n) x[i] = other[i];                                                                               \
        return x;                                                                                                      \
    }                                                                                                                  \
    static inline P P##_pick(P##_bits m, P yes, P no) { return (P)((m & (P##_bits)yes) | (~m & (P##_bits)no)); }       \
    static inline P P##_fma(P a, P b, P c) { return a * b + c; }                                                       \
    static inline P P##_nfma(P a, P b, P c) { return c - a * b; }                                                      \
    /* max, min: the second operand if either is NaN */                                                                \
    static inline P P##_max(P a, P b) { return P##_pick(a > b, a, b); }                                                \
    static inline P P##_min(P a, P b) { return P##_pick(a < b, a, b); }                                                \
    static inline P P##_inverse(P x) { return P##_set(1) / x; }                                                        \
    static inline P P##_abs(P a) { return (P)((P##_bits)a & ~(P##_bits)P##_set((T)-0.0)); }                            \
    static inline P P##_sign_of(P x, P s) { return (P)((P##_bits)x | ((P##_bits)s & (P##_bits)P##_set((T)-0.0))); }    \
    static inline T P##_sum(P a) {                                                                                     \
        T s = 0;                                                                                                       \
        for (int i = 0; i < L; i++) s += a[i];                                                                         \
        return s;                                                                                                      \
    }                                                                                                                  \
    /* c[j] = sum of the lanes of s[j], j < 8 */                                                                       \
    static inline void P##_store_sums(T *c, const P *s) {                                                              \
        for (int i = 0; i < 8; i++) c[i] = P##_sum(s[i]);                                                              \
    }                                                                                                                  \
    static inline T P##_largest(P a) {                                                                                 \
        T m = a[0];                                                                                                    \
        for (int i = 1; i < L; i++) m = a[i] > m ? a[i] : m;                                                           \
        return m;                                                                                                      \
    }                                                                                                                  \
    static inline int P##_any_nan(P a, P b) {                                                                          \
        int any = 0;                                                                                                   \
        for (int i = 0; i < L; i++) any |= (a[i] != a[i]) | (b[i] != b[i]);                                            \
        return any;                                                                                                    \
    }                                                                                                                  \
    /* x where test is not 0 (a NaN test counts as not 0), else 0 */                                                   \
    static inline P P##_where_nonzero(P test, P x) { return (P)((P##_bits)(test != (P){0}) & (P##_bits)x); }           \
    /* 2^n with n in the low bits of `magic + n`, -BIAS <= n <= BIAS + 1; -BIAS gives 0 */                             \
    static inline P P##_exp2i(P t) { return (P)(((P##_bits)t + BIAS) << SHIFT); }

VEC_LAYER(v32, float, int32_t, 4, 127, 23)
VEC_LAYER(v64, double, int64_t, 2, 1023, 52)
#define V32_LANES 4
#define V64_LANES 2
#endif
