/* SPDX-License-Identifier: MIT
 * The launches of mla_fwd_sm90.c under the condition of a word in the device's memory: they have work only where most
 * groups of joined lists are left apart (docs/joined_lists.md). */
#ifndef ATTN_CUDA_MLA_FWD_APART_H
#define ATTN_CUDA_MLA_FWD_APART_H
#include "cuda/sparse/mla.h"

/* 1 and the reason if this device can't run them for the problem, which mla_fwd_sm90.c accepts. */
int attn_cuda_mla_fwd_apart_refuse(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why);
/* Of the workspace. */
uint64_t attn_cuda_mla_fwd_apart_bytes(const struct attn_core_device *dev, const attn_problem *p);
attn_status attn_cuda_mla_fwd_apart_prepare(struct attn_core_device *dev, const attn_problem *p);
/* All queries of the problem, if the word at `gate` is not 0 by then. */
attn_status attn_cuda_mla_fwd_apart_queue(const struct attn_core_device *dev, const attn_problem *p,
                                          const attn_args *args, uint64_t workspace, uint64_t gate);
#endif
