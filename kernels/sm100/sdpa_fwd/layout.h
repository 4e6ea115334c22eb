/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: configuration of the variant, tensor memory, shared memory, barriers. */
#ifndef ATTN_SM100_SDPA_FWD_LAYOUT_H
#define ATTN_SM100_SDPA_FWD_LAYOUT_H
#if !CFG_PAIR
#define TC_GROUP 1 /* all products are a CTA's own */
#endif
#include "kernels/device/cluster.h"
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/shared.h"
#include "kernels/device/tcgen05.h"
#include "kernels/params/sdpa_sm100.h"
#include "kernels/sm100/softcap.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = CFG_DIM_V;
constexpr int Q_STAGES = CFG_Q_STAGES, RING = CFG_SLICES, POLYNOMIAL = CFG_POLYNOMIAL, SCORE_MOD = CFG_SCORE_MOD;
constexpr int PAIR = CFG_PAIR, CTAS = 1 + PAIR; /* that share a tile of keys */
constexpr int CTA_ROWS = KP_SDPA_FWD_SM100_ROWS, ROWS = CTAS * CTA_ROWS, KEYS = KP_SDPA_FWD_SM100_KEYS;
constexpr int HALF = CTA_ROWS / 2; /* rows of a CTA's tile of Q, one a lane of tensor memory */
/* Slices of a tile of keys. Pair, each CTA: of K 64 keys, of V 64 columns, in two slices of 64 keys. */
constexpr int SLICES_K = DIM / 64, SLICES_V = DIM_V / 64, SLICES = SLICES_K + SLICES_V;
static_assert(DIM % 64 == 0 && DIM_V % 64 == 0 && DIM <= 192 && DIM_V <= 128, "whole slices, columns of O");
static_assert(RING >= SLICES && POLYNOMIAL <= 16, "a tile of keys in the ring, pairs");
static_assert(!PAIR || (DIM_V == 128 && Q_STAGES == 1), "a CTA's columns of V are a slice, barriers fit");

/* Tensor memory, columns; lane r: row r of the tile of Q. P, two numbers a cell, overwrites the first half of its S; or
 * it has columns of its own, where O leaves some: then the next S need not wait for P V. */
constexpr int OWN_P = DIM_V == 64;
constexpr uint32_t TM_S = 0;   /* [2 tiles of Q][128 keys] */
constexpr uint32_t TM_O = 256; /* [2 tiles of Q][128 columns, or 64] */
constexpr uint32_t TM_P = OWN_P ? 384 : TM_S;
constexpr uint32_t STEP_O = OWN_P ? 64 : 128, STEP_P = OWN_P ? 64 : 128; /* from one tile of Q to the other */
constexpr uint32_t TM_COLUMNS = 512;
constexpr int EARLY_KEYS = 96; /* keys whose P is handed over before the others' */

/* Shared memory, bytes. */
constexpr uint32_t SLICE = KP_SDPA_FWD_SM100_SLICE, Q_BYTES = SLICES_K * SLICE, RING_SLICE = SLICE / CTAS;
constexpr uint32_t AT_Q = 0;                                /* [Q_STAGES][2 tiles][SLICES_K][128 rows][64 columns] */
constexpr uint32_t AT_RING = AT_Q + Q_STAGES * 2 * Q_BYTES; /* [RING][128 keys, or 64][64 columns] */
constexpr uint32_t AT_SUMS = AT_RING + RING * RING_SLICE;   /* [256 rows]: m, l */
constexpr uint32_t AT_WORK = AT_SUMS + CTA_ROWS * 8;        /* [2]: struct work, see keep_work */
constexpr uint32_t AT_BARRIERS = AT_WORK + 2 * 64;

/* Barriers. What arrives; what its phases are counted by. "tiles": S of one tile of Q, of all work tiles in turn;
 * "rows": tiles of Q that see a key. Whoever waits can be one phase late at most: what completes the next phase has
 * been waiting for what it does after this one. Of a pair, commits arrive in both CTAs; L: the even CTA's, where
 * products are started, for both: bytes and warps of both. */
