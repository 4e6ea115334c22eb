/* SPDX-License-Identifier: MIT
 * The CPU device and its reference kernels as a context shows them: features under a cap, the pool made at the first
 * plan, a failed thread start, every reference row found by name and run. */
#include "attn.h"

#include "core/ctx.h"
#include "cpu/host/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attn_ctx *make_ctx(int32_t threads, const char *isa) {
    attn_ctx_options options = {.size = sizeof options, .threads = threads, .cpu_isa = isa};
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(&options, &ctx), ATTN_OK);
    return ctx;
}

static void test_device(void **state) {
    (void)state;
    const char *caps[] = {"c", "avx2", "avx512", "avx512bf16", "amx", NULL};
    for (int i = 0; i < 6; ++i) {
        attn_ctx *ctx = make_ctx(3, caps[i]);
        attn_device_info info = {.size = sizeof info};
        assert_int_equal(attn_device_get_info(ctx, 0, &info), ATTN_OK);
        assert_int_equal(info.device.type, ATTN_DEVICE_TYPE_CPU);
        assert_true(info.name[0] && info.memory_bytes > (1u << 20));
        assert_int_equal(ctx->devices[0].threads, 3);
        assert_int_equal(ctx->devices[0].features, attn_cpu_features(ctx->cpu_isa, NULL));
        assert_int_equal(strstr(info.features, "avx2") != NULL, (ctx->devices[0].features & ATTN_CPU_AVX2) != 0);
        assert_int_equal(strstr(info.features, "amx") != NULL, (ctx->devices[0].features & ATTN_CPU_AMX) != 0);
        assert_null(ctx->devices[0].backend); /* no threads until a plan needs them */
        attn_ctx_release(ctx);
    }
}

static attn_problem small(int32_t op, int32_t dtype) {
    attn_problem p = ATTN_PROBLEM_INIT;
    int sparse = op >= ATTN_OP_MLA_FWD;
    p.op = op;
    p.dtype = dtype;
    p.batch = 1;
    p.heads_q = 2;
    p.heads_k = 1;
    p.seq_q = 3;
    p.seq_k = 4;
    p.dim_qk = p.dim_v = sparse ? 512 : 8;
    p.topk = sparse ? 2 : 0;
    return p;
}

static void test_thread_fault(void **state) {
    (void)state;
    attn_ctx *ctx = make_ctx(4, NULL);
    attn_problem p = small(ATTN_OP_SDPA_FWD, ATTN_F32);
    for (int64_t fault = 1; fault <= 3; ++fault) {
        attn_plan *plan = NULL;
        ctx->fail_thread_in = fault;
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan), ATTN_E_THREAD);
        assert_null(plan);
        assert_null(ctx->devices[0].backend);
        assert_non_null(strstr(attn_last_error(), "thread"));
    }
    ctx->fail_thread_in = 0; /* the next plan tries again */
    attn_plan *plan = NULL;
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan), ATTN_OK);
    void *pool = ctx->devices[0].backend;
    assert_non_null(pool);
    attn_plan_release(plan);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan), ATTN_OK);
    assert_ptr_equal(ctx->devices[0].backend, pool); /* one pool for the life of the context */
    attn_plan_release(plan);
    attn_ctx_release(ctx);
}

