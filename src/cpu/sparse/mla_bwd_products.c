/* SPDX-License-Identifier: MIT
 * Products of mla_bwd; mla_bwd.c has the order of work. Per query, head and valid slot with key row k, v = k[0:DV]:
 *
 *     p  = exp(scale q.k - lse)                    g = exp(lse - ln(exp lse + exp sink)), 1 without a sink
 *     dS = p (g (dout.v) - (g D - dlse)) scale     D = out.dout
 *     dq += dS k     dkv[0:D] += dS q     dkv[0:DV] += g p dout
 *
 * lse excludes the sink. D has a factor g because out contains g, and g depends on lse (semantics.md, section 2). */
#include "cpu/sparse/mla_bwd.h"

#include "attn.h"
#include "core/problem.h"

#include <math.h>
#include <string.h>

struct unit_work { /* a thread's view of one unit: a query and a chunk of its heads */
    const struct mla_bwd *j;
    char *unit, *thread;
    int64_t i, h0, heads, n_dead;
};

static float *thread_f32(const struct unit_work *w, uint64_t offset) { return (float *)(w->thread + offset); }
static float *unit_f32(const struct unit_work *w, uint64_t offset) { return (float *)(w->unit + offset); }

/* Valid slots of the window, ordered by key range; within a range in the order of the slots (counting sort). */
static void sort_slots(const struct unit_work *w) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    struct mla_unit *u = (struct mla_unit *)(w->unit + z->u_state);
    int32_t *key = (int32_t *)(w->thread + z->t_key), *to_key = (int32_t *)(w->unit + z->u_key);
    int64_t *slot = (int64_t *)(w->thread + z->t_slot), *to_slot = (int64_t *)(w->unit + z->u_slot);
    const struct mla_query query = attn_cpu_mla_query(j->p, j->a, j->b, w->i);
    int64_t cursor = j->window * z->window, put[MLA_MAX_RANGES];
    u->n = attn_cpu_mla_next(&query, &cursor, mla_min(cursor + z->window, j->p->topk), z->window, key, slot);
    memset(u->start, 0, sizeof u->start);
    for (int64_t t = 0; t < u->n; ++t) ++u->start[(key[t] >> z->range_shift) + 1];
    for (int64_t r = 0; r < z->n_ranges; ++r) {
        u->start[r + 1] += u->start[r];
        put[r] = u->start[r];
    }
    for (int64_t t = 0; t < u->n; ++t) {
        int64_t to = put[key[t] >> z->range_shift]++;
        to_key[to] = key[t];
        to_slot[to] = slot[t];
    }
}

/* With strips: pairs of heads as `add` reads them, [columns / 32][ldh] in tiles, those of q before those of dout. */
static void panel_heads(const struct unit_work *w, int64_t x, const float *rows, float *to) {
    enum { SIDE = ATTN_MLA_HEADS, ROW = 16 };
    const struct mla_bwd_size *z = &w->j->z;
    for (int64_t h = 0; h < z->ldh; h += 2) {
        const float *even = h < w->heads ? rows + h * z->ldk : NULL,
                    *odd = h + 1 < w->heads ? rows + (h + 1) * z->ldk : NULL;
        w->j->isa->bf16->zip_blocks(to + h / SIDE * SIDE * ROW + h % SIDE / 2 * ROW, z->ldh * SIDE, (const void *)even,
                                    (const void *)odd, x);
    }
}

/* Rows of the heads, x columns wide: transposed for the scores, and as sums over the heads read them. */
static void load_heads(const struct unit_work *w, const struct attn_view *v, int64_t x, float *transposed, float *to) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    const uint8_t *dead = (const uint8_t *)(w->thread + z->t_dead);
    if (!j->isa->bf16) {
        attn_cpu_mla_heads(j->isa, v, j->b, w->i, w->h0, w->heads, x, dead, to, z->ldz);
        attn_cpu_mla_turn(j->isa, to, z->ldz, w->heads, x, transposed, mla_transposed(z->ldh));
        return;
    }
    float *rows = thread_f32(w, z->t_dq); /* in use later */
    attn_cpu_mla_heads(j->isa, v, j->b, w->i, w->h0, w->heads, x, dead, rows, z->ldk);
    attn_cpu_mla_turn(j->isa, rows, z->ldk, w->heads, x / 2, transposed, mla_transposed(z->ldh));
    if (mla_strips(j->isa)) {
        panel_heads(w, x, rows, to);
        return;
    }
    for (int64_t h = 0; h < w->heads; h += 2) {
        const void *even = rows + h * z->ldk, *odd = h + 1 < w->heads ? rows + (h + 1) * z->ldk : NULL;
        if (mla_in_place(j->isa)) {
            j->isa->sparse->zip(to + h / 2 * ATTN_SPARSE_PANEL, z->ldh / 2 * ATTN_SPARSE_PANEL, even, odd, x);
            continue;
        }
        j->isa->bf16->zip(to + h / 2 * z->ldz, even, odd, x);
    }
    for (int64_t h = (w->heads + 1) / 2; !mla_in_place(j->isa) && h < z->ldh / 2; ++h)
        memset(to + h * z->ldz, 0, (size_t)x * sizeof *to);
}

