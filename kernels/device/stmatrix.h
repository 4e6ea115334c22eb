/* SPDX-License-Identifier: MIT
 * Warp-wide stores of 8x8 matrices of 16-bit elements to shared memory (sm_90): the reverse of ldmatrix in mma.h. */
#ifndef ATTN_DEVICE_STMATRIX_H
#define ATTN_DEVICE_STMATRIX_H
#include <stdint.h>

/* Lanes 8 m .. 8 m + 7 give the row addresses of matrix m; register m of lane l holds elements 2 (l % 4), + 1 of its
 * row l / 4. */
static __device__ __forceinline__ void store_matrix4(uint32_t address, const uint32_t x[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
/* The same matrices transposed: lanes 8 m .. 8 m + 7 give the addresses of the columns of matrix m. */
static __device__ __forceinline__ void store_matrix4_transposed(uint32_t address, const uint32_t x[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
#endif
