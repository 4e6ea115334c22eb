/* SPDX-License-Identifier: MIT
 * attn_merge: results over parts of the keys become those over all of them, for every dtype, any strides, in place,
 * with empty parts, NaN and sinks; faults are refused with nothing written. */
#include "attn.h"

#include "ref_try.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 3, SQ = 5, SK = 40, D = 16, DV = 20, PARTS = 3, ROWS = B * H * SQ, N = ROWS * DV };
static const int64_t cuts[PARTS + 1] = {0, 7, 31, SK};

static attn_ctx *context(void) {
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(NULL, &ctx), ATTN_OK);
    return ctx;
}
static attn_tensor view(void *data, int32_t dtype, int32_t rank, const int64_t *shape) {
    attn_tensor t;
    assert_int_equal(attn_tensor_contiguous(&t, data, dtype, rank, shape), ATTN_OK);
    return t;
}
static const int64_t out_shape[] = {B, H, SQ, DV};

/* A forward over keys j0 .. j1 of the same tensors. */
static struct ref_try forward(int32_t dtype, uint64_t flags, int64_t j0, int64_t j1) {
    struct ref_try t;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD, p.dtype = dtype, p.flags = flags;
    p.batch = B, p.heads_q = p.heads_k = H, p.seq_q = SQ, p.seq_k = j1 - j0, p.dim_qk = D, p.dim_v = DV;
    ref_try_open(&t, &p);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; role++) {
        const int64_t width = role == ATTN_ROLE_V ? DV : D, rows = role == ATTN_ROLE_Q ? SQ : j1 - j0,
                      first = role == ATTN_ROLE_Q ? 0 : j0;
        for (int64_t i = 0; i < t.n[role]; i++) {
            const int64_t head = i / (rows * width), index = (i / width % rows + first) * width + i % width;
            ref_set(&t, role, i, (double)((head * 131 + index * 37 + role * 17) % 129 - 64) / 32);
        }
    }
    for (int64_t h = 0; h < t.n[ATTN_ROLE_SINK]; h++) ref_set(&t, ATTN_ROLE_SINK, h, 0.5 * (double)h);
    ref_try_run(&t, 1);
    return t;
}

static void parts_become_the_whole(void **state) {
    (void)state;
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    attn_ctx *ctx = context();
    for (int n = 0; n < 8; n++) {
        const int32_t dtype = dtypes[n % 4];
        const uint64_t flags = n < 4 ? 0 : ATTN_LSE_BASE_2;
        struct ref_try whole = forward(dtype, flags, 0, SK), part[PARTS];
        const attn_tensor *out[PARTS], *lse[PARTS];
        for (int i = 0; i < PARTS; i++) {
            part[i] = forward(dtype, flags, cuts[i], cuts[i + 1]);
            out[i] = &part[i].t[ATTN_ROLE_OUT], lse[i] = &part[i].t[ATTN_ROLE_LSE];
        }
        /* other strides of the result, then that of the first part itself */
        struct ref_try result = forward(dtype, flags, 0, 1);
        ref_permute(&result, ATTN_ROLE_OUT);
        attn_merge_args a = {.size = sizeof a, .n_parts = PARTS, .out_parts = out, .lse_parts = lse, .flags = flags};
        const double bound = dtype == ATTN_F64 ? 1e-13 : dtype == ATTN_F32 ? 2e-6 : dtype == ATTN_F16 ? 4e-3 : 4e-2;
        for (int in_place = 0; in_place < 2; in_place++) {
            struct ref_try *to = in_place ? &part[0] : &result;
            a.out = &to->t[ATTN_ROLE_OUT], a.lse = &to->t[ATTN_ROLE_LSE];
            if (attn_merge(ctx, ATTN_DEVICE_CPU, &a)) fail_msg("%s", attn_last_error());
            for (int64_t i = 0; i < N; i++)
                ref_near(ref_get(to, ATTN_ROLE_OUT, i), ref_get(&whole, ATTN_ROLE_OUT, i), bound, "out", i);
            for (int64_t i = 0; i < ROWS; i++)
                ref_near(ref_get(to, ATTN_ROLE_LSE, i), ref_get(&whole, ATTN_ROLE_LSE, i),
                         dtype == ATTN_F64 ? 1e-13 : 2e-6, "lse", i);
        }
        for (int i = 0; i < PARTS; i++) ref_try_close(&part[i]);
        ref_try_close(&whole), ref_try_close(&result);
    }
    attn_ctx_release(ctx);
}

