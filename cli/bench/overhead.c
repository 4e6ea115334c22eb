/* SPDX-License-Identifier: MIT
 * Host time of the library's calls: a plan made when everything is loaded, the check of its arguments, an execution and
 * an attn_run. On a GPU an execution's time is that of queueing it, and the floor is what the driver alone takes for
 * the same launches; on a CPU it holds the work itself, and the check of arguments is the library's share. */
#include "bench/bench.h"
#include "bench/floor.h"

#include <math.h>
#include <stdlib.h>

const char *const attn_cli_call_names[ATTN_CLI_CALLS] = {"plan_create",  "plan_check",    "execute_call",
                                                         "driver_floor", "execute_turns", "run_call"};

struct subject {
    attn_ctx *ctx;
    attn_device device;
    const attn_problem *problem;
    const attn_plan_options *options;
    const attn_plan *plan;
    const attn_args *args;
    const struct attn_cli_gpu *gpu;     /* NULL on a CPU */
    const struct attn_cli_floor *floor; /* NULL if there is none */
};

/* One call; its results are released outside the timed part. */
static attn_status call(const struct subject *s, int which, int64_t turn, double *seconds) {
    const attn_args *args = which == ATTN_CLI_CALL_TURNS ? attn_cli_gpu_copy(s->gpu, turn) : s->args;
    attn_plan *plan = NULL;
    attn_status status = ATTN_OK;
    double start = attn_cli_seconds();
    switch (which) {
    case ATTN_CLI_CALL_PLAN: status = attn_plan_create(s->ctx, s->device, s->problem, s->options, &plan); break;
    case ATTN_CLI_CALL_CHECK: status = attn_plan_check(s->plan, s->args); break;
    case ATTN_CLI_CALL_EXECUTE: status = attn_execute(s->plan, s->args); break;
    case ATTN_CLI_CALL_TURNS: status = attn_execute(s->plan, args); break;
    case ATTN_CLI_CALL_FLOOR: status = attn_cli_floor_queue(s->floor) ? ATTN_E_LAUNCH : ATTN_OK; break;
    default: status = attn_run(s->ctx, s->device, s->problem, s->args); break;
    }
    *seconds = attn_cli_seconds() - start;
    attn_plan_release(plan);
    return status;
}

/* Calls in groups, between which the device runs dry: none waits for room in its queue, which takes about a thousand
 * launches. An execution and its floor take turns by groups, so that both see the same state of the machine. */
static int group_of(const struct subject *s) {
    enum { GROUP = 32, LAUNCHES = 128 };
    const int each = s->floor ? attn_cli_floor_launches(s->floor) : 1;
    return each * GROUP > LAUNCHES ? LAUNCHES / each + 1 : GROUP;
}

static attn_status time_group(const struct subject *s, int which, int64_t n, double *times) {
    attn_status status = attn_device_synchronize(s->ctx, s->device);
    for (int64_t i = 0; i < n && !status; i++) status = call(s, which, i, &times[i]);
    return status;
}

static attn_status time_calls(const struct subject *s, int which, const struct attn_cli_meter *meter, double *times,
                              int64_t most, struct attn_cli_timing *out) {
    const double limit = meter->max_seconds > 0 ? meter->max_seconds : 2;
    const int floor = which == ATTN_CLI_CALL_EXECUTE && s->floor, group = group_of(s);
    attn_status status = ATTN_OK;
    double unused, total = 0;
    int64_t n = 0;
    const double begin = attn_cli_seconds();
    for (int i = 0; i < 2 * group && !status && attn_cli_seconds() - begin < 0.5; i++)
        status = call(s, which, i, &unused);
    while (n < most && !status && (n < meter->min_runs || total < meter->min_seconds) && (!n || total < limit)) {
        int64_t now = most - n < group ? most - n : group;
        if (total >= meter->min_seconds && meter->min_runs - n < now) now = meter->min_runs - n;
        status = time_group(s, which, now, times + n);
        if (!status && floor) status = time_group(s, ATTN_CLI_CALL_FLOOR, now, times + most + n);
        for (int64_t i = n; i < n + now && !status; i++) total += times[i];
        n += now;
    }
    if (!status) status = attn_device_synchronize(s->ctx, s->device);
    if (status) return status;
    attn_cli_timing_of(times, n, out);
    if (!floor) return ATTN_OK;
    struct attn_cli_timing *by_driver = out + (ATTN_CLI_CALL_FLOOR - ATTN_CLI_CALL_EXECUTE);
    attn_cli_timing_of(times + most, n, by_driver);
    out->launches = by_driver->launches = attn_cli_floor_launches(s->floor);
    out->overhead = out->median - by_driver->median;
    by_driver->overhead = NAN;
    return ATTN_OK;
}

attn_status attn_cli_overhead(attn_ctx *ctx, attn_device device, const struct attn_cli_gpu *gpu,
                              const attn_problem *problem, const attn_plan_options *options, const attn_plan *plan,
                              const attn_args *args, const struct attn_cli_meter *meter,
                              struct attn_cli_timing out[ATTN_CLI_CALLS]) {
    enum { MOST = 100000 };
    const struct attn_cli_clock *clock = gpu ? attn_cli_gpu_clock(gpu) : NULL;
    char why[200];
    struct attn_cli_floor *floor = clock ? attn_cli_floor_open(clock, plan, args, why, sizeof why) : NULL;
    const struct subject s = {ctx, device, problem, options, plan, args, gpu, floor};
    double *times = malloc(2 * MOST * sizeof *times);
    attn_status status = times ? ATTN_OK : ATTN_E_MEMORY;
    if (clock && !floor) attn_cli_warn("bench", "no floor of the driver: %s", why);
    for (int which = 0; which < ATTN_CLI_CALLS && !status; which++)
        if (which != ATTN_CLI_CALL_FLOOR && (which != ATTN_CLI_CALL_TURNS || (gpu && attn_cli_gpu_copy(gpu, 0))))
            status = time_calls(&s, which, meter, times, MOST, &out[which]);
    attn_cli_floor_close(floor);
    free(times);
    return status;
}
