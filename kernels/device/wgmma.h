/* SPDX-License-Identifier: MIT
 * Warpgroup matrix products of Hopper (wgmma, sm_90a) and the shared-memory layouts that they read. PTX ISA 8.0,
 * sections "asynchronous warpgroup level matrix instructions" and "matrix descriptor". Only the layout below is built.
 *
 * A slice is a tile of rows of 64 16-bit elements, 128 bytes a row, in the 128-byte swizzle: 16-byte chunk c of row r
 * stands at chunk c ^ (r % 8). Slices start at multiples of 1024 bytes; 8 rows are 1024 bytes (the "stride" of the
 * descriptor). The matrix unit swizzles the address that it has computed, so that a start anywhere inside a slice that
 * keeps the row a multiple of 8 needs no further care.
 *   k along the row ("K-major")   element (i, k): row i, place k         16 k further: start + 32 bytes
 *   k along the rows ("MN-major") element (k, i): row k, place i % 64    16 k further: start + 2048 bytes,
 *                                 and i / 64 slices further on (the "leading" distance); i may start at 32 (+ 64 bytes)
 *
 * Threads of a warpgroup: warp w 0..3, lane 4 g + t. Sums of m64nN: d[4 j + e] is row 16 w + g, column 8 j + 2 t + e,
 * and d[4 j + 2 + e] row 16 w + g + 8 (e 0, 1). A in registers, k 0..15: a[0] = row g, elements 2 t, 2 t + 1, a[1] =
 * row g + 8, a[2], a[3] the same 8 elements on: two rounded n8 blocks of sums side by side are an A.
 *
 * Order of use: wgmma_fence (registers or shared memory were written by others), products, wgmma_commit, wgmma_wait,
 * wgmma_hold on the sums before they are read: it keeps the compiler from reading early. Shared memory that ordinary
 * stores or cp.async filled needs async_fence (mbarrier.h) between the writes and the products.
 */
#ifndef ATTN_DEVICE_WGMMA_H
#define ATTN_DEVICE_WGMMA_H
#include "kernels/params/params.h"

/* leading: bytes from one block of 64 i to the next, MN-major only. */
static __device__ __forceinline__ uint64_t slice_desc(uint32_t address, uint32_t leading) {
    const uint64_t stride = 1024 >> 4, swizzle128 = (uint64_t)1 << 62;
    return swizzle128 | stride << 32 | (uint64_t)(leading >> 4) << 16 | (uint64_t)((address & 0x3ffff) >> 4);
}
/* A descriptor `bytes` (a constant, multiple of 16) further on; no carry leaves the address field. */
static __device__ __forceinline__ uint64_t desc_step(uint64_t desc, int bytes) { return desc + (uint64_t)(bytes >> 4); }
/* The same for a distance that is not a constant: one 32-bit addition. */
static __device__ __forceinline__ uint64_t desc_move(uint64_t desc, uint32_t bytes) {
    return (desc & 0xffffffff00000000u) | (uint32_t)((uint32_t)desc + (bytes >> 4));
}

static __device__ __forceinline__ void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most `pending` (a constant 0..2) groups of this warp are under way. */
static __device__ __forceinline__ void wgmma_wait(int pending) {
    if (pending == 0) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (pending == 1) asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (pending == 2) asm volatile("wgmma.wait_group.sync.aligned 2;" ::: "memory");
}
/* wgmma_wait(0), once x has been computed: ptxas sinks arithmetic past a wait, where it no longer overlaps with the
 * products. A branch on x that is never taken keeps it in front. */
