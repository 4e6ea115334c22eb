/* SPDX-License-Identifier: MIT
 * The exponential of the kernels on pairs of bf16: one function, so that all of them give the same numbers. */
#ifndef ATTN_CPU_UKR_EXP2_AVX512_H
#define ATTN_CPU_UKR_EXP2_AVX512_H
#include "cpu/ukr_unroll.h"
#include "cpu/ukr_vec_avx512.h"

/* 2^x = 2^floor(x) * 2^r, 0 <= r < 1, the latter 1 + r P(r) with P minimax for the relative error (8.3e-8). Far below,
 * the result underflows to 0; the bound keeps -inf away from r = x - floor(x). */
static inline v32 exp2_vec(v32 x) {
    static const float c[] = {1, 0x1.62e4bap-1f, 0x1.ebdb56p-3f, 0x1.c91ce6p-5f, 0x1.277856p-7f, 0x1.e974fap-10f};
    x = v32_max(v32_set(-200), x);
    const v32 r = _mm512_reduce_ps(x, 0x01); /* no fraction bits, towards minus infinity */
    v32 p = v32_set(c[5]);
    UNROLL for (int i = 4; i >= 0; i--) p = v32_fma(p, r, v32_set(c[i]));
    return _mm512_scalef_ps(p, x);
}
#endif
