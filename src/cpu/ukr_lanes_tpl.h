/* SPDX-License-Identifier: MIT
 * Microkernels of ukr_lanes.h for one kind of elements: tiles of 14 keys (or columns of values) by two vectors of
 * queries in registers. A step of a product is two loads of the transposed operand, which stays in the first-level
 * cache, and 14 broadcasts for 28 multiply-adds. No include guard on purpose. The includer defines PAIRS, TABLE, MADD
 * and MFIRST(a, b), which adds to 0. */
#include "cpu/ukr_exp2_avx512.h"
#include "cpu/ukr_flash_alibi.h"
#include "cpu/ukr_flash_score.h"
#include "cpu/ukr_softcap_avx512.h"
#include "cpu/ukr_unroll.h"

enum { LANES = 16, STRIP = ATTN_LANES, MR = ATTN_LANES_ROWS, AHEAD = 12 };

/* The first step multiplies: there is no telling what it costs to set 28 registers to 0 in front of a loop. */
INLINE void step(int rows, int down, int halves, int first, v32 (*s)[2], const float *const *base, int64_t lda,
                 const float *b, const float *next) {
    const v32 y[2] = {v32_load(b), halves > 1 ? v32_load(b + LANES) : v32_set(0)};
    __builtin_prefetch(down ? base[0] + AHEAD * lda + rows - 1 : next);
    UNROLL for (int i = 0; i < rows; i++) {
        const v32 x = v32_set(down ? base[0][i] : base[i / 5][i % 5 * lda]);
        UNROLL for (int v = 0; v < halves; v++) {
            if (first) {
                s[i][v] = MFIRST(x, y[v]);
            } else {
                s[i][v] = MADD(x, y[v], s[i][v]);
            }
        }
    }
}
/* c = A B, or with the transpose of A (down), or += of it (more); k > 0 steps. Rows of A or of its transpose are lda
 * apart. One pointer for every five rows, as in ukr_gemm_tpl.h. next: rows * k numbers that are asked for on the way.
 */
INLINE void tile(int rows, int down, int halves, int64_t k, const float *a, int64_t lda, const float *b, float *c,
                 int more, const float *next) {
    v32 s[MR][2];
    const int apart = down ? MR : 5;
    const float *base[3];
    UNROLL for (int g = 0; g * apart < rows; g++) {
        base[g] = a + g * apart * lda;
        __asm__("" : "+r"(base[g]));
    }
    step(rows, down, halves, 1, s, base, lda, b, next);
    for (int64_t l = 1; l < k; l++) {
        b += STRIP;
        next += rows;
        UNROLL for (int g = 0; g * apart < rows; g++) base[g] += down ? lda : 1;
        step(rows, down, halves, 0, s, base, lda, b, next);
    }
    for (int add = 0; add < 2; add++) {
        if (add != (more != 0)) continue;
        UNROLL for (int i = 0; i < rows; i++) {
            UNROLL for (int v = 0; v < halves; v++) {
                float *to = c + i * STRIP + v * LANES;
                s[i][v] = s[i][v] + (add ? v32_load(to) : v32_set(0)); /* never -0: where a chain begins says nothing */
                v32_store(to, s[i][v]);
            }
        }
    }
}

/* rows is a constant in every case, so that the sums live in registers. */
#define CASES(CASE)                                                                                                    \
    switch (rows) {                                                                                                    \
        CASE(1)                                                                                                        \
        CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)   \
    }
#define KEYS_CASE(r)                                                                                                   \
    case r:                                                                                                            \
        if (halves > 1) {                                                                                              \
            tile(r, 0, 2, depth, k, depth, q, s, 0, next);                                                             \
        } else {                                                                                                       \
            tile(r, 0, 1, depth, k, depth, q, s, 0, next);                                                             \
        }                                                                                                              \
        return;
