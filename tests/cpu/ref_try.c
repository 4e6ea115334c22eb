/* SPDX-License-Identifier: MIT
 * Tensors and runs for the reference kernels' tests. */
#include "ref_try.h"

#include "base/mem.h"
#include "base/num.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/host/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN = 0xa7, PAD = 3 };

static int64_t offset_of(const attn_tensor *t, int64_t i) {
    int64_t offset = 0;
    for (int32_t a = t->rank - 1; a >= 0; --a) {
        offset += i % t->shape[a] * t->strides[a];
        i /= t->shape[a];
    }
    return offset;
}

double ref_get(const struct ref_try *t, int32_t role, int64_t i) {
    const attn_tensor *x = &t->t[role];
    assert_true(i >= 0 && i < t->n[role]);
    if (x->dtype == ATTN_BOOL) return ((const uint8_t *)x->data)[offset_of(x, i)];
    return attn_num_load(x->data, x->dtype, offset_of(x, i));
}
void ref_set(struct ref_try *t, int32_t role, int64_t i, double value) {
    attn_tensor *x = &t->t[role];
    assert_true(i >= 0 && i < t->n[role]);
    if (x->dtype == ATTN_BOOL)
        ((uint8_t *)x->data)[offset_of(x, i)] = value != 0;
    else
        attn_num_store(x->data, x->dtype, offset_of(x, i), value);
}
int32_t ref_get_int(const struct ref_try *t, int32_t role, int64_t i) {
    return ((const int32_t *)t->t[role].data)[offset_of(&t->t[role], i)];
}
void ref_set_int(struct ref_try *t, int32_t role, int64_t i, int32_t value) {
    assert_true(i >= 0 && i < t->n[role]);
    ((int32_t *)t->t[role].data)[offset_of(&t->t[role], i)] = value;
}
void ref_fill(struct ref_try *t, int32_t role, double value) {
    for (int64_t i = 0; i < t->n[role]; ++i) ref_set(t, role, i, value);
}
int64_t ref_at(const struct ref_try *t, int32_t role, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t place[ATTN_MAX_RANK] = {a, b, c, d};
    int64_t i = 0;
    for (int32_t axis = 0; axis < t->t[role].rank; ++axis) {
        assert_true(place[axis] < t->t[role].shape[axis]);
        i = i * t->t[role].shape[axis] + place[axis];
    }
    return i;
}
int ref_untouched(const struct ref_try *t, int32_t role, int64_t i) {
    size_t bytes = attn_dtype_bytes(t->t[role].dtype);
    const unsigned char *element = (const unsigned char *)t->t[role].data + offset_of(&t->t[role], i) * (int64_t)bytes;
    for (size_t k = 0; k < bytes; ++k)
        if (element[k] != PATTERN) return 0;
    return 1;
}
int ref_same_bits(const struct ref_try *a, const struct ref_try *b, int32_t role) {
    assert_int_equal(a->n[role], b->n[role]);
    for (int64_t i = 0; i < a->n[role]; ++i) {
        double x = ref_get(a, role, i), y = ref_get(b, role, i);
        if (memcmp(&x, &y, sizeof x)) return 0;
    }
    return 1;
}

static int64_t capacity(const attn_tensor *x) { /* room for padded rows */
    int64_t n = 1;
    for (int32_t a = 0; a < x->rank; ++a) n *= x->shape[a] + (a == x->rank - 1 ? PAD : 0);
    return n;
}

void ref_try_open(struct ref_try *t, const attn_problem *p) {
    memset(t, 0, sizeof *t);
    t->args.size = sizeof t->args;
    t->given = *p;
    assert_int_equal(attn_core_problem_normalise(p, &t->p), ATTN_OK);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
        struct attn_core_role r;
        attn_core_role_get(&t->p, role, &r);
        if (r.use == ATTN_USE_NONE) continue;
        assert_int_equal(attn_tensor_contiguous(&t->t[role], NULL, r.dtype, r.rank, r.shape), ATTN_OK);
        attn_tensor *x = &t->t[role];
        t->n[role] = 1;
        for (int32_t a = 0; a < x->rank; ++a) t->n[role] *= x->shape[a];
        x->bytes = (uint64_t)capacity(x) * attn_dtype_bytes(x->dtype);
        x->data = malloc(x->bytes + 1);
        assert_non_null(x->data);
        memset(x->data, r.use == ATTN_USE_IN ? 0 : PATTERN, x->bytes);
        if (t->n[role] == 0) { /* a tensor without elements may have no memory */
            free(x->data);
            x->data = NULL;
        }
        assert_int_equal(attn_args_set(&t->args, role, x), ATTN_OK);
    }
}

void ref_try_close(struct ref_try *t) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) free(t->t[role].data);
    memset(t, 0, sizeof *t);
}

void ref_try_open_next(struct ref_try *next, const struct ref_try *forward, int32_t op, uint64_t more_flags) {
    attn_problem p = forward->given;
    p.op = op;
    p.flags |= more_flags;
    if (op == ATTN_OP_DIST) p.flags &= ~ATTN_SINK;
    ref_try_open(next, &p);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
        struct attn_core_role r;
        attn_core_role_get(&next->p, role, &r);
        if (r.use != ATTN_USE_IN || !forward->n[role]) continue;
        next->t[role].shape[0] = forward->t[role].shape[0];
        memcpy(next->t[role].strides, forward->t[role].strides, sizeof next->t[role].strides);
        memcpy(next->t[role].shape, forward->t[role].shape, sizeof next->t[role].shape);
        next->t[role].rank = forward->t[role].rank;
        next->t[role].data = realloc(next->t[role].data, forward->t[role].bytes);
        assert_non_null(next->t[role].data);
        next->t[role].bytes = forward->t[role].bytes;
        next->n[role] = forward->n[role];
        memcpy(next->t[role].data, forward->t[role].data, forward->t[role].bytes);
    }
}

