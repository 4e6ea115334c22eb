/* SPDX-License-Identifier: MIT
 * Driver of the dense backward on AMX: packs operands in whole strips of 32 query rows and blocks of 32 keys, runs the
 * fused microkernel on tiles of them (attn_ukr_bf16.bwd_tile; for f32 and f16 bwd_tile_f32, on operands split into
 * three bf16 terms), and writes dQ, dK and dV.
 * NaN and infinite values are left to bwd_tile.h: for bf16 without a score_mod one block of keys at a time, else, since
 * bwd_tile.h gives other bits, all of the (batch, key head). So are rows whose lse has an additive mask's size, beyond
 * LSE_FAR.
 *
 *     keys    K^T, V^T panels of 16; K zipped; dK^T, dV^T     once per block of keys: second-level cache
 *     rows    q, dout; both zipped and transposed             once per block of keys and 128 rows
 *
 * f32, f16: each of these as 32 x 32 blocks in three bf16 terms (bf16x3). Keys pass the rows' tile four blocks at a
 * time, so that P and dS of a tile, 288 KiB, share the second-level cache with them.
 *
 * Each sum is one chain over strips or blocks of 32 that start at multiples of 32, here and in bwd_tile.h: same
 * bits. */
#include "cpu/dense/bwd_amx.h"

#include "cpu/dense/bwd_amx_score.h"
#include "cpu/ref/ref.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736
enum {
    SIDE = ATTN_BWD_TILE,
    STRIPS = 4,            /* of a tile */
    KEY_BYTES = 960 << 10, /* operands and sums of a block of keys: half of a second-level cache of 2 MiB */
    LEAST_KEYS = 128,      /* the tile of bwd_tile.h divides it */
    SPLIT = ATTN_BWD_SPLIT,
    SPLIT_BLOCKS = 4,  /* bf16x3: blocks of keys that pass a tile's rows together */
    SPLIT_LEAST = 64,  /* bf16x3: fewest rows, and keys, for which it pays */
    SPLIT_WIDEST = 128 /* bf16x3: most columns for which it pays */
};

/* Of lse, with an additive mask. Where such a mask, -3e38, hides every key of a row by a finite number, lse is its
 * cell: the kernels take one off the other exactly, and e^score is left, which is infinite from 89 on. bwd_tile.h adds
 * the score to the cell, which swallows it: e^0. Below, lse is within 32 of what it was before it was rounded, so that
 * probabilities stay finite: -1e9, a common one, stays on tiles. */
static const double LSE_FAR = 1 << 30;

static int64_t padded_row(int64_t n) { return ((n + 15) / 16 | 1) * 16; }

/* Whether bf16x3 beats f32 multiply-adds; its operands are padded to blocks of 32 columns. */
static int split_pays(const struct attn_cpu_sdpa *s) {
    const attn_problem *p = s->p;
    const int64_t filled = attn_cpu_sdpa_up(p->dim_qk, SIDE) + attn_cpu_sdpa_up(p->dim_v, SIDE);
    return p->dim_qk <= SPLIT_WIDEST && p->dim_v <= SPLIT_WIDEST && 4 * filled <= 5 * (p->dim_qk + p->dim_v) &&
           s->flat >= SPLIT_LEAST && p->seq_k >= SPLIT_LEAST;
}

/* Whether P needs a score_mod. A sink counts as one for bf16; f32 and f16 apply the sink's factor to dout. */
static int has_scores(const struct attn_cpu_bwd *w) {
    return !w->s.plain || (w->s.bf16 && attn_core_has(w->s.p, ATTN_SINK));
}
int attn_cpu_bwd_amx_serves(const struct attn_cpu_bwd *w) {
    const struct attn_cpu_sdpa *s = &w->s;
    if (!w->bf16 || s->p->dim_qk <= 0 || s->p->dim_v <= 0) return 0;
    if (has_scores(w) && !attn_cpu_bwd_amx_scores(w)) return 0;
    if (s->bf16) return s->bf16->bwd_tile != NULL;
    return w->bf16->bwd_tile_f32 && (has_scores(w) || s->p->scale > 0) && split_pays(s);
}
/* Whether one NaN or infinity sends all of a (batch, key head) to bwd_tile.h, whose bits differ. */
static int whole(const struct attn_cpu_bwd *w) { return !w->s.bf16 || w->amx.scored; }

