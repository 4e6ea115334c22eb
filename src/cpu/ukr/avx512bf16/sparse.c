/* SPDX-License-Identifier: MIT
 * Microkernels of ukr/sparse.h. Scores: 12 rows by 32, 16 or 8 heads, pairs of the rows are broadcast. Sums over rows:
 * up to 13 heads by 32 columns, two rows become pairs in registers. Sums over heads: up to 14 rows by 32 columns. */
#include "cpu/ukr/sparse.h"

#include "cpu/vec/avx512bf16.h"
#include "cpu/vec/unroll.h"

#include <string.h>

enum { LANES = 16, ROWS = ATTN_SPARSE_ROWS, SUM_HEADS = ATTN_SPARSE_SUM, ADD_ROWS = 14, LINE = 64 };

/* A broadcast of an integer: that of a float takes a third of a product's time more. */
INLINE v32 set_pair(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_castsi512_ps(_mm512_set1_epi32(x));
}

INLINE void prefetch(struct attn_sparse_ahead *a, int64_t n) {
    for (; n > 0 && a->n > 0; n--) {
        __builtin_prefetch((const char *)*a->row + a->line * LINE, 0, 2);
        if (++a->line == a->lines) a->line = 0, a->row++, a->n--;
    }
}

/* A broadcast as an instruction of its own takes 0.4 cycles of a product that is its only use; as part of the product
 * it takes nothing. Compilers do not make it part of this one. */
typedef struct __attribute__((packed)) {
    int32_t x;
} pair_in_memory;
INLINE v32 madd_1to16(v32 c, v32 b, const uint16_t *p) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*(const pair_in_memory *)(const void *)p));
    return c;
}
INLINE __m256 madd_1to8(__m256 c, __m256 b, const uint16_t *p) {
    __asm__("vdpbf16ps %2%{1to8%}, %1, %0" : "+v"(c) : "v"(b), "m"(*(const pair_in_memory *)(const void *)p));
    return c;
}

/* heads: 32, 16 or 8, of a panel `ldb` wide */
INLINE void score_tile(int heads, int64_t ldb, int64_t depth, const uint16_t *const *row, const float *b, float *s,
                       int64_t ld_s, struct attn_sparse_ahead *ahead) {
    v32 c[ROWS][2];
    __m256 half[ROWS];
    const uint16_t *r[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++) {
        r[i] = row[i];
        c[i][0] = c[i][1] = v32_set(0);
        half[i] = _mm256_setzero_ps();
    }
    for (int64_t l = 0; l < depth; l += ATTN_SPARSE_DEPTH, b += ATTN_SPARSE_DEPTH * ldb) {
        prefetch(ahead, ahead->burst);
        UNROLL for (int k = 0; k < ATTN_SPARSE_DEPTH; k++) {
            const float *y = b + k * ldb;
            if (heads == 8) {
                const __m256 z = _mm256_loadu_ps(y);
                UNROLL for (int i = 0; i < ROWS; i++) half[i] = madd_1to8(half[i], z, r[i] + 2 * k);
            } else if (heads == 16) {
                const v32 z = v32_load(y);
                UNROLL for (int i = 0; i < ROWS; i++) c[i][0] = madd_1to16(c[i][0], z, r[i] + 2 * k);
            } else {
                const v32 z[2] = {v32_load(y), v32_load(y + LANES)};
                UNROLL for (int i = 0; i < ROWS; i++) {
                    const v32 x = set_pair(r[i] + 2 * k);
                    c[i][0] = madd_pair(x, z[0], c[i][0]);
                    c[i][1] = madd_pair(x, z[1], c[i][1]);
                }
            }
        }
        UNROLL for (int i = 0; i < ROWS; i++) {
            r[i] += 2 * ATTN_SPARSE_DEPTH;
            __asm__("" : "+r"(r[i])); /* one pointer each, with offsets that are constants */
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
        v32_store(s + i * ld_s, heads == 8 ? _mm512_zextps256_ps512(half[i]) : c[i][0]);
        if (heads == 32) v32_store(s + i * ld_s + LANES, c[i][1]);
    }
}
#define SCORE(heads, ldb)                                                                                              \
    static void score_##heads##_of_##ldb(int64_t depth, const uint16_t *const *row, const float *b, float *s,          \
                                         int64_t ld_s, struct attn_sparse_ahead *ahead) {                              \
        score_tile(heads, ldb, depth, row, b, s, ld_s, ahead);                                                         \
    }
