/* SPDX-License-Identifier: MIT
 * What the kernels for Blackwell share: a thread's place, and which rows of kv a lane or a gather of four asks for. */
#ifndef ATTN_SM100_ROLES_H
#define ATTN_SM100_ROLES_H
#include "kernels/device/slots.h"

/* READ_LANE: from the register of the thread's number, each time; kept, that number is spilled. */
static __device__ __forceinline__ int lane_of(void) {
#ifdef READ_LANE
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread & 31;
#else
    return (int)threadIdx.x & 31;
#endif
}
static __device__ __forceinline__ int warp_of(void) { return (int)threadIdx.x >> 5; }

/* Row of kv's map that slot t names; -1, whose row becomes zeros, if the slot is not valid. */
static __device__ __forceinline__ int map_row(const struct slots *s, int t, int64_t row0) {
    const int idx = t < s->n ? s->idx[t] : -1;
    return slot_valid(s, idx) ? (int)(row0 + idx) : -1;
}
/* Rows of lanes 4 `group` .. */
static __device__ __forceinline__ int4 four_rows(int rows, int group) {
    int4 r;
    r.x = __shfl_sync(~0u, rows, 4 * group), r.y = __shfl_sync(~0u, rows, 4 * group + 1);
    r.z = __shfl_sync(~0u, rows, 4 * group + 2), r.w = __shfl_sync(~0u, rows, 4 * group + 3);
    return r;
}
#endif
