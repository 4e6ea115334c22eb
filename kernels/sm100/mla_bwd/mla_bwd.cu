/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Blackwell (tcgen05, sm_100a): bf16, f16, D = 576 or 512. Simulated, not yet run on silicon. A
 * pair of CTAs, a cluster, owns 128 or 64 heads of one query and walks the query's slots twice, 64 at a time.
 *
 *   S = Q K^T      P' = exp2(scale log2(e) S - lse2)      dP = dO V^T      P = g P'      dS = scale P' (g dP - shift)
 *   dKV^T = dO^T P + Q^T dS (first pass)                  dQ = dS K (second pass)
 *
 *   first pass
 *     q, dout --TMA--> Q, dO (shared) --------> Q^T, dO^T (tensor memory)
 *                       | A                            | A
 *     kv rows --gather4--> K (B) --> S, dP --> P, dS --+--B--> dKV^T --red.v4--> dkv rows
 *                                  (registers)    |
 *                                                 +--> dS in memory (second-level cache)
 *   second pass
 *     dS in memory --TMA--> dS (A)      kv rows --gather4--> K (B) --> dQ --> dq
 *
 * Who has what: scores are split by heads (64 a CTA; of B, each CTA gathers 32 of the 64 keys), gradients by columns
 * (half of d a CTA). So each (query, key, column) of dKV is added once for 128 heads; what crosses the pair is P and
 * dS, which a thread stores into the CTA that has its 32 keys. Q^T and dO^T of all heads stay in tensor memory, a CTA's
 * half of the columns, which leaves no columns for dQ: it has a pass of its own, for which K is gathered again (by
 * columns) and the rounded dS, 16 KB a tile, goes through the second-level cache.
 *
 * 64 heads: a CTA's 64 rows of operand A are Q and dO of 32 heads, by turns of 16, so that one product gives S and dP;
 * S of rope is a product of its own. dQ^T = K^T dS^T in the place of dQ: M is columns d. All columns of tensor memory
 * are there at the same time, so that one pass is enough: K by columns and dS by heads, for dQ^T, have places of their
 * own in shared memory. Columns: Q^T 0..63, dO^T 64..127, rope 128..159, dQ^T 160..287, its rope 288..319, S and dP
 * 320..351, S of rope 352..383, dKV as below.
 *
 * Joined lists: the 128 rows are heads of 2, 4 or 8 neighbouring queries, and slots are entries of their joined list
 * (group.h); a group whose values are not all finite takes several rounds over queries.
 *
 * f16: P and dS of a tile have a power of two in common, which all rows of the work tile share (words.h).
 *
 * Roles: warps 0..3 scores (P, dS), 4..7 gradients (dKV, dQ out), 8 products (even CTA; one thread), 9 copies, 10
 * scatter lists (where a slot's gradient goes, which slots are valid). Between work tiles warps 0..7 bring Q^T and dO^T
 * (operands.h). Registers: at most 168 a thread, no spills. Tensor memory, shared memory, barriers: layout.h.
 *
 * Tensor memory, columns     0    64   128   192   256    320  352  384     448     511
 *     first pass           | Q^T 0, 1 | dO^T 0, 1 | rope | S | dP | dKV 0 | dKV 1 |
 *     second pass          |        dQ 0, 1       | rope |
 *
 * Slots that are not valid: K rows are zeros (their row is outside of the map), P = dS = 0, no gradient leaves. Empty
 * rows: P = dS = 0 by choice, Q^T and dO^T zeros, dQ zero. Variants `_det` store each gradient as a row instead of
 * adding it; kernels/smxx/mla_bwd_sort.cu and mla_bwd_sum.cu add the rows up in a fixed order. Row states come from
 * mla_bwd_prepare.cu. Counts, layouts and choices: docs/kernels/mla_bwd_sm100.md. */
#include "kernels/sm100/mla_bwd/layout.h"
#if CFG_JOINED
#include "kernels/sm100/mla_bwd/group.h"
#else
#include "kernels/sm100/mla_bwd/query.h"
#endif
#include "kernels/sm100/mla_bwd/words.h"
#include "kernels/sm100/mla_bwd/operands.h"
#include "kernels/sm100/mla_bwd/gradients.h"
#include "kernels/sm100/mla_bwd/loads.h"
#include "kernels/sm100/mla_bwd/products.h"
#include "kernels/sm100/mla_bwd/scores.h"

static __device__ __forceinline__ void init_barriers(uint32_t base) {
    for (int x = 0; x < BARRIERS; x++) {
        const int more8 = (WORDS && x > DS_FULL && x < PDS_EMPTY) || (JOINED && x == DQ_EMPTY);
        const int warps8 = more8 || x == OTHER_EMPTY || x == S_EMPTY || x == DP_EMPTY || x == P_FULL ||
                           x == DS_FULL || x == SUM_EMPTY || x == SUM_EMPTY + 1;
        int count = x == CELLS_FULL ? 16 : x == DS_STORED ? 4 : warps8 ? 8 : 1;
        if (x >= SCATTER_EMPTY) count = WORDS && x < WORDS_FULL ? 13 : 8;
        mbar_init(at_barrier(base, x), count);
    }
    mbar_init_fence();
}

/* Warps 0..7: operands, then scores or gradients of each work tile. */
static __device__ __forceinline__ void run_warpgroups(const struct kp_mla_bwd_sm100 *p, uint32_t base, uint32_t tm,
                                                      int rank) {
    uint32_t n = 0, tile = 0, done = 0, sum = 0, rounds = 0; /* of dQ */
    struct work w;
    for (int64_t x = first_work(); next_work(&p->bwd, &w, x); x += work_step(), n++) {
        named_sync(CELLS_BARRIER, CELLS_THREADS); /* dQ of the work tile before has left tensor memory */
        run_operands(&p->bwd, &w, base, tm, rank, n);
        if (warp_of() < 4) {
            run_scores(p, &w, base, tm, rank, tile, done);
        } else {
            const uint32_t words = run_gradients(&p->bwd, &w, base, tm, rank, tile, &sum);
            if (p->bwd.dq.data) run_rounds_of_dq(&p->bwd, &w, base, tm, rank, words, &rounds);
        }
        tile += (uint32_t)w.tiles, done += (uint32_t)(w.tiles + (!STACKED && p->bwd.dq.data));
    }
}

extern "C" __global__ void __launch_bounds__(KP_SM100_THREADS, 1)
    CFG(const __grid_constant__ struct kp_mla_bwd_sm100 p) {
    const uint32_t base = shared_base();
    const int warp = warp_of(), rank = (int)cluster_rank();
    if (warp == WARP_PRODUCTS) tc_alloc(base + AT_SLOT, TM_COLUMNS);
    if (threadIdx.x == 0) init_barriers(base);
    tc_before();
    cluster_sync();
    tc_after();
    const uint32_t tm = shared_load32(base + AT_SLOT);
    if (warp < WARP_PRODUCTS)
        run_warpgroups(&p, base, tm, rank);
    else if (warp == WARP_PRODUCTS && rank == 0 && lane_of() == 0)
        run_products(&p.bwd, base, tm);
    else if (warp == WARP_COPIES)
        run_copies(&p, base, rank);
    else if (warp == WARP_SCATTER)
        run_scatter_list(&p.bwd, base);
    __syncwarp();
    cluster_sync();
    if (warp == WARP_PRODUCTS) tc_free(tm, TM_COLUMNS);
}
