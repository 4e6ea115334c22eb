/* SPDX-License-Identifier: MIT
 * The choice of a kernel over a made-up kernel table: refusals with reasons, preferences, strictness, determinism,
 * workspace limits, tuning, the second kernel for unaligned tensors, and the explain table. */
#include "attn.h"
#include "base/err.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What a fake kernel does; hangs on attn_kernel.impl. */
struct fake {
    int64_t max_dim; /* 0 = refuses without a word */
    double seconds;
    uint64_t workspace;
};
static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    (void)dev;
    const struct fake *f = k->impl;
    if (f->max_dim && p->dim_qk > f->max_dim)
        attn_text_add(why, "head dim %d is over %d", (int)p->dim_qk, (int)f->max_dim);
    return p->dim_qk <= f->max_dim;
}
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)dev, (void)p, (void)amount;
    return ((const struct fake *)k->impl)->seconds;
}
static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)dev, (void)p;
    return ((const struct fake *)k->impl)->workspace;
}

enum { FEATURE = 4 };
#define ROW(name_, arch_, backend_, align_, det_, features_, ...)                                                      \
    {                                                                                                                  \
        .name = name_, .arch = arch_, .summary = "", .op = ATTN_OP_SDPA_FWD, .backend = ATTN_BACKEND_##backend_,       \
        .dtype = ATTN_BF16, .device_type = ATTN_DEVICE_TYPE_CPU, .alignment_bytes = align_, .deterministic = det_,     \
        .features = features_, .impl = &(const struct fake){__VA_ARGS__}, .supports = supports, .estimate = estimate,  \
        .workspace = workspace                                                                                         \
    }
static const struct attn_kernel fast_rows[] = {
    ROW("k_exotic", "amx", CPU, 0, 1, FEATURE, 512, 1e-6, 0),
    ROW("k_aligned", "avx512", CPU, 16, 1, 0, 128, 10e-6, 100),
    ROW("k_quick", "avx2", CPU, 0, 0, 0, 256, 20e-6, 4096),
    ROW("k_plain", "c", CPU, 0, 1, 0, 256, 90e-6, 512),
    {.name = "k_other_op", .arch = "c", .op = ATTN_OP_SDPA_BWD, .backend = ATTN_BACKEND_CPU, .dtype = ATTN_BF16},
    {.name = "k_other_dtype", .arch = "c", .op = ATTN_OP_SDPA_FWD, .backend = ATTN_BACKEND_CPU, .dtype = ATTN_F32},
    {.name = "k_gpu",
     .arch = "sm80",
     .op = ATTN_OP_SDPA_FWD,
     .backend = ATTN_BACKEND_CUDA,
     .dtype = ATTN_BF16,
     .device_type = 1},
    ROW("k_mute", "c", CPU, 0, 1, 0, 0, 0, 0),
};
static const struct attn_kernel ref_rows[] = {ROW("k_ref", "ref", REF, 0, 1, 0, 512, 1e-9, 0)};
static const int32_t n_fast = sizeof fast_rows / sizeof *fast_rows, n_ref = 1;
static const struct attn_core_rows ref_set[] = {{ref_rows, &n_ref}}, fast_set[] = {{fast_rows, &n_fast}};
/* The reference stands first to show that order does not win it the choice. */
static const struct attn_core_backend ref_backend = {.name = "ref", .sets = ref_set, .n_sets = 1};
static const struct attn_core_backend fast_backend = {.name = "fast", .sets = fast_set, .n_sets = 1};
static const struct attn_core_backend *const backends[] = {&ref_backend, &fast_backend};

static struct attn_ctx ctx;
static struct attn_core_device device;
static char logged[4096];
static void sink(void *user, int32_t level, const char *area, const char *text) {
    (void)user, (void)area;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%d %s\n", level, text);
}

