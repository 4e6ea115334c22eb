/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu, SUMMED: dKV of a tile by its owner in each CTA of a pair, who sum all slices over the
 * heads of both before they store rows (what is sent, in which units, and stored: cluster_reduce_full.h).
 *
 * Two stages of 4 KiB, used by one warpgroup after the other as in pingpong_reduce_partial.h; with nine slices the
 * first is filled five times a tile. Units of 64 slots x 32 columns:
 *   send 0 | send 1 | take 0 | take 1 | send 2 | send 3 | take 2 | take 3 | ... | send 8 | take 8 */
#ifndef ATTN_SM90_MLA_BWD_PINGPONG_REDUCE_FULL_H
#define ATTN_SM90_MLA_BWD_PINGPONG_REDUCE_FULL_H
#include "kernels/sm90/mla_bwd/cluster_reduce_full.h"

constexpr uint32_t EXCHANGE_STEPS = 2 * SLICES;
/* Of unit k: filling i, of slice slice_of(i), and whether it is received. */
static __device__ __forceinline__ constexpr int exchange_receives(uint32_t k) {
    return k < 16 ? (int)(k >> 1 & 1) : (int)(k & 1);
}
static __device__ __forceinline__ constexpr uint32_t exchange_fill(uint32_t k) {
    return k < 16 ? 2 * (k >> 2) + (k & 1) : 8;
}
/* Bit 0: of the phase of the i-th filling of its stage, in a tile of parity `tile`. */
static __device__ __forceinline__ uint32_t exchange_phase(uint32_t i, uint32_t tile) {
    return (i >> 1 & 1) ^ (SLICES > 8 && i % 2 == 0 ? tile : 0);
}

static __device__ __forceinline__ void init_stages(uint32_t shared) {
    mbar_init(shared + STAGE_ORDER, 4);
    for (uint32_t y = 0; y < 2; y++) {
        mbar_init(shared + STAGE_FULL + 8 * y, 4);
        mbar_init(shared + STAGE_FREE + 8 * y, 4);
    }
}
static __device__ __forceinline__ void start_exchange(float d[16], const struct tile *t, uint32_t k) {
    const uint32_t x = slice_of(exchange_fill(k)), half = exchange_receives(k) ? rank_of() : rank_of() ^ 1;
    if (x == 8)
        multiply<1>(d, t, 8, half);
    else
        multiply<0>(d, t, x, half);
}
/* One lane: the warp's part of the i-th filling is expected. */
static __device__ __forceinline__ void expect_exchange(uint32_t shared, uint32_t i) {
    mbar_expect(shared + STAGE_FULL + 8 * (i & 1), 32 * 32 + (i == 0 ? 128 : 0));
}
static __device__ __forceinline__ void send_exchange(uint32_t shared, const float a[16], const struct scatter_dst *to,
                                                     uint32_t i, uint32_t tile) {
    const uint32_t bar = (uint32_t)recompute((int)shared) + STAGE_FULL + 8 * (i & 1);
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    mbar_wait_cluster(shared + STAGE_FREE + 8 * (i & 1), exchange_phase(i, tile) ^ 1);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) word[j] = __uint_as_float(pack16(KP_F16, a[4 * j + 2 * r], a[4 * j + 2 * r + 1]));
        cluster_send4(cluster_address(summed_stage(shared, 0, i) + r * 512, rank_of() ^ 1), word, there);
    }
    if (i == 0 && (lane_of() & 3) == 0) {
        const float word[4] = {__uint_as_float(to->exponents), 0, 0, 0};
        cluster_send4(cluster_address(exponents_at(shared, 0), rank_of() ^ 1), word, there);
    }
}
/* b and the i-th filling to the rows of the slots of the work tile's tile i_tile. */
static __device__ __forceinline__ void receive_exchange(uint32_t shared, const float b[16], struct scatter_dst *to,
                                                        uint32_t column, uint32_t i, uint32_t tile, uint32_t sums,
                                                        int i_tile) {
    uint4 y[2];
    mbar_wait_cluster(shared + STAGE_FULL + 8 * (i & 1), exchange_phase(i, tile));
    if (i == 0) {
        to->exponents |= shared_load32(exponents_at(shared, 0)) << 16;
        find_factors(to, sums, i_tile, rank_of() == 0);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) y[r] = shared_load128(summed_stage(shared, 0, i) + r * 512);
    __syncwarp();
    if (lane_of() == 0) {
        if (i + 2 < SLICES) expect_exchange(shared, i + 2);
        tell_other((uint32_t)recompute((int)shared) + STAGE_FREE + 8 * (i & 1));
        if (i + 1 == SLICES) mbar_arrive(shared + STAGE_ORDER);
    }
    store_both(b, y, to, column);
    __syncwarp(); /* or else ptxas puts these stores after later products, for which it lacks registers */
}

/* Unit K, whose products, in a, have been started. last: of the tiles that the warpgroup owns; tile: parity of
 * all tiles; i_tile: of the work tile. */
template <int W, uint32_t K>
static __device__ __forceinline__ void do_exchange(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                                   struct scatter_dst *to, int last, uint32_t tile, int i_tile) {
    constexpr uint32_t i = exchange_fill(K), x = slice_of(i), HAS_NEXT = K + 1 < EXCHANGE_STEPS;
    if (HAS_NEXT) start_exchange(b, t, K + 1);
    wgmma_wait(HAS_NEXT);
    wgmma_hold(a, 16);
    if (exchange_receives(K)) {
        if (last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
        receive_exchange(shared, a, to, 64 * x, i, tile, (uint32_t)recompute((int)shared) + SUMS_AT + 16 * W, i_tile);
    } else {
        if (i == 0) {
            mbar_wait(shared + STAGE_ORDER, tile ^ 1);
            if (lane_of() == 0) expect_exchange(shared, 0), expect_exchange(shared, 1);
            if (PREFETCH_FIRST) mbar_wait(shared + K_PREFETCHED, t->n);
        }
        send_exchange(shared, a, to, i, tile);
    }
    if constexpr (HAS_NEXT) do_exchange<W, K + 1>(shared, b, a, t, to, last, tile, i_tile);
}
#endif
