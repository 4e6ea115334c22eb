/* SPDX-License-Identifier: MIT
 * `attn bench`: measures problems and prints a table or JSON Lines records (docs/json.md). Measuring is in
 * bench_meter.c, lists of problems in bench_cases.c. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#endif
#include "bench.h"

#include <jansson.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bench {
    struct attn_cli_common common;
    struct attn_cli_meter meter;
    int json, warm;
    int32_t threads;
    const char *run_id;
    char date[32], default_id[64], device[96];
};

static void print_help(void) {
    printf("Usage: attn bench [OPTIONS] PROBLEM|@FILE...\n\n"
           "Measure problems. @FILE holds one problem a line; @NAME is bench/cases/NAME.txt or an installed list\n"
           "(dense, dsa, decode, small, cpu).\n\n"
           "      --runs N          at least N runs after warm-up (default 30)\n"
           "      --min-time S      and at least S seconds of timed work (default 0.2)\n"
           "      --max-time S      but stop after S seconds, also before N runs\n"
           "      --warm            leave the caches as the last run left them (default: flushed before each run)\n"
           "      --run-id ID       id of this invocation in the records, to join them with a peer's\n"
           "  -j, --json            JSON Lines on stdout, one record per problem and kernel\n"
           "  -h, --help            this text\n\n"
           "Common:\n" ATTN_CLI_COMMON_HELP "\n"
           "With --kernel every matching kernel that accepts a problem is measured, not only the chosen one.\n"
           "Inputs are random; sequence lengths are at their bounds, so that the work equals the counted work.\n");
}

static void print_record(const struct bench *b, const char *problem, const attn_plan_info *info,
                         const struct attn_cli_timing *t, double flops, double bytes, const char *note) {
    json_t *root = json_pack(
        "{s:s, s:s, s:s?, s:s, s:n, s:s, s:s, s:s, s:f, s:f, s:f, s:I, s:f, s:f, s:n, s:s}", "run", b->run_id, "date",
        b->date, "commit", *attn_cli_commit() ? attn_cli_commit() : NULL, "device", b->device, "driver", "problem",
        problem, "impl", info->backend == ATTN_BACKEND_REF ? "ref" : "attn", "kernel", info->kernel, "median_us",
        t->median * 1e6, "p10_us", t->p10 * 1e6, "p90_us", t->p90 * 1e6, "n", (json_int_t)t->n, "tflops",
        flops / t->median / 1e12, "gbps", bytes / t->median / 1e9, "limit_share", "note", note);
    if (root) json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
    json_decref(root);
    putchar('\n');
    fflush(stdout); /* a long list can be followed, and survives an interruption */
}

static void print_row(const attn_plan_info *info, const struct attn_cli_timing *t, double flops, double bytes) {
    printf("  %-44s %11.4f %11.4f %11.4f %6lld %10.2f %9.2f\n", info->kernel, t->median * 1e3, t->p10 * 1e3,
           t->p90 * 1e3, (long long)t->n, flops / t->median / 1e9, bytes / t->median / 1e9);
    fflush(stdout);
}

static int measure(const struct bench *b, attn_ctx *ctx, struct attn_cli_tensors *set, const char *text,
                   const char *kernel) {
    attn_plan_options options = attn_cli_plan_options(&b->common);
    if (kernel) {
        options.kernel = kernel;
        options.flags |= ATTN_PLAN_STRICT;
    }
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    attn_status status = attn_plan_create(ctx, b->common.device, &set->problem, &options, &plan);
    if (!status) status = attn_plan_get_info(plan, &info);
    if (status) {
        attn_plan_release(plan);
        return attn_cli_library("bench", status, "\"%s\"", text);
    }
    int failed = 0, code = ATTN_CLI_OK, on_host = b->common.device.type == ATTN_DEVICE_TYPE_CPU;
    struct attn_cli_timing timing;
    if (on_host) {
        set->args.workspace = attn_cli_workspace(&info, &failed);
        set->args.workspace_bytes = info.workspace_bytes;
        status = failed ? ATTN_E_MEMORY : attn_cli_meter_run(&b->meter, plan, &set->args, &timing);
    } else {
        status = attn_cli_meter_run_device(&b->meter, ctx, b->common.device, plan, &info, set, b->warm, &timing);
    }
    if (status) {
        code = attn_cli_library("bench", status, "%s", info.kernel);
    } else {
        double flops = attn_problem_flops(&set->problem), bytes = attn_problem_bytes(&set->problem);
        char note[160];
        char how[96];
        if (on_host)
            snprintf(how, sizeof how, "%s, %d thread%s", b->warm ? "caches warm" : "last-level cache flushed",
                     b->threads, b->threads == 1 ? "" : "s");
        else
            snprintf(how, sizeof how, "%s, host clock over batches of runs",
                     b->warm ? "caches warm" : "inputs rotated past the cache");
        snprintf(note, sizeof note, "%s%s", how,
                 set->problem.flags & ATTN_PACKED ? ", flops and bytes counted by the bounds of the sequences" : "");
        if (b->json)
            print_record(b, text, &info, &timing, flops, bytes, note);
        else
            print_row(&info, &timing, flops, bytes);
    }
    free(set->args.workspace);
    set->args.workspace = NULL;
    attn_plan_release(plan);
    return code;
}

