/* SPDX-License-Identifier: MIT
 * attn_ukr_bf16.mla_scores, .heads, .sum and .add against double loops on the same rounded numbers: every count of rows
 * around 32, rows behind the last that hold NaN, heads that do not exist or are dead, scores that are NaN or -inf. Runs
 * on tiles where there are any, and everywhere in emulation. */
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

enum { SIDE = ATTN_MLA_HEADS };
static const struct attn_ukr_bf16 *const u = &attn_ukr_bf16_amx;

#include "ukr_tests.h"

static void *zeros(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    assert_non_null(p);
    return memset(p, 0, (size_t)bytes);
}
/* Row r of head h in tiles of pairs of rows. */
static double half_at(const float *pairs, int64_t index);
static double tiled_at(const float *a, int64_t r, int64_t h) {
    return half_at(a + r / SIDE * SIDE * 16 + h / 16 * 256 + h % 16 * 16, r % SIDE);
}
static double half_at(const float *pairs, int64_t index) {
    return (double)attn_num_bf16_f32(((const uint16_t *)(const void *)pairs)[index]);
}

/* Pair n of column c of tiles side by side, two for each 16 pairs. */
static int64_t in_tiles(int64_t n, int64_t c) { return n / 16 * 512 + c / 16 * 256 + n % 16 * 16 + c % 16; }

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
            uint16_t *to = (uint16_t *)(void *)(d.panels + h / SIDE * depth * SIDE + in_tiles(c / 2, h % SIDE)) + c % 2;
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

/* The keys in memory, the last row first, and scratch for their copies. */
struct source {
    struct attn_mla_rows rows;
    int32_t *key;
    float *tiles, *zip;
    int64_t ldz;
};
static struct source source(const struct data *d) {
    struct source s = {.ldz = d->padded / 2 * SIDE + 16};
    s.key = zeros(d->rows * 4), s.tiles = zeros(2 * SIDE * d->depth * 4), s.zip = zeros(d->depth / 16 * s.ldz * 4);
    for (int64_t r = 0; r < d->rows; r++) s.key[r] = (int32_t)(d->rows - 1 - r);
    memset(s.zip, 0xff, (size_t)(d->depth / 16 * s.ldz) * 4);
    s.rows = (struct attn_mla_rows){(const char *)d->k + (d->rows - 1) * d->ldk * 4, s.key, d->rows, -d->ldk * 4};
    return s;
}
/* Pairs of rows, as far as they are asked for, and zeros where there is no row. */
static void check_zip(const struct data *d, const struct source *s, int64_t width) {
    for (int64_t r = 0; r < d->padded; r++)
        for (int64_t i = 0; i < 2 * width; i++) {
            const double have = half_at(s->zip + i / SIDE * s->ldz, in_tiles(r / 2, i % SIDE) * 2 + r % 2),
                         want = r < d->rows ? d->key[r * 2 * d->depth + i] : 0;
            assert_true(have == want || (isnan(have) && isnan(want)));
        }
}
static void drop(struct source *s) { free(s->key), free(s->tiles), free(s->zip); }

enum { PLAIN, WITH_NAN, WITH_INF, RISING };
/* Calls with the same rows: the second one finds what the first one left. RISING: later rows have larger scores, and
 * the second call far larger ones, so that what they refer to moves within a block and from block to block. */
