/* SPDX-License-Identifier: MIT
 * Contexts: options and environment, references, lists, and each allocation of a whole session made to fail in turn. */
#include "api_fixture.h"

#include <unistd.h>

static attn_ctx *const untouched = (attn_ctx *)(uintptr_t)0x10;

static void refused(const attn_ctx_options *o, attn_status want, const char *argument) {
    attn_ctx *ctx = untouched;
    attn_error e = {.size = sizeof e};
    attn_status got = attn_ctx_create(o, &ctx);
    if (got != want) fail_msg("%s: got %s (%s)", argument, attn_status_name(got), got ? attn_last_error() : "");
    assert_ptr_equal(ctx, untouched);
    attn_last_error_detail(&e);
    assert_string_equal(e.argument, argument);
    assert_non_null(strstr(attn_last_error(), want == ATTN_E_ABI ? "options" : argument));
}

static void bad_options_are_refused(void **state) {
    (void)state;
    struct hooks h = {0};
    const attn_ctx_options good = hooked(&h);
    attn_ctx_options o;
    assert_int_equal(attn_ctx_create(NULL, NULL), ATTN_E_ARGUMENT);
    o = good, o.threads = -1, refused(&o, ATTN_E_ARGUMENT, "threads");
    o = good, o.threads = 1 << 20, refused(&o, ATTN_E_ARGUMENT, "threads");
    o = good, o.free = NULL, refused(&o, ATTN_E_ARGUMENT, "free");
    o = good, o.alloc = NULL, refused(&o, ATTN_E_ARGUMENT, "alloc");
    o = good, o.log_level = ATTN_LOG_INFO, refused(&o, ATTN_E_ARGUMENT, "log");
    o = good, o.log = keep_line, o.log_level = 4, refused(&o, ATTN_E_ENUM, "log_level");
    o = good, o.log = keep_line, o.log_level = -1, refused(&o, ATTN_E_ENUM, "log_level");
    o = good, o.reserved0 = 1, refused(&o, ATTN_E_ABI, "reserved0");
    o = good, o.cpu_isa = "avx3", refused(&o, ATTN_E_ENUM, "cpu_isa");
    o = good, o.cpu_isa = "", refused(&o, ATTN_E_ENUM, "cpu_isa");
    o = good, o.size = 0, refused(&o, ATTN_E_ABI, "size");
    char longer[600];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    o = good, o.cuda_driver = longer, refused(&o, ATTN_E_ARGUMENT, "cuda_driver");
    o = good, o.tuning_file = "/nonexistent/tuning";
    attn_ctx *ctx = untouched;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_E_IO);
    assert_ptr_equal(ctx, untouched);
    assert_no_leak(&h);
    assert_true(h.calls > 0);
}

static void options_by_the_size_rule(void **state) {
    (void)state;
    struct {
        attn_ctx_options o;
        char tail[16];
    } longer = {.o = {.size = sizeof longer, .threads = 3}};
    attn_ctx *ctx;
    assert_int_equal(attn_ctx_create(&longer.o, &ctx), ATTN_OK);
    attn_ctx_release(ctx);
    longer.tail[9] = 1;
    refused(&longer.o, ATTN_E_ABI, "size");
    longer.o.size = offsetof(attn_ctx_options, cpu_isa);
    longer.o.cpu_isa = "nonsense behind the caller's size";
    assert_int_equal(attn_ctx_create(&longer.o, &ctx), ATTN_OK);
    attn_ctx_release(ctx);
}

