/* SPDX-License-Identifier: MIT
 * Lengths and values of dense cases: normal numbers first, then what the case's modes ask for. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void attn_cli_check_normal(struct attn_cli_rng *r, double *out, int64_t n, double spread) {
    for (int64_t i = 0; i < n; i++) { /* four 16-bit uniforms: variance 1/3, no tails beyond 3.5 */
        uint64_t u = attn_cli_rng_u64(r);
        double s = (double)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48)) / 65536 - 2;
        out[i] = s * spread * 1.7320508075688772;
    }
}

void attn_cli_check_bad_dout(struct check_case *c) {
    struct check_tensor *dout = &c->t[ATTN_ROLE_DOUT];
    const double value = !(c->modes & CHECK_INF_DOUT) ? NAN : c->seed >> 44 & 1 ? INFINITY : -INFINITY;
    if ((c->modes & CHECK_BAD_DOUT) && dout->n) dout->val[(c->seed >> 24) % (uint64_t)dout->n] = value;
}

static int64_t below(struct check_case *c, int64_t n) { return attn_cli_rng_below(&c->rng, n); }
static int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* ---- lengths --------------------------------------------------------------------------------------------------- */

/* A length beyond bound or below 0, by up to `far`; one in nine as far as int32 goes. */
double attn_cli_check_wild(struct check_case *c, int64_t bound, int64_t far) {
    const bool high = below(c, 2);
    const int64_t over = below(c, far);
    if (over % 9 == 8) return high ? INT32_MAX : INT32_MIN;
    return (double)(high ? bound + 1 + over : -1 - over);
}

static void fill_lengths(struct check_case *c, int32_t role, int64_t bound) {
    struct check_tensor *t = &c->t[role];
    for (int64_t b = 0; b < t->n; b++) {
        int64_t kind = below(c, 6);
        t->val[b] = (double)(kind == 0 ? bound : kind == 1 ? 0 : kind == 2 ? bound - 1 : below(c, bound + 1));
        if ((c->modes & CHECK_WILD_LENGTHS) && below(c, 3) == 0) t->val[b] = attn_cli_check_wild(c, bound, 9);
        if (bound == 0 && !(c->modes & CHECK_WILD_LENGTHS)) t->val[b] = 0;
    }
}

/* Cumulative lengths within both the bound and the total. Some lengths are 0, and some rows before the first sequence
 * and after the last belong to none. Lengths outside their range may pass the bound, too, one case in eight: rows past
 * it belong to no sequence. No draw: numbers of a seed stay. */
static void fill_cumulative(struct check_case *c, int32_t role, int64_t total, int64_t bound) {
    struct check_tensor *t = &c->t[role];
    bool wild = (c->modes & CHECK_WILD_LENGTHS) != 0, passes_bound = wild && (c->seed >> 46 & 7) == 5;
    int64_t sum = below(c, 3) == 0 ? clamp(below(c, 4), 0, total) : 0;
    t->val[0] = (double)(wild && sum == 0 && below(c, 2) ? -below(c, 5) : sum);
    for (int64_t b = 1; b < t->n; b++) {
        int64_t room = total - sum < bound || passes_bound ? total - sum : bound, kind = below(c, 4);
        int64_t n = kind == 0 ? 0 : kind == 1 ? room : below(c, room + 1);
        if (b + 1 == t->n && kind > 1) n = room;
        sum += n;
        t->val[b] = (double)sum;
    }
    if (wild && sum == total && t->n > 1 && t->val[t->n - 2] < (double)total)
        t->val[t->n - 1] = (double)(total + below(c, 7));
    for (int64_t b = 1; b < t->n && attn_cli_check_falls(c); b++)
        if (below(c, 3) == 0) t->val[b] = (double)(below(c, (int64_t)fmax(t->val[b - 1], 0) + 4) - 3);
}

