/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: configuration of the variant and what a CTA works on. Included once; the picture and the rules
 * stand there. */
#ifndef ATTN_SM80_SDPA_FWD_WORK_H
#define ATTN_SM80_SDPA_FWD_WORK_H
#include "kernels/device/number.h"
#include "kernels/device/sequence.h"
#include "kernels/device/shared.h"

constexpr int TYPE = CFG_DTYPE, FULL = CFG_FULL == 1, PAGED = CFG_FULL == 2, DIM = CFG_DIM, DIM_V = CFG_DIM_V;
constexpr int M_TILES = CFG_M_TILES, KEYS = CFG_KEYS, SLOTS = CFG_SLOTS, PAIR = CFG_PAIR, Q_STEPS = CFG_Q_STEPS;
constexpr int ROW_WARPS = CFG_ROW_WARPS, COL_WARPS = CFG_COL_WARPS, KEY_WARPS = CFG_KEY_WARPS;
constexpr int WARP_ROWS = 16 * M_TILES, ROWS = WARP_ROWS * ROW_WARPS;
constexpr int THREADS = 32 * ROW_WARPS * COL_WARPS * KEY_WARPS;
constexpr int COLS = DIM_V / COL_WARPS, WARP_KEYS = KEYS / KEY_WARPS; /* value columns and keys of a warp */
constexpr int N_S = WARP_KEYS / 8, N_O = COLS / 8;                    /* accumulator tiles of 8 columns */
constexpr int K_STEPS = DIM / 16, P_STEPS = WARP_KEYS / 16;
constexpr int Q_HELD = Q_STEPS > 0 ? Q_STEPS : 1; /* an array has at least one element */
constexpr int PITCH = 2 * KP_SDPA_MAX(DIM, DIM_V), SLOT = KEYS * PITCH;
constexpr int RING = ROWS * PITCH, RING_END = RING + SLOTS * SLOT, NONFINITE = RING_END, KEPT = RING_END + 16,
              BAD_PAGE = RING_END + 64, STRIPS = RING_END + 192, SOURCE = RING_END + 256, SUSPECT = RING_END + 272;
constexpr int AHEAD = PAIR ? SLOTS / 2 - 1 : SLOTS - 1; /* groups of copies under way while one is worked on */
constexpr float LEAST = -126;                           /* log2 units: smallest factor of a rescale */
constexpr int FAR = 1 << 30;

static_assert(DIM % 32 == 0 && COLS % 16 == 0 && PITCH % 64 == 0, "fragments and swizzle");
static_assert(WARP_KEYS % 16 == 0 && KEYS <= (FULL ? 64 : 128), "flags hold a bit, and in full variants a byte, a key");
static_assert(AHEAD >= 1 && AHEAD <= 3 && Q_STEPS <= K_STEPS, "copy_wait knows up to three groups");
static_assert(ROW_WARPS <= 8, "strips fit the flags");
static_assert(!PAIR || (SLOTS % 2 == 0 && (!FULL || SLOTS == 4)), "pairs of slots; page flags of two key tiles");
static_assert(!PAGED || (KEY_WARPS > 1 && PAIR), "pages without the other features: few queries alone");
static_assert(PITCH % 128 != 0 || COLS % 64 == 0 || COL_WARPS == 1, "a warp's columns start at a swizzle period");

