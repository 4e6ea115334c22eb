/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu, D 192 with DV 128: copies, cleaning and products. dV and dK take 320 columns of tensor memory;
 * S^T, dP^T and dQ follow one another in 128 of the other 192, P^T and dS^T in the rest. In shared memory dO by rows
 * stands where dS will: it arrives when dQ of the step before is done, and dP has read it before dS is written.
 *
 *   products   dV(t) | dQ(t) dK(t), first half | S(t+1) dK(t), second half | dP(t+1) | dV(t+1) ...          t: step
 *   waits for  P(t)    dS(t)                     dQ(t) in registers          S(t+1) in registers */
#ifndef ATTN_SM100_SDPA_BWD_SERIAL_H
#define ATTN_SM100_SDPA_BWD_SERIAL_H
#include "kernels/sm100/sdpa_bwd/loads.h"
#include "kernels/sm100/sdpa_bwd/products.h"

/* ---- copies ---- */

/* This CTA's half of the columns, of two boxes of rows: slices of 32 columns. */
static __device__ __forceinline__ void load_half(uint32_t to, int box, const struct kp_tensor_map *map, uint32_t full,
                                                 int row, int head, int b) {
#pragma unroll
    for (int c = 0; c < DIM / 64; c++)
#pragma unroll
        for (int x = 0; x < 2; x++)
            tensor_load4(to + (2 * c + x) * box * 64, map, full, DIM / 2 * rank_of() + 32 * c, row + x * box, head, b);
}

/* What the copies of a step need: the maps, the step's head and first row in memory, batch entry. */
struct source {
    const struct kp_sdpa_bwd_column_maps *maps;
    int head, row, b;
    int64_t stat; /* of lse and shift */
};
static __device__ __forceinline__ struct source source_of(const struct kp_sdpa_bwd_column_maps *maps,
                                                          const struct work *w, struct step s) {
    const struct kp_sdpa_bwd *p = &maps->rows.all.bwd;
    return (struct source){maps, s.head, (int)w->seq.q0 + s.i0, p->in.cu_seqlens_q ? 0 : w->b,
                           s.head * p->stat_rows + w->stat0 + s.i0};
}
/* Q by rows, lse, shift. */
static __device__ __forceinline__ void load_q(const struct source *s, uint32_t base, uint32_t t) {
    const struct kp_sdpa_bwd *p = &s->maps->rows.all.bwd;
    const uint32_t full = at_barrier(base, ROWS_FULL + t % STAGES), stats = stats_of(base, t);
    mbar_expect(full, Q_ROWS + STATS);
    load_tile(rows_of(base, t), SLICES, ROW_SLICE, &s->maps->rows.q, full, s->row + rank_of() * CTA_ROWS, s->head,
              s->b);
    bulk_load(stats, (const float *)p->stat_lse + s->stat, 4 * ROWS, full);
    bulk_load(stats + 4 * ROWS, (const float *)p->stat_shift + s->stat, 4 * ROWS, full);
}
static __device__ __forceinline__ void load_dout(const struct source *s, uint32_t base) {
    const uint32_t full = at_barrier(base, DOUT_FULL);
    mbar_expect(full, DOUT_ROWS);
    load_tile(base + AT_DS, SLICES_V, ROW_SLICE, &s->maps->rows.dout, full, s->row + rank_of() * CTA_ROWS, s->head,
              s->b);
}
static __device__ __forceinline__ void load_dout_columns(const struct source *s, uint32_t base) {
    const uint32_t full = at_barrier(base, DOUT_COLUMNS_FULL);
    mbar_expect(full, DOUT_COLUMNS);
    load_columns(base + AT_DOUT_COLUMNS, CTA_ROWS, &s->maps->rows.dout, full, s->row, s->head, s->b);
}
static __device__ __forceinline__ void load_q_columns(const struct source *s, uint32_t base) {
    const uint32_t full = at_barrier(base, COLUMNS_FULL);
    mbar_expect(full, Q_COLUMNS);
    load_half(base + AT_COLUMNS, CTA_ROWS, &s->maps->q_columns, full, s->row, s->head, s->b);
}

