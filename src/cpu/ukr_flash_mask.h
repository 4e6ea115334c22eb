/* SPDX-License-Identifier: MIT
 * Additive masks of the flash strip (ukr_flash_amx.c): 32 rows of them, as they are in memory, are turned in registers
 * and come to the transposed scores, eight or four keys at a time.
 *
 *     x[t] has in part L of 128 bits what row 4 L + t has for these keys, so that turning is two rounds within the
 * parts 16 bits: rows r and r + 16 are made one of 32 bits first, which is turned in place of both */
#ifndef ATTN_CPU_UKR_FLASH_MASK_H
#define ATTN_CPU_UKR_FLASH_MASK_H
#include "cpu/ukr_pair.h"
#include "cpu/ukr_unroll.h"
#include "cpu/ukr_vec_avx512.h"

#include <string.h>

enum { MASK_ROWS = ATTN_PAIR_FLASH, MASK_PART = 16 /* bytes of a row at a time */ };

/* One vector of 16 rows: part L of `t` + 4 L. */
static inline __attribute__((always_inline)) __m512i load_parts(const char *const *row, int64_t at) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row[0] + at)));
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, _mm_loadu_si128((const void *)(row[4] + at)));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, _mm_loadu_si128((const void *)(row[8] + at)));
    return _mm512_mask_broadcast_i32x4(x, 0xf000, _mm_loadu_si128((const void *)(row[12] + at)));
}
/* x[t], four columns of rows 4 L + t: becomes columns. */
static inline __attribute__((always_inline)) void turn_parts(__m512i *x) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]),
                  c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c), x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d), x[3] = _mm512_unpackhi_epi64(b, d);
}
static inline __attribute__((always_inline)) void put_masked(float *s, v32 scale, v32 add) {
    v32_store(s, v32_fma(v32_load(s), scale, add));
}
/* Eight keys of 16 bits, from byte `at` of the rows on. */
static inline __attribute__((always_inline)) void add_eight(int bf16, const char *const *row, int64_t at, v32 scale,
                                                            float *s) {
    __m512i x[2][4];
    UNROLL for (int t = 0; t < 4; t++) {
        const __m512i low = load_parts(row + t, at), high = load_parts(row + 16 + t, at);
        x[0][t] = _mm512_unpacklo_epi16(low, high);
        x[1][t] = _mm512_unpackhi_epi16(low, high);
    }
    UNROLL for (int g = 0; g < 2; g++) {
        turn_parts(x[g]);
        UNROLL for (int c = 0; c < 4; c++) {
            const __m512i upper = _mm512_srli_epi32(x[g][c], 16);
            float *const to = s + (4 * g + c) * MASK_ROWS;
            if (bf16) {
                put_masked(to, scale, _mm512_castsi512_ps(_mm512_slli_epi32(x[g][c], 16)));
                put_masked(to + 16, scale, _mm512_castsi512_ps(_mm512_slli_epi32(upper, 16)));
            } else {
                put_masked(to, scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x[g][c])));
                put_masked(to + 16, scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(upper)));
            }
        }
    }
}
/* Four keys of f32. */
static inline __attribute__((always_inline)) void add_four(const char *const *row, int64_t at, v32 scale, float *s) {
    UNROLL for (int h = 0; h < 2; h++) {
        __m512i x[4];
        UNROLL for (int t = 0; t < 4; t++) x[t] = load_parts(row + 16 * h + t, at);
        turn_parts(x);
        UNROLL for (int c = 0; c < 4; c++) put_masked(s + c * MASK_ROWS + 16 * h, scale, _mm512_castsi512_ps(x[c]));
    }
}
/* s becomes s * by + mask, for keys from `key` of the strip on. Behind the last key nothing is read and 0 added. */
static void add_masks(const struct attn_pair_score *f, int64_t span, int64_t key, float by, float *s) {
    const int64_t bytes = f->mask == ATTN_PAIR_MASK_F32 ? 4 : 2, some = MASK_PART / bytes;
    const v32 scale = v32_set(by);
    for (int64_t j = 0; j < span; j += some, s += some * MASK_ROWS) {
        char part[MASK_ROWS][MASK_PART];
        const char *part_of[MASK_ROWS], *const *row = f->cell;
        const int64_t have = f->mask_keys - key - j;
        int64_t at = (key + j) * bytes;
        if (have < some) {
            memset(part, 0, sizeof part);
            for (int r = 0; r < MASK_ROWS; r++) {
                if (have > 0) memcpy(part[r], row[r] + at, (size_t)(have * bytes));
                part_of[r] = part[r];
            }
            row = part_of, at = 0;
        }
        if (f->mask == ATTN_PAIR_MASK_F32) {
            add_four(row, at, scale, s);
        } else if (f->mask == ATTN_PAIR_MASK_BF16) {
            add_eight(1, row, at, scale, s);
        } else {
            add_eight(0, row, at, scale, s);
        }
    }
}
/* Asks for what the rows have of the keys from `key` on: 32 streams are more than the hardware follows. */
static inline void ask_for_masks(const struct attn_pair_score *f, int64_t span, int64_t key) {
    const int64_t bytes = f->mask == ATTN_PAIR_MASK_F32 ? 4 : f->mask == ATTN_PAIR_MASK_BITS ? 1 : 2;
    if (key >= f->mask_keys) return;
    for (int r = 0; r < MASK_ROWS; r++) {
        if (!f->cell[r]) continue;
        for (int64_t at = key * bytes; at < (key + span) * bytes; at += 64) _mm_prefetch(f->cell[r] + at, _MM_HINT_T0);
    }
}
#endif
