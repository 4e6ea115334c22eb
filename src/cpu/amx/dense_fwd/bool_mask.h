/* SPDX-License-Identifier: MIT
 * Boolean masks of the forward on AMX (fwd.c): a strip's mask is packed into bits at its first step. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_BOOL_MASK_H
#define ATTN_CPU_AMX_DENSE_FWD_BOOL_MASK_H
#include "cpu/ukr/bf16.h"
#include "cpu/vec/avx512.h"
#include "cpu/vec/unroll.h"

/* Packs the mask's cells of 32 rows and n keys, a multiple of 64, into f->bits: a word for each key, bit r set where
 * row r sees it. After them a word for every 32 keys: the OR of their words. */
static __attribute__((noinline)) void pack_bool_mask(const struct attn_fwd_score_mod *f, int64_t n) {
    uint32_t *bits = f->bits, *any = bits + (n + 63) / 64 * 64;
    for (int64_t key = 0; key < n; key += 64, bits += 64, any += 2) {
        const int64_t there = f->mask_keys - key;
        const __mmask64 readable = there >= 64 ? ~(__mmask64)0 : there > 0 ? ((__mmask64)1 << there) - 1 : 0;
        __m512i rows[4]; /* byte j of vector g: rows 8 g .. 8 g + 7 of key j */
        UNROLL for (int g = 0; g < 4; g++) {
            rows[g] = _mm512_setzero_si512();
            UNROLL for (int r = 0; r < 8; r++) {
                const __m512i x = _mm512_maskz_loadu_epi8(readable, f->cell[8 * g + r] + key);
                rows[g] = _mm512_mask_add_epi8(rows[g], _mm512_test_epi8_mask(x, x), rows[g],
                                               _mm512_set1_epi8((char)(1 << r)));
            }
        }
        const __m512i a = _mm512_unpacklo_epi8(rows[0], rows[1]), b = _mm512_unpackhi_epi8(rows[0], rows[1]),
                      c = _mm512_unpacklo_epi8(rows[2], rows[3]), d = _mm512_unpackhi_epi8(rows[2], rows[3]);
        /* part L of w, x, y, z: keys 16 L .., each four more */
        const __m512i w = _mm512_unpacklo_epi16(a, c), x = _mm512_unpackhi_epi16(a, c), y = _mm512_unpacklo_epi16(b, d),
                      z = _mm512_unpackhi_epi16(b, d);
        const __m512i wx = _mm512_shuffle_i32x4(w, x, 0x44), yz = _mm512_shuffle_i32x4(y, z, 0x44),
                      wx_high = _mm512_shuffle_i32x4(w, x, 0xee), yz_high = _mm512_shuffle_i32x4(y, z, 0xee);
        const __m512i word[4] = {_mm512_shuffle_i32x4(wx, yz, 0x88), _mm512_shuffle_i32x4(wx, yz, 0xdd),
                                 _mm512_shuffle_i32x4(wx_high, yz_high, 0x88),
                                 _mm512_shuffle_i32x4(wx_high, yz_high, 0xdd)};
        UNROLL for (int g = 0; g < 4; g++) _mm512_storeu_si512(bits + 16 * g, word[g]);
        any[0] = (uint32_t)_mm512_reduce_or_epi32(_mm512_or_si512(word[0], word[1]));
        any[1] = (uint32_t)_mm512_reduce_or_epi32(_mm512_or_si512(word[2], word[3]));
    }
}
#endif
