/* SPDX-License-Identifier: MIT
 * What the CTAs of a cluster (sm_90) tell each other: rank, barrier of all, and the other CTA's shared memory. PTX ISA
 * 8.0, sections "mapa", "barrier.cluster", "mbarrier".
 *
 * A CTA must not write into another that has not started or that has ended: cluster_sync first and last. */
#ifndef ATTN_DEVICE_CLUSTER_H
#define ATTN_DEVICE_CLUSTER_H
#include <stdint.h>

static __device__ __forceinline__ uint32_t cluster_rank(void) {
    uint32_t x;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(x));
    return x;
}
/* All threads of all CTAs meet; what was written before is seen after, in either CTA. */
static __device__ __forceinline__ void cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Where the CTA of that rank has what this one has at `at`. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t at, uint32_t rank) {
    uint32_t x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(rank));
    return x;
}
static __device__ __forceinline__ void cluster_store4(uint32_t at, const float x[4]) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}
/* One arrival at another CTA's mbarrier. What this thread did before, and by __syncwarp its warp, is seen by whoever
 * waits there with cluster_wait. */
static __device__ __forceinline__ void cluster_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}
/* mbar_wait for an mbarrier of this CTA at which another arrives. */
static __device__ __forceinline__ void cluster_wait(uint32_t at, uint32_t parity) {
    uint32_t done;
    do
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     " selp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    while (!done);
}
#endif
