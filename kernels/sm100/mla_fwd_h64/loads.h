/* SPDX-License-Identifier: MIT
 * Part of mla_fwd_h64.cu: two warps that start all copies into the CTA. */
#ifndef ATTN_SM100_MLA_FWD_H64_LOADS_H
#define ATTN_SM100_MLA_FWD_H64_LOADS_H
#include "kernels/sm100/mla_fwd_h64/layout.h"

/* A place of the ring, or of the ring of ropes, that is empty: its address; the barrier expects its bytes. A first half
 * comes with bits of valid slots. */
static __device__ __forceinline__ uint32_t open_half(uint32_t base, uint32_t half, uint32_t stage, uint2 valid) {
    await(base, K_EMPTY + stage % RING, stage / RING - 1);
    if (!half && lane_of() == 0) shared_store32x2(base + AT_VALID + stage % RING * 4, valid.x, valid.y);
    if (lane_of() == 0) mbar_expect(at_barrier(base, K_FULL + stage % RING), HALF_TILE);
    __syncwarp();
    return base + AT_K + stage % RING * HALF_TILE;
}
static __device__ __forceinline__ uint32_t open_rope(uint32_t base, uint32_t stage) {
    await(base, ROPE_EMPTY + stage % 2, stage / 2 - 1);
    if (lane_of() == 0) mbar_expect(at_barrier(base, ROPE_FULL + stage % 2), SLICE);
    __syncwarp();
    return base + AT_ROPE + stage % 2 * SLICE;
}

/* All 64 heads: half of the columns; and rope. */
static __device__ __forceinline__ void load_queries(const struct kp_mla_fwd_sm100 *p, const struct work *w,
                                                    uint32_t base, uint32_t half, uint32_t stage, uint32_t rope) {
    const int lane = lane_of(), i = (int)w->i, b = (int)w->b;
    const uint32_t to = open_half(base, half, stage, make_uint2(0, 0));
    if (lane < 4)
        tensor_copy4(to + (uint32_t)lane * SLICE, &p->q, at_barrier(base, K_FULL + stage % RING),
                     (int)half * HALF_V + lane * 64, w->head0, i, b);
    __syncwarp();
    if (ROPE && half) {
        const uint32_t rope_to = open_rope(base, rope);
        if (lane == 0) tensor_copy4(rope_to, &p->q, at_barrier(base, ROPE_FULL + rope % 2), DIM_V, w->head0, i, b);
        __syncwarp();
    }
}
/* Half of the columns of 64 slots, of which the lane has rows 4 (lane % 16)..; and rope. */
static __device__ __forceinline__ void gather_keys(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t half,
                                                   uint32_t stage, uint32_t rope, uint2 valid, int4 row) {
    const int lane = lane_of(), group = lane % 16;
    const uint32_t to = open_half(base, half, stage, valid) + (uint32_t)group * 512;
#pragma unroll
    for (int slice = lane / 16; slice < 4; slice += 2)
        tensor_gather4(to + (uint32_t)slice * SLICE, &p->kv, at_barrier(base, K_FULL + stage % RING),
                       (int)half * HALF_V + slice * 64, row);
    __syncwarp();
    if (ROPE && half) {
        const uint32_t rope_to = open_rope(base, rope) + (uint32_t)group * 512;
        if (lane < 16) tensor_gather4(rope_to, &p->kv, at_barrier(base, ROPE_FULL + rope % 2), DIM_V, row);
        __syncwarp();
    }
}

/* A warp for each half of the columns; the second one also has the ropes. */
static __device__ __forceinline__ void run_copies(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t half) {
    const int lane = lane_of();
    uint32_t stage = half, rope = 0;
    struct work w;
    for (cursor x = start_cursor(base, 0); next_work(p, &w, x); x = step_cursor(x)) {
        const int64_t row0 = w.b * p->kv_rows;
        int slot = w.first * KEYS + lane;
        int rows0 = map_row(&w.slots, slot, row0), rows1 = map_row(&w.slots, slot + 32, row0);
        load_queries(p, &w, base, half, stage, rope);
        stage += 2, rope++;
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, stage += 2, rope++) {
            const int4 low = four_rows(rows0, lane % 8), high = four_rows(rows1, lane % 8);
            const int4 row = lane % 16 < 8 ? low : high;
            const uint2 valid = make_uint2(__ballot_sync(~0u, rows0 >= 0), __ballot_sync(~0u, rows1 >= 0));
            slot += KEYS;
            rows0 = map_row(&w.slots, slot, row0), rows1 = map_row(&w.slots, slot + 32, row0);
            gather_keys(p, base, half, stage, rope, valid, row);
        }
    }
}
#endif
