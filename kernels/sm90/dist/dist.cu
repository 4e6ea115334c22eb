/* SPDX-License-Identifier: MIT
 * Attention distribution on Hopper: wgmma, f16 and bf16, up to 64 HEAD_BLOCKS heads. A work tile is one query, a tile
 * 64 of its slots. Persistent: CTA c takes work tiles c, c + grid, ...; what is left over at the end is cut into pieces
 * of some tiles, one for each CTA.
 *
 *   a[t] = factor sum_h 2^(scale log2(e) q_h . k_t - lse_h log2(e)), 0 at invalid slots; an infinite lse adds nothing
 *
 *   q [heads x D] --cp.async--> Q, resident for the work tile, read by both warpgroups
 *   kv rows by index --cp.async--> ring 0 --> S^T = K Q^T, 64 slots x all heads --> exp, summed over columns (0, 2)
 *                    --cp.async--> ring 1 --> the same by warpgroup 1 while 0 is at its exponentials         (1, 3)
 *
 * Slots are the rows of the product: the sum over heads is one over registers and then a quad, in a fixed order, and
 * one product of 128 columns reads K once for 128 heads. Tile n of the CTA belongs to warpgroup n % 2, which has a ring
 * of RING stages of its own, filled by two producer warps of its own. A stage has GROUP slices, which come, are
 * multiplied and are handed back together: at 64 heads as many as one sum takes, at 128 one, for want of room.
 *
 * Roles (384 threads, 1 CTA an SM): warpgroups 0 and 1 consume, 200 registers; warpgroup 2 gathers, 104 registers.
 * Shared memory, bytes:                       HEAD_BLOCKS = 1, D = 576   D = 512   HEAD_BLOCKS = 2, D = 576   D = 512
 *   Q       D/64 slices of HEAD_BLOCKS x 8192                   73,728    65,536                   147,456   131,072
 *   rings   2 x RING x GROUP x 8192                            147,456   131,072                    81,920    98,304
 *   rest                                                         3,072     3,072                     3,072     3,072
 * Barriers (arrivals; who waits): Q_FULL [group] (128 producers; consumers), Q_FREE [group] (8 warps after their last
 * product with it; producers), FULL [ring][stage] (64 producers and 1 for the mask; consumers), FREE [ring][stage] (4
 * warps; producers). Phases: round of a ring's stage; of Q = work tiles with at least one tile. The mask of a tile is
 * read before its first group is handed back, and written again after that.
 *
 * JOINED: a work tile is a group of neighbouring queries, whose heads are the columns, query << shift | head, and 64
 * entries of its joined list the rows. The sums over the heads of each query go to kp.values by entry. 512 threads:
 * warpgroups 0 and 1 have 184 registers; 2 gathers keys, 80; 3 brings Q and moves values of the group before to its
 * slots (joined.h), 64.
 * APART: the queries of groups that are left apart, which joined_work.cu has listed. */
#include "kernels/device/grid.h"
#include "kernels/device/joined.h"
#include "kernels/device/number.h"
#include "kernels/device/wgmma.h"
#include "kernels/params/dist_joined.h"
#include "kernels/params/mla_sm90.h"
#include "kernels/sm90/gather.h"

