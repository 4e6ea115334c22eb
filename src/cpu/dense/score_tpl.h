/* SPDX-License-Identifier: MIT
 * Packing, scores and nonfinite values for one compute type; included twice by score.c. No include guard on purpose.
 * The includer defines REAL, T(name), REAL_IS_F64 and SMALLEST (the smallest normal number). */

void T(attn_cpu_sdpa_scale)(const struct attn_cpu_sdpa *s, REAL *y, int64_t n, double factor) {
    const uint32_t mode = attn_base_float_keep_subnormals();
    s->u->T(scale)(y, n, (REAL)factor);
    attn_base_float_end(mode);
}

void T(attn_cpu_sdpa_load)(const struct attn_cpu_sdpa *s, REAL *dst, const void *src, int32_t dtype, int64_t n,
                           double factor) {
    const int scaled = factor < 1 || factor > 1;
    const uint32_t mode = scaled ? attn_base_float_keep_subnormals() : 0;
#if REAL_IS_F64
    (void)dtype;
    memcpy(dst, src, (size_t)n * sizeof *dst);
    if (scaled) s->u->scale_f64(dst, n, factor);
#else
    s->u->widen(dst, src, dtype, n, (float)factor);
#endif
    if (scaled) attn_base_float_end(mode);
}

void T(attn_cpu_sdpa_store)(const struct attn_cpu_sdpa *s, void *dst, int32_t dtype, const REAL *src, int64_t n,
                            double factor) {
#if REAL_IS_F64
    (void)dtype;
    memcpy(dst, src, (size_t)n * sizeof *src);
    if (factor < 1 || factor > 1 || isnan(factor)) s->u->scale_f64(dst, n, factor);
#else
    s->u->narrow(dst, dtype, src, n, (float)factor);
#endif
}

const REAL *T(attn_cpu_sdpa_keys)(const struct attn_cpu_sdpa *s, const struct attn_view *view,
                                  const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,
                                  int64_t width, REAL *dst, int64_t ld, int copy, int64_t *ld_out) {
    *ld_out = ld;
    if (width == 0 || n == 0) return dst; /* a tensor of width 0 may have no memory */
    const double scale = attn_core_scale(s->p, s->args, view == &s->k ? ATTN_ROLE_K : ATTN_ROLE_V, b, hk);
    if (!copy && view->element_bytes == (int32_t)sizeof(REAL) && !seq->pages) {
        *ld_out = view->row;
        return (const REAL *)(const void *)attn_view_row(view, b, hk, seq->k0 + j0);
    }
    for (int64_t j = 0; j < n; j++) {
        const char *row = attn_core_kv_row(s->p, view, seq, b, hk, j0 + j);
        if (row) {
            T(attn_cpu_sdpa_load)(s, dst + j * ld, row, view->dtype, width, scale);
        } else {
            memset(dst + j * ld, 0, (size_t)width * sizeof *dst);
        }
    }
    return dst;
}

void T(attn_cpu_sdpa_panels)(const struct attn_cpu_sdpa *s, const struct attn_view *view,
                             const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j0, int64_t n,
                             int64_t width, int64_t panel, REAL *dst, REAL *tmp, int64_t ld) {
    for (int64_t j = 0; j < n; j += panel, dst += width * panel) {
        int64_t cols = n - j < panel ? n - j : panel, ld_rows;
        const REAL *rows = T(attn_cpu_sdpa_keys)(s, view, seq, b, hk, j0 + j, cols, width, tmp, ld, 0, &ld_rows);
        s->u->T(transpose)(dst, panel, rows, ld_rows, cols, width);
        for (int64_t c = 0; c < width && cols < panel; c++)
            memset(dst + c * panel + cols, 0, (size_t)(panel - cols) * sizeof *dst);
    }
}

void T(attn_cpu_sdpa_add_mask)(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row, REAL *x, int64_t j0,
                               int64_t n, float *tmp) {
    const struct attn_view *m = &s->mask;
    const char *cell = row->mask + j0 * m->column * m->element_bytes;
    const int64_t read = m->column ? n : 1;
    if (m->dtype == ATTN_BOOL) {
        if (read == n) {
            s->u->T(hide)(x, (const uint8_t *)cell, n);
        } else if (!*cell) {
            for (int64_t j = 0; j < n; j++) x[j] = (REAL)-INFINITY;
        }
        return;
    }
    const float *add = (const float *)(const void *)cell;
    if (m->dtype != ATTN_F32) {
        s->u->widen(tmp, cell, m->dtype, read, 1);
        add = tmp;
    }
    if (read != n) {
        const REAL one = (REAL)add[0];
        for (int64_t j = 0; j < n; j++) x[j] += one;
        return;
    }
#if REAL_IS_F64
    for (int64_t j = 0; j < n; j++) x[j] += (double)add[j];
#else
    s->u->add_f32(x, add, n);
#endif
}

