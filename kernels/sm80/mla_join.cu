/* SPDX-License-Identifier: MIT
 * Joined lists (docs/joined_lists.md): the index lists of a group of neighbouring queries as one list of entries, by
 * bitmaps over a range of keys in shared memory. A CTA takes groups in turn. Every chip.
 *
 *   MARK   slot (query r, key) sets bit `key` of r's bitmap; a bit that was set: a list names a key again
 *   SCAN   32 keys a thread: bits that queries of the first and of the second half have, of one alone -> their places
 *   EMIT   keys of set bits at their places, through shared memory; a ballot for each query: its bits of 32 entries
 *   SLOTS  place of the key's word and the bits below it = a slot's entry
 *
 * The places depend on the bitmaps alone, and these on no order of threads. Keys above a range are left for the next
 * one, which begins at the smallest of them. Lists that name keys again take the general way: uses are numbered, and
 * those of one number are marked, scanned and emitted together.
 *
 * Shared memory: 16 KiB, and for 32 keys of a range 4 bytes a query, 8 more with four queries or more, and 8. */
#include "kernels/device/block_scan.h"
#include "kernels/device/slots.h"
#include "kernels/params/mla_join.h"

constexpr int GROUP = CFG_GROUP, HALF = GROUP / 2, THREADS = CFG_THREADS, WARPS = THREADS / 32;
/* Kinds of entries: that both parts of the group have, queries 0 .. HALF - 1 alone, the others alone. */
constexpr int STAGE = KP_MLA_JOIN_STAGE, KINDS = 3;
constexpr uint32_t NO_KEY = ~0u, NO_SLOT = 0xffff;
static_assert(GROUP >= 2 && GROUP <= 16 && WARPS <= 32 && THREADS >= 32, "a thread for each word of a header");

struct lists {
    const int32_t *list[GROUP];
    uint32_t n[GROUP], keys[GROUP], valid[GROUP]; /* slots, admissible keys, valid slots */
    uint32_t share[2][WARPS];
    uint32_t next, again, most_uses; /* smallest key past the range; a list names a key again; largest use + 1 */
    int queries;
    int32_t *out;
};
static_assert(sizeof(struct lists) <= KP_MLA_JOIN_STATIC, "shared memory is counted with that");

/* A CTA's view of its group. */
struct group_lists {
    const struct kp_mla_join *p;
    struct lists *l;
    uint32_t *stage, *bitmap, *half; /* [STAGE], [GROUP][words], [words][2] */
    uint16_t *place;                 /* [words][4], of the first three kinds: within the kind and range */
    int32_t *out;
    uint16_t *uses;
    uint32_t words;
};

/* Entries of a range, by half, and the smallest key past it. */
struct range {
    uint32_t n[KINDS], next;
};

/* By the first warp: divisions of 64 bits are long. */
static __device__ __forceinline__ void load_lists(struct group_lists *j, int64_t group) {
    const struct kp_mla_join *p = j->p;
    const uint32_t thread = threadIdx.x;
    if (thread < GROUP) {
        const int64_t b = group / p->groups, number = group - b * p->groups, first = number * GROUP;
        const int64_t rest = p->in.seq_q - first;
        struct slots s = {nullptr, 0, 0};
        if (thread < rest) s = slots_of(&p->in, b, first + thread);
        j->l->list[thread] = s.idx;
        j->l->n[thread] = (uint32_t)s.n;
        j->l->keys[thread] = s.keys;
        j->l->valid[thread] = 0;
        if (thread == 0) {
            j->l->queries = rest < GROUP ? (int)rest : GROUP;
            j->l->out = (int32_t *)p->joined.data + b * p->joined.batch + number * p->joined.row;
            j->l->again = 0;
            j->l->most_uses = 0;
        }
    }
    __syncthreads();
    j->out = j->l->out;
}

/* Sets a key's bit; a bit of the word if it was set before. */
static __device__ __forceinline__ uint32_t set_bit(uint32_t *bitmap, uint32_t from_low) {
    const uint32_t bit = 1u << (from_low & 31);
    return atomicOr(&bitmap[from_low / 32], bit) & bit;
}

/* Bits of the keys low .. low + 32 words - 1 that slots name for the use-th time; use < 0: for any, and in the first
 * range the valid slots are counted. */
