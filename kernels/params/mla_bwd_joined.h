/* SPDX-License-Identifier: MIT
 * Sparse MLA backward over joined lists. Shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_BWD_JOINED_H
#define ATTN_KPARAMS_MLA_BWD_JOINED_H
#include "kernels/params/mla.h"
#include "kernels/params/mla_joined.h"

/* Main takes groups bwd.first .. bwd.first + bwd.n - 1 (b * groups + g), a work tile being a group and bwd.head_block
 * of its heads. It leaves bwd.part_dist, f32 [dist_blocks][n][group][ENTRIES], by entry, or by slot where the group is
 * left apart; ENTRIES = joined.bits - joined.keys. Finish adds these up to dist. Deterministic: bwd.group_rows. */
struct kp_mla_bwd_joined {
    struct kp_mla_bwd bwd;
    struct kp_mla_joined joined;
};
KP_SIZE(struct kp_mla_bwd_joined, 784 + 4 * 8 + 6 * 4);

/* What the rows that the main kernel of a deterministic row stores name, kernels/smxx/mla_bwd_joined_list.cu: of groups
 * first .. first + n - 1, int32 [n][rows], of which lengths, int32 [n], are written. */
struct kp_mla_bwd_joined_list {
    struct kp_mla in;
    struct kp_mla_joined joined;
    int64_t first, n, rows;
    uint64_t list, lengths;
};
KP_SIZE(struct kp_mla_bwd_joined_list, 272 + 3 * 8 + 8 * 4 + 5 * 8);

/* kernels/variants/mla_bwd_finish_smxx.def: .task, more than those of mla.h */
#define KP_MLA_BWD_JOINED_DIST 4
#define KP_MLA_BWD_JOINED_DQ   5

/* A line of mla_bwd_joined_sm90.def; all but symbol as in mla_bwd_sm90.def. */
struct kp_mla_bwd_joined_sm90_config {
    const char *symbol;
    int32_t dtype, dim, deterministic, ctas, even, joined;
};
#endif
