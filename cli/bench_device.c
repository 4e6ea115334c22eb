/* SPDX-License-Identifier: MIT
 * Measures one plan on a device whose memory is not the host's: copies of the tensors there, taken in turn so that no
 * run finds its inputs in the cache, and the host clock over batches of queued runs. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_COPIES = 16 };
static const uint64_t rotate_bytes = UINT64_C(256) << 20; /* several times any L2 of today */

struct copies {
    attn_ctx *ctx;
    attn_device device;
    int n;
    attn_tensor tensor[MOST_COPIES][ATTN_ROLE_COUNT];
    attn_args args[MOST_COPIES];
    void *workspace;
    size_t workspace_bytes;
};

static void release(struct copies *c) {
    for (int i = 0; i < c->n; i++)
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
            attn_memory_free(c->ctx, c->device, c->tensor[i][role].data, (size_t)c->tensor[i][role].bytes);
    attn_memory_free(c->ctx, c->device, c->workspace, c->workspace_bytes);
    free(c);
}

/* One more copy of every tensor of the set. */
static attn_status add_copy(struct copies *c, const struct attn_cli_tensors *set) {
    attn_args *args = &c->args[c->n];
    attn_tensor *tensor = c->tensor[c->n++];
    attn_status status = ATTN_OK;
    *args = (attn_args)ATTN_ARGS_INIT;
    args->workspace = c->workspace;
    args->workspace_bytes = c->workspace_bytes;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        const attn_tensor *from = attn_args_at(&set->args, role);
        if (!from) continue;
        attn_tensor *t = &tensor[role];
        *t = *from;
        t->device = c->device;
        t->data = NULL;
        status = attn_memory_alloc(c->ctx, c->device, (size_t)t->bytes, &t->data);
        if (!status)
            status = attn_memory_copy(c->ctx, c->device, t->data, ATTN_DEVICE_CPU, from->data, (size_t)t->bytes);
        if (!status) status = attn_args_set(args, role, t);
    }
    return status;
}

static attn_status make_copies(struct copies *c, const struct attn_cli_tensors *set, const attn_plan_info *info,
                               int warm) {
    uint64_t bytes = 1;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (attn_args_at(&set->args, role)) bytes += set->tensor[role].bytes;
    c->workspace_bytes = (size_t)info->workspace_bytes;
    attn_status status = attn_memory_alloc(c->ctx, c->device, c->workspace_bytes, &c->workspace);
    int wanted = warm ? 1 : (int)(rotate_bytes / bytes) + 2;
    for (int i = 0; !status && i < wanted && i < MOST_COPIES; i++) status = add_copy(c, set);
    return status;
}

/* Seconds per run of a batch of n runs, from an idle device to an idle device. */
static attn_status batch(struct copies *c, const attn_plan *plan, int64_t n, int64_t *turn, double *seconds) {
    attn_status status = ATTN_OK;
    double start = attn_cli_seconds();
    for (int64_t i = 0; i < n && !status; i++) status = attn_execute(plan, &c->args[(*turn)++ % c->n]);
    attn_status end = attn_device_synchronize(c->ctx, c->device);
    *seconds = (attn_cli_seconds() - start) / (double)n;
    return status ? status : end;
}

attn_status attn_cli_meter_run_device(const struct attn_cli_meter *meter, attn_ctx *ctx, attn_device device,
                                      const attn_plan *plan, const attn_plan_info *info,
                                      const struct attn_cli_tensors *set, int warm, struct attn_cli_timing *out) {
    enum { MOST_RUNS = 10000 };
    struct copies *c = calloc(1, sizeof *c);
    double *times = malloc(MOST_RUNS * sizeof *times), once = 0;
    if (!c || !times) {
        free(c);
        free(times);
        return ATTN_E_MEMORY;
    }
    c->ctx = ctx;
    c->device = device;
    int64_t turn = 0, n = 0;
    attn_status status = make_copies(c, set, info, warm);
    if (!status) status = batch(c, plan, 3, &turn, &once);
    if (!status) status = batch(c, plan, 3, &turn, &once);
    /* A batch of 2 ms or more makes the cost of the wait small; clocks settle in a tenth of a second of work. */
    int64_t per = once > 0 && once < 2e-3 ? (int64_t)(2e-3 / once) + 1 : 1;
    for (double warm_up = 0; !status && warm_up < 0.1;) {
        double t;
        status = batch(c, plan, per, &turn, &t);
        warm_up += t * (double)per;
    }
    for (double total = 0; !status && n < MOST_RUNS && (n < meter->min_runs || total < meter->min_seconds); n++) {
        if (n > 0 && meter->max_seconds > 0 && total >= meter->max_seconds) break;
        status = batch(c, plan, per, &turn, &times[n]);
        total += times[n] * (double)per;
    }
    if (!status) attn_cli_timing_of(times, n, out);
    release(c);
    free(times);
    return status;
}
