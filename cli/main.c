/* SPDX-License-Identifier: MIT
 * Entry point of the `attn` program: the command table, --help, --version, and the check that output was written. */
#include "shared/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct attn_cli_command attn_cli_commands[] = {
    {"run", "compute one problem on tensors from files or on random data", attn_cli_run},
    {"plan", "show which kernel a problem gets, and why", attn_cli_plan},
    {"list", "kernels, devices and operators of this build", attn_cli_list},
    {"check", "compare every kernel with the reference", attn_cli_check},
    {"bench", "measure problems", attn_cli_bench},
    {"dist", "draw where a query's attention goes", attn_cli_dist},
    {"demo", "run a small language model on libattn", attn_cli_demo},
    {"env", "environment variables and their values", attn_cli_env},
    {"version", "version of the program and of the library", attn_cli_version},
    {"help", "help on a command", attn_cli_help},
    {NULL, NULL, NULL},
};

static const struct attn_cli_command *find(const char *name) {
    for (const struct attn_cli_command *c = attn_cli_commands; c->name; c++)
        if (!strcmp(c->name, name)) return c;
    return NULL;
}

/* Levenshtein distance, by rows; 99 for words longer than any command. */
static int distance(const char *a, const char *b) {
    enum { LONGEST = 16 };
    const size_t n = strlen(a), m = strlen(b);
    int row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST) return 99;
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            const int change = diagonal + (a[i - 1] != b[j - 1]),
                      step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < step ? change : step;
        }
    }
    return row[m];
}

/* ", did you mean 'list'?" for a command that differs from `name` by a letter, of four letters and more by two; or "".
 * Of commands equally near the one that --help names first. */
static const char *hint(const char *name) {
    static char text[48];
    const struct attn_cli_command *nearest = NULL;
    int least = strlen(name) < 4 ? 2 : 3;
    for (const struct attn_cli_command *c = attn_cli_commands; c->name; c++) {
        const int d = distance(name, c->name);
        if (d < least) least = d, nearest = c;
    }
    if (!nearest) return "";
    snprintf(text, sizeof text, ", did you mean '%s'?", nearest->name);
    return text;
}

static void print_help(FILE *out) {
    fprintf(out, "Usage: attn COMMAND [OPTIONS] [ARGUMENTS]\n\nFused attention on CPU and NVIDIA GPUs.\n\nCommands:\n");
    for (const struct attn_cli_command *c = attn_cli_commands; c->name; c++)
        fprintf(out, "  %s%-9s%s %s\n", attn_cli_sgr(out, "1"), c->name, attn_cli_sgr(out, "0"), c->summary);
    fprintf(out, "\nOptions:\n"
                 "  -h, --help       this text; after a command: its options\n"
                 "  -V, --version    version\n"
                 "\nExit status: 0 success, 1 a check failed, 2 wrong usage, 3 library or file error, 77 skipped.\n");
}

const char *attn_cli_commit(void) {
#ifdef ATTN_CLI_COMMIT
    return ATTN_CLI_COMMIT;
#else
    return "";
#endif
}

int attn_cli_version(int argc, char **argv) {
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        if (c != 'h') return attn_cli_bad_option("version", c, argv);
        printf("Usage: attn version\n\nPrint the version of the program and of the library that it runs with.\n");
        return ATTN_CLI_OK;
    }
    if (optind < argc) return attn_cli_usage("version", "unexpected argument '%s'", argv[optind]);
    uint32_t v = attn_version();
    printf("attn %d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH);
    if (*attn_cli_commit()) printf(" (%s)", attn_cli_commit());
    printf("\nlibattn %u.%u.%u\n", v >> 16, (v >> 8) & 255, v & 255);
    return ATTN_CLI_OK;
}

int attn_cli_help(int argc, char **argv) {
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_help(stdout);
        return ATTN_CLI_OK;
    }
    if (argc > 2) return attn_cli_usage("help", "unexpected argument '%s'", argv[2]);
    const struct attn_cli_command *command = find(argv[1]);
    if (!command) return attn_cli_usage("help", "no command '%s'%s", argv[1], hint(argv[1]));
    if (command->run == attn_cli_help) {
        print_help(stdout);
        return ATTN_CLI_OK;
    }
    char help[] = "--help", *sub[] = {argv[1], help, NULL};
    return command->run(2, sub);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return ATTN_CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "-h") || !strcmp(name, "--help"))
        name = "help";
    else if (!strcmp(name, "-V") || !strcmp(name, "--version"))
        name = "version";
    const struct attn_cli_command *command = find(name);
    if (!command) {
        const int is_option = name[0] == '-';
        fprintf(stderr, "attn: %s '%s'%s\nTry 'attn --help'.\n", is_option ? "unknown option" : "no command", name,
                is_option ? "" : hint(name));
        return ATTN_CLI_USAGE;
    }
    opterr = 0;
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    int code = dispatch(argc, argv);
    /* A full disk or a closed pipe shows only here, when the buffer is written. */
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "attn: standard output: %s\n", strerror(errno));
        if (code == ATTN_CLI_OK) code = ATTN_CLI_ERROR;
    }
    return code;
}
