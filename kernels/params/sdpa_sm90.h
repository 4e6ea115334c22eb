/* SPDX-License-Identifier: MIT
 * Parameter struct and variant table of the dense kernels of Hopper that read by tensor maps (TMA), shared by device
 * code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_SM90_H
#define ATTN_KPARAMS_SDPA_SM90_H
#include "kernels/params/sdpa.h"
#include "kernels/params/tensor_map.h"

/* Forward. Maps have the axes column, row, head, batch entry (packed: one entry, rows of all sequences); boxes of 64
 * columns by the rows of a tile. fwd.pack and fwd.splits are 1. */
struct kp_sdpa_fwd_sm90 {
    struct kp_tensor_map q, k, v;
    struct kp_sdpa_fwd fwd;
    int32_t pairs, half_tiles; /* pairs: row tiles are dealt in pairs, the longest and the shortest of what is left */
    struct kp_divisor by_half; /* half_tiles: pairs of a head */
};

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
