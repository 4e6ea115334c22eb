/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_wide.cu for variants with .sums = 1: owners of keys make dQ, too, so that S and dP are formed once
 * (5 products, not 7). f16x2 only, D and DV up to COLS, whole tiles in shared memory.
 *
 *   dS^T (registers, pairs) --st.shared--> [hi: keys x queries][lo] --ldmatrix.trans--> A --+
 *   own K (pairs, shared)   --ldmatrix.trans--> B ------------------------------------------+-mma-> dQ --red--> sums
 *
 * A warp has scaled its 16 keys of dS with one power of two, and their K with another: it leaves the exponent of both,
 * and whoever multiplies 16 keys brings them to the largest of the CTA's exponents first (f16 times a power of two:
 * exact down to 2^-24, 2^-38 of the largest cell). Warps that see no pair leave NOTHING and are passed over.
 *
 * The sums are f32 in the workspace, in the order of the fragments, so that a reduction of a warp covers one line:
 * block of 16 rows and 32 columns (row block R, stripe S, at (R STRIPES + S) 512), then element [e][y], then lane.
 * kernels/smxx/sdpa_bwd_convert_wide.cu brings them into rows. */
#ifndef ATTN_SM80_SDPA_BWD_WIDE_SUMS_H
#define ATTN_SM80_SDPA_BWD_WIDE_SUMS_H
#include "kernels/device/reduce.h"

constexpr int S_PITCH = 2 * TILE, S_TILE = ROWS * S_PITCH;         /* hi; lo after it; then an exponent of each warp */
constexpr int ROW_BLOCKS = TILE / 16, ACROSS = WARPS / ROW_BLOCKS; /* warps that share the columns of 16 rows */
constexpr int MY_STRIPES = STRIPES / ACROSS;
constexpr int NOTHING = -4096;
static_assert(OWN_KEYS && F16X2 && WARPS % ROW_BLOCKS == 0 && STRIPES % ACROSS == 0, "every warp has whole stripes");
static_assert(S_PITCH % 64 == 0 && WARPS <= 32 && 16 * COLS == STRIPES * 512, "swizzle, exponents, blocks");

static __device__ __forceinline__ int exponent_of_power(float x) { return (int)(__float_as_uint(x) >> 23) - 127; }

/* The warp's keys of dS^T. unit_k: power of two of its keys. */
static __device__ __forceinline__ void store_cells(uint32_t cells, const struct left *x, int seen, float unit_k) {
    const int lane = lane_of();
    const uint32_t to = cells + tile_at(S_PITCH, warp_of() * 16 + (lane >> 2), 0) + 4 * (lane & 3);
    if (lane == 0)
        shared_store32(cells + 2 * S_TILE + 4 * warp_of(),
                       (uint32_t)(seen ? exponent_of_power(x->unit[0]) + exponent_of_power(unit_k) : NOTHING));
    if (!seen) return;
#pragma unroll
    for (int n = 0; n < N_X; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            shared_store32(tile_step(to, S_PITCH, n) + 8 * r * S_PITCH, x->hi[n / 2][n % 2 * 2 + r]);
            shared_store32(tile_step(to, S_PITCH, n) + 8 * r * S_PITCH + S_TILE, x->lo[n / 2][n % 2 * 2 + r]);
        }
}

/* 2^e, e from -126 to 127. */
static __device__ __forceinline__ float power_of_two(int e) { return __uint_as_float((uint32_t)(127 + e) << 23); }

/* dQ of the tile += dS K: the warp's 16 rows and its stripes. sums: the tile's rows. columns: of Q and K. */
static __device__ __forceinline__ void add_rows(float *sums, uint32_t cells, uint32_t keys, int columns) {
    const int lane = lane_of(), block = warp_of() % ROW_BLOCKS, first = warp_of() / ROW_BLOCKS * MY_STRIPES;
    const uint32_t a_lane = cells + tile_at(S_PITCH, lane % 8 + lane / 16 * 8, 2 * block + lane / 8 % 2);
    const int mine = (int)shared_load32(cells + 2 * S_TILE + 4 * (lane % WARPS)),
              largest = __reduce_max_sync(~0u, mine);
    float acc[MY_STRIPES][PIECE][4], small[MY_STRIPES][PIECE][4];
    uint32_t b_lane[MY_STRIPES];
    if (largest == NOTHING || first * STRIPE >= columns) return;
#pragma unroll
    for (int s = 0; s < MY_STRIPES; s++) {
        const int stripe = first + s;
        b_lane[s] = (pairs_lane(keys) ^ stripe % CHUNK_STRIPES * 128) + stripe / CHUNK_STRIPES * (ROWS * PITCH);
    }
#pragma unroll
    for (int s = 0; s < MY_STRIPES; s++)
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int y = 0; y < 4; y++) acc[s][e][y] = small[s][e][y] = 0;
#pragma unroll
    for (int k = 0; k < WARPS; k++) {
        const int below = __shfl_sync(~0u, mine, k) - largest; /* 0 or less */
        uint32_t hi[4], lo[4];
        if (below < -64) continue;
        const float down = power_of_two(below);
        const uint32_t factor = pack16(KP_F16, down, down);
        load_matrix4_trans(hi, a_lane + k * 16 * S_PITCH);
        load_matrix4_trans(lo, a_lane + k * 16 * S_PITCH + S_TILE);
#pragma unroll
        for (int x = 0; x < 4; x++) hi[x] = multiply_f16x2(hi[x], factor), lo[x] = multiply_f16x2(lo[x], factor);
#pragma unroll
        for (int s = 0; s < MY_STRIPES; s++) {
            uint32_t b[PIECE][4];
#pragma unroll
            for (int e = 0; e < PIECE; e++) load_pairs(b[e], b_lane[s] + k * 16 * PITCH, 0, e);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(small[s][e], lo, b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(acc[s][e], hi, b[e][0], b[e][1]);
#pragma unroll
            for (int e = 0; e < PIECE; e++) mma_f16(small[s][e], hi, b[e][2], b[e][3]);
        }
    }
    const float up = power_of_two(largest / 2),
                up_rest = power_of_two(largest - largest / 2); /* one by one: no overflow */
    float *to = sums + (block * STRIPES + first) * 512 + lane;
#pragma unroll
    for (int s = 0; s < MY_STRIPES; s++) {
        if ((first + s) * STRIPE >= columns) break;
#pragma unroll
        for (int e = 0; e < PIECE; e++)
#pragma unroll
            for (int y = 0; y < 4; y++)
                reduce_add(to + s * 512 + (e * 4 + y) * 32, (acc[s][e][y] + small[s][e][y]) * up * up_rest);
    }
}
#endif
