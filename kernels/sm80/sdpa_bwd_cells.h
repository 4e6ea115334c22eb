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

/* Full variants: rS raw products to P, rD = dP to dS times `factor`; cleaned: for dQ and dK, with the derivative of
 * the softcap, from tiles in which bad keys and rows are zeroed (with softcap: stand-ins, sdpa_bwd_infinite.h); else
 * for the bias, from tiles as they are. In the order of the contract's five steps; hidden cells give 0 whatever their
 * products are. */
static __device__ __forceinline__ void full_cells(const struct kp_sdpa *p, uint32_t base, struct part part, int off,
                                                  int sk, int bad_keys, int cleaned, const struct bias *bias,
                                                  float factor, float rS[S_M][S_N][4], float rD[S_M][S_N][4]) {
    const uint32_t span = (uint32_t)p->window_left + (uint32_t)p->window_right;
    const int t2 = 2 * (lane_of() & 3);
#pragma unroll
    for (int x = 0; x < S_M; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t place = place_of(p, part, off, sk, x, r);
            const int key = 16 * x + 8 * r + (lane_of() >> 2), j = part.j + key;
            const int bad_key = bad_keys && is_bad_key(base, part.key + key);
            const int64_t cells = bias->mask + (int64_t)j * p->mask.column;
#pragma unroll
            for (int n = 0; n < S_N; n++) {
                const uint32_t offset = 4 * (part.row + 8 * n + t2);
                const float2 lses = shared_load_pair(base + LSE + offset),
                             shifts = shared_load_pair(base + SHIFT + offset),
                             shares = shared_load_pair(base + SHARE + offset);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int i = part.i + 8 * n + t2 + e;
                    const float lse = e ? lses.y : lses.x, shift = e ? shifts.y : shifts.x,
                                share = e ? shares.y : shares.x;
                    int visible = place - (uint32_t)(8 * n + e) <= span && lse < PAST_END;
                    visible = visible || (place - (uint32_t)(8 * n + e) <= span && lse != lse);
                    float s = p->scale * rS[x][n][2 * r + e], chain = factor;
                    if (p->softcap > 0) {
                        if (cleaned && (bad_key || is_marked(shift))) s = infinite_like(s);
                        const float y = tanhf(s * p->softcap_inverse);
                        s = p->softcap * y;
                        if (cleaned) chain = factor * (1 - y * y);
                    }
                    const float d = (float)(j - i - off);
                    if (p->alibi_form) s += bias->slope * (p->alibi_form == 1 ? d : -fabsf(d));
                    if (p->mask.data && visible) {
                        const int64_t cell = cells + (int64_t)i * p->mask.row;
                        if (p->mask.dtype == KP_BOOL)
                            visible = ((const uint8_t *)p->mask.data)[cell] != 0;
                        else
                            s += load_number((const void *)p->mask.data, cell, p->mask.dtype);
                    }
                    /* NaN plus a mask of -inf is NaN: what a zeroed key or row no longer says */
                    const int bad = bad_key || (cleaned && lse != lse && is_bad_row(base, part.row + 8 * n + t2 + e));
                    visible = visible && (s != -INF || (bad && lse != lse));
                    const float y = bad && !(p->softcap > 0) ? bad_key_share(lse) : exp2_fast((s - lse) * LOG2E);
                    rS[x][n][2 * r + e] = visible ? share * y : 0;
                    rD[x][n][2 * r + e] = visible ? y * (share * rD[x][n][2 * r + e] - shift) * chain : 0;
                }
            }
        }
}
#endif
