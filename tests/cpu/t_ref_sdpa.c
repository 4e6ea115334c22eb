/* SPDX-License-Identifier: MIT
 * Reference dense attention: cases computed by hand, the rules for empty, hidden and NaN rows, a second forward written
 * from the formula, and every gradient against differences of the forward in double. */
#include "ref_try.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LN2 0.69314718055994530942

static attn_problem dense(int32_t dtype, int64_t b, int64_t hq, int64_t hk, int64_t sq, int64_t sk, int64_t d,
                          int64_t dv) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = ATTN_OP_SDPA_FWD;
    p.dtype = dtype;
    p.batch = b;
    p.heads_q = hq;
    p.heads_k = hk;
    p.seq_q = sq;
    p.seq_k = sk;
    p.dim_qk = d;
    p.dim_v = dv;
    return p;
}

/* ------------------------------------------------------------------ by hand ------------------------ */

/* One query, two keys with scores 0 and ln 2, values 3 and 6: P = 1/3, 2/3, out = 5, lse = ln 3. */
static void open_hand(struct ref_try *t, uint64_t flags, double softcap, double scale, int32_t mask) {
    attn_problem p = dense(ATTN_F64, 1, 1, 1, 1, 2, 1, 1);
    p.flags = flags | ATTN_SCALE;
    p.scale = scale;
    p.softcap = softcap;
    p.mask_dtype = mask;
    ref_try_open(t, &p);
    ref_set(t, ATTN_ROLE_Q, 0, 1);
    ref_set(t, ATTN_ROLE_K, 1, LN2);
    ref_set(t, ATTN_ROLE_V, 0, 3);
    ref_set(t, ATTN_ROLE_V, 1, 6);
}
static void expect_hand(struct ref_try *t, double out, double lse) {
    ref_try_run(t, 1);
    ref_near(ref_get(t, ATTN_ROLE_OUT, 0), out, 1e-7, "out", 0); /* sinks are f32: 3e-8 */
    ref_near(ref_get(t, ATTN_ROLE_LSE, 0), lse, 1e-7, "lse", 0);
    ref_near(ref_get(t, ATTN_ROLE_LSE_ROUNDED, 0), lse, 1e-7, "lse_rounded", 0);
    ref_try_close(t);
}
static void test_hand(void **state) {
    (void)state;
    struct ref_try t;
    open_hand(&t, 0, 0, 1, 0);
    expect_hand(&t, 5, log(3));
    open_hand(&t, ATTN_LSE_BASE_2, 0, 1, 0);
    expect_hand(&t, 5, log2(3));
    open_hand(&t, 0, 0, -1, 0); /* scores 0, -ln 2 */
    expect_hand(&t, 4, log(1.5));
    open_hand(&t, 0, 0, 0, 0);
    expect_hand(&t, 4.5, LN2);
    open_hand(&t, ATTN_SINK, 0, 1, 0);
    ref_set(&t, ATTN_ROLE_SINK, 0, log(3));
    expect_hand(&t, 2.5, log(3));
    open_hand(&t, ATTN_SINK | ATTN_LSE_WITH_SINK, 0, 1, 0);
    ref_set(&t, ATTN_ROLE_SINK, 0, log(3));
    expect_hand(&t, 2.5, log(6));
    open_hand(&t, ATTN_SINK | ATTN_LSE_WITH_SINK | ATTN_LSE_BASE_2, 0, 1, 0);
    ref_set(&t, ATTN_ROLE_SINK, 0, log(3));
    expect_hand(&t, 2.5, log2(6));
    open_hand(&t, 0, 0.5, 1, 0); /* 0.5 tanh(2 ln 2) = 0.5 * 15/17 */
    double e = exp(7.5 / 17);
    expect_hand(&t, (3 + 6 * e) / (1 + e), log(1 + e));
    open_hand(&t, 0, 0, 1, ATTN_F32); /* the mask undoes the score */
    ref_set(&t, ATTN_ROLE_MASK, 1, -LN2);
    expect_hand(&t, 4.5, LN2);
    open_hand(&t, 0, 0, 1, ATTN_BOOL);
    ref_set(&t, ATTN_ROLE_MASK, 1, 1);
    expect_hand(&t, 6, LN2);
    open_hand(&t, ATTN_CAUSAL, 0, 1, 0); /* top left: one query sees one key */
    expect_hand(&t, 3, 0);
    open_hand(&t, ATTN_CAUSAL | ATTN_BOTTOM_RIGHT, 0, 1, 0);
    expect_hand(&t, 5, log(3));
}

