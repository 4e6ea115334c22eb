/* SPDX-License-Identifier: MIT
 * Attention distribution on Blackwell (tcgen05, sm_100a): bf16, f16, D = 576 or 512, up to HEADS heads. Simulated, not
 * yet run on silicon. A pair of CTAs, a cluster, owns a work tile: one query, or a part of its slots where queries are
 * few; a tile is 256 of its slots, 128 in each CTA.
 *
 *   a[t] = factor sum_h 2^(scale log2(e) q_h . k_t - lse_h log2(e)), 0 at invalid slots; an infinite lse adds nothing
 *
 *   q --TMA--> Q (each CTA half of the heads; B) ----------+
 *   kv rows --gather4--> ring of slices of K (A) --> S^T = K Q^T: lane = slot, column = head --> exp, sum --> a
 *
 * Slots are the rows of the product: M = 256 over the pair, so that the sum over heads is one of a thread's own
 * registers, in a fixed order, and nothing but Q crosses the pair (each CTA reads the other's half as operand).
 *
 * Roles, 192 threads: warps 0..3 sums (a thread a slot), 4 products (one thread of the even CTA), 5 copies (a lane
 * four slots). Tensor memory: S^T, two stages of HEADS columns. Shared memory: Q (of two work tiles with 64 heads: the
 * next one's comes under this one's products), 9 slices of 128 slots x 64 columns, lse of two work tiles, barriers.
 *
 * Over joined lists (.joined of the variant): columns are heads of a group of queries, and lanes entries of its list,
 * group.h.
 *
 * Barriers (arrivals; whose): Q_FULL [buffer] (bytes; even CTA), Q_EMPTY [buffer] (commit; both), K_FULL [place]
 * (bytes; even CTA), K_EMPTY [place] (commit; both), S_FULL [stage] (commit; both), S_EMPTY [stage] (8 warps; even
 * CTA). */
#ifndef CFG_JOINED
#define CFG_JOINED 0
#endif
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/device/tcgen05.h"
#include "kernels/device/tensor_copy.h"
#include "kernels/params/mla_sm100.h"
#include "kernels/sm100/roles.h"

constexpr int DIM = CFG_DIM, HEADS = CFG_HEADS, SLICES = DIM / 64, KEYS = KP_DIST_SM100_KEYS, CTA_KEYS = KEYS / 2;
constexpr int RING = KP_DIST_SM100_RING, Q_BUFFERS = 128 / HEADS;
static_assert(DIM % 64 == 0 && (HEADS == 64 || HEADS == 128), "what the layout is for");
constexpr uint32_t SLICE = KP_DIST_SM100_SLICE, Q_SLICE = HEADS / 2 * 128, Q_BYTES = SLICES * Q_SLICE;
constexpr uint32_t AT_Q = 0, AT_K = Q_BUFFERS * Q_BYTES, AT_LSE = AT_K + RING * SLICE,
                   AT_BARRIERS = AT_LSE + 2 * HEADS * 4;
enum barrier {
    Q_FULL,
    Q_EMPTY = Q_FULL + Q_BUFFERS,
    K_FULL = Q_EMPTY + Q_BUFFERS,
    K_EMPTY = K_FULL + RING,
    S_FULL = K_EMPTY + RING,
    S_EMPTY = S_FULL + 2,
    BARRIERS = S_EMPTY + 2
};
constexpr uint32_t AT_SLOT = AT_BARRIERS + 8 * BARRIERS, COLUMNS = 2 * HEADS;
static_assert(AT_SLOT + 16 <= KP_DIST_SM100_SHARED(DIM), "the host asks for as much");
constexpr int WARP_PRODUCTS = 4, WARP_COPIES = 5;

static __device__ __forceinline__ uint32_t at_barrier(uint32_t base, uint32_t barrier) {
    return base + AT_BARRIERS + 8 * barrier;
}
/* Waits for phase number `n` (-1: none). */
static __device__ __forceinline__ void await(uint32_t base, uint32_t barrier, uint32_t n) {
    mbar_wait(at_barrier(base, barrier), n & 1);
}

#if CFG_JOINED
#include "kernels/sm100/dist/group.h"
#else
#include "kernels/sm100/dist/query.h"
#endif

/* ------------------------------------------------------------------ copies ------------------------- */

