/* SPDX-License-Identifier: MIT
 * What the host files of the sparse MLA operators on CUDA share. */
#ifndef ATTN_CUDA_CUDA_MLA_H
#define ATTN_CUDA_CUDA_MLA_H
#include "cuda/backend/cuda.h"
#include "cuda/dense/sdpa.h"
#include "kernels/params/mla.h"

/* 1 and the reason if the problem's head dim is not the one that a variant is made for. */
int attn_cuda_mla_refuse_dim(const attn_problem *p, int32_t dim, struct attn_text *why);
/* 1 and the reason if a length or factor is outside what device code holds. */
int attn_cuda_mla_refuse(const attn_problem *p, struct attn_text *why);
/* Fill the part of the parameters that the three operators share. */
void attn_cuda_mla_inputs(struct kp_mla *kp, const attn_problem *p, const attn_args *args);
/* The same of a backward, and its other tensors. */
void attn_cuda_mla_bwd_tensors(struct kp_mla_bwd *kp, const attn_problem *p, const attn_args *args);
/* CTAs of a kernel on mma.sync that the device holds at once. */
int64_t attn_cuda_mla_capacity(const struct kp_mla_config *c, int64_t shared_bytes, const struct attn_cuda_limits *l);
/* Splits of `tiles` key tiles by which the slowest CTA is done soonest: `work_tiles` CTAs without one, at most `most`
 * splits; `start` and `merge` are what a CTA's start and end, and a merge of two, cost in key tiles. */
int64_t attn_cuda_mla_splits(int64_t work_tiles, int64_t tiles, int64_t capacity, int64_t most, double start,
                             double merge);
#endif
