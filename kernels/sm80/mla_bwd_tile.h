/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: configuration of the variant, who does what, loads of a work tile, and the way of dkv to memory.
 * Included once; the picture and the rules stand there. */
#ifndef ATTN_SM80_MLA_BWD_TILE_H
#define ATTN_SM80_MLA_BWD_TILE_H
#include "kernels/device/f16_scale.h"
#include "kernels/device/number.h"
#include "kernels/device/reduce.h"
#include "kernels/sm80/mla_load.h"

constexpr int TYPE = CFG_DTYPE, DIM = CFG_DIM, DIM_V = KP_MLA_DIM_V, HEADS = CFG_HEADS, SLOTS = CFG_SLOTS;
constexpr int HEAD_WARPS = CFG_HEAD_WARPS, SLOT_WARPS = CFG_SLOT_WARPS, SQUARE = HEAD_WARPS * SLOT_WARPS;
constexpr int WARPS = 2 * SQUARE, THREADS = 32 * WARPS, STORED_ROWS = CFG_DETERMINISTIC;
/* S and dP: HEAD_WARPS x SLOT_WARPS warps each. dQ: HEAD_WARPS x Q_WARPS. dKV: SLOT_WARPS x K_WARPS. */
constexpr int Q_WARPS = WARPS / HEAD_WARPS, K_WARPS = WARPS / SLOT_WARPS;
constexpr int WARP_HEADS = HEADS / HEAD_WARPS, WARP_SLOTS = SLOTS / SLOT_WARPS;
constexpr int M_H = WARP_HEADS / 16, M_S = WARP_SLOTS / 16, N_S = WARP_SLOTS / 8; /* fragments of 16 and 8 */
constexpr int DQ_GROUPS = DIM / 16 / Q_WARPS;                                     /* 16-column groups of a warp */
constexpr int COLS = CFG_COLS, PASSES = DIM_V / (K_WARPS * COLS), ROPE = DIM > DIM_V ? (DIM - DIM_V) / K_WARPS : 0;
constexpr int Q_PITCH = 2 * DIM, O_PITCH = 2 * DIM_V, P_PITCH = SLOTS > 32 ? 2 * SLOTS : 64;
constexpr uint32_t NOWHERE = 0x80000000u; /* no offset in elements is that far from its tensor's start */
constexpr int SCALED = TYPE == KP_F16;
constexpr int P_POWER = SCALED ? 14 : 0; /* P' in shared memory is 2^P_POWER times as large: exponent_for(1) */
constexpr int STAGES = CFG_LINE == 128 ? 3 : CFG_LINE == 64 ? 2 : 1; /* of the transposition before a store of dkv */

/* Shared memory. */
constexpr int AT_Q = 0, AT_DOUT = AT_Q + HEADS * Q_PITCH, AT_KV = AT_DOUT + HEADS * O_PITCH,
              AT_P = AT_KV + SLOTS * Q_PITCH, AT_DS = AT_P + HEADS * P_PITCH, AT_ROWS = AT_DS + HEADS * P_PITCH,
              AT_OFFSETS = AT_ROWS + HEADS * 16, AT_DIST = AT_OFFSETS + 2 * SLOTS * 8,
              AT_LARGEST = AT_DIST + HEAD_WARPS * SLOTS * 4, SHARED_BYTES = AT_LARGEST + (SCALED ? 32 : 0);

static_assert(DIM % 64 == 0 && HEADS % (16 * HEAD_WARPS) == 0 && SLOTS % (16 * SLOT_WARPS) == 0, "whole fragments");
static_assert(DIM / 16 % Q_WARPS == 0 && DIM_V % (K_WARPS * COLS) == 0 && COLS % 32 == 0, "whole column groups");
static_assert(ROPE % 16 == 0 && (Q_WARPS == 2 || Q_WARPS == 4), "a warp's columns pass the swizzle by XOR");
static_assert(SLOTS % (THREADS / 8) == 0 && THREADS % 64 == 0, "whole passes of the gather");
static_assert(SHARED_BYTES == KP_MLA_BWD_SHARED(TYPE, DIM, HEADS, SLOTS, HEAD_WARPS), "the host asks for as much");

