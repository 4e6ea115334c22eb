/* SPDX-License-Identifier: MIT
 * Strips of 32 queries on AMX: attn_ukr_pair.flash. Scores are made transposed, S^T = K Q^T, so that key rows are used
 * as they are in memory and the softmax needs no sum across a register; O^T = V^T P^T.
 *
 *            queries                  tiles (tmm), sums of 16 rows          first-level cache, D 64, bytes
 *     keys  +-------+-------+           4 5 keys or values^T, in turns       S  64 x 32 f32      8 KiB, two of them
 *      16   |   0   |   1   |  set 0    6 7 Q^T or P                         P  32 x 32 pairs    4 KiB, two of them
 *      16   |   2   |   3   |  set 1    0 1 sums, being multiplied           O^T  width x 32 f32, Q^T depth x 32 bf16
 *           +-------+-------+           2 3 sums before them, being stored   36 KiB
 *
 * The tile unit and the vector unit work side by side: between the products of Q with the keys of step j + 1 and of P
 * with the values of step j - 1 the exponentials of step j are dealt out evenly. A store of a tile takes 16 cycles, and
 * waits some 50 for its sums: so two sets of sums take turns. Operands are loaded one product ahead. Keys and values
 * have the hint that they pass through: what else is in the table above stays.
 *
 *     step    j - 1            j                j + 1
 *     tiles   QK(j)   PV(j-2)  QK(j+1) PV(j-1)  QK(j+2) PV(j)
 *     vectors exp (j-1)        exp (j)          exp (j+1)
 *
 * Strips follow each other like steps of one: the last values of a strip are weighed beside the first exponentials of
 * the next. A full step leaves no branch but those on data: all its products are there one by one.
 *
 * D 128 would fill that cache to the brim: there a step has 32 keys, and adds the last four steps' values to a quarter
 * of the sums, which halves the loads and stores of sums besides:
 *
 *     step    j                                 j + 1                             S 4 KiB, two of them; P 2 KiB, five
 *     tiles   QK(j+1)  PV(j-4 .. j-1) part 0    QK(j+2)  PV(j-3 .. j) part 1      with O^T and Q^T: 42 KiB
 *
 * What a query's exponentials are relative to need not be its maximum: it is the largest score of the first step in
 * which it sees a key, for as long as no step's sum of probabilities passes MOST. Then that step's exponentials are
 * taken again, relative to the maximum, and O and l shrink. So no step waits for a maximum.
 *
 * f16 goes in exact halves: a number of 11 bits is a bf16 of 8 bits and one of at most 3, so that Q K^T is four
 * products and exact but for its sums (where lse is not asked for, three: a term is off by 2^-18). P is split in the
 * same way, to 16 bits, and low halves are not multiplied with low ones: 2^-17 of a term.
 *
 * Exponentials are 2^(s * factor - top) with top = m * factor ROUNDED, one multiply-add from the score: sums are
 * relative to that number, by which older ones shrink and which goes into lse, so that its rounding costs nothing. */
#include "cpu/amx_tile.h"
#include "cpu/ukr_flash_exp.h"
#include "cpu/ukr_flash_score.h"

#include <math.h>

#define MOST 65536.0f
enum { TILE = 256 /* elements of 32 bits */, QUEUE = 4 /* steps between two visits of a sum, at most */ };

