/* SPDX-License-Identifier: MIT
 * Addresses that the compiler takes as they are. */
#ifndef ATTN_DEVICE_OPAQUE_ADDRESS_H
#define ATTN_DEVICE_OPAQUE_ADDRESS_H
#include <stdint.h>

/* The address as one number: copies at constant distances from it carry these in the instruction. Else the compiler
 * adds up each address from where it began, some four instructions a copy. */
static __device__ __forceinline__ const uint16_t *hold_address(const uint16_t *from) {
    asm volatile("" : "+l"(from));
    return from;
}
#endif
