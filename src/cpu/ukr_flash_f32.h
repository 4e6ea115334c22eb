/* SPDX-License-Identifier: MIT
 * Microkernels of the f32 forward with queries across the lanes (sdpa_flash_f32.c). Keys and values are read as they
 * are in memory, one number at a time for all queries of a strip; queries, probabilities and sums are transposed:
 * q [depth][32], p [keys][32], o [width][32]. Each element is one chain over the summed axis: results do not depend on
 * how keys are cut. */
#ifndef ATTN_CPU_UKR_FLASH_F32_H
#define ATTN_CPU_UKR_FLASH_F32_H
#include "cpu/ukr_softcap.h"

#include <stdint.h>

enum { ATTN_FLASH_F32 = 32, ATTN_FLASH_F32_ROWS = 14 }; /* queries of a strip; keys of a register tile */

#define ATTN_FLASH_F32_LOG2E 0x1.715476p0f

struct attn_ukr_flash_f32 {
    /* s = products of n keys, rows of k that follow each other at once. */
    void (*scores)(int64_t n, int64_t depth, const float *k, const float *q, float *s);
    /* s[j][q] = -inf for keys j outside lo[q] .. hi[q] */
    void (*hide)(int64_t n, float *s, const int32_t *lo, const int32_t *hi);
    /* high[q] = largest s[j][q] that is not NaN, -inf if there is none */
    void (*high)(int64_t n, const float *s, float *high);
    /* Queries of `which` (a bit each) refer to the score high[q] from now on, if it is finite and larger than ref[q];
     * fresh: only those that refer to none yet, ref[q] = -inf. less and top as soften takes them: the exponential's
     * argument is one multiply-add, whatever its constant is rounded to, but for scores so large (2^24 in units of
     * ln 2) that the product with log2 e is rounded by more than 1. Returns which they are. */
    uint32_t (*refer)(uint32_t which, int fresh, const float *high, float *ref, float *less, float *top);
    /* s = 2^((s - less[q]) * LOG2E - top[q]), within 2e-7 of that of the rounded argument; less = NULL: all 0. -inf
     * gives 0, NaN and infinity stay. sum[q] = sums over keys; returns bit q for sums that are not <= most. */
    uint32_t (*soften)(int64_t n, float *s, const float *less, const float *top, float most, float *sum);
    /* Scores of n keys with a softcap. */
    void (*cap)(int64_t n, float *s, const struct attn_softcap *cap);
    /* scores, cap unless that is NULL, and soften at once, to the same bits */
    uint32_t (*weigh)(int64_t n, int64_t depth, const float *k, const float *q, float *p,
                      const struct attn_softcap *cap, const float *less, const float *top, float most, float *sum);
    /* o = values^T p of n keys, rows of v that follow each other at once; more: o += */
    void (*add)(int64_t n, int64_t width, const float *v, const float *p, float *o, int more);
    /* o[c][q] *= factor[q] */
    void (*scale)(int64_t width, float *o, const float *factor);
    /* Of sums that are positive and normal: 1 / l rounded, ln l within 2e-7 (relative to 1 if that is more). */
    void (*close)(const float *l, float *inverse, float *log);
};
extern const struct attn_ukr_flash_f32 attn_ukr_flash_f32_avx512;
#endif
