/* SPDX-License-Identifier: MIT
 * Sparse MLA backward, reference. dq belongs to tasks of one query and a few heads. dkv belongs to tasks of a range of
 * kv rows, each of which walks all queries and takes the slots that name its rows, in one order: the sums of a row
 * never depend on how the rows were dealt. Formulas at struct attn_cpu_ref_grad in ref.h. */
#include "cpu/ref/mla.h"

enum { MOST_KEYS = 4096, TASKS_PER_BATCH = 64 };

struct job {
    struct attn_cpu_ref_sparse m;
    struct attn_view out, dout, dlse, dq, dkv;
    int64_t keys; /* kv rows of a task */
    struct {
        int64_t q, dout, kv, dq, dkv, row, key, end;
    } offsets;
};

static void init_job(struct job *job, const attn_problem *p, const attn_args *args) {
    int64_t heads = p->heads_q < ATTN_REF_HEADS ? ATTN_REF_HEADS : p->heads_q;
    *job = (struct job){.m.p = p};
    job->keys = attn_cpu_ref_blocks(p->seq_k, TASKS_PER_BATCH);
    if (job->keys > MOST_KEYS) job->keys = MOST_KEYS;
    job->offsets.q = attn_cpu_ref_take(&job->offsets.end, heads * p->dim_qk);
    job->offsets.dout = attn_cpu_ref_take(&job->offsets.end, heads * p->dim_v);
    job->offsets.kv = attn_cpu_ref_take(&job->offsets.end, p->dim_qk);
    job->offsets.dq = attn_cpu_ref_take(&job->offsets.end, ATTN_REF_HEADS * p->dim_qk);
    job->offsets.dkv = attn_cpu_ref_take(&job->offsets.end, job->keys * p->dim_qk);
    job->offsets.row =
        attn_cpu_ref_take(&job->offsets.end, heads * (int64_t)(sizeof(struct attn_cpu_ref_grad) / sizeof(double) + 1));
    job->offsets.key = attn_cpu_ref_take(&job->offsets.end, attn_cpu_ref_slot_doubles(p));
    if (!args) return; /* only the size is wanted */
    attn_cpu_ref_sparse_init(&job->m, p, args);
    job->out = attn_core_view(p, args, ATTN_ROLE_OUT);
    job->dout = attn_core_view(p, args, ATTN_ROLE_DOUT);
    job->dlse = attn_core_view(p, args, ATTN_ROLE_DLSE);
    job->dq = attn_core_view(p, args, ATTN_ROLE_DQ);
    job->dkv = attn_core_view(p, args, ATTN_ROLE_DKV);
}

int64_t attn_cpu_ref_mla_bwd_doubles(const attn_problem *p) {
    struct job job;
    init_job(&job, p, NULL);
    int64_t dist = attn_core_has(p, ATTN_WITH_DIST) ? attn_cpu_ref_dist_doubles(p) : 0;
    return job.offsets.end > dist ? job.offsets.end : dist;
}

/* State of query i of head h; dout is its row in double. */
static struct attn_cpu_ref_grad row_state(const struct job *job, int64_t b, int64_t i, int64_t h, const double *dout) {
    const attn_problem *p = job->m.p;
    double out_dot_dout = 0, dlse = 0, lse = attn_num_load(attn_view_row(&job->m.lse, b, h, i), job->m.lse.dtype, 0);
    const char *out = attn_view_row(&job->out, b, h, i);
    for (int64_t c = 0; c < p->dim_v; ++c) out_dot_dout += attn_num_load(out, job->out.dtype, c) * dout[c];
    if (job->dlse.data) dlse = attn_num_load(attn_view_row(&job->dlse, b, h, i), job->dlse.dtype, 0);
    return attn_cpu_ref_grad(p, lse, dlse, out_dot_dout, attn_cpu_ref_sink(p, job->m.args, h));
}

/* P and dS of one slot of one head. Returns 0 for a score of -inf: it contributes nothing. */
static int prob_and_ds(const attn_problem *p, const struct attn_cpu_ref_grad *row, const double *q, const double *dout,
                       const double *kv, double *prob, double *ds) {
    if (!row->alive) return 0;
    double s = p->scale * attn_cpu_ref_dot(q, kv, p->dim_qk);
    if (s == -INFINITY) return 0;
    double p_lse = exp(s - row->lse);
    *prob = row->g * p_lse;
    *ds = p_lse * (row->g * attn_cpu_ref_dot(dout, kv, p->dim_v) - row->shift);
    return 1;
}

static void make_dq(const void *what, int64_t task, double *scratch) {
    const struct job *job = what;
    const struct attn_cpu_ref_sparse *m = &job->m;
    const attn_problem *p = m->p;
    int64_t blocks = attn_cpu_ref_blocks(p->heads_q, ATTN_REF_HEADS), d = p->dim_qk, dv = p->dim_v;
    int64_t h0 = task % blocks * ATTN_REF_HEADS, i = task / blocks % p->seq_q, b = task / blocks / p->seq_q;
    int64_t n = p->heads_q - h0 < ATTN_REF_HEADS ? p->heads_q - h0 : ATTN_REF_HEADS;
    double *q = scratch + job->offsets.q, *dout = scratch + job->offsets.dout, *kv = scratch + job->offsets.kv,
           *dq = scratch + job->offsets.dq;
    int32_t *key = (int32_t *)(scratch + job->offsets.key);
    struct attn_cpu_ref_grad row[ATTN_REF_HEADS];

    attn_cpu_ref_slots(m, b, i, key);
    attn_cpu_ref_load_heads(q, &m->q, b, i, h0, n, d);
    attn_cpu_ref_load_heads(dout, &job->dout, b, i, h0, n, dv);
    for (int64_t h = 0; h < n; ++h) row[h] = row_state(job, b, i, h0 + h, dout + h * dv);
    memset(dq, 0, (size_t)(n * d) * sizeof *dq);
    for (int64_t t = 0; t < p->topk; ++t) {
        double prob, ds;
        if (key[t] < 0) continue;
        attn_cpu_ref_load_kv(kv, m, b, key[t], d);
        for (int64_t h = 0; h < n; ++h)
            if (prob_and_ds(p, &row[h], q + h * d, dout + h * dv, kv, &prob, &ds))
                attn_cpu_ref_axpy(dq + h * d, ds, kv, d);
    }
    for (int64_t h = 0; h < n; ++h)
        attn_cpu_ref_store(attn_view_row(&job->dq, b, h0 + h, i), p->dtype, dq + h * d, d, p->scale);
}

