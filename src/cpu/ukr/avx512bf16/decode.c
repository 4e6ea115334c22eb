/* SPDX-License-Identifier: MIT
 * Few rows in one pass on pairs of bf16 for AVX-512 with BF16. */
#include "cpu/ukr/decode.h"

#include "cpu/ukr/decode_avx512.h"
#include "cpu/vec/avx512bf16.h"

INLINE v32 load_tail(const uint16_t *p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(((__mmask32)1 << n) - 1, p));
}
INLINE void store_half(float *to, v32 x) { _mm256_storeu_ps(to, (__m256)_mm512_cvtneps_pbh(x)); }

#define PAIRS           1
#define MADD            madd_pair
#define F(name)         name##_pair
#define TABLE           attn_ukr_pass_avx512bf16
#define TYPE            uint16_t
#define LOAD(p)         _mm512_castsi512_ps(_mm512_loadu_si512(p))
#define LOAD_TAIL(p, n) load_tail(p, n)
#include "cpu/ukr/decode_tpl.h"
