/* SPDX-License-Identifier: MIT
 * attn_ukr_bf16.decode_tiles: up to eight rows of queries against keys in one pass, keys and values from where they
 * are. Decode is bound by memory. What counts is that memory always has enough to do: the hardware runs a fixed number
 * of lines ahead in each stream of addresses that it follows, and while products are made of one stream these are soon
 * there. So the 16 keys of a step are far apart, which is 16 streams for keys and 16 for values.
 *
 *     S^T = K Q^T    A: 16 keys x 32 columns as they are      B: queries as pairs, transposed, four to a tile
 *     P   = 2^..     four keys x four rows to a vector
 *     O  += P V      A: (p, 0) and (0, p), a row of each      B: 16 values x 32 columns as they are: a pair is two
 *                       for each row of queries                  columns of one value, so that the first kind of row
 *                                                                sums up the even columns and the second the odd ones
 *
 * Half of the second product's multiplications are by 0, but no value is moved on its way from memory to the tile. The
 * sums stay in tiles from the first key to the last. Probabilities are relative to the largest score of the first 16
 * keys in which a row has one, and only where one passes 2^16 does the running max move. */
#include "cpu/amx/tile.h"
#include "cpu/ukr/bf16.h"
#include "cpu/vec/exp2.h"

#include <math.h>
#include <string.h>

enum {
    STEP = ATTN_DECODE_AMX_STEP,
    FOUR = 4, /* rows of queries that share a vector */
    MOST_GROUPS = ATTN_DECODE_AMX_ROWS / FOUR,
    MOST_DEPTH = 512,
    MOST_TILES = ATTN_DECODE_AMX_WIDTH / 32,
    LANES = 16,
    CELLS = STEP * LANES,
    AHEAD = 512,       /* bytes of rows that are prefetched, of streams */
    AHEAD_SOON = 4096, /* of keys in order */
    BY_ITSELF = 128,   /* columns of rows that streams bring without being asked */
    STREAM = 16384,    /* bytes of rows, at most, from one key of a step to the next */
    LAG = 2            /* steps from a product to its exponentials */
};
#define FAR 16.f /* the largest exponent */

static void config(int groups) {
    const uint8_t rows = (uint8_t)(2 * FOUR * groups), quad = FOUR * sizeof(float);
    /* 0 .. 3: sums; 4: scores; 5: probabilities; 6: keys or values; 7: queries */
    const struct tile_shapes shapes = {.palette = 1,
                                       .row_bytes = {64, 64, 64, 64, quad, 64, 64, quad},
                                       .rows = {rows, rows, rows, rows, STEP, rows, STEP, STEP}};
    tile_release();
    tile_config(&shapes);
}

struct scratch {
    _Alignas(64) float q[MOST_GROUPS][MOST_DEPTH / 2 * FOUR];
    _Alignas(64) float s[LAG + 1][MOST_GROUPS][STEP * FOUR];
    _Alignas(64) float p[MOST_GROUPS * 2 * FOUR * LANES];
    _Alignas(64) float o[MOST_TILES][MOST_GROUPS][2][FOUR][LANES];   /* even columns, odd ones */
    _Alignas(64) float m[MOST_GROUPS][LANES], l[MOST_GROUPS][LANES]; /* of keys modulo 4 and rows; m the same for all */
    _Alignas(64) uint16_t k[STEP * MOST_DEPTH], v[STEP * ATTN_DECODE_AMX_WIDTH];
    uint8_t lost[ATTN_DECODE_AMX_ROWS]; /* rows that see a value that is not finite at a rim */
};

INLINE void load_sums(int nv, const struct scratch *w) {
    tile_load(0, w->o[0], 64);
    if (nv > 1) tile_load(1, w->o[1], 64);
    if (nv > 2) tile_load(2, w->o[2], 64);
    if (nv > 3) tile_load(3, w->o[3], 64);
}
INLINE void store_sums(int nv, struct scratch *w) {
    tile_store(0, w->o[0], 64);
    if (nv > 1) tile_store(1, w->o[1], 64);
    if (nv > 2) tile_store(2, w->o[2], 64);
    if (nv > 3) tile_store(3, w->o[3], 64);
}

