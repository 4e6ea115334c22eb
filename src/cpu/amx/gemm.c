/* SPDX-License-Identifier: MIT
 * Products on pairs of bf16 for processors with AMX: entries of attn_ukr_bf16_amx (ukr/bf16.h). All else is as with
 * AVX-512 BF16, avx512bf16/ukr.c.
 *
 * Pairs are what the tiles want: A with pairs along its rows, B as rows of pairs. A step multiplies 32 x 16 pairs by 16
 * pairs x 32 into four tiles of sums.
 *
 *                    B   tmm6 [16 pairs][16]  tmm7            8 tiles of 16 rows x 64 bytes = 8 KiB
 *                        +------------------+-----------+     4 loads for 4 products of 16 cycles: what is not in
 *     A  tmm4 [16][16    |  tmm0   sums     |   tmm1    |     the first-level cache must come in at 32 bytes a cycle
 *             pairs] ->  +------------------+-----------+     if either A or B stays there.
 *        tmm5 ->         |  tmm2            |   tmm3    |
 *                        +------------------+-----------+
 *
 * Whole tiles are loaded from and stored to where they are. At the rims (the last rows, columns, pairs) a tile goes
 * through a buffer that is filled up with 0: one shape serves all. A with pairs along its columns is transposed
 * first. */
#include "cpu/amx/tile.h"
#include "cpu/ukr/bf16.h"
#include "cpu/ukr/ukr.h"

#include <immintrin.h>

enum { SIDE = 16, LINE = 64, CELLS = SIDE * SIDE, TRANSPOSED = 128 /* pairs of A that are transposed at a time */ };

void attn_ukr_amx_begin(void) {
    static const struct tile_shapes shapes = {.palette = 1,
                                              .row_bytes = {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE},
                                              .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};
    tile_config(&shapes);
}
void attn_ukr_amx_end(void) { tile_release(); }

static inline __mmask16 first(int64_t n) { return (__mmask16)(n >= SIDE ? 0xffffu : (1u << n) - 1); }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A tile's worth of an operand: in place if all of it is there, else `to` with its corner of rows x cols and zeros. */
static inline const float *whole(const float *x, int64_t *ld, int64_t rows, int64_t cols, float *to) {
    if (rows >= SIDE && cols >= SIDE) return x;
    for (int64_t i = 0; i < SIDE; i++)
        _mm512_store_ps(to + i * SIDE, _mm512_maskz_loadu_ps(i < rows ? first(cols) : 0, x + (i < rows ? i : 0) * *ld));
    *ld = SIDE;
    return to;
}
/* Sums of a block that is whole, and of one that is not: those beyond it are 0. */
static void load_sums(const float *c, int64_t ldc) {
    tile_load(0, c, ldc * 4);
    tile_load(1, c + SIDE, ldc * 4);
    tile_load(2, c + SIDE * ldc, ldc * 4);
    tile_load(3, c + SIDE * ldc + SIDE, ldc * 4);
}
static void load_rim(int64_t m, int64_t n, const float *c, int64_t ldc) {
    _Alignas(64) float to[4 * CELLS];
    for (int t = 0; t < 4; t++) {
        const int64_t i = t / 2 * SIDE, j = t % 2 * SIDE;
        for (int64_t r = 0; r < SIDE; r++)
            _mm512_store_ps(to + (i + r) * 2 * SIDE + j,
                            i + r < m && j < n ? _mm512_maskz_loadu_ps(first(n - j), c + (i + r) * ldc + j)
                                               : _mm512_setzero_ps());
    }
    load_sums(to, 2 * SIDE);
}
static void store_sums(int64_t m, int64_t n, float *c, int64_t ldc) {
    _Alignas(64) float rim[4 * CELLS];
    const int in_place = m >= 2 * SIDE && n >= 2 * SIDE;
    float *to = in_place ? c : rim;
    const int64_t ld = in_place ? ldc : 2 * SIDE;
    tile_store(0, to, ld * 4);
    tile_store(1, to + SIDE, ld * 4);
    tile_store(2, to + SIDE * ld, ld * 4);
    tile_store(3, to + SIDE * ld + SIDE, ld * 4);
    for (int64_t i = 0; i < m && i < 2 * SIDE && !in_place; i++)
        for (int64_t j = 0; j < n && j < 2 * SIDE; j += SIDE)
            _mm512_mask_storeu_ps(c + i * ldc + j, first(n - j), _mm512_load_ps(rim + i * 2 * SIDE + j));
}

