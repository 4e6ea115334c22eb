/* SPDX-License-Identifier: MIT
 * Rows of 16-bit elements from memory of any alignment into a swizzled tile of shared memory (shared.h). */
#ifndef ATTN_DEVICE_TILE_COPY_H
#define ATTN_DEVICE_TILE_COPY_H
#include "kernels/device/shared.h"

/* 8 elements, of which the first `bytes` / 2 exist; the others become 0. unit: bytes that a copy may move at once. */
static __device__ __forceinline__ void copy_chunk(uint32_t to, const char *from, int bytes, int unit) {
    if (unit == 16) {
        copy_async16(to, from, bytes);
    } else if (unit == 4) {
#pragma unroll
        for (int x = 0; x < 16; x += 4) copy_async4(to + x, from + x, max(min(bytes - x, 4), 0));
    } else {
        uint32_t word[4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const uint16_t *pair = (const uint16_t *)from + 2 * x;
            const uint32_t lo = 4 * x < bytes ? pair[0] : 0, hi = 4 * x + 2 < bytes ? pair[1] : 0;
            word[x] = lo | hi << 16;
        }
        shared_store128(to, make_uint4(word[0], word[1], word[2], word[3]));
    }
}

/* Threads side by side on a row: at most 128 bytes of it, so that a warp reads whole lines of several rows. */
static __device__ __forceinline__ constexpr int copy_across(int chunks) { return chunks % 8 == 0 ? 8 : 4; }

/* All `threads`: start the copy of `rows` rows of `dim` columns, of which the first `exist` rows and `width` columns
 * exist; the rest becomes 0. from: the first row's address; stride in bytes. All but from, exist, width, stride, unit
 * are constants. */
static __device__ __forceinline__ void copy_tile(uint32_t tile, int pitch, int rows, int dim, int threads, int thread,
                                                 const char *from, int64_t stride, int exist, int width, int unit) {
    const int across = copy_across(dim / 8), down = threads / across, r0 = thread / across, c0 = thread % across;
    const char *row = from + r0 * stride;
    if (unit == 16 && width == dim && exist >= rows && rows % down == 0 && down % 8 == 0) {
        const uint32_t to = tile + tile_at(pitch, r0, c0); /* `down` rows, `across` chunks on: the same swizzle */
        row += 16 * c0;
#pragma unroll
        for (int r = 0; r < rows; r += down, row += down * stride)
#pragma unroll
            for (int c = 0; c < dim / 8; c += across) copy_async16_whole(to + r * pitch + 16 * c, row + 16 * c);
        return;
    }
#pragma unroll 1
    for (int r = r0; r < rows; r += down, row += down * stride)
#pragma unroll 1
        for (int c = c0; c < dim / 8; c += across)
            copy_chunk(tile + tile_at(pitch, r, c), row + 16 * c, r < exist ? max(min(2 * width - 16 * c, 16), 0) : 0,
                       unit);
}
#endif
