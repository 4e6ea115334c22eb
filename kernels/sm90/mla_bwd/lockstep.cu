/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Hopper, a second schedule of the work of specialized.cu (formulas, work tiles, tiles
 * there): two warpgroups that do everything in step, so that each product is as large as registers allow and a tile
 * has no chain of hand-overs. Deterministic: dKV of a slot is stored, not added (stored_rows.h). CTAS = 2,
 * deterministic alone: a work tile is 128 heads, 64 in each CTA of a cluster, and dKV of both is summed before it is
 * stored (cluster_reduce_full.h).
 *
 *   producer     q, dout --> Q, dO (slice x when dKV has released the last work tile's)     kv rows by index --> K
 *   0            S, all 64 slots  --.  scores of slots 32..63 -->  .-- dP of slots 0..31
 *   1            dP, all 64 slots --'      through the place of P, dS
 *   w            P', P, dS of slots 32 w .. 32 w + 31 --> P, dS
 *                dQ, columns 256 w .. 256 w + 255 and 512 + 32 w .. 543 + 32 w: first by its own dS, then by the
 * other's dKV, slices 0, 4, 2, 6 (w = 0) or 1, 5, 3, 7 and half of slice 8: P^T, dS^T in registers, 64 slots x 32
 * columns at a time in two sets of sums, one multiplied while the other is added to memory
 *
 * S and dP are n64: 32 cycles of the matrix and of the shared-memory pipe alike. All operands that a warpgroup has
 * written are read back by ldmatrix, not by the matrix unit, and producers fence their copies: consumers, who add to
 * memory, have no fence to wait in. The next tile is gathered under dKV.
 *
 * Roles (384 threads, 1 CTA an SM): warpgroups 0 and 1, 240 registers: dQ 144, S or dP or two sets of sums 32, operands
 * 32, the rest 32; 2: producers, 24.
 * 384 threads start with 168 each: 504 = 2 x 240 + 24 is all that there is.
 * Shared memory: as specialized.cu; CTAS = 2: the stages, what the other CTA sends, take the place of P and dS.
 * Barriers: arrivals --> who waits
 *   Q_FULL               PRODUCERS --> 0, 1
 *   Q_FREE [slice]       4 warps whose dKV has read it (slice 8: 8) --> producers
 *   K_FULL [pair]        PRODUCERS --> 0, 1
 *   K_FREE [4]           4 warps of w, dQ being done with slices 4 w, 4 w + 1, then with the next two --> producers
 *   K_PREFETCHED              PREFETCH_FIRST: PRODUCERS, all of a tile's K being asked for --> 0, 1, before they store
 *   PD_FREE              8 warps, P and dS (CTAS = 2: the last stage) being read --> 0, 1
 *   STAGE_OPEN           the other CTA's: 8 warps, P and dS being read --> 0, 1
 *   STAGE_FULL [w][y]    4 warps, and the bytes that the other CTA sends --> w
 *   STAGE_LAST           the same for the fifth filling of w = 0, which is slice 8's --> 1
 *   STAGE_FREE [w][y]    the other CTA's 4 warps: read, may be filled again --> w
 *   named 1, 2           a warpgroup: its work tile
 *   named 4              producers: their work tile
 *   named 5, 6           0, 1: scores and dP are exchanged (f16: bounds of dS left); P, dS, sums for dist are written
 * Sums for dist are read and stored by producers (not STORED_ROWS), which know by K_FREE that barrier 6 is complete,
 * before they tell of the next tile's K, without which consumers do not come to write there again.
 * Phases: a tile, for Q a work tile with at least one slot, for the stages 64 columns. The kv rows and mask of tile
 * n are in place n % 2: they are rewritten after K_FREE [0] of n + 1, so after barrier 6 of n + 1, which follows
 * their last reading. */
#include "kernels/device/grid.h"
#include "kernels/sm90/mla_bwd/cells.h"
#include "kernels/sm90/mla_bwd/producers.h"
#include "kernels/sm90/mla_bwd/cta_pair.h"
#include "kernels/sm90/mla_bwd/scale.h"
#if CFG_DETERMINISTIC
#include "kernels/sm90/mla_bwd/stored_rows.h"
#include "kernels/sm90/mla_bwd/cluster_reduce_full.h"
#else
#include "kernels/sm90/mla_bwd/scatter_add.h"
#endif
#ifdef CFG_JOINED
#include "kernels/sm90/mla_bwd/joined_lockstep.h"
#endif

static_assert(!PARTLY, "pairs that add to memory are pingpong.cu's");

/* 16-column steps of a sum: as in specialized.cu, f16 needs a score and dP in several sums. */
constexpr uint32_t S_STEPS = TYPE == KP_F16 ? 12 : 4 * SLICES, DP_STEPS = TYPE == KP_F16 ? 2 : 4 * V_SLICES;

/* Sums over heads for dist are formed under the products of dQ, where there are registers for them. */
constexpr int SUM_LATER = CTAS == 1 && !STORED_ROWS && !JOINED;

/* The i-th slice of K is there, and of the work tile's first tile Q and dO. */
static __device__ __forceinline__ void wait_slice(uint32_t shared, uint32_t i, uint32_t parity, int first) {
    if (i == 0 && first) mbar_wait(shared + Q_FULL, parity >> 1);
    if (group_of(i) >= 0) mbar_wait(shared + K_FULL + 8 * group_of(i), parity & 1);
}

/* W = 0: s = S of all slots; 1: s = dP. */
template <int W>
static __device__ __forceinline__ void score_tile(uint32_t shared, float s[32], uint32_t parity, int first) {
    const uint64_t a = slice_desc(shared + (W ? DOUT_AT : Q_AT), 0), k = slice_desc(shared + K_AT, 0);
    constexpr uint32_t N = W ? V_SLICES : SLICES, PART = W ? DP_STEPS : S_STEPS, RUN = PART < 4 ? PART : 4;
    float y[32];
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t base = slice_of(i) * SLICE;
        wait_slice(shared, i, parity, first);
#pragma unroll
        for (uint32_t step = 4 * i; step < 4 * i + 4; step += RUN) {
            if (step % PART == 0) wgmma_hold(y, 32);
            wgmma_fence();
#pragma unroll
            for (uint32_t k16 = step; k16 < step + RUN; k16++)
                wgmma_ss_n64<TYPE, 0, 0>(y, desc_move(a, base + k16 % 4 * 32), desc_move(k, base + k16 % 4 * 32),
                                         k16 % PART > 0);
            wgmma_commit();
            if (step + RUN < 4 * N && (step + RUN) % PART) continue;
            wgmma_wait(0);
            wgmma_hold(y, 32);
            /* 0 + y is no copy, as there */
#pragma unroll
            for (int e = 0; e < 32; e++) s[e] = PART >= 4 * N ? y[e] : __fadd_rn(step < PART ? 0 : s[e], y[e]);
        }
    }
}

