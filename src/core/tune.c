/* SPDX-License-Identifier: MIT
 * Measured choices: the table and its text file. The file opens with "attn-tuning 1"; then one entry a line, fields
 * separated by tabs: kernel, seconds, threads, device name, problem text. '#' opens a comment line. Callers lock. */
#include "core/tune.h"

#include "attn.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "core/problem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADING        "attn-tuning 1"
#define MAX_FILE_BYTES (INT64_C(16) << 20)
enum { NAME_BYTES = 96, LINE_BYTES = 2048 };

struct name {
    struct name *next;
    char text[NAME_BYTES];
};
struct entry {
    attn_problem problem;
    uint64_t hash;
    double seconds;
    const char *kernel; /* one of the names */
    int32_t threads;
    char device[NAME_BYTES];
};
struct attn_core_tuning {
    struct entry *entries;
    size_t n, cap;
    struct name *names; /* kernel names, kept until the end: find hands them out */
};

attn_status attn_core_tuning_create(struct attn_mem *mem, struct attn_core_tuning **out) {
    struct attn_core_tuning *table = attn_base_alloc(mem, sizeof *table, _Alignof(struct attn_core_tuning));
    if (!table) return ATTN_E_MEMORY;
    *out = table;
    return ATTN_OK;
}

void attn_core_tuning_destroy(struct attn_mem *mem, struct attn_core_tuning *table) {
    if (!table) return;
    for (struct name *name = table->names, *next; name; name = next) {
        next = name->next;
        attn_base_free(mem, name, sizeof *name);
    }
    attn_base_free(mem, table->entries, table->cap * sizeof *table->entries);
    attn_base_free(mem, table, sizeof *table);
}

static struct entry *find(const struct attn_core_tuning *table, const attn_problem *problem, const char *device,
                          int32_t threads) {
    uint64_t hash = table->n ? attn_problem_hash(problem) : 0;
    for (size_t i = 0; i < table->n; i++) {
        struct entry *e = &table->entries[i];
        if (e->hash == hash && e->threads == threads && !strcmp(e->device, device) &&
            attn_problem_equal(&e->problem, problem))
            return e;
    }
    return NULL;
}

const char *attn_core_tuning_find(const struct attn_core_tuning *table, const attn_problem *problem,
                                  const char *device_name, int32_t threads) {
    const struct entry *e = find(table, problem, device_name, threads);
    return e ? e->kernel : NULL;
}

double attn_core_tuning_seconds(const struct attn_core_tuning *table, const attn_problem *problem,
                                const char *device_name, int32_t threads) {
    const struct entry *e = find(table, problem, device_name, threads);
    return e ? e->seconds : 0;
}

/* ---- changing the table ---- */

static attn_status reserve(struct attn_mem *mem, struct attn_core_tuning *table, size_t extra) {
    if (table->cap - table->n >= extra) return ATTN_OK;
    size_t cap = table->cap ? table->cap : 16;
    while (cap - table->n < extra) cap *= 2;
    struct entry *entries = attn_base_alloc(mem, cap * sizeof *entries, _Alignof(struct entry));
    if (!entries) return ATTN_E_MEMORY;
    if (table->n) memcpy(entries, table->entries, table->n * sizeof *entries);
    attn_base_free(mem, table->entries, table->cap * sizeof *entries);
    table->entries = entries;
    table->cap = cap;
    return ATTN_OK;
}

static attn_status intern(struct attn_mem *mem, struct attn_core_tuning *table, const char *kernel, const char **out) {
    struct name *name = table->names;
    while (name && strcmp(name->text, kernel)) name = name->next;
    if (!name) {
        name = attn_base_alloc(mem, sizeof *name, _Alignof(struct name));
        if (!name) return ATTN_E_MEMORY;
        memcpy(name->text, kernel, strlen(kernel) + 1);
        name->next = table->names;
        table->names = name;
    }
    *out = name->text;
    return ATTN_OK;
}

/* Replaces or appends; room for one entry is there. */
static void store(struct attn_core_tuning *table, const struct entry *e) {
    struct entry *slot = find(table, &e->problem, e->device, e->threads);
    if (!slot) slot = &table->entries[table->n++];
    *slot = *e;
}

/* Printable text without blanks at the ends, that fits; device names may hold blanks inside, kernel names none. */
static int storable(const char *s, int blanks) {
    size_t n = strlen(s);
    if (n == 0 || n >= NAME_BYTES || s[0] == ' ' || s[n - 1] == ' ') return 0;
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127 || (*s == ' ' && !blanks)) return 0;
    return 1;
}

