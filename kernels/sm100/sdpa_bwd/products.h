/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: the thread that starts all products. They are performed in the order in which it starts them. */
#ifndef ATTN_SM100_SDPA_BWD_PRODUCTS_H
#define ATTN_SM100_SDPA_BWD_PRODUCTS_H
#include "kernels/sm100/sdpa_bwd/layout.h"

constexpr uint64_t ALONG_K = tc_operand(128, 1024, 16);     /* numbers of a row along k */
constexpr uint64_t ACROSS_K = tc_operand(128, 1024, SLICE); /* a row is a value of k */
constexpr uint32_t SHAPE_SCORES = tc_shape(KEYS, ROWS, 0, TYPE), SHAPE_DV = tc_shape(KEYS, DIM_V, 1, TYPE),
                   SHAPE_DK = tc_shape(KEYS, DIM, 1, TYPE), SHAPE_DQ = tc_shape(ROWS, DIM, 1, TYPE, 1);
/* Operand B of dK and dQ: 16 queries or keys of a product lie B_STEP bytes after the last ones. D 192: slices of 32. */
constexpr uint64_t Q_ACROSS = SERIAL ? tc_operand(64, 512, ROWS * 64) : ACROSS_K;
constexpr uint64_t K_ACROSS = SERIAL ? tc_operand(64, 512, KEYS * 64) : ACROSS_K;
constexpr uint32_t B_STEP = SERIAL ? 1024 : 2048;

/* S^T = K Q^T or dP^T = V dO^T. */
static __device__ __forceinline__ void start_scores(uint32_t cells, int slices, uint32_t keys, uint32_t rows) {
    const uint64_t a = tc_operand_at(ALONG_K, keys), b = tc_operand_at(ALONG_K, rows);
#pragma unroll
    for (int x = 0; x < slices; x++)
#pragma unroll
        for (int y = 0; y < 4; y++)
            tc_multiply(cells, a + x * (SLICE / 16) + 2 * y, b + x * (ROW_SLICE / 16) + 2 * y, SHAPE_SCORES, x + y > 0);
}
/* dV += P^T dO; of dK (+)= dS^T Q the products `from` to `to` - 1, of 16 queries each. */
static __device__ __forceinline__ void start_dv(uint32_t tm, uint32_t dout) {
    const uint64_t b = tc_operand_at(ACROSS_K, dout);
#pragma unroll
    for (int y = 0; y < ROWS / 16; y++)
        tc_multiply_cells(tm + TM_DV, tm + TM_P + y / 4 * CELLS + y % 4 * 8, b + y * (2048 / 16), SHAPE_DV, 1);
}
static __device__ __forceinline__ void start_dk(uint32_t tm, uint32_t q, int from, int to, int add) {
    const uint64_t b = tc_operand_at(Q_ACROSS, q);
#pragma unroll
    for (int y = from; y < to; y++)
        tc_multiply_cells(tm + TM_DK, tm + TM_P + TM_DS + y / 4 * CELLS + y % 4 * 8, b + y * (B_STEP / 16), SHAPE_DK,
                          add | (y > 0));
}
/* dQ = dS K. */
static __device__ __forceinline__ void start_dq(uint32_t cells, uint32_t base) {
    const uint64_t a = tc_operand_at(ACROSS_K, base + AT_DS),
                   b = tc_operand_at(K_ACROSS, base + (PAIR ? AT_KEY_COLUMNS : AT_K));
#pragma unroll
    for (int y = 0; y < KEYS / 16; y++) tc_multiply(cells, a + y * (2048 / 16), b + y * (B_STEP / 16), SHAPE_DQ, y > 0);
}

/* Q and dO of step t, of both CTAs of a pair, may be multiplied. */
static __device__ __forceinline__ void await_rows(uint32_t base, uint32_t t) {
    await_warps(base, (PAIR ? PAIR_ROWS : ROWS_READY) + t % STAGES, t / STAGES);
}

/* S of step 0, when the keys and its rows are there. */
static __device__ __forceinline__ void start_first_scores(uint32_t base, uint32_t tm) {
    await_warps(base, KEYS_READY, 0);
    await_rows(base, 0);
    tc_after(); /* dV is zeroed */
    start_scores(tm + TM_S, SLICES, base + AT_K, rows_of(base, 0));
    tc_commit(at_barrier(base, S_FULL));
}

/* One thread, of the even CTA of a pair. */
static __device__ __forceinline__ void run_products(const struct kp_sdpa_bwd *p, uint32_t base) {
    const uint32_t tm = shared_load32(base + AT_SLOT), steps = (uint32_t)steps_of(base);
    if (steps == 0) return;
    const int with_dq = p->dq_sum != 0;
    start_first_scores(base, tm);
    start_scores(tm + TM_DP, SLICES, base + AT_V, rows_of(base, 0) + Q_ROWS);
    tc_commit(at_barrier(base, DP_FULL));
#pragma unroll 1
    for (uint32_t t = 0; t < steps; t++) {
        const uint32_t rows = PAIR ? base + AT_COLUMNS : rows_of(base, t), next = rows_of(base, t + 1);
        const int continues = t + 1 < steps;
        if (PAIR) await_warps(base, COLUMNS_READY, t);
        await_warps(base, P_FULL, t);
        tc_after();
        start_dv(tm, PAIR ? base + AT_DOUT_COLUMNS : rows + Q_ROWS);
        await_warps(base, DS_FULL, t);
        tc_after();
        start_dk(tm, rows, 0, ROWS / 16, t > 0);
        tc_commit(at_barrier(base, ROWS_EMPTY + t % STAGES));
        if (continues) { /* over P^T and dS^T, whose products stand before it */
            await_rows(base, t + 1);
            start_scores(tm + TM_S, SLICES, base + AT_K, next);
            tc_commit(at_barrier(base, S_FULL));
        }
        if (OWN_DQ) {
            await_warps(base, DQ_EMPTY, t - 1);
            tc_after();
        }
        if (with_dq) start_dq(tm + TM_DQ, base);
        tc_commit(at_barrier(base, DQ_FULL));
        if (!continues) break;
        if (!OWN_DQ) {
            await_warps(base, DQ_EMPTY, t);
            tc_after();
        }
        start_scores(tm + TM_DP, SLICES, base + AT_V, next + Q_ROWS);
        tc_commit(at_barrier(base, DP_FULL));
    }
    tc_commit(at_barrier(base, GRADS_FULL));
}
#endif
