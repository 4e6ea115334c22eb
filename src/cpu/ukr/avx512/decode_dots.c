/* SPDX-License-Identifier: MIT
 * Products of few rows on pairs of bf16 by multiply-adds in f32: attn_ukr_bf16.dots and .add_pv where vdpbf16ps starts
 * every other cycle only, as on the processors with AMX, and two multiply-adds start in every cycle. A vector of 32
 * values becomes two of f32, the even ones by a shift and the odd ones by a mask.
 *
 *     dots    q, even and odd, f32, from the first-level cache        pv      sums of even and of odd columns in
 * registers k  k0 k1 k2 ...  -> even, odd                                   v row -> even, odd 4 rows x (even, odd)
 * sums of one key                            p, one element for all lanes            */
#include "cpu/ukr/decode_dots.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

#ifndef AHEAD
#define AHEAD 4096 /* bytes */
#endif
enum { ROWS = 4, MOST_PAIRS = 256 };

/* Operands from memory are prefetched, into the second-level cache: alone the hardware keeps some 2 KiB on the way
 * and stops while products are made. Rows ahead for rows of n; the addresses may lie after the operand. */
static inline int64_t rows_ahead(int64_t n) { return n > 0 ? AHEAD / 2 / n + 1 : 0; }
static inline void prefetch(const uint16_t *p, int64_t elements) {
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)elements * sizeof *p), 0, 2);
}

static inline v32 even_of(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
static inline v32 odd_of(__m512i x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

/* q: [rows][2][pairs]. Sums of two keys, [2][ROWS]. */
static inline __attribute__((always_inline)) void dots_tile(int rows, int64_t k, const float *q, const uint16_t *b0,
                                                            const uint16_t *b1, float *sums) {
    v32 s[2 * ROWS];
    UNROLL for (int j = 0; j < 2; j++) {
        const uint16_t *b = j ? b1 : b0;
        v32 even[ROWS], odd[ROWS];
        UNROLL for (int i = 0; i < rows; i++) even[i] = odd[i] = v32_set(0);
        for (int64_t l = 0; l < k; l += 16) {
            const __m512i x = _mm512_maskz_loadu_epi32(k - l < 16 ? v32_tail_of(k - l) : (__mmask16)-1, b + 2 * l);
            const v32 e = even_of(x), o = odd_of(x);
            UNROLL for (int i = 0; i < rows; i++) {
                even[i] = v32_fma(v32_load(q + i * 2 * MOST_PAIRS + l), e, even[i]);
                odd[i] = v32_fma(v32_load(q + (i * 2 + 1) * MOST_PAIRS + l), o, odd[i]);
            }
        }
        UNROLL for (int i = 0; i < ROWS; i++) {
            s[j * ROWS + i] = v32_set(0);
            if (i < rows) s[j * ROWS + i] = even[i] + odd[i];
        }
    }
    v32_store_sums(sums, s);
}
void attn_ukr_decode_dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                          float *c, int64_t ldc) {
    _Alignas(64) float q[ROWS * 2 * MOST_PAIRS], sums[2 * ROWS];
    const int64_t far = rows_ahead(2 * k) * ldb;
    for (; m > 0; m -= ROWS, a += ROWS * lda, c += ROWS * ldc) {
        const int64_t rows = m < ROWS ? m : ROWS;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t l = 0; l < k; l += 16) {
                const __m512i x =
                    _mm512_maskz_loadu_epi32(k - l < 16 ? v32_tail_of(k - l) : (__mmask16)-1, a + i * lda + l);
                v32_store(q + i * 2 * MOST_PAIRS + l, even_of(x));
                v32_store(q + (i * 2 + 1) * MOST_PAIRS + l, odd_of(x));
            }
        for (int64_t j = 0; j < n; j += 2) {
            const uint16_t *b0 = b + j * ldb, *b1 = j + 1 < n ? b0 + ldb : b0;
            for (int64_t l = 0; l < 2 * k; l += 32) prefetch(b0, far + l), prefetch(b1, far + l);
            switch (rows) {
            case 1: dots_tile(1, k, q, b0, b1, sums); break;
            case 2: dots_tile(2, k, q, b0, b1, sums); break;
            case 3: dots_tile(3, k, q, b0, b1, sums); break;
            default: dots_tile(4, k, q, b0, b1, sums);
            }
            for (int64_t i = 0; i < rows; i++) {
                c[i * ldc + j] = sums[i];
                if (j + 1 < n) c[i * ldc + j + 1] = sums[ROWS + i];
            }
        }
    }
}

