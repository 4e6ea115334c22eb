/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: configuration of the variant, what a CTA works on, and the copies into shared memory. Included
 * once; the picture and the rules stand there. */
#ifndef ATTN_SM80_SDPA_FWD_LOAD_H
#define ATTN_SM80_SDPA_FWD_LOAD_H
#include "kernels/device/number.h"
#include "kernels/device/sequence.h"
#include "kernels/device/shared.h"

constexpr int TYPE = CFG_DTYPE, FULL = CFG_FULL, DIM = CFG_DIM, DIM_V = CFG_DIM_V;
constexpr int M_TILES = CFG_M_TILES, KEYS = CFG_KEYS, SLOTS = CFG_SLOTS, Q_STEPS = CFG_Q_STEPS;
constexpr int ROW_WARPS = CFG_ROW_WARPS, COL_WARPS = CFG_COL_WARPS;
constexpr int WARP_ROWS = 16 * M_TILES, ROWS = WARP_ROWS * ROW_WARPS, THREADS = 32 * ROW_WARPS * COL_WARPS;
constexpr int COLS = DIM_V / COL_WARPS;       /* value columns of a warp */
constexpr int N_S = KEYS / 8, N_O = COLS / 8; /* accumulator tiles of 8 columns */
constexpr int K_STEPS = DIM / 16, P_STEPS = KEYS / 16;
constexpr int Q_HELD = Q_STEPS > 0 ? Q_STEPS : 1; /* an array has at least one element */
constexpr int PITCH = 2 * KP_SDPA_MAX(DIM, DIM_V), SLOT = KEYS * PITCH;
constexpr int RING = ROWS * PITCH, RING_END = RING + SLOTS * SLOT, POISON = RING_END, KEPT = RING_END + 16,
              BAD_PAGE = RING_END + 64;
constexpr float SLACK = 8, LEAST = -126; /* log2 units: postponed growth of a maximum; smallest factor of a rescale */
constexpr int FAR = 1 << 30;

static_assert(DIM % 32 == 0 && COLS % 16 == 0 && PITCH % 64 == 0, "fragments and swizzle");
static_assert(KEYS % 16 == 0 && KEYS <= 64, "flags hold 64 keys");
static_assert(SLOTS >= 2 && SLOTS <= 4 && Q_STEPS <= K_STEPS, "copy_wait knows up to three groups");
static_assert(PITCH % 128 != 0 || COLS % 64 == 0 || COL_WARPS == 1, "a warp's columns start at a swizzle period");

/* What all threads of the CTA know about its work item. */
struct work {
    int64_t item;
    struct sequence seq;
    int b, head, split; /* head: tile head */
    int row0, n_rows;   /* first flat row of the tile; flat rows of the sequence */
    int off;            /* diagonal offset */
    int first, n_tiles; /* key tiles, the last one first */
    int at_min, at_max; /* i + off of the tile's first and last row */
};

/* What a warp knows of its rows. */
struct strip {
    int at_min, at_max; /* i + off of its first and last row; FAR, -FAR - 1 without a row inside the sequence */
};

struct statistics {
    float m[M_TILES][2],
        l[M_TILES][2]; /* rows g and g + 8 of a fragment; l per lane until the end; m in units of the scores */
};

/* Full variants: what a lane's rows add to their scores. */
struct bias {
    float slope[M_TILES][2];
    uint64_t mask[M_TILES][2];
};

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_row_of(void) { return (thread_of() >> 5) % ROW_WARPS; }
static __device__ __forceinline__ int warp_col_of(void) { return (thread_of() >> 5) / ROW_WARPS; }

/* Flat row -> query, query head. */
static __device__ __forceinline__ int query_of(const struct kp_sdpa_fwd *p, int row) {
    return p->pack == 1 ? row : (int)((uint32_t)row / (uint32_t)p->pack);
}
static __device__ __forceinline__ int head_of(const struct kp_sdpa_fwd *p, const struct work *w, int row) {
    return p->pack == 1 ? w->head : w->head * p->pack + (int)((uint32_t)row % (uint32_t)p->pack);
}
static __device__ __forceinline__ int key_head_of(const struct kp_sdpa_fwd *p, const struct work *w) {
    return p->pack == 1 ? (int)((uint32_t)w->head / (uint32_t)(p->in.heads_q / p->in.heads_k)) : w->head;
}

/* ------------------------------------------------------------------ work items --------------------- */