/* q and dout, both ways; per head lse, g and c = g D - dlse; the unit's part of dsink. */
static void load_rows(const struct unit_work *w) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    const attn_problem *p = j->p;
    const struct attn_ukr *ukr = j->isa->ukr;
    float *out = thread_f32(w, z->t_row), *dout = out + z->ldz;
    float *lse = thread_f32(w, z->t_lse), *g = thread_f32(w, z->t_g), *c = thread_f32(w, z->t_c);
    double *sink_part = (double *)(w->unit + z->u_sink);
    const uint8_t *dead = (const uint8_t *)(w->thread + z->t_dead);
    const double dlse_unit =
        attn_core_has(p, ATTN_LSE_BASE_2) ? 1.4426950408889634074 : 1.0; /* d lse2 / d lse = log2(e) */
    load_heads(w, &j->q, p->dim_qk, thread_f32(w, z->t_qt), unit_f32(w, z->u_q));
    load_heads(w, &j->dout, p->dim_v, thread_f32(w, z->t_dot),
               mla_strips(j->isa) ? unit_f32(w, z->u_q) + z->ldh / 2 * ATTN_MLA_HEADS : unit_f32(w, z->u_do));
    memset(g, 0, (size_t)z->ldh * sizeof *g);
    memset(c, 0, (size_t)z->ldh * sizeof *c);
    for (int64_t h = 0; h < w->heads; ++h) {
        if (dead[h]) continue;
        ukr->widen(out, attn_view_row(&j->out, j->b, w->h0 + h, w->i), j->out.dtype, p->dim_v, 1.0f);
        ukr->widen(dout, attn_view_row(&j->dout, j->b, w->h0 + h, w->i), j->dout.dtype, p->dim_v, 1.0f);
        double delta = (double)ukr->dot_f32(out, dout, p->dim_v), part = 1, dlse = 0;
        if (j->sink) {
            double over = (double)j->sink[w->h0 + h] - (double)lse[h];
            part = 1 / (1 + exp(over));
            sink_part[h] = over == -INFINITY ? 0 : -delta / (1 + exp(-over)); /* no sink: no share in what is NaN */
        }
        if (j->dlse.data) {
            float x;
            memcpy(&x, attn_view_row(&j->dlse, j->b, w->h0 + h, w->i), sizeof x);
            dlse = (double)x * dlse_unit;
        }
        g[h] = (float)part;
        c[h] = (float)(part * delta - dlse);
    }
}

/* Scores and dP of rows [r0, r0 + n), as [dP | S]: where x = [dS | g P] goes or, with pairs, in the thread's memory. */
static float *products(const struct unit_work *w, int64_t r0) {
    const struct mla_bwd_size *z = &w->j->z;
    return w->j->isa->bf16 ? thread_f32(w, z->t_x) : unit_f32(w, z->u_x) + r0 * z->ldx;
}
static void multiply(const struct unit_work *w, const float *k, int64_t r0, int64_t n) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    const int64_t ld = 2 * z->ldh;
    float *x = products(w, r0);
    attn_cpu_mla_score(j->isa, j->p->dtype, n, z->ldh, j->p->dim_qk, k, z->ldk, thread_f32(w, z->t_qt), x + z->ldh, ld);
    attn_cpu_mla_score(j->isa, j->p->dtype, n, z->ldh, j->p->dim_v, k, z->ldk, thread_f32(w, z->t_dot), x, ld);
}

