/* SPDX-License-Identifier: MIT
 * Findings are kept once per kernel, place and reason: a fault is written to standard error (or the file of
 * ATTNSIM_REPORT, as a JSON line) when first met, advice at the end of its launch with a count. */
#include "checks/report.h"
#include "driver/cu.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 4096, SLOTS = 2 * ENTRIES, TEXT = 1 << 16 };
enum { PLACE = 480, OPCODE = 160, FILE_LINE = 60 }; /* bytes of a place, its statement, a line of a source */
/* A class's variable: 0 not told, 1 advice, 2 faults. */
enum class { NOT_TOLD, AS_ADVICE, AS_FAULT };
static const struct {
    const char *word, *setting; /* NULL: a fault always */
    int otherwise, most;        /* values of the variable: where it is not set, and at most */
} kinds[SIM_F_KINDS] = {
    [SIM_F_BOUNDS] = {"out of bounds", NULL, 0, 0},
    [SIM_F_ALIGNMENT] = {"misaligned", NULL, 0, 0},
    [SIM_F_FREED] = {"use after free", NULL, 0, 0},
    [SIM_F_UNINITIALISED] = {"uninitialised", NULL, 0, 0},
    [SIM_F_RACE] = {"race", NULL, 0, 0},
    [SIM_F_ASYNC] = {"async", NULL, 0, 0},
    [SIM_F_DEADLOCK] = {"deadlock", NULL, 0, 0},
    [SIM_F_DIVERGENCE] = {"divergence", NULL, 0, 0},
    [SIM_F_BARRIER] = {"barrier", NULL, 0, 0},
    [SIM_F_TRAP] = {"trap", NULL, 0, 0},
    [SIM_F_ENDLESS] = {"endless", NULL, 0, 0},
    [SIM_F_PROTOCOL] = {"protocol", NULL, 0, 0},
    [SIM_F_PROXY] = {"proxy", "ATTNSIM_FENCES", AS_ADVICE, AS_FAULT},
    [SIM_F_UNWAITED] = {"unwaited", "ATTNSIM_WAITS", AS_ADVICE, AS_FAULT},
    [SIM_F_ADVICE] = {"advice", "ATTNSIM_ADVICE", AS_ADVICE, AS_ADVICE},
};
struct entry {
    /* what makes it one: a line of the source and of the call that was inlined there, or else the statement */
    const void *kernel, *reason;
    uint32_t line, call, statement;
    enum sim_kind kind;
    uint64_t count;        /* 0: not in use */
    char *message, *where; /* of the first; where: behind the count */
    char *json;            /* without its count and end */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[ENTRIES];
static uint16_t slots[SLOTS]; /* 1 + number of the entry */
static uint32_t n_entries, n_listed;
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
    for (uint32_t i = 0; i < n_entries; i++) free(entries[i].message), free(entries[i].where), free(entries[i].json);
    memset(entries, 0, n_entries * sizeof *entries);
    memset(slots, 0, sizeof slots);
    n_entries = n_listed = 0, n_findings = 0, text_used = 0, text[0] = 0;
    pthread_mutex_unlock(&lock);
}

static const char *file_of(const struct sim_program *p, uint32_t file, uint32_t line) {
    const char *path = line && file < p->module->n_files ? p->module->files[file] : NULL;
    const char *base = path ? strrchr(path, '/') : NULL;
    return base ? base + 1 : path;
}

