/* SPDX-License-Identifier: MIT
 * attn_ukr_bf16.finish: results of a strip of the forward on AMX. Sums whose queries lie across the lanes are divided
 * there, and rounded before they are transposed: two of 16 bits go as one of 32, which halves the work. */
#include "cpu/ukr/finish.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

#include <math.h>

enum { LANES = 16, STRIP = ATTN_FWD_ROWS };

/* Natural logarithms of eight numbers > 0: 2^e x with 0.75 <= x < 1.5 and ln x = 2 artanh z, z = (x - 1) / (x + 1).
 * What is left out is below 2e-12. */
static inline __m512d log_f64(__m512d x) {
    const __m512d one = _mm512_set1_pd(1), ln_2 = _mm512_set1_pd(0x1.62e42fefa39efp-1);
    const __m512d y = _mm512_getmant_pd(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
    const __m512d e = _mm512_getexp_pd(_mm512_div_pd(x, y)); /* a power of 2 */
    const __m512d z = _mm512_div_pd(_mm512_sub_pd(y, one), _mm512_add_pd(y, one)), t = _mm512_mul_pd(z, z);
    __m512d p = _mm512_set1_pd(2.0 / 13);
    UNROLL for (int k = 11; k > 0; k -= 2) p = _mm512_fmadd_pd(p, t, _mm512_set1_pd(2.0 / k));
    return _mm512_fmadd_pd(e, ln_2, _mm512_mul_pd(p, z));
}

/* Logarithms of the sums of 16 rows: offset ln 2 + ln l - ln times. */
static inline void store_logs(double *to, v32 offset, v32 l, double ln_times) {
    const __m512d ln_2 = _mm512_set1_pd(0x1.62e42fefa39efp-1);
    UNROLL for (int h = 0; h < 2; h++) {
        const __m256 t = h ? _mm512_extractf32x8_ps(offset, 1) : _mm512_castps512_ps256(offset),
                     s = h ? _mm512_extractf32x8_ps(l, 1) : _mm512_castps512_ps256(l);
        const __m512d log = _mm512_fmadd_pd(_mm512_cvtps_pd(t), ln_2, log_f64(_mm512_cvtps_pd(s)));
        _mm512_storeu_pd(to + h * 8, _mm512_sub_pd(log, _mm512_set1_pd(ln_times)));
    }
}

/* Values d and d + 1 of 16 rows as one of 32 bits each. */
static inline __m512i round_two(int bf16, v32 even, v32 odd) {
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    if (bf16) return _mm512_permutexvar_epi16(_mm512_loadu_si512(zip), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
    const __m256i low = _mm512_cvtps_ph(even, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                  high = _mm512_cvtps_ph(odd, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}
/* 32 values of 16 rows, of which `rows` are there. */
static inline __attribute__((always_inline)) void store_square(int bf16, const float *o, v32 factor,
                                                               uint16_t *const *row, int64_t column, int64_t rows) {
    __m512i r[LANES], t[LANES];
    UNROLL for (int i = 0; i < LANES; i++) {
        r[i] = round_two(bf16, v32_load(o + 2 * i * STRIP) * factor, v32_load(o + (2 * i + 1) * STRIP) * factor);
    }
    UNROLL for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4) {
        UNROLL for (int h = 0; h < 2; h++) {
            r[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + h + 2]);
            r[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + h + 2]);
        }
    }
    /* part p of r[4g + c]: values 8g .. 8g + 7 of row 4p + c */
    UNROLL for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
        t[c + 4] = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
        t[c + 8] = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
        t[c + 12] = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
    }
    UNROLL for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0x88);
        r[c + 8] = _mm512_shuffle_i32x4(t[c], t[c + 8], 0xdd);
        r[c + 4] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0x88);
        r[c + 12] = _mm512_shuffle_i32x4(t[c + 4], t[c + 12], 0xdd);
    }
    if (rows >= LANES) {
        UNROLL for (int i = 0; i < LANES; i++) _mm512_storeu_si512(row[i] + column, r[i]);
    } else {
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i < rows) _mm512_storeu_si512(row[i] + column, r[i]);
        }
    }
}
/* Rows h .. h + 15 that lie as they are. */
static void store_tiles(const struct attn_fwd_finish *f, int64_t h, v32 inverse) {
    float factors[LANES];
    v32_store(factors, inverse);
    for (int64_t r = 0; r < LANES && h + r < f->rows; r++) {
        const float *o = f->o + attn_fwd_rowmajor_cell(h + r, 0);
        const v32 factor = v32_set(factors[r]);
        for (int64_t d = 0; d < f->width; d += 32, o += 4 * LANES * LANES)
            _mm512_storeu_si512(f->row[h + r] + d, (__m512i)_mm512_cvtne2ps_pbh(v32_load(o + LANES * LANES) * factor,
                                                                                v32_load(o) * factor));
    }
}
static void store_rows(int bf16, const struct attn_fwd_finish *f, int64_t h, v32 inverse) {
    for (int64_t d = 0; d < f->width; d += 32)
        store_square(bf16, f->o + d * STRIP + h, inverse, f->row + h, d, f->rows - h);
}

int attn_ukr_finish_avx512bf16(const struct attn_fwd_finish *f) {
    const v32 factor = v32_set(f->factor);
    v32 offset[STRIP / LANES], l[STRIP / LANES];
    for (int64_t h = 0; h < f->rows; h += LANES) {
        const __mmask16 there = f->rows - h < LANES ? v32_tail_of(f->rows - h) : (__mmask16)-1;
        offset[h / LANES] = _mm512_mask_mov_ps(v32_set(0), there, v32_load(f->m + h) * factor);
        l[h / LANES] = _mm512_mask_mov_ps(v32_set(1), there, v32_load(f->l + h));
        /* no NaN, no infinity, no empty row */
        if (_mm512_cmp_ps_mask(v32_abs(offset[h / LANES]), v32_set(ATTN_FWD_FAR), _CMP_NLT_UQ) |
            _mm512_cmp_ps_mask(l[h / LANES], v32_set(0), _CMP_NGT_UQ) |
            _mm512_cmp_ps_mask(l[h / LANES], v32_set(INFINITY), _CMP_EQ_OQ))
            return 0;
    }
    for (int64_t h = 0; h < f->rows; h += LANES) {
        const v32 inverse = v32_set(1) / l[h / LANES];
        if (f->lse) store_logs(f->lse + h, offset[h / LANES] + v32_set(f->below), l[h / LANES], log((double)f->times));
        if (f->tiles) {
            store_tiles(f, h, inverse);
        } else if (f->bf16) {
            store_rows(1, f, h, inverse);
        } else {
            store_rows(0, f, h, inverse);
        }
    }
    return 1;
}
