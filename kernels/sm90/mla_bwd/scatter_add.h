/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu and pingpong.cu: how 64 slots x 32 columns of dkv are added to memory. The sums stand in the
 * workspace, in an order of columns that spares most shuffles (KP_MLA_BWD_PERMUTED): of 16 columns, 8 y
 * + 2 t + e is number 4 t + 2 y + e, so that what a lane holds of 16 columns of a slot are 16 bytes side by side. */
#ifndef ATTN_SM90_MLA_BWD_SCATTER_ADD_H
#define ATTN_SM90_MLA_BWD_SCATTER_ADD_H
#include "kernels/sm90/mla_bwd/dkv.h"
#include "kernels/sm90/mla_bwd/scale.h"

/* Where a lane adds, [2 r + i] for slots (g & ~1) + i + 8 r of its warp: of the 32 numbers the 16 that even lanes g
 * hold of even slots and odd lanes of odd ones come first. An odd address: a slot that is not valid. */
struct scatter_dst {
    uint64_t address[4];
    float down; /* f16: undoes the tile's power of two */
    int all;    /* are valid in the whole warp: then nothing is asked, and nothing branches between the additions */
};
/* sums: where the work tile's are kept; buf: which buffer has the kv rows; half: of a slice, that this CTA adds. */
static __device__ __forceinline__ void find_dst(const struct kp_mla_bwd *p, struct scatter_dst *to, uint32_t shared,
                                                uint32_t sums, int, uint32_t buf, uint32_t half) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x), g = thread >> 2 & 7, t = thread & 3;
    const uint32_t slot_rows = shared + SLOT_ROWS_AT + 256 * buf + 64 * (thread >> 5 & 3) + 4 * (g & ~1u);
    const uint64_t base = kept(sums) + 128 * half + 16 * t;
    uint32_t off = 0;
#pragma unroll
    for (uint32_t x = 0; x < 4; x++) {
        const int32_t row = (int32_t)shared_load32(slot_rows + 4 * (x & 1) + 32 * (x >> 1));
        const uint32_t nowhere = row < 0 || !p->dkv.data;
        to->address[x] = address_of(base + 64 * ((x ^ g) & 1), (uint32_t)row, 4 * D) | nowhere;
        off |= nowhere;
    }
    to->all = __all_sync(~0u, !off);
    if (SCALED) to->down = power_of_two(-exponent_at(shared, buf));
}

/* Lane 4 g + t has d[4 j + 2 r + e]: slot g + 8 r, column 8 j + 2 t + e. Neighbours g swap 16 columns, so that
 * they have whole 128-byte lines of two slots together. */
static __device__ __forceinline__ void write_columns(const float d[16], const struct scatter_dst *to, uint32_t column) {
    const int odd = recompute((int)threadIdx.x) >> 2 & 1;
    float line[4][4], y[16];
#pragma unroll
    for (int x = 0; x < 16; x++) y[x] = SCALED ? d[x] * to->down : d[x];
#pragma unroll
    for (int x = 0; x < 4; x++) /* [x / 2][e] of both 16 columns */
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (x & 1) line[x][e] = __shfl_xor_sync(~0u, y[8 + 4 * (e >> 1) + (x & 2) + (e & 1)], 4);
#pragma unroll
    for (int x = 0; x < 4; x += 2)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float own = y[4 * (e >> 1) + x + (e & 1)], come = line[x + 1][e];
            line[x][e] = odd ? come : own;
            line[x + 1][e] = odd ? own : come;
        }
    if (to->all) {
#pragma unroll
        for (int x = 0; x < 4; x++) reduce_add4((float *)to->address[x] + column, line[x]);
    } else {
#pragma unroll
        for (int x = 0; x < 4; x++)
            reduce_add4((float *)to->address[x] + column, line[x], ~(uint32_t)to->address[x] & 1);
    }
}
/* What rows that are stored need. */
static __device__ __forceinline__ void expect_for_rows(uint32_t, uint32_t) {}
template <int W> static __device__ __forceinline__ void store_max_magnitude(uint32_t, int) {}
template <int W>
static __device__ __forceinline__ void begin_dst(const struct kp_mla_bwd *, struct scatter_dst *, struct tile *,
                                                 uint32_t, uint32_t, int, uint32_t) {}
#endif
