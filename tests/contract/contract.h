/* SPDX-License-Identifier: MIT
 * Shared by the contract tests: a call (problem, tensors, workspace) made from a problem text, run on a chosen backend,
 * and compared with the reference kernels. Tests are named after the requirement (f01..f68) or contradiction (c01..c25)
 * of the plan contract that they hold; docs/compatibility.md has the list. */
#ifndef CONTRACT_H
#define CONTRACT_H
#include "attn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNUSED __attribute__((unused))

static attn_ctx *ctx;

UNUSED static int open_ctx(void **state) {
    (void)state;
    return attn_ctx_create(NULL, &ctx) != ATTN_OK;
}
UNUSED static int close_ctx(void **state) {
    (void)state;
    attn_ctx_release(ctx);
    ctx = NULL;
    return 0;
}

UNUSED static attn_problem problem_of(const char *text) {
    attn_problem p;
    if (attn_problem_parse(text, &p)) fail_msg("%s: %s", text, attn_last_error());
    return p;
}

struct call {
    attn_problem p;
    attn_tensor t[ATTN_ROLE_COUNT];
    attn_args args;
    attn_plan_info info;
    uint64_t seed;
};

static double uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) / 9007199254740992.0;
}
static double normal(uint64_t *seed) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += uniform(seed);
    return sum - 6;
}

UNUSED static int64_t count_of(const attn_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}
UNUSED static double get(const attn_tensor *t, int64_t i) {
    double d = 0;
    if (t->dtype == ATTN_I32) return ((const int32_t *)t->data)[i];
    attn_convert(&d, ATTN_F64, (const char *)t->data + i * (int64_t)attn_dtype_bytes(t->dtype), t->dtype, 1);
    return d;
}
UNUSED static void put(attn_tensor *t, int64_t i, double d) {
    attn_convert((char *)t->data + i * (int64_t)attn_dtype_bytes(t->dtype), t->dtype, &d, ATTN_F64, 1);
}

static int is_float(int32_t dtype) {
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16 || dtype == ATTN_F64;
}

UNUSED static void fill_output(attn_tensor *t) {
    if (t->data) memset(t->data, 0xff, (size_t)t->bytes); /* NaN in every float type */
}

/* All tensors of the problem, contiguous, inputs random from the seed, outputs poisoned. */
UNUSED static void call_make(struct call *c, const char *text, uint64_t seed) {
    memset(c, 0, sizeof *c);
    c->p = problem_of(text);
    c->seed = seed;
    c->args.size = sizeof c->args;
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use;
        attn_tensor *t = &c->t[role];
        if (attn_role_tensor(&c->p, role, &use, t)) fail_msg("%s: %s", text, attn_last_error());
        if (use == ATTN_USE_NONE) continue;
        int64_t n = count_of(t);
        t->bytes = (uint64_t)n * attn_dtype_bytes(t->dtype);
        t->data = aligned_alloc(64, (size_t)(t->bytes + 63) / 64 * 64 + 64);
        assert_non_null(t->data);
        if (use != ATTN_USE_IN) {
            fill_output(t);
        } else if (is_float(t->dtype)) {
            for (int64_t i = 0; i < n; i++)
                put(t, i, role == ATTN_ROLE_ALIBI ? 0.02 + 0.1 * uniform(&seed) : normal(&seed));
        } else if (t->dtype == ATTN_BOOL) {
            for (int64_t i = 0; i < n; i++) ((uint8_t *)t->data)[i] = uniform(&seed) < 0.7 ? (uint8_t)(1 + i % 255) : 0;
        } else {
            int64_t bound = role == ATTN_ROLE_INDICES       ? c->p.seq_k
                            : role == ATTN_ROLE_TOPK_LENGTH ? c->p.topk + 1
                            : role == ATTN_ROLE_SEQLENS_Q   ? c->p.seq_q + 1
                            : role == ATTN_ROLE_SEQLENS_K   ? c->p.seq_k + 1
                                                            : 1;
            for (int64_t i = 0; i < n; i++) ((int32_t *)t->data)[i] = (int32_t)(uniform(&seed) * (double)bound);
        }
        attn_args_set(&c->args, role, t);
    }
    if (c->p.op == ATTN_OP_SDPA_BWD) { /* out and lse must belong to q, k, v */
        attn_problem fwd = c->p;
        fwd.op = ATTN_OP_SDPA_FWD;
        fwd.flags &= ~(ATTN_DLSE | ATTN_GRAD_MASK | ATTN_GRAD_ALIBI | ATTN_GRAD_SINK | ATTN_DETERMINISTIC);
        attn_args a = c->args;
        a.dout = a.dlse = a.dq = a.dk = a.dv = a.dmask = a.dalibi = a.dsink = NULL;
        if (attn_run(ctx, ATTN_DEVICE_CPU, &fwd, &a)) fail_msg("%s: %s", text, attn_last_error());
    }
}

UNUSED static void call_free(struct call *c) {
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) free(c->t[role].data);
    memset(c, 0, sizeof *c);
}

