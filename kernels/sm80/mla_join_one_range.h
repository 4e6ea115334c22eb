/* SPDX-License-Identifier: MIT
 * mla_join.cu, the usual way: one range has all keys, and no list names a key again. */
#ifndef ATTN_SM80_MLA_JOIN_ONE_RANGE_H
#define ATTN_SM80_MLA_JOIN_ONE_RANGE_H
#include "kernels/sm80/mla_join_lists.h"

/* Four slots of a list from `from` on, slot t of n; those that it does not have name no key. vector: slots that stand
 * in whole 16 bytes. */
static __device__ __forceinline__ uint4 load_slots(const int32_t *from, uint32_t t, uint32_t n, uint32_t vector) {
    uint4 key = {NO_KEY, NO_KEY, NO_KEY, NO_KEY};
    if (t < vector) {
        key = __ldg((const uint4 *)from);
    } else if (t < n) {
        key.x = (uint32_t)__ldg(&from[0]);
        if (t + 1 < n) key.y = (uint32_t)__ldg(&from[1]);
        if (t + 2 < n) key.z = (uint32_t)__ldg(&from[2]);
        if (t + 3 < n) key.w = (uint32_t)__ldg(&from[3]);
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
    const int32_t *from = x->list + t + lane * 4;
    uint32_t largest = 0;
    if (t + (BATCH - 1) * STEP + 128 <= x->vector) {
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) batch[i] = __ldg((const uint4 *)(from + i * STEP));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            batch[i] = load_slots(from + i * STEP, t + lane * 4 + i * STEP, x->n, x->vector);
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

/* Sets the bit of a key, in its cell that of the query, `one`. four: 4, which the compiler does not know, so that an
 * address is a multiplication: these have a pipe of their own, and additions and shifts are what a scheduler waits for.
 */
static __device__ __forceinline__ void set_key(uint32_t *bitmap, uint32_t key, uint32_t one, uint32_t four) {
    if (CELLS)
        atomicOr((uint32_t *)((char *)bitmap + key / 2 * four), __funnelshift_l(0, one, key * 16));
    else
        atomicOr((uint32_t *)((char *)bitmap + key / 32 * four), __funnelshift_l(0, 1, key));
}
/* Marks the keys of a batch, and returns how many are valid. */
static __device__ __forceinline__ uint32_t mark_batch(uint32_t *bitmap, const uint4 (&batch)[BATCH], bool all,
                                                      uint32_t keys, uint32_t one, uint32_t four) {
    uint32_t valid = all ? 4 * BATCH : 0;
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        const uint32_t key[4] = {batch[i].x, batch[i].y, batch[i].z, batch[i].w};
        if (all) {
#pragma unroll
            for (int y = 0; y < 4; y++) set_key(bitmap, key[y], one, four);
        } else {
#pragma unroll
            for (int y = 0; y < 4; y++) {
                if (key[y] >= keys) continue;
                valid++;
                set_key(bitmap, key[y], one, four);
            }
        }
    }
    return valid;
}
static __device__ __forceinline__ void mark_whole(const struct group_lists *j, struct kept_keys *kept) {
    const struct part_of_list x = part_of(j->l);
    const uint32_t one = 1u << x.r, four = (uint32_t)j->p->four;
    uint32_t *bitmap = CELLS ? j->bitmap : j->bitmap + x.r * j->words, valid = 0;
#pragma unroll
    for (uint32_t b = 0; b < KEPT; b++) {
        const uint32_t t = x.first + b * BATCH * STEP;
        kept->key[b][0].x = ~0u;
        if (t >= x.n) continue;
        uint4 batch[BATCH];
        const bool all = load_batch(&x, t, batch);
        valid += mark_batch(bitmap, batch, all, x.keys, one, four);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++)
            kept->key[b][i] =
                make_uint2(__byte_perm(batch[i].x, batch[i].y, 0x5410), __byte_perm(batch[i].z, batch[i].w, 0x5410));
        if (!all) kept->key[b][0].x = ~0u;
    }
    for (uint32_t t = x.first + KEPT * BATCH * STEP; t < x.n; t += BATCH * STEP) {
        uint4 batch[BATCH];
        const bool all = load_batch(&x, t, batch);
        valid += mark_batch(bitmap, batch, all, x.keys, one, four);
    }
    valid = __reduce_add_sync(~0u, valid);
    if ((threadIdx.x & 31) == 0 && valid) atomicAdd(&j->l->valid[x.r], valid);
}

