/* SPDX-License-Identifier: MIT
 * One task of the dense forward for one compute type; included twice by sdpa_fwd.c. No include guard on purpose.
 * Online softmax over key blocks (Milakov and Gimelshein 2018; Dao et al. 2022), natural exponent, accumulators in
 * REAL. The includer defines REAL and T(name). */

void T(attn_cpu_fwd_finish)(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                            const struct attn_cpu_sdpa_row *row, double m, double l, const REAL *o) {
    const attn_problem *p = f->s.p;
    const int64_t at = seq->q0 + row->i;
    double factor = 0, natural = m == -INFINITY ? m : m + log(l) + row->shift; /* NaN passes */
    double sink = attn_cpu_ref_sink(p, f->s.args, row->h);
    if (m != -INFINITY) factor = 1 / (l + exp(sink - m - row->shift));
    if (isnan(m)) factor = NAN;
    if (p->dim_v > 0) {
        char *out = attn_view_row(&f->out, b, row->h, at);
        if (m == -INFINITY || isnan(factor)) {
            attn_cpu_ref_fill(out, p->dtype, p->dim_v, m == -INFINITY ? 0 : NAN);
        } else {
            T(attn_cpu_sdpa_store)(&f->s, out, p->dtype, o, p->dim_v, factor);
        }
    }
    store_lse(f, b, row->h, at, outer_lse(p, natural, sink));
}

/* What a task works with. */
struct T(work) {
    const struct attn_cpu_fwd *f;
    struct attn_core_seq seq;
    int64_t b, hk;
    struct attn_cpu_sdpa_row *row;
    REAL *q, *kt, *tmp, *v, *s, *o, *m, *l, *before;
    const REAL *k, *vs; /* rows of keys where nothing is packed; rows of values */
    int64_t ldk, ldv;
    struct attn_cpu_sdpa_poison poison;
    uint8_t *hidden;
    float *mask;
};

/* The keys j0 .. j0+n in use: panels and values are packed, or (few rows) used in place where the tensor allows it.
 * Values in place are not looked at before they are used: see run_few. */
static void T(load_block)(struct T(work) * w, int64_t j0, int64_t n, int careful) {
    const struct attn_cpu_fwd *f = w->f;
    const attn_problem *p = f->s.p;
    const int64_t width = p->dim_v;
    /* rows far apart would fight for the same cache sets while every strip walks over them */
    const int copy = careful || (f->panel && f->s.v.row != f->ldv);
    if (f->panel) {
        T(attn_cpu_sdpa_panels)
        (&f->s, &f->s.k, &w->seq, w->b, w->hk, j0, n, p->dim_qk, f->panel, w->kt, w->tmp, f->ldq);
    } else {
        w->k = T(attn_cpu_sdpa_keys)(&f->s, &f->s.k, &w->seq, w->b, w->hk, j0, n, p->dim_qk, w->kt, f->ldq, 0, &w->ldk);
    }
    w->poison.any = 0;
    w->vs = T(attn_cpu_sdpa_keys)(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0, n, width, w->v, f->ldv, copy, &w->ldv);
    if (!f->panel && !careful) return;
    if (w->vs != w->v) {
        int clean = 1;
        for (int64_t j = 0; j < n && clean; j++) clean = f->s.u->T(finite)(w->vs + j * w->ldv, width);
        if (clean) return;
        w->vs = T(attn_cpu_sdpa_keys)(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0, n, width, w->v, f->ldv, 1, &w->ldv);
    }
    T(attn_cpu_sdpa_poison_find)(&f->s, &w->poison, w->v, n, width, f->ldv);
}

/* Raw products of flat rows r0 .. r0+n with keys c0 .. c1 of the loaded block at j0, in w->s. */
static void T(multiply_keys)(struct T(work) * w, int64_t r0, int64_t n, int64_t c0, int64_t c1) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t d = f->s.p->dim_qk;
    const REAL *q = w->q + r0 * f->ldq;
    if (!f->panel) {
        f->s.u->T(gemm_nt)(n, c1 - c0, d, q, f->ldq, w->k + c0 * w->ldk, w->ldk, w->s, f->lds);
        return;
    }
    for (int64_t c = c0; c < c1; c += f->panel)
        f->s.u->T(gemm)(n, f->panel, d, q, f->ldq, 1, w->kt + c * d, f->panel, w->s + (c - c0), f->lds, 0);
}

