/* SPDX-License-Identifier: MIT
 * Probabilities of the forward on AMX where lse is not requested: bf16 numbers made by integers and a table.
 *
 *     s      x = s 128 factor + (1.5 2^23 + 127 128 - 128 offset)  one multiply-add: the exponent's argument in 128ths,
 *            x's bits - those of 1.5 2^23 = 128 (n + 127) + f      biased, an integer: 2^(n + f / 128), 0 <= f < 128
 *     even and odd keys     saturated to 16 bits, in pairs
 *     P      128 (n + 127) + f - less[f],   less[f] = f - round(128 (2^(f / 128) - 1))
 *
 * So a probability is off by half of a 128th of an octave, 0.27 %, and by its rounding to bf16, 0.2 to 0.39 %: 0.23 %
 * on average (root of the mean square), where rounding alone has 0.17 %. The largest of a row, and others equal to it,
 * are exact: 1. l is the sum of the rounded P. While tiles are multiplied, the cost of the polynomial is what
 * counts: 5 multiply-adds and their like for 16 scores, and here 1.5.
 *
 * An argument that is a sum itself (ALiBi, an additive mask) would be rounded twice: there 1.5 2^23 + 127 128 is added
 * after the other terms (`origin_last`).
 *
 * What is far below 0 saturates to 0, what is far above becomes a NaN, which no sum passes for an ordinary number: at
 * 15 bits, since bit 15 would be a sign, and a number 2^(n + f / 128) with n beyond 128 a small negative one. A NaN's
 * argument may have a sign, so that vectors that have one are recorded. Where such arguments are rare, saturation is
 * left out (`unsaturated`): 20 instructions for four vectors and not 26, and 6 and not 10 of those that only one port
 * serves. A step in which an argument is not of 15 bits is taken again as a whole, to the same bits. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_EXP_TABLE_H
#define ATTN_CPU_AMX_DENSE_FWD_EXP_TABLE_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

#include <math.h>

struct exp_table {
    __m512i less[2], pairs; /* the table; the order of a lane's 16-bit numbers */
    int unsaturated;        /* 1: arguments are taken for 15-bit numbers, and are not saturated to them */
    int finds_beyond;       /* with unsaturated. 1: larger arguments are recorded in `beyond`; 0: there can be none */
    int signs;              /* without. 1: the caller finds arguments of 16 bits by the sign of their results */
    __m512i down;           /* with unsaturated: the order of a lane's 16-bit numbers */
    __m512i beyond;         /* bits in which some argument of this step differs from EXP_TABLE_ZERO */
    __mmask16 ordered[2];   /* without unsaturated: lanes that have met no NaN in this step */
};
#define EXP_TABLE_ZERO   0x1.8p23f
#define EXP_TABLE_ORIGIN (EXP_TABLE_ZERO + 127 * ATTN_FWD_PARTS)
static inline void set_up_table(struct exp_table *t) {
    static const uint8_t less[128] = {
        0,  0,  1,  1,  1,  1,  2,  2,  2,  3,  3,  3,  3,  4,  4,  4,  4,  5,  5,  5,  5,  6,  6,  6,  6,  6,
        7,  7,  7,  7,  7,  8,  8,  8,  8,  8,  8,  9,  9,  9,  9,  9,  9,  9,  10, 10, 10, 10, 10, 10, 10, 10,
        10, 10, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11,
        11, 11, 11, 11, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9,  9,  9,  9,  9,  9,  9,  8,  8,  8,  8,  8,  7,
        7,  7,  7,  7,  6,  6,  6,  6,  5,  5,  5,  4,  4,  4,  3,  3,  3,  3,  2,  2,  1,  1,  1,  0};
    t->less[0] = _mm512_loadu_si512(less), t->less[1] = _mm512_loadu_si512(less + 64);
    t->pairs = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    t->down = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13));
    t->unsaturated = t->signs = 0, t->finds_beyond = 1;
    /* constants that compilers would load again each time */
    __asm__("" : "+v"(t->less[0]), "+v"(t->less[1]), "+v"(t->pairs), "+v"(t->down));
}
/* What is subtracted from the argument; offset is a whole number of parts, and smaller than attn_fwd_far. origin_last:
 * any offset, without what is added in the end. */