enum { KEYS = 32, MOST = 4 };
/* rows x (nv times 32 columns), k keys; cols: columns of the last 32 that exist. p: [ROWS][KEYS]. */
static inline __attribute__((always_inline)) void pv_tile(int rows, int nv, int64_t cols, int64_t k, int64_t far,
                                                          const float *p, const uint16_t *v, int64_t ldv, float *c,
                                                          int64_t ldc) {
    static const int32_t low[16] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    const __m512i lo = _mm512_loadu_si512(low), hi = _mm512_add_epi32(lo, _mm512_set1_epi32(8));
    const __mmask32 part = cols >= 32 ? (__mmask32)-1 : ((__mmask32)1 << cols) - 1;
    v32 s[ROWS][2 * MOST];
    UNROLL for (int i = 0; i < rows; i++) { UNROLL for (int x = 0; x < 2 * nv; x++) s[i][x] = v32_set(0); }
    for (int64_t l = 0; l < k; l++, v += ldv) {
        UNROLL for (int x = 0; x < nv; x++) {
            const __m512i y = _mm512_maskz_loadu_epi16(x == nv - 1 ? part : (__mmask32)-1, v + 32 * x);
            prefetch(v, far + 32 * x);
            const v32 e = even_of(y), o = odd_of(y);
            UNROLL for (int i = 0; i < rows; i++) {
                const v32 w = v32_set(p[i * KEYS + l]);
                s[i][2 * x] = v32_fma(w, e, s[i][2 * x]);
                s[i][2 * x + 1] = v32_fma(w, o, s[i][2 * x + 1]);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int x = 0; x < nv; x++) {
            const __mmask32 m = x == nv - 1 ? part : (__mmask32)-1;
            float *to = c + i * ldc + 32 * x;
            const v32 y[2] = {_mm512_permutex2var_ps(s[i][2 * x], lo, s[i][2 * x + 1]),
                              _mm512_permutex2var_ps(s[i][2 * x], hi, s[i][2 * x + 1])};
            UNROLL for (int h = 0; h < 2; h++) {
                const __mmask16 readable = (__mmask16)(m >> 16 * h);
                v32_store_tail(to + 16 * h, readable, v32_load_tail(to + 16 * h, readable) + y[h]);
            }
        }
    }
}
void attn_ukr_decode_pv(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                        float *c, int64_t ldc) {
    _Alignas(64) float p[ROWS * KEYS];
    const int64_t far = 2 * rows_ahead(n) * ldb; /* the columns of a row take several passes */
    for (int64_t l = 0; l < k; l += KEYS, a += KEYS / 2, b += KEYS * ldb) {
        const int64_t keys = k - l < KEYS ? k - l : KEYS;
        for (int64_t i = 0; i < m; i += ROWS) {
            const int64_t rows = m - i < ROWS ? m - i : ROWS;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t x = 0; x < keys; x++) { /* an odd last pair is read for its first half only */
                    uint32_t two;
                    __builtin_memcpy(&two, a + (i + r) * lda + x / 2, sizeof two);
                    two = x % 2 ? two & 0xffff0000u : two << 16;
                    __builtin_memcpy(p + r * KEYS + x, &two, sizeof two);
                }
            for (int64_t j = 0; j < n; j += n - j >= 64 ? 64 : 32) {
                const uint16_t *v = b + j;
                float *to = c + i * ldc + j;
#define PV(r)                                                                                                          \
    case r:                                                                                                            \
        if (n - j >= 64) {                                                                                             \
            pv_tile(r, 2, 32, keys, far, p, v, ldb, to, ldc);                                                          \
        } else {                                                                                                       \
            pv_tile(r, 1, n - j, keys, far, p, v, ldb, to, ldc);                                                       \
        }                                                                                                              \
        break;
                switch (rows) { PV(1) PV(2) PV(3) PV(4) }
            }
        }
    }
}
