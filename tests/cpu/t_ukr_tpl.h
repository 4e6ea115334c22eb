/* SPDX-License-Identifier: MIT
 * Tests of the entries of one element type; included twice by t_ukr.c. No include guard on purpose. */

static void F(fill)(REAL *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (REAL)uniform();
}

/* C against a double loop, with guards behind every row of C and A, B poisoned where they must not be read. */
static void F(check_gemm)(const struct attn_ukr *u, int64_t m, int64_t n, int64_t k, int transposed, int accumulate) {
    const int64_t lda = (transposed ? m : k) + 3, ldb = n + 5, ldc = n + 7, rows_a = transposed ? k : m;
    REAL *a = malloc((size_t)(rows_a * lda + PAD) * sizeof *a), *b = malloc((size_t)(k * ldb + PAD) * sizeof *b);
    REAL *bt = malloc((size_t)(n * (k + 2) + PAD) * sizeof *bt);
    REAL *c = malloc((size_t)(m * ldc + PAD) * sizeof *c), *old = malloc((size_t)(m * ldc + PAD) * sizeof *c);
    F(fill)(a, rows_a * lda + PAD);
    F(fill)(b, k * ldb + PAD);
    F(fill)(c, m * ldc + PAD);
    for (int64_t l = 0; l < k; l++)
        for (int64_t j = n; j < ldb; j++) b[l * ldb + j] = (REAL)NAN; /* behind the columns */
    for (int64_t r = 0; r < rows_a; r++)
        for (int64_t l = transposed ? m : k; l < lda; l++) a[r * lda + l] = (REAL)NAN;
    for (int64_t j = 0; j < n * (k + 2) + PAD; j++) bt[j] = (REAL)NAN;
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++) bt[j * (k + 2) + l] = b[l * ldb + j];
    memcpy(old, c, (size_t)(m * ldc + PAD) * sizeof *c);
    const int64_t ar = transposed ? 1 : lda, ac = transposed ? lda : 1;
    for (int nt = 0; nt <= (!transposed && !accumulate); nt++) {
        memcpy(c, old, (size_t)(m * ldc + PAD) * sizeof *c);
        if (nt)
            u->F(gemm_nt)(m, n, k, a, lda, bt, k + 2, c, ldc);
        else
            u->F(gemm)(m, n, k, a, ar, ac, b, ldb, c, ldc, accumulate);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < ldc; j++) {
                double want = accumulate ? (double)old[i * ldc + j] : 0, size = fabs(want);
                if (j >= n) {
                    assert_true(c[i * ldc + j] == old[i * ldc + j]);
                    continue;
                }
                for (int64_t l = 0; l < k; l++) {
                    double term = (double)a[i * ar + l * ac] * (double)b[l * ldb + j];
                    want += term, size += fabs(term);
                }
                assert_true(fabs((double)c[i * ldc + j] - want) <= EPS * 8 * size);
            }
        for (int64_t j = m * ldc; j < m * ldc + PAD; j++) assert_true(c[j] == old[j]);
    }
    free(a), free(b), free(bt), free(c), free(old);
}
static void F(test_gemm)(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    for (int64_t s = 0; s <= 70; s++) { /* every extent from 0 to 70 somewhere */
        for (int transposed = 0; transposed < 2; transposed++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                F(check_gemm)(u, s, 33, 17, transposed, accumulate);
                F(check_gemm)(u, 15, s, 9, transposed, accumulate);
                F(check_gemm)(u, 29, 40, s, transposed, accumulate);
                F(check_gemm)(u, s % 5, 70 - s, 70 - s / 2, transposed, accumulate);
            }
    }
    F(check_gemm)(u, 3, 700, 65, 0, 1);
    F(check_gemm)(u, 61, 129, 200, 1, 0);
}
/* Same bits whether m and n are cut or not. */
static void F(test_gemm_cuts)(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    enum { M = 31, N = 131, K = 77 };
    static REAL a[M * K], b[K * N], bt[N * K], whole[2][M * N], cut[M * N];
    F(fill)(a, M * K);
    F(fill)(b, K * N);
    for (int j = 0; j < N; j++)
        for (int l = 0; l < K; l++) bt[j * K + l] = b[l * N + j];
    u->F(gemm)(M, N, K, a, K, 1, b, N, whole[0], N, 0);
    u->F(gemm_nt)(M, N, K, a, K, bt, K, whole[1], N);
    for (int step = 1; step < 40; step++)
        for (int nt = 0; nt < 2; nt++) {
            memset(cut, 0, sizeof cut);
            for (int i = 0; i < M; i += step)
                for (int j = 0; j < N; j += step) {
                    int64_t m = M - i < step ? M - i : step, n = N - j < step ? N - j : step;
                    if (nt)
                        u->F(gemm_nt)(m, n, K, a + i * K, K, bt + j * K, K, cut + i * N + j, N);
                    else
                        u->F(gemm)(m, n, K, a + i * K, K, 1, b + j, N, cut + i * N + j, N, 0);
                }
            assert_memory_equal(cut, whole[nt], sizeof cut);
        }
}

