/* SPDX-License-Identifier: MIT
 * A tile of the dense backward of f32 on AMX: attn_ukr_bf16.bwd_tile_f32. As bwd.c, as bf16x3
 * (vec/bf16_split_avx512.h): a product of 32 x 32 by 32 x 32 numbers is six times four tile products, the smallest
 * first.
 *
 * Every operand lies in BLOCKS of 32 x 32 numbers, [3 parts][2][256 elements]: two whole tiles of 1 KiB of a part, the
 * second with rows (of A) or columns (of B) 16 .. 31. So there is one product for all five.
 *
 *     chunk of 32 rows x 32 keys    S = Q K^T   dP = dO V^T    f32, 4 KiB each, twice: first-level cache
 *     vectors, two rows at a time   P, dS -> parts:  P  pairs of rows     B of dV^T += dO^T P
 *                                                    dS pairs of rows     B of dK^T += Q^T dS
 *                                                    dS pairs of keys     A of dQ   += dS K
 *
 * A pair is what lies 16 apart, rows u and u + 16 of a key or keys c and c + 16 of a row: they have the same lane, so
 * that a part of a pair is a shift and a selection, and nothing is permuted. */
#include "cpu/amx/dense_bwd/score_mod.h"
#include "cpu/amx/dense_bwd/visible_keys.h"
#include "cpu/amx/tile.h"
#include "cpu/vec/bf16_split_avx512.h"
#include "cpu/vec/exp2.h"

enum {
    SIDE = ATTN_BWD_TILE,
    CELLS = SIDE * SIDE,
    HALF = CELLS / 2,
    UNITS = SIDE / 2,
    TILE = ATTN_SPLIT_TILE,
    PARTS = ATTN_SPLIT_PARTS,
    BLOCK = ATTN_SPLIT_BLOCK
};

/* P and dS of a chunk, rows u and u + 16 at a time, in STEPS of about as many instructions: so few between two products
 * that the tile unit always has the next ones in its queue. */
