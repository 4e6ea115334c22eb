/* SPDX-License-Identifier: MIT
 * The two matrix products of the forward on AMX (fwd.c), S^T = K Q^T and O^T += V^T P^T, with the vector work of the
 * softmax interleaved: 32 rows of K or V^T by 32 queries at a time. D 64 keeps all of Q^T, then all of P, in tiles. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_TILE_PRODUCTS_H
#define ATTN_CPU_AMX_DENSE_FWD_TILE_PRODUCTS_H
#include "cpu/amx/dense_fwd/exp.h"
#include "cpu/amx/tile.h"

enum { TILE = 256 /* elements of 32 bits */, QUEUE = 4 /* steps between two additions to a sum, at most */ };

/* A product of 32 rows of A by 32 queries, four 16 x 16 sums, over n tiles of A side by side. Strides in bytes of A and
 * elements of B. Split operands (bf16x2, bf16x3) take n_products tile products each: bf16x2 4, or 3 without low * low,
 * bf16x3 6. The next smaller part lies a_low and b_low after the larger one. */
struct block {
    const char *a;
    int64_t a_row, a_more, a_step, a_low; /* to the next row, the next 16 rows, the next tile, the next part */
    const float *const *b;                /* `per` tiles from each */
    int64_t b_row, b_more, b_step, b_low, per;
    float *to; /* [32][32] */
    int sums;  /* 1: add to what `to` holds */
    int64_t n;
    int n_products;
    float *pending; /* not NULL: store the previous block's sums, still in tile registers, here */
    int held;       /* leave this block's sums in the tile registers */
};
/* bf16 parts of A and B that product x of a tile multiplies, 0 the largest. From one product to the next one operand
 * stays in its registers. */
INLINE int part_a(int n_products, int x) {
    static const int8_t six[] = {2, 1, 1, 0, 0, 0};
    return n_products == 6 ? six[x] : n_products > 1 && x < n_products - 2;
}
INLINE int part_b(int n_products, int x) {
    static const int8_t six[] = {0, 0, 1, 1, 2, 0};
    return n_products == 6 ? six[x] : n_products > 1 && (x == n_products - 1 || (n_products == 4 && x == 0));
}
#define SUM_AT(tile) ((tile) / 2 * 16 * LANES_ALL + (tile) % 2 * 16)
#define SET_UP(tile)                                                                                                   \
    if (first) {                                                                                                       \
        if (o->sums) {                                                                                                 \
            tile_load(tile, o->to + SUM_AT(tile), LANES_ALL * 4);                                                      \
        } else {                                                                                                       \
            tile_zero(tile);                                                                                           \
        }                                                                                                              \
    }
#define STORE_PENDING(tile)                                                                                            \
    if (first && o->held) tile_store(tile, o->pending + SUM_AT(tile), LANES_ALL * 4);
/* With `held` (full steps) the next tile's operands are loaded as soon as the registers of this one's are free. */
INLINE void four_products(const struct block *o, int64_t tile, int x, struct exps *e) {
    const int of_a = part_a(o->n_products, x), of_b = part_b(o->n_products, x), first = tile == 0 && x == 0,
              early = o->held && o->n_products == 1, now = !(early && tile),
              load_a = now && (x == 0 || of_a != part_a(o->n_products, x - 1)),
              load_b = now && (x == 0 || of_b != part_b(o->n_products, x - 1)), load_next = early && tile + 1 < o->n;
    const int64_t next = load_next ? tile + 1 : tile;
    const char *a = o->a + tile * o->a_step + of_a * o->a_low, *next_a = a + o->a_step;
    const float *b = o->b[tile / o->per] + tile % o->per * o->b_step + of_b * o->b_low,
                *next_b = o->b[next / o->per] + next % o->per * o->b_step;
    if (load_b) tile_load(6, b, o->b_row);
    if (load_a) tile_load_once(4, a, o->a_row);
    STORE_PENDING(0)
    SET_UP(0)
    tile_dpbf16(0, 4, 6);
    deal(e);
    if (load_b) tile_load(7, b + o->b_more, o->b_row);
    STORE_PENDING(1)
    SET_UP(1)
    tile_dpbf16(1, 4, 7);
    deal(e);
    if (load_next) tile_load_once(4, next_a, o->a_row);
    if (load_a) tile_load_once(5, a + o->a_more, o->a_row);
    STORE_PENDING(2)
    SET_UP(2)
    tile_dpbf16(2, 5, 6);
    deal(e);
    if (load_next) tile_load(6, next_b, o->b_row);
    STORE_PENDING(3)
    SET_UP(3)
    tile_dpbf16(3, 5, 7);
    deal(e);
    if (load_next) tile_load_once(5, next_a + o->a_more, o->a_row);
    if (load_next) tile_load(7, next_b + o->b_more, o->b_row);
}
INLINE void store_sums(float *to) {
    tile_store(0, to + SUM_AT(0), LANES_ALL * 4);
    tile_store(1, to + SUM_AT(1), LANES_ALL * 4);
    tile_store(2, to + SUM_AT(2), LANES_ALL * 4);
    tile_store(3, to + SUM_AT(3), LANES_ALL * 4);
}
/* flat: n is a constant, and no branch is left. */
INLINE void block(int flat, const struct block *o, struct exps *e) {
    if (flat) {
        UNROLL_SEEN for (int64_t tile = 0; tile < o->n; tile++) {
            UNROLL_SEEN for (int x = 0; x < o->n_products; x++) four_products(o, tile, x, e);
        }
    } else {
        for (int64_t tile = 0; tile < o->n; tile++)
            for (int x = 0; x < o->n_products; x++) four_products(o, tile, x, e);
    }
    if (!o->held) store_sums(o->to);
}
/* Strides of K, see k_row .. k_low of attn_fwd_strip. flat: they are constants, but for D 64 with rows in place; so
 * fewer registers hold addresses. */
