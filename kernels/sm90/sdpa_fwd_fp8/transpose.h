/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: the warps that transpose V. wgmma reads e4m3 along k alone, and V lies along its columns.
 *
 * A step takes 32 keys by 16 columns. ldmatrix.trans takes pairs of bytes for its elements: register m of lane 4 c + t
 * has keys 8 m + 2 t and the next one, columns 2 c and 2 c + 1 of each. Byte permutes part the two columns, and a word
 * of keys 2 t, 2 t + 1, 8 + 2 t, 8 + 2 t + 1 is what products.h wants at k 4 t .. 4 t + 3: stmatrix puts it there. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_TRANSPOSE_H
#define ATTN_SM90_SDPA_FWD_FP8_TRANSPOSE_H
#include "kernels/device/mma.h"
#include "kernels/device/stmatrix.h"
#include "kernels/sm90/sdpa_fwd_fp8/work.h"

/* 0 in place of keys from `valid` on, counted from the step's first one; x[m] has keys 8 m + 2 t, + 1. */
static __device__ __forceinline__ void clear_keys(uint32_t x[4], int valid) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const int left = valid - (8 * m + 2 * t);
        x[m] = left >= 2 ? x[m] : left == 1 ? x[m] & 0xffff : 0;
    }
}

/* A warp's share of a tile of KEYS keys, of which `valid` exist: a part of the columns. Lane 8 m + r gives
 * the address of row r of matrix m; rows of four even and four odd columns are in banks of their own, so that the
 * lanes from 16 on have their two columns in exchanged registers. */
static __device__ __forceinline__ void transpose_values(uint32_t from, uint32_t to, int share, int valid) {
    const uint32_t lane = threadIdx.x % 32, r = lane % 8, m = lane / 8;
    const uint32_t d = 2 * r + (m & 1 ^ r >> 2);    /* of 16 columns */
    constexpr int SHARE = DIM_V / 16 / TRANSPOSERS; /* chunks of 16 columns */
    const uint32_t first = lane < 16 ? 0x6420 : 0x7531, second = first ^ 0x1111;
#pragma unroll 1
    for (int group = 0; group < KEYS / 32; group++) {
        const uint32_t keys = from + (uint32_t)group * 4096 + (8 * m + r) * 128;
        const uint32_t columns = to + d * 128 + ((2 * (uint32_t)group + m / 2 ^ d % 8) << 4);
#pragma unroll
        for (int y = 0; y < SHARE; y++) {
            const int chunk = share * SHARE + y;
            uint32_t x[4], z[4];
            load_matrix4_trans(x, keys + ((chunk ^ r) << 4));
            if (valid < 32 * group + 32) clear_keys(x, valid - 32 * group);
            z[0] = __byte_perm(x[0], x[1], first), z[1] = __byte_perm(x[0], x[1], second);
            z[2] = __byte_perm(x[2], x[3], first), z[3] = __byte_perm(x[2], x[3], second);
            store_matrix4(columns + 2048 * chunk, z);
        }
    }
}

/* Warps 1 .. TRANSPOSERS of the last warpgroup. */
static __device__ __forceinline__ void transpose(uint32_t shared) {
    const int share = (int)threadIdx.x / 32 % 4 - 1, lane = (int)threadIdx.x % 32;
    uint32_t tile = 0; /* of keys */
#pragma unroll 1
    for (uint32_t q_tile = 0;; q_tile++) {
        mbar_wait(shared + Q_FULL + 8 * (q_tile & 1), q_tile >> 1 & 1);
        const uint32_t place = shared + WORK + WORK_BYTES * (q_tile & 1);
        const int n_tiles = (int)shared_load32(place), first = (int)shared_load32(place + 4),
                  sk = (int)shared_load32(place + 20);
        if (n_tiles < 0) return;
#pragma unroll 1
        for (int n = n_tiles - 1; n >= 0; n--, tile++) {
            const uint32_t x = tile % R_STAGES, y = stage_of(tile);
            mbar_wait(shared + R_FULL + 8 * x, tile / R_STAGES & 1);
            mbar_wait(shared + V_FREE + 8 * y, phase_of(tile) ^ 1);
            transpose_values(shared + R_RING + x * K_BYTES, shared + V_RING + y * V_BYTES, share,
                             sk - (first + n) * KEYS);
            async_fence();
            __syncwarp();
            if (lane == 0) mbar_arrive(shared + V_FULL + 8 * y), mbar_arrive(shared + R_FREE + 8 * x);
        }
        __syncwarp();
        if (lane == 0) mbar_arrive(shared + Q_FREE + 8 * (q_tile & 1));
    }
}
#endif
