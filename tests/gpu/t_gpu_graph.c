/* SPDX-License-Identifier: MIT
 * Executions recorded into CUDA graphs: for every kernel row, recording runs nothing, and each replay gives what a
 * direct execution gives. Likewise attn_run, which refuses to record a plan that needs a workspace. And graphs that a
 * plan itself keeps, for two streams and two sets of tensors. */
#include "gpu/gpu_rig.h"

#include <stdlib.h>
#include <string.h>

enum { REPLAYS = 3 };
static struct gpu_rig rig;

static cu_exec instantiate(cu_stream stream) {
    cu_graph graph = NULL;
    cu_exec exec = NULL;
    GPU_OK(rig.cuStreamEndCapture(stream, &graph));
    GPU_OK(rig.cuGraphInstantiateWithFlags(&exec, graph, 0));
    GPU_OK(rig.cuGraphDestroy(graph));
    return exec;
}

/* The graph's results, replayed on another workspace content each time. */
static void replay(struct gpu_case *c, cu_exec exec, cu_stream stream, const unsigned char *want, const char *what) {
    for (int n = 0; n < REPLAYS; n++) {
        gpu_side_poison(c, &c->side, 0x11 * n);
        GPU_OK(rig.cuGraphLaunch(exec, stream));
        GPU_OK(rig.cuStreamSynchronize(stream));
        unsigned char *got = gpu_outputs(c, &c->side);
        gpu_assert_same(c, want, got, what);
        free(got);
    }
    gpu_assert_inputs_intact(c, &c->side);
}

static void record_execute(struct gpu_case *c) {
    cu_stream stream = gpu_stream_new(&rig);
    attn_args args = c->side.args;
    args.stream = stream;
    gpu_execute(c, &c->side, stream);
    unsigned char *want = gpu_outputs(c, &c->side);
    gpu_assert_written(c, want);

    gpu_side_poison(c, &c->side, 0);
    unsigned char *before = gpu_outputs(c, &c->side);
    GPU_OK(rig.cuStreamBeginCapture_v2(stream, GPU_CAPTURE_GLOBAL));
    if (attn_execute(c->plan, &args)) fail_msg("%s, recorded: %s", c->text, attn_last_error());
    cu_exec exec = instantiate(stream);
    unsigned char *after = gpu_outputs(c, &c->side);
    assert_memory_equal(before, after, gpu_outputs_bytes(c)); /* recording ran nothing */
    replay(c, exec, stream, want, "a replayed graph against a direct execution");

    GPU_OK(rig.cuGraphExecDestroy(exec));
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    free(before), free(after), free(want);
}

/* attn_run chooses its kernel itself, so its own direct run is what a replay must repeat. */
static void record_run(struct gpu_case *c) {
    cu_stream stream = gpu_stream_new(&rig);
    attn_plan *plan = NULL;
    attn_args args = c->side.args;
    args.stream = stream;
    struct gpu_case chosen = *c; /* its plan is the one that attn_run makes */
    assert_int_equal(attn_plan_create(rig.ctx, rig.device, &c->problem, NULL, &plan), ATTN_OK);
    assert_int_equal(attn_plan_get_info(plan, &chosen.info), ATTN_OK);
    attn_plan_release(plan);
    gpu_side_poison(c, &c->side, 0);
    if (attn_run(rig.ctx, rig.device, &c->problem, &args)) fail_msg("%s, attn_run: %s", c->text, attn_last_error());
    GPU_OK(rig.cuStreamSynchronize(stream));
    unsigned char *want = gpu_outputs(c, &c->side);

    GPU_OK(rig.cuStreamBeginCapture_v2(stream, GPU_CAPTURE_GLOBAL));
    attn_status status = attn_run(rig.ctx, rig.device, &c->problem, &args);
    cu_exec exec = instantiate(stream); /* also a refusal leaves the stream in good order */
    if (chosen.info.workspace_bytes) {
        assert_int_equal(status, ATTN_E_ARGUMENT);
        assert_non_null(strstr(attn_last_error(), "records a graph"));
    } else {
        if (status) fail_msg("%s, attn_run recorded: %s", c->text, attn_last_error());
        chosen.info.workspace_bytes = c->info.workspace_bytes; /* of the side's memory */
        replay(&chosen, exec, stream, want, "attn_run replayed against attn_run");
    }
    GPU_OK(rig.cuGraphExecDestroy(exec));
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    free(want);
}

