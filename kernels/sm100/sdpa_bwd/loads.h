/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: the warp that starts all copies, and the warp that looks at what has arrived. */
#ifndef ATTN_SM100_SDPA_BWD_LOADS_H
#define ATTN_SM100_SDPA_BWD_LOADS_H
#include "kernels/device/cluster.h"
#include "kernels/device/tensor_load.h"
#include "kernels/sm100/sdpa_bwd/layout.h"

static __device__ __forceinline__ void load_tile(uint32_t to, const struct kp_tensor_map *map, uint32_t full, int row,
                                                 int head, int b) {
#pragma unroll
    for (int x = 0; x < SLICES; x++) tensor_load4(to + x * SLICE, map, full, 64 * x, row, head, b);
}

/* One thread: K and V, then Q, dO, lse and shift of each step. */
static __device__ __forceinline__ void run_copies(const struct kp_sdpa_bwd_maps *maps, uint32_t base) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const struct work w = recall_work(base);
    const int b = p->in.cu_seqlens_q ? 0 : w.b, key = (int)w.seq.k0 + w.j0;
    struct step s = first_step(p, &w);
#pragma unroll 1
    for (uint32_t t = 0; t < (uint32_t)w.steps; t++, s = step_after(&w, s)) {
        const uint32_t full = at_barrier(base, ROWS_FULL + t % STAGES), to = rows_of(base, t),
                       stats = stats_of(base, t);
        const int row = (int)w.seq.q0 + s.i0;
        const int64_t stat = s.head * p->stat_rows + w.stat0 + s.i0;
        if (t == 0) {
            mbar_expect(at_barrier(base, KEYS_FULL), 2 * TILE);
            load_tile(base + AT_K, &maps->k, at_barrier(base, KEYS_FULL), key, w.head_k, b);
        }
        await(base, ROWS_EMPTY + t % STAGES, t / STAGES - 1);
        mbar_expect(full, STAGE + STATS);
        load_tile(to, &maps->q, full, row, s.head, b);
        bulk_load(stats, (const float *)p->stat_lse + stat, 4 * ROWS, full);
        if (t == 0) load_tile(base + AT_V, &maps->v, at_barrier(base, KEYS_FULL), key, w.head_k, b);
        load_tile(to + TILE, &maps->dout, full, row, s.head, b);
        bulk_load(stats + 4 * ROWS, (const float *)p->stat_shift + stat, 4 * ROWS, full);
    }
}

/* What the flags of a stage say: nothing; rows were zeroed; also dO of rows that see keys, which scores.h adds. */
enum cleaned { ORDINARY, CLEANED, DOUT_BAD };

/* Of 32 rows: those that are empty, of NaN or past the end; others whose shift is not finite, as it is wherever dO is
 * not. Rows past the end count only where the tensors go on. */
struct special {
    uint32_t dead, noted;
};
static __device__ __forceinline__ struct special special_rows(uint32_t stats, float end) {
    const float lse = __uint_as_float(shared_load32(stats + 4 * lane_of())),
                shift = __uint_as_float(shared_load32(stats + 4 * (ROWS + lane_of())));
    struct special s;
    s.dead = __ballot_sync(~0u, !(fabsf(lse) < end));
    s.noted = __ballot_sync(~0u, fabsf(lse) < PAST_END && !(fabsf(shift) < INF));
    return s;
}

/* A warp: zero `rows` of 32 of a tile of Q or dO. */
static __device__ __forceinline__ void zero_rows(uint32_t tile, int first, uint32_t rows) {
#pragma unroll 1
    for (; rows; rows &= rows - 1)
        if (lane_of() < DIM / 8)
            shared_store128(chunk_of(tile, SLICE, first + __ffs((int)rows) - 1, lane_of()), make_uint4(0, 0, 0, 0));
}

/* A warp, ahead of the products of each step: zero Q and dO of dead rows, zero and note dO of noted ones. */
static __device__ __forceinline__ void run_cleaning(const struct kp_sdpa_bwd *p, uint32_t base) {
    const uint32_t steps = (uint32_t)steps_of(base);
    const float end = p->in.cu_seqlens_q || p->in.seqlens_q ? PAST_END : INF;
#pragma unroll 1
    for (uint32_t t = 0; t < steps; t++) {
        const uint32_t rows = rows_of(base, t), stats = stats_of(base, t), flags = flags_of(base, t);
        enum cleaned cleaned = ORDINARY;
        await_stage(base, ROWS_FULL, t);
#pragma unroll
        for (int x = 0; x < ROWS / 32; x++) {
            const struct special s = special_rows(stats + 128 * x, end);
            if (rare((s.dead | s.noted) != 0)) {
                zero_rows(rows, 32 * x, s.dead);
                zero_rows(rows + TILE, 32 * x, s.dead | s.noted);
                if (cleaned == ORDINARY) cleaned = CLEANED;
                if (s.noted) cleaned = DOUT_BAD;
            }
            if (lane_of() == 0) shared_store32(flags + 16 + 4 * x, s.noted);
        }
        if (lane_of() == 0) shared_store32(flags, cleaned);
        if (cleaned != ORDINARY) async_fence();
        tell(base, ROWS_READY + t % STAGES);
    }
}
#endif