/* One thread: K and V, then of each step Q, dO, and both once more by columns, each as soon as its place is free. */
static __device__ __forceinline__ void run_copies(const struct kp_sdpa_bwd_column_maps *maps, uint32_t base) {
    const struct work w = recall_work(base);
    const int b = maps->rows.all.bwd.in.cu_seqlens_q ? 0 : w.b, key0 = (int)w.seq.k0 + w.j0;
    const int key = key0 + rank_of() * CTA_KEYS;
    const uint32_t keys = at_barrier(base, KEYS_FULL), key_columns = at_barrier(base, KEY_COLUMNS_FULL);
    struct step s = first_step(&maps->rows.all.bwd, &w);
    if (w.steps == 0) return;
    struct source now = source_of(maps, &w, s);
    mbar_expect(keys, (SLICES + SLICES_V) * SLICE);
    load_tile(base + AT_K, SLICES, SLICE, &maps->rows.k, keys, key, w.head_k, b);
    load_q(&now, base, 0);
    load_tile(base + AT_V, SLICES_V, SLICE, &maps->rows.v, keys, key, w.head_k, b);
    load_dout(&now, base);
    mbar_expect(key_columns, KEY_COLUMNS);
    load_half(base + AT_KEY_COLUMNS, CTA_KEYS, &maps->k_columns, key_columns, key0, w.head_k, b);
    load_dout_columns(&now, base);
#pragma unroll 1
    for (uint32_t t = 0; t < (uint32_t)w.steps; t++) {
        const int continues = t + 1 < (uint32_t)w.steps;
        s = step_after(&w, s);
        const struct source next = source_of(maps, &w, s);
        if (continues) {
            await(base, S_FULL, t);
            load_q(&next, base, t + 1);
        }
        await(base, DK_DONE, t - 1);
        load_q_columns(&now, base);
        if (!continues) break;
        await(base, DV_DONE, t);
        load_dout_columns(&next, base);
        await(base, DQ_FULL, t);
        load_dout(&next, base);
        now = next;
    }
}

/* ---- cleaning ---- */

/* As zero_rows and stand_in_rows, of slices of 32 columns: 64 bytes of a row, in whatever order they are swizzled. */
static __device__ __forceinline__ void zero_half_rows(uint32_t tile, int first, uint32_t rows) {
#pragma unroll 1
    for (; rows; rows &= rows - 1) {
        const int r = first + __ffs((int)rows) - 1, x = lane_of();
        if (x < DIM / 16) shared_store128(tile + x / 4 * (ROWS * 64) + r * 64 + x % 4 * 16, make_uint4(0, 0, 0, 0));
    }
}
static __device__ __forceinline__ void stand_in_half_rows(uint32_t tile, int first, uint32_t rows) {
#pragma unroll 1
    for (; rows; rows &= rows - 1) {
        const int r = first + __ffs((int)rows) - 1, x = lane_of();
        const uint32_t chunk = tile + x / 4 * (ROWS * 64) + r * 64 + x % 4 * 16;
        if (x < DIM / 16) shared_store128(chunk, stand_in128(shared_load128(chunk)));
    }
}
enum operand { DOUT_BY_ROWS, DOUT_BY_COLUMNS, Q_BY_COLUMNS };
/* The rows that clean_rows found in Q, by the statistics, which have not left their stage. */
static __device__ __forceinline__ void clean_operand(uint32_t base, uint32_t stats, enum operand operand, float end) {
#pragma unroll 1
    for (int x = 0; x < ROWS / 32; x++) {
        const struct special s = special_rows(stats + 128 * x, end);
        const int row = 32 * x - rank_of() * CTA_ROWS;
        if (operand == Q_BY_COLUMNS) zero_half_rows(base + AT_COLUMNS, 32 * x, s.dead);
        if (SCORE_MOD && operand == Q_BY_COLUMNS) stand_in_half_rows(base + AT_COLUMNS, 32 * x, s.marked);
        if (operand == DOUT_BY_COLUMNS) zero_rows(base + AT_DOUT_COLUMNS, SLICE, 64, 32 * x, s.dead | s.noted);
        if (operand == DOUT_BY_ROWS && row >= 0 && row < CTA_ROWS)
            zero_rows(base + AT_DS, ROW_SLICE, DIM_V, row, s.dead | s.noted);
    }
}