#define NEAR(x, y, tolerance) assert_true(fabs((double)(x) - (y)) <= (tolerance))
static void F(test_rows)(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    for (int n = 0; n <= 70; n++) {
        REAL x[PAD + 70], y[PAD + 70], z[PAD + 70];
        F(fill)(x, PAD + 70);
        F(fill)(z, PAD + 70);
        for (int i = n; i < PAD + 70; i++) x[i] = (REAL)(i % 2 ? NAN : 1e30); /* must not be read */
        double max = -INFINITY, sum = 0, dot = 0, size = 0;
        for (int i = 0; i < n; i++) {
            max = fmax(max, (double)x[i]), sum += exp((double)x[i] * 30 - 15);
            dot += (double)x[i] * (double)z[i], size += fabs((double)x[i] * (double)z[i]);
        }
        assert_true((double)u->F(max)(x, n) == max);
        NEAR(u->F(dot)(x, z, n), dot, EPS * 8 * size);
        assert_true(u->F(finite)(x, n) == 1);
#define START(source) memcpy(y, source, sizeof y)
#define CHECK(want, tolerance)                                                                                         \
    for (int i = 0; i < PAD + 70; i++) {                                                                               \
        if (i < n)                                                                                                     \
            NEAR(y[i], want, tolerance);                                                                               \
        else                                                                                                           \
            assert_memory_equal(&y[i], &x[i], sizeof y[i]);                                                            \
    }
        START(x);
        for (int i = 0; i < n; i++) y[i] = (REAL)30 * x[i];
        REAL got = u->F(exp)(y, n, (REAL)15);
        NEAR(got, sum, sum * 40 * EPS);
        CHECK(exp((double)((REAL)((REAL)30 * x[i]) - (REAL)15)), 7 * EPS * exp((double)x[i] * 30 - 15) + 1e-300)
        START(x);
        u->F(scale)(y, n, (REAL)-1.5);
        CHECK(-1.5 * (double)x[i], 2 * EPS)
        START(x);
        u->F(mul)(y, z, n);
        CHECK((double)z[i] * (double)x[i], 2 * EPS)
        START(x);
        u->F(add)(y, z, n);
        CHECK((double)z[i] + (double)x[i], 4 * EPS)
        START(x);
        u->F(dsoftmax)(z, y, n, (REAL)0.25);
        CHECK((double)z[i] * ((double)x[i] - 0.25), 4 * EPS)
        REAL three[3][PAD + 70], slopes[3][PAD + 70],
            apart[PAD + 70]; /* three rows at once: the bits of one after the other */
        const REAL lse[3] = {(REAL)0.5, (REAL)INFINITY, (REAL)1000}, delta[3] = {(REAL)0.25, 0, 1};
        for (int r = 0; r < 3; r++) memcpy(three[r], z, sizeof z), memcpy(slopes[r], x, sizeof x);
        for (int i = 0; i < n; i++) three[2][i] = z[i] + (REAL)999;
        u->F(score_bwd)(3, n, three[0], slopes[0], PAD + 70, lse, delta);
        for (int r = 0; r < 3; r++) {
            START(x);
            memcpy(apart, z, sizeof z);
            for (int i = 0; i < n && r == 2; i++) apart[i] = z[i] + (REAL)999;
            u->F(exp_lse)(apart, n, lse[r]);
            for (int i = 0; i < n; i++) {
                const REAL s = r == 2 ? z[i] + (REAL)999 : z[i];
                assert_true(fabs((double)apart[i] - exp((double)s - (double)lse[r])) < 12 * EPS * (r == 2 ? 4 : 1));
            }
            u->F(dsoftmax)(apart, y, n, delta[r]);
            assert_memory_equal(three[r], apart, sizeof apart);
            assert_memory_equal(slopes[r], y, sizeof y);
        }
        START(x);
        u->F(alibi)(y, n, (REAL)0.5, (REAL)-20, 0, 0);
        CHECK((double)x[i] + 0.5 * (i - 20), 30 * EPS)
        START(x);
        u->F(alibi)(y, n, (REAL)0.5, (REAL)-20, 1, 3);
        CHECK((double)x[i] - 0.5 * (abs(i - 20) - 3), 30 * EPS)
        uint8_t keep[PAD + 70];
        for (int i = 0; i < PAD + 70; i++) keep[i] = (uint8_t)(i % 3 ? i : 0);
        START(x);
        u->F(hide)(y, keep, n);
        for (int i = 0; i < n; i++) assert_true(i % 3 ? y[i] == x[i] : y[i] == -(REAL)INFINITY);
        assert_memory_equal(y + n, x + n, sizeof x - (size_t)n * sizeof *x);
        for (int with = 0; with < 2; with++) {
            REAL d[PAD + 70];
            START(x);
            for (int i = 0; i < n; i++) y[i] = x[i] * (REAL)(i % 3 ? 40 : 1e-3);
            for (int i = 0; i < PAD + 70; i++) d[i] = 7;
            u->F(softcap)(y, with ? d : NULL, n, (REAL)5);
            for (int i = 0; i < PAD + 70; i++) {
                double s = (double)(REAL)(x[i] * (REAL)(i % 3 ? 40 : 1e-3)), want = 5 * tanh(s / 5),
                       cosh1 = cosh(s / 5);
                if (i < n) {
                    NEAR(y[i], want, 8 * EPS * fabs(want));
                    if (with) NEAR(d[i], 1 / (cosh1 * cosh1), 60 * EPS / (cosh1 * cosh1));
                } else {
                    assert_memory_equal(&y[i], &x[i], sizeof y[i]);
                }
                if (!with || i >= n) assert_true(d[i] == 7);
            }
        }
#undef START
#undef CHECK
    }
}

