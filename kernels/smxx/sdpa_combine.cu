/* SPDX-License-Identifier: MIT
 * Merges the key splits of a dense forward, every chip. One warp owns an output row. Without .dtype the variant reads
 * f32 and writes any type of 16 or 32 bits; with KP_F64 all of it is f64.
 *
 *   m = max_s m_s      w_s = exp(m_s - m)      L = sum_s w_s l_s
 *   out = sum_s w_s O_s / (L + exp(sink - m))          lse = m + ln L
 *
 * Input: O_s (not normalised), m_s (natural units) and l_s of every split and row, written by
 * kernels/sm80/sdpa_fwd.cu or sdpa_fwd_wide.cu. A split without visible keys has l_s = 0 and no O_s. Sums run in the
 * order of the splits or in a fixed tree: bit-equal every time. Lane t holds the weights of splits t, t + 32, ... and
 * adds up the columns of piece t (16 bytes: 4 f32, 2 f64) of a row, then of piece t + 32, ... */
#include "kernels/device/number_wide.h"
#include "kernels/device/sequence.h"

constexpr int THREADS = CFG_THREADS, HELD = KP_SDPA_MAX_SPLITS / 32;
constexpr num LEAST = WIDE_F64 ? (num)-700 : (num)-87; /* smallest weight is no 0: times an infinity it must stay one */

static __device__ __forceinline__ num warp_max(num x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x = larger(x, shuffle_xor(x, d));
    return x;
}
static __device__ __forceinline__ num warp_sum(num x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += shuffle_xor(x, d);
    return x;
}

static __device__ __forceinline__ void store_columns(const struct kp_sdpa_fwd *p, int64_t at, int c,
                                                     const num x[PIECE]) {
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        if (c + e >= p->in.dim_v) continue;
        if (WIDE_F64 || p->out.dtype == KP_F32)
            ((num *)p->out.data)[at + c + e] = x[e];
        else
            ((uint16_t *)p->out.data)[at + c + e] = (uint16_t)pack16(p->out.dtype, (float)x[e], 0);
    }
}

static __device__ __forceinline__ void merge_row(const struct kp_sdpa_fwd *p, int64_t row, int64_t rows) {
    const int lane = (int)threadIdx.x & 31, i = (int)(row % p->in.seq_q), h = (int)(row / p->in.seq_q % p->in.heads_q);
    const int b = (int)(row / p->in.seq_q / p->in.heads_q);
    const struct sequence s = sequence_of(&p->in, b);
    if (i >= s.rows) return;
    const int inside = i < s.sq;
    num m[HELD], l[HELD], top = -INF, sum = 0;
#pragma unroll
    for (int x = 0; x < HELD; x++) {
        const int split = lane + 32 * x, there = inside && split < p->splits;
        m[x] = there ? ((const num *)p->part_m)[split * rows + row] : -INF;
        l[x] = there ? ((const num *)p->part_l)[split * rows + row] : 0;
        top = larger(top, m[x]);
    }
    top = warp_max(top);
#pragma unroll
    for (int x = 0; x < HELD; x++) {
        m[x] = l[x] == 0 ? 0 : exp_num(larger(m[x] - top, LEAST)); /* from here on the weight */
        sum += m[x] * l[x];
    }
    sum = warp_sum(sum);

    const int empty = sum == 0;
    const num sink = p->in.sink && inside ? ((const float *)p->in.sink)[h * p->in.sink_head] : -INF;
    const num inverse = 1 / (sum + exp_num(sink - top));
    const int64_t out = b * p->out.batch + h * p->out.head + (s.q0 + i) * p->out.row;
#pragma unroll 1
    for (int c0 = 0; c0 < p->part_row; c0 += 32 * PIECE) {
        const int c = c0 + PIECE * lane;
        num o[PIECE] = {0};
#pragma unroll
        for (int x = 0; x < HELD; x++) {
#pragma unroll 4
            for (int y = 0; y < min(p->splits - 32 * x, 32); y++) {
                const num weight = shuffle(m[x], y);
                if (weight == 0 || c >= p->part_row) continue;
                const struct piece part =
                    load_piece_global((const num *)p->part_o + ((32 * x + y) * rows + row) * p->part_row + c);
#pragma unroll
                for (int e = 0; e < PIECE; e++) o[e] += weight * part.x[e];
            }
        }
#pragma unroll
        for (int e = 0; e < PIECE; e++) o[e] = empty ? 0 : o[e] * inverse;
        if (c < p->in.dim_v) store_columns(p, out, c, o);
    }
    if (lane != 0) return;
    const num lse = outer_lse_num(p->in.flags, empty ? -INF : top + log_num(sum), sink);
    store_lse_num(&p->lse, b * p->lse.batch + h * p->lse.head + (s.q0 + i) * p->lse.row, lse);
    store_lse_num(&p->lse_rounded, b * p->lse_rounded.batch + h * p->lse_rounded.head + (s.q0 + i) * p->lse_rounded.row,
                  lse);
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_fwd p) {
    const int64_t rows = (int64_t)p.in.batch * p.in.heads_q * p.in.seq_q, step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); row < rows; row += step)
        merge_row(&p, row, rows);
}
