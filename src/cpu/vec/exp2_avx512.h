/* SPDX-License-Identifier: MIT
 * The exponential of the forward on AMX, interleaved with tile products; exp2.h has the others. */
#ifndef ATTN_CPU_VEC_EXP2_AVX512_H
#define ATTN_CPU_VEC_EXP2_AVX512_H
#include "cpu/vec/avx512.h"
#include "cpu/vec/exp2.h"

/* attn_fwd_times() 2^x of degree 4, as exp2_degree makes it, but that the polynomial's highest coefficient is 1:
 * so its first step is an addition. Its constant is a number of bf16, exact for a whole x; the others are minimax:
 * 2.9e-6. visible: NULL, or the lanes that do not become 0. */
static inline __attribute__((always_inline)) void exp2_times(const __mmask16 *visible, v32 *x) {
    enum { DEGREE = 4 };
    static const float c[DEGREE] = {74.5f, 0x1.9d0e28p+5f, 0x1.1f99a0p+4f, 0x1.f24250p+1f};
    v32 r[4], p[4];
    UNROLL for (int i = 0; i < 4; i++) r[i] = _mm512_reduce_ps(x[i], 0x01);
    UNROLL for (int i = 0; i < 4; i++) p[i] = r[i] + v32_set(c[DEGREE - 1]);
    UNROLL for (int k = DEGREE - 2; k >= 0; k--) {
        UNROLL for (int i = 0; i < 4; i++) p[i] = v32_fma(p[i], r[i], v32_set(c[k]));
    }
    if (visible) {
        UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_maskz_scalef_ps(visible[i], p[i], x[i]);
    } else {
        UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_scalef_ps(p[i], x[i]);
    }
}
#endif
