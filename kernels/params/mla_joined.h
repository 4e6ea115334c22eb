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
#endif
