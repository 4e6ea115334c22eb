/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu over joined lists (docs/joined_lists.md): what a pair of CTAs works on is a group of 2, 4, 8 or 16
 * neighbouring queries, which share 128 rows: row r << shift | h is head h of query r. Slots are entries of the group's
 * list, whose bits say which queries have them: S of a cleared bit is hidden before maximum and sum, and P is 0 there.
 * query.h has the same names for one query.
 *
 * A group that is left apart comes query by query, each with its own list in rows 0 .. heads - 1; the other rows hold
 * heads of the queries that follow, have no key, and are not stored.
 *
 * Values that are not finite. O makes NaN of P = 0 and what is not finite: a row of K, whose columns are V, would reach
 * the out of queries that do not have it. It shows in the raw score of that very cell. So warps of softmax look at
 * scores of cleared bits; a group in which one is not finite is not stored, is marked, a byte a warp, and comes again
 * after the pair's last group, query by query: then only rows are multiplied that the query names itself. */
#ifndef ATTN_SM100_MLA_FWD_GROUP_H
#define ATTN_SM100_MLA_FWD_GROUP_H
#include "kernels/device/f32x2.h"
#include "kernels/device/joined.h"
#include "kernels/sm100/mla_fwd/layout.h"

static __device__ __forceinline__ const struct kp_mla_fwd_joined_sm100 *all_of(const struct kp_mla_fwd_sm100 *p) {
    return (const struct kp_mla_fwd_joined_sm100 *)p; /* p is its first member */
}
static __device__ __forceinline__ const struct kp_mla_joined *lists_of(const struct kp_mla_fwd_sm100 *p) {
    return &all_of(p)->joined;
}

/* Every role walks the work tiles itself. */
struct work {
    int64_t b, i; /* first query */
    int queries;  /* that exist */
    int alone;    /* -1: the group's list; else the query of the group whose own list it is */
    int head0, first, tiles;
    struct slots slots; /* of the query, or entries of the group */
};
struct cursor {
    int64_t number;  /* of the launch's groups: the last one; before the first: less */
    int alone, last; /* of the work tile before; the group's last query */
    int again;       /* groups that are marked */
    uint32_t base;
    int tells; /* a role that marks; odd: it has */
    uint32_t odd;
};
static __device__ __forceinline__ struct cursor start_cursor(uint32_t base, int tells) {
    const struct cursor x = {(int64_t)(blockIdx.x >> 1) - (gridDim.x >> 1), -1, -1, 0, base, tells, 0};
    return x;
}
static __device__ __forceinline__ const cursor &step_cursor(const cursor &x) { return x; }

/* Whether a group of the pair comes again: known when all warps of softmax of both CTAs have done all groups. */
static __device__ __forceinline__ int any_marked(const struct cursor *x) {
    const uint32_t cells = x->base + AT_MARKED;
    if (x->tells) {
        const int rank = (int)cluster_rank();
        const uint32_t cell = cells + 4 * (uint32_t)(4 * rank + warp_of() % 4);
        if (lane_of() == 0) {
            shared_store32(cell, x->odd);
            cluster_store32(cluster_address(cell, 1 - (uint32_t)rank), x->odd);
        }
        tell_written(x->base, rank, MARKS_FULL);
        tell_written(x->base, 1 - rank, MARKS_FULL);
    }
    await_other(x->base, MARKS_FULL, 0);
    const uint4 y = shared_load128(cells), z = shared_load128(cells + 16);
    return (y.x | y.y | y.z | y.w | z.x | z.y | z.z | z.w) != 0;
}
/* The next group of the pair; 0: there is none. */
static __device__ __forceinline__ int next_group(const struct kp_mla_fwd_sm100 *p, struct cursor *x) {
    const volatile uint64_t *marks = (const volatile uint64_t *)all_of(p)->marks;
#pragma unroll 1
    for (;;) {
        x->number += gridDim.x >> 1;
        if (x->number < p->works) {
            if (!x->again || marks[x->number]) return 1;
        } else {
            if (x->again || !any_marked(x)) return 0;
            x->again = 1;
            x->number = (int64_t)(blockIdx.x >> 1) - (gridDim.x >> 1);
        }
    }
}
static __device__ __forceinline__ int next_work(const struct kp_mla_fwd_sm100 *p, struct work *w, cursor &x) {
    const struct kp_mla_joined *j = lists_of(p);
    const int same_group = x.alone < x.last;
    if (!same_group && !next_group(p, &x)) return 0;
    const struct joined_group g = joined_group_of(j, p->in.seq_q, (int)(all_of(p)->from + x.number));
    if (same_group) {
        x.alone++;
    } else {
        const int entries = x.again ? -1 : joined_entries(&g);
        x.alone = entries < 0 ? 0 : -1;
        x.last = entries < 0 ? g.queries - 1 : -1;
        w->slots.idx = g.words + j->keys;
        w->slots.n = entries;
        w->slots.keys = (uint32_t)p->in.seq_k;
    }
    w->alone = x.alone;
    w->b = g.b, w->i = g.query, w->queries = g.queries;
    w->head0 = w->first = 0;
    if (w->alone >= 0) {
        w->i += w->alone, w->queries = 1;
        w->slots = slots_of(&p->in, w->b, w->i);
    }
    w->tiles = max(1, (w->slots.n + KEYS - 1) / KEYS);
    return 1;
}

