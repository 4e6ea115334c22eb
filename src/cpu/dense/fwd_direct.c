/* SPDX-License-Identifier: MIT
 * The dense forward of few flat rows on few keys, f32, whose products take less time than fwd.c needs for geometry,
 * scratch and tasks. It calls the microkernels of fwd.c's decode in the same order, and so comes to the same bits
 * (tests/cpu/t_fwd_direct.c): fwd.c may run any of these problems, and runs those with numbers that are not finite.
 *
 * A task is a (batch, key head). Rows and sums are on the stack of the thread. */
#include "cpu/dense/fwd_direct.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736
enum {
    MOST_ROWS = 16, /* flat rows of a key head: those of fwd.c's decode */
    MOST_KEYS = 64,
    MOST_STEPS = MOST_KEYS / ATTN_DECODE_KEYS,
    MOST_WIDTH = 128,
    LINE = 16,  /* floats: widths of rows are rounded up to it */
    V_STEP = 32 /* keys of a sum of values, as in fwd.c */
};
static const uint64_t takes = ATTN_CAUSAL | ATTN_BOTTOM_RIGHT | ATTN_SCALE | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT |
                              ATTN_DETERMINISTIC | ATTN_LSE_BASE_2 | ATTN_LSE_EMPTY_PLUS_INF;

/* A tensor [B,H,S,X] or [B,H,S]. */
struct rows {
    float *data;
    int64_t batch, head, row;
};
struct direct {
    const attn_problem *p;
    const struct attn_ukr *u;
    struct rows q, k, v, out, lse;
    int64_t group, flat, heads; /* heads: of a task */
    int64_t ldq, ldo;
    float scale;
    int32_t subnormals;
    int64_t lo[MOST_ROWS], hi[MOST_ROWS], all_lo, all_hi; /* keys that a key head's rows see */
    struct attn_cpu_counter next;
    _Atomic int lost; /* 1: something is not finite */
};

static int serves(const struct attn_cpu_sdpa_isa *isa, const attn_problem *p, const attn_args *args) {
    return p->dtype == ATTN_F32 && isa->u->decode_f32 && !(p->flags & ~takes) && p->seq_k > 0 &&
           p->seq_k <= MOST_KEYS && p->seq_q > 0 && p->seq_q <= MOST_ROWS && p->dim_qk > 0 && p->dim_qk <= MOST_WIDTH &&
           p->dim_v > 0 && p->dim_v <= MOST_WIDTH && p->softcap <= 0 && p->alibi == ATTN_ALIBI_NONE && !p->mask_dtype &&
           !args->lse_rounded && fabs(p->scale) >= 1e-12 && fabs(p->scale) <= 1e12;
}

static struct rows rows_of(const attn_tensor *t) {
    struct rows r = {0};
    if (!t) return r;
    r.data = t->data; /* the stride of an axis of extent 1 is free, and only index 0 exists */
    r.batch = t->shape[0] > 1 ? t->strides[0] : 0;
    r.head = t->shape[1] > 1 ? t->strides[1] : 0;
    r.row = t->shape[2] > 1 ? t->strides[2] : 0;
    return r;
}
static float *row_of(const struct rows *t, int64_t b, int64_t h, int64_t i) {
    return t->data + b * t->batch + h * t->head + i * t->row;
}

/* Flat rows of a task's key heads, one head after the other. */
struct task {
    int64_t b[MOST_ROWS], hk[MOST_ROWS], heads; /* of each key head */
    float m[MOST_ROWS], l[MOST_ROWS];
    _Alignas(64) float q[MOST_ROWS * MOST_WIDTH];
    _Alignas(64) float o[MOST_ROWS * MOST_WIDTH];
};

/* Keys j0 .. j0 + n of row r that it does not see. */
static void hide(const struct direct *d, int64_t r, int64_t j0, int64_t n, float *s) {
    const int64_t before = d->lo[r] - j0 < n ? d->lo[r] - j0 : n, after = d->hi[r] > j0 ? d->hi[r] - j0 : 0;
    for (int64_t j = 0; j < before; j++) s[j] = -INFINITY;
    for (int64_t j = after; j < n; j++) s[j] = -INFINITY;
}

