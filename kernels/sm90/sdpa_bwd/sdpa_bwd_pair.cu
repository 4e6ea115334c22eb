/* SPDX-License-Identifier: MIT
 * Dense attention backward on Hopper for head dims to 256: wgmma, tensor maps (TMA), pairs of CTAs. A pair owns a tile
 * of 128 keys of one key head, 64 each, and walks the tiles of 64 query rows that see them, of every query head of the
 * group: a step each. Formulas: sdpa_bwd.cu.
 *
 *   K, V once, Q, dO of each step --TMA, 128-byte swizzle--> slices of 64 columns in shared memory; lse, shift too
 *   warpgroup of cells: K, Q slices  --wgmma--> S^T  (64 keys x 64 queries, f32 registers) --exponentials--> P^T
 *                       V, dO slices --wgmma--> dP^T - shift, under the exponentials
 *                       dS^T = P^T o (dP^T - shift) --stmatrix--> dS (two)
 *                       P^T (16-bit registers), dO slices --wgmma--> dV (64 keys x 256, f32 registers), under dS, and
 *                       after it S of the next step
 *   warpgroup of dK:    dS^T, Q slices --wgmma--> dK (64 keys x 256, f32 registers)
 *                       dS --copy--> the other CTA
 *   warpgroup of dQ:    dS of both, K slices of both --wgmma--> dQ, 64 queries x half of the columns
 *                       --red.v4--> sums of all pairs of the head, f32, in the order of the fragments
 *
 * The exchange cuts the reductions in half: at D 256 with 64 keys they would be 64 KiB for 2560 clocks of products, and
 * the adders of the second-level cache take about 2.9 TB/s.
 *
 * Roles and registers: warpgroups 0 cells and dV (240), 1 dK (168), 2 dQ (96). Threads of dK's copy: one K, V, Q and
 * lse, one dO and shift, one dS. A tile is copied when both CTAs have left it; each copies half of Q and of dO into
 * both (multicast). Shared memory: pair_layout.h. dO has room for half of its columns three times: half h of step t,
 * number 2 t + h, stands at place (2 t + h) % 3; dV leaves the first half while the second is under way.
 *
 * Dims to 192 (SPLIT = 0) have room for two of dO and for P in shared memory, and a warpgroup each for cells, dV, dK
 * and dQ (144, 144, 144, 80 registers). S of the next step is formed under dS of this one; P is handed on under dP. The
 * last reader of a tile copies the next one to its place. Each CTA copies half of the rows of Q and dO, and keeps those
 * slices of the other one's K that hold its columns of dQ: of 192 columns two slices of three.
 *   mbarrier (arrivals)                                                      phase
 *   KEYS_FULL (1 + bytes)                                                    0
 *   Q_FULL[2] (1 + bytes); to 192, three                                     step / 2; step / 3
 *   DOUT_FULL[3] (1 + bytes)                                                 half / 3; to 192: step / 2, or step / 3
 *   P_FULL, P_FREE (4: warps of cells; of dV)                                to 192: step, of two of each step / 2
 *   DS_FULL[2] (4: warps of cells)                                           step / 2
 *   DS_FREE[2] (9: warps of dK, of dQ, and who knows that dS has arrived)    step / 2
 *   OTHER_FULL[2] (1 + bytes from the other CTA)                             step / 2
 *   OTHER_FREE[2] (4: warps of dQ of the other CTA)                          step / 2
 *   Q_FREE[], DOUT_FREE[] (8: warps of dK, of cells, of each CTA;            as of full ones
 *                          to 192, 2: a thread of each CTA)
 *   named: MAIN (cells: rows and keys that are not finite), DQ, DV, DK (one warpgroup each), FACTOR (cells, dK)
 *
 * Hidden cells have P = dS = 0, but 0 * NaN is NaN: not_finite.h.
 *
 * Figures: docs/kernels/sdpa_bwd_sm90.md. */
#include "kernels/sm90/sdpa_bwd/pair_gradients.h"
/* It reads the constants of work.h. */
#include "kernels/device/sdpa_bwd_factor.h"

/* ------------------------------------------------------------------ cells -------------------------- */

