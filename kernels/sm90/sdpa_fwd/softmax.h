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

constexpr float LEAST = -126;   /* log2 units: smallest factor of a rescale */
constexpr float PASSED = 32768; /* a thread's sum of P that tells of a maximum passed: P stays finite in f16 */
/* The largest P of a row by which it is scaled; others are computed again. Least: of a row without a maximum. */
constexpr float P_MOST = 0x1p100f, P_LEAST = 0x1p-60f;

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
static __device__ __forceinline__ void hide_keys(float s[N_S], int x0, int r, int lo, int hi, float hidden) {
#pragma unroll
    for (int x = x0; x < x0 + 16; x++) {
        const int j = 8 * (x >> 2) + (x & 1);
        if (x < N_S && (x >> 1 & 1) == r) s[x] = j >= lo && j < hi ? s[x] : hidden;
    }
}

/* The exponentials of scores y, in log2 units from the maxima, and the thread's sums of them. */
static __device__ __forceinline__ void exponentials(float y[N_S], float sum[2]) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) y[x] = exp2_fast(y[x]), part[x & 3] += y[x];
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
}

/* Products of the first key tile of rows to P, rounded, and its sums in this thread. Columns from `seen` on, where no
 * row of the warp sees a key, are left out by blocks of 32. A block of more than a few instructions is branched over
 * where it stands inside of the block before: side by side, ptxas predicates the exponentials, and issues those that
 * are left out. */
template <int X0> static __device__ __forceinline__ void largest_seen(const float s[N_S], float most[2], int seen) {
#pragma unroll
    for (int x = X0; x < X0 + 16 && x < N_S; x++) most[x >> 1 & 1] = fmaxf(most[x >> 1 & 1], s[x]);
    if constexpr (X0 + 16 < N_S)
        if (seen > 2 * (X0 + 16)) largest_seen<X0 + 16>(s, most, seen);
}
template <int X0>
static __device__ __forceinline__ void exponentials_seen(const float s[N_S], uint32_t p[N_P], float part[4], float unit,
                                                         const float from[2], int seen) {
#pragma unroll
    for (int x = X0; x < X0 + 16 && x < N_S; x += 2) {
        const float a = exp2_fast(__fmaf_rn(s[x], unit, -from[x >> 1 & 1])),
                    b = exp2_fast(__fmaf_rn(s[x + 1], unit, -from[x >> 1 & 1]));
        part[x & 2] += a, part[x & 2 | 1] += b;
        p[x / 2] = pack16(TYPE, a, b);
    }
    if constexpr (X0 + 16 < N_S) {
        if (seen > 2 * (X0 + 16)) {
            exponentials_seen<X0 + 16>(s, p, part, unit, from, seen);
        } else {
#pragma unroll
            for (int x = X0 / 2 + 8; x < N_P; x++) p[x] = 0;
        }
    }
}
static __device__ __forceinline__ void softmax_first(float s[N_S], uint32_t p[N_P], struct rows *rows, float unit,
                                                     int seen) {
    float most[2] = {-INF, -INF}, part[4] = {0, 0, 0, 0}, from[2];
    if (rare(unit < 0)) { /* with an instruction that ptxas does not predicate */
        asm volatile("nanosleep.u32 1;" ::: "memory");
#pragma unroll
        for (int x = 0; x < N_S; x++) s[x] = -s[x];
        unit = -unit;
    }
    largest_seen<0>(s, most, seen);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rows->m[r] = quad_max(most[r]) * unit;
        from[r] = rows->m[r] == -INF ? 0 : rows->m[r];
    }
    exponentials_seen<0>(s, p, part, unit, from, seen);
    rows->l[0] = part[0] + part[1], rows->l[1] = part[2] + part[3];
}

/* Products to P, in f32, and its sums in this thread, against maxima that no score passes. */
static __device__ __forceinline__ void softmax_exact(float s[N_S], struct rows *rows, float sum[2], float growth[2],
                                                     float unit) {
    float most[2] = {-INF, -INF}, from[2];
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        if (unit < 0)
            most[x >> 1 & 1] = fmaxf(most[x >> 1 & 1], -s[x]);
        else
            most[x >> 1 & 1] = fmaxf(most[x >> 1 & 1], s[x]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float largest = fmaxf(quad_max(most[r]) * fabsf(unit), rows->m[r]);
        growth[r] = exp2_fast(fmaxf(rows->m[r] - largest, LEAST));
        rows->m[r] = largest;
        from[r] = largest == -INF ? 0 : largest;
    }
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = __fmaf_rn(s[x], unit, -from[x >> 1 & 1]);
    exponentials(s, sum);
}

/* P may not stay as it is: its sums tell that a score lies far above its maximum, or there is no maximum yet. exact: no
 * score may lie above its maximum. */
static __device__ __forceinline__ int passed(const struct rows *rows, const float sum[2], int exact) {
    return exact || rows->m[0] == -INF || rows->m[1] == -INF || sum[0] > PASSED || sum[1] > PASSED;
}

/* The same against the maxima in use, whatever the scores are: to look for the largest one would keep the exponentials
 * waiting, and take an instruction in five. Returns nonzero where P may not stay so. */
static __device__ __forceinline__ int softmax_ahead(float s[N_S], const struct rows *rows, float sum[2], float unit,
                                                    int exact) {
    const float from[2] = {rows->m[0] == -INF ? 0 : rows->m[0], rows->m[1] == -INF ? 0 : rows->m[1]};
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = exp2_fast(__fmaf_rn(s[x], unit, -from[x >> 1 & 1])), part[x & 3] += s[x];
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
    return passed(rows, sum, exact);
}

/* The largest P of each row. */
static __device__ __forceinline__ void largest_p(const float s[N_S], float most[2]) {
    most[0] = most[1] = 0;
#pragma unroll
    for (int x = 0; x < N_S; x++) most[x >> 1 & 1] = fmaxf(most[x >> 1 & 1], s[x]);
#pragma unroll
    for (int r = 0; r < 2; r++) most[r] = quad_max(most[r]);
}

/* P and sums of softmax_ahead to the maxima that the tile has after all, by the rows' largest P. */
static __device__ __forceinline__ void raise_after(float s[N_S], struct rows *rows, float sum[2], const float most[2],
                                                   float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float from = rows->m[r] == -INF ? 0 : rows->m[r];
        const float rise = rows->m[r] == -INF ? log2f(most[r]) : fmaxf(log2f(most[r]), 0);
        growth[r] = exp2_fast(-rise);
        rows->m[r] = from + rise;
        sum[r] *= growth[r];
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) s[4 * j + 2 * r] *= growth[r], s[4 * j + 2 * r + 1] *= growth[r];
    }
}

/* P rounded, in the order of an A operand. */
static __device__ __forceinline__ void round_part(const float s[N_S], uint32_t p[N_P], int from, int to) {
#pragma unroll
    for (int x = 0; x < N_P; x++)
        if (x >= from && x < to) p[x] = pack16(TYPE, s[2 * x], s[2 * x + 1]);
}
static __device__ __forceinline__ void round_p(const float s[N_S], uint32_t p[N_P]) { round_part(s, p, 0, N_P); }
#endif
