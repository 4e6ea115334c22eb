/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the warp that copies. */
#ifndef ATTN_SM90_SDPA_FWD_LOADS_H
#define ATTN_SM90_SDPA_FWD_LOADS_H
#include "kernels/device/cluster.h"
#include "kernels/device/tensor_load.h"
#include "kernels/sm90/sdpa_fwd/score_mod.h"

/* A tile of `rows` rows, slice by slice; one thread. */
static __device__ __forceinline__ void load_tile(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                 int dim, int rows, int row, int head, int b) {
    mbar_expect(barrier, (uint32_t)(2 * dim * rows));
#pragma unroll
    for (int x = 0; x < dim / 64; x++) tensor_load4(to + x * 128 * rows, map, barrier, 64 * x, row, head, b);
}

/* One warp; its first lane starts the copies, in the order of use: Q, K n-1, K n-2, V n-1, K n-3, V n-2, ..., V 0. */
static __device__ __forceinline__ void produce(const struct kp_sdpa_fwd_maps *maps, uint32_t shared) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    const int leads = threadIdx.x % 32 == 0, packed = p->in.cu_seqlens_q != 0;
    uint32_t tiles = 0, q_tile = 0; /* key tiles and tiles of Q copied so far */
    struct work w;
#pragma unroll 1
    for (int r = 0;; r++) {
        const int found = find_work(maps, r, &w);
        if (found < 0) break;
        if (found == 0 || w.n_tiles == 0) continue;
        if (leads) {
            const int head_k = divided(w.head, p->by_group), b = packed ? 0 : w.b;
            const int k0 = (int)w.seq.k0 + w.first * KEYS;
            const uint32_t q = q_tile % Q_TILES;
            mbar_wait(shared + Q_FREE + 8 * q, q_tile / Q_TILES & 1 ^ 1);
            keep_work(shared + WORK + 64 * q, &w);
            keep_slope(p, shared + WORK + 64 * q, &w);
            load_tile(shared + q * Q_BYTES, &maps->q, shared + Q_FULL + 8 * q, DIM, ROWS, (int)w.seq.q0 + w.row0,
                      w.head, b);
#pragma unroll 1
            for (int n = w.n_tiles - 1; n >= -1; n--) {
                const int key = k0 + n * KEYS;
                if (n >= 0) {
                    const uint32_t x = tiles & 1, parity = tiles >> 1 & 1;
                    mbar_wait(shared + K_FREE + 8 * x, parity ^ 1);
                    load_tile(shared + K_RING + x * K_BYTES, &maps->k, shared + K_FULL + 8 * x, DIM, KEYS, key, head_k,
                              b);
                }
                if (n < w.n_tiles - 1) {
                    const uint32_t x = (tiles - 1) & 1, parity = (tiles - 1) >> 1 & 1;
                    mbar_wait(shared + V_FREE + 8 * x, parity ^ 1);
                    load_tile(shared + V_RING + x * V_BYTES, &maps->v, shared + V_FULL + 8 * x, DIM_V, KEYS, key + KEYS,
                              head_k, b);
                }
                if (n >= 0) tiles++;
            }
        }
        q_tile++;
    }
    if (!leads) return;
    const uint32_t q = q_tile % Q_TILES;
    mbar_wait(shared + Q_FREE + 8 * q, q_tile / Q_TILES & 1 ^ 1);
    w.n_tiles = -1;
    keep_work(shared + WORK + 64 * q, &w);
    mbar_arrive(shared + Q_FULL + 8 * q);
}
#endif
