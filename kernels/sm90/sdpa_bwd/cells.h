/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu and sdpa_bwd_pair.cu: from the two products of a step to P and dS, in the registers of a
 * warpgroup. Lane 4 g + t of warp w holds keys 16 w + g + 8 h and queries 8 n + 2 t + e of its 64 x ROWS cells at
 * [4 n + 2 h + e]. */
#ifndef ATTN_SM90_SDPA_BWD_CELLS_H
#define ATTN_SM90_SDPA_BWD_CELLS_H
#include "kernels/device/stmatrix.h"
#include "kernels/device/wgmma.h"
#include "kernels/sm90/sdpa_bwd/not_finite.h"

/* What is seldom true: the code for it is placed out of the way. */
static __device__ __forceinline__ int rare(int x) { return __builtin_expect(x != 0, 0); }

static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) % 32; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) / 32 % 4; }

static __device__ __forceinline__ void arrive_warp(uint32_t barrier) {
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(barrier);
}

/* Statistics of queries 8 n + 2 t, + 1. kind 0: lse, 1: shift. */
static __device__ __forceinline__ float2 stat_pair(uint32_t stats, int kind, int n) {
    return shared_load_pair(stats + 4 * (kind * ROWS + 8 * n + 2 * (lane_of() & 3)));
}

/* Products to P. */
static __device__ __forceinline__ void probabilities(float s[N_CELLS], uint32_t stats, float unit) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        const float2 lse = stat_pair(stats, 0, n);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s[4 * n + 2 * h] = exp2_fast(__fmaf_rn(s[4 * n + 2 * h], unit, -lse.x));
            s[4 * n + 2 * h + 1] = exp2_fast(__fmaf_rn(s[4 * n + 2 * h + 1], unit, -lse.y));
        }
    }
}
/* Where sums of dP begin: at -shift, so that the product gives dP - shift. */
static __device__ __forceinline__ void start_dp(float d[N_CELLS], uint32_t stats) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        const float2 shift = stat_pair(stats, 1, n);
        d[4 * n] = d[4 * n + 2] = -shift.x, d[4 * n + 1] = d[4 * n + 3] = -shift.y;
    }
    wgmma_hold(d, N_CELLS); /* here, not between the products of S */
}
/* Hidden cells of P (WHICH & 1) and of dP - shift (WHICH & 2) become 0; so do those of rows past the end, for a key
 * that no query sees may lie in the triangle that they would see, and 0 times its NaN in V is no 0. Cells of a zeroed
 * key are what it says. */
template <int WHICH>
static __device__ __forceinline__ void hide_cells(const struct kp_sdpa_bwd *p, uint32_t shared, struct place place,
                                                  uint32_t stats, int wg, float s[N_CELLS], float d[N_CELLS]) {
    const struct work w = recall_work(shared);
    const int bad_keys = (int)shared_load32(shared + ANY_BAD);
    const uint32_t span = (uint32_t)p->in.window_left + (uint32_t)p->in.window_right, nowhere = 0xc0000000u;
    const int t2 = 2 * (lane_of() & 3), rows = w.seq.sq - place.i0 - t2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = 64 * wg + 16 * warp_of() + (lane_of() >> 2) + 8 * h;
        const uint32_t diagonal = w.j0 + key < w.seq.sk ? (uint32_t)(place.diagonal + key - t2) : nowhere;
        const int bad = !SCORE_MOD && bad_keys && is_bad_key(shared, PAIR ? key % 64 : key);
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int x = 4 * n + 2 * h + e;
                if (bad) {
                    const float2 lse = stat_pair(stats, 0, n);
                    const float share = bad_key_share(e ? lse.y : lse.x);
                    if (WHICH & 1) s[x] = share;
                    if (WHICH & 2) d[x] = share;
                }
                if (diagonal - (uint32_t)(8 * n + e) > span || 8 * n + e >= rows) {
                    if (WHICH & 1) s[x] = 0;
                    if (WHICH & 2) d[x] = 0;
                }
            }
    }
}
/* dS of empty rows: P and dO are 0, but 0 times a NaN in V of a key that they would see is none. */
static __device__ __forceinline__ void silence_cells(uint32_t stats, float d[N_CELLS]) {
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) {
        const float2 lse = stat_pair(stats, 0, n);
#pragma unroll
        for (int x = 0; x < 4; x++)
            if ((x & 1 ? lse.y : lse.x) == INF) d[4 * n + x] = 0;
    }
}

/* P and dP - shift to dS. */
static __device__ __forceinline__ void score_gradients(const float pr[N_CELLS], float d[N_CELLS], float factor) {
#pragma unroll
    for (int x = 0; x < N_CELLS; x++) d[x] *= SCALED ? factor * pr[x] : pr[x];
}
/* Rounded, in the order of an A operand. */
static __device__ __forceinline__ void round_cells(const float s[N_CELLS], uint32_t x[N_PACKED]) {
#pragma unroll
    for (int y = 0; y < N_PACKED; y++) x[y] = pack16(TYPE, s[2 * y], s[2 * y + 1]);
}
/* Of rounded cells: query q, which a lane of the quad holds, and the thread's key h. */
static __device__ __forceinline__ uint32_t cell_of(const uint32_t x[N_PACKED], int q, int h) {
    uint32_t pair = 0; /* a choice would index memory */
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) pair |= x[2 * n + h] & (0u - (uint32_t)(n == q >> 3));
    pair = __shfl_sync(~0u, pair, (lane_of() & ~3) | (q >> 1 & 3));
    return q & 1 ? pair >> 16 : pair & 0xffff;
}
/* Where this lane's row of four matrices goes that are stored transposed, queries along the rows of the slice. */
static __device__ __forceinline__ uint32_t transposed_place(uint32_t slice) {
    const int matrix = lane_of() >> 3, r = lane_of() & 7;
    return slice + (matrix >> 1) * 1024 + r * 128 + ((2 * warp_of() + (matrix & 1) ^ r) << 4);
}
/* The warpgroup's dS^T into its slice of a tile of dS: queries along the rows. */
static __device__ __forceinline__ void store_cells(uint32_t slice, const uint32_t x[N_PACKED]) {
    const uint32_t to = transposed_place(slice);
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) store_matrix4_transposed(to + 2048 * kk, x + 4 * kk);
}
#endif
