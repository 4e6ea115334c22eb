/* SPDX-License-Identifier: MIT
 * Microkernels of transposed.h for one kind of elements and one instruction set: tiles of MR keys (or columns of
 * values) by two vectors of queries in registers, as many side by side as a strip has pairs of vectors (groups). A step
 * of a product is two loads of the transposed operand, which stays in the first-level cache, and MR broadcasts for 2 MR
 * multiply-adds. No include guard on purpose. The includer has included the vector layer and defines PAIRS, TABLE, MR
 * (14 or 6), MADD and MFIRST(a, b), which adds to 0.
 *
 *              AVX-512: MR 14, a group is a strip of 32     AVX2: MR 6, two groups of 16
 *         q    +--------+--------+                          +----+----+ +----+----+
 *              +--------+--------+                          +----+----+ +----+----+
 *     k   x -> |        |        |                     x -> |    |    | |    |    |
 *         x -> |   s    |   s    |                     x -> | s  | s  | | s  | s  |   the second group reads k from the
 *         .. -> |        |        |                    .. -> |    |    | |    |    |   first-level cache
 *              +--------+--------+                          +----+----+ +----+----+
 */
#include "cpu/ukr/alibi_growth.h"
#include "cpu/ukr/score_mod.h"
#include "cpu/vec/exp2.h"
#include "cpu/vec/softcap_vec.h"
#include "cpu/vec/unroll.h"

enum {
    LANES = V32_LANES,
    STRIP = ATTN_TRANSPOSED,
    VECTORS = STRIP / LANES,
    GROUPS = VECTORS / 2,
    GROUP = 2 * LANES,         /* queries */
    AHEAD = MR == 14 ? 12 : 24 /* rows of A, some 150 cycles */
};
/* Groups of a strip or of half a strip, and vectors of each group. */
INLINE int groups_of(int n_half) { return GROUPS > 1 ? n_half : 1; }
INLINE int vectors_of(int n_half) { return GROUPS > 1 ? 2 : n_half; }

/* A step of the products of a tile. first: multiplies without adding, which saves setting the sums to 0. */
INLINE void step(int rows, int down, int vectors, int first, v32 (*s)[2], const float *const *base, int64_t lda,
                 const float *b, const float *next) {
    const v32 y[2] = {v32_load(b), vectors > 1 ? v32_load(b + LANES) : v32_set(0)};
    if (next) __builtin_prefetch(down ? base[0] + AHEAD * lda + rows - 1 : next);
    UNROLL for (int i = 0; i < rows; i++) {
        const v32 x = v32_set(down ? base[0][i] : base[i / 5][i % 5 * lda]);
        UNROLL for (int v = 0; v < vectors; v++) {
            if (first) {
                s[i][v] = MFIRST(x, y[v]);
            } else {
                s[i][v] = MADD(x, y[v], s[i][v]);
            }
        }
    }
}
/* c = A B, or with the transpose of A (down), or += of it (accumulate); k > 0 steps. Rows of A or of its transpose are
 * lda apart. One pointer for every five rows, as in gemm_tpl.h. next: rows * k numbers that are prefetched on the way
 * (down: whatever it is, rows of A); or NULL. */
INLINE void tile(int rows, int down, int vectors, int64_t k, const float *a, int64_t lda, const float *b, float *c,
                 int accumulate, const float *next) {
    v32 s[MR][2];
    const int apart = down ? MR : 5;
    const float *base[3];
    UNROLL for (int g = 0; g * apart < rows; g++) {
        base[g] = a + g * apart * lda;
        __asm__("" : "+r"(base[g]));
    }
    step(rows, down, vectors, 1, s, base, lda, b, next);
    for (int64_t l = 1; l < k; l++) {
        b += STRIP;
        if (next) next += rows;
        UNROLL for (int g = 0; g * apart < rows; g++) base[g] += down ? lda : 1;
        step(rows, down, vectors, 0, s, base, lda, b, next);
    }
    for (int add = 0; add < 2; add++) {
        if (add != (accumulate != 0)) continue;
        UNROLL for (int i = 0; i < rows; i++) {
            UNROLL for (int v = 0; v < vectors; v++) {
                float *to = c + i * STRIP + v * LANES;
                s[i][v] = s[i][v] + (add ? v32_load(to) : v32_set(0)); /* never -0: where a chain begins says nothing */
                v32_store(to, s[i][v]);
            }
        }
    }
}

