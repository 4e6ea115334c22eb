/* SPDX-License-Identifier: MIT
 * dist on the CPU: a[i,t] = sum over heads of exp(scale q_ih . k_t - lse_ih). A task is one query (or, with few
 * queries, a window of its slots); heads are added in ascending order, so that the result is the same from run to run.
 * The sum normalisation of rows is a second pass, because windows of one row may be done by different threads.
 * Workspace: about 1 MiB per thread. */
#include "cpu/sparse/gather.h"

#include "attn.h"
#include "core/problem.h"

#include <string.h>

enum {
    WINDOW = 1024,    /* slots per task when there are few queries */
    STRIP_ROWS = 1024 /* gathered rows per block with strips, of which copies of 32 are kept */
};
static int64_t block_of(const struct mla_isa *isa) { return mla_strips(isa) ? STRIP_ROWS : isa->block; }

struct dist {
    const struct mla_isa *isa;
    const attn_problem *p;
    const attn_args *a;
    struct attn_view q, kv, lse, dist;
    int64_t chunk, window, n_windows, n_tasks;
    struct attn_cpu_counter next;
};

struct layout {
    int64_t ldh, ldk;
    uint64_t qt, k, s, lse, key, slot, dead, row, bytes;
};

static struct layout lay_out(const struct mla_isa *isa, const attn_problem *p) {
    struct layout l = {.ldh = mla_side(isa, mla_min(p->heads_q, MLA_HEADS)),
                       .ldk = mla_round(mla_depth(isa, p->dim_qk), 16) + 16};
    int64_t f = (int64_t)sizeof(float);
    l.qt = mla_take(&l.bytes, mla_depth(isa, p->dim_qk) * mla_transposed(l.ldh) * f);
    l.k = mla_take(&l.bytes, isa->block * l.ldk * f); /* q rows first */
    l.s = mla_take(&l.bytes, isa->block * l.ldh * f);
    if (mla_strips(isa)) l.s = mla_take(&l.bytes, (MLA_STRIP_CELLS + block_of(isa) * 16) * f);
    l.lse = mla_take(&l.bytes, l.ldh * f);
    const int64_t lists = mla_in_place(isa) ? 2 : 1; /* of this block and of the next one */
    l.key = mla_take(&l.bytes, lists * block_of(isa) * (int64_t)sizeof(int32_t));
    l.slot = mla_take(&l.bytes, lists * block_of(isa) * (int64_t)sizeof(int64_t));
    l.dead = mla_take(&l.bytes, l.ldh);
    if (mla_in_place(isa)) l.row = mla_take(&l.bytes, lists * block_of(isa) * (int64_t)sizeof(uint16_t *));
    return l;
}

static int64_t window_of(const attn_problem *p) { return p->batch * p->seq_q < MLA_DECODE_QUERIES ? WINDOW : p->topk; }
static int64_t windows(const attn_problem *p, int64_t window) {
    return window > 0 ? (p->topk + window - 1) / window : 0;
}

uint64_t attn_cpu_mla_dist_workspace(const struct mla_isa *isa, const attn_problem *p, int32_t threads) {
    threads = attn_cpu_mla_crew(isa, p, threads);
    return lay_out(isa, p).bytes * (uint64_t)attn_cpu_at_most(threads, p->batch * p->seq_q * windows(p, window_of(p)));
}

/* All blocks of a task whose rows stay in place, of which the first one is known; the rows of the next block are asked
 * for. */
static void blocks_in_place(const struct dist *j, const struct layout *l, char *ws, int64_t b,
                            const struct mla_query *query, int64_t cursor, int64_t end, int64_t n, int64_t heads,
                            float factor, float *to) {
    const int64_t block = block_of(j->isa), d = j->p->dim_qk;
    float *s = (float *)(ws + l->s), *lse = (float *)(ws + l->lse);
    int32_t *key = (int32_t *)(ws + l->key), *ahead = key + block;
    int64_t *slot = (int64_t *)(ws + l->slot), *slots = slot + block;
    const uint16_t **row = (const uint16_t **)(ws + l->row), **next = row + block;
    attn_cpu_mla_point(&j->kv, b, key, n, row);
    struct attn_sparse_ahead f = attn_cpu_mla_ahead(row, n, d);
    attn_cpu_mla_prefetch(&f);
    for (int64_t n_next; n; n = n_next) {
        n_next = attn_cpu_mla_next(query, &cursor, end, block, ahead, slots);
        attn_cpu_mla_point(&j->kv, b, ahead, n_next, next);
        f = attn_cpu_mla_ahead(next, n_next, d);
        mla_pace(&f, 1, 1, mla_score_places(n, heads, d / 2));
        j->isa->sparse->scores(n, heads, d / 2, row, (const float *)(ws + l->qt), s, l->ldh, &f);
        for (int64_t r = 0; r < n; ++r) {
            j->isa->vec->scale_sub(s + r * l->ldh, lse, l->ldh, (float)j->p->scale);
            to[slot[r]] += factor * j->isa->ukr->exp_f32(s + r * l->ldh, heads, 0.0f);
        }
        int32_t *keys = key;
        int64_t *was = slot;
        const uint16_t **rows = row;
        key = ahead, slot = slots, row = next;
        ahead = keys, slots = was, next = rows;
    }
}

