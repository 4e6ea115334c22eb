/* SPDX-License-Identifier: MIT
 * Additive masks for transposed scores: 32 mask rows are transposed in registers and added to S^T.
 *
 * Rows of a mask are often a multiple of 4 KiB apart, all in one set of the first-level cache, which has room for 12:
 * so a line is loaded once, whole, and never read again. 16 rows of 16 elements of 32 bits (pairs of 16 bits are one)
 * are transposed in three rounds: rows t and t + 8 are halves of a vector when they are loaded. */
#ifndef ATTN_CPU_UKR_MASK_AVX512_H
#define ATTN_CPU_UKR_MASK_AVX512_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

#include <string.h>

enum { MASK_ROWS = ATTN_FWD_ROWS, MASK_PART = 64 /* bytes of a row at a time */ };

/* Bits of 64 keys that are not 0, low and high half. */
static inline void look_up_bool_mask(const struct attn_fwd_score_mod *f, int64_t key, uint32_t (*half)[MASK_ROWS]) {
    const int64_t there = f->mask_keys - key;
    const __mmask64 readable = there >= 64 ? ~(__mmask64)0 : there > 0 ? ((__mmask64)1 << there) - 1 : 0;
    for (int r = 0; r < MASK_ROWS; r++) {
        const __m512i x = _mm512_maskz_loadu_epi8(readable, f->cell[r] + key);
        const uint64_t bits = _mm512_test_epi8_mask(x, x);
        half[0][r] = (uint32_t)bits;
        half[1][r] = (uint32_t)(bits >> 32);
    }
}

static inline __attribute__((always_inline)) __m512i load_half_lines(const char *first, const char *second) {
    return _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)first)), 0xf0,
                                       _mm256_loadu_si256((const void *)second));
}
/* x[t], eight columns of row t and of row t + 8: becomes columns. */
static inline __attribute__((always_inline)) void transpose_half_lines(__m512i *x) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                  high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    __m512i y[8];
    UNROLL for (int t = 0; t < 8; t += 4) {
        const __m512i a = _mm512_unpacklo_epi32(x[t], x[t + 1]), b = _mm512_unpackhi_epi32(x[t], x[t + 1]),
                      c = _mm512_unpacklo_epi32(x[t + 2], x[t + 3]), d = _mm512_unpackhi_epi32(x[t + 2], x[t + 3]);
        y[t] = _mm512_unpacklo_epi64(a, c), y[t + 1] = _mm512_unpackhi_epi64(a, c);
        y[t + 2] = _mm512_unpacklo_epi64(b, d), y[t + 3] = _mm512_unpackhi_epi64(b, d);
    }
    UNROLL for (int c = 0; c < 4; c++) {
        x[c] = _mm512_permutex2var_epi64(y[c], low, y[4 + c]);
        x[4 + c] = _mm512_permutex2var_epi64(y[c], high, y[4 + c]);
    }
}
static inline __attribute__((always_inline)) void put_masked(float *s, v32 scale, __m512 add) {
    v32_store(s, v32_fma(v32_load(s), scale, add));
}
/* 64 bytes of 16 rows, from byte `offset` on, come to s, their queries' first. */
static inline __attribute__((always_inline)) void add_part(int mask, const char *const *row, int64_t offset, v32 scale,
                                                           float *s) {
    static const uint16_t places[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i even_then_odd = _mm512_loadu_si512(places);
    __m512i x[2][8];
    UNROLL for (int t = 0; t < 8; t++) {
        const char *const first = row[t] + offset, *const second = row[8 + t] + offset;
        x[0][t] = load_half_lines(first, second), x[1][t] = load_half_lines(first + 32, second + 32);
    }
    UNROLL for (int g = 0; g < 2; g++) {
        transpose_half_lines(x[g]);
        UNROLL for (int c = 0; c < 8; c++) {
            float *const to = s + (8 * g + c) * (mask == ATTN_UKR_MASK_F32 ? 1 : 2) * MASK_ROWS;
            if (mask == ATTN_UKR_MASK_F32) {
                put_masked(to, scale, _mm512_castsi512_ps(x[g][c]));
                continue;
            }
            const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
            if (mask == ATTN_UKR_MASK_BF16) {
                put_masked(to, scale, _mm512_castsi512_ps(_mm512_slli_epi32(x[g][c], 16)));
                put_masked(to + MASK_ROWS, scale, _mm512_castsi512_ps(_mm512_and_si512(x[g][c], upper)));
            } else {
                const __m512i apart = _mm512_permutexvar_epi16(even_then_odd, x[g][c]);
                put_masked(to, scale, _mm512_cvtph_ps(_mm512_castsi512_si256(apart)));
                put_masked(to + MASK_ROWS, scale, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(apart, 1)));
            }
        }
    }
}
/* Prefetches what the rows have of the keys from `key` on: 32 streams are more than the hardware follows. */
static inline void prefetch_masks(const struct attn_fwd_score_mod *f, int64_t span, int64_t key) {
    if (key >= f->mask_keys) return;
    for (int r = 0; r < MASK_ROWS; r++)
        for (int64_t byte = key * f->mask_bytes; byte < (key + span) * f->mask_bytes; byte += 64)
            _mm_prefetch(f->cell[r] + byte, _MM_HINT_T1);
}
#endif
