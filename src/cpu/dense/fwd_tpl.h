/* SPDX-License-Identifier: MIT
 * One task of the dense forward for one kind of operands; included by fwd.c for each. No include guard on purpose.
 * Online softmax over key blocks (Milakov and Gimelshein 2018; Dao et al. 2022), accumulators in REAL. The includer
 * defines REAL, T(name) for what belongs to the kind, R(name) for what belongs to REAL, GEMM, HALF (1: a kind of dtypes
 * that may have 16 bits), and PAIRS: 1 = both products run on pairs of bf16 (q, k, v as they are, probabilities
 * rounded), 0 = on REAL. */

#if !PAIRS
void T(attn_cpu_fwd_store)(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                           const struct attn_cpu_sdpa_row *row, double m, double factor, const REAL *o) {
    const attn_problem *p = f->s.p;
    if (p->dim_v <= 0) return;
    char *out = attn_view_row(&f->out, b, row->h, seq->q0 + row->i);
    if (m == -INFINITY || isnan(factor)) {
        attn_cpu_ref_fill(out, f->out.dtype, p->dim_v, m == -INFINITY ? 0 : NAN);
    } else {
        R(attn_cpu_sdpa_store)(&f->s, out, f->out.dtype, o, p->dim_v, factor);
    }
}
void T(attn_cpu_fwd_finish)(const struct attn_cpu_fwd *f, const struct attn_core_seq *seq, int64_t b,
                            const struct attn_cpu_sdpa_row *row, double m, double l, const REAL *o) {
    const double factor = attn_cpu_fwd_close(f, seq, b, row, m, m + log(l) + row->shift, l); /* NaN passes */
    T(attn_cpu_fwd_store)(f, seq, b, row, m, factor, o);
}
#endif

/* C = A B, += with accumulate; rows of A have unit columns. */
static inline void T(gemm)(const struct attn_cpu_fwd *f, int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda,
                           const REAL *b, int64_t ldb, REAL *c, int64_t ldc, int accumulate) {
    f->s.GEMM(m, n, k, a, lda, 1, b, ldb, c, ldc, accumulate);
}

/* What a task works with. */
struct T(work) {
    const struct attn_cpu_fwd *f;
    struct attn_core_seq seq;
    int64_t b, hk;
    struct attn_cpu_sdpa_row *row;
    REAL *q, *kt, *tmp, *v, *s, *p, *o, *m, *l, *older; /* p: probabilities as the second product reads them */
    REAL *l_rounded; /* PAIRS: the sum of P as rounded to bf16; at the end o is multiplied by l / l_rounded */
    struct attn_cpu_fwd_cached *cached;
    REAL *slots;                     /* packed blocks; kt: the loaded keys in one of them */
    const REAL *k, *vs;              /* rows of keys where nothing is packed; rows of values */
    const uint16_t *k_half, *v_half; /* the same as they are in memory */
    int64_t ldk, ldv;
    struct attn_cpu_sdpa_nonfinite nonfinite;
    uint8_t *hidden;
    float *mask;
};

#if HALF
/* Decode: keys and values are read in place. */
static void T(load_half)(struct T(work) * w, int64_t j0, int64_t n, int careful) {
    const struct attn_cpu_fwd *f = w->f;
    const attn_problem *p = f->s.p;
    w->k_half = attn_cpu_half_rows(&f->s, &f->s.k, &w->seq, w->b, w->hk, j0, n, p->dim_qk, PAIRS,
                                   (uint16_t *)(void *)w->kt, f->ldq * (PAIRS ? 2 : 1), NULL, 0, &w->ldk);
    w->nonfinite.any = 0;
    w->v_half = attn_cpu_half_rows(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0, n, p->dim_v, 0, (uint16_t *)(void *)w->v,
                                   f->ldv, careful ? &w->nonfinite : NULL, f->ldv, &w->ldv);
}
#endif