SCORE(32, 32)
SCORE(16, 32)
SCORE(8, 32)
SCORE(16, 16)
SCORE(8, 16)
/* Rows outside: each comes from memory once, and its lines stay in the first-level cache for all panels. */
static void scores(int64_t n, int64_t heads, int64_t depth, const uint16_t *const *row, const float *transposed,
                   float *s, int64_t ld_s, struct attn_sparse_ahead *ahead) {
    for (int64_t r = 0; r < n; r += ROWS)
        for (int64_t h = 0; h < heads; h += ATTN_SPARSE_PANEL) {
            const int64_t left = heads - h;
            const float *b = transposed + h * depth;
            float *to = s + r * ld_s + h;
            if (left > 24) {
                score_32_of_32(depth, row + r, b, to, ld_s, ahead);
            } else if (left > 16) {
                score_16_of_32(depth, row + r, b, to, ld_s, ahead);
                score_8_of_32(depth, row + r, b + LANES, to + LANES, ld_s, ahead);
            } else if (left > 8) {
                score_16_of_16(depth, row + r, b, to, ld_s, ahead);
            } else {
                score_8_of_16(depth, row + r, b, to, ld_s, ahead);
            }
        }
}

/* Rows of the next tile of at most `most`: n are left, in tiles as equal as can be. */
INLINE int64_t share(int64_t n, int64_t most) {
    const int64_t tiles = (n + most - 1) / most;
    return (n + tiles - 1) / tiles;
}

INLINE void sum_tile(int heads, int64_t pairs, const float *a, int64_t lda, const uint16_t *const *row, int64_t column,
                     float *c, int64_t ldc, int accumulate, struct attn_sparse_ahead *ahead) {
    v32 s[SUM_HEADS][2];
    UNROLL for (int i = 0; i < heads; i++) s[i][0] = s[i][1] = v32_set(0);
    for (int64_t l = 0; l < pairs; l++, a += lda) {
        v32 y[2];
        pair_rows(_mm512_loadu_si512(row[2 * l] + column), _mm512_loadu_si512(row[2 * l + 1] + column), y);
        if (l < ahead->burst) prefetch(ahead, 1);
        UNROLL for (int i = 0; i < heads; i++) {
            const v32 x = set_pair(a + i);
            s[i][0] = madd_pair(x, y[0], s[i][0]);
            s[i][1] = madd_pair(x, y[1], s[i][1]);
        }
    }
    UNROLL for (int i = 0; i < heads; i++, c += ldc) {
        UNROLL for (int v = 0; v < 2; v++) {
            if (accumulate) s[i][v] = v32_load(c + v * LANES) + s[i][v];
            v32_store(c + v * LANES, s[i][v]);
        }
    }
}
#define CASES_13(CASE)                                                                                                 \
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
#define SUM_CASE(n)                                                                                                    \
    case n: sum_tile(n, pairs, a, lda, row, column, c, ldc, accumulate, ahead); return;
static void sum_heads(int64_t heads, int64_t pairs, const float *a, int64_t lda, const uint16_t *const *row,
                      int64_t column, float *c, int64_t ldc, int accumulate, struct attn_sparse_ahead *ahead) {
    switch (heads) { CASES_13(SUM_CASE) }
}
/* Columns outside: a line of each row stays in the first-level cache for all heads. */
static void sum(int64_t heads, int64_t columns, int64_t pairs, const float *a, int64_t lda, const uint16_t *const *row,
                float *c, int64_t ldc, int accumulate, struct attn_sparse_ahead *ahead) {
    for (int64_t column = 0; column < columns; column += 2 * LANES)
        for (int64_t h = 0, n; h < heads; h += n) {
            n = share(heads - h, SUM_HEADS);
            sum_heads(n, pairs, a + h, lda, row, column, c + h * ldc + column, ldc, accumulate, ahead);
        }
}

