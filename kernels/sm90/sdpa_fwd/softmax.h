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
constexpr float FAR = 100;    /* log2 units: P that lie further above a maximum may overflow */

static __device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Scores of hidden keys in row r (of rows g and g + 8 of the warp) become `hidden`, whose P is 0. lo, hi: keys that the
 * row sees, from the tile's first key and this thread's first column on. */
static __device__ __forceinline__ void hide_keys(float s[N_S], int r, int lo, int hi, float hidden) {
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const int j = 8 * (x >> 2) + (x & 1);
        if ((x >> 1 & 1) == r) s[x] = j >= lo && j < hi ? s[x] : hidden;
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

/* The exponentials of scores y, in log2 units from the maxima, and the thread's sums of them. */
static __device__ __forceinline__ void exponentials(float y[N_S], float sum[2]) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) y[x] = exp2_fast(y[x]), part[x & 3] += y[x];
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
}

/* Products to P, in f32, and its sums in this thread, against maxima that no score passes. */
static __device__ __forceinline__ void softmax_exact(float s[N_S], struct rows *rows, float sum[2], float growth[2],
                                                     float unit) {
    const float from[2] = {rows->m[0] == -INF ? 0 : rows->m[0], rows->m[1] == -INF ? 0 : rows->m[1]};
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = __fmaf_rn(s[x], unit, -from[x >> 1 & 1]);
    raise_maximum(s, rows, from, growth);
    exponentials(s, sum);
}

/* The same, the largest score being looked for only where one of the warp lies more than `slack` above the maximum in
 * use: in most tiles there are no shuffles. Returns nonzero, in all lanes, if a maximum has grown. */
static __device__ __forceinline__ int softmax_tested(float s[N_S], struct rows *rows, float sum[2], float growth[2],
                                                     float unit, float slack) {
    const float from[2] = {rows->m[0] == -INF ? 0 : rows->m[0], rows->m[1] == -INF ? 0 : rows->m[1]};
    float over[4] = {-INF, -INF, -INF, -INF};
#pragma unroll
    for (int x = 0; x < N_S; x++)
        s[x] = __fmaf_rn(s[x], unit, -from[x >> 1 & 1]), over[x & 3] = fmaxf(over[x & 3], s[x]);
    const float most = fmaxf(fmaxf(over[0], over[1]), fmaxf(over[2], over[3]));
    const int grows = __any_sync(~0u, rows->m[0] == -INF || rows->m[1] == -INF || most > slack);
    if (rare(grows)) raise_maximum(s, rows, from, growth);
    exponentials(s, sum);
    return grows;
}

/* The same against the maxima in use, whatever the scores are: to look for the largest one first would keep the
 * exponentials waiting. most: of each row, the thread's largest score from its maximum on. Returns nonzero where P may
 * not stay so: a score lies more than `slack` above the maximum, or there is none yet. */
static __device__ __forceinline__ int softmax_ahead(float s[N_S], const struct rows *rows, float sum[2], float most[2],
                                                    float unit, float slack) {
    const float from[2] = {rows->m[0] == -INF ? 0 : rows->m[0], rows->m[1] == -INF ? 0 : rows->m[1]};
    float part[4] = {0, 0, 0, 0}, over[4] = {-INF, -INF, -INF, -INF};
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const float y = __fmaf_rn(s[x], unit, -from[x >> 1 & 1]);
        over[x & 3] = fmaxf(over[x & 3], y);
        s[x] = exp2_fast(y);
        part[x & 3] += s[x];
    }
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
    most[0] = fmaxf(over[0], over[1]), most[1] = fmaxf(over[2], over[3]);
    return rows->m[0] == -INF || rows->m[1] == -INF || fmaxf(most[0], most[1]) > slack || sum[0] + sum[1] > 3e38f;
}

/* P and sums of softmax_ahead to the maxima that the tile has after all, `most` (at most FAR) above those in use. */
static __device__ __forceinline__ void raise_after(float s[N_S], struct rows *rows, float sum[2], const float most[2],
                                                   float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float largest = fmaxf(quad_max(most[r]) + rows->m[r], rows->m[r]);
        growth[r] = exp2_fast(fmaxf(rows->m[r] - largest, LEAST));
        rows->m[r] = largest;
        sum[r] *= growth[r];
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) s[4 * j + 2 * r] *= growth[r], s[4 * j + 2 * r + 1] *= growth[r];
    }
}

/* P rounded, in the order of an A operand. */
static __device__ __forceinline__ void round_p(const float s[N_S], uint32_t p[N_P]) {
#pragma unroll
    for (int x = 0; x < N_P; x++) p[x] = pack16(TYPE, s[2 * x], s[2 * x + 1]);
}
#endif
