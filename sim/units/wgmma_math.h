/* SPDX-License-Identifier: MIT
 * The numbers of a warpgroup's product: where operands stand in shared memory, and the sums. */
#ifndef SIM_WGMMA_H
#define SIM_WGMMA_H
#include <stdint.h>

enum wgmma_type { WGMMA_F16, WGMMA_BF16, WGMMA_TF32, WGMMA_E4M3, WGMMA_E5M2 };
enum { WGMMA_MAX_N = 256, WGMMA_MAX_K = 32 };
static inline uint32_t wgmma_size(enum wgmma_type type) { return type <= WGMMA_BF16 ? 2 : type == WGMMA_TF32 ? 4 : 1; }

/* Shared addresses of the 16-byte chunks of `rows` rows (of M or N) and 32 bytes of K. K-major: two chunks a row, row
 * by row. MN-major, 16-bit only: of each of the 16 k, rows / 8 chunks of 8 rows. Returns the number of chunks. */
uint32_t wgmma_chunks(uint64_t desc, int mn_major, uint32_t rows, uint32_t out[]);
/* Elements of a chunk as numbers; returns how many. */
uint32_t wgmma_widen(const uint8_t chunk[16], enum wgmma_type type, float out[16]);
/* All elements of an operand: chunks are offsets in `shared`. out[row * pitch + k], or by_k out[k * pitch + row]. */
void wgmma_gather(const uint8_t *shared, const uint32_t *chunks, uint32_t n_chunks, uint32_t rows, int mn_major,
                  enum wgmma_type type, int by_k, float *out, uint32_t pitch);
/* sums [rows x n] += a [rows x k] b [k x n]: 4 rows and 8 columns at a time; rows of b and sums are pitch apart, those
 * of a pitch_a. */
void wgmma_product(float *sums, const float *a, const float *b, uint32_t rows, uint32_t n, uint32_t k, uint32_t pitch_a,
                   uint32_t pitch);
#endif