/* A sink as one more part, whose out is 0 and whose lse is the sink. */
static void a_sink_is_a_part(void **state) {
    (void)state;
    attn_ctx *ctx = context();
    struct ref_try with = forward(ATTN_F32, ATTN_SINK | ATTN_LSE_WITH_SINK, 0, SK),
                   without = forward(ATTN_F32, 0, 0, SK);
    static float zeros[N], sinks[H] = {0, 0.5f, 1}, sum[N], lse[ROWS];
    attn_tensor zero = view(zeros, ATTN_F32, 4, out_shape), sink = view(sinks, ATTN_F32, 3, out_shape),
                to = view(sum, ATTN_F32, 4, out_shape), log = view(lse, ATTN_F32, 3, out_shape);
    sink.strides[0] = sink.strides[2] = 0, sink.strides[1] = 1, sink.bytes = sizeof sinks;
    const attn_tensor *out_parts[] = {&without.t[ATTN_ROLE_OUT], &zero},
                      *lse_parts[] = {&without.t[ATTN_ROLE_LSE], &sink};
    const attn_merge_args a = {
        .size = sizeof a, .n_parts = 2, .out_parts = out_parts, .lse_parts = lse_parts, .out = &to, .lse = &log};
    if (attn_merge(ctx, ATTN_DEVICE_CPU, &a)) fail_msg("%s", attn_last_error());
    for (int64_t i = 0; i < N; i++) ref_near(sum[i], ref_get(&with, ATTN_ROLE_OUT, i), 2e-6, "out", i);
    for (int64_t i = 0; i < ROWS; i++) ref_near(lse[i], ref_get(&with, ATTN_ROLE_LSE, i), 2e-6, "lse", i);
    ref_try_close(&with), ref_try_close(&without);
    attn_ctx_release(ctx);
}

static void empty_and_nan(void **state) {
    (void)state;
    attn_ctx *ctx = context();
    const int64_t shape[] = {5, 2};
    float out[2][10] = {{NAN, NAN, 1, 2, NAN, NAN, 3, 4, 5, INFINITY}, {7, 8, NAN, NAN, NAN, NAN, 5, 6, 7, 8}}, to[10];
    float lse[2][5] = {{-INFINITY, 1, INFINITY, 2, -2000}, {3, INFINITY, -INFINITY, NAN, 0}}, log[5];
    const attn_tensor o0 = view(out[0], ATTN_F32, 2, shape), o1 = view(out[1], ATTN_F32, 2, shape),
                      l0 = view(lse[0], ATTN_F32, 1, shape), l1 = view(lse[1], ATTN_F32, 1, shape),
                      to_out = view(to, ATTN_F32, 2, shape), to_lse = view(log, ATTN_F32, 1, shape);
    const attn_tensor *out_parts[] = {&o0, &o1}, *lse_parts[] = {&l0, &l1};
    attn_merge_args a = {
        .size = sizeof a, .n_parts = 2, .out_parts = out_parts, .lse_parts = lse_parts, .out = &to_out, .lse = &to_lse};
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CPU, &a), ATTN_OK);
    /* an infinity of a part that is far behind is not lost */
    static const double want[] = {7, 8, 1, 2, 0, 0, NAN, NAN, 7, INFINITY}, want_lse[] = {3, 1, -INFINITY, NAN, 0};
    for (int64_t i = 0; i < 10; i++) ref_near(to[i], want[i], 0, "out", i);
    for (int64_t i = 0; i < 5; i++) ref_near(log[i], want_lse[i], 0, "lse", i);
    a.flags = ATTN_LSE_EMPTY_PLUS_INF;
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CPU, &a), ATTN_OK);
    assert_true(log[2] == INFINITY);
    a.out = NULL, a.out_parts = NULL; /* lse alone */
    memset(log, 0, sizeof log);
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CPU, &a), ATTN_OK);
    assert_true(log[0] == 3 && log[1] == 1);
    attn_ctx_release(ctx);
}

