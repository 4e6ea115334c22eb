/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: configuration of the variant, and what stands where in shared memory. The picture and the rules
 * stand there; what a CTA works on: kernels/device/sdpa_tiles.h. */
#ifndef ATTN_SM90_SDPA_FWD_WORK_H
#define ATTN_SM90_SDPA_FWD_WORK_H
#if CFG_GROUPS == 3
#define ATTN_OFFSETS_AHEAD 1 /* the copying warp has 32 registers */
#endif
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_sm90.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = CFG_DIM_V;
constexpr int GROUPS = CFG_GROUPS, KEYS = CFG_KEYS, SCORE_MOD = CFG_SCORE_MOD;
constexpr int Q_TILES = CFG_Q_TILES, STAGES = CFG_STAGES;
constexpr int ROWS = 64 * GROUPS, CONSUMERS = 128 * GROUPS;
constexpr int N_S = KEYS / 2, N_P = KEYS / 4, N_O = DIM_V / 2; /* registers of a thread: S, P, O */

/* Slices of 64 columns: wgmma.h. */
constexpr int Q_SLICE = 128 * ROWS, K_SLICE = 128 * KEYS;
constexpr int Q_BYTES = DIM / 64 * Q_SLICE, K_BYTES = DIM / 64 * K_SLICE, V_BYTES = DIM_V / 64 * K_SLICE;
constexpr int K_RING = Q_TILES * Q_BYTES, V_RING = K_RING + STAGES * K_BYTES, BARRIERS = V_RING + STAGES * V_BYTES;
/* mbarriers, one a tile of Q (at most 2) or a stage (at most 4) */
constexpr int Q_FULL = BARRIERS, Q_FREE = BARRIERS + 16, K_FULL = BARRIERS + 32, K_FREE = BARRIERS + 64,
              V_FULL = BARRIERS + 96, V_FREE = BARRIERS + 128;
constexpr int WORK = BARRIERS + 192, WORKS = 4; /* struct work of tile x of Q, packed (keep_work), at x % WORKS */
constexpr int RANGES = WORK + 64 * WORKS;       /* of each compute warp: struct range */

constexpr int NEXT_ROUND = BARRIERS + 160, DEALT = RANGES + 64 * GROUPS; /* packed.h */
constexpr int TURN = 1, VALUES_CLEARED = 4;                              /* named barriers; TURN has one a warpgroup */
static_assert(DIM % 64 == 0 && DIM_V % 64 == 0, "whole slices");
static_assert(KEYS % 16 == 0 && GROUPS <= 3 && Q_TILES <= 2 && (STAGES == 2 || STAGES == 4), "products, barriers");

/* Stage and phase of the CTA's key tile number x. */
static __device__ __forceinline__ uint32_t stage_of(uint32_t x) { return x % STAGES; }
static __device__ __forceinline__ uint32_t phase_of(uint32_t x) { return x / STAGES & 1; }

/* They read the constants above. */
#include "kernels/device/sdpa_tiles.h"
#endif
