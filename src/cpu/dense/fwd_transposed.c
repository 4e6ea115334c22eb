/* SPDX-License-Identifier: MIT
 * The dense forward with transposed scores, S^T = K Q^T: queries lie across the lanes, so that the softmax needs no
 * reduction across lanes. fwd.c calls it where it pays and the table has ukr/transposed.h. A task is flat rows of one
 * key head, in strips of 32. For each block of keys (load_block) each strip runs over steps of keys (run_strip,
 * run_step), on a fixed grid. Numbers are f32, or widened to it, or pairs of bf16:
 *
 *     K      rows in place if they are contiguous, else copied                               [n][depth]
 *     V      f32: the same; pairs: zipped by two keys                                        [n or n/2][width]
 *     Q      transposed; f32: times scale                                                    [depth][32]
 *     P      transposed scores of a step, then its probabilities                             [keys][32]
 *     O      transposed sums of a strip                                                      [width][32]
 *
 * The running max of a query is its largest score of the first step in which it sees a key, so that no step waits
 * for a maximum. Where a row's sum within one step passes MOST_SUM, the running max moves to that step's maximum,
 * and the step's exponentials are taken again. */
#include "cpu/dense/fwd_transposed.h"

#include "cpu/dense/bf16_operands.h"
#include "cpu/dense/score_mod_rows.h"

#include <math.h>
#include <string.h>

#define LOG2_E   1.44269504088896340736
#define MOST_SUM 65536.0f
enum {
    ROWS = ATTN_TRANSPOSED,
    HALF = ROWS / 2,
    MOST_STEP = 9 * ATTN_TRANSPOSED_ROWS, /* P, Q and O of a step at D64 take 32 KiB of the first-level cache */
    LINE = 32,                            /* keys of a cache line of a 16-bit mask */
    MOST_MASKED = 4 * LINE,               /* keys of a step with a mask: each of its lines is read once */
    BLOCK_BYTES = 1088 << 10,             /* keys and values of a block: half of a second-level cache */
    TASK_BYTES = 512 << 10,               /* queries and sums of a task */
    MOST_STRIPS = 32
};

static const struct attn_ukr_transposed *table(const struct attn_cpu_fwd *f) {
    return f->s.bf16 ? f->s.bf16->transposed : f->s.u->transposed;
}

/* 11 of 12 lanes are filled at least, or split-K. Strips of 14 rows (fwd.c) waste less, but read keys more. */
static int pays(const struct attn_cpu_fwd *f) {
    return f->splits > 1 || 12 * f->s.flat >= 11 * attn_cpu_sdpa_up(f->s.flat, HALF);
}
int attn_cpu_transposed_serves(const struct attn_cpu_fwd *f) {
    const attn_problem *p = f->s.p;
    return table(f) && !f->exact_max && p->dtype != ATTN_F64 && (f->s.plain || f->s.remaining_fits) &&
           (p->softcap <= 0 || attn_softcap_fits(f->s.softcap, f->s.remaining_scale)) && f->panel && p->dim_qk > 0 &&
           p->dim_v > 0 && p->seq_k > 0 && pays(f);
}

