/* SPDX-License-Identifier: MIT
 * Random inputs of the commands: valid for the problem, distinct where they should be, the same for the same seed; and
 * the small parsers of the command line. */
#include "shared/cli.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void make(struct attn_cli_tensors *set, const char *text, uint64_t seed) {
    attn_problem p;
    if (attn_problem_parse(text, &p) || attn_cli_tensors_create(set, &p)) fail_msg("%s: %s", text, attn_last_error());
    assert_int_equal(attn_cli_tensors_fill(set, seed), ATTN_OK);
}

static void random_numbers(void **state) {
    (void)state;
    struct attn_cli_rng rng;
    attn_cli_rng_seed(&rng, 0);
    /* First output of xoshiro256++ on the first four outputs of splitmix64 from 0 (both as published). */
    const uint64_t s0 = UINT64_C(0xe220a8397b1dcdaf), s3 = UINT64_C(0xf88bb8a8724c81ec);
    assert_true(rng.s[0] == s0 && rng.s[3] == s3);
    uint64_t sum = s0 + s3;
    assert_true(attn_cli_rng_u64(&rng) == ((sum << 23) | (sum >> 41)) + s0);
    double m1 = 0, m2 = 0, m4 = 0;
    enum { N = 200000 };
    for (int i = 0; i < N; i++) {
        double x = attn_cli_rng_normal(&rng);
        m1 += x / N, m2 += x * x / N, m4 += x * x * x * x / N;
    }
    assert_true(fabs(m1) < 0.01 && fabs(m2 - 1) < 0.02 && fabs(m4 - 3) < 0.15);
    int64_t count[7] = {0};
    for (int i = 0; i < 70000; i++) count[attn_cli_rng_below(&rng, 7)]++;
    for (int i = 0; i < 7; i++) assert_in_range(count[i], 9500, 10500);
    assert_int_equal(attn_cli_rng_below(&rng, 0), 0);
    assert_int_equal(attn_cli_rng_below(&rng, 1), 0);
}

static void check_indices(const char *text) {
    struct attn_cli_tensors set;
    make(&set, text, 5);
    const attn_problem *p = &set.problem;
    const int32_t *index = set.tensor[ATTN_ROLE_INDICES].data;
    int64_t stride = p->k_stride ? p->k_stride : 1, moved = 0;
    for (int64_t row = 0; row < p->batch * p->seq_q; row++) {
        int64_t open = p->seq_k, n = 0;
        if (p->flags & ATTN_CAUSAL) open = (p->q_start + row % p->seq_q + 1) / stride;
        if (open > p->seq_k) open = p->seq_k;
        const int32_t *x = index + row * p->topk;
        for (int64_t t = 0; t < p->topk; t++) {
            assert_true(x[t] >= -1 && x[t] < open);
            n += x[t] >= 0;
            if (x[t] >= 0) assert_true(t < n); /* -1 only behind the valid ones */
            moved += x[t] >= 0 && x[t] != t;
            for (int64_t u = 0; u < t; u++) assert_true(x[t] < 0 || x[t] != x[u]);
        }
        assert_int_equal(n, open < p->topk ? open : p->topk);
    }
    assert_true(moved > 0);
    attn_cli_tensors_destroy(&set);
}

static void indices(void **state) {
    (void)state;
    check_indices("mla_fwd b=2 hq=2 sq=20 sk=50 topk=16 f32");
    check_indices("mla_fwd b=2 hq=2 sq=20 sk=12 topk=16 bf16");
    check_indices("mla_fwd hq=2 sq=40 sk=50 topk=16 f32 causal");
    check_indices("dist hq=2 sq=40 sk=50 topk=16 f32 causal q_start=100 k_stride=4");
}