static void test_rounding(void **state) {
    (void)state;
    const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    const double third[] = {(double)(1.f / 3.f), 0x1.554p-2, 0x1.56p-2};
    for (int i = 0; i < 3; ++i) { /* three equal keys, values 0 0 1: a third, rounded once */
        attn_problem p = dense(dtypes[i], 1, 1, 1, 1, 3, 2, 1);
        struct ref_try t;
        ref_try_open(&t, &p);
        ref_set(&t, ATTN_ROLE_V, 2, 1);
        ref_try_run(&t, 1);
        assert_true(ref_get(&t, ATTN_ROLE_OUT, 0) == third[i]);
        assert_true(ref_get(&t, ATTN_ROLE_LSE, 0) == (double)(float)log(3));
        ref_try_close(&t);
    }
}

/* ------------------------------------------------------------------ a second forward --------------- */

/* Straight from attn.h, without a maximum, one element at a time; dense layout, seqlens, GQA. */
static void check_forward(const struct ref_try *t) {
    const attn_problem *p = &t->p;
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t h = 0; h < p->heads_q; ++h)
            for (int64_t i = 0; i < p->seq_q; ++i) {
                int64_t sq = t->n[ATTN_ROLE_SEQLENS_Q] ? ref_get_int(t, ATTN_ROLE_SEQLENS_Q, b) : p->seq_q;
                int64_t sk = t->n[ATTN_ROLE_SEQLENS_K] ? ref_get_int(t, ATTN_ROLE_SEQLENS_K, b) : p->seq_k;
                int64_t off = p->flags & ATTN_BOTTOM_RIGHT ? sk - sq : 0, hk = h / (p->heads_q / p->heads_k);
                double sum = 0, out[16] = {0};
                for (int64_t j = 0; j < sk && i < sq; ++j) {
                    double s = 0;
                    if ((p->flags & ATTN_CAUSAL) && j > i + off) continue;
                    if ((p->flags & ATTN_WINDOW_LEFT) && j < i + off - p->window_left) continue;
                    if ((p->flags & ATTN_WINDOW_RIGHT) && j > i + off + p->window_right) continue;
                    for (int64_t c = 0; c < p->dim_qk; ++c)
                        s += ref_get(t, ATTN_ROLE_Q, ref_at(t, ATTN_ROLE_Q, b, h, i, c)) *
                             ref_get(t, ATTN_ROLE_K, ref_at(t, ATTN_ROLE_K, b, hk, j, c));
                    s *= p->scale;
                    if (p->softcap > 0) s = p->softcap * tanh(s / p->softcap);
                    if (p->alibi) {
                        int by_batch = t->t[ATTN_ROLE_ALIBI].rank == 2 && t->t[ATTN_ROLE_ALIBI].shape[0] > 1;
                        double slope = ref_get(t, ATTN_ROLE_ALIBI, (by_batch ? b * p->heads_q : 0) + h);
                        double distance = (double)(j - i - off);
                        s += p->alibi == ATTN_ALIBI_LINEAR ? slope * distance : -slope * fabs(distance);
                    }
                    if (p->mask_dtype) {
                        double m = ref_get(t, ATTN_ROLE_MASK, ref_at(t, ATTN_ROLE_MASK, b, h, i, j));
                        if (p->mask_dtype == ATTN_BOOL && m == 0) continue;
                        if (p->mask_dtype != ATTN_BOOL) s += m;
                    }
                    sum += exp(s);
                    for (int64_t c = 0; c < p->dim_v; ++c)
                        out[c] += exp(s) * ref_get(t, ATTN_ROLE_V, ref_at(t, ATTN_ROLE_V, b, hk, j, c));
                }
                double sink = p->flags & ATTN_SINK && i < sq ? exp(ref_get(t, ATTN_ROLE_SINK, h)) : 0;
                double lse = log(p->flags & ATTN_LSE_WITH_SINK ? sum + sink : sum);
                if (p->flags & ATTN_LSE_BASE_2) lse /= LN2;
                if (isinf(lse) && (p->flags & ATTN_LSE_EMPTY_PLUS_INF)) lse = INFINITY;
                ref_near(ref_get(t, ATTN_ROLE_LSE, ref_at(t, ATTN_ROLE_LSE, b, h, i, 0)), lse, 1e-13 * (1 + fabs(lse)),
                         "lse", i);
                for (int64_t c = 0; c < p->dim_v; ++c)
                    ref_near(ref_get(t, ATTN_ROLE_OUT, ref_at(t, ATTN_ROLE_OUT, b, h, i, c)),
                             sum > 0 ? out[c] / (sum + sink) : 0, 1e-13, "out", i);
            }
}

