/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu, CTAS = 2: stages and mbarriers by which the CTAs of a pair sum dKV over their heads.
 * Of the 64 columns of a slice each sends 32, as sums of its own heads in f16, to a stage of the other, and adds what
 * it receives to its own sums of the other 32 (cluster_reduce_full.h). Of this pingpong.cu has tell_other alone.
 *
 * Who has read a stage tells the other CTA by an arrival there (cluster_arrive), which does not wait for the additions
 * to memory that its thread has under way. */
#ifndef ATTN_SM90_MLA_BWD_CTA_PAIR_H
#define ATTN_SM90_MLA_BWD_CTA_PAIR_H
#include "kernels/device/cluster.h"
#include "kernels/sm90/mla_bwd/cells.h"

/* How often stage y is filled in a tile where all slices are exchanged: of slice 8, warpgroup 0 sends and warpgroup 1
 * adds, from a stage of warpgroup 0. */
static __device__ __forceinline__ constexpr uint32_t fillings(uint32_t w, uint32_t y) {
    return SLICES > 8 && w == 0 && y == 0 ? 3 : 2;
}
static __device__ __forceinline__ constexpr uint32_t last_of(uint32_t w) { return SLICES > 8 && w == 0 ? 4 : 3; }
/* Of the mbarriers of stage y of warpgroup w. */
static __device__ __forceinline__ constexpr uint32_t number_of(uint32_t w, uint32_t y) { return 8 * (2 * w + y); }

static __device__ __forceinline__ void init_pair(uint32_t shared) {
    mbar_init(shared + STAGE_OPEN, 8);
    mbar_init(shared + STAGE_LAST, 4);
    for (uint32_t x = 0; x < 4; x++) {
        mbar_init(shared + STAGE_FULL + 8 * x, 4);
        mbar_init(shared + STAGE_FREE + 8 * x, 4);
    }
}

/* The mbarrier of the i-th filling of the stages of w, and its phase in tile n. The fifth has its own: warpgroup 1
 * waits for it, and not for those before, whose phases it could not tell from each other. */
static __device__ __forceinline__ uint32_t full_of(uint32_t shared, uint32_t w, uint32_t i) {
    return shared + (i == 4 ? STAGE_LAST : STAGE_FULL + number_of(w, i & 1));
}
static __device__ __forceinline__ uint32_t phase_of(uint32_t n, uint32_t i) { return i == 4 ? n & 1 : i >> 1; }

/* One lane: this CTA's mbarrier at `at` has a fellow in the other. */
static __device__ __forceinline__ void tell_other(uint32_t mbarrier) {
    cluster_arrive(cluster_address(mbarrier, rank_of() ^ 1));
}
#endif
