/* SPDX-License-Identifier: MIT
 * Main loop of the dense forward on AMX. The steps of a list of strips run as one software pipeline: during the
 * exponentials of step j the tile unit computes Q K^T of step j + 1 and P V of earlier steps (picture in fwd.c).
 *
 * strips() is the loop, full_steps() its fast path without masks and without changes of the running max. Both are
 * inlined once for each kind of score (score_mod_fused.h), extents and bf16 parts of an operand, by KIND below. The
 * callers are the dispatchers fwd.c, fwd_score_mod.c and fwd_bool_mask.c. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_FWD_MAINLOOP_H
#define ATTN_CPU_AMX_DENSE_FWD_FWD_MAINLOOP_H
#include "cpu/amx/dense_fwd/bool_mask.h"
#include "cpu/amx/dense_fwd/step_scores.h"
#include "cpu/amx/dense_fwd/tile_cursor.h"
#include "cpu/amx/dense_fwd/tile_products.h"

/* Whether all queries see all keys of a step. */
static int is_unmasked(const struct attn_fwd_strip *f, int64_t span, int64_t step) {
    const __m512i begin = _mm512_set1_epi32((int32_t)(step * span)),
                  end = _mm512_set1_epi32((int32_t)((step + 1) * span));
    __mmask16 cut = 0;
    for (int64_t h = 0; h < LANES_ALL; h += 16)
        cut |= _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(f->seen + h), begin) |
               _mm512_cmplt_epi32_mask(_mm512_loadu_si512(f->seen + LANES_ALL + h), end);
    return !cut;
}

/* Boolean masks: a bit for each query that sees some key of the step. */
INLINE uint32_t keepers(struct place place, int64_t span) {
    const uint32_t *any = place.f->score->bits + (place.f->n + 63) / 64 * 64 + place.step * span / 32;
    return span == 32 ? any[0] : any[0] | any[1];
}
/* The next step that has to be computed: steps of which no query keeps a key are skipped. A strip's first step is never
 * skipped, since its sums begin there. On entering a strip its mask is packed into bits. */
INLINE struct place bool_mask_step_after(struct place place, int64_t span, const struct attn_fwd_strip *end) {
    do place = step_after(place, span);
    while (place.step && !keepers(place, span));
    if (!place.step && place.f < end) pack_bool_mask(place.f->score, place.f->n);
    return place;
}
INLINE struct place next_of(int kind, struct place place, int64_t span, const struct attn_fwd_strip *end) {
    return fuse_bool_mask(kind) ? bool_mask_step_after(place, span, end) : step_after(place, span);
}

/* Probabilities of the last steps, whose P V is still to be added. O is cut into slices of its columns. Step j adds
 * P V of the last o_slices steps to slice j % o_slices, so that each slice is loaded and stored once in o_slices
 * steps. */
struct queue {
    int64_t span, o_slices;         /* keys of a step; slices of O */
    float *p[QUEUE + 1];            /* oldest first; the last is that of the current step, being written */
    struct place places[QUEUE + 1]; /* the step of each */
    int64_t pv_done[QUEUE + 1];     /* by slice of O: it has P V of the steps 0 .. pv_done - 1 of all strips */
};
/* Adds P V of the n steps before the current one to slice o_slice of O. Where they belong to several strips, each run
 * of consecutive steps is added to its strip's O. pending: NULL, or where the sums go that earlier products left in the
 * tile registers. hold: leave the last sums in the tile registers. Returns where those belong. */
INLINE float *add_pv(int hold, int64_t width, int64_t o_slice, int64_t n, const struct queue *w, float *pending,
                     struct exps *e) {
    const float *const *p = (const float *const *)w->p;
    for (int64_t i = QUEUE - n, run_length; i < QUEUE; i += run_length) {
        for (run_length = 1; i + run_length < QUEUE && follows(w->places[i + run_length], w->places[i], run_length);)
            run_length++;
        pending = values(0, hold, w->places[i].f, width, w->o_slices, o_slice, w->places[i].step, run_length, p + i,
                         pending, e);
    }
    return pending;
}
/* The same with no exponentials in between. */
static __attribute__((noinline)) void add_pv_alone(int n_bf16, int64_t width, int64_t o_slice, int64_t n,
                                                   struct queue w) {
    struct exps none = {.n_bf16 = n_bf16, .span = w.span, .done = w.span / 2};
    add_pv(0, width, o_slice, n, &w, NULL, &none);
}
/* Adds what each slice of O lacks of the steps before `to`. */
INLINE void drain_pv(int n_bf16, int64_t width, int64_t to, struct queue *w) {
    for (int64_t q = 0; q < w->o_slices; q++) {
        add_pv_alone(n_bf16, width, q, to - w->pv_done[q], *w);
        w->pv_done[q] = to;
    }
}
/* Starts the exponentials of a step: s holds its scores (with `fuse`: its products), p receives its probabilities, and
 * finish_step ends them. fuse is e->fused.kind as a constant: clang would see it too late in e, which then stays in
 * memory for calls never made. */
