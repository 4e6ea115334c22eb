/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward with rows of 16 bits a number: steps of its sums over the slots of kv rows, in f32.
 * A variant for each. The first three are a pass of a stable radix sort of the slots by the row of `sum` they name,
 * as in mla_bwd_sort.cu, but of several chunks of queries side by side, each for itself, with all loads of a thread
 * under way at once, and a CTA for each digit in SCAN.
 *
 *   COUNT    a CTA takes KP_MLA_SORT_BLOCK slots of a chunk: how often each digit occurs -> counts[digit][block]. First
 *            pass: index lists -> keys[1], B * SK for a slot that is not valid
 *   SCAN     counts --a CTA a chunk and digit--> scanned: what stands before of the digit; totals: how many it has
 *   SCATTER  the slots of COUNT, warp by warp and lane by lane: each goes to its digit's place, digit by digit
 *   WALK     segmented_sum.h, of all of a chunk's list: a team for each segment --> sum, parts
 *   JOIN     fixup: a team for each segment, of a CTA of WALK or of a warp of an overlapped sum, in which a kv row's
 *            slots begin and do not end: parts, in order --> + sum[kv row]. Launched early it needs nothing of the
 * kernel
 *            before, and ends after it
 *
 * Shared memory: COUNT 1 KiB, SCAN 32 bytes, SCATTER 41.1 KiB, WALK 30 KiB. */
#include "kernels/device/grid.h"
#include "kernels/device/slots.h"
#include "kernels/device/block_scan.h"
#include "kernels/sm90/mla_bwd/segmented_sum.h"

constexpr int STEP = CFG_STEP, THREADS = CFG_THREADS, WARPS = THREADS / 32, DIGITS = 256;
constexpr int SORT_THREADS = DIGITS, SORT_WARPS = SORT_THREADS / 32, ROUNDS = KP_MLA_SORT_BLOCK / SORT_THREADS;
static_assert(STEP > KP_MLA_ROWS_SCATTER || THREADS == SORT_THREADS, "a thread a digit");
static_assert(STEP <= KP_MLA_ROWS_SCATTER || THREADS == KP_MLA_ROWS_THREADS, "teams");

/* ------------------------------------------------------------------ sort --------------------------- */

/* What a CTA of COUNT or SCATTER takes: block `index` of a chunk of queries from `first` on, which have n slots. */
struct block {
    uint32_t chunk, index, first, n;
};
static __device__ __forceinline__ struct block own_block(const struct kp_mla_bwd_rows *p) {
    struct block x;
    x.chunk = blockIdx.x / (uint32_t)p->bwd.sort_blocks;
    x.index = blockIdx.x - x.chunk * (uint32_t)p->bwd.sort_blocks;
    const int64_t before = x.chunk * p->chunk;
    x.first = (uint32_t)(p->bwd.first + before); /* numbers of queries are below 2^31 */
    x.n = (uint32_t)(min(p->chunk, p->bwd.n - before) * p->bwd.in.topk);
    return x;
}
/* Keys or slots of its chunk, of those of all. */
static __device__ __forceinline__ uint32_t *list_at(const struct kp_mla_bwd_rows *p, uint64_t all,
                                                    const struct block *b) {
    return (uint32_t *)all + b->chunk * p->list;
}
/* counts, scanned [digit][block] of a chunk */
static __device__ __forceinline__ uint32_t *table_of(const struct kp_mla_bwd_rows *p, uint64_t all, uint32_t chunk) {
    return (uint32_t *)all + (uint64_t)chunk * DIGITS * (uint32_t)p->bwd.sort_blocks;
}

static __device__ __forceinline__ uint32_t digit_of(const struct kp_mla_bwd *p, uint32_t key) {
    return key >> p->digit & (DIGITS - 1);
}
/* Slot e of a chunk is slot e % TOPK of its query e / TOPK. */
static __device__ __forceinline__ uint32_t key_of(const struct kp_mla_bwd *p, uint32_t first, uint32_t e) {
    const uint32_t query = e / (uint32_t)p->in.topk, t = e - query * (uint32_t)p->in.topk;
    const uint32_t flat = first + query, b = flat / (uint32_t)p->in.seq_q;
    const struct slots s = slots_of(&p->in, b, flat - b * (uint32_t)p->in.seq_q);
    const int idx = (int)t < s.n ? s.idx[t] : -1;
    return (uint32_t)(slot_valid(&s, idx) ? b * p->in.seq_k + idx : p->in.batch * p->in.seq_k);
}
/* Of the x-th round, the thread's slot. */
static __device__ __forceinline__ uint32_t slot_at(const struct block *b, int x) {
    const uint32_t thread = threadIdx.x, warp = thread >> 5;
    return b->index * KP_MLA_SORT_BLOCK + warp * (KP_MLA_SORT_BLOCK / SORT_WARPS) + 32 * (uint32_t)x + (thread & 31);
}
/* The thread's keys, of the pass that reads `from`: 0 or 1, in the first pass 1. */
static __device__ __forceinline__ void load_keys(const struct kp_mla_bwd_rows *p, const struct block *b,
                                                 uint32_t key[ROUNDS]) {
    const uint32_t *keys = list_at(p, p->bwd.keys[p->bwd.from & 1], b);
#pragma unroll
    for (int x = 0; x < ROUNDS; x++) key[x] = slot_at(b, x) < b->n ? keys[slot_at(b, x)] : 0;
}