#ifdef CFG_JOINED
constexpr int JOINED = 1, HEAD_BLOCKS = CFG_JOINED;
typedef struct kp_dist_joined_sm90 params;
#else
constexpr int JOINED = 0, HEAD_BLOCKS = CFG_HEAD_BLOCKS;
typedef struct kp_dist params;
#endif
#ifdef CFG_APART
typedef struct kp_dist_apart launched;
#else
typedef params launched;
#endif
constexpr int TYPE = CFG_DTYPE, D = CFG_DIM;
static_assert(D == 576 || D == 512, "the slices of a key row");
static_assert((unsigned)(HEAD_BLOCKS - 1) < 2, "one or two fit together with the keys");
constexpr int SLICES = D / 64, PARTS = HEAD_BLOCKS == 2 ? 2 : SLICES == 9 ? 3 : 4; /* sums that a score is formed in */
constexpr int LENGTH = (SLICES + PARTS - 1) / PARTS;                               /* slices of a sum */
constexpr int GROUP = HEAD_BLOCKS == 2 ? 1 : LENGTH; /* slices that come, are multiplied and are handed back together */
constexpr int STEPS = SLICES / GROUP, RING = KP_DIST_SM90_RING(D, HEAD_BLOCKS) / GROUP;
static_assert(SLICES % GROUP == 0 && KP_DIST_SM90_RING(D, HEAD_BLOCKS) % GROUP == 0, "whole groups");
constexpr int COLUMNS = 64 * HEAD_BLOCKS;  /* of the product */
constexpr int STAGE_BYTES = GROUP * SLICE; /* bytes of a stage of a ring */
constexpr int SUMS = COLUMNS / 2;          /* of a thread: 64 slots x 64 HEAD_BLOCKS heads */
constexpr uint32_t PRODUCERS = 64;         /* of a ring, and as many of Q for each */
constexpr int THREADS = JOINED ? KP_DIST_JOINED_SM90_THREADS : KP_MLA_FWD_SM90_THREADS;

/* Shared memory by byte offsets. */
constexpr uint32_t Q_AT = 0, RINGS_AT = SLICES * HEAD_BLOCKS * SLICE, PLAN_AT = RINGS_AT + 2 * RING * STAGE_BYTES;
constexpr uint32_t MASK_AT = PLAN_AT; /* uint32_t [2 rings][2]: valid slots */
constexpr uint32_t LSE_AT =
    MASK_AT + 16; /* float [2 rings][2 parities of work tiles][64 HEAD_BLOCKS]: base 2; inf: adds nothing */
constexpr uint32_t Q_FULL = LSE_AT + 4 * COLUMNS * 4, Q_FREE = Q_FULL + 8 * STEPS, FULL = Q_FREE + 8 * STEPS;
constexpr uint32_t FREE = FULL + 16 * RING;
/* JOINED: the next piece's group and tiles (first | end << 16, 0: there is none) (1; consumers); [2 buffers of values]:
 * all are there (8 warps of consumers; producers), they are at their slots (4 warps of producers; consumers) */
constexpr uint32_t GROUP_AT = FREE + 16 * RING, GROUP_FULL = GROUP_AT + 8;
constexpr uint32_t VALUES_FULL = GROUP_FULL + 8, VALUES_FREE = VALUES_FULL + 16;
static_assert(Q_FULL % 8 == 0 && VALUES_FREE + 16 <= KP_DIST_SM90_SHARED(D, HEAD_BLOCKS), "the plan fits");

/* A stage of a ring and the parity of its round. */
struct ring_stage {
    uint32_t index, parity;
};
static __device__ __forceinline__ void step(struct ring_stage *r) {
    if (++r->index == RING) r->index = 0, r->parity ^= 1;
}

