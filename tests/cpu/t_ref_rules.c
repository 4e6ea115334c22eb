/* SPDX-License-Identifier: MIT
 * Reference dense attention, the rules that bite: rows without keys, hidden keys that hold NaN, infinite masks and
 * sinks, zero extents, lengths, packed and paged forms, outputs left out. */
#include "ref_try.h"

#include <math.h>
#include <string.h>

enum { B = 2, HQ = 4, HK = 2, SQ = 6, SK = 8, D = 5, DV = 3 };

static attn_problem dense(uint64_t flags) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD;
    p.dtype = ATTN_F64;
    p.flags = flags;
    p.batch = B;
    p.heads_q = HQ;
    p.heads_k = HK;
    p.seq_q = SQ;
    p.seq_k = SK;
    p.dim_qk = D;
    p.dim_v = DV;
    return p;
}
static void open_random(struct ref_try *t, const attn_problem *p) {
    ref_try_open(t, p);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; ++role) ref_random(t, role, 1, 2);
}
static void open_backward(struct ref_try *bwd, const struct ref_try *fwd, uint64_t features) {
    ref_try_open_next(bwd, fwd, ATTN_OP_SDPA_BWD, features);
    ref_random(bwd, ATTN_ROLE_DOUT, 2, 1);
    ref_random(bwd, ATTN_ROLE_DLSE, 3, 1);
}
static double out_at(const struct ref_try *t, int64_t b, int64_t h, int64_t i, int64_t c) {
    return ref_get(t, ATTN_ROLE_OUT, ref_at(t, ATTN_ROLE_OUT, b, h, i, c));
}
static double lse_at(const struct ref_try *t, int64_t b, int64_t h, int64_t i) {
    return ref_get(t, ATTN_ROLE_LSE, ref_at(t, ATTN_ROLE_LSE, b, h, i, 0));
}
static void all_equal(const struct ref_try *t, int32_t role, double value) {
    assert_true(t->n[role] > 0);
    for (int64_t i = 0; i < t->n[role]; ++i) assert_true(ref_get(t, role, i) == value);
}
static void all_untouched(const struct ref_try *t, int32_t role) {
    for (int64_t i = 0; i < t->n[role]; ++i) assert_true(ref_untouched(t, role, i));
}
static int64_t count_nan(const struct ref_try *t, int32_t role) {
    int64_t n = 0;
    for (int64_t i = 0; i < t->n[role]; ++i) n += isnan(ref_get(t, role, i)) != 0;
    return n;
}

/* Rows without keys, in five ways: out 0, lse an infinity, gradients 0 although dout and dlse are not. */
static void test_empty_rows(void **state) {
    (void)state;
    for (int way = 0; way < 10; ++way) {
        attn_problem p = dense(way >= 5 ? ATTN_LSE_EMPTY_PLUS_INF | ATTN_LSE_BASE_2 : 0);
        struct ref_try fwd, bwd;
        if (way % 5 == 0) p.seq_k = 0;
        if (way % 5 == 1) p.flags |= ATTN_SEQLENS_K;
        if (way % 5 == 2) p.mask_dtype = ATTN_BOOL;
        if (way % 5 == 3) p.mask_dtype = ATTN_F32;
        if (way % 5 == 4) p.flags |= ATTN_WINDOW_LEFT, p.window_left = -100;
        open_random(&fwd, &p);
        ref_fill(&fwd, ATTN_ROLE_MASK, way % 5 == 2 ? 0 : -INFINITY);
        for (int64_t i = 0; i < fwd.n[ATTN_ROLE_V]; ++i) ref_set(&fwd, ATTN_ROLE_V, i, i % 2 ? NAN : INFINITY);
        ref_try_run(&fwd, 2);
        all_equal(&fwd, ATTN_ROLE_OUT, 0);
        all_equal(&fwd, ATTN_ROLE_LSE, way >= 5 ? INFINITY : -INFINITY);
        all_equal(&fwd, ATTN_ROLE_LSE_ROUNDED, way >= 5 ? INFINITY : -INFINITY);
        for (int sign = -1; sign <= 1; sign += 2) {
            open_backward(&bwd, &fwd, ATTN_DLSE);
            ref_fill(&bwd, ATTN_ROLE_LSE, sign < 0 ? -INFINITY : INFINITY);
            ref_set(&bwd, ATTN_ROLE_DOUT, 0, NAN);
            ref_try_run(&bwd, 2);
            all_equal(&bwd, ATTN_ROLE_DQ, 0);
            if (p.seq_k) all_equal(&bwd, ATTN_ROLE_DK, 0);
            if (p.seq_k) all_equal(&bwd, ATTN_ROLE_DV, 0);
            ref_try_close(&bwd);
        }
        ref_try_close(&fwd);
    }
}

