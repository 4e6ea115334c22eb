/* SPDX-License-Identifier: MIT
 * Properties of the sparse operators: what a distribution sums to, and that naming every key is dense attention. */
#include "prop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_features(struct prop_run *r, attn_problem *p) {
    if (prop_below(r, 2)) p->flags |= ATTN_LSE_BASE_2;
    if (prop_below(r, 2)) p->flags |= ATTN_TOPK_LENGTH;
    if (prop_below(r, 2)) {
        p->flags |= ATTN_CAUSAL;
        p->k_stride = 1 + 3 * prop_below(r, 2);
        p->q_start = prop_below(r, 2 * p->seq_k);
    }
}

/* Rows of dist sum to HQ, or to 1 when normalised; rows without a valid slot to 0. */
static int dist_sums(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p);
    p.dist_norm = (int32_t)prop_below(r, ATTN_DIST_COUNT_);
    struct attn_cli_tensors set;
    if (attn_cli_prop_make(r, &set, &p, r->seed)) return PROP_FAIL;
    int got = attn_cli_prop_execute(r, &set, NULL);
    double *dist = attn_cli_prop_get(&set, ATTN_ROLE_DIST), *lse = attn_cli_prop_get(&set, ATTN_ROLE_LSE);
    for (int64_t row = 0; !got && row < p.batch * p.seq_q; row++) {
        double sum = 0, want = p.dist_norm == ATTN_DIST_SUM ? (double)p.heads_q : 1;
        bool negative = false;
        if (isinf(lse[row * p.heads_q])) want = 0;
        for (int64_t t = 0; t < p.topk; t++) {
            sum += dist[row * p.topk + t];
            negative |= !(dist[row * p.topk + t] >= 0);
        }
        if (negative || !(fabs(sum - want) <= 1e-4 * want))
            got = attn_cli_prop_failed(r, "row %lld of dist sums to %.9g, expected %g%s", (long long)row, sum, want,
                                       negative ? "; it has negative cells" : "");
    }
    free(dist), free(lse);
    attn_cli_tensors_destroy(&set);
    return got;
}

/* Every key named once, in any order, D = DV = 512: dense attention with V = K. */
static int all_indices(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r), q = ATTN_PROBLEM_INIT;
    p.dim_qk = 512;
    p.topk = p.seq_k;
    q.op = ATTN_OP_SDPA_FWD;
    q.dtype = p.dtype;
    q.batch = p.batch, q.heads_q = p.heads_q, q.heads_k = 1, q.seq_q = p.seq_q, q.seq_k = p.seq_k,
    q.dim_qk = q.dim_v = 512;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) {
        attn_cli_tensors_destroy(&y);
        return PROP_FAIL;
    }
    double *idx = attn_cli_prop_get(&x, ATTN_ROLE_INDICES);
    int64_t step = p.topk % 2 ? 2 : 1; /* coprime to topk: every key once */
    for (int64_t row = 0; row < p.batch * p.seq_q; row++)
        for (int64_t t = 0; t < p.topk; t++) idx[row * p.topk + t] = (double)((t * step + row) % p.topk);
    attn_cli_prop_put(&x, ATTN_ROLE_INDICES, idx);
    free(idx);
    /* q and out are [B,S,H,512] in memory; the dense problem reads the same memory as [B,H,S,512]. */
    attn_tensor view[4] = {y.tensor[ATTN_ROLE_Q], y.tensor[ATTN_ROLE_OUT], y.tensor[ATTN_ROLE_K],
                           y.tensor[ATTN_ROLE_V]};
    for (int k = 0; k < 2; k++) {
        view[k].strides[0] = p.seq_q * p.heads_q * 512, view[k].strides[1] = 512, view[k].strides[2] = p.heads_q * 512;
        view[k].bytes = 0;
    }
    view[0].data = x.memory[ATTN_ROLE_Q];
    view[2].data = view[3].data = x.memory[ATTN_ROLE_KV];
    y.args.q = &view[0], y.args.out = &view[1], y.args.k = &view[2], y.args.v = &view[3];
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, "attn_sdpa_fwd_ref_*");
    if (!got) {
        int64_t rows = p.batch * p.seq_q * p.heads_q;
        double *a = attn_cli_prop_get(&x, ATTN_ROLE_OUT), *b = attn_cli_prop_get(&y, ATTN_ROLE_OUT);
        got = attn_cli_prop_rows_equal(r, "all indices against dense", a, b, rows, 512, attn_cli_prop_tolerance(r));
        free(a), free(b);
    }
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* The order of a query's slots does not matter, and an invalid slot more changes nothing. */
static int slot_order(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r), q;
    q = p;
    q.topk = p.topk + 1 + prop_below(r, 70);
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    double *a = attn_cli_prop_get(&x, ATTN_ROLE_INDICES), *b = attn_cli_prop_get(&y, ATTN_ROLE_INDICES);
    for (int64_t row = 0; row < p.batch * p.seq_q; row++) {
        int64_t shift = prop_below(r, q.topk);
        for (int64_t t = 0; t < q.topk; t++)
            b[row * q.topk + (t + shift) % q.topk] = t < p.topk ? a[row * p.topk + p.topk - 1 - t] : -1;
    }
    attn_cli_prop_put(&y, ATTN_ROLE_INDICES, b);
    free(a), free(b);
    for (int32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_KV; role++)
        if (x.use[role]) memcpy(y.memory[role], x.memory[role], (size_t)x.tensor[role].bytes);
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    if (!got) {
        int64_t rows = p.batch * p.seq_q * p.heads_q;
        double *o = attn_cli_prop_get(&x, ATTN_ROLE_OUT), *w = attn_cli_prop_get(&y, ATTN_ROLE_OUT);
        double *l = attn_cli_prop_get(&x, ATTN_ROLE_LSE), *m = attn_cli_prop_get(&y, ATTN_ROLE_LSE);
        got = attn_cli_prop_rows_equal(r, "slots in another order", o, w, rows, 512, attn_cli_prop_tolerance(r));
        if (!got) got = attn_cli_prop_lse_equal(r, "slots in another order", l, m, rows, 0);
        free(o), free(w), free(l), free(m);
    }
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* The columns that are values are 1; scores differ by the others. */
static int ones(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    p.dim_qk = 576;
    add_features(r, &p);
    struct attn_cli_tensors set;
    if (attn_cli_prop_make(r, &set, &p, r->seed)) return PROP_FAIL;
    double *kv = attn_cli_prop_get(&set, ATTN_ROLE_KV);
    const int64_t n = attn_cli_prop_count(&set, ATTN_ROLE_KV);
    for (int64_t x = 0; x < n; x++)
        if (x % p.dim_qk < p.dim_v) kv[x] = 1;
    attn_cli_prop_put(&set, ATTN_ROLE_KV, kv);
    free(kv);
    int got = attn_cli_prop_execute(r, &set, NULL);
    if (!got) {
        double *lse = attn_cli_prop_get(&set, ATTN_ROLE_LSE);
        got = attn_cli_prop_ones(r, &set, p.batch * p.seq_q * p.heads_q, p.dim_v, lse);
        free(lse);
    }
    attn_cli_tensors_destroy(&set);
    return got;
}

const struct prop attn_cli_props_sparse[] = {
    {"values of 1 give 1", ATTN_OP_MLA_FWD, ones, 0},
    {"rows of dist sum to what the norm says", ATTN_OP_DIST, dist_sums, 0},
    {"all indices equal dense", ATTN_OP_MLA_FWD, all_indices, 0},
    {"order of slots does not matter", ATTN_OP_MLA_FWD, slot_order, 0},
    {0},
};
