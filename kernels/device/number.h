/* SPDX-License-Identifier: MIT
 * Numbers on the device: base-2 exponential and logarithm units, 16-bit types, and lse as the caller wants it. */
#ifndef ATTN_DEVICE_NUMBER_H
#define ATTN_DEVICE_NUMBER_H
#include "kernels/params/params.h"

#define LOG2E 1.44269504088896340736f
#define LN2   0.693147180559945309417f
#define INF   __int_as_float(0x7f800000)

/* x, but the compiler does not know: what is computed from the result is computed here, and not once before a loop,
 * where it would occupy registers all the while. */
static __device__ __forceinline__ int recompute(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* base + n * size in one instruction. */
static __device__ __forceinline__ uint64_t address_of(uint64_t base, uint32_t n, uint32_t size) {
    uint64_t x;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(x) : "r"(n), "r"(size), "l"(base));
    return x;
}

/* 2^x: relative error 2^-22, 0 below 2^-126, exact index integers. */
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* tanh x for |x| <= TANH_SMALL, within 1.3 units of 2^-24 of itself: x + x^3 q(x^2), q the polynomial of degree 3 whose
 * largest relative error for the sum is least (1.5e-8). NaN for NaN. */
constexpr float TANH_SMALL = 0.5f;
static __device__ __forceinline__ float tanh_small(float x) {
    const float u = x * x;
    float q = __fmaf_rn(u, 0.017241491f, -0.053045493f);
    q = __fmaf_rn(u, q, 0.13325879f);
    q = __fmaf_rn(u, q, -0.33333144f);
    return __fmaf_rn(x * u, q, x);
}

/* The larger number; NaN if either is one. */
static __device__ __forceinline__ float max_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* Round two numbers to the type; lo goes to the low half. */
static __device__ __forceinline__ uint32_t pack16(int type, float lo, float hi) {
    uint32_t x;
    if (type == KP_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
    return x;
}
/* The low 16 bits of x as a number. */
static __device__ __forceinline__ float unpack16(int type, uint32_t x) {
    float y;
    if (type == KP_BF16) return __uint_as_float(x << 16);
    asm("{\n .reg .b16 h;\n cvt.u16.u32 h, %1;\n cvt.f32.f16 %0, h;\n}" : "=f"(y) : "r"(x));
    return y;
}
/* Both halves of a by those of b, f16. */
static __device__ __forceinline__ uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
/* Nonzero if either half of x is an infinity or NaN: an exponent of ones, and only that, carries into the sign's place.
 */
static __device__ __forceinline__ uint32_t not_finite16(int type, uint32_t x) {
    return type == KP_BF16 ? ((x & 0x7f807f80u) + 0x00800080u) & 0x80008000u
                           : ((x & 0x7c007c00u) + 0x04000400u) & 0x80008000u;
}
static __device__ __forceinline__ float load_number(const void *base, int64_t index, int dtype) {
    if (dtype == KP_F32) return ((const float *)base)[index];
    return unpack16(dtype, ((const uint16_t *)base)[index]);
}

/* ln(e^a + e^b) for any a, b. */
static __device__ __forceinline__ float log_add_exp(float a, float b) {
    if (a != a || b != b) return a + b;
    float hi = fmaxf(a, b), lo = fminf(a, b);
    if (hi == INF || hi == -INF) return hi;
    return hi + log1pf(expf(lo - hi));
}
/* The sparse forward's, which has no sink in it. natural: -inf for an empty row. */
static __device__ __forceinline__ float lse_in_form(uint32_t flags, float natural) {
    if (natural == -INF) return flags & KP_LSE_EMPTY_PLUS_INF ? INF : -INF;
    return flags & KP_LSE_BASE_2 ? natural * LOG2E : natural;
}
/* natural: without the sink, -inf for an empty row. sink: -inf if there is none or the row lies past its sequence. */
static __device__ __forceinline__ float outer_lse(uint32_t flags, float natural, float sink) {
    return lse_in_form(flags, flags & KP_LSE_WITH_SINK ? log_add_exp(natural, sink) : natural);
}
static __device__ __forceinline__ void store_lse(const struct kp_view *v, int64_t index, float lse) {
    if (!v->data) return;
    if (v->dtype == KP_F32)
        ((float *)v->data)[index] = lse;
    else
        ((uint16_t *)v->data)[index] = (uint16_t)pack16(v->dtype, lse, 0);
}
#endif