/* An infinite lse on input means an empty row, whatever keys it would see and whatever dout holds. */
static void test_said_empty(void **state) {
    (void)state;
    attn_problem p = dense(0);
    p.mask_dtype = ATTN_F32;
    p.alibi = ATTN_ALIBI_LINEAR;
    for (int sign = -1; sign <= 1; sign += 2) {
        struct ref_try fwd, bwd;
        open_random(&fwd, &p);
        ref_try_run(&fwd, 1);
        open_backward(&bwd, &fwd, ATTN_DLSE | ATTN_GRAD_MASK | ATTN_GRAD_ALIBI);
        for (int64_t row = 0; row < B * HQ * SQ; ++row) {
            if (row % 3 == 1) continue;
            ref_set(&bwd, ATTN_ROLE_LSE, row, sign < 0 ? -INFINITY : INFINITY);
            for (int c = 0; c < DV; ++c) ref_set(&bwd, ATTN_ROLE_DOUT, row * DV + c, NAN);
        }
        ref_try_run(&bwd, 2);
        for (int32_t role = ATTN_ROLE_DQ; role <= ATTN_ROLE_DALIBI; ++role) assert_int_equal(count_nan(&bwd, role), 0);
        for (int64_t row = 0; row < B * HQ * SQ; ++row) {
            assert_int_equal(ref_get(&bwd, ATTN_ROLE_DQ, row * D) != 0, row % 3 == 1);
            assert_int_equal(ref_get(&bwd, ATTN_ROLE_DMASK, row * SK) != 0, row % 3 == 1);
        }
        ref_try_close(&fwd);
        ref_try_close(&bwd);
    }
}