/* What rows have so far, from the caller's form to that of the tiles, and back. Rows that do not exist see nothing. */
static void begin(const struct attn_decode_amx *f, int groups, struct scratch *w) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                  odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int64_t r = 0; r < groups * FOUR; r++) {
        const int64_t g = r / FOUR, h = r % FOUR;
        const int exists = r < f->rows;
        for (int i = 0; i < FOUR; i++) {
            w->m[g][FOUR * i + h] = exists ? f->m[r] : -INFINITY;
            w->l[g][FOUR * i + h] = exists && i == 0 ? f->l[r] : 0;
        }
        for (int64_t x = 0; x < f->width / 32; x++) {
            v32 a = v32_set(0), b = a;
            if (exists) a = v32_load(f->o + r * f->ldo + 32 * x), b = v32_load(f->o + r * f->ldo + 32 * x + LANES);
            v32_store(w->o[x][g][0][h], _mm512_permutex2var_ps(a, even, b));
            v32_store(w->o[x][g][1][h], _mm512_permutex2var_ps(a, odd, b));
        }
    }
    for (int64_t g = 0; g < groups; g++)
        for (int64_t c = 0; c < f->depth / 2; c += FOUR) {
            __m128 x[FOUR];
            for (int64_t h = 0; h < FOUR; h++) {
                const int64_t r = g * FOUR + h;
                x[h] = r < f->rows ? _mm_loadu_ps(f->q + r * f->ldq + c) : _mm_setzero_ps();
            }
            _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
            for (int h = 0; h < FOUR; h++) _mm_store_ps(w->q[g] + (c + h) * FOUR, x[h]);
        }
}
static void end(const struct attn_decode_amx *f, const struct scratch *w) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                  high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t r = 0; r < f->rows; r++) {
        const int64_t g = r / FOUR, h = r % FOUR;
        const float *l = w->l[g] + h;
        f->m[r] = w->m[g][h];
        f->l[r] = (l[0] + l[FOUR]) + (l[2 * FOUR] + l[3 * FOUR]);
        for (int64_t x = 0; x < f->width / 32; x++) {
            const v32 a = v32_load(w->o[x][g][0][h]), b = v32_load(w->o[x][g][1][h]);
            v32_store(f->o + r * f->ldo + 32 * x, _mm512_permutex2var_ps(a, low, b));
            v32_store(f->o + r * f->ldo + 32 * x + LANES, _mm512_permutex2var_ps(a, high, b));
        }
    }
}

/* 16 rows, `apart` elements from one to the next, and what of them is prefetched: column c of those `ahead` elements
 * further. */
struct sixteen {
    const uint16_t *first;
    int64_t apart, ahead; /* ahead 0: nothing is prefetched */
    int soon;             /* into the first-level cache */
};
INLINE void prefetch(const struct sixteen *x, int64_t c) {
    if (!x->ahead) return;
    for (int i = 0; i < STEP; i++) {
        const void *line = (const void *)((uintptr_t)x->first + (uintptr_t)(i * x->apart + x->ahead + c) * 2);
        x->soon ? __builtin_prefetch(line, 0, 3) : __builtin_prefetch(line, 0, 2);
    }
}

/* Products of 16 keys with all rows. */
INLINE void score(int64_t depth, int groups, const struct sixteen *k, const struct scratch *w,
                  float (*s)[STEP * FOUR]) {
    UNROLL for (int g = 0; g < groups; g++) {
        tile_zero(4);
        for (int64_t c = 0; c < depth; c += 32) {
            tile_load(7, w->q[g] + c / 2 * FOUR, FOUR * sizeof(float));
            tile_load(6, k->first + c, k->apart * 2);
            if (g == 0) prefetch(k, c);
            tile_dpbf16(4, 6, 7);
        }
        tile_store(4, s[g], FOUR * sizeof(float));
    }
}
INLINE void add_pv(int nv, const struct sixteen *v, const struct scratch *w) {
    tile_load(5, w->p, 64);
#define PV(x)                                                                                                          \
    if (nv > x) {                                                                                                      \
        tile_load(6, v->first + 32 * x, v->apart * 2);                                                                 \
        prefetch(v, 32 * x);                                                                                           \
        tile_dpbf16(x, 5, 6);                                                                                          \
    }
    PV(0) PV(1) PV(2) PV(3)
}

