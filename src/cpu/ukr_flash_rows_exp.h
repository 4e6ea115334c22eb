/* SPDX-License-Identifier: MIT
 * Probabilities of a step of ukr_flash_rows_amx.c: 2^((s * scale + mask) * factor - top), two queries by 32 keys at a
 * time, as rows of pairs, and their sums. The instructions are chosen as those of ukr_flash_exp.h. */
#ifndef ATTN_CPU_UKR_FLASH_ROWS_EXP_H
#define ATTN_CPU_UKR_FLASH_ROWS_EXP_H
#include "cpu/ukr_exp2_avx512.h"
#include "cpu/ukr_pair.h"
#include "cpu/ukr_unroll.h"

enum {
    ROWS = ATTN_PAIR_FLASH,
    SPAN = 32,  /* keys of a step */
    LANES = 16, /* of a vector, and rows of a tile */
    TILE = 256, /* elements of 32 bits */
    SQUARE = 4 * TILE,
    MOST_PARTS = 4, /* of the sums, of 32 columns each, and steps between two visits of one */
    UNITS = ROWS / 2
};
#define TOO_LARGE 0x40000000 /* the bit of 2 and more, of a NaN, too */

/* ------------------------------------------------------------------ masks ----------------------------- */

/* What a mask adds to 32 keys, the even ones and the odd ones. */
struct addends {
    v32 even, odd;
};
enum { MASK_APART = ATTN_PAIR_MASK_BIAS + 1 }; /* f32, the even keys' and then the odd ones' */
INLINE struct addends addends_of(int mask, const char *row) {
    static const uint16_t even_then_odd[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                               1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i low = _mm512_loadu_si512(row);
    if (mask == MASK_APART)
        return (struct addends){_mm512_castsi512_ps(low), _mm512_castsi512_ps(_mm512_loadu_si512(row + 64))};
    if (mask == ATTN_PAIR_MASK_F32) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                      odd = _mm512_add_epi32(even, _mm512_set1_epi32(1)), high = _mm512_loadu_si512(row + 64);
        return (struct addends){_mm512_castsi512_ps(_mm512_permutex2var_epi32(low, even, high)),
                                _mm512_castsi512_ps(_mm512_permutex2var_epi32(low, odd, high))};
    }
    if (mask == ATTN_PAIR_MASK_BF16)
        return (struct addends){_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)),
                                _mm512_castsi512_ps(_mm512_and_si512(low, _mm512_set1_epi32((int32_t)0xffff0000u)))};
    const __m512i apart = _mm512_permutexvar_epi16(_mm512_loadu_si512(even_then_odd), low);
    return (struct addends){_mm512_cvtph_ps(_mm512_castsi512_si256(apart)),
                            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(apart, 1))};
}
static inline int64_t mask_bytes(int mask) { return mask == ATTN_PAIR_MASK_F32 ? 4 : 2; }

/* ------------------------------------------------------------------ exponentials ---------------------- */

struct exps {
    v32 factor, of_mask;     /* of products, and of what a mask adds to the scores that they make */
    __m512i half, down, all; /* all: of a step's probabilities, or-ed */
    const float *s, *top, *sum;
    float *sum_to, *p;
    int degree;              /* of the polynomial */
    int mask;                /* ATTN_PAIR_MASK_.. or MASK_APART */
    const char *const *cell; /* the mask's rows, from byte `at` on */
    int64_t at;
    int products; /* beside a step */
    int done, due;
};
INLINE void set_up(struct exps *e, float factor, float scale, int mask, int degree, int64_t parts) {
    *e = (struct exps){.factor = v32_set(factor * scale), .of_mask = v32_set(factor), .mask = mask, .degree = degree};
    e->done = UNITS;
    e->products = (int)(8 * parts);
    e->half = _mm512_set1_epi32(0x8000);
    e->down = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    /* constants that compilers would make again each time, by an instruction of the busy ports */
    __asm__("" : "+v"(e->half), "+v"(e->down));
}
/* Two queries by 32 keys; vector i is of query i / 2, even or odd keys. All four go through a step before any goes
 * through the next. */
INLINE void two_rows(struct exps *e) {
    const int u = e->done;
    const float *s = e->s + u / (LANES / 2) * (2 * TILE) + u % (LANES / 2) * (2 * LANES);
    const float *sum = e->sum + u * (2 * LANES);
    float *sum_to = e->sum_to + u * (2 * LANES), *p = e->p + u * (2 * LANES);
    v32 x[4], top[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = v32_load(s + i % 2 * TILE + i / 2 * LANES);
    UNROLL for (int i = 0; i < 4; i++) top[i] = v32_set(e->top[2 * u + i / 2]);
    UNROLL for (int r = 0; r < 2; r++) {
        const struct addends add = addends_of(e->mask, e->cell[2 * u + r] + e->at);
        top[2 * r] = _mm512_fnmadd_ps(add.even, e->of_mask, top[2 * r]);
        top[2 * r + 1] = _mm512_fnmadd_ps(add.odd, e->of_mask, top[2 * r + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_fmsub_ps(x[i], e->factor, top[i]);
    exp2_times(e->degree, NULL, x);
    UNROLL for (int r = 0; r < 2; r++) {
        const __m512i even = _mm512_add_epi32(_mm512_castps_si512(x[2 * r]), e->half),
                      odd = _mm512_add_epi32(_mm512_castps_si512(x[2 * r + 1]), e->half);
        v32_store(sum_to + r * LANES, v32_load(sum + r * LANES) + (x[2 * r] + x[2 * r + 1]));
        e->all = _mm512_ternarylogic_epi32(e->all, even, odd, 0xfe);
        /* odd keys keep their upper 16 bits, those of even ones come down to them */
        _mm512_storeu_si512(p + r * LANES, _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, e->down));
    }
    e->done++;
}
INLINE void begin_step(struct exps *e, const float *s, float *p, const float *top, const float *sum, float *sum_to) {
    e->s = s, e->p = p, e->top = top, e->sum = sum, e->sum_to = sum_to;
    e->done = e->due = 0;
    e->all = _mm512_setzero_si512();
}
INLINE void finish_step(struct exps *e) {
    while (e->done < UNITS) two_rows(e);
}
/* Some of them, where the tile unit is busy. */
INLINE void deal(struct exps *e) {
    e->due += UNITS;
    if (e->due < e->products) return;
    e->due -= e->products;
    if (e->done < UNITS) two_rows(e);
}
static inline int any_too_large(const struct exps *e) {
    return _mm512_test_epi32_mask(e->all, _mm512_set1_epi32(TOO_LARGE)) != 0;
}
#endif
