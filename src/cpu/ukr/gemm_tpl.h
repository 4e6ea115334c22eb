/* SPDX-License-Identifier: MIT
 * Register-tiled matrix products of struct attn_ukr, written once over the vector layer and included for f32 and f64.
 * The includer defines, besides what row_tpl.h needs, MR (rows of the main tile, its width is two vectors), FEW
 * (rows up to which the wide tiles are used), WIDE (vectors of a wide tile of two rows), SKINNY_WIDE (rows up to
 * which that tile pays; else half as wide with four rows), PREFETCH_ROWS and UNROLL.
 * What B is and how sums go: BTYPE (element of B in memory), BLOAD(p) and BLOAD_TAIL(p, n, mask) (LANES, or n of them,
 * as a vector), MADD(a, b, c) (one step of a chain), MFIRST(a, b) (the first one).
 * Every element of C is one chain of multiply-adds in the order of k whatever the tile: results do not depend on how a
 * driver cuts m and n. No include guard on purpose. */

static inline __attribute__((always_inline)) void F(step)(int rows, int nv, int masked, int first, int apart,
                                                          int64_t cols, VEC (*s)[WIDE], const REAL *const *base,
                                                          int64_t ar, const BTYPE *b, int64_t ldb) {
    const V(tail) tail = V(tail_of)(cols);
    VEC y[WIDE];
    (void)tail;
    UNROLL for (int v = 0; v < nv; v++) {
        y[v] = masked && v == nv - 1 ? BLOAD_TAIL(b + v * LANES, cols, tail) : BLOAD(b + v * LANES);
        if (!masked) __builtin_prefetch(b + PREFETCH_ROWS * ldb + v * LANES);
    }
    UNROLL for (int i = 0; i < rows; i++) {
        VEC x = V(set)(base[i / apart][i % apart * ar]);
        UNROLL for (int v = 0; v < nv; v++) {
            if (first) {
                s[i][v] = MFIRST(x, y[v]);
            } else {
                s[i][v] = MADD(x, y[v], s[i][v]);
            }
        }
    }
}
/* rows x (nv vectors) tile of k > 0 steps; masked: the last vector is cut to `cols`. ar, ac: strides of A. The first
 * step multiplies: setting 28 sums to 0 before takes as long as a step, since compilers copy one register to the
 * others. */
static inline __attribute__((always_inline)) void F(tile)(int rows, int nv, int masked, int64_t cols, int64_t k,
                                                          const REAL *a, int64_t ar, int64_t ac, const BTYPE *b,
                                                          int64_t ldb, REAL *c, int64_t ldc, int accumulate) {
    const V(tail) tail = V(tail_of)(cols);
    VEC s[MR][WIDE];
    /* One pointer for every five rows, told apart from the others: offsets of 1, 2, 3 and 4 rows serve all of them. An
     * offset for each row would not fit the registers, and one that is kept in a vector or a mask register comes back
     * through a port that multiply-adds need. */
    const int apart = __builtin_constant_p(ar) ? MR : 5;
    const REAL *base[(MR + 4) / 5];
    UNROLL for (int g = 0; g * apart < rows; g++) {
        base[g] = a + g * apart * ar;
        __asm__("" : "+r"(base[g]));
    }
    F(step)(rows, nv, masked, 1, apart, cols, s, base, ar, b, ldb);
    for (int64_t l = 1; l < k; l++) {
        b += ldb;
        UNROLL for (int g = 0; g * apart < rows; g++) {
            base[g] += ac;
            NO_VECTOR(base[g]);
        }
        F(step)(rows, nv, masked, 0, apart, cols, s, base, ar, b, ldb);
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int v = 0; v < nv; v++) {
            REAL *p = c + v * LANES;
            const int cut = masked && v == nv - 1;
            if (accumulate) s[i][v] = (cut ? V(load_tail)(p, tail) : V(load)(p)) + s[i][v];
            if (cut) {
                V(store_tail)(p, tail, s[i][v]);
            } else {
                V(store)(p, s[i][v]);
            }
        }
        c += ldc;
        __asm__("" : "+r"(c)); /* one pointer for all rows: see above */
    }
}

/* rows is a constant in every case, so that the accumulators live in registers. */
#define ROW_CASE(r, nv, masked)                                                                                        \
    case r:                                                                                                            \
        F(tile)(r, nv, masked, cols, k, a, ar, ac, b, ldb, c, ldc, accumulate);                                        \
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
#elif MR == 4
#define ROW_CASES(nv, masked)                                                                                          \
    ROW_CASE(1, nv, masked) ROW_CASE(2, nv, masked) ROW_CASE(3, nv, masked) ROW_CASE(4, nv, masked)