/* A head of one row. Blocks of keys begin at multiples of 32: see fwd_tpl.h, run_keys. */
static void run_row(const struct direct *d, struct task *t, int64_t r, const float *k, const float *v) {
    const attn_problem *p = d->p;
    const struct attn_ukr *u = d->u;
    const int64_t begin = d->all_lo / V_STEP * V_STEP, n = d->all_hi - begin;
    _Alignas(64) float s[MOST_KEYS];
    u->gemm_nt_f32(1, n, p->dim_qk, t->q + r * d->ldq, d->ldq, k + begin * d->k.row, d->k.row, s, MOST_KEYS);
    hide(d, 0, begin, d->all_lo - begin, s);
    t->m[r] = u->max_f32(s, n);
    t->l[r] = isfinite(t->m[r]) ? u->exp_f32(s, n, t->m[r]) : NAN;
    for (int64_t c = 0; c < n; c += V_STEP)
        u->gemm_f32(1, p->dim_v, n - c < V_STEP ? n - c : V_STEP, s + c, MOST_KEYS, 1, v + (begin + c) * d->v.row,
                    d->v.row, t->o + r * d->ldo, d->ldo, 1);
}

#define INF4(x)  x, x, x, x
#define INF16(x) INF4(x), INF4(x), INF4(x), INF4(x)
/* The keys of a step that a row does not see become -inf: bounds of its scores, +inf where it sees the key and -inf
 * where it does not. Those before its first key are written here, as few problems have them. NaN becomes +inf; the
 * result of such a row is not used. In the first step also the rows' maxima, as add_pv would find them, which does it
 * out of line, row by row: a row that sees no key of the step keeps -inf. */
static void hide_step(const struct direct *d, int64_t r0, int64_t rows, int64_t j, float *s, float *m) {
    static const float until[2 * ATTN_DECODE_KEYS] = {INF16(INFINITY), INF16(-INFINITY)};
    const float *most[ATTN_DECODE_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        const int64_t lo = d->lo[r0 + i] - j, hi = d->hi[r0 + i] - j;
        for (int64_t x = 0; x < lo && x < ATTN_DECODE_KEYS; x++) s[i * ATTN_DECODE_KEYS + x] = -INFINITY;
        most[i] = until + ATTN_DECODE_KEYS - (hi > ATTN_DECODE_KEYS ? ATTN_DECODE_KEYS : hi > 0 ? hi : 0);
    }
    d->u->decode_f32->clip(rows, most, s, m);
}

/* Sums of up to 4 rows' parts, each in order; rows side by side, since one row alone waits for each addition. Parts
 * past the first n are 0. */
static void row_sums(int64_t rows, int64_t n, const float *l, float *sum) {
    float y[4] = {0};
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < 4; r++) y[r] += l[(r < rows ? r : 0) * ATTN_DECODE_KEYS + i];
    for (int64_t r = 0; r < rows; r++) sum[r] = y[r];
}

/* A head of several rows, in steps of keys. Missing keys of the last step are rows of zeros. A key that a row does not
 * see has P = 0 there: a value of it that is not finite makes the sum so. */
