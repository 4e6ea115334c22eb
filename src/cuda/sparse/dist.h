/* SPDX-License-Identifier: MIT
 * What the host files of the attention distribution on CUDA share: a launch is the main kernel and, for ATTN_DIST_L1,
 * the one that divides each row by its sum (kernels/smxx/dist_norm.cu). */
#ifndef ATTN_CUDA_CUDA_DIST_H
#define ATTN_CUDA_CUDA_DIST_H
#include "cuda/sparse/mla.h"

/* 1 and the reason if the image of the main kernel, `symbol`, or of the division can't be had. */
int attn_cuda_dist_refuse(const struct attn_core_device *dev, const char *symbol, int64_t shared_bytes,
                          struct attn_text *why);
attn_status attn_cuda_dist_prepare(struct attn_core_device *dev, const char *symbol, int64_t shared_bytes,
                                   const attn_problem *p);
/* None: a row's workspace(). */
uint64_t attn_cuda_dist_workspace(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p);
/* All but items, blocks and splits. */
struct kp_dist attn_cuda_dist_params(const attn_problem *p, const attn_args *args);
attn_status attn_cuda_dist_launch(const struct attn_core_device *dev, const char *symbol,
                                  const struct attn_cuda_grid *grid, const struct kp_dist *kp, const attn_problem *p,
                                  void *stream);
/* The division alone, if the problem wants it. */
attn_status attn_cuda_dist_norm(const struct attn_core_device *dev, const struct kp_dist *kp, const attn_problem *p,
                                void *stream);
#endif
