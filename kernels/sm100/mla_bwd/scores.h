/* SPDX-License-Identifier: MIT
 * Part of mla_bwd.cu: P and dS from S and dP, by four warps. A thread has one head and 32 keys; stacked: 16 keys. */
#ifndef ATTN_SM100_MLA_BWD_SCORES_H
#define ATTN_SM100_MLA_BWD_SCORES_H

constexpr int THREAD_KEYS = STACKED ? 16 : CTA_KEYS, CHUNKS = THREAD_KEYS / 8; /* of 16 bytes */

/* Thread's head, of the CTA's; half of the keys, which is the CTA that has them as operand; of these its first. */
static __device__ __forceinline__ int score_head(void) {
    return STACKED ? warp_of() % 2 * 16 + lane_of() % 16 : (int)threadIdx.x % CTA_HEADS;
}
static __device__ __forceinline__ int score_half(void) { return (int)threadIdx.x / ROWS % 2; }
static __device__ __forceinline__ int score_key(void) { return STACKED ? lane_of() / 16 * 16 : 0; }

/* A thread's numbers of a head's row of P or dS, rounded. */
static __device__ __forceinline__ void pack_row(uint4 y[CHUNKS], const float x[THREAD_KEYS]) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        y[c] = make_uint4(pack16(TYPE, x[8 * c], x[8 * c + 1]), pack16(TYPE, x[8 * c + 2], x[8 * c + 3]),
                          pack16(TYPE, x[8 * c + 4], x[8 * c + 5]), pack16(TYPE, x[8 * c + 6], x[8 * c + 7]));
}
/* To the CTA that has these keys: row `head` of all, 64 bytes, swizzled. */
static __device__ __forceinline__ void store_row(uint32_t rows, int rank, int half, int head, const uint4 y[CHUNKS]) {
    const uint32_t row = rows + (uint32_t)(rank * CTA_HEADS + head) * 64,
                   swizzle = (uint32_t)((head >> 1 & 3) ^ score_key() / 8) << 4;
    if (half == rank) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) shared_store128(row + (16 * c ^ swizzle), y[c]);
    } else {
        const uint32_t there = cluster_address(row, (uint32_t)half);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) cluster_store128(there + (16 * c ^ swizzle), y[c]);
    }
}

/* Stacked: dS once again, for dQ^T: row `head` of the CTA's, 64 keys. */
static __device__ __forceinline__ void store_row_of_ds(uint32_t rows, int half, int head, const uint4 y[CHUNKS]) {
    const uint32_t row = rows + (uint32_t)head * 128, swizzle = (uint32_t)((4 * half + score_key() / 8) ^ head % 8)
                                                                << 4;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) shared_store128(row + (16 * c ^ swizzle), y[c]);
}

/* Stacked: S and dP of the thread's keys. Lanes 0..15 of a warp have S of 16 heads and 32 keys, lanes 16..31 dP of the
 * same; each keeps half of its keys and gives the other half for the other number of its own. S of rope stands apart:
 * in dP's rows it would be 0 times what K has there, which may not be finite. */
static __device__ __forceinline__ void load_both(uint32_t s[THREAD_KEYS], uint32_t dp[THREAD_KEYS], uint32_t cells) {
    const int high = lane_of() / 16;
    uint32_t x[32], rope[32];
    tc_load32(x, cells + TM_S);
    if (ROPE) tc_load32(rope, cells + TM_DP);
    tc_wait_loads();
    if (ROPE && !high)
#pragma unroll
        for (int e = 0; e < 32; e++) x[e] = __float_as_uint(__uint_as_float(x[e]) + __uint_as_float(rope[e]));
#pragma unroll
    for (int e = 0; e < 16; e++) {
        const uint32_t other = __shfl_xor_sync(~0u, high ? x[e] : x[16 + e], 16);
        s[e] = high ? other : x[e];
        dp[e] = high ? x[16 + e] : other;
    }
}

/* Sums over N lanes of N numbers each; lane l ends with number l % N in y[0]: at each step a lane keeps half of its
 * numbers and gives the other half away. */
template <int N> static __device__ __forceinline__ void sum_lanes(float *y) {
    const int lane = lane_of();
#pragma unroll
    for (int n = N / 2; n > 0; n /= 2) {
        const int high = lane & n;
#pragma unroll
        for (int e = 0; e < n; e++) {
            const float give = high ? y[e] : y[e + n], keep = high ? y[e + n] : y[e];
            y[e] = keep + __shfl_xor_sync(~0u, give, n);
        }
    }
}
#if CFG_JOINED
/* Sums of P' over the warp's heads of a query, to the part of dist that these heads have: by entry, or by slot of a
 * list left apart. A query has 64 rows, which are two warps', 32 or 16, half a warp's. */