static void run_rows(const struct direct *d, struct task *t, int64_t r0, const float *keys, const float *values) {
    static const float zeros[MOST_WIDTH];
    const attn_problem *p = d->p;
    const struct attn_ukr_decode *u = d->u->decode_f32;
    const int64_t begin = d->all_lo / ATTN_DECODE_KEYS * ATTN_DECODE_KEYS, left = d->all_hi - begin,
                  steps = attn_cpu_sdpa_blocks(left, ATTN_DECODE_KEYS);
    const void *k[MOST_KEYS], *v[MOST_KEYS];
    _Alignas(64) float l[MOST_ROWS * ATTN_DECODE_KEYS], s[ATTN_DECODE_ROWS * ATTN_DECODE_KEYS];
    const int64_t filled = attn_cpu_sdpa_up(left, 4); /* a step's products end there: attn_decode.keys */
    for (int64_t j = 0; j < left; j++) k[j] = keys + (begin + j) * d->k.row, v[j] = values + (begin + j) * d->v.row;
    for (int64_t j = left; j < filled; j++) k[j] = v[j] = zeros;
    memset(l, 0, (size_t)(d->flat * ATTN_DECODE_KEYS) * sizeof *l);
    for (int64_t r = 0; r < d->flat; r += ATTN_DECODE_ROWS) {
        const int64_t rows = d->flat - r < ATTN_DECODE_ROWS ? d->flat - r : ATTN_DECODE_ROWS;
        struct attn_decode decode = {.rows = rows,
                                     .depth = p->dim_qk,
                                     .width = p->dim_v,
                                     .q = t->q + (r0 + r) * d->ldq,
                                     .ldq = d->ldq,
                                     .factor = (float)LOG2_E,
                                     .m = t->m + r0 + r,
                                     .l = l + r * ATTN_DECODE_KEYS,
                                     .o = t->o + (r0 + r) * d->ldo,
                                     .ldo = d->ldo};
        for (int64_t x = 0; x < steps; x++) {
            const int64_t j = begin + x * ATTN_DECODE_KEYS, n = d->all_hi - j;
            decode.keys = n < ATTN_DECODE_KEYS ? attn_cpu_sdpa_up(n, 4) : ATTN_DECODE_KEYS;
            u->scores(&decode, k + x * ATTN_DECODE_KEYS, NULL, s);
            hide_step(d, r, rows, j, s, x == 0 ? decode.m : NULL);
            u->add_pv(&decode, v + x * ATTN_DECODE_KEYS, NULL, s);
        }
    }
    for (int64_t r = 0; r < d->flat; r += 4)
        row_sums(d->flat - r < 4 ? d->flat - r : 4, left < ATTN_DECODE_KEYS ? left : ATTN_DECODE_KEYS,
                 l + r * ATTN_DECODE_KEYS, t->l + r0 + r);
}

/* Rows of q times the scale, in the mode of an execution, in which subnormal products count; sums begin. */
static void load(const struct direct *d, struct task *t) {
    const attn_problem *p = d->p;
    float *q = t->q;
    const int whole = d->ldq == p->dim_qk && (p->seq_q == 1 || d->q.row == d->ldq) &&
                      (d->group == 1 || (p->seq_q == 1 && d->q.head == d->ldq)); /* rows that follow each other */
    for (int64_t x = 0; x < t->heads && whole; x++, q += d->flat * d->ldq)
        d->u->widen(q, row_of(&d->q, t->b[x], t->hk[x] * d->group, 0), ATTN_F32, d->flat * d->ldq, d->scale);
    for (int64_t x = 0; x < t->heads && !whole; x++)
        for (int64_t i = 0; i < p->seq_q; i++)
            for (int64_t g = 0; g < d->group; g++, q += d->ldq)
                d->u->widen(q, row_of(&d->q, t->b[x], t->hk[x] * d->group + g, i), ATTN_F32, p->dim_qk, d->scale);
    for (int64_t r = 0; r < t->heads * d->flat; r++) t->m[r] = -INFINITY;
    memset(t->o, 0, (size_t)(t->heads * d->flat * d->ldo) * sizeof *t->o);
}

static int store(const struct direct *d, const struct task *t) {
    const attn_problem *p = d->p;
    const float *o = t->o, *m = t->m, *sums = t->l;
    if (!d->u->finite_f32(o, t->heads * d->flat * d->ldo)) return 0; /* past a row are zeros, or NaN as in it */
    const int base_2 = attn_core_has(p, ATTN_LSE_BASE_2);
    for (int64_t x = 0; x < t->heads; x++) {
        const int64_t h = t->hk[x] * d->group;
        float *out = row_of(&d->out, t->b[x], h, 0), *lse = d->lse.data ? row_of(&d->lse, t->b[x], h, 0) : NULL;
        for (int64_t i = 0; i < p->seq_q; i++, out += d->out.row) {
            for (int64_t g = 0; g < d->group; g++, o += d->ldo) {
                const double l = (double)*sums++, natural = (double)*m++ + log(l);
                if (!isfinite(l)) return 0;
                d->u->narrow(out + g * d->out.head, ATTN_F32, o, p->dim_v, (float)(1 / l));
                if (lse) lse[i * d->lse.row + g * d->lse.head] = (float)(base_2 ? natural * LOG2_E : natural);
            }
        }
    }
    return 1;
}

