/* SPDX-License-Identifier: MIT
 * What the host files of the sparse MLA operators on CUDA share. */
#ifndef ATTN_CUDA_CUDA_MLA_H
#define ATTN_CUDA_CUDA_MLA_H
#include "cuda/cuda.h"
#include "cuda/cuda_sdpa.h"
#include "kernels/kparams_mla.h"

/* 1 and the reason if a length or factor is outside what device code holds. */
int attn_cuda_mla_refuse(const attn_problem *p, struct attn_text *why);
/* Fill the part of the parameters that the three operators share. */
void attn_cuda_mla_inputs(struct kp_mla *kp, const attn_problem *p, const attn_args *args);
#endif
