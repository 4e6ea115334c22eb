/* SPDX-License-Identifier: MIT
 * A strip of 32 queries on AMX: attn_ukr_pair.flash. Scores are made transposed, S^T = K Q^T, so that key rows are used
 * as they are in memory and the softmax needs no sum across a register; O^T = V^T P^T.
 *
 *            queries                          tiles (tmm)                     per step of 64 keys, bytes
 *     keys  +-------+-------+   QK: 4 5 keys, 6 7 queries, 0-3 scores         S  64 x 32 f32      8 KiB, two of them
 *      16   |   0   |   1   |   PV: 4 5 values^T, 6 7 P, 0-3 sums             P  32 x 32 pairs    4 KiB, two of them
 *      16   |   2   |   3   |                                                 O^T  width x 32 f32, Q^T depth x 32 bf16
 *           +-------+-------+                                                 D 64: 36 KiB of the first-level cache
 *
 * The tile unit and the vector unit work side by side: between the products of Q with the keys of step j + 1 and of P
 * with the values of step j - 1 the exponentials of step j are dealt out evenly. Keys and values are loaded with the
 * hint that they pass through: what else is in the table above stays.
 *
 *     step    j - 1            j                j + 1
 *     tiles   QK(j)   PV(j-2)  QK(j+1) PV(j-1)  QK(j+2) PV(j)
 *     vectors max, exp (j-1)   max, exp (j)     max, exp (j+1)         then O and l shrink if a maximum moved */
#include "cpu/amx_tile.h"
#include "cpu/ukr_exp2_avx512.h"
#include "cpu/ukr_pair.h"

#include <math.h>

enum { LANES_ALL = ATTN_PAIR_FLASH, STEP = ATTN_PAIR_FLASH_STEP, TILE = 256 /* elements of 32 bits */ };

/* Exponentials of a step, two keys by 32 queries at a time. */
struct exps {
    v32 factor, top0, top1, sum0, sum1;
    __m512i zip;
    const float *s;
    float *p;
    int64_t done, credit, products; /* so many products share the STEP / 2 */
};
static inline __attribute__((always_inline)) void two_keys(struct exps *e) {
    const float *s = e->s + e->done * 2 * LANES_ALL;
    float *p = e->p + e->done * LANES_ALL;
    const v32 a0 = exp2_vec((v32_load(s) - e->top0) * e->factor);
    const v32 a1 = exp2_vec((v32_load(s + 16) - e->top1) * e->factor);
    const v32 b0 = exp2_vec((v32_load(s + LANES_ALL) - e->top0) * e->factor);
    const v32 b1 = exp2_vec((v32_load(s + LANES_ALL + 16) - e->top1) * e->factor);
    e->sum0 += a0 + b0;
    e->sum1 += a1 + b1;
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(e->zip, (__m512i)_mm512_cvtne2ps_pbh(b0, a0)));
    _mm512_storeu_si512(p + 16, _mm512_permutexvar_epi16(e->zip, (__m512i)_mm512_cvtne2ps_pbh(b1, a1)));
    e->done++;
}
/* Called after each product. */
static inline __attribute__((always_inline)) void share(struct exps *e) {
    for (e->credit += STEP / 2; e->credit >= e->products && e->done < STEP / 2; e->credit -= e->products) two_keys(e);
}

/* Scores of the keys of a step. */
static inline __attribute__((always_inline)) void keys(const struct attn_pair_flash *f, int64_t step, float *s,
                                                       struct exps *e) {
    const float *q = f->q, *q_more = f->q + f->depth / 2 * 16;
    for (int64_t c = 0; c < STEP; c += 32, s += 32 * LANES_ALL) {
        const uint16_t *k = f->k + (step * STEP + c) * f->ldk;
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
        for (int64_t x = 0; x < f->depth; x += 32) {
            tile_load_once(4, k + x, f->ldk * 2);
            tile_load(6, q + x / 2 * 16, 64);
            tile_dpbf16(0, 4, 6);
            share(e);
            tile_load(7, q_more + x / 2 * 16, 64);
            tile_dpbf16(1, 4, 7);
            share(e);
            tile_load_once(5, k + 16 * f->ldk + x, f->ldk * 2);
            tile_dpbf16(2, 5, 6);
            share(e);
            tile_dpbf16(3, 5, 7);
            share(e);
        }
        tile_store(0, s, LANES_ALL * 4);
        tile_store(1, s + 16, LANES_ALL * 4);
        tile_store(2, s + 16 * LANES_ALL, LANES_ALL * 4);
        tile_store(3, s + 16 * LANES_ALL + 16, LANES_ALL * 4);
    }
}

