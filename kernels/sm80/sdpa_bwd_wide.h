/* SPDX-License-Identifier: MIT
 * Dense backward in f32 and f64, what its kernels share: where a tile lies, which of its pairs count, and the way from
 * the two products of a tile to P and dS. Not a kernel.
 *
 *   P' = exp(s - lse)     P = share P'     dS = P' (share dP - shift)     for the mask and the slopes
 *                                          dS times the derivative of the softcap: for dQ and dK
 * lse, shift, share of a query row: kernels/smxx/sdpa_bwd_prepare_wide.cu; lse = +inf marks a row that counts for
 * nothing. Lane 4 g + t holds of accumulator tile n: own rows g + 8 r, tile rows 8 n + 2 t + e, at [n][2 r + e].
 * A pair that does not count has P = dS = -0, one that does +0 or any other number: the products' repair
 * (multiply_visible in sdpa_wide.h) leaves the former out. */
#ifndef ATTN_SM80_SDPA_BWD_WIDE_H
#define ATTN_SM80_SDPA_BWD_WIDE_H
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/sm80/sdpa_wide.h"

constexpr int OWN_KEYS = CFG_SIDE == KP_WIDE_OWN_KEYS;
#ifdef CFG_SUMS
constexpr int SUMS = CFG_SUMS;
#else
constexpr int SUMS = 0;
#endif
constexpr int STAT_BYTES = TILE * (int)sizeof(num); /* one kind of statistics of a tile */

/* What all threads of the CTA know about the sequence and the head. */
struct place {
    struct sequence seq;
    int b, head_k, off;
    int64_t stat0; /* workspace row of query 0 */
};

/* A tile: the warp's first own row, the first row of the other side, the query head. */
struct tile {
    int own, other, head;
};

/* Statistics of a lane's own two rows, where these are queries. */
struct own_numbers {
    num lse[2], shift[2], share[2];
};

/* f16x2: powers of two of the own and of the other rows, of a and b. 1 else. */
struct units {
    num own_a, own_b, a, b;
};
static __device__ __forceinline__ int is_normal(num x) { return x == 0 || (fabs(x) >= (num)1.2e-38 && fabs(x) < INF); }

static __device__ __forceinline__ void enter_sequence(const struct kp_sdpa_bwd *p, struct place *w, int b) {
    w->b = b;
    w->seq = sequence_of(&p->in, b);
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->stat0 = first_stat_row(p, &w->seq, b);
}

/* Of queries i0 .. i0 + n_i - 1 and keys j0 .. j0 + n_j - 1: does any pair count by rule 5 (1), do all, and do all
 * exist (2)? */
static __device__ __forceinline__ int sight(const struct kp_sdpa *p, const struct place *w, int i0, int n_i, int j0,
                                            int n_j) {
    const int i1 = min(i0 + n_i, w->seq.sq) - 1, j1 = min(j0 + n_j, w->seq.sk) - 1;
    if (i1 < i0 || j1 < j0 || j0 - i1 - w->off > p->window_right || j1 - i0 - w->off < -p->window_left) return 0;
    return 1 + (i1 == i0 + n_i - 1 && j1 == j0 + n_j - 1 && j1 - i0 - w->off <= p->window_right &&
                j0 - i1 - w->off >= -p->window_left);
}
static __device__ __forceinline__ int warp_sight(const struct kp_sdpa *p, const struct place *w, struct tile t) {
    return OWN_KEYS ? sight(p, w, t.other, TILE, t.own, 16) : sight(p, w, t.own, 16, t.other, TILE);
}

static __device__ __forceinline__ struct own_numbers own_numbers_of(const struct kp_sdpa_bwd *p, const struct place *w,
                                                                    struct tile t) {
    struct own_numbers x;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = t.own + 8 * r + (lane_of() >> 2), inside = i < w->seq.sq;
        const int64_t stat_row = t.head * p->stat_rows + w->stat0 + i;
        x.lse[r] = inside ? ((const num *)p->stat_lse)[stat_row] : (num)INF;
        x.shift[r] = inside ? ((const num *)p->stat_shift)[stat_row] : 0;
        x.share[r] = inside ? ((const num *)p->stat_g)[stat_row] : 1;
    }
    return x;
}

/* Statistics of a tile's queries 8 n + t2, + 1, of one kind. */
static __device__ __forceinline__ void load_stat(uint32_t stats, int kind, int n, num x[2]) {
    load_two(stats + kind * STAT_BYTES + (8 * n + 2 * (lane_of() & 3)) * (int)sizeof(num), x);
}

