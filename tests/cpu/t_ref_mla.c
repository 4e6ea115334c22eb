/* SPDX-License-Identifier: MIT
 * Reference sparse attention: the slot predicate at its edges, equality with dense attention when every key is named,
 * gradients against the dense ones and against differences, the distribution, and what is left out or accumulated. */
#include "ref_try.h"

#include <math.h>
#include <string.h>

enum { DV = 512 };

static attn_problem sparse(int32_t op, int32_t dtype, int64_t b, int64_t hq, int64_t sq, int64_t sk, int64_t d,
                           int64_t topk) {
    attn_problem p = ATTN_PROBLEM_INIT;
    p.op = op;
    p.dtype = dtype;
    p.batch = b;
    p.heads_q = hq;
    p.heads_k = 1;
    p.seq_q = sq;
    p.seq_k = sk;
    p.dim_qk = d;
    p.dim_v = DV;
    p.topk = topk;
    return p;
}

static int32_t seven_bits(int64_t i) { return (int32_t)((uint64_t)i * 2654435761u >> 7 & 127); }

static void fill_inputs(struct ref_try *t, uint64_t seed) {
    ref_random(t, ATTN_ROLE_Q, seed, 0.25);
    ref_random(t, ATTN_ROLE_KV, seed, 1);
    ref_random(t, ATTN_ROLE_SINK, seed, 2);
}

/* ------------------------------------------------------------------ equals dense ------------------- */

/* Slots name every key once, in an order of their own with invalid ones between: the same as sdpa on the same rows. */
struct both {
    struct ref_try mla, sdpa;
};
static void open_both(struct both *x, uint64_t flags, int causal, int64_t d) {
    enum { B = 2, HQ = 20, SQ = 4, SK = 6 };
    attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_F32, B, HQ, SQ, SK, d, SK + 3), q = p;
    p.flags = flags | (causal ? ATTN_CAUSAL : 0);
    q.op = ATTN_OP_SDPA_FWD;
    q.flags = p.flags;
    q.topk = 0;
    ref_try_open(&x->mla, &p);
    ref_try_open(&x->sdpa, &q);
    fill_inputs(&x->mla, 9);
    for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < SQ; ++i) {
            for (int64_t h = 0; h < HQ; ++h)
                for (int64_t c = 0; c < d; ++c)
                    ref_set(&x->sdpa, ATTN_ROLE_Q, ref_at(&x->sdpa, ATTN_ROLE_Q, b, h, i, c),
                            ref_get(&x->mla, ATTN_ROLE_Q, ref_at(&x->mla, ATTN_ROLE_Q, b, i, h, c)));
            for (int64_t t = 0; t < SK + 3; ++t) {
                const int32_t order[SK + 3] = {3, -1, 0, 5, SK, 1, 4, INT32_MIN, 2};
                ref_set_int(&x->mla, ATTN_ROLE_INDICES, (b * SQ + i) * (SK + 3) + t, order[t]);
            }
        }
    for (int64_t b = 0; b < B; ++b)
        for (int64_t j = 0; j < SK; ++j)
            for (int64_t c = 0; c < d; ++c) {
                double value = ref_get(&x->mla, ATTN_ROLE_KV, ref_at(&x->mla, ATTN_ROLE_KV, b, j, 0, c));
                ref_set(&x->sdpa, ATTN_ROLE_K, ref_at(&x->sdpa, ATTN_ROLE_K, b, 0, j, c), value);
                if (c < DV) ref_set(&x->sdpa, ATTN_ROLE_V, ref_at(&x->sdpa, ATTN_ROLE_V, b, 0, j, c), value);
            }
    for (int64_t h = 0; h < HQ && (flags & ATTN_SINK); ++h)
        ref_set(&x->sdpa, ATTN_ROLE_SINK, h, ref_get(&x->mla, ATTN_ROLE_SINK, h));
}