static void check_soft(int64_t rows, int64_t strips, int64_t depth, double scale, int special) {
    struct data d = make(rows, strips, depth);
    const int64_t heads = strips * SIDE, ldp = d.padded / 2 * SIDE, width = depth - 16 * (depth > 16);
    float *max = zeros(heads * 4), *other = zeros(4 * heads * 4 + strips * ldp * 4), *refer = zeros(heads * 4),
          *sum = zeros(heads * 4), *rescale = zeros(heads * 4), *p = zeros(strips * ldp * 4),
          *s = zeros((2 * SIDE + 16) * SIDE * 4);
    double *top = zeros(heads * 8), *all = zeros(heads * 8);
    for (int64_t r = 0; r < rows && special; r++) { /* the first column of every head is 1 */
        double value = special == RISING ? (double)(r * 4) : d.key[r * 2 * depth];
        if (r == 0 && special != RISING) value = special == WITH_NAN ? (double)NAN : -(double)INFINITY;
        const uint16_t bits = attn_num_f32_bf16((float)value);
        memcpy(d.k + r * d.ldk, &bits, sizeof bits);
        d.key[r * 2 * depth] = (double)attn_num_bf16_f32(bits);
    }
    for (int64_t h = 0; h < heads && special; h++) {
        uint16_t *q = (uint16_t *)(void *)(d.panels + h / SIDE * depth * SIDE + in_tiles(0, h % SIDE));
        *q = attn_num_f32_bf16(1);
        d.head[h * 2 * depth] = 1;
    }
    for (int64_t h = 0; h < heads; h++) max[h] = refer[h] = -INFINITY, top[h] = -(double)INFINITY;
    struct source from = source(&d);
    struct attn_mla_scores f = {.rows = from.rows,
                                .next = from.rows,
                                .copies = {from.tiles, from.zip, from.ldz, width},
                                .strips = strips,
                                .depth = depth,
                                .q = d.panels,
                                .scale = (float)scale,
                                .max = max,
                                .offset = refer,
                                .sum = sum,
                                .rescale = rescale,
                                .p = p,
                                .ldp = ldp,
                                .s = s};
    for (int call = 0; call < 2; call++) {
        double *was = zeros(heads * 8);
        if (call && special == RISING) f.scale *= 3, scale *= 3;
        for (int64_t h = 0; h < heads; h++) was[h] = (double)refer[h];
        if (!call) { /* nobody asks for maxima: the same otherwise */
            struct attn_mla_scores g = f;
            g.max = NULL, g.offset = other, g.sum = other + heads, g.rescale = other + 2 * heads,
            g.p = other + 4 * heads;
            for (int64_t h = 0; h < heads; h++) g.offset[h] = -INFINITY;
            u->mla_scores(&g);
        }
        u->mla_scores(&f);
        if (!call) {
            assert_memory_equal(other, refer, (size_t)heads * 4);
            assert_memory_equal(other + heads, sum, (size_t)heads * 4);
            assert_memory_equal(other + 2 * heads, rescale, (size_t)heads * 4);
            assert_memory_equal(other + 4 * heads, p, (size_t)(strips * ldp) * 4);
        }
        if (!call) check_zip(&d, &from, width);
        if (special == WITH_NAN) memset(d.k, 0, sizeof(uint16_t)); /* the second call has it from the first one alone */
        for (int64_t h = 0; h < heads; h++) {
            double part = 0;
            int bad = 0;
            for (int64_t r = 0; r < rows; r++) {
                const double x = dot(&d, &d, r, h) * (double)f.scale;
                bad |= isnan(x);
                if (x > top[h]) top[h] = x;
            }
            if (bad) {
                assert_true(isnan(max[h]) && isnan(sum[h]));
                continue;
            }
            assert_true(isinf(top[h]) ? max[h] == -INFINITY && refer[h] == -INFINITY
                                      : fabs((double)max[h] - top[h]) <= 1e-5 + 1e-6 * fabs(top[h]));
            assert_true(isinf(top[h]) || (double)refer[h] >= top[h] * 1.4426950408889634 - 16);
            const double use = isinf(refer[h]) ? 0 : (double)refer[h], fall = isinf(was[h]) ? 1 : exp2(was[h] - use);
            for (int64_t r = 0; r < rows; r++) {
                const double want = exp2(dot(&d, &d, r, h) * (double)f.scale * 1.4426950408889634 - use);
                const double have = tiled_at(p + h / SIDE * ldp, r, h % SIDE);
                part += want;
                assert_true(fabs(have - want) <= (0x1p-8 + 2e-4 * (special == RISING)) * want + 1e-30);
            }
            for (int64_t r = rows; r < d.padded; r++) assert_true(tiled_at(p + h / SIDE * ldp, r, h % SIDE) == 0);
            all[h] = all[h] * fall + part;
            assert_true(fabs((double)sum[h] - all[h]) <= (2e-5 + 2e-4 * (special == RISING)) * all[h]);
            assert_true(isinf(was[h]) || fabs((double)rescale[h] - fall) <= 1e-4 * fall + 1e-30);
        }
        free(was);
    }
    free(max), free(refer), free(sum), free(rescale), free(p), free(s), free(top), free(all), free(other);
    release(&d), drop(&from);
}