/* What the warp's kept slots become: `write` gets four keys of 16 bits, and how many slots they are past the lane's
 * first. Returns a bit for each batch that has to be read again. */
template <typename WRITE>
static __device__ __forceinline__ uint32_t write_kept(const struct kept_keys *kept, WRITE write) {
    uint32_t again = ~0u;
#pragma unroll
    for (uint32_t b = 0; b < KEPT; b++) {
        if (kept->key[b][0].x == ~0u) continue;
        again ^= 1u << b;
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) write(kept->key[b][i], (b * BATCH + i) * STEP);
    }
    return again;
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
/* The entries of staged keys, `entry` and the next three, in the table; those from n on are none. */
static __device__ __forceinline__ void enter_keys(uint16_t *table, uint4 key, uint32_t entry, uint32_t n) {
    if (entry < n) table[key.x] = (uint16_t)entry;
    if (entry + 1 < n) table[key.y] = (uint16_t)(entry + 1);
    if (entry + 2 < n) table[key.z] = (uint16_t)(entry + 2);
    if (entry + 3 < n) table[key.w] = (uint16_t)(entry + 3);
}

/* Of pairs, the staged keys of the entries window .. window + end - 1, and their bits, which the kinds tell. */
template <typename KEY>
static __device__ __forceinline__ void emit_pairs(const struct group_lists *j, const uint32_t (&start)[KINDS],
                                                  uint32_t n, uint32_t window, uint32_t end) {
    int32_t *keys = j->out + j->p->keys + window;
    uint32_t *bits = (uint32_t *)j->out + j->p->bits + window / 16;
    const bool aligned = !((uintptr_t)keys & 15);
    constexpr int TURNS = KP_MLA_JOIN_STAGE / sizeof(KEY) / (THREADS * 4); /* at most */
#pragma unroll TURNS
    for (uint32_t e = threadIdx.x * 4; e < end; e += THREADS * 4) {
        uint4 key = {NO_KEY, NO_KEY, NO_KEY, NO_KEY};
        if (window + e < n) {
            key = staged_keys((const KEY *)j->stage, e);
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

/* 16 lanes' 16 bits, bit r of lane l to bit l of lane r: four exchanges with the lane d away, of the bits that `keep`
 * does not have. */
struct transpose {
    uint32_t keep[4], turn[4];
};
static __device__ __forceinline__ struct transpose transpose_of_lane(void) {
    struct transpose t;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t d = 8u >> i, low = i == 0 ? 0x00ff : i == 1 ? 0x0f0f : i == 2 ? 0x3333 : 0x5555;
        t.keep[i] = 0xffff0000 | (threadIdx.x & d ? 0xffff & ~low : low);
        t.turn[i] = threadIdx.x & d ? 32 - d : d;
    }
    return t;
}
static __device__ __forceinline__ uint32_t transposed(const struct transpose *t, uint32_t x) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t other = __shfl_xor_sync(~0u, x, 8 >> i);
        x = (x & t->keep[i]) | (__funnelshift_l(other, other, t->turn[i]) & ~t->keep[i]);
    }
    return x;
}
/* Of groups with cells, which then have the entry, where slots are wanted. */
static __device__ __forceinline__ void emit_cells(const struct group_lists *j, uint32_t n, uint32_t window,
                                                  uint32_t end) {
    const uint16_t *stage = (const uint16_t *)j->stage;
    uint16_t *cells = (uint16_t *)j->bitmap;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool slots = j->p->slots;
    const struct transpose turns = transpose_of_lane();
    int32_t *to = j->out + j->p->keys + window + threadIdx.x;
    uint32_t *bits_to = (uint32_t *)j->out + j->p->bits + (window / 64 + warp / 2) * 2 * GROUP + lane * 2 + warp % 2;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < end; e += THREADS, to += THREADS, bits_to += THREADS / 32 * GROUP) {
        uint32_t key = NO_KEY, cell = 0;
        if (window + e < n) {
            key = stage[e];
            cell = cells[key];
            if (slots) cells[key] = (uint16_t)(window + e);
        }
        *to = (int32_t)key;
        const uint32_t bits = transposed(&turns, cell), upper = __shfl_down_sync(~0u, bits, 16);
        if (lane < GROUP) *bits_to = bits | upper << 16;
    }
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
    uint32_t again = ~0u;
    if (TABLE && aligned)
        again = write_kept(kept, [&](uint2 key, uint32_t slots) {
            *(uint2 *)(to + (x.first + lane * 4 + slots) / 2) =
                make_uint2(__byte_perm(table[key.x & 0xffff], table[key.x >> 16], 0x5410),
                           __byte_perm(table[key.y & 0xffff], table[key.y >> 16], 0x5410));
        });
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

