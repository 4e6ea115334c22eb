/* SPDX-License-Identifier: MIT
 * Variant table and parameters of the dense forward of f32 as pairs of f16 on Hopper's wgmma, shared by device code and
 * src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_F16X2_SM90_H
#define ATTN_KPARAMS_SDPA_F16X2_SM90_H
#include "kernels/params/sdpa_maps.h"

/* Maps of f16 numbers; head h of a tensor has the places 2 h (hi) and 2 h + 1 (lo) of the axis of heads. Flags and
 * units: struct kp_sdpa_wide. */
struct kp_sdpa_fwd_f16x2 {
    struct kp_sdpa_fwd_maps maps;
    uint64_t flags, unit_q, unit_k, unit_v;
    int32_t blocks_q, blocks_k;
};

/* One row of kernels/variants/sdpa_fwd_f16x2_sm90.def; columns explained there. */
struct kp_sdpa_fwd_f16x2_sm90_config {
    const char *symbol;
    int32_t dim, groups, keys, q_tiles, slots, cols, sums;
};
/* Tiles of Q, hi and lo; the ring, of which K of a tile takes two slots, hi and lo; barriers and work. */
#define KP_SDPA_F16X2_SM90_SHARED(dim, groups, keys, q_tiles, slots)                                                   \
    ((dim) * (256 * (groups) * (q_tiles) + 2 * (slots) * (keys)) + 544)
#define KP_SDPA_F16X2_SM90_THREADS(groups) (128 * (groups) + 128)
#endif
