/* SPDX-License-Identifier: MIT
 * A flag in global memory that several CTAs may raise. */
#ifndef ATTN_DEVICE_FLAG_H
#define ATTN_DEVICE_FLAG_H
#include <stdint.h>

/* *flag = 1. A strong store: weak ones of two CTAs to the same word would race. */
static __device__ __forceinline__ void raise_flag(int32_t *flag) {
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}
#endif
