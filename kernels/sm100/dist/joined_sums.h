/* SPDX-License-Identifier: MIT
 * Part of dist.cu over joined lists, group.h: four warps, a thread an entry. */
#ifndef ATTN_SM100_DIST_JOINED_SUMS_H
#define ATTN_SM100_DIST_JOINED_SUMS_H
#include "kernels/sm100/dist/group.h"

/* lse of a column, base 2; +inf: it adds nothing, as a head or query that does not exist. */
static __device__ __forceinline__ float lse_of_column(const struct kp_dist_sm100 *all, const struct work *w,
                                                      int column) {
    const struct kp_dist *p = &all->dist;
    const int r = column >> all->joined.shift, h = column & ((1 << all->joined.shift) - 1);
    float lse = INF;
    if (r < w->queries && h < p->in.heads_q)
        lse = load_number((const void *)p->lse.data, w->b * p->lse.batch + h * p->lse.head + (w->i + r) * p->lse.row,
                          p->lse.dtype);
    return lse == -INF ? INF : p->in.flags & KP_LSE_BASE_2 ? lse : lse * LOG2E;
}
/* Sums over 8 columns each, of 32. */
static __device__ __forceinline__ void sum_eights(float sum[4], const uint32_t word[32], uint32_t lse_at,
                                                  float scale_log2) {
#pragma unroll
    for (int c = 0; c < 32; c += 4) {
        const uint4 l = shared_load128(lse_at + 4 * c);
        const uint32_t lse[4] = {l.x, l.y, l.z, l.w};
        if (c % 8 == 0) sum[c / 8] = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float lse2 = __uint_as_float(lse[e]);
            const float x = exp2_fast(__fmaf_rn(__uint_as_float(word[c + e]), scale_log2, -lse2));
            sum[c / 8] += lse2 == INF ? 0 : x;
        }
    }
}
/* Columns c .. c + 31 of the thread's entry: sums of queries that end there; rest: what the next columns add to. */
static __device__ __forceinline__ void store_queries(const struct kp_dist_sm100 *p, const struct work *w, int c,
                                                     const float sum[4], float *rest, float *to, int exists) {
    const int shift = p->joined.shift, r = c >> shift;
    const int64_t row = p->joined.bits - p->joined.keys;
    const float low = sum[0] + sum[1], high = sum[2] + sum[3];
    to += r * row;
    if (shift == 3) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (exists && r + k < w->queries) to[k * row] = sum[k];
    } else if (shift == 4) {
        if (exists) to[0] = low;
        if (exists && r + 1 < w->queries) to[row] = high;
    } else {
        *rest += low + high;
        if (shift == 6 && !(c & 32)) return;
        if (exists) to[0] = *rest;
        *rest = 0;
    }
}

static __device__ __forceinline__ void run_sums(const struct kp_dist_sm100 *p, uint32_t base, uint32_t tm, int rank) {
    const int thread = (int)threadIdx.x;
    const uint32_t lanes = tm + ((uint32_t)(thread / 32) << 21);
    uint32_t n = 0, tile = 0;
    struct work w;
    for (cursor x = start_cursor(); next_work(p, &w, x); x = step_cursor(x)) {
        const int columns = w.queries << p->joined.shift;
        float *to = (float *)p->values + w.place * (p->joined.bits - p->joined.keys) + rank * CTA_KEYS + thread;
        if (w.first >= w.last) continue;
        const uint32_t lse_at = base + AT_LSE + n++ % 2 * HEADS * 4;
        shared_store32(lse_at + 4 * thread, __float_as_uint(lse_of_column(p, &w, thread)));
        named_sync(1, 128);
#pragma unroll 1
        for (int t = w.first; t < w.last; t++, tile++, to += KEYS) {
            const int exists = t * KEYS + rank * CTA_KEYS + thread < w.slots.n;
            float rest = 0;
            await(base, S_FULL + tile % 2, tile / 2);
            tc_after();
#pragma unroll 1
            for (int c = 0; c < columns; c += 32) {
                uint32_t word[32];
                float sum[4];
                tc_load32(word, lanes + tile % 2 * HEADS + c);
                tc_wait_loads();
                sum_eights(sum, word, lse_at + 4 * c, p->dist.in.scale_log2);
                store_queries(p, &w, c, sum, &rest, to, exists);
            }
            tc_before();
            __syncwarp();
            if (lane_of() == 0) cluster_arrive(cluster_address(at_barrier(base, S_EMPTY + tile % 2), 0));
        }
    }
}
#endif
