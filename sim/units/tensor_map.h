/* SPDX-License-Identifier: MIT
 * What a tensor map of this driver holds in its 128 opaque bytes. Written by cuTensorMapEncodeTiled (driver/tensor.c),
 * read by the instructions that copy tensors. The real driver's bytes differ: code may only carry them around. */
#ifndef SIM_TENSOR_MAP_H
#define SIM_TENSOR_MAP_H
#include <stdint.h>

enum { SIM_TENSOR_RANK = 5 };
enum { SIM_INTERLEAVE_NONE, SIM_INTERLEAVE_16B, SIM_INTERLEAVE_32B };
enum { SIM_SWIZZLE_NONE, SIM_SWIZZLE_32B, SIM_SWIZZLE_64B, SIM_SWIZZLE_128B };
/* Element types, numbered as cuTensorMapEncodeTiled takes them. */
enum {
    SIM_TENSOR_U8,
    SIM_TENSOR_U16,
    SIM_TENSOR_U32,
    SIM_TENSOR_S32,
    SIM_TENSOR_U64,
    SIM_TENSOR_S64,
    SIM_TENSOR_F16,
    SIM_TENSOR_F32,
    SIM_TENSOR_F64,
    SIM_TENSOR_BF16,
    SIM_TENSOR_F32_FTZ,
    SIM_TENSOR_TF32,
    SIM_TENSOR_TF32_FTZ,
    SIM_TENSOR_TYPES
};
#define SIM_TENSOR_MAGIC UINT64_C(0x70616d54416d6953) /* "SimATmap" */

struct sim_tensor_map {
    uint64_t magic, address;
    uint64_t stride[SIM_TENSOR_RANK - 1]; /* bytes, of dimensions 1 and up */
    uint32_t last[SIM_TENSOR_RANK];       /* size of each dimension - 1 */
    uint16_t box[SIM_TENSOR_RANK];        /* elements that a copy walks over */
    uint8_t step[SIM_TENSOR_RANK];        /* element strides */
    uint8_t type, bytes, rank;            /* bytes: of an element */
    uint8_t interleave, swizzle, l2, nan; /* nan: elements outside are NaN, not zero */
    uint8_t device;
    uint8_t pad[33];
    uint32_t check; /* of all bytes before; 0 of everything else is no map */
};
_Static_assert(sizeof(struct sim_tensor_map) == 128, "a tensor map has 128 bytes");

uint32_t sim_tensor_check(const struct sim_tensor_map *map); /* what `check` must be */
static inline int sim_tensor_valid(const struct sim_tensor_map *map) {
    return map->magic == SIM_TENSOR_MAGIC && map->check == sim_tensor_check(map);
}
#endif
