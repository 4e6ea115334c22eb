/* SPDX-License-Identifier: MIT
 * What mla_fwd_scores.c and mla_bwd_scores.c share: chunks of 32 rows of keys by strips of 32 heads, and the making of
 * pairs of rows. Rows are A as they are in memory, heads lie across the lanes, so that statistics are vectors:
 *
 *     tiles      S, dP (c)          S, dP (c + 1)         the sums stay in tiles until the next products need these
 *     vectors    P, dS (c - 1)      P, dS (c)             one chunk later
 *     copies     the 32 rows (36 KiB, first-level cache; panels pass by) are made pairs of rows; the next 32 take their
 *                place during the last strip's products; those after are prefetched
 *
 * Rows that fill up the last 32 are zeros, and their results are masked. */
#ifndef ATTN_CPU_AMX_SPARSE_STRIP_H
#define ATTN_CPU_AMX_SPARSE_STRIP_H
#include "cpu/amx/sparse/row_copy.h"
#include "cpu/amx/sparse/step.h"
#include "cpu/ukr/ukr.h"
#include "cpu/vec/exp2.h"

#define LOG2_E 1.44269504f
enum { DEGREE = 4 }; /* of the exponential: 2.9e-6 */
enum { PAIRS = SIDE / 2 };

INLINE __m512i zipped(v32 even, v32 odd) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(zip), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

static __attribute__((noinline)) void copy_first(float *tiles, const struct attn_mla_rows *rows, int64_t depth) {
    struct copying c;
    copy_from(&c, tiles, rows, depth, 0);
    copy_rest(&c);
}

/* Pairs of rows from the copies of 32: four rows, 32 columns at a time, all rows before the next columns. */
struct zipping {
    const float *from;
    float *to;
    int64_t row, panel, panels, ldz;
};
INLINE struct zipping zip_from(const struct attn_mla_copies *f, int64_t row) {
    return (struct zipping){f->tiles, f->zip + row / 2 * SIDE, 0, 0, f->width / 16, f->ldz};
}
INLINE void zip_four(struct zipping *z) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i lo = _mm512_loadu_si512(low), hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    float *to = z->to + z->row * 8;
    UNROLL for (int i = 0; i < 4; i += 2) {
        const __m512i even = _mm512_loadu_si512(z->from + i * 16), odd = _mm512_loadu_si512(z->from + i * 16 + 16);
        _mm512_storeu_si512(to + i * 8, _mm512_permutex2var_epi16(even, lo, odd));
        _mm512_storeu_si512(to + i * 8 + TILE, _mm512_permutex2var_epi16(even, hi, odd));
    }
    z->from += 4 * 16, z->row += 4;
    if (z->row < SIDE) return;
    z->row = 0, z->panel++, z->to += z->ldz;
}
INLINE void zip_unit(struct zipping *z) {
    if (z->panel < z->panels) zip_four(z);
}
/* All up to and with a panel. */
INLINE void zip_to(struct zipping *z, int64_t panel) {
    while (z->panel < z->panels && z->panel <= panel) zip_four(z);
}

/* Exponentials of two rows of 32 heads in parts, in registers: those of x, then the steps of exp2_degree. */
struct four {
    v32 x[4], r[4], y[4];
};
#define KEEP(x) __asm__ volatile("" : "+v"((x)[0]), "+v"((x)[1]), "+v"((x)[2]), "+v"((x)[3])) /* here, not later */
INLINE void four_1(struct four *e) {
    exp2_begin(DEGREE, 4, e->x, e->r, e->y);
    exp2_more(DEGREE, DEGREE, 3, 4, e->r, e->y);
    KEEP(e->y);
}
INLINE void four_2(struct four *e) {
    exp2_more(DEGREE, 3, 1, 4, e->r, e->y);
    KEEP(e->y);
}
INLINE void four_3(struct four *e) {
    exp2_more(DEGREE, 1, 0, 4, e->r, e->y);
    exp2_end(4, e->x, e->y);
    KEEP(e->x);
}

/* Pairs of 32 rows [16][32] become tiles of A [2][16 heads][16 pairs]: heads from 16 h on. */
static __attribute__((noinline)) void turn_tile(float *to, const float *pairs, int64_t h) {
    attn_ukr_avx512.transpose_f32(to + h * TILE, 16, pairs + h * 16, SIDE, 16, 16);
}
#endif
