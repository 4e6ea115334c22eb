/* SPDX-License-Identifier: MIT
 * Dense kernels for Blackwell, variants with .score_mod: softcap. A product s of a query and a key becomes
 * softcap tanh(a s), a = scale / softcap. */
#ifndef ATTN_SM100_SOFTCAP_H
#define ATTN_SM100_SOFTCAP_H
#include "kernels/device/f32x2.h"
#include "kernels/device/number.h"
#include "kernels/params/sdpa.h"

/* tanh of any x: 1 - 2 / (e^2x + 1) beyond TANH_SMALL, within 2^-22 of itself. */
static __device__ __forceinline__ float tanh_any(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exp2_fast(2 * LOG2E * fabsf(x)) + 1));
    return fabsf(x) <= TANH_SMALL ? tanh_small(x) : copysignf(__fmaf_rn(-2, y, 1), x);
}

/* scale / softcap, computed where it stands: or what follows of it would occupy registers from tile to tile. */
static __device__ __forceinline__ float cap_slope(const struct kp_sdpa *in) {
    float a = in->scale * in->softcap_inverse;
    asm volatile("" : "+f"(a));
    return a;
}
/* Of a warp: is an |a s| larger than what capped_pairs takes? NaN is, lest it hide its neighbour. */
static __device__ __forceinline__ int is_far(float largest, float a) {
    constexpr float NEAR = 0.2f;
    return __any_sync(~0u, !(largest * fabsf(a) <= NEAR));
}
/* The largest |s|; NaN if a product is. */
template <int N> static __device__ __forceinline__ float largest_product(const uint32_t s[N]) {
    float part[2] = {0, 0};
#pragma unroll
    for (int c = 0; c < N / 2; c++)
        part[c & 1] = max3_nan(part[c & 1], fabsf(__uint_as_float(s[2 * c])), fabsf(__uint_as_float(s[2 * c + 1])));
    return max3_nan(part[0], part[1], part[1]);
}
/* Products, in place. */
template <int N> static __device__ __forceinline__ void cap_far(uint32_t s[N], float a) {
#pragma unroll
    for (int c = 0; c < N; c++) {
        s[c] = __float_as_uint(tanh_any(a * __uint_as_float(s[c])));
        asm volatile("" : "+r"(s[c])); /* one after the other */
    }
}
/* Products to pairs of unit tanh(a s) + add where |a s| <= 0.2 (caps are mostly larger than the scores):
 *
 *   tanh(a s) = a s + a s u q(u), u = (a s)^2,    q of degree 1, whose largest relative error is least: 1.3e-7
 *
 * four instructions a pair. The host refuses an `a` whose sixth power is no normal number. far: s is tanh(a s). */
template <int N>
static __device__ __forceinline__ void capped_pairs(uint64_t y[N / 2], const uint32_t s[N], int far, float a,
                                                    float unit, float add) {
    const float a2 = far ? 0 : a * a, c0 = far ? unit : unit * a;
    const float c1 = -0.33329698f * a2 * c0, c2 = 0.13038027f * a2 * a2 * c0;
#pragma unroll
    for (int c = 0; c < N / 2; c++) {
        const uint64_t x = two_floats(__uint_as_float(s[2 * c]), __uint_as_float(s[2 * c + 1])), u = mul_f32x2(x, x);
        uint64_t q = fma_f32x2(u, two_floats(c2, c2), two_floats(c1, c1));
        q = fma_f32x2(u, q, two_floats(c0, c0));
        y[c] = fma_f32x2(x, q, two_floats(add, add));
    }
}
#endif