/* Operands of w->rows or a tile's rows and of `keys` keys, and what is between the products. */
static void lay_out_pairs(struct attn_cpu_bwd_amx *g, int64_t rows, int64_t keys) {
    const int64_t f = (int64_t)sizeof(float), most = g->depth > g->width ? g->depth : g->width,
                  cells = STRIPS * SIDE * keys / 2;
    g->ldq = padded_row(g->depth / 2), g->ldo = padded_row(g->width / 2);
    g->ldk = padded_row(g->depth), g->ldt = padded_row(most);
    g->offsets.q = attn_cpu_sdpa_take(&g->end, rows * g->ldq * f);
    g->offsets.dout = attn_cpu_sdpa_take(&g->end, rows * g->ldo * f);
    g->offsets.q_transposed = attn_cpu_sdpa_take(&g->end, rows / 2 * g->depth * f);
    g->offsets.dout_transposed = attn_cpu_sdpa_take(&g->end, rows / 2 * g->width * f);
    g->offsets.kt = attn_cpu_sdpa_take(&g->end, keys / 2 * g->depth * f);
    g->offsets.vt = attn_cpu_sdpa_take(&g->end, keys / 2 * g->width * f);
    g->offsets.k_zip = attn_cpu_sdpa_take(&g->end, keys / 2 * g->ldk * f);
    g->offsets.p = attn_cpu_sdpa_take(&g->end, cells * f);
    g->offsets.ds = attn_cpu_sdpa_take(&g->end, cells * f);
    g->offsets.ds_rows = attn_cpu_sdpa_take(&g->end, cells * f);
}
static void lay_out_split(struct attn_cpu_bwd_amx *g, int64_t rows, int64_t keys) {
    const int64_t block = SPLIT * (int64_t)sizeof(float), wide = g->depth / SIDE, tall = g->width / SIDE;
    g->ldt = padded_row(g->depth > g->width ? g->depth : g->width);
    g->offsets.q = attn_cpu_sdpa_take(&g->end, rows / SIDE * wide * block);
    g->offsets.dout = attn_cpu_sdpa_take(&g->end, rows / SIDE * tall * block);
    g->offsets.q_transposed = attn_cpu_sdpa_take(&g->end, rows / SIDE * wide * block);
    g->offsets.dout_transposed = attn_cpu_sdpa_take(&g->end, rows / SIDE * tall * block);
    g->offsets.kt = attn_cpu_sdpa_take(&g->end, keys / SIDE * wide * block);
    g->offsets.vt = attn_cpu_sdpa_take(&g->end, keys / SIDE * tall * block);
    g->offsets.k_zip = attn_cpu_sdpa_take(&g->end, keys / SIDE * wide * block);
    g->offsets.p = attn_cpu_sdpa_take(&g->end, rows / SIDE * SPLIT_BLOCKS * block);
    g->offsets.ds = attn_cpu_sdpa_take(&g->end, rows / SIDE * SPLIT_BLOCKS * block);
    g->offsets.ds_rows = attn_cpu_sdpa_take(&g->end, rows / SIDE * SPLIT_BLOCKS * block);
}

void attn_cpu_bwd_amx_lay_out(struct attn_cpu_bwd *w, int32_t threads) {
    const attn_problem *p = w->s.p;
    const int split = w->s.bf16 == NULL;
    const int64_t f = (int64_t)sizeof(float);
    struct attn_cpu_bwd_amx *g = &w->amx;
    int64_t keys = 4 * LEAST_KEYS;
    g->end = 0;
    g->scored = has_scores(w);
    g->depth = attn_cpu_sdpa_up(p->dim_qk, SIDE), g->width = attn_cpu_sdpa_up(p->dim_v, SIDE);
    const int64_t bytes = split ? 16 * g->depth + 10 * g->width : 8 * g->depth + 6 * g->width;
    while (keys > LEAST_KEYS && (keys * bytes > KEY_BYTES || keys / 2 >= p->seq_k)) keys /= 2;
    while (keys > LEAST_KEYS && !w->fused &&
           attn_cpu_sdpa_blocks(p->seq_k, keys) * p->batch * p->heads_k < 4 * (int64_t)threads)
        keys /= 2;
    w->keys = keys;
    const int64_t rows = w->rows > STRIPS * SIDE ? w->rows : STRIPS * SIDE;
    if (split) {
        lay_out_split(g, rows, keys);
    } else {
        lay_out_pairs(g, rows, keys);
    }
    g->offsets.seen = attn_cpu_sdpa_take(&g->end, 2 * rows * (int64_t)sizeof(int32_t));
    g->offsets.range = attn_cpu_sdpa_take(&g->end, 2 * rows * (int64_t)sizeof(int64_t));
    g->offsets.max = attn_cpu_sdpa_take(&g->end, rows * f);
    g->offsets.delta = attn_cpu_sdpa_take(&g->end, rows * f);
    g->offsets.dk = attn_cpu_sdpa_take(&g->end, keys * g->depth * f);
    g->offsets.dv = attn_cpu_sdpa_take(&g->end, keys * g->width * f);
    g->offsets.tmp = attn_cpu_sdpa_take(&g->end, SIDE * g->ldt * f);
    g->offsets.s = attn_cpu_sdpa_take(&g->end, 4 * SIDE * SIDE * f);
    if (g->scored) attn_cpu_bwd_amx_score_lay_out(w, rows, keys);
}

