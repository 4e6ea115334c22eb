/* SPDX-License-Identifier: MIT
 * The tester's own sparse MLA attention and distribution, from the formulas of docs/semantics.md: in double, and with
 * every step rounded to a 16-bit dtype. Shares nothing with the library but the contract. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void axpy(double *restrict y, double a, const double *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

bool attn_cli_check_slot(const struct check_case *c, int64_t b, int64_t i, int64_t t, int64_t *key) {
    const attn_problem *p = &c->p;
    if (check_has(c, ATTN_TOPK_LENGTH) && (double)t >= c->t[ATTN_ROLE_TOPK_LENGTH].val[b * p->seq_q + i]) return false;
    *key = (int64_t)c->t[ATTN_ROLE_INDICES].val[(b * p->seq_q + i) * p->topk + t];
    if (*key < 0 || *key >= p->seq_k) return false;
    int64_t stride = p->k_stride ? p->k_stride : 1;
    return !check_has(c, ATTN_CAUSAL) || p->q_start + i + 1 >= stride * (*key + 1);
}

struct slots {
    int64_t n;
    int64_t *slot, *row; /* slot number; row of kv */
    double *times;       /* how many of the slots name that row: they are rounded alike, one summand `times` as large */
    double *s, *rounded;
    double top, top_rounded, score;
};
struct work {
    struct slots l;
    double *norm_kv, *norm_v, *named; /* of each row of kv; `named` is 0 between queries */
    double scale, to_natural;
    int32_t dtype;
};

static void score_head(struct work *w, const struct check_case *c, int64_t row) {
    struct slots *l = &w->l;
    int64_t d = c->p.dim_qk;
    l->top = l->top_rounded = -INFINITY;
    l->score = 0;
    for (int64_t k = 0; k < l->n; k++) {
        double s =
            w->scale * attn_cli_check_dot(c->t[ATTN_ROLE_Q].val + row * d, c->t[ATTN_ROLE_KV].val + l->row[k] * d, d);
        l->s[k] = s;
        l->rounded[k] = attn_cli_check_round(s, w->dtype);
        if (!(s <= l->top) && !isnan(l->top)) l->top = s;
        if (l->rounded[k] > l->top_rounded) l->top_rounded = l->rounded[k];
    }
    const double *q = c->t[ATTN_ROLE_Q].val + row * d;
    double norm_q = sqrt(attn_cli_check_dot(q, q, d)) * fabs(w->scale) / 8; /* as for dense attention: see there */
    for (int64_t k = 0; k < l->n && isfinite(norm_q); k++)
        if (l->s[k] > l->top - 20) l->score = fmax(l->score, fmax(fabs(l->s[k]), norm_q * w->norm_kv[l->row[k]]));
}

static double sink_at(const struct check_case *c, int64_t h) {
    return check_has(c, ATTN_SINK) ? c->t[ATTN_ROLE_SINK].val[h] : -INFINITY;
}

static void raise_peak(struct check_want *w, double x) {
    if (isfinite(x)) w->peak = fmax(w->peak, x * x);
}