/* All groups of a strip, or the one of half a strip. Only the first prefetches A. */
INLINE void tiles(int rows, int down, int n_half, int64_t k, const float *a, int64_t lda, const float *b, float *c,
                  int accumulate, const float *next) {
    if (vectors_of(n_half) > 1) {
        tile(rows, down, 2, k, a, lda, b, c, accumulate, next);
        for (int g = 1; g < groups_of(n_half); g++)
            tile(rows, down, 2, k, a, lda, b + g * GROUP, c + g * GROUP, accumulate, NULL);
    } else {
        tile(rows, down, 1, k, a, lda, b, c, accumulate, next);
    }
}
/* rows is a constant in every case, so that the sums live in registers. */
#if MR == 14
#define CASES(CASE)                                                                                                    \
    switch (rows) {                                                                                                    \
        CASE(1)                                                                                                        \
        CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)   \
    }
#elif MR == 6
#define CASES(CASE)                                                                                                    \
    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#endif
#define KEYS_CASE(r)                                                                                                   \
    case r: tiles(r, 0, n_half, depth, k, depth, q, s, 0, next); return;
static void tile_keys(int n_half, int64_t rows, int64_t depth, const float *k, const float *q, float *s,
                      const float *next) {
    CASES(KEYS_CASE);
}
#define VALUES_CASE(r)                                                                                                 \
    case r: tiles(r, 1, n_half, n, v, ldv, p, o, accumulate, v); return;
static void tile_values(int n_half, int64_t rows, int64_t n, const float *v, int64_t ldv, const float *p, float *o,
                        int accumulate) {
    CASES(VALUES_CASE);
}

/* Rows of the next tile when n are left: tiles as equal as possible, since a tile of few rows is bound by the latency
 * of its sums. */
INLINE int64_t share(int64_t n) {
    const int64_t tiles = (n + MR - 1) / MR;
    return (n + tiles - 1) / tiles;
}
/* The same for keys: pairs of keys stay together. */
INLINE int64_t share_keys(int64_t n) {
    const int64_t rows = share(n);
    return PAIRS && rows < n ? rows + rows % 2 : rows;
}

static void scores(int n_half, int64_t n, int64_t depth, const float *k, const float *q, float *s) {
    for (int64_t rows; n > 0; n -= rows, k += rows * depth, s += rows * STRIP) {
        rows = share_keys(n);
        tile_keys(n_half, rows, depth, k, q, s, n > rows ? k + rows * depth : k);
    }
}

/* Rows of `p` for a number of keys. */
INLINE int64_t elements(int64_t keys) { return PAIRS ? (keys + 1) / 2 : keys; }

enum { KEYS = GROUPS > 1 ? 1 : 2 }; /* keys whose exponentials run together */
struct exps {                       /* of a group */
    v32 factor, pre_offset[2], offset[2], sum[2];
#if PAIRS
    v32 sum_rounded[2]; /* sums of P as rounded: products with values of 1 */
#endif
};
#if PAIRS
/* Bits whose upper 16 are x rounded (ties away from 0), of two keys: by integers, which do not take the time of
 * multiply-adds. */
