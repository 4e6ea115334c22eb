/* SPDX-License-Identifier: MIT
 * attn_ukr_pair.soft, .heads, .sum and .add against double loops on the same rounded numbers: every count of rows
 * around 32, rows behind the last that hold NaN, heads that do not exist or are dead, scores that are NaN or -inf. Runs
 * on tiles where there are any, and everywhere in emulation. */
#include "attn.h"

#include "base/num.h"
#include "cpu/cpu.h"
#include "cpu/ukr_pair.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE = ATTN_PAIR_HEADS };
static const struct attn_ukr_pair *const u = &attn_ukr_pair_amx;

#include "ukr_tests.h"

static void *zeros(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    assert_non_null(p);
    return memset(p, 0, (size_t)bytes);
}
static double half_at(const float *pairs, int64_t at) {
    return (double)attn_num_bf16_f32(((const uint16_t *)(const void *)pairs)[at]);
}

/* Rows of keys and heads of queries (or dout), as they are and as the entries want them. */
struct data {
    int64_t rows, padded, strips, depth, ldk;
    float *k, *panels;
    double *key, *head; /* [rows][2 depth], [32 strips][2 depth] */
};
static struct data make(int64_t rows, int64_t strips, int64_t depth) {
    struct data d = {rows, (rows + SIDE - 1) / SIDE * SIDE, strips, depth, depth + 16, NULL, NULL, NULL, NULL};
    d.k = zeros(d.padded * d.ldk * 4), d.panels = zeros(strips * depth * SIDE * 4);
    d.key = zeros(rows * depth * 16), d.head = zeros(strips * SIDE * depth * 16);
    memset(d.k, 0xff, (size_t)(d.padded * d.ldk) * 4); /* NaN where nothing is */
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < 2 * depth; c++) {
            uint16_t *to = (uint16_t *)(void *)(d.k + r * d.ldk) + c;
            *to = attn_num_f32_bf16((float)uniform());
            d.key[r * 2 * depth + c] = (double)attn_num_bf16_f32(*to);
        }
    for (int64_t h = 0; h < strips * SIDE; h++)
        for (int64_t c = 0; c < 2 * depth; c++) {
            uint16_t *to = (uint16_t *)(void *)(d.panels + (h / SIDE * depth + c / 2) * SIDE + h % SIDE) + c % 2;
            *to = attn_num_f32_bf16((float)uniform());
            d.head[h * 2 * depth + c] = (double)attn_num_bf16_f32(*to);
        }
    return d;
}
static void release(struct data *d) { free(d->k), free(d->panels), free(d->key), free(d->head); }
static double dot(const struct data *d, const struct data *keys, int64_t r, int64_t h) {
    double sum = 0;
    for (int64_t c = 0; c < 2 * d->depth; c++)
        sum += d->head[h * 2 * d->depth + c] * keys->key[r * 2 * keys->depth + c];
    return sum;
}

static void check_soft(int64_t rows, int64_t strips, int64_t depth, double scale, int special) {
    struct data d = make(rows, strips, depth);
    const int64_t heads = strips * SIDE, ldp = d.padded / 2 * SIDE;
    float *max = zeros(heads * 4), *sum = zeros(heads * 4), *shrink = zeros(heads * 4), *p = zeros(strips * ldp * 4),
          *s = zeros(2 * d.padded * SIDE * 4);
    double *top = zeros(heads * 8), *all = zeros(heads * 8);
    const float nan = NAN, inf = -INFINITY;
    if (special) { /* the first row is NaN or minus infinity for every head */
        const uint16_t bits = special == 1 ? attn_num_f32_bf16(nan) : attn_num_f32_bf16(inf);
        memcpy(d.k, &bits, sizeof bits);
        for (int64_t h = 0; h < heads; h++) {
            uint16_t *q = (uint16_t *)(void *)(d.panels + h / SIDE * depth * SIDE + h % SIDE);
            *q = attn_num_f32_bf16(1);
            d.head[h * 2 * depth] = 1;
        }
        d.key[0] = special == 1 ? (double)nan : (double)inf;
    }
    for (int64_t h = 0; h < heads; h++) max[h] = -INFINITY, top[h] = -INFINITY;
    const struct attn_pair_soft f = {rows, strips, depth,  d.k, d.panels, d.ldk, (float)scale,
                                     max,  sum,    shrink, p,   ldp,      s};
    for (int call = 0; call < 2; call++) { /* the same rows twice: the second call finds its maximum there */
        u->soft(&f);
        if (special == 1) memset(d.k, 0, sizeof(uint16_t)); /* the second call has it from the first one's rows alone */
        for (int64_t h = 0; h < heads; h++) {
            double part = 0, old = top[h];
            int bad = 0;
            for (int64_t r = 0; r < rows; r++) {
                const double x = dot(&d, &d, r, h) * (double)(float)scale;
                bad |= isnan(x);
                if (x > top[h]) top[h] = x;
            }
            if (bad) {
                assert_true(isnan(max[h]) && isnan(sum[h]));
                continue;
            }
            const double use = top[h] == -INFINITY ? 0 : top[h];
            for (int64_t r = 0; r < rows; r++) {
                const double want = exp(dot(&d, &d, r, h) * (double)(float)scale - use);
                const double have = half_at(p + h / SIDE * ldp, ((r / 2) * SIDE + h % SIDE) * 2 + r % 2);
                part += want;
                assert_true(fabs(have - want) <= 0x1p-8 * want + 1e-30);
            }
            if (rows % 2) assert_true(half_at(p + h / SIDE * ldp, ((rows / 2) * SIDE + h % SIDE) * 2 + 1) == 0);
            all[h] = all[h] * exp(old - use) + part;
            assert_true(top[h] == -INFINITY ? max[h] == -INFINITY : fabs((double)max[h] - top[h]) <= 1e-5);
            assert_true(fabs((double)sum[h] - all[h]) <= 2e-5 * all[h]);
            assert_true(fabs((double)shrink[h] - exp(old - use)) <= 1e-5);
        }
    }
    free(max), free(sum), free(shrink), free(p), free(s), free(top), free(all);
    release(&d);
}