static __device__ __forceinline__ void mark(const struct group_lists *j, uint32_t low, int use) {
    const uint32_t thread = threadIdx.x, span = j->words * 32, topk = (uint32_t)j->p->in.topk;
    const bool by_use = use >= 0 && j->l->again;
    uint32_t next = NO_KEY, again = 0;
    for (int r = 0; r < GROUP; r++) {
        const int32_t *list = j->l->list[r];
        uint32_t *bitmap = j->bitmap + r * j->words;
        const uint32_t n = j->l->n[r], keys = j->l->keys[r];
        uint32_t valid = 0;
        if (use < 0 && low == 0 && keys <= span) { /* the usual way: one range has all */
#pragma unroll 4
            for (uint32_t t = thread; t < n; t += THREADS) {
                const uint32_t key = (uint32_t)__ldg(&list[t]);
                if (key >= keys) continue;
                valid++;
                again |= set_bit(bitmap, key);
            }
        } else {
            for (uint32_t t = thread; t < n; t += THREADS) {
                const uint32_t key = (uint32_t)__ldg(&list[t]);
                if (key >= keys) continue;
                valid++;
                if (by_use && j->uses[(uint32_t)r * topk + t] != use) continue;
                if (key - low < span)
                    again |= set_bit(bitmap, key - low);
                else if (key >= low)
                    next = min(next, key);
            }
        }
        if (use < 0 && low == 0) {
            valid = __reduce_add_sync(~0u, valid);
            if ((thread & 31) == 0 && valid) atomicAdd(&j->l->valid[r], valid);
        }
    }
    next = __reduce_min_sync(~0u, next);
    if ((thread & 31) == 0 && next != NO_KEY) atomicMin(&j->l->next, next);
    if (use < 0 && again) atomicOr(&j->l->again, 1u);
}

/* Places of each word's entries by half. */
static __device__ __forceinline__ struct range scan(const struct group_lists *j) {
    struct range sum = {{0, 0, 0}, 0};
    for (uint32_t w0 = 0; w0 < j->words; w0 += THREADS) {
        const uint32_t w = w0 + threadIdx.x;
        uint32_t half[2] = {0, 0};
        if (w < j->words) {
#pragma unroll
            for (int r = 0; r < GROUP; r++) half[r / HALF] |= j->bitmap[r * j->words + w];
            if (GROUP > 2) j->half[2 * w] = half[0], j->half[2 * w + 1] = half[1];
        }
        const uint32_t own = (uint32_t)__popc(half[0] & half[1]) | (uint32_t)__popc(half[0] & ~half[1]) << 16,
                       second = (uint32_t)__popc(half[1] & ~half[0]);
        const uint32_t to_lane = sum_to_lane(own), second_to_lane = sum_to_lane(second);
        const struct warp_sums a = sum_warps(to_lane, j->l->share[0]), b = sum_warps(second_to_lane, j->l->share[1]);
        if (w < j->words) {
            const uint32_t before = a.before + to_lane - own;
            j->place[4 * w] = (uint16_t)(sum.n[0] + (before & 0xffff));
            j->place[4 * w + 1] = (uint16_t)(sum.n[1] + (before >> 16));
            j->place[4 * w + 2] = (uint16_t)(sum.n[2] + b.before + second_to_lane - second);
        }
        sum.n[0] += a.all & 0xffff;
        sum.n[1] += a.all >> 16;
        sum.n[2] += b.all;
        __syncthreads();
    }
    return sum;
}

static __device__ __forceinline__ struct range take_range(const struct group_lists *j, uint32_t low, int use) {
    for (uint32_t w = threadIdx.x; w < GROUP * j->words; w += THREADS) j->bitmap[w] = 0;
    if (threadIdx.x == 0) j->l->next = NO_KEY;
    __syncthreads();
    mark(j, low, use);
    __syncthreads();
    struct range range = scan(j);
    range.next = j->l->next;
    __syncthreads();
    return range;
}

static __device__ __forceinline__ uint32_t half_word(const struct group_lists *j, int half, uint32_t w) {
    return GROUP > 2 ? j->half[2 * w + half] : j->bitmap[half * j->words + w];
}
static __device__ __forceinline__ uint32_t bits_of_half(uint32_t first, uint32_t second, int half) {
    return half == 0 ? first & second : half == 1 ? first & ~second : second & ~first;
}

/* Entries begin .. end - 1, which are those of kinds h0 .. h1 - 1, the first of kind h at start[h]. whole: no other
 * call writes bits of the same words. */