static void forward_head(struct work *w, struct check_case *c, int64_t row, int64_t h, bool inputs_only) {
    struct slots *l = &w->l;
    const attn_problem *p = &c->p;
    int64_t d = p->dim_qk, dv = p->dim_v;
    bool plus = inputs_only ? c->modes & CHECK_LSE_PLUS_INF : check_has(c, ATTN_LSE_EMPTY_PLUS_INF);
    struct check_want *o = &c->want[ATTN_ROLE_OUT], *e = &c->want[ATTN_ROLE_LSE], *m = &c->want[ATTN_ROLE_MAX_LOGITS];
    double sink = sink_at(c, h), sum = 0, half_sum = 0, terms = 0;
    for (int64_t k = 0; k < l->n; k++) {
        sum += exp(l->s[k] - l->top);
        half_sum += exp(l->rounded[k] - l->top_rounded);
    }
    double lse = l->n ? (l->top + log(sum)) / w->to_natural : plus ? INFINITY : -INFINITY;
    double *out = inputs_only ? c->t[ATTN_ROLE_OUT].val + row * dv : o->plain + row * dv;
    if (inputs_only) {
        memset(out, 0, (size_t)dv * sizeof *out);
        c->t[ATTN_ROLE_LSE].val[row] = lse;
    } else {
        e->plain[row] = lse;
        m->plain[row] = l->top;
        m->score[row] = o->score[row] = l->score;
        e->score[row] = l->score / w->to_natural; /* in the base of lse, as its error is */
        e->kind[row] = m->kind[row] = CHECK_ROW_NORMAL;
        o->kind[row] = l->n ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
    }
    double whole = sum + exp(sink - l->top), half_whole = half_sum + exp(sink - l->top_rounded);
    for (int64_t k = 0; k < l->n; k++) {
        const double *v = c->t[ATTN_ROLE_KV].val + l->row[k] * d;
        double prob = exp(l->s[k] - l->top) / whole;
        axpy(out, prob, v, dv);
        if (inputs_only) continue;
        if (o->half)
            axpy(o->half + row * dv, attn_cli_check_round(exp(l->rounded[k] - l->top_rounded) / half_whole, w->dtype),
                 v, dv);
        double x = prob * w->norm_v[l->row[k]];
        if (isfinite(x)) terms += x * x * l->times[k];
        raise_peak(o, x * l->times[k]);
    }
    if (inputs_only) return;
    o->terms[row] = sqrt(terms);
    for (int64_t x = 0; o->half && x < dv; x++)
        o->half[row * dv + x] = attn_cli_check_round(o->half[row * dv + x], w->dtype);
}

static void backward_head(struct work *w, struct check_case *c, int64_t row, int64_t h) {
    struct slots *l = &w->l;
    const attn_problem *p = &c->p;
    int64_t d = p->dim_qk, dv = p->dim_v;
    struct check_want *dq = &c->want[ATTN_ROLE_DQ], *dkv = &c->want[ATTN_ROLE_DKV], *ds = &c->want[ATTN_ROLE_DSINK];
    double lse = c->t[ATTN_ROLE_LSE].val[row] * w->to_natural, sink = sink_at(c, h);
    dq->kind[row] = CHECK_ROW_ZERO;
    if (isinf(lse) || !l->n) return;
    dq->kind[row] = CHECK_ROW_NORMAL;
    dq->score[row] = l->score;
    double whole = sink == -INFINITY  ? lse
                   : sink == INFINITY ? INFINITY
                                      : fmax(lse, sink) + log1p(exp(-fabs(lse - sink)));
    if (isnan(lse)) whole = NAN;
    const double *q = c->t[ATTN_ROLE_Q].val + row * d, *dout = c->t[ATTN_ROLE_DOUT].val + row * dv;
    const double *out = c->t[ATTN_ROLE_OUT].val + row * dv;
    double dlse = check_has(c, ATTN_DLSE) ? c->t[ATTN_ROLE_DLSE].val[row] / w->to_natural : 0;
    double norm_q = sqrt(attn_cli_check_dot(q, q, d)), norm_do = sqrt(attn_cli_check_dot(dout, dout, dv));
    double delta = attn_cli_check_dot(out, dout, dv), half_delta = attn_cli_check_round(delta, w->dtype);
    double delta_size = sqrt(attn_cli_check_dot(out, out, dv)) * norm_do + fabs(dlse);
    double terms = 0, noise = 0, pull = 0;
    for (int64_t k = 0; k < l->n; k++) {
        int64_t key = l->row[k];
        const double *kv = c->t[ATTN_ROLE_KV].val + key * d;
        double prob = exp(l->s[k] - whole), half_prob = attn_cli_check_round(exp(l->rounded[k] - whole), w->dtype);
        double dp = attn_cli_check_dot(dout, kv, dv), lse_part = dlse * exp(l->s[k] - lse);
        double g = (prob * (dp - delta) + lse_part) * w->scale;
        double half_g = half_prob * (attn_cli_check_round(dp, w->dtype) - half_delta) + lse_part;
        half_g = attn_cli_check_round(half_g * w->scale, w->dtype);
        double size = fabs(w->scale) * (prob * (norm_do * w->norm_v[key] + delta_size) + fabs(lse_part));
        axpy(dq->plain + row * d, g, kv, d);
        axpy(dkv->plain + key * d, g, q, d);
        axpy(dkv->plain + key * d, prob, dout, dv);
        if (dq->half) {
            axpy(dq->half + row * d, half_g, kv, d);
            axpy(dkv->half + key * d, half_g, q, d);
            axpy(dkv->half + key * d, half_prob, dout, dv);
        }
        double a = g * w->norm_kv[key], e = size * w->norm_kv[key], f = g * norm_q, s = size * norm_q,
               o = prob * norm_do;
        terms += a * a * l->times[k];
        raise_peak(dq, a * l->times[k]);
        raise_peak(dkv, fmax(fabs(f), o) * l->times[k]);
        noise += e * e;
        pull += prob * w->norm_kv[key] * fabs(w->scale);
        if (isfinite(f) && isfinite(o)) dkv->terms[key] += (f * f + o * o) * l->times[k];
        if (isfinite(s)) dkv->noise[key] += s * s;
        dkv->kind[key] = CHECK_ROW_NORMAL;
        dkv->score[key] = fmax(dkv->score[key], l->score);
    }
    if (isfinite(terms)) dq->terms[row] = sqrt(terms);
    if (isfinite(noise)) dq->noise[row] = sqrt(noise) + delta_size * pull;
    if (ds->plain && (sink > -INFINITY || isnan(lse))) {
        double part = sink == INFINITY && !isnan(lse) ? 1 : exp(sink - whole), x = -part * delta;
        ds->plain[h] += x;
        ds->terms[h] += x * x;
        ds->noise[h] += part * delta_size;
        ds->score[h] = fmax(ds->score[h], l->score);
    }
}

