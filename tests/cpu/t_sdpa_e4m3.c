/* SPDX-License-Identifier: MIT
 * q, k and v in e4m3 with their scales: the conversions, the dense forward of every kernel of the CPU against the f64
 * reference on the numbers that the elements are worth, and what is refused. */
#include "attn.h"

#include "base/num.h"
#include "ref_try.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const isas[] = {"ref", "c", "avx2", "avx512"};
enum { ISAS = sizeof isas / sizeof *isas };

/* ---- numbers ---- */

/* By the format's definition: sign, 4 bits of exponent with bias 7, 3 bits of mantissa; only all ones is no number. */
static double meaning(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double sign = code & 0x80 ? -1 : 1;
    if ((code & 0x7f) == 0x7f) return NAN;
    return sign * (exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9));
}

static void codes(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        const uint8_t byte = (uint8_t)code;
        const double want = meaning(code);
        double wide = 0;
        float single = 0;
        uint8_t back = 0x55;
        assert_int_equal(attn_convert(&wide, ATTN_F64, &byte, ATTN_E4M3, 1), ATTN_OK);
        assert_int_equal(attn_convert(&single, ATTN_F32, &byte, ATTN_E4M3, 1), ATTN_OK);
        assert_int_equal(attn_convert(&back, ATTN_E4M3, &wide, ATTN_F64, 1), ATTN_OK);
        assert_true(isnan(want) ? isnan(wide) && isnan(single)
                                : !(wide < want || wide > want) && !(single < want || single > want));
        assert_int_equal(back, byte);
    }
    static const int32_t halves[] = {ATTN_F16,
                                     ATTN_BF16}; /* both hold every number of e4m3 but bf16's NaN is another */
    for (int k = 0; k < 2; k++)
        for (int code = 0; code < 0x7f; code++) {
            const uint8_t byte = (uint8_t)code;
            uint16_t half = 0;
            uint8_t back = 0x55;
            assert_int_equal(attn_convert(&half, halves[k], &byte, ATTN_E4M3, 1), ATTN_OK);
            assert_int_equal(attn_convert(&back, ATTN_E4M3, &half, halves[k], 1), ATTN_OK);
            assert_int_equal(back, byte);
        }
}

static int rounded(double x) {
    uint8_t a = 0, b = 0;
    const float single = (float)x;
    assert_int_equal(attn_convert(&a, ATTN_E4M3, &x, ATTN_F64, 1), ATTN_OK);
    assert_int_equal(attn_convert(&b, ATTN_E4M3, &single, ATTN_F32, 1), ATTN_OK);
    assert_int_equal(a, b); /* x is a float */
    return a;
}

/* Between two neighbours: to the nearer one, from halfway to the even one. */
static void rounding(void **state) {
    (void)state;
    for (int code = 0; code < 0x7e; code++) {
        const double low = meaning(code), high = meaning(code + 1), half = (low + high) / 2;
        assert_int_equal(rounded(half), code & 1 ? code + 1 : code);
        assert_int_equal(rounded(low + (high - low) * 0.49), code);
        assert_int_equal(rounded(low + (high - low) * 0.51), code + 1);
        assert_int_equal(rounded(-(low + (high - low) * 0.51)), code + 1 + 0x80);
    }
    assert_int_equal(rounded(448), 0x7e);
    assert_int_equal(rounded(464), 0x7e); /* halfway to 480, which is no number */
    assert_int_equal(rounded(464.125), 0x7f);
    assert_int_equal(rounded(-1e30), 0xff);
    assert_int_equal(rounded(INFINITY), 0x7f);
    assert_int_equal(rounded(0x1p-10), 0);
    assert_int_equal(rounded(0x1.01p-10), 1);
    assert_int_equal(rounded(-0x1p-140), 0x80);
    assert_int_equal(rounded(NAN) & 0x7f, 0x7f);
    const double beyond = 464.0000001; /* rounded to f32 first it would be 464 */
    uint8_t byte = 0;
    assert_int_equal(attn_convert(&byte, ATTN_E4M3, &beyond, ATTN_F64, 1), ATTN_OK);
    assert_int_equal(byte, 0x7f);
    assert_string_equal(attn_dtype_name(ATTN_E4M3), "e4m3");
    assert_int_equal(attn_dtype_bytes(ATTN_E4M3), 1);
}

/* ---- the forward ---- */

