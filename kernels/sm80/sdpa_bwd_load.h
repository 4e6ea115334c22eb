/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd.cu: configuration of the variant, what a CTA works on, and the copies into shared memory. Included
 * once; the picture and the rules stand there. */
#ifndef ATTN_SM80_SDPA_BWD_LOAD_H
#define ATTN_SM80_SDPA_BWD_LOAD_H
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/device/tile_copy.h"

constexpr int TYPE = CFG_DTYPE, FULL = CFG_FULL, DIM = CFG_DIM, KEYS = CFG_KEYS, ROWS = CFG_ROWS, SUBS = CFG_SUBS;
constexpr int WARPS = CFG_WARPS, THREADS = 32 * WARPS, Q_STAGES = CFG_Q_STAGES, O_STAGES = CFG_O_STAGES;
/* How warps share a product: along its rows, then along its columns. S, dP: keys x queries, some warps may have no
 * part; dK, dV: keys x dims; dQ: queries x dims. */
constexpr int S_KEY_WARPS = CFG_S_KEYS, S_ROW_WARPS = CFG_S_ROWS;
constexpr int KV_KEY_WARPS = CFG_KV_KEYS, KV_DIM_WARPS = WARPS / KV_KEY_WARPS;
constexpr int Q_ROW_WARPS = CFG_Q_ROWS, Q_DIM_WARPS = WARPS / Q_ROW_WARPS;
constexpr int P_HELD = S_ROW_WARPS == 1 && KV_KEY_WARPS == WARPS && S_KEY_WARPS == WARPS;
constexpr int SUB_ROWS = ROWS / SUBS;
constexpr int S_M = KEYS / S_KEY_WARPS / 16, S_N = SUB_ROWS / S_ROW_WARPS / 8; /* accumulator tiles of a warp */
constexpr int KV_M = KEYS / KV_KEY_WARPS / 16, KV_N = DIM / KV_DIM_WARPS / 8;
constexpr int Q_M = ROWS / Q_ROW_WARPS / 16, Q_N = DIM / Q_DIM_WARPS / 8;
constexpr int SCALED = TYPE == KP_F16, V_SCALED = SCALED && !FULL;
constexpr int S_STEPS = TYPE == KP_F16 && DIM > 128 ? 8 : DIM / 16; /* of 16 columns, of a sum of S */
constexpr int Q_UNROLL = WARPS == 8 ? 1 : 2;                        /* pairs of columns of dQ at a time: measured */

constexpr int PITCH = 2 * DIM, S_PITCH = 2 * KP_SDPA_MAX(ROWS, 32);
constexpr int K_TILE = 0, V_TILE = KEYS * PITCH, Q_TILE = 2 * KEYS * PITCH, O_TILE = Q_TILE + Q_STAGES * ROWS * PITCH,
              DS_TILE = O_TILE + O_STAGES * ROWS * PITCH, P_TILE = DS_TILE + KEYS * S_PITCH,
              LSE = P_TILE + (P_HELD ? 0 : KEYS * S_PITCH), SHIFT = LSE + 4 * ROWS, SHARE = SHIFT + 4 * ROWS,
              NONFINITE = LSE + 12 * ROWS, BAD_KEYS = NONFINITE + 16, KEPT = NONFINITE + 32, BAD_ROWS = KEPT + 64,
              STEPS = BAD_ROWS + 16, FACTORS = STEPS + 16, ANY_MARKED = BAD_ROWS + 8;

constexpr int CTA_KEYS = KEYS;
static_assert(KEYS <= 128 && ROWS <= 128, "flags hold 128 keys and rows");
static_assert(S_KEY_WARPS * S_ROW_WARPS <= WARPS && (S_N % 2 == 0 || S_N == 1), "scores: shares of whole fragments");
static_assert(KEYS % (16 * S_KEY_WARPS) == 0 && SUB_ROWS % (8 * S_ROW_WARPS) == 0, "scores: whole fragments");
static_assert(KEYS % (16 * KV_KEY_WARPS) == 0 && KV_N % 2 == 0 && Q_N % 2 == 0, "gradients: whole fragments");
static_assert(ROWS % (16 * Q_ROW_WARPS) == 0 && KEYS % 16 == 0 && DIM % 32 == 0, "whole steps");
static_assert(!P_HELD || S_N % 2 == 0, "P as an A operand");
static_assert(!FULL || ROWS <= 64, "BAD_ROWS of 8 bytes, ANY_MARKED after them");
static_assert(P_HELD || SUBS == 1, "a product over all queries needs all of P");

