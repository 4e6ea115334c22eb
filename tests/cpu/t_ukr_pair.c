/* SPDX-License-Identifier: MIT
 * The microkernels on pairs of bf16 against double loops on the same rounded numbers: products with every extent and
 * both forms of A, zips with tails, the exponential over its whole range, the transposed softmax, and guards around all
 * results. Skipped without the instructions; the tiles of AMX run where there are any, and everywhere in emulation
 * (cmake/amx.cmake). */
#include "attn.h"

#include "base/num.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/bf16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAD = 40 };
static const struct attn_ukr_bf16 *u;

#include "ukr_tests.h"

static void fill(uint16_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = attn_num_f32_bf16((float)uniform());
}
static double half_of(const float *word, int odd) {
    uint16_t h[2];
    memcpy(h, word, sizeof h);
    return (double)attn_num_bf16_f32(h[odd]);
}

static void check_gemm(int64_t m, int64_t n, int64_t k, int transposed, int accumulate) {
    const int64_t lda = (transposed ? m : k) + 3, ldb = n + 5, ldc = n + 7, rows_a = transposed ? k : m;
    float *a = malloc((size_t)(rows_a * lda + PAD) * sizeof *a), *b = malloc((size_t)(k * ldb + PAD) * sizeof *b);
    float *c = malloc((size_t)(m * ldc + PAD) * sizeof *c), *old = malloc((size_t)(m * ldc + PAD) * sizeof *c);
    fill((uint16_t *)(void *)a, 2 * (rows_a * lda + PAD));
    fill((uint16_t *)(void *)b, 2 * (k * ldb + PAD));
    for (int64_t l = 0; l < k; l++) memset(b + l * ldb + n, 0xff, 5 * sizeof *b); /* NaN behind the columns */
    for (int64_t i = 0; i < m * ldc + PAD; i++) c[i] = old[i] = (float)uniform();
    const int64_t ar = transposed ? 1 : lda, ac = transposed ? lda : 1;
    u->gemm(m, n, k, a, ar, ac, b, ldb, c, ldc, accumulate);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            double want = accumulate ? (double)old[i * ldc + j] : 0, size = fabs(want) + 1e-30;
            if (j >= n) {
                assert_true(c[i * ldc + j] == old[i * ldc + j]);
                continue;
            }
            for (int64_t l = 0; l < k; l++)
                for (int odd = 0; odd < 2; odd++) {
                    double term = half_of(a + i * ar + l * ac, odd) * half_of(b + l * ldb + j, odd);
                    want += term, size += fabs(term);
                }
            assert_true(fabs((double)c[i * ldc + j] - want) <= 1e-6 * size);
        }
    for (int64_t j = m * ldc; j < m * ldc + PAD; j++) assert_true(c[j] == old[j]);
    free(a), free(b), free(c), free(old);
}
static void test_gemm(void **unused) {
    (void)unused;
    for (int64_t s = 0; s <= 70; s++)
        for (int transposed = 0; transposed < 2; transposed++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                check_gemm(s, 33, 17, transposed, accumulate);
                check_gemm(15, s, 9, transposed, accumulate);
                check_gemm(29, 40, s, transposed, accumulate);
                check_gemm(s % 17, 280 - s, 7, transposed, accumulate);
                if (s % 10 == 0) check_gemm(33, 31, 120 + 4 * s, transposed, accumulate);
            }
}

