/* SPDX-License-Identifier: MIT
 * Sums of the sparse operators on AMX tiles, 32 x 32 at a time, entries `sum` and `add` of attn_ukr_pair. Tiles are
 * loaded one product ahead; those of sums are stored one by one, between the first products of the next ones.
 *
 *     sum (out, dq): over gathered rows, for strips of heads. a (16 KiB of 256 rows) stays in the first-level cache,
 *     zip passes by, the next sums are asked for, and the first rows of the next block copied.
 *
 *     add (dKV): over heads, added to rows that lie anywhere while the next sums are multiplied.
 *     tiles    x panel (n)            x panel (n + 1)         32 x 32 sums: 4 KiB in the first-level cache
 *     vectors  rows += sums (n - 1)   rows += sums (n)        x of 32 rows: 16 KiB, stays; panels pass by */
#include "cpu/amx_tile.h"
#include "cpu/ukr_copy_amx.h"
#include "cpu/ukr_pair.h"
#include "cpu/ukr_unroll.h"

#include <immintrin.h>

enum { SIDE = ATTN_PAIR_HEADS, CELLS = SIDE * SIDE, TILE = 16 * 16 };

/* C (+)= A B over `steps` times 16 pairs, A and B [steps][2][16][16], and other work after two products. OPEN of a tile
 * comes before its first product: what the tile holds of the sums before is stored, then new sums are loaded or 0. */
#define STEP(first, i, steps, a, b, OPEN, WORK)                                                                        \
    do {                                                                                                               \
        const int more = (i) + 1 < (steps);                                                                            \
        tile_load(5, (a) + (2 * (i) + 1) * TILE, 64);                                                                  \
        if (first) OPEN(0);                                                                                            \
        tile_dpbf16(0, 4, 6);                                                                                          \
        if (first) OPEN(2);                                                                                            \
        tile_dpbf16(2, 5, 6);                                                                                          \
        if (more) tile_load_once(6, (b) + ((i) + 1) * 2 * TILE, 64);                                                   \
        WORK(2 * (i));                                                                                                 \
        if (first) OPEN(1);                                                                                            \
        tile_dpbf16(1, 4, 7);                                                                                          \
        if (more) tile_load(4, (a) + 2 * ((i) + 1) * TILE, 64);                                                        \
        if (first) OPEN(3);                                                                                            \
        tile_dpbf16(3, 5, 7);                                                                                          \
        if (more) tile_load_once(7, (b) + (2 * (i) + 3) * TILE, 64);                                                   \
        WORK(2 * (i) + 1);                                                                                             \
    } while (0)
#define STEPS(steps, a, b, OPEN, WORK)                                                                                 \
    do {                                                                                                               \
        tile_load_once(6, (b), 64);                                                                                    \
        tile_load(4, (a), 64);                                                                                         \
        tile_load_once(7, (b) + TILE, 64);                                                                             \
        STEP(1, 0, steps, a, b, OPEN, WORK);                                                                           \
        for (int64_t i = 1; i < (steps); i++) STEP(0, i, steps, a, b, OPEN, WORK);                                     \
    } while (0)
#define AT(t, ld) ((t) / 2 * 16 * (ld) + (t) % 2 * 16)
static void sums_store(float *c, int64_t ldc) {
    tile_store(0, c + AT(0, ldc), ldc * 4);
    tile_store(1, c + AT(1, ldc), ldc * 4);
    tile_store(2, c + AT(2, ldc), ldc * 4);
    tile_store(3, c + AT(3, ldc), ldc * 4);
}

void attn_ukr_amx_sum(const struct attn_pair_sum *f) {
    struct copying c;
    copy_from(&c, f->tiles, &f->next, f->depth, 0);
    const int64_t steps = (f->pairs + 15) / 16;
    float *late = NULL;
    for (int64_t strip = 0; strip < f->strips; strip++) {
        const float *a = f->a + strip * f->lda;
        for (int64_t column = 0; column < f->columns; column += SIDE) {
            float *to = f->c + strip * SIDE * f->ldc + column;
            const float *next = column + SIDE < f->columns ? to + SIDE : f->c + (strip + 1) * SIDE * f->ldc;
            const int64_t rows = column + SIDE < f->columns || strip + 1 < f->strips ? SIDE : 0;
#define OPEN(t)                                                                                                        \
    do {                                                                                                               \
        if (late) tile_store(t, late + AT(t, f->ldc), f->ldc * 4);                                                     \
        if (f->accumulate) {                                                                                           \
            tile_load(t, to + AT(t, f->ldc), f->ldc * 4);                                                              \
        } else {                                                                                                       \
            tile_zero(t);                                                                                              \
        }                                                                                                              \
    } while (0)
#define WORK(slot)                                                                                                     \
    for (int64_t r = 2 * (slot); r < 2 * (slot) + 2 && r < rows; r++) {                                                \
        __builtin_prefetch(next + r * f->ldc, 1);                                                                      \
        __builtin_prefetch(next + r * f->ldc + 16, 1);                                                                 \
    }                                                                                                                  \
    if (c.left) copy_unit(&c)
            STEPS(steps, a, f->zip + column / SIDE * f->ldz, OPEN, WORK);
#undef WORK
#undef OPEN
            late = to;
        }
    }
    if (late) sums_store(late, f->ldc);
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
/* Sums in tiles = x panel; those before go to `late`, and after the first four products, a share at a time, to their
 * rows. */
static void block(int64_t depth, const float *x, const float *panel, float *late, struct adding *w) {
    const int64_t steps = depth / 16, each = steps > 1 ? (SIDE + 2 * steps - 3) / (2 * steps - 2) : 0;
#define OPEN(t)                                                                                                        \
    do {                                                                                                               \
        if (late) tile_store(t, late + AT(t, SIDE), SIDE * 4);                                                         \
        tile_zero(t);                                                                                                  \
    } while (0)
#define WORK(slot)                                                                                                     \
    if ((slot) > 1) add_some(w, each)
    STEPS(steps, x, panel, OPEN, WORK);
#undef WORK
#undef OPEN
    add_some(w, SIDE);
}
void attn_ukr_amx_add(const struct attn_pair_add *f) {
    struct adding w = {.f = f};
    float *late = NULL;
    for (int64_t row = f->from / SIDE * SIDE; row < f->to; row += SIDE) {
        const int64_t first = row > f->from ? row : f->from, end = row + SIDE < f->to ? row + SIDE : f->to;
        for (int64_t column = f->column; column < f->end; column++) {
            block(column < f->narrow ? f->depth : f->depth / 2, f->x + row * f->depth,
                  f->panel + column * f->depth * SIDE, late, &w);
            late = f->s;
            w = (struct adding){f, first, end, f->s + (first - row) * SIDE, f->sums + column * f->ld_block};
        }
    }
    if (late) sums_store(late, SIDE), add_some(&w, SIDE);
}
