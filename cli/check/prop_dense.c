/* SPDX-License-Identifier: MIT
 * Properties of the dense forward: what attention must satisfy whoever computes it. */
#include "prop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Features that every property below leaves alone. */
static void add_features(struct prop_run *r, attn_problem *p, bool positional) {
    if (prop_below(r, 3) == 0) p->softcap = 30;
    if (prop_below(r, 3) == 0) p->flags |= ATTN_LSE_BASE_2;
    if (prop_below(r, 3) == 0) {
        p->flags |= ATTN_SCALE;
        p->scale = prop_below(r, 2) ? 0.3 : -0.1;
    }
    if (!positional) return;
    if (prop_below(r, 2)) p->flags |= ATTN_CAUSAL;
    if (prop_below(r, 2)) p->flags |= ATTN_BOTTOM_RIGHT;
    if (prop_below(r, 3) == 0) p->alibi = 1 + (int32_t)prop_below(r, 2);
    if (prop_below(r, 3) == 0) {
        p->flags |= ATTN_WINDOW_LEFT;
        p->window_left = prop_below(r, 40);
    }
}

static int out_rows(const attn_problem *p, int64_t *cols) {
    *cols = p->dim_v;
    return (int)(p->batch * p->heads_q * p->seq_q);
}

/* Two runs of the same problem shape agree in out and lse (+ shift). */
static int same_outputs(struct prop_run *r, const char *what, const struct attn_cli_tensors *x,
                        const struct attn_cli_tensors *y, double shift) {
    int64_t cols, rows = out_rows(&x->problem, &cols);
    double *a = attn_cli_prop_get(x, ATTN_ROLE_OUT), *b = attn_cli_prop_get(y, ATTN_ROLE_OUT);
    double *la = attn_cli_prop_get(x, ATTN_ROLE_LSE), *lb = attn_cli_prop_get(y, ATTN_ROLE_LSE);
    int bad = attn_cli_prop_rows_equal(r, what, a, b, rows, cols, attn_cli_prop_tolerance(r)) ||
              attn_cli_prop_lse_equal(r, what, la, lb, rows, shift);
    free(a), free(b), free(la), free(lb);
    return bad;
}

static int ones(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p, true);
    if (prop_below(r, 2)) p.mask_dtype = prop_below(r, 2) ? ATTN_BOOL : ATTN_F32;
    /* Many keys, in steps and in splits, and scores of which one outweighs the others: where probabilities refer to the
     * largest score of earlier keys, the rounding of that one is not lost among others. */
    if (prop_below(r, 2)) {
        p.seq_k = 1 + prop_below(r, 1500);
        p.flags |= ATTN_SCALE;
        p.scale = (double)(3 + prop_below(r, 4)) / sqrt((double)p.dim_qk);
    }
    if (prop_below(r, 3) == 0) p.seq_q = 1; /* decode */
    struct attn_cli_tensors set;
    if (attn_cli_prop_make(r, &set, &p, r->seed)) return PROP_FAIL;
    int64_t n = attn_cli_prop_count(&set, ATTN_ROLE_V), cols, rows = out_rows(&p, &cols);
    double *v = attn_cli_prop_get(&set, ATTN_ROLE_V);
    for (int64_t x = 0; x < n; x++) v[x] = 1;
    attn_cli_prop_put(&set, ATTN_ROLE_V, v);
    int got = attn_cli_prop_execute(r, &set, NULL);
    if (!got) {
        double *lse = attn_cli_prop_get(&set, ATTN_ROLE_LSE);
        got = attn_cli_prop_ones(r, &set, rows, cols, lse);
        set.args.lse = NULL; /* rows may form probabilities otherwise then */
        if (!got) got = attn_cli_prop_execute(r, &set, NULL);
        if (!got) got = attn_cli_prop_ones(r, &set, rows, cols, lse);
        free(lse);
    }
    free(v);
    attn_cli_tensors_destroy(&set);
    return got;
}

