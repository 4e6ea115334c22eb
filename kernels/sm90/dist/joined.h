/* SPDX-License-Identifier: MIT
 * Part of dist.cu over joined lists, included by it: which group comes next, and values of entries that become values
 * of slots, by the list's map from slots to entries; an invalid slot gets 0.
 *
 * CTA c takes groups c, c + grid, ...; the tiles of what is left over at the end are shared evenly: a CTA has a run of
 * them, which may begin and end within a group. A piece is a group, or what a group has of that run: it has the values
 * of its entries, and writes the slots that name these; a group's first piece invalid slots, too.
 *
 * The values of a piece stand in one of two buffers of the CTA in memory, small enough for the caches. A warpgroup that
 * does nothing else brings Q of a piece, and moves the values of the piece before while consumers work on it: warps
 * that gather keys wait for neither. The CTA's last piece is moved by that warpgroup and the consumers.
 *
 * A piece's number, end and first keys are loaded while the piece before is worked on. Warpgroup 3 tells consumers of
 * each piece; warps that gather keys find the pieces by themselves. */
#ifndef ATTN_SM90_DIST_JOINED_H
#define ATTN_SM90_DIST_JOINED_H

constexpr uint32_t NO_SLOT = 0xffff;

/* ------------------------------------------------------------------ pieces ------------------------- */

/* The CTA's next piece and the one after it: place of its group in the launch's list of joined ones, -1: there is none;
 * the group's number and tiles, and the piece's first one. Places below `whole` are of whole groups, one a round; of
 * what is left over the CTA has still `left` tiles to take, the first of which is tile `start_tile` of the group at
 * place `start`. */
struct ahead {
    int whole, left, start, start_tile;
    int place[2], number[2], tiles[2], first;
};
/* Once the next piece is known: the one after it. */
static __device__ __forceinline__ void look_at_second(const params *kp, struct ahead *a) {
    const int32_t *groups = (const int32_t *)kp->work + KP_JOINED_WORK_LISTS,
                  *tiles = groups + (kp->until - kp->from) * (1 + kp->joined.group);
    int place = a->place[0];
    a->first = place == a->start ? a->start_tile : 0;
    if (place >= a->whole) {
        place = a->left > a->tiles[0] - a->first ? place + 1 : -1;
    } else if (place >= 0) {
        place += (int)gridDim.x;
        if (place >= a->whole) place = a->left ? a->start : -1;
    }
    a->place[1] = place;
    a->number[1] = a->tiles[1] = 0;
    if (place >= 0) a->number[1] = groups[place], a->tiles[1] = tiles[place];
}
static __device__ __forceinline__ struct ahead look_ahead(const params *kp) {
    const int32_t *work = (const int32_t *)kp->work, *groups = work + KP_JOINED_WORK_LISTS;
    const int n = (int)(kp->until - kp->from);
    const int32_t *tiles = groups + (int64_t)n * (1 + kp->joined.group), *starts = tiles + n + 2 * blockIdx.x;
    const uint32_t over = (uint32_t)work[KP_JOINED_WORK_TILES];
    struct ahead a = {};
    a.whole = (int)((uint32_t)work[KP_JOINED_WORK_GROUPS] / gridDim.x * gridDim.x);
    a.left = (int)(over * (blockIdx.x + 1) / gridDim.x - over * blockIdx.x / gridDim.x);
    a.start = -1;
    if (a.left) a.start = starts[0], a.start_tile = starts[1];
    const int place = a.whole ? (int)blockIdx.x : a.start;
    a.place[0] = place;
    if (place >= 0) a.number[0] = groups[place], a.tiles[0] = tiles[place];
    look_at_second(kp, &a);
    return a;
}
static __device__ __forceinline__ const int32_t *words_of(const params *kp, int number) {
    return joined_group_of(&kp->joined, kp->in.seq_q, number).words;
}
/* Nonzero if there is another piece. */
static __device__ __forceinline__ int next_piece(const params *kp, struct ahead *a, struct piece *x) {
    if (a->place[0] < 0) return 0;
    x->number = a->number[0];
    x->g = joined_group_of(&kp->joined, kp->in.seq_q, x->number);
    x->w.head = 0, x->w.b = x->g.b, x->w.i = x->g.query;
    x->first = a->first, x->last = a->tiles[0];
    if (a->place[0] >= a->whole) {
        x->last = min(x->last, x->first + a->left);
        a->left -= x->last - x->first;
    }
    x->whole = x->first == 0 && x->last == a->tiles[0];
    x->s.idx = x->g.words + kp->joined.keys;
    x->s.n = 64 * x->last;
    x->s.keys = (uint32_t)kp->in.seq_k;
    a->place[0] = a->place[1], a->number[0] = a->number[1], a->tiles[0] = a->tiles[1];
    look_at_second(kp, a);
    return 1;
}
/* Of the piece after this one, tile t, 0 or 1. */
static __device__ __forceinline__ struct indices first_keys(const params *kp, const struct ahead *a, int t) {
    if (a->place[0] < 0 || a->first + t >= a->tiles[0]) return {-1, -1};
    const int32_t *from = words_of(kp, a->number[0]) + kp->joined.keys + (a->first + t) * 64 + ((int)threadIdx.x & 31);
    return {from[0], from[32]};
}

