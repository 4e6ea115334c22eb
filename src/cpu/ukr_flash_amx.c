/* SPDX-License-Identifier: MIT
 * Strips of 32 queries on AMX: attn_ukr_pair.flash. Scores are made transposed, S^T = K Q^T, so that key rows are used
 * as they are in memory and the softmax needs no sum across a register; O^T = V^T P^T.
 *
 *            queries                  tiles (tmm)                         first-level cache, D 64, bytes
 *     keys  +-------+-------+           0 .. 3 sums of 16 x 16              S  64 x 32 f32      8 KiB, two of them
 *      16   |   0   |   1   |           4 5    16 keys or values^T each     P  32 x 32 pairs    4 KiB, two of them
 *      16   |   2   |   3   |           6 7    16 queries' Q^T or P each    O^T  width x 32 f32, Q^T depth x 32 bf16
 *           +-------+-------+                                               36 KiB
 *
 * The tile unit and the vector unit work side by side: between the products of Q with the keys of step j + 1 and of P
 * with the values of step j - 1 the exponentials of step j are dealt out evenly. Tiles are renamed as other registers
 * are: neither a store nor a load of one holds up products that use its name next. But loads and stores take time from
 * each other, so that what counts is how few there are, and that stores do not come at once: blocks of 32 x 32 sums
 * need four loads for four products, D 64 has a form of its own with three, and a block's sums are stored one by one
 * beside the first products of the next. Keys and values have the hint that they pass through: what else is in the
 * table above stays.
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
 * products and exact but for its sums (where lse is not asked for, three: a term is off by 2^-18). P is cut off
 * into two halves, 16 bits, and low halves are not multiplied with low ones: 2^-15 of a term each.
 *
 * f32 goes in three terms, its first, middle and last 8 bits: nothing is rounded. Of nine products the six largest are
 * made, the smallest of them first; what is left out is 2^-21 of a term at most and 2^-24 on average, less than sums of
 * f32 lose.
 *
 * Exponentials are 2^(s * factor - top) with top = m * factor ROUNDED, one multiply-add from the score: sums are
 * relative to that number, by which older ones shrink and which goes into lse, so that its rounding costs nothing. They
 * are relative to a constant, too, which saves a multiply-add of the polynomial (exp2_times). */
#include "cpu/amx_tile.h"
#include "cpu/ukr_flash_exp.h"
#include "cpu/ukr_flash_refer.h"

enum { TILE = 256 /* elements of 32 bits */, QUEUE = 4 /* steps between two visits of a sum, at most */ };

/* 32 rows of A by 32 queries, four sums, over n tiles of A in a row: what is where, in bytes of A and elements of B.
 * A tile of two terms is `of` products, 4 or, without low times low, 3, and one of three terms 6; a term lies a_low and
 * b_low behind the larger one. */
struct block {
    const char *a;
    int64_t a_row, a_more, a_step, a_low; /* to the next row, the next 16 rows, the next tile, the next term */
    const float *const *b;                /* `per` tiles from each */
    int64_t b_row, b_more, b_step, b_low, per;
    float *to; /* [32][32] */
    int sums;  /* products are added to what is there */
    int64_t n;
    int of;
    float *late; /* not NULL: where the sums of the block before go, which are still in tiles */
    int held;    /* this one's stay there */
};
/* Which terms of A and of B product x of a tile takes, the largest 0: in these orders one of the two stays. */
INLINE int term_a(int of, int x) {
    static const int8_t six[] = {2, 1, 1, 0, 0, 0};
    return of == 6 ? six[x] : of > 1 && x < of - 2;
}
INLINE int term_b(int of, int x) {
    static const int8_t six[] = {0, 0, 1, 1, 2, 0};
    return of == 6 ? six[x] : of > 1 && (x == of - 1 || (of == 4 && x == 0));
}
#define SUM_AT(tile) ((tile) / 2 * 16 * LANES_ALL + (tile) % 2 * 16)
#define SET_UP(tile)                                                                                                   \
    if (first) {                                                                                                       \
        if (o->sums) {                                                                                                 \
            tile_load(tile, o->to + SUM_AT(tile), LANES_ALL * 4);                                                      \
        } else {                                                                                                       \
            tile_zero(tile);                                                                                           \
        }                                                                                                              \
    }
