/* SPDX-License-Identifier: MIT
 * mla_fwd on the CPU. A task is one query and a chunk of its heads: every block of valid kv rows is gathered once and
 * serves all heads of the chunk.
 *
 *     rows K [n][D] --- S = K Q^T [n][heads] --- online softmax down the columns --- O [heads][DV] += S^T K[:, 0:DV]
 *
 * With keys as the rows of S neither K nor P has to be transposed: K is the left operand of the first product and the
 * right one of the second, and P is read column by column as its left operand. Only Q is transposed, once per task.
 * With pairs (ukr/bf16.h) K is there twice: its rows as they are for the first product, and pairs of rows for the
 * second. Strips of heads on tiles copy rows themselves and do not wait for maxima (sparse/mla_fwd_scores.c).
 * Where rows stay in place nothing is gathered, and the rows of the next block, or query, are prefetched meanwhile
 * (ukr/sparse.h). Workspace: about 1.5 MiB per thread, whatever the problem. */
#include "cpu/sparse/gather.h"

#include "attn.h"
#include "core/problem.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f

/* Rows per block with strips: the more, the less often sums come and go; P and pairs of rows of a block, 0.6 MiB, share
 * the second-level cache with the sums and q. */
enum { STRIP_ROWS = 512 };
/* In place a block's rows, those to come, q and the sums share that cache. A function of the problem alone. */
static int64_t block_of(const struct mla_isa *isa, const attn_problem *p) {
    if (mla_in_place(isa)) return isa->block * (p->heads_q > 64 ? 1 : 2);
    return mla_strips(isa) ? STRIP_ROWS : isa->block;
}

/* Heads of a task. In place no head's bits depend on which others share its task, so that the number of threads may
 * decide: all heads in one task, unless some thread would have less to do than others. */
enum { LEAST_HEADS = 8, MANY_TASKS = 4 };
static int64_t chunk_of(const struct mla_isa *isa, const attn_problem *p, int64_t threads) {
    if (!mla_in_place(isa)) return mla_chunk(p);
    int64_t chunk = mla_min(p->heads_q, MLA_HEADS);
    while (chunk > LEAST_HEADS) {
        const int64_t tasks = p->batch * p->seq_q * ((p->heads_q + chunk - 1) / chunk);
        if (tasks >= MANY_TASKS * threads || tasks % threads == 0) break;
        chunk = mla_round(chunk / 2, LEAST_HEADS);
    }
    return chunk;
}

struct fwd {
    const struct mla_isa *isa;
    const attn_problem *p;
    const attn_args *a;
    struct attn_view q, kv, out, lse, max_logits;
    int widened; /* out_dtype F32 of 16-bit inputs */
    const float *sink;
    int64_t chunk, n_chunks, n_tasks;
    struct attn_cpu_counter next;
};

/* One thread's part of the workspace: offsets in bytes. */
struct layout {
    int64_t ldh, ldp, ldk, ldo; /* heads padded; row strides of P in place, of K and of O, off the power of two that
                                 * would crowd one cache set */
    uint64_t qt, k, zip, s, p, o, max, old, use, sum, sum_rounded, part, part_rounded, key, row, bytes;
};