/* Many rows by several threads: the same bits as by one. */
static void threads_share_rows(void **state) {
    (void)state;
    enum { LONG = 3000, WIDE = 64 };
    float *memory = malloc(sizeof *memory * (size_t)(2 * LONG * (WIDE + 1) + 2 * LONG * WIDE)),
          *lse = memory + 2 * LONG * WIDE;
    assert_non_null(memory);
    for (int i = 0; i < 2 * LONG * (WIDE + 1); i++) memory[i] = (float)(i * 37 % 101) / 50 - 1;
    float *to[2] = {lse + 2 * LONG, lse + 2 * LONG + LONG * WIDE};
    const int64_t shape[] = {LONG, WIDE};
    const attn_tensor o0 = view(memory, ATTN_F32, 2, shape), o1 = view(memory + LONG * WIDE, ATTN_F32, 2, shape),
                      l0 = view(lse, ATTN_F32, 1, shape), l1 = view(lse + LONG, ATTN_F32, 1, shape);
    const attn_tensor *out_parts[] = {&o0, &o1}, *lse_parts[] = {&l0, &l1};
    for (int n = 0; n < 2; n++) {
        const attn_ctx_options options = {.size = sizeof options, .threads = 1 + 3 * n};
        const attn_tensor out = view(to[n], ATTN_F32, 2, shape);
        const attn_merge_args a = {
            .size = sizeof a, .n_parts = 2, .out_parts = out_parts, .lse_parts = lse_parts, .out = &out};
        attn_ctx *ctx = NULL;
        assert_int_equal(attn_ctx_create(&options, &ctx), ATTN_OK);
        assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CPU, &a), ATTN_OK);
        attn_ctx_release(ctx);
    }
    assert_memory_equal(to[0], to[1], sizeof(float) * LONG * WIDE);
    free(memory);
}

static void faults(void **state) {
    (void)state;
    attn_ctx *ctx = context();
    const int64_t shape[] = {4, 2}, other[] = {4, 3};
    static float memory[64];
    const attn_tensor o = view(memory, ATTN_F32, 2, shape), l = view(memory + 8, ATTN_F32, 1, shape),
                      to = view(memory + 16, ATTN_F32, 2, shape), log = view(memory + 24, ATTN_F32, 1, shape),
                      shifted = view(memory + 1, ATTN_F32, 2, shape), wide = view(memory + 32, ATTN_F32, 2, other),
                      half = view(memory + 32, ATTN_BF16, 1, shape), whole = view(memory + 32, ATTN_I32, 2, shape);
    const attn_tensor *o1[] = {&o}, *l1[] = {&l}, *none[] = {NULL}, *w1[] = {&wide}, *h1[] = {&half}, *i1[] = {&whole};
    const attn_merge_args good = {
        .size = sizeof good, .n_parts = 1, .out_parts = o1, .lse_parts = l1, .out = &to, .lse = &log};
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CPU, &good), ATTN_OK);
    attn_merge_args bad[12];
    static const attn_status status[] = {ATTN_E_ABI,      ATTN_E_ARGUMENT, ATTN_E_ARGUMENT, ATTN_E_ARGUMENT,
                                         ATTN_E_ARGUMENT, ATTN_E_SHAPE,    ATTN_E_DTYPE,    ATTN_E_DTYPE,
                                         ATTN_E_OVERLAP,  ATTN_E_FEATURE,  ATTN_E_ARGUMENT, ATTN_E_SHAPE};
    for (int n = 0; n < 12; n++) bad[n] = good;
    bad[0].size = 3, bad[1].n_parts = 0, bad[2].lse_parts = NULL, bad[3].out_parts = NULL, bad[4].lse_parts = none;
    bad[5].out_parts = w1, bad[6].lse_parts = h1, bad[7].out_parts = i1, bad[8].out = &shifted;
    bad[9].flags = ATTN_CAUSAL, bad[10].stream = memory, bad[11].out = &log;
    for (int n = 0; n < 12; n++) {
        const attn_status got = attn_merge(ctx, ATTN_DEVICE_CPU, &bad[n]);
        if (got != status[n]) fail_msg("fault %d: %s, %s", n, attn_status_name(got), attn_last_error());
    }
    assert_int_equal(attn_merge(NULL, ATTN_DEVICE_CPU, &good), ATTN_E_ARGUMENT);
    assert_int_equal(attn_merge(ctx, ATTN_DEVICE_CPU, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_merge(ctx, (attn_device){7, 0}, &good), ATTN_E_NO_DEVICE);
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_become_the_whole), cmocka_unit_test(a_sink_is_a_part),
                                       cmocka_unit_test(empty_and_nan), cmocka_unit_test(threads_share_rows),
                                       cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
