/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: from the products of a key tile to P in e4m3, in the registers of a warpgroup.
 *
 * P = 2^(score - m), scores in log2 units. m is not the row's largest score so far but LIFT below it, and follows when
 * a thread's sum of 16 P passes MOST, the largest number of e4m3: no P that is rounded passes it, and P is 2^LIFT at
 * least where m has just followed. Sixteen scores of one size do not pass it. Below 2^-6 e4m3 has steps of 2^-9: P is
 * off by 2^-10 of 2^LIFT, what the row's largest then is. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_SOFTMAX_H
#define ATTN_SM90_SDPA_FWD_FP8_SOFTMAX_H
#include "kernels/device/quad.h"
#include "kernels/sm90/sdpa_fwd_fp8/products.h"
#include "kernels/sm90/sdpa_fwd_fp8/work.h"

/* log2 units; LEAST: smallest factor of a rescale */
constexpr float LIFT = 4, LEAST = -126;
constexpr float NONE = -0x1p100f; /* m without a key yet: P of a first one is infinite, and formed again */
/* of P; P_MOST: the largest one by which P is scaled; others are formed again. */
constexpr float MOST = 448, P_MOST = 0x1p100f;

/* Of rows g and g + 8 of the warp: what P is relative to (NONE: no key yet), and this thread's sum of P. */
struct rows {
    float m[2], l[2];
};

static __device__ __forceinline__ float reference(float m) { return m == NONE ? 0 : m; }

/* Products become scores relative to `from`. */
static __device__ __forceinline__ void relate(float s[N_S], const float from[2], float unit) {
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = __fmaf_rn(s[x], unit, -from[x >> 1 & 1]);
}

/* Keys of row r (of g and g + 8) outside lo <= j < hi, counted from the thread's first column, are hidden. */
static __device__ __forceinline__ void hide_keys(float y[N_S], int r, int lo, int hi) {
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const int j = 8 * (x >> 2) + (x & 1);
        if ((x >> 1 & 1) == r) y[x] = j >= lo && j < hi ? y[x] : -INF;
    }
}

/* m follows the scores y, which are relative to it. growth: factors of sums and O, not 0, so that an infinity stays
 * one. NaN scores pass unseen and make the sum NaN. */
static __device__ __forceinline__ void follow(float y[N_S], struct rows *rows, float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = -INF;
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) largest = fmaxf(largest, fmaxf(y[4 * j + 2 * r], y[4 * j + 2 * r + 1]));
        const float from = reference(rows->m[r]), m = fmaxf(quad_max(largest) + from - LIFT, rows->m[r]);
        growth[r] = exp2_fast(fmaxf(rows->m[r] - m, LEAST));
        rows->m[r] = m;
        const float rise = m == NONE ? 0 : m - from;
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) y[4 * j + 2 * r] -= rise, y[4 * j + 2 * r + 1] -= rise;
    }
}

/* P in f32, and this thread's sums of it. */
static __device__ __forceinline__ void sum_up(const float part[4], float sum[2]) {
    sum[0] = part[0] + part[1], sum[1] = part[2] + part[3];
}
static __device__ __forceinline__ void exponentials(float y[N_S], float sum[2]) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) y[x] = exp2_fast(y[x]), part[x & 3] += y[x];
    sum_up(part, sum);
}
/* The sums of a tile's P, part, tell that m may have to follow. exact: it must not lie more than LIFT below a score. */
static __device__ __forceinline__ int passed(const float part[4], int exact) {
    return exact || fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3])) > MOST;
}
/* Products to P in f32 against the m in use, whatever they are, and this thread's sums of P: to look for the largest
 * score would keep the exponentials waiting, and take an instruction in five. Returns nonzero where m may have to
 * follow. */
static __device__ __forceinline__ int softmax_ahead(float s[N_S], const struct rows *rows, float sum[2], float unit,
                                                    int exact) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) s[x] = exp2_fast(__fmaf_rn(s[x], unit, -rows->m[x >> 1 & 1])), part[x & 3] += s[x];
    sum_up(part, sum);
    return passed(part, exact);
}
/* The same of scores, relative to the m in use. */
static __device__ __forceinline__ int exponentials_ahead(float y[N_S], float sum[2], int exact) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) y[x] = exp2_fast(y[x]), part[x & 3] += y[x];
    sum_up(part, sum);
    return passed(part, exact);
}

/* The largest P of each row. */
static __device__ __forceinline__ void largest_p(const float s[N_S], float most[2]) {
    most[0] = most[1] = 0;
#pragma unroll
    for (int x = 0; x < N_S; x++) most[x >> 1 & 1] = fmaxf(most[x >> 1 & 1], s[x]);
#pragma unroll
    for (int r = 0; r < 2; r++) most[r] = quad_max(most[r]);
}
/* m follows scores of which P and sums have been formed already: they are scaled. most: at most P_MOST. */
static __device__ __forceinline__ void follow_after(float s[N_S], struct rows *rows, float sum[2], const float most[2],
                                                    float growth[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float rise = fmaxf(log2f(most[r]) - LIFT, 0);
        growth[r] = exp2_fast(-rise);
        rows->m[r] += rise;
        sum[r] *= growth[r];
#pragma unroll
        for (int j = 0; j < N_S / 4; j++) s[4 * j + 2 * r] *= growth[r], s[4 * j + 2 * r + 1] *= growth[r];
    }
}

/* P rounded, as the A of O += P V. */
static __device__ __forceinline__ void round_p(const float s[N_S], uint32_t p[N_P]) {
#pragma unroll
    for (int k = 0; k < N_P / 4; k++)
#pragma unroll
        for (int a = 0; a < 4; a++) {
            const float *x =
                s + 16 * k + 8 * (a >> 1) + 2 * (a & 1); /* a & 1: rows g + 8; a >> 1: 16 keys further on */
            p[4 * k + a] = pack_e4m3(x[0], x[1], x[4], x[5]);
        }
}
#endif
