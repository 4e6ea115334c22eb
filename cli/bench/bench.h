/* SPDX-License-Identifier: MIT
 * Parts of `attn bench`: lists of problems, inputs, the measurement of one plan on a CPU or a GPU, and records. */
#ifndef ATTN_CLI_BENCH_H
#define ATTN_CLI_BENCH_H
#include "bench/clock.h"
#include "shared/cli.h"

/* How inputs are drawn whose values decide the work. */
struct attn_cli_drawn {
    struct attn_cli_overlap overlap;
    int64_t
        least_length; /* --lengths: lengths of sequences are uniform from this to their bound; 0: all are the bound */
};
struct attn_cli_cases {
    char **text;                  /* one problem each, as written */
    struct attn_cli_drawn *drawn; /* of each */
    size_t n;
};
/* A problem text, or @FILE / @NAME with one problem a line and # comments. Every line is parsed and checked now, so
 * that a fault in the last line is found before the first measurement. A line `--overlap J` or `--lengths
 * LEAST` holds for the lines after it, in place of the argument. Returns an exit code; the reason is printed. */
int attn_cli_cases_add(struct attn_cli_cases *cases, const char *word, const struct attn_cli_drawn *drawn);
void attn_cli_cases_free(struct attn_cli_cases *cases);

/* inputs.c: random inputs of a problem in host memory; out and lse of a backward are
 * computed on `device`. Of the outputs that may be left out those that `outputs` lists; NULL: all but lse_rounded and
 * max_logits. With an overlap (sparse problems), what two neighbours' lists share is measured. */
attn_status attn_cli_bench_inputs(attn_ctx *ctx, attn_device device, const attn_problem *problem, const char *outputs,
                                  const struct attn_cli_drawn *drawn, struct attn_cli_tensors *out,
                                  struct attn_cli_overlap_measured *measured);

/* lengths.c: lengths of the sequences, and of topk_length, which is at its bound. fit: an exit code, with the reason
 * printed where --lengths does not suit the problem. */
int attn_cli_lengths_fit(const attn_problem *p, int64_t least, const char *text);
void attn_cli_lengths_fill(struct attn_cli_tensors *set, int64_t least);
/* FLOPs and bytes by the lengths in the tensors; rows of all sequences, 0 where the problem has no lengths. */
struct attn_cli_work {
    double flops, bytes;
    int64_t rows_q, rows_k;
};
struct attn_cli_work attn_cli_lengths_work(const struct attn_cli_tensors *set);

struct attn_cli_timing {
    double median, p10, p90; /* seconds */
    int64_t n;               /* timed samples */
    int64_t batch;           /* executions per sample; times are per execution */
    double host_median;      /* GPU: the same on the host's clock */
    int on_device;           /* the times above are of the device's clock */
    int launches;            /* launches and fills of an execution's call; 0 = not known */
    double overhead;         /* of an execution's call over its launches by the driver alone, if launches > 0 */
};
/* What an execution finds in the caches. */
enum { ATTN_CLI_FLUSH, ATTN_CLI_ROTATE, ATTN_CLI_WARM };
struct attn_cli_meter {
    int64_t min_runs;
    double min_seconds, max_seconds; /* of timed work; max 0 = no bound, else it may cut min_runs */
    int cache;                       /* ATTN_CLI_FLUSH ... */
    unsigned char *flush;            /* CPU: read and written between runs; NULL = caches stay warm */
    size_t flush_bytes;
};
/* Sizes and allocates the flush buffer: twice the last-level cache. 0, or -1 without memory. */
int attn_cli_meter_cold(struct attn_cli_meter *meter);
attn_status attn_cli_meter_run(const struct attn_cli_meter *meter, const attn_plan *plan, const attn_args *args,
                               struct attn_cli_timing *out);
/* Order statistics of n times (which are sorted). */
void attn_cli_timing_of(double *times, int64_t n, struct attn_cli_timing *out);

/* device.c: problems on a device with its own memory. Rotation: copies of the tensors take turns, more than the
 * caches hold. load: tensors of another problem, in place of the last one's. */
