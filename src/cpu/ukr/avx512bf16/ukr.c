/* SPDX-License-Identifier: MIT
 * Microkernels on pairs of bf16 for AVX-512 with BF16: see ukr/bf16.h. */
#include "cpu/ukr/bf16.h"
#include "cpu/vec/bf16_split_avx512.h"

#include "cpu/ukr/decode_dots.h"
#include "cpu/ukr/finish.h"
#include "cpu/vec/avx512bf16.h"
#include "cpu/vec/exp2.h"
#include "cpu/vec/unroll.h"

#define REAL                   float
#define VEC                    v32
#define V(op)                  v32_##op
#define LANES                  V32_LANES
#define F(name)                name##_pair
#define MADD                   madd_pair
#define MFIRST(a, b)           madd_pair(a, b, v32_set(0))
#define MR                     14
#define SKINNY                 13
#define WIDE                   8
#define NT_ROWS                3
#define PREFETCH_ROWS          8
#define SKINNY_WIDE            SKINNY
#define BTYPE                  float
#define BLOAD                  v32_load
#define BLOAD_TAIL(p, n, mask) v32_load_tail(p, mask)
#include "cpu/ukr/gemm_tpl.h"

/* Rows as they are in memory: any number of elements apart, two to a lane. */
#undef BTYPE
#undef BLOAD
#undef BLOAD_TAIL
#define BTYPE                  uint16_t
#define BSTEP                  2
#define BLOAD(p)               _mm512_castsi512_ps(_mm512_loadu_si512(p))
#define BLOAD_TAIL(p, n, mask) _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(mask, p))
#include "cpu/ukr/dot_tpl.h"

/* rows x (nv times 32 columns): two rows of v become vectors of pairs. cols: columns of the last 32 that exist.
 * Prefetches do not help: the hardware's keep up. */
static inline __attribute__((always_inline)) void pv_tile(int rows, int nv, int64_t cols, int64_t k, const float *p,
                                                          int64_t ldp, const uint16_t *v, int64_t ldv, float *c,
                                                          int64_t ldc) {
    enum { ROWS = 4, MOST = 2 };
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i lo = _mm512_loadu_si512(low), hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    const __mmask32 part = cols >= 32 ? (__mmask32)-1 : ((__mmask32)1 << cols) - 1;
    v32 s[ROWS][2 * MOST];
    UNROLL for (int i = 0; i < rows; i++) { UNROLL for (int x = 0; x < 2 * nv; x++) s[i][x] = v32_set(0); }
    for (int64_t l = 0; l < k; l += 2, v += 2 * ldv) {
        v32 y[2 * MOST];
        UNROLL for (int x = 0; x < nv; x++) {
            const __mmask32 m = x == nv - 1 ? part : (__mmask32)-1;
            __m512i a = _mm512_maskz_loadu_epi16(m, v + 32 * x), b = _mm512_setzero_si512();
            if (l + 1 < k) b = _mm512_maskz_loadu_epi16(m, v + ldv + 32 * x);
            y[2 * x] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, lo, b));
            y[2 * x + 1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, hi, b));
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const v32 w = v32_set(p[i * ldp + l / 2]);
            UNROLL for (int x = 0; x < 2 * nv; x++) s[i][x] = madd_pair(w, y[x], s[i][x]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int x = 0; x < 2 * nv; x++) {
            const __mmask16 m = x < 2 * nv - 2 ? (__mmask16)-1 : (__mmask16)(x % 2 ? part >> 16 : part);
            float *to = c + i * ldc + 16 * x;
            v32_store_tail(to, m, v32_load_tail(to, m) + s[i][x]);
        }
    }
}
#define PV(r)                                                                                                          \
    case r:                                                                                                            \
        if (n - j >= 64) {                                                                                             \
            pv_tile(r, 2, 32, k, p, ldp, v + j, ldv, c + j, ldc);                                                      \
        } else {                                                                                                       \
            pv_tile(r, 1, n - j, k, p, ldp, v + j, ldv, c + j, ldc);                                                   \
        }                                                                                                              \
        break;
static void add_pv(int64_t m, int64_t n, int64_t k, const float *p, int64_t ldp, const uint16_t *v, int64_t ldv,
                   float *c, int64_t ldc) {
    for (; m > 0; m -= 4, p += 4 * ldp, c += 4 * ldc)
        for (int64_t j = 0; j < n; j += n - j >= 64 ? 64 : 32) {
            switch (m < 4 ? m : 4) { PV(1) PV(2) PV(3) PV(4) }
        }
}

