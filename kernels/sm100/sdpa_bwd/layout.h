/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: configuration of the variant, tensor memory, shared memory, barriers. */
#ifndef ATTN_SM100_SDPA_BWD_LAYOUT_H
#define ATTN_SM100_SDPA_BWD_LAYOUT_H
#if !CFG_PAIR
#define TC_GROUP 1 /* all products are a CTA's own */
#endif
#if CFG_DIM > 128 && CFG_SCORE_MOD
#define READ_LANE
#endif
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/shared.h"
#include "kernels/device/tcgen05.h"
#include "kernels/params/sdpa_sm100.h"
#include "kernels/sm100/roles.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = CFG_DIM_V, STAGES = CFG_STAGES, SCALED = TYPE == KP_F16;
constexpr int SCORE_MOD = CFG_SCORE_MOD, PAIR = CFG_PAIR, CTAS = 1 + PAIR; /* that share a tile of queries */
constexpr int ROWS = KP_SDPA_BWD_SM100_ROWS, CTA_KEYS = KP_SDPA_BWD_SM100_KEYS, KEYS = CTAS * CTA_KEYS;
constexpr int CTA_ROWS = ROWS / CTAS; /* queries whose Q and dO a CTA has by rows, and whose dQ */
constexpr int PART = ROWS / 2;        /* queries of a warpgroup of scores; of a pair, those of one CTA */
constexpr int SLICES = DIM / 64, SLICES_V = DIM_V / 64;
constexpr int SERIAL = DIM == 192; /* S^T, dP^T and dQ follow one another in the same columns: serial.h */
static_assert(DIM == 64 || DIM == 128 || SERIAL, "whole slices, columns of tensor memory");
static_assert(DIM_V == (SERIAL ? 128 : DIM), "columns of tensor memory");
static_assert(ROWS == 128 && CTA_KEYS == 128, "lanes of tensor memory, boxes");
static_assert(PAIR == (DIM > 64), "a slice of columns for each CTA of a pair");
static_assert(!PAIR || STAGES == 2, "rows of a pair come one step ahead of their columns");

/* Tensor memory, columns. Of S^T, dP^T, dV and dK a lane is a key, of dQ a query; of P^T and dS^T a column has two
 * queries. A part is the 64 queries of a warpgroup.
 *   D 64, 128   P^T and dS^T of a part take the place of its S^T, which its threads have read. dQ stands over dP^T,
 *               which has been read, or has columns of its own.
 *   D 192       dP^T takes the place of S^T, dS^T that of P^T, dQ that of dP^T. */
constexpr int OWN_DQ = DIM == 64;
constexpr uint32_t TM_S = SERIAL ? 64 : 0;                            /* [2 parts][64 queries] */
constexpr uint32_t TM_P = 0, CELLS = SERIAL ? PART / 2 : PART;        /* [2 parts][CELLS]: 32 of P^T, */
constexpr uint32_t TM_DS = SERIAL ? 0 : 32;                           /* and of dS^T, within a part */
constexpr uint32_t TM_DP = SERIAL ? TM_S : 128;                       /* [128 queries] */
constexpr uint32_t TM_DV = SERIAL ? 192 : 256, TM_DK = TM_DV + DIM_V; /* [DIM_V], [DIM columns] */
constexpr uint32_t TM_DQ = SERIAL ? 96 : OWN_DQ ? 384 : TM_DP; /* [DIM columns]; pair: lane 64 g + query, half g */
constexpr uint32_t TM_COLUMNS = 512;
static_assert(TM_DK + DIM <= TM_COLUMNS, "they fit");
static_assert(!SERIAL || TM_DQ + DIM / 2 <= TM_DV, "they fit");

/* Shared memory, bytes. Slices: rows of 64 columns, 128-byte swizzle. Q and K by columns at D 192: slices of 32
 * columns, 64-byte swizzle, since a CTA has 96 columns. */