INLINE void add_steps(int rows, int64_t depth, const float *x, int64_t ldx, const float *b, const float *next,
                      v32 (*s)[2]) {
    /* one pointer for every five rows: see ukr/gemm_tpl.h */
    const float *base[3];
    UNROLL for (int g = 0; g * 5 < rows; g++) {
        base[g] = x + g * 5 * ldx;
        __asm__("" : "+r"(base[g]));
    }
    for (int64_t l = 0; l < depth; l++, b += 2 * LANES, next += LANES) {
        const v32 y[2] = {v32_load(b), v32_load(b + LANES)};
        __builtin_prefetch(next);
        UNROLL for (int i = 0; i < rows; i++) {
            const v32 w = set_pair(base[i / 5] + i % 5 * ldx);
            s[i][0] = madd_pair(w, y[0], s[i][0]);
            s[i][1] = madd_pair(w, y[1], s[i][1]);
        }
        UNROLL for (int g = 0; g * 5 < rows; g++) base[g]++;
    }
}
/* dout: NULL where there is none. The next rows of x are prefetched, a line for each step: no more than there are. */
INLINE void add_tile(int rows, int64_t column, int64_t depth, const float *x, int64_t ldx, const float *q,
                     const float *dout, float *const *to) {
    const float *next = x + rows * ldx;
    v32 s[ADD_ROWS][2];
    UNROLL for (int i = 0; i < rows; i++) {
        __builtin_prefetch(to[i] + column);
        __builtin_prefetch(to[i] + column + LANES);
        s[i][0] = s[i][1] = v32_set(0);
    }
    add_steps(rows, depth, x, ldx, q, next, s);
    if (dout) add_steps(rows, depth, x + ldx / 2, ldx, dout, next + depth * LANES, s);
    UNROLL for (int i = 0; i < rows; i++) {
        float *c = to[i] + column;
        UNROLL for (int v = 0; v < 2; v++) v32_store(c + v * LANES, v32_load(c + v * LANES) + s[i][v]);
        __asm__("" ::: "memory"); /* the next row may be the same */
    }
}
#define ADD_CASE(n)                                                                                                    \
    case n: add_tile(n, column, depth, x, ldx, q, dout, to); return;
static void add_rows(int64_t rows, int64_t column, int64_t depth, const float *x, int64_t ldx, const float *q,
                     const float *dout, float *const *to) {
    switch (rows) { CASES_13(ADD_CASE) ADD_CASE(14) }
}
static void add(int64_t n, int64_t from, int64_t end, int64_t narrow, int64_t depth, const float *x, int64_t ldx,
                const float *q, const float *dout, int64_t panel, float *const *to) {
    for (int64_t column = from; column < end; column += ATTN_SPARSE_PANEL) {
        const int64_t skip = column / ATTN_SPARSE_PANEL * panel;
        for (int64_t r = 0, rows; r < n; r += rows) {
            rows = share(n - r, ADD_ROWS);
            add_rows(rows, column, depth, x + r * ldx, ldx, q + skip, column < narrow ? dout + skip : NULL, to + r);
        }
    }
}

static void zip(float *dst, int64_t panel, const uint16_t *even, const uint16_t *odd, int64_t n) {
    for (int64_t j = 0; j < n; j += 2 * LANES, dst += panel) {
        v32 y[2];
        pair_rows(_mm512_loadu_si512(even + j), odd ? _mm512_loadu_si512(odd + j) : _mm512_setzero_si512(), y);
        v32_store(dst, y[0]);
        v32_store(dst + LANES, y[1]);
    }
}

const struct attn_ukr_sparse attn_ukr_sparse_avx512bf16 = {.scores = scores, .sum = sum, .add = add, .zip = zip};
