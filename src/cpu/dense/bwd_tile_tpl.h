/* SPDX-License-Identifier: MIT
 * Tiles for one kind of operands; included by bwd_tile.c for each. No include guard on purpose.
 * The includer defines REAL, T(name) for what belongs to the kind, R(name) for what belongs to REAL, SMALLEST (the
 * smallest normal number) and PAIRS: 1 = products on pairs of bf16, P and dS rounded for them; sums in REAL. */

static inline void T(gemm)(const struct attn_cpu_bwd *w, int64_t m, int64_t n, int64_t k, const REAL *a, int64_t a_row,
                           int64_t a_col, const REAL *b, int64_t ldb, REAL *c, int64_t ldc, int accumulate) {
#if PAIRS
    w->s.bf16->gemm(m, n, k, a, a_row, a_col, b, ldb, c, ldc, accumulate);
#else
    w->s.u->R(gemm)(m, n, k, a, a_row, a_col, b, ldb, c, ldc, accumulate);
#endif
}

void T(attn_cpu_tile_init)(struct T(attn_cpu_tile) * t, const struct attn_cpu_bwd *w, char *scratch, int slot) {
    *t = (struct T(attn_cpu_tile)){.w = w};
#define SCRATCH(name) (REAL *)(void *)(scratch + w->offsets.name)
    t->q = SCRATCH(q) + slot * w->tile * w->ldq;
    t->dout = SCRATCH(dout) + slot * w->tile * w->ldo;
    t->q_zip = SCRATCH(q_zip), t->dout_zip = SCRATCH(dout_zip), t->p_zip = SCRATCH(p_zip), t->ds_zip = SCRATCH(ds_zip);
    t->k_zip = SCRATCH(k_zip), t->ds_half = SCRATCH(ds_half);
    t->k = SCRATCH(k), t->v = SCRATCH(v), t->kt = SCRATCH(kt), t->vt = SCRATCH(vt), t->p = SCRATCH(p),
    t->ds = SCRATCH(ds), t->tmp = SCRATCH(tmp);
    t->chain = w->s.p->softcap > 0 ? SCRATCH(chain) : NULL;
    t->bad_q.raw = SCRATCH(raw_q), t->bad_dout.raw = SCRATCH(raw_dout), t->bad_k.raw = SCRATCH(raw_k);
#undef SCRATCH
    t->bad_q.row = (uint8_t *)scratch + w->offsets.bad;
    t->bad_dout.row = t->bad_q.row + w->tile;
    t->bad_k.row = t->bad_dout.row + w->tile;
    t->hidden = (uint8_t *)scratch + w->offsets.hidden;
    t->mask = (float *)(void *)(scratch + w->offsets.mask);
    t->row = (struct attn_cpu_sdpa_row *)(void *)(scratch + w->offsets.row) + slot * w->tile;
    t->stat = (struct attn_cpu_bwd_row **)(void *)(scratch + w->offsets.stat) + slot * w->tile;
}

void T(attn_cpu_tile_head)(struct T(attn_cpu_tile) * t, int64_t b, int64_t hk) {
    t->b = b;
    t->hk = hk;
    t->n_rows = t->n_keys = 0;
    attn_cpu_sdpa_seq(&t->w->s, b, &t->seq);
}

/* Rows as pairs of rows, for the sums over rows. */
static void T(zip_rows)(struct T(attn_cpu_tile) * t) {
#if PAIRS
    const struct attn_cpu_bwd *w = t->w;
    const attn_problem *p = w->s.p;
    t->bad_q.any = t->bad_dout.any = 0;
    memset(t->bad_q.row, 0, (size_t)t->n_rows);
    memset(t->bad_dout.row, 0, (size_t)t->n_rows);
    for (int64_t r = 0; r < t->n_rows; r += 2) {
        const int both = r + 1 < t->n_rows;
        const float *q = t->q + r * w->ldq, *dout = t->dout + r * w->ldo;
        if (!attn_cpu_bf16_zip(&w->s, q, both ? q + w->ldq : NULL, r, p->dim_qk, t->q_zip + r / 2 * w->ldd, &t->bad_q,
                               w->ldd))
            t->bad_rows = 1;
        if (!attn_cpu_bf16_zip(&w->s, dout, both ? dout + w->ldo : NULL, r, p->dim_v, t->dout_zip + r / 2 * w->ldv,
                               &t->bad_dout, w->ldv))
            t->bad_rows = 1;
    }
#else
    (void)t;
#endif
}

