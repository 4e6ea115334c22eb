/* SPDX-License-Identifier: MIT
 * A group of neighbouring queries and its joined list. */
#ifndef ATTN_DEVICE_JOINED_H
#define ATTN_DEVICE_JOINED_H
#include "kernels/params/mla.h"
#include "kernels/params/mla_joined.h"

struct joined_group {
    int b, query; /* batch entry, first query: src/cuda refuses more than 2^31 - 1 queries in all */
    int queries;  /* fewer in a batch entry's last group */
    const int32_t *words;
};

/* number: b * groups + g. Reads nothing. */
static __device__ __forceinline__ struct joined_group joined_group_of(const struct kp_mla_joined *j, int64_t seq_q,
                                                                      int number) {
    struct joined_group g;
    g.b = (int)((uint32_t)number / (uint32_t)j->groups);
    const int place = number - g.b * j->groups;
    g.query = place * j->group;
    g.queries = min(j->group, (int)seq_q - g.query);
    g.words = (const int32_t *)j->data + g.b * j->batch + place * j->row;
    return g;
}
/* Entries of its list; -1: it is left apart, and its queries have their own lists alone. */
static __device__ __forceinline__ int joined_entries(const struct joined_group *g) {
    const int n = g->words[KP_JOINED_ENTRIES];
    return g->words[KP_JOINED_FLAGS] & 1 ? -1 : n;
}
#endif