const char *sim_place(const struct sim_program *p, uint32_t statement) {
    static _Thread_local char buffers[4][PLACE];
    static _Thread_local unsigned next;
    char *out = buffers[next++ % 4];
    if (statement >= p->kernel->n_statements) return "the end";
    const struct ptx_statement *s = &p->kernel->statements[statement];
    int n = snprintf(out, OPCODE, "line %u %s", s->line, s->opcode);
    const char *file = file_of(p, s->file, s->source_line);
    if (n < 0 || !file) return out;
    if (n >= OPCODE) n = OPCODE - 1;
    n += snprintf(out + n, FILE_LINE, " (%.40s:%u", file, s->source_line);
    for (uint32_t i = s->call; i && n < PLACE - FILE_LINE; i = p->kernel->places[i - 1].call) {
        const struct ptx_place *call = &p->kernel->places[i - 1];
        file = file_of(p, call->file, call->line);
        if (file) n += snprintf(out + n, FILE_LINE, " in %.40s:%u", file, call->line);
    }
    snprintf(out + n, 2, ")");
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
/* A finding as a JSON object without its end. */
static char *json_of(const struct sim_warp *w, const struct sim_program *p, uint32_t statement, uint32_t lanes,
                     enum sim_kind kind, enum class class, const char *message) {
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);
    if (!f) return NULL;
    const struct ptx_statement *s = statement < p->kernel->n_statements ? &p->kernel->statements[statement] : NULL;
    const char *file = s && s->source_line && s->file < p->module->n_files ? p->module->files[s->file] : NULL;
    fputs("{\"kind\":", f);
    json_string(f, kinds[kind].word);
    fprintf(f, ",\"class\":\"%s\",\"text\":", class == AS_FAULT ? "fault" : "advice");
    json_string(f, message);
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
        const char *before = ",\"calls\":[";
        for (uint32_t i = s->call; i; i = p->kernel->places[i - 1].call) {
            const struct ptx_place *call = &p->kernel->places[i - 1];
            if (!file_of(p, call->file, call->line)) continue;
            char place[300];
            snprintf(place, sizeof place, "%.280s:%u", p->module->files[call->file], call->line);
            fputs(before, f), json_string(f, place);
            before = ",";
        }
        if (s->call && before[1] == 0) fputc(']', f);
        if (w->passed) fputs(",\"waited\":", f), json_string(f, sim_place(p, w->passed - 1));
    }
    if (fclose(f)) return NULL;
    return out;
}
static void write_json(const char *object, uint64_t count) {
    const char *path = getenv("ATTNSIM_REPORT");
    FILE *f = path && path[0] && object ? fopen(path, "a") : NULL;
    if (!f) return;
    fputs(object, f);
    if (count) fprintf(f, ",\"count\":%" PRIu64, count);
    fputs("}\n", f);
    fclose(f);
}

void sim_tell_refusal(const char *reason) {
    char *object = NULL;
    size_t bytes;
    FILE *f = open_memstream(&object, &bytes);
    if (!sim_setting("ATTNSIM_QUIET", 0)) fprintf(stderr, "attnsim: %s\n", reason);
    if (!f) return;
    fputs("{\"kind\":\"refused\",\"class\":\"fault\",\"text\":", f);
    json_string(f, reason);
    if (!fclose(f)) write_json(object, 0);
    free(object);
}

static void keep_text(const char *line, int quiet) {
    const size_t n = strlen(line);
    if (!quiet) fputs(line, stderr);
    if (text_used + n >= sizeof text) return;
    memcpy(text + text_used, line, n + 1);
    text_used += n;
}

/* Under the lock. The entry of the place and reason, with count 0 if it is new; NULL: there is no room. */
static struct entry *entry_of(const struct sim_program *p, uint32_t statement, enum sim_kind kind, const char *reason) {
    struct entry key = {.kernel = p ? p->kernel : NULL, .reason = reason, .statement = statement, .kind = kind};
    if (p && statement < p->kernel->n_statements) {
        const struct ptx_statement *s = &p->kernel->statements[statement];
        if (s->source_line) {
            key.line = s->source_line << 8 | (s->file & 255), key.call = s->call_line << 8 | (s->call_file & 255);
            key.statement = 0;
        }
    }
    uint64_t hash = (uint64_t)(uintptr_t)key.kernel ^ (uint64_t)(uintptr_t)reason << 7 ^ (uint64_t)kind << 50;
    hash ^= (uint64_t)key.line << 20 ^ (uint64_t)key.call << 33 ^ key.statement;
    hash = sim_random(&hash);
    for (uint64_t i = hash % SLOTS;; i = (i + 1) % SLOTS) {
        if (!slots[i]) {
            if (n_entries == ENTRIES) return NULL;
            entries[n_entries] = key;
            slots[i] = (uint16_t)++n_entries;
            return &entries[n_entries - 1];
        }
        struct entry *e = &entries[slots[i] - 1];
        if (e->kernel == key.kernel && e->reason == reason && e->kind == kind && e->line == key.line &&
            e->call == key.call && e->statement == key.statement)
            return e;
    }
}

