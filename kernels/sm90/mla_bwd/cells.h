/* SPDX-License-Identifier: MIT
 * Part of specialized.cu, lockstep.cu and pingpong.cu: P', P and dS of a warpgroup's 32 slots from
 * scores and dP in registers, sums of P' for dist, dq to memory, and what a warpgroup keeps of its work tile. */
#ifndef ATTN_SM90_MLA_BWD_CELLS_H
#define ATTN_SM90_MLA_BWD_CELLS_H
#include "kernels/sm90/mla_bwd/plan.h"

constexpr int SCALED = TYPE == KP_F16; /* P and dS have a power of two, scale.h */

/* Registers are scarce here: what a few instructions give again is not kept over a tile. */
static __device__ __forceinline__ int lane_of(void) { return recompute((int)threadIdx.x) & 31; }
static __device__ __forceinline__ int warp_of(void) { return recompute((int)threadIdx.x) >> 5 & 3; }

static __device__ __forceinline__ uint4 state_of(uint32_t shared, int r) {
    return shared_load128(shared + STATE_AT + 16 * (uint32_t)(warp_of() * 16 + (lane_of() >> 2) + 8 * r));
}

/* y from scores to scaled scores less lse, base 2; y[4 j + 2 r + e]: slot 8 j + 2 t + e of the warpgroup's 32, row
 * g + 8 r. */
static __device__ __forceinline__ void exponents(uint32_t shared, const struct kp_mla_bwd *p, float y[16]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float lse2 = __uint_as_float(state_of(shared, r).x);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) y[4 * j + 2 * r + e] = __fmaf_rn(y[4 * j + 2 * r + e], p->in.scale_log2, -lse2);
    }
}
/* These to P'. */
static __device__ __forceinline__ void probabilities(uint32_t shared, float y[16], uint32_t mask) {
    mask >>= 2 * (lane_of() & 3);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t bits = __uint_as_float(state_of(shared, r).x) == INF ? 0 : mask;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *cell = y + 4 * j + 2 * r + e;
                *cell = bits >> (8 * j + e) & 1 ? exp2_fast(*cell) : 0;
            }
    }
}

static __device__ __forceinline__ char *kept_address(uint4 x) { return (char *)((uint64_t)x.y << 32 | x.x); }

/* Sums of P' over the heads, for dist, in three steps that the caller places. Of a lane: its two rows. */
static __device__ __forceinline__ void sum_rows(float y[8], const float s[16]) {
#pragma unroll
    for (int x = 0; x < 8; x++) y[x] = s[4 * (x >> 1) + (x & 1)] + s[4 * (x >> 1) + 2 + (x & 1)];
}
/* Of a warp, to shared memory: of what lanes g and g ^ 4 have, one adds up the first half and the other the second, and
 * so on, until lane 4 g + t has number g. */
template <int W> static __device__ __forceinline__ void sum_lanes(uint32_t shared, float y[8]) {
    const int lane = lane_of();
#pragma unroll
    for (int n = 4; n > 0; n /= 2) {
        const int upper = lane & 4 * n;
#pragma unroll
        for (int x = 0; x < n; x++) {
            const float come = __shfl_xor_sync(~0u, upper ? y[x] : y[x + n], 4 * n);
            y[x] = (upper ? y[x + n] : y[x]) + come;
        }
    }
    const int slot = 8 * (lane >> 3) + 2 * (lane & 3) + (lane >> 2 & 1);
    shared_store32(shared + PART_AT + W * 512 + (uint32_t)(warp_of() * 128 + 4 * slot), __float_as_uint(y[0]));
}
/* Of four warps, after a barrier: of slot `lane` of warpgroup w's 32, to memory. Nobody reads what belongs to slots
 * that are not valid. */
static __device__ __forceinline__ void store_sums(uint32_t shared, uint32_t w, uint32_t mask, uint64_t to) {
    const uint32_t lane = (uint32_t)lane_of(), part = shared + PART_AT + w * 512 + 4 * lane;
    if (!(mask >> lane & 1)) return;
    float y = 0;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) y += __uint_as_float(shared_load32(part + k * 128));
    ((float *)to)[32 * w + lane] = y;
}

