/* SPDX-License-Identifier: MIT
 * Dense backward by key tiles on tensor maps: which tile a CTA has, and which row tiles it walks. The kernel's file
 * defines, before it includes this one, the constants ROWS, KEYS, and KEPT: where struct work stands in shared
 * memory. */
#ifndef ATTN_DEVICE_SDPA_BWD_WORK_H
#define ATTN_DEVICE_SDPA_BWD_WORK_H
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/device/shared.h"

/* What all threads of the CTA know about its key tile. */
struct work {
    struct sequence seq;
    int b, head_k, key_tile, j0;
    int off;            /* diagonal offset */
    int first, n_tiles; /* row tiles that see a key of the tile */
    int steps;          /* n_tiles times the heads of the group */
    int start;          /* the row tile that is first, counted from `first`; downwards from there, in a ring */
    int64_t stat0;      /* workspace row of query 0 */
};

/* Returns 0 if the tile lies past what belongs to its sequence and nothing is to be written. All lanes of a warp. The
 * host sees to less than 2^31 tiles. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_bwd *p, uint32_t number, struct work *w) {
    const uint32_t all = (uint32_t)p->in.batch * (uint32_t)p->in.heads_k, section = (uint32_t)p->section;
    const uint32_t first = number / (section * (uint32_t)p->key_tiles) * section, size = min(all - first, section);
    const uint32_t rest = number - first * (uint32_t)p->key_tiles, head = first + rest % size;
    w->key_tile = (int)(rest / size);
    w->b = (int)(head / (uint32_t)p->in.heads_k);
    w->head_k = (int)(head % (uint32_t)p->in.heads_k);
    w->seq = sequence_of(&p->in, w->b);
    w->j0 = w->key_tile * KEYS;
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->stat0 = p->in.cu_seqlens_q ? (w->seq.q0 + w->b * (int64_t)ROWS) / ROWS * ROWS /* first_stat_row */
                                  : w->b * ((int64_t)p->row_tiles * ROWS);
    w->first = w->n_tiles = w->steps = w->start = 0;
    if (w->j0 >= w->seq.keys) return 0;
    if (w->j0 >= w->seq.sk) return 1;
    const int j_last = min(w->j0 + KEYS, w->seq.sk) - 1;
    const int i0 = max(w->j0 - w->off - p->in.window_right, 0);
    const int i1 = min(j_last - w->off + p->in.window_left + 1, w->seq.sq);
    if (i1 <= i0 || p->in.window_right < -p->in.window_left) return 1;
    w->first = i0 / ROWS;
    w->n_tiles = (i1 + ROWS - 1) / ROWS - w->first;
    w->steps = w->n_tiles * (p->in.heads_q / p->in.heads_k);
    /* CTAs of a head start at different row tiles, or all would add to the same rows of dQ at once. In order all start
     * with the last one: a key tile then finds those before it done, whatever the mask hides. */
    w->start = p->turns ? w->n_tiles - 1 : (int)((uint32_t)w->key_tile * 5u % (uint32_t)w->n_tiles);
    return 1;
}

/* It waits in shared memory, not in registers. One thread; the caller sees to barriers. */
static __device__ __forceinline__ void keep_work(uint32_t shared, const struct work *w) {
    shared_store128(shared + KEPT, make_uint4(w->b, w->head_k, w->key_tile, w->off));
    shared_store128(shared + KEPT + 16, make_uint4(w->first, w->n_tiles, w->steps, w->start));
    shared_store128(shared + KEPT + 32, make_uint4(w->seq.sq, w->seq.sk, w->seq.keys, (uint32_t)w->seq.q0));
    shared_store128(shared + KEPT + 48,
                    make_uint4((uint32_t)w->seq.k0, 0, (uint32_t)w->stat0, (uint32_t)((uint64_t)w->stat0 >> 32)));
}
static __device__ __forceinline__ struct work recall_work(uint32_t shared) {
    const uint4 x = shared_load128(shared + KEPT), y = shared_load128(shared + KEPT + 16),
                z = shared_load128(shared + KEPT + 32), u = shared_load128(shared + KEPT + 48);
    struct work w;
    w.b = (int)x.x, w.head_k = (int)x.y, w.key_tile = (int)x.z, w.off = (int)x.w;
    w.first = (int)y.x, w.n_tiles = (int)y.y, w.steps = (int)y.z, w.start = (int)y.w;
    w.seq.sq = w.seq.rows = (int)z.x, w.seq.sk = (int)z.y, w.seq.keys = (int)z.z;
    w.seq.q0 = (int)z.w, w.seq.k0 = (int)u.x; /* packed rows are counted in 31 bits */
    w.stat0 = (int64_t)((uint64_t)u.w << 32 | u.z);
    w.j0 = w.key_tile * KEYS;
    return w;
}

static __device__ __forceinline__ int steps_of(uint32_t shared) { return (int)shared_load32(shared + KEPT + 24); }

/* A step: one row tile of one query head. */
struct step {
    int head, i0;
};
static __device__ __forceinline__ struct step first_step(const struct kp_sdpa_bwd *p, const struct work *w) {
    return (struct step){w->head_k * (p->in.heads_q / p->in.heads_k), (w->first + w->start) * ROWS};
}
/* The row tile before, in a ring; back where the head began, the next head. */
static __device__ __forceinline__ struct step step_after(const struct work *w, struct step s) {
    int tile = s.i0 / ROWS - w->first - 1;
    if (tile < 0) tile = w->n_tiles - 1;
    return (struct step){s.head + (tile == w->start), (w->first + tile) * ROWS};
}

/* What the compute warpgroups know of the step in a stage. */
struct place {
    int head, i0;
    int diagonal; /* key j0 is visible to query i0 if 0 <= diagonal <= span: first key - first query - offset + left */
    int hides;    /* some cell of the tile is hidden, or rows lie past the end of their sequence */
};
static __device__ __forceinline__ struct place place_of(const struct kp_sdpa_bwd *p, const struct work *w,
                                                        struct step s) {
    const int upper = s.i0 + w->off, lower = min(s.i0 + ROWS, w->seq.sq) - 1 + w->off;
    const int sees_all = w->j0 + KEYS <= w->seq.sk && w->j0 + KEYS - 1 <= upper + p->in.window_right &&
                         w->j0 >= lower - p->in.window_left && s.i0 + ROWS <= w->seq.sq;
    return (struct place){s.head, s.i0, w->j0 - upper + p->in.window_left, !sees_all};
}
#endif
