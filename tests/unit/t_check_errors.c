/* SPDX-License-Identifier: MIT
 * The tester tested: on cases as `attn check` makes them, the comparison accepts the right answer and refuses every
 * wrong one - zeros, a wrong row, two exchanged elements, a wrong lse, a NaN, a lost key - and sees every stray write.
 */
#include "attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifndef ATTN_TEST_CLI
int main(void) { return 77; } /* built without the attn command, whose part the tester is */
#else
#include "check/check.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Problems in which every output has rows that count. Seeds are those whose case has no special data. */
static const char *const problems[] = {
    "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=37 d=40 dv=24 f32 causal bottom_right",
    "sdpa_fwd hq=4 sq=33 sk=65 d=64 f16",
    "sdpa_fwd hq=4 hk=1 sq=17 sk=300 d=128 bf16 softcap=30",
    "sdpa_fwd hq=2 sq=5 sk=70 d=32 f64 mask=f32",
    "sdpa_bwd hq=4 hk=2 sq=21 sk=43 d=32 f32 causal",
    "sdpa_bwd hq=2 sq=21 sk=43 d=64 bf16 mask=f32 grad_mask",
    "sdpa_bwd hq=2 sq=20 sk=20 d=16 f64",
    "sdpa_bwd hq=4 hk=2 sq=40 sk=50 d=1 bf16 softcap=50",
    "sdpa_fwd hq=4 sq=40 sk=50 d=16 dv=1 f16",
    "mla_fwd hq=7 sq=3 sk=50 d=576 dv=512 topk=40 bf16",
    "mla_fwd hq=3 sq=2 sk=30 d=512 dv=512 topk=33 f32",
    "mla_bwd hq=5 sq=2 sk=20 d=576 dv=512 topk=16 bf16 dkv=f32",
    "mla_bwd hq=5 sq=2 sk=20 d=576 dv=512 topk=16 f32",
    "dist hq=4 sq=3 sk=40 d=576 dv=512 topk=31 bf16",
};
enum { N_PROBLEMS = sizeof problems / sizeof *problems };

static const uint32_t special = CHECK_FAR_NEGATIVE | CHECK_NAN_QUERY | CHECK_NAN_KEY | CHECK_MASK_PLUS_INF |
                                CHECK_HUGE | CHECK_EQUAL_SCORES | CHECK_EMPTY_ROWS | CHECK_ONE_SLOT | CHECK_ONE_KEY |
                                CHECK_OUTPUT_OMITTED | CHECK_MASK_DEAD_ROWS | CHECK_BAD_INDICES | CHECK_MANY_TIMES |
                                CHECK_BROADCAST;

static void make_plain_case(struct check_case *c, const char *text) {
    attn_problem p;
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    for (uint64_t seed = 1; seed < 100000; seed++) {
        struct check_case probe = {.p = p, .seed = seed}; /* only the modes, which cost nothing */
        attn_cli_rng_seed(&probe.rng, seed ^ UINT64_C(0x636865636b));
        attn_cli_check_modes(&probe);
        if (probe.modes & special) continue;
        assert_int_equal(attn_cli_check_case_make(c, &p, seed, &(struct attn_cli_overlap){0}), 0);
        assert_int_equal(c->modes & special, 0);
        /* Summed over its keys, a row of dS is 0 up to rounding: zeros would be the right answer. */
        if (!c->t[ATTN_ROLE_DMASK].broadcast[3]) return;
        attn_cli_check_case_free(c);
    }
    fail_msg("no seed without special data");
}

/* The right answer as a kernel would give it: rounded to the output's type. */
static double *right_answer(const struct check_case *c, int32_t role) {
    const struct check_tensor *t = &c->t[role];
    double *got = malloc((size_t)(t->n + 1) * sizeof *got);
    void *typed = malloc((size_t)t->n * 8 + 8);
    assert_non_null(got);
    assert_non_null(typed);
    attn_cli_check_narrow(typed, t->view.dtype, c->want[role].want, t->n);
    attn_cli_check_widen(got, typed, t->view.dtype, t->n);
    free(typed);
    return got;
}

