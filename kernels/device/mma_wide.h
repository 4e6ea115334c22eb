/* SPDX-License-Identifier: MIT
 * Warp-wide f32 and f64 matrix products: mma.sync m16n8k8 on tf32 operands and on f64, and the f32 product of split
 * operands.
 *
 * Lane l = 4 g + t (g 0..7, t 0..3), one number a register:
 *   A 16x8   a0 = A[g][t]   a1 = A[g+8][t]   a2 = A[g][t+4]   a3 = A[g+8][t+4]
 *   B 8x8    b0 = B[t][g]   b1 = B[t+4][g]
 *   C 16x8   c0,c1 = C[g][2t..]              c2,c3 = C[g+8][2t..]
 * Which column of A meets which row of B is free as long as both agree. With "2t" at place t and "2t+1" at place t + 4
 * a C tile is an A operand as it stands, (c0, c2, c1, c3), and B's b0, b1 are rows 2t and 2t+1 of a tile.
 *
 * tf32: the tensor core reads the upper 19 bits of a register (8 of exponent, 10 of fraction) and ignores the rest.
 * f64: the 16-row form exists from sm_90 on; before, four m8n8k4 (A row g column t, B row t column g, C row g). */
#ifndef ATTN_DEVICE_MMA_WIDE_H
#define ATTN_DEVICE_MMA_WIDE_H
#include "kernels/params/params.h"

static __device__ __forceinline__ void mma_tf32(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_f64(double c[4], const double a[4], double b0, double b1) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                         : "+d"(c[2 * r]), "+d"(c[2 * r + 1])
                         : "d"(a[2 * k + r]), "d"(k ? b1 : b0));
#endif
}
#endif
