/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the warp that copies. */
#ifndef ATTN_SM90_SDPA_FWD_LOADS_H
#define ATTN_SM90_SDPA_FWD_LOADS_H
#include "kernels/device/cluster.h"
#include "kernels/device/tensor_load.h"
#include "kernels/sm90/sdpa_fwd/packed.h"
#include "kernels/sm90/sdpa_fwd/score_mod.h"

/* A box to the second-level cache. */
static __device__ __forceinline__ void tensor_prefetch4(const struct kp_tensor_map *map, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z), "r"(w)
                 : "memory");
}
/* A tile of `rows` rows, slice by slice; one thread. */
static __device__ __forceinline__ void load_tile(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                 int dim, int rows, int row, int head, int b) {
    mbar_expect(barrier, (uint32_t)(2 * dim * rows));
#pragma unroll
    for (int x = 0; x < dim / 64; x++) tensor_load4(to + x * 128 * rows, map, barrier, 64 * x, row, head, b);
}

/* The next tile of query rows that sees keys: 1, or 0 and n_tiles -1. All lanes of a warp; next: struct next_round. */
static __device__ __forceinline__ int next_work(const struct kp_sdpa_fwd_maps *maps, uint32_t next, struct work *w) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    int head, tile, found;
    for (;;) {
        const int r = take_round(next);
        found = deals_pairs(maps) ? tile_of_packed(p, r, next, &head, &tile) : tile_of_round(maps, r, &head, &tile);
        if (found < 0) break;
        if (found && work_of_tile(p, head, tile, w) && w->n_tiles > 0) return 1;
    }
    *w = {}; /* what was in it need not be kept from round to round */
    w->n_tiles = -1;
    return 0;
}

/* Coordinates in the maps of what a tile of rows reads. */
struct source {
    int n_tiles, row, head, b, key, head_k; /* row, key: the first ones */
};
static __device__ __forceinline__ struct source source_of(const struct kp_sdpa_fwd_maps *maps, uint32_t place) {
    struct source x;
    x.n_tiles = (int)shared_load32(place);
    x.row = (int)(shared_load32(place + 36) + shared_load32(place + 8));
    x.key = (int)(shared_load32(place + 40) + shared_load32(place + 4) * KEYS);
    x.head = (int)shared_load32(place + 32);
    x.b = maps->fwd.in.cu_seqlens_q ? 0 : (int)shared_load32(place + 28);
    x.head_k = divided(x.head, maps->fwd.by_group);
    return x;
}

/* A tile's columns to the second-level cache. */
static __device__ __forceinline__ void prefetch_tile(const struct kp_tensor_map *map, int dim, int row, int head,
                                                     int b) {
#pragma unroll 1
    for (int x = 0; x < dim; x += 64) tensor_prefetch4(map, x, row, head, b);
}
/* One thread; while a tile of rows is at work, Q of the next one, its first tiles of K and V, and a share of the
 * others, which the tiles of the same head on other CTAs prefetch. */
static __device__ __forceinline__ void prefetch(const struct kp_sdpa_fwd_maps *maps, uint32_t shared) {
#pragma unroll 1
    for (uint32_t q_tile = 0;; q_tile++) {
        mbar_wait(shared + Q_FULL + 8 * (q_tile % Q_TILES), q_tile / Q_TILES & 1);
        if ((int)shared_load32(shared + WORK + 64 * (q_tile % WORKS)) <= 0) return; /* a CTA without any work */
        const uint32_t next = shared + WORK + 64 * ((q_tile + 1) % WORKS);
        if ((int)shared_load32(next) <= 0) return;
        const struct source x = source_of(maps, next);
        prefetch_tile(&maps->q, DIM, x.row, x.head, x.b);
        const int share = x.row / ROWS % x.n_tiles, last = x.n_tiles - 1;
        prefetch_tile(&maps->k, DIM, x.key + last * KEYS, x.head_k, x.b);
        prefetch_tile(&maps->v, DIM_V, x.key + last * KEYS, x.head_k, x.b);
        prefetch_tile(&maps->k, DIM, x.key + share * KEYS, x.head_k, x.b);
        prefetch_tile(&maps->v, DIM_V, x.key + share * KEYS, x.head_k, x.b);
        mbar_arrive(shared + Q_FREE + 8 * (q_tile % Q_TILES));
    }
}

/* One warp; its first lane starts the copies, in the order of use: Q, K n-1, K n-2, V n-1, K n-3, V n-2, ..., V 0. With
 * a tile of rows comes what is to be done in the next one, too. */
static __device__ __forceinline__ void produce(const struct kp_sdpa_fwd_maps *maps, uint32_t shared) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    uint32_t count = 0; /* key tiles copied so far, times WORKS, and the tiles of Q, the rest by WORKS */
    struct work w;
    first_round(maps, shared + NEXT_ROUND);
    next_work(maps, shared + NEXT_ROUND, &w);
    if (threadIdx.x % 32 == 0) {
        keep_work(shared + WORK, &w);
        if (w.n_tiles > 0) keep_slope(p, shared + WORK, &w);
        if (w.n_tiles < 0) mbar_arrive(shared + Q_FULL);
    }
#pragma unroll 1
    for (;; count = count / WORKS * WORKS + (count + 1) % WORKS) {
        __syncwarp();
        if ((int)shared_load32(shared + WORK + 64 * (count % WORKS)) < 0) break;
        next_work(maps, shared + NEXT_ROUND, &w);
        count = (uint32_t)recompute((int)count); /* what is derived of it need not be kept meanwhile */
        if (recompute((int)threadIdx.x) % 32 != 0) continue;
        const uint32_t q_tile = count % WORKS, q = q_tile % Q_TILES, next = shared + WORK + 64 * ((q_tile + 1) % WORKS);
        mbar_wait(shared + Q_FREE + 8 * q, q_tile / Q_TILES & 1 ^ 1);
        keep_work(next, &w);
        if (w.n_tiles > 0) keep_slope(p, next, &w);
        const struct source from = source_of(maps, shared + WORK + 64 * (q_tile % WORKS));
        load_tile(shared + q * Q_BYTES, &maps->q, shared + Q_FULL + 8 * q, DIM, ROWS, from.row, from.head, from.b);
#pragma unroll 1
        for (int n = from.n_tiles - 1; n >= -1; n--) {
            const int key = from.key + n * KEYS;
            if (n >= 0) {
                const uint32_t x = stage_of(count / WORKS);
                mbar_wait(shared + K_FREE + 8 * x, phase_of(count / WORKS) ^ 1);
                load_tile(shared + K_RING + x * K_BYTES, &maps->k, shared + K_FULL + 8 * x, DIM, KEYS, key, from.head_k,
                          from.b);
            }
            if (n < from.n_tiles - 1) {
                const uint32_t x = stage_of((count - WORKS) / WORKS);
                mbar_wait(shared + V_FREE + 8 * x, phase_of((count - WORKS) / WORKS) ^ 1);
                load_tile(shared + V_RING + x * V_BYTES, &maps->v, shared + V_FULL + 8 * x, DIM_V, KEYS, key + KEYS,
                          from.head_k, from.b);
            }
            if (n >= 0) count += WORKS;
        }
    }
}
#endif