static void fill(struct ref_try *t) {
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++)
        if (t->n[role]) ref_random(t, role, 5 + (uint64_t)role, 2);
    if (t->n[ATTN_ROLE_SINK]) ref_random(t, ATTN_ROLE_SINK, 9, 1);
    if (t->n[ATTN_ROLE_MASK]) ref_random(t, ATTN_ROLE_MASK, 11, 2);
    for (int64_t h = 0; h < t->n[ATTN_ROLE_ALIBI]; h++) ref_set(t, ATTN_ROLE_ALIBI, h, 0.125 * (double)(h + 1));
    for (int64_t b = 0; b < t->n[ATTN_ROLE_SEQLENS_Q]; b++) ref_set_int(t, ATTN_ROLE_SEQLENS_Q, b, 5 + (int32_t)b);
    for (int64_t b = 0; b < t->n[ATTN_ROLE_SEQLENS_K]; b++) ref_set_int(t, ATTN_ROLE_SEQLENS_K, b, 19 - (int32_t)b);
    for (int64_t x = 0; x < t->n[ATTN_ROLE_BLOCK_TABLE]; x++)
        ref_set_int(t, ATTN_ROLE_BLOCK_TABLE, x, (int32_t)(x * 3 % 7));
    static const int32_t cu[] = {2, 9, 9, 17};
    for (int64_t b = 0; b < t->n[ATTN_ROLE_CU_SEQLENS_Q]; b++) ref_set_int(t, ATTN_ROLE_CU_SEQLENS_Q, b, cu[b]);
    for (int64_t b = 0; b < t->n[ATTN_ROLE_CU_SEQLENS_K]; b++) ref_set_int(t, ATTN_ROLE_CU_SEQLENS_K, b, cu[b]);
}

/* Scales differ by sequence and head; pages are those of any sequence, so that theirs differ by head alone. */
static void fill_scales(struct ref_try *t) {
    for (int32_t role = ATTN_ROLE_Q_SCALE; role <= ATTN_ROLE_V_SCALE; role++)
        for (int64_t x = 0; x < t->n[role]; x++) {
            const int64_t heads = t->t[role].shape[1], of_head = t->n[ATTN_ROLE_BLOCK_TABLE] ? x % heads : x;
            ref_set(t, role, x, (of_head % 3 == 1 ? -0.7 : 0.6) + 0.1 * (double)of_head);
        }
}

/* Index of the scale of element i of q, k or v; -1: of no sequence. */
static int64_t scale_of(const struct ref_try *t, int32_t role, int64_t i) {
    const attn_tensor *x = &t->t[role];
    const int64_t cols = x->shape[x->rank - 1], rows = x->shape[x->rank - 2], row = i / cols % rows;
    const int64_t heads = x->shape[x->rank - 3], h = i / cols / rows % heads;
    if (x->rank == 4)
        return t->n[ATTN_ROLE_BLOCK_TABLE] && role != ATTN_ROLE_Q ? h : i / cols / rows / heads * heads + h;
    for (int64_t b = 0; b < t->given.batch; b++)
        if (row >= ref_get_int(t, ATTN_ROLE_CU_SEQLENS_Q, b) && row < ref_get_int(t, ATTN_ROLE_CU_SEQLENS_Q, b + 1))
            return b * heads + h;
    return -1;
}

static const char *const texts[] = {
    "sdpa_fwd b=2 hq=4 hk=2 sq=40 sk=70 d=64 %s causal",
    "sdpa_fwd b=2 hq=4 hk=2 sq=40 sk=70 d=64 %s max_logits left=20",
    "sdpa_fwd hq=2 sq=33 sk=50 d=64 dv=96 %s sink softcap=30",
    "sdpa_fwd b=2 hq=8 hk=2 sq=1 sk=1500 d=64 %s",
    "sdpa_fwd hq=4 hk=2 sq=3 sk=40 d=128 %s mask=f32",
    "sdpa_fwd b=2 hq=4 hk=2 sq=50 sk=64 d=17 dv=33 %s alibi=linear scale=-0.3",
    "sdpa_fwd b=2 hq=2 hk=1 sq=9 sk=20 d=24 %s seqlens_q seqlens_k lse_base_2",
    "sdpa_fwd b=3 hq=4 hk=2 sq=9 sk=20 d=24 %s packed total_q=20 total_k=20 fill_padding",
    "sdpa_fwd b=2 hq=4 hk=2 sq=9 sk=20 d=24 %s paged page_size=5 n_pages=7 max_pages=4 seqlens_k",
};
enum { TEXTS = sizeof texts / sizeof *texts };

/* The same problem in f64, on the numbers that the elements are worth. */
static void open_worth(struct ref_try *wide, const struct ref_try *narrow, const char *text) {
    char words[200];
    attn_problem p;
    snprintf(words, sizeof words, text, "f64");
    if (attn_problem_parse(words, &p)) fail_msg("%s", attn_last_error());
    ref_try_open(wide, &p);
    fill(wide);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++)
        for (int64_t i = 0; i < wide->n[role]; i++) {
            const int64_t at_scale = scale_of(narrow, role, i);
            const int32_t scale = role - ATTN_ROLE_Q + ATTN_ROLE_Q_SCALE;
            ref_set(wide, role, i, ref_get(narrow, role, i) * (at_scale < 0 ? 1 : ref_get(narrow, scale, at_scale)));
        }
}