/* Keys hidden by rule 5, by a boolean mask or by length hold NaN; mask cells at hidden places too. Nothing changes. */
static void test_hidden_nan(void **state) {
    (void)state;
    for (int way = 0; way < 4; ++way) {
        attn_problem p = dense(0);
        if (way == 0) p.flags = ATTN_CAUSAL;                           /* keys 6, 7 are past every query */
        if (way == 1) p.flags = ATTN_WINDOW_RIGHT, p.window_right = 0; /* the same */
        if (way == 2) p.flags = ATTN_SEQLENS_K;
        p.mask_dtype = way == 3 ? ATTN_BOOL : ATTN_F32;
        struct ref_try clean, dirty, bwd[2];
        open_random(&clean, &p);
        open_random(&dirty, &p);
        struct ref_try *both[] = {&clean, &dirty};
        for (int n = 0; n < 2; ++n) {
            struct ref_try *t = both[n];
            for (int64_t i = 0; i < t->n[ATTN_ROLE_MASK]; ++i) ref_set(t, ATTN_ROLE_MASK, i, way < 3 || i % SK < 6);
            for (int b = 0; b < B && way == 2; ++b) ref_set_int(t, ATTN_ROLE_SEQLENS_K, b, 6);
            for (int64_t i = 0; n == 1 && i < B * HK * SK; ++i) {
                if (i % SK < 6) continue;
                for (int c = 0; c < D; ++c) ref_set(t, ATTN_ROLE_K, i * D + c, NAN);
                for (int c = 0; c < DV; ++c) ref_set(t, ATTN_ROLE_V, i * DV + c, NAN);
            }
            for (int64_t i = 0; n == 1 && i < t->n[ATTN_ROLE_MASK] && way < 3; ++i) {
                int64_t key = i % SK, query = i / SK % SQ;
                if (way == 2 ? key >= 6 : key > query) ref_set(t, ATTN_ROLE_MASK, i, NAN);
            }
            ref_try_run(t, 2);
            open_backward(&bwd[n], t, ATTN_DLSE | (way < 3 ? ATTN_GRAD_MASK : 0));
            ref_try_run(&bwd[n], 2);
        }
        assert_int_equal(count_nan(&clean, ATTN_ROLE_OUT), 0);
        assert_true(ref_same_bits(&clean, &dirty, ATTN_ROLE_OUT));
        assert_true(ref_same_bits(&clean, &dirty, ATTN_ROLE_LSE));
        for (int32_t role = ATTN_ROLE_DQ; role <= ATTN_ROLE_DMASK; ++role)
            if (bwd[0].n[role]) assert_true(ref_same_bits(&bwd[0], &bwd[1], role));
        for (int64_t i = 0; i < B * HK * SK; ++i)
            if (i % SK >= 6)
                assert_true(ref_get(&bwd[1], ATTN_ROLE_DK, i * D) == 0 && ref_get(&bwd[1], ATTN_ROLE_DV, i * DV) == 0);
        for (int n = 0; n < 2; ++n) {
            ref_try_close(both[n]);
            ref_try_close(&bwd[n]);
        }
    }
}

/* An additive -inf gives P = 0 exactly: the value row may hold anything. +inf and NaN spoil their own row only. */
static void test_infinite_mask(void **state) {
    (void)state;
    attn_problem p = dense(0);
    p.mask_dtype = ATTN_F16;
    struct ref_try t;
    open_random(&t, &p);
    for (int64_t i = 0; i < t.n[ATTN_ROLE_MASK]; ++i)
        if (i % SK == 3) ref_set(&t, ATTN_ROLE_MASK, i, -INFINITY);
    for (int64_t i = 0; i < B * HK * SK; ++i)
        for (int c = 0; c < DV && i % SK == 3; ++c) ref_set(&t, ATTN_ROLE_V, i * DV + c, c ? NAN : INFINITY);
    ref_set(&t, ATTN_ROLE_MASK, ref_at(&t, ATTN_ROLE_MASK, 0, 1, 2, 5), INFINITY);
    ref_set(&t, ATTN_ROLE_Q, ref_at(&t, ATTN_ROLE_Q, 1, 3, 4, 0), NAN);
    ref_try_run(&t, 2);
    for (int64_t row = 0; row < B * HQ * SQ; ++row) {
        int spoilt = row == (0 * HQ + 1) * SQ + 2 || row == (1 * HQ + 3) * SQ + 4;
        assert_int_equal(isnan(ref_get(&t, ATTN_ROLE_LSE, row)) != 0, spoilt);
        for (int c = 0; c < DV; ++c) assert_int_equal(isnan(ref_get(&t, ATTN_ROLE_OUT, row * DV + c)) != 0, spoilt);
    }
    struct ref_try bwd;
    open_backward(&bwd, &t, 0);
    ref_set(&bwd, ATTN_ROLE_DOUT, 0, 1);
    ref_try_run(&bwd, 2);
    assert_int_equal(count_nan(&bwd, ATTN_ROLE_DQ), 2 * D);
    ref_try_close(&bwd);
    ref_try_close(&t);
}