/* A warp: as run_cleaning, each operand in the order in which products take them. */
static __device__ __forceinline__ void run_cleaning_serial(const struct kp_sdpa_bwd *p, uint32_t base) {
    const uint32_t steps = (uint32_t)steps_of(base);
    const float end = end_of(p);
#pragma unroll 1
    for (uint32_t t = 0; t < steps; t++) {
        const uint32_t stats = stats_of(base, t);
        await_stage(base, ROWS_FULL, t);
        const int cleaned = clean_rows(base, t, 0, end) != ORDINARY;
        tell(base, ROWS_READY + t % STAGES);
        tell_written(base, PAIR_ROWS + t % STAGES);
        await(base, DOUT_FULL, t);
        if (cleaned) clean_operand(base, stats, DOUT_BY_ROWS, end);
        tell_written(base, DOUT_READY);
        await(base, DOUT_COLUMNS_FULL, t);
        if (cleaned) clean_operand(base, stats, DOUT_BY_COLUMNS, end);
        tell_written(base, DOUT_COLUMNS_READY);
        await(base, COLUMNS_FULL, t);
        if (cleaned) clean_operand(base, stats, Q_BY_COLUMNS, end);
        tell_written(base, COLUMNS_READY);
    }
}

/* ---- products ---- */

/* S(t) is in registers: dP^T over it. */
static __device__ __forceinline__ void start_dp(uint32_t base, uint32_t tm, uint32_t t) {
    await_warps(base, S_READ, t);
    await_warps(base, DOUT_READY, t);
    tc_after();
    start_scores(tm + TM_DP, SLICES_V, base + AT_V, base + AT_DS);
    tc_commit(at_barrier(base, DP_FULL));
}

/* One thread, of the even CTA. */
static __device__ __forceinline__ void run_products_serial(const struct kp_sdpa_bwd *p, uint32_t base) {
    constexpr int HALF = ROWS / 32; /* products of half of the queries */
    const uint32_t tm = shared_load32(base + AT_SLOT), steps = (uint32_t)steps_of(base);
    if (steps == 0) return;
    const int with_dq = p->dq_sum != 0;
    start_first_scores(base, tm);
    start_dp(base, tm, 0);
#pragma unroll 1
    for (uint32_t t = 0; t < steps; t++) {
        const int continues = t + 1 < steps;
        await_warps(base, DOUT_COLUMNS_READY, t);
        await_warps(base, P_FULL, t);
        tc_after();
        start_dv(tm, base + AT_DOUT_COLUMNS);
        tc_commit(at_barrier(base, DV_DONE));
        await_warps(base, DS_FULL, t);
        tc_after();
        if (with_dq) start_dq(tm + TM_DQ, base);
        tc_commit(at_barrier(base, DQ_FULL));
        await_warps(base, COLUMNS_READY, t);
        start_dk(tm, base + AT_COLUMNS, 0, HALF, t > 0);
        if (continues) {
            await_warps(base, DQ_EMPTY, t);
            await_rows(base, t + 1);
            tc_after();
            start_scores(tm + TM_S, SLICES, base + AT_K, rows_of(base, t + 1));
            tc_commit(at_barrier(base, S_FULL));
        }
        start_dk(tm, base + AT_COLUMNS, HALF, 2 * HALF, 1);
        tc_commit(at_barrier(base, DK_DONE));
        if (continues) start_dp(base, tm, t + 1);
    }
    tc_commit(at_barrier(base, GRADS_FULL));
}
#endif