/* Sums of 16 rows by 32 queries, set 0 or 1. */
INLINE void zero_set(int set) {
    if (set) {
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_zero(0);
        tile_zero(1);
    }
}
INLINE void load_set(int set, const float *c) {
    if (set) {
        tile_load(2, c, LANES_ALL * 4);
        tile_load(3, c + 16, LANES_ALL * 4);
    } else {
        tile_load(0, c, LANES_ALL * 4);
        tile_load(1, c + 16, LANES_ALL * 4);
    }
}
INLINE void store_set(int set, float *c) {
    if (set) {
        tile_store(2, c, LANES_ALL * 4);
        tile_store(3, c + 16, LANES_ALL * 4);
    } else {
        tile_store(0, c, LANES_ALL * 4);
        tile_store(1, c + 16, LANES_ALL * 4);
    }
}
INLINE void multiply_set(int set, int odd, int second) {
    if (odd) {
        if (set && second) tile_dpbf16(3, 5, 7);
        if (set && !second) tile_dpbf16(2, 5, 6);
        if (!set && second) tile_dpbf16(1, 5, 7);
        if (!set && !second) tile_dpbf16(0, 5, 6);
    } else {
        if (set && second) tile_dpbf16(3, 4, 7);
        if (set && !second) tile_dpbf16(2, 4, 6);
        if (!set && second) tile_dpbf16(1, 4, 7);
        if (!set && !second) tile_dpbf16(0, 4, 6);
    }
}
/* What a product's operands and sums are: of what comes next, too. */
struct operands {
    const char *a;
    int64_t lda;
    const float *b, *b_more;
    int64_t ldb;
    const float *c; /* NULL: 0 */
};
INLINE void load_a(int odd, const struct operands *o) {
    if (odd) {
        tile_load_once(5, o->a, o->lda);
    } else {
        tile_load_once(4, o->a, o->lda);
    }
}
INLINE void set_up(int set, const float *c) {
    if (c) {
        load_set(set, c);
    } else {
        zero_set(set);
    }
}
/* Everything that the first product of o needs and that is loaded ahead. */
INLINE void prepare(const struct operands *o) {
    load_a(0, o);
    tile_load(6, o->b, o->ldb);
    tile_load(7, o->b_more, o->ldb);
}
/* n tiles of A in a row, a_step bytes apart, with n pairs of B, `per` from each of b. With halves each is `of`
 * products, 4 or, without low times low, 3; low halves lie a_low bytes and b_low elements behind the high ones. */
