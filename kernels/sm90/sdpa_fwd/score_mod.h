/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: softcap and ALiBi, between the products of a key tile and its softmax, in variants with
 * .score_mod. */
#ifndef ATTN_SM90_SDPA_FWD_SCORE_MOD_H
#define ATTN_SM90_SDPA_FWD_SCORE_MOD_H
#include "kernels/sm90/sdpa_fwd/work.h"

/* Log2 units of a product. With ALiBi scores are in log2 units when the softmax gets them. */
static __device__ __forceinline__ float unit_of_product(const struct kp_sdpa_fwd *p) {
    return p->in.scale < 0 ? -p->in.scale_log2 : p->in.scale_log2;
}
static __device__ __forceinline__ float unit_of_softmax(const struct kp_sdpa_fwd *p) {
    return SCORE_MOD && p->in.alibi_form ? 1 : unit_of_product(p);
}

/* tanh of any x: 1 - 2 / (e^2x + 1) beyond TANH_SMALL, within 2^-22 of itself. */
static __device__ __forceinline__ float tanh_any(float x) {
    const float e = exp2_fast(2 * LOG2E * fabsf(x));
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(e + 1));
    return fabsf(x) <= TANH_SMALL ? tanh_small(x) : copysignf(__fmaf_rn(-2, y, 1), x);
}

/* Products s become tanh(a s) / a, a = scale / softcap, which is softcap tanh(scale s / softcap) in units of a product.
 * Caps are mostly larger than the scores. Where |a s| <= 0.35 in the whole warp (sums of four squares are compared: if
 * one is small, each of the four is),
 *
 *   tanh(a s) / a = s + s u q(u), u = s^2,    q of degree 2, whose largest relative error for tanh is least: 4.1e-8
 *
 * takes five instructions a product, and the test little more than one. The host refuses an `a` whose sixth power is no
 * normal number (src/cuda/dense/fwd_maps.c). Returns whether it was so. */
static __device__ __forceinline__ int cap_products(const struct kp_sdpa_fwd *p, float s[N_S]) {
    constexpr float SMALL = 0.35f;
    const float a = p->in.scale * p->in.softcap_inverse, a2 = a * a;
    float part[2] = {0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x += 4)
        part[x / 4 & 1] = max_nan(
            part[x / 4 & 1],
            __fmaf_rn(s[x], s[x], __fmaf_rn(s[x + 1], s[x + 1], __fmaf_rn(s[x + 2], s[x + 2], s[x + 3] * s[x + 3]))));
    const float largest = max_nan(part[0], part[1]);
    if (__any_sync(~0u, !(largest * a2 <= SMALL * SMALL))) { /* also where a NaN would hide a large neighbour */
        const float inverse = p->in.softcap / p->in.scale;
#pragma unroll
        for (int x = 0; x < N_S; x++) s[x] = inverse * tanh_any(a * s[x]);
        return 0;
    }
    const float c1 = -0.33332663f * a2, c2 = 0.13299825f * a2 * a2, c3 = -0.0491485f * a2 * a2 * a2;
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const float u = s[x] * s[x];
        s[x] = __fmaf_rn(s[x] * u, __fmaf_rn(u, __fmaf_rn(u, c3, c2), c1), s[x]);
    }
    return 1;
}

constexpr int CAP_AHEAD = DIM > 64;
/* D 64: products are looked at first, which costs its rows less than cap_ahead does (H200, 8k causal: 330 TFLOP/s
 * against 322). Products s of which the cap alone is wanted, all of the warp's small, and none above the maximum in use
 * by more than `slack`: |s| is compared, for both. */
constexpr float CAP_SMALL = 0.2f;
static __device__ __forceinline__ int cap_is_small(const struct kp_sdpa_fwd *p, const float m[2], const float s[N_S],
                                                   float unit, int edge) {
    if (!(p->in.softcap > 0) || p->in.alibi_form || edge) return 0;
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int x = 0; x < N_S; x++) part[x & 3] = fmaxf(part[x & 3], fabsf(s[x]));
    const float largest = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    return __all_sync(~0u, largest * fabsf(p->in.scale) <= CAP_SMALL * p->in.softcap &&
                               largest * fabsf(unit) <= p->slack + fminf(m[0], m[1]));
}
/* Such products to scores in log2 units, counted from the maxima in use: s (unit + s^2 (c1 + s^2 c2)) - m, whose tanh
 * errs by 1.3e-7 of itself. */
