/* SPDX-License-Identifier: MIT
 * Indices, lengths and values of sparse cases: every kind of row that a caller may hand over, valid or not. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t below(struct check_case *c, int64_t n) { return attn_cli_rng_below(&c->rng, n); }

static void fill_lengths(struct check_case *c) {
    static const int64_t edges[] = {0, 1, 63, 64, 65};
    struct check_tensor *t = &c->t[ATTN_ROLE_TOPK_LENGTH];
    for (int64_t x = 0; x < t->n; x++) {
        int64_t k = below(c, 6), topk = c->p.topk, n = below(c, topk + 1);
        if (c->modes & CHECK_TOPK_EDGES) n = k == 5 ? topk : edges[k] < topk ? edges[k] : topk;
        t->val[x] = (double)n;
        if ((c->modes & CHECK_WILD_LENGTHS) && below(c, 3) == 0) t->val[x] = attn_cli_check_wild(c, topk, 100);
    }
}

static double beyond(double key) { return key > INT32_MAX ? -1 : key; }

static double bad_index(struct check_case *c) {
    switch (below(c, 6)) {
    case 0: return -1;
    case 1: return beyond((double)c->p.seq_k);
    case 2: return INT32_MAX;
    case 3: return INT32_MIN;
    case 4: return beyond((double)(c->p.seq_k + 1 + below(c, 1000)));
    default: return (double)(-2 - below(c, 1000));
    }
}

/* The largest key that query i may name, or SK - 1. Rows where no key is admissible name keys that causality hides. */
static int64_t last_key(const struct check_case *c, int64_t i) {
    int64_t stride = c->p.k_stride ? c->p.k_stride : 1, last = c->p.seq_k - 1;
    if (check_has(c, ATTN_CAUSAL) && (c->p.q_start + i + 1) / stride - 1 < last)
        last = (c->p.q_start + i + 1) / stride - 1;
    return last;
}

/* A list with one slot that is not valid, one case in eight. No draw: numbers of a seed stay. */
bool attn_cli_check_hole(const struct check_case *c) { return !check_dense(&c->p) && (c->seed >> 46 & 7) == 5; }

static void fill_row(struct check_case *c, double *idx, int64_t i, int64_t shared) {
    const attn_problem *p = &c->p;
    int64_t n = p->topk, keys = last_key(c, i) + 1, repeat = 1;
    if (keys < 1 || below(c, 4) == 0) keys = p->seq_k; /* also keys past the diagonal */
    if (c->modes & CHECK_TWICE) repeat = 2;
    if (c->modes & CHECK_MANY_TIMES) repeat = 64;
    int64_t key = 0, step = 1 + 2 * below(c, keys / 2 + 1); /* odd steps: few repetitions by chance */
    for (int64_t t = 0; t < n; t++) {
        if (t % repeat == 0) key = keys > 0 ? (repeat > 1 ? below(c, keys) : (key + step) % keys) : 0;
        idx[t] = (double)key;
    }
    if (c->modes & CHECK_ONE_KEY)
        for (int64_t t = 0; t < n; t++) idx[t] = (double)shared;
    bool dead = (c->modes & CHECK_EMPTY_ROWS) && below(c, 3) == 0,
         lone = (c->modes & CHECK_ONE_SLOT) && below(c, 3) == 0;
    const bool hole = attn_cli_check_hole(c) && n > 0;
    int64_t keep = below(c, n), bad = (c->modes & CHECK_BAD_INDICES) ? below(c, 3) * 20 : 0;
    for (int64_t t = 0; t < n; t++)
        if (dead || (lone && t != keep) || below(c, 100) < bad) idx[t] = bad_index(c);
    if (hole) idx[(c->seed + (uint64_t)i * 5) % (uint64_t)n] = -1;
    if (p->seq_k == 0)
        for (int64_t t = 0; t < n; t++) idx[t] = bad_index(c);
}

static int poison_unnamed(struct check_case *c) {
    const attn_problem *p = &c->p;
    struct check_tensor *kv = &c->t[ATTN_ROLE_KV];
    if (kv->n == 0) return 0;
    if (kv->broadcast[0] || kv->broadcast[1]) return 0; /* a row that is named may be one that is not */
    uint8_t *named = calloc((size_t)(p->batch * p->seq_k) + 1, 1);
    if (!named) return -1;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->seq_q; i++)
            for (int64_t t = 0, key; t < p->topk; t++)
                if (attn_cli_check_slot(c, b, i, t, &key)) named[b * p->seq_k + key] = 1;
    for (int64_t r = 0; r < p->batch * p->seq_k; r++)
        if (!named[r]) {
            double x = below(c, 3) ? NAN : INFINITY;
            for (int64_t d = 0; d < p->dim_qk; d++) kv->val[r * p->dim_qk + d] = x;
        }
    free(named);
    return 0;
}

/* dout of the last quarter of the heads is large, one case in eight: whoever brings all heads to one power of two has
 * to look at all of them. No draw: numbers of a seed stay. */
