/* SPDX-License-Identifier: MIT
 * Attention distribution on Hopper: wgmma, f16 and bf16, up to 64 HALVES heads. An item of work is one query, a tile 64
 * of its slots. Persistent: CTA c takes items c, c + grid, ...
 *
 *   a[t] = factor sum_h 2^(scale log2(e) q_h . k_t - lse_h log2(e)), 0 at invalid slots; an infinite lse adds nothing
 *
 *   q [heads x D] --cp.async--> Q, resident for the item
 *   kv rows by index --cp.async--> KV, slice by slice --> S^T = K Q^T, 64 slots x 64 heads --> exp, summed over columns
 *
 * Slots are the rows of the product: the sum over 64 heads is one over 16 registers and then a quad, in a fixed order.
 *   HALVES = 2   one KV tile; warpgroup w has heads 64 w .. 64 w + 63, 1 hands its sums to 0. Each row is gathered
 * once. HALVES = 1   two KV tiles; tile n of the CTA, in buffer n % 2, belongs to warpgroup n % 2. Roles (384 threads,
 * 1 CTA an SM): warpgroups 0 and 1 consume, 216 registers; warpgroup 2 gathers, 72 registers. Shared memory, bytes: Q
 * and KV 3 x D/64 slices of 8192 (221,184 at D = 576), the rest 4,096. Barriers (arrivals; who waits): Q_FULL (128
 * producers; consumers), Q_FREE (8 warps after their last S; producers), FULL [buffer][slice] (128 producers, slice 0
 * also 1 for the mask; consumers), FREE [buffer][slice] (the 4 HALVES warps that read the tile; producers), named 1, 2:
 * sums of an even, odd tile are in PART (128 arrive + 128 wait). Phases: round of a buffer, round of Q = items with at
 * least one tile. A tile's mask is read before its first slice is handed back; PART of tile n is read before 0 hands
 * back tile n + 1, which 1 needs to write PART of n + 2. */
#include "kernels/device/number.h"
#include "kernels/device/wgmma.h"
#include "kernels/kparams_mla_sm90.h"
#include "kernels/sm90/mla_gather_wgmma.h"

constexpr int TYPE = CFG_DTYPE, D = CFG_DIM, HALVES = CFG_HALVES;
static_assert(D == 576 || D == 512, "the slices of a key row");
static_assert(HALVES == 1 || HALVES == 2, "two warpgroups");
constexpr int PARTS = D == 576 ? 3 : 4; /* sums that a score is formed in */
constexpr int SLICES = D / 64, TILE = SLICES * SLICE, BUFFERS = 3 - HALVES;

/* Shared memory by byte offsets. */
constexpr uint32_t Q_AT = 0, KV_AT = HALVES * TILE, PLAN_AT = 3 * TILE;
constexpr uint32_t MASK_AT = PLAN_AT;      /* uint32_t [2 parities of tiles][2]: valid slots */
constexpr uint32_t PART_AT = MASK_AT + 16; /* float [2][64]: sums of warpgroup 1 */
constexpr uint32_t Q_FULL = PART_AT + 512, Q_FREE = Q_FULL + 8, FULL = Q_FREE + 8, FREE = FULL + 2 * 9 * 8;
static_assert(Q_FULL % 8 == 0 && FREE + 2 * 9 * 8 <= KP_DIST_SM90_SHARED(D), "the plan fits");

static __device__ __forceinline__ uint32_t full_of(uint32_t shared, uint32_t buffer, int x) {
    return shared + FULL + (buffer * 9 + (uint32_t)x) * 8;
}
static __device__ __forceinline__ uint32_t free_of(uint32_t shared, uint32_t buffer, int x) {
    return shared + FREE + (buffer * 9 + (uint32_t)x) * 8;
}
static __device__ __forceinline__ struct item query_of(const struct kp_mla *p, int64_t at) {
    struct item w;
    w.head = 0;
    w.b = at / p->seq_q;
    w.i = at - w.b * p->seq_q;
    return w;
}

/* ------------------------------------------------------------------ producers ---------------------- */