static void environment_is_read_and_judged(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
        attn_status status;
        const char *argument;
    } rows[] = {
        {"ATTN_THREADS", "0", ATTN_E_ARGUMENT, "threads"},
        {"ATTN_THREADS", "two", ATTN_E_ARGUMENT, "threads"},
        {"ATTN_CPU", "sse9", ATTN_E_ENUM, "cpu_isa"},
        {"ATTN_CPU_SUBNORMALS", "ftz", ATTN_E_ENUM, "ATTN_CPU_SUBNORMALS"},
        {"ATTN_BACKEND", "gpu", ATTN_E_ENUM, "backend"},
        {"ATTN_TRACE", "/nonexistent/t", ATTN_E_IO, "trace"},
        {"ATTN_LOG", "nonsense", ATTN_E_ENUM, "log_level"},
        {"ATTN_LOG", "info,pla", ATTN_E_ENUM, "log_level"},
        {"ATTN_CHECK", "yep", ATTN_E_ARGUMENT, "ATTN_CHECK"},
        {"ATTN_SYNC", "2", ATTN_E_ARGUMENT, "ATTN_SYNC"},
        {"ATTN_FAIL_THREAD", "-", ATTN_E_ARGUMENT, "ATTN_FAIL_THREAD"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv(rows[i].name, rows[i].value, 1);
        refused(NULL, rows[i].status, rows[i].argument);
        unsetenv(rows[i].name);
    }
    struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};
    attn_ctx_options o = {.size = sizeof o, .log = keep_line, .log_user = &lines};
    attn_ctx *ctx;
    setenv("ATTN_NO_SUCH_NAME", "1", 1);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    attn_ctx_release(ctx);
    assert_int_equal(lines.n, 0); /* without ATTN_LOG and log_level nothing is said */
    setenv("ATTN_LOG", "warn", 1);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    attn_ctx_release(ctx);
    assert_int_equal(lines.n, 1);
    assert_non_null(strstr(lines.text, "ATTN_NO_SUCH_NAME is set"));
    assert_null(strstr(lines.text, "did you mean"));
    setenv("ATTN_THREAD", "1", 1);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    attn_ctx_release(ctx);
    assert_int_equal(lines.n, 3); /* one line a name */
    assert_non_null(strstr(lines.text, "ATTN_THREAD is set, but no variable of libattn has this name, did you mean "
                                       "ATTN_THREADS?"));
    unsetenv("ATTN_THREAD");
    unsetenv("ATTN_NO_SUCH_NAME");
    lines.n = 1;
    setenv("ATTN_LOG", "nonsense", 1); /* not read where the options say the level */
    o.log_level = ATTN_LOG_WARN;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    attn_ctx_release(ctx);
    o.log_level = 0;
    setenv("ATTN_LOG", "info,plan", 1);
    setenv("ATTN_THREADS", "3", 1);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    assert_int_equal(lines.n, 1);
    attn_ctx_release(ctx);
    unsetenv("ATTN_LOG");
    o.log_level = ATTN_LOG_INFO;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    assert_non_null(strstr(lines.text, "3 threads"));
    attn_ctx_release(ctx);
    unsetenv("ATTN_THREADS");
}

/* Said once per context, of the default alignment alone. */
static void one_causal_query_sees_the_first_key(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int said;
    } rows[] = {
        {"sdpa_fwd hq=2 sq=2 sk=9 d=16 f32 causal", 0},
        {"sdpa_fwd hq=2 sq=1 sk=1 d=16 f32 causal", 0},
        {"sdpa_fwd hq=2 sq=1 sk=9 d=16 f32", 0},
        {"sdpa_fwd hq=2 sq=1 sk=9 d=16 f32 causal bottom_right", 0},
        {"mla_fwd hq=2 sq=1 sk=9 topk=4 f32 causal q_start=8", 0},
        {"sdpa_fwd b=2 hq=2 sq=1 sk=9 total_q=2 total_k=12 d=16 f32 causal packed", 0},
        {"sdpa_fwd hq=2 sq=1 sk=9 d=16 f32 causal", 1},
        {"sdpa_bwd hq=2 sq=1 sk=7 d=16 f32 causal", 1},
    };
    struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};
    attn_ctx_options o = {.size = sizeof o, .log = keep_line, .log_user = &lines, .log_level = ATTN_LOG_WARN};
    attn_ctx *ctx;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attn_problem p;
        attn_plan *plan;
        assert_int_equal(attn_problem_parse(rows[i].text, &p), ATTN_OK);
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan), ATTN_OK);
        attn_plan_release(plan);
        assert_int_equal(lines.n, rows[i].said);
    }
    assert_non_null(strstr(lines.text, "sk=9: the query sees key 0 alone; bottom_right aligns it with the last key"));
    attn_ctx_release(ctx);
}

static void preferences_from_the_environment_are_hints(void **state) {
    (void)state;
    struct call c;
    attn_ctx *ctx;
    attn_plan *plan;
    attn_plan_info info = {.size = sizeof info};
    call_init(&c);
    setenv("ATTN_BACKEND", "ref", 1);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    unsetenv("ATTN_BACKEND"); /* read once, at creation */
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    attn_plan_get_info(plan, &info);
    assert_int_equal(info.backend, ATTN_BACKEND_REF);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
    setenv("ATTN_KERNEL", "no_such_kernel_*", 1);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    unsetenv("ATTN_KERNEL");
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT, .backend = ATTN_BACKEND_REF};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &o, &plan), ATTN_OK);
    attn_plan_release(plan);
    o.kernel = "no_such_kernel_*";
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &o, &plan), ATTN_E_NO_KERNEL);
    attn_ctx_release(ctx);
}

