/* SPDX-License-Identifier: MIT
 * The box that a tensor copy moves, as pieces of memory. */
#ifndef SIM_TENSOR_BOX_H
#define SIM_TENSOR_BOX_H
#include "units/tensor_map.h"

struct sim_piece { /* bytes that are side by side in both memories */
    uint64_t global;
    uint32_t shared;         /* offset from the start of the box, before the swizzle */
    uint32_t n, skip, valid; /* bytes in shared memory; of those, [skip, skip + valid) exist in global memory */
};
uint32_t sim_tensor_span(uint32_t swizzle); /* bytes of a row that the swizzle turns among themselves */
/* Rows of the box and bytes that it takes in shared memory. */
uint32_t sim_tensor_rows(const struct sim_tensor_map *map, uint32_t *bytes);
/* The rows of the box whose first element has these coordinates, in pieces of 16 bytes; at most 16 * rows of them. */
uint32_t sim_tensor_walk(const struct sim_tensor_map *map, const int32_t position[SIM_TENSOR_RANK],
                         struct sim_piece *out);
uint32_t sim_swizzle(uint32_t address, uint32_t swizzle); /* where a piece of 16 bytes goes */
/* The halves of the piece there change places: those of every other line of 128 bytes, here of the odd ones (cuda.h,
 * CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B). */
static inline int sim_is_flipped(uint32_t address, uint32_t swizzle) {
    return swizzle == SIM_SWIZZLE_128B_ATOM_32B_FLIP_8B && address >> 7 & 1;
}
#endif