static __device__ __forceinline__ void produce(const struct kp_dist *kp, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    const int wide_q = p->q.chunk == 16, wide_kv = p->kv.chunk == 16;
    uint32_t n = 0, round_q = 0; /* tiles, items with tiles */
    for (int64_t at = blockIdx.x; at < kp->items; at += gridDim.x) {
        struct item w = query_of(p, at);
        const struct slots s = slots_of(p, w.b, w.i);
        const int tiles = (s.n + 63) / 64;
        if (!tiles) continue;
        struct indices next = load_indices(&s, 0);
        struct rows r;
        mbar_wait(shared + Q_FREE, (round_q & 1) ^ 1);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            w.head = 64 * half;
            head_rows(&r, &p->q, &w, p->heads_q);
            copy_slices(&r, shared + Q_AT + (uint32_t)(half * TILE), 0, SLICES, wide_q);
        }
        arrive_copied(shared + Q_FULL, wide_q);
        round_q++;
#pragma unroll 1
        for (int t = 0; t < tiles; t++, n++) {
            const uint32_t buffer = n % BUFFERS, parity = (n / BUFFERS & 1) ^ 1, to = shared + KV_AT + buffer * TILE;
            uint32_t mask[2];
            key_rows(&r, mask, &s, next, &p->kv, w.b);
            next = load_indices(&s, t + 1);
#pragma unroll 1
            for (int x = 0; x < SLICES; x++) {
                mbar_wait(free_of(shared, buffer, x), parity);
                if (x == 0 && (threadIdx.x & 127) == 0) {
                    shared_store32(shared + MASK_AT + 8 * (n & 1), mask[0]);
                    shared_store32(shared + MASK_AT + 8 * (n & 1) + 4, mask[1]);
                    mbar_arrive(full_of(shared, buffer, 0));
                }
                copy_slices(&r, to, x, 1, wide_kv);
                arrive_copied(full_of(shared, buffer, x), wide_kv);
            }
        }
    }
}

/* ------------------------------------------------------------------ consumers ---------------------- */

struct state {
    uint32_t shared;
    int warp, lane;
    float lse2[16]; /* of heads 8 j + 2 t + e of the half: [2 j + e]; +inf: adds nothing */
};

static __device__ __forceinline__ void load_lse(struct state *c, const struct kp_dist *kp, const struct item *w) {
#pragma unroll
    for (int x = 0; x < 16; x++) {
        const int h = w->head + 8 * (x >> 1) + 2 * (c->lane & 3) + (x & 1);
        float lse = INF;
        if (h < kp->in.heads_q)
            lse = load_number((const void *)kp->lse.data, w->b * kp->lse.batch + w->i * kp->lse.row + h * kp->lse.head,
                              kp->lse.dtype);
        if (lse == -INF) lse = INF;
        c->lse2[x] = kp->in.flags & KP_LSE_BASE_2 ? lse : lse * LOG2E;
    }
}

/* S^T of tile n, whose slices are handed back as they have been read; mask: its valid slots.
 *
 * The matrix unit cuts off what lies below the last bit of a running sum, always towards zero. Over a row of products
 * of one sign (scores near 200) one sum of D / 16 steps leaves a bias of 6e-4 in exp(s - lse); PARTS sums over D /
 * PARTS columns each are cut at a PARTS-th of the size as often, so that the bias falls by that factor. */
static __device__ __forceinline__ void score_tile(const struct state *c, float s[32], uint32_t mask[2], uint32_t n,
                                                  uint32_t q_at) {
    float part[PARTS][32];
    const uint32_t buffer = n % BUFFERS, parity = n / BUFFERS & 1;
    const uint64_t k = slice_desc(c->shared + KV_AT + buffer * TILE, 0), q = slice_desc(q_at, 0);
#pragma unroll
    for (int x = 0; x < SLICES; x++) {
        mbar_wait(full_of(c->shared, buffer, x), parity);
        if (x == 0) {
            mask[0] = shared_load32(c->shared + MASK_AT + 8 * (n & 1));
            mask[1] = shared_load32(c->shared + MASK_AT + 8 * (n & 1) + 4);
        }
        async_fence();
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n64<TYPE, 0, 0>(part[x * PARTS / SLICES], desc_step(k, x * SLICE + kk * 32),
                                     desc_step(q, x * SLICE + kk * 32), x % (SLICES / PARTS) + kk > 0);
        wgmma_commit();
        if (x == 0) continue;
        wgmma_wait(1);
        if (c->lane == 0) mbar_arrive(free_of(c->shared, buffer, x - 1));
    }
    wgmma_wait(0);
#pragma unroll
    for (int y = 0; y < PARTS; y++) wgmma_hold(part[y], 32);
    if (c->lane == 0) mbar_arrive(free_of(c->shared, buffer, SLICES - 1));
#pragma unroll
    for (int e = 0; e < 32; e++) {
        s[e] = part[0][e];
#pragma unroll
        for (int y = 1; y < PARTS; y++) s[e] += part[y][e];
    }
}

