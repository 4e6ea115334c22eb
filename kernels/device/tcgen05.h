/* SPDX-License-Identifier: MIT
 * Tensor memory and matrix products of sm_100. PTX ISA 8.7, chapter "TensorCore 5th Generation Family Instructions".
 * A kernel uses one group throughout: that of a pair of CTAs (cta_group::2), or, if its file defines TC_GROUP as 1
 * before it includes this one, each CTA's own.
 *
 * Tensor memory: 128 lanes x 512 columns of 32 bits in each CTA; an address is lane << 16 | column. A warp reaches the
 * 32 lanes of its place in its warpgroup. One thread of the pair's even CTA starts the products of both; those of one
 * thread are performed in the order in which they were started. Where rows and columns of D stand: row m of a CTA's own
 * product of M 128 in lane m, column n in column n; of one of M 64:
 *   plain  row m: lane m / 16 * 32 + m % 16, or, where D begins at lane 16, 16 lanes on; column n: column n
 *   .ws    row m: lane m + 64 (n / (N / 2)); column n: column n % (N / 2)
 * of a pair:
 *   M 256   row m: CTA m / 128, lane m % 128; column n: column n
 *   M 128   row m: CTA m / 64, lane m % 64 + 64 (n / (N / 2)); column n: column n % (N / 2)
 * A in tensor memory: row m as of D (a pair's M 128, .ws M 64: in both halves of the lanes), two numbers of 16 bits a
 * column. A in shared memory: each CTA of a pair has M / 2 rows; B: each has N / 2 rows; both CTAs at the same address.
 *
 * Order: who has read or written tensor memory waits for its loads (or stores), fences (`before`) and arrives at an
 * mbarrier; who was waiting at it fences (`after`) and goes on. tc_commit arrives when all products that the thread has
 * started are done. */
#ifndef ATTN_DEVICE_TCGEN05_H
#define ATTN_DEVICE_TCGEN05_H
#include "kernels/params/params.h"

#ifndef TC_GROUP
#define TC_GROUP 2
#endif
#define TC_TEXT_OF(x) #x
#define TC_TEXT(x)    TC_TEXT_OF(x)
#define TC_CTAS       "cta_group::" TC_TEXT(TC_GROUP)

/* ---- allocation: a warp of each CTA; the address is written to shared memory ---- */
static __device__ __forceinline__ void tc_alloc(uint32_t slot, uint32_t columns) {
    asm volatile("tcgen05.alloc." TC_CTAS ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot), "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit." TC_CTAS ".sync.aligned;");
}
static __device__ __forceinline__ void tc_free(uint32_t cells, uint32_t columns) {
    asm volatile("tcgen05.dealloc." TC_CTAS ".sync.aligned.b32 %0, %1;" ::"r"(cells), "r"(columns));
}

/* ---- order ---- */
static __device__ __forceinline__ void tc_before(void) {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
static __device__ __forceinline__ void tc_after(void) {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
static __device__ __forceinline__ void tc_wait_loads(void) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void tc_wait_stores(void) {
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}
/* One arrival at this mbarrier: of both CTAs of a pair, or the CTA's own. */
static __device__ __forceinline__ void tc_commit(uint32_t barrier) {
#if TC_GROUP == 1
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
#else
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
            barrier),
        "h"((short)3)
        : "memory");
#endif
}

/* ---- descriptors ---- */

/* An operand in shared memory: rows of `span` bytes (128 or 64: the swizzle; 16: none), eight rows a pattern.
 *   numbers of a row along k      stride: bytes from eight rows to the next eight; `leading` is not used
 *   numbers of a row along m, n   stride: bytes from eight values of k to the next eight; leading: from `span` bytes of
 *                                 m or n to the next */
