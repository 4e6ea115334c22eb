/* SPDX-License-Identifier: MIT
 * ATTN_EFFORT_MEASURE: run every kernel that a plan may choose on synthetic tensors, keep the fastest, remember it in
 * the tuning table. Reference kernels take part only if the caller prefers them: they can be thousands of times slower.
 */
#include "api/api.h"
#include "core/former_names.h"
#include "core/tune.h"

enum { MAX_CANDIDATES = 24, MAX_ROUNDS = 9 };
static const int64_t round_budget_ns = 200 * 1000 * 1000; /* per kernel, after its first run */

struct preference {
    const char *kernel; /* pattern, NULL = any */
    int32_t backend;
};
struct candidates {
    int32_t n;
    struct attn_plan plans[MAX_CANDIDATES];
};

static struct preference preference_of(const attn_ctx *ctx, const attn_plan_options *o) {
    struct preference p = {o->kernel && o->kernel[0] ? o->kernel : NULL, o->backend};
    if (!p.kernel && ctx->env_kernel[0]) p.kernel = ctx->env_kernel;
    if (!p.backend) p.backend = ctx->env_backend;
    return p;
}

static int preferred(const struct attn_kernel *k, const struct preference *p) {
    if (p->backend != ATTN_BACKEND_ANY && k->backend != p->backend) return 0;
    if (p->kernel && !attn_core_name_matches(p->kernel, k->name)) return 0;
    return k->backend != ATTN_BACKEND_REF || p->backend != ATTN_BACKEND_ANY || p->kernel;
}

/* Each kernel is asked by way of the usual choice, so that the rules for accepting one exist once. */
static void gather(struct candidates *c, const attn_plan *plan, const attn_plan_options *o,
                   const struct preference *wish) {
    struct attn_base_error saved = *attn_base_error_get();
    c->n = 0;
    for (int32_t i = 0; c->n < MAX_CANDIDATES; i++) {
        const struct attn_kernel *k = attn_api_kernel_at(plan->ctx, i);
        if (!k) break;
        if (k->op != plan->problem.op || !preferred(k, wish)) continue;
        attn_plan_options only = {.size = sizeof only,
                                  .flags = (o->flags & (ATTN_PLAN_WORKSPACE_LIMIT | ATTN_PLAN_QUERIES_APART)) |
                                           ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING,
                                  .backend = k->backend,
                                  .kernel = k->name,
                                  .max_workspace_bytes = o->max_workspace_bytes};
        struct attn_plan *p = &c->plans[c->n];
        *p = (struct attn_plan){
            .ctx = plan->ctx, .device = plan->device, .problem = plan->problem, .original = plan->original};
        if (!attn_api_choose(p, &only, NULL)) c->n++;
    }
    attn_base_error_restore(&saved);
}

static attn_status time_one(const struct attn_plan *p, const attn_args *args, int64_t best_ns, int64_t *ns) {
    const struct attn_kernel *kernel;
    int64_t least = INT64_MAX, spent = 0;
    TRY(attn_core_args_check(p, args, &kernel));
    for (int round = 0; round < MAX_ROUNDS; round++) {
        int64_t begin = attn_api_clock_ns();
        TRY(kernel->launch(kernel, p->device, &p->problem, args));
        int64_t took = attn_api_clock_ns() - begin;
        if (took < least) least = took;
        /* The first run also warms caches; it counts only where the kernel is far slower than the best one, or very
         * slow. */
        if (round && (spent += took) > round_budget_ns) break;
        if (took > round_budget_ns * 5 || took / 4 > best_ns) break;
    }
    *ns = least;
    return ATTN_OK;
}

static attn_status time_all(struct candidates *c, const attn_plan *plan, int32_t *winner, int64_t *winner_ns) {
    attn_ctx *ctx = plan->ctx;
    struct attn_api_synth synth;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (c->plans[i].workspace_bytes > bytes) bytes = c->plans[i].workspace_bytes;
    TRY(attn_api_synth_create(&ctx->mem, &plan->problem, &synth));
    attn_status status = ATTN_OK;
    if (bytes) {
        synth.args.workspace =
            bytes <= SIZE_MAX ? attn_base_alloc(&ctx->mem, (size_t)bytes, ATTN_WORKSPACE_ALIGNMENT) : NULL;
        synth.args.workspace_bytes = bytes;
        if (!synth.args.workspace) status = ATTN_E_MEMORY;
    }
    *winner_ns = INT64_MAX;
    for (int32_t i = 0; i < c->n && !status; i++) {
        int64_t ns = INT64_MAX;
        status = time_one(&c->plans[i], &synth.args, *winner_ns, &ns);
        if (status) break;
        attn_base_log(&ctx->log, ATTN_LOG_INFO, "measure", "%s: %lld ns", c->plans[i].kernel->name, (long long)ns);
        if (ns < *winner_ns) {
            *winner = i;
            *winner_ns = ns;
        }
    }
    attn_base_free(&ctx->mem, synth.args.workspace, (size_t)bytes);
    attn_api_synth_destroy(&ctx->mem, &synth);
    return status;
}

static attn_status measure(struct candidates *c, attn_plan *plan, const attn_plan_options *o) {
    const struct preference wish = preference_of(plan->ctx, o), none = {0};
    int free_choice = !wish.kernel && wish.backend == ATTN_BACKEND_ANY;
    gather(c, plan, o, &wish);
    if (!c->n && !free_choice)
        gather(c, plan, o, &none); /* a wish that no kernel meets is dropped, as the choice does */
    if (c->n < 2) return ATTN_OK;
    attn_ctx *ctx = plan->ctx;
    int32_t winner = 0;
    int64_t ns = 0;
    TRY(time_all(c, plan, &winner, &ns));
    const struct attn_plan *w = &c->plans[winner];
    plan->kernel = w->kernel;
    plan->unaligned = w->unaligned;
    plan->workspace_bytes = w->workspace_bytes;
    plan->estimate_seconds = (double)ns * 1e-9;
    plan->tuned = 1;
    /* A choice among preferred kernels, or within a workspace limit, is no choice for everyone. */
    if (o->flags || !free_choice) return ATTN_OK;
    pthread_mutex_lock(&ctx->lock);
    attn_status status = attn_core_tuning_put(&ctx->mem, ctx->tuning, &plan->problem, plan->device->name,
                                              plan->device->threads, w->kernel->name, (double)ns * 1e-9);
    attn_api_state_of(ctx)->generation++;
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

attn_status attn_api_measure(attn_plan *plan, const attn_plan_options *options) {
    attn_ctx *ctx = plan->ctx;
    if (plan->device->id.type != ATTN_DEVICE_TYPE_CPU)
        FAIL(ATTN_E_FEATURE, "effort", "effort ATTN_EFFORT_MEASURE works on the CPU only");
    if (plan->tuned) return ATTN_OK; /* measured before, in this context or by the tuning file */
    struct candidates *c = attn_base_alloc(&ctx->mem, sizeof *c, _Alignof(struct candidates));
    if (!c) return ATTN_E_MEMORY;
    attn_status status = measure(c, plan, options);
    attn_base_free(&ctx->mem, c, sizeof *c);
    return status;
}

attn_status attn_tuning_save(attn_ctx *ctx, const char *path) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    if (!path) FAIL(ATTN_E_ARGUMENT, "path", "path is NULL");
    pthread_mutex_lock(&ctx->lock);
    attn_status status = attn_core_tuning_save(ctx->tuning, path);
    pthread_mutex_unlock(&ctx->lock);
    return status;
}
