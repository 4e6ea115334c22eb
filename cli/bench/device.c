/* SPDX-License-Identifier: MIT
 * Measures plans on a device whose memory is not the host's. A sample is a batch of executions queued on one stream
 * between two marks of the device's clock (clock.c); the host's clock runs along. Without such a clock the host's
 * is taken. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_COPIES = 16, MOST_SAMPLES = 10000 };
static const uint64_t flush_bytes = UINT64_C(256) << 20; /* several times any L2 of today */

struct attn_cli_gpu {
    attn_ctx *ctx;
    attn_device device;
    struct attn_cli_clock *clock; /* NULL: host's clock, default stream */
    int cache, n;
    void *flush, *workspace;
    size_t workspace_bytes;
    int64_t turn;
    attn_tensor tensor[MOST_COPIES][ATTN_ROLE_COUNT];
    attn_args args[MOST_COPIES];
};

/* ------------------------------------------------------------------ tensors ------------------------ */

static void unload(struct attn_cli_gpu *g) {
    for (int i = 0; i < g->n; i++)
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
            attn_memory_free(g->ctx, g->device, g->tensor[i][role].data, (size_t)g->tensor[i][role].bytes);
    memset(g->tensor, 0, sizeof g->tensor);
    g->n = 0;
}

struct attn_cli_gpu *attn_cli_gpu_open(attn_ctx *ctx, attn_device device, int cache) {
    struct attn_cli_gpu *g = calloc(1, sizeof *g);
    char why[200];
    if (!g) return NULL;
    g->ctx = ctx;
    g->device = device;
    g->cache = cache;
    g->clock = attn_cli_clock_open(device, why, sizeof why);
    if (!g->clock) attn_cli_warn("bench", "no clock of the device (%s): times are the host's", why);
    if (cache != ATTN_CLI_FLUSH) return g;
    if (g->clock && !attn_memory_alloc(ctx, device, (size_t)flush_bytes, &g->flush)) return g;
    attn_cli_die("bench", "--cache flush needs the device's clock and %d MiB there", (int)(flush_bytes >> 20));
    attn_cli_gpu_close(g);
    return NULL;
}

void attn_cli_gpu_close(struct attn_cli_gpu *g) {
    if (!g) return;
    unload(g);
    attn_memory_free(g->ctx, g->device, g->workspace, g->workspace_bytes);
    if (g->flush) attn_memory_free(g->ctx, g->device, g->flush, (size_t)flush_bytes);
    attn_cli_clock_close(g->clock);
    free(g);
}

const struct attn_cli_clock *attn_cli_gpu_clock(const struct attn_cli_gpu *g) { return g->clock; }
int attn_cli_gpu_driver(const struct attn_cli_gpu *g) { return g->clock ? attn_cli_clock_driver(g->clock) : 0; }

/* One more copy of every tensor of the set; the first comes from the host, the others from the first. */
static attn_status add_copy(struct attn_cli_gpu *g, const struct attn_cli_tensors *set) {
    attn_args *args = &g->args[g->n];
    attn_tensor *tensor = g->tensor[g->n++];
    attn_status status = ATTN_OK;
    *args = (attn_args)ATTN_ARGS_INIT;
    if (g->clock) args->stream = attn_cli_clock_stream(g->clock);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        const attn_tensor *from = attn_args_at(&set->args, role);
        if (!from) continue;
        attn_tensor *t = &tensor[role];
        *t = *from;
        t->device = g->device;
        t->data = NULL;
        status = attn_memory_alloc(g->ctx, g->device, (size_t)t->bytes, &t->data);
        if (!status && t->bytes)
            status = attn_memory_copy(g->ctx, g->device, t->data, g->n == 1 ? ATTN_DEVICE_CPU : g->device,
                                      g->n == 1 ? from->data : g->tensor[0][role].data, (size_t)t->bytes);
        if (!status) status = attn_args_set(args, role, t);
    }
    return status;
}

attn_status attn_cli_gpu_load(struct attn_cli_gpu *g, const struct attn_cli_tensors *set) {
    uint64_t bytes = 1;
    unload(g);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (attn_args_at(&set->args, role)) bytes += set->tensor[role].bytes;
    const uint64_t wanted = g->cache == ATTN_CLI_ROTATE ? flush_bytes / bytes + 2 : 1;
    attn_status status = ATTN_OK;
    while (!status && (uint64_t)g->n < wanted && g->n < MOST_COPIES) status = add_copy(g, set);
    return status;
}

