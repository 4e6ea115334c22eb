/* SPDX-License-Identifier: MIT
 * Launches that have work only where most groups of joined lists are left apart (docs/joined_lists.md), as the word at
 * `gate` says: KP_JOINED_WORK_MOST. Shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_APART_H
#define ATTN_KPARAMS_MLA_APART_H
#include "kernels/params/mla.h"
#include "kernels/params/mla_ranges.h"

struct kp_mla_order_apart {
    struct kp_mla_order order;
    uint64_t gate;
};
KP_SIZE(struct kp_mla_order_apart, 312 + 8);

struct kp_mla_combine_apart {
    struct kp_mla_fwd fwd;
    uint64_t gate;
};
KP_SIZE(struct kp_mla_combine_apart, 464 + 8);
#endif
