/* SPDX-License-Identifier: MIT
 * Order between kernels of a stream (sm_90 on). */
#ifndef ATTN_DEVICE_GRID_H
#define ATTN_DEVICE_GRID_H

/* A kernel that was launched early (attn_cuda_grid.early): wait until the kernel before it has ended and its results
 * are seen. */
static __device__ __forceinline__ void grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/* The kernel after this one, if it is launched early, may take its places once every CTA of this one has said so or
 * ended. It says nothing of results: those are seen after its grid_wait. */
static __device__ __forceinline__ void grid_release(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif
