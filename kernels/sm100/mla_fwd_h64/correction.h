/* SPDX-License-Identifier: MIT
 * Part of mla_fwd_h64.cu: four warps that bring Q to tensor memory, rescale O, and store it. A thread has one head and,
 * of each product of O, half of the columns. */
#ifndef ATTN_SM100_MLA_FWD_H64_CORRECTION_H
#define ATTN_SM100_MLA_FWD_H64_CORRECTION_H
#include "kernels/sm100/mla_fwd_h64/layout.h"

/* `slices` of 32 columns d of a row from shared memory to the thread's lane. */
static __device__ __forceinline__ void bring_slice(uint32_t cells, uint32_t row, uint32_t head, uint32_t first,
                                                   uint32_t x[32]) {
#pragma unroll
    for (uint32_t c = 0; c < 8; c++) {
        const uint4 y = shared_load128(row + ((c ^ head % 8) << 4));
        x[4 * c] = y.x, x[4 * c + 1] = y.y, x[4 * c + 2] = y.z, x[4 * c + 3] = y.w;
    }
    tc_store32(cells + first, x);
}
/* Q from the rings: the thread's lane has half of the columns of one head. */
static __device__ __forceinline__ void bring_queries(uint32_t base, uint32_t tm, uint32_t stage, uint32_t rope) {
    const uint32_t lane = (uint32_t)lane_of(), half = lane / 16, head = (uint32_t)(warp_of() % 4) * 16 + lane % 16,
                   cells = tm + quarter_of() + TM_Q;
    const uint32_t row = base + AT_K + (stage + half) % RING * HALF_TILE + head * 128;
    await(base, K_FULL + stage % RING, stage / RING);
    await(base, K_FULL + (stage + 1) % RING, (stage + 1) / RING);
    tc_after();
#pragma unroll 1
    for (uint32_t slice = 0; slice < 4; slice++) {
        uint32_t x[32];
        bring_slice(cells, row + slice * SLICE, head, 32 * slice, x);
    }
    if (ROPE) {
        uint32_t x[16];
        const uint32_t from = base + AT_ROPE + rope % 2 * SLICE + head * 128;
        await(base, ROPE_FULL + rope % 2, rope / 2);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            const uint4 y = shared_load128(from + (((4 * half + c) ^ head % 8) << 4));
            x[4 * c] = y.x, x[4 * c + 1] = y.y, x[4 * c + 2] = y.z, x[4 * c + 3] = y.w;
        }
        tc_store16(cells + Q_ROPE, x);
    }
    tc_wait_stores();
    tc_before();
    tell(base, Q_FULL);
}

/* O follows the offsets of a tile. */
static __device__ __forceinline__ void follow_offsets(uint32_t base, uint32_t tm, uint32_t tile, int first,
                                                      float *offset) {
    await_turn(base, OFFSETS_FULL, tile);
    const float before = *offset,
                now = __uint_as_float(shared_load32(base + AT_OFFSETS + (tile % 2 * HEADS + (uint32_t)head_of()) * 4));
    *offset = now;
    if (!first && __any_sync(~0u, now > before)) {
        await_turn(base, O_FULL, tile - 1);
        tc_after();
        rescale_columns(tm + quarter_of() + TM_O, DIM_V / 2, factor_of(before, now));
    }
    tc_before();
    tell(base, P_FULL + tile % 2);
}

/* Out of the work tile, or its part of it. Two warps have a head: the first stores what a head has once. */
static __device__ __forceinline__ void finish(const struct kp_mla_fwd_sm100 *p, const struct work *w, uint32_t base,
                                              uint32_t tm, uint32_t tile, uint32_t n) {
    const uint32_t cells = tm + quarter_of() + TM_O;
    const int exists = row_exists(p, w), h = head_of_row(p, w), first = warp_of() % 4 < 2, column = first ? 0 : O_HALF;
    await_turn(base, SUMS_FULL, n);
    const struct sums row = load_sums(base + AT_SUMS + n % 2 * SUMS + (uint32_t)head_of() * 16);
    await_turn(base, O_FULL, tile);
    tc_after();
    if (p->splits > 1) {
        const int64_t rows = p->in.batch * p->in.seq_q * p->in.heads_q,
                      place = w->part * rows + (w->b * p->in.seq_q + w->i) * p->in.heads_q + h;
        float *to = (float *)p->part_o + place * DIM_V + column;
        if (first && exists) store_part_sums(p, place, &row);
        store_part_columns(to, cells, O_HALF, exists);
        store_part_columns(to + HALF_V, cells + O_HALF, O_HALF, exists);
    } else {
        const float factor = finish_row(p, w->b, w->i, h, &row, exists, first);
        uint16_t *to = (uint16_t *)p->out.data + w->b * p->out.batch + w->i * p->out.row + h * p->out.head + column;
        store_columns(to, cells, O_HALF, factor, row.sum == 0, exists);
        store_columns(to + HALF_V, cells + O_HALF, O_HALF, factor, row.sum == 0, exists);
    }
    tc_before();
}

static __device__ __forceinline__ void run_correction(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t tm) {
    uint32_t stage = 0, rope = 0, tile = 0, n = 0;
    cursor x = start_cursor(base, 0);
    struct work w, next;
    int more_work = next_work(p, &next, x);
    if (more_work) bring_queries(base, tm, stage, rope);
    while (more_work) {
        float offset = -INF;
        w = next;
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, tile++) follow_offsets(base, tm, tile, t == 0, &offset);
        stage += 2 + 2 * (uint32_t)w.tiles, rope += 1 + (uint32_t)w.tiles;
        x = step_cursor(x);
        more_work = next_work(p, &next, x);
        if (more_work) bring_queries(base, tm, stage, rope); /* its first scores are made before the last output */
        finish(p, &w, base, tm, tile - 1, n++);
    }
}
#endif
