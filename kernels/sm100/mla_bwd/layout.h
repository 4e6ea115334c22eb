/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: configuration of the variant, tensor memory, shared memory, barriers and who runs what. */
#ifndef ATTN_SM100_MLA_BWD_LAYOUT_H
#define ATTN_SM100_MLA_BWD_LAYOUT_H
#ifndef CFG_JOINED
#define CFG_JOINED 0
#endif
#ifndef CFG_HEADS
#define CFG_HEADS KP_SM100_HEADS
#endif
#include "kernels/device/cluster.h"
#include "kernels/device/joined.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/reduce.h"
#include "kernels/device/shared.h"
#include "kernels/device/tcgen05.h"
#include "kernels/device/tensor_copy.h"
#include "kernels/params/mla_sm100.h"
#include "kernels/sm100/roles.h"

constexpr int DIM = CFG_DIM, DIM_V = KP_MLA_DIM_V, ROPE = DIM - DIM_V, STORED_ROWS = CFG_DETERMINISTIC,
              JOINED = CFG_JOINED;
constexpr int HEADS = CFG_HEADS, CTA_HEADS = HEADS / 2, KEYS = KP_SM100_KEYS, CTA_KEYS = KEYS / 2;
constexpr int HALF_V = DIM_V / 2;                        /* columns of V, and of dKV, that a CTA has */
constexpr int HALF_ROPE = 32;                            /* and of rope */
constexpr uint32_t NOWHERE = 0x80000000u;                /* no offset in elements is that far from its tensor's start */
constexpr int TYPE = CFG_DTYPE, SCALED = TYPE == KP_F16; /* P and dS have a power of two, words.h */
constexpr int WORDS = JOINED || SCALED;                  /* of a tile, from warps of scores to both CTAs, words.h */
constexpr int QUERIES = JOINED ? KP_MLA_BWD_JOINED_SM100_GROUP : 1; /* of a work tile, at most */
static_assert(ROPE == 0 || ROPE == 2 * HALF_ROPE, "D is 576 or 512");

/* 64 heads, one pass: Q and dO are rows of one operand A, 16 of each by turns, so that one product gives S and dP: row
 * 32 x + y of a CTA's 64 is Q of head 16 x + y, row 32 x + 16 + y its dO. */
constexpr int STACKED = HEADS == 64, ROWS = 64;
static_assert(HEADS == 128 || (STACKED && !JOINED), "128 rows a pair");

/* Tensor memory, columns. */
constexpr uint32_t HEAD_COLUMNS = HEADS / 2;         /* of operand A over heads */
constexpr uint32_t TM_QT = 0;                        /* Q^T: 2 x (128 columns d of this CTA x all heads) */
constexpr uint32_t TM_OT = TM_QT + 2 * HEAD_COLUMNS; /* dO^T, the same */
/* Q^T of rope: lanes 0..31 and 64..95 have d, lanes 32..63 and 96..127 zeros */
constexpr uint32_t TM_ROPE = TM_OT + 2 * HEAD_COLUMNS;
constexpr uint32_t TM_S = 320;   /* S: lanes 64 g + row, 32 keys of half g; stacked: S and dP, without rope */
constexpr uint32_t TM_DP = 352;  /* dP, the same; stacked: S of rope, in lanes of Q's rows */
constexpr uint32_t TM_SUM = 384; /* dKV^T: 2 x (128 d x 64 keys) by turns */
/* dQ, over QT and OT: lanes 64 g + h: columns d of half g: 2 x 128, and 32 of rope. Stacked, dQ^T, in columns of its
 * own: 2 x (128 columns d of this CTA x 64 heads), then of rope, lanes 64 g + d: 32 heads of half g. */
constexpr uint32_t TM_DQ = STACKED ? TM_ROPE + HEAD_COLUMNS : 0;
constexpr uint32_t TM_COLUMNS = 512;

