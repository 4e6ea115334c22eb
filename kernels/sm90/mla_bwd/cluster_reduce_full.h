/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu, SUMMED: pairs that store rows sum all of dKV over the heads of both CTAs first. Of
 * every 64 columns a CTA sends 32 to the other, as f16 numbers with the power of two of its own bound of the slot's row
 * (stored_rows.h), and that bound's exponent with the first of them; it adds what it receives to its own sums of
 * the other 32, in f32, and stores them with a power of two that both CTAs find: of the larger bound, doubled.
 *
 * A stage is 64 slots x 32 columns, 4 KiB; a warpgroup has two in the place of P (w = 0) or dS (w = 1), filled two or
 * three times a tile. Units of 64 slots x 32 columns, so ordered that one lies between a filling and its reading and
 * between a reading and the next filling (slice 8, which D = 512 has not, goes from warpgroup 0 to warpgroup 1):
 *   send 0 | send 1 | take 0 | take 1 | send 2 | send 3 | take 2 | w = 0: send slice 8 | take 3 | w = 1: take slice 8
 * The other CTA's exponents come to the place of the sums for dist, which are read before barrier 6 and written again
 * after barrier 5 of the next tile. */
#ifndef ATTN_SM90_MLA_BWD_CLUSTER_REDUCE_FULL_H
#define ATTN_SM90_MLA_BWD_CLUSTER_REDUCE_FULL_H
#include "kernels/sm90/mla_bwd/cta_pair.h"
#include "kernels/sm90/mla_bwd/stored_rows.h"

constexpr int SUMMED_UNITS = SLICES > 8 ? 9 : 8;
/* The filling of unit k, of which warpgroup w has slice slice_of(2 i + w), or 8; whether it is received. */
static __device__ __forceinline__ constexpr uint32_t filling_of(uint32_t w, int k) {
    const uint32_t x = SLICES > 8 && w == 0 && k > 6 ? 15 - (uint32_t)k : (uint32_t)k; /* units 7 and 8 change places */
    return x == 8 ? 4 : 2 * (x >> 2) + (x & 1);
}
static __device__ __forceinline__ constexpr int takes(uint32_t w, int k) {
    return filling_of(w, k) == 4 ? (int)w : k == 8 || (k >> 1 & 1);
}
static __device__ __forceinline__ constexpr uint32_t summed_slice(uint32_t w, int k) {
    return filling_of(w, k) == 4 ? 8 : slice_of(2 * filling_of(w, k) + w);
}
static __device__ __forceinline__ void start_summed(float d[16], const struct tile *t, uint32_t w, int k,
                                                    uint32_t mine) {
    const uint32_t half = takes(w, k) ? mine : mine ^ 1;
    if (summed_slice(w, k) == 8)
        multiply<1>(d, t, 8, half);
    else
        multiply<0>(d, t, summed_slice(w, k), half);
}

/* The lane's part of stage i & 1 of w; of the exponents, 16 bytes for the slots g and g + 8 of a warp. */
static __device__ __forceinline__ uint32_t summed_stage(uint32_t shared, uint32_t w, uint32_t i) {
    return shared + P_AT + w * SLICE + (i & 1) * 4096 + (uint32_t)(warp_of() * 1024 + lane_of() * 16);
}
static __device__ __forceinline__ uint32_t exponents_at(uint32_t shared, uint32_t w) {
    return shared + PART_AT + w * 512 + (uint32_t)(warp_of() * 128 + (lane_of() >> 2) * 16);
}
/* One lane: the warp's part of the i-th filling of w is expected. */
static __device__ __forceinline__ void expect_summed(uint32_t shared, uint32_t w, uint32_t i) {
    mbar_expect(full_of(shared, w, i), 32 * 32 + (i == 0 ? 128 : 0));
}

static __device__ __forceinline__ void expect_for_rows(uint32_t shared, uint32_t w) {
    expect_summed(shared, w, 0);
    expect_summed(shared, w, 1);
}

