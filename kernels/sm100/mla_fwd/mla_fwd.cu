/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Blackwell (tcgen05, sm_100a): bf16, f16, D = 576 or 512. Simulated, not yet run on silicon. A
 * pair of CTAs, a cluster, owns 128 heads of one query and walks the query's slots, 64 at a time; or, where queries are
 * few, a part of the slots, which kernels/smxx/mla_combine.cu merges. Over joined lists (.joined of the variant): 128
 * rows of a group of queries, group.h.
 *
 *   S = Q K^T      P = 2^(scale log2(e) S - offset)      O = P V      out = O / (sum P + 2^(sink - offset))
 *
 * Both CTAs have all heads and half of the columns: of Q, K, V (which is K) and O. So each element of a kv row is
 * gathered by one of them, once, into a tile that serves both products. S is a sum over both: each CTA makes its
 * columns' part of all 64 keys, keeps 32 keys and sends the other 32, and has the softmax of its own; P goes back.
 *
 *   q --TMA--> ring --> Q (tensor memory, A) ---+                              the other CTA
 *   kv rows --gather4--> ring: K (B) -----------+--> S --+-- its keys ------------> S
 *                         |                              +-- own keys, + S <------- S
 *                         |                                   |
 *                         |                       softmax: P, offset -------------> P
 *                         |                                   |    +--------------- P
 *                         |                       correction: 2^(offset - O's) P
 *                         +--> V (B) ---------------------+   |
 *                                    P (tensor memory, A) <---+--> O += P V --> out
 *
 * Offsets. The softmax of a CTA knows its own keys alone. Its offset, rint of a row's largest score, moves where that
 * has grown by more than 8 (f16: 7), and goes with P then. O has one of its own that follows both in the same way: P
 * and sums are brought to it by powers of two, exactly (f16: down to its smallest normal number), and O is rescaled
 * where it grows. Nobody waits for a maximum.
 *
 * Roles, 320 threads: warps 0..3 correction, 4..7 softmax (both also bring Q to tensor memory), 8 products (one
 * thread), 9 copies. Shared memory, barriers: layout.h.
 *
 * Tensor memory, columns (lane h: head h)     0           128       192       256                        511
 *                                           | Q, 2 a cell | S, P 0  | S, P 1  | O                         |
 *
 * Slots that are not valid: K rows are zeros (their row is outside of the map), P = 0. Rows that do not exist are
 * zeros, too, and are not stored. Counts, layouts and what was tried: docs/kernels/mla_fwd_sm100.md. */
#include "kernels/sm100/mla_fwd/correction.h"
#include "kernels/sm100/mla_fwd/loads.h"
#include "kernels/sm100/mla_fwd/products.h"
#include "kernels/sm100/mla_fwd/softmax.h"

static __device__ __forceinline__ void init_barriers(uint32_t base) {
    for (uint32_t x = 0; x < BARRIERS; x++) {
        const int warps8 = x == Q_FULL || x == SUMS_FULL || (JOINED && x == MARKS_FULL);
        mbar_init(at_barrier(base, x), warps8 ? 8 : x >= OTHER_S_FULL && x < O_FULL ? 4 : 1);
    }
    mbar_init_fence();
}

extern "C" __global__ void __launch_bounds__(KP_MLA_FWD_SM100_THREADS, 1)
    CFG(const __grid_constant__ parameters all) {
    const struct kp_mla_fwd_sm100 *p = (const struct kp_mla_fwd_sm100 *)&all;
    const uint32_t base = shared_base();
    const int warp = warp_of(), rank = (int)cluster_rank();
    if (warp == WARP_PRODUCTS) tc_alloc(base + AT_SLOT, TM_COLUMNS);
    if (threadIdx.x == 0) init_barriers(base);
    tc_before();
    cluster_sync();
    tc_after();
    const uint32_t tm = shared_load32(base + AT_SLOT);
    if (warp < 4)
        run_correction(p, base, tm, rank);
    else if (warp < WARP_PRODUCTS)
        run_softmax(p, base, tm, rank);
    else if (warp == WARP_COPIES)
        run_copies(p, base, rank);
    else if (lane_of() == 0)
        run_products(p, base, tm, rank);
    __syncwarp();
    cluster_sync();
    if (warp == WARP_PRODUCTS) tc_free(tm, TM_COLUMNS);
}
