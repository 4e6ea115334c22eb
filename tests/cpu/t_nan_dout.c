/* SPDX-License-Identifier: MIT
 * Numbers of dout that are not finite, on every backward of the CPU. A NaN: its column of dv is NaN at each key that
 * the row sees, also where a sink takes all weight and P is 0, and no other column and no hidden key is. An infinity:
 * as in the reference. A sink of -inf has no gradient beside either. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>

static const char *const isas[] = {"ref", "c", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISAS = sizeof isas / sizeof *isas, SK = 20, DV = 8, COLUMN = 3 };

static void one_column(void **state) {
    (void)state;
    static const char *const forwards[] = {
        "sdpa_fwd hq=1 sq=2 sk=20 d=8 bf16 causal bottom_right sink",
        "sdpa_fwd hq=1 sq=2 sk=20 d=8 f16 causal bottom_right sink",
        "sdpa_fwd hq=1 sq=2 sk=20 d=8 f32 causal bottom_right sink",
    };
    int runs = 0;
    for (int n = 0; n < 3; n++)
        for (int all_to_sink = 0; all_to_sink < 2; all_to_sink++) {
            struct ref_try forward;
            attn_problem p;
            assert_int_equal(attn_problem_parse(forwards[n], &p), ATTN_OK);
            ref_try_open(&forward, &p);
            for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++)
                ref_random(&forward, role, 3 + (uint64_t)role, 1);
            ref_set(&forward, ATTN_ROLE_SINK, 0, all_to_sink ? INFINITY : 0.5);
            ref_try_run(&forward, 1);
            for (int isa = 0; isa < ISAS; isa++) {
                struct ref_try t;
                ref_try_open_next(&t, &forward, ATTN_OP_SDPA_BWD, 0);
                ref_fill(&t, ATTN_ROLE_DOUT, 0.375);
                ref_set(&t, ATTN_ROLE_DOUT, COLUMN, NAN); /* of query 0, which does not see the last key */
                if (ref_try_run_isa(&t, isas[isa])) {
                    runs++;
                    for (int64_t i = 0; i < SK * DV; i++)
                        if (!isnan(ref_get(&t, ATTN_ROLE_DV, i)) != (i % DV != COLUMN || i / DV == SK - 1))
                            fail_msg("%s, %s, sink %s: dv of key %lld, column %lld is %g", forwards[n], isas[isa],
                                     all_to_sink ? "+inf" : "finite", (long long)(i / DV), (long long)(i % DV),
                                     ref_get(&t, ATTN_ROLE_DV, i));
                }
                ref_try_close(&t);
            }
            ref_try_close(&forward);
        }
    assert_true(runs >= 12);
}

static void open_forward(struct ref_try *forward, const char *text) {
    attn_problem p;
    if (attn_problem_parse(text, &p)) fail_msg("%s", attn_last_error());
    ref_try_open(forward, &p);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_KV; role++) ref_random(forward, role, 3 + (uint64_t)role, 1);
    for (int64_t i = 0; i < forward->n[ATTN_ROLE_INDICES]; i++)
        ref_set_int(forward, ATTN_ROLE_INDICES, i, (int32_t)(i * 7 % 40));
    if (forward->n[ATTN_ROLE_SINK])
        ref_set(forward, ATTN_ROLE_SINK, 0, -INFINITY), ref_set(forward, ATTN_ROLE_SINK, 1, 0.5);
    ref_try_run(forward, 1);
}
static const double values[] = {NAN, INFINITY, -INFINITY};
enum { VALUES = 3 };

