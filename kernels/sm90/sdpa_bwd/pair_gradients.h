/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: the warpgroups of dV (dims to 192) and of dK, which also copy. */
#ifndef ATTN_SM90_SDPA_BWD_PAIR_GRADIENTS_H
#define ATTN_SM90_SDPA_BWD_PAIR_GRADIENTS_H
#include "kernels/device/uniform_desc.h"
#include "kernels/sm90/sdpa_bwd/pair_dq.h"
#include "kernels/sm90/sdpa_bwd/pair_load.h"
#include "kernels/sm90/sdpa_bwd/store.h"

#define WGMMA_SUMS_192 WGMMA_D64(d, 0), WGMMA_D32(d, 64)
WGMMA_SS(wgmma_ss_n192, 192, "m64n192k16", WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5, WGMMA_SUMS_192, 96,
         97, 98, 99, 100)

/* dV += P^T dO: P lies with keys along the rows. */
static __device__ __forceinline__ void product_dv(float g[N_GRAD_V], uint64_t cells, uint64_t dout) {
    wgmma_hold(g, N_GRAD_V);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
        if (DIM_V == 128) wgmma_ss_n128<TYPE, 0, 1>(g, desc_step(cells, 32 * kk), desc_step(dout, 2048 * kk), 1);
        if (DIM_V == 192) wgmma_ss_n192<TYPE, 0, 1>(g, desc_step(cells, 32 * kk), desc_step(dout, 2048 * kk), 1);
    }
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold(g, N_GRAD_V);
}

/* P of a query and of the thread's key h, from shared memory. */
static __device__ __forceinline__ uint32_t stored_p(uint32_t tile, int q, int h) {
    const int key = 16 * warp_of() + (lane_of() >> 2) + 8 * h;
    return shared_load16(tile + key * 128 + ((q / 8 ^ (key & 7)) << 4) + q % 8 * 2);
}

/* Of the step's dO, rows that are not finite: noted by the cells, added by hand. */
static __device__ __forceinline__ void take_bad_dout(const struct kp_sdpa_bwd *p, uint32_t shared, int t, uint32_t tile,
                                                     float dv[N_GRAD_V]) {
    if (rare((int)shared_load32(shared + SPECIAL + 4 * (t & 1)))) {
        const struct work w = recall_work(shared);
        const struct place place = recall_place(shared, t % PLACE_SLOTS);
        add_bad_dout(p, &w, place.head, place.i0, shared + BAD_DOUT + 16 * (t & 3), dv,
                     [&](int q, int h) { return stored_p(tile, q, h); });
    }
}

/* Steps of dV, dO whole; P has two places. */
static __device__ __forceinline__ void sum_whole_dv(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank,
                                                    int steps, float dv[N_GRAD_V]) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    if (threadIdx.x == DV_FIRST) {
#pragma unroll 1
        for (int t = 0; t < min(DOUT_STAGES, steps); t++) load_whole_dout(maps, shared, t, rank);
    }
    __syncwarp();
#pragma unroll 1
    for (int t = 0; t < steps; t++) {
        const uint32_t place = (uint32_t)t % P_TILES, cells = shared + P_TILE + place * SLICE;
        mbar_wait(shared + P_FULL + 8 * place, (uint32_t)t / P_TILES & 1);
        wait_whole_dout(shared, t);
        product_dv(dv, uniform_desc(slice_desc(cells, 0)), uniform_desc(slice_desc(dout_of(shared, t), SLICE)));
        take_bad_dout(p, shared, t, cells, dv);
        arrive_warp(shared + P_FREE + 8 * place);
        named_sync(DV, 128); /* all warps have read dO */
        if (threadIdx.x == DV_FIRST && t + 2 < steps) {
            /* products with V are done: of three tiles that of the step before, for P of this one came after it */
            if (DOUT_STAGES == 2) mbar_wait(shared + DS_FULL + 8 * (t & 1), t >> 1 & 1);
            if (DOUT_STAGES == 2 || t > 0) load_whole_dout(maps, shared, t + 2, rank);
        }
        __syncwarp();
    }
}

