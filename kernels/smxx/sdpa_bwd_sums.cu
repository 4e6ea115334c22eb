/* SPDX-License-Identifier: MIT
 * Dense backward, last: gradients of sinks and of ALiBi slopes, sums over the rows of a head in a fixed order. One CTA
 * owns one number. CTAs 0 .. HQ-1: dsink; from there on: dalibi, [HQ] or [B,HQ]. Shared memory: a sum per warp.
 * Without .dtype the variant reads and writes f32; with KP_F64 all of it is f64. */
#include "kernels/device/number_wide.h"
#include "kernels/device/sdpa_bwd_rows.h"

constexpr int THREADS = CFG_THREADS;

static __device__ __forceinline__ num sum_all(num x) {
    const uint32_t base = shared_base();
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += shuffle_xor(x, d);
    if (threadIdx.x % 32 == 0) store_num(base + threadIdx.x / 32 * (int)sizeof(num), x);
    __syncthreads();
    num sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += load_num(base + (int)sizeof(num) * w);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_bwd p) {
    const int h = (int)(blockIdx.x % (uint32_t)p.in.heads_q), kind = (int)(blockIdx.x / (uint32_t)p.in.heads_q);
    const int b0 = kind > 0 && p.dalibi_per_batch ? kind - 1 : 0,
              b1 = kind > 0 && p.dalibi_per_batch ? kind : p.in.batch;
    num sum = 0;
    if (kind == 0 ? !p.dsink : !p.dalibi) return;
    for (int b = b0; b < b1; b++) {
        const struct sequence s = sequence_of(&p.in, b);
        const num *from = kind == 0 ? (const num *)p.dsink_row + h * p.stat_rows + first_stat_row(&p, &s, b)
                                    : (const num *)p.dalibi_tile + ((int64_t)b * p.in.heads_q + h) * p.bias_tiles;
        const int n = kind == 0 ? s.sq : (s.sq + KP_SDPA_BWD_BIAS_TILE - 1) / KP_SDPA_BWD_BIAS_TILE;
        for (int x = (int)threadIdx.x; x < n; x += THREADS) sum += from[x];
    }
    sum = sum_all(sum);
    if (threadIdx.x != 0) return;
    if (kind == 0)
        ((num *)p.dsink)[h * p.dsink_head] = sum;
    else
        ((num *)p.dalibi)[b0 * p.dalibi_batch + h * p.dalibi_head] = sum;
}