INLINE v32 pair_of(v32 even, v32 odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i down = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    const __m512i e = _mm512_add_epi32(_mm512_castps_si512(even), half),
                  o = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    return _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(o, 0x3333333333333333, e, down));
}
#endif
/* Vector i is of key i / vectors. */
INLINE int64_t place(int vectors, int i) { return i / vectors * STRIP + i % vectors * LANES; }
INLINE void exp_keys(int vectors, int keys, int lower, int degree, const float *s, float *p, struct exps *e) {
    const int n = vectors * keys;
    v32 x[2 * KEYS];
    UNROLL for (int i = 0; i < n; i++) x[i] = v32_load(s + place(vectors, i));
    if (lower) {
        UNROLL for (int i = 0; i < n; i++) x[i] -= e->pre_offset[i % vectors];
    }
    UNROLL for (int i = 0; i < n; i++) x[i] = v32_fms(x[i], e->factor, e->offset[i % vectors]);
    exp2_degree(degree, n, x);
    UNROLL for (int i = 0; i < n; i++) e->sum[i % vectors] += x[i];
#if PAIRS
    const v32 ones = _mm512_castsi512_ps(_mm512_set1_epi32(0x3f803f80));
    UNROLL for (int h = 0; h < vectors; h++) {
        const v32 y = pair_of(x[h], keys > 1 ? x[vectors + h] : v32_set(0));
        e->sum_rounded[h] = MADD(y, ones, e->sum_rounded[h]);
        v32_store(p + h * LANES, y);
    }
#else
    UNROLL for (int i = 0; i < n; i++) v32_store(p + place(vectors, i), x[i]);
#endif
}
INLINE void exp_rows(int vectors, int64_t n, int lower, int degree, const float *s, float *p, struct exps *e) {
    for (; n >= KEYS; n -= KEYS, s += KEYS * STRIP, p += (PAIRS ? 1 : KEYS) * STRIP)
        exp_keys(vectors, KEYS, lower, degree, s, p, e);
    if (n > 0) exp_keys(vectors, 1, lower, degree, s, p, e);
}
enum { EXACT = PAIRS ? 4 : EXP2_FULL, BF16_ACCURACY = PAIRS ? EXP2_LEAST : EXP2_FULL };
INLINE void exp_vectors(int vectors, int64_t n, const struct attn_transposed_exp *exp_args, const float *s, float *p,
                        struct exps *e) {
    if (exp_args->pre_offset && PAIRS && exp_args->bf16_accuracy) {
        exp_rows(vectors, n, 1, BF16_ACCURACY, s, p, e);
    } else if (exp_args->pre_offset) {
        exp_rows(vectors, n, 1, EXACT, s, p, e);
    } else if (PAIRS && exp_args->bf16_accuracy) {
        exp_rows(vectors, n, 0, BF16_ACCURACY, s, p, e);
    } else {
        exp_rows(vectors, n, 0, EXACT, s, p, e);
    }
}
/* p may be where s is. */
INLINE void exp_tile(int n_half, int64_t n, const struct attn_transposed_exp *exp_args, const float *s, float *p,
                     struct exps *e) {
    if (vectors_of(n_half) > 1) {
        for (int g = 0; g < groups_of(n_half); g++) exp_vectors(2, n, exp_args, s + g * GROUP, p + g * GROUP, &e[g]);
    } else {
        exp_vectors(1, n, exp_args, s, p, e);
    }
}
INLINE void begin(const struct attn_transposed_exp *exp_args, struct exps *e) {
    for (int v = 0; v < VECTORS; v++) {
        struct exps *const exp = &e[v / 2];
        exp->factor = v32_set(exp_args->factor);
        exp->pre_offset[v % 2] = exp_args->pre_offset ? v32_load(exp_args->pre_offset + v * LANES) : v32_set(0);
        exp->offset[v % 2] = v32_load(exp_args->offset + v * LANES);
        exp->sum[v % 2] = v32_set(0);
#if PAIRS
        exp->sum_rounded[v % 2] = v32_set(0);
#endif
    }
}
INLINE uint32_t end(const struct exps *e, const struct attn_transposed_exp *exp_args, float *sum) {
    uint32_t over = 0;
    for (int v = 0; v < VECTORS; v++) {
        const v32 x = e[v / 2].sum[v % 2];
        v32_store(sum + v * LANES, x);
#if PAIRS
        v32_store(sum + STRIP + v * LANES, e[v / 2].sum_rounded[v % 2]);
#endif
        over |= v32_bits(v32_not_le(x, v32_set(exp_args->most))) << v * LANES;
    }
    return over;
}
static uint32_t exp_scores(int n_half, int64_t n, float *s, const struct attn_transposed_exp *exp_args, float *sum) {
    struct exps e[GROUPS];
    begin(exp_args, e);
    exp_tile(n_half, n, exp_args, s, s, e);
    return end(e, exp_args, sum);
}
static void scores_of(const struct attn_fwd_score_mod *f, int64_t n, int64_t key, float *s) {
    enum { SPAN = 64 };
    for (int64_t j = 0; j < n; j += SPAN)
        score(f, n - j < SPAN ? (n - j + SCORE_MANY - 1) / SCORE_MANY * SCORE_MANY : SPAN, key + j, s + j * STRIP);
}
static void growth_of(const struct attn_fwd_score_mod *f, int64_t n, int64_t key, float *growth_left) {
    for (int v = 0; v < VECTORS; v++) v32_store(growth_left + v * LANES, growth(f, n, key, v));
}
static void cap(int64_t n, float *s, const struct attn_softcap *f) {
    for (int64_t left = n * VECTORS; left > 0; left -= SOFTCAP_MANY, s += SOFTCAP_MANY * LANES) {
        v32 x[SOFTCAP_MANY];
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) x[i] = i < left ? v32_load(s + i * LANES) : v32_set(0);
        softcap_many(x, f);
        UNROLL for (int i = 0; i < SOFTCAP_MANY; i++) if (i < left) v32_store(s + i * LANES, x[i]);
    }
}
/* A tile's scores are computed where its probabilities go; bf16 probabilities then take the first half. */
static uint32_t scores_exp(int n_half, int64_t n, int64_t depth, const float *k, const float *q, float *p,
                           const struct attn_transposed_exp *exp_args, float *sum) {
    struct exps e[GROUPS];
    begin(exp_args, e);
    for (int64_t rows; n > 0; n -= rows, k += rows * depth, p += elements(rows) * STRIP) {
        rows = share_keys(n);
        tile_keys(n_half, rows, depth, k, q, p, n > rows ? k + rows * depth : k);
        if (exp_args->cap) cap(rows, p, exp_args->cap);
        exp_tile(n_half, rows, exp_args, p, p, e);
    }
    return end(e, exp_args, sum);
}