/* The largest of each row, in all its lanes. */
static inline v32 largest_of_rows(const v32 *x) {
    v32 y = v32_max(v32_max(x[0], x[1]), v32_max(x[2], x[3]));
    y = v32_max(y, _mm512_shuffle_f32x4(y, y, 0x4e));
    return v32_max(y, _mm512_shuffle_f32x4(y, y, 0xb1));
}
/* Rows whose scores are far above their running max, or that have none, get a new one. e: exponents. Kept out of line:
 * it happens once a row, as a rule. */
static __attribute__((noinline)) void update_max(int nv, int g, v32 factor, const v32 *x, v32 *e, struct scratch *w) {
    const v32 least = v32_set(-INFINITY), old = v32_load(w->m[g]), high = largest_of_rows(x);
    const __mmask16 none = _mm512_cmp_ps_mask(old, least, _CMP_EQ_OQ),
                    moves = _mm512_cmp_ps_mask((high - old) * factor, v32_set(FAR), _CMP_NLE_UQ);
    const v32 m = _mm512_mask_mov_ps(old, moves, high);
    v32 rescale = (old - m) * factor;
    exp2_many(1, &rescale);
    rescale = _mm512_mask_mov_ps(rescale, none, v32_set(0));
    rescale = _mm512_mask_mov_ps(rescale, (__mmask16)~moves, v32_set(1));
    v32_store(w->m[g], m);
    v32_store(w->l[g], v32_load(w->l[g]) * rescale);
    for (int i = 0; i < FOUR; i++) { /* a NaN stays one, whether or not the row has a running max */
        const __mmask16 hidden = _mm512_cmp_ps_mask(x[i], least, _CMP_EQ_OQ);
        e[i] = _mm512_mask_mov_ps((x[i] - m) * factor, hidden, least);
    }
    float scale[LANES];
    v32_store(scale, rescale);
    store_sums(nv, w);
    for (int t = 0; t < nv; t++)
        for (int part = 0; part < 2; part++)
            for (int h = 0; h < FOUR; h++) {
                float *o = w->o[t][g][part][h];
                v32_store(o, v32_load(o) * v32_set(scale[h]));
            }
    load_sums(nv, w);
}
/* Scores of 16 keys become the rows of A for the second product. seen: NULL, or [8][16], which keys a row sees. */
INLINE void exp_scores(int nv, int g, v32 factor, const float *s, const __mmask16 *seen, struct scratch *w) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    float *p = w->p + g * 2 * FOUR * LANES;
    v32 x[FOUR], e[FOUR], m = v32_load(w->m[g]);
    UNROLL for (int i = 0; i < FOUR; i++) {
        x[i] = v32_load(s + i * LANES);
        if (seen) x[i] = _mm512_mask_mov_ps(v32_set(-INFINITY), seen[i], x[i]);
    }
    UNROLL for (int i = 0; i < FOUR; i++) e[i] = (x[i] - m) * factor;
    const v32 most = v32_max(v32_max(e[0], e[1]), v32_max(e[2], e[3]));
    const __mmask16 far = _mm512_cmp_ps_mask(most, v32_set(FAR), _CMP_NLE_UQ);
    if (__builtin_expect(far != 0, 0)) update_max(nv, g, factor, x, e, w);
    exp2_many(FOUR, e);
    v32_store(w->l[g], v32_load(w->l[g]) + ((e[0] + e[1]) + (e[2] + e[3])));
    /* 4 x 4 in every quarter, then quarters: t[h] holds keys 4 i + quarter */
    const __m512i a = _mm512_castps_si512(_mm512_unpacklo_ps(e[0], e[1])),
                  b = _mm512_castps_si512(_mm512_unpackhi_ps(e[0], e[1])),
                  c = _mm512_castps_si512(_mm512_unpacklo_ps(e[2], e[3])),
                  d = _mm512_castps_si512(_mm512_unpackhi_ps(e[2], e[3]));
    const __m512i t[FOUR] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                             _mm512_unpackhi_epi64(b, d)};
    UNROLL for (int h = 0; h < FOUR; h++) {
        const __m512i y = _mm512_add_epi32(_mm512_permutexvar_epi32(order, t[h]), _mm512_set1_epi32(0x8000));
        _mm512_store_si512(p + h * LANES, _mm512_srli_epi32(y, 16));
        _mm512_store_si512(p + (FOUR + h) * LANES, _mm512_and_si512(y, _mm512_set1_epi32((int32_t)0xffff0000u)));
    }
}