void T(attn_cpu_tile_rows)(struct T(attn_cpu_tile) * t, int64_t h0, int64_t group, int64_t f0, int64_t n) {
    const struct attn_cpu_bwd *w = t->w;
    const attn_problem *p = w->s.p;
    t->n_rows = n;
    t->lo = INT64_MAX, t->hi = 0, t->bad_rows = 0, t->simple = w->s.plain;
    for (int64_t r = 0; r < n; r++) {
        const int64_t i = (f0 + r) / group, h = h0 + (f0 + r) % group, row_q = t->seq.q0 + i;
        REAL *q = t->q + r * w->ldq, *dout = t->dout + r * w->ldo;
        struct attn_cpu_sdpa_row *row = &t->row[r];
        struct attn_cpu_bwd_row *stat = t->stat[r] = attn_cpu_bwd_stat(w, &t->seq, t->b, h, i);
        attn_cpu_sdpa_row(&w->s, &t->seq, t->b, h, i, row);
        if (isinf(stat->lse)) row->lo = row->hi = 0;
        if (row->lo == row->hi) { /* nothing of such a row may reach a product */
            memset(q, 0, (size_t)w->ldq * sizeof *q);
            memset(dout, 0, (size_t)w->ldo * sizeof *dout);
            continue;
        }
        if (stat->g < 1 || stat->g > 1 || !isfinite(stat->lse)) t->simple = 0;
        if (row->lo < t->lo) t->lo = row->lo;
        if (row->hi > t->hi) t->hi = row->hi;
#if PAIRS
        if (p->dim_qk > 0) attn_cpu_bf16_row(q, attn_view_row(&w->s.q, t->b, h, row_q), p->dim_qk);
        if (p->dim_v > 0) attn_cpu_bf16_row(dout, attn_view_row(&w->dout, t->b, h, row_q), p->dim_v);
        if (!isfinite(stat->shift)) t->bad_rows = 1;
#else
        if (p->dim_qk > 0) R(attn_cpu_sdpa_load)
        (&w->s, q, attn_view_row(&w->s.q, t->b, h, row_q), p->dtype, p->dim_qk, w->s.row_factor);
        if (p->dim_v > 0)
            R(attn_cpu_sdpa_load)(&w->s, dout, attn_view_row(&w->dout, t->b, h, row_q), p->dtype, p->dim_v, stat->g);
        if (!isfinite(stat->shift) || !w->s.u->R(finite)(dout, p->dim_v) || !w->s.u->R(finite)(q, p->dim_qk))
            t->bad_rows = 1;
#endif
    }
    if (PAIRS) T(zip_rows)(t);
    if (t->lo > t->hi) t->lo = t->hi;
}

#if !PAIRS
/* The tile's keys as panels [keys / PANEL][width][PANEL], the last one filled up with 0. */
static void T(turn)(const struct T(attn_cpu_tile) * t, REAL *dst, const REAL *rows, int64_t ld, int64_t width) {
    for (int64_t j = 0; j < t->n_keys; j += PANEL, dst += width * PANEL) {
        const int64_t cols = t->n_keys - j < PANEL ? t->n_keys - j : PANEL;
        t->w->s.u->R(transpose)(dst, PANEL, rows + j * ld, ld, cols, width);
        for (int64_t c = 0; c < width && cols < PANEL; c++)
            memset(dst + c * PANEL + cols, 0, (size_t)(PANEL - cols) * sizeof *dst);
    }
}
#endif