static void tile_keys(int halves, int64_t rows, int64_t depth, const float *k, const float *q, float *s,
                      const float *next) {
    CASES(KEYS_CASE);
}
#define VALUES_CASE(r)                                                                                                 \
    case r:                                                                                                            \
        if (halves > 1) {                                                                                              \
            tile(r, 1, 2, n, v, ldv, p, o, more, v);                                                                   \
        } else {                                                                                                       \
            tile(r, 1, 1, n, v, ldv, p, o, more, v);                                                                   \
        }                                                                                                              \
        return;
static void tile_values(int halves, int64_t rows, int64_t n, const float *v, int64_t ldv, const float *p, float *o,
                        int more) {
    CASES(VALUES_CASE);
}

/* Rows of the next tile: n are left, in tiles as equal as can be, since one of few rows waits for its own sums. */
INLINE int64_t share(int64_t n) {
    const int64_t tiles = (n + MR - 1) / MR;
    return (n + tiles - 1) / tiles;
}
/* The same of keys, of which pairs are not torn apart. */
INLINE int64_t share_keys(int64_t n) {
    const int64_t rows = share(n);
    return PAIRS && rows < n ? rows + rows % 2 : rows;
}

static void scores(int halves, int64_t n, int64_t depth, const float *k, const float *q, float *s) {
    for (int64_t rows; n > 0; n -= rows, k += rows * depth, s += rows * STRIP) {
        rows = share_keys(n);
        tile_keys(halves, rows, depth, k, q, s, n > rows ? k + rows * depth : k);
    }
}

/* Rows of `p` that keys become. */
INLINE int64_t elements(int64_t keys) { return PAIRS ? (keys + 1) / 2 : keys; }

enum { KEYS = 2 }; /* that go through each step of the exponential together */
struct exps {
    v32 factor, less[2], top[2], sum[2];
};
/* Bits whose upper 16 are x rounded (ties away from 0), of two keys: by integers, which do not take the time of
 * multiply-adds. */
