/* SPDX-License-Identifier: MIT
 * Rows of keys on their way from memory into tiles of A, a little at a time during the products of the kernels on AMX
 * (mla_fwd_scores.c, mla_bwd_scores.c, mla_pv_dkv.c). */
#ifndef ATTN_CPU_AMX_SPARSE_ROW_COPY_H
#define ATTN_CPU_AMX_SPARSE_ROW_COPY_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/unroll.h"

#include <immintrin.h>

/* 32 rows become [depth / 16][32][16]: four rows, 32 columns at a time. Where the next four lie is prefetched. */
enum { COPY_ROWS = 4, COPY_MOST_DEPTH = 288 };
struct copying {
    const struct attn_mla_rows *rows;
    int64_t row, left, x, depth; /* groups of four rows that are left */
    float *to;
    const float *from[COPY_ROWS], *next[COPY_ROWS];
};
INLINE const float *copy_row(const struct attn_mla_rows *rows, int64_t r) {
    static const float none[COPY_MOST_DEPTH];
    return r < rows->n ? (const float *)(const void *)(rows->base + rows->key[r] * rows->stride) : none;
}
static __attribute__((noinline, unused)) void copy_group(struct copying *c) {
    c->row += COPY_ROWS, c->left--, c->x = 0;
    c->to += COPY_ROWS * 16;
    for (int i = 0; i < COPY_ROWS; i++) {
        c->from[i] = c->next[i];
        c->next[i] = copy_row(c->rows, c->row + COPY_ROWS + i);
    }
}
/* Rows from `row` on, if there are any. */
INLINE void copy_from(struct copying *c, float *tiles, const struct attn_mla_rows *rows, int64_t depth, int64_t row) {
    *c = (struct copying){.rows = rows, .row = row, .depth = depth, .to = tiles};
    c->left = row < rows->n ? ATTN_MLA_HEADS / COPY_ROWS : 0;
    for (int i = 0; i < COPY_ROWS; i++) {
        c->from[i] = copy_row(rows, row + i);
        c->next[i] = copy_row(rows, row + COPY_ROWS + i);
    }
}
INLINE void copy_unit(struct copying *c) {
    const int64_t x = c->x;
    float *to = c->to + x * ATTN_MLA_HEADS;
    UNROLL for (int i = 0; i < COPY_ROWS; i++) {
        __builtin_prefetch(c->next[i] + x);
        _mm512_storeu_si512(to + i * 16, _mm512_loadu_si512(c->from[i] + x));
    }
    c->x = x + 16;
    if (c->x == c->depth) copy_group(c);
}
static inline void copy_rest(struct copying *c) {
    while (c->left) copy_unit(c);
}

/* The same in place, during the last products that read the 32 rows before: when a step's tiles have been loaded, the
 * same columns of the next rows go where they were, which is in the first-level cache. */
struct coming {
    int any;
    const float *row[ATTN_MLA_HEADS];
};
static __attribute__((noinline, unused)) void coming_rows(struct coming *c, const struct attn_mla_rows *rows,
                                                          int64_t row) {
    c->any = row < rows->n;
    for (int i = 0; c->any && i < ATTN_MLA_HEADS; i++) c->row[i] = copy_row(rows, row + i);
}
/* Columns of step n, rows from .. from + 15. */
INLINE void copy_columns(const struct coming *c, float *tiles, int64_t n, int from) {
    float *to = tiles + n * ATTN_MLA_HEADS * 16 + from * 16;
    UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * 16, _mm512_loadu_si512(c->row[from + i] + n * 16));
}

/* Before that the same rows are prefetched, PREFETCH_AHEAD rows ahead, as far as the second-level cache: PREFETCH_ROWS
 * at a time, column by column, a few lines after each product. More rows at once, fewer, or the first-level cache cost
 * more; so does a prefetch during a single strip, whose products take less time than the lines. */
enum { PREFETCH_ROWS = 8, PREFETCH_AHEAD = 64 };
struct asking {
    int64_t n, column; /* of rows */
    const char *row[ATTN_MLA_HEADS];
};
/* A strip's share of the 32 rows, of which the first is `row`; after `rows`, filled up to a multiple of 32, are those
 * of the next block. */
static __attribute__((noinline, unused)) void prefetch_from(struct asking *a, const struct attn_mla_rows *rows,
                                                            const struct attn_mla_rows *next, int64_t row,
                                                            int64_t strip, int64_t strips) {
    const int64_t side = ATTN_MLA_HEADS, share = (side / PREFETCH_ROWS + strips - 1) / strips * PREFETCH_ROWS,
                  filled = (rows->n + side - 1) / side * side, first = row + strip * share;
    const int inside = row < rows->n;
    a->column = 0;
    a->n = strips > 1 && strip * share < side && (inside || row - filled < next->n) ? share : 0;
    for (int64_t i = 0; i < a->n; i++)
        a->row[i] = (const char *)(inside ? copy_row(rows, first + i) : copy_row(next, first - filled + i));
}
/* Half of the rows, h of two. */
INLINE void prefetch_half(struct asking *a, int h) {
    for (int64_t i = h * PREFETCH_ROWS / 2; i < a->n; i += PREFETCH_ROWS) {
        UNROLL for (int k = 0; k < PREFETCH_ROWS / 2; k++) _mm_prefetch(a->row[i + k] + a->column, _MM_HINT_T1);
    }
    if (h) a->column += 64;
}
#endif
