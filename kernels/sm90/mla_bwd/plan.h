/* SPDX-License-Identifier: MIT
 * Part of specialized.cu, lockstep.cu and pingpong.cu: configuration of the variant, the plan of
 * shared memory and the producers. Included once; the pictures, roles and barriers stand in those files. EVEN marks
 * what differs from the first, ALT what the third has for itself. */
#ifndef ATTN_SM90_MLA_BWD_PLAN_H
#define ATTN_SM90_MLA_BWD_PLAN_H
#include "kernels/device/number.h"
#include "kernels/device/wgmma.h"
#include "kernels/params/mla_bwd_joined.h"
#include "kernels/sm90/gather.h"

constexpr int TYPE = CFG_DTYPE, D = CFG_DIM, STORED_ROWS = CFG_DETERMINISTIC, CTAS = CFG_CTAS, EVEN = CFG_EVEN > 0;
constexpr int ALT = CFG_EVEN == 2;
#ifdef CFG_NEAR
constexpr int NEAR = CFG_NEAR; /* the table of keys is small against the second-level cache: it is to stay there */
#else
constexpr int NEAR = 0;
#endif
static_assert(!NEAR || (ALT && STORED_ROWS && CTAS == 1), "what has a form for it");
#ifdef CFG_JOINED
constexpr int JOINED = CFG_JOINED; /* a work tile is a group of queries and its joined list, joined.h */
#else
constexpr int JOINED = 0;
#endif
static_assert(!JOINED || (EVEN && (ALT ? !STORED_ROWS : CTAS == 1)), "what has a form for it");
static_assert(D == 576 || D == 512, "the slices of a key row");
static_assert(CTAS == 1 || EVEN, "pairs of CTAs have the even form");
/* Pairs that add to memory exchange most slices (pingpong_reduce_partial.h), those that store rows all
 * (cluster_reduce_full.h, pingpong_reduce_full.h), both in 16 bits. */
constexpr int PARTLY = CTAS == 2 && !STORED_ROWS, SUMMED = CTAS == 2 && STORED_ROWS;
/* Producers store the sums of P' for dist, but not those that run ahead of the consumers, nor those of a group. */
constexpr int DIST_BY_PRODUCERS = EVEN && !STORED_ROWS && !ALT && !JOINED;
/* A CTA that stores rows for itself asks for the next tile's K before its first store: the other way round K comes when
 * the stores are done, if it comes from memory. */
constexpr int PREFETCH_FIRST = EVEN && STORED_ROWS && CTAS == 1 && !NEAR;
/* Pairs of this schedule interleave slices of Q and dO: place x of eight has those 32 columns of slice x whose
 * gradients go to the other CTA, and the 32 of slice x - 1 (0: 7) that come from it, so that one product of 64 columns
 * gives both. */
constexpr int INTERLEAVED = ALT && PARTLY;
/* Q and dO are read once and dq is written once, while the second-level cache has to hold sums and keys:
 * they are marked as the first to leave it. */
constexpr int PASSING = ALT && (!STORED_ROWS || NEAR);
/* A work tile's first S begins with the first slices of Q and dO, while the last one's dKV still reads others.
 * Interleaved slices come in another order than S takes them. */
constexpr int BY_GROUPS = ALT && !STORED_ROWS && !INTERLEAVED;
/* Producers form the states of the next work tile's rows, row_stats_prefetch.h. Rows that are stored lose by it:
 * there K is what consumers wait for. */
constexpr int AHEAD = ALT && !STORED_ROWS && !JOINED;
/* What they need of that comes after all of a tile's K, and the tile's owner waits for DS_FREE before it writes dS.
 * Pairs did not gain by it: there it comes before the last K. */
constexpr int FREES_DS = AHEAD && CTAS == 1;
constexpr int SLICES = D / 64, V_SLICES = KP_MLA_DIM_V / 64;
/* Threads that gather, and how many 16-byte chunks of a slice each has. */
constexpr int PRODUCERS = 128, PASSES = 512 / PRODUCERS, STEP = PRODUCERS / 8;

