/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: the warpgroups of dV and of dK, which also copy what they are the last to read. */
#ifndef ATTN_SM90_SDPA_BWD_PAIR_GRADIENTS_H
#define ATTN_SM90_SDPA_BWD_PAIR_GRADIENTS_H
#include "kernels/device/uniform_desc.h"
#include "kernels/sm90/sdpa_bwd/pair_load.h"
#include "kernels/sm90/sdpa_bwd/store.h"

/* dV of half of the columns += P^T dO: P lies with keys along the rows. */
static __device__ __forceinline__ void product_dv(float g[N_GRAD / 2], uint64_t cells, uint64_t dout) {
    wgmma_hold(g, N_GRAD / 2);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++)
        wgmma_ss_n128<TYPE, 0, 1>(g, desc_step(cells, 32 * kk), desc_step(dout, 2048 * kk), 1);
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold(g, N_GRAD / 2);
}

/* P of a query and of the thread's key h, from shared memory. */
static __device__ __forceinline__ uint32_t stored_p(uint32_t shared, int q, int h) {
    const int key = 16 * warp_of() + (lane_of() >> 2) + 8 * h;
    return shared_load16(shared + P_TILE + key * 128 + ((q / 8 ^ (key & 7)) << 4) + q % 8 * 2);
}

static __device__ __forceinline__ void sum_dv(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const int steps = steps_of(shared);
    float dv[N_GRAD];
#pragma unroll
    for (int x = 0; x < N_GRAD; x++) dv[x] = 0;
    if (threadIdx.x == DV_FIRST && steps > 0) {
        const struct work w = recall_work(shared);
        const struct step first = first_step(p, &w);
        shared_store32x2(shared + NEXT_DOUT, first.head, first.i0);
#pragma unroll 1
        for (int h = 0; h < min(3, 2 * steps); h++) load_dout(maps, shared, h, rank);
    }
    __syncwarp();
#pragma unroll 1
    for (int t = 0; t < steps; t++) {
        mbar_wait(shared + P_FULL, t & 1);
        const uint64_t cells = uniform_desc(slice_desc(shared + P_TILE, 0));
        wait_dout(shared, 2 * t);
        product_dv(dv, cells, uniform_desc(slice_desc(half_of(shared, 2 * t), SLICE)));
        named_sync(DV, 128); /* all warps have read the half; P came after its product with V */
        if (threadIdx.x == DV_FIRST && t + 1 < steps) load_dout(maps, shared, 2 * t + 3, rank);
        __syncwarp();
        wait_dout(shared, 2 * t + 1);
        product_dv(dv + N_GRAD / 2, cells, uniform_desc(slice_desc(half_of(shared, 2 * t + 1), SLICE)));
        if (rare((int)shared_load32(shared + SPECIAL + 4 * (t & 1)))) {
            const struct work w = recall_work(shared);
            const struct place place = recall_place(shared, t & 3);
            add_bad_dout(p, &w, place.head, place.i0, shared + BAD_DOUT + 16 * (t & 1), dv,
                         [&](int q, int h) { return stored_p(shared, q, h); });
        }
        arrive_warp(shared + P_FREE);
        named_sync(DV, 128);
        if (threadIdx.x == DV_FIRST && t + 2 < steps) {
            mbar_wait(shared + DS_FULL + 8 * (t & 1), t >> 1 & 1); /* its product with V is done */
            load_dout(maps, shared, 2 * t + 4, rank);
        }
        __syncwarp();
    }
    if (steps > 0) mbar_wait(shared + DS_FULL + 8 * (steps - 1 & 1), steps - 1 >> 1 & 1); /* V has been read */
    if (p->dv.data) store_keys(&p->dv, p->in.dim_v, shared, shared + V_TILE, 0, 64 * rank, 1, dv);
}

/* dK += dS^T Q: dS lies with queries along the rows. */
static __device__ __forceinline__ void product_dk(float g[N_GRAD], uint64_t cells, uint64_t q) {
    wgmma_hold(g, N_GRAD);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < 2; h++) /* ptxas refuses m64n256 in a kernel of 512 threads */
#pragma unroll
        for (int kk = 0; kk < ROWS / 16; kk++)
            wgmma_ss_n128<TYPE, 1, 1>(g + h * (N_GRAD / 2), desc_step(cells, 2048 * kk),
                                      desc_step(q, h * HALF_BYTES + 2048 * kk), 1);
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
        for (int t = 0; t < min(2, steps); t++) load_q(maps, shared, t, rank);
    }
    __syncwarp();
#pragma unroll 1
    for (int t = 0; t < steps; t++) {
        const uint32_t stage = t & 1, parity = t >> 1 & 1;
        mbar_wait(shared + DS_FULL + 8 * stage, parity);
        mbar_wait(shared + Q_FULL + 8 * stage, parity);
        product_dk(dk, uniform_desc(slice_desc(shared + DS_RING + stage * SLICE, 0)),
                   uniform_desc(slice_desc(shared + Q_RING + stage * Q_BYTES, SLICE)));
        arrive_warp(shared + DS_FREE + 8 * stage);
        named_sync(DK, 128); /* all warps have read Q; dS came after its product with K */
        if (threadIdx.x == DK_FIRST && t + 2 < steps) load_q(maps, shared, t + 2, rank);
        __syncwarp();
    }
    if (SCALED) named_sync(FACTOR, MAIN_THREADS + 128);
    const float undo = SCALED ? __uint_as_float(shared_load32(shared + FACTORS)) : 1;
#pragma unroll
    for (int x = 0; x < N_GRAD; x++) dk[x] *= undo * p->in.scale; /* in place: store_keys would hold copies */
    wgmma_hold(dk, N_GRAD);
    if (p->dk.data) store_keys(&p->dk, p->in.dim_qk, shared, shared + Q_RING, 0, 64 * rank, 1, dk);
}
#endif
