/* SPDX-License-Identifier: MIT
 * Sums over the threads of a CTA that stand before a thread, for counting sorts. */
#ifndef ATTN_DEVICE_BLOCK_SCAN_H
#define ATTN_DEVICE_BLOCK_SCAN_H
#include <stdint.h>

/* The sum of a warp's numbers up to this lane's. */
static __device__ __forceinline__ uint32_t sum_to_lane(uint32_t own) {
    const uint32_t lane = threadIdx.x & 31;
    uint32_t sum = own;
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t below = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += below;
    }
    return sum;
}

/* `sum` being sum_to_lane(): the sum of the warps before this one, and of all. Has a barrier; the caller has one before
 * `share` is written again. */
struct warp_sums {
    uint32_t before, all;
};
template <int WARPS>
static __device__ __forceinline__ struct warp_sums sum_warps(uint32_t sum, uint32_t (&share)[WARPS]) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    struct warp_sums x = {0, 0};
    if (lane == 31) share[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w == warp) x.before = x.all;
        x.all += share[w];
    }
    return x;
}

/* Each thread has a digit, of which warp w has place[w][digit], the first of all at `first`: that becomes where the
 * first of warp w goes. Who reads others' needs a barrier before. */
template <int WARPS, int DIGITS>
static __device__ __forceinline__ void place_warps(uint32_t (&place)[WARPS][DIGITS], uint32_t first) {
    for (uint32_t w = 0; w < WARPS; w++) {
        const uint32_t count = place[w][threadIdx.x];
        place[w][threadIdx.x] = first;
        first += count;
    }
}
#endif
