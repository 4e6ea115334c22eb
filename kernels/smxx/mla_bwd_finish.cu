/* SPDX-License-Identifier: MIT
 * Last steps of a sparse MLA backward, a variant for each: what was summed in f32 becomes the outputs. Every chip, any
 * strides, no shared memory but 1 KiB for dsink. All sums run in one fixed order.
 *
 *   DKV    sum [B,SK,D] (+ dkv if it accumulates) --round--> dkv          a warp per row
 *   DIST   part_dist [block][query][place] --sum over blocks, norm--> dist  a warp per query; invalid slots are 0; a
 *          slot's place in its list is its own or, where mla_bwd_ranges.cu has ordered the list, places[query][slot]
 *   DQ     part_dq [item][part][head][D] --sum over parts--round--> dq     a warp per query, head and 128 columns
 *   DSINK  rows[query][h].dsink --sum over queries--> dsink[h]            a CTA per head, in double */
#include "kernels/device/number.h"
#include "kernels/device/slots.h"
#include "kernels/device/warp.h"
#include "kernels/params/mla_ranges.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, TASK = CFG_TASK;
constexpr int AT_ONCE = 8; /* slots that a lane loads together */
static_assert(TASK >= KP_MLA_BWD_DKV && TASK <= KP_MLA_BWD_DQ, "no such step");

static __device__ __forceinline__ int lane_of(void) { return (int)threadIdx.x & 31; }

/* ------------------------------------------------------------------ dkv ---------------------------- */

static __device__ __forceinline__ void round_row(const struct kp_mla_bwd *p, int64_t row) {
    const int64_t b = row / p->in.seq_k, j = row % p->in.seq_k;
    const float *from = (const float *)p->sum.data + b * p->sum.batch + j * p->sum.row;
    const int64_t to = b * p->dkv.batch + j * p->dkv.row;
    const int add = (p->steps & KP_MLA_BWD_ACCUMULATE) != 0, turned = (p->steps & KP_MLA_BWD_TURNED) != 0;
#pragma unroll 1
    for (int c = 4 * lane_of(); c < p->in.dim_qk; c += 128) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = from[turned ? (c & ~15) + 4 * ((c >> 1 & 3) + (e >> 1)) + 2 * (c >> 3 & 1) + (e & 1) : c + e];
        if (add)
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] += load_number((const void *)p->dkv.data, to + c + e, p->dkv.dtype);
        if (p->dkv.dtype == KP_F32) {
#pragma unroll
            for (int e = 0; e < 4; e++) ((float *)p->dkv.data)[to + c + e] = x[e];
        } else {
            uint16_t *at = (uint16_t *)p->dkv.data + to + c;
            const uint32_t lo = pack16(p->dkv.dtype, x[0], x[1]), hi = pack16(p->dkv.dtype, x[2], x[3]);
            if (p->dkv.chunk == 16) {
                *(uint2 *)at = make_uint2(lo, hi);
            } else {
                at[0] = (uint16_t)lo, at[1] = (uint16_t)(lo >> 16);
                at[2] = (uint16_t)hi, at[3] = (uint16_t)(hi >> 16);
            }
        }
    }
}

/* ------------------------------------------------------------------ dq ----------------------------- */

static __device__ __forceinline__ void round_query(const struct kp_mla_bwd *p, int64_t x, int64_t pieces) {
    const int64_t row = x / pieces, query = row / p->in.heads_q, flat = p->first + query, d = p->in.dim_qk;
    const int64_t c = x % pieces * 128 + 4 * lane_of();
    const int h = (int)(row % p->in.heads_q), block = h / p->head_block;
    const int64_t part = (int64_t)p->head_block * d, item = query * p->head_blocks + block;
    const float *from = (const float *)p->part_dq + item * p->parts * part + (h - block * p->head_block) * d;
    const int empty = ((const struct kp_mla_row *)p->rows)[flat * p->in.heads_q + h].lse2 == INF;
    uint16_t *to = (uint16_t *)p->dq.data + flat / p->in.seq_q * p->dq.batch + flat % p->in.seq_q * p->dq.row +
                   h * p->dq.head;
    if (c >= d) return;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int k = 0; !empty && k < p->parts; k++) {
        const float4 y = *(const float4 *)(from + k * part + c);
        sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
    }
    *(uint2 *)(to + c) = make_uint2(pack16(p->dq.dtype, sum.x, sum.y), pack16(p->dq.dtype, sum.z, sum.w));
}