/* dKV_j = sum over the slots that name j of scale * dS Q, and P dout in the first DV columns. */
static void make_dkv(const void *what, int64_t task, double *scratch) {
    const struct job *job = what;
    const struct attn_cpu_ref_sparse *m = &job->m;
    const attn_problem *p = m->p;
    int64_t blocks = attn_cpu_ref_blocks(p->seq_k, job->keys), d = p->dim_qk, dv = p->dim_v;
    int64_t j0 = task % blocks * job->keys, b = task / blocks;
    int64_t j1 = p->seq_k - j0 < job->keys ? p->seq_k : j0 + job->keys;
    double *q = scratch + job->offsets.q, *dout = scratch + job->offsets.dout, *kv = scratch + job->offsets.kv,
           *dkv = scratch + job->offsets.dkv;
    int32_t *key = (int32_t *)(scratch + job->offsets.key);
    struct attn_cpu_ref_grad *row = (struct attn_cpu_ref_grad *)(scratch + job->offsets.row);

    memset(dkv, 0, (size_t)((j1 - j0) * d) * sizeof *dkv);
    for (int64_t i = 0; i < p->seq_q; ++i) {
        int64_t first = 0;
        attn_cpu_ref_slots(m, b, i, key);
        while (first < p->topk && (key[first] < j0 || key[first] >= j1)) ++first;
        if (first == p->topk) continue;
        attn_cpu_ref_load_heads(q, &m->q, b, i, 0, p->heads_q, d);
        attn_cpu_ref_load_heads(dout, &job->dout, b, i, 0, p->heads_q, dv);
        for (int64_t h = 0; h < p->heads_q; ++h) row[h] = row_state(job, b, i, h, dout + h * dv);
        for (int64_t t = first; t < p->topk; ++t) {
            double prob, ds;
            if (key[t] < j0 || key[t] >= j1) continue;
            double *sum = dkv + (key[t] - j0) * d;
            attn_cpu_ref_load_kv(kv, m, b, key[t], d);
            for (int64_t h = 0; h < p->heads_q; ++h) {
                if (!prob_and_ds(p, &row[h], q + h * d, dout + h * dv, kv, &prob, &ds)) continue;
                attn_cpu_ref_axpy(sum, p->scale * ds, q + h * d, d);
                attn_cpu_ref_axpy(sum, prob, dout + h * dv, dv);
            }
        }
    }
    for (int64_t j = j0; j < j1; ++j) {
        char *to = attn_view_row(&job->dkv, b, 0, j);
        for (int64_t c = 0; c < d; ++c) {
            double before = attn_core_has(p, ATTN_ACCUMULATE) ? attn_num_load(to, job->dkv.dtype, c) : 0;
            attn_num_store(to, job->dkv.dtype, c, before + dkv[(j - j0) * d + c]);
        }
    }
}

static void make_dsink(const void *what, int64_t h, double *scratch) {
    const struct job *job = what;
    const attn_problem *p = job->m.p;
    const attn_tensor *t = job->m.args->dsink;
    double *dout = scratch + job->offsets.dout, sum = 0;
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t i = 0; i < p->seq_q; ++i) {
            attn_cpu_ref_load_heads(dout, &job->dout, b, i, h, 1, p->dim_v);
            struct attn_cpu_ref_grad row = row_state(job, b, i, h, dout);
            if (row.alive) sum += row.dsink;
        }
    attn_num_store(t->data, t->dtype, h * t->strides[0], sum);
}

attn_status attn_cpu_ref_mla_bwd(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                                 const attn_args *args) {
    (void)k;
    struct job job;
    if (p->heads_q <= 0) return ATTN_OK;
    init_job(&job, p, args);
    struct attn_cpu_ref_tasks tasks = {.doubles = attn_cpu_ref_mla_bwd_doubles(p), .what = &job};
    if (job.dq.data) {
        tasks.n_tasks = p->batch * p->seq_q * attn_cpu_ref_blocks(p->heads_q, ATTN_REF_HEADS);
        tasks.task = make_dq;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    if (job.dkv.data && p->seq_k > 0) {
        tasks.n_tasks = p->batch * attn_cpu_ref_blocks(p->seq_k, job.keys);
        tasks.task = make_dkv;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    if (attn_core_has(p, ATTN_GRAD_SINK)) {
        tasks.n_tasks = p->heads_q;
        tasks.task = make_dsink;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    if (attn_core_has(p, ATTN_WITH_DIST)) attn_cpu_ref_dist_tasks(dev, &job.m, tasks.doubles);
    return ATTN_OK;
}