/* The slot of the block with key j0, and whether the keys j0 .. j0+n are in it. */
static struct attn_cpu_fwd_cached *T(slot)(const struct T(work) * w, int64_t j0) {
    return &w->cached[j0 / w->f->block_keys % w->f->n_cached];
}
static int T(holds)(const struct T(work) * w, const struct attn_cpu_fwd_cached *slot, int64_t j0, int64_t n) {
    return slot->head == w->b * w->f->s.p->heads_k + w->hk && slot->begin <= j0 && j0 + n <= slot->end;
}
/* Keys j0 .. j0+n as panels; a slot of another task's has more keys than asked for, as the case may be. */
static void T(pack)(struct T(work) * w, int64_t j0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    struct attn_cpu_fwd_cached *slot = T(slot)(w, j0);
    w->kt = w->slots + (slot - w->cached) * f->block_keys * f->ldq;
    if (T(holds)(w, slot, j0, n)) {
        w->kt += (j0 - slot->begin) * f->depth;
        return;
    }
    *slot = (struct attn_cpu_fwd_cached){.head = w->b * f->s.p->heads_k + w->hk, .begin = j0, .end = j0 + n};
#if PAIRS
    attn_cpu_bf16_panels(&f->s, &f->s.k, &w->seq, w->b, w->hk, j0, n, f->s.p->dim_qk, f->panel, w->kt, w->tmp);
#else
    R(attn_cpu_sdpa_panels)
    (&f->s, &f->s.k, &w->seq, w->b, w->hk, j0, n, f->s.p->dim_qk, f->panel, w->kt, w->tmp, f->ldq);
#endif
}

#if PAIRS
static void T(load_row)(const struct T(work) * w, REAL *dst, const char *src, int64_t h) {
    (void)h;
    attn_cpu_bf16_row(dst, src, w->f->s.p->dim_qk);
}
static void T(load_block)(struct T(work) * w, int64_t j0, int64_t n, int careful) {
    const struct attn_cpu_fwd *f = w->f;
    if (!f->panel) {
        T(load_half)(w, j0, n, careful);
        return;
    }
    T(pack)(w, j0, n);
    attn_cpu_bf16_rows(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0, n, f->s.p->dim_v, w->v, f->ldv, &w->nonfinite);
    w->vs = w->v;
    w->ldv = f->ldv;
}
#else
static void T(load_row)(const struct T(work) * w, REAL *dst, const char *src, int64_t h) {
    const struct attn_cpu_sdpa *s = &w->f->s;
    const double scale = attn_core_scale(s->p, s->args, ATTN_ROLE_Q, w->b, h);
    R(attn_cpu_sdpa_load)(s, dst, src, s->p->dtype, s->p->dim_qk, s->row_factor * scale);
}
/* The keys j0 .. j0+n in use: panels and values are packed, or (few rows) used in place where the tensor allows it.
 * Values in place are not looked at before they are used: see run_checked. */
static void T(load_block)(struct T(work) * w, int64_t j0, int64_t n, int careful) {
    const struct attn_cpu_fwd *f = w->f;
    const attn_problem *p = f->s.p;
    const int64_t width = p->dim_v;
#if HALF
    if (f->half) {
        T(load_half)(w, j0, n, careful);
        return;
    }
#endif
    /* rows far apart would fight for the same cache sets while every strip walks over them */
    const int copy = careful || (f->panel && f->s.v.row != f->ldv);
    if (f->panel) {
        T(pack)(w, j0, n);
    } else {
        w->k = R(attn_cpu_sdpa_keys)(&f->s, &f->s.k, &w->seq, w->b, w->hk, j0, n, p->dim_qk, w->kt, f->ldq, 0, &w->ldk);
    }
    w->nonfinite.any = 0;
    w->vs = R(attn_cpu_sdpa_keys)(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0, n, width, w->v, f->ldv, copy, &w->ldv);
    if (!f->panel && !careful) return;
    if (w->vs != w->v) {
        struct attn_cpu_fwd_cached *slot = f->panel ? T(slot)(w, j0) : NULL;
        const int64_t whole = w->ldv == width ? n : 1; /* rows that follow each other at once */
        if (slot && slot->clean) return;
        int clean = 1;
        for (int64_t j = 0; j < n && clean; j += whole) clean = f->s.u->R(finite)(w->vs + j * w->ldv, whole * width);
        if (slot) slot->clean = clean;
        if (clean) return;
        w->vs = R(attn_cpu_sdpa_keys)(&f->s, &f->s.v, &w->seq, w->b, w->hk, j0, n, width, w->v, f->ldv, 1, &w->ldv);
    }
    R(attn_cpu_sdpa_nonfinite_find)(&f->s, &w->nonfinite, w->v, n, width, f->ldv);
}
#endif