/* Whether a row of the problem's dtype is finite. */
static int all_finite(const struct attn_cpu_bwd *w, const void *row, int64_t n) {
    float wide[512]; /* the largest head dim */
    if (w->s.bf16) return w->s.bf16->finite(row, n);
    if (w->s.p->dtype == ATTN_F32) return w->s.u->finite_f32(row, n);
    attn_cpu_sdpa_load_f32(&w->s, wide, row, w->s.p->dtype, n, 1);
    return w->s.u->finite_f32(wide, n);
}
int attn_cpu_bwd_amx_simple(const struct attn_cpu_bwd *w, const struct attn_cpu_bwd_row *stat, const void *q,
                            const void *dout) {
    const int factor = whole(w) ? isfinite(stat->g) : !(stat->g < 1) && !(stat->g > 1);
    const int additive = w->s.p->mask_dtype && w->s.p->mask_dtype != ATTN_BOOL;
    if (additive && fabs(stat->lse) >= LSE_FAR) return 0;
    return isfinite(stat->lse) && isfinite(stat->shift) && factor && all_finite(w, q, w->s.p->dim_qk) &&
           all_finite(w, dout, w->s.p->dim_v);
}
/* Where a value that is not finite changes the way: a key that nobody sees may hold anything. */
static int hidden(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk, int64_t j) {
    int64_t first = 0, last = 0;
    if (w->amx.scored) return attn_cpu_bwd_amx_score_hidden(w, seq, b, hk, j);
    attn_core_query_range(w->s.p, seq->sq, seq->sk, j, &first, &last);
    return !w->s.bf16 && first >= last;
}

void attn_cpu_bwd_amx_look(struct attn_cpu_bwd *w, int64_t task, char *scratch) {
    const attn_problem *p = w->s.p;
    const int64_t block = task % w->key_blocks, head = task / w->key_blocks, b = head / p->heads_k,
                  hk = head % p->heads_k;
    struct attn_core_seq seq;
    int good = 1;
    (void)scratch;
    attn_cpu_sdpa_seq(&w->s, b, &seq);
    for (int64_t j = block * w->keys; j < (block + 1) * w->keys && j < seq.sk && good; j++)
        good = (all_finite(w, attn_view_row(&w->s.k, b, hk, seq.k0 + j), p->dim_qk) &&
                all_finite(w, attn_view_row(&w->s.v, b, hk, seq.k0 + j), p->dim_v)) ||
               hidden(w, &seq, b, hk, j);
    w->unfit_keys[task] = (uint8_t)!good;
}

struct work {
    const struct attn_cpu_bwd *w;
    const struct attn_core_seq *seq;
    int64_t b, hk;
    struct attn_bwd_tile t;
    float *q, *dout, *q_transposed, *dout_transposed, *kt, *vt, *k_zip, *max, *delta, *tmp;
    int32_t *seen;
    int64_t *range; /* [rows][2] */
    struct attn_cpu_bwd_amx_score score;
};

