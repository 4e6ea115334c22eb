/* SPDX-License-Identifier: MIT
 * A strip of 32 queries on AMX: attn_ukr_pair.flash. Scores are made transposed, S^T = K Q^T, so that key rows are used
 * as they are in memory and the softmax needs no sum across a register; O^T = V^T P^T.
 *
 *            queries                  tiles (tmm), sums of 16 rows          per step of 64 keys, bytes
 *     keys  +-------+-------+           4 keys or values^T, 6 7 Q^T or P    S  64 x 32 f32      8 KiB, two of them
 *      16   |   0   |   1   |  set 0    0 1 sums, being multiplied          P  32 x 32 pairs    4 KiB, two of them
 *      16   |   2   |   3   |  set 1    2 3 sums before them, being stored  O^T  width x 32 f32, Q^T depth x 32 bf16
 *           +-------+-------+           (f16: 4 5 x 6 7, all four at once)  D 64: 36 KiB of the first-level cache
 *
 * The tile unit and the vector unit work side by side: between the products of Q with the keys of step j + 1 and of P
 * with the values of step j - 1 the exponentials of step j are dealt out evenly. A store of a tile takes 16 cycles, and
 * waits some 50 for its sums: so two sets of sums take turns. Keys and values are loaded with the hint that they pass
 * through: what else is in the table above stays.
 *
 *     step    j - 1            j                j + 1
 *     tiles   QK(j)   PV(j-2)  QK(j+1) PV(j-1)  QK(j+2) PV(j)
 *     vectors exp (j-1)        exp (j)          exp (j+1)
 *
 * What a query's exponentials are relative to need not be its maximum: it is the largest score of the first step in
 * which it sees a key, for as long as no step's sum of probabilities passes MOST. Then that step's exponentials are
 * taken again, relative to the maximum, and O and l shrink. So no step waits for a maximum.
 *
 * f16 goes in exact halves: a number of 11 bits is a bf16 of 8 bits and one of at most 3, so that Q K^T is four
 * products and exact but for its sums. P is split in the same way, to 16 bits, and low halves are not multiplied with
 * low ones: 2^-17 of a term.
 *
 * Exponentials are 2^(s * factor - top) with top = m * factor ROUNDED, one multiply-add from the score: sums are
 * relative to that number, by which older ones shrink and which goes into lse, so that its rounding costs nothing. */
#include "cpu/amx_tile.h"
#include "cpu/ukr_flash_score.h"

#include <math.h>

#define MOST   65536.0f
#define INLINE static inline __attribute__((always_inline))
enum {
    LANES_ALL = ATTN_PAIR_FLASH,
    STEP = ATTN_PAIR_FLASH_STEP,
    TILE = 256 /* elements of 32 bits */,
    PAIRS = STEP / 2,
    UNIT = 1024
};

