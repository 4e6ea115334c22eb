/* SPDX-License-Identifier: MIT
 * The sparse operators on AMX: strips of 32 heads against gathered rows, entries `soft` and `heads` of attn_ukr_pair.
 * Rows are A as they are in memory, heads lie across the lanes, so that statistics are vectors.
 *
 *     soft (mla_fwd)              tiles    S(0)  S(1)      S(2)      S(3)                a strip's S: rows x 32 f32
 *                                 vectors        P(0)      P(1)      P(2)      P(3)      its Q panel: depth x 32 pairs
 *     heads (mla_bwd, dist)       tiles    S, dP (c)       S, dP (c + 1)                 chunk c: 32 rows x 32 heads,
 *                                 vectors  P, dS (c - 1)   P, dS (c)                     8 KiB of sums, twice
 *
 * soft takes its strips one after the other, the panel stays in the first-level cache and rows pass by; heads takes all
 * strips of 32 rows, rows stay and panels pass by. Two rows of results become a row of pairs with one conversion and
 * one permutation. Rows that fill up the last 32 may hold anything: their lanes are masked. */
#include "cpu/amx_tile.h"
#include "cpu/ukr_exp2_avx512.h"
#include "cpu/ukr_pair.h"
#include "cpu/ukr_unroll.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f
enum { SIDE = ATTN_PAIR_HEADS, CELLS = SIDE * SIDE, UNITS = SIDE / 2 };

INLINE __m512i zipped(v32 even, v32 odd) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(zip), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* Asks for `lines` more of the rows to come. */
struct asked {
    int64_t row, at;
};
INLINE void ask(const struct attn_pair_next *next, struct asked *a, int lines) {
    for (int i = 0; i < lines && a->row < next->n; i++) {
        __builtin_prefetch(next->base + next->key[a->row] * next->stride + a->at, 0, 2);
        a->at += 64;
        if (a->at >= next->bytes) a->at = 0, a->row++;
    }
}

/* S[32][32] = rows[32][depth] panel[depth][32], in pairs. Tiles are loaded one product ahead; a share of other work
 * follows every two products: DEAL. */
#define PRODUCT(a, lda, load_a, b, load_b, depth, c, DEAL)                                                             \
    do {                                                                                                               \
        tile_zero(0);                                                                                                  \
        tile_zero(1);                                                                                                  \
        tile_zero(2);                                                                                                  \
        tile_zero(3);                                                                                                  \
        load_a(4, (a), (lda)*4);                                                                                       \
        load_b(6, (b), SIDE * 4);                                                                                      \
        for (int64_t x = 0; x < (depth); x += 16) {                                                                    \
            const int more = x + 16 < (depth);                                                                         \
            load_b(7, (b) + x * SIDE + 16, SIDE * 4);                                                                  \
            tile_dpbf16(0, 4, 6);                                                                                      \
            load_a(5, (a) + 16 * (lda) + x, (lda)*4);                                                                  \
            tile_dpbf16(1, 4, 7);                                                                                      \
            DEAL;                                                                                                      \
            if (more) load_a(4, (a) + x + 16, (lda)*4);                                                                \
            tile_dpbf16(2, 5, 6);                                                                                      \
            if (more) load_b(6, (b) + (x + 16) * SIDE, SIDE * 4);                                                      \
            tile_dpbf16(3, 5, 7);                                                                                      \
            DEAL;                                                                                                      \
        }                                                                                                              \
        tile_store(0, (c), SIDE * 4);                                                                                  \
        tile_store(1, (c) + 16, SIDE * 4);                                                                             \
        tile_store(2, (c) + 16 * SIDE, SIDE * 4);                                                                      \
        tile_store(3, (c) + 16 * SIDE + 16, SIDE * 4);                                                                 \
    } while (0)

