/* SPDX-License-Identifier: MIT
 * Operation counts against brute-force counting, published per-slot figures, and byte counts by hand. */
#include "attn.h"
#include "core/problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static attn_problem parse(const char *text) {
    attn_problem p;
    assert_int_equal(attn_problem_parse(text, &p), ATTN_OK);
    assert_int_equal(attn_problem_check(&p), ATTN_OK);
    return p;
}
static double flops(const char *text) {
    attn_problem p = parse(text);
    return attn_problem_flops(&p);
}
static double bytes(const char *text) {
    attn_problem p = parse(text);
    return attn_problem_bytes(&p);
}

static void brute_force(void **state) {
    (void)state;
    for (int trial = 0; trial < 20000; trial++) {
        attn_problem p = ATTN_PROBLEM_INIT;
        p.op = trial % 2 ? ATTN_OP_SDPA_FWD : ATTN_OP_SDPA_BWD;
        p.dtype = ATTN_F32;
        p.batch = rand() % 3, p.heads_q = 6, p.heads_k = 3;
        p.seq_q = rand() % 15, p.seq_k = rand() % 15, p.dim_qk = rand() % 9, p.dim_v = rand() % 9;
        p.flags = (uint64_t)rand() & (ATTN_CAUSAL | ATTN_BOTTOM_RIGHT | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT);
        p.window_left = rand() % 31 - 14, p.window_right = rand() % 31 - 14;
        int64_t off = p.flags & ATTN_BOTTOM_RIGHT ? p.seq_k - p.seq_q : 0, pairs = 0;
        for (int64_t i = 0; i < p.seq_q; i++)
            for (int64_t j = 0; j < p.seq_k; j++) {
                int seen = !((p.flags & ATTN_CAUSAL) && j > i + off);
                seen &= !((p.flags & ATTN_WINDOW_LEFT) && j < i + off - p.window_left);
                seen &= !((p.flags & ATTN_WINDOW_RIGHT) && !(p.flags & ATTN_CAUSAL) && j > i + off + p.window_right);
                pairs += seen;
            }
        int64_t per = p.op == ATTN_OP_SDPA_FWD ? 2 * (p.dim_qk + p.dim_v) : 2 * (3 * p.dim_qk + 2 * p.dim_v);
        assert_true(attn_problem_flops(&p) == (double)(p.batch * p.heads_q * pairs * per));
    }
}

static void known_figures(void **state) {
    (void)state;
    assert_true(flops("sdpa_fwd hq=32 sq=2048 d=128 f16") == 4.0 * 32 * 2048 * 2048 * 128); /* 68.7 GFLOP */
    assert_true(flops("sdpa_bwd hq=32 sq=2048 d=128 f16") == 2.5 * flops("sdpa_fwd hq=32 sq=2048 d=128 f16"));
    assert_true(flops("sdpa_fwd hq=1 sq=4 d=1 f16 causal") == 4.0 * 10);
    /* per query, slot and head: D = 576 and 512 */
    assert_true(flops("mla_fwd hq=1 sq=1 topk=1 bf16") == 2176);
    assert_true(flops("mla_bwd hq=1 sq=1 topk=1 bf16") == 5504);
    assert_true(flops("dist hq=1 sq=1 topk=1 bf16") == 1152);
    assert_true(flops("mla_fwd hq=1 sq=1 topk=1 d=512 bf16") == 2048);
    assert_true(flops("mla_bwd hq=1 sq=1 topk=1 d=512 bf16") == 5120);
    assert_true(flops("dist hq=1 sq=1 topk=1 d=512 bf16") == 1024);
    assert_true(flops("mla_bwd b=2 hq=64 sq=100 topk=2048 bf16 with_dist causal") == 5504.0 * 2 * 64 * 100 * 2048);
    assert_true(flops("sdpa_fwd b=0 hq=4 sq=4 d=4 f32") == 0);
    attn_problem bad = ATTN_PROBLEM_INIT;
    assert_true(attn_problem_flops(&bad) == 0 && attn_problem_bytes(&bad) == 0);
}

