/* SPDX-License-Identifier: MIT
 * What a forward may be asked for beside out and lse in the problem's dtype: out in f32 from 16-bit inputs, and the
 * largest score of each row of a dense forward; on every kernel of the CPU. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const isas[] = {"ref", "c", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISAS = sizeof isas / sizeof *isas };

static void open_filled(struct ref_try *t, const char *text) {
    attn_problem p;
    if (attn_problem_parse(text, &p)) fail_msg("%s", attn_last_error());
    ref_try_open(t, &p);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_KV; role++)
        if (t->n[role]) ref_random(t, role, 5 + (uint64_t)role, 1);
    if (t->n[ATTN_ROLE_SINK]) ref_random(t, ATTN_ROLE_SINK, 9, 1);
    if (t->n[ATTN_ROLE_MASK]) ref_random(t, ATTN_ROLE_MASK, 11, 2);
    for (int64_t h = 0; h < t->n[ATTN_ROLE_ALIBI]; h++) ref_set(t, ATTN_ROLE_ALIBI, h, 0.125 * (double)(h + 1));
    for (int64_t i = 0; i < t->n[ATTN_ROLE_INDICES]; i++) ref_set_int(t, ATTN_ROLE_INDICES, i, (int32_t)(i * 7 % 33));
    for (int64_t b = 0; b < t->n[ATTN_ROLE_SEQLENS_Q]; b++) ref_set_int(t, ATTN_ROLE_SEQLENS_Q, b, 5 + (int32_t)b);
    for (int64_t b = 0; b < t->n[ATTN_ROLE_CU_SEQLENS_Q]; b++) {
        static const int32_t cu[] = {2, 9, 9, 17};
        ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, b, cu[b]), ref_set_int(t, ATTN_ROLE_CU_SEQLENS_K, b, cu[b]);
    }
}

/* Rounded to the inputs' dtype it is what the kernel writes otherwise, but for a last bit that both round; and most of
 * its numbers are none of that dtype. */
static void out_in_f32(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        {"sdpa_fwd b=2 hq=4 hk=2 sq=40 sk=70 d=64 bf16 causal", "bf16"},
        {"sdpa_fwd hq=2 sq=33 sk=50 d=64 dv=96 bf16 sink softcap=30", "bf16"},
        {"sdpa_fwd hq=4 sq=64 sk=64 d=32 f16", "f16"},
        {"sdpa_fwd hq=8 hk=2 sq=1 sk=1500 d=64 bf16", "bf16"},
        {"sdpa_fwd hq=4 hk=2 sq=3 sk=40 d=128 f16 mask=f32", "f16"},
        {"sdpa_fwd b=3 hq=2 hk=1 sq=9 sk=20 d=24 f16 packed total_q=20 total_k=30 fill_padding", "f16"},
        {"mla_fwd hq=40 sq=3 sk=33 topk=40 bf16 sink", "bf16"},
        {"mla_fwd hq=5 sq=2 sk=33 topk=12 d=512 f16", "f16"},
    };
    int runs = 0;
    for (size_t n = 0; n < sizeof texts / sizeof *texts; n++)
        for (int isa = 0; isa < ISAS; isa++) {
            char text[160];
            snprintf(text, sizeof text, "%s out=f32", texts[n][0]);
            struct ref_try narrow, wide;
            open_filled(&narrow, texts[n][0]), open_filled(&wide, text);
            assert_int_equal(wide.t[ATTN_ROLE_OUT].dtype, ATTN_F32);
            if (ref_try_run_isa(&narrow, isas[isa]) && ref_try_run_isa(&wide, isas[isa])) {
                int64_t finer = 0, numbers = 0;
                const double unit = strcmp(texts[n][1], "f16") ? 0x1p-8 : 0x1p-11;
                for (int64_t i = 0; i < wide.n[ATTN_ROLE_OUT]; i++) {
                    const double x = ref_get(&wide, ATTN_ROLE_OUT, i), y = ref_get(&narrow, ATTN_ROLE_OUT, i);
                    if (ref_untouched(&narrow, ATTN_ROLE_OUT, i) && ref_untouched(&wide, ATTN_ROLE_OUT, i)) continue;
                    if (!(fabs(x - y) <= unit * fabs(x) * 1.001 + 1e-6))
                        fail_msg("%s, %s: out[%lld] is %.9g in f32, %.9g otherwise", texts[n][0], isas[isa],
                                 (long long)i, x, y);
                    finer += x != y, numbers++;
                }
                if (2 * finer < numbers && numbers)
                    fail_msg("%s, %s: %lld of %lld numbers are finer than the dtype", text, isas[isa], (long long)finer,
                             (long long)numbers);
                for (int64_t i = 0; i < wide.n[ATTN_ROLE_LSE]; i++)
                    if (!ref_untouched(&wide, ATTN_ROLE_LSE, i))
                        ref_near(ref_get(&wide, ATTN_ROLE_LSE, i), ref_get(&narrow, ATTN_ROLE_LSE, i), 1e-5, "lse", i);
                runs++;
            }
            ref_try_close(&narrow), ref_try_close(&wide);
        }
    assert_true(runs >= 16);
}