/* C[m,n] = A[m,k] B[n,k]^T and C += A[m,k] B[k,n] with B as in memory, rows an odd number of elements far. */
static void check_few(int64_t m, int64_t n, int64_t k, int dots) {
    const int64_t width = dots ? 2 * k : n, rows = dots ? n : k, ldb = width + 3, pairs = dots ? k : (k + 1) / 2;
    const int64_t lda = pairs + 2, ldc = n + 7;
    float *a = malloc((size_t)(m * lda + PAD) * sizeof *a), *c = malloc((size_t)(m * ldc + PAD) * sizeof *c);
    float *old = malloc((size_t)(m * ldc + PAD) * sizeof *c);
    uint16_t *b = malloc((size_t)(rows * ldb + PAD) * sizeof *b);
    fill((uint16_t *)(void *)a, 2 * (m * lda + PAD));
    memset(b, 0xff, (size_t)(rows * ldb + PAD) * sizeof *b); /* NaN */
    for (int64_t r = 0; r < rows; r++) fill(b + r * ldb, width);
    for (int64_t i = 0; i < m * ldc + PAD; i++) c[i] = old[i] = (float)uniform();
    (dots ? u->dots : u->add_pv)(m, n, k, a, lda, b, ldb, c, ldc);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            double want = dots ? 0 : (double)old[i * ldc + j], size = fabs(want) + 1e-30;
            for (int64_t l = 0; l < (dots ? 2 * k : k) && j < n; l++) {
                const uint16_t x = b[dots ? j * ldb + l : l * ldb + j];
                double term = half_of(a + i * lda + l / 2, (int)(l % 2)) * (double)attn_num_bf16_f32(x);
                want += term, size += fabs(term);
            }
            if (j >= n) {
                assert_true(c[i * ldc + j] == old[i * ldc + j]);
            } else {
                assert_true(fabs((double)c[i * ldc + j] - want) <= 1e-6 * size);
            }
        }
    for (int64_t j = m * ldc; j < m * ldc + PAD; j++) assert_true(c[j] == old[j]);
    free(a), free(b), free(c), free(old);
}
static void test_few(void **unused) {
    (void)unused;
    for (int64_t s = 0; s <= 70; s++)
        for (int dots = 0; dots < 2; dots++) {
            check_few(4, s, 17, dots);
            check_few(s % 17, 70 - s, s, dots);
            check_few(1, 130 + s, s / 2, dots);
        }
}

/* Rows in one pass over their keys, each with keys of its own, in two calls; what no row sees is NaN. Then each row
 * alone gives the same bits, and a value that is not finite shows in the rows that see it and in no other. */