/* P and dS, from P' and dP, to shared memory; word[2 j + r]: dS of slots 8 j + 2 t, + 1 of the warpgroup's 32, row
 * g + 8 r, so that 4 words are the operand A of 16 slots. A slot that is not valid and an empty row have P' = 0. up:
 * the power of two of both. */
template <int W>
static __device__ __forceinline__ void store_cells(uint32_t shared, const struct kp_mla_bwd *p, const float prob[16],
                                                   const float dp[16], float up, uint32_t word[8]) {
    const int row = warp_of() * 16 + (lane_of() >> 2), t = lane_of() & 3;
    const uint32_t base = shared + P_AT + (uint32_t)(row * 128 + t * 4);
#pragma unroll
    for (int r = 0; r < 2; r++) { /* rows g and g + 8 have the same swizzle */
        const uint4 state = state_of(shared, r);
        const float unit = SCALED ? p->in.scale * up : p->in.scale, g0 = __uint_as_float(state.y), gs = g0 * unit;
        const float g = SCALED ? g0 * up : g0, shift = __uint_as_float(state.z) * unit;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t to = base + (uint32_t)((((4 * W + j) ^ (row & 7)) << 4) + r * 1024);
            const float *y = prob + 4 * j + 2 * r, *x = dp + 4 * j + 2 * r;
            shared_store32(to, pack16(TYPE, y[0] * g, y[1] * g));
            word[2 * j + r] = pack16(TYPE, y[0] == 0 ? 0 : y[0] * __fmaf_rn(gs, x[0], -shift),
                                     y[1] == 0 ? 0 : y[1] * __fmaf_rn(gs, x[1], -shift));
            shared_store32(to + SLICE, word[2 * j + r]);
        }
    }
}

/* Lane t of a quad gives word i of its four to lane i: w[i] of lane t becomes w[t] of lane i. */
static __device__ __forceinline__ void transpose_quad(uint32_t w[4], int t) {
#pragma unroll
    for (int step = 1; step <= 2; step++)
#pragma unroll
        for (int y = 0; y < 2; y++) {
            const int a = step == 1 ? 2 * y : y, b = a + step;
            const uint32_t come = __shfl_xor_sync(~0u, t & step ? w[a] : w[b], step);
            if (t & step)
                w[a] = come;
            else
                w[b] = come;
        }
}

/* Rows g, g + 8 of the warp, 8 n columns from `column` on, of a part of a work tile. */
static __device__ __forceinline__ void store_part(uint4 a, const float *q, float down, int n, int column) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_of() * 16 + (lane_of() >> 2) + 8 * r;
        float *to = (float *)kept_address(a) + row * D + column + 2 * (lane_of() & 3);
        if (!JOINED && row >= (int)a.z) continue;
#pragma unroll
        for (int j = 0; j < n; j++)
            *(float2 *)(to + 8 * j) = make_float2(q[4 * j + 2 * r] * down, q[4 * j + 2 * r + 1] * down);
    }
}

