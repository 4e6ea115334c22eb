/* SPDX-License-Identifier: MIT
 * ATTN_POISON and ATTN_CHECK: outputs and workspace filled with NaN before an execution, and the reference kernel runs
 * as well, on copies of the outputs. For CPU plans; slow and allocating, by request only. */
#include "api/api.h"
#include "base/num.h"
#include "core/problem.h"
#include "core/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Counts through the elements of a tensor; axes past its rank have extent 1. */
struct cursor {
    int64_t index[ATTN_MAX_RANK], shape[ATTN_MAX_RANK];
    int done;
};
static struct cursor first_element(const attn_tensor *t) {
    struct cursor w = {.done = 0};
    for (int i = 0; i < ATTN_MAX_RANK; i++) {
        w.shape[i] = i < t->rank ? t->shape[i] : 1;
        w.done |= w.shape[i] <= 0;
    }
    return w;
}
static void next_element(struct cursor *w) {
    for (int i = ATTN_MAX_RANK - 1; i >= 0; i--) {
        if (++w->index[i] < w->shape[i]) return;
        w->index[i] = 0;
    }
    w->done = 1;
}
static int64_t offset(const struct cursor *w, const attn_tensor *t) {
    int64_t elements = 0;
    for (int i = 0; i < t->rank; i++)
        if (w->index[i]) elements += w->index[i] * t->strides[i];
    return elements;
}

static int is_written(const attn_plan *plan, int32_t role, int *accumulates) {
    struct attn_core_role r;
    attn_core_role_get(&plan->problem, role, &r);
    *accumulates = r.use == ATTN_USE_INOUT_OPTIONAL;
    return r.use == ATTN_USE_OUT || r.use == ATTN_USE_OUT_OPTIONAL || *accumulates;
}

/* Rows [lo, hi) of axis 1 of t, or all of it if hi < 0. All ones are a NaN in every floating type. */
static void poison(const attn_tensor *t, int64_t lo, int64_t hi) {
    attn_tensor part = *t;
    size_t bytes = attn_dtype_bytes(t->dtype);
    if (hi >= 0) part.shape[1] = hi - lo;
    int64_t start = hi >= 0 && lo ? lo * t->strides[1] : 0;
    for (struct cursor w = first_element(&part); !w.done; next_element(&w))
        memset((char *)t->data + (start + offset(&w, &part)) * (int64_t)bytes, 0xff, bytes);
}

void attn_api_poison(const attn_plan *plan, const attn_args *args) {
    const attn_problem *p = &plan->problem;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *t = attn_args_at(args, role);
        int accumulates;
        if (!t || !t->data || !is_written(plan, role, &accumulates) || accumulates) continue;
        int by_q = role == ATTN_ROLE_OUT || role == ATTN_ROLE_LSE || role == ATTN_ROLE_LSE_ROUNDED ||
                   role == ATTN_ROLE_MAX_LOGITS || role == ATTN_ROLE_DQ;
        int by_k = role == ATTN_ROLE_DK || role == ATTN_ROLE_DV;
        if (!attn_core_has(p, ATTN_PACKED) || attn_core_has(p, ATTN_FILL_PADDING) || !(by_q || by_k)) {
            poison(t, 0, -1);
            continue;
        }
        for (int64_t b = 0; b < p->batch; b++) { /* rows of no sequence belong to the caller */
            struct attn_core_seq s;
            attn_core_seq_get(p, args, 1, b, &s);
            if (by_q)
                poison(t, s.q0, s.q0 + s.sq_rows);
            else
                poison(t, s.k0, s.k0 + s.sk_rows);
        }
    }
    if (plan->workspace_bytes) memset(args->workspace, 0xff, (size_t)plan->workspace_bytes);
}

/* Row-major copy with the contents of t; axes that t broadcasts (sums over) stay broadcast. */
static attn_status copy_of(struct attn_mem *mem, const attn_tensor *t, attn_tensor *out) {
    attn_tensor c = *t;
    int64_t n = 1;
    size_t bytes = attn_dtype_bytes(t->dtype);
    for (int i = t->rank - 1; i >= 0; i--) {
        int summed = t->shape[i] > 1 && t->strides[i] == 0;
        c.strides[i] = summed ? 0 : n;
        if (!summed) n *= t->shape[i];
    }
    c.bytes = (uint64_t)n * bytes;
    c.data = attn_base_alloc(mem, (size_t)c.bytes, 64);
    if (!c.data) return ATTN_E_MEMORY;
    for (struct cursor w = first_element(t); !w.done; next_element(&w))
        memcpy((char *)c.data + offset(&w, &c) * (int64_t)bytes, (const char *)t->data + offset(&w, t) * (int64_t)bytes,
               bytes);
    *out = c;
    return ATTN_OK;
}

