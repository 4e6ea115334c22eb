/* SPDX-License-Identifier: MIT
 * Attention distribution over joined lists (docs/joined_lists.md): brings the values of entries to the slots that have
 * them, 0 to invalid slots. Every chip. A CTA takes queries in turn; a query's values, which its slots name in any
 * order, go through shared memory where they fit. Values of a group left apart are by slot. */
#include "kernels/device/joined.h"
#include "kernels/device/slots.h"

constexpr int THREADS = CFG_THREADS, HELD = 8192; /* values in shared memory */
constexpr uint32_t NO_SLOT = 0xffff;

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_dist_joined p) {
    __shared__ float held[HELD];
    const int group = p.joined.group, queries = (int)(p.until - p.from) * group;
    for (int n = (int)blockIdx.x; n < queries; n += (int)gridDim.x) {
        const int number = n / group, query = n - number * group;
        const struct joined_group g = joined_group_of(&p.joined, p.in.seq_q, (int)p.from + number);
        if (query >= g.queries) continue;
        const int entries = joined_entries(&g);
        const float *values = (const float *)p.values + n * (int64_t)p.row;
        const uint32_t *slots = (const uint32_t *)g.words + p.joined.slots + query * p.joined.slots_row;
        float *to = (float *)p.dist.data + g.b * p.dist.batch + (g.query + query) * p.dist.row;
        if (entries < 0) {
            const struct slots s = slots_of(&p.in, g.b, g.query + query);
            for (int t = (int)threadIdx.x; t < p.in.topk; t += THREADS)
                to[t] = t < s.n && slot_valid(&s, s.idx[t]) ? values[t] : 0;
            continue;
        }
        const bool fits = entries <= HELD;
        __syncthreads();
        if (fits)
            for (int e = (int)threadIdx.x; e < entries; e += THREADS) held[e] = values[e];
        __syncthreads();
        for (int t = (int)threadIdx.x * 2; t < p.in.topk; t += THREADS * 2) {
            const uint32_t pair = slots[t / 2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t entry = e ? pair >> 16 : pair & 0xffff;
                if (t + e < p.in.topk) to[t + e] = entry == NO_SLOT ? 0 : fits ? held[entry] : values[entry];
            }
        }
    }
}