/* Packed lengths outside their range come half the time as offsets that fall. No draw: numbers of a seed stay. */
bool attn_cli_check_falls(const struct check_case *c) {
    return check_has(c, ATTN_PACKED) && (c->modes & CHECK_WILD_LENGTHS) && c->seed >> 13 & 1;
}

static void fill_pages(struct check_case *c) {
    struct check_tensor *t = &c->t[ATTN_ROLE_BLOCK_TABLE];
    for (int64_t x = 0; x < t->n; x++) {
        t->val[x] = (double)below(c, c->p.n_pages);
        if (c->p.n_pages == 0 || ((c->modes & CHECK_BAD_PAGES) && below(c, 5) == 0)) {
            static const double bad[] = {-1, INT32_MAX, INT32_MIN};
            int64_t k = below(c, 4);
            t->val[x] = k == 3 ? (double)c->p.n_pages : bad[k];
        }
    }
}

static int make_sequences(struct check_case *c) {
    const attn_problem *p = &c->p;
    int64_t end_q = 0, end_k = 0; /* packed: no offset counts as less than one before it */
    c->seq = calloc((size_t)p->batch + 1, sizeof *c->seq);
    if (!c->seq) return -1;
    for (int64_t b = 0; b < p->batch; b++) {
        struct check_seq *s = &c->seq[b];
        *s = (struct check_seq){0, 0, p->seq_q, p->seq_k, p->seq_q, p->seq_k};
        if (check_has(c, ATTN_PACKED)) {
            const double *q = c->t[ATTN_ROLE_CU_SEQLENS_Q].val;
            s->q0 = end_q = clamp((int64_t)q[b], end_q, p->total_q);
            s->sq = s->sq_rows = clamp(clamp((int64_t)q[b + 1], end_q, p->total_q) - end_q, 0, p->seq_q);
        }
        if (check_has(c, ATTN_PACKED) && !check_has(c, ATTN_PAGED)) {
            const double *k = c->t[ATTN_ROLE_CU_SEQLENS_K].val;
            s->k0 = end_k = clamp((int64_t)k[b], end_k, p->total_k);
            s->sk = s->sk_rows = clamp(clamp((int64_t)k[b + 1], end_k, p->total_k) - end_k, 0, p->seq_k);
        }
        if (check_has(c, ATTN_SEQLENS_Q)) s->sq = clamp((int64_t)c->t[ATTN_ROLE_SEQLENS_Q].val[b], 0, s->sq);
        if (check_has(c, ATTN_SEQLENS_K)) s->sk = clamp((int64_t)c->t[ATTN_ROLE_SEQLENS_K].val[b], 0, s->sk);
    }
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* What hides a key in a mask: in an additive one -inf, or a finite number that people take for it, down to the lowest
 * of f16 and bf16. Scores of a row that sees such keys alone are rounded as numbers of that size are: 64 apart at -1e9,
 * 128 in base 2. Where they differ by more, a backward's probabilities of that row may leave the range of f32, which is
 * nobody's fault (docs/numerics.md). */
static double hiding_number(const struct check_case *c) {
    static const double lows[] = {-1e4, -65504, -1e5, -1.3e5, -2e5, -1e9, -0x1.fep127, -0x1.fep127};
    if (c->p.mask_dtype == ATTN_BOOL) return 0;
    if (!(c->modes & CHECK_MASK_LOW)) return -INFINITY;
    const double low = lows[c->seed >> 10 & 7];
    const bool far_apart =
        (c->modes & CHECK_HUGE) || c->p.alibi || check_has(c, ATTN_SCALE) || check_has(c, ATTN_LSE_BASE_2);
    return low == -1e9 && far_apart && check_backward(&c->p) ? -2e5 : low;
}

static void fill_mask(struct check_case *c) {
    struct check_tensor *t = &c->t[ATTN_ROLE_MASK];
    const attn_problem *p = &c->p;
    const double hidden = hiding_number(c);
    if (p->mask_dtype == ATTN_BOOL) {
        static const double keep[] = {1, 1, 255, 2};
        for (int64_t x = 0; x < t->n; x++) t->val[x] = below(c, 10) < 7 ? keep[below(c, 4)] : hidden;
    } else {
        attn_cli_check_normal(&c->rng, t->val, t->n, 1.5);
        int64_t holes = below(c, 3) * 2;
        for (int64_t x = 0; x < t->n; x++)
            if (below(c, 10) < holes) t->val[x] = hidden;
    }
    int64_t rows = p->seq_k > 0 ? t->n / p->seq_k : 0;
    for (int64_t r = 0; (c->modes & CHECK_MASK_DEAD_ROWS) && r < rows; r++)
        if (below(c, 4) == 0)
            for (int64_t j = 0; j < p->seq_k; j++) t->val[r * p->seq_k + j] = hidden;
    if ((c->modes & CHECK_MASK_PLUS_INF) && t->n) t->val[below(c, t->n)] = INFINITY;
}

static void fill_scores(struct check_case *c) {
    struct check_tensor *q = &c->t[ATTN_ROLE_Q], *k = &c->t[ATTN_ROLE_K];
    const attn_problem *p = &c->p;
    double scale = check_has(c, ATTN_SCALE) ? p->scale : p->dim_qk ? 1 / sqrt((double)p->dim_qk) : 1;
    double spread = (c->modes & CHECK_HUGE) ? (below(c, 2) ? 4 : 15) : 1;
    attn_cli_check_normal(&c->rng, q->val, q->n, (c->modes & CHECK_EQUAL_SCORES) ? 0 : spread);
    attn_cli_check_normal(&c->rng, k->val, k->n, spread);
    if (!(c->modes & CHECK_FAR_NEGATIVE) || scale == 0 || p->dim_qk == 0) return;
    /* q near a and k near -b in every column, a b = 200 / (scale D), so that every score is near -200. */
    double a = sqrt(200 / (fabs(scale) * (double)p->dim_qk)), noise = 0.02 * a;
    for (int64_t x = 0; x < q->n; x++) q->val[x] = a + q->val[x] * noise;
    for (int64_t x = 0; x < k->n; x++) k->val[x] = (scale > 0 ? -a : a) + k->val[x] * noise;
}

static void row_to(struct check_tensor *t, int64_t row, double value) {
    int64_t cols = t->view.shape[t->view.rank - 1];
    for (int64_t x = 0; x < cols; x++) t->val[row * cols + x] = value;
}

static bool broadcasts(const struct check_tensor *t) {
    bool any = false;
    for (int a = 0; a < t->view.rank; a++) any |= t->broadcast[a] != 0;
    return any;
}

/* NaN, and some inf, in every row that no query may read. A key that an additive mask hides has a score, -inf, so that
 * only its value row may hold anything. */
static int poison_hidden_keys(struct check_case *c) {
    struct check_tensor *k = &c->t[ATTN_ROLE_K], *v = &c->t[ATTN_ROLE_V];
    const struct check_tensor *m = &c->t[ATTN_ROLE_MASK];
    const attn_problem *p = &c->p;
    if (broadcasts(k) || broadcasts(v)) return 0;
    int64_t rows = attn_cli_check_rows(&k->view);
    uint8_t *seen = calloc((size_t)rows + 1, 1); /* 1: the key, 2: the value too */
    if (!seen) return -1;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < c->seq[b].sq; i++)
                for (int64_t j = 0; j < c->seq[b].sk; j++) {
                    if (!attn_cli_check_visible(c, b, h, i, j)) continue;
                    int64_t row = attn_cli_check_k_row(c, b, h / (p->heads_q / p->heads_k), j);
                    bool masked =
                        p->mask_dtype && m->val[((b * p->heads_q + h) * p->seq_q + i) * p->seq_k + j] == -INFINITY;
                    if (row >= 0) seen[row] |= masked ? 1 : 3;
                }
    for (int64_t r = 0; r < rows; r++) {
        if (!(seen[r] & 1)) row_to(k, r, below(c, 3) ? NAN : INFINITY);
        if (!(seen[r] & 2)) row_to(v, r, below(c, 3) ? NAN : -INFINITY);
    }
    free(seen);
    return 0;
}

