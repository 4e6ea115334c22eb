/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: dS to the other CTA, and the warpgroup that forms half of the columns of dQ over the keys
 * of both and adds them to the sums in memory. */
#ifndef ATTN_SM90_SDPA_BWD_PAIR_DQ_H
#define ATTN_SM90_SDPA_BWD_PAIR_DQ_H
#include "kernels/device/cluster.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/sm90/sdpa_bwd/cells.h"
#include "kernels/sm90/sdpa_bwd/turns.h"

/* Zero what is not finite in the other CTA's keys, and those past the end: its dS is 0 or NaN there (not_finite.h). */
static __device__ __forceinline__ void clean_other_keys(uint32_t shared, int rank) {
    const int exist = keys_from(shared, 64 * (rank ^ 1));
#pragma unroll 2
    for (int x = (int)threadIdx.x - DQ_FIRST; x < CTA_KEYS * 8 * OTHER_SLICES; x += 128) {
        const int r = x / (8 * OTHER_SLICES);
        const uint32_t chunk = chunk_of(shared + OTHER_K, SLICE, r, x % (8 * OTHER_SLICES));
        if (r >= exist || chunk_bad(chunk)) shared_store128(chunk, make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(DQ, 128);
}

/* There are two of the other CTA's dS: a thread of the warpgroup of dK sends, as soon as dS is there. That the tile of
 * the other CTA has arrived is told to its barrier DS_FREE, when this CTA comes to the step. */
static __device__ __forceinline__ void send_cells(uint32_t shared, int t, int rank) {
    const uint32_t x = (uint32_t)t % OTHER_TILES;
    if (t >= OTHER_TILES) mbar_wait_cluster(shared + OTHER_FREE + 8 * x, (uint32_t)t / OTHER_TILES - 1 & 1);
    cluster_copy(cluster_address(shared + OTHER_DS + x * SLICE, rank ^ 1),
                 shared + DS_RING + (uint32_t)t % DS_TILES * SLICE, SLICE,
                 cluster_address(shared + OTHER_FULL + 8 * x, rank ^ 1));
}
/* Start dQ of 32 or 64 columns over the keys of both CTAs. */
template <int COLUMNS>
static __device__ __forceinline__ void start_dq(float dq[COLUMNS / 2], const uint64_t ds[2], uint32_t k,
                                                uint32_t other_k) {
    const uint64_t b[2] = {uniform_desc(slice_desc(k, 0)), uniform_desc(slice_desc(other_k, 0))};
    wgmma_hold(dq, COLUMNS / 2);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < 2; x++)
#pragma unroll
        for (int kk = 0; kk < CTA_KEYS / 16; kk++)
            if (COLUMNS == 32)
                wgmma_ss_n32<TYPE, 0, 1>(dq, desc_step(ds[x], 32 * kk), desc_step(b[x], 2048 * kk), x + kk > 0);
            else
                wgmma_ss_n64<TYPE, 0, 1>(dq, desc_step(ds[x], 32 * kk), desc_step(b[x], 2048 * kk), x + kk > 0);
    wgmma_commit();
}
template <int COLUMNS> static __device__ __forceinline__ void add_dq(float *to, const float dq[COLUMNS / 2]) {
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) reduce_add4(to + 128 * n, dq + 4 * n);
}
/* A step of 192 columns. This CTA has the first or the last slice of them and half of the one between; of the other
 * CTA's keys it keeps these two. The sums of the half are added while the slice's are formed. */