static __device__ __forceinline__ void emit(const struct group_lists *j, uint32_t low, const uint32_t (&start)[KINDS],
                                            int h0, int h1, uint32_t begin, uint32_t end, bool whole) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t window = begin & ~31u; window < end; window += STAGE) {
        for (uint32_t w = threadIdx.x; w < j->words; w += THREADS) {
            const uint32_t first = half_word(j, 0, w), second = half_word(j, 1, w);
#pragma unroll
            for (int h = 0; h < KINDS; h++) {
                if (h < h0 || h >= h1) continue;
                uint32_t bits = bits_of_half(first, second, h), e = start[h] + j->place[4 * w + h] - window;
                for (; bits; bits &= bits - 1, e++)
                    if (e < STAGE) j->stage[e] = low + w * 32 + (uint32_t)__ffs((int)bits) - 1;
            }
        }
        __syncthreads();
        for (uint32_t e0 = window + warp * 32; e0 < end && e0 < window + STAGE; e0 += THREADS) {
            const uint32_t e = e0 + lane;
            const bool own = e >= begin && e < end;
            const uint32_t key = own ? j->stage[e - window] : low, from_low = key - low,
                           bit = own ? 1u << (from_low & 31) : 0;
            uint32_t mine = 0;
            if (own) j->out[j->p->keys + e] = (int32_t)key;
#pragma unroll
            for (int r = 0; r < GROUP; r++) {
                const uint32_t bits = __ballot_sync(~0u, j->bitmap[r * j->words + from_low / 32] & bit);
                if (lane == (uint32_t)r) mine = bits;
            }
            if (lane >= GROUP) continue;
            uint32_t *bits = (uint32_t *)j->out + j->p->bits + (e0 / 64 * GROUP + lane) * 2 + e0 % 64 / 32;
            if (whole)
                *bits = mine;
            else if (mine)
                atomicOr(bits, mine);
        }
        __syncthreads();
    }
}

/* The entry of a key of the range. */
static __device__ __forceinline__ uint32_t entry_of(const struct group_lists *j, uint32_t from_low,
                                                    const uint32_t (&start)[KINDS]) {
    const uint32_t w = from_low / 32, bit = 1u << (from_low & 31);
    const uint32_t first = half_word(j, 0, w), second = half_word(j, 1, w);
    const bool in_first = first & bit, in_both = first & second & bit;
    const uint32_t own = in_first ? first : second, other = in_first ? second : first;
    const uint32_t before = (in_both ? own & other : own & ~other) & (bit - 1);
    const uint32_t kind = in_both ? 0 : in_first ? 1 : 2, from = in_both ? start[0] : in_first ? start[1] : start[2];
    return from + j->place[4 * w + kind] + (uint32_t)__popc(before);
}

/* Two slots a thread: where one range has all keys, each once. */
static __device__ __forceinline__ void write_slots(const struct group_lists *j, const uint32_t (&start)[KINDS]) {
    for (int r = 0; r < j->l->queries; r++) {
        const int32_t *list = j->l->list[r];
        const uint32_t n = j->l->n[r], keys = j->l->keys[r];
        int32_t *row = j->out + j->p->slots + r * j->p->slots_row;
#pragma unroll 2
        for (uint32_t x = threadIdx.x; x < (uint32_t)j->p->slots_row; x += THREADS) {
            uint32_t entry[2];
#pragma unroll
            for (uint32_t y = 0; y < 2; y++) {
                const uint32_t key = 2 * x + y < n ? (uint32_t)__ldg(&list[2 * x + y]) : NO_KEY;
                entry[y] = key < keys ? entry_of(j, key, start) : NO_SLOT;
            }
            row[x] = (int32_t)(entry[0] | entry[1] << 16);
        }
    }
}

/* Those of one use and range. */
static __device__ __forceinline__ void add_slots(const struct group_lists *j, uint32_t low, int use,
                                                 const uint32_t (&start)[KINDS]) {
    const uint32_t span = j->words * 32, topk = (uint32_t)j->p->in.topk;
    for (int r = 0; r < j->l->queries; r++) {
        const int32_t *list = j->l->list[r];
        uint16_t *row = (uint16_t *)(j->out + j->p->slots + r * j->p->slots_row);
        for (uint32_t t = threadIdx.x; t < j->l->n[r]; t += THREADS) {
            const uint32_t key = (uint32_t)__ldg(&list[t]);
            if (key >= j->l->keys[r] || key - low >= span) continue;
            if (j->l->again && j->uses[(uint32_t)r * topk + t] != use) continue;
            row[t] = (uint16_t)entry_of(j, key - low, start);
        }
    }
}

/* Which time each slot names its key: earlier slots of the list that do. Quadratic, and rare. */
static __device__ __forceinline__ void number_uses(const struct group_lists *j) {
    const uint32_t topk = (uint32_t)j->p->in.topk;
    uint32_t most = 0;
    for (int r = 0; r < GROUP; r++) {
        const int32_t *list = j->l->list[r];
        for (uint32_t t = threadIdx.x; t < j->l->n[r]; t += THREADS) {
            const int32_t key = list[t];
            uint32_t use = 0;
            if ((uint32_t)key >= j->l->keys[r]) continue;
#pragma unroll 8
            for (uint32_t x = 0; x < t; x++) use += list[x] == key;
            j->uses[(uint32_t)r * topk + t] = (uint16_t)use;
            most = max(most, use + 1);
        }
    }
    most = __reduce_max_sync(~0u, most);
    if ((threadIdx.x & 31) == 0) atomicMax(&j->l->most_uses, most);
    __syncthreads();
}