static int set_up(void **state) {
    (void)state;
    memset(&ctx, 0, sizeof ctx);
    attn_base_mem_init(&ctx.mem, NULL, NULL, NULL, 0);
    ctx.backends = backends;
    ctx.n_backends = 2;
    ctx.log = (struct attn_log){.sink = sink, .level = ATTN_LOG_INFO};
    logged[0] = 0;
    device = (struct attn_core_device){.threads = 2, .features = 1, .name = "Fake CPU"};
    return pthread_mutex_init(&ctx.lock, NULL) || attn_core_tuning_create(&ctx.mem, &ctx.tuning);
}
static int tear_down(void **state) {
    (void)state;
    attn_core_tuning_destroy(&ctx.mem, ctx.tuning);
    return pthread_mutex_destroy(&ctx.lock);
}

static attn_problem problem(int64_t dim, uint64_t flags) {
    attn_problem p = ATTN_PROBLEM_INIT, n;
    p.op = ATTN_OP_SDPA_FWD, p.dtype = ATTN_BF16, p.flags = flags;
    p.batch = 1, p.heads_q = p.heads_k = 2, p.seq_q = p.seq_k = 16, p.dim_qk = p.dim_v = dim;
    assert_int_equal(attn_core_problem_normalise(&p, &n), ATTN_OK);
    return n;
}

static struct attn_plan plan; /* result of the last choose() */
static attn_status choose(attn_problem p, attn_plan_options o) {
    o.size = sizeof o;
    memset(&plan, 0, sizeof plan);
    return attn_core_plan_choose(&ctx, &device, &p, &o, &plan, NULL);
}
#define CHOSEN(kernel_, p, ...)                                                                                        \
    do {                                                                                                               \
        attn_status status_ = choose(p, (attn_plan_options){.size = 0, __VA_ARGS__});                                  \
        if (status_) print_error("%s\n", attn_base_error_get()->text);                                                 \
        assert_int_equal(status_, ATTN_OK);                                                                            \
        assert_string_equal(plan.kernel->name, kernel_);                                                               \
    } while (0)

static void cheapest_that_accepts(void **state) {
    (void)state;
    CHOSEN("k_aligned", problem(64, 0), .flags = 0);
    assert_true(plan.estimate_seconds == 10e-6);
    assert_ptr_equal(plan.device, &device);
    assert_int_equal(plan.problem.dim_qk, 64);
    assert_int_equal(plan.tuned, 0);
    CHOSEN("k_quick", problem(200, 0), .flags = 0);
    CHOSEN("k_ref", problem(300, 0), .flags = 0); /* nobody else */
    device.features |= FEATURE;
    CHOSEN("k_exotic", problem(300, 0), .flags = 0);
    CHOSEN("k_exotic", problem(64, 0), .flags = 0);
    attn_problem p = problem(64, 0);
    assert_int_equal(attn_core_plan_choose(&ctx, &device, &p, NULL, &plan, NULL), ATTN_OK); /* options may be NULL */
    assert_string_equal(logged, "");
}

/* A kernel that joins the lists of neighbouring queries is taken, unless the plan keeps them apart. */
static void queries_apart(void **state) {
    (void)state;
    struct attn_kernel rows[] = {fast_rows[2], fast_rows[3]};
    const int32_t n = 2;
    const struct attn_core_rows set = {rows, &n};
    const struct attn_core_backend backend = {.name = "joining", .sets = &set, .n_sets = 1};
    const struct attn_core_backend *const joining[] = {&backend};
    rows[0].joins = 1;
    ctx.backends = joining, ctx.n_backends = 1;
    CHOSEN("k_quick", problem(200, 0), .flags = 0);
    CHOSEN("k_plain", problem(200, 0), .flags = ATTN_PLAN_QUERIES_APART);
    CHOSEN("k_plain", problem(200, 0), .flags = ATTN_PLAN_QUERIES_APART, .kernel = "k_quick"); /* a hint goes unmet */
    const attn_plan_options o = {.flags = ATTN_PLAN_QUERIES_APART | ATTN_PLAN_STRICT, .kernel = "k_quick"};
    assert_int_equal(choose(problem(200, 0), o), ATTN_E_NO_KERNEL);
    assert_non_null(strstr(attn_base_error_get()->text, "joins the lists of neighbouring queries"));
}

