/* SPDX-License-Identifier: MIT
 * Part of lockstep.cu over joined lists (joined.h): cells of the queries that have an entry, sums of P' of each query
 * for dist, and the exact path (joined_exact.h). A thread has entries 8 j + 2 t, + 1 of two rows of the work tile,
 * whose queries' bits are looked up where they are needed. */
#ifndef ATTN_SM90_MLA_BWD_JOINED_LOCKSTEP_H
#define ATTN_SM90_MLA_BWD_JOINED_LOCKSTEP_H
#include "kernels/sm90/mla_bwd/joined_exact.h"
#include "kernels/sm90/mla_bwd/scale.h"
#if CFG_DETERMINISTIC
#include "kernels/sm90/mla_bwd/stored_rows.h"
#else
#include "kernels/sm90/mla_bwd/scatter_add.h"
#endif

/* The query of row g + 8 r. */
static __device__ __forceinline__ int own_query(const struct kp_mla_bwd *p, int r) {
    return query_of(p, 16 * warp_of() + (lane_of() >> 2) + 8 * r);
}
/* Bits of entries 8 j + 2 t, + 1 of the tile. */
static __device__ __forceinline__ uint2 bits_of_two(uint32_t shared, uint32_t buf, int j) {
    return shared_load32x2(shared + ENTRY_BITS_AT + 256 * buf + (uint32_t)(32 * j + 8 * (lane_of() & 3)));
}
static __device__ __forceinline__ int has_entry(uint2 bits, int e, int query) {
    return (e ? bits.y : bits.x) >> query & 1;
}

/* For all warps, before scores (W = 0) and dP are exchanged: whether the warp's are finite. Their sum is
 * beyond f32 only if some are near it, and then the exact path is taken without need. */
template <int W> static __device__ __forceinline__ void flag_exact_path(uint32_t shared, const float y[32]) {
    float sum[2] = {0, 0};
#pragma unroll
    for (int x = 0; x < 32; x++) sum[x % 2] += y[x];
    const int finite = __all_sync(~0u, fabsf(sum[0]) + fabsf(sum[1]) < INF);
    if (lane_of() == 0) shared_store8(shared + EXACT_AT + (uint32_t)(4 * W + warp_of()), (uint32_t)!finite);
}

/* leave_bound of scale.h, of the 32 numbers of dP whose query has the entry: what neighbours attend counts for them
 * alone. */
template <int WHOLE>
static __device__ __forceinline__ float bound_of_entries(const struct kp_mla_bwd *p, uint32_t shared,
                                                         const float dp[32], uint32_t buf) {
    float most[2] = {0, 0}, bound = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint2 bits = bits_of_two(shared, buf, j);
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const float y = fabsf(dp[4 * j + x]), counted = WHOLE ? y : if_finite(y);
            if (has_entry(bits, x & 1, own_query(p, x >> 1))) most[x >> 1] = fmaxf(most[x >> 1], counted);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint4 state = state_of(shared, r);
        const float row = __fmaf_rn(__uint_as_float(state.y), most[r], fabsf(__uint_as_float(state.z)));
        bound = fmaxf(bound, WHOLE ? row : if_finite(row));
    }
    return bound * fabsf(p->in.scale);
}
static __device__ __forceinline__ void leave_bound_of_entries(uint32_t shared, const struct kp_mla_bwd *p,
                                                              const float dp[32], uint32_t buf, int first) {
    float bound = bound_of_entries<1>(p, shared, dp, buf);
    if (!(bound < INF)) bound = if_finite(bound_of_entries<0>(p, shared, dp, buf));
    leave_power(shared, bound, (uint32_t)warp_of(), buf, first);
}

/* probabilities() of cells.h. */
template <int W>
static __device__ __forceinline__ void joined_probabilities(const struct kp_mla_bwd *p, uint32_t shared, float y[16],
                                                            uint32_t buf) {
    int empty[2];
#pragma unroll
    for (int r = 0; r < 2; r++) empty[r] = __uint_as_float(state_of(shared, r).x) == INF;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint2 bits = bits_of_two(shared, buf, 4 * W + j);
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int on = !empty[x >> 1] && has_entry(bits, x & 1, own_query(p, x >> 1));
            y[4 * j + x] = on ? exp2_fast(y[4 * j + x]) : 0;
        }
    }
}

/* Sums of P' of each query, of the warp's rows, to memory: of 32 rows a query a warp has a half, whose sums are a block
 * of part_dist. */
