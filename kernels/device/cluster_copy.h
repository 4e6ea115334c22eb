/* SPDX-License-Identifier: MIT
 * What a CTA of a cluster (sm_90) reads from another one's shared memory, and copies there. Addresses of other CTAs:
 * cluster_address (cluster.h). PTX ISA 8.0, sections "ld" and "cp.async.bulk". */
#ifndef ATTN_DEVICE_CLUSTER_COPY_H
#define ATTN_DEVICE_CLUSTER_COPY_H
#include <stdint.h>

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
#endif
