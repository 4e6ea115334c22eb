/* SPDX-License-Identifier: MIT
 * mla_join.cu, the usual way: one range has all keys, and no list names a key again. */
#ifndef ATTN_SM80_MLA_JOIN_ONE_RANGE_H
#define ATTN_SM80_MLA_JOIN_ONE_RANGE_H
#include "kernels/sm80/mla_join_lists.h"

/* Slots t .. t + 3 of a list of n; those that it does not have name no key. vector: slots that stand in whole 16
 * bytes. */
static __device__ __forceinline__ uint4 load_slots(const int32_t *list, uint32_t t, uint32_t n, uint32_t vector) {
    uint4 key = {NO_KEY, NO_KEY, NO_KEY, NO_KEY};
    if (t < vector) {
        key = __ldg((const uint4 *)(list + t));
    } else if (t < n) {
        key.x = (uint32_t)__ldg(&list[t]);
        if (t + 1 < n) key.y = (uint32_t)__ldg(&list[t + 1]);
        if (t + 2 < n) key.z = (uint32_t)__ldg(&list[t + 2]);
        if (t + 3 < n) key.w = (uint32_t)__ldg(&list[t + 3]);
    }
    return key;
}
/* A warp's share of a query's list where one range has all keys: BATCH * 4 slots a thread at a time, lane l's from slot
 * t + 4 l on, STEP apart. */
struct part_of_list {
    const int32_t *list;
    uint32_t r, first, n, keys, vector; /* query; the warp's first slot; slots; admissible keys; see load_slots() */
};
static __device__ __forceinline__ struct part_of_list part_of(const struct lists *l) {
    struct part_of_list x;
    x.r = threadIdx.x / 32 / SHARE;
    x.first = threadIdx.x / 32 % SHARE * 128;
    x.list = l->list[x.r];
    x.n = l->n[x.r];
    x.keys = l->keys[x.r];
    x.vector = (uintptr_t)x.list & 15 ? 0 : x.n & ~3u;
    return x;
}
/* true: all of the warp's slots are there and valid. ptxas makes a branch of an atomic operation under a condition, and
 * a warp asks once for all of its slots. */
static __device__ __forceinline__ bool load_batch(const struct part_of_list *x, uint32_t t, uint4 (&batch)[BATCH]) {
    const uint32_t lane = threadIdx.x & 31;
    uint32_t largest = 0;
    if (t + (BATCH - 1) * STEP + 128 <= x->vector) {
        const uint4 *from = (const uint4 *)(x->list + t) + lane;
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) batch[i] = __ldg(from + i * (STEP / 4));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) batch[i] = load_slots(x->list, t + lane * 4 + i * STEP, x->n, x->vector);
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++)
        largest = max(largest, max(max(batch[i].x, batch[i].y), max(batch[i].z, batch[i].w)));
    return __all_sync(~0u, largest < x->keys);
}

/* Where a table is used: keys of the warp's first batches, from when they are marked until their slots are written. A
 * batch that is not all there and valid is read again: all bits of its first pair are set, which no list has that
 * names keys once. */
constexpr uint32_t BATCHES = 2048 / (BATCH * STEP), KEPT = BATCHES < 2 || GROUP == 8 ? 1 : 2;
struct kept_keys {
    uint2 key[KEPT][BATCH]; /* 16 bits each */
};

/* Marks the keys of a batch, and returns how many are valid. */
static __device__ __forceinline__ uint32_t mark_batch(uint32_t *bitmap, const uint4 (&batch)[BATCH], bool all,
                                                      uint32_t keys) {
    uint32_t valid = all ? 4 * BATCH : 0;
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        const uint32_t key[4] = {batch[i].x, batch[i].y, batch[i].z, batch[i].w};
        if (all) {
#pragma unroll
            for (int y = 0; y < 4; y++) atomicOr(&bitmap[key[y] / 32], __funnelshift_l(0, 1, key[y]));
        } else {
#pragma unroll
            for (int y = 0; y < 4; y++) {
                if (key[y] >= keys) continue;
                valid++;
                atomicOr(&bitmap[key[y] / 32], __funnelshift_l(0, 1, key[y]));
            }
        }
    }
    return valid;
}
static __device__ __forceinline__ void mark_whole(const struct group_lists *j, struct kept_keys *kept) {
    const struct part_of_list x = part_of(j->l);
    uint32_t *bitmap = j->bitmap + x.r * j->words, valid = 0;
#pragma unroll
    for (uint32_t b = 0; b < KEPT; b++) {
        const uint32_t t = x.first + b * BATCH * STEP;
        kept->key[b][0].x = ~0u;
        if (t >= x.n) continue;
        uint4 batch[BATCH];
        const bool all = load_batch(&x, t, batch);
        valid += mark_batch(bitmap, batch, all, x.keys);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            kept->key[b][i] =
                make_uint2(__byte_perm(batch[i].x, batch[i].y, 0x5410), __byte_perm(batch[i].z, batch[i].w, 0x5410));
        if (!all) kept->key[b][0].x = ~0u;
    }
    for (uint32_t t = x.first + KEPT * BATCH * STEP; t < x.n; t += BATCH * STEP) {
        uint4 batch[BATCH];
        const bool all = load_batch(&x, t, batch);
        valid += mark_batch(bitmap, batch, all, x.keys);
    }
    valid = __reduce_add_sync(~0u, valid);
    if ((threadIdx.x & 31) == 0 && valid) atomicAdd(&j->l->valid[x.r], valid);
}