enum barrier {
    SLICE_FULL,                      /* L, bytes: a slice of K or V                             ring */
    SLICE_EMPTY = SLICE_FULL + RING, /* commit: products have read it                           ring */
    Q_FULL = SLICE_EMPTY + RING,     /* L, bytes                              [Q_STAGES][2]     work tiles, a stage */
    Q_EMPTY = Q_FULL + 2 * Q_STAGES, /* commit after the last Q K^T           [Q_STAGES]        work tiles, a stage */
    S_FULL = Q_EMPTY + Q_STAGES,     /* commit; unless OWN_P, O has all tiles before it [2]     tiles */
    P_EMPTY = S_FULL + 2,            /* OWN_P: commit, O has the tile         [2]               tiles */
    S_EMPTY = P_EMPTY + 2,           /* OWN_P: 4 warps have read S            [2]               tiles */
    P_FULL = S_EMPTY + 2,            /* L, 4 warps: P of EARLY_KEYS, O scaled [2]               tiles */
    P_REST = P_FULL + 2,             /* L, 4 warps: P of the other keys       [2]               tiles */
    O_FULL = P_REST + 2,             /* commit after the last P V             [2]               rows */
    O_EMPTY = O_FULL + 2,            /* L, 4 warps of output: O, m, l read    [2]               rows */
    SUMS_FULL = O_EMPTY + 2,         /* 4 warps of softmax: m, l              [2]               rows */
    WORK_FULL = SUMS_FULL + 2,       /* the copying thread: struct work       [2, by turns]     work tiles / 2 */
    WORK_EMPTY = WORK_FULL + 2,      /* 12 warps, the products' thread, if any [2, by turns]    work tiles / 2 */
    V_CLEARED = WORK_EMPTY + 2,      /* L, 4 warps of output: rows past the end                 work tiles with such */
    SUMS_EMPTY,                      /* pair: 4 warps of output: m, l read    [2]               rows */
    TAIL_FULL = SUMS_EMPTY + 2,      /* pair: bytes of V, if it has such      [2, by turns]     work tiles / 2 */
    BARRIERS = PAIR ? TAIL_FULL + 2 : SUMS_EMPTY
};
constexpr uint32_t AT_SLOT = AT_BARRIERS + 8 * BARRIERS; /* address of tensor memory */
static_assert(AT_SLOT + 8 <= KP_SDPA_FWD_SM100_SHARED(DIM, Q_STAGES, RING, PAIR), "the host asks for as much");
static_assert(KP_SDPA_FWD_SM100_SHARED(DIM, Q_STAGES, RING, PAIR) <= 232448, "what a CTA may have");

/* Warps: 0..3 and 4..7 softmax of a tile of Q each, 8..11 output; then one each. */
constexpr int WARP_OUTPUT = 8, WARP_PRODUCTS = 12, WARP_COPIES = 13, WARP_EMPTY_ROWS = 14;

/* They read the constants above. */
#define TILE_CTAS (1 + CFG_PAIR)
#include "kernels/device/sdpa_tiles.h"

/* Log2 units of a product; of softcap, of its tanh. */
static __device__ __forceinline__ float unit_of_score(const struct kp_sdpa_fwd *p) {
    if (SCORE_MOD) return p->in.softcap * LOG2E;
    return p->in.scale < 0 ? -p->in.scale_log2 : p->in.scale_log2;
}
/* sdpa_hidden_values.h: a product as the softmax gets it, in units of a score. */
static __device__ __forceinline__ float modified_product(const struct kp_sdpa_fwd *p, const struct work *, int, int,
                                                         float s) {
    return SCORE_MOD ? tanh_any(p->in.scale * p->in.softcap_inverse * s) : s;
}
#include "kernels/device/sdpa_hidden_values.h"
#include "kernels/sm100/barriers.h"

static __device__ __forceinline__ void await_slice(uint32_t base, uint32_t barrier, uint32_t slice) {
    await(base, barrier + slice % RING, slice / RING);
}
static __device__ __forceinline__ uint32_t ring_slice(uint32_t base, uint32_t slice) {
    return base + AT_RING + slice % RING * RING_SLICE;
}

/* Work tile number n of the CTA; 0 if there is none. A warp takes it once; the products' thread, too. */
static __device__ __forceinline__ int take_work(uint32_t base, uint32_t n, struct work *w) {
    await(base, WORK_FULL + n % 2, n / 2);
    *w = recall_work(base + AT_WORK + n % 2 * 64);
    return w->n_tiles > 0;
}

/* The first row of this CTA's tile of Q. Of a pair, both CTAs' tiles are neighbours, the even one's first. */
static __device__ __forceinline__ int first_row(const struct work *w, int half) {
    return w->row0 + HALF * half + PAIR * HALF * (half + rank_of());
}
/* Key tiles that the rows of one tile of Q, or of a pair's two, see; n 0: none. A part of the work tile's. */
struct span {
    int first, n;
};
static __device__ __forceinline__ struct span span_of(const struct kp_sdpa_fwd *p, const struct work *w, int half) {
    const int row0 = w->row0 + CTAS * HALF * half, end = min(row0 + CTAS * HALF, w->seq.sq);
    const int j0 = first_key(p, w, row0), j1 = end_key(p, w, end - 1);
    struct span s = {w->first, 0};
    if (row0 >= w->seq.sq || j1 <= j0) return s;
    s.first = j0 / KEYS;
    s.n = (j1 + KEYS - 1) / KEYS - s.first;
    return s;
}
static __device__ __forceinline__ int in_span(const struct span *s, int tile) {
    return (uint32_t)(tile - s->first) < (uint32_t)s->n;
}
static __device__ __forceinline__ int last_tile(const struct work *w) { return w->first + w->n_tiles - 1; }

/* The first tile at work holds rows of V past the sequence's keys that are not known to be zeros. */
static __device__ __forceinline__ int clears_tail(const struct kp_sdpa_fwd *p, const struct work *w) {
    return has_tail(p, w) && (last_tile(w) + 1) * KEYS > w->seq.sk;
}

/* The lanes of tensor memory that the warp reaches. */
static __device__ __forceinline__ uint32_t quarter_of(void) { return (uint32_t)(warp_of() % 4) << 21; }
#endif
