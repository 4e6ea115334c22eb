/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: the warp that copies and says what is to be done. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_LOADS_H
#define ATTN_SM90_SDPA_FWD_FP8_LOADS_H
#include "kernels/device/tensor_load.h"
#include "kernels/sm90/sdpa_fwd_fp8/work.h"

static __device__ __forceinline__ float scale_of(uint64_t scales, const int64_t stride[2], int b, int head) {
    return ((const float *)scales)[b * stride[0] + head * stride[1]];
}

/* A tile of `rows` rows; one thread. */
static __device__ __forceinline__ void load_tile(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                 int rows, int row, int head, int b) {
    mbar_expect(barrier, (uint32_t)(128 * rows));
    tensor_load4(to, map, barrier, 0, row, head, b);
}

/* One thread: the tile's work, and after it the log2 units of a product and the factor of O. */
static __device__ __forceinline__ void keep_tile(const struct kp_sdpa_fwd_fp8 *kp, uint32_t place,
                                                 const struct work *w) {
    keep_work(place, w);
    if (w->n_tiles < 0) return;
    const struct kp_sdpa_fwd *p = &kp->maps.fwd;
    const int head_k = divided(w->head, p->by_group);
    const float unit = (p->in.scale < 0 ? -p->in.scale_log2 : p->in.scale_log2) *
                       scale_of(kp->q_scale, kp->q_scale_stride, w->b, w->head) *
                       scale_of(kp->k_scale, kp->k_scale_stride, w->b, head_k);
    shared_store32(place + 48, __float_as_uint(unit));
    shared_store32(place + 52, __float_as_uint(scale_of(kp->v_scale, kp->v_scale_stride, w->b, head_k)));
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

/* One lane: a tile of Q and the keys that it sees, in the order of use: Q, K n-1, K n-2, V n-1, K n-3, V n-2, ..., V 0.
 * tile: the CTA's number of its first key tile. Returns that of the next one. */
static __device__ __forceinline__ uint32_t load_rows(const struct kp_sdpa_fwd_maps *maps, uint32_t shared, uint32_t q,
                                                     uint32_t tile) {
    const struct source from = source_of(maps, shared + WORK + WORK_BYTES * q);
    load_tile(shared + q * Q_BYTES, &maps->q, shared + Q_FULL + 8 * q, ROWS, from.row, from.head, from.b);
#pragma unroll 1
    for (int n = from.n_tiles - 1; n >= -1; n--) {
        const int key = from.key + n * KEYS;
        if (n >= 0) {
            const uint32_t x = stage_of(tile);
            mbar_wait(shared + K_FREE + 8 * x, phase_of(tile) ^ 1);
            load_tile(shared + K_RING + x * K_BYTES, &maps->k, shared + K_FULL + 8 * x, KEYS, key, from.head_k, from.b);
        }
        if (n < from.n_tiles - 1) {
            const uint32_t x = (tile - 1) % R_STAGES, parity = (tile - 1) / R_STAGES & 1;
            mbar_wait(shared + R_FREE + 8 * x, parity ^ 1);
            load_tile(shared + R_RING + x * K_BYTES, &maps->v, shared + R_FULL + 8 * x, KEYS, key + KEYS, from.head_k,
                      from.b);
        }
        if (n >= 0) tile++;
    }
    return tile;
}

/* One warp; its first lane starts the copies. */
static __device__ __forceinline__ void produce(const struct kp_sdpa_fwd_fp8 *kp, uint32_t shared) {
    const struct kp_sdpa_fwd_maps *maps = &kp->maps;
    uint32_t q_tile = 0, tile = 0;
#pragma unroll 1
    for (int r = 0;; r++) {
        struct work w;
        const int found = find_work(maps, r, &w);
        if (found == 0 || (found > 0 && w.n_tiles <= 0)) continue;
        if (found < 0) w.n_tiles = -1;
        __syncwarp();
        const uint32_t q = q_tile & 1;
        mbar_wait(shared + Q_FREE + 8 * q, q_tile >> 1 & 1 ^ 1);
        q_tile++;
        if (threadIdx.x % 32 == 0) {
            keep_tile(kp, shared + WORK + WORK_BYTES * q, &w);
            if (found < 0) mbar_arrive(shared + Q_FULL + 8 * q);
        }
        if (found < 0) break;
        if (threadIdx.x % 32 == 0) tile = load_rows(maps, shared, q, tile);
    }
}
#endif