/* a[t] += exp(s - lse), with the lse that excludes the sink. */
static void add_dist(struct work *w, struct check_case *c, int64_t row, int64_t dist_row) {
    struct slots *l = &w->l;
    struct check_want *o = &c->want[ATTN_ROLE_DIST];
    double lse = c->t[ATTN_ROLE_LSE].val[row] * w->to_natural;
    if (isinf(lse)) return;
    for (int64_t k = 0; k < l->n; k++) o->plain[dist_row * o->cols + l->slot[k]] += exp(l->s[k] - lse);
    o->score[dist_row] = fmax(o->score[dist_row], l->score);
}

static void finish_dist(struct check_case *c, int64_t row, int64_t n_valid) {
    struct check_want *o = &c->want[ATTN_ROLE_DIST];
    double sum = 0, *a = o->plain + row * o->cols;
    for (int64_t t = 0; t < o->cols; t++) sum += a[t];
    o->kind[row] = n_valid ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
    double divisor = c->p.dist_norm == ATTN_DIST_MEAN            ? (double)c->p.heads_q
                     : c->p.dist_norm == ATTN_DIST_L1 && sum > 0 ? sum
                                                                 : 1;
    if (c->p.dist_norm == ATTN_DIST_L1 && isnan(sum)) divisor = NAN;
    for (int64_t t = 0; t < o->cols; t++) a[t] = a[t] == 0 && !isnan(divisor) ? 0 : a[t] / divisor;
}

/* One head's share of what the operator computes, for the slots in w->l. */
static void run_head(struct work *w, struct check_case *c, int64_t row, int64_t dist_row, int64_t h, bool inputs_only) {
    score_head(w, c, row);
    if (inputs_only || c->p.op == ATTN_OP_MLA_FWD) {
        forward_head(w, c, row, h, inputs_only);
        return;
    }
    if (c->p.op == ATTN_OP_MLA_BWD) backward_head(w, c, row, h);
    if (c->want[ATTN_ROLE_DIST].plain) add_dist(w, c, row, dist_row);
}

/* The query's valid slots. */
static void list_slots(struct work *w, const struct check_case *c, int64_t b, int64_t i) {
    struct slots *l = &w->l;
    l->n = 0;
    for (int64_t t = 0, key; t < c->p.topk; t++) {
        if (!attn_cli_check_slot(c, b, i, t, &key)) continue;
        l->slot[l->n] = t;
        l->row[l->n++] = b * c->p.seq_k + key;
    }
    for (int64_t k = 0; k < l->n; k++) w->named[l->row[k]]++;
    for (int64_t k = 0; k < l->n; k++) l->times[k] = w->named[l->row[k]];
    for (int64_t k = 0; k < l->n; k++) w->named[l->row[k]] = 0;
}

