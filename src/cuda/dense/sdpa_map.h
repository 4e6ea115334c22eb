/* SPDX-License-Identifier: MIT
 * Tensor maps of q, k, v and dout for the dense kernels that read by them. */
#ifndef ATTN_CUDA_DENSE_SDPA_MAP_H
#define ATTN_CUDA_DENSE_SDPA_MAP_H
#include "cuda/dense/sdpa.h"
#include "kernels/params/sdpa_maps.h"

/* Axes column, row, head, batch entry; boxes of 64 columns by `box` rows of one head in the 128-byte swizzle. */
attn_status attn_cuda_sdpa_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                               int64_t columns, int64_t rows, int64_t heads, int64_t batch, uint32_t box,
                               struct kp_tensor_map *map);

/* The same, boxes of 32 columns in the 64-byte swizzle. */
attn_status attn_cuda_sdpa_narrow_map(const struct attn_core_device *dev, const char *name, const struct kp_view *v,
                                      int64_t columns, int64_t rows, int64_t heads, int64_t batch, uint32_t box,
                                      struct kp_tensor_map *map);

/* Forward, tiles of `rows` query rows: how they are dealt to CTAs; the number of pieces. counts_packed: the kernel
 * counts pairs of tiles over the lengths of packed sequences itself. */
int64_t attn_cuda_sdpa_fwd_deal(int64_t rows, int counts_packed, const attn_problem *p, struct kp_sdpa_fwd_maps *maps);

/* Clocks of the CTA with the most to do: `ends` for each tile of `rows` query rows, `step` for each tile of `keys` keys
 * that it sees. pairs: tiles whose lengths differ are dealt in pairs, which are counted whole. */
struct attn_cuda_row_clocks {
    int64_t rows, keys;
    double ends, step;
    int pairs;
};
double attn_cuda_sdpa_fwd_clocks(const attn_problem *p, const struct attn_cuda_limits *l,
                                 const struct attn_cuda_row_clocks *row);

/* Forward: what all its rows refuse of a problem's size, tiles of `rows` query rows; and of the strides of q, k, v. */
int attn_cuda_sdpa_fwd_refuse_size(int64_t rows, const attn_problem *p, struct attn_text *why);
int attn_cuda_sdpa_fwd_refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role,
                                       struct attn_text *why);
#endif
