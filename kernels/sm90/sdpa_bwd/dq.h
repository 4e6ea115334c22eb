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

constexpr int N_DQ = DQ_COLUMNS / 2; /* registers of a thread */
/* DQ_COLUMNS of dQ of a step = dS K. */
static __device__ __forceinline__ void product_dq(float dq[N_DQ], uint64_t ds, uint64_t k) {
    wgmma_hold(dq, N_DQ);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < KEYS / 16; x++) {
        const uint64_t a = desc_step(ds, x / 4 * DS_SLICE + x % 4 * 32), b = desc_step(k, 2048 * x);
        if (DQ_COLUMNS == 32) wgmma_ss_n32<TYPE, 0, 1>(dq, a, b, x > 0);
        if (DQ_COLUMNS == 64) wgmma_ss_n64<TYPE, 0, 1>(dq, a, b, x > 0);
    }
    wgmma_commit();
    wgmma_wait(0);
    wgmma_hold(dq, N_DQ);
}

/* The warpgroup. Rows of step t + STAGES - 1 go where those of step t - 1 were, which all compute warpgroups have left
 * when dS of step t is there. */
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
        mbar_wait(shared + DS_FULL + 8 * ds, t >> 1 & 1);
        if (threadIdx.x == DQ_FIRST && t + STAGES - 1 < steps) {
            const int before = stage == 0 ? STAGES - 1 : stage - 1;
            if (t > 0) { /* the other warps here have read its place */
                mbar_wait(shared + ROWS_FREE + 8 * before, (t - 1) / STAGES & 1);
                mbar_wait(shared + DS_FREE + 8 * (ds ^ 1), (t - 1) >> 1 & 1);
            }
            load_rows(maps, before, shared);
        }
        __syncwarp();
        if (p->dq_sum) {
            float *to = sums_of(p, shared, stage);
#pragma unroll
            for (int x = 0; x < DIM / DQ_COLUMNS; x++, to += 16 * DQ_COLUMNS) {
                float dq[N_DQ];
                const uint32_t columns = shared + K_TILE + x * DQ_COLUMNS / 64 * K_SLICE + x * DQ_COLUMNS % 64 * 2;
                product_dq(dq, uniform_desc(slice_desc(shared + DS_RING + ds * DS_BYTES, 0)),
                           uniform_desc(slice_desc(columns, K_SLICE)));
                if (x + 1 == DIM / DQ_COLUMNS && threadIdx.x % 32 == 0) mbar_arrive(shared + DS_FREE + 8 * ds);
                if (p->turns && x == 0) enter_turn(p, shared, stage);
#pragma unroll
                for (int n = 0; n < DQ_COLUMNS / 8; n++) reduce_add4(to + 128 * n, dq + 4 * n);
            }
            if (p->turns) leave_turn(shared);
        } else if (threadIdx.x % 32 == 0)
            mbar_arrive(shared + DS_FREE + 8 * ds);
        if (++stage == STAGES) stage = 0;
    }
}
#endif