/* Shared memory by byte offsets. */
/* ALT: slices of Q and dO by turns, so that one product with K gives both scores and dP. */
constexpr uint32_t Q_STEP = ALT ? 2 * SLICE : SLICE; /* from a slice of Q, or of dO, to the next */
constexpr uint32_t Q_AT = 0, DOUT_AT = Q_AT + (ALT ? 1 : SLICES) * SLICE, K_AT = Q_AT + (SLICES + V_SLICES) * SLICE;
constexpr uint32_t P_AT = K_AT + SLICES * SLICE, DS_AT = P_AT + SLICE;
constexpr uint32_t SLOT_ROWS_AT = DS_AT + SLICE; /* int32_t [2][64]: kv rows of the slots, or -1 */
constexpr uint32_t MASK_AT = SLOT_ROWS_AT + 512; /* uint32_t [2][2]: valid slots */
constexpr uint32_t PART_AT = MASK_AT + 16;       /* float [2 warpgroups][4 warps][32 slots]: sums of P' for dist */
constexpr uint32_t STATE_AT = PART_AT + 1024;    /* uint4 [64]: lse2, g, shift of the heads */
constexpr uint32_t WORK_AT =
    STATE_AT + 1024;                       /* what the producers keep of their work tile: list, n, keys; first kv row */
constexpr uint32_t ROWS_AT = WORK_AT + 64; /* uint4 [2 warpgroups][2]: what compute keeps of its work tile */
constexpr uint32_t SUMS_AT = ROWS_AT + 64; /* uint4: what is kept of a work tile to add gradients; even: [2] */
constexpr uint32_t DIST_AT = SUMS_AT + 32; /* uint64 [2]: even, where sums of P' of a tile go, or 0 */
constexpr uint32_t POWERS_AT = DIST_AT + 16; /* uint8_t [2][8 warps]: f16, scale.h */
constexpr uint32_t BARS_AT = POWERS_AT + 16; /* mbarriers */
constexpr uint32_t Q_FULL = BARS_AT, Q_FREE = Q_FULL + 24, K_FULL = Q_FREE + 72, K_FREE = K_FULL + 40;
constexpr uint32_t PD_FULL = K_FREE + 32, PD_FREE = PD_FULL + 8, STAGE_OPEN = PD_FREE + 8, STAGE_FULL = STAGE_OPEN + 8;
constexpr uint32_t STAGE_FREE = STAGE_FULL + 32, STAGE_LAST = STAGE_FREE + 32;
constexpr uint32_t DS_FULL = PD_FULL, MOST_FULL = PD_FREE, STAGE_ORDER = STAGE_OPEN, DS_FREE = PD_FREE; /* ALT */
constexpr uint32_t CHECKPOINTS_AT = STAGE_LAST + 8; /* uint32 [3], cta_pacing.h */
constexpr uint32_t K_PREFETCHED = CHECKPOINTS_AT;   /* PREFETCH_FIRST; rows that are stored have no checkpoints */
constexpr uint32_t PLAN_END = CHECKPOINTS_AT + 16;
static_assert(BARS_AT % 8 == 0 && PLAN_END <= KP_MLA_BWD_SM90_SHARED(D), "the plan fits");
static_assert(KP_MLA_BWD_SM90_SHARED(D) <= 232448, "what a CTA of Hopper may have");

/* The order in which slices come, are multiplied and are let go: dQ is done with 0, 1, 4 and 5 first. Three groups:
 * these, the other four, slice 8; even: five groups, of two. */
static __device__ __forceinline__ constexpr uint32_t slice_of(uint32_t x) {
    return x < 8 ? (x & 1) | (x & 2) << 1 | (x & 4) >> 1 : x;
}

/* K_FULL: groups of two, of which one has slice 8 alone; -1: not the first of a group. */
static __device__ __forceinline__ constexpr int group_of(uint32_t x) { return x % 2 ? -1 : (int)x / 2; }

static __device__ __forceinline__ uint32_t rank_of(void) {
    return CTAS == 2 ? (uint32_t)recompute((int)blockIdx.x) & 1 : 0;
}
/* Numbers of work tiles and queries. Even: below 2^31, as its row's supports() sees to; divisions of 64 bits need
 * registers that its producers have not. */
template <bool SMALL> struct whole { using type = int64_t; };
template <> struct whole<true> { using type = uint32_t; };
using count = whole<EVEN>::type;

/* The last CTAs of a launch sum the rows of the one before (overlapped_sum.h). */
constexpr bool OVERLAPPED = STORED_ROWS && ALT && CTAS == 2;
/* The k-th work tile of this CTA, or of this pair of CTAs; less than p->n * p->head_blocks if there is one. */
static __device__ __forceinline__ count work_tile_index(const struct kp_mla_bwd *p, uint32_t k) {
    return ((count)recompute((int)k) * (OVERLAPPED ? (count)p->workers : gridDim.x) + blockIdx.x) / CTAS;
}
/* Work tiles are cut in parts; not in the first schedule's deterministic rows. */
static __device__ __forceinline__ int in_parts(const struct kp_mla_bwd *p) {
    return (EVEN || !STORED_ROWS) && p->parts > 0;
}