static void test_equals_dense(void **state) {
    (void)state;
    const uint64_t flags[] = {0, ATTN_SINK, ATTN_LSE_BASE_2 | ATTN_LSE_EMPTY_PLUS_INF, ATTN_SINK | ATTN_LSE_BASE_2};
    for (int f = 0; f < 8; ++f) {
        struct both x;
        struct ref_try mla_bwd, sdpa_bwd;
        uint64_t features = ATTN_DLSE | (flags[f / 2] & ATTN_SINK ? ATTN_GRAD_SINK : 0);
        open_both(&x, flags[f / 2], f % 2, 512); /* the dense operators end at D = 512 */
        ref_try_run(&x.mla, 3);
        ref_try_run(&x.sdpa, 2);
        ref_try_open_next(&mla_bwd, &x.mla, ATTN_OP_MLA_BWD, features);
        ref_try_open_next(&sdpa_bwd, &x.sdpa, ATTN_OP_SDPA_BWD, features);
        ref_random(&mla_bwd, ATTN_ROLE_DOUT, 4, 1);
        ref_random(&mla_bwd, ATTN_ROLE_DLSE, 5, 1);
        const attn_problem *p = &x.mla.p;
        for (int64_t b = 0; b < p->batch; ++b)
            for (int64_t i = 0; i < p->seq_q; ++i)
                for (int64_t h = 0; h < p->heads_q; ++h) {
                    int64_t from = ref_at(&x.mla, ATTN_ROLE_LSE, b, i, h, 0),
                            to = ref_at(&x.sdpa, ATTN_ROLE_LSE, b, h, i, 0);
                    double lse = ref_get(&x.sdpa, ATTN_ROLE_LSE, to);
                    ref_near(ref_get(&x.mla, ATTN_ROLE_LSE, from), lse, 2e-7 * (1 + fabs(lse)), "lse", from);
                    /* the same lse and out go into both backwards, to the bit */
                    ref_set(&sdpa_bwd, ATTN_ROLE_LSE, to, ref_get(&x.mla, ATTN_ROLE_LSE, from));
                    ref_set(&sdpa_bwd, ATTN_ROLE_DLSE, to, ref_get(&mla_bwd, ATTN_ROLE_DLSE, from));
                    for (int64_t c = 0; c < DV; ++c) {
                        ref_near(ref_get(&x.mla, ATTN_ROLE_OUT, from * DV + c),
                                 ref_get(&x.sdpa, ATTN_ROLE_OUT, to * DV + c), 2e-7, "out", from);
                        ref_set(&sdpa_bwd, ATTN_ROLE_OUT, to * DV + c, ref_get(&x.mla, ATTN_ROLE_OUT, from * DV + c));
                        ref_set(&sdpa_bwd, ATTN_ROLE_DOUT, to * DV + c,
                                ref_get(&mla_bwd, ATTN_ROLE_DOUT, from * DV + c));
                    }
                }
        ref_try_run(&mla_bwd, 3);
        ref_try_run(&sdpa_bwd, 2);
        double largest = 0;
        for (int64_t b = 0; b < p->batch; ++b) {
            for (int64_t i = 0; i < p->seq_q; ++i)
                for (int64_t h = 0; h < p->heads_q; ++h)
                    for (int64_t c = 0; c < p->dim_qk; ++c) {
                        double want = ref_get(&sdpa_bwd, ATTN_ROLE_DQ, ref_at(&sdpa_bwd, ATTN_ROLE_DQ, b, h, i, c));
                        ref_near(ref_get(&mla_bwd, ATTN_ROLE_DQ, ref_at(&mla_bwd, ATTN_ROLE_DQ, b, i, h, c)), want,
                                 1e-6 * (fabs(want) + 0.1), "dq", c);
                    }
            for (int64_t j = 0; j < p->seq_k; ++j)
                for (int64_t c = 0; c < p->dim_qk; ++c) {
                    double want = ref_get(&sdpa_bwd, ATTN_ROLE_DK, ref_at(&sdpa_bwd, ATTN_ROLE_DK, b, 0, j, c));
                    if (c < DV) want += ref_get(&sdpa_bwd, ATTN_ROLE_DV, ref_at(&sdpa_bwd, ATTN_ROLE_DV, b, 0, j, c));
                    if (fabs(want) > largest) largest = fabs(want);
                    ref_near(ref_get(&mla_bwd, ATTN_ROLE_DKV, ref_at(&mla_bwd, ATTN_ROLE_DKV, b, j, 0, c)), want,
                             1e-6 * (fabs(want) + 1), "dkv", c);
                }
        }
        assert_true(largest > 0.1);
        for (int64_t h = 0; h < mla_bwd.n[ATTN_ROLE_DSINK]; ++h) {
            double want = ref_get(&sdpa_bwd, ATTN_ROLE_DSINK, h);
            assert_true(fabs(want) > 1e-6);
            ref_near(ref_get(&mla_bwd, ATTN_ROLE_DSINK, h), want, 1e-6 * (fabs(want) + 0.1), "dsink", h);
        }
        ref_try_close(&x.mla);
        ref_try_close(&x.sdpa);
        ref_try_close(&mla_bwd);
        ref_try_close(&sdpa_bwd);
    }
}

