/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: P of this CTA's 32 keys of a tile, by four warps. A thread has one head. */
#ifndef ATTN_SM100_MLA_FWD_SOFTMAX_H
#define ATTN_SM100_MLA_FWD_SOFTMAX_H
#include "kernels/sm100/mla_fwd/work.h"

/* Scores of the tile: this CTA's columns from tensor memory, the other's from shared memory. */
static __device__ __forceinline__ void load_scores(float s[CTA_KEYS], uint32_t base, uint32_t tm, int rank,
                                                   uint32_t tile) {
    const uint32_t other = base + AT_S + tile % 2 * SCORES + (uint32_t)head_of() * 16;
    uint32_t x[CTA_KEYS];
    await(base, S_FULL + tile % 2, tile / 2);
    tc_after();
    tc_load32(x, tm + quarter_of() + cells_of_keys(tile, rank));
    await_other(base, OTHER_S_FULL + tile % 2, tile / 2);
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 4; c++) {
        const uint4 y = shared_load128(other + c * HEADS * 16);
        const uint32_t word[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 4; e++) s[4 * c + e] = __uint_as_float(x[4 * c + e]) + __uint_as_float(word[e]);
    }
}

/* P relative to the row's offset, which is an integer, so that P may be scaled to another one without rounding. It
 * follows the largest score where that has grown by more than THRESHOLD; a score that is NaN moves nothing. */
static __device__ __forceinline__ void softmax_of(uint32_t p[CTA_KEYS / 2], const float s[CTA_KEYS], uint32_t valid,
                                                  float scale_log2, struct sums *row) {
    float largest = -INF, sum = 0;
#pragma unroll
    for (int e = 0; e < CTA_KEYS; e++) largest = max_nan(largest, valid >> e & 1 ? s[e] * scale_log2 : -INF);
    row->largest = max_nan(row->largest, largest);
    if (largest > row->offset + THRESHOLD) {
        const float offset = rintf(largest);
        row->sum *= exp2_fast(row->offset - offset);
        row->offset = offset;
    }
    const float offset = row->offset == -INF ? 0 : row->offset;
#pragma unroll
    for (int e = 0; e < CTA_KEYS; e += 2) {
        const float low = valid >> e & 1 ? exp2_fast(__fmaf_rn(s[e], scale_log2, -offset)) : 0;
        const float high = valid >> (e + 1) & 1 ? exp2_fast(__fmaf_rn(s[e + 1], scale_log2, -offset)) : 0;
        sum += low, sum += high;
        p[e / 2] = pack16(TYPE, low, high);
    }
    row->sum += sum;
}

/* P to the other CTA, and to this one's correction. */
static __device__ __forceinline__ void give_p(const uint32_t p[CTA_KEYS / 2], float offset, uint32_t base, uint32_t tm,
                                              int rank, uint32_t tile) {
    const uint32_t stage = tile % 2, head = (uint32_t)head_of(), bits = __float_as_uint(offset);
    const uint32_t offsets = base + AT_OFFSETS + stage * 2 * HEADS * 4 + head * 4;
    const uint32_t there = cluster_address(base + AT_P + stage * PROBABILITIES + head * 16, (uint32_t)(1 - rank));
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 8; c++)
        cluster_store128(there + c * HEADS * 16, make_uint4(p[4 * c], p[4 * c + 1], p[4 * c + 2], p[4 * c + 3]));
    cluster_store32(cluster_address(offsets + HEADS * 4, (uint32_t)(1 - rank)), bits);
    tell_written(base, 1 - rank, OTHER_P_FULL + stage);
    tc_store16(tm + quarter_of() + cells_of_keys(tile, rank), p);
    tc_wait_stores();
    tc_before();
    shared_store32(offsets, bits);
    tell_own(base, OWN_P_FULL + stage);
}

/* What the rows' keys of this CTA come to, to both CTAs. */
static __device__ __forceinline__ void give_sums(const struct sums *row, uint32_t base, int rank, uint32_t n) {
    const uint32_t place = base + AT_SUMS + n % 2 * SUMS + (uint32_t)head_of() * 16;
    const uint4 x =
        make_uint4(__float_as_uint(row->offset), __float_as_uint(row->sum), __float_as_uint(row->largest), 0);
    shared_store128(place, x);
    cluster_store128(cluster_address(place + HEADS * 16, (uint32_t)(1 - rank)), x);
    tell_written(base, rank, SUMS_FULL);
    tell_written(base, 1 - rank, SUMS_FULL);
}

static __device__ __forceinline__ void run_softmax(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t tm,
                                                   int rank) {
    const int key = rank * CTA_KEYS + lane_of();
    uint32_t stage = 0, tile = 0, n = 0;
    struct work w;
    for (cursor x = start_cursor(base, 1); next_work(p, &w, x); x = step_cursor(x), n++) {
        struct sums row = {-INF, 0, -INF};
        int next = keys_ahead(p, &w, w.first, key), odd = 0;
        bring_queries(base, tm, stage + 1, 1);
        stage += 2 + (uint32_t)w.tiles;
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, tile++) {
            const uint32_t valid = valid_keys(p, &w, next);
            float s[CTA_KEYS];
            uint32_t y[CTA_KEYS / 2];
            next = keys_ahead(p, &w, w.first + t + 1, key);
            load_scores(s, base, tm, rank, tile);
#if CFG_JOINED
            odd |= hides_odd(p, &w, s, valid);
#endif
            softmax_of(y, s, valid, p->in.scale_log2, &row);
            give_p(y, row.offset, base, tm, rank, tile);
        }
        if (JOINED) leave_odd(p, x, &w, base, rank, n, odd);
        give_sums(&row, base, rank, n);
    }
}
#endif