static_assert(SQUARE <= 4, "a place for each warp's largest dS");

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_of(void) { return thread_of() >> 5; }

/* What a CTA works on: a block of heads of one query. */
struct work {
    int64_t flat, b, i; /* query: b * SQ + i */
    int block, head0;   /* of the heads */
    int heads;          /* that exist */
    int64_t index;      /* block of query, counted from the launch's first query */
};

static __device__ __forceinline__ void find_work(const struct kp_mla_bwd *p, int64_t index, struct work *w) {
    w->index = index;
    w->flat = p->first + index / p->head_blocks;
    w->block = (int)(index % p->head_blocks);
    w->b = w->flat / p->in.seq_q;
    w->i = w->flat % p->in.seq_q;
    w->head0 = w->block * HEADS;
    w->heads = min(p->in.heads_q - w->head0, HEADS);
}

/* ------------------------------------------------------------------ loads -------------------------- */

/* `dim` columns of the block's rows of q or dout. Rows of heads that do not exist or are empty become zeros. */
static __device__ __forceinline__ void load_heads(const struct kp_view *v, const struct work *w, uint32_t tile,
                                                  uint32_t base, int dim) {
    const int pitch = 2 * dim, c0 = (int)threadIdx.x % 8;
    const char *from = (const char *)v->data + 2 * (w->b * v->batch + w->i * v->row + w->head0 * v->head) + 16 * c0;
#pragma unroll 1
    for (int r = (int)threadIdx.x / 8; r < HEADS; r += THREADS / 8) {
        const int alive = __uint_as_float(shared_load32(base + AT_ROWS + 16 * r)) != INF;
#pragma unroll
        for (int c = 0; c < dim / 8; c += 8)
            copy_chunk(tile + tile_at(pitch, r, c0 + c), from + (alive ? 2 * r * v->head : 0) + 16 * c, alive,
                       v->chunk);
    }
}

/* States of the block's rows; a head that does not exist counts as empty. f16, by warp 0: they become lse,
 * 2^-P_POWER g, 2^-P_POWER shift, 2^(k - P_POWER) g. k, the power of P, comes from the largest g, which is 1 without a
 * sink, and is left at AT_LARGEST + 24. */
static __device__ __forceinline__ void load_rows(const struct kp_mla_bwd *p, const struct work *w, uint32_t base) {
    constexpr int AT_ONCE = SCALED ? 32 : THREADS, N = (HEADS + AT_ONCE - 1) / AT_ONCE;
    if (thread_of() >= AT_ONCE) return;
    float4 x[N];
    float largest = 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int r = thread_of() + n * AT_ONCE;
        x[n] = make_float4(INF, 0, 0, 0);
        if (r < w->heads) x[n] = ((const float4 *)p->row_stats)[w->flat * p->in.heads_q + w->head0 + r];
        largest = fmaxf(largest, if_finite(x[n].y));
    }
    if (SCALED) {
        constexpr float DOWN = 1.0f / (1 << P_POWER);
#pragma unroll
        for (int d = 1; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
        const int k = exponent_for(largest);
        if (thread_of() == 0) shared_store32(base + AT_LARGEST + 24, (uint32_t)k);
#pragma unroll
        for (int n = 0; n < N; n++) x[n].y *= DOWN, x[n].z *= DOWN, x[n].w = x[n].y * power_of_two(k);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int r = thread_of() + n * AT_ONCE;
        if (r < HEADS)
            shared_store128(base + AT_ROWS + 16 * r, make_uint4(__float_as_uint(x[n].x), __float_as_uint(x[n].y),
                                                                __float_as_uint(x[n].z), __float_as_uint(x[n].w)));
    }
}

/* Start the copies of the tile whose kv rows were found, and note where the gradient of each slot goes: elements from
 * the start of the batch entry's sums or of the work tile's stored rows; NOWHERE in the high word = the slot is
 * invalid. */
