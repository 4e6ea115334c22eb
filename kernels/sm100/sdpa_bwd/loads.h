/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: the warp that starts all copies, and the warp that looks at what has arrived. */
#ifndef ATTN_SM100_SDPA_BWD_LOADS_H
#define ATTN_SM100_SDPA_BWD_LOADS_H
#include "kernels/device/tensor_load.h"
#include "kernels/sm100/sdpa_bwd/layout.h"

static __device__ __forceinline__ void load_tile(uint32_t to, int slices, uint32_t slice,
                                                 const struct kp_tensor_map *map, uint32_t full, int row, int head,
                                                 int b) {
#pragma unroll
    for (int x = 0; x < slices; x++) tensor_load4(to + x * slice, map, full, 64 * x, row, head, b);
}
/* A pair: the CTA's 64 columns of two boxes of rows. */
static __device__ __forceinline__ void load_columns(uint32_t to, int box, const struct kp_tensor_map *map,
                                                    uint32_t full, int row, int head, int b) {
#pragma unroll
    for (int x = 0; x < 2; x++) tensor_load4(to + x * box * 128, map, full, 64 * rank_of(), row + x * box, head, b);
}

/* Q, dO, lse and shift of a step. */
static __device__ __forceinline__ void load_rows(const struct kp_sdpa_bwd_maps *maps, const struct work *w,
                                                 struct step s, uint32_t base, uint32_t t, int b) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const uint32_t full = at_barrier(base, ROWS_FULL + t % STAGES), to = rows_of(base, t), stats = stats_of(base, t);
    const int row = (int)w->seq.q0 + s.i0 + rank_of() * CTA_ROWS;
    const int64_t stat = s.head * p->stat_rows + w->stat0 + s.i0;
    await(base, ROWS_EMPTY + t % STAGES, t / STAGES - 1);
    mbar_expect(full, STAGE + STATS);
    load_tile(to, SLICES, ROW_SLICE, &maps->q, full, row, s.head, b);
    bulk_load(stats, (const float *)p->stat_lse + stat, 4 * ROWS, full);
    load_tile(to + Q_ROWS, SLICES, ROW_SLICE, &maps->dout, full, row, s.head, b);
    bulk_load(stats + 4 * ROWS, (const float *)p->stat_shift + stat, 4 * ROWS, full);
}
/* A pair: Q and dO once more, all queries, half of the columns; one stage. */
static __device__ __forceinline__ void load_row_columns(const struct kp_sdpa_bwd_maps *maps, const struct work *w,
                                                        struct step s, uint32_t base, uint32_t t, int b) {
    const uint32_t full = at_barrier(base, COLUMNS_FULL), to = base + AT_COLUMNS;
    const int row = (int)w->seq.q0 + s.i0;
    if (t > 0) await_stage(base, ROWS_EMPTY, t - 1);
    mbar_expect(full, Q_COLUMNS + DOUT_COLUMNS);
    load_columns(to + Q_COLUMNS, CTA_ROWS, &maps->dout, full, row, s.head, b);
    load_columns(to, CTA_ROWS, &maps->q, full, row, s.head, b);
}

/* One thread: K and V, then Q, dO, lse and shift of each step. A pair's rows come a step ahead of their columns. */
static __device__ __forceinline__ void run_copies(const struct kp_sdpa_bwd_maps *maps, uint32_t base) {
    const struct work w = recall_work(base);
    const int b = maps->all.bwd.in.cu_seqlens_q ? 0 : w.b, key0 = (int)w.seq.k0 + w.j0;
    const int key = key0 + rank_of() * CTA_KEYS;
    const uint32_t keys = at_barrier(base, KEYS_FULL), key_columns = at_barrier(base, KEY_COLUMNS_FULL);
    struct step s = first_step(&maps->all.bwd, &w);
    if (w.steps == 0) return;
    mbar_expect(keys, 2 * SLICES * SLICE);
    load_tile(base + AT_K, SLICES, SLICE, &maps->k, keys, key, w.head_k, b);
    load_rows(maps, &w, s, base, 0, b);
    load_tile(base + AT_V, SLICES, SLICE, &maps->v, keys, key, w.head_k, b);
    if (PAIR) {
        mbar_expect(key_columns, KEY_COLUMNS);
        load_columns(base + AT_KEY_COLUMNS, CTA_KEYS, &maps->k, key_columns, key0, w.head_k, b);
    }
#pragma unroll 1
    for (uint32_t t = 0; t < (uint32_t)w.steps; t++) {
        const struct step next = step_after(&w, s);
        if (PAIR) load_row_columns(maps, &w, s, base, t, b);
        if (t + 1 < (uint32_t)w.steps) load_rows(maps, &w, next, base, t + 1, b);
        s = next;
    }
}

/* What the flags of a stage say: nothing; rows were zeroed; also dO of rows that see keys, which scores.h adds. */
enum cleaned { ORDINARY, CLEANED, DOUT_BAD };

/* Of 32 rows: those that are empty, of NaN or past the end; others whose shift is not finite, as it is wherever dO is
 * not; those that are marked. Rows past the end count only where the tensors go on. */