/* x, and dist. With pairs x is rounded on the way to the unit's memory, and dS goes to t_ds as pairs of rows. */
static void grad_block(const struct unit_work *w, int64_t r0, int64_t n, const int64_t *slot, float *dist,
                       float dist_factor) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    const struct attn_ukr *ukr = j->isa->ukr;
    const struct mla_vec *vec = j->isa->vec;
    const float *lse = thread_f32(w, z->t_lse), *g = thread_f32(w, z->t_g), *c = thread_f32(w, z->t_c);
    const uint8_t *dead = (const uint8_t *)(w->thread + z->t_dead);
    const float scale = (float)j->p->scale;
    const struct attn_ukr_bf16 *bf16 = j->isa->bf16;
    const int64_t ld = 2 * z->ldh;
    float *to = unit_f32(w, z->u_x) + r0 * z->ldx, *x = products(w, r0);
    for (int64_t r = 0; r < n; ++r) {
        float *ds = x + r * ld, *p = ds + z->ldh;
        vec->scale_sub(p, lse, z->ldh, scale);
        float sum = ukr->exp_f32(p, w->heads, 0.0f);
        if (dist) dist[slot[r0 + r]] = sum * dist_factor;
        vec->score_bwd(ds, p, g, c, z->ldh, scale);
        /* exp(-inf) is 0 already, unless the key row is not finite: its products with a zeroed q are NaN. */
        for (int64_t h = 0; w->n_dead && h < w->heads; ++h) {
            if (dead[h]) ds[h] = p[h] = 0;
        }
        if (!bf16) continue;
        bf16->narrow((uint16_t *)(to + r * z->ldx), ds, ld);
        if (r % 2 || r + 1 == n)
            bf16->zip_f32(thread_f32(w, z->t_ds) + r / 2 * z->ldh, r % 2 ? ds - ld : ds, r % 2 ? ds : NULL, z->ldh, 1);
    }
}

/* The same of rows in place, and dq. The rows of the next block are prefetched. */
static void grad_in_place(const struct unit_work *w, int64_t r0, int64_t n, const int64_t *slot, float *dist,
                          float dist_factor, float *dq) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    const struct attn_ukr_sparse *sparse = j->isa->sparse;
    const struct mla_unit *u = (const struct mla_unit *)(w->unit + z->u_state);
    const int64_t d = j->p->dim_qk, v = j->p->dim_v, block = j->isa->block, odd = r0 / block % 2,
                  n_next = mla_min(block, u->n - r0 - n);
    const int32_t *key = (const int32_t *)(w->unit + z->u_key) + r0;
    const uint16_t **pointers = (const uint16_t **)(w->thread + z->t_at), **row = pointers + odd * block,
                   **next = pointers + (1 - odd) * block;
    float *x = products(w, r0);
    struct attn_sparse_ahead f;
    if (r0 == 0) {
        attn_cpu_mla_point(&j->kv, j->b, key, n, row);
        f = attn_cpu_mla_ahead(row, n, d);
        attn_cpu_mla_prefetch(&f);
    }
    attn_cpu_mla_point(&j->kv, j->b, key + n, n_next, next);
    f = attn_cpu_mla_ahead(next, n_next, d);
    mla_pace(&f, d, (dq ? 2 : 1) * d + v, mla_score_places(n, w->heads, d / 2));
    sparse->scores(n, w->heads, d / 2, row, thread_f32(w, z->t_qt), x + z->ldh, 2 * z->ldh, &f);
    mla_pace(&f, v, (dq ? d : 0) + v, mla_score_places(n, w->heads, v / 2));
    sparse->scores(n, w->heads, v / 2, row, thread_f32(w, z->t_dot), x, 2 * z->ldh, &f);
    grad_block(w, r0, n, slot, dist, dist_factor);
    if (!dq) return;
    mla_pace(&f, 1, 1, mla_sum_places(w->heads, d));
    sparse->sum(w->heads, d, (n + 1) / 2, thread_f32(w, z->t_ds), z->ldh, row, dq, z->ldz, u->seen + r0 > 0, &f);
}

