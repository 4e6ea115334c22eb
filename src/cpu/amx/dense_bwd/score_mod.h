/* SPDX-License-Identifier: MIT
 * score_mod of the backward on AMX (bwd.c, bwd_f32.c): softcap, ALiBi, masks, sinks. Keys lie across the lanes, as in
 * a mask's memory: nothing is transposed, and what belongs to a row (slope, max) is one number for its vectors.
 *
 *     x = cap(s) factor + (slope distance - max)                        each bracket one multiply-add
 *     x = cap(s) factor + (slope distance + (mask - max) log2 e)        an additive mask: max is the row's own lse
 *
 * A row of which a mask like -1e9 hides every key has as low a lse: times log2 e each they would be rounded apart, and
 * what is left of them be off by 64 octaves. Their difference is exact.
 *
 * What is hidden, by a mask or by what a row sees, are bits of a word for each row and 32 keys, made for a whole tile
 * before its products: they mask the exponential's last instruction, and keys at either end that no row of a strip
 * keeps are left out. */
#ifndef ATTN_CPU_AMX_DENSE_BWD_SCORE_MOD_H
#define ATTN_CPU_AMX_DENSE_BWD_SCORE_MOD_H
#include "cpu/amx/dense_bwd/visible_keys.h"
#include "cpu/vec/softcap_vec.h"

/* What a kernel is compiled for besides hidden keys: one of these, or all, of which any may be absent at run time. */
enum {
    SCORE_NONE,
    SCORE_VISIBLE = 1,
    SCORE_CAP = 2,
    SCORE_ALIBI = 4,
    SCORE_CELLS = 8,
    SCORE_WEIGHT = 16,
    SCORE_ANY = 31
};
static inline int scores_of(const struct attn_bwd_score_mod *f) {
    const int what = SCORE_VISIBLE | (f->caps ? SCORE_CAP : 0) | (f->alibi ? SCORE_ALIBI : 0) |
                     (f->mask > ATTN_UKR_MASK_BITS ? SCORE_CELLS : 0) | (f->weight ? SCORE_WEIGHT : 0);
    return what;
}
/* Whether a kernel for `what` has to do with one of them. */
INLINE int score_has(int what, int one, int there) { return what == SCORE_ANY ? there : (what & one) != 0; }

#define SCORE_LOG2_E 1.44269504088896340736f
enum { SCORE_SIDE = ATTN_BWD_TILE };

