/* SPDX-License-Identifier: MIT
 * Part of sum_rows.cu: adds the rows that stored_rows.h stored
 * for the slots to the kv rows that they name.
 *
 * The sorted list is cut in segments of KP_MLA_ROWS_SEGMENT slots, each for a team of D / 8 threads; thread c adds
 * 16 bytes c of the slots' rows in the order of the list. Where the kv row changes, what was added
 *   belongs to a kv row all of whose slots are in the segment  --> + sum[kv row]
 *   else, to its first or its last kv row                      --> shared memory, for fixup_teams()
 * which adds up what the teams of a CTA have of a kv row:
 *   all its slots are the CTA's                                --> + sum[kv row]
 *   else, the CTA's first or last kv row                       --> parts[CTA][0 or 1]
 * which fixup() adds up afterwards. So the order in which a kv row's slots are added depends on the list alone, and no
 * segment is longer than another, whatever the lists are like. */
#ifndef ATTN_SM90_MLA_BWD_SEGMENTED_SUM_H
#define ATTN_SM90_MLA_BWD_SEGMENTED_SUM_H
#include "kernels/device/row16.h"
#include "kernels/params/mla_rows.h"

constexpr uint32_t SEGMENT = KP_MLA_ROWS_SEGMENT, AHEAD = 8, TEAMS = KP_MLA_ROWS_TEAMS(576);
static_assert(TEAMS == KP_MLA_ROWS_TEAMS(512), "as many for both");
static_assert(SEGMENT % AHEAD == 0 && AHEAD == 8, "whole groups of slots, read as two vectors");

/* The sorted list; none: the key of slots that are not valid, which come last. */
struct list {
    const uint32_t *keys, *slots;
    uint32_t n, none, length; /* length: of a segment */
};
static __device__ __forceinline__ struct list list_of(const struct kp_mla_bwd_rows *p) {
    return {(const uint32_t *)p->keys, (const uint32_t *)p->slots, (uint32_t)p->n,
            (uint32_t)(p->bwd.in.batch * p->bwd.in.seq_k), (uint32_t)p->segment};
}
static __device__ __forceinline__ uint32_t n_segments_of(const struct list *l) {
    return (l->n + l->length - 1) / l->length;
}
/* The slots of a segment. */
struct segment {
    uint32_t from, end;
};
static __device__ __forceinline__ struct segment segment_of(const struct list *l, uint32_t s, uint32_t length) {
    return {s * length, min(s * length + length, l->n)};
}
/* Whether slots of its first key stand before it, of its last after it. */
static __device__ __forceinline__ int began_before(const struct list *l, const struct segment *x, uint32_t key) {
    return x->from > 0 && l->keys[x->from - 1] == key;
}
static __device__ __forceinline__ int goes_on(const struct list *l, const struct segment *x, uint32_t key) {
    return x->end < l->n && l->keys[x->end] == key;
}

