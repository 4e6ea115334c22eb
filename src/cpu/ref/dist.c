/* SPDX-License-Identifier: MIT
 * Attention distribution, reference: a[i,t] = sum over heads of exp(scale * q . k - lse), heads added in order. */
#include "cpu/ref/mla.h"

struct job {
    const struct attn_cpu_ref_sparse *m;
    struct attn_view dist;
};

struct layout {
    int64_t q, kv, lse, sum, key, end;
};

static struct layout lay_out(const attn_problem *p) {
    struct layout offsets = {0};
    offsets.q = attn_cpu_ref_take(&offsets.end, p->heads_q * p->dim_qk);
    offsets.kv = attn_cpu_ref_take(&offsets.end, p->dim_qk);
    offsets.lse = attn_cpu_ref_take(&offsets.end, p->heads_q);
    offsets.sum = attn_cpu_ref_take(&offsets.end, p->topk);
    offsets.key = attn_cpu_ref_take(&offsets.end, attn_cpu_ref_slot_doubles(p));
    return offsets;
}

int64_t attn_cpu_ref_dist_doubles(const attn_problem *p) { return lay_out(p).end; }

static void run_task(const void *what, int64_t task, double *scratch) {
    const struct job *job = what;
    const struct attn_cpu_ref_sparse *m = job->m;
    const attn_problem *p = m->p;
    int64_t i = task % p->seq_q, b = task / p->seq_q, d = p->dim_qk;
    struct layout offsets = lay_out(p);
    double *q = scratch + offsets.q, *kv = scratch + offsets.kv, *lse = scratch + offsets.lse,
           *sum = scratch + offsets.sum, total = 0;
    int32_t *key = (int32_t *)(scratch + offsets.key);

    attn_cpu_ref_slots(m, b, i, key);
    attn_cpu_ref_load_heads(q, &m->q, b, i, 0, p->heads_q, d);
    for (int64_t h = 0; h < p->heads_q; ++h) {
        double value = attn_num_load(attn_view_row(&m->lse, b, h, i), m->lse.dtype, 0);
        /* +-inf: an empty row, and exp(s - inf) = 0 adds nothing for either sign */
        lse[h] = isinf(value) ? INFINITY : attn_core_has(p, ATTN_LSE_BASE_2) ? value * 0.693147180559945309417 : value;
    }
    for (int64_t t = 0; t < p->topk; ++t) {
        sum[t] = 0;
        if (key[t] < 0) continue;
        attn_cpu_ref_load_kv(kv, m, b, key[t], d);
        for (int64_t h = 0; h < p->heads_q; ++h) {
            if (lse[h] == INFINITY) continue;
            sum[t] += exp(p->scale * attn_cpu_ref_dot(q + h * d, kv, d) - lse[h]);
        }
        total += sum[t];
    }
    double factor = 1;
    if (p->dist_norm == ATTN_DIST_MEAN) factor = 1 / (double)p->heads_q;
    for (int64_t t = 0; t < p->topk; ++t) {
        double a = sum[t] * factor;
        if (p->dist_norm == ATTN_DIST_L1) a = total == 0 ? 0 : sum[t] / total;
        attn_num_store(attn_view_row(&job->dist, b, 0, i), job->dist.dtype, t, a);
    }
}

void attn_cpu_ref_dist_tasks(const struct attn_core_device *dev, const struct attn_cpu_ref_sparse *m, int64_t doubles) {
    struct job job = {m, attn_core_view(m->p, m->args, ATTN_ROLE_DIST)};
    struct attn_cpu_ref_tasks tasks = {m->p->batch * m->p->seq_q, doubles, run_task, &job};
    attn_cpu_ref_run(dev, m->args, &tasks);
}

attn_status attn_cpu_ref_dist(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                              const attn_args *args) {
    (void)k;
    struct attn_cpu_ref_sparse m;
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return ATTN_OK;
    attn_cpu_ref_sparse_init(&m, p, args);
    attn_cpu_ref_dist_tasks(dev, &m, lay_out(p).end);
    return ATTN_OK;
}
