/* SPDX-License-Identifier: MIT
 * Sums across CTAs in global memory. */
#ifndef ATTN_DEVICE_REDUCE_H
#define ATTN_DEVICE_REDUCE_H
#include <stdint.h>

/* *dst += x, at no particular time before the kernel ends. */
static __device__ __forceinline__ void reduce_add(float *dst, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(dst), "f"(x) : "memory");
}

/* The same for two neighbours, at a multiple of 8 bytes. */
static __device__ __forceinline__ void reduce_add2(float *dst, float x, float y) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(dst), "f"(x), "f"(y) : "memory");
}
/* The same for four neighbours, at a multiple of 16 bytes. */
static __device__ __forceinline__ void reduce_add4(float *dst, const float x[4]) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
}
/* The same, nothing if `on` is 0. No branch: it may overlap with matrix products. */
static __device__ __forceinline__ void reduce_add4(float *dst, const float x[4], uint32_t on) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
                 " @p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(dst),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(on)
                 : "memory");
}
/* dst[0..3] = x if `on`, as above. */
static __device__ __forceinline__ void store4(float *dst, const float x[4], uint32_t on) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n @p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(dst),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(on)
        : "memory");
}
#endif
