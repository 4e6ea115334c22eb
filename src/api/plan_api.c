/* SPDX-License-Identifier: MIT
 * Plans as the caller sees them: creation, references, questions, and the explanation of a choice. */
#include "api/api.h"
#include "core/problem.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

attn_status attn_api_plan_options(const attn_plan_options *in, attn_plan_options *out) {
    *out = (attn_plan_options){.size = sizeof *out};
    if (in) TRY(attn_core_struct_copy(out, sizeof *out, in, "options"));
    if (out->max_workspace_bytes && !(out->flags & ATTN_PLAN_WORKSPACE_LIMIT))
        FAIL(ATTN_E_ARGUMENT, "max_workspace_bytes",
             "options.max_workspace_bytes is set without ATTN_PLAN_WORKSPACE_LIMIT");
    if (out->threads < 0)
        FAIL2(ATTN_E_ARGUMENT, "threads", 0, out->threads, "options.threads is %d, expected 0 or more", out->threads);
    if (out->reserved0)
        FAIL2(ATTN_E_ABI, "reserved0", 0, out->reserved0, "options.reserved0 is %u, expected 0", out->reserved0);
    return ATTN_OK;
}

attn_status attn_api_choose(attn_plan *plan, const attn_plan_options *options, struct attn_text *why) {
    return attn_core_plan_choose(plan->ctx, plan->device, &plan->problem, options, plan, why);
}

static attn_status prepare(attn_ctx *ctx, struct attn_core_device *device) {
    const struct attn_core_backend *backend = attn_api_backend_of(ctx, device);
    return backend && backend->prepare ? backend->prepare(ctx, device) : ATTN_OK;
}

/* One-time set-up of the chosen kernels. */
static attn_status prepare_kernels(attn_plan *plan) {
    const struct attn_kernel *both[] = {plan->kernel, plan->unaligned};
    for (int i = 0; i < 2; i++)
        if (both[i] && both[i]->prepare) TRY(both[i]->prepare(both[i], plan->device, &plan->problem));
    return ATTN_OK;
}

static attn_status write_prepared(const attn_plan *plan, const struct attn_kernel *k, void **out) {
    *out = NULL;
    if (!k || !k->prepared_bytes) return ATTN_OK;
    void *prepared = attn_base_alloc(&plan->ctx->mem, k->prepared_bytes, _Alignof(max_align_t));
    if (!prepared) return ATTN_E_MEMORY;
    k->write_prepared(k, plan->device, &plan->problem, prepared);
    *out = prepared;
    return ATTN_OK;
}

static attn_status write_all_prepared(attn_plan *plan) {
    TRY(write_prepared(plan, plan->kernel, &plan->prepared));
    return write_prepared(plan, plan->unaligned, &plan->unaligned_prepared);
}

static attn_status open_caches(attn_plan *plan) {
    const struct attn_core_backend *b = attn_api_backend_of(plan->ctx, plan->device);
    if (!b || !b->cache_open) return ATTN_OK;
    plan->backend = b;
    TRY(b->cache_open(plan->ctx, plan->device, &plan->cache));
    return plan->unaligned ? b->cache_open(plan->ctx, plan->device, &plan->unaligned_cache) : ATTN_OK;
}