static __device__ __forceinline__ int has_work(const struct kp_mla_bwd *p, uint32_t k) {
    if (EVEN) return work_tile_index(p, k) < (count)p->work_tiles;
    return work_tile_index(p, k) < (count)p->n * (count)p->head_blocks * (count)(in_parts(p) ? p->parts : 1);
}

/* JOINED */
static __device__ __forceinline__ const struct kp_mla_joined *joined_of(const struct kp_mla_bwd *p) {
    return &((const struct kp_mla_bwd_joined *)p)->joined;
}

static __device__ __forceinline__ struct work_tile work_of(const struct kp_mla_bwd *p, count index) {
    struct work_tile w;
    if (in_parts(p)) index /= (count)p->parts;
    if (JOINED) { /* the group's first query; of a pair of CTAs each has one of two */
        const struct kp_mla_joined *j = joined_of(p);
        const count local = index / (count)p->head_blocks, number = (count)p->first + local,
                    b = number / (count)j->groups;
        w.head = (int)(index - local * (count)p->head_blocks) << j->shift;
        w.b = b;
        w.i = (int64_t)(number - b * (count)j->groups) * j->group + rank_of();
        return w;
    }
    const count query = index / (count)p->head_blocks, flat = (count)p->first + query;
    const count b = flat / (count)p->in.seq_q;
    w.head = ((int)(index - query * (count)p->head_blocks) * CTAS + (int)rank_of()) * 64;
    w.b = b;
    w.i = flat - b * (count)p->in.seq_q;
    return w;
}
static __device__ __forceinline__ const struct kp_mla_row *states_of(const struct kp_mla_bwd *p,
                                                                     const struct work_tile *w) {
    return (const struct kp_mla_row *)p->row_stats + ((w->b * p->in.seq_q + w->i) * p->in.heads_q + w->head);
}

/* Of a work tile's n slots, those of its part: how many; *from: the first. */
static __device__ __forceinline__ int part_of(const struct kp_mla_bwd *p, count index, int n, int *from) {
    *from = (int)(index % (count)p->parts) * p->part_slots;
    return max(min(n - *from, p->part_slots), 0);
}
/* The number of slots of a work tile, or of its part. */
static __device__ __forceinline__ int slots_at(const struct kp_mla_bwd *p, count index, const struct work_tile *w) {
    const int n = slots_of(&p->in, w->b, w->i).n;
    int from;
    return in_parts(p) ? part_of(p, index, n, &from) : n;
}

/* Where the sums of P' of the work tile's first slot go. */
static __device__ __forceinline__ uint64_t dist_of(const struct kp_mla_bwd *p, count index, const struct work_tile *w) {
    const int64_t queries = p->in.batch * p->in.seq_q, flat = w->b * p->in.seq_q + w->i;
    int from = 0;
    if (in_parts(p)) part_of(p, index, 0, &from);
    if (JOINED) {
        const struct kp_mla_joined *j = joined_of(p);
        if (in_parts(p)) index /= (count)p->parts;
        const int64_t group = (w->head >> j->shift) * p->n + index / (count)p->head_blocks;
        return p->part_dist + 4 * (uint64_t)((group * j->group + rank_of()) * (j->bits - j->keys));
    }
    return p->part_dist + 4 * (uint64_t)((w->head / 64 * queries + flat) * p->in.topk + from);
}

/* ------------------------------------------------------------------ producers ---------------------- */

/* Thread x copies chunk x % 8 of rows x / 8 + STEP k of every slice, as in sm90/gather.h. What can be computed
 * again is not kept: the warps have few registers. */
static __device__ __forceinline__ uint32_t place_of(void) {
    const int x = recompute((int)threadIdx.x) & (PRODUCERS - 1), row = x >> 3;
    return (uint32_t)(row * 128 + (((x & 7) ^ (row & 7)) << 4));
}

/* What is the same for all of a work tile's tiles is in shared memory: {list, n, keys}, {kv, heads, -}, {q, dout},
 * {states, the work tile's number}. */
