/* SPDX-License-Identifier: MIT
 * Parameter structs and variant tables of the dense kernels for f32 and f64 (kernels/sm80/sdpa_fwd_wide.cu), shared by
 * device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_WIDE_H
#define ATTN_KPARAMS_SDPA_WIDE_H
#include "kernels/kparams_sdpa.h"

/* Shared memory is dealt in chunks: some rows by 256 bytes of columns (64 f32 or 32 f64). */
#define KP_WIDE_PITCH        256
#define KP_WIDE_CHUNK(dtype) ((dtype) == KP_F64 ? 32 : 64)

/* What both directions have beside struct kp_sdpa: its numbers in double, and where the CTA's own rows are. */
struct kp_sdpa_wide {
    double scale, softcap, softcap_inverse; /* softcap 0 = off */
    int32_t plain;    /* 1: no softcap, ALiBi, mask or pages; scores of inner tiles are scaled products */
    int32_t resident; /* 1: all chunks of the own rows stay in shared memory; 0: each ring slot carries one */
    int32_t slices;   /* blocks of columns that a row's results are cut into; each forms all scores */
    int32_t reserved;
};
KP_SIZE(struct kp_sdpa_wide, 3 * 8 + 4 * 4);

/* Forward; `fwd` is what the merging kernel reads. Work items are fwd.items: slices are part of the splits' axis there:
 * item -> (section of heads, row tile, split * slices + slice, head). part_* are f64 for f64. */
struct kp_sdpa_wide_fwd {
    struct kp_sdpa_fwd fwd;
    struct kp_sdpa_wide wide;
};
KP_SIZE(struct kp_sdpa_wide_fwd, sizeof(struct kp_sdpa_fwd) + 40);

/* A line of kernels/variants/sdpa_fwd_sm80.f32.def and .f64.def; columns explained there. */
struct kp_sdpa_wide_config {
    const char *symbol;
    int32_t dtype, cols, warps, keys, slots, ctas;
};
#define KP_WIDE_ROWS(c) (16 * (c).warps)
#endif
