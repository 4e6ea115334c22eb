/* SPDX-License-Identifier: MIT
 * Lists that neighbouring queries share (--overlap): what is asked for is what is measured, lists are valid, and no
 * number that a seed gave before has changed. */
#include "check/check.h"
#include "shared/cli.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attn_problem problem_of(const char *text) {
    attn_problem p;
    if (attn_problem_parse(text, &p) || attn_problem_check(&p)) fail_msg("%s: %s", text, attn_last_error());
    return p;
}

static int32_t *draw(const attn_problem *p, const char *overlap, uint64_t seed) {
    struct attn_cli_overlap o;
    int32_t *indices = malloc((size_t)(p->batch * p->seq_q * p->topk) * sizeof *indices);
    assert_non_null(indices);
    assert_int_equal(attn_cli_overlap_parse(overlap, &o), 0);
    assert_int_equal(attn_cli_overlap_fill(&o, p, indices, seed), ATTN_OK);
    return indices;
}

static struct attn_cli_overlap_measured measure(const char *text, const char *overlap) {
    const attn_problem p = problem_of(text);
    struct attn_cli_overlap_measured m;
    int32_t *indices = draw(&p, overlap, 3);
    assert_int_equal(attn_cli_overlap_measure(&p, indices, NULL, &m), ATTN_OK);
    free(indices);
    return m;
}

#define LISTS "mla_fwd sq=64 sk=8192 hq=8 topk=512 bf16"
static void measured(void **state) {
    (void)state;
    static const double asked[] = {0, 0.2, 0.5, 0.8, 0.9, 0.95, 1};
    for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
        char text[16];
        snprintf(text, sizeof text, "%g", asked[k]);
        const struct attn_cli_overlap_measured m = measure(LISTS, text);
        if (fabs(m.j - asked[k]) > 0.002) fail_msg("asked for J %s, measured %g", text, m.j);
        if (fabs(m.union_length[0] - 2 * 512 / (1 + asked[k])) > 1)
            fail_msg("J %s: union of two %g", text, m.union_length[0]);
        for (int c = 1; c < 4; c++) assert_true(m.union_length[c] >= m.union_length[c - 1]);
    }
    /* J of independent lists: n / (2 SK - n). */
    assert_true(fabs(measure(LISTS, "random").j - 512.0 / (2 * 8192 - 512)) < 0.003);
    const struct attn_cli_overlap_measured prefix = measure(LISTS, "prefix");
    assert_true(prefix.j == 1 && prefix.union_length[3] == 512);
    /* Few slots: what rounding takes from one query, a later one gives. */
    assert_true(fabs(measure("mla_fwd sq=4000 sk=9000 hq=8 topk=7 bf16", "0.9").j - 0.9) < 0.02);
}

