/* SPDX-License-Identifier: MIT
 * Measures one CPU plan: warm-up, cold caches between runs, order statistics. Prints only the progress line. */
#include "bench/bench.h"

#include <stdlib.h>
#include <unistd.h>

int attn_cli_meter_cold(struct attn_cli_meter *meter) {
    const size_t least = (size_t)64 << 20, most = (size_t)1 << 30;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0) cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    size_t bytes = cache > 0 ? 2 * (size_t)cache : least;
    meter->flush_bytes = bytes < least ? least : bytes > most ? most : bytes;
    meter->flush = calloc(meter->flush_bytes, 1);
    return meter->flush ? 0 : -1;
}

/* Reads and writes one byte per line. Not memset: large ones may store past the caches and leave them as they were. */
static void flush(const struct attn_cli_meter *meter) {
    volatile unsigned char *p = meter->flush;
    for (size_t i = 0; p && i < meter->flush_bytes; i += 64) p[i]++;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantile of sorted values with linear interpolation. */
static double quantile(const double *x, int64_t n, double q) {
    double position = q * (double)(n - 1);
    int64_t i = (int64_t)position;
    return i + 1 < n ? x[i] + (position - (double)i) * (x[i + 1] - x[i]) : x[n - 1];
}

void attn_cli_timing_of(double *times, int64_t n, struct attn_cli_timing *out) {
    qsort(times, (size_t)n, sizeof *times, ascending);
    *out = (struct attn_cli_timing){.median = quantile(times, n, 0.5),
                                    .p10 = quantile(times, n, 0.1),
                                    .p90 = quantile(times, n, 0.9),
                                    .n = n,
                                    .batch = 1};
}

attn_status attn_cli_meter_run(const struct attn_cli_meter *meter, const attn_plan *plan, const attn_args *args,
                               struct attn_cli_timing *out) {
    enum {
        MAX_RUNS = 100000,
        WARM_UP = 3,
        PATIENCE = 50 /* wall time over min_seconds: what empties the caches takes longer than a short run */
    };
    double *times = malloc(MAX_RUNS * sizeof *times);
    if (!times) return ATTN_E_MEMORY;
    attn_status status = ATTN_OK;
    double start = attn_cli_seconds(), total = 0, shown = 0;
    for (int i = 0; i < WARM_UP && !status; i++) {
        status = attn_execute(plan, args);
        if (attn_cli_seconds() - start > 0.5) break;
    }
    int64_t n = 0;
    while (!status && n < MAX_RUNS && (n < meter->min_runs || total < meter->min_seconds)) {
        if (n > 0 && meter->max_seconds > 0 && total >= meter->max_seconds) break;
        if (n >= meter->min_runs && attn_cli_seconds() - start > PATIENCE * meter->min_seconds) break;
        flush(meter);
        double before = attn_cli_seconds();
        status = attn_execute(plan, args);
        double after = attn_cli_seconds();
        times[n++] = after - before;
        total += after - before;
        if (after - shown > 0.2) { /* a line per run would itself disturb short runs */
            attn_cli_progress("run %lld of %lld, %.1f s", (long long)n, (long long)meter->min_runs, after - start);
            shown = after;
        }
    }
    attn_cli_progress_end();
    if (!status) attn_cli_timing_of(times, n, out);
    free(times);
    return status;
}