/* The pieces of work of this CTA: whole work tiles first, then perhaps a piece of one of those left over. */
struct work {
    int64_t whole, left;    /* rounds of whole work tiles; work tiles after them */
    const int32_t *queries; /* APART: of work tiles */
};
struct piece {
    struct work_tile w;
    int first, last; /* tiles of the work tile that the list has from first to last - 1 */
    struct slots s;
    struct joined_group g; /* JOINED, and its number */
    int number, whole;     /* whole: all of the group's tiles */
};
/* Which query of the group, and which of its heads, column `column` of the product is. */
struct column {
    int query, head, inside;
};
static __device__ __forceinline__ struct column column_of(const params *kp, const struct piece *x, int column) {
#ifdef CFG_JOINED
    const int query = column >> kp->joined.shift, head = column - (query << kp->joined.shift);
    return {query, head, query < x->g.queries && head < kp->in.heads_q};
#else
    (void)x;
    return {0, column, column < kp->in.heads_q};
#endif
}
static __device__ __forceinline__ struct work work_of(const launched *kp) {
    struct work k = {0, 0, nullptr};
#ifdef CFG_APART
    const int32_t *work = (const int32_t *)kp->work;
    const uint32_t queries = (uint32_t)work[KP_JOINED_WORK_QUERIES];
    k.queries = work + KP_JOINED_WORK_LISTS + kp->groups;
    k.whole = queries / gridDim.x;
    k.left = queries - (uint32_t)k.whole * gridDim.x;
#elif !defined CFG_JOINED
    k.whole = kp->work_tiles / gridDim.x;
    k.left = kp->work_tiles - k.whole * gridDim.x;
#endif
    return k;
}
#ifndef CFG_JOINED
/* Nonzero if the CTA has a piece number n. */
static __device__ __forceinline__ int piece_of(const struct kp_dist *kp, const struct work *k, int64_t n,
                                               struct piece *x) {
    const struct kp_mla *p = &kp->in;
    int64_t query = blockIdx.x + n * gridDim.x;
    int part = 0, length = INT32_MAX;
    if (n >= k->whole) {
        if (n > k->whole || k->left == 0) return 0;
        const int parts = (int)(gridDim.x / (uint32_t)k->left), tiles = (p->topk + 63) / 64;
        const int tile_left = (int)blockIdx.x / parts;
        if (tile_left >= k->left) return 0;
        part = (int)blockIdx.x - tile_left * parts;
        length = (tiles + parts - 1) / parts;
        query = k->whole * gridDim.x + tile_left;
    }
#ifdef CFG_APART
    query = k->queries[query];
#endif
    x->w.head = 0;
    x->w.b = query / p->seq_q;
    x->w.i = query - x->w.b * p->seq_q;
    x->s = slots_of(p, x->w.b, x->w.i);
    const int tiles = (x->s.n + 63) / 64;
    x->first = part * length;
    x->last = tiles - x->first < length ? tiles : x->first + length;
    return 1;
}
#endif

/* ------------------------------------------------------------------ producers ---------------------- */

/* The tile that a ring's producers fill: a lane's indices of slots l and l + 32, and which of the 64 are valid. Thread
 * p of the 64 has rows p / 8 + 8 k, k 0..7, and chunk p % 8 of them. */
struct keys {
    struct indices idx;
    uint32_t mask[2];
};
static __device__ __forceinline__ void find_keys(struct keys *r, const struct slots *s, struct indices idx) {
    r->idx = idx;
    if (JOINED) {
        r->idx.lo = max(idx.lo, 0), r->idx.hi = max(idx.hi, 0);
        return;
    }
    r->mask[0] = __ballot_sync(~0u, slot_valid(s, idx.lo));
    r->mask[1] = __ballot_sync(~0u, slot_valid(s, idx.hi));
}

/* JOINED: what depends on it takes no register where it is not used. */
static __device__ __forceinline__ int producer_thread(void) {
    return JOINED ? recompute((int)threadIdx.x) : (int)threadIdx.x;
}
struct producer {
    uint32_t shared, ring, lane_at, round_q; /* lane_at: of the thread's chunk in a group of 8 rows */
    struct ring_stage next;                  /* to fill */
};
static __device__ __forceinline__ uint32_t full_of(uint32_t shared, uint32_t ring, uint32_t index) {
    return shared + FULL + (ring * RING + index) * 8;
}
static __device__ __forceinline__ uint32_t free_of(uint32_t shared, uint32_t ring, uint32_t index) {
    return shared + FREE + (ring * RING + index) * 8;
}

