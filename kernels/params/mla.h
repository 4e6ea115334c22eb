/* SPDX-License-Identifier: MIT
 * Parameter structs and variant tables of the sparse MLA operators (forward, backward, attention distribution), shared
 * by device code and src/cuda. */
#ifndef ATTN_KPARAMS_MLA_H
#define ATTN_KPARAMS_MLA_H
#include "kernels/params/params.h"

/* struct kp_mla.flags, together with KP_LSE_* */
#define KP_MLA_CAUSAL 16

/* Values of dist_norm: equal to ATTN_DIST_*, src/cuda asserts it. */
#define KP_DIST_SUM  0
#define KP_DIST_MEAN 1
#define KP_DIST_L1   2

/* What the three operators have in common. Query i of batch entry b has slots t < topk_length (clamped to 0..topk);
 * slot t is valid iff 0 <= idx < n_keys(i): kernels/device/slots.h holds this one predicate. */
struct kp_mla {
    struct kp_view q, kv, indices, topk_length; /* [B,SQ,HQ,D], [B,SK,1,D], int32 [B,SQ,1,TOPK], int32 [B,SQ] or 0 */
    uint64_t sink;                              /* float [HQ] or 0 */
    int64_t sink_head;                          /* stride in elements */
    int64_t batch, seq_q, seq_k;                /* seq_k <= 2^31: an index reaches no further */
    int64_t q_start, k_stride;
    int32_t heads_q, dim_qk, topk;
    uint32_t flags;          /* KP_MLA_*, KP_LSE_* */
    float scale, scale_log2; /* natural units; scale * log2(e), with its sign */
};
KP_SIZE(struct kp_mla, 4 * 48 + 7 * 8 + 6 * 4);

/* ---- backward ---- */

/* struct kp_mla_bwd.steps */
#define KP_MLA_BWD_ZERO         1 /* prepare: fill `sum` with zeroes */
#define KP_MLA_BWD_ACCUMULATE   2 /* finish: dkv += sum, else dkv = sum */
#define KP_MLA_BWD_PERMUTED     4 /* of every 16 columns of `sum`, 8 y + 2 t + e (t < 4) stands at 4 t + 2 y + e */
#define KP_MLA_BWD_NO_GRID_WAIT 8 /* main: the previous launch has waited for all that this one needs */

/* What a row (one query of one head) needs in the backward, with P' = exp(s - lse) and D = out . dout:
 *   P = g P'      dS = P' (g dP - shift)      shift = g D - dlse      dsink: the row's share of dsink
 * A row whose lse is +-inf is empty: lse2 = +inf, the rest 0, and nothing of its q and dout is used. */
struct kp_mla_row {
    float lse2, g, shift, dsink; /* lse2: base 2 */
};

/* Rows whose states prepare forms, `rows` in all, in this order: of each `cycle` rows the first `taken`, `cycled` of
 * them; of the rows between those the heads from `heads` on of each 64, the main kernel having the first ones (struct
 * kp_mla_bwd.ahead), up to `until`; all from row `after` on. What is counted in 32 bits is 0 without such a kernel. */
struct kp_mla_cycles {
    int64_t rows;
    uint32_t cycle, taken, cycled, until, after, heads;
};
KP_SIZE(struct kp_mla_cycles, 8 + 6 * 4);
#define KP_MLA_BWD_PREPARED 4 /* rows that a warp of the first step takes at once, overlapped with a sort */

/* Backward: read by kernels/smxx/mla_bwd_*.cu and by the main kernel of each architecture.
 *   prepare   out, dout, lse, dlse, sink -> row_stats; zeroes `sum`
 *   main      flat queries first .. first + n - 1 (b * SQ + i), all blocks of `head_block` heads: dq; part_dist; dkv
 *             added to `sum` or, if `stored_rows` is set, one row per valid slot stored there
 *   sort      only with stored_rows: stable radix sort of the slots of these queries by the row of `sum` they name
 *   sum       only with stored_rows: adds them to `sum`, in the order of the slots
 *   finish    sum -> dkv if they differ; part_dist -> dist; row_stats -> dsink */
