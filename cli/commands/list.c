/* SPDX-License-Identifier: MIT
 * `attn list`: kernels, devices and operators of this build, as tables, Markdown or JSON. */
#include "shared/cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct listing {
    struct attn_cli_common common;
    const char *problem_text;
    attn_problem problem;
    int json;
};

static void print_help(void) {
    printf("Usage: attn list [OPTIONS]\n\n"
           "Kernels of this build in the order in which plans consider them.\n\n"
           "      --problem TEXT    which of them accept this problem, and why the others do not\n"
           "      --devices         devices instead\n"
           "      --ops             operators instead\n"
           "      --markdown        table of operators and backends for a README\n"
           "  -j, --json            JSON array on stdout\n"
           "  -h, --help            this text\n"
           "      --kernel PATTERN  only these kernels, * and ? allowed\n"
           "      --backend NAME    only kernels of ref, cpu or cuda\n"
           "      --cpu-isa NAME    cap on CPU features: c, avx2, avx512, avx512bf16, amx\n"
           "      --device DEV      device that --problem asks about: cpu (default), cuda:0, ...\n");
}

static int chosen(const struct listing *l, const attn_kernel_info *k) {
    return (!l->common.kernel || attn_cli_match(l->common.kernel, k->name)) &&
           (!l->common.backend || l->common.backend == k->backend) && (!l->problem_text || l->problem.op == k->op);
}

static int dump(json_t *root) {
    int failed = !root || json_dumpf(root, stdout, JSON_INDENT(2));
    json_decref(root);
    if (failed) return attn_cli_die("list", "the JSON text could not be written");
    putchar('\n');
    return ATTN_CLI_OK;
}

static int list_kernels(attn_ctx *ctx, const struct listing *l) {
    json_t *root = l->json ? json_array() : NULL;
    int32_t n = attn_kernel_count(ctx);
    size_t width = 6;
    for (int32_t i = 0; i < n; i++) {
        attn_kernel_info k = {.size = sizeof k};
        if (!attn_kernel_get_info(ctx, i, &k) && chosen(l, &k) && strlen(k.name) > width) width = strlen(k.name);
    }
    if (!root)
        printf("%-*s %-7s %-6s %-5s %-5s %-3s %s\n", (int)width, "kernel", "backend", "arch", "math", "sums", "use",
               l->problem_text ? "answer" : "limits");
    for (int32_t i = 0; i < n; i++) {
        attn_kernel_info k = {.size = sizeof k};
        attn_status status = attn_kernel_get_info(ctx, i, &k);
        if (status) {
            json_decref(root);
            return attn_cli_library("list", status, "kernel %d", i);
        }
        if (!chosen(l, &k)) continue;
        const char *reason = NULL; /* NULL: accepted */
        if (l->problem_text && attn_kernel_supports(ctx, l->common.device, i, &l->problem))
            reason = attn_cli_refusal(k.name);
        if (!root) {
            printf("%s%-*s%s %-7s %-6s %-5s %-5s %-3s %s\n", reason ? attn_cli_sgr(stdout, "2") : "", (int)width,
                   k.name, reason ? attn_cli_sgr(stdout, "0") : "", attn_cli_backend_name(k.backend), k.arch,
                   attn_dtype_name(k.math_dtype), attn_dtype_name(k.accumulator_dtype), k.usable ? "yes" : "no",
                   !l->problem_text ? k.summary
                   : reason         ? reason
                                    : "accepted");
            continue;
        }
        json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:i, s:b, s:s}", "name", k.name, "op",
                                attn_cli_op_name(k.op), "backend", attn_cli_backend_name(k.backend), "arch", k.arch,
                                "dtype", attn_dtype_name(k.dtype), "math_dtype", attn_dtype_name(k.math_dtype),
                                "accumulator_dtype", attn_dtype_name(k.accumulator_dtype), "deterministic",
                                k.deterministic, "bit_stable", k.bit_stable, "alignment_bytes", (int)k.alignment_bytes,
                                "usable", k.usable, "summary", k.summary);
        if (l->problem_text) {
            json_object_set_new(row, "accepts", json_boolean(!reason));
            json_object_set_new(row, "reason", reason ? json_string(reason) : json_null());
        }
        json_array_append_new(root, row);
    }
    return root ? dump(root) : ATTN_CLI_OK;
}

static int list_devices(attn_ctx *ctx, const struct listing *l) {
    json_t *root = l->json ? json_array() : NULL;
    for (int32_t i = 0, n = attn_device_count(ctx); i < n; i++) {
        attn_device_info d = {.size = sizeof d};
        attn_status status = attn_device_get_info(ctx, i, &d);
        if (status) {
            json_decref(root);
            return attn_cli_library("list", status, "device %d", i);
        }
        char name[32];
        attn_cli_device_text(d.device, name, sizeof name);
        if (root) {
            json_array_append_new(
                root, json_pack("{s:s, s:s, s:i, s:o, s:s}", "device", name, "name", d.name, "arch", (int)d.arch,
                                "memory_bytes", d.memory_bytes ? json_integer((json_int_t)d.memory_bytes) : json_null(),
                                "features", d.features));
        } else {
            printf("%s%-8s%s %s", attn_cli_sgr(stdout, "1"), name, attn_cli_sgr(stdout, "0"), d.name);
            if (d.memory_bytes) printf(", %.1f GiB", (double)d.memory_bytes / (1 << 30));
            printf("\n         %s\n", d.features);
        }
    }
    if (root) return dump(root);
    if (attn_cuda_status(ctx)) printf("no CUDA device: %s\n", attn_last_error());
    return ATTN_CLI_OK;
}