/* The same with strips, from the rows of the keys, and dq: what the rows of the next block are needed for. */
static void grad_strips(const struct unit_work *w, int64_t r0, int64_t n, const int64_t *slot, float *dist,
                        float dist_factor, float *dq) {
    const struct mla_bwd *j = w->j;
    const struct mla_bwd_size *z = &j->z;
    const struct mla_unit *u = (const struct mla_unit *)(w->unit + z->u_state);
    uint32_t valid[MLA_HEADS / ATTN_MLA_HEADS];
    float *s = thread_f32(w, z->t_x), *sums = s + MLA_STRIP_CELLS;
    const int64_t depth = j->p->dim_qk / 2;
    const int32_t *key = (const int32_t *)(w->unit + z->u_key) + r0;
    const struct attn_mla_copies copies = {.tiles = thread_f32(w, z->t_k),
                                           .zip = thread_f32(w, z->t_zip),
                                           .ldz = mla_strip(j->isa->block),
                                           .width = dq ? depth : 0};
    const struct attn_mla_rows next = mla_rows_of(&j->kv, j->b, key + n, mla_min(j->isa->block, u->n - r0 - n));
    const struct attn_mla_bwd_scores f = {.rows = mla_rows_of(&j->kv, j->b, key, n),
                                          .next = next,
                                          .copies = copies,
                                          .copied = r0 > 0 && dq,
                                          .strips = z->ldh / ATTN_MLA_HEADS,
                                          .depth = depth,
                                          .width = j->p->dim_v / 2,
                                          .q = thread_f32(w, z->t_qt),
                                          .dout = thread_f32(w, z->t_dot),
                                          .scale = (float)j->p->scale,
                                          .lse = thread_f32(w, z->t_lse),
                                          .g = thread_f32(w, z->t_g),
                                          .c = thread_f32(w, z->t_c),
                                          .valid = valid,
                                          .x = unit_f32(w, z->u_x) + r0 * z->ldx,
                                          .ds = thread_f32(w, z->t_ds),
                                          .ld_ds = mla_strip(j->isa->block),
                                          .sums = dist ? sums : NULL,
                                          .s = s};
    attn_cpu_mla_valid((const uint8_t *)(w->thread + z->t_dead), w->heads, valid);
    j->isa->bf16->mla_bwd_scores(&f);
    for (int64_t r = 0; dist && r < n; ++r) dist[slot[r0 + r]] = sums[r * 16] * dist_factor;
    if (!dq) return;
    struct attn_mla_sum sum = mla_sum_strips(w->heads, j->p->dim_qk, n, f.ds, &copies, depth, dq, z->ldz, &next);
    sum.accumulate = u->seen + r0 > 0;
    j->isa->bf16->mla_sum(&sum);
}

static void store_dq(const struct unit_work *w, const float *dq, int any) {
    const struct mla_bwd *j = w->j;
    const uint8_t *dead = (const uint8_t *)(w->thread + j->z.t_dead);
    float *zero = thread_f32(w, j->z.t_row);
    memset(zero, 0, (size_t)j->p->dim_qk * sizeof *zero);
    for (int64_t h = 0; h < w->heads; ++h) {
        const float *from = any && !dead[h] ? dq + h * j->z.ldz : zero;
        j->isa->ukr->narrow(attn_view_row(&j->dq, j->b, w->h0 + h, w->i), j->dq.dtype, from, j->p->dim_qk, 1.0f);
    }
}

static void one_unit(const struct mla_bwd *j, int64_t at_unit, char *thread) {
    const struct mla_bwd_size *z = &j->z;
    const attn_problem *p = j->p;
    struct unit_work w = {.j = j, .unit = attn_cpu_mla_bwd_unit(j, at_unit), .thread = thread};
    struct mla_unit *u = (struct mla_unit *)(w.unit + z->u_state);
    const int32_t *key = (const int32_t *)(w.unit + z->u_key);
    const int64_t *slot = (const int64_t *)(w.unit + z->u_slot);
    float *k = thread_f32(&w, z->t_k), *dq = thread_f32(&w, z->t_dq);
    float *dist = NULL;
    const struct mla_rows rows = {k, j->dq.data ? thread_f32(&w, z->t_zip) : NULL, z->ldk, z->ldz, p->dim_qk};
    const float dist_factor = p->dist_norm == ATTN_DIST_MEAN ? (float)(1.0 / (double)p->heads_q) : 1.0f;
    w.i = (j->u0 + at_unit) / z->n_chunks;
    w.h0 = (j->u0 + at_unit) % z->n_chunks * z->chunk;
    w.heads = mla_min(z->chunk, p->heads_q - w.h0);
    if (z->n_windows > 1) dq = unit_f32(&w, z->u_dq);
    if (j->window == 0) {
        u->seen = 0;
        memset(w.unit + z->u_sink, 0, (size_t)z->chunk * sizeof(double));
    }
    if (j->dist.data) {
        dist = (float *)attn_view_row(&j->dist, j->b, 0, w.i);
        if (j->window == 0) memset(dist, 0, (size_t)p->topk * sizeof *dist);
    }
    sort_slots(&w);
    w.n_dead = attn_cpu_mla_lse(p, &j->lse, j->b, w.i, w.h0, w.heads, z->ldh, thread_f32(&w, z->t_lse),
                                (uint8_t *)(thread + z->t_dead));
    if (w.n_dead == w.heads) u->n = 0;
    if (u->n == 0) memset(u->start, 0, sizeof u->start);
    if (u->n) load_rows(&w);
    const int strips = mla_strips(j->isa);
    const int64_t block = j->isa->block;
    for (int64_t r0 = 0; r0 < u->n; r0 += block) {
        const int64_t n = mla_min(block, u->n - r0);
        if (strips) {
            grad_strips(&w, r0, n, slot, dist, dist_factor, j->dq.data ? dq : NULL);
            continue;
        }
        if (mla_in_place(j->isa)) {
            grad_in_place(&w, r0, n, slot, dist, dist_factor, j->dq.data ? dq : NULL);
            continue;
        }
        attn_cpu_mla_gather(j->isa, &j->kv, j->b, key + r0, n, p->dim_qk, &rows);
        multiply(&w, k, r0, n);
        grad_block(&w, r0, n, slot, dist, dist_factor);
        const float *ds = j->isa->bf16 ? thread_f32(&w, z->t_ds) : unit_f32(&w, z->u_x) + r0 * z->ldx;
        if (j->dq.data)
            attn_cpu_mla_sum(j->isa, w.heads, p->dim_qk, n, ds, j->isa->bf16 ? z->ldh : z->ldx, &rows, dq, z->ldz,
                             u->seen + r0 > 0);
    }
    u->seen += u->n;
    if (j->window + 1 < z->n_windows) return;
    if (j->dq.data) store_dq(&w, dq, u->seen > 0);
    if (dist && p->dist_norm == ATTN_DIST_L1) attn_cpu_mla_sum_to_one(dist, p->topk);
}

