/* SPDX-License-Identifier: MIT
 * The modes of the environment (ATTN_POISON, ATTN_CHECK, ATTN_TRACE, ATTN_EXPLAIN) and ATTN_EFFORT_MEASURE. Kernels
 * that are wrong, forgetful, slow or fast on purpose stand before the real ones in a backend made here. */
#include "api_fixture.h"

#include "api/api.h"
#include "core/tune.h"
#include "core/view.h"

#include <time.h>
#include <unistd.h>

static int yes(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
               struct attn_text *why) {
    (void)k, (void)dev, (void)p, (void)why;
    return 1;
}
static double quick_words(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const struct attn_core_amount *amount) {
    (void)dev, (void)p, (void)amount;
    return strstr(k->name, "slow") ? 1e-12 : 1e-11; /* the slow one boasts most */
}
static uint64_t some_bytes(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k, (void)dev, (void)p;
    return 256;
}

static int poisoned_workspaces;
static const struct attn_kernel *real_kernel;

/* The right result, by the first real kernel that accepts; then spoiled as the row's impl says. */
static attn_status borrowed(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                            const attn_args *args) {
    const char *how = k->impl;
    const unsigned char *w = args->workspace;
    int poisoned = 1;
    for (int i = 0; i < 256; i++) poisoned &= w[i] == 0xff;
    poisoned_workspaces += poisoned;
    float *out = args->out->data;
    float first = out[0];
    attn_args mine = *args;
    uint64_t bytes = real_kernel->workspace ? real_kernel->workspace(real_kernel, dev, p) : 0;
    mine.workspace = bytes ? aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64) : NULL;
    mine.workspace_bytes = bytes;
    attn_status status = real_kernel->launch(real_kernel, dev, p, &mine);
    free(mine.workspace);
    if (!strcmp(how, "forget")) out[0] = first;
    if (!strcmp(how, "wrong")) out[5] += 0.01f;
    if (!strcmp(how, "slow")) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    return status;
}

#define ROW(variant)                                                                                                   \
    {                                                                                                                  \
        .name = "attn_sdpa_fwd_c_f32_" variant, .arch = "c", .summary = "test", .op = ATTN_OP_SDPA_FWD,                \
        .backend = ATTN_BACKEND_CPU, .dtype = ATTN_F32, .math_dtype = ATTN_F32, .accumulator_dtype = ATTN_F32,         \
        .deterministic = 1, .bit_stable = 1, .impl = variant, .supports = yes, .estimate = quick_words,                \
        .workspace = some_bytes, .launch = borrowed                                                                    \
    }
static const struct attn_kernel rows[] = {ROW("right"), ROW("forget"), ROW("wrong"), ROW("slow")};
static const int32_t n_rows = 4;

/* The context's CPU backend, the last one, with the rows above put before its own. */
static struct attn_core_rows sets[16];
static struct attn_core_backend backend;
static const struct attn_core_backend *backends[ATTN_MAX_BACKENDS];
static attn_ctx *open_with_rows(const attn_ctx_options *o) {
    attn_ctx *ctx;
    if (attn_ctx_create(o, &ctx)) fail_msg("%s", attn_last_error());
    int32_t last = ctx->n_backends - 1;
    backend = *ctx->backends[last];
    assert_string_equal(backend.name, "cpu");
    assert_true(backend.n_sets < 16);
    sets[0] = (struct attn_core_rows){rows, &n_rows};
    memcpy(sets + 1, backend.sets, (size_t)backend.n_sets * sizeof *sets);
    backend.sets = sets;
    backend.n_sets++;
    memcpy(backends, ctx->backends, (size_t)last * sizeof *backends);
    backends[last] = &backend;
    ctx->backends = backends;
    for (int32_t i = 0; (real_kernel = attn_api_kernel_at(ctx, i)); i++) {
        struct call c;
        call_init(&c);
        int ours = real_kernel >= rows && real_kernel < rows + n_rows;
        if (!ours && attn_kernel_supports(ctx, ATTN_DEVICE_CPU, i, &c.p) == ATTN_OK) break;
    }
    assert_non_null(real_kernel);
    return ctx;
}
static attn_plan *plan_with(attn_ctx *ctx, const struct call *c, const char *kernel) {
    attn_plan *plan;
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT, .kernel = kernel};
    if (attn_plan_create(ctx, ATTN_DEVICE_CPU, &c->p, &o, &plan)) fail_msg("%s", attn_last_error());
    return plan;
}

