/* SPDX-License-Identifier: MIT
 * The plain backward in whole strips and blocks, where attn_ukr_bf16.bwd_tile serves (AMX): see bwd_amx.c. */
#ifndef ATTN_CPU_DENSE_BWD_AMX_H
#define ATTN_CPU_DENSE_BWD_AMX_H
#include "cpu/dense/bwd.h"

/* A worker's scratch and the sizes; called at the end of lay_out, which has chosen tile and rows with it. */
int attn_cpu_bwd_amx_serves(const struct attn_cpu_bwd *w);
void attn_cpu_bwd_amx_lay_out(struct attn_cpu_bwd *w, int32_t threads);
/* Whether a row with gradients may go this way. */
int attn_cpu_bwd_amx_simple(const struct attn_cpu_bwd *w, const struct attn_cpu_bwd_row *stat, const void *q,
                            const void *dout);
/* Phase: task = block of keys of a (batch, key head); notes whether all of it is finite. */
void attn_cpu_bwd_amx_look(struct attn_cpu_bwd *w, int64_t task, char *scratch);
/* dk and dv of the keys of a block, and what they add to dq (NULL, or every flat row). Returns 0, and nothing is done,
 * if a value is not finite or rows want more than the exponential: the tiles of bwd_tile.h give the same bits (of
 * pairs; of f32 and f16 they take all of a (batch, key head) then). */
int attn_cpu_bwd_amx_keys(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                          int64_t block, float *dq, char *scratch);
/* dq of w->rows flat rows from f0 on. */
int attn_cpu_bwd_amx_queries(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                             int64_t f0, float *dq, char *scratch);
#endif
