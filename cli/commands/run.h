/* SPDX-License-Identifier: MIT
 * Parts of `attn run`: given arrays, the problem completed from their shapes, tensors bound to them, and the report. */
#ifndef ATTN_CLI_RUN_H
#define ATTN_CLI_RUN_H
#include "io/io.h"
#include "shared/cli.h"

struct attn_cli_run {
    const char *command; /* "run", in messages */
    struct attn_cli_common common;
    const char *in, *out, *out_dir, *outputs;
    int bshd, json, have_seed;
    int64_t seed;
    const char *files[ATTN_ROLE_COUNT];           /* --q FILE and so on */
    struct attn_cli_array given[ATTN_ROLE_COUNT]; /* data == NULL and bytes == 0 with rank 0: absent, see have */
    int have[ATTN_ROLE_COUNT];
    struct attn_cli_archive archive; /* owns what `given` borrows from --in */
    struct attn_cli_tensors set;
    attn_plan_info info;
    double seconds;
    struct attn_cli_joined_count joined;
};

/* All return an exit code, 0 = go on; the reason is printed. */
int attn_cli_run_read(struct attn_cli_run *run);                                          /* files -> given        */
int attn_cli_run_complete(struct attn_cli_run *run, const char *text, attn_problem *out); /* text + shapes -> problem */
int attn_cli_run_bind(struct attn_cli_run *run, attn_ctx *ctx, const attn_problem *problem); /* given -> set      */
int attn_cli_run_write(struct attn_cli_run *run);                                            /* outputs -> files      */
int attn_cli_run_report(struct attn_cli_run *run);                                           /* time, table or JSON   */
int attn_cli_run_wanted(const struct attn_cli_run *run, int32_t role);                       /* output is wanted      */
int attn_cli_run_swaps(const struct attn_cli_run *run, int32_t role);                        /* rows before heads     */
void attn_cli_run_free(struct attn_cli_run *run);
#endif
