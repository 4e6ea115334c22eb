/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_f16x2.cu: from the products of a key tile to pairs of P, in the registers of a warpgroup.
 *
 * P = 2^(score - m), scores in log2 units, m LIFT below the row's largest score so far. As an operand it is hi + lo,
 * f16 each, which leaves 22 bits down to 2^-18 of the row's largest, and 2^-40 of it below. */
#ifndef ATTN_SM90_SDPA_FWD_F16X2_SOFTMAX_H
#define ATTN_SM90_SDPA_FWD_F16X2_SOFTMAX_H
#include "kernels/device/quad.h"
#include "kernels/sm90/sdpa_fwd_f16x2/work.h"

/* log2 units; LEAST: smallest factor of a rescale. */
constexpr float LIFT = 15, LEAST = -126;

/* Of rows g and g + 8 of the warp: what P is relative to (-inf: no key yet), and this thread's sum of P. */
struct rows {
    float m[2], l[2];
};

/* Keys of row r (of g and g + 8) outside lo <= j < hi, counted from the thread's first column, are hidden. */
static __device__ __forceinline__ void hide_keys(float s[N_S], int r, int lo, int hi) {
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const int j = 8 * (x >> 2) + (x & 1);
        if ((x >> 1 & 1) == r) s[x] = j >= lo && j < hi ? s[x] : -INF;
    }
}

/* m follows the products s, of which those of block y are units[y] > 0 log2 units each. growth: factors of O and the
 * sums, which l gets here. P as hi and lo, each in the order of an A operand. */
static __device__ __forceinline__ void softmax(const float s[N_S], const float units[BLOCKS], struct rows *rows,
                                               float growth[2], uint32_t hi[N_P], uint32_t lo[N_P]) {
    float from[2], part[4] = {0, 0, 0, 0}, most[BLOCKS][2];
#pragma unroll
    for (int y = 0; y < BLOCKS; y++) most[y][0] = most[y][1] = -INF;
#pragma unroll
    for (int x = 0; x < N_S; x++) most[x / (BLOCK / 2)][x >> 1 & 1] = fmaxf(most[x / (BLOCK / 2)][x >> 1 & 1], s[x]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = -INF;
#pragma unroll
        for (int y = 0; y < BLOCKS; y++) m = fmaxf(m, most[y][r] * units[y]);
        m = fmaxf(quad_max(m) - LIFT, rows->m[r]);
        growth[r] = exp2_fast(fmaxf(rows->m[r] - m, LEAST));
        rows->m[r] = m;
        from[r] = m == -INF ? 0 : m;
    }
#pragma unroll
    for (int x = 0; x < N_P; x++) {
        const float unit = units[x / (BLOCK / 4)], f = from[x & 1];
        const float a = exp2_fast(__fmaf_rn(s[2 * x], unit, -f)), b = exp2_fast(__fmaf_rn(s[2 * x + 1], unit, -f));
        part[2 * (x & 1)] += a, part[2 * (x & 1) + 1] += b;
        hi[x] = pack16(KP_F16, a, b);
        lo[x] = pack16(KP_F16, a - unpack16(KP_F16, hi[x]), b - unpack16(KP_F16, hi[x] >> 16));
    }
    uint32_t all = 0;
#pragma unroll
    for (int x = 0; x < N_P; x++) all ^= lo[x];
    /* Never, or it does not matter: ptxas would put these conversions off until products are under way, for which there
     * are not enough registers. */
    if (__any_sync(~0u, all == 0x7e017e01u)) asm volatile("nanosleep.u32 1;" ::: "memory");
#pragma unroll
    for (int r = 0; r < 2; r++) rows->l[r] = __fmaf_rn(rows->l[r], growth[r], part[2 * r] + part[2 * r + 1]);
}
#endif
