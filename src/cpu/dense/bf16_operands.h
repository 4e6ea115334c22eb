/* SPDX-License-Identifier: MIT
 * Dense attention on 16-bit operands that are not widened: pairs of bf16 as ukr/bf16.h wants them, and rows as they are
 * in memory, from tensors of any form. Shared by the forward and the backward driver. */
#ifndef ATTN_CPU_DENSE_BF16_OPERANDS_H
#define ATTN_CPU_DENSE_BF16_OPERANDS_H
#include "cpu/dense/sdpa.h"

/* Keys (or values) j0 .. j0+n as 16-bit rows: in place if the tensor allows it and nonfinite is NULL, else in dst with
 * rows ld apart. even: rows must end in whole pairs. Rows of pages outside the pool become 0. With nonfinite, values
 * that are not finite become 0 and move to nonfinite->raw (rows of f32, ld_raw apart). Returns the rows, *ld_out
 * theirs. */
const uint16_t *attn_cpu_half_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view,
                                   const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,
                                   int64_t width, int even, uint16_t *dst, int64_t ld,
                                   struct attn_cpu_sdpa_nonfinite *nonfinite, int64_t ld_raw, int64_t *ld_out);

/* A row of n values as pairs along n, the last one filled up with 0. */
void attn_cpu_bf16_row(float *dst, const void *src, int64_t n);

/* Keys j0 .. j0+n as panels of pairs along the width, [ceil(n/panel)][ceil(width/2)][panel], the last one filled up
 * with 0. tmp holds a panel of keys. */
void attn_cpu_bf16_panels(const struct attn_cpu_sdpa *s, const struct attn_view *view, const struct attn_core_seq *seq,
                          int64_t b, int64_t hk, int64_t j0, int64_t n, int64_t width, int64_t panel, float *dst,
                          float *tmp);

/* Rows r and r + 1 (NULL: zeros) of an operand as one row of pairs. With nonfinite, values that are not finite become 0
 * and move to nonfinite->raw (rows of f32, ld_raw apart); the caller has cleared nonfinite->any and nonfinite->row.
 * Returns 0 if there are such values. */
int attn_cpu_bf16_zip(const struct attn_cpu_sdpa *s, const void *even, const void *odd, int64_t r, int64_t width,
                      float *dst, struct attn_cpu_sdpa_nonfinite *nonfinite, int64_t ld_raw);

/* bf16->exp2_f32, but a visible key whose probability underflows gets the smallest number instead of 0 (see
 * attn_cpu_sdpa_exp_lifted): where values are nonfinite, the other elements keep the bits that bf16->exp2 gives. */
float attn_cpu_bf16_exp_lifted(const struct attn_cpu_sdpa *s, float *x, int64_t n, float factor, float max,
                               const uint8_t *has_nonfinite, uint8_t *hidden);

/* Keys (or values) j0 .. j0+n as pairs along the keys, [ceil(n/2)][ld]; an odd last one is paired with 0. Values
 * that are not finite become 0 and move to nonfinite->raw (rows of f32, ld apart). */
void attn_cpu_bf16_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view, const struct attn_core_seq *seq,
                        int64_t b, int64_t hk, int64_t j0, int64_t n, int64_t width, float *dst, int64_t ld,
                        struct attn_cpu_sdpa_nonfinite *nonfinite);
/* The same of f16 in two and of f32 in three terms of bf16, each 16 ld after the one before. */
void attn_cpu_bf16_split_rows(const struct attn_cpu_sdpa *s, const struct attn_view *view,
                              const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,
                              int64_t width, float *dst, int64_t ld, struct attn_cpu_sdpa_nonfinite *nonfinite);
#endif
