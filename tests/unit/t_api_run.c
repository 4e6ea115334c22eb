/* SPDX-License-Identifier: MIT
 * attn_run: plans and workspaces are kept, kept in bounds, shared by threads; measured choices replace kept plans. */
#include "api_fixture.h"

#include "api/api.h"

static attn_status run(attn_ctx *ctx, struct call *c) {
    call_clear(c);
    return attn_run(ctx, ATTN_DEVICE_CPU, &c->p, &c->args);
}

static int kept_plans(const attn_ctx *ctx, int64_t *pins) {
    const struct attn_api_state *s = attn_api_state_of(ctx);
    int n = 0;
    *pins = 0;
    for (int i = 0; i < ATTN_API_PLANS; i++) {
        n += s->plans[i].plan != NULL;
        *pins += s->plans[i].pins;
    }
    return n;
}
static int busy_workspaces(const attn_ctx *ctx) {
    int n = 0;
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) n += attn_api_state_of(ctx)->workspaces[i].busy;
    return n;
}

static void the_second_run_allocates_nothing(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    int64_t pins;
    call_init(&c);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    assert_int_equal(run(ctx, &c), ATTN_OK);
    call_verify(&c);
    int64_t calls = h.calls;
    c.args.workspace = &c; /* ignored */
    c.args.workspace_bytes = 1;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(run(ctx, &c), ATTN_OK);
        call_verify(&c);
    }
    assert_int_equal(h.calls, calls);
    assert_int_equal(kept_plans(ctx, &pins), 1);
    assert_int_equal(pins, 0);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}

static void failures_leave_nothing_pinned(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    int64_t pins;
    call_init(&c);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    c.args.q = NULL;
    for (int i = 0; i < 3; i++) assert_int_equal(run(ctx, &c), ATTN_E_ARGUMENT);
    assert_int_equal(kept_plans(ctx, &pins), 1);
    assert_int_equal(pins, 0);
    assert_int_equal(busy_workspaces(ctx), 0);
    c.args.q = &c.q;
    assert_int_equal(run(ctx, &c), ATTN_OK);
    call_verify(&c);
    attn_problem bad = c.p;
    bad.heads_k = 3;
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &bad, &c.args), ATTN_E_HEADS);
    bad = c.p;
    bad.size = 3;
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &bad, &c.args), ATTN_E_ABI);
    assert_int_equal(kept_plans(ctx, &pins), 1);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}

/* More problems than slots: results stay right, the store stays in bounds, the newest stay kept. */
static void the_store_is_bounded(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    int64_t pins;
    call_init(&c);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    for (int i = 0; i < 3 * ATTN_API_PLANS; i++) {
        c.p.flags |= ATTN_WINDOW_LEFT;
        c.p.window_left = 1000 + i; /* another problem with the same result */
        assert_int_equal(run(ctx, &c), ATTN_OK);
        call_verify(&c);
    }
    assert_int_equal(kept_plans(ctx, &pins), ATTN_API_PLANS);
    assert_int_equal(pins, 0);
    int64_t calls = h.calls;
    for (int i = 3 * ATTN_API_PLANS - 1; i >= 2 * ATTN_API_PLANS; i--) {
        c.p.window_left = 1000 + i;
        assert_int_equal(run(ctx, &c), ATTN_OK);
    }
    assert_int_equal(h.calls, calls);
    c.p.window_left = 1000;
    assert_int_equal(run(ctx, &c), ATTN_OK);
    assert_true(h.calls > calls);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}

/* A kept plan in use by every slot is never taken away: the call then keeps its plan to itself. */
static void a_store_full_of_plans_in_use(void **state) {
    (void)state;
    struct hooks h = {0};
    struct call c;
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    int64_t pins;
    call_init(&c);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    for (int i = 0; i < ATTN_API_PLANS; i++) {
        c.p.flags |= ATTN_WINDOW_LEFT;
        c.p.window_left = 1000 + i;
        assert_int_equal(run(ctx, &c), ATTN_OK);
    }
    struct attn_api_state *s = attn_api_state_of(ctx);
    for (int i = 0; i < ATTN_API_PLANS; i++) s->plans[i].pins++;
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) s->workspaces[i].busy = 1;
    int64_t live = h.live;
    for (int i = 0; i < 3; i++) {
        c.p.window_left = 5000 + i;
        assert_int_equal(run(ctx, &c), ATTN_OK);
        call_verify(&c);
        assert_int_equal(h.live, live);
    }
    for (int i = 0; i < ATTN_API_PLANS; i++) s->plans[i].pins--;
    for (int i = 0; i < ATTN_API_WORKSPACES; i++) s->workspaces[i].busy = 0;
    kept_plans(ctx, &pins);
    assert_int_equal(pins, 0);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}

struct worker {
    attn_ctx *ctx;
    int index, failures;
};
static void *work(void *arg) {
    struct worker *w = arg;
    struct call *c = malloc(sizeof *c);
    call_init(c);
    for (int i = 0; i < 200; i++) {
        c->p.flags |= ATTN_WINDOW_LEFT;
        c->p.window_left = 100 + (i * 7 + w->index * 3) % (ATTN_API_PLANS + 20);
        w->failures += run(w->ctx, c) != ATTN_OK;
        for (int k = 0; k < HQ * SQ * D; k++) w->failures += !isfinite(c->od[k]);
    }
    call_verify(c);
    free(c);
    return NULL;
}

static void many_threads_share_a_context(void **state) {
    (void)state;
    enum { N = 12 }; /* more than there are workspaces */
    struct hooks h = {0};
    attn_ctx_options o = hooked(&h);
    attn_ctx *ctx;
    int64_t pins;
    pthread_t threads[N];
    struct worker workers[N];
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    for (int i = 0; i < N; i++) {
        workers[i] = (struct worker){.ctx = ctx, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++) assert_int_equal(workers[i].failures, 0);
    assert_true(kept_plans(ctx, &pins) <= ATTN_API_PLANS);
    assert_int_equal(pins, 0);
    assert_int_equal(busy_workspaces(ctx), 0);
    attn_ctx_release(ctx);
    assert_no_leak(&h);
}

int main(void) {
    forget_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_run_allocates_nothing),
        cmocka_unit_test(failures_leave_nothing_pinned),
        cmocka_unit_test(the_store_is_bounded),
        cmocka_unit_test(a_store_full_of_plans_in_use),
        cmocka_unit_test(many_threads_share_a_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