static __device__ __forceinline__ void cap_small(const struct kp_sdpa_fwd *p, float s[N_S], const float from[2],
                                                 float unit) {
    const float a = p->in.scale * p->in.softcap_inverse, a2 = a * a;
    const float c1 = -0.33329698f * a2 * unit, c2 = 0.13038027f * a2 * a2 * unit;
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const float u = s[x] * s[x];
        s[x] = __fmaf_rn(s[x], __fmaf_rn(u, __fmaf_rn(u, c2, c1), unit), -from[x >> 1 & 1]);
    }
}

/* Products s, of which the cap alone is wanted, to scores in log2 units, counted from `from`, as if the whole tile were
 * small: |a s| < 0.25, that is w = s^2 - (0.25 / a)^2 < 0. The sign of w tells at little cost whether it was so: bit
 * 31 of the result is set then, and it is not where a product is NaN.
 *
 *   s (unit + w (c1 + w c2)) - from       c1, c2, and the unit, too, of the polynomial whose largest relative error for
 *                                         tanh is least: 4.0e-7 */
static __device__ __forceinline__ int cap_ahead(const struct kp_sdpa_fwd *p, float s[N_S], const float from[2],
                                                float unit) {
    const float a = p->in.scale * p->in.softcap_inverse, a2 = a * a, end = __fdividef(-0.0625f, a2);
    const float c0 = 0.97967504f * unit, c1 = -0.31716707f * a2 * unit, c2 = 0.12841613f * a2 * a2 * unit;
    int small = -1;
#pragma unroll
    for (int x = 0; x < N_S; x += 2) {
        const float v = __fmaf_rn(s[x], s[x], end), w = __fmaf_rn(s[x + 1], s[x + 1], end);
        small &= __float_as_int(v) & __float_as_int(w);
        s[x] = __fmaf_rn(s[x], __fmaf_rn(v, __fmaf_rn(v, c2, c1), c0), -from[x >> 1 & 1]);
        s[x + 1] = __fmaf_rn(s[x + 1], __fmaf_rn(w, __fmaf_rn(w, c2, c1), c0), -from[x >> 1 & 1]);
    }
    return small;
}

/* Capped products to log2 units, ALiBi added. diagonal: key of the thread's row r on the diagonal, counted from the
 * tile's first key and this thread's first column. */
static __device__ __forceinline__ void add_alibi(const struct kp_sdpa_fwd *p, float s[N_S], const int diagonal[2],
                                                 float slope_log2) {
    const float unit = unit_of_product(p);
    const int linear = p->in.alibi_form == 1;
#pragma unroll
    for (int x = 0; x < N_S; x++) {
        const float d = (float)(8 * (x >> 2) + (x & 1) - diagonal[x >> 1 & 1]);
        s[x] = __fmaf_rn(slope_log2, linear ? d : -fabsf(d), s[x] * unit);
    }
}

/* One thread, with keep_work: log2(e) times the head's slope, after the tile's work. */
static __device__ __forceinline__ void keep_slope(const struct kp_sdpa_fwd *p, uint32_t place, const struct work *w) {
    if (!SCORE_MOD || !p->in.alibi_form) return;
    const float slope = ((const float *)p->in.alibi)[w->b * p->in.alibi_batch + w->head * p->in.alibi_head];
    shared_store32(place + 48, __float_as_uint(slope * LOG2E));
}
static __device__ __forceinline__ float recall_slope(uint32_t place) {
    return __uint_as_float(shared_load32(place + 48));
}

/* sdpa_hidden_values.h: one product of query i and key j as the softmax gets it. */
static __device__ __forceinline__ float modified_product(const struct kp_sdpa_fwd *p, const struct work *w, int i,
                                                         int j, float s) {
    if (SCORE_MOD && p->in.softcap > 0)
        s = p->in.softcap / p->in.scale * tanh_any(p->in.scale * p->in.softcap_inverse * s);
    if (!SCORE_MOD || !p->in.alibi_form) return s;
    const float slope = ((const float *)p->in.alibi)[w->b * p->in.alibi_batch + w->head * p->in.alibi_head],
                d = (float)(j - i - w->off);
    return __fmaf_rn(slope * LOG2E, p->in.alibi_form == 1 ? d : -fabsf(d), s * unit_of_product(p));
}
#endif