static void check_heads(int64_t rows, int64_t strips, int64_t depth, int64_t width, int grad) {
    struct data d = make(rows, strips, depth), o = make(1, strips, width);
    const int64_t heads = strips * SIDE, ld_ds = d.padded / 2 * SIDE;
    const float scale = 0.3f;
    float *lse = zeros(heads * 4), *g = zeros(heads * 4), *c = zeros(heads * 4), *x = zeros(d.padded * heads * 4),
          *ds = zeros(strips * ld_ds * 4), *sums = zeros(d.padded * 16 * 4), *s = zeros((4 * SIDE + 16) * SIDE * 4);
    uint32_t *valid = zeros(strips * 4);
    for (int64_t h = 0; h < heads; h++) {
        lse[h] = (float)uniform(), g[h] = (float)(1.5 + uniform()), c[h] = (float)uniform();
        valid[h / SIDE] |= (uint32_t)(h % 7 != 3) << h % SIDE;
    }
    struct source from = source(&d);
    const struct attn_mla_bwd_scores f = {.rows = from.rows,
                                          .copies = {from.tiles, from.zip, from.ldz, grad ? depth : 0},
                                          .strips = strips,
                                          .depth = depth,
                                          .width = width,
                                          .q = d.panels,
                                          .dout = grad ? o.panels : NULL,
                                          .scale = scale,
                                          .lse = lse,
                                          .g = g,
                                          .c = c,
                                          .valid = valid,
                                          .x = x,
                                          .ds = ds,
                                          .ld_ds = ld_ds,
                                          .sums = sums,
                                          .s = s};
    u->mla_bwd_scores(&f);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t h = 0; h < heads; h++) {
            const int on = valid[h / SIDE] >> h % SIDE & 1;
            const double p = on ? exp(dot(&d, &d, r, h) * (double)scale - (double)lse[h]) : 0;
            const double t = (double)g[h] * dot(&o, &d, r, h) - (double)c[h], want = p * t * (double)scale;
            const double noise = p * (double)scale * 2e-5 * (double)(depth + width);
            sum += p;
            if (!grad) continue;
            const float *tile = x + r / SIDE * SIDE * heads + (h / SIDE * SIDE + r % SIDE) * 16;
            const double have = half_at(tile, h % SIDE);
            assert_true(fabs(have - want) <= 0x1p-8 * fabs(want) + noise);
            assert_true(tiled_at(ds + h / SIDE * ld_ds, r, h % SIDE) == have);
            const double gp = half_at(tile + strips * SIDE * 16, h % SIDE);
            assert_true(fabs(gp - p * (double)g[h]) <= 0x1.1p-8 * p * (double)g[h]);
            if (!on) assert_true(have == 0 && gp == 0);
        }
        assert_true(fabs((double)sums[r * 16] - sum) <= 2e-5 * sum);
    }
    for (int64_t h = 0; grad && h < heads; h++)
        for (int64_t r = rows; r < d.padded; r++) assert_true(tiled_at(ds + h / SIDE * ld_ds, r, h % SIDE) == 0);
    if (grad) check_zip(&d, &from, depth);
    drop(&from);
    free(lse), free(g), free(c), free(x), free(ds), free(sums), free(s), free(valid);
    release(&d), release(&o);
}

