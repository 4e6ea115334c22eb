/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: the last warpgroup, which copies, forms dQ and adds it to the sums in memory. */
#ifndef ATTN_SM90_SDPA_BWD_DQ_H
#define ATTN_SM90_SDPA_BWD_DQ_H
#include "kernels/device/tensor_load.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_bwd/turns.h"

static __device__ __forceinline__ void load_keys(const struct kp_sdpa_bwd_maps *maps, const struct work *w,
                                                 uint32_t shared) {
    const int packed = maps->all.bwd.in.cu_seqlens_q != 0, b = packed ? 0 : w->b;
    const int row = (int)w->seq.k0 + w->j0;
    mbar_expect(shared + KEYS_FULL, 2 * K_BYTES);
#pragma unroll
    for (int x = 0; x < DIM / 64; x++) {
        tensor_load4(shared + K_TILE + x * K_SLICE, &maps->k, shared + KEYS_FULL, 64 * x, row, w->head_k, b);
        tensor_load4(shared + V_TILE + x * K_SLICE, &maps->v, shared + KEYS_FULL, 64 * x, row, w->head_k, b);
    }
}

/* One thread: Q, dO and the statistics of the step at NEXT into its stage. */
static __device__ __forceinline__ void load_rows(const struct kp_sdpa_bwd_maps *maps, int stage, uint32_t shared) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const struct work w = recall_work(shared);
    const uint2 kept = shared_load32x2(shared + NEXT);
    const struct step s = {(int)kept.x, (int)kept.y}, after = step_after(&w, s);
    const int packed = p->in.cu_seqlens_q != 0, b = packed ? 0 : w.b, row = (int)w.seq.q0 + s.i0;
    const uint32_t to = shared + ROWS_RING + stage * 2 * Q_BYTES, full = shared + ROWS_FULL + 8 * stage,
                   stats = shared + STATS + stage * 8 * ROWS;
    const int64_t stat = s.head * p->stat_rows + w.stat0 + s.i0;
    const struct place place = place_of(p, &w, s);
    shared_store32x2(shared + NEXT, after.head, after.i0);
    shared_store128(shared + PLACES + 16 * stage, make_uint4(place.head, place.i0, place.diagonal, place.hides));
    mbar_expect(full, 2 * Q_BYTES + 8 * ROWS);
#pragma unroll
    for (int x = 0; x < DIM / 64; x++) tensor_load4(to + x * Q_SLICE, &maps->q, full, 64 * x, row, s.head, b);
    bulk_load(stats, (const float *)p->stat_lse + stat, 4 * ROWS, full);
#pragma unroll
    for (int x = 0; x < DIM / 64; x++)
        tensor_load4(to + Q_BYTES + x * Q_SLICE, &maps->dout, full, 64 * x, row, s.head, b);
    bulk_load(stats + 4 * ROWS, (const float *)p->stat_shift + stat, 4 * ROWS, full);
}

constexpr int N_DQ = DQ_COLUMNS / 2, ACROSS = DIM / DQ_COLUMNS, PARTS = ROWS / 64 * ACROSS; /* registers of a thread */
/* Start part x of dQ of a step = dS K: DQ_COLUMNS of 64 rows. */
static __device__ __forceinline__ void start_dq(float dq[N_DQ], uint32_t shared, uint32_t ds, int x) {
    const int c = x % ACROSS * DQ_COLUMNS;
    const uint64_t rows = uniform_desc(slice_desc(shared + DS_RING + ds * DS_BYTES + x / ACROSS * 8192, 0)),
                   k = uniform_desc(slice_desc(shared + K_TILE + c / 64 * K_SLICE + c % 64 * 2, K_SLICE));
    wgmma_hold(dq, N_DQ);
    wgmma_fence();
#pragma unroll
    for (int y = 0; y < KEYS / 16; y++)
        wgmma_ss_n32<TYPE, 0, 1>(dq, desc_step(rows, y / 4 * DS_SLICE + y % 4 * 32), desc_step(k, 2048 * y), y > 0);
    wgmma_commit();
}

/* One thread, at step t: rows of step t + STAGES - 1 go where those of step t - 1 were, which all compute warpgroups
 * have left, since dS of step t is there. */
static __device__ __forceinline__ void load_ahead(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int t,
                                                  int stage) {
    const int before = stage == 0 ? STAGES - 1 : stage - 1;
    if (t > 0) { /* the other warps here have read its place */
        mbar_wait(shared + ROWS_FREE + 8 * before, (t - 1) / STAGES & 1);
        mbar_wait(shared + DS_FREE + 8 * (t & 1 ^ 1), (t - 1) >> 1 & 1);
    }
    load_rows(maps, before, shared);
}

/* The warpgroup. */
static __device__ __forceinline__ void copy_and_add(const struct kp_sdpa_bwd_maps *maps, uint32_t shared) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const int steps = steps_of(shared);
    if (threadIdx.x == DQ_FIRST && steps > 0) {
        const struct work w = recall_work(shared);
        const struct step first = first_step(p, &w);
        load_keys(maps, &w, shared);
        shared_store32x2(shared + NEXT, first.head, first.i0);
#pragma unroll 1
        for (int t = 0; t < min(STAGES - 1, steps); t++) load_rows(maps, t, shared);
    }
    int stage = 0;
#pragma unroll 1
    for (int t = 0; t < steps; t++) {
        const uint32_t ds = t & 1;
        float dq[N_DQ];
        mbar_wait(shared + DS_FULL + 8 * ds, t >> 1 & 1);
        if (p->dq_sum) {
            float *to = sums_of(p, shared, stage);
            if (!COPIES_FIRST) start_dq(dq, shared, ds, 0);
            if (threadIdx.x == DQ_FIRST && t + STAGES - 1 < steps) load_ahead(maps, shared, t, stage);
            __syncwarp();
            if (COPIES_FIRST) start_dq(dq, shared, ds, 0);
            if (p->turns) await_turn(p, shared, stage, t);
#pragma unroll
            for (int x = 0; x < PARTS; x++) {
                if (x > 0) start_dq(dq, shared, ds, x);
                wgmma_wait(0);
                wgmma_hold(dq, N_DQ);
                if (x + 1 == PARTS && threadIdx.x % 32 == 0) mbar_arrive(shared + DS_FREE + 8 * ds);
                if (p->turns && x == 0) enter_turn();
#pragma unroll
                for (int n = 0; n < DQ_COLUMNS / 8; n++) reduce_add4(to + 128 * n, dq + 4 * n);
                to += (x + 1) % ACROSS ? 16 * DQ_COLUMNS : 64 * DIM - 16 * (DIM - DQ_COLUMNS);
            }
            if (p->turns) leave_turn(shared, t);
        } else {
            if (threadIdx.x == DQ_FIRST && t + STAGES - 1 < steps) load_ahead(maps, shared, t, stage);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbar_arrive(shared + DS_FREE + 8 * ds);
        }
        if (++stage == STAGES) stage = 0;
    }
}
#endif
