/* SPDX-License-Identifier: MIT
 * Few rows in one pass (ukr/decode.h), every table that the processor has, against double loops on the same numbers:
 * odd widths with NaN behind them, keys that rows do not see, references that move, values that are not finite, and the
 * same bits for a row alone. */
#include "attn.h"

#include "base/num.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/decode.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t state = 1;
static double uniform(void) { /* -1 .. 1 */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) * 0x1p-52 - 1;
}

enum { KEYS = ATTN_DECODE_KEYS, STEPS = 4, ALL = STEPS * KEYS, MOST = 512 };
static const struct table {
    const char *name;
    const struct attn_ukr_decode *u;
    uint64_t feature;
    int32_t dtype;
    int pairs;
} tables[] = {
#ifndef ATTN_NO_X86
    {"f32 avx512", &attn_ukr_decode_f32_avx512, ATTN_CPU_AVX512, ATTN_F32, 0},
    {"f16 avx512", &attn_ukr_decode_f16_avx512, ATTN_CPU_AVX512, ATTN_F16, 0},
    {"bf16 avx512", &attn_ukr_decode_bf16_avx512, ATTN_CPU_AVX512, ATTN_BF16, 0},
    {"f32 avx2", &attn_ukr_decode_f32_avx2, ATTN_CPU_AVX2, ATTN_F32, 0},
    {"f16 avx2", &attn_ukr_decode_f16_avx2, ATTN_CPU_AVX2, ATTN_F16, 0},
    {"bf16 avx2", &attn_ukr_decode_bf16_avx2, ATTN_CPU_AVX2, ATTN_BF16, 0},
    {"pairs avx512bf16", &attn_ukr_decode_avx512bf16, ATTN_CPU_BF16, ATTN_BF16, 1},
#endif
    {NULL, NULL, 0, 0, 0}};
static const struct table *t;

static int64_t bytes(void) { return t->dtype == ATTN_F32 ? 4 : 2; }
static void put(char *address, double x) { attn_num_store(address, t->dtype, 0, x); }
static double get(const char *address) { return attn_num_load(address, t->dtype, 0); }

