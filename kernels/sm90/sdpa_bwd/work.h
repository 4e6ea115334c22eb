/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: configuration of the variant, what stands where in shared memory, and what a CTA works on. The
 * picture and the rules stand there. */
#ifndef ATTN_SM90_SDPA_BWD_WORK_H
#define ATTN_SM90_SDPA_BWD_WORK_H
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_sm90.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, GROUPS = CFG_GROUPS, STAGES = CFG_STAGES;
constexpr int ROWS = KP_SDPA_BWD_SM90_ROWS, KEYS = 64 * GROUPS, SCALED = TYPE == KP_F16;
constexpr int MAIN_THREADS = 128 * GROUPS;
/* 504 registers a thread of each warpgroup; ptxas keeps 24 of a warpgroup from its sums. */
constexpr int DQ_COLUMNS = DIM == 64 ? 64 : 32, MAIN_REGISTERS = DIM == 64 ? 216 : 224,
              DQ_REGISTERS = DIM == 64 ? 72 : 48;
constexpr int N_CELLS = ROWS / 2, N_PACKED = ROWS / 4, N_GRAD = DIM / 2; /* registers of a thread: S and dP, P, dK */

/* Slices of 64 columns: wgmma.h. */
constexpr int K_SLICE = 128 * KEYS, Q_SLICE = 128 * ROWS, DS_SLICE = 128 * ROWS;
constexpr int K_BYTES = DIM / 64 * K_SLICE, Q_BYTES = DIM / 64 * Q_SLICE, DS_BYTES = GROUPS * DS_SLICE;
constexpr int K_TILE = 0, V_TILE = K_BYTES, ROWS_RING = 2 * K_BYTES;                      /* a stage: Q, dO */
constexpr int DS_RING = ROWS_RING + STAGES * 2 * Q_BYTES, STATS = DS_RING + 2 * DS_BYTES; /* a stage: lse, shift */
constexpr int BARRIERS = STATS + STAGES * 8 * ROWS;
constexpr int KEYS_FULL = BARRIERS, ROWS_FULL = BARRIERS + 8, ROWS_FREE = ROWS_FULL + 8 * STAGES,
              DS_FULL = ROWS_FREE + 8 * STAGES, DS_FREE = DS_FULL + 16;
constexpr int PLACES = BARRIERS + 128;                       /* struct place of each stage */
constexpr int KEPT = PLACES + 16 * STAGES, NEXT = KEPT + 64; /* struct work, the step to be copied next */
constexpr int ANY_BAD = NEXT + 8, TURN = NEXT + 16, BAD_KEYS = NEXT + 32, BAD_DOUT = BAD_KEYS + 32;
constexpr int FACTORS = BAD_DOUT + 16; /* f16: the factor of dS and what undoes it */
constexpr int BOUNDS = FACTORS + 16;   /* f16: of each warp */
constexpr int MAIN = 1, DQ = 2;        /* named barriers */
static_assert(BOUNDS + 16 * 4 * GROUPS <= BARRIERS + 640 && STAGES <= 4, "the room that the host counts");
static_assert(KEYS <= 256 && DIM % 64 == 0, "boxes, flags, slices");

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
static __device__ __forceinline__ struct place recall_place(uint32_t shared, int stage) {
    const uint4 x = shared_load128(shared + PLACES + 16 * stage);
    return (struct place){(int)x.x, (int)x.y, (int)x.z, (int)x.w};
}
#endif
