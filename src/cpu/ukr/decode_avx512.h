/* SPDX-License-Identifier: MIT
 * Vector layer of decode_tpl.h for AVX-512. */
#ifndef ATTN_CPU_UKR_DECODE_AVX512_H
#define ATTN_CPU_UKR_DECODE_AVX512_H
#include "cpu/vec/avx512.h"
#include "cpu/vec/exp2.h"
#include "cpu/vec/unroll.h"

/* Lane i of each quarter: the sum of that quarter of x[i]. A blend does half of the moving: it has more ports. */
INLINE v32 fold_sums(const v32 *x) {
    v32 y[2];
    UNROLL for (int i = 0; i < 2; i++) { /* two sums of x[i], two of x[i + 2] */
        const __m512d a = _mm512_castps_pd(x[i]), b = _mm512_castps_pd(x[i + 2]);
        y[i] = _mm512_castpd_ps(_mm512_mask_blend_pd(0xaa, a, b)) + _mm512_castpd_ps(_mm512_shuffle_pd(a, b, 0x55));
    }
    return _mm512_mask_moveldup_ps(y[0], 0xaaaa, y[1]) + _mm512_mask_movehdup_ps(y[1], 0x5555, y[0]);
}
/* Quarter i: the sum of the quarters of x[i]. */
INLINE v32 merge_sums(const v32 *x) {
    v32 y[2];
    UNROLL for (int i = 0; i < 2; i++) { /* quarters: half of x[2 i], half of x[2 i + 1], and again */
        const v32 a = x[2 * i], b = x[2 * i + 1], c = _mm512_mask_blend_ps(0xf0f0, b, a);
        y[i] = _mm512_mask_blend_ps(0xf0f0, a, b) + _mm512_shuffle_f32x4(c, c, 0xb1);
    }
    return _mm512_mask_blend_ps(0xff00, y[0], y[1]) + _mm512_shuffle_f32x4(y[0], y[1], 0x4e);
}
#define FOLD            fold_sums
#define MERGE           merge_sums
#define EXP2            exp2_many
#define ANY_ABOVE(x, y) (_mm512_cmp_ps_mask(x, y, _CMP_NLE_UQ) != 0)
#define TILE_ROWS       4
#define TILE_COLS       4
#endif
