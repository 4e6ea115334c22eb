/* SPDX-License-Identifier: MIT
 * Powers of two that bring numbers into the range of f16: chosen from a bound of them, multiplied in f32, where it is
 * exact, and undone by the reciprocal. */
#ifndef ATTN_DEVICE_F16_SCALE_H
#define ATTN_DEVICE_F16_SCALE_H

/* A number that counts for a maximum: 0 where it is not finite. */
static __device__ __forceinline__ float if_finite(float x) { return x < __int_as_float(0x7f800000) ? x : 0; }

/* k such that 2^k bound < 2^15: half of what f16 holds, for what is rounded on the way to the bound and to the numbers.
 * A bound that is past f32 counts as 2^129. -114 <= k <= 100. */
static __device__ __forceinline__ int exponent_for(float bound) {
    const int e = (int)(__float_as_uint(bound) >> 23) - 126; /* bound < 2^e */
    return bound > 0 ? min(15 - e, 100) : 0;
}
/* -126 <= k <= 127. */
static __device__ __forceinline__ float power_of_two(int k) { return __uint_as_float((uint32_t)(127 + k) << 23); }
#endif