enum { STEPS = 6, ALL_STEPS = STEPS * UNITS };
struct grads {
    v32 factor;
    const float *s, *offset, *delta; /* dP follows S */
    float *p, *ds, *ds_rows;
    int what; /* SCORE_.. */
    struct scores scores;
};
/* What goes from step to step, in registers. */
struct in_flight {
    v32 x[4], y[4], z[4]; /* [row][key half] */
    v32 chain[4];
};
/* Part t of the four pairs of dS: of rows and of keys. */
INLINE void store_ds(const struct grads *g, struct in_flight *v, int64_t u, int t) {
    UNROLL for (int h = 0; h < 2; h++) {
        store_part(g->ds + h * TILE + u * 16, t, v->y[h], v->y[2 + h]);
        store_part(g->ds_rows + h * TILE + u * 16, t, v->y[2 * h], v->y[2 * h + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) v->y[i] = below_upper(v->y[i]);
}
INLINE void grad_step(const struct grads *g, struct in_flight *v, int64_t u, int step) {
    const float *s = g->s + u * SIDE, *dp = s + CELLS;
    if (step == 0) {
        if (g->what) {
            UNROLL for (int i = 0; i < 4; i++) v->x[i] = v32_load(s + i / 2 * HALF + i % 2 * 16);
            prefetch_cells(&g->scores, u);
            score_rows(g->what, &g->scores, u, u + 16, g->factor, g->offset, v->x, v->chain);
        } else {
            UNROLL for (int i = 0; i < 4; i++) v->x[i] =
                _mm512_fmsub_ps(v32_load(s + i / 2 * HALF + i % 2 * 16), g->factor, v32_set(g->offset[u + i / 2 * 16]));
        }
        exp2_begin(EXP2_FULL, 4, v->x, v->z, v->y);
        exp2_more(EXP2_FULL, 5, 3, 4, v->z, v->y);
    } else if (step == 1) {
        exp2_more(EXP2_FULL, 3, 0, 4, v->z, v->y);
        if (g->what) {
            keep_rows(&g->scores, u, u + 16, v->x, v->y);
        } else {
            exp2_end(4, v->x, v->y);
        }
    } else if (step == 2) {
        UNROLL for (int i = 0; i < 4; i++) {
            v->y[i] = v32_load(dp + i / 2 * HALF + i % 2 * 16) - v32_set(g->delta[u + i / 2 * 16]);
            v->y[i] = v32_where_nonzero(v->x[i], v->x[i] * v->y[i]);
        }
        if (g->what && g->scores.mod->caps) {
            UNROLL for (int i = 0; i < 4; i++) v->y[i] *= v->chain[i];
        }
    } else if (step == 3) {
        UNROLL for (int h = 0; h < 2; h++) store_split(g->p + h * TILE + u * 16, v->x[h], v->x[2 + h]);
    } else if (step == 4) {
        store_ds(g, v, u, 0);
    } else {
        store_ds(g, v, u, 1);
        store_ds(g, v, u, 2);
    }
}
static void grads_of(const struct grads *g, int64_t from, int64_t to) {
    struct in_flight v;
    for (int64_t u = from; u < to && u < UNITS; u++) {
        UNROLL for (int step = 0; step < STEPS; step++) grad_step(g, &v, u, step);
    }
}
/* Steps that are done before product i of n. The first four products have none: during them dP of the chunk before is
 * stored, which the third step reads. */
INLINE int64_t steps_before(int64_t i, int64_t n) {
    enum { LEAD = 8 };
    return i < LEAD ? 0 : (i - LEAD) * ALL_STEPS / (n - LEAD);
}
INLINE void deal(const struct grads *g, struct in_flight *v, int64_t i, int64_t n) {
    if (n == 0) return;
    UNROLL_SEEN for (int64_t x = steps_before(i, n); x < steps_before(i + 1, n); x++)
        grad_step(g, v, x / STEPS, (int)(x % STEPS));
}

/* 32 x 32 sums in tiles 0 .. 3, and where they go: during the first products of the next ones, since stores take time
 * from loads where there is nothing else to do. Storing them twice does no harm. */
struct sums {
    float *to;
    int64_t ld;
};
#define SUM_AT(sums, tile) ((sums).to + (tile) / 2 * 16 * (sums).ld + (tile) % 2 * 16)
#define STORE(sums, tile)  tile_store(tile, SUM_AT(sums, tile), (sums).ld * 4)
/* The next ones take the tile's place: zeros, or what they are added to. */
#define NEXT(tile)                                                                                                     \
    if (next) {                                                                                                        \
        STORE(*last, tile);                                                                                            \
        if (add) {                                                                                                     \
            tile_load(tile, SUM_AT(*next, tile), next->ld * 4);                                                        \
        } else {                                                                                                       \
            tile_zero(tile);                                                                                           \
        }                                                                                                              \
    }
INLINE void store_sums(const struct sums *last) {
    STORE(*last, 0);
    STORE(*last, 1);
    STORE(*last, 2);
    STORE(*last, 3);
}
/* The operand that is loaded with a streaming hint, so that the other one stays in the first-level cache. */
enum streams { A_STREAMS, B_STREAMS };
#define LOAD(needed, tile, from, passes)                                                                               \
    if ((needed) && (passes)) {                                                                                        \
        tile_load_once(tile, from, 64);                                                                                \
    } else if (needed) {                                                                                               \
        tile_load(tile, from, 64);                                                                                     \
    }
/* The six products of a block of A with one of B: in this order one of the two operands stays. They are tile products
 * i .. i + 23 of n, interleaved with vector work. next: sums that begin here, or NULL. */
INLINE void six(enum streams streams, const float *a, const float *b, const struct sums *last, const struct sums *begin,
                int add, const struct grads *g, struct in_flight *v, int64_t i, int64_t n) {
    static const int8_t of_a[] = {2, 1, 1, 0, 0, 0}, of_b[] = {0, 0, 1, 1, 2, 0};
    UNROLL for (int x = 0; x < 6; x++, i += 4) {
        const float *a_tile = a + of_a[x] * 2 * TILE, *b_tile = b + of_b[x] * 2 * TILE;
        const int new_a = x == 0 || of_a[x] != of_a[x - 1], new_b = x == 0 || of_b[x] != of_b[x - 1];
        const struct sums *next = x == 0 ? begin : NULL;
        LOAD(new_a, 4, a_tile, streams == A_STREAMS)
        LOAD(new_b, 6, b_tile, streams == B_STREAMS)
        NEXT(0)
        tile_dpbf16(0, 4, 6);
        deal(g, v, i, n);
        LOAD(new_b, 7, b_tile + TILE, streams == B_STREAMS)
        NEXT(1)
        tile_dpbf16(1, 4, 7);
        deal(g, v, i + 1, n);
        LOAD(new_a, 5, a_tile + TILE, streams == A_STREAMS)
        NEXT(2)
        tile_dpbf16(2, 5, 6);
        deal(g, v, i + 2, n);
        NEXT(3)
        tile_dpbf16(3, 5, 7);
        deal(g, v, i + 3, n);
    }
}
/* Scores of a chunk from `blocks` of A and of B, which follow each other. n > 0: from tile product 24 * first of n on;
 * else from block `first` on, and `units` of the vectors' after each. */
INLINE void product(const float *a, const float *b, int64_t blocks, float *c, struct sums *last, const struct grads *g,
                    struct in_flight *v, int64_t first, int64_t n, int64_t units) {
    const struct sums next = {c, SIDE};
    six(B_STREAMS, a, b, last, &next, 0, g, v, 24 * first, n);
    if (n) {
        UNROLL for (int64_t x = 1; x < blocks; x++)
            six(B_STREAMS, a + x * BLOCK, b + x * BLOCK, NULL, NULL, 0, g, v, 24 * (first + x), n);
    } else {
        if (units) grads_of(g, first * units, (first + 1) * units);
        for (int64_t x = 1; x < blocks; x++) {
            six(B_STREAMS, a + x * BLOCK, b + x * BLOCK, NULL, NULL, 0, NULL, NULL, 0, 0);
            if (units) grads_of(g, (first + x) * units, (first + x + 1) * units);
        }
    }
    *last = next;
}
/* C[32][32] += the sum over n blocks, steps apart. */
INLINE void add(enum streams streams, float *c, int64_t ldc, struct sums *last, const float *a, int64_t a_step,
                const float *b, int64_t b_step, int64_t n) {
    const struct sums next = {c, ldc};
    six(streams, a, b, last, &next, 1, NULL, NULL, 0, 0);
    for (int64_t i = 1; i < n; i++) six(streams, a + i * a_step, b + i * b_step, NULL, NULL, 0, NULL, NULL, 0, 0);
    *last = next;
}

/* The products of a chunk, and if there is one P and dS of the chunk before. flat: depth and width are constants. */
INLINE void chunk(int flat, const struct attn_bwd_tile *t, int64_t r, int64_t k, int64_t depth, int64_t width, float *s,
                  struct sums *last, const struct grads *g, int before) {
    struct in_flight v;
    UNROLL for (int i = 0; i < 4; i++) v.chain[i] = v32_set(1); /* which compilers think might be read before */
    const int64_t wide = depth / SIDE, tall = width / SIDE, n = flat && before ? 24 * (wide + tall) : 0;
    const int64_t units = before ? (UNITS + wide + tall - 1) / (wide + tall) : 0;
    product(t->q + r * wide * BLOCK, t->kt + k * wide * BLOCK, wide, s, last, g, &v, 0, n, units);
    product(t->dout + r * tall * BLOCK, t->vt + k * tall * BLOCK, tall, s + CELLS, last, g, &v, wide, n, units);
}
INLINE void chunks(int flat, int what, const struct attn_bwd_tile *t, const struct reach *reach, int64_t depth,
                   int64_t width, struct sums *last) {
    struct grads g = {.factor = v32_set(t->factor), .what = what, .scores = {.mod = t->score}};
    int64_t turn = 0;
    for (int64_t r = 0; r < t->strips; r++)
        for (int64_t k = reach[r].lo / SIDE; k * SIDE < reach[r].hi; k++, turn ^= 1) {
            float *s = t->s + turn * 2 * CELLS;
            if (g.s) {
                chunk(flat, t, r, k, depth, width, s, last, &g, 1);
            } else {
                chunk(flat, t, r, k, depth, width, s, last, &g, 0);
            }
            if (!what && (reach[r].all_lo > k * SIDE || reach[r].all_hi < (k + 1) * SIDE))
                hide(t->seen + r * 2 * SIDE, (int32_t)(k * SIDE), s); /* dP is what is still in tiles */
            const int64_t offset = (r * t->blocks + k) * BLOCK;
            g.s = s, g.p = t->p + offset, g.ds = t->ds + offset, g.ds_rows = t->ds_rows + offset;
            g.offset = t->max + r * SIDE, g.delta = t->delta + r * SIDE;
            if (what) begin_scores(&g.scores, r, k, reach, t->strips, t->blocks);
        }
    store_sums(last);
    if (g.s) {
        struct grads copy = g;
        __asm__("" : "+m"(copy)); /* clang would pass g itself, and so keep it in memory everywhere */
        grads_of(&copy, 0, UNITS);
    }
}

/* Sums over the rows: x (P or dS) [strips][blocks] with rows [strips][width / 32], transposed. */
INLINE void over_rows(const struct attn_bwd_tile *t, const struct reach *reach, const float *rows, const float *x,
                      int64_t width, float *to, struct sums *last_sums) {
    const int64_t step = width / SIDE * BLOCK;
    for (int64_t k = 0; k < t->blocks; k++)
        for (int64_t first = 0, last; run_of(reach, t->strips, k, &first, &last); first = last)
            for (int64_t d = 0; d < width; d += SIDE)
                add(A_STREAMS, to + (k * width + d) * SIDE, SIDE, last_sums, rows + first * step + d / SIDE * BLOCK,
                    step, x + (first * t->blocks + k) * BLOCK, t->blocks * BLOCK, last - first);
}

INLINE void tile(int flat, int what, const struct attn_bwd_tile *t, int64_t depth, int64_t width) {
    struct reach reach[ATTN_BWD_TILE_STRIPS];
    for (int64_t r = 0; r < t->strips; r++) {
        reach[r] = reach_of(t->seen + r * 2 * SIDE);
        if (what) keep(t->score, t->seen + r * 2 * SIDE, r, t->blocks, &reach[r]);
    }
    struct sums last = {t->s, SIDE}; /* of nothing yet */
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    chunks(flat, what, t, reach, depth, width, &last);
    if (t->dv) over_rows(t, reach, t->dout_transposed, t->p, width, t->dv, &last);
    if (t->dk) over_rows(t, reach, t->q_transposed, t->ds, depth, t->dk, &last);
    for (int64_t r = 0; t->dq && r < t->strips; r++) {
        const int64_t k = reach[r].lo / SIDE, n = (reach[r].hi + SIDE - 1) / SIDE - k;
        for (int64_t d = 0; d < depth && n > 0; d += SIDE)
            add(B_STREAMS, t->dq + r * SIDE * t->ldd + d, t->ldd, &last, t->ds_rows + (r * t->blocks + k) * BLOCK,
                BLOCK, t->k_zip + (k * depth + d) / SIDE * BLOCK, depth / SIDE * BLOCK, n);
    }
    store_sums(&last);
}

/* Common extents as constants. */
#define KINDS(name, what)                                                                                              \
    static void name##_64(const struct attn_bwd_tile *t) { tile(1, what, t, 64, 64); }                                 \
    static void name##_128(const struct attn_bwd_tile *t) { tile(1, what, t, 128, 128); }                              \
    static void name##_any(const struct attn_bwd_tile *t) { tile(0, what, t, t->depth, t->width); }
KINDS(tile, SCORE_NONE)
KINDS(scored, SCORE_ANY)

void attn_ukr_amx_bwd_tile_f32(const struct attn_bwd_tile *t) {
    static void (*const kernel[2][3])(const struct attn_bwd_tile *t) = {{tile_any, tile_64, tile_128},
                                                                        {scored_any, scored_64, scored_128}};
    kernel[t->score != NULL][t->depth != t->width ? 0 : t->depth == 64 ? 1 : t->depth == 128 ? 2 : 0](t);
}