static int wrong(const struct check_case *c, int32_t role, const double *got, struct check_verdict *v) {
    struct check_bound b = attn_cli_check_bound(c, role, c->p.dtype, false);
    *v = (struct check_verdict){.role = role};
    return attn_cli_check_compare(&c->want[role], c->want[role].want, got, &b, NULL, v);
}

static int64_t normal_row(const struct check_want *w, int64_t from) {
    for (int64_t r = 0; r < w->rows; r++) {
        int64_t row = (from + r) % w->rows;
        if (w->kind[row] != CHECK_ROW_NORMAL || !isfinite(w->want[row * w->cols])) continue;
        for (int64_t x = row * w->cols; x < (row + 1) * w->cols; x++)
            if (w->want[x] != 0) return row;
    }
    return -1;
}

typedef void (*mutation)(const struct check_case *c, const struct check_want *w, double *got);

static void zeros(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    memset(got, 0, (size_t)(w->rows * w->cols) * sizeof *got);
}
static int64_t largest_row(const struct check_want *w) {
    int64_t best = 0;
    double size = -1;
    for (int64_t r = 0; r < w->rows; r++) {
        double n = attn_cli_check_dot(w->want + r * w->cols, w->want + r * w->cols, w->cols);
        if (w->kind[r] == CHECK_ROW_NORMAL && isfinite(n) && n > size) size = n, best = r;
    }
    return best;
}
static void one_row_scaled(const struct check_case *c, const struct check_want *w, double *got) {
    double factor = check_half_dtype(c->p.dtype) ? 1.1 : c->p.dtype == ATTN_F64 ? 1 + 1e-9 : 1.001;
    double *x = got + (w->cols == 1 ? largest_row(w) : normal_row(w, w->rows / 2)) * w->cols;
    for (int64_t i = 0; i < w->cols; i++) x[i] *= factor;
}
static void one_row_zero(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    memset(got + largest_row(w) * w->cols, 0, (size_t)w->cols * sizeof *got);
}
static void exchanged(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    int64_t low = 0, high = 0; /* the two that differ most, so that the exchange is one of different numbers */
    for (int64_t x = 0; x < w->rows * w->cols; x++) {
        if (!isfinite(w->want[x])) continue;
        if (w->want[x] < w->want[low] || !isfinite(w->want[low])) low = x;
        if (w->want[x] > w->want[high] || !isfinite(w->want[high])) high = x;
    }
    double t = got[low];
    got[low] = got[high];
    got[high] = t;
}
static void a_nan(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    got[normal_row(w, 1) * w->cols] = NAN;
}
static void an_infinity(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    got[(normal_row(w, 1) + 1) * w->cols - 1] = -INFINITY;
}
static void rows_shifted(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    int64_t n = w->rows * w->cols, step = w->cols;
    for (int64_t x = 0; x < n; x++) got[x] = w->want[(x + step) % n];
}
static void wrong_sign(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    for (int64_t x = 0; x < w->rows * w->cols; x++) got[x] = -got[x];
}
static void halved(const struct check_case *c, const struct check_want *w, double *got) {
    (void)c;
    for (int64_t x = 0; x < w->rows * w->cols; x++) got[x] /= 2;
}

static void every_mutation_is_seen(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mutation apply;
    } mutations[] = {
        {"all zero", zeros},
        {"one row scaled", one_row_scaled},
        {"one row zero", one_row_zero},
        {"two elements exchanged", exchanged},
        {"a NaN", a_nan},
        {"an infinity", an_infinity},
        {"rows shifted", rows_shifted},
        {"wrong sign", wrong_sign},
        {"halved", halved},
    };
    int tried = 0;
    for (int n = 0; n < N_PROBLEMS; n++) {
        struct check_case c;
        make_plain_case(&c, problems[n]);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            struct check_verdict v;
            if (!check_is_out(c.t[role].use) || c.t[role].n < 2) continue;
            double *got = right_answer(&c, role);
            if (wrong(&c, role, got, &v))
                fail_msg("%s: %s: the right answer is refused: %s, %g of its bound", problems[n], attn_role_name(role),
                         v.why, v.worst);
            for (size_t m = 0; m < sizeof mutations / sizeof *mutations; m++) {
                memcpy(got, c.want[role].want, (size_t)c.t[role].n * sizeof *got);
                mutations[m].apply(&c, &c.want[role], got);
                if (!wrong(&c, role, got, &v))
                    fail_msg("%s: %s: %s passes (%g of its bound)", problems[n], attn_role_name(role),
                             mutations[m].name, v.worst);
                tried++;
            }
            free(got);
        }
        attn_cli_check_case_free(&c);
    }
    assert_true(tried > 200);
}