/* Closed form: lengths that no loop could walk, exact where double is. */
static void long_sequences(void **state) {
    (void)state;
    double n = 0x1p40;
    assert_true(flops("sdpa_fwd hq=1 sq=1099511627776 d=1 f32") == 4 * n * n);
    double causal = flops("sdpa_fwd hq=1 sq=1099511627776 d=1 f32 causal");
    assert_true(fabs(causal - 4 * (n * (n + 1) / 2)) <= causal * 0x1p-52);
    /* a band of 128 keys: n*128 minus the corner */
    assert_true(flops("sdpa_fwd hq=1 sq=1099511627776 d=1 f32 causal left=127") == 4 * (n * 128 - 127 * 128 / 2));
    assert_true(flops("sdpa_fwd hq=1 sq=1 sk=1099511627776 d=1 f32 causal bottom_right left=99") == 400);
    assert_true(flops("sdpa_fwd hq=1 sq=7 sk=9 d=1 f32 left=9223372036854775807 right=9223372036854775807") == 4 * 63);
    assert_true(flops("sdpa_fwd hq=1 sq=7 sk=9 d=1 f32 left=-9223372036854775808 right=9223372036854775807") == 0);
}

static void packed_bounds(void **state) {
    (void)state;
    /* No more than two sequences of 100 fit into 200 rows, however many there are. */
    assert_true(flops("sdpa_fwd b=50 hq=1 sq=100 d=1 f32 packed total_q=200 total_k=1000") == 4.0 * 2 * 100 * 100);
    assert_true(flops("sdpa_fwd b=3 hq=1 sq=100 d=1 f32 packed total_q=900 total_k=900") == 4.0 * 3 * 100 * 100);
    assert_true(flops("sdpa_fwd b=3 hq=1 sq=100 d=1 f32 packed total_q=0 total_k=900") == 0);
    assert_true(flops("sdpa_fwd b=3 hq=1 sq=100 d=1 f32 packed total_q=200 paged seqlens_k page_size=10 n_pages=9 "
                      "max_pages=10") == 4.0 * 2 * 100 * 100);
}

static void traffic(void **state) {
    (void)state;
    double q = 2 * 8 * 10 * 16, k = 2 * 2 * 30 * 16, v = 2 * 2 * 30 * 24, o = 2 * 8 * 10 * 24, lse = 2 * 8 * 10;
    assert_true(bytes("sdpa_fwd b=2 hq=8 hk=2 sq=10 sk=30 d=16 dv=24 bf16") == 2 * (q + k + v + o) + 4 * lse);
    assert_true(bytes("sdpa_fwd b=2 hq=8 hk=2 sq=10 sk=30 d=16 dv=24 f64") == 8 * (q + k + v + o + lse));
    assert_true(bytes("sdpa_bwd b=2 hq=8 hk=2 sq=10 sk=30 d=16 dv=24 bf16 dlse") ==
                2 * (2 * q + 2 * k + 2 * v + 2 * o) + 2 * 4 * lse);
    assert_true(bytes("sdpa_fwd b=2 hq=8 hk=2 sq=10 sk=30 d=16 dv=24 bf16 mask=bool") ==
                2 * (q + k + v + o) + 4 * lse + 2 * 8 * 10 * 30);
    /* pool larger than what two sequences of 30 keys can read */
    assert_true(
        bytes(
            "sdpa_fwd b=2 hq=8 hk=2 sq=10 sk=30 d=16 dv=24 bf16 paged seqlens_k page_size=10 n_pages=600 max_pages=3") ==
        2 * (q + k + v + o) + 4 * lse + 4 * 2 + 4 * 2 * 3);
    double kv = 50 * 576, mq = 5 * 3 * 576, mo = 5 * 3 * 512;
    assert_true(bytes("mla_fwd hq=3 sq=5 sk=50 topk=7 f16") == 2 * (kv + mq + mo) + 4 * 15 + 4 * 35);
    assert_true(bytes("mla_bwd hq=3 sq=5 sk=50 topk=7 f16 dkv=f32 accumulate") ==
                2 * (kv + 2 * mq + 2 * mo) + 4 * 15 + 4 * 35 + 2 * 4 * kv);
    assert_true(bytes("dist hq=3 sq=5 sk=50 topk=7 f16") == 2 * (kv + mq) + 4 * 15 + 4 * 35 + 4 * 35);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(brute_force),   cmocka_unit_test(known_figures), cmocka_unit_test(long_sequences),
        cmocka_unit_test(packed_bounds), cmocka_unit_test(traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