INLINE v32 table_offset(v32 offset, int origin_last) {
    const v32 parts = v32_set(ATTN_FWD_PARTS);
    return origin_last ? _mm512_mul_ps(offset, parts) : _mm512_fmsub_ps(offset, parts, v32_set(EXP_TABLE_ORIGIN));
}
INLINE void begin_table(struct exp_table *t) {
    t->beyond = _mm512_setzero_si512();
    t->ordered[0] = t->ordered[1] = 0xffff;
}
/* Of arguments to[h] = pairs of even[h] and odd[h]. visible: NULL, or lanes that count, of even[h] and after those of
 * odd[h]; the others' arguments are 0, which gives 0. Not `exactly`: what is 98 000 octaves and more below the
 * running max, up to twice as much, has a sign, and its bits less those of 1.5 2^23 are beyond 32: it becomes as if it
 * were far above. That shows in the sum, and the step is taken again. */
INLINE void pairs_by_table(struct exp_table *t, int exactly, const v32 *even, const v32 *odd, const __mmask16 *visible,
                           __m512i *to) {
    const __m512i zero = _mm512_castps_si512(v32_set(EXP_TABLE_ZERO));
    __m512i n[4];
    UNROLL for (int h = 0; h < 2; h++) n[h] = _mm512_castps_si512(even[h]), n[2 + h] = _mm512_castps_si512(odd[h]);
    if (t->unsaturated) { /* the lower halves of n are what is left of them without `zero` */
        UNROLL for (int i = 0; i < 4; i++) {
            if (!t->finds_beyond) continue;
            t->beyond = visible ? _mm512_mask_ternarylogic_epi32(t->beyond, visible[i], n[i], zero, 0xf6)
                                : _mm512_ternarylogic_epi32(t->beyond, n[i], zero, 0xf6);
        }
        UNROLL for (int h = 0; h < 2; h++) {
            n[h] = _mm512_mask_shuffle_epi8(n[h], 0xcccccccccccccccc, n[2 + h], t->down);
        }
    } else {
        UNROLL for (int h = 0; h < 2; h++) {
            t->ordered[h] = _mm512_mask_cmp_ps_mask(t->ordered[h], even[h], odd[h], _CMP_ORD_Q);
        }
        UNROLL for (int i = 0; i < 4; i++) n[i] = _mm512_sub_epi32(exactly ? _mm512_max_epi32(n[i], zero) : n[i], zero);
        UNROLL for (int h = 0; h < 2; h++) n[h] = _mm512_shuffle_epi8(_mm512_packus_epi32(n[h], n[2 + h]), t->pairs);
        if (!t->signs) {
            UNROLL for (int h = 0; h < 2; h++) n[h] = _mm512_min_epu16(n[h], _mm512_set1_epi16(INT16_MAX));
        }
    }
    UNROLL for (int h = 0; h < 2; h++) { /* the low byte's lower seven bits are f */
        const __m512i less = _mm512_maskz_permutex2var_epi8(0x5555555555555555, t->less[0], n[h], t->less[1]);
        to[h] = _mm512_sub_epi16(n[h], less);
    }
}
/* Adds both numbers of each pair. */
INLINE v32 add_pairs(v32 sum, __m512i pairs) {
    return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(0x3f803f80));
}
/* Whether an argument of a step was none of 15 bits. */
INLINE int is_beyond_table(const struct exp_table *t) {
    return t->unsaturated && t->finds_beyond &&
           _mm512_test_epi32_mask(t->beyond, _mm512_set1_epi32((int32_t)0xffff8000));
}
/* Sums of lanes that have met a NaN. */
INLINE void finish_table(const struct exp_table *t, v32 *sum) {
    for (int h = 0; h < 2; h++) sum[h] = _mm512_mask_mov_ps(v32_set(NAN), t->ordered[h], sum[h]);
}
#endif