static __device__ __forceinline__ constexpr uint64_t tc_operand(int span, uint32_t stride, uint32_t leading) {
    return (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 46 |
           (uint64_t)(span == 16 ? 0 : 256 / span) << 61;
}
static __device__ __forceinline__ uint64_t tc_operand_at(uint64_t operand, uint32_t cells) {
    return operand | (cells & 0x3ffff) >> 4;
}
/* The shape of a product: operands of a type of 16 bits, f32 sums; b_along_n, a_along_m: the operand's rows in memory
 * are values of k. */
static __device__ __forceinline__ constexpr uint32_t tc_shape(int m, int n, int b_along_n, int type = KP_BF16,
                                                              int a_along_m = 0) {
    return 1u << 4 | (type == KP_BF16 ? 1u << 7 | 1u << 10 : 0) | (uint32_t)a_along_m << 15 |
           (uint32_t)b_along_n << 16 | (uint32_t)(n / 8) << 17 | (uint32_t)(m / 16) << 24;
}

/* ---- products, K = 16: D (+)= A B^T ---- */
static __device__ __forceinline__ void tc_multiply(uint32_t d, uint64_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n"
                 " tcgen05.mma." TC_CTAS ".kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                 "l"(a), "l"(b), "r"(shape), "r"(add)
                 : "memory");
}
/* A in tensor memory. */
static __device__ __forceinline__ void tc_multiply_cells(uint32_t d, uint32_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n"
                 " tcgen05.mma." TC_CTAS ".kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
                 "r"(a), "l"(b), "r"(shape), "r"(add)
                 : "memory");
}

#if TC_GROUP == 1
/* The same, M 64 in both halves of the lanes (.ws). */
static __device__ __forceinline__ void tc_multiply_cells_ws(uint32_t d, uint32_t a, uint64_t b, uint32_t shape,
                                                            int add) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n"
                 " tcgen05.mma.ws.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
                 "r"(a), "l"(b), "r"(shape), "r"(add)
                 : "memory");
}
/* 16 bytes of each of 64 rows of an operand to four columns: row m to lanes m and m + 64. Done before products that the
 * thread starts later. */
static __device__ __forceinline__ void tc_copy_rows64(uint32_t cells, uint64_t operand) {
    asm volatile("tcgen05.cp.cta_group::1.64x128b.warpx2::02_13 [%0], %1;" ::"r"(cells), "l"(operand) : "memory");
}
#endif

/* ---- a warp's registers ---- */
#define TC_R8(x, i)                                                                                                    \
    "=r"(x[i]), "=r"(x[i + 1]), "=r"(x[i + 2]), "=r"(x[i + 3]), "=r"(x[i + 4]), "=r"(x[i + 5]), "=r"(x[i + 6]),        \
        "=r"(x[i + 7])
#define TC_W8(x, i)                                                                                                    \
    "r"(x[i]), "r"(x[i + 1]), "r"(x[i + 2]), "r"(x[i + 3]), "r"(x[i + 4]), "r"(x[i + 5]), "r"(x[i + 6]), "r"(x[i + 7])
#define TC_LIST16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define TC_LIST32                                                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "  \
    "%24, %25, %26, %27, %28, %29, %30, %31}"

/* x[c] = column c of the thread's lane, 32 of them. */
static __device__ __forceinline__ void tc_load32(uint32_t x[32], uint32_t cells) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 " TC_LIST32 ", [%32];"
                 : TC_R8(x, 0), TC_R8(x, 8), TC_R8(x, 16), TC_R8(x, 24)
                 : "r"(cells));
}
static __device__ __forceinline__ void tc_store32(uint32_t cells, const uint32_t x[32]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], " TC_LIST32 ";" ::TC_W8(x, 0), TC_W8(x, 8),
                 TC_W8(x, 16), TC_W8(x, 24), "r"(cells)
                 : "memory");
}
/* The same, one column, 16 columns. */
static __device__ __forceinline__ uint32_t tc_load1(uint32_t cells) {
    uint32_t x;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(x) : "r"(cells));
    return x;
}
static __device__ __forceinline__ void tc_load16(uint32_t x[16], uint32_t cells) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 " TC_LIST16 ", [%16];"
                 : TC_R8(x, 0), TC_R8(x, 8)
                 : "r"(cells));
}
static __device__ __forceinline__ void tc_store16(uint32_t cells, const uint32_t x[16]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], " TC_LIST16 ";" ::TC_W8(x, 0), TC_W8(x, 8), "r"(cells)
                 : "memory");
}
/* 16 lanes x 64 columns: x[4 n + 2 k + e] = lane (thread / 4 + 8 k), column 8 n + 2 (thread % 4) + e. */
static __device__ __forceinline__ void tc_load_16x64(uint32_t x[32], uint32_t cells) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x8.b32 " TC_LIST32 ", [%32];"
                 : TC_R8(x, 0), TC_R8(x, 8), TC_R8(x, 16), TC_R8(x, 24)
                 : "r"(cells));
}
/* The same, 32 columns. */
static __device__ __forceinline__ void tc_load_16x32(uint32_t x[16], uint32_t cells) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x4.b32 " TC_LIST16 ", [%16];"
                 : TC_R8(x, 0), TC_R8(x, 8)
                 : "r"(cells));
}
#endif
