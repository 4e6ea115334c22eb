/* SPDX-License-Identifier: MIT
 * Part of mla_fwd_h64.cu: the thread that starts all products of the CTA. */
#ifndef ATTN_SM100_MLA_FWD_H64_PRODUCTS_H
#define ATTN_SM100_MLA_FWD_H64_PRODUCTS_H
#include "kernels/sm100/mla_fwd_h64/layout.h"

constexpr uint64_t KEYS_OF_S = tc_operand(128, 1024, 16);    /* K: a row is a key, along n */
constexpr uint64_t KEYS_OF_O = tc_operand(128, 1024, SLICE); /* the same rows along k */
constexpr uint64_t ROWS_OF_P = tc_operand(16, 128, 16);      /* 8 keys of 64 heads */
constexpr uint32_t SHAPE_S = tc_shape(HEADS, KEYS, 0, TYPE), SHAPE_O = tc_shape(HEADS, HALF_V, 1, TYPE);

/* What the thread has come to: half tiles and ropes of the rings, tiles, work tiles. */
struct progress {
    uint32_t stage, rope, tile, n;
};

/* S of the next tile: two sums, each over half of the columns of Q and K, in lanes of their own. */
static __device__ __forceinline__ void start_scores(uint32_t base, uint32_t tm, struct progress *reached) {
    await(base, S_EMPTY, reached->tile - 1);
#pragma unroll 1
    for (uint32_t half = 0; half < 2; half++, reached->stage++) {
        const uint32_t lanes = half * OTHER_LANES;
        const uint64_t keys = tc_operand_at(KEYS_OF_S, base + AT_K + reached->stage % RING * HALF_TILE);
        await(base, K_FULL + reached->stage % RING, reached->stage / RING);
        tc_after();
#pragma unroll 1
        for (uint32_t s = 0; s < 4; s++)
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                tc_multiply_cells(tm + TM_S + lanes, tm + TM_Q + lanes + 32 * s + 8 * k,
                                  keys + s * (SLICE / 16) + 2 * k, SHAPE_S, s + k > 0);
    }
    if (ROPE) {
        const uint64_t keys = tc_operand_at(KEYS_OF_S, base + AT_ROPE + reached->rope % 2 * SLICE);
        await(base, ROPE_FULL + reached->rope % 2, reached->rope / 2);
        tc_after();
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t lanes = k / 2 * OTHER_LANES;
            tc_multiply_cells(tm + TM_S + lanes, tm + TM_Q + lanes + Q_ROPE + 8 * (k % 2), keys + 2 * k, SHAPE_S, 1);
        }
        tc_commit(at_barrier(base, ROPE_EMPTY + reached->rope % 2));
        reached->rope++;
    }
    tc_commit(at_barrier(base, S_FULL));
    reached->tile++;
}
/* O (+)= P V of a tile whose first half of K is in `stage`. */
static __device__ __forceinline__ void start_output(uint32_t base, uint32_t tm, uint32_t tile, uint32_t stage,
                                                    int add) {
    const uint64_t p = tc_operand_at(ROWS_OF_P, base + AT_P + tile % 2 * PROBABILITIES);
    await_turn(base, O_FULL, tile - 1); /* nobody reads P in tensor memory any more */
    await_turn(base, P_FULL, tile);
    tc_after();
#pragma unroll
    for (uint32_t c = 0; c < KEYS / 8; c++) tc_copy_rows64(tm + TM_P + 4 * c, p + c * (HEADS * 16 / 16));
#pragma unroll 1
    for (uint32_t half = 0; half < 2; half++, stage++) {
        const uint64_t b = tc_operand_at(KEYS_OF_O, base + AT_K + stage % RING * HALF_TILE);
#pragma unroll
        for (uint32_t k = 0; k < KEYS / 16; k++)
            tc_multiply_cells_ws(tm + TM_O + half * O_HALF, tm + TM_P + 8 * k, b + k * (2048 / 16), SHAPE_O,
                                 add | (k > 0));
        tc_commit(at_barrier(base, K_EMPTY + stage % RING));
    }
    tc_commit(at_barrier(base, O_FULL + tile % 2));
}

/* Q of the next work tile is in tensor memory: its places in the rings are free. */
static __device__ __forceinline__ void take_queries(uint32_t base, struct progress *reached) {
    await(base, Q_FULL, reached->n++);
    tc_after();
    for (int half = 0; half < 2; half++, reached->stage++) tc_commit(at_barrier(base, K_EMPTY + reached->stage % RING));
    if (ROPE) tc_commit(at_barrier(base, ROPE_EMPTY + reached->rope++ % 2));
}

static __device__ __forceinline__ void run_products(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t tm) {
    struct progress reached = {0, 0, 0, 0};
    struct work w, next;
    cursor x = start_cursor(base, 0);
    int more_work = next_work(p, &next, x);
    if (!more_work) return;
    take_queries(base, &reached);
    start_scores(base, tm, &reached);
    while (more_work) {
        w = next;
        x = step_cursor(x);
        more_work = next_work(p, &next, x);
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++) {
            const uint32_t tile = reached.tile - 1, stage = reached.stage - 2;
            if (t + 1 == w.tiles && more_work) take_queries(base, &reached);
            if (t + 1 < w.tiles || more_work) start_scores(base, tm, &reached);
            start_output(base, tm, tile, stage, t > 0);
        }
    }
}
#endif
