/* SPDX-License-Identifier: MIT
 * Part of pingpong.cu, deterministic pairs: the CTAs from bwd.workers on add the rows that the launch before
 * has stored, while the others form those of the next chunk of queries.
 *
 * What segmented_sum.h does, by few SMs that are to read as much as they can while others write. The sorted list is cut
 * in segments of p->segment slots, each for a warp, which adds whole rows in the order of the list: lane c has 16 bytes
 * c and c + 32 of a row and, D = 576, word c of the 128 bytes after them. Rows are copied to a
 * ring in shared memory, UNDER_WAY of them ahead (cp.async: loads to registers that are under way across the loop's end
 * all get one scoreboard, and a wait for the oldest is one for all), and before them what they are and where they
 * stand: keys, slots of batch b + 2 | their rows' places and units of b + 1 | rows of b, b + 1 copied | rows of b added
 * A lane reads only what it has copied itself; entries of the list are for all lanes. */
#ifndef ATTN_SM90_MLA_BWD_OVERLAPPED_SUM_H
#define ATTN_SM90_MLA_BWD_OVERLAPPED_SUM_H
#include "kernels/device/reduce.h"
#include "kernels/device/row16.h"
#include "kernels/device/shared.h"
#include "kernels/params/mla_rows.h"
#include "kernels/sm90/mla_bwd/plan.h"

constexpr uint32_t SUM_WARPS = KP_MLA_BWD_SM90_EVEN_THREADS / 32;
/* Rows of a warp under way; of one batch of the list. Two are added in a step. */
constexpr uint32_t UNDER_WAY = 14, BATCH = 2 * UNDER_WAY, BATCHES = 4;
static_assert(UNDER_WAY % 2 == 0 && BATCH <= 32, "whole steps, a lane for each row of a batch");
static_assert(SUM_WARPS == KP_MLA_ROWS_OVERLAPPED_WARPS, "segments of a CTA");
/* Shared memory of a warp: uint32 [3][BATCHES][BATCH]: keys; slots, then entries of rows; units, f32. */
constexpr uint32_t LIST_KEYS = 0, LIST_ROWS = 4 * BATCHES * BATCH, LIST_UNITS = 2 * LIST_ROWS;
/* Of its segment: list, rows, the key after it; units of the chunk. */
constexpr uint32_t SEGMENT_KEYS = 3 * LIST_ROWS, SEGMENT_SLOTS = SEGMENT_KEYS + 8, SEGMENT_UNITS = SEGMENT_KEYS + 16;
constexpr uint32_t SEGMENT_N = SEGMENT_KEYS + 24, NEXT_KEY = SEGMENT_KEYS + 28, SUM_LISTS = SEGMENT_KEYS + 32;
constexpr uint32_t ROW = 2 * D, SUM_RING = UNDER_WAY * ROW;
static_assert(SUM_WARPS * (SUM_LISTS + SUM_RING) <= KP_MLA_BWD_SM90_SHARED(D), "what its work tiles have otherwise");
/* Stands after a segment and for slots that are not valid, which come last; more than any other key. */
constexpr uint32_t NO_KEY = ~UINT32_C(0);

/* What a lane has of a row: numbers 2 j, 2 j + 1 of 16 bytes c = 4 h + t are columns 32 h + 8 j + 2 t, + 1. */
struct piece {
    uint4 a, b;
    uint32_t c;
};
static __device__ __forceinline__ void copy_piece(uint32_t to, const char *row) {
    const uint32_t lane = threadIdx.x % 32;
    copy_async16_once(to + 16 * lane, row + 16 * lane, 16);
    copy_async16_once(to + 16 * lane + 512, row + 16 * lane + 512, 16);
    if (D > 512) copy_async4(to + 4 * lane + 1024, row + 4 * lane + 1024, 4);
}
static __device__ __forceinline__ struct piece load_piece(uint32_t from) {
    const uint32_t lane = threadIdx.x % 32;
    return {shared_load128(from + 16 * lane), shared_load128(from + 16 * lane + 512),
            D > 512 ? shared_load32(from + 4 * lane + 1024) : 0};
}
static __device__ __forceinline__ void add_piece(float sum[18], const struct piece *x, float unit) {
    row16_add(sum, x->a, unit);
    row16_add(sum + 8, x->b, unit);
    if (D > 512) {
        sum[16] = __fmaf_rn(unpack16(KP_F16, x->c & 0xffff), unit, sum[16]);
        sum[17] = __fmaf_rn(unpack16(KP_F16, x->c >> 16), unit, sum[17]);
    }
}
/* Asked for anew, not kept. */
static __device__ __forceinline__ int lane_now(void) {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
static __device__ __forceinline__ void add_to_row(const struct kp_mla_bwd *p, uint32_t key, const float sum[18]) {
    const uint32_t b = key / (uint32_t)p->in.seq_k, row = key - b * (uint32_t)p->in.seq_k;
    const int lane = lane_now();
    float *to = (float *)p->sum.data + b * p->sum.batch + row * p->sum.row;
    float *first = to + (lane >> 2) * 32 + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 16; i += 2) reduce_add2(first + 256 * (i / 8) + 4 * (i % 8), sum[i], sum[i + 1]);
    if (D > 512) reduce_add2(to + 512 + (lane >> 4) * 32 + (lane >> 2 & 3) * 2 + (lane & 3) * 8, sum[16], sum[17]);
}
static __device__ __forceinline__ void store_part(const struct kp_mla_bwd_rows *p, uint32_t s, int last,
                                                  const float sum[18]) {
    const int lane = lane_now();
    float *to = (float *)p->parts + (2 * (int64_t)s + last) * D;
#pragma unroll
    for (int i = 0; i < 16; i += 4)
        *(float4 *)(to + 8 * lane + 256 * (i / 8) + i % 8) = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    if (D > 512) *(float2 *)(to + 512 + 2 * lane) = make_float2(sum[16], sum[17]);
}

