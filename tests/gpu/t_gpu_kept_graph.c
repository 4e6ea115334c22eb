/* SPDX-License-Identifier: MIT
 * Graphs that plans keep (src/cuda/backend/graph_cache.c), on the stand-in driver: when they are made, what of them is
 * changed, for which streams, and that an execution queues what a direct one queues, whichever call fails, in any
 * thread. */
#include "core/ctx.h"
#include "cuda/backend/state.h"
#include "gpu/gpu_rig.h"
#include "stub_driver/cuda_stub.h"
#include "unit/api_fixture.h"

#include <dlfcn.h>

enum { N = 3, LOG = sizeof((struct cuda_stub *)0)->log / sizeof(struct cuda_stub_launch) }; /* launches of `backward` */
/* Kernels and problems, of which the first that the build has an image for: three launches, of which the last needs the
 * output `spare`; one; with a fill; in clusters of two; two, of which the second begins early. */
struct choice {
    const char *kernel, *problem;
    int32_t spare;
};
static const struct choice
    of_backward[] = {{"attn_sdpa_bwd_sm80_bf16_d64", "sdpa_bwd b=1 hq=4 sq=150 sk=150 d=64 bf16", ATTN_ROLE_DQ},
                     {"attn_mla_bwd_sm90_f16_d576_h64_even", "mla_bwd hq=64 sq=4 sk=300 d=576 topk=64 f16 align=16",
                      ATTN_ROLE_DKV},
                     {0}},
    of_forward[] = {{"attn_sdpa_fwd_sm80_bf16_d64", "sdpa_fwd b=1 hq=4 sq=150 sk=150 d=64 bf16", 0},
                    {"attn_mla_fwd_sm90_bf16_d576", "mla_fwd hq=64 sq=4 sk=300 d=576 topk=64 bf16 align=16", 0},
                    {0}},
    of_filled[] = {{"attn_sdpa_bwd_sm80_f32_d64_halves", "sdpa_bwd b=1 hq=4 sq=150 d=64 f32", 0}, {0}},
    of_pairs[] = {{"attn_mla_bwd_sm90_bf16_d576_h128_alt", "mla_bwd hq=128 sq=4 sk=300 d=576 topk=128 bf16 align=16",
                   0},
                  {0}},
    of_splits[] = {{"attn_sdpa_fwd_sm80_bf16_d128_few", "sdpa_fwd hq=8 hk=2 sq=1 sk=9000 d=128 bf16", 0}, {0}};
static struct cuda_stub *stub;
static struct gpu_rig rig;
static struct hooks hooks;
static int lines; /* of the log about plans that gave up */

static void hear(void *user, int32_t level, const char *area, const char *text) {
    (void)user, (void)level, (void)area;
    lines += strstr(text, "launches its kernels one by one") != NULL;
}

/* 1 if the build has the kernel's images; c's kernel and problem are set then. */
static int take_choice(struct gpu_case *c, const struct choice *one) {
    int32_t i = 0;
    c->kernel = (attn_kernel_info){0};
    for (; strcmp(c->kernel.name, one->kernel); i++) {
        c->kernel.size = sizeof c->kernel;
        assert_int_equal(attn_kernel_get_info(rig.ctx, i, &c->kernel), ATTN_OK);
    }
    assert_int_equal(attn_problem_parse(one->problem, &c->problem), ATTN_OK);
    return !attn_kernel_supports(rig.ctx, rig.device, i - 1, &c->problem) || !strstr(attn_last_error(), "no image");
}

/* A case of one kernel, in a context of its own; 0 in a build without the kernel. *spare: of the choice. */
static int try_case(struct gpu_case *c, const struct choice *list, int32_t *spare) {
    attn_ctx_options o = hooked(&hooks);
    o.log = hear;
    o.log_level = ATTN_LOG_WARN;
    setenv("CUDA_STUB_DEVICES", "90", 1);
    memset(stub, 0, sizeof *stub);
    stub->params_bytes = 64;
    lines = 0;
    assert_int_equal(gpu_rig_open(&rig), 0);
    attn_ctx_release(rig.ctx);
    assert_int_equal(attn_ctx_create(&o, &rig.ctx), ATTN_OK);
    rig.blank = 1;
    *c = (struct gpu_case){.rig = &rig};
    while (list->kernel && !take_choice(c, list)) list++;
    if (!list->kernel) {
        gpu_rig_close(&rig);
        return 0;
    }
    if (spare) *spare = list->spare;
    gpu_case_open(c);
    return 1;
}
/* The test is skipped in a build without the kernel. */
static void open_case(struct gpu_case *c, const struct choice *list, int32_t *spare) {
    if (!try_case(c, list, spare)) skip();
}
static void close_case(struct gpu_case *c) {
    gpu_case_close(c);
    assert_int_equal(stub->graphs, 0);
    assert_int_equal(stub->streams, 0);
    gpu_rig_close(&rig);
    assert_no_leak(&hooks);
    assert_int_equal(stub->modules, 0);
    assert_int_equal(stub->allocations, 0);
    assert_int_equal(stub->misuse, 0);
}

