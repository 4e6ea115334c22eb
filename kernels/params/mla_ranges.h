/* SPDX-License-Identifier: MIT
 * Sparse MLA backward whose sums of dkv are larger than the second-level cache: each query's slots ordered by ranges of
 * kv rows. Shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_RANGES_H
#define ATTN_KPARAMS_MLA_RANGES_H
#include "kernels/params/mla.h"

#define KP_MLA_RANGES_MOST 256

/* bwd.in holds the caller's lists, bwd.first and bwd.n the queries whose lists are ordered. The main kernel reads
 * `list` and `lengths` in place of indices and topk_length; finish finds a slot's part of dist by `positions`. */
struct kp_mla_bwd_ranges {
    struct kp_mla_bwd bwd;
    uint64_t list;         /* int32 [n][TOPK]: rows that valid slots name, range after range, as in the caller's list
                            * within a range; the rest is not written */
    uint64_t lengths;      /* int32 [n]: valid slots */
    uint64_t positions;    /* int32 [B*SQ][TOPK]: where in `list` a valid slot stands; 0: not wanted, dist as listed */
    int64_t wave;          /* of every 2 * wave queries, the second half has the ranges in descending order */
    int64_t n_checkpoints; /* counters at bwd.checkpoints, which become 0 */
    int32_t shift, ranges; /* row j is of range j >> shift; ranges: their number, at most KP_MLA_RANGES_MOST */
};
KP_SIZE(struct kp_mla_bwd_ranges, 784 + 5 * 8 + 2 * 4);

/* A forward whose keys are larger than the cache, kernels/smxx/mla_order.cu: the same lists, of at most
 * KP_MLA_ORDER_SLOTS slots a query and KP_MLA_ORDER_RANGES ranges, in no particular order within a range. */
#define KP_MLA_ORDER_SLOTS  2048
#define KP_MLA_ORDER_RANGES 16
struct kp_mla_order {
    struct kp_mla in;
    uint64_t list, lengths;          /* int32 [n][TOPK], [n] */
    int32_t first, n, wave;          /* queries first .. first + n - 1 of B * SQ < 2^31 */
    int32_t shift, ranges, reserved; /* row j is of range j >> shift */
};
KP_SIZE(struct kp_mla_order, 272 + 2 * 8 + 6 * 4);
#endif
