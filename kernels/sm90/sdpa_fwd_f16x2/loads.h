/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_f16x2.cu: the warp that copies and says what is to be done. */
#ifndef ATTN_SM90_SDPA_FWD_F16X2_LOADS_H
#define ATTN_SM90_SDPA_FWD_F16X2_LOADS_H
#include "kernels/device/cluster.h"
#include "kernels/device/tensor_load.h"
#include "kernels/sm90/sdpa_fwd_f16x2/work.h"

/* Slices of `rows` rows of one half of a tensor; one thread. */
static __device__ __forceinline__ void load_half(uint32_t to, const struct kp_tensor_map *map, uint32_t barrier,
                                                 int rows, int row, int place, int b) {
#pragma unroll
    for (int x = 0; x < DIM / 64; x++) tensor_load4(to + x * 128 * rows, map, barrier, 64 * x, row, place, b);
}

/* The next slot, once it is free: its address; its bytes are announced. */
static __device__ __forceinline__ uint32_t take_slot(uint32_t shared, struct ring *r, uint32_t *full) {
    const uint32_t slot = r->slot;
    mbar_wait(shared + FREE + 8 * slot, r->phase ^ 1);
    *full = shared + FULL + 8 * slot;
    mbar_expect(*full, SLOT_BYTES);
    next_slot(r);
    return shared + RING + slot * SLOT_BYTES;
}

/* K of a key tile, lo first, then V, block after block. key: a row of the maps; place: of hi on the axis of heads. */
static __device__ __forceinline__ void load_keys(const struct kp_sdpa_fwd_maps *maps, uint32_t shared, struct ring *r,
                                                 int key, int place, int b) {
    uint32_t full;
#pragma unroll 1
    for (int half = 1; half >= 0; half--) {
        const uint32_t to = take_slot(shared, r, &full);
        load_half(to, &maps->k, full, KEYS, key, place + half, b);
    }
#pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) {
        const uint32_t to = take_slot(shared, r, &full);
        load_half(to, &maps->v, full, BLOCK, key + block * BLOCK, place, b);
        load_half(to + V_HALF, &maps->v, full, BLOCK, key + block * BLOCK, place + 1, b);
    }
}

/* Does the kernel of tf32 serve the head? */
static __device__ __forceinline__ int is_flagged(const struct kp_sdpa_fwd_f16x2 *kp, const struct work *w) {
    const struct kp_sdpa_fwd *p = &kp->maps.fwd;
    return ((const int32_t *)kp->flags)[w->b * p->in.heads_k + divided(w->head, p->by_group)] != 0;
}

/* One warp; its first lane starts the copies, in the order of use. */
static __device__ __forceinline__ void produce(const struct kp_sdpa_fwd_f16x2 *kp, uint32_t shared) {
    const struct kp_sdpa_fwd_maps *maps = &kp->maps;
    struct ring ring = {0, 0};
    uint32_t q_tile = 0;
    struct work w;
#pragma unroll 1
    for (int r = 0;; r++) {
        const int found = find_work(maps, r, &w);
        if (found == 0 || (found > 0 && (w.n_tiles <= 0 || is_flagged(kp, &w)))) continue;
        if (found < 0) w.n_tiles = -1;
        __syncwarp();
        const uint32_t q = q_tile % Q_TILES, full = shared + Q_FULL + 8 * q;
        mbar_wait(shared + Q_FREE + 8 * q, q_tile / Q_TILES & 1 ^ 1);
        if (threadIdx.x % 32 == 0) {
            keep_work(shared + WORK + WORK_BYTES * (q_tile % WORKS), &w);
            if (found < 0) mbar_arrive(full);
        }
        if (found < 0) break;
        q_tile++;
        if (threadIdx.x % 32 != 0) continue;
        const int b = maps->fwd.in.cu_seqlens_q ? 0 : w.b, place = 2 * divided(w.head, maps->fwd.by_group);
        const int row = (int)w.seq.q0 + w.row0, key0 = (int)w.seq.k0 + w.first * KEYS;
        mbar_expect(full, Q_BYTES);
        load_half(shared + q * Q_BYTES, &maps->q, full, ROWS, row, 2 * w.head, b);
        load_half(shared + q * Q_BYTES + Q_HALF, &maps->q, full, ROWS, row, 2 * w.head + 1, b);
#pragma unroll 1
        for (int n = w.n_tiles - 1; n >= 0; n--) load_keys(maps, shared, &ring, key0 + n * KEYS, place, b);
    }
}
#endif