static __device__ __forceinline__ uint64_t kept(uint32_t address) {
    return (uint64_t)shared_load32(address + 4) << 32 | shared_load32(address);
}
static __device__ __forceinline__ void keep4(uint32_t address, uint64_t x, uint64_t y) {
    shared_store128(address, make_uint4((uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32)));
}
#ifdef CFG_JOINED
#include "kernels/sm90/mla_bwd/joined.h"
#endif
/* also: what else is done while nobody reads what is kept. */
template <class F>
static __device__ __forceinline__ void keep_work(const struct kp_mla_bwd *p, uint32_t work, uint32_t shared,
                                                 const F &also) {
    named_sync(4, PRODUCERS); /* the last work tile's is read */
#ifdef CFG_JOINED
    if ((threadIdx.x & (PRODUCERS - 1)) == 0) keep_group(p, work, shared);
#else
    if ((threadIdx.x & (PRODUCERS - 1)) == 0) {
        const auto w = work_of(p, work_tile_index(p, work));
        const struct slots s = slots_of(&p->in, w.b, w.i);
        keep4(shared + WORK_AT, (uint64_t)s.idx, (uint64_t)s.keys << 32 | (uint32_t)s.n);
        keep4(shared + WORK_AT + 16, p->in.kv.data + 2 * (uint64_t)(w.b * p->in.kv.batch),
              (uint32_t)max(p->in.heads_q - w.head, 0));
        keep4(shared + WORK_AT + 32,
              p->in.q.data + 2 * (uint64_t)(w.b * p->in.q.batch + w.i * p->in.q.row + w.head * p->in.q.head),
              p->dout.data + 2 * (uint64_t)(w.b * p->dout.batch + w.i * p->dout.row + w.head * p->dout.head));
        keep4(shared + WORK_AT + 48, (uint64_t)states_of(p, &w), work);
    }
#endif
    also();
    named_sync(4, PRODUCERS);
    if (JOINED || !in_parts(p)) return;
    if ((recompute((int)threadIdx.x) & (PRODUCERS - 1)) == 0) {
        const uint32_t to = (uint32_t)recompute((int)shared) + WORK_AT;
        int from;
        shared_store32(to + 8, (uint32_t)part_of(p, work_tile_index(p, shared_load32(to + 56)),
                                                 (int)shared_load32(to + 8), &from));
        const uint64_t list = kept(to) + 4 * (uint64_t)(uint32_t)from;
        shared_store32(to, (uint32_t)list);
        shared_store32(to + 4, (uint32_t)(list >> 32));
    }
    named_sync(4, PRODUCERS);
}

/* Head `thread` of the work tile, of which `heads` exist, to its place in shared memory. SCALED_STATES: lse2, g, and
 * both factors of dP^T's cells with the scale of the scores. */
constexpr int SCALED_STATES = ALT && STORED_ROWS;
static __device__ __forceinline__ void keep_state(const struct kp_mla_bwd *p, uint32_t shared,
                                                  const struct kp_mla_row *states, int thread, int heads) {
    float4 y = make_float4(INF, 0, 0, 0);
#ifdef CFG_JOINED
    if (row_exists(p, thread, (uint32_t)heads)) y = *(const float4 *)(states + row_offset(p, thread, p->in.heads_q, 1));
    const int odd = __any_sync(~0u, !(fabsf(y.y) < INF));
    if (thread % 32 == 0) shared_store32(shared + ODD_STATES_AT + (uint32_t)thread / 8, (uint32_t)odd);
#else
    if (thread < heads) y = *(const float4 *)(states + thread);
#endif
    y.w = SCALED_STATES ? y.y * p->in.scale : 0;
    if (SCALED_STATES) y.z *= p->in.scale;
    shared_store128(shared + STATE_AT + 16 * (uint32_t)thread,
                    make_uint4(__float_as_uint(y.x), __float_as_uint(y.y), __float_as_uint(y.z), __float_as_uint(y.w)));
}

