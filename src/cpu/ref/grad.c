/* SPDX-License-Identifier: MIT
 * P and dS tile by tile; the formulas stand at struct attn_cpu_ref_grad in ref.h. */
#include "cpu/ref/grad.h"

void attn_cpu_ref_bwd_init(struct attn_cpu_ref_bwd *w, const attn_problem *p, const attn_args *args) {
    enum { TILE = ATTN_REF_ROWS * ATTN_REF_KEYS };
    *w = (struct attn_cpu_ref_bwd){.d.p = p};
    w->offsets.q = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_ROWS * p->dim_qk);
    w->offsets.dout = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_ROWS * p->dim_v);
    w->offsets.k = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_KEYS * p->dim_qk);
    w->offsets.v = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_KEYS * p->dim_v);
    w->offsets.s = attn_cpu_ref_take(&w->offsets.end, TILE);
    w->offsets.p = attn_cpu_ref_take(&w->offsets.end, TILE);
    w->offsets.ds = attn_cpu_ref_take(&w->offsets.end, TILE);
    w->offsets.chain = attn_cpu_ref_take(&w->offsets.end, TILE);
    w->offsets.dq = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_ROWS * p->dim_qk);
    w->offsets.dk = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_KEYS * p->dim_qk);
    w->offsets.dv = attn_cpu_ref_take(&w->offsets.end, ATTN_REF_KEYS * p->dim_v);
    w->offsets.sum = attn_cpu_ref_take(&w->offsets.end, TILE);
    if (!args) return; /* only the size is wanted */
    attn_cpu_ref_dense_init(&w->d, p, args);
    w->out = attn_core_view(p, args, ATTN_ROLE_OUT);
    w->lse = attn_core_view(p, args, ATTN_ROLE_LSE);
    w->dout = attn_core_view(p, args, ATTN_ROLE_DOUT);
    w->dlse = attn_core_view(p, args, ATTN_ROLE_DLSE);
    w->dq = attn_core_view(p, args, ATTN_ROLE_DQ);
    w->dk = attn_core_view(p, args, ATTN_ROLE_DK);
    w->dv = attn_core_view(p, args, ATTN_ROLE_DV);
    w->dmask = attn_core_view(p, args, ATTN_ROLE_DMASK);
}

void attn_cpu_ref_tile_init(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w, double *scratch) {
    tile->q = scratch + w->offsets.q;
    tile->dout = scratch + w->offsets.dout;
    tile->k = scratch + w->offsets.k;
    tile->v = scratch + w->offsets.v;
    tile->s = scratch + w->offsets.s;
    tile->p = scratch + w->offsets.p;
    tile->ds = scratch + w->offsets.ds;
    tile->chain = scratch + w->offsets.chain;
    tile->block.n = tile->n_keys = 0;
}

void attn_cpu_ref_tile_load_rows(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w,
                                 const struct attn_core_seq *seq, int64_t b, int64_t h, int64_t i0, int64_t rows) {
    const attn_problem *p = w->d.p;
    double sink = attn_cpu_ref_sink(p, w->d.args, h);
    attn_cpu_ref_block_init(&tile->block, &w->d, seq, b, h, i0, rows);
    attn_cpu_ref_load_rows(tile->q, &w->d.q, &tile->block, p->dim_qk);
    attn_cpu_ref_load_rows(tile->dout, &w->dout, &tile->block, p->dim_v);
    for (int64_t r = 0; r < tile->block.n; ++r) {
        int64_t row_q = seq->q0 + i0 + r;
        double out_dot_dout = 0, dlse = 0;
        double lse = attn_num_load(attn_view_row(&w->lse, b, h, row_q), w->lse.dtype, 0);
        if (w->dlse.data) dlse = attn_num_load(attn_view_row(&w->dlse, b, h, row_q), w->dlse.dtype, 0);
        if (p->dim_v > 0) {
            const char *out = attn_view_row(&w->out, b, h, row_q);
            for (int64_t c = 0; c < p->dim_v; ++c)
                out_dot_dout += attn_num_load(out, w->out.dtype, c) * tile->dout[r * p->dim_v + c];
        }
        tile->row[r] = attn_cpu_ref_grad(p, lse, dlse, out_dot_dout, sink);
    }
}

void attn_cpu_ref_tile_load_keys(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w,
                                 const struct attn_core_seq *seq, int64_t b, int64_t head_k, int64_t j0, int64_t j1) {
    int64_t n = j1 - j0 < ATTN_REF_KEYS ? j1 - j0 : ATTN_REF_KEYS;
    tile->j0 = j0;
    tile->n_keys = n < 0 ? 0 : n;
    attn_cpu_ref_load_keys(tile->k, &w->d, &w->d.k, seq, b, head_k, j0, tile->n_keys, w->d.p->dim_qk);
    attn_cpu_ref_load_keys(tile->v, &w->d, &w->d.v, seq, b, head_k, j0, tile->n_keys, w->d.p->dim_v);
}

void attn_cpu_ref_tile_compute(struct attn_cpu_ref_tile *tile, const struct attn_cpu_ref_bwd *w) {
    int64_t width = w->d.p->dim_v;
    attn_cpu_ref_scores(&w->d, &tile->block, tile->q, tile->k, tile->j0, tile->n_keys, tile->s, ATTN_REF_KEYS,
                        tile->chain);
    for (int64_t r = 0; r < tile->block.n; ++r) {
        const struct attn_cpu_ref_grad *row = &tile->row[r];
        for (int64_t j = 0; j < tile->n_keys; ++j) {
            int64_t cell = r * ATTN_REF_KEYS + j;
            tile->p[cell] = tile->ds[cell] = 0;
            if (!row->alive) tile->s[cell] = -INFINITY;
            if (tile->s[cell] == -INFINITY) continue; /* its value row may hold anything */
            double p_lse = exp(tile->s[cell] - row->lse);
            double dp = attn_cpu_ref_dot(tile->dout + r * width, tile->v + j * width, width);
            tile->p[cell] = row->g * p_lse;
            tile->ds[cell] = p_lse * (row->g * dp - row->shift);
        }
    }
}