static void check_sum(int64_t strips, int64_t pairs, int64_t columns, int accumulate, int64_t transposed) {
    const int64_t filled = (pairs + 15) / 16 * 16, lda = filled * SIDE + 32, ldz = filled * SIDE + 16,
                  ldc = columns + 8;
    float *a = zeros(strips * lda * 4), *zip = zeros(columns / SIDE * ldz * 4), *c = zeros(strips * SIDE * ldc * 4);
    for (int64_t i = 0; i < 2 * strips * lda; i++)
        if (i / 2 % lda / (SIDE * 16) * 16 + i / 2 % 16 < pairs)
            ((uint16_t *)(void *)a)[i] = attn_num_f32_bf16((float)uniform());
    for (int64_t i = 0; i < 2 * columns / SIDE * ldz; i++)
        if (i / 2 % ldz / (SIDE * 16) * 16 + i / 2 % ldz / 16 % 16 < pairs)
            ((uint16_t *)(void *)zip)[i] = attn_num_f32_bf16((float)uniform());
    for (int64_t i = 0; i < strips * SIDE * ldc; i++) c[i] = accumulate ? 1 : NAN;
    const struct attn_mla_sum f = {.strips = strips,
                                   .pairs = pairs,
                                   .columns = columns,
                                   .a = a,
                                   .lda = lda,
                                   .zip = zip,
                                   .ldz = ldz,
                                   .c = c,
                                   .ldc = ldc,
                                   .accumulate = accumulate};
    u->mla_sum(&f);
    for (int64_t h = 0; h < strips * SIDE; h++)
        for (int64_t x = 0; x < columns; x++) {
            double want = accumulate;
            for (int64_t r = 0; r < 2 * pairs; r++)
                want += tiled_at(a + h / SIDE * lda, r, h % SIDE) *
                        half_at(zip + x / SIDE * ldz, in_tiles(r / 2, x % SIDE) * 2 + r % 2);
            assert_true(fabs((double)c[h * ldc + x] - want) <= 2e-6 * (double)(pairs + 1));
        }
    /* Sums that are complete, the last heads not there and one of each strip empty, whatever its sums are, and heads of
     * another query turned meanwhile. */
    const int64_t heads = strips * SIDE - 5, ldo = columns + 24, ldq = 2 * transposed + 3;
    float *factor = zeros(heads * 4), *before = zeros(strips * SIDE * ldc * 4),
          *q = zeros(strips * SIDE * transposed * 4);
    uint32_t *valid = zeros(strips * 4);
    uint16_t *out = zeros(strips * SIDE * ldo * 2), *rows = zeros(strips * SIDE * ldq * 2);
    for (int64_t h = 0; h < heads; h++) {
        factor[h] = (float)(1.5 + uniform());
        valid[h / SIDE] |= (uint32_t)(h % SIDE != 3) << h % SIDE;
    }
    for (int64_t i = 0; i < strips * SIDE * ldq; i++) rows[i] = (uint16_t)(i % 65521);
    memset(out, 0xff, (size_t)(strips * SIDE * ldo * 2));
    for (int64_t i = 0; i < strips * SIDE * ldc; i++) before[i] = i / ldc % SIDE == 3 ? NAN : (float)accumulate;
    struct attn_mla_sum g = f;
    const struct attn_mla_out to = {(char *)out, heads, ldo * 2, factor, valid};
    g.out = &to, g.c = before, g.turn = (struct attn_mla_turn){(const char *)rows, heads, ldq * 2, transposed, q};
    u->mla_sum(&g);
    for (int64_t h = 0; h < strips * SIDE; h++) {
        for (int64_t x = 0; x < columns && h < heads; x++)
            c[h * ldc + x] = h % SIDE == 3 ? 0 : c[h * ldc + x] * factor[h];
        for (int64_t x = 0; x < ldo; x++)
            assert_int_equal(out[h * ldo + x],
                             h < heads && x < columns ? attn_num_f32_bf16(c[h * ldc + x]) : UINT16_MAX);
        for (int64_t x = 0; x < 2 * transposed; x++) {
            const float *cell = q + h / SIDE * transposed * SIDE + in_tiles(x / 2, h % SIDE);
            assert_int_equal(((const uint16_t *)(const void *)cell)[x % 2], h < heads ? rows[h * ldq + x] : 0);
        }
    }
    free(a), free(zip), free(c), free(factor), free(before), free(q), free(valid), free(out), free(rows);
}
/* Sums of a key side by side, or those of a block of columns. */
static void check_add_layout(int64_t from, int64_t to, int64_t depth, int64_t column, int64_t end, int64_t narrow,
                             int by_block) {
    enum { KEYS = 50 };
    const int64_t padded = (to + SIDE - 1) / SIDE * SIDE, ld = by_block ? SIDE : end * SIDE + 16,
                  ld_block = by_block ? KEYS * SIDE : SIDE;
    float *x = zeros(padded * depth * 4), *panel = zeros(end * depth * SIDE * 4),
          *sums = zeros(KEYS * (end * SIDE + 16) * 4), *s = zeros((2 * SIDE + 16) * SIDE * 4);
    int32_t *key = zeros(padded * 4);
    for (int64_t i = 0; i < 2 * padded * depth; i++)
        ((uint16_t *)(void *)x)[i] = attn_num_f32_bf16(i / 2 / depth < from / SIDE * SIDE ? NAN : (float)uniform());
    for (int64_t i = 0; i < 2 * end * depth * SIDE; i++)
        ((uint16_t *)(void *)panel)[i] = attn_num_f32_bf16((float)uniform());
    for (int64_t r = 0; r < padded; r++) key[r] = (int32_t)(r * 7 % KEYS);
    const struct attn_mla_add f = {from, to, column, end, narrow, depth, x, panel, key, sums, ld, ld_block, s};
    u->mla_add(&f);
    for (int64_t k = 0; k < KEYS; k++)
        for (int64_t c = 0; c < end * SIDE; c++) {
            const int64_t block = c / SIDE, n = block < narrow ? depth : depth / 2;
            double want = 0;
            for (int64_t r = from; r < to && block >= column && block < end; r++)
                for (int64_t i = 0; key[r] == k && i < n; i++)
                    for (int64_t half = 0; half < 2; half++)
                        want +=
                            half_at(x + r / SIDE * SIDE * depth + (i / 16 * SIDE + r % SIDE) * 16, i % 16 * 2 + half) *
                            half_at(panel + block * depth * SIDE, in_tiles(i, c % SIDE) * 2 + half);
            assert_true(fabs((double)sums[k * ld + block * ld_block + c % SIDE] - want) <=
                        2e-6 * (double)depth * (want != 0));
        }
    free(x), free(panel), free(sums), free(s), free(key);
}