/* 32 x 32 of C, or its corner of m x n. An element is one chain that starts from what C holds, whatever the corner. */
static void block(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                  int64_t ldc, int accumulate) {
    _Alignas(64) float rim[4][CELLS];
    const int two_rows = m > SIDE, two_cols = n > SIDE, in_place = m >= 2 * SIDE && n >= 2 * SIDE;
    int64_t l = 0;
    if (!accumulate) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else if (in_place) {
        load_sums(c, ldc);
    } else {
        load_rim(m, n, c, ldc);
    }
    for (; in_place && l + SIDE <= k; l += SIDE) {
        tile_load(4, a + l, lda * 4);
        tile_load(6, b + l * ldb, ldb * 4);
        tile_dpbf16(0, 4, 6);
        tile_load(7, b + l * ldb + SIDE, ldb * 4);
        tile_dpbf16(1, 4, 7);
        tile_load(5, a + SIDE * lda + l, lda * 4);
        tile_dpbf16(2, 5, 6);
        tile_dpbf16(3, 5, 7);
    }
    for (; l < k; l += SIDE) {
        int64_t ld[4] = {lda, lda, ldb, ldb};
        const float *from = whole(a + l, &ld[0], m, k - l, rim[0]);
        tile_load(4, from, ld[0] * 4);
        from = whole(b + l * ldb, &ld[2], k - l, n, rim[2]);
        tile_load(6, from, ld[2] * 4);
        tile_dpbf16(0, 4, 6);
        if (two_cols) {
            from = whole(b + l * ldb + SIDE, &ld[3], k - l, n - SIDE, rim[3]);
            tile_load(7, from, ld[3] * 4);
            tile_dpbf16(1, 4, 7);
        }
        if (!two_rows) continue;
        from = whole(a + SIDE * lda + l, &ld[1], m - SIDE, k - l, rim[1]);
        tile_load(5, from, ld[1] * 4);
        tile_dpbf16(2, 5, 6);
        if (two_cols) tile_dpbf16(3, 5, 7);
    }
    store_sums(m, n, c, ldc);
}

/* Rows of A with unit columns. Columns outside, so that those of B stay in the first-level cache for all rows. */
static void gemm_rows(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                      float *c, int64_t ldc, int accumulate) {
    for (int64_t j = 0; j < n; j += 2 * SIDE)
        for (int64_t i = 0; i < m; i += 2 * SIDE)
            block(m - i, n - j, k, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
}

void attn_ukr_amx_gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                       int64_t ldb, float *c, int64_t ldc, int accumulate) {
    _Alignas(64) float transposed[2 * SIDE * TRANSPOSED];
    if (a_col == 1 || k == 0) {
        gemm_rows(m, n, k, a, a_row, b, ldb, c, ldc, accumulate);
        return;
    }
    for (int64_t i = 0; i < m; i += 2 * SIDE) {
        const int64_t rows = least(m - i, 2 * SIDE);
        for (int64_t l = 0; l < k; l += TRANSPOSED) {
            const int64_t pairs = least(k - l, TRANSPOSED);
            const float *from = a + i * a_row + l * a_col;
            if (a_row == 1) {
                attn_ukr_avx512.transpose_f32(transposed, TRANSPOSED, from, a_col, pairs, rows);
            } else {
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t x = 0; x < pairs; x++)
                        __builtin_memcpy(transposed + r * TRANSPOSED + x, from + r * a_row + x * a_col, sizeof *from);
            }
            gemm_rows(rows, n, pairs, transposed, TRANSPOSED, b + l * ldb, ldb, c + i * ldc, ldc, accumulate || l > 0);
        }
    }
}