/* Start x = (64 rows at a) (64 rows at b)^T over COLUMNS, plus x if adds. */
template <int COLUMNS>
static __device__ __forceinline__ void start_cells(float x[N_CELLS], uint64_t a, uint64_t b, int adds) {
    wgmma_hold(x, N_CELLS);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < COLUMNS / 64; s++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n64<TYPE, 0, 0>(x, desc_step(a, s * SLICE + 32 * kk), desc_step(b, s * SLICE + 32 * kk),
                                     s + kk > 0 || adds);
    wgmma_commit();
}
static __device__ __forceinline__ uint64_t rows_desc(uint32_t tile) { return uniform_desc(slice_desc(tile, 0)); }

/* P^T, rounded: keys along the rows. A block of 16 queries at a time, for want of registers. */
static __device__ __forceinline__ void store_p(uint32_t tile, const float s[N_CELLS]) {
    const int line = 16 * warp_of() + (lane_of() & 15);
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
        uint32_t x[4];
#pragma unroll
        for (int y = 0; y < 4; y++) x[y] = pack16(TYPE, s[8 * kk + 2 * y], s[8 * kk + 2 * y + 1]);
        store_matrix4(tile + line * 128 + ((2 * kk + (lane_of() >> 4) ^ (line & 7)) << 4), x);
    }
}
/* dS^T = P^T o (dP^T - shift), rounded: queries along the rows. */
static __device__ __forceinline__ void store_ds(uint32_t tile, const float s[N_CELLS], const float d[N_CELLS],
                                                float factor) {
    const uint32_t to = transposed_place(tile);
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
        uint32_t x[4];
#pragma unroll
        for (int y = 0; y < 4; y++)
            x[y] = pack16(TYPE, d[8 * kk + 2 * y] * (SCALED ? factor * s[8 * kk + 2 * y] : s[8 * kk + 2 * y]),
                          d[8 * kk + 2 * y + 1] * (SCALED ? factor * s[8 * kk + 2 * y + 1] : s[8 * kk + 2 * y + 1]));
        store_matrix4_transposed(to + 2048 * kk, x);
    }
}

/* Q of step t is there, and clean. */
static __device__ __forceinline__ void wait_q(const struct kp_sdpa_bwd *p, uint32_t shared, int t) {
    const uint32_t stage = (uint32_t)t % Q_STAGES, stats = shared + STATS + stage * 8 * ROWS;
    mbar_wait(shared + Q_FULL + 8 * stage, (uint32_t)t / Q_STAGES & 1);
    if (rare(has_special_stat(p, stats, STAT_LSE))) clean_q(shared + Q_RING + stage * Q_BYTES, stats);
}

/* Start dV of half of the columns += P^T dO. */
static __device__ __forceinline__ void start_dv(float g[N_GRAD_V / 2], const uint32_t cells[N_PACKED], uint64_t dout) {
    wgmma_hold(g, N_GRAD_V / 2);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) wgmma_rs_n128<TYPE, 1>(g, cells + 4 * kk, desc_step(dout, 2048 * kk), 1);
    wgmma_commit();
}
/* Start dP - shift, both parts of the columns. */
static __device__ __forceinline__ void start_split_dp(float d[N_CELLS], uint64_t v, const struct rows *r) {
    const uint64_t dout[2] = {rows_desc(r->dout[0]), rows_desc(r->dout[1])};
    wgmma_hold(d, N_CELLS);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < DIM_V / 64; s++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_ss_n64<TYPE, 0, 0>(d, desc_step(v, s * SLICE + 32 * kk),
                                     desc_step(dout[s / (DIM_V / 128)], s % (DIM_V / 128) * SLICE + 32 * kk), 1);
    wgmma_commit();
}