struct pass {
    struct attn_decode_amx f;
    int64_t n, lo[ATTN_DECODE_AMX_ROWS], hi[ATTN_DECODE_AMX_ROWS];
    float m[ATTN_DECODE_AMX_ROWS], l[ATTN_DECODE_AMX_ROWS], *o;
};
static void run_decode(struct pass *t, int64_t first, int64_t rows) {
    for (int64_t r = first; r < first + rows; r++) {
        t->m[r] = -INFINITY, t->l[r] = 0;
        for (int64_t c = 0; c < t->f.width; c++) t->o[r * t->f.ldo + c] = 0;
    }
    for (int64_t first_key = 0, cut = t->n / 3 / ATTN_DECODE_AMX_STEP * ATTN_DECODE_AMX_STEP; first_key < t->n;
         first_key = cut, cut = t->n) {
        struct attn_decode_amx f = t->f;
        int64_t lo[ATTN_DECODE_AMX_ROWS], hi[ATTN_DECODE_AMX_ROWS];
        for (int64_t r = 0; r < rows; r++) {
            lo[r] = t->lo[first + r] < first_key ? 0 : t->lo[first + r] - first_key;
            hi[r] = (t->hi[first + r] < cut ? t->hi[first + r] : cut) - first_key;
        }
        f.rows = rows, f.lo = lo, f.hi = hi;
        f.q += first * f.ldq, f.k += first_key * f.ldk, f.v += first_key * f.ldv;
        f.m = t->m + first, f.l = t->l + first, f.o = t->o + first * f.ldo;
        if (first_key < cut) u->decode_tiles(&f);
    }
}
static void check_pass(int64_t rows, int64_t n, int64_t depth, int64_t width, int apart) {
    const int64_t ldq = depth / 2 + 3, ldk = depth + 6, ldv = width + 10, ldo = width + 16;
    uint16_t *k = malloc((size_t)(n * ldk + 1) * 2), *v = malloc((size_t)(n * ldv + 1) * 2), *spoilt = NULL;
    float *q = malloc((size_t)(rows * ldq) * sizeof *q), *o = malloc((size_t)(rows * ldo) * sizeof *o);
    float *old = malloc((size_t)(rows * ldo) * sizeof *o);
    struct pass t = {.n = n, .o = o}, alone = {.n = n, .o = old};
    memset(k, 0xff, (size_t)(n * ldk + 1) * 2); /* NaN */
    memset(v, 0xff, (size_t)(n * ldv + 1) * 2);
    fill((uint16_t *)(void *)q, 2 * rows * ldq);
    for (int64_t r = 0; r < rows; r++) {
        t.lo[r] = apart ? (int64_t)(fabs(uniform()) * 20) : 5,
        t.hi[r] = n - (apart ? (int64_t)(fabs(uniform()) * 20) : 3);
        if (t.lo[r] > n) t.lo[r] = n;
        if (t.hi[r] < t.lo[r]) t.hi[r] = t.lo[r];
        for (int64_t c = 0; r % 3 == 2 && c < depth; c++) { /* scores that leave their first reference */
            uint16_t *x = (uint16_t *)(void *)(q + r * ldq) + c;
            *x = attn_num_f32_bf16(attn_num_bf16_f32(*x) * 20);
        }
        for (int64_t j = t.lo[r]; j < t.hi[r]; j++)
            if (k[j * ldk] == 0xffff) fill(k + j * ldk, depth), fill(v + j * ldv, width);
    }
    t.f = (struct attn_decode_amx){.depth = depth,
                                   .width = width,
                                   .q = q,
                                   .ldq = ldq,
                                   .k = k,
                                   .v = v,
                                   .ldk = ldk,
                                   .ldv = ldv,
                                   .factor = 0.7f,
                                   .ldo = ldo,
                                   .equal_ranges = !apart,
                                   .prefetch = (int)(n % 2)};
    memcpy(alone.lo, t.lo, sizeof t.lo);
    memcpy(alone.hi, t.hi, sizeof t.hi);
    alone.f = t.f;
    run_decode(&t, 0, rows);
    for (int64_t r = 0; r < rows; r++) {
        double *s = malloc((size_t)(n + 1) * sizeof *s), top = -INFINITY, sum = 0;
        for (int64_t j = t.lo[r]; j < t.hi[r]; j++) {
            s[j] = 0;
            for (int64_t c = 0; c < depth; c++)
                s[j] += half_of(q + r * ldq + c / 2, (int)(c % 2)) * (double)attn_num_bf16_f32(k[j * ldk + c]);
            if (s[j] > top) top = s[j];
        }
        for (int64_t j = t.lo[r]; j < t.hi[r]; j++) sum += exp2((s[j] - top) * (double)0.7f);
        if (t.lo[r] == t.hi[r]) {
            assert_true(isinf(t.m[r]) && t.l[r] == 0);
        } else {
            assert_true(fabs((double)t.m[r] * 0.7 + log2((double)t.l[r]) - top * 0.7 - log2(sum)) <
                        1e-5 + 1e-6 * fabs(top));
        }
        for (int64_t c = 0; c < width; c++) {
            double want = 0, size = 1e-30;
            for (int64_t j = t.lo[r]; j < t.hi[r]; j++) {
                const double term = exp2((s[j] - top) * (double)0.7f) * (double)attn_num_bf16_f32(v[j * ldv + c]) / sum;
                want += term, size += fabs(term);
            }
            const double got = t.lo[r] == t.hi[r] ? (double)o[r * ldo + c] : (double)o[r * ldo + c] / (double)t.l[r];
            assert_true(fabs(got - want) <= 0x1p-8 * size);
        }
        run_decode(&alone, r, 1);
        assert_true(t.m[r] == alone.m[r] && t.l[r] == alone.l[r]);
        assert_memory_equal(o + r * ldo, old + r * ldo, (size_t)width * sizeof *o);
        free(s);
    }
    for (int64_t j = 0; j < n && !spoilt; j++) { /* the first value that some rows see and some do not */
        int see = 0;
        for (int64_t r = 0; r < rows; r++) see += j >= t.lo[r] && j < t.hi[r];
        if (see && see < rows) spoilt = v + j * ldv + width / 2;
    }
    for (int part = 0; part < 2 && spoilt; part++) { /* that value, and its key */
        const int64_t j = (spoilt - v) / ldv;
        uint16_t *place = part ? k + j * ldk : spoilt, kept = *place;
        *place = part ? 0x7fc0 : 0x7f80;
        run_decode(&alone, 0, rows);
        for (int64_t r = 0; r < rows; r++) {
            const int sees = j >= t.lo[r] && j < t.hi[r];
            assert_int_equal(sees, !isfinite(alone.l[r]));
            if (!sees) assert_memory_equal(o + r * ldo, old + r * ldo, (size_t)width * sizeof *o);
        }
        *place = kept;
    }
    free(k), free(v), free(q), free(o), free(old);
}
static void test_pass(void **unused) {
    (void)unused;
    for (int64_t s = 0; u->decode_tiles && s < 24; s++)
        for (int apart = 0; apart < 2; apart++) {
            check_pass(1 + s % ATTN_DECODE_AMX_ROWS, 30 + 19 * s, 32 * (1 + s % 5), 32 * (1 + s % 4), apart);
            check_pass(1 + s % ATTN_DECODE_AMX_ROWS, s, 64, 128, apart);
        }
}

