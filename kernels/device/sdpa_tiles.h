/* SPDX-License-Identifier: MIT
 * Persistent dense forward: which tile of ROWS query rows a CTA has in a round, which tiles of KEYS keys it sees, and
 * what of a result depends on no layout. The kernel's file defines, before it includes this one, the constants
 * ROWS, KEYS and DIM_V; and TILE_CTAS, if CTAs share a tile. */
#ifndef ATTN_DEVICE_SDPA_TILES_H
#define ATTN_DEVICE_SDPA_TILES_H
#include "kernels/device/largest_score.h"
#include "kernels/device/sequence.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_maps.h"

#ifndef TILE_CTAS
#define TILE_CTAS 1
#endif

/* What all threads of the CTA know about its tile of query rows. */
struct work {
    struct sequence seq;
    int b, head;
    int row0;           /* first query */
    int off;            /* diagonal offset: query i stands at key i + off */
    int first, n_tiles; /* key tiles, the last one first */
};

static __device__ __forceinline__ int divided(int n, struct kp_divisor d) {
    return (int)((uint64_t)(uint32_t)n * d.factor >> d.shift);
}

/* The tile of query rows that the CTA has in round r: 1, or 0 without one, or -1 if no later round has one. Tiles of
 * equal length are taken in their order. Where lengths differ (causal), either
 *   pairs: two rounds take a head's longest and shortest tile that are left, whose lengths add up to the same; or
 *   few heads: the longest of all heads first; rounds go forth and back over the CTAs, so that whoever had the longest
 *   tile of a round has the shortest one of the next. */
static __device__ __forceinline__ int tile_of_round(const struct kp_sdpa_fwd_maps *maps, int r, int *head, int *tile) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    const uint32_t cta = blockIdx.x / TILE_CTAS, ctas = gridDim.x / TILE_CTAS; /* or cluster, clusters */
    if (maps->pairs) {
        const int64_t x = (int64_t)(r >> 1) * ctas + cta;
        if (x >= p->work_tiles) return -1;
        *head = divided((int)x, maps->by_half);
        const int y = (int)x - *head * maps->half_tiles, other = p->row_tiles - 1 - y;
        *tile = r & 1 ? y : other;
        return !(r & 1) || y != other;
    }
    const int64_t x = (int64_t)r * ctas + (r & 1 ? ctas - 1 - cta : cta);
    if (x >= p->work_tiles) return -1;
    const int section = divided((int)x, p->by_section_tiles), within = (int)x - section * p->section_tiles;
    const int last = section == p->last_section;
    const int outer = divided(within, last ? p->by_last : p->by_section);
    *head = section * p->section + within - outer * (last ? p->last_size : p->section);
    *tile = p->row_tiles - 1 - outer;
    return 1;
}

/* What is to be done in a tile of a head (counted over the batch). 1: something, 0: nothing. All lanes of a warp. */
static __device__ __forceinline__ int work_of_tile(const struct kp_sdpa_fwd *p, int head, int tile, struct work *w) {
    w->row0 = tile * ROWS;
    w->b = divided(head, p->by_heads);
    w->head = head - w->b * p->tile_heads;
    w->seq = sequence_of(&p->in, w->b);
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->first = w->n_tiles = 0;
    if (w->row0 >= w->seq.rows) return 0;
    if (w->row0 >= w->seq.sq) return 1;
    const int upper = w->row0 + w->off, lower = min(w->row0 + ROWS, w->seq.sq) - 1 + w->off;
    const int j0 = max(upper - p->in.window_left, 0), j1 = min(lower + p->in.window_right + 1, w->seq.sk);
    if (j1 <= j0) return 1;
    w->first = j0 / KEYS;
    w->n_tiles = (j1 + KEYS - 1) / KEYS - w->first;
    return 1;
}

