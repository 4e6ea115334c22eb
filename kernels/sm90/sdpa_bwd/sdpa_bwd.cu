/* SPDX-License-Identifier: MIT
 * Dense attention backward on Hopper: wgmma and tensor maps (TMA), f16 and bf16, causal, windows, GQA, sinks that lse
 * includes, lengths, packed sequences. A CTA owns a tile of 64 keys a compute warpgroup, of one key head, and walks the
 * tiles of 64 query rows (D 64: 128) that see them, of every query head of the group: a step each.
 *
 *   P = 2^(unit s - lse), unit = scale log2(e)     dP = dO V^T     dS = P o (dP - shift)
 *   dV += P^T dO     dK += dS^T Q     dQ += dS K     at the end dK and dQ are multiplied by the scale
 *
 *   K, V once, Q, dO of each step --TMA, 128-byte swizzle--> slices of 64 columns in shared memory; lse, shift too
 *   compute warpgroup:  K, Q slices  --wgmma--> S^T  (64 keys x all queries, f32 registers) --exponentials--> P^T
 *                       V, dO slices --wgmma--> dP^T - shift (its sums begin at -shift), under the exponentials
 *                       dS^T = P^T o (dP^T - shift) --stmatrix, transposed--> dS in shared memory (two tiles)
 *                       P^T, dS^T (16-bit registers, A operands), dO, Q slices --wgmma--> dV, dK (f32 registers)
 *                       dS of all keys, K slices --wgmma--> half of dQ of the step before: 64 rows x 64 columns
 *                       --> shared memory, f32, in the order of the fragments
 *   last warpgroup:     a thread copies; two add dQ to the sums of all CTAs of the head in memory (bulk reductions):
 *                       each a half of every step, or, in order, every second step
 *
 * kernels/smxx/sdpa_bwd_prepare.cu gives lse, shift and zeroes; sdpa_bwd_convert.cu rounds dQ. In order (turns): a row
 * tile's sums are added in the order of the key tiles; only the threads that add wait for their turn.
 *
 * Roles: warpgroups 0 .. GROUPS-1 compute. They share dS, which they need a step later: products of one overlap with
 * the exponentials of the other, for neither waits as long as they are less than a step apart.
 * Shared memory: K, V; Q and dO, STAGES of them; dS, two; dQ of a step; lse and shift of each stage; mbarriers, struct
 * place of each stage, struct work, flags (work.h).
 *   mbarrier (arrivals)                                                                    phase
 *   KEYS_FULL (1 + bytes)                                                                  0
 *   ROWS_FULL[] (1 + bytes), ROWS_FREE[] (a warp each of the compute warpgroups)           step / STAGES
 *   DS_FULL[2] (a warp each of the compute warpgroups)                                     step / 2
 *   DS_FREE[2] (the same: dQ has been formed)                                              (step + 1) / 2
 *   DQ_FULL[2][2] (a warp each of the warpgroup): a half, steps even or odd                step / 2
 *   DQ_FREE[2] (the thread that adds): a half                                              step
 *   named: MAIN (compute warpgroups: rows and keys that are not finite)
 * Step -1 has dS = 0 and place 1; its dQ is formed, that the loop is without branches, and not handed on: a branch
 * around products makes ptxas serialise all of them.
 *
 * Hidden cells have P = dS = 0, but 0 * NaN is NaN: not_finite.h.
 *
 * Figures: docs/kernels/sdpa_bwd_sm90.md. */
#include "kernels/device/grid.h"
#include "kernels/sm90/sdpa_bwd/dq.h"
#include "kernels/sm90/sdpa_bwd/softcap.h"
#include "kernels/sm90/sdpa_bwd/store.h"
/* It reads the constants of work.h. */
#include "kernels/device/sdpa_bwd_factor.h"

/* ------------------------------------------------------------------ products ----------------------- */

