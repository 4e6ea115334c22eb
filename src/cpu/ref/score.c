/* SPDX-License-Identifier: MIT
 * Scores of dense attention in double, one pair at a time, in the order of the five steps in attn.h. */
#include "cpu/ref/score.h"

void attn_cpu_ref_dense_init(struct attn_cpu_ref_dense *d, const attn_problem *p, const attn_args *args) {
    *d = (struct attn_cpu_ref_dense){.p = p, .args = args, .group = p->heads_q / p->heads_k};
    d->q = attn_core_view(p, args, ATTN_ROLE_Q);
    d->k = attn_core_view(p, args, ATTN_ROLE_K);
    d->v = attn_core_view(p, args, ATTN_ROLE_V);
    d->mask = attn_core_view(p, args, ATTN_ROLE_MASK);
    d->falls = attn_core_offsets_fall(p, args);
}

static double read_slope(const struct attn_cpu_ref_dense *d, int64_t b, int64_t h) {
    const attn_tensor *t = d->args->alibi;
    if (d->p->alibi == ATTN_ALIBI_NONE) return 0;
    int64_t element = h * t->strides[t->rank - 1];
    if (t->rank == 2 && t->shape[0] > 1) element += b * t->strides[0]; /* [HQ] and [1,HQ] serve every batch entry */
    return attn_num_load(t->data, t->dtype, element);
}

void attn_cpu_ref_block_init(struct attn_cpu_ref_block *block, const struct attn_cpu_ref_dense *d,
                             const struct attn_core_seq *seq, int64_t b, int64_t h, int64_t i0, int64_t rows) {
    int64_t left = seq->sq - i0;
    block->seq = *seq;
    block->b = b;
    block->h = h;
    block->i0 = i0;
    block->n = left < 0 ? 0 : left < rows ? left : rows;
    block->slope = read_slope(d, b, h);
    block->j0 = seq->sk;
    block->j1 = 0;
    for (int64_t r = 0; r < block->n; ++r) {
        attn_core_key_range(d->p, seq->sq, seq->sk, i0 + r, &block->lo[r], &block->hi[r]);
        if (block->lo[r] >= block->hi[r]) continue;
        if (block->lo[r] < block->j0) block->j0 = block->lo[r];
        if (block->hi[r] > block->j1) block->j1 = block->hi[r];
    }
    if (block->j1 < block->j0) block->j0 = block->j1 = 0;
}

void attn_cpu_ref_load_rows(double *dst, const struct attn_view *view, const struct attn_cpu_ref_block *block,
                            int64_t width) {
    for (int64_t r = 0; r < block->n && width > 0; ++r) /* a tensor of width 0 may have no memory */
        attn_cpu_ref_load(dst + r * width, attn_view_row(view, block->b, block->h, block->seq.q0 + block->i0 + r),
                          view->dtype, width);
}

void attn_cpu_ref_load_keys(double *dst, const struct attn_cpu_ref_dense *d, const struct attn_view *view,
                            const struct attn_core_seq *seq, int64_t b, int64_t head_k, int64_t j0, int64_t n,
                            int64_t width) {
    for (int64_t j = 0; j < n && width > 0; ++j) {
        const char *row = attn_core_kv_row(d->p, view, seq, b, head_k, j0 + j);
        if (row)
            attn_cpu_ref_load(dst + j * width, row, view->dtype, width);
        else
            memset(dst + j * width, 0, (size_t)width * sizeof *dst);
    }
    if (view->dtype != ATTN_E4M3) return;
    const double scale = attn_core_scale(d->p, d->args, view == &d->k ? ATTN_ROLE_K : ATTN_ROLE_V, b, head_k);
    for (int64_t x = 0; x < n * width; ++x) dst[x] *= scale;
}

double attn_cpu_ref_alibi_factor(const attn_problem *p, const struct attn_core_seq *seq, int64_t i, int64_t j) {
    int64_t off = attn_core_has(p, ATTN_BOTTOM_RIGHT) ? seq->sk - seq->sq : 0;
    double distance = (double)(j - (i + off));
    return p->alibi == ATTN_ALIBI_DISTANCE ? -fabs(distance) : distance;
}

/* One pair that rule 5 leaves visible. A boolean mask hides before anything else is looked at; an additive -inf hides
 * by arithmetic, s = -inf, whatever finite value the score had. */
static double score(const struct attn_cpu_ref_dense *d, const struct attn_cpu_ref_block *block, int64_t r, int64_t j,
                    const double *q, const double *k, double *chain) {
    const attn_problem *p = d->p;
    int64_t i = block->i0 + r;
    const char *cell = d->mask.data;
    if (cell) cell = attn_view_row(&d->mask, block->b, block->h, i) + j * d->mask.column * d->mask.element_bytes;
    *chain = 1;
    if (p->mask_dtype == ATTN_BOOL && !*cell) return -INFINITY;

    double s = p->dim_qk > 0 ? p->scale * attn_cpu_ref_dot(q, k, p->dim_qk) : 0; /* 1: D = 0 makes every product 0 */
    if (p->softcap > 0) {                                                        /* 2 */
        double t = tanh(s / p->softcap);
        s = p->softcap * t;
        *chain = 1 - t * t;
    }
    if (p->alibi != ATTN_ALIBI_NONE) s += block->slope * attn_cpu_ref_alibi_factor(p, &block->seq, i, j); /* 3 */
    if (p->mask_dtype && p->mask_dtype != ATTN_BOOL) s += attn_num_load(cell, p->mask_dtype, 0);          /* 4 */
    return s;
}

/* A key in a page outside the pool is hidden. */
static int in_pool(const attn_problem *p, const struct attn_core_seq *seq, int64_t j) {
    if (!seq->pages) return 1;
    int64_t page = seq->pages[j / p->page_size];
    return page >= 0 && page < p->n_pages;
}

void attn_cpu_ref_scores(const struct attn_cpu_ref_dense *d, const struct attn_cpu_ref_block *block, const double *q,
                         const double *k, int64_t j0, int64_t n, double *s, int64_t ld, double *chain) {
    int64_t width = d->p->dim_qk;
    for (int64_t j = j0; j < j0 + n; ++j) {
        int paged_in = in_pool(d->p, &block->seq, j);
        for (int64_t r = 0; r < block->n; ++r) {
            double derivative = 1, value = -INFINITY; /* 5 */
            if (paged_in && j >= block->lo[r] && j < block->hi[r])
                value = score(d, block, r, j, q + r * width, k + (j - j0) * width, &derivative);
            s[r * ld + j - j0] = value;
            if (chain) chain[r * ld + j - j0] = derivative;
        }
    }
}
