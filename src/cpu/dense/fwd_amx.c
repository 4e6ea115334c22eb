/* SPDX-License-Identifier: MIT
 * Driver of the dense forward on AMX (attn_ukr_bf16.fwd) for many rows. A task of fwd.c owns some flat rows (glossary)
 * of one key head. It packs them as strips of 32 and takes one block of keys after the other: load and pack the block,
 * run the fused microkernel on all strips, at the end divide O by l and write out and lse. Blocks, and steps within
 * them, lie on a fixed grid of keys, so that results do not depend on tasks or threads.
 *
 * Operands, S transposed (the queries of a strip lie across the lanes):
 *
 *     K   rows as they are, or tiles of 16 keys, filled up with 0                           [n/16][depth/32][16][32]
 *     V   pairs of keys, transposed                                                         [n/32][width][16]
 *     Q   transposed pairs, 32 rows a strip                                                 [2][depth/2][16]
 *     O   transposed sums of a strip                                                        [width][32]
 *
 * f16 is split exactly into two bf16 parts, f32 into three (bf16x2, bf16x3): K [n/16][n_bf16][depth/32][16][32],
 * V [n/32][n_bf16][width][16], Q [n_bf16][2][depth/2][16]. A row of Q or K with a NaN or infinity is 0 in the operand,
 * since infinity times a part of 0 is NaN. Its products are computed with vectors and passed as score overrides.
 *
 * bf16 with D = DV = 64 or 128 has S row-major instead (attn_ukr_bf16.fwd_rowmajor, by_rows) with an additive mask,
 * whose rows lie along the keys, and with softcap and ALiBi together:
 *
 *     K   transposed pairs along D                                                          [n/16][depth/2][16]
 *     V   pairs of keys that are 16 apart, in tiles                                         [n/32][width/16][16][16]
 *     Q   rows in tiles                                                                     [2][depth/32][16][32]
 *     O   sums in tiles                                                                     [width/32][2][2][16][16] */
#include "cpu/dense/fwd_amx.h"

#include "cpu/dense/fwd_amx_work.h"
#include "cpu/dense/score_mod_rows.h"

#include <math.h>
#include <string.h>

#define LOG2_E     1.44269504088896340736
#define MOST_SCALE 0x1p100 /* scale * log2 e stays within f32 */
enum {
    MOST_KEYS = 2048,
    BLOCK_BYTES = 1024 << 10,  /* keys and values of a block: half of a second-level cache */
    BF16X3_BYTES = 1536 << 10, /* the same for f32, bf16x3 */
    BF16X3_ROWS = 128,         /* flat rows from which bf16x3 pays */
    TASK_BYTES = 512 << 10     /* queries and sums of a task */
};

/* Whether bf16x3 on tiles beats f32 multiply-adds: six tile products replace one product of vectors, columns are
 * rounded up to 32, and splitting keys and values takes the time of some strips. */
static int pays(const attn_problem *p, int64_t flat) {
    const int64_t tiles = attn_cpu_sdpa_up(p->dim_qk, 32) + attn_cpu_sdpa_up(p->dim_v, 32);
    return 2 * tiles <= 3 * (p->dim_qk + p->dim_v) && flat >= BF16X3_ROWS;
}

int attn_cpu_fwd_amx_serves(const struct attn_cpu_fwd *f) {
    const attn_problem *p = f->s.p;
    if (p->dtype == ATTN_F32 && !pays(p, f->s.flat)) return 0;
    return f->s.bf16 && f->s.bf16->fwd && !f->exact_max && (f->s.plain || f->s.remaining_fits) &&
           (p->softcap <= 0 || attn_softcap_fits(f->s.softcap, f->s.remaining_scale)) && f->panel && f->splits == 1 &&
           p->dim_qk > 0 && p->dim_v > 0;
}

/* Words of a strip's boolean mask: one for each key, and one for each 32 keys. */
static int64_t bits_of(const struct attn_cpu_fwd *f) { return f->block_keys + f->block_keys / 32; }

