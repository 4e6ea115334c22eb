/* SPDX-License-Identifier: MIT
 * An f32 as the sum of three bf16: the first, the middle and the last 8 of its 24 significant bits. Nothing is rounded,
 * so that the largest numbers do not become infinite, and the upper half of the 32 bits is the part as it stands.
 * Products of two such numbers take six of nine products of parts: what is left out is 2^-21 of a product at most and
 * 2^-24 on average. Numbers below 2^-110 lose digits, since products on bf16 take denormals for 0. */
#ifndef ATTN_CPU_VEC_BF16_SPLIT_AVX512_H
#define ATTN_CPU_VEC_BF16_SPLIT_AVX512_H
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

/* The rest after the upper part, exact. */
INLINE v32 below_upper(v32 x) {
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
    return x - _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
}

/* A block of 32 x 32 numbers as an operand of tile products, [parts][2][16][16 pairs]: two tiles of a part, of rows (A)
 * or columns (B) 0 .. 15 and 16 .. 31. A pair is of two numbers 16 apart. */
enum { ATTN_SPLIT_PARTS = 3, ATTN_SPLIT_TILE = 256, ATTN_SPLIT_BLOCK = ATTN_SPLIT_PARTS * 2 * ATTN_SPLIT_TILE };
/* A row of pairs of such a tile: part t, after the larger ones have been subtracted; or all parts. */
INLINE void store_part(float *to, int t, v32 low, v32 high) {
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u), h = _mm512_castps_si512(high),
                  l = _mm512_srli_epi32(_mm512_castps_si512(low), 16);
    _mm512_store_si512(to + t * 2 * ATTN_SPLIT_TILE, _mm512_ternarylogic_epi32(l, h, upper, 0xf8)); /* a | (b & c) */
}
INLINE void store_split(float *to, v32 low, v32 high) {
    UNROLL for (int t = 0; t < ATTN_SPLIT_PARTS; t++) {
        store_part(to, t, low, high);
        low = below_upper(low), high = below_upper(high);
    }
}

/* Numbers, 0 for those that are not there and those that are not finite; *bad says whether there are such. */
INLINE v32 load_finite(const float *x, __mmask16 there, __mmask16 *bad) {
    enum { NOT_FINITE = 0x99 }; /* either NaN, either infinity */
    const v32 y = v32_load_tail(x, there);
    const __mmask16 nonfinite = _mm512_fpclass_ps_mask(y, NOT_FINITE);
    *bad |= nonfinite;
    return __builtin_expect(nonfinite != 0, 0) ? _mm512_maskz_mov_ps((__mmask16)~nonfinite, y) : y;
}
#endif