struct run {
    const struct operands *at, *next; /* the high halves of the first tiles; what comes next */
    const float *const *b;
    int64_t a_step, more, per, b_step, n, a_low, b_low;
    int of;
};
/* In the order low low, low high, high high, high low of A and B one of the two stays. */
INLINE int low_a(int of, int64_t x) { return of > 1 && x % of < of - 2; }
INLINE int low_b(int of, int64_t x) { return of > 1 && (x % of == of - 1 || (of == 4 && x % of == 0)); }
INLINE struct operands product_at(const struct run *o, int64_t x) {
    const int64_t tile = x / o->of;
    struct operands it = *o->at;
    it.a += tile * o->a_step + (low_a(o->of, x) ? o->a_low : 0);
    it.b = o->b[tile / o->per] + tile % o->per * o->b_step + (low_b(o->of, x) ? o->b_low : 0);
    it.b_more = it.b + o->more;
    return it;
}
INLINE void sixteen_at(int64_t x, int set, int odd, const struct run *o, struct exps *e) {
    const int last = x + 1 == o->n * o->of, tiles_of_a = o->of == 1 ? 1 : 2;
    const int same_a = !last && o->of > 1 && (x + 1) % o->of && low_a(o->of, x) == low_a(o->of, x + 1),
              same_b = !last && o->of > 1 && (x + 1) % o->of && low_b(o->of, x) == low_b(o->of, x + 1);
    const int r = (odd + x / o->of * tiles_of_a + (o->of > 1 && !low_a(o->of, x))) & 1;
    const struct operands after = last ? *o->next : product_at(o, x + 1);
    if (!same_a) load_a(!r, &after);
    multiply_set(set, r, 0);
    if (!same_b) tile_load(6, after.b, after.ldb);
    deal(e);
    multiply_set(set, r, 1);
    if (!same_b) tile_load(7, after.b_more, after.ldb);
    deal(e);
    if (x == 0 && e->waits) store_set(!set, e->waiting);
}
/* flat: n is a constant, and no branch is left. */
INLINE void sixteen(int flat, int set, int odd, const struct run *o, float *to, struct exps *e) {
    set_up(set, o->at->c);
    if (flat) {
        UNROLL for (int64_t x = 0; x < o->n * o->of; x++) sixteen_at(x, set, odd, o, e);
    } else {
        for (int64_t x = 0; x < o->n * o->of; x++) sixteen_at(x, set, odd, o, e);
    }
    e->waiting = to, e->waits = 1;
}
/* Sets take turns 0, 1, so that 1 is what waits at the end. */
INLINE void store_waiting(struct exps *e) {
    if (e->waits) store_set(1, e->waiting);
    e->waits = 0;
}
/* The first product of a run, of the operands' halves. */
INLINE struct operands first_of(struct operands at, int of, int64_t a_low, int64_t b_low) {
    at.a += low_a(of, 0) ? a_low : 0;
    at.b += low_b(of, 0) ? b_low : 0;
    at.b_more += low_b(of, 0) ? b_low : 0;
    return at;
}
INLINE struct operands keys_high(const struct attn_pair_flash *f, int64_t depth, int64_t key) {
    return (struct operands){(const char *)(f->k + key * f->ldk), f->ldk * 2, f->q, f->q + depth / 2 * 16, 64, NULL};
}
INLINE struct operands keys_at(const struct attn_pair_flash *f, int64_t depth, int64_t key, const struct exps *e) {
    return first_of(keys_high(f, depth, key), e->of_keys, depth * 2, depth * 16);
}
/* Scores of the keys of a step. */
INLINE void keys(int flat, const struct attn_pair_flash *f, int64_t depth, int64_t step, float *s,
                 const struct operands *after, struct exps *e) {
    const int64_t n = depth / 32;
    UNROLL for (int64_t c = 0; c < e->span; c += 32) {
        UNROLL for (int set = 0; set < 2; set++, s += 16 * LANES_ALL) {
            const int64_t key = step * e->span + c + 16 * set;
            const struct operands now = keys_high(f, depth, key), next = keys_at(f, depth, key + 16, e);
            const struct run run = {.at = &now,
                                    .next = c + 16 * set + 16 < e->span ? &next : after,
                                    .b = &now.b,
                                    .a_step = 64,
                                    .more = now.b_more - now.b,
                                    .per = n,
                                    .b_step = TILE,
                                    .n = n,
                                    .a_low = depth * 2,
                                    .b_low = depth * 16,
                                    .of = e->of_keys};
            sixteen(flat, set, e->halves ? 0 : set * n & 1, &run, s, e);
        }
    }
}
/* 32 sums: values of n steps from step `from`, weighed with p[0 .. n-1]. */
INLINE struct operands values_high(const struct attn_pair_flash *f, int64_t width, int64_t d, int64_t from,
                                   const float *const *p, const struct exps *e) {
    const float *v = f->v + from * e->span / 32 * width * 16 * (1 + e->halves) + d * 16;
    return (struct operands){(const char *)v, 64, p[0], p[0] + 16, LANES_ALL * 4, f->o + d * LANES_ALL};
}
INLINE struct operands values_at(const struct attn_pair_flash *f, int64_t width, int64_t d, int64_t from,
                                 const float *const *p, const struct exps *e) {
    return first_of(values_high(f, width, d, from, p, e), e->halves ? 3 : 1, width * 64, e->span / 2 * LANES_ALL);
}
INLINE void values_32(int flat, const struct attn_pair_flash *f, int64_t width, int64_t d, int64_t from, int64_t n,
                      const float *const *p, const struct operands *after, struct exps *e) {
    const int64_t tiles = n * (e->span / 32);
    UNROLL for (int set = 0; set < 2; set++) {
        const int64_t at = d + 16 * set;
        const struct operands now = values_high(f, width, at, from, p, e),
                              next = values_at(f, width, at + 16, from, p, e);
        const struct run run = {.at = &now,
                                .next = set ? after : &next,
                                .b = p,
                                .a_step = width * 64 * (1 + e->halves),
                                .more = 16,
                                .per = e->span / 32,
                                .b_step = 16 * LANES_ALL,
                                .n = tiles,
                                .a_low = width * 64,
                                .b_low = e->span / 2 * LANES_ALL,
                                .of = e->halves ? 3 : 1};
        sixteen(flat, set, e->halves ? 0 : set * tiles & 1, &run, f->o + at * LANES_ALL, e);
    }
}
/* A visit of part `part` of the `width` sums. */
INLINE void values(int flat, const struct attn_pair_flash *f, int64_t width, int64_t parts, int64_t part, int64_t from,
                   int64_t n, const float *const *p, const struct operands *after, struct exps *e) {
    const int64_t each = width / parts, begin = part * each;
    if (flat) {
        UNROLL for (int64_t d = 0; d < each; d += 32) {
            const struct operands next = values_at(f, width, begin + d + 32, from, p, e);
            values_32(1, f, width, begin + d, from, n, p, d + 32 < each ? &next : after, e);
        }
    } else {
        for (int64_t d = 0; d < each; d += 32) {
            const struct operands next = values_at(f, width, begin + d + 32, from, p, e);
            values_32(0, f, width, begin + d, from, n, p, d + 32 < each ? &next : after, e);
        }
    }
}

