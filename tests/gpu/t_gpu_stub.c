/* SPDX-License-Identifier: MIT
 * What the GPU tests can say without a GPU: on the stand-in driver every kernel row, on chips of each generation, may
 * be recorded into a graph (it calls nothing that a recording forbids), queues the same launches each time and
 * allocates nothing. And what a sparse backward launches where its sums exceed the second-level cache. */
#include "cuda/backend/cuda.h"
#include "gpu/gpu_rig.h"
#include "stub_driver/cuda_stub.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 20 }; /* launches that a plan's graph has room for, whatever their parameters */
static struct gpu_rig rig;
static struct cuda_stub *stub;
static int n_launches;

static void take_log(struct cuda_stub_launch *log, int32_t *n) {
    *n = stub->n_log;
    memcpy(log, stub->log, sizeof stub->log);
    stub->n_log = 0;
}

static void assert_same_log(const struct gpu_case *c, const struct cuda_stub_launch *want, int32_t n,
                            const char *what) {
    if (stub->n_log != n) fail_msg("%s: %s has %d launches, not %d", c->text, what, stub->n_log, n);
    for (int32_t i = 0; i < n; i++)
        if (memcmp(&want[i], &stub->log[i], sizeof *want))
            fail_msg("%s: launch %d (%s) of %s differs from (%s)", c->text, i, stub->log[i].function, what,
                     want[i].function);
    stub->n_log = 0;
}

/* Leaves what is on the stream: a graph that the plan keeps is recorded on one of its own. */
static void keep_log_of(cu_stream stream) {
    int32_t n = 0;
    for (int32_t i = 0; i < stub->n_log; i++)
        if (stub->log[i].stream == stream) stub->log[n++] = stub->log[i];
    stub->n_log = n;
}

static void record(struct gpu_case *c) {
    static struct cuda_stub_launch want[sizeof stub->log / sizeof *stub->log];
    int32_t n = 0;
    cu_stream stream = gpu_stream_new(&rig);
    cu_graph graph = NULL;
    cu_exec exec = NULL;
    attn_args args = c->side.args;
    args.stream = stream;
    const int64_t allocations = stub->allocations, loads = stub->loads, waits = stub->synchronized;
    stub->n_log = 0;
    if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
    take_log(want, &n);
    if (!n) fail_msg("%s: nothing was launched", c->text);
    n_launches += n;
    for (int32_t i = 0; i < n; i++) assert_ptr_equal(want[i].stream, stream);
    if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
    assert_same_log(c, want, n, "a second execution");
    assert_int_equal(stub->synchronized, waits);

    GPU_OK(rig.cuStreamBeginCapture_v2(stream, GPU_CAPTURE_GLOBAL));
    if (attn_execute(c->plan, &args)) fail_msg("%s, recorded: %s", c->text, attn_last_error());
    GPU_OK(rig.cuStreamEndCapture(stream, &graph));
    assert_same_log(c, want, n, "a recorded execution");
    GPU_OK(rig.cuGraphInstantiateWithFlags(&exec, graph, 0));
    GPU_OK(rig.cuGraphDestroy(graph));
    GPU_OK(rig.cuGraphLaunch(exec, stream));
    assert_same_log(c, want, n, "a replay");
    const int64_t replays = stub->replays;
    for (int i = 0; i < 2 && n <= KEPT; i++) {
        if (attn_execute(c->plan, &args)) fail_msg("%s: %s", c->text, attn_last_error());
        keep_log_of(stream);
        assert_same_log(c, want, n, "a later execution");
    }
    if (stub->replays != replays + (n > 1 && n <= KEPT ? 2 : 0))
        fail_msg("%s: %d launches without a graph", c->text, n);
    GPU_OK(rig.cuGraphExecDestroy(exec));
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    assert_int_equal(stub->misuse, 0);
    assert_int_equal(stub->allocations, allocations);
    assert_int_equal(stub->loads, loads);
}

