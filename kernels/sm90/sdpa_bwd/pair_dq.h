/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: the warpgroup that sends dS to the other CTA, forms half of the columns of dQ over the keys
 * of both, and adds them to the sums in memory. */
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
    for (int x = (int)threadIdx.x - DQ_FIRST; x < CTA_KEYS * (HALF / 8); x += 128) {
        const int r = x / (HALF / 8);
        const uint32_t chunk = chunk_of(shared + OTHER_K, SLICE, r, x % (HALF / 8));
        if (r >= exist || chunk_bad(chunk)) shared_store128(chunk, make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(DQ, 128);
}

/* DQ_COLUMNS of dQ of a step = dS K over the keys of both CTAs. */
static __device__ __forceinline__ void product_dq(float dq[N_DQ], uint64_t ds, uint64_t k, uint64_t other_ds,
                                                  uint64_t other_k) {
    wgmma_hold(dq, N_DQ);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < CTA_KEYS / 16; kk++)
        wgmma_ss_n32<TYPE, 0, 1>(dq, desc_step(ds, 32 * kk), desc_step(k, 2048 * kk), kk > 0);
#pragma unroll
    for (int kk = 0; kk < CTA_KEYS / 16; kk++)
        wgmma_ss_n32<TYPE, 0, 1>(dq, desc_step(other_ds, 32 * kk), desc_step(other_k, 2048 * kk), 1);
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold(dq, N_DQ);
}

/* One thread: dS of step t to the other CTA, when it has read that of the step before. This CTA's tile of the step
 * before has then arrived there, too. */
static __device__ __forceinline__ void send_cells(uint32_t shared, int t, int rank) {
    const uint32_t ds = t & 1;
    if (t > 0) {
        mbar_wait_cluster(shared + OTHER_FREE, t - 1 & 1);
        mbar_arrive(shared + DS_FREE + 8 * (ds ^ 1));
    }
    cluster_copy(cluster_address(shared + OTHER_DS, rank ^ 1), shared + DS_RING + ds * SLICE, SLICE,
                 cluster_address(shared + OTHER_FULL, rank ^ 1));
}

/* Where in slices of K the DQ_COLUMNS number x are. */
static __device__ __forceinline__ constexpr int column_place(int x) {
    return x * DQ_COLUMNS / 64 * SLICE + x * DQ_COLUMNS % 64 * 2;
}
static __device__ __forceinline__ void sum_dq(const struct kp_sdpa_bwd *p, uint32_t shared, int rank) {
    const int steps = steps_of(shared);
    if (steps <= 0 || !p->dq_sum) return;
    mbar_wait(shared + KEYS_FULL, 0);
    clean_other_keys(shared, rank);
#pragma unroll 1
    for (int t = 0; t < steps; t++) {
        const uint32_t ds = t & 1;
        mbar_wait(shared + DS_FULL + 8 * ds, t >> 1 & 1);
        if (threadIdx.x == DQ_FIRST) send_cells(shared, t, rank);
        __syncwarp();
        float *to = sums_of(p, shared, t & 3) + 16 * HALF * rank;
        if (p->turns) await_turn(p, shared, t & 3, t);
        mbar_wait_cluster(shared + OTHER_FULL, t & 1);
#pragma unroll
        for (int x = 0; x < HALF / DQ_COLUMNS; x++, to += 16 * DQ_COLUMNS) {
            float dq[N_DQ];
            product_dq(dq, uniform_desc(slice_desc(shared + DS_RING + ds * SLICE, 0)),
                       uniform_desc(slice_desc(shared + K_TILE + HALF / 64 * rank * SLICE + column_place(x), 0)),
                       uniform_desc(slice_desc(shared + OTHER_DS, 0)),
                       uniform_desc(slice_desc(shared + OTHER_K + column_place(x), 0)));
            if (x + 1 == HALF / DQ_COLUMNS) {
                if (threadIdx.x == DQ_FIRST && t + 1 < steps) mbar_expect(shared + OTHER_FULL, SLICE);
                __syncwarp();
                if (threadIdx.x % 32 == 0) {
                    mbar_arrive(shared + DS_FREE + 8 * ds);
                    cluster_arrive(cluster_address(shared + OTHER_FREE, rank ^ 1));
                }
            }
            if (p->turns && x == 0) enter_turn();
#pragma unroll
            for (int n = 0; n < DQ_COLUMNS / 8; n++) reduce_add4(to + 128 * n, dq + 4 * n);
        }
        if (p->turns) leave_turn(shared, t);
    }
}
#endif
