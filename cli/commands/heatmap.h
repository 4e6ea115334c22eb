/* SPDX-License-Identifier: MIT
 * A matrix of non-negative numbers as a PNG picture with labels, drawn with cairo. */
#ifndef ATTN_CLI_HEATMAP_H
#define ATTN_CLI_HEATMAP_H
#include <stdint.h>

struct attn_cli_heatmap {
    const char *title;                    /* first line, may be NULL                                        */
    const char *row_title, *column_title; /* what the axes are: "query token", "key token"; may be NULL     */
    const char *const *row_labels;        /* one per row, or NULL: numbers                                  */
    const char *const *column_labels;     /* one per column, or NULL: numbers                               */
    int64_t rows, columns;
    const double *values;    /* [rows, columns], row-major; NaN is drawn red, negatives as 0    */
    const char *value_title; /* what the colours mean, beside the scale                        */
};

/* Returns 0, or -1 with one sentence in error[error_bytes]. Matrices with an axis over 1,600 are reduced by taking the
 * largest value of each group of cells, which the picture says. */
int attn_cli_heatmap_write(const struct attn_cli_heatmap *map, const char *path, char *error, int error_bytes);

/* The least of 1, 2, 5, 10, 20, 50, ... that is `least` or more: from one number on an axis to the next. */
int64_t attn_cli_round_step(int64_t least);
#endif
