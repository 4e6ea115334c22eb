/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward with rows of 16 bits a number: steps of its sums over the slots of kv rows, in f32.
 * A variant for each. The first three are a pass of a stable radix sort of the slots by the row of `sum` they name,
 * as in mla_bwd_sort.cu, but with all loads of a thread under way at once, and a CTA for each digit in SCAN.
 *
 *   COUNT    a CTA takes KP_MLA_SORT_BLOCK slots: how often each digit occurs -> counts[digit][block]. First pass:
 *            index lists -> keys[1], B * SK for a slot that is not valid
 *   SCAN     counts --a CTA a digit--> scanned: what stands before
 *   SCATTER  the same slots, warp by warp and lane by lane: each goes to its digit's place, digit by digit
 *   WALK     mla_bwd_walk.h, of all the list: a team for each stretch --> sum, parts
 *   JOIN     a team for each stretch in which a kv row's slots begin and do not end: parts, in order --> + sum[kv row]
 *
 * Shared memory: COUNT 1 KiB, SCAN 36 bytes, SCATTER 41.1 KiB. */
#include "kernels/device/slots.h"
#include "kernels/sm90/mla_bwd_walk.h"

constexpr int STEP = CFG_STEP, THREADS = CFG_THREADS, WARPS = THREADS / 32, DIGITS = 256;
constexpr int SORT_THREADS = DIGITS, SORT_WARPS = SORT_THREADS / 32, ROUNDS = KP_MLA_SORT_BLOCK / SORT_THREADS;
static_assert(STEP > KP_MLA_ROWS_SCATTER || STEP == KP_MLA_ROWS_SCAN || THREADS == SORT_THREADS, "a thread a digit");
static_assert(STEP <= KP_MLA_ROWS_SCATTER || THREADS == KP_MLA_ROWS_THREADS, "teams");

/* ------------------------------------------------------------------ sort --------------------------- */

static __device__ __forceinline__ uint32_t digit_of(const struct kp_mla_bwd *p, uint32_t key) {
    return key >> p->digit & (DIGITS - 1);
}
/* Slot e is slot e % TOPK of query first + e / TOPK; numbers of queries are below 2^31. */
static __device__ __forceinline__ uint32_t key_of(const struct kp_mla_bwd *p, uint32_t e) {
    const uint32_t query = e / (uint32_t)p->in.topk, t = e - query * (uint32_t)p->in.topk;
    const uint32_t flat = (uint32_t)p->first + query, b = flat / (uint32_t)p->in.seq_q;
    const struct slots s = slots_of(&p->in, b, flat - b * (uint32_t)p->in.seq_q);
    const int idx = (int)t < s.n ? s.idx[t] : -1;
    return (uint32_t)(slot_valid(&s, idx) ? b * p->in.seq_k + idx : p->in.batch * p->in.seq_k);
}
/* Of the x-th round, the thread's slot. */
static __device__ __forceinline__ uint32_t slot_at(int x) {
    const uint32_t thread = threadIdx.x, warp = thread >> 5;
    return blockIdx.x * KP_MLA_SORT_BLOCK + warp * (KP_MLA_SORT_BLOCK / SORT_WARPS) + 32 * (uint32_t)x + (thread & 31);
}
/* The thread's keys, of the pass that reads `from`: 0 or 1, in the first pass 1. */
static __device__ __forceinline__ void load_keys(const struct kp_mla_bwd *p, uint32_t n, uint32_t key[ROUNDS]) {
    const uint32_t *keys = (const uint32_t *)p->keys[p->from & 1];
#pragma unroll
    for (int x = 0; x < ROUNDS; x++) key[x] = slot_at(x) < n ? keys[slot_at(x)] : 0;
}

