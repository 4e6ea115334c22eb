/* SPDX-License-Identifier: MIT
 * Lists of problems for `attn bench`: where @NAME is looked for, and the line format. */
#include "bench/bench.h"
#include "io/io.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int append(struct attn_cli_cases *cases, const char *text, size_t n, const struct attn_cli_drawn *drawn) {
    char **larger = realloc(cases->text, (cases->n + 1) * sizeof *larger);
    if (!larger) return attn_cli_die("bench", "out of memory");
    cases->text = larger;
    struct attn_cli_drawn *more_drawn = realloc(cases->drawn, (cases->n + 1) * sizeof *more_drawn);
    if (!more_drawn) return attn_cli_die("bench", "out of memory");
    cases->drawn = more_drawn;
    cases->drawn[cases->n] = *drawn;
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
static int fits(const attn_problem *p, const struct attn_cli_drawn *drawn, const char *text) {
    if (!drawn->overlap.kind || is_sparse(p)) return attn_cli_lengths_fit(p, drawn->least_length, text);
    return attn_cli_die("bench", "\"%s\": --overlap is for problems with index lists (topk)", text);
}

/* The last word of a line `OPTION VALUE`, also with a = between: 1, or 0 if the line is another one. */
static int option_line(const char *line, size_t n, const char *option, char *value, size_t bytes) {
    const size_t m = strlen(option);
    if (n <= m || strncmp(line, option, m) || !strchr(" =\t", line[m])) return 0;
    while (n > m && strchr(" =\t", line[n - 1]) == NULL) n--; /* to the last word */
    snprintf(value, bytes, "%.*s", (int)(strcspn(line + n, " \t\r\n#")), line + n);
    return 1;
}

/* A line that says how the inputs of those after it are drawn: 1, or 0 if it is none, or -1 with the reason printed. */
static int drawn_line(const char *line, size_t n, struct attn_cli_drawn *drawn, const char *path, int number) {
    char value[sizeof drawn->overlap.text] = "";
    if (option_line(line, n, "--overlap", value, sizeof value)) {
        if (!attn_cli_overlap_parse(value, &drawn->overlap)) return 1;
        attn_cli_die("bench", "%s line %d: --overlap wants 0 to 1, random or prefix", path, number);
        return -1;
    }
    if (option_line(line, n, "--lengths", value, sizeof value)) {
        if (!attn_cli_int(value, 0, INT32_MAX, &drawn->least_length)) return 1;
        attn_cli_die("bench", "%s line %d: --lengths wants the least length, 0 for bounds", path, number);
        return -1;
    }
    return 0;
}

static int add_file(struct attn_cli_cases *cases, const char *name, struct attn_cli_drawn drawn) {
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
        const int sets = stop > p ? drawn_line(p, (size_t)(stop - p), &drawn, path, line) : 0;
        if (sets < 0) code = ATTN_CLI_ERROR;
        if (stop > p && !sets) {
            attn_problem problem;
            code = append(cases, p, (size_t)(stop - p), &drawn);
            const char *text = code ? "" : cases->text[cases->n - 1];
            attn_status status = code ? ATTN_OK : attn_problem_parse(text, &problem);
            if (!status && !code) status = attn_problem_check(&problem);
            if (status) code = attn_cli_library("bench", status, "%s line %d: \"%s\"", path, line, text);
            if (!code) code = fits(&problem, &drawn, text);
        }
        p = next;
    }
    free(data);
    return code;
}

int attn_cli_cases_add(struct attn_cli_cases *cases, const char *word, const struct attn_cli_drawn *drawn) {
    if (word[0] == '@') return add_file(cases, word + 1, *drawn);
    attn_problem problem;
    int code = attn_cli_problem("bench", word, &problem);
    if (!code) code = fits(&problem, drawn, word);
    return code ? code : append(cases, word, strlen(word), drawn);
}

void attn_cli_cases_free(struct attn_cli_cases *cases) {
    for (size_t i = 0; i < cases->n; i++) free(cases->text[i]);
    free(cases->text);
    free(cases->drawn);
    *cases = (struct attn_cli_cases){0};
}
