/* SPDX-License-Identifier: MIT
 * Variant tables and parameters of the dense backward of f32 as pairs of f16 on Hopper's wgmma, shared by device code
 * and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_BWD_F16X2_SM90_H
#define ATTN_KPARAMS_SDPA_BWD_F16X2_SM90_H
#include "kernels/params/sdpa_wide.h"
#include "kernels/params/tensor_map.h"

/* Own rows: K, V or Q, dO; the other side's. Maps of f16 numbers; head h of a tensor has the places 2 h (hi) and
 * 2 h + 1 (lo) of the axis of heads. */
struct kp_sdpa_bwd_f16x2 {
    struct kp_tensor_map own_a, own_b, other_a, other_b;
    struct kp_sdpa_wide_bwd all;
};

/* One row of kernels/variants/sdpa_bwd_f16x2_sm90.def or sdpa_bwd_dq_f16x2_sm90.def; columns explained there. */
struct kp_sdpa_bwd_f16x2_config {
    const char *symbol;
    int32_t side, dim, tile, slots;
};
#define KP_SDPA_BWD_F16X2_ROWS    128
#define KP_SDPA_BWD_F16X2_THREADS 384
/* Own rows, slots of the ring, statistics of the tiles in it and one more; barriers. */
#define KP_SDPA_BWD_F16X2_SHARED(dim, tile, slots)                                                                     \
    ((dim) * (8 * 128 + 2 * (slots) * (tile)) + 12 * (((slots) + 3) / 4 + 1) * (tile) + 336)
#endif