/* Blocks of 32 columns that lie apart: pairs of two rows, 16 columns and 16 more in the next tile, and rows rounded. */
static void test_blocks(void **unused) {
    enum { COLUMNS = 96, ROWS = 5, LD = 40, TILE = 256, LD_ZIP = 2 * TILE + 8 };
    uint16_t even[COLUMNS], odd[COLUMNS], rounded[ROWS * LD];
    float to[COLUMNS / 32 * LD_ZIP], x[ROWS * 32];
    (void)unused;
    for (int kind = 0; kind < 3; kind++) { /* both rows, no odd one, none */
        fill(even, COLUMNS), fill(odd, COLUMNS);
        memset(to, 77, sizeof to);
        u->zip_blocks(to, LD_ZIP, kind == 2 ? NULL : even, kind ? NULL : odd, COLUMNS);
        for (int j = 0; j < COLUMNS / 32 * LD_ZIP; j++) {
            uint16_t h[2];
            memcpy(h, to + j, sizeof h);
            const int column = j / LD_ZIP * 32 + j % LD_ZIP / TILE * 16 + j % LD_ZIP % TILE;
            if (j % LD_ZIP < 2 * TILE && j % LD_ZIP % TILE < 16) {
                assert_true(h[0] == (kind == 2 ? 0 : even[column]) && h[1] == (kind ? 0 : odd[column]));
            } else {
                assert_int_equal(h[0], 77 * 257);
            }
        }
    }
    for (int j = 0; j < ROWS * 32; j++) x[j] = (float)uniform();
    memset(rounded, 77, sizeof rounded);
    u->narrow_rows(rounded, LD, x, ROWS);
    for (int j = 0; j < ROWS * LD; j++)
        assert_int_equal(rounded[j], j % LD < 32 ? attn_num_f32_bf16(x[j / LD * 32 + j % LD]) : 77 * 257);
}

static void test_zip(void **unused) {
    uint16_t even[70], odd[70];
    float x[70], y[70], to[70 + PAD];
    (void)unused;
    for (int64_t n = 0; n <= 70; n++)
        for (int kind = 0; kind < 4; kind++) { /* both, no odd row, an infinity, a NaN */
            fill(even, 70), fill(odd, 70);
            memset(to, 77, sizeof to);
            if (n > 0 && kind == 2) odd[n - 1] = 0x7f80;
            if (n > 0 && kind == 3) even[n / 2] = 0xffc1;
            const int fine = u->zip(to, even, kind == 1 ? NULL : odd, n);
            assert_int_equal(fine, kind < 2 || n == 0);
            assert_int_equal(u->finite(even, n), kind != 3 || n == 0);
            assert_int_equal(u->finite(odd, n), kind != 2 || n == 0);
            for (int64_t j = 0; j < n; j++) {
                uint16_t h[2];
                memcpy(h, to + j, sizeof h);
                assert_true(h[0] == even[j] && h[1] == (kind == 1 ? 0 : odd[j]));
            }
            for (int64_t j = n * 4; j < (int64_t)sizeof to; j++) assert_int_equal(((char *)to)[j], 77);
            for (int j = 0; j < 70; j++) x[j] = (float)uniform(), y[j] = (float)(uniform() * exp(20 * uniform()));
            memset(to, 77, sizeof to);
            u->zip_f32(to, x, kind == 1 ? NULL : y, n, 0.7f);
            for (int64_t j = 0; j < n; j++) {
                uint16_t h[2];
                memcpy(h, to + j, sizeof h);
                assert_int_equal(h[0], attn_num_f32_bf16(x[j] * 0.7f));
                assert_int_equal(h[1], kind == 1 ? 0 : attn_num_f32_bf16(y[j] * 0.7f));
            }
            for (int64_t j = n * 4; j < (int64_t)sizeof to; j++) assert_int_equal(((char *)to)[j], 77);
        }
}