/* Few rows: products with keys c0 .. c0+n of the block, and sums of its values. */
static void T(dots_of)(struct T(work) * w, int64_t rows, int64_t c0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
#if PAIRS
    f->s.bf16->dots(rows, n, f->depth, w->q, f->ldq, w->k_half + c0 * w->ldk, w->ldk, w->s + c0, f->lds);
#else
#if HALF
    if (f->half) {
        f->s.u->gemm_nt_half(rows, n, f->depth, w->q, f->ldq, w->k_half + c0 * w->ldk, w->ldk, f->s.p->dtype, w->s + c0,
                             f->lds);
        return;
    }
#endif
    f->s.u->R(gemm_nt)(rows, n, f->depth, w->q, f->ldq, w->k + c0 * w->ldk, w->ldk, w->s + c0, f->lds);
#endif
}
/* Values are prefetched before the last keys are done: memory is not to wait for the softmax in between. */
static void T(dots)(struct T(work) * w, int64_t rows, int64_t n) {
    const int64_t early = n > V_STEP ? n - V_STEP : 0;
#if HALF
    const char *v = w->f->half || PAIRS ? (const char *)w->v_half : (const char *)w->vs;
    const int64_t bytes = w->f->half || PAIRS ? 2 : (int64_t)sizeof(REAL);
#else
    const char *v = (const char *)w->vs;
    const int64_t bytes = (int64_t)sizeof(REAL);
#endif
    if (early) T(dots_of)(w, rows, 0, early);
    for (int64_t j = 0, prefetched = 0; j < n && prefetched < PREFETCH_BYTES; j++)
        for (int64_t x = 0; x < w->f->s.p->dim_v * bytes; x += 64, prefetched += 64)
            __builtin_prefetch(v + j * w->ldv * bytes + x, 0, 2);
    T(dots_of)(w, rows, early, n - early);
}
static void T(sum_values)(struct T(work) * w, int64_t rows, int64_t c0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v;
#if PAIRS
    f->s.bf16->add_pv(rows, width, n, w->p + c0 / 2, f->ldp, w->v_half + c0 * w->ldv, w->ldv, w->o, f->ldv);
#else
#if HALF
    if (f->half) {
        f->s.u->gemm_half(rows, width, n, w->p + c0, f->ldp, w->v_half + c0 * w->ldv, w->ldv, f->s.p->dtype, w->o,
                          f->ldv, 1);
        return;
    }
#endif
    T(gemm)(f, rows, width, n, w->p + c0, f->ldp, w->vs + c0 * w->ldv, w->ldv, w->o, f->ldv, 1);
#endif
}

/* Raw products of flat rows r0 .. r0+n with keys c0 .. c1 of the loaded block at j0, in w->s. */
static void T(multiply_keys)(struct T(work) * w, int64_t r0, int64_t n, int64_t c0, int64_t c1) {
    const struct attn_cpu_fwd *f = w->f;
    const REAL *q = w->q + r0 * f->ldq;
    if (!f->panel) {
        T(dots)(w, n, c1); /* c0 is 0 */
        return;
    }
    for (int64_t c = c0; c < c1; c += f->panel)
        T(gemm)(f, n, f->panel, f->depth, q, f->ldq, w->kt + c * f->depth, f->panel, w->s + (c - c0), f->lds, 0);
}

#if PAIRS
/* Probabilities x[0..n), of keys of the block from c0 on, go to p as bf16; where values are nonfinite, they stay in x,
 * too. Returns their sum. */
static REAL T(add_pv)(struct T(work) * w, REAL *x, uint16_t *p, int64_t c0, int64_t n, REAL m) {
    const struct attn_cpu_sdpa *s = &w->f->s;
    if (n % 2) p[n] = 0;
    if (!w->nonfinite.any) return s->bf16->exp2(p, x, n, (REAL)(s->unit * LOG2_E), m);
    const REAL sum = attn_cpu_bf16_exp_lifted(s, x, n, (REAL)(s->unit * LOG2_E), m, w->nonfinite.row + c0, w->hidden);
    s->bf16->narrow(p, x, n);
    return sum;
}
#else
static REAL T(add_pv)(struct T(work) * w, REAL *x, REAL *p, int64_t c0, int64_t n, REAL m) {
    (void)p; /* the same as x */
    if (!w->nonfinite.any) return w->f->s.u->R(exp)(x, n, m);
    return R(attn_cpu_sdpa_exp_lifted)(&w->f->s, x, n, m, w->nonfinite.row + c0, w->hidden, 0);
}
#endif

