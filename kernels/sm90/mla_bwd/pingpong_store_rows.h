/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu, deterministic: dKV of a tile by its owner, who stores all of it as rows of 16 bits
 * (stored_rows.h): 64 slots x 32 columns at a time in two sets of sums, one multiplied while the other is
 * stored; NEAR: x 64 columns in one set of 32, in whole lines. */
#ifndef ATTN_SM90_MLA_BWD_PINGPONG_STORE_ROWS_H
#define ATTN_SM90_MLA_BWD_PINGPONG_STORE_ROWS_H
#include "kernels/sm90/mla_bwd/stored_rows.h"

#ifdef CFG_NEAR
/* find_dst, and then: a lane stores the first half of each 64 columns if g is even, the second if it is odd, of its
 * own slots g + 8 r, bit r of `off`, and, `over` bytes away, of those of the lane with the other g of the pair, bit 2 +
 * r. */
static __device__ __forceinline__ void find_lines(struct scatter_dst *to, int32_t *over) {
    const uint32_t odd = (uint32_t)recompute((int)threadIdx.x) >> 2 & 1;
    to->off |= __shfl_xor_sync(~0u, to->off, 4) << 2;
    to->address += odd ? 64 : 0;
    *over = odd ? -2 * D : 2 * D;
}
/* 64 columns: neighbours g swap 32 columns, so that eight lanes store a whole 128-byte line of a slot. Not without
 * __syncwarp: ptxas would put the stores after the next products, for which there are no registers then (C7512,
 * spills). */
static __device__ __forceinline__ void store_lines(const float d[32], const struct scatter_dst *to, int32_t over,
                                                   uint32_t column) {
    const uint32_t odd = (uint32_t)recompute((int)threadIdx.x) >> 2 & 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t kept_half[4], come[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t x = pack16(KP_F16, d[4 * j + 2 * r], d[4 * j + 2 * r + 1]);
            const uint32_t y = pack16(KP_F16, d[16 + 4 * j + 2 * r], d[16 + 4 * j + 2 * r + 1]);
            come[j] = __shfl_xor_sync(~0u, odd ? x : y, 4);
            kept_half[j] = odd ? y : x;
        }
        char *row = (char *)to->address + 2 * column + r * 16 * D;
        store_once4(row, kept_half, ~to->off >> r & 1);
        store_once4(row + over, come, ~to->off >> (2 + r) & 1);
    }
    __syncwarp();
}
#else
constexpr uint32_t ROW_UNITS = 2 * SLICES;
static __device__ __forceinline__ void start_row(float d[16], const struct tile *t, uint32_t k) {
    if (slice_of(k / 2) == 8)
        multiply<1>(d, t, 8, k & 1);
    else
        multiply<0>(d, t, slice_of(k / 2), k & 1);
}
/* Unit K, whose products, in a, have been started. last: of the tiles that the warpgroup owns. */
template <uint32_t K>
static __device__ __forceinline__ void do_rows(uint32_t shared, float a[16], float b[16], const struct tile *t,
                                               const struct scatter_dst *to, int last) {
    constexpr uint32_t x = slice_of(K / 2), HAS_NEXT = K + 1 < ROW_UNITS;
    if (HAS_NEXT) start_row(b, t, K + 1);
    wgmma_wait(HAS_NEXT);
    wgmma_hold(a, 16);
    if (K % 2 && last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    if (PREFETCH_FIRST && K == 0) mbar_wait(shared + K_PREFETCHED, t->n);
    write_columns(a, to, 64 * x + 32 * (K % 2));
    if constexpr (HAS_NEXT) do_rows<K + 1>(shared, b, a, t, to, last);
}
#endif
#endif
