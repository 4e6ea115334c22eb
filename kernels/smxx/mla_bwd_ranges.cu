/* SPDX-License-Identifier: MIT
 * Sparse MLA backward whose sums of dkv are larger than the second-level cache: orders each query's valid slots by
 * ranges of kv rows, so that the work tiles which the device works on at once add to the same few rows at a time. A
 * stable counting sort; no counter's order of additions matters. Every chip.
 *
 *   indices of query i, topk_length, causal rule --CTA per query, warp w the w-th part of the slots-->
 *     COUNT    valid slots of each range -------------------> count[w][range]
 *     SCAN     a thread for each range, over warps and over the ranges before it --> count[w][range] = first place
 *     SCATTER  32 slots at a time, a lane after those before it --> list[place] = row; positions[slot] = place
 *
 * Shared memory: 8 KiB + 32 bytes. */
#include "kernels/device/slots.h"
#include "kernels/device/block_scan.h"
#include "kernels/params/mla_ranges.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, MOST = KP_MLA_RANGES_MOST;
static_assert(THREADS == MOST, "a thread for each range");

/* Slots of the warp: from .. end - 1. */
struct part {
    int from, end;
};
static __device__ __forceinline__ struct part part_of(int n, int warp) {
    const int each = (n + THREADS - 1) / THREADS * 32;
    struct part x;
    x.from = min(n, warp * each); /* n is at most 2^28 */
    x.end = min(n, x.from + each);
    return x;
}

static __device__ __forceinline__ void order_slots(const struct kp_mla_bwd_ranges *p, int64_t query) {
    __shared__ uint32_t count[WARPS][MOST], share[WARPS];
    const int64_t flat = p->bwd.first + query, b = flat / p->bwd.in.seq_q;
    const struct slots s = slots_of(&p->bwd.in, b, flat % p->bwd.in.seq_q);
    const int thread = (int)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const struct part own = part_of(s.n, warp);
    int32_t *list = (int32_t *)p->list + query * p->bwd.in.topk;
    int32_t *positions = p->positions ? (int32_t *)p->positions + flat * p->bwd.in.topk : 0;
    for (int w = 0; w < WARPS; w++) count[w][thread] = 0;
    __syncthreads();
#pragma unroll 4
    for (int t = own.from + lane; t < own.end; t += 32) {
        const int32_t row = s.idx[t];
        if (slot_valid(&s, row)) atomicAdd(&count[warp][row >> p->shift], 1u);
    }
    __syncthreads();

    /* threads stand for the ranges in the order in which they come */
    const int range = query / p->wave & 1 ? p->ranges - 1 - thread : thread;
    uint32_t n = 0;
    if (thread < p->ranges)
        for (int w = 0; w < WARPS; w++) n += count[w][range];
    const uint32_t sum = sum_to_lane(n);
    const struct warp_sums warps = sum_warps(sum, share);
    uint32_t place = warps.before + sum - n;
    if (thread < p->ranges)
        for (int w = 0; w < WARPS; w++) {
            const uint32_t x = count[w][range];
            count[w][range] = place;
            place += x;
        }
    if (thread == 0) ((int32_t *)p->lengths)[query] = (int32_t)warps.all;
    __syncthreads();

    const int bits = 32 - __clz(p->ranges - 1); /* lanes of the same range are found bit by bit */
#pragma unroll 2
    for (int t0 = own.from; t0 < own.end; t0 += 32) {
        const int32_t row = t0 + lane < own.end ? s.idx[t0 + lane] : -1;
        const int valid = slot_valid(&s, row), range_of_slot = valid ? row >> p->shift : 0;
        uint32_t peers = __ballot_sync(~0u, valid);
        for (int bit = 0; bit < bits; bit++) {
            const int one = range_of_slot >> bit & 1;
            const uint32_t ones = __ballot_sync(~0u, one);
            peers &= one ? ones : ~ones;
        }
        const uint32_t to = valid ? count[warp][range_of_slot] + (uint32_t)__popc(peers & ((1u << lane) - 1)) : 0;
        __syncwarp();
        if (valid && lane == __ffs((int)peers) - 1) count[warp][range_of_slot] += (uint32_t)__popc(peers);
        __syncwarp();
        if (!valid) continue;
        list[to] = row;
        if (positions) positions[t0 + lane] = (int32_t)to;
    }
    __syncthreads(); /* before the next query's counts */
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_mla_bwd_ranges p) {
    if (threadIdx.x == 0)
        for (int64_t x = blockIdx.x; x < p.n_checkpoints; x += gridDim.x) ((uint32_t *)p.bwd.checkpoints)[x] = 0;
    for (int64_t query = blockIdx.x; query < p.bwd.n; query += gridDim.x) order_slots(&p, query);
}