void T(attn_cpu_sdpa_score)(const struct attn_cpu_sdpa *s, const struct attn_core_seq *seq,
                            const struct attn_cpu_sdpa_row *row, REAL *x, REAL *chain, int64_t j0, int64_t n,
                            float *tmp) {
    int64_t first = row->lo - j0, end = row->hi - j0;
    first = first < 0 ? 0 : first > n ? n : first;
    end = end < first ? first : end > n ? n : end;
    for (int64_t j = 0; j < first; j++) x[j] = (REAL)-INFINITY;
    for (int64_t j = end; j < n; j++) x[j] = (REAL)-INFINITY;
    if (s->plain || first == end) return;

    const attn_problem *p = s->p;
    REAL *y = x + first;
    n = end - first;
    j0 += first;
    if (s->remaining_scale < 1 || s->remaining_scale > 1) {
        if (s->remaining_fits) {
            s->u->T(scale)(y, n, (REAL)s->remaining_scale);
        } else { /* in double: neither factor needs to fit the compute type */
            for (int64_t j = 0; j < n; j++) y[j] = (REAL)(s->remaining_scale * (double)y[j]);
        }
    }
    if (p->softcap > 0) s->u->T(softcap)(y, chain ? chain + first : NULL, n, (REAL)s->softcap);
    if (p->alibi == ATTN_ALIBI_LINEAR) s->u->T(alibi)(y, n, (REAL)row->slope, (REAL)(j0 - row->alibi_ref), 0, 0);
    if (p->alibi == ATTN_ALIBI_DISTANCE)
        s->u->T(alibi)(y, n, (REAL)row->slope, (REAL)(j0 - row->diagonal), 1, (REAL)row->alibi_ref);
    if (row->mask) T(attn_cpu_sdpa_add_mask)(s, row, y, j0, n, tmp);
    if (!seq->pages) return;
    for (int64_t j = 0; j < n;) { /* a key in a page outside the pool is hidden */
        int64_t page = seq->pages[(j0 + j) / p->page_size], next = j + p->page_size - (j0 + j) % p->page_size;
        if (next > n) next = n;
        if (page < 0 || page >= p->n_pages)
            for (int64_t c = j; c < next; c++) y[c] = (REAL)-INFINITY;
        j = next;
    }
}

void T(attn_cpu_sdpa_nonfinite_find)(const struct attn_cpu_sdpa *s, struct attn_cpu_sdpa_nonfinite *nonfinite, REAL *x,
                                     int64_t rows, int64_t n, int64_t ld) {
    REAL *raw = nonfinite->raw;
    nonfinite->any = 0;
    for (int64_t r = 0; r < rows; r++) {
        REAL *row = x + r * ld;
        const int bad = !s->u->T(finite)(row, n);
        if (!bad && !nonfinite->any) continue;
        if (!nonfinite->any) memset(nonfinite->row, 0, (size_t)rows);
        nonfinite->any = 1;
        nonfinite->row[r] = (uint8_t)bad;
        if (!bad) continue;
        for (int64_t c = 0; c < n; c++) {
            raw[r * ld + c] = row[c];
            if (!isfinite(row[c])) row[c] = 0;
        }
    }
}

void T(attn_cpu_sdpa_nonfinite_apply)(const struct attn_cpu_sdpa_nonfinite *nonfinite, int64_t m, int64_t rows,
                                      int64_t n, int64_t ld, const REAL *a, int64_t a_row, int64_t a_col, REAL *c,
                                      int64_t ldc) {
    const REAL *raw = nonfinite->raw;
    for (int64_t r = 0; r < rows; r++) {
        if (!nonfinite->row[r]) continue;
        for (int64_t i = 0; i < m; i++) {
            const REAL factor = a[i * a_row + r * a_col];
            if (factor == 0) continue;
            for (int64_t l = 0; l < n; l++)
                if (!isfinite(raw[r * ld + l])) c[i * ldc + l] += factor * raw[r * ld + l];
        }
    }
}

REAL T(attn_cpu_sdpa_exp_lifted)(const struct attn_cpu_sdpa *s, REAL *x, int64_t n, REAL max,
                                 const uint8_t *has_nonfinite, uint8_t *hidden, int lse) {
    for (int64_t j = 0; j < n; j++) hidden[j] = x[j] == (REAL)-INFINITY;
    REAL sum = 0;
    if (lse) {
        s->u->T(exp_lse)(x, n, max);
    } else {
        sum = s->u->T(exp)(x, n, max);
    }
    for (int64_t j = 0; j < n; j++)
        if (x[j] == 0 && !hidden[j] && (!has_nonfinite || has_nonfinite[j])) x[j] = SMALLEST;
    return sum;
}
