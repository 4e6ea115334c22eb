/* SPDX-License-Identifier: MIT
 * `attn plan`: the kernel a problem gets, its workspace and costs, and with --explain the reasons. Runs nothing. */
#include "shared/cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void print_help(void) {
    printf("Usage: attn plan [OPTIONS] PROBLEM\n\n"
           "Show which kernel PROBLEM gets, e.g. attn plan \"sdpa_fwd b=2 hq=16 sq=1024 d=128 bf16 causal\".\n\n"
           "  -e, --explain         every kernel of the operator: accepted, or the reason of its refusal\n"
           "      --measure         choose by measuring the kernels that accept the problem\n"
           "      --save-tuning FILE  with --measure: write the winner (and what ATTN_TUNING held) to FILE\n"
           "      --workspace N     refuse kernels that need more than N bytes of workspace\n"
           "  -j, --json            one JSON record on stdout\n"
           "  -h, --help            this text\n\n"
           "Common:\n" ATTN_CLI_COMMON_HELP);
}

/* The explanation in malloc'ed memory; NULL if it could not be had. */
static char *explain(attn_ctx *ctx, attn_device device, const attn_problem *problem, const attn_plan_options *options) {
    size_t needed = 0;
    attn_explain(ctx, device, problem, options, NULL, 0, &needed);
    char *text = needed ? malloc(needed) : NULL;
    if (text && attn_explain(ctx, device, problem, options, text, needed, NULL)) {
        free(text);
        return NULL;
    }
    return text;
}

static int print_json(const attn_plan_info *info, const char *text, const char *reasons, double bytes) {
    char device[32];
    attn_cli_device_text(info->device, device, sizeof device);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s?, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:I, s:I, s:b, s:I, s:I, s:I, s:f, s:f, s:f}",
        "problem", text, "device", device, "kernel", info->kernel, "kernel_unaligned",
        *info->kernel_unaligned ? info->kernel_unaligned : NULL, "backend", attn_cli_backend_name(info->backend),
        "arch", info->arch, "dtype", attn_dtype_name(info->dtype), "math_dtype", attn_dtype_name(info->math_dtype),
        "accumulator_dtype", attn_dtype_name(info->accumulator_dtype), "deterministic", info->deterministic,
        "bit_stable", info->bit_stable, "joins", info->joins, "group", (json_int_t)info->group, "union_limit",
        (json_int_t)info->union_limit, "tuned", info->tuned, "alignment_bytes", (json_int_t)info->alignment_bytes,
        "workspace_bytes", (json_int_t)info->workspace_bytes, "workspace_alignment",
        (json_int_t)info->workspace_alignment, "flops", info->flops, "bytes", bytes, "estimate_seconds",
        info->estimate_seconds);
    if (root && reasons) json_object_set_new(root, "explain", json_string(reasons));
    int failed = !root || json_dumpf(root, stdout, JSON_COMPACT);
    json_decref(root);
    if (failed) return attn_cli_die("plan", "the JSON record could not be written");
    putchar('\n');
    return ATTN_CLI_OK;
}

static void print_text(const attn_plan_info *info, const char *text, double bytes, int measure) {
    char device[32];
    attn_cli_device_text(info->device, device, sizeof device);
    printf("problem      %s\n", text);
    printf("kernel       %s%s%s\n", attn_cli_sgr(stdout, "1"), info->kernel, attn_cli_sgr(stdout, "0"));
    if (*info->kernel_unaligned) printf("unaligned    %s\n", info->kernel_unaligned);
    printf("device       %s, backend %s, arch %s\n", device, attn_cli_backend_name(info->backend), info->arch);
    printf("types        %s, products in %s, sums in %s\n", attn_dtype_name(info->dtype),
           attn_dtype_name(info->math_dtype), attn_dtype_name(info->accumulator_dtype));
    printf("repeatable   %s%s\n", info->deterministic ? "bit-equal from run to run" : "not bit-equal from run to run",
           info->bit_stable ? ", for any number of threads" : "");
    if (info->joins) {
        printf("joined       index lists of %lld neighbouring queries: a row's last bits depend on its neighbours\n",
               (long long)info->group);
        if (info->union_limit)
            printf("apart        groups of unions above %lld entries\n", (long long)info->union_limit);
    }
    printf("workspace    %llu bytes, aligned to %llu\n", (unsigned long long)info->workspace_bytes,
           (unsigned long long)info->workspace_alignment);
    printf("alignment    %u bytes\n", info->alignment_bytes);
    printf("work         %.4g flop, %.4g bytes\n", info->flops, bytes);
    if (info->tuned)
        printf("chosen by    measurement, %.4g s measured\n", info->estimate_seconds);
    else
        printf("chosen by    estimate, %.4g s expected%s\n", info->estimate_seconds,
               measure ? " (not measured: no other kernel could be chosen)" : "");
}