static void permute_rows(double *x, const int64_t *order, int64_t blocks, int64_t n, int64_t width) {
    double *copy = malloc((size_t)(n * width + 1) * sizeof *copy);
    for (int64_t b = 0; copy && b < blocks; b++) {
        memcpy(copy, x + b * n * width, (size_t)(n * width) * sizeof *copy);
        for (int64_t j = 0; j < n; j++)
            memcpy(x + (b * n + j) * width, copy + order[j] * width, (size_t)width * sizeof *copy);
    }
    free(copy);
}

static int permuted_keys(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p, false);
    if (prop_below(r, 2)) p.mask_dtype = prop_below(r, 2) ? ATTN_BOOL : ATTN_F32;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &p, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    int64_t *order = malloc((size_t)(p.seq_k + 1) * sizeof *order);
    for (int64_t j = 0; j < p.seq_k; j++) order[j] = j;
    for (int64_t j = p.seq_k - 1; j > 0; j--) {
        int64_t k = prop_below(r, j + 1), t = order[j];
        order[j] = order[k], order[k] = t;
    }
    static const int32_t roles[] = {ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_MASK};
    for (int k = 0; k < 3; k++) {
        if (!y.use[roles[k]]) continue;
        double *v = attn_cli_prop_get(&y, roles[k]);
        int64_t width = k == 0   ? p.dim_qk
                        : k == 1 ? p.dim_v
                                 : 1,
                blocks = k == 2 ? p.batch * p.heads_q * p.seq_q : p.batch * p.heads_k;
        permute_rows(v, order, blocks, p.seq_k, width);
        attn_cli_prop_put(&y, roles[k], v);
        free(v);
    }
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    if (!got) got = same_outputs(r, "keys and values in another order", &x, &y, 0);
    free(order);
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* The same inputs under a problem that differs in flags alone; `y` gets x's q, k, v and whatever else both use. */
static void share_inputs(const struct attn_cli_tensors *x, struct attn_cli_tensors *y) {
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (x->use[role] == ATTN_USE_IN && y->use[role] == ATTN_USE_IN &&
            x->tensor[role].bytes == y->tensor[role].bytes)
            memcpy(y->memory[role], x->memory[role], (size_t)x->tensor[role].bytes);
}

static int causal_is_a_mask(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r), q;
    add_features(r, &p, true);
    p.flags |= ATTN_CAUSAL;
    q = p;
    q.flags &= ~(ATTN_CAUSAL | ATTN_WINDOW_LEFT);
    q.mask_dtype = prop_below(r, 2) ? ATTN_BOOL : ATTN_F32;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    share_inputs(&x, &y);
    int64_t n = attn_cli_prop_count(&y, ATTN_ROLE_MASK), off = p.flags & ATTN_BOTTOM_RIGHT ? p.seq_k - p.seq_q : 0;
    double *mask = attn_cli_prop_get(&y, ATTN_ROLE_MASK);
    for (int64_t cell = 0; cell < n; cell++) {
        int64_t j = cell % p.seq_k, i = cell / p.seq_k % p.seq_q;
        bool seen = j <= i + off && !((p.flags & ATTN_WINDOW_LEFT) && j < i + off - p.window_left);
        mask[cell] = q.mask_dtype == ATTN_BOOL ? seen : seen ? 0 : -INFINITY;
    }
    attn_cli_prop_put(&y, ATTN_ROLE_MASK, mask);
    free(mask);
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    if (!got) got = same_outputs(r, "causal against the same as a mask", &x, &y, 0);
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