static void poison_hidden_rows(struct check_case *c) {
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_DOUT, ATTN_ROLE_DLSE};
    const attn_problem *p = &c->p;
    int64_t rows = (check_has(c, ATTN_PACKED) ? p->total_q : p->batch * p->seq_q) * p->heads_q;
    uint8_t *live = calloc((size_t)rows + 1, 1);
    for (int64_t b = 0; live && b < p->batch; b++)
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < c->seq[b].sq; i++) live[attn_cli_check_q_row(c, b, h, i)] = 1;
    for (int k = 0; live && k < 3; k++) {
        struct check_tensor *t = &c->t[roles[k]];
        if (!t->val || broadcasts(t)) continue;
        for (int64_t r = 0; r < rows; r++)
            if (!live[r] && t->n) {
                if (k < 2)
                    row_to(t, r, NAN);
                else
                    t->val[r] = NAN;
            }
    }
    free(live);
    struct check_tensor *m = &c->t[ATTN_ROLE_MASK];
    if (!m->val || p->mask_dtype == ATTN_BOOL || broadcasts(m)) return;
    for (int64_t x = 0; x < m->n; x++) { /* cells that rule 5 or a length hides are not read */
        int64_t j = x % p->seq_k, i = x / p->seq_k % p->seq_q, b = x / p->seq_k / p->seq_q / p->heads_q;
        const struct check_seq *s = &c->seq[b];
        if (i >= s->sq || j >= s->sk || !attn_cli_check_inside(c, s, i, j)) m->val[x] = x % 3 ? NAN : INFINITY;
    }
}

