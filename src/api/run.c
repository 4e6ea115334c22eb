/* SPDX-License-Identifier: MIT
 * attn_run: plans and workspaces (workspace.c) kept by the context. Both stores are small and bounded; when they are
 * full of things in use, the call makes its own and gives it back. Executions run without the lock. */
#include "api/api.h"
#include "core/problem.h"

static int same_device(attn_device a, attn_device b) { return a.type == b.type && a.index == b.index; }

/* Under the lock: a pinned plan for the problem, or NULL. */
static attn_plan *cache_find(struct attn_api_state *state, attn_device device, const attn_problem *p, uint64_t hash) {
    for (int i = 0; i < ATTN_API_PLANS; i++) {
        struct attn_api_plan_slot *s = &state->plans[i];
        if (!s->plan || s->hash != hash || s->generation != state->generation ||
            !same_device(s->plan->device->id, device) || !attn_problem_equal(&s->plan->original, p))
            continue;
        s->used = ++state->clock;
        s->pins++;
        return s->plan;
    }
    return NULL;
}

/* Under the lock: keep the plan, pinned, in the place of the one that was used longest ago. Returns the plan that had
 * to go, or `plan` itself if every slot is in use. */
static attn_plan *cache_put(struct attn_api_state *state, attn_plan *plan, uint64_t hash, int64_t generation) {
    struct attn_api_plan_slot *oldest = NULL;
    for (int i = 0; i < ATTN_API_PLANS; i++) {
        struct attn_api_plan_slot *s = &state->plans[i];
        if (!s->pins && (!oldest || s->used < oldest->used)) oldest = s; /* empty slots were used at 0 */
    }
    if (!oldest) return plan;
    attn_plan *evicted = oldest->plan;
    *oldest = (struct attn_api_plan_slot){
        .plan = plan, .hash = hash, .used = ++state->clock, .pins = 1, .generation = generation};
    return evicted;
}

static void cache_unpin(struct attn_api_state *state, const attn_plan *plan) {
    for (int i = 0; i < ATTN_API_PLANS; i++)
        if (state->plans[i].plan == plan) state->plans[i].pins--;
}

static attn_status plan_take(attn_ctx *ctx, attn_device device, const attn_problem *p, attn_plan **out, int *own) {
    struct attn_api_state *state = attn_api_state_of(ctx);
    uint64_t hash = attn_problem_hash(p);
    pthread_mutex_lock(&ctx->lock);
    attn_plan *plan = cache_find(state, device, p, hash);
    int64_t generation = state->generation;
    pthread_mutex_unlock(&ctx->lock);
    *own = 0;
    *out = plan;
    if (plan) return ATTN_OK;

    attn_plan_options options;
    TRY(attn_api_plan_options(NULL, &options));
    TRY(attn_api_plan_new(ctx, device, p, &options, &plan));
    pthread_mutex_lock(&ctx->lock);
    attn_plan *other = cache_find(state, device, p, hash); /* another thread may have been quicker */
    attn_plan *unwanted = other ? plan : cache_put(state, plan, hash, generation);
    pthread_mutex_unlock(&ctx->lock);
    *own = !other && unwanted == plan;
    *out = other ? other : plan;
    if (unwanted && !*own) attn_api_plan_free(unwanted);
    return ATTN_OK;
}

static attn_status run(attn_ctx *ctx, const attn_plan *plan, attn_args *args) {
    struct attn_api_workspace spare, *w;
    args->workspace = NULL;
    args->workspace_bytes = 0;
    if (!plan->workspace_bytes) return attn_api_execute(plan, args);
    attn_status status = attn_api_workspace_take(ctx, plan->device, args->stream, plan->workspace_bytes, &spare, &w);
    if (!status) {
        args->workspace = w->memory;
        args->workspace_bytes = w->bytes;
        status = attn_api_execute(plan, args);
    }
    if (w) attn_api_workspace_give(ctx, w, &spare);
    return status;
}

attn_status attn_run(attn_ctx *ctx, attn_device device, const attn_problem *problem, const attn_args *args) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    if (!problem) FAIL(ATTN_E_ARGUMENT, "problem", "problem is NULL");
    if (!args) FAIL(ATTN_E_ARGUMENT, "args", "args is NULL");
    attn_problem p;
    attn_args a;
    TRY(attn_core_struct_copy(&p, sizeof p, problem, "problem"));
    TRY(attn_core_struct_copy(&a, sizeof a, args, "args"));
    attn_plan *plan;
    int own;
    TRY(plan_take(ctx, device, &p, &plan, &own));
    attn_status status = run(ctx, plan, &a);
    if (own) {
        attn_api_plan_free(plan);
    } else {
        pthread_mutex_lock(&ctx->lock);
        cache_unpin(attn_api_state_of(ctx), plan);
        pthread_mutex_unlock(&ctx->lock);
    }
    return status;
}

void attn_api_state_clear(attn_ctx *ctx) {
    struct attn_api_state *state = attn_api_state_of(ctx);
    for (int i = 0; i < ATTN_API_PLANS; i++)
        if (state->plans[i].plan) attn_api_plan_free(state->plans[i].plan);
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) {
        attn_api_workspace_drop(ctx, &state->workspaces[i]);
        attn_api_workspace_drop(ctx, &state->device_workspaces[i]);
    }
}