/* S of step t: its product is under way. */
static __device__ __forceinline__ void start_scores(const struct kp_sdpa_bwd *p, uint32_t shared, int t,
                                                    float s[N_CELLS]) {
    wait_q(p, shared, t);
    start_cells<DIM>(s, rows_desc(shared + K_TILE), rows_desc(shared + Q_RING + (uint32_t)t % Q_STAGES * Q_BYTES), 0);
}
/* A step of D 256: cells and dV, of P in registers. dV and S of the next step, if there is one, run under dS. */
template <int HAS_NEXT>
static __device__ __forceinline__ void take_split_step(const struct kp_sdpa_bwd *p, uint32_t shared, int t,
                                                       float s[N_CELLS], float dv[N_GRAD_V]) {
    const uint32_t stage = (uint32_t)t % DS_TILES, parity = (uint32_t)t / DS_TILES & 1,
                   stats = shared + STATS + (t & 1) * 8 * ROWS;
    const struct rows r = {0, {half_of(shared, 2 * t), half_of(shared, 2 * t + 1)}};
    float d[N_CELLS];
    uint32_t pr[N_PACKED];
    int special = 0;
    wait_dout(shared, 2 * t);
    if (rare(has_special_rows(p, stats))) {
        wait_dout(shared, 2 * t + 1);
        special = clean_rows(&r, stats, shared + BAD_DOUT + 16 * (t & 3));
    }
    start_dp(d, stats);
    wait_dout(shared, 2 * t + 1);
    start_split_dp(d, rows_desc(shared + V_TILE), &r);
    const int hides =
        (int)(shared_load32(shared + PLACES + 16 * (t % PLACE_SLOTS) + 12) | shared_load32(shared + ANY_BAD));
    probabilities(s, stats, p->in.scale * LOG2E); /* under dP */
    if (rare(hides | special))
        hide_cells<1>(p, shared, recall_place(shared, t % PLACE_SLOTS), stats, (int)cluster_rank(), s, s);
    round_cells(s, pr);
    start_dv(dv, pr, uniform_desc(slice_desc(r.dout[0], SLICE)));
    start_dv(dv + N_GRAD_V / 2, pr, uniform_desc(slice_desc(r.dout[1], SLICE)));
    wgmma_wait(2);
    wgmma_hold(d, N_CELLS);
    mbar_wait_cluster(shared + DS_FREE + 8 * stage, parity ^ 1);
    if (rare(hides | special)) {
        hide_cells<2>(p, shared, recall_place(shared, t % PLACE_SLOTS), stats, (int)cluster_rank(), s, d);
        if (special) silence_cells(stats, d);
    }
    store_ds(shared + DS_RING + stage * SLICE, s, d,
             SCALED ? __uint_as_float(shared_load32(shared + FACTORS + 4)) : 1);
    async_fence();
    arrive_warp(shared + DS_FULL + 8 * stage);
    if (HAS_NEXT) start_scores(p, shared, t + 1, s);
    wgmma_wait(1 + HAS_NEXT);
    wgmma_hold(dv, N_GRAD_V / 2);
    leave_both(shared + DOUT_FREE + 8 * ((uint32_t)(2 * t) % DOUT_PLACES), (int)cluster_rank());
    wgmma_wait(HAS_NEXT);
    wgmma_hold(dv + N_GRAD_V / 2, N_GRAD_V / 2);
    leave_both(shared + DOUT_FREE + 8 * ((uint32_t)(2 * t + 1) % DOUT_PLACES), (int)cluster_rank());
    if (HAS_NEXT) wgmma_wait(0);
    wgmma_hold(s, N_CELLS);
    if (rare(special == DOUT_BAD)) {
        const struct work w = recall_work(shared);
        const struct place place = recall_place(shared, t % PLACE_SLOTS);
        add_bad_dout(p, &w, place.head, place.i0, shared + BAD_DOUT + 16 * (t & 3), dv,
                     [&](int q, int h) { return cell_of(pr, q, h); });
    }
}