/* ------------------------------------------------------------------ predicate ---------------------- */

/* Scores are all 0 (q = 0), so out's column 0 is the mean of the valid rows' and lse the log of their number: an
 * observable count. Row j of kv holds j + 1 in column 0; rows that no valid slot names hold NaN. */
static void expect_slots(uint64_t flags, int64_t q_start, int64_t k_stride, const int32_t *index, int32_t length,
                         int64_t sq, const int32_t *count, const int32_t *sum) {
    enum { SK = 5, TOPK = 6 };
    attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_F32, 1, 3, sq, SK, 576, TOPK);
    p.flags = flags;
    p.q_start = q_start;
    p.k_stride = k_stride;
    struct ref_try t, dist, bwd;
    ref_try_open(&t, &p);
    for (int64_t j = 0; j < SK; ++j) ref_set(&t, ATTN_ROLE_KV, j * 576, (double)j + 1);
    for (int64_t i = 0; i < sq; ++i) {
        for (int64_t s = 0; s < TOPK; ++s) ref_set_int(&t, ATTN_ROLE_INDICES, i * TOPK + s, index[s]);
        if (flags & ATTN_TOPK_LENGTH) ref_set_int(&t, ATTN_ROLE_TOPK_LENGTH, i, length);
    }
    ref_try_run(&t, 2);
    ref_try_open_next(&dist, &t, ATTN_OP_DIST, 0);
    ref_try_run(&dist, 2);
    ref_try_open_next(&bwd, &t, ATTN_OP_MLA_BWD, 0);
    ref_fill(&bwd, ATTN_ROLE_DOUT, 1);
    ref_try_run(&bwd, 2);
    double named = 0, total = 0;
    for (int64_t i = 0; i < sq; ++i) {
        double mean = count[i] ? (double)sum[i] / count[i] : 0, mass = 0;
        for (int64_t h = 0; h < 3; ++h) {
            ref_near(ref_get(&t, ATTN_ROLE_OUT, (i * 3 + h) * DV), mean, 3e-7, "out", i);
            ref_near(ref_get(&t, ATTN_ROLE_LSE, i * 3 + h), log(count[i]), 3e-7, "lse", i);
            ref_near(ref_get(&t, ATTN_ROLE_MAX_LOGITS, i * 3 + h), count[i] ? 0 : -INFINITY, 0, "max_logits", i);
        }
        for (int64_t s = 0; s < TOPK; ++s) mass += ref_get(&dist, ATTN_ROLE_DIST, i * TOPK + s);
        ref_near(mass, count[i] ? 3 : 0, 1e-6, "dist", i);
        named += count[i] ? 3 : 0;
    }
    for (int64_t j = 0; j < SK; ++j) total += ref_get(&bwd, ATTN_ROLE_DKV, j * 576 + 1);
    ref_near(total, named, 1e-5, "dkv", 0); /* column 1: P dout alone, P sums to 1 */
    ref_try_close(&t);
    ref_try_close(&dist);
    ref_try_close(&bwd);
}