static void check_offsets(const char *text) {
    struct attn_cli_tensors set;
    make(&set, text, 9);
    const attn_problem *p = &set.problem;
    const int32_t *cu[] = {set.tensor[ATTN_ROLE_CU_SEQLENS_Q].data, set.tensor[ATTN_ROLE_CU_SEQLENS_K].data};
    const int64_t bound[] = {p->seq_q, p->seq_k}, total[] = {p->total_q, p->total_k};
    for (int k = 0; k < 2; k++) {
        int64_t most = p->batch * bound[k] < total[k] ? p->batch * bound[k] : total[k];
        assert_int_equal(cu[k][0], 0);
        for (int64_t b = 0; b < p->batch; b++) assert_in_range(cu[k][b + 1] - cu[k][b], 0, bound[k]);
        assert_int_equal(cu[k][p->batch], most);
    }
    if (p->total_q == p->total_k && p->seq_q == p->seq_k) assert_memory_equal(cu[0], cu[1], (size_t)(p->batch + 1) * 4);
    attn_cli_tensors_destroy(&set);
}

static void lengths(void **state) {
    (void)state;
    check_offsets("sdpa_fwd b=7 hq=1 sq=30 d=8 f32 packed total_q=100 total_k=100");
    check_offsets("sdpa_fwd b=7 hq=1 sq=30 sk=50 d=8 f32 packed total_q=100 total_k=350");
    check_offsets("sdpa_fwd b=3 hq=1 sq=30 sk=5 d=8 f32 packed total_q=2 total_k=99");
    struct attn_cli_tensors set;
    make(&set, "sdpa_fwd b=50 hq=1 sq=6 sk=9 d=8 f32 seqlens_q seqlens_k", 2);
    const int32_t *q = set.tensor[ATTN_ROLE_SEQLENS_Q].data, *k = set.tensor[ATTN_ROLE_SEQLENS_K].data;
    assert_true(q[0] == 6 && k[0] == 9);
    int shorter = 0;
    for (int b = 0; b < 50; b++) {
        assert_in_range(q[b], 1, 6);
        assert_in_range(k[b], 1, 9);
        shorter += k[b] < 9;
    }
    assert_true(shorter > 20);
    attn_cli_tensors_full_lengths(&set);
    for (int b = 0; b < 50; b++) assert_true(q[b] == 6 && k[b] == 9);
    attn_cli_tensors_destroy(&set);

    make(&set, "sdpa_fwd b=3 hq=1 sq=1 sk=20 d=8 f32 seqlens_k paged page_size=4 n_pages=20 max_pages=5", 2);
    const int32_t *table = set.tensor[ATTN_ROLE_BLOCK_TABLE].data;
    for (int i = 0; i < 15; i++) {
        assert_in_range(table[i], 0, 19);
        for (int j = 0; j < i; j++) assert_int_not_equal(table[i], table[j]);
    }
    attn_cli_tensors_destroy(&set);
}