void T(attn_cpu_tile_keys)(struct T(attn_cpu_tile) * t, int64_t j0, int64_t n) {
    const struct attn_cpu_bwd *w = t->w;
    const attn_problem *p = w->s.p;
    int64_t ld;
    t->j0 = j0;
    t->n_keys = n;
#if PAIRS
    const struct attn_cpu_sdpa *s = &w->s;
    attn_cpu_bf16_rows(s, &s->k, &t->seq, t->b, t->hk, j0, n, p->dim_qk, t->k_zip, w->ldd, &t->bad_k);
    attn_cpu_bf16_panels(s, &s->k, &t->seq, t->b, t->hk, j0, n, p->dim_qk, w->tile, t->kt, t->k);
    attn_cpu_bf16_panels(s, &s->v, &t->seq, t->b, t->hk, j0, n, p->dim_v, w->tile, t->vt, t->v);
    t->bad_values = 0;
    for (int64_t j = 0; j < n && p->dim_v > 0 && !t->bad_values; j++) {
        const void *v = attn_core_kv_row(p, &s->v, &t->seq, t->b, t->hk, j0 + j);
        t->bad_values = v && !s->bf16->finite(v, p->dim_v);
    }
    (void)ld;
#else
    R(attn_cpu_sdpa_keys)(&w->s, &w->s.k, &t->seq, t->b, t->hk, j0, n, p->dim_qk, t->k, w->ldd, 1, &ld);
    T(turn)(t, t->kt, t->k, w->ldd, p->dim_qk);
    R(attn_cpu_sdpa_nonfinite_find)(&w->s, &t->bad_k, t->k, n, p->dim_qk, w->ldd);
    const REAL *v = R(attn_cpu_sdpa_keys)(&w->s, &w->s.v, &t->seq, t->b, t->hk, j0, n, p->dim_v, t->v, w->ldv, 0, &ld);
    T(turn)(t, t->vt, v, ld, p->dim_v);
    t->bad_values = !w->s.u->R(finite)(t->vt, attn_cpu_sdpa_up(n, PANEL) * p->dim_v);
#endif
}

void T(attn_cpu_tile_same_keys)(struct T(attn_cpu_tile) * t, const struct T(attn_cpu_tile) * loaded) {
    t->j0 = loaded->j0;
    t->n_keys = loaded->n_keys;
    t->bad_k = loaded->bad_k;
    t->bad_values = loaded->bad_values;
}

/* P and dS of plain rows r0 .. r0+m and n keys from a on in one pass; pairs: r0 is even, and all keys. */
static int T(fuse)(struct T(attn_cpu_tile) * t, int64_t r0, int64_t m, int64_t a, int64_t n) {
#if PAIRS
    (void)a, (void)n;
    const struct attn_cpu_bwd *w = t->w;
    if (!t->simple || t->bad_rows || t->bad_values || t->bad_k.any) return 0;
    for (int64_t r = r0; r < r0 + m; r += 2) {
        struct attn_bwd_row row[2];
        const int64_t both = r + 1 < r0 + m;
        for (int64_t i = r; i <= r + both; i++) {
            const int empty = t->row[i].lo == t->row[i].hi;
            const REAL max = empty ? (REAL)INFINITY : (REAL)(t->stat[i]->lse / w->s.unit);
            row[i - r] = (struct attn_bwd_row){t->p + i * w->lds, t->ds + i * w->lds, max, (REAL)t->stat[i]->shift,
                                               (uint16_t *)(void *)(t->ds_half + i * w->ldh)};
            if (empty) row[i - r].delta = 0;
            if (t->n_keys % 2) row[i - r].ds[t->n_keys] = 0;
        }
        w->s.bf16->bwd_rows(t->p_zip + r / 2 * w->lds, t->ds_zip + r / 2 * w->lds, &row[0], both ? &row[1] : NULL,
                            t->n_keys, (REAL)(w->s.unit * LOG2_E));
    }
    return 1;
#else
    const struct attn_cpu_bwd *w = t->w;
    REAL lse[MOST_TILE], delta[MOST_TILE];
    if (!t->simple || t->bad_rows || t->bad_values) return 0;
    for (int64_t r = 0; r < m; r++) {
        const int empty = t->row[r0 + r].lo == t->row[r0 + r].hi;
        lse[r] = empty ? (REAL)INFINITY : (REAL)t->stat[r0 + r]->lse;
        delta[r] = empty ? 0 : (REAL)t->stat[r0 + r]->shift;
    }
    w->s.u->R(score_bwd)(m, n, t->p + r0 * w->lds + a, t->ds + r0 * w->lds + a, w->lds, lse, delta);
    return 1;
#endif
}