static bool has_uneven_heads(const struct check_case *c) {
    return c->t[ATTN_ROLE_DOUT].use && check_half_dtype(c->p.dtype) && (c->seed >> 46 & 7) == 5 &&
           !(c->modes & CHECK_BAD_DOUT);
}
static void make_uneven_heads(struct check_case *c) {
    struct check_tensor *t = &c->t[ATTN_ROLE_DOUT];
    const int64_t heads = c->p.heads_q, cols = t->view.shape[t->view.rank - 1];
    for (int64_t x = 0; x < t->n; x++)
        if (x / cols % heads >= heads - heads / 4) t->val[x] *= 0x1p9;
}

static void fill_values(struct check_case *c) {
    const attn_problem *p = &c->p;
    struct check_tensor *q = &c->t[ATTN_ROLE_Q], *kv = &c->t[ATTN_ROLE_KV], *sink = &c->t[ATTN_ROLE_SINK];
    double scale = check_has(c, ATTN_SCALE) ? p->scale : 1 / sqrt((double)p->dim_qk);
    double spread = (c->modes & CHECK_HUGE) ? (below(c, 2) ? 4 : 15) : 1;
    attn_cli_check_normal(&c->rng, q->val, q->n, (c->modes & CHECK_EQUAL_SCORES) ? 0 : spread);
    attn_cli_check_normal(&c->rng, kv->val, kv->n, spread);
    if ((c->modes & CHECK_FAR_NEGATIVE) && scale != 0) {
        double a = sqrt(200 / (fabs(scale) * (double)p->dim_qk)), noise = 0.02 * a;
        for (int64_t x = 0; x < q->n; x++) q->val[x] = a + q->val[x] * noise;
        for (int64_t x = 0; x < kv->n; x++) kv->val[x] = (scale > 0 ? -a : a) + kv->val[x] * noise;
    }
    attn_cli_check_normal(&c->rng, sink->val, sink->n, 2);
    if ((c->modes & CHECK_SINK_PLUS_INF) && sink->n) sink->val[below(c, sink->n)] = INFINITY;
    if ((c->modes & CHECK_SINK_MINUS_INF) && sink->n) sink->val[below(c, sink->n)] = -INFINITY;
    static const int32_t rest[] = {ATTN_ROLE_DOUT, ATTN_ROLE_DLSE, ATTN_ROLE_DKV};
    for (int k = 0; k < 3; k++)
        if (c->t[rest[k]].use) attn_cli_check_normal(&c->rng, c->t[rest[k]].val, c->t[rest[k]].n, 1);
    attn_cli_check_bad_dout(c);
    if (has_uneven_heads(c)) make_uneven_heads(c);
    if ((c->modes & CHECK_NAN_QUERY) && q->n) q->val[below(c, q->n)] = NAN;
    if ((c->modes & CHECK_NAN_KEY) && kv->n) kv->val[below(c, kv->n)] = NAN;
}

/* --overlap: lists that share keys take the place of those drawn above, in valid slots alone. Slots that are bad or
 * hidden by causality stay, and keys that stand twice or many times in a row do. */
static int share_keys(struct check_case *c) {
    const attn_problem *p = &c->p;
    double *idx = c->t[ATTN_ROLE_INDICES].val;
    int32_t *lists = malloc(((size_t)c->t[ATTN_ROLE_INDICES].n + 1) * sizeof *lists);
    if (!lists || attn_cli_overlap_fill(&c->overlap, p, lists, c->seed)) {
        free(lists);
        return -1;
    }
    const int64_t repeat = (c->modes & CHECK_MANY_TIMES) ? 64 : (c->modes & CHECK_TWICE) ? 2 : 1;
    for (int64_t row = 0; row < p->batch * p->seq_q; row++)
        for (int64_t t = 0; t < p->topk; t++) {
            const int32_t key = lists[row * p->topk + t - t % repeat];
            double *slot = &idx[row * p->topk + t];
            if (key >= 0 && *slot >= 0 && *slot <= (double)last_key(c, row % p->seq_q)) *slot = key;
        }
    free(lists);
    return 0;
}

int attn_cli_check_data_sparse(struct check_case *c) {
    const attn_problem *p = &c->p;
    struct check_tensor *idx = &c->t[ATTN_ROLE_INDICES];
    if (check_has(c, ATTN_TOPK_LENGTH)) fill_lengths(c);
    int64_t shared = below(c, p->seq_k);
    for (int64_t row = 0; row < p->batch * p->seq_q; row++)
        fill_row(c, idx->val + row * p->topk, row % p->seq_q, shared);
    if (c->overlap.kind && !(c->modes & CHECK_ONE_KEY) && share_keys(c)) return -1;
    if (attn_cli_check_store(idx)) return -1;
    fill_values(c);
    if ((c->modes & CHECK_HIDDEN_NAN) && poison_unnamed(c)) return -1;
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_tensor *t = &c->t[role];
        bool computed = role == ATTN_ROLE_OUT || role == ATTN_ROLE_LSE;
        if ((t->use == ATTN_USE_IN && !computed) || t->use == ATTN_USE_INOUT_OPTIONAL)
            if (attn_cli_check_store(t)) return -1;
    }
    return 0;
}
