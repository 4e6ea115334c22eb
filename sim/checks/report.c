/* SPDX-License-Identifier: MIT
 * Findings are kept once per kernel, place and kind, written to standard error (or the file of
 * ATTNSIM_REPORT, as JSON lines) when first met, and kept as text for those who ask. */
#include "checks/report.h"
#include "driver/cu.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEN = 4096, TEXT = 1 << 16 };
static const char *const kinds[SIM_F_KINDS] = {
    "out of bounds", "misaligned", "use after free", "uninitialised", "race",     "async", "deadlock",
    "divergence",    "barrier",    "trap",           "endless",       "protocol", "proxy", "advice",
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const struct ptx_kernel *kernel;
    uint32_t statement;
    enum sim_kind kind;
} seen[SEEN];
static uint32_t n_seen;
static uint64_t n_findings;
static char text[TEXT];
static size_t text_used;

uint64_t sim_report_count(void) {
    pthread_mutex_lock(&lock);
    uint64_t n = n_findings;
    pthread_mutex_unlock(&lock);
    return n;
}
const char *sim_report_text(void) { return text; }
void sim_report_clear(void) {
    pthread_mutex_lock(&lock);
    n_seen = 0, n_findings = 0, text_used = 0, text[0] = 0;
    pthread_mutex_unlock(&lock);
}

static const char *file_of(const struct sim_program *p, uint32_t file, uint32_t line) {
    const char *path = line && file < p->module->n_files ? p->module->files[file] : NULL;
    const char *base = path ? strrchr(path, '/') : NULL;
    return base ? base + 1 : path;
}

const char *sim_place(const struct sim_program *p, uint32_t statement) {
    static _Thread_local char buffers[4][256];
    static _Thread_local unsigned next;
    char *out = buffers[next++ % 4];
    if (statement >= p->kernel->n_statements) return "the end";
    const struct ptx_statement *s = &p->kernel->statements[statement];
    int n = snprintf(out, 200, "line %u %s", s->line, s->opcode);
    const char *file = file_of(p, s->file, s->source_line), *caller = file_of(p, s->call_file, s->call_line);
    if (file && caller && n > 0 && n < 150)
        snprintf(out + n, 256 - (size_t)n, " (%.40s:%u in %.40s:%u)", file, s->source_line, caller, s->call_line);
    else if (file && n > 0 && n < 200)
        snprintf(out + n, 256 - (size_t)n, " (%.40s:%u)", file, s->source_line);
    return out;
}

static void json_string(FILE *f, const char *s) {
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s == '\n')
            fputs("\\n", f);
        else if ((unsigned char)*s >= 32)
            fputc(*s, f);
    }
    fputc('"', f);
}
static void write_json(const char *path, const struct sim_warp *w, const struct sim_program *p, uint32_t statement,
                       uint32_t lanes, enum sim_kind kind, const char *message) {
    FILE *f = fopen(path, "a");
    if (!f) return;
    const struct ptx_statement *s = statement < p->kernel->n_statements ? &p->kernel->statements[statement] : NULL;
    const char *file = s && s->source_line && s->file < p->module->n_files ? p->module->files[s->file] : NULL;
    fputs("{\"kind\":", f);
    json_string(f, kinds[kind]);
    fputs(",\"kernel\":", f);
    json_string(f, p->kernel->name);
    fprintf(f, ",\"launch\":%" PRIu64 ",\"cta\":[%u,%u,%u],\"warp\":%u,\"lanes\":\"%08x\",\"ptx_line\":%u",
            w->cta->cluster->launch->number, w->cta->id[0], w->cta->id[1], w->cta->id[2], w->index, lanes,
            s ? s->line : 0);
    fputs(",\"instruction\":", f);
    json_string(f, s ? s->opcode : "");
    if (file) {
        fputs(",\"file\":", f);
        json_string(f, file);
        fprintf(f, ",\"line\":%u", s->source_line);
        if (file_of(p, s->call_file, s->call_line)) {
            fputs(",\"call_file\":", f);
            json_string(f, p->module->files[s->call_file]);
            fprintf(f, ",\"call_line\":%u", s->call_line);
        }
    }
    fputs(",\"text\":", f);
    json_string(f, message);
    fputs("}\n", f);
    fclose(f);
}

static void keep_text(const char *line, int n) {
    if (n <= 0 || text_used + (size_t)n >= sizeof text) return;
    memcpy(text + text_used, line, (size_t)n + 1);
    text_used += (size_t)n;
}

/* Under the lock. 1 if the place and kind are new. */
static int is_new(const struct ptx_kernel *k, uint32_t statement, enum sim_kind kind) {
    for (uint32_t i = 0; i < n_seen; i++)
        if (seen[i].kernel == k && seen[i].statement == statement && seen[i].kind == kind) return 0;
    if (n_seen == SEEN) return 0;
    seen[n_seen].kernel = k;
    seen[n_seen].statement = statement;
    seen[n_seen++].kind = kind;
    return 1;
}

/* Faults are always told; fences by the letter and advice have a switch each. */
static int is_wanted(enum sim_kind kind) {
    return kind == SIM_F_PROXY    ? sim_setting("ATTNSIM_FENCES", 1) != 0
           : kind == SIM_F_ADVICE ? sim_setting("ATTNSIM_ADVICE", 1) != 0
                                  : 1;
}

void sim_find(struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, enum sim_kind kind, const char *format,
              ...) {
    const struct sim_launch *g = w->cta->cluster->launch;
    const struct sim_program *p = g->program;
    uint32_t statement = in ? in->statement : p->ins[w->groups[w->current].pc].statement;
    if (!is_wanted(kind)) return;
    pthread_mutex_lock(&lock);
    if (kind != SIM_F_ADVICE) n_findings++;
    if (is_new(p->kernel, statement, kind)) {
        char message[2600];
        va_list list;
        va_start(list, format);
        vsnprintf(message, sizeof message, format, list);
        va_end(list);
        char line[3200];
        int n = snprintf(line, sizeof line,
                         "attnsim: %s: %s\n  %s, launch %" PRIu64 ", CTA (%u,%u,%u) warp %u lanes %08x, %s\n",
                         kinds[kind], message, p->kernel->name, g->number, w->cta->id[0], w->cta->id[1], w->cta->id[2],
                         w->index, lanes, sim_place(p, statement));
        keep_text(line, n);
        if (!g->options.quiet) fputs(line, stderr);
        const char *path = getenv("ATTNSIM_REPORT");
        if (path && path[0]) write_json(path, w, p, statement, lanes, kind, message);
    }
    pthread_mutex_unlock(&lock);
}

void sim_find_deed(const struct sim_program *p, uint32_t statement, const char *format, ...) {
    pthread_mutex_lock(&lock);
    n_findings++;
    if (is_new(p ? p->kernel : NULL, statement, SIM_F_RACE)) {
        char message[1200], line[1300];
        va_list list;
        va_start(list, format);
        vsnprintf(message, sizeof message, format, list);
        va_end(list);
        keep_text(line, snprintf(line, sizeof line, "attnsim: %s: %s\n", kinds[SIM_F_RACE], message));
        if (!sim_setting("ATTNSIM_QUIET", 0)) fputs(line, stderr);
        const char *path = getenv("ATTNSIM_REPORT");
        FILE *f = path && path[0] ? fopen(path, "a") : NULL;
        if (f) {
            fputs("{\"kind\":\"race\",\"text\":", f);
            json_string(f, message);
            fputs("}\n", f);
            fclose(f);
        }
    }
    pthread_mutex_unlock(&lock);
}