static struct layout lay_out(const struct mla_isa *isa, const attn_problem *p, int64_t chunk) {
    const int64_t block = block_of(isa, p);
    struct layout l = {.ldh = mla_side(isa, chunk),
                       .ldk = mla_round(mla_depth(isa, p->dim_qk), 16) + 16,
                       .ldo = mla_round(p->dim_v, 16) + 16};
    int64_t f = (int64_t)sizeof(float);
    l.qt = mla_take(&l.bytes, mla_depth(isa, p->dim_qk) * mla_transposed(l.ldh) * f);
    l.k = mla_take(&l.bytes, isa->block * l.ldk * f); /* holds the chunk's q rows first: MLA_HEADS <= block */
    if (isa->bf16 && !mla_in_place(isa))
        l.zip = mla_take(&l.bytes, mla_max(block / 2 * l.ldo, MLA_HEADS * l.ldk) * f); /* strips: q rows */
    l.s = mla_take(&l.bytes, (mla_in_place(isa) ? block : isa->block) *
                                 mla_max(l.ldh, mla_strips(isa) ? 2 * ATTN_MLA_HEADS : 0) * f);
    l.ldp = mla_in_place(isa) ? mla_transposed(l.ldh) : l.ldh;
    l.p = isa->bf16 ? mla_take(&l.bytes, block / 2 * l.ldp * f) : l.s;
    l.o = mla_take(&l.bytes, (mla_strips(isa) ? l.ldh : chunk) * l.ldo * f);
    l.max = mla_take(&l.bytes, l.ldh * f);
    l.old = mla_take(&l.bytes, l.ldh * f);
    l.use = mla_take(&l.bytes, l.ldh * f);
    l.sum = mla_take(&l.bytes, l.ldh * f);
    l.sum_rounded = isa->bf16 && !mla_strips(isa) ? mla_take(&l.bytes, l.ldh * f) : l.sum;
    l.part = mla_take(&l.bytes, l.ldh * f);
    if (l.sum_rounded != l.sum) l.part_rounded = mla_take(&l.bytes, l.ldh * f);
    l.key = mla_take(&l.bytes, 2 * block * (int64_t)sizeof(int32_t));
    if (mla_in_place(isa)) l.row = mla_take(&l.bytes, 2 * block * (int64_t)sizeof(uint16_t *));
    return l;
}

uint64_t attn_cpu_mla_fwd_workspace(const struct mla_isa *isa, const attn_problem *p, int32_t threads) {
    threads = attn_cpu_mla_crew(isa, p, threads);
    const int64_t chunk = chunk_of(isa, p, threads), chunks = (p->heads_q + chunk - 1) / chunk;
    return lay_out(isa, p, chunk).bytes * (uint64_t)attn_cpu_at_most(threads, p->batch * p->seq_q * chunks);
}

/* What was gathered before is rescaled by the factors of the last block. */
static void rescale_sums(const struct fwd *j, const struct layout *l, char *ws, int64_t heads, int any) {
    const float *old = (const float *)(ws + l->old);
    for (int64_t h = 0; any && h < heads; ++h)
        if (old[h] != 1) j->isa->ukr->scale_f32((float *)(ws + l->o) + h * l->ldo, j->p->dim_v, old[h]);
}

/* Rows whose probabilities are added up at once. Where a query names a key 64 times and then a lesser one as often, all
 * of the latter are rounded alike: a chain of 128 came to 1.01 of the bound of out (f32). */
enum { SUM_ROWS = 64 };
/* Scores of one block become probabilities relative to the running maximum (with pairs, in pairs of rows at l->p); *old
 * becomes the factor by which everything gathered before must be rescaled. */