/* Columns 8 j + 2 t, + 1 of 32 h .. are numbers 2 j, 2 j + 1 of 16 bytes c = 4 h + t. */
static __device__ __forceinline__ void add_to_sum(const struct kp_mla_bwd *p, uint32_t key, const float x[8], int c) {
    const uint32_t b = key / (uint32_t)p->in.seq_k, row = key % (uint32_t)p->in.seq_k;
    float *to = (float *)p->sum.data + b * p->sum.batch + row * p->sum.row + (c >> 2) * 32 + (c & 3) * 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float2 y = *(const float2 *)(to + 8 * j);
        y.x += x[2 * j];
        y.y += x[2 * j + 1];
        *(float2 *)(to + 8 * j) = y;
    }
}
static __device__ __forceinline__ float4 *part_at(const struct kp_mla_bwd_rows *p, uint32_t s, int last, int team,
                                                  int c) {
    return (float4 *)p->parts + ((2 * (int64_t)s + last) * team + c) * 2;
}
static __device__ __forceinline__ void store_part_at(float4 *to, const float x[8]) {
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/* Of a slot's rows the first is row_of(slot); `topk` rows further is that of the next head block. */
static __device__ __forceinline__ int64_t row_of(uint32_t slot, uint32_t topk, uint32_t blocks) {
    return blocks == 1 ? slot : (int64_t)(slot / topk) * topk * (blocks - 1) + slot;
}
/* Of AHEAD slots those with this key, head block by head block. ALL: that are all. */
template <int TEAM, bool ALL>
static __device__ __forceinline__ void add_blocks(float sum[8], const uint4 *rows, const uint8_t *units,
                                                  const uint32_t slot[AHEAD], const uint32_t keys[AHEAD], uint32_t key,
                                                  uint32_t topk, uint32_t blocks) {
#pragma unroll 1
    for (uint32_t block = 0; block < blocks; block++, rows += (int64_t)topk * TEAM, units += topk) {
        uint4 x[AHEAD];
        float unit[AHEAD];
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) {
            const int64_t row = row_of(slot[u], topk, blocks);
            const int on = ALL || keys[u] == key;
            x[u] = on ? load_once4(rows + row * TEAM) : make_uint4(0, 0, 0, 0);
            unit[u] = on ? row16_unit_of(__ldg(units + row)) : 0;
        }
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) row16_add(sum, x[u], unit[u]);
    }
}
/* The same of one head block, whose units stand in shared memory. */
template <int TEAM, bool ALL>
static __device__ __forceinline__ void add_block(float sum[8], const uint4 *rows, const float *units,
                                                 const uint32_t slot[AHEAD], const uint32_t keys[AHEAD], uint32_t key) {
    const float4 a = *(const float4 *)units, b = *(const float4 *)(units + 4);
    const float unit[AHEAD] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    uint4 x[AHEAD];
#pragma unroll
    for (uint32_t u = 0; u < AHEAD; u++)
        x[u] = ALL || keys[u] == key ? load_once4((const char *)rows + (uint64_t)slot[u] * (16 * TEAM))
                                     : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t u = 0; u < AHEAD; u++) row16_add(sum, x[u], ALL || keys[u] == key ? unit[u] : 0);
}
/* ONE: there is one head block. own_units: of `slots`, then. */
template <int TEAM, bool ALL, bool ONE>
static __device__ __forceinline__ void
add_slots(float sum[8], const uint4 *rows, const uint8_t *units, const uint32_t *slots, const float *own_units,
          const uint32_t keys[AHEAD], uint32_t key, uint32_t topk, uint32_t blocks) {
    const uint4 a = *(const uint4 *)slots, b = *(const uint4 *)(slots + 4);
    const uint32_t slot[AHEAD] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (ONE)
        add_block<TEAM, ALL>(sum, rows, own_units, slot, keys, key);
    else
        add_blocks<TEAM, ALL>(sum, rows, units, slot, keys, key, topk, blocks);
}

/* The list of a CTA's segments: loads of rows then wait for no other. */
struct segments {
    uint32_t keys[TEAMS][SEGMENT], slots[TEAMS][SEGMENT];
    float units[TEAMS][SEGMENT]; /* of the slots' rows, where there is one head block */
};
static __device__ __forceinline__ const struct segments *load_segments(const struct kp_mla_bwd_rows *p) {
    __shared__ __align__(16) struct segments x;
    const struct list l = list_of(p);
    const uint32_t first = blockIdx.x * (TEAMS * SEGMENT);
    for (uint32_t i = 4 * threadIdx.x; i < TEAMS * SEGMENT; i += 4 * KP_MLA_ROWS_THREADS) {
        uint4 key = make_uint4(l.none, l.none, l.none, l.none), slot = make_uint4(0, 0, 0, 0);
        if (first + i + 4 <= l.n) {
            key = *(const uint4 *)(l.keys + first + i);
            slot = *(const uint4 *)(l.slots + first + i);
        } else {
            if (first + i < l.n) key.x = l.keys[first + i], slot.x = l.slots[first + i];
            if (first + i + 1 < l.n) key.y = l.keys[first + i + 1], slot.y = l.slots[first + i + 1];
            if (first + i + 2 < l.n) key.z = l.keys[first + i + 2], slot.z = l.slots[first + i + 2];
        }
        *(uint4 *)(&x.keys[0][0] + i) = key;
        *(uint4 *)(&x.slots[0][0] + i) = slot;
        if (p->bwd.head_blocks > 1) continue;
        const uint8_t *units = (const uint8_t *)p->bwd.stored_rows + 2 * p->n * p->bwd.in.dim_qk;
        const auto unit_of = [&](uint32_t own_key, uint32_t own_slot) {
            return row16_unit_of(own_key != l.none ? units[own_slot] : 0);
        };
        *(float4 *)(&x.units[0][0] + i) =
            make_float4(unit_of(key.x, slot.x), unit_of(key.y, slot.y), unit_of(key.z, slot.z), unit_of(key.w, slot.w));
    }
    __syncthreads();
    return &x;
}

/* What teams have of kv rows that began before their segment, and that go on after it. */
struct ends {
    float4 part[TEAMS][2][KP_MLA_ROWS_TEAM(576)][2];
};
static __device__ __forceinline__ struct ends *shared_ends(void) {
    __shared__ struct ends x;
    return &x;
}