static void test_predicate(void **state) {
    (void)state;
    const int32_t mixed[6] = {-1, 4, 0, 5, 0, INT32_MAX}; /* 4 and twice 0: duplicates count each time */
    expect_slots(0, 0, 0, mixed, 0, 1, (const int32_t[]){3}, (const int32_t[]){5 + 1 + 1});
    const int32_t lengths[] = {-3, 0, 1, 2, 3, 5, 6, 7, INT32_MAX}, counts[] = {0, 0, 0, 1, 2, 3, 3, 3, 3};
    const int32_t sums[] = {0, 0, 0, 5, 6, 7, 7, 7, 7};
    for (int n = 0; n < 9; ++n) expect_slots(ATTN_TOPK_LENGTH, 0, 0, mixed, lengths[n], 1, &counts[n], &sums[n]);
    const int32_t all[6] = {0, 1, 2, 3, 4, -7};
    expect_slots(ATTN_CAUSAL, 0, 1, all, 0, 4, (const int32_t[]){1, 2, 3, 4}, (const int32_t[]){1, 3, 6, 10});
    expect_slots(ATTN_CAUSAL, 2, 1, all, 0, 3, (const int32_t[]){3, 4, 5}, (const int32_t[]){6, 10, 15});
    /* compressed keys: key idx ends with token k_stride * (idx + 1) - 1 */
    expect_slots(ATTN_CAUSAL, 0, 4, all, 0, 5, (const int32_t[]){0, 0, 0, 1, 1}, (const int32_t[]){0, 0, 0, 1, 1});
    expect_slots(ATTN_CAUSAL, 6, 4, all, 0, 2, (const int32_t[]){1, 2}, (const int32_t[]){1, 3});
    expect_slots(ATTN_CAUSAL, INT64_C(1) << 60, INT64_C(1) << 31, all, 0, 1, (const int32_t[]){5},
                 (const int32_t[]){15});
    expect_slots(ATTN_CAUSAL, 0, INT64_C(1) << 31, all, 0, 1, (const int32_t[]){0}, (const int32_t[]){0});
}

/* Rows that no valid slot names may hold anything, in every operator. */
static void test_unnamed_rows(void **state) {
    (void)state;
    enum { SK = 64, TOPK = 24, SQ = 3, HQ = 18 };
    struct ref_try fwd[2], bwd[2], dist[2];
    for (int n = 0; n < 2; ++n) {
        attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_F16, 1, HQ, SQ, SK, 576, TOPK);
        p.flags = ATTN_CAUSAL | ATTN_TOPK_LENGTH;
        p.q_start = 40;
        ref_try_open(&fwd[n], &p);
        fill_inputs(&fwd[n], 3);
        uint8_t named[SK] = {0};
        for (int64_t i = 0; i < SQ; ++i) {
            ref_set_int(&fwd[n], ATTN_ROLE_TOPK_LENGTH, i, TOPK - 4);
            for (int64_t t = 0; t < TOPK; ++t) {
                int32_t index = seven_bits(i * TOPK + t) - 20;
                ref_set_int(&fwd[n], ATTN_ROLE_INDICES, i * TOPK + t, index);
                if (t < TOPK - 4 && index >= 0 && index <= 40 + i) named[index] = 1;
            }
        }
        for (int64_t j = 0; n && j < SK; ++j)
            for (int64_t c = 0; c < 576 && !named[j]; ++c) ref_set(&fwd[n], ATTN_ROLE_KV, j * 576 + c, NAN);
        ref_try_run(&fwd[n], n ? 4 : 1);
        ref_try_open_next(&bwd[n], &fwd[n], ATTN_OP_MLA_BWD, ATTN_WITH_DIST);
        ref_random(&bwd[n], ATTN_ROLE_DOUT, 5, 1);
        ref_try_run(&bwd[n], n ? 4 : 1);
        ref_try_open_next(&dist[n], &fwd[n], ATTN_OP_DIST, 0);
        ref_try_run(&dist[n], n ? 4 : 1);
        for (int64_t j = 0; j < SK; ++j)
            for (int64_t c = 0; c < 576; ++c)
                if (!named[j]) assert_true(ref_get(&bwd[n], ATTN_ROLE_DKV, j * 576 + c) == 0);
    }
    const int32_t outputs[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_MAX_LOGITS};
    for (int k = 0; k < 3; ++k) assert_true(ref_same_bits(&fwd[0], &fwd[1], outputs[k]));
    assert_true(ref_same_bits(&bwd[0], &bwd[1], ATTN_ROLE_DQ));
    assert_true(ref_same_bits(&bwd[0], &bwd[1], ATTN_ROLE_DKV));
    assert_true(ref_same_bits(&bwd[0], &bwd[1], ATTN_ROLE_DIST));
    assert_true(ref_same_bits(&dist[0], &dist[1], ATTN_ROLE_DIST));
    assert_true(ref_same_bits(&dist[0], &bwd[0], ATTN_ROLE_DIST));
    for (int n = 0; n < 2; ++n) {
        ref_try_close(&fwd[n]);
        ref_try_close(&bwd[n]);
        ref_try_close(&dist[n]);
    }
}

/* ------------------------------------------------------------------ differences -------------------- */

