/* SPDX-License-Identifier: MIT
 * `attn env`: the library's own table of environment variables, with the values in force. */
#include "shared/cli.h"

#include <jansson.h>
#include <string.h>

static int print_json(int32_t n) {
    json_t *root = json_array();
    for (int32_t i = 0; i < n; i++) {
        attn_env_info info = {.size = sizeof info};
        if (attn_env_get_info(i, &info)) continue;
        json_array_append_new(root, json_pack("{s:s, s:s, s:s?, s:s}", "name", info.name, "type", info.type, "value",
                                              *info.value ? info.value : NULL, "help", info.help));
    }
    int failed = json_dumpf(root, stdout, JSON_INDENT(2));
    json_decref(root);
    if (failed) return attn_cli_die("env", "the JSON text could not be written");
    putchar('\n');
    return ATTN_CLI_OK;
}

/* Words of the help, wrapped and indented. */
static void print_help_text(const char *text) {
    const int width = 96, indent = 4;
    int column = 0;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column && column + 1 + n > width) {
            putchar('\n');
            column = 0;
        }
        column += printf("%*s%.*s", column ? 1 : indent, "", n, text);
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
}

int attn_cli_env(int argc, char **argv) {
    static const struct option table[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int json = 0;
    for (int c; (c = getopt_long(argc, argv, ":hj", table, NULL)) != -1;) {
        if (c == 'j') {
            json = 1;
        } else if (c == 'h') {
            printf("Usage: attn env [--json]\n\nThe environment variables that libattn reads, their values now, and "
                   "what they do.\n\n  -j, --json    JSON array on stdout\n  -h, --help    this text\n");
            return ATTN_CLI_OK;
        } else {
            return attn_cli_bad_option("env", c, argv);
        }
    }
    if (optind < argc) return attn_cli_usage("env", "unexpected argument '%s'", argv[optind]);
    int32_t n = attn_env_count();
    if (json) return print_json(n);
    for (int32_t i = 0; i < n; i++) {
        attn_env_info info = {.size = sizeof info};
        attn_status status = attn_env_get_info(i, &info);
        if (status) return attn_cli_library("env", status, "row %d", i);
        printf("%s%-20s%s %-6s %s\n", attn_cli_sgr(stdout, "1"), info.name, attn_cli_sgr(stdout, "0"), info.type,
               *info.value ? info.value : "(unset)");
        print_help_text(info.help);
    }
    return ATTN_CLI_OK;
}