static void task(const struct dist *j, const struct layout *l, char *ws, int64_t at_task) {
    const attn_problem *p = j->p;
    const struct attn_ukr *ukr = j->isa->ukr;
    float *qt = (float *)(ws + l->qt), *k = (float *)(ws + l->k), *s = (float *)(ws + l->s),
          *lse = (float *)(ws + l->lse);
    int32_t *key = (int32_t *)(ws + l->key);
    int64_t *slot = (int64_t *)(ws + l->slot);
    uint8_t *dead = (uint8_t *)(ws + l->dead);
    uint32_t valid[MLA_HEADS / ATTN_MLA_HEADS];
    const struct mla_rows rows = {.rows = k, .ld = l->ldk};
    const int64_t row = at_task / j->n_windows, b = row / p->seq_q, i = row % p->seq_q;
    const int64_t begin = at_task % j->n_windows * j->window, end = mla_min(begin + j->window, p->topk);
    const float factor = p->dist_norm == ATTN_DIST_MEAN ? (float)(1.0 / (double)p->heads_q) : 1.0f;
    const struct mla_query query = attn_cpu_mla_query(p, j->a, b, i);
    float *to = (float *)attn_view_row(&j->dist, b, 0, i);
    memset(to + begin, 0, (size_t)(end - begin) * sizeof *to);
    for (int64_t h0 = 0; h0 < p->heads_q; h0 += j->chunk) {
        const int64_t heads = mla_min(j->chunk, p->heads_q - h0);
        int64_t cursor = begin, n = attn_cpu_mla_next(&query, &cursor, end, block_of(j->isa), key, slot);
        if (!n) return;
        if (attn_cpu_mla_lse(p, &j->lse, b, i, h0, heads, l->ldh, lse, dead) == heads) continue;
        attn_cpu_mla_valid(dead, heads, valid);
        attn_cpu_mla_heads(j->isa, &j->q, b, i, h0, heads, p->dim_qk, dead, k, l->ldk);
        attn_cpu_mla_turn(j->isa, k, l->ldk, heads, mla_depth(j->isa, p->dim_qk), qt, mla_transposed(l->ldh));
        if (mla_in_place(j->isa)) {
            blocks_in_place(j, l, ws, b, &query, cursor, end, n, heads, factor, to);
            continue;
        }
        for (; n; n = attn_cpu_mla_next(&query, &cursor, end, block_of(j->isa), key, slot)) {
            if (mla_strips(j->isa)) {
                const struct attn_mla_bwd_scores f = {.rows = mla_rows_of(&j->kv, b, key, n),
                                                      .strips = l->ldh / ATTN_MLA_HEADS,
                                                      .depth = p->dim_qk / 2,
                                                      .q = qt,
                                                      .scale = (float)p->scale,
                                                      .lse = lse,
                                                      .valid = valid,
                                                      .sums = s + MLA_STRIP_CELLS,
                                                      .s = s,
                                                      .copies = {.tiles = k}};
                j->isa->bf16->mla_bwd_scores(&f);
                for (int64_t r = 0; r < n; ++r) to[slot[r]] += factor * f.sums[r * 16];
                continue;
            }
            attn_cpu_mla_gather(j->isa, &j->kv, b, key, n, p->dim_qk, &rows);
            attn_cpu_mla_score(j->isa, p->dtype, n, l->ldh, p->dim_qk, k, l->ldk, qt, s, l->ldh);
            for (int64_t r = 0; r < n; ++r) {
                j->isa->vec->scale_sub(s + r * l->ldh, lse, l->ldh, (float)p->scale);
                to[slot[r]] += factor * ukr->exp_f32(s + r * l->ldh, heads, 0.0f);
            }
        }
    }
}

static void job(void *arg, int32_t worker) {
    struct dist *j = arg;
    const struct layout l = lay_out(j->isa, j->p);
    char *ws = (char *)j->a->workspace + l.bytes * (uint64_t)worker;
    attn_ukr_bf16_begin(j->isa->bf16);
    for (int64_t t; (t = attn_cpu_next(&j->next)) < j->n_tasks;) task(j, &l, ws, t);
    attn_ukr_bf16_end(j->isa->bf16);
}

void attn_cpu_mla_sum_to_one(float *row, int64_t n) {
    double sum = 0;
    for (int64_t t = 0; t < n; ++t) sum += (double)row[t];
    for (int64_t t = 0; sum != 0 && t < n; ++t) row[t] = (float)((double)row[t] / sum);
}

static void norm_job(void *arg, int32_t worker) {
    struct dist *j = arg;
    const attn_problem *p = j->p;
    (void)worker;
    for (int64_t r; (r = attn_cpu_next(&j->next)) < p->batch * p->seq_q;)
        attn_cpu_mla_sum_to_one((float *)attn_view_row(&j->dist, r / p->seq_q, 0, r % p->seq_q), p->topk);
}

void attn_cpu_mla_dist(const struct mla_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                       const attn_args *a) {
    struct dist j = {.isa = isa, .p = p, .a = a, .chunk = mla_min(p->heads_q, MLA_HEADS)};
    j.window = window_of(p);
    j.n_windows = windows(p, j.window);
    j.n_tasks = p->batch * p->seq_q * j.n_windows;
    if (!j.n_tasks) return;
    const int32_t crew = attn_cpu_mla_crew(isa, p, dev->threads);
    j.q = attn_core_view(p, a, ATTN_ROLE_Q);
    j.kv = attn_core_view(p, a, ATTN_ROLE_KV);
    j.lse = attn_core_view(p, a, ATTN_ROLE_LSE);
    j.dist = attn_core_view(p, a, ATTN_ROLE_DIST);
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(crew, j.n_tasks), job, &j);
    if (p->dist_norm != ATTN_DIST_L1) return;
    atomic_store(&j.next.next, 0);
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(crew, p->batch * p->seq_q), norm_job, &j);
}
