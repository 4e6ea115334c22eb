/* SPDX-License-Identifier: MIT
 * Last steps of a sparse MLA backward, a variant for each: what was summed in f32 becomes the outputs. Every chip, any
 * strides, no shared memory but 1 KiB for dsink. All sums run in one fixed order.
 *
 *   DKV    sum [B,SK,D] (+ dkv if it accumulates) --round--> dkv          a warp per row
 *   DIST   part_dist [block][query][place] --sum over blocks, norm--> dist  a warp per query; invalid slots are 0; a
 *          slot's place in its list is its own or, where mla_bwd_ranges.cu has ordered the list, positions[query][slot]
 *   DQ     part_dq [work tile][part][head][D] --sum over parts--round--> dq     a warp per query, head and 128 columns
 *   JOINED_DIST, JOINED_DQ  these two of joined lists (struct kp_mla_bwd_joined), where a query's slots name entries
 *   DSINK  row_stats[query][h].dsink --sum over queries--> dsink[h]            a CTA per head, in double */
#include "kernels/device/number.h"
#include "kernels/device/slots.h"
#include "kernels/device/warp.h"
#include "kernels/params/mla_bwd_joined.h"
#include "kernels/params/mla_ranges.h"

constexpr int THREADS = CFG_THREADS, WARPS = THREADS / 32, TASK = CFG_TASK;
constexpr int AT_ONCE = 8; /* slots that a lane loads together */
static_assert(TASK >= KP_MLA_BWD_DKV && TASK <= KP_MLA_BWD_JOINED_DQ, "no such step");

static __device__ __forceinline__ int lane_of(void) { return (int)threadIdx.x & 31; }

/* ------------------------------------------------------------------ dkv ---------------------------- */

static __device__ __forceinline__ void round_row(const struct kp_mla_bwd *p, int64_t row) {
    const int64_t b = row / p->in.seq_k, j = row % p->in.seq_k;
    const float *from = (const float *)p->sum.data + b * p->sum.batch + j * p->sum.row;
    const int64_t to = b * p->dkv.batch + j * p->dkv.row;
    const int add = (p->steps & KP_MLA_BWD_ACCUMULATE) != 0, permuted = (p->steps & KP_MLA_BWD_PERMUTED) != 0;
#pragma unroll 1
    for (int c = 4 * lane_of(); c < p->in.dim_qk; c += 128) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = from[permuted ? (c & ~15) + 4 * ((c >> 1 & 3) + (e >> 1)) + 2 * (c >> 3 & 1) + (e & 1) : c + e];
        if (add)
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] += load_number((const void *)p->dkv.data, to + c + e, p->dkv.dtype);
        if (p->dkv.dtype == KP_F32) {
#pragma unroll
            for (int e = 0; e < 4; e++) ((float *)p->dkv.data)[to + c + e] = x[e];
        } else {
            uint16_t *columns = (uint16_t *)p->dkv.data + to + c;
            const uint32_t lo = pack16(p->dkv.dtype, x[0], x[1]), hi = pack16(p->dkv.dtype, x[2], x[3]);
            if (p->dkv.chunk == 16) {
                *(uint2 *)columns = make_uint2(lo, hi);
            } else {
                columns[0] = (uint16_t)lo, columns[1] = (uint16_t)(lo >> 16);
                columns[2] = (uint16_t)hi, columns[3] = (uint16_t)(hi >> 16);
            }
        }
    }
}

/* ------------------------------------------------------------------ dq ----------------------------- */

/* Columns c .. c + 3 of head h of query i of batch entry b: the sums of its parts, `part` numbers apart. */
static __device__ __forceinline__ void round_parts(const struct kp_mla_bwd *p, const float *from, int64_t part,
                                                   int64_t b, int64_t i, int64_t h, int64_t c) {
    const int empty = ((const struct kp_mla_row *)p->row_stats)[(b * p->in.seq_q + i) * p->in.heads_q + h].lse2 == INF;
    uint16_t *to = (uint16_t *)p->dq.data + b * p->dq.batch + i * p->dq.row + h * p->dq.head;
    if (c >= p->in.dim_qk) return;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int k = 0; !empty && k < p->parts; k++) {
        const float4 y = *(const float4 *)(from + k * part + c);
        sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
    }
    *(uint2 *)(to + c) = make_uint2(pack16(p->dq.dtype, sum.x, sum.y), pack16(p->dq.dtype, sum.z, sum.w));
}

