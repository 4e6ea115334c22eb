/* SPDX-License-Identifier: MIT
 * The loop over steps of fwd_rowmajor.c: its products, and what comes when. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_ROWMAJOR_MAINLOOP_H
#define ATTN_CPU_AMX_DENSE_FWD_ROWMAJOR_MAINLOOP_H
#include "cpu/amx/dense_fwd/rowmajor_scores.h"
#include "cpu/amx/dense_fwd/tile_cursor.h"
#include "cpu/amx/tile.h"

/* ------------------------------------------------------------------ products -------------------------- */

/* 32 x 32 sums over n tiles: a[i], 16 rows, and 16 more a_more after them; b, 16 columns, and 16 more b_more after
 * them, b_step to the next tile. from: NULL, or what products are added to. pending: NULL, or where the sums go that
 * the tiles still hold. This one's stay there. */
struct block {
    const float *const *a;
    const float *b, *from;
    float *pending;
    int64_t n, a_more, b_more, b_step;
};
#define SET_UP(tile)                                                                                                   \
    if (t == 0) {                                                                                                      \
        if (o->pending) tile_store(tile, o->pending + (tile)*TILE, 64);                                                \
        if (o->from) {                                                                                                 \
            tile_load(tile, o->from + (tile)*TILE, 64);                                                                \
        } else {                                                                                                       \
            tile_zero(tile);                                                                                           \
        }                                                                                                              \
    }
/* Tiles of B are loaded as soon as theirs are free. */
INLINE void four_products(const struct block *o, int64_t t, struct exps *e) {
    const float *const a = o->a[t], *const b = o->b + t * o->b_step;
    const int upcoming = t + 1 < o->n;
    tile_load(4, a, 64);
    if (t == 0) tile_load_once(6, b, 64);
    SET_UP(0)
    tile_dpbf16(0, 4, 6);
    deal(e);
    tile_load(5, a + o->a_more, 64);
    SET_UP(2)
    tile_dpbf16(2, 5, 6);
    deal(e);
    if (upcoming) tile_load_once(6, b + o->b_step, 64);
    if (t == 0) tile_load_once(7, b + o->b_more, 64);
    SET_UP(1)
    tile_dpbf16(1, 4, 7);
    deal(e);
    SET_UP(3)
    tile_dpbf16(3, 5, 7);
    deal(e);
    if (upcoming) tile_load_once(7, b + o->b_step + o->b_more, 64);
}
/* flat: n is a constant. */
INLINE void block(int flat, const struct block *o, struct exps *e) {
    if (flat) {
        UNROLL_SEEN for (int64_t t = 0; t < o->n; t++) four_products(o, t, e);
    } else {
        for (int64_t t = 0; t < o->n; t++) four_products(o, t, e);
    }
}
static inline void store_square(float *to) {
    tile_store(0, to, 64);
    tile_store(1, to + TILE, 64);
    tile_store(2, to + 2 * TILE, 64);
    tile_store(3, to + 3 * TILE, 64);
}
/* Stores the sums that the tile registers hold, if any. */
static inline void store_held(float **held) {
    if (*held) store_square(*held);
    *held = NULL;
}
/* S = Q K^T of a step; the sums stay in the tile registers. O has as many slices as a row of Q has tiles. */
INLINE void keys(int64_t o_slices, const float *q, const float *k, int64_t step, float *pending, struct exps *e) {
    const float *const a[MOST_SLICES] = {q, q + TILE, q + 2 * TILE, q + 3 * TILE};
    const struct block products = {.a = a,
                                   .b = k + step * (2 * o_slices * TILE),
                                   .pending = pending,
                                   .n = o_slices,
                                   .a_more = o_slices * TILE,
                                   .b_more = o_slices * TILE,
                                   .b_step = TILE};
    block(1, &products, e);
}
/* O += P V of slice o_slice: steps from .. from + n - 1, with probabilities p[0 .. n-1]. The sums stay in the tile
 * registers. Returns where they belong. */
INLINE float *values(int flat, int64_t o_slices, const float *v, float *o, int fresh, int64_t o_slice, int64_t from,
                     int64_t n, const float *const *p, float *pending, struct exps *e) {
    float *const to = o + o_slice * SQUARE;
    const struct block products = {.a = p,
                                   .b = v + from * (2 * o_slices * TILE) + o_slice * (2 * TILE),
                                   .from = from || !fresh ? to : NULL,
                                   .pending = pending,
                                   .n = n,
                                   .a_more = TILE,
                                   .b_more = TILE,
                                   .b_step = 2 * o_slices * TILE};
    block(flat, &products, e);
    return to;
}

