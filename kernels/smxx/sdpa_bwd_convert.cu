/* SPDX-License-Identifier: MIT
 * Dense backward, after the main kernel: dQ from the f32 sums, which stand in the order of the main kernel's
 * fragments, to rows of a 16-bit type. Every chip. No shared memory.
 *
 * In a tile of rows x dim, element (((warp N + n) M + m) 4 + c) 32 + lane, M = rows / row_warps / 16, N = dim /
 * dim_warps / 8, lane = 4 g + t, is of row R (warp % row_warps) + 16 m + 8 (c / 2) + g, R = 16 M, and column 16 (n / 2
 * * dim_warps + warp / row_warps) + 8 (n % 2) + 2 t + c % 2. Eight columns of a row are therefore two runs of four
 * numbers. A warp takes 8 rows g and 4 such runs of columns: it reads whole lines and writes 64 bytes of each row. The
 * factor of dS (f16) is undone here.
 *
 * early: it stands by while the main kernel ends (programmatic dependent launch).
 * fours: the element is (((warp N + n) M + m) 32 + lane) 4 + c; eight columns are four pairs of numbers. */
#ifdef CFG_EARLY
#include "kernels/device/grid.h"
#endif
#include "kernels/device/number.h"
#include "kernels/device/sdpa_bwd_bound.h"
#include "kernels/device/sdpa_bwd_rows.h"

constexpr int THREADS = CFG_THREADS, SCALED = CFG_SCALED, FOURS = CFG_FOURS;

static __device__ __forceinline__ float4 times(float4 x, float y) {
    return make_float4(x.x * y, x.y * y, x.z * y, x.w * y);
}

static __device__ __forceinline__ void store_chunk(const struct kp_sdpa_bwd *p, uint16_t *to, int left, float4 even,
                                                   float4 odd) {
    const int type = p->dq.dtype;
    const float s = p->in.scale;
    const uint4 a = make_uint4(pack16(type, even.x * s, odd.x * s), pack16(type, even.y * s, odd.y * s),
                               pack16(type, even.z * s, odd.z * s), pack16(type, even.w * s, odd.w * s));
    if (p->dq.chunk == 16 && left >= 8) {
        *(uint4 *)to = a;
        return;
    }
    const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (e < left) to[e] = (uint16_t)(word[e / 2] >> (e % 2 * 16));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    CFG(const __grid_constant__ struct sdpa_bwd_parameters<SCALED> all) {
    const struct kp_sdpa_bwd &p = all.bwd;
#ifdef CFG_EARLY
    grid_wait();
#endif
    const int64_t tiles = (int64_t)p.in.batch * p.in.heads_q * p.row_tiles;
    const int n_tiles = p.dim / p.dim_warps / 8; /* N */
    const int g = (int)threadIdx.x % 32 / 4;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int i0 = (int)(tile % p.row_tiles) * p.rows, h = (int)(tile / p.row_tiles % p.in.heads_q);
        const int b = (int)(tile / p.row_tiles / p.in.heads_q);
        const struct sequence s = sequence_of(&p.in, b);
        if (i0 >= s.rows) continue;
        const float *from = (const float *)p.dq_sum + (h * p.stat_rows + first_stat_row(&p, &s, b) + i0) * p.dim;
        const int group = SCALED ? p.in.heads_q / p.in.heads_k : 1;
        const float undo = SCALED ? ((const float *)scaled_of(&p)->undo)[(int64_t)b * p.in.heads_k + h / group] : 1;
        uint16_t *to = (uint16_t *)p.dq.data + b * p.dq.batch + h * p.dq.head + (s.q0 + i0) * p.dq.row;
        for (int x = (int)threadIdx.x / 32; x < p.rows / 8 * (p.dim / 32); x += THREADS / 32) {
            const int r = x % (p.rows / 8), row = 8 * r + g;               /* 8 rows */
            const int chunk = x / (p.rows / 8) * 4 + (int)threadIdx.x % 4; /* 8 columns */
            const int pair = chunk / 2, n = pair / p.dim_warps * 2 + chunk % 2;
            const int band = p.rows / p.row_warps, m = row % band / 16, c = row % 16 / 8 * 2;
            const int warp = pair % p.dim_warps * p.row_warps + row / band;
            const int left = p.in.dim_qk - 8 * chunk;
            if (i0 + row >= s.rows || left <= 0) continue;
            float4 even = make_float4(0, 0, 0, 0), odd = even;
            if (i0 + row < s.sq) {
                const float *fragment = from + ((warp * n_tiles + n) * (band / 16) + m) * 128;
                if (FOURS) {
                    const float2 *pair = (const float2 *)(fragment + 16 * g + c);
                    const float2 x0 = pair[0], x1 = pair[2], x2 = pair[4], x3 = pair[6];
                    even = make_float4(x0.x, x1.x, x2.x, x3.x), odd = make_float4(x0.y, x1.y, x2.y, x3.y);
                } else {
                    const float *run = fragment + 32 * c + 4 * g;
                    even = *(const float4 *)run, odd = *(const float4 *)(run + 32);
                }
                if (SCALED) even = times(even, undo), odd = times(odd, undo);
            }
            store_chunk(&p, to + row * p.dq.row + 8 * chunk, left, even, odd);
        }
    }
}
