/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: configuration of the variant, and what stands where in shared memory. The picture and the rules
 * stand there. */
#ifndef ATTN_SM90_SDPA_BWD_LAYOUT_H
#define ATTN_SM90_SDPA_BWD_LAYOUT_H
#include "kernels/params/sdpa_sm90.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = DIM, GROUPS = CFG_GROUPS, STAGES = CFG_STAGES;
constexpr int ROWS = CFG_ROWS, KEYS = 64 * GROUPS, SCALED = TYPE == KP_F16;
constexpr int MAIN_THREADS = 128 * GROUPS, PAIR = 0, CTA_KEYS = KEYS;    /* keys of the tile that this CTA holds */
constexpr int COPIES = MAIN_THREADS, ADDS = MAIN_THREADS + 32;           /* threads; the first of two that add dQ */
constexpr int MAIN_REGISTERS = 240, LAST_REGISTERS = 24;                 /* 504 a thread of each warpgroup */
constexpr int N_CELLS = ROWS / 2, N_PACKED = ROWS / 4, N_GRAD = DIM / 2; /* registers of a thread: S and dP, P, dK */
constexpr int N_GRAD_V = N_GRAD, SPLIT = 0, SCORE_MOD = CFG_SCORE_MOD;
constexpr int N_DQ = 32; /* of dQ: 64 rows of 64 columns, which are half of the rows of a step, or of the columns */

/* Slices of 64 columns: wgmma.h. */
constexpr int K_SLICE = 128 * KEYS, Q_SLICE = 128 * ROWS, DS_SLICE = 128 * ROWS;
constexpr int K_BYTES = DIM / 64 * K_SLICE, Q_BYTES = DIM / 64 * Q_SLICE, DS_BYTES = GROUPS * DS_SLICE;
constexpr int K_TILE = 0, V_TILE = K_BYTES, ROWS_RING = 2 * K_BYTES;                     /* a stage: Q, dO */
constexpr int DS_RING = ROWS_RING + STAGES * 2 * Q_BYTES, SUMS = DS_RING + 2 * DS_BYTES; /* dQ of a step */
constexpr int PART_BYTES = 64 * 64 * 4, STATS = SUMS + GROUPS * PART_BYTES;              /* a stage: lse, shift */
constexpr int BARRIERS = STATS + STAGES * 8 * ROWS;
constexpr int KEYS_FULL = BARRIERS, ROWS_FULL = BARRIERS + 8, ROWS_FREE = ROWS_FULL + 8 * STAGES,
              DS_FULL = ROWS_FREE + 8 * STAGES, DS_FREE = DS_FULL + 16,
              DQ_FULL = DS_FREE + 16 /* a half: even steps, odd */, DQ_FREE = DQ_FULL + 32;
constexpr int PLACES = BARRIERS + 144;                       /* struct place of each stage */
constexpr int KEPT = PLACES + 16 * STAGES, NEXT = KEPT + 64; /* struct work, the step to be copied next */
constexpr int ANY_BAD = NEXT + 8, ANY_MARKED = NEXT + 12 /* score_mod */, BAD_KEYS = NEXT + 32,
              BAD_DOUT = BAD_KEYS + 32;
constexpr int FACTORS = BAD_DOUT + 16; /* f16: the factor of dS and what undoes it */
constexpr int BOUNDS = FACTORS + 16;   /* f16: of each warp */
constexpr int MAIN = 1;                /* named barrier */
static_assert(BOUNDS + 16 * 4 * GROUPS <= BARRIERS + 640 && DQ_FREE + 16 <= PLACES, "the room that the host counts");
static_assert(GROUPS == 2 && ROWS * DIM == 2 * 64 * 64, "a warpgroup forms half of dQ");
static_assert(KEYS <= 256 && DIM % 64 == 0, "boxes, flags, slices");

#endif
