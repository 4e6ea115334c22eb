/* SPDX-License-Identifier: MIT
 * Register-tiled matrix products of struct attn_ukr, written once over the vector layer and included for f32 and f64.
 * The includer defines, besides what ukr_row_tpl.h needs, MR (rows of the main tile, its width is two vectors), FEW
 * (rows up to which the wide tiles are used), WIDE (vectors of a wide tile of two rows), NT_ROWS (rows of A in a dot
 * tile; NT = 8 of B; 0 leaves gemm_nt out), PREFETCH_ROWS and UNROLL. Every element of C is one chain of multiply-adds
 * in the order of k whatever the tile: results do not depend on how a driver cuts m and n. No include guard on purpose.
 * MADD(a, b, c), if defined, is another step of the chain than the fused multiply-add of V. */
#ifndef MADD
#define MADD V(fma)
#endif

/* rows x (nv vectors) tile; masked: the last vector is cut to `tail`. ar, ac: strides of A. */
static inline __attribute__((always_inline)) void F(tile)(int rows, int nv, int masked, V(tail) tail, int64_t k,
                                                          const REAL *a, int64_t ar, int64_t ac, const REAL *b,
                                                          int64_t ldb, REAL *c, int64_t ldc, int accumulate) {
    VEC s[MR][WIDE];
    UNROLL for (int i = 0; i < rows; i++) { UNROLL for (int v = 0; v < nv; v++) s[i][v] = V(set)(0); }
    for (int64_t l = 0; l < k; l++) {
        VEC y[WIDE];
        UNROLL for (int v = 0; v < nv; v++) {
            y[v] = masked && v == nv - 1 ? V(load_tail)(b + v * LANES, tail) : V(load)(b + v * LANES);
            if (!masked) __builtin_prefetch(b + PREFETCH_ROWS * ldb + v * LANES);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            VEC x = V(set)(a[i * ar]);
            UNROLL for (int v = 0; v < nv; v++) s[i][v] = MADD(x, y[v], s[i][v]);
        }
        a += ac;
        b += ldb;
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int v = 0; v < nv; v++) {
            REAL *p = c + i * ldc + v * LANES;
            const int cut = masked && v == nv - 1;
            if (accumulate) s[i][v] = (cut ? V(load_tail)(p, tail) : V(load)(p)) + s[i][v];
            if (cut) {
                V(store_tail)(p, tail, s[i][v]);
            } else {
                V(store)(p, s[i][v]);
            }
        }
    }
}

/* rows is a constant in every case, so that the accumulators live in registers. */
#define ROW_CASE(r, nv, masked)                                                                                        \
    case r:                                                                                                            \
        F(tile)(r, nv, masked, tail, k, a, ar, ac, b, ldb, c, ldc, accumulate);                                        \
        return;
#if MR == 14
#define ROW_CASES(nv, masked)                                                                                          \
    ROW_CASE(1, nv, masked)                                                                                            \
    ROW_CASE(2, nv, masked)                                                                                            \
    ROW_CASE(3, nv, masked)                                                                                            \
    ROW_CASE(4, nv, masked)                                                                                            \
    ROW_CASE(5, nv, masked)                                                                                            \
    ROW_CASE(6, nv, masked)                                                                                            \
    ROW_CASE(7, nv, masked)                                                                                            \
    ROW_CASE(8, nv, masked)                                                                                            \
    ROW_CASE(9, nv, masked)                                                                                            \
    ROW_CASE(10, nv, masked)                                                                                           \
    ROW_CASE(11, nv, masked) ROW_CASE(12, nv, masked) ROW_CASE(13, nv, masked) ROW_CASE(14, nv, masked)
#elif MR == 6
#define ROW_CASES(nv, masked)                                                                                          \
    ROW_CASE(1, nv, masked)                                                                                            \
    ROW_CASE(2, nv, masked)                                                                                            \
    ROW_CASE(3, nv, masked) ROW_CASE(4, nv, masked) ROW_CASE(5, nv, masked) ROW_CASE(6, nv, masked)
#else
#error "list the rows of this tile"
#endif
static void F(rows_pair)(int64_t rows, int64_t k, const REAL *a, int64_t ar, int64_t ac, const REAL *b, int64_t ldb,
                         REAL *c, int64_t ldc, int accumulate) {
    const V(tail) tail = V(tail_of)(0);
    switch (rows) { ROW_CASES(2, 0) }
}
/* The same with a transposed A (ar = 1): constant offsets instead of row pointers. */
static void F(rows_pair_t)(int64_t rows, int64_t k, const REAL *a, int64_t ac, const REAL *b, int64_t ldb, REAL *c,
                           int64_t ldc, int accumulate) {
    const V(tail) tail = V(tail_of)(0);
    const int64_t ar = 1;
    switch (rows) { ROW_CASES(2, 0) }
}
/* One vector of columns, cut to n <= LANES. */
static void F(rows_tail)(int64_t rows, int64_t n, int64_t k, const REAL *a, int64_t ar, int64_t ac, const REAL *b,
                         int64_t ldb, REAL *c, int64_t ldc, int accumulate) {
    const V(tail) tail = V(tail_of)(n);
    switch (rows) { ROW_CASES(1, 1) }
}
/* Few rows: as many columns as registers allow, so that rows of B, which then come from memory as a rule, are read in
 * their own order. */
