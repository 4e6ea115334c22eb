/* SPDX-License-Identifier: MIT
 * Rows of f32 in 16 bits a number, so that sums which are written and read again in another order move half the bytes:
 * a number x of a row is f16(x 2^k), with a k of the row, which is stored as a byte of its own. Not a type of tensors.
 *
 * k comes from a bound of the row's magnitudes, which need not be near: with |x| 2^k < 2^15 a number down to 2^-29 of
 * the bound keeps the 11 bits of f16, and infinities and NaNs stay what they are (docs/numerics.md). */
#ifndef ATTN_DEVICE_ROW16_H
#define ATTN_DEVICE_ROW16_H
#include "kernels/device/number.h"

/* The bits of a bound are those of a float; NaN counts as infinite, for which k is -114, and all f32 fit. */
static __device__ __forceinline__ uint32_t row16_exponent(uint32_t bound) { return max(bound >> 23 & 255, 15u); }
/* 2^k, and 2^-k as the exponent of a float, a byte; both are normal. */
static __device__ __forceinline__ uint32_t row16_factor(uint32_t exponent) { return (268 - exponent) << 23; }
static __device__ __forceinline__ uint32_t row16_unit(uint32_t exponent) { return exponent - 14; }
static __device__ __forceinline__ float row16_unit_of(uint32_t byte) { return __uint_as_float(byte << 23); }

/* sum[2 j + e] += half e of word j, in units of `unit`. */
static __device__ __forceinline__ void row16_add(float sum[8], uint4 x, float unit) {
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sum[2 * j] = __fmaf_rn(unpack16(KP_F16, w[j] & 0xffff), unit, sum[2 * j]);
        sum[2 * j + 1] = __fmaf_rn(unpack16(KP_F16, w[j] >> 16), unit, sum[2 * j + 1]);
    }
}

/* 16 bytes at dst, or at src, that are read once, and not soon; nothing if `on` is 0, without a branch. */
static __device__ __forceinline__ void store_once4(void *dst, const uint32_t x[4], uint32_t on) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
                 " @p st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(dst),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(on)
                 : "memory");
}
static __device__ __forceinline__ uint4 load_once4(const void *src) {
    uint4 x;
    asm volatile("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(src));
    return x;
}
#endif