/* ------------------------------------------------------------------ strips ---------------------------- */

/* State of the pipeline, see fwd_mainloop.h. */
struct pipeline {
    struct place place;
    int64_t j;               /* steps, of all strips, before this one */
    float *s, *other, *held; /* scores of this step, of the next; where sums in tile registers belong, or NULL */
    float *sum, *sum_to;     /* sums of probabilities before this step, and with it */
    /* Probabilities of the last o_slices steps and of this one, and the step of each. */
    float *p[MOST_SLICES + 1];
    struct place places[MOST_SLICES + 1];
    int64_t pv_done[MOST_SLICES]; /* by slice of O: it has P V of the steps 0 .. pv_done - 1 of all strips */
    const char *const *ahead;     /* mask rows of the next strip; the last strip's own */
};
/* Prefetches one line of the next strip's mask in each step, at equal distances: its pages are in the TLB before 32
 * rows miss it at a time. Prefetching every line costs as much as it saves. */
INLINE void look_at_pages(int mask, const char *const *ahead, int64_t step, int64_t steps) {
    const int64_t line = step * ROWS;
    if (mask) _mm_prefetch(ahead[line / steps] + line % steps * (SPAN * mask_bytes(mask)), _MM_HINT_T1);
}
INLINE void rotate_queue(int64_t o_slices, struct pipeline *c) {
    float *const oldest = c->p[0], *const mine = c->s, *const before = c->sum;
    UNROLL for (int i = 0; i < o_slices; i++) c->p[i] = c->p[i + 1];
    c->p[o_slices] = oldest;
    c->s = c->other, c->other = mine;
    c->sum = c->sum_to, c->sum_to = before;
}
/* Adds P V of the n steps before the current one, of one strip or several, to slice o_slice of O. Returns where the
 * sums belong that stay in the tile registers. */
INLINE float *add_pv(int64_t o_slices, int64_t o_slice, int64_t n, const struct pipeline *c, float *pending,
                     struct exps *e) {
    for (int64_t i = o_slices - n, run_length; i < o_slices; i += run_length) {
        for (run_length = 1; i + run_length < o_slices && follows(c->places[i + run_length], c->places[i], run_length);)
            run_length++;
        const struct attn_fwd_strip *const f = c->places[i].f;
        pending = values(0, o_slices, f->v, f->o, f->fresh, o_slice, c->places[i].step, run_length,
                         (const float *const *)c->p + i, pending, e);
    }
    return pending;
}
/* Adds what each slice of O lacks of the steps before `to`; no exponentials overlap it. */
static __attribute__((noinline)) void drain_pv(int64_t o_slices, int64_t to, struct pipeline *c) {
    struct exps none = {.done = UNITS, .products = 1};
    store_held(&c->held);
    for (int64_t o_slice = 0; o_slice < o_slices; o_slice++) {
        c->held = add_pv(o_slices, o_slice, to - c->pv_done[o_slice], c, NULL, &none);
        c->pv_done[o_slice] = to;
        store_held(&c->held);
    }
}
/* The fast path: steps of one strip up to step `to`, in which all queries see all keys and have a running max, and the
 * slice of O that is due lacks exactly the last o_slices steps. Returns 1 if the last step has a probability that is
 * too large. */
