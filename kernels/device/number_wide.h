/* SPDX-License-Identifier: MIT
 * The number type of a kernel variant, f64 if CFG_DTYPE says so, else f32, and what kernels need of it under one name:
 * pieces of 16 bytes, exponential, logarithm, lse as the caller wants it. */
#ifndef ATTN_DEVICE_NUMBER_WIDE_H
#define ATTN_DEVICE_NUMBER_WIDE_H
#include "kernels/device/number.h"
#include "kernels/device/shared.h"

#if CFG_DTYPE == KP_F64
typedef double num;
constexpr int WIDE_F64 = 1;
#else
typedef float num;
constexpr int WIDE_F64 = 0;
#endif
constexpr int PIECE = 16 / (int)sizeof(num); /* numbers of 16 bytes */
constexpr double LN2_F64 = 0.693147180559945309417232, LOG2E_F64 = 1.44269504088896340736;

/* 16 bytes of shared memory. */
struct piece {
    num x[PIECE];
};
#if CFG_DTYPE == KP_F64
static __device__ __forceinline__ struct piece load_piece(uint32_t address) {
    const uint4 a = shared_load128(address);
    struct piece p;
    p.x[0] = __hiloint2double((int)a.y, (int)a.x);
    p.x[1] = __hiloint2double((int)a.w, (int)a.z);
    return p;
}
static __device__ __forceinline__ void load_two(uint32_t address, double x[2]) {
    const struct piece p = load_piece(address);
    x[0] = p.x[0], x[1] = p.x[1];
}
static __device__ __forceinline__ void store_num(uint32_t address, double x) {
    shared_store64(address, (uint64_t)__double_as_longlong(x));
}
static __device__ __forceinline__ double load_num(uint32_t address) {
    return __longlong_as_double((int64_t)shared_load64(address));
}
typedef uint64_t bits;
static __device__ __forceinline__ bits bits_of(double x) { return (bits)__double_as_longlong(x); }
static __device__ __forceinline__ double number_of(bits x) { return __longlong_as_double((int64_t)x); }
/* e^x; in f32 by exp2, relative error 2^-22 and that of x log2(e). */
static __device__ __forceinline__ double exp_num(double x) { return exp(x); }
static __device__ __forceinline__ double log_num(double x) { return log(x); }
static __device__ __forceinline__ struct piece load_piece_global(const double *from) {
    const double2 a = *(const double2 *)from;
    struct piece p = {{a.x, a.y}};
    return p;
}
static __device__ __forceinline__ void store_piece_global(double *to, const double x[PIECE]) {
    *(double2 *)to = make_double2(x[0], x[1]);
}
static __device__ __forceinline__ double shuffle(double x, int lane) { return __shfl_sync(~0u, x, lane); }
static __device__ __forceinline__ double shuffle_xor(double x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
#else
static __device__ __forceinline__ struct piece load_piece(uint32_t address) {
    const uint4 a = shared_load128(address);
    struct piece p;
    p.x[0] = __uint_as_float(a.x), p.x[1] = __uint_as_float(a.y);
    p.x[2] = __uint_as_float(a.z), p.x[3] = __uint_as_float(a.w);
    return p;
}
/* Two neighbours in shared memory, aligned to both; one number. */
static __device__ __forceinline__ void load_two(uint32_t address, float x[2]) {
    const float2 p = shared_load_pair(address);
    x[0] = p.x, x[1] = p.y;
}
static __device__ __forceinline__ void store_num(uint32_t address, float x) {
    shared_store32(address, __float_as_uint(x));
}
static __device__ __forceinline__ float load_num(uint32_t address) { return __uint_as_float(shared_load32(address)); }
typedef uint32_t bits;
static __device__ __forceinline__ bits bits_of(float x) { return __float_as_uint(x); }
static __device__ __forceinline__ float number_of(bits x) { return __uint_as_float(x); }
static __device__ __forceinline__ float exp_num(float x) { return exp2_fast(x * LOG2E); }
static __device__ __forceinline__ float log_num(float x) { return log2f(x) * LN2; }
static __device__ __forceinline__ struct piece load_piece_global(const float *from) {
    const float4 a = *(const float4 *)from;
    struct piece p = {{a.x, a.y, a.z, a.w}};
    return p;
}
static __device__ __forceinline__ void store_piece_global(float *to, const float x[PIECE]) {
    *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
}
static __device__ __forceinline__ float shuffle(float x, int lane) { return __shfl_sync(~0u, x, lane); }
static __device__ __forceinline__ float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
#endif

/* -0: how kernels mark a pair that is hidden, where a visible one is +0 or more. */
static __device__ __forceinline__ int is_hidden_zero(num x) { return bits_of(x) == (bits)1 << (8 * sizeof(num) - 1); }
static __device__ __forceinline__ num larger(num a, num b) { return WIDE_F64 ? fmax(a, b) : fmaxf((float)a, (float)b); }
/* a b + c, rounded once. */
static __device__ __forceinline__ num multiply_add(num a, num b, num c) {
    return WIDE_F64 ? fma((double)a, (double)b, (double)c) : __fmaf_rn((float)a, (float)b, (float)c);
}
static __device__ __forceinline__ num quad_larger(num x) {
    x = larger(x, shuffle_xor(x, 1));
    return larger(x, shuffle_xor(x, 2));
}
static __device__ __forceinline__ num quad_total(num x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

/* largest_score of largest_score.h, outer_lse and store_lse of number.h in the variant's type. */
static __device__ __forceinline__ num largest_score_num(num m, num l, int empty) {
    return empty ? -INF : l != l ? l : m;
}
static __device__ __forceinline__ num outer_lse_num(uint32_t flags, num natural, num sink) {
#if CFG_DTYPE == KP_F64
    double lse = natural;
    if (flags & KP_LSE_WITH_SINK) {
        const double hi = fmax(natural, sink), lo = fmin(natural, sink);
        lse = natural != natural || sink != sink ? natural + sink
              : hi == INF || hi == -INF          ? hi
                                                 : hi + log1p(exp(lo - hi));
    }
    if (lse == -INF) return flags & KP_LSE_EMPTY_PLUS_INF ? INF : -INF;
    return flags & KP_LSE_BASE_2 ? lse * LOG2E_F64 : lse;
#else
    return outer_lse(flags, natural, sink);
#endif
}
static __device__ __forceinline__ void store_lse_num(const struct kp_view *v, int64_t element, num lse) {
#if CFG_DTYPE == KP_F64
    if (v->data) ((double *)v->data)[element] = lse;
#else
    store_lse(v, element, lse);
#endif
}
#endif
