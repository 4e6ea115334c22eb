/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu, CTAS = 2: pairs that sum all slices of dKV but slice 8 over the heads of both CTAs
 * before they add them to memory. What leaves a multiprocessor is the limit of these kernels, so the sums that a CTA
 * sends to the other are rounded to bf16, as P and dS were before (docs/numerics.md); all additions are f32. 81,920
 * bytes of additions and 32,768 of messages a tile; with messages in f32 it is 147,456 however many slices are
 * exchanged.
 *
 * Of an exchanged slice a CTA sends 32 columns to a stage of the other and adds the other 32 with what it has received.
 * A stage is 64 slots x 32 columns, 4 KiB; a warpgroup has two in the place of P (w = 0) or dS (w = 1), each filled
 * twice a tile. Nine units of 64 slots x 32 columns, so ordered that another lies between a filling and its reading and
 * between that and the next filling:
 *   send 0 | send 1 | take 0 | take 1 | send 2 | send 3 | half of slice 8 | take 2 | take 3     (D = 512: no slice 8)
 */
#ifndef ATTN_SM90_MLA_BWD_PARTLY_WGMMA_H
#define ATTN_SM90_MLA_BWD_PARTLY_WGMMA_H
#include "kernels/sm90/mla_bwd/cta_pair.h"

static_assert(!PARTLY || TYPE == KP_BF16, "f16 has more digits than the messages");

enum { ADD, SEND, TAKE };
struct unit {
    int what;
    uint32_t slice; /* of the warpgroup's; 4: slice 8 */
};
constexpr int UNITS = SLICES > 8 ? 9 : 8;
static __device__ __forceinline__ constexpr struct unit unit_of(int k) {
    const struct unit all[] = {{SEND, 0}, {SEND, 1}, {TAKE, 0}, {TAKE, 1}, {SEND, 2},
                               {SEND, 3}, {ADD, 4},  {TAKE, 2}, {TAKE, 3}};
    return all[k > 5 && SLICES == 8 ? k + 1 : k];
}
/* The slice of a unit, and which 32 of its columns. mine: this CTA's half of exchanged slices. */
static __device__ __forceinline__ constexpr uint32_t slice_at(uint32_t w, int k) {
    return unit_of(k).slice == 4 ? 8 : slice_of(2 * unit_of(k).slice + w);
}
static __device__ __forceinline__ uint32_t half_at(uint32_t w, int k, uint32_t mine) {
    return unit_of(k).what == ADD ? w : unit_of(k).what == TAKE ? mine : mine ^ 1;
}

/* Stage i & 1 of w, of which the i-th filling of a tile is sent for slice i. */
static __device__ __forceinline__ uint32_t unit_stage(uint32_t shared, uint32_t w, uint32_t i) {
    return shared + P_AT + w * SLICE + (i & 1) * 4096 + (uint32_t)(warp_of() * 1024 + lane_of() * 16);
}
/* One lane: the warp's part of the i-th filling is expected. */
static __device__ __forceinline__ void expect_unit(uint32_t shared, uint32_t w, uint32_t i) {
    mbar_expect(shared + STAGE_FULL + number_of(w, i & 1), 32 * 32);
}
/* The i-th filling of the other CTA's stages of W. */
template <int W>
static __device__ __forceinline__ void send_unit(uint32_t shared, const float a[16], uint32_t n, uint32_t i) {
    const uint32_t bar = (uint32_t)recompute((int)shared) + STAGE_FULL + number_of(W, i & 1);
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    if (i != 1) /* the first filling waits for both stages */
        mbar_wait_cluster(shared + (i ? STAGE_FREE + number_of(W, i & 1) : STAGE_OPEN),
                          (uint32_t)recompute((int)n) & 1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float word[4];
#pragma unroll
        for (int e = 0; e < 4; e++) word[e] = __uint_as_float(pack16(TYPE, a[8 * k + 2 * e], a[8 * k + 2 * e + 1]));
        cluster_send4(cluster_address(unit_stage(shared, W, i) + k * 512, rank_of() ^ 1), word, there);
    }
}
/* b += the i-th filling. */
template <int W> static __device__ __forceinline__ void take_unit(uint32_t shared, float b[16], uint32_t i) {
    mbar_wait_cluster(shared + STAGE_FULL + number_of(W, i & 1), i >> 1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint4 y = shared_load128(unit_stage(shared, W, i) + k * 512);
        const uint32_t word[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            b[8 * k + 2 * e] += __uint_as_float(word[e] << 16);
            b[8 * k + 2 * e + 1] += __uint_as_float(word[e] & 0xffff0000u);
        }
    }
    __syncwarp();
    if (lane_of()) return;
    if (i < 2) {
        expect_unit(shared, W, i + 2);
        tell_other((uint32_t)recompute((int)shared) + STAGE_FREE + number_of(W, i));
    }
    if (i == 3) mbar_arrive(shared + PD_FREE);
}

static __device__ __forceinline__ void start_unit(float d[16], const struct tile *t, uint32_t w, int k, uint32_t mine) {
    if (slice_at(w, k) == 8)
        multiply<1>(d, t, 8, half_at(w, k, mine));
    else
        multiply<0>(d, t, slice_at(w, k), half_at(w, k, mine));
}
/* Unit K, whose products, in a, have been started. */
template <int W, int K>
static __device__ __forceinline__ void do_units(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                                const struct places *to, uint32_t n, int last) {
    constexpr uint32_t x = slice_at(W, K);
    const uint32_t mine = rank_of();
    if (K + 1 < UNITS) start_unit(b, t, W, K + 1, mine);
    wgmma_wait(K + 1 < UNITS ? 1 : 0);
    wgmma_hold(a, 16);
    if (unit_of(K).what != SEND && last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    if (unit_of(K).what == SEND) {
        send_unit<W>(shared, a, n, unit_of(K).slice);
    } else {
        if (unit_of(K).what == TAKE) take_unit<W>(shared, a, unit_of(K).slice);
        add_places(a, to, 64 * x + 32 * half_at(W, K, mine));
    }
    if constexpr (K + 1 < UNITS) do_units<W, K + 1>(shared, b, a, t, to, n, last);
}
#endif