static void plans_keep_their_context(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    attn_plan *plan;
    call_init(&c);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    assert_ptr_equal(attn_ctx_retain(ctx), ctx);
    attn_ctx_release(ctx);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    assert_ptr_equal(attn_plan_retain(plan), plan);
    attn_ctx_release(ctx);
    attn_plan_release(plan);
    int64_t before = h.calls;
    assert_int_equal(call_execute(&c, plan), ATTN_OK);
    assert_int_equal(h.calls, before); /* execution never allocates */
    call_verify(&c);
    attn_plan_release(plan);
    assert_no_leak(&h);
    attn_ctx_release(NULL);
    attn_plan_release(NULL);
    assert_null(attn_ctx_retain(NULL));
    assert_null(attn_plan_retain(NULL));
}

static void null_pointers_are_named(void **state) {
    (void)state;
    struct call c;
    attn_ctx *ctx;
    attn_plan *plan;
    char buf[8];
    call_init(&c);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    assert_int_equal(attn_plan_create(NULL, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_E_ARGUMENT);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, NULL, NULL, &plan), ATTN_E_ARGUMENT);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_execute(NULL, &c.args), ATTN_E_ARGUMENT);
    assert_int_equal(attn_execute(plan, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_plan_check(plan, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_plan_get_info(plan, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_plan_get_info(NULL, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_run(NULL, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_E_ARGUMENT);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, NULL, &c.args), ATTN_E_ARGUMENT);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &c.p, NULL, NULL, 5, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_explain(NULL, ATTN_DEVICE_CPU, &c.p, NULL, buf, 5, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_tuning_save(ctx, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CUDA(0), &c.p, NULL, &plan), ATTN_E_NO_DEVICE);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CUDA(0), &c.p, &c.args), ATTN_E_NO_DEVICE);
    assert_int_equal(attn_cuda_status(ctx), ATTN_E_NO_DRIVER);
    assert_non_null(strstr(attn_last_error(), "CUDA"));
    attn_plan_options o = {.size = sizeof o, .max_workspace_bytes = 5};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &o, &plan), ATTN_E_ARGUMENT);
    o = (attn_plan_options){.size = sizeof o, .flags = 64};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &o, &plan), ATTN_E_ENUM);
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &c.p, &o, buf, sizeof buf, NULL), ATTN_E_ENUM);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
}

static void lists_are_consistent(void **state) {
    (void)state;
    struct call c;
    attn_ctx *ctx;
    call_init(&c);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    attn_device_info d = {.size = sizeof d};
    assert_int_equal(attn_device_count(ctx), 1);
    assert_int_equal(attn_device_get_info(ctx, 0, &d), ATTN_OK);
    assert_true(d.device.type == ATTN_DEVICE_TYPE_CPU && d.name[0] && d.features[0]);
    assert_int_equal(attn_device_get_info(ctx, 1, &d), ATTN_E_NO_DEVICE);
    int32_t n = attn_kernel_count(ctx), accepting = 0, ops[ATTN_OP_COUNT_] = {0};
    assert_true(n > 0);
    for (int32_t i = 0; i < n; i++) {
        attn_kernel_info k = {.size = sizeof k}, other = {.size = sizeof other};
        assert_int_equal(attn_kernel_get_info(ctx, i, &k), ATTN_OK);
        assert_true(!strncmp(k.name, "attn_", 5) && k.summary[0] && k.alignment_bytes >= attn_dtype_bytes(k.dtype));
        assert_true(strstr(k.name, k.arch) && strstr(k.name, attn_dtype_name(k.dtype)));
        for (int32_t j = 0; j < i; j++) {
            attn_kernel_get_info(ctx, j, &other);
            assert_string_not_equal(k.name, other.name);
        }
        ops[k.op]++;
        attn_status s = attn_kernel_supports(ctx, ATTN_DEVICE_CPU, i, &c.p);
        assert_true(s == ATTN_OK || s == ATTN_E_NO_KERNEL);
        accepting += s == ATTN_OK;
        if (s == ATTN_OK) {
            assert_true(k.op == c.p.op && k.dtype == c.p.dtype && k.usable);
            attn_plan *plan;
            attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT, .kernel = k.name};
            assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &o, &plan), ATTN_OK);
            assert_int_equal(call_execute(&c, plan), ATTN_OK);
            call_verify(&c);
            attn_plan_release(plan);
        } else {
            assert_non_null(strstr(attn_last_error(), k.name));
            assert_null(strchr(attn_last_error(), '\n')); /* one kernel, one reason */
        }
    }
    for (int32_t op = ATTN_OP_SDPA_FWD; op < ATTN_OP_COUNT_; op++) assert_true(ops[op] > 0);
    assert_true(accepting > 0 && accepting < n);
    attn_kernel_info k = {.size = sizeof k};
    assert_int_equal(attn_kernel_get_info(ctx, n, &k), ATTN_E_ARGUMENT);
    assert_int_equal(attn_kernel_get_info(ctx, -1, &k), ATTN_E_ARGUMENT);
    attn_ctx_release(ctx);
}

