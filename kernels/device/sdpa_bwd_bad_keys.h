/* SPDX-License-Identifier: MIT
 * Dense backward by key tiles: keys that hold infinities or NaN, or that lie past the end of their sequence. They are
 * noted and zeroed once: dS = 0 times them is no 0. With softcap (SCORE_MOD) keys that are not finite get stand-ins:
 * sdpa_bwd_infinite.h. The kernel's file defines, before it includes this one, the constants TYPE, DIM, ROWS, CTA_KEYS,
 * SCORE_MOD, K_TILE, K_SLICE, MAIN, MAIN_THREADS, ANY_BAD and BAD_KEYS, and struct work. */
#ifndef ATTN_DEVICE_SDPA_BWD_BAD_KEYS_H
#define ATTN_DEVICE_SDPA_BWD_BAD_KEYS_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"

static __device__ __forceinline__ uint32_t chunk_bad(uint32_t place) {
    const uint4 a = shared_load128(place);
    return not_finite16(TYPE, a.x) | not_finite16(TYPE, a.y) | not_finite16(TYPE, a.z) | not_finite16(TYPE, a.w);
}
/* Chunk x of 16 bytes of row r of a tile of slices. */
static __device__ __forceinline__ uint32_t chunk_of(uint32_t tile, int slice, int r, int x) {
    return tile + x / 8 * slice + r * 128 + ((x % 8 ^ (r & 7)) << 4);
}
static __device__ __forceinline__ int is_bad_key(uint32_t shared, int key) {
    return (int)(shared_load32(shared + BAD_KEYS + 4 * (key >> 5)) >> (key & 31) & 1);
}
/* It asks for is_bad_key. */
#include "kernels/device/sdpa_bwd_infinite.h"

/* What a zeroed key stands for: P = 0 to a row whose lse is finite (its score was -inf), NaN to a row of NaN. */
static __device__ __forceinline__ float bad_key_share(float lse) { return lse == INF ? 0 : 0 * lse; }

/* A named barrier: does any of its threads bring what is not 0? */
static __device__ __forceinline__ int named_any(int id, int threads, uint32_t x) {
    uint32_t any;
    asm volatile("{\n .reg .pred p, q;\n setp.ne.b32 p, %1, 0;\n barrier.red.or.pred q, %2, %3, p;\n"
                 " selp.b32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"(x), "r"(id), "r"(threads)
                 : "memory");
    return (int)any;
}

/* Once: note and zero keys with infinities or NaN; zero those past the end, from number `exist` of the CTA's on.
 * Whether any were stands at ANY_BAD. */
static __device__ __forceinline__ void take_bad_keys(uint32_t shared, int exist) {
    uint32_t any = 0;
    if (threadIdx.x < 8) shared_store32(shared + BAD_KEYS + 4 * threadIdx.x, 0);
    if (threadIdx.x == 0) shared_store32(shared + ANY_BAD, 0);
    static_assert(CTA_KEYS * (DIM / 8) % MAIN_THREADS == 0, "each thread has as many chunks");
#pragma unroll 8
    for (int n = 0; n < CTA_KEYS * (DIM / 8) / MAIN_THREADS; n++) {
        const int x = (int)threadIdx.x + n * MAIN_THREADS;
        any |= chunk_bad(chunk_of(shared + K_TILE, K_SLICE, x / (DIM / 8), x % (DIM / 8)));
    }
    if (!named_any(MAIN, MAIN_THREADS, any) && exist >= CTA_KEYS) return;
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < CTA_KEYS * (DIM / 8); x += MAIN_THREADS) {
        const int r = x / (DIM / 8);
        if (r < exist && chunk_bad(chunk_of(shared + K_TILE, K_SLICE, r, x % (DIM / 8))))
            shared_or32(shared + BAD_KEYS + 4 * (r >> 5), 1u << (r & 31));
    }
    named_sync(MAIN, MAIN_THREADS);
    any = 0;
#pragma unroll
    for (int x = 0; x < CTA_KEYS / 32; x++) any |= shared_load32(shared + BAD_KEYS + 4 * x);
    if (threadIdx.x == 0) shared_store32(shared + ANY_BAD, any);
#pragma unroll 1
    for (int x = (int)threadIdx.x; x < CTA_KEYS * (DIM / 8); x += MAIN_THREADS) {
        const int r = x / (DIM / 8);
        if (SCORE_MOD && r < exist && is_bad_key(shared, r)) {
            const uint32_t chunk = chunk_of(shared + K_TILE, K_SLICE, r, x % (DIM / 8));
            shared_store128(chunk, stand_in128(shared_load128(chunk)));
            continue;
        }
        if (r >= exist || is_bad_key(shared, r))
            shared_store128(chunk_of(shared + K_TILE, K_SLICE, r, x % (DIM / 8)), make_uint4(0, 0, 0, 0));
    }
    async_fence();
    named_sync(MAIN, MAIN_THREADS);
}
#endif
