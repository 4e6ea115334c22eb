/* SPDX-License-Identifier: MIT
 * The microkernels with queries across the lanes, of f32 and of pairs, against double loops: values, all sizes of a
 * tile, what lies around a result, NaN and infinity, and that keys may be cut anywhere without a change of bits. */
#include "attn.h"

#include "cpu/host/cpu.h"
#include "cpu/ukr/bf16.h"
#include "cpu/ukr/ukr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LANES = ATTN_TRANSPOSED, MOST = 150, WIDE = 70, GUARD = 32 };
#define LOG2_E 0x1.715476p0f
static const struct attn_ukr_transposed *u; /* the table under test */
static uint64_t state = 1;
static double uniform(void) { /* -1 .. 1 */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) * 0x1p-52 - 1;
}
static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)uniform();
}

/* The numbers of an element. */
static void numbers(float element, double *x) {
    uint32_t bits;
    memcpy(&bits, &element, sizeof bits);
    for (int i = 0; i < 2; i++) {
        const uint32_t wide = i ? bits & 0xffff0000u : bits << 16;
        float y;
        memcpy(&y, &wide, sizeof y);
        x[i] = (double)y;
    }
    if (!u->pairs) x[0] = (double)element, x[1] = 0;
}
static double product(float a, float b) {
    double x[2], y[2];
    numbers(a, x);
    numbers(b, y);
    return x[0] * y[0] + x[1] * y[1];
}
static void fill_elements(float *x, int64_t n) {
    fill(x, n);
    for (int64_t i = 0; i < n && u->pairs; i++) {
        uint32_t bits, other = (uint32_t)(0x3e00 + i * 77 % 0x180) ^ (uint32_t)(i % 3 == 0) << 15;
        memcpy(&bits, &x[i], sizeof bits);
        bits = (bits & 0xffff0000u) | other;
        memcpy(&x[i], &bits, sizeof bits);
    }
}
/* Of a step's n keys. */
static int64_t elements(int64_t n) { return u->pairs ? (n + 1) / 2 : n; }

static _Alignas(64) float rows[(MOST + 1) * WIDE],
    transposed[WIDE * LANES], top[LANES], less[LANES], sum[2 * LANES], part[2 * LANES];
static _Alignas(64) float s[(MOST + 1) * LANES], p[(MOST + 1) * LANES], before[(MOST + 1) * LANES];

static void start(void) {
    fill_elements(rows, (MOST + 1) * WIDE);
    fill_elements(transposed, WIDE * LANES);
    fill(top, LANES);
    fill(less, LANES);
    fill(s, (MOST + 1) * LANES);
    memcpy(before, s, sizeof s);
}

static void test_scores(void **unused) {
    (void)unused;
    for (int64_t n = 0; n <= MOST; n++) {
        const int64_t depth = 1 + n * 7 % WIDE;
        start();
        u->scores(2, n, depth, rows, transposed, s);
        for (int64_t j = 0; j < n; j++)
            for (int64_t q = 0; q < LANES; q++) {
                double want = 0;
                for (int64_t d = 0; d < depth; d++) want += product(rows[j * depth + d], transposed[d * LANES + q]);
                assert_true(fabs((double)s[j * LANES + q] - want) < (u->pairs ? 1e-4 : 2e-5));
            }
        assert_memory_equal(s + n * LANES, before + n * LANES, sizeof s - (size_t)(n * LANES) * sizeof *s);
        memcpy(p, s, sizeof s); /* cut somewhere: the same bits */
        const int64_t cut = n / 3;
        u->scores(2, cut, depth, rows, transposed, p);
        u->scores(2, n - cut, depth, rows + cut * depth, transposed, p + cut * LANES);
        assert_memory_equal(p, s, sizeof s);
    }
}