static void begin(struct work *k, const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                  char *scratch) {
    const struct attn_cpu_bwd_amx *g = &w->amx;
    *k = (struct work){.w = w, .seq = seq, .b = b, .hk = hk};
#define SCRATCH(name) (float *)(void *)(scratch + g->offsets.name)
    k->q = SCRATCH(q), k->dout = SCRATCH(dout), k->q_transposed = SCRATCH(q_transposed),
    k->dout_transposed = SCRATCH(dout_transposed);
    k->kt = SCRATCH(kt), k->vt = SCRATCH(vt), k->k_zip = SCRATCH(k_zip), k->max = SCRATCH(max),
    k->delta = SCRATCH(delta), k->tmp = SCRATCH(tmp);
    k->seen = (int32_t *)(void *)(scratch + g->offsets.seen);
    k->range = (int64_t *)(void *)(scratch + g->offsets.range);
    k->t = (struct attn_bwd_tile){.depth = g->depth,
                                  .width = g->width,
                                  .q = k->q,
                                  .dout = k->dout,
                                  .ldq = g->ldq,
                                  .ldo = g->ldo,
                                  .q_transposed = k->q_transposed,
                                  .dout_transposed = k->dout_transposed,
                                  .kt = k->kt,
                                  .vt = k->vt,
                                  .k_zip = k->k_zip,
                                  .ldk = g->ldk,
                                  .seen = k->seen,
                                  .max = k->max,
                                  .delta = k->delta,
                                  .factor = (float)((g->scored && w->s.p->softcap > 0 ? 1 : w->s.p->scale) * LOG2_E),
                                  .ldd = w->ldd,
                                  .s = SCRATCH(s),
                                  .p = SCRATCH(p),
                                  .ds = SCRATCH(ds),
                                  .ds_rows = SCRATCH(ds_rows)};
#undef SCRATCH
    if (g->scored) attn_cpu_bwd_amx_score_begin(&k->score, w, seq, b, hk, scratch);
}

/* Whether rows f0 .. f0+n are simple: blocks of query rows of the heads of the group. */
static int simple_rows(const struct work *k, int64_t f0, int64_t n) {
    const struct attn_cpu_bwd *w = k->w;
    const int64_t group = w->s.group, blocks = attn_cpu_sdpa_blocks(w->s.p->seq_q, ATTN_CPU_BWD_ROWS);
    const int64_t first = f0 / group / ATTN_CPU_BWD_ROWS, last = (f0 + n - 1) / group / ATTN_CPU_BWD_ROWS;
    for (int64_t h = 0; h < group && n > 0; h++) {
        const uint8_t *unfit = w->unfit_rows + (k->b * w->s.p->heads_q + k->hk * group + h) * blocks;
        for (int64_t x = first; x <= last; x++)
            if (unfit[x]) return 0;
    }
    return 1;
}

/* 32 rows that are to be split, as f32, row `ld` elements after row: in place, or copies in tmp, times factor, NULL as
 * zeros, and zeros after the last column. */
