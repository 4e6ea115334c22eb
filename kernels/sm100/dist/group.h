/* SPDX-License-Identifier: MIT
 * Part of dist.cu over joined lists (docs/joined_lists.md): what a pair of CTAs works on is a group of 2, 4, 8 or 16
 * neighbouring queries: column r << shift | h of S^T is head h of query r, and a lane has an entry of the group's list.
 * query.h has the same names for one query.
 *
 * A thread sums the heads of each query of its entry. These sums go to `values`, by entry, from where
 * kernels/smxx/mla_bwd_finish.cu (JOINED_DIST) takes those that a query's slots name. So no bits are read: a sum that
 * no slot names, and what is not finite in it, goes nowhere.
 *
 * A group that is left apart comes query by query, each with its own list in columns 0 .. heads - 1 and its sums by
 * slot. */
#ifndef ATTN_SM100_DIST_GROUP_H
#define ATTN_SM100_DIST_GROUP_H
#include "kernels/device/joined.h"

/* Tiles 0 .. last - 1 of the list. */
struct work {
    int64_t b, i; /* first query */
    int queries;  /* that exist */
    int first, last;
    int64_t place; /* of the first query among those of the launch's groups, short ones having as many as others */
    struct slots slots;
};
struct cursor {
    int64_t number;  /* of the launch's groups: the last one; before the first: less */
    int alone, last; /* -1, or the query whose own list it was; the group's last query then */
};
static __device__ __forceinline__ struct cursor start_cursor(void) {
    const struct cursor x = {(int64_t)(blockIdx.x >> 1) - (gridDim.x >> 1), -1, -1};
    return x;
}
static __device__ __forceinline__ const cursor &step_cursor(const cursor &x) { return x; }
static __device__ __forceinline__ int next_work(const struct kp_dist_sm100 *p, struct work *w, cursor &x) {
    const struct kp_mla *in = &p->dist.in;
    const struct kp_mla_joined *j = &p->joined;
    const int same_group = x.alone < x.last;
    if (!same_group) x.number += gridDim.x >> 1;
    if (x.number >= p->dist.work_tiles) return 0;
    const struct joined_group g = joined_group_of(j, in->seq_q, (int)(p->from + x.number));
    if (same_group) {
        x.alone++;
    } else {
        const int entries = joined_entries(&g);
        x.alone = entries < 0 ? 0 : -1;
        x.last = entries < 0 ? g.queries - 1 : -1;
        w->slots.idx = g.words + j->keys;
        w->slots.n = entries;
        w->slots.keys = (uint32_t)in->seq_k;
    }
    w->b = g.b, w->i = g.query, w->queries = g.queries;
    w->place = x.number * j->group;
    if (x.alone >= 0) {
        w->i += x.alone, w->place += x.alone, w->queries = 1;
        w->slots = slots_of(in, w->b, w->i);
    }
    w->first = 0;
    w->last = (w->slots.n + KEYS - 1) / KEYS;
    return 1;
}

/* Where a CTA's columns begin in the map of q. */
static __device__ __forceinline__ int first_head(int) { return 0; }
static __device__ __forceinline__ int first_query(const struct kp_dist_sm100 *p, const struct work *w, int rank) {
    return (int)w->i + (rank * (HEADS / 2) >> p->joined.shift);
}
#endif
