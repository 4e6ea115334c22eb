/* SPDX-License-Identifier: MIT
 * Parameter structs and variant tables of the dense kernels for f32 and f64 (kernels/sm80/sdpa_fwd_wide.cu,
 * sdpa_bwd_wide.cu, sdpa_bwd_bias_wide.cu), shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_WIDE_H
#define ATTN_KPARAMS_SDPA_WIDE_H
#include "kernels/params/sdpa.h"

/* Shared memory is dealt in chunks: some rows by 256 bytes of columns (64 f32 or 32 f64). */
#define KP_WIDE_PITCH        256
#define KP_WIDE_CHUNK(dtype) ((dtype) == KP_F64 ? 32 : 64)

/* What both directions have in addition to struct kp_sdpa: its numbers in double, and where the CTA's own rows are. */
struct kp_sdpa_wide {
    double scale, softcap, softcap_inverse; /* softcap 0 = off */
    int32_t plain;    /* 1: no softcap, ALiBi, mask or pages; scores of inner tiles are scaled products */
    int32_t resident; /* 1: all chunks of the own rows stay in shared memory; 0: each ring slot carries one */
    int32_t slices;   /* blocks of columns that a row's results are cut into; each forms all scores */
    int32_t staged;   /* backward: the ring holds two whole tiles of the other side, each read twice; needs resident */
    /* Heads that both a kernel of f16x2 operands and one of tf32 are started for. flags: int32 [B][HK], 1 = belongs to
     * tf32; or 0. unit_*: f32 [B][heads][blocks], what a number of the block is to be multiplied with. */
    uint64_t flags, unit_q, unit_k, unit_v, unit_o;
    int32_t blocks_q, blocks_k; /* of KP_F16X2_ROWS rows, of a sequence */
};
KP_SIZE(struct kp_sdpa_wide, 3 * 8 + 4 * 4 + 5 * 8 + 2 * 4);

/* Splitting f32 operands in two f16 each (kernels/smxx/sdpa_f16x2.cu). */
#define KP_F16X2_ROWS 64
struct kp_f16x2_tensor {
    struct kp_view from, to; /* `to`: rows of whole pairs of pieces, width rounded up to 8 */
    uint64_t unit;
    int64_t n_blocks;
    int32_t heads, blocks, width, of_keys;
};
struct kp_sdpa_f16x2_job {
    struct kp_sdpa in; /* sequences */
    struct kp_f16x2_tensor tensor[4];
    uint64_t flags;
    int64_t n_blocks;
    int32_t n_tensors, reserved;
};
KP_SIZE(struct kp_sdpa_f16x2_job, sizeof(struct kp_sdpa) + 4 * (2 * 48 + 2 * 8 + 4 * 4) + 3 * 8);

/* Forward; `fwd` is what the merging kernel reads. In fwd.work_tiles slices are part of the splits' axis:
 * tile -> (section of heads, row tile, split * slices + slice, head). part_* are f64 for f64. */
struct kp_sdpa_wide_fwd {
    struct kp_sdpa_fwd fwd;
    struct kp_sdpa_wide wide;
};
KP_SIZE(struct kp_sdpa_wide_fwd, sizeof(struct kp_sdpa_fwd) + sizeof(struct kp_sdpa_wide));

/* Backward. Of `bwd` these kernels read no turns, stat_log2, row_warps or dim_warps, and dq_sum and dim only with
 * .sums; stat_*, dsink_row and dalibi_tile are f64 for f64. `tiles`: tiles of own rows per sequence, of the launch. */
struct kp_sdpa_wide_bwd {
    struct kp_sdpa_bwd bwd;
    struct kp_sdpa_wide wide;
    int64_t work_tiles;
    int32_t tiles, reserved;
};
KP_SIZE(struct kp_sdpa_wide_bwd, sizeof(struct kp_sdpa_bwd) + sizeof(struct kp_sdpa_wide) + 16);

/* The side of a backward kernel: what its CTAs own. */
#define KP_WIDE_OWN_KEYS    1
#define KP_WIDE_OWN_QUERIES 2

/* Sequences start at multiples of this many workspace rows; statistics past the end of one are those of empty rows.
 */
#define KP_WIDE_STAT_ROWS 64
/* Owners of keys keep the statistics of four tiles of queries. */
#define KP_WIDE_STAT_TILES 4

/* A line of kernels/variants/sdpa_fwd_sm80.f32.def and .f64.def or of sdpa_bwd_sm80 and sdpa_bwd_dq_sm80; columns
 * explained there. */
struct kp_sdpa_wide_config {
    const char *symbol;
    int32_t dtype, f16x2, sums, side, cols, warps, keys, group, slots, per, ctas;
};
#define KP_WIDE_ROWS(c) (16 * (c).warps)
/* Shared memory of sdpa_bwd_bias_wide.cu: a chunk of own rows, one of tile rows; later the sums of a tile. */
#define KP_WIDE_BIAS_KEYS(dtype)         ((dtype) == KP_F64 ? 16 : 32)
#define KP_WIDE_BIAS_SHARED_BYTES(dtype) ((64 + KP_WIDE_BIAS_KEYS(dtype)) * KP_WIDE_PITCH)
#endif