/* Rows of very different sizes, one case in eight: whoever brings a block of rows or a group of heads to one power of
 * two has to look at all of it. 16-bit gradients: dout of every fourth head is large. Else V, or dout, is small but for
 * 32 rows of 64, the second or the first, which a causal rule may hide; dout in every fourth head alone, so that others
 * have none. An error shows where all that is seen is small. No draw: numbers of a seed stay. */
bool attn_cli_check_uneven(const struct check_case *c) {
    return check_dense(&c->p) && c->p.dtype != ATTN_E4M3 && (c->seed >> 46 & 7) == 5 && !(c->modes & CHECK_BAD_DOUT);
}
static void make_uneven(struct check_case *c) {
    const bool backward = check_backward(&c->p), large = backward && check_half_dtype(c->p.dtype);
    struct check_tensor *t = &c->t[backward ? ATTN_ROLE_DOUT : ATTN_ROLE_V];
    const int64_t length = t->view.shape[t->view.rank - 2], cols = t->view.shape[t->view.rank - 1];
    for (int64_t x = 0; x < t->n && length; x++) {
        const int64_t row = x / cols % length, head = x / cols / length % (backward ? c->p.heads_q : 1);
        const bool chosen = !backward || head % 4 == 1;
        if (large)
            t->val[x] *= chosen ? 0x1p9 : 1;
        else if (!chosen || row / 32 % 2 == backward)
            t->val[x] *= 0x1p-30;
    }
}

/* Infinities in k, one case in eight; in q or k, three in eight with softcap: there a score is +-softcap, probabilities
 * are numbers, and 0 times the infinity leaves one column of dq or dk not finite. No draw: numbers of a seed stay. */
