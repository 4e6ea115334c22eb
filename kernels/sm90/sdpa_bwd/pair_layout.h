/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_pair.cu: configuration of the variant, and what stands where in shared memory. The picture and the
 * rules stand there. */
#ifndef ATTN_SM90_SDPA_BWD_PAIR_LAYOUT_H
#define ATTN_SM90_SDPA_BWD_PAIR_LAYOUT_H
#include "kernels/params/sdpa_sm90.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = CFG_DIM_V, SCALED = TYPE == KP_F16;
constexpr int HALF = DIM / 2;    /* columns of dQ of a CTA */
constexpr int SPLIT = DIM > 192; /* dO arrives by halves of its columns, for want of room */
constexpr int ROWS = CFG_ROWS, KEYS = 128, PAIR = 1, CTA_KEYS = 64; /* keys of the pair, of this CTA */
constexpr int SCORE_MOD = 0;
/* Warpgroups: cells and dV, dK, dQ, which have 504 registers for a thread of each; to 192 cells, dV, dK, dQ, with 512.
 * ptxas keeps 24 of a warpgroup from its sums, 40 where they are of m64n256, which 512 threads cannot have. */
constexpr int MAIN_THREADS = 128, DV_FIRST = 128, DK_FIRST = SPLIT ? 128 : 256, DQ_FIRST = DK_FIRST + 128,
              THREADS = DQ_FIRST + 128;
constexpr int SENDS = DK_FIRST + 32, COPIES_DOUT = DK_FIRST + 64; /* threads of dK's: dS; half of dO */
constexpr int CELLS_REGISTERS = SPLIT ? 240 : 144, GRADIENT_REGISTERS = SPLIT ? 168 : 144,
              DQ_REGISTERS = SPLIT ? 96 : 80;
constexpr int N_CELLS = ROWS / 2, N_PACKED = ROWS / 4, N_GRAD = DIM / 2, N_GRAD_V = DIM_V / 2;

/* Slices of 64 columns: wgmma.h. All tiles have 64 rows. */
constexpr int SLICE = 8192, K_SLICE = SLICE, Q_SLICE = SLICE, DS_SLICE = SLICE;
constexpr int K_BYTES = DIM / 64 * SLICE, Q_BYTES = K_BYTES, V_BYTES = DIM_V / 64 * SLICE, DOUT_HALF = V_BYTES / 2;
constexpr int OTHER_SLICES = (HALF + 63) / 64;                          /* that hold this CTA's columns of dQ */
constexpr int K_TILE = 0, V_TILE = K_BYTES, OTHER_K = V_TILE + V_BYTES; /* other CTA's keys */
constexpr int Q_RING = OTHER_K + OTHER_SLICES * SLICE;
constexpr int Q_STAGES = SPLIT ? 2 : 3, PLACE_SLOTS = SPLIT ? 4 : 8;
constexpr int DOUT_STAGES = DIM_V > 128 ? 2 : 3; /* whole ones; else three half ones */
constexpr int DOUT_RING = Q_RING + Q_STAGES * Q_BYTES;
constexpr int DOUT_PLACES = 3; /* of half of the columns */
constexpr int P_TILE = DOUT_RING + (SPLIT ? DOUT_PLACES : 2 * DOUT_STAGES) * DOUT_HALF, P_TILES = DIM_V > 128 ? 1 : 2;
constexpr int DS_TILES = 2, OTHER_TILES = 2, DS_RING = P_TILE + (SPLIT ? 0 : P_TILES * SLICE),
              OTHER_DS = DS_RING + DS_TILES * SLICE;
constexpr int STATS = OTHER_DS + OTHER_TILES * SLICE; /* lse, shift */
constexpr int BARRIERS = STATS + Q_STAGES * 8 * ROWS;
constexpr int KEYS_FULL = BARRIERS, Q_FULL = BARRIERS + 8, DOUT_FULL = Q_FULL + 24, P_FULL = DOUT_FULL + 32,
              P_FREE = P_FULL + 16, DS_FULL = P_FREE + 16, DS_FREE = DS_FULL + 16, OTHER_FULL = DS_FREE + 16,
              OTHER_FREE = OTHER_FULL + 16, Q_FREE = OTHER_FREE + 16, DOUT_FREE = Q_FREE + 24 /* three */;
constexpr int PLACES = BARRIERS + 224;                                     /* struct place of PLACE_SLOTS steps */
constexpr int KEPT = PLACES + 128, NEXT = KEPT + 64, NEXT_DOUT = NEXT + 8; /* struct work, steps to be copied next */
constexpr int ANY_BAD = NEXT + 16, BAD_KEYS = NEXT + 32, BAD_DOUT = BAD_KEYS + 32;   /* four steps */
constexpr int FACTORS = BAD_DOUT + 64, SPECIAL = FACTORS + 8, BOUNDS = FACTORS + 16; /* of each warp */
constexpr int TURN = BOUNDS + 64;                                                    /* two */
constexpr int MAIN = 1, DQ = 2, DV = 3, DK = 4, FACTOR = 5;                          /* named barriers */
static_assert(DOUT_FREE + 32 <= PLACES && TURN + 16 <= BARRIERS + KP_SDPA_BWD_SM90_PAIR_NOTES, "as the host counts");
static_assert(SPLIT ? DIM % 128 == 0 && DIM_V == DIM : DIM % 64 == 0 && DIM_V % 64 == 0, "whole slices");

#endif
