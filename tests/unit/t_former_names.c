/* SPDX-License-Identifier: MIT
 * Names that rows had (core/former_names.h): none is a row's, each has one row that took its place, and a preference or
 * a tuning file that holds one gets that row. */
#include "api_fixture.h"

#include "api/api.h"
#include "core/former_names.h"

static int find_row(attn_ctx *ctx, const char *name) {
    attn_kernel_info info = {.size = sizeof info};
    for (int32_t i = 0; !attn_kernel_get_info(ctx, i, &info); i++)
        if (!strcmp(info.name, name)) return 1;
    return 0;
}

static void names_match(void **state) {
    (void)state;
    assert_true(attn_core_name_matches("*_sm90_*_even", "attn_mla_bwd_sm90_f16_d576_h64_even"));
    assert_true(attn_core_name_matches("*_bf16_d576_h64_even", "attn_mla_bwd_sm90_bf16_d576_h64_alt"));
    assert_false(attn_core_name_matches("*_bf16_d576_h64_even", "attn_mla_bwd_sm90_bf16_d512_h64_alt"));
    assert_false(attn_core_name_matches("*_bf16_d576_h64_even", "attn_mla_bwd_sm90_bf16_d576_h64_alt_det"));
    assert_true(attn_core_is_named("k", "k"));
    assert_true(attn_core_is_named("attn_mla_bwd_sm90_bf16_d576_h64_even", "attn_mla_bwd_sm90_bf16_d576_h64_alt"));
    assert_false(attn_core_is_named("attn_mla_bwd_sm90_bf16_d576_h64_*", "attn_mla_bwd_sm90_bf16_d576_h64_alt"));
    assert_false(attn_core_is_named("attn_mla_bwd_sm90_bf16_d576_h64_even", "attn_mla_bwd_sm90_bf16_d512_h64_alt"));
}

#ifdef ATTN_HAVE_CUDA
static void rows_take_their_place(void **state) {
    (void)state;
    struct hooks hooks = {0};
    attn_ctx_options o = hooked(&hooks);
    attn_ctx *ctx = NULL;
    o.cuda_driver = ATTN_TEST_CUDA_STUB;
    setenv("CUDA_STUB_DEVICES", "90", 1);
    assert_int_equal(attn_ctx_create(&o, &ctx), ATTN_OK);
    for (int32_t i = 0; i < attn_core_n_former_names; i++) {
        const struct attn_core_former_name *line = &attn_core_former_names[i];
        assert_false(find_row(ctx, line->former));
        assert_true(find_row(ctx, line->present));
        int dim = 0, heads = 0;
        assert_int_equal(sscanf(line->former, "attn_mla_bwd_sm90_bf16_d%d_h%d", &dim, &heads), 2);
        attn_problem p = {.size = sizeof p,
                          .op = ATTN_OP_MLA_BWD,
                          .dtype = ATTN_BF16,
                          .batch = 1,
                          .heads_q = heads,
                          .heads_k = 1,
                          .seq_q = 4,
                          .seq_k = 300,
                          .dim_qk = dim,
                          .dim_v = 512,
                          .topk = 64,
                          .flags = strstr(line->former, "_det") ? ATTN_DETERMINISTIC : 0};
        const attn_plan_options wish = {.size = sizeof wish, .flags = ATTN_PLAN_STRICT, .kernel = line->former};
        attn_plan *plan = NULL;
        const attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CUDA(0), &p, &wish, &plan);
        if (status == ATTN_E_NO_KERNEL && strstr(attn_last_error(), "no image")) continue; /* a build of some kernels */
        assert_int_equal(status, ATTN_OK);
        attn_plan_info info = {.size = sizeof info};
        assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
        assert_string_equal(info.kernel, line->present);
        attn_plan_release(plan);
    }
    attn_ctx_release(ctx);
    assert_no_leak(&hooks);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_match),
#ifdef ATTN_HAVE_CUDA
        cmocka_unit_test(rows_take_their_place),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