static void probabilities(int bf16_accuracy, double least, double bound) {
    double worst = 0;
    for (int64_t n = 1; n <= MOST; n++) {
        const int64_t depth = 1 + n * 5 % WIDE;
        const float factor = n % 2 ? LOG2_E : 0.3f;
        struct attn_transposed_exp exp_args = {NULL, factor, 1, bf16_accuracy, less, top};
        start();
        u->scores(2, n, depth, rows, transposed, s);
        memcpy(p, s, sizeof s);
        u->exp_scores(2, n, p, &exp_args, sum);
        for (int64_t q = 0; q < LANES; q++) {
            double total = 0, sum_rounded = 0, x[2];
            for (int64_t j = 0; j < n; j++) {
                const double want =
                    exp2((double)fmaf((float)((double)s[j * LANES + q] - (double)less[q]), factor, -top[q]));
                numbers(p[(u->pairs ? j / 2 : j) * LANES + q], x);
                worst = fmax(worst, fabs(x[u->pairs ? j % 2 : 0] / want - 1));
                total += want;
                sum_rounded += x[u->pairs ? j % 2 : 0];
                if (u->pairs && j == n - 1 && n % 2) assert_true(x[1] == 0);
            }
            assert_true(fabs((double)sum[q] - total) < (bf16_accuracy ? 1e-4 : 1e-5) * total);
            if (u->pairs) assert_true(fabs((double)sum[LANES + q] - sum_rounded) < 1e-5 * sum_rounded); /* as rounded */
        }
        assert_memory_equal(p + n * LANES, before + n * LANES, sizeof s - (size_t)(n * LANES) * sizeof *s);
        memcpy(before, s, sizeof s);
        for (int none = 0; none < 2; none++) { /* at once: the same bits */
            memcpy(s, before, sizeof s);
            if (none) memset(less, 0, sizeof less);
            exp_args.most = none ? 1 : sum[7];
            exp_args.pre_offset = less;
            const uint32_t over = u->exp_scores(2, n, s, &exp_args, sum);
            if (none) exp_args.pre_offset = NULL;
            assert_true(u->scores_exp(2, n, depth, rows, transposed, p, &exp_args, part) == over);
            for (int64_t q = 0; q < LANES; q++) assert_true((over >> q & 1) == (uint32_t)(sum[q] > exp_args.most));
            assert_memory_equal(p, s, (size_t)(elements(n) * LANES) * sizeof *s);
            assert_memory_equal(part, sum, sizeof sum);
        }
    }
    printf("relative error %.2e\n", worst);
    assert_true(worst > least && worst < bound);
    const struct attn_transposed_exp exp_args = {NULL, 1, 1e30f, bf16_accuracy, NULL, top};
    for (int64_t q = 0; q < LANES; q++)
        s[q] = -INFINITY, s[LANES + q] = INFINITY, s[2 * LANES + q] = NAN, s[3 * LANES + q] = -200;
    assert_true(u->exp_scores(2, 4, s, &exp_args, sum) == UINT32_MAX);
    for (int64_t q = 0; q < LANES; q++) {
        double a[2], b[2];
        numbers(s[q], a);
        numbers(s[(u->pairs ? 1 : 2) * LANES + q], b);
        if (!u->pairs) a[1] = (double)s[LANES + q], b[1] = (double)s[3 * LANES + q];
        assert_true(a[0] <= 0 && a[0] >= 0 && isinf(a[1]) && isnan(b[0]) && b[1] < 1.2e-38);
        assert_true(isnan(sum[q]));
        if (u->pairs) assert_true(isnan(sum[LANES + q]));
    }
}
static void test_probabilities(void **unused) {
    (void)unused;
    probabilities(0, u->pairs ? 1e-3 : 1e-9, u->pairs ? 0x1.02p-8 : 2e-7);
    probabilities(1, u->pairs ? 1e-3 : 1e-9, u->pairs ? 0x1.1p-8 : 2e-7);
}

/* Scores of every size, of both ways and of groups with some of each, NaN and infinity among them; cut anywhere, and
 * within weigh, the same bits. */
