/* SPDX-License-Identifier: MIT
 * Dense backward, reference: gradients of the additive mask, of the ALiBi slopes and of the sinks. */
#include "cpu/ref/grad.h"

/* Index of one output element group along an axis that is summed over (all of it) or not (one index). */
struct span {
    int64_t begin, end;
};
static struct span pick(int summed, int64_t index, int64_t extent) {
    return summed ? (struct span){0, extent} : (struct span){index, index + 1};
}

/* dmask is cut into pieces of ATTN_REF_ROWS by ATTN_REF_KEYS cells; an axis of stride 0 is one cell that stands for
 * all. */
struct mask_grid {
    int sum_b, sum_h, sum_i, sum_j;
    int64_t n_h, n_i, n_j, n_tasks;
};

static struct mask_grid mask_tasks(const struct attn_cpu_ref_bwd *w) {
    const attn_problem *p = w->d.p;
    struct mask_grid g = {w->dmask.batch == 0, w->dmask.head == 0, w->dmask.row == 0, w->dmask.column == 0, 0, 0, 0, 0};
    g.n_h = g.sum_h ? 1 : p->heads_q;
    g.n_i = g.sum_i ? (p->seq_q > 0) : attn_cpu_ref_blocks(p->seq_q, ATTN_REF_ROWS);
    g.n_j = g.sum_j ? (p->seq_k > 0) : attn_cpu_ref_blocks(p->seq_k, ATTN_REF_KEYS);
    g.n_tasks = (g.sum_b ? (p->batch > 0) : p->batch) * g.n_h * g.n_i * g.n_j;
    return g;
}

static void make_dmask(const void *what, int64_t task, double *scratch) {
    const struct attn_cpu_ref_bwd *w = what;
    const attn_problem *p = w->d.p;
    struct mask_grid g = mask_tasks(w);
    int64_t tj = task % g.n_j, ti = task / g.n_j % g.n_i, th = task / g.n_j / g.n_i % g.n_h,
            tb = task / g.n_j / g.n_i / g.n_h;
    double *sum = scratch + w->offsets.sum;
    struct attn_cpu_ref_tile tile;
    struct attn_core_seq seq;
    struct span bs = pick(g.sum_b, tb, p->batch), hs = pick(g.sum_h, th, p->heads_q);
    int64_t i_end = g.sum_i ? p->seq_q : (ti + 1) * ATTN_REF_ROWS,
            j_end = g.sum_j ? p->seq_k : (tj + 1) * ATTN_REF_KEYS;
    if (i_end > p->seq_q) i_end = p->seq_q;
    if (j_end > p->seq_k) j_end = p->seq_k;
    memset(sum, 0, sizeof *sum * ATTN_REF_ROWS * ATTN_REF_KEYS);
    attn_cpu_ref_tile_init(&tile, w, scratch);
    for (int64_t b = bs.begin; b < bs.end; ++b) {
        attn_cpu_ref_seq(&w->d, b, &seq);
        for (int64_t h = hs.begin; h < hs.end; ++h)
            for (int64_t i = ti * ATTN_REF_ROWS; i < i_end; i += ATTN_REF_ROWS) {
                attn_cpu_ref_tile_load_rows(&tile, w, &seq, b, h, i, ATTN_REF_ROWS);
                int64_t stop = j_end < seq.sk ? j_end : seq.sk;
                for (int64_t j = tj * ATTN_REF_KEYS; j < stop && tile.block.n > 0; j += ATTN_REF_KEYS) {
                    attn_cpu_ref_tile_load_keys(&tile, w, &seq, b, h / w->d.group, j, stop);
                    attn_cpu_ref_tile_compute(&tile, w);
                    for (int64_t r = 0; r < tile.block.n; ++r)
                        for (int64_t jj = 0; jj < tile.n_keys; ++jj)
                            sum[(g.sum_i ? 0 : r * ATTN_REF_KEYS) + (g.sum_j ? 0 : jj)] +=
                                tile.ds[r * ATTN_REF_KEYS + jj];
                }
            }
    }
    int64_t rows = g.sum_i ? 1 : i_end - ti * ATTN_REF_ROWS, cells = g.sum_j ? 1 : j_end - tj * ATTN_REF_KEYS;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cells; ++c) {
            char *row = attn_view_row(&w->dmask, tb, th, ti * ATTN_REF_ROWS + r);
            attn_num_store(row, w->dmask.dtype, (tj * ATTN_REF_KEYS + c) * w->dmask.column, sum[r * ATTN_REF_KEYS + c]);
        }
}