/* P and dS of row r from its scores and dP, for n keys. */
static void T(exp_scores)(struct T(attn_cpu_tile) * t, int64_t r, REAL *x, REAL *ds, int64_t n) {
    const struct attn_cpu_bwd *w = t->w;
    const struct attn_ukr *u = w->s.u;
    const struct attn_cpu_sdpa_row *row = &t->row[r];
    const REAL lse = (REAL)(t->stat[r]->lse - row->shift);
    if (row->lo == row->hi) {
        memset(x, 0, (size_t)n * sizeof *x);
    } else if (!isfinite(lse)) { /* a NaN row, for the keys that it sees */
        for (int64_t j = 0; j < n; j++) x[j] = x[j] == (REAL)-INFINITY ? 0 : (REAL)NAN;
#if PAIRS
    } else if (w->s.plain) { /* as in fuse, to the bit */
        const REAL factor = (REAL)(w->s.unit * LOG2_E), max = (REAL)(t->stat[r]->lse / w->s.unit);
        if (t->bad_rows || t->bad_values) {
            attn_cpu_bf16_exp_lifted(&w->s, x, n, factor, max, NULL, t->hidden);
        } else {
            w->s.bf16->exp2_f32(x, n, factor, max);
        }
#endif
    } else if (t->bad_rows || t->bad_values) {
        R(attn_cpu_sdpa_exp_lifted)(&w->s, x, n, lse, NULL, t->hidden, 1);
    } else {
        u->R(exp_lse)(x, n, lse);
    }
    const double g = t->stat[r]->g;
    const int apart = PAIRS && (g < 1 || g > 1); /* pairs of dout are bits of the tensor: g goes to dP and P */
    if (apart) u->R(scale)(ds, n, (REAL)g);
    u->R(dsoftmax)(x, ds, n, (REAL)t->stat[r]->shift);
    if (apart && !t->bad_rows) u->R(scale)(x, n, (REAL)g);
    for (int64_t j = 0; j < n && apart && t->bad_rows; j++) { /* 0 stays the mark of a hidden key */
        const REAL share = x[j] * (REAL)g;
        x[j] = share == 0 && x[j] != 0 ? SMALLEST : share;
    }
}

/* Keys of the tile that rows r0 .. r0+m see, in whole panels of a product. */
static void T(see)(const struct T(attn_cpu_tile) * t, int64_t r0, int64_t m, int64_t *first, int64_t *end) {
    int64_t a = t->n_keys, e = 0;
    for (int64_t r = r0; r < r0 + m; r++) {
        const struct attn_cpu_sdpa_row *row = &t->row[r];
        if (row->lo >= row->hi || row->lo >= t->j0 + t->n_keys || row->hi <= t->j0) continue;
        if (row->lo - t->j0 < a) a = row->lo - t->j0;
        if (row->hi - t->j0 > e) e = row->hi - t->j0;
    }
    a = a < 0 ? 0 : a / PANEL * PANEL;
    e = attn_cpu_sdpa_up(e, PANEL);
    if (e > t->n_keys) e = t->n_keys;
    if (a > e) a = e;
    *first = a, *end = e;
}

/* Rows of the tile that see at least one of its keys c .. c+m. */
static void T(seen)(const struct T(attn_cpu_tile) * t, int64_t c, int64_t m, int64_t *first, int64_t *end) {
    const int64_t j = t->j0 + c;
    *first = t->n_rows, *end = 0;
    for (int64_t r = 0; r < t->n_rows; r++) {
        if (t->row[r].lo >= j + m || t->row[r].hi <= j) continue;
        if (*end == 0) *first = r;
        *end = r + 1;
    }
    if (*end == 0) *first = 0;
}

/* m rows of A times the keys a .. e of the tile, as they were packed. */
static void T(multiply)(const struct T(attn_cpu_tile) * t, int64_t m, int64_t a, int64_t e, int64_t depth,
                        const REAL *x, int64_t ldx, const REAL *keys, REAL *c) {
    const struct attn_cpu_bwd *w = t->w;
    const int64_t panel = PAIRS ? w->tile : PANEL;
    for (int64_t j = a; j < e; j += panel)
        T(gemm)(w, m, e - j < panel ? e - j : panel, depth, x, ldx, 1, keys + j * depth, panel, c + (j - a), w->lds, 0);
}

/* All rows at once, or by strips: where some do not see some keys, each leaves out what none of its rows sees; where
 * the keys of a tile are small, P and dS are made while both products are in the first-level cache. */
