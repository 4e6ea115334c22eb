/* SPDX-License-Identifier: MIT
 * `attn bench`: measures problems and prints a table or JSON Lines records (docs/json.md). Measuring is in
 * meter.c, lists of problems in cases.c. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#endif
#include "bench/bench.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bench {
    struct attn_cli_common common;
    struct attn_cli_meter meter;
    struct attn_cli_gpu *gpu;
    struct attn_cli_counter *counter; /* NULL: times are taken */
    int json, overhead;
    int32_t threads;
    const char *run_id, *outputs;
    struct attn_cli_drawn drawn;               /* of the problem that is measured */
    struct attn_cli_work work;                 /* of its lengths */
    struct attn_cli_overlap_measured measured; /* of its lists */
    struct attn_cli_joined_count joined;       /* by the plan that is measured */
    char date[32], default_id[64], device[96], driver[24];
};

static int on_host(const struct bench *b) { return b->common.device.type == ATTN_DEVICE_TYPE_CPU; }

static void print_help(void) {
    printf(
        "Usage: attn bench [OPTIONS] PROBLEM|@FILE...\n\n"
        "Measure problems. @FILE holds one problem a line; @NAME is a list that comes with the program (dense, backward,\n"
        "features, f32, f64, decode, dsa, shared, small, calls, blackwell, cpu,\n"
        "cpu_short).\n\n"
        "      --overhead        host time of plan creation, argument check, execution and attn_run instead; on a GPU\n"
        "                        also of the execution's launches straight through the driver (driver_floor)\n"
        "      --runs N          at least N timed samples after warm-up (default 30)\n"
        "      --min-time S      and at least S seconds of timed work (default 0.2), in 50 S seconds at most\n"
        "      --max-time S      but stop after S seconds, also before N samples\n"
        "      --cache STATE     what an execution finds in the caches: flush (default on a CPU: overwritten before\n"
        "                        each run), rotate (default on a GPU: copies of the tensors take turns), warm\n"
        "      --warm            as --cache warm\n"
        "      --outputs LIST    of the outputs that may be left out only these, e.g. out (default: all but lse_rounded\n"
        "                        and max_logits)\n"
        "      --overlap J       lists of sparse queries share J of their keys with the query before: 0 to 1, random, or\n"
        "                        prefix (the first keys); the records say what the lists have\n"
        "      --lengths LEAST   lengths of sequences (packed, seqlens_q, seqlens_k) are uniform from LEAST to their bound\n"
        "      --driver PATH     CUDA driver library; sim: the PTX simulator beside this command, which counts one\n"
        "                        execution's work and takes no time\n"
        "      --run-id ID       id of this invocation in the records, to join them with a peer's\n"
        "  -j, --json            JSON Lines on stdout, one record per problem and kernel\n"
        "  -h, --help            this text\n\n"
        "Common:\n" ATTN_CLI_COMMON_HELP "\n"
        "With --kernel every matching kernel that accepts a problem is measured, not only the chosen one.\n"
        "Inputs are random; seqlens are at their bounds without --lengths. FLOPs and bytes are those of the lengths.\n");
}

/* In words, for the records' note. */
static void describe(const struct bench *b, const struct attn_cli_timing *t, char *buf, size_t bytes) {
    static const char *const states[] = {"last-level cache flushed", "inputs rotated past the cache", "caches warm"};
    if (b->overhead)
        snprintf(buf, bytes, "host time of a call, everything warm");
    else if (on_host(b))
        snprintf(buf, bytes, "%s, %d thread%s", states[b->meter.cache], b->threads, b->threads == 1 ? "" : "s");
    else
        snprintf(buf, bytes, "%s, %s clock over batches of %lld", states[b->meter.cache],
                 t->on_device ? "device's" : "host's", (long long)t->batch);
}

