/* SPDX-License-Identifier: MIT
 * mla_join.cu, the general way: keys in several ranges, or lists that name keys again. */
#ifndef ATTN_SM80_MLA_JOIN_RANGES_H
#define ATTN_SM80_MLA_JOIN_RANGES_H
#include "kernels/sm80/mla_join_lists.h"

/* Sets a key's bit; a bit of the word if it was set before. */
static __device__ __forceinline__ uint32_t set_bit(uint32_t *bitmap, uint32_t from_low) {
    const uint32_t bit = 1u << (from_low & 31);
    return atomicOr(&bitmap[from_low / 32], bit) & bit;
}

/* Bits of the keys low .. low + 32 words - 1 that slots name for the use-th time; ANY: for any, and in the first range
 * the valid slots are counted. */
template <bool ANY>
static __device__ __forceinline__ void mark(const struct group_lists *j, uint32_t low, uint32_t use) {
    const uint32_t thread = threadIdx.x, span = j->words * 32;
    const bool by_use = !ANY && j->l->again;
    uint32_t next = NO_KEY, again = 0;
#pragma unroll 1
    for (int r = 0; r < GROUP; r++) {
        const int32_t *list = j->l->list[r];
        uint32_t *bitmap = j->bitmap + r * j->words;
        const uint32_t n = j->l->n[r], keys = j->l->keys[r];
        const uint16_t *uses = uses_of(j, (uint32_t)r);
        uint32_t valid = 0;
#pragma unroll 1
        for (uint32_t t = thread; t < n; t += THREADS) {
            const uint32_t key = (uint32_t)__ldg(&list[t]);
            if (key >= keys) continue;
            valid++;
            if (by_use && uses[t] != use) continue;
            if (key - low < span)
                again |= set_bit(bitmap, key - low);
            else if (key >= low)
                next = min(next, key);
        }
        if (ANY && low == 0) {
            valid = __reduce_add_sync(~0u, valid);
            if ((thread & 31) == 0 && valid) atomicAdd(&j->l->valid[r], valid);
        }
    }
    next = __reduce_min_sync(~0u, next);
    if ((thread & 31) == 0 && next != NO_KEY) atomicMin(&j->l->next, next);
    if (ANY && again) atomicOr(&j->l->again, 1u);
}

template <bool ANY>
static __device__ __forceinline__ struct range take_range(const struct group_lists *j, uint32_t low, uint32_t use) {
    clear(j);
    __syncthreads();
    mark<ANY>(j, low, use);
    __syncthreads();
    struct range range = scan<1>(j);
    range.next = j->l->next;
    if (threadIdx.x == 0)
        for (int k = 0; k < KINDS; k++) j->l->count[k] = range.n[k];
    __syncthreads();
    return range;
}

/* The range's entries of a kind; other calls write bits of the same words. */
static __device__ __forceinline__ void emit(const struct group_lists *j, uint32_t low, int kind) {
    const uint32_t begin = j->l->start[kind], end = begin + j->l->count[kind];
    constexpr uint32_t STAGE = KP_MLA_JOIN_STAGE / sizeof(uint32_t);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t *stage = (uint32_t *)j->stage;
    for (uint32_t window = begin & ~31u; window < end; window += STAGE) {
        for (uint32_t w = threadIdx.x; w < j->words; w += THREADS) {
            const uint2 half = group_bits(j, w), place = j->place[w];
            uint32_t bits = bits_of_kind(half, kind), e = begin + place_of(place, kind) - window;
            for (; bits; bits &= bits - 1, e++)
                if (e < STAGE) stage[e] = low + w * 32 + (uint32_t)__ffs((int)bits) - 1;
        }
        __syncthreads();
        for (uint32_t e0 = window + warp * 32; e0 < end && e0 < window + STAGE; e0 += THREADS) {
            const uint32_t e = e0 + lane;
            const bool own = e >= begin && e < end;
            const uint32_t key = own ? stage[e - window] : low, from_low = key - low,
                           bit = own ? 1u << (from_low & 31) : 0;
            const uint32_t *word = j->bitmap + from_low / 32;
            uint32_t mine = 0;
            if (own) j->out[j->p->keys + e] = (int32_t)key;
#pragma unroll
            for (int r = 0; r < GROUP; r++, word += j->words) {
                const uint32_t bits = __ballot_sync(~0u, *word & bit);
                if (lane == (uint32_t)r) mine = bits;
            }
            if (lane < GROUP && mine)
                atomicOr((uint32_t *)j->out + j->p->bits + (e0 / 64 * GROUP + lane) * 2 + e0 % 64 / 32, mine);
        }
        __syncthreads();
    }
}

