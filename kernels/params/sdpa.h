/* SPDX-License-Identifier: MIT
 * Parameter structs and variant tables of the dense operators, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_H
#define ATTN_KPARAMS_SDPA_H
#include "kernels/params/params.h"

/* struct kp_sdpa.flags, with KP_LSE_* */
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

/* Key splits that the merging kernel takes; up to how many a warp merges alone. Warps of its CTA. */
#define KP_SDPA_MAX_SPLITS  128
#define KP_SDPA_MERGE_ALONE 4
#define KP_SDPA_MERGE_WARPS 8
/* CTAs of a merge. */
#define KP_SDPA_MERGE_ROWS(splits) ((splits) > KP_SDPA_MERGE_ALONE ? 1 : KP_SDPA_MERGE_WARPS)

/* n / d for 0 <= n < 2^31 and one d: n * factor >> shift, a product of 64 bits (the host prepares it). */
struct kp_divisor {
    uint32_t factor, shift;
};

/* Dense forward, any element type; also the part that the merging kernel reads. Plain variants take a normal, non-zero
 * scale and turn the sign of Q when it is negative.
 *
 * A tile is a block of flat rows of one (batch, tile head). Row f is query f / pack, head tile_head * pack + f % pack;
 * pack is 1 (tile head = query head) or the group HQ/HK (tile head = key head: few queries share the keys' tile).
 * CTAs take work tiles 0 .. work_tiles - 1; tile -> (section of heads, row tile from the last, key split, head in it).
 */
struct kp_sdpa_fwd {
    struct kp_sdpa in;
    struct kp_view out, lse, lse_rounded, max_logits;
    uint64_t part_o, part_m, part_l; /* splits > 1: f32 [splits][B*HQ*SQ][part_row], [splits][B*HQ*SQ] each */
    int64_t work_tiles;
    int32_t pack, row_tiles, splits, section; /* section: tile heads (over the batch) that are dealt together */
    int32_t part_row;                         /* floats of a row of part_o: DV rounded up to a multiple of 4 */
    /* 16-bit kernels only: what find_work of sdpa_fwd_work.h divides by */
    int32_t tile_heads;              /* of a batch entry */
    int32_t section_tiles;           /* row_tiles * splits * section */
    int32_t last_section, last_size; /* index and heads of the last section, which may be a smaller one */
    struct kp_divisor by_section_tiles, by_section, by_last, by_splits, by_heads, by_pack, by_group;
    int32_t mask_pitch; /* bytes of a row of cells in shared memory; 0: cells are read where they stand */
    float slack;        /* log2 units by which a running maximum may be too low: 0 where max_logits is wanted */
    int32_t reserved;
};
KP_SIZE(struct kp_sdpa_fwd, 4 * 48 + 15 * 8 + 16 * 4 + 4 * 48 + 4 * 8 + 26 * 4);

/* One row of kernels/variants/sdpa_fwd_sm80.def or sdpa_fwd_sm90.def; columns explained there. */
struct kp_sdpa_fwd_config {
    const char *symbol;
    int32_t dtype, full, dim, dim_v, row_warps, col_warps, key_warps, m_tiles, keys, slots, pair, q_steps, ctas, early;
};
/* Shared memory of a variant: Q (later the output tile), then the ring of K and V tiles, then flags. */
#define KP_SDPA_MAX(a, b)       ((a) > (b) ? (a) : (b))
#define KP_SDPA_ROWS(c)         (16 * (c).m_tiles * (c).row_warps)
#define KP_SDPA_PITCH(c)        (2 * KP_SDPA_MAX((c).dim, (c).dim_v))
#define KP_SDPA_THREADS(c)      (32 * (c).row_warps * (c).col_warps * (c).key_warps)
#define KP_SDPA_FLAG_BYTES      320
#define KP_SDPA_SHARED_BYTES(c) (KP_SDPA_PITCH(c) * (KP_SDPA_ROWS(c) + (c).slots * (c).keys) + KP_SDPA_FLAG_BYTES)

/* Dense backward. The preparing kernel writes per row of a query head what the others read; workspace rows are counted
 * by first_stat_row (kernels/device/sdpa_bwd_rows.h): sequences start at multiples of `rows`.
 *   stat_lse    lse, natural, or in base 2 for a plain main kernel; +inf marks an empty row, 1e30 a row past the end
 *   stat_shift  g out.dout - dlse            stat_g  share of exp(lse) in the denominator, 1 without a sink
 *   dq_sum      f32, a tile of rows x dim per `rows` rows, in the order in which the main kernel's threads hold it */
