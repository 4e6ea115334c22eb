/* SPDX-License-Identifier: MIT
 * struct attn_ukr_decode for one kind of operands. Decode is bound by memory: each line of keys and values is loaded
 * once and multiplied with all rows of queries, few instructions for each.
 *
 *     S = K Q^T     4 keys x TILE_ROWS rows: a register of partial sums each, along D. Four keys are folded into the
 *                   quarters of one register, the quarters of four of these into 16 scores, keys across the lanes
 *     P = 2^..      keys across the lanes, no maximum: relative to the largest score of the first step in which a row
 *                   sees a key. Where a score is above that by more than FAR, the running max moves
 *     O += P V      TILE_ROWS rows x TILE_COLS registers of columns over the 16 keys: one load of values for all rows,
 *                   one broadcast of a probability for all columns. O is in the first-level cache between steps.
 *                   Pairs: the values of two keys are zipped in registers
 *
 * Keys pass in order: the hardware of Zen 4 brings one stream at the rate of a plain read, 16 at three quarters of that
 * and 32 at less than half.
 *
 * The includer defines the vector layer (v32), FOLD(x) and MERGE(x) (four registers of partial sums to the sums, in
 * quarters; LANES / 4 of these to LANES sums), EXP2(n, x), ANY_ABOVE(x, y) (or NaN), TILE_ROWS, TILE_COLS, F(name),
 * TABLE, TYPE (of an element), LOAD(p), LOAD_TAIL(p, n) (n elements, then zeros), MADD; PAIRS: operands are pairs of
 * bf16. No include guard on purpose. */
#if PAIRS
enum { F(STEP) = 2 * V32_LANES }; /* elements of a register */
#else
enum { F(STEP) = V32_LANES };
#endif

/* Into the second-level cache; into the first, requests would wait for each other. */
INLINE void F(prefetch)(const TYPE *p) { __builtin_prefetch(p, 0, 2); }

/* Whole registers of keys j .. j+n, n at a time; what is prefetched of `next` has their offsets. */
INLINE void F(abreast)(int rows, int n, int j, int64_t whole, const struct attn_decode *f, const float *q,
                       const void *const *k, const void *const *next, v32 (*s)[4]) {
    enum { STEP = F(STEP), LINE = 64 / sizeof(TYPE) };
    const TYPE *key[4], *upcoming[4];
    UNROLL for (int a = 0; a < n; a++) key[a] = k[j + a], upcoming[a] = next ? next[j + a] : NULL;
    for (int64_t l = 0; l < whole; l += STEP, q += V32_LANES) {
        v32 x[4];
        UNROLL for (int a = 0; a < n; a++) x[a] = LOAD(key[a] + l);
        UNROLL for (int a = 0; a < n; a++) {
            if (next && (STEP >= LINE || l % LINE == 0)) F(prefetch)(upcoming[a] + l);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const v32 y = v32_load(q + i * f->ldq);
            UNROLL for (int a = 0; a < n; a++) s[i][j + a] = MADD(y, x[a], s[i][j + a]);
        }
    }
}
/* next: keys that are prefetched, or NULL. From memory two keys abreast: four come at two thirds of the rate, and one
 * takes as many loads of queries as it has products. */
