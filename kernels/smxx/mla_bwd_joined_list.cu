/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward over joined lists: what the stored rows of a group's gradients name, as one list a
 * group, for the kernels that sort slots of queries (mla_bwd_sort.cu, sm90/mla_bwd/sum_rows.cu), to which a group is a
 * query. A joined group: the keys of its entries. One left apart: its queries' own lists one after the other, each in
 * whole tiles of 64, -1 for what is not valid. Every chip. */
#include "kernels/device/slots.h"
#include "kernels/params/mla_bwd_joined.h"

constexpr int THREADS = CFG_THREADS;

static __device__ __forceinline__ int whole_tiles(int n) { return (n + 63) & ~63; }

static __device__ __forceinline__ int copy_entries(const struct kp_mla_bwd_joined_list *p, const int32_t *words,
                                                   int32_t *list) {
    const int n = whole_tiles(words[KP_JOINED_ENTRIES]);
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < n; e += THREADS) list[e] = words[p->joined.keys + e];
    return n;
}
static __device__ __forceinline__ int copy_slots(const struct kp_mla_bwd_joined_list *p, int64_t b, int64_t first,
                                                 int32_t *list) {
    const int64_t end = min(first + p->joined.group, p->in.seq_q);
    int all = 0;
#pragma unroll 1
    for (int64_t i = first; i < end; i++) {
        const struct slots s = slots_of(&p->in, b, i);
        const int n = whole_tiles(s.n);
#pragma unroll 1
        for (int t = (int)threadIdx.x; t < n; t += THREADS) {
            const int32_t row = t < s.n ? s.idx[t] : -1;
            list[all + t] = slot_valid(&s, row) ? row : -1;
        }
        all += n;
    }
    return all;
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_mla_bwd_joined_list p) {
    for (int64_t x = blockIdx.x; x < p.n; x += gridDim.x) {
        const uint32_t number = (uint32_t)(p.first + x), groups = (uint32_t)p.joined.groups; /* below 2^31 */
        const int64_t b = number / groups, group = number % groups;
        const int32_t *words = (const int32_t *)p.joined.data + b * p.joined.batch + group * p.joined.row;
        int32_t *list = (int32_t *)p.list + x * p.rows;
        const int n = words[KP_JOINED_FLAGS] & 1 ? copy_slots(&p, b, group * p.joined.group, list)
                                                 : copy_entries(&p, words, list);
        if (threadIdx.x == 0) ((int32_t *)p.lengths)[x] = n;
    }
}
