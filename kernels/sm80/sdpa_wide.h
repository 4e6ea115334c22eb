/* SPDX-License-Identifier: MIT
 * Dense attention in f32 and f64, what its kernels build on: chunks of shared memory, the two products, scores.
 * Not a kernel; a kernel includes it once and draws the picture.
 *
 * A CTA owns ROWS rows of one side (queries, or keys in the gradient of keys and values), 16 a warp, and walks tiles of
 * TILE rows of the other side. All operands come from chunks of 256 bytes of columns:
 *   rX (16 x TILE)    = own rows  x  tile rows, summed over columns      add_scores, chunk by chunk
 *   rO (16 x columns) = rO f + rX x  tile rows, summed over tile rows    add_product, chunk by chunk
 * rX leaves the first product in the layout of C and enters the second as A without a shuffle (device/mma_wide.h).
 *
 * A chunk: row r at 256 r, its piece c of 16 bytes at place c ^ key(r), key = (r & 6) ^ 4 (r & 1); for f16x2 key =
 * r & 7, and ldmatrix reads eight rows at a time. A lane's loads are whole pieces; eight lanes of a phase touch
 *   row 8 n + g, piece 4 s + t            rows 2x, 2x + 1 differ in bit 2 of the place, t in bits 0 and 1
 *   row 8 k + 2 t (+ 1), piece 8 G + g    t differs in bits 1 and 2, the pair of g in bit 0
 * so both kinds cover all 32 banks. Products, and how f32 is split: sdpa_wide_product.h, or sdpa_wide_f16x2.h. */
#ifndef ATTN_SM80_SDPA_WIDE_H
#define ATTN_SM80_SDPA_WIDE_H
#include "kernels/device/number_wide.h"
#include "kernels/device/sequence.h"
#include "kernels/params/sdpa_wide.h"

#ifdef CFG_F16X2
constexpr int F16X2 = CFG_F16X2;
#else
constexpr int F16X2 = 0;
#endif
constexpr int WARPS = CFG_WARPS, TILE = CFG_KEYS, COLS = CFG_COLS, SLOTS = CFG_SLOTS;
constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, PITCH = KP_WIDE_PITCH;
constexpr int CHUNK = PITCH / (int)sizeof(num); /* columns of a chunk */
constexpr int N_X = TILE / 8;                   /* C tiles of rX */
constexpr int STRIPE = 8 * PIECE;               /* columns that add_product makes at a time: PIECE C tiles */
constexpr int STRIPES = COLS / STRIPE, CHUNK_STRIPES = CHUNK / STRIPE, CHUNKS = COLS / CHUNK;
#ifdef CFG_GROUP
constexpr int GROUP = CFG_GROUP;
#else
constexpr int GROUP = N_X < 4 ? N_X : 4; /* C tiles that add_scores makes at a time */
#endif
#ifdef CFG_PER
constexpr int PER = CFG_PER; /* chunks of a slot of the ring */
#else
constexpr int PER = 1;
#endif
constexpr int FAR = 1 << 30;

static_assert(COLS % CHUNK == 0 && TILE % 8 == 0 && N_X % GROUP == 0, "whole chunks and groups");
static_assert(THREADS % 128 == 0 && SLOTS >= 2 && SLOTS <= 4, "copies keep their swizzle; copy_wait knows 3 groups");

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_of(void) { return thread_of() >> 5; }
static __device__ __forceinline__ int key_of_row(int r) { return F16X2 ? r & 7 : (r & 6) ^ (r & 1) << 2; }
/* Columns that stand in memory: f16x2 operands come as whole pairs of pieces. */
static __device__ __forceinline__ int stored(int columns) { return F16X2 ? (columns + 7) & -8 : columns; }
/* Where two kernels are started for the same heads: is this one this kernel's? */
static __device__ __forceinline__ int is_mine(const struct kp_sdpa_wide *p, int64_t key_head) {
    return WIDE_F64 || !p->flags || (((const int32_t *)p->flags)[key_head] != 0) == !F16X2;
}
static __device__ __forceinline__ int chunks_of(int columns) { return (columns + CHUNK - 1) / CHUNK; }

/* ------------------------------------------------------------------ copies ------------------------- */

/* 16 bytes of which `bytes` exist; `unit`: kp_view.chunk. */
static __device__ __forceinline__ void copy_piece(uint32_t to, const char *from, int bytes, int unit) {
    constexpr int SIZE = (int)sizeof(num);
    if (unit == 16) {
        copy_async16(to, from, bytes);
        return;
    }
#pragma unroll
    for (int x = 0; x < 16; x += SIZE) {
        const int left = max(min(bytes - x, SIZE), 0);
        if (WIDE_F64)
            copy_async8(to + x, from + x, left);
        else
            copy_async4(to + x, from + x, left);
    }
}

