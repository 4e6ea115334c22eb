/* SPDX-License-Identifier: MIT
 * Few rows in one pass for AVX-512: f32 as it is, f16 and bf16 widened as they are loaded. */
#include "cpu/ukr/decode.h"

#include "cpu/ukr/decode_avx512.h"

#define PAIRS 0
#define MADD  v32_fma

#define F(name)         name##_f32
#define TABLE           attn_ukr_decode_f32_avx512
#define TYPE            float
#define LOAD(p)         v32_load(p)
#define LOAD_TAIL(p, n) v32_load_tail(p, v32_tail_of(n))
#include "cpu/ukr/decode_tpl.h"
#undef F
#undef TABLE
#undef TYPE
#undef LOAD
#undef LOAD_TAIL

#define F(name)         name##_f16
#define TABLE           attn_ukr_decode_f16_avx512
#define TYPE            uint16_t
#define LOAD(p)         _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define LOAD_TAIL(p, n) _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v32_tail_of(n), p))
#include "cpu/ukr/decode_tpl.h"
#undef F
#undef TABLE
#undef LOAD
#undef LOAD_TAIL

INLINE v32 widen(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
#define F(name)         name##_bf16
#define TABLE           attn_ukr_decode_bf16_avx512
#define LOAD(p)         widen(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define LOAD_TAIL(p, n) widen(_mm256_maskz_loadu_epi16(v32_tail_of(n), p))
#include "cpu/ukr/decode_tpl.h"