static void refusals(void **state) {
    (void)state;
    CHOSEN("k_plain", problem(200, ATTN_DETERMINISTIC), .flags = 0);
    CHOSEN("k_plain", problem(200, 0), .flags = ATTN_PLAN_WORKSPACE_LIMIT, .max_workspace_bytes = 4095);
    CHOSEN("k_quick", problem(200, 0), .flags = ATTN_PLAN_WORKSPACE_LIMIT, .max_workspace_bytes = 4096);
    CHOSEN("k_ref", problem(200, 0), .flags = ATTN_PLAN_WORKSPACE_LIMIT);
    CHOSEN("k_quick", problem(200, 0), .max_workspace_bytes = 1); /* without the flag it is not set */

    attn_problem p = problem(64, 0);
    p.op = ATTN_OP_DIST;
    assert_int_equal(choose(p, (attn_plan_options){.size = 0}), ATTN_E_NO_KERNEL);
    assert_non_null(strstr(attn_base_error_get()->text, "this build has none for the operator"));
    assert_int_equal(choose(problem(64, 0), (attn_plan_options){.flags = 1u << 9}), ATTN_E_ENUM);
    assert_int_equal(choose(problem(64, 0), (attn_plan_options){.backend = 4}), ATTN_E_ENUM);
    assert_int_equal(choose(problem(64, 0), (attn_plan_options){.backend = -1}), ATTN_E_ENUM);
    assert_int_equal(choose(problem(64, 0), (attn_plan_options){.effort = 2}), ATTN_E_ENUM);
}

static void every_refusal_has_a_reason(void **state) {
    (void)state;
    attn_plan_options o = {.flags = ATTN_PLAN_WORKSPACE_LIMIT | ATTN_PLAN_STRICT, .backend = ATTN_BACKEND_CPU};
    assert_int_equal(choose(problem(200, ATTN_DETERMINISTIC), o), ATTN_E_NO_KERNEL);
    assert_null(plan.kernel);
    const char *text = attn_base_error_get()->text;
    static const char *const reasons[] = {
        "no kernel for sdpa_fwd hq=2 sq=16 d=200 bf16 deterministic on cpu Fake CPU, strictly preferred: backend cpu:",
        "k_ref          no  is not of backend cpu, which the strict preference asks for",
        "k_exotic       no  needs amx, which the device lacks",
        "k_aligned      no  head dim 200 is over 128",
        "k_quick        no  is not deterministic",
        "k_plain        no  needs 512 bytes of workspace, the limit is 0",
        "k_other_dtype  no  is for f32 tensors",
        "k_gpu          no  runs on cuda devices",
        "k_mute         no  refuses the problem without a reason",
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (!strstr(text, reasons[i])) print_error("missing: %s\nin: %s\n", reasons[i], text);
        assert_non_null(strstr(text, reasons[i]));
    }
    assert_null(strstr(text, "k_other_op"));
    assert_string_equal(attn_base_error_get()->argument, "backend");
}

static void preferences(void **state) {
    (void)state;
    attn_problem p = problem(64, 0);
    CHOSEN("k_quick", p, .kernel = "k_qu*");
    CHOSEN("k_quick", p, .kernel = "k_?uick", .flags = ATTN_PLAN_STRICT);
    CHOSEN("k_ref", p, .backend = ATTN_BACKEND_REF);
    CHOSEN("k_ref", p, .kernel = "*_ref");
    CHOSEN("k_aligned", p, .kernel = "*"); /* matches the reference too, but does not ask for it */
    CHOSEN("k_ref", p, .backend = ATTN_BACKEND_REF, .kernel = "*");
    assert_string_equal(logged, "");

    /* Not to be had: another one and a warning, or, strictly, none. */
    CHOSEN("k_aligned", p, .kernel = "k_exotic");
    assert_non_null(strstr(
        logged, "1 preferred kernel 'k_exotic' cannot be met for sdpa_fwd hq=2 sq=16 d=64 bf16: k_aligned instead"));
    logged[0] = 0;
    CHOSEN("k_aligned", p, .backend = ATTN_BACKEND_CUDA);
    assert_non_null(strstr(logged, "1 preferred backend cuda cannot be met"));
    logged[0] = 0;
    assert_int_equal(choose(p, (attn_plan_options){.kernel = "k_exotic", .flags = ATTN_PLAN_STRICT}), ATTN_E_NO_KERNEL);
    assert_string_equal(attn_base_error_get()->argument, "kernel");
    assert_int_equal(choose(p, (attn_plan_options){.backend = ATTN_BACKEND_CUDA, .flags = ATTN_PLAN_STRICT}),
                     ATTN_E_NO_KERNEL);
    assert_string_equal(logged, "");
    /* One of two can be met: the kernel counts more. */
    CHOSEN("k_quick", p, .kernel = "k_quick", .backend = ATTN_BACKEND_REF);
    assert_non_null(strstr(logged, "preferred backend ref cannot be met"));
}

