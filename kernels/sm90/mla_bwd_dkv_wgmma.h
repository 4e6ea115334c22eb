/* SPDX-License-Identifier: MIT
 * Part of mla_bwd_wgmma.cu: the warpgroup that forms dkv of a tile, 64 slots x 32 columns at a time, and adds it to
 * memory in whole 128-byte lines. P^T and dS^T of the tile are in registers. With CTAS = 2 each CTA has the product
 * over its 64 heads; of every 64 columns it sends 32 to the other and adds what it receives to the other 32. */
#ifndef ATTN_SM90_MLA_BWD_DKV_WGMMA_H
#define ATTN_SM90_MLA_BWD_DKV_WGMMA_H
#include "kernels/device/cluster.h"
#include "kernels/device/mma.h"
#include "kernels/device/reduce.h"
#include "kernels/sm90/mla_bwd_plan_wgmma.h"

struct target {
    uint64_t at[4]; /* of slots (g & ~1) + i + 8 r of the warp: [2 r + i], the lane's columns; 1 = slot is not valid */
};

static __device__ __forceinline__ void find_target(const struct kp_mla_bwd *p, struct target *to, uint32_t shared,
                                                   uint32_t n, int tile) {
    const int thread = recompute((int)threadIdx.x), warp = thread >> 5 & 3, g = thread >> 2 & 7, t = thread & 3;
    const uint64_t base = kept(shared + SUMS_AT) + 4 * (uint64_t)(8 * (2 * (g & 1) + (t & 1)) + 4 * (t >> 1));
#pragma unroll
    for (int x = 0; x < 4; x++) {
        const int slot = warp * 16 + (g & 6) + (x & 1) + 8 * (x >> 1);
        const int row = (int)shared_load32(shared + NOTE_AT + 256 * (n & 1) + 4 * (uint32_t)slot);
        const int64_t offset = PAIRS ? (int64_t)(tile * 64 + slot) * D : row * p->sum.row;
        to->at[x] = row < 0 || !p->dkv.data ? 1 : base + 4 * (uint64_t)offset;
    }
}

/* The operand A of all four 16-head steps: a tile of 64 heads x 64 slots, turned; rows are the warp's 16 slots. */
static __device__ __forceinline__ void load_turned(uint32_t a[16], uint32_t tile) {
    const int warp = (int)threadIdx.x >> 5 & 3, lane = (int)threadIdx.x & 31;
    const uint32_t at =
        tile + (uint32_t)(((lane >> 4) * 8 + (lane & 7)) * 128 + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4));
#pragma unroll
    for (int kk = 0; kk < 4; kk++) load_matrix4_trans(a + 4 * kk, at + kk * 2048);
}

/* The operands of a tile's products. */
struct tile {
    uint32_t probs[16], ds[16];
    uint64_t o, q; /* descriptors of slice 0 of dO, Q */
    int last;      /* of its item */
};

/* d = 64 slots x columns 64 x + 32 half .. + 31; ROPE: x is the slice that P has no part in. */
template <int ROPE>
static __device__ __forceinline__ void multiply(float d[16], const struct tile *t, uint32_t x, uint32_t half) {
    const uint32_t at = x * SLICE + 64 * half;
    wgmma_hold(d, 16);
    wgmma_fence();
    if (!ROPE) {
#pragma unroll
        for (uint32_t kk = 0; kk < 4; kk++)
            wgmma_rs_n32<TYPE, 1>(d, t->probs + 4 * kk, desc_move(t->o, at + kk * 2048), kk > 0);
    }
#pragma unroll
    for (uint32_t kk = 0; kk < 4; kk++)
        wgmma_rs_n32<TYPE, 1>(d, t->ds + 4 * kk, desc_move(t->q, at + kk * 2048), !ROPE || kk > 0);
    wgmma_commit();
}

/* Lane 4 g + t has d[4 j + 2 r + e]: slot g + 8 r, column 8 j + 2 t + e. Of 32 columns of two slots, g even and odd,
 * the 8 lanes of the pair make two lines: first neighbours t swap blocks of 8 columns, so that each has 4 columns side
 * by side; then neighbours g swap slots. */
static __device__ __forceinline__ void emit(const struct kp_mla_bwd *p, const float d[16], const struct target *to,
                                            uint32_t column) {
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
            const uint64_t at = to->at[2 * r + i];
            float *x = (float *)at + column;
            if (PAIRS)
                store4(x, line[i], (uint32_t)~at & 1);
            else
                reduce_add4(x, line[i], (uint32_t)~at & 1);
        }
    }
}

/* What is started for the next slice. */
constexpr int NOTHING = 0, WITH_P = 1, WITHOUT_P = 2;

/* Slice x of a tile; its products in set a have been started before. Set a becomes the left half of the slice's
 * columns, b the right one. CTAS = 2: a is of the half that the other CTA adds to memory and goes to its stage, b of
 * the one that this CTA does. The stage is free again when it has been read; parity: of its phase. */