/* Operands: rows of keys and values end where NaNs begin. */
struct operands {
    int64_t rows, depth, width, ldq, ldo, row_k, row_v;
    float *q, *o;
    char *k, *v;
    float m[ATTN_DECODE_ROWS], l[ATTN_DECODE_ROWS * KEYS], l_rounded[ATTN_DECODE_ROWS * ATTN_DECODE_ROUNDED];
    int lo[ATTN_DECODE_ROWS], hi[ATTN_DECODE_ROWS];
};
static void run(struct operands *x, int64_t first, int64_t rows) {
    struct attn_decode f = {.rows = rows,
                            .depth = x->depth,
                            .width = x->width,
                            .keys = KEYS,
                            .q = x->q + first * x->ldq,
                            .ldq = x->ldq,
                            .factor = 0.7f,
                            .m = x->m + first,
                            .l = x->l + first * KEYS,
                            .o = x->o + first * x->ldo,
                            .ldo = x->ldo,
                            .l_rounded = x->l_rounded + first * ATTN_DECODE_ROUNDED};
    float s[ATTN_DECODE_ROWS * KEYS];
    memset(f.l, 0, (size_t)(rows * KEYS) * sizeof *f.l);
    memset(f.l_rounded, 0, (size_t)(rows * ATTN_DECODE_ROUNDED) * sizeof *f.l_rounded);
    for (int64_t r = 0; r < rows; r++) {
        f.m[r] = -INFINITY;
        memset(f.o + r * x->ldo, 0, (size_t)((x->width + 15) / 16 * 16) * sizeof *f.o);
    }
    for (int64_t j = 0; j < ALL; j += KEYS) {
        const void *k[KEYS], *v[KEYS];
        for (int64_t i = 0; i < KEYS; i++) k[i] = x->k + (j + i) * x->row_k, v[i] = x->v + (j + i) * x->row_v;
        t->u->scores(&f, k, j ? k : NULL, s);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < KEYS; i++)
                if (j + i < x->lo[first + r] || j + i >= x->hi[first + r]) s[r * KEYS + i] = -INFINITY;
        t->u->add_pv(&f, v, j ? v : NULL, s);
    }
}
static double q_of(const struct operands *x, int64_t r, int64_t c) {
    if (!t->pairs) return (double)x->q[r * x->ldq + c];
    uint16_t h[2];
    memcpy(h, x->q + r * x->ldq + c / 2, sizeof h);
    return (double)attn_num_bf16_f32(h[c % 2]);
}
static void q_set(struct operands *x, int64_t r, int64_t c, double y) {
    uint16_t h[2] = {0};
    if (!t->pairs) {
        x->q[r * x->ldq + c] = (float)y;
        return;
    }
    if (c % 2) memcpy(h, x->q + r * x->ldq + c / 2, sizeof h);
    h[c % 2] = attn_num_f32_bf16((float)y);
    memcpy(x->q + r * x->ldq + c / 2, h, sizeof h);
}
static double sum_of(const float *l) {
    double sum = 0;
    for (int i = 0; i < KEYS; i++) sum += (double)l[i];
    return sum;
}
static void compare(const struct operands *x, int64_t r) {
    double s[ALL], top = -INFINITY, sum = 0;
    for (int j = x->lo[r]; j < x->hi[r]; j++) {
        s[j] = 0;
        for (int64_t c = 0; c < x->depth; c++) s[j] += q_of(x, r, c) * get(x->k + j * x->row_k + c * bytes());
        top = s[j] > top ? s[j] : top;
    }
    for (int j = x->lo[r]; j < x->hi[r]; j++) sum += s[j] = exp2((s[j] - top) * (double)0.7f);
    const double l = sum_of(x->l + r * KEYS), m = (double)x->m[r];
    if (x->lo[r] >= x->hi[r]) {
        assert_true(isinf(x->m[r]) && l == 0);
    } else {
        assert_true(fabs(m * (double)0.7f + log2(l) - top * (double)0.7f - log2(sum)) < 1e-5 + 1e-6 * fabs(top));
    }
    for (int64_t c = 0; c < x->width; c++) {
        double want = 0, size = 1e-30;
        for (int j = x->lo[r]; j < x->hi[r]; j++) {
            const double term = s[j] / sum * get(x->v + j * x->row_v + c * bytes());
            want += term, size += fabs(term);
        }
        const double got = (double)x->o[r * x->ldo + c] / (l > 0 ? l : 1);
        assert_true(fabs(got - want) <= (t->pairs ? 0x1p-8 : 2e-6 + 1e-6 * fabs(top)) * size);
    }
}
static void check(int64_t rows, int64_t depth, int64_t width, int hides) {
    struct operands x = {.rows = rows, .depth = depth, .width = width, .ldo = (width + 15) / 16 * 16 + 16};
    x.ldq = depth + 3, x.row_k = (depth + 5) * bytes(), x.row_v = (width + 3) * bytes();
    const size_t n_k = (size_t)(ALL * x.row_k), n_v = (size_t)(ALL * x.row_v), n_o = (size_t)(rows * x.ldo);
    x.q = malloc((size_t)(rows * x.ldq) * sizeof *x.q), x.k = malloc(n_k), x.v = malloc(n_v);
    x.o = malloc(n_o * sizeof *x.o);
    float *old = malloc(n_o * sizeof *x.o), l[ATTN_DECODE_ROWS * KEYS], m[ATTN_DECODE_ROWS];
    memset(x.k, 0xff, n_k), memset(x.v, 0xff, n_v); /* NaN */
    memset(x.q, 0xff, (size_t)(rows * x.ldq) * sizeof *x.q);
    for (int64_t j = 0; j < ALL; j++) {
        for (int64_t c = 0; c < depth; c++) put(x.k + j * x.row_k + c * bytes(), uniform());
        for (int64_t c = 0; c < width; c++) put(x.v + j * x.row_v + c * bytes(), uniform());
    }
    for (int64_t r = 0; r < rows; r++) {
        x.lo[r] = hides ? (int)(fabs(uniform()) * 30) : 0, x.hi[r] = ALL - (hides ? (int)(fabs(uniform()) * 50) : 0);
        if (x.hi[r] < x.lo[r]) x.hi[r] = x.lo[r];
        for (int64_t c = 0; c < depth + depth % 2 * t->pairs; c++) /* some scores leave their first reference */
            q_set(&x, r, c, c < depth ? uniform() * (r % 3 == 2 ? 20 : 1) : 0);
    }
    for (size_t i = 0; i < n_o; i++) x.o[i] = 77;
    run(&x, 0, rows);
    for (int64_t r = 0; r < rows; r++) compare(&x, r);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = (width + 15) / 16 * 16; c < x.ldo; c++) assert_true(x.o[r * x.ldo + c] == 77);
    memcpy(old, x.o, n_o * sizeof *old), memcpy(l, x.l, sizeof l), memcpy(m, x.m, sizeof m);
    for (int64_t r = 0; r < rows; r++) { /* alone, the same bits */
        run(&x, r, 1);
        assert_true(x.m[r] == m[r]);
        assert_memory_equal(x.l + r * KEYS, l + r * KEYS, (size_t)KEYS * sizeof *l);
        assert_memory_equal(x.o + r * x.ldo, old + r * x.ldo, (size_t)width * sizeof *old);
    }
    for (int part = 0; part < 4; part++) { /* a key and a value that are not finite show in the rows that see them */
        const int64_t j = ALL / 2 - 1;
        char *place = part % 2 ? x.v + j * x.row_v + (width - 1) * bytes() : x.k + j * x.row_k;
        const double kept = get(place);
        put(place, part < 2 ? NAN : INFINITY);
        run(&x, 0, rows);
        for (int64_t r = 0; r < rows; r++) {
            const int sees = j >= x.lo[r] && j < x.hi[r];
            const float o = x.o[r * x.ldo + width - 1];
            if (part == 0) assert_int_equal(sees, isnan(sum_of(x.l + r * KEYS)));
            if (part == 1 && sees) assert_true(isnan(o));
            if (part == 3 && sees && x.l[r * KEYS + j % KEYS] > 1e-3f) assert_true(!isfinite(o));
        }
        put(place, kept);
    }
    free(x.q), free(x.k), free(x.v), free(x.o), free(old);
}
static void test_pass(void **unused) {
    (void)unused;
    for (int64_t s = 1; s <= 70; s++)
        for (int hides = 0; hides < 2; hides++) {
            check(1 + s % ATTN_DECODE_ROWS, s, 71 - s, hides);
            check(1 + s / 2 % ATTN_DECODE_ROWS, 2 * s, 130 - s, hides);
        }
    check(ATTN_DECODE_ROWS, MOST, MOST, 1);
    check(3, 128, 128, 0);
}
/* Equal values of equal scores: where all additions round the same way, those of f32 must not pile up. */
static void test_alike(void **unused) {
    enum { TIMES = 80, WIDTH = 48, ROWS = 3 };
    float s[ROWS * KEYS], m[ROWS], l[ROWS * KEYS] = {0}, o[ROWS * WIDTH] = {0};
    char row[WIDTH * sizeof(float)];
    const void *v[KEYS];
    float l_rounded[ROWS * ATTN_DECODE_ROUNDED] = {0};
    const struct attn_decode f = {.rows = ROWS,
                                  .width = WIDTH,
                                  .keys = KEYS,
                                  .factor = 0.7f,
                                  .m = m,
                                  .l = l,
                                  .o = o,
                                  .ldo = WIDTH,
                                  .l_rounded = l_rounded};
    (void)unused;
    for (int c = 0; c < WIDTH; c++) put(row + c * bytes(), 1 + c / 100.0);
    for (int i = 0; i < KEYS; i++) v[i] = row;
    for (int r = 0; r < ROWS; r++) m[r] = -INFINITY;
    for (int step = 0; step < TIMES; step++) {
        for (int i = 0; i < ROWS * KEYS; i++) s[i] = (float)(i / KEYS);
        t->u->add_pv(&f, v, NULL, s);
    }
    for (int r = 0; r < ROWS; r++) {
        assert_true(sum_of(l + r * KEYS) == TIMES * KEYS);
        for (int c = 0; c < WIDTH; c++)
            assert_true(fabs((double)o[r * WIDTH + c] / (TIMES * KEYS * get(row + c * bytes())) - 1) <
                        (bytes() == sizeof(float) ? 1.5e-6 : 1e-4));
    }
}