static enum class class_of(enum sim_kind kind) {
    if (!kinds[kind].setting) return AS_FAULT;
    const long long set = sim_setting(kinds[kind].setting, kinds[kind].otherwise);
    return set <= NOT_TOLD          ? NOT_TOLD
           : set < kinds[kind].most ? (enum class)set
                                    : (enum class)kinds[kind].most;
}

void sim_find(struct sim_warp *w, const struct sim_ins *in, uint32_t lanes, enum sim_kind kind, const char *format,
              ...) {
    const struct sim_launch *g = w->cta->cluster->launch;
    const struct sim_program *p = g->program;
    const enum class class = class_of(kind);
    uint32_t statement = in ? in->statement : p->ins[w->groups[w->current].pc].statement;
    if (class == NOT_TOLD) return;
    pthread_mutex_lock(&lock);
    if (class == AS_FAULT) n_findings++;
    struct entry *e = entry_of(p, statement, kind, format);
    if (e && !e->count++) {
        char message[4200], where[1200];
        va_list list;
        va_start(list, format);
        vsnprintf(message, sizeof message, format, list);
        va_end(list);
        const int waited = w->passed && kind != SIM_F_DEADLOCK && kind != SIM_F_DIVERGENCE;
        snprintf(where, sizeof where, "launch %" PRIu64 ", CTA (%u,%u,%u) warp %u lanes %08x, %s%s%s\n  %s\n",
                 g->number, w->cta->id[0], w->cta->id[1], w->cta->id[2], w->index, lanes, sim_place(p, statement),
                 waited ? "\n  the last wait that the warp has behind it: " : "",
                 waited ? sim_place(p, w->passed - 1) : "", p->kernel->name);
        char *json = json_of(w, p, statement, lanes, kind, class, message);
        if (class == AS_FAULT) {
            char line[5600];
            snprintf(line, sizeof line, "attnsim: %s: %s\n  %s", kinds[kind].word, message, where);
            keep_text(line, g->options.quiet);
            write_json(json, 0);
            free(json);
        } else {
            e->message = strdup(message), e->where = strdup(where), e->json = json;
        }
    }
    pthread_mutex_unlock(&lock);
}

void sim_report_advice(void) {
    const int quiet = sim_setting("ATTNSIM_QUIET", 0) != 0;
    pthread_mutex_lock(&lock);
    for (; n_listed < n_entries; n_listed++) {
        struct entry *e = &entries[n_listed];
        char line[5600];
        if (!e->message || !e->where) continue;
        const char *word = e->kind == SIM_F_ADVICE ? "" : kinds[e->kind].word;
        snprintf(line, sizeof line, "attnsim: advice: %s%s%s\n  %" PRIu64 " time%s, first %s", word,
                 word[0] ? ": " : "", e->message, e->count, e->count > 1 ? "s" : "", e->where);
        keep_text(line, quiet);
        write_json(e->json, e->count);
        free(e->message), free(e->where), free(e->json);
        e->message = e->where = e->json = NULL;
    }
    pthread_mutex_unlock(&lock);
}

void sim_find_deed(const struct sim_program *p, uint32_t statement, const char *format, ...) {
    pthread_mutex_lock(&lock);
    n_findings++;
    struct entry *e = entry_of(p, statement, SIM_F_RACE, format);
    if (e && !e->count++) {
        char message[1600], line[1700];
        va_list list;
        va_start(list, format);
        vsnprintf(message, sizeof message, format, list);
        va_end(list);
        snprintf(line, sizeof line, "attnsim: %s: %s\n", kinds[SIM_F_RACE].word, message);
        keep_text(line, sim_setting("ATTNSIM_QUIET", 0) != 0);
        char *json = NULL;
        size_t bytes;
        FILE *f = open_memstream(&json, &bytes);
        if (f) {
            fputs("{\"kind\":\"race\",\"class\":\"fault\",\"text\":", f);
            json_string(f, message);
            if (!fclose(f)) write_json(json, 0);
        }
        free(json);
    }
    pthread_mutex_unlock(&lock);
}