/* lse off by what a forgotten term, the wrong base or a lost sink would give. */
static void wrong_lse_is_seen(void **state) {
    (void)state;
    for (int n = 0; n < N_PROBLEMS; n++) {
        struct check_case c;
        make_plain_case(&c, problems[n]);
        struct check_want *w = &c.want[ATTN_ROLE_LSE];
        for (int64_t x = 0; w->want && x < w->rows; x++) {
            static const double off[] = {1e-3, -1e-4, INFINITY};
            struct check_verdict v;
            double *got = right_answer(&c, ATTN_ROLE_LSE);
            if (isfinite(got[x]))
                for (int k = 0; k < 3; k++) {
                    double keep = got[x];
                    got[x] += off[k];
                    assert_int_equal(wrong(&c, ATTN_ROLE_LSE, got, &v), 1);
                    assert_int_equal(v.element, x);
                    assert_int_equal(v.over, 1);
                    got[x] = keep;
                }
            free(got);
        }
        attn_cli_check_case_free(&c);
    }
}

/* In base 2 an lse and its error are log2 e times as large, so the score that its bound grows with is, too. */
static void scores_are_in_the_base_of_lse(void **state) {
    (void)state;
    static const char *const texts[] = {"mla_fwd hq=7 sq=3 sk=50 d=576 dv=512 topk=40 bf16 lse_base_2",
                                        "sdpa_fwd hq=4 sq=33 sk=65 d=64 f16 lse_base_2"};
    for (int n = 0; n < 2; n++) {
        struct check_case c;
        make_plain_case(&c, texts[n]);
        const struct check_want *lse = &c.want[ATTN_ROLE_LSE], *out = &c.want[ATTN_ROLE_OUT];
        int seen = 0;
        for (int64_t row = 0; row < lse->rows; row++) {
            if (out->kind[row] != CHECK_ROW_NORMAL) continue;
            assert_true(out->score[row] > 0);
            assert_true(fabs(lse->score[row] * log(2) - out->score[row]) <= 1e-12 * out->score[row]);
            seen++;
        }
        assert_true(seen > 0);
        attn_cli_check_case_free(&c);
    }
}

/* An error of 0.55 % everywhere, within what a row may be off, is seen where roundings average, and let pass where one
 * summand is the whole tensor, whose two roundings may be that much. */
static void an_even_error_is_seen(void **state) {
    (void)state;
    static const char *const texts[] = {"mla_bwd hq=16 sq=4 sk=200 d=576 dv=512 topk=100 bf16",
                                        "mla_fwd hq=16 sq=4 sk=200 d=576 dv=512 topk=100 bf16"};
    static const int32_t roles[] = {ATTN_ROLE_DQ, ATTN_ROLE_OUT};
    for (int n = 0; n < 2; n++) {
        struct check_case c;
        struct check_verdict v;
        make_plain_case(&c, texts[n]);
        struct check_want *w = &c.want[roles[n]];
        double *got = right_answer(&c, roles[n]), squares = 0;
        assert_int_equal(wrong(&c, roles[n], got, &v), 0);
        assert_true(v.cosine >= 0);
        for (int64_t x = 0; x < w->rows * w->cols; x++) got[x] = 1.0055 * w->want[x];
        assert_int_equal(wrong(&c, roles[n], got, &v), 1);
        assert_non_null(strstr(v.why, "cosine"));
        for (int64_t r = 0; r < w->rows; r++) squares += w->terms[r] * w->terms[r];
        w->peak = squares;
        assert_int_equal(wrong(&c, roles[n], got, &v), 0);
        free(got);
        attn_cli_check_case_free(&c);
    }
}