static void F(rows_wide)(int64_t rows, int64_t k, const REAL *a, int64_t ar, int64_t ac, const REAL *b, int64_t ldb,
                         REAL *c, int64_t ldc, int accumulate) {
    const V(tail) tail = V(tail_of)(0);
    switch (rows) { ROW_CASE(1, WIDE, 0) ROW_CASE(2, WIDE, 0) }
}
static void F(rows_half)(int64_t rows, int64_t k, const REAL *a, int64_t ar, int64_t ac, const REAL *b, int64_t ldb,
                         REAL *c, int64_t ldc, int accumulate) {
    const V(tail) tail = V(tail_of)(0);
    switch (rows) {
        ROW_CASE(1, WIDE / 2, 0) ROW_CASE(2, WIDE / 2, 0) ROW_CASE(3, WIDE / 2, 0) ROW_CASE(4, WIDE / 2, 0)
    }
}
#undef ROW_CASE
#undef ROW_CASES

static void F(gemm)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t ar, int64_t ac, const REAL *b, int64_t ldb,
                    REAL *c, int64_t ldc, int accumulate) {
    int64_t j = 0;
    if (m <= FEW) {
        for (; j + WIDE * LANES <= n; j += WIDE * LANES)
            for (int64_t i = 0; i < m; i += 2)
                F(rows_wide)(m - i < 2 ? 1 : 2, k, a + i * ar, ar, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
        for (; j + WIDE / 2 * LANES <= n; j += WIDE / 2 * LANES)
            for (int64_t i = 0; i < m; i += 4) F(rows_half)
        (m - i < 4 ? m - i : 4, k, a + i * ar, ar, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    }
    /* columns outside, so that a panel of B stays in the first-level cache for all rows */
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        for (int64_t i = 0; i < m; i += MR) {
            int64_t rows = m - i < MR ? m - i : MR;
            if (ar == 1) {
                F(rows_pair_t)(rows, k, a + i, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
            } else {
                F(rows_pair)(rows, k, a + i * ar, ar, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
            }
        }
    }
    for (; j < n; j += LANES) {
        int64_t cols = n - j < LANES ? n - j : LANES;
        for (int64_t i = 0; i < m; i += MR) {
            int64_t rows = m - i < MR ? m - i : MR;
            F(rows_tail)(rows, cols, k, a + i * ar, ar, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
        }
    }
}

#if NT_ROWS
/* Dot tile: x rows of A times NT rows of B. Every element is summed in the same order whatever the tile. */
static inline __attribute__((always_inline)) void F(dots)(int x, int64_t k, const REAL *a, int64_t lda,
                                                          const REAL *const b[NT], REAL *c, int64_t ldc) {
    VEC s[NT_ROWS][NT];
    UNROLL for (int i = 0; i < x; i++) { UNROLL for (int j = 0; j < NT; j++) s[i][j] = V(set)(0); }
    const V(tail) rest = V(tail_of)(k % LANES);
    /* one row of B after the other: memory delivers rows read abreast at half the rate */
    UNROLL for (int j = 0; j < NT; j++) {
        int64_t l = 0;
        for (; l + LANES <= k; l += LANES) {
            VEC q = V(load)(b[j] + l);
            UNROLL for (int i = 0; i < x; i++) s[i][j] = V(fma)(V(load)(a + i * lda + l), q, s[i][j]);
        }
        if (l < k) {
            VEC q = V(load_tail)(b[j] + l, rest);
            UNROLL for (int i = 0; i < x; i++) s[i][j] = V(fma)(V(load_tail)(a + i * lda + l, rest), q, s[i][j]);
        }
    }
    UNROLL for (int i = 0; i < x; i++) V(store_sums)(c + i * ldc, s[i]);
}
static void F(gemm_nt)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda, const REAL *b, int64_t ldb, REAL *c,
                       int64_t ldc) {
    for (int64_t j = 0; j < n; j += NT) {
        const REAL *row[NT];
        const int64_t cols = n - j < NT ? n - j : NT;
        for (int64_t r = 0; r < NT; r++) row[r] = b + (j + (r < cols ? r : cols - 1)) * ldb;
        int64_t i = 0;
        for (; cols == NT && i + NT_ROWS <= m; i += NT_ROWS)
            F(dots)(NT_ROWS, k, a + i * lda, lda, row, c + i * ldc + j, ldc);
        for (; cols == NT && i < m; i++) F(dots)(1, k, a + i * lda, lda, row, c + i * ldc + j, ldc);
        for (; i < m; i++) {
            REAL sums[NT];
            F(dots)(1, k, a + i * lda, lda, row, sums, NT);
            for (int64_t r = 0; r < cols; r++) c[i * ldc + j + r] = sums[r];
        }
    }
}
#endif
#undef MADD
