/* SPDX-License-Identifier: MIT
 * mla_join.cu: a group's lists, the bitmaps of a range of keys, and what both ways through them share. */
#ifndef ATTN_SM80_MLA_JOIN_LISTS_H
#define ATTN_SM80_MLA_JOIN_LISTS_H
#include "kernels/device/slots.h"
#include "kernels/params/mla_join.h"

constexpr int GROUP = CFG_GROUP, HALF = GROUP / 2, THREADS = CFG_THREADS, WARPS = THREADS / 32;
constexpr uint32_t SHARE = WARPS / GROUP;                     /* warps of a query */
constexpr uint32_t BATCH = CFG_BATCH;                         /* loads of 16 bytes that a thread has under way */
constexpr uint32_t STEP = SHARE * 128;                        /* slots of a query that its warps take at a time */
constexpr uint32_t WIDE = THREADS < 256 ? 4 : 1024 / THREADS; /* words that a thread scans side by side, of many */
/* Kinds of entries: that both parts of the group have, queries 0 .. HALF - 1 alone, the others alone. */
constexpr int KINDS = 3;
/* A range of all keys leaves room for the table: its words are no smaller (src/cuda/sparse/mla_join.c). */
constexpr bool TABLE_ALWAYS = KP_MLA_JOIN_WORD(GROUP) >= KP_MLA_JOIN_TABLE(GROUP);
/* The table is ranks, by which a slot finds its entry; its 16 bits a key are those of the queries before. */
constexpr bool RANKS = KP_MLA_JOIN_RANKS(GROUP), CELLS = GROUP == 16;
static_assert(!CELLS || TABLE_ALWAYS, "bits of 32 keys are as many in cells as in bitmaps");
constexpr uint32_t NO_KEY = ~0u, NO_SLOT = 0xffff;
static_assert(GROUP >= 2 && GROUP <= 16 && WARPS % GROUP == 0 && WARPS <= 32, "whole warps for each query");

/* Lists of a group. */
struct lists {
    const int32_t *list[GROUP];
    uint32_t n[GROUP], keys[GROUP], valid[GROUP]; /* slots, admissible keys, valid slots */
    uint32_t distinct, next;                      /* bits that are set in a range, all queries'; smallest key past it */
    uint32_t again, most_uses;                    /* a list names a key again; largest use + 1 */
    uint32_t start[KINDS], count[KINDS];          /* the general way: a range's entries of each kind */
    int queries;
    int32_t *out;
};
struct statics {
    struct lists lists[2]; /* of this group and of the next one */
    uint32_t share[2][2][WARPS];
};
static_assert(sizeof(struct statics) <= KP_MLA_JOIN_STATIC, "shared memory is counted with that");

/* A CTA's view of its group. */
struct group_lists {
    const struct kp_mla_join *p;
    struct lists *l;
    uint32_t (*share)[2][WARPS];
    void *stage;             /* keys of entries: uint16_t where a table is used, or uint32_t */
    uint32_t *bitmap, *half; /* [GROUP][words], or cells: 16 bits a key; [words][2] */
    uint2 *place;            /* [words], of the first three kinds, 16 bits each: within the kind and range */
    uint32_t *ranks;         /* [KINDS][2 * words]: of 16 keys, bits of the kind, and in the upper half their place */
    int32_t *out;
    uint32_t words;
};
/* Of a query's slots, in the general way. */
static __device__ __forceinline__ uint16_t *uses_of(const struct group_lists *j, uint32_t r) {
    return (uint16_t *)j->p->uses + ((int64_t)blockIdx.x * GROUP + r) * j->p->in.topk;
}

/* Entries of a range, by kind, and the smallest key past it. */
struct range {
    uint32_t n[KINDS], next;
};

/* The last warp; reads what no other thread writes. */
static __device__ __forceinline__ void load_lists(const struct kp_mla_join *p, struct lists *l, int64_t group) {
    const uint32_t r = threadIdx.x - (THREADS - 32); /* large in other warps */
    if (r >= GROUP || group >= p->until) return;
    int64_t b = 0;
    if (group >= p->groups) /* a division of 64 bits is long */
        b = group >> 32 ? group / p->groups : (int64_t)((uint32_t)group / (uint32_t)p->groups);
    const int64_t number = group - b * p->groups, first = number * GROUP;
    const int64_t rest = p->in.seq_q - first;
    struct slots s = {nullptr, 0, 0};
    if (r < rest) s = slots_of(&p->in, b, first + r);
    l->list[r] = s.idx;
    l->n[r] = (uint32_t)s.n;
    l->keys[r] = s.keys;
    l->valid[r] = 0;
    if (r == 0) {
        l->queries = rest < GROUP ? (int)rest : GROUP;
        l->out = (int32_t *)p->joined.data + b * p->joined.batch + number * p->joined.row;
        l->again = 0;
        l->most_uses = 1;
        l->distinct = 0;
    }
}

