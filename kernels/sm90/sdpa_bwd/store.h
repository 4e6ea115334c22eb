/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu and sdpa_bwd_pair.cu: dK and dV to memory. */
#ifndef ATTN_SM90_SDPA_BWD_STORE_H
#define ATTN_SM90_SDPA_BWD_STORE_H
#include "kernels/sm90/sdpa_bwd/cells.h"

/* Sums of 64 keys of the tile, from `key0` on, times the factor, rounded, through rows row0 .. row0 + 63 of the slices
 * at `tile` to the tensor. A warpgroup; each warp waits for itself alone. */
template <int COLUMNS>
static __device__ __forceinline__ void store_keys(const struct kp_view *v, int width, uint32_t shared, uint32_t tile,
                                                  int row0, int key0, float factor, const float g[COLUMNS / 2]) {
    constexpr int CHUNKS = COLUMNS / 8, ACROSS = CHUNKS < 32 ? CHUNKS : 32, DOWN = 32 / ACROSS;
    const int line0 = row0 + 16 * warp_of(), line = line0 + (lane_of() & 15);
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; j++) {
        uint32_t x[4];
#pragma unroll
        for (int y = 0; y < 4; y++) x[y] = pack16(TYPE, g[8 * j + 2 * y] * factor, g[8 * j + 2 * y + 1] * factor);
        const int chunk = 2 * j + (lane_of() >> 4);
        store_matrix4(tile + chunk / 8 * K_SLICE + line * 128 + ((chunk % 8 ^ (line & 7)) << 4), x);
    }
    __syncwarp();
    const struct work w = recall_work(shared);      /* now, when most sums have been rounded */
    if (32 % ACROSS && lane_of() >= ACROSS) return; /* of 192 columns 24 lanes hold a row */
    const int r0 = lane_of() / ACROSS, chunk = lane_of() % ACROSS, left = width - 8 * chunk;
    const int key = key0 + 16 * warp_of(), exist = w.seq.keys - w.j0 - key;
    uint16_t *to =
        (uint16_t *)v->data + w.b * v->batch + w.head_k * v->head + (w.seq.k0 + w.j0 + key + r0) * v->row + 8 * chunk;
    constexpr int AT_ONCE = 4;
#pragma unroll 1
    for (int r = r0; r < 16; r += AT_ONCE * DOWN) {
        uint4 a[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int from = line0 + r + u * DOWN;
            a[u] = shared_load128(tile + chunk / 8 * K_SLICE + from * 128 + ((chunk % 8 ^ (from & 7)) << 4));
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++, to += DOWN * v->row) {
            if (r + u * DOWN >= exist) break;
            if (v->chunk == 16 && left >= 8) {
                *(uint4 *)to = a[u];
                continue;
            }
            const uint32_t word[4] = {a[u].x, a[u].y, a[u].z, a[u].w};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (e < left) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
        }
    }
}
#endif
