/* SPDX-License-Identifier: MIT
 * Parameter structs and variant tables of the dense operators, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_H
#define ATTN_KPARAMS_SDPA_H
#include "kernels/kparams.h"

/* struct kp_sdpa.flags, beside KP_LSE_* */
#define KP_SDPA_BOTTOM_RIGHT 16

/* What forward and backward have in common: the inputs and rules of a dense problem. Lengths and counts are bounds
 * known to the host; what lives in device memory (seqlens, cu_seqlens, block_table) is clamped by the kernel. */
struct kp_sdpa {
    struct kp_view q, k, v, mask;
    uint64_t seqlens_q, seqlens_k, cu_seqlens_q, cu_seqlens_k, block_table; /* int32 arrays or 0 */
    uint64_t alibi, sink;                                                   /* float arrays or 0 */
    int64_t alibi_batch, alibi_head, sink_head, table_batch;                /* strides in elements */
    int64_t total_q, total_k;                                               /* packed: rows of q, of k */
    int64_t page_size, n_pages;
    int32_t batch, heads_q, heads_k, seq_q, seq_k, dim_qk, dim_v;
    int32_t window_left, window_right; /* 2 - 2^30 .. 2^30 = none; causal is window_right = 0 */
    int32_t alibi_form;                /* ATTN_ALIBI_*: 0 none, 1 linear, 2 distance */
    uint32_t flags;                    /* KP_SDPA_*, KP_LSE_* */
    float scale;                       /* natural units */
    float scale_log2;                  /* |scale| * log2(e) */
    float softcap, softcap_inverse;    /* 0 = off */
    int32_t reserved;
};
KP_SIZE(struct kp_sdpa, 4 * 48 + 15 * 8 + 16 * 4);

/* Key splits that the merging kernel takes. */
#define KP_SDPA_MAX_SPLITS 128

/* Dense forward, any element type; also the part that the merging kernel reads. Plain variants take a normal, non-zero
 * scale and turn the sign of Q when it is negative.
 *
 * A tile is a block of flat rows of one (batch, tile head). Row f is query f / pack, head tile_head * pack + f % pack;
 * pack is 1 (tile head = query head) or the group HQ/HK (tile head = key head: few queries share the keys' tile).
 * CTAs take work items 0 .. items-1; item -> (section of heads, row tile from the last, key split, head in section). */
struct kp_sdpa_fwd {
    struct kp_sdpa in;
    struct kp_view out, lse, lse_rounded;
    uint64_t part_o, part_m, part_l; /* splits > 1: f32 [splits][B*HQ*SQ][part_row], [splits][B*HQ*SQ] each */
    int64_t items;
    int32_t pack, row_tiles, splits, section; /* section: tile heads (over the batch) that are dealt together */
    int32_t part_row;                         /* floats of a row of part_o: DV rounded up to a multiple of 4 */
    int32_t reserved;
};
KP_SIZE(struct kp_sdpa_fwd, 4 * 48 + 15 * 8 + 16 * 4 + 3 * 48 + 4 * 8 + 6 * 4);

/* One row of kernels/variants/sdpa_fwd_sm80.def; columns explained there. */
struct kp_sdpa_fwd_config {
    const char *symbol;
    int32_t dtype, full, dim, dim_v, row_warps, col_warps, m_tiles, keys, slots, q_steps, ctas;
};
/* Shared memory of a variant: Q (later the output tile), then the ring of K and V tiles, then flags. */
#define KP_SDPA_MAX(a, b)       ((a) > (b) ? (a) : (b))
#define KP_SDPA_ROWS(c)         (16 * (c).m_tiles * (c).row_warps)
#define KP_SDPA_PITCH(c)        (2 * KP_SDPA_MAX((c).dim, (c).dim_v))
#define KP_SDPA_THREADS(c)      (32 * (c).row_warps * (c).col_warps)
#define KP_SDPA_FLAG_BYTES      256
#define KP_SDPA_SHARED_BYTES(c) (KP_SDPA_PITCH(c) * (KP_SDPA_ROWS(c) + (c).slots * (c).keys) + KP_SDPA_FLAG_BYTES)
#endif