void attn_cpu_mla_bwd_rows_job(void *arg, int32_t worker) {
    struct mla_bwd *j = arg;
    attn_ukr_bf16_begin(j->isa->bf16);
    for (int64_t t; (t = attn_cpu_next(&j->next)) < j->n_units;)
        one_unit(j, t, j->ws + j->z.at_threads + j->z.thread_bytes * (uint64_t)worker);
    attn_ukr_bf16_end(j->isa->bf16);
}

/* Columns [c0, c1) of the dKV rows of one key range, for one unit. */
static void add_range(const struct mla_bwd *j, int64_t at_unit, int64_t range, int64_t c0, int64_t c1, float *sum,
                      int64_t ld) {
    const struct mla_bwd_size *z = &j->z;
    const struct attn_ukr_bf16 *bf16 = j->isa->bf16;
    char *unit = attn_cpu_mla_bwd_unit(j, at_unit);
    const struct mla_unit *u = (const struct mla_unit *)(unit + z->u_state);
    const int32_t *key = (const int32_t *)(unit + z->u_key);
    const float *x = (const float *)(unit + z->u_x), *q = (const float *)(unit + z->u_q),
                *dout = (const float *)(unit + z->u_do);
    const int64_t h0 = (j->u0 + at_unit) % z->n_chunks * z->chunk, heads = mla_min(z->chunk, j->p->heads_q - h0);
    const int64_t v1 = mla_min(c1, j->p->dim_v), depth = bf16 ? (heads + 1) / 2 : heads;
    void (*const gemm)(int64_t, int64_t, int64_t, const float *, int64_t, int64_t, const float *, int64_t, float *,
                       int64_t, int) = bf16 ? bf16->gemm : j->isa->ukr->gemm_f32;
    for (int64_t r0 = u->start[range]; r0 < u->start[range + 1]; r0 += MLA_SUM_ROWS) {
        const int64_t n = mla_min(MLA_SUM_ROWS, u->start[range + 1] - r0);
        const float *ds = x + r0 * z->ldx;
        gemm(n, c1 - c0, depth, ds, z->ldx, 1, q + c0, z->ldz, sum, ld, 0);
        if (c0 < v1) gemm(n, v1 - c0, depth, ds + z->ldx / 2, z->ldx, 1, dout + c0, z->ldz, sum, ld, 1);
        /* Slots of one key that follow each other first come to each other: terms that are alike are rounded alike, and
         * 700 of them one by one were 1.5 times f32's bound. */
        for (int64_t r = 0; r < n; ++r) {
            float *const row = sum + r * ld;
            const int repeats = r + 1 < n && key[r0 + r + 1] == key[r0 + r];
            float *const to = repeats ? row + ld : attn_cpu_mla_bwd_sum(j, key[r0 + r], 0) + c0;
            j->isa->vec->add(to, row, c1 - c0);
            if (z->in_parts && to != row + ld) attn_cpu_mla_bwd_count(j, key[r0 + r], c0, c1);
        }
    }
}