static void print_timing(const struct bench *b, const char *text, const attn_plan_info *info, const char *measure,
                         const struct attn_cli_timing *t) {
    char how[96], lengths[128] = "", note[320];
    describe(b, t, how, sizeof how);
    if (b->work.rows_q)
        snprintf(lengths, sizeof lengths, ", flops and bytes counted by lengths: %lld queries, %lld keys",
                 (long long)b->work.rows_q, (long long)b->work.rows_k);
    snprintf(note, sizeof note, "%s%s%s%s", how, lengths, b->outputs ? ", outputs " : "", b->outputs ? b->outputs : "");
    const struct attn_cli_record r = {.run = b->run_id,
                                      .date = b->date,
                                      .device = b->device,
                                      .driver = *b->driver ? b->driver : NULL,
                                      .problem = text,
                                      .kernel = info->kernel,
                                      .measure = measure,
                                      .backend = info->backend,
                                      .flops = b->overhead ? 0 : b->work.flops,
                                      .bytes = b->overhead ? 0 : b->work.bytes,
                                      .cache = b->meter.cache,
                                      .overlap = &b->drawn.overlap,
                                      .measured = &b->measured,
                                      .joined = &b->joined,
                                      .note = note};
    if (b->json)
        attn_cli_record_json(&r, t);
    else
        attn_cli_record_row(&r, t);
}

static attn_status count(const struct bench *b, attn_ctx *ctx, const struct attn_cli_tensors *set, const char *text,
                         const attn_plan *plan, const attn_plan_info *info) {
    attn_status status = attn_cli_counter_run(b->counter, ctx, plan, &set->args);
    if (status) return status;
    const char *counts = attn_cli_counter_text(b->counter, b->json);
    const struct attn_cli_record r = {.run = b->run_id,
                                      .date = b->date,
                                      .device = b->device,
                                      .problem = text,
                                      .kernel = info->kernel,
                                      .measure = "counted",
                                      .flops = b->work.flops,
                                      .bytes = b->work.bytes,
                                      .overlap = &b->drawn.overlap,
                                      .measured = &b->measured,
                                      .joined = &b->joined,
                                      .note = "counted, not timed"};
    if (b->json)
        attn_cli_record_counted(&r, counts);
    else
        printf("%s: %.6g GFLOP, least traffic %.6g MB by the problem\n%s", info->kernel, r.flops * 1e-9, r.bytes * 1e-6,
               counts);
    return ATTN_OK;
}

static void print_joined(const struct bench *b) {
    char text[160];
    attn_cli_joined_text(&b->joined, text, sizeof text);
    printf("    %s\n", text);
}

/* One plan's times: a single one, or one per kind of call. */
static attn_status take_times(const struct bench *b, attn_ctx *ctx, const struct attn_cli_tensors *set,
                              const attn_plan_options *options, const attn_plan *plan, const attn_plan_info *info,
                              struct attn_cli_timing t[ATTN_CLI_CALLS]) {
    attn_args args = set->args;
    int failed = 0;
    if (!on_host(b) && !b->overhead) return attn_cli_gpu_run(b->gpu, &b->meter, plan, t);
    attn_status status = ATTN_OK;
    if (on_host(b)) {
        args.workspace = attn_cli_workspace(info, &failed);
        args.workspace_bytes = info->workspace_bytes;
        if (failed) status = ATTN_E_MEMORY;
    } else {
        status = attn_cli_gpu_args(b->gpu, plan, &args);
    }
    if (!status)
        status = b->overhead ? attn_cli_overhead(ctx, b->common.device, b->gpu, &set->problem, options, plan, &args,
                                                 &b->meter, t)
                             : attn_cli_meter_run(&b->meter, plan, &args, t);
    if (on_host(b)) free(args.workspace);
    return status;
}

static int measure(struct bench *b, attn_ctx *ctx, const struct attn_cli_tensors *set, const char *text,
                   const char *kernel) {
    attn_plan_options options = attn_cli_plan_options(&b->common);
    if (kernel) {
        options.kernel = kernel;
        options.flags |= ATTN_PLAN_STRICT;
    }
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    struct attn_cli_timing t[ATTN_CLI_CALLS] = {0};
    attn_status status = attn_plan_create(ctx, b->common.device, &set->problem, &options, &plan);
    if (!status) status = attn_plan_get_info(plan, &info);
    if (status) {
        attn_plan_release(plan);
        return attn_cli_library("bench", status, "\"%s\"", text);
    }
    status = b->counter ? count(b, ctx, set, text, plan, &info) : take_times(b, ctx, set, &options, plan, &info, t);
    if (!status) status = attn_cli_joined_count(ctx, &set->problem, &set->args, &info, &b->joined);
    for (int i = 0; !status && i < (b->overhead ? ATTN_CLI_CALLS : 1); i++)
        if (t[i].n) print_timing(b, text, &info, b->overhead ? attn_cli_call_names[i] : "execution", &t[i]);
    if (!status && !b->json && b->joined.group) print_joined(b);
    attn_plan_release(plan);
    return status ? attn_cli_library("bench", status, "%s", info.kernel) : ATTN_CLI_OK;
}