/* 32 rows as pairs, transposed, with NaN between the rows. */
static void test_turn(void **unused) {
    enum { MOST = 128, LD = MOST + 6 };
    static uint16_t rows[32 * LD];
    static float to[MOST * 16 + PAD];
    (void)unused;
    for (int64_t n = 32; n <= MOST; n += 32)
        for (int kind = 0; kind < 34; kind++) { /* finite, or a row with an infinity or a NaN */
            memset(rows, 0xff, sizeof rows);
            for (int64_t r = 0; r < 32; r++) fill(rows + r * LD, n);
            if (kind > 1) rows[(kind - 2) * LD + kind * 37 % n] = kind % 2 ? 0xff80 : 0x7fc1;
            for (int tiles = 0; tiles < 2; tiles++) {
                memset(to, 77, sizeof to);
                assert_int_equal((tiles ? u->zip_tiles : u->turn)(to, rows, LD, n), kind < 2);
                for (int64_t c = 0; c < n; c++)
                    for (int64_t r = 0; r < 32; r++) {
                        uint16_t h[2];
                        memcpy(h, to + (tiles ? c / 16 * 256 + r % 16 * 16 + c % 16 : c * 16 + r / 2), sizeof h);
                        assert_int_equal(h[tiles ? r / 16 : r % 2], rows[r * LD + c]);
                    }
                for (int64_t j = n * 64; j < n * 64 + PAD * 4; j++) assert_int_equal(((char *)to)[j], 77);
            }
        }
}

/* Results of strips of every number of rows, rounded to nearest even, with guards; strips that are not ordinary. */
static void test_finish(void **unused) {
    enum { STRIP = ATTN_FWD_ROWS, MOST = 64, LD = MOST + 8 };
    static float o[MOST * STRIP], m[STRIP], l[STRIP];
    static uint16_t out[STRIP * LD];
    static double lse[STRIP];
    uint16_t *row[STRIP];
    (void)unused;
    for (int kind = 0; u->finish && kind < 4 * STRIP; kind++) {
        const int64_t rows = kind % STRIP + 1, width = kind % 3 ? MOST : 32;
        const int bf16 = kind / STRIP % 2, bad = kind < 2 * STRIP ? 0 : 1 + kind % 4, tiles = bf16 && kind % 2;
        for (int64_t r = 0; r < STRIP; r++) {
            row[r] = out + r * LD;
            m[r] = r < rows ? (float)uniform() * 40 : -INFINITY, l[r] = r < rows ? expf((float)uniform() * 20) : 0;
        }
        for (int64_t i = 0; i < MOST * STRIP; i++) o[i] = (float)uniform() * 9;
        if (bad) { /* empty, far, NaN, 0 */
            static const float ms[] = {-INFINITY, 0x1p70f, 1, 1}, ls[] = {1, 1, NAN, 0};
            m[rows - 1] = ms[bad - 1], l[rows - 1] = ls[bad - 1];
        }
        memset(out, 77, sizeof out);
        const struct attn_fwd_finish f = {rows, width, tiles, bf16, 6,   74.5f,
                                          0.3f, m,     l,     o,    row, kind % 5 ? lse : NULL};
        assert_int_equal(u->finish(&f), !bad);
        for (int64_t r = 0; r < STRIP; r++) {
            const int there = !bad && r < rows;
            for (int64_t d = 0; d < LD; d++) {
                const int64_t column = d % MOST, cell = tiles ? attn_fwd_rowmajor_cell(r, column) : column * STRIP + r;
                const float x = o[cell] * (1 / l[r]);
                const uint16_t rounded = bf16 ? attn_num_f32_bf16(x) : attn_num_f32_f16(x);
                assert_int_equal(row[r][d], there && d < width ? rounded : 0x4d4d);
            }
            const double want = (double)(m[r] * 0.3f + 6) * log(2) + log((double)l[r]) - log(74.5);
            if (there && f.lse) assert_true(fabs(lse[r] - want) <= 1e-11 * (1 + fabs(want)));
        }
    }
}

/* Tiles of 16 rows; halves of a row in the same places. */
static void test_stack(void **unused) {
    enum { N = 96, LD = N + 5 };
    static uint16_t rows[16 * LD], to[16 * N], half[2][N], far[2][N / 32 * 512];
    (void)unused;
    fill(rows, 16 * LD);
    u->stack(to, rows, LD, N);
    for (int64_t i = 0; i < 16 * N; i++) assert_int_equal(to[i], rows[i / 32 % 16 * LD + i / 512 * 32 + i % 32]);
    for (int64_t n = 1; n <= N; n++) {
        for (int64_t c = 0; c < N; c++) rows[c] = n % 7 || c != n / 2 ? attn_num_f32_f16((float)uniform()) : 0x7c00;
        assert_int_equal(u->split_f16(far[0], far[1], rows, n, 512), u->split_f16(half[0], half[1], rows, n, 32));
        for (int64_t i = 0; i < 2 * n; i++) assert_int_equal(far[i % 2][i / 64 * 512 + i / 2 % 32], half[i % 2][i / 2]);
    }
}