static __device__ __forceinline__ void gather_tile(const struct kp_mla_bwd *p, const struct gather *g, uint32_t base,
                                                   int tile, const int *rows) {
    constexpr int DOWN = THREADS / 8;
    const int thread = thread_of(), r0 = thread / 8, c0 = thread % 8;
    const uint32_t to = base + AT_KV + tile_at(Q_PITCH, r0, c0), offsets = base + AT_OFFSETS + (tile & 1) * SLOTS * 8;
#pragma unroll
    for (int x = 0; x < SLOTS / DOWN; x++) {
        const int exists = rows[x] >= 0, r = r0 + x * DOWN;
        const char *from = g->kv + 2 * (exists ? rows[x] * p->in.kv.row : 0) + 16 * c0;
        if (c0 == 0) {
            const int64_t element = STORED_ROWS ? ((int64_t)tile * SLOTS + r) * DIM : rows[x] * p->sum.row;
            shared_store32(offsets + 8 * r, (uint32_t)element);
            shared_store32(offsets + 8 * r + 4, exists ? (uint32_t)(element >> 32) : NOWHERE);
        }
        if (p->in.kv.chunk == 16) {
#pragma unroll
            for (int c = 0; c < DIM / 8; c += 8)
                copy_async16(to + x * DOWN * Q_PITCH + 16 * c, from + 16 * c, exists ? 16 : 0);
        } else {
#pragma unroll 1
            for (int c = 0; c < DIM / 8; c += 8)
                copy_chunk(to + x * DOWN * Q_PITCH + 16 * c, from + 16 * c, exists, p->in.kv.chunk);
        }
    }
}

/* ------------------------------------------------------------------ dkv to memory ------------------ */

/* Lane 4 g + t holds x[j]: row g, column 2 t + (j & 1) + 8 (j >> 1). Afterwards x[a] is row (g with its low `stages`
 * bits replaced by a), column 2 t + (g & 1) + 8 (g >> 1) of those low bits of g: the lanes of a row stand side by side
 * in 2^stages * 16 bytes of memory. */
static __device__ __forceinline__ void transpose_lanes(float x[8], int stages) {
    const int g = lane_of() >> 2;
#pragma unroll
    for (int k = 0; k < stages; k++) {
        const int high = g >> k & 1;
#pragma unroll
        for (int j = 0; j < 1 << stages; j++) {
            if (j >> k & 1) continue;
            const float come = __shfl_xor_sync(~0u, high ? x[j] : x[j | 1 << k], 4 << k);
            if (high)
                x[j] = come;
            else
                x[j | 1 << k] = come;
        }
    }
}

/* 8 slots (`half` of fragment m of the warp) x 8 n columns of accumulators, column0 the first, to memory. */
static __device__ __forceinline__ void emit_rows(const float *x0, int n, int half, float *to, uint32_t offsets,
                                                 int column0) {
    const int stages = n >= 4 ? STAGES : STAGES < 2 ? STAGES : 2, per = 1 << stages; /* registers of a transposition */
    const int lane = lane_of(), g = lane >> 2, low = g & (per - 1);
    const int column = column0 + 2 * (lane & 3) + (low & 1) + 8 * (low >> 1);
    float *row[8];
    uint32_t valid = 0;
#pragma unroll
    for (int a = 0; a < per; a += 2) {
        const uint4 offset = shared_load128(offsets + 8 * (8 * half + (g & ~(per - 1)) + a));
        row[a] = to + (int64_t)((uint64_t)offset.y << 32 | offset.x) + column;
        row[a + 1] = to + (int64_t)((uint64_t)offset.w << 32 | offset.z) + column;
        valid |= ((uint32_t)(offset.y != NOWHERE) | (uint32_t)(offset.w != NOWHERE) << 1) << a;
    }
#pragma unroll
    for (int c = 0; c < n; c += per / 2) { /* fragments of a transposition */
        float x[8];
#pragma unroll
        for (int j = 0; j < per; j++) x[j] = x0[4 * (c + (j >> 1)) + 2 * half + (j & 1)];
        transpose_lanes(x, stages);
#pragma unroll
        for (int a = 0; a < per; a++) {
            if (!(valid >> a & 1)) continue;
            if (STORED_ROWS)
                row[a][8 * c] = x[a];
            else
                reduce_add(row[a] + 8 * c, x[a]);
        }
    }
}
#endif