template <int W>
static __device__ __forceinline__ void leave_dist_of_rows(const struct kp_mla_bwd *p, uint32_t shared,
                                                          const float prob[16], uint32_t buf) {
    const struct kp_mla_joined *joined = joined_of(p);
    const int shift = joined->shift, lane = lane_of(), n = joined->bits - joined->keys;
    const int leads = (lane >> 2 & ((1 << min(shift, 3)) - 1)) == 0;
    float *to = (float *)kept(shared + ROWS_AT + 32 * W + 16) + shared_load32(shared + PLACE_AT + 4 * buf) + 32 * W +
                2 * (lane & 3);
    if (shift == 5 && warp_of() & 1) to += p->n * joined->group * n;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint2 bits = bits_of_two(shared, buf, 4 * W + j);
        float y[4];
#pragma unroll
        for (int x = 0; x < 4; x++) y[x] = prob[4 * j + x];
        if (shift >= 4) y[0] += y[2], y[1] += y[3];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            y[x] += __shfl_xor_sync(~0u, y[x], 4);
            y[x] += __shfl_xor_sync(~0u, y[x], 8);
            if (shift >= 3) y[x] += __shfl_xor_sync(~0u, y[x], 16);
            if (!leads || (shift >= 4 && x >= 2)) continue;
            const int query = own_query(p, x >> 1);
            if (has_entry(bits, x & 1, query)) to[query * n + 8 * j + (x & 1)] = y[x];
        }
    }
}

#if CFG_DETERMINISTIC
/* Rows of dKV, where stored_rows.h stores them, with a power of two from the largest finite number. Warp v of the
 * eight: entries 8 v .. 8 v + 7 of the work tile's tile `tile`. */
static __device__ __forceinline__ void store_rows_exactly(const struct kp_mla_bwd *p, uint32_t shared, uint32_t sums,
                                                          uint32_t buf, uint32_t tile) {
    const uint32_t warp = (uint32_t)recompute((int)threadIdx.x) >> 5;
#pragma unroll 1
    for (uint32_t entry = 8 * warp; entry < 8 * warp + 8; entry++) {
        const uint32_t lane = (uint32_t)lane_of(), bits = bits_of(shared, buf, entry), row16 = 64 * tile + entry;
        if ((int32_t)shared_load32(shared + SLOT_ROWS_AT + 256 * buf + 4 * entry) < 0 || !p->dkv.data) continue;
        float x[2 * SLICES], most = 0;
#pragma unroll
        for (uint32_t i = 0; i < 2 * SLICES; i++) x[i] = 0;
#pragma unroll 1
        for (uint32_t row = 0; row < 64; row++) {
            if (!(bits >> query_of(p, (int)row) & 1)) continue;
            const float ds = cell_of(shared + DS_AT, entry, row), prob = cell_of(shared + P_AT, entry, row);
#pragma unroll
            for (uint32_t slice = 0; slice < SLICES; slice++) {
                const uint32_t q = pair_of(shared + Q_AT + slice * Q_STEP, row, 2 * lane);
                x[2 * slice] = __fmaf_rn(ds, unpack16(TYPE, q & 0xffff), x[2 * slice]);
                x[2 * slice + 1] = __fmaf_rn(ds, unpack16(TYPE, q >> 16), x[2 * slice + 1]);
                if (slice >= V_SLICES) continue;
                const uint32_t o = pair_of(shared + DOUT_AT + slice * Q_STEP, row, 2 * lane);
                x[2 * slice] = __fmaf_rn(prob, unpack16(TYPE, o & 0xffff), x[2 * slice]);
                x[2 * slice + 1] = __fmaf_rn(prob, unpack16(TYPE, o >> 16), x[2 * slice + 1]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 2 * SLICES; i++) most = fmaxf(most, if_finite(fabsf(x[i])));
        const uint32_t bound = __reduce_max_sync(~0u, __float_as_uint(most));
        const uint32_t exponent = max(row16_exponent(bound), SCALED ? 30u : 15u); /* as bound_rows */
        const float factor = __uint_as_float(row16_factor(exponent));
        char *to =
            (char *)address_of(kept(sums) + 64 * (lane >> 4) + 16 * (lane & 3) + 4 * (lane >> 2 & 3), row16, 2 * D);
#pragma unroll
        for (uint32_t slice = 0; slice < SLICES; slice++)
            *(uint32_t *)(to + 128 * slice) = pack16(KP_F16, x[2 * slice] * factor, x[2 * slice + 1] * factor);
        if (lane == 0)
            *((uint8_t *)kept(sums + 8) + row16) =
                (uint8_t)(row16_unit(exponent) - (SCALED ? (uint32_t)exponent_at(shared, buf) : 0));
    }
}
#else
/* dKV straight to memory, in the order of columns of scatter_add.h. Warp v of the eight: entries 8 v .. 8 v + 7. */
static __device__ __forceinline__ void add_dkv_exactly(const struct kp_mla_bwd *p, uint32_t shared, uint32_t sums,
                                                       uint32_t buf) {
    const uint32_t warp = (uint32_t)recompute((int)threadIdx.x) >> 5;
    const float down = power_of_two(-exponent_at(shared, buf));
#pragma unroll 1
    for (uint32_t entry = 8 * warp; entry < 8 * warp + 8; entry++) {
        const uint32_t bits = bits_of(shared, buf, entry);
        const int32_t key = (int32_t)shared_load32(shared + SLOT_ROWS_AT + 256 * buf + 4 * entry);
        if (key < 0 || !p->dkv.data) continue;
        const uint64_t to = address_of(kept(sums), (uint32_t)key, 4 * D);
#pragma unroll 1
        for (uint32_t slice = 0; slice < SLICES; slice++)
            add_dkv_of_entry(p, shared, to, bits, entry, slice, (uint32_t)lane_of(), down);
    }
}
#endif
#endif