/* Start x = (64 rows at a) (64 rows at b)^T over DIM columns, plus x if adds: S^T = K Q^T, dP^T = V dO^T. */
static __device__ __forceinline__ void start_cells(float x[N_CELLS], uint64_t a, uint64_t b, int adds) {
    wgmma_hold(x, N_CELLS);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < DIM / 64; s++)
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            if (ROWS == 64)
                wgmma_ss_n64<TYPE, 0, 0>(x, desc_step(a, s * K_SLICE + 32 * kk), desc_step(b, s * Q_SLICE + 32 * kk),
                                         s + kk > 0 || adds);
            else
                wgmma_ss_n128<TYPE, 0, 0>(x, desc_step(a, s * K_SLICE + 32 * kk), desc_step(b, s * Q_SLICE + 32 * kk),
                                          s + kk > 0 || adds);
    wgmma_commit();
}
/* Start g += cells (64 rows at b): dV += P^T dO, dK += dS^T Q. */
static __device__ __forceinline__ void start_gradient(float g[N_GRAD], const uint32_t cells[N_PACKED], uint64_t b) {
    wgmma_hold(g, N_GRAD);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
        if (DIM == 64) wgmma_rs_n64<TYPE, 1>(g, cells + 4 * kk, desc_step(b, 2048 * kk), 1);
        if (DIM == 128) wgmma_rs_n128<TYPE, 1>(g, cells + 4 * kk, desc_step(b, 2048 * kk), 1);
    }
    wgmma_commit();
}

/* ------------------------------------------------------------------ a compute warpgroup ------------ */

static __device__ __forceinline__ struct rows rows_of(uint32_t shared, int stage) {
    const uint32_t q = shared + ROWS_RING + stage * 2 * Q_BYTES, dout = q + Q_BYTES;
    return (struct rows){q, {dout, dout + Q_BYTES / 2}};
}

/* dS of step t has been stored, for both warpgroups. */
static __device__ __forceinline__ void hand_cells(uint32_t shared, int t) {
    async_fence();
    arrive_warp(shared + DS_FULL + 8 * (t & 1));
}

/* A step: cells, gradients and, if dQ is asked for, half of dQ of the step before. */
template <int FORMS_DQ>
static __device__ __forceinline__ void take_step(const struct kp_sdpa_bwd *p, uint32_t shared, int t, int wg,
                                                 float dk[N_GRAD], float dv[N_GRAD]) {
    const int stage = t % STAGES;
    const uint32_t stats = shared + STATS + stage * 8 * ROWS;
    const struct rows r = rows_of(shared, stage);
    float s[N_CELLS], d[N_CELLS], dq[N_DQ];
    uint32_t pr[N_PACKED], dr[N_PACKED];
    int special = 0;
    mbar_wait(shared + ROWS_FULL + 8 * stage, t / STAGES & 1);
    if (rare(has_special_rows(p, stats))) special = clean_rows(&r, stats, shared + BAD_DOUT);
    start_dp(d, stats);
    start_cells(s, uniform_desc(slice_desc(shared + K_TILE + 8192 * wg, 0)), uniform_desc(slice_desc(r.q, 0)), 0);
    start_cells(d, uniform_desc(slice_desc(shared + V_TILE + 8192 * wg, 0)), uniform_desc(slice_desc(r.dout[0], 0)), 1);
    const int hides = (int)(shared_load32(shared + PLACES + 16 * stage + 12) | shared_load32(shared + ANY_BAD));
    wgmma_wait(1);
    wgmma_hold(s, N_CELLS);
    if (SCORE_MOD) {
        cap_products(p, shared, stats, wg, special | (int)shared_load32(shared + ANY_BAD), s); /* under dP */
    } else
        probabilities(s, stats, p->in.scale * LOG2E); /* the same */
    wgmma_wait(0);
    wgmma_hold(d, N_CELLS);
    if (SCORE_MOD) capped_probabilities(p, s, d, shared + STATS + recompute(t) % STAGES * 8 * ROWS);
    if (rare(hides | special)) {
        hide_cells<3>(p, shared, recall_place(shared, stage), stats, wg, s, d);
        if (special) silence_cells(stats, d);
    }
    if (FORMS_DQ) mbar_wait(shared + DS_FREE + 8 * (t & 1), (t + 1) >> 1 & 1 ^ 1);
    score_gradients(s, d, SCALED ? __uint_as_float(shared_load32(shared + FACTORS + 4)) : 1);
    round_cells(d, dr);
    if (FORMS_DQ) store_cells(shared + DS_RING + (t & 1) * DS_BYTES + wg * DS_SLICE, dr);
    round_cells(s, pr);
    if (DIM == 64 || !FORMS_DQ) { /* registers for P, dQ and dS at once are missing */
        start_gradient(dv, pr, uniform_desc(slice_desc(r.dout[0], Q_SLICE)));
        if (FORMS_DQ) hand_cells(shared, t);
    }
    if (FORMS_DQ) {
        mbar_wait(shared + DS_FULL + 8 * (t & 1 ^ 1), (t - 1) >> 1 & 1);
        start_dq(dq, shared, shared + DS_RING + (t & 1 ^ 1) * DS_BYTES, wg);
        if (DIM > 64) {
            hand_cells(shared, t);
            start_gradient(dv, pr, uniform_desc(slice_desc(r.dout[0], Q_SLICE)));
        }
    }
    start_gradient(dk, dr, uniform_desc(slice_desc(r.q, Q_SLICE)));
    if (FORMS_DQ) {
        wgmma_wait(DIM > 64 ? 2 : 1);
        wgmma_hold(dq, N_DQ);
        arrive_warp(shared + DS_FREE + 8 * (t & 1 ^ 1));
        if (t > 0) hand_dq(shared, t - 1, wg, dq); /* under dK, or dV and dK */
    }
    wgmma_wait(0);
    wgmma_hold(dv, N_GRAD);
    wgmma_hold(dk, N_GRAD);
    if (rare(special == DOUT_BAD)) {
        const struct work w = recall_work(shared);
        const struct place place = recall_place(shared, stage);
        add_bad_dout(p, &w, place.head, place.i0, shared + BAD_DOUT, dv,
                     [&](int q, int h) { return cell_of(pr, q, h); });
    }
    arrive_warp(shared + ROWS_FREE + 8 * stage);
}

