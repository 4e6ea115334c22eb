/* SPDX-License-Identifier: MIT
 * What cuTensorMapEncodeTiled puts into the 128 bytes of a tensor map here, and the walk over the box that a copy
 * moves. The real encoding is the driver's secret; kernels only hand maps on. */
#ifndef SIM_TENSOR_MAP_H
#define SIM_TENSOR_MAP_H
#include <stddef.h>
#include <stdint.h>

enum { SIM_TENSOR_BYTES = 128, SIM_TENSOR_RANK = 5 };
#define SIM_TENSOR_MAGIC UINT32_C(0x70614d54)
/* cuda.h's numbers of element types and swizzles */
enum sim_tensor_type {
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
    SIM_TENSOR_TYPES
};
enum { SIM_SWIZZLE_NONE, SIM_SWIZZLE_32, SIM_SWIZZLE_64, SIM_SWIZZLE_128, SIM_SWIZZLES };
struct sim_tensor_map {
    uint32_t magic;
    uint8_t rank, type, swizzle, fill_nan;
    uint64_t address;
    uint64_t strides[SIM_TENSOR_RANK - 1]; /* bytes, of dimensions 1.. */
    uint32_t last[SIM_TENSOR_RANK];        /* extent - 1 */
    uint16_t box[SIM_TENSOR_RANK];
    uint8_t step[SIM_TENSOR_RANK];
};
_Static_assert(sizeof(struct sim_tensor_map) <= SIM_TENSOR_BYTES, "a tensor map has 128 bytes");

struct sim_piece { /* bytes that are side by side in both memories */
    uint64_t global;
    uint32_t shared;         /* offset from the start of the box, before the swizzle */
    uint32_t n, skip, valid; /* bytes in shared memory; of those, [skip, skip + valid) exist in global memory */
};
uint32_t sim_tensor_size(uint32_t type); /* bytes of an element */
uint32_t sim_tensor_span(uint32_t swizzle);
/* Rows of the box and bytes that it takes in shared memory. */
uint32_t sim_tensor_rows(const struct sim_tensor_map *map, uint32_t *bytes);
/* The rows of the box whose first element has these coordinates, in pieces of 16 bytes; at most 16 * rows of them. */
uint32_t sim_tensor_walk(const struct sim_tensor_map *map, const int32_t at[SIM_TENSOR_RANK], struct sim_piece *out);
static inline uint32_t sim_swizzle(uint32_t address, uint32_t swizzle) {
    uint32_t bits = swizzle == SIM_SWIZZLE_128 ? 7 : swizzle == SIM_SWIZZLE_64 ? 3 : swizzle == SIM_SWIZZLE_32 ? 1 : 0;
    return address ^ (address >> 7 & bits) << 4;
}
#endif
