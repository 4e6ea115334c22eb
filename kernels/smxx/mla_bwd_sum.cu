/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward: adds the gradient rows of the slots (`pairs`, f32) to the kv rows that they name.
 * A warp owns a kv row and takes its slots in the order of the sorted list, head blocks in their order: one fixed
 * order. Every chip, no shared memory.
 *
 *   keys, sorted --binary search--> first .. last slot of the row --pairs[query][block][slot]--> + --> sum[row]
 *
 * Lane l holds columns 2 l, 2 l + 1 and those 64, 128, ... further. */
#include "kernels/params/mla.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, GROUPS = 576 / 64, LEAST_GROUPS = 512 / 64;

static __device__ __forceinline__ int has_group(int c, int groups) { return c < LEAST_GROUPS || c < groups; }

/* First of n sorted keys that is not less than `key`. */
static __device__ __forceinline__ uint32_t first_of(const uint32_t *keys, uint32_t n, uint32_t key) {
    uint32_t lo = 0;
    while (n > 0) {
        const uint32_t half = n / 2;
        if (keys[lo + half] < key)
            lo += half + 1, n -= half + 1;
        else
            n = half;
    }
    return lo;
}

static __device__ __forceinline__ void sum_row(const struct kp_mla_bwd *p, uint32_t row, uint32_t n) {
    const uint32_t *keys = (const uint32_t *)p->keys[p->from], *slots = (const uint32_t *)p->slots[p->from];
    const uint32_t first = first_of(keys, n, row), end = first + first_of(keys + first, n - first, row + 1);
    const uint32_t topk = (uint32_t)p->in.topk;
    const int lane = (int)threadIdx.x & 31, groups = p->in.dim_qk / 64;
    float *to = (float *)p->sum.data + row / p->in.seq_k * p->sum.batch + row % p->in.seq_k * p->sum.row + 2 * lane;
    if (first == end) return;
    float x[GROUPS][2];
#pragma unroll
    for (int c = 0; c < GROUPS; c++)
        x[c][0] = has_group(c, groups) ? to[64 * c] : 0, x[c][1] = has_group(c, groups) ? to[64 * c + 1] : 0;
#pragma unroll 2
    for (uint32_t place = first; place < end; place++) {
        const uint32_t e = slots[place], query = e / topk, t = e % topk;
#pragma unroll 1
        for (int block = 0; block < p->head_blocks; block++) {
            const int64_t pair = ((int64_t)query * p->head_blocks + block) * topk + t;
            const float2 *from = (const float2 *)((const float *)p->stored_rows + pair * p->in.dim_qk) + lane;
#pragma unroll
            for (int c = 0; c < GROUPS; c++) {
                if (!has_group(c, groups)) continue;
                const float2 y = from[32 * c];
                x[c][0] += y.x;
                x[c][1] += y.y;
            }
        }
    }
#pragma unroll
    for (int c = 0; c < GROUPS; c++)
        if (has_group(c, groups)) to[64 * c] = x[c][0], to[64 * c + 1] = x[c][1];
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_mla_bwd p) {
    const int64_t rows = p.in.batch * p.in.seq_k;
    for (int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); row < rows; row += (int64_t)gridDim.x * WARPS)
        sum_row(&p, (uint32_t)row, (uint32_t)(p.n * p.in.topk));
}