static int packed_is_dense(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r), q;
    p.batch = 1;
    add_features(r, &p, true);
    q = p;
    q.flags |= ATTN_PACKED;
    q.total_q = p.seq_q;
    q.total_k = p.seq_k;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    share_inputs(&x, &y);
    attn_cli_prop_put(&y, ATTN_ROLE_CU_SEQLENS_Q, (double[]){0, (double)p.seq_q});
    attn_cli_prop_put(&y, ATTN_ROLE_CU_SEQLENS_K, (double[]){0, (double)p.seq_k});
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    if (!got) got = same_outputs(r, "one packed sequence against dense", &x, &y, 0);
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* Copy keys [B,HK,SK,w] into pages [PAGES,HK,PAGE,w]. */
static void scatter_pages(const attn_problem *q, const double *table, const double *from, double *to, int64_t width) {
    for (int64_t b = 0; b < q->batch; b++)
        for (int64_t h = 0; h < q->heads_k; h++)
            for (int64_t j = 0; j < q->seq_k; j++) {
                int64_t page = (int64_t)table[b * q->max_pages + j / q->page_size];
                memcpy(to + ((page * q->heads_k + h) * q->page_size + j % q->page_size) * width,
                       from + ((b * q->heads_k + h) * q->seq_k + j) * width, (size_t)width * sizeof *to);
            }
}

static int paged_is_dense(struct prop_run *r) {
    static const int64_t sizes[] = {1, 3, 16, 64};
    attn_problem p = attn_cli_prop_problem(r), q;
    add_features(r, &p, true);
    q = p;
    q.flags |= ATTN_PAGED | ATTN_SEQLENS_K;
    q.page_size = sizes[prop_below(r, 4)];
    q.max_pages = (p.seq_k + q.page_size - 1) / q.page_size;
    q.n_pages = q.max_pages * p.batch + 1;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &q, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    share_inputs(&x, &y);
    double *table = attn_cli_prop_get(&y, ATTN_ROLE_BLOCK_TABLE), *length = attn_cli_prop_get(&y, ATTN_ROLE_SEQLENS_K);
    int64_t n = q.max_pages * p.batch;
    for (int64_t k = 0; k < n; k++) table[k] = (double)((k * 7 + 3) % n);
    if (n % 7 == 0)
        for (int64_t k = 0; k < n; k++) table[k] = (double)(n - k);
    for (int64_t b = 0; b < p.batch; b++) length[b] = (double)p.seq_k;
    attn_cli_prop_put(&y, ATTN_ROLE_BLOCK_TABLE, table);
    attn_cli_prop_put(&y, ATTN_ROLE_SEQLENS_K, length);
    for (int32_t role = ATTN_ROLE_K; role <= ATTN_ROLE_V; role++) {
        double *from = attn_cli_prop_get(&x, role), *to = attn_cli_prop_get(&y, role);
        scatter_pages(&q, table, from, to, role == ATTN_ROLE_K ? p.dim_qk : p.dim_v);
        attn_cli_prop_put(&y, role, to);
        free(from), free(to);
    }
    free(table), free(length);
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    if (!got) got = same_outputs(r, "paged against dense", &x, &y, 0);
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

/* Every query alone (decode) against all at once; under causality query i alone sees a shorter SK. Bits may differ: how
 * keys are split depends on the number of queries. */
static int one_by_one(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p, false);
    p.batch = 1;
    p.seq_q = 1 + prop_below(r, 9);
    p.seq_k = prop_below(r, 2) ? 1 + prop_below(r, 200) : 500 + prop_below(r, 900);
    bool causal = prop_below(r, 2) != 0;
    if (p.seq_k < p.seq_q) p.seq_k = p.seq_q;
    if (causal) p.flags |= ATTN_CAUSAL | ATTN_BOTTOM_RIGHT;
    struct attn_cli_tensors x;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    int got = attn_cli_prop_execute(r, &x, NULL);
    double *out = attn_cli_prop_get(&x, ATTN_ROLE_OUT), *lse = attn_cli_prop_get(&x, ATTN_ROLE_LSE);
    for (int64_t i = 0; !got && i < p.seq_q; i++) {
        struct attn_cli_tensors y; /* its q, k and v are those of x, seen through other extents */
        attn_problem q = p;
        q.seq_q = 1;
        if (causal) q.seq_k = p.seq_k - (p.seq_q - 1 - i);
        if (attn_cli_prop_make(r, &y, &q, r->seed)) {
            got = PROP_FAIL;
            break;
        }
        attn_tensor view[3] = {x.tensor[ATTN_ROLE_Q], x.tensor[ATTN_ROLE_K], x.tensor[ATTN_ROLE_V]};
        view[0].shape[2] = 1;
        view[0].data = (char *)view[0].data + (size_t)(i * p.dim_qk) * attn_dtype_bytes(p.dtype);
        view[0].bytes = 0;
        view[1].shape[2] = view[2].shape[2] = q.seq_k;
        y.args.q = &view[0], y.args.k = &view[1], y.args.v = &view[2];
        got = attn_cli_prop_execute(r, &y, NULL);
        double *o = attn_cli_prop_get(&y, ATTN_ROLE_OUT), *l = attn_cli_prop_get(&y, ATTN_ROLE_LSE);
        for (int64_t h = 0; !got && h < p.heads_q; h++) {
            const double *a = out + (h * p.seq_q + i) * p.dim_v, *b = o + h * p.dim_v;
            got = attn_cli_prop_rows_equal(r, "one query at a time", a, b, 1, p.dim_v, attn_cli_prop_tolerance(r));
            if (!got) got = attn_cli_prop_lse_equal(r, "one query at a time", lse + h * p.seq_q + i, l + h, 1, 0);
        }
        free(o), free(l);
        attn_cli_tensors_destroy(&y);
    }
    free(out), free(lse);
    attn_cli_tensors_destroy(&x);
    return got;
}

