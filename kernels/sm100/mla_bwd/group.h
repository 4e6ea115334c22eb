/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu over joined lists (docs/joined_lists.md): what a pair of CTAs works on is a group of 2, 4 or 8
 * queries, which share 128 rows: row r << shift | h is head h of query r. Slots are entries of the group's list; their
 * bits say which queries P and dS have them for, and the gradient of an entry is the sum over all rows. query.h has the
 * same names for one query.
 *
 * A group that is left apart has its queries' own lists, one after the other, each in whole tiles, one at least, whose
 * entries have the bit of their query alone.
 *
 * Values that are not finite. A cleared bit has P = dS = 0, and products make NaN of 0 and what is not finite: a row of
 * Q or dO would reach the gradients of entries that its query does not have, a row of K the dQ of queries that do not
 * have it. V being a part of K's row, either shows in the raw score or dP of that very cell. So a tile in which all of
 * these are finite is summed over all rows at once; another one, and each tile of a group left apart, query by query:
 *   dKV   in rounds over the 16-row steps of one query, of which entries without its bit take nothing
 *   dQ    of a work tile with such a tile: a round of the second pass for each query, K's rows without its bit being
 *         zeros, after which its rows alone are stored */
#ifndef ATTN_SM100_MLA_BWD_GROUP_H
#define ATTN_SM100_MLA_BWD_GROUP_H
#include "kernels/sm100/mla_bwd/layout.h"

static __device__ __forceinline__ const struct kp_mla_joined *lists_of(const struct kp_mla_bwd *p) {
    return &((const struct kp_mla_bwd_sm100 *)p)->joined; /* bwd is its first member */
}

/* Every role walks the work tiles by itself. */
struct work {
    int64_t number; /* of the launch */
    int64_t b;
    struct joined_group group;
    int entries; /* -1: left apart */
    int tiles;   /* at least 1 */
};
static __device__ __forceinline__ struct slots slots_of_query(const struct kp_mla_bwd *p, const struct work *w, int r) {
    return slots_of(&p->in, w->b, w->group.query + r);
}
static __device__ __forceinline__ int tiles_apart(const struct kp_mla_bwd *p, const struct work *w, int r) {
    return max(1, (slots_of_query(p, w, r).n + KEYS - 1) / KEYS);
}
static __device__ __forceinline__ int next_work(const struct kp_mla_bwd *p, struct work *w, int64_t number) {
    if (number >= p->n) return 0;
    w->number = number;
    w->group = joined_group_of(lists_of(p), p->in.seq_q, (int)(p->first + number));
    w->b = w->group.b;
    w->entries = joined_entries(&w->group);
    w->tiles = max(1, (w->entries + KEYS - 1) / KEYS);
    if (w->entries >= 0) return 1;
    w->tiles = 0;
#pragma unroll 1
    for (int r = 0; r < w->group.queries; r++) w->tiles += tiles_apart(p, w, r);
    return 1;
}

/* ---- rows: queries and their heads ---- */

static __device__ __forceinline__ int query_of_row(const struct kp_mla_bwd *p, int row) {
    return row >> lists_of(p)->shift;
}
static __device__ __forceinline__ int head_of_row(const struct kp_mla_bwd *p, int row) {
    return row & ((1 << lists_of(p)->shift) - 1);
}
/* Steps of 16 rows that sums over all rows have. */
static __device__ __forceinline__ int steps_of_rows(const struct work *) { return HEADS / 16; }
/* Of the row's state; -1: there is no such row. */
static __device__ __forceinline__ int64_t state_of_row(const struct kp_mla_bwd *p, const struct work *w, int row) {
    const int r = query_of_row(p, row), h = head_of_row(p, row);
    if (r >= w->group.queries || h >= p->in.heads_q) return -1;
    return (w->b * p->in.seq_q + w->group.query + r) * p->in.heads_q + h;
}
static __device__ __forceinline__ uint16_t *dq_of_row(const struct kp_mla_bwd *p, const struct work *w, int row) {
    return (uint16_t *)p->dq.data + w->b * p->dq.batch + (w->group.query + query_of_row(p, row)) * p->dq.row +
           head_of_row(p, row) * p->dq.head;
}
/* Where a CTA's rows begin in the maps of q and dout: head, query. */
static __device__ __forceinline__ int2 box_of_rows(const struct kp_mla_bwd *p, const struct work *w, int rank) {
    return make_int2(0, w->group.query + (rank * CTA_HEADS >> lists_of(p)->shift));
}

