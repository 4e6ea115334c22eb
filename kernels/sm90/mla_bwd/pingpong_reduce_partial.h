/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu, CTAS = 2: dKV of a tile by its owner in each CTA of a pair, which sum eight of nine slices over
 * the heads of both before they add them to memory. What leaves an SM limits these kernels, so the sums that a CTA
 * sends are rounded to bf16, as P and dS were before (docs/numerics.md); all additions are f32. That is 81,920 bytes of
 * additions and 32,768 of messages a tile; with messages in f32 it is 147,456 however many slices are exchanged. Of an
 * exchanged slice a CTA sends 32 columns to a stage of the other and adds the other 32 with what it has received.
 *
 * A stage is 64 slots x 32 columns, 4 KiB. There are two, in the place that P has in other schedules, each filled four
 * times a tile, for one warpgroup after the other: who has taken a stage's last filling of the tile gives it to the
 * next tile's owner (STAGE_ORDER [y]), since by parity alone that one could not tell the phases of its own fillings
 * from those before. So the next owner's first units overlap with the last ones.
 *
 * Units of 64 slots x 64 columns, in one set of 32 sums, of slices interleaved as the plan says: the 32 columns of
 * slice x that go to the other CTA and the 32 of slice x - 1 that are added here, whose message has had a unit's time
 * to come. Products of 32 columns take the matrix unit as long as those of 64 would, P^T and dS^T coming from
 * registers. send 0 | send 1, take 0 | send 2, take 1 | ... | send 7, take 6 | take 7 | slice 8
 */
#ifndef ATTN_SM90_MLA_BWD_PINGPONG_REDUCE_PARTIAL_H
#define ATTN_SM90_MLA_BWD_PINGPONG_REDUCE_PARTIAL_H
#include "kernels/sm90/mla_bwd/cta_pair.h"
#include "kernels/sm90/mla_bwd/scatter_add.h"

constexpr uint32_t INTERLEAVED_UNITS = SLICES > 8 ? 10 : 9;

/* Two stages leave half of STAGE_FULL's place. */
static __device__ __forceinline__ constexpr uint32_t order_of(uint32_t y) { return y ? STAGE_FULL + 16 : STAGE_ORDER; }
static __device__ __forceinline__ void init_stages(uint32_t shared) {
    for (uint32_t y = 0; y < 2; y++) {
        mbar_init(shared + order_of(y), 4);
        mbar_init(shared + STAGE_FULL + 8 * y, 4);
        mbar_init(shared + STAGE_FREE + 8 * y, 4);
    }
}
static __device__ __forceinline__ uint32_t stage_at(uint32_t shared, uint32_t i) {
    return shared + P_AT + (i & 1) * 4096 + (uint32_t)(warp_of() * 1024 + lane_of() * 16);
}
/* One lane: the warp's part of the stage's next filling is expected. */
static __device__ __forceinline__ void expect_stage(uint32_t shared, uint32_t i) {
    mbar_expect(shared + STAGE_FULL + 8 * (i & 1), 32 * 32);
}
static __device__ __forceinline__ void send_unit(uint32_t shared, const float a[16], uint32_t i) {
    const uint32_t bar = (uint32_t)recompute((int)shared) + STAGE_FULL + 8 * (i & 1);
    const uint32_t there = cluster_address(bar, rank_of() ^ 1);
    mbar_wait_cluster(shared + STAGE_FREE + 8 * (i & 1), (i >> 1 & 1) ^ 1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float word[4];
#pragma unroll
        for (int e = 0; e < 4; e++) word[e] = __uint_as_float(pack16(TYPE, a[8 * k + 2 * e], a[8 * k + 2 * e + 1]));
        cluster_send4(cluster_address(stage_at(shared, i) + k * 512, rank_of() ^ 1), word, there);
    }
}
/* The lane's part of the i-th filling, which has come. */
struct message {
    uint4 words[2];
};
static __device__ __forceinline__ void read_message(uint32_t shared, struct message *m, uint32_t i) {
    mbar_wait_cluster(shared + STAGE_FULL + 8 * (i & 1), i >> 1 & 1);
#pragma unroll
    for (int k = 0; k < 2; k++) m->words[k] = shared_load128(stage_at(shared, i) + k * 512);
}
/* b += m, the i-th filling. */
static __device__ __forceinline__ void take_message(uint32_t shared, float b[16], const struct message *m, uint32_t i) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t word[4] = {m->words[k].x, m->words[k].y, m->words[k].z, m->words[k].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            b[8 * k + 2 * e] += __uint_as_float(word[e] << 16);
            b[8 * k + 2 * e + 1] += __uint_as_float(word[e] & 0xffff0000u);
        }
    }
    __syncwarp();
    if (lane_of()) return;
    if (i < 6) expect_stage(shared, i);
    tell_other((uint32_t)recompute((int)shared) + STAGE_FREE + 8 * (i & 1));
    if (i >= 6) mbar_arrive(shared + order_of(i & 1));
}