static void check_heads(int64_t rows, int64_t strips, int64_t depth, int64_t width, int grad) {
    struct data d = make(rows, strips, depth), o = make(1, strips, width);
    const int64_t heads = strips * SIDE, ld_ds = d.padded / 2 * SIDE;
    const float scale = 0.3f;
    float *lse = zeros(heads * 4), *g = zeros(heads * 4), *c = zeros(heads * 4), *x = zeros(d.padded * heads * 4),
          *ds = zeros(strips * ld_ds * 4), *sums = zeros(d.padded * 16 * 4), *s = zeros(4 * SIDE * SIDE * 4);
    uint32_t *live = zeros(strips * 4);
    for (int64_t h = 0; h < heads; h++) {
        lse[h] = (float)uniform(), g[h] = (float)(1.5 + uniform()), c[h] = (float)uniform();
        live[h / SIDE] |= (uint32_t)(h % 7 != 3) << h % SIDE;
    }
    const int32_t key[2] = {0, (int32_t)rows - 1};
    const struct attn_pair_next next = {(const char *)d.k, key, 2, d.ldk * 4, depth * 4};
    const struct attn_pair_heads f = {rows,  strips, depth, width, d.k, d.panels, grad ? o.panels : NULL,
                                      d.ldk, scale,  lse,   g,     c,   live,     x,
                                      ds,    ld_ds,  sums,  s,     next};
    u->heads(&f);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t h = 0; h < heads; h++) {
            const int on = live[h / SIDE] >> h % SIDE & 1;
            const double p = on ? exp(dot(&d, &d, r, h) * (double)scale - (double)lse[h]) : 0;
            const double t = (double)g[h] * dot(&o, &d, r, h) - (double)c[h], want = p * t * (double)scale;
            const double noise = p * (double)scale * 2e-5 * (double)(depth + width);
            sum += p;
            if (!grad) continue;
            const float *tile = x + r / SIDE * SIDE * heads + (h / SIDE * SIDE + r % SIDE) * 16;
            const double have = half_at(tile, h % SIDE);
            assert_true(fabs(have - want) <= 0x1p-8 * fabs(want) + noise);
            assert_true(half_at(ds + h / SIDE * ld_ds, (r / 2 * SIDE + h % SIDE) * 2 + r % 2) == have);
            const double gp = half_at(tile + strips * SIDE * 16, h % SIDE);
            assert_true(fabs(gp - p * (double)g[h]) <= 0x1.1p-8 * p * (double)g[h]);
            if (!on) assert_true(have == 0 && gp == 0);
        }
        assert_true(fabs((double)sums[r * 16] - sum) <= 2e-5 * sum);
    }
    for (int64_t h = 0; grad && rows % 2 && h < heads; h++)
        assert_true(half_at(ds + h / SIDE * ld_ds, (rows / 2 * SIDE + h % SIDE) * 2 + 1) == 0);
    free(lse), free(g), free(c), free(x), free(ds), free(sums), free(s), free(live);
    release(&d), release(&o);
}

