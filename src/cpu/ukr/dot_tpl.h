/* SPDX-License-Identifier: MIT
 * Products of few rows with rows, gemm_nt of struct attn_ukr. The includer defines what row_tpl.h needs, NT_ROWS
 * (rows of A in a dot tile; NT = 8 of B), UNROLL, BSTEP (elements of B per lane) and the operand macros that
 * gemm_tpl.h lists. No include guard on purpose. */
#define NT 8

/* Dot tile: x rows of A times NT rows of B. Every element is summed in the same order whatever the tile. */
static inline __attribute__((always_inline)) void F(dots)(int x, int64_t k, const REAL *a, int64_t lda,
                                                          const BTYPE *const b[NT], REAL *c, int64_t ldc) {
    VEC s[NT_ROWS][NT];
    UNROLL for (int i = 0; i < x; i++) { UNROLL for (int j = 0; j < NT; j++) s[i][j] = V(set)(0); }
    const V(tail) rest = V(tail_of)(k % LANES);
    /* one row of B after the other: memory delivers rows read abreast at half the rate, and prefetches only get in the
     * way of those of the hardware */
    UNROLL for (int j = 0; j < NT; j++) {
        int64_t l = 0;
        for (; l + LANES <= k; l += LANES) {
            VEC q = BLOAD(b[j] + BSTEP * l);

            UNROLL for (int i = 0; i < x; i++) s[i][j] = MADD(V(load)(a + i * lda + l), q, s[i][j]);
        }
        if (l < k) {
            VEC q = BLOAD_TAIL(b[j] + BSTEP * l, k - l, rest);
            UNROLL for (int i = 0; i < x; i++) s[i][j] = MADD(V(load_tail)(a + i * lda + l, rest), q, s[i][j]);
        }
    }
    UNROLL for (int i = 0; i < x; i++) V(store_sums)(c + i * ldc, s[i]);
}
static void F(gemm_nt)(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda, const BTYPE *b, int64_t ldb,
                       REAL *c, int64_t ldc) {
    for (int64_t j = 0; j < n; j += NT) {
        const BTYPE *row[NT];
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
#undef NT