/* ------------------------------------------------------------------ values ------------------------- */

/* Of the CTA's n-th piece, from 0: its buffer, and its barriers' phase. */
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

/* What a piece writes: of group `number` slots of the entries low .. low + n - 1; whole: those are all of it. */
struct piece_slots {
    int number, whole;
    uint32_t low, n;
};
static __device__ __forceinline__ struct piece_slots slots_of_piece(const struct piece *x) {
    return {x->number, x->whole, (uint32_t)x->first * 64, (uint32_t)(x->last - x->first) * 64};
}
/* Slot `slot` of the group's query `query`, a multiple of 4, and the three after it. */
struct quad {
    int query, slot;
};
/* The map from slots to entries of a group of `queries`, and their rows of dist. */
struct group_slots {
    int queries;
    const int32_t *map;
    float *dist;
};
static __device__ __forceinline__ struct group_slots group_slots_of(const params *kp, const struct joined_group *g) {
    return {g->queries, g->words + kp->joined.slots,
            (float *)kp->dist.data + g->b * kp->dist.batch + g->query * kp->dist.row};
}
/* Entries of four slots, two in a word; all bits set where there is none. */
static __device__ __forceinline__ uint2 load_entries(const params *kp, const struct group_slots *g, struct quad q) {
    if (q.slot >= kp->in.topk || q.query >= g->queries) return make_uint2(~0u, ~0u);
    const int32_t *from = g->map + q.query * kp->joined.slots_row + q.slot / 2;
    if (!((uintptr_t)from & 7)) return *(const uint2 *)from;
    return make_uint2((uint32_t)from[0], (uint32_t)from[1]);
}
static __device__ __forceinline__ uint32_t entry_of_quad(uint2 entries, int e) {
    return (e < 2 ? entries.x : entries.y) >> 16 * (e & 1) & 0xffff;
}
/* Their values, and in a bit each which of them the piece writes. */
static __device__ __forceinline__ uint32_t load_values(const params *kp, const struct piece_slots *s,
                                                       const float *values, struct quad q, uint2 entries,
                                                       float (&value)[4]) {
    const float *from = values + q.query * (int64_t)kp->row;
    if (s->whole) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t entry = entry_of_quad(entries, e);
            value[e] = 0;
            if (entry != NO_SLOT) value[e] = from[entry];
        }
        return 15;
    }
    uint32_t has = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const uint32_t entry = entry_of_quad(entries, e);
        const int own = entry - s->low < s->n;
        value[e] = 0;
        if (own) value[e] = from[entry];
        has |= (uint32_t)(own || (entry == NO_SLOT && s->low == 0)) << e;
    }
    return has;
}
static __device__ __forceinline__ void write_values(const params *kp, const struct group_slots *g, struct quad q,
                                                    const float (&value)[4], uint32_t has) {
    const int rest = kp->in.topk - q.slot;
    if (rest <= 0 || q.query >= g->queries) return;
    float *to = g->dist + q.query * kp->dist.row + q.slot;
    if (has == 15 && rest >= 4 && !((uintptr_t)to & 15)) {
        *(float4 *)to = make_float4(value[0], value[1], value[2], value[3]);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < rest && has >> e & 1) to[e] = value[e];
}

/* Of the CTA's n-th piece, by THREADS_OF threads, of which this is number `thread`: the entries of N times four slots a
 * thread, then their values, then all to `dist`. */
