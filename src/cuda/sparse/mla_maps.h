/* SPDX-License-Identifier: MIT
 * Tensor maps of the sparse MLA operators on Blackwell: heads of a query as boxes, rows of kv gathered by fours. */
#ifndef ATTN_CUDA_MLA_MAPS_H
#define ATTN_CUDA_MLA_MAPS_H
#include "cuda/sparse/mla.h"
#include "kernels/params/tensor_map.h"

/* 1 and the reason if a map cannot have the strides of this tensor; *refused is its role then. */
int attn_cuda_mla_refuse_map(const attn_problem *p, const attn_args *args, int32_t role, int32_t *refused,
                             struct attn_text *why);
/* Rows of kv's map from a batch entry's first row to the next one's. */
int64_t attn_cuda_mla_map_rows(const struct kp_mla *in);
/* A tensor [B,SQ,HQ,columns]: boxes of `heads` heads x 64 (or 32) columns, 128 (64) bytes swizzled. */
attn_status attn_cuda_mla_map_heads(const struct attn_core_device *dev, const char *name, const struct kp_mla *in,
                                    const struct kp_view *v, int32_t columns, uint32_t heads, uint32_t box_columns,
                                    struct kp_tensor_map *map);
/* The same of `heads` heads of each of `queries` neighbouring queries: a query's heads stand together. */
attn_status attn_cuda_mla_map_queries(const struct attn_core_device *dev, const char *name, const struct kp_mla *in,
                                      const struct kp_view *v, int32_t columns, uint32_t heads, uint32_t queries,
                                      uint32_t box_columns, struct kp_tensor_map *map);
/* Rows of kv: boxes of a row's 64 (or 32) columns, 128 (64) bytes swizzled. */
attn_status attn_cuda_mla_map_keys(const struct attn_core_device *dev, const struct kp_mla *in, uint32_t columns,
                                   struct kp_tensor_map *map);

/* The backward's (mla_bwd_sm100.c): all of *maps but `joined`; `ds`: the workspace for dS, of `tiles` tiles for each of
 * `ctas` CTAs. A pair of these has 128 rows, heads of `queries` neighbouring queries; or `heads` is 64, of one. */
struct kp_mla_bwd;
struct kp_mla_bwd_sm100;
attn_status attn_cuda_mla_bwd_maps(const struct attn_core_device *dev, const struct kp_mla_bwd *kp, uint64_t ds,
                                   int64_t ctas, int64_t tiles, int64_t queries, int32_t heads,
                                   struct kp_mla_bwd_sm100 *maps);
#endif