/* Values of 1: the sums are those of probabilities as they are rounded, also where the reference has moved. */
static void test_sum_as_rounded(void **unused) {
    enum { TIMES = 9, WIDTH = 16 };
    float m = -INFINITY, l[KEYS] = {0}, o[WIDTH] = {0}, l_rounded[ATTN_DECODE_ROUNDED] = {0}, s[KEYS];
    char row[WIDTH * sizeof(float)];
    const void *v[KEYS];
    const struct attn_decode f = {.rows = 1,
                                  .width = WIDTH,
                                  .keys = KEYS,
                                  .factor = 0.7f,
                                  .m = &m,
                                  .l = l,
                                  .o = o,
                                  .ldo = WIDTH,
                                  .l_rounded = l_rounded};
    double sum = 0;
    (void)unused;
    for (int c = 0; c < WIDTH; c++) put(row + c * bytes(), 1);
    for (int i = 0; i < KEYS; i++) v[i] = row;
    for (int step = 0; step < TIMES; step++) {
        for (int i = 0; i < KEYS; i++) s[i] = (float)(step / 4 * 40) - 0.37f * (float)(i * i % 7 + step % 4);
        t->u->add_pv(&f, v, NULL, s);
    }
    for (int i = 0; i < ATTN_DECODE_ROUNDED; i++) sum += (double)l_rounded[i];
    if (!t->pairs) sum = sum_of(l);
    assert_true(sum > 1 && fabs((double)o[0] / sum - 1) < 1e-6);
    if (t->pairs) assert_true(fabs(sum / sum_of(l) - 1) > 1e-5); /* they do differ */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pass), cmocka_unit_test(test_alike),
                                       cmocka_unit_test(test_sum_as_rounded)};
    const uint64_t features = attn_cpu_features("", NULL);
    int failed = 0, ran = 0;
    for (t = tables; t->u; t++) {
        if (!(features & t->feature)) continue;
        failed += cmocka_run_group_tests_name(t->name, tests, NULL, NULL);
        ran = 1;
    }
    if (!ran) printf("no AVX2 on this processor: skipped\n");
    return ran ? failed : 77;
}
