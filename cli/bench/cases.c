/* SPDX-License-Identifier: MIT
 * Lists of problems for `attn bench`: where @NAME is looked for, and the line format. */
#include "bench/bench.h"
#include "io/io.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int append(struct attn_cli_cases *cases, const char *text, size_t n, const struct attn_cli_overlap *overlap) {
    char **larger = realloc(cases->text, (cases->n + 1) * sizeof *larger);
    if (!larger) return attn_cli_die("bench", "out of memory");
    cases->text = larger;
    struct attn_cli_overlap *overlaps = realloc(cases->overlap, (cases->n + 1) * sizeof *overlaps);
    if (!overlaps) return attn_cli_die("bench", "out of memory");
    cases->overlap = overlaps;
    cases->overlap[cases->n] = *overlap;
    cases->text[cases->n] = strndup(text, n);
    if (!cases->text[cases->n]) return attn_cli_die("bench", "out of memory");
    cases->n++;
    return ATTN_CLI_OK;
}

/* @NAME: the word as a path, then one of the lists that come with the program. */
static int locate(const char *name, char *path, size_t bytes) {
    char list[NAME_MAX];
    int m = snprintf(path, bytes, "%s", name);
    if (m < (int)bytes && !access(path, R_OK)) return 0;
    m = snprintf(list, sizeof list, "cases/%s.txt", name);
    return strchr(name, '/') || m >= (int)sizeof list ? -1 : attn_cli_data(list, path, bytes);
}

static int is_sparse(const attn_problem *p) { return p->topk > 0; }

/* Of a checked problem: lists are what an overlap is about. */
static int fits(const attn_problem *p, const struct attn_cli_overlap *overlap, const char *text) {
    if (!overlap->kind || is_sparse(p)) return ATTN_CLI_OK;
    return attn_cli_die("bench", "\"%s\": --overlap is for problems with index lists (topk)", text);
}

/* A line that sets the overlap of those after it: 1, or 0 if it is none, or -1 if what it says is none. */
static int overlap_line(const char *line, size_t n, struct attn_cli_overlap *overlap) {
    static const char option[] = "--overlap";
    char value[sizeof overlap->text] = "";
    const size_t m = sizeof option - 1;
    if (n <= m || strncmp(line, option, m) || !strchr(" =\t", line[m])) return 0;
    while (n > m && strchr(" =\t", line[n - 1]) == NULL) n--; /* to the last word */
    snprintf(value, sizeof value, "%.*s", (int)(strcspn(line + n, " \t\r\n#")), line + n);
    return attn_cli_overlap_parse(value, overlap) ? -1 : 1;
}

static int add_file(struct attn_cli_cases *cases, const char *name, struct attn_cli_overlap overlap) {
    char path[PATH_MAX];
    struct attn_cli_fault fault;
    void *data;
    size_t bytes;
    if (!strcmp(name, "-"))
        snprintf(path, sizeof path, "-");
    else if (locate(name, path, sizeof path))
        return attn_cli_die("bench", "@%s: no such file, and no list of that name comes with the program", name);
    if (attn_cli_file_read(path, 1 << 20, &data, &bytes, &fault)) return attn_cli_die("bench", "%s", fault.text);
    int code = ATTN_CLI_OK, line = 0;
    const char *p = data, *end = p + bytes;
    while (p < end && !code) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const char *next = stop ? stop + 1 : end;
        const char *hash = memchr(p, '#', (size_t)(next - p));
        if (!stop) stop = end;
        if (hash && hash < stop) stop = hash;
        line++;
        while (p < stop && (*p == ' ' || *p == '\t')) p++;
        while (stop > p && (stop[-1] == ' ' || stop[-1] == '\t' || stop[-1] == '\r')) stop--;
        const int sets = stop > p ? overlap_line(p, (size_t)(stop - p), &overlap) : 0;
        if (sets < 0) code = attn_cli_die("bench", "%s line %d: --overlap wants 0 to 1, random or prefix", path, line);
        if (stop > p && !sets) {
            attn_problem problem;
            code = append(cases, p, (size_t)(stop - p), &overlap);
            const char *text = code ? "" : cases->text[cases->n - 1];
            attn_status status = code ? ATTN_OK : attn_problem_parse(text, &problem);
            if (!status && !code) status = attn_problem_check(&problem);
            if (status) code = attn_cli_library("bench", status, "%s line %d: \"%s\"", path, line, text);
            if (!code) code = fits(&problem, &overlap, text);
        }
        p = next;
    }
    free(data);
    return code;
}

int attn_cli_cases_add(struct attn_cli_cases *cases, const char *word, const struct attn_cli_overlap *overlap) {
    if (word[0] == '@') return add_file(cases, word + 1, *overlap);
    attn_problem problem;
    int code = attn_cli_problem("bench", word, &problem);
    if (!code) code = fits(&problem, overlap, word);
    return code ? code : append(cases, word, strlen(word), overlap);
}

void attn_cli_cases_free(struct attn_cli_cases *cases) {
    for (size_t i = 0; i < cases->n; i++) free(cases->text[i]);
    free(cases->text);
    free(cases->overlap);
    *cases = (struct attn_cli_cases){0};
}
