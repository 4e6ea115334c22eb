/* SPDX-License-Identifier: MIT
 * What the Hopper kernels of the sparse MLA operators share: which query and head block a work tile is, and how the
 * producer warpgroup brings rows (of kv by index, of q or dout by head) into swizzled slices of shared memory.
 *
 * A tile is 64 rows; slice x of it holds elements 64 x .. 64 x + 63 of each, 8192 bytes, see wgmma.h. Thread p of the
 * 128 producers copies chunk p % 8 of rows p / 8 + 16 k (k 0..3) of every slice: 8 threads read a whole 128-byte line.
 */
#ifndef ATTN_SM90_GATHER_H
#define ATTN_SM90_GATHER_H
#include "kernels/device/mbarrier.h"
#include "kernels/device/shared.h"
#include "kernels/device/slots.h"
#include "kernels/params/mla_sm90.h"

constexpr int SLICE = KP_SM90_SLICE;

struct work_tile {
    int64_t b, i; /* batch entry, query */
    int head;     /* first of 64 */
};
/* Head blocks of a query are neighbours: CTAs that run at the same time share its keys in the second-level cache. */
static __device__ __forceinline__ struct work_tile work_tile_of(const struct kp_mla *p, int64_t index) {
    const int64_t blocks = (p->heads_q + 63) / 64, query = index / blocks;
    struct work_tile w;
    w.head = (int)(index - query * blocks) * 64;
    w.b = query / p->seq_q;
    w.i = query - w.b * p->seq_q;
    return w;
}

/* 16 bytes at an address that need not be a multiple of 16: by elements, and ordinary stores. */
static __device__ __noinline__ void copy_slow(uint32_t to, const uint16_t *from, int valid) {
    uint32_t x[4] = {0, 0, 0, 0};
    if (valid)
        for (int e = 0; e < 8; e++) x[e / 2] |= (uint32_t)from[e] << (e % 2 * 16);
    shared_store128(to, make_uint4(x[0], x[1], x[2], x[3]));
}

/* The four rows of one producer thread. */
struct rows {
    const uint16_t *from[4]; /* at the thread's chunk of slice 0 */
    int bytes[4];            /* 16, or 0: zeros */
};
/* Slices first .. first + n - 1 of the tile at `to`. wide: rows start at multiples of 16 bytes. */
static __device__ __forceinline__ void copy_slices(const struct rows *r, uint32_t to, int first, int n, int wide) {
    const int p = (int)threadIdx.x & 127, row = p >> 3;
    const uint32_t lane_at = to + (uint32_t)(row * 128 + (((p & 7) ^ (row & 7)) << 4));
    if (wide) {
#pragma unroll
        for (int x = 0; x < n; x++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                copy_async16(lane_at + (uint32_t)((first + x) * SLICE + k * 2048), r->from[k] + (first + x) * 64,
                             r->bytes[k]);
    } else {
        for (int x = first; x < first + n; x++)
            for (int k = 0; k < 4; k++)
                copy_slow(lane_at + (uint32_t)(x * SLICE + k * 2048), r->from[k] + x * 64, r->bytes[k]);
        async_fence();
    }
}
/* The thread's arrival when its part of copy_slices is there. */
static __device__ __forceinline__ void arrive_copied(uint32_t barrier, int wide) {
    if (wide)
        mbar_arrive_copies(barrier);
    else
        mbar_arrive(barrier);
}

/* Rows w.head .. w.head + 63 of a tensor [B,SQ,HQ,*]; heads that do not exist are zeros. */
static __device__ __forceinline__ void head_rows(struct rows *r, const struct kp_view *v, const struct work_tile *w,
                                                 int heads) {
    const int p = (int)threadIdx.x & 127;
    const uint16_t *base = (const uint16_t *)v->data + w->b * v->batch + w->i * v->row + (p & 7) * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int h = w->head + (p >> 3) + 16 * k;
        r->bytes[k] = h < heads ? 16 : 0;
        r->from[k] = base + (h < heads ? h : 0) * v->head;
    }
}

/* The indices of 64 slots, lane l of each warp holding those of slots l and l + 32, or -1. */
struct indices {
    int32_t lo, hi;
};
static __device__ __forceinline__ struct indices load_indices(const struct slots *s, int t) {
    const int lane = (int)threadIdx.x & 31, slot = t * 64 + lane;
    struct indices x;
    x.lo = slot < s->n ? s->idx[slot] : -1;
    x.hi = slot + 32 < s->n ? s->idx[slot + 32] : -1;
    return x;
}
/* The thread's rows, and in mask[2] which of the 64 slots are valid. */
static __device__ __forceinline__ void key_rows(struct rows *r, uint32_t mask[2], const struct slots *s,
                                                struct indices x, const struct kp_view *kv, int64_t b) {
    const int p = (int)threadIdx.x & 127;
    const uint16_t *base = (const uint16_t *)kv->data + b * kv->batch + (p & 7) * 8;
    mask[0] = __ballot_sync(~0u, slot_valid(s, x.lo));
    mask[1] = __ballot_sync(~0u, slot_valid(s, x.hi));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int slot = (p >> 3) + 16 * (k & 1);
        const int32_t idx = __shfl_sync(~0u, k < 2 ? x.lo : x.hi, slot);
        const uint32_t valid = mask[k >> 1] >> slot & 1;
        r->bytes[k] = valid ? 16 : 0;
        r->from[k] = base + (valid ? idx : 0) * kv->row;
    }
}
#endif
