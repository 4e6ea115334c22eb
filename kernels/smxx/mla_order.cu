/* SPDX-License-Identifier: MIT
 * Sparse MLA forward whose keys are larger than the second-level cache: orders each query's valid slots by at most 16
 * ranges of kv rows, so that the work tiles which the device works on at once go through the rows together. A counting
 * sort without atomics: counters of each thread, in bytes. Within a range the order is that of threads: fixed, but not
 * that of the list (mla_bwd_ranges.cu keeps that, for more ranges and slots, in three times the time). Every chip.
 *
 *   indices of query i, topk_length, causal rule --CTA per query, thread t the slots t + 256 k-->
 *     COUNT    thread t: count[range][t]++, before it: the slot's rank
 *     SCAN     thread 16 r + j: count[r][16 j ..], 16 of them, over what stands before --> base[r][16 j ..]
 *     SCATTER  place base[range][t] + rank of shared memory = row; then the list in whole lines, since scattered
 *              words in global memory would take three times as long
 *
 * Shared memory: 20 KiB + 32 bytes. */
#include "kernels/device/slots.h"
#include "kernels/device/block_scan.h"
#include "kernels/params/mla_apart.h"
#include "kernels/params/mla_ranges.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, EACH = KP_MLA_ORDER_SLOTS / THREADS;
static_assert(THREADS == 16 * KP_MLA_ORDER_RANGES && EACH <= 8, "16 threads scan a range; a rank is four bits");

/* Sum of 16 bytes, each at most 8. */
static __device__ __forceinline__ uint32_t sum_of(uint4 x) {
    const uint32_t four = x.x + x.y + x.z + x.w, two = (four & 0x00ff00ff) + (four >> 8 & 0x00ff00ff);
    return (two + (two >> 16)) & 0xffff;
}

/* Two places of 16 bits for each two bytes of x: what stands before them; *sum goes on. */
static __device__ __forceinline__ uint2 places_of(uint32_t x, uint32_t *sum) {
    const uint32_t a = *sum, b = a + (x & 255), c = b + (x >> 8 & 255), d = c + (x >> 16 & 255);
    *sum = d + (x >> 24);
    return make_uint2(a | b << 16, c | d << 16);
}

static __device__ __forceinline__ void order_slots(const struct kp_mla_order *p, int32_t query) {
    __shared__ uint4 count[KP_MLA_ORDER_RANGES][THREADS / 16];   /* uint8 [ranges][threads] */
    __shared__ uint4 base[KP_MLA_ORDER_RANGES][THREADS / 16][2]; /* uint16 [ranges][threads] */
    __shared__ int32_t ordered[KP_MLA_ORDER_SLOTS];
    __shared__ uint32_t share[WARPS];
    const uint32_t flat = (uint32_t)(p->first + query), b = flat / (uint32_t)p->in.seq_q;
    const struct slots s = slots_of(&p->in, b, flat - b * (uint32_t)p->in.seq_q);
    const uint32_t thread = threadIdx.x;
    const uint32_t flip = (uint32_t)query / (uint32_t)p->wave & 1 ? (uint32_t)p->ranges - 1 : 0;
    int32_t row[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int t = k * THREADS + (int)thread;
        row[k] = t < s.n ? s.idx[t] : -1;
    }
    ((uint4 *)count)[thread] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    uint8_t *own = (uint8_t *)count + thread;
    uint32_t ranks = 0; /* of four bits */
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (!slot_valid(&s, row[k])) continue;
        const uint32_t range = (uint32_t)row[k] >> p->shift, bin = flip ? flip - range : range;
        const uint32_t rank = own[bin * THREADS];
        own[bin * THREADS] = (uint8_t)(rank + 1);
        ranks |= rank << (4 * k);
    }
    __syncthreads();

    const uint4 x = ((const uint4 *)count)[thread];
    const uint32_t own_slots = sum_of(x), sum = sum_to_lane(own_slots);
    const struct warp_sums warps = sum_warps(sum, share);
    uint32_t n_before = warps.before + sum - own_slots;
    if (thread == 0) ((int32_t *)p->lengths)[query] = (int32_t)warps.all;
    const uint2 y[4] = {places_of(x.x, &n_before), places_of(x.y, &n_before), places_of(x.z, &n_before),
                        places_of(x.w, &n_before)};
    uint4 *to = (uint4 *)base + 2 * thread;
    to[0] = make_uint4(y[0].x, y[0].y, y[1].x, y[1].y);
    to[1] = make_uint4(y[2].x, y[2].y, y[3].x, y[3].y);
    __syncthreads();

    const uint16_t *before = (const uint16_t *)base + thread;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (!slot_valid(&s, row[k])) continue;
        const uint32_t range = (uint32_t)row[k] >> p->shift, bin = flip ? flip - range : range;
        ordered[before[bin * THREADS] + (ranks >> (4 * k) & 15)] = row[k];
    }
    __syncthreads();
    int32_t *list = (int32_t *)p->list + (int64_t)query * p->in.topk;
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        if (k * THREADS + thread < warps.all) list[k * THREADS + thread] = ordered[k * THREADS + thread];
}

#ifdef CFG_APART
typedef struct kp_mla_order_apart launched;
#else
typedef struct kp_mla_order launched;
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 2048 / THREADS) CFG(const __grid_constant__ launched kp) {
#ifdef CFG_APART
    const struct kp_mla_order &p = kp.order;
    if (*(const int32_t *)kp.gate == 0) return;
#else
    const struct kp_mla_order &p = kp;
#endif
    for (int32_t query = (int32_t)blockIdx.x; query < p.n; query += (int32_t)gridDim.x) {
        order_slots(&p, query);
        __syncthreads(); /* before the next query's counts */
    }
}
