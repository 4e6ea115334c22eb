/* SPDX-License-Identifier: MIT
 * f32 operands as pairs of f16 in the workspace, for the dense kernels with .halves = 1. */
#ifndef ATTN_CUDA_CUDA_SDPA_HALVES_H
#define ATTN_CUDA_CUDA_SDPA_HALVES_H
#include "cuda/dense/wide.h"

enum { ATTN_CUDA_HALVES_Q, ATTN_CUDA_HALVES_K, ATTN_CUDA_HALVES_V, ATTN_CUDA_HALVES_DOUT, ATTN_CUDA_HALVES_MOST };
extern const char attn_cuda_halves_symbol[];

/* Where in the workspace what lies, in bytes from `begin` on: a function of the problem alone. */
struct attn_cuda_halves {
    int64_t flags, end;
    struct {
        int64_t to, unit;
    } at[ATTN_CUDA_HALVES_MOST];
    int32_t n; /* 3, or 4 with dout */
};
struct attn_cuda_halves attn_cuda_halves(const attn_problem *p, int64_t begin, int32_t n);

/* 1 and the reason if the operands cannot be had as halves. */
int attn_cuda_halves_refuse(const attn_problem *p, struct attn_text *why);

/* Queue the splitting. from: views of the caller's q, k, v (dout); to: views of the halves. Sets flags, units and
 * blocks of *wide. */
attn_status attn_cuda_halves_start(const struct attn_core_device *dev, const struct attn_cuda_halves *h,
                                   const attn_problem *p, const attn_args *args, const struct kp_sdpa *in,
                                   const struct kp_view *const from[], struct kp_view to[], struct kp_sdpa_wide *wide);
#endif