/* The workspace only grows. */
static attn_status take_workspace(struct attn_cli_gpu *g, const attn_plan *plan) {
    attn_plan_info info = {.size = sizeof info};
    attn_status status = attn_plan_get_info(plan, &info);
    if (!status && info.workspace_bytes > g->workspace_bytes) {
        attn_memory_free(g->ctx, g->device, g->workspace, g->workspace_bytes);
        g->workspace = NULL;
        g->workspace_bytes = (size_t)info.workspace_bytes;
        status = attn_memory_alloc(g->ctx, g->device, g->workspace_bytes, &g->workspace);
        if (status) g->workspace_bytes = 0;
    }
    for (int i = 0; i < g->n; i++) {
        g->args[i].workspace = g->workspace;
        g->args[i].workspace_bytes = g->workspace_bytes;
    }
    return status;
}

attn_status attn_cli_gpu_args(struct attn_cli_gpu *g, const attn_plan *plan, attn_args *out) {
    attn_status status = take_workspace(g, plan);
    *out = g->args[0];
    return status;
}

const attn_args *attn_cli_gpu_copy(const struct attn_cli_gpu *g, int64_t i) {
    return g->n > 1 ? &g->args[i % g->n] : NULL;
}

/* ------------------------------------------------------------------ samples ------------------------ */

static int marked(struct attn_cli_gpu *g, int which) { return g->clock ? attn_cli_clock_mark(g->clock, which) : 0; }

/* Seconds per execution of a batch of n, from an idle device to an idle device, on both clocks. */
static attn_status batch(struct attn_cli_gpu *g, const attn_plan *plan, int64_t n, double *device, double *host) {
    attn_status status = ATTN_OK;
    int fault = g->flush ? attn_cli_clock_overwrite(g->clock, g->flush, (size_t)flush_bytes) : 0;
    double start = attn_cli_seconds();
    if (!fault) fault = marked(g, ATTN_CLI_CLOCK_BEGIN);
    for (int64_t i = 0; i < n && !status && !fault; i++) status = attn_execute(plan, &g->args[g->turn++ % g->n]);
    if (!fault) fault = marked(g, ATTN_CLI_CLOCK_END);
    if (!fault && g->clock) fault = attn_cli_clock_read(g->clock, device);
    if (!g->clock && !status) status = attn_device_synchronize(g->ctx, g->device);
    *host = (attn_cli_seconds() - start) / (double)n;
    *device = g->clock ? *device / (double)n : *host;
    if (fault && !status) status = attn_device_synchronize(g->ctx, g->device); /* has the words */
    return status ? status : fault ? ATTN_E_DEVICE_FAULT : ATTN_OK;
}

/* Executions per sample: one after a flush. Otherwise as many as take 2 ms, so that the device's idle time before the
 * first one does not matter. */
static attn_status choose_batch(struct attn_cli_gpu *g, const attn_plan *plan, int64_t *n) {
    double device = 0, host = 0;
    attn_status status = batch(g, plan, 3, &device, &host);
    if (!status) status = batch(g, plan, 3, &device, &host);
    *n = g->flush || host <= 0 ? 1 : host < 1e-3 ? (int64_t)(2e-3 / host) + 1 : 2;
    const double begin = attn_cli_seconds();
    while (!status && attn_cli_seconds() - begin < 0.1) status = batch(g, plan, *n, &device, &host); /* clocks settle */
    return status;
}

static attn_status sample(struct attn_cli_gpu *g, const struct attn_cli_meter *meter, const attn_plan *plan,
                          double *device, double *host, struct attn_cli_timing *out) {
    int64_t n = 0, per = 1;
    attn_status status = take_workspace(g, plan);
    if (!status) status = choose_batch(g, plan, &per);
    const double begin = attn_cli_seconds();
    for (double total = 0; !status && n < MOST_SAMPLES && (n < meter->min_runs || total < meter->min_seconds); n++) {
        if (n > 0 && meter->max_seconds > 0 && total >= meter->max_seconds) break;
        status = batch(g, plan, per, &device[n], &host[n]);
        total = attn_cli_seconds() - begin; /* a flush's time counts, too */
    }
    if (status) return status;
    struct attn_cli_timing by_host;
    attn_cli_timing_of(host, n, &by_host);
    attn_cli_timing_of(device, n, out);
    out->batch = per;
    out->host_median = by_host.median;
    out->on_device = g->clock != NULL;
    return ATTN_OK;
}

attn_status attn_cli_gpu_run(struct attn_cli_gpu *g, const struct attn_cli_meter *meter, const attn_plan *plan,
                             struct attn_cli_timing *out) {
    double *times = malloc(2 * MOST_SAMPLES * sizeof *times);
    if (!times) return ATTN_E_MEMORY;
    attn_status status = sample(g, meter, plan, times, times + MOST_SAMPLES, out);
    free(times);
    return status;
}