void attn_cpu_transposed_lay_out(struct attn_cpu_fwd *f, int32_t threads) {
    const attn_problem *p = f->s.p;
    const int pairs = table(f)->pairs;
    const int64_t real = (int64_t)sizeof(float), depth = f->depth, width = p->dim_v,
                  values = pairs ? width / 2 + 1 : width;
    f->transposed = 1;
    /* Pages are looked up where keys are loaded, so paged problems take the plain path; keys of missing pages are
     * hidden. */
    if (attn_core_has(p, ATTN_PAGED) && (p->scale > 0 || !pairs) && p->softcap <= 0 && !p->alibi && !p->mask_dtype)
        f->s.plain = 1, f->s.unit = pairs ? p->scale : 1;
    f->strip = ROWS;
    f->n_cached = 1;
    const int64_t most = p->mask_dtype ? MOST_MASKED : MOST_STEP, steps = attn_cpu_sdpa_blocks(p->seq_k, most);
    f->step = attn_cpu_sdpa_up(attn_cpu_sdpa_blocks(p->seq_k, steps), p->mask_dtype ? LINE : ATTN_TRANSPOSED_ROWS);
    const int64_t fits = BLOCK_BYTES / ((depth + values) * real * f->step),
                  all = attn_cpu_sdpa_blocks(f->splits > 1 ? f->split : p->seq_k, f->step),
                  blocks = attn_cpu_sdpa_blocks(all, fits < 1 ? 1 : fits);
    f->block_keys = attn_cpu_sdpa_blocks(all, blocks) * f->step;
    const int64_t fit = TASK_BYTES / (ROWS * (depth + width) * real), strips = attn_cpu_sdpa_blocks(f->s.flat, ROWS);
    const int64_t most_rows = fit < 4 ? 4 : fit > MOST_STRIPS ? MOST_STRIPS : fit;
    /* With all keys in one block a task finds them in the cache where the one before left them, and may be small: where
     * a core is preempted, others take more tasks. */
    f->stay = blocks == 1;
    int64_t want = strips * p->batch * p->heads_k / ((f->stay ? 16 : 4) * (int64_t)threads);
    want = want < 1 ? 1 : want > most_rows ? most_rows : want;
    if (f->splits > 1) want = strips; /* split-K has few rows, and a partial result holds all of them */
    f->row_blocks = attn_cpu_sdpa_blocks(strips, want);
    f->rows = attn_cpu_sdpa_blocks(strips, f->row_blocks) * ROWS;
    f->row_blocks = attn_cpu_sdpa_blocks(f->s.flat, f->rows);
    f->ldq = attn_cpu_sdpa_up(depth, 16);
    f->ldv = attn_cpu_sdpa_up(width, 16);
    attn_cpu_fwd_lay_out_partial(f);

    /* With one block, queries and sums of one strip at a time stay in the first-level cache. */
    const int64_t held = f->stay ? ROWS : f->rows;

    f->offsets.end = 0;
    int64_t *end = &f->offsets.end;
    f->offsets.q = attn_cpu_sdpa_take(end, held * depth * real);
    f->offsets.k = attn_cpu_sdpa_take(end, f->block_keys * depth * real);
    f->offsets.v = attn_cpu_sdpa_take(end, f->block_keys * width * real);
    f->offsets.raw = attn_cpu_sdpa_take(end, f->block_keys * width * real);
    f->offsets.nonfinite = attn_cpu_sdpa_take(end, f->block_keys);
    f->offsets.visible = attn_cpu_sdpa_take(end, f->step * (int64_t)sizeof(uint32_t));
    f->offsets.cached = attn_cpu_sdpa_take(end, (int64_t)sizeof(struct attn_cpu_fwd_cached));
    int64_t tmp = ROWS * (f->ldq > f->ldv ? f->ldq : f->ldv) * real;
    if (p->mask_dtype && tmp < ATTN_CPU_STRIP_MASK_BYTES) tmp = ATTN_CPU_STRIP_MASK_BYTES;
    f->offsets.tmp = attn_cpu_sdpa_take(end, tmp);
    f->offsets.p = attn_cpu_sdpa_take(end, (f->step + ATTN_TRANSPOSED_MORE) * ROWS * real);
    f->offsets.bias = attn_cpu_sdpa_take(end, p->mask_dtype ? (f->step + ATTN_CPU_STRIP_STEP) * ROWS * real : 0);
    f->offsets.page_missing = attn_cpu_sdpa_take(end, attn_core_has(p, ATTN_PAGED) ? f->block_keys : 0);
    f->offsets.row = attn_cpu_sdpa_take(end, f->rows * (int64_t)sizeof(struct attn_cpu_sdpa_row));
    f->offsets.o = attn_cpu_sdpa_take(end, held * width * real);
    f->offsets.m = attn_cpu_sdpa_take(end, f->rows * real);
    f->offsets.exp_offset = attn_cpu_sdpa_take(end, 2 * f->rows * real);
    f->offsets.l = attn_cpu_sdpa_take(end, 2 * f->rows * real);
}

struct work {
    const struct attn_cpu_fwd *f;
    const struct attn_ukr_transposed *u;
    struct attn_transposed_exp exp_args; /* pre_offset and offset: of the strip */
    double offset_log;                   /* natural logarithm that an offset of 1 stands for: unit / exp_args.factor */
    struct attn_core_seq seq;
    int64_t b, hk;
    struct attn_cpu_sdpa_row *row;
    /* Of each query. ref: running max, -inf where it has seen no key. P = 2^((s - pre_offset) * factor - offset). */
    float *q, *tmp, *p, *o, *ref, *pre_offset, *offset, *l;
    float *l_rounded; /* pairs: the sum of P as rounded to bf16, the divisor of out; l, unrounded, makes lse */
    int close_alone;  /* 1: rows are finished one by one, as a sink and other forms of lse need */
    int64_t depth;
    const float *k, *v; /* of key `first` on */
    int64_t first;
    float *k_own, *v_own;
    struct attn_cpu_fwd_cached *cached;
    struct attn_cpu_sdpa_nonfinite nonfinite;
    uint32_t *visible;
    char *partial;         /* NULL; else where results of this split of the keys go */
    uint8_t *page_missing; /* keys of the block in pages outside the pool */
    int any_page_missing;
    /* 1: scores need more than a factor and a softcap: `score`, of the strip. Its keys count from w->first, or (a mask
     * that needs `bias`) from the step's first key. */
    int has_score_mod;
    struct attn_fwd_score_mod score;
    float *bias;
    struct strip {
        struct attn_cpu_fwd_bounds sees;
        int accumulate, has_max; /* O and l have been started; each row has a running max */
    } strips[MOST_STRIPS];
};