static __device__ __forceinline__ void load_queries(const struct kp_dist_sm100 *p, const struct work *w, uint32_t base,
                                                    int rank, uint32_t n) {
    const uint32_t buffer = n % Q_BUFFERS, full = at_barrier(base, Q_FULL + buffer), lane = (uint32_t)lane_of();
    await(base, Q_EMPTY + buffer, n / Q_BUFFERS - 1);
    if (rank == 0 && lane == 0) mbar_expect(full, 2 * Q_BYTES);
    __syncwarp();
    if (lane < SLICES)
        tensor_copy4(base + AT_Q + buffer * Q_BYTES + lane * Q_SLICE, &p->q, pair_leader(full), (int)lane * 64,
                     first_head(rank), first_query(p, w, rank), (int)w->b);
    __syncwarp();
}
static __device__ __forceinline__ void run_copies(const struct kp_dist_sm100 *p, uint32_t base, int rank) {
    uint32_t n = 0, place = 0; /* work tiles that have tiles; slices */
    struct work w;
    for (cursor x = start_cursor(); next_work(p, &w, x); x = step_cursor(x)) {
        if (w.first >= w.last) continue;
        load_queries(p, &w, base, rank, n++);
        for (int t = w.first; t < w.last; t++) {
            const int slot = t * KEYS + rank * CTA_KEYS + 4 * lane_of();
            const int64_t row0 = w.b * p->kv_rows;
            const int4 rows = make_int4(map_row(&w.slots, slot, row0), map_row(&w.slots, slot + 1, row0),
                                        map_row(&w.slots, slot + 2, row0), map_row(&w.slots, slot + 3, row0));
#pragma unroll 1
            for (int s = 0; s < SLICES; s++, place++) {
                const uint32_t index = place % RING, full = at_barrier(base, K_FULL + index);
                await(base, K_EMPTY + index, place / RING - 1);
                if (rank == 0 && lane_of() == 0) mbar_expect(full, 2 * SLICE);
                __syncwarp();
                tensor_gather4(base + AT_K + index * SLICE + 512 * lane_of(), &p->kv, pair_leader(full), 64 * s, rows);
            }
        }
    }
}

/* ------------------------------------------------------------------ products ----------------------- */

static __device__ __forceinline__ void run_products(const struct kp_dist_sm100 *p, uint32_t base, uint32_t tm) {
    constexpr uint64_t ROWS128 = tc_operand(128, 1024, 16);
    constexpr uint32_t SHAPE = tc_shape(256, HEADS, 0, CFG_DTYPE);
    uint32_t n = 0, place = 0, tile = 0;
    struct work w;
    for (cursor x = start_cursor(); next_work(p, &w, x); x = step_cursor(x)) {
        if (w.first >= w.last) continue;
        const uint32_t buffer = n % Q_BUFFERS;
        const uint64_t b = tc_operand_at(ROWS128, base + AT_Q + buffer * Q_BYTES);
        await(base, Q_FULL + buffer, n / Q_BUFFERS);
        for (int t = w.first; t < w.last; t++, tile++) {
            mbar_wait_cluster(at_barrier(base, S_EMPTY + tile % 2), (tile / 2 - 1) & 1);
#pragma unroll 1
            for (int s = 0; s < SLICES; s++, place++) {
                const uint32_t index = place % RING;
                const uint64_t a = tc_operand_at(ROWS128, base + AT_K + index * SLICE);
                await(base, K_FULL + index, place / RING);
                tc_after();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    tc_multiply(tm + tile % 2 * HEADS, a + 2 * k, b + (uint64_t)(s * (int)(Q_SLICE / 16) + 2 * k),
                                SHAPE, s + k > 0);
                tc_commit(at_barrier(base, K_EMPTY + index));
            }
            tc_commit(at_barrier(base, S_FULL + tile % 2));
        }
        tc_commit(at_barrier(base, Q_EMPTY + buffer));
        n++;
    }
}

/* ------------------------------------------------------------------ sums --------------------------- */

#if CFG_JOINED
#include "kernels/sm100/dist/joined_sums.h"
#else
/* lse of head h, base 2; +inf: it adds nothing, as a head that does not exist. */
static __device__ __forceinline__ float lse_of(const struct kp_dist *p, const struct work *w, int h) {
    float lse = INF;
    if (h < p->in.heads_q)
        lse = load_number((const void *)p->lse.data, w->b * p->lse.batch + h * p->lse.head + w->i * p->lse.row,
                          p->lse.dtype);
    return lse == -INF ? INF : p->in.flags & KP_LSE_BASE_2 ? lse : lse * LOG2E;
}
#if CFG_HEADS == 64
/* A thread keeps lse of all 64 heads over the work tile's tiles: read for each of them, that takes 32 clocks of shared
 * memory for 64 slots. */
