/* SPDX-License-Identifier: MIT
 * What pairs of bf16 add to the vector layer of AVX-512 (avx512.h); pairs as in ukr/bf16.h. */
#ifndef ATTN_CPU_VEC_AVX512BF16_H
#define ATTN_CPU_VEC_AVX512BF16_H
#include "cpu/vec/avx512.h"

/* c += a.lo * b.lo + a.hi * b.hi */
static inline __attribute__((always_inline)) v32 madd_pair(v32 a, v32 b, v32 c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
/* 32 columns of two rows become pairs: y[0] has those of the first 16 columns, y[1] of the others. */
static inline __attribute__((always_inline)) void pair_rows(__m512i even, __m512i odd, v32 *y) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i lo = _mm512_loadu_si512(low), hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    y[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, lo, odd));
    y[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, hi, odd));
}
#endif