static void compare(const struct ref_try *got, const struct ref_try *want, double bound, const char *what) {
    static const int32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_MAX_LOGITS};
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < got->n[roles[k]]; i++)
            if (!ref_untouched(got, roles[k], i)) {
                const double y = ref_get(want, roles[k], i);
                ref_near(ref_get(got, roles[k], i), y, (k ? fmin(bound, 1e-5) : bound) * fmax(1, fabs(y)), what, i);
            }
}

static void worth(void **state) {
    (void)state;
    int runs = 0;
    for (int n = 0; n < TEXTS; n++)
        for (int isa = 0; isa < ISAS; isa++)
            for (int wide_out = 0; wide_out < 2; wide_out++) {
                char words[200], text[200];
                attn_problem p;
                snprintf(words, sizeof words, "%s%s", texts[n], wide_out ? " out=f32" : "");
                snprintf(text, sizeof text, words, "e4m3");
                if (attn_problem_parse(text, &p)) fail_msg("%s", attn_last_error());
                struct ref_try narrow, wide;
                ref_try_open(&narrow, &p);
                assert_int_equal(narrow.t[ATTN_ROLE_OUT].dtype, wide_out ? ATTN_F32 : ATTN_BF16);
                assert_int_equal(narrow.t[ATTN_ROLE_LSE_ROUNDED].dtype, ATTN_BF16);
                fill(&narrow), fill_scales(&narrow);
                open_worth(&wide, &narrow, texts[n]);
                ref_try_run(&wide, 1);
                if (ref_try_run_isa(&narrow, isas[isa])) {
                    compare(&narrow, &wide, wide_out ? (isa ? 4e-6 : 1e-7) : 0x1.01p-8, text);
                    runs++;
                }
                ref_try_close(&narrow), ref_try_close(&wide);
            }
    assert_true(runs >= 4 * TEXTS); /* ref and c run everywhere */
}

/* One number for all heads, by strides of 0, and every other element of a row. */
static void strides_of_scales(void **state) {
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
        attn_problem p;
        assert_int_equal(attn_problem_parse("sdpa_fwd b=2 hq=4 hk=2 sq=20 sk=30 d=32 e4m3 out=f32", &p), ATTN_OK);
        struct ref_try one, all;
        ref_try_open(&one, &p), ref_try_open(&all, &p);
        fill(&one), fill(&all);
        for (int32_t role = ATTN_ROLE_Q_SCALE; role <= ATTN_ROLE_V_SCALE; role++) {
            const double scale = 0.5 + 0.25 * (double)(role - ATTN_ROLE_Q_SCALE);
            ref_broadcast(&one, role, 0), ref_broadcast(&one, role, 1);
            ref_fill(&one, role, scale), ref_fill(&all, role, scale);
        }
        if (ref_try_run_isa(&one, isas[isa]) && ref_try_run_isa(&all, isas[isa])) {
            assert_true(ref_same_bits(&one, &all, ATTN_ROLE_OUT));
            assert_true(ref_same_bits(&one, &all, ATTN_ROLE_LSE));
            assert_true(fabs(ref_get(&all, ATTN_ROLE_OUT, 5)) > 0);
        }
        ref_try_close(&one), ref_try_close(&all);
    }
}

/* A NaN element, and a scale that is NaN, make NaN what they reach and nothing else. */
static void not_numbers(void **state) {
    (void)state;
    for (int isa = 0; isa < ISAS; isa++) {
        attn_problem p;
        assert_int_equal(attn_problem_parse("sdpa_fwd hq=4 hk=2 sq=8 sk=8 d=16 e4m3 causal", &p), ATTN_OK);
        struct ref_try t;
        ref_try_open(&t, &p);
        fill(&t), fill_scales(&t);
        ref_set(&t, ATTN_ROLE_V_SCALE, 1, NAN);                             /* heads 2 and 3 */
        ref_set(&t, ATTN_ROLE_K, ref_at(&t, ATTN_ROLE_K, 0, 0, 5, 3), NAN); /* heads 0 and 1, from query 5 on */
        ref_set(&t, ATTN_ROLE_Q, ref_at(&t, ATTN_ROLE_Q, 0, 1, 2, 0), NAN); /* head 1, query 2 */
        if (ref_try_run_isa(&t, isas[isa]))
            for (int64_t h = 0; h < 4; h++)
                for (int64_t i = 0; i < 8; i++) {
                    const int lost = h >= 2 || i >= 5 || (h == 1 && i == 2);
                    const int no_log = h < 2 && lost;
                    assert_int_equal(isnan(ref_get(&t, ATTN_ROLE_OUT, ref_at(&t, ATTN_ROLE_OUT, 0, h, i, 9))) != 0,
                                     lost);
                    assert_int_equal(isnan(ref_get(&t, ATTN_ROLE_LSE, ref_at(&t, ATTN_ROLE_LSE, 0, h, i, 0))) != 0,
                                     no_log);
                }
        ref_try_close(&t);
    }
}

