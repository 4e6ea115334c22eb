/* SPDX-License-Identifier: MIT
 * Part of dist.cu: what a pair of CTAs works on, one query's slots or a part of them. group.h has the same names for
 * joined lists. */
#ifndef ATTN_SM100_DIST_QUERY_H
#define ATTN_SM100_DIST_QUERY_H

/* Tiles first .. last - 1 of a query's list; slots from last on up to `end` are the work tile's, too, without a key. */
struct work {
    int64_t b, i;
    int first, last, end;
    struct slots slots;
};
typedef int64_t cursor; /* the work tile's number */
static __device__ __forceinline__ cursor start_cursor(void) { return blockIdx.x >> 1; }
static __device__ __forceinline__ cursor step_cursor(cursor x) { return x + (gridDim.x >> 1); }
static __device__ __forceinline__ int next_work(const struct kp_dist_sm100 *p, struct work *w, cursor number) {
    const struct kp_mla *in = &p->dist.in;
    if (number >= p->dist.work_tiles) return 0;
    const int64_t query = number / p->dist.splits;
    const int part = (int)(number - query * p->dist.splits), share = (int)p->share;
    w->b = query / in->seq_q;
    w->i = query - w->b * in->seq_q;
    w->slots = slots_of(in, w->b, w->i);
    const int tiles = (w->slots.n + KEYS - 1) / KEYS, all = (in->topk + KEYS - 1) / KEYS;
    w->first = part * share;
    w->end = min(w->first + share, all);
    w->last = min(w->end, tiles);
    return 1;
}

/* Where a CTA's columns begin in the map of q. */
static __device__ __forceinline__ int first_head(int rank) { return rank * (HEADS / 2); }
static __device__ __forceinline__ int first_query(const struct kp_dist_sm100 *, const struct work *w, int) {
    return (int)w->i;
}
#endif
