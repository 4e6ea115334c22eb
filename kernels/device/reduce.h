/* SPDX-License-Identifier: MIT
 * Sums and order across CTAs in global memory. */
#ifndef ATTN_DEVICE_REDUCE_H
#define ATTN_DEVICE_REDUCE_H
#include <stdint.h>

/* *at += x, at no particular time before the kernel ends. */
static __device__ __forceinline__ void reduce_add(float *at, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(at), "f"(x) : "memory");
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