void attn_cpu_fwd_amx_lay_out(struct attn_cpu_fwd *f, int32_t threads) {
    const attn_problem *p = f->s.p;
    const int64_t real = (int64_t)sizeof(float), half = (int64_t)sizeof(uint16_t);
    const int64_t depth = attn_cpu_sdpa_up(p->dim_qk, 32), width = attn_cpu_sdpa_up(p->dim_v, 32);
    f->amx_split = p->dtype == ATTN_F32 ? 3 : p->dtype == ATTN_F16 ? 2 : 1;
    /* Pages are looked up where keys are loaded, so paged problems take the plain path; keys of missing pages are
     * hidden. */
    if (attn_core_has(p, ATTN_PAGED) && p->scale > 0 && p->softcap <= 0 && !p->alibi && !p->mask_dtype)
        f->s.plain = 1, f->s.unit = p->scale;
    f->by_rows = f->s.bf16->fwd_rowmajor && fabs(f->s.remaining_scale) < MOST_SCALE &&
                 attn_fwd_rowmajor_fits(depth, width, f->amx_split, attn_cpu_strip_mask(&f->s), p->softcap > 0,
                                        p->alibi != ATTN_ALIBI_NONE);
    const int64_t most_bytes = f->amx_split == 3 ? BF16X3_BYTES : BLOCK_BYTES;
    const int64_t part = half * f->amx_split; /* an element of an operand */
    f->depth = depth, f->ldv = width, f->strip = ROWS;
    f->block_keys = MOST_KEYS;
    while (f->block_keys > STEP &&
           (f->block_keys * (depth + width) * part > most_bytes || f->block_keys / 2 >= p->seq_k))
        f->block_keys /= 2;
    const int64_t fit = TASK_BYTES / (ROWS * (depth * part + width * real));
    /* Each task of f32 splits all its key blocks again: with several blocks tasks are as large as possible. */
    const int again = f->amx_split == 3 && f->block_keys < p->seq_k;
    const int64_t most = fit > MOST_STRIPS || again ? MOST_STRIPS
                         : fit < 4                  ? 4
                                                    : fit,
                  strips = attn_cpu_sdpa_blocks(f->s.flat, ROWS);
    int64_t want = strips * p->batch * p->heads_k / ((again ? 2 : 4) * (int64_t)threads);
    want = want < 1 ? 1 : want > most ? most : want;
    if (want > strips) want = strips;
    f->rows = want * ROWS;
    f->row_blocks = attn_cpu_sdpa_blocks(f->s.flat, f->rows);

    f->offsets.end = 0;
    int64_t *end = &f->offsets.end, tmp = ROWS * depth * part;
    if (tmp < 16 * width * 2 * part) tmp = 16 * width * 2 * part; /* a chunk of values, or a strip of results */
    if (tmp < ROWS * width * real) tmp = ROWS * width * real;
    if (p->mask_dtype && tmp < ATTN_CPU_STRIP_MASK_BYTES) tmp = ATTN_CPU_STRIP_MASK_BYTES;
    f->n_cached = 1;
    f->offsets.cached = attn_cpu_sdpa_take(end, (int64_t)sizeof(struct attn_cpu_fwd_cached));
    f->offsets.q = attn_cpu_sdpa_take(end, f->rows * depth * part);
    f->offsets.k = attn_cpu_sdpa_take(end, f->block_keys * depth * part);
    f->offsets.v = attn_cpu_sdpa_take(end, f->block_keys * width * part);
    f->offsets.tmp = attn_cpu_sdpa_take(end, tmp);
    f->offsets.raw = attn_cpu_sdpa_take(end, f->block_keys * width * real);
    f->offsets.nonfinite = attn_cpu_sdpa_take(end, f->block_keys);
    f->offsets.visible = attn_cpu_sdpa_take(end, f->block_keys * (int64_t)sizeof(uint32_t));
    f->offsets.s = attn_cpu_sdpa_take(end, 2 * STEP * ROWS * real);
    f->offsets.p = attn_cpu_sdpa_take(end, ATTN_FWD_QUEUE * STEP * ROWS * part);
    f->offsets.nonfinite_q = attn_cpu_sdpa_take(end, f->rows);
    f->offsets.nonfinite_k = attn_cpu_sdpa_take(end, f->block_keys);
    f->offsets.page_missing = attn_cpu_sdpa_take(end, attn_core_has(p, ATTN_PAGED) ? f->block_keys : 0);
    f->offsets.low = attn_cpu_sdpa_take(end, f->amx_split == 2 ? f->block_keys / STEP * real : 0);
    f->offsets.score_override =
        attn_cpu_sdpa_take(end, f->amx_split > 1 ? f->block_keys * (int64_t)sizeof(uint32_t) : 0);
    f->offsets.override_scores = attn_cpu_sdpa_take(end, f->amx_split > 1 ? f->block_keys * ROWS * real : 0);
    f->offsets.two_rows = attn_cpu_sdpa_take(end, f->amx_split > 1 ? 2 * p->dim_qk * real : 0);
    f->offsets.bias = attn_cpu_sdpa_take(end, p->mask_dtype ? f->block_keys * ROWS * real : 0);
    f->offsets.bits =
        attn_cpu_sdpa_take(end, p->mask_dtype == ATTN_BOOL ? 2 * bits_of(f) * (int64_t)sizeof(uint32_t) : 0);
    f->offsets.row = attn_cpu_sdpa_take(end, f->rows * (int64_t)sizeof(struct attn_cpu_sdpa_row));
    f->offsets.o = attn_cpu_sdpa_take(end, f->rows * width * real);
    f->offsets.older =
        attn_cpu_sdpa_take(end, f->amx_split == 3 && f->block_keys < p->seq_k ? f->rows * (width + 2) * real : 0);
    f->offsets.m = attn_cpu_sdpa_take(end, f->rows * real);
    f->offsets.l = attn_cpu_sdpa_take(end, f->rows * real);
}