/* One step of the online softmax for row r of the task: x[0..n) holds scores and becomes probabilities relative to m.
 */
static void T(soften)(struct T(work) * w, int64_t r, REAL *x, int64_t n) {
    const struct attn_ukr *u = w->f->s.u;
    REAL *m = &w->m[r], *l = &w->l[r];
    const REAL high = u->T(max)(x, n);
    if (!(high < (REAL)INFINITY)) *m = (REAL)NAN; /* a NaN score, or +inf: exp(inf - inf) */
    if (isinf(high) || isnan(*m)) {
        memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    if (high > *m) {
        if (*m > (REAL)-INFINITY) {
            const REAL shrink = (REAL)exp((double)*m - (double)high);
            u->T(scale)(w->o + r * w->f->ldv, w->f->s.p->dim_v, shrink);
            *l *= shrink;
        }
        *m = high;
    }
    *l += w->poison.any ? T(attn_cpu_sdpa_exp_lifted)(&w->f->s, x, n, *m, w->hidden) : u->T(exp)(x, n, *m);
}

/* Flat rows r0 .. r0+n of the task against keys c0 .. c1 of the loaded block at j0. */
static void T(run_strip)(struct T(work) * w, int64_t r0, int64_t n, int64_t j0, int64_t c0, int64_t c1) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v, step = f->panel ? c1 - c0 : V_STEP;
    REAL *o = w->o + r0 * f->ldv;
    T(multiply_keys)(w, r0, n, c0, c1);
    for (int64_t r = 0; r < n; r++) {
        REAL *x = w->s + r * f->lds;
        T(attn_cpu_sdpa_score)(&f->s, &w->seq, &w->row[r0 + r], x, NULL, j0 + c0, c1 - c0, w->mask);
        T(soften)(w, r0 + r, x, c1 - c0);
    }
    for (int64_t c = c0; c < c1; c += step) /* few rows: value rows come from memory, so finish with them while at it */
        f->s.u->T(gemm)(n, width, c1 - c < step ? c1 - c : step, w->s + (c - c0), f->lds, 1, w->vs + c * w->ldv, w->ldv,
                        o, f->ldv, 1);
    if (!w->poison.any) return;
    struct attn_cpu_sdpa_poison part = w->poison;
    part.raw = (REAL *)part.raw + c0 * f->ldv;
    part.row += c0;
    T(attn_cpu_sdpa_poison_apply)(&part, n, c1 - c0, width, f->ldv, w->s, f->lds, 1, o, f->ldv);
}

/* Few rows read every value once, so there is no telling beforehand whether all are finite. If a sum is not finite
 * afterwards, take the block back and do it again with care. */
static void T(run_few)(struct T(work) * w, int64_t n_rows, int64_t begin, int64_t end) {
    const struct attn_cpu_fwd *f = w->f;
    const size_t sums = (size_t)n_rows * sizeof(REAL), rows = (size_t)(n_rows * f->ldv) * sizeof(REAL);
    REAL *m = w->before, *l = m + FEW_ROWS, *o = l + FEW_ROWS;
    memcpy(m, w->m, sums);
    memcpy(l, w->l, sums);
    memcpy(o, w->o, rows);
    T(load_block)(w, begin, end - begin, 0);
    T(run_strip)(w, 0, n_rows, begin, 0, end - begin);
    int clean = 1;
    for (int64_t r = 0; r < n_rows && clean; r++) clean = f->s.u->T(finite)(w->o + r * f->ldv, f->s.p->dim_v);
    if (clean) return;
    memcpy(w->m, m, sums);
    memcpy(w->l, l, sums);
    memcpy(w->o, o, rows);
    T(load_block)(w, begin, end - begin, 1);
    T(run_strip)(w, 0, n_rows, begin, 0, end - begin);
}

/* Keys that rows r0 .. r0+n see: bounds of the union. */
static void T(see)(const struct T(work) * w, int64_t r0, int64_t n, int64_t *lo, int64_t *hi) {
    *lo = INT64_MAX, *hi = 0;
    for (int64_t r = r0; r < r0 + n; r++) {
        const struct attn_cpu_sdpa_row *row = &w->row[r];
        if (row->lo == row->hi) continue;
        if (row->lo < *lo) *lo = row->lo;
        if (row->hi > *hi) *hi = row->hi;
    }
    if (*lo > *hi) *lo = *hi;
}