/* Those of one use and range. */
static __device__ __forceinline__ void add_slots(const struct group_lists *j, uint32_t low, uint32_t use) {
    const uint32_t start[KINDS] = {j->l->start[0], j->l->start[1], j->l->start[2]};
    const uint32_t span = j->words * 32;
#pragma unroll 1
    for (int r = 0; r < j->l->queries; r++) {
        const int32_t *list = j->l->list[r];
        const uint16_t *uses = uses_of(j, (uint32_t)r);
        uint16_t *row = (uint16_t *)(j->out + j->p->slots + r * j->p->slots_row);
#pragma unroll 1
        for (uint32_t t = threadIdx.x; t < j->l->n[r]; t += THREADS) {
            const uint32_t key = (uint32_t)__ldg(&list[t]);
            if (key >= j->l->keys[r] || key - low >= span) continue;
            if (j->l->again && uses[t] != use) continue;
            row[t] = (uint16_t)entry_of(j, key - low, start);
        }
    }
}

/* Which time each slot names its key: earlier slots of the list that do. Quadratic, and rare. */
static __device__ __forceinline__ void number_uses(const struct group_lists *j) {
    uint32_t most = 0;
#pragma unroll 1
    for (int r = 0; r < GROUP; r++) {
        const int32_t *list = j->l->list[r];
        uint16_t *uses = uses_of(j, (uint32_t)r);
#pragma unroll 1
        for (uint32_t t = threadIdx.x; t < j->l->n[r]; t += THREADS) {
            const int32_t key = list[t];
            uint32_t use = 0;
            if ((uint32_t)key >= j->l->keys[r]) continue;
#pragma unroll 8
            for (uint32_t x = 0; x < t; x++) use += list[x] == key;
            uses[t] = (uint16_t)use;
            most = max(most, use + 1);
        }
    }
    most = __reduce_max_sync(~0u, most);
    if ((threadIdx.x & 31) == 0) atomicMax(&j->l->most_uses, most);
    __syncthreads();
}

/* Entries of a use, or of ANY, by kind, over all ranges. */
template <bool ANY>
static __device__ __forceinline__ struct range count_use(const struct group_lists *j, uint32_t use) {
    struct range sum = {{0, 0, 0}, NO_KEY};
    for (uint32_t low = 0; low != NO_KEY;) {
        const struct range range = take_range<ANY>(j, low, use);
        for (int k = 0; k < KINDS; k++) sum.n[k] += range.n[k];
        low = range.next;
    }
    return sum;
}

/* Empty entries up to a whole block of 128, and no bit yet of any. */
static __device__ __forceinline__ void pad_entries(const struct group_lists *j, uint32_t n) {
    const uint32_t padded = (n + 127) / 128 * 128;
    for (uint32_t e = n + threadIdx.x; e < padded; e += THREADS) j->out[j->p->keys + e] = -1;
#pragma unroll 1 /* a thread has few */
    for (uint32_t x = threadIdx.x; x < padded / 32 * GROUP; x += THREADS) {
        const uint32_t e0 = x / GROUP * 32;
        j->out[j->p->bits + (e0 / 64 * GROUP + x % GROUP) * 2 + e0 % 64 / 32] = 0;
    }
}

static __device__ __forceinline__ void general_way(const struct group_lists *j) {
    uint32_t n = 0;
    if (!j->l->again) {
        const struct range sum = count_use<true>(j, 0);
        n = sum.n[0] + sum.n[1] + sum.n[2];
    }
    if (j->l->again) {
        number_uses(j);
        n = 0;
        for (uint32_t use = 0; use < j->l->most_uses; use++) {
            const struct range sum = count_use<false>(j, use);
            n += sum.n[0] + sum.n[1] + sum.n[2];
        }
    }
    if (write_header(j, n)) return;
    pad_entries(j, n);
    if (j->p->slots)
        for (int x = (int)threadIdx.x; x < j->l->queries * j->p->slots_row; x += THREADS) j->out[j->p->slots + x] = -1;
    __syncthreads();
    for (uint32_t use = 0; use < j->l->most_uses; use++) {
        const struct range sum = count_use<false>(j, use);
        if (threadIdx.x == 0) {
            uint32_t *start = j->l->start;
            start[0] = use ? start[2] : 0; /* past the last use's entries */
            start[1] = start[0] + sum.n[0];
            start[2] = start[1] + sum.n[1];
        }
        for (uint32_t low = 0; low != NO_KEY;) {
            const uint32_t next = take_range<false>(j, low, use).next;
#pragma unroll 1
            for (int kind = 0; kind < KINDS; kind++) emit(j, low, kind);
            if (j->p->slots) add_slots(j, low, use);
            __syncthreads();
            if (threadIdx.x < KINDS) j->l->start[threadIdx.x] += j->l->count[threadIdx.x];
            low = next;
        }
    }
}
#endif
