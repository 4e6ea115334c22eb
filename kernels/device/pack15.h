/* SPDX-License-Identifier: MIT
 * Eight f32 in 16 bytes, so that a sum which is written and read again in another order moves half the bytes: for each
 * a sign and 14 bits of a whole number, and a scale of 8 bits that they share. Not a type of tensors.
 *
 *   word j, bits   0..13 |number 2 j|, 31 its sign; 15..28 |number 2 j + 1|, 14 its sign; 29, 30: scale, 6 - 2 j, 7 - 2
 * j scale 126..254 number n is n 2^(scale - 236). The largest |x| is below 2^(scale - 222) and, above scale 126, not
 *                  below half of it, so each x is off by at most 2^-14 of the largest (docs/numerics.md)
 *         1..96    n 2^(scale + 18): the same for sizes from 2^32 on
 *         0        one is not finite, or beyond 2^128 - 2^113: the 15 highest bits of each, the sign as above, so that
 *                  infinities and NaNs stay where they are; finite ones are cut off at 7 significant bits
 *
 * A masked word is a denormal f32, n 2^-149, and the scale stands where a power of two has its exponent: sums grow by
 * one multiply-add a number. They are kept as 2^-40 of what they mean. */
#ifndef ATTN_DEVICE_PACK15_H
#define ATTN_DEVICE_PACK15_H
#include "kernels/device/number.h"

constexpr uint32_t PACK15_LEAST = 126, PACK15_MOST = 254, PACK15_A = 0x80003fff, PACK15_SCALE = 0x60000000;
#define PACK15_NOTHING make_uint4(0x60000000, 0x60000000, 0x60000000, 0x40000000) /* zeroes */
constexpr float PACK15_MEANS = 1099511627776.0f;                                  /* 2^40 */

/* The exponent that a number below 2^(e - 126), rounded to 14 bits, has room in, from the largest |x|; NaN, infinity
 * and what would round to infinity: at least 255. */
static __device__ __forceinline__ uint32_t pack15_exponent(float most) {
    return max((__float_as_uint(most) + 0x200) >> 23, PACK15_LEAST - 96);
}
static __device__ __forceinline__ uint32_t pack15_usual(uint32_t exponent) { return exponent <= PACK15_MOST - 96; }

/* n and sign of x in PACK15_A, other bits besides. */
static __device__ __forceinline__ uint32_t pack15_number(float x, float factor) {
    return (__float_as_uint(__fmaf_rn(fabsf(x), factor, 8388608.0f)) & 0x3fff) | (__float_as_uint(x) & ~0x3fffu);
}
static __device__ __forceinline__ uint32_t pack15_high(float x) {
    return x != x ? 0x3fff : (__float_as_uint(x) >> 17 & 0x3fff) | (__float_as_uint(x) & 0x80000000);
}
static __device__ __forceinline__ uint32_t pack15_pair(uint32_t a, uint32_t b, uint32_t scale, int j) {
    const uint32_t both = (a & PACK15_A) | (__funnelshift_l(b, b, 15) & ~PACK15_A);
    return (both & ~PACK15_SCALE) | (scale << (23 + 2 * j) & PACK15_SCALE);
}
/* Word j of numbers whose exponent is usual. */
static __device__ __forceinline__ uint32_t pack15_word(float x, float y, uint32_t exponent, int j) {
    const float factor = __uint_as_float((267 - exponent) << 23); /* 2^(140 - exponent) */
    return pack15_pair(pack15_number(x, factor), pack15_number(y, factor), exponent + 96, j);
}
/* Of any. */
static __device__ __forceinline__ uint32_t pack15_word_any(float x, float y, uint32_t exponent, int j) {
    if (exponent >= 255) return pack15_pair(pack15_high(x), pack15_high(y), 0, j);
    const float factor = __uint_as_float((267 - exponent) << 23);
    const uint32_t scale = pack15_usual(exponent) ? exponent + 96 : exponent - 158;
    return pack15_pair(pack15_number(x, factor), pack15_number(y, factor), scale, j);
}

/* The scale as the exponent of a power of two. */
static __device__ __forceinline__ uint32_t pack15_unit(uint4 w) {
    uint32_t x = (w.x & 0x60000000) | (w.y >> 2 & ~0x60000000u);
    x = (x & 0x78000000) | (w.z >> 4 & ~0x78000000u);
    x = (x & 0x7e000000) | (w.w >> 6 & ~0x7e000000u);
    return x & 0x7f800000;
}
static __device__ __forceinline__ int pack15_plain(uint32_t unit) { return unit >= PACK15_LEAST << 23; }
static __device__ __forceinline__ uint32_t pack15_second(uint32_t w) { return __funnelshift_r(w, w, 15); }

/* sum[2 j + e] += 2^-40 times number e of word j; unit is plain. */
static __device__ __forceinline__ void pack15_add(float sum[8], uint4 x, uint32_t unit) {
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
    const float u = __uint_as_float(unit);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sum[2 * j] = __fmaf_rn(__uint_as_float(w[j] & PACK15_A), u, sum[2 * j]);
        sum[2 * j + 1] = __fmaf_rn(__uint_as_float(pack15_second(w[j]) & PACK15_A), u, sum[2 * j + 1]);
    }
}
/* A number of scale 0 or 1..96, times 2^-40. */
static __device__ __forceinline__ float pack15_large(uint32_t number, uint32_t scale) {
    const uint32_t sign = number & 0x80000000, n = number & 0x3fff;
    const float x = scale ? (float)n * __uint_as_float((scale + 18 - 40 + 127) << 23)
                          : __uint_as_float(n << 17) * (1 / PACK15_MEANS);
    return __uint_as_float(__float_as_uint(x) ^ sign);
}
static __device__ __forceinline__ void pack15_add_large(float sum[8], uint4 x, uint32_t unit) {
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sum[2 * j] += pack15_large(w[j], unit >> 23);
        sum[2 * j + 1] += pack15_large(pack15_second(w[j]), unit >> 23);
    }
}

/* 16 bytes at `at` that are read once, and not soon; nothing if `on` is 0, without a branch. */
static __device__ __forceinline__ void store_once4(void *at, const uint32_t x[4]) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
static __device__ __forceinline__ void store_once4(void *at, const uint32_t x[4], uint32_t on) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
                 " @p st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(at),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(on)
                 : "memory");
}
static __device__ __forceinline__ uint4 load_once4(const void *at) {
    uint4 x;
    asm volatile("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}
#endif
