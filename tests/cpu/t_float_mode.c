/* SPDX-License-Identifier: MIT
 * Subnormal operands and the caller's floating-point mode, on every row of the CPU that keeps them: scores of a
 * subnormal factor and a huge one by hand; the caller's mode as it was after an execution, whose bits do not depend on
 * it, and neither do those of a plan; and ATTN_CPU_SUBNORMALS. */
#include "attn.h"

#include "ref_try.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

static const char *const isas[] = {"ref", "c", "avx2", "avx512"};
enum { ISAS = sizeof isas / sizeof *isas, THREADS = 3, KEYS = 8 };

static attn_ctx *make_ctx(int isa, const char *subnormals) {
    if (subnormals) setenv("ATTN_CPU_SUBNORMALS", subnormals, 1);
    attn_ctx_options o = {.size = sizeof o, .threads = THREADS, .cpu_isa = isa ? isas[isa] : "c"};
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    unsetenv("ATTN_CPU_SUBNORMALS");
    return ctx;
}

/* The plan and its workspace; NULL if this processor has no such kernel. */
static attn_plan *make_plan(attn_ctx *ctx, struct ref_try *t, int isa) {
    char pattern[32];
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    snprintf(pattern, sizeof pattern, "*_%s_*", isas[isa]);
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = pattern};
    attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CPU, &t->given, &o, &plan);
    if (status == ATTN_E_NO_KERNEL) return NULL;
    if (status) fail_msg("plan: %s", attn_last_error());
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    t->args.workspace = aligned_alloc(64, (info.workspace_bytes + 127) / 64 * 64);
    t->args.workspace_bytes = info.workspace_bytes;
    return plan;
}
static void drop_plan(struct ref_try *t, attn_plan *plan) {
    attn_plan_release(plan);
    free(t->args.workspace);
    t->args.workspace = NULL, t->args.workspace_bytes = 0;
}

static const struct example {
    int32_t op, dtype;
    int64_t seq_q, dim;
    double scale, q, k; /* of the first 8 columns; 8 scale q k is 4 */
} examples[] = {
    {ATTN_OP_SDPA_FWD, ATTN_F32, 1, 8, 1, 1e38, 0.5e-38},    {ATTN_OP_SDPA_FWD, ATTN_F32, 40, 64, 1, 1e38, 0.5e-38},
    {ATTN_OP_SDPA_FWD, ATTN_F32, 1, 8, 0.5, 1e-38, 1e38},    {ATTN_OP_SDPA_FWD, ATTN_F32, 32, 64, 0.5, 1e-38, 1e38},
    {ATTN_OP_SDPA_FWD, ATTN_F32, 40, 64, 0.5, 1e-38, 1e38},  {ATTN_OP_SDPA_FWD, ATTN_F32, 32, 64, 1, 0.5e-38, 1e38},
    {ATTN_OP_SDPA_FWD, ATTN_F64, 1, 8, 1, 1e308, 0.5e-308},  {ATTN_OP_SDPA_FWD, ATTN_F64, 40, 64, 1, 1e308, 0.5e-308},
    {ATTN_OP_SDPA_FWD, ATTN_F64, 1, 8, 0.5, 1e-308, 1e308},  {ATTN_OP_SDPA_FWD, ATTN_F64, 40, 64, 0.5, 1e-308, 1e308},
    {ATTN_OP_SDPA_FWD, ATTN_BF16, 1, 8, 1, 1e38, 0.5e-38},   {ATTN_OP_SDPA_FWD, ATTN_BF16, 40, 64, 1, 1e38, 0.5e-38},
    {ATTN_OP_SDPA_FWD, ATTN_BF16, 40, 64, 1, 0.5e-38, 1e38}, {ATTN_OP_SDPA_FWD, ATTN_F16, 40, 64, 1, 0x1p13, 0x1p-14},
    {ATTN_OP_SDPA_FWD, ATTN_F16, 1, 8, 1, 0x1p14, 0x1p-15},  {ATTN_OP_MLA_FWD, ATTN_F32, 2, 512, 1, 1e38, 0.5e-38},
    {ATTN_OP_MLA_FWD, ATTN_F32, 2, 512, 1, 0.5e-38, 1e38},   {ATTN_OP_MLA_FWD, ATTN_BF16, 2, 512, 1, 1e38, 0.5e-38},
    {ATTN_OP_MLA_FWD, ATTN_F16, 2, 512, 1, 0x1p14, 0x1p-15},
};
enum { EXAMPLES = sizeof examples / sizeof *examples };

