/* SPDX-License-Identifier: MIT
 * P and dS of dense attention for a few query rows and keys: what every gradient of the reference is summed from. */
#ifndef ATTN_CPU_REF_GRAD_H
#define ATTN_CPU_REF_GRAD_H
#include "cpu/ref/score.h"

/* What all tasks of a backward read, and the pieces of a worker's scratch (offsets in doubles). */
struct attn_cpu_ref_bwd {
    struct attn_cpu_ref_dense d;
    struct attn_view out, lse, dout, dlse, dq, dk, dv, dmask;
    struct {
        int64_t q, dout, k, v, s, p, ds, chain, dq, dk, dv, sum, end;
    } offsets;
};
void attn_cpu_ref_bwd_init(struct attn_cpu_ref_bwd *w, const attn_problem *p, const attn_args *args);

/* A tile: ATTN_REF_ROWS query rows by ATTN_REF_KEYS keys of one head. All in double; s, p, ds and chain are
 * [rows][ATTN_REF_KEYS]. s = -inf marks pairs that contribute nothing: hidden keys, rows of empty lse. */
struct attn_cpu_ref_tile {
    struct attn_cpu_ref_block block;
    struct attn_cpu_ref_grad row[ATTN_REF_ROWS];
    int64_t j0, n_keys;
    double *q, *dout, *k, *v;
    double *s;
    double *p;     /* softmax */
    double *ds;    /* gradient of the score after step 4: of the mask cell */
    double *chain; /* derivative of step 2: ds * chain is the gradient of scale * (q . k) */
};
void attn_cpu_ref_tile_init(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w, double *scratch);
/* Rows and keys may be loaded in any order; tile_compute needs both. load_keys leaves the block's head alone. */
void attn_cpu_ref_tile_load_rows(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w,
                                 const struct attn_core_seq *seq, int64_t b, int64_t h, int64_t i0, int64_t rows);
void attn_cpu_ref_tile_load_keys(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w,
                                 const struct attn_core_seq *seq, int64_t b, int64_t head_k, int64_t j0, int64_t j1);
void attn_cpu_ref_tile_compute(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w);

/* Gradients of mask, ALiBi slopes and sinks (sdpa_bias.c). */
void attn_cpu_ref_bias_grads(const struct attn_core_device *dev, const struct attn_cpu_ref_bwd *w);
#endif