/* Rows g, g + 8 of the warp, 8 n columns from `column` on; down: undoes their power of two. */
template <int W>
static __device__ __forceinline__ void store_dq(uint32_t shared, const struct kp_mla_bwd *p, const float *q, float down,
                                                int n, int column) {
    const uint4 a = shared_load128(shared + ROWS_AT + 32 * W), b = shared_load128(shared + ROWS_AT + 32 * W + 16);
    const struct kp_mla_row *states = (const struct kp_mla_row *)((uint64_t)b.w << 32 | b.z);
    const int t = lane_of() & 3;
    if (in_parts(p)) return store_part(a, q, down, n, column);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_of() * 16 + (lane_of() >> 2) + 8 * r;
#ifdef CFG_JOINED
        const int inside = row_exists(p, row, a.z);
        const int64_t state = row_offset(p, row, p->in.heads_q, 1), first = row_offset(p, row, p->dq.row, p->dq.head);
#else
        const int inside = row < (int)a.z, state = row;
        const int64_t first = row * p->dq.head;
#endif
        /* Without a tile nothing orders who forms the states before this; q is 0. */
        const int empty = inside && (!AHEAD || a.w > 0) && states[state].lse2 == INF;
        uint16_t *to = (uint16_t *)kept_address(a) + first + column + 8 * t;
#pragma unroll
        for (int j0 = 0; j0 < n; j0 += 4) {
            uint32_t word[4];
#pragma unroll
            for (int x = 0; x < 4; x++)
                word[x] = empty ? 0 : pack16(TYPE, q[4 * (j0 + x) + 2 * r] * down, q[4 * (j0 + x) + 2 * r + 1] * down);
            transpose_quad(word, t);
            const uint4 y = make_uint4(word[0], word[1], word[2], word[3]);
            if (inside && PASSING) __stcs((uint4 *)(to + 8 * j0), y);
            if (inside && !PASSING) *(uint4 *)(to + 8 * j0) = y;
        }
    }
}

/* What the warpgroup needs of its work tile is in shared memory: {dq of the first head; heads that exist; tiles}, {sums
 * for dist of its first slot; states of the heads}. One thread. */
template <int W>
static __device__ __forceinline__ void keep_rows(const struct kp_mla_bwd *p, count index, const struct work_tile *w,
                                                 uint32_t shared) {
    const uint64_t dq = in_parts(p)
                            ? p->part_dq + (uint64_t)(index * CTAS + rank_of()) * (64 * 4 * D)
                            : p->dq.data + 2 * (uint64_t)(w->b * p->dq.batch + w->i * p->dq.row + w->head * p->dq.head);
    const uint64_t dist = DIST_BY_PRODUCERS ? 0 : dist_of(p, index, w);
    const uint64_t states = (uint64_t)states_of(p, w);
#ifdef CFG_JOINED
    int from;
    const int tiles = part_of_tiles(p, index, tiles_of(p, w), &from);
    const uint32_t rows = rows_of(p, w);
#else
    const int tiles = (slots_at(p, index, w) + 63) / 64;
    const uint32_t rows = (uint32_t)(p->in.heads_q - w->head);
#endif
    shared_store128(shared + ROWS_AT + 32 * W, make_uint4((uint32_t)dq, (uint32_t)(dq >> 32), rows, (uint32_t)tiles));
    shared_store128(shared + ROWS_AT + 32 * W + 16,
                    make_uint4((uint32_t)dist, (uint32_t)(dist >> 32), (uint32_t)states, (uint32_t)(states >> 32)));
}
/* The same, and where its gradients begin; between two barriers of the warpgroup. Even and alternating. */
template <int W>
static __device__ __forceinline__ void keep_work_of(const struct kp_mla_bwd *p, count index, uint32_t shared) {
    named_sync(1 + W, 128); /* the last work tile's are read */
    if ((threadIdx.x & 127) == 0) {
        const struct work_tile w = work_of(p, index);
        keep_rows<W>(p, index, &w, shared);
        if (STORED_ROWS) {
            uint64_t row = index;
#ifdef CFG_JOINED
            row *= (uint32_t)p->group_rows; /* stored rows of a group; work tiles are whole */
#else
            int from = 0;
            if (in_parts(p)) part_of(p, index, 0, &from), row /= (uint32_t)p->parts;
            row = row * (uint32_t)p->in.topk + (uint32_t)from;
#endif
            keep4(shared + SUMS_AT + 16 * W, p->stored_rows + row * (2 * D), p->units + row);
        } else {
            keep4(shared + SUMS_AT + 16 * W, p->sum.data + 4 * (uint64_t)(w.b * p->sum.batch), 0);
        }
    }
    named_sync(1 + W, 128);
}
#endif
