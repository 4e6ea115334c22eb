/* SPDX-License-Identifier: MIT
 * Strips of 32 queries on AMX with keys across the lanes: attn_ukr_pair.flash_rows, for bf16 of 64 and 128 columns with
 * an additive mask. Its rows lie along the keys, so that nothing of it is turned: an addend of the exponential's
 * argument. S = Q K^T and O = P V lie as they are; what is turned is K, once.
 *
 *            keys, columns            tiles (tmm)                         first-level cache, D 128, bytes
 *   queries +-------+-------+           0 .. 3 sums of 16 x 16              S  32 x 32 f32       4 KiB, two of them
 *      16   |   0   |   1   |           4 5    16 queries' Q or P each      P  32 x 16 pairs     2 KiB, five of them
 *      16   |   2   |   3   |           6 7    16 keys' K^T, values' V      O  32 x 128 f32     16 KiB, Q  8 KiB
 *           +-------+-------+                                               l  32 x 16 f32       2 KiB, two of them
 *
 * A step has 32 keys, 16 in one vector and 16 in another, which are pairs, so that two registers of probabilities
 * become a row of pairs by two additions and one permutation, and a mask of f32 is read as it is. Beside its
 * exponentials the keys of the next step are multiplied, and the values of the last four (D 64: two) are added to a
 * quarter (a half) of the sums:
 *
 *     step    j                                   j + 1
 *     tiles   QK(j+1)  PV(j-4 .. j-1) part 0      QK(j+2)  PV(j-3 .. j) part 1
 *     vectors exp(j), two queries at a time       exp(j+1)
 *
 * Order, references and what holds sums are those of ukr_flash_amx.c: strips follow each other like steps of one, a
 * full step leaves no branch but those on data, and each of four sums is stored beside the first products of the next.
 * What differs:
 * - Nothing is asked for: rows go on from step to step, and the hardware follows them.
 * - Steps that need care, at a strip's ends or where a row does not see all keys, have a copy of the mask.
 * - l is summed lane by lane, and across the lanes once in the end.
 * - Probabilities are 2^-16 of what they are there. So one that is too large has a bit that no other has: bit 30 of
 *   the rounded. All of a step's are or-ed together; where the bit is set, the rows that have it get a new reference.
 */
#include "cpu/amx_tile.h"
#include "cpu/ukr_flash_reference.h"
#include "cpu/ukr_flash_rows_exp.h"
#include "cpu/ukr_flash_steps.h"

#include <string.h>

/* ------------------------------------------------------------------ products -------------------------- */

/* 32 x 32 sums over n tiles: a[i], 16 rows, and 16 more a_more behind them; b, 16 columns, and 16 more b_more behind
 * them, b_step to the next tile. from: NULL, or what products are added to. late: NULL, or where the sums go that the
 * tiles still hold. This one's stay there. */
struct block {
    const float *const *a;
    const float *b, *from;
    float *late;
    int64_t n, a_more, b_more, b_step;
};
#define SET_UP(tile)                                                                                                   \
    if (t == 0) {                                                                                                      \
        if (o->late) tile_store(tile, o->late + (tile)*TILE, 64);                                                      \
        if (o->from) {                                                                                                 \
            tile_load(tile, o->from + (tile)*TILE, 64);                                                                \
        } else {                                                                                                       \
            tile_zero(tile);                                                                                           \
        }                                                                                                              \
    }