/* No less than the largest sum of squares, no more than the sum of all; one row: just that. */
static void test_most_square(void **unused) {
    enum { ROWS = 16, WIDTH = 96, LD = 40, STEP = 700 };
    static uint16_t x[STEP * WIDTH / 32];
    (void)unused;
    for (int64_t n = 1; n <= ROWS; n++)
        for (int64_t width = 32; width <= WIDTH; width += 32) {
            double most = 0, all = 0;
            for (int64_t i = 0; i < STEP * WIDTH / 32; i++) x[i] = attn_num_f32_bf16((float)uniform() * 3);
            for (int64_t r = 0; r < n; r++) {
                double sum = 0;
                for (int64_t c = 0; c < width; c++) {
                    const double y = (double)attn_num_bf16_f32(x[r * LD + c / 32 * STEP + c % 32]);
                    sum += y * y;
                }
                all += sum, most = fmax(most, sum);
            }
            const double got = (double)u->most_square(x, LD, n, width, STEP);
            assert_true(got >= most * (1 - 1e-6) && got <= (n == 1 ? most : all) * (1 + 1e-6));
        }
}

/* The sum is of the unrounded values: what one element's sum is off by is the error of the exponential. */
static void test_exp2(void **unused) {
    double worst = 0;
    (void)unused;
    for (int step = 0; step < 40000; step++) {
        const float x = -120.0f + 130.0f * (float)step / 40000, factor = 1.3f, max = 2.25f;
        uint16_t p[1];
        const double sum = (double)u->exp2(p, &x, 1, factor, max), y = ((double)x - (double)max) * (double)factor;
        if (y < -125.9) {
            assert_true(sum >= 0 && sum <= 0x1p-125);
        } else { /* y itself is rounded twice */
            assert_int_equal(p[0], attn_num_f32_bf16((float)sum));
            worst = fmax(worst, fabs(sum / exp2(y) - 1) - fabs(y) * 0x1p-24 * 1.4);
        }
    }
    printf("exp2 relative error %.2e\n", worst);
    assert_true(worst > 1e-9 && worst <= 2e-7);
    for (int64_t n = 0; n <= 70; n++) {
        float x[70];
        uint16_t p[70 + PAD];
        double want = 0;
        for (int j = 0; j < 70; j++) x[j] = (float)(4 * uniform());
        memset(p, 77, sizeof p);
        if (n > 2) x[1] = -INFINITY, x[n - 1] = -1e30f;
        for (int64_t j = 0; j < n; j++) want += exp2((double)x[j] - 1);
        const double sum = (double)u->exp2(p, x, n, 1, 1);
        assert_true(fabs(sum - want) <= 1e-6 * want);
        for (int64_t j = 0; j < n; j++)
            assert_true(fabs((double)attn_num_bf16_f32(p[j]) - exp2((double)x[j] - 1)) <=
                        0.00392 * exp2((double)x[j] - 1));
        if (n > 2) assert_true(p[1] == 0 && p[n - 1] == 0);
        for (int64_t j = n; j < 70 + PAD; j++) assert_int_equal(p[j], 77 * 257);
        if (n == 0) continue;
        x[0] = 1;
        assert_true(u->exp2(p, x, 1, 3, 1) == 1 && p[0] == 0x3f80);
        x[n / 2] = NAN;
        assert_true(isnan(u->exp2(p, x, n, 1, 1)));
        assert_true((p[n / 2] & 0x7fff) > 0x7f80);
    }
}

/* Column by column the same as exp2 does row by row. */
static void test_soften(void **unused) {
    float even[70], odd[70], max[70], sum[70 + PAD], sum_rounded[70 + PAD], to[70 + PAD];
    uint16_t narrow[70 + PAD];
    (void)unused;
    for (int64_t n = 0; n <= 70; n++)
        for (int both = 0; both < 2; both++) {
            for (int j = 0; j < 70; j++) {
                even[j] = (float)(9 * uniform()), odd[j] = (float)(9 * uniform()), max[j] = (float)(3 * uniform());
                sum[j] = sum_rounded[j] = (float)j;
            }
            if (n > 4) even[3] = -INFINITY, odd[4] = NAN;
            memset(to, 77, sizeof to);
            memset(narrow, 77, sizeof narrow);
            u->exp_scores(to, even, both ? odd : NULL, max, sum, sum_rounded, n, 1.25f);
            u->narrow(narrow, even, n);
            for (int j = 0; j < 70; j++) {
                uint16_t h[2], e = 77 * 257, o = e;
                memcpy(h, to + j, sizeof h);
                if (j >= n) {
                    assert_true(h[0] == e && h[1] == e && sum[j] == (float)j && sum_rounded[j] == sum[j] &&
                                narrow[j] == e);
                    continue;
                }
                float want = u->exp2(&e, even + j, 1, 1.25f, max[j]), other = u->exp2(&o, odd + j, 1, 1.25f, max[j]);
                want += (float)j;
                if (both) want += other;
                assert_true(h[0] == e && (both ? h[1] == o : h[1] == 0));
                assert_true(sum[j] == want || (isnan(sum[j]) && isnan(want)));
                const float rounded = (float)j + u->total(h, 2);
                assert_true(fabsf(sum_rounded[j] - rounded) <= 1e-6f * rounded ||
                            (isnan(sum_rounded[j]) && isnan(rounded)));
                assert_int_equal(narrow[j], attn_num_f32_bf16(even[j]));
            }
        }
}