/* Segment s, thread c of its team; x_keys, x_slots: its part of the list; ends: of its team. */
template <int TEAM, bool ONE>
static __device__ __forceinline__ void sum_segment(const struct kp_mla_bwd_rows *p, uint32_t s, int c,
                                                   const uint32_t *x_keys, const uint32_t *x_slots,
                                                   const float *x_units, float4 (*ends)[KP_MLA_ROWS_TEAM(576)][2]) {
    const struct list l = list_of(p);
    const struct segment own = segment_of(&l, s, SEGMENT);
    const uint32_t topk = (uint32_t)p->bwd.in.topk, blocks = (uint32_t)p->bwd.head_blocks;
    const int64_t n_rows = p->n * blocks;
    const uint4 *rows = (const uint4 *)p->bwd.stored_rows + c;
    asm("" : "+l"(rows)); /* one address, to which a slot's place is added in one instruction */
    const uint8_t *units = (const uint8_t *)((const uint4 *)p->bwd.stored_rows + n_rows * TEAM);
    uint32_t key = x_keys[0], keys[AHEAD];
    if (key == l.none) return;
    int before = began_before(&l, &own, key);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 1
    for (uint32_t slot = 0; slot < own.end - own.from; slot += AHEAD) {
        if (x_keys[slot + AHEAD - 1] == key) {
            add_slots<TEAM, true, ONE>(sum, rows, units, x_slots + slot, x_units + slot, keys, key, topk, blocks);
            continue;
        }
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) keys[u] = x_keys[slot + u];
#pragma unroll 1
        for (;;) { /* a run of slots after the other */
            add_slots<TEAM, false, ONE>(sum, rows, units, x_slots + slot, x_units + slot, keys, key, topk, blocks);
            if (keys[AHEAD - 1] == key) break;
            if (before)
                store_part_at(ends[0][c], sum);
            else
                add_to_sum(&p->bwd, key, sum, c);
            before = 0;
            uint32_t next = l.none;
#pragma unroll
            for (uint32_t u = 0; u < AHEAD; u++)
                if (keys[u] > key) next = min(next, keys[u]);
            key = next;
            if (key == l.none) return;
#pragma unroll
            for (int e = 0; e < 8; e++) sum[e] = 0;
        }
    }
    if (before || goes_on(&l, &own, key))
        store_part_at(ends[!before][c], sum);
    else
        add_to_sum(&p->bwd, key, sum, c);
}

static __device__ __forceinline__ void add_part(float sum[8], const float4 *part) {
    const float4 a = part[0], b = part[1];
    sum[0] += a.x, sum[1] += a.y, sum[2] += a.z, sum[3] += a.w;
    sum[4] += b.x, sum[5] += b.y, sum[6] += b.z, sum[7] += b.w;
}

/* After all of sum_segment(): kv rows that go on after the segment of team t, where they begin, and for team 0 the
 * one that began before the CTA. */
template <int TEAM>
static __device__ __forceinline__ void fixup_teams(const struct kp_mla_bwd_rows *p, uint32_t t, int c,
                                                   const struct segments *x, const struct ends *ends) {
    const struct list l = list_of(p);
    const struct segment own = segment_of(&l, blockIdx.x, TEAMS * SEGMENT);
    const auto first = [&](uint32_t u) { return u < TEAMS ? x->keys[u][0] : own.end < l.n ? l.keys[own.end] : l.none; };
    const auto last = [&](uint32_t u) { return x->keys[u][SEGMENT - 1]; };
    /* Team u and those after it, as far as they have `key`; 1: so do CTAs after this one. */
    const auto add_on = [&](float sum[8], uint32_t u, uint32_t key) {
        for (; last(u) == key && first(u + 1) == key; u++) {
            if (u + 1 == TEAMS) return 1;
            add_part(sum, ends->part[u + 1][0][c]);
        }
        return 0;
    };
    uint32_t key = first(t);
    int before = key != l.none && (t ? last(t - 1) == key : began_before(&l, &own, key));
    if (t == 0 && before) {
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        add_part(sum, ends->part[0][0][c]);
        add_on(sum, 0, key);
        store_part_at(part_at(p, blockIdx.x, 0, TEAM, c), sum);
    }
    before = before && last(t) == key; /* and it is all of the segment */
    key = last(t);
    if (before || key == l.none || first(t + 1) != key) return;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    add_part(sum, ends->part[t][1][c]);
    if (add_on(sum, t, key))
        store_part_at(part_at(p, blockIdx.x, 1, TEAM, c), sum);
    else
        add_to_sum(&p->bwd, key, sum, c);
}
#endif