/* A step of whole tiles. P is handed on under dP; S of the next step, if there is one, is formed under dS. */
template <int HAS_NEXT>
static __device__ __forceinline__ void take_whole_step(const struct kp_sdpa_bwd *p, uint32_t shared, int t,
                                                       float s[N_CELLS]) {
    const uint32_t stage = t & 1, parity = t >> 1 & 1, place = (uint32_t)t % P_TILES,
                   stats = shared + STATS + (uint32_t)t % Q_STAGES * 8 * ROWS;
    const struct rows r = {0, {dout_of(shared, t), 0}};
    float next[N_CELLS], d[N_CELLS];
    int special = 0;
    wait_whole_dout(shared, t);
    if (rare(has_special_rows(p, stats))) special = clean_rows(&r, stats, shared + BAD_DOUT + 16 * (t & 3));
    start_dp(d, stats);
    start_cells<DIM_V>(d, rows_desc(shared + V_TILE), rows_desc(r.dout[0]), 1);
    const int hides =
        (int)(shared_load32(shared + PLACES + 16 * (t % PLACE_SLOTS) + 12) | shared_load32(shared + ANY_BAD));
    probabilities(s, stats, p->in.scale * LOG2E); /* under dP */
    if (rare(hides | special))
        hide_cells<1>(p, shared, recall_place(shared, t % PLACE_SLOTS), stats, (int)cluster_rank(), s, s);
    mbar_wait(shared + P_FREE + 8 * place, (uint32_t)t / P_TILES & 1 ^ 1);
    if (threadIdx.x == 0) shared_store32(shared + SPECIAL + 4 * stage, special == DOUT_BAD);
    store_p(shared + P_TILE + place * SLICE, s);
    async_fence();
    arrive_warp(shared + P_FULL + 8 * place);
    if (HAS_NEXT) start_scores(p, shared, t + 1, next);
    wgmma_wait(HAS_NEXT);
    wgmma_hold(d, N_CELLS);
    mbar_wait_cluster(shared + DS_FREE + 8 * stage, parity ^ 1);
    if (rare(hides | special)) {
        hide_cells<2>(p, shared, recall_place(shared, t % PLACE_SLOTS), stats, (int)cluster_rank(), s, d);
        if (special) silence_cells(stats, d);
    }
    store_ds(shared + DS_RING + stage * SLICE, s, d, SCALED ? __uint_as_float(shared_load32(shared + FACTORS + 4)) : 1);
    async_fence();
    arrive_warp(shared + DS_FULL + 8 * stage);
    if (!HAS_NEXT) return;
    wgmma_wait(0);
    wgmma_hold(next, N_CELLS);
#pragma unroll
    for (int x = 0; x < N_CELLS; x++) s[x] = next[x];
}
static __device__ __forceinline__ void make_whole_cells(const struct kp_sdpa_bwd *p, uint32_t shared, int steps) {
    float s[N_CELLS];
    start_scores(p, shared, 0, s);
    wgmma_wait(0);
    wgmma_hold(s, N_CELLS);
#pragma unroll 1
    for (int t = 0; t + 1 < steps; t++) take_whole_step<1>(p, shared, t, s);
    take_whole_step<0>(p, shared, steps - 1, s);
}

/* Returns 0 where the CTA has no step. */
static __device__ __forceinline__ int begin_cells(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank) {
    if (SCALED) {
        const float factor = choose_factor(&maps->all, shared, rank == 0);
        if (threadIdx.x == 0) shared_store32(shared + FACTORS + 4, __float_as_uint(factor));
        named_sync(MAIN, MAIN_THREADS);
        named_arrive(FACTOR, MAIN_THREADS + 128);
    }
    if (steps_of(shared) <= 0) return 0;
    mbar_wait(shared + KEYS_FULL, 0);
    take_bad_keys(shared, keys_from(shared, 64 * rank));
    return 1;
}
static __device__ __forceinline__ void make_cells(const struct kp_sdpa_bwd_maps *maps, uint32_t shared, int rank) {
    if (begin_cells(maps, shared, rank)) make_whole_cells(&maps->all.bwd, shared, steps_of(shared));
}
static __device__ __forceinline__ void make_cells_and_dv(const struct kp_sdpa_bwd_maps *maps, uint32_t shared,
                                                         int rank) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    float dv[N_GRAD_V];