/* The i-th filling of the other CTA's stages of W. */
template <int W>
static __device__ __forceinline__ void send_summed(uint32_t shared, const float a[16], const struct scatter_dst *to,
                                                   uint32_t n, uint32_t i) {
    const uint32_t bar = full_of((uint32_t)recompute((int)shared), W, i);
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    if (i == 0) /* its P and dS are read: both stages are free */
        mbar_wait_cluster(shared + STAGE_OPEN, (uint32_t)recompute((int)n) & 1);
    if (i > 1) /* the second and the third filling of stage 0 of W = 0, or one a tile */
        mbar_wait_cluster(shared + STAGE_FREE + number_of(W, i & 1),
                          fillings(W, i & 1) == 3 ? i >> 2 : (uint32_t)recompute((int)n) & 1);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) word[j] = __uint_as_float(pack16(KP_F16, a[4 * j + 2 * r], a[4 * j + 2 * r + 1]));
        cluster_send4(cluster_address(summed_stage(shared, W, i) + r * 512, rank_of() ^ 1), word, there);
    }
    if (i == 0 && (lane_of() & 3) == 0) {
        const float word[4] = {__uint_as_float(to->exponents), 0, 0, 0};
        cluster_send4(cluster_address(exponents_at(shared, W), rank_of() ^ 1), word, there);
    }
}

static __device__ __forceinline__ float power_of(int exponent) { /* 2^exponent, exponent <= 0, or a small number */
    return __uint_as_float((uint32_t)max(127 + exponent, 1) << 23);
}
/* What both CTAs' sums of slot g + 8 r are multiplied by to be added, 2^(own - both) and 2^(other - both), as the
 * halves of factor[r]: of their bounds the larger one, doubled, is that of their sum. unit: of `tile` it is told, in
 * sums. */
static __device__ __forceinline__ void find_factors(struct scatter_dst *to, uint32_t sums, int tile, int unit) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int own = (int)(to->exponents >> 8 * r & 255), other = (int)(to->exponents >> (8 * r + 16) & 255);
        const int both = min(max(own, other) + 1, 255);
        if (unit) store_unit(to, sums, tile, r, (uint32_t)both, 0);
        to->factor[r] =
            __uint_as_float(__float_as_uint(power_of(own - both)) | __float_as_uint(power_of(other - both)) >> 16);
    }
}
/* b and what the other CTA has sent, y[r] of slot g + 8 r, to the slots' rows. */
static __device__ __forceinline__ void store_both(const float b[16], const uint4 y[2], const struct scatter_dst *to,
                                                  uint32_t column) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t factors = (uint32_t)recompute((int)__float_as_uint(to->factor[r]));
        const float f = __uint_as_float(factors & 0xffff0000), g = __uint_as_float(factors << 16);
        const uint32_t come[4] = {y[r].x, y[r].y, y[r].z, y[r].w};
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            word[j] = pack16(KP_F16, __fmaf_rn(unpack16(KP_F16, come[j] & 0xffff), g, b[4 * j + 2 * r] * f),
                             __fmaf_rn(unpack16(KP_F16, come[j] >> 16), g, b[4 * j + 2 * r + 1] * f));
        store_once4((char *)to->address + 2 * column + r * 16 * D, word, ~to->off >> r & 1);
    }
}
/* b and the i-th filling, of a stage of W, the fifth of one of 0, to the slots' rows. */
template <int W>
static __device__ __forceinline__ void take_summed(uint32_t shared, const float b[16], struct scatter_dst *to,
                                                   uint32_t column, uint32_t n, uint32_t i, int tile) {
    const uint32_t from = i == 4 ? 0 : W;
    uint4 y[2];
    mbar_wait_cluster(full_of(shared, from, i), phase_of(n, i));
    if (i == 0) {
        to->exponents |= shared_load32(exponents_at(shared, W)) << 16;
        find_factors(to, shared + SUMS_AT, tile, W == 0 && rank_of() == 0);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) y[r] = shared_load128(summed_stage(shared, from, i) + r * 512);
    __syncwarp();
    if (i < 4 && i + 2 <= last_of(W) && lane_of() == 0) {
        expect_summed(shared, W, i + 2);
        tell_other((uint32_t)recompute((int)shared) + STAGE_FREE + number_of(W, i & 1));
    }
    store_both(b, y, to, column);
}

/* Unit K of a tile, whose products, in a, have been started. */
template <int W, int K>
static __device__ __forceinline__ void do_summed(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                                 struct scatter_dst *to, uint32_t n, int last, int tile) {
    constexpr uint32_t x = summed_slice(W, K), i = filling_of(W, K);
    if (K + 1 < SUMMED_UNITS) start_summed(b, t, W, K + 1, rank_of());
    wgmma_wait(K + 1 < SUMMED_UNITS ? 1 : 0);
    wgmma_hold(a, 16);
    if ((x == 8 || takes(W, K)) && last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    if constexpr (takes(W, K) != 0)
        take_summed<W>(shared, a, to, 64 * x, n, i, tile);
    else
        send_summed<W>(shared, a, to, n, i);
    if constexpr (K + 1 < SUMMED_UNITS) do_summed<W, K + 1>(shared, b, a, t, to, n, last, tile);
}
#endif
