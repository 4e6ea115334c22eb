/* SPDX-License-Identifier: MIT
 * Sums over the lanes of a warp, in one fixed order. */
#ifndef ATTN_DEVICE_WARP_H
#define ATTN_DEVICE_WARP_H

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}
#endif