/* One step of the online softmax for row r of the task: x[0..n) holds scores of keys of the block from c0 on, `high` is
 * the largest; p receives probabilities relative to m. */
static void T(exp_scores)(struct T(work) * w, int64_t r, REAL *x, void *p, int64_t c0, int64_t n, REAL high) {
    const struct attn_ukr *u = w->f->s.u;
    REAL *m = &w->m[r], *l = &w->l[r];
    if (high == (REAL)INFINITY) *m = (REAL)NAN; /* exp(inf - inf) */
    for (int64_t j = 0; j < n && high == (REAL)-INFINITY; j++)
        if (isnan(x[j])) *m = (REAL)NAN; /* if all other keys are hidden; else a NaN score shows in the sum */
    if (isinf(high) || isnan(*m)) {
        memset(x, 0, (size_t)n * sizeof *x);
        if (PAIRS) memset(p, 0, (size_t)(n + n % 2) * sizeof(uint16_t));
        return;
    }
    if (high > *m) {
        if (*m > (REAL)-INFINITY) {
            const REAL rescale = (REAL)exp(((double)*m - (double)high) * w->f->s.unit);
            u->R(scale)(w->o + r * w->f->ldv, w->f->s.p->dim_v, rescale);
            *l *= rescale;
            if (PAIRS) w->l_rounded[r] *= rescale;
        }
        *m = high;
    }
    *l += T(add_pv)(w, x, p, c0, n, *m);
#if PAIRS
    w->l_rounded[r] += w->f->s.bf16->total(p, n);
#endif
    if (isnan(*l)) *m = (REAL)NAN;
}

/* Flat rows r0 .. r0+n of the task against keys c0 .. c1 of the loaded block at j0. */
static void T(run_strip)(struct T(work) * w, int64_t r0, int64_t n, int64_t j0, int64_t c0, int64_t c1) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v;
    REAL *o = w->o + r0 * f->ldv;
    T(multiply_keys)(w, r0, n, c0, c1);
    REAL high[MOST_STRIP];
    for (int64_t r = 0; r < n; r++) { /* maxima first: nothing waits for the last steps of one */
        REAL *x = w->s + r * f->lds;
        R(attn_cpu_sdpa_score)(&f->s, &w->seq, &w->row[r0 + r], x, NULL, j0 + c0, c1 - c0, w->mask);
        high[r] = f->s.u->R(max)(x, c1 - c0);
    }
    for (int64_t r = 0; r < n; r++)
        T(exp_scores)(w, r0 + r, w->s + r * f->lds, w->p + r * f->ldp, c0, c1 - c0, high[r]);
    if (!f->panel) { /* c0 is 0. Value rows come from memory, so finish with them while at it */
        for (int64_t c = 0; c < c1; c += V_STEP) T(sum_values)(w, n, c, c1 - c < V_STEP ? c1 - c : V_STEP);
    } else if (PAIRS) { /* c0 is even */
        T(gemm)(f, n, width, (c1 - c0 + 1) / 2, w->p, f->ldp, w->vs + c0 / 2 * w->ldv, w->ldv, o, f->ldv, 1);
    } else { /* in parts: a product's sums of 512 numbers that are alike were close to f32's bound */
        for (int64_t c = c0, next; c < c1; c = next) {
            next = (j0 + c) / SUM_KEYS * SUM_KEYS + SUM_KEYS - j0;
            if (next > c1) next = c1;
            T(gemm)(f, n, width, next - c, w->p + (c - c0), f->ldp, w->vs + c * w->ldv, w->ldv, o, f->ldv, 1);
        }
    }
    if (!w->nonfinite.any) return;
    struct attn_cpu_sdpa_nonfinite part = w->nonfinite;
    part.raw = (REAL *)part.raw + c0 * f->ldv;
    part.row += c0;
    R(attn_cpu_sdpa_nonfinite_apply)(&part, n, c1 - c0, width, f->ldv, w->s, f->lds, 1, o, f->ldv);
}

/* Decode reads every value once, so it cannot know beforehand whether all are finite. If a sum is nonfinite afterwards,
 * the block is undone and run again with nonfinite values set aside. */