static float *queries(const struct work *w, int64_t r0) { return w->q + (w->f->stay ? 0 : r0 * w->depth); }
static float *sums(const struct work *w, int64_t r0) { return w->o + (w->f->stay ? 0 : r0 * w->f->s.p->dim_v); }

/* Prefetches n rows of a query tensor, from row r0 of the task on. */
static void prefetch(const struct work *w, const struct attn_view *view, int64_t r0, int64_t n, int64_t width) {
    for (int64_t r = r0; r < r0 + n; r++) {
        const char *row = attn_view_row(view, w->b, w->row[r].h, w->seq.q0 + w->row[r].i);
        for (int64_t byte = 0; byte < width * view->element_bytes; byte += 64) __builtin_prefetch(row + byte, 0, 2);
    }
}
/* Rows that a strip prefetches during its products, a share with each step: all at once would stall the processor. */
struct wants {
    int64_t next, last; /* queries of the next strip */
    int64_t out, end;   /* rows of this strip's results */
    int64_t share;      /* rows of each that go with a step */
};
static void prefetch_some(const struct work *w, struct wants *x) {
    const attn_problem *p = w->f->s.p;
    const int64_t q = x->last - x->next < x->share ? x->last - x->next : x->share;
    const int64_t o = x->end - x->out < x->share ? x->end - x->out : x->share;
    prefetch(w, &w->f->s.q, x->next, q, p->dim_qk);
    prefetch(w, &w->f->out, x->out, o, p->dim_v);
    x->next += q, x->out += o;
}

static void load_strip(const struct work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t wide = w->u->pairs ? 2 : 1, bytes = w->u->pairs ? 2 : 4;
    float *q = queries(w, r0);
    if (n == ROWS && f->s.group == 1 && f->s.q.element_bytes == bytes && f->s.p->dim_qk % wide == 0 &&
        f->s.q.row % wide == 0) { /* rows are whole elements, and evenly spaced */
        const struct attn_cpu_sdpa_row *row = &w->row[r0];
        const char *rows = attn_view_row(&f->s.q, w->b, row->h, w->seq.q0 + row->i);
        f->s.u->transpose_f32(q, ROWS, (const float *)(const void *)rows, f->s.q.row / wide, ROWS, w->depth);
        if (!w->u->pairs) attn_cpu_sdpa_scale_f32(&f->s, q, ROWS * w->depth, f->s.row_factor);
        return;
    }
    if (n < ROWS) memset(w->tmp, 0, (size_t)(ROWS * f->ldq) * sizeof *w->tmp);
    for (int64_t r = 0; r < n; r++) {
        const struct attn_cpu_sdpa_row *row = &w->row[r0 + r];
        const char *from = attn_view_row(&f->s.q, w->b, row->h, w->seq.q0 + row->i);
        const double factor = f->s.row_factor * attn_core_scale(f->s.p, f->s.args, ATTN_ROLE_Q, w->b, row->h);
        if (w->u->pairs)
            attn_cpu_bf16_row(w->tmp + r * f->ldq, from, f->s.p->dim_qk);
        else
            attn_cpu_sdpa_load_f32(&f->s, w->tmp + r * f->ldq, from, f->s.p->dtype, w->depth, factor);
    }
    f->s.u->transpose_f32(q, ROWS, w->tmp, f->ldq, ROWS, w->depth);
}

/* Keys from w->first on. Rows of one operand follow each other at once, so that neither rows far apart fight for the
 * same cache sets nor a tile needs a second stride. */