/* f32 inputs, double inside, but out and lse are rounded to f32: differences over a wide step, a loose bound. */
static double loss(struct ref_try *t, const struct ref_try *bwd) {
    double sum = 0;
    ref_try_run(t, 1);
    for (int64_t i = 0; i < t->n[ATTN_ROLE_OUT]; ++i)
        sum += ref_get(t, ATTN_ROLE_OUT, i) * ref_get(bwd, ATTN_ROLE_DOUT, i);
    for (int64_t i = 0; i < t->n[ATTN_ROLE_LSE]; ++i)
        sum += ref_get(t, ATTN_ROLE_LSE, i) * ref_get(bwd, ATTN_ROLE_DLSE, i);
    return sum;
}
static void check_some(struct ref_try *fwd, const struct ref_try *bwd, int32_t role, int32_t grad, int64_t every) {
    static const double shift[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1}, step = 0x1p-4;
    double largest = 0;
    for (int64_t i = 0; i < fwd->n[role]; i += every) {
        double x = ref_get(fwd, role, i), slope = 0;
        for (int k = 0; k < 4; ++k) {
            ref_set(fwd, role, i, x + shift[k] * step);
            slope += weight[k] * loss(fwd, bwd) / (12 * step);
        }
        ref_set(fwd, role, i, x);
        ref_near(ref_get(bwd, grad, i), slope, 2e-4 * (1 + fabs(slope)), attn_role_name(grad), i);
        if (fabs(slope) > largest) largest = fabs(slope);
    }
    assert_true(largest > 0.02);
}
static void test_differences(void **state) {
    (void)state;
    for (int base2 = 0; base2 < 2; ++base2) {
        attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_F32, 1, 3, 3, 7, 576, 6);
        p.flags = ATTN_SINK | ATTN_CAUSAL | (base2 ? ATTN_LSE_BASE_2 : 0);
        p.q_start = 3;
        struct ref_try fwd, bwd;
        ref_try_open(&fwd, &p);
        fill_inputs(&fwd, 21);
        for (int64_t i = 0; i < 18; ++i) ref_set_int(&fwd, ATTN_ROLE_INDICES, i, seven_bits(i) % 8 - (i % 6 == 5));
        ref_try_run(&fwd, 1);
        for (int64_t i = 0; i < fwd.n[ATTN_ROLE_LSE]; ++i) assert_true(isfinite(ref_get(&fwd, ATTN_ROLE_LSE, i)));
        ref_try_open_next(&bwd, &fwd, ATTN_OP_MLA_BWD, ATTN_GRAD_SINK | ATTN_DLSE);
        ref_random(&bwd, ATTN_ROLE_DOUT, 22, 1);
        ref_random(&bwd, ATTN_ROLE_DLSE, 23, 1);
        ref_try_run(&bwd, 2);
        check_some(&fwd, &bwd, ATTN_ROLE_Q, ATTN_ROLE_DQ, 37);
        check_some(&fwd, &bwd, ATTN_ROLE_KV, ATTN_ROLE_DKV, 41);
        check_some(&fwd, &bwd, ATTN_ROLE_SINK, ATTN_ROLE_DSINK, 1);
        ref_try_close(&fwd);
        ref_try_close(&bwd);
    }
}

/* ------------------------------------------------------------------ outputs ------------------------ */

static void test_dist_norms(void **state) {
    (void)state;
    enum { HQ = 5, SQ = 2, TOPK = 4 };
    for (int base2 = 0; base2 < 2; ++base2) {
        attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_BF16, 1, HQ, SQ, 6, 512, TOPK);
        p.flags = base2 ? ATTN_LSE_BASE_2 : 0;
        struct ref_try fwd, dist;
        ref_try_open(&fwd, &p);
        fill_inputs(&fwd, 31);
        for (int64_t t = 0; t < TOPK; ++t) ref_set_int(&fwd, ATTN_ROLE_INDICES, t, (int32_t)t + 1);
        for (int64_t t = 0; t < TOPK; ++t) ref_set_int(&fwd, ATTN_ROLE_INDICES, TOPK + t, -1); /* an empty row */
        ref_try_run(&fwd, 1);
        double by_norm[3][TOPK];
        for (int32_t norm = 0; norm < 3; ++norm) {
            fwd.given.dist_norm = norm;
            ref_try_open_next(&dist, &fwd, ATTN_OP_DIST, 0);
            ref_set(&dist, ATTN_ROLE_LSE, 2,
                    base2 ? INFINITY : -INFINITY); /* one head of the first row said to be empty */
            ref_try_run(&dist, 1);
            for (int64_t t = 0; t < TOPK; ++t) by_norm[norm][t] = ref_get(&dist, ATTN_ROLE_DIST, t);
            for (int64_t t = 0; t < TOPK; ++t) assert_true(ref_get(&dist, ATTN_ROLE_DIST, TOPK + t) == 0);
            ref_try_close(&dist);
        }
        double heads = HQ - 1, mass[3] = {0};
        for (int norm = 0; norm < 3; ++norm)
            for (int t = 0; t < TOPK; ++t) mass[norm] += by_norm[norm][t];
        ref_near(mass[ATTN_DIST_SUM], heads, 1e-5, "sum", 0);
        ref_near(mass[ATTN_DIST_MEAN], heads / HQ, 1e-6, "mean", 0);
        ref_near(mass[ATTN_DIST_L1], 1, 1e-6, "l1", 0);
        ref_near(by_norm[2][1] * heads, by_norm[0][1], 1e-5, "l1", 1);
        ref_try_close(&fwd);
    }
}

