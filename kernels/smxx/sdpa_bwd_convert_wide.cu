/* SPDX-License-Identifier: MIT
 * Dense backward in f32, after a main kernel that sums dQ in the order of its fragments (layout:
 * kernels/sm80/sdpa_bwd_wide_sums.h): the sums into rows, times the scale. Heads that the main kernel left to another
 * are passed over. Every chip. No shared memory. A warp takes 16 rows by 32 columns at a time: it reads whole lines,
 * and writes 32 bytes of 8 rows. */
#include "kernels/device/sdpa_bwd_rows.h"
#include "kernels/params/sdpa_wide.h"

constexpr int THREADS = CFG_THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_wide_bwd k) {
    const struct kp_sdpa_bwd *p = &k.bwd;
    const int64_t tiles = (int64_t)p->in.batch * p->in.heads_q * p->row_tiles;
    const int lane = (int)threadIdx.x % 32, stripes = p->dim / 32, group = p->in.heads_q / p->in.heads_k;
    const float scale = p->in.scale;
    struct kp_sdpa rows = p->in; /* lengths of keys do not matter here */
    rows.cu_seqlens_k = rows.seqlens_k = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int i0 = (int)(tile % p->row_tiles) * p->rows, h = (int)(tile / p->row_tiles % p->in.heads_q);
        const int b = (int)(tile / p->row_tiles / p->in.heads_q);
        const struct sequence s = sequence_of(&rows, b);
        if (i0 >= s.rows || ((const int32_t *)k.wide.flags)[(int64_t)b * p->in.heads_k + h / group]) continue;
        const float *from = (const float *)p->dq_sum + (h * p->stat_rows + first_stat_row(p, &s, b) + i0) * p->dim;
        float *to = (float *)p->dq.data + b * p->dq.batch + h * p->dq.head + (s.q0 + i0) * p->dq.row;
        for (int x = (int)threadIdx.x / 32; x < p->rows / 16 * stripes; x += THREADS / 32) {
#pragma unroll
            for (int e = 0; e < 8; e++) { /* 8 columns, rows g, then rows g + 8 */
                const int row = x / stripes * 16 + e % 2 * 8 + lane / 4;
                const int column = x % stripes * 32 + e / 2 * 8 + 2 * (lane & 3), left = p->in.dim_qk - column;
                const float *pair_of_rows = from + x * 512 + (e / 2 * 4 + e % 2 * 2) * 32 + lane;
                float2 y = {0, 0};
                if (i0 + row >= s.rows || left <= 0) continue;
                if (i0 + row < s.sq) y = make_float2(pair_of_rows[0] * scale, pair_of_rows[32] * scale);
                if (p->dq.chunk == 16 && left >= 2) {
                    *(float2 *)(to + row * p->dq.row + column) = y;
                } else {
                    to[row * p->dq.row + column] = y.x;
                    if (left >= 2) to[row * p->dq.row + column + 1] = y.y;
                }
            }
        }
    }
}