static void test_cap(void **unused) {
    (void)unused;
    static const double caps[][2] = {{30, 1}, {0.5, 0.125}, {50, -2}, {6000, 1}, {1e-3, -0.02}};
    double worst = 0;
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        const double cap = caps[i][0], scale = caps[i][1];
        const struct attn_softcap softcap = attn_softcap_of(cap, scale);
        for (int64_t n = 0; n <= 30; n++) {
            start();
            for (int64_t x = 0; x < n * LANES; x++) {
                const double size = x % 7 == 0 ? 12 * uniform() : 0.6 * uniform();
                s[x] = before[x] = (float)(size * cap / scale * (x % 11 == 3 ? 1e-6 : 1));
            }
            u->cap(n, s, &softcap);
            for (int64_t x = 0; x < n * LANES; x++) {
                const double x_scaled = (double)before[x] * scale, want = cap * tanh(x_scaled / cap);
                worst = fmax(worst, fabs((double)s[x] - want) / (fabs(want) + 1e-30));
            }
            assert_memory_equal(s + n * LANES, before + n * LANES, sizeof s - (size_t)(n * LANES) * sizeof *s);
            memcpy(p, before, sizeof p);
            u->cap(n / 3, p, &softcap);
            u->cap(n - n / 3, p + n / 3 * LANES, &softcap);
            assert_memory_equal(p, s, sizeof s);
        }
    }
    printf("softcap: relative error %.2e\n", worst);
    assert_true(worst > 1e-9 && worst < 4e-7);
    const struct attn_softcap softcap = attn_softcap_of(30, 1);
    for (int64_t q = 0; q < LANES; q++) /* a NaN beside a score beyond, in every order */
        s[q] = NAN, s[LANES + q] = 100, s[2 * LANES + q] = q % 2 ? 1e30f : INFINITY,
        s[3 * LANES + q] = q % 2 ? NAN : -1e9f;
    u->cap(4, s, &softcap);
    for (int64_t q = 0; q < LANES; q++) {
        assert_true(isnan(s[q]) && fabs((double)s[LANES + q] - 30 * tanh(100.0 / 30)) < 1e-5);
        assert_true(fabs((double)s[2 * LANES + q] - 30) < 1e-5);
        assert_true(q % 2 ? isnan(s[3 * LANES + q]) : fabs((double)s[3 * LANES + q] + 30) < 1e-5);
    }
    for (int64_t n = 1; n <= MOST; n += 13) {
        const struct attn_softcap narrow = attn_softcap_of(2, 1);
        start();
        u->scores(2, n, WIDE, rows, transposed, s);
        u->cap(n, s, &narrow);
        const struct attn_transposed_exp by_both = {&narrow, LOG2_E, 1, 0, less, top};
        u->exp_scores(2, n, s, &by_both, sum);
        u->scores_exp(2, n, WIDE, rows, transposed, p, &by_both, part);
        assert_memory_equal(p, s, (size_t)(elements(n) * LANES) * sizeof *s);
        assert_memory_equal(part, sum, sizeof sum);
    }
}

/* Products become scores: every kind of mask and ALiBi with and without a softcap, from any key on; behind the last
 * cell of a mask nothing is read, and nothing is written behind ATTN_TRANSPOSED_MORE rows. */
