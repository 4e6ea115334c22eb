/* SPDX-License-Identifier: MIT
 * Deterministic sparse MLA backward with rows of 16 bits a number: its sums over the slots of kv rows. Shared by device
 * code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_ROWS_H
#define ATTN_KPARAMS_MLA_ROWS_H
#include "kernels/params/mla.h"

/* kernels/variants/mla_bwd_rows_sm90.def: .step */
#define KP_MLA_ROWS_COUNT   0
#define KP_MLA_ROWS_SCAN    1
#define KP_MLA_ROWS_SCATTER 2
#define KP_MLA_ROWS_SUM     3
#define KP_MLA_ROWS_FIXUP   4

/* kernels/variants/mla_bwd_slots_sm90.def: .step */
#define KP_MLA_SLOTS_ORDER 0
#define KP_MLA_SLOTS_MERGE 1

#define KP_MLA_SLOTS_ROWS               32768 /* B * SK, at most */
#define KP_MLA_SLOTS_BLOCK              16384 /* slots of a block, at most: below 2^16 */
#define KP_MLA_SLOTS_REGION             18432 /* slots of a CTA that are put in order in shared memory */
#define KP_MLA_SLOTS_PIECES             9216  /* a CTA's rows times blocks, at most */
#define KP_MLA_SLOTS_COUNTERS(rows)     (((rows) + 8) / 8 * 8) /* one more, in whole vectors of 16 bits each */
#define KP_MLA_SLOTS_ORDER_SHARED(rows) (4 * KP_MLA_SLOTS_COUNTERS(rows) + 4 * KP_MLA_SLOTS_BLOCK)
#define KP_MLA_SLOTS_MERGE_SHARED(share, blocks)                                                                       \
    (4 * (((share) + 7) / 4 * 4 + ((share) * ((blocks) | 1) + 3) / 4 * 4 + KP_MLA_SLOTS_REGION))

#define KP_MLA_ROWS_SEGMENT          256 /* slots of the sorted list that one team adds up */
#define KP_MLA_ROWS_THREADS          288
#define KP_MLA_ROWS_OVERLAPPED_WARPS 12 /* of a CTA that sums rows while others compute work tiles; a segment each */
/* A thread for each 8 columns; teams of a CTA. */
#define KP_MLA_ROWS_TEAM(dim)  ((dim) / 8)
#define KP_MLA_ROWS_TEAMS(dim) (KP_MLA_ROWS_THREADS / KP_MLA_ROWS_TEAM(dim))

/* bwd.stored_rows: rows of kernels/device/row16.h [n][head_blocks][TOPK][D], which mla_bwd/stored_rows.h fills, and
 * after them the rows' units, bytes [n][head_blocks][TOPK], which the second-level cache keeps while rows pass through
 * it: those of the slots of a kv row are all over them. */
#define KP_MLA_ROWS_BYTES(dim) (2 * (dim) + 1)
struct kp_mla_bwd_rows {
    struct kp_mla_bwd bwd;
    uint64_t scanned;     /* uint32 [chunks][256][sort_blocks]: of a digit's bwd.counts, the sums of those before */
    uint64_t totals;      /* uint32 [chunks][256]: the sums of all of a digit's */
    uint64_t keys, slots; /* sum, fixup: sorted, uint32 [n]; slots: to where, as bwd.keys */
    uint64_t rows;  /* overlapped: bwd.stored_rows of the chunk before, whose list this is; bwd is the work tiles' */
    uint64_t parts; /* f32 [segments][2][D / 8][8]: of one that begins or ends within a kv row's slots, the sum of
                          * its first slots, if they began before, and of its last */
    int64_t n;      /* sum, fixup: slots */
    int64_t chunk, list;       /* sort: queries of a chunk, of bwd.n; a chunk's bwd.keys and slots begin `list` apart */
    uint64_t runs;             /* slots: uint32 [chunks][list], a block's sorted: row << 16 | slot of the block */
    int32_t block, merge_rows; /* slots: queries of a block, of bwd.sort_blocks in a chunk, whose bwd.counts are uint16
                           * [chunks][sort_blocks][COUNTERS]; rows of a CTA of MERGE */
    int64_t segment;           /* fixup: slots of a segment, those of a CTA of SUM, or of a warp of an overlapped sum */
};
KP_SIZE(struct kp_mla_bwd_rows, 784 + 12 * 8);
#endif
