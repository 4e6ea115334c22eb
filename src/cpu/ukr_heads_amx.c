/* SPDX-License-Identifier: MIT
 * The sparse operators on AMX: strips of 32 heads against rows of keys, entries `soft` and `heads` of attn_ukr_pair.
 * Rows are A as they are in memory, heads lie across the lanes, so that statistics are vectors. All strips of 32 rows
 * come one after the other, a chunk of 32 rows x 32 heads each:
 *
 *     tiles      S, dP (c)        S, dP (c + 1)         sums stay in tiles until the next products need these; rows
 *     vectors    P, dS (c - 1)    P, dS (c)             (36 KiB) stay in the first-level cache, panels pass by
 *                an equal share after every two products, and of making pairs of rows of these; beside the last
 *                strip's products the next rows are copied
 *
 * soft knows no maximum when it takes a chunk's exponentials: they refer to the largest score of the first chunk in
 * which a head has one. Only where a chunk's sum passes 2^16 the reference moves, by a power of 2, so that what was
 * rounded before stays exact. Rows that fill up the last 32 are zeros, and their results are masked. */
#include "cpu/amx_tile.h"
#include "cpu/ukr.h"
#include "cpu/ukr_copy_amx.h"
#include "cpu/ukr_exp2.h"
#include "cpu/ukr_pair.h"
#include "cpu/ukr_unroll.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f
#define FAR    0x1p16f /* a chunk's sum beyond which its exponents refer to something larger */
enum { DEGREE = 4 };   /* of the exponential: 2.9e-6 */
enum { SIDE = ATTN_PAIR_HEADS, CELLS = SIDE * SIDE, TILE = 16 * 16, PAIRS = SIDE / 2 };

INLINE __m512i zipped(v32 even, v32 odd) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(zip), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

static __attribute__((noinline)) void copy_first(float *tiles, const struct attn_pair_rows *rows, int64_t depth) {
    struct copying c;
    copy_from(&c, tiles, rows, depth, 0);
    copy_rest(&c);
}

/* Pairs of rows from the copies of 32: four rows, 32 columns at a time, all rows before the next columns. */
struct zipping {
    const float *from;
    float *to;
    int64_t row, panel, panels, ldz;
};
INLINE struct zipping zip_from(const struct attn_pair_copies *f, const float *tiles, int64_t row) {
    return (struct zipping){tiles, f->zip + row / 2 * SIDE, 0, 0, f->width / 16, f->ldz};
}
INLINE void zip_unit(struct zipping *z) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i lo = _mm512_loadu_si512(low), hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    float *to = z->to + z->row * 8;
    UNROLL for (int i = 0; i < 4; i += 2) {
        const __m512i even = _mm512_loadu_si512(z->from + i * 16), odd = _mm512_loadu_si512(z->from + i * 16 + 16);
        _mm512_storeu_si512(to + i * 8, _mm512_permutex2var_epi16(even, lo, odd));
        _mm512_storeu_si512(to + i * 8 + TILE, _mm512_permutex2var_epi16(even, hi, odd));
    }
    z->from += 4 * 16, z->row += 4;
    if (z->row < SIDE) return;
    z->row = 0, z->panel++, z->to += z->ldz;
}

/* All up to and with a panel. */
INLINE void zip_to(struct zipping *z, int64_t panel) {
    while (z->panel < z->panels && z->panel <= panel) zip_unit(z);
}

/* Pairs of 32 rows [16][32] become tiles of A [2][16 heads][16 pairs]: heads from 16 h on. */
static __attribute__((noinline)) void turn_tile(float *to, const float *pairs, int64_t h) {
    attn_ukr_avx512.transpose_f32(to + h * TILE, 16, pairs + h * 16, SIDE, 16, 16);
}

/* S[32][32] = rows[32][depth] panel[depth][32], in pairs, both in tiles. FIRST and SECOND of step n, other work, follow
 * two products each. A tile of the panel, from the second-level cache, is loaded two products before it is needed, one
 * of the rows, from the first-level cache, one product. The sums stay in their tiles: each is stored, to `late` if
 * there is one, just before the next panel's products need its tile, and READY follows. */