INLINE v32 pair_of(v32 even, v32 odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i down = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    const __m512i e = _mm512_add_epi32(_mm512_castps_si512(even), half),
                  o = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    return _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(o, 0x3333333333333333, e, down));
}
/* Vector i is of key i / halves. */
INLINE int64_t place(int halves, int i) { return i / halves * STRIP + i % halves * LANES; }
INLINE void soften_keys(int halves, int keys, int lower, int degree, const float *s, float *p, struct exps *e) {
    const int n = halves * keys;
    v32 x[2 * KEYS];
    UNROLL for (int i = 0; i < n; i++) x[i] = v32_load(s + place(halves, i));
    if (lower) {
        UNROLL for (int i = 0; i < n; i++) x[i] -= e->less[i % halves];
    }
    UNROLL for (int i = 0; i < n; i++) x[i] = _mm512_fmsub_ps(x[i], e->factor, e->top[i % halves]);
    exp2_degree(degree, n, x);
    UNROLL for (int i = 0; i < n; i++) e->sum[i % halves] += x[i];
#if PAIRS
    UNROLL for (int h = 0; h < halves; h++)
        v32_store(p + h * LANES, pair_of(x[h], keys > 1 ? x[halves + h] : v32_set(0)));
#else
    UNROLL for (int i = 0; i < n; i++) v32_store(p + place(halves, i), x[i]);
#endif
}
INLINE void soften_rows(int halves, int64_t n, int lower, int degree, const float *s, float *p, struct exps *e) {
    for (; n >= KEYS; n -= KEYS, s += KEYS * STRIP, p += (PAIRS ? 1 : KEYS) * STRIP)
        soften_keys(halves, KEYS, lower, degree, s, p, e);
    if (n > 0) soften_keys(halves, 1, lower, degree, s, p, e);
}
enum { EXACT = PAIRS ? 4 : EXP2_FULL, ROUGH = PAIRS ? EXP2_LEAST : EXP2_FULL };
INLINE void soften_halves(int halves, int64_t n, const struct attn_lanes_exps *by, const float *s, float *p,
                          struct exps *e) {
    if (by->less && PAIRS && by->rough) {
        soften_rows(halves, n, 1, ROUGH, s, p, e);
    } else if (by->less) {
        soften_rows(halves, n, 1, EXACT, s, p, e);
    } else if (PAIRS && by->rough) {
        soften_rows(halves, n, 0, ROUGH, s, p, e);
    } else {
        soften_rows(halves, n, 0, EXACT, s, p, e);
    }
}
/* p may be where s is. */
INLINE void soften_tile(int halves, int64_t n, const struct attn_lanes_exps *by, const float *s, float *p,
                        struct exps *e) {
    if (halves > 1) {
        soften_halves(2, n, by, s, p, e);
    } else {
        soften_halves(1, n, by, s, p, e);
    }
}
INLINE struct exps begin(const struct attn_lanes_exps *by) {
    struct exps e = {.factor = v32_set(by->factor)};
    for (int h = 0; h < 2; h++) {
        e.less[h] = by->less ? v32_load(by->less + h * LANES) : v32_set(0);
        e.top[h] = v32_load(by->top + h * LANES);
        e.sum[h] = v32_set(0);
    }
    return e;
}
INLINE uint32_t end(const struct exps *e, const struct attn_lanes_exps *by, float *sum) {
    const v32 limit = v32_set(by->most);
    v32_store(sum, e->sum[0]);
    v32_store(sum + LANES, e->sum[1]);
    return (uint32_t)_mm512_cmp_ps_mask(e->sum[0], limit, _CMP_NLE_UQ) |
           (uint32_t)_mm512_cmp_ps_mask(e->sum[1], limit, _CMP_NLE_UQ) << LANES;
}
static uint32_t soften(int halves, int64_t n, float *s, const struct attn_lanes_exps *by, float *sum) {
    struct exps e = begin(by);
    soften_tile(halves, n, by, s, s, &e);
    return end(&e, by, sum);
}
static void scores_of(const struct attn_pair_score *f, int64_t n, int64_t key, float *s) {
    enum { SPAN = 64 };
    for (int64_t j = 0; j < n; j += SPAN)
        score(f, n - j < SPAN ? (n - j + SCORE_MANY - 1) / SCORE_MANY * SCORE_MANY : SPAN, key + j, s + j * STRIP);
}
static void growth_of(const struct attn_pair_score *f, int64_t n, int64_t key, float *more) {
    for (int h = 0; h < 2; h++) v32_store(more + h * LANES, growth(f, n, key, h));
}
static void cap(int64_t n, float *s, const struct attn_softcap *f) {
    for (; n > 0; n -= KEYS, s += KEYS * STRIP) {
        const int vectors = n < KEYS ? 2 : 2 * KEYS;
        v32 x[2 * KEYS] = {v32_load(s), v32_load(s + LANES), v32_set(0), v32_set(0)};
        UNROLL for (int i = 2; i < 2 * KEYS; i++) if (i < vectors) x[i] = v32_load(s + i * LANES);
        softcap_many(x, f);
        UNROLL for (int i = 0; i < 2 * KEYS; i++) if (i < vectors) v32_store(s + i * LANES, x[i]);
    }
}
/* A tile's scores lie where its probabilities go; those of pairs then take the first half. */
static uint32_t weigh(int halves, int64_t n, int64_t depth, const float *k, const float *q, float *p,
                      const struct attn_lanes_exps *by, float *sum) {
    struct exps e = begin(by);
    for (int64_t rows; n > 0; n -= rows, k += rows * depth, p += elements(rows) * STRIP) {
        rows = share_keys(n);
        tile_keys(halves, rows, depth, k, q, p, n > rows ? k + rows * depth : k);
        if (by->cap) cap(rows, p, by->cap);
        soften_tile(halves, rows, by, p, p, &e);
    }
    return end(&e, by, sum);
}