static const float *load_keys(const struct work *w, int64_t n, int holds) {
    const struct attn_cpu_fwd *f = w->f;
    const struct attn_view *view = &f->s.k;
    const int64_t depth = w->depth;
    int64_t ld;
    if (!w->u->pairs) {
        if (holds && (view->row != depth || w->seq.pages)) return w->k_own;
        return attn_cpu_sdpa_keys_f32(&f->s, view, &w->seq, w->b, w->hk, w->first, n, depth, w->k_own, depth,
                                      view->row != depth, &ld);
    }
    if (!w->seq.pages && view->row == 2 * depth && f->s.p->dim_qk == 2 * depth) {
        const void *rows = attn_view_row(view, w->b, w->hk, w->seq.k0 + w->first);
        if ((uintptr_t)rows % sizeof(float) == 0) return rows;
    }
    for (int64_t j = 0; j < n && !holds; j++) {
        const char *row = attn_core_kv_row(f->s.p, view, &w->seq, w->b, w->hk, w->first + j);
        if (row) {
            attn_cpu_bf16_row(w->k_own + j * depth, row, f->s.p->dim_qk);
        } else {
            memset(w->k_own + j * depth, 0, (size_t)depth * sizeof *w->k_own);
        }
    }
    return w->k_own;
}
/* The same for values. Nonfinite ones are replaced by 0 and kept in w->nonfinite, for add_nonfinite. */
static const float *load_values(struct work *w, int64_t n, int holds) {
    const struct attn_cpu_fwd *f = w->f;
    const struct attn_view *view = &f->s.v;
    const int64_t width = f->s.p->dim_v;
    struct attn_cpu_fwd_cached *cached = w->cached;
    int64_t ld;
    w->nonfinite.any = holds && !cached->clean;
    if (w->u->pairs) {
        if (!holds)
            attn_cpu_bf16_rows(&f->s, view, &w->seq, w->b, w->hk, w->first, n, width, w->v_own, width, &w->nonfinite);
        cached->clean = !w->nonfinite.any;
        return w->v_own;
    }
    if (holds && (w->nonfinite.any || view->row != width || w->seq.pages)) return w->v_own;
    const float *v = attn_cpu_sdpa_keys_f32(&f->s, view, &w->seq, w->b, w->hk, w->first, n, width, w->v_own, width,
                                            view->row != width, &ld);
    if (holds) return v;
    cached->clean = f->s.u->finite_f32(v, n * width);
    if (cached->clean) return v;
    if (v != w->v_own) memcpy(w->v_own, v, (size_t)(n * width) * sizeof *v);
    attn_cpu_sdpa_nonfinite_find_f32(&f->s, &w->nonfinite, w->v_own, n, width, width);
    return w->v_own;
}
static void load_block(struct work *w, int64_t begin, int64_t end) {
    const int64_t head = w->b * w->f->s.p->heads_k + w->hk;
    struct attn_cpu_fwd_cached *cached = w->cached;
    const int holds = cached->head == head && cached->begin <= begin && end <= cached->end;
    if (!holds) *cached = (struct attn_cpu_fwd_cached){.head = head, .begin = begin, .end = end};
    w->first = cached->begin;
    for (int64_t j = w->first; j < cached->end && !holds && w->seq.pages; j++) {
        const int page_missing = !attn_core_kv_row(w->f->s.p, &w->f->s.k, &w->seq, w->b, w->hk, j);
        w->page_missing[j - w->first] = (uint8_t)page_missing;
        cached->page_missing |= page_missing;
    }
    w->any_page_missing = cached->page_missing;
    w->k = load_keys(w, cached->end - cached->begin, holds);
    w->v = load_values(w, cached->end - cached->begin, holds);
}

/* A step: the strip of rows r0 .. against keys j0 .. j0 + n. */
struct step {
    int64_t r0, rows, j0, n;
    int n_half;     /* 1: of up to 16 rows */
    int64_t cut;    /* keys j0 .. j0 + cut are seen by all rows; n: all are, 0: hide must look at all */
    int64_t grid;   /* first key of the step on the fixed grid, on which a row's running max depends; j0 may be later */
    int accumulate; /* O += P V; 0: O = P V */
    int has_max;    /* all rows have a running max */
    float *q, *ref, *pre_offset, *offset, *l, *l_rounded, *o;
};

/* Prefetches what rows r .. r + n have of a mask for the keys of the next step. */
static void prefetch_masks(const struct work *w, const struct step *s, int64_t r, int64_t n) {
    const struct attn_fwd_score_mod *f = &w->score;
    const int64_t key = s->j0 + s->n - w->first, left = f->mask_keys - key, keys = left < s->n ? left : s->n;
    for (int64_t end = r + n; r < end; r++)
        for (int64_t byte = key * f->mask_bytes; byte < (key + keys) * f->mask_bytes; byte += 64)
            __builtin_prefetch(f->cell[r] + byte, 0, 2);
}
static void prepare_score(struct work *w, int64_t r0, int64_t rows, int64_t j0) {
    attn_cpu_strip_score(&w->f->s, w->row + r0, rows, j0, &w->score);
}
/* The score_mod of a step, where it is more than a softcap. */
static void finish_scores(struct work *w, const struct step *s) {
    if (w->score.mask == ATTN_UKR_MASK_BIAS) {
        prepare_score(w, s->r0, s->rows, s->j0);
        attn_cpu_strip_masks(&w->f->s, w->row + s->r0, s->rows, s->j0, s->n, w->bias, w->tmp);
        w->u->score(&w->score, s->n, 0, w->p);
    } else {
        w->u->score(&w->score, s->n, s->j0 - w->first, w->p);
    }
}
/* Scores of a step, transposed, in w->p: products, score_mod, and -inf for hidden keys. */
static void score(struct work *w, const struct step *s) {
    enum { PARTS = 2 };
    int32_t lo[ROWS] = {0}, hi[ROWS] = {0};
    const float *k = w->k + (s->j0 - w->first) * w->depth;
    const int prefetch = w->has_score_mod && w->score.mask != ATTN_UKR_MASK_NONE && w->score.mask != ATTN_UKR_MASK_BIAS;
    const int64_t part = attn_cpu_sdpa_up(attn_cpu_sdpa_blocks(s->n, PARTS), 2);
    for (int64_t j = 0, r = 0; j < s->n; j += part, r += ROWS / PARTS) {
        if (prefetch) prefetch_masks(w, s, r, ROWS / PARTS);
        w->u->scores(s->n_half, s->n - j < part ? s->n - j : part, w->depth, k + j * w->depth, s->q, w->p + j * ROWS);
    }
    if (w->has_score_mod) {
        finish_scores(w, s);
    } else if (w->exp_args.cap) {
        w->u->cap(s->n, w->p, w->exp_args.cap);
    }
    const int64_t n = s->n - s->cut, j0 = s->j0 + s->cut;
    for (int64_t r = 0; r < s->rows && n > 0; r++) {
        const int64_t a = w->row[s->r0 + r].lo - j0, e = w->row[s->r0 + r].hi - j0;
        lo[r] = (int32_t)(a < 0 ? 0 : a > n ? n : a);
        hi[r] = (int32_t)(e < 0 ? 0 : e > n ? n : e);
    }
    if (n > 0) w->u->hide(n, w->p + s->cut * ROWS, lo, hi);
    for (int64_t j = 0; j < s->n && w->any_page_missing; j++)
        for (int64_t r = 0; r < ROWS && w->page_missing[s->j0 - w->first + j]; r++) w->p[j * ROWS + r] = -INFINITY;
}
/* Largest score of each query, plus what ALiBi still grows by after this step. Without the latter the running max would
 * move in most steps, and rescale O and l each time. */