static void explanations(void **state) {
    (void)state;
    struct call c;
    attn_ctx *ctx;
    char whole[8192], cut[64];
    size_t needed = 0;
    call_init(&c);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_ctx_create(NULL, NULL), ATTN_E_ARGUMENT);
    char before[256];
    snprintf(before, sizeof before, "%s", attn_last_error());
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &c.p, NULL, whole, sizeof whole, &needed), ATTN_OK);
    assert_int_equal(needed, strlen(whole) + 1);
    assert_non_null(strstr(whole, ">"));
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &c.p, NULL, NULL, 0, &needed), ATTN_E_ARGUMENT);
    assert_int_equal(needed, strlen(whole) + 1);
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &c.p, NULL, cut, sizeof cut, &needed), ATTN_E_ARGUMENT);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, whole, sizeof cut - 1);
    assert_int_equal(attn_ctx_create(NULL, NULL), ATTN_E_ARGUMENT);
    attn_problem bad = c.p;
    bad.heads_k = 3;
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &bad, NULL, whole, sizeof whole, NULL), ATTN_OK);
    assert_non_null(strstr(whole, "ATTN_E_HEADS"));
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT, .kernel = "none_such"};
    assert_int_equal(attn_explain(ctx, ATTN_DEVICE_CPU, &c.p, &o, whole, sizeof whole, NULL), ATTN_OK);
    assert_true(strlen(whole) > 100 && !strchr(whole, '>'));
    assert_string_equal(attn_last_error(), before); /* success leaves the error text as it was */
    attn_ctx_release(ctx);
}

static void the_plan_says_what_it_is(void **state) {
    (void)state;
    struct call c;
    attn_ctx *ctx;
    attn_plan *plan;
    call_init(&c);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    attn_problem p = ATTN_PROBLEM_INIT;
    assert_int_equal(attn_plan_get_problem(plan, &p), ATTN_OK);
    assert_memory_equal(&p, &c.p, sizeof p);
    attn_plan_info info = {.size = sizeof info};
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    assert_true(info.op == ATTN_OP_SDPA_FWD && info.dtype == ATTN_F32 && info.workspace_alignment == 64);
    assert_true(info.flops == attn_problem_flops(&c.p) && info.flops > 0 && info.tuned == 0);
    assert_non_null(strstr(info.kernel, "attn_sdpa_fwd_"));
    struct {
        attn_plan_info info;
        char tail[8];
    } two = {.info = {.size = sizeof two}, .tail = "1234567"};
    assert_int_equal(attn_plan_get_info(plan, &two.info), ATTN_OK);
    assert_string_equal(two.tail, "1234567");
    assert_string_equal(two.info.kernel, info.kernel);
    two.info = (attn_plan_info){.size = 16};
    assert_int_equal(attn_plan_get_info(plan, &two.info), ATTN_OK);
    assert_true(two.info.backend == info.backend && two.info.op == 0 && two.info.kernel[0] == 0);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
}

/* ---- every allocation fails in turn ---- */

/* One session. The step that meets the failure must return ATTN_E_MEMORY; repeated at once it must succeed. Returns how
 * many steps failed. */
