/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: from S to P, four warps for each tile of Q. A thread has one row, of which nobody else knows
 * anything. */
#ifndef ATTN_SM100_SDPA_FWD_SOFTMAX_H
#define ATTN_SM100_SDPA_FWD_SOFTMAX_H
#include "kernels/device/f32x2.h"
#include "kernels/sm100/sdpa_fwd/layout.h"

constexpr float LEAST = -126; /* log2 units: smallest factor of a rescale */
constexpr int N_PAIRS = KEYS / 2;

/* m: what P is relative to, in log2 units (-inf: no score yet); l: sum of P. */
struct row {
    float m, l;
};

static __device__ __forceinline__ void load_products(uint32_t x[KEYS], uint32_t cells) {
#pragma unroll
    for (int c = 0; c < KEYS; c += 32) tc_load32(x + c, cells + c);
    tc_wait_loads();
#pragma unroll
    for (int c = 0; c < KEYS; c++) asm volatile("" : "+r"(x[c])); /* the compiler reads them after the wait */
}
/* Pairs of scores in log2 units, relative to the row's m; keys outside lo <= key < hi of the tile become -inf. */
static __device__ __forceinline__ void load_scores(uint64_t y[N_PAIRS], uint32_t cells, float unit, float m, int hides,
                                                   int lo, int hi) {
    uint32_t x[KEYS];
    load_products(x, cells);
    if (hides) {
        const uint32_t hidden = __float_as_uint(unit < 0 ? INF : -INF);
#pragma unroll
        for (int c = 0; c < KEYS; c++) x[c] = c >= lo && c < hi ? x[c] : hidden;
    }
    const float from = m == -INF ? 0 : m;
    const uint64_t units = two_floats(unit, unit), minus = two_floats(-from, -from);
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++)
        y[c] = fma_f32x2(two_floats(__uint_as_float(x[2 * c]), __uint_as_float(x[2 * c + 1])), units, minus);
}
/* The same with softcap. */
static __device__ __forceinline__ void load_capped(const struct kp_sdpa_fwd *p, uint64_t y[N_PAIRS], uint32_t cells,
                                                   float m, int hides, int lo, int hi) {
    const float a = cap_slope(&p->in), unit = unit_of_score(p), minus = m == -INF ? 0 : -m;
    uint32_t x[KEYS];
    load_products(x, cells);
#pragma unroll
    for (int c = 0; c < KEYS; c += 32) {
        const int far = is_far(largest_product<32>(x + c), a);
        if (far) cap_far<32>(x + c, a);
        capped_pairs<32>(y + c / 2, x + c, far, a, unit, minus);
    }
    if (!hides) return;
#pragma unroll
    for (int c = 0; c < KEYS; c += 2) {
        const float2 z = floats_of(y[c / 2]);
        y[c / 2] = two_floats(c >= lo && c < hi ? z.x : -INF, c + 1 >= lo && c + 1 < hi ? z.y : -INF);
    }
}
/* NaN if one is. */
static __device__ __forceinline__ float largest_of(const uint64_t y[N_PAIRS]) {
    float part[4] = {-INF, -INF, -INF, -INF};
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) {
        const float2 z = floats_of(y[c]);
        part[c & 3] = max3_nan(part[c & 3], z.x, z.y);
    }
    return max3_nan(max3_nan(part[0], part[1], part[2]), part[3], part[3]);
}

/* Its stores are waited for with those of P. */
static __device__ __forceinline__ void rescale_output(uint32_t cells, float factor) {
#pragma unroll 1
    for (int c = 0; c < DIM_V; c += 32) {
        uint32_t x[32];
        tc_load32(x, cells + c);
        tc_wait_loads();
#pragma unroll
        for (int e = 0; e < 32; e++) x[e] = __float_as_uint(__uint_as_float(x[e]) * factor);
        tc_store32(cells + c, x);
    }
}

/* The row's m follows its scores y, which count from it afterwards; l and O (unless it has not begun) follow. O stands
 * still: P V of the tile before is complete (unless OWN_P, because S is). Scores that are NaN pass unseen. */
static __device__ __forceinline__ void raise_maximum(uint64_t y[N_PAIRS], struct row *row, uint32_t cells_o,
                                                     int begun) {
    const float from = row->m == -INF ? 0 : row->m;
    float largest = -INF;
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) {
        const float2 z = floats_of(y[c]);
        largest = fmaxf(largest, fmaxf(z.x, z.y));
    }
    largest = fmaxf(largest + from, row->m);
    const float growth = exp2_fast(fmaxf(row->m - largest, LEAST)); /* at least 2^LEAST: an infinity stays one */
    const float rise = largest == -INF ? 0 : largest - from;
    const uint64_t minus = two_floats(-rise, -rise);