static void exp_scores(const struct fwd *j, const struct layout *l, char *ws, int64_t n, int64_t heads) {
    const struct attn_ukr *ukr = j->isa->ukr;
    const struct mla_vec *vec = j->isa->vec;
    const struct attn_ukr_bf16 *bf16 = j->isa->bf16;
    float *s = (float *)(ws + l->s), *max = (float *)(ws + l->max), *old = (float *)(ws + l->old);
    float *use = (float *)(ws + l->use), *sum = (float *)(ws + l->sum), *part = (float *)(ws + l->part);
    float *sum_rounded = (float *)(ws + l->sum_rounded), *part_rounded = (float *)(ws + l->part_rounded);
    memcpy(old, max, (size_t)l->ldh * sizeof *old);
    vec->scale_max(s, l->ldh, n, l->ldh, (float)j->p->scale, max);
    for (int64_t h = 0; h < l->ldh; ++h) {
        use[h] = max[h] == -INFINITY ? 0.0f : max[h]; /* all scores -inf: probabilities 0, not NaN */
        old[h] -= use[h];
    }
    ukr->exp_f32(old, heads, 0.0f);
    for (int64_t h = 0; h < heads; ++h) sum[h] *= old[h];
    for (int64_t h = 0; bf16 && h < heads; ++h) sum_rounded[h] *= old[h];
    for (int64_t r0 = 0; r0 < n; r0 += SUM_ROWS) {
        const int64_t end = mla_min(n, r0 + SUM_ROWS);
        memset(part, 0, (size_t)l->ldh * sizeof *part);
        if (bf16) memset(part_rounded, 0, (size_t)l->ldh * sizeof *part_rounded);
        for (int64_t r = r0; bf16 && r < end; r += 2)
            bf16->exp_scores((float *)(ws + l->p) + r / 2 * l->ldp, s + r * l->ldh,
                             r + 1 < n ? s + (r + 1) * l->ldh : NULL, use, part, part_rounded, l->ldh, LOG2_E);
        for (int64_t r = r0; !bf16 && r < end; ++r) {
            float *row = s + r * l->ldh;
            vec->sub(row, use, l->ldh);
            ukr->exp_f32(row, heads, 0.0f);
            vec->add(part, row, l->ldh);
        }
        for (int64_t h = 0; h < heads; ++h) sum[h] += part[h];
        for (int64_t h = 0; bf16 && h < heads; ++h) sum_rounded[h] += part_rounded[h];
    }
}

/* The same with strips: rows of keys, of which the first 32 may be copied already, and those after them. */
static void score_strips(const struct fwd *j, const struct layout *l, char *ws, const struct attn_mla_rows *keys,
                         const struct attn_mla_rows *next, const struct attn_mla_copies *copies, int copied) {
    const struct attn_mla_scores f = {.rows = *keys,
                                      .next = *next,
                                      .copies = *copies,
                                      .copied = copied,
                                      .strips = l->ldh / ATTN_MLA_HEADS,
                                      .depth = j->p->dim_qk / 2,
                                      .q = (const float *)(ws + l->qt),
                                      .scale = (float)j->p->scale,
                                      .max = j->max_logits.data ? (float *)(ws + l->max) : NULL,
                                      .offset = (float *)(ws + l->use),
                                      .sum = (float *)(ws + l->sum),
                                      .rescale = (float *)(ws + l->old),
                                      .p = (float *)(ws + l->p),
                                      .ldp = copies->ldz,
                                      .s = (float *)(ws + l->s)};
    j->isa->bf16->mla_scores(&f);
}

static void store_f32(const struct attn_view *v, int64_t b, int64_t h, int64_t i, float x) {
    if (v->data) memcpy(attn_view_row(v, b, h, i), &x, sizeof x);
}

/* Everything about a head but its row of out, which is the sums times the factor, or 0 if none is returned. any = 0:
 * the query has no valid slot, and nothing in the workspace is defined. */
static int conclude(const struct fwd *j, const struct layout *l, char *ws, int64_t b, int64_t i, int64_t h0, int64_t h,
                    int any, float *factor) {
    const attn_problem *p = j->p;
    const float *max = (const float *)(ws + l->max), *sum = (const float *)(ws + l->sum),
                *sum_rounded = (const float *)(ws + l->sum_rounded), *top2 = (const float *)(ws + l->use);
    float lse = attn_core_has(p, ATTN_LSE_EMPTY_PLUS_INF) ? INFINITY : -INFINITY;
    const int valid = any && sum[h] != 0;
    *factor = 0;
    if (valid) {
        /* with strips sums are relative to a power of 2 */
        double has_max = mla_strips(j->isa) ? (double)top2[h] * 0.69314718055994530942 : (double)max[h];
        double natural = has_max + log((double)sum[h]);
        double sunk = j->sink ? 1.0 + exp((double)j->sink[h0 + h] - natural) : 1.0;
        *factor = (float)(1.0 / ((double)sum_rounded[h] * sunk));
        lse = (float)(attn_core_has(p, ATTN_LSE_BASE_2) ? natural * 1.4426950408889634074 : natural);
    }
    store_f32(&j->lse, b, h0 + h, i, lse);
    store_f32(&j->max_logits, b, h0 + h, i, any ? max[h] : -INFINITY);
    return valid;
}

