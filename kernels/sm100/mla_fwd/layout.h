/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: configuration of the variant, tensor memory, shared memory, barriers and work tiles. */
#ifndef ATTN_SM100_MLA_FWD_LAYOUT_H
#define ATTN_SM100_MLA_FWD_LAYOUT_H
#define TC_GROUP 1 /* all products are a CTA's own */
#ifndef CFG_JOINED
#define CFG_JOINED 0
#endif
#include "kernels/device/bf16x2.h"
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/device/tcgen05.h"
#include "kernels/device/tensor_copy.h"
#include "kernels/params/mla_sm100.h"
#include "kernels/sm100/mla_fwd/results.h"
#include "kernels/sm100/roles.h"

constexpr int DIM = CFG_DIM, DIM_V = KP_MLA_DIM_V, ROPE = DIM - DIM_V, JOINED = CFG_JOINED;
constexpr int CTAS = 2, HEADS = KP_SM100_HEADS, KEYS = KP_SM100_KEYS, CTA_KEYS = KEYS / 2;
constexpr int HALF_V = DIM_V / 2; /* columns of V that a CTA has */
constexpr int HALF_ROPE = 32;     /* and of rope */
static_assert(ROPE == 0 || ROPE == 2 * HALF_ROPE, "D is 576 or 512");
constexpr int TYPE = CFG_DTYPE;
/* O is rescaled where an offset grew by more. P may be 2^(2 THRESHOLD + 0.5), relative to O's: f16 holds 65504. */
constexpr float THRESHOLD = TYPE == KP_F16 ? 7 : 8;

/* Tensor memory, columns; lane h: head h. */
constexpr uint32_t TM_Q = 0;   /* Q: 256 columns d of this CTA, two a cell */
constexpr uint32_t TM_S = 128; /* two stages, see cells_of_keys */
constexpr uint32_t TM_O = 256; /* O: 256 columns of this CTA */
constexpr uint32_t TM_COLUMNS = 512;

/* Shared memory, bytes. */
constexpr int RING = KP_MLA_FWD_SM100_RING(DIM);
constexpr uint32_t STAGE = KP_SM100_STAGE(DIM), K_SLICE = KEYS * 128, Q_SLICE = HEADS * 128;
constexpr uint32_t K_ROPE = 4 * K_SLICE; /* of a stage: [4][64 keys][64 columns], then [64 keys][32 of rope] */
constexpr uint32_t SCORES = HEADS * CTA_KEYS * 4, PROBABILITIES = HEADS * CTA_KEYS * 2, SUMS = 2 * HEADS * 16;
constexpr uint32_t AT_K = 0;                              /* [RING]; Q: [2 slices][128 heads][64 columns] */
constexpr uint32_t AT_ROPE = AT_K + RING * STAGE;         /* rope of Q: [128 heads][32 columns] */
constexpr uint32_t AT_S = AT_ROPE + ROPE * HEADS;         /* from the other CTA: [2][8][128 heads] x 4 keys, f32 */
constexpr uint32_t AT_P = AT_S + 2 * SCORES;              /* from the other CTA: [2][4][128 heads] x 8 keys, 16 bits */
constexpr uint32_t AT_OFFSETS = AT_P + 2 * PROBABILITIES; /* that moved: [2 stages][own, other][128 heads] */
constexpr uint32_t AT_SUMS =
    AT_OFFSETS + 2 * 2 * HEADS * 4; /* [work tiles by turns][own, other][128 heads]: struct sums */
constexpr uint32_t AT_BARRIERS = AT_SUMS + 2 * SUMS;

/* Barriers, every CTA its own. What arrives; from which CTA; what phases are counted by.
 * What needs none: scores, P and offsets from the other CTA are overwritten two tiles later. Softmax waits for P_FULL
 * of tile t before it sends scores of tile t + 2: this CTA's correction has had P of tile t from there, whose softmax
 * had read scores of tile t. P of tile t + 2 follows scores from there, hence P_FULL of tile t there: its correction
 * has read P of tile t. Sums are overwritten two work tiles later, by warps for which the correction has brought Q,
 * hence has read them. */