/* Place of 16 bytes k = 0..3 of a lane among those that warpgroup `to` takes, which are the cells that the same warp of
 * it writes afterwards: rows 16 warp + .., chunks 4 to .. 4 to + 3 of P and dS. 8 lanes cover all banks. */
static __device__ __forceinline__ uint32_t exchange_at(uint32_t shared, int to, int k) {
    const int lane = lane_of(), row = lane >> 3 | (lane & 4), chunk = (4 * to + (lane & 3)) ^ row;
    return shared + P_AT + (uint32_t)((k >> 1) * SLICE + (warp_of() * 16 + (k & 1) * 8 + row) * 128 + chunk * 16);
}
/* Of s, the warpgroup keeps slots 32 W .. 32 W + 31 and gives the others for the other's numbers of its own. */
template <int W> static __device__ __forceinline__ void exchange(uint32_t shared, const float s[32], float other[16]) {
    const float *give = s + 16 * (1 - W);
#pragma unroll
    for (int k = 0; k < 4; k++)
        shared_store128(exchange_at(shared, 1 - W, k),
                        make_uint4(__float_as_uint(give[4 * k]), __float_as_uint(give[4 * k + 1]),
                                   __float_as_uint(give[4 * k + 2]), __float_as_uint(give[4 * k + 3])));
    named_sync(5, 256);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint4 y = shared_load128(exchange_at(shared, W, k));
        other[4 * k] = __uint_as_float(y.x), other[4 * k + 1] = __uint_as_float(y.y);
        other[4 * k + 2] = __uint_as_float(y.z), other[4 * k + 3] = __uint_as_float(y.w);
    }
    __syncwarp(); /* the warp's cells may be written */
}