static __device__ __forceinline__ void store_dist(const struct kp_mla_bwd *p, const struct work *w, int rank, int t,
                                                  const float x[CTA_KEYS]) {
    const struct kp_mla_joined *j = lists_of(p);
    const int lane = lane_of(), half_warps = j->shift == 4;
    const int query = query_of_row(p, rank * CTA_HEADS + score_head()), part = j->shift == 6 ? warp_of() % 2 : 0;
    float y[CTA_KEYS];
#pragma unroll
    for (int e = 0; e < CTA_KEYS; e++) y[e] = x[e];
    if (half_warps)
        sum_lanes<16>(y), sum_lanes<16>(y + 16);
    else
        sum_lanes<32>(y);
    if (w->entries < 0) {
        const int2 tile_in_list = tile_apart(p, w, t);
        if (tile_in_list.x != query) return;
        t = tile_in_list.y;
    }
    float *to = (float *)p->part_dist + ((part * p->n + w->number) * j->group + query) * (j->bits - j->keys);
    to += t * KEYS + score_half() * CTA_KEYS + (half_warps ? lane % 16 : lane);
    to[0] = y[0];
    if (half_warps) to[16] = y[16];
}
#else
/* Sums of P' over the warp's heads, to the part of dist that these heads have. */
static __device__ __forceinline__ void store_dist(const struct kp_mla_bwd *p, const struct work *w, int rank, int t,
                                                  const float x[THREAD_KEYS]) {
    const int lane = lane_of(), part = w->block * 4 + rank * 2 + warp_of() % 2;
    float y[THREAD_KEYS];
#pragma unroll
    for (int e = 0; e < THREAD_KEYS; e++) y[e] = x[e];
    sum_lanes<THREAD_KEYS>(y);
    const int slot = t * KEYS + score_half() * CTA_KEYS + lane;
    if (slot < p->in.topk)
        ((float *)p->part_dist)[((int64_t)part * p->in.batch * p->in.seq_q + w->flat) * p->in.topk + slot] = y[0];
}
#endif

/* 0 if all of them are finite, else NaN. */
static __device__ __forceinline__ float probe(float sum, const uint32_t word[THREAD_KEYS]) {
#pragma unroll
    for (int e = 0; e < THREAD_KEYS; e++) sum = __fmaf_rn(__uint_as_float(word[e]), 0, sum);
    return sum;
}

/* f16: how far below 15 the exponent of the warp's rows must be, bits 8.. of its word, for dS of the tile: |dS| <=
 * |scale| (g |dP| + |shift|). Slots count that are on, and numbers that are finite. */
static __device__ __forceinline__ uint32_t word_of_bound(const uint32_t dp[THREAD_KEYS], uint32_t on, float4 row,
                                                         float scale) {
    float most = 0;
#pragma unroll
    for (int e = 0; e < THREAD_KEYS; e++) most = fmaxf(most, on >> e & 1 ? fabsf(__uint_as_float(dp[e])) : 0);
    if (most == INF) {
        most = 0;
#pragma unroll
        for (int e = 0; e < THREAD_KEYS; e++)
            most = fmaxf(most, on >> e & 1 ? if_finite(fabsf(__uint_as_float(dp[e]))) : 0);
    }
    const float bound = if_finite(__fmaf_rn(row.y, most, fabsf(row.z)) * fabsf(scale));
    const int e = (int)(__reduce_max_sync(~0u, __float_as_uint(bound)) >> 23) - 126; /* bound < 2^e */
    return (uint32_t)min(max(e, 0), 15) << 8;
}
/* f16, 128 heads: what the thread has stored of dS of earlier tiles, the last of which ends at `ds`, by 2^-fall. */
static __device__ __forceinline__ void rescale_stored(uint4 *ds, int tiles, int fall) {
    const uint32_t factor = pack16(KP_F16, power_of_two(-fall), power_of_two(-fall));
#pragma unroll 1
    for (; tiles > 0; tiles--) {
        ds -= DS_STAGE / 16;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const uint4 y = ds[c];
            ds[c] = make_uint4(multiply_f16x2(y.x, factor), multiply_f16x2(y.y, factor), multiply_f16x2(y.z, factor),
                               multiply_f16x2(y.w, factor));
        }
    }
}

/* P of the tile from P', to the CTA that has the keys. done: phases of PDS_EMPTY before it. */
static __device__ __forceinline__ void give_p(uint32_t base, int rank, int half, int head, const float x[THREAD_KEYS],
                                              uint32_t on, float g, uint32_t done) {
    float gx[THREAD_KEYS];
    uint4 y[CHUNKS];
#pragma unroll
    for (int e = 0; e < THREAD_KEYS; e++) gx[e] = on >> e & 1 ? g * x[e] : 0;
    pack_row(y, gx);
    await(base, PDS_EMPTY, done - 1);
    store_row(base + AT_P, rank, half, head, y);
    tell_written(base, P_FULL);
}

