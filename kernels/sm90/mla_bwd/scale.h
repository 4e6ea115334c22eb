/* SPDX-License-Identifier: MIT
 * Part of specialized.cu and lockstep.cu, f16: the power of two 2^k by which a tile's P and dS are
 * multiplied before they are rounded, so that they keep their digits where dS is below f16's normal numbers; both, so
 * that P^T dO + dS^T Q is one sum, which is multiplied by 2^-k on its way to memory. 0 <= k <= 15, P being at most 1.
 *
 * k comes from a bound of |dS|, |scale| (g max |dP| + |shift|) < 2^(15 - k), of the work tile's tiles so far: each warp
 * that has dP leaves its heads' in shared memory before a barrier that is there anyway (even), and all warps read it
 * after that. When k falls, dQ in registers follows. */
#ifndef ATTN_SM90_MLA_BWD_SCALE_H
#define ATTN_SM90_MLA_BWD_SCALE_H
#include "kernels/device/f16_scale.h"
#include "kernels/sm90/mla_bwd/cells.h"

constexpr int DP_WARPS = EVEN ? 4 : 8; /* that leave a bound */

/* Of n numbers of dP, [4 j + 2 r + e] of row g + 8 r. WHOLE: all count, else the finite ones alone. */
template <int WHOLE> static __device__ __forceinline__ float bound_of(uint32_t shared, const float *dp, int n) {
    float bound = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint4 state = state_of(shared, r);
        float most = 0;
#pragma unroll
        for (int j = 0; j < n; j += 4)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float x = fabsf(dp[j + 2 * r + e]);
                most = fmaxf(most, WHOLE ? x : if_finite(x));
            }
        const float row = __fmaf_rn(__uint_as_float(state.y), most, fabsf(__uint_as_float(state.z)));
        bound = fmaxf(bound, WHOLE ? row : if_finite(row));
    }
    return bound;
}
/* Of a warp of DP_WARPS, from the bounds of its lanes. tile: n % 2; first: of the work tile. */
static __device__ __forceinline__ void leave_power(uint32_t shared, float bound, uint32_t warp, uint32_t tile,
                                                   int first) {
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(bound)) >> 23; /* bound < 2^(most - 126) */
    if (lane_of()) return;
    const uint32_t place = shared + POWERS_AT + warp;
    uint32_t k = (uint32_t)max(min(141 - (int)most, 15), 0);
    if (!first) k = min(k, shared_load8(place + 8 * (tile ^ 1)));
    shared_store8(place + 8 * tile, k);
}
static __device__ __forceinline__ void leave_bound(uint32_t shared, const struct kp_mla_bwd *p, const float *dp, int n,
                                                   uint32_t warp, uint32_t tile, int first) {
    float bound = bound_of<1>(shared, dp, n) * fabsf(p->in.scale);
    if (!(bound < INF)) bound = if_finite(bound_of<0>(shared, dp, n) * fabsf(p->in.scale));
    leave_power(shared, bound, warp, tile, first);
} /* k of the work tile's tiles up to the latest one with tile % 2 = `tile`. */
static __device__ __forceinline__ int exponent_at(uint32_t shared, uint32_t tile) {
    int k = 15;
#pragma unroll
    for (uint32_t x = 0; x < DP_WARPS; x += 4) {
        const uint32_t y = shared_load32(shared + POWERS_AT + 8 * tile + x);
#pragma unroll
        for (int e = 0; e < 32; e += 8) k = min(k, (int)(y >> e & 255));
    }
    return k;
}

/* dQ, in units of the tile before, in those of this tile. */
static __device__ __forceinline__ void follow(uint32_t shared, float q[128], float rope[16], uint32_t tile, int k,
                                              int first) {
    const int change = first ? 0 : k - exponent_at(shared, tile ^ 1);
    if (change == 0) return;
    const float factor = power_of_two(change);
#pragma unroll
    for (int x = 0; x < 128; x++) q[x] *= factor;
#pragma unroll
    for (int x = 0; x < 16; x++) rope[x] *= factor;
}
#endif