static void F(test_special)(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    const REAL inf = (REAL)INFINITY, nan = (REAL)NAN;
    for (int n = 1; n <= 70; n++)
        for (int bad = 0; bad < n; bad++) {
            REAL x[70], y[70], d[70];
            F(fill)(x, 70);
            memcpy(y, x, sizeof y);
            y[bad] = nan;
            REAL most = -inf; /* of the others */
            for (int j = 0; j < n; j++) most = y[j] > most ? y[j] : most;
            assert_true(u->F(max)(y, n) == most);
            assert_false(u->F(finite)(y, n));
            assert_true(isnan(u->F(exp)(y, n, 0)));
            for (int j = 0; j < n; j++) assert_true(isnan(y[j]) == (j == bad));
            memcpy(y, x, sizeof y);
            y[bad] = nan;
            u->F(softcap)(y, d, n, 3);
            for (int j = 0; j < n; j++) assert_true(isnan(y[j]) == (j == bad) && isnan(d[j]) == (j == bad));
            memcpy(y, x, sizeof y);
            y[bad] = -inf;
            assert_false(u->F(finite)(y, n));
            assert_true(u->F(max)(y, n) > -inf || n == 1);
            REAL sum = u->F(exp)(y, n, (REAL)-200); /* scores far from 0: exp of e^200 overflows f32 to inf, not NaN */
            assert_true(y[bad] == 0 && !isnan(sum) && (n == 1 || sum > 0));
            memcpy(y, x, sizeof y);
            y[bad] = inf;
            assert_false(u->F(finite)(y, n));
            assert_true(u->F(max)(y, n) == inf);
            memcpy(y, x, sizeof y);
            memcpy(d, x, sizeof d);
            y[bad] = nan, d[bad] = 0; /* a pair of probability 0 has gradient 0 */
            u->F(dsoftmax)(d, y, n, nan);
            for (int j = 0; j < n; j++) assert_true(j == bad ? y[j] == 0 : isnan(y[j]));
            memcpy(y, x, sizeof y);
            memcpy(d, x, sizeof d);
            y[bad] = 0, d[bad] = nan; /* so does a hidden pair's chain factor */
            u->F(mul)(y, d, n);
            assert_true(y[bad] == 0 && u->F(finite)(y, n));
        }
    REAL row[128], wide[192];
    for (int n = 1; n < 128; n++) { /* hidden keys on either side do not change a bit of the sum */
        for (int j = 0; j < 192; j++) wide[j] = -inf;
        F(fill)(row, n);
        memcpy(wide + 32, row, (size_t)n * sizeof *row);
        REAL a = u->F(exp)(row, n, 1), b = u->F(exp)(wide, 192, 1);
        assert_memory_equal(&a, &b, sizeof a);
    }
    REAL far[20];
    for (int j = 0; j < 20; j++) far[j] = (REAL)(-800 - 1e4 * j);
    REAL sum = u->F(exp)(far, 19, 0);
    assert_true(sum == 0);
    for (int j = 0; j < 19; j++) assert_true(far[j] == 0);
    assert_true((double)far[19] == -800 - 19e4);
    for (int j = 0; j < 20; j++) far[j] = (REAL)(-200 - 0.125 * j);
    sum = u->F(exp)(far, 20, (REAL)-200);
    double want = 0;
    for (int j = 0; j < 20; j++) want += exp(-0.125 * j);
    NEAR(sum, want, want * 8 * EPS);
}

static void F(test_transpose)(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    for (int rows = 0; rows <= 70; rows++)
        for (int cols = 0; cols <= 70; cols += 1 + (rows % 3)) {
            static REAL src[70 * 75], dst[70 * 80];
            const int64_t lds = cols + 3, ld = rows + 5;
            F(fill)(src, 70 * 75);
            for (int i = 0; i < 70 * 80; i++) dst[i] = 9;
            u->F(transpose)(dst, ld, src, lds, rows, cols);
            for (int64_t c = 0; c < cols; c++)
                for (int64_t r = 0; r < ld; r++) assert_true(dst[c * ld + r] == (r < rows ? src[r * lds + c] : 9));
            for (int64_t i = cols * ld; i < 70 * 80; i++) assert_true(dst[i] == 9);
        }
}
#undef NEAR
