/* SPDX-License-Identifier: MIT
 * Part of sdpa_bwd_f16x2.cu: configuration of the variant, what stands where in shared memory, what a CTA works on. */
#ifndef ATTN_SM90_SDPA_BWD_F16X2_WORK_H
#define ATTN_SM90_SDPA_BWD_F16X2_WORK_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/device/shared.h"
#include "kernels/params/sdpa_bwd_f16x2_sm90.h"

constexpr int OWN_KEYS = CFG_SIDE == KP_WIDE_OWN_KEYS, DIM = CFG_DIM, TILE = CFG_TILE, SLOTS = CFG_SLOTS;
constexpr int GROUPS = 2, ROWS = 64 * GROUPS, CONSUMERS = 128 * GROUPS;
constexpr int BLOCK = KP_F16X2_ROWS, BLOCKS = TILE / BLOCK;  /* rows that share a power of two */
constexpr int N_S = TILE / 2, N_P = TILE / 4, N_G = DIM / 2; /* registers of a thread: S or dP, hi or lo, a gradient */
constexpr int ACROSS = DIM / 64, COLS = 64;                  /* sums of P or dS times the tile have COLS columns */

/* Slices of 64 columns (wgmma.h), of a and b hi, then lo. */
constexpr int OWN_SLICE = 128 * ROWS, OWN_HALF = DIM / 64 * OWN_SLICE, SLICE = 128 * TILE, HALF = DIM / 64 * SLICE;
/* A slot of the ring has hi or lo of a or b of a tile. Own queries: b lo, b hi, a lo, a hi; own keys: a first. */
constexpr int RING = 4 * OWN_HALF, STATS = RING + SLOTS * HALF, STAT_BYTES = 4 * TILE, STAT_TILES = (SLOTS + 3) / 4 + 1,
              BARRIERS = STATS + 3 * STAT_TILES * STAT_BYTES;
constexpr int OWN_FULL = BARRIERS, FULL = BARRIERS + 8, FREE = FULL + 8 * SLOTS;
constexpr int TURN = 1, TAIL_CLEARED = 3; /* named barriers; TURN has one a warpgroup */
static_assert((DIM == 64 || DIM == 128) && TILE % BLOCK == 0 && SLOTS >= 6 && SLOTS <= 16, "the products, barriers");
constexpr int WORK = BARRIERS + 272; /* struct work, for the compute warps: registers are few */
static_assert(WORK + 64 == KP_SDPA_BWD_F16X2_SHARED(DIM, TILE, SLOTS), "the host asks for as much");

/* What all threads of the CTA know about its work tile. */
struct work {
    struct sequence seq;
    int b, head, head_k; /* head: own, key head or query head */
    int head0, heads;    /* query heads of the steps */
    int own0, off;       /* first own row; diagonal offset */
    int first, n_tiles;  /* tiles of the other side that see any of the own rows */
    int64_t stat0;       /* workspace row of query 0 */
};

/* Returns 0 if nothing is to be written: the tile lies past what belongs to its sequence, or the head is flagged. All
 * lanes of a warp. */
static __device__ __forceinline__ int find_work(const struct kp_sdpa_wide_bwd *k, struct work *w) {
    const struct kp_sdpa_bwd *p = &k->bwd;
    const uint32_t heads = OWN_KEYS ? p->in.heads_k : p->in.heads_q, all = heads * p->in.batch;
    const uint32_t of_section = (uint32_t)(k->tiles * p->section), section = blockIdx.x / of_section;
    const uint32_t first = section * (uint32_t)p->section, size = min(all - first, (uint32_t)p->section);
    const uint32_t rest = blockIdx.x % of_section, head = first + rest % size, group = p->in.heads_q / p->in.heads_k;
    const int tile = (int)(rest / size), right = p->in.window_right, left = p->in.window_left;
    w->own0 = (OWN_KEYS ? tile : k->tiles - 1 - tile) * ROWS; /* causal: the longest walks first */
    w->b = (int)(head / heads);
    w->head = (int)(head % heads);
    w->head_k = OWN_KEYS ? w->head : w->head / (int)group;
    w->head0 = OWN_KEYS ? w->head * (int)group : w->head;
    w->heads = OWN_KEYS ? (int)group : 1;
    w->seq = sequence_of(&p->in, w->b);
    w->off = p->in.flags & KP_SDPA_BOTTOM_RIGHT ? w->seq.sk - w->seq.sq : 0;
    w->stat0 = first_stat_row(p, &w->seq, w->b);
    w->first = w->n_tiles = 0;
    if (w->own0 >= (OWN_KEYS ? w->seq.keys : w->seq.rows)) return 0;
    if (((const int32_t *)k->wide.flags)[w->b * p->in.heads_k + w->head_k]) return 0;
    if (right < -left) return 1;
    const int last = min(w->own0 + ROWS, OWN_KEYS ? w->seq.sk : w->seq.sq) - 1; /* none exists: before own0 */
    const int low = OWN_KEYS ? w->own0 - w->off - right : w->own0 + w->off - left,
              high = OWN_KEYS ? last - w->off + left + 1 : last + w->off + right + 1;
    const int x0 = max(low, 0), x1 = min(high, OWN_KEYS ? w->seq.sq : w->seq.sk);
    if (last < w->own0 || x1 <= x0) return 1;
    w->first = x0 / TILE;
    w->n_tiles = (x1 + TILE - 1) / TILE - w->first;
    return 1;
}

/* One thread; and all that a compute warp reads of it again. */
static __device__ __forceinline__ void keep_work(uint32_t place, const struct work *w) {
    shared_store128(place, make_uint4(w->n_tiles, w->first, w->own0, w->off));
    shared_store128(place + 16, make_uint4(w->seq.sq, w->seq.sk, OWN_KEYS ? w->seq.keys : w->seq.rows, w->b));
    shared_store128(place + 32, make_uint4(w->head, w->head_k, w->head0, w->heads));
    shared_store128(place + 48, make_uint4((uint32_t)w->seq.q0, (uint32_t)w->seq.k0, (uint32_t)w->stat0,
                                           (uint32_t)(w->stat0 >> 32)));
}
static __device__ __forceinline__ struct work recall_work(uint32_t place) {
    const uint4 x = shared_load128(place), y = shared_load128(place + 16), z = shared_load128(place + 32),
                u = shared_load128(place + 48);
    struct work w;
    w.n_tiles = (int)x.x, w.first = (int)x.y, w.own0 = (int)x.z, w.off = (int)x.w;
    w.seq.sq = (int)y.x, w.seq.sk = (int)y.y, w.seq.keys = w.seq.rows = (int)y.z, w.b = (int)y.w;
    w.head = (int)z.x, w.head_k = (int)z.y, w.head0 = (int)z.z, w.heads = (int)z.w;
    w.seq.q0 = (int)u.x, w.seq.k0 = (int)u.y; /* packed rows are counted in 31 bits */
    w.stat0 = (int64_t)((uint64_t)u.w << 32 | u.z);
    return w;
}

#include "kernels/sm90/ring.h"
#endif
