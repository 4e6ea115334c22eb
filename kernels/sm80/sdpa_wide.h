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
 * A chunk: row r at 256 r, its piece c of 16 bytes at place c ^ key(r), key = (r & 6) ^ 4 (r & 1). A lane's loads are
 * whole pieces; eight lanes of a phase touch
 *   row 8 n + g, piece 4 s + t        rows 2x, 2x + 1 differ in bit 2 of the place, t in bits 0 and 1
 *   row 8 k + 2 t (+ 1), piece 8 G + g    t differs in bits 1 and 2, the pair of g in bit 0
 * so both kinds cover all 32 banks.
 *
 * f32 as two tf32. hi = x rounded to 11 bits, lo = x - hi (exact), of which the tensor core reads 11 bits:
 *   x = hi + lo + e,  |lo| <= 2^-11 |x|,  |e| <= 2^-22 |x|, of either sign. The exponent has 8 bits: no scaling, and
 *   no range to leave but for |x| > 2^128 - 2^115, where hi is infinite (a second product is then repeated
 *   without tensor cores, a score becomes NaN); parts below 2^-126 are lost as in any f32 sum.
 *   a b = hi hi' + (hi lo' + lo hi') + rest,  |rest| <= (2^-22 + 2 2^-22) |a b|, on average 2^-24 |a b| of either sign
 * The tensor core adds up with truncation: each instruction takes up to 2^-23 off the partial sum, always towards zero.
 * A sum over thousands of keys would lose 1e-4. So sums start from zero every 64 columns or TILE rows, 8 instructions
 * deep (8 2^-23 at most, a third of it on average: 3e-7), and are added in f32 rounded to nearest; the bracket, 2^-11
 * as large, has a sum of its own, so that its 16 instructions truncate nothing that counts.
 * Bounds: an f32 row may err by 4e-6 forward, 2e-5 backward. f64 products are exact to 2^-53 and need none of this. */
#ifndef ATTN_SM80_SDPA_WIDE_H
#define ATTN_SM80_SDPA_WIDE_H
#include "kernels/device/mma_wide.h"
#include "kernels/device/number_wide.h"
#include "kernels/device/sequence.h"
#include "kernels/kparams_sdpa_wide.h"

constexpr int WARPS = CFG_WARPS, TILE = CFG_KEYS, COLS = CFG_COLS, SLOTS = CFG_SLOTS;
constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, PITCH = KP_WIDE_PITCH;
constexpr int CHUNK = PITCH / (int)sizeof(num); /* columns of a chunk */
constexpr int N_X = TILE / 8;                   /* C tiles of rX */
constexpr int STRIPE = 8 * PIECE;               /* columns that add_product makes at a time: PIECE C tiles */
constexpr int STRIPES = COLS / STRIPE, CHUNK_STRIPES = CHUNK / STRIPE, CHUNKS = COLS / CHUNK;
constexpr int GROUP = N_X < 4 ? N_X : 4; /* C tiles that add_scores makes at a time */
constexpr int FAR = 1 << 30;

static_assert(COLS % CHUNK == 0 && TILE % 8 == 0 && N_X % GROUP == 0, "whole chunks and groups");
static_assert(THREADS % 128 == 0 && SLOTS >= 2 && SLOTS <= 4, "copies keep their swizzle; copy_wait knows 3 groups");

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_of(void) { return thread_of() >> 5; }
static __device__ __forceinline__ int key_of_row(int r) { return (r & 6) ^ (r & 1) << 2; }
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
    copy_piece(chunk + r * PITCH + ((c ^ key_of_row(r)) << 4), from + 16 * c, bytes, unit);
}

/* `rows` rows of a chunk, of which the first `exist` exist; from: row 0, first column; stride in bytes. */
static __device__ __forceinline__ void copy_rows(uint32_t chunk, int rows, const char *from, int64_t stride, int exist,
                                                 int columns, int unit) {
    constexpr int DOWN = THREADS / 16; /* a multiple of 8: the swizzle of a thread's rows is the same */
    const int r0 = thread_of() >> 4, c = thread_of() & 15, bytes = piece_bytes(columns);
    uint32_t to = chunk + r0 * PITCH + ((c ^ key_of_row(r0)) << 4);
    from += r0 * stride + 16 * c;
#pragma unroll 4
    for (int r = r0; r < rows; r += DOWN, to += DOWN * PITCH, from += DOWN * stride)
        copy_piece(to, from, r < exist ? bytes : 0, unit);
}

