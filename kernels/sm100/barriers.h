/* SPDX-License-Identifier: MIT
 * Dense kernels for Blackwell: the barriers of a CTA, or of a pair of CTAs (PAIR), of which the even one starts the
 * products of both. Whoever includes this file defines PAIR and AT_BARRIERS, the shared memory of the first one. */
#ifndef ATTN_SM100_BARRIERS_H
#define ATTN_SM100_BARRIERS_H
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/tcgen05.h"
#include "kernels/sm100/roles.h"

static __device__ __forceinline__ int rank_of(void) { return PAIR ? (int)cluster_rank() : 0; }

static __device__ __forceinline__ uint32_t at_barrier(uint32_t base, uint32_t barrier) {
    return base + AT_BARRIERS + 8 * barrier;
}
/* Where products are started: this CTA's barrier, or the even one's of a pair. */
static __device__ __forceinline__ uint32_t at_leader(uint32_t base, uint32_t barrier) {
    return PAIR ? cluster_address(at_barrier(base, barrier), 0) : at_barrier(base, barrier);
}

/* Waits for phase number n of a barrier (-1: none). */
static __device__ __forceinline__ void await(uint32_t base, uint32_t barrier, uint32_t n) {
    mbar_wait(at_barrier(base, barrier), n & 1);
}
/* The products' wait for warps of both CTAs. */
static __device__ __forceinline__ void await_warps(uint32_t base, uint32_t barrier, uint32_t n) {
    if (PAIR)
        mbar_wait_cluster(at_barrier(base, barrier), n & 1);
    else
        await(base, barrier, n);
}

/* A warp's arrival. */
static __device__ __forceinline__ void tell(uint32_t base, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(at_barrier(base, barrier));
}
/* A warp's arrival where products are started: it has read, or written tensor memory; or shared memory, of either CTA,
 * which products read. */
static __device__ __forceinline__ void tell_products(uint32_t base, uint32_t barrier) {
    if (!PAIR) return tell(base, barrier);
    __syncwarp();
    if (lane_of() == 0) cluster_arrive(at_leader(base, barrier));
}
static __device__ __forceinline__ void tell_written(uint32_t base, uint32_t barrier) {
    if (!PAIR) {
        async_fence();
        return tell(base, barrier);
    }
    async_fence_cluster();
    __syncwarp();
    if (lane_of() == 0) cluster_signal(at_leader(base, barrier));
}

/* All threads of the CTA, of both of a pair. */
static __device__ __forceinline__ void meet(void) {
    tc_before();
    if (PAIR)
        cluster_sync();
    else
        __syncthreads();
    tc_after();
}
#endif
