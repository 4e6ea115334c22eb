/* SPDX-License-Identifier: MIT
 * The state of a row in the sparse MLA backward (struct kp_mla_row), formed by a warp. */
#ifndef ATTN_DEVICE_MLA_ROW_H
#define ATTN_DEVICE_MLA_ROW_H
#include "kernels/device/number.h"
#include "kernels/device/warp.h"
#include "kernels/params/mla.h"

/* sum += out . dout of two 16-bit numbers each; of eight. */
static __device__ __forceinline__ float mla_row_add(int out_type, int dout_type, float sum, uint32_t x, uint32_t y) {
    sum = __fmaf_rn(unpack16(out_type, x & 0xffff), unpack16(dout_type, y & 0xffff), sum);
    return __fmaf_rn(unpack16(out_type, x >> 16), unpack16(dout_type, y >> 16), sum);
}
static __device__ __forceinline__ float mla_row_add8(int out_type, int dout_type, float sum, uint4 x, uint4 y) {
    sum = mla_row_add(out_type, dout_type, sum, x.x, y.x);
    sum = mla_row_add(out_type, dout_type, sum, x.y, y.y);
    sum = mla_row_add(out_type, dout_type, sum, x.z, y.z);
    return mla_row_add(out_type, dout_type, sum, x.w, y.w);
}

/* 1 / x for x >= 1, within 2^-23 of itself; 0 above 2^125; NaN for NaN. Without the branch of a division, and what it
 * calls, for numbers that do not come here. */
static __device__ __forceinline__ float mla_row_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    y = __fmaf_rn(y, __fmaf_rn(-x, y, 1), y);
    return x > 0x1p125f ? 0 : y;
}

/* Stores the state. given: the row's lse in lane `from`, its sink or -inf in the next, its dlse or 0 in the one after
 * it; d: D, in these lanes. A row whose lse is +-inf is empty: nothing of D, sink and dlse comes into its state. */
static __device__ __forceinline__ void mla_row_store_of(struct kp_mla_row *to, uint32_t flags, float given, float d,
                                                        int from) {
    const float base = __shfl_sync(~0u, given, from);
    const float lse = flags & KP_LSE_BASE_2 ? base * LN2 : base, over = __shfl_sync(~0u, given, from + 1) - lse;
    const int lane = ((int)threadIdx.x & 31) - from;
    /* lane 0: g = 1 / (1 + e^(sink - lse)); lane 1: dsink = -D / (1 + e^(lse - sink)), 0 without a sink even where D is
     * not finite */
    const float minus_d = over == -INF ? 0 : -d;
    const float part = (lane ? minus_d : 1) * mla_row_inverse(1 + expf(lane ? -over : over));
    float dlse = __shfl_sync(~0u, given, from + 2);
    const float dsink = __shfl_sync(~0u, part, from + 1);
    if (lane) return;
    if (flags & KP_LSE_BASE_2) dlse *= LOG2E; /* lse of base 2 = lse log2(e) */
    float4 y = make_float4(INF, 0, 0, 0);
    if (fabsf(base) != INF)
        y = make_float4(flags & KP_LSE_BASE_2 ? base : base * LOG2E, part, __fmaf_rn(part, d, -dlse), dsink);
    *(float4 *)to = y;
}
/* The same by lanes 0 .. 2; sum: the lane's part of D. */
static __device__ __forceinline__ void mla_row_store(struct kp_mla_row *to, uint32_t flags, float given, float sum) {
    mla_row_store_of(to, flags, given, warp_sum(sum), 0);
}
#endif
