/* SPDX-License-Identifier: MIT
 * Runs every property on every kernel that it fits, and the little that properties need: tensors, execution,
 * comparison. */
#include "prop.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int attn_cli_prop_failed(struct prop_run *r, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->text, sizeof r->text, format, list);
    va_end(list);
    return PROP_FAIL;
}

attn_problem attn_cli_prop_problem(struct prop_run *r) {
    static const int64_t dims[] = {1, 8, 17, 32, 40, 64, 80, 96, 128, 200}, heads[] = {1, 2, 4, 6};
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = r->kernel->op;
    p.dtype = r->kernel->dtype;
    bool sparse = !check_dense(&p);
    p.batch = 1 + prop_below(r, 2);
    p.heads_q = heads[prop_below(r, 4)];
    p.heads_k = sparse || prop_below(r, 2) ? 1 : p.heads_q;
    p.seq_q = 1 + prop_below(r, sparse ? 6 : 45);
    p.seq_k = 1 + prop_below(r, 90);
    p.dim_qk = sparse ? (prop_below(r, 2) ? 576 : 512) : dims[prop_below(r, 10)];
    p.dim_v = sparse ? 512 : prop_below(r, 2) ? p.dim_qk : dims[prop_below(r, 10)];
    if (sparse) p.topk = 1 + prop_below(r, 100);
    return p;
}

int64_t attn_cli_prop_count(const struct attn_cli_tensors *set, int32_t role) {
    int64_t n = 1;
    for (int a = 0; a < set->tensor[role].rank; a++) n *= set->tensor[role].shape[a];
    return n;
}

double *attn_cli_prop_get(const struct attn_cli_tensors *set, int32_t role) {
    int64_t n = attn_cli_prop_count(set, role);
    double *out = malloc((size_t)(n + 1) * sizeof *out);
    if (!out) exit(ATTN_CLI_ERROR);
    attn_cli_check_widen(out, set->memory[role], set->tensor[role].dtype, n);
    return out;
}

void attn_cli_prop_put(struct attn_cli_tensors *set, int32_t role, const double *values) {
    attn_cli_check_narrow(set->memory[role], set->tensor[role].dtype, values, attn_cli_prop_count(set, role));
}

int attn_cli_prop_make(struct prop_run *r, struct attn_cli_tensors *set, const attn_problem *p, uint64_t seed) {
    size_t needed;
    attn_problem_format(p, r->problem, sizeof r->problem, &needed);
    attn_status st = attn_cli_tensors_create(set, p);
    if (st) return attn_cli_prop_failed(r, "tensors: %s: %s", attn_status_name(st), attn_last_error());
    st = attn_cli_tensors_fill(set, seed);
    if (!st) st = attn_cli_tensors_forward(r->session->one, set);
    if (!st) return 0;
    attn_cli_tensors_destroy(set);
    return attn_cli_prop_failed(r, "inputs: %s: %s", attn_status_name(st), attn_last_error());
}

struct call {
    attn_ctx *ctx;
    attn_plan *plan;
    attn_args *args;
};
static attn_status execute(void *arg) {
    struct call *call = arg;
    return attn_cli_execute(call->ctx, call->plan, call->args, NULL);
}

int attn_cli_prop_execute(struct prop_run *r, struct attn_cli_tensors *set, const char *kernel) {
    attn_plan_options o = {
        .size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = kernel ? kernel : r->kernel->name};
    struct call call = {.ctx = r->session->many, .args = &set->args};
    attn_device where = kernel ? ATTN_DEVICE_CPU : r->session->device; /* the other kernel is a reference */
    attn_status st = attn_plan_create(call.ctx, where, &set->problem, &o, &call.plan);
    if (st == ATTN_E_NO_KERNEL) {
        attn_cli_prop_failed(r, "%s", attn_last_error());
        return PROP_SKIP;
    }
    if (st) return attn_cli_prop_failed(r, "plan: %s: %s", attn_status_name(st), attn_last_error());
    char repro[600], device[32];
    attn_cli_device_text(r->session->device, device, sizeof device);
    snprintf(repro, sizeof repro, "attn check --properties --device %s --kernel '%s' --seed %" PRIu64, device,
             r->kernel->name, r->seed);
    int number = attn_cli_check_guarded(execute, &call, repro, &st);
    if (!number) attn_plan_release(call.plan);
    if (number) return attn_cli_prop_failed(r, "stopped by signal %d (%s)", number, strsignal(number));
    return st ? attn_cli_prop_failed(r, "execute: %s: %s", attn_status_name(st), attn_last_error()) : 0;
}