static void execute(const struct gpu_case *c, const attn_args *from, cu_stream stream) {
    attn_args args = *from;
    args.stream = stream;
    if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
}
static void assert_counts(int64_t instances, int64_t replays, int64_t updates) {
    assert_int_equal(stub->instances, instances);
    assert_int_equal(stub->replays, replays);
    assert_int_equal(stub->updates, updates);
}

/* What an execution puts on a stream. */
struct queued {
    int32_t n;
    struct cuda_stub_launch launch[LOG];
};
static void take_queued(struct queued *q, cu_stream stream) {
    q->n = 0;
    for (int32_t i = 0; i < stub->n_log; i++) {
        if (stub->log[i].stream != stream) continue;
        q->launch[q->n] = stub->log[i];
        q->launch[q->n++].stream = NULL;
    }
    stub->n_log = 0;
}
static void queued_by(const struct gpu_case *c, const attn_args *args, cu_stream stream, struct queued *q) {
    stub->n_log = 0;
    execute(c, args, stream);
    take_queued(q, stream);
}
static void assert_queues(const struct gpu_case *c, const attn_args *args, cu_stream stream,
                          const struct queued *want) {
    static struct queued got;
    queued_by(c, args, stream, &got);
    assert_int_equal(got.n, want->n);
    for (int32_t i = 0; i < got.n; i++)
        if (memcmp(&got.launch[i], &want->launch[i], sizeof got.launch[i]))
            fail_msg("launch %d (%s) is not that of a direct execution", i, got.launch[i].function);
}

/* Two sets of tensors, and what direct executions of them queue. */
struct pair {
    struct gpu_case c;
    struct gpu_side other;
    cu_stream stream;
    struct queued want, want_other;
    int32_t spare;
};
static int try_pair(struct pair *p, const struct choice *list) {
    if (!try_case(&p->c, list, &p->spare)) return 0;
    p->stream = gpu_stream_new(&rig);
    gpu_side_make(&p->c, &p->other);
    queued_by(&p->c, &p->c.side.args, p->stream, &p->want);
    queued_by(&p->c, &p->other.args, p->stream, &p->want_other);
    assert_counts(0, 0, 0);
    return 1;
}
static void open_pair(struct pair *p, const struct choice *list) {
    if (!try_pair(p, list)) skip();
}
static void close_pair(struct pair *p) {
    gpu_side_free(&p->c, &p->other);
    GPU_OK(rig.cuStreamDestroy_v2(p->stream));
    close_case(&p->c);
}

static void made_at_the_third_execution(void **state) {
    (void)state;
    static struct pair p;
    open_pair(&p, of_backward);
    assert_int_equal(p.want.n, N);
    const int64_t calls = hooks.calls, allocations = stub->allocations;
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_counts(1, 1, 0);
    const int64_t launches = stub->launches;
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_counts(1, 2, 0);
    assert_queues(&p.c, &p.other.args, p.stream, &p.want_other);
    assert_counts(1, 3, N); /* one parameter struct for all of them */
    assert_queues(&p.c, &p.other.args, p.stream, &p.want_other);
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_counts(1, 5, 2 * N);
    assert_int_equal(stub->launches, launches);
    assert_int_equal(hooks.calls, calls);
    assert_int_equal(stub->allocations, allocations);
    assert_int_equal(lines, 0);
    close_pair(&p);
}

static void fills_are_nodes(void **state) {
    (void)state;
    static struct pair p;
    open_pair(&p, of_filled);
    assert_string_equal(p.want.launch[1].function, "fill");
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_queues(&p.c, &p.other.args, p.stream, &p.want_other);
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_counts(1, 3, 2 * p.want.n);
    close_pair(&p);
}

static void single_launches_have_none(void **state) {
    (void)state;
    static struct pair p;
    open_pair(&p, of_forward);
    assert_int_equal(p.want.n, 1);
    for (int i = 0; i < 4; i++) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_counts(0, 0, 0);
    close_pair(&p);
}