struct rows_32 {
    const char *row[SIDE];
    float factor[SIDE];
    int unscaled; /* factors are 1 */
};
static const float *gather(const struct work *k, const struct rows_32 *x, int64_t n, int64_t padded, int64_t *ld) {
    const int64_t ldt = k->w->amx.ldt, apart = x->row[0] && x->row[1] ? x->row[1] - x->row[0] : 0;
    const int32_t dtype = k->w->s.p->dtype;
    int in_place = dtype == ATTN_F32 && x->unscaled && n == padded && apart > 0;
    for (int64_t r = 1; r < SIDE && in_place; r++) in_place = x->row[r] && x->row[r] - x->row[r - 1] == apart;
    *ld = in_place ? apart / (int64_t)sizeof(float) : ldt;
    if (in_place) return (const void *)x->row[0];
    for (int64_t r = 0; r < SIDE; r++) {
        float *to = k->tmp + r * ldt;
        const int64_t have = x->row[r] ? n : 0;
        if (have) attn_cpu_sdpa_load_f32(&k->w->s, to, x->row[r], dtype, n, (double)x->factor[r]);
        memset(to + have, 0, (size_t)(padded - have) * sizeof *to);
    }
    return k->tmp;
}
/* Operands of them: as they are and transposed, pairs along rows or down columns. to: NULL for none. */
static void split_rows(const struct work *k, const struct rows_32 *x, int64_t n, int64_t padded, float *to, int down,
                       float *transposed, int transposed_down) {
    int64_t ld;
    const float *from = gather(k, x, n, padded, &ld);
    for (int64_t c = 0; c < padded; c += SIDE) {
        if (to) k->w->bf16->split_block(to + c / SIDE * SPLIT, from + c, ld, down);
        k->w->s.u->transpose_f32(k->t.s, SIDE, from + c, ld, SIDE, SIDE);
        k->w->bf16->split_block(transposed + c / SIDE * SPLIT, k->t.s, SIDE, transposed_down);
    }
}
static void load_rows_split(struct work *k, int64_t f0, int64_t n) {
    const struct attn_cpu_bwd *w = k->w;
    const attn_problem *p = w->s.p;
    const int64_t group = w->s.group, depth = w->amx.depth, width = w->amx.width;
    k->t.strips = attn_cpu_sdpa_blocks(n, SIDE);
    for (int64_t s = 0; s < k->t.strips; s++) {
        const int64_t at_q = s * (depth / SIDE) * SPLIT, at_dout = s * (width / SIDE) * SPLIT;
        struct rows_32 q = {.unscaled = 1}, dout = {.unscaled = 1};
        for (int64_t x = 0; x < SIDE; x++) {
            const int64_t r = s * SIDE + x, i = (f0 + r) / group, h = k->hk * group + (f0 + r) % group;
            const struct attn_cpu_bwd_row *stat = r < n ? attn_cpu_bwd_stat(w, k->seq, k->b, h, i) : NULL;
            k->max[r] = INFINITY, k->delta[r] = 0;
            if (!stat || isinf(stat->lse)) continue; /* nothing of a row without gradients may reach a product */
            q.row[x] = attn_view_row(&w->s.q, k->b, h, k->seq->q0 + i);
            dout.row[x] = attn_view_row(&w->dout, k->b, h, k->seq->q0 + i);
            q.factor[x] = 1, dout.factor[x] = (float)stat->g;
            dout.unscaled &= !(stat->g < 1) && !(stat->g > 1);
            k->max[r] = w->amx.scored ? stat->offset : (float)(stat->lse * LOG2_E), k->delta[r] = (float)stat->shift;
        }
        split_rows(k, &q, p->dim_qk, depth, k->q + at_q, 0, k->q_transposed + at_q, 0);
        split_rows(k, &dout, p->dim_v, width, k->dout + at_dout, 0, k->dout_transposed + at_dout, 0);
    }
}
/* Rows j .. j+31 of keys or values. Rows past the end are 0, and so are rows with NaN or infinity, which no query sees
 * here. */
static void key_rows(const struct work *k, const struct attn_view *view, int64_t j, int64_t end, int64_t n,
                     struct rows_32 *x) {
    *x = (struct rows_32){.unscaled = 1};
    for (int64_t r = 0; r < SIDE && j + r < end; r++) {
        const char *row = attn_view_row(view, k->b, k->hk, k->seq->k0 + j + r);
        x->row[r] = all_finite(k->w, row, n) ? row : NULL, x->factor[r] = 1;
    }
}
static void load_keys_split(struct work *k, int64_t j0, int64_t n) {
    const struct attn_cpu_bwd *w = k->w;
    const attn_problem *p = w->s.p;
    const int64_t depth = w->amx.depth, width = w->amx.width;
    for (int64_t j = 0; j < n; j += SIDE) {
        const int64_t at_k = j / SIDE * (depth / SIDE) * SPLIT, at_v = j / SIDE * (width / SIDE) * SPLIT;
        struct rows_32 x;
        key_rows(k, &w->s.k, j0 + j, j0 + n, p->dim_qk, &x);
        split_rows(k, &x, p->dim_qk, depth, k->k_zip + at_k, 1, k->kt + at_k, 1);
        key_rows(k, &w->s.v, j0 + j, j0 + n, p->dim_v, &x);
        split_rows(k, &x, p->dim_v, width, NULL, 0, k->vt + at_v, 1);
    }
}

static void copy_row(float *to, const void *row, int64_t n, int64_t padded) {
    if (row) memcpy(to, row, (size_t)n * sizeof(uint16_t));
    const int64_t have = row ? n : 0;
    memset((uint16_t *)(void *)to + have, 0, (size_t)(padded - have) * sizeof(uint16_t));
}