/* Sums over the threads before this one and over all, of two numbers each. `share` is not read after the next barrier
 * but one. */
struct sums {
    uint32_t before[2], all[2];
};
static __device__ __forceinline__ struct sums sum_threads(uint32_t (&share)[2][WARPS], const uint32_t (&own)[2]) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t sum[2] = {own[0], own[1]};
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t less[2] = {__shfl_up_sync(~0u, sum[0], d), __shfl_up_sync(~0u, sum[1], d)};
        if (lane >= d) sum[0] += less[0], sum[1] += less[1];
    }
    if (lane == 31) share[0][warp] = sum[0], share[1][warp] = sum[1];
    __syncthreads();
    struct sums x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t other = lane < WARPS ? share[i][lane] : 0;
        x.all[i] = __reduce_add_sync(~0u, other);
        x.before[i] = __reduce_add_sync(~0u, lane < warp ? other : 0) + sum[i] - own[i];
    }
    return x;
}

template <uint32_t N> static __device__ __forceinline__ void load_words(const uint32_t *from, uint32_t (&x)[N]) {
    static_assert(N == 1 || N == 2 || N == 4, "a word, 8 or 16 bytes");
    if constexpr (N == 4) {
        const uint4 y = *(const uint4 *)from;
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else if constexpr (N == 2) {
        const uint2 y = *(const uint2 *)from;
        x[0] = y.x, x[1] = y.y;
    } else {
        x[0] = *from;
    }
}

static __device__ __forceinline__ uint32_t place_of(uint2 place, int kind) {
    return kind == 0 ? place.x & 0xffff : kind == 1 ? place.x >> 16 : place.y;
}
static __device__ __forceinline__ uint32_t bits_of_kind(uint2 half, int kind) {
    return kind == 0 ? half.x & half.y : kind == 1 ? half.x & ~half.y : half.y & ~half.x;
}

/* Ranks of the keys of word w. */
static __device__ __forceinline__ void store_ranks(const struct group_lists *j, uint32_t w, uint2 half, uint2 place) {
#pragma unroll
    for (int k = 0; k < KINDS; k++) {
        const uint32_t bits = bits_of_kind(half, k), low = place_of(place, k),
                       high = low + (uint32_t)__popc(bits & 0xffff);
        *(uint2 *)(j->ranks + 2 * ((uint32_t)k * j->words + w)) =
            make_uint2(__byte_perm(bits, low, 0x5410), __byte_perm(bits, high, 0x5432));
    }
}

/* Bits of even keys, then of odd ones, in the order of keys. */
static __device__ __forceinline__ uint32_t interleave(uint32_t x) {
    x = (x & 0xff0000ff) | (x & 0x0000ff00) << 8 | (x & 0x00ff0000) >> 8;
    x = (x & 0xf00ff00f) | (x & 0x00f000f0) << 4 | (x & 0x0f000f00) >> 4;
    x = (x & 0xc3c3c3c3) | (x & 0x0c0c0c0c) << 2 | (x & 0x30303030) >> 2;
    return (x & 0x99999999) | (x & 0x22222222) << 1 | (x & 0x44444444) >> 1;
}
/* Of the cells of 32 keys: how many bits are set, and which keys queries of the first and of the second half have. */
static __device__ __forceinline__ uint32_t read_cells(const uint4 *cells, uint32_t *first, uint32_t *second) {
    constexpr uint32_t ALL = ((1u << HALF) - 1) * 0x10001;
    uint32_t bits = 0, x = 0, y = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint4 four = cells[i];
        const uint32_t cell[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            bits += (uint32_t)__popc(cell[k]);
            x |= ((((cell[k] & ALL) + ALL) >> HALF) & 0x10001) << (4 * i + k);
            y |= (((((cell[k] >> HALF) & ALL) + ALL) >> HALF) & 0x10001) << (4 * i + k);
        }
    }
    *first = interleave(x), *second = interleave(y);
    return bits;
}

