/* SPDX-License-Identifier: MIT
 * Plan contract, part 4: the contradictions C1-C25 of the source contract, resolved as docs/compatibility.md says. */
#include "contract.h"

static void c01_every_head_dim_to_512(void **state) {
    (void)state;
    for (int d = 1; d <= 512; d += d < 20 ? 1 : 41) {
        char text[96];
        snprintf(text, sizeof text, "sdpa_fwd b=1 hq=1 sq=5 sk=9 d=%d f32", d);
        text_matches_reference(text);
    }
    text_matches_reference("sdpa_fwd b=1 hq=1 sq=5 sk=9 d=512 bf16");
    problem_refused("sdpa_fwd b=1 hq=1 sq=5 sk=9 d=513 f32", ATTN_E_EXTENT, "dim_qk");
}
static void c02_grouped_heads_need_no_special_dim(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=6 hk=2 sq=5 sk=9 d=40 bf16");
}
static void c03_mask_is_a_feature_of_the_same_operator(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=5 sk=9 d=128 bf16 mask=f32");
}
static void c04_workspace_is_what_the_plan_says(void **state) {
    (void)state;
    /* Whatever the kernel, the stated bytes are enough (call_run gives exactly those). */
    static const char *const patterns[] = {"*_ref_*", "*_c_*", NULL};
    for (int i = 0; i < 3; i++) {
        struct call c;
        attn_plan_options o = {.size = sizeof o, .kernel = patterns[i]};
        call_make(&c, "sdpa_fwd b=1 hq=2 sq=300 sk=700 d=64 bf16", 3);
        assert_int_equal(call_run_with(&c, &o), ATTN_OK);
        call_free(&c);
    }
}
static void c05_mask_with_wide_heads(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=33 sk=60 d=256 f16 mask=f32 causal");
}
static void c06_lse_is_f32_and_feeds_the_backward(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_bwd b=1 hq=2 sq=33 sk=60 d=32 bf16 causal", 3);
    assert_int_equal(c.t[ATTN_ROLE_LSE].dtype, ATTN_F32);
    call_matches_reference(&c);
    call_free(&c);
    call_make(&c, "sdpa_bwd b=1 hq=2 sq=33 sk=60 d=32 f64 causal", 3);
    assert_int_equal(c.t[ATTN_ROLE_LSE].dtype, ATTN_F64);
    call_matches_reference(&c);
    call_free(&c);
}

/* P itself: scores all equal (scale 0), value = identity, so that out[i][j] is 1/n where key j is visible and 0
 * elsewhere. */
