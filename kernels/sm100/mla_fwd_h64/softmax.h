/* SPDX-License-Identifier: MIT
 * Part of mla_fwd_h64.cu: P of a tile, by four warps. A warp has 16 heads; four threads share rows g and 8 + g of them
 * (g: lane / 4) and have keys 8 n + 2 (lane % 4) + e of each: score 4 n + 2 k + e is that of row g + 8 k. */
#ifndef ATTN_SM100_MLA_FWD_H64_SOFTMAX_H
#define ATTN_SM100_MLA_FWD_H64_SOFTMAX_H
#include "kernels/sm100/mla_fwd_h64/layout.h"

/* Scores of the tile: two sums. */
static __device__ __forceinline__ void load_scores(float s[32], uint32_t base, uint32_t tm, uint32_t tile) {
    const uint32_t cells = tm + quarter_of() + TM_S;
    uint32_t x[32], y[32];
    await(base, S_FULL, tile);
    tc_after();
    tc_load_16x64(x, cells);
    tc_load_16x64(y, cells + OTHER_LANES);
    tc_wait_loads();
    tc_before();
    tell(base, S_EMPTY);
#pragma unroll
    for (int e = 0; e < 32; e++) s[e] = __uint_as_float(x[e]) + __uint_as_float(y[e]);
}

/* Bits of the thread's slots of the first 32 of a tile, and of the others, whose half tile was `stage` of the ring. */
static __device__ __forceinline__ uint2 load_valid(uint32_t base, uint32_t stage) {
    await(base, K_FULL + stage % RING, stage / RING); /* done, as S is: who copies has written them before */
    const uint2 x = shared_load32x2(base + AT_VALID + stage % RING * 4);
    return make_uint2(x.x >> 2 * (lane_of() % 4), x.y >> 2 * (lane_of() % 4));
}

/* The four threads of a row. */
static __device__ __forceinline__ float row_largest(float x) {
    x = max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return max_nan(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* The rows' offsets follow the largest score where that has grown by more than THRESHOLD, and go to correction; a score
 * that is NaN moves nothing. bit(n, e): the slot is valid. */
template <class Bit>
static __device__ __forceinline__ void move_offsets(const float s[32], Bit bit, float scale_log2, struct sums row[2],
                                                    uint32_t base, uint32_t tile) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float largest = -INF;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                largest = max_nan(largest, bit(n, e) ? s[4 * n + 2 * k + e] * scale_log2 : -INF);
        largest = row_largest(largest);
        row[k].largest = max_nan(row[k].largest, largest);
        if (largest > row[k].offset + THRESHOLD) {
            const float offset = rintf(largest);
            row[k].sum *= exp2_fast(row[k].offset - offset);
            row[k].offset = offset;
        }
        if (lane_of() % 4 == 0)
            shared_store32(base + AT_OFFSETS +
                               (tile % 2 * HEADS + (uint32_t)(16 * warp_of() + 8 * k + lane_of() / 4)) * 4,
                           __float_as_uint(row[k].offset));
    }
    tell(base, OFFSETS_FULL + tile % 2);
}

/* P relative to the rows' offsets: pair 2 n + k. */
template <class Bit>
static __device__ __forceinline__ void make_p(uint32_t p[16], const float s[32], Bit bit, float scale_log2,
                                              struct sums row[2]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float offset = row[k].offset == -INF ? 0 : row[k].offset;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float low = bit(n, 0) ? exp2_fast(__fmaf_rn(s[4 * n + 2 * k], scale_log2, -offset)) : 0;
            const float high = bit(n, 1) ? exp2_fast(__fmaf_rn(s[4 * n + 2 * k + 1], scale_log2, -offset)) : 0;
            sum += low, sum += high;
            p[2 * n + k] = pack16(TYPE, low, high);
        }
        row[k].sum += sum;
    }
}
static __device__ __forceinline__ void store_p(const uint32_t p[16], uint32_t base, uint32_t tile) {
    const uint32_t lane = (uint32_t)lane_of(), head = 16 * (uint32_t)warp_of() + lane % 16;
    const uint32_t to = base + AT_P + tile % 2 * PROBABILITIES + lane / 16 * (HEADS * 16) + head * 16;
#pragma unroll
    for (int n = 0; n < 8; n += 2) store_matrix4(to + (uint32_t)n * (HEADS * 16), p + 2 * n);
    tell_written(base, P_FULL + tile % 2);
}

/* What the rows come to. */
static __device__ __forceinline__ void give_sums(const struct sums row[2], uint32_t base, uint32_t n) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float sum = row_sum(row[k].sum);
        const uint32_t head = (uint32_t)(16 * warp_of() + 8 * k + lane_of() / 4);
        if (lane_of() % 4 == 0)
            shared_store128(
                base + AT_SUMS + n % 2 * SUMS + head * 16,
                make_uint4(__float_as_uint(row[k].offset), __float_as_uint(sum), __float_as_uint(row[k].largest), 0));
    }
    tell(base, SUMS_FULL + n % 2);
}

static __device__ __forceinline__ void run_softmax(const struct kp_mla_fwd_sm100 *p, uint32_t base, uint32_t tm) {
    uint32_t stage = 0, tile = 0, n = 0;
    struct work w;
    for (cursor x = start_cursor(base, 0); next_work(p, &w, x); x = step_cursor(x), n++) {
        struct sums row[2] = {{-INF, 0, -INF}, {-INF, 0, -INF}};
        stage += 2;
#pragma unroll 1
        for (int t = 0; t < w.tiles; t++, tile++, stage += 2) {
            float s[32];
            uint32_t y[16];
            load_scores(s, base, tm, tile);
            const uint2 valid = load_valid(base, stage);
            const auto bit = [valid](int n8, int e) { return (n8 < 4 ? valid.x : valid.y) >> (8 * (n8 % 4) + e) & 1; };
            move_offsets(s, bit, p->in.scale_log2, row, base, tile);
            make_p(y, s, bit, p->in.scale_log2, row);
            store_p(y, base, tile);
        }
        give_sums(row, base, n);
    }
}
#endif
