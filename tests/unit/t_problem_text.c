/* SPDX-License-Identifier: MIT
 * The one-line form: round trips of random problems, defaults, faults with the word they name, short buffers. */
#include "attn.h"
#include "base/err.h"
#include "core/problem.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 88172645463325252u;
static uint64_t next(void) { /* xorshift64 (Marsaglia 2003) */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}
static int64_t any_int(void) {
    switch (next() % 6) {
    case 0: return 0;
    case 1: return 1;
    case 2: return -(int64_t)(next() % 1000);
    case 3: return (int64_t)next();
    default: return (int64_t)(next() % 5000);
    }
}
static double any_double(void) {
    static const double special[] = {0, -0.0, NAN, INFINITY, -INFINITY, DBL_MIN, DBL_MAX, 5e-324, 0.1};
    if (next() % 4 == 0) return special[next() % 9];
    if (next() % 2) return (double)(next() % 1000) / 8;
    uint64_t bits = next();
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}
static int32_t below(uint32_t n) { return (int32_t)(next() % n); }

static attn_problem any_problem(void) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = 1 + below(6);
    p.flags = next() & ATTN_FLAGS_ALL_ & (next() | next() % 2 * ATTN_FLAGS_ALL_);
    p.dtype = 1 + below(5);
    static const int32_t masks[] = {0, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BOOL};
    p.mask_dtype = masks[below(5)];
    p.alibi = below(3), p.dkv_dtype = below(4), p.dist_norm = below(3);
    int64_t *members[] = {&p.batch,    &p.heads_q,      &p.heads_k, &p.seq_q,       &p.seq_k,
                          &p.dim_qk,   &p.dim_v,        &p.topk,    &p.window_left, &p.total_q,
                          &p.total_k,  &p.page_size,    &p.n_pages, &p.max_pages,   &p.q_start,
                          &p.k_stride, &p.window_right, &p.group,   &p.union_limit};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) *members[i] = any_int();
    if (next() % 3 == 0) p.heads_k = p.heads_q, p.seq_k = p.seq_q, p.dim_v = p.dim_qk, p.batch = 1;
    p.scale = any_double();
    p.softcap = any_double();
    p.align_bytes = (uint32_t)next() % 3 ? 0 : (uint32_t)next();
    return p;
}

static void round_trip(void **state) {
    (void)state;
    size_t longest = 0;
    for (int i = 0; i < 10000; i++) {
        attn_problem p = any_problem(), back;
        char text[1024], again[1024];
        size_t needed;
        assert_int_equal(attn_problem_format(&p, text, sizeof text, &needed), ATTN_OK);
        assert_int_equal(needed, strlen(text) + 1);
        if (needed > longest) longest = needed;
        if (attn_problem_parse(text, &back)) print_error("%s\n%s\n", text, attn_base_error_get()->text);
        assert_int_equal(attn_problem_parse(text, &back), ATTN_OK);
        if (!attn_problem_equal(&p, &back)) print_error("%s\n", text);
        assert_true(attn_problem_equal(&p, &back));
        assert_true(attn_problem_hash(&p) == attn_problem_hash(&back));
        assert_int_equal(attn_problem_format(&back, again, sizeof again, NULL), ATTN_OK);
        assert_string_equal(text, again);
        attn_problem other = p;
        other.batch++;
        assert_false(attn_problem_equal(&other, &back));
    }
    assert_true(longest < 1000); /* callers inside the library use buffers of 1024 */
}

/* The words in another order, with other blanks, mean the same. */
static void order_is_free(void **state) {
    (void)state;
    for (int i = 0; i < 500; i++) {
        attn_problem p = any_problem(), back;
        char text[1024], mixed[2048], *words[80] = {text};
        int n = 0;
        attn_problem_format(&p, text, sizeof text, NULL);
        for (char *w = strtok(text, " "); w; w = strtok(NULL, " ")) words[n++] = w;
        size_t used = (size_t)snprintf(mixed, sizeof mixed, " \t%s", words[0]);
        for (int k = 1; k < n; k++) {
            int j = k + below((uint32_t)(n - k));
            char *w = words[k];
            words[k] = words[j], words[j] = w;
            used += (size_t)snprintf(mixed + used, sizeof mixed - used, "%s%s", next() % 2 ? "  " : "\n", words[k]);
        }
        assert_int_equal(attn_problem_parse(mixed, &back), ATTN_OK);
        assert_true(attn_problem_equal(&p, &back));
    }
}

