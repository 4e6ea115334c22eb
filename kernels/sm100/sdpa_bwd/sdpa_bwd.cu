/* SPDX-License-Identifier: MIT
 * Dense attention backward on Blackwell (tcgen05, sm_100a): f16 and bf16, causal, windows, GQA, sinks that lse
 * includes, lengths, packed sequences; softcap (.score_mod). Simulated, not
 * yet run on silicon. A CTA (D 64) owns 128 keys of one key head, a
 * pair of CTAs (D 128; D 192 with DV 128) 256; it walks the tiles of 128 query rows that see them, of every query head
 * of the group: a step each.
 *
 *   P = 2^(unit s - lse), unit = scale log2(e)     dP = dO V^T     dS = P o (dP - shift)
 *   dV += P^T dO     dK += dS^T Q     dQ += dS K     at the end dK and dQ are multiplied by the scale
 *
 *   K, V once, Q, dO of each step --TMA, 128-byte swizzle--> slices of 64 columns in shared memory; lse, shift too
 *   K, Q slices  --> S^T  (tensor memory) --exponentials--> P^T  (over its S^T, operand A) --dO slices (B)--> dV
 *   V, dO slices --> dP^T (tensor memory) --P, shift------> dS^T (over S^T, too,       A) --Q slices (B)---> dK
 *                                                           dS in shared memory (A) ---K slices (B)---> dQ of the step
 *   dQ --registers--> red.v4: sums of all CTAs of the head, f32, in the order of the fragments of convert (fours)
 *
 * kernels/smxx/sdpa_bwd_prepare.cu gives lse, shift and zeroes; sdpa_bwd_convert.cu rounds dQ. In order (turns): a row
 * tile's sums are added in the order of the key tiles; only the warps of sums wait for their turn.
 *
 *   products (one thread)   dV(t) dK(t) S(t+1)   dQ(t)   dP(t+1)   dV(t+1) dK(t+1) S(t+2)   ...         t: step
 *   scores                  dS(t) |              S(t+1) -> P(t+1) | dP(t+1) -> dS(t+1) |
 *   sums                                                  dQ(t) -> registers -> memory
 * Products of one thread are performed in their order: S(t+1) may overwrite P(t) and dS(t) without a message. dQ(t) of
 * a pair stands over dP(t), and dP(t+1) waits until it is in registers; at D 64 dQ has columns of its own. The order of
 * D 192, where S, dP and dQ have one place: serial.h.
 *
 * A pair: S^T, dP^T, dV and dK are split by keys (M 256), dQ by queries (M 128, K 256 keys): each (query, key, column)
 * is added once for both CTAs' keys. Of B each CTA has half: 64 of the queries (S, dP), 64 of the columns (dV, dK, dQ);
 * so Q and dO come twice, by rows and by columns, and K by columns of all 256 keys. What crosses is dS: a thread has 64
 * queries of a key, which are one CTA's, and stores them there.
 *
 * Roles, 512 threads, D 192 in ()  registers     Tensor memory, columns
 *   warps 0..3    scores, queries 0..63    152 (160)  0         64        128       256       384     511
 *   warps 4..7    scores, queries 64..127  152 (160) | S^T 0   | S^T 1   | dP^T    | dV      | dK      |   D 128
 *   warps 8..11   sums of dQ               136 (120) | P0 dS0  | P1 dS1  | dQ      |         |         |
 *   warp 12       products (a lane)         72        0         64   96    128       192       320     511
 *   warp 13       copies (a lane)           72       | P0 P1   | S^T 0   | S^T 1   | dV      | dK      |   D 192
 *   warp 14       cleaning                  72       | dS0 dS1 | dP^T 0  | dP^T 1  |         |         |
 *   warp 15       nothing                   72       |         |    | dQ           |         |         |
 *
 * Lane r: key r. P, dS: 32 columns each, two numbers a cell. dQ of a pair: lanes 64 g + r: query r of the CTA, half g
 * of the columns. D 64: dV 256.., dK 320.., dQ 384..447, lane r: query r. Shared memory, barriers: layout.h.
 *
 * Hidden cells have P = dS = 0, but 0 * NaN is NaN:
 *   keys of infinities or NaN, or past the end   zeroed once (sdpa_bwd_bad_keys.h; by columns: clean_key_columns)
 *   rows that are empty, of NaN or past the end  Q and dO are zeroed by the cleaning warp between arrival and products;
 *                                                of empty ones dS, too, since V may hold a NaN
 *   other rows whose shift is not finite         as it is wherever dO is not: dO is zeroed and its product with P added
 *                                                to dV by the warps of scores, from memory (add_bad_dout)
 *   infinities in q or k with softcap            sdpa_bwd_infinite.h
 * Counts, layouts and what was tried: docs/kernels/sdpa_bwd_sm100.md. */