constexpr uint32_t SLICE = 128 * 128, ROW_SLICE = SLICE / CTAS;
constexpr uint32_t Q_ROWS = SLICES * ROW_SLICE, DOUT_ROWS = SLICES_V * ROW_SLICE;
constexpr uint32_t Q_COLUMNS = ROWS * DIM, DOUT_COLUMNS = ROWS * DIM_V, KEY_COLUMNS = KEYS * DIM; /* of a pair */
constexpr uint32_t AT_K = 0, AT_V = AT_K + SLICES * SLICE;    /* [slices][128 keys][64] */
constexpr uint32_t AT_ROWS = AT_V + SLICES_V * SLICE;         /* [stages]: Q, dO: [slices][CTA_ROWS][64] each; */
constexpr uint32_t STAGE = Q_ROWS + (SERIAL ? 0 : DOUT_ROWS); /* D 192: one stage, Q alone */
constexpr uint32_t AT_COLUMNS = AT_ROWS + (SERIAL ? 1 : STAGES) * STAGE;   /* pair: Q: [128 queries][DIM / 2] */
constexpr uint32_t AT_DOUT_COLUMNS = AT_COLUMNS + PAIR * Q_COLUMNS;        /* pair: dO: [128 queries][64 columns] */
constexpr uint32_t AT_KEY_COLUMNS = AT_DOUT_COLUMNS + PAIR * DOUT_COLUMNS; /* pair: K: [256 keys][DIM / 2] */
/* [2 parts][128 keys][64 queries]; pair: [256 keys][64 queries of this CTA]. D 192: dO by rows before it. */
constexpr uint32_t AT_DS = AT_KEY_COLUMNS + PAIR * KEY_COLUMNS;
constexpr uint32_t AT_STATS = AT_DS + 2 * SLICE; /* [STAGES]: lse, shift: [128 queries] each */
constexpr uint32_t STATS = 8 * ROWS;
constexpr uint32_t AT_BARRIERS = AT_STATS + STAGES * STATS;

/* Barriers. What arrives; what its phases are counted by. Whoever waits can be one phase late at most: what completes
 * the next phase has been waiting for what it does after this one. Of a pair, commits arrive in both CTAs; L: the
 * even CTA's, where warps of both arrive and products are started. */
enum barrier {
    KEYS_FULL,                         /* bytes: K, V                                             once */
    KEYS_READY,                        /* L: 8 warps of scores: bad keys are zeroed, dV begun     once */
    ROWS_FULL,                         /* bytes: Q, dO, lse, shift                     [STAGES]   steps, a stage */
    ROWS_READY = ROWS_FULL + STAGES,   /* the cleaning warp: rows may be multiplied    [STAGES]   steps, a stage */
    ROWS_EMPTY = ROWS_READY + STAGES,  /* commit: dV and dK have the step              [STAGES]   steps, a stage */
    S_FULL = ROWS_EMPTY + STAGES,      /* commit; dV and dK have the step before                  steps */
    P_FULL,                            /* L: 8 warps of scores: P^T                               steps */
    DP_FULL,                           /* commit                                                  steps */
    DS_FULL,                           /* L: 8 warps of scores: dS^T, and dS in shared memory     steps */
    DQ_FULL,                           /* commit: dQ of the step stands, dS has been read         steps */
    DQ_EMPTY,                          /* L: 4 warps of sums: dQ is in registers                  steps */
    GRADS_FULL,                        /* commit: dV and dK are complete                          once */
    PAIR_ROWS,                         /* pair, L: the cleaning warp, as ROWS_READY    [STAGES]   steps, a stage */
    COLUMNS_FULL = PAIR_ROWS + STAGES, /* pair: bytes: Q, dO by columns                           steps */
    COLUMNS_READY,                     /* pair, L: the cleaning warp                              steps */
    KEY_COLUMNS_FULL,                  /* pair: bytes: K by columns                               once */
    S_READ,                            /* D 192, L: 8 warps of scores: S^T is in registers        steps */
    DV_DONE,                           /* D 192: commit: dV has the step                          steps */
    DK_DONE,                           /* D 192: commit: dK has the step                          steps */
    DOUT_FULL,                         /* D 192: bytes: dO by rows; ROWS_*, PAIR_ROWS: Q          steps */
    DOUT_READY,                        /* D 192, L: the cleaning warp                             steps */
    DOUT_COLUMNS_FULL,                 /* D 192: bytes: dO by columns; COLUMNS_*: Q               steps */
    DOUT_COLUMNS_READY,                /* D 192, L: the cleaning warp                             steps */
    BARRIERS
};
constexpr uint32_t AT_SLOT = AT_BARRIERS + 8 * BARRIERS;             /* address of tensor memory */
constexpr uint32_t AT_NUMBER = AT_SLOT + 4;                          /* in order: of the CTA, or pair */
constexpr uint32_t AT_FLAGS = (AT_SLOT + 8 + 15) & ~15u, FLAGS = 32; /* [STAGES]: enum cleaned; rows of bad dO, bits */
constexpr int KEPT = AT_FLAGS + STAGES * FLAGS;                      /* struct work */
constexpr int BAD_KEYS = KEPT + 64, ANY_BAD = BAD_KEYS + 32, FACTORS = ANY_BAD + 16; /* FACTORS: f16, what undoes it */
constexpr int ANY_MARKED = ANY_BAD + 4;                                              /* score_mod */
constexpr int BOUNDS = FACTORS + 16;                                                 /* f16: of each warp */
static_assert(BOUNDS + 8 * 16 <= KP_SDPA_BWD_SM100_SHARED(DIM, DIM_V, STAGES, PAIR), "the host asks for as much");
static_assert(KP_SDPA_BWD_SM100_SHARED(DIM, DIM_V, STAGES, PAIR) <= 232448, "what a CTA may have");