/* Exponentials of a step, two keys by 32 queries at a time. */
struct exps {
    v32 factor, top0, top1, sum0, sum1;
    __m512i zip;
    const float *s;
    float *p;
    int halves;         /* P is high and low halves */
    int64_t done;       /* of PAIRS */
    int64_t due, share; /* of UNIT: what is dealt out and not yet taken, what is dealt out at a time */
    float *waiting;     /* sums of the second set of accumulators that are still to be stored there, NULL: none */
};
INLINE __m512i round_pairs(const struct exps *e, v32 even, v32 odd) {
    return _mm512_permutexvar_epi16(e->zip, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
INLINE void store_pairs(const struct exps *e, float *p, v32 even, v32 odd) {
    const __m512i high = round_pairs(e, even, odd);
    _mm512_storeu_si512(p, high);
    if (!e->halves) return;
    even -= _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    odd -= _mm512_castsi512_ps(_mm512_and_si512(high, _mm512_set1_epi32((int32_t)0xffff0000u)));
    _mm512_storeu_si512(p + PAIRS * LANES_ALL, round_pairs(e, even, odd));
}
INLINE v32 probability(const struct exps *e, const float *s, v32 top) {
    return exp2_vec(_mm512_fmsub_ps(v32_load(s), e->factor, top));
}
INLINE void two_keys(struct exps *e) {
    const float *s = e->s + e->done * 2 * LANES_ALL;
    float *p = e->p + e->done * LANES_ALL;
    const v32 a0 = probability(e, s, e->top0), a1 = probability(e, s + 16, e->top1);
    const v32 b0 = probability(e, s + LANES_ALL, e->top0), b1 = probability(e, s + LANES_ALL + 16, e->top1);
    e->sum0 += a0 + b0;
    e->sum1 += a1 + b1;
    store_pairs(e, p, a0, b0);
    store_pairs(e, p + 16, a1, b1);
    e->done++;
}
/* Some of them, where the tile unit is busy; so many times in a step. */
INLINE void deal(struct exps *e) {
    e->due += e->share;
    for (; e->due >= UNIT; e->due -= UNIT)
        if (e->done < PAIRS) two_keys(e);
}
INLINE void deal_times(struct exps *e, int64_t times) { e->share = (PAIRS * UNIT + times - 1) / times; }

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
INLINE void multiply_set(int set, int second) {
    if (set && second) tile_dpbf16(3, 4, 7);
    if (set && !second) tile_dpbf16(2, 4, 6);
    if (!set && second) tile_dpbf16(1, 4, 7);
    if (!set && !second) tile_dpbf16(0, 4, 6);
}
/* n tiles of A in a row, a_step bytes apart, with n pairs of B, b_step elements apart; the sums belong at c. */
INLINE void sixteen(int set, const char *a, int64_t lda, int64_t a_step, const float *b, const float *b_more,
                    int64_t ldb, int64_t b_step, int64_t n, float *c, struct exps *e) {
    for (int64_t x = 0; x < n; x++) {
        tile_load_once(4, a + x * a_step, lda);
        tile_load(6, b + x * b_step, ldb);
        multiply_set(set, 0);
        deal(e);
        tile_load(7, b_more + x * b_step, ldb);
        multiply_set(set, 1);
        deal(e);
        if (x == 0 && e->waiting) store_set(!set, e->waiting);
    }
    e->waiting = c;
}
/* Sets take turns 0, 1, so that 1 is what waits at the end. */
INLINE void store_waiting(struct exps *e) {
    if (e->waiting) store_set(1, e->waiting);
    e->waiting = NULL;
}
/* Scores of the keys of a step. */
INLINE void keys(const struct attn_pair_flash *f, int64_t depth, int64_t step, float *s, struct exps *e) {
    const char *k = (const char *)(f->k + step * STEP * f->ldk);
    const int64_t ldk = f->ldk * 2;
    for (int64_t c = 0; c < STEP; c += 32) {
        UNROLL for (int set = 0; set < 2; set++, k += 16 * ldk, s += 16 * LANES_ALL) {
            zero_set(set);
            sixteen(set, k, ldk, 64, f->q, f->q + depth / 2 * 16, 64, TILE, depth / 32, s, e);
        }
    }
}
/* Values of a step, weighed with p, go to the sums. */
INLINE void values(const struct attn_pair_flash *f, int64_t width, int64_t step, const float *p, struct exps *e) {
    const int64_t block = width * 16; /* of 32 keys */
    for (int64_t d = 0; d < width; d += 32) {
        UNROLL for (int set = 0; set < 2; set++) {
            const float *v = f->v + step * (STEP / 32) * block + (d + 16 * set) * 16;
            float *o = f->o + (d + 16 * set) * LANES_ALL;
            load_set(set, o);
            sixteen(set, (const char *)v, 64, block * 4, p, p + 16, LANES_ALL * 4, 16 * LANES_ALL, STEP / 32, o, e);
        }
    }
}

/* With halves a sum's chain is four or three times as long, and a product waits some 50 cycles for the one before it on
 * the same sums: two tiles of A with two of B, four chains at a time. An operand from before is not loaded again. */
INLINE void four(const char *a0, const char *a1, int64_t lda, int load_a, const float *b, const float *b_more,
                 int64_t ldb, int load_b, struct exps *e) {
    if (load_a) tile_load_once(4, a0, lda);
    if (load_b) tile_load(6, b, ldb);
    tile_dpbf16(0, 4, 6);
    if (load_b) tile_load(7, b_more, ldb);
    tile_dpbf16(1, 4, 7);
    deal(e);
    if (load_a) tile_load_once(5, a1, lda);
    tile_dpbf16(2, 5, 6);
    tile_dpbf16(3, 5, 7);
}
/* `of` products of halves: 4 or, without low times low, 3. Low halves lie `a_low` bytes and `b_low` elements behind. */
INLINE void all_halves(int of, const char *a0, const char *a1, int64_t lda, int64_t a_low, const float *b,
                       const float *b_more, int64_t ldb, int64_t b_low, struct exps *e) {
    if (of == 4) four(a0 + a_low, a1 + a_low, lda, 1, b + b_low, b_more + b_low, ldb, 1, e);
    four(a0 + a_low, a1 + a_low, lda, of == 3, b, b_more, ldb, 1, e);
    four(a0, a1, lda, 1, b, b_more, ldb, 0, e);
    four(a0, a1, lda, 0, b + b_low, b_more + b_low, ldb, 1, e);
}
INLINE void store_sums(float *c, struct exps *e) {
    tile_store(0, c, LANES_ALL * 4);
    deal(e);
    tile_store(1, c + 16, LANES_ALL * 4);
    tile_store(2, c + 16 * LANES_ALL, LANES_ALL * 4);
    tile_store(3, c + 16 * LANES_ALL + 16, LANES_ALL * 4);
}
INLINE void keys_halves(const struct attn_pair_flash *f, int64_t depth, int64_t step, float *s, struct exps *e) {
    const char *k = (const char *)(f->k + step * STEP * f->ldk);
    const int64_t ldk = f->ldk * 2;
    for (int64_t c = 0; c < STEP; c += 32, s += 32 * LANES_ALL, k += 32 * ldk) {
        zero_set(0);
        zero_set(1);
        for (int64_t x = 0; x < depth; x += 32) {
            const float *q = f->q + x / 2 * 16;
            all_halves(4, k + x * 2, k + 16 * ldk + x * 2, ldk, depth * 2, q, q + depth / 2 * 16, 64, depth * 16, e);
        }
        store_sums(s, e);
    }
}
INLINE void values_halves(const struct attn_pair_flash *f, int64_t width, int64_t step, const float *p,
                          struct exps *e) {
    const int64_t block = width * 16 * 2;
    for (int64_t d = 0; d < width; d += 32) {
        const float *v = f->v + step * (STEP / 32) * block + d * 16;
        float *o = f->o + d * LANES_ALL;
        load_set(0, o);
        load_set(1, o + 16 * LANES_ALL);
        for (int64_t c = 0; c < PAIRS; c += 16, v += block) {
            const float *weights = p + c * LANES_ALL;
            all_halves(3, (const char *)v, (const char *)(v + TILE), 64, width * 64, weights, weights + 16,
                       LANES_ALL * 4, PAIRS * LANES_ALL, e);
        }
        store_sums(o, e);
    }
}

/* Scores that a query does not see become -inf. */
static void hide(const struct attn_pair_flash *f, int64_t step, float *s) {
    for (int64_t j = 0; j < STEP; j++) {
        const __m512i key = _mm512_set1_epi32((int32_t)(step * STEP + j));
        for (int64_t h = 0; h < LANES_ALL; h += 16) {
            const __m512i lo = _mm512_loadu_si512(f->seen + h), hi = _mm512_loadu_si512(f->seen + LANES_ALL + h);
            const __mmask16 hidden = _mm512_cmplt_epi32_mask(key, lo) | _mm512_cmpge_epi32_mask(key, hi);
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, hidden, v32_set(-INFINITY));
        }
    }
}
/* Products that tiles cannot make. */
static void put_given(const struct attn_pair_flash *f, int64_t step, float *s) {
    for (int64_t j = 0; j < STEP; j++) {
        const uint32_t which = f->given[step * STEP + j];
        const float *from = f->given_s + (step * STEP + j) * LANES_ALL;
        for (int64_t h = 0; h < LANES_ALL; h += 16) {
            const __mmask16 m = (__mmask16)(which >> h);
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, m, _mm512_maskz_loadu_ps(m, from + h));
        }
    }
}
static __attribute__((noinline)) void score(const struct attn_pair_score *f, int64_t key, float *s) {
    struct kept kept;
    if (f->keep_keys) look_up_kept(f, key, &kept);
    for (int64_t h = 0; h < LANES_ALL; h += 16) score_lanes(f, &kept, key, s, h);
}
/* The halves of a word are put together as masks: gcc 12 with -O1 -fsanitize=undefined spills a mask of 16 bits as such
 * and reads it back as the 32 it is widened to, with the stack's in the upper half. */
