/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: from the products of a key tile to P, in the registers of a warpgroup. */
#ifndef ATTN_SM90_SDPA_FWD_SOFTMAX_H
#define ATTN_SM90_SDPA_FWD_SOFTMAX_H
#include "kernels/sm90/sdpa_fwd/work.h"

/* What is seldom true: the code for it is placed out of the way. */
static __device__ __forceinline__ int rare(int x) { return __builtin_expect(x != 0, 0); }

/* Of rows g and g + 8 of the warp: the maximum that P is taken against, in log2 units (-inf: none yet), and this
 * thread's sum of P. */
struct rows {
    float m[2], l[2];
};

constexpr float LEAST = -126; /* log2 units: smallest factor of a rescale */

static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Scores of hidden keys become `hidden`, whose P is 0. lo, hi: keys that the thread's rows see, from the tile's first
 * key and this thread's first column on. */
static __device__ __forceinline__ void hide_keys(float s[N_S], const int lo[2], const int hi[2], float hidden) {
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const int j = 8 * (x >> 2) + (x & 1), r = x >> 1 & 1;
        s[x] = j >= lo[r] && j < hi[r] ? s[x] : hidden;
    }
}

/* The maxima follow scores y, which are in log2 units from `from`; y then counts from the new ones. growth: factors of
 * sums and O, at least 2^LEAST, so that an infinity stays one. NaN scores pass the maximum unseen and make the sum NaN.
 */
static __device__ __forceinline__ void raise_maximum(float y[N_S], struct rows *rows, const float from[2],
                                                     float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = -INF;
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) largest = fmaxf(largest, fmaxf(y[4 * j + 2 * r], y[4 * j + 2 * r + 1]));
        largest = fmaxf(quad_max(largest) + from[r], rows->m[r]);
        growth[r] = exp2_fast(fmaxf(rows->m[r] - largest, LEAST));
        rows->m[r] = largest;
        const float rise = largest == -INF ? 0 : largest - from[r];
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) y[4 * j + 2 * r] -= rise, y[4 * j + 2 * r + 1] -= rise;
    }
}

/* Scores to P, in f32, and its sums in this thread. Returns nonzero, in all lanes of the warp, if a maximum has grown.
 * A row's maximum is looked for only where some score of the warp lies more than `slack` above the one in use: in most
 * tiles there are no shuffles. largest: no square of this thread's s is above it, so that mostly no score need be
 * looked at; INF: not known. */
static __device__ __forceinline__ int softmax_tile(float s[N_S], struct rows *rows, float sum[2], float growth[2],
                                                   float unit, float slack, float largest, int first) {
    const float from[2] = {rows->m[0] == -INF ? 0 : rows->m[0], rows->m[1] == -INF ? 0 : rows->m[1]};
    float part[4] = {-INF, -INF, -INF, -INF};
    int grows = first;
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = __fmaf_rn(s[x], unit, -from[x >> 1 & 1]);
    const float reach = slack + fminf(from[0], from[1]);
    if (SCORE_MOD && !first)
        grows = __any_sync(~0u, rows->m[0] == -INF || rows->m[1] == -INF ||
                                    !(reach >= 0 && unit * unit * largest <= reach * reach));
    if (!first && (!SCORE_MOD || grows)) {
#pragma unroll
        for (int x = 0; x < N_S; x++) part[x & 3] = fmaxf(part[x & 3], s[x]);
        const float most = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
        grows = __any_sync(~0u, rows->m[0] == -INF || rows->m[1] == -INF || most > slack);
    }
    if (first || rare(grows)) raise_maximum(s, rows, from, growth);
#pragma unroll
    for (int x = 0; x < 4; x++) part[x] = 0;
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = exp2_fast(s[x]), part[x & 3] += s[x];
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
    return grows;
}

/* P rounded, in the order of an A operand. */
static __device__ __forceinline__ void round_p(const float s[N_S], uint32_t p[N_P]) {
#pragma unroll
    for (int x = 0; x < N_P; x++) p[x] = pack16(TYPE, s[2 * x], s[2 * x + 1]);
}
#endif
