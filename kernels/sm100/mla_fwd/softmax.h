/* SPDX-License-Identifier: MIT
 * Part of mla_fwd.cu: P of this CTA's 32 keys of a tile, by four warps. A thread has one head. */
#ifndef ATTN_SM100_MLA_FWD_SOFTMAX_H
#define ATTN_SM100_MLA_FWD_SOFTMAX_H
#include "kernels/device/f32x2.h"
#include "kernels/sm100/mla_fwd/work.h"

constexpr int N_PAIRS = CTA_KEYS / 2;

/* This CTA's columns of the scores of the other's keys, to the other CTA. */
static __device__ __forceinline__ void send_scores(uint32_t base, uint32_t tm, int rank, uint32_t tile) {
    uint32_t x[CTA_KEYS];
    const uint32_t there =
        cluster_address(base + AT_S + tile % 2 * SCORES + (uint32_t)head_of() * 16, (uint32_t)(1 - rank));
    tc_load32(x, tm + quarter_of() + cells_of_keys(tile, 1 - rank));
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 4; c++)
        cluster_store128(there + c * HEADS * 16, make_uint4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]));
    tell_written(base, 1 - rank, OTHER_S_FULL + tile % 2);
}
/* Scores of the tile in log2 units, relative to `from`: this CTA's columns from tensor memory, the other's from shared
 * memory. */
static __device__ __forceinline__ void load_scores(uint64_t s[N_PAIRS], uint32_t base, uint32_t tm, int rank,
                                                   uint32_t tile, float scale_log2, float from) {
    const uint32_t other = base + AT_S + tile % 2 * SCORES + (uint32_t)head_of() * 16;
    const uint64_t units = two_floats(scale_log2, scale_log2), minus = two_floats(-from, -from);
    uint32_t x[CTA_KEYS];
    await(base, S_FULL + tile % 2, tile / 2);
    tc_after();
    send_scores(base, tm, rank, tile);
    tc_load32(x, tm + quarter_of() + cells_of_keys(tile, rank));
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < CTA_KEYS; c++) asm volatile("" : "+r"(x[c])); /* the compiler reads them after the wait */
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) {
        s[c] = fma_f32x2(two_floats(__uint_as_float(x[2 * c]), __uint_as_float(x[2 * c + 1])), units, minus);
        asm volatile("" : "+l"(s[c])); /* while the other's are on their way */
    }
    await_other(base, OTHER_S_FULL + tile % 2, tile / 2);
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 4; c++) {
        const uint4 y = shared_load128(other + c * HEADS * 16);
        s[2 * c] = fma_f32x2(two_floats(__uint_as_float(y.x), __uint_as_float(y.y)), units, s[2 * c]);
        s[2 * c + 1] = fma_f32x2(two_floats(__uint_as_float(y.z), __uint_as_float(y.w)), units, s[2 * c + 1]);
    }
}
/* -inf where a key is not valid. */
static __device__ __forceinline__ void hide_scores(uint64_t s[N_PAIRS], uint32_t valid) {
    if (valid == ~0u) return;
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) {
        const float2 z = floats_of(s[c]);
        s[c] = two_floats(valid >> 2 * c & 1 ? z.x : -INF, valid >> (2 * c + 1) & 1 ? z.y : -INF);
    }
}
/* NaN if one is. */
static __device__ __forceinline__ float largest_of(const uint64_t s[N_PAIRS]) {
    float part[4] = {-INF, -INF, -INF, -INF};
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) {
        const float2 z = floats_of(s[c]);
        part[c & 3] = max3_nan(part[c & 3], z.x, z.y);
    }
    return max3_nan(max3_nan(part[0], part[1], part[2]), part[3], part[3]);
}
/* What scores of the row come relative to; an offset of +inf, which has made NaN of P, is not subtracted again. */
static __device__ __forceinline__ float base_of(const struct sums *row) {
    return fabsf(row->offset) < INF ? row->offset : 0;
}
/* P relative to the row's offset, which is an integer, so that P may be scaled to another one without rounding. It
 * follows the largest score where that has grown by more than THRESHOLD; a score that is NaN moves nothing. Scores come
 * relative to the offset as it was. Returns whether it has moved. */