/* Writes the rows of the chunk. */
static void finish(const struct fwd *j, const struct layout *l, char *ws, int64_t b, int64_t i, int64_t h0,
                   int64_t heads, int any) {
    float *o = (float *)(ws + l->o), factor;
    for (int64_t h = 0; h < heads; ++h) {
        if (!conclude(j, l, ws, b, i, h0, h, any, &factor)) memset(o + h * l->ldo, 0, (size_t)j->p->dim_v * sizeof *o);
        j->isa->ukr->narrow(attn_view_row(&j->out, b, h0 + h, i), j->out.dtype, o + h * l->ldo, j->p->dim_v, factor);
    }
}

/* A task and the first of its rows. A worker takes it before the last block of the task before, whose sums copy some of
 * these rows. */
struct turn {
    struct mla_query query;
    int64_t task, b, i, cursor, n;
    int32_t *key; /* [n], one of two places for a block's keys, and the other place */
    int32_t *other;
    int begun; /* its first 32 rows are copied and its heads transposed; in place: its first rows are prefetched */
};
static void take(struct fwd *j, struct turn *t, int32_t *key, int32_t *other) {
    const attn_problem *p = j->p;
    *t = (struct turn){.task = attn_cpu_next(&j->next), .key = key, .other = other};
    if (t->task >= j->n_tasks) return;
    const int64_t row = t->task / j->n_chunks;
    t->b = row / p->seq_q, t->i = row % p->seq_q;
    t->query = attn_cpu_mla_query(p, j->a, t->b, t->i);
    t->n = attn_cpu_mla_next(&t->query, &t->cursor, p->topk, block_of(j->isa, j->p), key, NULL);
}

/* Heads of q as the scores want them. Strips: where pairs of rows will be, since rows are copied already. */
static void load_heads(const struct fwd *j, const struct layout *l, char *ws, int64_t b, int64_t i, int64_t h0,
                       int64_t heads) {
    float *rows = (float *)(ws + (mla_strips(j->isa) ? l->zip : l->k));
    attn_cpu_mla_heads(j->isa, &j->q, b, i, h0, heads, j->p->dim_qk, NULL, rows, l->ldk);
    attn_cpu_mla_turn(j->isa, rows, l->ldk, heads, mla_depth(j->isa, j->p->dim_qk), (float *)(ws + l->qt),
                      mla_transposed(l->ldh));
}

/* A block with strips. `n_next` rows of the query follow, else its results are written, and the heads of the worker's
 * next task transposed. */