enum barrier {
    K_FULL,                        /* bytes: a tile of K, or half of Q          own        ring */
    K_EMPTY = K_FULL + RING,       /* commit                                    own        ring */
    Q_FULL = K_EMPTY + RING,       /* 8 warps: Q is in tensor memory            own        work tiles */
    Q_EMPTY,                       /* commit: nobody reads rope of Q any more   own        work tiles */
    S_FULL,                        /* commit                                    own        2 stages */
    OTHER_S_FULL = S_FULL + 2,     /* 4 warps of softmax                        the other  2 stages */
    OWN_P_FULL = OTHER_S_FULL + 2, /* 4 warps of softmax                        own        2 stages */
    OTHER_P_FULL = OWN_P_FULL + 2, /* 4 warps of softmax                        the other  2 stages */
    P_FULL = OTHER_P_FULL + 2,     /* 4 warps of correction                     own        2 stages */
    O_FULL = P_FULL + 2,           /* commit                                    own        2, tiles by turns */
    SUMS_FULL = O_FULL + 2,        /* 8 warps of softmax                        both       work tiles */
    MARKS_FULL = SUMS_FULL + 1,    /* joined lists: 8 warps of softmax          both       once */
    BARRIERS = MARKS_FULL + JOINED
};
constexpr uint32_t AT_SLOT = AT_BARRIERS + 8 * BARRIERS; /* address of tensor memory */
/* Joined lists, group.h: a word for each of the 8 warps of softmax, nonzero if it hides what is not finite: of the work
 * tile, two by turns, as sums; of a group of the pair. */
constexpr uint32_t AT_ODD = (AT_SLOT + 31) / 16 * 16, AT_MARKED = AT_ODD + 2 * 32;
/* Bits of valid keys, of the tile in each stage of the ring; joined lists: a word for each query. */
constexpr uint32_t AT_VALID = AT_MARKED + 32, VALID_ROW = JOINED ? 64 : 4;
static_assert(AT_VALID + RING * VALID_ROW <= KP_MLA_FWD_SM100_SHARED(DIM), "the host asks for as much");
static_assert(KP_MLA_FWD_SM100_SHARED(DIM) <= 232448, "what a CTA may have");

/* Warps: 0..3 correction, 4..7 softmax, 8 products, 9 copies. */
constexpr int WARP_PRODUCTS = 8, WARP_COPIES = 9;

/* A stage of S: 32 columns for each CTA's keys. When they have been read, softmax leaves P of this CTA's keys in the
 * first 16 columns of theirs, and correction P of all keys, scaled, in the columns of the other CTA's. */
static __device__ __forceinline__ uint32_t cells_of_keys(uint32_t tile, int rank) {
    return TM_S + tile % 2 * KEYS + (uint32_t)rank * CTA_KEYS;
}

/* In P of a row's first key, which has no sign: the row's offset has moved, and stands in AT_OFFSETS. */
constexpr uint32_t MOVED = 0x8000;

static __device__ __forceinline__ uint32_t at_valid(uint32_t base, uint32_t stage) {
    return base + AT_VALID + stage % RING * VALID_ROW;
}
static __device__ __forceinline__ uint32_t at_barrier(uint32_t base, uint32_t barrier) {
    return base + AT_BARRIERS + 8 * barrier;
}
/* Waits for phase number `n` of a barrier (-1: none): one that this CTA, a copy or tc_commit completes; or one that
 * warps of the other CTA do. */
static __device__ __forceinline__ void await(uint32_t base, uint32_t barrier, uint32_t n) {
    mbar_wait(at_barrier(base, barrier), n & 1);
}
static __device__ __forceinline__ void await_other(uint32_t base, uint32_t barrier, uint32_t n) {
    mbar_wait_cluster(at_barrier(base, barrier), n & 1);
}
/* A warp's arrival: at its own CTA's barrier; having written shared memory of the CTA of that rank. */
static __device__ __forceinline__ void tell_own(uint32_t base, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(at_barrier(base, barrier));
}
static __device__ __forceinline__ void tell_written(uint32_t base, int rank, uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) cluster_signal(cluster_address(at_barrier(base, barrier), (uint32_t)rank));
}

/* Thread's head, of the 128, joined lists: row: correction and softmax. */
static __device__ __forceinline__ int head_of(void) { return (int)threadIdx.x % HEADS; }
static __device__ __forceinline__ uint32_t quarter_of(void) { return (uint32_t)(warp_of() % 4) << 21; }

/* Half of Q, 128 columns of the thread's head, from stage `stage` of the ring to tensor memory. */
static __device__ __forceinline__ void bring_queries(uint32_t base, uint32_t tm, uint32_t stage, uint32_t half) {
    const uint32_t head = (uint32_t)head_of(), row = base + AT_K + stage % RING * STAGE + head * 128;
    await(base, K_FULL + stage % RING, stage / RING);
    tc_after();
#pragma unroll 1
    for (uint32_t slice = 0; slice < 2; slice++) {
        uint32_t x[32];
#pragma unroll
        for (uint32_t c = 0; c < 8; c++) {
            const uint4 y = shared_load128(row + slice * Q_SLICE + ((c ^ head % 8) << 4));
            x[4 * c] = y.x, x[4 * c + 1] = y.y, x[4 * c + 2] = y.z, x[4 * c + 3] = y.w;
        }
        tc_store32(tm + quarter_of() + TM_Q + 64 * half + 32 * slice, x);
    }
    tc_wait_stores();
    tc_before();
    tell_own(base, Q_FULL);
}
#endif