/* Whether P needs no more accuracy than its rounding to bf16 (no lse). Not every bf16 microkernel has that form. */
static int bf16_accuracy(const struct attn_cpu_fwd *f) {
    const attn_problem *p = f->s.p;
    const int adds = p->mask_dtype && p->mask_dtype != ATTN_BOOL && !f->by_rows;
    return !f->lse.data && !f->lse_rounded.data &&
           (f->amx_split > 1 || (!adds && p->softcap * LOG2_E < ATTN_FWD_TABLE_CAP));
}
/* f16, for strip `strip` and keys first .. last of the block: whether low * low may be left out of Q K^T. It may where
 * no score changes by more than MOST_LEFT_OUT, a quarter of the error bound, by Cauchy-Schwarz on the norms of the low
 * parts. Of a last, partial step only keys before `last` count: which keys follow depends on the task. */
#define MOST_LEFT_OUT 0x1p-12
static int bf16_accuracy_of(const struct attn_cpu_fwd_amx_work *w, int64_t strip, int64_t first, int64_t last) {
    const int64_t whole = last / STEP * STEP;
    if (!w->may_leave) return bf16_accuracy(w->f);
    float most = whole < last ? attn_cpu_fwd_amx_low_of(w, whole, last - whole) : 0;
    for (int64_t step = first / STEP; step < whole / STEP; step++) most = fmaxf(most, w->low_k[step]);
    return sqrt((double)most * (double)w->low_q[strip]) * fabs((double)w->f->s.p->scale) <= MOST_LEFT_OUT;
}
static int degree(const struct attn_cpu_fwd *f) {
    return attn_fwd_degree(f->amx_split, bf16_accuracy(f), f->by_rows || f->s.p->alibi);
}
static float below(const struct attn_cpu_fwd *f) {
    return attn_fwd_below(degree(f)) + (f->by_rows ? ATTN_FWD_ROWMAJOR_AHEAD : 0);
}