static void test_sinks(void **state) {
    (void)state;
    const double sinks[HQ] = {INFINITY, -INFINITY, NAN, 0.5};
    for (int with = 0; with < 2; ++with) {
        attn_problem p = dense(ATTN_SINK | (with ? ATTN_LSE_WITH_SINK : 0)), plain = dense(0);
        struct ref_try t, no_sink, bwd, bwd_plain;
        open_random(&t, &p);
        open_random(&no_sink, &plain);
        for (int h = 0; h < HQ; ++h) ref_set(&t, ATTN_ROLE_SINK, h, sinks[h]);
        ref_try_run(&t, 1);
        ref_try_run(&no_sink, 1);
        for (int64_t b = 0; b < B; ++b)
            for (int64_t i = 0; i < SQ; ++i) {
                double lse = lse_at(&no_sink, b, 0, i);
                assert_true(out_at(&t, b, 0, i, 0) == 0); /* an infinite sink takes everything */
                assert_true(lse_at(&t, b, 0, i) == (with ? INFINITY : lse));
                assert_true(out_at(&t, b, 1, i, 0) == out_at(&no_sink, b, 1, i, 0)); /* -inf: no sink */
                assert_true(lse_at(&t, b, 1, i) == lse_at(&no_sink, b, 1, i));
                assert_true(isnan(out_at(&t, b, 2, i, 0)));
                assert_int_equal(isnan(lse_at(&t, b, 2, i)) != 0, with);
                lse = lse_at(&no_sink, b, 3, i);
                ref_near(out_at(&t, b, 3, i, 1), out_at(&no_sink, b, 3, i, 1) / (1 + exp(0.5 - lse)), 1e-14, "out", i);
            }
        open_backward(&bwd, &t, ATTN_GRAD_SINK | ATTN_DLSE);
        open_backward(&bwd_plain, &no_sink, ATTN_DLSE);
        ref_try_run(&bwd, 1);
        ref_try_run(&bwd_plain, 1);
        for (int64_t i = 0; i < B * SQ * D; ++i) {
            int64_t b = i / (SQ * D), rest = i % (SQ * D);
            int64_t at0 = (b * HQ + 0) * SQ * D + rest, at1 = (b * HQ + 1) * SQ * D + rest;
            if (with) assert_true(ref_get(&bwd, ATTN_ROLE_DQ, at0) == 0);
            assert_true(isfinite(ref_get(&bwd, ATTN_ROLE_DQ, at0)));
            ref_near(ref_get(&bwd, ATTN_ROLE_DQ, at1), ref_get(&bwd_plain, ATTN_ROLE_DQ, at1), 1e-15, "dq", i);
        }
        assert_true(ref_get(&bwd, ATTN_ROLE_DSINK, 0) == 0 && ref_get(&bwd, ATTN_ROLE_DSINK, 1) == 0);
        assert_true(isnan(ref_get(&bwd, ATTN_ROLE_DSINK, 2)));
        assert_true(fabs(ref_get(&bwd, ATTN_ROLE_DSINK, 3)) > 1e-3);
        ref_try_close(&t);
        ref_try_close(&no_sink);
        ref_try_close(&bwd);
        ref_try_close(&bwd_plain);
    }
}

/* The lse of a row that sees only its sink is the sink when lse includes it, and its derivative reaches the sink. */
static void test_sink_alone(void **state) {
    (void)state;
    attn_problem p = dense(ATTN_SINK | ATTN_LSE_WITH_SINK);
    p.seq_k = 0;
    struct ref_try t, bwd;
    open_random(&t, &p);
    ref_fill(&t, ATTN_ROLE_SINK, 0.25);
    ref_try_run(&t, 1);
    all_equal(&t, ATTN_ROLE_OUT, 0);
    all_equal(&t, ATTN_ROLE_LSE, 0.25);
    open_backward(&bwd, &t, ATTN_GRAD_SINK | ATTN_DLSE);
    ref_try_run(&bwd, 1);
    for (int64_t h = 0; h < HQ; ++h) {
        double sum = 0;
        for (int64_t b = 0; b < B; ++b)
            for (int64_t i = 0; i < SQ; ++i) sum += ref_get(&bwd, ATTN_ROLE_DLSE, (b * HQ + h) * SQ + i);
        ref_near(ref_get(&bwd, ATTN_ROLE_DSINK, h), sum, 1e-14, "dsink", h);
    }
    ref_try_close(&t);
    ref_try_close(&bwd);
}

