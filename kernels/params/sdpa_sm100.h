/* SPDX-License-Identifier: MIT
 * Variant tables of the dense kernels on Blackwell, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_SM100_H
#define ATTN_KPARAMS_SDPA_SM100_H
#include "kernels/params/sdpa_maps.h"

/* One row of kernels/variants/sdpa_fwd_sm100.def; columns explained there. */
struct kp_sdpa_fwd_sm100_config {
    const char *symbol;
    int32_t dtype, dim, dim_v, q_stages, slices, polynomial, score_mod, pair;
};
#define KP_SDPA_FWD_SM100_ROWS    256 /* of a CTA: two tiles of Q */
#define KP_SDPA_FWD_SM100_KEYS    128
#define KP_SDPA_FWD_SM100_THREADS 512
#define KP_SDPA_FWD_SM100_SLICE   16384 /* 128 rows of 64 columns, of Q, K or V */
/* Q, the ring of slices of K and V, of which a CTA of a pair has half; what the rows' softmax leaves, work tiles,
 * barriers. */
#define KP_SDPA_FWD_SM100_SHARED(dim, q_stages, slices, pair)                                                          \
    (((dim) / 32 * (q_stages) + (slices) / (1 + (pair))) * KP_SDPA_FWD_SM100_SLICE + 2560 + 512 * (pair))

/* One row of kernels/variants/sdpa_bwd_sm100.def; columns explained there. */
struct kp_sdpa_bwd_sm100_config {
    const char *symbol;
    int32_t dtype, dim, dim_v, stages, pair, score_mod;
};
/* D 192: q and k once more, boxes of 32 columns. */
struct kp_sdpa_bwd_column_maps {
    struct kp_sdpa_bwd_maps rows;
    struct kp_tensor_map q_columns, k_columns;
};
#define KP_SDPA_BWD_SM100_ROWS    128 /* query rows of a step */
#define KP_SDPA_BWD_SM100_KEYS    128 /* of a CTA */
#define KP_SDPA_BWD_SM100_THREADS 512
/* K, V; dS; barriers, flags; stages of lse and shift, and of Q and dO, of which a CTA of a pair has half by rows. A
 * pair also has one stage of half of their columns, and half of K's. D 192: one stage of Q by rows, dO in place of
 * dS. */
#define KP_SDPA_BWD_SM100_SHARED(dim, dim_v, stages, pair)                                                             \
    (256 * ((dim) + (dim_v)) + 32768 + 1024 + (stages)*1024 +                                                          \
     ((dim) == 192 ? 128 * (dim) : (stages)*256 * ((dim) + (dim_v)) / (1 + (pair))) +                                  \
     (pair) * (384 * (dim) + 128 * (dim_v)))
#endif
