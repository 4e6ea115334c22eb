/* SPDX-License-Identifier: MIT
 * Microkernels for AVX2 with FMA and F16C. */
#include "cpu/ukr/ukr.h"

#include "attn.h"

#include "base/num.h"
#include "cpu/vec/avx2.h"
#include "cpu/vec/transpose_avx2.h"

#include <string.h>

static inline v32 widen_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
static inline v32 widen_f16(__m128i h) { return _mm256_cvtph_ps(h); }
static inline __m128i narrow_f16(v32 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Round to nearest even on the bits; a NaN would turn into infinity by the carry, so it is made quiet instead. */
static inline __m128i narrow_bf16(v32 x) {
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

/* Tails of 16-bit rows go through a copy of one vector: AVX2 has no masked 16-bit access. */
#define HALF_LOADS
#define LOADS(type)                                                                                                    \
    static inline v32 load_##type(const uint16_t *p) {                                                                 \
        return widen_##type(_mm_loadu_si128((const __m128i *)(const void *)p));                                        \
    }                                                                                                                  \
    static inline v32 load_tail_##type(const uint16_t *p, int64_t n) {                                                 \
        __m128i last = _mm_setzero_si128();                                                                            \
        memcpy(&last, p, (size_t)n * 2);                                                                               \
        return widen_##type(last);                                                                                     \
    }
LOADS(bf16)
LOADS(f16)

#define WIDEN(convert, scaling)                                                                                        \
    for (; n - j >= 8; j += 8)                                                                                         \
        v32_store(dst + j, convert(_mm_loadu_si128((const __m128i *)(const void *)(h + j))) scaling);                  \
    if (j < n) {                                                                                                       \
        __m128i last = _mm_setzero_si128();                                                                            \
        memcpy(&last, h + j, (size_t)(n - j) * 2);                                                                     \
        v32_store_tail(dst + j, v32_tail_of(n - j), convert(last) scaling);                                            \
    }
static void widen(float *dst, const void *src, int32_t dtype, int64_t n, float factor) {
    const uint16_t *h = (const uint16_t *)src;
    const float *s = (const float *)src;
    const v32 f = v32_set(factor);
    int64_t j = 0;
    switch (dtype) {
    case ATTN_F16: WIDEN(widen_f16, *f) break;
    case ATTN_BF16:
        if (attn_num_is_one(factor)) {
            WIDEN(widen_bf16, )
        } else {
            WIDEN(widen_bf16, *f)
        }
        break;
    case ATTN_E4M3: attn_num_widen_e4m3(dst, src, n, factor); break;
    default:
        if (attn_num_is_one(factor)) {
            memcpy(dst, src, (size_t)n * sizeof *dst);
            break;
        }
        for (; n - j >= 8; j += 8) v32_store(dst + j, v32_load(s + j) * f);
        if (j < n) v32_store_tail(dst + j, v32_tail_of(n - j), v32_load_tail(s + j, v32_tail_of(n - j)) * f);
    }
}
#define NARROW(convert)                                                                                                \
    for (; n - j >= 8; j += 8) _mm_storeu_si128((__m128i *)(void *)(h + j), convert(v32_load(src + j) * f));           \
    if (j < n) {                                                                                                       \
        __m128i last = convert(v32_load_tail(src + j, v32_tail_of(n - j)) * f);                                        \
        memcpy(h + j, &last, (size_t)(n - j) * 2);                                                                     \
    }
static void narrow(void *dst, int32_t dtype, const float *src, int64_t n, float factor) {
    uint16_t *h = (uint16_t *)dst;
    const v32 f = v32_set(factor);
    int64_t j = 0;
    switch (dtype) {
    case ATTN_F16: NARROW(narrow_f16) break;
    case ATTN_BF16: NARROW(narrow_bf16) break;
    default: widen((float *)dst, src, ATTN_F32, n, factor);
    }
}

static inline void square_f32(float *dst, int64_t ld, const float *src, int64_t ld_src) {
    v32 r[8];
    UNROLL for (int i = 0; i < 8; i++) r[i] = v32_load(src + i * ld_src);
    turn_eight(r);
    UNROLL for (int c = 0; c < 8; c++) v32_store(dst + c * ld, r[c]);
}
static inline void square_f64(double *dst, int64_t ld, const double *src, int64_t ld_src) {
    __m256d r[4], t[4];
    for (int i = 0; i < 4; i++) r[i] = _mm256_loadu_pd(src + i * ld_src);
    for (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_pd(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int c = 0; c < 2; c++) {
        _mm256_storeu_pd(dst + c * ld, _mm256_permute2f128_pd(t[c], t[c + 2], 0x20));
        _mm256_storeu_pd(dst + (c + 2) * ld, _mm256_permute2f128_pd(t[c], t[c + 2], 0x31));
    }
}
#define SQUARE_F32 8
#define SQUARE_F64 4
#include "cpu/ukr/transpose_tpl.h"

#define ISA           "avx2"
#define TABLE         attn_ukr_avx2
#define MR            6
#define SKINNY        4
#define WIDE          6
#define NT_ROWS       1
#define PREFETCH_ROWS 8
#define LANES_TABLE   attn_ukr_transposed_avx2
#define DECODE(dtype) attn_ukr_decode_##dtype##_avx2
#include "cpu/ukr/ukr_tpl.h"
