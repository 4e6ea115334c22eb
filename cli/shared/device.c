/* SPDX-License-Identifier: MIT
 * Executions with tensors in host memory, whatever device the plan is for: on a GPU the tensors are copied there, and
 * what the problem writes is copied back. Simple, one execution at a time; `attn bench` keeps its tensors there. */
#include "shared/cli.h"

#include <stdlib.h>

/* A tensor's copy on the device: the bytes from its lowest element to the end of its highest. */
struct device_copy {
    attn_tensor view;
    char *host, *memory;
    size_t bytes;
    int written;
};
struct job {
    attn_ctx *ctx;
    attn_device device;
    struct device_copy device_copy[ATTN_ROLE_COUNT];
    attn_args args;
    void *workspace;
    size_t workspace_bytes;
};

static void span_of(const attn_tensor *t, int64_t *low, int64_t *high) {
    int64_t size = (int64_t)attn_dtype_bytes(t->dtype);
    *low = *high = 0;
    for (int a = 0; a < t->rank; a++) {
        if (t->shape[a] == 0) {
            *low = *high = 0;
            return;
        }
        int64_t way = t->shape[a] > 1 ? (t->shape[a] - 1) * t->strides[a] * size : 0;
        *(way < 0 ? low : high) += way;
    }
    *high += size;
}

static attn_status copy_in(struct job *j, const attn_problem *problem, const attn_args *from) {
    attn_status status = ATTN_OK;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        const attn_tensor *t = attn_args_at(from, role);
        struct device_copy *w = &j->device_copy[role];
        int64_t low, high;
        int32_t use = ATTN_USE_NONE;
        if (!t) continue;
        span_of(t, &low, &high);
        status = attn_role_tensor(problem, role, &use, NULL);
        w->view = *t;
        w->view.device = j->device;
        w->written = use >= ATTN_USE_OUT;
        w->bytes = t->data ? (size_t)(high - low) : 0;
        w->host = t->data ? (char *)t->data + low : NULL;
        if (!status) status = attn_memory_alloc(j->ctx, j->device, w->bytes, (void **)&w->memory);
        if (!status && w->bytes)
            status = attn_memory_copy(j->ctx, j->device, w->memory, ATTN_DEVICE_CPU, w->host, w->bytes);
        w->view.data = w->memory ? w->memory - low : NULL;
        if (!status) status = attn_args_set(&j->args, role, &w->view);
    }
    return status;
}

static attn_status copy_out(struct job *j) {
    attn_status status = ATTN_OK;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT && !status; role++) {
        struct device_copy *w = &j->device_copy[role];
        if (w->written && w->bytes)
            status = attn_memory_copy(j->ctx, ATTN_DEVICE_CPU, w->host, j->device, w->memory, w->bytes);
    }
    return status;
}

static attn_status run_there(struct job *j, const attn_plan *plan, const attn_args *args, double *seconds) {
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_status status = attn_plan_get_problem(plan, &problem);
    if (!status) status = copy_in(j, &problem, args);
    if (!status) status = attn_memory_alloc(j->ctx, j->device, j->workspace_bytes, &j->workspace);
    j->args.workspace = j->workspace;
    j->args.workspace_bytes = j->workspace_bytes;
    double start = attn_cli_seconds();
    if (!status) status = attn_execute(plan, &j->args);
    if (!status) status = attn_device_synchronize(j->ctx, j->device);
    *seconds = attn_cli_seconds() - start;
    return status ? status : copy_out(j);
}

static attn_status run_here(const attn_plan *plan, const attn_plan_info *info, const attn_args *from, double *seconds) {
    attn_args args = *from;
    int failed;
    args.workspace = attn_cli_workspace(info, &failed);
    args.workspace_bytes = info->workspace_bytes;
    double start = attn_cli_seconds();
    attn_status status = failed ? ATTN_E_MEMORY : attn_execute(plan, &args);
    *seconds = attn_cli_seconds() - start;
    free(args.workspace);
    return status;
}

attn_status attn_cli_execute(attn_ctx *ctx, const attn_plan *plan, const attn_args *args, double *seconds) {
    attn_plan_info info = {.size = sizeof info};
    double unused;
    attn_status status = attn_plan_get_info(plan, &info);
    if (!seconds) seconds = &unused;
    if (status) return status;
    if (info.device.type == ATTN_DEVICE_TYPE_CPU) return run_here(plan, &info, args, seconds);
    struct job *j = calloc(1, sizeof *j);
    if (!j) return ATTN_E_MEMORY;
    *j = (struct job){
        .ctx = ctx, .device = info.device, .args = ATTN_ARGS_INIT, .workspace_bytes = (size_t)info.workspace_bytes};
    status = run_there(j, plan, args, seconds);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        attn_memory_free(ctx, j->device, j->device_copy[role].memory, j->device_copy[role].bytes);
    attn_memory_free(ctx, j->device, j->workspace, j->workspace_bytes);
    free(j);
    return status;
}
