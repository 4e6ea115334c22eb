/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the warp that finds work tiles and starts all copies. */
#ifndef ATTN_SM100_SDPA_FWD_LOADS_H
#define ATTN_SM100_SDPA_FWD_LOADS_H
#include "kernels/device/cluster.h"
#include "kernels/device/tensor_load.h"
#include "kernels/sm100/sdpa_fwd/layout.h"

/* Slices of 128 rows of K or V into the ring; one thread. Returns the number of the next slice. */
static __device__ __forceinline__ uint32_t load_keys(const struct kp_tensor_map *map, uint32_t base, uint32_t slice,
                                                     int slices, int key, int head, int b) {
#pragma unroll
    for (int x = 0; x < slices; x++, slice++) {
        const uint32_t full = at_barrier(base, SLICE_FULL + slice % RING);
        await(base, SLICE_EMPTY + slice % RING, slice / RING - 1);
        mbar_expect(full, SLICE);
        tensor_load4(ring_slice(base, slice), map, full, 64 * x, key, head, b);
    }
    return slice;
}
static __device__ __forceinline__ void load_queries(const struct kp_tensor_map *map, uint32_t base, uint32_t stage,
                                                    int half, int row, int head, int b) {
    const uint32_t full = at_barrier(base, Q_FULL + 2 * stage + half), to = base + AT_Q + (2 * stage + half) * Q_BYTES;
    mbar_expect(full, Q_BYTES);
#pragma unroll
    for (int x = 0; x < SLICES_K; x++) tensor_load4(to + x * SLICE, map, full, 64 * x, row + HALF * half, head, b);
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
                const int key = (int)w.seq.k0 + (last_tile(&w) - x) * KEYS;
                if (x == 0) load_queries(&maps->q, base, n % Q_STAGES, 0, (int)w.seq.q0 + w.row0, w.head, b);
                slice = load_keys(&maps->k, base, slice, SLICES_K, key, head_k, b);
                if (x == 0) load_queries(&maps->q, base, n % Q_STAGES, 1, (int)w.seq.q0 + w.row0, w.head, b);
                slice = load_keys(&maps->v, base, slice, SLICES_V, key, head_k, b);
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
}
#endif