/* ------------------------------------------------------------------ products ----------------------- */

#if CFG_DTYPE == KP_F64
struct operand {
    double x[4];
};
static __device__ __forceinline__ struct operand operand_of(num a0, num a1, num a2, num a3) {
    struct operand a = {{a0, a1, a2, a3}};
    return a;
}
/* acc[n] += a (b0[n]; b1[n]), n < N. */
template <int N>
static __device__ __forceinline__ void multiply(num acc[N][4], num small[N][4], const struct operand *a,
                                                const num b0[N], const num b1[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) mma_f64(acc[n], a->x, b0[n], b1[n]);
}
#else
struct operand {
    uint32_t hi[4], lo[4];
};
static __device__ __forceinline__ void split(float x, uint32_t *hi, uint32_t *lo) {
    *hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    *lo = __float_as_uint(x - __uint_as_float(*hi));
}
static __device__ __forceinline__ struct operand operand_of(num a0, num a1, num a2, num a3) {
    struct operand a;
    split(a0, &a.hi[0], &a.lo[0]), split(a1, &a.hi[1], &a.lo[1]);
    split(a2, &a.hi[2], &a.lo[2]), split(a3, &a.hi[3], &a.lo[3]);
    return a;
}
template <int N>
static __device__ __forceinline__ void multiply(num acc[N][4], num small[N][4], const struct operand *a,
                                                const num b0[N], const num b1[N]) {
    uint32_t hi[N][2], lo[N][2];
#pragma unroll
    for (int n = 0; n < N; n++) split(b0[n], &hi[n][0], &lo[n][0]), split(b1[n], &hi[n][1], &lo[n][1]);
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(small[n], a->lo, hi[n][0], hi[n][1]);
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(small[n], a->hi, lo[n][0], lo[n][1]);
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(acc[n], a->hi, hi[n][0], hi[n][1]);
}
#endif

/* rX += own rows x tile rows over one chunk of `columns` columns. own: the CTA's chunk of own rows. Within 4 pieces
 * place t of the product's inner index is the lane's piece: PIECE / 2 products of 8 columns each. */
static __device__ __forceinline__ void add_scores(num rX[N_X][4], uint32_t own, uint32_t tile, int columns) {
    const int lane = lane_of(), g = lane >> 2, t = lane & 3, steps = (columns + 4 * PIECE - 1) / (4 * PIECE);
    const uint32_t a_at = own + (warp_of() * 16 + g) * PITCH, b_at = tile + g * PITCH;
#pragma unroll
    for (int n0 = 0; n0 < N_X; n0 += GROUP) {
        num acc[GROUP][4], small[GROUP][4];
#pragma unroll
        for (int n = 0; n < GROUP; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[n][e] = WIDE_F64 ? rX[n0 + n][e] : 0, small[n][e] = 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (s >= steps) break;
            const uint32_t place = ((4 * s + t) ^ key_of_row(g)) << 4;
            const struct piece top = load_piece(a_at + place), low = load_piece(a_at + 8 * PITCH + place);
            struct piece b[GROUP];
#pragma unroll
            for (int n = 0; n < GROUP; n++) b[n] = load_piece(b_at + 8 * (n0 + n) * PITCH + place);
#pragma unroll
            for (int u = 0; u < PIECE; u += 2) {
                const struct operand a = operand_of(top.x[u], low.x[u], top.x[u + 1], low.x[u + 1]);
                num b0[GROUP], b1[GROUP];
#pragma unroll
                for (int n = 0; n < GROUP; n++) b0[n] = b[n].x[u], b1[n] = b[n].x[u + 1];
                multiply<GROUP>(acc, small, &a, b0, b1);
            }
        }
#pragma unroll
        for (int n = 0; n < GROUP; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                rX[n0 + n][e] = WIDE_F64 ? acc[n][e] : rX[n0 + n][e] + (acc[n][e] + small[n][e]);
    }
}

/* One stripe of rX x tile in plain multiply-adds, hidden pairs left out: what the product is when the tile holds
 * infinities or NaN. rX = -0 marks a hidden pair; a visible one that was rounded to +0 counts as `tiny` instead. */
static __device__ __forceinline__ void multiply_visible(num acc[PIECE][4], const num rX[N_X][4], uint32_t tile,
                                                        int stripe, num tiny) {
    const int lane = lane_of(), t = lane & 3;
#pragma unroll
    for (int e = 0; e < PIECE; e++) acc[e][0] = acc[e][1] = acc[e][2] = acc[e][3] = 0;
#pragma unroll 1
    for (int j = 0; j < TILE; j++) {
        const uint32_t row = tile + j * PITCH;
        const struct piece v[2] = {load_piece(row + (((8 * stripe + 2 * t) ^ key_of_row(j)) << 4)),
                                   load_piece(row + (((8 * stripe + 2 * t + 1) ^ key_of_row(j)) << 4))};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bits all = 0; /* a choice by conditions would index memory */
#pragma unroll
            for (int n = 0; n < N_X; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    all |= bits_of(rX[n][2 * r + e]) & (bits) - (int64_t)(2 * n + e == (j >> 3) * 2 + (j & 1));
            num x = shuffle(number_of(all), (lane & ~3) | (j >> 1 & 3));
            if (is_hidden_zero(x)) continue;
            if (x == 0) x = tiny;
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 0; e < PIECE; e++) acc[e][2 * r + i] += x * v[i].x[e];
        }
    }
}

