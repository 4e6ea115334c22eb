/* SPDX-License-Identifier: MIT
 * Products of the sparse operators with rows of bf16 where they are in memory, one pointer for each: nothing is
 * gathered, and the rows of the next block are prefetched during the products. Pairs as in bf16.h; depths count
 * pairs. Every element is one chain in the order of what is summed, whatever the tile. */
#ifndef ATTN_CPU_UKR_SPARSE_H
#define ATTN_CPU_UKR_SPARSE_H
#include <stdint.h>

enum {
    ATTN_SPARSE_ROWS = 12,  /* of a tile of scores: as many pointers as there are registers for */
    ATTN_SPARSE_SUM = 13,   /* heads of a tile of sums */
    ATTN_SPARSE_PANEL = 32, /* heads of a panel, or 16 if no more are left */
    ATTN_SPARSE_DEPTH = 16  /* depths are multiples of it */
};

/* Lines of rows to come that are still to be prefetched. */
struct attn_sparse_ahead {
    const uint16_t *const *row;
    int64_t n, lines; /* rows, and lines of each */
    int64_t line;     /* of row[0], to be prefetched next */
    int64_t burst;    /* lines for every 16 pairs of depth of a tile of scores, or for a tile of sums */
};

struct attn_ukr_sparse {
    /* s[n][heads] = rows * transposed, before scaling. n is rounded up to ATTN_SPARSE_ROWS: row pointers past n may be
     * of any row, and that many rows of s are written. heads is rounded up to 16, with zeros in transposed.
     * transposed: panels [heads / 32][depth][32 or 16]. */
    void (*scores)(int64_t n, int64_t heads, int64_t depth, const uint16_t *const *row, const float *transposed,
                   float *s, int64_t ld_s, struct attn_sparse_ahead *ahead);
    /* c[heads][columns] (+)= a^T rows: a[pairs][lda] has pairs of rows, row[2 * pairs]; columns is a multiple of 32. */
    void (*sum)(int64_t heads, int64_t columns, int64_t pairs, const float *a, int64_t lda, const uint16_t *const *row,
                float *c, int64_t ldc, int accumulate, struct attn_sparse_ahead *ahead);
    /* to[r][columns from .. end - 1] += x[r] q, and for columns before `narrow` then + x[r] after it dout, one chain:
     * x[n][ldx] has `depth` pairs for q and, ldx / 2 on, as many for dout. q and dout: panels of 32 columns, `panel`
     * elements apart, [depth][32], from column 0 on. from, end, narrow: multiples of 32. Rows of `to` may be the same
     * and are added in order. */
    void (*add)(int64_t n, int64_t from, int64_t end, int64_t narrow, int64_t depth, const float *x, int64_t ldx,
                const float *q, const float *dout, int64_t panel, float *const *to);
    /* Two rows of n values, n a multiple of 32, as a row of such panels: pairs (even[j], odd[j]); odd NULL: zeros. */
    void (*zip)(float *dst, int64_t panel, const uint16_t *even, const uint16_t *odd, int64_t n);
};
extern const struct attn_ukr_sparse attn_ukr_sparse_avx512bf16;
#endif