/* Every matching kernel that accepts the problem; refusals are named so that an empty result explains itself. */
static int measure_matching(const struct bench *b, attn_ctx *ctx, struct attn_cli_tensors *set, const char *text) {
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

static int bench_one(const struct bench *b, attn_ctx *ctx, const char *word) {
    attn_problem problem;
    int code = attn_cli_problem("bench", word, &problem);
    if (code) return code;
    char *text = attn_cli_problem_text(&problem); /* the library's own form, on which records are joined */
    struct attn_cli_tensors *set = calloc(1, sizeof *set);
    attn_status status =
        text && set ? attn_cli_tensors_create_except(
                          set, &problem, UINT64_C(1) << ATTN_ROLE_LSE_ROUNDED | UINT64_C(1) << ATTN_ROLE_MAX_LOGITS)
                    : ATTN_E_MEMORY;
    if (!status) status = attn_cli_tensors_fill(set, 0);
    if (!status) attn_cli_tensors_full_lengths(set);
    if (!status) status = attn_cli_tensors_forward(ctx, set);
    if (status) {
        code = attn_cli_die("bench", "\"%s\": tensors: %s", word, attn_status_text(status));
    } else {
        if (!b->json) printf("%s%s%s\n", attn_cli_sgr(stdout, "1"), text, attn_cli_sgr(stdout, "0"));
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
    for (int32_t i = 0, n = attn_env_count(); i < n; i++) {
        attn_env_info info = {.size = sizeof info};
        if (!attn_env_get_info(i, &info) && !strcmp(info.name, "ATTN_THREADS") &&
            attn_cli_int(info.value, 1, 4096, &asked))
            asked = 0;
    }
    b->threads = b->common.threads ? b->common.threads : asked ? (int32_t)asked : processors;
    b->common.threads = b->threads;
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

static int measure_all(struct bench *b, const struct attn_cli_cases *cases) {
    attn_ctx *ctx = NULL;
    int code = identify(b, &ctx);
    if (!code && !b->warm && b->common.device.type == ATTN_DEVICE_TYPE_CPU && attn_cli_meter_cold(&b->meter))
        code = attn_cli_die("bench", "out of memory");
    if (!code && !b->json) {
        if (b->common.device.type == ATTN_DEVICE_TYPE_CPU)
            printf("%s, %d thread%s, %s\n", b->device, b->threads, b->threads == 1 ? "" : "s",
                   b->warm ? "caches warm" : "last-level cache flushed before each run");
        else
            printf("%s, %s\n", b->device, b->warm ? "caches warm" : "inputs rotated past the cache");
        printf("  %-44s %11s %11s %11s %6s %10s %9s\n", "kernel", "median ms", "p10 ms", "p90 ms", "n", "GFLOP/s",
               "GB/s");
    }
    for (size_t i = 0; i < cases->n && ctx && (!code || i > 0); i++) { /* a refused problem does not stop the others */
        int r = bench_one(b, ctx, cases->text[i]);
        if (r) code = r;
    }
    free(b->meter.flush);
    attn_ctx_release(ctx);
    return code;
}

int attn_cli_bench(int argc, char **argv) {
    enum { OPT_RUNS = ATTN_CLI_OPT_PRIVATE, OPT_MIN, OPT_MAX, OPT_WARM, OPT_ID };
    static const struct option table[] = {ATTN_CLI_COMMON_OPTIONS,
                                          {"runs", required_argument, NULL, OPT_RUNS},
                                          {"min-time", required_argument, NULL, OPT_MIN},
                                          {"max-time", required_argument, NULL, OPT_MAX},
                                          {"warm", no_argument, NULL, OPT_WARM},
                                          {"run-id", required_argument, NULL, OPT_ID},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct bench b = {.meter = {.min_runs = 30, .min_seconds = 0.2}};
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
        case OPT_WARM: b.warm = 1; break;
        case OPT_ID: b.run_id = optarg; break;
        case 'j': b.json = 1; break;
        case 'h': print_help(); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("bench", c, argv);
        }
    }
    if (optind >= argc) return attn_cli_usage("bench", "a problem or @FILE is missing");
    struct attn_cli_cases cases = {0};
    int code = ATTN_CLI_OK;
    for (int i = optind; i < argc && !code; i++) code = attn_cli_cases_add(&cases, argv[i]);
    if (!code && !cases.n) code = attn_cli_die("bench", "the files hold no problem");
    if (!code) code = measure_all(&b, &cases);
    attn_cli_cases_free(&cases);
    return code;
}