/* Two heads: the first has a sink of -inf. */
static void no_sink(void **state) {
    (void)state;
    static const char *const forwards[] = {
        "sdpa_fwd hq=2 sq=2 sk=20 d=8 f32 sink", "sdpa_fwd hq=2 sq=20 sk=20 d=8 bf16 sink",
        "sdpa_fwd hq=2 sq=2 sk=20 d=8 f64 sink lse_with_sink", "mla_fwd hq=2 sq=2 sk=40 topk=20 f32 sink",
        "mla_fwd hq=2 sq=2 sk=40 topk=20 bf16 sink"};
    int runs = 0;
    for (size_t n = 0; n < sizeof forwards / sizeof *forwards; n++) {
        struct ref_try forward;
        open_forward(&forward, forwards[n]);
        for (int v = 0; v < VALUES; v++)
            for (int isa = 0; isa < ISAS; isa++) {
                struct ref_try t;
                const int sparse = forward.given.op == ATTN_OP_MLA_FWD;
                ref_try_open_next(&t, &forward, sparse ? ATTN_OP_MLA_BWD : ATTN_OP_SDPA_BWD, ATTN_GRAD_SINK);
                ref_fill(&t, ATTN_ROLE_DOUT, 0.375);
                const int64_t head = t.n[ATTN_ROLE_DOUT] / (sparse ? 4 : 2); /* numbers from a head's row to the next */
                ref_set(&t, ATTN_ROLE_DOUT, 3, values[v]), ref_set(&t, ATTN_ROLE_DOUT, head + 3, values[v]);
                if (ref_try_run_isa(&t, isas[isa])) {
                    runs++;
                    if (ref_get(&t, ATTN_ROLE_DSINK, 0) != 0 || isfinite(ref_get(&t, ATTN_ROLE_DSINK, 1)))
                        fail_msg("%s, %s, dout %g: dsink is %g, %g", forwards[n], isas[isa], values[v],
                                 ref_get(&t, ATTN_ROLE_DSINK, 0), ref_get(&t, ATTN_ROLE_DSINK, 1));
                }
                ref_try_close(&t);
            }
        ref_try_close(&forward);
    }
    assert_true(runs >= 30);
}

/* An infinity of dout: dv infinite in its column, dq NaN, dk NaN or infinite, element by element as the reference. */
static void infinite(void **state) {
    (void)state;
    static const char *const forwards[] = {"sdpa_fwd hq=2 hk=1 sq=20 sk=30 d=16 f32 causal bottom_right",
                                           "sdpa_fwd hq=2 sq=3 sk=20 d=8 f16",
                                           "sdpa_fwd hq=2 sq=40 sk=50 d=64 bf16 causal",
                                           "sdpa_fwd hq=2 sq=5 sk=20 d=8 f64 sink",
                                           "mla_fwd hq=3 sq=2 sk=40 topk=20 f32",
                                           "mla_fwd hq=3 sq=2 sk=40 topk=20 bf16",
                                           "mla_fwd hq=3 sq=2 sk=40 topk=20 f16"};
    int runs = 0;
    for (size_t n = 0; n < sizeof forwards / sizeof *forwards; n++) {
        struct ref_try forward;
        open_forward(&forward, forwards[n]);
        for (int v = 1; v < VALUES; v++) {
            struct ref_try want;
            const int32_t op = forward.given.op == ATTN_OP_MLA_FWD ? ATTN_OP_MLA_BWD : ATTN_OP_SDPA_BWD;
            ref_try_open_next(&want, &forward, op, 0);
            ref_random(&want, ATTN_ROLE_DOUT, 19, 1);
            ref_set(&want, ATTN_ROLE_DOUT, 3, values[v]);
            ref_try_run(&want, 1);
            for (int isa = 1; isa < ISAS; isa++) {
                struct ref_try t;
                ref_try_open_next(&t, &forward, op, 0);
                ref_random(&t, ATTN_ROLE_DOUT, 19, 1);
                ref_set(&t, ATTN_ROLE_DOUT, 3, values[v]);
                if (ref_try_run_isa(&t, isas[isa])) {
                    runs++;
                    for (int32_t role = ATTN_ROLE_DQ; role <= ATTN_ROLE_DKV; role++)
                        for (int64_t i = 0; i < t.n[role]; i++) {
                            const double x = ref_get(&t, role, i), y = ref_get(&want, role, i);
                            if (isfinite(x) != isfinite(y) || (!isfinite(y) && !(isnan(y) ? isnan(x) : x == y)))
                                fail_msg("%s, %s, dout %g: %s[%lld] is %g, expected %g", forwards[n], isas[isa],
                                         values[v], attn_role_name(role), (long long)i, x, y);
                        }
                }
                ref_try_close(&t);
            }
            ref_try_close(&want);
        }
        ref_try_close(&forward);
    }
    assert_true(runs >= 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_column), cmocka_unit_test(no_sink),
                                       cmocka_unit_test(infinite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
