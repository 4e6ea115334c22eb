/* SPDX-License-Identifier: MIT
 * Part of specialized.cu and lockstep.cu: dkv of a tile, 64 slots x 32 columns at a time, from P^T and dS^T
 * in a warpgroup's registers, and of the first its way to memory in whole 128-byte lines (scatter_add.h: that
 * of the second). Who takes which columns stands there. */
#ifndef ATTN_SM90_MLA_BWD_DKV_H
#define ATTN_SM90_MLA_BWD_DKV_H
#include "kernels/device/mma.h"
#include "kernels/device/reduce.h"
#include "kernels/sm90/mla_bwd/scale.h"

/* Where the gradients of slots (g & ~1) + i + 8 r of the warp go, [2 r + i], at the lane's columns; 1 = nowhere. Rows
 * of pairs follow one another: the first says where, and on has a bit for each. */
struct target {
    uint64_t address[STORED_ROWS ? 1 : 4];
    uint32_t on; /* and, from bit 8 on, the tile's power of two in f16 */
};
/* Bytes from the first of 32 columns to the lane's. */
static __device__ __forceinline__ uint64_t lane_columns(int thread) {
    const int g = thread >> 2, t = thread & 3;
    return 4 * (uint64_t)(uint32_t)(8 * (2 * (g & 1) + (t & 1)) + 4 * (t >> 1));
}

/* sums: where the work tile's are kept; tile: of them; buf: which buffer has the kv rows. */
static __device__ __forceinline__ void find_target(const struct kp_mla_bwd *p, struct target *to, uint32_t shared,
                                                   uint32_t sums, uint32_t tile, uint32_t buf) {
    const int thread = recompute((int)threadIdx.x), first = (thread >> 5 & 3) * 16 + (thread >> 2 & 6);
    const uint64_t base = kept(sums) + lane_columns(thread);
    if (STORED_ROWS) to->address[0] = base + (uint64_t)tile * (64 * 4 * D) + (uint64_t)(first * 4 * D);
    to->on = 0;
    if (SCALED) to->on = (uint32_t)exponent_at(shared, buf) << 8;
#pragma unroll
    for (int x = 0; x < 4; x++) {
        const int slot = first + (x & 1) + 8 * (x >> 1);
        const int row = (int)shared_load32(shared + SLOT_ROWS_AT + 256 * buf + 4 * (uint32_t)slot);
        const int on = row >= 0 && p->dkv.data;
        if (STORED_ROWS)
            to->on |= (uint32_t)on << x;
        else
            to->address[x] = on ? base + 4 * (uint64_t)(row * p->sum.row) : 1;
    }
}

/* The operand A of 64 heads: a tile of 64 heads x 64 slots, transposed; rows are the warp's 16 slots. */
static __device__ __forceinline__ void load_transposed(uint32_t a[16], uint32_t tile) {
    const int thread = EVEN ? recompute((int)threadIdx.x) : (int)threadIdx.x, warp = thread >> 5 & 3,
              lane = thread & 31;
    const uint32_t offset =
        tile + (uint32_t)(((lane >> 4) * 8 + (lane & 7)) * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4));
#pragma unroll
    for (int kk = 0; kk < 4; kk++) load_matrix4_trans(a + 4 * kk, offset + kk * 2048);
}

/* The operands of a tile's products. */
struct tile {
    uint32_t probs[16], ds[16];
    uint64_t o, q; /* descriptors of slice 0 of dO, Q */
    uint32_t
        n; /* first schedule: tiles before, of all work tiles; PREFETCH_FIRST: the phase of K_PREFETCHED to wait for */
};

