/* SPDX-License-Identifier: MIT
 * Parameters and shared-memory plans of the sparse MLA kernels on Blackwell, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_SM100_H
#define ATTN_KPARAMS_MLA_SM100_H
#include "kernels/params/mla.h"
#include "kernels/params/mla_joined.h"
#include "kernels/params/tensor_map.h"

/* A line of mla_bwd_sm100.def. */
struct kp_mla_bwd_sm100_config {
    const char *symbol;
    int32_t dtype, dim, deterministic, heads;
};

/* A line of mla_bwd_joined_sm100.def. */
struct kp_mla_bwd_joined_sm100_config {
    const char *symbol;
    int32_t dtype, dim, deterministic, joined;
};
/* Queries of a group, at most: 16 rows of heads each */
#define KP_MLA_BWD_JOINED_SM100_GROUP 8

#define KP_SM100_HEADS   128 /* of a pair of CTAs; of joined lists: rows */
#define KP_SM100_KEYS    64  /* slots of a tile */
#define KP_SM100_THREADS 384
/* The backward, by its work tile's 128 or 64 heads: Q and dO of half of them; tiles of K, of 64 heads also one for dQ;
 * P and dS of 32 keys and all heads, of 64 heads also dS of half of the heads and 64 keys; the rest */
#define KP_SM100_STAGE(dim)     (64 * (dim))
#define KP_SM100_BUFFERS(heads) ((heads) == 64 ? 3 : 2)
#define KP_SM100_DS(heads)      (64 * (heads))
/* The same in the workspace: 64 heads take no second pass. */
#define KP_SM100_STORED_DS(heads) ((heads) == 64 ? 0 : KP_SM100_DS(heads))
#define KP_MLA_BWD_SM100_SHARED(dim, heads)                                                                            \
    (128 * (dim) + ((heads) == 64 ? 0 : 128 * KP_MLA_DIM_V) +                                                          \
     KP_SM100_BUFFERS(heads) * (KP_SM100_STAGE(dim) + KP_SM100_DS(heads)) + 3072)

struct kp_mla_bwd_sm100 {
    struct kp_mla_bwd bwd;
    int64_t kv_rows;         /* rows of the map of kv from a batch entry's first to the next's */
    int64_t tiles, reserved; /* of `ds`, that a CTA has */
    struct kp_tensor_map q;  /* [B,SQ,HQ,D]; boxes of 64 heads (work tiles of 64: 16) x 64 columns, 128 bytes swizzled;
                                  of joined lists: of 64, 32, 16 heads of 1, 2, 4 queries */
    struct kp_tensor_map dout; /* [B,SQ,HQ,DV]; the same */
    struct kp_tensor_map kv;   /* [rows, D]; boxes of 64 columns of a row, 128 bytes swizzled, four at a time */
    struct kp_tensor_map rope; /* the same; 32 columns, 64 bytes swizzled */
    struct kp_tensor_map
        ds;           /* bf16 [CTAs][tiles][64 heads][64 keys], workspace; boxes of 64 x 64, 128 bytes swizzled; not of
                       * work tiles of 64 heads */
    uint64_t ds_data; /* its address */
    struct kp_mla_joined joined; /* joined lists: of groups bwd.first .. bwd.first + bwd.n - 1, the work tiles; then
                                  * bwd.part_dist is as in struct kp_mla_bwd_joined, and one for each 32 of 64 heads */
    /* deterministic joined lists, bwd.stored_rows being f32 [n][64 tiles][D]: int32 [n][64 tiles], the kv row of each
     * entry or -1; [n], how many of a group's are written */
    uint64_t lists, lengths;
    uint64_t padding[6];
};
KP_SIZE(struct kp_mla_bwd_sm100, 896 + 5 * 128 + 128);

/* ---- forward ---- */

/* A line of mla_fwd_sm100.def. */
struct kp_mla_fwd_sm100_config {
    const char *symbol;
    int32_t dtype, dim, heads;
};

/* A line of mla_fwd_joined_sm100.def. */
struct kp_mla_fwd_joined_sm100_config {
    const char *symbol;
    int32_t dtype, dim, joined;
};

#define KP_MLA_FWD_SM100_THREADS 320
/* Tiles of K of a CTA's half of the columns, in which Q arrives, too */
#define KP_MLA_FWD_SM100_RING(dim) ((dim) == 576 ? 4 : 5)
/* The ring; rope of Q; scores and P from the other CTA, two stages each; the rest */
#define KP_MLA_FWD_SM100_SHARED(dim)                                                                                   \
    (KP_MLA_FWD_SM100_RING(dim) * KP_SM100_STAGE(dim) + ((dim)-KP_MLA_DIM_V) * 128 + 2 * 16384 + 2 * 8192 + 11008)

