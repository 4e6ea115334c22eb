/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: configuration of the variant, and what stands where in shared memory. The picture and the
 * rules stand there. */
#ifndef ATTN_SM90_SDPA_BWD_PAIR_LAYOUT_H
#define ATTN_SM90_SDPA_BWD_PAIR_LAYOUT_H
#include "kernels/params/sdpa_sm90.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, HALF = DIM / 2, SCALED = TYPE == KP_F16;
constexpr int ROWS = CFG_ROWS, KEYS = 128, PAIR = 1, CTA_KEYS = 64; /* keys of the pair, of this CTA */
/* Warpgroups: cells, dV, dK, dQ: 512 registers a thread of each; ptxas keeps 24 of a warpgroup from its sums, and
 * refuses m64n256 in a kernel of 512 threads. dQ of 32 columns at a time spreads the reductions. */
constexpr int MAIN_THREADS = 128, DV_FIRST = 128, DK_FIRST = 256, DQ_FIRST = 384, THREADS = 512;
constexpr int CELLS_REGISTERS = 112, GRADIENT_REGISTERS = 168, DQ_REGISTERS = 64, DQ_COLUMNS = 32;
constexpr int N_CELLS = ROWS / 2, N_PACKED = ROWS / 4, N_GRAD = DIM / 2, N_DQ = DQ_COLUMNS / 2;

/* Slices of 64 columns: wgmma.h. All tiles have 64 rows. */
constexpr int SLICE = 8192, K_SLICE = SLICE, Q_SLICE = SLICE, DS_SLICE = SLICE;
constexpr int K_BYTES = DIM / 64 * SLICE, Q_BYTES = K_BYTES, HALF_BYTES = Q_BYTES / 2;
constexpr int K_TILE = 0, V_TILE = K_BYTES, OTHER_K = 2 * K_BYTES; /* other CTA's keys, this CTA's columns of dQ */
constexpr int Q_RING = OTHER_K + HALF_BYTES;                       /* two */
constexpr int DOUT_RING = Q_RING + 2 * Q_BYTES;                    /* three, of half of the columns each */
constexpr int P_TILE = DOUT_RING + 3 * HALF_BYTES;
constexpr int DS_RING = P_TILE + SLICE, OTHER_DS = DS_RING + 2 * SLICE, STATS = OTHER_DS + SLICE; /* lse, shift: two */
constexpr int BARRIERS = STATS + 2 * 8 * ROWS;
constexpr int KEYS_FULL = BARRIERS, Q_FULL = BARRIERS + 8, DOUT_FULL = Q_FULL + 16, P_FULL = DOUT_FULL + 24,
              P_FREE = P_FULL + 8, DS_FULL = P_FREE + 8, DS_FREE = DS_FULL + 16, OTHER_FULL = DS_FREE + 16,
              OTHER_FREE = OTHER_FULL + 8, Q_FREE = OTHER_FREE + 8, DOUT_FREE = Q_FREE + 16;
constexpr int PLACES = BARRIERS + 160;                                    /* struct place of four steps */
constexpr int KEPT = PLACES + 64, NEXT = KEPT + 64, NEXT_DOUT = NEXT + 8; /* struct work, steps to be copied next */
constexpr int ANY_BAD = NEXT + 16, BAD_KEYS = NEXT + 32, BAD_DOUT = BAD_KEYS + 32;   /* two steps */
constexpr int FACTORS = BAD_DOUT + 32, SPECIAL = FACTORS + 8, BOUNDS = FACTORS + 16; /* of each warp */
constexpr int TURN = BOUNDS + 64;                                                    /* two */
constexpr int MAIN = 1, DQ = 2, DV = 3, DK = 4, FACTOR = 5;                          /* named barriers */
static_assert(DOUT_FREE + 16 <= PLACES && TURN + 16 <= BARRIERS + KP_SDPA_BWD_SM90_PAIR_NOTES, "as the host counts");
static_assert(DIM % 128 == 0, "halves of whole slices");

#endif