#define STORE_LATE(tile)                                                                                               \
    if (first && o->late) tile_store(tile, o->late + SUM_AT(tile), LANES_ALL * 4);
INLINE void four_products(const struct block *o, int64_t tile, int x, struct exps *e) {
    const int of_a = term_a(o->of, x), of_b = term_b(o->of, x), first = tile == 0 && x == 0,
              new_a = x == 0 || of_a != term_a(o->of, x - 1), new_b = x == 0 || of_b != term_b(o->of, x - 1);
    const char *a = o->a + tile * o->a_step + of_a * o->a_low;
    const float *b = o->b[tile / o->per] + tile % o->per * o->b_step + of_b * o->b_low;
    if (new_b) tile_load(6, b, o->b_row);
    if (new_a) tile_load_once(4, a, o->a_row);
    STORE_LATE(0)
    SET_UP(0)
    tile_dpbf16(0, 4, 6);
    deal(e);
    if (new_b) tile_load(7, b + o->b_more, o->b_row);
    STORE_LATE(1)
    SET_UP(1)
    tile_dpbf16(1, 4, 7);
    deal(e);
    if (new_a) tile_load_once(5, a + o->a_more, o->a_row);
    STORE_LATE(2)
    SET_UP(2)
    tile_dpbf16(2, 5, 6);
    deal(e);
    STORE_LATE(3)
    SET_UP(3)
    tile_dpbf16(3, 5, 7);
    deal(e);
}
INLINE void store_sums(float *to) {
    tile_store(0, to + SUM_AT(0), LANES_ALL * 4);
    tile_store(1, to + SUM_AT(1), LANES_ALL * 4);
    tile_store(2, to + SUM_AT(2), LANES_ALL * 4);
    tile_store(3, to + SUM_AT(3), LANES_ALL * 4);
}
/* flat: n is a constant, and no branch is left. */
INLINE void block(int flat, const struct block *o, struct exps *e) {
    if (flat) {
        UNROLL for (int64_t tile = 0; tile < o->n; tile++) {
            UNROLL for (int x = 0; x < o->of; x++) four_products(o, tile, x, e);
        }
    } else {
        for (int64_t tile = 0; tile < o->n; tile++)
            for (int x = 0; x < o->of; x++) four_products(o, tile, x, e);
    }
    if (!o->held) store_sums(o->to);
}
/* Where keys are, k_row .. k_low of attn_pair_flash. flat: constants but for rows of D 64 as they are in memory, so
 * that fewer registers hold addresses. */
