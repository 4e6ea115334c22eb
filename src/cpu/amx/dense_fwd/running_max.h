/* SPDX-License-Identifier: MIT
 * Running max of the online softmax on AMX (fwd.c, fwd_rowmajor.c): the score m that a query's probabilities are
 * relative to. Unlike FlashAttention's it need not be the maximum so far. It is the largest score of the first step in
 * which the query sees a key, and moves only where a step's probabilities pass 2^16. So no step waits for a maximum. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_RUNNING_MAX_H
#define ATTN_CPU_AMX_DENSE_FWD_RUNNING_MAX_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/exp2.h"

#include <math.h>

/* For 16 queries. m: the running max. offset: m * factor + below, what exponents are relative to (0 in place of
 * m * factor: scores had m subtracted, or no key was seen). rescale: factor of O and l from earlier steps. */
struct running_max {
    v32 m, offset, rescale;
    int degree;       /* attn_fwd_degree, */
    float below, far; /* and what follows from it */
};
static inline void set_up_running_max(struct running_max *r, int degree, float ahead) {
    r->degree = degree;
    r->below = attn_fwd_below(degree) + ahead, r->far = attn_fwd_far(degree);
}
/* m * factor, rounded as the table of 2^x needs it. */
static inline v32 in_parts(const struct running_max *r, v32 x) {
    return r->degree == ATTN_FWD_TABLE ? _mm512_roundscale_ps(x, 7 << 4 | _MM_FROUND_NO_EXC) : x;
}
/* Queries for which m * factor is too large: its rounding would show in the exponent, it is beyond the table's origin,
 * or it is not finite. For these m is subtracted from the scores before the factor is applied. */
static inline __mmask16 far_lanes(const struct running_max *r, v32 m, v32 factor) {
    return _mm512_cmp_ps_mask(v32_abs(m * factor), v32_set(r->far), _CMP_NLT_UQ);
}
static inline __mmask16 far_of(const struct running_max *r, v32 factor) {
    return far_lanes(r, r->m, factor) & (__mmask16)~_mm512_cmp_ps_mask(r->m, v32_set(-INFINITY), _CMP_EQ_OQ);
}
/* high + growth_left, what ALiBi may still grow by; high alone where the sum would be `far` (see far_lanes). */
static inline v32 ahead_of(const struct running_max *r, v32 high, v32 growth_left, v32 factor) {
    return _mm512_mask_mov_ps(high + growth_left, far_lanes(r, high + growth_left, factor), high);
}
/* Factor of older sums when the running max becomes m: 1 where it stays, or where nothing was summed. The rounding of
 * offsets does not matter here: a running max moves where sums have passed 2^16, or where offsets are 0. */
static inline v32 rescale_by(const struct running_max *r, v32 m, v32 factor) {
    const v32 old = r->m;
    const __mmask16 unchanged =
        _mm512_cmp_ps_mask(old, m, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(old, v32_set(-INFINITY), _CMP_EQ_OQ);
    const v32 exponent = _mm512_mask_mov_ps(old * factor - m * factor, far_lanes(r, m, factor), (old - m) * factor);
    return _mm512_mask_mov_ps(exp2_vec(exponent), unchanged, v32_set(1));
}
/* Queries without a usable running max: a step needs its maximum before its exponentials. */
static inline __mmask16 without(const struct running_max *r, v32 factor) {
    return _mm512_cmp_ps_mask(r->m, v32_set(-INFINITY), _CMP_EQ_OQ) | far_lanes(r, r->m, factor);
}
static inline int rescales(const struct running_max *r) {
    const v32 one = v32_set(1);
    return _mm512_cmp_ps_mask(r[0].rescale, one, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(r[1].rescale, one, _CMP_NEQ_UQ);
}
#endif
