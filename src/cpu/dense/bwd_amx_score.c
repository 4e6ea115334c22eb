/* SPDX-License-Identifier: MIT
 * Scores of the backward in whole strips: what their rows have, for bwd_amx.c. */
#include "cpu/dense/bwd_amx_score.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

static int mask_of(const struct attn_cpu_sdpa *s) {
    switch (s->p->mask_dtype) {
    case ATTN_BOOL: return ATTN_UKR_MASK_BITS;
    case ATTN_F32: return ATTN_UKR_MASK_F32;
    case ATTN_F16: return ATTN_UKR_MASK_F16;
    case ATTN_BF16: return ATTN_UKR_MASK_BF16;
    default: return ATTN_UKR_MASK_NONE;
    }
}

/* The same, but for a mask of one cell a row. */
static int cells_of(const struct attn_cpu_sdpa *s) { return s->mask.column ? mask_of(s) : ATTN_UKR_MASK_NONE; }

int attn_cpu_bwd_amx_scores(const struct attn_cpu_bwd *w) {
    const attn_problem *p = w->s.p;
    return w->s.remaining_fits && !attn_core_has(p, ATTN_PAGED) && !attn_core_has(p, ATTN_GRAD_ALIBI) &&
           (p->softcap <= 0 || attn_softcap_fits(w->s.softcap, p->scale)) &&
           (!p->mask_dtype || mask_of(&w->s) != ATTN_UKR_MASK_NONE);
}

void attn_cpu_bwd_amx_score_lay_out(struct attn_cpu_bwd *w, int64_t rows, int64_t keys) {
    struct attn_cpu_bwd_amx *g = &w->amx;
    const int64_t f = (int64_t)sizeof(float), pointers = w->s.p->mask_dtype ? rows * (int64_t)sizeof(char *) : 0;
    g->offsets.slope = attn_cpu_sdpa_take(&g->end, rows * f);
    g->offsets.origin = attn_cpu_sdpa_take(&g->end, rows * f);
    g->offsets.near = attn_cpu_sdpa_take(&g->end, rows * f);
    g->offsets.weight = attn_cpu_sdpa_take(&g->end, rows * f);
    g->offsets.ref = attn_cpu_sdpa_take(&g->end, rows * (int64_t)sizeof(int64_t));
    g->offsets.cell = attn_cpu_sdpa_take(&g->end, pointers);
    g->offsets.next = attn_cpu_sdpa_take(&g->end, pointers);
    g->offsets.bits = attn_cpu_sdpa_take(&g->end, rows * (keys / ATTN_BWD_TILE) * (int64_t)sizeof(uint32_t));
}

float attn_cpu_bwd_amx_score_max(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t h,
                                 int64_t i, double lse) {
    const struct attn_view *mask = &w->s.mask;
    struct attn_cpu_sdpa_row row;
    attn_cpu_sdpa_row(&w->s, seq, b, h, i, &row);
    if (mask->data && !mask->column) { /* one cell for all keys; a row without any may still have a sink in its lse */
        if (mask->dtype == ATTN_BOOL && !*row.mask) return INFINITY;
        if (mask->dtype != ATTN_BOOL) lse -= attn_num_load(row.mask, mask->dtype, 0);
    }
    lse -= row.shift;
    return (float)(cells_of(&w->s) > ATTN_UKR_MASK_BITS ? lse : lse * LOG2_E);
}

int attn_cpu_bwd_amx_score_hidden(const struct attn_cpu_bwd *w, const struct attn_core_seq *seq, int64_t b, int64_t hk,
                                  int64_t j) {
    const struct attn_view *mask = &w->s.mask;
    int64_t first = 0, last = 0;
    attn_core_query_range(w->s.p, seq->sq, seq->sk, j, &first, &last);
    if (first >= last) return 1;
    if (w->s.p->mask_dtype != ATTN_BOOL) return 0;
    for (int64_t h = hk * w->s.group; h < (hk + 1) * w->s.group; h++)
        for (int64_t i = first; i < last; i++)
            if (attn_view_row(mask, b, h, i)[j * mask->column]) return 0;
    return 1;
}

