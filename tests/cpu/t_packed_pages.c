/* SPDX-License-Identifier: MIT
 * Packed queries on paged keys, on every dense kernel of the CPU and of the reference: each sequence gets what the
 * reference gives for it alone, with its keys side by side. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"ref", "c", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISAS = sizeof isas / sizeof *isas, B = 5, HQ = 4, HK = 2, D = 24, PAGE = 16, PAGES = 40, TABLE = 13 };
enum { SQ = 60, SK = 200, FIRST = 2, TOTAL = 110 }; /* FIRST: rows of no sequence before the first one */

/* A prompt, a part of one behind a long cache, a new token, no query, more queries than keys. Lengths of keys as given,
 * the first past the bound, and as they count. */
static const int32_t queries[B] = {40, 35, 1, 0, 9}, lengths[B] = {SK + 7, 150, 77, 30, 5},
                     counts[B] = {SK, 150, 77, 30, 5};

static const struct kind {
    const char *text;
    double bound;
} kinds[] = {
    {"f32 causal bottom_right", 1e-5},
    {"f32 sink left=20 lse_with_sink", 1e-5},
    {"f64 causal bottom_right sink", 1e-11},
    {"f32 softcap=2 bottom_right left=30 right=2", 1e-5},
    {"bf16 causal bottom_right", 0.02},
    {"f16 bottom_right right=3", 3e-3},
    {"bf16 lse_base_2", 0.02},
    {"f32 causal bottom_right alibi=linear", 1e-5},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int32_t page_of(int b, int n) { return (int32_t)((b * TABLE + n) * 7 % PAGES); }

static void open_text(struct ref_try *t, const char *format, const char *options) {
    attn_problem p;
    char text[300];
    snprintf(text, sizeof text, format, options);
    if (attn_problem_parse(text, &p)) fail_msg("%s", attn_last_error());
    ref_try_open(t, &p);
}

static void open_packed(struct ref_try *t, const char *options) {
    int32_t row = FIRST;
    open_text(t,
              "sdpa_fwd b=5 hq=4 hk=2 sq=60 sk=200 d=24 packed total_q=110 paged seqlens_k page_size=16 n_pages=40 "
              "max_pages=13 %s",
              options);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) ref_random(t, role, 7 + (uint64_t)role, 2);
    ref_random(t, ATTN_ROLE_SINK, 5, 1);
    for (int h = 0; t->n[ATTN_ROLE_ALIBI] && h < HQ; h++) ref_set(t, ATTN_ROLE_ALIBI, h, 0.25 / (h + 1));
    for (int b = 0; b < B; row += queries[b++]) {
        ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, b, row);
        ref_set_int(t, ATTN_ROLE_SEQLENS_K, b, lengths[b]);
        for (int n = 0; n < TABLE; n++) ref_set_int(t, ATTN_ROLE_BLOCK_TABLE, b * TABLE + n, page_of(b, n));
    }
    ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, B, row);
}

/* Sequence b alone, by the reference. */
static void open_alone(struct ref_try *one, const struct ref_try *t, int b, const char *options) {
    char sizes[200];
    const int32_t first = ref_get_int(t, ATTN_ROLE_CU_SEQLENS_Q, b);
    snprintf(sizes, sizeof sizes, "sq=%d sk=%d %s", (int)queries[b], (int)counts[b], options);
    open_text(one, "sdpa_fwd hq=4 hk=2 d=24 %s", sizes);
    for (int h = 0; h < HQ; h++) {
        if (one->n[ATTN_ROLE_SINK]) ref_set(one, ATTN_ROLE_SINK, h, ref_get(t, ATTN_ROLE_SINK, h));
        if (one->n[ATTN_ROLE_ALIBI]) ref_set(one, ATTN_ROLE_ALIBI, h, ref_get(t, ATTN_ROLE_ALIBI, h));
        for (int64_t i = 0; i < queries[b]; i++)
            for (int64_t c = 0; c < D; c++)
                ref_set(one, ATTN_ROLE_Q, ref_at(one, ATTN_ROLE_Q, 0, h, i, c),
                        ref_get(t, ATTN_ROLE_Q, (h * TOTAL + first + i) * D + c));
    }
    for (int32_t role = ATTN_ROLE_K; role <= ATTN_ROLE_V; role++)
        for (int64_t h = 0; h < HK; h++)
            for (int j = 0; j < counts[b]; j++)
                for (int64_t c = 0; c < D; c++)
                    ref_set(one, role, ref_at(one, role, 0, h, j, c),
                            ref_get(t, role, ref_at(t, role, page_of(b, j / PAGE), h, j % PAGE, c)));
    ref_try_run(one, 1);
}

