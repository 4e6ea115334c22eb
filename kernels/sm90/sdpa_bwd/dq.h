/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: copies, and dQ of a step: its product, and how it comes to the sums in memory. */
#ifndef ATTN_SM90_SDPA_BWD_DQ_H
#define ATTN_SM90_SDPA_BWD_DQ_H
#include "kernels/device/tensor_load.h"
#include "kernels/device/uniform_desc.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_bwd/add.h"
#include "kernels/sm90/sdpa_bwd/cells.h"

/* The units that copy read maps through a cache of their own. */
static __device__ __forceinline__ void fetch_map(const struct kp_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

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

/* Start dq = (64 rows of dS at ds) (64 columns of K), the warpgroup's half of dQ of a step. */
static __device__ __forceinline__ void start_dq(float dq[N_DQ], uint32_t shared, uint32_t ds, int wg) {
    const uint64_t rows = uniform_desc(slice_desc(ds + (DIM == 64 ? 8192 * wg : 0), 0)),
                   k = uniform_desc(slice_desc(shared + K_TILE + (DIM == 64 ? 0 : K_SLICE * wg), K_SLICE));
    wgmma_hold(dq, N_DQ);
    wgmma_fence();
#pragma unroll
    for (int y = 0; y < KEYS / 16; y++)
        wgmma_ss_n64<TYPE, 0, 1>(dq, desc_step(rows, y / 4 * DS_SLICE + y % 4 * 32), desc_step(k, 2048 * y), y > 0);
    wgmma_commit();
}
/* The warpgroup's half of dQ of step t to shared memory, in the order of the fragments, when that of the step before
 * has been read. */
static __device__ __forceinline__ void hand_dq(uint32_t shared, int t, int wg, const float dq[N_DQ]) {
    const uint32_t to = shared + SUMS + wg * PART_BYTES + 4096 * warp_of() + 16 * lane_of();
    mbar_wait(shared + DQ_FREE + 8 * wg, t & 1 ^ 1);
#pragma unroll
    for (int n = 0; n < 8; n++)
        shared_store128(to + 512 * n, make_uint4(__float_as_uint(dq[4 * n]), __float_as_uint(dq[4 * n + 1]),
                                                 __float_as_uint(dq[4 * n + 2]), __float_as_uint(dq[4 * n + 3])));
    async_fence();
    arrive_warp(shared + DQ_FULL + 16 * wg + 8 * (t & 1));
}

/* One thread: the rows of every step, when the compute warpgroups have left a stage. */
static __device__ __forceinline__ void copy_all(const struct kp_sdpa_bwd_maps *maps, uint32_t shared) {
    const struct work w = recall_work(shared);
    const struct step first = first_step(&maps->all.bwd, &w);
    shared_store32x2(shared + NEXT, first.head, first.i0);
#pragma unroll 1
    for (int t = 0; t < steps_of(shared); t++) {
        const int stage = t % STAGES;
        mbar_wait(shared + ROWS_FREE + 8 * stage, t / STAGES & 1 ^ 1);
        load_rows(maps, stage, shared);
    }
}

static __device__ __forceinline__ struct step first_step_of(const struct kp_sdpa_bwd *p, uint32_t shared) {
    const struct work w = recall_work(shared);
    return first_step(p, &w);
}
static __device__ __forceinline__ struct step next_step(uint32_t shared, struct step s) {
    const struct work w = recall_work(shared);
    return step_after(&w, s);
}
/* Half of dQ of a step to the sums in memory, and its place is free. */
static __device__ __forceinline__ void add_half(const struct kp_sdpa_bwd *p, uint32_t shared, struct step s, int half) {
    constexpr int RUN = DIM == 64 ? PART_BYTES : PART_BYTES / 4; /* of the sums, and of the half, bytes in a row */
    if (p->dq_sum) {
        char *to = (char *)p->dq_sum + sums_row(p, shared, s) * (4 * DIM) + half * RUN;
        uint32_t from = shared + SUMS + half * PART_BYTES;
#pragma unroll 1
        for (int x = 0; x < PART_BYTES / RUN; x++, to += 2 * RUN, from += RUN) bulk_add(to, from, RUN);
        bulk_commit();
        bulk_wait_read();
    }
    mbar_arrive(shared + DQ_FREE + 8 * half);
}

/* One thread: its half of dQ of every step to the sums in memory. */
static __device__ __forceinline__ void add_unordered(const struct kp_sdpa_bwd *p, uint32_t shared, int half) {
    struct step s = first_step_of(p, shared);
#pragma unroll 1
    for (int t = 0; t < steps_of(shared); t++) {
        mbar_wait(shared + DQ_FULL + 16 * half + 8 * (t & 1), t >> 1 & 1);
        add_half(p, shared, s, half);
        s = next_step(shared, s);
    }
}
/* The same in order: one thread, dQ of every second step, the half first that is first there. The sums of one step have
 * time to arrive while the other thread adds the next. */
static __device__ __forceinline__ void add_ordered(const struct kp_sdpa_bwd *p, uint32_t shared, int odd) {
    struct step s = first_step_of(p, shared);
    if (odd) s = next_step(shared, s);
#pragma unroll 1
    for (int t = odd; t < steps_of(shared); t += 2) {
        const uint32_t full = shared + DQ_FULL + 8 * odd, parity = t >> 1 & 1;
        await_turn(p, shared, s); /* while dQ is being formed */
        int half = 0;
        while (!mbar_try(full + 16 * half, parity)) half ^= 1;
        add_half(p, shared, s, half);
        mbar_wait(full + 16 * (half ^ 1), parity);
        add_half(p, shared, s, half ^ 1);
        pass_on(p, shared, s);
        s = next_step(shared, next_step(shared, s));
    }
}
#endif