/* What all threads of the CTA know about its tile. */
struct work {
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

static __device__ __forceinline__ int thread_of(void) { return recompute((int)threadIdx.x); }
static __device__ __forceinline__ int lane_of(void) { return thread_of() & 31; }
static __device__ __forceinline__ int warp_row_of(void) { return (thread_of() >> 5) % ROW_WARPS; }
static __device__ __forceinline__ int warp_col_of(void) { return (thread_of() >> 5) / ROW_WARPS % COL_WARPS; }
static __device__ __forceinline__ int warp_key_of(void) { return (thread_of() >> 5) / (ROW_WARPS * COL_WARPS); }
/* First key of the tile that is the warp's. */
static __device__ __forceinline__ int key_of_warp(void) { return KEY_WARPS == 1 ? 0 : warp_key_of() * WARP_KEYS; }

static __device__ __forceinline__ int divided(int n, struct kp_divisor divisor) {
    return (int)((uint64_t)(uint32_t)n * divisor.factor >> divisor.shift);
}

/* Flat row -> query, query head. */
static __device__ __forceinline__ int query_of(const struct kp_sdpa_fwd *p, int row) {
    return divided(row, p->by_pack);
}
static __device__ __forceinline__ int head_of(const struct kp_sdpa_fwd *p, const struct work *w, int row) {
    return w->head * p->pack + row - query_of(p, row) * p->pack;
}
static __device__ __forceinline__ int key_head_of(const struct kp_sdpa_fwd *p, const struct work *w) {
    return divided(w->head, p->by_group);
}

/* Few queries: shares of one size for sequences of all lengths, so that no CTA reads more than another. */
static __device__ __forceinline__ int one_share(const struct kp_sdpa_fwd *p) {
    return KEY_WARPS > 1 && p->in.window_left == FAR && (p->in.seqlens_k || p->in.cu_seqlens_k);
}
/* Key tiles that a row may see of the longest sequence. */
static __device__ __forceinline__ int most_tiles(const struct kp_sdpa_fwd *p) {
    const int keys =
        p->in.flags & KP_SDPA_BOTTOM_RIGHT ? p->in.seq_k : min(p->in.seq_k, p->in.seq_q + p->in.window_right);
    return (keys + KEYS - 1) / KEYS;
}

/* Returns 0 if the tile lies past its sequence and nothing is to be written. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_fwd *p, int index, struct work *w) {
    const int section = divided(index, p->by_section_tiles), within = index - section * p->section_tiles;
    const int last = section == p->last_section;
    const int outer = divided(within, last ? p->by_last : p->by_section);
    const int head = section * p->section + within - outer * (last ? p->last_size : p->section);
    const int tile = divided(outer, p->by_splits);
    w->split = outer - tile * p->splits;
    w->row0 = (p->row_tiles - 1 - tile) * ROWS;
    w->b = divided(head, p->by_heads);
    w->head = head - w->b * p->tile_heads;
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
    const int tile0 = j0 / KEYS, n = (j1 + KEYS - 1) / KEYS - tile0;
    const int share = divided((one_share(p) ? most_tiles(p) : n) + p->splits - 1, p->by_splits);
    w->first = tile0 + w->split * share;
    w->n_tiles = max(min(n - w->split * share, share), 0);
    return 1;
}

/* Do the keys lie on pages? Where it is known, the other form has no code. */
static __device__ __forceinline__ int has_pages(const struct kp_sdpa_fwd *p) {
    return PAGED || (FULL && p->in.block_table);
}

/* Where the CTA's keys and values begin: row 0 of the sequence and head, pages apart. */
struct source {
    uint64_t keys, values;
};

static __device__ __forceinline__ struct source source_of(const struct kp_sdpa_fwd *p, const struct work *w) {
    const int paged = has_pages(p);
    const int64_t hk = key_head_of(p, w);
    const int64_t k = (paged ? 0 : w->b * p->in.k.batch) + hk * p->in.k.head + w->seq.k0 * p->in.k.row,
                  v = (paged ? 0 : w->b * p->in.v.batch) + hk * p->in.v.head + w->seq.k0 * p->in.v.row;
    return (struct source){p->in.k.data + 2 * (uint64_t)k, p->in.v.data + 2 * (uint64_t)v};
}

/* The word SUSPECT: keys are hidden from some rows, so that a sum that is not finite may be a hidden value's fault;
 * or this is the second pass, which looks for such values. */
enum { HIDDEN = 1, CAREFUL = 2 };

/* One thread: what inner key tiles do not read waits in shared memory, not in registers; notes are cleared. */
static __device__ __forceinline__ void keep_work(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                 const struct source *from, int careful) {
    const int j0 = w->first * KEYS, j1 = min(j0 + w->n_tiles * KEYS, w->seq.sk);
    const int hidden =
        (FULL && p->in.mask.data) || j1 - 1 > w->at_min + p->in.window_right || j0 < w->at_max - p->in.window_left;
    shared_store128(base + NONFINITE, make_uint4(0, 0, 0, 0));
    shared_store32(base + SUSPECT, careful ? CAREFUL : hidden ? HIDDEN : 0);
    shared_store128(base + KEPT, make_uint4(w->b, w->head, w->split, w->seq.rows));
    shared_store128(base + KEPT + 16, make_uint4(w->row0, w->n_rows, w->off, w->seq.sk));
    shared_store128(base + KEPT + 32, make_uint4((uint32_t)w->seq.q0, (uint32_t)(w->seq.q0 >> 32), (uint32_t)w->at_min,
                                                 (uint32_t)w->at_max));
    shared_store128(base + SOURCE, make_uint4((uint32_t)from->keys, (uint32_t)(from->keys >> 32),
                                              (uint32_t)from->values, (uint32_t)(from->values >> 32)));
}
static __device__ __forceinline__ struct source recall_source(uint32_t base) {
    const uint4 x = shared_load128(base + SOURCE);
    return (struct source){(uint64_t)x.y << 32 | x.x, (uint64_t)x.w << 32 | x.z};
}
/* row0, n_rows, off, seq.sk */
static __device__ __forceinline__ uint4 recall_rows(uint32_t base) { return shared_load128(base + KEPT + 16); }
/* b, head, split, seq.rows; the rest is undefined */
static __device__ __forceinline__ struct work recall_place(uint32_t base) {
    struct work w;
    const uint4 x = shared_load128(base + KEPT);
    w.b = (int)x.x, w.head = (int)x.y, w.split = (int)x.z, w.seq.rows = (int)x.w;
    return w;
}
static __device__ __forceinline__ void recall_work(struct work *w, uint32_t base) {
    const uint4 y = recall_rows(base), z = shared_load128(base + KEPT + 32);
    *w = recall_place(base);
    w->row0 = (int)y.x, w->n_rows = (int)y.y;
    w->seq.q0 = (int64_t)((uint64_t)z.y << 32 | z.x);
}

/* One lane for the warps of a row strip. */
static __device__ __forceinline__ void keep_strip(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base) {
    const int row = w->row0 + warp_row_of() * WARP_ROWS;
    const int at_min = row < w->n_rows ? query_of(p, row) + w->off : FAR,
              at_max = row < w->n_rows ? query_of(p, min(row + WARP_ROWS, w->n_rows) - 1) + w->off : -FAR - 1;
    if (lane_of() != 0 || thread_of() >= 32 * ROW_WARPS) return;
    shared_store32(base + STRIPS + 8 * warp_row_of(), (uint32_t)at_min);
    shared_store32(base + STRIPS + 8 * warp_row_of() + 4, (uint32_t)at_max);
}
static __device__ __forceinline__ struct strip recall_strip(uint32_t base) {
    const float2 x = shared_load_pair(base + STRIPS + 8 * warp_row_of());
    return (struct strip){(int)__float_as_uint(x.x), (int)__float_as_uint(x.y)};
}

/* Do rows at_min..at_max all see every key of the tile that exists? */
static __device__ __forceinline__ int sees_all(const struct kp_sdpa_fwd *p, const struct work *w, int at_min,
                                               int at_max, int j0) {
    return min(j0 + KEYS, w->seq.sk) - 1 <= at_min + p->in.window_right && j0 >= at_max - p->in.window_left;
}
#endif
