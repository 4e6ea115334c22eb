/* SPDX-License-Identifier: MIT
 * Sparse MLA backward over joined lists: what the rows on Hopper (mla_bwd_joined_sm90.c) and on Blackwell
 * (mla_bwd_joined_sm100.c) share: steps before and after the main kernels, their order, and the fields of the rows. */
#ifndef ATTN_CUDA_CUDA_MLA_BWD_JOINED_H
#define ATTN_CUDA_CUDA_MLA_BWD_JOINED_H
#include "cuda/sparse/mla_bwd.h"
#include "cuda/sparse/mla_joined.h"
#include "kernels/params/mla_bwd_joined.h"

/* Warps of a step's CTA. */
enum { ATTN_CUDA_MLA_BWD_JOINED_WARPS = 8 };
/* Kernels of the steps that both have: states of rows, and zeroes; dkv from its sums, dist from its parts, dsink. */
enum {
    ATTN_CUDA_MLA_BWD_JOINED_PREPARE,
    ATTN_CUDA_MLA_BWD_JOINED_DKV,
    ATTN_CUDA_MLA_BWD_JOINED_DIST,
    ATTN_CUDA_MLA_BWD_JOINED_DSINK,
    ATTN_CUDA_MLA_BWD_JOINED_STEPS
};
extern const char *const attn_cuda_mla_bwd_joined_symbols[ATTN_CUDA_MLA_BWD_JOINED_STEPS];

/* Queues the kernel of a step; nothing for no CTAs. */
attn_status attn_cuda_mla_bwd_joined_step(const struct attn_core_device *dev, const attn_args *args, const char *symbol,
                                          int64_t ctas, const void *params, size_t bytes);
/* Queues a whole execution: states of rows, groups (`listed` of them at a time by queue_groups(run, first, n)), dkv and
 * dsink. kp: parameters of all steps, which queue_groups may change. */
attn_status attn_cuda_mla_bwd_joined_queue(const struct attn_core_device *dev, const attn_problem *p,
                                           const attn_args *args, const struct kp_mla_bwd_joined *kp, int64_t groups,
                                           int64_t listed,
                                           attn_status (*queue_groups)(void *run, int64_t first, int64_t n), void *run);

/* ---- deterministic: dKV of entries, stored by the main kernel and added up afterwards, mla_bwd_joined_rows.c ---- */

/* Offsets in bytes. */
struct attn_cuda_mla_bwd_joined_rows {
    int64_t rows, chunk; /* stored rows of a group, at most; groups of a launch of the main kernel */
    uint64_t stored_rows, list, lengths, keys[2], slots[2], counts, scanned, totals, parts, bytes;
};
/* listed: groups that are joined at a time; round: those that the device works on at once. */
struct attn_cuda_mla_bwd_joined_rows attn_cuda_mla_bwd_joined_rows_of(const struct attn_core_device *dev,
                                                                      const attn_problem *p, int64_t group,
                                                                      int64_t listed, int64_t round);
int attn_cuda_mla_bwd_joined_rows_refuse(const struct attn_core_device *dev, const attn_problem *p,
                                         struct attn_text *why);
attn_status attn_cuda_mla_bwd_joined_rows_prepare(struct attn_core_device *dev);
/* Queues the sums of the rows that groups kp->bwd.first .. + n - 1 have stored, in the memory at `memory`. */
attn_status attn_cuda_mla_bwd_joined_rows_sum(const struct attn_core_device *dev, const attn_problem *p,
                                              const attn_args *args, const struct attn_cuda_mla_bwd_joined_rows *g,
                                              const struct kp_mla_bwd_joined *kp, uint64_t memory);

/* Of a row whose file has group_of() and workspace(). */
#define ATTN_CUDA_MLA_BWD_JOINED_ROW                                                                                   \
    .op = ATTN_OP_MLA_BWD, ATTN_CUDA_ROW(ATTN_F32), .joins = 1, .group = group_of, .alignment_bytes = 16,              \
    .workspace = workspace
#endif
