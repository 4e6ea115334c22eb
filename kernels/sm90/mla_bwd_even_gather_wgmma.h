/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_even_wgmma.cu: its producers, which have 24 registers. What a tile's copies need waits in shared
 * memory; the rows are read from the tile's notes. */
#ifndef ATTN_SM90_MLA_BWD_EVEN_GATHER_WGMMA_H
#define ATTN_SM90_MLA_BWD_EVEN_GATHER_WGMMA_H
#include "kernels/sm90/mla_bwd_plan_wgmma.h"

/* Warp 0: rows and mask of tile t, n % 2 = parity. The indices arrive while the last reader of their place is awaited,
 * which takes longer. */
static __device__ __forceinline__ void note_rows(uint32_t shared, int t, uint32_t parity) {
    struct indices x;
    {
        const int at = 64 * t + (recompute((int)threadIdx.x) & 31), n = (int)shared_load32(shared + ITEM_AT + 8);
        const int32_t *list = (const int32_t *)kept(shared + ITEM_AT) + at;
        x.lo = at < n ? list[0] : -1;
        x.hi = at + 32 < n ? list[32] : -1;
    }
    mbar_wait(shared + K_FREE, parity ^ 1);
    const uint32_t keys = shared_load32(shared + ITEM_AT + 12), lane = (uint32_t)recompute((int)threadIdx.x) & 31;
    if ((uint32_t)x.lo >= keys) x.lo = -1;
    if ((uint32_t)x.hi >= keys) x.hi = -1;
    const uint32_t note = shared + NOTE_AT + 256 * parity + 4 * lane;
    shared_store32(note, (uint32_t)x.lo);
    shared_store32(note + 128, (uint32_t)x.hi);
    const uint32_t lo = __ballot_sync(~0u, x.lo >= 0), hi = __ballot_sync(~0u, x.hi >= 0);
    if (lane < 2) shared_store32(shared + MASK_AT + 8 * parity + 4 * lane, lane ? hi : lo);
}

/* Slice x of the tile whose notes are in place `parity`. */
static __device__ __forceinline__ void gather_slice(const struct kp_mla_bwd *p, uint32_t shared, uint32_t x,
                                                    uint32_t parity) {
    const uint32_t thread = (uint32_t)recompute((int)threadIdx.x) & (PRODUCERS - 1);
    const uint32_t to = shared + K_AT + place_of() + x * SLICE;
    const uint32_t note = shared + NOTE_AT + 256 * parity + 4 * (thread >> 3);
    const uint16_t *kv = (const uint16_t *)kept(shared + ITEM_AT + 16) + (thread & 7) * 8 + x * 64;
#pragma unroll(CTAS == 2 ? 2 : 4)
    for (int k = 0; k < PASSES; k++) {
        const int32_t row = (int32_t)shared_load32(note + 4 * STEP * k);
        copy_async16(to + k * STEP * 128, kv + (row < 0 ? 0 : row) * p->in.kv.row, row < 0 ? 0 : 16);
    }
}

/* Pairs of slices. Up to four are under way: K has to come while dKV is formed. */
constexpr int GROUPS = (SLICES + 1) / 2;

static __device__ __forceinline__ void produce_even(const struct kp_mla_bwd *p, uint32_t shared) {
    uint32_t state = 0; /* bit 0: parity of tiles, bit 1: of items with tiles; the rest: the item's tile */
    for (uint32_t item = 0; has_item(p, item); item = shared_load32(shared + ITEM_AT + 56) + 1) {
        keep_item(p, item, shared);
#pragma unroll 1
        for (state &= 3; 16 * (int)(state & ~3u) < (int)shared_load32(shared + ITEM_AT + 8); state = (state ^ 1) + 4) {
            if ((recompute((int)threadIdx.x) & 127) < 32)
                note_rows(shared, (int)(state >> 2), state & 1);
            else
                mbar_wait(shared + K_FREE, (state & 1) ^ 1);
            named_sync(4, PRODUCERS);
#pragma unroll 1
            for (uint32_t i = 0; i < SLICES; i++) {
                const uint32_t x = slice_of(i);
                if (i % 2 == 0 && i < 8) mbar_wait(shared + K_FREE + 4 * x, (state & 1) ^ 1); /* of slices x, x + 1 */
                gather_slice(p, shared, x, state & 1);
                if (i % 2 || i == 8) {
                    copy_commit();
                    if (i > 6) settle_copies<3>(shared + K_FULL + 8 * ((i >> 1) - 3));
                }
            }
            settle_copies<2>(shared + K_FULL + 8 * (GROUPS - 3));
            settle_copies<1>(shared + K_FULL + 8 * (GROUPS - 2));
            settle_copies<0>(shared + K_FULL + 8 * (GROUPS - 1));
            if (state < 4) {
                load_heads(p, shared, (state >> 1) ^ 1);
                state ^= 2;
            }
        }
    }
}
#endif
