/* SPDX-License-Identifier: MIT
 * Attention probabilities of a dense problem, for pictures: softmax(scale * Q K^T + ...) itself, head by head. */
#ifndef ATTN_CLI_DENSE_DIST_H
#define ATTN_CLI_DENSE_DIST_H
#include "attn.h"

/* P = out with the identity as value matrix: out_i = sum_j P_ij e_j. So this works for SK <= 512 (the widest value row)
 * and needs no operator of its own. `problem` is an sdpa_fwd problem of batch 1 and dtype f32; q and k are its tensors;
 * its dim_v is replaced by SK. probs receives [HQ, SQ, SK] floats. */
attn_status attn_cli_dense_probs(attn_ctx *ctx, const attn_problem *problem, const attn_tensor *q, const attn_tensor *k,
                                 float *probs);

/* Sum, mean or one head of probs as doubles [SQ, SK]: head >= 0 takes that head, else all heads; mean divides by HQ. */
void attn_cli_dense_reduce(const float *probs, int64_t heads, int64_t sq, int64_t sk, int64_t head, int mean,
                           double *out);
#endif
