/* SPDX-License-Identifier: MIT
 * Part of sdpa_wide.h for variants with .f16x2 = 1: the two products of f32 operands that were split in two f16 each
 * before the kernel started (kernels/smxx/sdpa_f16x2.cu), three products each at twice the rate of tf32.
 *
 * Of eight columns 8 c .. 8 c + 7 the hi fill piece 2 c of 16 bytes and the lo piece 2 c + 1; piece x of row r stands
 * at place x ^ r % 8, so that the eight rows of a matrix that ldmatrix reads cover all banks. Operands leave it in the
 * registers that mma.sync wants: taken from pieces that mix hi and lo, each product would cost three moves.
 *
 * Blocks of KP_F16X2_ROWS rows were multiplied with a power of two so that their largest number lies in [2^14, 2^15):
 *   x = hi + lo + e,  |e| <= max(2^-23 |x|, 2^-25), and a row's largest number is 2^-1 or more
 * Blocks for which that cannot be said, infinities and NaN included, are flagged: their heads are left to the tf32
 * kernel. Probabilities of the forward come scaled by 2^15 for the same reason. */
#ifndef ATTN_SM80_SDPA_WIDE_F16X2_H
#define ATTN_SM80_SDPA_WIDE_F16X2_H
#include "kernels/device/mma.h"

static_assert(!WIDE_F64 && N_X % 2 == 0 && KP_F16X2_ROWS % TILE == 0, "f32, whole steps, one power of two a tile");

static __device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k16(KP_F16, c, a, b0, b1);
}

/* Cells as the left side of add_product; unit: what the products of rows g and g + 8 are to be multiplied with. */
struct left {
    uint32_t hi[N_X / 2][4], lo[N_X / 2][4];
    float unit[2];
};
static __device__ __forceinline__ struct left left_of(const num rX[N_X][4]) {
    struct left x;
#pragma unroll
    for (int n = 0; n < N_X; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float a = rX[n][2 * r], b = rX[n][2 * r + 1];
            const uint32_t hi = pack16(KP_F16, a, b);
            x.hi[n / 2][n % 2 * 2 + r] = hi;
            x.lo[n / 2][n % 2 * 2 + r] = pack16(KP_F16, a - unpack16(KP_F16, hi), b - unpack16(KP_F16, hi >> 16));
        }
    x.unit[0] = x.unit[1] = 1;
    return x;
}
/* Exponent of the power of two that brings numbers up to `largest` to [2^14, 2^15), biased; powers stay normal. */
static __device__ __forceinline__ uint32_t exponent_of(float largest) {
    return max(__float_as_uint(largest) >> 23, 30u);
}
/* The largest size that is finite of all lanes; largest: of the lane, infinities included. */
static __device__ __forceinline__ float block_largest(const num rX[N_X][4], float largest) {
    const uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(largest));
    if (bits < __float_as_uint(INF)) return __uint_as_float(bits);
    largest = 0;
#pragma unroll
    for (int n = 0; n < N_X; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) largest = fabsf(rX[n][e]) < INF ? fmaxf(largest, fabsf(rX[n][e])) : largest;
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest)));
}
/* Cells of any size: each row is brought to [2^14, 2^15) first, or `block`, all of the warp together. Numbers that are
 * not finite stay so. */