static void none_without(void **state) {
    (void)state;
    static const char *const settings[][2] = {{"ATTN_CUDA_GRAPHS", "0"}, {"ATTN_SYNC", "1"}};
    static struct pair p;
    for (int i = 0; i < 2; i++) {
        setenv(settings[i][0], settings[i][1], 1);
        open_pair(&p, of_backward);
        unsetenv(settings[i][0]);
        for (int k = 0; k < 4; k++) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
        assert_counts(0, 0, 0);
        close_pair(&p);
    }
    /* A driver that lacks one of the calls. */
    open_pair(&p, of_backward);
    ((struct attn_cuda_state *)rig.ctx->cuda)->driver.graphs = 0;
    attn_plan *plan = p.c.plan;
    const attn_plan_options only = {
        .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = p.c.kernel.name};
    assert_int_equal(attn_plan_create(rig.ctx, rig.device, &p.c.problem, &only, &p.c.plan), ATTN_OK);
    for (int k = 0; k < 4; k++) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_counts(0, 0, 0);
    attn_plan_release(plan);
    close_pair(&p);
}

/* Another form of the same plan's executions: without an output there is nothing to convert. */
static void another_form(void **state) {
    (void)state;
    static struct pair p;
    static struct queued without;
    open_pair(&p, of_backward);
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    attn_args args = p.c.side.args;
    assert_int_equal(attn_args_set(&args, p.spare, NULL), ATTN_OK);
    queued_by(&p.c, &args, p.stream, &without);
    assert_int_equal(without.n, N - 1);
    assert_counts(1, 1, 0); /* directly */
    assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_int_equal(stub->replays, 2);
    for (int i = 0; i < 4; i++) assert_queues(&p.c, &args, p.stream, &without);
    assert_int_equal(stub->instances, 1);
    assert_queues(&p.c, &args, p.stream, &without); /* it stays: a graph of its own */
    assert_int_equal(stub->instances, 2);
    assert_int_equal(stub->replays, 3);
    assert_queues(&p.c, &args, p.stream, &without);
    assert_int_equal(stub->replays, 4);
    for (int i = 0; i < 6; i++) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    assert_int_equal(stub->instances, 3);
    close_pair(&p);
}

static void each_stream_its_own(void **state) {
    (void)state;
    enum { STREAMS = 6, KEPT = 4 };
    static struct pair p;
    cu_stream streams[STREAMS];
    open_pair(&p, of_backward);
    for (int i = 0; i < STREAMS; i++) streams[i] = gpu_stream_new(&rig);
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < STREAMS; i++)
            assert_queues(&p.c, i % 2 ? &p.other.args : &p.c.side.args, streams[i], i % 2 ? &p.want_other : &p.want);
    assert_counts(KEPT, 3 * KEPT, 0); /* the tensors of each stream are those of before */
    for (int n = 0; n < 80; n++) assert_queues(&p.c, &p.c.side.args, streams[0], &p.want);
    assert_queues(&p.c, &p.c.side.args, streams[5], &p.want); /* others have long been idle */
    assert_int_equal(stub->replays, 3 * KEPT + 81);
    assert_int_equal(stub->instances, KEPT);
    for (int i = 0; i < STREAMS; i++) GPU_OK(rig.cuStreamDestroy_v2(streams[i]));
    assert_queues(&p.c, &p.c.side.args, NULL, &p.want); /* the default stream */
    close_pair(&p);
}

static void recordings_are_direct(void **state) {
    (void)state;
    static struct pair p;
    cu_graph graph = NULL;
    open_pair(&p, of_backward);
    for (int i = 0; i < 2; i++) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
    GPU_OK(rig.cuStreamBeginCapture_v2(p.stream, GPU_CAPTURE_GLOBAL));
    const int64_t recorded = stub->recorded, replays = stub->replays;
    assert_queues(&p.c, &p.other.args, p.stream, &p.want_other);
    assert_int_equal(stub->recorded, recorded + N);
    cu_stream beside = gpu_stream_new(&rig); /* made while another stream records */
    for (int i = 0; i < 2; i++)
        assert_queues(&p.c, i ? &p.other.args : &p.c.side.args, beside, i ? &p.want_other : &p.want);
    assert_int_equal(stub->replays, replays + 2);
    GPU_OK(rig.cuStreamEndCapture(p.stream, &graph));
    GPU_OK(rig.cuGraphDestroy(graph));
    GPU_OK(rig.cuStreamDestroy_v2(beside));
    close_pair(&p);
}

