/* SPDX-License-Identifier: MIT
 * The products of rows in place against double loops on the same numbers: every number of heads and of rows, rows in
 * any order, unaligned and repeated, guards around all results, and every line of the next rows asked for once at most.
 * Skipped without the instructions. */
#include "attn.h"

#include "base/num.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/sparse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KEYS = 37, MOST = 300, PAD = 40 };
static const struct attn_ukr_sparse *sparse = &attn_ukr_sparse_avx512bf16;

static uint64_t state = 1;
static double uniform(void) { /* -1 .. 1 */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) * 0x1p-52 - 1;
}
static void fill(void *x, int64_t n) { /* n pairs */
    uint16_t *to = x;
    for (int64_t i = 0; i < 2 * n; i++) to[i] = attn_num_f32_bf16((float)uniform());
}
static double half_of(const float *word, int64_t odd) {
    uint16_t h[2];
    memcpy(h, word, sizeof h);
    return (double)attn_num_bf16_f32(h[odd]);
}
static float *floats(int64_t n) {
    float *x = aligned_alloc(64, (size_t)((n * 4 + 63) / 64 * 64));
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)uniform();
    return x;
}
static float *pairs_of(int64_t n) {
    float *x = floats(n);
    fill(x, n);
    return x;
}

/* Rows of `width` values, NaN before and behind each, in some order. */
struct rows {
    uint16_t *kv;
    const uint16_t *row[MOST];
};
static void make_rows(struct rows *r, int64_t width) {
    const int64_t ld = width + 3;
    r->kv = malloc((size_t)(KEYS * ld + 2) * sizeof *r->kv);
    assert_non_null(r->kv);
    memset(r->kv, 0xff, (size_t)(KEYS * ld + 2) * sizeof *r->kv);
    for (int64_t k = 0; k < KEYS; k++) fill(r->kv + 1 + k * ld, width / 2);
    for (int64_t i = 0; i < MOST; i++) r->row[i] = r->kv + 1 + (int64_t)((uniform() + 1) * 0.4999 * KEYS) * ld;
}
static double element(const struct rows *r, int64_t row, int64_t column) {
    return (double)attn_num_bf16_f32(r->row[row][column]);
}
static struct attn_sparse_ahead ahead_of(const struct rows *r, int64_t burst) {
    return (struct attn_sparse_ahead){.row = r->row, .n = 7, .lines = 2, .burst = burst};
}

static void check_scores(int64_t n, int64_t heads, int64_t depth, int64_t burst) {
    const int64_t rows = (n + ATTN_SPARSE_ROWS - 1) / ATTN_SPARSE_ROWS * ATTN_SPARSE_ROWS,
                  side = (heads + 15) / 16 * 16, ld = side + 5;
    float *transposed = pairs_of(depth * side), *s = floats(rows * ld + PAD),
          *old = malloc((size_t)(rows * ld + PAD) * 4);
    memcpy(old, s, (size_t)(rows * ld + PAD) * 4);
    for (int64_t h = heads; h < side; h++)
        for (int64_t c = 0; c < depth; c++) {
            const int64_t first = h / 32 * 32, width = side - first < 32 ? 16 : 32;
            transposed[first * depth + c * width + h - first] = 0;
        }
    struct rows r;
    make_rows(&r, 2 * depth);
    struct attn_sparse_ahead ahead = ahead_of(&r, burst);
    sparse->scores(n, heads, depth, r.row, transposed, s, ld, &ahead);
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < ld; h++) {
            if (h >= side) {
                assert_true(s[i * ld + h] == old[i * ld + h]);
                continue;
            }
            const int64_t first = h / 32 * 32, width = side - first < 32 ? 16 : 32;
            double want = 0, size = 1e-30;
            for (int64_t c = 0; c < 2 * depth; c++) {
                const double term =
                    element(&r, i, c) * half_of(transposed + first * depth + c / 2 * width + h - first, c % 2);
                want += term, size += fabs(term);
            }
            assert_true(fabs((double)s[i * ld + h] - want) <= 1e-6 * size);
        }
    for (int64_t i = rows * ld; i < rows * ld + PAD; i++) assert_true(s[i] == old[i]);
    const int64_t left = heads % 32, tiles = (heads + 31) / 32 + (left > 16 && left <= 24); /* 17 to 24: 16 and 8 */
    const int64_t prefetched = rows / ATTN_SPARSE_ROWS * tiles * (depth / 16) * burst;
    assert_true(14 - ahead.n * 2 + ahead.line == (prefetched < 14 ? prefetched : 14));
    free(transposed), free(s), free(old), free(r.kv);
}
static void test_scores(void **unused) {
    (void)unused;
    for (int64_t heads = 1; heads <= 70; heads++) check_scores(13, heads, 32, heads % 3);
    for (int64_t n = 1; n <= 40; n++) check_scores(n, 24, 16, 1);
    check_scores(24, 128, 288, 1);
}

