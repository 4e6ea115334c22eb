/* SPDX-License-Identifier: MIT
 * Arithmetic on two f32 in 64 bits (sm_100), and a largest of three. PTX ISA 8.6, sections "fma", "add", "mul"; 8.8, "max". */
#ifndef ATTN_DEVICE_F32X2_H
#define ATTN_DEVICE_F32X2_H
#include <stdint.h>

static __device__ __forceinline__ uint64_t two_floats(float low, float high) {
    uint64_t y;
    asm("mov.b64 %0, {%1, %2};" : "=l"(y) : "f"(low), "f"(high));
    return y;
}
static __device__ __forceinline__ float2 floats_of(uint64_t x) {
    float2 y;
    asm("mov.b64 {%0, %1}, %2;" : "=f"(y.x), "=f"(y.y) : "l"(x));
    return y;
}
static __device__ __forceinline__ uint64_t fma_f32x2(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t y;
    asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(y) : "l"(a), "l"(b), "l"(c));
    return y;
}
static __device__ __forceinline__ uint64_t mul_f32x2(uint64_t a, uint64_t b) {
    uint64_t y;
    asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(y) : "l"(a), "l"(b));
    return y;
}
static __device__ __forceinline__ uint64_t add_f32x2(uint64_t a, uint64_t b) {
    uint64_t y;
    asm("add.rn.f32x2 %0, %1, %2;" : "=l"(y) : "l"(a), "l"(b));
    return y;
}
/* The largest of three; NaN if any is. */
static __device__ __forceinline__ float max3_nan(float a, float b, float c) {
    float y;
    asm("max.NaN.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

/* 2^x of both numbers by a polynomial, for x <= 127; what is below -126 counts as -126, never NaN. x is a whole
 * number j and f, |f| <= 1/2: adding 1.5 2^23 rounds x to j and leaves j in the low bits. Relative error 2.7e-6: the
 * polynomial of degree 4 whose largest one is least on [-1/2, 1/2], its roundings included. */
static __device__ __forceinline__ float2 exp2_polynomial(float2 x) {
    const uint64_t magic = two_floats(12582912.f, 12582912.f), minus_magic = two_floats(-12582912.f, -12582912.f);
    const uint64_t y = two_floats(fmaxf(x.x, -126), fmaxf(x.y, -126)), rounded = add_f32x2(y, magic);
    const uint64_t f = fma_f32x2(add_f32x2(rounded, minus_magic), two_floats(-1, -1), y);
    uint64_t p = two_floats(0.009570102f, 0.009570102f);
    p = fma_f32x2(p, f, two_floats(0.05591786f, 0.05591786f));
    p = fma_f32x2(p, f, two_floats(0.24024744f, 0.24024744f));
    p = fma_f32x2(p, f, two_floats(0.6931218f, 0.6931218f));
    p = fma_f32x2(p, f, two_floats(0.9999993f, 0.9999993f));
    const float2 mantissa = floats_of(p), whole = floats_of(rounded);
    return make_float2(__uint_as_float(__float_as_uint(mantissa.x) + (__float_as_uint(whole.x) << 23)),
                       __uint_as_float(__float_as_uint(mantissa.y) + (__float_as_uint(whole.y) << 23)));
}
#endif
