/* SPDX-License-Identifier: MIT
 * Host time of the library's calls: a plan made when everything is loaded, the check of its arguments, an execution and
 * an attn_run. On a GPU an execution's time is that of queueing it; on a CPU it holds the work itself, and the check of
 * arguments is the library's share. */
#include "bench.h"

#include <stdlib.h>

const char *const attn_cli_call_names[ATTN_CLI_CALLS] = {"plan_create", "plan_check", "execute_call", "run_call"};

struct subject {
    attn_ctx *ctx;
    attn_device device;
    const attn_problem *problem;
    const attn_plan_options *options;
    const attn_plan *plan;
    const attn_args *args;
};

/* One call; what it leaves behind is cleared off the clock. */
static attn_status call(const struct subject *s, int which, double *seconds) {
    attn_plan *plan = NULL;
    attn_status status = ATTN_OK;
    double start = attn_cli_seconds();
    switch (which) {
    case ATTN_CLI_CALL_PLAN: status = attn_plan_create(s->ctx, s->device, s->problem, s->options, &plan); break;
    case ATTN_CLI_CALL_CHECK: status = attn_plan_check(s->plan, s->args); break;
    case ATTN_CLI_CALL_EXECUTE: status = attn_execute(s->plan, s->args); break;
    default: status = attn_run(s->ctx, s->device, s->problem, s->args); break;
    }
    *seconds = attn_cli_seconds() - start;
    attn_plan_release(plan);
    return status;
}

/* Calls in groups between which the device runs dry, so that none waits for room in its queue. */
static attn_status time_calls(const struct subject *s, int which, const struct attn_cli_meter *meter, double *times,
                              int64_t most, struct attn_cli_timing *out) {
    enum { GROUP = 32, WARM_UP = 2 * GROUP };
    const double limit = meter->max_seconds > 0 ? meter->max_seconds : 2;
    attn_status status = ATTN_OK;
    double unused, total = 0;
    int64_t n = 0;
    const double begin = attn_cli_seconds();
    for (int i = 0; i < WARM_UP && !status && attn_cli_seconds() - begin < 0.5; i++) status = call(s, which, &unused);
    for (; n < most && !status && (n < meter->min_runs || total < meter->min_seconds) && (!n || total < limit); n++) {
        if (n % GROUP == 0) status = attn_device_synchronize(s->ctx, s->device);
        if (!status) status = call(s, which, &times[n]);
        total += times[n];
    }
    if (!status) status = attn_device_synchronize(s->ctx, s->device);
    if (!status) attn_cli_timing_of(times, n, out);
    out->batch = 1;
    return status;
}

attn_status attn_cli_overhead(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                              const attn_plan_options *options, const attn_plan *plan, const attn_args *args,
                              const struct attn_cli_meter *meter, struct attn_cli_timing out[ATTN_CLI_CALLS]) {
    enum { MOST = 100000 };
    const struct subject s = {ctx, device, problem, options, plan, args};
    double *times = malloc(MOST * sizeof *times);
    attn_status status = times ? ATTN_OK : ATTN_E_MEMORY;
    for (int which = 0; which < ATTN_CLI_CALLS && !status; which++)
        status = time_calls(&s, which, meter, times, MOST, &out[which]);
    free(times);
    return status;
}
