/* SPDX-License-Identifier: MIT
 * What the host files of the dense f32 and f64 kernels share. */
#ifndef ATTN_CUDA_CUDA_SDPA_WIDE_H
#define ATTN_CUDA_CUDA_SDPA_WIDE_H
#include "cuda/dense/sdpa.h"
#include "kernels/params/sdpa_wide.h"

/* Shared memory of a CTA whose own rows have `own_chunks` chunks of columns. */
struct attn_cuda_wide_memory {
    int64_t bytes;
    int32_t resident; /* own rows stay; else each ring slot brings the chunk that it is multiplied with */
    int32_t staged;   /* the ring is two whole tiles (backward only) */
    int32_t ctas;     /* CTAs that fit a multiprocessor */
};
struct attn_cuda_wide_memory attn_cuda_wide_memory(const struct kp_sdpa_wide_config *c,
                                                   const struct attn_cuda_limits *l, int64_t own_chunks);
/* The same for a kernel of the backward: rows of `chunks` chunks on either side. */
struct attn_cuda_wide_memory attn_cuda_wide_bwd_memory(const struct kp_sdpa_wide_config *c,
                                                       const struct attn_cuda_limits *l, int64_t chunks);

/* Numbers of the problem in double. slices is the caller's. */
void attn_cuda_wide_numbers(struct kp_sdpa_wide *kp, const attn_problem *p, const struct attn_cuda_wide_memory *m);
#endif