/* ---- the thread's row: a query and its head ---- */

static __device__ __forceinline__ int place_of_query(const struct kp_mla_fwd_sm100 *p) {
    return head_of() >> lists_of(p)->shift;
}
static __device__ __forceinline__ int head_of_row(const struct kp_mla_fwd_sm100 *p, const struct work *) {
    return head_of() & ((1 << lists_of(p)->shift) - 1);
}
static __device__ __forceinline__ int row_exists(const struct kp_mla_fwd_sm100 *p, const struct work *w) {
    return place_of_query(p) < w->queries && head_of_row(p, w) < p->in.heads_q;
}
static __device__ __forceinline__ int64_t query_of_row(const struct kp_mla_fwd_sm100 *p, const struct work *w) {
    return w->i + place_of_query(p);
}

/* ---- keys of a tile ---- */

/* Words of a tile in shared memory: of each query, bits of this CTA's 32 keys. */
constexpr uint32_t VALID_WORDS = 16;
/* The warp of copies: the lane's word of tile t. rows0, rows1: of slots lane and 32 + lane, below 0: not valid. */
static __device__ __forceinline__ uint32_t valid_word(const struct kp_mla_fwd_sm100 *p, const struct work *w, int t,
                                                      int rank, int rows0, int rows1) {
    const struct kp_mla_joined *j = lists_of(p);
    const int r = lane_of();
    const uint32_t alone = __ballot_sync(~0u, (rank ? rows1 : rows0) >= 0);
    if (w->alone >= 0) return r == 0 ? alone : 0;
    if (t * KEYS >= w->slots.n || r >= w->queries) return 0;
    return (uint32_t)w->slots.idx[j->bits - j->keys + (t * j->group + r) * 2 + rank];
}
/* The thread's word. */
static __device__ __forceinline__ uint32_t place_of_word(const struct kp_mla_fwd_sm100 *p) {
    return (uint32_t)place_of_query(p);
}

/* ---- values that are not finite ---- */

/* A score of a bit that is not set is not finite: looked for only where one of the row's is not. */
static __device__ __forceinline__ int hides_odd(const struct kp_mla_fwd_sm100 *p, const struct work *w,
                                                const uint64_t s[CTA_KEYS / 2], uint32_t valid) {
    uint64_t all = 0;
    float sum = 0;
    if (valid == ~0u || w->alone >= 0 || !row_exists(p, w)) return 0;
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 2; c++) all = fma_f32x2(s[c], 0, all);
    const float2 y = floats_of(all);
    if (y.x + y.y == 0) return 0;
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 2; c++) {
        const float2 z = floats_of(s[c]);
        if (!(valid >> 2 * c & 1)) sum = __fmaf_rn(z.x, 0, sum);
        if (!(valid >> (2 * c + 1) & 1)) sum = __fmaf_rn(z.y, 0, sum);
    }
    return !(sum == 0);
}
/* A warp of softmax, after the work tile's last: to both CTAs' corrections, and the group's mark. */
static __device__ __forceinline__ void leave_odd(const struct kp_mla_fwd_sm100 *p, cursor &x, const struct work *w,
                                                 uint32_t base, int rank, uint32_t n, int odd) {
    const uint32_t word = __any_sync(~0u, odd), warp = (uint32_t)(4 * rank + warp_of() % 4);
    const uint32_t cell = base + AT_ODD + n % 2 * 32 + 4 * warp;
    if (lane_of() != 0) return;
    shared_store32(cell, word);
    cluster_store32(cluster_address(cell, 1 - (uint32_t)rank), word);
    if (x.again || w->alone > 0) return;
    x.odd |= word;
    ((uint8_t *)all_of(p)->marks)[8 * x.number + warp] = (uint8_t)word;
}
/* After SUMS_FULL: the work tile is not stored. */
static __device__ __forceinline__ int comes_again(uint32_t base, uint32_t n) {
    const uint4 y = shared_load128(base + AT_ODD + n % 2 * 32), z = shared_load128(base + AT_ODD + n % 2 * 32 + 16);
    return (y.x | y.y | y.z | y.w | z.x | z.y | z.z | z.w) != 0;
}
#endif