static void all_like_first(struct check_tensor *t) {
    const int64_t cols = t->n / attn_cli_check_rows(&t->view);
    for (int64_t x = cols; x < t->n; x++) t->val[x] = t->val[x % cols];
}

/* The plain answer once more, with `queries`, `heads` of q and dout said to be one row; of the key's gradient, the
 * first row's noise. */
static double noise_again(struct check_case *c, uint8_t queries, uint8_t heads) {
    static const int32_t inputs[] = {ATTN_ROLE_Q, ATTN_ROLE_DOUT};
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_want *w = &c->want[role];
        if (w->noise) memset(w->noise, 0, (size_t)w->rows * sizeof *w->noise);
    }
    for (int k = 0; k < 2; k++) {
        uint8_t *axis = c->t[inputs[k]].broadcast + c->t[inputs[k]].view.rank - 3;
        axis[0] = heads, axis[1] = queries;
    }
    assert_int_equal(attn_cli_check_plain_dense(c, false), 0);
    return c->want[ATTN_ROLE_DK].noise[0];
}

/* Forty queries that are one row of q and dout have one error, forty times; others of the same numbers have forty. */
static void one_row_has_one_error(void **state) {
    (void)state;
    struct check_case c;
    make_plain_case(&c, "sdpa_bwd hq=2 hk=1 sq=40 sk=3 d=8 f32");
    static const int32_t rows[] = {ATTN_ROLE_Q, ATTN_ROLE_DOUT, ATTN_ROLE_OUT};
    for (int k = 0; k < 3; k++) all_like_first(&c.t[rows[k]]);
    struct check_tensor *lse = &c.t[ATTN_ROLE_LSE];
    for (int64_t x = 1; x < lse->n; x++) lse->val[x] = lse->val[0];
    const double apart = noise_again(&c, 0, 0);
    assert_true(apart > 0);
    assert_true(fabs(noise_again(&c, 1, 0) / apart - sqrt(40)) < 1e-9);
    assert_true(fabs(noise_again(&c, 0, 1) / apart - sqrt(2)) < 1e-9);
    assert_true(fabs(noise_again(&c, 1, 1) / apart - sqrt(80)) < 1e-9);
    attn_cli_check_case_free(&c);
}

/* In 16 bits, what roundings may add up to: 5 standard deviations of a row of one number, of many numbers little more
 * than one, and never more than all summands rounded the same way. */
static void roundings_add_up_in_few_numbers(void **state) {
    (void)state;
    static const char *const texts[] = {"sdpa_bwd hq=2 sq=40 sk=50 d=1 dv=64 bf16",
                                        "sdpa_bwd hq=2 sq=40 sk=50 d=64 dv=1 bf16"};
    for (int n = 0; n < 2; n++) {
        struct check_case c;
        int wide = 0;
        make_plain_case(&c, texts[n]);
        const struct check_want *dq = &c.want[ATTN_ROLE_DQ], *dv = &c.want[ATTN_ROLE_DV];
        const struct check_want *few = n ? dv : dq, *many = n ? dq : dv;
        for (int64_t r = 0; r < few->rows; r++) {
            assert_true(few->roundings[r] <= 5 / sqrt(3) * few->terms[r] * (1 + 1e-12));
            wide += few->roundings[r] > 2 * few->terms[r];
        }
        assert_true(4 * wide > few->rows);
        const struct check_want *dk = &c.want[ATTN_ROLE_DK]; /* as wide as dq */
        for (int64_t r = 0; r < dk->rows; r++)
            assert_true(dk->roundings[r] <= (n ? 1 : 5 / sqrt(3)) * dk->terms[r] * (1 + 1e-12));
        for (int64_t r = 0; r < many->rows; r++) assert_true(many->roundings[r] <= many->terms[r]);
        attn_cli_check_case_free(&c);
    }
}

