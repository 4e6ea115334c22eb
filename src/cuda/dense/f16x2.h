/* SPDX-License-Identifier: MIT
 * f32 operands split in two f16 numbers each (f16x2), in the workspace, for the dense kernels with .f16x2 = 1. */
#ifndef ATTN_CUDA_DENSE_F16X2_H
#define ATTN_CUDA_DENSE_F16X2_H
#include "cuda/dense/sdpa_map.h"
#include "cuda/dense/wide.h"

enum { ATTN_CUDA_F16X2_Q, ATTN_CUDA_F16X2_K, ATTN_CUDA_F16X2_V, ATTN_CUDA_F16X2_DOUT, ATTN_CUDA_F16X2_COUNT };
extern const char attn_cuda_f16x2_symbol[], attn_cuda_f16x2_apart_symbol[];

/* Where in the workspace what lies, in bytes from `begin` on: a function of the problem alone. */
struct attn_cuda_f16x2 {
    int64_t flags, end;
    struct {
        int64_t to, unit;
    } offset[ATTN_CUDA_F16X2_COUNT];
    int32_t n;     /* 3, or 4 with dout */
    int32_t apart; /* a head's lo stand after all of its hi; else by turns, eight columns each */
};
struct attn_cuda_f16x2 attn_cuda_f16x2(const attn_problem *p, int64_t begin, int32_t n);

/* 1 and the reason if the operands cannot be split. */
int attn_cuda_f16x2_refuse(const attn_problem *p, struct attn_text *why);

/* The kernel of the forward that serves the heads which pairs cannot hold (fwd_wide.c): 1 and the reason if it cannot;
 * its image; and its launch. kp: parameters but for how the work is dealt; flags are there. */
int attn_cuda_fwd_rest_refuse(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why);
attn_status attn_cuda_fwd_rest_prepare(struct attn_core_device *dev, const attn_problem *p);
attn_status attn_cuda_fwd_rest(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                               const struct kp_sdpa_wide_fwd *kp);

/* Queue the splitting. from: views of the caller's q, k, v (dout); to: views of the split ones. Sets flags, units and
 * blocks of *wide. */
attn_status attn_cuda_f16x2_start(const struct attn_core_device *dev, const struct attn_cuda_f16x2 *h,
                                  const attn_problem *p, const attn_args *args, const struct kp_sdpa *in,
                                  const struct kp_view *const from[], struct kp_view to[], struct kp_sdpa_wide *wide);

/* A map of a split tensor, apart: two places on the axis of heads for each of its heads. `heads`: of the tensor. */
attn_status attn_cuda_f16x2_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                                int64_t columns, int64_t rows, int64_t heads, int64_t batch, int32_t box,
                                struct kp_tensor_map *map);
#endif