/* What all threads of the CTA know about its key tile. */
struct work {
    struct sequence seq;
    int index, b, head_k, key_tile, j0;
    int off;            /* diagonal offset */
    int first, n_tiles; /* row tiles that see a key of the tile */
    int steps, start;   /* n_tiles times the heads of the group; the row tile, counted from `first`, to begin with */
    int64_t stat0;      /* workspace row of query 0 */
    int bad_keys;       /* K has infinities or NaN, now noted and zeroed */
};

/* A step: one row tile of one query head. */
struct step {
    int head, i0;
};

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_of(void) { return thread_of() >> 5; }

/* ------------------------------------------------------------------ work tiles --------------------- */

/* Returns 0 if the tile lies past what belongs to its sequence and nothing is to be written. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_bwd *p, int64_t index, struct work *w) {
    const int64_t all = (int64_t)p->in.batch * p->in.heads_k, of_section = (int64_t)p->key_tiles * p->section;
    const int64_t first = index / of_section * p->section;
    const uint32_t size = (uint32_t)(all - first < p->section ? all - first : p->section);
    const uint64_t rest = (uint64_t)(index % of_section);
    const int64_t head = first + (int64_t)(rest % size);
    w->index = (int)index; /* the host sees to at most 2^31 */
    w->key_tile = (int)(rest / size);
    w->b = (int)(head / p->in.heads_k);
    w->head_k = (int)(head % p->in.heads_k);
    w->seq = sequence_of(&p->in, w->b);
    w->j0 = w->key_tile * KEYS;
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->stat0 = first_stat_row(p, &w->seq, w->b);
    w->first = w->n_tiles = w->steps = w->start = 0;
    w->bad_keys = 0;
    if (w->j0 >= w->seq.keys) return 0;
    if (w->j0 >= w->seq.sk) return 1;
    const int j_last = min(w->j0 + KEYS, w->seq.sk) - 1;
    const int i0 = max(w->j0 - w->off - p->in.window_right, 0);
    const int i1 = min(j_last - w->off + p->in.window_left + 1, w->seq.sq);
    if (i1 <= i0 || p->in.window_right < -p->in.window_left) return 1;
    w->first = i0 / ROWS;
    w->n_tiles = (i1 + ROWS - 1) / ROWS - w->first;
    w->steps = w->n_tiles * (p->in.heads_q / p->in.heads_k);
    /* CTAs of a head start at different row tiles, or all would add to the same rows of dQ at once. */
    if (!p->turns) w->start = (int)((uint32_t)w->key_tile * 5u % (uint32_t)w->n_tiles);
    return 1;
}

/* What the loop needs of the work tile waits in shared memory, not in registers. The caller sees to barriers. */
static __device__ __forceinline__ void keep_work(const struct work *w, uint32_t base) {
    const uint64_t q0 = (uint64_t)w->seq.q0, stat0 = (uint64_t)w->stat0;
    if (threadIdx.x != 0) return;
    shared_store128(base + KEPT, make_uint4(w->b, w->head_k, w->key_tile, w->seq.sq));
    shared_store128(base + KEPT + 16, make_uint4(w->off, w->first, w->n_tiles, w->start));
    shared_store128(base + KEPT + 32,
                    make_uint4((uint32_t)stat0, (uint32_t)(stat0 >> 32), (uint32_t)q0, (uint32_t)(q0 >> 32)));
    shared_store128(base + KEPT + 48, make_uint4(w->seq.sk, w->bad_keys, w->steps, w->index));
}
static __device__ __forceinline__ struct work recall_work(uint32_t base) {
    const uint4 x = shared_load128(base + KEPT), y = shared_load128(base + KEPT + 16),
                z = shared_load128(base + KEPT + 32), u = shared_load128(base + KEPT + 48);
    struct work w;
    w.b = (int)x.x, w.head_k = (int)x.y, w.key_tile = (int)x.z, w.seq.sq = (int)x.w;
    w.off = (int)y.x, w.first = (int)y.y, w.n_tiles = (int)y.z, w.start = (int)y.w;
    w.stat0 = (int64_t)((uint64_t)z.y << 32 | z.x), w.seq.q0 = (int64_t)((uint64_t)z.w << 32 | z.z);
    w.seq.sk = (int)u.x, w.bad_keys = (int)u.y, w.steps = (int)u.z, w.index = (int)u.w;
    w.j0 = w.key_tile * KEYS;
    return w;
}

