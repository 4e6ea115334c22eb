/* SPDX-License-Identifier: MIT
 * Part of dist.cu over joined lists, included by it: which group comes next, and values of entries that become values
 * of slots, by the list's map from slots to entries; an invalid slot gets 0.
 *
 * The values of a group stand in one of two buffers of the CTA in memory, small enough for the caches. Producers move a
 * share of them after each tile that they bring for the next group, while its places are in use. The CTA's last group
 * is moved by all warps.
 *
 * A group's number, length and first keys are loaded while the group before is worked on. Producers tell consumers of
 * each group with entries. */
#ifndef ATTN_SM90_DIST_JOINED_H
#define ATTN_SM90_DIST_JOINED_H

constexpr uint32_t NO_SLOT = 0xffff;

/* ------------------------------------------------------------------ groups ------------------------- */

/* The numbers of the CTA's next two groups, -1: none, and the entries of the first; where the second stands among the
 * launch's groups, and how many these are. */
struct ahead {
    int number[2], entries, second, all;
};
static __device__ __forceinline__ int number_of(const params *kp, const struct ahead *a, int place) {
    if (place >= a->all) return -1;
    return kp->work ? ((const int32_t *)kp->work)[KP_JOINED_WORK_LISTS + place] : (int)kp->from + place;
}
static __device__ __forceinline__ const int32_t *words_of(const params *kp, int number) {
    return joined_group_of(&kp->joined, kp->in.seq_q, number).words;
}
static __device__ __forceinline__ int length_of(const params *kp, int number) {
    return number < 0 ? 0 : words_of(kp, number)[KP_JOINED_ENTRIES];
}
static __device__ __forceinline__ struct ahead look_ahead(const params *kp) {
    struct ahead a;
    a.all = kp->work ? ((const int32_t *)kp->work)[KP_JOINED_WORK_GROUPS] : (int)(kp->until - kp->from);
    a.second = (int)(blockIdx.x + gridDim.x);
    a.number[0] = number_of(kp, &a, (int)blockIdx.x), a.number[1] = number_of(kp, &a, a.second);
    a.entries = length_of(kp, a.number[0]);
    return a;
}
/* Nonzero if there is another group. */
static __device__ __forceinline__ int next_group(const params *kp, struct ahead *a, struct piece *x) {
    x->number = a->number[0];
    if (x->number < 0) return 0;
    x->g = joined_group_of(&kp->joined, kp->in.seq_q, x->number);
    x->w.head = 0, x->w.b = x->g.b, x->w.i = x->g.query;
    x->s.idx = x->g.words + kp->joined.keys;
    x->s.n = a->entries;
    x->s.keys = (uint32_t)kp->in.seq_k;
    x->first = 0, x->last = (x->s.n + 63) / 64;
    a->second += (int)gridDim.x;
    a->number[0] = a->number[1], a->number[1] = number_of(kp, a, a->second);
    a->entries = length_of(kp, a->number[0]);
    return 1;
}
/* Of the group after this one, tile t, 0 or 1: lists are written in blocks of two tiles. */
static __device__ __forceinline__ struct indices first_keys(const params *kp, const struct ahead *a, uint32_t t) {
    if (a->number[0] < 0) return {-1, -1};
    const int32_t *from = words_of(kp, a->number[0]) + kp->joined.keys + t * 64 + (threadIdx.x & 31);
    return {from[0], from[32]};
}

/* ------------------------------------------------------------------ values ------------------------- */

/* Of the CTA's n-th group with entries, from 0: its buffer, and its barriers' phase. */
static __device__ __forceinline__ float *values_of(const params *kp, uint32_t n) {
    return (float *)kp->values + ((int64_t)blockIdx.x * 2 + (n & 1)) * kp->joined.group * kp->row;
}
static __device__ __forceinline__ void wait_values(uint32_t shared, uint32_t n) {
    mbar_wait(shared + VALUES_FULL + 8 * (n & 1), n >> 1 & 1);
}
/* The buffer has been read since it was written last. */
static __device__ __forceinline__ void wait_buffer(uint32_t shared, uint32_t n) {
    mbar_wait(shared + VALUES_FREE + 8 * (n & 1), (n >> 1 & 1) ^ 1);
}

/* Pairs of slots of a query. */
static __device__ __forceinline__ int pairs_of(const params *kp) { return recompute(kp->in.topk + 1) / 2; }

