/* SPDX-License-Identifier: MIT
 * Few rows in one pass for AVX2: f32 as it is, f16 and bf16 widened as they are loaded. */
#include "cpu/ukr/decode.h"

#include "cpu/vec/avx2.h"
#include "cpu/vec/unroll.h"

#include <string.h>

INLINE v32 fold_sums(const v32 *x) { return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3])); }
INLINE v32 merge_sums(const v32 *x) {
    return _mm256_blend_ps(x[0], x[1], 0xf0) + _mm256_permute2f128_ps(x[0], x[1], 0x21);
}
/* x[i] becomes 2^x[i] for x[i] < 128, as in vec/exp2.h, one after the other; below -126 it is 0 or 2^-126. */
INLINE void exp2_many(int n, v32 *x) {
    static const float c[] = {1, 0x1.62e4bap-1f, 0x1.ebdb56p-3f, 0x1.c91ce6p-5f, 0x1.277856p-7f, 0x1.e974fap-10f};
    UNROLL for (int i = 0; i < n; i++) {
        const v32 y = v32_max(v32_set(-127), x[i]), whole = _mm256_floor_ps(y), r = y - whole; /* NaN passes */
        v32 p = v32_set(c[5]);
        UNROLL for (int k = 4; k >= 0; k--) p = v32_fma(p, r, v32_set(c[k]));
        const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
        x[i] = p * _mm256_castsi256_ps(_mm256_slli_epi32(power, 23));
    }
}
#define FOLD            fold_sums
#define MERGE           merge_sums
#define EXP2            exp2_many
#define ANY_ABOVE(x, y) (_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_NLE_UQ)) != 0)
#define TILE_ROWS       2
#define TILE_COLS       4

#define PAIRS 0
#define MADD  v32_fma

#define F(name)         name##_f32
#define TABLE           attn_ukr_decode_f32_avx2
#define TYPE            float
#define LOAD(p)         v32_load(p)
#define LOAD_TAIL(p, n) v32_load_tail(p, v32_tail_of(n))
#include "cpu/ukr/decode_tpl.h"
#undef F
#undef TABLE
#undef TYPE
#undef LOAD
#undef LOAD_TAIL

/* Tails of 16-bit rows go through a copy of one vector: AVX2 has no masked 16-bit access. */
INLINE __m128i first(const uint16_t *p, int64_t n) {
    __m128i x = _mm_setzero_si128();
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
}
#define F(name)         name##_f16
#define TABLE           attn_ukr_decode_f16_avx2
#define TYPE            uint16_t
#define LOAD(p)         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define LOAD_TAIL(p, n) _mm256_cvtph_ps(first(p, n))
#include "cpu/ukr/decode_tpl.h"
#undef F
#undef TABLE
#undef LOAD
#undef LOAD_TAIL

INLINE v32 widen(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
#define F(name)         name##_bf16
#define TABLE           attn_ukr_decode_bf16_avx2
#define LOAD(p)         widen(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define LOAD_TAIL(p, n) widen(first(p, n))
#include "cpu/ukr/decode_tpl.h"
