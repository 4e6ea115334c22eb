/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: how packed sequences are dealt. Their lengths are known on the device only, so that pairs of
 * tiles (tile_of_round) are counted here, over the tiles that the sequences have, not over those that they may have.
 *
 * The pairs of a sequence have equal work. Each CTA gets the same number of them; those that are left over, fewer than
 * CTAs, go forth and back over the CTAs, from where those of the sequence before ended, the longest sequences first:
 * whoever has one of a long sequence has the next one of a short sequence. With 16 lengths of 256 to 8192 the CTA with
 * the most work has 1.002 to 1.01 of the mean (pairs dealt by turns: 1.04 to 1.08). 32 sequences are ordered at a
 * time. */
#ifndef ATTN_SM90_SDPA_FWD_PACKED_H
#define ATTN_SM90_SDPA_FWD_PACKED_H
#include "kernels/sm90/sdpa_fwd/work.h"

/* Are pairs of packed sequences counted here? */
static __device__ __forceinline__ int deals_pairs(const struct kp_sdpa_fwd_maps *maps) {
    return GROUPS < 3 && maps->pairs && maps->fwd.in.cu_seqlens_q;
}

/* Of `left` pairs that are left over, the first one at `position`: how many this CTA has, at most two, and the numbers
 * of its first and last one. Positions go forth and back over the CTAs. */
struct over {
    int n, first, last;
};
static __device__ __forceinline__ struct over left_over(int position, int left) {
    const int ctas = recompute((int)gridDim.x), cta = (int)blockIdx.x, round = position / ctas;
    const int forth = round * ctas + cta - position, back = (round + 1) * ctas - 1 - cta - position;
    const int one = round & 1 ? back : forth, two = ctas + (round & 1 ? forth : back);
    const int has_one = one >= 0 && one < left, has_two = two < left;
    return {has_one + has_two, has_one ? one : two, two};
}

/* How 32 sequences from b0 on are dealt, kept in shared memory: of each one its tiles, the position of its first pair
 * that is left over, how many pairs this CTA has of it and before it. All lanes of a warp. place: the round, b0, and
 * what the sequences up to these 32 leave to the next ones: the largest offset, this CTA's pairs, those left over. */
static __device__ __forceinline__ void count_pairs(const struct kp_sdpa_fwd *p, uint32_t place) {
    const uint32_t table = place + (DEALT - NEXT_ROUND);
    const int lane = recompute((int)threadIdx.x) % 32, b0 = (int)shared_load32(place + 4);
    int most, tiles;
    {
        const int32_t *cu = (const int32_t *)p->in.cu_seqlens_q;
        const int b = min(b0 + lane, p->in.batch - 1);
        int64_t rows0;
        most = max(cu[b], (int)shared_load32(place + 8));
#pragma unroll
        for (int d = 1; d < 32; d *= 2) most = max(most, __shfl_up_sync(~0u, most, d));
        packed_span(cu, b, most, p->in.total_q, p->in.seq_q, &rows0, &tiles);
        tiles = b0 + lane < p->in.batch ? (tiles + ROWS - 1) / ROWS : 0;
        most = __shfl_sync(~0u, most, 31);
    }
    const int ctas = recompute((int)gridDim.x); /* tiles are counted in 31 bits, pairs in 30 */
    const int pairs = (tiles + 1) / 2 * p->tile_heads, each = pairs / ctas, left = pairs - each * ctas;
    int position = (int)shared_load32(place + 16), before = (int)shared_load32(place + 12);
    uint32_t longer = 0; /* bit y: the sequence of lane y comes before this lane's */
    shared_store32(table + 16 * lane, (uint32_t)tiles), shared_store32(table + 16 * lane + 4, (uint32_t)left);
    __syncwarp();
#pragma unroll 4
    for (int y = 0; y < 32; y++) {
        const int other = (int)shared_load32(table + 16 * y), others = (int)shared_load32(table + 16 * y + 4);
        if (other > tiles || (other == tiles && y < lane)) longer |= 1u << y, position += others;
    }
    const int own = each + left_over(position, left).n;
    __syncwarp();
    shared_store32(table + 16 * lane + 8, (uint32_t)own);
    __syncwarp();
#pragma unroll 4
    for (int y = 0; y < 32; y++) {
        const int others = (int)shared_load32(table + 16 * y + 8);
        if (longer >> y & 1) before += others;
    }
    const int all_own = __reduce_add_sync(~0u, own), all_left = __reduce_add_sync(~0u, left);
    shared_store32(table + 16 * lane + 4, (uint32_t)position), shared_store32(table + 16 * lane + 12, (uint32_t)before);
    if (lane == 0) {
        shared_store32(place + 8, (uint32_t)most);
        shared_store32(place + 12, shared_load32(place + 12) + (uint32_t)all_own);
        shared_store32(place + 16, (shared_load32(place + 16) + (uint32_t)all_left) % (2 * (uint32_t)ctas));
    }
    __syncwarp();
}

static __device__ __forceinline__ void first_round(const struct kp_sdpa_fwd_maps *maps, uint32_t place) {
    if (threadIdx.x % 32 == 0) shared_store128(place, make_uint4(0, 0, 0, 0)), shared_store32(place + 16, 0);
    __syncwarp();
    if (deals_pairs(maps)) count_pairs(&maps->fwd, place);
}
static __device__ __forceinline__ int take_round(uint32_t place) {
    const int r = (int)shared_load32(place);
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_store32(place, (uint32_t)r + 1);
    __syncwarp();
    return r;
}
/* tile_of_round. All lanes of a warp, rounds in their order. */
static __device__ __forceinline__ int tile_of_packed(const struct kp_sdpa_fwd *p, int r, uint32_t place, int *head,
                                                     int *tile) {
    const uint32_t table = place + (DEALT - NEXT_ROUND);
#pragma unroll 1
    for (;;) {
        const int b0 = (int)shared_load32(place + 4);
        if (b0 >= p->in.batch) return -1;
        const int lane = recompute((int)threadIdx.x) % 32, n = r >> 1;
        const uint4 own = shared_load128(table + 16 * lane);
        const uint32_t found = __ballot_sync(~0u, n >= (int)own.w && n < (int)(own.z + own.w));
        if (found) {
            const int lane_b = __ffs((int)found) - 1, ctas = (int)gridDim.x;
            const uint4 x = shared_load128(table + 16 * lane_b);
            const int half = ((int)x.x + 1) / 2, pairs = half * p->tile_heads, each = pairs / ctas;
            const int y = n - (int)x.w; /* which of the CTA's pairs of this sequence */
            const struct over over = left_over((int)x.y, pairs - each * ctas);
            const int pair = y < each ? y * ctas + (int)blockIdx.x : each * ctas + (y == each ? over.first : over.last);
            const int h = pair / half, low = pair - h * half, high = (int)x.x - 1 - low;
            *head = (b0 + lane_b) * p->tile_heads + h;
            *tile = r & 1 ? low : high;
            return !(r & 1) || low != high;
        }
        __syncwarp();
        if (lane == 0) shared_store32(place + 4, (uint32_t)b0 + 32);
        __syncwarp();
        if (b0 + 32 < p->in.batch) count_pairs(p, place);
    }
}
#endif
