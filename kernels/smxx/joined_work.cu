/* SPDX-License-Identifier: MIT
 * Which groups of joined lists (docs/joined_lists.md) are joined and which are left apart, as lists in order of groups:
 * the launch that joins takes the ones, one that keeps queries apart the queries of the others, and where a launch has
 * nothing to do it ends at once. One CTA: a thread has some groups side by side. */
#include "kernels/device/block_scan.h"
#include "kernels/device/joined.h"
#include "kernels/params/dist_joined.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32;

/* Tiles of 64 entries; 0: it is left apart, or has none. */
static __device__ __forceinline__ uint32_t tiles_of(const struct joined_group *g) {
    return g->words[KP_JOINED_FLAGS] & 1 ? 0 : ((uint32_t)g->words[KP_JOINED_ENTRIES] + 63) / 64;
}

/* Sum over the threads before this one; *all: over all. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t (&share)[WARPS], uint32_t own, uint32_t *all) {
    const uint32_t sum = sum_to_lane(own);
    const struct warp_sums warps = sum_warps<WARPS>(sum, share);
    *all = warps.all;
    return warps.before + sum - own;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) CFG(const __grid_constant__ struct kp_joined_work p) {
    __shared__ uint32_t share[3][WARPS];
    const int n = (int)(p.until - p.from), per = (n + THREADS - 1) / THREADS;
    const int first = min((int)threadIdx.x * per, n), last = min(first + per, n);
    uint32_t joined = 0, apart = 0, over = 0, all[3]; /* groups, queries, tiles left over */
#pragma unroll 1 /* a thread has one group, of a million queries a few */
    for (int x = first; x < last; x++) {
        const struct joined_group g = joined_group_of(&p.joined, p.seq_q, (int)p.from + x);
        if (tiles_of(&g))
            joined++;
        else
            apart += (uint32_t)g.queries;
    }
    joined = sum_before(share[0], joined, &all[0]);
    apart = sum_before(share[1], apart, &all[1]);
    const uint32_t ctas = (uint32_t)p.ctas, whole = ctas ? all[0] / ctas * ctas : all[0];
    uint32_t place = joined;
#pragma unroll 1
    for (int x = first; x < last; x++) {
        const struct joined_group g = joined_group_of(&p.joined, p.seq_q, (int)p.from + x);
        const uint32_t own = tiles_of(&g);
        if (own && place++ >= whole) over += own;
    }
    over = sum_before(share[2], over, &all[2]);
    int32_t *work = (int32_t *)p.work, *groups = work + KP_JOINED_WORK_LISTS, *queries = groups + n,
            *tiles = queries + (int64_t)n * p.joined.group, *starts = tiles + n;
    if (threadIdx.x == 0) {
        work[KP_JOINED_WORK_GROUPS] = (int32_t)all[0];
        work[KP_JOINED_WORK_QUERIES] = (int32_t)all[1];
        work[KP_JOINED_WORK_MOST] = 4 * ((int64_t)n - all[0]) >= 3 * (int64_t)n;
        work[KP_JOINED_WORK_TILES] = (int32_t)all[2];
    }
#pragma unroll 1
    for (int x = first; x < last; x++) {
        const struct joined_group g = joined_group_of(&p.joined, p.seq_q, (int)p.from + x);
        const uint32_t own = tiles_of(&g);
        if (own == 0) {
#pragma unroll 1
            for (int r = 0; r < g.queries; r++) queries[apart++] = g.b * (int)p.seq_q + g.query + r;
            continue;
        }
        groups[joined] = (int)p.from + x;
        tiles[joined] = (int32_t)own;
        if (joined >= whole) { /* CTAs whose share begins with one of its tiles */
            uint32_t cta = (over * ctas + all[2] - 1) / all[2];
#pragma unroll 1
            for (; cta < ctas; cta++) {
                const uint32_t tile = all[2] * cta / ctas;
                if (tile - over >= own) break;
                starts[2 * cta] = (int32_t)joined, starts[2 * cta + 1] = (int32_t)(tile - over);
            }
            over += own;
        }
        joined++;
    }
}