static void poison_shows_what_a_kernel_forgets(void **state) {
    (void)state;
    struct call c;
    call_init(&c);
    for (int on = 0; on <= 1; on++) {
        if (on) setenv("ATTN_POISON", "1", 1);
        attn_ctx *ctx = open_with_rows(NULL);
        attn_plan *forgetful = plan_with(ctx, &c, "*_forget"), *right = plan_with(ctx, &c, "*_right");
        char ws[256] __attribute__((aligned(64))) = {0};
        c.args.workspace = ws;
        c.args.workspace_bytes = sizeof ws;
        poisoned_workspaces = 0;
        c.od[0] = 42;
        assert_int_equal(attn_execute(forgetful, &c.args), ATTN_OK);
        assert_true(on ? isnan(c.od[0]) : c.od[0] == 42);
        assert_int_equal(attn_execute(right, &c.args), ATTN_OK);
        call_verify(&c);
        assert_int_equal(poisoned_workspaces, on ? 2 : 0);
        attn_plan_release(forgetful);
        attn_plan_release(right);
        attn_ctx_release(ctx);
    }
    unsetenv("ATTN_POISON");
}

/* Packed rows that belong to no sequence, gaps between rows, and accumulated outputs are not the library's to poison.
 */
static void poison_stays_inside(void **state) {
    (void)state;
    attn_problem p;
    attn_ctx *ctx;
    float q[20 * 3], out[20 * 4], k[6 * 3] = {0}, lse[20];
    const int64_t rows_q[] = {1, 20, 3}, rows_k[] = {1, 6, 3}, rows_l[] = {1, 20}, two[] = {3};
    int32_t cu_q[] = {2, 5, 9}, cu_k[] = {0, 3, 6};
    attn_tensor tq, tk, to, tl, tcq, tck;
    for (int i = 0; i < 60; i++) q[i] = (float)i;
    for (int i = 0; i < 80; i++) out[i] = 7;
    for (int i = 0; i < 20; i++) lse[i] = 7;
    attn_tensor_contiguous(&tq, q, ATTN_F32, 3, rows_q);
    attn_tensor_contiguous(&tk, k, ATTN_F32, 3, rows_k);
    attn_tensor_contiguous(&to, out, ATTN_F32, 3, rows_q);
    attn_tensor_contiguous(&tl, lse, ATTN_F32, 2, rows_l);
    attn_tensor_contiguous(&tcq, cu_q, ATTN_I32, 1, two);
    attn_tensor_contiguous(&tck, cu_k, ATTN_I32, 1, two);
    to.strides[1] = 4;
    to.bytes = sizeof out;
    assert_int_equal(attn_problem_parse("sdpa_fwd b=2 hq=1 sq=10 sk=6 d=3 f32 packed total_q=20 total_k=6", &p),
                     ATTN_OK);
    setenv("ATTN_POISON", "1", 1);
    setenv("ATTN_CHECK", "1", 1);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    attn_args a = {.size = sizeof a,
                   .q = &tq,
                   .k = &tk,
                   .v = &tk,
                   .out = &to,
                   .lse = &tl,
                   .cu_seqlens_q = &tcq,
                   .cu_seqlens_k = &tck};
    if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &a)) fail_msg("%s", attn_last_error());
    for (int i = 0; i < 20; i++) {
        int mine = i >= 2 && i < 9;
        assert_true(mine ? fabsf(lse[i] - logf(3)) < 1e-5f : lse[i] == 7);
        for (int d = 0; d < 4; d++) assert_true(mine && d < 3 ? out[i * 4 + d] == 0 : out[i * 4 + d] == 7);
    }
    attn_ctx_release(ctx);
    unsetenv("ATTN_POISON");
    unsetenv("ATTN_CHECK");
}