/* n flat rows from f0 on, filled up to whole strips. */
static void load_rows(struct work *k, int64_t f0, int64_t n) {
    const struct attn_cpu_bwd *w = k->w;
    const struct attn_cpu_bwd_amx *g = &w->amx;
    const attn_problem *p = w->s.p;
    const int64_t group = w->s.group;
    if (!w->s.bf16) {
        load_rows_split(k, f0, n);
        return;
    }
    k->t.strips = attn_cpu_sdpa_blocks(n, SIDE);
    const int64_t end = (k->hk + 1) * group;
    for (int64_t r = 0, i = f0 / group, h = end - group + f0 % group; r < k->t.strips * SIDE; r++) {
        const void *q = NULL, *dout = NULL; /* nothing of a row without gradients may reach a product */
        k->max[r] = INFINITY, k->delta[r] = 0;
        if (r < n) {
            const struct attn_cpu_bwd_row *stat = attn_cpu_bwd_stat(w, k->seq, k->b, h, i);
            if (!isinf(stat->lse)) {
                const int64_t row_q = k->seq->q0 + i;
                q = attn_view_row(&w->s.q, k->b, h, row_q), dout = attn_view_row(&w->dout, k->b, h, row_q);
                k->max[r] = stat->offset, k->delta[r] = (float)stat->shift;
            }
        }
        copy_row(k->q + r * g->ldq, q, p->dim_qk, g->depth);
        copy_row(k->dout + r * g->ldo, dout, p->dim_v, g->width);
        if (++h == end) h -= group, i++;
    }
    for (int64_t s = 0; s < k->t.strips; s++) { /* all of it is finite */
        w->s.bf16->turn(k->q_transposed + s * SIDE / 2 * g->depth, (const void *)(k->q + s * SIDE * g->ldq), 2 * g->ldq,
                        g->depth);
        w->s.bf16->turn(k->dout_transposed + s * SIDE / 2 * g->width, (const void *)(k->dout + s * SIDE * g->ldo),
                        2 * g->ldo, g->width);
    }
}

/* Visible keys of the n rows from f0 on. */
static void see_all(struct work *k, int64_t f0, int64_t n) {
    const struct attn_cpu_bwd *w = k->w;
    const int64_t padded = k->t.strips * SIDE, group = w->s.group;
    const attn_problem problem = *w->s.p; /* which the ranges can't change */
    for (int64_t r = 0, i = f0 / group, left = group - f0 % group; r < padded; r++) {
        k->range[2 * r] = k->range[2 * r + 1] = 0;
        if (r < n) attn_core_key_range(&problem, k->seq->sq, k->seq->sk, i, &k->range[2 * r], &k->range[2 * r + 1]);
        if (--left == 0) left = group, i++;
    }
    if (w->amx.scored) attn_cpu_bwd_amx_score_rows(&k->score, f0, n, padded, k->range);
}
/* The same within the blocks of keys from j0 on, relative to j0. */
static void see(const struct work *k, int64_t blocks, int64_t j0) {
    const int64_t keys = blocks * SIDE;
    for (int64_t r = 0; r < k->t.strips * SIDE; r++) {
        int64_t lo = k->range[2 * r], hi = k->range[2 * r + 1];
        lo = lo < j0 ? 0 : lo - j0 < keys ? lo - j0 : keys;
        hi = hi < j0 ? 0 : hi - j0 < keys ? hi - j0 : keys;
        if (k->w->amx.scored && isinf(k->max[r])) lo = hi = 0; /* no gradients */
        int32_t *seen = k->seen + r / SIDE * 2 * SIDE + r % SIDE;
        seen[0] = (int32_t)lo, seen[SIDE] = (int32_t)hi;
    }
}

/* Row j of n from j0 on. NULL: counts as 0, a row past the end, or one with NaN or infinity that no query may see. */
static const void *key_row(const struct work *k, const struct attn_view *view, int64_t j0, int64_t n, int64_t j,
                           int64_t width) {
    const void *row = j < n ? attn_view_row(view, k->b, k->hk, k->seq->k0 + j0 + j) : NULL;
    return row && k->w->amx.scored && !k->w->s.bf16->finite(row, width) ? NULL : row;
}
/* Rows j0 .. j0+n of keys or values as panels of 16, pairs along D. */
static void load_panels(const struct work *k, const struct attn_view *view, int64_t j0, int64_t n, int64_t width,
                        int64_t depth, float *to) {
    const int64_t ldt = k->w->amx.ldt;
    for (int64_t j = 0; j < k->t.blocks * SIDE; j += 16, to += depth / 2 * 16) {
        const float *from = k->tmp;
        const void *row[16];
        int64_t ld = ldt, there = 0;
        for (int64_t c = 0; c < 16; c++) {
            row[c] = key_row(k, view, j0, n, j + c, width);
            there += row[c] != NULL;
        }
        if (width == depth && there == 16 && view->row % 2 == 0) {
            from = row[0];
            ld = view->row / 2;
        } else {
            for (int64_t c = 0; c < 16; c++) copy_row(k->tmp + c * ldt, row[c], width, depth);
        }
        k->w->s.u->transpose_f32(to, 16, from, ld, 16, depth / 2);
    }
}