/* dS of a key that are nearly equal, under a dout of one row: each query decides which way bf16 rounds its own, so that
 * all roundings may add up. Rounded so, dk is within its bound, and would not be within that of independent ones. */
static void roundings_of_few_steps_add_up(void **state) {
    (void)state;
    attn_problem p;
    struct check_case c;
    struct check_verdict v = {0};
    assert_int_equal(attn_problem_parse("sdpa_bwd hq=8 hk=4 sq=119 d=1 bf16 sink seqlens_k", &p), ATTN_OK);
    assert_int_equal(attn_cli_check_case_make(&c, &p, 17443146129524, &(struct attn_cli_overlap){0}), 0);
    struct check_want *dk = &c.want[ATTN_ROLE_DK];
    double *rounded = calloc((size_t)dk->rows, sizeof *rounded);
    const double *k = c.t[ATTN_ROLE_K].val, *vs = c.t[ATTN_ROLE_V].val, *sink = c.t[ATTN_ROLE_SINK].val;
    assert_non_null(rounded);
    for (int64_t h = 0; h < p.heads_q; h++)
        for (int64_t i = 0; i < p.seq_q; i++) {
            const int64_t row = h * p.seq_q + i, head = h / 2 * p.seq_k;
            const double q = c.t[ATTN_ROLE_Q].val[row], dout = c.t[ATTN_ROLE_DOUT].val[row],
                         lse = log(exp(c.t[ATTN_ROLE_LSE].val[row]) + exp(sink[h]));
            for (int64_t j = head; j < head + c.seq[0].sk; j++) {
                const double ds = exp(q * k[j] - lse) * dout * (vs[j] - c.t[ATTN_ROLE_OUT].val[row]);
                rounded[j] += attn_cli_check_round(ds, ATTN_BF16) * q;
            }
        }
    for (int64_t j = 0; j < dk->rows; j++) rounded[j] = attn_cli_check_round(rounded[j], ATTN_BF16);
    struct check_bound bound = attn_cli_check_bound(&c, ATTN_ROLE_DK, p.dtype, false);
    assert_int_equal(attn_cli_check_compare(dk, dk->want, rounded, &bound, NULL, &v), 0);
    assert_true(v.worst > 0.3);
    for (int64_t j = 0; j < dk->rows; j++) dk->roundings[j] = fmin(dk->roundings[j], 5 / sqrt(3) * dk->terms[j]);
    v = (struct check_verdict){0};
    assert_int_equal(attn_cli_check_compare(dk, dk->want, rounded, &bound, NULL, &v), 1);
    free(rounded);
    attn_cli_check_case_free(&c);
}

/* One key lost at the end of every row, as a wrong loop bound does: the answer of the same case with that key hidden.
 */
static void lost_key_is_seen(void **state) {
    (void)state;
    static const char *const texts[] = {"sdpa_fwd hq=2 sq=7 sk=65 d=64 f16", "sdpa_fwd hq=2 sq=7 sk=65 d=64 bf16",
                                        "sdpa_fwd hq=2 sq=7 sk=65 d=64 f32"};
    for (int n = 0; n < 3; n++) {
        struct check_case c;
        struct check_verdict v;
        make_plain_case(&c, texts[n]);
        struct check_want *w = &c.want[ATTN_ROLE_OUT];
        double *full = malloc((size_t)(w->rows * w->cols) * sizeof *full);
        assert_non_null(full);
        memcpy(full, w->want, (size_t)(w->rows * w->cols) * sizeof *full);
        memset(w->plain, 0, (size_t)(w->rows * w->cols) * sizeof *w->plain);
        if (w->half) memset(w->half, 0, (size_t)(w->rows * w->cols) * sizeof *w->half);
        for (int64_t b = 0; b < c.p.batch; b++) c.seq[b].sk--;
        assert_int_equal(attn_cli_check_plain_dense(&c, false), 0);
        double *lost = w->plain;
        w->plain = full; /* judge the answer without the key by the case with it */
        struct check_bound bound = attn_cli_check_bound(&c, ATTN_ROLE_OUT, c.p.dtype, false);
        v = (struct check_verdict){0};
        assert_int_equal(attn_cli_check_compare(w, full, lost, &bound, NULL, &v), 1);
        w->plain = lost;
        free(full);
        attn_cli_check_case_free(&c);
    }
}

