/* SPDX-License-Identifier: MIT
 * Scores of a step of the forward on AMX (fwd.c) before its exponentials: hidden keys, overridden products, the record
 * of visible keys, and the update of the running max. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_STEP_SCORES_H
#define ATTN_CPU_AMX_DENSE_FWD_STEP_SCORES_H
#include "cpu/amx/dense_fwd/alibi.h"
#include "cpu/amx/dense_fwd/exp.h"
#include "cpu/amx/dense_fwd/running_max.h"
#include "cpu/ukr/score_mod.h"

#include <string.h>

#define MOST 65536.0f /* of a step's sum, relative to the running max */

/* Scores that a query does not see become `none`; keys that all see are passed over. */
static void hide(const struct attn_fwd_strip *f, int64_t span, int64_t step, float *s, v32 none) {
    const __m512i begin = _mm512_set1_epi32((int32_t)(step * span)), one = _mm512_set1_epi32(1);
    for (int64_t h = 0; h < LANES_ALL; h += 16) {
        const __m512i lo = _mm512_sub_epi32(_mm512_loadu_si512(f->seen + h), begin),
                      hi = _mm512_sub_epi32(_mm512_loadu_si512(f->seen + LANES_ALL + h), begin);
        const int32_t before = _mm512_reduce_max_epi32(lo), last = _mm512_reduce_min_epi32(hi),
                      from = last > 0 ? last : 0;
        __m512i key = _mm512_setzero_si512();
        for (int64_t j = 0; j < before && j < span; j++, key = _mm512_add_epi32(key, one))
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, _mm512_cmplt_epi32_mask(key, lo), none);
        key = _mm512_set1_epi32(from);
        for (int64_t j = from; j < span; j++, key = _mm512_add_epi32(key, one))
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, _mm512_cmpge_epi32_mask(key, hi), none);
    }
}
static __attribute__((noinline)) void hide_missing_pages(const struct attn_fwd_strip *f, int64_t span, int64_t step,
                                                         float *s, v32 none) {
    for (int64_t j = 0; j < span; j++) {
        if (!f->page_missing[step * span + j]) continue;
        v32_store(s + j * LANES_ALL, none);
        v32_store(s + j * LANES_ALL + 16, none);
    }
}
/* Products with nonfinite rows, computed by vectors, replace those of the tiles. */
static void put_overrides(const struct attn_fwd_strip *f, int64_t span, int64_t step, float *s) {
    for (int64_t j = 0; j < span; j++) {
        const uint32_t which = f->score_override[step * span + j];
        const float *from = f->override_scores + (step * span + j) * LANES_ALL;
        for (int64_t h = 0; h < LANES_ALL; h += 16) {
            const __mmask16 m = (__mmask16)(which >> h);
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h, m, _mm512_maskz_loadu_ps(m, from + h));
        }
    }
}
/* The halves of a word are put together as masks: gcc 12 with -O1 -fsanitize=undefined spills a mask of 16 bits as such
 * and reads it back as the 32 it is widened to, with the stack's in the upper half. */
static void record_visible(const struct attn_fwd_strip *f, int64_t span, int64_t step, const float *s, v32 none) {
    const __m512i hidden = _mm512_castps_si512(none);
    for (int64_t j = 0; j < span; j++, s += LANES_ALL) {
        const __mmask16 low = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(s), hidden),
                        high = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(s + 16), hidden);
        f->visible[step * span + j] = _cvtmask32_u32(_mm512_kunpackw(high, low));
    }
}
static void apply_bool_mask(const struct attn_fwd_strip *f, int64_t span, int64_t step) {
    for (int64_t j = step * span; j < (step + 1) * span; j++) f->visible[j] &= f->score->bits[j];
}

/* Largest score of each query. A NaN may be passed over: its exponential puts it into the sum. */
static inline v32 largest(const float *s, int64_t span, v32 old) {
    v32 a = old, b = old, c = old, d = old;
    for (int64_t j = 0; j < span; j += 4, s += 4 * LANES_ALL) {
        a = v32_max(a, v32_load(s));
        b = v32_max(b, v32_load(s + LANES_ALL));
        c = v32_max(c, v32_load(s + 2 * LANES_ALL));
        d = v32_max(d, v32_load(s + 3 * LANES_ALL));
    }
    return v32_max(v32_max(a, b), v32_max(c, d));
}
static __attribute__((noinline)) void subtract(float *s, int64_t span, __mmask16 far, v32 m) {
    for (int64_t j = 0; j < span; j++, s += LANES_ALL) _mm512_mask_storeu_ps(s, far, v32_load(s) - m);
}
/* Moves the running max of some queries to their maximum so far. Rows that have seen no key get probabilities 0, not
 * NaN. */
static __attribute__((noinline)) void update_max(struct running_max *r, float *s, int64_t span, v32 factor,
                                                 __mmask16 lanes, v32 growth_left) {
    const v32 m = _mm512_mask_mov_ps(r->m, lanes, ahead_of(r, largest(s, span, r->m), growth_left, factor));
    const __mmask16 none = _mm512_cmp_ps_mask(m, v32_set(-INFINITY), _CMP_EQ_OQ),
                    far = far_lanes(r, m, factor) & (__mmask16)~none;
    r->rescale = r->rescale * rescale_by(r, m, factor);
    r->m = m;
    r->offset = _mm512_maskz_mov_ps((__mmask16) ~(none | far), in_parts(r, m * factor)) + v32_set(r->below);
    if (far & lanes) subtract(s, span, far & lanes, m);
}
/* The same where s holds products and the score_mod is fused with the exponentials: the scores are computed in a copy.
 * Queries whose maximum is `far` get these scores, with m subtracted, in place of their products. */
static __attribute__((noinline)) void update_max_fused(const struct attn_fwd_strip *f, int64_t span, int64_t step,
                                                       struct running_max *r, float *s, v32 factor,
                                                       const __mmask16 *lanes) {
    float score_of[ATTN_FWD_STEP * LANES_ALL] __attribute__((aligned(64)));
    memcpy(score_of, s, (size_t)(span * LANES_ALL) * sizeof *s);
    score(f->score, span, step * span, score_of);
    hide(f, span, step, score_of, v32_set(-INFINITY));
    if (f->page_missing) hide_missing_pages(f, span, step, score_of, v32_set(-INFINITY));
    for (int64_t h = 0; h < 2; h++) {
        if (!lanes[h]) continue;
        update_max(&r[h], score_of + h * 16, span, factor, lanes[h], growth(f->score, span, step * span, h));
        const __mmask16 far = far_of(&r[h], factor) & lanes[h];
        for (int64_t j = 0; far && j < span; j++)
            _mm512_mask_storeu_ps(s + j * LANES_ALL + h * 16, far, v32_load(score_of + j * LANES_ALL + h * 16));
    }
}
/* Queries whose sum of probabilities is above MOST or NaN. */
static inline __mmask16 passed(v32 sum) { return _mm512_cmp_ps_mask(sum, v32_set(MOST), _CMP_NLT_UQ); }
static __attribute__((noinline)) void rescale_sums(float *o, int64_t width, v32 a0, v32 a1) {
    for (int64_t d = 0; d < width; d++, o += LANES_ALL) {
        v32_store(o, v32_load(o) * a0);
        v32_store(o + 16, v32_load(o + 16) * a1);
    }
}
#endif