template <int ROPE, int NEXT>
static __device__ __forceinline__ void step(const struct kp_mla_bwd *p, float a[16], float b[16], const struct tile *t,
                                            const struct target *to, uint32_t shared, uint32_t x, uint32_t parity) {
    const int thread = recompute((int)threadIdx.x), warp = thread >> 5 & 3, lane = thread & 31; /* not kept */
    const uint32_t half = CTAS == 2 ? rank_of() : 1, bar = shared + 8 * (uint32_t)warp;
    const uint32_t stage = shared + STAGE_AT + (uint32_t)(warp * 2048 + lane * 16);
    /* how far the other CTA's addresses lie from this one's */
    const uint32_t there = CTAS == 2 ? cluster_address(bar, half ^ 1) - bar : 0;
    multiply<ROPE>(b, t, x, half);
    wgmma_wait(1);
    wgmma_hold(a, 16);
    if (CTAS == 2) {
        cluster_wait(bar + STAGE_FREE, parity);
#pragma unroll
        for (int k = 0; k < 4; k++) cluster_store4(stage + there + k * 512, a + 4 * k);
        __syncwarp();
        if (lane == 0) cluster_arrive(bar + there + STAGE_FULL);
    } else {
        emit(p, a, to, 64 * x);
    }
    if (NEXT == WITH_P) multiply<0>(a, t, x + 1, half ^ 1);
    if (NEXT == WITHOUT_P) multiply<1>(a, t, x + 1, half ^ 1);
    wgmma_wait(NEXT == NOTHING ? 0 : 1);
    wgmma_hold(b, 16);
    if (t->last && lane == 0) mbar_arrive(shared + Q_FREE + 8 * x);
    if (CTAS == 2) {
        cluster_wait(bar + STAGE_FULL, parity);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 y = shared_load128(stage + k * 512);
            b[4 * k] += __uint_as_float(y.x), b[4 * k + 1] += __uint_as_float(y.y);
            b[4 * k + 2] += __uint_as_float(y.z), b[4 * k + 3] += __uint_as_float(y.w);
        }
        __syncwarp();
        if (lane == 0) {
            if (NEXT == NOTHING)
                mbar_arrive(shared + PD_FREE);
            else
                cluster_arrive(bar + there + STAGE_FREE);
        }
    }
    emit(p, b, to, 64 * x + 32 * half);
}

/* All of a tile; n: tiles before. */
static __device__ __forceinline__ void emit_tile(const struct kp_mla_bwd *p, const struct tile *t,
                                                 const struct target *to, uint32_t shared, uint32_t n) {
    const uint32_t stages = n * SLICES; /* phases of the stage before */
    float a[16], b[16];
    if (CTAS == 2) {
        named_sync(3, 128); /* all warps have P, whose place the stage takes */
        if ((threadIdx.x & 31) == 0)
            cluster_arrive(cluster_address(shared + STAGE_FREE + 8 * (threadIdx.x >> 5 & 3), rank_of() ^ 1));
    } else {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) mbar_arrive(shared + PD_FREE);
    }
    multiply<0>(a, t, 0, CTAS == 2 ? rank_of() ^ 1 : 0);
#pragma unroll
    for (uint32_t x = 0; x < V_SLICES - 1; x++) step<0, WITH_P>(p, a, b, t, to, shared, x, (stages + x) & 1);
    if (SLICES > V_SLICES) {
        step<0, WITHOUT_P>(p, a, b, t, to, shared, V_SLICES - 1, (stages + V_SLICES - 1) & 1);
        step<1, NOTHING>(p, a, b, t, to, shared, V_SLICES, (stages + V_SLICES) & 1);
    } else {
        step<0, NOTHING>(p, a, b, t, to, shared, V_SLICES - 1, (stages + V_SLICES - 1) & 1);
    }
}

/* What is the same for all of an item's tiles: {where its gradients begin; tiles}. */
static __device__ __forceinline__ int keep_sums(const struct kp_mla_bwd *p, int64_t at, uint32_t shared) {
    named_sync(3, 128); /* the last item's are read */
    if ((threadIdx.x & 127) == 0) {
        const struct item w = work_of(p, at);
        const uint64_t base =
            PAIRS ? p->pairs + 4 * (uint64_t)(at * p->in.topk * D) : p->sum.data + 4 * (uint64_t)(w.b * p->sum.batch);
        keep4(shared + SUMS_AT, base, (uint32_t)(slots_of(&p->in, w.b, w.i).n + 63) / 64);
    }
    named_sync(3, 128);
    return (int)shared_load32(shared + SUMS_AT + 8);
}

static __device__ __forceinline__ void gradients(const struct kp_mla_bwd *p, uint32_t shared) {
    uint32_t n = 0;
    for (uint32_t item = 0; has_item(p, item); item++) {
        const int tiles = keep_sums(p, item_at(item), shared);
#pragma unroll 1
        for (int i = 0; i < tiles; i++, n++) {
            struct tile t;
            struct target to;
            t.o = slice_desc(shared + DOUT_AT, SLICE);
            t.q = slice_desc(shared + Q_AT, SLICE);
            t.last = i + 1 == tiles;
            mbar_wait(shared + PD_FULL, n & 1);
            load_turned(t.probs, shared + P_AT);
            load_turned(t.ds, shared + DS_AT);
            find_target(p, &to, shared, n, i);
            emit_tile(p, &t, &to, shared, n);
        }
    }
}
#endif