static void look_for_high(struct work *w, const struct step *s, float *high) {
    w->u->high(s->n, w->p, high);
    if (!w->has_score_mod || !w->score.alibi) return;
    float left[ROWS];
    w->u->growth(&w->score, w->f->step, s->grid - (w->score.mask == ATTN_UKR_MASK_BIAS ? s->j0 : w->first), left);
    for (int64_t r = 0; r < ROWS; r++) high[r] += left[r];
}

/* The running max that l and O of a row are relative to, as a natural logarithm. */
static double ln_max(const struct work *w, float pre_offset, float offset) {
    return (double)pre_offset * w->f->s.unit + (double)offset * w->offset_log;
}

/* A step with hidden keys, nonfinite values, rows without a running max (they take their largest of the step), or
 * rows whose sum passed MOST_SUM: their running max moves, l and O are rescaled, exponentials run again. */
static void step_with_care(struct work *w, const struct step *s, float *sum) {
    float high[ROWS], rescale[ROWS];
    score(w, s);
    for (int64_t r = 0; r < ROWS; r++) high[r] = rescale[r] = 1;
    if (!s->has_max) look_for_high(w, s, high);
    for (int64_t j = 0; j < s->n && w->nonfinite.any; j++) {
        w->visible[j] = 0;
        for (int64_t r = 0; r < s->rows && w->nonfinite.row[s->j0 - w->first + j]; r++)
            w->visible[j] |= (uint32_t) !(w->p[j * ROWS + r] <= -INFINITY) << r; /* a NaN is visible */
    }
    struct attn_transposed_exp exp_args = w->exp_args;
    exp_args.pre_offset = s->pre_offset, exp_args.offset = s->offset;
    if (!s->has_max)
        w->u->update_max(UINT32_MAX >> (ROWS - s->rows), 1, high, exp_args.factor, s->ref, s->pre_offset, s->offset);
    uint32_t over = w->u->exp_scores(s->n_half, s->n, w->p, &exp_args, sum);
    for (int64_t r = 0; r < ROWS && over; r++)
        if (r >= s->rows || isinf(s->ref[r]) || !isfinite(s->l[r])) over &= ~(UINT32_C(1) << r);
    if (!over) return;
    double was[ROWS];
    for (int64_t r = 0; r < ROWS; r++) was[r] = ln_max(w, s->pre_offset[r], s->offset[r]);
    score(w, s);
    look_for_high(w, s, high);
    over = w->u->update_max(over, 0, high, exp_args.factor, s->ref, s->pre_offset, s->offset);
    for (int64_t r = 0; r < s->rows; r++) {
        if (!(over >> r & 1)) continue;
        rescale[r] = (float)exp(was[r] - ln_max(w, s->pre_offset[r], s->offset[r]));
        s->l[r] *= rescale[r];
        s->l_rounded[r] *= rescale[r];
    }
    if (s->accumulate) w->u->scale(w->f->s.p->dim_v, s->o, rescale);
    w->u->exp_scores(s->n_half, s->n, w->p, &exp_args, sum);
}

/* Adds nonfinite values to O of the rows that see them: NaN and infinity stay so under any probability but 0. */
static void add_nonfinite(const struct work *w, const struct step *s) {
    const int64_t width = w->f->s.p->dim_v;
    for (int64_t j = 0; j < s->n; j++) {
        if (!w->nonfinite.row[s->j0 - w->first + j] || !w->visible[j]) continue;
        const float *raw = (const float *)w->nonfinite.raw + (s->j0 - w->first + j) * width;
        for (int64_t c = 0; c < width; c++)
            for (int64_t r = 0; r < ROWS && !isfinite(raw[c]); r++)
                if (w->visible[j] >> r & 1) s->o[c * ROWS + r] += raw[c];
    }
}

