/* SPDX-License-Identifier: MIT
 * Options that several commands share, and the library objects made from them. */
#include "shared/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[] = {"none", "sdpa_fwd", "sdpa_bwd", "mla_fwd", "mla_bwd", "dist", "mla_join"};
static const char *const backend_names[] = {"any", "ref", "cpu", "cuda"};
_Static_assert(sizeof op_names / sizeof *op_names == ATTN_OP_COUNT_, "one name per operator");
_Static_assert(sizeof backend_names / sizeof *backend_names == ATTN_BACKEND_COUNT_, "one name per backend");

const char *attn_cli_op_name(int32_t op) { return op >= 0 && op < ATTN_OP_COUNT_ ? op_names[op] : "?"; }
const char *attn_cli_backend_name(int32_t b) { return b >= 0 && b < ATTN_BACKEND_COUNT_ ? backend_names[b] : "?"; }

int attn_cli_int(const char *text, int64_t low, int64_t high, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < low || v > high) return -1;
    *out = v;
    return 0;
}

int attn_cli_double(const char *text, double low, double high, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end); /* the program never calls setlocale: '.' always */
    if (end == text || *end || errno || !(v >= low && v <= high)) return -1;
    *out = v;
    return 0;
}

int attn_cli_device(const char *text, attn_device *out) {
    int64_t index = 0;
    if (!strcmp(text, "cpu")) {
        *out = ATTN_DEVICE_CPU;
        return 0;
    }
    if (strncmp(text, "cuda", 4) || (text[4] && (text[4] != ':' || attn_cli_int(text + 5, 0, INT32_MAX, &index))))
        return -1;
    *out = ATTN_DEVICE_CUDA((int32_t)index);
    return 0;
}

void attn_cli_device_text(attn_device device, char *buf, size_t bytes) {
    if (device.type == ATTN_DEVICE_TYPE_CPU)
        snprintf(buf, bytes, "cpu");
    else
        snprintf(buf, bytes, "cuda:%d", device.index);
}

int attn_cli_match(const char *pattern, const char *name) {
    /* Only the last star needs to be remembered: giving it one character more covers every other split. */
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || (*pattern && *pattern == *name)) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return 0;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

int attn_cli_lists(const char *list, int32_t role) {
    const char *name = attn_role_name(role);
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        if (n == strlen(name) && !strncmp(p, name, n)) return 1;
        p += n + (p[n] == ',');
    }
    return 0;
}

static int is_output(const attn_problem *problem, int32_t role) {
    int32_t use = ATTN_USE_NONE;
    if (attn_role_tensor(problem, role, &use, NULL)) return 0;
    return use == ATTN_USE_OUT || use == ATTN_USE_OUT_OPTIONAL || use == ATTN_USE_INOUT_OPTIONAL;
}

int attn_cli_outputs(const char *cmd, const char *list, const attn_problem *problem) {
    for (const char *p = list; *p;) {
        const int n = (int)strcspn(p, ",");
        int32_t role = 0;
        while (role < ATTN_ROLE_COUNT &&
               (strlen(attn_role_name(role)) != (size_t)n || strncmp(attn_role_name(role), p, (size_t)n)))
            role++;
        if (role == ATTN_ROLE_COUNT) return attn_cli_usage(cmd, "--outputs: no tensor '%.*s'", n, p);
        if (problem && !is_output(problem, role))
            return attn_cli_usage(cmd, "--outputs: '%.*s' is no output of this %s", n, p,
                                  attn_cli_op_name(problem->op));
        p += n + (p[n] == ',');
    }
    return ATTN_CLI_OK;
}