/* The step after s: the next row tile, in a ring; back where the head began, the next head. */
static __device__ __forceinline__ struct step step_after(const struct work *w, struct step s) {
    int tile = s.i0 / ROWS - w->first + 1;
    if (tile == w->n_tiles) tile = 0;
    return (struct step){s.head + (tile == w->start), (w->first + tile) * ROWS};
}
/* Step t and the one after it wait in shared memory. */
static __device__ __forceinline__ void keep_step(uint32_t base, int t, struct step s) {
    if (threadIdx.x == 0) shared_store32x2(base + STEPS + t % 2 * 8, (uint32_t)s.head, (uint32_t)s.i0);
}
static __device__ __forceinline__ struct step recall_step(uint32_t base, int t) {
    const uint2 x = shared_load32x2(base + STEPS + t % 2 * 8);
    return (struct step){(int)x.x, (int)x.y};
}

/* Do all queries of the row tile see every key of the key tile, and does every such key exist? */
static __device__ __forceinline__ int sees_all(const struct kp_sdpa_bwd *p, const struct work *w, int i0) {
    const int at_min = i0 + w->off, at_max = min(i0 + ROWS, w->seq.sq) - 1 + w->off;
    return w->j0 + KEYS <= w->seq.sk && w->j0 + KEYS - 1 <= at_min + p->in.window_right &&
           w->j0 >= at_max - p->in.window_left;
}

/* ------------------------------------------------------------------ factors of f16 ----------------- */

/* FACTORS, 4 words. In plain variants a part of dS's factor comes with V, whose tile is multiplied by 2^b once, b = 0
 * to 15: it serves dP alone, and loses no bit on the way up. The rest is 1 unless the bound is far from ordinary.
 *
 *   +0 2^b     +4 the rest     +8 2^b in f16, twice     +12 what undoes them for dK and dQ */
static __device__ __forceinline__ float factor_at(uint32_t base, int offset) {
    return __uint_as_float(shared_load32(base + FACTORS + offset));
}

/* All threads, while copies are under way: the maxima of each warp's share of the bounds, to the place of dS. */
static __device__ __forceinline__ void gather_bounds(const struct kp_sdpa_bwd *p, const struct work *w, uint32_t base) {
    const struct kp_sdpa_bwd_scaled *s = scaled_of(p);
    const int group = p->in.heads_q / p->in.heads_k, row_tiles = (w->seq.sq + ROWS - 1) / ROWS;
    const int key_tiles = (w->seq.sk + ROWS - 1) / ROWS;
    const int64_t head = (int64_t)w->b * p->in.heads_k + w->head_k;
    const float2 *rows = (const float2 *)s->row_bounds + head * group * p->row_tiles;
    const float *keys = (const float *)s->key_bounds + head * s->bound_tiles;
    float dout = 0, shift = 0, v = 0;
#pragma unroll 4
    for (int x = thread_of(); x < group * row_tiles; x += THREADS) {
        const float2 y = rows[(int64_t)(x / row_tiles) * p->row_tiles + x % row_tiles];
        dout = fmaxf(dout, y.x), shift = fmaxf(shift, y.y);
    }
#pragma unroll 4
    for (int x = thread_of(); x < key_tiles; x += THREADS) v = fmaxf(v, keys[x]);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        dout = fmaxf(dout, __shfl_xor_sync(~0u, dout, d));
        shift = fmaxf(shift, __shfl_xor_sync(~0u, shift, d));
        v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    }
    if (lane_of() == 0)
        shared_store128(base + DS_TILE + 16 * warp_of(),
                        make_uint4(__float_as_uint(dout), __float_as_uint(shift), __float_as_uint(v), 0));
}