static __device__ __forceinline__ void sum_dv(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const int steps = steps_of(shared);
    float dv[N_GRAD_V];
#pragma unroll
    for (int x = 0; x < N_GRAD_V; x++) dv[x] = 0;
    if (threadIdx.x == DV_FIRST && steps > 0) {
        const struct work w = recall_work(shared);
        const struct step first = first_step(p, &w);
        shared_store32x2(shared + NEXT_DOUT, first.head, first.i0);
    }
    sum_whole_dv(maps, shared, rank, steps, dv);
    if (steps > 0) mbar_wait(shared + DS_FULL + 8 * (steps - 1 & 1), steps - 1 >> 1 & 1); /* V has been read */
    if (p->dv.data) store_keys<DIM_V>(&p->dv, p->in.dim_v, shared, shared + V_TILE, 0, 64 * rank, 1, dv);
}

/* dK += dS^T Q: dS lies with queries along the rows. */
static __device__ __forceinline__ void product_dk(float g[N_GRAD], uint64_t cells, uint64_t q) {
    wgmma_hold(g, N_GRAD);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
        if (DIM == 192) wgmma_ss_n192<TYPE, 1, 1>(g, desc_step(cells, 2048 * kk), desc_step(q, 2048 * kk), 1);
        if (DIM == 256) wgmma_ss_n256<TYPE, 1, 1>(g, desc_step(cells, 2048 * kk), desc_step(q, 2048 * kk), 1);
    }
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold(g, N_GRAD);
}

static __device__ __forceinline__ void sum_dk(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const int steps = steps_of(shared);
    float dk[N_GRAD];
#pragma unroll
    for (int x = 0; x < N_GRAD; x++) dk[x] = 0;
    if (threadIdx.x == DK_FIRST && steps > 0) {
        const struct work w = recall_work(shared);
        const struct step first = first_step(p, &w);
        load_keys(maps, shared, rank);
        shared_store32x2(shared + NEXT, first.head, first.i0);
#pragma unroll 1
        for (int t = 0; t < min(Q_STAGES, steps); t++) load_q(maps, shared, t, rank);
    }
    if (SPLIT && threadIdx.x == COPIES_DOUT && steps > 0) {
        const struct work w = recall_work(shared);
        const struct step first = first_step(p, &w);
        shared_store32x2(shared + NEXT_DOUT, first.head, first.i0);
#pragma unroll 1
        for (int h = 0; h < min(DOUT_PLACES, 2 * steps); h++) load_dout(maps, shared, h, rank);
    }
    __syncwarp();
#pragma unroll 1
    for (int t = 0; t < steps; t++) {
        const uint32_t stage = (uint32_t)t % DS_TILES, parity = (uint32_t)t / DS_TILES & 1;
        mbar_wait(shared + DS_FULL + 8 * stage, parity);
        if (p->dq_sum && threadIdx.x == SENDS) send_cells(shared, t, rank);
        if (SPLIT && threadIdx.x == COPIES_DOUT && 2 * t + DOUT_PLACES < 2 * steps)
            load_dout(maps, shared, 2 * t + DOUT_PLACES, rank);
        __syncwarp();
        const uint32_t place = (uint32_t)t % Q_STAGES;
        mbar_wait(shared + Q_FULL + 8 * place, (uint32_t)t / Q_STAGES & 1);
        product_dk(dk, uniform_desc(slice_desc(shared + DS_RING + stage * SLICE, 0)),
                   uniform_desc(slice_desc(shared + Q_RING + place * Q_BYTES, SLICE)));
        arrive_warp(shared + DS_FREE + 8 * stage);
        /* all warps have read Q; dS came after its product with K */
        if (SPLIT)
            leave_both(shared + Q_FREE + 8 * place, rank);
        else
            named_sync(DK, 128);
        if (threadIdx.x == DK_FIRST && t + Q_STAGES < steps) load_q(maps, shared, t + Q_STAGES, rank);
        if (SPLIT && threadIdx.x == COPIES_DOUT && 2 * t + DOUT_PLACES + 1 < 2 * steps)
            load_dout(maps, shared, 2 * t + DOUT_PLACES + 1, rank);
        __syncwarp();
    }
    if (SPLIT) named_sync(DK, 128);
    if (SCALED) named_sync(FACTOR, MAIN_THREADS + 128);
    const float undo = SCALED ? __uint_as_float(shared_load32(shared + FACTORS)) : 1;
#pragma unroll
    for (int x = 0; x < N_GRAD; x++) dk[x] *= undo * p->in.scale; /* in place: store_keys would hold copies */
    wgmma_hold(dk, N_GRAD);
    if (p->dk.data) store_keys<DIM>(&p->dk, p->in.dim_qk, shared, shared + Q_RING, 0, 64 * rank, 1, dk);
}
#endif