static void check_reports_wrong_results(void **state) {
    (void)state;
    struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    o.log = keep_line;
    o.log_user = &lines;
    call_init(&c);
    setenv("ATTN_CHECK", "1", 1); /* implies the level */
    attn_ctx *ctx = open_with_rows(&o);
    unsetenv("ATTN_CHECK");
    static const struct {
        const char *kernel;
        int lines;
    } tries[] = {{"*_right", 0}, {"*_wrong", 1}, {"*_right", 0}, {"*_forget", 1}, {"*_ref_*", 0}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        attn_plan *plan = plan_with(ctx, &c, tries[i].kernel);
        lines.n = 0;
        lines.text[0] = 0;
        assert_int_equal(call_execute(&c, plan), ATTN_OK);
        if (lines.n != tries[i].lines) fail_msg("%s: %d lines:\n%s", tries[i].kernel, lines.n, lines.text);
        if (i == 1) assert_non_null(strstr(lines.text, "attn_sdpa_fwd_c_f32_wrong: out: 1 of 24 elements"));
        if (i == 1) assert_non_null(strstr(lines.text, "[0,0,1,1]"));
        if (i == 3) assert_non_null(strstr(lines.text, "[0,0,0,0]"));
        attn_plan_release(plan);
    }
    /* Without memory for the comparison the execution still runs, and says that it was not checked. */
    attn_plan *plan = plan_with(ctx, &c, "*_wrong");
    lines.n = 0;
    lines.text[0] = 0;
    h.fail_at = h.calls + 1;
    assert_int_equal(call_execute(&c, plan), ATTN_OK);
    assert_int_equal(lines.n, 1);
    assert_non_null(strstr(lines.text, "not checked"));
    attn_plan_release(plan);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}

/* Accumulated outputs start from the caller's values in both runs. */
static void check_knows_accumulation(void **state) {
    (void)state;
    struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};
    attn_ctx_options o = {.size = sizeof o, .log = keep_line, .log_user = &lines};
    struct attn_mem mem;
    struct attn_api_synth s;
    attn_problem p, n;
    attn_base_mem_init(&mem, NULL, NULL, NULL, 0);
    setenv("ATTN_CHECK", "1", 1);
    setenv("ATTN_POISON", "1", 1);
    attn_ctx *ctx;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    unsetenv("ATTN_CHECK");
    unsetenv("ATTN_POISON");
    assert_int_equal(attn_problem_parse("mla_bwd sq=2 sk=9 hq=3 topk=5 f32 accumulate", &p), ATTN_OK);
    n = p;
    n.scale = 0.05;
    assert_int_equal(attn_api_synth_create(&mem, &n, &s), ATTN_OK);
    float *dkv = s.tensors[ATTN_ROLE_DKV].data;
    for (int i = 0; i < 9 * 576; i++) dkv[i] = 1000;
    if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &s.args)) fail_msg("%s", attn_last_error());
    double sum = 0;
    for (int i = 0; i < 9 * 576; i++) sum += fabs((double)dkv[i] - 1000);
    assert_true(sum > 0.1 && sum < 9 * 576 * 500.0); /* added to, neither overwritten nor poisoned */
    if (lines.n) fail_msg("%s", lines.text);
    attn_api_synth_destroy(&mem, &s);
    attn_ctx_release(ctx);
}

static void explain_logs_the_table(void **state) {
    (void)state;
    struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};
    attn_ctx_options o = {.size = sizeof o, .log = keep_line, .log_user = &lines};
    struct call c;
    call_init(&c);
    setenv("ATTN_EXPLAIN", "1", 1);
    attn_ctx *ctx;
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    unsetenv("ATTN_EXPLAIN");
    attn_plan *plan;
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    attn_plan_info info = {.size = sizeof info};
    attn_plan_get_info(plan, &info);
    assert_true(lines.n >= 4);
    char chosen[128];
    snprintf(chosen, sizeof chosen, "plan: > %s ", info.kernel);
    assert_non_null(strstr(lines.text, chosen));
    attn_plan_release(plan);
    attn_ctx_release(ctx);
}

