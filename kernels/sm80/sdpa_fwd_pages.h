/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: keys on pages where a row has no other feature (.full = 2). Included once; the rules stand in
 * sdpa_fwd.cu.
 *
 * A thread copies rows r0, r0 + DOWN, ... of every key tile. It asks for their pages one key tile before it starts the
 * copies, so that no copy waits for a table entry:
 *
 *   tile n: copies started from pages in registers | tile n + 1: table entries under way
 *
 * Pages hold a power of two of keys: a key's page is a shift. A page outside the pool is seldom: its keys are copied as
 * zeros, the barrier of the tile joins what the threads have seen (`outside`), and from then on the CTA looks up the
 * page of every key that it scores. */
#ifndef ATTN_SM80_SDPA_FWD_PAGES_H
#define ATTN_SM80_SDPA_FWD_PAGES_H
#include "kernels/sm80/sdpa_fwd_load.h"
#include "kernels/sm80/sdpa_fwd_scores.h"

constexpr int PAGE_ACROSS = copy_across(DIM / 8), PAGE_DOWN = THREADS / PAGE_ACROSS;
constexpr int PAGE_ROWS = PAGED ? KEYS / PAGE_DOWN : 1; /* of a thread in a key tile */
static_assert(!PAGED || (DIM == DIM_V && KEYS % PAGE_DOWN == 0), "K and V rows are copied by the same threads");

/* Page of key j, -1 past the end. */
static __device__ __forceinline__ int page_of(const struct kp_sdpa_fwd *p, const struct work *w, int j) {
    const int shift = 31 - __clz((int)p->in.page_size);
    if ((uint32_t)j >= (uint32_t)w->seq.sk) return -1;
    return ((const int32_t *)p->in.block_table + w->b * p->in.table_batch)[j >> shift];
}
static __device__ __forceinline__ int in_pool(const struct kp_sdpa_fwd *p, int page) {
    return page >= 0 && page < p->in.n_pages;
}

/* Pages of the thread's rows of the tile at j0, which may lie before the first one: nothing is read then. */
static __device__ __forceinline__ void find_pages(const struct kp_sdpa_fwd *p, const struct work *w, int j0,
                                                  int page[PAGE_ROWS]) {
    const int r0 = thread_of() / PAGE_ACROSS;
#pragma unroll
    for (int i = 0; i < PAGE_ROWS; i++) page[i] = page_of(p, w, j0 + r0 + i * PAGE_DOWN);
}

/* Start the copy of a tile of whole, aligned rows of K or of V. `from` is row 0 of the head on page 0. */
static __device__ __forceinline__ void load_paged_tile(const struct kp_view *v, uint32_t last, uint32_t slot,
                                                       const char *from, int j0, const int page[PAGE_ROWS]) {
    const int thread = thread_of(), r0 = thread / PAGE_ACROSS, c0 = thread % PAGE_ACROSS;
    const uint32_t to = slot + tile_at(PITCH, r0, c0);
#pragma unroll
    for (int i = 0; i < PAGE_ROWS; i++) {
        const int exists = page[i] >= 0;
        const int64_t row = page[i] * v->batch + (int64_t)((uint32_t)(j0 + r0 + i * PAGE_DOWN) & last) * v->row;
        const char *first = from + (exists ? 2 * row + 16 * c0 : 0);
#pragma unroll
        for (int c = 0; c < DIM / 8; c += PAGE_ACROSS)
            copy_async16(to + i * PAGE_DOWN * PITCH + 16 * c, first + 16 * c, exists ? 16 : 0);
    }
}

/* K and V of the tile at j0 into its pair of slots. Returns whether a row that exists is on a page outside the pool. */
static __device__ __forceinline__ int load_paged_pair(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                      struct source from, uint32_t slot, int j0, int page[PAGE_ROWS]) {
    const int r0 = thread_of() / PAGE_ACROSS;
    int outside = 0;
#pragma unroll
    for (int i = 0; i < PAGE_ROWS; i++) {
        if (in_pool(p, page[i])) continue;
        outside |= j0 + r0 + i * PAGE_DOWN < w->seq.sk;
        page[i] = -1;
    }
    if (p->in.k.chunk == 16 && p->in.v.chunk == 16 && p->in.dim_qk == DIM && p->in.dim_v == DIM) {
        load_paged_tile(&p->in.k, (uint32_t)p->in.page_size - 1, slot, (const char *)from.keys, j0, page);
        load_paged_tile(&p->in.v, (uint32_t)p->in.page_size - 1, slot + SLOT, (const char *)from.values, j0, page);
    } else {
        load_keys(p, w, base, slot, (const char *)from.keys, j0, 0);
        load_keys(p, w, base, slot + SLOT, (const char *)from.values, j0, 1);
    }
    return outside;
}

/* Hide the warp's keys whose pages are not in the pool. */
static __device__ __forceinline__ void hide_outside(const struct kp_sdpa_fwd *p, const struct work *w, int j0,
                                                    float rS[M_TILES][N_S][4]) {
    const int t2 = 2 * (lane_of() & 3) + key_of_warp();
#pragma unroll
    for (int n = 0; n < N_S; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (in_pool(p, page_of(p, w, j0 + t2 + 8 * n + e))) continue;
#pragma unroll
            for (int x = 0; x < M_TILES; x++) rS[x][n][e] = rS[x][n][2 + e] = -INF;
        }
}
#endif
