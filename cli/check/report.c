/* SPDX-License-Identifier: MIT
 * What a failed case looks like on the screen and as a line of JSON, and the one line that runs it again. */
#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void attn_cli_check_repro(const struct check_case *c, const char *kernel, char *buf, size_t bytes) {
    snprintf(buf, bytes, "attn check --kernel '%s' --problem \"%s\" --seed %" PRIu64 "%s%s", kernel, c->text, c->seed,
             c->overlap.kind ? " --overlap " : "", c->overlap.text);
}

void attn_cli_check_json_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 32)
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void open_report(struct check_report *r) {
    if (r->printed) return;
    r->printed = true;
    if (r->session->json) {
        printf("{\"type\":\"case\",\"result\":\"%s\",\"kernel\":", "fail");
        attn_cli_check_json_text(r->kernel);
        printf(",\"problem\":");
        attn_cli_check_json_text(r->c->text);
        printf(",\"seed\":%" PRIu64 ",\"faults\":[", r->c->seed);
        return;
    }
    attn_cli_progress_end();
    printf("%sFAIL%s %s   seed %" PRIu64 "\n", attn_cli_sgr(stdout, "1;31"), attn_cli_sgr(stdout, "0"), r->kernel,
           r->c->seed);
}

void attn_cli_check_report_fault(struct check_report *r, const char *format, ...) {
    char text[1200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    open_report(r);
    r->n_fail++;
    if (r->session->json) {
        printf("%s{\"text\":", r->n_fail > 1 ? "," : "");
        attn_cli_check_json_text(text);
        printf("}");
    } else {
        printf("  %s\n", text);
    }
}

static void json_number(const char *name, double x) {
    if (isfinite(x))
        printf(",\"%s\":%.9g", name, x);
    else
        printf(",\"%s\":\"%g\"", name, x); /* JSON has no NaN */
}

void attn_cli_check_report_verdict(struct check_report *r, const struct check_verdict *v, bool failed) {
    const attn_tensor *view = &r->c->t[v->role].view;
    const char *name = attn_role_name(v->role), *axes = attn_cli_check_axes(r->c, v->role);
    char place[128];
    if (!failed) {
        if (r->printed && !r->session->json) printf("  %-11s ok (%.2f of its bound)\n", name, v->worst);
        return;
    }
    open_report(r);
    r->n_fail++;
    attn_cli_check_place_text(view, v->element, axes, place, sizeof place);
    if (r->session->json) {
        printf("%s{\"tensor\":\"%s\",\"why\":", r->n_fail > 1 ? "," : "", name);
        attn_cli_check_json_text(v->why);
        printf(",\"at\":\"%s\",\"over\":%" PRId64 ",\"elements\":%" PRId64, place, v->over, v->n);
        json_number("got", v->got), json_number("want", v->want), json_number("bound", v->bound);
        json_number("worst", v->worst), json_number("max_err", v->max_err), json_number("max_ulp", v->max_ulp);
        printf(",\"cluster\":");
        attn_cli_check_json_text(v->cluster);
        printf("}");
        return;
    }
    printf("  %-11s %s at (%s)  got %.9g want %.9g  bound %.3g, exceeded %.3gx; max error %.3g (%.3g ulp)\n", name,
           v->why, place, v->got, v->want, v->bound, v->worst, v->max_err, v->max_ulp);
    printf("  %-11s %" PRId64 " of %" PRId64 " over; row's largest score %.4g; wrong at %s\n", "", v->over, v->n,
           v->score, v->cluster[0] ? v->cluster : "no single place");
}

void attn_cli_check_report_close(struct check_report *r, double worst) {
    char repro[1200];
    if (!r->printed) return;
    attn_cli_check_repro(r->c, r->kernel, repro, sizeof repro);
    if (r->session->json) {
        printf("]");
        json_number("worst", worst);
        printf(",\"rerun\":");
        attn_cli_check_json_text(repro);
        printf("}\n");
    } else {
        printf("  rerun: %s\n", repro);
    }
    fflush(stdout);
}
