/* SPDX-License-Identifier: MIT
 * Over the four lanes of a quad, which hold a row of a matrix product's accumulators. */
#ifndef ATTN_DEVICE_QUAD_H
#define ATTN_DEVICE_QUAD_H

static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
#endif