/* Shared memory, bytes. Slices: rows of 128 bytes, 64 numbers, swizzled. */
constexpr int SLICES = DIM / 64, SLICES_V = DIM_V / 64;
constexpr uint32_t Q_SLICE = ROWS * 128, K_SLICE = CTA_KEYS * 128, KT_SLICE = KEYS * 128;
constexpr uint32_t AT_Q = 0;                          /* [SLICES][64 heads][64 columns]; stacked: 64 rows */
constexpr uint32_t AT_DOUT = AT_Q + SLICES * Q_SLICE; /* [SLICES_V][64 heads][64 columns]; stacked: nothing */
constexpr uint32_t AT_K = AT_DOUT + (STACKED ? 0 : SLICES_V) * Q_SLICE; /* STAGES tiles, see below; then AT_KT */
constexpr uint32_t STAGE = KP_SM100_STAGE(DIM), DS_STAGE = KP_SM100_DS(HEADS);
constexpr uint32_t STAGES = 2, BUFFERS = KP_SM100_BUFFERS(HEADS);
constexpr uint32_t AT_KT = AT_K + STAGES * STAGE; /* stacked: a tile of K for dQ^T */
constexpr uint32_t AT_P =
    AT_K + BUFFERS * STAGE;                 /* [all heads][32 keys], 64 bytes swizzled; pass 2: dS, STAGES tiles */
constexpr uint32_t AT_DS = AT_P + DS_STAGE; /* the same */
constexpr uint32_t AT_ROWS_DS = AT_DS + DS_STAGE; /* stacked: dS, [this CTA's heads][64 keys], 128 bytes swizzled */
constexpr uint32_t AT_SCATTER = AT_P + BUFFERS * DS_STAGE;
constexpr int SCATTER_STAGES = 4;           /* tiles */
constexpr uint32_t SCATTER_BITS = KEYS * 8; /* offsets of 64 slots; then of each query a bit a slot: it has it */
constexpr uint32_t SCATTER_STAGE = SCATTER_BITS + (JOINED ? 8 * QUERIES : 16);
/* Joined lists, f16: for each of these tiles, in both CTAs, uint32_t [8 warps of scores of the pair], words.h; then,
 * for the warp of copies, whether anything of the work tile is not finite. */
constexpr uint32_t AT_WORDS = AT_SCATTER + SCATTER_STAGES * SCATTER_STAGE, TILE_WORDS = 32,
                   AT_ODD_WORK = AT_WORDS + SCATTER_STAGES * TILE_WORDS;
constexpr uint32_t AT_BARRIERS = AT_WORDS + (WORDS ? SCATTER_STAGES * TILE_WORDS + 16 : 0);
/* A tile of K, by pass:
 *   scores      [SLICES][32 keys of this CTA][64 columns]
 *   dQ          [4][64 keys][64 columns of this CTA's half of V], then [64 keys][32 columns of rope]
 * and before a work tile's first tile they hold what the other CTA's heads have in this CTA's columns:
 *   Q [4][64 heads][64], rope [64 heads][64], dO [4][64 heads][64]; stacked: Q and dO [4][64 rows][64], rope */
constexpr uint32_t KT_ROPE = 4 * KT_SLICE;
constexpr uint32_t AT_OTHER_Q = AT_K, AT_OTHER_ROPE = AT_OTHER_Q + 4 * Q_SLICE,
                   AT_OTHER_DOUT = AT_OTHER_ROPE + (ROPE ? Q_SLICE : 0),
                   AT_OTHER_END = AT_OTHER_DOUT + (STACKED ? 0 : 4 * Q_SLICE);

