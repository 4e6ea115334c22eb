/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_even_wgmma.cu, CTAS = 2: how the CTAs of a pair sum dKV over their heads, all slices of it
 * (mla_bwd_partly_wgmma.h, which rests on this: some). Of every 64 columns each
 * sends 32, as sums of its own heads, to a stage of the other, and adds what it receives to its own sums of the other
 * 32. Of slice 8, warpgroup 0 sends and warpgroup 1 adds, from the stage of warpgroup 0.
 *
 * Who has read a stage tells the other CTA by an arrival there (cluster_arrive), which does not wait for the additions
 * to memory that its thread has under way. */
#ifndef ATTN_SM90_MLA_BWD_PAIR_WGMMA_H
#define ATTN_SM90_MLA_BWD_PAIR_WGMMA_H
#include "kernels/device/cluster.h"
#include "kernels/sm90/mla_bwd_cells_wgmma.h"

/* Two stages a warpgroup, in turn: stage 0 in the place of P and dS, stage 1 in that of slice 6 + w of K, which is
 * gathered when the tile's last filling has been read. How often stage y is filled in a tile. */
static __device__ __forceinline__ constexpr uint32_t fillings(uint32_t w, uint32_t y) {
    return SLICES > 8 && w == 0 && y == 0 ? 3 : 2;
}
static __device__ __forceinline__ constexpr uint32_t last_of(uint32_t w) { return SLICES > 8 && w == 0 ? 4 : 3; }
/* Of the mbarriers of stage y of warpgroup w. */
static __device__ __forceinline__ constexpr uint32_t number_of(uint32_t w, uint32_t y) { return 8 * (2 * w + y); }

static __device__ __forceinline__ void init_pair(uint32_t shared) {
    mbar_init(shared + K_READ, 4);
    mbar_init(shared + STAGE_OPEN, 8);
    mbar_init(shared + STAGE_OPEN + 8, 4);
    mbar_init(shared + STAGE_LAST, 4);
    for (uint32_t x = 0; x < 4; x++) {
        mbar_init(shared + STAGE_FULL + 8 * x, 4);
        mbar_init(shared + STAGE_FREE + 8 * x, 4);
    }
}

/* PARTLY and LATE; SUMMED: summed_stage. */
static __device__ __forceinline__ uint32_t stage_of(uint32_t shared, uint32_t w, uint32_t y) {
    return shared + (y ? K_AT + (6 + w) * SLICE : P_AT + w * SLICE) + (uint32_t)(warp_of() * 2048 + lane_of() * 16);
}

/* The mbarrier of the i-th filling of the stages of w, and its phase in tile n. The fifth has its own: warpgroup 1
 * waits for it, and not for those before, whose phases it could not tell from each other. */
static __device__ __forceinline__ uint32_t full_of(uint32_t shared, uint32_t w, uint32_t i) {
    return shared + (i == 4 ? STAGE_LAST : STAGE_FULL + number_of(w, i & 1));
}
static __device__ __forceinline__ uint32_t phase_of(uint32_t n, uint32_t i) { return i == 4 ? n & 1 : i >> 1; }

/* One lane: this CTA's mbarrier at `at` has a fellow in the other. */
static __device__ __forceinline__ void tell_other(uint32_t at) { cluster_arrive(cluster_address(at, rank_of() ^ 1)); }

/* One lane: the warp's part of the i-th filling is expected. */
static __device__ __forceinline__ void expect_stage(uint32_t shared, uint32_t w, uint32_t i) {
    mbar_expect(full_of(shared, w, i), 32 * 64);
}

/* The i-th filling of the other CTA's stages of W. */
template <int W>
static __device__ __forceinline__ void send_half(uint32_t shared, const float a[16], uint32_t n, uint32_t i) {
    const uint32_t bar = full_of((uint32_t)recompute((int)shared), W, i); /* the address over there is not kept */
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    if (i < 2) /* its P and dS, its slices 6 and 7 of K are read */
        mbar_wait_cluster(shared + STAGE_OPEN + 8 * i, (uint32_t)recompute((int)n) & 1);
    else /* the second and the third filling of stage 0 of W = 0, or one a tile */
        mbar_wait_cluster(shared + STAGE_FREE + number_of(W, i & 1),
                          fillings(W, i & 1) == 3 ? i >> 2 : (uint32_t)recompute((int)n) & 1);
#pragma unroll
    for (int k = 0; k < 4; k++)
        cluster_send4(cluster_address(stage_of(shared, W, i & 1) + k * 512, rank_of() ^ 1), a + 4 * k, there);
}

/* b += the i-th filling, of a stage of W, the fifth of one of 0. */
template <int W>
static __device__ __forceinline__ void take_half(uint32_t shared, float b[16], uint32_t n, uint32_t i) {
    const uint32_t from = i == 4 ? 0 : W;
    mbar_wait_cluster(full_of(shared, from, i), phase_of(n, i));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint4 y = shared_load128(stage_of(shared, from, i & 1) + k * 512);
        b[4 * k] += __uint_as_float(y.x), b[4 * k + 1] += __uint_as_float(y.y);
        b[4 * k + 2] += __uint_as_float(y.z), b[4 * k + 3] += __uint_as_float(y.w);
    }
    __syncwarp();
    if (i < 4 && lane_of() == 0) {
        if (i + 2 <= last_of(W)) {
            expect_stage(shared, W, i + 2);
            tell_other((uint32_t)recompute((int)shared) + STAGE_FREE + number_of(W, i & 1));
        }
        if (i == 3) mbar_arrive(shared + K_FREE + 24);
    }
}

#endif
