/* SPDX-License-Identifier: MIT
 * The caller's threads in place of the library's, and threads of a plan: the library starts none, the bits stay, an
 * executor may make every call, some or none, late or at once, and its threads keep their floating-point mode. */
#include "attn.h"

#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A thread for each call; `made` of n are made, the others dropped. */
enum { MOST = 16 };
struct executor {
    int most_made;
    _Atomic int groups, calls, largest, modes_lost;
};
struct call {
    struct executor *owner;
    attn_task_fn run;
    void *task;
    int32_t index;
    pthread_t thread;
};
struct group {
    int n;
    struct call call[MOST];
};
static void *one_call(void *arg) {
    struct call *c = arg;
    fesetround(FE_UPWARD); /* the thread's own mode */
    c->run(c->task, c->index);
    if (fegetround() != FE_UPWARD) c->owner->modes_lost++;
    return NULL;
}
static void *submit(void *user, int32_t n, attn_task_fn run, void *task) {
    struct executor *e = user;
    struct group *g = calloc(1, sizeof *g);
    e->groups++;
    if (n > e->largest) e->largest = n;
    for (int32_t i = n; i >= 1 && g->n < e->most_made && g->n < MOST; i--) { /* from the last to the first */
        struct call *c = &g->call[g->n++];
        *c = (struct call){.owner = e, .run = run, .task = task, .index = i};
        e->calls++;
        if (pthread_create(&c->thread, NULL, one_call, c)) abort();
    }
    return g;
}
static void wait(void *user, void *handle) {
    struct group *g = handle;
    (void)user;
    for (int i = 0; i < g->n; i++) pthread_join(g->call[i].thread, NULL);
    free(g);
}

static int threads_now(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    int n = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %d", &n) == 1) break;
    if (file) fclose(file);
    return n;
}

/* Work for several threads: 1e9 operations. Splits of keys are a second group. */
static const char *const texts[] = {
    "sdpa_fwd b=2 hq=8 sq=256 sk=512 d=64 f32 causal", "sdpa_fwd hq=8 hk=2 sq=1 sk=60000 d=64 f32",
    "sdpa_bwd hq=8 sq=128 sk=256 d=64 f32 deterministic", "mla_fwd hq=64 sq=16 sk=500 topk=256 f32"};
enum { TEXTS = sizeof texts / sizeof *texts };

struct memory {
    attn_tensor t[ATTN_ROLE_COUNT];
    attn_args args;
};
static void make(struct memory *m, const attn_problem *p) {
    *m = (struct memory){.args = ATTN_ARGS_INIT};
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use;
        attn_tensor *t = &m->t[role];
        assert_int_equal(attn_role_tensor(p, role, &use, t), ATTN_OK);
        if (use == ATTN_USE_NONE) continue;
        t->data = calloc(1, t->bytes + 64);
        for (uint64_t i = 0; i < t->bytes / 4; i++) {
            const int32_t index = (int32_t)(i * 7 % 499);
            const float x = (float)(i * 37 % 251) / 125 - 1;
            memcpy((char *)t->data + 4 * i, t->dtype == ATTN_I32 ? (const void *)&index : &x, 4);
        }
        assert_int_equal(attn_args_set(&m->args, role, t), ATTN_OK);
    }
}
static void drop(struct memory *m) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) free(m->t[role].data);
}
static int32_t result_role(const attn_problem *p) { return p->op == ATTN_OP_SDPA_BWD ? ATTN_ROLE_DK : ATTN_ROLE_OUT; }

static attn_ctx *context(const attn_ctx_options *o) {
    attn_ctx *ctx = NULL;
    if (attn_ctx_create(o, &ctx)) fail_msg("%s", attn_last_error());
    return ctx;
}

static void the_callers_threads(void **state) {
    (void)state;
    for (int n = 0; n < TEXTS; n++) {
        attn_problem p;
        struct memory own;
        assert_int_equal(attn_problem_parse(texts[n], &p), ATTN_OK);
        make(&own, &p);
        attn_ctx *ctx = context(&(attn_ctx_options){.size = sizeof(attn_ctx_options), .threads = 4});
        if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &own.args)) fail_msg("%s", attn_last_error());
        attn_ctx_release(ctx);
        const int before = threads_now();
        for (int most = 0; most < 4; most++) {
            struct memory lent;
            struct executor e = {.most_made = most};
            make(&lent, &p);
            ctx = context(&(attn_ctx_options){
                .size = sizeof(attn_ctx_options), .threads = 4, .submit = submit, .wait = wait, .executor_user = &e});
            if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &lent.args)) fail_msg("%s", attn_last_error());
            assert_int_equal(threads_now(), before);
            assert_true(e.groups >= 1 && e.largest == 3);
            assert_true(e.calls >= most && (most > 0 || e.calls == 0));
            assert_int_equal(e.modes_lost, 0);
            attn_ctx_release(ctx);
            const attn_tensor *a = &own.t[result_role(&p)], *b = &lent.t[result_role(&p)];
            assert_memory_equal(a->data, b->data, a->bytes);
            drop(&lent);
        }
        drop(&own);
    }
}