INLINE void begin(struct exps *e, int fuse, const struct attn_fwd_score_mod *f, int64_t key, const float *s, float *p,
                  const struct running_max *r) {
    const v32 offset[2] = {r[0].offset, r[1].offset};
    for (int h = 0; fuse_alibi(fuse) && h < 2; h++) {
        const v32 in = e->degree == ATTN_FWD_TABLE ? table_offset(offset[h], 1) : offset[h];
        begin_alibi(&e->fused, f, key, h, in, far_of(&r[h], e->factor));
    }
    for (int h = 0; fuse == FUSE_BOOL && h < 2; h++) begin_bool_mask(&e->fused, f, h, far_of(&r[h], e->factor));
    if (fuse_bool_mask(fuse)) e->visible = (const uint16_t *)(const void *)(f->bits + key);
    begin_step(e, s, p, offset);
}
/* Boolean masks are packed into bits a strip at a time (bool_mask.h). So each step prefetches the next strip's cells of
 * the same keys, a line of one row with every two keys. The last strip prefetches its own cells, which are cached. */
INLINE void prefetch(struct exps *e, struct place place, int64_t span, const struct attn_fwd_strip *end) {
    const struct attn_fwd_score_mod *score_mod = place.f[place.f + 1 < end].score;
    e->prefetched = score_mod->cell + place.step * span / 2 % LANES_ALL;
    e->prefetch_from = place.step * span / 64 * 64 * score_mod->mask_bytes;
}
/* Some score of the step lies outside the range of the table or of the softcap's polynomial: finish_exactly must
 * compute its exponentials again. */
INLINE int beyond(int fuse, const struct exps *e) {
    return (fuse && is_beyond(&e->fused)) || (e->degree == ATTN_FWD_TABLE && is_beyond_table(&e->table));
}
/* State that full_steps takes over from strips and hands back. */
struct pipeline {
    struct queue *w;
    struct place place;
    int64_t j;               /* number of this step, counted over all strips */
    float *s, *other, *held; /* scores of this step, of the next; where sums in tile registers belong, or NULL */
    v32 l[2];
};
/* The fast path: steps of one strip up to step `to`, in which all queries see all keys and have a running max, and the
 * slice of O that is due lacks exactly the last o_slices steps. Only products and exponentials remain to be done.
 * With a boolean mask the path also ends before a step that is skipped. Returns 1 if the last step's sum of
 * probabilities passed MOST: then its sum is not in l, and strips() must move the running max. */