/* Of the group's pairs N, those below `end`: first, first + step, ... */
template <int N>
static __device__ __forceinline__ void move_pairs(const params *kp, const struct joined_group *g, const float *values,
                                                  int first, int step, int end) {
    const int pairs = pairs_of(kp);
    float value[N][2];
    int query[N];
    uint32_t pair[N];
#pragma unroll
    for (int x = 0; x < N; x++) {
        const int i = first + x * step;
        query[x] = (int)((uint32_t)i / (uint32_t)pairs);
        pair[x] = ~0u;
        if (i < end)
            pair[x] = (uint32_t)g->words[kp->joined.slots + query[x] * kp->joined.slots_row + i - query[x] * pairs];
    }
#pragma unroll
    for (int x = 0; x < N; x++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t entry = e ? pair[x] >> 16 : pair[x] & 0xffff;
            value[x][e] = entry == NO_SLOT ? 0 : values[query[x] * (int64_t)kp->row + entry];
        }
#pragma unroll
    for (int x = 0; x < N; x++) {
        const int i = first + x * step, t = 2 * (i - query[x] * pairs);
        float *to = (float *)kp->dist.data + g->b * kp->dist.batch + (g->query + query[x]) * kp->dist.row + t;
        if (i < end) to[0] = value[x][0];
        if (i < end && t + 1 < kp->in.topk) to[1] = value[x][1];
    }
}

/* What producers have still to move of the last group: 4 pairs a thread, `n` times; it was the CTA's filled-th. */
struct slots_left {
    int number, n, moved;
    uint32_t filled;
};
constexpr int MOVED = 4 * 2 * (int)PRODUCERS; /* pairs at a time */
static __device__ __forceinline__ void bring_slots(const params *kp, struct slots_left *x, uint32_t shared, int share) {
    if (x->n == 0) return;
    if (x->moved == 0) wait_values(shared, x->filled);
    const struct joined_group g = joined_group_of(&kp->joined, kp->in.seq_q, recompute(x->number));
    const float *values = values_of(kp, (uint32_t)recompute((int)x->filled));
    const int thread = recompute((int)threadIdx.x) & 127;
#pragma unroll 1
    for (; share > 0 && x->n > 0; share--, x->n--, x->moved++)
        move_pairs<4>(kp, &g, values, MOVED * x->moved + thread, 2 * PRODUCERS, g.queries * pairs_of(kp));
    if (x->n > 0) return;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbar_arrive(shared + VALUES_FREE + 8 * (x->filled & 1));
}
/* All threads: of the CTA's last group with entries, number `number` and its n-th. */
static __device__ __forceinline__ void bring_last_slots(const params *kp, uint32_t shared, int number, uint32_t n) {
    const struct joined_group g = joined_group_of(&kp->joined, kp->in.seq_q, number);
    const float *values = values_of(kp, n);
    const int end = g.queries * pairs_of(kp);
    wait_values(shared, n);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < end; i += 8 * KP_MLA_FWD_SM90_THREADS)
        move_pairs<8>(kp, &g, values, i, KP_MLA_FWD_SM90_THREADS, end);
}
/* Producers: of a group without entries. */
static __device__ __forceinline__ void clear_slots(const params *kp, const struct joined_group *g) {
    for (int query = 0; query < g->queries; query++) {
        float *to = (float *)kp->dist.data + g->b * kp->dist.batch + (g->query + query) * kp->dist.row;
        for (int t = (int)threadIdx.x & 127; t < kp->in.topk; t += 128) to[t] = 0;
    }
}

/* The sums over each query's heads for entries g, g + 8 of the warp, to values of the tile's first entry on. A lane has
 * columns 8 j + 2 t + {0, 1}: all of a query's heads are in one, two or four j of a quad, or in two lanes of one j. */
static __device__ __forceinline__ void store_queries(const struct state *c, const float s[SUMS], uint32_t lse_at,
                                                     const params *kp, float *values) {
    const int t = c->lane & 3, shift = kp->joined.shift;
    float sum[8][2];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 lse = shared_load_pair(lse_at + 8 * (uint32_t)t + 32 * (uint32_t)j);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float x = exp2_fast(__fmaf_rn(s[4 * j + 2 * r], kp->in.scale_log2, -lse.x)),
                        y = exp2_fast(__fmaf_rn(s[4 * j + 2 * r + 1], kp->in.scale_log2, -lse.y));
            sum[j][r] = (lse.x == INF ? 0 : x) + (lse.y == INF ? 0 : y);
        }
    }
