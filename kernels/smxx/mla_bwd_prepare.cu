/* SPDX-License-Identifier: MIT
 * First step of every sparse MLA backward: the state of each row (struct kp_mla_row), and zeroes where dkv is summed
 * up. Any 16-bit or 32-bit element type, any strides, every chip.
 *
 *   out, dout --warp per row--> D = out . dout --+
 *   lse, dlse, sink of the row ------------------+--> rows[b * SQ + i][h]
 *
 * D is summed in one fixed order: lane l takes columns 8 l .. 8 l + 7 and 256 further, then a tree over the lanes. No
 * shared memory. Nothing of out, dout and dlse comes into the state of an empty row (lse +-inf). All loads of a row are
 * under way at once. The rows are those of p.cycles, main kernels forming other states themselves; of these and the
 * zeroes after them a launch takes p.first .. p.first + p.n - 1.
 *
 * A variant with .early needs nothing of the kernel before and runs at the same time; it ends after it, so that a wait
 * for its end is one for both. Its main kernels form no states, and have tensors of one type of 16 bits whose rows are
 * whole vectors (alignment_bytes in src/cuda/sparse/mla_bwd_sm90.c). */
#include "kernels/device/grid.h"
#include "kernels/device/mla_row.h"

constexpr int THREADS = CFG_THREADS, HEADS = 64; /* heads of a CTA of main kernels */
#ifdef CFG_EARLY
constexpr int EARLY = CFG_EARLY;
#else
constexpr int EARLY = 0;
#endif

#ifndef CFG_EARLY
/* 8 neighbouring elements of 16 bits. */
static __device__ __forceinline__ void load8(float x[8], const struct kp_view *v, int64_t first) {
    if (v->chunk == 16) {
        const uint4 a = *(const uint4 *)((const uint16_t *)v->data + first);
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = unpack16(v->dtype, word[e / 2] >> (e % 2 * 16) & 0xffff);
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = unpack16(v->dtype, ((const uint16_t *)v->data)[first + e]);
    }
}

static __device__ __forceinline__ int is_wide16(const struct kp_view *v) {
    return v->dtype != KP_F32 && v->chunk == 16;
}
#endif
/* The lane's part of D of rows that are whole vectors: all loads under way before the first is looked at. */
static __device__ __forceinline__ float dot_wide(const struct kp_mla_bwd *p, int64_t out, int64_t dout) {
    const uint4 *x = (const uint4 *)((const uint16_t *)p->out.data + out) + (threadIdx.x & 31);
    const uint4 *y = (const uint4 *)((const uint16_t *)p->dout.data + dout) + (threadIdx.x & 31);
    const uint4 a[2] = {__ldcs(x), __ldcs(x + 32)}, b[2] = {__ldcs(y), __ldcs(y + 32)};
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 2; c++) sum = mla_row_add8(p->out.dtype, p->dout.dtype, sum, a[c], b[c]);
    return sum;
}
static __device__ __forceinline__ float dot_row(const struct kp_mla_bwd *p, int64_t b, int64_t i, int64_t h) {
    const int64_t out = b * p->out.batch + i * p->out.row + h * p->out.head;
    const int64_t dout = b * p->dout.batch + i * p->dout.row + h * p->dout.head;
#ifdef CFG_EARLY
    return dot_wide(p, out, dout);
#else
    if (is_wide16(&p->out) && is_wide16(&p->dout)) return dot_wide(p, out, dout);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < KP_MLA_DIM_V; c += 256) {
        const int column = c + 8 * ((int)threadIdx.x & 31);
        float x[8], y[8];
        load8(x, &p->out, out + column);
        load8(y, &p->dout, dout + column);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = __fmaf_rn(x[e], y[e], sum);
    }
    return sum;
#endif
}

static __device__ __forceinline__ void prepare_row(const struct kp_mla_bwd *p, int64_t row) {
    const int64_t h = row % p->in.heads_q, flat = row / p->in.heads_q, i = flat % p->in.seq_q, b = flat / p->in.seq_q;
    const int lane = (int)threadIdx.x & 31;
    float given = lane == 1 ? -INF : 0;
    if (lane == 0) given = ((const float *)p->lse.data)[b * p->lse.batch + i * p->lse.row + h * p->lse.head];
    if (lane == 1 && p->in.sink) given = ((const float *)p->in.sink)[h * p->in.sink_head];
    if (lane == 2 && p->dlse.data)
        given = ((const float *)p->dlse.data)[b * p->dlse.batch + i * p->dlse.row + h * p->dlse.head];
    mla_row_store((struct kp_mla_row *)p->row_stats + row, p->in.flags, given, dot_row(p, b, i, h));
}

#ifdef CFG_EARLY
/* Rows row .. row + 3, of one query, of a type of 16 bits whose rows are whole vectors, by a warp: what they have in
 * common is found once, and the states are formed together, of row r by lanes 8 r .. 8 r + 7. Instructions count, as
 * a sort runs at the same time and is bound by those it issues. */
