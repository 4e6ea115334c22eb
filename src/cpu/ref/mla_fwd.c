/* SPDX-License-Identifier: MIT
 * Sparse MLA forward, reference, and the slot predicate. A task is one query and a few of its heads. */
#include "cpu/ref/mla.h"

void attn_cpu_ref_sparse_init(struct attn_cpu_ref_sparse *m, const attn_problem *p, const attn_args *args) {
    *m = (struct attn_cpu_ref_sparse){.p = p, .args = args};
    m->q = attn_core_view(p, args, ATTN_ROLE_Q);
    m->kv = attn_core_view(p, args, ATTN_ROLE_KV);
    m->indices = attn_core_view(p, args, ATTN_ROLE_INDICES);
    m->topk_length = attn_core_view(p, args, ATTN_ROLE_TOPK_LENGTH);
    m->lse = attn_core_view(p, args, ATTN_ROLE_LSE);
}

void attn_cpu_ref_slots(const struct attn_cpu_ref_sparse *m, int64_t b, int64_t i, int32_t *key) {
    const attn_problem *p = m->p;
    const int32_t *index = (const int32_t *)attn_view_row(&m->indices, b, 0, i);
    int64_t length = p->topk, n_keys = p->seq_k;
    if (attn_core_has(p, ATTN_TOPK_LENGTH)) {
        int64_t value = *(const int32_t *)attn_view_row(&m->topk_length, b, 0, i);
        length = value < 0 ? 0 : value < p->topk ? value : p->topk;
    }
    if (attn_core_has(p, ATTN_CAUSAL)) {
        /* q_start + i + 1 >= k_stride * (idx + 1), divided by k_stride: no product that could overflow */
        int64_t admissible = (p->q_start + i + 1) / p->k_stride;
        if (admissible < n_keys) n_keys = admissible;
    }
    for (int64_t t = 0; t < p->topk; ++t) key[t] = t < length && index[t] >= 0 && index[t] < n_keys ? index[t] : -1;
}

struct job {
    struct attn_cpu_ref_sparse m;
    struct attn_view out, max_logits;
    int64_t blocks; /* tasks of one query */
};

struct layout {
    int64_t q, kv, acc, s, key, end;
};

static struct layout lay_out(const attn_problem *p) {
    struct layout offsets = {0};
    offsets.q = attn_cpu_ref_take(&offsets.end, ATTN_REF_HEADS * p->dim_qk);
    offsets.kv = attn_cpu_ref_take(&offsets.end, p->dim_qk);
    offsets.acc = attn_cpu_ref_take(&offsets.end, ATTN_REF_HEADS * p->dim_v);
    offsets.s = attn_cpu_ref_take(&offsets.end, ATTN_REF_HEADS * p->topk);
    offsets.key = attn_cpu_ref_take(&offsets.end, attn_cpu_ref_slot_doubles(p));
    return offsets;
}

int64_t attn_cpu_ref_mla_fwd_doubles(const attn_problem *p) { return lay_out(p).end; }

/* Largest score of the valid slots: before the softmax, without the sink. */
static double max_logit(const double *s, int64_t n) {
    double max = -INFINITY;
    for (int64_t t = 0; t < n && !isnan(max); ++t)
        if (!(s[t] <= max)) max = s[t];
    return max;
}

static void run_task(const void *what, int64_t task, double *scratch) {
    const struct job *job = what;
    const struct attn_cpu_ref_sparse *m = &job->m;
    const attn_problem *p = m->p;
    int64_t h0 = task % job->blocks * ATTN_REF_HEADS, i = task / job->blocks % p->seq_q,
            b = task / job->blocks / p->seq_q;
    int64_t n = p->heads_q - h0 < ATTN_REF_HEADS ? p->heads_q - h0 : ATTN_REF_HEADS, d = p->dim_qk, dv = p->dim_v;
    struct layout offsets = lay_out(p);
    double *q = scratch + offsets.q, *kv = scratch + offsets.kv, *acc = scratch + offsets.acc, *s = scratch + offsets.s;
    int32_t *key = (int32_t *)(scratch + offsets.key);
    struct attn_cpu_ref_softmax row[ATTN_REF_HEADS];

    attn_cpu_ref_slots(m, b, i, key);
    attn_cpu_ref_load_heads(q, &m->q, b, i, h0, n, d);
    for (int64_t t = 0; t < p->topk; ++t) {
        if (key[t] >= 0) attn_cpu_ref_load_kv(kv, m, b, key[t], d);
        for (int64_t h = 0; h < n; ++h)
            s[h * p->topk + t] = key[t] < 0 ? -INFINITY : p->scale * attn_cpu_ref_dot(q + h * d, kv, d);
    }
    for (int64_t h = 0; h < n; ++h) {
        double *scores = s + h * p->topk;
        if (job->max_logits.data)
            attn_num_store(attn_view_row(&job->max_logits, b, h0 + h, i), ATTN_F32, 0, max_logit(scores, p->topk));
        row[h] = attn_cpu_ref_softmax(p, scores, p->topk, attn_cpu_ref_sink(p, m->args, h0 + h));
    }
    memset(acc, 0, (size_t)(n * dv) * sizeof *acc);
    for (int64_t t = 0; t < p->topk; ++t) {
        if (key[t] < 0) continue;
        attn_cpu_ref_load_kv(kv, m, b, key[t], dv);
        for (int64_t h = 0; h < n; ++h)
            if (row[h].kind == ATTN_REF_ROW_NORMAL && s[h * p->topk + t] != -INFINITY)
                attn_cpu_ref_axpy(acc + h * dv, s[h * p->topk + t], kv, dv);
    }
    for (int64_t h = 0; h < n; ++h) {
        char *out = attn_view_row(&job->out, b, h0 + h, i);
        if (row[h].kind == ATTN_REF_ROW_NORMAL) {
            for (int64_t c = 0; c < dv; ++c) acc[h * dv + c] /= row[h].denominator;
            attn_cpu_ref_store(out, job->out.dtype, acc + h * dv, dv, 1);
        } else {
            attn_cpu_ref_fill(out, job->out.dtype, dv, row[h].kind == ATTN_REF_ROW_NAN ? NAN : 0);
        }
        if (m->lse.data) attn_num_store(attn_view_row(&m->lse, b, h0 + h, i), m->lse.dtype, 0, row[h].lse);
    }
}

attn_status attn_cpu_ref_mla_fwd(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                                 const attn_args *args) {
    (void)k;
    struct job job;
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return ATTN_OK;
    attn_cpu_ref_sparse_init(&job.m, p, args);
    job.out = attn_core_view(p, args, ATTN_ROLE_OUT);
    job.max_logits = attn_core_view(p, args, ATTN_ROLE_MAX_LOGITS);
    job.blocks = attn_cpu_ref_blocks(p->heads_q, ATTN_REF_HEADS);
    attn_cpu_ref_run(
        dev, args,
        &(struct attn_cpu_ref_tasks){
            .n_tasks = p->batch * p->seq_q * job.blocks, .doubles = lay_out(p).end, .task = run_task, .what = &job});
    return ATTN_OK;
}