static void test_zero_extents(void **state) {
    (void)state;
    attn_problem p = dense(0);
    struct ref_try t, bwd;
    p.dim_qk = 0; /* all scores 0: the mean of the values */
    open_random(&t, &p);
    ref_try_run(&t, 2);
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < HQ; ++h) {
            double mean = 0;
            for (int64_t j = 0; j < SK; ++j)
                mean += ref_get(&t, ATTN_ROLE_V, ref_at(&t, ATTN_ROLE_V, b, h / 2, j, 1)) / SK;
            ref_near(out_at(&t, b, h, 3, 1), mean, 1e-15, "out", h);
            ref_near(lse_at(&t, b, h, 3), log(SK), 1e-15, "lse", h);
        }
    open_backward(&bwd, &t, 0);
    ref_try_run(&bwd, 2);
    assert_true(ref_get(&bwd, ATTN_ROLE_DV, 0) != 0 && !ref_untouched(&bwd, ATTN_ROLE_DV, 0));
    ref_try_close(&bwd);
    ref_try_close(&t);

    struct ref_try full;
    p = dense(0);
    open_random(&full, &p);
    ref_try_run(&full, 1);
    p.dim_v = 0; /* lse alone, and its gradient */
    open_random(&t, &p);
    ref_try_run(&t, 2);
    assert_true(ref_same_bits(&t, &full, ATTN_ROLE_LSE));
    open_backward(&bwd, &t, ATTN_DLSE);
    ref_try_run(&bwd, 2);
    assert_true(fabs(ref_get(&bwd, ATTN_ROLE_DQ, 0)) > 0 && !ref_untouched(&bwd, ATTN_ROLE_DQ, 0));
    ref_try_close(&bwd);
    ref_try_close(&t);
    ref_try_close(&full);

    for (int way = 0; way < 3;
         ++way) { /* nothing to compute: empty outputs; keys without queries have zero gradients */
        p = dense(0);
        if (way == 0) p.batch = 0;
        if (way == 1) p.heads_q = p.heads_k = 0;
        if (way == 2) p.seq_q = 0;
        open_random(&t, &p);
        ref_try_run(&t, 2);
        open_backward(&bwd, &t, 0);
        ref_try_run(&bwd, 2);
        if (way == 2)
            all_equal(&bwd, ATTN_ROLE_DK, 0), all_equal(&bwd, ATTN_ROLE_DV, 0);
        else
            all_untouched(&bwd, ATTN_ROLE_DK);
        ref_try_close(&bwd);
        ref_try_close(&t);
    }
}

/* Packed sequences and paged keys against the same sequences one by one. */
static const int32_t cu_q[] = {1, 4, 4, 9, 10}, cu_k[] = {0, 5, 7, 7, 15}; /* row 0 and row 10 belong to nobody */
enum { TOTAL_Q = 11, TOTAL_K = 16 };

static void copy_head_rows(struct ref_try *to, int64_t to_row, const struct ref_try *from, int64_t from_row,
                           int32_t role, int64_t heads, int64_t rows, int64_t width) {
    int64_t to_rows = to->t[role].shape[to->t[role].rank - 2], from_rows = from->t[role].shape[from->t[role].rank - 2];
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t c = 0; c < width; ++c)
                ref_set(to, role, (h * to_rows + to_row + i) * width + c,
                        ref_get(from, role, (h * from_rows + from_row + i) * width + c));
}
static void same_head_rows(const struct ref_try *packed, int64_t row, const struct ref_try *one, int32_t role,
                           int64_t heads, int64_t rows, int64_t width) {
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t c = 0; c < width; ++c) {
                int64_t total = packed->n[role] / heads / width, own = one->n[role] / heads / width;
                double a = ref_get(packed, role, (h * total + row + i) * width + c);
                double b = ref_get(one, role, (h * own + i) * width + c);
                ref_near(a, b, 0, attn_role_name(role), i);
            }
}

