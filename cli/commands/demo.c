/* SPDX-License-Identifier: MIT
 * `attn demo`: attention on tensors of a real language model, compared with what the model computed; a picture of what
 * the model looks at; and a sparse MLA round (forward, backward, distribution) compared with the reference kernels. */
#include "commands/demo_model.h"
#include "commands/dense_dist.h"
#include "commands/heatmap.h"
#include "shared/cli.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char shipped[] = "examples/alice_minilm.safetensors";

static const char usage[] =
    "usage: attn demo [--data FILE] [--out DIR] [options]\n"
    "\n"
    "Runs attention on Q, K, V of every layer and head of a language model that read a text, compares the result with\n"
    "what the model itself computed, draws what the model looks at, and runs a sparse MLA round against the reference.\n"
    "\n"
    "      --data FILE       tensors (default: the shipped example)\n"
    "      --out DIR         where pictures go (default: attn-demo)\n"
    "      --layer N         layer to draw (default: the middle one)\n" ATTN_CLI_COMMON_HELP
    "  -h, --help            this text\n";

struct demo {
    attn_ctx *ctx;
    struct attn_cli_common common;
    struct attn_cli_demo_model model;
    int failures;
};

/* Largest ||got - want|| / ||want|| over the rows of width `width`; NaN counts as infinite. */
static double worst_row(const double *got, const double *want, int64_t rows, int64_t width, int64_t *worst_at) {
    double worst = 0;
    for (int64_t r = 0; r < rows; r++) {
        double err = 0, norm = 0;
        for (int64_t d = 0; d < width; d++) {
            double e = got[r * width + d] - want[r * width + d];
            err += e * e;
            norm += want[r * width + d] * want[r * width + d];
        }
        double ratio = err == 0 ? 0 : sqrt(err / norm);
        if (isnan(ratio)) ratio = INFINITY;
        if (ratio > worst) {
            worst = ratio;
            if (worst_at) *worst_at = r;
        }
    }
    return worst;
}

/* Largest |got - want| - slack |want|, at least 0; equal infinities do not differ, NaN counts as infinite. */
static double worst_element(const double *got, const double *want, int64_t n, double slack) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = got[i] == want[i] ? 0 : fabs(got[i] - want[i]) - slack * fabs(want[i]);
        if (isnan(error)) error = INFINITY;
        if (error > worst) worst = error;
    }
    return worst;
}

static void verdict(struct demo *d, int ok) {
    d->failures += !ok;
    printf("  %s%s%s\n", attn_cli_sgr(stdout, ok ? "32" : "31"), ok ? "ok" : "FAILED", attn_cli_sgr(stdout, "0"));
}

/* Plan, run with its workspace, and the median seconds of `repeats` runs. */
static attn_status run_timed(struct demo *d, const attn_problem *p, const attn_plan_options *options, attn_args *args,
                             int repeats, attn_plan_info *info, double *seconds) {
    attn_plan *plan = NULL;
    attn_status status = attn_plan_create(d->ctx, d->common.device, p, options, &plan);
    if (status) return status;
    info->size = sizeof *info;
    status = attn_plan_get_info(plan, info);
    int failed = 0;
    void *workspace = attn_cli_workspace(info, &failed);
    if (failed) status = ATTN_E_MEMORY;
    args->workspace = workspace;
    args->workspace_bytes = info->workspace_bytes;
    double times[64];
    for (int r = 0; !status && r < repeats; r++) {
        double start = attn_cli_seconds();
        status = attn_execute(plan, args);
        double t = attn_cli_seconds() - start;
        int slot = r;
        for (; slot > 0 && times[slot - 1] > t; slot--) times[slot] = times[slot - 1];
        times[slot] = t;
    }
    if (!status) *seconds = times[repeats / 2];
    free(workspace);
    args->workspace = NULL;
    attn_plan_release(plan);
    return status;
}

static double *widened(const attn_tensor *t, int64_t n) {
    double *out = malloc(((size_t)n + 1) * sizeof *out);
    if (out && attn_convert(out, ATTN_F64, t->data, t->dtype, (size_t)n)) {
        free(out);
        return NULL;
    }
    return out;
}

