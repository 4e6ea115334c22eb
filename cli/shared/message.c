/* SPDX-License-Identifier: MIT
 * Messages of the commands: errors in one style, colours, the progress line, the clock. */
#include "shared/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int progress_shown; /* the commands run on one thread; pool threads never print */

static void say(const char *cmd, const char *kind, const char *format, va_list ap) {
    attn_cli_progress_end();
    fflush(stdout); /* keeps the two streams in order where both go to one file */
    fprintf(stderr, "%sattn%s%s:%s %s", attn_cli_sgr(stderr, "1"), *cmd ? " " : "", cmd, attn_cli_sgr(stderr, "0"),
            kind);
    vfprintf(stderr, format, ap);
}

int attn_cli_die(const char *cmd, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    say(cmd, "", format, ap);
    va_end(ap);
    fputc('\n', stderr);
    return ATTN_CLI_ERROR;
}

int attn_cli_usage(const char *cmd, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    say(cmd, "", format, ap);
    va_end(ap);
    fprintf(stderr, "\nTry 'attn %s --help'.\n", cmd);
    return ATTN_CLI_USAGE;
}

int attn_cli_library(const char *cmd, attn_status status, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    say(cmd, "", format, ap);
    va_end(ap);
    const char *text = attn_last_error();
    fprintf(stderr, ": %s [%s]\n", *text ? text : attn_status_text(status), attn_status_name(status));
    return ATTN_CLI_ERROR;
}

void attn_cli_warn(const char *cmd, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    say(cmd, "warning: ", format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

int attn_cli_bad_option(const char *cmd, int opt, char **argv) {
    /* A bad short option may sit inside a group (-xj), where optind still points at the group; optopt names it. A bad
     * long option leaves optopt 0 (unknown) or its code (missing or surplus value). */
    const char *word = optind > 0 ? argv[optind - 1] : "";
    const char *what = opt == ':' ? "needs a value" : "unknown option";
    if (optopt > 32 && optopt < 127 && strncmp(word, "--", 2) != 0)
        return opt == ':' ? attn_cli_usage(cmd, "-%c %s", optopt, what) : attn_cli_usage(cmd, "%s '-%c'", what, optopt);
    if (opt == ':') return attn_cli_usage(cmd, "%s %s", word, what);
    if (optopt) return attn_cli_usage(cmd, "option '%s' takes no value", word);
    return attn_cli_usage(cmd, "%s '%s'", what, word);
}

int attn_cli_coloured(FILE *stream) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(no && *no) && !(term && !strcmp(term, "dumb")) && isatty(fileno(stream));
}

const char *attn_cli_sgr(FILE *stream, const char *code) {
    static const char *const codes[][2] = {{"0", "\033[0m"},   {"1", "\033[1m"},   {"2", "\033[2m"},
                                           {"31", "\033[31m"}, {"32", "\033[32m"}, {"33", "\033[33m"},
                                           {"34", "\033[34m"}, {"35", "\033[35m"}, {"36", "\033[36m"}};
    if (attn_cli_coloured(stream))
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            if (!strcmp(codes[i][0], code)) return codes[i][1];
    return "";
}

int attn_cli_columns(FILE *stream) {
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void attn_cli_progress(const char *format, ...) {
    if (!isatty(STDERR_FILENO)) return;
    char line[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    int width = attn_cli_columns(stderr) - 1; /* a full last column would wrap and break the overwriting */
    fprintf(stderr, "\r\033[K%.*s", width > 0 ? width : 79, line);
    fflush(stderr);
    progress_shown = 1;
}

void attn_cli_progress_end(void) {
    if (!progress_shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress_shown = 0;
}

double attn_cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