static void test_packed(void **state) {
    (void)state;
    attn_problem p = dense(ATTN_PACKED | ATTN_CAUSAL | ATTN_BOTTOM_RIGHT | ATTN_SINK);
    p.batch = 4;
    p.total_q = TOTAL_Q;
    p.total_k = TOTAL_K;
    struct ref_try t, bwd;
    open_random(&t, &p);
    ref_random(&t, ATTN_ROLE_SINK, 4, 1);
    for (int i = 0; i < 5; ++i) {
        ref_set_int(&t, ATTN_ROLE_CU_SEQLENS_Q, i, cu_q[i]);
        ref_set_int(&t, ATTN_ROLE_CU_SEQLENS_K, i, cu_k[i]);
    }
    ref_try_run(&t, 3);
    open_backward(&bwd, &t, ATTN_DLSE);
    ref_try_run(&bwd, 3);
    for (int b = 0; b < 4; ++b) {
        struct ref_try one, one_bwd;
        attn_problem q = dense(ATTN_CAUSAL | ATTN_BOTTOM_RIGHT | ATTN_SINK);
        q.batch = 1;
        q.seq_q = cu_q[b + 1] - cu_q[b];
        q.seq_k = cu_k[b + 1] - cu_k[b];
        ref_try_open(&one, &q);
        for (int h = 0; h < HQ; ++h) ref_set(&one, ATTN_ROLE_SINK, h, ref_get(&t, ATTN_ROLE_SINK, h));
        copy_head_rows(&one, 0, &t, cu_q[b], ATTN_ROLE_Q, HQ, q.seq_q, D);
        copy_head_rows(&one, 0, &t, cu_k[b], ATTN_ROLE_K, HK, q.seq_k, D);
        copy_head_rows(&one, 0, &t, cu_k[b], ATTN_ROLE_V, HK, q.seq_k, DV);
        ref_try_run(&one, 1);
        open_backward(&one_bwd, &one, ATTN_DLSE);
        copy_head_rows(&one_bwd, 0, &bwd, cu_q[b], ATTN_ROLE_DOUT, HQ, q.seq_q, DV);
        for (int64_t h = 0; h < HQ; ++h)
            for (int64_t i = 0; i < q.seq_q; ++i)
                ref_set(&one_bwd, ATTN_ROLE_DLSE, h * q.seq_q + i,
                        ref_get(&bwd, ATTN_ROLE_DLSE, h * TOTAL_Q + cu_q[b] + i));
        ref_try_run(&one_bwd, 1);
        same_head_rows(&t, cu_q[b], &one, ATTN_ROLE_OUT, HQ, q.seq_q, DV);
        same_head_rows(&t, cu_q[b], &one, ATTN_ROLE_LSE, HQ, q.seq_q, 1);
        same_head_rows(&bwd, cu_q[b], &one_bwd, ATTN_ROLE_DQ, HQ, q.seq_q, D);
        if (q.seq_q) same_head_rows(&bwd, cu_k[b], &one_bwd, ATTN_ROLE_DK, HK, q.seq_k, D);
        if (q.seq_q) same_head_rows(&bwd, cu_k[b], &one_bwd, ATTN_ROLE_DV, HK, q.seq_k, DV);
        ref_try_close(&one);
        ref_try_close(&one_bwd);
    }
    for (int64_t h = 0; h < HQ; ++h) {
        const int64_t nobody[] = {0, 10};
        for (int n = 0; n < 2; ++n) {
            assert_true(ref_untouched(&t, ATTN_ROLE_LSE, h * TOTAL_Q + nobody[n]));
            assert_true(ref_untouched(&t, ATTN_ROLE_OUT, (h * TOTAL_Q + nobody[n]) * DV));
            assert_true(ref_untouched(&bwd, ATTN_ROLE_DQ, (h * TOTAL_Q + nobody[n]) * D));
        }
    }
    for (int64_t h = 0; h < HK; ++h) {
        assert_true(ref_untouched(&bwd, ATTN_ROLE_DK, (h * TOTAL_K + 15) * D));
        for (int64_t j = 5; j < 7; ++j) /* a sequence of keys without queries */
            assert_true(ref_get(&bwd, ATTN_ROLE_DK, (h * TOTAL_K + j) * D) == 0);
    }
    ref_try_close(&t);
    ref_try_close(&bwd);
}

