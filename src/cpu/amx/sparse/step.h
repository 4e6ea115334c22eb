/* SPDX-License-Identifier: MIT
 * Products of the sparse operators on AMX (mla_fwd_scores.c, mla_bwd_scores.c, mla_pv_dkv.c): 32 x 32 sums, two tiles
 * of A by two of B a step of 16 pairs, one product after the other without a gap.
 *
 *     products    A0 B0         A1 B0         A0 B1         A1 B1            sums 0, 2, 1, 3
 *     loads    A1                        B0'            A0'           B1'    ' of the next step, or of the next product
 *     work             W0            W1            W2            W3
 *
 * Whatever follows a tile instruction waits until that has found a free tile, so that other work hides best in small
 * parts of few cycles' latency, one after each product. */
#ifndef ATTN_CPU_AMX_SPARSE_STEP_H
#define ATTN_CPU_AMX_SPARSE_STEP_H
#include "cpu/amx/tile.h"
#include "cpu/ukr/bf16.h"

enum { SIDE = ATTN_MLA_HEADS, CELLS = SIDE * SIDE, TILE = 16 * 16 };

/* What the first step of all finds loaded, and each step leaves loaded for the next one. A tile of B, from the
 * second-level cache, is loaded two products before it is needed, one of A, from the first-level cache, one product. */
#define BEGIN(a, b)                                                                                                    \
    do {                                                                                                               \
        tile_load_once(6, (b), 64);                                                                                    \
        tile_load(4, (a), 64);                                                                                         \
        tile_load_once(7, (b) + TILE, 64);                                                                             \
    } while (0)
/* A step at a_, b_ [2][16][16 pairs]: ON says where the next one finds its tiles. OPEN of a tile, on a product's first
 * step, comes before its product: what it holds of the sums before is stored, then new sums are loaded or 0. */
#define STEP(first, OPEN, ON, W0, W1, W2, W3)                                                                          \
    do {                                                                                                               \
        tile_load(5, a_ + TILE, 64);                                                                                   \
        ON;                                                                                                            \
        if (first) OPEN(0);                                                                                            \
        tile_dpbf16(0, 4, 6);                                                                                          \
        W0;                                                                                                            \
        if (first) OPEN(2);                                                                                            \
        tile_dpbf16(2, 5, 6);                                                                                          \
        tile_load_once(6, b_, 64);                                                                                     \
        W1;                                                                                                            \
        if (first) OPEN(1);                                                                                            \
        tile_dpbf16(1, 4, 7);                                                                                          \
        tile_load(4, a_, 64);                                                                                          \
        W2;                                                                                                            \
        if (first) OPEN(3);                                                                                            \
        tile_dpbf16(3, 5, 7);                                                                                          \
        tile_load_once(7, b_ + TILE, 64);                                                                              \
        W3;                                                                                                            \
    } while (0)
#define NOTHING     (void)0
#define ON_ALWAYS   a_ += 2 * TILE, b_ += 2 * TILE
#define ON_TO(a, b) a_ = (a), b_ = (b)
/* Where sums of tile t are in rows of ld. */
#define TILE_AT(t, ld) ((t) / 2 * 16 * (ld) + (t) % 2 * 16)
/* OPEN of sums that begin at 0; those before go to `late`, rows of SIDE, if there are any. */
#define OPEN_PENDING(t)                                                                                                \
    do {                                                                                                               \
        if (pending) tile_store(t, pending + TILE_AT(t, SIDE), SIDE * 4);                                              \
        tile_zero(t);                                                                                                  \
    } while (0)
static inline void sums_store(float *c, int64_t ldc) {
    tile_store(0, c + TILE_AT(0, ldc), ldc * 4);
    tile_store(1, c + TILE_AT(1, ldc), ldc * 4);
    tile_store(2, c + TILE_AT(2, ldc), ldc * 4);
    tile_store(3, c + TILE_AT(3, ldc), ldc * 4);
}
#endif
