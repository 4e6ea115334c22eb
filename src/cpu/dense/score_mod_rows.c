/* SPDX-License-Identifier: MIT
 * Scores of a strip of flat rows: see score_mod_rows.h. */
#include "cpu/dense/score_mod_rows.h"

#include <string.h>

enum { ROWS = ATTN_FWD_ROWS, STEP = ATTN_CPU_STRIP_STEP };

void attn_cpu_strip_masks(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row, int64_t n, int64_t j0,
                          int64_t keys, float *bias, float *tmp) {
    float *rows = tmp, *other = rows + ROWS * STEP;
    memset(rows, 0, (size_t)(ROWS * STEP) * sizeof *rows);
    for (int64_t c = 0; c < keys; c += STEP) {
        for (int64_t r = 0; r < n; r++) {
            const int64_t key = j0 + c, a = row[r].lo > key ? row[r].lo : key,
                          e = row[r].hi < key + STEP ? row[r].hi : key + STEP;
            memset(rows + r * STEP, 0, (size_t)STEP * sizeof *rows);
            if (a < e) attn_cpu_sdpa_add_mask_f32(s, &row[r], rows + r * STEP + a - key, a, e - a, other);
        }
        s->u->transpose_f32(bias + c * ROWS, ROWS, rows, STEP, ROWS, STEP);
    }
}

int attn_cpu_strip_mask(const struct attn_cpu_sdpa *s) {
    if (!s->p->mask_dtype) return ATTN_UKR_MASK_NONE;
    if (!s->mask.column) return ATTN_UKR_MASK_BIAS;
    switch (s->p->mask_dtype) {
    case ATTN_BOOL: return ATTN_UKR_MASK_BITS;
    case ATTN_F32: return ATTN_UKR_MASK_F32;
    case ATTN_F16: return ATTN_UKR_MASK_F16;
    case ATTN_BF16: return ATTN_UKR_MASK_BF16;
    default: return ATTN_UKR_MASK_BIAS;
    }
}

void attn_cpu_strip_score(const struct attn_cpu_sdpa *s, const struct attn_cpu_sdpa_row *row, int64_t n, int64_t j0,
                          struct attn_fwd_score_mod *score) {
    score->scale = (float)s->remaining_scale;
    score->caps = s->p->softcap > 0;
    if (score->caps) score->cap = attn_softcap_of(s->softcap, s->remaining_scale);
    score->alibi = s->p->alibi == ATTN_ALIBI_NONE ? 0 : 1 + (s->p->alibi == ATTN_ALIBI_DISTANCE);
    for (int64_t r = 0; r < ROWS; r++) {
        const int there = r < n && score->alibi;
        score->slope[r] = there ? (float)row[r].slope : 0;
        score->origin[r] = there ? (float)((score->alibi == 2 ? row[r].diagonal : row[r].alibi_ref) - j0) : 0;
        score->near[r] = there && score->alibi == 2 ? (float)row[r].alibi_ref : 0;
    }
    score->mask = attn_cpu_strip_mask(s);
    score->hides = s->p->mask_dtype == ATTN_BOOL;
    score->mask_keys = s->p->seq_k - j0;
    score->mask_bytes = s->mask.element_bytes;
    for (int64_t r = 0; r < ROWS && score->mask; r++) /* what becomes of a row that is not there does not matter */
        score->cell[r] = row[r < n ? r : 0].mask + j0 * s->mask.column * s->mask.element_bytes;
}
