/* SPDX-License-Identifier: MIT
 * Running max of queries whose ALiBi grows along the keys, in the forward on AMX (fwd.c, fwd_rowmajor.c). */
#ifndef ATTN_CPU_AMX_DENSE_FWD_ALIBI_H
#define ATTN_CPU_AMX_DENSE_FWD_ALIBI_H
#include "cpu/ukr/alibi_growth.h"
#include "cpu/ukr/bf16.h"
#include "cpu/vec/avx512.h"

/* A query whose ALiBi grows by SCORE_GROWTH or more over a strip takes its running max from the step in which its ALiBi
 * is largest. Otherwise the running max would move, and O and l be rescaled, in most steps before that one. Returns
 * these queries, a bit each; key: [32], receives a key of that step. */
static inline uint32_t far_ahead(const struct attn_fwd_strip *f, int64_t span, int32_t *key) {
    const struct attn_fwd_score_mod *const score = f->score;
    uint32_t queries = 0;
    for (int64_t h = 0; h < 2; h++) {
        const v32 last = _mm512_cvtepi32_ps(_mm512_loadu_si512(f->seen + ATTN_FWD_ROWS + h * 16)) - v32_set(1),
                  peak = score->alibi == 2 ? _mm512_min_ps(v32_load(score->origin + h * 16), last) : last;
        const __mmask16 grows = _mm512_cmp_ps_mask(growth(score, span, 0, h), v32_set(SCORE_GROWTH), _CMP_GE_OQ) &
                                _mm512_cmp_ps_mask(peak, v32_set((float)span), _CMP_GE_OQ);
        _mm512_storeu_si512(key + h * 16, _mm512_cvttps_epi32(peak));
        queries |= (uint32_t)grows << h * 16;
    }
    return queries;
}
/* The step of the lowest query in `left`. Returns all queries that take their running max from it, and clears them in
 * `left`. */
static inline uint32_t next_ahead(const int32_t *key, int64_t span, uint32_t *left, int64_t *step) {
    uint32_t found = 0;
    *step = key[__builtin_ctz(*left)] / span;
    for (int q = 0; q < ATTN_FWD_ROWS; q++) found |= (uint32_t)(key[q] / span == *step) << q;
    found &= *left, *left &= ~found;
    return found;
}
#endif
