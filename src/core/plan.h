/* SPDX-License-Identifier: MIT
 * The plan: a normalised problem, a device, the chosen kernel and (for tensors without its alignment) a second one. */
#ifndef ATTN_CORE_PLAN_H
#define ATTN_CORE_PLAN_H
#include "core/ctx.h"

struct attn_plan {
    _Atomic int64_t refs;
    attn_ctx *ctx; /* one reference held */
    struct attn_core_device *device;
    attn_problem problem;  /* normalised */
    attn_problem original; /* as the caller gave it (by the size rule) */
    const struct attn_kernel *kernel;
    const struct attn_kernel *unaligned; /* NULL if kernel takes any tensor or align_bytes promises enough */
    uint64_t workspace_bytes;            /* enough for either */
    double estimate_seconds;
    int32_t tuned;
    const struct attn_core_expected *expected; /* the problem's roles; NULL: each check works them out */
    void *prepared, *unaligned_prepared;       /* launches, of kernel and unaligned; NULL if it prepares none */
    void *cache, *unaligned_cache;             /* of the backend, likewise */
    const struct attn_core_backend *backend;   /* of cache */
};

/* The one of the plan's two kernels that joins index lists, if one does. */
static inline const struct attn_kernel *attn_core_plan_joins(const struct attn_plan *plan) {
    return plan->kernel->joins || !plan->unaligned ? plan->kernel : plan->unaligned;
}
/* Neighbouring queries whose index lists the plan joins; 0: none. */
static inline int64_t attn_core_plan_group(const struct attn_plan *plan) {
    const struct attn_kernel *k = attn_core_plan_joins(plan);
    return k->group ? k->group(k, &plan->problem) : 0;
}
/* Entries of a union above which it leaves a group apart; 0: no limit, or the lists are given. */
static inline int64_t attn_core_plan_union_limit(const struct attn_plan *plan) {
    const struct attn_kernel *k = attn_core_plan_joins(plan);
    return k->union_limit && !plan->problem.group ? k->union_limit(k, &plan->problem) : 0;
}

/* Launch one of the plan's two kernels, here and now. */
static inline attn_status attn_core_launch_now(const struct attn_plan *plan, const struct attn_kernel *k,
                                               const attn_args *args) {
    const void *prepared = k == plan->kernel ? plan->prepared : plan->unaligned_prepared;
    return prepared ? k->launch_prepared(k, plan->device, &plan->problem, prepared, args)
                    : k->launch(k, plan->device, &plan->problem, args);
}
/* The same, the way its backend likes best. */
static inline attn_status attn_core_launch(const struct attn_plan *plan, const struct attn_kernel *k,
                                           const attn_args *args) {
    void *cache = k == plan->kernel ? plan->cache : plan->unaligned_cache;
    return cache ? plan->backend->execute(plan, k, cache, args) : attn_core_launch_now(plan, k, args);
}

/* Choose: walk ctx's kernels in order. With `why` not NULL, writes the explain table. ATTN_E_NO_KERNEL if none accepts.
 * Fills out's device, problem, kernel, unaligned, workspace_bytes, estimate_seconds and tuned (all but the problem and
 * device only on success). options may be NULL. Takes ctx->lock while it reads the tuning table: call without it. */
attn_status attn_core_plan_choose(attn_ctx *ctx, struct attn_core_device *device, const attn_problem *normalised,
                                  const attn_plan_options *options, struct attn_plan *out, struct attn_text *why);

/* The question for one kernel of the problem's operator, without preferences: 1 = accepts; 0 = refuses, `why` (over a
 * buffer that is not empty) has the reason. */
int attn_core_kernel_accepts(attn_ctx *ctx, const struct attn_core_device *device, const struct attn_kernel *kernel,
                             const attn_problem *normalised, struct attn_text *why);

/* Role table walk; see core/args.c. Full check of args (already size-copied) against the plan; *kernel receives the
 * kernel that these tensors get (plan->kernel or plan->unaligned). */
attn_status attn_core_args_check(const struct attn_plan *plan, const attn_args *args,
                                 const struct attn_kernel **kernel);

/* The tensors of a merge (already size-copied), all that can be said of them without running. */
attn_status attn_core_merge_check(const struct attn_core_device *device, const attn_merge_args *args);

/* Whether tensors of this role have rows of D or DV elements: the ones that alignment_bytes and align_bytes speak of.
 */
int attn_core_role_has_rows(const attn_problem *problem, int32_t role);
/* The role's axes, outermost first: b batch (B = B+1), p page; h, g head; q, k, Q, K, s row; the rest run along a row.
 * "" if the problem's operator does not have the role. A tensor without its b axis has one axis fewer. */
const char *attn_core_role_axes(const attn_problem *problem, int32_t role);

/* Expected use, dtype and shape of a role, from the same table. Shape of the form with a batch axis unless packed. */
struct attn_core_role {
    int32_t use, dtype, rank;
    uint8_t element, has_rows; /* bytes; attn_core_role_has_rows */
    int64_t shape[ATTN_MAX_RANK];
    int64_t strides[ATTN_MAX_RANK], bytes; /* of a contiguous tensor; bytes 0: one without elements, or too many */
};
void attn_core_role_get(const attn_problem *problem, int32_t role, struct attn_core_role *out);
/* All of them: what a plan keeps for the checks of its executions. */
struct attn_core_expected {
    uint32_t needed;                     /* 1 << role: must be given */
    uintptr_t unwanted[ATTN_ROLE_COUNT]; /* all bits set: must not be given; else 0 */
    int32_t n_usable;
    uint8_t usable[ATTN_ROLE_COUNT]; /* the roles that may be given */
    struct attn_core_role role[ATTN_ROLE_COUNT];
};
void attn_core_expect(const attn_problem *problem, struct attn_core_expected *out);
#endif