static float cells[LANES][MOST + GUARD];
static void describe(struct attn_fwd_score_mod *f, int kind, int64_t have) {
    static const int masks[] = {ATTN_UKR_MASK_NONE, ATTN_UKR_MASK_BITS, ATTN_UKR_MASK_F32, ATTN_UKR_MASK_BF16};
    static const int bytes[] = {0, 1, 4, 2};
    *f = (struct attn_fwd_score_mod){.scale = 0.5f, .caps = kind / 3 % 2, .alibi = kind % 3, .mask = masks[kind / 6]};
    f->cap = attn_softcap_of(2, (double)f->scale);
    f->mask_bytes = bytes[kind / 6];
    f->mask_keys = have;
    for (int64_t q = 0; q < LANES; q++) {
        f->slope[q] = (float)(0.02 * (double)(q - 5)), f->origin[q] = (float)(3 * q), f->near[q] = (float)q;
        char *cell = (char *)&cells[q][MOST + GUARD] - have * f->mask_bytes; /* up to the end of what there is */
        for (int64_t j = 0; j < have; j++) {
            const float x = (float)uniform();
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            if (f->mask_bytes == 4) memcpy(cell + 4 * j, &x, sizeof x);
            if (f->mask_bytes == 2) memcpy(cell + 2 * j, (const char *)&bits + 2, 2);
            if (f->mask_bytes == 1) cell[j] = (char)(bits % 3);
        }
        f->cell[q] = cell;
    }
}
static double score_of(const struct attn_fwd_score_mod *f, double x, int64_t q, int64_t key) {
    const char *cell = f->cell[q] + key * f->mask_bytes;
    const double d = (double)key - (double)f->origin[q];
    uint32_t bits = 0;
    float add = 0;
    x *= (double)f->scale;
    if (f->caps) x = 2 * tanh(x / 2);
    if (f->alibi) x += (double)f->slope[q] * (f->alibi == 2 ? (double)f->near[q] - fabs(d) : d);
    if (f->mask_bytes == 1) return *cell ? x : -(double)INFINITY;
    memcpy((char *)&bits + 4 - f->mask_bytes, cell, (size_t)f->mask_bytes);
    memcpy(&add, &bits, sizeof add);
    return x + (double)add;
}
static void test_score(void **unused) {
    (void)unused;
    static _Alignas(64) float to[(MOST + ATTN_TRANSPOSED_MORE + 1) * LANES],
        was[(MOST + ATTN_TRANSPOSED_MORE + 1) * LANES];
    struct attn_fwd_score_mod f;
    for (int kind = 0; kind < 24; kind++)
        for (int64_t n = 1; n <= MOST; n += 1 + n / 5) {
            const int64_t key = n * 7 % (MOST - n + 1), end = n + ATTN_TRANSPOSED_MORE;
            describe(&f, kind, n % 2 ? key + n : MOST);
            fill(to, (MOST + ATTN_TRANSPOSED_MORE + 1) * LANES);
            memcpy(was, to, sizeof to);
            u->score(&f, n, key, to);
            for (int64_t i = 0; i < n * LANES; i++) {
                const double want = score_of(&f, (double)was[i], i % LANES, key + i / LANES), got = (double)to[i];
                assert_true(isinf(want) ? got <= want : fabs(got - want) < 1e-5);
            }
            assert_memory_equal(to + end * LANES, was + end * LANES, sizeof to - (size_t)(end * LANES) * sizeof *to);
        }
    float growth_left[LANES]; /* of a bias that grows to 0 at the origin */
    describe(&f, 1, 0);
    for (int64_t q = 0; q < LANES; q++) f.origin[q] = 500;
    u->growth(&f, 64, 100, growth_left);
    for (int64_t q = 0; q < LANES; q++) {
        const double left = (500 - 163) * (double)f.slope[q];
        assert_true(fabs((double)growth_left[q] - (left <= 0 ? 0 : left < 40 ? left : 40)) < 1e-3);
    }
}