/* Variants with everything that can be on at once. */
struct variant {
    uint64_t flags;
    double softcap, scale;
    int32_t mask, alibi;
    int64_t left, right;
    int32_t broadcast; /* bits: mask axes of stride 0 */
    int32_t alibi_rank;
    int64_t alibi_rows;
};
#define EVERY (ATTN_SCALE | ATTN_SINK | ATTN_SEQLENS_Q | ATTN_SEQLENS_K | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT)
static const struct variant variants[] = {
    {EVERY, 3, 0.7, ATTN_F32, ATTN_ALIBI_LINEAR, 5, 2, 0, 1, 0},
    {EVERY | ATTN_LSE_WITH_SINK, 2, 0.7, ATTN_F32, ATTN_ALIBI_DISTANCE, 3, 4, 1, 2, 2},
    {EVERY | ATTN_LSE_BASE_2 | ATTN_BOTTOM_RIGHT, 1.5, -0.9, ATTN_BF16, ATTN_ALIBI_LINEAR, 6, 1, 2, 2, 1},
    {EVERY | ATTN_LSE_BASE_2 | ATTN_LSE_WITH_SINK | ATTN_BOTTOM_RIGHT | ATTN_LSE_EMPTY_PLUS_INF, 4, 0.5, ATTN_F16,
     ATTN_ALIBI_DISTANCE, 2, 3, 4, 1, 0},
    {EVERY | ATTN_CAUSAL, 0, 1, ATTN_F32, ATTN_ALIBI_LINEAR, 4, 9, 8, 1, 0},
    {ATTN_CAUSAL | ATTN_BOTTOM_RIGHT, 0, 0, ATTN_BOOL, ATTN_ALIBI_DISTANCE, 0, 0, 5, 2, 2},
    {ATTN_SCALE | ATTN_WINDOW_LEFT | ATTN_LSE_EMPTY_PLUS_INF, 0, 0.5, ATTN_F32, 0, -3, 0, 15, 1, 0},
    {ATTN_SCALE | ATTN_WINDOW_RIGHT, 0, 0, 0, 0, 0, -2, 0, 1, 0},
    {0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

static void open_variant(struct ref_try *t, const struct variant *v, int32_t dtype, int64_t sq, int64_t sk,
                         uint64_t seed) {
    attn_problem p = dense(dtype, 2, 4, 2, sq, sk, 5, 3);
    p.flags = v->flags;
    p.softcap = v->softcap;
    p.scale = v->scale;
    p.mask_dtype = v->mask;
    p.alibi = v->alibi;
    p.window_left = v->left;
    p.window_right = v->right;
    ref_try_open(t, &p);
    for (int32_t axis = 0; axis < 4; ++axis)
        if (v->mask && (v->broadcast >> axis & 1)) ref_broadcast(t, ATTN_ROLE_MASK, axis);
    if (v->alibi && v->alibi_rank == 2) {
        const int64_t shape[] = {v->alibi_rows, 4};
        free(t->t[ATTN_ROLE_ALIBI].data);
        attn_tensor_contiguous(&t->t[ATTN_ROLE_ALIBI], calloc(8, 4), ATTN_F32, 2, shape);
        t->n[ATTN_ROLE_ALIBI] = v->alibi_rows * 4;
    }
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V; ++role) ref_random(t, role, seed, 1.5);
    ref_random(t, ATTN_ROLE_MASK, seed, 2);
    ref_random(t, ATTN_ROLE_ALIBI, seed, 0.5);
    ref_random(t, ATTN_ROLE_SINK, seed, 2);
    if (t->n[ATTN_ROLE_SEQLENS_Q]) {
        ref_set_int(t, ATTN_ROLE_SEQLENS_Q, 0, (int32_t)sq);
        ref_set_int(t, ATTN_ROLE_SEQLENS_Q, 1, (int32_t)sq - 2);
        ref_set_int(t, ATTN_ROLE_SEQLENS_K, 0, (int32_t)sk - 3);
        ref_set_int(t, ATTN_ROLE_SEQLENS_K, 1, (int32_t)sk);
    }
}

static void test_forward(void **state) {
    (void)state;
    const int64_t sizes[][2] = {{7, 9}, {1, 5}, {3, 1}, {20, 70}, {37, 133}};
    for (int v = 0; v < N_VARIANTS; ++v)
        for (int s = 0; s < 5; ++s) {
            struct ref_try t;
            if ((variants[v].flags & ATTN_SEQLENS_Q) && sizes[s][0] < 3) continue;
            if ((variants[v].flags & ATTN_SEQLENS_K) && sizes[s][1] < 4) continue;
            open_variant(&t, &variants[v], ATTN_F64, sizes[s][0], sizes[s][1], (uint64_t)(v * 10 + s));
            ref_permute(&t, ATTN_ROLE_Q);
            ref_permute(&t, ATTN_ROLE_K);
            ref_permute(&t, ATTN_ROLE_OUT);
            ref_try_run(&t, 1 + s);
            check_forward(&t);
            ref_try_close(&t);
        }
}

/* ------------------------------------------------------------------ gradients ---------------------- */

static double loss(struct ref_try *t, const struct ref_try *weights) {
    double sum = 0;
    ref_try_run(t, 1);
    for (int64_t i = 0; i < t->n[ATTN_ROLE_OUT]; ++i)
        sum += ref_get(t, ATTN_ROLE_OUT, i) * ref_get(weights, ATTN_ROLE_DOUT, i);
    for (int64_t i = 0; i < t->n[ATTN_ROLE_LSE]; ++i) {
        double lse = ref_get(t, ATTN_ROLE_LSE, i);
        if (isfinite(lse)) sum += lse * ref_get(weights, ATTN_ROLE_DLSE, i);
    }
    return sum;
}

/* Derivative by a stencil of fourth order; the step is a power of two, so that f32 and f16 inputs take it exactly. */
static double slope_of(struct ref_try *t, const struct ref_try *weights, int32_t role, int64_t i, double step) {
    static const double shift[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
    double x = ref_get(t, role, i), sum = 0;
    for (int k = 0; k < 4; ++k) {
        ref_set(t, role, i, x + shift[k] * step);
        assert_true(ref_get(t, role, i) == x + shift[k] * step);
        sum += weight[k] * loss(t, weights);
    }
    ref_set(t, role, i, x);
    return sum / (12 * step);
}

static int is_first_of_broadcast(const attn_tensor *x, int64_t i) {
    for (int32_t a = x->rank - 1; a >= 0; --a) {
        if (!x->strides[a] && i % x->shape[a]) return 0;
        i /= x->shape[a];
    }
    return 1;
}

static void check_gradient(struct ref_try *fwd, const struct ref_try *bwd, int32_t role, int32_t grad, double step,
                           double bound) {
    double largest = 0;
    if (!bwd->n[grad]) return;
    for (int64_t i = 0; i < bwd->n[grad]; ++i) {
        if (!is_first_of_broadcast(&fwd->t[role], i)) continue;
        double want = slope_of(fwd, bwd, role, i, step);
        ref_near(ref_get(bwd, grad, i), want, bound * (1 + fabs(want)), attn_role_name(grad), i);
        if (fabs(want) > largest) largest = fabs(want);
    }
    assert_true(largest > 1e-3); /* the comparison was of something */
}

static void copy_layout(struct ref_try *bwd, const struct ref_try *fwd, int32_t role, int32_t grad) {
    if (!bwd->n[grad]) return;
    attn_tensor *g = &bwd->t[grad];
    const attn_tensor *x = &fwd->t[role];
    g->rank = x->rank;
    memcpy(g->shape, x->shape, sizeof g->shape);
    memcpy(g->strides, x->strides, sizeof g->strides);
    size_t bytes = (size_t)(x->bytes / attn_dtype_bytes(x->dtype) * sizeof(double));
    g->data = realloc(g->data, bytes);
    assert_non_null(g->data);
    memset(g->data, 0xa7, bytes);
    bwd->n[grad] = fwd->n[role];
}

static void test_gradients(void **state) {
    (void)state;
    for (int k = 0; k < N_VARIANTS; ++k) {
        const struct variant *v = &variants[k];
        struct ref_try fwd, bwd;
        open_variant(&fwd, v, ATTN_F64, 7, 9, (uint64_t)k + 100);
        ref_try_run(&fwd, 2);
        uint64_t features = ATTN_DLSE;
        if (v->mask && v->mask != ATTN_BOOL) features |= ATTN_GRAD_MASK;
        if (v->alibi) features |= ATTN_GRAD_ALIBI;
        if (v->flags & ATTN_SINK) features |= ATTN_GRAD_SINK;
        ref_try_open_next(&bwd, &fwd, ATTN_OP_SDPA_BWD, features);
        if (features & ATTN_GRAD_MASK) copy_layout(&bwd, &fwd, ATTN_ROLE_MASK, ATTN_ROLE_DMASK);
        if (features & ATTN_GRAD_ALIBI) copy_layout(&bwd, &fwd, ATTN_ROLE_ALIBI, ATTN_ROLE_DALIBI);
        ref_permute(&bwd, ATTN_ROLE_DK);
        ref_random(&bwd, ATTN_ROLE_DOUT, (uint64_t)k + 7, 1);
        ref_random(&bwd, ATTN_ROLE_DLSE, (uint64_t)k + 8, 1);
        ref_try_run(&bwd, 3);
        check_gradient(&fwd, &bwd, ATTN_ROLE_V, ATTN_ROLE_DV, 0x1p-9, 1e-9);
        if (fwd.p.scale != 0) {
            check_gradient(&fwd, &bwd, ATTN_ROLE_Q, ATTN_ROLE_DQ, 0x1p-9, 1e-8);
            check_gradient(&fwd, &bwd, ATTN_ROLE_K, ATTN_ROLE_DK, 0x1p-9, 1e-8);
        }
        if (v->mask == ATTN_F32) check_gradient(&fwd, &bwd, ATTN_ROLE_MASK, ATTN_ROLE_DMASK, 0x1p-8, 1e-8);
        if (v->mask == ATTN_F16) check_gradient(&fwd, &bwd, ATTN_ROLE_MASK, ATTN_ROLE_DMASK, 0x1p-8, 1e-8);
        check_gradient(&fwd, &bwd, ATTN_ROLE_ALIBI, ATTN_ROLE_DALIBI, 0x1p-9, 1e-7);
        check_gradient(&fwd, &bwd, ATTN_ROLE_SINK, ATTN_ROLE_DSINK, 0x1p-9, 1e-8);
        for (int32_t role = ATTN_ROLE_DQ; role <= ATTN_ROLE_DSINK; ++role) /* every element was written */
            for (int64_t i = 0; i < bwd.n[role]; ++i) assert_false(ref_untouched(&bwd, role, i));
        ref_try_close(&fwd);
        ref_try_close(&bwd);
    }
}

/* Longer than one block of rows and of keys, all layouts of dmask; bits do not depend on threads. */
static void test_threads(void **state) {
    (void)state;
    for (int k = 0; k < N_VARIANTS; ++k) {
        struct ref_try fwd[2], bwd[2];
        for (int n = 0; n < 2; ++n) {
            const struct variant *v = &variants[k];
            open_variant(&fwd[n], v, ATTN_F32, 37, 150, 5);
            ref_try_run(&fwd[n], n ? 5 : 1);
            uint64_t features = ATTN_DLSE;
            if (v->mask && v->mask != ATTN_BOOL) features |= ATTN_GRAD_MASK;
            if (v->alibi) features |= ATTN_GRAD_ALIBI;
            if (v->flags & ATTN_SINK) features |= ATTN_GRAD_SINK;
            ref_try_open_next(&bwd[n], &fwd[n], ATTN_OP_SDPA_BWD, features);
            if (features & ATTN_GRAD_MASK) copy_layout(&bwd[n], &fwd[n], ATTN_ROLE_MASK, ATTN_ROLE_DMASK);
            if (features & ATTN_GRAD_ALIBI) copy_layout(&bwd[n], &fwd[n], ATTN_ROLE_ALIBI, ATTN_ROLE_DALIBI);
            ref_random(&bwd[n], ATTN_ROLE_DOUT, 3, 1);
            ref_random(&bwd[n], ATTN_ROLE_DLSE, 4, 1);
            ref_try_run(&bwd[n], n ? 5 : 1);
        }
        for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
            if (fwd[0].n[role]) assert_true(ref_same_bits(&fwd[0], &fwd[1], role));
            if (bwd[0].n[role]) assert_true(ref_same_bits(&bwd[0], &bwd[1], role));
        }
        for (int n = 0; n < 2; ++n) {
            ref_try_close(&fwd[n]);
            ref_try_close(&bwd[n]);
        }
    }
}

/* A broadcast dmask is the sum of the full one. */
static void test_dmask_sums(void **state) {
    (void)state;
    struct ref_try fwd, full;
    struct variant v = variants[0];
    open_variant(&fwd, &v, ATTN_F64, 20, 70, 11);
    ref_try_run(&fwd, 1);
    ref_try_open_next(&full, &fwd, ATTN_OP_SDPA_BWD, ATTN_GRAD_MASK);
    ref_random(&full, ATTN_ROLE_DOUT, 3, 1);
    ref_try_run(&full, 2);
    for (int bits = 1; bits < 16; ++bits) {
        struct ref_try part;
        ref_try_open_next(&part, &full, ATTN_OP_SDPA_BWD, ATTN_GRAD_MASK);
        for (int32_t axis = 0; axis < 4; ++axis)
            if (bits >> axis & 1) ref_broadcast(&part, ATTN_ROLE_DMASK, axis);
        ref_try_run(&part, 2);
        double *sum = calloc((size_t)full.n[ATTN_ROLE_DMASK], sizeof *sum);
        for (int pass = 0; pass < 2; ++pass)
            for (int64_t i = 0; i < full.n[ATTN_ROLE_DMASK]; ++i) {
                int64_t offset = 0, left = i;
                for (int32_t a = 3; a >= 0; --a) {
                    offset += left % full.t[ATTN_ROLE_DMASK].shape[a] * part.t[ATTN_ROLE_DMASK].strides[a];
                    left /= full.t[ATTN_ROLE_DMASK].shape[a];
                }
                if (!pass) sum[offset] += ref_get(&full, ATTN_ROLE_DMASK, i);
                if (pass) ref_near(ref_get(&part, ATTN_ROLE_DMASK, i), sum[offset], 1e-12, "dmask", i);
            }
        free(sum);
        ref_try_close(&part);
    }
    ref_try_close(&fwd);
    ref_try_close(&full);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hand),      cmocka_unit_test(test_rounding), cmocka_unit_test(test_forward),
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_threads),  cmocka_unit_test(test_dmask_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