/* Not finite: an exponent of ones. */
static inline __mmask32 special(__m512i x) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
}

static int zip(float *dst, const uint16_t *even, const uint16_t *odd, int64_t n) {
    __mmask32 bad = 0;
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        const __m512i e = even ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, even + j)) : _mm512_setzero_si512();
        const __m512i o = odd ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, odd + j)) : _mm512_setzero_si512();
        const __m512i x = _mm512_or_si512(e, _mm512_slli_epi32(o, 16));
        bad |= special(x);
        _mm512_mask_storeu_epi32(dst + j, m, x);
    }
    return !bad;
}

enum { TILE = 16 * 16 }; /* pairs of rows */
static inline void store_tiles(float *dst, __m512i even, __m512i odd) {
    v32 y[2];
    pair_rows(even, odd, y);
    v32_store(dst, y[0]);
    v32_store(dst + TILE, y[1]);
}
static void zip_blocks(float *dst, int64_t ld, const uint16_t *even, const uint16_t *odd, int64_t n) {
    for (int64_t j = 0; j < n; j += 32, dst += ld)
        store_tiles(dst, even ? _mm512_loadu_si512(even + j) : _mm512_setzero_si512(),
                    odd ? _mm512_loadu_si512(odd + j) : _mm512_setzero_si512());
}
static int zip_tiles(float *dst, const uint16_t *rows, int64_t ld, int64_t n) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512();
    for (int64_t r = 0; r < 16; r++, rows += ld, dst += 16) {
        for (int64_t j = 0; j < n; j += 32) {
            const __m512i first = _mm512_loadu_si512(rows + j), second = _mm512_loadu_si512(rows + 16 * ld + j);
            most = _mm512_max_epu16(most, _mm512_and_si512(first, magnitude));
            most = _mm512_max_epu16(most, _mm512_and_si512(second, magnitude));
            store_tiles(dst + j / 16 * TILE, first, second);
        }
    }
    return !_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80));
}

/* Eight columns of 32 rows: part L of x[t] is from row 8 L + t, so that three rounds within the parts are all there is
 * to transpose. */
static inline __m512i turn_columns(float *dst, const uint16_t *rows, int64_t ld) {
    __m512i x[8], y[8], most = _mm512_setzero_si512();
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    UNROLL for (int t = 0; t < 8; t++) {
        const uint16_t *from = rows + t * ld;
        x[t] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)from));
        x[t] = _mm512_mask_broadcast_i32x4(x[t], 0x00f0, _mm_loadu_si128((const void *)(from + 8 * ld)));
        x[t] = _mm512_mask_broadcast_i32x4(x[t], 0x0f00, _mm_loadu_si128((const void *)(from + 16 * ld)));
        x[t] = _mm512_mask_broadcast_i32x4(x[t], 0xf000, _mm_loadu_si128((const void *)(from + 24 * ld)));
        most = _mm512_max_epu16(most, _mm512_and_si512(x[t], magnitude));
    }
    UNROLL for (int t = 0; t < 8; t += 2) { /* y[t]: pair t / 2 of columns 0-3, y[t + 1]: of columns 4-7 */
        y[t] = _mm512_unpacklo_epi16(x[t], x[t + 1]);
        y[t + 1] = _mm512_unpackhi_epi16(x[t], x[t + 1]);
    }
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int t = 0; t < 2; t++) { /* pairs 2t and 2t + 1 of two columns each */
            x[4 * h + t] = _mm512_unpacklo_epi32(y[4 * t + h], y[4 * t + 2 + h]);
            x[4 * h + 2 + t] = _mm512_unpackhi_epi32(y[4 * t + h], y[4 * t + 2 + h]);
        }
    }
    UNROLL for (int c = 0; c < 4; c++) {
        _mm512_storeu_si512(dst + 2 * c * 16, _mm512_unpacklo_epi64(x[2 * c], x[2 * c + 1]));
        _mm512_storeu_si512(dst + (2 * c + 1) * 16, _mm512_unpackhi_epi64(x[2 * c], x[2 * c + 1]));
    }
    return most;
}
static int turn(float *dst, const uint16_t *rows, int64_t ld, int64_t n) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t j = 0; j < n; j += 8) most = _mm512_max_epu16(most, turn_columns(dst + j * 16, rows + j, ld));
    return !_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80));
}

