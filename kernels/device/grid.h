/* SPDX-License-Identifier: MIT
 * Order between kernels of a stream (sm_90 on). */
#ifndef ATTN_DEVICE_GRID_H
#define ATTN_DEVICE_GRID_H

/* A kernel that was launched early (attn_cuda_grid.early): wait until the kernel before it has ended and its results
 * are seen. */
static __device__ __forceinline__ void grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif
