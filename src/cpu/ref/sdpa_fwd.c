/* SPDX-License-Identifier: MIT
 * Dense forward, reference: whole rows of scores in the workspace, softmax, P V. A task is a few query rows of one
 * head. */
#include "cpu/ref/score.h"

struct job {
    struct attn_cpu_ref_dense d;
    struct attn_view out, lse, lse_rounded, max_logits;
    int64_t rows, blocks; /* query rows of a task, tasks of one head */
};

struct layout {
    int64_t q, keys, acc, lost, part, s, end; /* part: values of a block of keys, for one row; lost: add_part */
};

/* Fewer rows when rows are long; which rows share a task never shows in a result. */
static int64_t rows_per_task(const attn_problem *p) {
    int64_t rows = p->seq_k > 0 ? (INT64_C(1) << 17) / p->seq_k : ATTN_REF_ROWS;
    return rows < 1 ? 1 : rows > ATTN_REF_ROWS ? ATTN_REF_ROWS : rows;
}

static struct layout lay_out(const attn_problem *p) {
    struct layout l = {0};
    int64_t rows = rows_per_task(p), wider = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    l.q = attn_cpu_ref_take(&l.end, rows * p->dim_qk);
    l.keys = attn_cpu_ref_take(&l.end, ATTN_REF_KEYS * wider);
    l.acc = attn_cpu_ref_take(&l.end, rows * p->dim_v);
    l.lost = attn_cpu_ref_take(&l.end, rows * p->dim_v);
    l.part = attn_cpu_ref_take(&l.end, p->dim_v);
    l.s = attn_cpu_ref_take(&l.end, rows * p->seq_k);
    return l;
}

int64_t attn_cpu_ref_sdpa_fwd_doubles(const attn_problem *p) { return lay_out(p).end; }

static void store_lse(const struct job *job, int64_t b, int64_t h, int64_t row, double lse) {
    const struct attn_view *views[] = {&job->lse, &job->lse_rounded};
    for (int i = 0; i < 2; ++i)
        if (views[i]->data) attn_num_store(attn_view_row(views[i], b, h, row), views[i]->dtype, 0, lse);
}

static void store_max(const struct job *job, int64_t b, int64_t h, int64_t row, double max) {
    const struct attn_view *v = &job->max_logits;
    if (v->data) attn_num_store(attn_view_row(v, b, h, row), v->dtype, 0, max);
}

/* Largest score of a row; NaN if one is NaN or +inf, as its lse is. */
static double max_of(const double *s, int64_t n) {
    double max = -INFINITY;
    for (int64_t j = 0; j < n && !isnan(max); ++j)
        if (!(s[j] <= max)) max = s[j];
    return max == INFINITY ? NAN : max;
}

/* sum += part; lost: what the roundings of these additions have left out (Neumaier's sum). Thousands of equal parts
 * would all be rounded the same way. */
static void add_part(double *sum, double *lost, const double *part, int64_t n) {
    for (int64_t c = 0; c < n; ++c) {
        double next = sum[c] + part[c];
        if (isfinite(next))
            lost[c] += fabs(sum[c]) >= fabs(part[c]) ? sum[c] - next + part[c] : part[c] - next + sum[c];
        sum[c] = next;
    }
}