/* 0 if this processor has no such kernel. */
static int run(struct ref_try *t, int isa, int threads) {
    char pattern[32];
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    attn_plan_info info = {.size = sizeof info};
    const attn_ctx_options c = {.size = sizeof c, .threads = threads, .cpu_isa = isa ? isas[isa] : "c"};
    snprintf(pattern, sizeof pattern, "*_%s_*", isas[isa]);
    const attn_plan_options o = {.size = sizeof o, .flags = ATTN_PLAN_STRICT | ATTN_PLAN_NO_TUNING, .kernel = pattern};
    assert_int_equal(attn_ctx_create(&c, &ctx), ATTN_OK);
    const attn_status status = attn_plan_create(ctx, ATTN_DEVICE_CPU, &t->given, &o, &plan);
    attn_ctx_release(ctx);
    if (status == ATTN_E_NO_KERNEL) return 0;
    if (status) fail_msg("plan: %s", attn_last_error());
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    unsigned char *ws = aligned_alloc(64, info.workspace_bytes + 64);
    assert_non_null(ws);
    memset(ws, 0xff, info.workspace_bytes + 64);
    t->args.workspace = ws, t->args.workspace_bytes = info.workspace_bytes;
    if (attn_execute(plan, &t->args)) fail_msg("execute: %s", attn_last_error());
    free(ws);
    t->args.workspace = NULL, t->args.workspace_bytes = 0;
    attn_plan_release(plan);
    return 1;
}

static void compare(const struct ref_try *t, const struct ref_try *one, int b, const struct kind *k) {
    const int32_t first = ref_get_int(t, ATTN_ROLE_CU_SEQLENS_Q, b);
    for (int64_t h = 0; h < HQ; h++)
        for (int64_t i = 0; i < queries[b]; i++) {
            const int64_t row = h * TOTAL + first + i;
            ref_near(ref_get(t, ATTN_ROLE_LSE, row), ref_get(one, ATTN_ROLE_LSE, h * queries[b] + i),
                     k->bound < 1e-4 ? k->bound : 1e-4, k->text, i);
            for (int64_t c = 0; c < D; c++)
                ref_near(ref_get(t, ATTN_ROLE_OUT, row * D + c),
                         ref_get(one, ATTN_ROLE_OUT, (h * queries[b] + i) * D + c), k->bound, k->text, i);
        }
}

static void each_sequence_as_alone(void **state) {
    (void)state;
    int runs[ISAS] = {0};
    for (int k = 0; k < KINDS; k++) {
        struct ref_try one[B], t;
        open_packed(&t, kinds[k].text);
        for (int b = 0; b < B; b++) open_alone(&one[b], &t, b, kinds[k].text);
        ref_try_close(&t);
        for (int isa = 0; isa < ISAS; isa++)
            for (int threads = 1; threads <= 3; threads += 2) {
                open_packed(&t, kinds[k].text);
                if (run(&t, isa, threads)) {
                    for (int b = 0; b < B; b++) compare(&t, &one[b], b, &kinds[k]);
                    for (int64_t row = 0; row < FIRST; row++)
                        assert_true(ref_untouched(&t, ATTN_ROLE_LSE, row) && ref_untouched(&t, ATTN_ROLE_OUT, row * D));
                    assert_true(ref_untouched(&t, ATTN_ROLE_LSE, TOTAL - 1));
                    runs[isa]++;
                }
                ref_try_close(&t);
            }
        for (int b = 0; b < B; b++) ref_try_close(&one[b]);
    }
    assert_true(runs[0] == 2 * KINDS && runs[1] == 2 * KINDS);
}

/* A sequence whose pages are all outside the pool sees no key; the others keep their bits. */
static void missing_pages(void **state) {
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
        struct ref_try whole, t;
        open_packed(&whole, "f32 causal bottom_right");
        open_packed(&t, "f32 causal bottom_right");
        for (int n = 0; n < TABLE; n++) ref_set_int(&t, ATTN_ROLE_BLOCK_TABLE, n, n % 2 ? -1 : PAGES);
        if (run(&whole, isa, 2) && run(&t, isa, 2))
            for (int64_t row = 0; row < HQ * TOTAL; row++) {
                const int missing = row % TOTAL >= FIRST && row % TOTAL < FIRST + queries[0];
                const double lse = missing ? -(double)INFINITY : ref_get(&whole, ATTN_ROLE_LSE, row);
                const double got = ref_get(&t, ATTN_ROLE_LSE, row);
                assert_memory_equal(&got, &lse, sizeof got);
                for (int64_t x = row * D; x < (row + 1) * D; x++) {
                    const double out = missing ? 0 : ref_get(&whole, ATTN_ROLE_OUT, x),
                                 is = ref_get(&t, ATTN_ROLE_OUT, x);
                    assert_memory_equal(&is, &out, sizeof is);
                }
            }
        ref_try_close(&whole);
        ref_try_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_sequence_as_alone), cmocka_unit_test(missing_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