static void test_paged(void **state) {
    (void)state;
    enum { PAGE = 3, PAGES = 7, TABLE = 4 };
    const int32_t table[B][TABLE] = {{4, 0, 2, 1}, {6, -1, 3, 99}}; /* two entries outside the pool */
    const int32_t lengths[B] = {7, 8};
    attn_problem p = dense(ATTN_PAGED | ATTN_SEQLENS_K | ATTN_CAUSAL | ATTN_BOTTOM_RIGHT);
    p.page_size = PAGE;
    p.n_pages = PAGES;
    p.max_pages = TABLE;
    struct ref_try t, plain;
    ref_try_open(&t, &p);
    ref_random(&t, ATTN_ROLE_Q, 1, 2);
    ref_random(&t, ATTN_ROLE_K, 5, 2);
    ref_random(&t, ATTN_ROLE_V, 6, 2);
    attn_problem q = dense(ATTN_SEQLENS_K | ATTN_CAUSAL | ATTN_BOTTOM_RIGHT);
    q.mask_dtype = ATTN_BOOL; /* what lies outside the pool is hidden */
    open_random(&plain, &q);
    for (int64_t b = 0; b < B; ++b) {
        for (int64_t m = 0; m < TABLE; ++m) ref_set_int(&t, ATTN_ROLE_BLOCK_TABLE, b * TABLE + m, table[b][m]);
        ref_set_int(&t, ATTN_ROLE_SEQLENS_K, b, lengths[b]);
        ref_set_int(&plain, ATTN_ROLE_SEQLENS_K, b, lengths[b]);
        for (int64_t j = 0; j < SK; ++j) {
            int64_t page = table[b][j / PAGE];
            int inside = page >= 0 && page < PAGES;
            for (int64_t h = 0; h < HQ; ++h)
                for (int64_t i = 0; i < SQ; ++i)
                    ref_set(&plain, ATTN_ROLE_MASK, ref_at(&plain, ATTN_ROLE_MASK, b, h, i, j), inside);
            for (int64_t h = 0; h < HK && inside; ++h) {
                for (int64_t c = 0; c < D; ++c)
                    ref_set(&plain, ATTN_ROLE_K, ref_at(&plain, ATTN_ROLE_K, b, h, j, c),
                            ref_get(&t, ATTN_ROLE_K, ref_at(&t, ATTN_ROLE_K, page, h, j % PAGE, c)));
                for (int64_t c = 0; c < DV; ++c)
                    ref_set(&plain, ATTN_ROLE_V, ref_at(&plain, ATTN_ROLE_V, b, h, j, c),
                            ref_get(&t, ATTN_ROLE_V, ref_at(&t, ATTN_ROLE_V, page, h, j % PAGE, c)));
            }
        }
    }
    ref_try_run(&t, 2);
    ref_try_run(&plain, 2);
    assert_true(ref_same_bits(&t, &plain, ATTN_ROLE_OUT));
    assert_true(ref_same_bits(&t, &plain, ATTN_ROLE_LSE));
    assert_true(fabs(out_at(&t, 1, 2, 5, 0)) > 1e-3);
    ref_try_close(&t);
    ref_try_close(&plain);
}

