/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu over joined lists (joined.h): P^T and dS^T of the queries that have an entry, and the exact path
 * of tiles with a score or dP that is not finite.
 */
#ifndef ATTN_SM90_MLA_BWD_JOINED_CELLS_H
#define ATTN_SM90_MLA_BWD_JOINED_CELLS_H
#include "kernels/sm90/mla_bwd/joined_exact.h"
#include "kernels/sm90/mla_bwd/pingpong_cells.h"
#include "kernels/sm90/mla_bwd/scatter_add.h"

static_assert(STATES_AHEAD, "the last states are loaded under S");

/* Which queries have entries g (bit 0 on) and g + 8 (bit 16 on) of the warp, the query of the lane's first head first;
 * with 4 heads a query, lanes t / 2 = 1 of a quad have the second query's. */
static __device__ __forceinline__ uint32_t own_bits(const struct kp_mla_bwd *p, uint32_t shared, uint32_t buf) {
    const uint32_t entry = 16 * (uint32_t)warp_of() + ((uint32_t)lane_of() >> 2);
    const uint32_t bits = bits_of(shared, buf, entry) | bits_of(shared, buf, entry + 8) << 16;
    return bits >> query_of(p, 2 * (lane_of() & 3));
}

/* Whether all scores and dP of the warp are finite. A product stands for its two factors: it is finite only if they
 * are, or beyond f32 as well, and then the exact path is taken without need. */
static __device__ __forceinline__ int are_finite(const float y[64]) {
    float sum[2] = {0, 0};
#pragma unroll
    for (int x = 0; x < 32; x++) sum[x % 2] = __fmaf_rn(y[x], y[32 + x], sum[x % 2]);
    return __all_sync(~0u, fabsf(sum[0]) + fabsf(sum[1]) < INF);
}

#if CFG_CTAS == 2
/* As valid_slots: which of the entries g, g + 8 the CTA's query has. */
static __device__ __forceinline__ uint32_t entries_of_query(uint32_t shared, uint32_t buf) {
    const uint32_t entry = 16 * (uint32_t)warp_of() + ((uint32_t)lane_of() >> 2);
    return bits_of(shared, buf, entry) | bits_of(shared, buf, entry + 8) << 8;
}
/* For all warps whether the tile takes the exact path, before publish_ds. */
static __device__ __forceinline__ void flag_exact_path(uint32_t shared, const float y[64]) {
    const int finite = are_finite(y);
    if (lane_of() == 0) shared_store8(shared + EXACT_AT + (uint32_t)warp_of(), (uint32_t)!finite);
}
/* Where the sums of P' of the tile's first entry go. */
template <int W> static __device__ __forceinline__ uint64_t dist_of_entries(uint32_t shared, uint32_t buf) {
    return kept(shared + ROWS_AT + 32 * W + 16) + 4 * (uint64_t)shared_load32(shared + PLACE_AT + 4 * buf);
}
#else
/* For dist: f32 [64 entries][8][4], P' of two heads side by side, in the place of P^T; the eight stand ^ (entry % 8).
 * The lane's, of entry g. */
static __device__ __forceinline__ uint32_t pairs_at(uint32_t shared) {
    const uint32_t lane = (uint32_t)lane_of(), entry = 16 * (uint32_t)warp_of() + (lane >> 2);
    return shared + P_AT + 128 * entry + 16 * (entry & 7) + 4 * (lane & 3);
}

/* As form_cells; and for all warps whether the tile takes the exact path, before publish_ds. */
static __device__ __forceinline__ void form_joined(uint32_t shared, const struct kp_mla_bwd *p, const float y[64],
                                                   uint32_t buf, struct tile *to, const uint4 last_states[2]) {
    const int finite = are_finite(y);
    if (lane_of() == 0) shared_store8(shared + EXACT_AT + (uint32_t)warp_of(), (uint32_t)!finite);
    const uint32_t states = shared + STATE_AT + 32 * ((uint32_t)lane_of() & 3), pairs = pairs_at(shared);
    const uint32_t bits = own_bits(p, shared, buf);
    const float unit = p->in.scale;
    uint4 now[2] = {last_states[0], last_states[1]};
#pragma unroll
    for (int j = 7; j >= 0; j--) { /* upwards some registers spill */
        const uint32_t mine = bits >> query_of(p, 8 * j);
        const bool on[2] = {(mine & 1) != 0, (mine & 0x10000) != 0};
        float prob[2][2], ds[2][2], sum[2];
        uint4 next[2];
        if (j) {
            next[0] = shared_load128(states + 128 * (uint32_t)(j - 1));
            next[1] = shared_load128(states + 128 * (uint32_t)(j - 1) + 16);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float lse2 = __uint_as_float(now[e].x), g = __uint_as_float(now[e].y);
            const float gs = g * unit, shift = __uint_as_float(now[e].z) * unit;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float x = exp2_fast(__fmaf_rn(y[4 * j + 2 * r + e], p->in.scale_log2, -lse2));
                x = on[r] && lse2 != INF ? x : 0;
                sum[r] = e ? sum[r] + x : x;
                prob[r][e] = x * g;
                ds[r][e] = x == 0 ? 0 : x * __fmaf_rn(gs, y[32 + 4 * j + 2 * r + e], -shift);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to->probs[2 * j + r] = pack16(TYPE, prob[r][0], prob[r][1]);
            to->ds[2 * j + r] = pack16(TYPE, ds[r][0], ds[r][1]);
            shared_store32((pairs ^ (uint32_t)(16 * j)) + 1024 * (uint32_t)r, __float_as_uint(sum[r]));
        }
        if (j) now[0] = next[0], now[1] = next[1];
    }
}

