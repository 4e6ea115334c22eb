/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_even_wgmma.cu, CTAS = 2: how the CTAs of a pair sum dKV over their heads. Of every 64 columns each
 * sends 32, as sums of its own heads, to a stage of the other, and adds what it receives to its own sums of the other
 * 32. Of slice 8, warpgroup 0 sends and warpgroup 1 adds, from the stage of warpgroup 0.
 *
 * Whoever tells the other CTA that a stage may be filled must release at the scope of the cluster, and for a thread
 * that has additions to memory under way such a release waits until memory has performed them. So the warps that read a
 * stage tell a warp of their own CTA that never adds, the relay, and it tells the other CTA. */
#ifndef ATTN_SM90_MLA_BWD_PAIR_WGMMA_H
#define ATTN_SM90_MLA_BWD_PAIR_WGMMA_H
#include "kernels/device/cluster.h"
#include "kernels/sm90/mla_bwd_cells_wgmma.h"

/* How often stage w is filled in a tile. */
static __device__ __forceinline__ constexpr uint32_t fillings(uint32_t w) { return SLICES > 8 && w == 0 ? 5 : 4; }

static __device__ __forceinline__ void init_pair(uint32_t shared) {
    mbar_init(shared + PD_READ, 8);
    mbar_init(shared + STAGE_LAST, 4);
    for (uint32_t w = 0; w < 2; w++) {
        mbar_init(shared + STAGE_FULL + 8 * w, 4);
        mbar_init(shared + STAGE_FREE + 8 * w, 1);
        mbar_init(shared + STAGE_READ + 8 * w, 4);
    }
}

static __device__ __forceinline__ uint32_t stage_of(uint32_t shared, uint32_t w) {
    return shared + STAGE_AT + w * SLICE + (uint32_t)(warp_of() * 2048 + lane_of() * 16);
}

/* The mbarrier of the i-th filling of stage w, and its phase in tile n. The fifth has its own: warpgroup 1 waits for
 * it, and not for those before, whose phases it could not tell from each other. */
static __device__ __forceinline__ uint32_t full_of(uint32_t shared, uint32_t w, uint32_t i) {
    return shared + (i == 4 ? STAGE_LAST : STAGE_FULL + 8 * w);
}
static __device__ __forceinline__ uint32_t phase_of(uint32_t n, uint32_t i) { return i == 4 ? n & 1 : i & 1; }

/* One lane: the warp's part of the i-th filling of stage w is expected. */
static __device__ __forceinline__ void expect_stage(uint32_t shared, uint32_t w, uint32_t i) {
    mbar_expect(full_of(shared, w, i), 32 * 64);
}

/* The i-th filling of the other CTA's stage W in tile n. */
template <int W>
static __device__ __forceinline__ void send_half(uint32_t shared, const float a[16], uint32_t n, uint32_t i) {
    const uint32_t bar = full_of((uint32_t)recompute((int)shared), W, i); /* the address over there is not kept */
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    mbar_wait_cluster(shared + STAGE_FREE + 8 * W, ((uint32_t)recompute((int)n) * fillings(W) + i) & 1);
#pragma unroll
    for (int k = 0; k < 4; k++)
        cluster_send4(cluster_address(stage_of(shared, W) + k * 512, rank_of() ^ 1), a + 4 * k, there);
}

/* b += the i-th filling in tile n, of stage W, the fifth of stage 0. */
template <int W>
static __device__ __forceinline__ void take_half(uint32_t shared, float b[16], uint32_t n, uint32_t i) {
    const uint32_t from = i == 4 ? 0 : W;
    mbar_wait_cluster(full_of(shared, from, i), phase_of(n, i));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint4 y = shared_load128(stage_of(shared, from) + k * 512);
        b[4 * k] += __uint_as_float(y.x), b[4 * k + 1] += __uint_as_float(y.y);
        b[4 * k + 2] += __uint_as_float(y.z), b[4 * k + 3] += __uint_as_float(y.w);
    }
    __syncwarp();
    if (i + 1 < fillings(W) && lane_of() == 0) {
        expect_stage(shared, W, i + 1);
        mbar_arrive(shared + STAGE_READ + 8 * W);
    }
}

/* Warp w of two: tells the other CTA whenever stage w may be filled. */
static __device__ __forceinline__ void relay(const struct kp_mla_bwd *p, uint32_t shared, uint32_t w) {
    const uint32_t bar = shared + STAGE_FREE + 8 * w, there = cluster_address(bar, rank_of() ^ 1);
    uint32_t n = 0, reads = 0;
    for (uint32_t item = 0; has_item(p, item); item++) {
        const struct item work = work_of(p, item_at(item));
        for (int t = 0; 64 * t < slots_at(p, item_at(item), &work).n; t++, n++)
            for (uint32_t i = 0; i < fillings(w); i++) {
                if (i == 0)
                    mbar_wait(shared + PD_READ, n & 1);
                else
                    mbar_wait(shared + STAGE_READ + 8 * w, reads++ & 1);
                if (lane_of() == 0) cluster_release(there);
            }
    }
}
#endif
