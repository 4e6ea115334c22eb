/* SPDX-License-Identifier: MIT
 * A test of the simulator, not of the library: attention on sm_100 with S, P and O in tensor memory, and a switch for
 * each thing that can be forgotten.
 *
 *   warp 5 fetches Q, then K and V in two stages; warp 4 starts S = Q K^T one tile ahead and O += P V with P as its
 *   operand in tensor memory; warps 0 to 3 take S, keep maximum and sum of a row, scale what O has when the maximum
 *   grows, put P back and at the end write O
 *
 * q [128 x 64], k, v [64 tiles x 64] bf16, o [128 x 64] f32; one CTA.
 * Shared memory: Q 16384, K 2 x 8192, V 2 x 8192, barriers.   Tensor memory: S 0..63, P 64..95, O 128..191
 * Q_FULL  K_FULL [2]  V_FULL [2] (1 + bytes)  K_EMPTY [2]  V_EMPTY [2]  S_DONE  O_DONE (commit)  S_FREE  P_THERE (128)
 *
 * mutant: 0 is right; others leave out or spoil what stands at the mark @n. */
#include "tests/sim/blackwell_tcgen05.h"

enum { Q_AT = 0, K_AT = 16384, V_AT = 32768, BARRIERS = 49152, SLOT = 49280, KEYS = 64, TILE = 8192 };
enum { Q_FULL = 0, K_FULL = 8, V_FULL = 24, K_EMPTY = 40, V_EMPTY = 56, S_DONE = 72, O_DONE = 80 };
enum { S_FREE = 88, P_THERE = 96 };
enum { P_COLUMN = 64, O_COLUMN = 128, COLUMNS = 256 };