/* An empty row must hold exact zeros: not even the smallest number passes, nor does a NaN. */
static void empty_rows_are_exact(void **state) {
    (void)state;
    struct check_case c;
    struct check_verdict v;
    make_plain_case(&c,
                    "sdpa_fwd hq=2 sq=40 sk=20 d=16 f32 causal bottom_right"); /* the first 20 queries see nothing */
    struct check_want *w = &c.want[ATTN_ROLE_OUT];
    int64_t row = 0;
    while (row < w->rows && w->kind[row] != CHECK_ROW_ZERO) row++;
    assert_true(row < w->rows);
    double *got = right_answer(&c, ATTN_ROLE_OUT);
    assert_int_equal(wrong(&c, ATTN_ROLE_OUT, got, &v), 0);
    static const double bad[] = {1e-45, 1e-7, NAN, INFINITY};
    for (int k = 0; k < 4; k++) {
        got[row * w->cols + 3] = bad[k];
        assert_int_equal(wrong(&c, ATTN_ROLE_OUT, got, &v), 1);
        assert_int_equal(v.element, row * w->cols + 3);
    }
    free(got);
    attn_cli_check_case_free(&c);
}

/* A number where a NaN belongs, and NaN in the neighbouring row. */
static void nan_rows_coincide(void **state) {
    (void)state;
    struct check_case c;
    struct check_verdict v;
    make_plain_case(&c, "sdpa_fwd hq=2 sq=6 sk=20 d=16 f32");
    struct check_want *w = &c.want[ATTN_ROLE_OUT];
    for (int64_t x = 0; x < w->cols; x++) w->want[w->cols + x] = NAN;
    double *got = right_answer(&c, ATTN_ROLE_OUT);
    assert_int_equal(wrong(&c, ATTN_ROLE_OUT, got, &v), 0);
    got[w->cols + 5] = 0.5;
    assert_int_equal(wrong(&c, ATTN_ROLE_OUT, got, &v), 1);
    assert_int_equal(v.element, w->cols + 5);
    got[w->cols + 5] = NAN;
    got[2 * w->cols] = NAN;
    assert_int_equal(wrong(&c, ATTN_ROLE_OUT, got, &v), 1);
    assert_int_equal(v.element, 2 * w->cols);
    free(got);
    attn_cli_check_case_free(&c);
}

/* Every byte that is not the result is watched: inputs, gaps, guards, rows that belong to nobody. */
static void stray_writes_are_seen(void **state) {
    (void)state;
    char what[400];
    for (int n = 0; n < N_PROBLEMS; n++) {
        struct check_case c;
        make_plain_case(&c, problems[n]);
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            struct check_tensor *t = &c.t[role];
            if (t->use == ATTN_USE_NONE || t->n == 0) continue;
            bool out = check_is_out(t->use);
            if (out) attn_cli_check_poison(t, 0);
            uint8_t *first = t->view.data;
            if (out) first[0] ^= 0x55; /* a result: may change */
            assert_int_equal(attn_cli_check_intact(t, &c.want[role], what, sizeof what), 0);
            if (out) attn_cli_check_poison(t, 0);
            uint8_t *byte = out ? t->map + 5 : first;
            *byte ^= 1;
            assert_int_equal(attn_cli_check_intact(t, &c.want[role], what, sizeof what), 1);
            *byte ^= 1;
        }
        attn_cli_check_case_free(&c);
    }
    struct check_case c;
    make_plain_case(&c, "sdpa_fwd b=2 hq=2 sq=9 sk=20 d=16 f32 packed total_q=19 total_k=30");
    struct check_tensor *t = &c.t[ATTN_ROLE_OUT];
    struct check_want *w = &c.want[ATTN_ROLE_OUT];
    int64_t nobody = 0;
    while (nobody < w->rows && w->kind[nobody] != CHECK_ROW_UNWRITTEN) nobody++;
    assert_true(nobody < w->rows);
    attn_cli_check_poison(t, 1);
    ((float *)t->view.data)[attn_cli_check_offset(&t->view, nobody)] = 0;
    assert_int_equal(attn_cli_check_intact(t, w, what, sizeof what), 1);
    attn_cli_check_case_free(&c);
}

