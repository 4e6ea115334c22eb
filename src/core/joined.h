/* SPDX-License-Identifier: MIT
 * Joined lists (docs/joined_lists.md): where the parts of a group lie in its row of the tensor, in words of 32 bits.
 * All follow from the problem alone. */
#ifndef ATTN_CORE_JOINED_H
#define ATTN_CORE_JOINED_H
#include "attn.h"

enum {
    ATTN_JOINED_MAX_GROUP = 16,
    ATTN_JOINED_MAX_SLOTS = 32768, /* of a group: they fit an SM's shared memory, and an entry's number 15 bits */
    ATTN_JOINED_HEADER = 32,       /* words; the first is the union's length */
    ATTN_JOINED_FLAGS = 1,         /* word of the header */
    ATTN_JOINED_QUERIES = 2,       /* the same: queries of the group, fewer in the last one of a sequence */
    ATTN_JOINED_VALID = 16,        /* first of 16 words of the header: valid slots of each query */
    ATTN_JOINED_APART = 1,         /* flag: the union is over the problem's limit, and the header is all */
    ATTN_JOINED_BLOCK = 64,        /* entries whose bits stand together, 64 for each query */
    ATTN_JOINED_PAD = 128,         /* entries are written in whole blocks of 128, empty ones at the end */
    ATTN_JOINED_NO_SLOT = 0xffff   /* an invalid slot's entry */
};

struct attn_core_joined {
    int64_t groups; /* of a sequence */
    int64_t keys, bits, slots, slots_row, words;
};

static inline struct attn_core_joined attn_core_joined_layout(const attn_problem *p) {
    const int64_t group = p->group > 0 ? p->group : 1;
    const int64_t most = (group * p->topk + ATTN_JOINED_PAD - 1) / ATTN_JOINED_PAD * ATTN_JOINED_PAD;
    struct attn_core_joined j = {.groups = p->seq_q / group + (p->seq_q % group != 0), .keys = ATTN_JOINED_HEADER};
    j.bits = j.keys + most;
    j.slots = j.bits + most / ATTN_JOINED_BLOCK * 2 * group;
    j.slots_row = (p->topk + 7) / 8 * 4; /* two slots in a word, rows of whole 16 bytes */
    j.words = (j.slots + group * j.slots_row + 31) / 32 * 32;
    return j;
}
#endif