void T(attn_cpu_tile_compute)(struct T(attn_cpu_tile) * t) {
    const struct attn_cpu_bwd *w = t->w;
    t->fused = t->partial = 0;
    for (int64_t r = 0; r < t->n_rows && !PAIRS; r++)
        t->partial |= t->row[r].lo > t->j0 || t->row[r].hi < t->j0 + t->n_keys;
    const int narrow = t->partial || (!PAIRS && w->depth_qk + w->depth_v <= 128);
    for (int64_t r0 = 0, m; r0 < t->n_rows; r0 += m) {
        int64_t a = 0, e = t->n_keys;
        m = narrow && t->n_rows - r0 > TILE_STRIP ? TILE_STRIP : t->n_rows - r0;
        if (!PAIRS) T(see)(t, r0, m, &a, &e);
        for (int64_t r = r0; r < r0 + m && (a > 0 || e < t->n_keys); r++) {
            memset(t->p + r * w->lds, 0, (size_t)a * sizeof *t->p);
            memset(t->ds + r * w->lds, 0, (size_t)a * sizeof *t->ds);
            memset(t->p + r * w->lds + e, 0, (size_t)(t->n_keys - e) * sizeof *t->p);
            memset(t->ds + r * w->lds + e, 0, (size_t)(t->n_keys - e) * sizeof *t->ds);
        }
        if (a == e) continue;
        REAL *p = t->p + r0 * w->lds + a, *ds = t->ds + r0 * w->lds + a;
        T(multiply)(t, m, a, e, w->depth_qk, t->q + r0 * w->ldq, w->ldq, t->kt, p);
        T(multiply)(t, m, a, e, w->depth_v, t->dout + r0 * w->ldo, w->ldo, t->vt, ds);
        for (int64_t r = r0; r < r0 + m && (PAIRS || !w->s.plain || t->partial); r++) {
            REAL *chain = t->chain ? t->chain + r * w->lds + a : NULL;
            R(attn_cpu_sdpa_score)
            (&w->s, &t->seq, &t->row[r], t->p + r * w->lds + a, chain, t->j0 + a, e - a, t->mask);
        }
        t->fused = T(fuse)(t, r0, m, a, e - a);
        for (int64_t r = r0; r < r0 + m && !t->fused; r++)
            T(exp_scores)(t, r, t->p + r * w->lds + a, t->ds + r * w->lds + a, e - a);
    }
}

/* x[n_rows][n_keys] as pairs of rows, rows lds apart as before. */
static void T(zip_tile)(const struct T(attn_cpu_tile) * t, const REAL *x, REAL *zip) {
#if PAIRS
    const int64_t ld = t->w->lds;
    for (int64_t r = 0; r < t->n_rows; r += 2)
        t->w->s.bf16->zip_f32(zip + r / 2 * ld, x + r * ld, r + 1 < t->n_rows ? x + (r + 1) * ld : NULL, t->n_keys, 1);
#else
    (void)t, (void)x, (void)zip;
#endif
}

void T(attn_cpu_tile_chain)(struct T(attn_cpu_tile) * t) {
    const struct attn_cpu_bwd *w = t->w;
    if (t->fused) return;
    for (int64_t r = 0; t->chain && r < t->n_rows;
         r++) { /* chain is defined where the row sees keys; ds is 0 elsewhere */
        int64_t first = t->row[r].lo - t->j0, end = t->row[r].hi - t->j0;
        first = first < 0 ? 0 : first > t->n_keys ? t->n_keys : first;
        end = end < first ? first : end > t->n_keys ? t->n_keys : end;
        REAL *ds = t->ds + r * w->lds;
        w->s.u->R(mul)(ds + first, t->chain + r * w->lds + first, end - first);
        if (!t->bad_rows && !t->bad_k.any) continue;
        for (int64_t j = first; j < end; j++) /* the cap made an infinite product a score with derivative 0 */
            if (ds[j] == 0 && t->p[r * w->lds + j] != 0) ds[j] = SMALLEST;
    }
#if PAIRS
    for (int64_t r = 0; r < t->n_rows; r++) {
        uint16_t *half = (uint16_t *)(void *)(t->ds_half + r * w->ldh);
        w->s.bf16->narrow(half, t->ds + r * w->lds, t->n_keys);
        if (t->n_keys % 2) half[t->n_keys] = 0;
    }
#endif
}

/* C += A^T B over the rows of the tile, A is P or dS: for all keys at once, or, where some rows do not see some of
 * them, strip by strip over the rows that do. What is left out is a product with 0. */
