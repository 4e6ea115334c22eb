/* SPDX-License-Identifier: MIT
 * A dout of one number (core/dout.h) on CUDA: its row lies in the workspace, after what the kernels need there. */
#ifndef ATTN_CUDA_DENSE_DOUT_H
#define ATTN_CUDA_DENSE_DOUT_H
#include "core/dout.h"
#include "cuda/backend/cuda.h"

/* 1 and the reason if this build has no image for it. */
int attn_cuda_dout_refuse(const struct attn_core_device *dev, struct attn_text *why);
attn_status attn_cuda_dout_prepare(struct attn_core_device *dev);
/* Where dout is one number, queues what writes its row at byte `offset` of the workspace, a multiple of 64, and sets
 * *args to args with the row, made in *room. Else does nothing. */
attn_status attn_cuda_dout(const struct attn_core_device *dev, uint64_t offset, const attn_args **args,
                           struct attn_core_dout *room);
#endif
