/* SPDX-License-Identifier: MIT
 * Variant table of the dense forward on Hopper's wgmma, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_SM90_H
#define ATTN_KPARAMS_SDPA_SM90_H
#include "kernels/params/sdpa_maps.h"

/* One row of kernels/variants/sdpa_fwd_wgmma_sm90.def; columns explained there. */
struct kp_sdpa_fwd_sm90_config {
    const char *symbol;
    int32_t dtype, dim, dim_v, groups, keys, q_tiles;
};
#define KP_SDPA_SM90_ROWS(c)    (64 * (c).groups)
#define KP_SDPA_SM90_THREADS(c) (128 * (c).groups + 128)
/* Q tiles (later the output tile), two stages of K, two of V, barriers, work. */
#define KP_SDPA_SM90_SHARED(c)                                                                                         \
    (2 * (c).dim * (c).q_tiles * KP_SDPA_SM90_ROWS(c) + 4 * (c).keys * ((c).dim + (c).dim_v) + 256)
#endif