/* Work tiles of 64 heads (mla_fwd_h64.cu): half tiles of K, 256 columns of 64 rows; rope of K, tiles; P, two tiles; the
 * rest */
#define KP_MLA_FWD_H64_SM100_THREADS 352
#define KP_MLA_FWD_H64_SM100_RING    6
#define KP_MLA_FWD_H64_SM100_SHARED(dim)                                                                               \
    (KP_MLA_FWD_H64_SM100_RING * 32768 + ((dim)-KP_MLA_DIM_V) * 256 + 2 * 8192 + 3072)

struct kp_mla_fwd_sm100 {
    struct kp_mla in;
    struct kp_view out, lse, max_logits;           /* [B,SQ,HQ,512], [B,SQ,HQ] twice; the last two may be absent */
    uint64_t part_o, part_m, part_l, part_largest; /* splits > 1: as in struct kp_mla_fwd */
    int64_t works;                                 /* work tiles: queries times blocks of heads times splits */
    int64_t blocks, splits, share;                 /* of heads; of a query's slots, parts of `share` tiles */
    int64_t kv_rows;                               /* as in struct kp_mla_bwd_sm100 */
    uint64_t padding[3];
    struct kp_tensor_map q;      /* [B,SQ,HQ,D]; boxes of 128 or 64 heads x 64 columns, 128 bytes swizzled */
    struct kp_tensor_map q_rope; /* of 128 heads: the same; 32 columns, 64 bytes swizzled */
    struct kp_tensor_map kv;     /* [rows, D]; boxes of 64 columns of a row, 128 bytes swizzled, four at a time */
    struct kp_tensor_map rope;   /* of 128 heads: the same; 32 columns, 64 bytes swizzled */
};
KP_SIZE(struct kp_mla_fwd_sm100, 512 + 4 * 128);

/* Joined lists: fwd.works groups from `from` on, none of them in parts; boxes of fwd.q and fwd.q_rope: 64, 32, 16 or 8
 * heads of 2, 4, 8, 16 queries. marks: 8 bytes for each of these groups, workspace: nonzero if it comes again, query by
 * query (kernels/sm100/mla_fwd/group.h). */
struct kp_mla_fwd_joined_sm100 {
    struct kp_mla_fwd_sm100 fwd;
    struct kp_mla_joined joined;
    int64_t from;
    uint64_t marks;
    uint64_t padding[7];
};
KP_SIZE(struct kp_mla_fwd_joined_sm100, 512 + 4 * 128 + 128);

/* ---- attention distribution ---- */

/* A line of dist_sm100.def. */
struct kp_dist_sm100_config {
    const char *symbol;
    int32_t dtype, dim, heads;
};

/* A line of dist_joined_sm100.def. */
struct kp_dist_joined_sm100_config {
    const char *symbol;
    int32_t dtype, dim, heads, joined;
};

#define KP_DIST_SM100_THREADS 192
#define KP_DIST_SM100_KEYS    256 /* slots of a tile, of a pair of CTAs */
#define KP_DIST_SM100_SLICE   16384
#define KP_DIST_SM100_RING    9
/* Q of a CTA's half of the heads, once or (64 heads) for two work tiles; slices of K: 128 keys x 64 columns; the rest
 * */
#define KP_DIST_SM100_SHARED(dim) (128 * (dim) + KP_DIST_SM100_RING * KP_DIST_SM100_SLICE + 2048)

struct kp_dist_sm100 {
    struct kp_dist dist; /* work tiles: queries times splits, parts of `share` tiles */
    int64_t kv_rows;     /* as in struct kp_mla_bwd_sm100 */
    int64_t share;
    /* Joined lists: dist.work_tiles groups from `from` on; f32 [groups][group][joined.bits - joined.keys], sums by
     * entry, or by slot of a group left apart */
    struct kp_mla_joined joined;
    int64_t from;
    uint64_t values;
    uint64_t padding[4];
    struct kp_tensor_map q;  /* [B,SQ,HQ,D]; boxes of half the heads x 64 columns, 128 bytes swizzled; of joined lists:
                              * of 64, 32, 16, 8 heads of 1, 2, 4, 8 queries */
    struct kp_tensor_map kv; /* [rows, D]; boxes of 64 columns of a row, 128 bytes swizzled, four at a time */
};
KP_SIZE(struct kp_dist_sm100, 512 + 2 * 128);
#endif
