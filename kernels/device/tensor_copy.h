/* SPDX-License-Identifier: MIT
 * Copies by tensor maps (TMA) into the CTA, sm_100: boxes, and four gathered rows. One thread starts a copy; the
 * mbarrier, which may be the other CTA's in a kernel of pairs (tcgen05.h, TC_GROUP), counts the bytes as they arrive.
 * Elements outside of the tensor become zeros and count as arrived. PTX ISA 8.7, section "cp.async.bulk.tensor". */
#ifndef ATTN_DEVICE_TENSOR_COPY_H
#define ATTN_DEVICE_TENSOR_COPY_H
#include "kernels/device/tcgen05.h"
#include "kernels/params/tensor_map.h"

/* The mbarrier of the pair's even CTA that stands where this CTA has `barrier`. */
static __device__ __forceinline__ uint32_t pair_leader(uint32_t barrier) { return barrier & 0xfeffffffu; }

static __device__ __forceinline__ void tensor_prefetch(const struct kp_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Four rows of a box of one row each, from `column` on. A row below 0 is outside. */
static __device__ __forceinline__ void tensor_gather4(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                      int column, int4 row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
                 "." TC_CTAS " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row.x), "r"(row.y), "r"(row.z), "r"(row.w)
                 : "memory");
}
static __device__ __forceinline__ void tensor_copy2(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                    int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes." TC_CTAS " [%0], "
                 "[%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
static __device__ __forceinline__ void tensor_copy4(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                    int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes." TC_CTAS " [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
#endif
