/* SPDX-License-Identifier: MIT
 * Plan contract, part 2: argument checks and workspace (F26-F45). */
#include "contract.h"

static const char *const plain = "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 dv=6 f32";

static void f26_head_counts(void **state) {
    (void)state;
    problem_refused("sdpa_fwd b=1 hq=7 hk=2 sq=8 sk=8 d=8 f32", ATTN_E_HEADS, "heads_k");
    problem_refused("sdpa_fwd b=1 hq=2 hk=4 sq=8 sk=8 d=8 f32", ATTN_E_HEADS, "heads_k");
    problem_refused("sdpa_fwd b=1 hq=2 hk=0 sq=8 sk=8 d=8 f32", ATTN_E_HEADS, "heads_k");
}
static void f27_grouped_heads_on_every_kernel(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=2 hq=8 hk=2 sq=33 sk=40 d=16 f32 causal");
    text_matches_reference("sdpa_fwd b=2 hq=8 hk=1 sq=33 sk=40 d=16 f64");
    text_matches_reference("sdpa_bwd b=2 hq=8 hk=2 sq=33 sk=40 d=16 f32 causal");
}
static void f28_shape_mismatches_name_the_tensor(void **state) {
    (void)state;
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_OUT, ATTN_ROLE_LSE};
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++)
        for (int axis = 0; axis < 3; axis++) {
            struct call c;
            call_make(&c, plain, 1);
            c.t[roles[r]].shape[axis]--;
            attn_error e = expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_SHAPE, attn_role_name(roles[r]));
            assert_int_equal(e.given, c.t[roles[r]].shape[axis]);
            assert_int_equal(e.expected, e.given + 1);
            call_free(&c);
        }
    struct call c;
    call_make(&c, plain, 1);
    c.t[ATTN_ROLE_Q].rank = 3;
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_SHAPE, "q");
    call_free(&c);
}

/* Move a tensor into a larger buffer with padded rows and exchanged head and row axes; returns the new view. */
static attn_tensor restride(const attn_tensor *t, int64_t pad) {
    attn_tensor s = *t;
    int64_t width = t->rank == 4 ? t->shape[3] + pad : 1, heads = t->shape[1], rows = t->shape[2];
    s.strides[0] = heads * rows * width + 5;
    s.strides[2] = heads * width;
    s.strides[1] = width;
    int64_t n = t->shape[0] * s.strides[0] + 16;
    size_t e = attn_dtype_bytes(t->dtype);
    s.bytes = (uint64_t)n * e;
    s.data = calloc((size_t)n, e);
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++) {
                int64_t from = b * t->strides[0] + h * t->strides[1] + i * t->strides[2];
                int64_t to = b * s.strides[0] + h * s.strides[1] + i * s.strides[2];
                memcpy((char *)s.data + (size_t)to * e, (char *)t->data + (size_t)from * e,
                       (t->rank == 4 ? (size_t)t->shape[3] : 1) * e);
            }
    return s;
}
static void strided_equals_contiguous(const int32_t *roles, size_t n_roles) {
    struct call c;
    call_make(&c, plain, 4);
    call_ok(&c, ATTN_BACKEND_ANY);
    attn_tensor out = c.t[ATTN_ROLE_OUT], lse = c.t[ATTN_ROLE_LSE];
    attn_tensor made[ATTN_ROLE_COUNT];
    for (size_t r = 0; r < n_roles; r++) {
        made[roles[r]] = restride(&c.t[roles[r]], 3);
        attn_args_set(&c.args, roles[r], &made[roles[r]]);
    }
    int strided_out = attn_args_at(&c.args, ATTN_ROLE_OUT) != &c.t[ATTN_ROLE_OUT];
    attn_tensor copy = out;
    copy.data = malloc((size_t)out.bytes);
    fill_output(&copy);
    if (!strided_out) attn_args_set(&c.args, ATTN_ROLE_OUT, &copy);
    call_ok(&c, ATTN_BACKEND_ANY);
    const attn_tensor *o = attn_args_at(&c.args, ATTN_ROLE_OUT), *l = attn_args_at(&c.args, ATTN_ROLE_LSE);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < 9; i++) {
                assert_memory_equal((float *)o->data + b * o->strides[0] + h * o->strides[1] + i * o->strides[2],
                                    (float *)out.data + b * out.strides[0] + h * out.strides[1] + i * out.strides[2],
                                    6 * 4);
                assert_memory_equal((float *)l->data + b * l->strides[0] + h * l->strides[1] + i * l->strides[2],
                                    (float *)lse.data + b * lse.strides[0] + h * lse.strides[1] + i * lse.strides[2],
                                    4);
            }
    for (size_t r = 0; r < n_roles; r++) free(made[roles[r]].data);
    free(copy.data);
    call_free(&c);
}
static void f29_q_out_lse_may_be_strided(void **state) {
    (void)state;
    const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_OUT, ATTN_ROLE_LSE};
    strided_equals_contiguous(roles, 3);
}
static void f30_k_and_v_may_be_strided(void **state) {
    (void)state;
    const int32_t roles[] = {ATTN_ROLE_K, ATTN_ROLE_V};
    strided_equals_contiguous(roles, 2);
}

