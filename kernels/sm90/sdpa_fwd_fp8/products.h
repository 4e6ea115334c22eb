/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: wgmma of e4m3, k 32, sums in f32. Both operands are K-major (PTX ISA 8.0, "wgmma"): a
 * row of 128 elements is 128 bytes, in the 128-byte swizzle of wgmma.h, and 32 k further on is 32 bytes further on.
 *
 * Sums lie as those of 16-bit operands do. A in registers, k 0..31, of lane 4 g + t: a[0] = row g, k 4 t .. 4 t + 3,
 * a[1] = row g + 8, a[2], a[3] the same 16 k on. A thread has columns 8 j + 2 t and the next one of S: with
 *     k 16 x + 4 t + 2 y + e   standing for key   16 x + 8 y + 2 t + e        (e, y, x 0 or 1)
 * its numbers are the A of O += P V as they are. transpose.h puts the keys of V into that order. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_PRODUCTS_H
#define ATTN_SM90_SDPA_FWD_FP8_PRODUCTS_H
#include "kernels/device/wgmma.h"

static __device__ __forceinline__ void wgmma_e4m3_n64(float *d, const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" WGMMA_R0 WGMMA_R1
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1;"
                 : WGMMA_SUMS_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
static __device__ __forceinline__ void wgmma_e4m3_n128(float *d, const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1;"
                 : WGMMA_SUMS_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* n columns with A in shared memory, plus d if accumulate. */
#define WGMMA_E4M3_SHARED(N, REGS, SUMS, A, B, P)                                                                      \
    static __device__ __forceinline__ void wgmma_e4m3_shared_n##N(float *d, uint64_t a, uint64_t b, int accumulate) {  \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #P ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N           \
                     "k32.f32.e4m3.e4m3 {" REGS "}, %" #A ", %" #B ", p, 1, 1;\n}"                                     \
                     : SUMS                                                                                            \
                     : "l"(a), "l"(b), "r"(accumulate));                                                               \
    }
#define WGMMA_SUMS_96 WGMMA_D32(d, 0), WGMMA_D16(d, 32)
WGMMA_E4M3_SHARED(96, WGMMA_R0 WGMMA_R1 WGMMA_R2, WGMMA_SUMS_96, 48, 49, 50)
WGMMA_E4M3_SHARED(128, WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3, WGMMA_SUMS_128, 64, 65, 66)

/* Four numbers rounded to e4m3, the first one lowest; beyond 448 they are 448, and NaN is NaN. */
static __device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
    uint32_t x;
    asm("{\n .reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        " cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n mov.b32 %0, {low, high};\n}"
        : "=r"(x)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return x;
}
/* c += a b, m16n8k32 of mma.sync, whose sums lie as those of one n8 block of wgmma do. */
static __device__ __forceinline__ void mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* The number that a byte is. */
static __device__ __forceinline__ float unpack_e4m3(uint32_t byte) {
    uint32_t pair;
    asm("{\n .reg .b16 x;\n cvt.u16.u32 x, %1;\n cvt.rn.f16x2.e4m3x2 %0, x;\n}" : "=r"(pair) : "r"(byte));
    float y;
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n cvt.f32.f16 %0, low;\n}" : "=f"(y) : "r"(pair));
    return y;
}
#endif
