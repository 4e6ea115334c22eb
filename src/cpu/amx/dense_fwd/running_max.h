/* SPDX-License-Identifier: MIT
 * The score that a query's probabilities are relative to, in the forward on AMX (fwd.c, fwd_rowmajor.c).
 * It need not be the query's maximum: it is the largest score of the first step in which it sees a key, for as long as
 * the probabilities of a step stay far below what f32 holds. So no step waits for a maximum. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_RUNNING_MAX_H
#define ATTN_CPU_AMX_DENSE_FWD_RUNNING_MAX_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/exp2.h"

#include <math.h>

/* Of 16 queries: m, the score that probabilities are relative to; top, its product with the factor (0: the scores are
 * relative to m already, or there is none) and `below`; shrink, what a step does to older sums. */
struct running_max {
    v32 m, offset, rescale;
    int degree;       /* attn_fwd_degree, */
    float below, far; /* and what follows from it */
};
static inline void set_up_running_max(struct running_max *r, int degree, float ahead) {
    r->degree = degree;
    r->below = attn_fwd_below(degree) + ahead, r->far = attn_fwd_far(degree);
}
/* Of m * factor. */
static inline v32 in_parts(const struct running_max *r, v32 x) {
    return r->degree == ATTN_FWD_TABLE ? _mm512_roundscale_ps(x, 7 << 4 | _MM_FROUND_NO_EXC) : x;
}
/* Queries whose maximum times factor is rounded by more than exponents may be, is more than the origin of a table
 * holds, or is not finite. There scores are made relative to the maximum before the factor is applied. */
static inline __mmask16 far_lanes(const struct running_max *r, v32 m, v32 factor) {
    return _mm512_cmp_ps_mask(v32_abs(m * factor), v32_set(r->far), _CMP_NLT_UQ);
}
static inline __mmask16 far_of(const struct running_max *r, v32 factor) {
    return far_lanes(r, r->m, factor) & (__mmask16)~_mm512_cmp_ps_mask(r->m, v32_set(-INFINITY), _CMP_EQ_OQ);
}
/* high, and ahead of ALiBi by `more` where that is not far: a far reference is a score, and stays one. */
static inline v32 ahead_of(const struct running_max *r, v32 high, v32 more, v32 factor) {
    return _mm512_mask_mov_ps(high + more, far_lanes(r, high + more, factor), high);
}
/* By how much older sums shrink where m becomes the reference: 1 where it stays, or where nothing was summed. That tops
 * are in parts says nothing here: a reference moves where sums have passed 2^16, or where tops are 0. */
static inline v32 rescale_by(const struct running_max *r, v32 m, v32 factor) {
    const v32 old = r->m;
    const __mmask16 same =
        _mm512_cmp_ps_mask(old, m, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(old, v32_set(-INFINITY), _CMP_EQ_OQ);
    const v32 exponent = _mm512_mask_mov_ps(old * factor - m * factor, far_lanes(r, m, factor), (old - m) * factor);
    return _mm512_mask_mov_ps(exp2_vec(exponent), same, v32_set(1));
}
/* Queries that need a maximum before the exponentials. */
static inline __mmask16 without(const struct running_max *r, v32 factor) {
    return _mm512_cmp_ps_mask(r->m, v32_set(-INFINITY), _CMP_EQ_OQ) | far_lanes(r, r->m, factor);
}
static inline int rescales(const struct running_max *r) {
    const v32 one = v32_set(1);
    return _mm512_cmp_ps_mask(r[0].rescale, one, _CMP_NEQ_UQ) | _mm512_cmp_ps_mask(r[1].rescale, one, _CMP_NEQ_UQ);
}
#endif
