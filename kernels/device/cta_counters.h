/* SPDX-License-Identifier: MIT
 * Counters of the CTAs that have come to a checkpoint. Nothing depends on them but speed: no other access is ordered by
 * them. */
#ifndef ATTN_DEVICE_CTA_COUNTERS_H
#define ATTN_DEVICE_CTA_COUNTERS_H
#include <stdint.h>

static __device__ __forceinline__ void count_one(uint64_t counter) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
static __device__ __forceinline__ uint32_t count_seen(uint64_t counter) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    return x;
}
#endif