static __device__ __forceinline__ void count_block(const struct kp_mla_bwd_rows *q) {
    __shared__ uint32_t count[DIGITS];
    const struct kp_mla_bwd *p = &q->bwd;
    const struct block b = own_block(q);
    count[threadIdx.x] = 0;
    __syncthreads();
    if (p->from < 0) {
        uint32_t *keys = list_at(q, p->keys[1], &b);
#pragma unroll 4
        for (int x = 0; x < ROUNDS; x++) {
            if (slot_at(&b, x) >= b.n) continue;
            const uint32_t key = key_of(p, b.first, slot_at(&b, x));
            keys[slot_at(&b, x)] = key;
            atomicAdd(&count[digit_of(p, key)], 1u);
        }
    } else {
        uint32_t key[ROUNDS];
        load_keys(q, &b, key);
#pragma unroll
        for (int x = 0; x < ROUNDS; x++)
            if (slot_at(&b, x) < b.n) atomicAdd(&count[digit_of(p, key[x])], 1u);
    }
    __syncthreads();
    table_of(q, p->counts, b.chunk)[threadIdx.x * (uint32_t)p->sort_blocks + b.index] = count[threadIdx.x];
}

/* The sum of x over the CTA, to all threads; *before: over the threads before. */
static __device__ __forceinline__ uint32_t sum_all(uint32_t x, uint32_t *before) {
    __shared__ uint32_t share[WARPS];
    const uint32_t sum = sum_to_lane(x);
    __syncthreads(); /* the last sums are read */
    const struct warp_sums warps = sum_warps(sum, share);
    *before = warps.before + sum - x;
    return warps.all;
}
static __device__ __forceinline__ void scan_digit(const struct kp_mla_bwd_rows *p) {
    const uint32_t blocks = (uint32_t)p->bwd.sort_blocks, first = blockIdx.x % DIGITS * blocks;
    const uint32_t *counts = table_of(p, p->bwd.counts, blockIdx.x / DIGITS) + first;
    uint32_t *to = table_of(p, p->scanned, blockIdx.x / DIGITS) + first, base = 0;
    for (uint32_t start = 0; start < blocks; start += THREADS) {
        const uint32_t i = start + threadIdx.x, own = i < blocks ? counts[i] : 0;
        uint32_t before;
        const uint32_t all = sum_all(own, &before);
        if (i < blocks) to[i] = base + before;
        base += all;
    }
    if (threadIdx.x == 0) ((uint32_t *)p->totals)[blockIdx.x] = base;
}