/* 32 bits count pieces of rows: each has 256 bytes of q, and 1 KiB of part_dq for two parts and more. */
static __device__ __forceinline__ void round_query(const struct kp_mla_bwd *p, uint32_t x, uint32_t pieces) {
    const uint32_t row = x / pieces, query = row / (uint32_t)p->in.heads_q;
    const int h = (int)(row % (uint32_t)p->in.heads_q), block = h / p->head_block;
    const int64_t d = p->in.dim_qk, part = (int64_t)p->head_block * d, tile = (int64_t)query * p->head_blocks + block;
    const float *from = (const float *)p->part_dq + tile * p->parts * part + (h - block * p->head_block) * d;
    const int64_t flat = p->first + query;
    round_parts(p, from, part, flat / p->in.seq_q, flat % p->in.seq_q, h, x % pieces * 128 + 4 * lane_of());
}

/* The same of row x / pieces of the work tiles of joined lists, group << shift rows each. */
static __device__ __forceinline__ void round_joined(const struct kp_mla_bwd_joined *all, int64_t x, int64_t pieces) {
    const struct kp_mla_bwd *p = &all->bwd;
    const struct kp_mla_joined *j = &all->joined;
    const int rows = j->group << j->shift;
    const int64_t tile = x / pieces / rows, local = tile / p->head_blocks, number = p->first + local;
    const int64_t b = number / j->groups, d = p->in.dim_qk;
    const int row = (int)(x / pieces % rows),
              h = ((int)(tile - local * p->head_blocks) << j->shift) | (row & ((1 << j->shift) - 1));
    const int64_t i = (number - b * j->groups) * j->group + (row >> j->shift);
    if (i >= p->in.seq_q || h >= p->in.heads_q) return;
    round_parts(p, (const float *)p->part_dq + (tile * p->parts * rows + row) * d, rows * d, b, i, h,
                x % pieces * 128 + 4 * lane_of());
}

/* ------------------------------------------------------------------ dist --------------------------- */

/* What a query's slots sum up: those before n that are valid, the places of these in the sums of a block, and how far
 * the next block's are. */
struct sums {
    struct slots slots;
    const int32_t *positions;   /* of slots, or 0 */
    const uint16_t *entries; /* the same, where an invalid slot has 0xffff, or 0; then `slots` tells no more than n */
    const float *from;
    int64_t block;
};

/* Slots t + 32 k, all loads of a kind under way at once; 0 where there is no valid one. */
static __device__ __forceinline__ void sum_blocks(const struct kp_mla_bwd *p, const struct sums *s, int t,
                                                  float x[AT_ONCE]) {
    int place[AT_ONCE];
    if (s->entries) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) place[k] = t + 32 * k < s->slots.n ? s->entries[t + 32 * k] : 0xffff;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) place[k] = place[k] == 0xffff ? -1 : place[k];
    } else {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) place[k] = t + 32 * k < s->slots.n ? s->slots.idx[t + 32 * k] : -1;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) place[k] = slot_valid(&s->slots, place[k]) ? t + 32 * k : -1;
    }
    if (s->positions)
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (place[k] >= 0) place[k] = s->positions[place[k]];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) x[k] = 0;
#if CFG_TASK == KP_MLA_BWD_JOINED_DIST
#pragma unroll 1 /* one or two */
#endif
    for (int block = 0; block < p->dist_blocks; block++) {
        const float *from = s->from + block * s->block;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) x[k] += place[k] >= 0 ? from[place[k]] : 0;
    }
}

static __device__ __forceinline__ void finish_dist(const struct kp_mla_bwd *p, const struct sums *sums, int64_t b,
                                                   int64_t i) {
    float *to = (float *)p->dist.data + b * p->dist.batch + i * p->dist.row;
    float factor = p->dist_norm == KP_DIST_MEAN ? 1 / (float)p->in.heads_q : 1, x[AT_ONCE];
    if (p->dist_norm == KP_DIST_L1) {
        float all = 0;
        for (int t = lane_of(); t < sums->slots.n; t += 32 * AT_ONCE) {
            sum_blocks(p, sums, t, x);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) all += x[k];
        }
        all = warp_sum(all);
        factor = all == 0 ? 0 : 1 / all;
    }
    for (int t = lane_of(); t < p->in.topk; t += 32 * AT_ONCE) {
        sum_blocks(p, sums, t, x);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (t + 32 * k < p->in.topk) to[t + 32 * k] = x[k] * factor;
    }
}

