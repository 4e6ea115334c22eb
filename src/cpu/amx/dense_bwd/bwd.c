/* SPDX-License-Identifier: MIT
 * A tile of the dense backward on AMX: attn_ukr_bf16.bwd_tile. Five products, P and dS between them.
 *
 *     chunk of 32 rows x 32 keys    S = Q K^T   dP = dO V^T      8 tiles of f32, 8 KiB, twice: first-level cache
 *     vectors, two rows at a time   P, dS -> bf16:  P  [2 key halves][16 pairs of rows][16]   B of dV^T
 *                                                   dS [2 key halves][16 pairs of rows][16]   B of dK^T
 *                                                   dS [32 rows][16 pairs of keys]            A of dQ
 *     tiles  S, dP (c + 1)          S, dP (c + 2)               all chunks of the tile, then
 *     vectors     P, dS (c)              P, dS (c + 1)          dV^T += dO^T P   dK^T += Q^T dS   dQ += dS K
 *
 * Keys lie across the lanes: two rows of P or dS become a row of pairs with one conversion and one permutation, and
 * nothing is transposed, because dV and dK are summed transposed, [keys / 32][D][32]. 32 x 32 sums stay in four tiles
 * over all rows (or keys) of the tile. Each is one chain over 32 rows (or keys) after the other, the same numbers as
 * from attn_ukr_bf16.gemm. */
#include "cpu/amx/dense_bwd/score_mod.h"
#include "cpu/amx/dense_bwd/visible_keys.h"
#include "cpu/amx/tile.h"
#include "cpu/vec/exp2.h"

enum { SIDE = ATTN_BWD_TILE, CELLS = SIDE * SIDE, HALF = CELLS / 2, UNITS = SIDE / 2 };