/* Scores, exponentials, l and P V of a step. careful: step_with_care is needed in any case. */
static void run_step(struct work *w, const struct step *s, int careful) {
    const int64_t width = w->f->s.p->dim_v, key = s->j0 - w->first, pack = w->u->pairs ? 2 : 1;
    float sum[2 * ROWS];
    if (!careful) {
        struct attn_transposed_exp exp_args = w->exp_args;
        uint32_t over;
        exp_args.offset = s->offset;
        for (int64_t r = 0; r < ROWS && !exp_args.pre_offset; r++)
            if (s->pre_offset[r] < 0 || s->pre_offset[r] > 0) exp_args.pre_offset = s->pre_offset;
        if (w->has_score_mod || w->any_page_missing) {
            score(w, s);
            over = w->u->exp_scores(s->n_half, s->n, w->p, &exp_args, sum);
        } else {
            over = w->u->scores_exp(s->n_half, s->n, w->depth, w->k + key * w->depth, s->q, w->p, &exp_args, sum);
        }
        /* a row with nonfinite sums keeps its running max */
        for (int64_t r = 0; r < s->rows && over; r++) careful |= (over >> r & 1) && isfinite(s->l[r]);
    }
    if (careful) step_with_care(w, s, sum);
    for (int64_t r = 0; r < ROWS; r++) s->l[r] += sum[r];
    for (int64_t r = 0; r < ROWS && w->u->pairs; r++) s->l_rounded[r] += sum[ROWS + r];
    w->u->add(s->n_half, attn_cpu_sdpa_blocks(s->n, pack), width, w->v + key / pack * width, w->p, s->o, s->accumulate);
    if (w->nonfinite.any) add_nonfinite(w, s);
}

/* The strip of rows r0 .. against those keys of begin .. end that it sees. */
static void run_strip(struct work *w, int64_t r0, int64_t rows, int64_t begin, int64_t end, struct wants wants) {
    const struct attn_cpu_fwd *f = w->f;
    struct strip *strip = &w->strips[r0 / ROWS];
    const struct attn_cpu_fwd_bounds *sees = &strip->sees;
    const int64_t lo = sees->lo > begin ? sees->lo : begin, hi = sees->hi < end ? sees->hi : end;
    struct step s = {.r0 = r0,
                     .rows = rows,
                     .n_half = rows > HALF ? 2 : 1,
                     .q = queries(w, r0),
                     .ref = w->ref + r0,
                     .pre_offset = w->pre_offset + r0,
                     .offset = w->offset + r0,
                     .l = w->l + r0,
                     .l_rounded = w->l_rounded + r0,
                     .o = sums(w, r0)};
    const int64_t steps = attn_cpu_sdpa_blocks(hi - lo / f->step * f->step, f->step);
    wants.share = steps > 1 ? attn_cpu_sdpa_blocks(ROWS, steps - 1) : ROWS;
    const int64_t align = f->s.p->mask_dtype ? LINE : 2; /* of a step's first key */
    if (w->has_score_mod) prepare_score(w, r0, rows, w->first);
    for (s.grid = lo / f->step * f->step; s.grid < hi; s.grid += f->step) {
        /* keys before the first that some row sees are skipped: they would add 0 */
        s.j0 = lo > s.grid ? lo / align * align : s.grid;
        s.n = (hi - s.grid < f->step ? hi : s.grid + f->step) - s.j0;
        s.cut = sees->lo_most > s.j0 ? 0 : sees->hi_least - s.j0;
        s.cut = s.cut < 0 ? 0 : s.cut < s.n ? s.cut : s.n;
        s.has_max = strip->has_max;
        s.accumulate = strip->accumulate;
        strip->accumulate = 1;
        prefetch_some(w, &wants);
        run_step(w, &s, s.cut < s.n || !s.has_max || w->nonfinite.any);
        for (int64_t r = strip->has_max ? rows : 0; r <= rows; r++) {
            if (r == rows) {
                strip->has_max = 1;
            } else if (isinf(s.ref[r])) {
                break;
            }
        }
    }
}