/* Blocks start at multiples of f->keys and strips of a block at multiples of 32 (see attn_ukr.exp), whatever the first
 * visible key is: the sums of a row do not depend on its neighbours. The few keys before it are hidden as any other. */
static void T(run_keys)(struct T(work) * w, int64_t n_rows, int64_t k0, int64_t k1) {
    const struct attn_cpu_fwd *f = w->f;
    int64_t lo, hi, a, e;
    T(see)(w, 0, n_rows, &lo, &hi);
    if (lo < k0) lo = k0;
    if (hi > k1) hi = k1;
    for (int64_t block = lo / f->keys * f->keys; block < hi; block += f->keys) {
        int64_t begin = lo > block ? lo / 32 * 32 : block, end = hi - block < f->keys ? hi : block + f->keys;
        if (!f->panel) {
            T(run_few)(w, n_rows, begin, end);
            continue;
        }
        T(load_block)(w, begin, end - begin, 0);
        for (int64_t r = 0; r < n_rows; r += f->strip) {
            int64_t n = n_rows - r < f->strip ? n_rows - r : f->strip;
            T(see)(w, r, n, &a, &e);
            if (a < begin) a = begin;
            if (e > end) e = end;
            if (a < e) T(run_strip)(w, r, n, begin, (a - begin) / 32 * 32, e - begin);
        }
    }
}

static void T(run_task)(struct attn_cpu_fwd *f, int64_t task, char *scratch) {
    const attn_problem *p = f->s.p;
    const int64_t split = task % f->splits, block = task / f->splits % f->row_blocks,
                  pair = task / f->splits / f->row_blocks;
    /* the longest task of a causal problem first */
    const int64_t f0 = (f->row_blocks - 1 - block) * f->rows, left = f->s.flat - f0,
                  n = left < f->rows ? left : f->rows;
    struct T(work) work = {.f = f, .b = pair / p->heads_k, .hk = pair % p->heads_k}, *w = &work;
    attn_core_seq_get(p, f->s.args, w->b, &w->seq);
    w->row = (struct attn_cpu_sdpa_row *)(void *)(scratch + f->at.row);
#define AT(name) (REAL *)(void *)(scratch + f->at.name)
    w->q = AT(q), w->kt = AT(k), w->tmp = AT(tmp), w->v = AT(v), w->s = AT(s), w->o = AT(o), w->m = AT(m), w->l = AT(l);
    w->poison.raw = AT(raw), w->before = AT(before);
#undef AT
    w->poison.row = (uint8_t *)scratch + f->at.poison;
    w->hidden = (uint8_t *)scratch + f->at.hidden;
    w->mask = (float *)(void *)(scratch + f->at.mask);
    if (f->splits > 1) {
        char *partial = f->partials + (pair * f->splits + split) * f->partial_bytes;
        w->m = (REAL *)(void *)partial;
        w->l = (REAL *)(void *)(partial + f->partial_l);
        w->o = (REAL *)(void *)(partial + f->partial_o);
    }
    int64_t live = w->seq.sq * f->s.group - f0;
    live = live < 0 ? 0 : live > n ? n : live;
    for (int64_t r = 0; r < live; r++) {
        const int64_t i = (f0 + r) / f->s.group, h = w->hk * f->s.group + (f0 + r) % f->s.group;
        attn_cpu_sdpa_row(&f->s, &w->seq, w->b, h, i, &w->row[r]);
        if (p->dim_qk > 0) T(attn_cpu_sdpa_load)
        (&f->s, w->q + r * f->ldq, attn_view_row(&f->s.q, w->b, h, w->seq.q0 + i), p->dtype, p->dim_qk,
         f->s.row_factor);
        w->m[r] = (REAL)-INFINITY;
        w->l[r] = 0;
    }
    memset(w->o, 0, (size_t)(live * f->ldv) * sizeof *w->o);
    T(run_keys)(w, live, split * f->split, f->splits > 1 ? (split + 1) * f->split : INT64_MAX);
    if (f->splits > 1) return;
    for (int64_t r = 0; r < live; r++)
        T(attn_cpu_fwd_finish)(f, &w->seq, w->b, &w->row[r], (double)w->m[r], (double)w->l[r], w->o + r * f->ldv);
    attn_cpu_fwd_empty(f, &w->seq, w->b, w->hk, f0 + live, f0 + n);
}