/* Of slot e of a query its rows are TOPK apart, one for each block of heads. */
static __device__ __forceinline__ uint32_t row_of(uint32_t slot, uint32_t topk, uint32_t blocks, uint32_t block) {
    return blocks == 1 ? slot : slot / topk * topk * (blocks - 1) + slot + block * topk;
}
/* What a warp looks up once a batch stands in shared memory, not in registers. */
static __device__ __forceinline__ const uint32_t *pointer_at(uint32_t address) {
    return (const uint32_t *)shared_load64(address);
}
static __device__ __forceinline__ uint32_t entry_at(uint32_t lists, uint32_t batch) {
    return lists + 4 * (batch % BATCHES * BATCH + threadIdx.x % 32);
}
/* Keys and slots of a batch; after the last row, those of the last. */
static __device__ __forceinline__ void prefetch_list(const struct kp_mla_bwd_rows *p, uint32_t lists, uint32_t batch) {
    if (threadIdx.x % 32 >= BATCH) return;
    const uint32_t blocks = (uint32_t)p->bwd.head_blocks, to = entry_at(lists, batch);
    const uint32_t row = min(batch * BATCH + threadIdx.x % 32, shared_load32(lists + SEGMENT_N) - 1);
    const uint32_t slot = blocks == 1 ? row : row / blocks;
    copy_async4(to + LIST_KEYS, pointer_at(lists + SEGMENT_KEYS) + slot, 4);
    copy_async4(to + LIST_ROWS, pointer_at(lists + SEGMENT_SLOTS) + slot, 4);
}
static __device__ __forceinline__ uint32_t none_of(const struct kp_mla_bwd *p) {
    return (uint32_t)p->in.batch * (uint32_t)p->in.seq_k;
}
static __device__ __forceinline__ void prefetch_units(const struct kp_mla_bwd_rows *p, uint32_t lists, uint32_t batch) {
    if (threadIdx.x % 32 >= BATCH) return;
    const uint32_t blocks = (uint32_t)p->bwd.head_blocks, topk = (uint32_t)p->bwd.in.topk;
    const uint32_t n = shared_load32(lists + SEGMENT_N), index = batch * BATCH + threadIdx.x % 32;
    const uint32_t entry = entry_at(lists, batch);
    uint32_t row = shared_load32(entry + LIST_ROWS);
    if (blocks > 1) row = row_of(row, topk, blocks, min(index, n - 1) % blocks);
    if (blocks > 1) shared_store32(entry + LIST_ROWS, row);
    if (index >= n || shared_load32(entry + LIST_KEYS) == none_of(&p->bwd)) shared_store32(entry + LIST_KEYS, NO_KEY);
    copy_async4(entry + LIST_UNITS, pointer_at(lists + SEGMENT_UNITS) + row / 4, 4); /* it and its neighbours */
}
static __device__ __forceinline__ void find_unit(uint32_t lists, uint32_t batch) {
    if (threadIdx.x % 32 >= BATCH) return;
    const uint32_t entry = entry_at(lists, batch), byte = shared_load32(entry + LIST_ROWS) % 4;
    const float unit = row16_unit_of(shared_load32(entry + LIST_UNITS) >> 8 * byte & 255);
    shared_store32(entry + LIST_UNITS, __float_as_uint(unit));
}
/* When rows of batch - 1 have been added, and half of batch is under way. What is asked for here is in the group of the
 * rows that are copied next, and so there a batch later; what was asked for a batch ago is there. */