/* Returns 0 if the tile lies past its sequence and nothing is to be written. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_fwd *p, int64_t item, struct work *w) {
    const int64_t heads = p->pack == 1 ? p->in.heads_q : p->in.heads_k, all = heads * p->in.batch;
    const int64_t of_section = (int64_t)p->row_tiles * p->splits * p->section;
    const int64_t first = item / of_section * p->section;
    const uint32_t size = (uint32_t)(all - first < p->section ? all - first : p->section);
    const uint64_t rest = (uint64_t)(item % of_section), outer = rest / size;
    const int64_t head = first + (int64_t)(rest % size);
    w->item = item;
    w->split = (int)(outer % (uint32_t)p->splits);
    w->row0 = (p->row_tiles - 1 - (int)(outer / (uint32_t)p->splits)) * ROWS;
    w->b = (int)(head / heads);
    w->head = (int)(head % heads);
    w->seq = sequence_of(&p->in, w->b);
    w->n_rows = w->seq.sq * p->pack;
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->first = w->n_tiles = 0;
    w->at_min = w->at_max = 0;
    if (w->row0 >= w->seq.rows * p->pack) return 0;
    if (w->row0 >= w->n_rows) return 1;
    w->at_min = query_of(p, w->row0) + w->off;
    w->at_max = query_of(p, min(w->row0 + ROWS, w->n_rows) - 1) + w->off;
    const int j0 = max(w->at_min - p->in.window_left, 0), j1 = min(w->at_max + p->in.window_right + 1, w->seq.sk);
    if (j1 <= j0) return 1;
    const int tile0 = j0 / KEYS, n = (j1 + KEYS - 1) / KEYS - tile0, share = (n + p->splits - 1) / p->splits;
    w->first = tile0 + w->split * share;
    w->n_tiles = max(min(n - w->split * share, share), 0);
    return 1;
}

/* What inner key tiles do not read waits in shared memory, not in registers. */
static __device__ __forceinline__ void keep_work(const struct work *w, uint32_t base) {
    if (threadIdx.x != 0) return;
    shared_store128(base + KEPT, make_uint4(w->b, w->head, w->split, w->seq.rows));
    shared_store128(base + KEPT + 16, make_uint4(w->row0, w->n_rows, w->off, w->seq.sk));
    shared_store128(base + KEPT + 32, make_uint4((uint32_t)w->seq.q0, (uint32_t)(w->seq.q0 >> 32), (uint32_t)w->item,
                                                 (uint32_t)(w->item >> 32)));
}
/* row0, n_rows, off, seq.sk */
static __device__ __forceinline__ uint4 recall_rows(uint32_t base) { return shared_load128(base + KEPT + 16); }
static __device__ __forceinline__ void recall_work(struct work *w, uint32_t base) {
    const uint4 x = shared_load128(base + KEPT), y = shared_load128(base + KEPT + 16),
                z = shared_load128(base + KEPT + 32);
    w->b = (int)x.x, w->head = (int)x.y, w->split = (int)x.z, w->seq.rows = (int)x.w;
    w->row0 = (int)y.x, w->n_rows = (int)y.y;
    w->seq.q0 = (int64_t)((uint64_t)z.y << 32 | z.x), w->item = (int64_t)((uint64_t)z.w << 32 | z.z);
}

static __device__ __forceinline__ struct strip strip_of(const struct kp_sdpa_fwd *p, const struct work *w) {
    struct strip s;
    const int row = w->row0 + warp_row_of() * WARP_ROWS;
    s.at_min = row < w->n_rows ? query_of(p, row) + w->off : FAR;
    s.at_max = row < w->n_rows ? query_of(p, min(row + WARP_ROWS, w->n_rows) - 1) + w->off : -FAR - 1;
    return s;
}

/* Do rows at_min..at_max all see every key of the tile that exists? */
static __device__ __forceinline__ int sees_all(const struct kp_sdpa_fwd *p, const struct work *w, int at_min,
                                               int at_max, int j0) {
    return min(j0 + KEYS, w->seq.sk) - 1 <= at_min + p->in.window_right && j0 >= at_max - p->in.window_left;
}

/* ------------------------------------------------------------------ loads -------------------------- */

/* 8 elements, of which the first `bytes` / 2 exist. */
static __device__ __forceinline__ void load_chunk(uint32_t to, const char *from, int bytes, int unit) {
    if (unit == 16) {
        copy_async16(to, from, bytes);
    } else if (unit == 4) {
#pragma unroll
        for (int x = 0; x < 16; x += 4) copy_async4(to + x, from + x, max(min(bytes - x, 4), 0));
    } else {
        uint32_t word[4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const uint16_t *at = (const uint16_t *)from + 2 * x;
            const uint32_t lo = 4 * x < bytes ? at[0] : 0, hi = 4 * x + 2 < bytes ? at[1] : 0;
            word[x] = lo | hi << 16;
        }
        shared_store128(to, make_uint4(word[0], word[1], word[2], word[3]));
    }
}

