/* SPDX-License-Identifier: MIT
 * Part of mla_fwd_h64.cu: configuration of the variant, tensor memory, shared memory and barriers. */
#ifndef ATTN_SM100_MLA_FWD_H64_LAYOUT_H
#define ATTN_SM100_MLA_FWD_H64_LAYOUT_H
#define TC_GROUP 1 /* all products are the CTA's own */
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/device/stmatrix.h"
#include "kernels/device/tcgen05.h"
#include "kernels/device/tensor_copy.h"
#include "kernels/params/mla_sm100.h"
#include "kernels/sm100/mla_fwd/results.h"
#include "kernels/sm100/roles.h"

constexpr int DIM = CFG_DIM, DIM_V = KP_MLA_DIM_V, ROPE = DIM - DIM_V;
constexpr int CTAS = 1, HEADS = CFG_HEADS, KEYS = KP_SM100_KEYS;
constexpr int HALF_V = DIM_V / 2; /* columns of a half tile of K, and of a product of O */
static_assert(HEADS == 64 && KEYS == 64, "rows of S and of O, rows of a tile of K");
static_assert(ROPE == 0 || ROPE == 64, "D is 576 or 512");
constexpr int TYPE = CFG_DTYPE;
constexpr float THRESHOLD = 8; /* O is rescaled where an offset grew by more: P is 2^8.5 at most */

/* Tensor memory, columns. Q, S: head h in lane h / 16 * 32 + h % 16, its columns d 0..255 and 32 of rope, and what they
 * make of S; 16 lanes on the other half. P: head h in lanes h and h + 64. O: the same, column d in lane h + 64 (d / 128
 * % 2). */
constexpr uint32_t TM_S = 0;   /* 64 keys */
constexpr uint32_t TM_P = 64;  /* 64 keys, two a cell */
constexpr uint32_t TM_Q = 96;  /* 256 columns d, two a cell; 32 of rope */
constexpr uint32_t TM_O = 256; /* columns 0..255: 128 of them; 256..511 */
constexpr uint32_t TM_COLUMNS = 512;
constexpr uint32_t OTHER_LANES = 16 << 16, Q_ROPE = HALF_V / 2, O_HALF = 128;

/* Shared memory, bytes. */
constexpr int RING = KP_MLA_FWD_H64_SM100_RING, ROPE_RING = ROPE ? 2 : 0;
constexpr uint32_t SLICE = 64 * 128, HALF_TILE = 4 * SLICE; /* 64 columns of 64 keys, or of 64 heads */
constexpr uint32_t PROBABILITIES = HEADS * KEYS * 2, SUMS = HEADS * 16;
constexpr uint32_t AT_K = 0;                              /* [RING][4][64 keys, or heads of Q][64 columns] */
constexpr uint32_t AT_ROPE = AT_K + RING * HALF_TILE;     /* [2][the same] */
constexpr uint32_t AT_P = AT_ROPE + ROPE_RING * SLICE;    /* [tiles by turns][8][64 heads] x 8 keys, 16 bits */
constexpr uint32_t AT_SUMS = AT_P + 2 * PROBABILITIES;    /* [work tiles by turns][64 heads]: struct sums */
constexpr uint32_t AT_OFFSETS = AT_SUMS + 2 * SUMS;       /* [tiles by turns][64 heads] */
constexpr uint32_t AT_VALID = AT_OFFSETS + 2 * HEADS * 4; /* [first half tiles of the ring]: 64 bits, slots */
constexpr uint32_t AT_BARRIERS = AT_VALID + RING * 4;

/* Barriers. What arrives; what phases are counted by.
 * What needs none: bits of valid slots are written before their tile's copies are expected, and overwritten when that
 * place of the ring is empty. P and offsets are overwritten two tiles later, by warps that have seen scores whose
 * product was started after P was copied and offsets had been followed; sums two work tiles later, by warps that have
 * seen scores made with a Q which correction brought when it had read them. */
enum barrier {
    K_FULL,                             /* bytes: half a tile of K, or of Q                     ring */
    K_EMPTY = K_FULL + RING,            /* commit                                               ring */
    ROPE_FULL = K_EMPTY + RING,         /* bytes: rope of K, or of Q                            its ring */
    ROPE_EMPTY = ROPE_FULL + ROPE_RING, /* commit                                            its ring */
    Q_FULL = ROPE_EMPTY + ROPE_RING,    /* 4 warps of correction: Q is in tensor memory         work tiles */
    S_FULL,                             /* commit                                               tiles */
    S_EMPTY,                            /* 4 warps of softmax: scores are in registers          tiles */
    OFFSETS_FULL,                       /* 4 warps of softmax                                   2, tiles by turns */
    P_FULL = OFFSETS_FULL + 2, /* 4 warps of softmax: P; 4 of correction: O follows its offsets 2, tiles by turns */
    O_FULL = P_FULL + 2,       /* commit                                               2, tiles by turns */
    SUMS_FULL = O_FULL + 2,    /* 4 warps of softmax                                   2, work tiles by turns */
    BARRIERS = SUMS_FULL + 2
};
constexpr uint32_t AT_SLOT = AT_BARRIERS + 8 * BARRIERS; /* address of tensor memory */
static_assert(AT_SLOT + 16 <= KP_MLA_FWD_H64_SM100_SHARED(DIM), "the host asks for as much");
static_assert(KP_MLA_FWD_H64_SM100_SHARED(DIM) <= 232448, "what a CTA may have");

/* Warps: 0..3 softmax, 4..7 correction, 8 products, 9 and 10 copies. */
constexpr int WARP_PRODUCTS = 8, WARP_COPIES = 9;

#define PAIR 0
#include "kernels/sm100/barriers.h"

/* Waits for what is counted by turns: number n of it. */
static __device__ __forceinline__ void await_turn(uint32_t base, uint32_t barrier, uint32_t n) {
    await(base, barrier + n % 2, n / 2);
}
static __device__ __forceinline__ uint32_t quarter_of(void) { return (uint32_t)(warp_of() % 4) << 21; }
/* The thread's head: correction. */
static __device__ __forceinline__ int head_of(void) { return (int)threadIdx.x % HEADS; }

#include "kernels/sm100/mla_fwd/query.h"
#endif
