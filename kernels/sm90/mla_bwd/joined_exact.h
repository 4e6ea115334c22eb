/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu and lockstep.cu over joined lists (joined.h): the exact path of tiles with a score or dP that is
 * not finite, as far as both have it: who takes it, dQ, and dKV that is added.
 *
 * A cleared bit has P = dS = 0, and products make NaN of 0 and what is not finite: a row of Q or dO would reach the
 * gradients of entries that its query does not have, a row of K the dQ of queries that do not have it. Either shows in
 * a score or dP of that very cell. So a tile in which all of these are finite takes the products, and another is added
 * up cell by cell, cells with cleared bits left out, before its K is let go of; so are all tiles of a group with a row
 * whose share of the sink is NaN. */
#ifndef ATTN_SM90_MLA_BWD_JOINED_EXACT_H
#define ATTN_SM90_MLA_BWD_JOINED_EXACT_H
#include "kernels/device/reduce.h"
#include "kernels/sm90/mla_bwd/cells.h"

static __device__ __forceinline__ uint32_t bits_of(uint32_t shared, uint32_t buf, uint32_t entry) {
    return shared_load32(shared + ENTRY_BITS_AT + 256 * buf + 4 * entry);
}

/* When all warps have told: with dS; lockstep.cu: with the exchange of scores and dP. */
static __device__ __forceinline__ int takes_exact_path(uint32_t shared) {
    const uint2 states = shared_load32x2(shared + ODD_STATES_AT);
    const uint32_t other = ALT ? 0 : shared_load32(shared + EXACT_AT + 4);
    return (shared_load32(shared + EXACT_AT) | other | states.x | states.y) != 0;
}

/* P or dS of an entry and a row of the work tile: of tiles whose rows are entries, lockstep.cu: rows of the work tile.
 */
static __device__ __forceinline__ float cell_of(uint32_t tile, uint32_t entry, uint32_t row) {
    const uint32_t line = ALT ? entry : row, column = ALT ? row : entry;
    return unpack16(TYPE, shared_load16(tile + line * 128 + (((column >> 3) ^ (line & 7)) << 4) + 2 * (column & 7)));
}
/* Of a slice, columns column, + 1 (even) of a row. */
static __device__ __forceinline__ uint32_t pair_of(uint32_t slice, uint32_t row, uint32_t column) {
    return shared_load32(slice + row * 128 + (((column >> 3) ^ (row & 7)) << 4) + 2 * (column & 7));
}

/* dQ += dS K, as add_dq, of the entries that the row's query has. */
template <int W>
static __device__ __forceinline__ void add_dq_exactly(const struct kp_mla_bwd *p, uint32_t shared, uint32_t buf,
                                                      float q[128], float rope[16]) {
#pragma unroll 1
    for (uint32_t entry = 0; entry < 64; entry++) {
        const uint32_t bits = bits_of(shared, buf, entry);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 16 * warp_of() + (lane_of() >> 2) + 8 * r;
            if (!(bits >> query_of(p, row) & 1)) continue;
            const float ds = cell_of(shared + DS_AT, entry, (uint32_t)row);
            const uint32_t t = 2 * ((uint32_t)lane_of() & 3);
#pragma unroll
            for (uint32_t j = 0; j < 36; j++) {
                if (j >= 32 && SLICES == 8) continue;
                float *sum = j < 32 ? q + 4 * j + 2 * r : rope + 4 * (j - 32) + 2 * r;
                const uint32_t slice = j < 32 ? 4 * W + j / 8 : 8,
                               column = j < 32 ? 8 * (j % 8) : 32 * W + 8 * (j - 32);
                const uint32_t k = pair_of(shared + K_AT + slice * SLICE, entry, column + t);
                sum[0] = __fmaf_rn(ds, unpack16(TYPE, k & 0xffff), sum[0]);
                sum[1] = __fmaf_rn(ds, unpack16(TYPE, k >> 16), sum[1]);
            }
        }
    }
}

#if CFG_CTAS == 1 && !CFG_DETERMINISTIC
/* 64 columns of an entry's dKV, of the rows whose queries have it, straight to memory at its row `to`, in the order of
 * columns of scatter_add.h. down: undoes the tile's power of two. */
static __device__ __forceinline__ void add_dkv_of_entry(const struct kp_mla_bwd *p, uint32_t shared, uint64_t to,
                                                        uint32_t bits, uint32_t entry, uint32_t slice, uint32_t lane,
                                                        float down) {
    float x = 0, y = 0;
#pragma unroll 1
    for (uint32_t row = 0; row < 64; row++) {
        if (!(bits >> query_of(p, (int)row) & 1)) continue;
        const float ds = cell_of(shared + DS_AT, entry, row), prob = cell_of(shared + P_AT, entry, row);
        const uint32_t q = pair_of(shared + Q_AT + slice * Q_STEP, row, 2 * lane);
        x = __fmaf_rn(ds, unpack16(TYPE, q & 0xffff), x);
        y = __fmaf_rn(ds, unpack16(TYPE, q >> 16), y);
        if (slice >= V_SLICES) continue;
        const uint32_t o = pair_of(shared + DOUT_AT + slice * Q_STEP, row, 2 * lane);
        x = __fmaf_rn(prob, unpack16(TYPE, o & 0xffff), x);
        y = __fmaf_rn(prob, unpack16(TYPE, o >> 16), y);
    }
    /* of 16 columns 2 lane .. is 8 (lane / 4 % 2) + 2 (lane % 4) */
    const uint32_t column = 64 * slice + (2 * lane & ~15u) + 4 * (lane & 3) + 2 * (lane >> 2 & 1);
    reduce_add2((float *)to + column, x * down, y * down);
}
#endif
#endif