/* The same of a row in place: its sums take the products as they come. */
static void add_in_place(const struct mla_bwd *j, int64_t at_unit, int64_t range, int64_t c0, int64_t c1) {
    const struct mla_bwd_size *z = &j->z;
    char *unit = attn_cpu_mla_bwd_unit(j, at_unit);
    const struct mla_unit *u = (const struct mla_unit *)(unit + z->u_state);
    const int32_t *key = (const int32_t *)(unit + z->u_key);
    const float *x = (const float *)(unit + z->u_x), *q = (const float *)(unit + z->u_q),
                *dout = (const float *)(unit + z->u_do);
    const int64_t h0 = (j->u0 + at_unit) % z->n_chunks * z->chunk, heads = mla_min(z->chunk, j->p->heads_q - h0);
    float *to[MLA_RANGE_SLOTS];
    for (int64_t r0 = u->start[range]; r0 < u->start[range + 1]; r0 += MLA_RANGE_SLOTS) {
        const int64_t n = mla_min(MLA_RANGE_SLOTS, u->start[range + 1] - r0);
        for (int64_t r = 0; r < n; ++r) to[r] = attn_cpu_mla_bwd_sum(j, key[r0 + r], 0);
        j->isa->sparse->add(n, c0, c1, j->p->dim_v, (heads + 1) / 2, x + r0 * z->ldx, z->ldx, q, dout,
                            z->ldh / 2 * ATTN_SPARSE_PANEL, to);
    }
}

/* The same with strips. */
static void add_strips(const struct mla_bwd *j, int64_t at_unit, int64_t range, int64_t c0, int64_t c1, float *sum) {
    const struct mla_bwd_size *z = &j->z;
    char *unit = attn_cpu_mla_bwd_unit(j, at_unit);
    const struct mla_unit *u = (const struct mla_unit *)(unit + z->u_state);
    float *sums = attn_cpu_mla_bwd_sum(j, 0, 0);
    const struct attn_mla_add f = {.from = u->start[range],
                                   .to = u->start[range + 1],
                                   .column = c0 / ATTN_MLA_HEADS,
                                   .end = c1 / ATTN_MLA_HEADS,
                                   .narrow = j->p->dim_v / ATTN_MLA_HEADS,
                                   .depth = z->ldh,
                                   .x = (const float *)(unit + z->u_x),
                                   .panel = (const float *)(unit + z->u_q),
                                   .key = (const int32_t *)(unit + z->u_key),
                                   .sums = sums,
                                   .ld = attn_cpu_mla_bwd_sum(j, 1, 0) - sums,
                                   .ld_block = attn_cpu_mla_bwd_sum(j, 0, ATTN_MLA_HEADS) - sums,
                                   .s = sum};
    j->isa->bf16->mla_add(&f);
}

void attn_cpu_mla_bwd_keys_job(void *arg, int32_t worker) {
    struct mla_bwd *j = arg;
    const struct mla_bwd_size *z = &j->z;
    char *thread = j->ws + z->at_threads + z->thread_bytes * (uint64_t)worker;
    float *sum = (float *)(thread + z->t_sum);
    attn_ukr_bf16_begin(j->isa->bf16);
    for (int64_t t; (t = attn_cpu_next(&j->next)) < z->n_ranges * z->n_slices;) {
        const int64_t range = t / z->n_slices, c0 = t % z->n_slices * z->slice,
                      c1 = mla_min(c0 + z->slice, j->p->dim_qk);
        const int64_t from = range << z->range_shift, to = mla_min(from + (INT64_C(1) << z->range_shift), j->p->seq_k);
        /* while the sums are in the second-level cache */
        if (j->clear) attn_cpu_mla_bwd_clear(j, from, to, c0, c1);
        for (int64_t u = 0; u < j->n_units; ++u) {
            if (mla_strips(j->isa)) {
                add_strips(j, u, range, c0, c1, sum);
            } else if (mla_in_place(j->isa)) {
                add_in_place(j, u, range, c0, c1);
            } else {
                add_range(j, u, range, c0, c1, sum, z->slice + 16);
            }
        }
        if (j->round) attn_cpu_mla_bwd_round(j, from, to, c0, c1, (float *)(thread + z->t_row));
    }
    attn_ukr_bf16_end(j->isa->bf16);
}