/* Tiles of B are loaded as soon as theirs are free. */
INLINE void four_products(const struct block *o, int64_t t, struct exps *e) {
    const float *const a = o->a[t], *const b = o->b + t * o->b_step;
    const int then = t + 1 < o->n;
    tile_load(4, a, 64);
    if (t == 0) tile_load_once(6, b, 64);
    SET_UP(0)
    tile_dpbf16(0, 4, 6);
    deal(e);
    tile_load(5, a + o->a_more, 64);
    SET_UP(2)
    tile_dpbf16(2, 5, 6);
    deal(e);
    if (then) tile_load_once(6, b + o->b_step, 64);
    if (t == 0) tile_load_once(7, b + o->b_more, 64);
    SET_UP(1)
    tile_dpbf16(1, 4, 7);
    deal(e);
    SET_UP(3)
    tile_dpbf16(3, 5, 7);
    deal(e);
    if (then) tile_load_once(7, b + o->b_step + o->b_more, 64);
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
static inline void let_go(float **held) {
    if (*held) store_square(*held);
    *held = NULL;
}
/* Products of the keys of a step, which stay in tiles. There are as many parts of the sums as tiles of Q in a row. */
INLINE void keys(int64_t parts, const float *q, const float *k, int64_t step, float *late, struct exps *e) {
    const float *const a[MOST_PARTS] = {q, q + TILE, q + 2 * TILE, q + 3 * TILE};
    const struct block it = {.a = a,
                             .b = k + step * (2 * parts * TILE),
                             .late = late,
                             .n = parts,
                             .a_more = parts * TILE,
                             .b_more = parts * TILE,
                             .b_step = TILE};
    block(1, &it, e);
}
/* Values of n steps from step `from` on, weighed with p[0 .. n-1], come to a part of the sums; they stay in tiles. */
INLINE float *values(int flat, int64_t parts, const float *v, float *o, int fresh, int64_t part, int64_t from,
                     int64_t n, const float *const *p, float *late, struct exps *e) {
    float *const to = o + part * SQUARE;
    const struct block it = {.a = p,
                             .b = v + from * (2 * parts * TILE) + part * (2 * TILE),
                             .from = from || !fresh ? to : NULL,
                             .late = late,
                             .n = n,
                             .a_more = TILE,
                             .b_more = TILE,
                             .b_step = 2 * parts * TILE};
    block(flat, &it, e);
    return to;
}

/* ------------------------------------------------------------------ rows of scores -------------------- */

/* Rows of a step's scores: 16 keys, and TILE behind them 16 more. */
static inline float *score_row(float *s, int64_t r) { return s + r / LANES * (2 * TILE) + r % LANES * LANES; }
/* What a step that needs care has of a mask. Where a row does not see a key, it is -inf and the product 0, whatever
 * they were: a scale may be 0 or negative. */
struct cells {
    float of[ROWS][2 * LANES];
    const char *row[ROWS];
};
/* Scores of a row. */
static inline struct addends scores_of(const struct attn_pair_flash *f, const struct cells *cells, float *s,
                                       int64_t r) {
    const struct addends add = addends_of(ATTN_PAIR_MASK_F32, cells->row[r]);
    const v32 scale = v32_set(f->score->scale);
    const float *const row = score_row(s, r);
    return (struct addends){v32_fma(v32_load(row), scale, add.low), v32_fma(v32_load(row + TILE), scale, add.high)};
}
INLINE v32 both(int most, v32 a, v32 b) {
    if (most) return v32_max(a, b);
    return a + b;
}
/* What 16 vectors come to, each across its lanes: the largest or the sum; lane i is of x[i]. */
INLINE v32 across(int most, v32 *x) {
    UNROLL for (int i = 0; i < 8; i++) {
        const v32 a = x[2 * i], b = x[2 * i + 1];
        x[i] = both(most, _mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    UNROLL for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(x[2 * i]), b = _mm512_castps_pd(x[2 * i + 1]);
        x[i] = both(most, _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    UNROLL for (int i = 0; i < 3; i++) { /* groups of four lanes: of four vectors two, of these one */
        const v32 a = x[i < 2 ? 2 * i : 0], b = x[i < 2 ? 2 * i + 1 : 1];
        x[i % 2] = both(most, _mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    return x[0];
}
/* Largest scores of rows h .. h + 15. A NaN may be passed over: its exponential puts it into the sum. */
static v32 largest(const struct attn_pair_flash *f, const struct cells *cells, float *s, int64_t h) {
    v32 x[LANES];
    for (int64_t r = 0; r < LANES; r++) {
        const struct addends it = scores_of(f, cells, s, h + r);
        x[r] = v32_max(it.low, it.high);
    }
    return across(1, x);
}
/* Sums of the lanes of rows h .. h + 15. */
static v32 added(const float *sum, int64_t h) {
    v32 x[LANES];
    for (int64_t r = 0; r < LANES; r++) x[r] = v32_load(sum + (h + r) * LANES);
    return across(0, x);
}
/* Keys of a step that a row does not see, a bit each. */
static inline uint32_t hidden_keys(const struct attn_pair_flash *f, int64_t step, int64_t r) {
    const int64_t from = f->seen[r] - step * SPAN, to = f->seen[ROWS + r] - step * SPAN;
    const uint64_t all = (UINT64_C(1) << SPAN) - 1,
                   before = from <= 0     ? 0
                            : from < SPAN ? (UINT64_C(1) << from) - 1
                                          : all,
                   seen = to <= 0     ? 0
                          : to < SPAN ? (UINT64_C(1) << to) - 1
                                      : all;
    return (uint32_t)(before | (all & ~seen));
}
/* Takes the mask of a step, and hides keys. */
static __attribute__((noinline)) void prepare(const struct attn_pair_flash *f, int64_t step, float *s,
                                              struct cells *cells) {
    const struct attn_pair_score *const score = f->score;
    const int64_t bytes = mask_bytes(score->mask), have = score->mask_keys - step * SPAN;
    uint32_t gone = 0;
    for (int i = 0; f->gone && i < SPAN; i++) gone |= (uint32_t)(f->gone[step * SPAN + i] != 0) << i;
    for (int64_t r = 0; r < ROWS; r++) {
        char part[SPAN * 4] = {0}; /* behind the mask's last key nothing is read */
        const char *cell = score->cell[r] + step * SPAN * bytes;
        if (have < SPAN) {
            if (have > 0) memcpy(part, cell, (size_t)(have * bytes));
            cell = part;
        }
        const struct addends add = score->mask == ATTN_PAIR_MASK_F32   ? addends_of(ATTN_PAIR_MASK_F32, cell)
                                   : score->mask == ATTN_PAIR_MASK_F16 ? addends_of(ATTN_PAIR_MASK_F16, cell)
                                                                       : addends_of(ATTN_PAIR_MASK_BF16, cell);
        const uint32_t hidden = hidden_keys(f, step, r) | gone;
        const __mmask16 a = (__mmask16)hidden, b = (__mmask16)(hidden >> 16);
        _mm512_mask_storeu_ps(score_row(s, r), a, v32_set(0));
        _mm512_mask_storeu_ps(score_row(s, r) + TILE, b, v32_set(0));
        v32_store(cells->of[r], _mm512_mask_mov_ps(add.low, a, v32_set(-INFINITY)));
        v32_store(cells->of[r] + LANES, _mm512_mask_mov_ps(add.high, b, v32_set(-INFINITY)));
        cells->row[r] = (const char *)cells->of[r];
    }
}
static __attribute__((noinline)) void note_live(const struct attn_pair_flash *f, int64_t step,
                                                const struct cells *cells, float *s) {
    uint32_t *const live = f->live + step * SPAN;
    memset(live, 0, SPAN * sizeof *live);
    for (int64_t r = 0; r < ROWS; r++) {
        const struct addends it = scores_of(f, cells, s, r);
        float of[SPAN];
        v32_store(of, it.low), v32_store(of + LANES, it.high);
        for (int i = 0; i < SPAN; i++) live[i] |= (uint32_t)(of[i] != -INFINITY) << r;
    }
}
/* Rows of which some probability is too large. */
static uint32_t too_large(const float *p) {
    uint32_t rows = 0;
    for (int64_t r = 0; r < ROWS; r++)
        if (_mm512_test_epi32_mask(_mm512_loadu_si512(p + r * LANES), _mm512_set1_epi32(TOO_LARGE | TOO_LARGE >> 16)))
            rows |= UINT32_C(1) << r;
    return rows;
}

/* ------------------------------------------------------------------ references ------------------------ */

/* Of 32 queries, and where the exponentials read it. */
struct tops {
    struct reference r[2];
    float *of; /* times attn_pair_flash_parts */
};
static inline void put_top(const struct tops *t, int64_t h) {
    v32_store(t->of + h * LANES, t->r[h].top * v32_set(attn_pair_flash_parts(t->r[h].degree)));
}
/* Scores of a row whose reference is far become 0, or -inf where they are not that reference: what they are apart from
 * it is more than any exponential says. */
static void put_far(const struct attn_pair_flash *f, struct cells *cells, float *s, int64_t r, float m) {
    const struct addends it = scores_of(f, cells, s, r);
    const v32 far[2] = {it.low - v32_set(m), it.high - v32_set(m)};
    for (int h = 0; h < 2; h++) {
        const __mmask16 other = _mm512_cmp_ps_mask(far[h], v32_set(0), _CMP_NEQ_OQ);
        v32_store(score_row(s, r) + h * TILE, v32_set(0));
        v32_store(cells->of[r] + h * LANES, _mm512_mask_mov_ps(far[h], other, v32_set(-INFINITY)));
    }
}
/* Takes the largest score of `which` rows as reference; rows that have seen nothing get probabilities 0 and not NaN.
 * What was summed before, and l of blocks before, shrinks. */
static __attribute__((noinline)) void refer(const struct attn_pair_flash *f, struct tops *t, struct cells *cells,
                                            float *s, float *sum, v32 factor, uint32_t which) {
    for (int64_t h = 0; h < 2; h++) {
        struct reference *const r = &t->r[h];
        const __mmask16 lanes = (__mmask16)(which >> h * LANES);
        if (!lanes) continue;
        const v32 m = _mm512_mask_mov_ps(r->m, lanes, v32_max(r->m, largest(f, cells, s, h * LANES)));
        const __mmask16 none = _mm512_cmp_ps_mask(m, v32_set(-INFINITY), _CMP_EQ_OQ), far = far_lanes(r, m, factor);
        const v32 by = shrink_by(r, m, factor);
        float of[2][LANES];
        r->shrink = r->shrink * by;
        r->m = m;
        r->top = _mm512_mask_mov_ps(m * factor, none | far, v32_set(0)) + v32_set(r->below);
        put_top(t, h);
        v32_store(f->l + h * LANES, v32_load(f->l + h * LANES) * by);
        v32_store(of[0], m), v32_store(of[1], by);
        for (int64_t i = 0; i < LANES; i++) {
            float *const l = sum + (h * LANES + i) * LANES;
            if (of[1][i] != 1) v32_store(l, v32_load(l) * v32_set(of[1][i]));
            if ((far & lanes & (__mmask16)~none) >> i & 1) put_far(f, cells, s, h * LANES + i, of[0][i]);
        }
    }
}
static __attribute__((noinline)) void shrink_sums(int64_t parts, float *o, const struct reference *r) {
    float by[ROWS];
    for (int64_t h = 0; h < 2; h++) v32_store(by + h * LANES, r[h].shrink);
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = 0; i < ROWS; i++) {
            float *const row = score_row(o + part * SQUARE, i);
            v32_store(row, v32_load(row) * v32_set(by[i]));
            v32_store(row + TILE, v32_load(row + TILE) * v32_set(by[i]));
        }
}

/* ------------------------------------------------------------------ strips ---------------------------- */

/* What moves from step to step. */
struct course {
    struct place at;
    int64_t j;               /* steps, of all strips, before this one */
    float *s, *other, *held; /* its scores, those being made; where sums go that tiles still hold */
    float *sum, *sum_to;     /* of probabilities, before this step and with it */
    /* Of the last `parts` steps and of this one: probabilities, and whose they are. */
    float *p[MOST_PARTS + 1];
    struct place of[MOST_PARTS + 1];
    int64_t done[MOST_PARTS]; /* steps, of all strips, whose values each part of the sums has */
};
INLINE void turn(int64_t parts, struct course *c) {
    float *const oldest = c->p[0], *const mine = c->s, *const before = c->sum;
    UNROLL for (int i = 0; i < parts; i++) c->p[i] = c->p[i + 1];
    c->p[parts] = oldest;
    c->s = c->other, c->other = mine;
    c->sum = c->sum_to, c->sum_to = before;
}
/* A part of the sums gets the n last steps, which may be of more than one strip. Where they go is returned, and the
 * last of them stay in tiles. */
INLINE float *visit(int64_t parts, int64_t part, int64_t n, const struct course *c, float *late, struct exps *e) {
    for (int64_t i = parts - n, same; i < parts; i += same) {
        for (same = 1; i + same < parts && follows(c->of[i + same], c->of[i], same);) same++;
        const struct attn_pair_flash *const f = c->of[i].f;
        late =
            values(0, parts, f->v, f->o, f->fresh, part, c->of[i].step, same, (const float *const *)c->p + i, late, e);
    }
    return late;
}
/* All parts of the sums have all steps before `to`; no exponentials are beside it. */
static __attribute__((noinline)) void visit_all(int64_t parts, int64_t to, struct course *c) {
    struct exps none = {.done = UNITS, .products = 1};
    let_go(&c->held);
    for (int64_t part = 0; part < parts; part++) {
        c->held = visit(parts, part, to - c->done[part], c, NULL, &none);
        c->done[part] = to;
        let_go(&c->held);
    }
}
/* Steps of one strip that need no care, up to step `to`, which is of that strip, too: all queries see all of their keys
 * and have a reference, and each part of the sums has had its last `parts` steps. So a step leaves nothing but products
 * and exponentials. Returns 1 where some of the last one's probabilities are too large. */
INLINE int steps_without_care(int64_t parts, int mask, int degree, int64_t to, const float *top,
                              struct course *course) {
    const struct attn_pair_flash *const f = course->at.f;
    const float *const q = f->q, *const k = (const float *)(const void *)f->k, *const v = f->v;
    float *const o = f->o;
    struct course c = *course;
    float *held = c.held ? c.held : c.other; /* the place of the scores that are multiplied takes what tiles have */
    int64_t step = c.at.step, part = c.j % parts;
    int passes = 0;
    struct exps e;
    set_up(&e, f->factor, f->score->scale, mask, degree, parts);
    e.cell = f->score->cell;
    for (;;) {
        begin_step(&e, c.s, c.p[parts], top, c.sum, c.sum_to);
        e.at = step * SPAN * mask_bytes(mask);
        keys(parts, q, k, step + 1, held, &e);
        held = values(1, parts, v, o, 0, part, step - parts, parts, (const float *const *)c.p, c.other, &e);
        finish_step(&e);
        passes = any_too_large(&e);
        if (passes) break;
        turn(parts, &c);
        part = part + 1 == parts ? 0 : part + 1;
        if (++step == to) break;
    }
    c.j += step - c.at.step;
    c.at.step = step;
    c.held = held;
    UNROLL for (int i = 0; i <= parts; i++) c.of[i] = (struct place){f, step - parts + i};
    for (int64_t last = passes ? c.j : c.j - 1, i = 0; i < parts; i++) c.done[(last - i) % parts] = last - i;
    *course = c;
    return passes;
}
typedef int open_loop(int64_t to, const float *top, struct course *course);
#define OPEN_LOOP(parts, rough, mask)                                                                                  \
    static __attribute__((noinline)) int open_##parts##_##rough##_##mask(int64_t to, const float *top,                 \
                                                                         struct course *course) {                      \
        return steps_without_care(parts, ATTN_PAIR_MASK_##mask, attn_pair_flash_degree(1, rough, 1), to, top, course); \
    }
#define OPEN_LOOPS(parts, rough) OPEN_LOOP(parts, rough, F32) OPEN_LOOP(parts, rough, F16) OPEN_LOOP(parts, rough, BF16)
#define BY_MASK(parts, rough)                                                                                          \
    {                                                                                                                  \
        [ATTN_PAIR_MASK_F32] = open_##parts##_##rough##_F32, [ATTN_PAIR_MASK_F16] = open_##parts##_##rough##_F16,      \
        [ATTN_PAIR_MASK_BF16] = open_##parts##_##rough##_BF16                                                          \
    }
OPEN_LOOPS(2, 0)
OPEN_LOOPS(2, 1)
OPEN_LOOPS(4, 0)
OPEN_LOOPS(4, 1)

static void begin_strip(const struct attn_pair_flash *f, struct tops *t, v32 factor, float *sum) {
    const v32 none = v32_set(-INFINITY);
    for (int h = 0; h < 2; h++) {
        struct reference *const r = &t->r[h];
        r->m = v32_load(f->m + h * LANES);
        r->top = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r->m, none, _CMP_NEQ_UQ), r->m * factor) + v32_set(r->below);
        put_top(t, h);
    }
    for (int64_t r = 0; r < ROWS; r++) v32_store(sum + r * LANES, v32_set(0));
}
static void end_strip(const struct attn_pair_flash *f, const struct tops *t, const float *sum) {
    for (int64_t h = 0; h < 2; h++) {
        v32_store(f->m + h * LANES, t->r[h].m);
        v32_store(f->l + h * LANES, v32_load(f->l + h * LANES) + added(sum, h * LANES));
    }
}
/* `count` strips that follow each other like steps of one: nothing waits between them. */
INLINE void strips(int64_t parts, int degree, open_loop *loop, const struct attn_pair_flash *f, int64_t count) {
    const struct attn_pair_flash *const end = f + count;
    float *const scratch = f->s + 2 * SQUARE;
    struct tops t = {.of = scratch};
    struct course c = {.at = {f, 0}, .s = f->s, .other = f->s + SQUARE, .sum = scratch + ROWS};
    struct place next = behind(c.at, SPAN);
    struct open open = {0, 0};
    struct exps e;
    struct cells cells;
    int settled = 0; /* all queries have a reference */
    c.sum_to = c.sum + ROWS * LANES;
    for (int i = 0; i <= parts; i++) c.p[i] = f->p + i * (ROWS * LANES), c.of[i] = c.at;
    for (int h = 0; h < 2; h++) set_up_reference(&t.r[h], degree, ATTN_PAIR_FLASH_AHEAD);
    set_up(&e, f->factor, f->score->scale, ATTN_PAIR_MASK_F32, degree, parts);
    e.cell = cells.row;
    const v32 factor = v32_set(f->factor);
    keys(parts, f->q, (const float *)(const void *)f->k, 0, NULL, &e);
    store_square(c.s);
    for (; c.at.f < end; c.j++) {
        int prepared = 0;
        f = c.at.f;
        c.of[parts] = c.at;
        for (int h = 0; h < 2; h++) t.r[h].shrink = v32_set(1);
        if (settled && c.at.step > parts && c.at.step >= open.from && c.at.step < open.to &&
            c.j - c.done[c.j % parts] == parts) {
            const int passes = loop(open.to, t.of, &c);
            next = behind(c.at, SPAN);
            if (passes) goto made;
        }
        if (c.at.step == 0) {
            begin_strip(f, &t, factor, c.sum);
            open = open_steps(f, SPAN);
            if (f->gone || f->live) open.to = 0;
            if (open.to > f->n / SPAN - 1) open.to = f->n / SPAN - 1;
            if (open.to > f->score->mask_keys / SPAN) open.to = f->score->mask_keys / SPAN;
        }
        prepared = 1;
        prepare(f, c.at.step, c.s, &cells);
        if (f->live) note_live(f, c.at.step, &cells, c.s);
        const uint32_t first = without(&t.r[0], factor) | (uint32_t)without(&t.r[1], factor) << LANES;
        settled = !first;
        if (first) refer(f, &t, &cells, c.s, c.sum, factor, first);
        begin_step(&e, c.s, c.p[parts], t.of, c.sum, c.sum_to);
        const int64_t part = c.j % parts, n = c.j - c.done[part];
        c.done[part] = c.j;
        if (next.f < end) {
            keys(parts, next.f->q, (const float *)(const void *)next.f->k, next.step, c.held ? c.held : c.other, &e);
            c.held = c.other;
        }
        if (n) {
            c.held = visit(parts, part, n, &c, c.held, &e);
        } else {
            let_go(&c.held);
        }
        finish_step(&e);
    made:;
        uint32_t again = 0;
        if (!prepared || any_too_large(&e)) {
            again = too_large(c.p[parts]);
            again &= ~(far_of(&t.r[0], factor) | (uint32_t)far_of(&t.r[1], factor) << LANES);
        }
        if (again) {
            settled = 0;
            if (!prepared) prepare(f, c.at.step, c.s, &cells);
            refer(f, &t, &cells, c.s, c.sum, factor, again);
            begin_step(&e, c.s, c.p[parts], t.of, c.sum, c.sum_to);
            finish_step(&e);
        }
        if (shrinks(t.r)) { /* what was made before must be among the sums by then */
            visit_all(parts, c.j, &c);
            shrink_sums(parts, f->o, t.r);
        }
        if (next.f != f) end_strip(f, &t, c.sum_to);
        turn(parts, &c);
        UNROLL for (int i = 0; i < parts; i++) c.of[i] = c.of[i + 1];
        c.at = next;
        if (next.f < end) next = behind(next, SPAN);
        if (c.at.f == end) visit_all(parts, c.j + 1, &c);
    }
}
#define STRIPS(name, parts, rough)                                                                                     \
    static void name(open_loop *loop, const struct attn_pair_flash *f, int64_t n) {                                    \
        strips(parts, attn_pair_flash_degree(1, rough, 1), loop, f, n);                                                \
    }
STRIPS(strips_64, 2, 0)
STRIPS(strips_128, 4, 0)
STRIPS(strips_64_rough, 2, 1)
STRIPS(strips_128_rough, 4, 1)
void attn_ukr_amx_flash_rows(const struct attn_pair_flash *f, int64_t n) {
    static void (*const of[2][2])(open_loop *, const struct attn_pair_flash *,
                                  int64_t) = {{strips_64, strips_128}, {strips_64_rough, strips_128_rough}};
    static open_loop *const open[2][2][ATTN_PAIR_MASK_BF16 + 1] = {{BY_MASK(2, 0), BY_MASK(4, 0)},
                                                                   {BY_MASK(2, 1), BY_MASK(4, 1)}};
    const int rough = f->rough != 0, wide = f->depth == 128;
    of[rough][wide](open[rough][wide][f->score->mask], f, n);
}
