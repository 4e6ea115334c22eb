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
#endif