const char *attn_cli_refusal(const char *kernel) {
    const char *text = attn_last_error();
    size_t n = strlen(kernel);
    return !strncmp(text, kernel, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

int attn_cli_common_option(const char *cmd, int opt, const char *value, struct attn_cli_common *common) {
    int64_t n;
    switch (opt) {
    case ATTN_CLI_OPT_THREADS:
        if (attn_cli_int(value, 1, INT32_MAX, &n)) { /* the context has the limit */
            attn_cli_usage(cmd, "--threads: expected a number, 1 or more, given '%s'", value);
            return -1;
        }
        common->threads = (int32_t)n;
        return 1;
    case ATTN_CLI_OPT_ISA: common->cpu_isa = value; return 1;
    case ATTN_CLI_OPT_DEVICE:
        if (attn_cli_device(value, &common->device)) {
            attn_cli_usage(cmd, "--device: expected cpu or cuda:N, given '%s'", value);
            return -1;
        }
        return 1;
    case ATTN_CLI_OPT_KERNEL: common->kernel = value; return 1;
    case ATTN_CLI_OPT_BACKEND:
        for (int32_t i = 1; i < ATTN_BACKEND_COUNT_; i++)
            if (!strcmp(value, backend_names[i])) {
                common->backend = i;
                return 1;
            }
        attn_cli_usage(cmd, "--backend: expected ref, cpu or cuda, given '%s'", value);
        return -1;
    case ATTN_CLI_OPT_STRICT: common->strict = 1; return 1;
    case ATTN_CLI_OPT_APART: common->apart = 1; return 1;
    default: return 0;
    }
}

/* Sink of the context's warnings; `user` is the name of the command. A line that two plans give is said once. */
static void show_warning(void *user, int32_t level, const char *area, const char *text) {
    static char last[256];
    (void)level, (void)area;
    if (!strncmp(text, last, sizeof last - 1)) return;
    snprintf(last, sizeof last, "%s", text);
    attn_cli_warn(user, "%s", text);
}

/* Warnings are shown unless the environment says what is to be logged; then the library prints that. */
static int log_is_chosen(void) {
    static const char *const names[] = {"ATTN_LOG", "ATTN_EXPLAIN", "ATTN_CHECK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return 1;
    }
    return 0;
}

int attn_cli_ctx(const char *cmd, const struct attn_cli_common *common, attn_ctx **out) {
    attn_ctx_options options = {.size = sizeof options, .threads = common->threads, .cpu_isa = common->cpu_isa};
    if (!log_is_chosen()) {
        options.log = show_warning;
        options.log_user = (void *)(uintptr_t)cmd;
        options.log_level = ATTN_LOG_WARN;
    }
    attn_status status = attn_ctx_create(&options, out);
    if (!status) return ATTN_CLI_OK;
    attn_error e = {.size = sizeof e};
    int code = attn_cli_library(cmd, status, "cannot create a context");
    int option = !attn_last_error_detail(&e) && ((common->threads && !strcmp(e.argument, "threads")) ||
                                                 (common->cpu_isa && !strcmp(e.argument, "cpu_isa")));
    return option ? ATTN_CLI_USAGE : code;
}

attn_plan_options attn_cli_plan_options(const struct attn_cli_common *common) {
    return (attn_plan_options){.size = sizeof(attn_plan_options),
                               .flags = (common->strict ? ATTN_PLAN_STRICT : 0) |
                                        (common->apart ? ATTN_PLAN_QUERIES_APART : 0),
                               .backend = common->backend,
                               .kernel = common->kernel};
}

int attn_cli_problem(const char *cmd, const char *text, attn_problem *out) {
    attn_status status = attn_problem_parse(text, out);
    if (status) {
        attn_cli_library(cmd, status, "problem \"%s\"", text);
        return ATTN_CLI_USAGE;
    }
    status = attn_problem_check(out);
    return status ? attn_cli_library(cmd, status, "problem \"%s\"", text) : ATTN_CLI_OK;
}

char *attn_cli_problem_text(const attn_problem *problem) {
    size_t needed = 0;
    attn_problem_format(problem, NULL, 0, &needed);
    char *text = needed ? malloc(needed) : NULL;
    if (text && attn_problem_format(problem, text, needed, NULL)) {
        free(text);
        return NULL;
    }
    return text;
}