/* Where a query's slots find their entries, by ranks of the entries of both queries, and of its own. */
struct query_ranks {
    uint32_t both, own, start; /* address of both's; bytes from there to its own; their place, in the upper 16 bits */
    bool first;                /* it puts keys of both queries at their places, too */
};
static __device__ __forceinline__ uint32_t load_shared(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}
/* One more than a key's entry; the upper half of `key` may be anything. word: bytes to the word of its 16 keys. both:
 * both queries have it. */
static __device__ __forceinline__ uint32_t rank_of(const struct query_ranks *q, uint32_t word, uint32_t key,
                                                   bool *both) {
    uint32_t up, x = load_shared(q->both + word);
    asm("lop3.b32 %0, %1, 16, 0, 0xcf;" : "=r"(up) : "r"(key)); /* ~key | 16, of which a shift takes five bits */
    uint32_t above = __funnelshift_l(0, x, up);
    *both = (int32_t)above < 0;
    if (!*both) {
        x = load_shared(q->both + word + q->own) + q->start;
        above = __funnelshift_l(0, x, up);
    }
    return (x >> 16) + (uint32_t)__popc(above);
}

struct ranked_slots {
    struct part_of_list part;
    struct query_ranks ranks;
    int32_t *to;
};
static __device__ __forceinline__ struct ranked_slots ranked_slots_of(const struct group_lists *j,
                                                                      const uint32_t (&start)[KINDS]) {
    struct ranked_slots s;
    s.part = part_of(j->l);
    const bool first = s.part.r == 0;
    s.ranks = {(uint32_t)__cvta_generic_to_shared(j->ranks), 8 * j->words << (first ? 0 : 1),
               (first ? start[1] : start[2]) << 16, first};
    asm volatile("" : "+r"(s.ranks.own)); /* not found anew for each slot */
    s.to = j->out + j->p->slots + s.part.r * j->p->slots_row;
    return s;
}
/* Keys of the entries window .. window + STAGE - 1 to their places, and each slot's entry, of those batches of the warp
 * that `again` has a bit of, and of what registers have not kept. */