/* Rows of the backward: P, dS and their forms, from one exponential. */
static void test_grad(void **unused) {
    float s[2][70], dp[2][70], x[70], p_zip[70 + PAD], ds_zip[70 + PAD];
    uint16_t ds[2][70 + PAD];
    (void)unused;
    for (int64_t n = 0; n <= 70; n++)
        for (int rows = 1; rows <= 2; rows++) {
            struct attn_bwd_row row[2];
            memset(p_zip, 77, sizeof p_zip), memset(ds_zip, 77, sizeof ds_zip), memset(ds, 77, sizeof ds);
            for (int r = 0; r < 2; r++) {
                for (int j = 0; j < 70; j++) s[r][j] = (float)(5 * uniform()), dp[r][j] = (float)(3 * uniform());
                if (n > 5) s[r][2] = -INFINITY, dp[r][2] = NAN; /* hidden: nothing of it shows */
                row[r] = (struct attn_bwd_row){s[r], dp[r], 1.5f + (float)r, 0.25f * (float)r, ds[r]};
            }
            u->bwd_rows(p_zip, ds_zip, &row[0], rows == 2 ? &row[1] : NULL, n, 0.75f);
            for (int r = 0; r < 2; r++) {
                memcpy(x, s[r], sizeof x);
                u->exp2_f32(x, n, 0.75f, row[r].max);
                for (int64_t j = 0; j < n; j++) {
                    uint16_t p2[2], d2[2];
                    const float want = x[j] == 0 ? 0 : x[j] * (dp[r][j] - row[r].delta);
                    memcpy(p2, p_zip + j, sizeof p2), memcpy(d2, ds_zip + j, sizeof d2);
                    assert_int_equal(p2[r], r < rows ? attn_num_f32_bf16(x[j]) : 0);
                    assert_int_equal(d2[r], r < rows ? attn_num_f32_bf16(want) : 0);
                    assert_int_equal(ds[r][j], r < rows ? attn_num_f32_bf16(want) : 77 * 257);
                }
                for (int64_t j = n; j < 70 + PAD; j++) assert_int_equal(ds[r][j], 77 * 257);
            }
            for (int64_t j = n * 4; j < (int64_t)sizeof p_zip; j++)
                assert_true(((char *)p_zip)[j] == 77 && ((char *)ds_zip)[j] == 77);
            uint16_t half[70];
            float sum = u->exp2(half, s[0], n, 0.75f, 1.5f);
            memcpy(x, s[0], sizeof x);
            assert_true(u->exp2_f32(x, n, 0.75f, 1.5f) == sum);
            for (int64_t j = 0; j < n; j++) assert_int_equal(half[j], attn_num_f32_bf16(x[j]));
        }
}