/* Sums over the 64 heads for slots g, g + 8 of the warp; all lanes of a quad have them. */
static __device__ __forceinline__ void sum_heads(const struct state *c, const float s[32], float scale_log2,
                                                 float sum[2]) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float lse2 = c->lse2[2 * j + (e & 1)];
            const float x = exp2_fast(__fmaf_rn(s[4 * j + e], scale_log2, -lse2));
            sum[e >> 1] += lse2 == INF ? 0 : x;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
}

template <int WG> static __device__ __forceinline__ void consume(const struct kp_dist *kp, uint32_t shared) {
    const struct kp_mla *p = &kp->in;
    struct state c;
    c.shared = shared;
    c.warp = (int)threadIdx.x >> 5 & 3;
    c.lane = (int)threadIdx.x & 31;
    const int row = c.warp * 16 + (c.lane >> 2);
    uint32_t n = 0, round_q = 0;
    for (int64_t at = blockIdx.x; at < kp->items; at += gridDim.x) {
        struct item w = query_of(p, at);
        const int tiles = (slots_of(p, w.b, w.i).n + 63) / 64;
        float *to = (float *)kp->dist.data + w.b * kp->dist.batch + w.i * kp->dist.row;
        if (WG == 0)
            for (int t = tiles * 64 + (int)threadIdx.x; t < p->topk; t += 128) to[t] = 0;
        if (!tiles) continue;
        w.head = HALVES == 2 ? 64 * WG : 0;
        load_lse(&c, kp, &w);
        mbar_wait(shared + Q_FULL, round_q++ & 1);
        int mine = 0; /* tiles of this item that the warpgroup has taken */
#pragma unroll 1
        for (int t = 0; t < tiles; t++, n++) {
            if (HALVES == 1 && (n & 1) != WG) continue;
            float s[32], sum[2];
            uint32_t mask[2];
            score_tile(&c, s, mask, n, shared + Q_AT + (HALVES == 2 ? WG * TILE : 0));
            mine = 1;
            if (t + BUFFERS >= tiles && c.lane == 0) mbar_arrive(shared + Q_FREE);
            sum_heads(&c, s, p->scale_log2, sum);
            const uint32_t part = shared + PART_AT + (n & 1) * 256 + (uint32_t)row * 4;
            if (HALVES == 2 && WG == 1) {
                if ((c.lane & 3) == 0) {
                    shared_store32(part, __float_as_uint(sum[0]));
                    shared_store32(part + 32, __float_as_uint(sum[1]));
                }
                if (n & 1)
                    named_arrive(2, 256);
                else
                    named_arrive(1, 256);
                continue;
            }
            if (HALVES == 2) {
                if (n & 1)
                    named_sync(2, 256);
                else
                    named_sync(1, 256);
                sum[0] += __uint_as_float(shared_load32(part));
                sum[1] += __uint_as_float(shared_load32(part + 32));
            }
            if (c.lane & 3) continue;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int slot = row + 8 * r;
                const uint32_t valid = (slot < 32 ? mask[0] : mask[1]) >> (slot & 31) & 1;
                if (t * 64 + slot < p->topk) to[t * 64 + slot] = valid ? sum[r] * kp->factor : 0;
            }
        }
        if (!mine) { /* no tile of this item was this warpgroup's */
            __syncwarp();
            if (c.lane == 0) mbar_arrive(shared + Q_FREE);
        }
    }
}

extern "C" __global__ void __launch_bounds__(KP_MLA_FWD_SM90_THREADS, 1)
    CFG(const __grid_constant__ struct kp_dist kp) {
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        mbar_init(shared + Q_FULL, 128);
        mbar_init(shared + Q_FREE, 8);
        for (uint32_t buffer = 0; buffer < BUFFERS; buffer++)
            for (int x = 0; x < SLICES; x++) {
                mbar_init(full_of(shared, buffer, x), x ? 128 : 129);
                mbar_init(free_of(shared, buffer, x), 4 * HALVES);
            }
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        registers_fewer<72>();
        produce(&kp, shared);
    } else {
        registers_more<216>();
        if (threadIdx.x < 128)
            consume<0>(&kp, shared);
        else
            consume<1>(&kp, shared);
    }
}
