/* SPDX-License-Identifier: MIT
 * Variant tables of the dense kernels on Hopper's wgmma, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_SM90_H
#define ATTN_KPARAMS_SDPA_SM90_H
#include "kernels/params/sdpa_maps.h"

/* One row of kernels/variants/sdpa_fwd_wgmma_sm90.def; columns explained there. */
struct kp_sdpa_fwd_sm90_config {
    const char *symbol;
    int32_t dtype, dim, dim_v, groups, keys, q_tiles, stages, score_mod;
};

/* One row of kernels/variants/sdpa_bwd_wgmma_sm90.def; columns explained there. */
struct kp_sdpa_bwd_sm90_config {
    const char *symbol;
    int32_t dtype, dim, dim_v, groups, rows, stages, pair, score_mod;
};
#define KP_SDPA_BWD_SM90_KEYS(c)    (64 * (c).groups)
#define KP_SDPA_BWD_SM90_THREADS(c) (128 * (c).groups + 128)
/* K, V, stages of Q, dO and statistics, two of dS, dQ of a step; barriers, flags. */
#define KP_SDPA_BWD_SM90_SHARED(c)                                                                                     \
    (4 * (c).dim * KP_SDPA_BWD_SM90_KEYS(c) + (c).stages * (c).rows * (4 * (c).dim + 8) +                              \
     256 * (c).rows * (c).groups + 4 * (c).rows * (c).dim + 640)

/* sdpa_bwd_pair.cu, D over 192: K, V, half of the other CTA's K; Q two, dO one and a half; P, dS two, the other CTA's
 * dS; statistics, barriers, flags. To 192: K, V, slices of 64 columns that hold half of the other CTA's K; Q three;
 * dO three and P two, or two and one where DV is over 128; dS and the other CTA's two. */
#define KP_SDPA_BWD_SM90_PAIR_THREADS(c) ((c).dim > 192 ? 384 : 512)
#define KP_SDPA_BWD_SM90_PAIR_NOTES      640
#define KP_SDPA_BWD_SM90_PAIR_SHARED(c)                                                                                \
    ((c).dim > 192                                                                                                     \
         ? 768 * (c).dim + 4 * 8192 + 1024 + KP_SDPA_BWD_SM90_PAIR_NOTES                                               \
         : 512 * (c).dim + (128 + 128 * ((c).dim_v > 128 ? 2 : 3)) * (c).dim_v +                                       \
               (((c).dim + 64) / 128 + ((c).dim_v > 128 ? 5 : 6)) * 8192 + 1536 + KP_SDPA_BWD_SM90_PAIR_NOTES)

#define KP_SDPA_SM90_ROWS(c)    (64 * (c).groups)
#define KP_SDPA_SM90_THREADS(c) (128 * (c).groups + 128)
/* Tiles of Q, stages of K and V, barriers, work, how 32 sequences are dealt. */
#define KP_SDPA_SM90_SHARED(c)                                                                                         \
    (2 * (c).dim * (c).q_tiles * KP_SDPA_SM90_ROWS(c) + 2 * (c).stages * (c).keys * ((c).dim + (c).dim_v) + 960 +      \
     64 * (c).groups)
#endif