/* Everything but the kernel's interned name. On refusal *why says what is wrong. */
static int make_entry(struct entry *e, const char *kernel, double seconds, int64_t threads, const char *device,
                      const char **why) {
    *why = !storable(kernel, 0)                   ? "the kernel name is empty, too long or holds a blank"
           : kernel[0] == '#'                     ? "the kernel name opens with '#'"
           : !(isfinite(seconds) && seconds >= 0) ? "seconds is not a finite number of 0 or more"
           : threads < 1 || threads > INT32_MAX   ? "the thread count is not 1 or more"
           : !storable(device, 1)                 ? "the device name is empty, too long or not printable"
                                                  : NULL;
    if (*why) return 0;
    e->seconds = seconds;
    e->threads = (int32_t)threads;
    memcpy(e->device, device, strlen(device) + 1);
    e->hash = attn_problem_hash(&e->problem);
    return 1;
}

attn_status attn_core_tuning_put(struct attn_mem *mem, struct attn_core_tuning *table, const attn_problem *problem,
                                 const char *device_name, int32_t threads, const char *kernel, double seconds) {
    struct entry e = {0};
    const char *why;
    TRY(attn_core_struct_copy(&e.problem, sizeof e.problem, problem, "problem"));
    TRY(attn_problem_check(&e.problem));
    if (!make_entry(&e, kernel, seconds, threads, device_name, &why))
        FAIL(ATTN_E_ARGUMENT, "tuning", "tuning entry: %s", why);
    TRY(reserve(mem, table, 1));
    TRY(intern(mem, table, kernel, &e.kernel));
    store(table, &e);
    return ATTN_OK;
}

/* ---- text ---- */

/* Splits `line` in place; 0 unless it has exactly n fields. */
static int split(char *line, char **field, int n) {
    for (int i = 0; i < n; i++) {
        field[i] = line;
        char *tab = strchr(line, '\t');
        if ((tab != NULL) != (i < n - 1)) return 0;
        if (tab) *tab = 0, line = tab + 1;
    }
    return 1;
}

/* One line without its end; *kernel points into it. 0 with *why on a fault. */
static int parse_line(char *line, struct entry *e, const char **kernel, const char **why) {
    char *field[5];
    double seconds;
    int64_t threads;
    *e = (struct entry){0};
    *why = "expected five fields between tabs: kernel, seconds, threads, device, problem";
    if (!split(line, field, 5)) return 0;
    *kernel = field[0];
    *why = "seconds is not a number";
    if (attn_text_double(field[1], strlen(field[1]), &seconds)) return 0;
    *why = "the thread count is not a number";
    if (attn_text_int64(field[2], strlen(field[2]), &threads)) return 0;
    *why = NULL; /* the error record of the two below says it */
    if (attn_problem_parse(field[4], &e->problem) || attn_problem_check(&e->problem)) {
        *why = attn_base_error_get()->text;
        return 0;
    }
    return make_entry(e, field[0], seconds, threads, field[3], why);
}

/* Next line of [*at, end) into buf without its end of line; -1 = too long or with a NUL inside, 0 = no more. */
static int next_line(const char **cursor, const char *end, char *buf) {
    if (*cursor >= end) return 0;
    const char *stop = memchr(*cursor, '\n', (size_t)(end - *cursor));
    const char *next = stop ? stop + 1 : end;
    size_t n = (size_t)((stop ? stop : end) - *cursor);
    if (n && (*cursor)[n - 1] == '\r') n--;
    if (n >= LINE_BYTES || memchr(*cursor, 0, n)) return -1;
    memcpy(buf, *cursor, n);
    buf[n] = 0;
    *cursor = next;
    return 1;
}

attn_status attn_core_tuning_parse(struct attn_mem *mem, struct attn_core_tuning *table, const char *text,
                                   size_t bytes) {
    char line[LINE_BYTES];
    struct entry e;
    const char *kernel, *why, *end = text + bytes;
    /* Twice over the text: pass 0 judges every line, then, with names and room reserved, pass 1 cannot fail. */
    for (int pass = 0; pass < 2; pass++) {
        const char *cursor = text;
        size_t number = 0, n = 0;
        int got;
        for (; (got = next_line(&cursor, end, line)) != 0;) {
            number++;
            if (got < 0)
                FAIL2(ATTN_E_IO, "tuning_file", LINE_BYTES - 1, (int64_t)number,
                      "tuning file, line %zu: too long or not text", number);
            if (number == 1) {
                if (strcmp(line, HEADING))
                    FAIL2(ATTN_E_IO, "tuning_file", 0, 1, "tuning file, line 1: '%.40s', expected '" HEADING "'", line);
                continue;
            }
            if (!line[0] || line[0] == '#') continue;
            if (!parse_line(line, &e, &kernel, &why))
                FAIL2(ATTN_E_IO, "tuning_file", 0, (int64_t)number, "tuning file, line %zu: %s", number, why);
            TRY(intern(mem, table, kernel, &e.kernel)); /* in pass 1 the name is there */
            if (pass == 1) store(table, &e);
            n++;
        }
        if (!number) FAIL(ATTN_E_IO, "tuning_file", "tuning file, line 1: empty, expected '" HEADING "'");
        if (pass == 0) TRY(reserve(mem, table, n));
    }
    return ATTN_OK;
}

