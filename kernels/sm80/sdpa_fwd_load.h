/* SPDX-License-Identifier: MIT
 * Part of sdpa_fwd.cu: the copies of Q, K and V into shared memory. Included once; the picture and the rules stand
 * there. */
#ifndef ATTN_SM80_SDPA_FWD_LOAD_H
#define ATTN_SM80_SDPA_FWD_LOAD_H
#include "kernels/device/tile_copy.h"
#include "kernels/sm80/sdpa_fwd_work.h"

/* `width` of `dim` columns of one row that exists or not. */
static __device__ __forceinline__ void load_row(uint32_t tile, int thread, int r, const char *from, int exists,
                                                int width, int unit, int dim) {
    const int across = copy_across(dim / 8), c0 = thread % across;
#pragma unroll
    for (int c = 0; c < dim / 8; c += across) {
        const int bytes = exists ? max(min(2 * width - 16 * (c0 + c), 16), 0) : 0;
        copy_chunk(tile + tile_at(PITCH, r, c0 + c), from + 16 * (c0 + c), bytes, unit);
    }
}

static __device__ __forceinline__ void load_queries(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base) {
    constexpr int ACROSS = copy_across(DIM / 8), DOWN = THREADS / ACROSS;
    const char *q = (const char *)p->in.q.data + 2 * (w->b * p->in.q.batch + w->seq.q0 * p->in.q.row);
    static_assert(ROWS % DOWN == 0 && DOWN % 8 == 0, "whole passes of whole swizzle periods");
    const int r0 = (int)threadIdx.x / ACROSS, c0 = (int)threadIdx.x % ACROSS;
    if (p->pack == 1 && p->in.q.chunk == 16 && p->in.dim_qk == DIM && w->row0 + ROWS <= w->n_rows) {
        const char *row = q + 2 * (w->head * p->in.q.head + (w->row0 + r0) * p->in.q.row) + 16 * c0;
        const int64_t stride = 2 * p->in.q.row * DOWN;
        const uint32_t to = base + tile_at(PITCH, r0, c0);
#pragma unroll
        for (int r = 0; r < ROWS; r += DOWN, row += stride)
#pragma unroll
            for (int c = 0; c < DIM / 8; c += ACROSS) copy_async16_whole(to + r * PITCH + 16 * c, row + 16 * c);
        return;
    }
#pragma unroll 1
    for (int r = r0; r < ROWS; r += DOWN) {
        const int row = w->row0 + r, i = query_of(p, row);
        const char *from = q + 2 * ((w->head * p->pack + row - i * p->pack) * p->in.q.head + i * p->in.q.row);
        load_row(base, (int)threadIdx.x, r, from, row < w->n_rows, p->in.dim_qk, p->in.q.chunk, DIM);
    }
}

/* A negative scale: turn the sign of every element of the Q tile. */
static __device__ __forceinline__ void flip_queries(uint32_t base) {
    for (int x = (int)threadIdx.x * 16; x < ROWS * PITCH; x += THREADS * 16) {
        uint4 a = shared_load128(base + x);
        const uint32_t signs = 0x80008000u;
        shared_store128(base + x, make_uint4(a.x ^ signs, a.y ^ signs, a.z ^ signs, a.w ^ signs));
    }
}

/* Start the copy of one tile of K (is_v = 0) or V. `from` is row 0 of the sequence and head, pages apart. */
static __device__ __forceinline__ void load_keys(const struct kp_sdpa_fwd *p, const struct work *w, uint32_t base,
                                                 uint32_t slot, const char *from, int j0, int is_v) {
    const struct kp_view *v = is_v ? &p->in.v : &p->in.k;
    const int dim = is_v ? DIM_V : DIM, width = is_v ? p->in.dim_v : p->in.dim_qk;
    const int thread = thread_of(), across = copy_across(dim / 8), down = THREADS / across, r0 = thread / across;
    static_assert(KEYS % (THREADS / 4) == 0 || KEYS % (THREADS / 8) == 0, "whole passes");
    if (has_pages(p)) {
        const int32_t *table = (const int32_t *)p->in.block_table + w->b * p->in.table_batch;
        const uint32_t page_size = (uint32_t)p->in.page_size;
#pragma unroll 1
        for (int r = r0; r < KEYS; r += down) {
            const uint32_t j = (uint32_t)(j0 + r);
            int64_t page = j < (uint32_t)w->seq.sk ? table[j / page_size] : -1;
            const int exists = page >= 0 && page < p->in.n_pages;
            if (!exists) page = 0;
            if (FULL && !is_v && thread % across == 0)
                shared_store8(base + BAD_PAGE + (j0 / KEYS & 1) * 64 + r, !exists);
            load_row(slot, thread, r, from + 2 * (page * v->batch + j % page_size * v->row), exists, width, v->chunk,
                     dim);
        }
        return;
    }
    const int64_t stride = 2 * v->row * down;
    const char *row = from + 2 * ((j0 + r0) * v->row);
    if (v->chunk == 16 && width == dim && j0 + KEYS <= w->seq.sk) {
        const uint32_t to =
            slot + tile_at(PITCH, r0, thread % across); /* `down` rows, `across` chunks on: the same swizzle */
        static_assert(THREADS / 8 % 8 == 0, "a pass is whole swizzle periods");
        row += 16 * (thread % across);
#pragma unroll
        for (int r = 0; r < KEYS; r += down, row += stride)
#pragma unroll
            for (int c = 0; c < dim / 8; c += across) copy_async16_whole(to + r * PITCH + 16 * c, row + 16 * c);
        return;
    }
#pragma unroll 1
    for (int r = r0; r < KEYS; r += down, row += stride)
        load_row(slot, thread, r, row, j0 + r < w->seq.sk, width, v->chunk, dim);
}
#endif
