/* SPDX-License-Identifier: MIT
 * Dense backward in f32 and f64, before the kernels that make gradients: statistics of every query row. Every chip. One
 * CTA owns KP_WIDE_STAT_ROWS rows of a head; a group of lanes owns a row. No shared memory.
 *
 *   D = sum_c out dout     g = 1 / (1 + exp(sink - lse)), 1 without a sink or if lse includes it
 *   shift = g D - dlse     dsink_row = -p_sink D (+ p_sink dlse if lse includes the sink)
 *
 * With P' = exp(s - lse): P = g P' and dS = P' (g dP - shift). lse is written in natural units; +inf for an empty row
 * (+inf or -inf), of which nothing is read further, and for rows past the sequence. */
#include "kernels/device/number_wide.h"
#include "kernels/device/sdpa_bwd_rows.h"

constexpr int THREADS = CFG_THREADS;

static __device__ __forceinline__ num row_number(const struct kp_view *v, int b, int h, int64_t i) {
    return v->data ? ((const num *)v->data)[b * v->batch + h * v->head + i * v->row] : 0;
}

/* Sum of products of a piece of two rows, as far as there are `n`. */
static __device__ __forceinline__ num dot_piece(const num *a, const num *b, int whole, int n) {
    num sum = 0;
    if (whole && n >= PIECE) {
        const struct piece x = load_piece_global(a), y = load_piece_global(b);
#pragma unroll
        for (int e = 0; e < PIECE; e++) sum += x.x[e] * y.x[e];
        return sum;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        if (e < n) sum += a[e] * b[e];
    return sum;
}

static __device__ __forceinline__ num exp_exact(num x) { return WIDE_F64 ? (num)exp((double)x) : (num)expf((float)x); }

/* `lanes` lanes side by side, lane `c` of them; only lane 0 stores. */
static __device__ __forceinline__ void prepare_row(const struct kp_sdpa_bwd *p, const struct sequence *s, int b, int h,
                                                   int i, int64_t stat_row, int lanes, int c) {
    const int inside = i < s->sq, whole = p->out.chunk == 16 && p->dout.chunk == 16;
    const int64_t row = s->q0 + i;
    const num given = inside ? row_number(&p->lse, b, h, row) : (num)INF;
    const int alive = inside && given != (num)INF && given != -(num)INF;
    const num *out = (const num *)p->out.data + b * p->out.batch + h * p->out.head + row * p->out.row,
              *dout = (const num *)p->dout.data + b * p->dout.batch + h * p->dout.head + row * p->dout.row;
    num dot = 0;
    if (alive)
        for (int x = PIECE * c; x < p->in.dim_v; x += PIECE * lanes)
            dot += dot_piece(out + x, dout + x, whole, p->in.dim_v - x);
    for (int d = 1; d < lanes; d *= 2) dot += shuffle_xor(dot, d);
    if (c != 0) return;

    const int base2 = (p->in.flags & KP_LSE_BASE_2) != 0, includes = (p->in.flags & KP_LSE_WITH_SINK) != 0;
    const num sink = p->in.sink ? ((const float *)p->in.sink)[h * p->in.sink_head] : -INF;
    const num ln2 = WIDE_F64 ? (num)LN2_F64 : (num)LN2, log2e = WIDE_F64 ? (num)LOG2E_F64 : (num)LOG2E;
    const num natural = base2 ? given * ln2 : given;
    const num dlse = alive ? row_number(&p->dlse, b, h, row) * (base2 ? log2e : 1) : 0;
    const num share = includes || !p->in.sink ? 1 : 1 / (1 + exp_exact(sink - natural));
    const num p_sink = includes ? exp_exact(sink - natural) : 1 / (1 + exp_exact(natural - sink));
    ((num *)p->stat_lse)[stat_row] = alive ? natural : (num)INF;
    ((num *)p->stat_shift)[stat_row] = alive ? share * dot - dlse : 0;
    ((num *)p->stat_g)[stat_row] = alive ? share : 1;
    /* a sink of -inf is none: it has no share in what is not finite */
    const int has_sink = alive && p->in.sink && !(sink == -(num)INF && given == given);
    if (p->dsink_row) ((num *)p->dsink_row)[stat_row] = has_sink ? p_sink * ((includes ? dlse : 0) - dot) : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_sdpa_bwd p) {
    const int64_t tiles = (int64_t)p.in.batch * p.in.heads_q * p.row_tiles;
    int lanes = 1;
    while (lanes < 32 && PIECE * lanes < p.in.dim_v) lanes *= 2;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int i0 = (int)(tile % p.row_tiles) * p.rows, h = (int)(tile / p.row_tiles % p.in.heads_q);
        const int b = (int)(tile / p.row_tiles / p.in.heads_q);
        const struct sequence s = sequence_of(&p.in, b);
        if (i0 >= s.sq) continue; /* no CTA of the other kernels comes here */
        const int64_t stat_row = h * p.stat_rows + first_stat_row(&p, &s, b) + i0;
        if (!WIDE_F64 && p.dq_sum) { /* what the main kernel adds to */
            float4 *sums = (float4 *)((float *)p.dq_sum + stat_row * p.dim);
            for (int x = (int)threadIdx.x; x < p.rows * p.dim / 4; x += THREADS) sums[x] = make_float4(0, 0, 0, 0);
        }
        const int lane = (int)threadIdx.x % 32; /* a warp whose rows end early repeats the last one */
        for (int r0 = (int)threadIdx.x / 32 * (32 / lanes); r0 < p.rows; r0 += THREADS / lanes) {
            const int r = min(r0 + lane / lanes, p.rows - 1);
            prepare_row(&p, &s, b, h, i0 + r, stat_row + r, lanes, lane % lanes);
        }
    }
}