/* One layer in one dtype. Bound: f32 against the model's own output; bf16 against the reference kernels on the same
 * rounded inputs (docs/numerics.md), with the distance to the model's output, rounding of the inputs included, beside
 * it. */
static int run_layer(struct demo *d, int64_t layer, int32_t dtype) {
    struct attn_cli_demo_model *m = &d->model;
    const struct attn_cli_demo_layer *l = &m->layer[layer];
    char text[128];
    snprintf(text, sizeof text, "sdpa_fwd b=1 hq=%lld sq=%lld d=%lld %s", (long long)m->heads, (long long)m->tokens,
             (long long)m->width, attn_dtype_name(dtype));
    attn_problem p;
    int code = attn_cli_problem("demo", text, &p);
    if (code) return code;

    struct attn_cli_tensors set;
    attn_status status = attn_cli_tensors_create(&set, &p);
    if (status) return attn_cli_library("demo", status, "layer %lld", (long long)layer);
    int64_t n = m->heads * m->tokens * m->width, worst = 0;
    const struct attn_cli_array *inputs[] = {l->q, l->k, l->v};
    for (int r = 0; r < 3; r++) status |= attn_convert(set.tensor[r].data, dtype, inputs[r]->data, ATTN_F32, (size_t)n);
    attn_plan_options options = attn_cli_plan_options(&d->common);
    attn_plan_info info = {0}, ref_info = {0};
    double seconds = 0, ref_seconds = 0;
    if (!status) status = run_timed(d, &p, &options, &set.args, 31, &info, &seconds);
    double *got = status ? NULL : widened(&set.tensor[ATTN_ROLE_OUT], n), *want = NULL;
    double *model = malloc(((size_t)n + 1) * sizeof *model);
    if (!status && dtype != ATTN_F32) {
        attn_plan_options ref = {.size = sizeof ref, .backend = ATTN_BACKEND_REF, .flags = ATTN_PLAN_STRICT};
        status = run_timed(d, &p, &ref, &set.args, 1, &ref_info, &ref_seconds);
        if (!status) want = widened(&set.tensor[ATTN_ROLE_OUT], n);
    }
    if (!status && model) status = attn_convert(model, ATTN_F64, l->out->data, ATTN_F32, (size_t)n);
    if (status || !got || !model || (dtype != ATTN_F32 && !want)) {
        code = attn_cli_library("demo", status ? status : ATTN_E_MEMORY, "layer %lld", (long long)layer);
    } else {
        double bound = attn_cli_tolerance(p.op, ATTN_ROLE_OUT, dtype).bound;
        double to_model = worst_row(got, model, m->heads * m->tokens, m->width, &worst);
        double error = want ? worst_row(got, want, m->heads * m->tokens, m->width, &worst) : to_model;
        printf("  %-4s  layer %lld   max row error %.2e (bound %.1e) at head %2lld token %2lld '%s'",
               attn_dtype_name(dtype), (long long)layer, error, bound, (long long)(worst / m->tokens),
               (long long)(worst % m->tokens), m->labels[worst % m->tokens]);
        if (want) printf("   to the model %.1e", to_model);
        printf("   %6.0f us  %5.1f GFLOP/s  %s", seconds * 1e6, info.flops / seconds * 1e-9, info.kernel);
        verdict(d, error <= bound);
    }
    free(got);
    free(want);
    free(model);
    attn_cli_tensors_destroy(&set);
    return code;
}