static __device__ __forceinline__ void load_lse(float lse[HEADS], uint32_t lse_at) {
#pragma unroll
    for (int h = 0; h < HEADS; h += 4) {
        const uint4 l = shared_load128(lse_at + 4 * h);
        lse[h] = __uint_as_float(l.x), lse[h + 1] = __uint_as_float(l.y);
        lse[h + 2] = __uint_as_float(l.z), lse[h + 3] = __uint_as_float(l.w);
    }
}
static __device__ __forceinline__ float sum_all_heads(uint32_t cells, const float lse[HEADS], float scale_log2) {
    uint32_t word[HEADS];
    float sum = 0;
#pragma unroll
    for (int h = 0; h < HEADS; h += 32) tc_load32(word + h, cells + h);
    tc_wait_loads();
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        asm volatile("" : "+r"(word[h])); /* the compiler reads it after the wait */
        const float x = exp2_fast(__fmaf_rn(__uint_as_float(word[h]), scale_log2, -lse[h]));
        sum += lse[h] == INF ? 0 : x;
    }
    return sum;
}
#else
/* 32 heads of a slot. */
static __device__ __forceinline__ float sum_heads(const uint32_t word[32], uint32_t lse_at, float scale_log2,
                                                  float sum) {
#pragma unroll
    for (int c = 0; c < 32; c += 4) {
        const uint4 l = shared_load128(lse_at + 4 * c);
        const uint32_t lse[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float lse2 = __uint_as_float(lse[e]);
            const float x = exp2_fast(__fmaf_rn(__uint_as_float(word[c + e]), scale_log2, -lse2));
            sum += lse2 == INF ? 0 : x;
        }
    }
    return sum;
}
#endif

static __device__ __forceinline__ void run_sums(const struct kp_dist_sm100 *all, uint32_t base, uint32_t tm, int rank) {
    const struct kp_dist *p = &all->dist;
    const int thread = (int)threadIdx.x;
    const uint32_t lanes = tm + ((uint32_t)(thread / 32) << 21);
    uint32_t n = 0, tile = 0;
    struct work w;
    for (cursor x = start_cursor(); next_work(all, &w, x); x = step_cursor(x)) {
        float *to = (float *)p->dist.data + w.b * p->dist.batch + w.i * p->dist.row;
        const int end = min(w.end * KEYS, p->in.topk);
#pragma unroll 1 /* a few turns, of short lists */
        for (int t = max(w.first, w.last) * KEYS + rank * CTA_KEYS + thread; t < end; t += KEYS) to[t] = 0;
        if (w.first >= w.last) continue;
        const uint32_t lse_at = base + AT_LSE + n++ % 2 * HEADS * 4;
        if (thread < HEADS) shared_store32(lse_at + 4 * thread, __float_as_uint(lse_of(p, &w, thread)));
        named_sync(1, 128);
#if CFG_HEADS == 64
        float lse[HEADS];
        load_lse(lse, lse_at);
#endif
#pragma unroll 1
        for (int t = w.first; t < w.last; t++, tile++) {
            const int slot = t * KEYS + rank * CTA_KEYS + thread, valid = map_row(&w.slots, slot, 0) >= 0;
            float sum = 0;
            await(base, S_FULL + tile % 2, tile / 2);
            tc_after();
#if CFG_HEADS == 64
            sum = sum_all_heads(lanes + tile % 2 * HEADS, lse, p->in.scale_log2);
#else
#pragma unroll 1
            for (int c = 0; c < HEADS; c += 32) {
                uint32_t word[32];
                tc_load32(word, lanes + tile % 2 * HEADS + c);
                tc_wait_loads();
                sum = sum_heads(word, lse_at + 4 * c, p->in.scale_log2, sum);
            }
#endif
            tc_before();
            __syncwarp();
            if (lane_of() == 0) cluster_arrive(cluster_address(at_barrier(base, S_EMPTY + tile % 2), 0));
            if (slot < p->in.topk) to[slot] = valid ? sum * p->factor : 0;
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(KP_DIST_SM100_THREADS, 1)
    CFG(const __grid_constant__ struct kp_dist_sm100 p) {
    const uint32_t base = shared_base();
    const int warp = warp_of(), rank = (int)cluster_rank();
    if (warp == WARP_PRODUCTS) tc_alloc(base + AT_SLOT, COLUMNS);
    if (threadIdx.x == 0) {
        for (uint32_t x = 0; x < BARRIERS; x++) mbar_init(at_barrier(base, x), x >= S_EMPTY ? 8 : 1);
        mbar_init_fence();
    }
    tc_before();
    cluster_sync();
    tc_after();
    const uint32_t tm = shared_load32(base + AT_SLOT);
    if (warp < WARP_PRODUCTS)
        run_sums(&p, base, tm, rank);
    else if (warp == WARP_COPIES)
        run_copies(&p, base, rank);
    else if (rank == 0 && lane_of() == 0)
        run_products(&p, base, tm);
    __syncwarp();
    cluster_sync();
    if (warp == WARP_PRODUCTS) tc_free(tm, COLUMNS);
}
