/* SPDX-License-Identifier: MIT
 * Few rows in one pass on pairs of bf16 for AVX-512 with BF16. */
#include "cpu/ukr_pass.h"

#include "cpu/ukr_pass_avx512.h"

INLINE v32 madd_pair(v32 a, v32 b, v32 c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
INLINE v32 load_tail(const uint16_t *p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(((__mmask32)1 << n) - 1, p));
}
/* y: pairs of 16 columns of two keys, and of 16 more */
INLINE void zip(__m512i even, __m512i odd, v32 *y) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i lo = _mm512_loadu_si512(low), hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    y[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, lo, odd));
    y[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, hi, odd));
}
INLINE void store_half(float *to, v32 x) { _mm256_storeu_ps(to, (__m256)_mm512_cvtneps_pbh(x)); }

#define PAIRS           1
#define MADD            madd_pair
#define F(name)         name##_pair
#define TABLE           attn_ukr_pass_avx512bf16
#define TYPE            uint16_t
#define LOAD(p)         _mm512_castsi512_ps(_mm512_loadu_si512(p))
#define LOAD_TAIL(p, n) load_tail(p, n)
#include "cpu/ukr_pass_tpl.h"
