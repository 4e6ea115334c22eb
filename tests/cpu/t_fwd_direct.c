/* SPDX-License-Identifier: MIT
 * Small dense forwards in f32 (dense/fwd_direct.c): the bits of the blocked driver (dense/fwd.c) on the same tensors;
 * problems that are left to it, and what it then comes to; and many heads on several threads. */
#include "ref_try.h"

#include "base/float_mode.h"
#include "cpu/dense/fwd_direct.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct set {
    const char *name;
    struct attn_cpu_sdpa_isa isa;
    uint64_t feature;
} sets[] = {
#ifndef ATTN_NO_X86
    {"avx2", {&attn_ukr_avx2, NULL, 0, 75e9}, ATTN_CPU_AVX2},
    {"avx512", {&attn_ukr_avx512, NULL, 0, 90e9}, ATTN_CPU_AVX512},
#endif
    {NULL, {NULL, NULL, 0, 0}, 0}};

static const struct attn_core_device device = {.threads = 1, .subnormals = ATTN_SUBNORMALS_READ};

static void open_text(struct ref_try *t, const char *text) {
    attn_problem p;
    if (attn_problem_parse(text, &p)) fail_msg("%s", attn_last_error());
    ref_try_open(t, &p);
    ref_drop(t, ATTN_ROLE_LSE_ROUNDED);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) ref_random(t, role, 11 + (uint64_t)role, 2);
}
/* As kernels are launched: 1 if the direct path takes it. */
static int direct(const struct set *s, struct ref_try *t) {
    const uint32_t mode = attn_base_float_begin(ATTN_SUBNORMALS_EXACT);
    const int taken = attn_cpu_fwd_direct(&s->isa, &device, &t->p, &t->args);
    attn_base_float_end(mode);
    return taken;
}
static void blocked(const struct set *s, struct ref_try *t) {
    const size_t bytes = (size_t)attn_cpu_sdpa_fwd_workspace(&s->isa, &t->p, 1);
    t->args.workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(t->args.workspace);
    const uint32_t mode = attn_base_float_begin(device.subnormals);
    attn_cpu_sdpa_fwd(&s->isa, &device, &t->p, &t->args);
    attn_base_float_end(mode);
    free(t->args.workspace);
    t->args.workspace = NULL;
}

static const char *const taken[] = {
    "hq=1 sq=1 sk=1 d=1",
    "hq=1 sq=1 sk=64 d=128",
    "b=3 hq=7 sq=1 sk=33 d=40 dv=17",
    "hq=4 hk=1 sq=1 sk=16 d=64",
    "hq=3 sq=2 sk=5 d=31 dv=127 causal bottom_right",
    "hq=1 sq=4 sk=4 d=64 causal",
    "b=2 hq=6 hk=2 sq=5 sk=50 d=33 dv=20 left=11 right=3 bottom_right",
    "hq=1 sq=8 sk=8 d=128 scale=-0.3",
    "hq=2 sq=9 sk=64 d=65 dv=3 right=20",
    "hq=5 sq=16 sk=16 d=128",
    "hq=16 hk=1 sq=1 sk=47 d=96 lse_base_2",
    "hq=1 sq=1 sk=60 d=24 left=9 bottom_right",
};
static void test_bits(void **state) {
    (void)state;
    for (const struct set *s = sets; s->name; s++) {
        if (!(attn_cpu_features("", NULL) & s->feature)) continue;
        for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
            char text[160];
            struct ref_try a, b;
            snprintf(text, sizeof text, "sdpa_fwd f32 %s", taken[i]);
            open_text(&a, text), open_text(&b, text);
            if (!direct(s, &a)) fail_msg("%s: left to the blocked driver: %s", s->name, text);
            blocked(s, &b);
            if (!ref_same_bits(&a, &b, ATTN_ROLE_OUT)) fail_msg("%s: out differs: %s", s->name, text);
            if (!ref_same_bits(&a, &b, ATTN_ROLE_LSE)) fail_msg("%s: lse differs: %s", s->name, text);
            ref_try_close(&a), ref_try_close(&b);
        }
    }
}

/* Other layouts, no lse, and subnormal products of q and the scale. */
static void test_layouts(void **state) {
    (void)state;
    for (const struct set *s = sets; s->name; s++) {
        if (!(attn_cpu_features("", NULL) & s->feature)) continue;
        for (int way = 0; way < 4; way++) {
            struct ref_try a, b;
            const char *text = "sdpa_fwd b=2 hq=4 hk=2 sq=3 sk=7 d=16 scale=0.5 f32";
            open_text(&a, text), open_text(&b, text);
            for (int x = 0; x < 2; x++) {
                struct ref_try *t = x ? &b : &a;
                if (way == 1) ref_permute(t, ATTN_ROLE_Q), ref_permute(t, ATTN_ROLE_K), ref_permute(t, ATTN_ROLE_OUT);
                if (way == 1) ref_permute(t, ATTN_ROLE_V);
                if (way == 2) ref_drop(t, ATTN_ROLE_LSE);
                if (way == 3) ref_fill(t, ATTN_ROLE_Q, 0x1p-126), ref_fill(t, ATTN_ROLE_K, 0x1p126);
                if (way == 3) ref_set(t, ATTN_ROLE_K, 5, 0);
            }
            assert_true(direct(s, &a));
            blocked(s, &b);
            assert_true(ref_same_bits(&a, &b, ATTN_ROLE_OUT));
            assert_true(way == 2 || ref_same_bits(&a, &b, ATTN_ROLE_LSE));
            if (way == 3) assert_true(ref_get(&a, ATTN_ROLE_LSE, 0) > 7.9 && ref_get(&a, ATTN_ROLE_LSE, 0) < 16);
            ref_try_close(&a), ref_try_close(&b);
        }
    }
}