/* Bits of the entries e0 .. e0 + 31 that are below this one. */
static __device__ __forceinline__ uint32_t bits_below(uint32_t entry, uint32_t e0) {
    return entry <= e0 ? 0 : entry - e0 >= 32 ? ~0u : (1u << (entry - e0)) - 1;
}

/* Keys of the entries window .. window + STAGE - 1, at their places; ALL: those of all entries. */
template <bool ALL, typename KEY>
static __device__ __forceinline__ void stage_keys(const struct group_lists *j, const uint32_t (&start)[KINDS],
                                                  uint32_t window) {
    constexpr uint32_t STAGE = KP_MLA_JOIN_STAGE / sizeof(KEY);
    const uint32_t log2_parts = (uint32_t)j->p->log2_parts,
                   wide = 32 >> log2_parts; /* parts of a word: a thread each */
    KEY *stage = (KEY *)j->stage;
    for (uint32_t x = threadIdx.x; x < j->words << log2_parts; x += THREADS) {
        const uint32_t w = x >> log2_parts, shift = (x & ((1u << log2_parts) - 1)) * wide;
        const uint32_t part = (~0u >> (32 - wide)) << shift, to_end = ~0u >> (32 - wide - shift);
        const uint2 half = group_bits(j, w), place = j->place[w];
#pragma unroll
        for (int k = 0; k < KINDS; k++) {
            const uint32_t all = bits_of_kind(half, k);
            uint32_t bits = all & part, e = start[k] + place_of(place, k) + (uint32_t)__popc(all & to_end) - window;
            while (bits) { /* from the last: one instruction finds it, the first takes two */
                const uint32_t bit = 31 - (uint32_t)__clz((int)bits);
                e--;
                if (ALL || e < STAGE) stage[e] = (KEY)(w * 32 + bit);
                bits ^= 1u << bit;
            }
        }
    }
}

/* Keys of the staged entries e .. e + 3; what comes past the last one has been written, too. */
template <typename KEY> static __device__ __forceinline__ uint4 staged_keys(const KEY *stage, uint32_t e) {
    if constexpr (sizeof(KEY) == 4) {
        return *(const uint4 *)(stage + e);
    } else {
        const uint2 x = *(const uint2 *)(stage + e);
        return make_uint4(x.x & 0xffff, x.x >> 16, x.y & 0xffff, x.y >> 16);
    }
}
/* The entries of staged keys e .. e + 3, which are window + e + ..., in the table; those from n on are none. */
static __device__ __forceinline__ void enter_keys(uint16_t *table, uint4 key, uint32_t entry, uint32_t n) {
    if (entry < n) table[key.x] = (uint16_t)entry;
    if (entry + 1 < n) table[key.y] = (uint16_t)(entry + 1);
    if (entry + 2 < n) table[key.z] = (uint16_t)(entry + 2);
    if (entry + 3 < n) table[key.w] = (uint16_t)(entry + 3);
}

/* Of pairs, the staged keys of the entries window .. window + end - 1, and their bits, which the kinds tell. table:
 * their entries there, too; the bitmaps in its place are not needed any more. */