static void test_accumulate(void **state) {
    (void)state;
    attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_BF16, 1, 4, 5, 130, 576, 9);
    struct ref_try fwd, plain, add, less;
    ref_try_open(&fwd, &p);
    fill_inputs(&fwd, 41);
    for (int64_t i = 0; i < 45; ++i) ref_set_int(&fwd, ATTN_ROLE_INDICES, i, seven_bits(i));
    ref_try_run(&fwd, 1);
    fwd.given.dkv_dtype = ATTN_F32;
    ref_try_open_next(&plain, &fwd, ATTN_OP_MLA_BWD, 0);
    ref_try_open_next(&add, &fwd, ATTN_OP_MLA_BWD, ATTN_ACCUMULATE);
    ref_try_open_next(&less, &fwd, ATTN_OP_MLA_BWD, 0);
    struct ref_try *all[] = {&plain, &add, &less};
    for (int n = 0; n < 3; ++n) ref_random(all[n], ATTN_ROLE_DOUT, 42, 1);
    assert_int_equal(plain.t[ATTN_ROLE_DKV].dtype, ATTN_F32);
    ref_fill(&add, ATTN_ROLE_DKV, 0.5);
    ref_drop(&add, ATTN_ROLE_DQ);
    ref_drop(&less, ATTN_ROLE_DKV);
    for (int n = 0; n < 3; ++n) ref_try_run(all[n], 3);
    double largest = 0;
    for (int64_t i = 0; i < plain.n[ATTN_ROLE_DKV]; ++i) {
        double want = ref_get(&plain, ATTN_ROLE_DKV, i);
        ref_near(ref_get(&add, ATTN_ROLE_DKV, i), want + 0.5, 2e-7 * (1 + fabs(want)), "dkv", i);
        if (fabs(want) > largest) largest = fabs(want);
    }
    assert_true(largest > 0.1);
    assert_true(ref_untouched(&add, ATTN_ROLE_DQ, 0));
    assert_true(ref_untouched(&less, ATTN_ROLE_DKV, 0));
    assert_true(ref_same_bits(&less, &plain, ATTN_ROLE_DQ));
    ref_try_close(&fwd);
    for (int n = 0; n < 3; ++n) ref_try_close(all[n]);
}