/* The warp's sums of P' of each query to memory, from the pairs that form_joined has left. */
template <int W>
static __device__ __forceinline__ void leave_dist_of_group(const struct kp_mla_bwd *p, uint32_t shared, uint32_t buf) {
    const struct kp_mla_joined *joined = joined_of(p);
    const uint32_t lane = (uint32_t)lane_of(), entry = 16 * (uint32_t)warp_of() + (lane & 15);
    const uint32_t from = shared + P_AT + 128 * entry, bits = bits_of(shared, buf, entry);
    const uint32_t pairs = 1u << joined->shift >> 1; /* of a query */
    float *to = (float *)kept(shared + ROWS_AT + 32 * W + 16) + shared_load32(shared + PLACE_AT + 4 * buf) + entry;
    __syncwarp();
#pragma unroll 1
    for (uint32_t query = lane >> 4; query < (uint32_t)joined->group; query += 2) {
        float sum = 0;
        if (!(bits >> query & 1)) continue;
#pragma unroll 1
        for (uint32_t x = query * pairs; x < (query + 1) * pairs; x++)
            sum += __uint_as_float(shared_load32(from + 16 * ((x >> 2) ^ (entry & 7)) + 4 * (x & 3)));
        to[query * (uint32_t)(joined->bits - joined->keys)] = sum;
    }
    __syncwarp();
}
#endif
#if CFG_CTAS == 2
/* Chunk of 16 bytes and place of columns column, + 1 of a slice of Q or dO, interleaved (producers.h). */
static __device__ __forceinline__ uint32_t interleaved_pair(uint32_t first, uint32_t slice, uint32_t row,
                                                            uint32_t column) {
    if (slice >= 8) return pair_of(first + slice * Q_STEP, row, column);
    const uint32_t mine = column >> 5 == rank_of();
    return pair_of(first + ((slice + mine) & 7) * Q_STEP, row, (column & 31) + 32 * mine);
}
/* dKV of the warp's entries that the query has, from its own heads, straight to memory; P comes from its registers. */
static __device__ __forceinline__ void add_dkv_exactly(const struct kp_mla_bwd *p, uint32_t shared, uint32_t sums,
                                                       uint32_t buf, const uint32_t probs[16]) {
    const uint32_t lane = (uint32_t)lane_of();
#pragma unroll 1
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t entry = 16 * (uint32_t)warp_of() + i;
        const int32_t key = (int32_t)shared_load32(shared + SLOT_ROWS_AT + 256 * buf + 4 * entry);
        if (key < 0 || !p->dkv.data || !bits_of(shared, buf, entry)) continue;
        const uint64_t to = address_of(kept(sums), (uint32_t)key, 4 * D);
#pragma unroll 1
        for (uint32_t slice = 0; slice < SLICES; slice++) {
            float x = 0, y = 0;
#pragma unroll
            for (uint32_t j = 0; j < 8; j++) {
                const uint32_t word = i < 8 ? probs[2 * j] : probs[2 * j + 1];
#pragma unroll 1
                for (uint32_t e = 0; e < 8; e++) {
                    const uint32_t row = 8 * j + e, two = __shfl_sync(~0u, word, (int)(4 * (i & 7) + e / 2));
                    const float ds = cell_of(shared + DS_AT, entry, row);
                    const float prob = unpack16(TYPE, e & 1 ? two >> 16 : two & 0xffff);
                    const uint32_t q = interleaved_pair(shared + Q_AT, slice, row, 2 * lane);
                    x = __fmaf_rn(ds, unpack16(TYPE, q & 0xffff), x);
                    y = __fmaf_rn(ds, unpack16(TYPE, q >> 16), y);
                    if (slice >= V_SLICES) continue;
                    const uint32_t o = interleaved_pair(shared + DOUT_AT, slice, row, 2 * lane);
                    x = __fmaf_rn(prob, unpack16(TYPE, o & 0xffff), x);
                    y = __fmaf_rn(prob, unpack16(TYPE, o >> 16), y);
                }
            }
            const uint32_t column = 64 * slice + (2 * lane & ~15u) + 4 * (lane & 3) + 2 * (lane >> 2 & 1);
            reduce_add2((float *)to + column, x, y);
        }
    }
    __syncwarp();
}
#else
/* dKV of the warp's entries, straight to memory: in the order of columns of scatter_add.h. P^T goes to P_AT, where
 * nobody else has anything. */
static __device__ __forceinline__ void add_dkv_exactly(const struct kp_mla_bwd *p, uint32_t shared, uint32_t sums,
                                                       uint32_t buf, const uint32_t probs[16]) {
    const uint32_t own = own_rows(shared + P_AT), lane = (uint32_t)lane_of();
#pragma unroll
    for (uint32_t kk = 0; kk < 4; kk++) store_matrix4(own ^ (kk << 5), probs + 4 * kk);
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t entry = 16 * (uint32_t)warp_of() + i, bits = bits_of(shared, buf, entry);
        const int32_t key = (int32_t)shared_load32(shared + SLOT_ROWS_AT + 256 * buf + 4 * entry);
        if (key < 0 || !p->dkv.data) continue;
        const uint64_t to = address_of(kept(sums), (uint32_t)key, 4 * D);
#pragma unroll 1
        for (uint32_t slice = 0; slice < SLICES; slice++) add_dkv_of_entry(p, shared, to, bits, entry, slice, lane, 1);
    }
    __syncwarp();
}
#endif
#endif
