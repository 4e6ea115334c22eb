/* SPDX-License-Identifier: MIT
 * Joined lists (docs/joined_lists.md) as the kernels that read them find them, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_JOINED_H
#define ATTN_KPARAMS_MLA_JOINED_H
#include "kernels/params/mla.h"

/* Words of the header; equal to ATTN_JOINED_*, src/cuda asserts it. */
#define KP_JOINED_ENTRIES 0
#define KP_JOINED_FLAGS   1 /* bit 0: the group is left apart, the header is all */

/* Group g of batch entry b has the words from data + 4 * (b * batch + g * row). Where only some groups have been
 * joined, `data` may lie before the buffer. */
struct kp_mla_joined {
    uint64_t data;
    int64_t batch, row;                   /* words from a batch entry's, a group's, to the next one's */
    int32_t groups;                       /* of a batch entry */
    int32_t group;                        /* queries of a group */
    int32_t keys, bits, slots, slots_row; /* words from a group's first */
    int32_t shift;                        /* log2 of the rows that a query has in a tile of 64 */
    int32_t reserved;
};
KP_SIZE(struct kp_mla_joined, 3 * 8 + 8 * 4);

/* Attention distribution of groups from .. until - 1: values of entries, then of slots (kernels/smxx/dist_slots.cu). */
struct kp_dist_joined {
    struct kp_mla in;
    struct kp_view lse, dist; /* [B,SQ,HQ], [B,SQ,TOPK] f32 */
    struct kp_mla_joined joined;
    uint64_t values; /* f32 [groups from `from` on][group][row]: by entry */
    int64_t from, until;
    float factor; /* as in struct kp_dist */
    int32_t row;  /* entries of a group, at most */
};
KP_SIZE(struct kp_dist_joined, 272 + 2 * 48 + 56 + 4 * 8);
#endif
