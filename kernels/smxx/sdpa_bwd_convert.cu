/* SPDX-License-Identifier: MIT
 * Dense backward, behind the main kernel: dQ from the f32 sums to rows of a 16-bit type. Every chip. No shared
 * memory. */
#include "kernels/device/sdpa_bwd_dq.h"

constexpr int THREADS = CFG_THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_bwd p) {
    const int64_t tiles = (int64_t)p.in.batch * p.in.heads_q * p.row_tiles;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int i0 = (int)(tile % p.row_tiles) * p.rows, h = (int)(tile / p.row_tiles % p.in.heads_q);
        const int b = (int)(tile / p.row_tiles / p.in.heads_q);
        const struct sequence s = sequence_of(&p.in, b);
        if (i0 < s.rows) convert_dq_tile(&p, &s, b, h, i0, (int)threadIdx.x / 32, THREADS / 32);
    }
}
