/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu and of mla_fwd_h64.cu: what a pair of CTAs (CTAS) works on, or one CTA: 128 heads (HEADS) of one
 * query, or 64, and all of its slots or a part. group.h has the same names for joined lists. Whoever includes this file
 * defines CTAS, HEADS, KEYS, the slots of a tile, and head_of(), the thread's head. */
#ifndef ATTN_SM100_MLA_FWD_QUERY_H
#define ATTN_SM100_MLA_FWD_QUERY_H
#include "kernels/params/mla_sm100.h"
#include "kernels/sm100/roles.h"

/* Every role walks the work tiles itself. */
struct work {
    int64_t b, i;
    int head0, heads; /* first head; that exist */
    int part, first;  /* which one; its first tile of the query's */
    int tiles;        /* at least 1 */
    struct slots slots;
};
typedef int64_t cursor; /* the work tile's number */
static __device__ __forceinline__ cursor start_cursor(uint32_t, int) { return blockIdx.x / CTAS; }
static __device__ __forceinline__ cursor step_cursor(cursor x) { return x + gridDim.x / CTAS; }
static __device__ __forceinline__ int next_work(const struct kp_mla_fwd_sm100 *p, struct work *w, cursor number) {
    if (number >= p->works) return 0;
    const int64_t rows = number / p->splits, query = rows / p->blocks;
    w->b = query / p->in.seq_q;
    w->i = query - w->b * p->in.seq_q;
    w->head0 = (int)(rows - query * p->blocks) * HEADS;
    w->heads = min(p->in.heads_q - w->head0, HEADS);
    w->slots = slots_of(&p->in, w->b, w->i);
    w->part = (int)(number - rows * p->splits);
    w->first = w->part * (int)p->share;
    w->tiles = min(max(1, (w->slots.n + KEYS - 1) / KEYS - w->first), (int)p->share);
    return 1;
}

/* ---- the thread's row: a head ---- */

static __device__ __forceinline__ int row_exists(const struct kp_mla_fwd_sm100 *, const struct work *w) {
    return head_of() < w->heads;
}
static __device__ __forceinline__ int head_of_row(const struct kp_mla_fwd_sm100 *, const struct work *w) {
    return w->head0 + head_of();
}
static __device__ __forceinline__ int64_t query_of_row(const struct kp_mla_fwd_sm100 *, const struct work *w) {
    return w->i;
}

/* ---- keys of a tile ---- */

/* Words of a tile in shared memory: bits of this CTA's 32 keys. */
constexpr uint32_t VALID_WORDS = 1;
/* The warp of copies: what tile t has. rows0, rows1: of slots lane and 32 + lane, below 0: not valid. */
static __device__ __forceinline__ uint32_t valid_word(const struct kp_mla_fwd_sm100 *, const struct work *, int,
                                                      int rank, int rows0, int rows1) {
    return __ballot_sync(~0u, (rank ? rows1 : rows0) >= 0);
}
/* The thread's word. */
static __device__ __forceinline__ uint32_t place_of_word(const struct kp_mla_fwd_sm100 *) { return 0; }

/* ---- what group.h has beyond one query; nobody calls it ---- */

static __device__ __forceinline__ void leave_odd(const struct kp_mla_fwd_sm100 *, cursor, const struct work *, uint32_t,
                                                 int, uint32_t, int) {}
static __device__ __forceinline__ int comes_again(uint32_t, uint32_t) { return 0; }
#endif
