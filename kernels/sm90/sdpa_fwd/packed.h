/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: how packed sequences are dealt. Their lengths are known on the device only, so that pairs
 * of tiles (tile_of_round) are counted here, over the tiles that the sequences have, and not over those that they may
 * have: with lengths of 256 to 8192 the CTA with the most work has 1.05 of the mean then, not 1.10 to 1.21. */
#ifndef ATTN_SM90_SDPA_FWD_PACKED_H
#define ATTN_SM90_SDPA_FWD_PACKED_H
#include "kernels/device/block_scan.h"
#include "kernels/sm90/sdpa_fwd/work.h"

/* What the copying warp looks at next, kept in shared memory, since its registers are few: the round, and how far it
 * has counted: a lane has one of the 32 sequences from b0 on, `pairs` pairs and the largest offset `most` come before
 * them. */
struct packed_deal {
    int b0, most, pairs;
};
static __device__ __forceinline__ void first_round(uint32_t place) {
    if (threadIdx.x % 32 == 0) shared_store128(place, make_uint4(0, 0, 0, 0));
    __syncwarp();
}
static __device__ __forceinline__ int take_round(uint32_t place) {
    const int r = (int)shared_load32(place);
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_store32(place, (uint32_t)r + 1);
    __syncwarp();
    return r;
}
static __device__ __forceinline__ void keep_deal(uint32_t place, struct packed_deal deal) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        shared_store32(place + 4, (uint32_t)deal.b0);
        shared_store32(place + 8, (uint32_t)deal.most);
        shared_store32(place + 12, (uint32_t)deal.pairs);
    }
    __syncwarp();
}

/* tile_of_round. All lanes of a warp, rounds in their order. */
static __device__ __forceinline__ int tile_of_packed(const struct kp_sdpa_fwd *p, int r, uint32_t place, int *head,
                                                     int *tile) {
    const uint4 kept = shared_load128(place);
    struct packed_deal deal = {(int)kept.y, (int)kept.z, (int)kept.w};
    const int32_t *cu = (const int32_t *)p->in.cu_seqlens_q;
    const int x = (r >> 1) * (int)gridDim.x + (int)blockIdx.x; /* tiles are counted in 31 bits, pairs in 30 */
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (; deal.b0 < p->in.batch; deal.b0 += 32) {
        const int b = min(deal.b0 + lane, p->in.batch - 1), exists = deal.b0 + lane < p->in.batch;
        int most = max(cu[b], deal.most), n;
        int64_t first;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) most = max(most, __shfl_up_sync(~0u, most, d));
        packed_span(cu, b, most, p->in.total_q, p->in.seq_q, &first, &n);
        const int tiles = exists ? (n + ROWS - 1) / ROWS : 0, pairs = (tiles + 1) / 2 * p->tile_heads;
        const int sum = (int)sum_to_lane((uint32_t)pairs), all = __shfl_sync(~0u, sum, 31);
        const int within = x - deal.pairs;
        if (within < all) {
            const int lane_b = __ffs((int)__ballot_sync(~0u, within < sum)) - 1;
            const int count = __shfl_sync(~0u, tiles, lane_b), half = (count + 1) / 2;
            const int y = within - __shfl_sync(~0u, sum - pairs, lane_b), h = y / half;
            const int low = y - h * half, high = count - 1 - low;
            keep_deal(place, deal);
            *head = (deal.b0 + lane_b) * p->tile_heads + h;
            *tile = r & 1 ? low : high;
            return !(r & 1) || low != high;
        }
        deal.pairs += all;
        deal.most = __shfl_sync(~0u, most, 31);
    }
    return -1;
}
#endif
