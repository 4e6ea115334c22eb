/* SPDX-License-Identifier: MIT
 * The same execution again and again: rows that promise it give the same bits, whatever the workspace held before, on
 * whichever stream, between executions on other data, and by a plan made anew. */
#include "gpu/gpu_rig.h"

#include <stdlib.h>
#include <string.h>

static struct gpu_rig rig;
static int64_t runs = 20; /* GPU_TEST_RUNS */

/* The workspace's contents on entry: what the last run left, a constant, or NaN. */
static void enter_with(const struct gpu_case *c, int n) {
    static const int fills[] = {0xff, 0x00, 0x7f, 0x3c, 0x80};
    struct gpu_case bare = *c;
    if (n % 3 == 2) bare.info.workspace_bytes = 0; /* left as it is */
    gpu_side_poison(&bare, &c->side, fills[(size_t)n % (sizeof fills / sizeof *fills)]);
}

static void run_again(struct gpu_case *c) {
    cu_stream stream = gpu_stream_new(&rig);
    unsigned char *first = NULL;
    for (int n = 0; n < runs; n++) {
        enter_with(c, n);
        gpu_execute(c, &c->side, n % 2 ? stream : NULL);
        unsigned char *got = gpu_outputs(c, &c->side);
        if (!first) {
            first = got;
            gpu_assert_written(c, first);
            continue;
        }
        gpu_assert_same(c, first, got, "a run repeated, with another workspace content");
        free(got);
    }
    gpu_assert_inputs_intact(c, &c->side);
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    free(first);
}

/* One plan on two data sets in turn, sharing the workspace; then a second plan of the same problem. */
static void reuse_plan(struct gpu_case *c) {
    cu_stream stream = gpu_stream_new(&rig);
    struct gpu_case other = *c;
    attn_plan *again = NULL;
    if (attn_cli_tensors_create(&other.host, &c->problem) || attn_cli_tensors_fill(&other.host, 8) ||
        attn_cli_tensors_forward(rig.ctx, &other.host))
        fail_msg("%s: %s", c->text, attn_last_error());
    gpu_side_make(&other, &other.side);
    other.side.args.workspace = c->side.workspace;

    gpu_execute(c, &c->side, stream);
    unsigned char *want = gpu_outputs(c, &c->side);
    gpu_execute(&other, &other.side, stream);
    unsigned char *differs = gpu_outputs(&other, &other.side);
    assert_memory_not_equal(want, differs, gpu_outputs_bytes(c));
    for (int n = 0; n < 2; n++) {
        gpu_side_poison(c, &c->side, 0x55);
        gpu_execute(c, &c->side, stream);
        unsigned char *got = gpu_outputs(c, &c->side);
        gpu_assert_same(c, want, got, n ? "a new plan of the same problem" : "a plan used on other data in between");
        free(got);
        if (n) break;
        const attn_plan_options only = {
            .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = c->kernel.name};
        assert_int_equal(attn_plan_create(rig.ctx, rig.device, &c->problem, &only, &again), ATTN_OK);
        attn_plan_release(c->plan);
        c->plan = again;
    }
    gpu_side_free(&other, &other.side);
    attn_cli_tensors_destroy(&other.host);
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    free(want), free(differs);
}

static void runs_repeat(void **state) {
    (void)state;
    gpu_walk(&rig, run_again);
}
static void plans_are_reused(void **state) {
    (void)state;
    gpu_walk(&rig, reuse_plan);
}

int main(void) {
    const char *wanted = getenv("GPU_TEST_RUNS");
    if (wanted && attn_cli_int(wanted, 2, 1000, &runs)) return 2;
    int code = gpu_rig_open(&rig);
    if (code) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_repeat),
        cmocka_unit_test(plans_are_reused),
    };
    code = cmocka_run_group_tests(tests, NULL, NULL);
    gpu_rig_close(&rig);
    return code;
}