struct kp_mla_bwd {
    struct kp_mla in;
    struct kp_view out, dout, lse, dlse; /* [B,SQ,HQ,DV], [B,SQ,HQ]; dlse may be absent */
    struct kp_view dq, dkv, dist;        /* outputs; dist: [B,SQ,TOPK] */
    struct kp_view sum;                  /* f32 [B,SK,1,D] in which dkv is summed: workspace, or dkv itself */
    uint64_t dsink;                      /* float [HQ] */
    int64_t dsink_head;                  /* stride in elements */
    uint64_t row_stats;                  /* struct kp_mla_row [B*SQ][HQ] */
    uint64_t part_dist;                  /* f32 [dist_blocks][B*SQ][TOPK]: sum of P' over the heads of a block */
    uint64_t stored_rows;                /* f32 [n][head_blocks][TOPK][D]; invalid slots are not written */
    union {
        struct {
            union {
                uint64_t keys[2]; /* sort: uint32 [n * TOPK]; key = b * SK + idx, B * SK for an invalid slot */
                struct { /* main, slots ordered by rows: counts CTAs that have reached a segment of a work tile */
                    uint64_t checkpoints; /* uint32 [work tiles of a CTA][segments]; 0: CTAs are not kept together */
                    int32_t segment_shift, segments; /* a segment: 2^segment_shift rows, from a work tile's first */
                };
                uint64_t units; /* main, stored rows of 16 bits a number: their units, bytes [n][head_blocks][TOPK] */
            };
            uint64_t slots[2]; /* sort: as keys */
        };
        struct kp_mla_cycles cycles; /* prepare */
    };
    union {
        uint64_t counts;  /* sort: uint32 [256][sort_blocks] */
        uint64_t part_dq; /* parts > 0: f32 [work tiles][parts][head_block][D] */
    };
    int64_t first, n;
    int32_t head_block, head_blocks; /* heads of a block; ceil(HQ / head_block) */
    union {
        int32_t dist_norm; /* ATTN_DIST_* */
        int32_t workers;   /* main, deterministic pairs of CTAs: those that take work tiles; others sum rows */
    };
    uint32_t steps; /* KP_MLA_BWD_* */
    union {
        int32_t digit; /* sort: lowest bit of this pass */
        int32_t parts; /* main: > 0: parts of a work tile, by tiles of 64 slots; dq goes to part_dq */
    };
    union {
        int32_t from;       /* sort: which of keys[], slots[] it reads (-1: indices) */
        int32_t part_slots; /* parts > 0: slots of a part, whole tiles */
        int32_t group_rows; /* main over joined lists, deterministic: rows that it stores for a group, at most */
        int32_t ahead;      /* main, parts == 0: of how many heads of 64 of its next work tile a CTA forms the states */
    };
    union {
        int32_t sort_blocks;
        int32_t work_tiles; /* main, where they are counted in 31 bits: n * head_blocks, times parts */
    };
    int32_t dist_blocks; /* head_blocks, or more where a main kernel sums P' over fewer heads */
};
KP_SIZE(struct kp_mla_bwd, 272 + 8 * 48 + 12 * 8 + 8 * 4);

/* kernels/variants/mla_bwd_finish_smxx.def: .task;  mla_bwd_sort_smxx.def: .step */
#define KP_MLA_BWD_DKV     0
#define KP_MLA_BWD_DIST    1
#define KP_MLA_BWD_DSINK   2
#define KP_MLA_BWD_DQ      3
#define KP_MLA_BWD_COUNT   0
#define KP_MLA_BWD_SCAN    1
#define KP_MLA_BWD_SCATTER 2

#define KP_MLA_DIM_V      512
#define KP_MLA_SORT_BLOCK 4096 /* slots that one CTA of a sorting pass takes */

