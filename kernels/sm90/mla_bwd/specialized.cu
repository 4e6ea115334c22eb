/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Hopper: wgmma, f16 and bf16. A work tile is one query and up to 64 of its heads; a
 * tile is 64 of its slots. Persistent: CTA c takes work tiles c, c + their number, ... Row states (lse, g, shift)
 * come from smxx/mla_bwd_prepare.cu; sums, sort and conversion are the steps around it
 * (src/cuda/sparse/mla_bwd_steps.c). Another schedule of the same work: lockstep.cu.
 *
 *   S = Q K^T     P' = 2^(scale log2(e) S - lse2)     dP = dO V^T     P = g P'     dS = scale P' (g dP - shift)
 *   dQ += dS K                            dKV = dS^T Q, and P^T dO in the first 512 columns
 *
 *   producer       q, dout --> Q, dO (slice x when dKV has released the last work tile's)     kv rows by index --> K
 *   compute 0, 1   S, then dP, of slots 32 w .. 32 w + 31, all heads --> P, dS --> shared memory
 *                  columns 256 w .. 256 w + 255 and 512 + 32 w .. 543 + 32 w of dQ, over all slots, in registers
 *   gradients      P^T, dS^T --> registers; dKV, 64 slots x 32 columns at a time, in two sets of sums --> memory
 *
 * dKV needs neither K nor P, dS in shared memory: the next tile is gathered, scored and published while the gradients
 * of this one are multiplied and added.
 *
 * Roles (512 threads, 1 CTA an SM): warpgroups 0 and 1 compute, 192 registers; 2 gradients, 96; 3 producer, 32.
 * Accumulators of wgmma start at register 24: 160 of compute end at 184, which is why dP follows S in the same ones.
 * Shared memory, bytes:                                 D = 576     D = 512
 *   Q, K     D/64 slices of 8192 each                   147,456     131,072
 *   dO       8 slices                                    65,536      65,536
 *   P, dS    64 heads x 64 slots each                    16,384      16,384
 *   rest     SLOT_ROWS_AT and on                               3,072       3,072     232,448 and 216,064 in all
 * Barriers: arrivals --> who waits
 *   Q_FULL [group]       128 producers, group 0 also 2 for the states --> compute
 *   Q_FREE [slice]       4 warps of gradients --> producers
 *   K_FULL [group]       128 producers, group 0 also 1 for mask and slot rows --> compute
 *   K_FREE [4]           4 warps of compute w, dQ being done with slices 4 w, 4 w + 1, then with the next two
 *                        --> producers; slice 8 needs the later ones of both
 *   PD_FULL              8 warps of compute --> compute and gradients
 *   PD_FREE              8 warps of compute after dQ, 4 of gradients, P, dS being read --> compute
 *   named 1, 2           a warpgroup of compute: its work tile, sums of P' for dist
 *   named 3              gradients: their work tile
 *   named 4              producers: their work tile
 *   named 5              compute, f16: bounds of dS are left
 * Phases: a tile, for Q a work tile with at least one slot. Slot rows and mask of tile n are in buffer n % 2: they are
 * rewritten after K_FREE of n + 1, so after PD_FREE of n, which follows their last reading. */
#include "kernels/sm90/mla_bwd/cells.h"
#include "kernels/sm90/mla_bwd/specialized_gradients.h"

/* ------------------------------------------------------------------ S, dP, dQ ---------------------- */

/* The matrix unit cuts off what lies below the last bit of a running sum, always towards zero (docs/numerics.md): f16
 * needs a score in several sums, and dP, which may be all but Delta, in sums of two steps. Products of bf16 have 16
 * bits and lose a third of what those of f16 do; its bounds are eight times as wide. */
constexpr uint32_t SUMS = TYPE == KP_F16 ? 3 : 1, SUM_SLICES = SUMS == 3 ? 3 : SLICES;
constexpr uint32_t DP_STEPS = TYPE == KP_F16 ? 2 : 4; /* of a commit; a slice has 4 */
constexpr int DP_SUMS = TYPE == KP_F16;               /* each commit is a sum */

/* S of slots 32 w .. 32 w + 31, group by group of slices as they come; x: the place of a sum. */
template <int W>
static __device__ __forceinline__ void score_tile(uint32_t shared, float x[16], float s[16], uint32_t parity,
                                                  int first) {
    const uint64_t q = slice_desc(shared + Q_AT, 0), k = slice_desc(shared + K_AT + W * 4096, 0);
#pragma unroll
    for (uint32_t sum = 0; sum < SUMS; sum++) {
#pragma unroll
        for (int e = 0; e < 16; e++) x[e] = 0;
#pragma unroll 1
        for (uint32_t i = sum * SUM_SLICES; i < min((sum + 1) * SUM_SLICES, (uint32_t)SLICES); i++) {
            if (i % 4 == 0) {
                mbar_wait(shared + K_FULL + 2 * i, parity & 1);
                if (first) mbar_wait(shared + Q_FULL + 2 * i, parity >> 1);
                async_fence();
            }
            const uint32_t offset = slice_of(i) * SLICE;
            wgmma_fence();
#pragma unroll
            for (uint32_t kk = 0; kk < 4; kk++)
                wgmma_ss_n32<TYPE, 0, 0>(x, desc_move(q, offset + kk * 32), desc_move(k, offset + kk * 32), 1);
            wgmma_commit();
        }
        wgmma_wait(0);
        wgmma_hold(x, 16);
        /* 0 + x is no copy: with one, the next sum would get registers of its own, and there are none */
#pragma unroll
        for (int e = 0; e < 16; e++) s[e] = SUMS == 1 ? x[e] : __fadd_rn(sum ? s[e] : 0, x[e]);
    }
}

/* dP of the same slots, after S: all slices are there. In one sum it is under way in x on return, in several it is
 * in s. */
template <int W> static __device__ __forceinline__ void start_dp(uint32_t shared, float x[16], float s[16]) {
    const uint64_t o = slice_desc(shared + DOUT_AT, 0), k = slice_desc(shared + K_AT + W * 4096, 0);
#pragma unroll
    for (int e = 0; e < 16; e++) x[e] = s[e] = 0;
    wgmma_hold(x, 16);
#pragma unroll 1
    for (uint32_t y = 0; y < V_SLICES; y++) {
#pragma unroll
        for (uint32_t k0 = 0; k0 < 4; k0 += DP_STEPS) {
            wgmma_fence();
#pragma unroll
            for (uint32_t kk = k0; kk < k0 + DP_STEPS; kk++)
                wgmma_ss_n32<TYPE, 0, 0>(x, desc_move(o, y * SLICE + kk * 32), desc_move(k, y * SLICE + kk * 32),
                                         !DP_SUMS || kk > k0);
            wgmma_commit();
            if (!DP_SUMS) continue;
            wgmma_wait(0);
            wgmma_hold(x, 16);
#pragma unroll
            for (int e = 0; e < 16; e++) s[e] = __fadd_rn(s[e], x[e]);
        }
    }
}

template <int W> static __device__ __forceinline__ void compute(const struct kp_mla_bwd *p, uint32_t shared) {
    uint32_t parity = 0; /* bit 0: of tiles, bit 1: of work tiles with slots */
    for (uint32_t work = 0; has_work(p, work); work++) {
        named_sync(1 + W, 128); /* the last work tile's are read */
        if ((threadIdx.x & 127) == 0) {
            const count index = work_tile_index(p, work);
            const struct work_tile w = work_of(p, index);
            keep_rows<W>(p, index, &w, shared);
        }
        named_sync(1 + W, 128);
        const int tiles = (int)shared_load32(shared + ROWS_AT + 32 * W + 12);
        float q[128], rope[16];
#pragma unroll
        for (int x = 0; x < 128; x++) q[x] = 0;
#pragma unroll
        for (int x = 0; x < 16; x++) rope[x] = 0;
#pragma unroll 1
        for (int t = 0; t < tiles; t++, parity ^= 1) {
            float x[16], prob[16], dp[16];
            score_tile<W>(shared, x, prob, parity, t == 0);
            if (!DP_SUMS) exponents(shared, p, prob);
            start_dp<W>(shared, x, dp);
            if (DP_SUMS) exponents(shared, p, prob); /* dP has no registers for them */
            const uint32_t mask = shared_load32(shared + MASK_AT + 8 * (parity & 1) + 4 * W);
            probabilities(shared, prob, mask);
            if (p->part_dist) {
                float y[8];
                sum_rows(y, prob);
                sum_lanes<W>(shared, y);
                named_sync(1 + W, 128);
                if (warp_of() == 0)
                    store_sums(shared, W, mask, kept(shared + ROWS_AT + 32 * W + 16) + 256 * (uint32_t)t);
            }
            wgmma_wait(0);
            wgmma_hold(x, 16);
            mbar_wait(shared + PD_FREE, (parity & 1) ^ 1);
            {
                uint32_t word[8];
                int k = 0;
                if (SCALED) {
                    leave_bound(shared, p, DP_SUMS ? dp : x, 16, 4 * W + (uint32_t)warp_of(), parity & 1, t == 0);
                    named_sync(5, 256);
                    k = exponent_at(shared, parity & 1);
                }
                store_cells<W>(shared, p, prob, DP_SUMS ? dp : x, power_of_two(k), word);
                if (SCALED) follow(shared, q, rope, parity & 1, k, t == 0);
            }
            async_fence();
            __syncwarp();
            if (lane_of() == 0) mbar_arrive(shared + PD_FULL);
            mbar_wait(shared + PD_FULL, parity & 1);
            const uint64_t ds = slice_desc(shared + DS_AT, 0), k = slice_desc(shared + K_AT + W * 4 * SLICE, SLICE);
            const uint64_t k8 = slice_desc(shared + K_AT + 8 * SLICE + W * 64, SLICE);
            wgmma_hold(q, 128);
            wgmma_hold(rope, 16);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                wgmma_ss_n128<TYPE, 0, 1>(q, desc_step(ds, kk * 32), desc_step(k, kk * 2048), 1);
            wgmma_commit();
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                wgmma_ss_n128<TYPE, 0, 1>(q + 64, desc_step(ds, kk * 32), desc_step(k, 2 * SLICE + kk * 2048), 1);
                if (SLICES > 8) wgmma_ss_n32<TYPE, 0, 1>(rope, desc_step(ds, kk * 32), desc_step(k8, kk * 2048), 1);
            }
            wgmma_commit();
            wgmma_wait(1);
            if (lane_of() == 0) mbar_arrive(shared + K_FREE + 16 * W);
            wgmma_wait(0);
            wgmma_hold(q, 128);
            wgmma_hold(rope, 16);
            if (lane_of() == 0) {
                mbar_arrive(shared + K_FREE + 16 * W + 8);
                mbar_arrive(shared + PD_FREE);
            }
        }
        if (tiles) parity ^= 2;
        if (p->dq.data) {
            const float down = SCALED && tiles ? power_of_two(-exponent_at(shared, parity & 1 ^ 1)) : 1;
            store_dq<W>(shared, p, q, down, 32, 256 * W);
            if (SLICES > 8) store_dq<W>(shared, p, rope, down, 4, 512 + 32 * W);
        }
    }
}

extern "C" __global__ void __launch_bounds__(KP_MLA_BWD_SM90_THREADS, 1)
    CFG(const __grid_constant__ struct kp_mla_bwd p) {
    const uint32_t shared = shared_base();
    if (threadIdx.x == 0) {
        for (uint32_t x = 0; x < 3; x++) {
            mbar_init(shared + Q_FULL + 8 * x, x ? 128 : 130);
            mbar_init(shared + K_FULL + 8 * x, x ? 128 : 129);
        }
        for (uint32_t x = 0; x < 4; x++) mbar_init(shared + K_FREE + 8 * x, 4);
        for (uint32_t x = 0; x < SLICES; x++) mbar_init(shared + Q_FREE + 8 * x, 4);
        mbar_init(shared + PD_FULL, 8);
        mbar_init(shared + PD_FREE, 12);
        mbar_init_fence();
    }
    __syncthreads();
    switch (threadIdx.x >> 7) {
    case 0:
        registers_more<192>();
        compute<0>(&p, shared);
        break;
    case 1:
        registers_more<192>();
        compute<1>(&p, shared);
        break;
    case 2:
        registers_fewer<96>();
        gradients(&p, shared);
        break;
    default: registers_fewer<32>(); produce(&p, shared);
    }
}