double attn_cli_prop_tolerance(const struct prop_run *r) {
    bool backward = r->kernel->op == ATTN_OP_SDPA_BWD || r->kernel->op == ATTN_OP_MLA_BWD;
    switch (check_bound_dtype(r->kernel->dtype, r->kernel->math_dtype)) {
    case ATTN_F16: return 0x1p-9;
    case ATTN_E4M3: return 0x1p-2;
    case ATTN_BF16: return 0x1p-6;
    case ATTN_F64: return backward ? 2e-12 : 2e-13;
    default: return backward ? 4e-5 : 8e-6;
    }
}

int attn_cli_prop_ones(struct prop_run *r, const struct attn_cli_tensors *set, int64_t rows, int64_t cols,
                       const double *lse) {
    const bool narrow = check_half_dtype(check_bound_dtype(r->kernel->dtype, r->kernel->math_dtype));
    const bool exact = narrow && r->kernel->backend == ATTN_BACKEND_CPU && strcmp(r->kernel->arch, "amx") != 0;
    double *out = attn_cli_prop_get(set, ATTN_ROLE_OUT);
    int got = PROP_PASS;
    for (int64_t x = 0; !got && x < rows * cols; x++) {
        const double want = isinf(lse[x / cols]) ? 0 : 1;
        if (!(fabs(out[x] - want) <= (exact ? 0 : attn_cli_prop_tolerance(r) * want)))
            got = attn_cli_prop_failed(r, "values are all 1, but out of row %lld is %.9g, expected %g%s",
                                       (long long)(x / cols), out[x], want, exact ? " exactly" : "");
    }
    free(out);
    return got;
}

int attn_cli_prop_rows_equal(struct prop_run *r, const char *what, const double *a, const double *b, int64_t rows,
                             int64_t cols, double tol) {
    double all = 0;
    for (int64_t x = 0; x < rows * cols; x++) all += a[x] * a[x];
    double typical = rows ? sqrt(all / (double)rows) : 0;
    double tiny = r->kernel->dtype == ATTN_F16 ? 0x1p-24 : 1e-30; /* denormals: even a factor of 2 rounds there */
    if (!isfinite(all)) return attn_cli_prop_failed(r, "%s is not finite", what);
    for (int64_t row = 0; row < rows; row++) {
        double error = 0, size = 0;
        for (int64_t x = row * cols; x < (row + 1) * cols; x++) {
            error += (a[x] - b[x]) * (a[x] - b[x]);
            size += a[x] * a[x];
        }
        double bound = tol * fmax(sqrt(size), typical) + tiny * sqrt((double)cols);
        if (!(sqrt(error) <= bound))
            return attn_cli_prop_failed(r, "%s: row %" PRId64 " of %" PRId64 " differs by %.3g, allowed %.3g", what,
                                        row, rows, sqrt(error), bound);
    }
    return 0;
}

int attn_cli_prop_lse_equal(struct prop_run *r, const char *what, const double *a, const double *b, int64_t n,
                            double shift) {
    double tol = r->kernel->dtype == ATTN_F64 ? 1e-12 : r->kernel->math_dtype == ATTN_E4M3 ? 0x1p-6 : 2e-5;
    for (int64_t x = 0; x < n; x++) {
        if (isinf(a[x]) && a[x] == b[x]) continue;
        if (!(fabs(a[x] + shift - b[x]) <= tol * fmax(1, fabs(b[x]))))
            return attn_cli_prop_failed(r, "%s: lse %" PRId64 " is %.9g, expected %.9g", what, x, b[x], a[x] + shift);
    }
    return 0;
}