void attn_cpu_bwd_amx_score_begin(struct attn_cpu_bwd_amx_score *s, const struct attn_cpu_bwd *w,
                                  const struct attn_core_seq *seq, int64_t b, int64_t hk, char *scratch) {
    const struct attn_cpu_bwd_amx *g = &w->amx;
    const attn_problem *p = w->s.p;
    *s = (struct attn_cpu_bwd_amx_score){.w = w, .seq = seq, .b = b, .hk = hk};
#define SCRATCH(name) (void *)(scratch + g->offsets.name)
    s->slope = SCRATCH(slope), s->origin = SCRATCH(origin), s->near = SCRATCH(near), s->weight = SCRATCH(weight),
    s->ref = SCRATCH(ref);
    s->cell = SCRATCH(cell), s->next = SCRATCH(next);
    s->score.bits = SCRATCH(bits);
#undef SCRATCH
    s->score.caps = p->softcap > 0;
    if (s->score.caps) s->score.cap = attn_softcap_of(w->s.softcap, p->scale);
    s->score.alibi = p->alibi == ATTN_ALIBI_NONE ? 0 : 1 + (p->alibi == ATTN_ALIBI_DISTANCE);
    s->score.slope = s->slope, s->score.origin = s->origin, s->score.near = s->near;
    s->score.weight = w->s.bf16 && attn_core_has(p, ATTN_SINK) ? s->weight : NULL;
    s->score.mask = cells_of(&w->s);
    s->score.mask_bytes = w->s.mask.element_bytes;
    s->score.cell = s->cell, s->score.next = s->next;
}

void attn_cpu_bwd_amx_score_rows(struct attn_cpu_bwd_amx_score *s, int64_t f0, int64_t n, int64_t padded,
                                 const int64_t *range) {
    const struct attn_cpu_bwd *w = s->w;
    const int64_t end = (s->hk + 1) * w->s.group,
                  off = attn_core_has(w->s.p, ATTN_BOTTOM_RIGHT) ? s->seq->sk - s->seq->sq : 0;
    const int by_distance = s->score.alibi == 2;
    struct attn_cpu_sdpa_row row = {.h = -1};
    s->f0 = f0, s->padded = padded;
    if (!s->score.alibi && !s->score.weight) return;
    for (int64_t r = 0, h = end - w->s.group + f0 % w->s.group, i = f0 / w->s.group; r < padded; r++) {
        const int there = r < n && range[2 * r] < range[2 * r + 1];
        s->weight[r] = there ? (float)attn_cpu_bwd_stat(w, s->seq, s->b, h, i)->g : 1;
        s->slope[r] = s->near[r] = 0, s->ref[r] = 0;
        if (s->score.alibi && there) {
            if (row.h != h) row.h = h, row.slope = attn_cpu_sdpa_slope(&w->s, s->b, h);
            row.diagonal = i + off, row.lo = range[2 * r], row.hi = range[2 * r + 1];
            attn_cpu_sdpa_alibi(&w->s, &row);
            s->slope[r] = (float)((by_distance ? -row.slope : row.slope) * LOG2_E);
            s->ref[r] = by_distance ? row.diagonal : row.alibi_ref;
            s->near[r] = by_distance ? (float)row.alibi_ref : 0;
        }
        if (++h == end) h -= w->s.group, i++;
    }
}

/* Where rows f .. f + n of a mask have key j; rows that are not there are the first one. */
static void find_cells(const struct attn_cpu_bwd_amx_score *s, int64_t f, int64_t j, const char **cell) {
    const struct attn_cpu_bwd *w = s->w;
    const struct attn_view *mask = &w->s.mask;
    const int64_t end = (s->hk + 1) * w->s.group, byte = j * mask->element_bytes, rows = s->seq->sq * w->s.group;
    int64_t h = end - w->s.group + f % w->s.group, i = f / w->s.group;
    const char *const first = attn_view_row(mask, s->b, h, i) + byte;
    for (int64_t r = 0; r < s->padded; r++) {
        cell[r] = f + r < rows ? attn_view_row(mask, s->b, h, i) + byte : first;
        if (++h == end) h -= w->s.group, i++;
    }
}
const struct attn_bwd_score_mod *attn_cpu_bwd_amx_score_keys(struct attn_cpu_bwd_amx_score *s, int64_t j0, int64_t f,
                                                             int64_t j) {
    for (int64_t r = 0; r < s->padded && s->score.alibi; r++) s->origin[r] = (float)(s->ref[r] - j0);
    if (!s->score.mask) return &s->score;
    s->score.mask_keys = s->w->s.p->seq_k - j0;
    find_cells(s, s->f0, j0, s->cell);
    if (f < 0) { /* a cached line is prefetched */
        s->score.next = s->cell;
    } else {
        find_cells(s, f, j, s->next);
        s->score.next = s->next;
    }
    return &s->score;
}
