/* SPDX-License-Identifier: MIT
 * What the CTAs of a cluster (sm_90) tell each other: rank, barrier of all, and the other CTA's shared memory. PTX ISA
 * 8.0, sections "mapa", "barrier.cluster", "mbarrier", "cp.async.bulk".
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
/* Where the CTA of that rank has what this one has at `address`. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(address), "r"(rank));
    return x;
}
/* Store into another CTA; its mbarrier at `bar` counts the 16 bytes as they arrive (mbar_expect). */
static __device__ __forceinline__ void cluster_send4(uint32_t address, const float x[4], uint32_t bar) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(bar)
        : "memory");
}
/* One arrival at this CTA's mbarrier, whose phase also waits for `bytes` bytes of cluster_send4. */
static __device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
/* One arrival at another CTA's mbarrier: what this thread has read of its own shared memory, and what others told it of
 * by barriers here, may be overwritten from there. The scope is the CTA's, of which the other is none: a release at the
 * scope of the cluster waits in a MEMBAR for all additions to memory of the thread (900 cycles even where there are
 * none), and shared memory needs none of that, because loads of it are done when their numbers are used, before the
 * arrival is sent. Every kernel whose CTAs free each other's stages of a multicast rests on the same. No word about
 * global memory goes this way. */
static __device__ __forceinline__ void cluster_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* One arrival at a CTA's mbarrier: what this thread has written, shared memory of other CTAs included, and what others
 * told it of by barriers here, is seen by whoever waits there (mbar_wait_cluster). */
static __device__ __forceinline__ void cluster_signal(uint32_t bar) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* An ordinary store into another CTA. */
static __device__ __forceinline__ void cluster_store128(uint32_t address, uint4 x) {
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
static __device__ __forceinline__ void cluster_store32(uint32_t cells, uint32_t x) {
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(cells), "r"(x) : "memory");
}
/* An ordinary load from another CTA. */
static __device__ __forceinline__ uint32_t cluster_load32(uint32_t address) {
    uint32_t x;
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
/* `bytes` of this CTA's shared memory to another's, by the copy unit; its mbarrier at `bar` counts their arrival. */
static __device__ __forceinline__ void cluster_copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(bar)
        : "memory");
}
/* mbar_wait for a phase that another CTA completes, by cluster_arrive or cluster_send4. */
static __device__ __forceinline__ void mbar_wait_cluster(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     " selp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    while (!done);
}
#endif
