/* SPDX-License-Identifier: MIT
 * Plan contract, part 1: the descriptor, selection and backend routing (F1-F25). */
#include "contract.h"

static void f01_nothing_is_validated_at_construction(void **state) {
    (void)state;
    attn_problem p = problem_of("sdpa_fwd b=-1 hq=7 hk=2 sq=4 sk=4 d=8 f32 scale=nan softcap=-1");
    assert_int_equal(p.batch, -1);
    assert_true(isnan(p.scale));
    assert_int_not_equal(attn_problem_check(&p), ATTN_OK);
}
static void f02_defaults_are_no_window_and_no_softcap(void **state) {
    (void)state;
    attn_problem p = ATTN_PROBLEM_INIT;
    assert_true(!(p.flags & (ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT)) && p.softcap == 0);
    struct call a, b;
    call_make(&a, "sdpa_fwd b=1 hq=2 sq=33 sk=50 d=16 f32", 3);
    call_make(&b, "sdpa_fwd b=1 hq=2 sq=33 sk=50 d=16 f32 left=50 right=50 softcap=0", 3);
    call_ok(&a, ATTN_BACKEND_ANY);
    call_ok(&b, ATTN_BACKEND_ANY);
    assert_memory_equal(a.t[ATTN_ROLE_OUT].data, b.t[ATTN_ROLE_OUT].data, a.t[ATTN_ROLE_OUT].bytes);
    call_free(&a);
    call_free(&b);
}
static void f03_descriptor_is_copyable_and_open_for_growth(void **state) {
    (void)state;
    attn_problem p = problem_of("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 left=3 right=2 softcap=5"), q = p;
    assert_true(attn_problem_equal(&p, &q));
    assert_int_equal(attn_problem_hash(&p), attn_problem_hash(&q));
    struct {
        attn_problem p;
        uint64_t unknown;
    } grown = {.p = p};
    grown.p.size = sizeof grown;
    assert_int_equal(attn_problem_check(&grown.p), ATTN_OK);
    grown.unknown = 1;
    expect(attn_problem_check(&grown.p), ATTN_E_ABI, NULL);
    p.size = (uint32_t)offsetof(attn_problem, align_bytes); /* an older caller */
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
}
static void f04_key_heads_come_with_k(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=4 hk=2 sq=8 sk=8 d=8 f32", 1);
    c.t[ATTN_ROLE_K].shape[1] = 4;
    c.t[ATTN_ROLE_K].strides[1] = 0;
    attn_error e = expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_SHAPE, "k");
    assert_int_equal(e.expected, 2);
    assert_int_equal(e.given, 4);
    call_free(&c);
}
static void f05_tensor_shapes_and_types(void **state) {
    (void)state;
    attn_problem p = problem_of("sdpa_fwd b=2 hq=4 hk=2 sq=5 sk=7 d=8 dv=6 bf16 mask=f32 alibi=linear");
    static const struct {
        int32_t role, dtype, rank;
        int64_t shape[4];
    } want[] = {
        {ATTN_ROLE_Q, ATTN_BF16, 4, {2, 4, 5, 8}},   {ATTN_ROLE_K, ATTN_BF16, 4, {2, 2, 7, 8}},
        {ATTN_ROLE_V, ATTN_BF16, 4, {2, 2, 7, 6}},   {ATTN_ROLE_OUT, ATTN_BF16, 4, {2, 4, 5, 6}},
        {ATTN_ROLE_LSE, ATTN_F32, 3, {2, 4, 5}},     {ATTN_ROLE_LSE_ROUNDED, ATTN_BF16, 3, {2, 4, 5}},
        {ATTN_ROLE_MASK, ATTN_F32, 4, {2, 4, 5, 7}},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        attn_tensor t;
        int32_t use;
        assert_int_equal(attn_role_tensor(&p, want[i].role, &use, &t), ATTN_OK);
        assert_int_not_equal(use, ATTN_USE_NONE);
        assert_int_equal(t.dtype, want[i].dtype);
        assert_int_equal(t.rank, want[i].rank);
        for (int d = 0; d < t.rank; d++) assert_int_equal(t.shape[d], want[i].shape[d]);
    }
}
static void f06_views_know_length_shape_stride(void **state) {
    (void)state;
    struct call c; /* a zero stride is a broadcast and is computed as one */
    call_make(&c, "sdpa_fwd b=2 hq=4 sq=9 sk=11 d=8 f32", 5);
    c.t[ATTN_ROLE_K].strides[1] = 0;
    c.t[ATTN_ROLE_V].strides[0] = 0;
    call_matches_reference(&c);
    call_free(&c);
}
static void f07_element_kind_must_match(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32", 1);
    c.t[ATTN_ROLE_Q].dtype = ATTN_BF16;
    expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_DTYPE, "q");
    call_free(&c);
}
static void f08_negative_extents(void **state) {
    (void)state;
    problem_refused("sdpa_fwd b=-1 hq=2 sq=8 sk=8 d=8 f32", ATTN_E_EXTENT, "batch");
    problem_refused("sdpa_fwd b=1 hq=-2 hk=-2 sq=8 sk=8 d=8 f32", ATTN_E_EXTENT, "heads_q");
    problem_refused("sdpa_fwd b=1 hq=2 sq=-8 sk=8 d=8 f32", ATTN_E_EXTENT, "seq_q");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=-8 d=8 f32", ATTN_E_EXTENT, "seq_k");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=-8 dv=8 f32", ATTN_E_EXTENT, "dim_qk");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 dv=-8 f32", ATTN_E_EXTENT, "dim_v");
    attn_problem p = problem_of("sdpa_fwd b=0 hq=0 hk=0 sq=0 sk=0 d=0 dv=0 f32"); /* zero passes */
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
}
static void f09_scale_must_be_finite(void **state) {
    (void)state;
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 scale=nan", ATTN_E_SCALE, "scale");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 scale=inf", ATTN_E_SCALE, "scale");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 scale=-inf", ATTN_E_SCALE, "scale");
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=40 sk=70 d=8 f32 scale=0");
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=40 sk=70 d=8 f32 scale=-0.7");
    text_matches_reference("sdpa_bwd b=1 hq=2 sq=40 sk=70 d=8 f32 scale=-0.7");
}
static void f10_dims_may_differ(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=40 sk=70 d=24 dv=40 f32");
    text_matches_reference("sdpa_bwd b=1 hq=2 sq=40 sk=70 d=40 dv=24 f64 causal");
}
static void f11_element_types(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "f16", "bf16", "f64"};
    for (int i = 0; i < 4; i++) {
        char text[96];
        snprintf(text, sizeof text, "sdpa_fwd b=1 hq=2 sq=20 sk=30 d=16 %s", types[i]);
        text_matches_reference(text);
    }
    attn_problem p = problem_of("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32");
    p.dtype = ATTN_I32;
    expect(attn_problem_check(&p), ATTN_E_ENUM, "dtype");
}
static void f12_backend_is_known_after_selection(void **state) {
    (void)state;
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32", NULL);
    assert_int_equal(info_of(plan).backend, ATTN_BACKEND_CPU);
    attn_plan_release(plan);
}
static void f13_head_dims_over_128(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=19 sk=35 d=129 f32");
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=19 sk=35 d=512 bf16");
    text_matches_reference("sdpa_bwd b=1 hq=1 sq=19 sk=35 d=320 f32");
}
static void f14_windows_on_every_kernel(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=60 sk=80 d=16 f32 left=7");
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=60 sk=80 d=16 f64 right=5");
    text_matches_reference("sdpa_bwd b=1 hq=2 sq=60 sk=80 d=16 f32 left=7 right=3");
}
static void f15_softcap_on_every_kernel(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=60 sk=80 d=16 f32 softcap=2");
    text_matches_reference("sdpa_bwd b=1 hq=2 sq=60 sk=80 d=16 f64 softcap=2");
}
static void f16_bad_softcap_is_invalid_for_every_backend(void **state) {
    (void)state;
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 softcap=-1", ATTN_E_SOFTCAP, "softcap");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 softcap=nan", ATTN_E_SOFTCAP, "softcap");
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 f32 softcap=inf", ATTN_E_SOFTCAP, "softcap");
}
static void f17_window_values_are_free(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=30 sk=30 d=8 f32 left=-1");
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=30 sk=30 d=8 f32 left=-5 right=-9"); /* nothing visible */
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=30 sk=30 d=8 f32 right=-2");
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=30 sk=30 d=8 f32 left=9223372036854775807 right=9223372036854775807");
}
static void f18_plan_keeps_a_copy_and_honours_the_limit(void **state) {
    (void)state;
    attn_problem p = problem_of("sdpa_fwd b=1 hq=2 sq=300 sk=300 d=64 f32 causal"), kept = ATTN_PROBLEM_INIT;
    attn_plan *plan = NULL;
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan), ATTN_OK);
    attn_problem before = p;
    memset(&p, 0, sizeof p);
    assert_int_equal(attn_plan_get_problem(plan, &kept), ATTN_OK);
    assert_true(attn_problem_equal(&kept, &before));
    attn_plan_options o = {
        .size = sizeof o, .flags = ATTN_PLAN_WORKSPACE_LIMIT, .max_workspace_bytes = info_of(plan).workspace_bytes};
    attn_plan *limited = NULL;
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &before, &o, &limited), ATTN_OK);
    assert_true(info_of(limited).workspace_bytes <= o.max_workspace_bytes);
    attn_plan_release(limited);
    o.max_workspace_bytes = 0;
    expect(attn_plan_create(ctx, ATTN_DEVICE_CPU, &before, &o, &limited), ATTN_E_NO_KERNEL, NULL);
    assert_non_null(strstr(attn_last_error(), "workspace"));
    attn_plan_release(plan);
}
static void f19_asking_for_the_reference_gives_the_reference(void **state) {
    (void)state;
    attn_plan_options o = {.size = sizeof o, .backend = ATTN_BACKEND_REF};
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=8 sq=2048 sk=2048 d=128 bf16", &o);
    assert_int_equal(info_of(plan).backend, ATTN_BACKEND_REF);
    attn_plan_release(plan);
}
static void f20_impossible_preference_falls_back_visibly(void **state) {
    (void)state;
    attn_plan_options o = {.size = sizeof o, .backend = ATTN_BACKEND_CUDA};
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=8 sq=64 sk=64 d=128 bf16", &o);
    assert_int_equal(info_of(plan).backend, ATTN_BACKEND_CPU);
    attn_plan_release(plan);
    o.flags = ATTN_PLAN_STRICT;
    attn_problem p = problem_of("sdpa_fwd b=1 hq=8 sq=64 sk=64 d=128 bf16");
    expect(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), ATTN_E_NO_KERNEL, NULL);
}
static void f21_without_preference_the_library_chooses(void **state) {
    (void)state;
    attn_plan_options o = {.size = sizeof o};
    attn_plan *a = plan_of("sdpa_fwd b=1 hq=8 sq=64 sk=64 d=64 f32", NULL),
              *b = plan_of("sdpa_fwd b=1 hq=8 sq=64 sk=64 d=64 f32", &o);
    assert_string_equal(info_of(a).kernel, info_of(b).kernel);
    attn_plan_release(a);
    attn_plan_release(b);
    o.backend = 99;
    attn_problem p = problem_of("sdpa_fwd b=1 hq=8 sq=64 sk=64 d=64 f32");
    expect(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &a), ATTN_E_ENUM, "backend");
}
static void f22_no_size_threshold_changes_the_meaning(void **state) {
    (void)state;
    /* 1023 x 1024 and 1024 x 1024 straddle the threshold of the source contract: same alignment, same sign of infinity.
     */
    static const char *const texts[] = {"sdpa_fwd b=1 hq=1 sq=1023 sk=1024 d=32 bf16 causal left=4 mask=bool",
                                        "sdpa_fwd b=1 hq=1 sq=1024 sk=1024 d=32 bf16 causal left=4 mask=bool"};
    for (int i = 0; i < 2; i++) {
        struct call c;
        call_make(&c, texts[i], 2);
        memset(c.t[ATTN_ROLE_MASK].data, 0, 1024); /* row 0 sees nothing */
        call_matches_reference(&c);
        assert_true(get(&c.t[ATTN_ROLE_LSE], 0) == -INFINITY);
        call_free(&c);
    }
}
static void f23_no_heads_is_success(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=0 hk=0 sq=8 sk=8 d=8 bf16", 1);
    call_ok(&c, ATTN_BACKEND_ANY);
    call_ok(&c, ATTN_BACKEND_REF);
    call_free(&c);
}
static void f24_cpu_works_without_a_gpu_and_says_why(void **state) {
    (void)state;
    assert_true(attn_device_count(ctx) >= 1);
    attn_status s = attn_cuda_status(ctx);
    if (attn_device_count(ctx) == 1) {
        assert_true(s == ATTN_E_NO_DRIVER || s == ATTN_E_NO_DEVICE);
        assert_true(strlen(attn_last_error()) > 10);
    } else {
        assert_int_equal(s, ATTN_OK);
    }
}
static void f25_reported_kernel_is_the_one_that_runs(void **state) {
    (void)state;
    /* Mask, broadcast and strides never reroute an execution: info before equals the choice for the plain problem. */
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=4 sq=32 sk=32 d=16 f32 mask=f32", NULL);
    attn_plan_info before = info_of(plan);
    assert_string_equal(before.kernel_unaligned, "");
    attn_plan_release(plan);
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=4 sq=32 sk=32 d=16 f32 mask=f32", 1);
    c.t[ATTN_ROLE_K].strides[1] = 0;
    call_ok(&c, ATTN_BACKEND_ANY);
    assert_string_equal(c.info.kernel, before.kernel);
    call_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f01_nothing_is_validated_at_construction),
        cmocka_unit_test(f02_defaults_are_no_window_and_no_softcap),
        cmocka_unit_test(f03_descriptor_is_copyable_and_open_for_growth),
        cmocka_unit_test(f04_key_heads_come_with_k),
        cmocka_unit_test(f05_tensor_shapes_and_types),
        cmocka_unit_test(f06_views_know_length_shape_stride),
        cmocka_unit_test(f07_element_kind_must_match),
        cmocka_unit_test(f08_negative_extents),
        cmocka_unit_test(f09_scale_must_be_finite),
        cmocka_unit_test(f10_dims_may_differ),
        cmocka_unit_test(f11_element_types),
        cmocka_unit_test(f12_backend_is_known_after_selection),
        cmocka_unit_test(f13_head_dims_over_128),
        cmocka_unit_test(f14_windows_on_every_kernel),
        cmocka_unit_test(f15_softcap_on_every_kernel),
        cmocka_unit_test(f16_bad_softcap_is_invalid_for_every_backend),
        cmocka_unit_test(f17_window_values_are_free),
        cmocka_unit_test(f18_plan_keeps_a_copy_and_honours_the_limit),
        cmocka_unit_test(f19_asking_for_the_reference_gives_the_reference),
        cmocka_unit_test(f20_impossible_preference_falls_back_visibly),
        cmocka_unit_test(f21_without_preference_the_library_chooses),
        cmocka_unit_test(f22_no_size_threshold_changes_the_meaning),
        cmocka_unit_test(f23_no_heads_is_success),
        cmocka_unit_test(f24_cpu_works_without_a_gpu_and_says_why),
        cmocka_unit_test(f25_reported_kernel_is_the_one_that_runs),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
