/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_f16x2.cu: configuration of the variant, and what stands where in shared memory. */
#ifndef ATTN_SM90_SDPA_FWD_F16X2_WORK_H
#define ATTN_SM90_SDPA_FWD_F16X2_WORK_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_f16x2_sm90.h"
#include "kernels/params/sdpa_wide.h"

constexpr int DIM = CFG_DIM, DIM_V = CFG_DIM, GROUPS = CFG_GROUPS, KEYS = CFG_KEYS, ROWS = 64 * GROUPS;
constexpr int CONSUMERS = 128 * GROUPS, Q_TILES = CFG_Q_TILES, SLOTS = CFG_SLOTS;
constexpr int N_S = KEYS / 2, N_P = KEYS / 4, N_O = DIM_V / 2; /* registers of a thread: S, hi or lo of P, O */
constexpr int BLOCK = KP_F16X2_ROWS, BLOCKS = KEYS / BLOCK;    /* keys, or rows, that share a power of two */
/* Products P V: of BLOCK keys and COLS columns each; PARTS of a key tile, of which SUMS are under way at a time. */
constexpr int COLS = CFG_COLS, ACROSS = DIM_V / COLS, PARTS = BLOCKS * ACROSS, SUMS = CFG_SUMS;

/* Slices of 64 columns: wgmma.h. Of Q all slices of hi, then those of lo; a slot has hi or lo of K of a key tile, or
 * hi, then lo of V of a block. */
constexpr int Q_SLICE = 128 * ROWS, Q_HALF = DIM / 64 * Q_SLICE, Q_BYTES = 2 * Q_HALF, K_SLICE = 128 * KEYS,
              V_SLICE = 128 * BLOCK, V_HALF = DIM_V / 64 * V_SLICE, SLOT_BYTES = DIM / 64 * K_SLICE;
constexpr int RING = Q_TILES * Q_BYTES, BARRIERS = RING + SLOTS * SLOT_BYTES;
/* mbarriers, one a tile of Q (at most 2) or a slot (at most 8) */
constexpr int Q_FULL = BARRIERS, Q_FREE = BARRIERS + 16, FULL = BARRIERS + 32, FREE = BARRIERS + 96;
constexpr int WORK = BARRIERS + 160, WORK_BYTES = 64, WORKS = 4; /* struct work of tile x of Q (keep_work): x % WORKS */
constexpr int RANGES = WORK + WORK_BYTES * WORKS;                /* of each compute warp: struct range */
constexpr int TURN = 1, VALUES_CLEARED = 3;                      /* named barriers; TURN has one a warpgroup */
static_assert((DIM == 64 || DIM == 128) && KEYS == 128 && GROUPS == 2, "the products");
static_assert(SLOTS >= 4 && SLOTS <= 8 && Q_TILES <= 2, "barriers; all of a key tile fits");
static_assert(RANGES + 64 * GROUPS == KP_SDPA_F16X2_SM90_SHARED(DIM, GROUPS, KEYS, Q_TILES, SLOTS),
              "the host asks for as much");

/* They read the constants above. */
#include "kernels/device/sdpa_tiles.h"
#include "kernels/sm90/ring.h"
#endif