static void defaults(void **state) {
    (void)state;
    attn_problem p;
    char text[256];
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=16 sq=1024 d=128 bf16", &p), ATTN_OK);
    assert_int_equal(p.size, sizeof p);
    assert_int_equal(p.op, ATTN_OP_SDPA_FWD);
    assert_int_equal(p.dtype, ATTN_BF16);
    assert_int_equal(p.batch, 1);
    assert_int_equal(p.heads_k, 16);
    assert_int_equal(p.seq_k, 1024);
    assert_int_equal(p.dim_v, 128);
    assert_true(p.flags == 0);
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    assert_int_equal(attn_problem_format(&p, text, sizeof text, NULL), ATTN_OK);
    assert_string_equal(text, "sdpa_fwd hq=16 sq=1024 d=128 bf16");

    assert_int_equal(
        attn_problem_parse("mla_bwd sq=4096 sk=8192 hq=128 topk=2048 f16 causal k_stride=4 dkv=f32 accumulate", &p),
        ATTN_OK);
    assert_int_equal(p.heads_k, 1);
    assert_int_equal(p.dim_qk, 576);
    assert_int_equal(p.dim_v, 512);
    assert_int_equal(p.dkv_dtype, ATTN_F32);
    assert_true(p.flags == (ATTN_CAUSAL | ATTN_ACCUMULATE));
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    assert_int_equal(attn_problem_format(&p, text, sizeof text, NULL), ATTN_OK);
    assert_string_equal(text,
                        "mla_bwd hq=128 sq=4096 sk=8192 d=576 topk=2048 f16 causal accumulate k_stride=4 dkv=f32");

    /* The examples of the header. */
    assert_int_equal(
        attn_problem_parse("sdpa_fwd b=2 hq=16 hk=4 sq=1024 sk=1024 d=128 dv=128 bf16 causal left=255 softcap=30", &p),
        ATTN_OK);
    assert_true(p.flags == (ATTN_CAUSAL | ATTN_WINDOW_LEFT));
    assert_int_equal(p.window_left, 255);
    assert_true(p.softcap == 30);
    assert_int_equal(attn_problem_parse("mla_join sq=64 sk=900 topk=32 group=4 union_limit=70 causal", &p), ATTN_OK);
    assert_true(p.dtype == ATTN_I32 && p.group == 4 && p.union_limit == 70 && !p.heads_q && !p.heads_k && !p.dim_qk);
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    assert_int_equal(attn_problem_parse("dist hq=1 sq=1 topk=1 f32 dist_norm=l1 scale=nan", &p), ATTN_OK);
    assert_int_equal(p.dist_norm, ATTN_DIST_L1);
    assert_int_equal(attn_problem_check(&p), ATTN_E_SCALE);
    assert_int_equal(
        attn_problem_parse("sdpa_bwd hq=2 sq=3 d=4 f32 mask=bool alibi=distance align=16 scale=-.5e-1", &p), ATTN_OK);
    assert_int_equal(p.mask_dtype, ATTN_BOOL);
    assert_int_equal(p.alibi, ATTN_ALIBI_DISTANCE);
    assert_int_equal(p.align_bytes, 16);
    assert_true(p.scale == -0.05);
}