/* Scores that a query does not see become -inf. */
static void hide(const struct attn_pair_flash *f, int64_t span, int64_t step, float *s) {
    for (int64_t j = 0; j < span; j++) {
        const __m512i key = _mm512_set1_epi32((int32_t)(step * span + j));
        for (int64_t h = 0; h < LANES_ALL; h += 16) {
            const __m512i lo = _mm512_loadu_si512(f->seen + h), hi = _mm512_loadu_si512(f->seen + LANES_ALL + h);
            const __mmask16 hidden = _mm512_cmplt_epi32_mask(key, lo) | _mm512_cmpge_epi32_mask(key, hi);
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, hidden, v32_set(-INFINITY));
        }
    }
}
/* Products that tiles cannot make. */
static void put_given(const struct attn_pair_flash *f, int64_t span, int64_t step, float *s) {
    for (int64_t j = 0; j < span; j++) {
        const uint32_t which = f->given[step * span + j];
        const float *from = f->given_s + (step * span + j) * LANES_ALL;
        for (int64_t h = 0; h < LANES_ALL; h += 16) {
            const __mmask16 m = (__mmask16)(which >> h);
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, m, _mm512_maskz_loadu_ps(m, from + h));
        }
    }
}
static __attribute__((noinline)) void score(const struct attn_pair_score *f, int64_t span, int64_t key, float *s) {
    struct kept kept;
    if (f->keep_keys) look_up_kept(f, key, &kept);
    for (int64_t h = 0; h < LANES_ALL; h += 16) score_lanes(f, &kept, span, key, s, h);
}
/* The halves of a word are put together as masks: gcc 12 with -O1 -fsanitize=undefined spills a mask of 16 bits as such
 * and reads it back as the 32 it is widened to, with the stack's in the upper half. */
static void note_live(const struct attn_pair_flash *f, int64_t span, int64_t step, const float *s) {
    for (int64_t j = 0; j < span; j++, s += LANES_ALL) {
        const v32 none = v32_set(-INFINITY); /* unordered: a NaN is live */
        const __mmask16 low = _mm512_cmp_ps_mask(v32_load(s), none, _CMP_NEQ_UQ),
                        high = _mm512_cmp_ps_mask(v32_load(s + 16), none, _CMP_NEQ_UQ);
        f->live[step * span + j] = _cvtmask32_u32(_mm512_kunpackw(high, low));
    }
}

/* Of 16 queries: m, the score that probabilities are relative to; top, its product with the factor (0: the scores are
 * relative to m already, or there is none); shrink, what a step does to older sums. */
struct reference {
    v32 m, top, shrink;
};
/* Largest score of each query. A NaN may be passed over: its exponential puts it into the sum. */
static inline v32 largest(const float *s, int64_t span, v32 old) {
    v32 a = old, b = old, c = old, d = old;
    for (int64_t j = 0; j < span; j += 4, s += 4 * LANES_ALL) {
        a = v32_max(a, v32_load(s));
        b = v32_max(b, v32_load(s + LANES_ALL));
        c = v32_max(c, v32_load(s + 2 * LANES_ALL));
        d = v32_max(d, v32_load(s + 3 * LANES_ALL));
    }
    return v32_max(v32_max(a, b), v32_max(c, d));
}
/* Queries whose maximum times factor says nothing about the differences of scores any more, or is not finite. There
 * scores are made relative to the maximum before the factor is applied: any but the maximum gives 0. */