void ref_try_run(struct ref_try *t, int32_t threads) {
    struct attn_mem mem;
    struct attn_cpu_pool *pool = NULL;
    struct attn_core_device dev = {.threads = threads, .features = ATTN_CPU_C};
    const struct attn_kernel *k = NULL;
    char buf[256];
    struct attn_text why = attn_text_over(buf, sizeof buf);
    attn_base_mem_init(&mem, NULL, NULL, NULL, 0);
    assert_int_equal(attn_cpu_pool_create(&mem, threads, 0, &pool), ATTN_OK);
    dev.backend = pool;
    for (int32_t i = 0; i < attn_cpu_n_ref_rows; ++i)
        if (attn_cpu_ref_rows[i].op == t->p.op && attn_cpu_ref_rows[i].dtype == t->p.dtype) k = &attn_cpu_ref_rows[i];
    assert_non_null(k);
    assert_true(k->supports(k, &dev, &t->p, &why));
    assert_true(k->estimate(k, &dev, &t->p, &(struct attn_core_amount){1, 1}) > 0);
    uint64_t bytes = k->workspace(k, &dev, &t->p);
    assert_true(bytes % 64 == 0);
    unsigned char *ws = aligned_alloc(64, bytes + 64);
    assert_non_null(ws);
    memset(ws, 0xff, bytes + 64); /* NaN everywhere */
    t->args.workspace = ws;
    t->args.workspace_bytes = bytes;
    assert_int_equal(k->launch(k, &dev, &t->p, &t->args), ATTN_OK);
    for (int i = 0; i < 64; ++i) assert_int_equal(ws[bytes + (uint64_t)i], 0xff); /* stays in its workspace */
    t->args.workspace = NULL;
    free(ws);
    attn_cpu_pool_destroy(&mem, pool);
}

int ref_try_run_isa(struct ref_try *t, const char *isa) {
    char pattern[32];
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    const attn_ctx_options c = {.size = sizeof c, .threads = 2, .cpu_isa = strcmp(isa, "ref") ? isa : "c"};
    snprintf(pattern, sizeof pattern, "*_%s_*", isa);
    const attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = pattern};
    assert_int_equal(attn_ctx_create(&c, &ctx), ATTN_OK);
    const attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CPU, &t->given, &o, &plan);
    attn_ctx_release(ctx);
    if (status == ATTN_E_NO_KERNEL) return 0;
    if (status) fail_msg("plan: %s", attn_last_error());
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    void *workspace = aligned_alloc(64, (info.workspace_bytes + 127) / 64 * 64);
    assert_non_null(workspace);
    t->args.workspace = workspace, t->args.workspace_bytes = info.workspace_bytes;
    if (attn_execute(plan, &t->args)) fail_msg("execute: %s", attn_last_error());
    free(workspace);
    t->args.workspace = NULL, t->args.workspace_bytes = 0;
    attn_plan_release(plan);
    return 1;
}

uint64_t ref_next_random(uint64_t *state) { /* splitmix64 (Steele, Lea, Flood 2014) */
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void ref_random(struct ref_try *t, int32_t role, uint64_t seed, double span) {
    uint64_t state = seed + (uint64_t)role * 1000003u;
    int64_t steps = (int64_t)(span * 256);
    for (int64_t i = 0; i < t->n[role]; ++i) {
        int64_t step = (int64_t)(ref_next_random(&state) % (uint64_t)(2 * steps + 1)) - steps;
        ref_set(t, role, i, (double)step / 256);
    }
}

void ref_permute(struct ref_try *t, int32_t role) {
    attn_tensor *x = &t->t[role];
    if (!t->n[role] || x->rank != 4) return;
    double *copy = malloc(sizeof *copy * (size_t)t->n[role]);
    assert_non_null(copy);
    for (int64_t i = 0; i < t->n[role]; ++i) copy[i] = ref_get(t, role, i);
    x->strides[1] = x->shape[3] + PAD;
    x->strides[2] = x->shape[1] * x->strides[1];
    x->strides[0] = x->shape[2] * x->strides[2];
    for (int64_t i = 0; i < t->n[role]; ++i) ref_set(t, role, i, copy[i]);
    free(copy);
}

void ref_broadcast(struct ref_try *t, int32_t role, int32_t axis) { t->t[role].strides[axis] = 0; }

void ref_drop(struct ref_try *t, int32_t role) { assert_int_equal(attn_args_set(&t->args, role, NULL), ATTN_OK); }

void ref_expect_refused(const struct ref_refused *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        attn_problem p;
        assert_int_equal(attn_problem_parse(rows[i].text, &p), ATTN_OK);
        assert_int_equal(attn_problem_check(&p), rows[i].status);
        if (!strstr(attn_last_error(), rows[i].word)) fail_msg("%s: %s", rows[i].text, attn_last_error());
    }
}

void ref_near(double a, double b, double bound, const char *what, int64_t i) {
    if ((isnan(a) && isnan(b)) || a == b) return;
    if (!(fabs(a - b) <= bound)) fail_msg("%s[%lld]: %.17g, expected %.17g within %g", what, (long long)i, a, b, bound);
}
