/* SPDX-License-Identifier: MIT
 * An f32 as the sum of three bf16: the first, the middle and the last 8 of its 24 significant bits. Nothing is rounded,
 * so that the largest numbers do not become infinite, and the upper half of the 32 bits is the term as it stands.
 * Products of two such numbers take six of nine products of terms: what is left out is 2^-21 of a product at most and
 * 2^-24 on average. Numbers below 2^-110 lose digits, since products on bf16 take denormals for 0. */
#ifndef ATTN_CPU_UKR_SPLIT_AVX512_H
#define ATTN_CPU_UKR_SPLIT_AVX512_H
#include "cpu/ukr_unroll.h"
#include "cpu/ukr_vec_avx512.h"

/* What the term leaves, exactly. */
INLINE v32 behind_upper(v32 x) {
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
    return x - _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
}

/* Numbers, 0 for those that are not there and those that are not finite; *bad says whether there are such. */
INLINE v32 load_finite(const float *x, __mmask16 there, __mmask16 *bad) {
    enum { NOT_FINITE = 0x99 }; /* either NaN, either infinity */
    const v32 y = v32_load_tail(x, there);
    const __mmask16 odd = _mm512_fpclass_ps_mask(y, NOT_FINITE);
    *bad |= odd;
    return __builtin_expect(odd != 0, 0) ? _mm512_maskz_mov_ps((__mmask16)~odd, y) : y;
}
#endif