/* Half a strip: the same bits for its queries, sums of 0 for the others. */
static void test_half(void **unused) {
    (void)unused;
    static _Alignas(64) float o[2][WIDE * LANES];
    for (int64_t n = 1; n <= MOST; n++)
        for (int kind = 0; kind < 4; kind++) {
            const int64_t depth = 1 + n * 5 % WIDE, width = 1 + n * 3 % WIDE;
            float sums[2][2 * LANES];
            start();
            const struct attn_transposed_exp exp_args = {NULL, LOG2_E, 3, kind % 2, kind / 2 ? less : NULL, top};
            u->scores(2, n, depth, rows, transposed, s);
            u->scores(1, n, depth, rows, transposed, before);
            for (int64_t i = 0; i < n * LANES; i++) assert_true(i % LANES >= LANES / 2 || s[i] == before[i]);
            const uint32_t over = u->exp_scores(2, n, s, &exp_args, sum) & 0xffff;
            assert_true(u->exp_scores(1, n, before, &exp_args, part) == over);
            memcpy(sums[0], part, sizeof part);
            fill(p, (MOST + 1) * LANES);
            assert_true(u->scores_exp(1, n, depth, rows, transposed, p, &exp_args, part) == over);
            memcpy(sums[1], part, sizeof part);
            fill_elements(o[0], WIDE * LANES);
            memcpy(o[1], o[0], sizeof o[0]);
            u->add(2, elements(n), width, rows, s, o[0], kind % 2);
            u->add(1, elements(n), width, rows, p, o[1], kind % 2);
            for (int64_t q = 0; q < LANES; q++) {
                const int there = q < LANES / 2;
                for (int i = 0; i < 2; i++) assert_true(there ? sums[i][q] == sum[q] : fabsf(sums[i][q]) <= 0);
                for (int i = 0; u->pairs && i < 2; i++)
                    assert_true(there ? sums[i][LANES + q] == sum[LANES + q] : fabsf(sums[i][LANES + q]) <= 0);
                for (int64_t j = q; there && j < elements(n) * LANES; j += LANES)
                    assert_true(memcmp(&s[j], &before[j], sizeof *s) == 0 && memcmp(&s[j], &p[j], sizeof *s) == 0);
                for (int64_t c = 0; there && c < width; c++) assert_true(o[0][c * LANES + q] == o[1][c * LANES + q]);
            }
        }
}

static void test_close(void **unused) {
    (void)unused;
    double worst = 0;
    for (int step = 0; step < 3000; step++) {
        float l[LANES], inverse[LANES], log_of[LANES];
        for (int64_t q = 0; q < LANES; q++) l[q] = (float)exp(step < 1000 ? uniform() : 40 * uniform());
        u->close(l, inverse, log_of);
        for (int64_t q = 0; q < LANES; q++) {
            const double want = log((double)l[q]);
            assert_true(inverse[q] == 1 / l[q]);
            worst = fmax(worst, fabs((double)log_of[q] - want) / fmax(1, fabs(want)));
        }
    }
    printf("logarithm: error %.2e\n", worst);
    assert_true(worst < 2e-7);
}

static void test_refer(void **unused) {
    (void)unused;
    static const float scores[] = {-INFINITY, INFINITY, NAN, 0.75f, -1e5f, 2e7f, -3e30f, 0};
    for (int fresh = 0; fresh < 2; fresh++)
        for (int set = 0; set < 3; set++) {
            float high[LANES], ref[LANES], was = set == 0 ? -INFINITY : set == 1 ? 0.5f : 1e9f;
            for (int64_t q = 0; q < LANES; q++) high[q] = scores[q % 8], ref[q] = was, less[q] = 3, top[q] = 4;
            const uint32_t which = 0x5fff37ff,
                           done = u->update_max(which, fresh, high, set ? LOG2_E : 0.5f, ref, less, top);
            for (int64_t q = 0; q < LANES; q++) {
                const int taken = (which >> q & 1) && isfinite(high[q]) && high[q] > was && (!fresh || set == 0);
                const float exponent = high[q] * (set ? LOG2_E : 0.5f);
                assert_true((done >> q & 1) == (uint32_t)taken);
                if (taken) {
                    assert_true(ref[q] == high[q] && less[q] == (fabsf(exponent) > 0x1p24f ? high[q] : 0));
                    assert_true(top[q] == (fabsf(exponent) > 0x1p24f ? 0 : exponent));
                } else {
                    assert_true(ref[q] == was && less[q] == 3 && top[q] == 4);
                }
            }
        }
}

