/* SPDX-License-Identifier: MIT
 * Shared memory by 32-bit address: the CTA's dynamic buffer, plain loads and stores, asynchronous copies into it, and
 * the swizzle of a tile of rows. Inline PTX lives here and in the other headers of this folder only. */
#ifndef ATTN_DEVICE_SHARED_H
#define ATTN_DEVICE_SHARED_H
#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_base(void) {
    extern __shared__ __align__(1024) unsigned char shared_bytes_[];
    return (uint32_t)__cvta_generic_to_shared(shared_bytes_);
}

static __device__ __forceinline__ uint32_t shared_load8(uint32_t address) {
    uint32_t x;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address));
    return x;
}
static __device__ __forceinline__ uint32_t shared_load16(uint32_t address) {
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
    return x;
}
static __device__ __forceinline__ uint32_t shared_load32(uint32_t address) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address));
    return x;
}
static __device__ __forceinline__ uint64_t shared_load64(uint32_t address) {
    uint64_t x;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(address));
    return x;
}
static __device__ __forceinline__ float2 shared_load_pair(uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
}
static __device__ __forceinline__ uint4 shared_load128(uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address));
    return x;
}
static __device__ __forceinline__ void shared_store8(uint32_t address, uint32_t x) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
static __device__ __forceinline__ void shared_store32(uint32_t address, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
static __device__ __forceinline__ uint2 shared_load32x2(uint32_t address) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address));
    return x;
}
static __device__ __forceinline__ void shared_store32x2(uint32_t address, uint32_t x, uint32_t y) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
static __device__ __forceinline__ void shared_store64(uint32_t address, uint64_t x) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(x) : "memory");
}
static __device__ __forceinline__ void shared_store128(uint32_t address, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
static __device__ __forceinline__ void shared_or32(uint32_t address, uint32_t x) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
static __device__ __forceinline__ void shared_max32(uint32_t address, uint32_t x) {
    asm volatile("red.shared.max.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
static __device__ __forceinline__ void shared_min32(uint32_t address, uint32_t x) {
    asm volatile("red.shared.min.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/* A barrier of some warps of the CTA: `threads` of them, a multiple of 32, meet at barrier `id` 1..15 (0 is
 * __syncthreads). Orders their accesses to shared memory. */
static __device__ __forceinline__ void barrier_part(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* cp.async: `bytes` <= the copy's size are read, the rest of the destination becomes zero; bytes = 0 reads nothing. */
static __device__ __forceinline__ void copy_async16(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy_async16_whole(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same of what nobody reads again soon: the first to leave the second-level cache. */
static __device__ __forceinline__ void copy_async16_once(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
                 "l"(UINT64_C(0x12F0000000000000)) /* what createpolicy gives for evict_first of everything */
                 : "memory");
}
/* The same of what should stay there; whole lines of 128 bytes. */
static __device__ __forceinline__ void copy_async16_kept(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(bytes), "l"(UINT64_C(0x14F0000000000000)) /* of evict_last */
                 : "memory");
}
static __device__ __forceinline__ void copy_async8(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy_async4(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most `pending` (a constant 0..6) of this thread's latest groups are under way. */
static __device__ __forceinline__ void copy_wait(int pending) {
    if (pending == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (pending == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    if (pending == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    if (pending == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    if (pending == 4) asm volatile("cp.async.wait_group 4;" ::: "memory");
    if (pending == 5) asm volatile("cp.async.wait_group 5;" ::: "memory");
    if (pending == 6) asm volatile("cp.async.wait_group 6;" ::: "memory");
}

/* A tile is rows of `pitch` bytes, a multiple of 64, in 16-byte chunks. Chunk c of row r stands at chunk
 * c ^ swizzle_key(r): then the same chunk of 8 successive rows, which is what one ldmatrix phase or one quad store
 * touches, covers all 32 banks. A pitch of whole 128-byte lines needs 3 bits of r; an odd number of half lines (64, 192
 * bytes) alternates between half lines by itself and needs 2 bits of r / 2. */
static __device__ __forceinline__ constexpr int swizzle_mask(int pitch) { return pitch % 128 == 0 ? 7 : 3; }
static __device__ __forceinline__ constexpr int swizzle_key(int pitch, int row) {
    return pitch % 128 == 0 ? row & 7 : (row >> 1) & 3;
}
static __device__ __forceinline__ uint32_t tile_at(int pitch, int row, int chunk) {
    return (uint32_t)(row * pitch + ((chunk ^ swizzle_key(pitch, row)) << 4));
}
/* From a lane's address of an even chunk 0 or its neighbour to `chunk` (even constant) further: the low bits go through
 * the swizzle by XOR, whose bits are free because rows start at multiples of 64 or 128 bytes. */
static __device__ __forceinline__ uint32_t tile_step(uint32_t lane_at, int pitch, int chunk) {
    return (lane_at ^ (uint32_t)((chunk & swizzle_mask(pitch)) << 4)) + (uint32_t)((chunk & ~swizzle_mask(pitch)) << 4);
}
#endif