/* Outputs left out change nothing in the others; lengths outside their range are clamped. */
static void test_left_out(void **state) {
    (void)state;
    attn_problem p = dense(ATTN_SEQLENS_Q | ATTN_SEQLENS_K);
    struct ref_try t, less, bwd;
    open_random(&t, &p);
    open_random(&less, &p);
    const int32_t q[B] = {1000, -5}, k[B] = {1000, 4};
    for (int b = 0; b < B; ++b) {
        ref_set_int(&t, ATTN_ROLE_SEQLENS_Q, b, q[b]), ref_set_int(&t, ATTN_ROLE_SEQLENS_K, b, k[b]);
        ref_set_int(&less, ATTN_ROLE_SEQLENS_Q, b, b ? 0 : SQ), ref_set_int(&less, ATTN_ROLE_SEQLENS_K, b, b ? 4 : SK);
    }
    ref_drop(&less, ATTN_ROLE_LSE);
    ref_drop(&less, ATTN_ROLE_LSE_ROUNDED);
    ref_try_run(&t, 2);
    ref_try_run(&less, 2);
    assert_true(ref_same_bits(&t, &less, ATTN_ROLE_OUT));
    all_untouched(&less, ATTN_ROLE_LSE);
    for (int64_t i = HQ * SQ; i < 2 * HQ * SQ; ++i) assert_true(ref_get(&t, ATTN_ROLE_LSE, i) == -INFINITY);
    open_backward(&bwd, &t, 0);
    ref_try_run(&bwd, 2);
    const int32_t grads[] = {ATTN_ROLE_DQ, ATTN_ROLE_DK, ATTN_ROLE_DV};
    for (int keep = 0; keep < 3; ++keep) {
        struct ref_try one;
        open_backward(&one, &t, 0);
        for (int n = 0; n < 3; ++n)
            if (n != keep) ref_drop(&one, grads[n]);
        ref_try_run(&one, 2);
        for (int n = 0; n < 3; ++n)
            if (n == keep)
                assert_true(ref_same_bits(&one, &bwd, grads[n]));
            else
                all_untouched(&one, grads[n]);
        ref_try_close(&one);
    }
    ref_try_close(&bwd);
    ref_try_close(&t);
    ref_try_close(&less);
}

/* Scores near -200 and +700: exp alone would give 0 or infinity. */
static void test_extreme_scores(void **state) {
    (void)state;
    const double scales[] = {-1e4, 1e4};
    for (int n = 0; n < 2; ++n) {
        attn_problem p = dense(ATTN_SCALE);
        p.scale = scales[n];
        struct ref_try t;
        open_random(&t, &p);
        ref_fill(&t, ATTN_ROLE_Q, 1);
        ref_fill(&t, ATTN_ROLE_K, 1);
        ref_try_run(&t, 1);
        ref_near(lse_at(&t, 0, 0, 0), 5 * scales[n] + log(SK), 1e-9, "lse", 0);
        double mean = 0;
        for (int64_t j = 0; j < SK; ++j) mean += ref_get(&t, ATTN_ROLE_V, j * DV) / SK;
        ref_near(out_at(&t, 0, 0, 0, 0), mean, 1e-14, "out", 0);
        ref_try_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_rows),    cmocka_unit_test(test_said_empty),     cmocka_unit_test(test_hidden_nan),
        cmocka_unit_test(test_infinite_mask), cmocka_unit_test(test_sinks),          cmocka_unit_test(test_sink_alone),
        cmocka_unit_test(test_zero_extents),  cmocka_unit_test(test_packed),         cmocka_unit_test(test_paged),
        cmocka_unit_test(test_left_out),      cmocka_unit_test(test_extreme_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