template <int THREADS_OF>
static __device__ __forceinline__ void bring_slots(const params *kp, uint32_t shared, const struct piece_slots s,
                                                   uint32_t n, int thread) {
    constexpr int N = 4;
    const struct joined_group group = joined_group_of(&kp->joined, kp->in.seq_q, s.number);
    const struct group_slots g = group_slots_of(kp, &group);
    const float *values = values_of(kp, n);
    const int quads = (kp->in.topk + 3) / 4, all = g.queries * quads;
    wait_values(shared, n);
#pragma unroll 1
    for (int first = thread; first < all; first += N * THREADS_OF) {
        float value[N][4];
        uint32_t has[N];
        uint2 entries[N];
        struct quad q[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at_quad = first + i * THREADS_OF;
            q[i].query = at_quad / quads;
            q[i].slot = 4 * (at_quad - q[i].query * quads);
            entries[i] = load_entries(kp, &g, q[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) has[i] = load_values(kp, &s, values, q[i], entries[i], value[i]);
#pragma unroll
        for (int i = 0; i < N; i++) write_values(kp, &g, q[i], value[i], has[i]);
    }
    if (THREADS_OF != 128) return; /* the last piece: nobody waits */
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbar_arrive(shared + VALUES_FREE + 8 * (n & 1));
}

/* Lanes d apart share N sums of theirs: the one with `upper` set keeps the upper half of the indices. */
template <int N> static __device__ __forceinline__ void share_sums(float *x, int upper, int d) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float own = upper ? x[i + N / 2] : x[i], other = upper ? x[i] : x[i + N / 2];
        x[i] = own + __shfl_xor_sync(~0u, other, d);
    }
}
/* From x[j][r], the sums of a lane's two columns of block j for entries g, g + 8, to sums over each query's
 * 2^SHIFT heads, and to their places: each lane of a quad writes those of some queries, below `queries`. */
template <int SHIFT>
static __device__ __forceinline__ void store_sums(const params *kp, float x[16], int t, float *values, int queries) {
    constexpr int BLOCKS = SHIFT > 3 ? 1 << (SHIFT - 3) : 1, N = 8 / BLOCKS; /* blocks of a query; N queries or pairs */
#pragma unroll
    for (int size = 4; size >= N; size /= 2)
#pragma unroll
        for (int j = 0; j < size; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) x[2 * j + r] = x[4 * j + r] + x[4 * j + 2 + r];
    share_sums<2 * N>(x, t & 1, 1);
    constexpr int KEPT = SHIFT > 2 ? N / 2 : N; /* sums of a lane */
    if (SHIFT == 6) {                           /* of entry g + 8 (t & 1) a lane of either half */
        x[0] += __shfl_xor_sync(~0u, x[0], 2);
        if (t < 2) values[8 * t] = x[0] * kp->factor;
        return;
    }
    if (SHIFT > 2) share_sums<N>(x, t >> 1, 2);
    if (SHIFT == 5) { /* a query for the lanes of either parity, one entry of two a lane */
        if ((t & 1) < queries) values[(t & 1) * (int64_t)kp->row + 8 * (t >> 1)] = x[0] * kp->factor;
        return;
    }
    const int first = SHIFT == 2 ? 8 * (t & 1) + (t >> 1) : N / 2 * (t & 1) + N / 4 * (t >> 1);
    constexpr int APART = SHIFT == 2 ? 2 : 1; /* numbers of the lane's queries */
    float *to = values + first * (int64_t)kp->row;
#pragma unroll
    for (int i = 0; i < KEPT; i++, to += i & 1 ? 0 : APART * kp->row)
        if (first + i / 2 * APART < queries) to[8 * (i & 1)] = x[i] * kp->factor;
}
/* The sums over each query's heads for entries g, g + 8 of the warp, to values of the tile's first entry on. A lane has
 * columns 8 j + 2 t + {0, 1}: all of a query's heads are in one, two, four or eight j of a quad, or in two lanes of one
 * j. lse: where the lane's pairs of columns have theirs. */
constexpr int LSE_KEPT = PARTS == 3; /* in registers from tile to tile; else there is no room */
static __device__ __forceinline__ void load_lses(float2 (&lses)[8], uint32_t lse) {
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) lses[j] = shared_load_pair(lse + 32 * j);
}
static __device__ __forceinline__ void store_queries(const struct state *c, const float s[SUMS], float2 (&lses)[8],
                                                     uint32_t lse_at, const params *kp, float *values) {
    const int t = c->lane & 3;
#pragma unroll
    for (int half = 0; half < COLUMNS / 64; half++) {
        float sum[16];
        if (!LSE_KEPT) load_lses(lses, lse_at + 256 * (uint32_t)half);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 lse = lses[j]; /* of columns 8 j + 2 t + {0, 1} of the half */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float *score = &s[32 * half + 4 * j + 2 * r];
                const float x = exp2_fast(__fmaf_rn(score[0], kp->in.scale_log2, -lse.x)),
                            y = exp2_fast(__fmaf_rn(score[1], kp->in.scale_log2, -lse.y));
                sum[2 * j + r] = (lse.x == INF ? 0 : x) + (lse.y == INF ? 0 : y);
            }
        }
        const int before = half << 6 >> kp->joined.shift, queries = kp->joined.group - before;
        float *to = values + before * (int64_t)kp->row;
        switch (kp->joined.shift) {
        case 2: store_sums<2>(kp, sum, t, to, queries); break;
        case 3: store_sums<3>(kp, sum, t, to, queries); break;
        case 4: store_sums<4>(kp, sum, t, to, queries); break;
        case 5: store_sums<5>(kp, sum, t, to, queries); break;
        default:
            if (COLUMNS > 64) store_sums<6>(kp, sum, t, to, queries);
        }
    }
}