/* Each call that graphs need fails once: the execution is a direct one, and so are those that follow. */
static void failing_calls(void **state) {
    (void)state;
    static const struct {
        const char *call;
        int64_t n;                   /* which one from then on */
        int other, ok;               /* other tensors, on a graph that is there; ok: only this execution is direct */
        const struct choice *kernel; /* and problem */
    } rows[] = {{"cuGraphCreate", 1, 0, 0, of_backward},
                {"cuGraphAddKernelNode_v2", 1, 0, 0, of_backward},
                {"cuGraphAddKernelNode_v2", N, 0, 0, of_backward},
                {"cuGraphAddMemsetNode", 1, 0, 0, of_filled},
                {"cuGraphKernelNodeSetAttribute", 1, 0, 0, of_pairs},
                {"cuGraphAddDependencies_v2", 1, 0, 0, of_splits},
                {"cuGraphInstantiateWithFlags", 1, 0, 0, of_backward},
                {"cuThreadExchangeStreamCaptureMode", 1, 0, 0, of_backward},
                {"cuThreadExchangeStreamCaptureMode", 2, 0, 0, of_backward},
                {"cuThreadExchangeStreamCaptureMode", 1, 1, 0, of_backward},
                {"cuGraphLaunch", 1, 0, 0, of_backward},
                {"cuGraphLaunch", 1, 1, 0, of_backward},
                {"cuGraphExecKernelNodeSetParams_v2", 1, 1, 0, of_backward},
                {"cuGraphExecKernelNodeSetParams_v2", N, 1, 0, of_backward},
                {"cuGraphExecMemsetNodeSetParams", 1, 1, 0, of_filled},
                {"cuStreamIsCapturing", 1, 0, 1, of_backward},
                {"cuStreamIsCapturing", 1, 1, 1, of_backward}};
    static struct pair p;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!try_pair(&p, rows[i].kernel)) continue;
        if (rows[i].other) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
        snprintf(stub->fail_name[0], sizeof stub->fail_name[0], "%s", rows[i].call);
        stub->fail_in[0] = rows[i].n;
        const struct gpu_side *side = rows[i].other ? &p.other : &p.c.side;
        const int64_t replays = stub->replays;
        assert_int_equal(attn_plan_get_info(p.c.plan, NULL), ATTN_E_ARGUMENT);
        char words[200];
        snprintf(words, sizeof words, "%s", attn_last_error());
        assert_queues(&p.c, &side->args, p.stream, rows[i].other ? &p.want_other : &p.want);
        if (stub->failed != 1) fail_msg("%s %d did not fail", rows[i].call, (int)rows[i].n);
        assert_string_equal(attn_last_error(), words); /* nobody is told of what did not matter */
        assert_int_equal(stub->replays, replays);
        for (int k = 0; k < 3; k++) assert_queues(&p.c, &p.c.side.args, p.stream, &p.want);
        assert_int_equal(stub->replays, replays + 3 * rows[i].ok);
        assert_int_equal(lines, !rows[i].ok);
        close_pair(&p);
    }
}

struct worker {
    const struct gpu_case *c;
    struct gpu_side side;
    cu_stream stream;
    int failed;
    pthread_t thread;
};
static void *work(void *from) {
    struct worker *w = from;
    attn_args args = w->side.args;
    args.stream = w->stream;
    for (int i = 0; i < 300 && !w->failed; i++) w->failed = attn_execute(w->c->plan, &args) != ATTN_OK;
    return NULL;
}
/* Threads with tensors of their own, two to a stream. */
static void threads_share_a_plan(void **state) {
    (void)state;
    enum { WORKERS = 6 };
    static struct worker w[WORKERS];
    struct gpu_case c;
    open_case(&c, of_backward, NULL);
    for (int i = 0; i < WORKERS; i++) {
        w[i] = (struct worker){.c = &c, .stream = i % 2 ? w[i - 1].stream : gpu_stream_new(&rig)};
        gpu_side_make(&c, &w[i].side);
    }
    for (int i = 0; i < WORKERS; i++) assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    for (int i = 0; i < WORKERS; i++) pthread_join(w[i].thread, NULL);
    for (int i = 0; i < WORKERS; i++) assert_int_equal(w[i].failed, 0);
    assert_int_equal(stub->replayed + stub->launches, WORKERS * 300 * N); /* each by a graph or directly */
    assert_true(stub->replays > WORKERS && stub->instances <= 4);
    for (int i = 0; i < WORKERS; i++) gpu_side_free(&c, &w[i].side);
    for (int i = 0; i < WORKERS; i += 2) GPU_OK(rig.cuStreamDestroy_v2(w[i].stream));
    close_case(&c);
}

int main(void) {
    struct cuda_stub *(*get)(void) = NULL;
    void *library = dlopen(ATTN_TEST_CUDA_STUB, RTLD_NOW), *symbol = library ? dlsym(library, "cuda_stub_state") : NULL;
    memcpy(&get, &symbol, sizeof get);
    if (!get) return fprintf(stderr, "%s\n", dlerror()), 1;
    stub = get();
    setenv("ATTN_CUDA_DRIVER", ATTN_TEST_CUDA_STUB, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_at_the_third_execution),
        cmocka_unit_test(fills_are_nodes),
        cmocka_unit_test(single_launches_have_none),
        cmocka_unit_test(none_without),
        cmocka_unit_test(another_form),
        cmocka_unit_test(each_stream_its_own),
        cmocka_unit_test(recordings_are_direct),
        cmocka_unit_test(failing_calls),
        cmocka_unit_test(threads_share_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