/* dQ += dS of slots 32 h .. 32 h + 31, in ds, times K; two groups, of 128 columns each. */
template <int W>
static __device__ __forceinline__ void add_dq(uint32_t shared, float q[128], float rope[16], const uint32_t ds[8],
                                              int h) {
    const uint64_t k = slice_desc(shared + K_AT + W * 4 * SLICE + h * 4096, SLICE);
    const uint64_t k8 = slice_desc(shared + K_AT + 8 * SLICE + W * 64 + h * 4096, SLICE);
    wgmma_hold(q, 128);
    wgmma_hold(rope, 16);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 2; kk++) wgmma_rs_n128<TYPE, 1>(q, ds + 4 * kk, desc_step(k, kk * 2048), 1);
    wgmma_commit();
#pragma unroll
    for (int kk = 0; kk < 2; kk++) {
        wgmma_rs_n128<TYPE, 1>(q + 64, ds + 4 * kk, desc_step(k, 2 * SLICE + kk * 2048), 1);
        if (SLICES > 8) wgmma_rs_n32<TYPE, 1>(rope, ds + 4 * kk, desc_step(k8, kk * 2048), 1);
    }
    wgmma_commit();
}

/* dS of the other warpgroup's slots. */
template <int W> static __device__ __forceinline__ void load_other(uint32_t shared, uint32_t ds[8]) {
    const int row = warp_of() * 16 + (lane_of() & 15), chunk = 4 * (1 - W) + (lane_of() >> 4);
#pragma unroll
    for (int kk = 0; kk < 2; kk++)
        load_matrix4(ds + 4 * kk, shared + DS_AT + (uint32_t)(row * 128 + (((chunk + 2 * kk) ^ (row & 7)) << 4)));
}

/* The slices whose gradients warpgroup W forms, i = 0..3. */
static __device__ __forceinline__ constexpr uint32_t own_slice(uint32_t w, uint32_t i) { return slice_of(2 * i + w); }

/* gradients() of a CTA that adds for itself. */
template <int W>
static __device__ __forceinline__ void add_alone(uint32_t shared, float a[16], const struct tile *t,
                                                 struct scatter_dst *to, int last) {
    float b[16];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t x = own_slice(W, i);
        multiply<0>(b, t, x, 1);
        wgmma_wait(1);
        wgmma_hold(a, 16);
        if (PREFETCH_FIRST && i == 0) mbar_wait(shared + K_PREFETCHED, t->n);
        write_columns(a, to, 64 * x);
        if (i < 3) multiply<0>(a, t, own_slice(W, i + 1), 0);
        if (i == 3 && SLICES > 8) multiply<1>(a, t, 8, W); /* a half of slice 8 */
        wgmma_wait(i == 3 && SLICES == 8 ? 0 : 1);
        wgmma_hold(b, 16);
        if (last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
        write_columns(b, to, 64 * x + 32);
    }
    if (SLICES > 8) {
        wgmma_wait(0);
        wgmma_hold(a, 16);
        if (last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 64);
        write_columns(a, to, 512 + 32 * W);
    }
}

/* dKV of a tile; the products of the first slice, in set a, have been started. last: the work tile's last tile. */
template <int W>
static __device__ __forceinline__ void gradients(uint32_t shared, float a[16], const struct tile *t,
                                                 struct scatter_dst *to, uint32_t n, int last, int number) {
    if constexpr (SUMMED) {
#if CFG_DETERMINISTIC
        float other[16];
        do_summed<W, 0>(shared, a, other, t, to, n, last, number);
        __syncwarp();
        if (lane_of() == 0) mbar_arrive(shared + PD_FREE);
#endif
    } else {
        add_alone<W>(shared, a, t, to, last);
    }
}