bool attn_cli_check_infinite(const struct check_case *c) {
    const bool chosen = (c->seed >> 33 & 7) == 5 || (c->p.softcap > 0 && (c->seed >> 32 & 3) == 1);
    return chosen && check_dense(&c->p) && c->p.dtype != ATTN_E4M3 && c->p.dim_qk > 0 &&
           !(c->modes & (CHECK_NAN_QUERY | CHECK_NAN_KEY | CHECK_BAD_DOUT));
}
/* One or two elements of a row. */
static void make_infinite(struct check_tensor *t, uint64_t number, uint64_t columns, int64_t width) {
    const int64_t rows = t->n / width, row = rows ? (int64_t)(number % (uint64_t)rows) : 0;
    for (int n = 0; rows && n < (columns >> 16 & 3 ? 1 : 2); n++)
        t->val[row * width + (int64_t)((columns >> 3 * n) % (uint64_t)width)] =
            columns >> (14 + n) & 1 ? INFINITY : -INFINITY;
}
static void fill_infinite(struct check_case *c) {
    const uint64_t kind = c->p.softcap > 0 ? c->seed >> 38 & 3 : 0;
    if (kind != 1) make_infinite(&c->t[ATTN_ROLE_K], c->seed >> 20, c->seed >> 11, c->p.dim_qk);
    if (kind == 1 || kind == 2) make_infinite(&c->t[ATTN_ROLE_Q], c->seed >> 26, c->seed >> 5, c->p.dim_qk);
}

static void fill_small(struct check_case *c) {
    struct check_tensor *slopes = &c->t[ATTN_ROLE_ALIBI], *sink = &c->t[ATTN_ROLE_SINK];
    for (int64_t x = 0; x < slopes->n; x++) {
        slopes->val[x] = exp2(-8.0 * (double)(x % c->p.heads_q + 1) / (double)c->p.heads_q);
        if (below(c, 5) == 0) slopes->val[x] = -slopes->val[x];
    }
    attn_cli_check_normal(&c->rng, sink->val, sink->n, 2);
    if ((c->modes & CHECK_SINK_PLUS_INF) && sink->n) sink->val[below(c, sink->n)] = INFINITY;
    if ((c->modes & CHECK_SINK_MINUS_INF) && sink->n) sink->val[below(c, sink->n)] = -INFINITY;
}

static void fill_scales(struct check_case *c) {
    for (int32_t role = ATTN_ROLE_Q_SCALE; role <= ATTN_ROLE_V_SCALE; role++) {
        struct check_tensor *t = &c->t[role];
        const int64_t heads = t->use ? t->view.shape[1] : 1;
        for (int64_t x = 0; x < t->n; x++) {
            t->val[x] = exp2((double)below(c, 33) / 16 - 1) * (below(c, 8) ? 1 : -1);
            /* pages are any sequence's: their scale is one for all */
            if (check_has(c, ATTN_PAGED) && role != ATTN_ROLE_Q_SCALE && x >= heads) t->val[x] = t->val[x - heads];
        }
    }
}

static void scale_rows(struct check_tensor *t, int64_t row, int64_t n, double scale) {
    const int64_t cols = t->view.shape[t->view.rank - 1];
    for (int64_t x = row * cols; x < (row + n) * cols; x++) t->val[x] *= scale;
}

/* Rows of no sequence keep their numbers. Pages: of the first sequence, whose scales are those of all. */
void attn_cli_check_scale_values(struct check_case *c) {
    const attn_problem *p = &c->p;
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    for (int k = 0; k < 3 && p->dtype == ATTN_E4M3; k++) {
        struct check_tensor *t = &c->t[roles[k]];
        const double *scale = c->t[ATTN_ROLE_Q_SCALE + k].val;
        const int64_t heads = k ? p->heads_k : p->heads_q, total = k ? p->total_k : p->total_q;
        const bool paged = k && check_has(c, ATTN_PAGED), packed = !paged && check_has(c, ATTN_PACKED);
        const int64_t rows = paged ? p->page_size : k ? p->seq_k : p->seq_q, n = paged ? p->n_pages : p->batch;
        if (!t->n) continue;
        for (int64_t b = 0; b < n && p->batch; b++)
            for (int64_t h = 0; h < heads; h++) {
                const struct check_seq *s = &c->seq[paged ? 0 : b];
                const double factor = scale[paged ? h : b * heads + h];
                if (packed)
                    scale_rows(t, h * total + (k ? s->k0 : s->q0), k ? s->sk_rows : s->sq_rows, factor);
                else
                    scale_rows(t, (b * heads + h) * rows, rows, factor);
            }
    }
}