struct layout {
    int64_t row, more, step, low;
};
INLINE struct layout layout_of(int flat, const struct attn_pair_flash *f, int64_t depth, int terms) {
    struct layout k = {f->k_row, f->k_more, f->k_step, f->k_low};
    if (flat) k.more = 16 * depth * terms, k.low = 16 * depth;
    if (flat && (depth > 64 || terms > 1)) k.row = 32, k.step = 16 * 32;
    return k;
}
static int fits_flat(const struct attn_pair_flash *f) {
    const struct layout k = layout_of(1, f, f->depth, f->terms);
    return k.row == f->k_row && k.more == f->k_more && k.step == f->k_step && (f->terms == 1 || k.low == f->k_low);
}
/* Scores of the keys of a step. hold: the sums of the block before go to `late`, the last block's stay in tiles. */
INLINE void keys(int flat, int hold, const struct attn_pair_flash *f, int64_t depth, int64_t step, float *s,
                 float *late, struct exps *e) {
    const struct layout k = layout_of(flat, f, depth, e->terms);
    UNROLL for (int64_t c = 0; c < e->span; c += 32) {
        const float *const q = f->q;
        const struct block it = {.a = (const char *)(f->k + (step * e->span + c) / 16 * k.more),
                                 .a_row = k.row * 2,
                                 .a_more = k.more * 2,
                                 .a_step = k.step * 2,
                                 .a_low = k.low * 2,
                                 .b = &q,
                                 .b_row = 64,
                                 .b_more = depth / 2 * 16,
                                 .b_step = TILE,
                                 .b_low = depth * 16,
                                 .per = depth / 32,
                                 .to = s + c * LANES_ALL,
                                 .n = depth / 32,
                                 .of = e->of_keys,
                                 .late = !hold ? NULL
                                         : c   ? s + (c - 32) * LANES_ALL
                                               : late,
                                 .held = hold};
        block(flat, &it, e);
    }
}
/* Products for one of probabilities with values. */
INLINE int of_values(int terms) { return terms == 3 ? 6 : terms == 2 ? 3 : 1; }
/* 32 sums: values of n steps from step `from`, weighed with p[0 .. n-1]. */
INLINE void values_32(int flat, int hold, const struct attn_pair_flash *f, int64_t width, int64_t d, int64_t from,
                      int64_t n, const float *const *p, float *late, struct exps *e) {
    const int64_t tiles = e->span / 32;
    const struct block it = {.a = (const char *)(f->v + from * tiles * width * 16 * e->terms + d * 16),
                             .a_row = 64,
                             .a_more = 16 * 64,
                             .a_step = width * 64 * e->terms,
                             .a_low = width * 64,
                             .b = p,
                             .b_row = LANES_ALL * 4,
                             .b_more = 16,
                             .b_step = 16 * LANES_ALL,
                             .b_low = e->span / 2 * LANES_ALL,
                             .per = tiles,
                             .to = f->o + d * LANES_ALL,
                             .sums = from || !f->fresh,
                             .n = n * tiles,
                             .of = of_values(e->terms),
                             .late = late,
                             .held = hold};
    block(flat, &it, e);
}
/* A visit of part `part` of the `width` sums. hold: as keys; returns where the last block's sums go. */
INLINE float *values(int flat, int hold, const struct attn_pair_flash *f, int64_t width, int64_t parts, int64_t part,
                     int64_t from, int64_t n, const float *const *p, float *late, struct exps *e) {
    const int64_t each = width / parts, begin = part * each;
    if (flat) {
        UNROLL for (int64_t d = 0; d < each; d += 32) {
            values_32(1, hold, f, width, begin + d, from, n, p, late, e);
            late = f->o + (begin + d) * LANES_ALL;
        }
    } else {
        for (int64_t d = 0; d < each; d += 32) {
            values_32(0, hold, f, width, begin + d, from, n, p, hold ? late : NULL, e);
            late = f->o + (begin + d) * LANES_ALL;
        }
    }
    return late;
}

/* D 64, a step of 64 keys: all of Q, then all of P stays in tiles 4 .. 7, and three sums take turns. What is loaded for
 * 32 products: 16 tiles of keys and values, 8 of Q and P, 8 of sums, where blocks would load 16, 16 and 8. A sum is
 * stored late, unless the next one needs its tile. */
#define WITH(tile, what)                                                                                               \
    if (c == (tile)) what