#pragma unroll
    for (int size = 4; size >= 2; size /= 2) /* 16, then 32 columns a query */
        if (shift > (size == 4 ? 3 : 4)) {
#pragma unroll
            for (int j = 0; j < size; j++)
                sum[j][0] = sum[2 * j][0] + sum[2 * j + 1][0], sum[j][1] = sum[2 * j][1] + sum[2 * j + 1][1];
        }
    const int queries = shift > 3 ? 64 >> shift : 8; /* as many sums */
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j >= queries) break;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = sum[j][r] + __shfl_xor_sync(~0u, sum[j][r], 1);
            const float other = __shfl_xor_sync(~0u, x, 2);
            if (shift > 2) x += other;
            const int query = shift > 2 ? j : 2 * j + (t >> 1);
            const int writes = shift > 2 ? t == (j & 3) : !(t & 1);
            if (writes && query < kp->joined.group) values[query * (int64_t)kp->row + 8 * r] = x * kp->factor;
        }
    }
}

/* ------------------------------------------------------------------ roles -------------------------- */

static __device__ __forceinline__ void produce(const params *kp, const struct work, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    struct producer c = start_producer(shared);
    uint32_t n = 0; /* tiles of the CTA so far */
    struct piece x;
    struct slots_left left = {0, 0, 0, ~0u};
    struct ahead a = look_ahead(kp);
    struct indices keys = first_keys(kp, &a, c.ring);
    while (next_group(kp, &a, &x)) {
        const uint32_t own = (n ^ c.ring) & 1; /* this ring's first tile */
        n += (uint32_t)x.last;
        struct indices next = keys;
        keys = first_keys(kp, &a, (n ^ c.ring) & 1);
        if (x.last == 0) {
            clear_slots(kp, &x.g);
            continue;
        }
        const uint16_t *base = (const uint16_t *)p->kv.data + x.w.b * p->kv.batch + ((int)threadIdx.x & 7) * 8;
        int t = (int)own;
        const int rest = (x.last - t - 1) / 2; /* tiles after the first */
        const int share = rest > 0 ? (left.n + rest - 1) / rest : left.n;
        struct keys r;
        find_keys(&r, &x.s, next);
        next = load_indices(&x.s, t + 2);
        fill_first(&c, &r, kp, &x, base, t < x.last);
        c.round_q++;
#pragma unroll 1
        for (t += 2; t < x.last || left.n; t += 2) {
            if (t < x.last) {
                find_keys(&r, &x.s, next);
                next = load_indices(&x.s, t + 2);
                fill_tile(&c, &r, &p->kv, base);
            }
            bring_slots(kp, &left, shared, share);
        }
        left = {x.number, (x.g.queries * pairs_of(kp) + MOVED - 1) / MOVED, 0, left.filled + 1};
    }
    if (threadIdx.x == 256) {
        mbar_wait(shared + Q_FREE, (c.round_q & 1) ^ 1);
        shared_store32x2(shared + GROUP_AT, (uint32_t)left.number, 0);
        mbar_arrive(shared + GROUP_FULL);
    }
    if (left.n) bring_last_slots(kp, shared, left.number, left.filled);
}

template <int WG> static __device__ __forceinline__ void consume(const params *kp, const struct work, uint32_t shared) {
    struct state c = start_consumer(shared);
    const int head = (int)threadIdx.x & 127;
    uint32_t n = 0, odd = 0; /* tiles of the CTA, groups of the warpgroup so far */
    for (;; c.round_q++) {
        mbar_wait(shared + GROUP_FULL, c.round_q & 1);
        const uint2 group = shared_load32x2(shared + GROUP_AT);
        if (group.y == 0) {
            if (c.round_q) bring_last_slots(kp, shared, (int)group.x, c.round_q - 1);
            return;
        }
        struct piece x;
        x.g = joined_group_of(&kp->joined, kp->in.seq_q, (int)group.x);
        x.w = {x.g.b, x.g.query, 0};
        x.last = (int)group.y;
        int t = (int)((n ^ WG) & 1), first = 1;
        n += group.y;
        const uint32_t lse_at = shared + LSE_AT + (2 * WG + (odd & 1)) * 64 * 4;
        odd += t < x.last;
        const uint32_t lse = load_lse(kp, &x, head);
        float *to = values_of(kp, c.round_q) + c.warp * 16 + (c.lane >> 2);
#pragma unroll 1
        for (; t < x.last; t += 2) {
            float s[SUMS];
            uint32_t mask[2];
            score_tile<WG>(&c, s, mask, first, t + 2 >= x.last);
            if (first) {
                if (head < 64) shared_store32(lse_at + 4 * (uint32_t)head, __float_as_uint(lse_of(kp, &x, lse, head)));
                wait_buffer(shared, c.round_q);
                named_sync(1 + WG, 128);
            }
            first = 0;
            store_queries(&c, s, lse_at, kp, to + t * 64);
        }
        if (first) pass_q(&c);
        arrive_warp(&c, shared + VALUES_FULL + 8 * (c.round_q & 1));
    }
}
#endif
