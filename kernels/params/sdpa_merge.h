/* SPDX-License-Identifier: MIT
 * Parameters of kernels/smxx/sdpa_merge.cu (attn_merge), shared by device code and src/cuda. */
#ifndef ATTN_KPARAMS_SDPA_MERGE_H
#define ATTN_KPARAMS_SDPA_MERGE_H
#include "kernels/params/params.h"

#define KP_MERGE_MOST 32 /* parts: a lane each */

/* out and lse of a part, or of the result; 0 = absent. Strides in elements, by the row's three counters. */
struct kp_merge_part {
    uint64_t out, lse;
    int64_t out_stride[3], lse_stride[3];
    int32_t out_dtype, lse_dtype;
    int32_t aligned; /* 1: address and strides of out are multiples of 16 bytes */
    int32_t reserved;
};
struct kp_merge {
    struct kp_merge_part part[KP_MERGE_MOST], result;
    int64_t extent[3], rows; /* a row's counters, the last one fastest; their product */
    int64_t width;           /* columns of out; 0: lse alone */
    int32_t n_parts;
    uint32_t flags; /* KP_LSE_BASE_2, KP_LSE_EMPTY_PLUS_INF */
};
KP_SIZE(struct kp_merge, (KP_MERGE_MOST + 1) * 80 + 5 * 8 + 2 * 4);
#endif