static void add(int halves, int64_t n, int64_t width, const float *v, const float *p, float *o, int more) {
    for (int64_t at = 0, rows; at < width; at += rows) {
        rows = share(width - at);
        tile_values(halves, rows, n, v + at, width, p, o + at * STRIP, more);
    }
}

static void scale(int64_t width, float *o, const float *factor) {
    const v32 f[2] = {v32_load(factor), v32_load(factor + LANES)};
    for (int64_t c = 0; c < width; c++, o += STRIP)
        UNROLL for (int h = 0; h < 2; h++) v32_store(o + h * LANES, v32_load(o + h * LANES) * f[h]);
}

/* ln l = e ln 2 + 2 atanh t, t = (m - 1) / (m + 1), with m = l / 2^e from 3/4 to 3/2. */
static void close(const float *l, float *inverse, float *log) {
    const v32 one = v32_set(1);
    for (int h = 0; h < STRIP; h += LANES) {
        const v32 x = v32_load(l + h), m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
        const v32 e = _mm512_getexp_ps(x) - _mm512_getexp_ps(m), t = (m - one) / (m + one), z = t * t;
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
        const __m512i first = _mm512_loadu_si512(lo + h), end = _mm512_loadu_si512(hi + h);
        for (int64_t j = 0; j < n; j++) {
            const __m512i key = _mm512_set1_epi32((int32_t)j);
            const __mmask16 out = _mm512_cmplt_epi32_mask(key, first) | _mm512_cmpge_epi32_mask(key, end);
            v32_store_tail(s + j * STRIP + h, out, none);
        }
    }
}

static void high(int64_t n, const float *s, float *high) {
    const v32 none = v32_set(-__builtin_inff());
    v32 top[4] = {none, none, none, none};
    for (; n > 1; n -= 2, s += 2 * STRIP)
        UNROLL for (int i = 0; i < 4; i++) top[i] = v32_max(v32_load(s + i * LANES), top[i]);
    for (int i = 0; i < 2 && n > 0; i++) top[i] = v32_max(v32_load(s + i * LANES), top[i]);
    for (int i = 0; i < 2; i++) v32_store(high + i * LANES, v32_max(top[i], top[2 + i]));
}

static uint32_t refer(uint32_t which, int fresh, const float *high, float factor, float *ref, float *less, float *top) {
    const v32 none = v32_set(-__builtin_inff()), zero = v32_set(0);
    __mmask16 done[2];
    for (int h = 0; h < STRIP; h += LANES) {
        const v32 m = v32_load(high + h), was = v32_load(ref + h), product = m * v32_set(factor);
        __mmask16 take = (__mmask16)(which >> h) & _mm512_cmp_ps_mask(m, was, _CMP_GT_OQ) &
                         _mm512_cmp_ps_mask(m, v32_set(__builtin_inff()), _CMP_LT_OQ);
        if (fresh) take &= _mm512_cmp_ps_mask(was, none, _CMP_EQ_OQ);
        const __mmask16 far = _mm512_cmp_ps_mask(v32_abs(product), v32_set(0x1p24f), _CMP_GT_OQ);
        v32_store_tail(ref + h, take, m);
        v32_store_tail(less + h, take, _mm512_mask_mov_ps(zero, far, m));
        v32_store_tail(top + h, take, _mm512_mask_mov_ps(product, far, zero));
        done[h / LANES] = take;
    }
    return _cvtmask32_u32(_mm512_kunpackw(done[1], done[0])); /* no cast: see the tiles' note_live */
}

const struct attn_ukr_lanes TABLE = {.pairs = PAIRS,
                                     .scores = scores,
                                     .hide = hide,
                                     .high = high,
                                     .refer = refer,
                                     .soften = soften,
                                     .score = scores_of,
                                     .growth = growth_of,
                                     .cap = cap,
                                     .weigh = weigh,
                                     .add = add,
                                     .scale = scale,
                                     .close = close};
