/* SPDX-License-Identifier: MIT
 * What the warps of a role-split CTA tell each other: mbarriers in shared memory, numbered barriers, the fence between
 * ordinary writes and the asynchronous units, and the register shares of warpgroups (sm_90). PTX ISA 8.0, sections
 * "mbarrier", "barrier", "async proxy", "setmaxnreg".
 *
 * An mbarrier completes a phase when `count` arrivals have come; mbar_wait(bar, phase & 1) returns once phase number
 * `phase` (0, 1, ...) is complete, so that waiting for the phase before the first, parity 1, returns at once. The phase
 * is always derived from a counter of executed rounds. */
#ifndef ATTN_DEVICE_MBARRIER_H
#define ATTN_DEVICE_MBARRIER_H
#include <stdint.h>

static __device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
/* After the inits, before the CTA's __syncthreads: other threads and units see the barriers. */
static __device__ __forceinline__ void mbar_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* One arrival, made when all cp.async that this thread has issued so far are complete. */
static __device__ __forceinline__ void mbar_arrive_copies(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
static __device__ __forceinline__ int mbar_try(uint32_t bar, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
                 " selp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return (int)done;
}
static __device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
#ifdef ATTN_TRAP_HANGS
    uint32_t tries = 0;
    while (!mbar_try(bar, parity))
        if (++tries > 1u << 22) __trap(); /* each try itself waits for about a microsecond */
#else
    while (!mbar_try(bar, parity)) {
    }
#endif
}

/* Numbered barriers 1..15 (0 is __syncthreads): `threads` in all, of which some only arrive. */
static __device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Shared memory written (by this thread, or by others before a barrier) through ordinary stores or cp.async becomes
 * visible to matrix and copy units that this thread, or others after a barrier, start. */
static __device__ __forceinline__ void async_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* The same for shared memory of any CTA of the cluster; for global memory. */
static __device__ __forceinline__ void async_fence_cluster(void) {
    asm volatile("fence.proxy.async.shared::cluster;" ::: "memory");
}
static __device__ __forceinline__ void async_fence_global(void) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* All warps of a warpgroup change to N registers a thread, a multiple of 8. The sum over warpgroups must fit. */
template <int N> static __device__ __forceinline__ void registers_more(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_fewer(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
#endif