static const struct {
    int32_t op;
    const char *text;
} operators[] = {
    {ATTN_OP_SDPA_FWD, "softmax(scale Q K^T + bias) V and lse"},
    {ATTN_OP_SDPA_BWD, "gradients of the above"},
    {ATTN_OP_MLA_FWD, "sparse multi-head latent attention over TOPK rows"},
    {ATTN_OP_MLA_BWD, "gradients of the above"},
    {ATTN_OP_DIST, "attention summed over heads, [SQ, TOPK]"},
    {ATTN_OP_MLA_JOIN, "index lists of neighbouring queries joined, for sparse attention on shared keys"},
};
enum { N_OPERATORS = sizeof operators / sizeof *operators };

static int list_ops(const struct listing *l) {
    json_t *root = l->json ? json_array() : NULL;
    for (int i = 0; i < N_OPERATORS; i++) {
        const char *name = attn_cli_op_name(operators[i].op);
        if (root)
            json_array_append_new(root, json_pack("{s:s, s:s}", "op", name, "summary", operators[i].text));
        else
            printf("%s%-9s%s %s\n", attn_cli_sgr(stdout, "1"), name, attn_cli_sgr(stdout, "0"), operators[i].text);
    }
    return root ? dump(root) : ATTN_CLI_OK;
}

static void add_word(char *cell, size_t bytes, const char *word) {
    size_t n = strlen(word);
    for (const char *p = cell; (p = strstr(p, word)) != NULL; p += n)
        if ((p == cell || p[-1] == ' ') && (p[n] == 0 || p[n] == ',')) return;
    snprintf(cell + strlen(cell), bytes - strlen(cell), "%s%s", *cell ? ", " : "", word);
}

/* One row per operator and dtype that some kernel has; a cell lists the architectures of a backend. */
static int list_markdown(attn_ctx *ctx) {
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_E4M3, ATTN_I32};
    printf("| operator | dtype | reference | CPU | CUDA |\n|---|---|---|---|---|\n");
    for (int i = 0; i < N_OPERATORS; i++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            char cells[ATTN_BACKEND_COUNT_][160] = {""};
            int any = 0;
            for (int32_t n = attn_kernel_count(ctx); n-- > 0;) { /* backwards: kernels stand fastest first */
                attn_kernel_info k = {.size = sizeof k};
                if (attn_kernel_get_info(ctx, n, &k) || k.op != operators[i].op || k.dtype != dtypes[t]) continue;
                if (k.backend <= ATTN_BACKEND_ANY || k.backend >= ATTN_BACKEND_COUNT_) continue;
                add_word(cells[k.backend], sizeof cells[0], k.backend == ATTN_BACKEND_REF ? "yes" : k.arch);
                any = 1;
            }
            if (!any) continue;
            printf("| `%s` | %s |", attn_cli_op_name(operators[i].op), attn_dtype_name(dtypes[t]));
            for (int b = ATTN_BACKEND_REF; b < ATTN_BACKEND_COUNT_; b++) printf(" %s |", *cells[b] ? cells[b] : "-");
            printf("\n");
        }
    return ATTN_CLI_OK;
}

int attn_cli_list(int argc, char **argv) {
    enum { OPT_PROBLEM = ATTN_CLI_OPT_PRIVATE, OPT_DEVICES, OPT_OPS, OPT_MARKDOWN };
    static const struct option table[] = {{"cpu-isa", required_argument, NULL, ATTN_CLI_OPT_ISA},
                                          {"device", required_argument, NULL, ATTN_CLI_OPT_DEVICE},
                                          {"kernel", required_argument, NULL, ATTN_CLI_OPT_KERNEL},
                                          {"backend", required_argument, NULL, ATTN_CLI_OPT_BACKEND},
                                          {"problem", required_argument, NULL, OPT_PROBLEM},
                                          {"devices", no_argument, NULL, OPT_DEVICES},
                                          {"ops", no_argument, NULL, OPT_OPS},
                                          {"markdown", no_argument, NULL, OPT_MARKDOWN},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct listing l = {0};
    int what = 0;
    for (int c; (c = getopt_long(argc, argv, ":hj", table, NULL)) != -1;) {
        int taken = attn_cli_common_option("list", c, optarg, &l.common);
        if (taken < 0) return ATTN_CLI_USAGE;
        if (taken) continue;
        switch (c) {
        case OPT_PROBLEM: l.problem_text = optarg; break;
        case OPT_DEVICES:
        case OPT_OPS:
        case OPT_MARKDOWN:
            if (what && what != c) return attn_cli_usage("list", "--devices, --ops and --markdown exclude each other");
            what = c;
            break;
        case 'j': l.json = 1; break;
        case 'h': print_help(); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("list", c, argv);
        }
    }
    if (optind < argc) return attn_cli_usage("list", "unexpected argument '%s'", argv[optind]);
    if (what && l.problem_text) return attn_cli_usage("list", "--problem goes with the list of kernels only");
    if (what == OPT_MARKDOWN && l.json) return attn_cli_usage("list", "--markdown and --json exclude each other");
    attn_ctx *ctx = NULL;
    int code = l.problem_text ? attn_cli_problem("list", l.problem_text, &l.problem) : ATTN_CLI_OK;
    if (!code) code = attn_cli_ctx("list", &l.common, &ctx);
    if (code) return code;
    code = what == OPT_DEVICES    ? list_devices(ctx, &l)
           : what == OPT_OPS      ? list_ops(&l)
           : what == OPT_MARKDOWN ? list_markdown(ctx)
                                  : list_kernels(ctx, &l);
    attn_ctx_release(ctx);
    return code;
}
