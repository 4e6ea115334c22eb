/* SPDX-License-Identifier: MIT
 * Joined lists (docs/joined_lists.md) for the operators that read them: the tensor JOINED of a problem with a group;
 * else made in the operator's workspace by the kernels of mla_join, some groups at a time, before the kernel that reads
 * them. */
#ifndef ATTN_CUDA_MLA_JOINED_H
#define ATTN_CUDA_MLA_JOINED_H
#include "cuda/sparse/mla.h"
#include "kernels/params/mla_joined.h"

/* Neighbouring queries whose heads, 4 rows at least for each, fill a tile of `rows` rows: 2, 4, 8 or 16; 0: none. The
 * problem's own group if it has one that fits. */
int64_t attn_cuda_mla_joined_group(const attn_problem *p, int64_t rows);
/* Entries of a union above which the operator leaves a group apart; 0: no limit. */
int64_t attn_cuda_mla_joined_limit(const attn_problem *p, int64_t group);
/* Groups of the problem. */
int64_t attn_cuda_mla_joined_groups(const attn_problem *p, int64_t group);
/* Entries of a group's list, for estimates: lists of neighbours that share four fifths of their keys. */
double attn_cuda_mla_joined_entries(const attn_problem *p, int64_t group);

/* The same of pairs whose queries fill tiles without neighbours, so that joining pays only if their lists share much,
 * which no plan knows: as if they shared nothing. Who hands over lists joined in pairs says that they do: J = 0.9. */
double attn_cuda_mla_joined_entries_of_pair(const attn_problem *p);

/* 1 and the reason if the lists of this problem can't be joined for tiles of `rows` rows. */
int attn_cuda_mla_joined_refuse(const struct attn_core_device *dev, const attn_problem *p, int64_t rows,
                                struct attn_text *why);
attn_status attn_cuda_mla_joined_prepare(struct attn_core_device *dev, const attn_problem *p, int64_t rows);
/* Seconds that joining takes; 0 if the problem hands over the lists, as are the bytes below. */
double attn_cuda_mla_joined_time(const struct attn_core_device *dev, const attn_problem *p, int64_t rows);

/* Groups that are joined at a time: a multiple of `wave`, those that the device works on at once, or all of them. */
int64_t attn_cuda_mla_joined_listed(const attn_problem *p, int64_t rows, int64_t wave);
/* Bytes of the workspace that joining `listed` groups takes, a multiple of 256. */
uint64_t attn_cuda_mla_joined_bytes(const struct attn_core_device *dev, const attn_problem *p, int64_t rows,
                                    int64_t listed);
/* Queues the join of groups from .. until - 1 into the memory at `workspace`, unless they are handed over; *joined says
 * where a kernel queued next finds them. */
attn_status attn_cuda_mla_joined_queue(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                                       int64_t rows, uint64_t workspace, int64_t from, int64_t until,
                                       struct kp_mla_joined *joined);

/* Whether some of the groups may be left apart: the problem hands over lists, which say so, or the operator has a limit
 * of its own for those that it makes. */
int attn_cuda_mla_joined_any_apart(const attn_problem *p, int64_t rows);
/* Bytes of what the next queues for `listed` groups. */
uint64_t attn_cuda_mla_joined_work_bytes(const attn_problem *p, int64_t rows, int64_t listed, int64_t ctas);
/* Queues the lists of groups that are joined and of queries that are not, and how `ctas` CTAs share the former's tiles
 * (struct kp_joined_work), into the memory at `work`. */
attn_status attn_cuda_mla_joined_work(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                                      const struct kp_mla_joined *joined, int64_t from, int64_t until, int64_t ctas,
                                      uint64_t work);
extern const char attn_cuda_mla_joined_work_symbol[];

/* What the rows of a forward or dist over joined lists have alike; the file's functions by these names. */
#define ATTN_CUDA_MLA_JOINED_ROW                                                                                       \
    ATTN_CUDA_ROW(ATTN_F32), .deterministic = 1, .bit_stable = 1, .joins = 1, .group = group_of,                       \
                             .union_limit = union_limit_of, .alignment_bytes = 16, .workspace = workspace

/* ---- mla_join.c ---- */

/* The row that joins groups of this size on the device; NULL: none. */
const struct attn_kernel *attn_cuda_mla_join_row(const struct attn_core_device *dev, int64_t group);
struct attn_cuda_mla_join_part {
    const struct kp_mla *in;
    struct kp_view joined; /* row: from a group to the next one */
    uint64_t uses;         /* the row's workspace */
    int64_t from, until;   /* groups */
    int no_slots;          /* 1: nobody reads the map from slots to entries */
};
/* p: of mla_join. */
attn_status attn_cuda_mla_join_queue(const struct attn_kernel *k, const struct attn_core_device *dev,
                                     const attn_problem *p, const struct attn_cuda_mla_join_part *part, void *stream);
#endif
