/* SPDX-License-Identifier: MIT
 * What scores of a strip of 32 flat rows need, for the kernels in which queries lie across the lanes. */
#ifndef ATTN_CPU_DENSE_SCORE_MOD_ROWS_H
#define ATTN_CPU_DENSE_SCORE_MOD_ROWS_H
#include "cpu/dense/sdpa.h"

enum {
    ATTN_CPU_STRIP_STEP = ATTN_FWD_STEP,
    /* masks of a step's keys, row by row, and one as it is in memory */
    ATTN_CPU_STRIP_MASK_BYTES = (ATTN_FWD_ROWS + 1) * ATTN_CPU_STRIP_STEP * (int)sizeof(float)
};

/* ATTN_UKR_MASK_.. of the problem: masks with a cell for each key of a row are read as they are. */
int attn_cpu_strip_mask(const struct attn_cpu_sdpa *s);
/* What makes scores of products, of n rows and keys from j0 on; bias and bits are the caller's. */
void attn_cpu_strip_score(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row, int64_t n, int64_t j0,
                          struct attn_fwd_score_mod *score);
/* bias [keys, rounded up to ATTN_CPU_STRIP_STEP][32]: what masks add to the scores of n rows, as far as they see keys.
 * tmp: ATTN_CPU_STRIP_MASK_BYTES. */
void attn_cpu_strip_masks(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row, int64_t n, int64_t j0,
                          int64_t keys, float *bias, float *tmp);
#endif