static double *norms(const struct check_tensor *t, int64_t cols) {
    int64_t rows = attn_cli_check_rows(&t->view), d = t->view.shape[t->view.rank - 1];
    double *out = calloc((size_t)rows + 1, sizeof *out);
    for (int64_t r = 0; out && r < rows; r++) {
        double x = sqrt(attn_cli_check_dot(t->val + r * d, t->val + r * d, cols));
        out[r] = isfinite(x) ? x : 0;
    }
    return out;
}

static void start(struct check_case *c) {
    struct check_want *o = &c->want[ATTN_ROLE_DKV];
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        if (c->want[role].kind) memset(c->want[role].kind, CHECK_ROW_ZERO, (size_t)c->want[role].rows);
    if (o->plain && check_has(c, ATTN_ACCUMULATE)) {
        size_t bytes = (size_t)(o->rows * o->cols) * sizeof *o->plain;
        memcpy(o->plain, c->t[ATTN_ROLE_DKV].val, bytes);
        if (o->half) memcpy(o->half, o->plain, bytes);
    }
}

static void finish(struct check_case *c) {
    struct check_want *dq = &c->want[ATTN_ROLE_DQ], *dkv = &c->want[ATTN_ROLE_DKV], *ds = &c->want[ATTN_ROLE_DSINK];
    for (int64_t r = 0; dkv->plain && r < dkv->rows; r++) {
        dkv->terms[r] = sqrt(dkv->terms[r]);
        dkv->noise[r] = sqrt(dkv->noise[r]);
    }
    for (int64_t x = 0; dq->half && x < dq->rows * dq->cols; x++)
        dq->half[x] = attn_cli_check_round(dq->half[x], c->p.dtype);
    if (dkv->half && c->t[ATTN_ROLE_DKV].view.dtype != ATTN_F32)
        for (int64_t x = 0; x < dkv->rows * dkv->cols; x++)
            dkv->half[x] = attn_cli_check_round(dkv->half[x], c->p.dtype);
    for (int64_t r = 0; ds->plain && r < ds->rows; r++) {
        ds->terms[r] = sqrt(ds->terms[r]);
        ds->kind[r] = !(ds->plain[r] == 0) || ds->terms[r] > 0 || ds->noise[r] > 0 ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
    }
}

int attn_cli_check_plain_sparse(struct check_case *c, bool inputs_only) {
    const attn_problem *p = &c->p;
    struct work w = {.scale = check_has(c, ATTN_SCALE) ? p->scale : 1 / sqrt((double)p->dim_qk)};
    w.dtype = check_half_dtype(p->dtype) ? p->dtype : 0;
    w.to_natural = check_has(c, ATTN_LSE_BASE_2) ? log(2.0) : 1;
    w.norm_kv = norms(&c->t[ATTN_ROLE_KV], p->dim_qk);
    w.norm_v = norms(&c->t[ATTN_ROLE_KV], p->dim_v);
    w.named = calloc((size_t)(p->batch * p->seq_k) + 1, sizeof *w.named);
    int64_t *places = calloc((size_t)p->topk * 2, sizeof *places);
    double *lines = calloc((size_t)p->topk * 3, sizeof *lines);
    int failed = !w.norm_kv || !w.norm_v || !w.named || !places || !lines;
    if (!failed) {
        w.l.slot = places, w.l.row = places + p->topk;
        w.l.s = lines, w.l.rounded = lines + p->topk, w.l.times = lines + 2 * p->topk;
        if (!inputs_only) start(c);
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t i = 0; i < p->seq_q; i++) {
                int64_t place = b * p->seq_q + i;
                list_slots(&w, c, b, i);
                for (int64_t h = 0; h < p->heads_q; h++) run_head(&w, c, place * p->heads_q + h, place, h, inputs_only);
                if (!inputs_only && c->want[ATTN_ROLE_DIST].plain) finish_dist(c, place, w.l.n);
            }
        if (!inputs_only && p->op == ATTN_OP_MLA_BWD) finish(c);
    }
    free(places), free(lines), free(w.norm_kv), free(w.norm_v), free(w.named);
    return failed ? -1 : 0;
}