/* Unit K > 0, whose products, in a, have been started. last: of the tiles that the warpgroup owns. to: at this
 * CTA's columns of slice 0. */
template <uint32_t K, int SILENT = 0>
static __device__ __forceinline__ void do_interleaved(uint32_t shared, float a[32], const struct tile *t,
                                                      const struct scatter_dst *to, int last, uint32_t tile) {
    constexpr uint32_t TAKES = K == 8, place = TAKES ? 0 : K < 8 ? K : 8;
    struct message m;
    if (K == 1) {
        mbar_wait(shared + order_of(1), tile ^ 1);
        if (lane_of() == 0) expect_stage(shared, 1);
    }
    if (K <= 8) read_message(shared, &m, K - 1);
    if (!SILENT) {
        wgmma_wait(0);
        wgmma_hold(a, TAKES ? 16 : 32);
    }
    if (last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * place);
    if (K < 8) {
        send_unit(shared, a, K);
        take_message(shared, a + 16, &m, K - 1);
        write_columns(a + 16, to, 64 * (K - 1));
    } else if (TAKES) {
        take_message(shared, a, &m, 7);
        write_columns(a, to, 64 * 7);
    } else if (!SILENT) { /* slice 8 */
        write_columns(a, to, 512 - 32 * rank_of());
        write_columns(a + 16, to, 544 - 32 * rank_of());
    }
    if constexpr (K + 1 < INTERLEAVED_UNITS) {
        float b[32]; /* one array for all units makes ptxas serialise the products (C7511) */
        if (SILENT) {
#pragma unroll
            for (int x = 0; x < 32; x++) b[x] = 0;
        } else if (K == 7)
            multiply<0>(b, t, 0, 1);
        else if (K == 8)
            multiply_slice<1>(b, t, 8);
        else
            multiply_slice<0>(b, t, K + 1);
        do_interleaved<K + 1, SILENT>(shared, b, t, to, last, tile);
    }
}
/* SILENT: the exact path has added what this CTA's heads give: it sends zeros, and adds what the other CTA sends. */
static __device__ __forceinline__ void do_all_silently(uint32_t shared, const struct scatter_dst *to, int last,
                                                       uint32_t tile) {
    float a[32];
#pragma unroll
    for (int x = 0; x < 32; x++) a[x] = 0;
    mbar_wait(shared + order_of(0), tile ^ 1);
    if (lane_of() == 0) expect_stage(shared, 0);
    send_unit(shared, a, 0);
    do_interleaved<1, 1>(shared, a, (const struct tile *)0, to, last, tile);
}
/* All units. first: the products of the first have been started there; tile: parity of all tiles. */
static __device__ __forceinline__ void do_all_interleaved(uint32_t shared, float first[16], const struct tile *t,
                                                          const struct scatter_dst *to, int last, uint32_t tile) {
    float a[32];
    mbar_wait(shared + order_of(0), tile ^ 1);
    if (lane_of() == 0) expect_stage(shared, 0);
    wgmma_wait(0);
    wgmma_hold(first, 16);
    send_unit(shared, first, 0);
    multiply_slice<0>(a, t, 1);
    do_interleaved<1>(shared, a, t, to, last, tile);
}
#endif
