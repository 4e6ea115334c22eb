/* SPDX-License-Identifier: MIT
 * A test of the simulator, not of the library: two products in a row on sm_100, o = bf16(scale a b^T) v, with the sums
 * of the first and its rounded values in tensor memory, and a switch for each thing that can be forgotten.
 *
 *   warp 5 fetches A and B, 128 x 64 each, in two stages, and V; warp 4 starts the products; warps 0 to 3 take S from
 *   tensor memory, scale, round and put it back as P, later write O
 *
 * a [128 x 64 tiles], b [128 x 64 tiles], v [128 x 64], o [128 x 64] f32; one CTA.
 * Shared memory: A 2 x 16384, B 2 x 16384, V 16384, barriers.
 * Tensor memory: S 0..127 (P 0..63 takes its place), O 128..191
 * FULL [2] (1 arrival + bytes)  EMPTY [2] (commit)  V_FULL  S_DONE (commit)  P_THERE (128)  O_DONE (commit)
 *
 * mutant: 0 is right; others leave out or spoil what stands at the mark @n. */
#include "tests/sim/blackwell_tcgen05.h"

enum { A_AT = 0, B_AT = 32768, V_AT = 65536, BARRIERS = 81920, SLOT = 82048 };
enum { FULL = 0, EMPTY = 16, V_FULL = 32, S_DONE = 40, P_THERE = 48, O_DONE = 56 };
constexpr int TILE = 16384, O_COLUMN = 128;

WORDS void load8(uint32_t x[8], uint32_t address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
                 : "r"(address));
}
WORDS void store4(uint32_t address, const uint32_t x[4]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(192, 1)
    blackwell_products(const __grid_constant__ tensor_map a, const __grid_constant__ tensor_map b,
                       const __grid_constant__ tensor_map v, float *o, int tiles, float scale, int mutant) {
    const uint32_t s = shared_base(), bar = s + BARRIERS;
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 4) alloc<1>(s + SLOT, mutant == 12 ? 128 : 256);
    if (thread == 0) {
        for (int i = 0; i < 16; i += 8) mbar_init(bar + FULL + i, 1), mbar_init(bar + EMPTY + i, 1);
        mbar_init(bar + V_FULL, 1), mbar_init(bar + S_DONE, 1), mbar_init(bar + O_DONE, 1);
        mbar_init(bar + P_THERE, 128);
        mbar_init_fence();
    }
    before();
    __syncthreads();
    after();
    const uint32_t cells = shared_load32(s + SLOT);
    if (thread == 160) {
        expect(bar + V_FULL, TILE);
        fetch(s + V_AT, &v, bar + V_FULL, 0, 0);
        for (int n = 0; n < tiles; n++) {
            const uint32_t st = n & 1;
            if (n >= 2 && mutant != 2) mbar_wait(bar + EMPTY + 8 * st, (n / 2 & 1) ^ 1); // @13
            expect(bar + FULL + 8 * st, mutant == 16 ? 2 * TILE + 16 : 2 * TILE);        // @2
            fetch(s + A_AT + st * TILE, &a, bar + FULL + 8 * st, n * 64, 0);                // @2
            fetch(s + B_AT + st * TILE, &b, bar + FULL + 8 * st, n * 64, 0);
        }
    } else if (warp == 4 && (thread == 128 || (mutant == 15 && thread == 129))) {
        /* f32 sums, bf16, 128 x 128; the second 128 x 64 with n along the rows of V */
        const uint32_t first = shape_of(128, 128, 0), second = shape_of(128, 64, mutant != 10);
        for (int n = 0; n < tiles; n++) {
            const uint32_t st = n & 1;
            if (mutant != 1) mbar_wait(bar + FULL + 8 * st, n / 2 & 1);                  // @16
            after();
            const uint64_t ad = desc(s + A_AT + st * TILE, 16);
            const uint64_t bd = desc(s + B_AT + st * TILE, 16) + (mutant == 9 ? (uint64_t)64 << 32 : 0);
            for (int k = 0; k < 4; k++) product<1>(cells, ad + 2 * k, bd + 2 * k, first, n + k); // @1 @9 @15
            if (mutant != 13) commit(bar + EMPTY + 8 * st);
        }
        commit(bar + S_DONE);
        mbar_wait(bar + V_FULL, 0);
        mbar_wait(bar + P_THERE, 0);
        if (mutant != 8) after();
        const uint64_t vd = desc(s + V_AT, 16);
        for (int k = 0; k < 8; k++)
            product_from_cells(cells + O_COLUMN, cells + 8 * k, vd + 128 * k, second, k); // @6 @7 @8 @12
        commit(bar + O_DONE);
    } else if (warp < 4) {
        const uint32_t lanes = cells + ((mutant == 14 ? warp ^ 1 : warp) << 21);
        if (mutant != 3) mbar_wait(bar + S_DONE, 0);
        if (mutant != 4) after();
        for (int i = 0; i < 16; i++) {
            uint32_t x[8], p[4];
            load8(x, lanes + 8 * i);                                                     // @3 @4 @14
            if (mutant != 5) wait_loads();
            for (int k = 0; k < 4; k++)
                p[k] = pack16(KP_BF16, __uint_as_float(x[2 * k]) * scale, __uint_as_float(x[2 * k + 1]) * scale); // @5
            store4(lanes + 4 * i, p);
        }
        if (mutant != 6) wait_stores();
        if (mutant != 7) before();
        mbar_arrive(bar + P_THERE);
        mbar_wait(bar + O_DONE, 0);
        after();
        for (int i = 0; i < 8; i++) {
            uint32_t x[8];
            load8(x, lanes + O_COLUMN + 8 * i);
            wait_loads();
            for (int k = 0; k < 8; k++) o[thread * 64 + 8 * i + k] = __uint_as_float(x[k]);
        }
        if (mutant != 17) before();
    }
    __syncthreads();
    if (warp == 4 && mutant != 11) dealloc<1>(cells, mutant == 12 ? 128 : 256);          // @17
}