static void run_task(const void *what, int64_t task, double *scratch) {
    const struct job *job = what;
    const struct attn_cpu_ref_dense *d = &job->d;
    const attn_problem *p = d->p;
    int64_t i0 = task % job->blocks * job->rows, h = task / job->blocks % p->heads_q,
            b = task / job->blocks / p->heads_q;
    struct layout offsets = lay_out(p);
    double *q = scratch + offsets.q, *keys = scratch + offsets.keys, *acc = scratch + offsets.acc,
           *lost = scratch + offsets.lost, *part = scratch + offsets.part, *s = scratch + offsets.s;
    struct attn_cpu_ref_softmax row[ATTN_REF_ROWS];
    struct attn_core_seq seq;
    struct attn_cpu_ref_block block;
    attn_cpu_ref_seq(d, b, &seq);
    attn_cpu_ref_block_init(&block, d, &seq, b, h, i0, job->rows);

    attn_cpu_ref_load_rows(q, &d->q, &block, p->dim_qk);
    if (p->dtype == ATTN_E4M3) {
        const double scale = attn_core_scale(p, d->args, ATTN_ROLE_Q, b, h);
        for (int64_t x = 0; x < block.n * p->dim_qk; ++x) q[x] *= scale;
    }
    int64_t width = block.j1 - block.j0;
    for (int64_t j = block.j0; j < block.j1; j += ATTN_REF_KEYS) {
        int64_t n = block.j1 - j < ATTN_REF_KEYS ? block.j1 - j : ATTN_REF_KEYS;
        attn_cpu_ref_load_keys(keys, d, &d->k, &seq, b, h / d->group, j, n, p->dim_qk);
        attn_cpu_ref_scores(d, &block, q, keys, j, n, s + (j - block.j0), width, NULL);
    }
    for (int64_t r = 0; r < block.n; ++r) { /* the softmax takes the place of the scores */
        store_max(job, b, h, seq.q0 + i0 + r, max_of(s + r * width, width));
        row[r] = attn_cpu_ref_softmax(p, s + r * width, width, attn_cpu_ref_sink(p, d->args, h));
    }

    memset(acc, 0, (size_t)(block.n * p->dim_v) * sizeof *acc);
    memset(lost, 0, (size_t)(block.n * p->dim_v) * sizeof *lost);
    for (int64_t j = block.j0; j < block.j1 && p->dim_v > 0; j += ATTN_REF_KEYS) {
        int64_t n = block.j1 - j < ATTN_REF_KEYS ? block.j1 - j : ATTN_REF_KEYS;
        attn_cpu_ref_load_keys(keys, d, &d->v, &seq, b, h / d->group, j, n, p->dim_v);
        for (int64_t r = 0; r < block.n; ++r) {
            if (row[r].kind != ATTN_REF_ROW_NORMAL) continue;
            const double *e = s + r * width + (j - block.j0);
            memset(part, 0, (size_t)p->dim_v * sizeof *part);
            for (int64_t jj = 0; jj < n; ++jj) /* a hidden key's value row takes no part, not even as 0 * NaN */
                if (e[jj] != -INFINITY) attn_cpu_ref_axpy(part, e[jj], keys + jj * p->dim_v, p->dim_v);
            add_part(acc + r * p->dim_v, lost + r * p->dim_v, part, p->dim_v);
        }
    }

    int64_t end = seq.sq_rows - i0 < job->rows ? seq.sq_rows - i0 : job->rows;
    for (int64_t r = 0; r < end; ++r) {
        int64_t at_row = seq.q0 + i0 + r;
        char *out = p->dim_v > 0 ? attn_view_row(&job->out, b, h, at_row) : NULL;
        if (r >= block.n) { /* past seqlens_q */
            attn_cpu_ref_fill(out, job->out.dtype, p->dim_v, 0);
            store_max(job, b, h, at_row, -INFINITY);
            store_lse(job, b, h, at_row, attn_cpu_ref_empty_lse(p));
            continue;
        }
        if (row[r].kind == ATTN_REF_ROW_NORMAL) {
            for (int64_t c = r * p->dim_v; c < (r + 1) * p->dim_v; ++c)
                acc[c] = (acc[c] + lost[c]) / row[r].denominator;
            attn_cpu_ref_store(out, job->out.dtype, acc + r * p->dim_v, p->dim_v, 1);
        } else {
            attn_cpu_ref_fill(out, job->out.dtype, p->dim_v, row[r].kind == ATTN_REF_ROW_NAN ? NAN : 0);
        }
        store_lse(job, b, h, at_row, row[r].lse);
    }
}

attn_status attn_cpu_ref_sdpa_fwd(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p, const attn_args *args) {
    (void)k;
    struct job job;
    attn_cpu_ref_padding(dev, p, args);
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return ATTN_OK;
    attn_cpu_ref_dense_init(&job.d, p, args);
    job.out = attn_core_view(p, args, ATTN_ROLE_OUT);
    job.lse = attn_core_view(p, args, ATTN_ROLE_LSE);
    job.lse_rounded = attn_core_view(p, args, ATTN_ROLE_LSE_ROUNDED);
    job.max_logits = attn_core_view(p, args, ATTN_ROLE_MAX_LOGITS);
    job.rows = rows_per_task(p);
    job.blocks = attn_cpu_ref_blocks(p->seq_q, job.rows);
    attn_cpu_ref_run(
        dev, args,
        &(struct attn_cpu_ref_tasks){
            .n_tasks = p->batch * p->heads_q * job.blocks, .doubles = lay_out(p).end, .task = run_task, .what = &job});
    return ATTN_OK;
}