/* Values of a step, weighed with p, go to the sums. */
static inline __attribute__((always_inline)) void values(const struct attn_pair_flash *f, int64_t step, const float *p,
                                                         struct exps *e) {
    for (int64_t d = 0; d < f->width; d += 32) {
        const float *v = f->v + (step * STEP / 32 * f->width + d) * 16;
        float *o = f->o + d * LANES_ALL;
        tile_load(0, o, LANES_ALL * 4);
        tile_load(1, o + 16, LANES_ALL * 4);
        tile_load(2, o + 16 * LANES_ALL, LANES_ALL * 4);
        tile_load(3, o + 16 * LANES_ALL + 16, LANES_ALL * 4);
        for (int64_t c = 0; c < STEP / 2; c += 16, v += f->width * 16) {
            tile_load_once(4, v, 64);
            tile_load(6, p + c * LANES_ALL, LANES_ALL * 4);
            tile_dpbf16(0, 4, 6);
            share(e);
            tile_load(7, p + c * LANES_ALL + 16, LANES_ALL * 4);
            tile_dpbf16(1, 4, 7);
            share(e);
            tile_load_once(5, v + TILE, 64);
            tile_dpbf16(2, 5, 6);
            share(e);
            tile_dpbf16(3, 5, 7);
            share(e);
        }
        tile_store(0, o, LANES_ALL * 4);
        tile_store(1, o + 16, LANES_ALL * 4);
        tile_store(2, o + 16 * LANES_ALL, LANES_ALL * 4);
        tile_store(3, o + 16 * LANES_ALL + 16, LANES_ALL * 4);
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
static void note_live(const struct attn_pair_flash *f, int64_t step, const float *s) {
    for (int64_t j = 0; j < STEP; j++, s += LANES_ALL) {
        const v32 none = v32_set(-INFINITY); /* unordered: a NaN is live */
        const uint32_t low = _mm512_cmp_ps_mask(v32_load(s), none, _CMP_NEQ_UQ);
        f->live[step * STEP + j] = low | (uint32_t)_mm512_cmp_ps_mask(v32_load(s + 16), none, _CMP_NEQ_UQ) << 16;
    }
}

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
/* What exponentials are taken relative to: a row that has seen nothing has probabilities 0 and not NaN. */
static inline v32 finite_top(v32 m) {
    return _mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(m, v32_set(-INFINITY), _CMP_EQ_OQ), v32_set(0));
}
/* By how much older sums shrink, 1 where the maximum stays. */
static inline v32 shrink_of(v32 old, v32 m, v32 factor) {
    const __mmask16 same = _mm512_cmp_ps_mask(old, m, _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(exp2_vec((old - finite_top(m)) * factor), same, v32_set(1));
}
static void shrink_sums(float *o, int64_t width, v32 a0, v32 a1) {
    const v32 one = v32_set(1);
    if (!(_mm512_cmp_ps_mask(a0, one, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(a1, one, _CMP_NEQ_UQ))) return;
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

void attn_ukr_amx_flash(const struct attn_pair_flash *f) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const int64_t steps = f->n / STEP, by_keys = STEP / 32 * f->depth / 32 * 4,
                  by_values = STEP / 32 * f->width / 32 * 4;
    v32 m0 = v32_load(f->m), m1 = v32_load(f->m + 16), l0 = v32_load(f->l), l1 = v32_load(f->l + 16);
    struct exps e = {.factor = v32_set(f->factor), .zip = _mm512_loadu_si512(zip), .done = STEP / 2, .products = 1};
    if (steps > 0) keys(f, 0, f->s, &e);
    for (int64_t j = 0; j < steps; j++) {
        float *s = f->s + j % 2 * STEP * LANES_ALL, *next = f->s + (j + 1) % 2 * STEP * LANES_ALL;
        const float *p = f->p + (j + 1) % 2 * STEP / 2 * LANES_ALL;
        if (!open_step(f, j)) hide(f, j, s);
        if (f->live) note_live(f, j, s);
        const v32 old0 = m0, old1 = m1;
        m0 = largest(s, m0);
        m1 = largest(s + 16, m1);
        const v32 a0 = shrink_of(old0, m0, e.factor), a1 = shrink_of(old1, m1, e.factor);
        e.top0 = finite_top(m0), e.top1 = finite_top(m1), e.sum0 = e.sum1 = v32_set(0);
        e.s = s, e.p = f->p + j % 2 * STEP / 2 * LANES_ALL, e.done = e.credit = 0;
        e.products = (j + 1 < steps ? by_keys : 0) + (j > 0 ? by_values : 0);
        if (j + 1 < steps) keys(f, j + 1, next, &e);
        if (j > 0) values(f, j - 1, p, &e);
        while (e.done < STEP / 2) two_keys(&e);
        l0 = v32_fma(l0, a0, e.sum0);
        l1 = v32_fma(l1, a1, e.sum1);
        shrink_sums(f->o, f->width, a0, a1);
    }
    e.done = STEP / 2;
    if (steps > 0) values(f, steps - 1, f->p + (steps - 1) % 2 * STEP / 2 * LANES_ALL, &e);
    v32_store(f->m, m0), v32_store(f->m + 16, m1);
    v32_store(f->l, l0), v32_store(f->l + 16, l1);
}
