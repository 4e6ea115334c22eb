/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: four warps that write results while the others work on the next work tile. A thread has a row of
 * each tile of Q. They also clear rows of V past the sequence's keys. */
#ifndef ATTN_SM100_SDPA_FWD_OUTPUT_H
#define ATTN_SM100_SDPA_FWD_OUTPUT_H
#include "kernels/sm100/sdpa_fwd/layout.h"

/* V of the first tile at work, from slice `slice` on: rows from `valid` on become zeros. Work tile n. */
static __device__ __forceinline__ void clear_tail(uint32_t base, uint32_t slice, int valid, uint32_t n) {
    if (PAIR) await(base, TAIL_FULL + n % 2, n / 2);
#pragma unroll
    for (int x = 0; x < SLICES_V; x++) {
        const uint32_t values = ring_slice(base, slice + x);
        const int keys = KEYS / CTAS, from = PAIR ? max(valid - x * keys, 0) : valid;
        if (!PAIR) await_slice(base, SLICE_FULL, slice + x);
#pragma unroll 1
        for (int y = (int)threadIdx.x % 128; y < (keys - from) * 8; y += 128)
            shared_store128(values + (from + y / 8) * 128 + y % 8 * 16, make_uint4(0, 0, 0, 0));
    }
    tell_written(base, V_CLEARED);
}

/* 32 columns, of which `left` exist, of a row times factor, rounded; rows are aligned to 16 bytes. Returns 0, or NaN if
 * a number is not finite. */
static __device__ __forceinline__ float store_columns(uint16_t *to, const uint32_t x[32], float factor, int left) {
    float zero = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t y[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float a = factor < 0 ? 0 : __uint_as_float(x[8 * c + 2 * e]) * factor,
                        b = factor < 0 ? 0 : __uint_as_float(x[8 * c + 2 * e + 1]) * factor;
            zero = __fmaf_rn(a, 0, __fmaf_rn(b, 0, zero));
            y[e] = pack16(TYPE, a, b);
        }
        if (left >= 8 * c + 8)
            *(uint4 *)(to + 8 * c) = make_uint4(y[0], y[1], y[2], y[3]);
        else
#pragma unroll
            for (int e = 0; e < 7; e++)
                if (8 * c + e < left) to[8 * c + e] = (uint16_t)(y[e / 2] >> (e % 2 * 16));
    }
    return zero;
}

/* A warp, after its stores: rows whose lanes have found a number that is not finite. */
static __device__ __forceinline__ void mend_rows(const struct kp_sdpa_fwd *p, uint32_t place, int half,
                                                 uint32_t nonfinite, float m, float factor) {
    const struct work w = recall_work(place);
    const float unit = unit_of_score(p);
    const int i0 = first_row(&w, half) + 32 * (warp_of() % 4);
#pragma unroll 1
    for (int r = 0; r < 32; r++) {
        const float m_row = __shfl_sync(~0u, m, r), f = __shfl_sync(~0u, factor, r);
        if (nonfinite >> r & 1) recompute_if_hidden<numbers16<TYPE>>(p, &w, i0 + r, m_row, f, unit);
    }
}

/* Rows of one tile of Q of the work tile that stands at `place`; begun: O has something. */
static __device__ __forceinline__ void finish(const struct kp_sdpa_fwd *p, uint32_t place, uint32_t base, uint32_t tm,
                                              int half, int begun) {
    const struct work w = recall_work(place);
    const uint32_t line = HALF * half + threadIdx.x % HALF, cells = tm + quarter_of() + TM_O + half * STEP_O;
    const int i = first_row(&w, half) + (int)(threadIdx.x % HALF), exists = i < w.seq.rows;
    float m = -INF, l = 0, zero = 0;
    if (begun) {
        const uint2 x = shared_load32x2(base + AT_SUMS + line * 8);
        m = __uint_as_float(x.x), l = __uint_as_float(x.y);
    }
    const float factor = finish_row(p, &w, i, m, l, 1);
    uint16_t *to = (uint16_t *)p->out.data + row_at(&w, &p->out, i);
#pragma unroll 1
    for (int c = 0; c < DIM_V; c += 32) {
        uint32_t x[32];
        if (begun) {
            tc_load32(x, cells + c);
            tc_wait_loads();
        }
        if (exists) zero += store_columns(to + c, x, begun ? factor : -1, p->in.dim_v - c);
    }
    if (begun) {
        tc_before();
        tell_products(base, O_EMPTY + half);
        if (PAIR) tell(base, SUMS_EMPTY + half);
    }
    const uint32_t nonfinite = __ballot_sync(~0u, zero != 0 && i < w.seq.sq);
    if (nonfinite) mend_rows(p, place, half, nonfinite, m, factor);
}

static __device__ __forceinline__ void run_output(const struct kp_sdpa_fwd *p, uint32_t base) {
    const uint32_t tm = shared_load32(base + AT_SLOT);
    uint32_t slice = 0, outputs = 0; /* outputs: parities of both tiles of Q, bits 0 and 16 */
    struct work w;
#pragma unroll 1
    for (uint32_t n = 0; take_work(base, n, &w); n++) {
        const uint32_t place = base + AT_WORK + n % 2 * 64;
        const int begun[2] = {span_of(p, &w, 0).n > 0, span_of(p, &w, 1).n > 0};
        if (clears_tail(p, &w)) clear_tail(base, slice + SLICES_K, w.seq.sk - last_tile(&w) * KEYS, n);
        slice += (uint32_t)w.n_tiles * SLICES;
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const int begins = half ? begun[1] : begun[0];
            if (begins) {
                await(base, SUMS_FULL + half, outputs >> 16 * half);
                await(base, O_FULL + half, outputs >> 16 * half);
                outputs ^= 1u << 16 * half;
                tc_after();
            }
            finish(p, place, base, tm, half, begins);
        }
        tell(base, WORK_EMPTY + n % 2);
    }
}
#endif