static void check_sum(int64_t heads, int64_t columns, int64_t pairs, int accumulate) {
    const int64_t lda = heads + 3, ldc = columns + 7;
    float *a = pairs_of(pairs * lda), *c = floats(heads * ldc + PAD), *old = malloc((size_t)(heads * ldc + PAD) * 4);
    memcpy(old, c, (size_t)(heads * ldc + PAD) * 4);
    struct rows r;
    make_rows(&r, columns);
    struct attn_sparse_ahead ahead = ahead_of(&r, 3);
    sparse->sum(heads, columns, pairs, a, lda, r.row, c, ldc, accumulate, &ahead);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t j = 0; j < ldc; j++) {
            double want = accumulate ? (double)old[h * ldc + j] : 0, size = fabs(want) + 1e-30;
            if (j >= columns) {
                assert_true(c[h * ldc + j] == old[h * ldc + j]);
                continue;
            }
            for (int64_t l = 0; l < 2 * pairs; l++) {
                const double term = element(&r, l, j) * half_of(a + l / 2 * lda + h, l % 2);
                want += term, size += fabs(term);
            }
            assert_true(fabs((double)c[h * ldc + j] - want) <= 1e-6 * size);
        }
    for (int64_t i = heads * ldc; i < heads * ldc + PAD; i++) assert_true(c[i] == old[i]);
    free(a), free(c), free(old), free(r.kv);
}
static void test_sum(void **unused) {
    (void)unused;
    for (int64_t heads = 1; heads <= 45; heads++)
        for (int accumulate = 0; accumulate < 2; accumulate++) check_sum(heads, 64, 1 + heads % 9, accumulate);
    check_sum(128, 576, 66, 1);
    check_sum(16, 32, 1, 0);
}

static void check_add(int64_t n, int64_t from, int64_t end, int64_t narrow, int64_t depth) {
    const int64_t width = end + 32, ldx = 2 * depth + 2, panel = 32 * depth + 16, panels = width / 32;
    float *x = pairs_of(n * ldx), *q = pairs_of(panels * panel), *dout = pairs_of(panels * panel);
    float *sums = floats(KEYS * width), *to[MOST];
    double *want = malloc((size_t)(KEYS * width) * sizeof *want), *size = malloc((size_t)(KEYS * width) * sizeof *size);
    for (int64_t i = 0; i < KEYS * width; i++) want[i] = (double)sums[i], size[i] = fabs(want[i]) + 1e-30;
    for (int64_t r = 0; r < n; r++) {
        const int64_t key = r % 3 ? (int64_t)((uniform() + 1) * 0.4999 * KEYS) : 5; /* the same one often */
        to[r] = sums + key * width;
        for (int64_t j = from; j < end; j++)
            for (int64_t l = 0; l < 4 * depth; l++) {
                const int64_t second = l >= 2 * depth, k = l % (2 * depth);
                if (second && j >= narrow) break;
                const double term = half_of(x + r * ldx + second * ldx / 2 + k / 2, k % 2) *
                                    half_of((second ? dout : q) + j / 32 * panel + k / 2 * 32 + j % 32, k % 2);
                want[key * width + j] += term, size[key * width + j] += fabs(term);
            }
    }
    sparse->add(n, from, end, narrow, depth, x, ldx, q, dout, panel, to);
    for (int64_t i = 0; i < KEYS * width; i++) assert_true(fabs((double)sums[i] - want[i]) <= 1e-6 * size[i]);
    free(x), free(q), free(dout), free(sums), free(want), free(size);
}
static void test_add(void **unused) {
    (void)unused;
    for (int64_t n = 0; n <= 45; n++) check_add(n, 32, 128, 96, 1 + n % 7);
    check_add(128, 256, 576, 512, 64);
    check_add(7, 0, 32, 0, 4);
}

static void test_zip(void **unused) {
    (void)unused;
    enum { WIDTH = 96, PANEL = 40 };
    uint16_t row[2][WIDTH];
    float dst[3 * PANEL];
    fill(row, WIDTH);
    for (int two = 0; two < 2; two++) {
        memset(dst, 0xff, sizeof dst);
        sparse->zip(dst, PANEL, row[0], two ? row[1] : NULL, WIDTH);
        for (int64_t j = 0; j < 3 * PANEL; j++) {
            const int64_t column = j / PANEL * 32 + j % PANEL;
            uint16_t two_rows[2];
            memcpy(two_rows, dst + j, sizeof two_rows);
            assert_int_equal(two_rows[0], j % PANEL < 32 ? row[0][column] : 0xffff);
            assert_int_equal(two_rows[1], j % PANEL < 32 ? two ? row[1][column] : 0 : 0xffff);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores), cmocka_unit_test(test_sum),
                                       cmocka_unit_test(test_add), cmocka_unit_test(test_zip)};
    if (!(attn_cpu_features("", NULL) & ATTN_CPU_BF16)) {
        printf("no AVX-512 with BF16 on this processor: skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
