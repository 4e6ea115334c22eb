/* SPDX-License-Identifier: MIT
 * The exponential of the kernels on pairs of bf16: one function, so that all of them give the same numbers. */
#ifndef ATTN_CPU_UKR_EXP2_AVX512_H
#define ATTN_CPU_UKR_EXP2_AVX512_H
#include "cpu/ukr_unroll.h"
#include "cpu/ukr_vec_avx512.h"

enum { EXP2_MANY = 8 };
/* x[i] becomes 2^x[i], i < n <= EXP2_MANY: 2^x = 2^floor(x) * 2^r, 0 <= r < 1, the latter 1 + r P(r) with P minimax for
 * the relative error (8.3e-8). Far below, the result underflows to 0; -inf has r = 0 by definition of the instruction.
 * All x go through a step before any goes through the next: with eight of them a step's operands are there when it is
 * its turn, and what waits in the processor's queue is other work. */
static inline __attribute__((always_inline)) void exp2_many(int n, v32 *x) {
    static const float c[] = {1, 0x1.62e4bap-1f, 0x1.ebdb56p-3f, 0x1.c91ce6p-5f, 0x1.277856p-7f, 0x1.e974fap-10f};
    v32 r[EXP2_MANY], p[EXP2_MANY];
    UNROLL for (int i = 0; i < n; i++) r[i] = _mm512_reduce_ps(x[i], 0x01); /* x - floor(x) */
    UNROLL for (int i = 0; i < n; i++) p[i] = v32_set(c[5]);
    UNROLL for (int k = 4; k >= 0; k--) {
        UNROLL for (int i = 0; i < n; i++) p[i] = v32_fma(p[i], r[i], v32_set(c[k]));
    }
    UNROLL for (int i = 0; i < n; i++) x[i] = _mm512_scalef_ps(p[i], x[i]);
}
static inline v32 exp2_vec(v32 x) {
    exp2_many(1, &x);
    return x;
}
#endif