/* ---- all properties on all kernels ----------------------------------------------------------------------------------
 */

enum { MAX_DRAWS = 24 };

struct outcome {
    int passed, failed, skipped;
};

static void report(const struct prop_run *r, const struct prop *p, const struct outcome *o) {
    if (r->session->json) {
        printf(
            "{\"type\":\"property\",\"kernel\":\"%s\",\"property\":\"%s\",\"passed\":%d,\"failed\":%d,\"skipped\":%d}\n",
            r->kernel->name, p->name, o->passed, o->failed, o->skipped);
        return;
    }
    if (o->failed || r->session->verbose || !o->passed)
        printf("%-4s  %-38s %-34s %d passed, %d failed, %d problems refused\n",
               o->failed   ? "FAIL"
               : o->passed ? "ok"
                           : "skip",
               r->kernel->name, p->name, o->passed, o->failed, o->skipped);
    if (!o->passed && !o->failed) printf("      the last: %s\n", r->text);
}

static void run_property(struct check_session *s, const attn_kernel_info *k, int32_t index, const struct prop *p,
                         uint64_t seed, int repeat, struct outcome *sum) {
    struct outcome o = {0};
    struct prop_run r = {.session = s, .kernel = k, .index = index};
    char device[32];
    attn_cli_device_text(s->device, device, sizeof device);
    /* Most random problems are not for a row that serves one head dim: more are drawn until enough of them are. */
    for (int n = 0; o.passed + o.failed < repeat && n < MAX_DRAWS * repeat; n++) {
        r.seed = seed + (uint64_t)n;
        attn_cli_rng_seed(&r.rng, r.seed * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)k->op);
        int got = p->run(&r);
        o.passed += got == PROP_PASS, o.failed += got == PROP_FAIL, o.skipped += got == PROP_SKIP;
        if (got != PROP_FAIL || o.failed > 3) continue;
        printf(
            "%sFAIL%s %s  property \"%s\"\n  %s\n  on %s\n  rerun: attn check --properties --device %s --kernel '%s' --seed "
            "%" PRIu64 " --repeat 1\n",
            attn_cli_sgr(stdout, "1;31"), attn_cli_sgr(stdout, "0"), k->name, p->name, r.text, r.problem, device,
            k->name, r.seed);
    }
    report(&r, p, &o);
    sum->passed += o.passed, sum->failed += o.failed, sum->skipped += o.skipped;
}

int attn_cli_check_properties(struct check_session *s, const struct check_filter *f, uint64_t seed, int repeat,
                              int *passed) {
    const struct prop *tables[] = {attn_cli_props_dense, attn_cli_props_sparse, attn_cli_props_grad,
                                   attn_cli_props_join,  attn_cli_props_out,    attn_cli_props_sums,
                                   attn_cli_props_empty};
    struct outcome sum = {0};
    for (int32_t i = 0; i < attn_kernel_count(s->one); i++) {
        attn_kernel_info k = {.size = sizeof k};
        if (attn_kernel_get_info(s->one, i, &k) || !k.usable) continue;
        if ((k.backend == ATTN_BACKEND_CUDA) != (s->device.type == ATTN_DEVICE_TYPE_CUDA)) continue;
        if ((f->pattern && !attn_cli_match(f->pattern, k.name)) || (f->backend && f->backend != k.backend) ||
            (f->op && f->op != k.op) || (f->dtype && f->dtype != k.dtype))
            continue;
        int before = sum.failed;
        for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
            for (const struct prop *p = tables[t]; p->name; p++)
                if (p->op == k.op && (!p->dtype || p->dtype == k.dtype) &&
                    (!f->property || attn_cli_match(f->property, p->name)))
                    run_property(s, &k, i, p, seed, repeat, &sum);
        if (!s->json) printf("%-4s  %s\n", sum.failed > before ? "FAIL" : "ok", k.name);
    }
    *passed += sum.passed;
    return sum.failed;
}