/* One thread, after a barrier. */
static __device__ __forceinline__ void choose_factors(const struct kp_sdpa_bwd *p, const struct work *w,
                                                      uint32_t base) {
    float dout = 0, shift = 0, v = 0;
#pragma unroll 1
    for (int x = 0; x < WARPS; x++) {
        const uint4 y = shared_load128(base + DS_TILE + 16 * x);
        dout = fmaxf(dout, __uint_as_float(y.x)), shift = fmaxf(shift, __uint_as_float(y.y));
        v = fmaxf(v, __uint_as_float(y.z));
    }
    const int k = exponent_for(sqrtf(dout * v) + shift);
    const int b = V_SCALED ? max(0, min(min(k, 15), exponent_for(sqrtf(v)))) : 0;
    shared_store128(base + FACTORS, make_uint4(__float_as_uint(power_of_two(b)), __float_as_uint(power_of_two(k - b)),
                                               (uint32_t)(15 + b) * 0x04000400u, __float_as_uint(power_of_two(-k))));
    if (w->key_tile == 0) /* all of the head have the same */
        ((float *)scaled_of(p)->undo)[(int64_t)w->b * p->in.heads_k + w->head_k] = power_of_two(-k);
}

/* All threads, between barriers: V times its factor. */
static __device__ __forceinline__ void scale_values(uint32_t base) {
    const uint32_t factor = shared_load32(base + FACTORS + 8);
    if (factor == 0x3c003c00u) return;
#pragma unroll 2
    for (int x = thread_of(); x < KEYS * (DIM / 8); x += THREADS) {
        const uint4 v = shared_load128(base + V_TILE + 16 * x);
        shared_store128(base + V_TILE + 16 * x, make_uint4(multiply_f16x2(v.x, factor), multiply_f16x2(v.y, factor),
                                                           multiply_f16x2(v.z, factor), multiply_f16x2(v.w, factor)));
    }
}

/* ------------------------------------------------------------------ loads -------------------------- */

static __device__ __forceinline__ void load_keys(const struct kp_sdpa_bwd *p, const struct work *w, uint32_t base) {
    const struct kp_view *k = &p->in.k, *v = &p->in.v;
    const int64_t row = w->seq.k0 + w->j0;
    const int exist = w->seq.sk - w->j0;
    copy_tile(base + K_TILE, PITCH, KEYS, DIM, THREADS, thread_of(),
              (const char *)k->data + 2 * (w->b * k->batch + w->head_k * k->head + row * k->row), 2 * k->row, exist,
              p->in.dim_qk, k->chunk);
    copy_tile(base + V_TILE, PITCH, KEYS, DIM, THREADS, thread_of(),
              (const char *)v->data + 2 * (w->b * v->batch + w->head_k * v->head + row * v->row), 2 * v->row, exist,
              p->in.dim_v, v->chunk);
}

static __device__ __forceinline__ void load_rows(const struct kp_sdpa_bwd *p, const struct work *w,
                                                 const struct kp_view *v, int width, uint32_t tile, struct step s) {
    copy_tile(tile, PITCH, ROWS, DIM, THREADS, thread_of(),
              (const char *)v->data + 2 * (w->b * v->batch + s.head * v->head + (w->seq.q0 + s.i0) * v->row),
              2 * v->row, w->seq.sq - s.i0, width, v->chunk);
}

/* Statistics of the row tile: a multiple of 4 rows, aligned in the workspace. */
static __device__ __forceinline__ void load_stats(const struct kp_sdpa_bwd *p, const struct work *w, uint32_t base,
                                                  struct step s) {
    const int thread = thread_of(), piece = thread % (ROWS / 4) * 16, kind = thread / (ROWS / 4);
    const int64_t row = s.head * p->stat_rows + w->stat0 + s.i0;
    const uint64_t from = kind == 0 ? p->stat_lse : kind == 1 ? p->stat_shift : p->stat_g;
    static_assert(3 * ROWS / 4 <= THREADS, "one pass");
    if (kind < (FULL ? 3 : 2))
        copy_async16_whole(base + LSE + kind * 4 * ROWS + piece, (const char *)from + 4 * row + piece);
}
#endif
