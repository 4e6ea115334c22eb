/* SPDX-License-Identifier: MIT
 * Part of sdpa_wide.h for variants with .halves = 1: the two products of f32 operands that were split into pairs of f16
 * before the kernel started (kernels/smxx/sdpa_halves.cu), three products each at twice the rate of tf32.
 *
 * A piece of 16 bytes has the hi and lo of four columns 4 c .. 4 c + 3: words (h0 h1) (h2 h3) (l0 l1) (l2 l3). Blocks
 * of KP_HALVES_ROWS rows were multiplied with a power of two so that their largest number lies in [2^14, 2^15): x = hi
 * + lo + e,  |e| <= max(2^-23 |x|, 2^-25), and a row's largest number is 2^-1 or more Blocks for which that cannot be
 * said, infinities and NaN included, are flagged: their heads are left to the tf32 kernel. Probabilities come scaled by
 * 2^15 for the same reason. Places of the inner index: m16n8k16 has 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 at lane t. Over
 * columns these are the piece's four, in order; over rows of a tile they are rows 16 k + that, as the cells of two C
 * tiles stand. */
#ifndef ATTN_SM80_SDPA_WIDE_HALVES_H
#define ATTN_SM80_SDPA_WIDE_HALVES_H
#include "kernels/device/mma.h"

static_assert(!WIDE_F64 && N_X % 2 == 0 && KP_HALVES_ROWS % TILE == 0, "f32, whole steps, one power of two a tile");

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
/* Cells of any size: each row is brought to [2^14, 2^15) first. Numbers that are not finite stay so. */
static __device__ __forceinline__ struct left left_of_any(num rX[N_X][4]) {
    float unit[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = 0;
#pragma unroll
        for (int n = 0; n < N_X; n++) top = fmaxf(top, fmaxf(fabsf(rX[n][2 * r]), fabsf(rX[n][2 * r + 1])));
        const uint32_t exponent = max(__float_as_uint(quad_larger(top)) >> 23, 30u); /* biased; powers stay normal */
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
    const int lane = lane_of(), g = lane >> 2, t = lane & 3, steps = (columns + 15) / 16;
    const uint32_t a_at = own + (warp_of() * 16 + g) * PITCH, b_at = tile + g * PITCH;
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
            const uint32_t place = ((4 * s + t) ^ key_of_row(g)) << 4;
            const uint4 top = shared_load128(a_at + place), low = shared_load128(a_at + 8 * PITCH + place);
            const uint32_t hi[4] = {top.x, low.x, top.y, low.y}, lo[4] = {top.z, low.z, top.w, low.w};
            uint4 b[GROUP];
#pragma unroll
            for (int n = 0; n < GROUP; n++) b[n] = shared_load128(b_at + 8 * (n0 + n) * PITCH + place);
#pragma unroll
            for (int n = 0; n < GROUP; n++) mma_f16(small[n], lo, b[n].x, b[n].y);
#pragma unroll
            for (int n = 0; n < GROUP; n++) mma_f16(acc[n], hi, b[n].x, b[n].y);
#pragma unroll
            for (int n = 0; n < GROUP; n++) mma_f16(small[n], hi, b[n].z, b[n].w);
        }
#pragma unroll
        for (int n = 0; n < GROUP; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) rX[n0 + n][e] += acc[n][e] + small[n][e];
    }
}

/* rO = rO factor + units (cells x tile) over the first `columns` columns of one chunk; places as in sdpa_wide.h. All
 * numbers of the tile are finite: nothing to repair. */
static __device__ __forceinline__ void add_product(num rO[CHUNK_STRIPES][PIECE][4], const struct left *x, uint32_t tile,
                                                   int columns, const num factor[2], num unit) {
    const int lane = lane_of(), g = lane >> 2, t = lane & 3;
    const uint32_t even = tile + 2 * t * PITCH + ((g ^ 2 * t) << 4),
                   odd = tile + (2 * t + 1) * PITCH + ((g ^ 2 * t ^ 4) << 4);
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
            const uint32_t at = 16 * k * PITCH + 128 * s;
            const uint4 p0 = shared_load128(even + at), p1 = shared_load128(odd + at),
                        p2 = shared_load128(even + 8 * PITCH + at), p3 = shared_load128(odd + 8 * PITCH + at);
            const uint32_t w0[4] = {p0.x, p0.y, p0.z, p0.w}, w1[4] = {p1.x, p1.y, p1.z, p1.w},
                           w2[4] = {p2.x, p2.y, p2.z, p2.w}, w3[4] = {p3.x, p3.y, p3.z, p3.w};
            uint32_t b[2 * PIECE][2]; /* hi of the four columns, then lo */
#pragma unroll
            for (int e = 0; e < 2 * PIECE; e++) {
                const uint32_t pick = e % 2 ? 0x7632 : 0x5410;
                b[e][0] = __byte_perm(w0[e / 2], w1[e / 2], pick);
                b[e][1] = __byte_perm(w2[e / 2], w3[e / 2], pick);
            }
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(small[e], x->lo[k], b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(acc[e], x->hi[k], b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(small[e], x->hi[k], b[PIECE + e][0], b[PIECE + e][1]);
        }
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int y = 0; y < 4; y++)
                rO[s][e][y] =
                    __fmaf_rn(rO[s][e][y], factor[y >> 1], (acc[e][y] + small[e][y]) * x->unit[y >> 1] * unit);
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
    return ((const float *)units)[head * blocks + (uint32_t)row / KP_HALVES_ROWS];
}
#endif