/* Wait for the ring's next stage, which group x of the tile takes; where the thread's chunks go. */
static __device__ __forceinline__ uint32_t begin_fill(struct producer *c, const struct keys *r, int x) {
    mbar_wait(free_of(c->shared, c->ring, c->next.index), c->next.parity ^ 1);
    if (!JOINED && (threadIdx.x & 63) == 0) {
        if (x == 0) shared_store32x2(c->shared + MASK_AT + 8 * c->ring, r->mask[0], r->mask[1]);
        mbar_arrive(full_of(c->shared, c->ring, c->next.index));
    }
    if (!JOINED) __syncwarp();
    return c->shared + RINGS_AT + (c->ring * RING + c->next.index) * STAGE_BYTES + c->lane_at;
}
static __device__ __forceinline__ void end_fill(struct producer *c, int wide) {
    arrive_copied(full_of(c->shared, c->ring, c->next.index), wide);
    step(&c->next);
}
/* Group x of any tile. base: the thread's chunk of row 0. */
static __device__ __forceinline__ void fill(struct producer *c, const struct keys *r, const struct kp_view *kv,
                                            const uint16_t *base, int x) {
    const uint32_t to = begin_fill(c, r, x);
    const int wide = JOINED || kv->chunk == 16; /* rows of the table ask for 16 bytes */
#pragma unroll 1
    for (int k = 0; k < 8 * GROUP; k++) {
        const int down = k & 7, slot = (((int)threadIdx.x & 63) >> 3) + 8 * (k & 3);
        const int32_t row = __shfl_sync(~0u, down < 4 ? r->idx.lo : r->idx.hi, slot);
        const int valid = (int)((down < 4 ? r->mask[0] : r->mask[1]) >> slot & 1);
        const uint16_t *from = base + (valid ? row : 0) * kv->row + (x * GROUP + (k >> 3)) * 64;
        if (wide)
            copy_async16(to + (uint32_t)k * 1024, from, valid << 4);
        else
            copy_slow(to + (uint32_t)k * 1024, from, valid);
    }
    if (!wide) async_fence();
    end_fill(c, wide);
}
/* Where the thread's rows of a tile begin, all of which exist. */
static __device__ __forceinline__ void find_rows(const uint16_t *from[8], const struct keys *r,
                                                 const struct kp_view *kv, const uint16_t *base) {
    const int row = (producer_thread() & 63) >> 3;
#pragma unroll
    for (int k = 0; k < 8; k++)
        from[k] = base + __shfl_sync(~0u, k < 4 ? r->idx.lo : r->idx.hi, row + 8 * (k & 3)) * kv->row;
}
/* Group x of a tile whose rows all exist and start at multiples of 16 bytes: no address is computed twice. */
static __device__ __forceinline__ void fill_whole(struct producer *c, const struct keys *r, const uint16_t *from[8],
                                                  int x) {
    const uint32_t to = begin_fill(c, r, x);
#pragma unroll
    for (int y = 0; y < GROUP; y++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            copy_async16_whole(to + (uint32_t)(y * SLICE + k * 1024), from[k] + (x * GROUP + y) * 64);
    end_fill(c, 1);
}

/* This ring's share of group x of Q: a half of the heads' rows. */
static __device__ __forceinline__ void fill_q(const struct producer *c, const params *kp, const struct piece *y,
                                              int x) {
    const struct kp_mla *p = &kp->in;
    const struct work_tile *w = &y->w;
    const int t = producer_thread() & 63, wide = p->q.chunk == 16;
    const uint16_t *base =
        (const uint16_t *)p->q.data + w->b * p->q.batch + w->i * p->q.row + (t & 7) * 8 + x * GROUP * 64;
    const uint32_t to =
        c->shared + Q_AT + (uint32_t)(x * HEAD_BLOCKS * STAGE_BYTES) + c->ring * 4096 * HEAD_BLOCKS + c->lane_at;
    mbar_wait(c->shared + Q_FREE + 8 * (uint32_t)x, (c->round_q & 1) ^ 1);
    if (JOINED && x == 0 && threadIdx.x == 384) { /* both warpgroups have read of the last group */
        shared_store32x2(c->shared + GROUP_AT, (uint32_t)y->number, (uint32_t)(y->first | y->last << 16));
        mbar_arrive(c->shared + GROUP_FULL);
    }
    const int first = (int)c->ring * 32 * HEAD_BLOCKS + (t >> 3); /* head of the thread's first row */
    if (JOINED) {
#pragma unroll
        for (int k = 0; k < 4 * HEAD_BLOCKS; k++) {
            const struct column h = column_of(kp, y, first + 8 * k);
            const uint16_t *from = base + (h.inside ? h.query * p->q.row + h.head * p->q.head : 0);
#pragma unroll
            for (int z = 0; z < GROUP; z++)
                copy_async16(to + (uint32_t)(z * HEAD_BLOCKS * SLICE + k * 1024), from + z * 64, h.inside << 4);
        }
    } else if (wide) {
        const uint16_t *from = base + first * p->q.head;
#pragma unroll
        for (int k = 0; k < 4 * HEAD_BLOCKS; k++) {
            const int valid = first + 8 * k < p->heads_q;
#pragma unroll
            for (int y = 0; y < GROUP; y++)
                copy_async16(to + (uint32_t)(y * HEAD_BLOCKS * SLICE + k * 1024), (valid ? from : base) + y * 64,
                             valid << 4);
            from += 8 * p->q.head;
        }
    } else {
#pragma unroll 1
        for (int k = 0; k < 4 * HEAD_BLOCKS * GROUP; k++) {
            const int y = k / (4 * HEAD_BLOCKS), down = k % (4 * HEAD_BLOCKS);
            const int h = first + 8 * down, valid = h < p->heads_q;
            copy_slow(to + (uint32_t)(y * HEAD_BLOCKS * SLICE + down * 1024),
                      base + (valid ? h : 0) * p->q.head + y * 64, valid);
        }
        async_fence();
    }
    arrive_copied(c->shared + Q_FULL + 8 * (uint32_t)x, JOINED || wide);
}

static __device__ __forceinline__ void fill_tile(struct producer *c, const struct keys *r, const struct kp_view *kv,
                                                 const uint16_t *base) {
    if (JOINED || (kv->chunk == 16 && (r->mask[0] & r->mask[1]) == ~0u)) {
        const uint16_t *from[8];
        find_rows(from, r, kv, base);
#pragma unroll
        for (int y = 0; y < STEPS; y++) fill_whole(c, r, from, y);
    } else {
#pragma unroll 1
        for (int y = 0; y < STEPS; y++) fill(c, r, kv, base, y);
    }
}
static __device__ __forceinline__ struct producer start_producer(uint32_t shared) {
    const int t64 = (int)threadIdx.x & 63;
    struct producer c = {shared, (threadIdx.x >> 6) & 1, 0, 0, {0, 0}};
    c.lane_at = (uint32_t)((t64 >> 3) * 128 + (((t64 & 7) ^ (t64 >> 3)) << 4));
    return c;
}

#ifndef CFG_JOINED
/* The first tile of a work tile, if this ring has it, and Q, which waits longer: for both warpgroups. A ring that does
 * not hold the tile gets slice by slice of both. */
constexpr int KEYS_FIRST = RING >= STEPS;
static __device__ __forceinline__ void fill_first(struct producer *c, const struct keys *r, const params *kp,
                                                  const struct piece *w, const uint16_t *base, int own) {
    const struct kp_mla *p = &kp->in;
    if (KEYS_FIRST) {
        if (own) fill_tile(c, r, &p->kv, base);
    } else if (own && p->kv.chunk == 16 && (r->mask[0] & r->mask[1]) == ~0u) {
        const uint16_t *from[8];
        find_rows(from, r, &p->kv, base);
#pragma unroll 1
        for (int x = 0; x < STEPS; x++) {
            fill_q(c, kp, w, x);
            fill_whole(c, r, from, x);
        }
        return;
    }
#pragma unroll 1
    for (int x = 0; x < STEPS; x++) {
        fill_q(c, kp, w, x);
        if (!KEYS_FIRST && own) fill(c, r, &p->kv, base, x);
    }
}
static __device__ __forceinline__ void produce(const params *kp, const struct work k, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    const int t64 = (int)threadIdx.x & 63;
    struct producer c = start_producer(shared);
    uint32_t n = 0; /* tiles of the CTA so far */
    struct piece x;
    for (int64_t number = 0; piece_of(kp, &k, number, &x); number++) {
        if (x.first >= x.last) continue;
        const uint16_t *base = (const uint16_t *)p->kv.data + x.w.b * p->kv.batch + (t64 & 7) * 8;
        struct keys r;
        int t = x.first + (int)((n ^ c.ring) & 1);
        n += (uint32_t)(x.last - x.first);
        struct indices next = load_indices(&x.s, t);
        const int own = t < x.last;
        find_keys(&r, &x.s, next);
        next = load_indices(&x.s, t + 2);
        fill_first(&c, &r, kp, &x, base, own);
        c.round_q++;
#pragma unroll 1
        for (t += 2; t < x.last; t += 2) {
            find_keys(&r, &x.s, next);
            next = load_indices(&x.s, t + 2);
            fill_tile(&c, &r, &p->kv, base);
        }
    }
}
#endif

/* ------------------------------------------------------------------ consumers ---------------------- */

struct state {
    uint32_t shared, round_q;
    int warp, lane;
    struct ring_stage next; /* in the ring */
};

static __device__ __forceinline__ struct state start_consumer(uint32_t shared) {
    struct state c;
    c.shared = shared;
    c.round_q = 0;
    c.warp = (int)threadIdx.x >> 5 & 3;
    c.lane = (int)threadIdx.x & 31;
    c.next.index = c.next.parity = 0;
    return c;
}

/* The bits of head h's lse, of the tensor's type; only loaded here: nothing waits for them before they are converted.
 */
static __device__ __forceinline__ uint32_t load_lse(const params *kp, const struct piece *y, int column) {
    const struct column h = column_of(kp, y, column);
    if (!h.inside) return 0;
    const int64_t offset = y->w.b * kp->lse.batch + (y->w.i + h.query) * kp->lse.row + h.head * kp->lse.head;
    return kp->lse.dtype == KP_F32 ? ((const uint32_t *)kp->lse.data)[offset]
                                   : ((const uint16_t *)kp->lse.data)[offset];
}
/* Base 2; +inf if it adds nothing. */
static __device__ __forceinline__ float lse_of(const params *kp, const struct piece *y, uint32_t bits, int column) {
    float lse = kp->lse.dtype == KP_F32 ? __uint_as_float(bits) : unpack16(kp->lse.dtype, bits);
    if (!column_of(kp, y, column).inside || lse == -INF) lse = INF;
    return kp->in.flags & KP_LSE_BASE_2 ? lse : lse * LOG2E;
}

/* One arrival for the warp, all of whose lanes are here. */
static __device__ __forceinline__ void arrive_warp(const struct state *c, uint32_t barrier) {
    __syncwarp();
    if (c->lane == 0) mbar_arrive(barrier);
}

/* Q comes and is handed back. */
static __device__ __forceinline__ void pass_q(const struct state *c) {
    for (uint32_t y = 0; y < STEPS; y++) {
        mbar_wait(c->shared + Q_FULL + 8 * y, c->round_q & 1);
        arrive_warp(c, c->shared + Q_FREE + 8 * y);
    }
}

/* S^T of the warpgroup's next tile, whose slices are handed back as they have been read; mask: its valid slots. first,
 * last: of the warpgroup's tiles of this work tile: Q has to come, Q is handed back.
 *
 * The matrix unit cuts off what lies below the last bit of a running sum, always towards zero. Over a row of products
 * of one sign (scores near 200) one sum of D / 16 steps leaves a bias of 6e-4 in exp(s - lse); PARTS sums over D /
 * PARTS columns each are cut at a PARTS-th of the size as often, so that the bias falls by that factor. */
template <int WG>
static __device__ __forceinline__ void score_tile(struct state *c, float s[SUMS], uint32_t mask[2], int first,
                                                  int last) {
    float part[PARTS][SUMS];
    const uint64_t ring = slice_desc(c->shared + RINGS_AT + WG * RING * STAGE_BYTES, 0);
    const uint64_t q = slice_desc(c->shared + Q_AT, 0);
    uint32_t before = 0;
#pragma unroll
    for (int x = 0; x < STEPS; x++) {
        if (first) mbar_wait(c->shared + Q_FULL + 8 * (uint32_t)x, c->round_q & 1);
        mbar_wait(full_of(c->shared, WG, c->next.index), c->next.parity);
        if (x == 0 && !JOINED) {
            mask[0] = shared_load32(c->shared + MASK_AT + 8 * WG);
            mask[1] = shared_load32(c->shared + MASK_AT + 8 * WG + 4);
        }
        async_fence();
        const uint64_t k = desc_move(ring, c->next.index * STAGE_BYTES);
        wgmma_fence();
#pragma unroll
        for (int y = 0; y < GROUP; y++)
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                const int slice = x * GROUP + y;
                if (HEAD_BLOCKS == 2)
                    wgmma_ss_n128<TYPE, 0, 0>(part[slice / LENGTH], desc_step(k, y * SLICE + kk * 32),
                                              desc_step(q, slice * HEAD_BLOCKS * SLICE + kk * 32),
                                              slice % LENGTH + kk > 0);
                else
                    wgmma_ss_n64<TYPE, 0, 0>(part[slice / LENGTH], desc_step(k, y * SLICE + kk * 32),
                                             desc_step(q, slice * SLICE + kk * 32), slice % LENGTH + kk > 0);
            }
        wgmma_commit();
        if (x > 0) {
            wgmma_wait(1);
            arrive_warp(c, free_of(c->shared, WG, before));
            if (last && c->lane == 0) mbar_arrive(c->shared + Q_FREE + 8 * (uint32_t)(x - 1));
        }
        before = c->next.index;
        step(&c->next);
    }
    wgmma_wait(0);
#pragma unroll
    for (int y = 0; y < PARTS; y++) wgmma_hold(part[y], SUMS);
    arrive_warp(c, free_of(c->shared, WG, before));
    if (last && c->lane == 0) mbar_arrive(c->shared + Q_FREE + 8 * (STEPS - 1));
#pragma unroll
    for (int e = 0; e < SUMS; e++) {
        s[e] = part[0][e];
#pragma unroll
        for (int y = 1; y < PARTS; y++) s[e] += part[y][e];
    }
}

