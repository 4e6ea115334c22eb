/* SPDX-License-Identifier: MIT
 * Masks of a strip of 32 queries across the lanes for AVX2, rows as they are in memory: what mask_avx512.h is for
 * AVX-512. Eight rows at a time, a line of each, since rows are often a multiple of 4 KiB apart, all in one set of the
 * first-level cache: no line is read again. */
#ifndef ATTN_CPU_UKR_MASK_AVX2_H
#define ATTN_CPU_UKR_MASK_AVX2_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/transpose_avx2.h"

#include <string.h>

enum { MASK_ROWS = ATTN_FWD_ROWS, MASK_PART = 64 /* bytes of a row at a time */ };

static inline uint32_t nonzero_bytes(const char *p) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_setzero_si256()));
}
/* Bits of 64 keys that are not 0, low and high half. */
static inline void look_up_bool_mask(const struct attn_fwd_score_mod *f, int64_t key, uint32_t (*half)[MASK_ROWS]) {
    const int64_t there = f->mask_keys - key;
    char rest[MASK_PART] = {0};
    for (int r = 0; r < MASK_ROWS; r++) {
        const char *cell = f->cell[r] + key;
        if (there < MASK_PART) {
            if (there > 0) memcpy(rest, cell, (size_t)there);
            cell = rest;
        }
        half[0][r] = nonzero_bytes(cell);
        half[1][r] = nonzero_bytes(cell + 32);
    }
}

static inline __attribute__((always_inline)) v32 load_cells(int mask, const char *p) {
    const __m128i *h = (const __m128i *)(const void *)p;
    switch (mask) {
    case ATTN_UKR_MASK_F16: return _mm256_cvtph_ps(_mm_loadu_si128(h));
    case ATTN_UKR_MASK_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16));
    default: return _mm256_loadu_ps((const float *)(const void *)p);
    }
}
/* MASK_PART bytes of eight rows, from byte `offset` on, come to s, their queries' first. */
static inline __attribute__((always_inline)) void add_part(int mask, const char *const *row, int64_t offset, v32 scale,
                                                           float *s) {
    const int bytes = mask == ATTN_UKR_MASK_F32 ? 4 : 2;
    for (int j = 0; j < MASK_PART / bytes; j += V32_LANES, s += V32_LANES * MASK_ROWS) {
        v32 x[V32_LANES];
        UNROLL for (int r = 0; r < V32_LANES; r++) x[r] = load_cells(mask, row[r] + offset + j * bytes);
        turn_eight(x);
        UNROLL for (int c = 0; c < V32_LANES; c++)
            v32_store(s + c * MASK_ROWS, v32_fma(v32_load(s + c * MASK_ROWS), scale, x[c]));
    }
}
#endif
