/* SPDX-License-Identifier: MIT
 * Plan contract, part 3: execution, lse and numerics, telemetry, zero sizes (F46-F68). */
#include "contract.h"

static void f46_empty_output_is_success_and_nothing_is_written(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=2 hq=2 sq=0 sk=5 d=8 f32", 1);
    char ws[64];
    c.args.workspace = ws;
    call_ok(&c, ATTN_BACKEND_ANY);
    call_free(&c);
}
static void broadcast_with(const char *text) {
    struct call c;
    call_make(&c, text, 8);
    for (int r = ATTN_ROLE_K; r <= ATTN_ROLE_V; r++) c.t[r].strides[1] = 0;
    call_matches_reference(&c);
    call_free(&c);
}
static void f47_broadcast_and_mask_compose(void **state) {
    (void)state;
    broadcast_with("sdpa_fwd b=2 hq=4 sq=17 sk=23 d=16 f32 mask=f32");
}
static void f48_broadcast_with_mask_and_alibi(void **state) {
    (void)state;
    broadcast_with("sdpa_fwd b=2 hq=4 sq=17 sk=23 d=16 bf16 mask=bool alibi=linear causal");
    broadcast_with("sdpa_bwd b=2 hq=4 sq=17 sk=23 d=16 f32 mask=f32 alibi=distance");
}
static void f49_broadcast_equals_one_key_head(void **state) {
    (void)state;
    struct call a, b;
    call_make(&a, "sdpa_fwd b=1 hq=4 hk=4 sq=17 sk=23 d=16 f32", 8);
    call_make(&b, "sdpa_fwd b=1 hq=4 hk=1 sq=17 sk=23 d=16 f32", 8);
    for (int r = ATTN_ROLE_K; r <= ATTN_ROLE_V; r++) {
        a.t[r].strides[1] = 0;
        memcpy(b.t[r].data, a.t[r].data, b.t[r].bytes);
    }
    memcpy(b.t[ATTN_ROLE_Q].data, a.t[ATTN_ROLE_Q].data, b.t[ATTN_ROLE_Q].bytes);
    call_ok(&a, ATTN_BACKEND_ANY);
    call_ok(&b, ATTN_BACKEND_ANY);
    assert_memory_equal(a.t[ATTN_ROLE_OUT].data, b.t[ATTN_ROLE_OUT].data, a.t[ATTN_ROLE_OUT].bytes);
    call_free(&a);
    call_free(&b);
}
static void f50_broadcast_for_every_type_and_width(void **state) {
    (void)state;
    broadcast_with("sdpa_fwd b=1 hq=4 sq=17 sk=23 d=80 f32");
    broadcast_with("sdpa_fwd b=1 hq=4 sq=17 sk=23 d=192 f64");
    broadcast_with("sdpa_fwd b=1 hq=4 sq=17 sk=23 d=256 f16");
}
static void f51_mask_with_every_backend(void **state) {
    (void)state;
    text_matches_reference("sdpa_fwd b=2 hq=4 sq=31 sk=33 d=16 f32 mask=f32");
    text_matches_reference(
        "sdpa_fwd b=2 hq=4 hk=2 sq=31 sk=33 d=160 bf16 mask=f32 causal left=9 softcap=4 alibi=linear");
}
static void f52_f53_same_numbers_however_the_call_is_made(void **state) {
    (void)state;
    /* The source routed a captured call elsewhere. On the CPU the two ways to call are attn_execute and attn_run. */
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=4 hk=2 sq=70 sk=90 d=32 bf16 causal left=20 softcap=5 alibi=linear", 3);
    call_ok(&c, ATTN_BACKEND_ANY);
    attn_tensor *out = &c.t[ATTN_ROLE_OUT];
    void *first = malloc((size_t)out->bytes);
    memcpy(first, out->data, (size_t)out->bytes);
    fill_output(out);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &c.p, &c.args), ATTN_OK);
    assert_memory_equal(first, out->data, (size_t)out->bytes);
    free(first);
    call_free(&c);
}
static void f54_each_type_has_a_kernel(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "f16", "bf16", "f64"};
    static const int32_t codes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "sdpa_fwd b=1 hq=1 sq=4 sk=4 d=8 %s", types[i]);
        attn_plan *plan = plan_of(text, NULL);
        assert_int_equal(info_of(plan).dtype, codes[i]);
        assert_int_equal(info_of(plan).backend, ATTN_BACKEND_CPU);
        attn_plan_release(plan);
    }
}

