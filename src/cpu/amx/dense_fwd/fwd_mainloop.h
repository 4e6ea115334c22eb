/* SPDX-License-Identifier: MIT
 * The loop over steps of the forward on AMX (fwd.c): what comes when, for all kinds of scores. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_FWD_MAINLOOP_H
#define ATTN_CPU_AMX_DENSE_FWD_FWD_MAINLOOP_H
#include "cpu/amx/dense_fwd/bool_mask.h"
#include "cpu/amx/dense_fwd/step_scores.h"
#include "cpu/amx/dense_fwd/tile_cursor.h"
#include "cpu/amx/dense_fwd/tile_products.h"

/* Whether all queries see all keys of a step. */
static int open_step(const struct attn_fwd_strip *f, int64_t span, int64_t step) {
    const __m512i begin = _mm512_set1_epi32((int32_t)(step * span)),
                  end = _mm512_set1_epi32((int32_t)((step + 1) * span));
    __mmask16 cut = 0;
    for (int64_t h = 0; h < LANES_ALL; h += 16)
        cut |= _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(f->seen + h), begin) |
               _mm512_cmplt_epi32_mask(_mm512_loadu_si512(f->seen + LANES_ALL + h), end);
    return !cut;
}

/* Boolean masks: which queries keep some key of a step. */
INLINE uint32_t keepers(struct place place, int64_t span) {
    const uint32_t *any = place.f->score->bits + (place.f->n + 63) / 64 * 64 + place.step * span / 32;
    return span == 32 ? any[0] : any[0] | any[1];
}
/* The next step that has to be computed: steps of which no query keeps a key are skipped. A strip's first step is never
 * skipped, since its sums begin there. On entering a strip its mask is packed into bits. */
INLINE struct place behind_kept(struct place place, int64_t span, const struct attn_fwd_strip *end) {
    do place = behind(place, span);
    while (place.step && !keepers(place, span));
    if (!place.step && place.f < end) pack_kept(place.f->score, place.f->n);
    return place;
}
INLINE struct place next_of(int kind, struct place place, int64_t span, const struct attn_fwd_strip *end) {
    return fuse_keeps(kind) ? behind_kept(place, span, end) : behind(place, span);
}

/* Probabilities of the last steps, and what became of them. */
struct queue {
    int64_t span, parts;            /* keys of a step; parts of the sums, that take turns step by step */
    float *p[QUEUE + 1];            /* the last one is being made, the one before it is of the step before */
    struct place places[QUEUE + 1]; /* whose they are */
    int64_t done[QUEUE + 1];        /* steps, of all strips, whose values each part of the sums has */
};
/* A part of the sums gets the n last steps, which may be of more than one strip. hold: as keys. */
INLINE float *visit(int hold, int64_t width, int64_t part, int64_t n, const struct queue *w, float *late,
                    struct exps *e) {
    const float *const *p = (const float *const *)w->p;
    for (int64_t i = QUEUE - n, run_length; i < QUEUE; i += run_length) {
        for (run_length = 1; i + run_length < QUEUE && follows(w->places[i + run_length], w->places[i], run_length);)
            run_length++;
        late = values(0, hold, w->places[i].f, width, w->parts, part, w->places[i].step, run_length, p + i, late, e);
    }
    return late;
}
/* The same without exponentials. */
static __attribute__((noinline)) void visit_alone(int terms, int64_t width, int64_t part, int64_t n, struct queue w) {
    struct exps none = {.terms = terms, .span = w.span, .done = w.span / 2};
    visit(0, width, part, n, &w, NULL, &none);
}
/* All parts of the sums have all steps before `to`. */
INLINE void visit_all(int terms, int64_t width, int64_t to, struct queue *w) {
    for (int64_t q = 0; q < w->parts; q++) {
        visit_alone(terms, width, q, to - w->done[q], *w);
        w->done[q] = to;
    }
}
/* fuse: that of e, a constant. clang would see it too late in e, which then stays in memory for calls never made. */
INLINE void begin(struct exps *e, int fuse, const struct attn_fwd_score_mod *f, int64_t key, const float *s, float *p,
                  const struct running_max *r) {
    const v32 offset[2] = {r[0].offset, r[1].offset};
    for (int h = 0; fuse_alibi(fuse) && h < 2; h++) {
        const v32 in = e->degree == ATTN_FWD_TABLE ? table_offset(offset[h], 1) : offset[h];
        begin_alibi(&e->fused, f, key, h, in, far_of(&r[h], e->factor));
    }
    for (int h = 0; fuse == FUSE_KEPT && h < 2; h++) begin_kept(&e->fused, f, h, far_of(&r[h], e->factor));
    if (fuse_keeps(fuse)) e->kept = (const uint16_t *)(const void *)(f->bits + key);
    begin_step(e, s, p, offset);
}
/* Cells of a boolean mask are prefetched during a step, a line of one row with every two keys. Bits are made a strip at
 * a time: it is the same keys of the next one. Where there is none, a cached line is prefetched. */
