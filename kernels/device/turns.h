/* SPDX-License-Identifier: MIT
 * Order across CTAs: counters in global memory. A turn counts the CTAs that have passed it on; a ticket numbers them
 * in the order in which they ask. One thread waits or signals; a barrier joins the others. */
#ifndef ATTN_DEVICE_TURNS_H
#define ATTN_DEVICE_TURNS_H
#include <stdint.h>

/* Until the turn has been passed on `passes` times. Whoever passes it on has seen all passes of earlier places: more
 * than `passes` means that the place itself, of several CTAs, has begun. */
static __device__ __forceinline__ void wait_turn(const int32_t *turn, int32_t passes) {
    int32_t x;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(turn) : "memory");
    while (x < passes);
}
/* What this thread, and by a barrier before it its CTA, did is seen by whoever sees the new value: release is
 * cumulative (PTX ISA, "Memory Consistency Model", causality order). */
static __device__ __forceinline__ void pass_turn(int32_t *turn) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}
static __device__ __forceinline__ int32_t take_ticket(int32_t *counter) {
    int32_t x;
    asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(x) : "l"(counter) : "memory");
    return x;
}
#endif
