/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: copies into shared memory. One thread each. */
#ifndef ATTN_SM90_SDPA_BWD_PAIR_LOAD_H
#define ATTN_SM90_SDPA_BWD_PAIR_LOAD_H
#include "kernels/device/tensor_load.h"
#include "kernels/sm90/sdpa_bwd/work.h"

static __device__ __forceinline__ int batch_of(const struct kp_sdpa_bwd *p, const struct work *w) {
    return p->in.cu_seqlens_q ? 0 : w->b; /* packed sequences are one batch to the maps */
}

/* This CTA's keys; of the other's the columns of dQ that this CTA sums. */
static __device__ __forceinline__ void load_keys(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const struct work w = recall_work(shared);
    const int b = batch_of(p, &w), row = (int)w.seq.k0 + w.j0 + 64 * rank,
              other = (int)w.seq.k0 + w.j0 + 64 * (rank ^ 1);
    mbar_expect(shared + KEYS_FULL, K_BYTES + V_BYTES + OTHER_SLICES * SLICE);
#pragma unroll
    for (int x = 0; x < DIM / 64; x++) {
        tensor_load4(shared + K_TILE + x * SLICE, &maps->k, shared + KEYS_FULL, 64 * x, row, w.head_k, b);
        if (x < DIM_V / 64)
            tensor_load4(shared + V_TILE + x * SLICE, &maps->v, shared + KEYS_FULL, 64 * x, row, w.head_k, b);
    }
#pragma unroll
    for (int x = 0; x < OTHER_SLICES; x++)
        tensor_load4(shared + OTHER_K + x * SLICE, &maps->k, shared + KEYS_FULL, (HALF / 64 * rank + x) * 64, other,
                     w.head_k, b);
}

/* What both CTAs have left may be overwritten: this one says that it has left it, and waits for the other. */
static __device__ __forceinline__ void meet(uint32_t barrier, int rank, uint32_t parity) {
    mbar_arrive(barrier);
    cluster_arrive(cluster_address(barrier, rank ^ 1));
    mbar_wait_cluster(barrier, parity);
}

/* A tile of 64 rows into both CTAs: this one copies half of the rows of each slice. */
constexpr int HALF_ROWS = ROWS / 2;
template <int SLICES>
static __device__ __forceinline__ void load_half_rows(uint32_t to, const struct kp_tensor_map *map, uint32_t full,
                                                      int row, int head, int b, int rank) {
#pragma unroll
    for (int x = 0; x < SLICES; x++)
        tensor_multicast4(to + x * SLICE + rank * (128 * HALF_ROWS), map, full, 64 * x, row + HALF_ROWS * rank, head, b,
                          3);
}

/* Q, lse and struct place of step t, which is the one at NEXT. Each CTA copies half of Q into both. */
static __device__ __forceinline__ void load_q(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int t, int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const struct work w = recall_work(shared);
    const uint2 kept = shared_load32x2(shared + NEXT);
    const struct step s = {(int)kept.x, (int)kept.y}, after = step_after(&w, s);
    const struct place place = place_of(p, &w, s);
    const uint32_t stage = (uint32_t)t % Q_STAGES, to = shared + Q_RING + stage * Q_BYTES,
                   full = shared + Q_FULL + 8 * stage;
    const int64_t stat = s.head * p->stat_rows + w.stat0 + s.i0;
    shared_store32x2(shared + NEXT, after.head, after.i0);
    shared_store128(shared + PLACES + 16 * (t % PLACE_SLOTS),
                    make_uint4(place.head, place.i0, place.diagonal, place.hides));
    mbar_expect(full, Q_BYTES + 4 * ROWS);
    if (t >= Q_STAGES) {
        if (SPLIT)
            mbar_wait_cluster(shared + Q_FREE + 8 * stage, (uint32_t)t / Q_STAGES - 1 & 1);
        else
            meet(shared + Q_FREE + 8 * stage, rank, (uint32_t)(t - Q_STAGES) / Q_STAGES & 1);
    }
    if (SPLIT) {
#pragma unroll
        for (int x = 0; x < HALF / 64; x++)
            tensor_multicast4(to + (HALF / 64 * rank + x) * SLICE, &maps->q, full, HALF * rank + 64 * x,
                              (int)w.seq.q0 + s.i0, s.head, batch_of(p, &w), 3);
    } else
        load_half_rows<DIM / 64>(to, &maps->q, full, (int)w.seq.q0 + s.i0, s.head, batch_of(p, &w), rank);
    bulk_load(shared + STATS + stage * 8 * ROWS, (const float *)p->stat_lse + stat, 4 * ROWS, full);
}