static void load_keys(struct work *k, int64_t j0, int64_t n) {
    const struct attn_cpu_bwd *w = k->w;
    const struct attn_cpu_bwd_amx *g = &w->amx;
    const attn_problem *p = w->s.p;
    k->t.blocks = attn_cpu_sdpa_blocks(n, SIDE);
    if (!w->s.bf16) {
        load_keys_split(k, j0, n);
        return;
    }
    load_panels(k, &w->s.k, j0, n, p->dim_qk, g->depth, k->kt);
    load_panels(k, &w->s.v, j0, n, p->dim_v, g->width, k->vt);
    for (int64_t j = 0; j < k->t.blocks * SIDE; j += 2) {
        const void *even = key_row(k, &w->s.k, j0, n, j, p->dim_qk),
                   *odd = key_row(k, &w->s.k, j0, n, j + 1, p->dim_qk);
        float *to = k->k_zip + j / 2 * g->ldk;
        w->s.bf16->zip(to, even, odd, p->dim_qk);
        memset(to + p->dim_qk, 0, (size_t)(g->depth - p->dim_qk) * sizeof *to);
    }
}

/* Sums of the keys j0 .. j0+n that were kept transposed, and zeros after the sequence's last key. */
static void write_keys(const struct work *k, const struct attn_view *view, const float *sums, int64_t depth,
                       int64_t width, int64_t j0, int64_t n, double factor) {
    const struct attn_cpu_bwd *w = k->w;
    const int64_t ldt = w->amx.ldt;
    for (int64_t j = 0; j < w->keys && j0 + j < k->seq->sk_rows; j++) {
        char *to = attn_view_row(view, k->b, k->hk, k->seq->k0 + j0 + j);
        if (j >= n) {
            memset(to, 0, (size_t)width * (size_t)view->element_bytes);
            continue;
        }
        if (j % SIDE == 0) w->s.u->transpose_f32(k->tmp, ldt, sums + j * depth, SIDE, depth, SIDE);
        attn_cpu_sdpa_store_f32(&w->s, to, w->s.p->dtype, k->tmp + j % SIDE * ldt, width, factor);
    }
}

/* Whether no value of the (batch, key head) is NaN or infinite. */
static int simple_head(const struct work *k) {
    const struct attn_cpu_bwd *w = k->w;
    const uint8_t *unfit = w->unfit_keys + (k->b * w->s.p->heads_k + k->hk) * w->key_blocks;
    for (int64_t x = 0; x < w->key_blocks; x++)
        if (unfit[x]) return 0;
    return simple_rows(k, 0, k->seq->sq * w->s.group);
}

/* The n loaded rows with the loaded keys from j0 on; after them rows from f on with keys from j on, or f < 0. */
static void run_tile(struct work *k, int64_t n, int64_t j0, int64_t f, int64_t j_next) {
    const struct attn_cpu_bwd *w = k->w;
    if (w->s.bf16) {
        see(k, k->t.blocks, j0);
        if (w->amx.scored) k->t.score = attn_cpu_bwd_amx_score_keys(&k->score, j0, f, j_next);
        w->s.bf16->bwd_tile(&k->t);
        return;
    }
    const int64_t wide = w->amx.depth, tall = w->amx.width, lo = k->range[0], hi = k->range[2 * n - 1];
    for (int64_t x = 0; x < k->t.blocks; x += SPLIT_BLOCKS) {
        struct attn_bwd_tile t = k->t;
        const int64_t j = j0 + x * SIDE;
        t.blocks = k->t.blocks - x < SPLIT_BLOCKS ? k->t.blocks - x : SPLIT_BLOCKS;
        if (j >= hi || j + t.blocks * SIDE <= lo) continue;
        t.kt += x * wide / SIDE * SPLIT, t.k_zip += x * wide / SIDE * SPLIT, t.vt += x * tall / SIDE * SPLIT;
        if (t.dk) t.dk += x * SIDE * wide;
        if (t.dv) t.dv += x * SIDE * tall;
        see(k, t.blocks, j);
        if (w->amx.scored) {
            const int within = x + SPLIT_BLOCKS < k->t.blocks;
            t.score = attn_cpu_bwd_amx_score_keys(&k->score, j, within ? k->score.f0 : f,
                                                  within ? j + SPLIT_BLOCKS * SIDE : j_next);
        }
        w->bf16->bwd_tile_f32(&t);
    }
}