static void faults(void **state) {
    (void)state;
    static const struct {
        const char *text, *says; /* what the message must hold */
    } rows[] = {
        {"", "empty"},
        {"  \n ", "empty"},
        {"sdpa", "'sdpa' in a problem text, did you mean 'sdpa_fwd'?"},
        {"sdpa_fdw hq=1 sq=1 d=1 f32", "did you mean 'sdpa_fwd'"},
        {"none", "'none'"},
        {"sdpa_fwd hq=1 sq=1 d=1", "dtype"},
        {"sdpa_fwd sq=1 d=1 f32", "'hq='"},
        {"sdpa_fwd hq=1 d=1 f32", "'sq='"},
        {"sdpa_fwd hq=1 sq=1 f32", "'d='"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 casual", "did you mean 'causal'"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 softcpa=3", "did you mean 'softcap=3'"},
        {"sdpa_fwd hq=1 sq=1 head_dim=64 f32", "did you mean 'd=64'?"},
        {"sdpa_fwd num_heads=4 sq=1 d=1 f32", "did you mean 'hq=4'?"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 is_causal=True", "did you mean 'causal'?"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 is_causal", "did you mean 'causal'?"},
        {"sdpa_fwd hq=1 sq=1 d=1 bfloat16", "did you mean 'bf16'?"},
        {"scaled_dot_product_attention hq=1 sq=1 d=1 f32", "did you mean 'sdpa_fwd'?"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 xyzzy", "'xyzzy'"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 =3", "'=3'"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 f16", "second dtype 'f16'"},
        {"sdpa_fwd hq=1 hq=1 sq=1 d=1 f32", "'hq' is given twice"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 causal causal", "'causal' is given twice"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 causal=1", "takes no value"},
        {"sdpa_fwd hq sq=1 d=1 f32", "needs a value"},
        {"sdpa_fwd hq= sq=1 d=1 f32", "an integer"},
        {"sdpa_fwd hq=1x sq=1 d=1 f32", "'hq=1x'"},
        {"sdpa_fwd hq=1.5 sq=1 d=1 f32", "an integer"},
        {"sdpa_fwd hq=9223372036854775808 sq=1 d=1 f32", "an integer"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 scale=1,5", "a number"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 mask=f64", "one of f32, f16, bf16, bool"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 alibi=none", "one of linear, distance"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 alibi=", "one of linear, distance"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 align=-1", "a number of bytes"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 align=4294967296", "a number of bytes"},
        {"sdpa_fwd hq=1 sq=1 d=1 i64", "'i64'"},
        {"sdpa_fwd hq=1 sq=1 d=1 f32 sdpa_bwd", "'sdpa_bwd'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attn_problem p;
        memset(&p, 0x5a, sizeof p);
        attn_problem before = p;
        assert_int_equal(attn_problem_parse(rows[i].text, &p), ATTN_E_TEXT);
        assert_memory_equal(&p, &before, sizeof p);
        const char *text = attn_base_error_get()->text;
        if (!strstr(text, rows[i].says)) print_error("%s -> %s\n", rows[i].text, text);
        assert_non_null(strstr(text, rows[i].says));
    }
    char huge[20000];
    memset(huge, 'a', sizeof huge);
    memcpy(huge, "sdpa_fwd ", 9);
    huge[sizeof huge - 1] = 0;
    attn_problem p;
    assert_int_equal(attn_problem_parse(huge, &p), ATTN_E_TEXT);
    assert_true(strlen(attn_base_error_get()->text) < 200);
    assert_int_equal(attn_problem_parse(NULL, &p), ATTN_E_ARGUMENT);
    assert_int_equal(attn_problem_parse("dist", NULL), ATTN_E_ARGUMENT);
}

static void buffers(void **state) {
    (void)state;
    attn_problem p;
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=16 sq=1024 d=128 bf16 causal", &p), ATTN_OK);
    char whole[128];
    size_t needed = 0;
    assert_int_equal(attn_problem_format(&p, NULL, 0, &needed), ATTN_E_ARGUMENT);
    assert_int_equal(needed, 41);
    assert_int_equal(attn_problem_format(&p, whole, needed, NULL), ATTN_OK);
    for (size_t n = 1; n < needed; n++) {
        char cut[64];
        memset(cut, '#', sizeof cut);
        assert_int_equal(attn_problem_format(&p, cut, n, NULL), ATTN_E_ARGUMENT);
        assert_int_equal(strlen(cut), n - 1);
        assert_memory_equal(cut, whole, n - 1);
        assert_int_equal(cut[n], '#');
        assert_int_equal(attn_base_error_get()->expected, (int64_t)needed);
        assert_int_equal(attn_base_error_get()->given, (int64_t)n);
    }
    assert_int_equal(attn_problem_format(&p, NULL, 5, NULL), ATTN_E_ARGUMENT);
    p.op = 9;
    assert_int_equal(attn_problem_format(&p, whole, sizeof whole, NULL), ATTN_E_ENUM);
    p.op = 1, p.mask_dtype = ATTN_I32;
    assert_int_equal(attn_problem_format(&p, whole, sizeof whole, NULL), ATTN_E_ENUM);
    p.mask_dtype = 0, p.flags |= UINT64_C(1) << 40;
    assert_int_equal(attn_problem_format(&p, whole, sizeof whole, NULL), ATTN_E_ENUM);
}

/* Random bytes built from the grammar's own pieces never upset the reader, and what it accepts prints and reads back.
 */
static void noise(void **state) {
    (void)state;
    static const char *const pieces[] = {"sdpa_fwd", "mla_bwd", "hq=", "sq=4",   "d=8",   "f32", "bf16",
                                         " ",        "  ",      "=",   "causal", "-",     "9",   "e99",
                                         "scale=",   "nan",     "inf", "\t",     "left=", "hq=2"};
    int accepted = 0;
    for (int i = 0; i < 30000; i++) {
        char text[400];
        size_t used = (size_t)snprintf(text, sizeof text, "%s", next() % 2 ? "sdpa_fwd hq=2 sq=4 d=8 f32 " : "");
        for (uint64_t n = next() % 6; n; n--)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s%s", pieces[next() % 20], next() % 2 ? " " : "");
        attn_problem p, back;
        char again[1024];
        if (attn_problem_parse(text, &p)) continue;
        accepted++;
        assert_int_equal(attn_problem_format(&p, again, sizeof again, NULL), ATTN_OK);
        assert_int_equal(attn_problem_parse(again, &back), ATTN_OK);
        assert_true(attn_problem_equal(&p, &back));
    }
    assert_true(accepted > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(order_is_free), cmocka_unit_test(defaults),
        cmocka_unit_test(faults),     cmocka_unit_test(buffers),       cmocka_unit_test(noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