/* A plan made in a context that has loaded nothing, while a stream records: the recording stays sound. */
static void prepare_recording(struct gpu_case *c) {
    const attn_plan_options only = {
        .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = c->kernel.name};
    cu_stream stream = gpu_stream_new(&rig);
    cu_graph graph = NULL;
    attn_ctx *fresh = NULL;
    attn_plan *plan = NULL;
    attn_args args = c->side.args;
    args.stream = stream;
    const int64_t loads = stub->loads;
    assert_int_equal(attn_ctx_create(NULL, &fresh), ATTN_OK);
    GPU_OK(rig.cuStreamBeginCapture_v2(stream, GPU_CAPTURE_GLOBAL));
    if (attn_plan_create(fresh, rig.device, &c->problem, &only, &plan) || attn_execute(plan, &args))
        fail_msg("%s, first while recording: %s", c->text, attn_last_error());
    attn_plan_release(plan);
    attn_status status = attn_run(fresh, rig.device, &c->problem, &args);
    if (status && !strstr(attn_last_error(), "records a graph")) fail_msg("%s: %s", c->text, attn_last_error());
    GPU_OK(rig.cuStreamEndCapture(stream, &graph));
    GPU_OK(rig.cuGraphDestroy(graph));
    GPU_OK(rig.cuStreamDestroy_v2(stream));
    attn_ctx_release(fresh);
    assert_true(stub->loads > loads);
    assert_int_equal(stub->misuse, 0);
}

static void every_row_on(const char *arch) {
    setenv("CUDA_STUB_DEVICES", arch, 1);
    memset(stub, 0, sizeof *stub);
    stub->params_bytes = 64; /* every kernel has that many */
    assert_int_equal(gpu_rig_open(&rig), 0);
    rig.blank = 1;
    n_launches = 0;
    gpu_walk(&rig, record);
    setenv("GPU_TEST_CASES", "1", 1); /* each makes a context */
    gpu_walk(&rig, prepare_recording);
    setenv("GPU_TEST_CASES", "8", 1);
    assert_true(n_launches > 0);
    gpu_rig_close(&rig);
    assert_int_equal(stub->streams, 0);
    assert_int_equal(stub->graphs, 0);
    assert_int_equal(stub->modules, 0);
    assert_int_equal(stub->allocations, 0);
    assert_int_equal(stub->misuse, 0);
}
static void on_sm80(void **state) {
    (void)state;
    every_row_on("80");
}
static void on_sm90(void **state) {
    (void)state;
    every_row_on("90");
}
static void on_sm100(void **state) {
    (void)state;
    every_row_on("100");
}

/* Names of the launches without "attn_mla_bwd_" or "attn_mla_", main with its grid, for a second-level cache of `limit`
 * bytes. The main kernel's name is the row's, or begins it. */