/* Bytes of this thread's piece of a chunk of which `columns` columns exist. */
static __device__ __forceinline__ int piece_bytes(int columns) {
    return max(min(columns * (int)sizeof(num) - 16 * (thread_of() & 15), 16), 0);
}
static __device__ __forceinline__ void copy_row(uint32_t chunk, int r, const char *from, int bytes, int unit) {
    const int c = thread_of() & 15;
    copy_piece(chunk + r * PITCH + ((c ^ key_of_row(r)) << 4), from + 16 * c, bytes, F16X2 ? 16 : unit);
}

/* `rows` rows of a chunk, of which the first `exist` exist; from: row 0, first column; stride in bytes. Whole tiles of
 * aligned rows, nearly all, take a way of their own: a copy that may be cut short costs 16 instructions, one that may
 * not 3. f16x2 operands stand in the workspace, aligned. */
static __device__ __forceinline__ void copy_rows(uint32_t chunk, int rows, const char *from, int64_t stride, int exist,
                                                 int columns, int unit) {
    constexpr int DOWN = THREADS / 16; /* a multiple of 8: the swizzle of a thread's rows is the same */
    static_assert(TILE % DOWN == 0 && ROWS % DOWN == 0, "all threads copy the same number of pieces");
    const int r0 = thread_of() >> 4, c = thread_of() & 15;
    uint32_t to = chunk + r0 * PITCH + ((c ^ key_of_row(r0)) << 4);
    from += r0 * stride + 16 * c;
    if ((F16X2 || unit == 16) && rows <= exist && columns >= CHUNK) {
#pragma unroll
        for (int r = 0; r < rows; r += DOWN, from += DOWN * stride) copy_async16_whole(to + r * PITCH, from);
        return;
    }
    const int bytes = piece_bytes(columns);
#pragma unroll 1
    for (int r = r0; r < rows; r += DOWN, to += DOWN * PITCH, from += DOWN * stride)
        copy_piece(to, from, r < exist ? bytes : 0, F16X2 ? 16 : unit);
}

#if defined CFG_F16X2 && CFG_F16X2
#include "kernels/sm80/sdpa_wide_f16x2.h"
#else
#include "kernels/sm80/sdpa_wide_product.h"
#endif

/* ------------------------------------------------------------------ results ------------------------ */

/* N neighbours, 16 bytes or two numbers, to an address that allows it. */
template <int N> static __device__ __forceinline__ void store_neighbours(num *to, const num x[N]) {
    if constexpr (N == PIECE)
        store_piece_global(to, x);
    else
        *(float2 *)to = make_float2((float)x[0], (float)x[1]);
}

/* A lane's two rows of rO, times `factor` (negative: zeroes), to rows `to` of a tensor: `columns` of the chunk exist.
 * to[r] = 0: no row. */
static __device__ __forceinline__ void store_chunk(num *const to[2], const num rO[CHUNK_STRIPES][PIECE][4], int columns,
                                                   const num factor[2], int unit) {
    const int t = lane_of() & 3;
    constexpr int NEAR = F16X2 ? 2 : PIECE, PARTS = F16X2 ? PIECE : 2; /* neighbours that a lane has; how many times */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!to[r]) continue;
#pragma unroll
        for (int s = 0; s < CHUNK_STRIPES; s++)
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                const int c = s * STRIPE + (F16X2 ? 8 * i + 2 * t : PIECE * (2 * t + i));
                num x[NEAR];
#pragma unroll
                for (int e = 0; e < NEAR; e++) {
                    const num y = F16X2 ? rO[s][i % PIECE][2 * r + e % 2] : rO[s][e][2 * r + i % 2];
                    x[e] = factor[r] < 0 ? 0 : y * factor[r];
                }
                if (unit == 16 && c + NEAR <= columns) {
                    store_neighbours<NEAR>(to[r] + c, x);
                } else {
#pragma unroll
                    for (int e = 0; e < NEAR; e++)
                        if (c + e < columns) to[r][c + e] = x[e];
                }
            }
    }
}

/* ------------------------------------------------------------------ scores ------------------------- */

static __device__ __forceinline__ num slope_of(const struct kp_sdpa *p, int b, int h) {
    return p->alibi_form ? ((const float *)p->alibi)[b * p->alibi_batch + h * p->alibi_head] : 0;
}

/* Steps 1 to 4 of a visible pair, natural units; -inf if the mask hides it. distance = j - (i + off). *chain:
 * derivative of step 2. */
static __device__ __forceinline__ num score_of(const struct kp_sdpa *p, const struct kp_sdpa_wide *wide, num raw,
                                               int distance, num slope, int64_t cell, num *chain) {
    num y = raw * (num)wide->scale;
    *chain = 1;
    if (wide->softcap > 0) {
        const num a = y * (num)wide->softcap_inverse, th = WIDE_F64 ? tanh(a) : tanhf((float)a);
        y = (num)wide->softcap * th;
        *chain = (1 - th) * (1 + th);
    }
    if (p->alibi_form) y += slope * (num)(p->alibi_form == 1 ? distance : -abs(distance));
    if (!p->mask.data) return y;
    if (p->mask.dtype == KP_BOOL) return ((const uint8_t *)p->mask.data)[cell] ? y : -INF;
    return y + load_number((const void *)p->mask.data, cell, p->mask.dtype);
}
#endif
