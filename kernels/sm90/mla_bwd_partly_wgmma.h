/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_even_wgmma.cu, CTAS = 2: pairs that sum two of each warpgroup's slices of dKV over the heads of both
 * CTAs, and add the others to memory each for itself. What memory takes and what a pair can exchange are two limits,
 * and this stays below both.
 *
 * Of an exchanged slice a CTA sends 32 columns to a stage of the other (mla_bwd_pair_wgmma.h), which lies in the place
 * of P (w = 0) or dS (w = 1) and is filled twice a tile, and adds the other 32 with what it has received. A tile of a
 * warpgroup is nine units of 64 slots x 32 columns, in this order, so that what is received is there when it is
 * wanted and a stage is free when it is filled (slice 4: its half of slice 8, which D = 512 has not):
 *   send slice 0 | slice 1, two halves | take slice 0 | slice 2, two halves | send slice 3 | half of 8 | take slice 3
 */
#ifndef ATTN_SM90_MLA_BWD_PARTLY_WGMMA_H
#define ATTN_SM90_MLA_BWD_PARTLY_WGMMA_H
#include "kernels/sm90/mla_bwd_pair_wgmma.h"

enum { ADD, SEND, TAKE };
struct unit {
    int what;
    uint32_t slice, half; /* of the warpgroup's; half of an exchanged slice: 1, the own one, 0, the other's */
};
constexpr int UNITS = SLICES > 8 ? 9 : 8;
static __device__ __forceinline__ constexpr struct unit unit_of(int k) {
    const struct unit all[] = {{SEND, 0, 0}, {ADD, 1, 0},  {ADD, 1, 1}, {TAKE, 0, 1}, {ADD, 2, 0},
                               {ADD, 2, 1},  {SEND, 3, 0}, {ADD, 4, 0}, {TAKE, 3, 1}};
    return all[k == 7 && SLICES == 8 ? 8 : k];
}
/* The slice of a unit, and its columns of 32. mine: this CTA's half of exchanged slices. */
static __device__ __forceinline__ constexpr uint32_t slice_at(uint32_t w, int k) {
    return unit_of(k).slice == 4 ? 8 : slice_of(2 * unit_of(k).slice + w);
}
static __device__ __forceinline__ uint32_t half_at(uint32_t w, int k, uint32_t mine) {
    const struct unit u = unit_of(k);
    return u.slice == 4 ? w : u.what == ADD ? u.half : mine ^ u.half ^ 1;
}
static __device__ __forceinline__ void start_unit(float d[16], const struct tile *t, uint32_t w, int k, uint32_t mine) {
    if (slice_at(w, k) == 8)
        multiply<1>(d, t, 8, half_at(w, k, mine));
    else
        multiply<0>(d, t, slice_at(w, k), half_at(w, k, mine));
}

/* The j-th filling of a tile of the other CTA's stage of W, and of this one's. */
template <int W>
static __device__ __forceinline__ void send_unit(uint32_t shared, const float a[16], uint32_t n, uint32_t j) {
    const uint32_t bar = (uint32_t)recompute((int)shared) + STAGE_FULL + number_of(W, 0);
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    mbar_wait_cluster(shared + (j ? STAGE_FREE + number_of(W, 0) : STAGE_OPEN), (uint32_t)recompute((int)n) & 1);
#pragma unroll
    for (int k = 0; k < 4; k++)
        cluster_send4(cluster_address(stage_of(shared, W) + k * 512, rank_of() ^ 1), a + 4 * k, there);
}
template <int W> static __device__ __forceinline__ void take_unit(uint32_t shared, float b[16], uint32_t j) {
    mbar_wait_cluster(shared + STAGE_FULL + number_of(W, 0), j);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint4 y = shared_load128(stage_of(shared, W) + k * 512);
        b[4 * k] += __uint_as_float(y.x), b[4 * k + 1] += __uint_as_float(y.y);
        b[4 * k + 2] += __uint_as_float(y.z), b[4 * k + 3] += __uint_as_float(y.w);
    }
    __syncwarp();
    if (lane_of()) return;
    if (j) {
        mbar_arrive(shared + PD_FREE);
    } else {
        mbar_expect(shared + STAGE_FULL + number_of(W, 0), 32 * 64);
        tell_other((uint32_t)recompute((int)shared) + STAGE_FREE + number_of(W, 0));
    }
}

template <int W, int K>
static __device__ __forceinline__ void do_unit(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                               const struct places *to, uint32_t n, int last) {
    constexpr uint32_t x = slice_at(W, K);
    const uint32_t mine = rank_of();
    if (K + 1 < UNITS) start_unit(b, t, W, K + 1, mine);
    wgmma_wait(K + 1 < UNITS ? 1 : 0);
    wgmma_hold(a, 16);
    constexpr int whole = x == 8 || (unit_of(K).what == ADD ? unit_of(K).half == 1 : unit_of(K).what == TAKE);
    if (whole && last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    if (unit_of(K).what == SEND) return send_unit<W>(shared, a, n, unit_of(K).slice != 0);
    if (unit_of(K).what == TAKE) take_unit<W>(shared, a, unit_of(K).slice != 0);
    add_places(a, to, 64 * x + 32 * half_at(W, K, mine));
}
template <int W, int K>
static __device__ __forceinline__ void do_units(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                                const struct places *to, uint32_t n, int last) {
    do_unit<W, K>(shared, a, b, t, to, n, last);
    if constexpr (K + 1 < UNITS) do_units<W, K + 1>(shared, b, a, t, to, n, last);
}
#endif