static int64_t n_allocations;
static void *counting_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    __atomic_fetch_add(&n_allocations, 1, __ATOMIC_RELAXED);
    return aligned_alloc(alignment < 16 ? 16 : alignment, (bytes + 63) / 64 * 64 + (alignment > 64 ? alignment : 0));
}
static void counting_free(void *user, void *memory, size_t bytes) {
    (void)user;
    (void)bytes;
    free(memory);
}
static void f55_plans_never_allocate_when_executed(void **state) {
    (void)state;
    attn_ctx *mine = NULL, *shared = ctx;
    attn_ctx_options o = {.size = sizeof o, .alloc = counting_alloc, .free = counting_free};
    assert_int_equal(attn_ctx_create(&o, &mine), ATTN_OK);
    struct call c;
    call_make(&c, "sdpa_fwd b=2 hq=4 hk=2 sq=70 sk=90 d=32 bf16 causal", 3);
    attn_plan *plan = NULL;
    assert_int_equal(attn_plan_create(mine, ATTN_DEVICE_CPU, &c.p, NULL, &plan), ATTN_OK);
    c.args.workspace_bytes = info_of(plan).workspace_bytes;
    c.args.workspace = aligned_alloc(64, (size_t)(c.args.workspace_bytes + 64) / 64 * 64);
    int64_t before = n_allocations;
    for (int i = 0; i < 3; i++) assert_int_equal(attn_execute(plan, &c.args), ATTN_OK);
    assert_int_equal(n_allocations, before);
    free(c.args.workspace);
    attn_plan_release(plan);
    call_free(&c);
    attn_ctx_release(mine);
    ctx = shared;
}