/* An f16 has 11 significant bits: a bf16 of 8 and, exactly, one of at most 3. Returns where x is not finite. */
static inline __mmask16 split_half(__m256i x, __m256i *high, __m256i *low) {
    const __m256i exponent = _mm256_set1_epi16(0x7c00);
    const __mmask16 bad = _mm256_cmpeq_epi16_mask(_mm256_and_si256(x, exponent), exponent);
    const v32 wide = _mm512_cvtph_ps(_mm256_maskz_mov_epi16((__mmask16)~bad, x));
    *high = (__m256i)_mm512_cvtneps_pbh(wide);
    const v32 rest = wide - _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(*high), 16));
    *low = (__m256i)_mm512_cvtneps_pbh(rest);
    return bad;
}
static int zip_split_f16(float *high, float *low, const uint16_t *even, const uint16_t *odd, int64_t n) {
    __mmask16 bad = 0;
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        __m256i part[2][2]; /* [even, odd][high, low] */
        for (int i = 0; i < 2; i++) {
            const uint16_t *row = i ? odd : even;
            bad |= split_half(row ? _mm256_maskz_loadu_epi16(m, row + j) : _mm256_setzero_si256(), &part[i][0],
                              &part[i][1]);
        }
        for (int i = 0; i < 2; i++)
            _mm512_mask_storeu_epi32((i ? low : high) + j, m,
                                     _mm512_or_si512(_mm512_cvtepu16_epi32(part[0][i]),
                                                     _mm512_slli_epi32(_mm512_cvtepu16_epi32(part[1][i]), 16)));
    }
    return !bad;
}
static int split_f16(uint16_t *high, uint16_t *low, const uint16_t *x, int64_t n, int64_t step) {
    __mmask16 bad = 0;
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        const int64_t element = j / 32 * step + j % 32;
        __m256i h, l;
        bad |= split_half(_mm256_maskz_loadu_epi16(m, x + j), &h, &l);
        if (n - j < 16) {
            _mm256_mask_storeu_epi16(high + element, m, h);
            _mm256_mask_storeu_epi16(low + element, m, l);
        } else {
            _mm256_storeu_si256((__m256i *)(void *)(high + element), h);
            _mm256_storeu_si256((__m256i *)(void *)(low + element), l);
        }
    }
    for (int64_t j = 0; bad && j < n; j++) high[j / 32 * step + j % 32] = low[j / 32 * step + j % 32] = 0;
    return !bad;
}
static float most_square(const uint16_t *x, int64_t ld, int64_t n, int64_t width, int64_t step) {
    v32 most = v32_set(0);
    for (int64_t r = 0; r < n; r++, x += ld) {
        v32 sum = v32_set(0);
        for (int64_t j = 0; j < width / 32; j++) {
            const __m512bh y = (__m512bh)_mm512_loadu_si512(x + j * step);
            sum = _mm512_dpbf16_ps(sum, y, y);
        }
        most = _mm512_max_ps(most, sum);
    }
    return _mm512_reduce_add_ps(most);
}
/* f32 in three terms (vec/bf16_split_avx512.h). */
enum { SPLITS = 3 };
static int zip_split_f32(float *dst, int64_t apart, const float *even, const float *odd, int64_t n) {
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
    __mmask16 bad = 0;
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        v32 e = even ? load_finite(even + j, m, &bad) : v32_set(0),
            o = odd ? load_finite(odd + j, m, &bad) : v32_set(0);
        UNROLL for (int t = 0; t < SPLITS; t++) {
            _mm512_mask_storeu_epi32(dst + t * apart + j, m,
                                     _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(e), 16),
                                                     _mm512_and_si512(_mm512_castps_si512(o), upper)));
            e = below_upper(e), o = below_upper(o);
        }
    }
    return !bad;
}
static int split_f32(uint16_t *dst, int64_t apart, const float *x, int64_t n, int64_t step) {
    __mmask16 bad = 0;
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        uint16_t *to = dst + j / 32 * step + j % 32;
        v32 y = load_finite(x + j, m, &bad);
        UNROLL for (int t = 0; t < SPLITS; t++) {
            const __m256i part = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(y), 16));
            _mm256_mask_storeu_epi16(to + t * apart, m, part);
            y = below_upper(y);
        }
    }
    for (int64_t j = 0; bad && j < n; j++)
        for (int t = 0; t < SPLITS; t++) dst[t * apart + j / 32 * step + j % 32] = 0;
    return !bad;
}
static void split_block(float *dst, const float *x, int64_t ld, int down) {
    const int64_t second = down ? 16 * ld : 16, half = down ? 16 : 16 * ld; /* of a pair; rows or columns 16 .. 31 */
    for (int64_t r = 0; r < 16; r++)
        for (int64_t h = 0; h < 2; h++) {
            const float *from = x + r * ld + h * half;
            store_split(dst + h * ATTN_SPLIT_TILE + r * 16, v32_load(from), v32_load(from + second));
        }
}
static void stack(uint16_t *dst, const uint16_t *rows, int64_t ld, int64_t n) {
    for (int64_t r = 0; r < 16; r++)
        for (int64_t j = 0; j < n; j += 32)
            _mm512_storeu_si512(dst + j * 16 + r * 32, _mm512_loadu_si512(rows + r * ld + j));
}

