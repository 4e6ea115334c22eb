/* SPDX-License-Identifier: MIT
 * `attn run`: output files and the report (one line on stderr, a table or a JSON record on stdout). */
#include "commands/run.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int attn_cli_run_wanted(const struct attn_cli_run *run, int32_t role) {
    return run->outputs ? attn_cli_lists(run->outputs, role) : role != ATTN_ROLE_LSE_ROUNDED;
}

/* The role as an array in the order of its memory; 0 if it is not a wanted output. Repeated axes get extent 1. */
static int output(const struct attn_cli_run *run, int32_t role, struct attn_cli_array *out) {
    int32_t use = run->set.use[role];
    const attn_tensor *t = attn_args_at(&run->set.args, role);
    if (use == ATTN_USE_NONE || use == ATTN_USE_IN || !t || !attn_cli_run_wanted(run, role)) return 0;
    *out = (struct attn_cli_array){.data = t->data, .bytes = (size_t)t->bytes, .dtype = t->dtype, .rank = t->rank};
    for (int i = 0; i < t->rank; i++) out->shape[i] = t->strides[i] == 0 && t->shape[i] > 1 ? 1 : t->shape[i];
    if (attn_cli_run_swaps(run, role)) {
        out->shape[t->rank - 3] = t->shape[t->rank - 2];
        out->shape[t->rank - 2] = t->shape[t->rank - 3];
    }
    return 1;
}

int attn_cli_run_write(struct attn_cli_run *run) {
    struct attn_cli_array arrays[ATTN_ROLE_COUNT];
    struct attn_cli_fault fault;
    size_t n = 0;
    if (run->out_dir && mkdir(run->out_dir, 0777) && errno != EEXIST)
        return attn_cli_die("run", "%s: %s", run->out_dir, strerror(errno));
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!output(run, role, &arrays[n])) continue;
        const char *name = attn_role_name(role);
        if (run->out_dir) {
            size_t bytes = strlen(run->out_dir) + strlen(name) + 6;
            char *path = malloc(bytes);
            if (!path) return attn_cli_die("run", "out of memory");
            snprintf(path, bytes, "%s/%s.npy", run->out_dir, name);
            int r = attn_cli_npy_write(path, &arrays[n], &fault);
            free(path);
            if (r) return attn_cli_die("run", "%s", fault.text);
        }
        arrays[n++].name = (char *)(uintptr_t)name; /* borrowed; never freed through this array */
    }
    if (run->out && attn_cli_safetensors_write(run->out, arrays, n, &fault))
        return attn_cli_die("run", "%s", fault.text);
    return ATTN_CLI_OK;
}

struct summary {
    double min, max, mean;
    int64_t n, nan, inf, finite;
};

static struct summary summarise(const struct attn_cli_array *a) {
    struct summary s = {.min = INFINITY, .max = -INFINITY, .n = attn_cli_array_count(a)};
    double block[512];
    size_t size = attn_dtype_bytes(a->dtype);
    for (int64_t i = 0; i < s.n; i += 512) {
        int64_t m = s.n - i < 512 ? s.n - i : 512;
        attn_convert(block, ATTN_F64, (const char *)a->data + (size_t)i * size, a->dtype, (size_t)m);
        for (int64_t k = 0; k < m; k++) {
            double x = block[k];
            if (isnan(x))
                s.nan++;
            else if (isinf(x))
                s.inf++;
            else
                s.finite++, s.mean += x, s.min = fmin(s.min, x), s.max = fmax(s.max, x);
        }
    }
    if (s.finite) s.mean /= (double)s.finite;
    return s;
}

static json_t *number(double x, int known) { return known && isfinite(x) ? json_real(x) : json_null(); }

static int report_json(const struct attn_cli_run *run, const char *text, double flops, double bytes) {
    char device[32];
    attn_cli_device_text(run->info.device, device, sizeof device);
    json_t *outputs = json_array();
    struct attn_cli_array a;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!output(run, role, &a)) continue;
        struct summary s = summarise(&a);
        json_t *shape = json_array();
        for (int i = 0; i < a.rank; i++) json_array_append_new(shape, json_integer(a.shape[i]));
        json_array_append_new(outputs,
                              json_pack("{s:s, s:s, s:o, s:I, s:I, s:o, s:o, s:o}", "name", attn_role_name(role),
                                        "dtype", attn_dtype_name(a.dtype), "shape", shape, "nan", (json_int_t)s.nan,
                                        "inf", (json_int_t)s.inf, "min", number(s.min, s.finite > 0), "max",
                                        number(s.max, s.finite > 0), "mean", number(s.mean, s.finite > 0)));
    }
    char joined[160];
    attn_cli_joined_json(&run->joined, joined, sizeof joined);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "problem", text, "device", device,
        "kernel", run->info.kernel, "backend", attn_cli_backend_name(run->info.backend), "arch", run->info.arch,
        "workspace_bytes", (json_int_t)run->info.workspace_bytes, "seconds", number(run->seconds, 1), "flops",
        number(flops, 1), "bytes", number(bytes, 1), "gflops", number(flops / run->seconds / 1e9, run->seconds > 0),
        "gbps", number(bytes / run->seconds / 1e9, run->seconds > 0), "outputs", outputs, "joined",
        run->joined.group ? json_loads(joined, 0, NULL) : json_null());
    if (!root || json_dumpf(root, stdout, JSON_COMPACT)) {
        json_decref(root);
        return attn_cli_die("run", "the JSON record could not be written");
    }
    putchar('\n');
    json_decref(root);
    return ATTN_CLI_OK;
}

static void report_table(const struct attn_cli_run *run) {
    struct attn_cli_array a;
    printf("%-12s %-5s %-24s %12s %12s %12s %8s %8s\n", "output", "dtype", "shape", "min", "max", "mean", "inf", "nan");
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!output(run, role, &a)) continue;
        struct summary s = summarise(&a);
        char shape[128] = "[";
        int n = 1;
        for (int i = 0; i < a.rank; i++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? "," : "", (long long)a.shape[i]);
        snprintf(shape + n, sizeof shape - (size_t)n, "]");
        printf("%-12s %-5s %-24s", attn_role_name(role), attn_dtype_name(a.dtype), shape);
        if (s.finite)
            printf(" %12.5g %12.5g %12.5g", s.min, s.max, s.mean);
        else
            printf(" %12s %12s %12s", "-", "-", "-");
        printf(" %8lld %8lld\n", (long long)s.inf, (long long)s.nan);
    }
}

int attn_cli_run_report(struct attn_cli_run *run) {
    double flops = attn_problem_flops(&run->set.problem), bytes = attn_problem_bytes(&run->set.problem);
    char *text = attn_cli_problem_text(&run->set.problem);
    if (!text) return attn_cli_die("run", "the problem could not be printed");
    int code = ATTN_CLI_OK;
    fprintf(stderr, "%s\n%s%s%s  %.6g ms  %.4g GFLOP/s  %.4g GB/s\n", text, attn_cli_sgr(stderr, "1"), run->info.kernel,
            attn_cli_sgr(stderr, "0"), run->seconds * 1e3, run->seconds > 0 ? flops / run->seconds / 1e9 : 0,
            run->seconds > 0 ? bytes / run->seconds / 1e9 : 0);
    char joined[160];
    attn_cli_joined_text(&run->joined, joined, sizeof joined);
    if (run->joined.group) fprintf(stderr, "%s\n", joined);
    if (run->json)
        code = report_json(run, text, flops, bytes);
    else if (!run->out && !run->out_dir)
        report_table(run);
    free(text);
    return code;
}