#define OPEN(t, late)                                                                                                  \
    do {                                                                                                               \
        if (late) tile_store(t, (late) + (t) / 2 * 16 * SIDE + (t) % 2 * 16, SIDE * 4);                                \
        tile_zero(t);                                                                                                  \
    } while (0)
#define STEP(first, late, more, FIRST, SECOND)                                                                         \
    do {                                                                                                               \
        tile_load(5, a_ + TILE, 64);                                                                                   \
        a_ += 2 * TILE, b_ += 2 * TILE;                                                                                \
        if (first) OPEN(0, late);                                                                                      \
        tile_dpbf16(0, 4, 6);                                                                                          \
        if (first) OPEN(2, late);                                                                                      \
        tile_dpbf16(2, 5, 6);                                                                                          \
        if (more) tile_load_once(6, b_, 64);                                                                           \
        FIRST;                                                                                                         \
        if (first) OPEN(1, late);                                                                                      \
        tile_dpbf16(1, 4, 7);                                                                                          \
        if (more) tile_load(4, a_, 64);                                                                                \
        if (first) OPEN(3, late);                                                                                      \
        tile_dpbf16(3, 5, 7);                                                                                          \
        if (more) tile_load_once(7, b_ + TILE, 64);                                                                    \
        SECOND;                                                                                                        \
    } while (0)
#define PRODUCT(a, b, depth, late, READY, FIRST, SECOND)                                                               \
    do {                                                                                                               \
        const float *a_ = (a), *b_ = (b);                                                                              \
        const int64_t steps_ = (depth) / 16;                                                                           \
        int64_t n = 0;                                                                                                 \
        tile_load_once(6, b_, 64);                                                                                     \
        tile_load(4, a_, 64);                                                                                          \
        tile_load_once(7, b_ + TILE, 64);                                                                              \
        STEP(1, late, steps_ > 1, FIRST, SECOND);                                                                      \
        READY;                                                                                                         \
        for (n = 1; n < steps_; n++) STEP(0, late, n + 1 < steps_, FIRST, SECOND);                                     \
    } while (0)
static void store_last(float *c) {
    tile_store(0, c, SIDE * 4);
    tile_store(1, c + 16, SIDE * 4);
    tile_store(2, c + 16 * SIDE, SIDE * 4);
    tile_store(3, c + 16 * SIDE + 16, SIDE * 4);
}