static __device__ __forceinline__ void advance_lists(const struct kp_mla_bwd_rows *p, uint32_t lists, uint32_t batch) {
    find_unit(lists, batch);
    prefetch_units(p, lists, batch + 1);
    __syncwarp();
    prefetch_list(p, lists, batch + 2);
}
/* The rows of two entries are copied to slots u, u + 1 of the ring: a group. */
static __device__ __forceinline__ void copy_rows(const char *rows, uint32_t ring, uint32_t u, uint32_t entries) {
    const uint2 row = shared_load32x2(entries);
    copy_piece(ring + u * ROW, rows + (uint64_t)row.x * ROW);
    copy_piece(ring + (u + 1) * ROW, rows + (uint64_t)row.y * ROW);
    copy_commit();
}

/* Segment s, by a warp; lists: its part of shared memory for them, ring: for rows. */
static __device__ __forceinline__ void sum_segment(const struct kp_mla_bwd_rows *p, uint32_t s, uint32_t lists,
                                                   uint32_t ring) {
    const char *rows = (const char *)p->rows;
    uint32_t key;
    int before;
    {
        const uint64_t from = (uint64_t)s * (uint32_t)p->segment;
        const uint32_t *keys = (const uint32_t *)p->keys + from, none = none_of(&p->bwd);
        if (from >= (uint64_t)p->n || keys[0] == none) return;
        const uint32_t n = (uint32_t)min((uint64_t)p->n - from, (uint64_t)p->segment);
        key = keys[0];
        before = from > 0 && keys[-1] == key;
        shared_store64(lists + SEGMENT_KEYS, (uint64_t)keys);
        shared_store64(lists + SEGMENT_SLOTS, p->slots + 4 * from);
        shared_store64(lists + SEGMENT_UNITS, (uint64_t)(rows + p->n * p->bwd.head_blocks * ROW));
        shared_store32(lists + SEGMENT_N, n * (uint32_t)p->bwd.head_blocks);
        shared_store32(lists + NEXT_KEY, from + n < (uint64_t)p->n ? keys[n] : NO_KEY);
        __syncwarp();
    }
    prefetch_list(p, lists, 0);
    copy_commit();
    copy_wait(0);
    prefetch_units(p, lists, 0);
    __syncwarp();
    prefetch_list(p, lists, 1);
    copy_commit();
    copy_wait(0);
#pragma unroll
    for (uint32_t u = 0; u < UNDER_WAY; u += 2) copy_rows(rows, ring, u, lists + LIST_ROWS + 4 * u);
    float sum[18];
#pragma unroll
    for (int i = 0; i < 18; i++) sum[i] = 0;
#pragma unroll 1
    for (uint32_t batch = 0;; batch++) {
        advance_lists(p, lists, batch);
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t current = lists + 4 * (batch % BATCHES * BATCH + half * UNDER_WAY);
            const uint32_t next = lists + 4 * ((batch + half) % BATCHES * BATCH + (half ^ 1) * UNDER_WAY);
#pragma unroll
            for (uint32_t u = 0; u < UNDER_WAY; u += 2) {
                copy_wait(UNDER_WAY / 2 - 1);
                const struct piece x = load_piece(ring + u * ROW), y = load_piece(ring + (u + 1) * ROW);
                const uint2 keys = shared_load32x2(current + LIST_KEYS + 4 * u);
                const uint2 units = shared_load32x2(current + LIST_UNITS + 4 * u);
#pragma unroll 1
                for (;;) { /* one kv row after the other */
                    if (keys.x == key) add_piece(sum, &x, __uint_as_float(units.x));
                    if (keys.y == key) add_piece(sum, &y, __uint_as_float(units.y));
                    if (keys.y == key) break;
                    const uint32_t following = keys.x > key ? keys.x : keys.y;
                    const int last = following == NO_KEY;
                    if (before || (last && shared_load32(lists + NEXT_KEY) == key))
                        store_part(p, s, !before, sum);
                    else
                        add_to_row(&p->bwd, key, sum);
                    if (last) {
                        copy_wait(0);
                        return;
                    }
                    before = 0, key = following;
#pragma unroll
                    for (int i = 0; i < 18; i++) sum[i] = 0;
                }
                copy_rows(rows, ring, u, next + LIST_ROWS + 4 * u);
            }
        }
    }
}
/* A CTA that sums: its warps' segments lie apart, since those of slots that are not valid come last. */
static __device__ __forceinline__ void sum_overlapped(const struct kp_mla_bwd_rows *p, uint32_t shared) {
    const uint32_t workers = (uint32_t)p->bwd.workers, warp = threadIdx.x >> 5;
    sum_segment(p, warp * (gridDim.x - workers) + blockIdx.x - workers, shared + warp * SUM_LISTS,
                shared + SUM_WARPS * SUM_LISTS + warp * SUM_RING);
}
#endif
