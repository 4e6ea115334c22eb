/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward: slots sorted by the kv row they name, a variant for each step of one pass of a
 * stable radix sort over 8 bits. Slots of one row keep the order of the list, so mla_bwd_sum.cu adds them in that
 * order. No counter is ever shared by writers whose order could matter. Every chip.
 *
 *   COUNT    a CTA takes KP_MLA_SORT_BLOCK elements: how often each digit occurs -> counts[digit][block]
 *   SCAN     one CTA: counts become the sums of all that stand before them
 *   SCATTER  the same elements, warp by warp and lane by lane: each goes to its digit's place, keys and slots alike
 *
 * The first pass reads the index lists: element e is slot e % TOPK of query first + e / TOPK, its key the row of `sum`
 * that it names, or B * SK if it is invalid. Shared memory: 1 KiB, 128 bytes, 8 KiB. */
#include "kernels/device/slots.h"
#include "kernels/device/block_scan.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, STEP = CFG_STEP, DIGITS = 256;
constexpr int PER_WARP = KP_MLA_SORT_BLOCK / WARPS, ROUNDS = PER_WARP / 32;
static_assert(STEP == KP_MLA_BWD_SCAN || THREADS == DIGITS, "a thread for each digit");
static_assert(KP_MLA_SORT_BLOCK % THREADS == 0 && WARPS <= 32, "whole rounds");

static __device__ __forceinline__ uint32_t key_of(const struct kp_mla_bwd *p, uint32_t e) {
    if (p->from >= 0) return ((const uint32_t *)p->keys[p->from])[e];
    const int64_t flat = p->first + e / (uint32_t)p->in.topk, b = flat / p->in.seq_q;
    const int t = (int)(e % (uint32_t)p->in.topk);
    const struct slots s = slots_of(&p->in, b, flat % p->in.seq_q);
    const int idx = t < s.n ? s.idx[t] : -1;
    return (uint32_t)(slot_valid(&s, idx) ? b * p->in.seq_k + idx : p->in.batch * p->in.seq_k);
}
static __device__ __forceinline__ uint32_t digit_of(const struct kp_mla_bwd *p, uint32_t key) {
    return key >> p->digit & (DIGITS - 1);
}

static __device__ __forceinline__ void count_block(const struct kp_mla_bwd *p, uint32_t n) {
    __shared__ uint32_t count[DIGITS];
    const uint32_t thread = threadIdx.x, first = blockIdx.x * KP_MLA_SORT_BLOCK;
    count[thread] = 0;
    __syncthreads();
    for (uint32_t x = thread; x < KP_MLA_SORT_BLOCK && first + x < n; x += THREADS)
        atomicAdd(&count[digit_of(p, key_of(p, first + x))], 1u);
    __syncthreads();
    ((uint32_t *)p->counts)[thread * (uint32_t)p->sort_blocks + blockIdx.x] = count[thread];
}

static __device__ __forceinline__ void scan_counts(const struct kp_mla_bwd *p) {
    __shared__ uint32_t share[WARPS];
    uint32_t *counts = (uint32_t *)p->counts;
    const uint32_t n = DIGITS * (uint32_t)p->sort_blocks;
    for (uint32_t x0 = 0, before = 0; x0 < n; x0 += THREADS) { /* before: sum of the rounds before */
        const uint32_t x = x0 + threadIdx.x, own = x < n ? counts[x] : 0;
        const uint32_t sum = sum_to_lane(own);
        const struct warp_sums warps = sum_warps(sum, share);
        if (x < n) counts[x] = before + warps.before + sum - own;
        before += warps.all;
        __syncthreads();
    }
}

static __device__ __forceinline__ void scatter_block(const struct kp_mla_bwd *p, uint32_t n) {
    __shared__ uint32_t place[WARPS][DIGITS];
    const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const uint32_t first = blockIdx.x * KP_MLA_SORT_BLOCK + warp * PER_WARP + lane;
    const int to = (p->from + 1) & 1; /* -1 -> 0, 0 -> 1, 1 -> 0 */
    uint32_t key[ROUNDS];
    for (uint32_t w = 0; w < WARPS; w++) place[w][thread] = 0;
    __syncthreads();
#pragma unroll
    for (int x = 0; x < ROUNDS; x++) {
        const int there = first + 32 * x < n;
        key[x] = there ? key_of(p, first + 32 * x) : 0;
        const uint32_t digit = digit_of(p, key[x]), peers = __match_any_sync(~0u, there ? digit : DIGITS);
        if (there && lane == (uint32_t)__ffs((int)peers) - 1) place[warp][digit] += (uint32_t)__popc(peers);
        __syncwarp();
    }
    __syncthreads();
    place_warps(place, ((const uint32_t *)p->counts)[thread * (uint32_t)p->sort_blocks + blockIdx.x]);
    __syncthreads();
#pragma unroll
    for (int x = 0; x < ROUNDS; x++) {
        const uint32_t e = first + 32 * x, digit = digit_of(p, key[x]);
        const int there = e < n;
        const uint32_t peers = __match_any_sync(~0u, there ? digit : DIGITS);
        const uint32_t target = place[warp][digit] + (uint32_t)__popc(peers & ((1u << lane) - 1));
        __syncwarp();
        if (there && lane == (uint32_t)__ffs((int)peers) - 1) place[warp][digit] += (uint32_t)__popc(peers);
        __syncwarp();
        if (!there) continue;
        ((uint32_t *)p->keys[to])[target] = key[x];
        ((uint32_t *)p->slots[to])[target] = p->from >= 0 ? ((const uint32_t *)p->slots[p->from])[e] : e;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CFG(const __grid_constant__ struct kp_mla_bwd p) {
    const uint32_t n = (uint32_t)(p.n * p.in.topk);
    if (STEP == KP_MLA_BWD_COUNT) count_block(&p, n);
    if (STEP == KP_MLA_BWD_SCAN) scan_counts(&p);
    if (STEP == KP_MLA_BWD_SCATTER) scatter_block(&p, n);
}
