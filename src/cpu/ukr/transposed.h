/* SPDX-License-Identifier: MIT
 * Microkernels of the forward with transposed scores (dense/fwd_transposed.c): the 32 queries of a strip lie across
 * the lanes. Q, P and O are transposed, q [depth][32], p [keys][32], o [width][32]; elements of K and V are broadcast
 * one at a time. Each result is one chain of multiply-adds along the summed axis, so it does not depend on how keys
 * are cut.
 *
 * An element is a number of f32 or a pair of bf16 (bf16.h) that travels as
 * one: then depth counts pairs of a key's columns, an odd last one filled up with 0, values are zipped by two keys, and
 * p has a row of pairs for two keys. */
#ifndef ATTN_CPU_UKR_TRANSPOSED_H
#define ATTN_CPU_UKR_TRANSPOSED_H
#include "cpu/vec/softcap.h"

#include <stdint.h>

enum {
    ATTN_TRANSPOSED = 32,      /* queries of a strip */
    ATTN_TRANSPOSED_ROWS = 14, /* keys of a register tile of AVX-512 */
    ATTN_TRANSPOSED_MORE = 32
};
struct attn_fwd_score_mod; /* bf16.h */

/* P = 2^((s - pre_offset[q]) * factor - offset[q]). The argument is one multiply-add of the score, whatever the factor
 * is rounded to. */
struct attn_transposed_exp {
    const struct attn_softcap *cap; /* NULL: none */
    float factor, most;
    int bf16_accuracy;       /* of pairs: within 1e-4 and not 3e-6 (f32: 2e-7) of that of the rounded argument */
    const float *pre_offset; /* NULL: all 0 */
    const float *offset;
};

/* n_half: 2; or 1 where only the first 16 queries exist: the others' results are undefined, their sums are 0. */
struct attn_ukr_transposed {
    int pairs; /* 1: elements are pairs of bf16 */
    /* s[j][q] = k[j] . q[q] for n keys; rows of k are contiguous. */
    void (*scores)(int n_half, int64_t n, int64_t depth, const float *k, const float *q, float *s);
    /* s[j][q] = -inf for keys j outside lo[q] .. hi[q] */
    void (*hide)(int64_t n, float *s, const int32_t *lo, const int32_t *hi);
    /* high[q] = largest s[j][q] that is not NaN, -inf if there is none */
    void (*high)(int64_t n, const float *s, float *high);
    /* For queries of `which` (a bit each) high[q] becomes the running max ref[q], if it is finite and larger. fresh:
     * only where ref[q] is -inf. Sets pre_offset and offset, see attn_transposed_exp. pre_offset is 0, except for
     * scores so large (2^24 in units of ln 2) that score * factor is rounded by more than 1. Returns the queries whose
     * running max moved. */
    uint32_t (*update_max)(uint32_t which, int fresh, const float *high, float factor, float *ref, float *pre_offset,
                           float *offset);
    /* Scores become probabilities in place (pairs: in the first half of s). -inf gives 0, NaN and infinity stay. sum[q]
     * = the sum over keys of unrounded probabilities; pairs: sum[ATTN_TRANSPOSED + q] of rounded ones. Returns a bit
     * for each sum[q] that is not <= most. The cap is not read. */
    uint32_t (*exp_scores)(int n_half, int64_t n, float *s, const struct attn_transposed_exp *exp_args, float *sum);
    /* score_mod of n keys in place; the first is key `key` of f. Up to ATTN_TRANSPOSED_MORE rows of s after them are
     * overwritten. */
    void (*score)(const struct attn_fwd_score_mod *f, int64_t n, int64_t key, float *s);
    /* growth_left[q] = how much larger ALiBi becomes after these keys than within them, 40 at most. */
    void (*growth)(const struct attn_fwd_score_mod *f, int64_t n, int64_t key, float *growth_left);
    /* Scores of n keys with a softcap. */
    void (*cap)(int64_t n, float *s, const struct attn_softcap *cap);
    /* scores, cap (unless NULL) and exp_scores in one pass, with the same bits. pairs: p has room for one more tile of
     * scores. */
    uint32_t (*scores_exp)(int n_half, int64_t n, int64_t depth, const float *k, const float *q, float *p,
                           const struct attn_transposed_exp *exp_args, float *sum);
    /* o = V^T p over n keys (pairs: pairs of keys), rows of v contiguous; accumulate: o += */
    void (*add)(int n_half, int64_t n, int64_t width, const float *v, const float *p, float *o, int accumulate);
    /* o[c][q] *= factor[q] */
    void (*scale)(int64_t width, float *o, const float *factor);
    /* For positive normal l: inverse = 1 / l rounded, log = ln l within 2e-7 (relative to 1 if that is more). */
    void (*close)(const float *l, float *inverse, float *log);
};
extern const struct attn_ukr_transposed attn_ukr_transposed_avx2, attn_ukr_transposed_avx512,
    attn_ukr_transposed_avx512bf16;
#endif