/* rO = rO factor + rX x tile over the first `columns` columns of one chunk. Lane's element [e][2 r + i] of a stripe is
 * row g + 8 r, column PIECE (2 t + i) + e. */
static __device__ __forceinline__ void add_product(num rO[CHUNK_STRIPES][PIECE][4], const num rX[N_X][4], uint32_t tile,
                                                   int columns, const num factor[2], num tiny) {
    const int lane = lane_of(), g = lane >> 2, t = lane & 3;
    const uint32_t even = tile + 2 * t * PITCH + ((g ^ 2 * t) << 4),
                   odd = tile + (2 * t + 1) * PITCH + ((g ^ 2 * t ^ 4) << 4);
#pragma unroll
    for (int s = 0; s < CHUNK_STRIPES; s++) {
        if (s * STRIPE >= columns) break;
        num acc[PIECE][4], small[PIECE][4];
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int x = 0; x < 4; x++) acc[e][x] = small[e][x] = 0;
#pragma unroll
        for (int k = 0; k < N_X; k++) {
            const struct piece b0 = load_piece(even + 8 * k * PITCH + 128 * s),
                               b1 = load_piece(odd + 8 * k * PITCH + 128 * s);
            const struct operand a = operand_of(rX[k][0], rX[k][2], rX[k][1], rX[k][3]);
            multiply<PIECE>(acc, small, &a, b0.x, b1.x);
        }
        num finite = 0; /* else NaN */
#pragma unroll
        for (int e = 0; e < PIECE; e++) {
#pragma unroll
            for (int x = 0; x < 4 && !WIDE_F64; x++) acc[e][x] += small[e][x];
            finite +=
                (acc[e][0] - acc[e][0]) + (acc[e][1] - acc[e][1]) + (acc[e][2] - acc[e][2]) + (acc[e][3] - acc[e][3]);
        }
        if (__any_sync(~0u, finite != 0)) multiply_visible(acc, rX, tile, s, tiny);
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                rO[s][e][x] = WIDE_F64 ? fma((double)rO[s][e][x], (double)factor[x >> 1], (double)acc[e][x])
                                       : __fmaf_rn((float)rO[s][e][x], (float)factor[x >> 1], (float)acc[e][x]);
    }
}

/* A lane's two rows of rO, times `factor`, to rows `to` of a tensor: `columns` of the chunk exist. to[r] = 0: no row.
 */
static __device__ __forceinline__ void store_chunk(num *const to[2], const num rO[CHUNK_STRIPES][PIECE][4], int columns,
                                                   const num factor[2], int unit) {
    const int t = lane_of() & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!to[r]) continue;
#pragma unroll
        for (int s = 0; s < CHUNK_STRIPES; s++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int c = s * STRIPE + PIECE * (2 * t + i);
                num x[PIECE];
#pragma unroll
                for (int e = 0; e < PIECE; e++) x[e] = factor[r] == 0 ? 0 : rO[s][e][2 * r + i] * factor[r];
                if (unit == 16 && c + PIECE <= columns) {
                    store_piece_global(to[r] + c, x);
                } else {
#pragma unroll
                    for (int e = 0; e < PIECE; e++)
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