/* Half h & 1 of the columns of dO of step h / 2, the one at NEXT_DOUT; with the first half its shift. Each CTA copies
 * every second slice into both. */
static __device__ __forceinline__ uint32_t half_of(uint32_t shared, int h) {
    return shared + DOUT_RING + (uint32_t)h % DOUT_PLACES * DOUT_HALF;
}
static __device__ __forceinline__ void load_dout(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int h,
                                                 int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const struct work w = recall_work(shared);
    const uint2 kept = shared_load32x2(shared + NEXT_DOUT);
    const struct step s = {(int)kept.x, (int)kept.y}, after = step_after(&w, s);
    const uint32_t to = half_of(shared, h), full = shared + DOUT_FULL + 8 * ((uint32_t)h % DOUT_PLACES);
    mbar_expect(full, DOUT_HALF + (h & 1 ? 0 : 4 * ROWS));
    if (h >= DOUT_PLACES)
        mbar_wait_cluster(shared + DOUT_FREE + 8 * ((uint32_t)h % DOUT_PLACES), (uint32_t)h / DOUT_PLACES - 1 & 1);
#pragma unroll
    for (int x = 0; x < HALF / 128; x++)
        tensor_multicast4(to + (2 * x + rank) * SLICE, &maps->dout, full, HALF * (h & 1) + 128 * x + 64 * rank,
                          (int)w.seq.q0 + s.i0, s.head, batch_of(p, &w), 3);
    if (h & 1)
        shared_store32x2(shared + NEXT_DOUT, after.head, after.i0);
    else
        bulk_load(shared + STATS + (h >> 1 & 1) * 8 * ROWS + 4 * ROWS,
                  (const float *)p->stat_shift + s.head * p->stat_rows + w.stat0 + s.i0, 4 * ROWS, full);
}
static __device__ __forceinline__ void wait_dout(uint32_t shared, int h) {
    mbar_wait(shared + DOUT_FULL + 8 * ((uint32_t)h % DOUT_PLACES), (uint32_t)h / DOUT_PLACES & 1);
}

/* Whole tiles of dO: step t's stands at t % DOUT_STAGES, with its shift. */
static __device__ __forceinline__ uint32_t dout_of(uint32_t shared, int t) {
    return shared + DOUT_RING + (uint32_t)t % DOUT_STAGES * V_BYTES;
}
static __device__ __forceinline__ void load_whole_dout(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int t,
                                                       int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const struct work w = recall_work(shared);
    const uint2 kept = shared_load32x2(shared + NEXT_DOUT);
    const struct step s = {(int)kept.x, (int)kept.y}, after = step_after(&w, s);
    const uint32_t stage = (uint32_t)t % DOUT_STAGES, full = shared + DOUT_FULL + 8 * stage;
    shared_store32x2(shared + NEXT_DOUT, after.head, after.i0);
    mbar_expect(full, V_BYTES + 4 * ROWS);
    if (t >= DOUT_STAGES) meet(shared + DOUT_FREE + 8 * stage, rank, (uint32_t)(t - DOUT_STAGES) / DOUT_STAGES & 1);
    load_half_rows<DIM_V / 64>(dout_of(shared, t), &maps->dout, full, (int)w.seq.q0 + s.i0, s.head, batch_of(p, &w),
                               rank);
    bulk_load(shared + STATS + (uint32_t)t % Q_STAGES * 8 * ROWS + 4 * ROWS,
              (const float *)p->stat_shift + s.head * p->stat_rows + w.stat0 + s.i0, 4 * ROWS, full);
}
/* The last reader of a tile tells both CTAs. All lanes of a warp. */
static __device__ __forceinline__ void leave_both(uint32_t barrier, int rank) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        mbar_arrive(barrier);
        cluster_arrive(cluster_address(barrier, rank ^ 1));
    }
}
static __device__ __forceinline__ void wait_whole_dout(uint32_t shared, int t) {
    mbar_wait(shared + DOUT_FULL + 8 * ((uint32_t)t % DOUT_STAGES), (uint32_t)t / DOUT_STAGES & 1);
}
#endif
