/* SPDX-License-Identifier: MIT
 * Turns in global memory that several CTAs of one place in the order pass on (reduce.h: one does). */
#ifndef ATTN_DEVICE_TURN_PASSES_H
#define ATTN_DEVICE_TURN_PASSES_H
#include <stdint.h>

/* Until a turn has been passed on at least `passes` times. Whoever passes it on has seen all passes of earlier places:
 * more than `passes` means that the place itself has begun. */
static __device__ __forceinline__ void wait_passes(const int32_t *turn, int32_t passes) {
    int32_t x;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(turn) : "memory");
    while (x < passes);
}
/* What this thread, and by a barrier its CTA, did before is seen by whoever sees the new value. One fence, where
 * pass_turn of reduce.h has two. */
static __device__ __forceinline__ void release_turn(int32_t *turn) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}
#endif