#ifdef CFG_JOINED
/* Tile i of a work tile, whose P and dS are written, added up cell by cell (joined_exact.h). */
template <int W>
static __device__ __forceinline__ void add_exactly(const struct kp_mla_bwd *p, uint32_t shared, float q[128],
                                                   float rope[16], uint32_t buf, int i, int tiles) {
    store_max_magnitude<W>(shared, i == 0); /* of its other tiles */
    named_sync(6, 256);
    add_dq_exactly<W>(p, shared, buf, q, rope);
#if CFG_DETERMINISTIC
    store_rows_exactly(p, shared, shared + SUMS_AT + 16 * W, buf, (uint32_t)i);
#else
    add_dkv_exactly(p, shared, shared + SUMS_AT + 16 * W, buf);
#endif
    named_sync(6, 256); /* all of it is read, by whichever warps */
    if (lane_of() == 0) {
        for (uint32_t y = 0; y < 2; y++) mbar_arrive(shared + K_FREE + 16 * W + 8 * y);
        mbar_arrive(shared + PD_FREE);
        for (uint32_t x = 0; x < 4 && i + 1 == tiles; x++) mbar_arrive(shared + Q_FREE + 8 * own_slice(W, x));
        if (i + 1 == tiles && SLICES > 8) mbar_arrive(shared + Q_FREE + 64);
    }
    if (PREFETCH_FIRST) mbar_wait(shared + K_PREFETCHED, buf ^ 1); /* as all tiles */
}
#endif

template <int W> static __device__ __forceinline__ void consume(const struct kp_mla_bwd *p, uint32_t shared) {
    if (PREFETCH_FIRST) mbar_wait(shared + K_PREFETCHED, 0); /* of the first tile: no other wait covers it */
    uint32_t n = 0, parity = 0; /* tiles; bit 0: of tiles, bit 1: of work tiles with slots */
    for (uint32_t work = 0; has_work(p, work); work++) {
        keep_work_of<W>(p, work_tile_index(p, work), shared);
        const int tiles = (int)shared_load32(shared + ROWS_AT + 32 * W + 12);
        float q[128], rope[16];
#pragma unroll
        for (int x = 0; x < 128; x++) q[x] = 0;
#pragma unroll
        for (int x = 0; x < 16; x++) rope[x] = 0;
#pragma unroll 1
        for (int i = 0; i < tiles; i++, n++, parity ^= 1) {
            struct tile t;
            struct scatter_dst to;
            uint32_t ds[8];
            float heads[8];
            {
                float s[32], other[16];
                score_tile<W>(shared, s, parity, i == 0);
#ifdef CFG_JOINED
                flag_exact_path<W>(shared, s);
                if (SCALED && W) leave_bound_of_entries(shared, p, s, parity & 1, i == 0);
#else
                if (SCALED && W) leave_bound(shared, p, s, 32, (uint32_t)warp_of(), parity & 1, i == 0);
#endif
                mbar_wait(shared + PD_FREE, (parity & 1) ^ 1);
                exchange<W>(shared, s, other);
                float *prob = W ? other : s, *dp = W ? s + 16 : other;
                exponents(shared, p, prob);
#ifdef CFG_JOINED
                joined_probabilities<W>(p, shared, prob, parity & 1);
                if (p->part_dist) leave_dist_of_rows<W>(p, shared, prob, parity & 1);
#else
                probabilities(shared, prob, shared_load32(shared + MASK_AT + 8 * (parity & 1) + 4 * W));
                if (SUM_LATER) {
                    sum_rows(heads, prob);
                } else if (p->part_dist) {
                    float sums[8];
                    sum_rows(sums, prob);
                    sum_lanes<W>(shared, sums);
                }
#endif
                const int k = SCALED ? exponent_at(shared, parity & 1) : 0;
                store_cells<W>(shared, p, prob, dp, power_of_two(k), ds);
                if (SCALED) follow(shared, q, rope, parity & 1, k, i == 0);
            }
#ifdef CFG_JOINED
            if (takes_exact_path(shared)) {
                add_exactly<W>(p, shared, q, rope, parity & 1, i, tiles);
                continue;
            }
#endif
            add_dq<W>(shared, q, rope, ds, W);
            store_max_magnitude<W>(shared, i == 0);
            if (SUM_LATER && p->part_dist) sum_lanes<W>(shared, heads); /* under the products */
            named_sync(6, 256);
            uint32_t rest[8];
            load_other<W>(shared, rest);
            add_dq<W>(shared, q, rope, rest, 1 - W); /* the next loads take their time under it */
            if (!DIST_BY_PRODUCERS && !JOINED && p->part_dist && warp_of() == 0)
                store_sums(shared, W, shared_load32(shared + MASK_AT + 8 * (parity & 1) + 4 * W),
                           kept(shared + ROWS_AT + 32 * W + 16) + 256 * (uint32_t)i);
            load_transposed(t.probs, shared + P_AT);
            load_transposed(t.ds, shared + DS_AT);
            t.o = slice_desc(shared + DOUT_AT, SLICE);
            t.q = slice_desc(shared + Q_AT, SLICE);
            if (PREFETCH_FIRST) t.n = (parity & 1) ^ 1; /* phase n + 1 */
            begin_dst<W>(p, &to, &t, shared, shared + SUMS_AT + 16 * W, i, parity & 1);
            float a[16];
            multiply<0>(a, &t, own_slice(W, 0), CTAS == 2 ? rank_of() ^ 1 : 0);
            wgmma_wait(2);
            __syncwarp(); /* P and dS are read by all lanes */
            if (lane_of() == 0) {
                if (SUMMED) expect_for_rows(shared, W);
                mbar_arrive(shared + K_FREE + 16 * W);
                if (CTAS == 2)
                    tell_other(shared + STAGE_OPEN);
                else
                    mbar_arrive(shared + PD_FREE);
            }
            find_dst(p, &to, shared, shared + SUMS_AT + 16 * W, i, parity & 1, SUMMED ? rank_of() : 0);
            wgmma_wait(1);
            wgmma_hold(q, 128);
            wgmma_hold(rope, 16);
            if (lane_of() == 0) mbar_arrive(shared + K_FREE + 16 * W + 8);
            gradients<W>(shared, a, &t, &to, n, i + 1 == tiles, i);
        }
        if (tiles) parity ^= 2;
        if (p->dq.data) {
            const float down = SCALED && tiles ? power_of_two(-exponent_at(shared, parity & 1 ^ 1)) : 1;
            store_dq<W>(shared, p, q, down, 32, 256 * W);
            if (SLICES > 8) store_dq<W>(shared, p, rope, down, 4, 512 + 32 * W);
        }
    }
}