static __device__ __forceinline__ void rank_again(const struct group_lists *j, const struct ranked_slots *s,
                                                  uint32_t window, uint32_t again) {
    constexpr uint32_t STAGE = KP_MLA_JOIN_STAGE / sizeof(uint16_t);
    uint16_t *stage = (uint16_t *)j->stage;
    const uint32_t row = 2 * (uint32_t)j->p->slots_row;
    uint32_t number = again & ((1u << KEPT) - 1) ? 0 : KEPT * BATCH; /* of the lane's four slots */
    uint32_t slot = s->part.first + (threadIdx.x & 31) * 4 + number * STEP;
#pragma unroll 1
    for (; slot < row; slot += STEP, number++) {
        if (number < KEPT * BATCH && !(again >> number / BATCH & 1)) continue;
        const uint4 four = load_slots(s->part.list + slot, slot, s->part.n, s->part.vector);
        const uint32_t key[4] = {four.x, four.y, four.z, four.w};
        uint32_t entry[4];
#pragma unroll
        for (int y = 0; y < 4; y++) {
            bool both = true;
            uint32_t rank = 0;
            if (key[y] < s->part.keys) rank = rank_of(&s->ranks, key[y] / 16 * 4, key[y], &both);
            if (rank && (s->ranks.first || !both) && rank - 1 - window < STAGE)
                stage[rank - 1 - window] = (uint16_t)key[y];
            entry[y] = (rank - 1) & NO_SLOT;
        }
        s->to[slot / 2] = (int32_t)(entry[0] | entry[1] << 16);
        s->to[slot / 2 + 1] = (int32_t)(entry[2] | entry[3] << 16);
    }
}
/* Those that registers have, of query 0 or 1, where one window has all entries; what write_kept() returns. */
template <bool FIRST>
static __device__ __forceinline__ uint32_t rank_kept(const struct group_lists *j, const struct ranked_slots *s,
                                                     const struct kept_keys *kept) {
    const uint32_t four = (uint32_t)j->p->four;
    char *stage = (char *)((uint16_t *)j->stage - 1);
    int32_t *to = s->to + (s->part.first + (threadIdx.x & 31) * 4) / 2;
    return write_kept(kept, [&](uint2 keys, uint32_t slots) {
        asm volatile("" : "+r"(keys.x), "+r"(keys.y)); /* what comes of them is not found before the branch by query */
        const uint32_t key[4] = {keys.x, keys.x >> 16, keys.y, keys.y >> 16};
        const uint32_t word[4] = {(keys.x & 0xfff0) / 4, (keys.x >> 20) * four, (keys.y & 0xfff0) / 4,
                                  (keys.y >> 20) * four};
        uint32_t rank[4];
        bool both[4];
#pragma unroll
        for (int y = 0; y < 4; y++) rank[y] = rank_of(&s->ranks, word[y], key[y], &both[y]);
#pragma unroll
        for (int y = 0; y < 4; y++)
            if (FIRST || !both[y]) *(uint16_t *)(stage + rank[y] * (four / 2)) = (uint16_t)key[y];
        *(uint2 *)(to + slots / 2) = make_uint2(__byte_perm(rank[0], rank[1], 0x5410) - 0x10001, /* 1 or more */
                                                __byte_perm(rank[2], rank[3], 0x5410) - 0x10001);
    });
}
/* The same where one window has all entries. */
static __device__ __forceinline__ void rank_slots(const struct group_lists *j, const struct ranked_slots *s,
                                                  const struct kept_keys *kept) {
    uint32_t again = ~0u;
    if (!((uintptr_t)s->to & 7)) again = s->ranks.first ? rank_kept<true>(j, s, kept) : rank_kept<false>(j, s, kept);
    rank_again(j, s, 0, again);
}