/* lse of the plain double formula. */
static double plain_lse(const struct call *c, int64_t b, int64_t h, int64_t i) {
    const attn_problem *p = &c->p;
    double m = -INFINITY, sum = 0, s[4096];
    for (int64_t j = 0; j < p->seq_k; j++) {
        s[j] = 0;
        for (int64_t d = 0; d < p->dim_qk; d++)
            s[j] += get(&c->t[ATTN_ROLE_Q], ((b * p->heads_q + h) * p->seq_q + i) * p->dim_qk + d) *
                    get(&c->t[ATTN_ROLE_K],
                        ((b * p->heads_k + h * p->heads_k / p->heads_q) * p->seq_k + j) * p->dim_qk + d);
        s[j] /= sqrt((double)p->dim_qk);
        if (s[j] > m) m = s[j];
    }
    for (int64_t j = 0; j < p->seq_k; j++) sum += exp(s[j] - m);
    return m + log(sum);
}
static void f56_lse_is_natural_and_has_a_copy_in_the_element_type(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=2 sq=7 sk=40 d=16 bf16", 3);
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 14; i++) {
        double want = plain_lse(&c, 0, i / 7, i % 7);
        assert_true(fabs(get(&c.t[ATTN_ROLE_LSE], i) - want) <= 1e-5 * fmax(1, fabs(want)));
        uint16_t rounded;
        attn_convert(&rounded, ATTN_BF16, (float *)c.t[ATTN_ROLE_LSE].data + i, ATTN_F32, 1);
        assert_int_equal(((uint16_t *)c.t[ATTN_ROLE_LSE_ROUNDED].data)[i], rounded);
    }
    call_free(&c);
}
static void f57_lse_is_written_on_every_path(void **state) {
    (void)state;
    static const char *const texts[] = {"sdpa_fwd b=1 hq=2 sq=5 sk=40 d=16 bf16",
                                        "sdpa_fwd b=1 hq=2 sq=1 sk=3000 d=64 f16",
                                        "sdpa_fwd b=1 hq=2 sq=1100 sk=1000 d=16 bf16 causal",
                                        "sdpa_fwd b=1 hq=2 sq=5 sk=40 d=16 f32 mask=bool",
                                        "sdpa_fwd b=1 hq=2 sq=5 sk=0 d=16 f64",
                                        "sdpa_fwd b=1 hq=2 sq=5 sk=9 d=16 dv=0 f32"};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++)
        for (int32_t backend = ATTN_BACKEND_ANY; backend <= ATTN_BACKEND_CPU; backend++) {
            struct call c;
            call_make(&c, texts[t], 3);
            call_ok(&c, backend);
            for (int64_t i = 0; i < count_of(&c.t[ATTN_ROLE_LSE]); i++)
                assert_true(!isnan(get(&c.t[ATTN_ROLE_LSE], i)));
            call_free(&c);
        }
}
static void f58_half_types_accumulate_in_f32(void **state) {
    (void)state;
    /* 4096 equal keys: a bf16 accumulator would stop growing at 256. */
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=1 sq=3 sk=4096 d=8 bf16", 3);
    memset(c.t[ATTN_ROLE_K].data, 0, (size_t)c.t[ATTN_ROLE_K].bytes);
    for (int64_t i = 0; i < 4096 * 8; i++) put(&c.t[ATTN_ROLE_V], i, (i / 8) % 2 ? 1 : 3);
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 3 * 8; i++) assert_true(get(&c.t[ATTN_ROLE_OUT], i) == 2.0);
    for (int64_t i = 0; i < 3; i++) assert_true(fabs(get(&c.t[ATTN_ROLE_LSE], i) - log(4096)) < 1e-5);
    call_free(&c);
}
static void f59_mask_hides_exactly_and_never_unhides(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=1 sq=20 sk=20 d=8 f32 causal mask=f32", 3);
    float *mask = c.t[ATTN_ROLE_MASK].data;
    for (int64_t i = 0; i < 20; i++)
        for (int64_t j = 0; j < 20; j++)
            mask[i * 20 + j] = j > i ? (j % 2 ? INFINITY : NAN) : (j % 3 ? 0.5f * (float)j : -INFINITY);
    for (int64_t d = 0; d < 8; d++) put(&c.t[ATTN_ROLE_V], 3 * 8 + d, NAN); /* key 3 is hidden for every row */
    call_matches_reference(&c);
    for (int64_t i = 1; i < 20; i++) assert_true(isfinite(get(&c.t[ATTN_ROLE_OUT], i * 8)));
    assert_true(get(&c.t[ATTN_ROLE_LSE], 0) == -INFINITY); /* row 0 sees key 0 only, which the mask hides */
    call_free(&c);
}
static void f60_softcap_formula(void **state) {
    (void)state;
    struct call c; /* one key hides nothing: two keys, scores known */
    call_make(&c, "sdpa_fwd b=1 hq=1 sq=1 sk=2 d=1 dv=1 f64 scale=3 softcap=2", 3);
    put(&c.t[ATTN_ROLE_Q], 0, 1);
    put(&c.t[ATTN_ROLE_K], 0, 0.25);
    put(&c.t[ATTN_ROLE_K], 1, -1.5);
    call_ok(&c, ATTN_BACKEND_ANY);
    double a = 2 * tanh(0.75 / 2), b = 2 * tanh(-4.5 / 2);
    assert_true(fabs(get(&c.t[ATTN_ROLE_LSE], 0) - log(exp(a) + exp(b))) < 1e-14);
    call_free(&c);
}
static void f61_causal_with_a_left_window_is_the_last_n_and_the_current(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=1 sq=12 sk=12 d=1 dv=12 f64 scale=0 causal left=3 right=7", 3);
    for (int64_t j = 0; j < 12; j++)
        for (int64_t d = 0; d < 12; d++) put(&c.t[ATTN_ROLE_V], j * 12 + d, j == d);
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 12; i++)
        for (int64_t j = 0; j < 12; j++) {
            int64_t n = i < 3 ? i + 1 : 4;
            double want = j <= i && j >= i - 3 ? 1.0 / (double)n : 0;
            assert_true(fabs(get(&c.t[ATTN_ROLE_OUT], i * 12 + j) - want) < 1e-15);
        }
    call_free(&c);
}
static void f62_alibi_is_slope_times_k_minus_q(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=2 hq=2 sq=3 sk=5 d=1 f64 scale=0 alibi=linear", 3);
    float *slopes = c.t[ATTN_ROLE_ALIBI].data;
    int64_t n = count_of(&c.t[ATTN_ROLE_ALIBI]);
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t row = 0; row < 12; row++) {
        int64_t b = row / 6, h = row / 3 % 2, i = row % 3;
        double slope = slopes[n == 4 ? b * 2 + h : h], sum = 0;
        for (int64_t j = 0; j < 5; j++) sum += exp(slope * (double)(j - i));
        assert_true(fabs(get(&c.t[ATTN_ROLE_LSE], row) - log(sum)) < 1e-13);
    }
    call_free(&c);
}
static void f63_backend_is_told(void **state) {
    (void)state;
    attn_plan_options o = {.size = sizeof o, .backend = ATTN_BACKEND_CPU};
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=1 sq=4 sk=4 d=8 f32", &o);
    assert_int_equal(info_of(plan).backend, ATTN_BACKEND_CPU);
    attn_plan_release(plan);
}
static void f64_identity_of_the_kernel(void **state) {
    (void)state;
    attn_plan *plan = plan_of("sdpa_fwd b=1 hq=1 sq=4 sk=4 d=8 f16", NULL);
    attn_plan_info info = info_of(plan);
    assert_int_equal(info.op, ATTN_OP_SDPA_FWD);
    assert_int_equal(info.dtype, ATTN_F16);
    assert_true(strncmp(info.kernel, "attn_sdpa_fwd_", 14) == 0);
    assert_non_null(strstr(info.kernel, info.arch));
    assert_int_equal(info.device.type, ATTN_DEVICE_TYPE_CPU);
    attn_plan_release(plan);
}
static void f65_precision_is_told_and_the_same_in_the_listing(void **state) {
    (void)state;
    static const char *const texts[] = {"sdpa_fwd hq=1 sq=4 d=8 f32", "sdpa_fwd hq=1 sq=4 d=8 f16",
                                        "sdpa_fwd hq=1 sq=4 d=8 bf16", "sdpa_fwd hq=1 sq=4 d=8 f64"};
    for (int i = 0; i < 4; i++) {
        attn_plan *plan = plan_of(texts[i], NULL);
        attn_plan_info info = info_of(plan);
        /* instructions that multiply bf16 as it is; f32 and f16 are exact terms of it on tiles */
        const int unwidened = i == 2 && (strstr(info.arch, "bf16") || strstr(info.arch, "amx"));
        assert_int_equal(info.math_dtype, i == 3 ? ATTN_F64 : unwidened ? ATTN_BF16 : ATTN_F32);
        assert_int_equal(info.accumulator_dtype, i == 3 ? ATTN_F64 : ATTN_F32);
        assert_int_equal(info.bit_stable, 1);
        assert_int_equal(info.deterministic, 1);
        int found = 0;
        for (int32_t k = 0; k < attn_kernel_count(ctx); k++) {
            attn_kernel_info row = {.size = sizeof row};
            assert_int_equal(attn_kernel_get_info(ctx, k, &row), ATTN_OK);
            if (strcmp(row.name, info.kernel)) continue;
            found++;
            assert_int_equal(row.math_dtype, info.math_dtype);
            assert_int_equal(row.accumulator_dtype, info.accumulator_dtype);
            assert_int_equal(row.bit_stable, info.bit_stable);
        }
        assert_int_equal(found, 1);
        attn_plan_release(plan);
    }
}
/* Run with data = NULL wherever a tensor is empty. */
static void empty_case(const char *text) {
    for (int32_t backend = ATTN_BACKEND_ANY; backend <= ATTN_BACKEND_CPU; backend++) {
        struct call c;
        call_make(&c, text, 3);
        for (int r = 0; r < ATTN_ROLE_COUNT; r++)
            if (count_of(&c.t[r]) == 0 || c.t[r].bytes == 0) {
                free(c.t[r].data);
                c.t[r].data = NULL;
            }
        call_ok(&c, backend);
        call_free(&c);
    }
}
static void f66_zero_extents_need_no_storage(void **state) {
    (void)state;
    empty_case("sdpa_fwd b=0 hq=2 sq=3 sk=4 d=8 f32");
    empty_case("sdpa_fwd b=1 hq=2 sq=0 sk=4 d=8 f32");
    empty_case("sdpa_fwd b=1 hq=2 sq=3 sk=4 d=0 dv=8 f32");
    empty_case("sdpa_fwd b=1 hq=0 hk=0 sq=3 sk=4 d=8 f32");
    empty_case("sdpa_fwd b=1 hq=2 sq=3 sk=0 d=8 f32");
    empty_case("sdpa_bwd b=0 hq=2 sq=3 sk=4 d=8 f32");
    empty_case("sdpa_bwd b=1 hq=2 sq=0 sk=4 d=8 f32");
    empty_case("sdpa_bwd b=1 hq=2 sq=3 sk=0 d=8 f32");
}
static void f67_no_keys_gives_zero_and_minus_infinity(void **state) {
    (void)state;
    static const char *const types[] = {"f32", "f16", "bf16", "f64"};
    for (int i = 0; i < 4; i++)
        for (int32_t backend = ATTN_BACKEND_ANY; backend <= ATTN_BACKEND_CPU; backend++) {
            char text[64];
            snprintf(text, sizeof text, "sdpa_fwd b=1 hq=2 sq=3 sk=0 d=80 %s", types[i]);
            struct call c;
            call_make(&c, text, 3);
            call_ok(&c, backend);
            for (int64_t k = 0; k < count_of(&c.t[ATTN_ROLE_OUT]); k++) assert_true(get(&c.t[ATTN_ROLE_OUT], k) == 0);
            for (int64_t k = 0; k < 6; k++) assert_true(get(&c.t[ATTN_ROLE_LSE], k) == -INFINITY);
            call_free(&c);
        }
}
static void f68_zero_sizes_do_what_the_formula_says(void **state) {
    (void)state;
    struct call c;
    call_make(&c, "sdpa_fwd b=1 hq=2 sq=3 sk=9 d=8 dv=0 f32", 3); /* no value columns: lse all the same */
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 6; i++)
        assert_true(fabs(get(&c.t[ATTN_ROLE_LSE], i) - plain_lse(&c, 0, i / 3, i % 3)) < 2e-5);
    call_free(&c);
    call_make(&c, "sdpa_bwd b=1 hq=2 sq=0 sk=5 d=8 f32", 3); /* no queries: key gradients are zero, not left alone */
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 80; i++) assert_true(get(&c.t[ATTN_ROLE_DK], i) == 0 && get(&c.t[ATTN_ROLE_DV], i) == 0);
    call_free(&c);
    call_make(&c, "sdpa_bwd b=1 hq=2 sq=4 sk=0 d=8 f32", 3); /* no keys: query gradients are zero */
    call_ok(&c, ATTN_BACKEND_ANY);
    for (int64_t i = 0; i < 64; i++) assert_true(get(&c.t[ATTN_ROLE_DQ], i) == 0);
    call_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f46_empty_output_is_success_and_nothing_is_written),
        cmocka_unit_test(f47_broadcast_and_mask_compose),
        cmocka_unit_test(f48_broadcast_with_mask_and_alibi),
        cmocka_unit_test(f49_broadcast_equals_one_key_head),
        cmocka_unit_test(f50_broadcast_for_every_type_and_width),
        cmocka_unit_test(f51_mask_with_every_backend),
        cmocka_unit_test(f52_f53_same_numbers_however_the_call_is_made),
        cmocka_unit_test(f54_each_type_has_a_kernel),
        cmocka_unit_test(f55_plans_never_allocate_when_executed),
        cmocka_unit_test(f56_lse_is_natural_and_has_a_copy_in_the_element_type),
        cmocka_unit_test(f57_lse_is_written_on_every_path),
        cmocka_unit_test(f58_half_types_accumulate_in_f32),
        cmocka_unit_test(f59_mask_hides_exactly_and_never_unhides),
        cmocka_unit_test(f60_softcap_formula),
        cmocka_unit_test(f61_causal_with_a_left_window_is_the_last_n_and_the_current),
        cmocka_unit_test(f62_alibi_is_slope_times_k_minus_q),
        cmocka_unit_test(f63_backend_is_told),
        cmocka_unit_test(f64_identity_of_the_kernel),
        cmocka_unit_test(f65_precision_is_told_and_the_same_in_the_listing),
        cmocka_unit_test(f66_zero_extents_need_no_storage),
        cmocka_unit_test(f67_no_keys_gives_zero_and_minus_infinity),
        cmocka_unit_test(f68_zero_sizes_do_what_the_formula_says),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