/* ------------------------------------------------------------------ roles -------------------------- */

/* Keys, ring by ring: the next piece's follow the last one's as places get free. */
static __device__ __forceinline__ void produce(const params *kp, const struct work, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    struct producer c = start_producer(shared);
    uint32_t n = 0; /* tiles of the CTA so far */
    struct piece x;
    struct ahead a = look_ahead(kp);
    struct indices keys = first_keys(kp, &a, (int)c.ring);
    while (next_piece(kp, &a, &x)) {
        int t = x.first + (int)((n ^ c.ring) & 1); /* this ring's first tile */
        n += (uint32_t)(x.last - x.first);
        struct indices next = keys;
        keys = first_keys(kp, &a, (int)((n ^ c.ring) & 1));
        const uint16_t *base = (const uint16_t *)p->kv.data + x.w.b * p->kv.batch + ((int)threadIdx.x & 7) * 8;
#pragma unroll 1
        for (; t < x.last; t += 2) {
            struct keys r;
            find_keys(&r, &x.s, next);
            next = load_indices(&x.s, t + 2);
            fill_tile(&c, &r, &p->kv, base);
        }
    }
}

/* Q of each piece, and meanwhile the slots of the one before. */
static __device__ __forceinline__ void bring(const params *kp, uint32_t shared) {
    struct producer c = start_producer(shared);
    struct piece_slots slots = {};
    struct piece x;
    struct ahead a = look_ahead(kp);
    while (next_piece(kp, &a, &x)) {
#pragma unroll 1
        for (int y = 0; y < STEPS; y++) fill_q(&c, kp, &x, y);
        if (c.round_q) bring_slots<128>(kp, shared, slots, c.round_q - 1, (int)threadIdx.x & 127);
        slots = slots_of_piece(&x);
        c.round_q++;
    }
    if (threadIdx.x == 384) {
        mbar_wait(shared + Q_FREE, (c.round_q & 1) ^ 1);
        shared_store32x2(shared + GROUP_AT, 0, 0);
        mbar_arrive(shared + GROUP_FULL);
    }
    if (c.round_q) bring_slots<384>(kp, shared, slots, c.round_q - 1, (int)threadIdx.x - 128);
}

template <int WG> static __device__ __forceinline__ void consume(const params *kp, const struct work, uint32_t shared) {
    struct state c = start_consumer(shared);
    const int head = (int)threadIdx.x & 127;
    uint32_t n = 0, odd = 0; /* tiles of the CTA, pieces of the warpgroup so far */
    struct piece_slots slots = {};
    for (;; c.round_q++) {
        mbar_wait(shared + GROUP_FULL, c.round_q & 1);
        const uint2 told = shared_load32x2(shared + GROUP_AT);
        if (told.y == 0) {
            if (c.round_q) bring_slots<384>(kp, shared, slots, c.round_q - 1, (int)threadIdx.x);
            return;
        }
        struct piece x;
        x.number = (int)told.x;
        x.g = joined_group_of(&kp->joined, kp->in.seq_q, x.number);
        x.w = {x.g.b, x.g.query, 0};
        x.first = (int)(told.y & 0xffff), x.last = (int)(told.y >> 16);
        x.whole = 0; /* as well as not told */
        slots = slots_of_piece(&x);
        int t = x.first + (int)((n ^ WG) & 1), first = 1;
        n += (uint32_t)(x.last - x.first);
        const uint32_t lse_at = shared + LSE_AT + (2 * WG + (odd & 1)) * COLUMNS * 4;
        odd += t < x.last;
        const uint32_t lse = load_lse(kp, &x, head);
        float *to = values_of(kp, c.round_q) + c.warp * 16 + (c.lane >> 2);
        const uint32_t lse_of_lane = lse_at + 8 * ((uint32_t)c.lane & 3);
        float2 lses[8];
#pragma unroll 1
        for (; t < x.last; t += 2) {
            float s[SUMS];
            uint32_t mask[2];
            score_tile<WG>(&c, s, mask, first, t + 2 >= x.last);
            if (first) {
                if (head < COLUMNS)
                    shared_store32(lse_at + 4 * (uint32_t)head, __float_as_uint(lse_of(kp, &x, lse, head)));
                wait_buffer(shared, c.round_q);
                named_sync(1 + WG, 128);
                if (LSE_KEPT) load_lses(lses, lse_of_lane);
            }
            first = 0;
            store_queries(&c, s, lses, lse_of_lane, kp, to + t * 64);
        }
        if (first) pass_q(&c);
        arrive_warp(&c, shared + VALUES_FULL + 8 * (c.round_q & 1));
    }
}
#endif