/* Writes a whole strip's results at once, where no row is empty or nonfinite. Returns 0, nothing done, if it cannot. */
static int store_at_once(const struct work *w, int64_t r0, int64_t n, const float *factor) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v;
    const struct attn_cpu_sdpa_row *first = &w->row[r0];
    if (w->u->pairs && f->out.dtype == ATTN_BF16 && width % 32 == 0 && !attn_core_has(f->s.p, ATTN_SINK)) {
        static const float none[ROWS] = {0};
        uint16_t *row[ROWS];
        for (int64_t r = 0; r < n; r++)
            row[r] = (uint16_t *)(void *)attn_view_row(&f->out, w->b, first[r].h, w->seq.q0 + first[r].i);
        return f->s.bf16->finish(&(struct attn_fwd_finish){.rows = n,
                                                           .width = width,
                                                           .bf16 = 1,
                                                           .factor = 1,
                                                           .m = none,
                                                           .l = w->l_rounded + r0,
                                                           .o = sums(w, r0),
                                                           .row = row});
    }
    if (n < ROWS || f->s.group > 1 || f->out.dtype != ATTN_F32) return 0;
    w->u->scale(width, sums(w, r0), factor);
    f->s.u->transpose_f32((float *)(void *)attn_view_row(&f->out, w->b, first->h, w->seq.q0 + first->i), f->out.row,
                          sums(w, r0), ROWS, width, ROWS);
    return 1;
}
/* Factor of O by which l is replaced with the sum of P as rounded to bf16, as P V was computed. */
static float l_over_rounded(const struct work *w, int64_t r) {
    return w->u->pairs && w->l_rounded[r] > 0 && isfinite(w->l[r]) ? w->l[r] / w->l_rounded[r] : 1;
}
/* Writes m, l and O of this split of the keys, relative to m itself and not to m * factor as rounded. */
static void leave_partial(const struct work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    float *m = (float *)(void *)w->partial + r0, *l = (float *)(void *)(w->partial + f->partial_l) + r0,
          *o = (float *)(void *)(w->partial + f->partial_o) + r0 * f->ldv;
    memset(o, 0, (size_t)(n * f->ldv) * sizeof *o);
    f->s.u->transpose_f32(o, f->ldv, sums(w, r0), ROWS, f->s.p->dim_v, n);
    for (int64_t r = 0; r < n; r++) {
        const float ref = w->ref[r0 + r], sum = w->l[r0 + r];
        m[r] = isfinite(sum) ? ref : NAN;
        l[r] = 0;
        if (!isfinite(m[r])) {
            memset(o + r * f->ldv, 0, (size_t)f->ldv * sizeof *o);
            continue;
        }
        const float exact = (float)exp(ln_max(w, w->pre_offset[r0 + r], w->offset[r0 + r]) - (double)ref * f->s.unit);
        l[r] = sum * exact;
        f->s.u->scale_f32(o + r * f->ldv, f->ldv, exact * l_over_rounded(w, r0 + r));
    }
}
static void finish_strip(const struct work *w, int64_t r0, int64_t n) {
    if (w->partial) {
        leave_partial(w, r0, n);
        return;
    }
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_v;
    const struct attn_cpu_sdpa_row *first = &w->row[r0];
    float *o = sums(w, r0), factor[ROWS], log[ROWS];
    double m[ROWS];
    int simple = 1;
    w->u->close(w->l + r0, factor, log);
    for (int64_t r = 0; r < ROWS; r++) {
        if (r >= n) {
            factor[r] = 0;
            continue;
        }
        const double l = (double)w->l[r0 + r];
        m[r] = isinf(w->ref[r0 + r]) ? (double)w->ref[r0 + r] : ln_max(w, w->pre_offset[r0 + r], w->offset[r0 + r]);
        if (!isfinite(l)) m[r] = (double)NAN;
        const double natural = m[r] + (double)log[r] + first[r].shift;
        if (w->close_alone || !isfinite(m[r])) {
            factor[r] = (float)attn_cpu_fwd_close(f, &w->seq, w->b, &w->row[r0 + r], m[r], natural, l);
        } else if (f->lse.data) {
            *(float *)(void *)attn_view_row(&f->lse, w->b, first[r].h, w->seq.q0 + first[r].i) = (float)natural;
        }
        factor[r] *= l_over_rounded(w, r0 + r);
        simple &= isfinite(m[r]) && isfinite(factor[r]);
    }
    if (simple && store_at_once(w, r0, n, factor)) return;
    f->s.u->transpose_f32(w->tmp, f->ldv, o, ROWS, width, ROWS);
    for (int64_t r = 0; r < n; r++)
        attn_cpu_fwd_store_f32(f, &w->seq, w->b, first + r, m[r], (double)factor[r], w->tmp + r * f->ldv);
}