#elif MR == 6
#define ROW_CASES(nv, masked)                                                                                          \
    ROW_CASE(1, nv, masked)                                                                                            \
    ROW_CASE(2, nv, masked)                                                                                            \
    ROW_CASE(3, nv, masked) ROW_CASE(4, nv, masked) ROW_CASE(5, nv, masked) ROW_CASE(6, nv, masked)
#else
#error "list the rows of this tile"
#endif
static void F(rows_pair)(int64_t rows, int64_t k, const REAL *a, int64_t ar, const BTYPE *b, int64_t ldb, REAL *c,
                         int64_t ldc, int accumulate) {
    const int64_t cols = 0;
    const int64_t ac = 1;
    switch (rows) { ROW_CASES(2, 0) }
}
/* The same with a transposed A (ar = 1): constant offsets instead of row pointers. */
static void F(rows_pair_t)(int64_t rows, int64_t k, const REAL *a, int64_t ac, const BTYPE *b, int64_t ldb, REAL *c,
                           int64_t ldc, int accumulate) {
    const int64_t cols = 0;
    const int64_t ar = 1;
    switch (rows) { ROW_CASES(2, 0) }
}
/* One vector of columns, cut to cols <= LANES. */
static void F(rows_tail)(int64_t rows, int64_t cols, int64_t k, const REAL *a, int64_t ar, int64_t ac, const BTYPE *b,
                         int64_t ldb, REAL *c, int64_t ldc, int accumulate) {
    switch (rows) { ROW_CASES(1, 1) }
}
/* Few rows: as many columns as registers allow, so that rows of B, which then come from memory as a rule, are read in
 * their own order. */
static void F(rows_wide)(int64_t rows, int64_t k, const REAL *a, int64_t ar, int64_t ac, const BTYPE *b, int64_t ldb,
                         REAL *c, int64_t ldc, int accumulate) {
    const int64_t cols = 0;
    switch (rows) { ROW_CASE(1, WIDE, 0) ROW_CASE(2, WIDE, 0) }
}
static void F(rows_half)(int64_t rows, int64_t k, const REAL *a, int64_t ar, int64_t ac, const BTYPE *b, int64_t ldb,
                         REAL *c, int64_t ldc, int accumulate) {
    const int64_t cols = 0;
    switch (rows) {
        ROW_CASE(1, WIDE / 2, 0) ROW_CASE(2, WIDE / 2, 0) ROW_CASE(3, WIDE / 2, 0) ROW_CASE(4, WIDE / 2, 0)
    }
}
#undef ROW_CASE
#undef ROW_CASES

static void F(gemm)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t ar, int64_t ac, const BTYPE *b, int64_t ldb,
                    REAL *c, int64_t ldc, int accumulate) {
    int64_t j = 0;
    if (k == 0) {
        for (int64_t i = 0; i < m && !accumulate; i++) __builtin_memset(c + i * ldc, 0, (size_t)n * sizeof *c);
        return;
    }
    if (m <= SKINNY) {
        for (; m <= SKINNY_WIDE && j + WIDE * LANES <= n; j += WIDE * LANES)
            for (int64_t i = 0; i < m; i += 2)
                F(rows_wide)(m - i < 2 ? 1 : 2, k, a + i * ar, ar, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
        for (; j + WIDE / 2 * LANES <= n; j += WIDE / 2 * LANES)
            for (int64_t i = 0; i < m; i += 4) F(rows_half)
        (m - i < 4 ? m - i : 4, k, a + i * ar, ar, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    }
    /* columns outside, so that a panel of B stays in the first-level cache for all rows; an A without unit strides,
     * which no driver has, is left to the tail */
    for (; j + 2 * LANES <= n && (ar == 1 || ac == 1); j += 2 * LANES) {
        for (int64_t i = 0; i < m; i += MR) {
            int64_t rows = m - i < MR ? m - i : MR;
            if (ac == 1) {
                F(rows_pair)(rows, k, a + i * ar, ar, b + j, ldb, c + i * ldc + j, ldc, accumulate);
            } else {
                F(rows_pair_t)(rows, k, a + i, ac, b + j, ldb, c + i * ldc + j, ldc, accumulate);
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