/* Mean attention over the heads of a layer, tokens on both axes. */
static int draw_layer(struct demo *d, int64_t layer, const char *dir) {
    struct attn_cli_demo_model *m = &d->model;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD;
    p.dtype = ATTN_F32;
    p.batch = 1;
    p.heads_q = p.heads_k = m->heads;
    p.seq_q = p.seq_k = m->tokens;
    p.dim_qk = m->width;
    attn_tensor q, k;
    const int64_t shape[] = {1, m->heads, m->tokens, m->width};
    attn_status status = attn_tensor_contiguous(&q, (void *)(uintptr_t)m->layer[layer].q->data, ATTN_F32, 4, shape);
    if (!status) status = attn_tensor_contiguous(&k, (void *)(uintptr_t)m->layer[layer].k->data, ATTN_F32, 4, shape);
    size_t cells = (size_t)(m->tokens * m->tokens);
    float *probs = malloc((size_t)m->heads * cells * sizeof *probs);
    double *mean = malloc(cells * sizeof *mean);
    if (!status) status = probs && mean ? attn_cli_dense_probs(d->ctx, &p, &q, &k, probs) : ATTN_E_MEMORY;
    int code = 0;
    if (status) {
        code = attn_cli_library("demo", status, "attention of layer %lld", (long long)layer);
    } else {
        attn_cli_dense_reduce(probs, m->heads, m->tokens, m->tokens, -1, 1, mean);
        double off = 0; /* each row of P sums to 1 */
        for (int64_t i = 0; i < m->tokens; i++) {
            double sum = 0;
            for (int64_t j = 0; j < m->tokens; j++) sum += mean[i * m->tokens + j];
            off = fmax(off, fabs(sum - 1));
        }
        char title[160], path[512], error[320];
        snprintf(title, sizeof title, "Where layer %lld of %.80s looks", (long long)layer, m->name);
        snprintf(path, sizeof path, "%s/attention_layer%lld.png", dir, (long long)layer);
        struct attn_cli_heatmap map = {.title = title,
                                       .row_title = "token that looks",
                                       .column_title = "token looked at",
                                       .row_labels = (const char *const *)m->labels,
                                       .column_labels = (const char *const *)m->labels,
                                       .rows = m->tokens,
                                       .columns = m->tokens,
                                       .values = mean,
                                       .value_title = "attention probability, mean over heads"};
        if (attn_cli_heatmap_write(&map, path, error, sizeof error))
            code = attn_cli_die("demo", "%s", error);
        else
            printf("  %s   rows sum to 1 within %.1e", path, off), verdict(d, off < 1e-5);
    }
    free(probs);
    free(mean);
    return code;
}

/* Sparse MLA at its true widths on synthetic data, small lengths: chosen kernel against the reference kernel. */
static int run_sparse(struct demo *d, const char *text) {
    attn_problem p;
    int code = attn_cli_problem("demo", text, &p);
    if (code) return code;
    struct attn_cli_tensors set;
    attn_status status = attn_cli_tensors_create(&set, &p);
    if (status) return attn_cli_library("demo", status, "%s", text);
    status = attn_cli_tensors_fill(&set, 1);
    if (!status) status = attn_cli_tensors_forward(d->ctx, &set);
    attn_plan_options options = attn_cli_plan_options(&d->common),
                      ref = {.size = sizeof ref, .backend = ATTN_BACKEND_REF, .flags = ATTN_PLAN_STRICT};
    attn_plan_info info = {0}, ref_info = {0};
    double seconds = 0, ref_seconds = 0, *got[ATTN_ROLE_COUNT] = {0};
    if (!status) status = run_timed(d, &p, &options, &set.args, 5, &info, &seconds);
    for (int r = 0; !status && r < ATTN_ROLE_COUNT; r++)
        if (set.use[r] >= ATTN_USE_OUT) {
            got[r] = widened(&set.tensor[r], (int64_t)(set.tensor[r].bytes / attn_dtype_bytes(set.tensor[r].dtype)));
            if (!got[r]) status = ATTN_E_MEMORY;
        }
    if (!status) status = run_timed(d, &p, &ref, &set.args, 1, &ref_info, &ref_seconds);
    if (status)
        code = attn_cli_library("demo", status, "%s", text);
    else
        printf("  %-8s %8.0f us  %5.1f GFLOP/s  %s\n", attn_cli_op_name(p.op), seconds * 1e6,
               info.flops / seconds * 1e-9, info.kernel);
    for (int r = 0; r < ATTN_ROLE_COUNT; r++) {
        if (!status && got[r]) {
            int64_t n = (int64_t)(set.tensor[r].bytes / attn_dtype_bytes(set.tensor[r].dtype)), worst_at = 0;
            int64_t width = set.tensor[r].shape[set.tensor[r].rank - 1];
            const struct attn_cli_tolerance t = attn_cli_tolerance(p.op, r, p.dtype);
            double *want = widened(&set.tensor[r], n), error = INFINITY;
            if (want && t.absolute)
                error = worst_element(got[r], want, n, t.slack);
            else if (want)
                error = worst_row(got[r], want, n / width, width, &worst_at);
            printf("           %-10s max %s error %.2e (bound %.1e)", attn_role_name(r), t.absolute ? "abs" : "row",
                   error, t.bound);
            verdict(d, error <= t.bound);
            free(want);
        }
        free(got[r]);
    }
    attn_cli_tensors_destroy(&set);
    return code;
}