INLINE int full_steps(int kind, int64_t depth, int64_t width, int64_t span, int64_t o_slices, int64_t to,
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
    const int unsaturated = e->table.unsaturated;
    float *p[QUEUE + 1], *s = c->s, *other = c->other, *held = c->held ? c->held : c->other;
    int64_t step = c->place.step, o_slice = c->j % o_slices;
    int overflowed = 0;
    if (kind == FUSE_NONE) e->table.unsaturated = 1;
    UNROLL for (int i = 0; i <= QUEUE; i++) p[i] = c->w->p[i];
    for (;;) {
        begin(e, kind, f->score, step * span, s, p[QUEUE], r);
        if (fuse_bool_mask(kind)) prefetch(e, (struct place){f, step}, span, end);
        if (depth == 64 && e->n_bf16 == 1) {
            step_64(&operands, step + 1, other, &operands, step - 1, p[QUEUE - 1], e);
        } else {
            keys(1, 1, &operands, depth, step + 1, other, held, e);
            held = values(1, 1, &operands, width, o_slices, o_slice, step - o_slices, o_slices,
                          (const float *const *)p + QUEUE - o_slices, other + (span - 32) * LANES_ALL, e);
        }
        finish_step(e);
        if (beyond(kind, e)) {
            begin(e, kind, f->score, step * span, s, p[QUEUE], r);
            finish_exactly(e);
        }
        overflowed =
            _mm512_cmp_ps_mask(e->sum[0], most, _CMP_NLT_UQ) | _mm512_cmp_ps_mask(e->sum[1], most, _CMP_NLT_UQ);
        if (overflowed) break;
        for (int h = 0; h < 2; h++) c->l[h] += e->sum[h];
        float *const oldest = p[QUEUE - o_slices], *const mine = s;
        UNROLL for (int64_t i = QUEUE - o_slices; i < QUEUE; i++) p[i] = p[i + 1];
        p[QUEUE] = oldest;
        s = other, other = mine;
        o_slice = o_slice + 1 == o_slices ? 0 : o_slice + 1;
        if (++step == to || (fuse_bool_mask(kind) && !keepers((struct place){f, step + 1}, span))) break;
    }
    e->table.unsaturated = unsaturated;
    c->j += step - c->place.step;
    c->place.step = step;
    c->s = s, c->other = other;
    if (depth > 64 || e->n_bf16 > 1) c->held = held;
    UNROLL for (int64_t i = QUEUE - o_slices; i <= QUEUE; i++) {
        c->w->p[i] = p[i];
        c->w->places[i] = (struct place){f, step - QUEUE + i};
    }
    for (int64_t last = overflowed ? c->j : c->j - 1, i = 0; i < o_slices; i++)
        c->w->pv_done[(last - i) % o_slices] = last - i;
    return overflowed != 0;
}
/* Stores the sums that the tile registers hold, if any. */
INLINE void store_held(float **held) {
    if (*held) store_sums(*held);
    *held = NULL;
}
/* With ALiBi that grows along the keys, a new strip's queries take their running max from the step where their ALiBi
 * is largest (alibi.h), so that it need not move in each step before. s: scratch. */