/* Plan with the given options and run with exactly the workspace that the plan states. */
UNUSED static attn_status call_run_with(struct call *c, const attn_plan_options *options) {
    attn_plan *plan = NULL;
    attn_status s = attn_plan_create(ctx, ATTN_DEVICE_CPU, &c->p, options, &plan);
    if (s) return s;
    c->info.size = sizeof c->info;
    assert_int_equal(attn_plan_get_info(plan, &c->info), ATTN_OK);
    c->args.workspace_bytes = c->info.workspace_bytes;
    c->args.workspace =
        c->info.workspace_bytes ? aligned_alloc(64, (size_t)(c->info.workspace_bytes + 63) / 64 * 64) : NULL;
    s = attn_execute(plan, &c->args);
    free(c->args.workspace);
    c->args.workspace = NULL;
    c->args.workspace_bytes = 0;
    attn_plan_release(plan);
    return s;
}
UNUSED static attn_status call_run(struct call *c, int32_t backend) {
    attn_plan_options o = {.size = sizeof o, .backend = backend, .flags = ATTN_PLAN_STRICT};
    return call_run_with(c, backend == ATTN_BACKEND_ANY ? NULL : &o);
}
UNUSED static void call_ok(struct call *c, int32_t backend) {
    attn_status s = call_run(c, backend);
    if (s) fail_msg("%s: %s", attn_status_name(s), attn_last_error());
}

static double tolerance(int32_t op, int32_t dtype) {
    int backward = op == ATTN_OP_SDPA_BWD || op == ATTN_OP_MLA_BWD;
    switch (dtype) {
    case ATTN_F32: return backward ? 2e-5 : 4e-6;
    case ATTN_F64: return backward ? 1e-12 : 1e-13;
    case ATTN_F16: return backward ? 0x1p-9 : 0x1p-10;
    default: return backward ? 0x1p-6 : 0x1p-7;
    }
}

/* Run on the default choice and on the reference with the same tensors; every output must agree by its norm, with NaN
 * and infinities in the same places, and must not be all zero where the reference is not. */
UNUSED static void call_matches_reference(struct call *c) {
    void *got[ATTN_ROLE_COUNT] = {0};
    call_ok(c, ATTN_BACKEND_ANY);
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        int32_t use;
        attn_role_tensor(&c->p, role, &use, NULL);
        attn_tensor *t = &c->t[role];
        if (use < ATTN_USE_OUT || !attn_args_at(&c->args, role)) continue;
        got[role] = malloc((size_t)t->bytes + 1);
        memcpy(got[role], t->data, (size_t)t->bytes);
        fill_output(t);
    }
    call_ok(c, ATTN_BACKEND_REF);
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!got[role]) continue;
        attn_tensor mine = c->t[role];
        mine.data = got[role];
        double err = 0, norm = 0;
        for (int64_t i = 0, n = count_of(&mine); i < n; i++) {
            double a = get(&mine, i), b = get(&c->t[role], i);
            if (isnan(a) != isnan(b) || ((isinf(a) || isinf(b)) && a != b))
                fail_msg("%s[%lld]: %g, reference %g (%s)", attn_role_name(role), (long long)i, a, b, c->info.kernel);
            if (!isfinite(a)) continue;
            err += (a - b) * (a - b);
            norm += b * b;
        }
        double bound = tolerance(c->p.op, c->p.dtype) * sqrt(norm) + 1e-30;
        if (!(sqrt(err) <= bound)) fail_msg("%s: error norm %g over %g", attn_role_name(role), sqrt(err), bound);
        free(got[role]);
    }
}
UNUSED static void text_matches_reference(const char *text) {
    struct call c;
    call_make(&c, text, 7);
    call_matches_reference(&c);
    call_free(&c);
}

/* The status, and a text with the argument's name; numbers where the failure has two. */
UNUSED static attn_error expect(attn_status got, attn_status want, const char *argument) {
    attn_error e = {.size = sizeof e};
    if (got != want)
        fail_msg("want %s, got %s: %s", attn_status_name(want), attn_status_name(got), got ? attn_last_error() : "");
    assert_int_equal(attn_last_error_detail(&e), ATTN_OK);
    assert_int_equal(e.status, want);
    if (argument) {
        assert_string_equal(e.argument, argument);
        assert_non_null(strstr(attn_last_error(), argument));
    }
    return e;
}
UNUSED static void problem_refused(const char *text, attn_status want, const char *argument) {
    attn_problem p = problem_of(text);
    attn_plan *plan = NULL;
    expect(attn_problem_check(&p), want, argument);
    for (int32_t backend = ATTN_BACKEND_ANY; backend <= ATTN_BACKEND_CPU; backend++) {
        attn_plan_options o = {.size = sizeof o, .backend = backend};
        expect(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), want, argument);
        assert_null(plan);
    }
}
UNUSED static attn_plan *plan_of(const char *text, const attn_plan_options *options) {
    attn_problem p = problem_of(text);
    attn_plan *plan = NULL;
    if (attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, options, &plan)) fail_msg("%s: %s", text, attn_last_error());
    return plan;
}
UNUSED static attn_plan_info info_of(const attn_plan *plan) {
    attn_plan_info info = {.size = sizeof info};
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    return info;
}

#define CONTRACT_MAIN(tests)                                                                                           \
    int main(void) { return cmocka_run_group_tests(tests, open_ctx, close_ctx); }
#endif