/* One row of kernels/variants/mla_bwd_sm80.def; columns explained there. */
struct kp_mla_bwd_config {
    const char *symbol;
    int32_t dtype, dim, heads, slots, head_warps, slot_warps, cols, line, deterministic, ctas;
};
#define KP_MLA_BWD_THREADS(c) (64 * (c).head_warps * (c).slot_warps)
/* Shared memory: Q, dO, K tile; P and dS; states of the rows; offsets of two tiles; sums for dist; f16: largest dS. */
#define KP_MLA_BWD_SHARED(dtype, dim, heads, slots, head_warps)                                                        \
    ((heads) * (2 * (dim) + 2 * KP_MLA_DIM_V) + (slots)*2 * (dim) + 2 * (heads) * ((slots) > 32 ? 2 * (slots) : 64) +  \
     16 * (heads) + 16 * (slots) + 4 * (head_warps) * (slots) + ((dtype) == KP_F16 ? 32 : 0))

/* ---- kernels on mma.sync: forward and attention distribution ---- */

/* One row of kernels/variants/mla_fwd_sm80.def or dist_sm80.def; columns explained there. */
struct kp_mla_config {
    const char *symbol;
    int32_t dtype, dim, m_tiles, head_warps, key_warps, dim_warps, keys, held, ctas;
};
#define KP_MLA_HEADS(c)   (16 * (c).m_tiles * (c).head_warps)
#define KP_MLA_THREADS(c) (32 * (c).head_warps * (c).key_warps * (c).dim_warps)
/* 16 x 8 pieces of the scores that a warp owns after the exchange. */
#define KP_MLA_OWN(c)  ((c).m_tiles * (c).keys / (8 * (c).key_warps * (c).dim_warps))
#define KP_MLA_TILE(c) ((c).keys * 2 * (c).dim)
/* 64-column blocks of Q that are not held in registers. */
#define KP_MLA_KEPT(c)     ((c).held * (c).dim_warps * 16 == (c).dim ? 0 : (c).dim / 64 - (c).held / 4 * (c).dim_warps)
#define KP_MLA_EXCHANGE(c) (KP_MLA_THREADS(c) / 32 * ((c).dim_warps - 1) * KP_MLA_OWN(c) * 512)

/* Forward; also what the merging kernel reads. Work tiles 0 .. work_tiles-1 -> (query, split, block of heads). */
struct kp_mla_fwd {
    struct kp_mla in;
    struct kp_view out, lse, max_logits; /* [B,SQ,HQ,DV], [B,SQ,HQ] each; the last two may be absent */
    /* splits > 1: f32 [splits][B*SQ*HQ][512], [splits][B*SQ*HQ] each */
    uint64_t part_o, part_m, part_l, part_max_logits;
    int64_t work_tiles; /* the merging kernel: the first of the B*SQ*HQ rows that it merges */
    int32_t blocks, splits;
};
KP_SIZE(struct kp_mla_fwd, 272 + 3 * 48 + 5 * 8 + 2 * 4);
#define KP_MLA_MAX_SPLITS 64
/* Q that is not held, two key tiles, exchange, P, statistics, valid flags. */
#define KP_MLA_FWD_SHARED(c)                                                                                           \
    (KP_MLA_HEADS(c) * 128 * KP_MLA_KEPT(c) + 2 * KP_MLA_TILE(c) + KP_MLA_EXCHANGE(c) +                                \
     KP_MLA_HEADS(c) * 2 * (c).keys + KP_MLA_HEADS(c) * 8 * ((c).keys / (8 * KP_MLA_OWN(c)) + 1) + 2 * (c).keys)

/* Attention distribution. Work tiles -> (query, split). kernels/smxx/dist_norm.cu reads it for KP_DIST_L1. */
struct kp_dist {
    struct kp_mla in;
    struct kp_view lse, dist; /* [B,SQ,HQ], [B,SQ,TOPK] f32 */
    int64_t work_tiles;
    int32_t blocks, splits;
    float factor; /* 1, or 1/HQ for KP_DIST_MEAN */
    int32_t reserved;
};
KP_SIZE(struct kp_dist, 272 + 2 * 48 + 8 + 4 * 4);
/* Two key tiles, exchange, sums of 16 heads each for two tiles, valid flags. */
#define KP_DIST_SHARED(c)                                                                                              \
    (2 * KP_MLA_TILE(c) + KP_MLA_EXCHANGE(c) + 2 * KP_MLA_HEADS(c) / 16 * (c).keys * 4 + 2 * (c).keys)
#endif