static __device__ __forceinline__ void count_block(const struct kp_mla_bwd *p, uint32_t n) {
    __shared__ uint32_t count[DIGITS];
    count[threadIdx.x] = 0;
    __syncthreads();
    if (p->from < 0) {
#pragma unroll 4
        for (int x = 0; x < ROUNDS; x++) {
            if (slot_at(x) >= n) continue;
            const uint32_t key = key_of(p, slot_at(x));
            ((uint32_t *)p->keys[1])[slot_at(x)] = key;
            atomicAdd(&count[digit_of(p, key)], 1u);
        }
    } else {
        uint32_t key[ROUNDS];
        load_keys(p, n, key);
#pragma unroll
        for (int x = 0; x < ROUNDS; x++)
            if (slot_at(x) < n) atomicAdd(&count[digit_of(p, key[x])], 1u);
    }
    __syncthreads();
    ((uint32_t *)p->counts)[threadIdx.x * (uint32_t)p->sort_blocks + blockIdx.x] = count[threadIdx.x];
}

/* The sum of x over the CTA, to all threads; *before: over the threads before. */
static __device__ __forceinline__ uint32_t sum_all(uint32_t x, uint32_t *before) {
    __shared__ uint32_t share[WARPS];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t sum = x, all = 0;
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t less = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += less;
    }
    __syncthreads(); /* the last sums are read */
    if (lane == 31) share[warp] = sum;
    __syncthreads();
    *before = sum - x;
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w == warp) *before += all;
        all += share[w];
    }
    return all;
}
static __device__ __forceinline__ void scan_digit(const struct kp_mla_bwd_rows *p) {
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks, first = blockIdx.x * blocks; /* a multiple of 4 */
    const uint32_t *counts = (const uint32_t *)p->bwd.counts;
    uint32_t *to = (uint32_t *)p->scanned, x = 0, before;
#pragma unroll 8
    for (uint32_t i = 4 * threadIdx.x; i < first; i += 4 * THREADS) {
        const uint4 y = *(const uint4 *)(counts + i);
        x += y.x + y.y + y.z + y.w;
    }
    uint32_t base = sum_all(x, &before);
    for (uint32_t at = 0; at < blocks; at += THREADS) {
        const uint32_t i = at + threadIdx.x, own = i < blocks ? counts[first + i] : 0, all = sum_all(own, &before);
        if (i < blocks) to[first + i] = base + before;
        base += all;
    }
}

/* The block is put in order in shared memory first: a warp's stores then name a few lines, not 32. */
static __device__ __forceinline__ void scatter_block(const struct kp_mla_bwd_rows *q, uint32_t n) {
    __shared__ uint32_t place[SORT_WARPS][DIGITS], away[DIGITS];
    __shared__ uint2 ordered[KP_MLA_SORT_BLOCK];
    const struct kp_mla_bwd *p = &q->bwd;
    const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int to = (p->from + 1) & 1;                 /* -1 -> 0, 0 -> 1, 1 -> 0 */
    uint32_t key[ROUNDS], slot[ROUNDS], rank[ROUNDS]; /* rank: among the warp's of the same digit */
    uint32_t at = ((const uint32_t *)q->scanned)[thread * (uint32_t)p->sort_blocks + blockIdx.x];
    load_keys(p, n, key);
#pragma unroll
    for (int x = 0; x < ROUNDS; x++)
        slot[x] = p->from < 0 ? slot_at(x) : slot_at(x) < n ? ((const uint32_t *)p->slots[p->from])[slot_at(x)] : 0;
    for (uint32_t w = 0; w < SORT_WARPS; w++) place[w][thread] = 0;
    __syncthreads();
#pragma unroll
    for (int x = 0; x < ROUNDS; x++) {
        const int there = slot_at(x) < n;
        const uint32_t digit = digit_of(p, key[x]), same = __match_any_sync(~0u, there ? digit : DIGITS);
        const uint32_t others = place[warp][digit];
        rank[x] = others + (uint32_t)__popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (there && lane == (uint32_t)__ffs((int)same) - 1) place[warp][digit] = others + (uint32_t)__popc(same);
        __syncwarp();
    }
    __syncthreads();
    uint32_t all = 0, here;
    for (uint32_t w = 0; w < SORT_WARPS; w++) all += place[w][thread];
    sum_all(all, &here);
    away[thread] = at - here;
    for (uint32_t w = 0; w < SORT_WARPS; w++) {
        const uint32_t count = place[w][thread];
        place[w][thread] = here;
        here += count;
    }
    __syncthreads();
#pragma unroll
    for (int x = 0; x < ROUNDS; x++)
        if (slot_at(x) < n) ordered[place[warp][digit_of(p, key[x])] + rank[x]] = make_uint2(key[x], slot[x]);
    __syncthreads();
    for (uint32_t i = thread; i < KP_MLA_SORT_BLOCK && blockIdx.x * KP_MLA_SORT_BLOCK + i < n; i += SORT_THREADS) {
        const uint2 y = ordered[i];
        const uint32_t target = away[digit_of(p, y.x)] + i;
        ((uint32_t *)p->keys[to])[target] = y.x;
        ((uint32_t *)p->slots[to])[target] = y.y;
    }
}

