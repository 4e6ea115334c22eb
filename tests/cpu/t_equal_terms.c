/* SPDX-License-Identifier: MIT
 * Sums of thousands of equal terms in f32, on every kernel of the CPU: out of keys of equal weight, also where the
 * bound of their number is far above it, and a row of dkv that all queries name. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>

static const char *const isas[] = {"c", "avx2", "avx512"};
enum { ISAS = sizeof isas / sizeof *isas };

/* Relative error of the first `end` of each `cols` numbers of the role. */
static double worst(const struct ref_try *t, int32_t role, int64_t cols, int64_t end, double want) {
    double most = 0;
    for (int64_t i = 0; i < t->n[role]; i++)
        if (i % cols < end) most = fmax(most, fabs(ref_get(t, role, i) - want) / fabs(want));
    return most;
}

static void equal_values(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t keys;
        double bound;
    } rows[] = {
        {"sdpa_fwd hq=1 sq=41 sk=1000 d=8 dv=16 f32", 0, 2e-6},
        {"sdpa_fwd hq=1 sq=1 sk=500000 d=4 dv=4 f32", 0, 3e-6},
        {"sdpa_fwd hq=1 sq=1 sk=8000000 d=1 dv=1 f32 seqlens_k", 100000, 3e-6},
    };
    int runs = 0;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (int isa = 0; isa < ISAS; isa++) {
            struct ref_try t;
            attn_problem p;
            assert_int_equal(attn_problem_parse(rows[n].text, &p), ATTN_OK);
            ref_try_open(&t, &p);
            ref_fill(&t, ATTN_ROLE_V, 0.1);
            if (rows[n].keys) ref_set_int(&t, ATTN_ROLE_SEQLENS_K, 0, rows[n].keys);
            if (ref_try_run_isa(&t, isas[isa])) {
                const double error = worst(&t, ATTN_ROLE_OUT, 1, 1, (double)0.1f);
                if (!(error <= rows[n].bound)) fail_msg("%s, %s: off by %.2g", rows[n].text, isas[isa], error);
                runs++;
            }
            ref_try_close(&t);
        }
    assert_true(runs >= 3);
}

/* 3,000 one by one were off by 3e-5; accumulating starts from what dkv has. */
static void one_row(void **state) {
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++)
        for (int isa = 0; isa < ISAS; isa++) {
            struct ref_try t;
            attn_problem p;
            assert_int_equal(attn_problem_parse("mla_bwd hq=1 sq=3000 sk=2 d=512 topk=1 f32", &p), ATTN_OK);
            if (accumulate) p.flags |= ATTN_ACCUMULATE;
            ref_try_open(&t, &p);
            ref_fill(&t, ATTN_ROLE_DOUT, 0.1), ref_fill(&t, ATTN_ROLE_OUT, 0.1), ref_fill(&t, ATTN_ROLE_KV, 0.1);
            if (accumulate) ref_fill(&t, ATTN_ROLE_DKV, 0.5);
            if (ref_try_run_isa(&t, isas[isa])) {
                const double start = accumulate ? 0.5 : 0, want = 3000 * (double)0.1f + start;
                for (int64_t c = 0; c < 512; c++) {
                    ref_near(ref_get(&t, ATTN_ROLE_DKV, c), want, 6e-6 * want, isas[isa], c);
                    ref_near(ref_get(&t, ATTN_ROLE_DKV, 512 + c), start, 0, "a row that none names", c);
                }
            }
            ref_try_close(&t);
        }
}

/* dv of keys that a million queries see: tile after tile they were off by 4e-5. */
static void many_queries(void **state) {
    (void)state;
    enum { QUERIES = 1 << 20 };
    int runs = 0;
    for (int isa = 0; isa < ISAS; isa++) {
        struct ref_try t;
        attn_problem p;
        assert_int_equal(attn_problem_parse("sdpa_bwd hq=1 sq=1048576 sk=2 d=4 dv=4 f32", &p), ATTN_OK);
        ref_try_open(&t, &p);
        ref_fill(&t, ATTN_ROLE_DOUT, 0.1), ref_fill(&t, ATTN_ROLE_OUT, 0.1), ref_fill(&t, ATTN_ROLE_V, 0.1);
        ref_fill(&t, ATTN_ROLE_LSE, log(2));
        if (ref_try_run_isa(&t, isas[isa])) {
            const double error = worst(&t, ATTN_ROLE_DV, 1, 1, QUERIES * (double)0.1f / 2);
            if (!(error <= 3e-6)) fail_msg("%s: off by %.2g", isas[isa], error);
            runs++;
        }
        ref_try_close(&t);
    }
    assert_true(runs >= 1);
}

/* What is not finite stays so beside the parts that roundings have lost. */
static void infinities_stay(void **state) {
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
        struct ref_try t;
        attn_problem p;
        assert_int_equal(attn_problem_parse("mla_bwd hq=1 sq=5 sk=1 d=512 topk=1 f32", &p), ATTN_OK);
        ref_try_open(&t, &p);
        ref_fill(&t, ATTN_ROLE_DOUT, 3e38);
        if (ref_try_run_isa(&t, isas[isa]))
            for (int64_t c = 0; c < 512; c++) assert_true(ref_get(&t, ATTN_ROLE_DKV, c) == INFINITY);
        ref_try_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_values), cmocka_unit_test(one_row),
                                       cmocka_unit_test(many_queries), cmocka_unit_test(infinities_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