static int session(const attn_ctx_options *o) {
    struct call c;
    attn_ctx *ctx = untouched;
    attn_plan *plan = NULL;
    int failed = 0;
    call_init(&c);
    attn_status s = attn_ctx_create(o, &ctx);
    if (s) {
        assert_int_equal(s, ATTN_E_MEMORY);
        assert_ptr_equal(ctx, untouched);
        assert_non_null(strstr(attn_last_error(), "allocation"));
        return 1;
    }
    s = attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan);
    if (s) {
        failed++;
        assert_int_equal(s, ATTN_E_MEMORY);
        assert_null(plan);
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    }
    assert_int_equal(call_execute(&c, plan), ATTN_OK);
    call_verify(&c);
    attn_plan_release(plan);
    plan = NULL;

    call_clear(&c);
    s = attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args);
    if (s) {
        failed++;
        assert_int_equal(s, ATTN_E_MEMORY);
        for (int i = 0; i < HQ * SQ; i++) assert_true(isnan(c.ld[i])); /* nothing was started */
        assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
    }
    call_verify(&c);

    attn_plan_options measure = {.size = sizeof measure, .effort = ATTN_EFFORT_MEASURE};
    s = attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &measure, &plan);
    if (s) {
        failed++;
        assert_int_equal(s, ATTN_E_MEMORY);
        assert_null(plan);
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &measure, &plan), ATTN_OK);
    }
    assert_int_equal(call_execute(&c, plan), ATTN_OK);
    call_verify(&c);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
    return failed;
}

static void each_allocation_fails_in_the_hooks(void **state) {
    (void)state;
    struct hooks all = {0};
    attn_ctx_options o = hooked(&all);
    assert_int_equal(session(&o), 0);
    assert_no_leak(&all);
    int64_t total = all.calls;
    assert_true(total >= 6); /* context, state, tuning table, pool, plan, plan, ... */
    for (int64_t n = 1; n <= total; n++) {
        struct hooks h = {.fail_at = n};
        o = hooked(&h);
        assert_int_equal(session(&o), 1);
        assert_no_leak(&h);
    }
}

static void each_allocation_fails_by_environment(void **state) {
    (void)state;
    struct hooks all = {0};
    attn_ctx_options o = hooked(&all);
    assert_int_equal(session(&o), 0);
    for (int64_t n = 1; n <= all.calls + 1; n++) {
        struct hooks h = {0};
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)n);
        setenv("ATTN_FAIL_ALLOC", text, 1);
        o = hooked(&h);
        assert_int_equal(session(&o), n <= all.calls);
        assert_no_leak(&h);
    }
    unsetenv("ATTN_FAIL_ALLOC");
}

static void a_tuning_file_that_runs_out_of_memory(void **state) {
    (void)state;
    char path[] = "/tmp/attn_t_ctx_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    attn_ctx *ctx;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_tuning_save(ctx, path), ATTN_OK);
    attn_ctx_release(ctx);
    struct hooks all = {0};
    attn_ctx_options o = hooked(&all);
    o.tuning_file = path;
    assert_int_equal(session(&o), 0);
    for (int64_t n = 1; n <= all.calls; n++) {
        struct hooks h = {.fail_at = n};
        o = hooked(&h);
        o.tuning_file = path;
        assert_int_equal(session(&o), 1);
        assert_no_leak(&h);
    }
    remove(path);
}

static void a_thread_that_does_not_start(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    attn_plan *plan = NULL;
    call_init(&c);
    o.threads = 3;
    for (int n = 1; n <= 2; n++) {
        setenv("ATTN_FAIL_THREAD", n == 1 ? "1" : "2", 1);
        assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_E_THREAD);
        assert_null(plan);
        attn_ctx_release(ctx);
        assert_no_leak(&h);
    }
    unsetenv("ATTN_FAIL_THREAD");
}

int main(void) {
    forget_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(options_by_the_size_rule),
        cmocka_unit_test(environment_is_read_and_judged),
        cmocka_unit_test(one_causal_query_sees_the_first_key),
        cmocka_unit_test(preferences_from_the_environment_are_hints),
        cmocka_unit_test(plans_keep_their_context),
        cmocka_unit_test(null_pointers_are_named),
        cmocka_unit_test(lists_are_consistent),
        cmocka_unit_test(explanations),
        cmocka_unit_test(the_plan_says_what_it_is),
        cmocka_unit_test(each_allocation_fails_in_the_hooks),
        cmocka_unit_test(each_allocation_fails_by_environment),
        cmocka_unit_test(a_tuning_file_that_runs_out_of_memory),
        cmocka_unit_test(a_thread_that_does_not_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
