/* SPDX-License-Identifier: MIT
 * Rows of scores of fwd_rowmajor.c outside of its full steps: what a mask adds and hides, and the score that a
 * query's probabilities are relative to. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_ROWMAJOR_SCORES_H
#define ATTN_CPU_AMX_DENSE_FWD_ROWMAJOR_SCORES_H
#include "cpu/amx/dense_fwd/alibi.h"
#include "cpu/amx/dense_fwd/rowmajor_exp.h"
#include "cpu/amx/dense_fwd/running_max.h"

#include <string.h>

/* ------------------------------------------------------------------ rows of scores -------------------- */

/* Rows of a step's scores: 16 keys, and TILE after them 16 more. */
static inline float *score_row(float *s, int64_t r) { return s + r / LANES * (2 * TILE) + r % LANES * LANES; }
/* What a step that needs care has of a mask. Where a row does not see a key, it is -inf and the product 0, whatever
 * they were: a scale may be 0 or negative. */
struct cells {
    float addend[ROWS][2 * LANES];
    const char *row[ROWS];
    int64_t step;
};
/* Of products x: 16 keys of a row, from `key` on. */
static __attribute__((noinline)) v32 score_mod_of(const struct attn_fwd_score_mod *score, int32_t key, int64_t r,
                                                  v32 x) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    v32 d = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_set1_epi32(key), lane)) - v32_set(score->origin[r]);
    if (score->alibi == 2) d = v32_set(score->near[r]) - v32_abs(d);
    if (score->caps) {
        v32 many[SOFTCAP_MANY] = {x};
        softcap_many(many, &score->cap);
        x = many[0];
    } else {
        x *= v32_set(score->scale);
    }
    return score->alibi ? v32_fma(v32_set(score->slope[r]), d, x) : x;
}
/* Scores of a row. */
static inline struct addends scores_of(const struct attn_fwd_strip *f, const struct cells *cells, float *s, int64_t r) {
    const struct attn_fwd_score_mod *const score = f->score;
    const struct addends add = addends_of(ATTN_UKR_MASK_F32, cells->row[r]);
    const v32 scale = v32_set(score->scale), low = v32_load(score_row(s, r)), high = v32_load(score_row(s, r) + TILE);
    const int32_t key = (int32_t)(cells->step * SPAN);
    if (!score->caps && !score->alibi)
        return (struct addends){v32_fma(low, scale, add.low), v32_fma(high, scale, add.high)};
    return (struct addends){score_mod_of(score, key, r, low) + add.low,
                            score_mod_of(score, key + LANES, r, high) + add.high};
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
static v32 largest(const struct attn_fwd_strip *f, const struct cells *cells, float *s, int64_t h) {
    v32 x[LANES];
    for (int64_t r = 0; r < LANES; r++) {
        const struct addends both = scores_of(f, cells, s, h + r);
        x[r] = v32_max(both.low, both.high);
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
static inline uint32_t hidden_keys(const struct attn_fwd_strip *f, int64_t step, int64_t r) {
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
/* Takes the mask of a step, and hides keys. mask: the score's, a constant. */
INLINE void prepare_of(int mask, const struct attn_fwd_strip *f, int64_t step, float *s, struct cells *cells) {
    const struct attn_fwd_score_mod *const score = f->score;
    const int64_t bytes = mask_bytes(mask), have = score->mask_keys - step * SPAN;
    uint32_t page_missing = 0;
    cells->step = step;
    for (int i = 0; f->page_missing && i < SPAN; i++)
        page_missing |= (uint32_t)(f->page_missing[step * SPAN + i] != 0) << i;
    for (int64_t r = 0; r < ROWS; r++) {
        char part[SPAN * 4] = {0}; /* after the mask's last key nothing is read */
        const char *cell = part;
        if (mask && have >= SPAN) {
            cell = score->cell[r] + step * SPAN * bytes;
        } else if (mask && have > 0) {
            memcpy(part, score->cell[r] + step * SPAN * bytes, (size_t)(have * bytes));
        }
        const struct addends add = adds(mask) ? addends_of(mask, cell) : (struct addends){v32_set(0), v32_set(0)};
        const uint32_t hidden =
            hidden_keys(f, step, r) | page_missing | (mask == ATTN_UKR_MASK_BITS ? ~visible_of(cell) : 0);
        const __mmask16 a = (__mmask16)hidden, b = (__mmask16)(hidden >> 16);
        _mm512_mask_storeu_ps(score_row(s, r), a, v32_set(0));
        _mm512_mask_storeu_ps(score_row(s, r) + TILE, b, v32_set(0));
        v32_store(cells->addend[r], _mm512_mask_mov_ps(add.low, a, v32_set(-INFINITY)));
        v32_store(cells->addend[r] + LANES, _mm512_mask_mov_ps(add.high, b, v32_set(-INFINITY)));
        cells->row[r] = (const char *)cells->addend[r];
    }
}
static __attribute__((noinline)) void prepare(const struct attn_fwd_strip *f, int64_t step, float *s,
                                              struct cells *cells) {
    switch (f->score->mask) {
    case ATTN_UKR_MASK_F32: prepare_of(ATTN_UKR_MASK_F32, f, step, s, cells); break;
    case ATTN_UKR_MASK_F16: prepare_of(ATTN_UKR_MASK_F16, f, step, s, cells); break;
    case ATTN_UKR_MASK_BF16: prepare_of(ATTN_UKR_MASK_BF16, f, step, s, cells); break;
    case ATTN_UKR_MASK_BITS: prepare_of(ATTN_UKR_MASK_BITS, f, step, s, cells); break;
    default: prepare_of(ATTN_UKR_MASK_NONE, f, step, s, cells);
    }
}
static __attribute__((noinline)) void record_visible(const struct attn_fwd_strip *f, int64_t step,
                                                     const struct cells *cells, float *s) {
    uint32_t *const visible = f->visible + step * SPAN;
    memset(visible, 0, SPAN * sizeof *visible);
    for (int64_t r = 0; r < ROWS; r++) {
        const struct addends both = scores_of(f, cells, s, r);
        float scores[SPAN];
        v32_store(scores, both.low), v32_store(scores + LANES, both.high);
        for (int i = 0; i < SPAN; i++) visible[i] |= (uint32_t)(scores[i] != -INFINITY) << r;
    }
}
/* Rows of which some probability is too large. */
static uint32_t too_large(const float *p) {
    const __m512i bits = _mm512_set1_epi32((int32_t)(TOO_LARGE | TOO_LARGE >> 16));
    uint32_t rows = 0;
    for (int64_t r = 0; r < ROWS; r++)
        if (_mm512_test_epi32_mask(_mm512_loadu_si512(p + r * LANES), bits)) rows |= UINT32_C(1) << r;
    return rows;
}

/* ------------------------------------------------------------------ references ------------------------ */

/* Of 32 queries, and where the exponentials read it. */
struct offsets {
    struct running_max r[2];
    float *value; /* [SUBTRACTED], times attn_fwd_parts */
};
/* Scores of rows whose running max is far are finished, and relative to it. */
static inline void put_offset(const struct attn_fwd_strip *f, const struct offsets *t, int64_t h, v32 factor) {
    const struct attn_fwd_score_mod *const score = f->score;
    const v32 parts = v32_set(attn_fwd_parts(t->r[h].degree)), offset = t->r[h].offset * parts;
    float *const value = t->value + h * LANES;
    v32_store(value, offset);
    if (!score->alibi) return;
    const v32 slope = v32_load(score->slope + h * LANES) * factor * parts;
    const __mmask16 near = (__mmask16)~far_of(&t->r[h], factor);
    v32_store(value + 2 * ROWS, v32_load(score->origin + h * LANES));
    if (score->alibi == 1) {
        v32_store(value + ROWS, _mm512_maskz_sub_ps(near, v32_set(0), slope));
    } else {
        v32_store(value, _mm512_mask_mov_ps(offset, near, v32_nfma(slope, v32_load(score->near + h * LANES), offset)));
        v32_store(value + ROWS, _mm512_maskz_mov_ps(near, slope));
    }
}
/* Scores of a row whose running max is far become 0, and what they are apart from it is added as a mask is. */
static void put_far(const struct attn_fwd_strip *f, struct cells *cells, float *s, int64_t r, float m) {
    const struct addends both = scores_of(f, cells, s, r);
    for (int64_t h = 0; h < 2; h++) v32_store(score_row(s, r) + h * TILE, v32_set(0));
    v32_store(cells->addend[r], both.low - v32_set(m)), v32_store(cells->addend[r] + LANES, both.high - v32_set(m));
}
/* Takes the largest score of `which` rows as running max; rows that have seen nothing get probabilities 0 and not NaN.
 * What was summed before, and l of blocks before, is rescaled. */
static __attribute__((noinline)) void update_max(const struct attn_fwd_strip *f, struct offsets *t, struct cells *cells,
                                                 float *s, float *sum, v32 factor, uint32_t which) {
    for (int64_t h = 0; h < 2; h++) {
        struct running_max *const r = &t->r[h];
        const __mmask16 lanes = (__mmask16)(which >> h * LANES);
        if (!lanes) continue;
        const v32 most = v32_max(r->m, largest(f, cells, s, h * LANES)),
                  growth_left = growth(f->score, SPAN, cells->step * SPAN, h),
                  m = _mm512_mask_mov_ps(r->m, lanes, ahead_of(r, most, growth_left, factor));
        const __mmask16 none = _mm512_cmp_ps_mask(m, v32_set(-INFINITY), _CMP_EQ_OQ), far = far_lanes(r, m, factor);
        const v32 scale = rescale_by(r, m, factor);
        float values_of[2][LANES];
        r->rescale = r->rescale * scale;
        r->m = m;
        r->offset = _mm512_mask_mov_ps(m * factor, none | far, v32_set(0)) + v32_set(r->below);
        put_offset(f, t, h, factor);
        v32_store(f->l + h * LANES, v32_load(f->l + h * LANES) * scale);
        v32_store(values_of[0], m), v32_store(values_of[1], scale);
        for (int64_t i = 0; i < LANES; i++) {
            float *const l = sum + (h * LANES + i) * LANES;
            if (values_of[1][i] != 1) v32_store(l, v32_load(l) * v32_set(values_of[1][i]));
            if ((far & lanes & (__mmask16)~none) >> i & 1) put_far(f, cells, s, h * LANES + i, values_of[0][i]);
        }
    }
}
static __attribute__((noinline)) void rescale_sums(int64_t o_slices, float *o, const struct running_max *r) {
    float scale[ROWS];
    for (int64_t h = 0; h < 2; h++) v32_store(scale + h * LANES, r[h].rescale);
    for (int64_t o_slice = 0; o_slice < o_slices; o_slice++)
        for (int64_t i = 0; i < ROWS; i++) {
            float *const row = score_row(o + o_slice * SQUARE, i);
            v32_store(row, v32_load(row) * v32_set(scale[i]));
            v32_store(row + TILE, v32_load(row + TILE) * v32_set(scale[i]));
        }
}
#endif