/* Threads side by side on a row: at most 128 bytes of it, so that a warp reads whole lines of several rows. */
static __device__ __forceinline__ constexpr int threads_per_row(int chunks) { return chunks % 8 == 0 ? 8 : 4; }

/* `width` of `dim` columns of one row that exists or not. */
static __device__ __forceinline__ void load_row(uint32_t tile, int thread, int r, const char *from, int exists,
                                                int width, int unit, int dim) {
    const int across = threads_per_row(dim / 8), c0 = thread % across;
#pragma unroll
    for (int c = 0; c < dim / 8; c += across) {
        const int bytes = exists ? max(min(2 * width - 16 * (c0 + c), 16), 0) : 0;
        load_chunk(tile + tile_at(PITCH, r, c0 + c), from + 16 * (c0 + c), bytes, unit);
    }
}

static __device__ __forceinline__ void load_queries(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base) {
    constexpr int ACROSS = threads_per_row(DIM / 8), DOWN = THREADS / ACROSS;
    const char *q = (const char *)p->in.q.data + 2 * (w->b * p->in.q.batch + w->seq.q0 * p->in.q.row);
    static_assert(ROWS % DOWN == 0, "whole passes");
#pragma unroll 1
    for (int r = (int)threadIdx.x / ACROSS; r < ROWS; r += DOWN) {
        const int row = w->row0 + r, thread = (int)threadIdx.x;
        const char *from = q + 2 * (head_of(p, w, row) * p->in.q.head + query_of(p, row) * p->in.q.row);
        load_row(base, thread, r, from, row < w->n_rows, p->in.dim_qk, p->in.q.chunk, DIM);
    }
}

/* A negative scale: turn the sign of every element of the Q tile. */
static __device__ __forceinline__ void flip_queries(uint32_t base) {
    for (int x = (int)threadIdx.x * 16; x < ROWS * PITCH; x += THREADS * 16) {
        uint4 a = shared_load128(base + x);
        const uint32_t signs = 0x80008000u;
        shared_store128(base + x, make_uint4(a.x ^ signs, a.y ^ signs, a.z ^ signs, a.w ^ signs));
    }
}

/* Start the copy of one tile of K (is_v = 0) or V. `from` is row 0 of the sequence and head, pages apart. */
static __device__ __forceinline__ void load_keys(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                 uint32_t slot, const char *from, int j0, int is_v) {
    const struct kp_view *v = is_v ? &p->in.v : &p->in.k;
    const int dim = is_v ? DIM_V : DIM, width = is_v ? p->in.dim_v : p->in.dim_qk;
    const int thread = thread_of(), across = threads_per_row(dim / 8), down = THREADS / across, r0 = thread / across;
    static_assert(KEYS % (THREADS / 4) == 0 || KEYS % (THREADS / 8) == 0, "whole passes");
    if (FULL && p->in.block_table) {
        const int32_t *table = (const int32_t *)p->in.block_table + w->b * p->in.table_batch;
        const uint32_t page_size = (uint32_t)p->in.page_size;
#pragma unroll 1
        for (int r = r0; r < KEYS; r += down) {
            const uint32_t j = (uint32_t)(j0 + r);
            int64_t page = j < (uint32_t)w->seq.sk ? table[j / page_size] : -1;
            const int exists = page >= 0 && page < p->in.n_pages;
            if (!exists) page = 0;
            if (!is_v && thread % across == 0) shared_store8(base + BAD_PAGE + (j0 / KEYS & 1) * 64 + r, !exists);
            load_row(slot, thread, r, from + 2 * (page * v->batch + j % page_size * v->row), exists, width, v->chunk,
                     dim);
        }
        return;
    }
    const int64_t stride = 2 * v->row * down;
    const char *at = from + 2 * ((j0 + r0) * v->row);
    if (v->chunk == 16 && width == dim && j0 + KEYS <= w->seq.sk) {
        const uint32_t to =
            slot + tile_at(PITCH, r0, thread % across); /* `down` rows, `across` chunks on: the same swizzle */
        static_assert(THREADS / 8 % 8 == 0, "a pass is whole swizzle periods");
        at += 16 * (thread % across);
#pragma unroll
        for (int r = 0; r < KEYS; r += down, at += stride)
#pragma unroll
            for (int c = 0; c < dim / 8; c += across) copy_async16_whole(to + r * PITCH + 16 * c, at + 16 * c);
        return;
    }
#pragma unroll 1
    for (int r = r0; r < KEYS; r += down, at += stride)
        load_row(slot, thread, r, at, j0 + r < w->seq.sk, width, v->chunk, dim);
}
#endif