static __device__ __forceinline__ void wgmma_wait_after(float x) {
    if (__any_sync(~0u, x > 3e38f)) asm volatile("nanosleep.u32 1;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_hold(float *d, int n) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Operand lists of 16 sums each. */
#define WGMMA_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_R1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R2 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_R3 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R4 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_R5 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R6 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_R7 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/* The first 8 of a list of 16. */
#define WGMMA_H2        ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_D4(d, i)  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define WGMMA_D8(d, i)  WGMMA_D4(d, i), WGMMA_D4(d, (i) + 4)
#define WGMMA_D16(d, i) WGMMA_D4(d, i), WGMMA_D4(d, (i) + 4), WGMMA_D4(d, (i) + 8), WGMMA_D4(d, (i) + 12)
#define WGMMA_D32(d, i) WGMMA_D16(d, i), WGMMA_D16(d, (i) + 16)
#define WGMMA_D64(d, i) WGMMA_D32(d, i), WGMMA_D32(d, (i) + 32)
#define WGMMA_D128(d)   WGMMA_D64(d, 0), WGMMA_D64(d, 64)

/* d (m64 x n, k16) = a b, plus d if accumulate. TRANS_A, TRANS_B: 0 K-major, 1 MN-major. A, B and
 * the rest are the numbers of the operands after the sums. */
#define WGMMA_SS_TEXT(TYPES, SHAPE, REGS, A, B, P, TA, TB)                                                             \
    "{\n .reg .pred p;\n setp.ne.b32 p, %" #P ", 0;\n wgmma.mma_async.sync.aligned." SHAPE TYPES " {" REGS "}, %" #A   \
    ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"
#define WGMMA_SS(NAME, N, SHAPE, REGS, SUMS, A, B, P, TA, TB)                                                          \
    template <int TYPE, int TRANS_A, int TRANS_B>                                                                      \
    static __device__ __forceinline__ void NAME(float *d, uint64_t a, uint64_t b, int accumulate) {                    \
        if (TYPE == KP_BF16)                                                                                           \
            asm volatile(WGMMA_SS_TEXT(".f32.bf16.bf16", SHAPE, REGS, A, B, P, TA, TB)                                 \
                         : SUMS                                                                                        \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(TRANS_A), "n"(TRANS_B));                               \
        else                                                                                                           \
            asm volatile(WGMMA_SS_TEXT(".f32.f16.f16", SHAPE, REGS, A, B, P, TA, TB)                                   \
                         : SUMS                                                                                        \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(TRANS_A), "n"(TRANS_B));                               \
    }
/* The same with A, which is K-major by its nature, in registers. */
#define WGMMA_RS_TEXT(TYPES, SHAPE, REGS, A0, A1, A2, A3, B, P, TB)                                                    \
    "{\n .reg .pred p;\n setp.ne.b32 p, %" #P ", 0;\n wgmma.mma_async.sync.aligned." SHAPE TYPES " {" REGS "}, {%" #A0 \
    ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TB ";\n}"
#define WGMMA_RS(NAME, N, SHAPE, REGS, SUMS, A0, A1, A2, A3, B, P, TB)                                                 \
    template <int TYPE, int TRANS_B>                                                                                   \
    static __device__ __forceinline__ void NAME(float *d, const uint32_t *a, uint64_t b, int accumulate) {             \
        if (TYPE == KP_BF16)                                                                                           \
            asm volatile(WGMMA_RS_TEXT(".f32.bf16.bf16", SHAPE, REGS, A0, A1, A2, A3, B, P, TB)                        \
                         : SUMS                                                                                        \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANS_B));         \
        else                                                                                                           \
            asm volatile(WGMMA_RS_TEXT(".f32.f16.f16", SHAPE, REGS, A0, A1, A2, A3, B, P, TB)                          \
                         : SUMS                                                                                        \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANS_B));         \
    }

#define WGMMA_SUMS_32  WGMMA_D16(d, 0)
#define WGMMA_SUMS_64  WGMMA_D32(d, 0)
#define WGMMA_SUMS_80  WGMMA_D32(d, 0), WGMMA_D8(d, 32)
#define WGMMA_SUMS_128 WGMMA_D64(d, 0)
#define WGMMA_SUMS_256 WGMMA_D128(d)
WGMMA_SS(wgmma_ss_n32, 32, "m64n32k16", WGMMA_R0, WGMMA_SUMS_32, 16, 17, 18, 19, 20)
WGMMA_SS(wgmma_ss_n64, 64, "m64n64k16", WGMMA_R0 WGMMA_R1, WGMMA_SUMS_64, 32, 33, 34, 35, 36)
WGMMA_SS(wgmma_ss_n80, 80, "m64n80k16", WGMMA_R0 WGMMA_R1 WGMMA_H2, WGMMA_SUMS_80, 40, 41, 42, 43, 44)
WGMMA_SS(wgmma_ss_n128, 128, "m64n128k16", WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3, WGMMA_SUMS_128, 64, 65, 66, 67, 68)
WGMMA_SS(wgmma_ss_n256, 256, "m64n256k16", WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5 WGMMA_R6 WGMMA_R7,
         WGMMA_SUMS_256, 128, 129, 130, 131, 132)
WGMMA_RS(wgmma_rs_n32, 32, "m64n32k16", WGMMA_R0, WGMMA_SUMS_32, 16, 17, 18, 19, 20, 21, 22)
WGMMA_RS(wgmma_rs_n64, 64, "m64n64k16", WGMMA_R0 WGMMA_R1, WGMMA_SUMS_64, 32, 33, 34, 35, 36, 37, 38)
WGMMA_RS(wgmma_rs_n128, 128, "m64n128k16", WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3, WGMMA_SUMS_128, 64, 65, 66, 67, 68, 69,
         70)
WGMMA_RS(wgmma_rs_n256, 256, "m64n256k16", WGMMA_R0 WGMMA_R1 WGMMA_R2 WGMMA_R3 WGMMA_R4 WGMMA_R5 WGMMA_R6 WGMMA_R7,
         WGMMA_SUMS_256, 128, 129, 130, 131, 132, 133, 134)
#endif
