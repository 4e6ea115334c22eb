/* SPDX-License-Identifier: MIT
 * Which groups of joined lists (docs/joined_lists.md) are joined and which are left apart, as lists in order of groups:
 * the launch that joins takes the ones, one that keeps queries apart the queries of the others, and where a launch has
 * nothing to do it ends at once. One CTA: a thread has some groups side by side. */
#include "kernels/device/block_scan.h"
#include "kernels/device/joined.h"
#include "kernels/params/dist_joined.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32;

static __device__ __forceinline__ int is_apart(const struct joined_group *g) { return g->words[KP_JOINED_FLAGS] & 1; }

/* Sum over the threads before this one; *all: over all. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t (&share)[WARPS], uint32_t own, uint32_t *all) {
    const uint32_t sum = sum_to_lane(own);
    const struct warp_sums warps = sum_warps<WARPS>(sum, share);
    *all = warps.all;
    return warps.before + sum - own;
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_joined_work p) {
    __shared__ uint32_t share[2][WARPS];
    const int n = (int)(p.until - p.from), per = (n + THREADS - 1) / THREADS;
    const int first = min((int)threadIdx.x * per, n), last = min(first + per, n);
    uint32_t joined = 0, apart = 0, all[2]; /* groups, queries */
#pragma unroll 4
    for (int x = first; x < last; x++) {
        const struct joined_group g = joined_group_of(&p.joined, p.seq_q, (int)p.from + x);
        if (is_apart(&g))
            apart += (uint32_t)g.queries;
        else
            joined++;
    }
    joined = sum_before(share[0], joined, &all[0]);
    apart = sum_before(share[1], apart, &all[1]);
    int32_t *work = (int32_t *)p.work, *groups = work + KP_JOINED_WORK_LISTS, *queries = groups + n;
    if (threadIdx.x == 0) {
        work[KP_JOINED_WORK_GROUPS] = (int32_t)all[0];
        work[KP_JOINED_WORK_QUERIES] = (int32_t)all[1];
        work[KP_JOINED_WORK_MOST] = 4 * ((int64_t)n - all[0]) >= 3 * (int64_t)n;
    }
    for (int x = first; x < last; x++) {
        const struct joined_group g = joined_group_of(&p.joined, p.seq_q, (int)p.from + x);
        if (!is_apart(&g)) {
            groups[joined++] = (int)p.from + x;
            continue;
        }
        for (int r = 0; r < g.queries; r++) queries[apart++] = g.b * (int)p.seq_q + g.query + r;
    }
}