extern "C" __global__ void __launch_bounds__(192, 1)
    blackwell_attention(const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
                        const __grid_constant__ tensor_map v, float *o, int tiles, float scale, int mutant) {
    const uint32_t s = shared_base(), bar = s + BARRIERS;
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 4) alloc<1>(s + SLOT, mutant == 31 ? 128 : COLUMNS);
    if (thread == 0) {
        for (int i = 0; i < S_FREE; i += 8) mbar_init(bar + i, 1);
        mbar_init(bar + S_FREE, 128), mbar_init(bar + P_THERE, mutant == 27 ? 96 : 128);
        if (mutant != 30) mbar_init_fence();
    }
    before();
    __syncthreads();
    after();
    const uint32_t cells = shared_load32(s + SLOT);
    if (thread == 160) {
        expect(bar + Q_FULL, 2 * TILE);                                                    // @30
        fetch(s + Q_AT, &q, bar + Q_FULL, 0, 0);                                           // @30
        for (int j = 0; j < tiles; j++) {
            const uint32_t st = j & 1, turn = (j / 2 & 1) ^ 1;
            if (j >= 2 && mutant != 3) mbar_wait(bar + K_EMPTY + 8 * st, turn);            // @22
            expect(bar + K_FULL + 8 * st, mutant == 21 ? TILE - 16 : TILE);                // @3
            fetch(s + K_AT + st * TILE, &k, bar + K_FULL + 8 * st, 0, j * KEYS);           // @3 @21
            if (j >= 2 && mutant != 4) mbar_wait(bar + V_EMPTY + 8 * st, turn);
            expect(bar + V_FULL + 8 * st, TILE);                                           // @4
            fetch(s + V_AT + st * TILE, &v, bar + V_FULL + 8 * st, 0, j * KEYS);           // @4
        }
    } else if (thread == 128) {
        const uint32_t of_s = shape_of(128, KEYS, 0), of_o = shape_of(128, 64, mutant == 26 ? 0 : 1);
        mbar_wait(bar + Q_FULL, 0);
        for (int j = 0; j <= tiles; j++) {
            if (j < tiles) {
                const uint32_t st = j & 1;
                if (mutant != 1) mbar_wait(bar + K_FULL + 8 * st, j / 2 & 1);
                if (j && mutant != 10) mbar_wait(bar + S_FREE, (j - 1) & 1);
                after();
                const uint64_t qd = desc(s + Q_AT, 16), kd = desc(s + K_AT + st * TILE, 16);
                for (int e = 0; e < 4; e++) product<1>(cells, qd + 2 * e, kd + 2 * e, of_s, e); // @1 @9 @10
                if (mutant != 22) commit(bar + K_EMPTY + 8 * st);
                commit(bar + S_DONE);                                                      // @10
            }
            if (j) {
                const uint32_t t = j - 1, st = t & 1;
                if (mutant != 17) mbar_wait(bar + P_THERE, t & 1);                         // @27
                if (mutant != 16) after();
                if (mutant != 2) mbar_wait(bar + V_FULL + 8 * st, t / 2 & 1);
                const uint64_t vd = desc(s + V_AT + st * TILE, 16);
                const uint32_t to = cells + O_COLUMN, p = cells + P_COLUMN + (mutant == 19 ? 32 : 0);
                for (int e = 0; e < 4; e++) {
                    const int add = mutant == 29 ? 1 : t || e;
                    product_from_cells(to, p + 8 * e, vd + 128 * e, of_o, add); // @2 @13 @14 @15 @16 @17 @19 @29 @31
                }
                if (mutant != 32) commit(bar + V_EMPTY + 8 * st);
                commit(bar + O_DONE);
            }
        }
    } else if (warp < 4) {
        const uint32_t lanes = cells + ((mutant == 18 ? warp ^ 1 : warp) << 21);
        float most = -INFINITY, sum = 0;
        for (int j = 0; j < tiles; j++) {
            float x[KEYS], top = most;
            if (mutant != 5) mbar_wait(bar + S_DONE, mutant == 6 ? (j & 1) ^ 1 : j & 1);
            if (mutant != 7) after();
            for (int i = 0; i < KEYS; i += 16) {
                uint32_t word[16];
                load16(word, lanes + i);                                                   // @5 @6 @7 @18
                if (mutant != 8) wait_loads();
                for (int e = 0; e < 16; e++) x[i + e] = __uint_as_float(word[e]) * scale;  // @8
            }
            if (mutant != 9) before();
            mbar_arrive(bar + S_FREE);
            for (int i = 0; i < KEYS; i++) top = fmaxf(top, x[i]);
            const float shrink = exp2f(most - top);
            most = top, sum *= shrink;
            for (int i = 0; i < KEYS; i++) x[i] = exp2f(x[i] - top), sum += x[i];
            if (j) { /* P V of the tile before has read P and added to O */
                if (mutant != 11) mbar_wait(bar + O_DONE, (j - 1) & 1);
                after();
                for (int i = 0; i < 64 && mutant != 28; i += 16) {
                    uint32_t word[16];
                    load16(word, lanes + O_COLUMN + i);                                    // @11
                    if (mutant != 12) wait_loads();
                    for (int e = 0; e < 16; e++)
                        word[e] = __float_as_uint(__uint_as_float(word[e]) * shrink);      // @12
                    store8(lanes + O_COLUMN + i, word), store8(lanes + O_COLUMN + i + 8, word + 8);
                }
                if (mutant != 13) wait_stores();
            }
            for (int i = 0; i < KEYS; i += 16) {
                uint32_t p[8];
                for (int e = 0; e < 8; e++) p[e] = pack16(KP_BF16, x[i + 2 * e], x[i + 2 * e + 1]);
                store8(lanes + P_COLUMN + i / 2, p);
            }
            if (mutant != 14 && mutant != 13) wait_stores();
            if (mutant != 15) before();
            mbar_arrive(bar + P_THERE);
        }
        if (mutant != 23) mbar_wait(bar + O_DONE, (tiles - 1) & 1);
        if (mutant != 24) after();
        for (int i = 0; i < 64; i += 16) {
            uint32_t word[16];
            load16(word, lanes + O_COLUMN + i);                                            // @23 @24
            wait_loads();
            for (int e = 0; e < 16; e++) o[thread * 64 + i + e] = __uint_as_float(word[e]) / sum;
        }
        if (mutant != 25) before();
    }
    __syncthreads();
    if (warp == 4 && mutant != 20) dealloc<1>(cells, mutant == 31 ? 128 : COLUMNS);        // @25
}
