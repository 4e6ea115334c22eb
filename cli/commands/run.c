/* SPDX-License-Identifier: MIT
 * `attn run`: one problem, once, on arrays from files or on random data. Options and order of work only; shapes,
 * tensors and report are in run_*.c. */
#include "commands/run.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPT_IN = ATTN_CLI_OPT_PRIVATE,
    OPT_OUT,
    OPT_OUT_DIR,
    OPT_OUTPUTS,
    OPT_BSHD,
    OPT_SEED,
    OPT_JSON,
    OPT_ROLE = ATTN_CLI_OPT_PRIVATE + 0x100
};

static void print_help(void) {
    printf("Usage: attn run [OPTIONS] PROBLEM\n\n"
           "Compute one problem. PROBLEM is an operator (sdpa_fwd, sdpa_bwd, mla_fwd, mla_bwd, dist) and words, e.g.\n"
           "\"sdpa_fwd causal\"; extents and dtype that it leaves out are read off the given tensors. Without any\n"
           "tensor all inputs are random.\n\n"
           "Input:\n"
           "      --in FILE         safetensors file with tensors named by role (q, k, v, mask, ...); - is stdin\n"
           "      --q FILE.npy      one tensor; likewise --k --v --kv --mask --alibi --sink --seqlens-q --seqlens-k\n"
           "                        --cu-seqlens-q --cu-seqlens-k --block-table --indices --topk-length --lse --dout\n"
           "                        --dlse --dkv (to accumulate to), --joined (made of the lists if it is not given),\n"
           "                        and --fwd-out for the out that a backward reads\n"
           "      --bshd            q, k, v, out and their gradients are [batch, seq, heads, dim]\n"
           "      --seed N          fill inputs that are not given with random numbers of this seed\n\n"
           "Output:\n"
           "      --out FILE        write the outputs as safetensors; - is stdout\n"
           "      --out-dir DIR     write each output as DIR/NAME.npy\n"
           "      --outputs LIST    only these, e.g. out,lse (default: all but lse_rounded)\n"
           "  -j, --json            one JSON record on stdout\n"
           "  -h, --help            this text\n\n"
           "Common:\n" ATTN_CLI_COMMON_HELP "\n"
           "A backward without out and lse runs the forward first. Floating inputs are converted to the dtype of the\n"
           "problem, 64-bit integers to 32 bits.\n");
}

/* Long options of the input roles, spelled with hyphens; the role `out` is --fwd-out, since --out names the output
 * file. */