static __attribute__((noinline)) void look_ahead(const struct attn_fwd_strip *f, int64_t depth, int n_bf16, int of_keys,
                                                 int64_t span, struct running_max *r, float *s) {
    struct exps none = {.n_bf16 = n_bf16, .of_keys = of_keys, .span = span, .done = span / 2};
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
/* Runs `count` strips as one pipeline. Iteration j, of a step of any strip:
 *   1. full steps: full_steps runs as many as it can, and leaves at a step that needs more care
 *   2. first step of a strip: m and l are loaded, the range of full steps is found
 *   3. scores: overrides, score_mod, hidden keys, running max of queries that have none
 *   4. exponentials, interleaved with Q K^T of the next step and P V of the steps before
 *   5. a sum of probabilities passed MOST: running max moved, exponentials computed again, O and l rescaled
 *   6. buffers rotate: P of this step becomes the newest of the queue, s and `other` change places
 * flat: the extents are constants. The running max is a reference that moves when a sum passes MOST, not with each
 * larger score. */
INLINE void strips(const struct attn_fwd_strip *f, int64_t count, int flat, int kind, int64_t depth, int64_t width,
                   int n_bf16, int bf16_accuracy, int64_t span, int64_t o_slices) {
    const int fuse = fuse_makes(kind) ? kind : FUSE_NONE;
    const int scored = kind != FUSE_NONE || n_bf16 > 1; /* 0: s holds scores, of which a factor is all that lacks */
    const int64_t weights = span / 2 * LANES_ALL * n_bf16;
    const struct attn_fwd_strip *const end = f + count;
    struct running_max r[2];
    v32 l[2] = {v32_set(0), v32_set(0)};
    struct exps e;
    struct queue w = {.span = span, .o_slices = o_slices};
    struct place place = {f, 0}, next;
    struct unmasked unmasked = {0, 0};
    int settled = 0;                                                 /* all queries have a running max */
    float *s = f->s, *other = f->s + span * LANES_ALL, *held = NULL; /* where sums go that tiles still hold */
    const v32 hidden = fuse_caps(fuse) ? _mm512_castsi512_ps(_mm512_set1_epi32(CAP_HIDDEN)) : v32_set(-INFINITY);
    if (fuse_bool_mask(kind)) pack_bool_mask(f->score, f->n);
    next = next_of(kind, place, span, end);
    const v32 none = v32_set(-INFINITY);
    set_up_exps(&e, f->factor, n_bf16, bf16_accuracy, span);
    const int table = e.degree == ATTN_FWD_TABLE;
    set_up_fused(&e.fused, fuse, table, f->factor * attn_fwd_parts(e.degree), f->score);
    e.origin_last = table && scored && (fuse ? fuse_alibi(fuse) : f->score && f->score->alibi);
    /* Many arguments outside the table come only from ALiBi and from masks that are applied before the exponentials. A
     * softcap's stay inside. */
    e.table.unsaturated = table && fuse && !fuse_alibi(fuse), e.table.finds_beyond = !fuse_caps(fuse);
    e.prefetches = fuse_bool_mask(kind);
    deal_times(&e, 2 * (depth / 32 * (span / 16) * e.of_keys + span / 32 * (width / 16) * of_values(n_bf16)));
    for (int i = 0; i <= o_slices; i++) w.p[QUEUE - i] = f->p + i * weights;
    for (int i = 0; i <= QUEUE; i++) w.places[i] = place;
    keys(0, 0, place.f, depth, place.step, s, NULL, &e);
    for (int64_t j = 0; place.f < end; j++) {
        f = place.f;
        w.places[QUEUE] = place;
        const struct attn_fwd_score_mod *const score_mod = scored ? f->score : NULL;
        for (int h = 0; h < 2; h++) r[h].rescale = v32_set(1);
        if (flat && kind == fuse && n_bf16 == 1 && settled && place.step > o_slices && place.step >= unmasked.from &&
            place.step < unmasked.to && j - w.pv_done[j % o_slices] == o_slices &&
            (!fuse_bool_mask(kind) ||
             (follows(next, place, 1) && follows(place, w.places[QUEUE - o_slices], o_slices)))) {
            struct pipeline c = {
                .w = &w, .place = place, .j = j, .s = s, .other = other, .held = held, .l = {l[0], l[1]}};
            const int overflowed = full_steps(kind, depth, width, span, o_slices, unmasked.to, end, r, &c, &e);
            place = c.place, next = next_of(kind, place, span, end), j = c.j, s = c.s, other = c.other, held = c.held;
            for (int h = 0; h < 2; h++) l[h] = c.l[h];
            if (overflowed) goto have_exps;
        }
        if (place.step == 0) {
            for (int h = 0; h < 2; h++) {
                r[h].m = v32_load(f->m + h * 16), l[h] = v32_load(f->l + h * 16);
                set_up_running_max(&r[h], e.origin_last ? ATTN_FWD_TABLE_OF_SUMS : e.degree, 0);
                r[h].offset = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r[h].m, none, _CMP_NEQ_UQ),
                                                  in_parts(&r[h], r[h].m * e.factor)) +
                              v32_set(r[h].below);
            }
            unmasked = unmasked_steps(f, span);
            settled = 0;
            if (f->score_override || f->page_missing || f->visible) unmasked.to = 0;
            if (unmasked.to > f->n / span - 1) unmasked.to = f->n / span - 1;
            if (score_mod && score_mod->alibi) {
                store_held(&held);
                look_ahead(f, depth, n_bf16, e.of_keys, span, r, other);
            }
        }
        if (f->score_override) put_overrides(f, span, place.step, s);
        if (score_mod && !fuse) {
            score(score_mod, span, place.step * span, s);
            if (score_mod->mask && score_mod->mask != ATTN_UKR_MASK_BIAS)
                prefetch_masks(score_mod, span, (place.step + 1) * span);
        }
        if (!settled || place.step < unmasked.from || place.step >= unmasked.to) {
            if (!is_unmasked(f, span, place.step)) hide(f, span, place.step, s, hidden);
            if (f->page_missing) hide_missing_pages(f, span, place.step, s, hidden);
            if (f->visible) record_visible(f, span, place.step, s, hidden);
            if (f->visible && fuse_bool_mask(kind)) apply_bool_mask(f, span, place.step);
            __mmask16 first[2] = {without(&r[0], e.factor), without(&r[1], e.factor)};
            settled = !(first[0] | first[1]);
            if (fuse_bool_mask(kind)) {
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
        if (fuse_bool_mask(kind)) prefetch(&e, place, span, end);
        const int64_t o_slice = j % o_slices, n = j - w.pv_done[o_slice];
        w.pv_done[o_slice] = j;
        /* Where P V belongs to two strips, sums stay in the tile registers as well; for bf16x2 and bf16x3 that was
         * slower. Where steps are skipped, two runs of steps may belong to the same sums, which are stored at once. */
        const int one = follows(w.places[QUEUE - 1], w.places[QUEUE - o_slices], o_slices - 1);
        if (flat && next.f < end && n == o_slices && (one || (n_bf16 == 1 && !fuse_bool_mask(kind)))) {
            if (depth == 64 && n_bf16 == 1) {
                step_64(next.f, next.step, other, w.places[QUEUE - 1].f, w.places[QUEUE - 1].step, w.p[QUEUE - 1], &e);
            } else {
                /* nothing held: the store goes to scores that Q K^T overwrites */
                keys(1, 1, next.f, depth, next.step, other, held ? held : other, &e);
                float *const scores = other + (span - 32) * LANES_ALL;
                if (n_bf16 > 1 || one) {
                    held =
                        values(1, 1, w.places[QUEUE - 1].f, width, o_slices, o_slice, w.places[QUEUE - o_slices].step,
                               o_slices, (const float *const *)w.p + QUEUE - o_slices, scores, &e);
                } else {
                    held = add_pv(1, width, o_slice, n, &w, scores, &e);
                }
            }
        } else {
            store_held(&held);
            if (next.f < end) keys(0, 0, next.f, depth, next.step, other, NULL, &e);
            add_pv(0, width, o_slice, n, &w, NULL, &e);
        }
        finish_step(&e);
        if (beyond(fuse, &e)) {
            begin(&e, fuse, score_mod, place.step * span, s, w.p[QUEUE], r);
            finish_exactly(&e);
        }
    have_exps:;
        const __mmask16 overflow[2] = {passed(e.sum[0]), passed(e.sum[1])};
        if (overflow[0] | overflow[1]) {
            const __mmask16 again[2] = {overflow[0] & (__mmask16)~far_lanes(&r[0], r[0].m, e.factor),
                                        overflow[1] & (__mmask16)~far_lanes(&r[1], r[1].m, e.factor)};
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
        if (rescales(r)) { /* P of earlier steps is relative to the old running max: its P V comes first */
            store_held(&held);
            drain_pv(n_bf16, width, j, &w);
            rescale_sums(f->o, width, r[0].rescale, r[1].rescale);
        }
        if (next.f != f)
            for (int h = 0; h < 2; h++) v32_store(f->m + h * 16, r[h].m), v32_store(f->l + h * 16, l[h]);
        float *oldest = w.p[QUEUE - o_slices], *mined = s;
        UNROLL for (int64_t i = QUEUE - o_slices; i < QUEUE; i++) w.p[i] = w.p[i + 1], w.places[i] = w.places[i + 1];
        w.p[QUEUE] = oldest;
        s = other, other = mined;
        place = next;
        if (next.f < end) next = next_of(kind, next, span, end);
        if (place.f == end) {
            store_held(&held);
            drain_pv(n_bf16, width, j + 1, &w);
        }
    }
}

/* An instance of the loop with constants where the extents are common ones. */
#define KIND(name, flat, fuse, depth, width, n_bf16, bf16_accuracy, span, o_slices)                                    \
    static void name(const struct attn_fwd_strip *f, int64_t n) {                                                      \
        strips(f, n, flat, fuse, depth, width, n_bf16, bf16_accuracy, span, o_slices);                                 \
    }
enum { SPAN = ATTN_FWD_STEP, HALF = SPAN / 2 }; /* as attn_fwd_span says */
enum { EXTENTS_ANY, EXTENTS_64, EXTENTS_128, EXTENTS };
/* Instances for bf16 with a score_mod, one for each kind of it, exact and with bf16_accuracy. */
#define KIND_BOTH(name, flat, fuse, depth, width, span, o_slices)                                                      \
    KIND(name, flat, fuse, depth, width, 1, 0, span, o_slices)                                                         \
    KIND(name##_bf16_accuracy, flat, fuse, depth, width, 1, 1, span, o_slices)
#define KINDS_OF(fuse)                                                                                                 \
    KIND_BOTH(strips_64_##fuse, 1, FUSE_##fuse, 64, 64, SPAN, 1)                                                       \
    KIND_BOTH(strips_128_##fuse, 1, FUSE_##fuse, 128, 128, HALF, 4)
#define ROW_OF(fuse)                                                                                                   \
    [FUSE_##fuse] = {{strips_64_##fuse, strips_128_##fuse},                                                            \
                     {strips_64_##fuse##_bf16_accuracy, strips_128_##fuse##_bf16_accuracy}}
typedef void (*attn_fwd_strips)(const struct attn_fwd_strip *f, int64_t n);
void attn_ukr_amx_fwd_score_mod(const struct attn_fwd_strip *f, int64_t n, int extents);
void attn_ukr_amx_fwd_bool_mask(const struct attn_fwd_strip *f, int64_t n, int kind, int extents);
#endif