/* All n entries, and the empty ones past them; by ranks, if there are, slots too. Ends with a barrier. */
template <typename KEY>
static __device__ __forceinline__ void emit_whole(const struct group_lists *j, const uint32_t (&start)[KINDS],
                                                  uint32_t n, bool ranks, const struct kept_keys *kept) {
    constexpr uint32_t STAGE = KP_MLA_JOIN_STAGE / sizeof(KEY);
    const uint32_t padded = (n + 127) / 128 * 128;
    const bool has_slots = threadIdx.x / 32 / SHARE < (uint32_t)j->l->queries;
    uint32_t window = 0;
    do { /* slots are written where there are no entries, too */
        if (RANKS && sizeof(KEY) == 2 && ranks) {
            if (has_slots) {
                const struct ranked_slots s = ranked_slots_of(j, start);
                if (n <= STAGE)
                    rank_slots(j, &s, kept);
                else
                    rank_again(j, &s, window, ~0u);
            }
        } else if (n <= STAGE) {
            stage_keys<true, KEY>(j, start, window);
        } else {
            stage_keys<false, KEY>(j, start, window);
        }
        if (threadIdx.x < 3 && n + threadIdx.x - window < STAGE) ((KEY *)j->stage)[n + threadIdx.x - window] = 0;
        __syncthreads();
        const uint32_t end = min(STAGE, padded - window);
        if (GROUP == 2)
            emit_pairs<KEY>(j, start, n, window, end);
        else if (CELLS)
            emit_cells(j, n, window, end);
        else
            emit_ballots<KEY>(j, n, window, end);
        __syncthreads();
        window += STAGE;
    } while (window < padded);
}

/* Lists of the next group come to the second-level cache meanwhile. */
static __device__ __forceinline__ void prefetch_lists(const struct lists *l) {
    const uint32_t lane = threadIdx.x & 31, r = threadIdx.x / 32 / SHARE;
    const int32_t *list = l->list[r];
    for (uint32_t t = (threadIdx.x / 32 % SHARE * 32 + lane) * 32; t < l->n[r]; t += SHARE * 32 * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(list + t));
}

/* What is left to do: the general way; a barrier; nothing, and the bits are cleared, too. */
enum left { ALL, A_BARRIER, NOTHING };
/* The next group's lists are found meanwhile: of pairs, whose registers are few later, at first, of others by a warp
 * that has no word to scan where these are few. */
static __device__ __forceinline__ enum left whole_way(const struct group_lists *j, struct lists *next,
                                                      int64_t next_group) {
    struct kept_keys kept;
    if (GROUP == 2) load_lists(j->p, next, next_group);
    mark_whole(j, &kept);
    __syncthreads();
    if (GROUP > 2)
        load_lists(j->p, next, next_group);
    else if (next_group < j->p->until)
        prefetch_lists(next);
    const bool ranks = RANKS && j->p->table && j->p->slots;
    struct range range;
    if (CELLS)
        range = scan<1, false, CELLS>(j);
    else if (ranks)
        range = j->words >= THREADS * WIDE ? scan<WIDE, RANKS>(j) : scan<1, RANKS>(j);
    else
        range = j->words >= THREADS * WIDE ? scan<WIDE>(j) : scan<1>(j);
    __syncthreads();
    if (GROUP > 2 && next_group < j->p->until) prefetch_lists(next);
    if (ranks) clear_bits(j); /* nobody needs them any more */
    const uint32_t n = range.n[0] + range.n[1] + range.n[2];
    const uint32_t lane = threadIdx.x & 31, valid = __reduce_add_sync(~0u, lane < GROUP ? j->l->valid[lane] : 0);
    if (valid != j->l->distinct) {
        if (threadIdx.x == 0) j->l->again = 1;
        __syncthreads();
        return ALL;
    }
    if (write_header(j, n)) return A_BARRIER;
    const uint32_t start[KINDS] = {0, range.n[0], range.n[0] + range.n[1]};
    if (TABLE_ALWAYS || j->p->table) {
        emit_whole<uint16_t>(j, start, n, ranks, &kept);
        if (ranks) return NOTHING;
        if (RANKS || !j->p->slots) return A_BARRIER;
        if (!CELLS) fill_table(j, n);
        write_slots<true>(j, start, &kept);
    } else {
        emit_whole<uint32_t>(j, start, n, false, &kept);
        if (j->p->slots) write_slots<false>(j, start, &kept);
    }
    return A_BARRIER;
}
#endif