/* The four warps of scores: all tiles of a work tile. done: phases of PDS_EMPTY before the work tile. */
static __device__ __forceinline__ void run_scores(const struct kp_mla_bwd_sm100 *all, const struct work *w,
                                                  uint32_t base, uint32_t tm, int rank, uint32_t tile, uint32_t done) {
    const struct kp_mla_bwd *p = &all->bwd;
    const int head = score_head(), half = score_half(), warp = warp_of();
    const uint32_t cells = tm + ((uint32_t)warp << 21);
    float4 row = make_float4(INF, 0, 0, 0);
    const int64_t state = state_of_row(p, w, rank * CTA_HEADS + head);
    if (state >= 0) row = ((const float4 *)p->row_stats)[state];
    const float scale = p->in.scale, g = row.y, shift = row.z;
    const int empty = row.x == INF;
    uint32_t words = 0; /* of the work tile's tiles so far */
    const uint32_t bits = SCATTER_BITS + 8 * (uint32_t)query_of_row(p, rank * CTA_HEADS + head) + 4 * (uint32_t)half;
    /* this CTA's dS of the work tile: [tile][its heads][64 keys] */
    uint4 *ds = (uint4 *)all->ds_data + (int64_t)blockIdx.x * all->tiles * (DS_STAGE / 16) + head * 8 + half * 4 +
                score_key() / 8;
#pragma unroll 1
    for (int t = 0; t < w->tiles; t++, tile++, done++, ds += DS_STAGE / 16) {
        float x[THREAD_KEYS];
        uint32_t word[THREAD_KEYS], dp[THREAD_KEYS];
        uint4 y[CHUNKS];
        await(base, SCATTER_FULL + tile % SCATTER_STAGES, tile / SCATTER_STAGES);
        uint32_t on = empty ? 0 : shared_load32(base + AT_SCATTER + tile % SCATTER_STAGES * SCATTER_STAGE + bits);
        if (STACKED) on >>= score_key();
        tell_read(base, -1, SCATTER_EMPTY + tile % SCATTER_STAGES);
        await(base, S_FULL, tile);
        tc_after();
        if (STACKED) {
            load_both(word, dp, cells);
        } else {
            tc_load32(word, cells + TM_S);
            tc_wait_loads();
        }
        tc_before();
        tell_read(base, 0, S_EMPTY);
        const float scores_probe = JOINED ? probe(0, word) : 0;
#pragma unroll
        for (int e = 0; e < THREAD_KEYS; e++)
            x[e] = on >> e & 1 ? exp2_fast(__fmaf_rn(__uint_as_float(word[e]), p->in.scale_log2, -row.x)) : 0;
        if (!SCALED) give_p(base, rank, half, head, x, on, g, done);
        if (p->part_dist) store_dist(p, w, rank, t, x);
        if (!STACKED) {
            await(base, DP_FULL, tile);
            tc_after();
            tc_load32(dp, cells + TM_DP);
            tc_wait_loads();
            tc_before();
            tell_read(base, 0, DP_EMPTY);
        }
        float unit = scale; /* of dS */
        if (WORDS) {
            uint32_t word = SCALED ? word_of_bound(dp, on, row, scale) : 0;
            if (JOINED && __any_sync(~0u, !empty && probe(scores_probe, dp) != 0)) word |= WORD_ODD;
            leave_word(base, rank, tile, word);
        }
        if (SCALED) {
            const uint32_t before = words;
            words = fold_words(words, exchange_words(base, tile));
            const int fall = exponent_of(before) - exponent_of(words);
            if (!STACKED && fall > 0 && p->dq.data) rescale_stored(ds, t, fall);
            const float up = power_of_two(exponent_of(words));
            unit = scale * up;
            give_p(base, rank, half, head, x, on, g * up, done);
        }
#pragma unroll
        for (int e = 0; e < THREAD_KEYS; e++)
            x[e] = on >> e & 1 ? x[e] * unit * __fmaf_rn(g, __uint_as_float(dp[e]), -shift) : 0;
        pack_row(y, x);
        store_row(base + AT_DS, rank, half, head, y);
        if (STACKED && p->dq.data) store_row_of_ds(base + AT_ROWS_DS, half, head, y);
        tell_ds(base, tile);
        if (!STACKED && p->dq.data) {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) ds[c] = y[c];
        }
    }
    if (STACKED || !p->dq.data) return;
    async_fence_global();
    __syncwarp();
    if (lane_of() == 0) mbar_arrive(at_barrier(base, DS_STORED));
}
#endif
