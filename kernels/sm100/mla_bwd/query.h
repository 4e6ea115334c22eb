/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: what a pair of CTAs works on, 128 or 64 heads of one query and its slots. group.h has the
 * same names for joined lists. */
#ifndef ATTN_SM100_MLA_BWD_QUERY_H
#define ATTN_SM100_MLA_BWD_QUERY_H
#include "kernels/sm100/mla_bwd/layout.h"

/* Every role walks the work tiles by itself. */
struct work {
    int64_t number, flat, b, i; /* of the launch; query: b * SQ + i */
    int head0, heads;           /* first head; that exist */
    int block;
    int tiles; /* at least 1 */
    struct slots slots;
};
static __device__ __forceinline__ int next_work(const struct kp_mla_bwd *p, struct work *w, int64_t number) {
    if (number >= p->n * p->head_blocks) return 0;
    w->number = number;
    w->flat = p->first + number / p->head_blocks;
    w->block = (int)(number % p->head_blocks);
    w->b = w->flat / p->in.seq_q;
    w->i = w->flat % p->in.seq_q;
    w->head0 = w->block * HEADS;
    w->heads = min(p->in.heads_q - w->head0, HEADS);
    w->slots = slots_of(&p->in, w->b, w->i);
    w->tiles = max(1, (w->slots.n + KEYS - 1) / KEYS);
    return 1;
}

/* ---- rows: heads ---- */

static __device__ __forceinline__ int query_of_row(const struct kp_mla_bwd *, int) { return 0; }
/* Steps of 16 rows that sums over rows have: none for heads that do not exist. */
static __device__ __forceinline__ int steps_of_rows(const struct work *w) { return (w->heads + 15) / 16; }
/* What group.h has beyond one query; nobody calls it. */
static __device__ __forceinline__ const struct kp_mla_joined *lists_of(const struct kp_mla_bwd *p) {
    return &((const struct kp_mla_bwd_sm100 *)p)->joined;
}
/* Of the row's state; -1: there is no such row. */
static __device__ __forceinline__ int64_t state_of_row(const struct kp_mla_bwd *p, const struct work *w, int row) {
    return row < w->heads ? w->flat * p->in.heads_q + w->head0 + row : -1;
}
static __device__ __forceinline__ uint16_t *dq_of_row(const struct kp_mla_bwd *p, const struct work *w, int row) {
    return (uint16_t *)p->dq.data + w->b * p->dq.batch + w->i * p->dq.row + (w->head0 + row) * p->dq.head;
}
/* Where a CTA's rows begin in the maps of q and dout: head, query. */
static __device__ __forceinline__ int2 box_of_rows(const struct kp_mla_bwd *, const struct work *w, int rank) {
    return make_int2(w->head0 + rank * CTA_HEADS, (int)w->i);
}

/* ---- tiles of slots ---- */

/* Row of kv's map that slot `slot` of a tile names, -1: none. */
static __device__ __forceinline__ int row_of_slot(const struct kp_mla_bwd *, const struct work *w, int t, int slot,
                                                  int64_t row0, int) {
    return map_row(&w->slots, t * KEYS + slot, row0);
}
/* Deterministic: rows that a work tile's slots may leave; nothing to say which of them. */
static __device__ __forceinline__ int64_t rows_of_work(const struct kp_mla_bwd *p) { return p->in.topk; }
static __device__ __forceinline__ void list_entries(const struct kp_mla_bwd *, const struct work *, int, const int *) {}
/* Word `word` of a tile's bits; valid: of slots 32 k .. */
static __device__ __forceinline__ uint32_t bits_of_tile(const struct kp_mla_bwd *, const struct work *, int, int word,
                                                        const uint32_t valid[2]) {
    return word ? valid[1] : valid[0];
}

/* ---- in how many rounds rows of the work tile are summed: one ---- */

struct rounds {
    int from, until, whole;
};
static __device__ __forceinline__ struct rounds rounds_of_tile(const struct kp_mla_bwd *, const struct work *, int,
                                                               int) {
    struct rounds x = {0, 1, 1};
    return x;
}
static __device__ __forceinline__ struct rounds rounds_of_dq(const struct work *, int) {
    struct rounds x = {0, 1, 1};
    return x;
}
/* Tiles of a round of dQ: from x on, before y. */
static __device__ __forceinline__ int2 tiles_of_round(const struct kp_mla_bwd *, const struct work *w, int) {
    return make_int2(0, w->tiles);
}
#endif