struct attn_cli_gpu;
struct attn_cli_gpu *attn_cli_gpu_open(attn_ctx *ctx, attn_device device, int cache);
void attn_cli_gpu_close(struct attn_cli_gpu *gpu);
int attn_cli_gpu_driver(const struct attn_cli_gpu *gpu); /* 13000 = 13.0; 0 = unknown */
attn_status attn_cli_gpu_load(struct attn_cli_gpu *gpu, const struct attn_cli_tensors *set);
attn_status attn_cli_gpu_run(struct attn_cli_gpu *gpu, const struct attn_cli_meter *meter, const attn_plan *plan,
                             struct attn_cli_timing *out);
const struct attn_cli_clock *attn_cli_gpu_clock(const struct attn_cli_gpu *gpu); /* NULL if it has none */
/* Copy i of them, in turn, as attn_cli_gpu_args left them; NULL if there is one only. */
const attn_args *attn_cli_gpu_copy(const struct attn_cli_gpu *gpu, int64_t i);
/* The first copy's tensors on the bench's stream, with a workspace for the plan, until the next load. */
attn_status attn_cli_gpu_args(struct attn_cli_gpu *gpu, const attn_plan *plan, attn_args *out);

/* overhead.c: host time of single calls, everything warm. */
enum {
    ATTN_CLI_CALL_PLAN,
    ATTN_CLI_CALL_CHECK,
    ATTN_CLI_CALL_EXECUTE,
    ATTN_CLI_CALL_FLOOR, /* the execution's launches, by the driver alone */
    ATTN_CLI_CALL_TURNS, /* executions of copies of the tensors in turn: no pointer is that of the call before */
    ATTN_CLI_CALL_RUN,
    ATTN_CLI_CALLS
};
extern const char *const attn_cli_call_names[ATTN_CLI_CALLS]; /* "plan_create", ... */
/* gpu: NULL on a CPU, where there is no floor. What was not measured has n = 0. */
attn_status attn_cli_overhead(attn_ctx *ctx, attn_device device, const struct attn_cli_gpu *gpu,
                              const attn_problem *problem, const attn_plan_options *options, const attn_plan *plan,
                              const attn_args *args, const struct attn_cli_meter *meter,
                              struct attn_cli_timing out[ATTN_CLI_CALLS]);

/* counted.c: the PTX simulator in place of a device's driver: what executions do is counted, and no time is taken. */
struct attn_cli_counter;
struct attn_cli_counter *attn_cli_counter_open(void); /* NULL: the driver chosen is no such simulator */
void attn_cli_counter_close(struct attn_cli_counter *counter);
/* One execution on tensors in host memory. */
attn_status attn_cli_counter_run(struct attn_cli_counter *counter, attn_ctx *ctx, const attn_plan *plan,
                                 const attn_args *args);
/* Of the last run, until the next: a table of each launch and of their sum, or JSON (docs/json.md); "" = no launch. */
const char *attn_cli_counter_text(const struct attn_cli_counter *counter, int json);

/* record.c: one line of JSON (docs/json.md), or one row of the table. */
struct attn_cli_record {
    const char *run, *date, *device, *driver; /* driver: NULL on CPUs */
    const char *problem, *kernel, *measure;   /* measure: "execution" or the name of a call */
    int32_t backend;
    double flops, bytes; /* 0 = the record is not about them */
    int cache;
    const struct attn_cli_overlap *overlap;           /* NULL or kind NONE: lists as the seed gives them */
    const struct attn_cli_overlap_measured *measured; /* of it */
    const struct attn_cli_joined_count *joined;       /* group 0: none was joined */
    const char *note;
};
void attn_cli_record_json(const struct attn_cli_record *r, const struct attn_cli_timing *t);
/* A record of counts, which are JSON: its times are null. */
void attn_cli_record_counted(const struct attn_cli_record *r, const char *counts);
void attn_cli_record_row(const struct attn_cli_record *r, const struct attn_cli_timing *t);
const char *attn_cli_cache_name(int cache);
#endif