static int finite_half(const uint16_t *x, int64_t n) {
    __mmask32 bad = 0;
    for (int64_t j = 0; j < n; j += 32) {
        const __mmask32 m = n - j < 32 ? ((__mmask32)1 << (n - j)) - 1 : (__mmask32)-1;
        bad |= special(_mm512_maskz_loadu_epi16(m, x + j));
    }
    return !bad;
}

static inline v32 store_pair(float *dst, __mmask16 m, v32 even, v32 odd) {
    const __m512i e = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    const __m512i o = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
    const __m512i y = _mm512_or_si512(e, _mm512_slli_epi32(o, 16));
    _mm512_mask_storeu_epi32(dst, m, y);
    return _mm512_castsi512_ps(y);
}
static void zip_f32(float *dst, const float *even, const float *odd, int64_t n, float factor) {
    const v32 f = v32_set(factor);
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        v32 o = v32_set(0);
        if (odd) o = v32_load_tail(odd + j, m) * f;
        store_pair(dst + j, m, v32_load_tail(even + j, m) * f, o);
    }
}

/* To p as bf16, or in place. */
static inline __attribute__((always_inline)) float exp2_row(uint16_t *p, float *x, const float *s, int64_t n,
                                                            float factor, float max) {
    const v32 f = v32_set(factor), high = v32_set(max), zero = v32_set(0);
    v32 s0 = zero, s1 = zero;
    int64_t j = 0;
    for (; j + 32 <= n; j += 32) {
        const v32 a = exp2_vec((v32_load(s + j) - high) * f), b = exp2_vec((v32_load(s + j + 16) - high) * f);
        if (x) {
            v32_store(x + j, a);
            v32_store(x + j + 16, b);
        } else {
            _mm512_storeu_si512(p + j, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
        s0 += a, s1 += b;
    }
    for (; j < n; j += 16) {
        const __mmask16 tail = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        const v32 a = v32_fill_tail(exp2_vec((v32_load_tail(s + j, tail) - high) * f), tail, zero);
        if (x) {
            v32_store_tail(x + j, tail, a);
        } else {
            _mm256_mask_storeu_epi16(p + j, tail, (__m256i)_mm512_cvtneps_pbh(a));
        }
        if (j % 32) { /* the same sum as a longer row that ends in zeros */
            s1 += a;
        } else {
            s0 += a;
        }
    }
    return v32_sum(s0 + s1);
}
static float exp2_half(uint16_t *p, const float *s, int64_t n, float factor, float max) {
    return exp2_row(p, NULL, s, n, factor, max);
}
static float exp2_f32(float *s, int64_t n, float factor, float max) { return exp2_row(NULL, s, s, n, factor, max); }

static inline v32 ones(void) { return _mm512_castsi512_ps(_mm512_set1_epi16(0x3f80)); }
static float total(const uint16_t *p, int64_t n) {
    v32 sum = v32_set(0);
    for (int64_t j = 0; j < n; j += 32) {
        const __mmask32 m = n - j < 32 ? ((__mmask32)1 << (n - j)) - 1 : (__mmask32)-1;
        sum = madd_pair(_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(m, p + j)), ones(), sum);
    }
    return v32_sum(sum);
}

static void exp_scores(float *dst, const float *even, const float *odd, const float *max, float *sum,
                       float *sum_rounded, int64_t n, float factor) {
    const v32 f = v32_set(factor);
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        const v32 high = v32_load_tail(max + j, m), e = exp2_vec((v32_load_tail(even + j, m) - high) * f);
        v32 o = v32_set(0);
        if (odd) o = exp2_vec((v32_load_tail(odd + j, m) - high) * f);
        v32_store_tail(sum + j, m, v32_load_tail(sum + j, m) + e + o);
        const v32 y = store_pair(dst + j, m, e, o);
        v32_store_tail(sum_rounded + j, m, madd_pair(y, ones(), v32_load_tail(sum_rounded + j, m)));
    }
}

