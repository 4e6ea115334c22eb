/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu and sdpa_bwd_bias.cu: from the two products of a tile to P and dS, cell by cell. The includer has
 * defined TYPE, S_M, S_N, the offsets LSE, SHIFT, SHARE, BAD_KEYS, BAD_ROWS and lane_of().
 *
 * Lane 4 g + t holds of accumulator tile x, n: keys 16 x + 8 r + g, queries 8 n + 2 t + e, at [x][n][2 r + e]. */
#ifndef ATTN_SM80_SDPA_BWD_CELLS_H
#define ATTN_SM80_SDPA_BWD_CELLS_H

/* The part of a tile that the warp computes: first key and first query, from the tile's and of the sequence. */
struct part {
    int key, row; /* in the tile */
    int j, i;     /* in the sequence */
};

/* Rule 5 as one compare: a cell is visible iff (unsigned)(place + 16 x + 8 r - 8 n - e) <= span. place is per lane and
 * r, x; for a key that does not exist it is out of reach. */
constexpr uint32_t NOWHERE = 0xc0000000u;

static __device__ __forceinline__ uint32_t place_of(const struct kp_sdpa *p, struct part part, int off, int sk, int x,
                                                    int r) {
    const int j = part.j + 16 * x + 8 * r + (lane_of() >> 2), i = part.i + 2 * (lane_of() & 3);
    return j < sk ? (uint32_t)(j - i - off + p->window_left) : NOWHERE;
}

/* What a zeroed key stands for: probability 0 to a row whose lse is finite (its score was -inf), NaN to a row of NaN.
 */
static __device__ __forceinline__ float bad_key_share(float lse) { return lse == INF ? 0 : 0 * lse; }
static __device__ __forceinline__ int is_bad_key(uint32_t base, int key) {
    return (int)(shared_load32(base + BAD_KEYS + 4 * (key >> 5)) >> (key & 31) & 1);
}
/* It asks for is_bad_key. */
#include "kernels/device/sdpa_bwd_infinite.h"
/* Was the query row zeroed for its own sake? Asked only of rows whose lse is NaN. */
static __device__ __forceinline__ int is_bad_row(uint32_t base, int row) {
    return (int)(shared_load32(base + BAD_ROWS + 4 * (row >> 5)) >> (row & 31) & 1);
}

/* dP starts at -shift times the factor of V, so that the product gives dP - shift times that factor. */
static __device__ __forceinline__ void start_dp(uint32_t base, struct part part, float factor, float rD[S_M][S_N][4]) {
#pragma unroll
    for (int n = 0; n < S_N; n++) {
        float2 shift = shared_load_pair(base + SHIFT + 4 * (part.row + 8 * n + 2 * (lane_of() & 3)));
        shift.x *= factor, shift.y *= factor;
#pragma unroll
        for (int x = 0; x < S_M; x++) rD[x][n][0] = rD[x][n][2] = -shift.x, rD[x][n][1] = rD[x][n][3] = -shift.y;
    }
}

/* Plain variants: raw products to P. */
static __device__ __forceinline__ void plain_cells(const struct kp_sdpa *p, uint32_t base, struct part part,
                                                   float rS[S_M][S_N][4]) {
    const float unit = p->scale * LOG2E;
#pragma unroll
    for (int n = 0; n < S_N; n++) {
        const float2 lse = shared_load_pair(base + LSE + 4 * (part.row + 8 * n + 2 * (lane_of() & 3)));
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int c = 0; c < 4; c++) rS[x][n][c] = exp2_fast(__fmaf_rn(rS[x][n][c], unit, c & 1 ? -lse.y : -lse.x));
    }
}

/* Plain variants, tiles with hidden cells: set these to 0. Those of rows past the end are hidden, too: their P and dO
 * are 0, but a key that no query sees may lie in the triangle that they would see, and 0 times its NaN in V is no 0. */
static __device__ __forceinline__ void hide_cells(const struct kp_sdpa *p, uint32_t base, struct part part, int off,
                                                  struct sequence seq, int bad_keys, float rS[S_M][S_N][4],
                                                  float rD[S_M][S_N][4]) {
    const uint32_t span = (uint32_t)p->window_left + (uint32_t)p->window_right;
    const int rows = seq.sq - part.i - 2 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t place = place_of(p, part, off, seq.sk, x, r);
            const int bad = bad_keys && is_bad_key(base, part.key + 16 * x + 8 * r + (lane_of() >> 2));
#pragma unroll
            for (int n = 0; n < S_N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (bad) {
                        const float2 lse = shared_load_pair(base + LSE + 4 * (part.row + 8 * n + 2 * (lane_of() & 3)));
                        rS[x][n][2 * r + e] = rD[x][n][2 * r + e] = bad_key_share(e ? lse.y : lse.x);
                    }
                    if (place - (uint32_t)(8 * n + e) > span || 8 * n + e >= rows)
                        rS[x][n][2 * r + e] = rD[x][n][2 * r + e] = 0;
                }
        }
}