INLINE void prefetch(struct exps *e, struct place place, int64_t span, const struct attn_fwd_strip *end) {
    const struct attn_fwd_score_mod *score_mod = place.f[place.f + 1 < end].score;
    e->prefetched = score_mod->cell + place.step * span / 2 % LANES_ALL;
    e->prefetch_from = place.step * span / 64 * 64 * score_mod->mask_bytes;
}
/* Whether a step must be taken again, exactly. */
INLINE int beyond(int fuse, const struct exps *e) {
    return (fuse && is_beyond(&e->fused)) || (e->degree == ATTN_FWD_TABLE && is_beyond_table(&e->table));
}
/* What moves from step to step. */
struct pipeline {
    struct queue *w;
    struct place place;
    int64_t j;               /* steps, of all strips, before this one */
    float *s, *other, *held; /* its scores, those being made; where sums go that tiles still hold */
    v32 l[2];
};
/* Full steps of one strip, up to step `to` of it: all queries see all keys and have a running max, and each part of O
 * has had P V of its last `parts` steps. Only products and exponentials remain to do. With a boolean mask they end
 * before a step that is passed over, too. Returns 1 where the last one's probabilities passed MOST: these are not yet
 * in l. */
INLINE int full_steps(int kind, int64_t depth, int64_t width, int64_t span, int64_t parts, int64_t to,
                      const struct attn_fwd_strip *end, const struct running_max *r, struct pipeline *c,
                      struct exps *e) {
    const struct attn_fwd_strip *const f = c->place.f, operands = {.k = f->k,
                                                                   .k_row = f->k_row,
                                                                   .k_more = f->k_more,
                                                                   .k_step = f->k_step,
                                                                   .k_low = f->k_low,
                                                                   .q = f->q,
                                                                   .v = f->v,
                                                                   .o = f->o};
    const v32 most = v32_set(MOST);
    const int sure = e->table.sure;
    float *p[QUEUE + 1], *s = c->s, *other = c->other, *held = c->held ? c->held : c->other;
    int64_t step = c->place.step, part = c->j % parts;
    int passes = 0;
    if (kind == FUSE_NONE) e->table.sure = 1;
    UNROLL for (int i = 0; i <= QUEUE; i++) p[i] = c->w->p[i];
    for (;;) {
        begin(e, kind, f->score, step * span, s, p[QUEUE], r);
        if (fuse_keeps(kind)) prefetch(e, (struct place){f, step}, span, end);
        if (depth == 64 && e->terms == 1) {
            step_64(&operands, step + 1, other, &operands, step - 1, p[QUEUE - 1], e);
        } else {
            keys(1, 1, &operands, depth, step + 1, other, held, e);
            held = values(1, 1, &operands, width, parts, part, step - parts, parts,
                          (const float *const *)p + QUEUE - parts, other + (span - 32) * LANES_ALL, e);
        }
        finish_step(e);
        if (beyond(kind, e)) {
            begin(e, kind, f->score, step * span, s, p[QUEUE], r);
            finish_exactly(e);
        }
        passes = _mm512_cmp_ps_mask(e->sum[0], most, _CMP_NLT_UQ) | _mm512_cmp_ps_mask(e->sum[1], most, _CMP_NLT_UQ);
        if (passes) break;
        for (int h = 0; h < 2; h++) c->l[h] += e->sum[h];
        float *const oldest = p[QUEUE - parts], *const mine = s;
        UNROLL for (int64_t i = QUEUE - parts; i < QUEUE; i++) p[i] = p[i + 1];
        p[QUEUE] = oldest;
        s = other, other = mine;
        part = part + 1 == parts ? 0 : part + 1;
        if (++step == to || (fuse_keeps(kind) && !keepers((struct place){f, step + 1}, span))) break;
    }
    e->table.sure = sure;
    c->j += step - c->place.step;
    c->place.step = step;
    c->s = s, c->other = other;
    if (depth > 64 || e->terms > 1) c->held = held;
    UNROLL for (int64_t i = QUEUE - parts; i <= QUEUE; i++) {
        c->w->p[i] = p[i];
        c->w->places[i] = (struct place){f, step - QUEUE + i};
    }
    for (int64_t last = passes ? c->j : c->j - 1, i = 0; i < parts; i++) c->w->done[(last - i) % parts] = last - i;
    return passes != 0;
}
INLINE void let_go(float **held) {
    if (*held) store_sums(*held);
    *held = NULL;
}
/* References of a new strip, of the queries that far_ahead says. s: scratch. */
static __attribute__((noinline)) void look_ahead(const struct attn_fwd_strip *f, int64_t depth, int terms, int of_keys,
                                                 int64_t span, struct running_max *r, float *s) {
    struct exps none = {.terms = terms, .of_keys = of_keys, .span = span, .done = span / 2};
    int32_t key[LANES_ALL];
    uint32_t left = far_ahead(f, span, key);
    while (left) {
        int64_t step;
        const uint32_t queries = next_ahead(key, span, &left, &step);
        const __mmask16 lanes[2] = {(__mmask16)queries, (__mmask16)(queries >> 16)};
        keys(0, 0, f, depth, step, s, NULL, &none);
        if (f->score_override) put_overrides(f, span, step, s);
        update_max_fused(f, span, step, r, s, v32_set(f->factor), lanes);
    }
}
/* `count` strips that follow each other like steps of one: nothing waits between them. */
INLINE void strips(const struct attn_fwd_strip *f, int64_t count, int flat, int kind, int64_t depth, int64_t width,
                   int terms, int bf16_accuracy, int64_t span, int64_t parts) {
    const int fuse = fuse_makes(kind) ? kind : FUSE_NONE;
    const int scored = kind != FUSE_NONE || terms > 1; /* else products are scores */
    const int64_t weights = span / 2 * LANES_ALL * terms;
    const struct attn_fwd_strip *const end = f + count;
    struct running_max r[2];
    v32 l[2] = {v32_set(0), v32_set(0)};
    struct exps e;
    struct queue w = {.span = span, .parts = parts};
    struct place place = {f, 0}, next;
    struct open open = {0, 0};
    int settled = 0;                                                 /* all queries have a running max */
    float *s = f->s, *other = f->s + span * LANES_ALL, *held = NULL; /* where sums go that tiles still hold */
    const v32 hidden = fuse_caps(fuse) ? _mm512_castsi512_ps(_mm512_set1_epi32(CAP_HIDDEN)) : v32_set(-INFINITY);
    if (fuse_keeps(kind)) pack_kept(f->score, f->n);
    next = next_of(kind, place, span, end);
    const v32 none = v32_set(-INFINITY);
    set_up_exps(&e, f->factor, terms, bf16_accuracy, span);
    const int table = e.degree == ATTN_FWD_TABLE;
    set_up_fused(&e.fused, fuse, table, f->factor * attn_fwd_parts(e.degree), f->score);
    e.late = table && scored && (fuse ? fuse_alibi(fuse) : f->score && f->score->alibi);
    /* Only ALiBi, and passes that hide keys, make many arguments that a table does not have. What a cap leaves near 0
     * is among those that it has. */
    e.table.sure = table && fuse && !fuse_alibi(fuse), e.table.notes = !fuse_caps(fuse);
    e.prefetches = fuse_keeps(kind);
    deal_times(&e, 2 * (depth / 32 * (span / 16) * e.of_keys + span / 32 * (width / 16) * of_values(terms)));
    for (int i = 0; i <= parts; i++) w.p[QUEUE - i] = f->p + i * weights;
    for (int i = 0; i <= QUEUE; i++) w.places[i] = place;
    keys(0, 0, place.f, depth, place.step, s, NULL, &e);
    for (int64_t j = 0; place.f < end; j++) {
        f = place.f;
        w.places[QUEUE] = place;
        const struct attn_fwd_score_mod *const score_mod = scored ? f->score : NULL;
        for (int h = 0; h < 2; h++) r[h].rescale = v32_set(1);
        if (flat && kind == fuse && terms == 1 && settled && place.step > parts && place.step >= open.from &&
            place.step < open.to && j - w.done[j % parts] == parts &&
            (!fuse_keeps(kind) || (follows(next, place, 1) && follows(place, w.places[QUEUE - parts], parts)))) {
            struct pipeline c = {
                .w = &w, .place = place, .j = j, .s = s, .other = other, .held = held, .l = {l[0], l[1]}};
            const int passes = full_steps(kind, depth, width, span, parts, open.to, end, r, &c, &e);
            place = c.place, next = next_of(kind, place, span, end), j = c.j, s = c.s, other = c.other, held = c.held;
            for (int h = 0; h < 2; h++) l[h] = c.l[h];
            if (passes) goto made;
        }
        if (place.step == 0) {
            for (int h = 0; h < 2; h++) {
                r[h].m = v32_load(f->m + h * 16), l[h] = v32_load(f->l + h * 16);
                set_up_running_max(&r[h], e.late ? ATTN_FWD_TABLE_OF_SUMS : e.degree, 0);
                r[h].offset = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r[h].m, none, _CMP_NEQ_UQ),
                                                  in_parts(&r[h], r[h].m * e.factor)) +
                              v32_set(r[h].below);
            }
            open = open_steps(f, span);
            settled = 0;
            if (f->score_override || f->page_missing || f->live) open.to = 0;
            if (open.to > f->n / span - 1) open.to = f->n / span - 1;
            if (score_mod && score_mod->alibi) {
                let_go(&held);
                look_ahead(f, depth, terms, e.of_keys, span, r, other);
            }
        }
        if (f->score_override) put_overrides(f, span, place.step, s);
        if (score_mod && !fuse) {
            score(score_mod, span, place.step * span, s);
            if (score_mod->mask && score_mod->mask != ATTN_UKR_MASK_BIAS)
                prefetch_masks(score_mod, span, (place.step + 1) * span);
        }
        if (!settled || place.step < open.from || place.step >= open.to) {
            if (!open_step(f, span, place.step)) hide(f, span, place.step, s, hidden);
            if (f->page_missing) hide_missing_pages(f, span, place.step, s, hidden);
            if (f->live) note_live(f, span, place.step, s, hidden);
            if (f->live && fuse_keeps(kind)) keep_live(f, span, place.step);
            __mmask16 first[2] = {without(&r[0], e.factor), without(&r[1], e.factor)};
            settled = !(first[0] | first[1]);
            if (fuse_keeps(kind)) {
                const uint32_t who = keepers(place, span);
                first[0] &= (__mmask16)who, first[1] &= (__mmask16)(who >> 16);
            }
            for (int h = 0; h < 2; h++) {
                if (first[h] && !fuse)
                    update_max(&r[h], s + h * 16, span, e.factor, first[h],
                               growth(score_mod, span, place.step * span, h));
            }
            if (fuse && (first[0] | first[1])) update_max_fused(f, span, place.step, r, s, e.factor, first);
        }
        begin(&e, fuse, score_mod, place.step * span, s, w.p[QUEUE], r);
        if (fuse_keeps(kind)) prefetch(&e, place, span, end);
        const int64_t part = j % parts, n = j - w.done[part];
        w.done[part] = j;
        /* Values of two strips: their sums are stored late, too; in several terms that lost. Where steps are passed
         * over, two runs of steps may have one strip's sums, which are stored at once. */
        const int one = follows(w.places[QUEUE - 1], w.places[QUEUE - parts], parts - 1);
        if (flat && next.f < end && n == parts && (one || (terms == 1 && !fuse_keeps(kind)))) {
            if (depth == 64 && terms == 1) {
                step_64(next.f, next.step, other, w.places[QUEUE - 1].f, w.places[QUEUE - 1].step, w.p[QUEUE - 1], &e);
            } else {
                /* where nothing is held, the place of the scores that are multiplied takes what tiles have */
                keys(1, 1, next.f, depth, next.step, other, held ? held : other, &e);
                float *const scores = other + (span - 32) * LANES_ALL;
                if (terms > 1 || one) {
                    held = values(1, 1, w.places[QUEUE - 1].f, width, parts, part, w.places[QUEUE - parts].step, parts,
                                  (const float *const *)w.p + QUEUE - parts, scores, &e);
                } else {
                    held = visit(1, width, part, n, &w, scores, &e);
                }
            }
        } else {
            let_go(&held);
            if (next.f < end) keys(0, 0, next.f, depth, next.step, other, NULL, &e);
            visit(0, width, part, n, &w, NULL, &e);
        }
        finish_step(&e);
        if (beyond(fuse, &e)) {
            begin(&e, fuse, score_mod, place.step * span, s, w.p[QUEUE], r);
            finish_exactly(&e);
        }
    made:;
        const __mmask16 over[2] = {passed(e.sum[0]), passed(e.sum[1])};
        if (over[0] | over[1]) {
            const __mmask16 again[2] = {over[0] & (__mmask16)~far_lanes(&r[0], r[0].m, e.factor),
                                        over[1] & (__mmask16)~far_lanes(&r[1], r[1].m, e.factor)};
            settled = 0;
            for (int h = 0; h < 2; h++) {
                if (again[h] && !fuse)
                    update_max(&r[h], s + h * 16, span, e.factor, again[h],
                               growth(score_mod, span, place.step * span, h));
            }
            if (fuse && (again[0] | again[1])) update_max_fused(f, span, place.step, r, s, e.factor, again);
            begin(&e, fuse, score_mod, place.step * span, s, w.p[QUEUE], r);
            finish_exactly(&e);
        }
        for (int h = 0; h < 2; h++) l[h] = v32_fma(l[h], r[h].rescale, e.sum[h]);
        if (rescales(r)) { /* what was made before must be among the sums by then */
            let_go(&held);
            visit_all(terms, width, j, &w);
            rescale_sums(f->o, width, r[0].rescale, r[1].rescale);
        }
        if (next.f != f)
            for (int h = 0; h < 2; h++) v32_store(f->m + h * 16, r[h].m), v32_store(f->l + h * 16, l[h]);
        float *oldest = w.p[QUEUE - parts], *mined = s;
        UNROLL for (int64_t i = QUEUE - parts; i < QUEUE; i++) w.p[i] = w.p[i + 1], w.places[i] = w.places[i + 1];
        w.p[QUEUE] = oldest;
        s = other, other = mined;
        place = next;
        if (next.f < end) next = next_of(kind, next, span, end);
        if (place.f == end) {
            let_go(&held);
            visit_all(terms, width, j + 1, &w);
        }
    }
}