/* Every matching kernel that accepts the problem; refusals are named so that an empty result explains itself. */
static int measure_matching(struct bench *b, attn_ctx *ctx, struct attn_cli_tensors *set, const char *text) {
    int found = 0, code = ATTN_CLI_OK;
    for (int32_t i = 0, n = attn_kernel_count(ctx); i < n; i++) {
        attn_kernel_info k = {.size = sizeof k};
        if (attn_kernel_get_info(ctx, i, &k) || k.op != set->problem.op || !attn_cli_match(b->common.kernel, k.name))
            continue;
        if (b->common.backend && k.backend != b->common.backend) continue;
        if (attn_kernel_supports(ctx, b->common.device, i, &set->problem)) {
            if (k.dtype == set->problem.dtype) attn_cli_warn("bench", "%s: %s", k.name, attn_cli_refusal(k.name));
            continue;
        }
        found = 1;
        int r = measure(b, ctx, set, text, k.name);
        if (r) code = r;
    }
    return found ? code : attn_cli_die("bench", "\"%s\": no kernel matching '%s' accepts it", text, b->common.kernel);
}

static void print_overlap(const struct bench *b) {
    const struct attn_cli_overlap_measured *m = &b->measured;
    if (!b->drawn.overlap.kind) return;
    printf("  overlap %s: J %.4f, unions of 2, 4, 8, 16 lists have %.1f, %.1f, %.1f, %.1f keys\n",
           b->drawn.overlap.text, m->j, m->union_length[0], m->union_length[1], m->union_length[2], m->union_length[3]);
}

static int bench_one(struct bench *b, attn_ctx *ctx, const char *word, const struct attn_cli_drawn *drawn) {
    attn_problem problem;
    int code = attn_cli_problem("bench", word, &problem);
    if (!code && b->outputs) code = attn_cli_outputs("bench", b->outputs, &problem);
    if (code) return code;
    char *text = attn_cli_problem_text(&problem); /* the library's own form, on which records are joined */
    struct attn_cli_tensors *set = calloc(1, sizeof *set);
    b->drawn = *drawn;
    attn_status status =
        text && set ? attn_cli_bench_inputs(ctx, b->common.device, &problem, b->outputs, &b->drawn, set, &b->measured)
                    : ATTN_E_MEMORY;
    if (!status) b->work = attn_cli_lengths_work(set);
    if (!status && b->gpu) status = attn_cli_gpu_load(b->gpu, set);
    if (status) {
        code = attn_cli_die("bench", "\"%s\": tensors: %s", word, attn_status_text(status));
    } else {
        if (!b->json) printf("%s%s%s\n", attn_cli_sgr(stdout, "1"), text, attn_cli_sgr(stdout, "0"));
        if (!b->json) print_overlap(b);
        code = b->common.kernel ? measure_matching(b, ctx, set, text) : measure(b, ctx, set, text, NULL);
    }
    if (set) attn_cli_tensors_destroy(set);
    free(set);
    free(text);
    return code;
}

