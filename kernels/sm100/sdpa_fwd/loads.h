/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the warp that finds work tiles and starts all copies. */
#ifndef ATTN_SM100_SDPA_FWD_LOADS_H
#define ATTN_SM100_SDPA_FWD_LOADS_H
#include "kernels/device/tensor_load.h"
#include "kernels/sm100/sdpa_fwd/layout.h"

/* A box; a pair's even CTA's barrier counts the bytes of both. */
static __device__ __forceinline__ void load_box(uint32_t to, const struct kp_tensor_map *map, uint32_t full, int x,
                                                int y, int head, int b) {
    if (PAIR)
        tensor_load4_pair(to, map, full, x, y, head, b);
    else
        tensor_load4(to, map, full, x, y, head, b);
}
/* Slices of K (or V) into the ring; one thread. Returns the number of the next slice. `tail`, if not 0: the barrier of
 * a pair's V whose rows past the end each CTA clears: it counts the CTA's bytes, and products wait for who clears. */
static __device__ __forceinline__ uint32_t load_keys(const struct kp_tensor_map *map, uint32_t base, uint32_t slice,
                                                     int is_v, int key, int head, int b, uint32_t tail) {
    const int rank = rank_of();
#pragma unroll
    for (int x = 0; x < (is_v ? SLICES_V : SLICES_K); x++, slice++) {
        const uint32_t full = SLICE_FULL + slice % RING, to = ring_slice(base, slice);
        const int column = PAIR && is_v ? 64 * rank : 64 * x, row = key + PAIR * 64 * (is_v ? x : rank);
        await(base, SLICE_EMPTY + slice % RING, slice / RING - 1);
        if (tail) {
            if (rank == 0) mbar_arrive(at_barrier(base, full));
            tensor_load4(to, map, at_barrier(base, tail), column, row, head, b);
            continue;
        }
        if (rank == 0) mbar_expect(at_barrier(base, full), SLICE);
        load_box(to, map, at_leader(base, full), column, row, head, b);
    }
    return slice;
}
static __device__ __forceinline__ void load_queries(const struct kp_tensor_map *map, uint32_t base, uint32_t stage,
                                                    int half, int row, int head, int b) {
    const uint32_t full = Q_FULL + 2 * stage + half, to = base + AT_Q + (2 * stage + half) * Q_BYTES;
    if (rank_of() == 0) mbar_expect(at_barrier(base, full), CTAS * Q_BYTES);
#pragma unroll
    for (int x = 0; x < SLICES_K; x++) load_box(to + x * SLICE, map, at_leader(base, full), 64 * x, row, head, b);
}

/* One warp; its first lane starts the copies, in order of use: Q, K of the last tile, its V, K of the one before. */
static __device__ __forceinline__ void run_copies(const struct kp_sdpa_fwd_maps *maps, uint32_t base) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    uint32_t slice = 0, n = 0;
    struct work w;
#pragma unroll 1
    for (int r = 0;; r++) {
        const int found = find_work(maps, r, &w);
        if (found < 0) break;
        if (found == 0 || w.n_tiles == 0) continue;
        if (lane_of() == 0) {
            const int head_k = divided(w.head, p->by_group), b = p->in.cu_seqlens_q ? 0 : w.b;
            await(base, WORK_EMPTY + n % 2, n / 2 - 1);
            keep_work(base + AT_WORK + n % 2 * 64, &w);
            mbar_arrive(at_barrier(base, WORK_FULL + n % 2));
            await(base, Q_EMPTY + n % Q_STAGES, n / Q_STAGES - 1);
#pragma unroll 1
            for (int x = 0; x < w.n_tiles; x++) {
                const int key = (int)w.seq.k0 + (last_tile(&w) - x) * KEYS, q0 = (int)w.seq.q0;
                if (x == 0) load_queries(&maps->q, base, n % Q_STAGES, 0, q0 + first_row(&w, 0), w.head, b);
                slice = load_keys(&maps->k, base, slice, 0, key, head_k, b, 0);
                if (x == 0) load_queries(&maps->q, base, n % Q_STAGES, 1, q0 + first_row(&w, 1), w.head, b);
                uint32_t tail = 0;
                if (PAIR && x == 0) {
                    tail = clears_tail(p, &w) ? TAIL_FULL + n % 2 : 0;
                    mbar_expect(at_barrier(base, TAIL_FULL + n % 2), tail ? SLICES_V * RING_SLICE : 0);
                }
                slice = load_keys(&maps->v, base, slice, 1, key, head_k, b, tail);
            }
        }
        n++;
        __syncwarp();
    }
    if (lane_of() != 0) return;
    await(base, WORK_EMPTY + n % 2, n / 2 - 1);
    w.n_tiles = -1;
    keep_work(base + AT_WORK + n % 2 * 64, &w);
    mbar_arrive(at_barrier(base, WORK_FULL + n % 2));
    if (!PAIR) return;
    /* No commit may be on its way to a CTA that has ended. */
    await(base, Q_EMPTY, n - 1);
#pragma unroll 1
    for (uint32_t x = 0; x < RING && x < slice; x++) {
        const uint32_t last = slice - 1 - x;
        await(base, SLICE_EMPTY + last % RING, last / RING);
    }
}
#endif