/* What it does not compute. */
static const char *const left[] = {
    "hq=1 sq=17 sk=8 d=32",
    "hq=6 hk=2 sq=6 sk=8 d=32",
    "hq=1 sq=1 sk=65 d=32",
    "hq=1 sq=1 sk=8 d=129",
    "hq=1 sq=1 sk=8 d=32 softcap=3",
    "hq=1 sq=1 sk=8 d=32 sink",
    "hq=1 sq=4 sk=2 d=32 causal bottom_right", /* rows that see no key */
    "b=2 hq=1 sq=4 sk=8 d=32 seqlens_k",
    "hq=1 sq=1 sk=8 d=32 max_logits",
    "hq=1 sq=1 sk=8 d=32 scale=1e-13",
    "hq=1 sq=4 sk=0 d=32",
    "hq=1 sq=4 sk=4 d=0 dv=8",
    "hq=1 sq=4 sk=4 d=8 dv=0",
};
static void test_left(void **state) {
    (void)state;
    for (const struct set *s = sets; s->name; s++) {
        if (!(attn_cpu_features("", NULL) & s->feature)) continue;
        for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
            char text[160];
            struct ref_try t;
            snprintf(text, sizeof text, "sdpa_fwd f32 %s", left[i]);
            open_text(&t, text);
            if (direct(s, &t)) fail_msg("%s: taken: %s", s->name, text);
            ref_try_close(&t);
        }
    }
}

/* By a plan, beside the reference: one number that is not finite, hidden or seen. */
static void test_not_finite(void **state) {
    static const double values[] = {NAN, INFINITY, -INFINITY};
    static const char *const isas[] = {"avx2", "avx512"};
    static const char *const texts[] = {"hq=2 sq=1 sk=9 d=8", "hq=2 hk=1 sq=3 sk=9 d=8 causal bottom_right",
                                        "hq=2 sq=6 sk=6 d=8 causal"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t isa = 0; isa < 2; isa++)
            for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++)
                for (int v = 0; v < 3; v++) {
                    char text[160];
                    struct ref_try a, b;
                    snprintf(text, sizeof text, "sdpa_fwd f32 %s", texts[i]);
                    open_text(&a, text), open_text(&b, text);
                    ref_set(&a, role, a.n[role] - 3, values[v]), ref_set(&b, role, b.n[role] - 3, values[v]);
                    ref_try_run(&b, 1);
                    if (ref_try_run_isa(&a, isas[isa]))
                        for (int32_t out = ATTN_ROLE_OUT; out <= ATTN_ROLE_LSE; out++)
                            for (int64_t x = 0; x < a.n[out]; x++)
                                ref_near(ref_get(&a, out, x), ref_get(&b, out, x), 2e-5, text, x);
                    ref_try_close(&a), ref_try_close(&b);
                }
}

/* More heads than a task has, on three threads: the bits of one. */
static void test_threads(void **state) {
    attn_ctx *ctx[2];
    attn_plan *plan[2];
    struct ref_try t[2];
    (void)state;
    for (int x = 0; x < 2; x++) {
        attn_plan_info info = {.size = sizeof info};
        const attn_ctx_options o = {.size = sizeof o, .threads = x ? 3 : 1};
        open_text(&t[x], "sdpa_fwd b=41 hq=6 hk=3 sq=4 sk=30 d=64 f32");
        assert_int_equal(attn_ctx_create(&o, &ctx[x]), ATTN_OK);
        assert_int_equal(attn_plan_create(ctx[x], ATTN_DEVICE_CPU, &t[x].given, NULL, &plan[x]), ATTN_OK);
        assert_int_equal(attn_plan_get_info(plan[x], &info), ATTN_OK);
        t[x].args.workspace = aligned_alloc(64, (info.workspace_bytes + 127) / 64 * 64);
        t[x].args.workspace_bytes = info.workspace_bytes;
        for (int n = 0; n < 50; n++) assert_int_equal(attn_execute(plan[x], &t[x].args), ATTN_OK);
        free(t[x].args.workspace);
        attn_plan_release(plan[x]), attn_ctx_release(ctx[x]);
    }
    assert_true(ref_same_bits(&t[0], &t[1], ATTN_ROLE_OUT) && ref_same_bits(&t[0], &t[1], ATTN_ROLE_LSE));
    ref_try_close(&t[0]), ref_try_close(&t[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_layouts),
                                       cmocka_unit_test(test_left), cmocka_unit_test(test_not_finite),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests_name("small dense forwards", tests, NULL, NULL);
}