/* A chunk of mla_fwd between its products and its probabilities. */
struct soft {
    const struct attn_pair_soft *f;
    int64_t strip, row, rows; /* rows that there are, up to 32 */
    const float *s;
    float *p, *to; /* pairs of rows, their tiles */
    v32 scale;
    __m512i sign; /* of the scale: max is of scores times that */
    float top[SIDE], max[SIDE], part[SIDE];
};
/* Largest of the chunk's scores, times log2 e, of heads at + 0 .. 15; a NaN is passed over. */
static v32 largest(const struct soft *w, int h) {
    v32 most = v32_set(-INFINITY);
    for (int64_t r = 0; r < w->rows; r++) most = v32_max(v32_load(w->s + r * SIDE + h * 16) * w->scale, most);
    return most;
}
/* Rows 2 n and 2 n + 1, heads from 16 h on; live: of the rows that there are. */
INLINE void soft_pair(struct soft *w, int64_t n, int h, int masked, int maxima) {
    const float *s = w->s + n * 2 * SIDE + h * 16;
    const v32 top = v32_load(w->top + h * 16);
    v32 x[2], max = v32_load(w->max + h * 16);
    UNROLL for (int i = 0; i < 2; i++) {
        const v32 raw = v32_load(s + i * SIDE);
        if (maxima) {
            __m512i times_sign = _mm512_xor_epi32((__m512i)raw, w->sign);
            if (masked && 2 * n + i >= w->rows) times_sign = (__m512i)v32_set(-INFINITY);
            max = v32_max((v32)times_sign, max);
        }
        x[i] = _mm512_fmsub_ps(raw, w->scale, top);
    }
    exp2_degree(DEGREE, 2, x);
    UNROLL for (int i = 0; i < 2; i++) {
        if (masked && 2 * n + i >= w->rows) x[i] = v32_set(0);
    }
    if (maxima) v32_store(w->max + h * 16, max);
    v32_store(w->part + h * 16, v32_load(w->part + h * 16) + (x[0] + x[1]));
    _mm512_storeu_si512(w->p + n * SIDE + h * 16, zipped(x[0], x[1]));
}
static __attribute__((noinline)) void soft_masked(struct soft *w, int64_t n, int h) { soft_pair(w, n, h, 1, 1); }
/* Unit n of a half's 17: pairs of rows, then the half's tile of them. */
INLINE void soft_unit(struct soft *w, int64_t n, int h, int maxima) {
    if (n < PAIRS) {
        if (w->rows == SIDE) {
            soft_pair(w, n, h, 0, maxima);
        } else {
            soft_masked(w, n, h);
        }
    } else if (n == PAIRS) {
        turn_tile(w->to, w->p, h);
    }
}
static __attribute__((noinline)) void soft_rest(struct soft *w, int64_t n) {
    for (; n <= PAIRS; n++)
        for (int h = 0; h < 2; h++) soft_unit(w, n, h, 1);
}
/* Heads that had no score yet refer to the largest of this chunk. */
static void settle(struct soft *w) {
    for (int h = 0; h < 2; h++) {
        float *top = w->f->top + w->strip * SIDE + h * 16;
        const __mmask16 none = _mm512_cmp_ps_mask(v32_load(top), v32_set(-INFINITY), _CMP_EQ_OQ);
        v32_store(top, _mm512_mask_mov_ps(v32_load(top), none, largest(w, h)));
    }
}
static void again(struct soft *w) {
    const struct attn_pair_soft *f = w->f;
    const int64_t at = w->strip * SIDE;
    const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000u);
    for (int h = 0; h < 2; h++) {
        float *top = f->top + at + h * 16, *sum = f->sum + at + h * 16, *shrink = f->shrink + at + h * 16;
        const v32 up = _mm512_roundscale_ps(largest(w, h) - v32_load(w->top + h * 16), 0x0a); /* whole, upwards */
        const __mmask16 far = _mm512_cmp_ps_mask(up, v32_set(0), _CMP_GT_OQ) &
                              _mm512_cmp_ps_mask(v32_load(w->part + h * 16), v32_set(FAR), _CMP_GT_OQ);
        const v32 moved = _mm512_maskz_mov_ps(far, up), now = v32_load(w->top + h * 16) + moved,
                  down = _mm512_scalef_ps(v32_set(1), -moved);
        v32_store(w->top + h * 16, now);
        v32_store(top, _mm512_mask_mov_ps(v32_load(top), far, now));
        v32_store(sum, v32_load(sum) * down);
        v32_store(shrink, v32_load(shrink) * down);
        v32_store(w->part + h * 16, v32_set(0));
        float fall[16];
        v32_store(fall, down);
        for (float *p = f->p + w->strip * f->ldp + h * TILE; p < w->to; p += 2 * TILE) /* of the block's rows before */
            for (int i = 0; i < 16; i++) {
                const __m512i pairs = _mm512_loadu_si512(p + i * 16);
                const v32 even = (v32)_mm512_slli_epi32(pairs, 16) * v32_set(fall[i]),
                          odd = (v32)_mm512_and_si512(pairs, high) * v32_set(fall[i]);
                _mm512_storeu_si512(p + i * 16, _mm512_or_si512(_mm512_srli_epi32((__m512i)even, 16),
                                                                _mm512_and_si512((__m512i)odd, high)));
            }
    }
    soft_rest(w, 0);
}
static void soft_begin(struct soft *w, int64_t strip, int64_t row) {
    const struct attn_pair_soft *f = w->f;
    const float *top = f->top + strip * SIDE;
    const v32 none = v32_set(-INFINITY);
    w->strip = strip, w->row = row;
    w->rows = f->rows.n - row < SIDE ? f->rows.n - row : SIDE;
    w->to = f->p + strip * f->ldp + row / 2 * SIDE;
    if (_mm512_cmp_ps_mask(v32_load(top), none, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(v32_load(top + 16), none, _CMP_EQ_OQ))
        settle(w);
    for (int h = 0; h < SIDE; h += 16) { /* all scores -inf: probabilities 0, not NaN */
        const v32 t = v32_load(top + h);
        v32_store(w->top + h, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, none, _CMP_NEQ_UQ), t));
        v32_store(w->max + h, none);
        v32_store(w->part + h, v32_set(0));
    }
}
/* A NaN among the scores is passed over by the maximum, not by the sum. */
static void soft_end(struct soft *w) {
    const struct attn_pair_soft *f = w->f;
    const v32 far = v32_set(FAR);
    if (_mm512_cmp_ps_mask(v32_load(w->part), far, _CMP_NLE_UQ) |
        _mm512_cmp_ps_mask(v32_load(w->part + 16), far, _CMP_NLE_UQ))
        again(w);
    for (int h = 0; h < SIDE; h += 16) {
        float *max = f->max + w->strip * SIDE + h, *sum = f->sum + w->strip * SIDE + h;
        const v32 part = v32_load(w->part + h);
        v32_store(sum, v32_load(sum) + part);
        if (!f->max) continue;
        /* a NaN of rows before stays */
        v32_store(max, v32_max(v32_load(w->max + h) * v32_set(fabsf(f->scale)), v32_load(max)));
        if (!v32_any_nan(part, part)) continue;
        for (int64_t r = 0; r < w->rows; r++)
            for (int i = 0; i < 16; i++)
                if (isnan(w->s[r * SIDE + h + i] * f->scale)) max[i] = NAN;
    }
}
INLINE void soft(const struct attn_pair_soft *f, int maxima) {
    struct soft w = {.f = f, .p = f->s + CELLS, .scale = v32_set(f->scale * LOG2_E), .s = f->s};
    struct coming c;
    const int64_t steps = f->depth / 16;
    float *const k = f->copies.tiles, *late = NULL;
    int64_t strip_late = 0, row_late = 0;
    w.sign = _mm512_set1_epi32(signbit(f->scale) ? INT32_MIN : 0);
    for (int64_t h = 0; h < f->strips * SIDE; h++) f->shrink[h] = 1;
    if (!f->copied) copy_first(k, &f->rows, f->depth);
#define READY                                                                                                          \
    do {                                                                                                               \
        if (late) soft_begin(&w, strip_late, row_late);                                                                \
    } while (0)
#define BESIDE(h)                                                                                                      \
    do {                                                                                                               \
        if (n && late) soft_unit(&w, n - 1, h, maxima);                                                                \
        if (z.panel < z.panels) zip_unit(&z);                                                                          \
    } while (0)
#define BESIDE_LAST(h)                                                                                                 \
    do {                                                                                                               \
        BESIDE(h);                                                                                                     \
        if (h) zip_to(&z, n);                                                                                          \
        if (c.any && (h || n)) copy_columns(&c, k, (h) ? n : n - 1, (h) ? 0 : 16);                                     \
    } while (0)
    for (int64_t row = 0; row < f->rows.n; row += SIDE) {
        struct zipping z = zip_from(&f->copies, k, row);
        coming_rows(&c, &f->rows, row + SIDE);
        for (int64_t strip = 0; strip < f->strips; strip++) {
            const float *q = f->q + strip * f->depth * SIDE;
            if (strip + 1 < f->strips) {
                PRODUCT(k, q, f->depth, late, READY, BESIDE(0), BESIDE(1));
            } else {
                PRODUCT(k, q, f->depth, late, READY, BESIDE_LAST(0), BESIDE_LAST(1));
                if (c.any) copy_columns(&c, k, steps - 1, 16);
            }
            if (late) soft_rest(&w, steps - 1), soft_end(&w);
            late = f->s, strip_late = strip, row_late = row;
        }
    }
    if (!late) return;
    store_last(late);
    soft_begin(&w, strip_late, row_late);
    soft_rest(&w, 0), soft_end(&w);
#undef READY
#undef BESIDE
#undef BESIDE_LAST
}
void attn_ukr_amx_soft(const struct attn_pair_soft *f) {
    if (f->max) {
        soft(f, 1);
    } else {
        soft(f, 0);
    }
}

