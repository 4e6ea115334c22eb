/* SPDX-License-Identifier: MIT
 * Products of a step of a strip (dense_fwd/fwd.c, transposed_tpl.h) become scores in place: scale, softcap, ALiBi, what
 * a mask adds. Queries lie across the lanes, so that slopes are vectors and a key's distance is one number for a
 * vector. Only what struct attn_fwd_score_mod says; hidden keys are handled by the strip. */
#ifndef ATTN_CPU_UKR_SCORE_MOD_H
#define ATTN_CPU_UKR_SCORE_MOD_H
#ifdef __AVX512F__
#include "cpu/ukr/mask_avx512.h"
#else
#include "cpu/ukr/mask_avx2.h"
#endif
#include "cpu/vec/softcap_vec.h"

#include <string.h>

enum { SCORE_MANY = SOFTCAP_MANY, SCORE_LANES = ATTN_FWD_ROWS };

/* Which of 64 keys a boolean mask leaves visible, a bit each, low and high half: a query's bits lie in its lane, and
 * nothing is transposed. / */
struct bool_mask {
    uint32_t half[2][SCORE_LANES];
};
/* s = s * times + mask, for keys from `key` of the strip on. After the last key nothing is read and 0 is added. */
static void add_masks(const struct attn_fwd_score_mod *f, int64_t span, int64_t key, float times, float *s) {
    const int64_t bytes = f->mask == ATTN_UKR_MASK_F32 ? 4 : 2, some = MASK_PART / bytes;
    const v32 scale = v32_set(times);
    for (int64_t j = 0; j < span; j += some, s += some * MASK_ROWS) {
        char part[MASK_ROWS][MASK_PART];
        const char *part_of[MASK_ROWS], *const *row = f->cell;
        const int64_t have = f->mask_keys - key - j;
        int64_t offset = (key + j) * bytes;
        if (have < some) {
            memset(part, 0, sizeof part);
            for (int r = 0; r < MASK_ROWS; r++) {
                if (have > 0) memcpy(part[r], row[r] + offset, (size_t)(have * bytes));
                part_of[r] = part[r];
            }
            row = part_of, offset = 0;
        }
        for (int64_t h = 0; h < MASK_ROWS; h += V32_LANES) {
            if (f->mask == ATTN_UKR_MASK_F32) {
                add_part(ATTN_UKR_MASK_F32, row + h, offset, scale, s + h);
            } else if (f->mask == ATTN_UKR_MASK_BF16) {
                add_part(ATTN_UKR_MASK_BF16, row + h, offset, scale, s + h);
            } else {
                add_part(ATTN_UKR_MASK_F16, row + h, offset, scale, s + h);
            }
        }
    }
}
/* Of the queries of a vector, from lane h on. */
static inline __attribute__((always_inline)) void score_lanes(const struct attn_fwd_score_mod *f,
                                                              const struct bool_mask *bool_mask, int64_t span,
                                                              int64_t key, float *s, int64_t h) {
    static const uint32_t bit[32] = {1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
                                     1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
                                     1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
                                     1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
    const v32 scale = v32_set(f->scale), slope = v32_load(f->slope + h), origin = v32_load(f->origin + h),
              near = v32_load(f->near + h);
    const float *bias = f->mask == ATTN_UKR_MASK_BIAS ? f->bias + key * SCORE_LANES + h : NULL;
    v32 from[SCORE_MANY]; /* key - origin: to make a vector of each key anew would take longer than all the rest */
    UNROLL for (int i = 0; i < SCORE_MANY; i++) from[i] = v32_set((float)(key + i)) - origin;
    for (int64_t j = 0; j < span; j += SCORE_MANY) {
        float *cells = s + j * SCORE_LANES + h;
        v32 x[SCORE_MANY];
        UNROLL for (int i = 0; i < SCORE_MANY; i++) x[i] = v32_load(cells + i * SCORE_LANES);
        if (f->caps) {
            softcap_many(x, &f->cap);
        } else {
            UNROLL for (int i = 0; i < SCORE_MANY; i++) x[i] *= scale;
        }
        if (f->alibi) {
            UNROLL for (int i = 0; i < SCORE_MANY; i++) {
                v32 d = from[i];
                if (f->alibi == 2) d = near - v32_abs(d);
                x[i] = v32_fma(slope, d, x[i]);
                from[i] += v32_set(SCORE_MANY);
            }
        }
        if (bias && f->hides) {
            UNROLL for (int i = 0; i < SCORE_MANY; i++) {
                const v32 b = v32_load(bias + (j + i) * SCORE_LANES);
                x[i] = v32_pick(v32_ne(b, v32_set(0)), b, x[i]);
            }
        } else if (bias) {
            UNROLL for (int i = 0; i < SCORE_MANY; i++) x[i] += v32_load(bias + (j + i) * SCORE_LANES);
        }
        if (f->mask == ATTN_UKR_MASK_BITS) {
            UNROLL for (int i = 0; i < SCORE_MANY; i++) x[i] =
                v32_pick(v32_any_bit(bool_mask->half[j / 32] + h, bit[j % 32 + i]), x[i], v32_set(-__builtin_inff()));
        }
        UNROLL for (int i = 0; i < SCORE_MANY; i++) v32_store(cells + i * SCORE_LANES, x[i]);
    }
}
/* Where a boolean mask is all there is. */
static inline __attribute__((always_inline)) void score_bool_mask(const struct attn_fwd_score_mod *f,
                                                                  const struct bool_mask *bool_mask, int64_t span,
                                                                  float *s, int64_t h) {
    const v32 scale = v32_set(f->scale), none = v32_set(-__builtin_inff());
    for (int64_t j = 0; j < span; j += 32) {
        UNROLL for (int i = 0; i < 32; i++) {
            float *cells = s + (j + i) * SCORE_LANES + h;
            v32_store(cells,
                      v32_pick(v32_any_bit(bool_mask->half[j / 32] + h, 1u << i), v32_load(cells) * scale, none));
        }
    }
}
/* All of a step. */
static __attribute__((noinline)) void score(const struct attn_fwd_score_mod *f, int64_t span, int64_t key, float *s) {
    const int simple = !f->caps && !f->alibi, adds = f->mask >= ATTN_UKR_MASK_F32 && f->mask <= ATTN_UKR_MASK_BF16;
    struct bool_mask bool_mask;
    if (f->mask == ATTN_UKR_MASK_BITS) look_up_bool_mask(f, key, bool_mask.half);
    for (int64_t h = 0; h < SCORE_LANES; h += V32_LANES) {
        if (simple && f->mask == ATTN_UKR_MASK_BITS) {
            score_bool_mask(f, &bool_mask, span, s, h);
        } else if (!simple || !adds) {
            score_lanes(f, &bool_mask, span, key, s, h);
        }
    }
    if (adds) add_masks(f, span, key, simple ? f->scale : 1, s);
}
#endif