static struct option *make_options(char names[ATTN_ROLE_COUNT][24]) {
    static const struct option fixed[] = {ATTN_CLI_COMMON_OPTIONS,
                                          {"in", required_argument, NULL, OPT_IN},
                                          {"out", required_argument, NULL, OPT_OUT},
                                          {"out-dir", required_argument, NULL, OPT_OUT_DIR},
                                          {"outputs", required_argument, NULL, OPT_OUTPUTS},
                                          {"bshd", no_argument, NULL, OPT_BSHD},
                                          {"seed", required_argument, NULL, OPT_SEED},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'}};
    static const int32_t roles[] = {ATTN_ROLE_Q,
                                    ATTN_ROLE_K,
                                    ATTN_ROLE_V,
                                    ATTN_ROLE_KV,
                                    ATTN_ROLE_MASK,
                                    ATTN_ROLE_ALIBI,
                                    ATTN_ROLE_SINK,
                                    ATTN_ROLE_SEQLENS_Q,
                                    ATTN_ROLE_SEQLENS_K,
                                    ATTN_ROLE_CU_SEQLENS_Q,
                                    ATTN_ROLE_CU_SEQLENS_K,
                                    ATTN_ROLE_BLOCK_TABLE,
                                    ATTN_ROLE_INDICES,
                                    ATTN_ROLE_TOPK_LENGTH,
                                    ATTN_ROLE_LSE,
                                    ATTN_ROLE_DOUT,
                                    ATTN_ROLE_DLSE,
                                    ATTN_ROLE_DKV,
                                    ATTN_ROLE_JOINED,
                                    ATTN_ROLE_OUT};
    size_t n_fixed = sizeof fixed / sizeof *fixed, n_roles = sizeof roles / sizeof *roles;
    struct option *options = calloc(n_fixed + n_roles + 1, sizeof *options);
    if (!options) return NULL;
    memcpy(options, fixed, sizeof fixed);
    for (size_t i = 0; i < n_roles; i++) {
        char *name = names[roles[i]];
        snprintf(name, 24, "%s", roles[i] == ATTN_ROLE_OUT ? "fwd-out" : attn_role_name(roles[i]));
        for (char *p = name; *p; p++)
            if (*p == '_') *p = '-';
        options[n_fixed + i] = (struct option){name, required_argument, NULL, OPT_ROLE + roles[i]};
    }
    return options;
}

static int parse_options(int argc, char **argv, struct attn_cli_run *run, int *done) {
    char names[ATTN_ROLE_COUNT][24];
    struct option *options = make_options(names);
    if (!options) return attn_cli_die("run", "out of memory");
    int code = ATTN_CLI_OK;
    for (int c; code == ATTN_CLI_OK && !*done && (c = getopt_long(argc, argv, ":hj", options, NULL)) != -1;) {
        int taken = attn_cli_common_option("run", c, optarg, &run->common);
        if (taken < 0) code = ATTN_CLI_USAGE;
        if (taken) continue;
        switch (c) {
        case OPT_IN: run->in = optarg; break;
        case OPT_OUT: run->out = optarg; break;
        case OPT_OUT_DIR: run->out_dir = optarg; break;
        case OPT_OUTPUTS: run->outputs = optarg; break;
        case OPT_BSHD: run->bshd = 1; break;
        case OPT_SEED:
            run->have_seed = 1;
            if (attn_cli_int(optarg, 0, INT64_MAX, &run->seed))
                code = attn_cli_usage("run", "--seed: expected a number, given '%s'", optarg);
            break;
        case 'j': run->json = 1; break;
        case 'h':
            print_help();
            *done = 1;
            break;
        default:
            if (c >= OPT_ROLE && c < OPT_ROLE + ATTN_ROLE_COUNT)
                run->files[c - OPT_ROLE] = optarg;
            else
                code = attn_cli_bad_option("run", c, argv);
        }
    }
    free(options);
    if (code || *done) return code;
    if (optind >= argc) return attn_cli_usage("run", "a problem is missing, e.g. \"sdpa_fwd causal\"");
    if (optind + 1 < argc)
        return attn_cli_usage("run", "unexpected argument '%s' (put the problem in quotes)", argv[optind + 1]);
    if (run->json && run->out && !strcmp(run->out, "-"))
        return attn_cli_usage("run", "--json and --out - both write standard output");
    return run->outputs ? attn_cli_outputs("run", run->outputs, NULL) : ATTN_CLI_OK;
}

static int compute(struct attn_cli_run *run, attn_ctx *ctx, const attn_problem *problem) {
    attn_plan_options options = attn_cli_plan_options(&run->common);
    attn_plan *plan = NULL;
    run->info.size = sizeof run->info;
    attn_status status = attn_plan_create(ctx, run->common.device, problem, &options, &plan);
    if (!status) status = attn_plan_get_info(plan, &run->info);
    if (status) {
        attn_plan_release(plan);
        return attn_cli_library("run", status, "no plan");
    }
    int code = ATTN_CLI_OK;
    status = attn_cli_execute(ctx, plan, &run->set.args, &run->seconds);
    if (!status) status = attn_cli_joined_count(ctx, problem, &run->set.args, &run->info, &run->joined);
    if (status) code = attn_cli_library("run", status, "%s", run->info.kernel);
    attn_plan_release(plan);
    return code;
}

int attn_cli_run(int argc, char **argv) {
    struct attn_cli_run *run = calloc(1, sizeof *run); /* its tensors are pointed at and must not move */
    if (!run) return attn_cli_die("run", "out of memory");
    run->command = "run";
    attn_problem problem;
    attn_ctx *ctx = NULL;
    int done = 0, code = parse_options(argc, argv, run, &done);
    if (!code && !done) {
        code = attn_cli_run_read(run);
        if (!code) code = attn_cli_run_complete(run, argv[optind], &problem);
        if (!code && run->outputs) code = attn_cli_outputs("run", run->outputs, &problem);
        if (!code) code = attn_cli_ctx("run", &run->common, &ctx);
        if (!code) code = attn_cli_run_bind(run, ctx, &problem);
        if (!code) code = compute(run, ctx, &problem);
        if (!code) code = attn_cli_run_write(run);
        if (!code) code = attn_cli_run_report(run);
    }
    attn_ctx_release(ctx);
    attn_cli_run_free(run);
    free(run);
    return code;
}
