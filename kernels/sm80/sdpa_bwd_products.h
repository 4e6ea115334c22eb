/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: the five products of a step, from tiles in shared memory to fragments in registers. Included
 * once, after sdpa_bwd_cells.h. */
#ifndef ATTN_SM80_SDPA_BWD_PRODUCTS_H
#define ATTN_SM80_SDPA_BWD_PRODUCTS_H
#include "kernels/sm80/sdpa_bwd_columns.h"

/* rX += A B^T over columns 16 k0 to 16 k1: S^T or dP^T of the warp's part. keys: the K or V tile, rows: the Q or dO
 * tile. */
static __device__ __forceinline__ void cell_product(float rX[S_M][S_N][4], uint32_t keys, uint32_t rows,
                                                    struct part part, int k0, int k1) {
    const int lane = lane_of();
    const uint32_t a_lane = keys + tile_at(PITCH, part.key + lane % 16, lane / 16);
    const uint32_t b_lane = rows + tile_at(PITCH, part.row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int k = k0; k < k1; k++) columns_product(rX, a_lane, b_lane, k);
}

/* What waits of a sum in f32 where the lane will store P and dS of the same cells. */
static __device__ __forceinline__ void park_cells(uint32_t base, struct part part, float rX[S_M][S_N][4]) {
    const uint32_t to = tile_at(S_PITCH, part.key + (lane_of() >> 2), part.row / 8) + 4 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t cell = base + tile_step(to, S_PITCH, n) + (16 * x + 8 * r) * S_PITCH;
                shared_store32(cell + P_TILE, __float_as_uint(rX[x][n][2 * r]));
                shared_store32(cell + DS_TILE, __float_as_uint(rX[x][n][2 * r + 1]));
                rX[x][n][2 * r] = rX[x][n][2 * r + 1] = 0;
            }
}
static __device__ __forceinline__ void add_parked(uint32_t base, struct part part, float rX[S_M][S_N][4]) {
    const uint32_t from = tile_at(S_PITCH, part.key + (lane_of() >> 2), part.row / 8) + 4 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t cell = base + tile_step(from, S_PITCH, n) + (16 * x + 8 * r) * S_PITCH;
                rX[x][n][2 * r] += __uint_as_float(shared_load32(cell + P_TILE));
                rX[x][n][2 * r + 1] += __uint_as_float(shared_load32(cell + DS_TILE));
            }
}

/* S: a sum for every 16 S_STEPS columns, and these added up: mma.sync cuts off what lies below the running sum's last
 * bit, always towards zero, and exp(s - lse) shows it where scores are in the thousands. Plain variants have no
 * registers for a second sum. */
static __device__ __forceinline__ void score_product(float rS[S_M][S_N][4], uint32_t base, uint32_t rows,
                                                     struct part part) {
    cell_product(rS, base + K_TILE, rows, part, 0, S_STEPS);
#pragma unroll
    for (int k = S_STEPS; k < DIM / 16; k += S_STEPS) {
        const int end = k + S_STEPS < DIM / 16 ? k + S_STEPS : DIM / 16;
        if constexpr (!FULL) {
            static_assert(!P_HELD || S_STEPS == DIM / 16, "a place for P");
            park_cells(base, part, rS);
            cell_product(rS, base + K_TILE, rows, part, k, end);
            add_parked(base, part, rS);
        } else {
            float rT[S_M][S_N][4];
#pragma unroll
            for (int x = 0; x < S_M; x++)
#pragma unroll
                for (int n = 0; n < S_N; n++) rT[x][n][0] = rT[x][n][1] = rT[x][n][2] = rT[x][n][3] = 0;
            cell_product(rT, base + K_TILE, rows, part, k, end);
#pragma unroll
            for (int x = 0; x < S_M; x++)
#pragma unroll
                for (int n = 0; n < S_N; n++)
#pragma unroll
                    for (int c = 0; c < 4; c++) rS[x][n][c] += rT[x][n][c];
        }
    }
}

/* rX += A B of the warp's keys and dims, 16 queries: one step of dV or dK. rows: the dO or Q tile from that query on.
 * The warp's dims are pairs of fragments, dealt in turn to the warps side by side. */
static __device__ __forceinline__ void key_product_step(float rX[KV_M][KV_N][4], const uint32_t a[KV_M][4],
                                                        uint32_t b_lane) {
#pragma unroll
    for (int n = 0; n < KV_N; n += 2) {
        uint32_t b[4];
        load_matrix4_trans(b, tile_step(b_lane, PITCH, n * KV_DIM_WARPS));
#pragma unroll
        for (int x = 0; x < KV_M; x++) {
            mma_m16n8k16(TYPE, rX[x][n], a[x], b[0], b[1]);
            mma_m16n8k16(TYPE, rX[x][n + 1], a[x], b[2], b[3]);
        }
    }
}
static __device__ __forceinline__ uint32_t key_product_lane(uint32_t rows) {
    const int lane = lane_of();
    return rows + tile_at(PITCH, lane % 16, 2 * (warp_of() / KV_KEY_WARPS) + lane / 16);
}

/* rX += of all queries; cells: the P^T or dS^T tile. */
static __device__ __forceinline__ void key_product(float rX[KV_M][KV_N][4], uint32_t cells, uint32_t rows) {
    const int lane = lane_of();
    const uint32_t a_lane = cells + tile_at(S_PITCH, warp_of() % KV_KEY_WARPS * (16 * KV_M) + lane % 16, lane / 16);
    const uint32_t b_lane = key_product_lane(rows);
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
        uint32_t a[KV_M][4];
#pragma unroll
        for (int x = 0; x < KV_M; x++) load_matrix4(a[x], tile_step(a_lane, S_PITCH, 2 * k) + x * 16 * S_PITCH);
        key_product_step(rX, a, b_lane + k * 16 * PITCH);
    }
}

/* The warp's queries of dS^T as A operands, all keys. */
static __device__ __forceinline__ void load_row_cells(uint32_t a[KEYS / 16][Q_M][4], uint32_t cells) {
    const int lane = lane_of();
    const uint32_t a_lane =
        cells + tile_at(S_PITCH, lane % 8 + lane / 16 * 8, warp_of() % Q_ROW_WARPS * (2 * Q_M) + lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int x = 0; x < Q_M; x++) load_matrix4_trans(a[k][x], tile_step(a_lane, S_PITCH, 2 * x) + k * 16 * S_PITCH);
}

/* dS K: the pair of fragments n, n + 1 of the warp's dims. */
static __device__ __forceinline__ void row_product_pair(float rX[Q_M][2][4], const uint32_t a[KEYS / 16][Q_M][4],
                                                        uint32_t keys, int n) {
    const int lane = lane_of();
    const uint32_t b_lane = keys + tile_at(PITCH, lane % 16, 2 * (warp_of() / Q_ROW_WARPS) + lane / 16);
#pragma unroll
    for (int x = 0; x < Q_M; x++)
#pragma unroll
        for (int c = 0; c < 4; c++) rX[x][0][c] = rX[x][1][c] = 0;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t b[4];
        load_matrix4_trans(b, tile_step(b_lane, PITCH, n * Q_DIM_WARPS) + k * 16 * PITCH);
#pragma unroll
        for (int x = 0; x < Q_M; x++) {
            mma_m16n8k16(TYPE, rX[x][0], a[k][x], b[0], b[1]);
            mma_m16n8k16(TYPE, rX[x][1], a[k][x], b[2], b[3]);
        }
    }
}
#endif