static __device__ __forceinline__ void take_whole_dq(const struct kp_sdpa_bwd *p, uint32_t shared, int t, int steps,
                                                     int rank) {
    static_assert(SPLIT || DIM == 192, "three slices");
    const uint32_t x = t & 1, parity = t >> 1 & 1;
    mbar_wait(shared + DS_FULL + 8 * x, parity);
    float *to = sums_of(p, shared, t % PLACE_SLOTS);
    if (p->turns) await_turn(p, shared, t % PLACE_SLOTS, t);
    mbar_wait_cluster(shared + OTHER_FULL + 8 * x, parity);
    if (threadIdx.x == DQ_FIRST) {
        if (t + 2 < steps) mbar_expect(shared + OTHER_FULL + 8 * x, SLICE);
        cluster_arrive(cluster_address(shared + DS_FREE + 8 * x, rank ^ 1));
    }
    __syncwarp();
    const uint64_t ds[2] = {uniform_desc(slice_desc(shared + DS_RING + x * SLICE, 0)),
                            uniform_desc(slice_desc(shared + OTHER_DS + x * SLICE, 0))};
    float half[16], slice[32];
    start_dq<32>(half, ds, shared + K_TILE + SLICE + 64 * rank, shared + OTHER_K + (rank ? 64 : SLICE));
    start_dq<64>(slice, ds, shared + K_TILE + 2 * SLICE * rank, shared + OTHER_K + SLICE * rank);
    wgmma_wait(1);
    wgmma_hold(half, 16);
    if (p->turns) enter_turn();
    add_dq<32>(to + 128 * (8 + 4 * rank), half);
    wgmma_wait(0);
    wgmma_hold(slice, 32);
    if (threadIdx.x % 32 == 0) {
        mbar_arrive(shared + DS_FREE + 8 * x);
        cluster_arrive(cluster_address(shared + OTHER_FREE + 8 * x, rank ^ 1));
    }
    __syncwarp();
    add_dq<64>(to + 128 * 16 * rank, slice);
    if (p->turns) leave_turn(shared, t);
}

/* A step of 256 columns: this CTA has two slices of four. The sums of one are added while the other's are formed. */
static __device__ __forceinline__ void take_split_dq(const struct kp_sdpa_bwd *p, uint32_t shared, int t, int steps,
                                                     int rank) {
    const uint32_t x = (uint32_t)t % DS_TILES, y = (uint32_t)t % OTHER_TILES;
    mbar_wait(shared + DS_FULL + 8 * x, (uint32_t)t / DS_TILES & 1);
    float *to = sums_of(p, shared, t % PLACE_SLOTS) + 16 * HALF * rank;
    if (p->turns) await_turn(p, shared, t % PLACE_SLOTS, t);
    mbar_wait_cluster(shared + OTHER_FULL + 8 * y, (uint32_t)t / OTHER_TILES & 1);
    if (threadIdx.x == DQ_FIRST) {
        if (t + OTHER_TILES < steps) mbar_expect(shared + OTHER_FULL + 8 * y, SLICE);
        cluster_arrive(cluster_address(shared + DS_FREE + 8 * x, rank ^ 1));
    }
    __syncwarp();
    const uint64_t ds[2] = {uniform_desc(slice_desc(shared + DS_RING + x * SLICE, 0)),
                            uniform_desc(slice_desc(shared + OTHER_DS + y * SLICE, 0))};
    const uint32_t k = shared + K_TILE + HALF / 64 * rank * SLICE, other_k = shared + OTHER_K;
    float first[32], second[32];
    start_dq<64>(first, ds, k, other_k);
    start_dq<64>(second, ds, k + SLICE, other_k + SLICE);
    wgmma_wait(1);
    wgmma_hold(first, 32);
    if (p->turns) enter_turn();
    add_dq<64>(to, first);
    wgmma_wait(0);
    wgmma_hold(second, 32);
    if (threadIdx.x % 32 == 0) {
        mbar_arrive(shared + DS_FREE + 8 * x);
        cluster_arrive(cluster_address(shared + OTHER_FREE + 8 * y, rank ^ 1));
    }
    __syncwarp();
    add_dq<64>(to + 16 * 64, second);
    if (p->turns) leave_turn(shared, t);
}

static __device__ __forceinline__ void sum_dq(const struct kp_sdpa_bwd *p, uint32_t shared, int rank) {
    const int steps = steps_of(shared);
    if (steps <= 0 || !p->dq_sum) return;
    mbar_wait(shared + KEYS_FULL, 0);
    clean_other_keys(shared, rank);
#pragma unroll 1
    for (int t = 0; t < steps; t++)
        if constexpr (SPLIT)
            take_split_dq(p, shared, t, steps, rank);
        else
            take_whole_dq(p, shared, t, steps, rank);
}
#endif