/* d = 64 slots x columns 64 x + 32 half .. + 31; ROPE: x is the slice that P has no part in. */
template <int ROPE>
static __device__ __forceinline__ void multiply(float d[16], const struct tile *t, uint32_t x, uint32_t half) {
    const uint32_t offset = x * Q_STEP + 64 * half;
    wgmma_hold(d, 16);
    wgmma_fence();
    if (!ROPE) {
#pragma unroll
        for (uint32_t kk = 0; kk < 4; kk++)
            wgmma_rs_n32<TYPE, 1>(d, t->probs + 4 * kk, desc_move(t->o, offset + kk * 2048), kk > 0);
    }
#pragma unroll
    for (uint32_t kk = 0; kk < 4; kk++)
        wgmma_rs_n32<TYPE, 1>(d, t->ds + 4 * kk, desc_move(t->q, offset + kk * 2048), !ROPE || kk > 0);
    wgmma_commit();
}

/* The same for all 64 columns of slice x. */
template <int ROPE>
static __device__ __forceinline__ void multiply_slice(float d[32], const struct tile *t, uint32_t x) {
    const uint32_t offset = x * Q_STEP;
    wgmma_hold(d, 32);
    wgmma_fence();
    if (!ROPE) {
#pragma unroll
        for (uint32_t kk = 0; kk < 4; kk++)
            wgmma_rs_n64<TYPE, 1>(d, t->probs + 4 * kk, desc_move(t->o, offset + kk * 2048), kk > 0);
    }
#pragma unroll
    for (uint32_t kk = 0; kk < 4; kk++)
        wgmma_rs_n64<TYPE, 1>(d, t->ds + 4 * kk, desc_move(t->q, offset + kk * 2048), !ROPE || kk > 0);
    wgmma_commit();
}

/* Lane 4 g + t has d[4 j + 2 r + e]: slot g + 8 r, column 8 j + 2 t + e. Of 32 columns of two slots, g even and odd,
 * the 8 lanes of the pair make two lines: first neighbours t swap blocks of 8 columns, so that each has 4 columns side
 * by side; then neighbours g swap slots. */
static __device__ __forceinline__ void emit(const float d[16], const struct target *to, uint32_t column) {
    const int thread = recompute((int)threadIdx.x), odd_t = thread & 1, odd_g = thread >> 2 & 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float y[2][4]; /* columns 8 (2 k + odd_t) + 4 (t / 2) .. + 3 */
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float *a = d + 8 * k + 2 * r;
            float come[2];
#pragma unroll
            for (int e = 0; e < 2; e++) come[e] = __shfl_xor_sync(~0u, odd_t ? a[e] : a[4 + e], 1);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                y[k][e] = odd_t ? come[e] : a[e];
                y[k][2 + e] = odd_t ? a[4 + e] : come[e];
            }
        }
        float line[2][4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float come = __shfl_xor_sync(~0u, odd_g ? y[0][e] : y[1][e], 4);
            line[0][e] = odd_g ? come : y[0][e];
            line[1][e] = odd_g ? y[1][e] : come;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; SCALED && e < 4; e++) line[i][e] *= power_of_two(-(int)(to->on >> 8));
            if (STORED_ROWS) {
                store4((float *)to->address[0] + (i + 8 * r) * D + column, line[i], to->on >> (2 * r + i) & 1);
            } else {
                const uint64_t row = to->address[2 * r + i];
                reduce_add4((float *)row + column, line[i], (uint32_t)~row & 1);
            }
        }
    }
}
/* Alternating: slice slice_of(K), whose products, in a, have been started, and those after it; each, its sums being
 * there and its slices of Q and dO let go of, goes to store(sums, first column). last: of the tiles that the
 * warpgroup owns. */
template <uint32_t K, class F>
static __device__ __forceinline__ void do_slices(uint32_t shared, float a[32], const struct tile *t, int last,
                                                 const F &store) {
    constexpr uint32_t x = slice_of(K);
    wgmma_wait(0);
    wgmma_hold(a, 32);
    if (last && lane_of() == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    store(a, 64 * x);
    if constexpr (K + 1 < SLICES) {
        float b[32]; /* one array for all units makes ptxas serialise the products (C7511) */
        if (K + 1 == 8)
            multiply_slice<1>(b, t, 8);
        else
            multiply_slice<0>(b, t, slice_of(K + 1));
        do_slices<K + 1>(shared, b, t, last, store);
    }
}
#endif