static __device__ __forceinline__ struct left left_of_any(num rX[N_X][4], int block = 0) {
    float unit[2], largest[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < N_X; n++)
            largest[r] = fmaxf(largest[r], fmaxf(fabsf(rX[n][2 * r]), fabsf(rX[n][2 * r + 1])));
    if (block) largest[0] = largest[1] = block_largest(rX, fmaxf(largest[0], largest[1]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t exponent = exponent_of(block ? largest[r] : quad_larger(largest[r]));
        const float up = __uint_as_float((268 - exponent) << 23);
        unit[r] = __uint_as_float((exponent - 14) << 23);
#pragma unroll
        for (int n = 0; n < N_X; n++) rX[n][2 * r] *= up, rX[n][2 * r + 1] *= up;
    }
    struct left x = left_of(rX);
    x.unit[0] = unit[0], x.unit[1] = unit[1];
    return x;
}

/* rX += own rows x tile rows over one chunk of `columns` columns, in units of both sides' powers of two. */
static __device__ __forceinline__ void add_scores(num rX[N_X][4], uint32_t own, uint32_t tile, int columns) {
    const int lane = lane_of(), r = lane & 7, m = lane >> 3, steps = (columns + 15) / 16;
    const uint32_t a_lane = own + (warp_of() * 16 + (lane & 15)) * PITCH + (((lane >> 4 << 1) ^ r) << 4),
                   b_lane = tile + r * PITCH + (((m & 1) << 1 | m >> 1) ^ r) * 16;
#pragma unroll
    for (int n0 = 0; n0 < N_X; n0 += GROUP) {
        float acc[GROUP][4], small[GROUP][4];
#pragma unroll
        for (int n = 0; n < GROUP; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[n][e] = small[n][e] = 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (s >= steps) break;
            uint32_t hi[4], lo[4], b[GROUP][4]; /* b: hi of columns 0..7, 8..15, then lo */
            load_matrix4(hi, a_lane ^ 64 * s);
            load_matrix4(lo, a_lane ^ (64 * s + 16));
#pragma unroll
            for (int n = 0; n < GROUP; n++) load_matrix4(b[n], (b_lane ^ 64 * s) + 8 * (n0 + n) * PITCH);
#pragma unroll
            for (int n = 0; n < GROUP; n++) mma_f16(small[n], lo, b[n][0], b[n][1]);
#pragma unroll
            for (int n = 0; n < GROUP; n++) mma_f16(acc[n], hi, b[n][0], b[n][1]);
#pragma unroll
            for (int n = 0; n < GROUP; n++) mma_f16(small[n], hi, b[n][2], b[n][3]);
        }
#pragma unroll
        for (int n = 0; n < GROUP; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) rX[n0 + n][e] += acc[n][e] + small[n][e];
    }
}

/* Where a lane's address of 16 rows of a chunk begins for load_pairs. */
static __device__ __forceinline__ uint32_t pairs_lane(uint32_t rows) {
    const int lane = lane_of();
    return rows + (lane & 15) * PITCH + (((lane >> 4) ^ (lane & 7)) << 4);
}
/* Right side of a product over 16 rows, of 8 columns: hi of rows 0..7, of rows 8..15, then lo. */
static __device__ __forceinline__ void load_pairs(uint32_t b[4], uint32_t lane_at, int stripe, int e) {
    load_matrix4_trans(b, lane_at ^ (128 * stripe + 32 * e));
}

/* rO = rO factor + units (cells x tile) over the first `columns` columns of one chunk: element [e][2 r + i] of a stripe
 * is row g + 8 r, column 8 e + 2 t + i. All numbers of the tile are finite: nothing to repair. */
static __device__ __forceinline__ void add_product(num rO[CHUNK_STRIPES][PIECE][4], const struct left *x, uint32_t tile,
                                                   int columns, const num factor[2], num unit) {
    const uint32_t b_lane = pairs_lane(tile);
    /* Of rows whose results overflow anyway the product of both units may be infinite, and 0 times it is none. */
    const float up[2] = {fminf(x->unit[0] * unit, 3e38f), fminf(x->unit[1] * unit, 3e38f)};
#pragma unroll
    for (int s = 0; s < CHUNK_STRIPES; s++) {
        if (s * STRIPE >= columns) break;
        float acc[PIECE][4], small[PIECE][4];
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int y = 0; y < 4; y++) acc[e][y] = small[e][y] = 0;
#pragma unroll
        for (int k = 0; k < N_X / 2; k++) {
            uint32_t b[PIECE][4];
#pragma unroll
            for (int e = 0; e < PIECE; e++) load_pairs(b[e], b_lane + 16 * k * PITCH, s, e);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(small[e], x->lo[k], b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(acc[e], x->hi[k], b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(small[e], x->hi[k], b[e][2], b[e][3]);
        }
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int y = 0; y < 4; y++)
                rO[s][e][y] = __fmaf_rn(acc[e][y] + small[e][y], up[y >> 1], rO[s][e][y] * factor[y >> 1]);
    }
}

/* From units of both sides' powers of two to plain products. One by one: no overflow. */
static __device__ __forceinline__ void lower_rows(num rX[N_X][4], const float row[2], float b) {
#pragma unroll
    for (int n = 0; n < N_X; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) rX[n][e] = rX[n][e] * row[e >> 1] * b;
}
static __device__ __forceinline__ void lower(num rX[N_X][4], float a, float b) {
    const float row[2] = {a, a};
    lower_rows(rX, row, b);
}

/* The power of two of a block, of one head. */
static __device__ __forceinline__ float block_unit(uint64_t units, int64_t head, int blocks, int row) {
    return ((const float *)units)[head * blocks + (uint32_t)row / KP_F16X2_ROWS];
}
#endif