#pragma unroll
    for (int c = 0; c < N_PAIRS; c++) y[c] = add_f32x2(y[c], minus);
    row->m = largest;
    row->l *= growth;
    if (begun) rescale_output(cells_o, growth);
}

/* P of 32 keys, in f32 and rounded; POLY of 16 pairs on FMA units, the rest by ex2. */
template <int POLY>
static __device__ __forceinline__ void exponentials(uint32_t p[16], const uint64_t y[16], uint64_t sum[2]) {
#pragma unroll
    for (int c = 0; c < 16; c++) {
        const float2 z = floats_of(y[c]);
        float2 e;
        if (c * POLY % 16 < POLY)
            e = exp2_polynomial(z);
        else
            e = make_float2(exp2_fast(z.x), exp2_fast(z.y));
        sum[c & 1] = add_f32x2(sum[c & 1], two_floats(e.x, e.y));
        p[c] = pack16(TYPE, e.x, e.y);
    }
}
/* P of the tile to tensor memory; its sum. */
template <int POLY>
static __device__ __forceinline__ float give_p(const uint64_t y[N_PAIRS], uint32_t base, uint32_t cells, int half) {
    uint64_t sum[2] = {0, 0};
#pragma unroll
    for (int c = 0; c < KEYS / 32; c++) {
        uint32_t p[16];
        exponentials<POLY>(p, y + 16 * c, sum);
        tc_store16(cells + 16 * c, p);
        if (32 * (c + 1) != EARLY_KEYS && 32 * (c + 1) != KEYS) continue;
        tc_wait_stores();
        tc_before();
        tell_products(base, (32 * (c + 1) == KEYS ? P_REST : P_FULL) + half);
    }
    const float2 z = floats_of(add_f32x2(sum[0], sum[1]));
    return z.x + z.y;
}

/* Tile number t (its parity) of the tile of Q; lo, hi: keys of it that the row sees. */
static __device__ __forceinline__ void softmax_tile(const struct kp_sdpa_fwd *p, struct row *row, uint32_t base,
                                                    uint32_t tm, int half, uint32_t t, float unit, int begun, int hides,
                                                    int lo, int hi) {
    const uint32_t lanes = tm + quarter_of();
    uint64_t y[N_PAIRS];
    await(base, S_FULL + half, t);
    tc_after();
    if (SCORE_MOD)
        load_capped(p, y, lanes + TM_S + half * KEYS, row->m, hides, lo, hi);
    else
        load_scores(y, lanes + TM_S + half * KEYS, unit, row->m, hides, lo, hi);
    if (OWN_P) {
        tc_before();
        tell(base, S_EMPTY + half);
    }
    const int grows = __any_sync(~0u, row->m == -INF || !(largest_of(y) <= p->slack));
    if (OWN_P) {
        await(base, P_EMPTY + half, t - 1);
        tc_after();
    }
    if (grows) raise_maximum(y, row, lanes + TM_O + half * STEP_O, begun);
    if (grows || hides) /* scores of any value: ex2 alone */
        row->l += give_p<0>(y, base, lanes + TM_P + half * STEP_P, half);
    else
        row->l += give_p<POLYNOMIAL>(y, base, lanes + TM_P + half * STEP_P, half);
}

static __device__ __forceinline__ void run_softmax(const struct kp_sdpa_fwd *p, uint32_t base, int half) {
    const uint32_t tm = shared_load32(base + AT_SLOT);
    const float unit = SCORE_MOD ? 1 : unit_of_score(p);
    uint32_t turns = 0; /* parities: bit 0 of tiles, bit 16 of sums handed over */
    struct work w;
#pragma unroll 1
    for (uint32_t n = 0; take_work(base, n, &w); n++) {
        const struct span s = span_of(p, &w, half);
        const int i = first_row(&w, half) + (int)threadIdx.x % HALF; /* rows past the end are not looked at */
        const int lo = first_key(p, &w, i), hi = end_key(p, &w, i);
        struct row row = {-INF, 0};
        tell(base, WORK_EMPTY + n % 2);
#pragma unroll 1
        for (int x = 0; x < s.n; x++, turns ^= 1) {
            const int key = (s.first + s.n - 1 - x) * KEYS, hides = __any_sync(~0u, key < lo || key + KEYS > hi);
            softmax_tile(p, &row, base, tm, half, turns, unit, x > 0, hides, lo - key, hi - key);
        }
        if (s.n == 0) continue;
        await(base, (PAIR ? SUMS_EMPTY : O_EMPTY) + half, (turns >> 16) - 1);
        turns ^= 1u << 16;
        shared_store32x2(base + AT_SUMS + (uint32_t)recompute((int)threadIdx.x) * 8, __float_as_uint(row.m),
                         __float_as_uint(row.l));
        tell(base, SUMS_FULL + half);
    }
}
#endif