/* ------------------------------------------------------------------ dist --------------------------- */

/* Slots t + 32 k of a query, all loads of a kind under way at once; 0 where there is no valid one. */
static __device__ __forceinline__ void sum_blocks(const struct kp_mla_bwd_ranges *all, const struct slots *s,
                                                  int64_t flat, int t, float x[AT_ONCE]) {
    const struct kp_mla_bwd *p = &all->bwd;
    int at[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) at[k] = t + 32 * k < s->n ? s->idx[t + 32 * k] : -1;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) at[k] = slot_valid(s, at[k]) ? t + 32 * k : -1;
    if (all->places)
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (at[k] >= 0) at[k] = ((const int32_t *)all->places)[flat * p->in.topk + at[k]];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) x[k] = 0;
    for (int block = 0; block < p->dist_blocks; block++) {
        const float *from = (const float *)p->part_dist + (block * p->in.batch * p->in.seq_q + flat) * p->in.topk;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) x[k] += at[k] >= 0 ? from[at[k]] : 0;
    }
}

static __device__ __forceinline__ void finish_dist(const struct kp_mla_bwd_ranges *ranges, int64_t flat) {
    const struct kp_mla_bwd *p = &ranges->bwd;
    const int64_t b = flat / p->in.seq_q, i = flat % p->in.seq_q;
    const struct slots s = slots_of(&p->in, b, i);
    float *to = (float *)p->dist.data + b * p->dist.batch + i * p->dist.row;
    float factor = p->dist_norm == KP_DIST_MEAN ? 1 / (float)p->in.heads_q : 1, x[AT_ONCE];
    if (p->dist_norm == KP_DIST_L1) {
        float all = 0;
        for (int t = lane_of(); t < s.n; t += 32 * AT_ONCE) {
            sum_blocks(ranges, &s, flat, t, x);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) all += x[k];
        }
        all = warp_sum(all);
        factor = all == 0 ? 0 : 1 / all;
    }
    for (int t = lane_of(); t < p->in.topk; t += 32 * AT_ONCE) {
        sum_blocks(ranges, &s, flat, t, x);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (t + 32 * k < p->in.topk) to[t + 32 * k] = x[k] * factor;
    }
}

/* ------------------------------------------------------------------ dsink -------------------------- */

static __device__ __forceinline__ void finish_dsink(const struct kp_mla_bwd *p, int64_t h) {
    __shared__ double share[WARPS];
    const struct kp_mla_row *rows = (const struct kp_mla_row *)p->rows;
    const int64_t n = p->in.batch * p->in.seq_q;
    double x = 0;
#pragma unroll 4
    for (int64_t r = threadIdx.x; r < n; r += THREADS) x += (double)rows[r * p->in.heads_q + h].dsink;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    if (lane_of() == 0) share[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) x += share[w];
        ((float *)p->dsink)[h * p->dsink_head] = (float)x;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ struct kp_mla_bwd_ranges p) {
    if (TASK == KP_MLA_BWD_DSINK) {
        for (int64_t h = blockIdx.x; h < p.bwd.in.heads_q; h += gridDim.x) finish_dsink(&p.bwd, h);
        return;
    }
    const int64_t pieces = (p.bwd.in.dim_qk + 127) / 128; /* of 128 columns */
    const int64_t n = TASK == KP_MLA_BWD_DQ    ? p.bwd.n * p.bwd.in.heads_q * pieces
                      : TASK == KP_MLA_BWD_DKV ? p.bwd.in.batch * p.bwd.in.seq_k
                                               : p.bwd.in.batch * p.bwd.in.seq_q;
    for (int64_t x = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); x < n; x += (int64_t)gridDim.x * WARPS) {
        if (TASK == KP_MLA_BWD_DKV)
            round_row(&p.bwd, x);
        else if (TASK == KP_MLA_BWD_DQ)
            round_query(&p.bwd, x, pieces);
        else
            finish_dist(&p, x);
    }
}