/* Names the machine and fixes the number of threads, so that the note of a record is true whatever the defaults are. */
static int identify(struct bench *b, attn_ctx **ctx) {
    cpu_set_t set;
    int processors = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    int64_t asked = 0;
    int by_environment = 0; /* then the context reads the number, and refuses a bad one */
    for (int32_t i = 0, n = attn_env_count(); i < n; i++) {
        attn_env_info info = {.size = sizeof info};
        if (!attn_env_get_info(i, &info) && !strcmp(info.name, "ATTN_THREADS") && *info.value) {
            by_environment = 1;
            if (attn_cli_int(info.value, 1, INT32_MAX, &asked)) asked = 0;
        }
    }
    b->threads = b->common.threads ? b->common.threads : asked ? (int32_t)asked : processors;
    if (!by_environment) b->common.threads = b->threads;
    int code = attn_cli_ctx("bench", &b->common, ctx);
    if (code) return code;
    attn_device_info info = {.size = sizeof info};
    for (int32_t i = 0, n = attn_device_count(*ctx); i < n; i++)
        if (!attn_device_get_info(*ctx, i, &info) && info.device.type == b->common.device.type &&
            info.device.index == b->common.device.index)
            snprintf(b->device, sizeof b->device, "%s", info.name);
    if (!*b->device) return attn_cli_die("bench", "no such device");
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(b->date, sizeof b->date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (!b->run_id) {
        char stamp[32];
        strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%S", &tm);
        snprintf(b->default_id, sizeof b->default_id, "%s-%ld", stamp, (long)getpid());
        b->run_id = b->default_id;
    }
    return ATTN_CLI_OK;
}

static void print_heading(const struct bench *b) {
    static const char *const states[] = {"last-level cache flushed before each run", "inputs rotated past the cache",
                                         "caches warm"};
    if (b->counter) {
        printf("%s, counted, not timed\n", b->device);
        return;
    }
    const char *state = b->overhead ? "host time of calls" : states[b->meter.cache];
    if (on_host(b))
        printf("%s, %d thread%s, %s\n", b->device, b->threads, b->threads == 1 ? "" : "s", state);
    else
        printf("%s, %s\n", b->device, state);
    if (b->overhead)
        printf("  %-44s %11s %11s %11s %6s  %s\n", "kernel", "median us", "p10 us", "p90 us", "n", "call");
    else
        printf("  %-44s %11s %11s %11s %6s %10s %9s\n", "kernel", "median ms", "p10 ms", "p90 ms", "n", "GFLOP/s",
               "GB/s");
}

/* Where the tensors live, and what empties the caches there. */
static int prepare(struct bench *b, attn_ctx *ctx) {
    if (on_host(b)) {
        if (b->meter.cache == ATTN_CLI_FLUSH && !b->overhead && attn_cli_meter_cold(&b->meter))
            return attn_cli_die("bench", "out of memory");
        return ATTN_CLI_OK;
    }
    if (b->counter) return ATTN_CLI_OK;
    /* Calls are also timed with copies in turn. */
    b->gpu = attn_cli_gpu_open(ctx, b->common.device, b->overhead ? ATTN_CLI_ROTATE : b->meter.cache);
    if (!b->gpu) return ATTN_CLI_ERROR;
    int version = attn_cli_gpu_driver(b->gpu);
    if (version) snprintf(b->driver, sizeof b->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    return ATTN_CLI_OK;
}

static int measure_all(struct bench *b, const struct attn_cli_cases *cases) {
    attn_ctx *ctx = NULL;
    int code = identify(b, &ctx);
    if (!code) code = prepare(b, ctx);
    if (!code && !b->json) print_heading(b);
    for (size_t i = 0; i < cases->n && ctx && (!code || i > 0); i++) { /* a refused problem does not stop the others */
        int r = bench_one(b, ctx, cases->text[i], &cases->drawn[i]);
        if (r) code = r;
    }
    attn_cli_gpu_close(b->gpu);
    free(b->meter.flush);
    attn_ctx_release(ctx);
    return code;
}

static int cache_named(const char *name, int *out) {
    static const char *const names[] = {"flush", "rotate", "warm"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(names[i], name)) return *out = i, 0;
    return -1;
}

int attn_cli_bench(int argc, char **argv) {
    enum {
        OPT_RUNS = ATTN_CLI_OPT_PRIVATE,
        OPT_MIN,
        OPT_MAX,
        OPT_CACHE,
        OPT_WARM,
        OPT_ID,
        OPT_OVERHEAD,
        OPT_OUTPUTS,
        OPT_OVERLAP,
        OPT_LENGTHS,
        OPT_DRIVER
    };
    static const struct option table[] = {ATTN_CLI_COMMON_OPTIONS,
                                          {"runs", required_argument, NULL, OPT_RUNS},
                                          {"min-time", required_argument, NULL, OPT_MIN},
                                          {"max-time", required_argument, NULL, OPT_MAX},
                                          {"cache", required_argument, NULL, OPT_CACHE},
                                          {"warm", no_argument, NULL, OPT_WARM},
                                          {"overhead", no_argument, NULL, OPT_OVERHEAD},
                                          {"outputs", required_argument, NULL, OPT_OUTPUTS},
                                          {"overlap", required_argument, NULL, OPT_OVERLAP},
                                          {"lengths", required_argument, NULL, OPT_LENGTHS},
                                          {"driver", required_argument, NULL, OPT_DRIVER},
                                          {"run-id", required_argument, NULL, OPT_ID},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct bench b = {.meter = {.min_runs = 30, .min_seconds = 0.2, .cache = -1}};
    for (int c; (c = getopt_long(argc, argv, ":hj", table, NULL)) != -1;) {
        int taken = attn_cli_common_option("bench", c, optarg, &b.common);
        if (taken < 0) return ATTN_CLI_USAGE;
        if (taken) continue;
        switch (c) {
        case OPT_RUNS:
            if (attn_cli_int(optarg, 1, 100000, &b.meter.min_runs))
                return attn_cli_usage("bench", "--runs: expected 1 to 100000, given '%s'", optarg);
            break;
        case OPT_MIN:
        case OPT_MAX:
            if (attn_cli_double(optarg, 0, 1e6, c == OPT_MIN ? &b.meter.min_seconds : &b.meter.max_seconds))
                return attn_cli_usage("bench", "--%s-time: expected seconds, given '%s'", c == OPT_MIN ? "min" : "max",
                                      optarg);
            break;
        case OPT_CACHE:
            if (cache_named(optarg, &b.meter.cache))
                return attn_cli_usage("bench", "--cache: expected flush, rotate or warm, given '%s'", optarg);
            break;
        case OPT_WARM: b.meter.cache = ATTN_CLI_WARM; break;
        case OPT_OVERHEAD: b.overhead = 1; break;
        case OPT_DRIVER:
            if (attn_cli_driver(optarg)) return attn_cli_usage("bench", "--driver: '%s' cannot be chosen", optarg);
            b.common.device = ATTN_DEVICE_CUDA(0);
            break;
        case OPT_ID: b.run_id = optarg; break;
        case OPT_OUTPUTS: b.outputs = optarg; break;
        case OPT_OVERLAP:
            if (attn_cli_overlap_parse(optarg, &b.drawn.overlap))
                return attn_cli_usage("bench", "--overlap: expected 0 to 1, random or prefix, given '%s'", optarg);
            break;
        case OPT_LENGTHS:
            if (attn_cli_int(optarg, 0, INT32_MAX, &b.drawn.least_length))
                return attn_cli_usage("bench", "--lengths: expected the least length, given '%s'", optarg);
            break;
        case 'j': b.json = 1; break;
        case 'h': print_help(); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("bench", c, argv);
        }
    }
    if (optind >= argc) return attn_cli_usage("bench", "a problem or @FILE is missing");
    if (b.outputs && attn_cli_outputs("bench", b.outputs, NULL)) return ATTN_CLI_USAGE;
    if (b.overhead && b.meter.cache >= 0) return attn_cli_usage("bench", "--overhead measures with everything warm");
    if (b.overhead) b.meter.cache = ATTN_CLI_WARM;
    if (b.meter.cache < 0) b.meter.cache = on_host(&b) ? ATTN_CLI_FLUSH : ATTN_CLI_ROTATE;
    if (on_host(&b) && b.meter.cache == ATTN_CLI_ROTATE)
        return attn_cli_usage("bench", "--cache rotate is for GPUs; on a CPU it is flush or warm");
    if (!on_host(&b)) b.counter = attn_cli_counter_open();
    if (b.counter && b.overhead) {
        attn_cli_counter_close(b.counter);
        return attn_cli_usage("bench", "--overhead takes times; the simulator counts");
    }
    struct attn_cli_cases cases = {0};
    int code = ATTN_CLI_OK;
    for (int i = optind; i < argc && !code; i++) code = attn_cli_cases_add(&cases, argv[i], &b.drawn);
    if (!code && !cases.n) code = attn_cli_die("bench", "the files hold no problem");
    if (!code) code = measure_all(&b, &cases);
    attn_cli_counter_close(b.counter);
    attn_cli_cases_free(&cases);
    return code;
}
