/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: what becomes of raw products before the softmax: windows and lengths in every variant; scale,
 * softcap, ALiBi, masks and pages in the full ones. Included once; the rules stand there. */
#ifndef ATTN_SM80_SDPA_FWD_SCORES_H
#define ATTN_SM80_SDPA_FWD_SCORES_H
#include "kernels/sm80/sdpa_fwd_work.h"

/* Flat row of a lane's fragment row x, r. */
static __device__ __forceinline__ int row_of(uint4 kept, int x, int r) {
    return (int)kept.x + warp_row_of() * WARP_ROWS + 16 * x + 8 * r + (lane_of() >> 2);
}

/* Keys [*lo, *hi) that the lane's row x, r sees, relative to the tile's first key; none for a row outside the sequence.
 */
static __device__ __forceinline__ void visible_keys(const struct kp_sdpa_fwd *p, uint4 kept, int x, int r, int j0,
                                                    int *lo, int *hi) {
    const int row = row_of(kept, x, r), diagonal = query_of(p, row) + (int)kept.z;
    *lo = diagonal - p->in.window_left - j0;
    *hi = row < (int)kept.y ? min(diagonal + p->in.window_right + 1, (int)kept.w) - j0 : -FAR;
}

/* Plain variants: hide what windows and the sequence's end hide. Column n 8 + 2 t + e of the tile. */
static __device__ __forceinline__ void hide_keys(const struct kp_sdpa_fwd *p, uint32_t base, int j0,
                                                 float rS[M_TILES][N_S][4]) {
    const uint4 kept = recall_rows(base);
    const int t2 = 2 * (lane_of() & 3) + key_of_warp();
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int lo, hi;
            visible_keys(p, kept, x, r, j0, &lo, &hi);
            lo -= t2, hi -= t2;
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e >= hi) rS[x][n][2 * r + e] = -INF;
            if (p->in.window_left == FAR) continue;
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e < lo) rS[x][n][2 * r + e] = -INF;
        }
}

/* What a row adds to its scores, formed anew in every tile: registers are dearer. A row outside the sequence adds
 * nothing and reads some row's cells. */
static __device__ __forceinline__ float slope_of(const struct kp_sdpa_fwd *p, uint32_t base, int row, int n_rows) {
    const struct work w = recall_place(base);
    if (row >= n_rows) return 0;
    return ((const float *)p->in.alibi)[w.b * p->in.alibi_batch + head_of(p, &w, row) * p->in.alibi_head];
}
/* Element index of the row's first cell. */
static __device__ __forceinline__ int64_t cells_of(const struct kp_sdpa_fwd *p, uint32_t base, int row, int n_rows) {
    const struct work w = recall_place(base);
    if (row >= n_rows) return 0;
    return w.b * p->in.mask.batch + head_of(p, &w, row) * p->in.mask.head + query_of(p, row) * p->in.mask.row;
}

static __device__ __forceinline__ float mask_cell(const struct kp_sdpa_fwd *p, int64_t element) {
    if (p->in.mask.dtype == KP_BOOL) return ((const uint8_t *)p->in.mask.data)[element] ? 0 : -INF;
    return load_number((const void *)p->in.mask.data, element, p->in.mask.dtype);
}

/* softcap tanh(s / softcap). Caps are mostly larger than the scores: then no cell of the warp needs more than a
 * polynomial, half the instructions of tanhf and none of its two special functions. */
static __device__ __forceinline__ void cap_scores(const struct kp_sdpa_fwd *p, float rS[M_TILES][N_S][4]) {
    float largest = 0;
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_S; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                rS[x][n][e] *= p->in.softcap_inverse;
                largest = fmaxf(largest, fabsf(rS[x][n][e]));
            }
    const int large = __any_sync(~0u, largest > TANH_SMALL);
    if (large) {
#pragma unroll
        for (int x = 0; x < M_TILES; x++)
#pragma unroll
            for (int n = 0; n < N_S; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) rS[x][n][e] = p->in.softcap * tanhf(rS[x][n][e]);
        return;
    }
#pragma unroll
    for (int x = 0; x < M_TILES; x++)
#pragma unroll
        for (int n = 0; n < N_S; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) rS[x][n][e] = p->in.softcap * tanh_small(rS[x][n][e]);
}

#endif