static __device__ __forceinline__ void finish_listed(const struct kp_mla_bwd_ranges *ranges, int64_t flat) {
    const struct kp_mla_bwd *p = &ranges->bwd;
    const int64_t b = flat / p->in.seq_q, i = flat % p->in.seq_q;
    struct sums s = {};
    s.slots = slots_of(&p->in, b, i);
    s.positions = ranges->positions ? (const int32_t *)ranges->positions + flat * p->in.topk : 0;
    s.from = (const float *)p->part_dist + flat * p->in.topk;
    s.block = p->in.batch * p->in.seq_q * p->in.topk;
    finish_dist(p, &s, b, i);
}

/* Query x of the groups that the main kernel has taken, short ones having as many as others. */
static __device__ __forceinline__ void finish_joined(const struct kp_mla_bwd_joined *all, int64_t x) {
    const struct kp_mla_bwd *p = &all->bwd;
    const struct kp_mla_joined *j = &all->joined;
    const uint32_t query = (uint32_t)x % (uint32_t)j->group, groups = (uint32_t)j->groups; /* 32 bits count queries */
    const uint32_t number = (uint32_t)p->first + (uint32_t)x / (uint32_t)j->group;
    const int64_t b = number / groups, group = number % groups, i = group * j->group + query;
    const int64_t entries = j->bits - j->keys;
    const int32_t *words = (const int32_t *)j->data + b * j->batch + group * j->row;
    if (i >= p->in.seq_q) return;
    struct sums s = {};
    if (words[KP_JOINED_FLAGS] & 1) {
        s.slots = slots_of(&p->in, b, i);
    } else {
        s.slots.n = p->in.topk;
        s.entries = (const uint16_t *)(words + j->slots + query * j->slots_row);
    }
    s.from = (const float *)p->part_dist + x * entries;
    s.block = p->n * j->group * entries;
    finish_dist(p, &s, b, i);
}

/* ------------------------------------------------------------------ dsink -------------------------- */

static __device__ __forceinline__ void finish_dsink(const struct kp_mla_bwd *p, int64_t h) {
    __shared__ double share[WARPS];
    const struct kp_mla_row *rows = (const struct kp_mla_row *)p->row_stats;
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

template <int STEP> struct params_of { using type = struct kp_mla_bwd_ranges; };
template <> struct params_of<KP_MLA_BWD_JOINED_DIST> { using type = struct kp_mla_bwd_joined; };
template <> struct params_of<KP_MLA_BWD_JOINED_DQ> { using type = struct kp_mla_bwd_joined; };

extern "C" __global__ void __launch_bounds__(THREADS) CFG(const __grid_constant__ params_of<TASK>::type p) {
    if (TASK == KP_MLA_BWD_DSINK) {
        for (int64_t h = blockIdx.x; h < p.bwd.in.heads_q; h += gridDim.x) finish_dsink(&p.bwd, h);
        return;
    }
    const int64_t pieces = (p.bwd.in.dim_qk + 127) / 128;                          /* of 128 columns */
    const struct kp_mla_bwd_joined *joined = (const struct kp_mla_bwd_joined *)&p; /* tasks of joined lists */
    const int64_t rows = TASK == KP_MLA_BWD_JOINED_DQ ? joined->joined.group << joined->joined.shift : 0;
    const int64_t n = TASK == KP_MLA_BWD_DQ            ? p.bwd.n * p.bwd.in.heads_q * pieces
                      : TASK == KP_MLA_BWD_DKV         ? p.bwd.in.batch * p.bwd.in.seq_k
                      : TASK == KP_MLA_BWD_JOINED_DIST ? p.bwd.n * joined->joined.group
                      : TASK == KP_MLA_BWD_JOINED_DQ   ? p.bwd.n * p.bwd.head_blocks * rows * pieces
                                                       : p.bwd.in.batch * p.bwd.in.seq_q;
    for (int64_t x = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); x < n; x += (int64_t)gridDim.x * WARPS) {
        if (TASK == KP_MLA_BWD_DKV)
            round_row(&p.bwd, x);
        else if (TASK == KP_MLA_BWD_DQ)
            round_query(&p.bwd, (uint32_t)x, (uint32_t)pieces);
        else if (TASK == KP_MLA_BWD_JOINED_DIST)
            finish_joined(joined, x);
        else if (TASK == KP_MLA_BWD_JOINED_DQ)
            round_joined(joined, x, pieces);
        else
            finish_listed((const struct kp_mla_bwd_ranges *)&p, x);
    }
}