/* One slope: sum of dS times the ALiBi factor over the batch entries and rows that it serves. */
static void make_dalibi(const void *what, int64_t task, double *scratch) {
    const struct attn_cpu_ref_bwd *w = what;
    const attn_problem *p = w->d.p;
    const attn_tensor *t = w->d.args->dalibi;
    int64_t h = task % p->heads_q, tb = task / p->heads_q;
    int per_batch = t->rank == 2 && t->shape[0] != 1;
    struct span bs = pick(!per_batch, tb, p->batch);
    struct attn_cpu_ref_tile tile;
    struct attn_core_seq seq;
    double sum = 0;
    attn_cpu_ref_tile_init(&tile, w, scratch);
    for (int64_t b = bs.begin; b < bs.end; ++b) {
        attn_cpu_ref_seq(&w->d, b, &seq);
        for (int64_t i = 0; i < seq.sq; i += ATTN_REF_ROWS) {
            attn_cpu_ref_tile_load_rows(&tile, w, &seq, b, h, i, ATTN_REF_ROWS);
            for (int64_t j = tile.block.j0; j < tile.block.j1; j += ATTN_REF_KEYS) {
                attn_cpu_ref_tile_load_keys(&tile, w, &seq, b, h / w->d.group, j, tile.block.j1);
                attn_cpu_ref_tile_compute(&tile, w);
                for (int64_t r = 0; r < tile.block.n; ++r)
                    for (int64_t jj = 0; jj < tile.n_keys; ++jj)
                        if (tile.s[r * ATTN_REF_KEYS + jj] != -INFINITY)
                            sum += tile.ds[r * ATTN_REF_KEYS + jj] * attn_cpu_ref_alibi_factor(p, &seq, i + r, j + jj);
            }
        }
    }
    attn_num_store(t->data, t->dtype, (per_batch ? tb * t->strides[0] : 0) + h * t->strides[t->rank - 1], sum);
}

static void make_dsink(const void *what, int64_t h, double *scratch) {
    const struct attn_cpu_ref_bwd *w = what;
    const attn_problem *p = w->d.p;
    struct attn_cpu_ref_tile tile;
    struct attn_core_seq seq;
    double sum = 0;
    attn_cpu_ref_tile_init(&tile, w, scratch);
    for (int64_t b = 0; b < p->batch; ++b) {
        attn_cpu_ref_seq(&w->d, b, &seq);
        for (int64_t i = 0; i < seq.sq; i += ATTN_REF_ROWS) {
            attn_cpu_ref_tile_load_rows(&tile, w, &seq, b, h, i, ATTN_REF_ROWS);
            for (int64_t r = 0; r < tile.block.n; ++r)
                if (tile.row[r].alive) sum += tile.row[r].dsink;
        }
    }
    const attn_tensor *t = w->d.args->dsink;
    attn_num_store(t->data, t->dtype, h * t->strides[0], sum);
}

void attn_cpu_ref_bias_grads(const struct attn_core_device *dev, const struct attn_cpu_ref_bwd *w) {
    const attn_problem *p = w->d.p;
    const attn_args *args = w->d.args;
    struct attn_cpu_ref_tasks tasks = {.doubles = w->offsets.end, .what = w};
    if (attn_core_has(p, ATTN_GRAD_MASK)) {
        tasks.n_tasks = mask_tasks(w).n_tasks;
        tasks.task = make_dmask;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    if (attn_core_has(p, ATTN_GRAD_ALIBI)) {
        tasks.n_tasks = p->heads_q * (args->dalibi->rank == 2 && args->dalibi->shape[0] != 1 ? p->batch : 1);
        tasks.task = make_dalibi;
        attn_cpu_ref_run(dev, args, &tasks);
    }
    if (attn_core_has(p, ATTN_GRAD_SINK)) {
        tasks.n_tasks = p->heads_q;
        tasks.task = make_dsink;
        attn_cpu_ref_run(dev, args, &tasks);
    }
}