/* The text that says where: rows 32..63 and columns from 48 of a 100 x 64 tensor. */
static void clusters_are_named(void **state) {
    (void)state;
    attn_tensor view = {.rank = 4, .shape = {1, 2, 100, 64}, .dtype = ATTN_F32};
    uint8_t *wrong_at = calloc(1 * 2 * 100 * 64, 1);
    char text[320];
    assert_non_null(wrong_at);
    for (int64_t i = 32; i < 64; i++)
        for (int64_t d = 48; d < 64; d++) wrong_at[(100 + i) * 64 + d] = 1;
    attn_cli_check_cluster(&view, wrong_at, "bhid", text, sizeof text);
    assert_string_equal(text, "d 48..63 (16 of 64) = 16..31 mod 32, i 32..63 (32 of 100) = 32..63 mod 64, h 1 of 2");
    attn_cli_check_place_text(&view, (100 + 33) * 64 + 50, "bhid", text, sizeof text);
    assert_string_equal(text, "b0 h1 i33 d50");
    free(wrong_at);
}

static attn_status crash(void *arg) {
    (void)arg;
    raise(SIGSEGV);
    return ATTN_OK;
}
static attn_status calm(void *arg) {
    *(int *)arg += 1;
    return ATTN_E_LAUNCH;
}

/* A fault inside a kernel is reported, twice in a row too, and the tester goes on. */
static void faults_are_caught(void **state) {
    (void)state;
    attn_status st = ATTN_OK;
    int ran = 0;
    attn_cli_check_signals(100);
    assert_int_equal(attn_cli_check_guarded(crash, NULL, "test", &st), SIGSEGV);
    assert_int_equal(attn_cli_check_guarded(crash, NULL, "test", &st), SIGSEGV);
    assert_int_equal(attn_cli_check_guarded(calm, &ran, "test", &st), 0);
    assert_int_equal(ran, 1);
    assert_int_equal(st, ATTN_E_LAUNCH);
}

/* The tester's own rounding is that of the types. */
static void rounding(void **state) {
    (void)state;
    static const int32_t types[] = {ATTN_F16, ATTN_BF16};
    struct attn_cli_rng r;
    attn_cli_rng_seed(&r, 11);
    for (int k = 0; k < 2; k++)
        for (int n = 0; n < 20000; n++) {
            int64_t e = attn_cli_rng_below(&r, 60) - 40;
            double x = ldexp(attn_cli_rng_normal(&r), (int)e), back;
            uint16_t half;
            if (k == 0 && fabs(x) >= 65504) continue;
            assert_int_equal(attn_convert(&half, types[k], &x, ATTN_F64, 1), ATTN_OK);
            assert_int_equal(attn_convert(&back, ATTN_F64, &half, types[k], 1), ATTN_OK);
            if (attn_cli_check_round(x, types[k]) != back)
                fail_msg("%a rounds to %a, expected %a", x, attn_cli_check_round(x, types[k]), back);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mutation_is_seen),
        cmocka_unit_test(wrong_lse_is_seen),
        cmocka_unit_test(scores_are_in_the_base_of_lse),
        cmocka_unit_test(an_even_error_is_seen),
        cmocka_unit_test(one_row_has_one_error),
        cmocka_unit_test(roundings_add_up_in_few_numbers),
        cmocka_unit_test(roundings_of_few_steps_add_up),
        cmocka_unit_test(lost_key_is_seen),
        cmocka_unit_test(empty_rows_are_exact),
        cmocka_unit_test(nan_rows_coincide),
        cmocka_unit_test(stray_writes_are_seen),
        cmocka_unit_test(clusters_are_named),
        cmocka_unit_test(rounding),
        cmocka_unit_test(faults_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
