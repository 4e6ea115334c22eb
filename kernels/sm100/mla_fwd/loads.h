/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: the warp that starts all copies into the CTA. */
#ifndef ATTN_SM100_MLA_FWD_LOADS_H
#define ATTN_SM100_MLA_FWD_LOADS_H
#include "kernels/sm100/mla_fwd/work.h"

/* This CTA's columns of all 128 heads, as two stages of the ring; rope comes with the second. */
static __device__ __forceinline__ void load_queries(const struct kp_mla_fwd_sm100 *p, const struct work *w,
                                                    uint32_t base, int rank, uint32_t stage, uint32_t n) {
    const int lane = lane_of(), i = (int)w->i, b = (int)w->b;
#pragma unroll 1
    for (int half = 0; half < 2; half++, stage++) {
        const uint32_t full = at_barrier(base, K_FULL + stage % RING), to = base + AT_K + stage % RING * STAGE;
        const int rope = ROPE && half;
        await(base, K_EMPTY + stage % RING, stage / RING - 1);
        if (rope) await(base, Q_EMPTY, n - 1);
        if (lane == 0) mbar_expect(full, 2 * Q_SLICE + (rope ? HALF_ROPE * 2 * HEADS : 0));
        __syncwarp();
        if (lane < 2)
            tensor_copy4(to + (uint32_t)lane * Q_SLICE, &p->q, full, rank * HALF_V + (2 * half + lane) * 64, w->head0,
                         i, b);
        else if (rope && lane == 2)
            tensor_copy4(base + AT_ROPE, &p->q_rope, full, DIM_V + rank * HALF_ROPE, w->head0, i, b);
        __syncwarp();
    }
}
/* This CTA's columns of 64 slots (lane: slots lane and 32 + lane). Copy c: rows 4 (c % 16).., columns 64 (c / 16).. */
static __device__ __forceinline__ void gather_keys(const struct kp_mla_fwd_sm100 *p, uint32_t to, uint32_t barrier,
                                                   int rank, int rows0, int rows1) {
#pragma unroll
    for (int c0 = 0; c0 < 16 * (ROPE ? 5 : 4); c0 += 32) {
        const int c = c0 + lane_of(), group = c % 16, slice = c / 16;
        const int4 low = four_rows(rows0, group % 8), high = four_rows(rows1, group % 8);
        const int4 row = group < 8 ? low : high;
        if (slice < 4)
            tensor_gather4(to + slice * K_SLICE + group * 512, &p->kv, barrier, rank * HALF_V + slice * 64, row);
        else if (ROPE && slice == 4)
            tensor_gather4(to + K_ROPE + group * 256, &p->rope, barrier, DIM_V + rank * HALF_ROPE, row);
    }
}

static __device__ __forceinline__ void run_copies(const struct kp_mla_fwd_sm100 *p, uint32_t base, int rank) {
    const int lane = lane_of();
    uint32_t stage = 0, n = 0;
    struct work w;
    for (cursor x = start_cursor(base, 0); next_work(p, &w, x); x = step_cursor(x), n++) {
        const int64_t row0 = w.b * p->kv_rows;
        load_queries(p, &w, base, rank, stage, n);
        stage += 2;
        for (int t = 0; t < w.tiles; t++, stage++) {
            const uint32_t full = at_barrier(base, K_FULL + stage % RING);
            const int slot = (w.first + t) * KEYS + lane;
            const int rows0 = map_row(&w.slots, slot, row0), rows1 = map_row(&w.slots, slot + 32, row0);
            const uint32_t valid = valid_word(p, &w, w.first + t, rank, rows0, rows1);
            await(base, K_EMPTY + stage % RING, stage / RING - 1);
            if (lane < (int)VALID_WORDS) shared_store32(at_valid(base, stage) + 4 * (uint32_t)lane, valid);
            __syncwarp();
            if (lane == 0) mbar_expect(full, STAGE);
            __syncwarp();
            gather_keys(p, base + AT_K + stage % RING * STAGE, full, rank, rows0, rows1);
        }
    }
}
#endif
