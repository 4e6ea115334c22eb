/* SPDX-License-Identifier: MIT
 * Executions that overlap: one plan on several streams, threads that share a plan, threads with a library context each.
 * Whatever runs beside it, an execution gives what it gives alone. */
#include "gpu/gpu_rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SIDES = 4, ROUNDS = 6 };
static struct gpu_rig rig;

struct worker {
    struct gpu_case c; /* with a side, and in one test a plan and a context, of its own */
    cu_stream stream;
    const char *failure;
    pthread_t thread;
};

static unsigned char *alone(struct gpu_case *c) {
    cu_stream stream = gpu_stream_new(&rig);
    gpu_execute(c, &c->side, stream);
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    unsigned char *want = gpu_outputs(c, &c->side);
    gpu_assert_written(c, want);
    return want;
}

static void compare(struct worker *w, const unsigned char *want, const char *what) {
    for (int i = 0; i < SIDES; i++) {
        unsigned char *got = gpu_outputs(&w[i].c, &w[i].c.side);
        gpu_assert_same(&w[i].c, want, got, what);
        gpu_assert_inputs_intact(&w[i].c, &w[i].c.side);
        free(got);
    }
}

static void make_workers(struct worker *w, struct gpu_case *c) {
    for (int i = 0; i < SIDES; i++) {
        w[i] = (struct worker){.c = *c, .stream = gpu_stream_new(&rig)};
        gpu_side_make(&w[i].c, &w[i].c.side);
    }
}
static void free_workers(struct worker *w) {
    for (int i = 0; i < SIDES; i++) {
        gpu_side_free(&w[i].c, &w[i].c.side);
        GPU_OK(rig.cuStreamDestroy_v2(w[i].stream));
    }
}

/* Queued on all streams before any is waited for. An execution that adds to what is there is queued once. */
static void overlap_streams(struct gpu_case *c) {
    struct worker w[SIDES];
    unsigned char *want = alone(c);
    make_workers(w, c);
    const int rounds = c->problem.flags & ATTN_ACCUMULATE ? 1 : ROUNDS;
    for (int n = 0; n < rounds; n++)
        for (int i = 0; i < SIDES; i++) {
            attn_args args = w[i].c.side.args;
            args.stream = w[i].stream;
            if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
        }
    for (int i = 0; i < SIDES; i++) GPU_OK(rig.cuStreamSynchronize(w[i].stream));
    compare(w, want, "one of several streams");
    free_workers(w);
    free(want);
}

/* cmocka's assertions belong to the main thread: a worker leaves a word. */
static void *work(void *arg) {
    struct worker *w = arg;
    attn_args args = w->c.side.args;
    args.stream = w->stream;
    const int rounds = w->c.problem.flags & ATTN_ACCUMULATE ? 1 : ROUNDS;
    for (int n = 0; n < rounds && !w->failure; n++)
        if (attn_execute(w->c.plan, &args)) w->failure = "attn_execute";
    if (!w->failure && attn_device_synchronize(w->c.rig->ctx, rig.device)) w->failure = "attn_device_synchronize";
    return NULL;
}

static void start_and_join(struct worker *w) {
    for (int i = 0; i < SIDES; i++) assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    for (int i = 0; i < SIDES; i++) assert_int_equal(pthread_join(w[i].thread, NULL), 0);
    for (int i = 0; i < SIDES; i++)
        if (w[i].failure) fail_msg("%s: %s failed in a thread", w[i].c.text, w[i].failure);
}

static void share_plan(struct gpu_case *c) {
    struct worker w[SIDES];
    unsigned char *want = alone(c);
    make_workers(w, c);
    start_and_join(w);
    compare(w, want, "one of several threads with one plan");
    free_workers(w);
    free(want);
}

/* Each thread makes context and plan itself, all at once. */
struct owner {
    struct worker w;
    struct gpu_rig rig;
};
static void *work_alone(void *arg) {
    struct owner *o = arg;
    struct gpu_case *c = &o->w.c;
    const attn_plan_options only = {
        .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = c->kernel.name};
    const attn_ctx_options one_thread = {.size = sizeof one_thread, .threads = 1};
    if (attn_ctx_create(&one_thread, &o->rig.ctx)) return o->w.failure = "attn_ctx_create", NULL;
    c->rig = &o->rig;
    c->plan = NULL;
    if (attn_plan_create(o->rig.ctx, rig.device, &c->problem, &only, &c->plan))
        o->w.failure = "attn_plan_create";
    else
        work(&o->w);
    attn_plan_release(c->plan);
    attn_ctx_release(o->rig.ctx);
    return NULL;
}

static void own_contexts(struct gpu_case *c) {
    struct worker w[SIDES];
    struct owner owner[SIDES];
    unsigned char *want = alone(c);
    make_workers(w, c);
    for (int i = 0; i < SIDES; i++) {
        owner[i] = (struct owner){.w = w[i], .rig = rig};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work_alone, &owner[i]), 0);
    }
    for (int i = 0; i < SIDES; i++) assert_int_equal(pthread_join(w[i].thread, NULL), 0);
    for (int i = 0; i < SIDES; i++)
        if (owner[i].w.failure) fail_msg("%s: %s failed in a thread", c->text, owner[i].w.failure);
    compare(w, want, "one of several threads with a context each");
    free_workers(w);
    free(want);
}

static void streams_overlap(void **state) {
    (void)state;
    gpu_walk(&rig, overlap_streams);
}
static void threads_share_a_plan(void **state) {
    (void)state;
    gpu_walk(&rig, share_plan);
}
static void threads_with_own_contexts(void **state) {
    (void)state;
    gpu_walk(&rig, own_contexts);
}

int main(void) {
    int code = gpu_rig_open(&rig);
    if (code) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_overlap),
        cmocka_unit_test(threads_share_a_plan),
        cmocka_unit_test(threads_with_own_contexts),
    };
    code = cmocka_run_group_tests(tests, NULL, NULL);
    gpu_rig_close(&rig);
    return code;
}
