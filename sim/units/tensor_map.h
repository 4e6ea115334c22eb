/* SPDX-License-Identifier: MIT
 * What a tensor map says. Written in the device's form by cuTensorMapEncodeTiled (driver/tensor.c), or by host code
 * itself, and read by the instructions that copy tensors. */
#ifndef SIM_TENSOR_MAP_H
#define SIM_TENSOR_MAP_H
#include <stdint.h>

enum { SIM_TENSOR_RANK = 5 };
enum { SIM_INTERLEAVE_NONE, SIM_INTERLEAVE_16B, SIM_INTERLEAVE_32B };
/* As cuTensorMapEncodeTiled takes them; ATOM: pieces of more than 16 bytes stay together, FLIP: their halves of 8 bytes
 * change places in every other line. */
enum {
    SIM_SWIZZLE_NONE,
    SIM_SWIZZLE_32B,
    SIM_SWIZZLE_64B,
    SIM_SWIZZLE_128B,
    SIM_SWIZZLE_128B_ATOM_32B,
    SIM_SWIZZLE_128B_ATOM_32B_FLIP_8B,
    SIM_SWIZZLE_128B_ATOM_64B,
    SIM_SWIZZLES
};
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

struct sim_tensor_map { /* its fields, read out */
    uint64_t address;
    uint64_t stride[SIM_TENSOR_RANK - 1]; /* bytes, of dimensions 1 and up */
    uint32_t last[SIM_TENSOR_RANK];       /* size of each dimension - 1 */
    uint16_t box[SIM_TENSOR_RANK];        /* elements that a copy walks over */
    uint8_t step[SIM_TENSOR_RANK];        /* element strides */
    uint8_t type, bytes, rank;            /* bytes: of an element */
    uint8_t interleave, swizzle, l2, nan; /* nan: elements outside are NaN, not zero */
};
enum { SIM_TENSOR_MAP_BYTES = 128 };

void sim_tensor_write(const struct sim_tensor_map *map, void *to); /* SIM_TENSOR_MAP_BYTES */
int sim_tensor_read(const void *from, struct sim_tensor_map *map); /* 0: these bytes are no map */
#endif