static void T(run_checked)(struct T(work) * w, int64_t n_rows, int64_t begin, int64_t end) {
    const struct attn_cpu_fwd *f = w->f;
    const size_t sums = (size_t)n_rows * sizeof(REAL), rows = (size_t)(n_rows * f->ldv) * sizeof(REAL);
    REAL *m = w->older, *l = m + MOST_DECODE_ROWS, *l_rounded = l + MOST_DECODE_ROWS, *o = l_rounded + MOST_DECODE_ROWS;
    memcpy(m, w->m, sums);
    memcpy(l, w->l, sums);
    if (PAIRS) memcpy(l_rounded, w->l_rounded, sums);
    memcpy(o, w->o, rows);
    T(load_block)(w, begin, end - begin, 0);
    T(run_strip)(w, 0, n_rows, begin, 0, end - begin);
    int clean = 1;
    for (int64_t r = 0; r < n_rows && clean; r++) clean = f->s.u->R(finite)(w->o + r * f->ldv, f->s.p->dim_v);
    if (clean) return;
    memcpy(w->m, m, sums);
    memcpy(w->l, l, sums);
    if (PAIRS) memcpy(w->l_rounded, l_rounded, sums);
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

/* Prefetches part `part` of `parts` equal parts of the keys and values j0 .. j0+n into the second-level cache. The next
 * block comes in while this one is multiplied, so that neither packing nor a first strip waits for memory. */
static void T(prefetch)(const struct T(work) * w, int64_t j0, int64_t n, int64_t part, int64_t parts) {
    const struct attn_cpu_fwd *f = w->f;
    const struct attn_view *views[2] = {&f->s.v, &f->s.k};
    const int64_t width[2] = {f->s.p->dim_v, f->s.p->dim_qk}, first = n * part / parts, end = n * (part + 1) / parts;
    const struct attn_cpu_fwd_cached *slot = T(slot)(w, j0);
    const int packed = T(holds)(w, slot, j0, n);
    for (int x = 0; x < 2 - packed; x++) {
        for (int64_t j = j0 + first; j < j0 + end; j++) {
            const char *row = attn_core_kv_row(f->s.p, views[x], &w->seq, w->b, w->hk, j);
            for (int64_t x_byte = 0; row && x_byte < width[x] * views[x]->element_bytes; x_byte += 64)
                __builtin_prefetch(row + x_byte, 0, 2);
        }
    }
    if (!packed) return;
    const REAL *kt = w->slots + (slot - w->cached) * f->block_keys * f->ldq + (j0 - slot->begin) * f->depth;
    const int64_t line = 64 / (int64_t)sizeof(REAL);
    for (int64_t x_byte = first * f->depth / line * line; x_byte < end * f->depth; x_byte += line)
        __builtin_prefetch(kt + x_byte, 0, 2);
}

/* Blocks start at multiples of f->block_keys and strips of a block at multiples of 32 (see attn_ukr.exp), whatever the
 * first visible key is: the sums of a row do not depend on its neighbours. The few keys before it are hidden as any
 * other. */
static void T(run_keys)(struct T(work) * w, int64_t n_rows, int64_t k0, int64_t k1) {
    const struct attn_cpu_fwd *f = w->f;
    int64_t lo, hi, a, e;
    T(see)(w, 0, n_rows, &lo, &hi);
    if (lo < k0) lo = k0;
    if (hi > k1) hi = k1;
    for (int64_t block = lo / f->block_keys * f->block_keys; block < hi; block += f->block_keys) {
        int64_t begin = lo > block ? lo / 32 * 32 : block,
                end = hi - block < f->block_keys ? hi : block + f->block_keys;
        if (!f->panel) {
            T(run_checked)(w, n_rows, begin, end);
            continue;
        }
        T(load_block)(w, begin, end - begin, 0);
        const int64_t next = block + f->block_keys, left = hi - next < f->block_keys ? hi - next : f->block_keys;
        for (int64_t r = 0; r < n_rows; r += f->strip) {
            if (left > 0) T(prefetch)(w, next, left, r / f->strip, attn_cpu_sdpa_blocks(n_rows, f->strip));
            int64_t n = n_rows - r < f->strip ? n_rows - r : f->strip;
            T(see)(w, r, n, &a, &e);
            if (a < begin) a = begin;
            if (e > end) e = end;
            if (a < e) T(run_strip)(w, r, n, begin, (a - begin) / 32 * 32, e - begin);
        }
    }
}

#if PAIRS
/* Rows r .. r+rows against keys j .. j+n, those of k0 .. that they see. Wide values take a call for each part of their
 * columns, which come to the same maxima and sums. */
static void T(run_part)(struct T(work) * w, int64_t r, int64_t rows, int64_t k0, int64_t j, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v;
    const uint16_t *v = (const uint16_t *)(const void *)attn_view_row(&f->s.v, w->b, w->hk, w->seq.k0 + j);
    int64_t lo[ATTN_DECODE_AMX_ROWS], hi[ATTN_DECODE_AMX_ROWS];
    REAL m[ATTN_DECODE_AMX_ROWS], l[ATTN_DECODE_AMX_ROWS], m_before[ATTN_DECODE_AMX_ROWS],
        l_before[ATTN_DECODE_AMX_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        const struct attn_cpu_sdpa_row *row = &w->row[r + i];
        lo[i] = (row->lo > k0 ? row->lo : k0) - j, hi[i] = row->hi - j;
        lo[i] = lo[i] < 0 ? 0 : lo[i], hi[i] = hi[i] < 0 ? 0 : hi[i] < n ? hi[i] : n;
        m_before[i] = w->m[r + i], l_before[i] = w->l[r + i];
    }
    for (int64_t c = 0; c < width; c += ATTN_DECODE_AMX_WIDTH) {
        const struct attn_decode_amx decode = {
            .rows = rows,
            .depth = f->s.p->dim_qk,
            .width = width - c < ATTN_DECODE_AMX_WIDTH ? width - c : ATTN_DECODE_AMX_WIDTH,
            .q = w->q + r * f->ldq,
            .ldq = f->ldq,
            .k = (const uint16_t *)(const void *)attn_view_row(&f->s.k, w->b, w->hk, w->seq.k0 + j),
            .v = v + c,
            .ldk = f->s.k.row,
            .ldv = f->s.v.row,
            .lo = lo,
            .hi = hi,
            .factor = (float)(f->s.unit * LOG2_E),
            .m = m,
            .l = l,
            .o = w->o + r * f->ldv + c,
            .ldo = f->ldv,
            .equal_ranges = f->same_keys,
            .prefetch = r == 0};
        memcpy(m, m_before, sizeof m);
        memcpy(l, l_before, sizeof l);
        f->s.bf16->decode_tiles(&decode);
        for (int64_t i = 0; i < rows; i++)
            if (c == 0 || isnan(l[i])) w->m[r + i] = m[i], w->l[r + i] = l[i];
    }
}
/* Few rows in one pass over their keys where the table has `decode_tiles`; what it cannot finish goes through run_keys.
 * Keys that are read more than once go in blocks. */
static void T(run_decode)(struct T(work) * w, int64_t n_rows, int64_t k0, int64_t k1) {
    const struct attn_cpu_fwd *f = w->f;
    struct attn_cpu_fwd_bounds all = attn_cpu_fwd_see(w->row, n_rows);
    const int once = n_rows <= ATTN_DECODE_AMX_ROWS && f->s.p->dim_v <= ATTN_DECODE_AMX_WIDTH;
    const int64_t begin = (all.lo > k0 ? all.lo : k0) / ATTN_DECODE_AMX_STEP * ATTN_DECODE_AMX_STEP,
                  stop = all.hi < k1 ? all.hi : k1, block = once ? stop - begin : f->block_keys;
    for (int64_t j = begin; j < stop; j += block)
        for (int64_t r = 0; r < n_rows; r += ATTN_DECODE_AMX_ROWS) T(run_part)
    (w, r, n_rows - r < ATTN_DECODE_AMX_ROWS ? n_rows - r : ATTN_DECODE_AMX_ROWS, k0, j,
     stop - j < block ? stop - j : block);
    for (int64_t r = 0; r < n_rows; r++) {
        struct T(work) one = *w;
        one.row += r, one.q += r * f->ldq, one.m += r, one.l += r, one.l_rounded += r, one.o += r * f->ldv;
        *one.l_rounded = *one.l;
        if (isfinite(*one.l) && f->s.u->R(finite)(one.o, f->s.p->dim_v)) continue;
        *one.m = (REAL)-INFINITY, *one.l = *one.l_rounded = 0;
        memset(one.o, 0, (size_t)f->ldv * sizeof *one.o);
        T(run_keys)(&one, 1, k0, k1);
    }
}
#endif

#if HALF
#include "cpu/dense/decode_tpl.h"
#endif

/* A task of a pair (batch, key head); the first ones are the longest of a causal problem. */
static void T(run_task)(struct attn_cpu_fwd *f, int64_t head, int64_t task, char *scratch) {
    const attn_problem *p = f->s.p;
    const int64_t split = task % f->splits, f0 = (f->row_blocks - 1 - task / f->splits) * f->rows,
                  left = f->s.flat - f0, n = left < f->rows ? left : f->rows;
    struct T(work) work = {.f = f, .b = head / p->heads_k, .hk = head % p->heads_k}, *w = &work;
    attn_cpu_sdpa_seq(&f->s, w->b, &w->seq);
    w->row = (struct attn_cpu_sdpa_row *)(void *)(scratch + f->offsets.row);
#define SCRATCH(name) (REAL *)(void *)(scratch + f->offsets.name)
    w->q = SCRATCH(q), w->slots = w->kt = SCRATCH(k), w->tmp = SCRATCH(tmp), w->v = SCRATCH(v), w->s = SCRATCH(s),
    w->p = SCRATCH(p), w->o = SCRATCH(o), w->m = SCRATCH(m), w->l = SCRATCH(l), w->l_rounded = w->l + f->rows;
    w->nonfinite.raw = SCRATCH(raw), w->older = SCRATCH(older);
#undef SCRATCH
    w->cached = (struct attn_cpu_fwd_cached *)(void *)(scratch + f->offsets.cached);
    w->nonfinite.row = (uint8_t *)scratch + f->offsets.nonfinite;
    w->hidden = (uint8_t *)scratch + f->offsets.hidden;
    w->mask = (float *)(void *)(scratch + f->offsets.mask);
    if (f->splits > 1) {
        char *partial = f->partials + (head * f->splits + split) * f->partial_bytes;
        w->m = (REAL *)(void *)partial;
        w->l = (REAL *)(void *)(partial + f->partial_l);
        w->o = (REAL *)(void *)(partial + f->partial_o);
    }
    int64_t n_valid = w->seq.sq * f->s.group - f0;
    n_valid = n_valid < 0 ? 0 : n_valid > n ? n : n_valid;
    for (int64_t r = 0; r < n_valid; r++) {
        const int64_t i = (f0 + r) / f->s.group, h = w->hk * f->s.group + (f0 + r) % f->s.group;
        attn_cpu_sdpa_row(&f->s, &w->seq, w->b, h, i, &w->row[r]);
        if (p->dim_qk > 0) T(load_row)(w, w->q + r * f->ldq, attn_view_row(&f->s.q, w->b, h, w->seq.q0 + i), h);
        w->m[r] = (REAL)-INFINITY;
        w->l[r] = 0;
        if (PAIRS) w->l_rounded[r] = 0;
    }
    memset(w->o, 0, (size_t)(n_valid * f->ldv) * sizeof *w->o);
    const int64_t k0 = split * f->split, k1 = f->splits > 1 ? k0 + f->split : INT64_MAX;
#if PAIRS
    if (f->decode_amx) {
        T(run_decode)(w, n_valid, k0, k1);
    } else
#endif
#if HALF
        if (f->steps) {
        T(run_steps)(w, n_valid, k0, k1);
    } else
#endif
        T(run_keys)(w, n_valid, k0, k1);
#if PAIRS
    for (int64_t r = 0; r < n_valid; r++)
        if (w->l_rounded[r] > 0 && isfinite(w->l[r]))
            f->s.u->R(scale)(w->o + r * f->ldv, p->dim_v, w->l[r] / w->l_rounded[r]);
#endif
    if (f->splits > 1) return;
    for (int64_t r = 0; r < n_valid; r++) R(attn_cpu_fwd_finish)
    (f, &w->seq, w->b, &w->row[r], (double)w->m[r] * f->s.unit, (double)w->l[r], w->o + r * f->ldv);
    attn_cpu_fwd_empty(f, &w->seq, w->b, w->hk, f0 + n_valid, f0 + n);
}