static int show(attn_ctx *ctx, const struct attn_cli_common *common, const attn_problem *problem,
                const attn_plan_options *options, int explained, int json) {
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    attn_status status = attn_plan_create(ctx, common->device, problem, options, &plan);
    if (!status) status = attn_plan_get_info(plan, &info);
    attn_plan_release(plan);
    int code = status ? attn_cli_library("plan", status, "no plan") : ATTN_CLI_OK;
    char *reasons = explained ? explain(ctx, common->device, problem, options) : NULL;
    char *text = attn_cli_problem_text(problem);
    if (!text || (explained && !reasons))
        code = attn_cli_die("plan", "out of memory");
    else if (!code && json)
        code = print_json(&info, text, reasons, attn_problem_bytes(problem));
    else if (!code)
        print_text(&info, text, attn_problem_bytes(problem), options->effort == ATTN_EFFORT_MEASURE);
    if (reasons && !json)
        printf("%s%s%s", code ? "" : "\n", reasons, reasons[0] && reasons[strlen(reasons) - 1] != '\n' ? "\n" : "");
    free(reasons);
    free(text);
    return code;
}

int attn_cli_plan(int argc, char **argv) {
    enum { OPT_MEASURE = ATTN_CLI_OPT_PRIVATE, OPT_WORKSPACE, OPT_SAVE };
    static const struct option table[] = {ATTN_CLI_COMMON_OPTIONS,
                                          {"explain", no_argument, NULL, 'e'},
                                          {"measure", no_argument, NULL, OPT_MEASURE},
                                          {"save-tuning", required_argument, NULL, OPT_SAVE},
                                          {"workspace", required_argument, NULL, OPT_WORKSPACE},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct attn_cli_common common = {0};
    int explained = 0, json = 0, measure = 0;
    int64_t limit = -1;
    const char *save = NULL;
    for (int c; (c = getopt_long(argc, argv, ":hje", table, NULL)) != -1;) {
        int taken = attn_cli_common_option("plan", c, optarg, &common);
        if (taken < 0) return ATTN_CLI_USAGE;
        if (taken) continue;
        switch (c) {
        case 'e': explained = 1; break;
        case 'j': json = 1; break;
        case OPT_MEASURE: measure = 1; break;
        case OPT_SAVE: save = optarg; break;
        case OPT_WORKSPACE:
            if (attn_cli_int(optarg, 0, INT64_MAX, &limit))
                return attn_cli_usage("plan", "--workspace: expected a number of bytes, given '%s'", optarg);
            break;
        case 'h': print_help(); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("plan", c, argv);
        }
    }
    if (optind >= argc) return attn_cli_usage("plan", "a problem is missing");
    if (optind + 1 < argc)
        return attn_cli_usage("plan", "unexpected argument '%s' (put the problem in quotes)", argv[optind + 1]);
    if (save && !measure) return attn_cli_usage("plan", "--save-tuning needs --measure");
    attn_problem problem;
    attn_ctx *ctx = NULL;
    int code = attn_cli_problem("plan", argv[optind], &problem);
    if (!code) code = attn_cli_ctx("plan", &common, &ctx);
    if (code) return code;
    attn_plan_options options = attn_cli_plan_options(&common);
    if (measure) options.effort = ATTN_EFFORT_MEASURE;
    if (limit >= 0) {
        options.flags |= ATTN_PLAN_WORKSPACE_LIMIT;
        options.max_workspace_bytes = (uint64_t)limit;
    }
    code = show(ctx, &common, &problem, &options, explained, json);
    if (!code && save) {
        attn_status status = attn_tuning_save(ctx, save);
        if (status) code = attn_cli_library("plan", status, "--save-tuning");
    }
    attn_ctx_release(ctx);
    return code;
}