template <typename KEY>
static __device__ __forceinline__ void emit_pairs(const struct group_lists *j, const uint32_t (&start)[KINDS],
                                                  uint32_t n, uint32_t window, uint32_t end, uint16_t *table) {
    int32_t *keys = j->out + j->p->keys + window;
    uint32_t *bits = (uint32_t *)j->out + j->p->bits + window / 16;
    const bool aligned = !((uintptr_t)keys & 15);
    constexpr int TURNS = KP_MLA_JOIN_STAGE / sizeof(KEY) / (THREADS * 4); /* at most */
#pragma unroll TURNS
    for (uint32_t e = threadIdx.x * 4; e < end; e += THREADS * 4) {
        uint4 key = {NO_KEY, NO_KEY, NO_KEY, NO_KEY};
        if (window + e < n) {
            key = staged_keys((const KEY *)j->stage, e);
            if (table) enter_keys(table, key, window + e, n);
            if (window + e + 1 >= n) key.y = NO_KEY;
            if (window + e + 2 >= n) key.z = NO_KEY;
            if (window + e + 3 >= n) key.w = NO_KEY;
        }
        if (aligned)
            *(uint4 *)(keys + e) = key;
        else
            keys[e] = (int32_t)key.x, keys[e + 1] = (int32_t)key.y, keys[e + 2] = (int32_t)key.z,
            keys[e + 3] = (int32_t)key.w;
    }
#pragma unroll 1                                                 /* a thread has one word at most */
    for (uint32_t x = threadIdx.x; x < end / 16; x += THREADS) { /* of a block of 64 two words of each query */
        const uint32_t e0 = window + x / 4 * 64 + x % 2 * 32;
        const uint32_t to_both = bits_below(start[1], e0), to_first = bits_below(start[2], e0);
        bits[x] = x % 4 < 2 ? to_first : to_both | (bits_below(n, e0) & ~to_first);
    }
}

/* Of larger groups, the same without a table. */
template <typename KEY>
static __device__ __forceinline__ void emit_ballots(const struct group_lists *j, uint32_t n, uint32_t window,
                                                    uint32_t end) {
    const KEY *stage = (const KEY *)j->stage;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int32_t *to = j->out + j->p->keys + window + threadIdx.x;
    uint32_t *bits_to = (uint32_t *)j->out + j->p->bits + (window / 64 + warp / 2) * 2 * GROUP + lane * 2 + warp % 2;
    for (uint32_t e = threadIdx.x; e < end; e += THREADS, to += THREADS, bits_to += THREADS / 32 * GROUP) {
        const bool own = window + e < n;
        const uint32_t key = own ? (uint32_t)stage[e] : NO_KEY;
        const uint32_t *word = j->bitmap + (own ? key / 32 : 0);
        const uint32_t bit = own ? 1u << (key & 31) : 0;
        uint32_t mine = 0;
        *to = (int32_t)key;
#pragma unroll
        for (int r = 0; r < GROUP; r++, word += j->words) {
            const uint32_t bits = __ballot_sync(~0u, *word & bit);
            if (lane == (uint32_t)r) mine = bits;
        }
        if (lane < GROUP) *bits_to = mine;
    }
}

/* The same where one range has all n entries, and the empty ones past them. Ends with a barrier. true: the table has
 * their entries. */
template <typename KEY>
static __device__ __forceinline__ bool emit_whole(const struct group_lists *j, const uint32_t (&start)[KINDS],
                                                  uint32_t n) {
    constexpr uint32_t STAGE = KP_MLA_JOIN_STAGE / sizeof(KEY);
    const uint32_t padded = (n + 127) / 128 * 128;
    const bool entered = GROUP == 2 && sizeof(KEY) == 2 && j->p->slots && padded <= STAGE;
    for (uint32_t window = 0; window < padded; window += STAGE) {
        if (n <= STAGE)
            stage_keys<true, KEY>(j, start, window);
        else
            stage_keys<false, KEY>(j, start, window);
        if (threadIdx.x < 3 && n + threadIdx.x - window < STAGE) ((KEY *)j->stage)[n + threadIdx.x - window] = 0;
        __syncthreads();
        const uint32_t end = min(STAGE, padded - window);
        if (GROUP == 2)
            emit_pairs<KEY>(j, start, n, window, end, entered ? (uint16_t *)j->bitmap : nullptr);
        else
            emit_ballots<KEY>(j, n, window, end);
        __syncthreads();
    }
    return entered;
}

/* The entries of keys, in the place of all bits; `entries` of them, the keys of which are staged if they fit. */
static __device__ __forceinline__ void fill_table(const struct group_lists *j, uint32_t entries) {
    uint16_t *table = (uint16_t *)j->bitmap;
    const uint16_t *stage = (const uint16_t *)j->stage;
    if (entries <= KP_MLA_JOIN_STAGE / sizeof *stage) {
        for (uint32_t e = threadIdx.x * 4; e < entries; e += THREADS * 4)
            enter_keys(table, staged_keys(stage, e), e, entries);
    } else {
        for (uint32_t e = threadIdx.x; e < entries; e += THREADS) table[(uint32_t)j->out[j->p->keys + e]] = (uint16_t)e;
    }
    __syncthreads();
}