/* ---- files ---- */

static attn_status fail_io(const char *what, const char *path) {
    FAIL2(ATTN_E_IO, "tuning_file", 0, errno, "cannot %s tuning file '%.300s': %s", what, path, strerror(errno));
}

static attn_status read_all(int fd, const char *path, char *text, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, text + got, bytes - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_io("read", path);
        if (n == 0) FAIL(ATTN_E_IO, "tuning_file", "tuning file '%.300s' became shorter while it was read", path);
        got += (size_t)n;
    }
    return ATTN_OK;
}

static attn_status load_fd(struct attn_mem *mem, struct attn_core_tuning *table, int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info)) return fail_io("read", path);
    if (!S_ISREG(info.st_mode)) FAIL(ATTN_E_IO, "tuning_file", "tuning file '%.300s' is not a regular file", path);
    if (info.st_size > MAX_FILE_BYTES)
        FAIL2(ATTN_E_IO, "tuning_file", MAX_FILE_BYTES, info.st_size,
              "tuning file '%.300s' has %jd bytes, expected at most %jd", path, (intmax_t)info.st_size,
              (intmax_t)MAX_FILE_BYTES);
    size_t bytes = (size_t)info.st_size;
    char *text = attn_base_alloc(mem, bytes, 1);
    if (!text) return ATTN_E_MEMORY;
    attn_status status = read_all(fd, path, text, bytes);
    if (!status) status = attn_core_tuning_parse(mem, table, text, bytes);
    attn_base_free(mem, text, bytes);
    return status;
}

attn_status attn_core_tuning_load(struct attn_mem *mem, struct attn_core_tuning *table, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe must not hang the opening */
    if (fd < 0) return fail_io("open", path);
    attn_status status = load_fd(mem, table, fd, path);
    close(fd);
    return status;
}

static int write_all(int fd, const char *s, size_t n) {
    while (n) {
        ssize_t done = write(fd, s, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        s += done;
        n -= (size_t)done;
    }
    return 0;
}

static int write_entries(const struct attn_core_tuning *table, int fd) {
    char line[LINE_BYTES];
    if (write_all(fd, HEADING "\n", sizeof HEADING)) return -1;
    for (size_t i = 0; i < table->n; i++) {
        const struct entry *e = &table->entries[i];
        char problem[LINE_BYTES / 2];
        struct attn_text text = attn_text_over(line, sizeof line);
        if (attn_problem_format(&e->problem, problem, sizeof problem, NULL))
            continue; /* put and parse let none such in */
        attn_text_add(&text, "%s\t", e->kernel);
        attn_text_add_double(&text, e->seconds);
        attn_text_add(&text, "\t%" PRId32 "\t%s\t%s\n", e->threads, e->device, problem);
        if (write_all(fd, line, text.len)) return -1;
    }
    return 0;
}

/* Written to another file in the target's folder and renamed over it: a reader sees the old file or the new one,
 * whole. */
attn_status attn_core_tuning_save(const struct attn_core_tuning *table, const char *path) {
    char temporary[4096];
    int fd = -1;
    for (int attempt = 0; fd < 0 && attempt < 100; attempt++) {
        int n = snprintf(temporary, sizeof temporary, "%s.%ld.%d.tmp", path, (long)getpid(), attempt);
        if (n < 0 || (size_t)n >= sizeof temporary) FAIL(ATTN_E_IO, "path", "the path of the tuning file is too long");
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) return fail_io("create", path);
    int bad = write_entries(table, fd) || fsync(fd);
    int saved = errno;
    if (close(fd) && !bad) bad = 1, saved = errno;
    if (!bad && rename(temporary, path)) bad = 1, saved = errno;
    if (!bad) return ATTN_OK;
    unlink(temporary);
    errno = saved;
    return fail_io("write", path);
}
