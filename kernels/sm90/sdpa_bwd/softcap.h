/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: softcap, in variants with .score_mod. Scores are softcap tanh(a s), a = scale / softcap, of
 * products s, so that
 *
 *   P = 2^(unit t - lse), t = tanh(a s), unit = softcap log2(e)     dS = P o (dP - shift) o (1 - t^2)
 *
 * t is not scaled: where tanh is 1 the derivative is 0, not what the rounding of a factor leaves of it.
 *
 * t waits in the registers of S while dP is formed: P is made of it afterwards, when its square has been multiplied
 * into dS. */
#ifndef ATTN_SM90_SDPA_BWD_SOFTCAP_H
#define ATTN_SM90_SDPA_BWD_SOFTCAP_H
#include "kernels/sm90/sdpa_bwd/cells.h"

/* A turn of a loop over cells, for registers have no index: s without its first cells, then t. */
template <int N> static __device__ __forceinline__ void move_cells(float s[N_CELLS], const float t[N]) {
#pragma unroll
    for (int x = 0; x < N_CELLS - N; x++) s[x] = s[x + N];
#pragma unroll
    for (int x = 0; x < N; x++) s[N_CELLS - N + x] = t[x];
}
/* Products of keys and rows that hold infinities, and of keys that hold NaN. */
static __device__ __forceinline__ void make_infinite(uint32_t shared, uint32_t stats, int wg, float s[N_CELLS]) {
    const int bad_keys = (int)shared_load32(shared + ANY_BAD), key = 64 * wg + 16 * warp_of() + (lane_of() >> 2);
    const int bad[2] = {bad_keys && is_bad_key(shared, key), bad_keys && is_bad_key(shared, key + 8)};
#pragma unroll 1
    for (int n = 0; n < ROWS / 8; n++) {
        const float2 shift = stat_pair(stats, 1, n);
        float t[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            t[e] = bad[e / 2] || is_marked(e & 1 ? shift.y : shift.x) ? infinite_like(s[e]) : s[e];
        move_cells<4>(s, t);
    }
}
/* tanh y, by exp2 and a reciprocal where y is not small. */
static __device__ __forceinline__ float tanh_any(float y) {
    float whole;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(whole) : "f"(exp2_fast(2 * LOG2E * fabsf(y)) + 1));
    return fabsf(y) <= TANH_SMALL ? tanh_small(y) : copysignf(__fmaf_rn(-2, whole, 1), y);
}
/* Caps are mostly larger than the scores. Where |a s| <= 0.35 in the whole warp (sums of four squares are compared: if
 * one is small, each of the four is) tanh(a s) = s (a + u q(u)), u = s^2, q of degree 2 with the least largest
 * relative error: 4.1e-8. The host refuses an `a` whose seventh power is no normal number.
 *
 * Else, and where the tile or the step has infinities, all are capped the long way, 16 at a time in a loop: unrolled,
 * or with make_infinite as a branch before the short way, that code costs spills around the short way. */
static __device__ __forceinline__ void cap_products(const struct kp_sdpa_bwd *p, uint32_t shared, uint32_t stats,
                                                    int wg, int infinite, float s[N_CELLS]) {
    constexpr float SMALL = 0.35f;
    constexpr int PART = 16; /* cells that are capped the long way at a time */
    const float a = p->in.scale * p->in.softcap_inverse, a2 = a * a;
    float largest = 0;
#pragma unroll
    for (int x = 0; x < N_CELLS; x += 4)
        largest = max_nan(
            largest,
            __fmaf_rn(s[x], s[x], __fmaf_rn(s[x + 1], s[x + 1], __fmaf_rn(s[x + 2], s[x + 2], s[x + 3] * s[x + 3]))));
    /* also where a NaN would hide a large neighbour */
    if (__any_sync(~0u, infinite | !(largest * a2 <= SMALL * SMALL))) {
        if (rare(infinite)) make_infinite(shared, stats, wg, s);
#pragma unroll 1
        for (int n = 0; n < N_CELLS / PART; n++) {
            float t[PART];
#pragma unroll
            for (int x = 0; x < PART; x++) t[x] = tanh_any(a * s[x]);
            move_cells<PART>(s, t);
        }
        return;
    }
    const float c1 = -0.33332663f * a2 * a, c2 = 0.13299825f * a2 * a2 * a, c3 = -0.0491485f * a2 * a2 * a2 * a;
#pragma unroll
    for (int x = 0; x < N_CELLS; x++) {
        const float u = s[x] * s[x];
        s[x] *= __fmaf_rn(u, __fmaf_rn(u, __fmaf_rn(u, c3, c2), c1), a);
    }
}
/* Capped products s to P, dP - shift times the derivative of the cap. */
static __device__ __forceinline__ void capped_probabilities(const struct kp_sdpa_bwd *p, float s[N_CELLS],
                                                            float d[N_CELLS], uint32_t stats) {
    const float unit = p->in.softcap * LOG2E;
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        const float2 lse = stat_pair(stats, 0, n);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int x = 4 * n + e;
            d[x] *= __fmaf_rn(-s[x], s[x], 1);
            s[x] = exp2_fast(__fmaf_rn(s[x], unit, e & 1 ? -lse.y : -lse.x));
        }
    }
}
#endif
