/* SPDX-License-Identifier: MIT
 * mla_fwd on Hopper: which piece of work comes when. Producers and consumers ask for the same pieces in the same order.
 *
 * Without joined lists a piece is a query and 64 of its heads, or `length` tiles of that. With them (JOINED) it is a
 * group of neighbouring queries and its joined list: row r << shift | h of the tile is head h of query r. A query that
 * is taken alone, by its own list, has rows 0 .. heads - 1. That is done for groups left apart and, after all others,
 * for groups with a row that is not finite: a value that one query names and another does not comes to the other's
 * row as 0 times it, which is no 0 if the value is not finite. */
#ifndef ATTN_SM90_MLA_FWD_WORK_H
#define ATTN_SM90_MLA_FWD_WORK_H
#include "kernels/device/joined.h"
#include "kernels/sm90/gather.h"

#ifdef CFG_JOINED
constexpr int JOINED = CFG_JOINED;
#else
constexpr int JOINED = 0;
#endif

/* APART: the launch has work only where most groups of its joined lists are left apart, JOINED: only where not, if the
 * word at `gate` says so (KP_JOINED_WORK_MOST). It stands in a field that such launches do not use. */
#ifdef CFG_APART
constexpr int APART = CFG_APART;
static __device__ __forceinline__ uint64_t gate_of(const struct kp_mla_fwd_sm90 *kp) { return kp->marks; }
#else
constexpr int APART = 0;
static __device__ __forceinline__ uint64_t gate_of(const struct kp_mla_fwd_sm90 *kp) { return JOINED ? kp->part_o : 0; }
#endif
static __device__ __forceinline__ int has_work(const struct kp_mla_fwd_sm90 *kp) {
    const uint64_t gate = gate_of(kp);
    return !gate || (*(const int32_t *)gate != 0) == APART;
}

/* JOINED: groups of the CTA so far, 1 the second time through them, and which query of the group is taken alone, from
 * 1, or 0: in one register. */
struct group_cursor {
    int groups : 26;
    uint32_t second : 1, alone : 5;
};

struct piece {
    struct work_tile w;     /* JOINED: b alone */
    struct slots s;         /* of the query; JOINED: or of the group */
    int first, tiles, part; /* part: -1 if the query is whole */
    int64_t pieces;         /* that came before */
    /* JOINED */
    struct group_cursor cursor;
};
static __device__ __forceinline__ void start_pieces(struct piece *x) { x->pieces = 0, x->cursor = {0, 0, 0}; }

/* Nonzero if the CTA has a piece number n. */
static __device__ __forceinline__ int piece_of(const struct kp_mla_fwd_sm90 *kp, int64_t n, struct piece *x) {
    const struct kp_mla *p = &kp->in;
    int64_t work_tile = kp->from + blockIdx.x + n * gridDim.x;
    x->first = 0, x->part = -1;
    if (kp->parts > 1 && n >= kp->whole) {
        if (n > kp->whole) return 0;
        const int cut_tile = (int)blockIdx.x / kp->parts;
        x->part = (int)blockIdx.x - cut_tile * kp->parts;
        x->first = x->part * kp->length;
        work_tile = kp->from + kp->whole * gridDim.x + cut_tile;
    }
    if (work_tile >= kp->until) return 0;
    x->w = work_tile_of(p, work_tile);
    x->s = slots_of(p, x->w.b, x->w.i);
    x->tiles = (x->s.n + 63) / 64 - x->first;
    if (x->part >= 0) x->tiles = x->tiles < 0 ? 0 : x->tiles < kp->length ? x->tiles : kp->length;
    return 1;
}

/* The place among the launch's marks of the CTA's n-th group. */
static __device__ __forceinline__ int mark_of(int n) { return (int)(blockIdx.x + (uint32_t)n * gridDim.x); }

/* The CTA's n-th group, from 1. */
static __device__ __forceinline__ struct joined_group group_of(const struct kp_mla_fwd_sm90 *kp, int n) {
    return joined_group_of(&kp->joined, kp->in.seq_q, (int)kp->from + mark_of(n - 1));
}

/* Marks of all groups are written when every warp of the CTA has come to barrier `marks`; marked_at: a word of shared
 * memory, nonzero if there is one. */
static __device__ __forceinline__ int next_group(const struct kp_mla_fwd_sm90 *kp, int marks, uint32_t marked_at,
                                                 struct piece *x) {
    int n = x->cursor.groups, alone = (int)x->cursor.alone, second = (int)x->cursor.second, entries = -1;
    if (alone && alone++ == group_of(kp, n).queries) alone = 0;
    if (!alone) {
        for (;; n++) {
            if (kp->from + mark_of(n) >= kp->until) {
                if (second) return 0;
                named_sync(marks, KP_MLA_FWD_SM90_THREADS);
                if (!shared_load32(marked_at)) return 0;
                second = 1, n = 0;
            }
            if (!second || ((const volatile uint64_t *)kp->marks)[mark_of(n)]) break;
        }
        n++;
        const struct joined_group g = group_of(kp, n);
        if (!second) entries = joined_entries(&g);
        alone = entries < 0;
    }
    const struct joined_group g = group_of(kp, n);
    x->cursor = {n, (uint32_t)second, (uint32_t)alone};
    x->w.b = g.b;
    if (!alone) {
        x->s.idx = g.words + kp->joined.keys;
        x->s.n = entries;
        x->s.keys = (uint32_t)kp->in.seq_k;
    } else {
        x->s = slots_of(&kp->in, g.b, g.query + alone - 1);
    }
    x->tiles = (x->s.n + 63) / 64;
    return 1;
}
/* What the rows of the tile are: queries from `query` on, `queries` of them. */
static __device__ __forceinline__ struct joined_group rows_of(const struct kp_mla_fwd_sm90 *kp, struct group_cursor x) {
    struct joined_group g = group_of(kp, x.groups);
    if (x.alone) g.query += (int)x.alone - 1, g.queries = 1;
    return g;
}

static __device__ __forceinline__ int next_piece(const struct kp_mla_fwd_sm90 *kp, int marks, uint32_t marked_at,
                                                 struct piece *x) {
    x->first = 0, x->part = -1;
    if (JOINED) return next_group(kp, marks, marked_at, x);
    return piece_of(kp, x->pieces++, x);
}

/* Which tile of the query is the piece's t-th. Every second 64 heads of a query take the tiles of a pair the other way
 * round: CTAs of a query then bring different rows at a time, and find every second tile in the second-level cache,
 * where another has just brought it. */
static __device__ __forceinline__ int tile_at(const struct piece *x, int t) {
    if (JOINED) return t;
    const int swapped = t ^ (x->w.head >> 6 & 1);
    return x->first + (swapped < x->tiles ? swapped : t);
}

/* Rows of q of a group's queries; what does not exist is zeros. */
static __device__ __forceinline__ void group_rows(const struct kp_mla_fwd_sm90 *kp, struct rows *r,
                                                  const struct piece *x) {
    const struct kp_view *v = &kp->in.q;
    const struct joined_group g = rows_of(kp, x->cursor);
    const int p = (int)threadIdx.x & 127, shift = kp->joined.shift;
    const uint16_t *base = (const uint16_t *)v->data + g.b * v->batch + g.query * v->row + (p & 7) * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int row = (p >> 3) + 16 * k, query = row >> shift, h = row - (query << shift);
        const int inside = query < g.queries && h < kp->in.heads_q;
        r->bytes[k] = inside ? 16 : 0;
        r->from[k] = base + (inside ? query * v->row + h * v->head : 0);
    }
}
#endif
