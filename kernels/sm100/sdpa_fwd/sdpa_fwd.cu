/* SPDX-License-Identifier: MIT
 * Dense attention forward on Blackwell (tcgen05, sm_100a): f16 and bf16, causal, windows, GQA, sinks, lengths, packed
 * sequences. Simulated, not yet run on silicon. Persistent: a CTA takes 256 query rows of one head, two tiles of Q of
 * 128 rows, and loops over the keys that they see from the last tile of 128 to the first. A pair of CTAs (PAIR) takes
 * 512 rows.
 *
 *   S = Q K^T      P = 2^(unit S - m), unit = scale log2(e)      l += rowsum P      O += P V
 *   at the end     out = O / l,  lse = ln 2 (m + log2 l)
 *
 *   q, k, v --TMA--> slices of 64 columns (shared) --> S (tensor memory) --softmax--> P (over its S, operand A) --+
 *                                            V slices (B) -------------------------------> O (tensor memory) <--+
 *                                                                                           --output--> out, lse
 *
 *   products (one thread)      PV0(n) QK0(n-1)   PV1(n) QK1(n-1)   PV0(n-1) QK0(n-2)   ...      0, 1: tile of Q
 *   softmax of tile 0          S0(n) -> P0(n)  |                | S0(n-1) -> P0(n-1) |          n: tile of keys
 *   softmax of tile 1                          | S1(n) -> P1(n) |                    | ...
 *   output, between work tiles: O of both tiles of Q under the first products of the next work tile, whose first Q K^T
 *   follows the last P V of this one at once
 *
 * A thread of softmax has one row. m is raised only when a score passes it by more than 8 in log2 units: P <= 2^8 then,
 * and l and O share the stale m, which the division at the end cancels. Who raises it rescales O itself: products of
 * one thread end in order, so that a complete S(n-1) means a complete O += P V(n), and no message is needed. With P in
 * columns of its own (DV 64, OWN_P), Q K^T comes first in each pair of products, when S has been read (S_EMPTY), and P
 * and O are touched when P V of the tile before is done (P_EMPTY).
 *
 * A pair: a product is of the same tile of Q of both CTAs, M 256, rows 0..127 the even CTA's; S, P and O stand in the
 * CTA of their rows, as of one CTA. Of B each CTA has half: of K 64 keys, of V 64 columns, which the other CTA's tensor
 * unit reads there. The even CTA starts all products; commits arrive in both, copies and warps of both arrive at its
 * barriers. Nothing else crosses.
 *
 *   even CTA   Q0 rows 0..127,   Q1 rows 256..383    K keys 0..63     V columns 0..63       one ring each, 16 slices of
 *   odd CTA    Q0 rows 128..255, Q1 rows 384..511    K keys 64..127   V columns 64..127     64 keys and 64 columns
 *
 * Exponentials: POLYNOMIAL of 16 pairs on FMA units (f32x2.h), where no key is hidden and no score is far or NaN.
 *
 * Roles, 512 threads              registers      Tensor memory, columns (lane r: row r of the tile of Q)
 *   warps 0..3    softmax, tile 0    184          0           128         256         384        511
 *   warps 4..7    softmax, tile 1    184        | S0, P0     | S1, P1     | O0         | O1         |
 *   warps 8..11   output              96          P: 64 columns, two numbers a cell; O: DIM_V columns
 *   warp 12       products (a lane)   48        OWN_P: O0 256..319, O1 320..383, P0 384..447, P1 448..511
 *   warp 13       copies              48        Shared memory, barriers: layout.h
 *   warp 14       rows without keys   48
 *   warp 15       nothing             48
 *
 * Hidden keys have P = 0, but 0 * NaN is NaN. Rows of V past the sequence's keys are cleared in shared memory by the
 * output warps (clears_tail) or lie outside of the tensor and arrive as zeros. Where keys are hidden from some rows
 * only and a sum is not finite, sdpa_hidden_values.h looks whether a hidden value is to blame, and computes such rows
 * again. Counts, layouts and what was tried: docs/kernels/sdpa_fwd_sm100.md. */
#include "kernels/sm100/sdpa_fwd/loads.h"
#include "kernels/sm100/sdpa_fwd/output.h"
#include "kernels/sm100/sdpa_fwd/products.h"
#include "kernels/sm100/sdpa_fwd/softmax.h"

static __device__ __forceinline__ void init_barriers(uint32_t base) {
#pragma unroll 1 /* else, by 4, ptxas spills in the softmax of a pair */
    for (uint32_t x = 0; x < BARRIERS; x++) {
        const int both = (x >= S_EMPTY && x < O_FULL) || (x >= O_EMPTY && x < SUMS_FULL) || x == V_CLEARED,
                  own = (x >= SUMS_FULL && x < WORK_FULL) || (x >= SUMS_EMPTY && x < TAIL_FULL),
                  takes = x >= WORK_EMPTY && x < V_CLEARED;
        mbar_init(at_barrier(base, x), both ? 4 * CTAS : own ? 4 : takes ? 13 - rank_of() : 1);
    }
    mbar_init_fence();
}

extern "C" __global__ void __launch_bounds__(KP_SDPA_FWD_SM100_THREADS, 1)
    CFG(const __grid_constant__ struct kp_sdpa_fwd_maps maps) {
    const uint32_t base = shared_base();
    const int warp = warp_of();
    if (warp == WARP_PRODUCTS) tc_alloc(base + AT_SLOT, TM_COLUMNS);
    if (threadIdx.x == 0) init_barriers(base);
    meet();
    if (warp < WARP_OUTPUT) {
        registers_more<184>();
        run_softmax(&maps.fwd, base, warp / 4);
    } else if (warp < WARP_PRODUCTS) {
        registers_fewer<96>();
        run_output(&maps.fwd, base);
    } else {
        registers_fewer<48>();
        if (warp == WARP_PRODUCTS && lane_of() == 0 && rank_of() == 0) run_products(&maps.fwd, base);
        if (warp == WARP_COPIES) run_copies(&maps, base);
        if (warp == WARP_EMPTY_ROWS && rank_of() == 0) fill_empty(&maps);
        __syncwarp();
    }
    meet();
    if (warp == WARP_PRODUCTS) tc_free(shared_load32(base + AT_SLOT), TM_COLUMNS);
}