void attn_cpu_transposed_task(const struct attn_cpu_fwd *f, int64_t head, int64_t task, char *scratch) {
    const attn_problem *p = f->s.p;
    const int64_t split = task % f->splits, f0 = (f->row_blocks - 1 - task / f->splits) * f->rows,
                  left = f->s.flat - f0, n = left < f->rows ? left : f->rows;
    struct work work = {.f = f, .u = table(f), .b = head / p->heads_k, .hk = head % p->heads_k, .depth = f->depth};
    struct work *w = &work;
    struct attn_softcap cap;
    w->exp_args = (struct attn_transposed_exp){.factor = (float)(f->s.unit * LOG2_E), .most = MOST_SUM};
    w->exp_args.bf16_accuracy = !f->lse.data && !f->lse_rounded.data;
    w->offset_log = f->s.unit / (double)w->exp_args.factor;
    w->has_score_mod = !f->s.plain && (p->alibi || p->mask_dtype || (w->u->pairs && p->softcap <= 0));
    if (p->softcap > 0 && !w->has_score_mod) {
        cap = attn_softcap_of(f->s.softcap, f->s.remaining_scale);
        w->exp_args.cap = &cap;
    }
    w->close_alone = f->lse_rounded.data || (f->lse.data && f->lse.dtype != ATTN_F32) || attn_core_has(p, ATTN_SINK) ||
                     attn_core_has(p, ATTN_LSE_WITH_SINK) || attn_core_has(p, ATTN_LSE_BASE_2);
    attn_cpu_sdpa_seq(&f->s, w->b, &w->seq);
    w->row = (struct attn_cpu_sdpa_row *)(void *)(scratch + f->offsets.row);
#define F32(name) (float *)(void *)(scratch + f->offsets.name)
    w->q = F32(q), w->k_own = F32(k), w->v_own = F32(v), w->tmp = F32(tmp), w->p = F32(p), w->o = F32(o),
    w->ref = F32(m), w->pre_offset = F32(exp_offset), w->offset = w->pre_offset + f->rows, w->l = F32(l),
    w->l_rounded = w->l + f->rows, w->nonfinite.raw = F32(raw);
#undef F32
    w->nonfinite.row = (uint8_t *)scratch + f->offsets.nonfinite;
    w->visible = (uint32_t *)(void *)(scratch + f->offsets.visible);
    w->page_missing = (uint8_t *)scratch + f->offsets.page_missing;
    w->bias = (float *)(void *)(scratch + f->offsets.bias), w->score.bias = w->bias;
    w->cached = (struct attn_cpu_fwd_cached *)(void *)(scratch + f->offsets.cached);
    if (f->splits > 1) w->partial = f->partials + (head * f->splits + split) * f->partial_bytes;
    int64_t valid = w->seq.sq * f->s.group - f0;
    valid = valid < 0 ? 0 : valid > n ? n : valid;
    const int64_t padded = attn_cpu_sdpa_up(valid, ROWS);
    const int open = p->window_left == ATTN_UNBOUNDED && p->window_right == ATTN_UNBOUNDED && !w->has_score_mod;
    for (int64_t r = 0, h = f0 % f->s.group, i = f0 / f->s.group; r < valid; r++) {
        const int64_t query_head = w->hk * f->s.group + h;
        if (r == 0 || !open) {
            attn_cpu_sdpa_row(&f->s, &w->seq, w->b, query_head, i, &w->row[r]);
        } else { /* rows of a plain problem without bounds differ in nothing else */
            w->row[r] = w->row[0];
            w->row[r].i = i, w->row[r].h = query_head;
        }
        if (++h == f->s.group) h = 0, i++;
    }
    for (int64_t r = 0; r < padded; r++) {
        w->ref[r] = r < valid ? -INFINITY : 0;
        w->pre_offset[r] = w->offset[r] = w->l[r] = w->l_rounded[r] = 0;
    }
    for (int64_t r = 0; r < valid; r += ROWS)
        w->strips[r / ROWS] = (struct strip){.sees = attn_cpu_fwd_see(w->row + r, valid - r < ROWS ? valid - r : ROWS)};
    const struct attn_cpu_fwd_bounds all = attn_cpu_fwd_see(w->row, valid);
    const int64_t k0 = split * f->split, k1 = w->partial ? k0 + f->split : INT64_MAX, lo = all.lo > k0 ? all.lo : k0,
                  hi = all.hi < k1 ? all.hi : k1, first = lo < hi ? k0 + (lo - k0) / f->block_keys * f->block_keys : hi;
    for (int64_t block = first; block < hi; block += f->block_keys) {
        const int64_t step = lo / f->step * f->step, begin = step > block ? step : block,
                      end = hi - block < f->block_keys ? hi : block + f->block_keys;
        load_block(w, begin, end);
        for (int64_t r = 0, rows; r < valid; r += rows) {
            rows = valid - r < ROWS ? valid - r : ROWS;
            const int64_t next = r + rows, last = next + ROWS < valid ? next + ROWS : valid;
            if (block == first) load_strip(w, r, rows);
            run_strip(
                w, r, rows, begin, end,
                (struct wants){
                    .next = block == first ? next : last, .last = last, .out = r, .end = end == hi ? r + rows : r});
            if (end == hi) finish_strip(w, r, rows);
        }
    }
    for (int64_t r = 0; r < valid && first >= hi; r += ROWS) finish_strip(w, r, valid - r < ROWS ? valid - r : ROWS);
    if (!w->partial) attn_cpu_fwd_empty(f, &w->seq, w->b, w->hk, f0 + valid, f0 + n);
}