static void log_lines(const attn_ctx *ctx, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        attn_base_log(&ctx->log, ATTN_LOG_INFO, "plan", "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

/* The choice with its table in the log (ATTN_EXPLAIN). The table grows with the kernel list. */
static attn_status choose_aloud(attn_plan *plan, const attn_plan_options *options) {
    enum { LINE = 400, REST = 2048 }; /* name, reason; the lines before and after the table */
    attn_ctx *ctx = plan->ctx;
    const size_t bytes = (size_t)attn_kernel_count(ctx) * LINE + REST;
    char *table = attn_base_alloc(&ctx->mem, bytes, _Alignof(max_align_t));
    if (!table) return ATTN_E_MEMORY;
    struct attn_text why = attn_text_over(table, bytes);
    attn_status status = attn_api_choose(plan, options, &why);
    log_lines(ctx, table);
    attn_base_free(&ctx->mem, table, bytes);
    return status;
}

static attn_status choose(attn_plan *plan, const attn_plan_options *options) {
    attn_ctx *ctx = plan->ctx;
    TRY(ctx->env_explain ? choose_aloud(plan, options) : attn_api_choose(plan, options, NULL));
    if (options->effort == ATTN_EFFORT_MEASURE) TRY(attn_api_measure(plan, options));
    return ATTN_OK;
}

static void log_choice(const attn_plan *plan) {
    if (plan->ctx->log.level < ATTN_LOG_INFO) return;
    char words[768] = "";
    attn_problem_format(&plan->original, words, sizeof words, NULL);
    attn_base_log(&plan->ctx->log, ATTN_LOG_INFO, "plan", "%s: %s%s%s, workspace %llu bytes%s", words,
                  plan->kernel->name, plan->unaligned ? ", for unaligned tensors " : "",
                  plan->unaligned ? plan->unaligned->name : "", (unsigned long long)plan->workspace_bytes,
                  plan->tuned ? ", measured" : "");
}

/* Decoding with the default alignment is allowed, and hardly ever what was meant. Once per context. */
static void warn_lone_key(const attn_plan *plan) {
    const attn_problem *p = &plan->original;
    const uint64_t others = ATTN_BOTTOM_RIGHT | ATTN_PACKED;
    if ((p->op != ATTN_OP_SDPA_FWD && p->op != ATTN_OP_SDPA_BWD) || !(p->flags & ATTN_CAUSAL) || (p->flags & others) ||
        p->seq_q != 1 || p->seq_k < 2 || plan->ctx->log.level < ATTN_LOG_WARN)
        return;
    if (atomic_exchange_explicit(&attn_api_state_of(plan->ctx)->lone_key_said, 1, memory_order_relaxed)) return;
    attn_base_log(&plan->ctx->log, ATTN_LOG_WARN, "plan",
                  "causal with sq=1 and sk=%lld: the query sees key 0 alone; bottom_right aligns it with the last key",
                  (long long)p->seq_k);
}

/* A plan with what only a caller's has. */
struct whole {
    attn_plan plan; /* first: it is what goes by this address */
    struct attn_core_expected expected;
    struct attn_core_device few; /* the device with fewer threads */
};

/* options->threads: `few` is then the device with no more than these. */
static struct attn_core_device *with_threads(struct attn_core_device *device, const attn_plan_options *o,
                                             struct attn_core_device *few) {
    if (!o->threads || o->threads >= device->threads || device->id.type != ATTN_DEVICE_TYPE_CPU) return device;
    *few = *device;
    few->threads = o->threads;
    return few;
}

static attn_status make_plan(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                             const attn_plan_options *options, attn_plan **out) {
    int64_t begin = attn_api_trace_begin(ctx);
    attn_problem original, normalised;
    TRY(attn_core_struct_copy(&original, sizeof original, problem, "problem"));
    TRY(attn_core_problem_normalise(&original, &normalised));
    struct attn_core_device *found = attn_api_device(ctx, device);
    if (!found) return ATTN_E_NO_DEVICE;
    TRY(prepare(ctx, found));
    struct whole *whole = attn_base_alloc(&ctx->mem, sizeof *whole, _Alignof(struct whole));
    if (!whole) return ATTN_E_MEMORY;
    attn_plan *plan = &whole->plan;
    atomic_init(&plan->refs, 1);
    plan->ctx = ctx;
    plan->device = with_threads(found, options, &whole->few);
    plan->problem = normalised;
    plan->original = original;
    plan->expected = &whole->expected;
    attn_core_expect(&plan->problem, &whole->expected);
    attn_status status = choose(plan, options);
    if (!status) status = prepare_kernels(plan);
    if (!status) status = write_all_prepared(plan);
    if (!status) status = open_caches(plan);
    if (status) {
        attn_api_plan_free(plan);
        return status;
    }
    log_choice(plan);
    warn_lone_key(plan);
    attn_api_trace_end(ctx, begin, "plan", plan->kernel->name, &plan->original);
    *out = plan;
    return ATTN_OK;
}

attn_status attn_api_plan_new(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                              const attn_plan_options *options, attn_plan **out) {
    const uint32_t mode = attn_base_float_begin(ATTN_SUBNORMALS_EXACT);
    const attn_status status = make_plan(ctx, device, problem, options, out);
    attn_base_float_end(mode);
    return status;
}

void attn_api_plan_free(attn_plan *plan) {
    struct attn_mem *mem = &plan->ctx->mem;
    if (plan->cache) plan->backend->cache_close(plan->ctx, plan->device, plan->cache);
    if (plan->unaligned_cache) plan->backend->cache_close(plan->ctx, plan->device, plan->unaligned_cache);
    if (plan->prepared) attn_base_free(mem, plan->prepared, plan->kernel->prepared_bytes);
    if (plan->unaligned_prepared) attn_base_free(mem, plan->unaligned_prepared, plan->unaligned->prepared_bytes);
    attn_base_free(mem, plan, sizeof(struct whole));
}

attn_status attn_plan_create(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                             const attn_plan_options *options, attn_plan **out) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    if (!problem) FAIL(ATTN_E_ARGUMENT, "problem", "problem is NULL");
    if (!out) FAIL(ATTN_E_ARGUMENT, "out", "out is NULL");
    attn_plan_options o;
    TRY(attn_api_plan_options(options, &o));
    attn_plan *plan;
    TRY(attn_api_plan_new(ctx, device, problem, &o, &plan));
    attn_ctx_retain(ctx);
    *out = plan;
    return ATTN_OK;
}

attn_plan *attn_plan_retain(attn_plan *plan) {
    if (plan) atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
    return plan;
}

void attn_plan_release(attn_plan *plan) {
    if (!plan || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) return;
    attn_ctx *ctx = plan->ctx;
    attn_api_plan_free(plan);
    attn_ctx_release(ctx);
}

attn_status attn_plan_get_info(const attn_plan *plan, attn_plan_info *out) {
    if (!plan) FAIL(ATTN_E_ARGUMENT, "plan", "plan is NULL");
    const struct attn_kernel *k = plan->kernel, *u = plan->unaligned;
    attn_plan_info info = {
        .backend = k->backend,
        .device = plan->device->id,
        .op = plan->problem.op,
        .dtype = plan->problem.dtype,
        .math_dtype = k->math_dtype,
        .accumulator_dtype = k->accumulator_dtype,
        .deterministic = k->deterministic && (!u || u->deterministic),
        .bit_stable = k->bit_stable && (!u || u->bit_stable),
        .tuned = plan->tuned,
        .alignment_bytes = k->alignment_bytes ? k->alignment_bytes : (uint32_t)attn_dtype_bytes(plan->problem.dtype),
        .workspace_bytes = plan->workspace_bytes,
        .workspace_alignment = ATTN_WORKSPACE_ALIGNMENT,
        .flops = attn_problem_flops(&plan->original),
        .estimate_seconds = plan->estimate_seconds,
        .joins = k->joins || (u && u->joins),
        .threads = plan->device->id.type == ATTN_DEVICE_TYPE_CPU ? plan->device->threads : 0,
        .group = attn_core_plan_group(plan),
        .union_limit = attn_core_plan_union_limit(plan),
    };
    snprintf(info.kernel, sizeof info.kernel, "%s", k->name);
    snprintf(info.kernel_unaligned, sizeof info.kernel_unaligned, "%s", u ? u->name : "");
    snprintf(info.arch, sizeof info.arch, "%s", k->arch);
    return attn_api_struct_out(out, &info, sizeof info, "attn_plan_info");
}

attn_status attn_plan_get_problem(const attn_plan *plan, attn_problem *out) {
    if (!plan) FAIL(ATTN_E_ARGUMENT, "plan", "plan is NULL");
    return attn_api_struct_out(out, &plan->original, sizeof plan->original, "attn_problem");
}

/* A refusal of the problem, by the checks or by every kernel, is what the caller wants to read: ATTN_OK. */
static attn_status explain(attn_ctx *ctx, struct attn_core_device *device, const attn_problem *problem,
                           const attn_plan_options *options, struct attn_text *text) {
    struct attn_base_error saved = *attn_base_error_get();
    struct attn_core_device few;
    struct attn_plan scratch = {.ctx = ctx, .device = with_threads(device, options, &few), .original = *problem};
    attn_status status = attn_core_problem_normalise(problem, &scratch.problem);
    if (status) {
        attn_text_add(text, "the problem is refused: %s: %s\n", attn_status_name(status), attn_last_error());
    } else {
        status = attn_api_choose(&scratch, options, text);
        if (status && status != ATTN_E_NO_KERNEL) return status;
    }
    if (status) attn_base_error_restore(&saved);
    return ATTN_OK;
}

attn_status attn_explain(attn_ctx *ctx, attn_device device, const attn_problem *problem,
                         const attn_plan_options *options, char *buf, size_t bytes, size_t *needed) {
    if (!ctx) FAIL(ATTN_E_ARGUMENT, "ctx", "ctx is NULL");
    if (!problem) FAIL(ATTN_E_ARGUMENT, "problem", "problem is NULL");
    if (!buf && bytes) FAIL(ATTN_E_ARGUMENT, "buf", "buf is NULL, but bytes is %zu", bytes);
    attn_plan_options o;
    attn_problem p;
    TRY(attn_api_plan_options(options, &o));
    TRY(attn_core_struct_copy(&p, sizeof p, problem, "problem"));
    struct attn_core_device *found = attn_api_device(ctx, device);
    if (!found) return ATTN_E_NO_DEVICE;

    struct attn_text text = attn_text_over(buf, bytes);
    TRY(explain(ctx, found, &p, &o, &text));
    if (needed) *needed = text.len + 1;
    if (text.len + 1 > bytes)
        FAIL2(ATTN_E_ARGUMENT, "bytes", (int64_t)text.len + 1, (int64_t)bytes, "the text needs bytes = %zu, not %zu",
              text.len + 1, bytes);
    return ATTN_OK;
}