static void check_sum(int64_t strips, int64_t pairs, int64_t columns, int accumulate) {
    const int64_t filled = (pairs + 15) / 16 * 16, lda = filled * SIDE + 32, ldz = columns + 16, ldc = columns + 8;
    float *a = zeros(strips * lda * 4), *zip = zeros(filled * ldz * 4), *c = zeros(strips * SIDE * ldc * 4),
          *turned = zeros(2 * SIDE * filled * 4);
    for (int64_t i = 0; i < 2 * strips * lda; i++)
        if (i / 2 % lda / SIDE < pairs) ((uint16_t *)(void *)a)[i] = attn_num_f32_bf16((float)uniform());
    for (int64_t i = 0; i < 2 * pairs * ldz; i++) ((uint16_t *)(void *)zip)[i] = attn_num_f32_bf16((float)uniform());
    for (int64_t i = 0; i < strips * SIDE * ldc; i++) c[i] = accumulate ? 1 : NAN;
    const struct attn_pair_sum f = {strips, pairs, columns, a, lda, zip, ldz, c, ldc, accumulate, turned};
    u->sum(&f);
    for (int64_t h = 0; h < strips * SIDE; h++)
        for (int64_t x = 0; x < columns; x++) {
            double want = accumulate;
            for (int64_t r = 0; r < 2 * pairs; r++)
                want += half_at(a + h / SIDE * lda + r / 2 * SIDE, h % SIDE * 2 + r % 2) *
                        half_at(zip + r / 2 * ldz, x * 2 + r % 2);
            assert_true(fabs((double)c[h * ldc + x] - want) <= 2e-6 * (double)(pairs + 1));
        }
    free(a), free(zip), free(c), free(turned);
}

/* Rows from..to of x, columns of which the last ones have half the depth; keys in any order, some twice. */
static void check_add(int64_t from, int64_t to, int64_t depth, int64_t column, int64_t end, int64_t narrow) {
    enum { KEYS = 50 };
    const int64_t padded = (to + SIDE - 1) / SIDE * SIDE, ld = end * SIDE + 16;
    float *x = zeros(padded * depth * 4), *panel = zeros(end * depth * SIDE * 4), *sums = zeros(KEYS * ld * 4),
          *s = zeros(2 * SIDE * SIDE * 4);
    int32_t *key = zeros(padded * 4);
    for (int64_t i = 0; i < 2 * padded * depth; i++)
        ((uint16_t *)(void *)x)[i] = attn_num_f32_bf16(i / 2 / depth < from / SIDE * SIDE ? NAN : (float)uniform());
    for (int64_t i = 0; i < 2 * end * depth * SIDE; i++)
        ((uint16_t *)(void *)panel)[i] = attn_num_f32_bf16((float)uniform());
    for (int64_t r = 0; r < padded; r++) key[r] = (int32_t)(r * 7 % KEYS);
    const struct attn_pair_add f = {from, to, column, end, narrow, depth, x, panel, key, sums, ld, s};
    u->add(&f);
    for (int64_t k = 0; k < KEYS; k++)
        for (int64_t c = 0; c < ld; c++) {
            const int64_t block = c / SIDE, n = block < narrow ? depth : depth / 2;
            double want = 0;
            for (int64_t r = from; r < to && block >= column && block < end; r++)
                for (int64_t i = 0; key[r] == k && i < n; i++)
                    for (int64_t half = 0; half < 2; half++)
                        want +=
                            half_at(x + r / SIDE * SIDE * depth + (i / 16 * SIDE + r % SIDE) * 16, i % 16 * 2 + half) *
                            half_at(panel + (block * depth + i) * SIDE, c % SIDE * 2 + half);
            assert_true(fabs((double)sums[k * ld + c] - want) <= 2e-6 * (double)depth * (want != 0));
        }
    free(x), free(panel), free(sums), free(s), free(key);
}

static void test_soft(void **unused) {
    static const int64_t rows[] = {1, 2, 31, 32, 33, 64, 77, 96};
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t strips = 1; strips <= 3; strips += 2)
            for (int special = 0; special < 3; special++) check_soft(rows[i], strips, 16 << i % 3, 0.4, special);
    check_soft(65, 2, 288, -0.2, 0);
    check_soft(40, 1, 16, 0, 0);
}
static void test_heads(void **unused) {
    static const int64_t rows[] = {1, 2, 31, 32, 33, 64, 77, 96};
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int grad = 0; grad < 2; grad++) check_heads(rows[i], 1 + (int64_t)i % 3, 48, i % 2 ? 32 : 48, grad);
    check_heads(50, 4, 288, 256, 1);
}
static void test_sum(void **unused) {
    static const int64_t pairs[] = {1, 16, 17, 40, 128};
    (void)unused;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_sum(1 + (int64_t)i % 3, pairs[i], 32 << i % 2, accumulate);
}
static void test_add(void **unused) {
    (void)unused;
    check_add(0, 1, 32, 0, 1, 1);
    check_add(3, 70, 64, 1, 4, 3);
    check_add(32, 96, 128, 0, 3, 2);
    check_add(95, 97, 32, 2, 3, 0);
    check_add(40, 40, 32, 0, 1, 1);
    check_add(64, 200, 96, 0, 2, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soft), cmocka_unit_test(test_heads),
                                       cmocka_unit_test(test_sum), cmocka_unit_test(test_add)};
    return RUN_ON_TILES(tests);
}