static void run(void *arg, int32_t worker) {
    struct direct *d = arg;
    const attn_problem *p = d->p;
    const int64_t all = p->batch * p->heads_k;
    struct task t;
    (void)worker;
    for (int64_t first = 0, end = 0; end < all && !d->lost;) {
        first = attn_cpu_next(&d->next) * d->heads;
        if (first >= all) break;
        end = first + d->heads < all ? first + d->heads : all;
        t.heads = end - first;
        int64_t b = first ? first / p->heads_k : 0, hk = first - b * p->heads_k;
        for (int64_t x = 0; x < t.heads; x++) {
            t.b[x] = b, t.hk[x] = hk;
            if (++hk == p->heads_k) hk = 0, b++;
        }
        load(d, &t);
        const uint32_t mode = attn_base_float_begin(d->subnormals);
        for (int64_t x = 0; x < t.heads; x++) {
            const float *k = row_of(&d->k, t.b[x], t.hk[x], 0), *v = row_of(&d->v, t.b[x], t.hk[x], 0);
            (d->flat == 1 ? run_row : run_rows)(d, &t, x * d->flat, k, v);
        }
        if (!store(d, &t)) d->lost = 1;
        attn_base_float_end(mode);
    }
}

int attn_cpu_fwd_direct(const struct attn_cpu_sdpa_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                        const attn_args *args) {
    if (!serves(isa, p, args) || dev->subnormals == ATTN_SUBNORMALS_FLUSH) return 0;
    struct direct d;
    d.p = p, d.u = isa->u, d.scale = (float)p->scale, d.subnormals = dev->subnormals;
    d.group = p->heads_q == p->heads_k ? 1 : p->heads_q / p->heads_k, d.flat = p->seq_q * d.group;
    if (d.flat > MOST_ROWS) return 0;
    const int64_t all_heads = p->batch * p->heads_k;
    d.heads = all_heads == 1 ? 1 : MOST_ROWS / d.flat;
    d.ldq = attn_cpu_sdpa_up(p->dim_qk, LINE), d.ldo = attn_cpu_sdpa_up(p->dim_v, LINE);
    d.all_lo = p->seq_k, d.all_hi = 0;
    const int all = !(p->flags & (ATTN_CAUSAL | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT));
    for (int64_t i = 0, r = 0; i < p->seq_q; i++) {
        int64_t lo = 0, hi = p->seq_k;
        if (!all) attn_core_key_range(p, p->seq_q, p->seq_k, i, &lo, &hi);
        if (lo >= hi) return 0; /* an empty row */
        if (lo < d.all_lo) d.all_lo = lo;
        if (hi > d.all_hi) d.all_hi = hi;
        for (int64_t g = 0; g < d.group; g++, r++) d.lo[r] = lo, d.hi[r] = hi;
    }
    d.q = rows_of(args->q), d.k = rows_of(args->k), d.v = rows_of(args->v);
    d.out = rows_of(args->out), d.lse = rows_of(args->lse);
    d.next = (struct attn_cpu_counter){0}, d.lost = 0;
    const int64_t tasks = all_heads <= d.heads ? 1 : attn_cpu_sdpa_blocks(all_heads, d.heads);
    const int32_t threads = tasks > 1 ? attn_cpu_at_most(attn_cpu_sdpa_crew(isa, p, dev->threads), tasks) : 1;
    attn_cpu_pool_run(attn_cpu_pool_of(dev), threads, run, &d);
    return !d.lost;
}
