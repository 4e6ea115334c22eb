/* SPDX-License-Identifier: MIT
 * Parts of `attn bench`: lists of problems, and the measurement of one plan. */
#ifndef ATTN_CLI_BENCH_H
#define ATTN_CLI_BENCH_H
#include "cli.h"

struct attn_cli_cases {
    char **text; /* one problem each, as written */
    size_t n;
};
/* A problem text, or @FILE / @NAME with one problem a line and # comments. Every line is parsed and checked now, so
 * that a fault in the last line is found before the first measurement. Returns an exit code; the reason is printed. */
int attn_cli_cases_add(struct attn_cli_cases *cases, const char *word);
void attn_cli_cases_free(struct attn_cli_cases *cases);

struct attn_cli_timing {
    double median, p10, p90; /* seconds */
    int64_t n;
};
struct attn_cli_meter {
    int64_t min_runs;
    double min_seconds, max_seconds; /* of timed work; max 0 = no bound, else it may cut min_runs */
    unsigned char *flush;            /* read and written between runs; NULL = caches stay warm */
    size_t flush_bytes;
};
/* Sizes and allocates the flush buffer: twice the last-level cache. 0, or -1 without memory. */
int attn_cli_meter_cold(struct attn_cli_meter *meter);
attn_status attn_cli_meter_run(const struct attn_cli_meter *meter, const attn_plan *plan, const attn_args *args,
                               struct attn_cli_timing *out);
/* Order statistics of n times (which are sorted). */
void attn_cli_timing_of(double *times, int64_t n, struct attn_cli_timing *out);
/* bench_device.c: the same on a device with its own memory; `set` holds the tensors on the host. Cold means that so
 * many copies take turns that none is still cached. */
attn_status attn_cli_meter_run_device(const struct attn_cli_meter *meter, attn_ctx *ctx, attn_device device,
                                      const attn_plan *plan, const attn_plan_info *info,
                                      const struct attn_cli_tensors *set, int warm, struct attn_cli_timing *out);
#endif