static void valid(void **state) {
    (void)state;
    static const char *const texts[] = {
        "mla_fwd b=3 sq=40 sk=200 hq=8 topk=64 bf16", "mla_fwd sq=40 sk=50 hq=8 topk=64 bf16",
        "mla_fwd sq=90 sk=60 hq=8 topk=64 bf16 causal", "mla_fwd b=2 sq=90 sk=60 hq=8 topk=16 bf16 causal k_stride=4"};
    static const char *const overlaps[] = {"0", "0.5", "0.95", "1", "random", "prefix"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        for (size_t o = 0; o < sizeof overlaps / sizeof *overlaps; o++) {
            const attn_problem p = problem_of(texts[k]);
            int32_t *indices = draw(&p, overlaps[o], 9), moved = 0;
            for (int64_t row = 0; row < p.batch * p.seq_q; row++) {
                int64_t open = p.seq_k, n = 0, stride = p.k_stride ? p.k_stride : 1;
                if (p.flags & ATTN_CAUSAL) open = (row % p.seq_q + 1) / stride;
                if (open > p.seq_k) open = p.seq_k;
                uint8_t seen[256] = {0};
                for (int64_t t = 0; t < p.topk; t++) {
                    const int32_t key = indices[row * p.topk + t];
                    moved += key != t;
                    if (key < 0) continue;
                    assert_true(key < open && !seen[key]++ && t == n++);
                }
                assert_int_equal(n, open < p.topk ? open : p.topk);
            }
            assert_true(moved > 0); /* shuffled */
            free(indices);
        }
}

static void parsed(void **state) {
    (void)state;
    struct attn_cli_overlap o;
    static const char *const bad[] = {"", "1.01", "-0.1", "nan", "Random", "0.9x", "0.50000000000000000000000000000"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) assert_int_equal(attn_cli_overlap_parse(bad[k], &o), -1);
    assert_int_equal(attn_cli_overlap_parse("0.9", &o), 0);
    assert_true(o.kind == ATTN_CLI_OVERLAP_WALK && o.j == 0.9 && !strcmp(o.text, "0.9"));
}

static uint64_t digest(uint64_t h, double x) { return (h ^ (uint64_t)(int64_t)x) * UINT64_C(0x100000001b3); }

/* Integers that the seeds gave before there was an overlap, in both commands' inputs; lengths outside their range are
 * as far as int32 goes since. */
static void seeds_stay(void **state) {
    (void)state;
    struct attn_cli_tensors set;
    const attn_problem p = problem_of("mla_fwd b=2 sq=33 sk=300 hq=8 topk=70 bf16 causal q_start=50 topk_length");
    uint64_t h = 0;
    assert_int_equal(attn_cli_tensors_create(&set, &p), ATTN_OK);
    assert_int_equal(attn_cli_tensors_fill(&set, 4), ATTN_OK);
    for (uint64_t i = 0; i < set.tensor[ATTN_ROLE_INDICES].bytes / 4; i++)
        h = digest(h, ((int32_t *)set.tensor[ATTN_ROLE_INDICES].data)[i]);
    for (uint64_t i = 0; i < set.tensor[ATTN_ROLE_TOPK_LENGTH].bytes / 4; i++)
        h = digest(h, ((int32_t *)set.tensor[ATTN_ROLE_TOPK_LENGTH].data)[i]);
    attn_cli_tensors_destroy(&set);
    assert_int_equal(h, UINT64_C(0x1de7c894a735d3f2));
    h = 0;
    for (uint64_t seed = 1; seed < 20; seed++) {
        struct check_case c;
        assert_int_equal(attn_cli_check_case_make(&c, &p, seed, &(struct attn_cli_overlap){0}), 0);
        for (int64_t i = 0; i < c.t[ATTN_ROLE_INDICES].n; i++) h = digest(h, c.t[ATTN_ROLE_INDICES].val[i]);
        for (int64_t i = 0; i < c.t[ATTN_ROLE_TOPK_LENGTH].n; i++) h = digest(h, c.t[ATTN_ROLE_TOPK_LENGTH].val[i]);
        h = digest(h, c.modes);
        attn_cli_check_case_free(&c);
    }
    assert_int_equal(h, UINT64_C(0x034c347b7cbbfcd2));
}

/* In a case, slots that were invalid stay as they were, repetitions stay, and the values of other tensors do. */
static void cases(void **state) {
    (void)state;
    const attn_problem p = problem_of("mla_fwd sq=24 sk=3000 hq=2 topk=64 bf16 causal q_start=4000 topk_length");
    struct attn_cli_overlap o;
    assert_int_equal(attn_cli_overlap_parse("0.9", &o), 0);
    int walks = 0, repeated = 0, bad = 0;
    for (uint64_t seed = 1; seed < 40; seed++) {
        struct check_case a, b;
        assert_int_equal(attn_cli_check_case_make(&a, &p, seed, &(struct attn_cli_overlap){0}), 0);
        assert_int_equal(attn_cli_check_case_make(&b, &p, seed, &o), 0);
        assert_int_equal(a.modes, b.modes);
        const struct check_tensor *x = &a.t[ATTN_ROLE_INDICES], *y = &b.t[ATTN_ROLE_INDICES];
        int64_t changed = 0;
        for (int64_t i = 0; i < x->n; i++) {
            const bool valid_before = x->val[i] >= 0 && x->val[i] < (double)p.seq_k;
            changed += x->val[i] != y->val[i];
            if (!valid_before) assert_true(x->val[i] == y->val[i]), bad++;
        }
        if (a.modes & CHECK_ONE_KEY) assert_int_equal(changed, 0);
        walks += changed > x->n / 4;
        if ((a.modes & (CHECK_TWICE | CHECK_ONE_KEY)) == CHECK_TWICE)
            for (int64_t i = 0; i < x->n; i += 2) repeated += y->val[i] >= 0 && y->val[i] == y->val[i + 1];
        assert_memory_equal(a.t[ATTN_ROLE_Q].val, b.t[ATTN_ROLE_Q].val, (size_t)a.t[ATTN_ROLE_Q].n * sizeof(double));
        assert_memory_equal(a.t[ATTN_ROLE_TOPK_LENGTH].val, b.t[ATTN_ROLE_TOPK_LENGTH].val,
                            (size_t)a.t[ATTN_ROLE_TOPK_LENGTH].n * sizeof(double));
        attn_cli_check_case_free(&a);
        attn_cli_check_case_free(&b);
    }
    assert_true(walks > 20 && repeated > 0 && bad > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(measured), cmocka_unit_test(valid), cmocka_unit_test(parsed),
                                       cmocka_unit_test(seeds_stay), cmocka_unit_test(cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
