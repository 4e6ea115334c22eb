/* SPDX-License-Identifier: MIT
 * What the rows of a tile of the backward see of its keys: for the kernels on AMX (bwd.c,
 * bwd_f32.c). */
#ifndef ATTN_CPU_AMX_DENSE_BWD_VISIBLE_KEYS_H
#define ATTN_CPU_AMX_DENSE_BWD_VISIBLE_KEYS_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

#include <math.h>

/* Keys that the rows of a strip see, in the tile: bounds of the union and of what all of them see. */
struct reach {
    int32_t lo, hi, all_lo, all_hi;
};
static inline struct reach reach_of(const int32_t *seen) {
    struct reach r = {INT32_MAX, 0, 0, INT32_MAX};
    for (int i = 0; i < ATTN_BWD_TILE; i++) {
        const int32_t lo = seen[i], hi = seen[ATTN_BWD_TILE + i];
        if (lo >= hi) continue; /* its probabilities are 0 by its max */
        if (lo < r.lo) r.lo = lo;
        if (hi > r.hi) r.hi = hi;
        if (lo > r.all_lo) r.all_lo = lo;
        if (hi < r.all_hi) r.all_hi = hi;
    }
    if (r.hi == 0) r.lo = 0;
    return r;
}
/* Scores of a chunk from first_key on that a row does not see become -inf. */
static inline void hide(const int32_t *seen, int32_t first_key, float *s) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int r = 0; r < ATTN_BWD_TILE; r++) {
        const __m512i lo = _mm512_set1_epi32(seen[r]), hi = _mm512_set1_epi32(seen[ATTN_BWD_TILE + r]);
        for (int h = 0; h < ATTN_BWD_TILE; h += 16) {
            const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(first_key + h));
            const __mmask16 hidden = _mm512_cmplt_epi32_mask(key, lo) | _mm512_cmpge_epi32_mask(key, hi);
            _mm512_mask_store_ps(s + r * ATTN_BWD_TILE + h, hidden, v32_set(-INFINITY));
        }
    }
}
/* Strips [*first, *last) of which a row may see keys of block k. */
static inline int strips_of(const struct reach *reach, int64_t strips, int64_t k, int64_t *first, int64_t *last) {
    *first = strips, *last = 0;
    for (int64_t r = 0; r < strips; r++) {
        if (reach[r].lo >= (k + 1) * ATTN_BWD_TILE || reach[r].hi <= k * ATTN_BWD_TILE) continue;
        if (r < *first) *first = r;
        *last = r + 1;
    }
    return *first < *last;
}
/* The next strips from *first on, one after the other, that have probabilities for keys of block k: a mask may leave
 * out some between others. */
static inline int run_of(const struct reach *reach, int64_t strips, int64_t k, int64_t *first, int64_t *last) {
    const int32_t lo = (int32_t)(k * ATTN_BWD_TILE), hi = lo + ATTN_BWD_TILE;
    while (*first < strips && (reach[*first].lo >= hi || reach[*first].hi <= lo)) ++*first;
    for (*last = *first; *last < strips && reach[*last].lo < hi && reach[*last].hi > lo;) ++*last;
    return *first < *last;
}
#endif