INLINE void F(four_keys)(int rows, const struct attn_decode *f, const float *q, const void *const *k,
                         const void *const *next, v32 *fold) {
    enum { STEP = F(STEP) };
    const int64_t whole = f->depth / STEP * STEP, rest = f->depth - whole;
    const v32_tail tail = v32_tail_of((rest + PAIRS) / (1 + PAIRS));
    const float *last = q + whole / STEP * V32_LANES;
    v32 s[TILE_ROWS][4];
    UNROLL for (int i = 0; i < rows; i++) { UNROLL for (int j = 0; j < 4; j++) s[i][j] = v32_set(0); }
    if (next) {
        F(abreast)(rows, 2, 0, whole, f, q, k, next, s);
        F(abreast)(rows, 2, 2, whole, f, q, k, next, s);
    } else {
        F(abreast)(rows, 4, 0, whole, f, q, k, NULL, s);
    }
    UNROLL for (int j = 0; j < 4 && rest; j++) {
        const v32 x = LOAD_TAIL((const TYPE *)k[j] + whole, rest);
        UNROLL for (int i = 0; i < rows; i++) s[i][j] = MADD(v32_load_tail(last + i * f->ldq, tail), x, s[i][j]);
    }
    UNROLL for (int i = 0; i < rows; i++) fold[i * ATTN_DECODE_KEYS / 4] = FOLD(s[i]);
}
INLINE void F(scores_of)(int rows, int64_t n_keys, const struct attn_decode *f, const float *q, const void *const *k,
                         const void *const *next, float *s) {
    v32 fold[TILE_ROWS * ATTN_DECODE_KEYS / 4];
    for (int64_t j = 0; j < n_keys; j += 4) F(four_keys)(rows, f, q, k + j, next ? next + j : NULL, fold + j / 4);
    for (int64_t j = n_keys / 4; j < ATTN_DECODE_KEYS / 4; j++)
        UNROLL for (int i = 0; i < rows; i++) fold[i * ATTN_DECODE_KEYS / 4 + j] = v32_set(0);
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < ATTN_DECODE_KEYS; j += V32_LANES)
            v32_store(s + i * ATTN_DECODE_KEYS + j, MERGE(fold + (i * ATTN_DECODE_KEYS + j) / 4));
    }
}
INLINE void F(scores_rows)(int64_t n_keys, const struct attn_decode *f, const void *const *k, const void *const *next,
                           float *s) {
    for (int64_t r = 0; r < f->rows; r += TILE_ROWS, next = NULL) {
        const float *q = f->q + r * f->ldq;
        float *to = s + r * ATTN_DECODE_KEYS;
        switch (f->rows - r) {
        case 1: F(scores_of)(1, n_keys, f, q, k, next, to); break;
#if TILE_ROWS > 2
        case 2: F(scores_of)(2, n_keys, f, q, k, next, to); break;
        case 3: F(scores_of)(3, n_keys, f, q, k, next, to); break;
#endif
        default: F(scores_of)(TILE_ROWS, n_keys, f, q, k, next, to);
        }
    }
}
/* Of f32 alone: a form for steps of few keys, which small problems consist of, and sums of a step's own. */
enum { F(IS_F32) = sizeof(TYPE) == sizeof(float) };
static void F(scores)(const struct attn_decode *f, const void *const *k, const void *const *next, float *s) {
    if (F(IS_F32) && f->keys < ATTN_DECODE_KEYS) {
        F(scores_rows)(f->keys, f, k, NULL, s);
    } else {
        F(scores_rows)(ATTN_DECODE_KEYS, f, k, next, s);
    }
}

/* A row whose scores are far above their running max, or that has none, gets a new one. x: scores, receives exponents.
 * Kept out of line: it happens once a row, as a rule. A NaN stays one, whether or not the row has a running max. */