struct kp_sdpa_bwd {
    struct kp_sdpa in;
    struct kp_view out, lse, dout, dlse, dq, dk, dv, dmask;
    uint64_t stat_lse, stat_shift, stat_g;         /* f32 [HQ][stat_rows] */
    uint64_t dsink_row;                            /* f32 [HQ][stat_rows] or 0 */
    uint64_t dalibi_tile;                          /* f32 [B][HQ][bias_tiles] or 0 */
    uint64_t dq_sum;                               /* f32 [HQ][stat_rows][dim] */
    uint64_t turns;                                /* ordered: i32 [HQ][stat_rows / rows], then a ticket; else 0 */
    uint64_t dalibi, dsink;                        /* outputs, float arrays or 0 */
    int64_t dalibi_batch, dalibi_head, dsink_head; /* strides in elements; batch 0: summed over B */
    int64_t stat_rows, mask_tiles, alibi_tiles;    /* work tiles of sdpa_bwd_bias.cu */
    int32_t rows, dim, stat_log2;         /* of the main kernel: tile height, padded head dim, unit of stat_lse */
    int32_t row_warps, dim_warps;         /* how its warps share a tile of dq_sum */
    int32_t key_tiles, row_tiles;         /* per sequence, at most; row_tiles of `rows` rows */
    int32_t section;                      /* heads that are dealt together */
    int32_t dalibi_per_batch, bias_tiles; /* bias_tiles: of KP_SDPA_BWD_BIAS_TILE rows per sequence */
};
KP_SIZE(struct kp_sdpa_bwd, 4 * 48 + 15 * 8 + 16 * 4 + 8 * 48 + 15 * 8 + 10 * 4);

/* The same in f16, where dS has a power of two for each (batch entry, key head): kernels/device/sdpa_bwd_bound.h. */
struct kp_sdpa_bwd_scaled {
    struct kp_sdpa_bwd bwd;
    uint64_t row_bounds; /* f32 [B][HQ][row_tiles][2]: max ||dout row||^2 and max |shift| of a tile of rows */
    uint64_t key_bounds; /* f32 [B][HK][bound_tiles]: max ||v row||^2 of a tile of `rows` keys */
    uint64_t undo;       /* f32 [B][HK]: 1 / the factor of dS */
    int32_t bound_tiles, reserved;
};
KP_SIZE(struct kp_sdpa_bwd_scaled, 4 * 48 + 15 * 8 + 16 * 4 + 8 * 48 + 15 * 8 + 10 * 4 + 3 * 8 + 2 * 4);

/* Rows and keys of a tile of kernels/sm80/sdpa_bwd_bias.cu. */
#define KP_SDPA_BWD_BIAS_TILE         64
#define KP_SDPA_BWD_BIAS_SHARED_BYTES (4 * 64 * 128 + 12 * 64 + 16)

/* One row of kernels/variants/sdpa_bwd_sm80.def; columns explained there. */
struct kp_sdpa_bwd_config {
    const char *symbol;
    int32_t dtype, full, dim, keys, rows, subs, warps, s_keys, s_rows, kv_keys, q_rows, q_stages, o_stages, ctas;
};
/* Shared memory of a variant: K, V, Q and dO tiles, dS, P unless it stays in registers, statistics, flags, factors. */
#define KP_SDPA_BWD_P_HELD(c)     ((c).s_rows == 1 && (c).kv_keys == (c).warps && (c).s_keys == (c).warps)
#define KP_SDPA_BWD_S_PITCH(c)    (2 * KP_SDPA_MAX((c).rows, 32))
#define KP_SDPA_BWD_FLAG_BYTES(c) ((c).dtype == KP_F16 ? 144 : 128)
#define KP_SDPA_BWD_SHARED_BYTES(c)                                                                                    \
    (2 * (c).dim * (2 * (c).keys + ((c).q_stages + (c).o_stages) * (c).rows) +                                         \
     KP_SDPA_BWD_S_PITCH(c) * (c).keys * (KP_SDPA_BWD_P_HELD(c) ? 1 : 2) + 12 * (c).rows + KP_SDPA_BWD_FLAG_BYTES(c))
#endif
