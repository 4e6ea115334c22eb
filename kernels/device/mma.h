/* SPDX-License-Identifier: MIT
 * Warp-wide 16-bit matrix products (mma.sync m16n8k16, f32 sums) and the loads of their operands (ldmatrix).
 *
 * Lane l = 4 g + t (g 0..7, t 0..3). One register holds two neighbouring elements, the lower index in the low half.
 *   A 16x16  a0 = A[g][2t..]    a1 = A[g+8][2t..]    a2 = A[g][2t+8..]   a3 = A[g+8][2t+8..]
 *   B 16x8   b0 = B[2t..][g]    b1 = B[2t+8..][g]
 *   C 16x8   c0,c1 = C[g][2t..]                      c2,c3 = C[g+8][2t..]
 * Two C tiles side by side, rounded, are therefore an A operand: a0 a1 from c0c1 c2c3 of the left one, a2 a3 right.
 *
 * ldmatrix.x4 reads four 8x8 matrices; lanes 8 m .. 8 m + 7 give the row addresses of matrix m; register m of lane l
 * gets row g, elements 2t, 2t+1 of it, or with .trans elements [2t][g], [2t+1][g]. Which row and 16-byte chunk lane l
 * names:
 *   A, stored by rows           row l % 16               chunk l / 16
 *   B, stored by rows of n (K)  row l % 8 + 8 (l / 16)   chunk l / 8 % 2       gives b0 b1 of n 0..7 and of 8..15
 *   B, stored by rows of k (V)  row l % 16               chunk l / 16, .trans  gives the same
 */
#ifndef ATTN_DEVICE_MMA_H
#define ATTN_DEVICE_MMA_H
#include "kernels/params/params.h"

static __device__ __forceinline__ void load_matrix4(uint32_t x[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
}
/* Two matrices, from the addresses of lanes 0..15. */
static __device__ __forceinline__ void load_matrix2(uint32_t x[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(address));
}
static __device__ __forceinline__ void load_matrix4_trans(uint32_t x[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
}

/* c += a b; type: KP_BF16 or KP_F16, a constant. */
static __device__ __forceinline__ void mma_m16n8k16(int type, float c[4], const uint32_t a[4], uint32_t b0,
                                                    uint32_t b1) {
    if (type == KP_BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