static __attribute__((noinline)) void F(update_max)(const struct attn_decode *f, int64_t r, float *x) {
    const float old = f->m[r];
    const v32 none = v32_set(-__builtin_inff());
    v32 largest = none;
    for (int j = 0; j < ATTN_DECODE_KEYS; j += V32_LANES) largest = v32_max(v32_load(x + j), largest);
    const float high = v32_largest(largest);
    const int moves = !((high - old) * f->factor <= ATTN_DECODE_FAR);
    const float m = moves ? high : old;
    for (int j = 0; j < ATTN_DECODE_KEYS; j += V32_LANES) {
        const v32 s = v32_load(x + j);
        v32_store(x + j, v32_pick(v32_eq(s, none), s, (s - v32_set(m)) * v32_set(f->factor)));
    }
    if (!moves) return;
    v32 rescale[1] = {v32_set((old - m) * f->factor)};
    if (old == -__builtin_inff()) {
        rescale[0] = v32_set(0);
    } else {
        EXP2(1, rescale);
    }
    f->m[r] = m;
    float *l = f->l + r * ATTN_DECODE_KEYS, *o = f->o + r * f->ldo;
    for (int j = 0; j < ATTN_DECODE_KEYS; j += V32_LANES) v32_store(l + j, v32_load(l + j) * rescale[0]);
    for (int64_t c = 0; c < f->width; c += V32_LANES) v32_store(o + c, v32_load(o + c) * rescale[0]);
#if PAIRS
    rescale_rounded(f->l_rounded + r * ATTN_DECODE_ROUNDED, rescale[0]);
#endif
}
/* Scores of `rows` rows from r on become p. */
INLINE void F(exp_scores)(int rows, const struct attn_decode *f, int64_t r, const float *s, float *p) {
    enum { PARTS = ATTN_DECODE_KEYS / V32_LANES };
    const v32 factor = v32_set(f->factor);
    v32 x[TILE_ROWS * PARTS];
    UNROLL for (int i = 0; i < rows; i++) {
        const v32 m = v32_set(f->m[r + i]);
        UNROLL for (int j = 0; j < PARTS; j++) x[i * PARTS + j] =
            (v32_load(s + i * ATTN_DECODE_KEYS + j * V32_LANES) - m) * factor;
        int far = 0;
        UNROLL for (int j = 0; j < PARTS; j++) far |= ANY_ABOVE(x[i * PARTS + j], v32_set(ATTN_DECODE_FAR));
        if (__builtin_expect(far, 0)) {
            _Alignas(64) float y[ATTN_DECODE_KEYS];
            __builtin_memcpy(y, s + i * ATTN_DECODE_KEYS, sizeof y);
            F(update_max)(f, r + i, y);
            UNROLL for (int j = 0; j < PARTS; j++) x[i * PARTS + j] = v32_load(y + j * V32_LANES);
        }
    }
    EXP2(rows * PARTS, x);
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < PARTS; j++) {
            float *l = f->l + (r + i) * ATTN_DECODE_KEYS + j * V32_LANES;
            v32_store(l, v32_load(l) + x[i * PARTS + j]);
#if PAIRS
            store_half(p + i * ATTN_DECODE_KEYS / 2, x[i], f->l_rounded + (r + i) * ATTN_DECODE_ROUNDED);
#else
            v32_store(p + i * ATTN_DECODE_KEYS + j * V32_LANES, x[i * PARTS + j]);
#endif
        }
    }
}

/* Of f32 a step's 16 keys are summed alone, and then added: one chain over all keys loses more than the bound of f32
 * allows where values are alike, since each addition rounds the same way (1238 equal ones: 1.1e-5). */
enum { F(ALONE) = F(IS_F32) };
/* rows x `cols` registers of columns from c on, over n_keys keys, of which the last has n_tail. */
INLINE void F(pv_tile)(int rows, int64_t n_keys, int cols, int64_t n_tail, int64_t ldo, const float *p,
                       const void *const *v, const void *const *next, int64_t c, float *o) {
#if !PAIRS
    enum { LINE = 64 / sizeof(TYPE) };
#endif
    v32 s[TILE_ROWS][TILE_COLS];
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int x = 0; x < cols; x++) {
            s[i][x] = v32_set(0);
            if (!F(ALONE)) s[i][x] = v32_load(o + i * ldo + x * V32_LANES);
        }
    }
#if PAIRS
    for (int64_t j = 0; j < n_keys; j += 2) {
        const TYPE *even = (const TYPE *)v[j] + c, *odd = (const TYPE *)v[j + 1] + c;
        v32 y[TILE_COLS + 1];
        for (int x = 0; x < cols && next; x += 2) {
            F(prefetch)((const TYPE *)next[j] + c + x * V32_LANES);
            F(prefetch)((const TYPE *)next[j + 1] + c + x * V32_LANES);
        }
        UNROLL for (int x = 0; x < cols; x += 2) {
            const int64_t n = x + 2 < cols ? F(STEP) : (cols % 2 ? 0 : V32_LANES) + n_tail;
            if (n == F(STEP)) {
                pair_rows(_mm512_loadu_si512(even + x * V32_LANES), _mm512_loadu_si512(odd + x * V32_LANES), y + x);
            } else {
                const __mmask32 m = ((__mmask32)1 << n) - 1;
                pair_rows(_mm512_maskz_loadu_epi16(m, even + x * V32_LANES),
                          _mm512_maskz_loadu_epi16(m, odd + x * V32_LANES), y + x);
            }
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const v32 w = v32_set(p[i * ATTN_DECODE_KEYS / 2 + j / 2]);
            UNROLL for (int x = 0; x < cols; x++) s[i][x] = MADD(w, y[x], s[i][x]);
        }
    }