/* ------------------------------------------------------------------ join --------------------------- */

/* The last stretch that begins with this key; stretch `at` does. */
static __device__ __forceinline__ uint32_t last_of_key(const struct list *l, uint32_t key, uint32_t at) {
    const uint32_t n = stretches_of(l);
    uint32_t step = 1;
    for (; at + step < n && l->keys[(at + step) * STRETCH] == key; step *= 2) at += step;
    for (; step > 0; step /= 2)
        if (at + step < n && l->keys[(at + step) * STRETCH] == key) at += step;
    return at;
}

template <int TEAM> static __device__ __forceinline__ void join(const struct kp_mla_bwd_rows *p, uint32_t s, int c) {
    const struct list l = list_of(p);
    const struct stretch own = stretch_of(&l, s);
    const uint32_t key = l.keys[own.end - 1];
    if (key == l.none || !goes_on(&l, &own, key)) return;
    if (l.keys[own.from] == key && began_before(&l, &own, key)) return; /* a stretch before has it */
    const uint32_t last = last_of_key(&l, key, s + 1);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 4
    for (uint32_t x = s; x <= last; x++) {
        const float4 *from = part_at(p, x, x == s, TEAM, c);
        const float4 a = from[0], b = from[1];
        sum[0] += a.x, sum[1] += a.y, sum[2] += a.z, sum[3] += a.w;
        sum[4] += b.x, sum[5] += b.y, sum[6] += b.z, sum[7] += b.w;
    }
    add_to_sum(&p->bwd, key, sum, c);
}

template <int DIM> static __device__ __forceinline__ void take_stretch(const struct kp_mla_bwd_rows *p) {
    constexpr int TEAM = KP_MLA_ROWS_TEAM(DIM), TEAMS = KP_MLA_ROWS_TEAMS(DIM);
    const int team = (int)threadIdx.x / TEAM, c = (int)threadIdx.x % TEAM;
    const uint32_t s = blockIdx.x * TEAMS + (uint32_t)team;
    if (team >= TEAMS || s * STRETCH >= (uint32_t)p->n) return;
    STEP == KP_MLA_ROWS_WALK ? walk<TEAM>(p, s, c) : join<TEAM>(p, s, c);
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_mla_bwd_rows p) {
    const uint32_t slots = (uint32_t)(p.bwd.n * p.bwd.in.topk);
    if (STEP == KP_MLA_ROWS_COUNT)
        count_block(&p.bwd, slots);
    else if (STEP == KP_MLA_ROWS_SCAN)
        scan_digit(&p);
    else if (STEP == KP_MLA_ROWS_SCATTER)
        scatter_block(&p, slots);
    else if (p.bwd.in.dim_qk == 576)
        take_stretch<576>(&p);
    else
        take_stretch<512>(&p);
}
