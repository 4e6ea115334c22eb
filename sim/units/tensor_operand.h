/* SPDX-License-Identifier: MIT
 * Operands of tcgen05's products and copies: where the 16-byte chunks that a descriptor of shared memory tells stand,
 * and the numbers in a chunk. Not the products themselves (tcgen05_math.c), not wgmma's operands (wgmma_math.h). */
#ifndef SIM_TENSOR_OPERAND_H
#define SIM_TENSOR_OPERAND_H
#include <stdint.h>

enum tensor_format {
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_TF32,
    TENSOR_E4M3,
    TENSOR_E5M2,
    TENSOR_E2M3,
    TENSOR_E3M2,
    TENSOR_E2M1, /* those of 4 and 6 bits: 16 in a chunk, padded at its end; in cells a byte each */
    TENSOR_U8,
    TENSOR_S8,
    TENSOR_PAIRS /* E2M1, two in a byte, the lower half first */
};
enum { TENSOR_MAX_K = 64, TENSOR_CHUNKS = 512 };

static inline uint32_t tensor_per_chunk(enum tensor_format f) {
    return f <= TENSOR_BF16 ? 8 : f == TENSOR_TF32 ? 4 : f == TENSOR_PAIRS ? 32 : 16;
}

/* Shared addresses of chunks, or 0 where the descriptor has a swizzle, a version or an offset mode that is none.
 *   rows along k    `rows` times `chunks` of them, row by row: rows in groups of 8
 *   rows along m or n (mn_major)   for each of 32 / size values of k, rows * size / 16 chunks */
uint32_t tensor_chunks(uint64_t desc, int mn_major, uint32_t rows, uint32_t chunks, uint32_t size, uint32_t out[]);
/* The elements of a chunk as numbers; returns how many. cells: as tensor memory holds them. */
uint32_t tensor_widen(const uint8_t chunk[16], enum tensor_format format, int cells, float out[32]);
/* 16 values of 4 or 6 bits, packed from the lowest bit on, to a byte each as tcgen05.cp does: 4 bits become bits 5..2.
 */
void tensor_unpack(const uint8_t chunk[16], uint32_t bits, uint8_t out[16]);
/* A scale of a block: UE8M0, or UE4M3. */
float tensor_scale(uint8_t bits, int ue4m3);
#endif