/* The first attn_run of a context, recorded: the plan is made and its images are loaded while the stream records. */
static void record_first_run(struct gpu_case *c) {
    attn_ctx *fresh = NULL;
    struct gpu_case chosen = *c;
    attn_args args = c->side.args;
    assert_int_equal(attn_ctx_create(NULL, &fresh), ATTN_OK);
    cu_stream stream = gpu_stream_new(&rig);
    args.stream = stream;
    gpu_side_poison(c, &c->side, 0);
    if (attn_run(rig.ctx, rig.device, &c->problem, &args)) fail_msg("%s, attn_run: %s", c->text, attn_last_error());
    GPU_OK(rig.cuStreamSynchronize(stream));
    unsigned char *want = gpu_outputs(c, &c->side);

    GPU_OK(rig.cuStreamBeginCapture_v2(stream, GPU_CAPTURE_GLOBAL));
    attn_status status = attn_run(fresh, rig.device, &c->problem, &args);
    cu_exec exec = instantiate(stream);
    if (status) {
        assert_int_equal(status, ATTN_E_ARGUMENT);
        assert_non_null(strstr(attn_last_error(), "records a graph"));
    } else {
        chosen.info.deterministic = 0; /* of the plan that attn_run chose, nothing is known here */
        replay(&chosen, exec, stream, want, "a recorded first attn_run against attn_run");
    }
    GPU_OK(rig.cuGraphExecDestroy(exec));
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    attn_ctx_release(fresh);
    free(want);
}

/* A set's results, once poison is in its place and the executions since then are done. */
static void assert_results(struct gpu_case *c, const struct gpu_side *side, const unsigned char *want,
                           const char *what) {
    unsigned char *got = gpu_outputs(c, side);
    gpu_assert_same(c, want, got, what);
    gpu_assert_inputs_intact(c, side);
    free(got);
}
static void queue(struct gpu_case *c, const struct gpu_side *side, cu_stream stream) {
    attn_args args = side->args;
    args.stream = stream;
    if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
}

/* The first executions of a plan are direct, later ones may be launches of a graph that the plan keeps: other tensors
 * on the same stream, the same ones on another, and new ones while the last execution may still run. */
static void execute_often(struct gpu_case *c) {
    const cu_stream streams[2] = {gpu_stream_new(&rig), gpu_stream_new(&rig)};
    struct gpu_side other;
    gpu_side_make(c, &other);
    const struct gpu_side *const sides[2] = {&c->side, &other};
    gpu_side_poison(c, &c->side, 0);
    gpu_execute(c, &c->side, streams[0]);
    unsigned char *want = gpu_outputs(c, &c->side);
    gpu_assert_written(c, want);
    for (int n = 0; n < 10; n++) {
        const struct gpu_side *side = sides[n / 2 % 2];
        gpu_side_poison(c, side, 0x11 * n);
        gpu_execute(c, side, streams[n % 2]);
        assert_results(c, side, want, "a later execution against the first");
    }
    for (int n = 0; n < 2; n++) {
        for (int i = 0; i < 2; i++) gpu_side_poison(c, sides[i], 0x33);
        for (int i = 0; i < 2; i++) queue(c, sides[i], streams[n ? i : 0]);
        for (int i = 0; i < 2; i++) GPU_OK(rig.cuStreamSynchronize(streams[i]));
        for (int i = 0; i < 2; i++) assert_results(c, sides[i], want, "one of two executions that overlap");
    }
    gpu_side_free(c, &other);
    for (int i = 0; i < 2; i++) GPU_OK(rig.cuStreamDestroy_v2(streams[i]));
    free(want);
}

static void executions_are_recorded(void **state) {
    (void)state;
    gpu_walk(&rig, record_execute);
}
static void executions_are_repeated(void **state) {
    (void)state;
    gpu_walk(&rig, execute_often);
}
static void runs_are_recorded(void **state) {
    (void)state;
    gpu_walk(&rig, record_run);
}
static void first_runs_are_recorded(void **state) {
    (void)state;
    gpu_walk(&rig, record_first_run);
}

int main(void) {
    int code = gpu_rig_open(&rig);
    if (code) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executions_are_repeated),
        cmocka_unit_test(executions_are_recorded),
        cmocka_unit_test(runs_are_recorded),
        cmocka_unit_test(first_runs_are_recorded),
    };
    code = cmocka_run_group_tests(tests, NULL, NULL);
    gpu_rig_close(&rig);
    return code;
}
