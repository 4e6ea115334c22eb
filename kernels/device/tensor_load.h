/* SPDX-License-Identifier: MIT
 * Copies by tensor maps (TMA) into this CTA or several of a cluster, and plain bulk copies, sm_90. One thread starts a
 * copy; the mbarrier counts the bytes as they arrive. Elements outside of the tensor become zeros and count as arrived.
 * PTX ISA 8.0, sections "cp.async.bulk.tensor" and "cp.async.bulk". */
#ifndef ATTN_DEVICE_TENSOR_LOAD_H
#define ATTN_DEVICE_TENSOR_LOAD_H
#include "kernels/params/tensor_map.h"

/* A box whose first element is at the coordinates x, y, z, w. */
static __device__ __forceinline__ void tensor_load4(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                    int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
/* The same (sm_100); the mbarrier is this CTA's or, of a pair of CTAs, the other's, at its address in the cluster. */
static __device__ __forceinline__ void tensor_load4_pair(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                         int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
/* The same to the same address, and the same mbarrier, of each CTA whose bit of `ctas` is 1. */
static __device__ __forceinline__ void tensor_multicast4(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                         int x, int y, int z, int w, uint16_t ctas) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(ctas)
                 : "memory");
}
/* `bytes` in a row, a multiple of 16, from and to multiples of 16. */
static __device__ __forceinline__ void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
#endif
