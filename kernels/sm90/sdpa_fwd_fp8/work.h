/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd_fp8.cu: configuration of the variant, and what stands where in shared memory. */
#ifndef ATTN_SM90_SDPA_FWD_FP8_WORK_H
#define ATTN_SM90_SDPA_FWD_FP8_WORK_H
#if CFG_GROUPS == 3
#define ATTN_OFFSETS_AHEAD 1 /* the copying warp has 32 registers */
#endif
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_fp8_sm90.h"

constexpr int DIM = CFG_DIM, DIM_V = CFG_DIM, GROUPS = CFG_GROUPS, KEYS = CFG_KEYS, ROWS = 64 * GROUPS;
constexpr int CONSUMERS = 128 * GROUPS, TRANSPOSERS = 2; /* threads; warps */
/* tiles of V as it is in memory; of K and of V transposed, a power of two */
constexpr int R_STAGES = 2, STAGES = CFG_STAGES;
constexpr int N_S = KEYS / 2, N_P = KEYS / 8, N_O = DIM_V / 2; /* registers of a thread: S, P, O */

/* Rows of 128 bytes, whatever DIM and KEYS are: zeros past the columns that exist, or nothing past the keys of V^T. */
constexpr int Q_BYTES = ROWS * 128, K_BYTES = KEYS * 128, V_BYTES = DIM_V * 128;
constexpr int K_RING = 2 * Q_BYTES, R_RING = K_RING + STAGES * K_BYTES, V_RING = R_RING + R_STAGES * K_BYTES,
              BARRIERS = V_RING + STAGES * V_BYTES;
/* mbarriers, one a tile: of R, V as it is in memory, and of V, transposed */
constexpr int Q_FULL = BARRIERS, Q_FREE = BARRIERS + 16, R_FULL = BARRIERS + 32, R_FREE = BARRIERS + 48,
              K_FULL = BARRIERS + 64, K_FREE = K_FULL + 8 * STAGES, V_FULL = K_FREE + 8 * STAGES,
              V_FREE = V_FULL + 8 * STAGES;
constexpr int WORK = BARRIERS + 64 + 32 * 4,
              WORK_BYTES = 64; /* struct work (keep_work) of each tile of Q, then its factors */
static_assert((DIM == 64 || DIM == 128) && (KEYS == 128 || KEYS == 96) && GROUPS <= 3, "the products of products.h");
static_assert(STAGES == 2 || STAGES == 4, "phases are counted by shifts");
static_assert(WORK + 2 * WORK_BYTES == KP_SDPA_FP8_SM90_SHARED(DIM, GROUPS, KEYS, STAGES), "the host asks for as much");

/* The place of tile number n in its ring, and the parity of its phase. */
static __device__ __forceinline__ uint32_t stage_of(uint32_t n) { return n % STAGES; }
static __device__ __forceinline__ uint32_t phase_of(uint32_t n) { return n / STAGES & 1; }

/* They read the constants above. */
#include "kernels/device/sdpa_tiles.h"
#endif