static void assert_launches(const char *limit, const char *kernel, const char *problem, const char *want) {
    struct gpu_case c = {.rig = &rig};
    char got[600] = "";
    setenv("ATTN_CUDA_L2_LIMIT", limit, 1);
    memset(stub, 0, sizeof *stub);
    assert_int_equal(gpu_rig_open(&rig), 0);
    unsetenv("ATTN_CUDA_L2_LIMIT");
    rig.blank = 1;
    for (int32_t i = 0; strcmp(c.kernel.name, kernel); i++) {
        c.kernel.size = sizeof c.kernel;
        assert_int_equal(attn_kernel_get_info(rig.ctx, i, &c.kernel), ATTN_OK);
    }
    assert_int_equal(attn_problem_parse(problem, &c.problem), ATTN_OK);
    gpu_case_open(&c);
    stub->n_log = 0;
    if (attn_execute(c.plan, &c.side.args)) fail_msg("%s: %s", c.text, attn_last_error());
    for (int32_t i = 0; i < stub->n_log; i++) {
        const struct cuda_stub_launch *l = &stub->log[i];
        char text[80];
        const size_t skipped = strlen(strncmp(l->function, "attn_mla_bwd_", 13) ? "attn_mla_" : "attn_mla_bwd_");
        if (!strncmp(l->function, kernel, strlen(l->function)))
            snprintf(text, sizeof text, "main %u, ", l->grid[0]);
        else
            snprintf(text, sizeof text, "%s, ", l->function + skipped);
        strcat(got, text);
    }
    gpu_case_close(&c);
    gpu_rig_close(&rig);
    if (strcmp(got, want)) fail_msg("%s, %s: %s", kernel, problem, got);
}
static void slots_in_order_of_ranges(void **state) {
    (void)state;
    static const char h64[] = "attn_mla_bwd_sm90_bf16_d576_h64", det[] = "attn_mla_bwd_sm90_bf16_d576_h64_det";
    static const char problem[] = "mla_bwd hq=2 sq=1300 sk=1000 d=576 topk=64 bf16 with_dist";
    static const char plain[] = "prepare_smxx_any, main 132, finish_smxx_dkv, finish_smxx_dist, ";
    if (!attn_cuda_variant_find(h64) || !attn_cuda_variant_find(det)) skip(); /* a build of other kernels */
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_launches("52428800", h64, problem, plain);
    /* Sums of 2,304,000 bytes: one launch, in order, if they are within twice the cache, else one for each round of 132
     * items, which are 66 queries if these have two blocks of heads. */
    assert_launches("5000000", h64, problem, plain);
    assert_launches("2000000", h64, problem,
                    "prepare_smxx_any, ranges_smxx_any, main 132, finish_smxx_dkv, finish_smxx_dist, ");
    assert_launches("1000000", h64, "mla_bwd hq=2 sq=300 sk=1000 d=576 topk=64 bf16 with_dist",
                    "prepare_smxx_any, ranges_smxx_any, main 132, main 132, main 36, finish_smxx_dkv, "
                    "finish_smxx_dist, ");
    assert_launches("1000000", h64, "mla_bwd hq=128 sq=200 sk=1000 d=576 topk=64 bf16 dkv=f32",
                    "prepare_smxx_any, ranges_smxx_any, main 132, main 132, main 132, main 4, ");
    assert_launches("1000000", h64, "mla_bwd hq=2 sq=7 sk=1000 d=576 topk=64 bf16 dkv=f32",
                    "prepare_smxx_any, main 7, "); /* not a slot for every second row */
    /* 4 queries are left after a round of 132: each in 33 parts of 2 tiles. 5: in 22 parts of 3 */
    assert_launches("52428800", h64, "mla_bwd hq=2 sq=136 sk=100 d=576 topk=4224 bf16 dkv=f32",
                    "prepare_smxx_any, main 132, main 132, finish_smxx_dq, ");
    assert_launches("52428800", h64, "mla_bwd hq=2 sq=136 sk=100 d=576 topk=4224 bf16 dkv=f32 with_dist",
                    "prepare_smxx_any, main 132, main 132, finish_smxx_dq, finish_smxx_dist, ");
    assert_launches("52428800", h64, "mla_bwd hq=2 sq=5 sk=100 d=576 topk=4224 bf16 dkv=f32",
                    "prepare_smxx_any, main 110, finish_smxx_dq, ");
    assert_launches("1000000", det, "mla_bwd hq=2 sq=40 sk=1000 d=576 topk=64 bf16 deterministic",
                    "prepare_smxx_any, main 40, sort_smxx_count, sort_smxx_scan, sort_smxx_scatter, sort_smxx_count, "
                    "sort_smxx_scan, sort_smxx_scatter, sum_smxx_any, finish_smxx_dkv, ");
}
static attn_plan_info info_of_plan(const char *problem, const attn_plan_options *options) {
    attn_plan_info info = {.size = sizeof info};
    attn_problem parsed;
    attn_plan *plan = NULL;
    assert_int_equal(gpu_rig_open(&rig), 0);
    assert_int_equal(attn_problem_parse(problem, &parsed), ATTN_OK);
    if (attn_plan_create(rig.ctx, rig.device, &parsed, options, &plan) || attn_plan_get_info(plan, &info))
        fail_msg("%s", attn_last_error());
    attn_plan_release(plan);
    gpu_rig_close(&rig);
    return info;
}
/* The row chosen for a second-level cache of 50 MB, with `bytes` of workspace at most. */
static void assert_chosen(const char *problem, uint64_t bytes, uint32_t flags, const char *want) {
    const attn_plan_options o = {.size = sizeof o,
                                 .flags = ATTN_PLAN_WORKSPACE_LIMIT | ATTN_PLAN_NO_TUNING | flags,
                                 .max_workspace_bytes = bytes};
    const attn_plan_info info = info_of_plan(problem, &o);
    assert_string_equal(info.kernel, want);
    assert_true(info.workspace_bytes <= bytes);
    assert_int_equal(info.joins, strstr(want, "_joined_") != NULL);
    assert_int_equal(info.group > 1, info.joins);
}
static void slots_of_a_forward_in_order(void **state) {
    (void)state;
    static const char plain[] = "attn_mla_fwd_sm90_bf16_d576", ordered[] = "attn_mla_fwd_sm90_bf16_d576_ordered";
    if (!attn_cuda_variant_find(plain) || !attn_cuda_variant_find("attn_mla_order_smxx_any")) skip();
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_launches("1000000", plain, "mla_fwd hq=2 sq=300 sk=1000 d=576 topk=64 bf16", "main 132, ");
    assert_launches("1000000", ordered, "mla_fwd hq=2 sq=300 sk=1000 d=576 topk=64 bf16", "order_smxx_any, main 132, ");
    /* 64 MiB hold the lists of 8184 queries in whole pairs of rounds; 52 items are left at the end, in halves */
    assert_launches("1000000", ordered, "mla_fwd hq=2 sq=8500 sk=1000 d=576 topk=2048 bf16",
                    "order_smxx_any, main 132, order_smxx_any, main 132, combine_smxx_any, ");
    /* lists of 33.6 MB, parts of 4 items of 0.5 MB a part: without room for lists the caller's are taken */
    assert_chosen("mla_fwd hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, plain);
    assert_chosen("mla_fwd hq=64 sq=4096 sk=32768 d=576 topk=2048 bf16", UINT64_MAX, 0, ordered);
    assert_chosen("mla_fwd hq=64 sq=4096 sk=32768 d=576 topk=2048 bf16", 17000000, 0, plain);
}
static void lists_of_a_forward_joined(void **state) {
    (void)state;
    static const char plain[] = "attn_mla_fwd_sm90_bf16_d576", joined[] = "attn_mla_fwd_joined_sm90_bf16_d576";
    if (!attn_cuda_variant_find(plain) || !attn_cuda_variant_find(joined) ||
        !attn_cuda_variant_find("attn_mla_join_sm90_i32_g8"))
        skip();
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_launches("50000000", joined, "mla_fwd hq=7 sq=300 sk=1000 d=576 topk=64 bf16",
                    "join_sm90_i32_g8, main 38, ");
    assert_launches("50000000", joined, "mla_fwd hq=32 sq=300 sk=1000 d=576 topk=64 bf16",
                    "join_sm90_i32_g2, ed_work_smxx_any, fwd_apart_sm90_bf16_d576, main 132, ");
    /* 64 MiB hold the lists of 528 groups in whole rounds; these are 563 */
    assert_launches("50000000", joined, "mla_fwd hq=8 sq=4500 sk=1000 d=576 topk=2048 bf16",
                    "join_sm90_i32_g8, main 132, join_sm90_i32_g8, main 132, ");
    /* Lists that are handed over, in groups that fill a tile or a half of it; too many heads for such a group. */
    assert_launches("50000000", joined, "mla_fwd hq=8 sq=4500 sk=1000 d=576 topk=2048 bf16 group=8",
                    "main 132, main 132, ");
    assert_launches("50000000", joined, "mla_fwd hq=8 sq=300 sk=1000 d=576 topk=64 bf16 group=4", "main 75, ");
    assert_chosen("mla_fwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16 group=8", UINT64_MAX, 0, joined);
    assert_chosen("mla_fwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16 group=16", UINT64_MAX, 0, plain);
    assert_chosen("mla_fwd hq=8 sq=0 sk=8192 d=576 topk=2048 bf16 group=8", UINT64_MAX, 0,
                  "attn_mla_fwd_sm80_bf16_d576_h64"); /* no group */
    assert_chosen("mla_fwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16 group=8", UINT64_MAX, ATTN_PLAN_QUERIES_APART,
                  plain);
    /* Few heads of many queries share tiles, unless the caller wants queries apart; 64 heads fill one by themselves. */
    assert_chosen("mla_fwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, joined);
    assert_chosen("mla_fwd hq=32 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, joined);
    assert_chosen("mla_fwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, ATTN_PLAN_QUERIES_APART, plain);
    assert_chosen("mla_fwd hq=32 sq=132 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, plain);
    assert_chosen("mla_fwd hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, plain);
}
/* The backward: the last round of groups in parts; keys whose sums the cache does not hold, so that CTAs keep together;
 * dist and whole rounds of each 64 MiB of lists. */
static void lists_of_a_backward_joined(void **state) {
    (void)state;
    static const char apart[] = "attn_mla_bwd_sm90_bf16_d576_h64_alt", joined[] = "attn_mla_bwd_joined_sm90_bf16_d576";
    if (!attn_cuda_variant_find(apart) || !attn_cuda_variant_find(joined) ||
        !attn_cuda_variant_find("attn_mla_join_sm90_i32_g8") || !attn_cuda_variant_find("attn_mla_join_sm90_i32_g2"))
        skip();
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_launches("50000000", joined, "mla_bwd hq=7 sq=1056 sk=1000 d=576 topk=512 bf16",
                    "prepare_smxx_any, join_sm90_i32_g8, main 132, finish_smxx_dkv, ");
    assert_launches("50000000", joined, "mla_bwd hq=32 sq=300 sk=1000 d=576 topk=512 bf16",
                    "prepare_smxx_any, join_sm90_i32_g2, main 132, main 90, finish_smxx_joined_dq, finish_smxx_dkv, ");
    /* 64 MiB hold the lists of 528 groups in whole rounds; these are 563 */
    assert_launches("2000000", joined, "mla_bwd hq=8 sq=4500 sk=1000 d=576 topk=2048 bf16 with_dist",
                    "prepare_smxx_any, join_sm90_i32_g8, ranges_smxx_any, main 132, finish_smxx_joined_dist, "
                    "join_sm90_i32_g8, main 105, finish_smxx_joined_dq, finish_smxx_joined_dist, finish_smxx_dkv, ");
    assert_launches("50000000", joined, "mla_bwd hq=7 sq=1056 sk=1000 d=576 topk=512 bf16 group=8",
                    "prepare_smxx_any, main 132, finish_smxx_dkv, ");
    assert_chosen("mla_bwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, joined);
    assert_chosen("mla_bwd hq=32 sq=4096 sk=32768 d=576 topk=2048 bf16", UINT64_MAX, 0, joined);
    assert_chosen("mla_bwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, ATTN_PLAN_QUERIES_APART, apart);
    assert_chosen("mla_bwd hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, apart);
    /* Pairs of 64 heads: lists that are handed over share much. */
    assert_chosen("mla_bwd hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16 group=2", UINT64_MAX, 0,
                  "attn_mla_bwd_joined_sm90_bf16_d576_h64");
    assert_chosen("mla_bwd hq=64 sq=4096 sk=32768 d=576 topk=2048 bf16 group=2", UINT64_MAX, 0,
                  "attn_mla_bwd_joined_sm90_bf16_d576_h64");
}

static void rows_of_a_backward_joined(void **state) {
    (void)state;
    static const char stored[] = "attn_mla_bwd_joined_sm90_bf16_d576_det", f16[] = "attn_mla_bwd_joined_sm90_f16_d576";
    if (!attn_cuda_variant_find(stored) || !attn_cuda_variant_find(f16) ||
        !attn_cuda_variant_find("attn_mla_join_sm90_i32_g8") || !attn_cuda_variant_find("attn_mla_join_sm90_i32_g2"))
        skip();
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_launches("50000000", stored, "mla_bwd hq=7 sq=1056 sk=200 d=576 topk=32 bf16 deterministic",
                    "prepare_smxx_any, join_sm90_i32_g8, main 132, joined_list_smxx_any, rows_sm90_count, "
                    "rows_sm90_scan, rows_sm90_scatter, rows_sm90_walk, rows_sm90_join, finish_smxx_dkv, ");
    assert_chosen("mla_bwd hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16 deterministic", UINT64_MAX, 0, stored);
    assert_chosen("mla_bwd hq=8 sq=4096 sk=8192 d=576 topk=2048 f16 deterministic", UINT64_MAX, 0,
                  "attn_mla_bwd_joined_sm90_f16_d576_det");
    assert_chosen("mla_bwd hq=8 sq=4096 sk=8192 d=576 topk=2048 f16", UINT64_MAX, 0, f16);
    assert_chosen("mla_bwd hq=32 sq=4096 sk=8192 d=576 topk=2048 f16", UINT64_MAX, 0, f16);
}

/* What a plan says of unions that are too long: of lists that it joins itself, if it leaves any apart. */
static void assert_union_limit(const char *problem, const char *kernel, int64_t want) {
    const attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_NO_TUNING, .kernel = kernel};
    assert_int_equal(info_of_plan(problem, &o).union_limit, want);
}
static void limits_of_unions(void **state) {
    (void)state;
    static const char dist[] = "attn_dist_joined_sm90_bf16_d576", fwd[] = "attn_mla_fwd_joined_sm90_bf16_d576";
    static const char bwd[] = "attn_mla_bwd_joined_sm90_bf16_d576";
    if (!attn_cuda_variant_find(dist) || !attn_cuda_variant_find(fwd) || !attn_cuda_variant_find(bwd) ||
        !attn_cuda_variant_find("attn_mla_fwd_apart_sm90_bf16_d576") ||
        !attn_cuda_variant_find("attn_mla_join_sm90_i32_g8") || !attn_cuda_variant_find("attn_mla_join_sm90_i32_g2"))
        skip();
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_union_limit("dist hq=8 sq=64 sk=8192 d=576 topk=700 bf16 align=16", dist, 8 * 500);
    assert_union_limit("dist hq=8 sq=64 sk=8192 d=576 topk=700 bf16 group=8 align=16", dist, 0);
    assert_union_limit("mla_fwd hq=32 sq=64 sk=8192 d=576 topk=700 bf16 align=16", fwd, 2 * 630);
    assert_union_limit("mla_fwd hq=8 sq=64 sk=8192 d=576 topk=700 bf16 align=16", fwd, 0);
    assert_union_limit("mla_bwd hq=8 sq=64 sk=8192 d=576 topk=700 bf16 align=16", bwd, 0);
}

static void lists_of_a_dist_joined(void **state) {
    (void)state;
    static const char plain[] = "attn_dist_sm90_bf16_d576_h64", joined[] = "attn_dist_joined_sm90_bf16_d576";
    if (!attn_cuda_variant_find(plain) || !attn_cuda_variant_find(joined) ||
        !attn_cuda_variant_find("attn_joined_work_smxx_any") || !attn_cuda_variant_find("attn_mla_join_sm90_i32_g8"))
        skip();
    setenv("CUDA_STUB_DEVICES", "90", 1);
    /* a CTA a multiprocessor: the last groups are shared by tiles */
    assert_launches("50000000", joined, "dist hq=1 sq=300 sk=1000 d=576 topk=64 bf16",
                    "join_sm90_i32_g8, ed_work_smxx_any, main 132, _apart_sm90_bf16_d576, ");
    assert_launches("50000000", joined, "dist hq=1 sq=300 sk=1000 d=576 topk=64 bf16 group=16",
                    "ed_work_smxx_any, main 132, _apart_sm90_bf16_d576, ");
    assert_chosen("dist hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, joined);
    assert_chosen("dist hq=32 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, joined);
    assert_chosen("dist hq=8 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, ATTN_PLAN_QUERIES_APART, plain);
    assert_chosen("dist hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, plain);
}

/* Blackwell: whole rounds of pairs for each 64 MiB of lists, of dist also for 256 MiB of sums, which a launch of their
 * own brings to slots; pairs of 64 heads, which the forward joins in any case, dist where they are handed over. */
static void lists_joined_on_sm100(void **state) {
    (void)state;
    static const char fwd[] = "attn_mla_fwd_joined_sm100_bf16_d576", dist[] = "attn_dist_joined_sm100_bf16_d576";
    if (!attn_cuda_variant_find(fwd) || !attn_cuda_variant_find(dist) ||
        !attn_cuda_variant_find("attn_mla_join_sm80_i32_g8") || !attn_cuda_variant_find("attn_mla_join_sm80_i32_g2"))
        skip();
    setenv("CUDA_STUB_DEVICES", "100", 1);
    assert_launches("50000000", fwd, "mla_fwd hq=16 sq=100 sk=1000 d=576 topk=64 bf16", "join_sm80_i32_g8, main 26, ");
    assert_launches("50000000", fwd, "mla_fwd hq=16 sq=6000 sk=1000 d=576 topk=2048 bf16",
                    "join_sm80_i32_g8, main 132, join_sm80_i32_g8, main 132, ");
    assert_launches("50000000", fwd, "mla_fwd hq=64 sq=100 sk=1000 d=576 topk=64 bf16 group=2", "main 100, ");
    assert_launches("50000000", dist, "dist hq=16 sq=100 sk=1000 d=576 topk=64 bf16 dist_norm=l1",
                    "join_sm80_i32_g8, main 26, finish_smxx_joined_dist, ");
    assert_launches("50000000", dist, "dist hq=16 sq=5000 sk=1000 d=576 topk=2048 bf16",
                    "join_sm80_i32_g8, main 132, finish_smxx_joined_dist, join_sm80_i32_g8, main 132, "
                    "finish_smxx_joined_dist, ");
    assert_chosen("mla_fwd hq=32 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, fwd);
    assert_chosen("mla_fwd hq=32 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, ATTN_PLAN_QUERIES_APART,
                  "attn_mla_fwd_sm100_bf16_d576_h64");
    assert_chosen("mla_fwd hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16 group=2", UINT64_MAX, 0, fwd);
    assert_chosen("mla_fwd hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0,
                  "attn_mla_fwd_sm100_bf16_d576_h64");
    assert_chosen("mla_fwd hq=65 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0,
                  "attn_mla_fwd_sm100_bf16_d576_h128");
    assert_chosen("dist hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16", UINT64_MAX, 0, "attn_dist_sm100_bf16_d576_h64");
    assert_chosen("dist hq=64 sq=4096 sk=8192 d=576 topk=2048 bf16 group=2", UINT64_MAX, 0, dist);
}

int main(void) {
    struct cuda_stub *(*get)(void) = NULL;
    void *library = dlopen(ATTN_TEST_CUDA_STUB, RTLD_NOW), *symbol = library ? dlsym(library, "cuda_stub_state") : NULL;
    memcpy(&get, &symbol, sizeof get);
    if (!get) return fprintf(stderr, "%s\n", dlerror()), 1;
    stub = get();
    /* A case's tensors stand where the last one's stood: fresh pages, 16 GB of them, are most of the time otherwise. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    setenv("ATTN_CUDA_DRIVER", ATTN_TEST_CUDA_STUB, 1);
    setenv("GPU_TEST_CASES", "8", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_sm80),
        cmocka_unit_test(on_sm90),
        cmocka_unit_test(on_sm100),
        cmocka_unit_test(slots_in_order_of_ranges),
        cmocka_unit_test(slots_of_a_forward_in_order),
        cmocka_unit_test(lists_of_a_forward_joined),
        cmocka_unit_test(rows_of_a_backward_joined),
        cmocka_unit_test(limits_of_unions),
        cmocka_unit_test(lists_of_a_dist_joined),
        cmocka_unit_test(lists_of_a_backward_joined),
        cmocka_unit_test(lists_joined_on_sm100),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