/* A sink scales out only; an empty row stays empty with it, and so does its gradient. */
static void test_sink_and_empty(void **state) {
    (void)state;
    attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_F32, 1, 2, 2, 4, 512, 3), plain = p;
    p.flags = ATTN_SINK | ATTN_LSE_EMPTY_PLUS_INF;
    plain.flags = ATTN_LSE_EMPTY_PLUS_INF;
    struct ref_try t, no_sink, bwd;
    ref_try_open(&t, &p);
    ref_try_open(&no_sink, &plain);
    struct ref_try *both[] = {&t, &no_sink};
    for (int n = 0; n < 2; ++n) {
        fill_inputs(both[n], 51);
        for (int64_t i = 0; i < 6; ++i) ref_set_int(both[n], ATTN_ROLE_INDICES, i, i < 3 ? (int32_t)i : -1);
        ref_try_run(both[n], 1);
    }
    assert_true(ref_same_bits(&t, &no_sink, ATTN_ROLE_LSE));
    assert_true(ref_same_bits(&t, &no_sink, ATTN_ROLE_MAX_LOGITS));
    for (int64_t h = 0; h < 2; ++h) {
        double lse = ref_get(&t, ATTN_ROLE_LSE, h), g = 1 / (1 + exp(ref_get(&t, ATTN_ROLE_SINK, h) - lse));
        ref_near(ref_get(&t, ATTN_ROLE_OUT, h * DV), g * ref_get(&no_sink, ATTN_ROLE_OUT, h * DV), 1e-6, "out", h);
        assert_true(ref_get(&t, ATTN_ROLE_LSE, 2 + h) == INFINITY &&
                    ref_get(&t, ATTN_ROLE_MAX_LOGITS, 2 + h) == -INFINITY);
        assert_true(ref_get(&t, ATTN_ROLE_OUT, (2 + h) * DV) == 0);
    }
    ref_try_open_next(&bwd, &t, ATTN_OP_MLA_BWD, ATTN_GRAD_SINK | ATTN_DLSE);
    ref_fill(&bwd, ATTN_ROLE_DOUT, 1);
    ref_fill(&bwd, ATTN_ROLE_DLSE, 1);
    ref_try_run(&bwd, 1);
    for (int64_t i = 0; i < 2 * 512; ++i) assert_true(ref_get(&bwd, ATTN_ROLE_DQ, 2 * 512 + i) == 0);
    for (int64_t c = 0; c < 512; ++c) assert_true(ref_get(&bwd, ATTN_ROLE_DKV, 3 * 512 + c) == 0);
    assert_true(fabs(ref_get(&bwd, ATTN_ROLE_DSINK, 1)) > 1e-3);
    ref_try_close(&t);
    ref_try_close(&no_sink);
    ref_try_close(&bwd);
}

/* A score of -inf hides its slot in both directions: its -inf meets no factor 0. A head whose lse says "empty" takes no
 * part, even with slots that count and NaN in dout. */
static void test_minus_inf(void **state) {
    (void)state;
    attn_problem p = sparse(ATTN_OP_MLA_FWD, ATTN_F32, 1, 3, 1, 3, 576, 3);
    struct ref_try fwd, bwd;
    ref_try_open(&fwd, &p);
    fill_inputs(&fwd, 61);
    for (int32_t t = 0; t < 3; ++t) ref_set_int(&fwd, ATTN_ROLE_INDICES, t, t);
    for (int64_t h = 0; h < 3; ++h) ref_set(&fwd, ATTN_ROLE_Q, h * 576 + 575, 1);
    ref_set(&fwd, ATTN_ROLE_KV, 576 + 575, -INFINITY);
    ref_try_run(&fwd, 1);
    ref_try_open_next(&bwd, &fwd, ATTN_OP_MLA_BWD, ATTN_WITH_DIST);
    ref_random(&bwd, ATTN_ROLE_DOUT, 62, 1);
    ref_set(&bwd, ATTN_ROLE_LSE, 1, INFINITY);
    for (int64_t c = 0; c < DV; ++c) ref_set(&bwd, ATTN_ROLE_DOUT, DV + c, NAN);
    ref_try_run(&bwd, 2);
    double largest = 0;
    for (int64_t i = 0; i < 3 * 576; ++i) {
        double dq = ref_get(&bwd, ATTN_ROLE_DQ, i), dkv = ref_get(&bwd, ATTN_ROLE_DKV, i);
        assert_true(isfinite(dq) && isfinite(dkv));
        assert_true(i / 576 != 1 || (dq == 0 && dkv == 0));
        if (fabs(dq) > largest) largest = fabs(dq);
    }
    assert_true(largest > 1e-3);
    for (int64_t i = 0; i < DV; ++i) assert_true(isfinite(ref_get(&fwd, ATTN_ROLE_OUT, i)));
    assert_true(ref_get(&bwd, ATTN_ROLE_DIST, 1) == 0);
    ref_near(ref_get(&bwd, ATTN_ROLE_DIST, 0) + ref_get(&bwd, ATTN_ROLE_DIST, 2), 2, 1e-5, "dist", 0);
    ref_try_close(&fwd);
    ref_try_close(&bwd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_dense),   cmocka_unit_test(test_predicate),  cmocka_unit_test(test_unnamed_rows),
        cmocka_unit_test(test_differences),    cmocka_unit_test(test_dist_norms), cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_sink_and_empty), cmocka_unit_test(test_minus_inf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