/* Where one range has all keys, each once. */
template <bool TABLE>
static __device__ __forceinline__ void write_slots(const struct group_lists *j, const uint32_t (&start)[KINDS],
                                                   const struct kept_keys *kept) {
    const struct part_of_list x = part_of(j->l);
    const uint32_t lane = threadIdx.x & 31, row = 2 * (uint32_t)j->p->slots_row;
    if (x.r >= (uint32_t)j->l->queries) return;
    const uint16_t *table = (const uint16_t *)j->bitmap;
    int32_t *to = j->out + j->p->slots + x.r * j->p->slots_row;
    const bool aligned = !((uintptr_t)to & 7);
    uint32_t again = ~0u; /* batches that are read again */
    if (TABLE && aligned) {
#pragma unroll
        for (uint32_t b = 0; b < KEPT; b++) {
            if (kept->key[b][0].x == ~0u) continue;
            again ^= 1u << b;
#pragma unroll
            for (uint32_t i = 0; i < BATCH; i++) {
                const uint2 key = kept->key[b][i];
                const uint32_t slot = x.first + (b * BATCH + i) * STEP + lane * 4;
                *(uint2 *)(to + slot / 2) = make_uint2(__byte_perm(table[key.x & 0xffff], table[key.x >> 16], 0x5410),
                                                       __byte_perm(table[key.y & 0xffff], table[key.y >> 16], 0x5410));
            }
        }
    }
    uint32_t number = 0;
    for (uint32_t t = x.first; t < row; t += BATCH * STEP, number++) {
        if (number < KEPT && !(again >> number & 1)) continue;
        uint4 batch[BATCH];
        const bool all = load_batch(&x, t, batch) && aligned;
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            const uint32_t key[4] = {batch[i].x, batch[i].y, batch[i].z, batch[i].w};
            const uint32_t slot = t + lane * 4 + i * STEP;
            uint32_t entry[4];
            if (all) {
#pragma unroll
                for (int y = 0; y < 4; y++) entry[y] = TABLE ? table[key[y]] : entry_of(j, key[y], start);
                *(uint2 *)(to + slot / 2) = make_uint2(entry[0] | entry[1] << 16, entry[2] | entry[3] << 16);
            } else if (slot < row) {
#pragma unroll
                for (int y = 0; y < 4; y++)
                    entry[y] = key[y] >= x.keys ? NO_SLOT : TABLE ? table[key[y]] : entry_of(j, key[y], start);
                to[slot / 2] = (int32_t)(entry[0] | entry[1] << 16);
                to[slot / 2 + 1] = (int32_t)(entry[2] | entry[3] << 16);
            }
        }
    }
}

/* Lists of the next group come to the second-level cache meanwhile. */
static __device__ __forceinline__ void prefetch_lists(const struct lists *l) {
    const uint32_t lane = threadIdx.x & 31, r = threadIdx.x / 32 / SHARE;
    const int32_t *list = l->list[r];
    for (uint32_t t = (threadIdx.x / 32 % SHARE * 32 + lane) * 32; t < l->n[r]; t += SHARE * 32 * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(list + t));
}

/* false: the lists take the general way. The next group's lists are found meanwhile. */
static __device__ __forceinline__ bool whole_way(const struct group_lists *j, struct lists *next, int64_t next_group) {
    struct kept_keys kept;
    clear(j);
    __syncthreads();
    load_lists(j->p, next, next_group);
    mark_whole(j, &kept);
    __syncthreads();
    if (next_group < j->p->until) prefetch_lists(next);
    const struct range range = j->words >= THREADS * WIDE ? scan<WIDE>(j) : scan<1>(j);
    __syncthreads();
    const uint32_t n = range.n[0] + range.n[1] + range.n[2];
    const uint32_t lane = threadIdx.x & 31, valid = __reduce_add_sync(~0u, lane < GROUP ? j->l->valid[lane] : 0);
    if (valid != j->l->distinct) {
        if (threadIdx.x == 0) j->l->again = 1;
        __syncthreads();
        return false;
    }
    if (write_header(j, n)) return true;
    const uint32_t start[KINDS] = {0, range.n[0], range.n[0] + range.n[1]};
    if (TABLE_ALWAYS || j->p->table) {
        const bool entered = emit_whole<uint16_t>(j, start, n);
        if (!j->p->slots) return true;
        if (!entered) fill_table(j, n);
        write_slots<true>(j, start, &kept);
    } else {
        emit_whole<uint32_t>(j, start, n);
        if (j->p->slots) write_slots<false>(j, start, &kept);
    }
    return true;
}
#endif