/* Allowed difference as a part of the tensor's largest element. Wide enough for any order of summation over thousands
 * of keys; a wrong mask, stride or scale differs by far more. */
static double tolerance(int32_t dtype) {
    switch (dtype) {
    case ATTN_F64: return 1e-10;
    case ATTN_F32: return 1e-4;
    case ATTN_F16: return 0x1p-7;
    case ATTN_I32: return 0;
    default: return 0x1p-4;
    }
}

static void compare(const attn_plan *plan, const struct attn_kernel *kernel, int32_t role, const attn_tensor *got,
                    const attn_tensor *want) {
    double largest = 0, worst = 0;
    int64_t wrong = 0, total = 0, where[ATTN_MAX_RANK] = {0};
    for (struct cursor w = first_element(want); !w.done; next_element(&w)) {
        double x = fabs(attn_num_load(want->data, want->dtype, offset(&w, want)));
        if (isfinite(x) && x > largest) largest = x;
    }
    double allowed = tolerance(kernel->dtype) * largest;
    for (struct cursor w = first_element(want); !w.done; next_element(&w), total++) {
        double a = attn_num_load(got->data, got->dtype, offset(&w, got));
        double b = attn_num_load(want->data, want->dtype, offset(&w, want));
        double d = isnan(a) && isnan(b) ? 0 : a == b ? 0 : fabs(a - b);
        if (d <= allowed) continue;
        if (!wrong || d > worst || isnan(d)) {
            memcpy(where, w.index, sizeof where);
            worst = d;
        }
        wrong++;
    }
    const struct attn_log *log = &plan->ctx->log;
    if (!wrong) {
        attn_base_log(log, ATTN_LOG_DEBUG, "check", "%s: %s agrees", kernel->name, attn_role_name(role));
        return;
    }
    char words[768] = "";
    attn_problem_format(&plan->original, words, sizeof words, NULL);
    attn_base_log(log, ATTN_LOG_WARN, "check",
                  "%s: %s: %lld of %lld elements differ from the reference, worst by %g (allowed %g) at "
                  "[%lld,%lld,%lld,%lld]; %s",
                  kernel->name, attn_role_name(role), (long long)wrong, (long long)total, worst, allowed,
                  (long long)where[0], (long long)where[1], (long long)where[2], (long long)where[3], words);
}

static attn_status run_reference(const attn_plan *plan, const attn_args *args, attn_tensor *copies, attn_args *mine) {
    attn_ctx *ctx = plan->ctx;
    struct attn_plan ref = {.ctx = ctx, .device = plan->device, .problem = plan->problem, .original = plan->original};
    const attn_plan_options only = {
        .size = sizeof only, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .backend = ATTN_BACKEND_REF};
    TRY(attn_api_choose(&ref, &only, NULL));
    *mine = *args;
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *t = attn_args_at(args, role);
        int accumulates;
        if (!t || !t->data || !is_written(plan, role, &accumulates)) continue;
        TRY(copy_of(&ctx->mem, t, &copies[role]));
        TRY(attn_args_set(mine, role, &copies[role]));
    }
    mine->workspace = NULL;
    mine->workspace_bytes = 0;
    if (ref.workspace_bytes) {
        mine->workspace = attn_base_alloc(&ctx->mem, (size_t)ref.workspace_bytes, ATTN_WORKSPACE_ALIGNMENT);
        if (!mine->workspace) return ATTN_E_MEMORY;
        mine->workspace_bytes = ref.workspace_bytes;
    }
    attn_status status = ref.kernel->launch(ref.kernel, ref.device, &ref.problem, mine);
    attn_base_free(&ctx->mem, mine->workspace, (size_t)ref.workspace_bytes);
    return status;
}

attn_status attn_api_launch_checked(const attn_plan *plan, const struct attn_kernel *kernel, const attn_args *args) {
    attn_ctx *ctx = plan->ctx;
    if (kernel->backend == ATTN_BACKEND_REF) return attn_core_launch(plan, kernel, args);
    attn_tensor copies[ATTN_ROLE_COUNT] = {{0}};
    attn_args mine;
    struct attn_base_error saved = *attn_base_error_get();
    attn_status reference = run_reference(plan, args, copies, &mine);
    if (reference) {
        attn_base_log(&ctx->log, ATTN_LOG_WARN, "check", "%s: not checked: %s", kernel->name, attn_last_error());
        attn_base_error_restore(&saved);
    }
    attn_status status = attn_core_launch(plan, kernel, args);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!copies[role].data) continue;
        if (!reference && !status) compare(plan, kernel, role, attn_args_at(args, role), &copies[role]);
        attn_base_free(&ctx->mem, copies[role].data, (size_t)copies[role].bytes);
    }
    return status;
}