#include "kernels/sm100/sdpa_bwd/loads.h"
#include "kernels/sm100/sdpa_bwd/products.h"
#include "kernels/sm100/sdpa_bwd/scores.h"
#include "kernels/sm100/sdpa_bwd/serial.h"
#include "kernels/sm100/sdpa_bwd/sums.h"

/* 512 a thread of each warpgroup. At D 192 the other splits that were tried spill. */
constexpr int SCORE_REGISTERS = SCORE_MOD ? 168 : SERIAL ? 160 : 152;
constexpr int SUM_REGISTERS = SCORE_MOD ? (SERIAL ? 120 : 104) : !SERIAL ? 136 : SCALED ? 128 : 120;
constexpr int OTHER_REGISTERS = SERIAL && SCORE_MOD ? 56 : SERIAL && SCALED ? 64 : 72;

static __device__ __forceinline__ void init_barriers(uint32_t base) {
    for (uint32_t x = 0; x < BARRIERS; x++) {
        const int warps8 = x == KEYS_READY || x == P_FULL || x == DS_FULL || x == S_READ;
        const int cleaning = (x >= PAIR_ROWS && x < COLUMNS_FULL) || x == COLUMNS_READY || x == DOUT_READY ||
                             x == DOUT_COLUMNS_READY;
        mbar_init(at_barrier(base, x), warps8 ? 8 * CTAS : x == DQ_EMPTY ? 4 * CTAS : cleaning ? CTAS : 1);
    }
    mbar_init_fence();
}

/* In order: the number that one thread draws for all: whoever waits for a turn waits for a CTA that has started. */
static __device__ __forceinline__ uint32_t draw_number(const struct kp_sdpa_bwd *p, uint32_t base) {
    const int64_t ticket = p->in.heads_q * (p->stat_rows / ROWS);
    if (threadIdx.x == 0 && rank_of() == 0) {
        const uint32_t number = (uint32_t)take_ticket((int32_t *)p->turns + ticket);
        shared_store32(base + AT_NUMBER, number);
        if (PAIR) cluster_store32(cluster_address(base + AT_NUMBER, 1), number);
    }
    meet();
    return shared_load32(base + AT_NUMBER);
}

extern "C" __global__ void __launch_bounds__(KP_SDPA_BWD_SM100_THREADS, 1)
    CFG(const __grid_constant__ parameters maps) {
    const uint32_t base = shared_base();
    const struct kp_sdpa_bwd *p = &maps_of(&maps)->all.bwd;
    const int warp = warp_of();
    if (warp == WARP_PRODUCTS) tc_alloc(base + AT_SLOT, TM_COLUMNS);
    if (threadIdx.x == 0) init_barriers(base);
    meet();
    const uint32_t number = p->turns ? draw_number(p, base) : blockIdx.x / CTAS;
    if (warp == 0) { /* what the CTA has to do, or -1 steps where nothing is to be written */
        struct work w;
        if (!find_work(p, number, &w)) w.steps = -1;
        if (threadIdx.x == 0) keep_work(base, &w);
        if (SCORE_MOD && threadIdx.x == 0) shared_store32(base + ANY_MARKED, 0);
    }
    __syncthreads();
    if (steps_of(base) < 0) {
        /* nothing is to be written */
    } else if (warp < WARP_SUMS) {
        registers_more<SCORE_REGISTERS>();
        run_scores(maps_of(&maps), base);
    } else if (warp < WARP_PRODUCTS) {
        if (SERIAL || SCORE_MOD)
            registers_fewer<SUM_REGISTERS>(); /* than the 128 of the launch */
        else
            registers_more<SUM_REGISTERS>();
        run_sums(p, base);
    } else {
        registers_fewer<OTHER_REGISTERS>();
        if (warp == WARP_PRODUCTS && lane_of() == 0 && rank_of() == 0)
            SERIAL ? run_products_serial(p, base) : run_products(p, base);
        if (warp == WARP_COPIES && lane_of() == 0) run_copies(&maps, base);
        if (warp == WARP_CLEANING) SERIAL ? run_cleaning_serial(p, base) : run_cleaning(p, base);
        __syncwarp();
    }
    meet();
    if (warp == WARP_PRODUCTS) tc_free(shared_load32(base + AT_SLOT), TM_COLUMNS);
}