#ifdef CFG_JOINED
using params = struct kp_mla_bwd_joined;
#else
using params = struct kp_mla_bwd;
#endif
/* Begins before the launch before it has ended. */
constexpr int EARLY = CTAS == 1 && (STORED_ROWS || JOINED);
extern "C" __global__ void __launch_bounds__(KP_MLA_BWD_SM90_EVEN_THREADS, 1)
    CFG(const __grid_constant__ params all) {
    const struct kp_mla_bwd &p = (const struct kp_mla_bwd &)all;
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        mbar_init(shared + Q_FULL, PRODUCERS);
        for (uint32_t x = 0; x < SLICES; x++) mbar_init(shared + Q_FREE + 8 * x, x < 8 ? 4 : 8);
        for (uint32_t x = 0; x < (SLICES + 1) / 2; x++) mbar_init(shared + K_FULL + 8 * x, PRODUCERS);
        for (uint32_t x = 0; x < 4; x++) mbar_init(shared + K_FREE + 8 * x, 4);
        mbar_init(shared + PD_FREE, 8);
        if (PREFETCH_FIRST) mbar_init(shared + K_PREFETCHED, PRODUCERS);
        if (CTAS == 2) init_pair(shared);
        mbar_init_fence();
    }
    __syncthreads();
    if (CTAS == 2) cluster_sync();
    if (EARLY) {
        if (!(p.steps & KP_MLA_BWD_NO_GRID_WAIT)) grid_wait();
        grid_release();
    }
    switch (threadIdx.x >> 7) {
    case 0:
        registers_more<240>();
        consume<0>(&p, shared);
        break;
    case 1:
        registers_more<240>();
        consume<1>(&p, shared);
        break;
    default: registers_fewer<24>(); produce_tiles(&p, shared);
    }
    if (CTAS == 2) cluster_sync();
    if (EARLY) grid_wait(); /* its dependents thereby depend on the launch before */
}