/* What is to be done in round r. 1: something, 0: nothing, -1: nothing in later rounds either. All lanes of a warp. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_fwd_maps *maps, int r, struct work *w) {
    int head, tile;
    const int found = tile_of_round(maps, r, &head, &tile);
    return found <= 0 ? found : work_of_tile(&maps->fwd, head, tile, w);
}

/* One thread, before it completes Q_FULL of the tile: what the compute warpgroups are to do. n_tiles -1: no more. */
static __device__ __forceinline__ void keep_work(uint32_t place, const struct work *w) {
    shared_store128(place, make_uint4(w->n_tiles, w->first, w->row0, w->off));
    shared_store128(place + 16, make_uint4(w->seq.sq, w->seq.sk, w->seq.rows, w->b));
    shared_store128(place + 32, make_uint4(w->head, (uint32_t)w->seq.q0, (uint32_t)w->seq.k0, 0));
}
static __device__ __forceinline__ struct work recall_work(uint32_t place) {
    const uint4 x = shared_load128(place), y = shared_load128(place + 16), z = shared_load128(place + 32);
    struct work w;
    w.n_tiles = (int)x.x, w.first = (int)x.y, w.row0 = (int)x.z, w.off = (int)x.w;
    w.seq.sq = (int)y.x, w.seq.sk = (int)y.y, w.seq.rows = (int)y.z, w.b = (int)y.w;
    w.head = (int)z.x, w.seq.q0 = (int)z.y, w.seq.k0 = (int)z.z; /* packed rows are counted in 31 bits */
    return w;
}

/* Keys that a query sees: lo <= j < hi. */
static __device__ __forceinline__ int first_key(const struct kp_sdpa_fwd *p, const struct work *w, int i) {
    return max(i + w->off - p->in.window_left, 0);
}
static __device__ __forceinline__ int end_key(const struct kp_sdpa_fwd *p, const struct work *w, int i) {
    return min(i + w->off + p->in.window_right + 1, w->seq.sk);
}
/* Do rows past the end of the sequence's keys hold what the caller left there? (Past a tensor's end they are zeros.) */
static __device__ __forceinline__ int has_tail(const struct kp_sdpa_fwd *p, const struct work *w) {
    return (p->in.cu_seqlens_q || p->in.seqlens_k) && w->seq.sk % KEYS != 0;
}

static __device__ __forceinline__ int64_t row_at(const struct work *w, const struct kp_view *v, int i) {
    return w->b * v->batch + w->head * v->head + (w->seq.q0 + i) * v->row;
}

/* One number of out, in its type. */
static __device__ __forceinline__ void store_out(const struct kp_sdpa_fwd *p, int64_t element, float x) {
    if (p->out.dtype == KP_F32)
        ((float *)p->out.data)[element] = x;
    else
        ((uint16_t *)p->out.data)[element] = (uint16_t)pack16(p->out.dtype, x, 0);
}

/* Factor that divides row i by its sum l of 2^(score - m), negative for a row of zeros; `stores`: the thread writes the
 * row's lse and max_logits. */
static __device__ __forceinline__ float finish_row(const struct kp_sdpa_fwd *p, const struct work *w, int i, float m,
                                                   float l, int stores) {
    const int inside = i < w->seq.sq, empty = !inside || l == 0;
    const float natural = m * LN2;
    float sink = -INF, sum = l;
    if (p->in.sink && inside) {
        sink = ((const float *)p->in.sink)[w->head * p->in.sink_head];
        sum += exp2_fast((sink - natural) * LOG2E);
    }
    if (stores && i < w->seq.rows && (p->lse.data || p->lse_rounded.data)) {
        const float lse = outer_lse(p->in.flags, empty ? -INF : natural + log2f(l) * LN2, sink);
        store_lse(&p->lse, row_at(w, &p->lse, i), lse);
        store_lse(&p->lse_rounded, row_at(w, &p->lse_rounded, i), lse);
    }
    if (stores && i < w->seq.rows && p->max_logits.data)
        ((float *)p->max_logits.data)[row_at(w, &p->max_logits, i)] = largest_score(natural, l, empty);
    return empty ? -1.f : 1 / sum;
}

/* A warp: rows that see no key. */
static __device__ __forceinline__ void fill_empty(const struct kp_sdpa_fwd_maps *maps) {
    const struct kp_sdpa_fwd *p = &maps->fwd;
    const int lane = (int)threadIdx.x % 32;
    struct work w;
#pragma unroll 1
    for (int r = 0;; r++) {
        const int found = find_work(maps, r, &w);
        if (found < 0) break;
        if (found == 0 || w.n_tiles > 0) continue;
        const int n = min(w.row0 + ROWS, w.seq.rows);
#pragma unroll 1
        for (int i = w.row0 + lane; i < n; i += 32) finish_row(p, &w, i, -INF, 0, 1);
#pragma unroll 1
        for (int i = w.row0; i < n; i++)
            for (int x = lane; x < p->in.dim_v; x += 32) store_out(p, row_at(&w, &p->out, i) + x, 0);
    }
}
#endif