/* Every f16 is the sum of its halves, in both forms; what is not finite takes its row, or itself, to 0. */
static void test_halves(void **unused) {
    (void)unused;
    for (int64_t n = 1; n <= 35; n += 17)
        for (uint32_t first = 0; first < 0x10000; first += 32) {
            uint16_t x[2][35], high[35 + PAD], low[35 + PAD];
            float zip[2][35 + PAD];
            int finite = 1;
            for (int i = 0; i < 35; i++)
                x[0][i] = (uint16_t)(first + (uint32_t)i), x[1][i] = (uint16_t)(~first - (uint32_t)i);
            memset(high, 77, sizeof high), memset(low, 77, sizeof low), memset(zip, 77, sizeof zip);
            for (int64_t i = 0; i < n; i++) finite &= isfinite(attn_num_f16_f32(x[0][i])) != 0;
            assert_int_equal(u->split_f16(high, low, x[0], n, 32), finite);
            const int all = u->zip_split_f16(zip[0], zip[1], x[0], n > 17 ? NULL : x[1], n);
            for (int64_t i = 0; i < n; i++) {
                const float want = finite ? attn_num_f16_f32(x[0][i]) : 0;
                assert_true(attn_num_bf16_f32(high[i]) + attn_num_bf16_f32(low[i]) == want);
                assert_true(fabsf(attn_num_bf16_f32(low[i])) <= fabsf(want) * 0x1p-8f);
                for (int r = 0; r < 2; r++) {
                    const float value = r && n > 17 ? 0 : attn_num_f16_f32(x[r][i]);
                    const double sum = half_of(zip[0] + i, r) + half_of(zip[1] + i, r);
                    if (!isfinite(value)) assert_false(all);
                    assert_true(sum == (isfinite(value) ? (double)value : 0));
                }
            }
            for (int64_t i = n; i < 35 + PAD; i++) {
                float guard;
                memset(&guard, 77, sizeof guard);
                assert_true(high[i] == 77 * 257 && low[i] == 77 * 257 && zip[0][i] == guard && zip[1][i] == guard);
            }
        }
}

/* Every finite f32 is the sum of its three terms, in both forms; what is not finite takes its row, or itself, to 0. */
static void test_thirds(void **unused) {
    enum { MOST = 35, FAR = MOST + PAD };
    (void)unused;
    for (int64_t n = 1; n <= MOST; n += 17)
        for (int round = 0; round < 2000; round++) {
            float x[2][MOST], zip[3 * FAR], guard;
            uint16_t part[3 * FAR];
            int finite = 1;
            for (int i = 0; i < 2 * MOST; i++) {
                const float sizes[] = {1, 0x1p100f, 0x1p-60f, 0, 3.4028234e38f, INFINITY, NAN};
                const int size = (round + i) % 50 == 0 ? (round / 50 + i) % 7 : (round + i) % 3;
                x[i / MOST][i % MOST] = (float)uniform() * sizes[size];
                if (size > 3) x[i / MOST][i % MOST] = i % 2 ? sizes[size] : -sizes[size];
            }
            memset(part, 77, sizeof part), memset(zip, 77, sizeof zip), memset(&guard, 77, sizeof guard);
            for (int64_t i = 0; i < n; i++) finite &= isfinite(x[0][i]) != 0;
            assert_int_equal(u->split_f32(part, FAR, x[0], n, 32), finite);
            const int all = u->zip_split_f32(zip, FAR, x[0], n > 17 ? NULL : x[1], n);
            for (int64_t i = 0; i < n; i++) {
                double sum = 0;
                for (int t = 0; t < 3; t++) sum += (double)attn_num_bf16_f32(part[t * FAR + i]);
                assert_true(sum == (finite ? (double)x[0][i] : 0));
                for (int r = 0; r < 2; r++) {
                    const float value = r && n > 17 ? 0 : x[r][i];
                    sum = 0;
                    for (int t = 0; t < 3; t++) sum += half_of(zip + t * FAR + i, r);
                    if (!isfinite(value)) assert_false(all);
                    assert_true(sum == (isfinite(value) ? (double)value : 0));
                }
            }
            for (int t = 0; t < 3; t++)
                for (int64_t i = n; i < FAR; i++)
                    assert_true(part[t * FAR + i] == 77 * 257 && zip[t * FAR + i] == guard);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),   cmocka_unit_test(test_few),    cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_zip),    cmocka_unit_test(test_halves), cmocka_unit_test(test_most_square),
        cmocka_unit_test(test_thirds), cmocka_unit_test(test_soften), cmocka_unit_test(test_grad),
        cmocka_unit_test(test_exp2),   cmocka_unit_test(test_turn),   cmocka_unit_test(test_finish),
        cmocka_unit_test(test_stack),  cmocka_unit_test(test_pass)};
    const uint64_t features = attn_cpu_features("", NULL);
    if (!(features & ATTN_CPU_BF16)) {
        printf("no AVX-512 with BF16 on this processor: skipped\n");
        return 77;
    }
    u = &attn_ukr_bf16_avx512bf16;
    int failed = cmocka_run_group_tests_name("avx512bf16", tests, begin, end);
    if (!(features & ATTN_CPU_AMX)) return failed;
    u = &attn_ukr_bf16_amx;
    return failed + cmocka_run_group_tests_name("amx", tests, begin, end);
}
