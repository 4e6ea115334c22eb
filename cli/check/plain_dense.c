/* SPDX-License-Identifier: MIT
 * The tester's own dense attention, written from the formulas of docs/semantics.md and sharing nothing with the
 * library. One pass gives the answer in double (`plain`), the three-step answer in which scores, probabilities and
 * products are each rounded to a 16-bit dtype (`half`), and the magnitudes that the bounds are made of
 * (docs/numerics.md). */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double attn_cli_check_dot(const double *a, const double *b, int64_t n) {
    double s[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) s[k] += a[i + k] * b[i + k];
    for (; i < n; i++) s[0] += a[i] * b[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* Summed one by one, thousands of equal numbers would all be rounded the same way: this many form a partial sum. */
enum { SUMMANDS = 64 };
struct sum {
    double all, part;
    int n;
};
static void add(struct sum *s, double x) {
    s->part += x;
    if (++s->n < SUMMANDS) return;
    s->all += s->part, s->part = 0, s->n = 0;
}
static double sum_of(const struct sum *s) { return s->all + s->part; }
static void axpy(double *restrict y, double a, const double *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

int64_t attn_cli_check_q_row(const struct check_case *c, int64_t b, int64_t h, int64_t i) {
    if (check_has(c, ATTN_PACKED)) return h * c->p.total_q + c->seq[b].q0 + i;
    return (b * c->p.heads_q + h) * c->p.seq_q + i;
}

int64_t attn_cli_check_k_row(const struct check_case *c, int64_t b, int64_t hk, int64_t j) {
    const attn_problem *p = &c->p;
    if (check_has(c, ATTN_PAGED)) {
        int64_t slot = j / p->page_size;
        if (slot >= p->max_pages) return -1;
        int64_t page = (int64_t)c->t[ATTN_ROLE_BLOCK_TABLE].val[b * p->max_pages + slot];
        if (page < 0 || page >= p->n_pages) return -1;
        return (page * p->heads_k + hk) * p->page_size + j % p->page_size;
    }
    if (check_has(c, ATTN_PACKED)) return hk * p->total_k + c->seq[b].k0 + j;
    return (b * p->heads_k + hk) * p->seq_k + j;
}

/* Rule 5. The window bounds may be any 64-bit value, hence the wide type. */
bool attn_cli_check_inside(const struct check_case *c, const struct check_seq *s, int64_t i, int64_t j) {
    const attn_problem *p = &c->p;
    __int128 diagonal = (__int128)i + (check_has(c, ATTN_BOTTOM_RIGHT) ? s->sk - s->sq : 0);
    if (check_has(c, ATTN_WINDOW_LEFT) && j < diagonal - p->window_left) return false;
    if (check_has(c, ATTN_CAUSAL)) return j <= diagonal; /* whatever window_right says */
    return !(check_has(c, ATTN_WINDOW_RIGHT) && j > diagonal + p->window_right);
}

static int64_t mask_at(const attn_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return ((b * p->heads_q + h) * p->seq_q + i) * p->seq_k + j;
}

bool attn_cli_check_visible(const struct check_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    const struct check_seq *s = &c->seq[b];
    if (i >= s->sq || j >= s->sk || !attn_cli_check_inside(c, s, i, j)) return false;
    if (attn_cli_check_k_row(c, b, 0, j) < 0) return false;
    return !(c->p.mask_dtype == ATTN_BOOL && c->t[ATTN_ROLE_MASK].val[mask_at(&c->p, b, h, i, j)] == 0);
}

/* One query row against all keys of its sequence. */
struct line {
    int64_t n, visible;
    double *s, *rounded, *bend, *prob, *half_prob; /* bend: derivative of the softcap */
    int64_t *key;                                  /* row of k, or -1 = hidden */
    double top, top_rounded, score;
};
/* dS of summands that a kernel rounds to 16 bits, weighed by the summands' norms. */
struct steps {
    double sum, first, second; /* of the norms; times dS; times its square */
};
static void add_step(struct steps *s, double ds, double norm) {
    s->sum += norm, s->first += norm * ds, s->second += norm * ds * ds;
}
struct work {
    const struct check_case *c;
    struct line line;
    double *norm_q, *norm_k, *norm_v, *norm_o, *norm_do;
    /* Noise of one row of dout or one column of v, which all queries share, or of one row of v, which all keys share:
     * added up along q or k. */
    double *along_q, *squares, *along_k; /* rows like dk's; the same without direction; one row */
    struct steps *steps;                 /* of a head's dS with each key */
    double *few_steps;                   /* of all heads: what roundings() takes */
    double *lost_k;                      /* dk's rows: plain sum of what they lose */
    double *alike_k, *alike_q;           /* of it what may err in one direction: vectors; of a row of dq */
    double bound_ds;                     /* of the key head, which f16 rows make its factor of; else 0 */
    bool one_dout, one_v, one_column;
    double heads_alike;        /* heads of a group that share rows of dout one by one, else 1 */
    bool keys_alike, ds_alike; /* roundings of P, and of dS, of the keys of a row */
    double *part;              /* of a sum of values */
    double scale, to_natural;  /* factor that turns the caller's lse into base e */
    int32_t dtype;             /* F16 or BF16, or 0 = no half */
    bool narrow;               /* kernels may round P to 16 or 8 bits */
};

static double slope_at(const struct check_case *c, int64_t b, int64_t h) {
    const struct check_tensor *t = &c->t[ATTN_ROLE_ALIBI];
    bool per_batch = t->view.rank == 2 && t->view.shape[0] > 1;
    return t->val[per_batch ? b * c->p.heads_q + h : h];
}

static double alibi_distance(const struct check_case *c, int64_t b, int64_t i, int64_t j) {
    const struct check_seq *s = &c->seq[b];
    double d = (double)(j - (i + (check_has(c, ATTN_BOTTOM_RIGHT) ? s->sk - s->sq : 0)));
    return c->p.alibi == ATTN_ALIBI_LINEAR ? d : -fabs(d);
}

static void score_line(struct work *w, int64_t b, int64_t h, int64_t i) {
    const struct check_case *c = w->c;
    const attn_problem *p = &c->p;
    struct line *l = &w->line;
    int64_t hk = h / (p->heads_q / p->heads_k);
    const double *q = c->t[ATTN_ROLE_Q].val + attn_cli_check_q_row(c, b, h, i) * p->dim_qk;
    l->n = c->seq[b].sk;
    l->visible = 0;
    l->top = l->top_rounded = -INFINITY;
    l->score = 0;
    for (int64_t j = 0; j < l->n; j++) {
        l->s[j] = l->rounded[j] = -INFINITY;
        l->key[j] = -1;
        if (!attn_cli_check_visible(c, b, h, i, j)) continue;
        int64_t key = attn_cli_check_k_row(c, b, hk, j);
        double s = w->scale * attn_cli_check_dot(q, c->t[ATTN_ROLE_K].val + key * p->dim_qk, p->dim_qk);
        l->bend[j] = 1;
        if (p->softcap > 0) {
            double t = tanh(s / p->softcap);
            s = p->softcap * t;
            l->bend[j] = 1 - t * t;
        }
        if (p->alibi) s += slope_at(c, b, h) * alibi_distance(c, b, i, j);
        if (p->mask_dtype && p->mask_dtype != ATTN_BOOL) s += c->t[ATTN_ROLE_MASK].val[mask_at(p, b, h, i, j)];
        if (s == -INFINITY) continue;
        l->key[j] = key;
        l->visible++;
        l->s[j] = s;
        l->rounded[j] = attn_cli_check_round(s, w->dtype);
        if (isnan(s) || s > l->top) l->top = s; /* a NaN stays: no comparison with it succeeds */
        if (l->rounded[j] > l->top_rounded) l->top_rounded = l->rounded[j];
    }
    /* Size of what was added up to a score that takes part in the row. Rounding of the partial sums of q.k goes with
     * ||q|| ||k||, which counts where it is far above the score itself, or, where all products have one sign, with the
     * square root of their number. */
    const double chain = fmax(1, sqrt((double)p->dim_qk) / 8);
    for (int64_t j = 0; j < l->n && isfinite(l->top); j++) {
        if (l->key[j] < 0 || l->s[j] < l->top - 20) continue;
        double parts = fabs(w->scale * attn_cli_check_dot(q, c->t[ATTN_ROLE_K].val + l->key[j] * p->dim_qk, p->dim_qk));
        parts = p->softcap > 0 && !isfinite(parts) ? p->softcap : parts * chain; /* of infinities in q or k */
        if (p->alibi) parts += fabs(slope_at(c, b, h) * alibi_distance(c, b, i, j));
        if (p->mask_dtype && p->mask_dtype != ATTN_BOOL)
            parts += fabs(c->t[ATTN_ROLE_MASK].val[mask_at(p, b, h, i, j)]);
        double products = fabs(w->scale) * w->norm_q[attn_cli_check_q_row(c, b, h, i)] * w->norm_k[l->key[j]] / 8;
        l->score = fmax(l->score, fmax(parts, products));
    }
}

static double log_add(double a, double b) {
    if (a == -INFINITY) return b;
    if (b == -INFINITY) return a;
    double m = a > b ? a : b;
    if (m == INFINITY) return isnan(a) || isnan(b) ? NAN : m;
    return m + log(exp(a - m) + exp(b - m));
}

/* The axis, counted from the innermost, has stride 0: its rows are one row. */
static bool is_one_row(const struct check_case *c, int32_t role, int axis) {
    const struct check_tensor *t = &c->t[role];
    return t->broadcast[t->view.rank - 1 - axis];
}
static bool are_alike(const struct check_case *c, int32_t a, int32_t b, int axis) {
    return is_one_row(c, a, axis) && is_one_row(c, b, axis); /* errors of what is made of both are equal */
}

/* What rounding the summands to 16 bits may add up to, in units of one's relative error: numerics.md. Summands are
 * multiples of rows of `role`; alike: they may all be rounded the same way; few_steps: sum_of_few_steps. */
static double roundings(const struct check_case *c, int32_t role, double sum, double root, double few_steps,
                        int64_t cols, bool alike) {
    enum { FEW = 30 };                    /* from here on the second is below `root`, which the bound has anyway */
    if (is_one_row(c, role, 1)) cols = 1; /* one direction */
    const double independent = root * (1 + 4 / sqrt((double)cols)) / sqrt(3.0),
                 dependent = few_steps * fmin(1, 2 / sqrt((double)cols));
    return alike && cols < FEW ? sum : fmin(sum, fmax(independent, dependent));
}

/* Most that a dS in f16 loses, which one factor brings to the bound's size, and a row of such: numerics.md. */
static double loss_of(const struct work *w, double ds) {
    return fabs(ds) < 0x1p-28 * w->bound_ds ? fmin(fabs(ds), 0x1p-39 * w->bound_ds) : 0;
}
static double row_loss(double sum, double squares, const double *alike, int64_t cols) {
    return fmin(sum, sqrt(squares) * (1 + 4 / sqrt((double)cols)) + sqrt(attn_cli_check_dot(alike, alike, cols)));
}
static double largest_ds(const struct work *w, int64_t b, int64_t hk) {
    const struct check_case *c = w->c;
    const int64_t group = c->p.heads_q / c->p.heads_k, dv = c->p.dim_v;
    double most_do = 0, most_v = 0, shift = 0;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
        for (int64_t i = 0; i < c->seq[b].sq; i++) {
            const int64_t row = attn_cli_check_q_row(c, b, h, i);
            if (isinf(c->t[ATTN_ROLE_LSE].val[row])) continue;
            double x =
                fabs(attn_cli_check_dot(c->t[ATTN_ROLE_OUT].val + row * dv, c->t[ATTN_ROLE_DOUT].val + row * dv, dv));
            if (check_has(c, ATTN_DLSE)) x += fabs(c->t[ATTN_ROLE_DLSE].val[row] / w->to_natural);
            if (isfinite(x)) shift = fmax(shift, x);
            most_do = fmax(most_do, w->norm_do[row]);
        }
    for (int64_t j = 0; j < c->seq[b].sk; j++) {
        const int64_t key = attn_cli_check_k_row(c, b, hk, j);
        if (key >= 0) most_v = fmax(most_v, w->norm_v[key]);
    }
    return most_do * most_v + shift;
}

/* The part of the summands' plain sum that their roundings may reach for lying on few steps of the type, where which
 * way each is rounded follows from the row that it is multiplied with. */
static double sum_of_few_steps(const struct steps *s, int32_t dtype) {
    if (!(s->sum > 0) || !isfinite(s->second)) return 0;
    const double mean = s->first / s->sum, spread = sqrt(fmax(0, s->second / s->sum - mean * mean)),
                 step = (dtype == ATTN_F16 ? 0x1p-10 : 0x1p-7) * fabs(mean);
    return 2 * s->sum * step / fmax(2 * step, step + sqrt(12.0) * spread);
}

static double sink_at(const struct check_case *c, int64_t h) {
    return check_has(c, ATTN_SINK) ? c->t[ATTN_ROLE_SINK].val[h] : -INFINITY;
}

/* Probabilities of the line from its own scores; returns the natural lse without the sink. */
static double softmax_line(struct work *w, int64_t h) {
    struct line *l = &w->line;
    double sink = sink_at(w->c, h);
    struct sum sums = {0}, half_sums = {0}, own = {0};
    double m = sink > l->top ? sink : l->top, mh = sink > l->top_rounded ? sink : l->top_rounded;
    for (int64_t j = 0; j < l->n; j++) {
        l->prob[j] = l->key[j] < 0 ? 0 : exp(l->s[j] - m);
        l->half_prob[j] = l->key[j] < 0 ? 0 : exp(l->rounded[j] - mh);
        add(&sums, l->prob[j]), add(&half_sums, l->half_prob[j]);
    }
    const double sum = sum_of(&sums), half_sum = sum_of(&half_sums);
    double rest = sink == -INFINITY ? 0 : exp(sink - m), half_rest = sink == -INFINITY ? 0 : exp(sink - mh);
    if (sink == INFINITY && !isnan(l->top)) rest = half_rest = 1; /* the sink takes everything */
    for (int64_t j = 0; j < l->n; j++) {
        l->prob[j] /= sum + rest;
        l->half_prob[j] = attn_cli_check_round(l->half_prob[j] / (half_sum + half_rest), w->dtype);
    }
    for (int64_t j = 0; j < l->n; j++) /* lse without the sink, even where the sink is far above every score */
        if (l->key[j] >= 0) add(&own, exp(l->s[j] - l->top));
    return l->top + log(sum_of(&own));
}

static void put_lse(struct check_case *c, int64_t row, double lse, double score) {
    static const int32_t roles[] = {ATTN_ROLE_LSE, ATTN_ROLE_LSE_ROUNDED};
    for (int k = 0; k < 2; k++) {
        struct check_want *o = &c->want[roles[k]];
        if (!o->plain) continue;
        o->plain[row] = lse;
        o->score[row] = score;
        o->kind[row] = CHECK_ROW_NORMAL;
    }
}

static void put_max(struct check_case *c, int64_t row, double max, double score) {
    struct check_want *o = &c->want[ATTN_ROLE_MAX_LOGITS];
    if (!o->plain) return;
    o->plain[row] = max == INFINITY ? NAN : max; /* as lse is of such a row */
    o->score[row] = score;
    o->kind[row] = CHECK_ROW_NORMAL;
}

/* out += the line's probabilities times V. */
static void weigh(const struct work *w, const double *prob, double *out) {
    const struct line *l = &w->line;
    const int64_t dv = w->c->p.dim_v;
    for (int64_t j0 = 0; j0 < l->n; j0 += SUMMANDS) {
        memset(w->part, 0, (size_t)dv * sizeof *w->part);
        for (int64_t j = j0; j < l->n && j < j0 + SUMMANDS; j++)
            if (l->key[j] >= 0) axpy(w->part, prob[j], w->c->t[ATTN_ROLE_V].val + l->key[j] * dv, dv);
        axpy(out, 1, w->part, dv);
    }
}

static void forward_row(struct work *w, struct check_case *c, int64_t b, int64_t h, int64_t i, bool inputs_only) {
    const attn_problem *p = &c->p;
    int64_t row = attn_cli_check_q_row(c, b, h, i), dv = p->dim_v;
    bool live = i < c->seq[b].sq;
    if (live) score_line(w, b, h, i);
    struct line *l = &w->line;
    bool filled = live && l->visible > 0,
         plus = inputs_only ? c->modes & CHECK_LSE_PLUS_INF : check_has(c, ATTN_LSE_EMPTY_PLUS_INF);
    double lse = filled ? softmax_line(w, h) : -INFINITY;
    /* A query that sees nothing still has its sink; a row past seqlens_q has not even that. */
    if (live && check_has(c, ATTN_LSE_WITH_SINK)) lse = log_add(lse, sink_at(c, h));
    lse = lse == -INFINITY ? (plus ? INFINITY : lse) : lse / w->to_natural;
    if (inputs_only) {
        double *out = c->t[ATTN_ROLE_OUT].val + row * dv;
        c->t[ATTN_ROLE_LSE].val[row] = lse;
        for (int64_t x = 0; x < dv; x++) out[x] = 0;
        if (filled) weigh(w, l->prob, out);
        return;
    }
    put_lse(c, row, lse, filled ? l->score / w->to_natural : 0); /* in the base of lse, as its error is */
    put_max(c, row, filled ? l->top : -INFINITY, filled ? l->score : 0);
    struct check_want *o = &c->want[ATTN_ROLE_OUT];
    o->kind[row] = filled ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
    if (!filled) return;
    o->score[row] = l->score;
    weigh(w, l->prob, o->plain + row * dv);
    if (o->half) weigh(w, l->half_prob, o->half + row * dv);
    double terms = 0, sum = 0;
    for (int64_t j = 0; j < l->n; j++) {
        if (l->key[j] < 0) continue;
        double x = l->prob[j] * w->norm_v[l->key[j]];
        if (isfinite(x)) terms += x * x, sum += x;
    }
    /* Probabilities that are close to each other round alike, by up to a quarter of the row bound: see numerics.md. */
    o->terms[row] = w->narrow ? fmax(sqrt(terms), sum / 3) : sqrt(terms);
    if (w->narrow) o->roundings[row] = roundings(c, ATTN_ROLE_V, sum, sqrt(terms), 0, dv, w->keys_alike);
    for (int64_t x = 0; o->half && x < dv; x++)
        o->half[row * dv + x] = attn_cli_check_round(o->half[row * dv + x], w->dtype);
}

/* Its squared norm; leaves zeros. */
static double take_square(double *x, int64_t n) {
    double square = attn_cli_check_dot(x, x, n);
    memset(x, 0, (size_t)n * sizeof *x);
    return square;
}

/* One backward row: P from the given lse, then every gradient that the pair (query, key) touches. */
static void backward_row(struct work *w, struct check_case *c, int64_t b, int64_t h, int64_t i) {
    const attn_problem *p = &c->p;
    struct line *l = &w->line;
    int64_t row = attn_cli_check_q_row(c, b, h, i), d = p->dim_qk, dv = p->dim_v;
    struct check_want *dq = &c->want[ATTN_ROLE_DQ], *dk = &c->want[ATTN_ROLE_DK], *dvw = &c->want[ATTN_ROLE_DV];
    struct check_want *dm = &c->want[ATTN_ROLE_DMASK], *da = &c->want[ATTN_ROLE_DALIBI],
                      *ds = &c->want[ATTN_ROLE_DSINK];
    dq->kind[row] = CHECK_ROW_ZERO;
    double lse = c->t[ATTN_ROLE_LSE].val[row] * w->to_natural;
    if (i >= c->seq[b].sq || isinf(lse)) return;
    score_line(w, b, h, i);
    if (!l->visible && !check_has(c, ATTN_LSE_WITH_SINK)) return;
    dq->kind[row] = l->visible ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
    dq->score[row] = l->score;
    bool lse_has_sink = check_has(c, ATTN_LSE_WITH_SINK);
    double sink = sink_at(c, h), with_sink = lse_has_sink ? lse : log_add(lse, sink);
    const double *q = c->t[ATTN_ROLE_Q].val + row * d, *out = c->t[ATTN_ROLE_OUT].val + row * dv;
    const double *dout = c->t[ATTN_ROLE_DOUT].val + row * dv;
    double dlse = check_has(c, ATTN_DLSE) ? c->t[ATTN_ROLE_DLSE].val[row] / w->to_natural : 0;
    double delta = attn_cli_check_dot(out, dout, dv), half_delta = attn_cli_check_round(delta, w->dtype);
    double delta_size = w->norm_o[row] * w->norm_do[row] + fabs(dlse), terms_q = 0, sum_q = 0, noise_q = 0, pull = 0;
    double lost_sum = 0, lost_squares = 0;
    struct steps steps_q = {0};
    for (int64_t j = 0; j < l->n; j++) {
        int64_t key = l->key[j];
        if (key < 0) continue;
        const double *k = c->t[ATTN_ROLE_K].val + key * d, *v = c->t[ATTN_ROLE_V].val + key * dv;
        double prob = exp(l->s[j] - with_sink),
               half_prob = attn_cli_check_round(exp(l->rounded[j] - with_sink), w->dtype);
        double dp = attn_cli_check_dot(dout, v, dv);
        /* d lse / d s_j is the softmax over what the lse covers: with the sink, or without. */
        double lse_part = dlse * (lse_has_sink ? prob : exp(l->s[j] - lse));
        double g = prob * (dp - delta) + lse_part;
        double half_g =
            attn_cli_check_round(half_prob * (attn_cli_check_round(dp, w->dtype) - half_delta) + lse_part, w->dtype);
        double size = prob * (w->norm_do[row] * w->norm_v[key] + delta_size) + fabs(lse_part);
        if (da->plain) {
            double x = alibi_distance(c, b, i, j);
            int64_t cell = da->rows == p->heads_q ? h : b * p->heads_q + h;
            da->plain[cell] += g * x;
            const double part = x == 0 ? 0 : fmax(fabs(g * x), 0x1p-500); /* no exact 0, though it underflows */
            da->terms[cell] += part * part;
            da->noise[cell] += size * fabs(x);
            da->score[cell] = fmax(da->score[cell], l->score);
        }
        if (dm->plain) {
            int64_t cell = mask_at(p, b, h, i, j);
            dm->plain[cell] += g;
            dm->terms[cell] = fmax(fabs(g), 0x1p-500); /* visible, though it may have underflowed; has a square */
            dm->noise[cell] = size;
            dm->score[cell] = l->score;
            dm->kind[cell] = CHECK_ROW_NORMAL;
        }
        double flat = g * l->bend[j] * w->scale, half_flat = half_g * l->bend[j] * w->scale;
        size = fabs(w->scale) * (p->softcap > 0 ? size * (l->bend[j] + 0x1p-24) + fabs(g) : size);
        axpy(dq->plain + row * d, flat, k, d);
        axpy(dk->plain + key * d, flat, q, d);
        axpy(dvw->plain + key * dv, prob, dout, dv);
        if (w->dtype) {
            axpy(dq->half + row * d, half_flat, k, d);
            axpy(dk->half + key * d, half_flat, q, d);
            axpy(dvw->half + key * dv, half_prob, dout, dv);
        }
        double a = flat * w->norm_k[key], e = size * w->norm_k[key], f = flat * w->norm_q[row],
               s = size * w->norm_q[row];
        double o = prob * w->norm_do[row];
        const double loss = fabs(w->scale) * loss_of(w, g * l->bend[j]);
        if (loss > 0) {
            const double of_k = loss * w->norm_k[key], of_q = loss * w->norm_q[row];
            lost_sum += of_k, lost_squares += of_k * of_k;
            w->lost_k[key] += of_q, dk->lost[key] += of_q * of_q;
            const double alike = 4 * loss >= fabs(flat) ? copysign(loss, flat) : 0;
            if (w->norm_k[key] > 0) axpy(w->alike_q, alike, k, d);
            if (w->norm_q[row] > 0) axpy(w->alike_k + key * d, alike, q, d);
        }
        terms_q += a * a;
        sum_q += fabs(a);
        add_step(&steps_q, flat, fabs(a));
        noise_q += e * e;
        if (w->one_v) axpy(w->along_k, size, k, d);
        pull += prob * w->norm_k[key] * fabs(w->scale) * l->bend[j]; /* delta's own error moves all keys together */
        if (isfinite(f))
            dk->terms[key] += f * f, dk->roundings[key] += fabs(f), add_step(&w->steps[key], flat, fabs(f));
        const bool shared = w->one_dout || w->one_column;
        if (isfinite(s)) *(shared ? &w->squares[key] : &dk->noise[key]) += w->heads_alike * s * s;
        if (isfinite(s) && shared) axpy(w->along_q + key * d, copysign(size, dp), q, d);
        if (isfinite(o)) dvw->terms[key] += o * o, dvw->roundings[key] += o;
        dk->kind[key] = dvw->kind[key] = CHECK_ROW_NORMAL;
        dk->score[key] = fmax(dk->score[key], l->score);
        dvw->score[key] = fmax(dvw->score[key], l->score);
    }
    if (w->bound_ds > 0) {
        dq->lost[row] = row_loss(lost_sum, lost_squares, w->alike_q, d);
        memset(w->alike_q, 0, (size_t)d * sizeof *w->alike_q);
    }
    if (isfinite(terms_q)) dq->terms[row] = sqrt(terms_q);
    if (isfinite(terms_q) && w->dtype)
        dq->roundings[row] =
            roundings(c, ATTN_ROLE_K, sum_q, sqrt(terms_q), sum_of_few_steps(&steps_q, w->dtype), d, w->ds_alike);
    const double along = w->one_v ? take_square(w->along_k, d) : 0;
    if (isfinite(along)) noise_q = fmax(noise_q, along);
    if (isfinite(noise_q)) dq->noise[row] = sqrt(noise_q) + delta_size * pull;
    if (ds->plain && (sink > -INFINITY || isnan(lse))) {
        double part = sink == INFINITY && !isnan(lse) ? 1 : exp(sink - with_sink);
        double x = -part * (delta - (lse_has_sink ? dlse : 0));
        ds->plain[h] += x;
        ds->terms[h] += x * x;
        ds->noise[h] += part * delta_size;
        ds->score[h] = fmax(ds->score[h], l->score);
    }
}

/* All queries that share their row of dout, or see the same number of v, are done: one summand of each key's noise. */
static void flush_shared(struct work *w, struct check_want *dk) {
    for (int64_t key = 0; key < dk->rows; key++) {
        double x = take_square(w->along_q + key * dk->cols, dk->cols);
        dk->noise[key] += isfinite(x) ? fmax(x, w->squares[key]) : w->squares[key];
        w->squares[key] = 0;
    }
}

/* All queries of a head are done. */
static void flush_steps(struct work *w, const struct check_want *dk) {
    for (int64_t key = 0; key < dk->rows; key++) {
        w->few_steps[key] += sum_of_few_steps(&w->steps[key], w->dtype);
        w->steps[key] = (struct steps){0};
    }
}

static double *row_norms(const struct check_tensor *t) {
    if (!t->val) return NULL;
    int64_t rows = attn_cli_check_rows(&t->view), cols = t->view.shape[t->view.rank - 1];
    double *out = calloc((size_t)rows + 1, sizeof *out);
    for (int64_t r = 0; out && r < rows; r++) {
        double x = sqrt(attn_cli_check_dot(t->val + r * cols, t->val + r * cols, cols));
        out[r] = isfinite(x) ? x : 0;
    }
    return out;
}

/* Sums of squares become norms, scalars without any contribution are exact zeros (but not those whose squares are 0),
 * sums get their rounding. */
static void finish(struct check_case *c, int32_t dtype, const double *few_steps, bool alike) {
    static const int32_t roots[] = {ATTN_ROLE_DK, ATTN_ROLE_DV, ATTN_ROLE_DALIBI, ATTN_ROLE_DSINK};
    for (int k = 0; k < 4; k++) {
        struct check_want *o = &c->want[roots[k]];
        for (int64_t r = 0; o->plain && r < o->rows; r++) {
            o->terms[r] = sqrt(o->terms[r]);
            if (k < 2)
                o->roundings[r] = dtype ? roundings(c, k ? ATTN_ROLE_DOUT : ATTN_ROLE_Q, o->roundings[r], o->terms[r],
                                                    k ? 0 : few_steps[r], o->cols, alike)
                                        : 0;
            if (k == 0) o->noise[r] = sqrt(o->noise[r]);
            if (k >= 2)
                o->kind[r] =
                    !(o->plain[r] == 0) || o->terms[r] > 0 || o->noise[r] > 0 ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
        }
    }
    static const int32_t rounded[] = {ATTN_ROLE_DQ, ATTN_ROLE_DK, ATTN_ROLE_DV};
    for (int k = 0; k < 3 && dtype; k++) {
        struct check_want *o = &c->want[rounded[k]];
        for (int64_t x = 0; o->half && x < o->rows * o->cols; x++) o->half[x] = attn_cli_check_round(o->half[x], dtype);
    }
    struct check_want *dm = &c->want[ATTN_ROLE_DMASK];
    if (dm->plain) {
        const struct check_tensor *t = &c->t[ATTN_ROLE_DMASK];
        attn_cli_check_fold(t, dm->plain, false);
        attn_cli_check_fold(t, dm->terms, true);
        attn_cli_check_fold(t, dm->noise, false);
        attn_cli_check_fold(t, dm->score, false);
        for (int64_t x = 0; x < dm->rows; x++)
            dm->kind[x] =
                !(dm->plain[x] == 0) || dm->terms[x] > 0 || dm->noise[x] > 0 ? CHECK_ROW_NORMAL : CHECK_ROW_ZERO;
    }
}

static void start_kinds(struct check_case *c) {
    static const int32_t keyed[] = {ATTN_ROLE_DK, ATTN_ROLE_DV};
    const attn_problem *p = &c->p;
    bool packed = check_has(c, ATTN_PACKED) && !check_has(c, ATTN_FILL_PADDING);
    for (int role = 0; role < ATTN_ROLE_COUNT; role++) {
        struct check_want *o = &c->want[role];
        if (o->kind)
            memset(o->kind, packed && role <= ATTN_ROLE_DV ? CHECK_ROW_UNWRITTEN : CHECK_ROW_ZERO, (size_t)o->rows);
    }
    for (int64_t b = 0; packed && b < p->batch; b++)
        for (int64_t h = 0; h < p->heads_k; h++)
            for (int64_t j = 0; j < c->seq[b].sk_rows; j++)
                for (int k = 0; k < 2; k++)
                    if (c->want[keyed[k]].kind)
                        c->want[keyed[k]].kind[attn_cli_check_k_row(c, b, h, j)] = CHECK_ROW_ZERO;
    const double empty = check_has(c, ATTN_LSE_EMPTY_PLUS_INF) ? INFINITY : -INFINITY;
    for (int64_t row = 0; check_has(c, ATTN_FILL_PADDING) && row < p->heads_q * p->total_q; row++)
        put_lse(c, row, empty, 0), put_max(c, row, -INFINITY, 0); /* sequences put theirs in its place */
}

int attn_cli_check_plain_dense(struct check_case *c, bool inputs_only) {
    const attn_problem *p = &c->p;
    struct work w = {.c = c,
                     .scale = check_has(c, ATTN_SCALE) ? p->scale
                              : p->dim_qk > 0          ? 1 / sqrt((double)p->dim_qk)
                                                       : 1};
    w.dtype = check_half_dtype(p->dtype) ? p->dtype : 0;
    w.narrow = w.dtype || p->dtype == ATTN_E4M3;
    w.to_natural = check_has(c, ATTN_LSE_BASE_2) ? log(2.0) : 1;
    int64_t longest = 1;
    for (int64_t b = 0; b < p->batch; b++) longest = c->seq[b].sk > longest ? c->seq[b].sk : longest;
    double *lines = calloc((size_t)(longest * 5 + p->dim_v), sizeof *lines);
    w.line.key = calloc((size_t)longest, sizeof *w.line.key);
    w.norm_q = row_norms(&c->t[ATTN_ROLE_Q]), w.norm_k = row_norms(&c->t[ATTN_ROLE_K]);
    w.norm_v = row_norms(&c->t[ATTN_ROLE_V]);
    w.norm_o = row_norms(&c->t[ATTN_ROLE_OUT]), w.norm_do = row_norms(&c->t[ATTN_ROLE_DOUT]);
    const struct check_want *dk = &c->want[ATTN_ROLE_DK];
    w.squares = calloc((size_t)(dk->rows + dk->rows * dk->cols + p->dim_qk) + 1, sizeof *w.squares);
    w.along_q = w.squares + dk->rows, w.along_k = w.along_q + dk->rows * dk->cols;
    w.steps = calloc((size_t)dk->rows + 1, sizeof *w.steps);
    w.few_steps = calloc((size_t)dk->rows + 1, sizeof *w.few_steps);
    w.lost_k = calloc((size_t)(dk->rows + dk->rows * dk->cols + p->dim_qk) + 1, sizeof *w.lost_k);
    int failed = !lines || !w.line.key || !w.squares || !w.steps || !w.few_steps || !w.lost_k || !w.norm_q ||
                 !w.norm_k || !w.norm_v;
    if (!failed) {
        w.line.s = lines, w.line.rounded = lines + longest, w.line.bend = lines + 2 * longest;
        w.line.prob = lines + 3 * longest, w.line.half_prob = lines + 4 * longest;
        w.part = lines + 5 * longest;
        w.alike_k = w.lost_k + dk->rows, w.alike_q = w.alike_k + dk->rows * dk->cols;
        bool backward = check_backward(p) && !inputs_only;
        if (!inputs_only) start_kinds(c);
        bool heads_too = backward && is_one_row(c, ATTN_ROLE_DOUT, 2);
        w.one_dout = backward && is_one_row(c, ATTN_ROLE_DOUT, 1), w.one_v = is_one_row(c, ATTN_ROLE_V, 1);
        w.one_column = backward && p->dim_v == 1;
        w.heads_alike = heads_too && !w.one_dout ? (double)(p->heads_q / p->heads_k) : 1;
        w.keys_alike = are_alike(c, ATTN_ROLE_K, ATTN_ROLE_V, 1);
        w.ds_alike =
            w.keys_alike || (p->dim_v == 1 && is_one_row(c, ATTN_ROLE_K, 1)); /* P a factor of numbers in 16 bits */
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t h = 0; h < p->heads_q; h++) {
                const int64_t group = p->heads_q / p->heads_k;
                if (backward && w.dtype == ATTN_F16 && h % group == 0) w.bound_ds = largest_ds(&w, b, h / group);
                for (int64_t i = 0; i < c->seq[b].sq_rows; i++)
                    if (backward)
                        backward_row(&w, c, b, h, i);
                    else
                        forward_row(&w, c, b, h, i, inputs_only);
                if (w.one_column ? (h + 1) % group == 0 : w.one_dout && (!heads_too || h + 1 == p->heads_q))
                    flush_shared(&w, &c->want[ATTN_ROLE_DK]);
                if (backward && w.dtype) flush_steps(&w, &c->want[ATTN_ROLE_DK]);
            }
        for (int64_t r = 0; backward && r < dk->rows; r++)
            c->want[ATTN_ROLE_DK].lost[r] = row_loss(w.lost_k[r], dk->lost[r], w.alike_k + r * p->dim_qk, p->dim_qk);
        if (backward)
            finish(c, w.dtype, w.few_steps,
                   are_alike(c, ATTN_ROLE_Q, ATTN_ROLE_DOUT, 1) || are_alike(c, ATTN_ROLE_Q, ATTN_ROLE_DOUT, 2));
    }
    free(lines), free(w.line.key), free(w.squares), free(w.norm_q), free(w.norm_k), free(w.norm_v), free(w.norm_o),
        free(w.norm_do), free(w.steps), free(w.few_steps), free(w.lost_k);
    return failed ? -1 : 0;
}
