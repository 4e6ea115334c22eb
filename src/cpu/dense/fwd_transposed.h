/* SPDX-License-Identifier: MIT
 * Another way to do a task of the dense forward: see fwd_transposed.c. */
#ifndef ATTN_CPU_DENSE_FWD_TRANSPOSED_H
#define ATTN_CPU_DENSE_FWD_TRANSPOSED_H
#include "cpu/dense/fwd.h"

/* Whether it is for this problem; of the geometry only what depends on the problem alone is looked at. */
int attn_cpu_transposed_serves(const struct attn_cpu_fwd *f);
/* Its own block sizes, task grid and scratch in place of those of f. */
void attn_cpu_transposed_lay_out(struct attn_cpu_fwd *f, int32_t threads);
/* A task of a pair (batch, key head); the first ones are the longest of a causal problem. */
void attn_cpu_transposed_task(const struct attn_cpu_fwd *f, int64_t head, int64_t task, char *scratch);
#endif
