/* SPDX-License-Identifier: MIT
 * Few rows in one pass on pairs of bf16 for AVX-512 with BF16. */
#include "cpu/ukr/decode.h"

#include "cpu/ukr/decode_avx512.h"
#include "cpu/vec/avx512bf16.h"

INLINE v32 load_tail(const uint16_t *p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(((__mmask32)1 << n) - 1, p));
}
/* Stores x as rounded to bf16, and adds that to l_rounded, two keys to a lane. */
INLINE void store_half(float *to, v32 x, float *l_rounded) {
    const __m256bh y = _mm512_cvtneps_pbh(x), ones = (__m256bh)_mm256_set1_epi16(0x3f80);
    _mm256_storeu_ps(to, (__m256)y);
    _mm256_storeu_ps(l_rounded, _mm256_dpbf16_ps(_mm256_loadu_ps(l_rounded), y, ones));
}
INLINE void rescale_rounded(float *l_rounded, v32 scale) {
    _mm256_storeu_ps(l_rounded, _mm256_loadu_ps(l_rounded) * _mm512_castps512_ps256(scale));
}

#define PAIRS           1
#define MADD            madd_pair
#define F(name)         name##_pair
#define TABLE           attn_ukr_decode_avx512bf16
#define TYPE            uint16_t
#define LOAD(p)         _mm512_castsi512_ps(_mm512_loadu_si512(p))
#define LOAD_TAIL(p, n) load_tail(p, n)
#include "cpu/ukr/decode_tpl.h"
