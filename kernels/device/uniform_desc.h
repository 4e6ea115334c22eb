/* SPDX-License-Identifier: MIT
 * A matrix descriptor, the same in all lanes, in uniform registers. Without the shuffle of its address ptxas keeps it
 * in ordinary ones and moves it before each wgmma: 48 moves a key tile of the dense forward at D 128. */
#ifndef ATTN_DEVICE_UNIFORM_DESC_H
#define ATTN_DEVICE_UNIFORM_DESC_H
#include <stdint.h>

static __device__ __forceinline__ uint64_t uniform_desc(uint64_t desc) {
    return (desc & 0xffffffff00000000u) | __shfl_sync(~0u, (uint32_t)desc, 0);
}
#endif
