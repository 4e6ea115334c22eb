/* SPDX-License-Identifier: MIT
 * Attention distribution over joined lists (docs/joined_lists.md), and which launch takes which queries where groups
 * may be left apart. Shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_DIST_JOINED_H
#define ATTN_KPARAMS_DIST_JOINED_H
#include "kernels/params/mla_joined.h"

/* Of groups from .. until - 1 (b * groups + g), int32: how many are joined, how many queries the others have, 1 if
 * these are at least three of four groups, and how many tiles of 64 entries the joined groups have that `ctas` CTAs,
 * which take one a round, leave over. Then lists, from word KP_JOINED_WORK_LISTS on: [groups] the numbers of the joined
 * groups, ascending; [group groups] the queries (b * SQ + i) of those left apart, ascending; [groups] tiles of the
 * joined groups; [ctas][2] of tile floor(tiles c / ctas) of those left over the place of its group in the first list,
 * and which tile of the group it is. `groups` is until - from. Groups without an entry count as left apart. At most
 * 2048 CTAs, so that tiles left over (512 a group) times CTAs are below 2^32. kernels/smxx/joined_work.cu writes it. */
#define KP_JOINED_WORK_GROUPS                     0
#define KP_JOINED_WORK_QUERIES                    1
#define KP_JOINED_WORK_MOST                       2
#define KP_JOINED_WORK_TILES                      3
#define KP_JOINED_WORK_LISTS                      4
#define KP_JOINED_WORK_WORDS(groups, group, ctas) (KP_JOINED_WORK_LISTS + (groups) * (2 + (group)) + 2 * (ctas))
struct kp_joined_work {
    struct kp_mla_joined joined;
    int64_t seq_q, from, until, ctas;
    uint64_t work;
};
KP_SIZE(struct kp_joined_work, 56 + 5 * 8);

#define KP_DIST_JOINED_SM90_THREADS 512
/* dist_joined_sm90.def: groups from .. until - 1. */
struct kp_dist_joined_sm90 {
    struct kp_mla in;
    struct kp_view lse, dist; /* [B,SQ,HQ], [B,SQ,TOPK] f32 */
    struct kp_mla_joined joined;
    uint64_t values; /* f32 [CTAs][2][group][row]: of a CTA's two latest pieces of groups, by entry */
    uint64_t work;   /* what joined_work.cu wrote of these groups for as many CTAs */
    int64_t from, until;
    float factor; /* as in struct kp_dist */
    int32_t row;  /* entries of a group, at most */
};
KP_SIZE(struct kp_dist_joined_sm90, 272 + 2 * 48 + 56 + 5 * 8);

/* dist_apart_sm90.def: the queries that `work` lists. */
struct kp_dist_apart {
    struct kp_dist dist;
    uint64_t work;
    int64_t groups; /* until - from */
};
KP_SIZE(struct kp_dist_apart, 392 + 2 * 8);
#endif
