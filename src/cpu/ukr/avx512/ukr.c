/* SPDX-License-Identifier: MIT
 * Microkernels for AVX-512 (F, BW, DQ, VL). */
#include "cpu/ukr/ukr.h"

#include "attn.h"

#include "base/num.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/exp2.h"

static inline __attribute__((always_inline)) void exp2_minus(int many, v32 *x, v32 offset) {
    UNROLL for (int i = 0; i < many; i++) x[i] = _mm512_fmsub_ps(x[i], v32_set(0x1.715476p0f), offset);
    exp2_many(many, x);
}

static inline v32 widen_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
static inline v32 widen_f16(__m256i h) { return _mm512_cvtph_ps(h); }
static inline __m256i narrow_f16(v32 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Round to nearest even on the bits; a NaN would turn into infinity by the carry, so it is made quiet instead. */
static inline __m256i narrow_bf16(v32 x) {
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* Rows of 16 bits read as f32. */
#define HALF_LOADS
#define LOADS(type)                                                                                                    \
    static inline v32 load_##type(const uint16_t *p) {                                                                 \
        return widen_##type(_mm256_loadu_si256((const __m256i *)(const void *)p));                                     \
    }                                                                                                                  \
    static inline v32 load_tail_##type(const uint16_t *p, int64_t n) {                                                 \
        return widen_##type(_mm256_maskz_loadu_epi16(v32_tail_of(n), p));                                              \
    }
LOADS(bf16)
LOADS(f16)

#define WIDEN(convert, scaling)                                                                                        \
    for (; n - j >= 16; j += 16)                                                                                       \
        v32_store(dst + j, convert(_mm256_loadu_si256((const __m256i *)(const void *)(h + j))) scaling);               \
    if (j < n) {                                                                                                       \
        __mmask16 m = v32_tail_of(n - j);                                                                              \
        v32_store_tail(dst + j, m, convert(_mm256_maskz_loadu_epi16(m, h + j)) scaling);                               \
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
        for (; n - j >= 16; j += 16) v32_store(dst + j, v32_load(s + j) * f);
        if (j < n) v32_store_tail(dst + j, v32_tail_of(n - j), v32_load_tail(s + j, v32_tail_of(n - j)) * f);
    }
}
#define NARROW(convert)                                                                                                \
    for (; n - j >= 16; j += 16) _mm256_storeu_si256((__m256i *)(void *)(h + j), convert(v32_load(src + j) * f));      \
    if (j < n) {                                                                                                       \
        __mmask16 m = v32_tail_of(n - j);                                                                              \
        _mm256_mask_storeu_epi16(h + j, m, convert(v32_load_tail(src + j, m) * f));                                    \
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

/* 16 x 16: pairs of 32 bits, pairs of 64 bits, then the 128-bit parts twice. */
static inline void square_f32(float *dst, int64_t ld, const float *src, int64_t ld_src) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(src + i * ld_src);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int h = 0; h < 2; h++) {
            __m512d a = _mm512_castps_pd(t[i + h]), b = _mm512_castps_pd(t[i + h + 2]);
            r[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    /* r[4g + c] holds column c + 4p of rows 4g .. 4g+3 in part p */
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88);
        t[c + 4] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
        t[c + 8] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
        t[c + 12] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
    }
    for (int c = 0; c < 4; c++) {
        _mm512_storeu_ps(dst + (c + 0) * ld, _mm512_shuffle_f32x4(t[c], t[c + 8], 0x88));
        _mm512_storeu_ps(dst + (c + 8) * ld, _mm512_shuffle_f32x4(t[c], t[c + 8], 0xdd));
        _mm512_storeu_ps(dst + (c + 4) * ld, _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0x88));
        _mm512_storeu_ps(dst + (c + 12) * ld, _mm512_shuffle_f32x4(t[c + 4], t[c + 12], 0xdd));
    }
}
static inline void square_f64(double *dst, int64_t ld, const double *src, int64_t ld_src) {
    __m512d r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm512_loadu_pd(src + i * ld_src);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    /* t[2g + c] holds column c + 2p of rows 2g, 2g+1 in part p */
    for (int c = 0; c < 2; c++) {
        r[c] = _mm512_shuffle_f64x2(t[c], t[c + 2], 0x88);     /* columns c, c+4 of rows 0-3 */
        r[c + 2] = _mm512_shuffle_f64x2(t[c], t[c + 2], 0xdd); /* columns c+2, c+6 */
        r[c + 4] = _mm512_shuffle_f64x2(t[c + 4], t[c + 6], 0x88);
        r[c + 6] = _mm512_shuffle_f64x2(t[c + 4], t[c + 6], 0xdd);
    }
    for (int c = 0; c < 4; c++) {
        _mm512_storeu_pd(dst + c * ld, _mm512_shuffle_f64x2(r[c], r[c + 4], 0x88));
        _mm512_storeu_pd(dst + (c + 4) * ld, _mm512_shuffle_f64x2(r[c], r[c + 4], 0xdd));
    }
}
#define SQUARE_F32 16
#define SQUARE_F64 8
#include "cpu/ukr/transpose_tpl.h"

#define ISA            "avx512"
#define TABLE          attn_ukr_avx512
#define MR             14
#define SKINNY         13
#define WIDE           8
#define NT_ROWS        3
#define PREFETCH_ROWS  8
#define VEC_EXP2_MINUS exp2_minus
#define LANES_TABLE    attn_ukr_transposed_avx512
#define DECODE(dtype)  attn_ukr_decode_##dtype##_avx512
#include "cpu/ukr/ukr_tpl.h"