/* dS of step -1. */
static __device__ __forceinline__ void clear_cells(uint32_t shared) {
#pragma unroll
    for (int x = 0; x < DS_BYTES; x += 16 * MAIN_THREADS)
        shared_store128(shared + DS_RING + DS_BYTES + x + 16 * threadIdx.x, make_uint4(0, 0, 0, 0));
    async_fence();
}

/* Is dQ formed? At D 64 where nobody asks for it, too: a second loop would make ptxas serialise the products. */
static __device__ __forceinline__ int forms_dq(const struct kp_sdpa_bwd *p) { return DIM == 64 || p->dq_sum; }

static __device__ __forceinline__ void compute(const struct kp_sdpa_bwd_maps *maps, uint32_t shared) {
    const struct kp_sdpa_bwd *p = &maps->all.bwd;
    const int wg = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    float dk[N_GRAD], dv[N_GRAD];
#pragma unroll
    for (int x = 0; x < N_GRAD; x++) dk[x] = dv[x] = 0;
    if (SCALED) { /* a register less; take_bad_keys has a barrier */
        const float factor = choose_factor(&maps->all, shared, 1);
        if (threadIdx.x == 0) shared_store32(shared + FACTORS + 4, __float_as_uint(factor));
    }
    if (steps_of(shared) > 0) {
        clear_cells(shared);
        mbar_wait(shared + KEYS_FULL, 0);
        take_bad_keys(shared, keys_from(shared, 0));
        if (SCORE_MOD && rare((int)shared_load32(shared + ANY_BAD))) {
            const struct work w = recall_work(shared);
            spoil_dq<0, 1>(p, &w, w.j0, shared, (int)threadIdx.x, MAIN_THREADS);
            async_fence_global(); /* before bulk sums */
        }
    }
    const int last = forms_dq(p) ? steps_of(shared) - 1 : -1; /* step whose dQ is formed after the loop */
    if (forms_dq(p)) {
#pragma unroll 1
        for (int t = 0; t < steps_of(shared); t++) take_step<1>(p, shared, t, wg, dk, dv);
    } else {
#pragma unroll 1
        for (int t = 0; t < steps_of(shared); t++) take_step<0>(p, shared, t, wg, dk, dv);
    }
    if (last >= 0) {
        float dq[N_DQ];
        mbar_wait(shared + DS_FULL + 8 * (last & 1), last >> 1 & 1);
        start_dq(dq, shared, shared + DS_RING + (last & 1) * DS_BYTES, wg);
        wgmma_wait(0);
        wgmma_hold(dq, N_DQ);
        arrive_warp(shared + DS_FREE + 8 * (last & 1));
        hand_dq(shared, last, wg, dq);
    }
    if (p->dv.data) store_keys<DIM>(&p->dv, p->in.dim_v, shared, shared + V_TILE, 64 * wg, 64 * wg, 1, dv);
    if (last >= 0) mbar_wait(shared + DS_FREE + 8 * (last & 1), (last + 1) >> 1 & 1); /* both have read K */
    const float undo = SCALED ? __uint_as_float(shared_load32(shared + FACTORS)) : 1;
    if (p->dk.data)
        store_keys<DIM>(&p->dk, p->in.dim_qk, shared, shared + K_TILE, 64 * wg, 64 * wg, undo * p->in.scale, dk);
    if (SCORE_MOD && rare((int)shared_load32(shared + ANY_MARKED))) {
        const struct work w = recall_work(shared);
        named_sync(MAIN, MAIN_THREADS);
        spoil_dk<0>(p, &w, w.j0, (int)threadIdx.x);
    }
}