static void values(void **state) {
    (void)state;
    struct attn_cli_tensors a, b, c;
    const char *text = "sdpa_bwd hq=4 hk=2 sq=30 sk=70 d=8 bf16 mask=f32 alibi=linear sink dlse";
    make(&a, text, 1);
    make(&b, text, 1);
    make(&c, text, 2);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (a.use[role] != ATTN_USE_IN || role == ATTN_ROLE_OUT || role == ATTN_ROLE_LSE) continue;
        size_t bytes = (size_t)a.tensor[role].bytes;
        assert_memory_equal(a.memory[role], b.memory[role], bytes);
        if (role != ATTN_ROLE_ALIBI) assert_memory_not_equal(a.memory[role], c.memory[role], bytes);
    }
    const float *mask = a.memory[ATTN_ROLE_MASK], *slope = a.memory[ATTN_ROLE_ALIBI];
    int hidden = 0;
    for (int i = 0; i < 4 * 30 * 70; i++) hidden += isinf(mask[i]) != 0;
    assert_in_range(hidden, 600, 1100);
    assert_true(slope[0] == 0.25f && slope[1] == 0.0625f && slope[3] == 0x1p-8f);
    assert_true(isnan(attn_cli_load(a.memory[ATTN_ROLE_DQ], ATTN_BF16, 0))); /* outputs start as NaN */

    /* Skipping a role changes no other. */
    struct attn_cli_tensors d;
    assert_int_equal(attn_cli_tensors_create_except(&d, &a.problem, UINT64_C(1) << ATTN_ROLE_MASK), ATTN_OK);
    assert_null(d.memory[ATTN_ROLE_MASK]);
    assert_null(d.args.mask);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (d.memory[role]) assert_int_equal(attn_cli_tensors_fill_role(&d, role, 1), ATTN_OK);
    assert_memory_equal(a.memory[ATTN_ROLE_DOUT], d.memory[ATTN_ROLE_DOUT], (size_t)a.tensor[ATTN_ROLE_DOUT].bytes);

    /* The forward fills what the backward reads. */
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_cli_tensors_forward(ctx, &a), ATTN_OK);
    for (int i = 0; i < 4 * 30; i++) assert_true(isfinite(((const float *)a.memory[ATTN_ROLE_LSE])[i]));
    for (int i = 0; i < 4 * 30 * 8; i++) assert_true(isfinite(attn_cli_load(a.memory[ATTN_ROLE_OUT], ATTN_BF16, i)));
    attn_ctx_release(ctx);
    attn_cli_tensors_destroy(&a);
    attn_cli_tensors_destroy(&b);
    attn_cli_tensors_destroy(&c);
    attn_cli_tensors_destroy(&d);
}

static void words(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        int match;
    } rows[] = {{"", "", 1},
                {"", "a", 0},
                {"*", "", 1},
                {"*", "abc", 1},
                {"a*c", "abc", 1},
                {"a*c", "abcd", 0},
                {"a?c", "abc", 1},
                {"a?c", "ac", 0},
                {"*b*", "abc", 1},
                {"*aab", "aaaab", 1},
                {"*_avx2_*", "attn_x_avx2_f32", 1},
                {"*_avx2_*", "attn_x_avx512_f32", 0},
                {"abc", "abc", 1},
                {"**", "x", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (attn_cli_match(rows[i].pattern, rows[i].name) != rows[i].match)
            fail_msg("'%s' on '%s'", rows[i].pattern, rows[i].name);
    int64_t n = 7;
    double x = 7;
    assert_int_equal(attn_cli_int("-3", -5, 5, &n), 0);
    assert_int_equal(n, -3);
    static const char *const bad[] = {"", "x", "1x", "6", "-6", "99999999999999999999", "1.5", "nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(attn_cli_int(bad[i], -5, 5, &n), -1);
    assert_int_equal(n, -3);
    assert_int_equal(attn_cli_double("0.5", 0, 1, &x), 0);
    assert_true(x == 0.5);
    assert_int_equal(attn_cli_double("nan", 0, 1, &x), -1);
    assert_int_equal(attn_cli_double("1e999", 0, 1, &x), -1);
    attn_device device;
    assert_int_equal(attn_cli_device("cuda:3", &device), 0);
    assert_true(device.type == ATTN_DEVICE_TYPE_CUDA && device.index == 3);
    assert_int_equal(attn_cli_device("cuda", &device), 0);
    assert_int_equal(device.index, 0);
    assert_int_equal(attn_cli_device("cpu", &device), 0);
    assert_int_equal(device.type, ATTN_DEVICE_TYPE_CPU);
    assert_int_equal(attn_cli_device("cuda:", &device), -1);
    assert_int_equal(attn_cli_device("cudax", &device), -1);
    assert_int_equal(attn_cli_device("cuda:1x", &device), -1);
    assert_int_equal(attn_cli_device("", &device), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_numbers), cmocka_unit_test(indices),
                                       cmocka_unit_test(lengths), cmocka_unit_test(values), cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