static void environment(void **state) {
    (void)state;
    attn_problem p = problem(64, 0);
    strcpy(ctx.env_kernel, "k_plain");
    CHOSEN("k_plain", p, .flags = 0);
    CHOSEN("k_quick", p, .kernel = "k_quick");
    CHOSEN("k_ref", p, .backend = ATTN_BACKEND_REF); /* what the caller asks for outweighs the environment */
    logged[0] = 0;
    strcpy(ctx.env_kernel, "k_exotic");
    CHOSEN("k_aligned", p, .flags = ATTN_PLAN_STRICT); /* the environment only hints */
    assert_non_null(strstr(logged, "ATTN_KERNEL"));
    CHOSEN("k_aligned", p, .flags = ATTN_PLAN_STRICT, .kernel = ctx.env_kernel); /* also when handed on */
    ctx.env_kernel[0] = 0;
    ctx.env_backend = ATTN_BACKEND_REF;
    CHOSEN("k_ref", p, .flags = 0);
    CHOSEN("k_aligned", p, .backend = ATTN_BACKEND_CPU);
    CHOSEN("k_quick", p, .kernel = "k_quick");
}

static void tuning(void **state) {
    (void)state;
    attn_problem p = problem(64, 0), q = problem(65, 0);
    assert_int_equal(attn_core_tuning_put(&ctx.mem, ctx.tuning, &p, "Fake CPU", 2, "k_plain", 1e-6), ATTN_OK);
    CHOSEN("k_plain", p, .flags = 0);
    assert_int_equal(plan.tuned, 1);
    CHOSEN("k_aligned", p, .flags = ATTN_PLAN_NO_TUNING);
    assert_int_equal(plan.tuned, 0);
    CHOSEN("k_aligned", q, .flags = 0); /* another problem */
    CHOSEN("k_quick", p, .kernel = "k_quick");
    assert_int_equal(plan.tuned, 0);
    device.threads = 3;
    CHOSEN("k_aligned", p, .flags = 0);
    device.threads = 2;
    /* A winner that cannot run here does not. */
    assert_int_equal(attn_core_tuning_put(&ctx.mem, ctx.tuning, &p, "Fake CPU", 2, "k_exotic", 1e-6), ATTN_OK);
    CHOSEN("k_aligned", p, .flags = 0);
    assert_int_equal(plan.tuned, 0);
    assert_int_equal(attn_core_tuning_put(&ctx.mem, ctx.tuning, &p, "Fake CPU", 2, "k_gone", 1e-6), ATTN_OK);
    CHOSEN("k_aligned", p, .flags = 0);
}

