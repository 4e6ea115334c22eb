/* SPDX-License-Identifier: MIT
 * Gradients of the mask, of the ALiBi slopes and of the sinks. A task owns a piece of the output and adds up, in a
 * fixed order and in double, everything that an axis of stride 0 stands for. */
#include "cpu/dense/bwd_tile.h"

#include "base/num.h"

#include <string.h>

/* The mask's gradient in pieces of tile x tile cells; an axis that is summed over is one cell that stands for all. */
struct grid {
    int sum_b, sum_h, sum_i, sum_j;
    int64_t h, i, j, tasks; /* pieces by axis */
};
static struct grid mask_grid(const struct attn_cpu_bwd *w) {
    const attn_problem *p = w->s.p;
    struct grid g = {.sum_b = w->dmask.batch == 0,
                     .sum_h = w->dmask.head == 0,
                     .sum_i = w->dmask.row == 0,
                     .sum_j = w->dmask.column == 0};
    g.h = g.sum_h ? 1 : p->heads_q;
    g.i = g.sum_i ? p->seq_q > 0 : attn_cpu_sdpa_blocks(p->seq_q, w->tile);
    g.j = g.sum_j ? p->seq_k > 0 : attn_cpu_sdpa_blocks(p->seq_k, w->tile);
    g.tasks = (g.sum_b ? p->batch > 0 : p->batch) * g.h * g.i * g.j;
    return g;
}
int64_t attn_cpu_bwd_mask_tasks(const struct attn_cpu_bwd *w) { return mask_grid(w).tasks; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define MASK(REAL, T)                                                                                                  \
    static void sum_tile_##T(const struct attn_cpu_tile_##T *t, const struct grid *g, double *sum) {                   \
        const int64_t ld = t->w->tile;                                                                                 \
        for (int64_t r = 0; r < t->n_rows; r++) {                                                                      \
            const REAL *ds = t->ds + r * t->w->lds;                                                                    \
            double *to = sum + (g->sum_i ? 0 : r * ld);                                                                \
            for (int64_t j = 0; j < t->n_keys; j++) to[g->sum_j ? 0 : j] += (double)ds[j];                             \
        }                                                                                                              \
    }                                                                                                                  \
    void attn_cpu_bwd_mask_##T(struct attn_cpu_bwd *w, int64_t task, char *scratch) {                                  \
        const attn_problem *p = w->s.p;                                                                                \
        const struct grid g = mask_grid(w);                                                                            \
        const int64_t tj = task % g.j, ti = task / g.j % g.i, th = task / g.j / g.i % g.h,                             \
                      tb = task / g.j / g.i / g.h;                                                                     \
        const int64_t i0 = ti * w->tile, i1 = g.sum_i ? p->seq_q : least(i0 + w->tile, p->seq_q);                      \
        const int64_t j0 = tj * w->tile, j1 = g.sum_j ? p->seq_k : least(j0 + w->tile, p->seq_k);                      \
        const int64_t b1 = g.sum_b ? p->batch : tb + 1, h1 = g.sum_h ? p->heads_q : th + 1;                            \
        double *sum = (double *)(void *)(scratch + w->offsets.sum);                                                    \
        struct attn_cpu_tile_##T t;                                                                                    \
        memset(sum, 0, (size_t)(w->tile * w->tile) * sizeof *sum);                                                     \
        attn_cpu_tile_init_##T(&t, w, scratch, 0);                                                                     \
        for (int64_t b = tb; b < b1; b++)                                                                              \
            for (int64_t h = th; h < h1; h++) {                                                                        \
                attn_cpu_tile_head_##T(&t, b, h / w->s.group);                                                         \
                const int64_t keys = least(j1, t.seq.sk), rows = least(i1, t.seq.sq);                                  \
                for (int64_t j = j0; j < keys; j += w->tile) {                                                         \
                    attn_cpu_tile_keys_##T(&t, j, least(keys - j, w->tile));                                           \
                    for (int64_t i = i0; i < rows; i += w->tile) {                                                     \
                        attn_cpu_tile_rows_##T(&t, h, 1, i, least(rows - i, w->tile));                                 \
                        if (t.lo >= j + t.n_keys || t.hi <= j) continue;                                               \
                        attn_cpu_tile_compute_##T(&t);                                                                 \
                        sum_tile_##T(&t, &g, sum);                                                                     \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        const int64_t rows = g.sum_i ? 1 : i1 - i0, cells = g.sum_j ? 1 : j1 - j0;                                     \
        for (int64_t r = 0; r < rows; r++)                                                                             \
            for (int64_t c = 0; c < cells; c++)                                                                        \
                attn_num_store(attn_view_row(&w->dmask, tb, th, i0 + r), w->dmask.dtype, (j0 + c) * w->dmask.column,   \
                               sum[r * w->tile + c]);                                                                  \
    }
MASK(float, f32)
MASK(double, f64)
MASK(float, bf16)

void attn_cpu_bwd_sums(struct attn_cpu_bwd *w, int64_t head, char *scratch) {
    const attn_problem *p = w->s.p;
    const attn_tensor *da = w->s.args->dalibi, *dsink = w->s.args->dsink;
    const int each = da && da->rank == 2 && da->shape[0] != 1; /* a slope of its own for every batch entry */
    double alibi = 0, sink = 0;
    (void)scratch;
    for (int64_t b = 0; b < p->batch; b++) {
        struct attn_core_seq seq;
        attn_cpu_sdpa_seq(&w->s, b, &seq);
        if (each) alibi = 0;
        for (int64_t i = 0; i < seq.sq; i++) {
            const struct attn_cpu_bwd_row *row = attn_cpu_bwd_stat(w, &seq, b, head, i);
            alibi += row->dalibi;
            sink += row->dsink;
        }
        if (each) attn_num_store(da->data, da->dtype, b * da->strides[0] + head * da->strides[1], alibi);
    }
    if (da && !each) attn_num_store(da->data, da->dtype, head * da->strides[da->rank - 1], alibi);
    if (dsink) attn_num_store(dsink->data, dsink->dtype, head * dsink->strides[0], sink);
}