/* Score overrides of strip r0 with keys first .. first + n of the block at j0: products whose query or key has a NaN or
 * infinity. */
static void give(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n_rows, int64_t j0, int64_t first, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int64_t width = f->s.p->dim_qk;
    float *q = w->two_rows, *k = q + width;
    memset(w->score_override, 0, (size_t)n * sizeof *w->score_override);
    for (int64_t r = 0; r < n_rows; r++) {
        f->s.u->widen(q, attn_cpu_fwd_amx_query(w, r0 + r), f->s.p->dtype, width, 1);
        for (int64_t j = 0; j < n; j++) {
            if (!w->nonfinite_q[r0 + r] && !w->nonfinite_k[first + j]) continue;
            if (j0 + first + j < w->row[r0 + r].lo || j0 + first + j >= w->row[r0 + r].hi) continue;
            const char *row = attn_cpu_fwd_amx_key(w, j0 + first + j);
            if (!row) continue;
            f->s.u->widen(k, row, f->s.p->dtype, width, 1);
            w->score_override[j] |= UINT32_C(1) << r;
            w->override_scores[j * ROWS + r] = f->s.u->dot_f32(q, k, width);
        }
    }
}

/* Adds NaN and infinite values to O of the queries that see their keys. P need not be known: any P but 0 leaves NaN a
 * NaN and infinity an infinity. */
static void add_nonfinite(const struct attn_cpu_fwd_amx_work *w, int64_t n, float *o) {
    const int64_t ld = w->f->ldv;
    for (int64_t j = 0; j < n; j++) {
        if (!w->nonfinite.row[j] || !w->visible[j]) continue;
        const float *raw = (const float *)w->nonfinite.raw + j * ld;
        for (int64_t c = 0; c < w->f->s.p->dim_v; c++)
            for (int64_t r = 0; r < ROWS && !isfinite(raw[c]); r++)
                if (w->visible[j] >> r & 1) o[w->f->by_rows ? attn_fwd_rowmajor_cell(r, c) : c * ROWS + r] += raw[c];
    }
}

/* score_mod of strip r0 for n keys from j0 on. */
static void prepare_score(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n_rows, int64_t j0, int64_t n,
                          struct attn_fwd_score_mod *score) {
    attn_cpu_strip_score(&w->f->s, w->row + r0, n_rows, j0, score);
    score->bias = w->bias, score->bits = w->bits;
    if (score->mask == ATTN_UKR_MASK_BIAS) attn_cpu_strip_masks(&w->f->s, w->row + r0, n_rows, j0, n, w->bias, w->tmp);
}

/* f32 accumulates O and l from 0 in each key block and adds the blocks before afterwards: one chain over all keys would
 * round six times for every 32 keys. set_aside: before a block; take_back: after it, with the rescaling. */
static void set_aside(const struct attn_cpu_fwd_amx_work *w, int64_t n_valid) {
    const int64_t rows = attn_cpu_sdpa_up(n_valid, ROWS), n = rows * w->f->ldv;
    memcpy(w->older_o, w->o, (size_t)n * sizeof *w->o);
    memcpy(w->older_m, w->m, (size_t)rows * sizeof *w->m);
    memcpy(w->older_l, w->l, (size_t)rows * sizeof *w->l);
    memset(w->o, 0, (size_t)n * sizeof *w->o);
    memset(w->l, 0, (size_t)rows * sizeof *w->l);
}
static void take_back(const struct attn_cpu_fwd_amx_work *w, int64_t n_valid) {
    const struct attn_cpu_fwd *f = w->f;
    const float unit = (float)(f->s.unit * LOG2_E);
    for (int64_t r0 = 0; r0 < n_valid; r0 += ROWS) {
        float rescale[ROWS], *older = w->older_o + r0 * f->ldv;
        int moved = 0;
        for (int64_t r = 0; r < ROWS; r++) { /* the kernel's rounding, see attn_fwd_strip.l */
            const float was = w->older_m[r0 + r], now = w->m[r0 + r], a = was * unit, b = now * unit;
            rescale[r] = 1;
            if (was < now && was > -INFINITY)
                rescale[r] = (float)exp2((double)(fabsf(b) < ATTN_FWD_FAR ? a - b : (was - now) * unit));
            moved |= rescale[r] < 1;
            w->l[r0 + r] += w->older_l[r0 + r] * rescale[r];
        }
        if (moved) f->s.u->transposed->scale(f->ldv, older, rescale);
        f->s.u->add_f32(w->o + r0 * f->ldv, older, ROWS * f->ldv);
    }
}

