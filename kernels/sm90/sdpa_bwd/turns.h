/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: turns of the warpgroup that adds dQ, where sums have an order. */
#ifndef ATTN_SM90_SDPA_BWD_TURNS_H
#define ATTN_SM90_SDPA_BWD_TURNS_H
#include "kernels/device/reduce.h"
#include "kernels/device/turns.h"
#include "kernels/sm90/sdpa_bwd/work.h"

/* Where the sums of the step's dQ are: element (warp, n, lane, c) is accumulator 4 n + c of the lane. */
static __device__ __forceinline__ float *sums_of(const struct kp_sdpa_bwd *p, uint32_t shared, int stage) {
    const uint2 place = shared_load32x2(shared + PLACES + 16 * stage);
    const int64_t row = (int64_t)place.x * p->stat_rows + (int64_t)shared_load64(shared + KEPT + 56) + (int)place.y;
    const int thread = recompute((int)threadIdx.x) % 128;
    return (float *)p->dq_sum + row * DIM + thread / 32 * (16 * DIM) + 4 * (thread % 32);
}
/* In order: a step waits for the key tiles before this one, from the first that sees a row of the tile. Warp 2 waits,
 * warp 3 passes the turn on, and warp 0 copies: the fence of one step and the wait for the next run at once. The number
 * is the step's. */
constexpr int AWAITS = DQ_FIRST + 64, PASSES_ON = DQ_FIRST + 96;
static __device__ __forceinline__ void await_turn(const struct kp_sdpa_bwd *p, uint32_t shared, int stage, int number) {
    if (threadIdx.x == AWAITS) {
        const uint2 place = shared_load32x2(shared + PLACES + 16 * stage);
        const struct work w = recall_work(shared);
        const int first = max((int)place.y + w.off - p->in.window_left, 0) / KEYS;
        const int64_t row = (int64_t)place.x * p->stat_rows + w.stat0 + (int)place.y;
        int32_t *turn = (int32_t *)p->turns + row / ROWS;
        shared_store64(shared + TURN + 8 * (number & 1), (uint64_t)turn);
        wait_turn(turn, 2 * (w.key_tile - first)); /* each CTA of a pair has its columns */
    }
    __syncwarp();
}
/* All warps, before they add. */
static __device__ __forceinline__ void enter_turn(void) { named_sync(DQ, 128); }
/* The sums of the warpgroup are seen before the next one's: the release of one thread after a barrier covers all. */
static __device__ __forceinline__ void leave_turn(uint32_t shared, int number) {
    named_sync(DQ, 128);
    if (threadIdx.x == PASSES_ON) pass_turn((int32_t *)shared_load64(shared + TURN + 8 * (number & 1)));
    __syncwarp();
}
#endif