int attn_cli_check_data_dense(struct check_case *c) {
    const attn_problem *p = &c->p;
    struct check_tensor *t = c->t;
    if (t[ATTN_ROLE_SEQLENS_Q].use) fill_lengths(c, ATTN_ROLE_SEQLENS_Q, p->seq_q);
    if (t[ATTN_ROLE_SEQLENS_K].use) fill_lengths(c, ATTN_ROLE_SEQLENS_K, p->seq_k);
    if (check_has(c, ATTN_PACKED)) {
        fill_cumulative(c, ATTN_ROLE_CU_SEQLENS_Q, p->total_q, p->seq_q);
        if (t[ATTN_ROLE_CU_SEQLENS_K].use) fill_cumulative(c, ATTN_ROLE_CU_SEQLENS_K, p->total_k, p->seq_k);
    }
    if (t[ATTN_ROLE_BLOCK_TABLE].use) {
        fill_pages(c);
        if (attn_cli_check_store(&t[ATTN_ROLE_BLOCK_TABLE]))
            return -1; /* a broadcast axis decides which pages are seen */
    }
    if (make_sequences(c)) return -1;
    fill_scores(c);
    attn_cli_check_normal(&c->rng, t[ATTN_ROLE_V].val, t[ATTN_ROLE_V].n, 1);
    if (t[ATTN_ROLE_DOUT].use) attn_cli_check_normal(&c->rng, t[ATTN_ROLE_DOUT].val, t[ATTN_ROLE_DOUT].n, 1);
    attn_cli_check_bad_dout(c);
    if (attn_cli_check_uneven(c)) make_uneven(c);
    if (t[ATTN_ROLE_DLSE].use) attn_cli_check_normal(&c->rng, t[ATTN_ROLE_DLSE].val, t[ATTN_ROLE_DLSE].n, 1);
    fill_small(c);
    fill_scales(c);
    if (t[ATTN_ROLE_MASK].use) {
        fill_mask(c);
        if (attn_cli_check_store(&t[ATTN_ROLE_MASK])) return -1;
    }
    if ((c->modes & CHECK_NAN_QUERY) && t[ATTN_ROLE_Q].n) t[ATTN_ROLE_Q].val[below(c, t[ATTN_ROLE_Q].n)] = NAN;
    if ((c->modes & CHECK_NAN_KEY) && t[ATTN_ROLE_K].n) t[ATTN_ROLE_K].val[below(c, t[ATTN_ROLE_K].n)] = NAN;
    if ((c->modes & CHECK_NAN_KEY) && t[ATTN_ROLE_V].n && below(c, 2))
        t[ATTN_ROLE_V].val[below(c, t[ATTN_ROLE_V].n)] = NAN;
    if (attn_cli_check_infinite(c)) fill_infinite(c);
    if (c->modes & CHECK_HIDDEN_NAN) {
        if (poison_hidden_keys(c)) return -1;
        poison_hidden_rows(c);
    }
    /* A sink that takes all leaves 0 times each value, which is NaN where the value is. */
    if ((c->modes & CHECK_SINK_PLUS_INF) && p->op == ATTN_OP_SDPA_FWD && t[ATTN_ROLE_V].n && below(c, 2))
        t[ATTN_ROLE_V].val[below(c, t[ATTN_ROLE_V].n)] = NAN;
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        if (t[role].use == ATTN_USE_IN && role != ATTN_ROLE_OUT && role != ATTN_ROLE_LSE &&
            attn_cli_check_store(&t[role]))
            return -1;
    attn_cli_check_scale_values(c);
    return 0;
}
