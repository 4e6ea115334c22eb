/* SPDX-License-Identifier: MIT
 * Variant table and parameters of the dense forward of e4m3 on Hopper's wgmma, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_FP8_SM90_H
#define ATTN_KPARAMS_SDPA_FP8_SM90_H
#include "kernels/params/sdpa_maps.h"

/* Boxes of 128 columns. Scales: f32, strides in elements by batch entry and head. */
struct kp_sdpa_fwd_fp8 {
    struct kp_sdpa_fwd_maps maps;
    uint64_t q_scale, k_scale, v_scale;
    int64_t q_scale_stride[2], k_scale_stride[2], v_scale_stride[2];
};

/* One row of kernels/variants/sdpa_fwd_fp8_sm90.def; columns explained there. */
struct kp_sdpa_fwd_fp8_sm90_config {
    const char *symbol;
    int32_t dim, groups, keys, stages;
};
/* Two tiles each of Q and V, `stages` of K and of V transposed, in rows of 128 bytes; barriers; work of two tiles of
 * rows. */
#define KP_SDPA_FP8_SM90_SHARED(dim, groups, keys, stages)                                                             \
    (128 * (128 * (groups) + (2 + (stages)) * (keys) + (stages) * (dim)) + 320)
#define KP_SDPA_FP8_SM90_THREADS(groups) (128 * (groups) + 128)
#endif
