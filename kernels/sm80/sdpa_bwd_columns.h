/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu and sdpa_bwd_bias.cu: 16 columns of S^T = K Q^T or dP^T = V dO^T of a warp's part. The includer
 * has defined TYPE, S_M, S_N and PITCH. */
#ifndef ATTN_SM80_SDPA_BWD_COLUMNS_H
#define ATTN_SM80_SDPA_BWD_COLUMNS_H
#include "kernels/device/mma.h"
#include "kernels/device/shared.h"

/* rX += A B^T over columns 16 k to 16 k + 15 of two tiles in shared memory; a_lane, b_lane: where the lane's chunk of
 * the part's rows lies in column 0. */
static __device__ __forceinline__ void columns_product(float rX[S_M][S_N][4], uint32_t a_lane, uint32_t b_lane, int k) {
    uint32_t a[S_M][4];
#pragma unroll
    for (int x = 0; x < S_M; x++) load_matrix4(a[x], tile_step(a_lane, PITCH, 2 * k) + x * 16 * PITCH);
    if constexpr (S_N == 1) {
        uint32_t b[2];
        load_matrix2(b, tile_step(b_lane, PITCH, 2 * k));
#pragma unroll
        for (int x = 0; x < S_M; x++) mma_m16n8k16(TYPE, rX[x][0], a[x], b[0], b[1]);
    }
#pragma unroll
    for (int n = 0; n + 1 < S_N; n += 2) {
        uint32_t b[4];
        load_matrix4(b, tile_step(b_lane, PITCH, 2 * k) + n * 8 * PITCH);
#pragma unroll
        for (int x = 0; x < S_M; x++) {
            mma_m16n8k16(TYPE, rX[x][n], a[x], b[0], b[1]);
            mma_m16n8k16(TYPE, rX[x][n + 1], a[x], b[2], b[3]);
        }
    }
}
#endif