/* Every row, through the public calls: chosen by preference, named as its fields say, gives numbers. */
static void test_reference_rows(void **state) {
    (void)state;
    static const char *const ops[] = {"", "sdpa_fwd", "sdpa_bwd", "mla_fwd", "mla_bwd", "dist"};
    attn_ctx *ctx = make_ctx(2, NULL);
    attn_plan_options options = {.size = sizeof options, .flags = ATTN_PLAN_STRICT, .backend = ATTN_BACKEND_REF};
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_E4M3};
    int32_t n = 0;
    for (int32_t op = ATTN_OP_SDPA_FWD; op <= ATTN_OP_DIST; ++op)
        for (int32_t x = 0; x < (op == ATTN_OP_SDPA_FWD ? 5 : op == ATTN_OP_SDPA_BWD ? 4 : 3); ++x, ++n) {
            const int32_t dtype = dtypes[x];
            attn_problem p = small(op, dtype);
            attn_plan *plan = NULL;
            attn_plan_info info = {.size = sizeof info};
            char name[96];
            assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &options, &plan), ATTN_OK);
            assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
            snprintf(name, sizeof name, "attn_%s_ref_%s_any", ops[op], attn_dtype_name(dtype));
            assert_string_equal(info.kernel, name);
            assert_string_equal(info.arch, "ref");
            assert_int_equal(info.accumulator_dtype, ATTN_F64);
            assert_true(info.deterministic && info.bit_stable);

            attn_args args = ATTN_ARGS_INIT;
            attn_tensor t[ATTN_ROLE_COUNT];
            int32_t use[ATTN_ROLE_COUNT];
            for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
                assert_int_equal(attn_role_tensor(&p, role, &use[role], &t[role]), ATTN_OK);
                if (use[role] == ATTN_USE_NONE) continue;
                t[role].data = calloc(1, t[role].bytes);
                if (use[role] != ATTN_USE_IN) memset(t[role].data, 0xff, t[role].bytes); /* NaN */
                attn_args_set(&args, role, &t[role]);
            }
            args.workspace_bytes = info.workspace_bytes;
            args.workspace = aligned_alloc(64, (info.workspace_bytes + 63) / 64 * 64);
            assert_int_equal(attn_execute(plan, &args), ATTN_OK);
            for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
                if (use[role] == ATTN_USE_NONE) continue;
                if (use[role] != ATTN_USE_IN) { /* zero inputs: every output is a finite number, none left as it was */
                    size_t elements = t[role].bytes / attn_dtype_bytes(t[role].dtype);
                    for (size_t i = 0; i < elements; ++i) {
                        double value = 0;
                        attn_convert(&value, ATTN_F64, (char *)t[role].data + i * attn_dtype_bytes(t[role].dtype),
                                     t[role].dtype, 1);
                        assert_true(value - value == 0);
                    }
                }
                free(t[role].data);
            }
            free(args.workspace);
            attn_plan_release(plan);
        }
    assert_int_equal(n + 1, attn_cpu_n_ref_rows); /* and joined lists, which are integers */
    attn_ctx_release(ctx);
}

static uint64_t workspace_of(attn_ctx *ctx, const attn_problem *p, const char *isa) {
    char kernel[32];
    snprintf(kernel, sizeof kernel, "*_%s_*", isa);
    attn_plan_options options = {.size = sizeof options, .flags = ATTN_PLAN_STRICT, .kernel = kernel};
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, p, &options, &plan), ATTN_OK);
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    attn_plan_release(plan);
    return info.workspace_bytes;
}
/* Scratch is that of the threads that find a task: 128 times that of one problem's single task took 152 MB. */
static void test_workspace_follows_tasks(void **state) {
    (void)state;
    attn_ctx *one = make_ctx(1, NULL), *many = make_ctx(64, NULL);
    for (int32_t op = ATTN_OP_SDPA_FWD; op <= ATTN_OP_DIST; ++op) {
        attn_problem p = small(op, ATTN_F32);
        p.seq_q = 1;
        assert_true(workspace_of(many, &p, "c") <= 4 * workspace_of(one, &p, "c"));
    }
    attn_problem p = small(ATTN_OP_SDPA_FWD, ATTN_F32); /* work for all threads is still laid out for all */
    p.batch = 64, p.seq_q = p.seq_k = 2048;
    assert_true(workspace_of(many, &p, "c") > 32 * workspace_of(one, &p, "c"));
    attn_ctx_release(one);
    attn_ctx_release(many);
}

/* A bound that no packed sequence can reach changes nothing: 4 rows took 22 s. */
static void test_packed_bound(void **state) {
    (void)state;
    attn_ctx *ctx = make_ctx(2, NULL);
    for (int32_t op = ATTN_OP_SDPA_FWD; op <= ATTN_OP_SDPA_BWD; ++op) {
        attn_problem p = small(op, ATTN_F32), far;
        p.flags |= ATTN_PACKED;
        p.batch = 1, p.seq_q = p.total_q = p.seq_k = p.total_k = 4;
        far = p;
        far.seq_q = far.seq_k = 1000000000;
        assert_true(attn_problem_equal(&p, &far));
        assert_int_equal(workspace_of(ctx, &far, "c"), workspace_of(ctx, &p, "c"));
        assert_true(attn_problem_flops(&far) <= attn_problem_flops(&p));
        far.total_q = 0; /* an empty axis is still one of rows */
        assert_true(workspace_of(ctx, &far, "c") <= workspace_of(ctx, &p, "c"));
    }
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device),         cmocka_unit_test(test_thread_fault),
        cmocka_unit_test(test_reference_rows), cmocka_unit_test(test_workspace_follows_tasks),
        cmocka_unit_test(test_packed_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