INLINE void sum_begin(int c, const float *from) {
    if (!from) {
        WITH(0, tile_zero(0));
        WITH(1, tile_zero(1));
        WITH(2, tile_zero(2));
        return;
    }
    WITH(0, tile_load(0, from, LANES_ALL * 4));
    WITH(1, tile_load(1, from, LANES_ALL * 4));
    WITH(2, tile_load(2, from, LANES_ALL * 4));
}
INLINE void sum_end(int c, float *to) {
    WITH(0, tile_store(0, to, LANES_ALL * 4));
    WITH(1, tile_store(1, to, LANES_ALL * 4));
    WITH(2, tile_store(2, to, LANES_ALL * 4));
}
/* With a quarter of B, which is loaded where it is not NULL. */
INLINE void sum_add(int c, int quarter, const float *b, int64_t ldb, struct exps *e) {
    if (quarter == 0) {
        if (b) tile_load(4, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 4));
        WITH(1, tile_dpbf16(1, 3, 4));
        WITH(2, tile_dpbf16(2, 3, 4));
    } else if (quarter == 1) {
        if (b) tile_load(5, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 5));
        WITH(1, tile_dpbf16(1, 3, 5));
        WITH(2, tile_dpbf16(2, 3, 5));
    } else if (quarter == 2) {
        if (b) tile_load(6, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 6));
        WITH(1, tile_dpbf16(1, 3, 6));
        WITH(2, tile_dpbf16(2, 3, 6));
    } else {
        if (b) tile_load(7, b, ldb);
        WITH(0, tile_dpbf16(0, 3, 7));
        WITH(1, tile_dpbf16(1, 3, 7));
        WITH(2, tile_dpbf16(2, 3, 7));
    }
    deal(e);
}
#undef WITH
INLINE void step_64(const struct attn_pair_flash *f, int64_t step, float *s, const struct attn_pair_flash *before,
                    int64_t step_before, const float *p, struct exps *e) {
    static const int left[] = {0, 2, 1, 0, 2, 1, 0, 2}, right[] = {1, 0, 2, 1, 0, 2, 1, 0};
    const struct layout at = layout_of(1, f, 64, 1);
    const char *const k = (const char *)(f->k + step * 4 * at.more), *const v =
                                                                         (const char *)(before->v +
                                                                                        step_before * 2 * 64 * 16);
    const int fresh = before->fresh && !step_before;
    float *late[2] = {NULL, NULL};
    UNROLL for (int g = 0; g < 8; g++) {
        const int values = g >= 4, h = g % 4, load = h == 0, last = g == 7, l = left[g], r = right[g];
        const int64_t row = values ? 64 : at.row * 2, next = values ? 64 * 64 : at.step * 2;
        const char *a = values ? v + h * 16 * 64 : k + h * at.more * 2;
        const float *b = values ? p : f->q;
        const int64_t ldb = values ? LANES_ALL * 4 : 64, b_right = values ? 16 : 2 * TILE,
                      b_next = values ? 16 * LANES_ALL : TILE;
        float *to = (values ? before->o : s) + h * 16 * LANES_ALL;
        tile_load_once(3, a, row);
        sum_begin(l, values && !fresh ? to : NULL);
        sum_add(l, 0, load ? b : NULL, ldb, e);
        if (late[0]) sum_end(left[g - 1], late[0]);
        if (late[1]) sum_end(right[g - 1], late[1]);
        sum_begin(r, values && !fresh ? to + 16 : NULL);
        sum_add(r, 1, load ? b + b_right : NULL, ldb, e);
        tile_load_once(3, a + next, row);
        sum_add(l, 2, load ? b + b_next : NULL, ldb, e);
        sum_add(r, 3, load ? b + b_next + b_right : NULL, ldb, e);
        const int taken = last ? -1 : left[g + 1];
        if (last || taken == l) sum_end(l, to);
        if (last || taken == r) sum_end(r, to + 16);
        late[0] = last || taken == l ? NULL : to;
        late[1] = last || taken == r ? NULL : to + 16;
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
/* Boolean masks: which queries keep some key of a step. */
INLINE uint32_t keepers(struct place at, int64_t span) {
    const uint32_t *any = at.f->score->bits + (at.f->n + 63) / 64 * 64 + at.step * span / 32;
    return span == 32 ? any[0] : any[0] | any[1];
}
/* The step behind `at`, but for those of which no query keeps a key. A strip's first one, where sums begin, stays. The
 * bits of a strip that is reached are made. */
INLINE struct place behind_kept(struct place at, int64_t span, const struct attn_pair_flash *end) {
    do at = behind(at, span);
    while (at.step && !keepers(at, span));
    if (!at.step && at.f < end) pack_kept(at.f->score, at.f->n);
    return at;
}
INLINE struct place next_of(int kind, struct place at, int64_t span, const struct attn_pair_flash *end) {
    return kind == FUSE_KEPT ? behind_kept(at, span, end) : behind(at, span);
}

/* Probabilities of the last steps, and what became of them. */
struct queue {
    int64_t span, parts;        /* keys of a step; parts of the sums, that take turns step by step */
    float *p[QUEUE + 1];        /* the last one is being made, the one before it is of the step before */
    struct place at[QUEUE + 1]; /* whose they are */
    int64_t done[QUEUE + 1];    /* steps, of all strips, whose values each part of the sums has */
};
INLINE int follows(struct place at, struct place from, int64_t steps) {
    return at.f == from.f && at.step == from.step + steps;
}
/* A part of the sums gets the n last steps, which may be of more than one strip. hold: as keys. */
INLINE float *visit(int hold, int64_t width, int64_t part, int64_t n, const struct queue *w, float *late,
                    struct exps *e) {
    const float *const *p = (const float *const *)w->p;
    for (int64_t i = QUEUE - n, same; i < QUEUE; i += same) {
        for (same = 1; i + same < QUEUE && follows(w->at[i + same], w->at[i], same);) same++;
        late = values(0, hold, w->at[i].f, width, w->parts, part, w->at[i].step, same, p + i, late, e);
    }
    return late;
}
/* The same with no exponentials beside it. */
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
INLINE void let_go(float **held) {
    if (*held) store_sums(*held);
    *held = NULL;
}
INLINE void begin(struct exps *e, const struct attn_pair_score *f, int64_t key, const float *s, float *p,
                  const struct reference *r) {
    const v32 top[2] = {r[0].top, r[1].top};
    for (int h = 0; e->fused.kind == FUSE_ALIBI && h < 2; h++)
        begin_alibi(&e->fused, f, key, h, top[h], far_of(&r[h], e->factor));
    for (int h = 0; e->fused.kind == FUSE_KEPT && h < 2; h++) begin_kept(&e->fused, f, h, far_of(&r[h], e->factor));
    if (e->fused.kind == FUSE_KEPT) e->kept = (const uint16_t *)(const void *)(f->bits + key);
    begin_step(e, s, p, top);
}
/* Which of the masks' cells are asked for beside this step, the lines of one row with every two keys. Additive masks
 * are read where they are: it is the next 64 keys of this strip, or the next one's first. Bits are made a strip at a
 * time: the same keys of the next one. Where there is none, what is at hand is asked for. */
INLINE void ask(struct exps *e, int kind, struct place at, int64_t span, const struct attn_pair_flash *end) {
    const int64_t key = at.step * span / 64 * 64, next = kind == FUSE_KEPT ? at.f->n : key + 64;
    const int here = next < at.f->n, there = !here && at.f + 1 < end;
    const struct attn_pair_score *of = at.f[there].score;
    e->asked = of->cell + at.step * span / 2 % LANES_ALL;
    e->ask_from = (here ? next : there && kind != FUSE_KEPT ? 0 : key) * of->mask_bytes;
}
/* `count` strips that follow each other like steps of one: nothing waits between them. */
INLINE void strips(const struct attn_pair_flash *f, int64_t count, int flat, int kind, int64_t depth, int64_t width,
                   int terms, int rough, int64_t span, int64_t parts) {
    const int reads = kind == FUSE_READ_16 || kind == FUSE_READ_32, fuse = reads ? FUSE_NONE : kind;
    const int64_t weights = span / 2 * LANES_ALL * terms;
    const struct attn_pair_flash *const end = f + count;
    struct reference r[2];
    v32 l[2];
    struct exps e;
    struct queue w = {.span = span, .parts = parts};
    struct place at = {f, 0}, next;
    float *s = f->s, *other = f->s + span * LANES_ALL, *held = NULL; /* where sums go that tiles still hold */
    const v32 hidden = fuse == FUSE_CAP ? _mm512_castsi512_ps(_mm512_set1_epi32(FUSE_HIDDEN)) : v32_set(-INFINITY);
    if (kind == FUSE_KEPT) pack_kept(f->score, f->n);
    next = next_of(kind, at, span, end);
    const v32 none = v32_set(-INFINITY);
    set_up_exps(&e, f->factor, terms, rough, span);
    set_up_fused(&e.fused, fuse, f->factor, f->score);
    /* of f32 every second line, which brings two */
    e.lines = kind == FUSE_KEPT ? 1 : reads ? 2 : 0, e.apart = kind == FUSE_READ_32 ? 128 : 64;
    deal_times(&e, 2 * (depth / 32 * (span / 16) * e.of_keys + span / 32 * (width / 16) * of_values(terms)));
    for (int i = 0; i <= parts; i++) w.p[QUEUE - i] = f->p + i * weights;
    for (int i = 0; i <= QUEUE; i++) w.at[i] = at;
    keys(0, 0, at.f, depth, at.step, s, NULL, &e);
    for (int64_t j = 0; at.f < end; j++) {
        f = at.f;
        w.at[QUEUE] = at;
        if (at.step == 0) {
            for (int h = 0; h < 2; h++) {
                r[h].m = v32_load(f->m + h * 16), l[h] = v32_load(f->l + h * 16);
                r[h].top = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r[h].m, none, _CMP_NEQ_UQ), r[h].m * e.factor) +
                           v32_set(e.below);
                r[h].below = e.below;
            }
        }
        if (f->given) put_given(f, span, at.step, s);
        if (f->score && !fuse) {
            score(f->score, span, at.step * span, s);
            if (kind == FUSE_NONE && f->score->mask && f->score->mask != ATTN_PAIR_MASK_BIAS)
                ask_for_masks(f->score, span, (at.step + 1) * span);
        }
        if (!open_step(f, span, at.step)) hide(f, span, at.step, s, hidden);
        if (f->gone) hide_gone(f, span, at.step, s, hidden);
        if (f->live) note_live(f, span, at.step, s, hidden);
        if (f->live && kind == FUSE_KEPT) keep_live(f, span, at.step);
        __mmask16 first[2] = {without(&r[0], e.factor), without(&r[1], e.factor)};
        if (kind == FUSE_KEPT) {
            const uint32_t who = keepers(at, span);
            first[0] &= (__mmask16)who, first[1] &= (__mmask16)(who >> 16);
        }
        for (int h = 0; h < 2; h++) {
            r[h].shrink = v32_set(1);
            if (first[h] && !fuse)
                refer(&r[h], s + h * 16, span, e.factor, first[h], growth(f->score, span, at.step * span, h));
        }
        if (fuse && (first[0] | first[1])) refer_fused(f, span, at.step, r, s, e.factor, first);
        begin(&e, f->score, at.step * span, s, w.p[QUEUE], r);
        if (reads || kind == FUSE_KEPT) ask(&e, kind, at, span, end);
        const int64_t part = j % parts, n = j - w.done[part];
        w.done[part] = j;
        /* Values of two strips: their sums are stored late, too; in several terms that lost. Where steps are passed
         * over, two runs of steps may have one strip's sums, which are stored at once. */
        const int one = follows(w.at[QUEUE - 1], w.at[QUEUE - parts], parts - 1);
        if (flat && next.f < end && n == parts && (one || (terms == 1 && kind != FUSE_KEPT))) {
            if (depth == 64 && terms == 1) {
                step_64(next.f, next.step, other, w.at[QUEUE - 1].f, w.at[QUEUE - 1].step, w.p[QUEUE - 1], &e);
            } else {
                /* where nothing is held, the place of the scores that are multiplied takes what tiles have */
                keys(1, 1, next.f, depth, next.step, other, held ? held : other, &e);
                float *const scores = other + (span - 32) * LANES_ALL;
                if (terms > 1 || one) {
                    held = values(1, 1, w.at[QUEUE - 1].f, width, parts, part, w.at[QUEUE - parts].step, parts,
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
        if (fuse && is_beyond(&e.fused)) {
            begin(&e, f->score, at.step * span, s, w.p[QUEUE], r);
            finish_exactly(&e);
        }
        const __mmask16 again[2] = {passed(&r[0], e.factor, e.sum[0]), passed(&r[1], e.factor, e.sum[1])};
        if (again[0] | again[1]) {
            for (int h = 0; h < 2; h++) {
                if (again[h] && !fuse)
                    refer(&r[h], s + h * 16, span, e.factor, again[h], growth(f->score, span, at.step * span, h));
            }
            if (fuse) refer_fused(f, span, at.step, r, s, e.factor, again);
            begin(&e, f->score, at.step * span, s, w.p[QUEUE], r);
            finish_exactly(&e);
        }
        for (int h = 0; h < 2; h++) l[h] = v32_fma(l[h], r[h].shrink, e.sum[h]);
        if (shrinks(r)) { /* what was made before must be among the sums by then */
            let_go(&held);
            visit_all(terms, width, j, &w);
            shrink_sums(f->o, width, r[0].shrink, r[1].shrink);
        }
        if (next.f != f)
            for (int h = 0; h < 2; h++) v32_store(f->m + h * 16, r[h].m), v32_store(f->l + h * 16, l[h]);
        float *oldest = w.p[QUEUE - parts], *mined = s;
        UNROLL for (int64_t i = QUEUE - parts; i < QUEUE; i++) w.p[i] = w.p[i + 1], w.at[i] = w.at[i + 1];
        w.p[QUEUE] = oldest;
        s = other, other = mined;
        at = next;
        if (next.f < end) next = next_of(kind, next, span, end);
        if (at.f == end) {
            let_go(&held);
            visit_all(terms, width, j + 1, &w);
        }
    }
}

/* Common extents as constants. */
#define KIND(name, flat, fuse, depth, width, terms, rough, span, parts)                                                \
    static void name(const struct attn_pair_flash *f, int64_t n) {                                                     \
        strips(f, n, flat, fuse, depth, width, terms, rough, span, parts);                                             \
    }
#define KINDS(name, flat, depth, width, span, parts, more_span, more_parts)                                            \
    KIND(name, flat, FUSE_NONE, depth, width, 1, 0, span, parts)                                                       \
    KIND(name##_rough, flat, FUSE_NONE, depth, width, 1, 1, span, parts)                                               \
    KIND(name##_halves, flat, FUSE_NONE, depth, width, 2, 0, more_span, more_parts)                                    \
    KIND(name##_halves_rough, flat, FUSE_NONE, depth, width, 2, 1, more_span, more_parts)                              \
    KIND(name##_thirds, flat, FUSE_NONE, depth, width, 3, 0, more_span, more_parts)
enum { SPAN = ATTN_PAIR_FLASH_STEP, HALF = SPAN / 2 }; /* as attn_pair_flash_span says */
KINDS(strips_any, 0, f->depth, f->width, SPAN, 1, SPAN, 1)
KINDS(strips_64, 1, 64, 64, SPAN, 1, HALF, 2)
KINDS(strips_128, 1, 128, 128, HALF, 4, HALF, 2)
KIND(strips_64_cap, 1, FUSE_CAP, 64, 64, 1, 0, SPAN, 1)
KIND(strips_128_cap, 1, FUSE_CAP, 128, 128, 1, 0, HALF, 4)
KIND(strips_64_alibi, 1, FUSE_ALIBI, 64, 64, 1, 0, SPAN, 1)
KIND(strips_128_alibi, 1, FUSE_ALIBI, 128, 128, 1, 0, HALF, 4)
KIND(strips_64_kept, 1, FUSE_KEPT, 64, 64, 1, 0, SPAN, 1)
KIND(strips_128_kept, 1, FUSE_KEPT, 128, 128, 1, 0, HALF, 4)
KIND(strips_64_read_16, 1, FUSE_READ_16, 64, 64, 1, 0, SPAN, 1)
KIND(strips_128_read_16, 1, FUSE_READ_16, 128, 128, 1, 0, HALF, 4)
KIND(strips_64_read_32, 1, FUSE_READ_32, 64, 64, 1, 0, SPAN, 1)
KIND(strips_128_read_32, 1, FUSE_READ_32, 128, 128, 1, 0, HALF, 4)
static int fuse_of(const struct attn_pair_flash *f) {
    const struct attn_pair_score *s = f->score;
    if (!s || f->terms > 1) return FUSE_NONE;
    if (s->mask == ATTN_PAIR_MASK_BITS && !s->caps && !s->alibi && s->scale > 0) return FUSE_KEPT;
    if (s->mask && s->mask != ATTN_PAIR_MASK_BIAS) return s->mask == ATTN_PAIR_MASK_F32 ? FUSE_READ_32 : FUSE_READ_16;
    if (!s || f->terms > 1 || !(s->scale > 0) || s->mask || !s->caps == !s->alibi) return FUSE_NONE;
    return s->caps ? FUSE_CAP : FUSE_ALIBI;
}
void attn_ukr_amx_flash(const struct attn_pair_flash *f, int64_t n) {
    static void (*const of[][3])(const struct attn_pair_flash *f, int64_t n) = {
        {strips_any, strips_64, strips_128},
        {strips_any_rough, strips_64_rough, strips_128_rough},
        {strips_any_halves, strips_64_halves, strips_128_halves},
        {strips_any_halves_rough, strips_64_halves_rough, strips_128_halves_rough},
        {strips_any_thirds, strips_64_thirds, strips_128_thirds}};
    static void (*const fused[][3])(const struct attn_pair_flash *f,
                                    int64_t n) = {[FUSE_CAP] = {0, strips_64_cap, strips_128_cap},
                                                  [FUSE_ALIBI] = {0, strips_64_alibi, strips_128_alibi},
                                                  [FUSE_KEPT] = {0, strips_64_kept, strips_128_kept},
                                                  [FUSE_READ_16] = {0, strips_64_read_16, strips_128_read_16},
                                                  [FUSE_READ_32] = {0, strips_64_read_32, strips_128_read_32}};
    const int which = f->depth != f->width || !fits_flat(f) ? 0 : f->width == 64 ? 1 : f->width == 128 ? 2 : 0;
    const int fuse = which ? fuse_of(f) : FUSE_NONE;
    if (fuse) {
        fused[fuse][which](f, n);
    } else {
        of[f->terms == 3 ? 4 : 2 * (f->terms - 1) + f->rough][which](f, n);
    }
}