/* Common extents as constants. */
#define KIND(name, flat, fuse, depth, width, terms, bf16_accuracy, span, parts)                                        \
    static void name(const struct attn_fwd_strip *f, int64_t n) {                                                      \
        strips(f, n, flat, fuse, depth, width, terms, bf16_accuracy, span, parts);                                     \
    }
enum { SPAN = ATTN_FWD_STEP, HALF = SPAN / 2 }; /* as attn_fwd_span says */
enum { EXTENTS_ANY, EXTENTS_64, EXTENTS_128, EXTENTS };
/* Strips of bf16 whose products are not scores: a kind for each way from one to the other. */
#define KIND_OR_ROUGH(name, flat, fuse, depth, width, span, parts)                                                     \
    KIND(name, flat, fuse, depth, width, 1, 0, span, parts)                                                            \
    KIND(name##_rough, flat, fuse, depth, width, 1, 1, span, parts)
#define KINDS_OF(fuse)                                                                                                 \
    KIND_OR_ROUGH(strips_64_##fuse, 1, FUSE_##fuse, 64, 64, SPAN, 1)                                                   \
    KIND_OR_ROUGH(strips_128_##fuse, 1, FUSE_##fuse, 128, 128, HALF, 4)
#define ROW_OF(fuse)                                                                                                   \
    [FUSE_##fuse] = {{strips_64_##fuse, strips_128_##fuse}, {strips_64_##fuse##_rough, strips_128_##fuse##_rough}}
typedef void (*attn_fwd_strips)(const struct attn_fwd_strip *f, int64_t n);
void attn_ukr_amx_fwd_score_mod(const struct attn_fwd_strip *f, int64_t n, int extents);
void attn_ukr_amx_fwd_bool_mask(const struct attn_fwd_strip *f, int64_t n, int kind, int extents);
#endif