/* What a full variant adds to the scores of one head. */
struct bias {
    float slope;
    int64_t mask; /* element index of query 0, key 0 */
};
static __device__ __forceinline__ struct bias bias_of(const struct kp_sdpa *p, int b, int head) {
    struct bias x;
    x.slope = p->alibi_form ? ((const float *)p->alibi)[b * p->alibi_batch + head * p->alibi_head] : 0;
    x.mask = b * p->mask.batch + head * p->mask.head;
    return x;
}
/* What a mask adds to the score of a cell. dtype: KP_BOOL, KP_F32 or, for both types of 16 bits, 0. */
static __device__ __forceinline__ float mask_of(const struct kp_sdpa *p, int64_t cell, int dtype) {
    if (dtype == KP_BOOL) return ((const uint8_t *)p->mask.data)[cell] ? 0 : -INF;
    if (dtype == KP_F32) return ((const float *)p->mask.data)[cell];
    return unpack16(p->mask.dtype, ((const uint16_t *)p->mask.data)[cell]);
}

/* A lane's cells: keys j0 + 16 x + 8 r, queries i0 + 8 n + e. */
static __device__ __forceinline__ int first_key(struct part part) { return part.j + (lane_of() >> 2); }
static __device__ __forceinline__ int first_row(struct part part) { return part.i + 2 * (lane_of() & 3); }
static __device__ __forceinline__ float2 stats_of(uint32_t base, int stat, struct part part, int n) {
    return shared_load_pair(base + stat + 4 * (part.row + 8 * n + 2 * (lane_of() & 3)));
}

/* Full variants, tiles with a key that is not finite or with special rows: products as the contract has them, of rows
 * whose lse is finite. With softcap infinite ones of stand-ins (sdpa_bwd_infinite.h), else -inf for the score: +inf and
 * NaN would be in the row's lse. */
static __device__ __forceinline__ void replace_products(const struct kp_sdpa *p, uint32_t base, struct part part,
                                                        int bad_keys, float rS[S_M][S_N][4]) {
    const int caps = p->softcap > 0;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int bad = bad_keys && is_bad_key(base, part.key + 16 * x + 8 * r + (lane_of() >> 2));
#pragma unroll
            for (int n = 0; n < S_N; n++) {
                const float2 shift = stats_of(base, SHIFT, part, n);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float *s = &rS[x][n][2 * r + e];
                    if (caps && (bad || is_marked(e ? shift.y : shift.x))) *s = infinite_like(*s);
                    if (!caps && bad) *s = p->scale < 0 ? INF : -INF;
                }
            }
        }
}

/* Products s to t = tanh(scale s / softcap). Caps are mostly larger than the scores: where all of a warp are below 0.35
 * of it t = s (a + u q(u)), u = s^2, a = scale / softcap, q of degree 2 with the least largest relative error, 4.1e-8;
 * its coefficients have powers of a to the seventh. Else 1 - 2 / (e^2x + 1) beyond TANH_SMALL, within 2^-22. */
static __device__ __forceinline__ void cap_products(const struct kp_sdpa *p, float rS[S_M][S_N][4]) {
    constexpr float SMALL = 0.35f;
    const float a = p->scale * p->softcap_inverse;
    float largest = 0;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) largest = fmaxf(largest, fabsf(rS[x][n][c]));
    const int usual = fabsf(a) >= 1e-5f && fabsf(a) <= 1e5f;
    if (__any_sync(~0u, !usual || largest * fabsf(a) > SMALL)) {
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int n = 0; n < S_N; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float y = p->scale * rS[x][n][c] * p->softcap_inverse;
                    float whole;
                    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(whole) : "f"(exp2_fast(2 * LOG2E * fabsf(y)) + 1));
                    rS[x][n][c] = fabsf(y) <= TANH_SMALL ? tanh_small(y) : copysignf(__fmaf_rn(-2, whole, 1), y);
                }
        return;
    }
    const float a2 = a * a, c1 = -0.33332663f * a2 * a, c2 = 0.13299825f * a2 * a2 * a,
                c3 = -0.0491485f * a2 * a2 * a2 * a;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float u = rS[x][n][c] * rS[x][n][c];
                rS[x][n][c] *= __fmaf_rn(u, __fmaf_rn(u, __fmaf_rn(u, c3, c2), c1), a);
            }
}

