/* SPDX-License-Identifier: MIT
 * Parameters of kernels/sm80/mla_join.cu, which joins the index lists of neighbouring queries: docs/joined_lists.md. */
#ifndef ATTN_KPARAMS_MLA_JOIN_H
#define ATTN_KPARAMS_MLA_JOIN_H
#include "kernels/params/mla.h"

/* kernels/variants/mla_join_sm80.def: .group, .threads */
struct kp_mla_join_config {
    const char *symbol;
    int32_t group, threads;
};

#define KP_MLA_JOIN_STAGE 4096 /* keys of entries that shared memory holds at a time */
/* Bytes for 32 keys of a range: a bit for each query and, with four or more, for each half; four places. */
#define KP_MLA_JOIN_WORD(group)          (4 * (group) + ((group) > 2 ? 8 : 0) + 8)
#define KP_MLA_JOIN_SHARED(group, words) (4 * KP_MLA_JOIN_STAGE + ((words) + 1) / 2 * 2 * KP_MLA_JOIN_WORD(group))
#define KP_MLA_JOIN_STATIC               1024 /* static shared memory, at most */

struct kp_mla_join {
    struct kp_mla in;                     /* indices, topk_length and the causal rule */
    struct kp_view joined;                /* int32 [B,groups,WORDS]; row: of a group */
    uint64_t uses;                        /* uint16 [CTAs][group * topk], where a list names a key again */
    int64_t union_limit;                  /* 0: none */
    int64_t groups, from, until;          /* of a batch entry; those to join: from .. until - 1 of all */
    int32_t keys, bits, slots, slots_row; /* words, as in src/core/joined.h */
    int32_t words, reserved;              /* 32 keys each: those of a range; even */
};
KP_SIZE(struct kp_mla_join, 272 + 48 + 5 * 8 + 6 * 4);
#endif