/* Entries of a use by half, over all ranges. */
static __device__ __forceinline__ struct range count_use(const struct group_lists *j, int use) {
    struct range sum = {{0, 0, 0}, NO_KEY};
    for (uint32_t low = 0; low != NO_KEY;) {
        const struct range range = take_range(j, low, use);
        for (int h = 0; h < KINDS; h++) sum.n[h] += range.n[h];
        low = range.next;
    }
    return sum;
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

/* Empty entries up to a whole block of 128; from: bits of the first word that no entry has. */
static __device__ __forceinline__ void pad_entries(const struct group_lists *j, uint32_t n, uint32_t from) {
    const uint32_t padded = (n + 127) / 128 * 128;
    for (uint32_t e = n + threadIdx.x; e < padded; e += THREADS) j->out[j->p->keys + e] = -1;
    for (uint32_t x = from / 32 * GROUP + threadIdx.x; x < padded / 32 * GROUP; x += THREADS) {
        const uint32_t e0 = x / GROUP * 32;
        j->out[j->p->bits + (e0 / 64 * GROUP + x % GROUP) * 2 + e0 % 64 / 32] = 0;
    }
}

static __device__ __forceinline__ void general_way(const struct group_lists *j, uint32_t n) {
    int uses = 1;
    if (j->l->again) {
        number_uses(j);
        uses = (int)j->l->most_uses;
        n = 0;
        for (int use = 0; use < uses; use++) {
            const struct range sum = count_use(j, use);
            n += sum.n[0] + sum.n[1] + sum.n[2];
        }
    }
    if (write_header(j, n)) return;
    pad_entries(j, n, 0);
    for (int x = (int)threadIdx.x; x < j->l->queries * j->p->slots_row; x += THREADS) j->out[j->p->slots + x] = -1;
    __syncthreads();
    for (uint32_t use = 0, done = 0; use < (uint32_t)uses; use++) {
        const struct range sum = count_use(j, (int)use);
        uint32_t start[KINDS] = {done, done + sum.n[0], done + sum.n[0] + sum.n[1]};
        for (uint32_t low = 0; low != NO_KEY;) {
            const struct range range = take_range(j, low, (int)use);
#pragma unroll
            for (int h = 0; h < KINDS; h++) emit(j, low, start, h, h + 1, start[h], start[h] + range.n[h], false);
            add_slots(j, low, (int)use, start);
            for (int h = 0; h < KINDS; h++) start[h] += range.n[h];
            low = range.next;
            __syncthreads();
        }
        done += sum.n[0] + sum.n[1] + sum.n[2];
    }
}

static __device__ __forceinline__ void one_group(const struct group_lists *j) {
    const struct range range = take_range(j, 0, -1);
    uint32_t n = range.n[0] + range.n[1] + range.n[2];
    if (j->l->again || range.next != NO_KEY) {
        for (uint32_t low = range.next; low != NO_KEY;) {
            const struct range later = take_range(j, low, -1);
            n += later.n[0] + later.n[1] + later.n[2];
            low = later.next;
        }
        general_way(j, n);
        return;
    }
    if (write_header(j, n)) return;
    const uint32_t start[KINDS] = {0, range.n[0], range.n[0] + range.n[1]};
    emit(j, 0, start, 0, KINDS, 0, n, true);
    pad_entries(j, n, (n + 31) / 32 * 32);
    write_slots(j, start);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    CFG(const __grid_constant__ struct kp_mla_join p) {
    extern __shared__ __align__(16) uint32_t dynamic[];
    __shared__ struct lists lists;
    struct group_lists j = {&p, &lists, dynamic};
    j.words = (uint32_t)p.words;
    j.bitmap = j.stage + STAGE;
    j.half = j.bitmap + GROUP * j.words;
    j.place = (uint16_t *)(GROUP > 2 ? j.half + 2 * j.words : j.half);
    j.uses = (uint16_t *)p.uses + (int64_t)blockIdx.x * GROUP * p.in.topk;
    for (int64_t group = p.from + blockIdx.x; group < p.until; group += gridDim.x) {
        load_lists(&j, group);
        one_group(&j);
        __syncthreads();
    }
}