/* The block is put in order in shared memory first: a warp's stores then name a few lines, not 32. */
static __device__ __forceinline__ void scatter_block(const struct kp_mla_bwd_rows *q) {
    __shared__ uint32_t place[SORT_WARPS][DIGITS], away[DIGITS];
    __shared__ uint2 ordered[KP_MLA_SORT_BLOCK];
    const struct kp_mla_bwd *p = &q->bwd;
    const struct block b = own_block(q);
    const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int to = (p->from + 1) & 1;                 /* -1 -> 0, 0 -> 1, 1 -> 0 */
    uint32_t key[ROUNDS], slot[ROUNDS], rank[ROUNDS]; /* rank: among the warp's of the same digit */
    const uint32_t base = table_of(q, q->scanned, b.chunk)[thread * (uint32_t)p->sort_blocks + b.index];
    const uint32_t total = ((const uint32_t *)q->totals)[b.chunk * DIGITS + thread];
    load_keys(q, &b, key);
    const uint32_t *slots = list_at(q, p->slots[p->from & 1], &b);
#pragma unroll
    for (int x = 0; x < ROUNDS; x++)
        slot[x] = p->from < 0 ? slot_at(&b, x) : slot_at(&b, x) < b.n ? slots[slot_at(&b, x)] : 0;
    for (uint32_t w = 0; w < SORT_WARPS; w++) place[w][thread] = 0;
    __syncthreads();
#pragma unroll
    for (int x = 0; x < ROUNDS; x++) {
        const int there = slot_at(&b, x) < b.n;
        const uint32_t digit = digit_of(p, key[x]), equal = __match_any_sync(~0u, there ? digit : DIGITS);
        const uint32_t others = place[warp][digit];
        rank[x] = others + (uint32_t)__popc(equal & ((1u << lane) - 1));
        __syncwarp();
        if (there && lane == (uint32_t)__ffs((int)equal) - 1) place[warp][digit] = others + (uint32_t)__popc(equal);
        __syncwarp();
    }
    __syncthreads();
    uint32_t all = 0, own, smaller;
    for (uint32_t w = 0; w < SORT_WARPS; w++) all += place[w][thread];
    sum_all(all, &own);
    sum_all(total, &smaller);
    away[thread] = smaller + base - own;
    place_warps(place, own);
    __syncthreads();
#pragma unroll
    for (int x = 0; x < ROUNDS; x++)
        if (slot_at(&b, x) < b.n) ordered[place[warp][digit_of(p, key[x])] + rank[x]] = make_uint2(key[x], slot[x]);
    __syncthreads();
    uint32_t *keys_to = list_at(q, p->keys[to], &b), *slots_to = list_at(q, p->slots[to], &b);
    for (uint32_t i = thread; i < KP_MLA_SORT_BLOCK && b.index * KP_MLA_SORT_BLOCK + i < b.n; i += SORT_THREADS) {
        const uint2 y = ordered[i];
        const uint32_t target = away[digit_of(p, y.x)] + i;
        keys_to[target] = y.x;
        slots_to[target] = y.y;
    }
}

/* ------------------------------------------------------------------ join --------------------------- */

/* The last segment that begins with this key; `segment` does. */
static __device__ __forceinline__ uint32_t last_of_key(const struct list *l, uint32_t key, uint32_t segment) {
    const uint32_t n = n_segments_of(l);
    uint32_t step = 1;
    for (; segment + step < n && l->keys[(segment + step) * l->length] == key; step *= 2) segment += step;
    for (; step > 0; step /= 2)
        if (segment + step < n && l->keys[(segment + step) * l->length] == key) segment += step;
    return segment;
}

template <int TEAM> static __device__ __forceinline__ void fixup(const struct kp_mla_bwd_rows *p, uint32_t s, int c) {
    const struct list l = list_of(p);
    const struct segment own = segment_of(&l, s, l.length);
    const uint32_t key = l.keys[own.end - 1];
    if (key == l.none || !goes_on(&l, &own, key)) return;
    if (l.keys[own.from] == key && began_before(&l, &own, key)) return; /* a segment before has it */
    const uint32_t last = last_of_key(&l, key, s + 1);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 4
    for (uint32_t x = s; x <= last; x++) add_part(sum, part_at(p, x, x == s, TEAM, c));
    add_to_sum(&p->bwd, key, sum, c);
}

template <int DIM> static __device__ __forceinline__ void run_step(const struct kp_mla_bwd_rows *p) {
    constexpr int TEAM = KP_MLA_ROWS_TEAM(DIM);
    const uint32_t team = threadIdx.x / TEAM, s = blockIdx.x * TEAMS + team;
    const int c = (int)threadIdx.x % TEAM;
    if (STEP == KP_MLA_ROWS_SUM) {
        struct ends *ends = shared_ends();
        const struct segments *x = load_segments(p);
        if (team < TEAMS && p->bwd.head_blocks == 1)
            sum_segment<TEAM, true>(p, s, c, x->keys[team], x->slots[team], x->units[team], ends->part[team]);
        else if (team < TEAMS)
            sum_segment<TEAM, false>(p, s, c, x->keys[team], x->slots[team], x->units[team], ends->part[team]);
        __syncthreads();
        if (team < TEAMS) fixup_teams<TEAM>(p, team, c, x, ends);
    } else {
        if (team < TEAMS && (uint64_t)s * (uint64_t)p->segment < (uint64_t)p->n) fixup<TEAM>(p, s, c);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_mla_bwd_rows p) {
    if (STEP == KP_MLA_ROWS_COUNT)
        count_block(&p);
    else if (STEP == KP_MLA_ROWS_SCAN)
        scan_digit(&p);
    else if (STEP == KP_MLA_ROWS_SCATTER)
        scatter_block(&p);
    else if (p.bwd.in.dim_qk == 576)
        run_step<576>(&p);
    else
        run_step<512>(&p);
    if (STEP == KP_MLA_ROWS_FIXUP) grid_wait();
}