INLINE int full_steps(int64_t o_slices, int mask, int mod, int degree, int64_t to, const float *offset,
                      struct pipeline *course) {
    const struct attn_fwd_strip *const f = course->place.f;
    const float *const q = f->q, *const k = (const float *)(const void *)f->k, *const v = f->v;
    float *const o = f->o;
    struct pipeline c = *course;
    float *held = c.held ? c.held : c.other; /* nothing held: the store goes to scores that Q K^T overwrites */
    int64_t step = c.place.step, o_slice = c.j % o_slices;
    const int64_t steps = f->n / SPAN;
    int overflowed = 0;
    struct exps e;
    set_up(&e, f, mask, mod, degree, o_slices);
    e.cell = f->score->cell;
    for (;;) {
        begin_step(&e, step, c.s, c.p[o_slices], offset, c.sum, c.sum_to);
        e.mask_offset = step * SPAN * mask_bytes(mask);
        look_at_pages(mask, c.ahead, step, steps);
        keys(o_slices, q, k, step + 1, held, &e);
        held = values(1, o_slices, v, o, 0, o_slice, step - o_slices, o_slices, (const float *const *)c.p, c.other, &e);
        finish_step(&e);
        overflowed = any_too_large(&e);
        if (overflowed) break;
        rotate_queue(o_slices, &c);
        o_slice = o_slice + 1 == o_slices ? 0 : o_slice + 1;
        if (++step == to) break;
    }
    c.j += step - c.place.step;
    c.place.step = step;
    c.held = held;
    UNROLL for (int i = 0; i <= o_slices; i++) c.places[i] = (struct place){f, step - o_slices + i};
    for (int64_t last = overflowed ? c.j : c.j - 1, i = 0; i < o_slices; i++)
        c.pv_done[(last - i) % o_slices] = last - i;
    *course = c;
    return overflowed;
}
typedef int open_loop(int64_t to, const float *offset, struct pipeline *course);