static int run_demo(struct demo *d, const char *data, const char *out, int64_t layer) {
    struct attn_cli_fault fault = {{0}};
    struct attn_cli_demo_model *m = &d->model;
    if (attn_cli_demo_model_read(data, m, &fault)) return attn_cli_die("demo", "%s", fault.text);
    if (mkdir(out, 0777) && errno != EEXIST) return attn_cli_die("demo", "cannot make %s: %s", out, strerror(errno));
    int code = 0;
    printf(
        "1. %s on %lld tokens: \"%.60s...\"\n   %lld layers x %lld heads of width %lld, compared with the model's own outputs\n",
        m->name, (long long)m->tokens, m->text, (long long)m->layers, (long long)m->heads, (long long)m->width);
    static const int32_t dtypes[] = {ATTN_F32, ATTN_BF16};
    for (int t = 0; t < 2; t++)
        for (int64_t l = 0; !code && l < m->layers; l++) code = run_layer(d, l, dtypes[t]);
    if (layer < 0 || layer >= m->layers) layer = m->layers / 2;
    if (!code) printf("2. What the model looks at\n");
    if (!code) code = draw_layer(d, layer, out);
    static const char *const sparse[] = {
        "mla_fwd sq=24 sk=512 hq=16 topk=96 bf16 causal q_start=300",
        "mla_bwd sq=24 sk=512 hq=16 topk=96 bf16 causal q_start=300 dkv=f32 with_dist",
        "dist sq=24 sk=512 hq=16 topk=96 bf16 causal q_start=300 dist_norm=l1",
    };
    if (!code)
        printf(
            "3. Sparse MLA, 24 queries x 96 of 512 rows, 16 heads, width 576/512, synthetic, against the reference\n");
    for (int i = 0; !code && i < 3; i++) code = run_sparse(d, sparse[i]);
    return code;
}

int attn_cli_demo(int argc, char **argv) {
    static const struct option options[] = {ATTN_CLI_COMMON_OPTIONS,
                                            {"data", required_argument, NULL, 'd'},
                                            {"out", required_argument, NULL, 'o'},
                                            {"layer", required_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct demo d = {0};
    char shipped_path[PATH_MAX];
    const char *data = NULL, *out = "attn-demo";
    int64_t layer = -1;
    int c;
    while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        int r = attn_cli_common_option("demo", c, optarg, &d.common);
        if (r < 0) return ATTN_CLI_USAGE;
        if (r > 0) continue;
        switch (c) {
        case 'd': data = optarg; break;
        case 'o': out = optarg; break;
        case 'l':
            if (attn_cli_int(optarg, 0, ATTN_CLI_DEMO_LAYERS - 1, &layer))
                return attn_cli_usage("demo", "--layer %s is not a layer", optarg);
            break;
        case 'h': fputs(usage, stdout); return ATTN_CLI_OK;
        default: return attn_cli_bad_option("demo", c, argv);
        }
    }
    if (optind < argc) return attn_cli_usage("demo", "unexpected '%s'", argv[optind]);
    if (!data && attn_cli_data(shipped, shipped_path, sizeof shipped_path))
        return attn_cli_die("demo", "%s cannot be read; --data FILE names another", shipped_path);
    int code = attn_cli_ctx("demo", &d.common, &d.ctx);
    if (code) return code;
    code = run_demo(&d, data ? data : shipped_path, out, layer);
    if (!code) {
        if (d.failures)
            printf("%d comparisons FAILED\n", d.failures);
        else
            printf("All comparisons are within their bounds.\n");
        code = d.failures ? ATTN_CLI_FAILED : ATTN_CLI_OK;
    }
    attn_cli_demo_model_free(&d.model);
    attn_ctx_release(d.ctx);
    return code;
}