/* Bits 0 .. n - 1, of any n. */
static inline __m512i bits_below(__m512i n) {
    const __m512i one = _mm512_set1_epi32(1);
    return _mm512_sub_epi32(_mm512_sllv_epi32(one, _mm512_max_epi32(n, _mm512_setzero_si512())), one);
}
/* Words of a boolean mask's cells, rows of a strip by the blocks [from, to): 64 cells at a time. */
static inline void pack_cells(const struct attn_bwd_score_mod *f, int64_t strip, int64_t blocks, int64_t from,
                              int64_t to) {
    uint32_t *const word = f->bits + strip * blocks * SCORE_SIDE;
    for (int64_t i = 0; i < SCORE_SIDE; i++) {
        const char *const cell = f->cell[strip * SCORE_SIDE + i];
        for (int64_t k = from; k < to; k += 2) {
            const int64_t there = f->mask_keys - k * SCORE_SIDE;
            const __mmask64 readable = there >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << there) - 1;
            const __m512i x = _mm512_maskz_loadu_epi8(readable, cell + k * SCORE_SIDE);
            const uint64_t bits = _cvtmask64_u64(_mm512_test_epi8_mask(x, x));
            word[k * SCORE_SIDE + i] = (uint32_t)bits;
            if (k + 1 < to) word[(k + 1) * SCORE_SIDE + i] = (uint32_t)(bits >> 32);
        }
    }
}
/* All words of a strip; *reach becomes what some row keeps. */
static inline void keep(const struct attn_bwd_score_mod *f, const int32_t *seen, int64_t strip, int64_t blocks,
                        struct reach *reach) {
    const int64_t from = reach->lo / SCORE_SIDE, to = (reach->hi + SCORE_SIDE - 1) / SCORE_SIDE;
    const int packed = f->mask == ATTN_UKR_MASK_BITS;
    int64_t first = to, last = from;
    if (packed) pack_cells(f, strip, blocks, from, to);
    for (int64_t k = from; k < to; k++) {
        const __m512i first_key = _mm512_set1_epi32((int32_t)(k * SCORE_SIDE));
        __m512i any = _mm512_setzero_si512();
        for (int64_t i = 0; i < SCORE_SIDE; i += 16) {
            uint32_t *const word = f->bits + (strip * blocks + k) * SCORE_SIDE + i;
            const __m512i lo = _mm512_sub_epi32(_mm512_loadu_si512(seen + i), first_key),
                          hi = _mm512_sub_epi32(_mm512_loadu_si512(seen + SCORE_SIDE + i), first_key);
            __m512i bits = _mm512_andnot_si512(bits_below(lo), bits_below(hi));
            if (packed) bits = _mm512_and_si512(bits, _mm512_loadu_si512(word));
            _mm512_storeu_si512(word, bits);
            any = _mm512_or_si512(any, bits);
        }
        if (!_mm512_test_epi32_mask(any, any)) continue;
        if (k < first) first = k;
        last = k + 1;
    }
    reach->lo = (int32_t)(first < last ? first * SCORE_SIDE : 0);
    reach->hi = (int32_t)(first < last ? last * SCORE_SIDE : 0);
}

/* A chunk's. */
struct scores {
    const struct attn_bwd_score_mod *mod;
    int64_t row, first;          /* of the tile, and the first key */
    const uint16_t *visible;     /* two of 16 keys for each row */
    v32 key[2];                  /* numbers of the keys */
    __m512i magnitude;           /* ALiBi by distance: all bits but the sign; else all */
    __mmask16 readable[2];       /* keys that have cells */
    const char *const *prefetch; /* rows of which cells are prefetched, with every two rows */
    int64_t prefetch_from_row;
};
static inline void begin_scores(struct scores *e, int64_t strip, int64_t block, const struct reach *reach,
                                int64_t strips, int64_t blocks) {
    const struct attn_bwd_score_mod *const f = e->mod;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    e->row = strip * SCORE_SIDE, e->first = block * SCORE_SIDE;
    e->visible = (const uint16_t *)(const void *)(f->bits + (strip * blocks + block) * SCORE_SIDE);
    e->magnitude = _mm512_set1_epi32(f->alibi == 2 ? INT32_MAX : -1);
    for (int h = 0; h < 2; h++) {
        const int64_t first_key = e->first + h * 16, there = f->mask_keys - first_key;
        e->key[h] = _mm512_cvtepi32_ps(_mm512_add_epi32(lane, _mm512_set1_epi32((int32_t)first_key)));
        e->readable[h] = (__mmask16)(there >= 16 ? 0xffff : there > 0 ? (1u << there) - 1 : 0);
    }
    if (f->mask == ATTN_UKR_MASK_BITS) { /* of the next tile: a line has 64 keys of a row */
        e->prefetch = f->next + e->row + block % 2;
        e->prefetch_from_row = block / 2 * 64;
        return;
    }
    /* of the next chunk */
    int64_t r = strip, k = block + 1;
    if (k * SCORE_SIDE >= reach[r].hi) {
        do r++;
        while (r < strips && reach[r].hi == 0);
        k = r < strips ? reach[r].lo / SCORE_SIDE : 0;
    }
    e->prefetch = r < strips ? f->cell + r * SCORE_SIDE : f->next;
    e->prefetch_from_row = k * SCORE_SIDE * f->mask_bytes;
}

