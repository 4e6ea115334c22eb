/* SPDX-License-Identifier: MIT
 * What the host files of the dense CUDA operators share; attn_cuda_refuse_image and the views serve the others, too. */
#ifndef ATTN_CUDA_CUDA_SDPA_H
#define ATTN_CUDA_CUDA_SDPA_H
#include "cuda/backend/cuda.h"
#include "kernels/params/sdpa.h"

/* Longest sequence and largest count that device code computes in 32 bits; a window side that hides nothing. */
enum { ATTN_CUDA_MAX_LENGTH = 1 << 28, ATTN_CUDA_FAR = 1 << 30 };

/* 1 and the reason if the image is missing from this build or wants more shared memory than the device has. */
int attn_cuda_refuse_image(const struct attn_core_device *dev, const char *symbol, int64_t shared_bytes,
                           struct attn_text *why);
/* 1 and the reason if a head dim is over the kernel's or a length or factor outside what device code holds. */
int attn_cuda_sdpa_refuse(const attn_problem *p, int64_t dim, int64_t dim_v, struct attn_text *why);

/* A tensor argument as device code reads it: chunk is the largest copy that address and strides are multiples of. */
struct kp_view attn_cuda_view(const attn_problem *p, const attn_args *args, int32_t role);
/* Device address; 0 = absent. */
uint64_t attn_cuda_address(const attn_tensor *t);

/* ATTN_FILL_PADDING (padding.c), nothing without it: 1 and the reason if this build cannot; the images; and the launch,
 * which reads the parameters of the operator's 16-bit kernels, of which only what the problem and its tensors say. */
int attn_cuda_padding_refuse(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why);
attn_status attn_cuda_padding_prepare(struct attn_core_device *dev, const attn_problem *p);
attn_status attn_cuda_padding(const struct attn_core_device *dev, const attn_problem *p, const void *params,
                              void *stream);

/* The kernel that merges key splits, of f64 or narrower shares. */
const char *attn_cuda_sdpa_merge_symbol(const struct attn_core_device *dev, int32_t dtype);
/* Its work after a forward with these parameters, which must live until it is queued. */
struct attn_cuda_work attn_cuda_sdpa_merge(const struct attn_core_device *dev, int32_t dtype,
                                           const struct kp_sdpa_fwd *kp);

/* Heads that are dealt together, longest tiles first: a number near `fit`, what the cache holds, a multiple of `unit`,
 * such that the last section is about as large as the others. Its longest tiles start when those before it end, so that
 * a section too small for the machine leaves most of it idle for as long as one of them takes. */
int64_t attn_cuda_section(int64_t heads, int64_t unit, int64_t fit);

/* What device code divides by d with: factor = ceil(2^shift / d) with 2^(shift - 31) the next power of two: factor d -
 * 2^shift < 2^(shift - 31), so that n times it is less than 2^shift for every n < 2^31 and the quotient is exact. */
struct kp_divisor attn_cuda_divisor(int64_t d);

/* Fill the part of the parameters that forward and backward share: first what the problem says, which a plan can keep,
 * then the tensors. */
void attn_cuda_sdpa_numbers(struct kp_sdpa *kp, const attn_problem *p);
void attn_cuda_sdpa_tensors(struct kp_sdpa *kp, const attn_problem *p, const attn_args *args);
void attn_cuda_sdpa_inputs(struct kp_sdpa *kp, const attn_problem *p, const attn_args *args); /* both */
/* What only the forward writes: out, lse, lse_rounded, max_logits, and how exact its maxima are. */
void attn_cuda_sdpa_results(struct kp_sdpa_fwd *kp, const attn_problem *p, const attn_args *args);
/* What only the backward reads and writes: out, lse, dout, dlse and the gradients. */
void attn_cuda_sdpa_gradients(struct kp_sdpa_bwd *kp, const attn_problem *p, const attn_args *args);
#endif