static void add(int n_half, int64_t n, int64_t width, const float *v, const float *p, float *o, int accumulate) {
    for (int64_t column = 0, rows; column < width; column += rows) {
        rows = share(width - column);
        tile_values(n_half, rows, n, v + column, width, p, o + column * STRIP, accumulate);
    }
}

static void scale(int64_t width, float *o, const float *factor) {
    for (int64_t c = 0; c < width; c++, o += STRIP)
        UNROLL for (int v = 0; v < STRIP; v += LANES) v32_store(o + v, v32_load(o + v) * v32_load(factor + v));
}

/* ln l = e ln 2 + 2 atanh t, t = (m - 1) / (m + 1), with m = l / 2^e from 3/4 to 3/2. */
static void close(const float *l, float *inverse, float *log) {
    const v32 one = v32_set(1);
    for (int h = 0; h < STRIP; h += LANES) {
        v32 e;
        const v32 x = v32_load(l + h), m = v32_split(x, &e), t = (m - one) / (m + one), z = t * t;
        v32 p = v32_set(1.0f / 11);
        for (int k = 9; k > 1; k -= 2) p = v32_fma(p, z, v32_set(1.0f / (float)k));
        p = v32_fma(t + t, z * p, t + t);
        v32_store(inverse + h, one / x);
        v32_store(log + h, v32_fma(e, v32_set(0x1.62e430p-1f), p));
    }
}

static void hide(int64_t n, float *s, const int32_t *lo, const int32_t *hi) {
    const v32 none = v32_set(-__builtin_inff());
    for (int h = 0; h < STRIP; h += LANES) {
        const v32 first = v32_of_int32(lo + h), end = v32_of_int32(hi + h);
        for (int64_t j = 0; j < n; j++) { /* a step has less than 2^24 keys */
            const v32 key = v32_set((float)j), from = v32_pick(v32_lt(key, first), none, v32_load(s + j * STRIP + h));
            v32_store(s + j * STRIP + h, v32_pick(v32_lt(key, end), from, none));
        }
    }
}

static void high(int64_t n, const float *s, float *high) {
    const v32 none = v32_set(-__builtin_inff());
    for (int h = 0; h < STRIP; h += LANES) {
        v32 largest[2] = {none, none};
        int64_t j = 0;
        for (; j + 1 < n; j += 2)
            UNROLL for (int i = 0; i < 2; i++) largest[i] = v32_max(v32_load(s + (j + i) * STRIP + h), largest[i]);
        if (j < n) largest[0] = v32_max(v32_load(s + j * STRIP + h), largest[0]);
        v32_store(high + h, v32_max(largest[0], largest[1]));
    }
}

static uint32_t update_max(uint32_t which, int fresh, const float *high, float factor, float *ref, float *pre_offset,
                           float *offset) {
    const v32 zero = v32_set(0);
    uint32_t done = 0;
    for (int h = 0; h < STRIP; h += LANES) {
        const v32 m = v32_load(high + h), was = v32_load(ref + h), product = m * v32_set(factor);
        v32_mask take = v32_and(v32_mask_of(which >> h), v32_and(v32_lt(was, m), v32_lt(m, v32_set(__builtin_inff()))));
        if (fresh) take = v32_and(take, v32_eq(was, v32_set(-__builtin_inff())));
        const v32_mask far = v32_lt(v32_set(0x1p24f), v32_abs(product));
        v32_store(ref + h, v32_pick(take, m, was));
        v32_store(pre_offset + h, v32_pick(take, v32_pick(far, m, zero), v32_load(pre_offset + h)));
        v32_store(offset + h, v32_pick(take, v32_pick(far, zero, product), v32_load(offset + h)));
        done |= v32_bits(take) << h;
    }
    return done;
}

const struct attn_ukr_transposed TABLE = {.pairs = PAIRS,
                                          .scores = scores,
                                          .hide = hide,
                                          .high = high,
                                          .update_max = update_max,
                                          .exp_scores = exp_scores,
                                          .score = scores_of,
                                          .growth = growth_of,
                                          .cap = cap,
                                          .scores_exp = scores_exp,
                                          .add = add,
                                          .scale = scale,
                                          .close = close};