/* ---- what is refused ---- */

static void refused_in_words(void **state) {
    (void)state;
    static const struct ref_refused rows[] = {
        {"sdpa_bwd hq=2 sq=7 sk=5 d=8 e4m3", ATTN_E_FEATURE, "dtype is e4m3, but sdpa_bwd works on"},
        {"mla_fwd hq=2 sq=7 sk=5 topk=8 e4m3", ATTN_E_FEATURE, "dtype is e4m3, but mla_fwd works on"},
        {"mla_bwd hq=2 sq=7 sk=5 topk=8 e4m3", ATTN_E_FEATURE, "dtype is e4m3, but mla_bwd works on"},
        {"dist hq=2 sq=7 sk=5 topk=8 e4m3", ATTN_E_FEATURE, "dtype is e4m3, but dist works on"},
        {"sdpa_fwd hq=2 sq=7 sk=5 d=8 e4m3 out=f16", ATTN_E_ENUM, "bf16 (3) or f32 (1) from e4m3"},
        {"sdpa_fwd hq=2 sq=7 sk=5 d=8 e4m3 out=f64", ATTN_E_ENUM, "bf16 (3) or f32 (1) from e4m3"},
    };
    ref_expect_refused(rows, sizeof rows / sizeof *rows);
    attn_problem p = ATTN_PROBLEM_INIT, named;
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 sq=7 sk=5 d=8 bf16", &p), ATTN_OK);
    p.out_dtype = ATTN_E4M3;
    assert_int_equal(attn_problem_check(&p), ATTN_E_ENUM);
    p.out_dtype = 0, p.mask_dtype = ATTN_E4M3;
    assert_int_equal(attn_problem_check(&p), ATTN_E_ENUM);
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 sq=7 sk=5 d=8 e4m3", &p), ATTN_OK);
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 sq=7 sk=5 d=8 e4m3 out=bf16", &named), ATTN_OK);
    assert_true(attn_problem_equal(&p, &named));
    char text[200];
    assert_int_equal(attn_problem_format(&p, text, sizeof text, NULL), ATTN_OK);
    assert_string_equal(text, "sdpa_fwd hq=2 sq=7 sk=5 d=8 e4m3");
}

static void scales_are_needed(void **state) {
    (void)state;
    attn_problem p;
    assert_int_equal(attn_problem_parse("sdpa_fwd b=2 hq=4 hk=2 sq=7 sk=5 d=8 e4m3", &p), ATTN_OK);
    struct ref_try t;
    ref_try_open(&t, &p);
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &p, &t.args), ATTN_OK);
    const attn_tensor *kept = t.args.k_scale;
    t.args.k_scale = NULL;
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &p, &t.args), ATTN_E_ARGUMENT);
    assert_non_null(
        strstr(attn_last_error(), "k_scale is NULL, but this sdpa_fwd problem needs it: expected shape [2,2]"));
    attn_tensor other = *kept;
    t.args.k_scale = &other;
    other.dtype = ATTN_E4M3;
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &p, &t.args), ATTN_E_DTYPE);
    other = *kept, other.shape[1] = 4; /* query heads */
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &p, &t.args), ATTN_E_SHAPE);
    ref_try_close(&t);
    assert_int_equal(attn_problem_parse("sdpa_fwd b=2 hq=4 hk=2 sq=7 sk=5 d=8 bf16", &p), ATTN_OK);
    ref_try_open(&t, &p);
    float one = 1;
    attn_tensor scale = {.data = &one, .dtype = ATTN_F32, .rank = 2, .shape = {2, 4}};
    t.args.q_scale = &scale;
    assert_int_equal(attn_run(ctx, ATTN_DEVICE_CPU, &p, &t.args), ATTN_E_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "q_scale is given, but this sdpa_fwd problem does not use it"));
    ref_try_close(&t);
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes),
                                       cmocka_unit_test(rounding),
                                       cmocka_unit_test(worth),
                                       cmocka_unit_test(strides_of_scales),
                                       cmocka_unit_test(not_numbers),
                                       cmocka_unit_test(refused_in_words),
                                       cmocka_unit_test(scales_are_needed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