extern "C" __global__ void __launch_bounds__(MAIN_THREADS + 128, 1)
    CFG(const __grid_constant__ struct kp_sdpa_bwd_maps kp) {
    const uint32_t shared = shared_base();
    const struct kp_sdpa_bwd *p = &kp.all.bwd;
    if (threadIdx.x < 32) { /* what the CTA has to do, or -1 steps where nothing is to be written */
        uint32_t number = blockIdx.x;
        struct work w;
        if (p->turns) { /* whoever waits for a turn waits for a CTA that has started */
            const int64_t ticket = p->in.heads_q * (p->stat_rows / ROWS);
            grid_wait();
            if (threadIdx.x == 0) number = (uint32_t)take_ticket((int32_t *)p->turns + ticket);
            number = __shfl_sync(~0u, number, 0);
        }
        if (!find_work(p, number, &w)) w.steps = -1;
        if (threadIdx.x == 0) {
            keep_work(shared, &w);
            if (SCORE_MOD) shared_store32(shared + ANY_MARKED, 0);
            mbar_init(shared + KEYS_FULL, 1);
            for (int x = 0; x < STAGES; x++)
                mbar_init(shared + ROWS_FULL + 8 * x, 1), mbar_init(shared + ROWS_FREE + 8 * x, 4 * GROUPS);
            for (int x = 0; x < 2; x++) {
                mbar_init(shared + DS_FULL + 8 * x, 4 * GROUPS), mbar_init(shared + DS_FREE + 8 * x, 4 * GROUPS);
                mbar_init(shared + DQ_FULL + 8 * x, 4), mbar_init(shared + DQ_FULL + 16 + 8 * x, 4);
                mbar_init(shared + DQ_FREE + 8 * x, 1);
            }
            mbar_init_fence();
            if (w.steps > 0) load_keys(&kp, &w, shared);
        }
    }
    if (threadIdx.x == 32) fetch_map(&kp.k), fetch_map(&kp.v), fetch_map(&kp.q), fetch_map(&kp.dout);
    grid_wait(); /* for prepare */
    grid_release();
    __syncthreads();
    if (steps_of(shared) < 0) return;
    if (threadIdx.x >= MAIN_THREADS) {
        registers_fewer<LAST_REGISTERS>();
        if (steps_of(shared) == 0) return;
        if (threadIdx.x == COPIES) copy_all(&kp, shared);
        if (forms_dq(p) && (threadIdx.x == ADDS || threadIdx.x == ADDS + 32)) {
            const int number = (int)(threadIdx.x - ADDS) / 32;
            if (p->turns)
                add_ordered(p, shared, number);
            else
                add_unordered(p, shared, number);
        }
    } else {
        registers_more<MAIN_REGISTERS>();
        compute(&kp, shared);
    }
}