static void check_add(int64_t from, int64_t to, int64_t depth, int64_t column, int64_t end, int64_t narrow) {
    for (int by_block = 0; by_block < 2; by_block++) check_add_layout(from, to, depth, column, end, narrow, by_block);
}

static void test_soft(void **unused) {
    static const int64_t rows[] = {1, 2, 31, 32, 33, 64, 77, 96};
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t strips = 1; strips <= 3; strips += 2)
            for (int special = PLAIN; special <= RISING; special++)
                check_soft(rows[i], strips, 16 << i % 3, 0.4, special);
    for (int special = PLAIN; special <= RISING; special++) check_soft(77, 2, 288, 0.4, special);
    check_soft(65, 2, 288, -0.2, 0);
    check_soft(40, 1, 16, 0, 0);
}
static void test_heads(void **unused) {
    static const int64_t rows[] = {1, 2, 31, 32, 33, 64, 77, 96};
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int grad = 0; grad < 2; grad++) check_heads(rows[i], 1 + (int64_t)i % 3, 48, i % 2 ? 32 : 48, grad);
    for (int grad = 0; grad < 2; grad++) check_heads(70, 2, 16 << grad, 16, grad);
    check_heads(50, 4, 288, 256, 1);
}
static void test_sum(void **unused) {
    static const int64_t pairs[] = {1, 16, 17, 40, 128};
    (void)unused;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_sum(1 + (int64_t)i % 3, pairs[i], 32 << i % 2, accumulate, 16 << i % 3);
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