int attn_cpu_bwd_amx_keys(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                          int64_t block, float *dq, char *scratch) {
    const struct attn_cpu_bwd_amx *g = &w->amx;
    const attn_problem *p = w->s.p;
    const int64_t group = w->s.group, end = seq->sq * group, j0 = block * w->keys;
    int64_t n = seq->sk - j0, first = 0, last = 0, unused;
    struct work k;
    begin(&k, w, seq, b, hk, scratch);
    if (n <= 0 || w->unfit_keys[(b * p->heads_k + hk) * w->key_blocks + block] || !simple_rows(&k, 0, end)) return 0;
    if (whole(w) && !simple_head(&k)) return 0;
    n = n > w->keys ? w->keys : n;
    float *dk = (float *)(void *)(scratch + g->offsets.dk), *dv = (float *)(void *)(scratch + g->offsets.dv);
    load_keys(&k, j0, n);
    memset(dk, 0, (size_t)(k.t.blocks * SIDE * g->depth) * sizeof *dk);
    memset(dv, 0, (size_t)(k.t.blocks * SIDE * g->width) * sizeof *dv);
    k.t.dk = w->want_dk ? dk : NULL, k.t.dv = w->want_dv ? dv : NULL;
    /* both ends of the visible queries grow with j */
    attn_core_query_range(p, seq->sq, seq->sk, j0, &first, &unused);
    attn_core_query_range(p, seq->sq, seq->sk, j0 + n - 1, &unused, &last);
    const int64_t rows = STRIPS * SIDE, stop = first < last ? last * group : 0;
    for (int64_t f = first * group / SIDE * SIDE; f < stop && f < end; f += rows) {
        const int64_t have = end - f < rows ? end - f : rows;
        load_rows(&k, f, have);
        see_all(&k, f, have);
        k.t.dq = dq ? dq + f * w->ldd : NULL;
        run_tile(&k, have, j0, f + rows < stop && f + rows < end ? f + rows : -1, j0);
    }
    if (w->want_dk) write_keys(&k, &w->dk, dk, g->depth, p->dim_qk, j0, n, p->scale);
    if (w->want_dv) write_keys(&k, &w->dv, dv, g->width, p->dim_v, j0, n, 1);
    return 1;
}

int attn_cpu_bwd_amx_queries(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                             int64_t f0, float *dq, char *scratch) {
    const attn_problem *p = w->s.p;
    const int64_t end = seq->sq * w->s.group, n = end - f0 < w->rows ? end - f0 : w->rows;
    int64_t lo = 0, hi = 0, unused;
    struct work k;
    if (n <= 0) return 1;
    begin(&k, w, seq, b, hk, scratch);
    if (!simple_rows(&k, f0, n) || (whole(w) && !simple_head(&k))) return 0;
    attn_core_key_range(p, seq->sq, seq->sk, f0 / w->s.group, &lo, &unused);
    attn_core_key_range(p, seq->sq, seq->sk, (f0 + n - 1) / w->s.group, &unused, &hi);
    for (int64_t j = lo / w->keys; j * w->keys < hi; j++)
        if (w->unfit_keys[(b * p->heads_k + hk) * w->key_blocks + j]) return 0;
    load_rows(&k, f0, n);
    see_all(&k, f0, n);
    k.t.dq = dq;
    /* as many chunks as scratch has room for */
    const int64_t keys = w->s.bf16 ? w->keys * STRIPS * SIDE / w->rows : w->keys;
    for (int64_t j = lo / SIDE * SIDE; j < hi; j += keys) {
        load_keys(&k, j, hi - j < keys ? hi - j : keys);
        run_tile(&k, n, j, j + keys < hi ? f0 : -1, j + keys);
    }
    return 1;
}
