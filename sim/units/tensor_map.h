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
    SIM_TENSOR_U4_PACKED, /* as bytes of two */
    SIM_TENSOR_U4_APART,  /* groups of 16: 8 bytes in global memory, in shared memory a gap of 8 behind them */
    SIM_TENSOR_U6_APART,  /* likewise 12 and 4 */
    SIM_TENSOR_TYPES
};

struct sim_tensor_map { /* its fields, read out */
    uint64_t address;
    uint64_t stride[SIM_TENSOR_RANK - 1]; /* bytes, of dimensions 1 and up */
    uint32_t last[SIM_TENSOR_RANK];       /* size of each dimension - 1 */
    uint16_t box[SIM_TENSOR_RANK];        /* elements that a copy walks over */
    uint8_t step[SIM_TENSOR_RANK];        /* element strides */
    uint8_t type, bytes, rank;            /* bytes: of an element, of packed ones 1 */
    uint8_t interleave, swizzle, l2, nan; /* nan: elements outside are NaN, not zero */
};
enum { SIM_TENSOR_MAP_BYTES = 128 };
/* Bytes of n elements of a row, and in shared memory (PTX ISA, "Padding and alignment of the sub-byte types"). */
static inline int64_t sim_tensor_in_global(const struct sim_tensor_map *m, int64_t n) {
    return m->type < SIM_TENSOR_U4_PACKED ? n * m->bytes : m->type == SIM_TENSOR_U6_APART ? n * 3 / 4 : n / 2;
}
static inline uint32_t sim_tensor_in_shared(const struct sim_tensor_map *m, uint32_t n) {
    return m->type == SIM_TENSOR_U4_PACKED ? n / 2 : n * m->bytes;
}
static inline uint32_t sim_tensor_gap(const struct sim_tensor_map *m) { /* where it begins in 16 bytes, 0: none */
    return m->type == SIM_TENSOR_U4_APART ? 8 : m->type == SIM_TENSOR_U6_APART ? 12 : 0;
}

void sim_tensor_write(const struct sim_tensor_map *map, void *to); /* SIM_TENSOR_MAP_BYTES */
int sim_tensor_read(const void *from, struct sim_tensor_map *map); /* 0: these bytes are no map */
#endif
