/* SPDX-License-Identifier: MIT
 * Position in a list of strips whose steps run as one pipeline, without a break between strips (fwd.c,
 * fwd_rowmajor.c). A step has `span` keys. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_TILE_CURSOR_H
#define ATTN_CPU_AMX_DENSE_FWD_TILE_CURSOR_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/unroll.h"

#include <immintrin.h>

/* Step `step` of strip f; the strips are an array. */
struct place {
    const struct attn_fwd_strip *f;
    int64_t step;
};
INLINE struct place step_after(struct place place, int64_t span) {
    return (place.step + 1) * span < place.f->n ? (struct place){place.f, place.step + 1}
                                                : (struct place){place.f + 1, 0};
}
INLINE int follows(struct place place, struct place from, int64_t steps) {
    return place.f == from.f && place.step == from.step + steps;
}
/* Steps from .. to - 1 of a strip, whose keys all queries see. */
struct unmasked {
    int64_t from, to;
};
static inline struct unmasked unmasked_steps(const struct attn_fwd_strip *f, int64_t span) {
    const __m512i lo = _mm512_max_epi32(_mm512_loadu_si512(f->seen), _mm512_loadu_si512(f->seen + 16)),
                  hi = _mm512_min_epi32(_mm512_loadu_si512(f->seen + ATTN_FWD_ROWS),
                                        _mm512_loadu_si512(f->seen + ATTN_FWD_ROWS + 16));
    return (struct unmasked){(_mm512_reduce_max_epi32(lo) + span - 1) / span, _mm512_reduce_min_epi32(hi) / span};
}
#endif