static void block_strips(const struct fwd *j, const struct layout *l, char *ws, const struct turn *t, int64_t n,
                         const int32_t *key, int64_t n_next, const int32_t *ahead, int any, struct turn *turn) {
    const attn_problem *p = j->p;
    const int64_t h0 = t->task % j->n_chunks * j->chunk, heads = mla_min(j->chunk, p->heads_q - h0);
    const struct attn_mla_copies copies = {.tiles = (float *)(ws + l->k),
                                           .zip = (float *)(ws + l->zip),
                                           .ldz = mla_strip(block_of(j->isa, j->p)),
                                           .width = p->dim_v / 2};
    const struct attn_mla_rows keys = mla_rows_of(&j->kv, t->b, key, n),
                               next = n_next ? mla_rows_of(&j->kv, t->b, ahead, n_next)
                                             : mla_rows_of(&j->kv, turn->b, turn->key, turn->n);
    float *factor = (float *)(ws + l->part);
    uint32_t valid[MLA_HEADS / ATTN_MLA_HEADS] = {0};
    const struct attn_mla_out out = {.base = attn_view_row(&j->out, t->b, h0, t->i),
                                     .heads = heads,
                                     .stride = j->out.head * j->out.element_bytes,
                                     .factor = factor,
                                     .valid = valid};
    struct attn_mla_sum sum = mla_sum_strips(heads, p->dim_v, n, (const float *)(ws + l->p), &copies, p->dim_qk / 2,
                                             (float *)(ws + l->o), l->ldo, &next);
    score_strips(j, l, ws, &keys, &next, &copies, any || t->begun);
    rescale_sums(j, l, ws, heads, any);
    sum.accumulate = any, sum.even = 1;
    if (!n_next) {
        for (int64_t h = 0; h < heads && !j->widened; ++h)
            valid[h / ATTN_MLA_HEADS] |= (uint32_t)conclude(j, l, ws, t->b, t->i, h0, h, 1, &factor[h])
                                         << h % ATTN_MLA_HEADS;
        if (!j->widened) sum.out = &out; /* bf16 alone */
        if (turn->n) {
            const int64_t h1 = turn->task % j->n_chunks * j->chunk;
            sum.turn = (struct attn_mla_turn){.base = attn_view_row(&j->q, turn->b, h1, turn->i),
                                              .heads = mla_min(j->chunk, p->heads_q - h1),
                                              .stride = j->q.head * j->q.element_bytes,
                                              .depth = p->dim_qk / 2,
                                              .to = (float *)(ws + l->qt)};
            turn->begun = 1;
        }
    }
    j->isa->bf16->mla_sum(&sum);
}

/* A block whose rows stay in place. */
static void block_in_place(const struct fwd *j, const struct layout *l, char *ws, const struct turn *t, int64_t n,
                           const int32_t *key, int64_t n_next, const int32_t *ahead, int any, struct turn *turn) {
    const attn_problem *p = j->p;
    const struct attn_ukr_sparse *sparse = j->isa->sparse;
    const int64_t heads = mla_min(j->chunk, p->heads_q - t->task % j->n_chunks * j->chunk), depth = p->dim_qk / 2;
    const uint16_t **row = (const uint16_t **)(ws + l->row), **next = row + block_of(j->isa, j->p);
    float *s = (float *)(ws + l->s), *o = (float *)(ws + l->o);
    struct attn_sparse_ahead f;
    attn_cpu_mla_point(&j->kv, t->b, key, n, row);
    if (n_next) {
        attn_cpu_mla_point(&j->kv, t->b, ahead, n_next, next);
    } else {
        attn_cpu_mla_point(&j->kv, turn->b, turn->key, turn->n, next);
        turn->begun = turn->n > 0;
    }
    if (!any && !t->begun) {
        f = attn_cpu_mla_ahead(row, n, p->dim_qk);
        attn_cpu_mla_prefetch(&f);
    }
    f = attn_cpu_mla_ahead(next, n_next ? n_next : turn->n, p->dim_qk);
    mla_pace(&f, p->dim_qk, p->dim_qk + p->dim_v, mla_score_places(n, heads, depth));
    sparse->scores(n, heads, depth, row, (const float *)(ws + l->qt), s, l->ldh, &f);
    exp_scores(j, l, ws, n, heads);
    rescale_sums(j, l, ws, heads, any);
    mla_pace(&f, 1, 1, mla_sum_places(heads, p->dim_v));
    sparse->sum(heads, p->dim_v, (n + 1) / 2, (const float *)(ws + l->p), l->ldp, row, o, l->ldo, any, &f);
}

