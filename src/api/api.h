/* SPDX-License-Identifier: MIT
 * What the files of the public entry points share: output structs, plans without the public reference, debug modes. */
#ifndef ATTN_API_API_H
#define ATTN_API_API_H
#include "base/err.h"
#include "core/ctx.h"
#include "core/plan.h"

/* kernel_list.c: every backend of this build, in order of consideration. */
extern const struct attn_core_backend *const attn_api_backends[];
extern const int32_t attn_api_n_backends;

/* status.c: give `ours` (its `size` member is ignored) to the caller by the size rule: at most the caller's size is
 * written. */
attn_status attn_api_struct_out(void *out, const void *ours, size_t known, const char *what);

/* ctx.c: the device of that id, or NULL with ATTN_E_NO_DEVICE recorded; the backend that opened it. */
struct attn_core_device *attn_api_device(attn_ctx *ctx, attn_device id);
const struct attn_core_backend *attn_api_backend_of(const attn_ctx *ctx, const struct attn_core_device *device);

/* listings.c: row `index` of all backends, NULL past the end. */
const struct attn_kernel *attn_api_kernel_at(const attn_ctx *ctx, int32_t index);

/* plan_api.c: a plan that does not hold a reference of its context (the context's own cache must not keep it alive).
 * `options` is of our size, see attn_api_plan_options. */
attn_status attn_api_plan_options(const attn_plan_options *in, attn_plan_options *out);
attn_status attn_api_plan_new(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                              const attn_plan_options *options, attn_plan **out);
/* attn_core_plan_choose for a plan whose ctx, device and problem are set. */
attn_status attn_api_choose(attn_plan *plan, const attn_plan_options *options, struct attn_text *why);
void attn_api_plan_free(attn_plan *plan);

/* measure.c: time the kernels that accept plan->problem and choose the fastest for `plan`. Leaves the plan alone if
 * there is nothing to compare. */
attn_status attn_api_measure(attn_plan *plan, const attn_plan_options *options);

/* execute.c: run with args that are already of our size. */
attn_status attn_api_execute(const attn_plan *plan, const attn_args *args);

/* debug.c: ATTN_POISON and ATTN_CHECK, for CPU devices. */
void attn_api_poison(const attn_plan *plan, const attn_args *args);
attn_status attn_api_launch_checked(const attn_plan *plan, const struct attn_kernel *kernel, const attn_args *args);

/* synth.c: allocated row-major tensors for every role of a problem, filled with plausible numbers. */
struct attn_api_synth {
    attn_tensor tensors[ATTN_ROLE_COUNT];
    attn_args args; /* workspace not set */
};
attn_status attn_api_synth_create(struct attn_mem *mem, const attn_problem *problem, struct attn_api_synth *out);
void attn_api_synth_destroy(struct attn_mem *mem, struct attn_api_synth *synth);

/* trace.c: slices of a Chrome trace. A context without a trace file has file -1 and begin() returns 0. */
int attn_api_trace_open(const char *path);
void attn_api_trace_close(int file);
int64_t attn_api_clock_ns(void);
int64_t attn_api_trace_begin(const attn_ctx *ctx);
void attn_api_trace_end(const attn_ctx *ctx, int64_t begin, const char *category, const char *name,
                        const attn_problem *problem);

/* run.c: what attn_run keeps in the context. attn_ctx.plan_cache points at this. */
enum { ATTN_API_PLANS = 64, ATTN_API_WORKSPACES = 8 };
struct attn_api_plan_slot {
    attn_plan *plan; /* NULL = empty */
    uint64_t hash, used;
    int64_t pins; /* executions that use it now */
    int64_t generation;
};
struct attn_api_workspace {
    void *memory;
    uint64_t bytes;
    struct attn_core_device *device; /* whose memory; NULL = the host's */
    uint64_t stream, used;           /* device memory only */
    int busy;                        /* a call is queueing or running work in it */
};
struct attn_api_state {
    int trace_file;
    atomic_bool lone_key_said; /* the warning of one causal query that sees the first key alone */
    uint64_t clock;
    int64_t generation; /* rises with each measurement; plans chosen before are not reused */
    struct attn_api_plan_slot plans[ATTN_API_PLANS];
    struct attn_api_workspace workspaces[ATTN_API_WORKSPACES], device_workspaces[ATTN_API_WORKSPACES];
};
static inline struct attn_api_state *attn_api_state_of(const attn_ctx *ctx) {
    return (struct attn_api_state *)ctx->plan_cache;
}
void attn_api_state_clear(attn_ctx *ctx);

/* workspace.c: *out is a kept workspace or `spare`, to be given back in any case unless NULL. drop() frees one's
 * memory. */
attn_status attn_api_workspace_take(attn_ctx *ctx, struct attn_core_device *device, void *stream, uint64_t bytes,
                                    struct attn_api_workspace *spare, struct attn_api_workspace **out);
void attn_api_workspace_give(attn_ctx *ctx, struct attn_api_workspace *w, const struct attn_api_workspace *spare);
void attn_api_workspace_drop(attn_ctx *ctx, struct attn_api_workspace *w);
#endif