/* Is any of the queries an empty row? */
static __device__ __forceinline__ int has_empty(uint32_t stats, const struct own_numbers *own) {
    int empty = 0;
    if constexpr (OWN_KEYS) {
#pragma unroll
        for (int i = 0; i < TILE; i += 32)
            empty |= load_num(stats + (i + lane_of() % TILE) % TILE * (int)sizeof(num)) == (num)INF;
    } else {
        empty = own->lse[0] == (num)INF || own->lse[1] == (num)INF;
    }
    return __any_sync(~0u, empty);
}

/* All pairs are visible, no row is empty, P is exp(s - lse) alone. unit_s: from raw products to scores, unit_d: to dP.
 */
static __device__ __forceinline__ void plain_cells(uint32_t stats, const struct own_numbers *own, num unit_s,
                                                   num unit_d, num rS[N_X][4], num rD[N_X][4]) {
#pragma unroll
    for (int n = 0; n < N_X; n++) {
        num lse[2], shift[2];
        if (OWN_KEYS) load_stat(stats, 0, n, lse), load_stat(stats, 1, n, shift);
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const num l = OWN_KEYS ? lse[y & 1] : own->lse[y >> 1], sh = OWN_KEYS ? shift[y & 1] : own->shift[y >> 1];
            const num x = multiply_add(rS[n][y], unit_s, -l);
            const num s = exp_num(x), d = multiply_add(rD[n][y], unit_d, -sh);
            const int none = WIDE_F64 && x == -(num)INF; /* an infinity of q or k: hidden, as finish_cells has it */
            rS[n][y] = none ? (num)-0.0 : s;
            rD[n][y] = none ? (num)-0.0 : multiply_add(s, d, 0);
        }
    }
}

/* rS: raw products to P. rD: to dS. stats: of the tile's queries in shared memory, lse | shift | share; or own.
 * `simple`: all pairs are visible, P is exp(scale s - lse) alone. chained: dS for dQ and dK. own_a ...: f16x2: powers
 * of two that the products are to be multiplied with. */
static __device__ __forceinline__ void finish_cells(const struct kp_sdpa_wide_bwd *k, const struct place *w,
                                                    struct tile t, uint32_t stats, const struct own_numbers *own,
                                                    int simple, int chained, const struct units *u, num rS[N_X][4],
                                                    num rD[N_X][4]) {
    const struct kp_sdpa *p = &k->bwd.in;
    const int lane = lane_of(), g = lane >> 2, t2 = 2 * (lane & 3);
    const num scale = (num)k->wide.scale, hidden = (num)-0.0;
    const num up = u->own_a * u->a, unit_s = up * scale, unit_d = u->own_b * u->b;
    /* one branch for all pairs: a branch a pair would leave none to work on while another's exponential is under way */
    if (simple && (!F16X2 || (is_normal(up) && is_normal(unit_s) && is_normal(unit_d))) && !has_empty(stats, own)) {
        plain_cells(stats, own, unit_s, unit_d, rS, rD);
        return;
    }
    lower(rS, u->own_a, u->a), lower(rD, u->own_b, u->b);
    const num slope = slope_of(p, w->b, t.head);
    const int64_t cells = w->b * p->mask.batch + t.head * p->mask.head;
#pragma unroll
    for (int n = 0; n < N_X; n++) {
        num lse[2], shift[2], share[2];
        if (OWN_KEYS) load_stat(stats, 0, n, lse), load_stat(stats, 1, n, shift), load_stat(stats, 2, n, share);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const num l = OWN_KEYS ? lse[e] : own->lse[r], sh = OWN_KEYS ? shift[e] : own->shift[r];
                num *const s = &rS[n][2 * r + e], *const d = &rD[n][2 * r + e];
                const num part = OWN_KEYS ? share[e] : own->share[r];
                const int o = t.own + 8 * r + g, x = t.other + 8 * n + t2 + e;
                const int i = OWN_KEYS ? x : o, j = OWN_KEYS ? o : x, distance = j - i - w->off;
                num y = -INF, chain = 1;
                if (i < w->seq.sq && j < w->seq.sk && distance >= -p->window_left && distance <= p->window_right &&
                    l != (num)INF)
                    y = score_of(p, &k->wide, *s, distance, slope,
                                 cells + i * p->mask.row + (int64_t)j * p->mask.column, &chain);
                if (y == -(num)INF) {
                    *s = *d = hidden;
                    continue;
                }
                y = exp_num(y - l);
                *d = y * (part * *d - sh) * (chained ? chain : 1) + (num)0;
                *s = part * y;
            }
    }
}
#endif