/* Warps: 0..3 and 4..7 scores of a part of the queries each, 8..11 sums of dQ; then one each. */
constexpr int WARP_SUMS = 8, WARP_PRODUCTS = 12, WARP_COPIES = 13, WARP_CLEANING = 14;
constexpr int MAIN_THREADS = 256, MAIN = 1, SUMS = 2, DK_STORED = 3; /* threads of scores; named barriers */
constexpr int K_TILE = AT_K, K_SLICE = SLICE;

#if CFG_DIM > 128
typedef struct kp_sdpa_bwd_column_maps parameters;
#else
typedef struct kp_sdpa_bwd_maps parameters;
#endif
static __device__ __forceinline__ const struct kp_sdpa_bwd_maps *maps_of(const struct kp_sdpa_bwd_maps *maps) {
    return maps;
}
static __device__ __forceinline__ const struct kp_sdpa_bwd_maps *maps_of(const struct kp_sdpa_bwd_column_maps *maps) {
    return &maps->rows;
}

/* They read the constants above. */
#include "kernels/device/sdpa_bwd_bad_keys.h"
#include "kernels/device/sdpa_bwd_factor.h"
#include "kernels/device/sdpa_bwd_work.h"
#include "kernels/sm100/barriers.h"

/* What is seldom true: the code for it is placed out of the way. */
static __device__ __forceinline__ int rare(int x) { return __builtin_expect(x != 0, 0); }

/* The phase of step t, of a barrier of each stage. */
static __device__ __forceinline__ void await_stage(uint32_t base, uint32_t barrier, uint32_t t) {
    await(base, barrier + t % STAGES, t / STAGES);
}

/* Of step t: Q, then dO; lse, then shift; what the cleaning warp says. */
static __device__ __forceinline__ uint32_t rows_of(uint32_t base, uint32_t t) {
    return base + AT_ROWS + (SERIAL ? 0 : t % STAGES) * STAGE;
}
static __device__ __forceinline__ uint32_t stats_of(uint32_t base, uint32_t t) {
    return base + AT_STATS + t % STAGES * STATS;
}
static __device__ __forceinline__ uint32_t flags_of(uint32_t base, uint32_t t) {
    return base + AT_FLAGS + t % STAGES * FLAGS;
}

/* The lanes of tensor memory that the warp reaches. */
static __device__ __forceinline__ uint32_t quarter_of(void) { return (uint32_t)(warp_of() % 4) << 21; }
#endif