/* What an additive mask has for row r, from its max on, is added to t in octaves. */
INLINE void add_cells(const struct scores *e, int64_t r, v32 max, v32 *t) {
    const struct attn_bwd_score_mod *const f = e->mod;
    const char *const cell = f->cell[e->row + r] + e->first * f->mask_bytes;
    v32 m[2];
    UNROLL for (int h = 0; h < 2; h++) {
        if (f->mask == ATTN_UKR_MASK_F32) {
            m[h] = _mm512_maskz_loadu_ps(e->readable[h], cell + h * 64);
        } else {
            const __m256i x = _mm256_maskz_loadu_epi16(e->readable[h], cell + h * 32);
            m[h] = f->mask == ATTN_UKR_MASK_F16 ? _mm512_cvtph_ps(x)
                                                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
        }
    }
    UNROLL for (int h = 0; h < 2; h++) t[h] = v32_fma(m[h] - max, v32_set(SCORE_LOG2_E), t[h]);
}
/* The lines that are prefetched during rows 2 u and 2 u + 1. */
INLINE void prefetch_cells(const struct scores *e, int64_t u) {
    const struct attn_bwd_score_mod *const f = e->mod;
    if (!f->mask) return;
    _mm_prefetch(e->prefetch[2 * u] + e->prefetch_from_row, _MM_HINT_T1);
    if (f->mask == ATTN_UKR_MASK_BITS) return;
    _mm_prefetch(e->prefetch[2 * u + 1] + e->prefetch_from_row, _MM_HINT_T1);
    if (f->mask != ATTN_UKR_MASK_F32) return;
    _mm_prefetch(e->prefetch[2 * u] + e->prefetch_from_row + 64, _MM_HINT_T1);
    _mm_prefetch(e->prefetch[2 * u + 1] + e->prefetch_from_row + 64, _MM_HINT_T1);
}
/* Products x of two rows of the chunk, two vectors each, become arguments of the exponential; chain receives the
 * derivative of the cap, or 1. max: of the strip. */
INLINE void score_rows(int what, const struct scores *e, int64_t even, int64_t odd, v32 factor, const float *max,
                       v32 *x, v32 *chain) {
    const struct attn_bwd_score_mod *const f = e->mod;
    const int64_t row[2] = {even, odd};
    v32 t[4];
    if (score_has(what, SCORE_CAP, f->caps)) {
        softcap_chain(x, &f->cap, chain);
    } else {
        UNROLL for (int i = 0; i < 4; i++) chain[i] = v32_set(1);
    }
    const int cells = score_has(what, SCORE_CELLS, f->mask > ATTN_UKR_MASK_BITS);
    UNROLL for (int i = 0; i < 4; i++) t[i] = v32_set(0) - (cells ? v32_set(0) : v32_set(max[row[i / 2]]));
    if (score_has(what, SCORE_ALIBI, f->alibi)) {
        v32 d[4];
        UNROLL for (int i = 0; i < 4; i++) d[i] = e->key[i % 2] - v32_set(f->origin[e->row + row[i / 2]]);
        UNROLL for (int i = 0; i < 4; i++) d[i] =
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(d[i]), e->magnitude));
        UNROLL for (int i = 0; i < 4; i++) d[i] = d[i] - v32_set(f->near[e->row + row[i / 2]]);
        UNROLL for (int i = 0; i < 4; i++) t[i] = v32_fma(v32_set(f->slope[e->row + row[i / 2]]), d[i], t[i]);
    }
    if (cells) {
        add_cells(e, even, v32_set(max[even]), t);
        add_cells(e, odd, v32_set(max[odd]), t + 2);
    }
    UNROLL for (int i = 0; i < 4; i++) x[i] = v32_fma(x[i], factor, t[i]);
}
/* The exponential's end, of the same rows: 0 for what is hidden, whatever its score is. */
INLINE void keep_rows(const struct scores *e, int64_t even, int64_t odd, v32 *x, const v32 *p) {
    const int64_t row[2] = {even, odd};
    UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_maskz_scalef_ps(e->visible[row[i / 2] * 2 + i % 2], p[i], x[i]);
}
#endif
