/* SPDX-License-Identifier: MIT
 * Rows of kv that a query's slots name, gathered into a tile in shared memory by cp.async; rows of any 16-bit tensor in
 * 16-byte chunks. Shared by the sparse MLA kernels on mma.sync. Which slots are valid is device/slots.h's business.
 *
 * Eight threads side by side copy a row, 128 bytes at a time; thread x of the CTA owns chunk x % 8 of rows x / 8,
 * x / 8 + threads / 8, ... The caller keeps the rows' numbers of a coming tile in registers (find_rows), so that the
 * copies (gather_rows) start without waiting for the index list. Invalid slots are zero-filled; nothing is read for
 * them. The caller commits and waits. */
#ifndef ATTN_SM80_MLA_LOAD_H
#define ATTN_SM80_MLA_LOAD_H
#include "kernels/device/shared.h"
#include "kernels/device/slots.h"

/* 16 bytes by the largest copy that address and strides allow (unit 16, 4 or 2); zeros, and nothing is read, if the row
 * does not exist. Unit 2 is a plain load and store: visible after the next barrier, as the others after copy_wait. */
static __device__ __forceinline__ void copy_chunk(uint32_t to, const char *from, int exists, int unit) {
    if (unit == 16) {
        copy_async16(to, from, exists ? 16 : 0);
    } else if (unit == 4) {
#pragma unroll
        for (int x = 0; x < 16; x += 4) copy_async4(to + x, from + x, exists ? 4 : 0);
    } else {
        const uint16_t *element = (const uint16_t *)from;
        uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int x = 0; x < 4; x++)
            if (exists) word[x] = element[2 * x] | (uint32_t)element[2 * x + 1] << 16;
        shared_store128(to, make_uint4(word[0], word[1], word[2], word[3]));
    }
}

/* What a CTA gathers from. */
struct gather {
    struct slots slots;
    const char *kv; /* row 0 of the batch entry */
};

static __device__ __forceinline__ struct gather gather_of(const struct kp_mla *p, int64_t b, int64_t i) {
    struct gather g;
    g.slots = slots_of(p, b, i);
    g.kv = (const char *)p->kv.data + 2 * b * p->kv.batch;
    return g;
}

/* Row of kv that slot t names; -1 if the slot is invalid. */
static __device__ __forceinline__ int row_of_slot(const struct slots *s, int t) {
    const int idx = t < s->n ? s->idx[t] : -1;
    return slot_valid(s, idx) ? idx : -1;
}

/* rows[x] = kv row of slot t0 + thread / 8 + x * (threads / 8), for the tile's `keys` slots. */
static __device__ __forceinline__ void find_rows(const struct gather *g, int t0, int keys, int threads, int thread,
                                                 int *rows) {
#pragma unroll
    for (int x = 0; x < keys / (threads / 8); x++)
        rows[x] = row_of_slot(&g->slots, t0 + thread / 8 + x * (threads / 8));
}

/* Start the copies of the rows found: `dim` columns each, to a tile of pitch 2 * dim. flags: a byte per slot of the
 * tile, 1 = valid. threads / 8 is a multiple of 8, so that all rows of a thread share their swizzle. */
static __device__ __forceinline__ void gather_rows(const struct kp_mla *p, const struct gather *g, uint32_t tile,
                                                   uint32_t flags, int dim, int keys, int threads, int thread,
                                                   const int *rows) {
    const int down = threads / 8, pitch = 2 * dim, r0 = thread / 8, c0 = thread % 8;
    const uint32_t to = tile + tile_at(pitch, r0, c0);
    const char *kv = g->kv + 16 * c0;
#pragma unroll
    for (int x = 0; x < keys / down; x++) {
        const int exists = rows[x] >= 0;
        const char *from = kv + 2 * (exists ? (int64_t)rows[x] * p->kv.row : 0);
        if (c0 == 0) shared_store8(flags + r0 + x * down, (uint32_t)exists);
        if (p->kv.chunk == 16) {
#pragma unroll
            for (int c = 0; c < dim / 8; c += 8)
                copy_async16(to + x * down * pitch + 16 * c, from + 16 * c, exists ? 16 : 0);
        } else {
#pragma unroll 1
            for (int c = 0; c < dim / 8; c += 8)
                copy_chunk(to + x * down * pitch + 16 * c, from + 16 * c, exists, p->kv.chunk);
        }
    }
}
#endif