/* With words: DS_FULL is each CTA's, and has the stages of the scatter lists, which guard the words. */
constexpr int DS_STAGES = WORDS ? SCATTER_STAGES : 1;
/* Barriers. L: only the even CTA's counts (others arrive there); else each CTA's own; C: tc_commit, in both. */
enum barrier {
    Q_FULL,                          /* TMA: Q and dO of this CTA's heads                    work tiles */
    Q_EMPTY,                         /* C: scores of the work tile are done                  work tiles */
    OTHER_FULL,                      /* TMA: see AT_OTHER_Q                                  work tiles */
    OTHER_EMPTY,                     /* 8 warps: in tensor memory                            work tiles */
    CELLS_FULL,                      /* L, 16 warps: QT, OT stand, Q and dO are there        work tiles */
    K_FULL,                          /* L, TMA: a tile of K of both CTAs; pass 2: and of dS  STAGES */
    K_EMPTY = K_FULL + STAGES,       /* C                                                    STAGES */
    S_FULL = K_EMPTY + STAGES,       /* C; stacked: S and dP                                 tiles */
    DP_FULL,                         /* C; stacked: never                                    tiles */
    S_EMPTY,                         /* L, 8 warps: S is in registers; stacked: and dP       tiles */
    DP_EMPTY,                        /* L, 8 warps; stacked: never                           tiles */
    P_FULL,                          /* L, 8 warps: P is in shared memory of both            tiles */
    DS_FULL,                         /* L, 8 warps                                           tiles */
    PDS_EMPTY = DS_FULL + DS_STAGES, /* C: products with P and dS are done; after pass 2 again tiles + work tiles */
    KT_FULL,                         /* stacked: L, TMA: a tile of K for dQ^T of both CTAs   tiles */
    KT_EMPTY,                        /* stacked: C                                           tiles */
    SUM_FULL,                        /* C: 128 columns of dKV stand                          2 stages */
    SUM_EMPTY = SUM_FULL + 2,        /* L, 8 warps                                           2 stages */
    DS_STORED = SUM_EMPTY + 2,       /* 4 warps: the work tile's dS are in memory            work tiles */
    DQ_FULL,                         /* C                                                    work tiles */
    DQ_EMPTY,                        /* joined lists: L, 8 warps: dQ is in registers         rounds of dQ, as DQ_FULL */
    ODD_FULL,                        /* joined lists, 1: AT_ODD_WORK stands                  work tiles */
    SCATTER_FULL,                    /* 1: scatter list of a tile                            4 stages */
    /* 8 warps; with words: 13, gradients of both CTAs, products, and scores */
    SCATTER_EMPTY = SCATTER_FULL + SCATTER_STAGES,
    /* f16, 8 warps of both CTAs: a tile's words stand                                       tiles */
    WORDS_FULL = SCATTER_EMPTY + SCATTER_STAGES,
    BARRIERS = WORDS_FULL + SCALED
};
constexpr uint32_t AT_SLOT = AT_BARRIERS + 8 * BARRIERS; /* address of tensor memory */
constexpr uint32_t SHARED_BYTES = AT_SLOT + 16;
static_assert(SHARED_BYTES <= KP_MLA_BWD_SM100_SHARED(DIM, HEADS), "the host asks for as much");
static_assert(AT_OTHER_END <= AT_P, "stages of K hold it");

/* Warps: 0..3 scores, 4..7 gradients, 8 products (even CTA), 9 copies, 10 scatter lists. */
constexpr int WARP_PRODUCTS = 8, WARP_COPIES = 9, WARP_SCATTER = 10;
constexpr int CELLS_BARRIER = 1, CELLS_THREADS = 256;
constexpr int SUMS = ROPE ? 3 : 2; /* accumulators of a tile's dKV */

static __device__ __forceinline__ int64_t first_work(void) { return blockIdx.x >> 1; }
static __device__ __forceinline__ int64_t work_step(void) { return gridDim.x >> 1; }

static __device__ __forceinline__ uint32_t at_barrier(uint32_t base, int barrier) {
    return base + AT_BARRIERS + 8 * (uint32_t)barrier;
}
/* Waits for phase number `n` of a barrier (-1: none): one that this CTA, a copy or tc_commit completes; or one that
 * warps of both CTAs do (an acquire of the cluster's scope, which empties the first-level cache). */
static __device__ __forceinline__ void await(uint32_t base, int barrier, uint32_t n) {
    mbar_wait(at_barrier(base, barrier), n & 1);
}
static __device__ __forceinline__ void await_pair(uint32_t base, int barrier, uint32_t n) {
    mbar_wait_cluster(at_barrier(base, barrier), n & 1);
}
/* A warp's arrival: it has read, at the barrier of the CTA of that rank, -1 its own; or, at the even CTA's, it has
 * written shared memory of either CTA. */
static __device__ __forceinline__ void tell_read(uint32_t base, int rank, int barrier) {
    __syncwarp();
    if (lane_of() != 0) return;
    if (rank < 0)
        mbar_arrive(at_barrier(base, barrier));
    else
        cluster_arrive(cluster_address(at_barrier(base, barrier), (uint32_t)rank));
}
static __device__ __forceinline__ void tell_written(uint32_t base, int barrier) {
    async_fence_cluster();
    __syncwarp();
    if (lane_of() == 0) cluster_signal(cluster_address(at_barrier(base, barrier), 0));
}

#endif