/* P and dS of a chunk, two rows at a time. */
struct grads {
    v32 factor;
    __m512i zip;
    const float *s, *max, *delta; /* dP follows S */
    float *p, *ds, *ds_rows;
    int64_t done; /* of UNITS */
    struct scores scores;
};
INLINE __m512i zipped(const struct grads *g, v32 even, v32 odd) {
    return _mm512_permutexvar_epi16(g->zip, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
INLINE void store_rows(const struct grads *g, int64_t u, const v32 *p, const v32 *ds) {
    UNROLL for (int h = 0; h < 2; h++) {
        _mm512_store_si512(g->p + h * 256 + u * 16, zipped(g, p[h], p[2 + h]));
        _mm512_store_si512(g->ds + h * 256 + u * 16, zipped(g, ds[h], ds[2 + h]));
        _mm512_store_si512(g->ds_rows + (2 * u + h) * 16, (__m512i)_mm512_cvtne2ps_pbh(ds[2 * h + 1], ds[2 * h]));
    }
}
INLINE void two_plain_rows(struct grads *g) {
    const int64_t u = g->done++;
    const float *s = g->s + u * 2 * SIDE, *dp = s + CELLS;
    v32 p[4], ds[4];
    UNROLL for (int i = 0; i < 4; i++) p[i] = (v32_load(s + i * 16) - v32_set(g->max[2 * u + i / 2])) * g->factor;
    exp2_many(4, p);
    UNROLL for (int i = 0; i < 4; i++) {
        ds[i] = v32_load(dp + i * 16) - v32_set(g->delta[2 * u + i / 2]);
        ds[i] = v32_where_nonzero(p[i], p[i] * ds[i]);
    }
    store_rows(g, u, p, ds);
}
/* What is hidden is 0, whatever its score and dP are. */
INLINE void two_scored_rows(int what, struct grads *g) {
    const int64_t u = g->done++;
    const struct attn_bwd_score_mod *const f = g->scores.mod;
    const int weighs = score_has(what, SCORE_WEIGHT, f->weight != NULL);
    const float *s = g->s + u * 2 * SIDE, *dp = s + CELLS;
    v32 x[4], r[4], p[4], ds[4], chain[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = v32_load(s + i * 16);
    prefetch_cells(&g->scores, u);
    score_rows(what, &g->scores, 2 * u, 2 * u + 1, g->factor, g->max, x, chain);
    exp2_begin(EXP2_FULL, 4, x, r, p);
    exp2_more(EXP2_FULL, EXP2_FULL, 0, 4, r, p);
    keep_rows(&g->scores, 2 * u, 2 * u + 1, x, p);
    UNROLL for (int i = 0; i < 4; i++) p[i] = x[i];
    if (weighs) {
        UNROLL for (int i = 0; i < 4; i++) ds[i] = _mm512_fmsub_ps(
            v32_load(dp + i * 16), v32_set(f->weight[g->scores.row + 2 * u + i / 2]), v32_set(g->delta[2 * u + i / 2]));
    } else {
        UNROLL for (int i = 0; i < 4; i++) ds[i] = v32_load(dp + i * 16) - v32_set(g->delta[2 * u + i / 2]);
    }
    UNROLL for (int i = 0; i < 4; i++) ds[i] = v32_where_nonzero(p[i], p[i] * ds[i]);
    if (score_has(what, SCORE_CAP, f->caps)) {
        UNROLL for (int i = 0; i < 4; i++) ds[i] *= chain[i];
    }
    if (weighs) {
        UNROLL for (int i = 0; i < 4; i++) p[i] *= v32_set(f->weight[g->scores.row + 2 * u + i / 2]);
    }
    store_rows(g, u, p, ds);
}
INLINE void two_rows(int what, struct grads *g) {
    if (what) {
        two_scored_rows(what, g);
    } else {
        two_plain_rows(g);
    }
}
/* The share of the i-th of four products, `by_four` of them. */
INLINE void deal(int what, struct grads *g, int64_t i, int64_t by_four) {
    const int64_t share = by_four * (i + 1) / 4 - by_four * i / 4;
    for (int64_t x = 0; x < share; x++)
        if (g->done < UNITS) two_rows(what, g);
}

INLINE void store_sums(float *c, int64_t ldc) {
    tile_store(0, c, ldc * 4);
    tile_store(1, c + 16, ldc * 4);
    tile_store(2, c + 16 * ldc, ldc * 4);
    tile_store(3, c + 16 * ldc + 16, ldc * 4);
}
/* 32 rows of A, pairs along them, with two panels [depth / 2][16] of B. */
INLINE void product(int what, const float *a, int64_t lda, const float *b, int64_t depth, float *c, struct grads *g,
                    int64_t by_four) {
    const float *b_more = b + depth / 2 * 16;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t x = 0; x < depth / 2; x += 16) {
        tile_load(4, a + x, lda * 4);
        tile_load(6, b + x * 16, 64);
        tile_dpbf16(0, 4, 6);
        deal(what, g, 0, by_four);
        tile_load(7, b_more + x * 16, 64);
        tile_dpbf16(1, 4, 7);
        deal(what, g, 1, by_four);
        tile_load(5, a + 16 * lda + x, lda * 4);
        tile_dpbf16(2, 5, 6);
        deal(what, g, 2, by_four);
        tile_dpbf16(3, 5, 7);
        deal(what, g, 3, by_four);
    }
    store_sums(c, SIDE);
}

/* C[32][32] += the sum over `steps` of A[32][16 pairs] B[16 pairs][32]; `more` is where the second 16 rows of A or
 * columns of B start. */
INLINE void sums(float *c, int64_t ldc, const float *a, int64_t lda, int64_t a_more, int64_t a_step, const float *b,
                 int64_t ldb, int64_t b_more, int64_t b_step, int64_t steps) {
    tile_load(0, c, ldc * 4);
    tile_load(1, c + 16, ldc * 4);
    tile_load(2, c + 16 * ldc, ldc * 4);
    tile_load(3, c + 16 * ldc + 16, ldc * 4);
    for (int64_t i = 0; i < steps; i++, a += a_step, b += b_step) {
        tile_load(4, a, lda * 4);
        tile_load(6, b, ldb * 4);
        tile_dpbf16(0, 4, 6);
        tile_load(7, b + b_more, ldb * 4);
        tile_dpbf16(1, 4, 7);
        tile_load(5, a + a_more, lda * 4);
        tile_dpbf16(2, 5, 6);
        tile_dpbf16(3, 5, 7);
    }
    store_sums(c, ldc);
}

INLINE void chunks(int what, const struct attn_bwd_tile *t, const struct reach *reach, int64_t depth, int64_t width) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const int64_t fours = (depth + width) / 32, by_four = (UNITS + fours - 1) / fours;
    struct grads g = {
        .factor = v32_set(t->factor), .zip = _mm512_loadu_si512(zip), .done = UNITS, .scores = {.mod = t->score}};
    int64_t turn = 0;
    for (int64_t r = 0; r < t->strips; r++) {
        const float *q = t->q + r * SIDE * t->ldq, *dout = t->dout + r * SIDE * t->ldo;
        for (int64_t k = reach[r].lo / SIDE; k * SIDE < reach[r].hi; k++, turn ^= 1) {
            float *s = t->s + turn * 2 * CELLS;
            product(what, q, t->ldq, t->kt + k * SIDE * (depth / 2), depth, s, &g, by_four);
            product(what, dout, t->ldo, t->vt + k * SIDE * (width / 2), width, s + CELLS, &g, by_four);
            while (g.done < UNITS) two_rows(what, &g);
            if (!what && (reach[r].all_lo > k * SIDE || reach[r].all_hi < (k + 1) * SIDE))
                hide(t->seen + r * 2 * SIDE, (int32_t)(k * SIDE), s);
            const int64_t offset = (r * t->blocks + k) * HALF;
            g.s = s, g.p = t->p + offset, g.ds = t->ds + offset, g.ds_rows = t->ds_rows + offset, g.done = 0;
            g.max = t->max + r * SIDE, g.delta = t->delta + r * SIDE;
            if (what) begin_scores(&g.scores, r, k, reach, t->strips, t->blocks);
        }
    }
    while (g.done < UNITS) two_rows(what, &g);
}

/* Sums over the rows: x (P or dS) [strips][blocks][2][16][16] with rows [strips][width][16], transposed. */
INLINE void over_rows(const struct attn_bwd_tile *t, const struct reach *reach, const float *rows, const float *x,
                      int64_t width, float *to) {
    for (int64_t k = 0; k < t->blocks; k++)
        for (int64_t first = 0, last; run_of(reach, t->strips, k, &first, &last); first = last)
            for (int64_t d = 0; d < width; d += SIDE)
                sums(to + (k * width + d) * SIDE, SIDE, rows + (first * width + d) * 16, 16, 256, width * 16,
                     x + (first * t->blocks + k) * HALF, 16, 256, t->blocks * HALF, last - first);
}

INLINE void tile(int what, const struct attn_bwd_tile *t, int64_t depth, int64_t width) {
    struct reach reach[ATTN_BWD_TILE_STRIPS];
    for (int64_t r = 0; r < t->strips; r++) {
        reach[r] = reach_of(t->seen + r * 2 * SIDE);
        if (what) keep(t->score, t->seen + r * 2 * SIDE, r, t->blocks, &reach[r]);
    }
    chunks(what, t, reach, depth, width);
    if (t->dv) over_rows(t, reach, t->dout_transposed, t->p, width, t->dv);
    if (t->dk) over_rows(t, reach, t->q_transposed, t->ds, depth, t->dk);
    for (int64_t r = 0; t->dq && r < t->strips; r++) {
        const int64_t k = reach[r].lo / SIDE, n = (reach[r].hi + SIDE - 1) / SIDE - k;
        for (int64_t d = 0; d < depth && n > 0; d += SIDE)
            sums(t->dq + r * SIDE * t->ldd + d, t->ldd, t->ds_rows + (r * t->blocks + k) * HALF, 16, 256, HALF,
                 t->k_zip + k * 16 * t->ldk + d, t->ldk, 16, 16 * t->ldk, n);
    }
}

/* Common extents as constants. */
#define KIND(name, what, depth, width)                                                                                 \
    static void name(const struct attn_bwd_tile *t) { tile(what, t, depth, width); }
#define KINDS(name, what) KIND(name##_64, what, 64, 64) KIND(name##_128, what, 128, 128)
KIND(tile_any, SCORE_NONE, t->depth, t->width)
KIND(scored_any, SCORE_ANY, t->depth, t->width)
KINDS(tile, SCORE_NONE)
KINDS(scored, SCORE_ANY)
KINDS(visible, SCORE_VISIBLE)
KINDS(cap, SCORE_VISIBLE | SCORE_CAP)
KINDS(alibi, SCORE_VISIBLE | SCORE_ALIBI)
KINDS(cells, SCORE_VISIBLE | SCORE_CELLS)

void attn_ukr_amx_bwd_tile(const struct attn_bwd_tile *t) {
    static void (*const kernel[SCORE_ANY + 1][2])(const struct attn_bwd_tile *t) = {
        [SCORE_NONE] = {tile_64, tile_128},
        [SCORE_VISIBLE] = {visible_64, visible_128},
        [SCORE_VISIBLE | SCORE_CAP] = {cap_64, cap_128},
        [SCORE_VISIBLE | SCORE_ALIBI] = {alibi_64, alibi_128},
        [SCORE_VISIBLE | SCORE_CELLS] = {cells_64, cells_128},
        [SCORE_ANY] = {scored_64, scored_128}};
    const int what = t->score ? scores_of(t->score) : SCORE_NONE;
    if (t->depth != t->width || (t->depth != 64 && t->depth != 128)) {
        (t->score ? scored_any : tile_any)(t);
    } else {
        kernel[kernel[what][0] ? what : SCORE_ANY][t->depth == 128](t);
    }
}
