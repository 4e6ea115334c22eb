/* SPDX-License-Identifier: MIT
 * Variant tables of the dense kernels on Blackwell, shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_SM100_H
#define ATTN_KPARAMS_SDPA_SM100_H
#include "kernels/params/sdpa_maps.h"

/* One row of kernels/variants/sdpa_fwd_sm100.def; columns explained there. */
struct kp_sdpa_fwd_sm100_config {
    const char *symbol;
    int32_t dtype, dim, dim_v, q_stages, slices, polynomial;
};
#define KP_SDPA_FWD_SM100_ROWS    256 /* two tiles of Q */
#define KP_SDPA_FWD_SM100_KEYS    128
#define KP_SDPA_FWD_SM100_THREADS 512
#define KP_SDPA_FWD_SM100_SLICE   16384 /* 128 rows of 64 columns, of Q, K or V */
/* Q, the ring of slices of K and V; what the rows' softmax leaves, work tiles, barriers. */
#define KP_SDPA_FWD_SM100_SHARED(dim, q_stages, slices)                                                                \
    (((dim) / 32 * (q_stages) + (slices)) * KP_SDPA_FWD_SM100_SLICE + 2560)

/* One row of kernels/variants/sdpa_bwd_sm100.def; columns explained there. */
struct kp_sdpa_bwd_sm100_config {
    const char *symbol;
    int32_t dtype, dim, stages, pair;
};
#define KP_SDPA_BWD_SM100_ROWS    128 /* query rows of a step */
#define KP_SDPA_BWD_SM100_KEYS    128 /* of a CTA */
#define KP_SDPA_BWD_SM100_THREADS 512
/* K, V; stages of Q, dO, lse and shift; dS; barriers, flags. A pair (D 128) has half of Q and dO in each stage, and one
 * stage of the other half by columns, and K by columns. */
#define KP_SDPA_BWD_SM100_SHARED(dim, stages, pair)                                                                    \
    (512 * (dim) + (stages) * (512 * (dim) / (1 + (pair)) + 1024) + 65536 * (pair) + 32768 + 1024)
#endif