/* The operands of step j, a rim: keys that some row does not see. What none sees is 0 in the operands, and so are
 * values that are not finite; rows that see one of these are lost. */
static void load_rim(const struct attn_decode_amx *f, int64_t j, __mmask16 (*seen)[FOUR], struct scratch *w) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    memset(seen, 0, MOST_GROUPS * sizeof *seen);
    for (int64_t i = 0; i < STEP; i++) {
        int any = 0;
        for (int64_t r = 0; r < f->rows; r++) {
            if (j + i < f->lo[r] || j + i >= f->hi[r]) continue;
            seen[r / FOUR][i / FOUR] |= (__mmask16)(1u << (i % FOUR * FOUR + r % FOUR));
            any = 1;
        }
        uint16_t *k = w->k + i * f->depth, *v = w->v + i * f->width;
        memset(k, 0, (size_t)f->depth * sizeof *k);
        memset(v, 0, (size_t)f->width * sizeof *v);
        if (!any) continue;
        memcpy(k, f->k + (j + i) * f->ldk, (size_t)f->depth * sizeof *k);
        __mmask32 bad = 0;
        for (int64_t c = 0; c < f->width; c += 32) {
            const __m512i x = _mm512_loadu_si512(f->v + (j + i) * f->ldv + c);
            const __mmask32 infinite = _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
            _mm512_storeu_si512(v + c, _mm512_maskz_mov_epi16(~infinite, x));
            bad |= infinite;
        }
        for (int64_t r = 0; r < f->rows && bad; r++) w->lost[r] |= j + i >= f->lo[r] && j + i < f->hi[r];
    }
}
INLINE void rims(const struct attn_decode_amx *f, int groups, int nv, int64_t from, int64_t to, struct scratch *w) {
    __mmask16 seen[MOST_GROUPS][FOUR];
    for (int64_t j = from; j < to; j += STEP) {
        load_rim(f, j, seen, w);
        const struct sixteen k = {.first = w->k, .apart = f->depth}, v = {.first = w->v, .apart = f->width};
        score(f->depth, groups, &k, w, w->s[0]);
        UNROLL for (int g = 0; g < groups; g++) exp_scores(nv, g, v32_set(f->factor), w->s[0][g], seen[g], w);
        add_pv(nv, &v, w);
    }
}

/* Elements from a row to the one that is prefetched; the addresses may lie after the operand. Rows of four
 * lines and more that follow each other in sixteen streams the processor brings by itself. */
static int64_t ahead(const struct attn_decode_amx *f, int64_t n, int64_t ld, int streams) {
    if (!f->prefetch || (streams && ld == n && n >= BY_ITSELF)) return 0;
    return ((streams ? AHEAD : AHEAD_SOON) / 2 + n - 1) / n * ld;
}
/* n steps, 16 n keys that all rows see, the first of them at `from`: in turn, or, with `streams`, the keys of a step n
 * apart. */
