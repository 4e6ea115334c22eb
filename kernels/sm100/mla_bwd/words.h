/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: what warps of scores tell both CTAs of a tile, and dS being ready. A word a warp:
 *
 *   bit 0      joined lists: a score or dP of a row that is not empty is not finite
 *   bits 8..   f16: 15 - k of the power of two 2^k by which P and dS of the tile, if it were alone, would be multiplied
 *              before they are rounded, 0 <= k <= 15 (docs/numerics.md, "dS in f16")
 *
 * f16: k of a tile is the least that a warp of either CTA asks for in the work tile's tiles so far, so that dKV^T =
 * dO^T P + Q^T dS stays one sum over all rows; it is multiplied by 2^-k on its way to memory. dQ follows where k falls.
 * 128 rows: dS of earlier tiles, which is in memory, is multiplied by the threads that stored it. 64 heads: the first
 * products of dQ^T of the tile divide what is there (scale-input-d).
 *
 * Words stand before WORDS_FULL (f16; scores alone wait there) and before DS_FULL; who else reads them frees the tile's
 * scatter list in both CTAs. */
#ifndef ATTN_SM100_MLA_BWD_WORDS_H
#define ATTN_SM100_MLA_BWD_WORDS_H
#include "kernels/device/f16_scale.h"
#include "kernels/sm100/mla_bwd/layout.h"

constexpr uint32_t WORD_ODD = 1;

/* The word of two: of warps, of tiles. */
static __device__ __forceinline__ uint32_t fold_words(uint32_t x, uint32_t y) {
    return SCALED ? max(x & ~WORD_ODD, y & ~WORD_ODD) | ((x | y) & WORD_ODD) : x | y;
}
static __device__ __forceinline__ int exponent_of(uint32_t word) { return SCALED ? 15 - (int)(word >> 8) : 0; }

/* dS of tile number `tile`: by a warp of scores, for whoever waits. With words: in both CTAs, since gradients are taken
 * as the words say, which lane 0 has written. */
static __device__ __forceinline__ void tell_ds(uint32_t base, uint32_t tile) {
    if (!WORDS) {
        tell_written(base, DS_FULL);
        return;
    }
    const uint32_t barrier = at_barrier(base, DS_FULL + (int)(tile % SCATTER_STAGES));
    async_fence_cluster();
    __syncwarp();
    if (lane_of() != 0) return;
    cluster_signal(cluster_address(barrier, 0));
    cluster_signal(cluster_address(barrier, 1));
}
static __device__ __forceinline__ void await_ds(uint32_t base, uint32_t tile) {
    if (WORDS)
        await_pair(base, DS_FULL + (int)(tile % SCATTER_STAGES), tile / SCATTER_STAGES);
    else
        await_pair(base, DS_FULL, tile);
}
/* A warp of scores leaves its word. */
static __device__ __forceinline__ void leave_word(uint32_t base, int rank, uint32_t tile, uint32_t word) {
    const uint32_t cell = base + AT_WORDS + TILE_WORDS * (tile % SCATTER_STAGES) + 4 * (uint32_t)(4 * rank + warp_of());
    if (lane_of() != 0) return;
    shared_store32(cell, word);
    cluster_store32(cluster_address(cell, 1 - (uint32_t)rank), word);
}
/* The tile's word, for who has waited for dS; a warp of scores: for WORDS_FULL. */
static __device__ __forceinline__ uint32_t word_of_tile(uint32_t base, uint32_t tile) {
    const uint32_t cells = base + AT_WORDS + TILE_WORDS * (tile % SCATTER_STAGES);
    const uint4 x = shared_load128(cells), y = shared_load128(cells + 16);
    return fold_words(fold_words(fold_words(x.x, x.y), fold_words(x.z, x.w)),
                      fold_words(fold_words(y.x, y.y), fold_words(y.z, y.w)));
}
/* f16: word_of_tile of all warps of scores, once this one has left its own. */
static __device__ __forceinline__ uint32_t exchange_words(uint32_t base, uint32_t tile) {
    const uint32_t barrier = at_barrier(base, WORDS_FULL);
    __syncwarp();
    if (lane_of() == 0) {
        cluster_signal(cluster_address(barrier, 0));
        cluster_signal(cluster_address(barrier, 1));
    }
    await_pair(base, WORDS_FULL, tile);
    return word_of_tile(base, tile);
}
/* One thread: it has read the words, and of a scatter list what it wants. */
static __device__ __forceinline__ void free_scatter_of_both(uint32_t base, uint32_t tile) {
    const uint32_t barrier = at_barrier(base, SCATTER_EMPTY + (int)(tile % SCATTER_STAGES));
    cluster_arrive(cluster_address(barrier, 0));
    cluster_arrive(cluster_address(barrier, 1));
}
#endif
