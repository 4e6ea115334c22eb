/* SPDX-License-Identifier: MIT
 * The exponential of the kernels that take powers of two: one function, so that all of them give the same numbers. */
#ifndef ATTN_CPU_VEC_EXP2_H
#define ATTN_CPU_VEC_EXP2_H
#include "cpu/vec/unroll.h"
#include "cpu/vec/vec.h"

enum { EXP2_MANY = 8, EXP2_LEAST = 3, EXP2_FULL = 5 /* degrees */ };
/* x[i] becomes 2^x[i], i < n <= EXP2_MANY: 2^x = 2^floor(x) * 2^r, 0 <= r < 1, the latter 1 + r P(r) with P minimax for
 * the relative error: 8.6e-5, 2.9e-6 and 8.3e-8 for a degree of 3, 4 and 5. Far below, the result underflows to 0.
 * All x go through a step before any goes through the next: with eight of them a step's operands are there when it is
 * its turn, and what waits in the processor's queue is other work. */
static const float exp2_by_degree[][EXP2_FULL + 1] = {
    {1, 0x1.63e658p-1f, 0x1.d2378ap-3f, 0x1.3baaa6p-4f},
    {1, 0x1.62d6c6p-1f, 0x1.ee2450p-3f, 0x1.abf868p-5f, 0x1.b7f730p-7f},
    {1, 0x1.62e4bap-1f, 0x1.ebdb56p-3f, 0x1.c91ce6p-5f, 0x1.277856p-7f, 0x1.e974fap-10f}};
/* The steps of it: r and the highest coefficient, the coefficients [to, from), the power of two. */
static inline __attribute__((always_inline)) void exp2_begin(int degree, int n, const v32 *x, v32 *r, v32 *p) {
    UNROLL for (int i = 0; i < n; i++) r[i] = v32_above_floor(x[i]);
    UNROLL for (int i = 0; i < n; i++) p[i] = v32_set(exp2_by_degree[degree - EXP2_LEAST][degree]);
}
static inline __attribute__((always_inline)) void exp2_more(int degree, int from, int to, int n, const v32 *r, v32 *p) {
    const float *c = exp2_by_degree[degree - EXP2_LEAST];
    UNROLL for (int k = from - 1; k >= to; k--) {
        UNROLL for (int i = 0; i < n; i++) p[i] = v32_fma(p[i], r[i], v32_set(c[k]));
    }
}
static inline __attribute__((always_inline)) void exp2_end(int n, v32 *x, const v32 *p) {
    UNROLL for (int i = 0; i < n; i++) x[i] = v32_scale_floor(p[i], x[i]);
}
static inline __attribute__((always_inline)) void exp2_degree(int degree, int n, v32 *x) {
    v32 r[EXP2_MANY], p[EXP2_MANY];
    exp2_begin(degree, n, x, r, p);
    exp2_more(degree, degree, 0, n, r, p);
    exp2_end(n, x, p);
}
static inline __attribute__((always_inline)) void exp2_many(int n, v32 *x) { exp2_degree(EXP2_FULL, n, x); }
static inline v32 exp2_vec(v32 x) {
    exp2_many(1, &x);
    return x;
}
#endif