static __device__ __forceinline__ int softmax_of(uint32_t p[N_PAIRS], uint64_t s[N_PAIRS], struct sums *row) {
    const float before = base_of(row), largest = largest_of(s) + before;
    const int moves = largest > row->offset + THRESHOLD;
    uint64_t sum[2] = {0, 0};
    row->largest = max_nan(row->largest, largest);
    if (moves) {
        const float offset = rintf(largest);
        const uint64_t shift = two_floats(before - offset, before - offset);
#pragma unroll
        for (int c = 0; c < N_PAIRS; c++) s[c] = add_f32x2(s[c], shift);
        row->sum *= exp2_fast(row->offset - offset);
        row->offset = offset;
    }
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) {
        const float2 z = floats_of(s[c]);
        const float low = exp2_fast(z.x), high = exp2_fast(z.y);
        sum[c & 1] = add_f32x2(sum[c & 1], two_floats(low, high));
        p[c] = pack16(TYPE, low, high);
    }
    const float2 z = floats_of(add_f32x2(sum[0], sum[1]));
    row->sum += z.x + z.y;
    return moves;
}

/* P to the other CTA, and to this one's correction; its offset where that has moved. */
static __device__ __forceinline__ void give_p(uint32_t p[N_PAIRS], float offset, int moved, uint32_t base, uint32_t tm,
                                              int rank, uint32_t tile) {
    const uint32_t stage = tile % 2, head = (uint32_t)head_of(), bits = __float_as_uint(offset);
    const uint32_t offsets = base + AT_OFFSETS + stage * 2 * HEADS * 4 + head * 4;
    const uint32_t there = cluster_address(base + AT_P + stage * PROBABILITIES + head * 16, (uint32_t)(1 - rank));
    p[0] = (p[0] & ~MOVED) | (moved ? MOVED : 0);
#pragma unroll
    for (int c = 0; c < CTA_KEYS / 8; c++)
        cluster_store128(there + c * HEADS * 16, make_uint4(p[4 * c], p[4 * c + 1], p[4 * c + 2], p[4 * c + 3]));
    if (moved) cluster_store32(cluster_address(offsets + HEADS * 4, (uint32_t)(1 - rank)), bits);
    tell_written(base, 1 - rank, OTHER_P_FULL + stage);
    tc_store16(tm + quarter_of() + cells_of_keys(tile, rank), p);
    tc_wait_stores();
    tc_before();
    if (moved) shared_store32(offsets, bits);
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
    uint32_t stage = 0, tile = 0, n = 0;
    struct work w;
    for (cursor x = start_cursor(base, 1); next_work(p, &w, x); x = step_cursor(x), n++) {
        struct sums row = {-INF, 0, -INF};
        int odd = 0;
        bring_queries(base, tm, stage + 1, 1);
        stage += 2;
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, tile++, stage++) {
            uint64_t s[N_PAIRS];
            uint32_t y[N_PAIRS];
            await(base, K_FULL + stage % RING, stage / RING);
            const uint32_t valid = shared_load32(at_valid(base, stage) + 4 * place_of_word(p));
            await(base, P_FULL + tile % 2, tile / 2 - 1);
            load_scores(s, base, tm, rank, tile, p->in.scale_log2, base_of(&row));
#if CFG_JOINED
            odd |= hides_odd(p, &w, s, valid);
#endif
            hide_scores(s, valid);
            const int moved = softmax_of(y, s, &row);
            give_p(y, row.offset, moved, base, tm, rank, tile);
        }
        if (JOINED) leave_odd(p, x, &w, base, rank, n, odd);
        give_sums(&row, base, rank, n);
    }
}
#endif
