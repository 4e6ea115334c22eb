/* SPDX-License-Identifier: MIT
 * Parameters and shared-memory plans of the sparse MLA kernels on Hopper, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_SM90_H
#define ATTN_KPARAMS_MLA_SM90_H
#include "kernels/params/mla.h"
#include "kernels/params/mla_joined.h"

/* Work tiles are (query, 64 heads). CTA c takes numbers from + c, from + c + grid, ... below `until`; of those left
 * over after `whole` rounds each is cut into `parts` of `length` tiles (parts = 1: none is), which write sums for
 * kernels/smxx/mla_combine.cu. mla_fwd_joined_sm90.def: groups of queries, none of them cut. */
struct kp_mla_fwd_sm90 {
    struct kp_mla in;
    struct kp_view out, lse, max_logits;              /* [B,SQ,HQ,512], [B,SQ,HQ] twice; the last two may be absent */
    uint64_t part_o, part_m, part_l, part_max_logits; /* f32 [parts][rows][512], [parts][rows] each */
    int64_t whole, first_row, rows;                   /* of all B * SQ * HQ rows, the first that is cut; rows cut */
    int64_t from, until;
    int32_t parts, length;
    /* mla_fwd_joined_sm90.def */
    struct kp_mla_joined joined;
    uint64_t marks; /* bytes [groups from `from` on][8]: nonzero where a warp found a row that is not finite */
};
KP_SIZE(struct kp_mla_fwd_sm90, 272 + 3 * 48 + 11 * 8 + 56);

/* A line of mla_fwd_sm90.def. */
struct kp_mla_fwd_sm90_config {
    const char *symbol;
    int32_t dtype, dim, ordered;
};

/* A line of mla_fwd_joined_sm90.def. */
struct kp_mla_fwd_joined_sm90_config {
    const char *symbol;
    int32_t dtype, dim, joined;
};

/* A line of dist_sm90.def. */
struct kp_dist_sm90_config {
    const char *symbol;
    int32_t dtype, dim, head_blocks;
};

/* A line of dist_joined_sm90.def. */
struct kp_dist_joined_sm90_config {
    const char *symbol;
    int32_t dtype, dim, joined;
};

/* A line of mla_bwd_sm90.def. */
struct kp_mla_bwd_sm90_config {
    const char *symbol;
    int32_t dtype, dim, deterministic, ctas, even, near;
};

#define KP_SM90_SLICE 8192 /* 64 rows of 64 elements */
/* Q, two tiles of 9 slices, the rest */
#define KP_MLA_FWD_SM90_SHARED(dim) (((dim) / 64 + 18) * KP_SM90_SLICE + 4096)
/* dist: slices of a ring; Q of the heads, two rings, the rest */
#define KP_DIST_SM90_RING(dim, head_blocks) ((head_blocks) == 2 ? 14 - (dim) / 64 : (dim) / 64)
#define KP_DIST_SM90_SHARED(dim, head_blocks)                                                                          \
    (((head_blocks) * ((dim) / 64) + 2 * KP_DIST_SM90_RING(dim, head_blocks)) * KP_SM90_SLICE + 3072)
#define KP_MLA_FWD_SM90_THREADS 384
/* Q, K, dO, P, dS, the rest */
#define KP_MLA_BWD_SM90_SHARED(dim)  ((2 * ((dim) / 64) + 10) * KP_SM90_SLICE + 3072)
#define KP_MLA_BWD_SM90_THREADS      512
#define KP_MLA_BWD_SM90_EVEN_THREADS 384
/* Of a CTA's next work tile: heads whose states producers form in a tile; none in a work tile's first. */
#define KP_MLA_BWD_SM90_AHEAD 4
#endif
