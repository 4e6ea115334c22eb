/* SPDX-License-Identifier: MIT
 * Part of sdpa_wide.h: the two products of tiles in f64, and in f32 by three tf32 products of split operands.
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
#ifndef ATTN_SM80_SDPA_WIDE_PRODUCT_H
#define ATTN_SM80_SDPA_WIDE_PRODUCT_H
#include "kernels/device/mma_wide.h"

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
            const struct piece upper = load_piece(a_at + place), lower8 = load_piece(a_at + 8 * PITCH + place);
            struct piece b[GROUP];
#pragma unroll
            for (int n = 0; n < GROUP; n++) b[n] = load_piece(b_at + 8 * (n0 + n) * PITCH + place);
#pragma unroll
            for (int u = 0; u < PIECE; u += 2) {
                const struct operand a = operand_of(upper.x[u], lower8.x[u], upper.x[u + 1], lower8.x[u + 1]);
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
 * infinities or NaN. rX = -0 marks a hidden pair; a visible one that was rounded to +0 counts as `tiny` instead, the
 * least normal number, so that it shows nothing else. */
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

static __device__ __forceinline__ num block_unit(uint64_t units, int64_t head, int blocks, int row) { return 1; }

/* Cells as the left side of add_product: where they are. */
struct left {
    const num (*x)[4];
};
static __device__ __forceinline__ struct left left_of(const num rX[N_X][4]) {
    struct left x = {rX};
    return x;
}
static __device__ __forceinline__ struct left left_of_any(const num rX[N_X][4], int block = 0) { return left_of(rX); }
/* Nothing is scaled. */
static __device__ __forceinline__ void lower(num rX[N_X][4], num a, num b) {}
static __device__ __forceinline__ void lower_rows(num rX[N_X][4], const float row[2], num b) {}

/* rO = rO factor + cells x tile over the first `columns` columns of one chunk. Lane's element [e][2 r + i] of a stripe
 * is row g + 8 r, column PIECE (2 t + i) + e. unit is 1 here. */
static __device__ __forceinline__ void add_product(num rO[CHUNK_STRIPES][PIECE][4], const struct left *x, uint32_t tile,
                                                   int columns, const num factor[2], num unit) {
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
            for (int y = 0; y < 4; y++) acc[e][y] = small[e][y] = 0;
#pragma unroll
        for (int k = 0; k < N_X; k++) {
            const struct piece b0 = load_piece(even + 8 * k * PITCH + 128 * s),
                               b1 = load_piece(odd + 8 * k * PITCH + 128 * s);
            const struct operand a = operand_of(x->x[k][0], x->x[k][2], x->x[k][1], x->x[k][3]);
            multiply<PIECE>(acc, small, &a, b0.x, b1.x);
        }
        num finite = 0; /* else NaN */
#pragma unroll
        for (int e = 0; e < PIECE; e++) {
#pragma unroll
            for (int y = 0; y < 4 && !WIDE_F64; y++) acc[e][y] += small[e][y];
            finite +=
                (acc[e][0] - acc[e][0]) + (acc[e][1] - acc[e][1]) + (acc[e][2] - acc[e][2]) + (acc[e][3] - acc[e][3]);
        }
        if (__any_sync(~0u, finite != 0)) multiply_visible(acc, x->x, tile, s, WIDE_F64 ? (num)2.3e-308 : (num)1.2e-38);
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int y = 0; y < 4; y++)
                rO[s][e][y] = WIDE_F64 ? fma((double)rO[s][e][y], (double)factor[y >> 1], (double)acc[e][y])
                                       : __fmaf_rn((float)rO[s][e][y], (float)factor[y >> 1], (float)acc[e][y]);
    }
}
#endif