/* Two keys: the score of the first is 4, that of the second 0; the last column of the values is 1 and 0. */
static void open_example(struct ref_try *t, const struct example *e) {
    const int sparse = e->op == ATTN_OP_MLA_FWD;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = e->op, p.dtype = e->dtype, p.batch = 1, p.heads_q = 1, p.heads_k = 1, p.seq_q = e->seq_q, p.seq_k = 2;
    p.dim_qk = p.dim_v = e->dim, p.flags = ATTN_SCALE, p.scale = e->scale, p.topk = sparse ? 2 : 0;
    ref_try_open(t, &p);
    for (int64_t i = 0; i < e->seq_q; i++)
        for (int64_t c = 0; c < 8 - sparse; c++) ref_set(t, ATTN_ROLE_Q, i * e->dim + c, e->q);
    for (int64_t c = 0; c < 8 - sparse; c++) ref_set(t, sparse ? ATTN_ROLE_KV : ATTN_ROLE_K, c, e->k);
    ref_set(t, sparse ? ATTN_ROLE_KV : ATTN_ROLE_V, e->dim - 1, 1);
    for (int64_t i = 0; sparse && i < e->seq_q * 2; i++) ref_set_int(t, ATTN_ROLE_INDICES, i, (int32_t)(i % 2));
}

/* The score as the operands are in the tensors, in a number that holds it whole. */
static double wanted(const struct ref_try *t, const struct example *e, int keeps) {
    const int sparse = e->op == ATTN_OP_MLA_FWD;
    const double q = ref_get(t, ATTN_ROLE_Q, 0), k = ref_get(t, sparse ? ATTN_ROLE_KV : ATTN_ROLE_K, 0);
    const double tiny = e->dtype == ATTN_F64 ? 0x1p-1022 : 0x1p-126;
    const double score = keeps || (fabs(q) >= tiny && fabs(k) >= tiny) ? q * k * e->scale * (8 - sparse) : 0;
    return 1 / (1 + exp(-score));
}

static int n_run[ISAS];

static void check_examples(const char *subnormals) {
    const int keeps = !subnormals || strcmp(subnormals, "flush") != 0;
    for (int isa = 0; isa < ISAS; isa++) {
        attn_ctx *ctx = make_ctx(isa, subnormals);
        for (int n = 0; n < EXAMPLES; n++) {
            const struct example *e = &examples[n];
            struct ref_try t;
            open_example(&t, e);
            attn_plan *plan = make_plan(ctx, &t, isa);
            if (plan) {
                const double want = wanted(&t, e, keeps || isa == 0), bound = e->dtype == ATTN_BF16 ? 0x1p-7 : 0x1p-10;
                assert_int_equal(attn_execute(plan, &t.args), ATTN_OK);
                for (int64_t i = 0; i < e->seq_q; i++) {
                    const double got = ref_get(&t, ATTN_ROLE_OUT, (i + 1) * e->dim - 1);
                    if (!(fabs(got - want) <= bound * want))
                        fail_msg("%s, %s, example %d, row %d: %.6g, not %.6g", isas[isa],
                                 subnormals ? subnormals : "default", n, (int)i, got, want);
                }
                drop_plan(&t, plan);
                n_run[isa]++;
            }
            ref_try_close(&t);
        }
        attn_ctx_release(ctx);
    }
}

static void operands_count_as_they_are(void **state) {
    (void)state;
    check_examples(NULL);
    assert_true(n_run[0] == EXAMPLES && n_run[1] == EXAMPLES);
}
static void exact_and_flush(void **state) {
    (void)state;
    check_examples("exact");
#if defined(__SSE2__)
    check_examples("flush");
#endif
}

/* exact: what always flushes refuses, and says why. */
static void flushing_rows_refuse(void **state) {
    (void)state;
    setenv("ATTN_CPU_SUBNORMALS", "exact", 1);
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    unsetenv("ATTN_CPU_SUBNORMALS");
    struct ref_try t;
    open_example(&t, &(struct example){ATTN_OP_SDPA_FWD, ATTN_BF16, 40, 64, 1, 1, 0.5});
    attn_plan *plan = NULL;
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT, .kernel = "*_avx512bf16_*"};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &t.given, &o, &plan), ATTN_E_NO_KERNEL);
    attn_device_info info = {.size = sizeof info};
    assert_int_equal(attn_device_get_info(ctx, 0, &info), ATTN_OK);
    if (strstr(info.features, "avx512_bf16"))
        assert_non_null(strstr(attn_last_error(), "ATTN_CPU_SUBNORMALS is exact"));
    ref_try_close(&t);
    attn_ctx_release(ctx);
}

/* Modes that a caller may have. On x86 the flags of MXCSR, too, come back. */
static const struct caller {
    int rounding;
    uint32_t csr; /* more bits of MXCSR: FTZ, DAZ, flags */
} callers[] = {{FE_TONEAREST, 0},  {FE_UPWARD, 0},      {FE_DOWNWARD, 0x1},
               {FE_TOWARDZERO, 0}, {FE_UPWARD, 0x8040}, {FE_TONEAREST, 0x8020}};
enum { CALLERS = sizeof callers / sizeof *callers };