struct layout {
    int64_t row, next16, step, low;
};
INLINE struct layout layout_of(int flat, const struct attn_fwd_strip *f, int64_t depth, int n_bf16) {
    struct layout k = {f->k_row, f->k_more, f->k_step, f->k_low};
    if (flat) k.next16 = 16 * depth * n_bf16, k.low = 16 * depth;
    if (flat && (depth > 64 || n_bf16 > 1)) k.row = 32, k.step = 16 * 32;
    return k;
}
/* S^T = K Q^T of a step. hold: the sums that the previous call left in the tile registers are stored to `pending`
 * during the first products, and this call's last sums stay in the registers. */
INLINE void keys(int flat, int hold, const struct attn_fwd_strip *f, int64_t depth, int64_t step, float *s,
                 float *pending, struct exps *e) {
    const struct layout k = layout_of(flat, f, depth, e->n_bf16);
    UNROLL_SEEN for (int64_t c = 0; c < e->span; c += 32) {
        const float *const q = f->q;
        const struct block products = {.a = (const char *)(f->k + (step * e->span + c) / 16 * k.next16),
                                       .a_row = k.row * 2,
                                       .a_more = k.next16 * 2,
                                       .a_step = k.step * 2,
                                       .a_low = k.low * 2,
                                       .b = &q,
                                       .b_row = 64,
                                       .b_more = depth / 2 * 16,
                                       .b_step = TILE,
                                       .b_low = depth * 16,
                                       .per = depth / 32,
                                       .to = s + c * LANES_ALL,
                                       .n = depth / 32,
                                       .n_products = e->of_keys,
                                       .pending = !hold ? NULL
                                                  : c   ? s + (c - 32) * LANES_ALL
                                                        : pending,
                                       .held = hold};
        block(flat, &products, e);
    }
}
/* Tile products of one of P with V: bf16x2 leaves out low * low, bf16x3 the three smallest. */
INLINE int of_values(int n_bf16) { return n_bf16 == 3 ? 6 : n_bf16 == 2 ? 3 : 1; }
/* O^T += V^T P^T for 32 columns d .. of V: steps from .. from + n - 1, with probabilities p[0 .. n-1]. */
INLINE void values_32(int flat, int hold, const struct attn_fwd_strip *f, int64_t width, int64_t d, int64_t from,
                      int64_t n, const float *const *p, float *pending, struct exps *e) {
    const int64_t tiles = e->span / 32;
    const struct block products = {.a = (const char *)(f->v + from * tiles * width * 16 * e->n_bf16 + d * 16),
                                   .a_row = 64,
                                   .a_more = 16 * 64,
                                   .a_step = width * 64 * e->n_bf16,
                                   .a_low = width * 64,
                                   .b = p,
                                   .b_row = LANES_ALL * 4,
                                   .b_more = 16,
                                   .b_step = 16 * LANES_ALL,
                                   .b_low = e->span / 2 * LANES_ALL,
                                   .per = tiles,
                                   .to = f->o + d * LANES_ALL,
                                   .sums = from || !f->fresh,
                                   .n = n * tiles,
                                   .n_products = of_values(e->n_bf16),
                                   .pending = pending,
                                   .held = hold};
    block(flat, &products, e);
}
/* The same for slice o_slice of the columns. hold: as keys. Returns where the last block's sums belong. */
INLINE float *values(int flat, int hold, const struct attn_fwd_strip *f, int64_t width, int64_t o_slices,
                     int64_t o_slice, int64_t from, int64_t n, const float *const *p, float *pending, struct exps *e) {
    const int64_t each = width / o_slices, begin = o_slice * each;
    if (flat) {
        UNROLL for (int64_t d = 0; d < each; d += 32) {
            values_32(1, hold, f, width, begin + d, from, n, p, pending, e);
            pending = f->o + (begin + d) * LANES_ALL;
        }
    } else {
        for (int64_t d = 0; d < each; d += 32) {
            values_32(0, hold, f, width, begin + d, from, n, p, hold ? pending : NULL, e);
            pending = f->o + (begin + d) * LANES_ALL;
        }
    }
    return pending;
}