/* Rule 5, and rows that are empty or past the end: scores of -inf. Returns the others, a bit each. */
static __device__ __forceinline__ constexpr int bit_of(int x, int n, int c) { return (x * S_N + n) * 4 + c; }
static __device__ __forceinline__ uint32_t hide_scores(const struct kp_sdpa *p, uint32_t base, struct part part,
                                                       int off, int sk, float rS[S_M][S_N][4]) {
    const uint32_t span = (uint32_t)p->window_left + (uint32_t)p->window_right;
    uint32_t on = 0;
    static_assert(S_M * S_N * 4 <= 32, "a bit each");
#pragma unroll
    for (int n = 0; n < S_N; n++) {
        const float2 lse = stats_of(base, LSE, part, n);
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint32_t place = place_of(p, part, off, sk, x, c / 2) - (uint32_t)(8 * n + c % 2);
                if (place > span || (c & 1 ? lse.y : lse.x) >= PAST_END)
                    rS[x][n][c] = -INF;
                else
                    on |= 1u << bit_of(x, n, c);
            }
    }
    return on;
}
/* FORM: ATTN_ALIBI_*. distance: of the lane's first cell. */
template <int FORM> static __device__ __forceinline__ void add_alibi(float slope, int distance, float rS[S_M][S_N][4]) {
    const float first = (float)distance;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float d = first + (float)(16 * x + c / 2 * 8 - 8 * n - c % 2);
                rS[x][n][c] += slope * (FORM == 1 ? d : -fabsf(d));
            }
}
/* Cells that rule 5 hides are not read. */
template <int DTYPE>
static __device__ __forceinline__ void add_mask(const struct kp_sdpa *p, struct part part, int64_t mask, uint32_t on,
                                                float rS[S_M][S_N][4]) {
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t cells = mask + (int64_t)(first_key(part) + 16 * x + 8 * r) * p->mask.column;
#pragma unroll
            for (int n = 0; n < S_N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int64_t cell = cells + (int64_t)(first_row(part) + 8 * n + e) * p->mask.row;
                    if (!(on >> bit_of(x, n, 2 * r + e) & 1)) continue;
                    const float added = mask_of(p, cell, DTYPE);
                    rS[x][n][2 * r + e] = DTYPE == KP_BOOL && added != 0 ? -INF : rS[x][n][2 * r + e] + added;
                }
        }
}

/* Full variants: rS raw products to P, rD = dP to dS times `factor`; CLEANED: for dQ and dK, with the derivative of the
 * softcap, from tiles in which bad keys and rows are zeroed (settle_stored has the last word); else for the bias, from
 * tiles as they are. In the order of the contract's five steps; hidden cells, whose scores are -inf, give 0 whatever
 * their products are. clear: rule 5 hides none, and all rows are ordinary. */
template <int CLEANED>
static __device__ __forceinline__ void full_cells(const struct kp_sdpa *p, uint32_t base, struct part part, int off,
                                                  int sk, int clear, const struct bias *bias, float factor,
                                                  float rS[S_M][S_N][4], float rD[S_M][S_N][4]) {
#pragma unroll
    for (int n = 0; n < S_N; n++) {
        const float2 shift = stats_of(base, SHIFT, part, n), share = stats_of(base, SHARE, part, n);
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                rD[x][n][c] = (c & 1 ? share.y : share.x) * rD[x][n][c] - (c & 1 ? shift.y : shift.x);
                rD[x][n][c] *= factor;
            }
    }
    if (p->softcap > 0) cap_products(p, rS);
    const int bends = CLEANED && p->softcap > 0;
    const float unit = p->softcap > 0 ? p->softcap : p->scale;
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int n = 0; n < S_N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (bends) rD[x][n][c] *= __fmaf_rn(-rS[x][n][c], rS[x][n][c], 1);
                rS[x][n][c] *= unit;
            }
    if (p->alibi_form == 1)
        add_alibi<1>(bias->slope, first_key(part) - first_row(part) - off, rS);
    else if (p->alibi_form)
        add_alibi<2>(bias->slope, first_key(part) - first_row(part) - off, rS);
    uint32_t on = ~0u;
    if (!clear) on = hide_scores(p, base, part, off, sk, rS);
    if (p->mask.data) {
        if (p->mask.dtype == KP_BOOL)
            add_mask<KP_BOOL>(p, part, bias->mask, on, rS);
        else if (p->mask.dtype == KP_F32)
            add_mask<KP_F32>(p, part, bias->mask, on, rS);
        else
            add_mask<0>(p, part, bias->mask, on, rS);
    }
#pragma unroll
    for (int n = 0; n < S_N; n++) {
        const float2 lse = stats_of(base, LSE, part, n), share = stats_of(base, SHARE, part, n);
#pragma unroll
        for (int x = 0; x < S_M; x++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int hidden = rS[x][n][c] == -INF;
                const float y = exp2_fast((rS[x][n][c] - (c & 1 ? lse.y : lse.x)) * LOG2E);
                rD[x][n][c] = hidden ? 0 : y * rD[x][n][c];
                rS[x][n][c] = hidden ? 0 : (c & 1 ? share.y : share.x) * y;
            }
    }
}
#endif
