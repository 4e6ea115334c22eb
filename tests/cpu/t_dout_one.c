/* SPDX-License-Identifier: MIT
 * A dout of one number, stride 0 on every axis as the gradient of a sum has: on every backward kernel of the CPU and of
 * the reference the bits of a dout that holds it everywhere. */
#include "attn.h"

#include "ref_try.h"

#include <string.h>

static const char *const isas[] = {"ref", "c", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISAS = sizeof isas / sizeof *isas };

static const char *const forwards[] = {
    "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=20 d=24 dv=40 f32 causal bottom_right",
    "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=20 d=24 dv=40 bf16 sink",
    "sdpa_fwd b=3 hq=2 hk=1 sq=9 sk=20 d=24 f16 packed total_q=20 total_k=30",
    "sdpa_fwd hq=2 sq=7 sk=5 d=512 f64",
    "sdpa_fwd hq=2 sq=7 sk=5 d=8 dv=1 f32",
    "mla_fwd hq=4 sq=3 sk=30 topk=12 f32",
    "mla_fwd hq=4 sq=3 sk=30 topk=12 bf16 sink",
};
enum { FORWARDS = sizeof forwards / sizeof *forwards };

static void fill_inputs(struct ref_try *t) {
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_KV; role++)
        if (t->n[role]) ref_random(t, role, 3 + (uint64_t)role, 1);
    if (t->n[ATTN_ROLE_SINK]) ref_random(t, ATTN_ROLE_SINK, 9, 1);
    for (int64_t i = 0; i < t->n[ATTN_ROLE_INDICES]; i++) ref_set_int(t, ATTN_ROLE_INDICES, i, (int32_t)(i * 7 % 33));
    static const int32_t cu_q[] = {1, 9, 9, 17}, cu_k[] = {0, 20, 24, 30};
    for (int b = 0; b < 4 && t->n[ATTN_ROLE_CU_SEQLENS_Q]; b++) {
        ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, b, cu_q[b]);
        ref_set_int(t, ATTN_ROLE_CU_SEQLENS_K, b, cu_k[b]);
    }
}

static void one_number(void **state) {
    (void)state;
    int runs = 0;
    for (int n = 0; n < FORWARDS; n++) {
        struct ref_try forward;
        attn_problem p;
        if (attn_problem_parse(forwards[n], &p)) fail_msg("%s", attn_last_error());
        const int32_t op = p.op == ATTN_OP_SDPA_FWD ? ATTN_OP_SDPA_BWD : ATTN_OP_MLA_BWD;
        ref_try_open(&forward, &p);
        fill_inputs(&forward);
        ref_try_run(&forward, 1);
        for (int isa = 0; isa < ISAS; isa++) {
            struct ref_try whole, one;
            ref_try_open_next(&whole, &forward, op, ATTN_DETERMINISTIC);
            ref_try_open_next(&one, &forward, op, ATTN_DETERMINISTIC);
            ref_fill(&whole, ATTN_ROLE_DOUT, 0.375);
            attn_tensor *dout = &one.t[ATTN_ROLE_DOUT];
            for (int32_t a = 0; a < dout->rank; a++) dout->strides[a] = 0;
            dout->bytes = attn_dtype_bytes(dout->dtype);
            ref_set(&one, ATTN_ROLE_DOUT, 0, 0.375);
            if (ref_try_run_isa(&whole, isas[isa]) && ref_try_run_isa(&one, isas[isa])) {
                runs++;
                for (int32_t role = ATTN_ROLE_DQ; role <= ATTN_ROLE_DKV; role++)
                    if (one.n[role] && !ref_same_bits(&whole, &one, role))
                        fail_msg("%s, %s: %s is not that of a whole dout", forwards[n], isas[isa],
                                 attn_role_name(role));
            }
            ref_try_close(&whole);
            ref_try_close(&one);
        }
        ref_try_close(&forward);
    }
    assert_true(runs >= 2 * FORWARDS);
}

/* Along a row alone it is refused, and so for other tensors. */
static void others_are_refused(void **state) {
    (void)state;
    struct ref_try forward, t;
    attn_problem p;
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 sq=7 sk=5 d=8 f32", &p), ATTN_OK);
    ref_try_open(&forward, &p);
    ref_try_run(&forward, 1);
    ref_try_open_next(&t, &forward, ATTN_OP_SDPA_BWD, 0);
    static const int32_t roles[] = {ATTN_ROLE_DOUT, ATTN_ROLE_Q};
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &t.given, NULL, &plan), ATTN_OK);
    for (int n = 0; n < 2; n++) {
        attn_tensor *const tensor = &t.t[roles[n]], before = *tensor;
        tensor->strides[tensor->rank - 1] = 0;
        for (int32_t a = 0; n == 1 && a < tensor->rank; a++) tensor->strides[a] = 0;
        assert_int_equal(attn_plan_check(plan, &t.args), ATTN_E_STRIDE);
        if (n == 0) assert_non_null(strstr(attn_last_error(), "or 0 on every axis"));
        *tensor = before;
    }
    attn_plan_release(plan);
    attn_ctx_release(ctx);
    ref_try_close(&t);
    ref_try_close(&forward);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_number), cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