static void trace_is_a_json_array(void **state) {
    (void)state;
    char path[] = "/tmp/attn_t_modes_XXXXXX", text[8192], word[64];
    struct call c;
    attn_ctx *ctx;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    call_init(&c);
    setenv("ATTN_TRACE", path, 1);
    for (int twice = 0; twice < 2; twice++) { /* contexts append to one array */
        assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
        for (int i = 0; i < 3; i++) assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
        attn_ctx_release(ctx);
    }
    unsetenv("ATTN_TRACE");
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    remove(path);
    assert_true(n > 0);
    text[n] = 0;
    int lines = 0, plans = 0, executions = 0;
    assert_memory_equal(text, "[\n", 2);
    for (char *line = strtok(text + 2, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        double start, length;
        size_t end = strlen(line);
        assert_true(line[0] == '{' && end > 3 && !strcmp(line + end - 3, "}},"));
        plans += strstr(line, "\"cat\":\"plan\"") != NULL;
        executions += strstr(line, "\"cat\":\"execute\"") != NULL;
        assert_non_null(strstr(line, "\"ph\":\"X\""));
        assert_int_equal(sscanf(strstr(line, "\"ts\""), "\"ts\":%lf,\"dur\":%lf", &start, &length), 2);
        assert_true(start > 0 && length > 0 && length < 60e6);
        snprintf(word, sizeof word, "\"pid\":%ld,", (long)getpid());
        assert_non_null(strstr(line, word));
        assert_non_null(strstr(line, "\"problem\":\"sdpa_fwd "));
    }
    assert_true(lines == 8 && plans == 2 && executions == 6);
}

static void info_of(const attn_plan *plan, attn_plan_info *info) {
    *info = (attn_plan_info){.size = sizeof *info};
    assert_int_equal(attn_plan_get_info(plan, info), ATTN_OK);
}

/* The slow kernel has the best estimate; measuring finds it out, remembers it, and the file carries it to another
 * context. */
static void measuring_beats_the_estimate(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_plan *plan;
    attn_plan_info info;
    call_init(&c);
    attn_ctx *ctx = open_with_rows(&o);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_string_equal(info.kernel, "attn_sdpa_fwd_c_f32_slow");
    assert_int_equal(info.tuned, 0);
    attn_plan_release(plan);

    attn_plan_options measure = {.size = sizeof measure, .effort = ATTN_EFFORT_MEASURE};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &measure, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_string_not_equal(info.kernel, "attn_sdpa_fwd_c_f32_slow");
    assert_int_equal(info.tuned, 1);
    assert_int_equal(info.backend, ATTN_BACKEND_CPU); /* the reference does not compete */
    attn_plan_release(plan);
    char winner[96];
    snprintf(winner, sizeof winner, "%s", info.kernel);
    const double measured = info.estimate_seconds;

    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_string_equal(info.kernel, winner);
    assert_int_equal(info.tuned, 1);
    assert_true(measured > 0 && info.estimate_seconds == measured);
    attn_plan_release(plan);
    attn_plan_options blind = {.size = sizeof blind, .flags = ATTN_PLAN_NO_TUNING};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &blind, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_string_equal(info.kernel, "attn_sdpa_fwd_c_f32_slow");
    attn_plan_release(plan);

    /* attn_run's kept plan was chosen before the measurement and is not used again. */
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
    const struct attn_api_state *s = attn_api_state_of(ctx);
    int current = 0;
    for (int i = 0; i < ATTN_API_PLANS; i++)
        if (s->plans[i].plan && s->plans[i].generation == s->generation) {
            current++;
            assert_string_equal(s->plans[i].plan->kernel->name, winner);
        }
    assert_int_equal(current, 1);

    char path[] = "/tmp/attn_t_modes_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(attn_tuning_save(ctx, path), ATTN_OK);
    attn_ctx_release(ctx);
    o.tuning_file = path;
    ctx = open_with_rows(&o);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_string_equal(info.kernel, winner);
    assert_int_equal(info.tuned, 1);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
    remove(path);
    assert_no_leak(&h);
}

/* A measurement among preferred kernels, or one that fails, is nobody else's choice. */
static void measuring_within_a_preference(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_plan *plan;
    attn_plan_info info;
    call_init(&c);
    attn_ctx *ctx = open_with_rows(&o);
    attn_plan_options measure = {
        .size = sizeof measure, .effort = ATTN_EFFORT_MEASURE, .kernel = "*_c_f32_?????"}; /* right and wrong */
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &measure, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_int_equal(info.tuned, 1);
    assert_true(strstr(info.kernel, "right") || strstr(info.kernel, "wrong"));
    attn_plan_release(plan);
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    info_of(plan, &info);
    assert_true(!info.tuned && strstr(info.kernel, "slow"));
    attn_plan_release(plan);

    measure.kernel = NULL;
    int64_t before = h.calls;
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &measure, &plan), ATTN_OK);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
    int64_t allocations = h.calls - before;
    for (int64_t n = 1; n <= allocations; n++) {
        ctx = open_with_rows(&o);
        attn_plan *first;
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &first), ATTN_OK);
        attn_plan_release(first);
        h.fail_at = h.calls + n;
        attn_plan *none = NULL;
        attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, &measure, &none);
        h.fail_at = 0;
        assert_int_equal(status, ATTN_E_MEMORY);
        assert_null(none);
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &c.p, NULL, &first), ATTN_OK);
        info_of(first, &info);
        assert_int_equal(info.tuned, 0);
        attn_plan_release(first);
        attn_ctx_release(ctx);
        assert_no_leak(&h); /* what a failed entry left in the tuning table goes with the context */
    }
    assert_true(allocations > 6); /* candidates, five tensors, workspace, table, plan */
    assert_no_leak(&h);
}