static void unaligned(void **state) {
    (void)state;
    attn_problem p = problem(64, 0);
    CHOSEN("k_aligned", p, .flags = 0);
    assert_non_null(plan.unaligned);
    assert_string_equal(plan.unaligned->name, "k_quick");
    assert_int_equal(plan.workspace_bytes, 4096); /* enough for either */
    CHOSEN("k_aligned", problem(64, ATTN_DETERMINISTIC), .flags = 0);
    assert_string_equal(plan.unaligned->name, "k_plain");
    assert_int_equal(plan.workspace_bytes, 512);
    CHOSEN("k_aligned", p, .flags = ATTN_PLAN_WORKSPACE_LIMIT, .max_workspace_bytes = 100);
    assert_string_equal(plan.unaligned->name, "k_ref"); /* at worst */
    assert_int_equal(plan.workspace_bytes, 100);
    p.align_bytes = 8;
    CHOSEN("k_aligned", p, .flags = 0);
    assert_non_null(plan.unaligned);
    p.align_bytes = 16;
    CHOSEN("k_aligned", p, .flags = 0);
    assert_null(plan.unaligned);
    assert_int_equal(plan.workspace_bytes, 100);
    p.align_bytes = 0;
    CHOSEN("k_quick", p, .kernel = "k_quick");
    assert_null(plan.unaligned);
    CHOSEN("k_aligned", p, .kernel = "k_aligned", .flags = ATTN_PLAN_STRICT); /* nothing else is wanted */
    assert_null(plan.unaligned);
}

static void explain(void **state) {
    (void)state;
    char table[4096];
    struct attn_text text = attn_text_over(table, sizeof table);
    attn_problem p = problem(64, ATTN_CAUSAL);
    attn_plan_options o = {.size = sizeof o, .backend = ATTN_BACKEND_CUDA};
    assert_int_equal(attn_core_plan_choose(&ctx, &device, &p, &o, &plan, &text), ATTN_OK);
    assert_string_equal(table, "attn plan  sdpa_fwd hq=2 sq=16 d=64 bf16 causal   device cpu Fake CPU\n"
                               "  k_ref          accepted  est 0.001 us, workspace 0 bytes\n"
                               "  k_exotic       no  needs amx, which the device lacks or is not allowed to use\n"
                               "> k_aligned      accepted  est 10 us, workspace 100 bytes\n"
                               "  k_quick        accepted  est 20 us, workspace 4096 bytes\n"
                               "  k_plain        accepted  est 90 us, workspace 512 bytes\n"
                               "  k_other_dtype  no  is for f32 tensors\n"
                               "  k_gpu          no  runs on cuda devices\n"
                               "  k_mute         no  refuses the problem without a reason\n"
                               "preferred backend cuda: no kernel that accepts the problem meets it, chosen without\n"
                               "tensors that are not aligned to 16 bytes: k_quick\n"
                               "workspace 4096 bytes, chosen as smallest estimate of those that accept\n");
    device.id = ATTN_DEVICE_CUDA(1);
    p = problem(600 - 100, 0);
    text = attn_text_over(table, sizeof table);
    assert_int_equal(attn_core_plan_choose(&ctx, &device, &p, NULL, &plan, &text), ATTN_OK);
    assert_non_null(strstr(table, "device cuda:1 Fake CPU\n"));
    assert_non_null(strstr(table, "> k_gpu          accepted  est unknown, workspace 0 bytes\n"));
    assert_non_null(strstr(table, "chosen as the only one that accepts\n"));
    p.dtype = ATTN_F64;
    text = attn_text_over(table, sizeof table);
    assert_int_equal(attn_core_plan_choose(&ctx, &device, &p, NULL, &plan, &text), ATTN_E_NO_KERNEL);
    assert_non_null(strstr(table, "  k_quick        no  runs on cpu devices\n"));
    /* the error's room is bounded: neighbours refused in the same words share a line there */
    assert_non_null(
        strstr(attn_base_error_get()->text, "  k_ref .. other_dtype  no  runs on cpu devices (6 kernels)\n"));
    assert_non_null(strstr(table, "no kernel accepts the problem\n"));
    assert_null(strchr(table, '>'));
    /* A short buffer is cut, the need is counted. */
    char small[40];
    struct attn_text cut = attn_text_over(small, sizeof small);
    attn_core_plan_choose(&ctx, &device, &p, NULL, &plan, &cut);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_int_equal(cut.len, text.len);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(cheapest_that_accepts),
        TEST(refusals),
        TEST(queries_apart),
        TEST(every_refusal_has_a_reason),
        TEST(preferences),
        TEST(environment),
        TEST(tuning),
        TEST(unaligned),
        TEST(explain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
