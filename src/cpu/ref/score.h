/* SPDX-License-Identifier: MIT
 * Scores of dense attention for the reference kernels: steps 1 to 5 of attn_problem, with dense, packed and paged keys.
 */
#ifndef ATTN_CPU_REF_SCORE_H
#define ATTN_CPU_REF_SCORE_H
#include "cpu/ref/ref.h"

enum { ATTN_REF_ROWS = 16, ATTN_REF_KEYS = ATTN_REF_SUM }; /* query rows and keys that are in double at a time */

/* What all tasks of one execution read. */
struct attn_cpu_ref_dense {
    const attn_problem *p;
    const attn_args *args;
    struct attn_view q, k, v, mask;
    int64_t group; /* query heads per key head */
    int falls;     /* attn_core_offsets_fall */
};
void attn_cpu_ref_dense_init(struct attn_cpu_ref_dense *d, const attn_problem *p, const attn_args *args);
static inline void attn_cpu_ref_seq(const struct attn_cpu_ref_dense *d, int64_t b, struct attn_core_seq *out) {
    attn_core_seq_get(d->p, d->args, d->falls, b, out);
}

/* Up to ATTN_REF_ROWS consecutive query rows of one head. */
struct attn_cpu_ref_block {
    struct attn_core_seq seq;
    int64_t b, h, i0, n;
    int64_t j0, j1;                               /* keys that at least one row may see */
    int64_t lo[ATTN_REF_ROWS], hi[ATTN_REF_ROWS]; /* keys that rule 5 leaves to each row */
    double slope;
};
/* Rows [i0, i0 + rows) as far as the sequence has them: n = 0 if it has none. seq is read by the caller, once. */
void attn_cpu_ref_block_init(struct attn_cpu_ref_block *block, const struct attn_cpu_ref_dense *d,
                             const struct attn_core_seq *seq, int64_t b, int64_t h, int64_t i0, int64_t rows);

/* Rows of q, or of another tensor shaped like q, as double: dst[r * width]. */
void attn_cpu_ref_load_rows(double *dst, const struct attn_view *view, const struct attn_cpu_ref_block *block,
                            int64_t width);
/* Rows j0 .. j0+n of k or v of a query head's key head. A row without a page is filled with 0; its scores are hidden.
 */
void attn_cpu_ref_load_keys(double *dst, const struct attn_cpu_ref_dense *d, const struct attn_view *view,
                            const struct attn_core_seq *seq, int64_t b, int64_t head_k, int64_t j0, int64_t n,
                            int64_t width);

/* s[r*ld + j - j0] for the block's rows and keys [j0, j0 + n), -inf = hidden. chain (may be NULL, same shape) receives
 * the derivative of step 2, 1 - tanh^2. q and k are rows in double. */
void attn_cpu_ref_scores(const struct attn_cpu_ref_dense *d, const struct attn_cpu_ref_block *block, const double *q,
                         const double *k, int64_t j0, int64_t n, double *s, int64_t ld, double *chain);

/* The ALiBi term's factor of the slope at (i, j): j - (i + off), or minus its magnitude. */
double attn_cpu_ref_alibi_factor(const attn_problem *p, const struct attn_core_seq *seq, int64_t i, int64_t j);
#endif