/* ---- tiles of entries ---- */

/* Of a group left apart: whose list a tile is of, x, and the tile's place in it, y. */
static __device__ __forceinline__ int2 tile_apart(const struct kp_mla_bwd *p, const struct work *w, int t) {
    int r = 0, tiles = tiles_apart(p, w, 0);
#pragma unroll 1
    for (; t >= tiles; tiles = tiles_apart(p, w, r)) t -= tiles, r++;
    return make_int2(r, t);
}
/* Row of kv's map that entry `slot` of a tile names, -1: none; query >= 0: none without its bit. */
static __device__ __forceinline__ int row_of_slot(const struct kp_mla_bwd *p, const struct work *w, int t, int slot,
                                                  int64_t row0, int query) {
    const struct kp_mla_joined *j = lists_of(p);
    if (w->entries < 0) {
        const int2 tile_in_list = tile_apart(p, w, t);
        const struct slots s = slots_of_query(p, w, tile_in_list.x);
        return map_row(&s, tile_in_list.y * KEYS + slot, row0);
    }
    if (t * KEYS + slot >= w->entries) return -1;
    if (query >= 0) {
        const int32_t bits = w->group.words[j->bits + (t * j->group + query) * 2 + slot / 32];
        if (!((uint32_t)bits >> slot % 32 & 1)) return -1;
    }
    return (int)(row0 + w->group.words[j->keys + t * KEYS + slot]);
}
/* Deterministic: rows that a work tile's entries may leave, and which kv row each of a tile's 64 is of, two a lane: the
 * list by which mla_bwd_sort.cu and mla_bwd_sum.cu add them up, as if the group were a query and this its slots. */
static __device__ __forceinline__ int64_t rows_of_work(const struct kp_mla_bwd *p) {
    return ((const struct kp_mla_bwd_sm100 *)p)->tiles * KEYS;
}
static __device__ __forceinline__ void list_entries(const struct kp_mla_bwd *p, const struct work *w, int t,
                                                    const int rows[2]) {
    const struct kp_mla_bwd_sm100 *all = (const struct kp_mla_bwd_sm100 *)p;
    int32_t *list = (int32_t *)all->lists + w->number * rows_of_work(p) + t * KEYS + lane_of();
    if (cluster_rank() != 0 || !all->lists) return;
    list[0] = rows[0], list[32] = rows[1];
    if (t == 0 && lane_of() == 0) ((int32_t *)all->lengths)[w->number] = w->tiles * KEYS;
}
/* Word `word` of a tile's bits: 32 entries word % 2 of query word / 2; valid: of a list left apart, of entries 32 k ..
 */
static __device__ __forceinline__ uint32_t bits_of_tile(const struct kp_mla_bwd *p, const struct work *w, int t,
                                                        int word, const uint32_t valid[2]) {
    const struct kp_mla_joined *j = lists_of(p);
    if (w->entries < 0) return word / 2 == tile_apart(p, w, t).x ? (word % 2 ? valid[1] : valid[0]) : 0;
    if (t * KEYS >= w->entries || word >= 2 * j->group) return 0;
    return (uint32_t)w->group.words[j->bits + t * j->group * 2 + word];
}

/* ---- in how many rounds rows of the work tile are summed: all at once, or each query's ---- */

struct rounds {
    int from, until, whole;
};
/* Of a tile's dKV. */
static __device__ __forceinline__ struct rounds rounds_of_tile(const struct kp_mla_bwd *p, const struct work *w, int t,
                                                               int odd) {
    struct rounds x = {0, odd ? w->group.queries : 1, !odd};
    if (w->entries >= 0) return x;
    x.from = tile_apart(p, w, t).x, x.until = x.from + 1, x.whole = 0;
    return x;
}
/* Of the second pass. */
static __device__ __forceinline__ struct rounds rounds_of_dq(const struct work *w, int odd) {
    const int each = odd || w->entries < 0;
    struct rounds x = {0, each ? w->group.queries : 1, !each};
    return x;
}
/* Tiles of a round of dQ: from x on, before y. */
static __device__ __forceinline__ int2 tiles_of_round(const struct kp_mla_bwd *p, const struct work *w, int query) {
    int from = 0;
    if (w->entries >= 0) return make_int2(0, w->tiles);
#pragma unroll 1
    for (int r = 0; r < query; r++) from += tiles_apart(p, w, r);
    return make_int2(from, from + tiles_apart(p, w, query));
}
#endif
