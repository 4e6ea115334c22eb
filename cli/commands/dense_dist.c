/* SPDX-License-Identifier: MIT
 * Attention probabilities of a dense problem through an identity value matrix. */
#include "commands/dense_dist.h"

#include <stdlib.h>

attn_status attn_cli_dense_probs(attn_ctx *ctx, const attn_problem *problem, const attn_tensor *q, const attn_tensor *k,
                                 float *probs) {
    attn_problem p = *problem;
    p.dim_v = p.seq_k;
    attn_status status = attn_problem_check(&p);
    if (status) return status;
    float *identity = calloc((size_t)(p.seq_k * p.seq_k) + 1, sizeof *identity);
    if (!identity) return ATTN_E_MEMORY;
    for (int64_t j = 0; j < p.seq_k; j++) identity[j * p.seq_k + j] = 1;
    attn_tensor v, out;
    const int64_t v_shape[] = {1, p.heads_k, p.seq_k, p.seq_k}, out_shape[] = {1, p.heads_q, p.seq_q, p.seq_k};
    status = attn_tensor_contiguous(&v, identity, ATTN_F32, 4, v_shape);
    v.strides[1] = 0; /* every head reads the same identity */
    v.bytes = (uint64_t)(p.seq_k * p.seq_k) * sizeof *identity;
    if (!status) status = attn_tensor_contiguous(&out, probs, ATTN_F32, 4, out_shape);
    attn_args a = ATTN_ARGS_INIT;
    a.q = q;
    a.k = k;
    a.v = &v;
    a.out = &out;
    if (!status) status = attn_run(ctx, ATTN_DEVICE_CPU, &p, &a);
    free(identity);
    return status;
}

void attn_cli_dense_reduce(const float *probs, int64_t heads, int64_t sq, int64_t sk, int64_t head, int mean,
                           double *out) {
    for (int64_t i = 0; i < sq * sk; i++) {
        double sum = 0;
        for (int64_t h = 0; h < heads; h++)
            if (head < 0 || h == head) sum += (double)probs[h * sq * sk + i];
        out[i] = mean && head < 0 && heads ? sum / (double)heads : sum;
    }
}
