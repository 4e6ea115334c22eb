/* SPDX-License-Identifier: MIT
 * Sums of the sparse operators on AMX tiles, 32 x 32 at a time, entries `sum` and `add` of attn_ukr_pair. Tiles are
 * loaded one product ahead.
 *
 *     sum (out, dq): over gathered rows, for strips of heads. a (16 KiB of 256 rows) stays in the first-level cache,
 *     zip passes by, the next sums are asked for, and the first rows of the next block copied.
 *
 *     add (dKV): over heads, added to rows that lie anywhere while the next sums are multiplied.
 *     tiles    x panel (n)            x panel (n + 1)         32 x 32 sums: 4 KiB, twice, in the first-level cache
 *     vectors  rows += sums (n - 1)   rows += sums (n)        x of 32 rows: 16 KiB, stays; panels pass by */
#include "cpu/amx_tile.h"
#include "cpu/ukr_copy_amx.h"
#include "cpu/ukr_pair.h"
#include "cpu/ukr_unroll.h"

#include <immintrin.h>

enum { SIDE = ATTN_PAIR_HEADS, CELLS = SIDE * SIDE, TILE = 16 * 16 };

/* C += A B over `steps` times 16 pairs, A and B [steps][2][16][16], and other work after two products. */
#define STEPS(steps, a, b, WORK)                                                                                       \
    do {                                                                                                               \
        tile_load_once(6, (b), 64);                                                                                    \
        tile_load(4, (a), 64);                                                                                         \
        tile_load_once(7, (b) + TILE, 64);                                                                             \
        for (int64_t i = 0; i < (steps); i++) {                                                                        \
            const int more = i + 1 < (steps);                                                                          \
            tile_load(5, (a) + (2 * i + 1) * TILE, 64);                                                                \
            tile_dpbf16(0, 4, 6);                                                                                      \
            tile_dpbf16(2, 5, 6);                                                                                      \
            if (more) tile_load_once(6, (b) + (i + 1) * 2 * TILE, 64);                                                 \
            WORK(2 * i);                                                                                               \
            tile_dpbf16(1, 4, 7);                                                                                      \
            if (more) tile_load(4, (a) + 2 * (i + 1) * TILE, 64);                                                      \
            tile_dpbf16(3, 5, 7);                                                                                      \
            if (more) tile_load_once(7, (b) + (2 * i + 3) * TILE, 64);                                                 \
            WORK(2 * i + 1);                                                                                           \
        }                                                                                                              \
    } while (0)
INLINE void sums_zero(void) {
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}
INLINE void sums_load(const float *c, int64_t ldc) {
    tile_load(0, c, ldc * 4);
    tile_load(1, c + 16, ldc * 4);
    tile_load(2, c + 16 * ldc, ldc * 4);
    tile_load(3, c + 16 * ldc + 16, ldc * 4);
}
INLINE void sums_store(float *c, int64_t ldc) {
    tile_store(0, c, ldc * 4);
    tile_store(1, c + 16, ldc * 4);
    tile_store(2, c + 16 * ldc, ldc * 4);
    tile_store(3, c + 16 * ldc + 16, ldc * 4);
}

void attn_ukr_amx_sum(const struct attn_pair_sum *f) {
    struct copying c;
    copy_from(&c, f->tiles, &f->next, f->depth, 0);
    const int64_t steps = (f->pairs + 15) / 16;
    for (int64_t strip = 0; strip < f->strips; strip++) {
        const float *a = f->a + strip * f->lda;
        for (int64_t column = 0; column < f->columns; column += SIDE) {
            float *to = f->c + strip * SIDE * f->ldc + column;
            const float *next = column + SIDE < f->columns ? to + SIDE : f->c + (strip + 1) * SIDE * f->ldc;
            const int64_t rows = column + SIDE < f->columns || strip + 1 < f->strips ? SIDE : 0;
            if (f->accumulate) {
                sums_load(to, f->ldc);
            } else {
                sums_zero();
            }
#define WORK(slot)                                                                                                     \
    for (int64_t r = 2 * (slot); r < 2 * (slot) + 2 && r < rows; r++) {                                                \
        __builtin_prefetch(next + r * f->ldc, 1);                                                                      \
        __builtin_prefetch(next + r * f->ldc + 16, 1);                                                                 \
    }                                                                                                                  \
    if (c.left) copy_unit(&c)
            STEPS(steps, a, f->zip + column / SIDE * f->ldz, WORK);
#undef WORK
            sums_store(to, f->ldc);
        }
    }
    copy_rest(&c);
}

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
    sums_zero();
#define WORK(slot) add_some(w, each)
    STEPS(depth / 16, x, panel, WORK);
#undef WORK
    sums_store(s, SIDE);
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
            w = (struct adding){f, first, end, s + (first - row) * SIDE, f->sums + column * f->ld_block};
        }
    }
    add_some(&w, SIDE);
}