INLINE void steps(const struct attn_decode_amx *f, int groups, int nv, int streams, int64_t from, int64_t n,
                  struct scratch *w) {
    const v32 factor = v32_set(f->factor);
    const int64_t next = streams ? 1 : STEP, apart = streams ? n : 1;
    struct sixteen k = {f->k + from * f->ldk, apart * f->ldk, ahead(f, f->depth, f->ldk, streams), !streams},
                   v = {f->v + from * f->ldv, apart * f->ldv, ahead(f, f->width, f->ldv, streams), !streams};
    int newest = 0, upcoming = 1; /* slots of scores: of this step, and of the one LAG steps before */
    for (int64_t j = 0; j < n + LAG; j++) {
        if (j < n) score(f->depth, groups, &k, w, w->s[newest]);
        k.first += next * f->ldk;
        if (j >= LAG) {
            UNROLL for (int g = 0; g < groups; g++) exp_scores(nv, g, factor, w->s[upcoming][g], NULL, w);
            add_pv(nv, &v, w);
            v.first += next * f->ldv;
        }
        newest = newest == LAG ? 0 : newest + 1, upcoming = upcoming == LAG ? 0 : upcoming + 1;
    }
}
/* All rows see the same keys. */
INLINE void same_keys(const struct attn_decode_amx *f, int groups, int nv, struct scratch *w) {
    const int64_t most = STREAM / (2 * f->depth) > 1 ? STREAM / (2 * f->depth) : 1;
    int64_t j = f->lo[0];
    for (int64_t n; (n = (f->hi[0] - j) / STEP) > 0; j += STEP * n) {
        n = n < most ? n : most;
        n -= n > 1 && n % 2 == 0; /* an even number of rows may be a multiple of what a cache has for one of its ways */
        steps(f, groups, nv, 1, j, n, w);
    }
    rims(f, groups, nv, j, f->hi[0], w);
}
INLINE void own_keys(const struct attn_decode_amx *f, int groups, int nv, struct scratch *w) {
    int64_t lo = INT64_MAX, hi = 0, lo_most = 0, hi_least = INT64_MAX;
    for (int64_t r = 0; r < f->rows; r++) {
        if (f->lo[r] > lo_most) lo_most = f->lo[r];
        if (f->hi[r] < hi_least) hi_least = f->hi[r];
        if (f->lo[r] >= f->hi[r]) continue;
        if (f->lo[r] < lo) lo = f->lo[r];
        if (f->hi[r] > hi) hi = f->hi[r];
    }
    if (lo >= hi) return;
    const int64_t first = lo / STEP * STEP, last = (hi + STEP - 1) / STEP * STEP;
    int64_t from = (lo_most + STEP - 1) / STEP * STEP, to = hi_least / STEP * STEP;
    if (from >= to) from = to = last;
    rims(f, groups, nv, first, from, w);
    if (from < to) steps(f, groups, nv, 0, from, (to - from) / STEP, w);
    rims(f, groups, nv, to, last, w);
}
INLINE void all_keys(const struct attn_decode_amx *f, int groups, int nv, struct scratch *w) {
    load_sums(nv, w);
    f->equal_ranges ? same_keys(f, groups, nv, w) : own_keys(f, groups, nv, w);
    store_sums(nv, w);
}

void attn_ukr_amx_decode(const struct attn_decode_amx *f) {
    struct scratch w;
    const int groups = f->rows > FOUR ? 2 : 1;
    memset(w.lost, 0, sizeof w.lost);
    begin(f, groups, &w);
    config(groups);
    switch (f->width / 32 * 2 + groups) {
    case 3: all_keys(f, 1, 1, &w); break;
    case 4: all_keys(f, 2, 1, &w); break;
    case 5: all_keys(f, 1, 2, &w); break;
    case 6: all_keys(f, 2, 2, &w); break;
    case 7: all_keys(f, 1, 3, &w); break;
    case 8: all_keys(f, 2, 3, &w); break;
    case 9: all_keys(f, 1, 4, &w); break;
    default: all_keys(f, 2, 4, &w);
    }
    tile_release();
    attn_ukr_amx_begin();
    end(f, &w);
    for (int64_t r = 0; r < f->rows; r++)
        if (w.lost[r]) f->l[r] = NAN;
}