/* One query, three keys along an axis: the scores are known. */
static void known_maximum(void **state) {
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
        struct ref_try t;
        open_filled(&t, "sdpa_fwd hq=1 sq=4 sk=3 d=8 f32 causal scale=2 lse_empty_plus_inf max_logits");
        ref_fill(&t, ATTN_ROLE_Q, 0), ref_fill(&t, ATTN_ROLE_K, 0);
        for (int64_t i = 0; i < 4; i++) ref_set(&t, ATTN_ROLE_Q, 8 * i, i == 3 ? NAN : -1);
        for (int64_t j = 0; j < 3; j++) ref_set(&t, ATTN_ROLE_K, 8 * j, (double[]){3, -5, 4}[j]);
        if (ref_try_run_isa(&t, isas[isa])) {
            static const double want[] = {-6, 10, 10};
            for (int64_t i = 0; i < 3; i++) ref_near(ref_get(&t, ATTN_ROLE_MAX_LOGITS, i), want[i], 0, isas[isa], i);
            assert_true(isnan(ref_get(&t, ATTN_ROLE_MAX_LOGITS, 3)));
        }
        ref_try_close(&t);
    }
}

/* Against the reference on every path that takes other maxima for its softmax: many rows, few rows, key splits. */
static void maxima_agree(void **state) {
    (void)state;
    static const char *const texts[] = {
        "sdpa_fwd b=2 hq=4 hk=2 sq=70 sk=200 d=64 f32 causal max_logits",
        "sdpa_fwd b=2 hq=4 hk=2 sq=70 sk=200 d=64 bf16 left=7 max_logits",
        "sdpa_fwd hq=2 sq=40 sk=90 d=32 bf16 softcap=1.5 mask=f32 alibi=linear max_logits",
        "sdpa_fwd hq=2 sq=40 sk=90 d=32 f16 alibi=distance sink lse_with_sink max_logits out=f32",
        "sdpa_fwd hq=8 hk=2 sq=1 sk=3000 d=64 f32 max_logits",
        "sdpa_fwd hq=8 hk=2 sq=1 sk=3000 d=64 bf16 scale=-0.3 max_logits",
        "sdpa_fwd hq=2 sq=3 sk=30 d=40 f64 max_logits",
        "sdpa_fwd b=2 hq=2 sq=9 sk=30 d=40 f32 seqlens_q max_logits",
        "sdpa_fwd b=3 hq=2 sq=9 sk=9 d=40 f32 packed total_q=20 total_k=20 fill_padding max_logits",
        "sdpa_fwd hq=2 sq=9 sk=0 d=40 f32 max_logits",
    };
    int runs = 0;
    for (size_t n = 0; n < sizeof texts / sizeof *texts; n++) {
        struct ref_try want;
        open_filled(&want, texts[n]);
        const int wide = want.given.dtype == ATTN_F64;
        ref_try_run(&want, 2);
        assert_int_equal(want.t[ATTN_ROLE_MAX_LOGITS].dtype, wide ? ATTN_F64 : ATTN_F32);
        for (int isa = 1; isa < ISAS; isa++) {
            struct ref_try got;
            open_filled(&got, texts[n]);
            if (ref_try_run_isa(&got, isas[isa])) {
                runs++;
                for (int64_t i = 0; i < got.n[ATTN_ROLE_MAX_LOGITS]; i++) {
                    const double x = ref_get(&want, ATTN_ROLE_MAX_LOGITS, i);
                    ref_near(ref_get(&got, ATTN_ROLE_MAX_LOGITS, i), x, wide ? 1e-13 : 1e-5 * fmax(1, fabs(x)),
                             texts[n], i);
                }
            }
            ref_try_close(&got);
        }
        ref_try_close(&want);
    }
    assert_true(runs >= 10);
}

static void refused_in_words(void **state) {
    (void)state;
    static const struct ref_refused rows[] = {
        {"sdpa_bwd hq=2 sq=7 sk=5 d=8 bf16 out=f32", ATTN_E_FEATURE, "sdpa_bwd has no such feature"},
        {"mla_bwd hq=2 sq=7 sk=5 topk=8 bf16 out=f32", ATTN_E_FEATURE, "mla_bwd has no such feature"},
        {"sdpa_fwd hq=2 sq=7 sk=5 d=8 f64 out=f32", ATTN_E_ENUM, "or the problem's dtype"},
        {"sdpa_fwd hq=2 sq=7 sk=5 d=8 bf16 out=f16", ATTN_E_ENUM, "or f32"},
        {"sdpa_bwd hq=2 sq=7 sk=5 d=8 bf16 max_logits", ATTN_E_FEATURE, "ATTN_MAX_LOGITS"},
        {"mla_fwd hq=2 sq=7 sk=5 topk=8 bf16 max_logits", ATTN_E_FEATURE, "ATTN_MAX_LOGITS"},
    };
    ref_expect_refused(rows, sizeof rows / sizeof *rows);
    attn_problem a, b; /* the dtype by name is the default */
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 sq=7 sk=5 d=8 bf16 out=bf16", &a), ATTN_OK);
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 sq=7 sk=5 d=8 bf16", &b), ATTN_OK);
    assert_true(attn_problem_equal(&a, &b));
    b.out_dtype = ATTN_F32;
    assert_false(attn_problem_equal(&a, &b));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(out_in_f32), cmocka_unit_test(known_maximum),
                                       cmocka_unit_test(maxima_agree), cmocka_unit_test(refused_in_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
