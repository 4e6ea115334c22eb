/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Blackwell (tcgen05, sm_100a) for 33 to 64 heads: bf16, f16, D = 576 or 512. Simulated, not yet
 * run on silicon. A CTA owns 64 heads of one query and walks the query's slots, 64 at a time; or, where queries are
 * few, a part of the slots, which kernels/smxx/mla_combine.cu merges.
 *
 *   S = Q K^T      P = 2^(scale log2(e) S - offset)      O = P V      out = O / (sum P + 2^(sink - offset))
 *
 *   q --TMA--> rings --correction--> Q (tensor memory, A) --+
 *   kv rows --gather4--> ring of half tiles: K (B) ---------+--> S, two sums --> softmax --> P (shared memory)
 *                        ring of ropes ---------------------+                      |             |
 *                          |                                                    offsets     tcgen05.cp
 *                          |                                                       |             |
 *                          |                                         correction: O rescaled      v
 *                          +--> V (B) ------------------------------------> O += P V <--- P (tensor memory, A)
 *                                                                           |
 *                                                                           +--correction--> out
 *
 * Two layouts of 64 rows. S: a plain product of M 64 writes 16 lanes of each warp's 32, and the other 16 are as good.
 * So columns d 0..255 of Q stand in the first ones, with half of the rope, columns 256..511 in the second ones. Both
 * make a sum of their own, and a warp of softmax, which reads both, adds them: Q takes 144 columns and nothing crosses
 * warps. O: a product .ws of M 64 has half of its columns in lanes 0..63 and half in lanes 64..127, 128 lanes by 256
 * columns in all for d 0..511. It wants P in both places, and tcgen05.cp doubles P on its way out of shared memory.
 *
 * Half tiles. A half of K is free when the half of O's columns that it is V of has been made, a rope with S.
 *
 * The next S is started before the output of a tile, also where it is the next work tile's: correction brings Q as soon
 * as no S needs the old one, and stores O while softmax works on.
 *
 * Offsets: rint of a row's largest score, moved where that has grown by more than 8; O is rescaled then.
 *
 * Roles, 352 threads: warps 0..3 softmax, 4..7 correction, 8 products (one thread), 9 and 10 copies, of a half of the
 * columns each, so that one reads indices while the other's rows come. Shared memory, barriers: layout.h.
 *
 * Tensor memory, columns      0      64     96           240   256            384            511
 *   lanes 0..15 of 32, heads  | S, low | P | Q, low d     |     | O, d 0..255  | O, d 256..511 |
 *   lanes 16..31              | S, high| P | Q, high d    |     | O            | O             |
 *
 * Slots that are not valid: K rows are zeros (their row is outside of the map), P = 0. Heads that do not exist are
 * zeros, too, and are not stored. Counts, layouts and what was tried: docs/kernels/mla_fwd_sm100.md. */
#include "kernels/sm100/mla_fwd_h64/correction.h"
#include "kernels/sm100/mla_fwd_h64/loads.h"
#include "kernels/sm100/mla_fwd_h64/products.h"
#include "kernels/sm100/mla_fwd_h64/softmax.h"

static __device__ __forceinline__ void init_barriers(uint32_t base) {
    for (uint32_t x = 0; x < BARRIERS; x++) {
        const int p = x >= P_FULL && x < O_FULL, commits = x < Q_FULL || x == S_FULL || (x >= O_FULL && x < SUMS_FULL);
        mbar_init(at_barrier(base, x), p ? 8 : commits ? 1 : 4);
    }
    mbar_init_fence();
}

extern "C" __global__ void __launch_bounds__(KP_MLA_FWD_H64_SM100_THREADS, 1)
    CFG(const __grid_constant__ struct kp_mla_fwd_sm100 all) {
    const struct kp_mla_fwd_sm100 *p = &all;
    const uint32_t base = shared_base();
    const int warp = warp_of();
    if (warp == WARP_PRODUCTS) tc_alloc(base + AT_SLOT, TM_COLUMNS);
    if (threadIdx.x == 0) init_barriers(base);
    meet();
    const uint32_t tm = shared_load32(base + AT_SLOT);
    if (warp < 4)
        run_softmax(p, base, tm);
    else if (warp < WARP_PRODUCTS)
        run_correction(p, base, tm);
    else if (warp >= WARP_COPIES)
        run_copies(p, base, (uint32_t)(warp - WARP_COPIES));
    else if (lane_of() == 0)
        run_products(p, base, tm);
    __syncwarp();
    meet();
    if (warp == WARP_PRODUCTS) tc_free(tm, TM_COLUMNS);
}