#else
    for (int64_t j = 0; j < n_keys; j++) {
        const TYPE *row = (const TYPE *)v[j] + c;
        v32 y[TILE_COLS];
        for (int x = 0; x < cols * V32_LANES && next; x += LINE) F(prefetch)((const TYPE *)next[j] + c + x);
        UNROLL for (int x = 0; x < cols; x++) y[x] =
            x + 1 < cols || n_tail == V32_LANES ? LOAD(row + x * V32_LANES) : LOAD_TAIL(row + x * V32_LANES, n_tail);
        UNROLL for (int i = 0; i < rows; i++) {
            const v32 w = v32_set(p[i * ATTN_DECODE_KEYS + j]);
            UNROLL for (int x = 0; x < cols; x++) s[i][x] = MADD(w, y[x], s[i][x]);
        }
    }
#endif
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int x = 0; x < cols; x++) {
            float *const to = o + i * ldo + x * V32_LANES;
            if (F(ALONE)) s[i][x] += v32_load(to);
            v32_store(to, s[i][x]);
        }
    }
}
INLINE void F(pv_rows)(int rows, int64_t n_keys, const struct attn_decode *f, int64_t r, const void *const *v,
                       const void *const *next, const float *s) {
    enum { MOST = TILE_COLS * V32_LANES };
    _Alignas(64) float p[TILE_ROWS * ATTN_DECODE_KEYS];
    float *o = f->o + r * f->ldo;
    int64_t c = 0;
    F(exp_scores)(rows, f, r, s + r * ATTN_DECODE_KEYS, p);
    for (; !next && c + MOST <= f->width; c += MOST)
        F(pv_tile)(rows, n_keys, TILE_COLS, V32_LANES, f->ldo, p, v, NULL, c, o + c);
    for (; c + MOST <= f->width; c += MOST)
        F(pv_tile)(rows, n_keys, TILE_COLS, V32_LANES, f->ldo, p, v, next, c, o + c);
#if PAIRS
    for (; c + F(STEP) <= f->width; c += F(STEP)) F(pv_tile)(rows, n_keys, 2, V32_LANES, f->ldo, p, v, next, c, o + c);
    if (c + V32_LANES < f->width) {
        F(pv_tile)(rows, n_keys, 2, f->width - c - V32_LANES, f->ldo, p, v, next, c, o + c);
        return;
    }
#else
    for (; c + V32_LANES <= f->width; c += V32_LANES)
        F(pv_tile)(rows, n_keys, 1, V32_LANES, f->ldo, p, v, next, c, o + c);
#endif
    if (c < f->width) F(pv_tile)(rows, n_keys, 1, f->width - c, f->ldo, p, v, next, c, o + c);
}
INLINE void F(add_pv_rows)(int64_t n_keys, const struct attn_decode *f, const void *const *v, const void *const *next,
                           const float *s) {
    for (int64_t r = 0; r < f->rows; r += TILE_ROWS, next = NULL) switch (f->rows - r) {
        case 1: F(pv_rows)(1, n_keys, f, r, v, next, s); break;
#if TILE_ROWS > 2
        case 2: F(pv_rows)(2, n_keys, f, r, v, next, s); break;
        case 3: F(pv_rows)(3, n_keys, f, r, v, next, s); break;
#endif
        default: F(pv_rows)(TILE_ROWS, n_keys, f, r, v, next, s);
        }
}
static void F(add_pv)(const struct attn_decode *f, const void *const *v, const void *const *next, const float *s) {
    if (F(IS_F32) && f->keys < ATTN_DECODE_KEYS) {
        F(add_pv_rows)(f->keys, f, v, NULL, s);
    } else {
        F(add_pv_rows)(ATTN_DECODE_KEYS, f, v, next, s);
    }
}
static inline void F(clip)(int64_t rows, const float *const *most, float *s, float *m) {
    for (int64_t i = 0; i < rows; i++, s += ATTN_DECODE_KEYS) {
        v32 largest = v32_set(-__builtin_inff());
        UNROLL for (int j = 0; j < ATTN_DECODE_KEYS; j += V32_LANES) {
            const v32 x = v32_min(v32_load(s + j), v32_load(most[i] + j));
            v32_store(s + j, x);
            largest = v32_max(x, largest);
        }
        if (m) m[i] = v32_largest(largest);
    }
}
const struct attn_ukr_decode TABLE = {.clip = F(IS_F32) ? F(clip) : NULL, .scores = F(scores), .add_pv = F(add_pv)};