/* Places of each word's entries by kind, or ranks, and how many bits are set. A thread has PER words side by side. */
template <uint32_t PER, bool TO_RANKS = false, bool OF_CELLS = false>
static __device__ __forceinline__ struct range scan(const struct group_lists *j) {
    struct range sum = {{0, 0, 0}, 0};
    uint32_t distinct = 0, turn = 0;
    for (uint32_t w0 = 0; w0 < j->words; w0 += THREADS * PER, turn ^= 1) {
        const uint32_t w = w0 + threadIdx.x * PER;
        uint32_t first[PER] = {}, second[PER] = {}, own[2] = {0, 0};
        if (OF_CELLS && w < j->words) {
            distinct += read_cells((const uint4 *)(j->bitmap + 16 * w), &first[0], &second[0]);
        } else if (w < j->words) {
#pragma unroll
            for (int r = 0; r < GROUP; r++) {
                uint32_t bits[PER];
                load_words(j->bitmap + r * j->words + w, bits);
#pragma unroll
                for (uint32_t i = 0; i < PER; i++) {
                    if (r < HALF)
                        first[i] |= bits[i];
                    else
                        second[i] |= bits[i];
                    distinct += (uint32_t)__popc(bits[i]);
                }
            }
        }
        if (w < j->words) {
#pragma unroll
            for (uint32_t i = 0; i < PER; i++) {
                const uint32_t x = first[i], y = second[i];
                own[0] += (uint32_t)__popc(x & y) | (uint32_t)__popc(x & ~y) << 16;
                own[1] += (uint32_t)__popc(y & ~x);
            }
        }
        const struct sums before = sum_threads(j->share[turn], own);
        if (w < j->words) {
            uint2 place = {sum.n[0] + (sum.n[1] << 16) + before.before[0], sum.n[2] + before.before[1]};
#pragma unroll
            for (uint32_t i = 0; i < PER; i++) {
                const uint32_t x = first[i], y = second[i];
                if (TO_RANKS) {
                    store_ranks(j, w + i, make_uint2(x, y), place);
                } else {
                    j->place[w + i] = place;
                    if (GROUP > 2) *(uint2 *)(j->half + 2 * (w + i)) = make_uint2(x, y);
                }
                place.x += (uint32_t)__popc(x & y) | (uint32_t)__popc(x & ~y) << 16;
                place.y += (uint32_t)__popc(y & ~x);
            }
        }
        sum.n[0] += before.all[0] & 0xffff;
        sum.n[1] += before.all[0] >> 16;
        sum.n[2] += before.all[1];
    }
    distinct = __reduce_add_sync(~0u, distinct);
    if ((threadIdx.x & 31) == 0 && distinct) atomicAdd(&j->l->distinct, distinct);
    return sum;
}

static __device__ __forceinline__ void clear_bits(const struct group_lists *j) {
    for (uint32_t x = threadIdx.x; x < GROUP * j->words / 4; x += THREADS)
        ((uint4 *)j->bitmap)[x] = make_uint4(0, 0, 0, 0);
}
static __device__ __forceinline__ void clear(const struct group_lists *j) {
    clear_bits(j);
    if (threadIdx.x == 0) j->l->next = NO_KEY, j->l->distinct = 0;
}

static __device__ __forceinline__ uint2 group_bits(const struct group_lists *j, uint32_t w) {
    if (GROUP > 2) return *(const uint2 *)(j->half + 2 * w);
    return make_uint2(j->bitmap[w], j->bitmap[j->words + w]);
}

/* The entry of a key of the range. */
static __device__ __forceinline__ uint32_t entry_of(const struct group_lists *j, uint32_t from_low,
                                                    const uint32_t (&start)[KINDS]) {
    const uint32_t w = from_low / 32, bit = 1u << (from_low & 31);
    const uint2 half = group_bits(j, w);
    const bool in_first = half.x & bit, in_both = half.x & half.y & bit;
    const uint32_t own = in_first ? half.x : half.y, other = in_first ? half.y : half.x;
    const uint32_t before = (in_both ? own & other : own & ~other) & (bit - 1);
    const int kind = in_both ? 0 : in_first ? 1 : 2;
    const uint32_t from = in_both ? start[0] : in_first ? start[1] : start[2];
    return from + place_of(j->place[w], kind) + (uint32_t)__popc(before);
}

/* true: left apart, and nothing follows. */
static __device__ __forceinline__ bool write_header(const struct group_lists *j, uint32_t n) {
    const bool apart = j->p->union_limit && n > j->p->union_limit;
    const uint32_t word = threadIdx.x;
    if (word < 32)
        j->out[word] = word == 0                         ? (int32_t)n
                       : word == 1                       ? apart
                       : word == 2                       ? j->l->queries
                       : word >= 16 && word - 16 < GROUP ? (int32_t)j->l->valid[word - 16]
                                                         : 0;
    return apart;
}
#endif
