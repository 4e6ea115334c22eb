/* SPDX-License-Identifier: MIT
 * Dense backward, reference. Whoever writes an element owns it: tasks over query rows make dq, tasks over keys of a key
 * head make dk and dv (summing over the group's query heads), and both compute the scores anew. */
#include "cpu/ref/grad.h"

int64_t attn_cpu_ref_sdpa_bwd_doubles(const attn_problem *p) {
    struct attn_cpu_ref_bwd w;
    attn_cpu_ref_bwd_init(&w, p, NULL);
    return w.offsets.end;
}

/* dQ_i = scale * sum_j dS_ij K_j, for a few rows of one query head. */
static void make_dq(const void *what, int64_t task, double *scratch) {
    const struct attn_cpu_ref_bwd *w = what;
    const attn_problem *p = w->d.p;
    int64_t blocks = attn_cpu_ref_blocks(p->seq_q, ATTN_REF_ROWS), width = p->dim_qk;
    int64_t i0 = task % blocks * ATTN_REF_ROWS, h = task / blocks % p->heads_q, b = task / blocks / p->heads_q;
    double *dq = scratch + w->offsets.dq;
    struct attn_cpu_ref_tile tile;
    struct attn_core_seq seq;
    attn_cpu_ref_seq(&w->d, b, &seq);
    attn_cpu_ref_tile_init(&tile, w, scratch);
    attn_cpu_ref_tile_load_rows(&tile, w, &seq, b, h, i0, ATTN_REF_ROWS);
    memset(dq, 0, (size_t)(ATTN_REF_ROWS * width) * sizeof *dq);
    for (int64_t j = tile.block.j0; j < tile.block.j1; j += ATTN_REF_KEYS) {
        attn_cpu_ref_tile_load_keys(&tile, w, &seq, b, h / w->d.group, j, tile.block.j1);
        attn_cpu_ref_tile_compute(&tile, w);
        for (int64_t r = 0; r < tile.block.n; ++r)
            for (int64_t jj = 0; jj < tile.n_keys; ++jj) {
                int64_t cell = r * ATTN_REF_KEYS + jj;
                if (tile.s[cell] != -INFINITY)
                    attn_cpu_ref_axpy(dq + r * width, tile.ds[cell] * tile.chain[cell], tile.k + jj * width, width);
            }
    }
    for (int64_t r = 0; r < ATTN_REF_ROWS && i0 + r < seq.sq_rows; ++r) /* rows past seqlens_q: 0 */
        attn_cpu_ref_store(attn_view_row(&w->dq, b, h, seq.q0 + i0 + r), p->dtype, dq + r * width, width, p->scale);
}

/* dK_j = scale * sum_i dS_ij Q_i and dV_j = sum_i P_ij dout_i over the query heads of the group, for a few keys. */
static void make_dkv(const void *what, int64_t task, double *scratch) {
    const struct attn_cpu_ref_bwd *w = what;
    const attn_problem *p = w->d.p;
    int64_t blocks = attn_cpu_ref_blocks(p->seq_k, ATTN_REF_KEYS), d = p->dim_qk, dv = p->dim_v;
    int64_t j0 = task % blocks * ATTN_REF_KEYS, hk = task / blocks % p->heads_k, b = task / blocks / p->heads_k;
    double *sum_k = scratch + w->offsets.dk, *sum_v = scratch + w->offsets.dv;
    struct attn_cpu_ref_tile tile;
    struct attn_core_seq seq;
    attn_cpu_ref_seq(&w->d, b, &seq);
    attn_cpu_ref_tile_init(&tile, w, scratch);
    attn_cpu_ref_tile_load_keys(&tile, w, &seq, b, hk, j0, seq.sk);
    memset(sum_k, 0, (size_t)(ATTN_REF_KEYS * d) * sizeof *sum_k);
    memset(sum_v, 0, (size_t)(ATTN_REF_KEYS * dv) * sizeof *sum_v);
    int64_t first = 0, last = 0, unused;
    if (tile.n_keys > 0) { /* both ends of the visible queries grow with j */
        attn_core_query_range(p, seq.sq, seq.sk, j0, &first, &unused);
        attn_core_query_range(p, seq.sq, seq.sk, j0 + tile.n_keys - 1, &unused, &last);
    }
    for (int64_t h = hk * w->d.group; h < (hk + 1) * w->d.group; ++h)
        for (int64_t i = first; i < last; i += ATTN_REF_ROWS) {
            attn_cpu_ref_tile_load_rows(&tile, w, &seq, b, h, i, last - i < ATTN_REF_ROWS ? last - i : ATTN_REF_ROWS);
            attn_cpu_ref_tile_compute(&tile, w);
            for (int64_t r = 0; r < tile.block.n; ++r)
                for (int64_t jj = 0; jj < tile.n_keys; ++jj) {
                    int64_t cell = r * ATTN_REF_KEYS + jj;
                    if (tile.s[cell] == -INFINITY) continue;
                    attn_cpu_ref_axpy(sum_k + jj * d, tile.ds[cell] * tile.chain[cell], tile.q + r * d, d);
                    attn_cpu_ref_axpy(sum_v + jj * dv, tile.p[cell], tile.dout + r * dv, dv);
                }
        }
    for (int64_t jj = 0; jj < ATTN_REF_KEYS && j0 + jj < seq.sk_rows; ++jj) { /* keys past seqlens_k: 0 */
        int64_t key = seq.k0 + j0 + jj;
        if (w->dk.data) attn_cpu_ref_store(attn_view_row(&w->dk, b, hk, key), p->dtype, sum_k + jj * d, d, p->scale);
        if (w->dv.data) attn_cpu_ref_store(attn_view_row(&w->dv, b, hk, key), p->dtype, sum_v + jj * dv, dv, 1);
    }
}

attn_status attn_cpu_ref_sdpa_bwd(const struct attn_kernel *k, const struct attn_core_device *dev,
                                  const attn_problem *p, const attn_args *args) {
    (void)k;
    struct attn_cpu_ref_bwd w;
    attn_cpu_ref_padding(dev, p, args);
    if (p->heads_q <= 0)
        return ATTN_OK; /* without queries or batch entries the sums that remain are zeros, not left alone */
    attn_cpu_ref_bwd_init(&w, p, args);
    struct attn_cpu_ref_tasks tasks = {.doubles = w.offsets.end, .what = &w};
    if (w.dq.data && p->dim_qk > 0) {
        tasks.n_tasks = p->batch * p->heads_q * attn_cpu_ref_blocks(p->seq_q, ATTN_REF_ROWS);
        tasks.task = make_dq;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    if ((w.dk.data && p->dim_qk > 0) || (w.dv.data && p->dim_v > 0)) {
        tasks.n_tasks = p->batch * p->heads_k * attn_cpu_ref_blocks(p->seq_k, ATTN_REF_KEYS);
        tasks.task = make_dkv;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    attn_cpu_ref_bias_grads(dev, &w);
    return ATTN_OK;
}