/* Synthetic tensors pass the checks of every operator and form, and give finite results. */
static void synthetic_tensors_fit_every_operator(void **state) {
    (void)state;
    static const char *const texts[] = {
        "sdpa_fwd b=2 hq=4 hk=2 sq=5 sk=7 d=8 f32 causal",
        "sdpa_fwd hq=2 sq=3 sk=4 d=8 bf16 mask=f32 alibi=linear sink",
        "sdpa_fwd hq=2 sq=3 sk=4 d=8 f16 mask=bool",
        "sdpa_bwd b=2 hq=2 sq=5 sk=7 d=8 f64",
        "sdpa_bwd hq=2 sq=5 sk=7 d=8 f32 lse_base_2 seqlens_q seqlens_k",
        "sdpa_fwd b=3 hq=2 sq=9 sk=9 d=4 f32 packed total_q=20 total_k=22",
        "mla_fwd sq=3 sk=9 hq=2 topk=5 bf16 causal",
        "mla_bwd sq=3 sk=9 hq=2 topk=5 f32 topk_length",
        "dist sq=3 sk=9 hq=2 topk=5 bf16",
    };
    struct attn_mem mem;
    attn_ctx *ctx;
    attn_base_mem_init(&mem, NULL, NULL, NULL, 0);
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        attn_problem p;
        attn_plan *plan;
        struct attn_api_synth s;
        if (attn_problem_parse(texts[i], &p)) fail_msg("%s: %s", texts[i], attn_last_error());
        if (attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan)) fail_msg("%s: %s", texts[i], attn_last_error());
        assert_int_equal(attn_api_synth_create(&mem, &plan->problem, &s), ATTN_OK);
        if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &s.args)) fail_msg("%s: %s", texts[i], attn_last_error());
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            const attn_tensor *t = &s.tensors[role];
            double sum = 0;
            if (!attn_args_at(&s.args, role) || t->dtype == ATTN_I32 || t->dtype == ATTN_BOOL) continue;
            for (uint64_t k = 0; k < t->bytes / attn_dtype_bytes(t->dtype); k++) {
                double x;
                attn_convert(&x, ATTN_F64, (const char *)t->data + k * attn_dtype_bytes(t->dtype), t->dtype, 1);
                sum += fabs(x);
            }
            if (!isfinite(sum) || sum == 0) fail_msg("%s: %s sums to %g", texts[i], attn_role_name(role), sum);
        }
        attn_api_synth_destroy(&mem, &s);
        attn_plan_release(plan);
    }
    attn_ctx_release(ctx);
}

int main(void) {
    forget_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poison_shows_what_a_kernel_forgets),
        cmocka_unit_test(poison_stays_inside),
        cmocka_unit_test(check_reports_wrong_results),
        cmocka_unit_test(check_knows_accumulation),
        cmocka_unit_test(explain_logs_the_table),
        cmocka_unit_test(trace_is_a_json_array),
        cmocka_unit_test(measuring_beats_the_estimate),
        cmocka_unit_test(measuring_within_a_preference),
        cmocka_unit_test(synthetic_tensors_fit_every_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