static inline int64_t within(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }
/* Fills in the job of strip r0 for those of the n loaded keys at j0 that some row sees. Returns 0 if there are none.
 * Rows past the sequence's end see all keys, so that they do not turn a full step into a partial one. */
static int describe_strip(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n_rows, int64_t j0, int64_t n,
                          int32_t *seen, struct attn_fwd_strip *job) {
    const struct attn_cpu_fwd *f = w->f;
    const struct attn_cpu_fwd_bounds *bounds = &w->bounds[r0 / ROWS];
    int64_t first = within(bounds->lo - j0, n), last = within(bounds->hi - j0, n);
    if (first >= last) return 0;
    first = first / STEP * STEP;
    const int64_t keys = attn_cpu_sdpa_up(last - first, attn_fwd_span(f->depth, f->ldv, f->amx_split));
    for (int64_t r = 0; r < ROWS; r++) seen[r] = 0, seen[ROWS + r] = (int32_t)keys;
    for (int64_t r = 0; r < n_rows && bounds->lo_most > j0 + first; r++)
        seen[r] = (int32_t)within(w->row[r0 + r].lo - j0 - first, keys);
    for (int64_t r = 0; r < n_rows && bounds->hi_least < j0 + first + keys; r++)
        seen[ROWS + r] = (int32_t)within(w->row[r0 + r].hi - j0 - first, keys);
    const int tiles = w->rows == w->k;
    const int64_t k_more = 16 * (tiles ? f->depth * f->amx_split : f->s.k.row);
    *job = (struct attn_fwd_strip){.n = keys,
                                   .depth = f->depth,
                                   .width = f->ldv,
                                   .n_bf16 = f->amx_split,
                                   .bf16_accuracy = bf16_accuracy_of(w, r0 / ROWS, first, last),
                                   .k = w->rows + first / 16 * k_more,
                                   .k_row = tiles ? 32 : f->s.k.row,
                                   .k_more = k_more,
                                   .k_step = tiles ? 16 * 32 : 32,
                                   .k_low = 16 * f->depth,
                                   .q = w->q + r0 * f->depth / 2 * f->amx_split,
                                   .v = w->v + first / 2 * f->ldv * f->amx_split,
                                   .seen = seen,
                                   .factor = (float)(f->s.unit * LOG2_E),
                                   .m = w->m + r0,
                                   .l = w->l + r0,
                                   .o = w->o + r0 * f->ldv,
                                   .fresh = w->fresh[r0 / ROWS],
                                   .page_missing = w->any_page_missing ? w->page_missing + first : NULL,
                                   .s = w->s,
                                   .p = w->p};
    w->fresh[r0 / ROWS] = 0;
    return 1;
}
static int64_t first_key(const struct attn_cpu_fwd_amx_work *w, const struct attn_fwd_strip *job) {
    return (job->k - w->rows) / job->k_more * 16;
}
static void run(const struct attn_cpu_fwd_amx_work *w, const struct attn_fwd_strip *job, int64_t n) {
    (w->f->by_rows ? w->f->s.bf16->fwd_rowmajor : w->f->s.bf16->fwd)(job, n);
}
/* Runs one strip alone, where scratch exists once only: transposed masks, score overrides, the visible-key bits. */
static void run_alone(struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n_rows, int64_t j0, int64_t n,
                      int overrides) {
    int32_t seen[2 * ROWS];
    struct attn_fwd_score_mod score;
    struct attn_fwd_strip job;
    if (!describe_strip(w, r0, n_rows, j0, n, seen, &job)) return;
    const int64_t first = first_key(w, &job);
    job.visible = w->nonfinite.any ? w->visible + first : NULL;
    job.score_override = overrides ? w->score_override : NULL;
    job.override_scores = w->override_scores;
    job.score = w->f->s.plain ? NULL : &score;
    if (!w->f->s.plain) prepare_score(w, r0, n_rows, j0 + first, job.n, &score);
    if (w->nonfinite.any) memset(w->visible, 0, (size_t)n * sizeof *w->visible);
    if (overrides) give(w, r0, n_rows, j0, first, job.n);
    run(w, &job, 1);
    if (w->nonfinite.any) add_nonfinite(w, n, job.o);
}
/* All strips of n_valid rows against the n loaded keys at j0. */
static void run_block(struct attn_cpu_fwd_amx_work *w, int64_t n_valid, int64_t j0, int64_t n) {
    const int plain = w->f->s.plain, overrides = w->f->amx_split > 1 && (w->any_nonfinite_q || w->any_nonfinite_k),
              alone = overrides || w->nonfinite.any || attn_cpu_strip_mask(&w->f->s) == ATTN_UKR_MASK_BIAS;
    int32_t seen[MOST_STRIPS][2 * ROWS];
    struct attn_fwd_strip job[MOST_STRIPS];
    struct attn_fwd_score_mod score[MOST_STRIPS];
    int64_t jobs = 0;
    for (int64_t r = 0; r < n_valid; r += ROWS) {
        const int64_t rows = n_valid - r < ROWS ? n_valid - r : ROWS;
        if (alone) {
            run_alone(w, r, rows, j0, n, overrides);
        } else if (describe_strip(w, r, rows, j0, n, seen[jobs], &job[jobs])) {
            struct attn_fwd_strip *next_job = &job[jobs];
            next_job->score = plain ? NULL : &score[jobs];
            if (!plain) {
                prepare_score(w, r, rows, j0 + first_key(w, next_job), next_job->n, &score[jobs]);
                score[jobs].bits = w->bits + jobs % 2 * bits_of(w->f);
            }
            jobs++;
        }
    }
    for (int64_t i = 0, alike; i < jobs; i += alike) {
        for (alike = 1; i + alike < jobs && job[i + alike].bf16_accuracy == job[i].bf16_accuracy;) alike++;
        run(w, job + i, alike);
    }
}