/* Leaves the worker's next task in *turn. */
static void task(struct fwd *j, const struct layout *l, char *ws, struct turn *turn) {
    const attn_problem *p = j->p;
    float *qt = (float *)(ws + l->qt), *k = (float *)(ws + l->k), *s = (float *)(ws + l->s), *o = (float *)(ws + l->o);
    float *max = (float *)(ws + l->max), *sum = (float *)(ws + l->sum), *sum_rounded = (float *)(ws + l->sum_rounded),
          *top2 = (float *)(ws + l->use);
    const struct mla_rows rows = {k, (float *)(ws + l->zip), l->ldk, l->ldo, p->dim_v};
    const struct turn t = *turn;
    const int64_t h0 = t.task % j->n_chunks * j->chunk, heads = mla_min(j->chunk, p->heads_q - h0);
    int32_t *key = t.key, *ahead = t.other;
    int64_t cursor = t.cursor;
    int any = 0;
    if (t.n) {
        if (!t.begun || mla_in_place(j->isa)) load_heads(j, l, ws, t.b, t.i, h0, heads);
        for (int64_t h = 0; h < l->ldh; ++h) {
            max[h] = top2[h] = -INFINITY;
            sum[h] = sum_rounded[h] = 0;
        }
    } else {
        take(j, turn, key, ahead);
    }
    for (int64_t n = t.n, n_next; n; n = n_next, any = 1) {
        n_next = attn_cpu_mla_next(&t.query, &cursor, p->topk, block_of(j->isa, j->p), ahead, NULL);
        if (!n_next) take(j, turn, ahead, key);
        if (mla_strips(j->isa)) {
            block_strips(j, l, ws, &t, n, key, n_next, ahead, any, turn);
        } else if (mla_in_place(j->isa)) {
            block_in_place(j, l, ws, &t, n, key, n_next, ahead, any, turn);
        } else {
            attn_cpu_mla_gather(j->isa, &j->kv, t.b, key, n, p->dim_qk, &rows);
            attn_cpu_mla_score(j->isa, p->dtype, n, l->ldh, p->dim_qk, k, l->ldk, qt, s, l->ldh);
            exp_scores(j, l, ws, n, heads);
            rescale_sums(j, l, ws, heads, any);
            attn_cpu_mla_sum(j->isa, heads, p->dim_v, n, (const float *)(ws + l->p), l->ldp, &rows, o, l->ldo, any);
        }
        int32_t *was = key;
        key = ahead, ahead = was;
    }
    if (!any || !mla_strips(j->isa) || j->widened) finish(j, l, ws, t.b, t.i, h0, heads, any);
}

static void job(void *arg, int32_t worker) {
    struct fwd *j = arg;
    const struct layout l = lay_out(j->isa, j->p, j->chunk);
    char *ws = (char *)j->a->workspace + l.bytes * (uint64_t)worker;
    attn_ukr_bf16_begin(j->isa->bf16);
    int32_t *key = (int32_t *)(ws + l.key);
    struct turn turn;
    for (take(j, &turn, key, key + block_of(j->isa, j->p)); turn.task < j->n_tasks;) task(j, &l, ws, &turn);
    attn_ukr_bf16_end(j->isa->bf16);
}

void attn_cpu_mla_fwd(const struct mla_isa *isa, const struct attn_core_device *dev, const attn_problem *p,
                      const attn_args *a) {
    const int32_t crew = attn_cpu_mla_crew(isa, p, dev->threads);
    struct fwd j = {.isa = isa, .p = p, .a = a, .chunk = chunk_of(isa, p, crew)};
    j.n_chunks = (p->heads_q + j.chunk - 1) / j.chunk;
    j.n_tasks = p->batch * p->seq_q * j.n_chunks;
    if (!j.n_tasks) return;
    j.q = attn_core_view(p, a, ATTN_ROLE_Q);
    j.kv = attn_core_view(p, a, ATTN_ROLE_KV);
    j.out = attn_core_view(p, a, ATTN_ROLE_OUT);
    j.widened = j.out.dtype != p->dtype;
    j.lse = attn_core_view(p, a, ATTN_ROLE_LSE);
    j.max_logits = attn_core_view(p, a, ATTN_ROLE_MAX_LOGITS);
    if (attn_core_has(p, ATTN_SINK)) j.sink = a->sink->data;
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(crew, j.n_tasks), job, &j);
}
