/* SPDX-License-Identifier: MIT
 * What `attn bench` writes: JSON Lines records as docs/json.md describes them, and the rows of its table. */
#include "bench/bench.h"

#include <jansson.h>
#include <math.h>

const char *attn_cli_cache_name(int cache) {
    static const char *const names[] = {"flushed", "rotated", "warm"};
    return names[cache];
}

/* What was asked for and what the lists have; null if nothing was. */
static json_t *overlap(const struct attn_cli_record *r) {
    if (!r->overlap || !r->overlap->kind) return json_null();
    const struct attn_cli_overlap_measured *m = r->measured;
    return json_pack("{s:s, s:o, s:[f,f,f,f]}", "asked", r->overlap->text, "j",
                     m->j < 0 ? json_null() : json_real(m->j), "union_length", m->union_length[0], m->union_length[1],
                     m->union_length[2], m->union_length[3]);
}

static json_t *joined(const struct attn_cli_record *r) {
    char text[160];
    attn_cli_joined_json(r->joined, text, sizeof text);
    return r->joined->group ? json_loads(text, 0, NULL) : json_null();
}

static json_t *number(double x, int known) { return known && isfinite(x) ? json_real(x) : json_null(); }

void attn_cli_record_json(const struct attn_cli_record *r, const struct attn_cli_timing *t) {
    json_t *root = json_pack(
        "{s:s, s:s, s:s?, s:s, s:s?, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:s, s:o, s:s, s:o, s:o, s:n, s:o, s:o, "
        "s:s, s:o, s:o}",
        "run", r->run, "date", r->date, "commit", *attn_cli_commit() ? attn_cli_commit() : NULL, "device", r->device,
        "driver", r->driver, "problem", r->problem, "impl", r->backend == ATTN_BACKEND_REF ? "ref" : "attn", "kernel",
        r->kernel, "measure", r->measure, "median_us", number(t->median * 1e6, 1), "p10_us", number(t->p10 * 1e6, 1),
        "p90_us", number(t->p90 * 1e6, 1), "n", (json_int_t)t->n, "batch", (json_int_t)t->batch, "clock",
        t->on_device ? "device" : "host", "host_us", number(t->host_median * 1e6, t->host_median > 0), "cache",
        attn_cli_cache_name(r->cache), "tflops", number(r->flops / t->median / 1e12, r->flops > 0), "gbps",
        number(r->bytes / t->median / 1e9, r->bytes > 0), "limit_share", "launches",
        t->launches ? json_integer(t->launches) : json_null(), "overhead_us",
        number(t->overhead * 1e6, t->launches > 0), "note", r->note, "overlap", overlap(r), "joined", joined(r));
    if (root) json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
    json_decref(root);
    putchar('\n');
    fflush(stdout); /* a long list can be followed, and survives an interruption */
}

void attn_cli_record_counted(const struct attn_cli_record *r, const char *counts) {
    json_t *counted = *counts ? json_loads(counts, 0, NULL) : NULL;
    json_t *root = json_pack(
        "{s:s, s:s, s:s?, s:s, s:s?, s:s, s:s, s:s, s:s, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n, "
        "s:n, s:n, s:s, s:o, s:o, s:o, s:o, s:o}",
        "run", r->run, "date", r->date, "commit", *attn_cli_commit() ? attn_cli_commit() : NULL, "device", r->device,
        "driver", r->driver, "problem", r->problem, "impl", "attn", "kernel", r->kernel, "measure", r->measure,
        "median_us", "p10_us", "p90_us", "n", "batch", "clock", "host_us", "cache", "tflops", "gbps", "limit_share",
        "launches", "overhead_us", "note", r->note, "flops", json_real(r->flops), "bytes", json_real(r->bytes),
        "counted", counted ? counted : json_null(), "overlap", overlap(r), "joined", joined(r));
    if (root) json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(root);
    putchar('\n');
    fflush(stdout);
}

/* Executions in milliseconds; calls, most of which take less than one of them has digits for, in microseconds. */
void attn_cli_record_row(const struct attn_cli_record *r, const struct attn_cli_timing *t) {
    if (r->flops > 0 || r->bytes > 0)
        printf("  %-44s %11.4f %11.4f %11.4f %6lld %10.2f %9.2f\n", r->kernel, t->median * 1e3, t->p10 * 1e3,
               t->p90 * 1e3, (long long)t->n, r->flops / t->median / 1e9, r->bytes / t->median / 1e9);
    else
        printf("  %-44s %11.3f %11.3f %11.3f %6lld  %s", r->kernel, t->median * 1e6, t->p10 * 1e6, t->p90 * 1e6,
               (long long)t->n, r->measure);
    if (t->launches) printf(", %d launch%s", t->launches, t->launches == 1 ? "" : "es");
    if (t->launches && isfinite(t->overhead)) printf(", overhead %.3f", t->overhead * 1e6);
    if (r->flops <= 0 && r->bytes <= 0) putchar('\n');
    fflush(stdout);
}