#ifndef CFG_JOINED
/* Sums over the heads for slots g, g + 8 of the warp; all lanes of a quad have them. */
static __device__ __forceinline__ void sum_heads(const struct state *c, const float s[SUMS], uint32_t lse_at,
                                                 float scale_log2, float sum[2]) {
    sum[0] = sum[1] = 0;
    lse_at += 8 * ((uint32_t)c->lane & 3);
#pragma unroll
    for (int j = 0; j < 8 * HEAD_BLOCKS; j++) {
        const float2 lse = shared_load_pair(lse_at + 32 * (uint32_t)j); /* of heads 8 j + 2 t + {0, 1} */
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float lse2 = e & 1 ? lse.y : lse.x;
            const float x = exp2_fast(__fmaf_rn(s[4 * j + e], scale_log2, -lse2));
            sum[e >> 1] += lse2 == INF ? 0 : x;
        }
    }
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
        const float other[2] = {__shfl_xor_sync(~0u, sum[0], d), __shfl_xor_sync(~0u, sum[1], d)};
        sum[0] += other[0], sum[1] += other[1];
    }
}
#endif

#ifdef CFG_JOINED
#include "kernels/sm90/dist/joined.h"
#else
template <int WG>
static __device__ __forceinline__ void consume(const params *kp, const struct work k, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    struct state c = start_consumer(shared);
    const int row = c.warp * 16 + (c.lane >> 2);
    uint32_t n = 0, odd = 0; /* tiles of the CTA, work tiles of the warpgroup so far */
    struct piece x;
    for (int64_t number = 0; piece_of(kp, &k, number, &x); number++) {
        float *to = (float *)kp->dist.data + x.w.b * kp->dist.batch + x.w.i * kp->dist.row;
        if (WG == 0 && x.first == 0)
            for (int t = (x.s.n + 63) / 64 * 64 + (int)threadIdx.x; t < p->topk; t += 128) to[t] = 0;
        if (x.first >= x.last) continue;
        int t = x.first + (int)((n ^ WG) & 1), first = 1;
        n += (uint32_t)(x.last - x.first);
        const int head = (int)threadIdx.x & 127;
        const uint32_t lse_at = shared + LSE_AT + (2 * WG + (odd & 1)) * 64 * HEAD_BLOCKS * 4;
        odd += t < x.last;
        const uint32_t lse = load_lse(kp, &x, head);
#pragma unroll 1
        for (; t < x.last; t += 2) {
            float s[SUMS], sum[2];
            uint32_t mask[2];
            score_tile<WG>(&c, s, mask, first, t + 2 >= x.last);
            if (first) {
                if (head < COLUMNS)
                    shared_store32(lse_at + 4 * (uint32_t)head, __float_as_uint(lse_of(kp, &x, lse, head)));
                named_sync(1 + WG, 128);
            }
            first = 0;
            sum_heads(&c, s, lse_at, p->scale_log2, sum);
            if (c.lane & 3) continue;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int slot = row + 8 * r;
                const uint32_t valid = (slot < 32 ? mask[0] : mask[1]) >> (slot & 31) & 1;
                if (t * 64 + slot < p->topk) to[t * 64 + slot] = valid ? sum[r] * kp->factor : 0;
            }
        }
        if (first) pass_q(&c); /* no tile of this work tile was this warpgroup's */
        c.round_q++;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) CFG(const __grid_constant__ launched launch) {
    const uint32_t shared = shared_base();
#ifdef CFG_APART
    const params &kp = launch.dist;
#else
    const params &kp = launch;
#endif
    const struct work k = work_of(&launch);
    if (JOINED) grid_release(); /* the launch for queries apart needs nothing of this one */
    if (threadIdx.x == 0) {
        for (uint32_t x = 0; x < STEPS; x++) {
            mbar_init(shared + Q_FULL + 8 * x, 2 * PRODUCERS);
            mbar_init(shared + Q_FREE + 8 * x, 8);
        }
        for (uint32_t x = 0; x < 2 * RING; x++) {
            mbar_init(shared + FULL + 8 * x, PRODUCERS + !JOINED);
            mbar_init(shared + FREE + 8 * x, 4);
        }
        if (JOINED) mbar_init(shared + GROUP_FULL, 1);
        for (uint32_t x = 0; x < 2 && JOINED; x++) {
            mbar_init(shared + VALUES_FULL + 8 * x, 8);
            mbar_init(shared + VALUES_FREE + 8 * x, 4);
        }
        mbar_init_fence();
    }
    __syncthreads();
#ifdef CFG_JOINED
    if (threadIdx.x >= 384) {
        registers_fewer<64>();
        bring(&kp, shared);
        return;
    }
#endif
    if (threadIdx.x >= 256) {
        registers_fewer<JOINED ? 80 : 104>();
        produce(&kp, k, shared);
    } else {
        registers_more<JOINED ? 184 : 200>();
        if (threadIdx.x < 128)
            consume<0>(&kp, k, shared);
        else
            consume<1>(&kp, k, shared);
    }
#ifdef CFG_APART
    grid_wait(); /* who comes next waits for this launch alone */
#endif
}
