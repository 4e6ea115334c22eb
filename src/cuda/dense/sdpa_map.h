/* SPDX-License-Identifier: MIT
 * Tensor maps of q, k, v and dout for the dense kernels that read by them. */
#ifndef ATTN_CUDA_DENSE_SDPA_MAP_H
#define ATTN_CUDA_DENSE_SDPA_MAP_H
#include "cuda/dense/sdpa.h"
#include "kernels/params/tensor_map.h"

/* Axes column, row, head, batch entry; boxes of 64 columns by `box` rows of one head in the 128-byte swizzle. */
attn_status attn_cuda_sdpa_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                               int64_t columns, int64_t rows, int64_t heads, int64_t batch, uint32_t box,
                               struct kp_tensor_map *map);
#endif
