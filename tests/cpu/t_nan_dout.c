/* SPDX-License-Identifier: MIT
 * A NaN of dout on every dense backward of the CPU: its column of dv is NaN at each key that the row sees, also where a
 * sink takes all weight and P is 0, and no other column and no hidden key is. */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_column)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
