/* SPDX-License-Identifier: MIT
 * Copies by tensor maps (TMA) into several CTAs of a cluster at once, sm_90. PTX ISA 8.0, section
 * "cp.async.bulk.tensor", multicast. */
#ifndef ATTN_DEVICE_TENSOR_MULTICAST_H
#define ATTN_DEVICE_TENSOR_MULTICAST_H
#include "kernels/params/tensor_map.h"

/* tensor_load4 (tensor_load.h) to the same address, and the same mbarrier, of each CTA whose bit of `ctas` is 1. */
static __device__ __forceinline__ void tensor_multicast4(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                         int x, int y, int z, int w, uint16_t ctas) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(ctas)
                 : "memory");
}
#endif
