/* SPDX-License-Identifier: MIT
 * dKV of mla_bwd on AMX tiles, entry `add` of attn_ukr_pair: sums over heads, 32 rows x 32 columns at a time, added to
 * rows that lie anywhere while the next sums are multiplied.
 *
 *     tiles    x panel (n)            x panel (n + 1)         32 x 32 sums: 4 KiB, twice, in the first-level cache
 *     vectors  rows += sums (n - 1)   rows += sums (n)        x of 32 rows: 16 KiB, stays; panels pass by */
#include "cpu/amx_tile.h"
#include "cpu/ukr_pair.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
enum { SIDE = ATTN_PAIR_HEADS, CELLS = SIDE * SIDE };

/* Sums on their way to the rows of their keys. */
struct adding {
    const struct attn_pair_add *f;
    int64_t row, end; /* of x */
    const float *s;   /* of `row` */
    float *to;        /* key 0, the block's columns */
};
INLINE void add_row(struct adding *w) {
    float *to = w->to + w->f->key[w->row++] * w->f->ld;
    for (int i = 0; i < SIDE; i += 16)
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(to + i), _mm512_loadu_ps(w->s + i)));
    w->s += SIDE;
}
INLINE void add_some(struct adding *w, int64_t rows) {
    for (; rows > 0 && w->row < w->end; rows--) add_row(w);
}
/* s = x panel, and a share of what waits after each product. */
static void block(int64_t depth, const float *x, const float *panel, float *s, struct adding *w) {
    const int64_t each = (SIDE * 8 + depth - 1) / depth;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t at = 0; at < depth * SIDE; at += 16 * SIDE) {
        tile_load(4, x + at, 64);
        tile_load_once(6, panel + at, SIDE * 4);
        tile_dpbf16(0, 4, 6);
        tile_load_once(7, panel + at + 16, SIDE * 4);
        tile_dpbf16(1, 4, 7);
        add_some(w, each);
        tile_load(5, x + at + 16 * 16, 64);
        tile_dpbf16(2, 5, 6);
        tile_dpbf16(3, 5, 7);
        add_some(w, each);
    }
    tile_store(0, s, SIDE * 4);
    tile_store(1, s + 16, SIDE * 4);
    tile_store(2, s + 16 * SIDE, SIDE * 4);
    tile_store(3, s + 16 * SIDE + 16, SIDE * 4);
    add_some(w, SIDE);
}
void attn_ukr_amx_add(const struct attn_pair_add *f) {
    struct adding w = {.f = f};
    int64_t turn = 0;
    for (int64_t row = f->from / SIDE * SIDE; row < f->to; row += SIDE) {
        const int64_t first = row > f->from ? row : f->from, end = row + SIDE < f->to ? row + SIDE : f->to;
        for (int64_t column = f->column; column < f->end; column++, turn ^= 1) {
            float *s = f->s + turn * CELLS;
            block(column < f->narrow ? f->depth : f->depth / 2, f->x + row * f->depth,
                  f->panel + column * f->depth * SIDE, s, &w);
            w = (struct adding){f, first, end, s + (first - row) * SIDE, f->sums + column * SIDE};
        }
    }
    add_some(&w, SIDE);
}
