/* SPDX-License-Identifier: MIT
 * Parameters of kernels/sm80/mla_join.cu, which joins the index lists of neighbouring queries: docs/joined_lists.md. */
#ifndef ATTN_KPARAMS_MLA_JOIN_H
#define ATTN_KPARAMS_MLA_JOIN_H
#include "kernels/params/mla.h"

/* kernels/variants/mla_join_sm80.def: .group, .threads, .ctas, .batch: said there */
struct kp_mla_join_config {
    const char *symbol;
    int32_t group, threads, ctas, batch, early;
};

#define KP_MLA_JOIN_STAGE 8192 /* bytes of keys of entries that shared memory holds at a time */
/* Bytes for 32 keys of a range: a bit for each query and, with four or more, for each half; places. Where there is a
 * table: the entries by key, in their place; of pairs, their bits and, by 16 keys, bits and a place of each kind. */
#define KP_MLA_JOIN_WORD(group)  (4 * (group) + ((group) > 2 ? 8 : 0) + 8)
#define KP_MLA_JOIN_RANKS(group) ((group) == 2)
#define KP_MLA_JOIN_TABLE(group) (KP_MLA_JOIN_RANKS(group) ? 32 : 64)
#define KP_MLA_JOIN_TABLE_KEYS   65536
#define KP_MLA_JOIN_STATIC       1536 /* static shared memory, at most */

struct kp_mla_join {
    struct kp_mla in;                     /* indices, topk_length and the causal rule */
    struct kp_view joined;                /* int32 [B,groups,WORDS]; row: of a group */
    uint64_t uses;                        /* uint16 [CTAs][group * topk], where a list names a key again */
    int64_t union_limit;                  /* 0: none */
    int64_t groups, from, until;          /* of a batch entry; those to join: from .. until - 1 of all */
    int32_t keys, bits, slots, slots_row; /* words, as in src/core/joined.h; slots 0: slots' entries are not wanted */
    int32_t words;                        /* 32 keys each: those of a range; a multiple of 4 */
    int32_t table;                        /* one range has all keys, and shared memory a table of their entries */
    int32_t log2_parts;                   /* of a word, for a thread each */
    int32_t four;                         /* 4 */
};
KP_SIZE(struct kp_mla_join, 272 + 48 + 5 * 8 + 8 * 4);
#endif