/* D 64, steps of 64 keys: all of Q^T, then all of P^T, stays in tiles 4 .. 7, and three sums take turns in tiles 0 ..
 * 2. Tile loads for 32 products: 16 of K and V, 8 of Q and P, 8 of sums; block() would load 16, 16 and 8. A sum is
 * stored during the products of the next one, unless that needs its tile. */
#define WITH(tile, what)                                                                                               \
    if (c == (tile)) what
INLINE void sum_begin(int c, const float *from) {
    if (!from) {
        WITH(0, tile_zero(0));
        WITH(1, tile_zero(1));
        WITH(2, tile_zero(2));
        return;
    }
    WITH(0, tile_load(0, from, LANES_ALL * 4));
    WITH(1, tile_load(1, from, LANES_ALL * 4));
    WITH(2, tile_load(2, from, LANES_ALL * 4));
}
INLINE void sum_end(int c, float *to) {
    WITH(0, tile_store(0, to, LANES_ALL * 4));
    WITH(1, tile_store(1, to, LANES_ALL * 4));
    WITH(2, tile_store(2, to, LANES_ALL * 4));
}
/* Adds the product with a quarter of B, in tile 4 + quarter. b: NULL, or where to load that quarter from first. */
INLINE void sum_add(int c, int quarter, const float *b, int64_t ldb, struct exps *e) {
    if (quarter == 0) {
        if (b) tile_load(4, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 4));
        WITH(1, tile_dpbf16(1, 3, 4));
        WITH(2, tile_dpbf16(2, 3, 4));
    } else if (quarter == 1) {
        if (b) tile_load(5, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 5));
        WITH(1, tile_dpbf16(1, 3, 5));
        WITH(2, tile_dpbf16(2, 3, 5));
    } else if (quarter == 2) {
        if (b) tile_load(6, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 6));
        WITH(1, tile_dpbf16(1, 3, 6));
        WITH(2, tile_dpbf16(2, 3, 6));
    } else {
        if (b) tile_load(7, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 7));
        WITH(1, tile_dpbf16(1, 3, 7));
        WITH(2, tile_dpbf16(2, 3, 7));
    }
    deal(e);
}
#undef WITH
/* Q K^T of step `step` of f, and P V of step step_before of `before`. */
INLINE void step_64(const struct attn_fwd_strip *f, int64_t step, float *s, const struct attn_fwd_strip *before,
                    int64_t step_before, const float *p, struct exps *e) {
    static const int left[] = {0, 2, 1, 0, 2, 1, 0, 2}, right[] = {1, 0, 2, 1, 0, 2, 1, 0};
    const struct layout k_layout = layout_of(1, f, 64, 1);
    const char *const k = (const char *)(f->k + step * 4 * k_layout.next16), *const v = (const char *)(before->v +
                                                                                                       step_before * 2 *
                                                                                                           64 * 16);
    const int fresh = before->fresh && !step_before;
    float *pending[2] = {NULL, NULL};
    UNROLL for (int g = 0; g < 8; g++) {
        const int values = g >= 4, h = g % 4, load = h == 0, last = g == 7, l = left[g], r = right[g];
        const int64_t row = values ? 64 : k_layout.row * 2, next = values ? 64 * 64 : k_layout.step * 2;
        const char *a = values ? v + h * 16 * 64 : k + h * k_layout.next16 * 2;
        const float *b = values ? p : f->q;
        const int64_t ldb = values ? LANES_ALL * 4 : 64, b_right = values ? 16 : 2 * TILE,
                      b_next = values ? 16 * LANES_ALL : TILE;
        float *to = (values ? before->o : s) + h * 16 * LANES_ALL;
        tile_load_once(3, a, row);
        sum_begin(l, values && !fresh ? to : NULL);
        sum_add(l, 0, load ? b : NULL, ldb, e);
        if (pending[0]) sum_end(left[g - 1], pending[0]);
        if (pending[1]) sum_end(right[g - 1], pending[1]);
        sum_begin(r, values && !fresh ? to + 16 : NULL);
        sum_add(r, 1, load ? b + b_right : NULL, ldb, e);
        tile_load_once(3, a + next, row);
        sum_add(l, 2, load ? b + b_next : NULL, ldb, e);
        sum_add(r, 3, load ? b + b_next + b_right : NULL, ldb, e);
        const int taken = last ? -1 : left[g + 1];
        if (last || taken == l) sum_end(l, to);
        if (last || taken == r) sum_end(r, to + 16);
        pending[0] = last || taken == l ? NULL : to;
        pending[1] = last || taken == r ? NULL : to + 16;
    }
}
#endif