static int constant_in_mask(struct prop_run *r) {
    attn_problem p = attn_cli_prop_problem(r);
    add_features(r, &p, true);
    p.flags &= ~ATTN_LSE_BASE_2;
    p.mask_dtype = ATTN_F32;
    struct attn_cli_tensors x, y;
    if (attn_cli_prop_make(r, &x, &p, r->seed)) return PROP_FAIL;
    if (attn_cli_prop_make(r, &y, &p, r->seed)) {
        attn_cli_tensors_destroy(&x);
        return PROP_FAIL;
    }
    /* Mask values on a coarse grid, so that adding the constant rounds nothing. */
    int64_t n = attn_cli_prop_count(&x, ATTN_ROLE_MASK);
    double *mask = attn_cli_prop_get(&x, ATTN_ROLE_MASK), constant = prop_below(r, 2) ? 8 : -5;
    for (int64_t k = 0; k < n; k++) mask[k] = isinf(mask[k]) ? mask[k] : nearbyint(mask[k] * 256) / 256;
    attn_cli_prop_put(&x, ATTN_ROLE_MASK, mask);
    for (int64_t k = 0; k < n; k++) mask[k] += constant;
    attn_cli_prop_put(&y, ATTN_ROLE_MASK, mask);
    free(mask);
    int got = attn_cli_prop_execute(r, &x, NULL);
    if (!got) got = attn_cli_prop_execute(r, &y, NULL);
    if (!got) got = same_outputs(r, "a constant added to the mask", &x, &y, constant);
    attn_cli_tensors_destroy(&x), attn_cli_tensors_destroy(&y);
    return got;
}

const struct prop attn_cli_props_dense[] = {
    {"values of 1 give 1", ATTN_OP_SDPA_FWD, ones, 0},
    {"order of keys does not matter", ATTN_OP_SDPA_FWD, permuted_keys, 0},
    {"causal equals a mask", ATTN_OP_SDPA_FWD, causal_is_a_mask, 0},
    {"one packed sequence equals dense", ATTN_OP_SDPA_FWD, packed_is_dense, 0},
    {"paged equals dense", ATTN_OP_SDPA_FWD, paged_is_dense, 0},
    {"queries one by one equal all at once", ATTN_OP_SDPA_FWD, one_by_one, 0},
    {"a constant in the mask moves lse only", ATTN_OP_SDPA_FWD, constant_in_mask, 0},
    {0},
};