/* The running max that l is relative to, as a natural logarithm: lse = ln l + this. See attn_fwd_below. */
static double natural_offset(const struct attn_cpu_fwd *f, float m) {
    const float offset = m * (float)(f->s.unit * LOG2_E), below_ = below(f), parts = ATTN_FWD_PARTS;
    const double times = log((double)attn_fwd_times(degree(f)));
    if (fabsf(offset) < attn_fwd_far(degree(f))) {
        const float rounded = degree(f) == ATTN_FWD_TABLE ? nearbyintf(offset * parts) / parts : offset;
        return (double)(rounded + below_) / LOG2_E - times;
    }
    return (double)m * f->s.unit + (double)below_ / LOG2_E - times;
}
/* Writes a strip's results in one pass. Returns 0, nothing done, if some row is empty or not finite, or with a sink. */
static int finish_at_once(const struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const int logs = f->lse.data || f->lse_rounded.data;
    uint16_t *row[ROWS];
    double lse[ROWS];
    if (attn_core_has(f->s.p, ATTN_SINK) || f->s.p->dim_v != f->ldv || f->out.dtype == ATTN_F32) return 0;
    for (int64_t r = 0; r < n; r++)
        row[r] = (uint16_t *)(void *)attn_view_row(&f->out, w->b, w->row[r0 + r].h, w->seq.q0 + w->row[r0 + r].i);
    const struct attn_fwd_finish job = {.rows = n,
                                        .width = f->ldv,
                                        .tiles = f->by_rows,
                                        .bf16 = f->amx_split == 1,
                                        .below = below(f),
                                        .times = attn_fwd_times(degree(f)),
                                        .factor = (float)(f->s.unit * LOG2_E),
                                        .m = w->m + r0,
                                        .l = w->l + r0,
                                        .o = w->o + r0 * f->ldv,
                                        .row = row,
                                        .lse = logs ? lse : NULL};
    if (!f->s.bf16->finish(&job)) return 0;
    if (logs) attn_cpu_fwd_logs(f, &w->seq, w->b, w->row + r0, n, lse);
    return 1;
}
/* The same for f32 and 32 rows of one head. */
static int finish_f32(const struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    const struct attn_cpu_sdpa_row *row = &w->row[r0];
    float *o = w->o + r0 * f->ldv, factor[ROWS], log_of[ROWS];
    double lse[ROWS];
    if (f->amx_split != 3 || n != ROWS || f->s.group != 1 || attn_core_has(f->s.p, ATTN_SINK)) return 0;
    f->s.u->transposed->close(w->l + r0, factor, log_of);
    for (int64_t r = 0; r < ROWS; r++) {
        if (!(w->l[r0 + r] > 0) || isinf(w->l[r0 + r]) || !isfinite(w->m[r0 + r]) || !isfinite(factor[r])) return 0;
        lse[r] = natural_offset(f, w->m[r0 + r]) + (double)log_of[r];
    }
    f->s.u->transposed->scale(f->ldv, o, factor);
    f->s.u->transpose_f32((float *)(void *)attn_view_row(&f->out, w->b, row->h, w->seq.q0 + row->i), f->out.row, o,
                          ROWS, f->s.p->dim_v, ROWS);
    if (f->lse.data || f->lse_rounded.data) attn_cpu_fwd_logs(f, &w->seq, w->b, row, n, lse);
    return 1;
}
static void finish_strip(const struct attn_cpu_fwd_amx_work *w, int64_t r0, int64_t n) {
    const struct attn_cpu_fwd *f = w->f;
    if (w->fresh[r0 / ROWS]) memset(w->o + r0 * f->ldv, 0, (size_t)(ROWS * f->ldv) * sizeof *w->o);
    if (f->amx_split == 3 ? finish_f32(w, r0, n) : finish_at_once(w, r0, n)) return;
    if (f->by_rows) {
        for (int64_t r = 0; r < n; r++)
            for (int64_t d = 0; d < f->ldv; d++)
                w->tmp[r * f->ldv + d] = w->o[r0 * f->ldv + attn_fwd_rowmajor_cell(r, d)];
    } else {
        f->s.u->transpose_f32(w->tmp, f->ldv, w->o + r0 * f->ldv, ROWS, f->ldv, ROWS);
    }
    for (int64_t r = 0; r < n; r++) {
        const double l = (double)w->l[r0 + r], m = isnan(l) ? l : natural_offset(f, w->m[r0 + r]);
        attn_cpu_fwd_finish_f32(f, &w->seq, w->b, &w->row[r0 + r], m, l, w->tmp + r * f->ldv);
    }
}