static void visible_keys(const char *text, int (*visible)(int64_t i, int64_t j)) {
    struct call c;
    call_make(&c, text, 3);
    int64_t sq = c.p.seq_q, sk = c.p.seq_k;
    assert_int_equal(c.p.dim_v, sk);
    for (int64_t j = 0; j < sk; j++)
        for (int64_t d = 0; d < sk; d++) put(&c.t[ATTN_ROLE_V], j * sk + d, j == d);
    for (int32_t backend = ATTN_BACKEND_ANY; backend <= ATTN_BACKEND_CPU; backend++) {
        fill_output(&c.t[ATTN_ROLE_OUT]);
        call_ok(&c, backend);
        for (int64_t i = 0; i < sq; i++) {
            int64_t n = 0;
            for (int64_t j = 0; j < sk; j++) n += visible(i, j);
            for (int64_t j = 0; j < sk; j++) {
                double want = visible(i, j) ? 1.0 / (double)n : 0;
                assert_true(fabs(get(&c.t[ATTN_ROLE_OUT], i * sk + j) - want) < 1e-6);
            }
            double lse = get(&c.t[ATTN_ROLE_LSE], i);
            assert_true(n ? fabs(lse - log((double)n)) < 1e-5 : lse == -INFINITY);
        }
    }
    call_free(&c);
}
static int causal_left4(int64_t i, int64_t j) { return j <= i && j >= i - 4; }
static int left128(int64_t i, int64_t j) { return j >= i - 128; }
static int right0(int64_t i, int64_t j) { return j <= i; }
static int right64(int64_t i, int64_t j) { return j <= i + 64; }
static int causal_top_left(int64_t i, int64_t j) { return j <= i; }
static int causal_bottom_right(int64_t i, int64_t j) { return j <= i + 90 - 60; }
static void c07_causal_never_drops_the_left_window(void **state) {
    (void)state;
    visible_keys("sdpa_fwd b=1 hq=1 sq=100 sk=100 d=4 dv=100 f32 scale=0 causal left=4", causal_left4);
}
static void c08_an_absent_side_really_is_unbounded(void **state) {
    (void)state;
    visible_keys("sdpa_fwd b=1 hq=1 sq=300 sk=300 d=4 dv=300 f32 scale=0 left=128", left128);
    visible_keys("sdpa_fwd b=1 hq=1 sq=300 sk=300 d=4 dv=300 f32 scale=0 right=0", right0);
    visible_keys("sdpa_fwd b=1 hq=1 sq=300 sk=300 d=4 dv=300 f32 scale=0 right=64", right64);
}
static void c09_softcap_in_forward_and_backward(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=50 sk=50 d=32 bf16 softcap=1.5");
    text_matches_reference("sdpa_bwd b=1 hq=2 sq=50 sk=50 d=32 bf16 softcap=1.5 seqlens_q seqlens_k");
}
static double alibi_lse(const char *form, int64_t i) {
    char text[96];
    struct call c;
    snprintf(text, sizeof text, "sdpa_fwd b=1 hq=1 sq=6 sk=9 d=1 f64 scale=0 alibi=%s", form);
    call_make(&c, text, 3);
    ((float *)c.t[ATTN_ROLE_ALIBI].data)[0] = 0.5f;
    call_ok(&c, ATTN_BACKEND_ANY);
    double lse = get(&c.t[ATTN_ROLE_LSE], i);
    call_free(&c);
    return lse;
}
static void c10_alibi_has_two_named_forms(void **state) {
    (void)state;
    double linear = 0, distance = 0;
    for (int j = 0; j < 9; j++) {
        linear += exp(0.5 * (j - 4));
        distance += exp(-0.5 * abs(j - 4));
    }
    assert_true(fabs(alibi_lse("linear", 4) - log(linear)) < 1e-14);
    assert_true(fabs(alibi_lse("distance", 4) - log(distance)) < 1e-14);
}
static void c11_slope_strides_are_used(void **state) {
    (void)state;
    struct call c;
    float one_row[2] = {0.25f, 1.0f};
    call_make(&c, "sdpa_fwd b=3 hq=2 sq=4 sk=5 d=1 f64 scale=0 alibi=linear", 3);
    attn_tensor t = {
        .data = one_row, .bytes = sizeof one_row, .dtype = ATTN_F32, .rank = 2, .shape = {3, 2}, .strides = {0, 1}};
    attn_args_set(&c.args, ATTN_ROLE_ALIBI, &t);
    for (int32_t backend = ATTN_BACKEND_ANY; backend <= ATTN_BACKEND_CPU; backend++) {
        call_ok(&c, backend);
        for (int64_t row = 0; row < 24; row++) {
            double sum = 0;
            for (int64_t j = 0; j < 5; j++) sum += exp((double)one_row[row / 4 % 2] * (double)(j - row % 4));
            assert_true(fabs(get(&c.t[ATTN_ROLE_LSE], row) - log(sum)) < 1e-13);
        }
    }
    call_free(&c);
}
static void c12_grouped_heads_are_native(void **state) {
    (void)state;
    text_matches_reference(
        "sdpa_fwd b=1 hq=8 hk=2 sq=50 sk=50 d=64 f32 causal left=9 softcap=3 alibi=linear mask=bool");
}
static void c13_c14_setup_happens_at_creation_and_numbers_do_not_depend_on_the_route(void **state) {
    (void)state;
    /* A plan executed twice, and by two kinds of call, gives the same bits with every feature on. */
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=4 hk=2 sq=50 sk=70 d=160 bf16 causal left=9 softcap=3 alibi=linear", 3);
    c.t[ATTN_ROLE_K].strides[1] = 0;
    attn_tensor *out = &c.t[ATTN_ROLE_OUT];
    void *first = malloc((size_t)out->bytes);
    call_ok(&c, ATTN_BACKEND_ANY);
    memcpy(first, out->data, (size_t)out->bytes);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
    assert_memory_equal(first, out->data, (size_t)out->bytes);
    free(first);
    call_matches_reference(&c);
    call_free(&c);
}
static void c15_mask_composes_with_everything(void **state) {
    (void)state;
    text_matches_reference(
        "sdpa_fwd b=2 hq=8 hk=2 sq=50 sk=60 d=64 bf16 mask=f32 left=9 right=4 softcap=3 alibi=distance sink");
    text_matches_reference(
        "sdpa_bwd b=2 hq=8 hk=2 sq=50 sk=60 d=64 bf16 mask=f32 left=9 right=4 softcap=3 alibi=distance sink dlse "
        "grad_mask grad_alibi grad_sink");
}
static void c16_strict_turns_the_fallback_into_an_error(void **state) {
    (void)state;
    attn_problem p = problem_of("sdpa_fwd b=1 hq=1 sq=4 sk=4 d=8 f32");
    attn_plan *plan = NULL;
    attn_plan_options o = {.size = sizeof o, .kernel = "no_such_kernel_*"};
    assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), ATTN_OK);
    attn_plan_release(plan);
    o.flags = ATTN_PLAN_STRICT;
    expect(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), ATTN_E_NO_KERNEL, NULL);
    assert_non_null(strstr(attn_last_error(), "no_such_kernel_*"));
}
static void c17_workspace_limit_is_honoured(void **state) {
    (void)state;
    attn_problem p = problem_of("sdpa_fwd b=1 hq=1 sq=400 sk=400 d=64 f32");
    attn_plan *plan = NULL;
    attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_WORKSPACE_LIMIT, .max_workspace_bytes = 16};
    expect(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &o, &plan), ATTN_E_NO_KERNEL, NULL);
    assert_non_null(strstr(attn_last_error(), "16"));
}
static void c18_f64_computes_and_says_f64(void **state) {
    (void)state;
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=1 sq=4 sk=4 d=8 f64", NULL);
    assert_int_equal(info_of(plan).math_dtype, ATTN_F64);
    assert_int_equal(info_of(plan).accumulator_dtype, ATTN_F64);
    attn_plan_release(plan);
    text_matches_reference("sdpa_fwd b=1 hq=2 sq=90 sk=300 d=64 f64"); /* the f64 bound is 1e-13 */
}
static void c19_stability_is_claimed_only_where_it_holds(void **state) {
    (void)state;
    /* Bit-stable: the same bits from 1, 2 and 3 threads, and for a row alone as among others. */
    attn_ctx *shared = ctx;
    struct call c;
    call_make(&c, "sdpa_bwd b=2 hq=4 hk=2 sq=130 sk=150 d=32 f32 causal", 3);
    void *first[ATTN_ROLE_COUNT] = {0};
    static const int32_t roles[] = {ATTN_ROLE_DQ, ATTN_ROLE_DK, ATTN_ROLE_DV};
    for (int threads = 1; threads <= 3; threads++) {
        attn_ctx_options o = {.size = sizeof o, .threads = threads};
        assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
        call_ok(&c, ATTN_BACKEND_ANY);
        assert_int_equal(c.info.bit_stable, 1);
        for (int r = 0; r < 3; r++) {
            attn_tensor *t = &c.t[roles[r]];
            if (first[roles[r]])
                assert_memory_equal(first[roles[r]], t->data, (size_t)t->bytes);
            else
                memcpy(first[roles[r]] = malloc((size_t)t->bytes), t->data, (size_t)t->bytes);
        }
        attn_ctx_release(ctx);
    }
    for (int r = 0; r < 3; r++) free(first[roles[r]]);
    ctx = shared;
    call_free(&c);
}
static void c20_zero_extents_succeed(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=3 hq=0 hk=0 sq=8 sk=8 d=8 f16", 3);
    call_ok(&c, ATTN_BACKEND_ANY);
    call_free(&c);
    call_make(&c, "sdpa_fwd b=1 hq=2 sq=8 sk=8 d=8 dv=0 f16", 3);
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 16; i++) assert_true(isfinite(get(&c.t[ATTN_ROLE_LSE], i)));
    call_free(&c);
}
static void c21_bad_softcap_has_one_status(void **state) {
    (void)state;
    problem_refused("sdpa_fwd b=1 hq=2 sq=8 sk=8 d=300 f32 softcap=-1 left=4", ATTN_E_SOFTCAP, "softcap");
}
static void c22_short_buffer_tells_its_own_need_and_length(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=2 sq=8 sk=16 d=8 f32", 3);
    c.t[ATTN_ROLE_Q].bytes = 100;
    attn_error e = expect(call_run(&c, ATTN_BACKEND_ANY), ATTN_E_BUFFER, "q");
    assert_int_equal(e.expected, 2 * 8 * 8 * 4);
    assert_int_equal(e.given, 100);
    call_free(&c);
}
static void c23_strides_of_extent_one_axes_do_not_matter(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=1 sq=8 sk=16 d=8 f32 mask=f32", 3);
    for (int r = 0; r < ATTN_ROLE_COUNT; r++)
        for (int a = 0; a < c.t[r].rank; a++)
            if (c.t[r].shape[a] == 1) c.t[r].strides[a] = INT64_MIN / 2 + 77 * a;
    call_matches_reference(&c);
    call_free(&c);
    call_make(&c, "sdpa_fwd b=1 hq=1 sq=8 sk=16 d=1 f32", 3); /* also the innermost */
    c.t[ATTN_ROLE_Q].strides[3] = -12345;
    call_matches_reference(&c);
    call_free(&c);
}
static void c24_c25_no_width_fails_after_it_was_accepted(void **state) {
    (void)state;
    /* The source accepted widths at selection that failed at launch. Here: accepted means it runs, for each type. */
    static const char *const types[] = {"f32", "f16", "bf16", "f64"};
    for (int t = 0; t < 4; t++)
        for (int d = 64; d <= 512; d += 64) {
            char text[64];
            struct call c;
            snprintf(text, sizeof text, "sdpa_fwd b=1 hq=1 sq=3 sk=5 d=%d %s", d, types[t]);
            call_make(&c, text, 3);
            for (int32_t k = 0; k < attn_kernel_count(ctx); k++) {
                attn_kernel_info row = {.size = sizeof row};
                assert_int_equal(attn_kernel_get_info(ctx, k, &row), ATTN_OK);
                if (attn_kernel_supports(ctx, ATTN_DEVICE_CPU, k, &c.p)) continue;
                attn_plan_options o = {.size = sizeof o, .kernel = row.name, .flags = ATTN_PLAN_STRICT};
                fill_output(&c.t[ATTN_ROLE_OUT]);
                assert_int_equal(call_run_with(&c, &o), ATTN_OK);
                assert_string_equal(c.info.kernel, row.name);
                for (int64_t i = 0; i < count_of(&c.t[ATTN_ROLE_OUT]); i++)
                    assert_true(isfinite(get(&c.t[ATTN_ROLE_OUT], i)));
            }
            call_free(&c);
        }
}
static void causal_alignment_is_one_flag(void **state) {
    (void)state;
    visible_keys("sdpa_fwd b=1 hq=1 sq=60 sk=90 d=4 dv=90 f32 scale=0 causal", causal_top_left);
    visible_keys("sdpa_fwd b=1 hq=1 sq=60 sk=90 d=4 dv=90 f32 scale=0 causal bottom_right", causal_bottom_right);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c01_every_head_dim_to_512),
        cmocka_unit_test(c02_grouped_heads_need_no_special_dim),
        cmocka_unit_test(c03_mask_is_a_feature_of_the_same_operator),
        cmocka_unit_test(c04_workspace_is_what_the_plan_says),
        cmocka_unit_test(c05_mask_with_wide_heads),
        cmocka_unit_test(c06_lse_is_f32_and_feeds_the_backward),
        cmocka_unit_test(c07_causal_never_drops_the_left_window),
        cmocka_unit_test(c08_an_absent_side_really_is_unbounded),
        cmocka_unit_test(c09_softcap_in_forward_and_backward),
        cmocka_unit_test(c10_alibi_has_two_named_forms),
        cmocka_unit_test(c11_slope_strides_are_used),
        cmocka_unit_test(c12_grouped_heads_are_native),
        cmocka_unit_test(c13_c14_setup_happens_at_creation_and_numbers_do_not_depend_on_the_route),
        cmocka_unit_test(c15_mask_composes_with_everything),
        cmocka_unit_test(c16_strict_turns_the_fallback_into_an_error),
        cmocka_unit_test(c17_workspace_limit_is_honoured),
        cmocka_unit_test(c18_f64_computes_and_says_f64),
        cmocka_unit_test(c19_stability_is_claimed_only_where_it_holds),
        cmocka_unit_test(c20_zero_extents_succeed),
        cmocka_unit_test(c21_bad_softcap_has_one_status),
        cmocka_unit_test(c22_short_buffer_tells_its_own_need_and_length),
        cmocka_unit_test(c23_strides_of_extent_one_axes_do_not_matter),
        cmocka_unit_test(c24_c25_no_width_fails_after_it_was_accepted),
        cmocka_unit_test(causal_alignment_is_one_flag),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