/* Two executions at a time each have their group: neither works alone. */
struct side {
    attn_ctx *ctx;
    attn_problem p;
    struct memory m;
};
static void *run_side(void *arg) {
    struct side *s = arg;
    for (int i = 0; i < 10; i++)
        if (attn_run(s->ctx, ATTN_DEVICE_CPU, &s->p, &s->m.args)) abort();
    return NULL;
}
static void several_executions(void **state) {
    (void)state;
    struct executor e = {.most_made = 3};
    struct side side[3];
    pthread_t thread[3];
    attn_ctx *ctx = context(&(attn_ctx_options){
        .size = sizeof(attn_ctx_options), .threads = 4, .submit = submit, .wait = wait, .executor_user = &e});
    for (int i = 0; i < 3; i++) {
        side[i].ctx = ctx;
        assert_int_equal(attn_problem_parse(texts[0], &side[i].p), ATTN_OK);
        make(&side[i].m, &side[i].p);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&thread[i], NULL, run_side, &side[i]), 0);
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    assert_true(e.groups >= 30 && e.calls >= 90);
    for (int i = 1; i < 3; i++)
        assert_memory_equal(side[0].m.t[ATTN_ROLE_OUT].data, side[i].m.t[ATTN_ROLE_OUT].data,
                            side[0].m.t[ATTN_ROLE_OUT].bytes);
    for (int i = 0; i < 3; i++) drop(&side[i].m);
    attn_ctx_release(ctx);
}

static void threads_of_a_plan(void **state) {
    (void)state;
    uint64_t workspace[5] = {0};
    struct executor e = {.most_made = 16};
    attn_ctx *ctx = context(&(attn_ctx_options){
        .size = sizeof(attn_ctx_options), .threads = 4, .submit = submit, .wait = wait, .executor_user = &e});
    attn_problem p;
    struct memory first, next;
    assert_int_equal(attn_problem_parse(texts[0], &p), ATTN_OK);
    make(&first, &p);
    if (attn_run(ctx, ATTN_DEVICE_CPU, &p, &first.args)) fail_msg("%s", attn_last_error());
    for (int32_t threads = 0; threads <= 5; threads++) {
        const attn_plan_options o = {.size = sizeof o, .threads = threads};
        const int32_t want = threads == 0 || threads > 4 ? 4 : threads;
        attn_plan_info info = {.size = sizeof info};
        attn_plan *plan;
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), ATTN_OK);
        assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
        assert_int_equal(info.threads, want);
        workspace[want] = info.workspace_bytes;
        make(&next, &p);
        next.args.workspace = aligned_alloc(64, (info.workspace_bytes + 127) / 64 * 64);
        next.args.workspace_bytes = info.workspace_bytes;
        e.largest = 0;
        assert_int_equal(attn_execute(plan, &next.args), ATTN_OK);
        assert_int_equal(e.largest, want - 1);
        assert_memory_equal(first.t[ATTN_ROLE_OUT].data, next.t[ATTN_ROLE_OUT].data, first.t[ATTN_ROLE_OUT].bytes);
        free(next.args.workspace);
        drop(&next);
        attn_plan_release(plan);
    }
    assert_true(workspace[1] < workspace[4]);
    const attn_plan_options bad = {.size = sizeof bad, .threads = -1};
    attn_plan *plan;
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &bad, &plan), ATTN_E_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "threads is -1"));
    drop(&first);
    attn_ctx_release(ctx);
}

static void half_an_executor(void **state) {
    (void)state;
    attn_ctx *ctx;
    const attn_ctx_options only[] = {{.size = sizeof *only, .submit = submit}, {.size = sizeof *only, .wait = wait}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(attn_ctx_create(&only[i], &ctx), ATTN_E_ARGUMENT);
        assert_non_null(strstr(attn_last_error(), "must be set together"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_callers_threads), cmocka_unit_test(several_executions),
                                       cmocka_unit_test(threads_of_a_plan), cmocka_unit_test(half_an_executor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