/* A strip of mla_fwd between its products and its probabilities. */
struct soft {
    const struct attn_pair_soft *f;
    int64_t strip, done, pairs; /* of two rows; first all of them for the maximum, then all for the exponentials */
    const float *s;
    float *p;
    v32 scale, top[2], part[2], old[2];
};
static void settle(struct soft *w) {
    for (int h = 0; h < 2; h++) {
        float *max = w->f->max + w->strip * SIDE + h * 16;
        const __mmask16 lost = _mm512_cmp_ps_mask(w->old[h], w->old[h], _CMP_UNORD_Q); /* NaN of rows before these */
        w->top[h] = _mm512_mask_mov_ps(w->top[h], lost, w->old[h]);
        v32_store(max, w->top[h]);
        const __mmask16 none = _mm512_cmp_ps_mask(w->top[h], v32_set(-INFINITY), _CMP_EQ_OQ);
        w->top[h] = _mm512_mask_mov_ps(w->top[h], none, v32_set(0)); /* all scores -inf: probabilities 0, not NaN */
        v32_store(w->f->shrink + w->strip * SIDE + h * 16, exp2_vec((w->old[h] - w->top[h]) * v32_set(LOG2_E)));
    }
}
INLINE void soft_unit(struct soft *w) {
    const int64_t first = w->done < w->pairs, u = first ? w->done : w->done - w->pairs, two = 2 * u + 1 < w->f->rows;
    const float *s = w->s + u * 2 * SIDE;
    if (first) {
        for (int h = 0; h < 2; h++) {
            v32 x = v32_max(w->top[h], v32_load(s + h * 16) * w->scale);
            if (two) x = v32_max(x, v32_load(s + SIDE + h * 16) * w->scale);
            w->top[h] = x;
        }
        if (++w->done == w->pairs) settle(w);
        return;
    }
    v32 x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] =
        _mm512_fmsub_ps(v32_load(s + i * 16), w->scale, w->top[i % 2]) * v32_set(LOG2_E);
    exp2_many(4, x);
    UNROLL for (int h = 0; h < 2; h++) {
        if (!two) x[2 + h] = v32_set(0);
        w->part[h] += x[h] + x[2 + h];
        _mm512_storeu_si512(w->p + u * SIDE + h * 16, zipped(x[h], x[2 + h]));
    }
    w->done++;
}
/* A NaN among the scores is passed over by the maximum, not by the sum. */
static void finish_soft(struct soft *w) {
    const struct attn_pair_soft *f = w->f;
    for (int h = 0; h < 2; h++) {
        float *max = f->max + w->strip * SIDE + h * 16, *sum = f->sum + w->strip * SIDE + h * 16;
        v32_store(sum, v32_fma(v32_load(sum), v32_load(f->shrink + w->strip * SIDE + h * 16), w->part[h]));
        if (!v32_any_nan(w->part[h], w->part[h])) continue;
        for (int64_t r = 0; r < f->rows; r++)
            for (int i = 0; i < 16; i++)
                if (isnan(w->s[r * SIDE + h * 16 + i] * f->scale)) max[i] = NAN;
    }
}
void attn_ukr_amx_soft(const struct attn_pair_soft *f) {
    const int64_t padded = (f->rows + SIDE - 1) / SIDE * SIDE, pairs = (f->rows + 1) / 2,
                  slots = padded / SIDE * f->depth / 8, each = (2 * pairs + slots - 1) / slots;
    struct soft w = {.f = f, .strip = -1};
#define DEAL                                                                                                           \
    for (int64_t n = 0; n < each && w.done < 2 * w.pairs; n++) soft_unit(&w)
    for (int64_t strip = 0; strip <= f->strips; strip++) {
        float *s = f->s + strip % 2 * padded * SIDE;
        for (int64_t r = 0; strip < f->strips && r < padded; r += SIDE)
            PRODUCT(f->k + r * f->ldk, f->ldk, tile_load_once, f->q + strip * f->depth * SIDE, tile_load, f->depth,
                    s + r * SIDE, DEAL);
        while (w.done < 2 * w.pairs) soft_unit(&w);
        for (int64_t n = w.pairs; n % 16; n++) memset(w.p + n * SIDE, 0, SIDE * sizeof *w.p);
        if (strip > 0) finish_soft(&w);
        w = (struct soft){.f = f,
                          .strip = strip,
                          .pairs = strip < f->strips ? pairs : 0,
                          .s = s,
                          .p = f->p + strip * f->ldp,
                          .scale = v32_set(f->scale)};
        for (int h = 0; h < 2 && strip < f->strips; h++)
            w.part[h] = v32_set(0), w.old[h] = w.top[h] = v32_load(f->max + strip * SIDE + h * 16);
    }
#undef DEAL
}