static void T(sum_rows)(const struct T(attn_cpu_tile) * t, int64_t width, const REAL *x, const REAL *b, int64_t ldb,
                        REAL *c) {
    const struct attn_cpu_bwd *w = t->w;
    const int64_t strip = t->partial ? 2 * TILE_STRIP : t->n_keys;
    for (int64_t j = 0; j < t->n_keys; j += strip) {
        const int64_t m = t->n_keys - j < strip ? t->n_keys - j : strip;
        int64_t first = 0, end = t->n_rows;
        if (t->partial) T(seen)(t, j, m, &first, &end);
        if (first == end) continue;
        T(gemm)(w, m, width, end - first, x + first * w->lds + j, 1, w->lds, b + first * ldb, ldb, c + j * ldb, ldb, 1);
    }
}

void T(attn_cpu_tile_add_dv)(struct T(attn_cpu_tile) * t, REAL *dv) {
    const struct attn_cpu_bwd *w = t->w;
    const int64_t width = w->s.p->dim_v;
    if (PAIRS) {
        if (!t->fused) T(zip_tile)(t, t->p, t->p_zip);
        T(gemm)(w, t->n_keys, width, (t->n_rows + 1) / 2, t->p_zip, 1, w->lds, t->dout_zip, w->ldv, dv, w->ldv, 1);
    } else {
        t->bad_dout.any = 0;
        if (t->bad_rows) R(attn_cpu_sdpa_nonfinite_find)(&w->s, &t->bad_dout, t->dout, t->n_rows, width, w->ldv);
        T(sum_rows)(t, width, t->p, t->dout, w->ldv, dv);
    }
    if (t->bad_dout.any) R(attn_cpu_sdpa_nonfinite_apply)
    (&t->bad_dout, t->n_keys, t->n_rows, width, w->ldv, t->p, 1, w->lds, dv, w->ldv);
}

void T(attn_cpu_tile_add_dk)(struct T(attn_cpu_tile) * t, REAL *dk) {
    const struct attn_cpu_bwd *w = t->w;
    const int64_t width = w->s.p->dim_qk;
    if (PAIRS) {
        if (!t->fused) T(zip_tile)(t, t->ds, t->ds_zip);
        T(gemm)(w, t->n_keys, width, (t->n_rows + 1) / 2, t->ds_zip, 1, w->lds, t->q_zip, w->ldd, dk, w->ldd, 1);
    } else {
        t->bad_q.any = 0;
        if (t->bad_rows) R(attn_cpu_sdpa_nonfinite_find)(&w->s, &t->bad_q, t->q, t->n_rows, width, w->ldd);
        T(sum_rows)(t, width, t->ds, t->q, w->ldd, dk);
    }
    if (t->bad_q.any)
        R(attn_cpu_sdpa_nonfinite_apply)(&t->bad_q, t->n_keys, t->n_rows, width, w->ldd, t->ds, 1, w->lds, dk, w->ldd);
}

void T(attn_cpu_tile_add_dq)(const struct T(attn_cpu_tile) * t, REAL *dq) {
    const struct attn_cpu_bwd *w = t->w;
    const int64_t width = w->s.p->dim_qk;
    if (PAIRS) {
        T(gemm)(w, t->n_rows, width, (t->n_keys + 1) / 2, t->ds_half, w->ldh, 1, t->k_zip, w->ldd, dq, w->ldd, 1);
    } else {
        const int64_t strip = t->partial ? 2 * TILE_STRIP : t->n_rows;
        for (int64_t r = 0; r < t->n_rows; r += strip) {
            const int64_t m = t->n_rows - r < strip ? t->n_rows - r : strip;
            int64_t a = 0, e = t->n_keys;
            if (t->partial) T(see)(t, r, m, &a, &e);
            if (a == e) continue;
            const REAL *ds = t->ds + r * w->lds + a, *k = t->k + a * w->ldd;
            T(gemm)(w, m, width, e - a, ds, w->lds, 1, k, w->ldd, dq + r * w->ldd, w->ldd, 1);
        }
    }
    if (t->bad_k.any)
        R(attn_cpu_sdpa_nonfinite_apply)(&t->bad_k, t->n_rows, t->n_keys, width, w->ldd, t->ds, w->lds, 1, dq, w->ldd);
}