static void begin_strip(const struct attn_fwd_strip *f, struct offsets *t, v32 factor, float *sum) {
    const v32 none = v32_set(-INFINITY);
    for (int h = 0; h < 2; h++) {
        struct running_max *const r = &t->r[h];
        r->m = v32_load(f->m + h * LANES);
        r->offset = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r->m, none, _CMP_NEQ_UQ), r->m * factor) + v32_set(r->below);
        put_offset(f, t, h, factor);
    }
    for (int64_t r = 0; r < ROWS; r++) v32_store(sum + r * LANES, v32_set(0));
}
static void end_strip(const struct attn_fwd_strip *f, const struct offsets *t, const float *sum) {
    for (int64_t h = 0; h < 2; h++) {
        v32_store(f->m + h * LANES, t->r[h].m);
        v32_store(f->l + h * LANES, v32_load(f->l + h * LANES) + added(sum, h * LANES));
    }
}
/* Running max of a new strip's queries whose ALiBi is largest in a later step (alibi.h). */
static __attribute__((noinline)) void look_ahead(int64_t o_slices, const struct attn_fwd_strip *f, struct offsets *t,
                                                 struct cells *cells, float *s, float *sum, v32 factor) {
    struct exps none = {.done = UNITS, .products = 1};
    int32_t key[ROWS];
    uint32_t left = far_ahead(f, SPAN, key);
    while (left) {
        int64_t step;
        const uint32_t queries = next_ahead(key, SPAN, &left, &step);
        keys(o_slices, f->q, (const float *)(const void *)f->k, step, NULL, &none);
        store_square(s);
        prepare(f, step, s, cells);
        update_max(f, t, cells, s, sum, factor, queries);
    }
}
/* Runs `count` strips as one pipeline, in the order of steps of strips() in fwd_mainloop.h. */
INLINE void strips(int64_t o_slices, int mod, int degree, open_loop *loop, const struct attn_fwd_strip *f,
                   int64_t count) {
    const struct attn_fwd_strip *const end = f + count;
    float *const scratch = f->s + 2 * SQUARE;
    struct offsets t = {.value = scratch};
    struct pipeline c = {.place = {f, 0}, .s = f->s, .other = f->s + SQUARE, .sum = scratch + SUBTRACTED};
    struct place next = step_after(c.place, SPAN);
    struct unmasked unmasked = {0, 0};
    struct exps e;
    struct cells cells;
    int settled = 0; /* all queries have a running max */
    c.sum_to = c.sum + ROWS * LANES;
    for (int i = 0; i <= o_slices; i++) c.p[i] = f->p + i * (ROWS * LANES), c.places[i] = c.place;
    for (int h = 0; h < 2; h++) set_up_running_max(&t.r[h], degree, ATTN_FWD_ROWMAJOR_AHEAD);
    set_up(&e, f, ATTN_UKR_MASK_F32, mod, degree, o_slices);
    e.cell = cells.row;
    const v32 factor = v32_set(f->factor);
    keys(o_slices, f->q, (const float *)(const void *)f->k, 0, NULL, &e);
    store_square(c.s);
    for (; c.place.f < end; c.j++) {
        int prepared = 0;
        f = c.place.f;
        c.places[o_slices] = c.place;
        for (int h = 0; h < 2; h++) t.r[h].rescale = v32_set(1);
        if (settled && c.place.step > o_slices && c.place.step >= unmasked.from && c.place.step < unmasked.to &&
            c.j - c.pv_done[c.j % o_slices] == o_slices) {
            c.ahead = (f + 1 < end ? f + 1 : f)->score->cell;
            const int overflowed = loop(unmasked.to, t.value, &c);
            next = step_after(c.place, SPAN);
            if (overflowed) goto have_exps;
        }
        if (c.place.step == 0) {
            begin_strip(f, &t, factor, c.sum);
            unmasked = unmasked_steps(f, SPAN);
            if (f->page_missing || f->visible) unmasked.to = 0;
            if (unmasked.to > f->n / SPAN - 1) unmasked.to = f->n / SPAN - 1;
            if (f->score->mask && unmasked.to > f->score->mask_keys / SPAN) unmasked.to = f->score->mask_keys / SPAN;
            if (mod & MOD_ALIBI) {
                store_held(&c.held);
                look_ahead(o_slices, f, &t, &cells, c.other, c.sum, factor);
            }
        }
        prepared = 1;
        prepare(f, c.place.step, c.s, &cells);
        if (f->visible) record_visible(f, c.place.step, &cells, c.s);
        const uint32_t first = without(&t.r[0], factor) | (uint32_t)without(&t.r[1], factor) << LANES;
        settled = !first;
        if (first) update_max(f, &t, &cells, c.s, c.sum, factor, first);
        begin_step(&e, c.place.step, c.s, c.p[o_slices], t.value, c.sum, c.sum_to);
        const int64_t o_slice = c.j % o_slices, n = c.j - c.pv_done[o_slice];
        c.pv_done[o_slice] = c.j;
        if (next.f < end) {
            keys(o_slices, next.f->q, (const float *)(const void *)next.f->k, next.step, c.held ? c.held : c.other, &e);
            c.held = c.other;
        }
        if (n) {
            c.held = add_pv(o_slices, o_slice, n, &c, c.held, &e);
        } else {
            store_held(&c.held);
        }
        finish_step(&e);
    have_exps:;
        uint32_t again = 0;
        if (!prepared || any_too_large(&e)) {
            again = too_large(c.p[o_slices]);
            again &= ~(far_of(&t.r[0], factor) | (uint32_t)far_of(&t.r[1], factor) << LANES);
        }
        if (again) {
            settled = 0;
            if (!prepared) prepare(f, c.place.step, c.s, &cells);
            update_max(f, &t, &cells, c.s, c.sum, factor, again);
            begin_step(&e, c.place.step, c.s, c.p[o_slices], t.value, c.sum, c.sum_to);
            finish_step(&e);
        }
        if (rescales(t.r)) { /* P of earlier steps is relative to the old running max: its P V comes first */
            drain_pv(o_slices, c.j, &c);
            rescale_sums(o_slices, f->o, t.r);
        }
        if (next.f != f) end_strip(f, &t, c.sum_to);
        rotate_queue(o_slices, &c);
        UNROLL for (int i = 0; i < o_slices; i++) c.places[i] = c.places[i + 1];
        c.place = next;
        if (next.f < end) next = step_after(next, SPAN);
        if (c.place.f == end) drain_pv(o_slices, c.j + 1, &c);
    }
}

/* Instances: a fast path for each kind of mask, and the loop that calls it. */
#define LOOP(o_slices, bf16_accuracy, mod, mask)                                                                       \
    static __attribute__((noinline)) int open_##o_slices##_##bf16_accuracy##_##mod##_##mask(                           \
        int64_t to, const float *offset, struct pipeline *course) {                                                    \
        return full_steps(o_slices, ATTN_UKR_MASK_##mask, mod, attn_fwd_degree(1, bf16_accuracy, 1), to, offset,       \
                          course);                                                                                     \
    }
#define STRIPS(o_slices, bf16_accuracy, mod)                                                                           \
    static void strips_##o_slices##_##bf16_accuracy##_##mod(open_loop *loop, const struct attn_fwd_strip *f,           \
                                                            int64_t n) {                                               \
        strips(o_slices, mod, attn_fwd_degree(1, bf16_accuracy, 1), loop, f, n);                                       \
    }
typedef void strips_of(open_loop *loop, const struct attn_fwd_strip *f, int64_t n);
#define IN_ROW(o_slices, bf16_accuracy, mod, mask)                                                                     \
    [ATTN_UKR_MASK_##mask] = open_##o_slices##_##bf16_accuracy##_##mod##_##mask
#endif
