/* SPDX-License-Identifier: MIT
 * Execution of a plan: the args are checked, one of the plan's two kernels is launched. Debug modes live in debug.c. */
#include "api/api.h"
#include "core/dout.h"
#include "core/problem.h"

#include <string.h>

static attn_status take_args(const attn_plan *plan, const attn_args *in, attn_args *out) {
    if (!plan) FAIL(ATTN_E_ARGUMENT, "plan", "plan is NULL");
    if (!in) FAIL(ATTN_E_ARGUMENT, "args", "args is NULL");
    return attn_core_struct_copy(out, sizeof *out, in, "args");
}

attn_status attn_plan_check(const attn_plan *plan, const attn_args *args) {
    attn_args a;
    const struct attn_kernel *kernel;
    TRY(take_args(plan, args, &a));
    return attn_core_args_check(plan, &a, &kernel);
}

attn_status attn_execute(const attn_plan *plan, const attn_args *args) {
    attn_args a;
    if (plan && args && args->size == sizeof a) return attn_api_execute(plan, args); /* nothing to fill in */
    TRY(take_args(plan, args, &a));
    return attn_api_execute(plan, &a);
}

static attn_status launch(const attn_plan *plan, const struct attn_kernel *kernel, const attn_args *args) {
    const int checked = plan->ctx->env_check && plan->device->id.type == ATTN_DEVICE_TYPE_CPU;
    return checked ? attn_api_launch_checked(plan, kernel, args) : attn_core_launch(plan, kernel, args);
}

/* On the CPU, with the row of a dout that is one number. */
static attn_status launch_row(const attn_plan *plan, const struct attn_kernel *kernel, const attn_args *args) {
    _Alignas(64) char row[ATTN_CORE_DOUT_BYTES];
    struct attn_core_dout room;
    const attn_tensor *t = args->dout;
    const size_t bytes = attn_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < t->shape[t->rank - 1]; i++) memcpy(row + (size_t)i * bytes, t->data, bytes);
    return launch(plan, kernel, attn_core_dout_replace(&room, args, row));
}

attn_status attn_api_execute(const attn_plan *plan, const attn_args *args) {
    const attn_ctx *ctx = plan->ctx;
    const struct attn_kernel *kernel;
    TRY(attn_core_args_check(plan, args, &kernel));
    if (ctx->log.level >= ATTN_LOG_DEBUG) attn_base_log(&ctx->log, ATTN_LOG_DEBUG, "execute", "%s", kernel->name);
    int64_t begin = attn_api_trace_begin(ctx);
    int on_cpu = plan->device->id.type == ATTN_DEVICE_TYPE_CPU;
    const uint32_t mode = attn_base_float_begin(ATTN_SUBNORMALS_EXACT);
    if (ctx->env_poison && on_cpu) attn_api_poison(plan, args);
    const int one = on_cpu && attn_core_dout_is_one(args->dout);
    attn_status status = one ? launch_row(plan, kernel, args) : launch(plan, kernel, args);
    attn_base_float_end(mode);
    attn_api_trace_end(ctx, begin, "execute", kernel->name, &plan->original);
    return status;
}