static void test_sums(void **unused) {
    (void)unused;
    static _Alignas(64) float o[(WIDE + 1) * LANES], was[(WIDE + 1) * LANES], factor[LANES];
    for (int64_t width = 1; width <= WIDE; width++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            const int64_t n = 1 + width * 11 % MOST;
            start();
            fill_elements(s, (MOST + 1) * LANES);
            fill(o, (WIDE + 1) * LANES);
            fill(factor, LANES);
            memcpy(was, o, sizeof o);
            u->add(2, n, width, rows, s, o, accumulate);
            for (int64_t c = 0; c < width; c++)
                for (int64_t q = 0; q < LANES; q++) {
                    double want = accumulate ? (double)was[c * LANES + q] : 0;
                    for (int64_t j = 0; j < n; j++) want += product(rows[j * width + c], s[j * LANES + q]);
                    assert_true(fabs((double)o[c * LANES + q] - want) < (u->pairs ? 1e-4 : 2e-5));
                }
            assert_memory_equal(o + width * LANES, was + width * LANES, sizeof o - (size_t)(width * LANES) * sizeof *o);
            memcpy(was, o, sizeof o);
            u->scale(width, o, factor);
            for (int64_t i = 0; i < (WIDE + 1) * LANES; i++)
                assert_true(o[i] == (i < width * LANES ? was[i] * factor[i % LANES] : was[i]));
        }
}

static void test_hide_high(void **unused) {
    (void)unused;
    for (int64_t n = 0; n <= MOST; n += 7) {
        int32_t lo[LANES], hi[LANES];
        float high[LANES];
        start();
        for (int64_t q = 0; q < LANES; q++) lo[q] = (int32_t)(q * n / 40), hi[q] = (int32_t)(n - q * n / 50);
        if (n > 3) before[2 * LANES + 5] = s[2 * LANES + 5] = NAN;
        u->hide(n, s, lo, hi);
        u->high(n, s, high);
        for (int64_t q = 0; q < LANES; q++) {
            float want = -INFINITY;
            for (int64_t j = 0; j < n; j++) {
                const float x = j >= lo[q] && j < hi[q] ? before[j * LANES + q] : -INFINITY;
                assert_true(s[j * LANES + q] == x || (isnan(x) && isnan(s[j * LANES + q])));
                if (x > want) want = x;
            }
            assert_true(high[q] == want);
        }
        assert_memory_equal(s + n * LANES, before + n * LANES, sizeof s - (size_t)(n * LANES) * sizeof *s);
    }
}

int main(void) {
    const uint64_t have = attn_cpu_features("", NULL);
    const struct {
        const struct attn_ukr_transposed *u;
        uint64_t needs;
        const char *name;
    } tables[] = {{&attn_ukr_transposed_avx2, ATTN_CPU_AVX2, "f32, AVX2"},
                  {&attn_ukr_transposed_avx512, ATTN_CPU_AVX512, "f32, AVX-512"},
                  {&attn_ukr_transposed_avx512bf16, ATTN_CPU_AVX512 | ATTN_CPU_BF16, "pairs of bf16, AVX-512"}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),    cmocka_unit_test(test_probabilities), cmocka_unit_test(test_cap),
        cmocka_unit_test(test_close),     cmocka_unit_test(test_refer),         cmocka_unit_test(test_sums),
        cmocka_unit_test(test_hide_high), cmocka_unit_test(test_score),         cmocka_unit_test(test_half)};
    int ran = 0, failed = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if ((have & tables[i].needs) != tables[i].needs) continue;
        u = tables[i].u;
        failed |= cmocka_run_group_tests_name(tables[i].name, tests, NULL, NULL);
        ran++;
    }
    if (!ran) printf("no AVX2 on this processor: skipped\n");
    return ran ? failed : 77;
}
