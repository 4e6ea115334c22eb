/* SPDX-License-Identifier: MIT
 * Sums and order across CTAs in global memory. */
#ifndef ATTN_DEVICE_REDUCE_H
#define ATTN_DEVICE_REDUCE_H
#include <stdint.h>

/* *at += x, at no particular time before the kernel ends. */
static __device__ __forceinline__ void reduce_add(float *at, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(at), "f"(x) : "memory");
}

/* The same for two neighbours, at a multiple of 8 bytes. */
static __device__ __forceinline__ void reduce_add2(float *at, float x, float y) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(x), "f"(y) : "memory");
}
/* The same for four neighbours, at a multiple of 16 bytes. */
static __device__ __forceinline__ void reduce_add4(float *at, const float x[4]) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}
/* The same, nothing if `on` is 0. No branch: it may stand beside matrix
 * products that are under way. */
static __device__ __forceinline__ void reduce_add4(float *at, const float x[4], uint32_t on) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
                 " @p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(at),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(on)
                 : "memory");
}
/* at[0..3] = x if `on`, as above. */
static __device__ __forceinline__ void store4(float *at, const float x[4], uint32_t on) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n @p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(at),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(on)
                 : "memory");
}

/* A counter that CTAs pass on. One thread waits or signals; a barrier joins the others. */
static __device__ __forceinline__ void wait_turn(const int32_t *counter, int32_t turn) {
    int32_t x;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    while (x != turn);
}
/* The thread's sums so far are seen before whatever it does next. */
static __device__ __forceinline__ void settle(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/* What this thread, and by a barrier its CTA, did before is seen by whoever sees the new value. */
static __device__ __forceinline__ void pass_turn(int32_t *counter) {
    asm volatile("fence.acq_rel.gpu;\n red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}
static __device__ __forceinline__ int32_t take_ticket(int32_t *counter) {
    int32_t x;
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(x) : "l"(counter) : "memory");
    return x;
}
#endif
