/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: P and dS from S and dP, by four warps. A thread has one head and 32 keys. */
#ifndef ATTN_SM100_MLA_BWD_SCORES_H
#define ATTN_SM100_MLA_BWD_SCORES_H
#include "kernels/sm100/mla_bwd/layout.h"

/* Thread's row, of the CTA's 64 heads, and half of the keys, which is the CTA that has them as operand. */
static __device__ __forceinline__ int score_head(void) { return (int)threadIdx.x % CTA_HEADS; }
static __device__ __forceinline__ int score_half(void) { return (int)threadIdx.x / CTA_HEADS % 2; }

/* 32 numbers of a head's row of P or dS, rounded. */
static __device__ __forceinline__ void pack_row(uint4 y[4], const float x[CTA_KEYS]) {
#pragma unroll
    for (int c = 0; c < 4; c++)
        y[c] = make_uint4(pack16(KP_BF16, x[8 * c], x[8 * c + 1]), pack16(KP_BF16, x[8 * c + 2], x[8 * c + 3]),
                          pack16(KP_BF16, x[8 * c + 4], x[8 * c + 5]), pack16(KP_BF16, x[8 * c + 6], x[8 * c + 7]));
}
/* To the CTA that has these keys: row `head` of 128, 64 bytes, swizzled. */
static __device__ __forceinline__ void store_row(uint32_t rows, int rank, int half, int head, const uint4 y[4]) {
    const uint32_t row = rows + (uint32_t)(rank * CTA_HEADS + head) * 64, turn = (uint32_t)(head >> 1 & 3) << 4;
    if (half == rank) {
#pragma unroll
        for (int c = 0; c < 4; c++) shared_store128(row + (16 * c ^ turn), y[c]);
    } else {
        const uint32_t there = cluster_address(row, (uint32_t)half);
#pragma unroll
        for (int c = 0; c < 4; c++) cluster_store128(there + (16 * c ^ turn), y[c]);
    }
}

/* Sums of P' over the warp's 32 heads, to the part of dist that these heads have. Lane l ends with key l: at each step
 * a lane keeps half of its keys and gives the other half away. */
static __device__ __forceinline__ void store_dist(const struct kp_mla_bwd *p, const struct work *w, int rank, int t,
                                                  const float x[CTA_KEYS]) {
    const int lane = lane_of(), part = w->block * 4 + rank * 2 + warp_of() % 2;
    float y[CTA_KEYS];
#pragma unroll
    for (int e = 0; e < CTA_KEYS; e++) y[e] = x[e];
#pragma unroll
    for (int n = CTA_KEYS / 2; n > 0; n /= 2) {
        const int high = lane & n;
#pragma unroll
        for (int e = 0; e < n; e++) {
            const float give = high ? y[e] : y[e + n], keep = high ? y[e + n] : y[e];
            y[e] = keep + __shfl_xor_sync(~0u, give, n);
        }
    }
    const int slot = t * KEYS + score_half() * CTA_KEYS + lane;
    if (slot < p->in.topk)
        ((float *)p->part_dist)[((int64_t)part * p->in.batch * p->in.seq_q + w->flat) * p->in.topk + slot] = y[0];
}

/* The four warps of scores: all tiles of a work tile. done: phases of PDS_EMPTY before the work tile. */
static __device__ __forceinline__ void run_scores(const struct kp_mla_bwd_sm100 *all, const struct work *w,
                                                  uint32_t base, uint32_t tm, int rank, uint32_t tile, uint32_t done) {
    const struct kp_mla_bwd *p = &all->bwd;
    const int head = score_head(), half = score_half(), warp = warp_of();
    const uint32_t cells = tm + ((uint32_t)warp << 21);
    float4 row = make_float4(INF, 0, 0, 0);
    if (rank * CTA_HEADS + head < w->heads)
        row = ((const float4 *)p->rows)[w->flat * p->in.heads_q + w->head0 + rank * CTA_HEADS + head];
    const float scale = p->in.scale, g = row.y, shift = row.z;
    const int empty = row.x == INF;
    /* this CTA's dS of the work tile: [tile][64 heads][64 keys] */
    uint4 *ds = (uint4 *)all->ds_data + (int64_t)blockIdx.x * all->tiles * (KP_SM100_DS / 16) + head * 8 + half * 4;
#pragma unroll 1
    for (int t = 0; t < w->tiles; t++, tile++, done++, ds += KP_SM100_DS / 16) {
        float x[CTA_KEYS];
        uint32_t word[CTA_KEYS];
        uint4 y[4];
        await(base, NOTES_FULL + tile % NOTES, tile / NOTES);
        const uint32_t on = empty ? 0 : shared_load32(base + AT_NOTES + tile % NOTES * NOTE + NOTE_KEYS + 4 * half);
        tell_read(base, -1, NOTES_EMPTY + tile % NOTES);
        await(base, S_FULL, tile);
        tc_after();
        tc_load32(word, cells + TM_S);
        tc_wait_loads();
        tc_before();
        tell_read(base, 0, S_EMPTY);
#pragma unroll
        for (int e = 0; e < CTA_KEYS; e++)
            x[e] = on >> e & 1 ? exp2_fast(__fmaf_rn(__uint_as_float(word[e]), p->in.scale_log2, -row.x)) : 0;
        {
            float gx[CTA_KEYS];
#pragma unroll
            for (int e = 0; e < CTA_KEYS; e++) gx[e] = on >> e & 1 ? g * x[e] : 0;
            pack_row(y, gx);
        }
        await(base, PDS_EMPTY, done - 1);
        store_row(base + AT_P, rank, half, head, y);
        tell_written(base, P_FULL);
        if (p->part_dist) store_dist(p, w, rank, t, x);
        await(base, DP_FULL, tile);
        tc_after();
        tc_load32(word, cells + TM_DP);
        tc_wait_loads();
        tc_before();
        tell_read(base, 0, DP_EMPTY);
#pragma unroll
        for (int e = 0; e < CTA_KEYS; e++)
            x[e] = on >> e & 1 ? x[e] * scale * __fmaf_rn(g, __uint_as_float(word[e]), -shift) : 0;
        pack_row(y, x);
        store_row(base + AT_DS, rank, half, head, y);
        tell_written(base, DS_FULL);
        if (p->dq.data) {
#pragma unroll
            for (int c = 0; c < 4; c++) ds[c] = y[c];
        }
    }
    if (!p->dq.data) return;
    async_fence_global();
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(at_barrier(base, DS_STORED));
}
#endif
