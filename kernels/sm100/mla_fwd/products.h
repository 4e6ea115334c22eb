/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: the thread that starts all products of the CTA. */
#ifndef ATTN_SM100_MLA_FWD_PRODUCTS_H
#define ATTN_SM100_MLA_FWD_PRODUCTS_H
#include "kernels/sm100/mla_fwd/work.h"

constexpr uint64_t KEYS_OF_S = tc_operand(128, 1024, 16);      /* K: a row is a key, along n */
constexpr uint64_t KEYS_OF_O = tc_operand(128, 1024, K_SLICE); /* the same rows along k */
constexpr uint64_t ROPE_ROWS = tc_operand(64, 512, 16);        /* of Q and of K */
constexpr uint32_t SHAPE_S = tc_shape(HEADS, KEYS, 0, TYPE), SHAPE_O = tc_shape(HEADS, HALF_V, 1, TYPE);

/* This CTA's columns of S = Q K^T of the tile in `stage`. */
static __device__ __forceinline__ void start_scores(uint32_t base, uint32_t tm, uint32_t tile, uint32_t stage) {
    const uint32_t keys = base + AT_K + stage % RING * STAGE, cells = tm + cells_of_keys(tile, 0);
    const uint64_t b = tc_operand_at(KEYS_OF_S, keys);
    await(base, K_FULL + stage % RING, stage / RING);
    tc_after();
#pragma unroll 1
    for (uint32_t s = 0; s < 4; s++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            tc_multiply_cells(cells, tm + TM_Q + 32 * s + 8 * k, b + s * (K_SLICE / 16) + 2 * k, SHAPE_S, s + k > 0);
    if (ROPE) {
        const uint64_t q = tc_operand_at(ROPE_ROWS, base + AT_ROPE), k = tc_operand_at(ROPE_ROWS, keys + K_ROPE);
#pragma unroll
        for (uint32_t c = 0; c < HALF_ROPE / 16; c++) tc_multiply(cells, q + 2 * c, k + 2 * c, SHAPE_S, 1);
    }
    tc_commit(at_barrier(base, S_FULL + tile % 2));
}
/* O (+)= P V of a tile, this CTA's columns. */
static __device__ __forceinline__ void start_output(uint32_t base, uint32_t tm, int rank, uint32_t tile, uint32_t stage,
                                                    int add) {
    uint64_t b = tc_operand_at(KEYS_OF_O, base + AT_K + stage % RING * STAGE);
    asm volatile("" : "+l"(b)); /* made before the wait */
    await(base, P_FULL + tile % 2, tile / 2);
    tc_after();
#pragma unroll
    for (uint32_t k = 0; k < KEYS / 16; k++)
        tc_multiply_cells(tm + TM_O, tm + cells_of_keys(tile, 1 - rank) + 8 * k, b + k * (2048 / 16), SHAPE_O,
                          add | (k > 0));
    tc_commit(at_barrier(base, K_EMPTY + stage % RING));
    tc_commit(at_barrier(base, O_FULL + tile % 2));
}

static __device__ __forceinline__ void run_products(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t tm,
                                                    int rank) {
    uint32_t stage = 0, tile = 0, n = 0;
    struct work w;
    for (cursor x = start_cursor(base, 0); next_work(p, &w, x); x = step_cursor(x), n++) {
        await(base, Q_FULL, n);
        tc_after();
        for (int half = 0; half < 2; half++, stage++) {
            await(base, K_FULL + stage % RING, stage / RING); /* rope of Q, which nobody has read */
            tc_commit(at_barrier(base, K_EMPTY + stage % RING));
        }
        start_scores(base, tm, tile, stage);
        if (ROPE && w.tiles == 1) tc_commit(at_barrier(base, Q_EMPTY));
        for (int t = 0; t < w.tiles; t++, tile++, stage++) {
            if (t + 1 < w.tiles) start_scores(base, tm, tile + 1, stage + 1);
            if (ROPE && t + 2 == w.tiles) tc_commit(at_barrier(base, Q_EMPTY));
            start_output(base, tm, rank, tile, stage, t > 0);
        }
    }
}
#endif
