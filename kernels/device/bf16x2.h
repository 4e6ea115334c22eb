/* SPDX-License-Identifier: MIT
 * Arithmetic on pairs of bf16 (sm_90). */
#ifndef ATTN_DEVICE_BF16X2_H
#define ATTN_DEVICE_BF16X2_H
#include <stdint.h>

/* Both numbers of a by those of b. */
static __device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
#endif