constexpr uint32_t TOGETHER = KP_MLA_BWD_PREPARED;
static_assert(TOGETHER == 4, "eight lanes of a row");
template <int TYPE> static __device__ __forceinline__ void prepare_rows(const struct kp_mla_bwd *p, uint32_t row) {
    const uint32_t heads = (uint32_t)p->in.heads_q, queries = (uint32_t)p->in.seq_q, lane = threadIdx.x & 31;
    const uint32_t flat = row / heads, h = row - flat * heads, b = flat / queries, i = flat - b * queries;
    const uint4 *x = (const uint4 *)((const uint16_t *)p->out.data + b * p->out.batch + i * p->out.row +
                                     h * p->out.head) + lane;
    const uint4 *y = (const uint4 *)((const uint16_t *)p->dout.data + b * p->dout.batch + i * p->dout.row +
                                     h * p->dout.head) + lane;
    uint4 a[2] = {__ldcs(x), __ldcs(x + 32)}, c[2] = {__ldcs(y), __ldcs(y + 32)};
    const uint32_t own = h + lane / 8, what = lane % 8; /* 0, 1, 2: reads lse, sink, dlse */
    float given = what == 1 ? -INF : 0, d = 0;
    if (what == 0) given = ((const float *)p->lse.data)[b * p->lse.batch + i * p->lse.row + own * p->lse.head];
    if (what == 1 && p->in.sink) given = ((const float *)p->in.sink)[own * p->in.sink_head];
    if (what == 2 && p->dlse.data)
        given = ((const float *)p->dlse.data)[b * p->dlse.batch + i * p->dlse.row + own * p->dlse.head];
#pragma unroll 1
    for (uint32_t r = 0; r < TOGETHER; r++) {
        float sum = 0;
        if (r + 1 < TOGETHER) {
            x = (const uint4 *)((const uint16_t *)x + p->out.head);
            y = (const uint4 *)((const uint16_t *)y + p->dout.head);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            sum = mla_row_add8(TYPE, TYPE, sum, a[k], c[k]);
            if (r + 1 < TOGETHER) a[k] = __ldcs(x + 32 * k), c[k] = __ldcs(y + 32 * k);
        }
        sum = warp_sum(sum);
        if (lane / 8 == r) d = sum;
    }
    mla_row_store_of((struct kp_mla_row *)p->row_stats + row + lane / 8, p->in.flags, given, d, (int)(lane & 24));
}
#endif

/* A warp: zeroes in one row of `sum`. */
static __device__ __forceinline__ void clear_row(const struct kp_mla_bwd *p, int64_t row) {
    const int bytes = p->sum.dtype == KP_F32 ? 4 : 2, lane = (int)threadIdx.x & 31;
    char *to = (char *)p->sum.data + (row / p->in.seq_k * p->sum.batch + row % p->in.seq_k * p->sum.row) * bytes;
    if (EARLY || p->sum.chunk == 16)
        for (int c = 16 * lane; c < p->in.dim_qk * bytes; c += 512) *(uint4 *)(to + c) = make_uint4(0, 0, 0, 0);
    else
        for (int c = 2 * lane; c < p->in.dim_qk * bytes; c += 64) *(uint16_t *)(to + c) = 0;
}

/* Row x of p->cycles. */
static __device__ __forceinline__ int64_t row_at(const struct kp_mla_cycles *c, uint32_t all, int64_t x) {
    if (x >= c->until) return x - c->until + c->after;
    const uint32_t y = (uint32_t)x;
    if (y < c->cycled) return y / c->taken * c->cycle + y % c->taken;
    const uint32_t of_block = HEADS - c->heads, rest = all % HEADS;
    const uint32_t left = all / HEADS * of_block + (rest > c->heads ? rest - c->heads : 0); /* of a query */
    const uint32_t query = (y - c->cycled) / left, head = (y - c->cycled) % left, between = (c->cycle - c->taken) / all;
    return query / between * c->cycle + c->taken + query % between * all + head + (head / of_block + 1) * c->heads;
}

extern "C" __global__ void __launch_bounds__(THREADS, 6) CFG(const __grid_constant__ struct kp_mla_bwd p) {
    const int64_t end = p.first + p.n, rows = p.cycles.rows, step = (int64_t)gridDim.x * (THREADS / 32);
#ifdef CFG_EARLY
    grid_release();
    int64_t from = p.first; /* a multiple of TOGETHER */
    if (p.in.heads_q % TOGETHER == 0 && rows >> 32 == 0) {
        const int64_t whole = (end < rows ? end : rows) / TOGETHER * TOGETHER;
        const int64_t own = p.first + TOGETHER * ((int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5));
        for (int64_t x = own; x < whole; x += TOGETHER * step) {
            if (p.out.dtype == KP_BF16)
                prepare_rows<KP_BF16>(&p, (uint32_t)x);
            else
                prepare_rows<KP_F16>(&p, (uint32_t)x);
        }
        if (whole > from) from = whole;
    }
#else
    const int64_t from = p.first;
#endif
    for (int64_t x = from + (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); x < end; x += step) {
        if (x < rows)
            prepare_row(&p, EARLY ? x : row_at(&p.cycles, (uint32_t)p.in.heads_q, x));
        else
            clear_row(&p, x - rows);
    }
#ifdef CFG_EARLY
    grid_wait();
#endif
}