/* Rows of heads that do not exist or are empty become zeros: no NaN of theirs reaches dkv. */
static __device__ __forceinline__ void load_heads(const struct kp_mla_bwd *p, uint32_t shared, uint32_t parity) {
    uint32_t alive = 0;
    {
        const int thread = (int)threadIdx.x & (PRODUCERS - 1);
        const struct kp_mla_row *states = (const struct kp_mla_row *)kept(shared + WORK_AT + 48);
        const int heads = (int)shared_load32(shared + WORK_AT + 24);
#pragma unroll
        for (int k = 0; k < PASSES; k++)
            if ((thread >> 3) + STEP * k < heads)
                alive |= (uint32_t)(states[(thread >> 3) + STEP * k].lse2 != INF) << k;
        mbar_wait(shared + Q_FREE, parity);
        if (thread < 64) {
            keep_state(p, shared, states, thread, heads);
            __syncwarp();
            if ((thread & 31) == 0) mbar_arrive(shared + Q_FULL);
        }
    }
#pragma unroll 1
    for (uint32_t i = 0; i < SLICES; i++) {
        const uint32_t x = slice_of(i);
        mbar_wait(shared + Q_FREE + 8 * x, parity);
        const int thread = recompute((int)threadIdx.x) & (PRODUCERS - 1);
        const uint32_t to = shared + place_of() + x * SLICE, column = (uint32_t)(thread & 7) * 8 + x * 64;
        const uint16_t *q = (const uint16_t *)kept(shared + WORK_AT + 32) + column;
#pragma unroll
        for (int k = 0; k < PASSES; k++)
            copy_async16(to + Q_AT + k * STEP * 128, q + (alive >> k & 1 ? (thread >> 3) + STEP * k : 0) * p->in.q.head,
                         alive >> k & 1 ? 16 : 0);
        if (x < V_SLICES) {
            const uint16_t *o = (const uint16_t *)kept(shared + WORK_AT + 40) + column;
#pragma unroll
            for (int k = 0; k < PASSES; k++)
                copy_async16(to + DOUT_AT + k * STEP * 128,
                             o + (alive >> k & 1 ? (thread >> 3) + STEP * k : 0) * p->dout.head,
                             alive >> k & 1 ? 16 : 0);
        }
        if (i % 4 == 3 || i == 8) mbar_arrive_copies(shared + Q_FULL + 8 * (i >> 2));
    }
}

/* Indices of tile t. Nothing looks at them before the tile is begun: a load takes as long as copying half a tile. */
static __device__ __forceinline__ struct indices raw_indices(uint32_t shared, int t) {
    const uint4 x = shared_load128(shared + WORK_AT);
    const struct slots s = {(const int32_t *)((uint64_t)x.y << 32 | x.x), (int)x.z, x.w};
    return load_indices(&s, t);
}

static __device__ __forceinline__ void produce(const struct kp_mla_bwd *p, uint32_t shared) {
    uint32_t parity = 0; /* bit 0: of tiles, bit 1: of work tiles with slots */
    for (uint32_t work = 0; has_work(p, work); work = shared_load32(shared + WORK_AT + 56) + 1) {
        keep_work(p, work, shared, [] {});
        struct indices next = raw_indices(shared, 0);
#pragma unroll 1
        for (int t = 0; 64 * t < (int)shared_load32(shared + WORK_AT + 8); t++, parity ^= 1) {
            const uint32_t keys = shared_load32(shared + WORK_AT + 12);
            struct indices now; /* -1: not valid */
            now.lo = (uint32_t)next.lo < keys ? next.lo : -1;
            now.hi = (uint32_t)next.hi < keys ? next.hi : -1;
            next = raw_indices(shared, t + 1);
#pragma unroll 1
            for (uint32_t i = 0; i < SLICES; i++) {
                const uint32_t x = slice_of(i);
                const int thread = recompute((int)threadIdx.x) & 127;
                if (i % 2 == 0 && i < 8) mbar_wait(shared + K_FREE + 4 * x, (parity & 1) ^ 1); /* of slices x, x + 1 */
                if (i == 0) {
                    const uint32_t lo = __ballot_sync(~0u, now.lo >= 0), hi = __ballot_sync(~0u, now.hi >= 0);
                    if (thread < 32) {
                        const uint32_t slot_rows = shared + SLOT_ROWS_AT + 256 * (parity & 1) + 4 * (uint32_t)thread;
                        shared_store32(slot_rows, (uint32_t)now.lo);
                        shared_store32(slot_rows + 128, (uint32_t)now.hi);
                        if (thread < 2)
                            shared_store32(shared + MASK_AT + 8 * (parity & 1) + 4 * (uint32_t)thread,
                                           thread ? hi : lo);
                        __syncwarp();
                        if (thread == 0) mbar_arrive(shared + K_FULL);
                    }
                }
                const uint32_t to = shared + K_AT + place_of() + x * SLICE;
                const uint16_t *kv =
                    (const uint16_t *)kept(shared + WORK_AT + 16) + (uint32_t)(thread & 7) * 8 + x * 64;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int32_t row = __shfl_sync(~0u, k < 2 ? now.lo : now.hi, (thread >> 3) + 16 * (k & 1));
                    copy_async16(to + k * 2048, kv + (row < 0 ? 0 : row) * p->in.kv.row, row < 0 ? 0 : 16);
                }
                if (i % 4 == 3 || i == 8) mbar_arrive_copies(shared + K_FULL + 8 * (i >> 2));
            }
            if (t == 0) {
                load_heads(p, shared, (parity >> 1) ^ 1);
                parity ^= 2;
            }
        }
    }
}
#endif