/* A chunk of mla_bwd or dist between its products and its results. */
struct chunk {
    const struct attn_pair_heads *f;
    int64_t strip, row;
    const float *s;  /* dP follows S */
    float *held, *p; /* P of two rows; dS as pairs of rows */
};
INLINE void chunk_exp(const struct chunk *w, int64_t row, int n, v32 *p) {
    const struct attn_pair_heads *f = w->f;
    const int64_t at = w->strip * SIDE;
    const float *s = w->s + row * SIDE;
    const v32 scale = v32_set(f->scale);
    UNROLL for (int i = 0; i < n; i++) p[i] =
        _mm512_fmsub_ps(v32_load(s + i * 16), scale, v32_load(f->lse + at + i % 2 * 16)) * v32_set(LOG2_E);
    exp2_degree(DEGREE, n, p);
    UNROLL for (int i = 0; i < n; i++) {
        const __mmask16 live = w->row + row + i / 2 < f->rows.n ? (__mmask16)(f->live[w->strip] >> i % 2 * 16) : 0;
        p[i] = _mm512_maskz_mov_ps(live, p[i]);
    }
    for (int i = 0; i < n / 2 && f->sums; i++) {
        float *to = f->sums + (w->row + row + i) * 16;
        v32 both = p[2 * i] + p[2 * i + 1];
        if (w->strip) both += v32_load(to);
        if (w->strip + 1 < f->strips) {
            v32_store(to, both);
        } else {
            to[0] = v32_sum(both);
        }
    }
}
/* dS and g P of rows 2 n and 2 n + 1. */
INLINE void chunk_grad(const struct chunk *w, int64_t n) {
    const struct attn_pair_heads *f = w->f;
    const int64_t row = w->row + 2 * n, at = w->strip * SIDE;
    const float *dp = w->s + n * 2 * SIDE + CELLS;
    const v32 scale = v32_set(f->scale);
    v32 ds[4], gp[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const __mmask16 live = row + i / 2 < f->rows.n ? (__mmask16)(f->live[w->strip] >> i % 2 * 16) : 0;
        const v32 p = v32_load(w->held + i * 16), g = v32_load(f->g + at + i % 2 * 16);
        const v32 t = _mm512_fmsub_ps(g, v32_load(dp + i * 16), v32_load(f->c + at + i % 2 * 16));
        ds[i] = _mm512_maskz_mul_ps(live, p * t, scale);
        gp[i] = p * g;
    }
    float *x = f->x + (w->row * 2 * f->strips + w->strip * SIDE + 2 * n) * 16;
    UNROLL for (int i = 0; i < 2; i++, x += 16) {
        _mm512_storeu_si512(x, (__m512i)_mm512_cvtne2ps_pbh(ds[2 * i + 1], ds[2 * i]));
        _mm512_storeu_si512(x + f->strips * SIDE * 16, (__m512i)_mm512_cvtne2ps_pbh(gp[2 * i + 1], gp[2 * i]));
        _mm512_storeu_si512(w->p + n * SIDE + i * 16, zipped(ds[i], ds[2 + i]));
    }
}
/* Unit n of dist's 32: a row. Of mla_bwd's 34: two rows P, their dS and g P, and so on, then two tiles of dS. */
INLINE void chunk_unit(const struct chunk *w, int64_t n, int grad) {
    v32 p[4];
    if (n >= SIDE) {
        if (grad && n < SIDE + 2) turn_tile(w->f->ds + w->strip * w->f->ld_ds + w->row / 2 * SIDE, w->p, n - SIDE);
    } else if (!grad) {
        chunk_exp(w, n, 2, p);
    } else if (n % 2) {
        chunk_grad(w, n / 2);
    } else {
        chunk_exp(w, n, 4, p);
        UNROLL for (int i = 0; i < 4; i++) v32_store(w->held + i * 16, p[i]);
    }
}
static __attribute__((noinline)) void chunk_rest(const struct chunk *w, int64_t n, int grad) {
    for (; n < SIDE + 2; n++) {
        if (grad) {
            chunk_unit(w, n, 1);
        } else {
            chunk_unit(w, n, 0);
        }
    }
}
INLINE void heads(const struct attn_pair_heads *f, int grad) {
    const int64_t steps = f->depth / 16, more_steps = grad ? f->width / 16 : 0;
    float held[4 * 16], *const k = f->copies.tiles, *late = NULL;
    struct chunk w = {.f = f, .held = held, .p = f->s + 4 * CELLS};
    struct coming c;
    int64_t turn = 0;
    if (!f->copied) copy_first(k, &f->rows, f->depth);
        /* n: of the panel's steps; at: of the chunk's, whose dP is there after the first */
#define READY (void)0
#define BESIDE(at, h)                                                                                                  \
    do {                                                                                                               \
        if (late && (grad ? !(h) : n > 0)) chunk_unit(&w, grad ? (at) : 2 * (at) + (h)-2, grad);                       \
        if (z.panel < z.panels) zip_unit(&z);                                                                          \
    } while (0)
#define BESIDE_LAST(at, h)                                                                                             \
    do {                                                                                                               \
        BESIDE(at, h);                                                                                                 \
        if (h) zip_to(&z, n);                                                                                          \
        if (c.any && ((h) || n)) copy_columns(&c, k, (h) ? n : n - 1, (h) ? 0 : 16);                                   \
    } while (0)
    for (int64_t row = 0; row < f->rows.n; row += SIDE) {
        struct zipping z = zip_from(&f->copies, k, row);
        coming_rows(&c, &f->rows, row + SIDE);
        for (int64_t strip = 0; strip < f->strips; strip++, turn ^= 1) {
            float *s = f->s + turn * 2 * CELLS;
            const float *q = f->q + strip * f->depth * SIDE, *o = f->dout + strip * f->width * SIDE;
            const int last = strip + 1 == f->strips;
            if (grad || !last) {
                PRODUCT(k, q, f->depth, late, READY, BESIDE(n, 0), BESIDE(n, 1));
            } else {
                PRODUCT(k, q, f->depth, late, READY, BESIDE_LAST(n, 0), BESIDE_LAST(n, 1));
                if (c.any) copy_columns(&c, k, steps - 1, 16);
            }
            if (grad && !last) {
                PRODUCT(k, o, f->width, s, READY, BESIDE(steps + n, 0), BESIDE(steps + n, 1));
            } else if (grad) {
                PRODUCT(k, o, f->width, s, READY, BESIDE_LAST(steps + n, 0), BESIDE_LAST(steps + n, 1));
                zip_to(&z, steps);
                if (c.any) copy_columns(&c, k, more_steps - 1, 16);
                for (int64_t n = more_steps; c.any && n < steps; n++)
                    copy_columns(&c, k, n, 0), copy_columns(&c, k, n, 16);
            }
            if (late) chunk_rest(&w, grad ? steps + more_steps : 2 * steps - 2, grad);
            w.strip = strip, w.row = row, w.s = s;
            late = grad ? s + CELLS : s;
        }
    }
    if (late) store_last(late), chunk_rest(&w, 0, grad);
#undef READY
#undef BESIDE
#undef BESIDE_LAST
}
void attn_ukr_amx_heads(const struct attn_pair_heads *f) {
    if (f->dout) {
        heads(f, 1);
    } else {
        heads(f, 0);
    }
}