/* A chunk of mla_bwd or dist between its products and its results. */
struct chunk {
    const struct attn_pair_heads *f;
    int64_t strip, row, done;
    const float *s; /* dP follows S */
};
INLINE void chunk_unit(struct chunk *w, int grad) {
    const struct attn_pair_heads *f = w->f;
    const int64_t u = w->done++, row = w->row + 2 * u, at = w->strip * SIDE;
    const float *s = w->s + u * 2 * SIDE, *dp = s + CELLS;
    const v32 scale = v32_set(f->scale);
    __mmask16 live[4];
    v32 p[4], ds[4], gp[4];
    UNROLL for (int i = 0; i < 4; i++) {
        live[i] = row + i / 2 < f->rows ? (__mmask16)(f->live[w->strip] >> i % 2 * 16) : 0;
        p[i] = _mm512_fmsub_ps(v32_load(s + i * 16), scale, v32_load(f->lse + at + i % 2 * 16)) * v32_set(LOG2_E);
    }
    exp2_many(4, p);
    UNROLL for (int i = 0; i < 4; i++) p[i] = _mm512_maskz_mov_ps(live[i], p[i]);
    for (int i = 0; i < 2 && f->sums; i++) {
        float *to = f->sums + (row + i) * 16;
        v32 both = p[2 * i] + p[2 * i + 1];
        if (w->strip) both += v32_load(to);
        if (w->strip + 1 < f->strips) {
            v32_store(to, both);
        } else {
            to[0] = v32_sum(both);
        }
    }
    if (!grad) return;
    UNROLL for (int i = 0; i < 4; i++) {
        const v32 g = v32_load(f->g + at + i % 2 * 16);
        const v32 t = _mm512_fmsub_ps(g, v32_load(dp + i * 16), v32_load(f->c + at + i % 2 * 16));
        ds[i] = _mm512_maskz_mul_ps(live[i], p[i] * t, scale);
        gp[i] = p[i] * g;
    }
    float *x = f->x + (w->row * 2 * f->strips + w->strip * SIDE + 2 * u) * 16;
    UNROLL for (int i = 0; i < 2; i++, x += 16) {
        _mm512_storeu_si512(x, (__m512i)_mm512_cvtne2ps_pbh(ds[2 * i + 1], ds[2 * i]));
        _mm512_storeu_si512(x + f->strips * SIDE * 16, (__m512i)_mm512_cvtne2ps_pbh(gp[2 * i + 1], gp[2 * i]));
        _mm512_storeu_si512(f->ds + w->strip * f->ld_ds + row / 2 * SIDE + i * 16, zipped(ds[i], ds[2 + i]));
    }
}
INLINE void heads(const struct attn_pair_heads *f, int grad) {
    const int64_t slots = (f->depth + (grad ? f->width : 0)) / 8, each = (UNITS + slots - 1) / slots;
    struct chunk w = {.f = f, .done = UNITS};
    struct asked asked = {0, 0};
    int64_t turn = 0;
#define DEAL                                                                                                           \
    for (int64_t n = 0; n < each && w.done < UNITS; n++) chunk_unit(&w, grad);                                         \
    ask(&f->next, &asked, 4)
    for (int64_t row = 0; row < f->rows; row += SIDE) {
        const float *k = f->k + row * f->ldk;
        for (int64_t strip = 0; strip < f->strips; strip++, turn ^= 1) {
            float *s = f->s + turn * 2 * CELLS;
            PRODUCT(k, f->ldk, tile_load, f->q + strip * f->depth * SIDE, tile_load_once, f->depth, s, DEAL);
            if (grad)
                PRODUCT(k, f->ldk, tile_load, f->dout + strip * f->width * SIDE, tile_load_once, f->width, s + CELLS,
                        DEAL);
            while (w.done < UNITS) chunk_unit(&w, grad);
            w = (struct chunk){f, strip, row, 0, s};
        }
    }
    while (w.done < UNITS) chunk_unit(&w, grad);
#undef DEAL
}
void attn_ukr_amx_heads(const struct attn_pair_heads *f) {
    if (f->dout) {
        heads(f, 1);
    } else {
        heads(f, 0);
    }
}
