/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: configuration of the variant, what stands where in shared memory, and what a CTA works on. The
 * picture and the rules stand there. */
#ifndef ATTN_SM90_SDPA_FWD_WORK_H
#define ATTN_SM90_SDPA_FWD_WORK_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/sequence.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_sm90.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = CFG_DIM_V;
constexpr int GROUPS = CFG_GROUPS, KEYS = CFG_KEYS, Q_TILES = CFG_Q_TILES;
constexpr int ROWS = 64 * GROUPS, CONSUMERS = 128 * GROUPS;
constexpr int N_S = KEYS / 2, N_P = KEYS / 4, N_O = DIM_V / 2; /* registers of a thread: S, P, O */

/* Slices of 64 columns: wgmma.h. */
constexpr int Q_SLICE = 128 * ROWS, K_SLICE = 128 * KEYS;
constexpr int Q_BYTES = DIM / 64 * Q_SLICE, K_BYTES = DIM / 64 * K_SLICE, V_BYTES = DIM_V / 64 * K_SLICE;
constexpr int K_RING = Q_TILES * Q_BYTES, V_RING = K_RING + 2 * K_BYTES, BARRIERS = V_RING + 2 * V_BYTES;
/* mbarriers, two of each */
constexpr int Q_FULL = BARRIERS, Q_FREE = BARRIERS + 16, K_FULL = BARRIERS + 32, K_FREE = BARRIERS + 48,
              V_FULL = BARRIERS + 64, V_FREE = BARRIERS + 80;
constexpr int WORK = BARRIERS + 128;                       /* struct work of each tile of Q, packed: keep_work */
constexpr int TURN = 1, TILE_DONE = 4, VALUES_CLEARED = 7; /* named barriers; the first two have one a warpgroup */
static_assert(DIM % 64 == 0 && DIM_V % 64 == 0 && DIM_V <= DIM, "whole slices; the output takes the place of Q");
static_assert(KEYS % 16 == 0 && GROUPS <= 3 && Q_TILES <= 2, "products, barriers");

/* What all threads of the CTA know about its tile of query rows. */
struct work {
    struct sequence seq;
    int b, head;
    int row0;           /* first query */
    int off;            /* diagonal offset: query i stands at key i + off */
    int first, n_tiles; /* key tiles, the last one first */
};

static __device__ __forceinline__ int divided(int n, struct kp_divisor d) {
    return (int)((uint64_t)(uint32_t)n * d.factor >> d.shift);
}

/* The tile of query rows that the CTA has in round r: 1, or 0 without one, or -1 if no later round has one. Tiles of
 * equal length are taken in their order. Where lengths differ (causal), either
 *   pairs: two rounds take a head's longest and shortest tile that are left, whose lengths add up to the same; or
 *   few heads: the longest of all heads first; rounds go forth and back over the CTAs, so that whoever had the longest
 *   tile of a round has the shortest one of the next. */
static __device__ __forceinline__ int tile_of_round(const struct kp_sdpa_fwd_sm90 *maps, int r, int *head, int *tile) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    if (maps->pairs) {
        const int64_t x = (int64_t)(r >> 1) * gridDim.x + blockIdx.x;
        if (x >= p->items) return -1;
        *head = divided((int)x, maps->by_half);
        const int y = (int)x - *head * maps->half_tiles, other = p->row_tiles - 1 - y;
        *tile = r & 1 ? y : other;
        return !(r & 1) || y != other;
    }
    const int64_t x = (int64_t)r * gridDim.x + (r & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    if (x >= p->items) return -1;
    const int section = divided((int)x, p->by_section_tiles), within = (int)x - section * p->section_tiles;
    const int last = section == p->last_section;
    const int outer = divided(within, last ? p->by_last : p->by_section);
    *head = section * p->section + within - outer * (last ? p->last_size : p->section);
    *tile = p->row_tiles - 1 - outer;
    return 1;
}

/* What is to be done in round r. 1: something, 0: nothing, -1: nothing in later rounds either. All lanes of a warp. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_fwd_sm90 *maps, int r, struct work *w) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    int head, tile;
    const int found = tile_of_round(maps, r, &head, &tile);
    if (found <= 0) return found;
    w->row0 = tile * ROWS;
    w->b = divided(head, p->by_heads);
    w->head = head - w->b * p->tile_heads;
    w->seq = sequence_of(&p->in, w->b);
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->first = w->n_tiles = 0;
    if (w->row0 >= w->seq.rows) return 0;
    if (w->row0 >= w->seq.sq) return 1;
    const int upper = w->row0 + w->off, lower = min(w->row0 + ROWS, w->seq.sq) - 1 + w->off;
    const int j0 = max(upper - p->in.window_left, 0), j1 = min(lower + p->in.window_right + 1, w->seq.sk);
    if (j1 <= j0) return 1;
    w->first = j0 / KEYS;
    w->n_tiles = (j1 + KEYS - 1) / KEYS - w->first;
    return 1;
}

/* One thread, before it completes Q_FULL of the tile: what the compute warpgroups are to do. n_tiles -1: no more. */
static __device__ __forceinline__ void keep_work(uint32_t place, const struct work *w) {
    shared_store128(place, make_uint4(w->n_tiles, w->first, w->row0, w->off));
    shared_store128(place + 16, make_uint4(w->seq.sq, w->seq.sk, w->seq.rows, w->b));
    shared_store128(place + 32, make_uint4(w->head, (uint32_t)w->seq.q0, (uint32_t)w->seq.k0, 0));
}
static __device__ __forceinline__ struct work recall_work(uint32_t place) {
    const uint4 x = shared_load128(place), y = shared_load128(place + 16), z = shared_load128(place + 32);
    struct work w;
    w.n_tiles = (int)x.x, w.first = (int)x.y, w.row0 = (int)x.z, w.off = (int)x.w;
    w.seq.sq = (int)y.x, w.seq.sk = (int)y.y, w.seq.rows = (int)y.z, w.b = (int)y.w;
    w.head = (int)z.x, w.seq.q0 = (int)z.y, w.seq.k0 = (int)z.z; /* packed rows are counted in 31 bits */
    return w;
}

/* Keys that a query sees: lo <= j < hi. */
static __device__ __forceinline__ int first_key(const struct kp_sdpa_fwd *p, const struct work *w, int i) {
    return max(i + w->off - p->in.window_left, 0);
}
static __device__ __forceinline__ int end_key(const struct kp_sdpa_fwd *p, const struct work *w, int i) {
    return min(i + w->off + p->in.window_right + 1, w->seq.sk);
}
/* Do rows past the end of the sequence's keys hold what the caller left there? (Past a tensor's end they are zeros.) */
static __device__ __forceinline__ int has_tail(const struct kp_sdpa_fwd *p, const struct work *w) {
    return (p->in.cu_seqlens_q || p->in.seqlens_k) && w->seq.sk % KEYS != 0;
}
#endif