static inline __mmask16 far_lanes(v32 m, v32 factor) {
    return _mm512_cmp_ps_mask(v32_abs(m * factor), v32_set(ATTN_PAIR_FLASH_FAR), _CMP_NLT_UQ);
}
static __attribute__((noinline)) void subtract(float *s, int64_t span, __mmask16 far, v32 m) {
    for (int64_t j = 0; j < span; j++, s += LANES_ALL) _mm512_mask_storeu_ps(s, far, v32_load(s) - m);
}
/* By how much older sums shrink, 1 where the reference stays, or where nothing was summed. */
static inline v32 shrink_of(v32 old, v32 m, v32 factor) {
    const __mmask16 same =
        _mm512_cmp_ps_mask(old, m, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(old, v32_set(-INFINITY), _CMP_EQ_OQ);
    const v32 by = _mm512_mask_mov_ps(old * factor - m * factor, far_lanes(m, factor), (old - m) * factor);
    return _mm512_mask_mov_ps(exp2_vec(by), same, v32_set(1));
}
/* Takes the maximum as reference of some queries; rows that have seen nothing get probabilities 0 and not NaN. */
static __attribute__((noinline)) void refer(struct reference *r, float *s, int64_t span, v32 factor, __mmask16 lanes) {
    const v32 m = _mm512_mask_mov_ps(r->m, lanes, largest(s, span, r->m));
    const __mmask16 none = _mm512_cmp_ps_mask(m, v32_set(-INFINITY), _CMP_EQ_OQ),
                    far = far_lanes(m, factor) & (__mmask16)~none;
    r->shrink = r->shrink * shrink_of(r->m, m, factor);
    r->m = m;
    r->top = _mm512_maskz_mov_ps((__mmask16) ~(none | far), m * factor);
    if (far & lanes) subtract(s, span, far & lanes, m);
}
/* Queries that need a maximum before the exponentials. */
static inline __mmask16 without(const struct reference *r, v32 factor) {
    return _mm512_cmp_ps_mask(r->m, v32_set(-INFINITY), _CMP_EQ_OQ) | far_lanes(r->m, factor);
}
/* Queries that need one after all. */
static inline __mmask16 passed(const struct reference *r, v32 factor, v32 sum) {
    return _mm512_cmp_ps_mask(sum, v32_set(MOST), _CMP_NLT_UQ) & (__mmask16)~far_lanes(r->m, factor);
}
static inline int shrinks(const struct reference *r) {
    const v32 one = v32_set(1);
    return _mm512_cmp_ps_mask(r[0].shrink, one, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(r[1].shrink, one, _CMP_NEQ_UQ);
}
static __attribute__((noinline)) void shrink_sums(float *o, int64_t width, v32 a0, v32 a1) {
    for (int64_t d = 0; d < width; d++, o += LANES_ALL) {
        v32_store(o, v32_load(o) * a0);
        v32_store(o + 16, v32_load(o + 16) * a1);
    }
}

/* Whether all queries see all keys of a step. */
static int open_step(const struct attn_pair_flash *f, int64_t span, int64_t step) {
    const __m512i begin = _mm512_set1_epi32((int32_t)(step * span)),
                  end = _mm512_set1_epi32((int32_t)((step + 1) * span));
    __mmask16 cut = 0;
    for (int64_t h = 0; h < LANES_ALL; h += 16)
        cut |= _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(f->seen + h), begin) |
               _mm512_cmplt_epi32_mask(_mm512_loadu_si512(f->seen + LANES_ALL + h), end);
    return !cut;
}

/* A step of one of several strips that follow each other. */
struct place {
    const struct attn_pair_flash *f;
    int64_t step;
};
INLINE struct place behind(struct place at, int64_t span) {
    return (at.step + 1) * span < at.f->n ? (struct place){at.f, at.step + 1} : (struct place){at.f + 1, 0};
}
INLINE struct operands keys_of(struct place at, int64_t depth, const struct exps *e) {
    return keys_at(at.f, depth, at.step * e->span, e);
}

/* Probabilities of the last steps, and what became of them. */
struct queue {
    int64_t span, parts;        /* keys of a step; parts of the sums, that take turns step by step */
    float *p[QUEUE + 1];        /* the last one is being made, the one before it is of the step before */
    struct place at[QUEUE + 1]; /* whose they are */
    int64_t done[QUEUE + 1];    /* steps, of all strips, whose values each part of the sums has */
};
/* The first product of a visit of a part with the probabilities from p[i] on. */
INLINE struct operands visit_at(int64_t width, int64_t part, int64_t i, const struct queue *w, const struct exps *e) {
    return values_at(w->at[i].f, width, part * (width / w->parts), w->at[i].step, (const float *const *)w->p + i, e);
}
/* A part of the sums gets the n last steps, which may be of more than one strip. */
INLINE void visit(int64_t width, int64_t part, int64_t n, const struct queue *w, const struct operands *after,
                  struct exps *e) {
    const float *const *p = (const float *const *)w->p;
    for (int64_t i = QUEUE - n, same; i < QUEUE; i += same) {
        for (same = 1; i + same < QUEUE && w->at[i + same].f == w->at[i].f;) same++;
        struct operands next = *after;
        if (i + same < QUEUE) next = visit_at(width, part, i + same, w, e);
        values(0, w->at[i].f, width, w->parts, part, w->at[i].step, same, p + i, &next, e);
    }
}
/* The same at once, with nothing in the tiles before and afterwards. */
static __attribute__((noinline)) void visit_alone(int halves, int64_t width, int64_t part, int64_t n, struct queue w) {
    struct exps none = {.halves = halves, .span = w.span, .done = w.span / 2};
    if (n == 0) return;
    const struct operands mine = visit_at(width, part, QUEUE - n, &w, &none);
    prepare(&mine);
    visit(width, part, n, &w, &mine, &none);
    store_waiting(&none);
}
/* All parts of the sums have all steps before `to`. */
INLINE void visit_all(int halves, int64_t width, int64_t to, struct queue *w) {
    for (int64_t q = 0; q < w->parts; q++) {
        visit_alone(halves, width, q, to - w->done[q], *w);
        w->done[q] = to;
    }
}
/* `count` strips that follow each other like steps of one: nothing waits between them. */
INLINE void strips(const struct attn_pair_flash *f, int64_t count, int flat, int64_t depth, int64_t width, int halves,
                   int rough, int64_t span, int64_t parts) {
    const int64_t weights = span / 2 * LANES_ALL * (halves ? 2 : 1);
    const struct attn_pair_flash *const end = f + count;
    struct reference r[2];
    v32 l[2], top[2];
    struct exps e;
    struct queue w = {.span = span, .parts = parts};
    struct place at = {f, 0}, next = behind(at, span), then;
    float *s = f->s, *other = f->s + span * LANES_ALL;
    set_up_exps(&e, f->factor, halves, rough, span);
    deal_times(&e, 2 * (depth / 32 * (span / 16) * e.of_keys + span / 32 * (width / 16) * (halves ? 3 : 1)));
    for (int i = 0; i <= parts; i++) w.p[QUEUE - i] = f->p + i * weights;
    for (int i = 0; i <= QUEUE; i++) w.at[i] = at;
    const struct operands first = keys_of(at, depth, &e), second = keys_of(next.f < end ? next : at, depth, &e);
    prepare(&first);
    keys(0, at.f, depth, at.step, s, &second, &e);
    store_waiting(&e);
    for (int64_t j = 0; at.f < end; j++) {
        f = at.f;
        w.at[QUEUE] = at;
        if (at.step == 0) {
            for (int h = 0; h < 2; h++) {
                r[h].m = v32_load(f->m + h * 16), l[h] = v32_load(f->l + h * 16);
                r[h].top = r[h].m * e.factor; /* of those that have one */
            }
        }
        if (f->given) put_given(f, span, at.step, s);
        if (f->score) score(f->score, span, at.step * span, s);
        if (!open_step(f, span, at.step)) hide(f, span, at.step, s);
        if (f->live) note_live(f, span, at.step, s);
        for (int h = 0; h < 2; h++) {
            const __mmask16 lanes = without(&r[h], e.factor);
            r[h].shrink = v32_set(1);
            if (lanes) refer(&r[h], s + h * 16, span, e.factor, lanes);
            top[h] = r[h].top;
        }
        begin_step(&e, s, w.p[QUEUE], top);
        then = next.f < end ? behind(next, span) : at;
        const int64_t part = j % parts, n = j - w.done[part];
        const struct operands ahead = keys_of(then.f < end ? then : at, depth, &e),
                              mine = n > 0 ? visit_at(width, part, QUEUE - n, &w, &e) : ahead;
        w.done[part] = j;
        if (flat && next.f < end && n == parts && w.at[QUEUE - parts].f == w.at[QUEUE - 1].f) {
            keys(1, next.f, depth, next.step, other, &mine, &e);
            values(1, w.at[QUEUE - 1].f, width, parts, part, w.at[QUEUE - parts].step, parts,
                   (const float *const *)w.p + QUEUE - parts, &ahead, &e);
        } else {
            if (next.f < end) {
                keys(0, next.f, depth, next.step, other, &mine, &e);
            } else {
                store_waiting(&e);
                prepare(&mine);
            }
            if (n > 0) visit(width, part, n, &w, &ahead, &e);
            if (n == 0 || next.f == end) store_waiting(&e);
        }
        finish_step(&e);
        const __mmask16 again[2] = {passed(&r[0], e.factor, e.sum[0]), passed(&r[1], e.factor, e.sum[1])};
        if (again[0] | again[1]) {
            for (int h = 0; h < 2; h++) {
                if (again[h]) refer(&r[h], s + h * 16, span, e.factor, again[h]);
                top[h] = r[h].top;
            }
            begin_step(&e, s, w.p[QUEUE], top);
            finish_step(&e);
        }
        for (int h = 0; h < 2; h++) l[h] = v32_fma(l[h], r[h].shrink, e.sum[h]);
        if (shrinks(r)) { /* what was made before must be among the sums by then */
            store_waiting(&e);
            visit_all(halves, width, j, &w);
            shrink_sums(f->o, width, r[0].shrink, r[1].shrink);
            prepare(&ahead);
        }
        if (next.f != f)
            for (int h = 0; h < 2; h++) v32_store(f->m + h * 16, r[h].m), v32_store(f->l + h * 16, l[h]);
        float *oldest = w.p[QUEUE - parts], *mined = s;
        UNROLL for (int64_t i = QUEUE - parts; i < QUEUE; i++) w.p[i] = w.p[i + 1], w.at[i] = w.at[i + 1];
        w.p[QUEUE] = oldest;
        s = other, other = mined;
        at = next, next = then;
        if (at.f == end) {
            store_waiting(&e);
            visit_all(halves, width, j + 1, &w);
        }
    }
}

/* Common extents as constants. */
#define KIND(name, flat, depth, width, halves, rough, span, parts)                                                     \
    static void name(const struct attn_pair_flash *f, int64_t n) {                                                     \
        strips(f, n, flat, depth, width, halves, rough, span, parts);                                                  \
    }
#define KINDS(name, flat, depth, width, span, parts, halves_span, halves_parts)                                        \
    KIND(name, flat, depth, width, 0, 0, span, parts)                                                                  \
    KIND(name##_rough, flat, depth, width, 0, 1, span, parts)                                                          \
    KIND(name##_halves, flat, depth, width, 1, 0, halves_span, halves_parts)                                           \
    KIND(name##_halves_rough, flat, depth, width, 1, 1, halves_span, halves_parts)
enum { SPAN = ATTN_PAIR_FLASH_STEP, HALF = SPAN / 2 }; /* as attn_pair_flash_span says */
KINDS(strips_any, 0, f->depth, f->width, SPAN, 1, SPAN, 1)
KINDS(strips_64, 1, 64, 64, SPAN, 1, HALF, 2)
KINDS(strips_128, 1, 128, 128, HALF, 4, HALF, 2)
void attn_ukr_amx_flash(const struct attn_pair_flash *f, int64_t n) {
    static void (*const of[][3])(const struct attn_pair_flash *f, int64_t n) = {
        {strips_any, strips_64, strips_128},
        {strips_any_rough, strips_64_rough, strips_128_rough},
        {strips_any_halves, strips_64_halves, strips_128_halves},
        {strips_any_halves_rough, strips_64_halves_rough, strips_128_halves_rough}};
    const int which = f->depth != f->width ? 0 : f->width == 64 ? 1 : f->width == 128 ? 2 : 0;
    of[f->halves * 2 + f->rough][which](f, n);
}