struct special {
    uint32_t dead, noted, marked;
};
static __device__ __forceinline__ struct special special_rows(uint32_t stats, float end) {
    const float lse = __uint_as_float(shared_load32(stats + 4 * lane_of())),
                shift = __uint_as_float(shared_load32(stats + 4 * (ROWS + lane_of())));
    struct special s;
    s.dead = __ballot_sync(~0u, !(fabsf(lse) < end));
    s.noted = __ballot_sync(~0u, fabsf(lse) < PAST_END && !(fabsf(shift) < INF));
    s.marked = SCORE_MOD ? __ballot_sync(~0u, fabsf(lse) < PAST_END && is_marked(shift)) : 0;
    return s;
}
static __device__ __forceinline__ float end_of(const struct kp_sdpa_bwd *p) {
    return p->in.cu_seqlens_q || p->in.seqlens_q ? PAST_END : INF;
}

/* A warp: zero `rows` of 32 of a tile of slices. */
static __device__ __forceinline__ void zero_rows(uint32_t tile, int slice, int columns, int first, uint32_t rows) {
#pragma unroll 1
    for (; rows; rows &= rows - 1)
        if (lane_of() < columns / 8)
            shared_store128(chunk_of(tile, slice, first + __ffs((int)rows) - 1, lane_of()), make_uint4(0, 0, 0, 0));
}
/* The same: stand-ins (sdpa_bwd_infinite.h). */
static __device__ __forceinline__ void stand_in_rows(uint32_t tile, int slice, int columns, int first, uint32_t rows) {
#pragma unroll 1
    for (; rows; rows &= rows - 1) {
        const uint32_t chunk = chunk_of(tile, slice, first + __ffs((int)rows) - 1, lane_of());
        if (lane_of() < columns / 8) shared_store128(chunk, stand_in128(shared_load128(chunk)));
    }
}
/* A pair: the columns of such rows, by the statistics, which have not left their stage. */
static __device__ __forceinline__ void clean_columns(uint32_t base, uint32_t stats, float end) {
#pragma unroll 1
    for (int x = 0; x < ROWS / 32; x++) {
        const struct special s = special_rows(stats + 128 * x, end);
        zero_rows(base + AT_COLUMNS, SLICE, 64, 32 * x, s.dead);
        if (SCORE_MOD) stand_in_rows(base + AT_COLUMNS, SLICE, 64, 32 * x, s.marked);
        zero_rows(base + AT_DOUT_COLUMNS, SLICE, 64, 32 * x, s.dead | s.noted);
    }
}

/* What rows of step t have arrived: zero Q (and dO: has_dout) of dead rows, dO of noted ones; say so to the scores. */
static __device__ __forceinline__ enum cleaned clean_rows(uint32_t base, uint32_t t, int has_dout, float end) {
    const uint32_t rows = rows_of(base, t), stats = stats_of(base, t), flags = flags_of(base, t);
    enum cleaned cleaned = ORDINARY;
#pragma unroll
    for (int x = 0; x < ROWS / 32; x++) {
        const struct special s = special_rows(stats + 128 * x, end);
        const int row = 32 * x - rank_of() * CTA_ROWS; /* in this CTA's tile */
        if (rare((s.dead | s.noted | s.marked) != 0)) {
            if (row >= 0 && row < CTA_ROWS) {
                zero_rows(rows, ROW_SLICE, DIM, row, s.dead);
                if (SCORE_MOD) stand_in_rows(rows, ROW_SLICE, DIM, row, s.marked);
                if (has_dout) zero_rows(rows + Q_ROWS, ROW_SLICE, DIM_V, row, s.dead | s.noted);
            }
            if (cleaned == ORDINARY) cleaned = CLEANED;
            if (s.noted) cleaned = DOUT_BAD;
            if (SCORE_MOD && s.marked && lane_of() == 0) shared_store32(base + ANY_MARKED, 1);
        }
        if (lane_of() == 0) shared_store32(flags + 16 + 4 * x, s.noted);
    }
    if (lane_of() == 0) shared_store32(flags, cleaned);
    if (cleaned != ORDINARY) async_fence();
    return cleaned;
}

/* A warp, ahead of the products of each step: zero Q and dO of dead rows, zero and note dO of noted ones. */
static __device__ __forceinline__ void run_cleaning(const struct kp_sdpa_bwd *p, uint32_t base) {
    const uint32_t steps = (uint32_t)steps_of(base);
    const float end = end_of(p);
#pragma unroll 1
    for (uint32_t t = 0; t < steps; t++) {
        await_stage(base, ROWS_FULL, t);
        const enum cleaned cleaned = clean_rows(base, t, 1, end);
        tell(base, ROWS_READY + t % STAGES);
        if (!PAIR) continue;
        tell_written(base, PAIR_ROWS + t % STAGES);
        await(base, COLUMNS_FULL, t);
        if (cleaned != ORDINARY) clean_columns(base, stats_of(base, t), end);
        tell_written(base, COLUMNS_READY);
    }
}
#endif