void attn_cpu_fwd_amx_task(const struct attn_cpu_fwd *f, int64_t head, int64_t block, char *scratch) {
    const attn_problem *p = f->s.p;
    /* the longest task of a causal problem first */
    const int64_t f0 = (f->row_blocks - 1 - block) * f->rows, left = f->s.flat - f0,
                  n = left < f->rows ? left : f->rows;
    struct attn_cpu_fwd_amx_work work = {.f = f, .b = head / p->heads_k, .hk = head % p->heads_k}, *w = &work;
    attn_cpu_sdpa_seq(&f->s, w->b, &w->seq);
    w->row = (struct attn_cpu_sdpa_row *)(void *)(scratch + f->offsets.row);
    w->cached = (struct attn_cpu_fwd_cached *)(void *)(scratch + f->offsets.cached);
#define SCRATCH(name) (float *)(void *)(scratch + f->offsets.name)
    w->q = SCRATCH(q), w->v = SCRATCH(v), w->tmp = SCRATCH(tmp), w->s = SCRATCH(s), w->p = SCRATCH(p),
    w->o = SCRATCH(o), w->m = SCRATCH(m), w->l = SCRATCH(l);
    w->older_o = SCRATCH(older), w->older_m = w->older_o + f->rows * f->ldv, w->older_l = w->older_m + f->rows;
    w->nonfinite.raw = SCRATCH(raw);
#undef SCRATCH
    w->low_k = (float *)(void *)(scratch + f->offsets.low), w->may_leave = f->amx_split == 2 && bf16_accuracy(f);
    w->override_scores = (float *)(void *)(scratch + f->offsets.override_scores),
    w->two_rows = (float *)(void *)(scratch + f->offsets.two_rows);
    w->bias = (float *)(void *)(scratch + f->offsets.bias), w->bits = (uint32_t *)(void *)(scratch + f->offsets.bits);
    w->score_override = (uint32_t *)(void *)(scratch + f->offsets.score_override);
    w->nonfinite_q = (uint8_t *)scratch + f->offsets.nonfinite_q,
    w->nonfinite_k = (uint8_t *)scratch + f->offsets.nonfinite_k;
    w->k = (uint16_t *)(void *)(scratch + f->offsets.k), w->page_missing = (uint8_t *)scratch + f->offsets.page_missing;
    w->visible = (uint32_t *)(void *)(scratch + f->offsets.visible);
    w->nonfinite.row = (uint8_t *)scratch + f->offsets.nonfinite;
    int64_t n_valid = w->seq.sq * f->s.group - f0;
    n_valid = n_valid < 0 ? 0 : n_valid > n ? n : n_valid;
    const int64_t padded = attn_cpu_sdpa_up(n_valid, ROWS);
    attn_cpu_sdpa_flat_rows(&f->s, &w->seq, w->b, w->hk, f0, n_valid, w->row);
    for (int64_t r = 0; r < padded; r++) {
        w->m[r] = -INFINITY;
        w->l[r] = 0;
    }
    memset(w->fresh, f->amx_split < 3, sizeof w->fresh);
    if (f->amx_split == 3) memset(w->o, 0, (size_t)(padded * f->ldv) * sizeof *w->o);
    int64_t lo = INT64_MAX, hi = 0; /* keys that some row sees */
    for (int64_t r = 0; r < n_valid; r += ROWS) {
        const int64_t rows = n_valid - r < ROWS ? n_valid - r : ROWS;
        attn_cpu_fwd_amx_load_strip(w, r, rows);
        const struct attn_cpu_fwd_bounds bounds = w->bounds[r / ROWS] = attn_cpu_fwd_see(w->row + r, rows);
        if (bounds.lo < bounds.hi && bounds.lo < lo) lo = bounds.lo;
        if (bounds.hi > hi) hi = bounds.hi;
    }
    const int64_t first = lo / f->block_keys * f->block_keys;
    for (int64_t first_key = first; first_key < hi; first_key += f->block_keys) {
        const int64_t begin = lo > first_key ? lo / STEP * STEP : first_key,
                      end = hi - first_key < f->block_keys ? hi : first_key + f->block_keys;
        const struct attn_cpu_fwd_cached *have = attn_cpu_fwd_amx_load_block(w, begin, end);
        const int64_t keys = attn_cpu_sdpa_up(have->end - have->begin, STEP);
        const int apart = f->amx_split == 3 && first_key > first;
        if (apart) set_aside(w, n_valid);
        run_block(w, n_valid, have->begin, keys);
        if (apart) take_back(w, n_valid);
    }
    for (int64_t r = 0; r < n_valid; r += ROWS) finish_strip(w, r, n_valid - r < ROWS ? n_valid - r : ROWS);
    attn_cpu_fwd_empty(f, &w->seq, w->b, w->hk, f0 + n_valid, f0 + n);
}