/* K (and V) of one physical head, seen by every head through stride 0. */
static void broadcast_case(const char *text, int k, int v) {
    struct call c;
    call_make(&c, text, 6);
    for (int r = ATTN_ROLE_K; r <= ATTN_ROLE_V; r++) {
        if (!(r == ATTN_ROLE_K ? k : v)) continue;
        attn_tensor *t = &c.t[r];
        t->strides[1] = 0;
        t->strides[0] = t->shape[2] * t->shape[3];
        t->bytes = (uint64_t)(t->shape[0] * t->strides[0]) * attn_dtype_bytes(t->dtype); /* only the physical storage */
    }
    call_matches_reference(&c);
    call_free(&c);
}
static void f31_one_physical_head_for_all(void **state) {
    (void)state;
    broadcast_case("sdpa_fwd b=2 hq=4 sq=17 sk=23 d=16 f32", 1, 1);
    broadcast_case("sdpa_bwd b=2 hq=4 sq=17 sk=23 d=16 f32", 1, 1);
}
static void f32_only_one_of_k_and_v_broadcast(void **state) {
    (void)state;
    broadcast_case("sdpa_fwd b=2 hq=4 sq=17 sk=23 d=16 f32", 1, 0);
    broadcast_case("sdpa_fwd b=2 hq=4 sq=17 sk=23 d=16 bf16", 0, 1);
}
static void f33_mask_shape(void **state) {
    (void)state;
    for (int axis = 0; axis < 4; axis++) {
        struct call c;
        call_make(&c, "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 f32 mask=f32", 1);
        c.t[ATTN_ROLE_MASK].shape[axis]--;
        expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_SHAPE, "mask");
        call_free(&c);
    }
}
static void f34_mask_may_be_broadcast(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "f16", "bf16", "bool"};
    for (int type = 0; type < 4; type++)
        for (int axes = 0; axes < 16; axes++) {
            char text[96];
            struct call c;
            snprintf(text, sizeof text, "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 f32 mask=%s", types[type]);
            call_make(&c, text, 1);
            for (int a = 0; a < 4; a++)
                if (axes >> a & 1) c.t[ATTN_ROLE_MASK].strides[a] = 0;
            call_matches_reference(&c);
            call_free(&c);
        }
}
static void f35_short_mask_buffer(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 f32 mask=f32", 1);
    c.t[ATTN_ROLE_MASK].bytes -= 4;
    attn_error e = expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_BUFFER, "mask");
    assert_int_equal(e.expected, 2 * 4 * 9 * 13 * 4);
    assert_int_equal(e.given, e.expected - 4);
    call_free(&c);
}
static void f36_alibi_on_every_kernel(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=2 hq=4 sq=30 sk=41 d=16 f32 alibi=linear");
    text_matches_reference("sdpa_fwd b=2 hq=4 sq=30 sk=41 d=16 f64 alibi=distance causal");
    text_matches_reference("sdpa_bwd b=2 hq=4 sq=30 sk=41 d=16 f32 alibi=linear grad_alibi");
}
static attn_status run_with_slopes(int32_t rank, int64_t s0, int64_t s1, uint64_t bytes, int64_t stride0) {
    struct call c;
    float slopes[8] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f};
    call_make(&c, "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 f32 alibi=linear", 1);
    attn_tensor t = {
        .data = slopes, .bytes = bytes, .dtype = ATTN_F32, .rank = rank, .shape = {s0, s1}, .strides = {stride0, 1}};
    if (rank == 1) t.strides[0] = 1;
    attn_args_set(&c.args, ATTN_ROLE_ALIBI, &t);
    attn_status s = call_run(&c, ATTN_BACKEND_ANY);
    if (!s) {
        c.t[ATTN_ROLE_ALIBI].bytes = 0;
        for (int32_t backend = ATTN_BACKEND_REF; backend <= ATTN_BACKEND_CPU; backend++)
            assert_int_equal(call_run(&c, backend), ATTN_OK);
    }
    call_free(&c);
    return s;
}
static void f37_alibi_heads(void **state) {
    (void)state;
    expect(run_with_slopes(2, 2, 3, 32, 4), ATTN_E_SHAPE, "alibi");
    expect(run_with_slopes(1, 3, 0, 32, 1), ATTN_E_SHAPE, "alibi");
    assert_int_equal(run_with_slopes(1, 4, 0, 16, 1), ATTN_OK);
}
static void f38_alibi_batch_and_storage(void **state) {
    (void)state;
    assert_int_equal(run_with_slopes(2, 1, 4, 16, 4), ATTN_OK);
    assert_int_equal(run_with_slopes(2, 2, 4, 32, 4), ATTN_OK);
    expect(run_with_slopes(2, 3, 4, 64, 4), ATTN_E_SHAPE, "alibi");
    expect(run_with_slopes(2, 2, 4, 16, 4), ATTN_E_BUFFER, "alibi"); /* the source contract never checked this */
}
static void f39_short_buffers_name_the_tensor_and_both_numbers(void **state) {
    (void)state;
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_OUT, ATTN_ROLE_LSE};
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) {
        struct call c;
        call_make(&c, plain, 1);
        int64_t need = (int64_t)c.t[roles[r]].bytes;
        c.t[roles[r]].bytes -= 4;
        attn_error e = expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_BUFFER, attn_role_name(roles[r]));
        assert_int_equal(e.expected, need);
        assert_int_equal(e.given, need - 4);
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)need);
        assert_non_null(strstr(attn_last_error(), number));
        call_free(&c);
    }
}
static void f40_alignment_aliasing_and_missing_tensors(void **state) {
    (void)state;
    struct call c;
    call_make(&c, plain, 1);
    attn_tensor odd = c.t[ATTN_ROLE_Q];
    odd.data = (char *)odd.data + 1;
    attn_args_set(&c.args, ATTN_ROLE_Q, &odd);
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_ALIGNMENT, "q");
    attn_args_set(&c.args, ATTN_ROLE_Q, NULL);
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_ARGUMENT, "q");
    attn_args_set(&c.args, ATTN_ROLE_Q, &c.t[ATTN_ROLE_Q]);
    attn_tensor alias = c.t[ATTN_ROLE_OUT];
    alias.data = c.t[ATTN_ROLE_V].data;
    alias.bytes = 0;
    attn_args_set(&c.args, ATTN_ROLE_OUT, &alias);
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_OVERLAP, NULL);
    attn_args_set(&c.args, ATTN_ROLE_OUT, &c.t[ATTN_ROLE_OUT]);
    c.t[ATTN_ROLE_V].strides[3] = 2;
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_STRIDE, "v");
    c.t[ATTN_ROLE_V].strides[3] = 1;
    c.t[ATTN_ROLE_OUT].strides[1] = 0; /* an output must not fold onto itself */
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_STRIDE, "out");
    call_free(&c);
}
static void f41_workspace_depends_on_problem_and_kernel_only(void **state) {
    (void)state;
    attn_plan *a = plan_of("sdpa_fwd b=2 hq=8 sq=333 sk=444 d=64 bf16", NULL),
              *b = plan_of("sdpa_fwd b=2 hq=8 sq=333 sk=444 d=64 bf16", NULL);
    assert_int_equal(info_of(a).workspace_bytes, info_of(b).workspace_bytes);
    attn_plan_release(a);
    attn_plan_release(b);
}
static void f42_workspace_too_small(void **state) {
    (void)state;
    struct call c;
    call_make(&c, plain, 1);
    attn_plan *plan = plan_of(plain, NULL);
    int64_t need = (int64_t)info_of(plan).workspace_bytes;
    assert_true(need > 0); /* the CPU kernels pack; without scratch this test would say nothing */
    char *ws = aligned_alloc(64, (size_t)(need + 63) / 64 * 64 + 64);
    attn_error e = expect(attn_execute(plan, &c.args), ATTN_E_WORKSPACE, "workspace");
    assert_int_equal(e.expected, need);
    assert_int_equal(e.given, 0);
    c.args.workspace = ws;
    c.args.workspace_bytes = (uint64_t)need - 1;
    e = expect(attn_plan_check(plan, &c.args), ATTN_E_WORKSPACE, "workspace");
    assert_int_equal(e.expected, need);
    assert_int_equal(e.given, need - 1);
    c.args.workspace_bytes = (uint64_t)need + 64; /* longer is fine */
    assert_int_equal(attn_execute(plan, &c.args), ATTN_OK);
    free(ws);
    attn_plan_release(plan);
    call_free(&c);
}
static void f43_one_workspace_rule_for_every_route(void **state) {
    (void)state;
    struct call c; /* a mask does not lift the rule */
    call_make(&c, "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 f32 mask=f32", 1);
    attn_plan *plan = plan_of("sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=13 d=8 f32 mask=f32", NULL);
    if (info_of(plan).workspace_bytes) expect(attn_execute(plan, &c.args), ATTN_E_WORKSPACE, "workspace");
    attn_plan_release(plan);
    call_free(&c);
}
static void f44_workspace_alignment_is_stated_and_checked(void **state) {
    (void)state;
    struct call c;
    call_make(&c, plain, 1);
    attn_plan *plan = plan_of(plain, NULL);
    attn_plan_info info = info_of(plan);
    assert_true(info.workspace_alignment >= 16 && (info.workspace_alignment & (info.workspace_alignment - 1)) == 0);
    char *ws = aligned_alloc(64, (size_t)(info.workspace_bytes + 127) / 64 * 64);
    c.args.workspace = ws + 4;
    c.args.workspace_bytes = info.workspace_bytes;
    expect(attn_execute(plan, &c.args), ATTN_E_WORKSPACE, "workspace");
    free(ws);
    attn_plan_release(plan);
    call_free(&c);
}
static void f45_execute_reports_what_check_reports(void **state) {
    (void)state;
    struct call c;
    call_make(&c, plain, 1);
    attn_plan *plan = plan_of(plain, NULL);
    c.t[ATTN_ROLE_V].shape[3] = 5;
    expect(attn_plan_check(plan, &c.args), ATTN_E_SHAPE, "v");
    expect(attn_execute(plan, &c.args), ATTN_E_SHAPE, "v");
    for (int64_t i = 0; i < count_of(&c.t[ATTN_ROLE_OUT]); i++)
        assert_true(isnan(get(&c.t[ATTN_ROLE_OUT], i))); /* untouched */
    attn_plan_release(plan);
    call_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f26_head_counts),
        cmocka_unit_test(f27_grouped_heads_on_every_kernel),
        cmocka_unit_test(f28_shape_mismatches_name_the_tensor),
        cmocka_unit_test(f29_q_out_lse_may_be_strided),
        cmocka_unit_test(f30_k_and_v_may_be_strided),
        cmocka_unit_test(f31_one_physical_head_for_all),
        cmocka_unit_test(f32_only_one_of_k_and_v_broadcast),
        cmocka_unit_test(f33_mask_shape),
        cmocka_unit_test(f34_mask_may_be_broadcast),
        cmocka_unit_test(f35_short_mask_buffer),
        cmocka_unit_test(f36_alibi_on_every_kernel),
        cmocka_unit_test(f37_alibi_heads),
        cmocka_unit_test(f38_alibi_batch_and_storage),
        cmocka_unit_test(f39_short_buffers_name_the_tensor_and_both_numbers),
        cmocka_unit_test(f40_alignment_aliasing_and_missing_tensors),
        cmocka_unit_test(f41_workspace_depends_on_problem_and_kernel_only),
        cmocka_unit_test(f42_workspace_too_small),
        cmocka_unit_test(f43_one_workspace_rule_for_every_route),
        cmocka_unit_test(f44_workspace_alignment_is_stated_and_checked),
        cmocka_unit_test(f45_execute_reports_what_check_reports),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