static uint32_t mode_now(void) {
#if defined(__SSE2__)
    return _mm_getcsr();
#else
    return (uint32_t)fegetround();
#endif
}
static void set_caller(const struct caller *c) {
    fesetround(c->rounding);
#if defined(__SSE2__)
    _mm_setcsr((_mm_getcsr() & ~0x3fu) | c->csr);
#endif
}

static void callers_mode(void **state) {
    (void)state;
    static const struct {
        int32_t op;
        int64_t seq_q;
    } shapes[] = {{ATTN_OP_SDPA_FWD, 1}, {ATTN_OP_SDPA_FWD, 70}, {ATTN_OP_MLA_FWD, 5}};
    fenv_t before;
    fegetenv(&before);
    for (int isa = 0; isa < ISAS; isa++) {
        attn_ctx *ctx = make_ctx(isa, NULL);
        for (int n = 0; n < 3; n++) {
            const int sparse = shapes[n].op == ATTN_OP_MLA_FWD;
            attn_problem p = ATTN_PROBLEM_INIT;
            p.op = shapes[n].op, p.dtype = ATTN_F32, p.batch = 1, p.heads_q = 4, p.heads_k = sparse ? 1 : 2;
            p.seq_q = shapes[n].seq_q, p.seq_k = 300, p.dim_qk = p.dim_v = sparse ? 512 : 64;
            p.topk = sparse ? KEYS : 0, p.flags = ATTN_SCALE, p.scale = 0.3;
            struct ref_try t;
            ref_try_open(&t, &p);
            for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_KV; role++)
                if (t.n[role] && role != ATTN_ROLE_OUT) ref_random(&t, role, 5 + (uint64_t)role, 1);
            for (int64_t i = 0; sparse && i < p.seq_q * KEYS; i++)
                ref_set_int(&t, ATTN_ROLE_INDICES, i, (int32_t)(i * 37 % 300));
            attn_plan *plan = make_plan(ctx, &t, isa);
            if (plan) {
                const size_t bytes = t.t[ATTN_ROLE_OUT].bytes;
                void *first = malloc(bytes);
                for (int c = 0; c < CALLERS; c++) {
                    memset(t.t[ATTN_ROLE_OUT].data, 0xa7, bytes);
                    set_caller(&callers[c]);
                    const uint32_t was = mode_now();
                    const attn_status status = attn_execute(plan, &t.args);
                    const uint32_t is = mode_now();
                    fesetenv(&before);
                    assert_int_equal(status, ATTN_OK);
                    assert_int_equal(is, was);
                    if (!c) memcpy(first, t.t[ATTN_ROLE_OUT].data, bytes);
                    if (memcmp(first, t.t[ATTN_ROLE_OUT].data, bytes) != 0)
                        fail_msg("%s, shape %d: other bits with mode %d of the caller", isas[isa], n, c);
                }
                free(first);
                drop_plan(&t, plan);
            }
            ref_try_close(&t);
        }
        attn_ctx_release(ctx);
    }
}

/* The default scale, 1 / sqrt(72), is no number of f64: it rounds as it does in the mode that a process begins with. */
static void plans_of_any_mode(void **state) {
    (void)state;
    fenv_t before;
    fegetenv(&before);
    attn_ctx *ctx = make_ctx(1, NULL);
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD, p.dtype = ATTN_F64, p.batch = 1, p.heads_q = p.heads_k = 2;
    p.seq_q = 20, p.seq_k = 30, p.dim_qk = p.dim_v = 72;
    struct ref_try t;
    ref_try_open(&t, &p);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) ref_random(&t, role, 5 + (uint64_t)role, 1);
    const size_t bytes = t.t[ATTN_ROLE_OUT].bytes;
    void *first = malloc(bytes), *workspace = aligned_alloc(64, 1 << 20);
    const attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = "*_c_*"};
    t.args.workspace = workspace, t.args.workspace_bytes = 1 << 20;
    for (int c = 0; c < CALLERS; c++) {
        attn_plan *plan = NULL;
        set_caller(&callers[c]);
        const uint32_t was = mode_now();
        const attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CPU, &t.given, &o, &plan);
        const uint32_t is = mode_now();
        fesetenv(&before);
        assert_int_equal(status, ATTN_OK);
        assert_int_equal(is, was);
        assert_int_equal(attn_execute(plan, &t.args), ATTN_OK);
        if (!c) memcpy(first, t.t[ATTN_ROLE_OUT].data, bytes);
        if (memcmp(first, t.t[ATTN_ROLE_OUT].data, bytes) != 0) fail_msg("other bits of a plan made in mode %d", c);
        attn_plan_release(plan);
    }
    free(first);
    free(workspace);
    ref_try_close(&t);
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_count_as_they_are), cmocka_unit_test(exact_and_flush),
        cmocka_unit_test(flushing_rows_refuse),       cmocka_unit_test(callers_mode),
        cmocka_unit_test(plans_of_any_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