#pragma unroll
    for (int x = 0; x < N_GRAD_V; x++) dv[x] = 0;
    if (begin_cells(maps, shared, rank)) {
        float s[N_CELLS];
        start_scores(p, shared, 0, s);
        wgmma_wait(0);
        wgmma_hold(s, N_CELLS);
#pragma unroll 1
        for (int t = 0; t + 1 < steps_of(shared); t++) take_split_step<1>(p, shared, t, s, dv);
        take_split_step<0>(p, shared, steps_of(shared) - 1, s, dv);
        named_sync(MAIN, MAIN_THREADS); /* all warps have read V */
    }
    if (p->dv.data) store_keys<DIM_V>(&p->dv, p->in.dim_v, shared, shared + V_TILE, 0, 64 * rank, 1, dv);
}

/* ------------------------------------------------------------------ the pair ----------------------- */

constexpr int LEAVE = SPLIT ? 8 : 2; /* warps, or threads, of both CTAs that tell that a tile is free */
/* One thread. exchanges: dS goes to the other CTA. */
static __device__ __forceinline__ void init_barriers(uint32_t shared, int exchanges) {
    mbar_init(shared + KEYS_FULL, 1);
    for (int x = 0; x < Q_STAGES; x++)
        mbar_init(shared + Q_FULL + 8 * x, 1), mbar_init(shared + Q_FREE + 8 * x, LEAVE);
    for (int x = 0; x < DOUT_PLACES; x++)
        mbar_init(shared + DOUT_FULL + 8 * x, 1), mbar_init(shared + DOUT_FREE + 8 * x, LEAVE);
    for (int x = 0; x < P_TILES; x++) mbar_init(shared + P_FULL + 8 * x, 4), mbar_init(shared + P_FREE + 8 * x, 4);
    for (int x = 0; x < 2; x++)
        mbar_init(shared + DS_FULL + 8 * x, 4), mbar_init(shared + DS_FREE + 8 * x, exchanges ? 9 : 4);
    for (int x = 0; x < OTHER_TILES; x++)
        mbar_init(shared + OTHER_FULL + 8 * x, 1), mbar_init(shared + OTHER_FREE + 8 * x, 4);
    mbar_init_fence();
    for (int x = 0; x < OTHER_TILES; x++)
        if (exchanges) mbar_expect(shared + OTHER_FULL + 8 * x, SLICE);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CFG(const __grid_constant__ struct kp_sdpa_bwd_maps kp) {
    const uint32_t shared = shared_base();
    const struct kp_sdpa_bwd *p = &kp.all.bwd;
    const int rank = (int)cluster_rank();
    if (p->turns) { /* whoever waits for a turn waits for a pair that has started */
        if (rank == 0 && threadIdx.x == 0) {
            const int64_t ticket = p->in.heads_q * (p->stat_rows / ROWS);
            shared_store32(shared + TURN, (uint32_t)take_ticket((int32_t *)p->turns + ticket));
        }
        cluster_sync();
    }
    if (threadIdx.x < 32) { /* what the pair has to do, or -1 steps where nothing is to be written */
        uint32_t number = blockIdx.x / 2;
        struct work w;
        if (p->turns) number = cluster_load32(cluster_address(shared + TURN, 0));
        if (!find_work(p, number, &w)) w.steps = -1;
        if (threadIdx.x == 0) {
            keep_work(shared, &w);
            init_barriers(shared, w.steps > 0 && p->dq_sum);
        }
    }
    cluster_sync();
    if (steps_of(shared) >= 0) {
        if (threadIdx.x < MAIN_THREADS) {
            registers_more<CELLS_REGISTERS>();
            if constexpr (SPLIT)
                make_cells_and_dv(&kp, shared, recompute(rank));
            else
                make_cells(&kp, shared, rank);
        } else if (!SPLIT && threadIdx.x < DK_FIRST) {
            registers_more<GRADIENT_REGISTERS>();
            sum_dv(&kp, shared, rank);
        } else if (threadIdx.x < DQ_FIRST) {
            registers_more<GRADIENT_REGISTERS>();
            sum_dk(&kp, shared, recompute((int)cluster_rank()));
        } else {
            registers_fewer<DQ_REGISTERS>();
            sum_dq(p, shared, recompute(rank));
        }
    }
    __syncwarp();
    cluster_sync(); /* neither writes into one that has ended */
}