static void note_live(const struct attn_pair_flash *f, int64_t step, const float *s) {
    for (int64_t j = 0; j < STEP; j++, s += LANES_ALL) {
        const v32 none = v32_set(-INFINITY); /* unordered: a NaN is live */
        const __mmask16 low = _mm512_cmp_ps_mask(v32_load(s), none, _CMP_NEQ_UQ),
                        high = _mm512_cmp_ps_mask(v32_load(s + 16), none, _CMP_NEQ_UQ);
        f->live[step * STEP + j] = _cvtmask32_u32(_mm512_kunpackw(high, low));
    }
}

/* Of 16 queries: m, the score that probabilities are relative to; top, its product with the factor (0: the scores are
 * relative to m already, or there is none); shrink, what a step does to older sums. */
struct reference {
    v32 m, top, shrink;
};
/* Largest score of each query. A NaN may be passed over: its exponential puts it into the sum. */
static inline v32 largest(const float *s, v32 old) {
    v32 a = old, b = old, c = old, d = old;
    for (int64_t j = 0; j < STEP; j += 4, s += 4 * LANES_ALL) {
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
static __attribute__((noinline)) void subtract(float *s, __mmask16 far, v32 m) {
    for (int64_t j = 0; j < STEP; j++, s += LANES_ALL) _mm512_mask_storeu_ps(s, far, v32_load(s) - m);
}
/* By how much older sums shrink, 1 where the reference stays. */
static inline v32 shrink_of(v32 old, v32 m, v32 factor) {
    const __mmask16 same = _mm512_cmp_ps_mask(old, m, _CMP_EQ_OQ);
    const v32 by = _mm512_mask_mov_ps(old * factor - m * factor, far_lanes(m, factor), (old - m) * factor);
    return _mm512_mask_mov_ps(exp2_vec(by), same, v32_set(1));
}
/* Takes the maximum as reference of some queries; rows that have seen nothing get probabilities 0 and not NaN. */
static __attribute__((noinline)) void refer(struct reference *r, float *s, v32 factor, __mmask16 lanes) {
    const v32 m = _mm512_mask_mov_ps(r->m, lanes, largest(s, r->m));
    const __mmask16 none = _mm512_cmp_ps_mask(m, v32_set(-INFINITY), _CMP_EQ_OQ),
                    far = far_lanes(m, factor) & (__mmask16)~none;
    r->shrink = r->shrink * shrink_of(r->m, m, factor);
    r->m = m;
    r->top = _mm512_maskz_mov_ps((__mmask16) ~(none | far), m * factor);
    if (far & lanes) subtract(s, far & lanes, m);
}
/* Queries that need a maximum before the exponentials. */
static inline __mmask16 without(const struct reference *r, v32 factor) {
    return _mm512_cmp_ps_mask(r->m, v32_set(-INFINITY), _CMP_EQ_OQ) | far_lanes(r->m, factor);
}
/* Queries that need one after all. */
static inline __mmask16 passed(const struct reference *r, v32 factor, v32 sum) {
    return _mm512_cmp_ps_mask(sum, v32_set(MOST), _CMP_NLT_UQ) & (__mmask16)~far_lanes(r->m, factor);
}
INLINE void shrink_sums(float *o, int64_t width, v32 a0, v32 a1, struct exps *e) {
    const v32 one = v32_set(1);
    if (!(_mm512_cmp_ps_mask(a0, one, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(a1, one, _CMP_NEQ_UQ))) return;
    store_waiting(e);
    for (int64_t d = 0; d < width; d++, o += LANES_ALL) {
        v32_store(o, v32_load(o) * a0);
        v32_store(o + 16, v32_load(o + 16) * a1);
    }
}

/* Whether all queries see all keys of a step. */
static int open_step(const struct attn_pair_flash *f, int64_t step) {
    const __m512i begin = _mm512_set1_epi32((int32_t)(step * STEP)),
                  end = _mm512_set1_epi32((int32_t)((step + 1) * STEP));
    __mmask16 cut = 0;
    for (int64_t h = 0; h < LANES_ALL; h += 16)
        cut |= _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(f->seen + h), begin) |
               _mm512_cmplt_epi32_mask(_mm512_loadu_si512(f->seen + LANES_ALL + h), end);
    return !cut;
}

INLINE void make_scores(const struct attn_pair_flash *f, int64_t depth, int64_t step, float *s, struct exps *e) {
    if (e->halves) {
        keys_halves(f, depth, step, s, e);
    } else {
        keys(f, depth, step, s, e);
    }
}
INLINE void add_values(const struct attn_pair_flash *f, int64_t width, int64_t step, const float *p, struct exps *e) {
    if (e->halves) {
        values_halves(f, width, step, p, e);
    } else {
        values(f, width, step, p, e);
    }
}
INLINE void strip(const struct attn_pair_flash *f, int64_t depth, int64_t width, int halves) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const int64_t steps = f->n / STEP, weights = PAIRS * LANES_ALL * (halves ? 2 : 1);
    struct reference r[2] = {{.m = v32_load(f->m)}, {.m = v32_load(f->m + 16)}};
    v32 l0 = v32_load(f->l), l1 = v32_load(f->l + 16);
    struct exps e = {.factor = v32_set(f->factor), .zip = _mm512_loadu_si512(zip), .halves = halves, .done = PAIRS};
    const int64_t products = (depth + width) / 32 * (STEP / 32);
    deal_times(&e, halves ? (depth * 4 + width * 3) / 32 * (STEP / 32) + (STEP + width) / 32 : 4 * products);
    for (int h = 0; h < 2; h++) r[h].top = r[h].m * e.factor; /* of those that have one */
    if (steps > 0) make_scores(f, depth, 0, f->s, &e);
    store_waiting(&e);
    for (int64_t j = 0; j < steps; j++) {
        float *s = f->s + j % 2 * STEP * LANES_ALL, *next = f->s + (j + 1) % 2 * STEP * LANES_ALL;
        const float *p = f->p + (j + 1) % 2 * weights;
        if (f->given) put_given(f, j, s);
        if (f->score) score(f->score, j * STEP, s);
        if (!open_step(f, j)) hide(f, j, s);
        if (f->live) note_live(f, j, s);
        for (int h = 0; h < 2; h++) {
            const __mmask16 lanes = without(&r[h], e.factor);
            r[h].shrink = v32_set(1);
            if (lanes) refer(&r[h], s + h * 16, e.factor, lanes);
        }
        e.top0 = r[0].top, e.top1 = r[1].top, e.sum0 = e.sum1 = v32_set(0);
        e.s = s, e.p = f->p + j % 2 * weights, e.done = e.due = 0;
        if (j + 1 < steps) make_scores(f, depth, j + 1, next, &e);
        if (j > 0) add_values(f, width, j - 1, p, &e);
        if (j == 0 || j + 1 == steps) store_waiting(&e);
        while (e.done < PAIRS) two_keys(&e);
        const __mmask16 again[2] = {passed(&r[0], e.factor, e.sum0), passed(&r[1], e.factor, e.sum1)};
        if (again[0] | again[1]) {
            for (int h = 0; h < 2; h++)
                if (again[h]) refer(&r[h], s + h * 16, e.factor, again[h]);
            e.top0 = r[0].top, e.top1 = r[1].top, e.sum0 = e.sum1 = v32_set(0);
            for (e.done = 0; e.done < PAIRS;) two_keys(&e);
        }
        l0 = v32_fma(l0, r[0].shrink, e.sum0);
        l1 = v32_fma(l1, r[1].shrink, e.sum1);
        shrink_sums(f->o, width, r[0].shrink, r[1].shrink, &e);
    }
    if (steps > 0) add_values(f, width, steps - 1, f->p + (steps - 1) % 2 * weights, &e);
    store_waiting(&e);
    v32_store(f->m, r[0].m), v32_store(f->m + 16, r[1].m);
    v32_store(f->l, l0), v32_store(f->l + 16, l1);
}

/* Common extents as constants. */
static void strip_64(const struct attn_pair_flash *f) { strip(f, 64, 64, 0); }
static void strip_128(const struct attn_pair_flash *f) { strip(f, 128, 128, 0); }
static void strip_any(const struct attn_pair_flash *f) { strip(f, f->depth, f->width, 0); }
static void strip_64_halves(const struct attn_pair_flash *f) { strip(f, 64, 64, 1); }
static void strip_128_halves(const struct attn_pair_flash *f) { strip(f, 128, 128, 1); }
static void strip_any_halves(const struct attn_pair_flash *f) { strip(f, f->depth, f->width, 1); }
void attn_ukr_amx_flash(const struct attn_pair_flash *f) {
    static void (*const of[2][3])(const struct attn_pair_flash *f) = {
        {strip_any, strip_64, strip_128}, {strip_any_halves, strip_64_halves, strip_128_halves}};
    const int which = f->depth != f->width ? 0 : f->width == 64 ? 1 : f->width == 128 ? 2 : 0;
    of[f->halves][which](f);
}