static inline v32 score_row_bwd(const struct attn_bwd_row *row, int64_t j, __mmask16 m, v32 factor, v32 *p) {
    *p = exp2_vec((v32_load_tail(row->s + j, m) - v32_set(row->max)) * factor);
    const v32 ds = v32_where_nonzero(*p, *p * (v32_load_tail(row->dp + j, m) - v32_set(row->delta)));
    _mm256_mask_storeu_epi16(row->ds + j, m, (__m256i)_mm512_cvtneps_pbh(ds));
    return ds;
}
static void bwd_rows(float *p_zip, float *ds_zip, const struct attn_bwd_row *even, const struct attn_bwd_row *odd,
                     int64_t n, float factor) {
    const v32 f = v32_set(factor);
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        v32 p0, p1 = v32_set(0), ds1 = p1;
        const v32 ds0 = score_row_bwd(even, j, m, f, &p0);
        if (odd) ds1 = score_row_bwd(odd, j, m, f, &p1);
        store_pair(p_zip + j, m, p0, p1);
        store_pair(ds_zip + j, m, ds0, ds1);
    }
}

static void narrow(uint16_t *dst, const float *src, int64_t n) {
    for (int64_t j = 0; j < n; j += 16) {
        const __mmask16 m = n - j < 16 ? v32_tail_of(n - j) : (__mmask16)-1;
        _mm256_mask_storeu_epi16(dst + j, m, (__m256i)_mm512_cvtneps_pbh(v32_load_tail(src + j, m)));
    }
}

static void narrow_rows(uint16_t *dst, int64_t ld, const float *src, int64_t rows) {
    for (int64_t r = 0; r < rows; r++, dst += ld, src += 32)
        _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(v32_load(src + 16), v32_load(src)));
}

/* What both tables have: everything but the products. */
#define VECTORS                                                                                                        \
    .zip = zip, .zip_blocks = zip_blocks, .zip_tiles = zip_tiles, .turn = turn, .stack = stack,                        \
    .zip_split_f16 = zip_split_f16, .split_f16 = split_f16, .most_square = most_square,                                \
    .zip_split_f32 = zip_split_f32, .split_f32 = split_f32, .split_block = split_block, .zip_f32 = zip_f32,            \
    .finite = finite_half, .exp2 = exp2_half, .exp2_f32 = exp2_f32, .total = total, .exp_scores = exp_scores,          \
    .bwd_rows = bwd_rows, .narrow = narrow, .narrow_rows = narrow_rows
const struct attn_ukr_bf16 attn_ukr_bf16_avx512bf16 = {
    .gemm = gemm_pair,
    .dots = gemm_nt_pair,
    .add_pv = add_pv,
    .finish = attn_ukr_finish_avx512bf16,
    .transposed = &attn_ukr_transposed_avx512bf16,
    .decode = &attn_ukr_decode_avx512bf16,
    VECTORS,
};
const struct attn_ukr_bf16 attn_ukr_bf16_amx = {
    .begin = attn_ukr_amx_begin,
    .end = attn_ukr_amx_end,
    .rows = 32,
    .keys = 128,
    .gemm = attn_ukr_amx_gemm,
    .dots = attn_ukr_decode_dots,
    .add_pv = attn_ukr_decode_pv,
    .decode_tiles = attn_ukr_amx_decode,
    .fwd = attn_ukr_amx_fwd,
    .fwd_rowmajor = attn_ukr_amx_fwd_rowmajor,
    .finish = attn_ukr_finish_avx512bf16,
    .bwd_tile = attn_ukr_amx_bwd_tile,
    .bwd_tile_f32 = attn_ukr_amx_bwd_tile_f32,
    .mla_scores = attn_ukr_amx_mla_scores,
    .mla_bwd_scores = attn_ukr_amx_mla_bwd_scores,
    .mla_sum = attn_ukr_amx_mla_sum,
    .mla_add = attn_ukr_amx_add,
    VECTORS,
};
