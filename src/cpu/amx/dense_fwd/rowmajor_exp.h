/* SPDX-License-Identifier: MIT
 * Probabilities of a step of fwd_rowmajor.c: 2^((score + mask) * factor - offset), two queries by 32 keys at a time,
 * as rows of pairs, and their sums. The instructions are chosen as those of exp.h; where lse is not requested,
 * there is a table (exp_table.h). What makes the score is part of the argument, as in score_mod_fused.h: a scale
 * or a softcap, and ALiBi, whose slope and origin are numbers of a row here and its distances a vector. */
#ifndef ATTN_CPU_AMX_DENSE_FWD_ROWMAJOR_EXP_H
#define ATTN_CPU_AMX_DENSE_FWD_ROWMAJOR_EXP_H
#include "cpu/amx/dense_fwd/exp_table.h"
#include "cpu/amx/dense_fwd/softcap.h"
#include "cpu/ukr/bf16.h"
#include "cpu/vec/exp2_avx512.h"
#include "cpu/vec/unroll.h"

enum {
    ROWS = ATTN_FWD_ROWS,
    SPAN = 32,  /* keys of a step */
    LANES = 16, /* of a vector, and rows of a tile */
    TILE = 256, /* elements of 32 bits */
    SQUARE = 4 * TILE,
    MOST_SLICES = 4, /* of the sums, of 32 columns each, and steps between two additions to one */
    UNITS = ROWS / 2
};
/* Bits of what is 2 and more or a NaN, and of what a table makes of the far larger: a sign. Of a pair's first number
 * they are 16 lower. */
#define TOO_LARGE 0xc0000000

/* ------------------------------------------------------------------ masks ----------------------------- */

/* What a mask adds to 32 keys, 16 and 16 more, which are pairs. */
struct addends {
    v32 low, high;
};
static inline int adds(int mask) { return mask >= ATTN_UKR_MASK_F32 && mask <= ATTN_UKR_MASK_BF16; }
INLINE struct addends addends_of(int mask, const char *row) {
    if (mask == ATTN_UKR_MASK_F32) return (struct addends){_mm512_loadu_ps(row), _mm512_loadu_ps(row + 64)};
    if (mask == ATTN_UKR_MASK_F16)
        return (struct addends){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)row)),
                                _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(row + 32)))};
    static const uint8_t upper[64] = {
        /* numbers of 16 bits come to the upper halves of 32 */
        0, 0, 0,  1,  0, 0, 2,  3,  0, 0, 4,  5,  0, 0, 6,  7,  0, 0, 8,  9,  0, 0, 10, 11, 0, 0, 12, 13, 0, 0, 14, 15,
        0, 0, 16, 17, 0, 0, 18, 19, 0, 0, 20, 21, 0, 0, 22, 23, 0, 0, 24, 25, 0, 0, 26, 27, 0, 0, 28, 29, 0, 0, 30, 31};
    const __m512i x = _mm512_loadu_si512(row), low = _mm512_loadu_si512(upper),
                  high = _mm512_add_epi8(low, _mm512_set1_epi8(32));
    return (struct addends){_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(0xcccccccccccccccc, low, x)),
                            _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(0xcccccccccccccccc, high, x))};
}
/* A bit for each key that a boolean mask leaves visible. */
INLINE uint32_t visible_of(const char *row) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)row);
    return _mm256_test_epi8_mask(x, x);
}
static inline int64_t mask_bytes(int mask) {
    return mask == ATTN_UKR_MASK_F32 ? 4 : mask == ATTN_UKR_MASK_BITS ? 1 : 2;
}

/* ------------------------------------------------------------------ exponentials ---------------------- */

/* Parts of a score_mod besides the scale; both may be there. */
enum { MOD_CAP = 1, MOD_ALIBI = 2, MOD_KINDS = 4 };
/* What is subtracted from a row's arguments: [0][row]; ALiBi: less slope * (key - origin), or more slope *
 * |key - origin|: slopes are [1][row], origins [2][row]. */
enum { SUBTRACTED = 3 * ROWS };
struct exps {
    v32 factor, of_mask;     /* of products, and of what a mask adds to the scores that they make */
    __m512i half, down, all; /* all: of a step's probabilities, or-ed */
    struct exp_table table;
    const float *s, *offset, *sum;
    float *sum_to, *p;
    int degree;    /* attn_fwd_degree */
    int mask, mod; /* ATTN_UKR_MASK_.., MADE_.. */
    struct capped capped;
    v32 key[2];              /* of a step */
    __m512i magnitude;       /* ALiBi by distance: all bits but the sign; else all */
    const char *const *cell; /* the mask's rows, from byte mask_offset on */
    int64_t mask_offset;
    int products; /* during a step */
    int done, due;
};
INLINE void set_up(struct exps *e, const struct attn_fwd_strip *f, int mask, int mod, int degree, int64_t o_slices) {
    const float part = attn_fwd_parts(degree), factor = f->factor;
    *e = (struct exps){.factor = v32_set(factor * f->score->scale * part),
                       .of_mask = v32_set(factor * part),
                       .mask = mask,
                       .mod = mod,
                       .degree = degree};
    if (mod & MOD_CAP) set_up_capped(&e->capped, degree == ATTN_FWD_TABLE_OF_SUMS, factor * part, f->score);
    if (mod & MOD_ALIBI) e->magnitude = _mm512_set1_epi32(f->score->alibi == 2 ? INT32_MAX : -1);
    if (degree == ATTN_FWD_TABLE_OF_SUMS) set_up_table(&e->table), e->table.signs = 1;
    e->done = UNITS;
    e->products = (int)(8 * o_slices);
    e->half = _mm512_set1_epi32(0x8000);
    e->down = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    /* constants that compilers would make again each time, by an instruction of the busy ports */
    __asm__("" : "+v"(e->half), "+v"(e->down));
}
/* Of arguments; a NaN is noted, and put `exactly` where it belongs. visible: NULL, or the keys whose probability is not
 * 0. */
INLINE void two_rows_by_table(struct exps *e, int exactly, const __mmask16 *visible, v32 *x, const float *sum,
                              float *sum_to, float *p) {
    const v32 origin = v32_set(EXP_TABLE_ORIGIN);
    UNROLL for (int i = 0; i < 4; i++) x[i] =
        visible ? _mm512_maskz_add_ps(visible[i], x[i], origin) : _mm512_add_ps(x[i], origin);
    const v32 low[2] = {x[0], x[2]}, high[2] = {x[1], x[3]};
    __m512i n[2];
    pairs_by_table(&e->table, exactly, low, high, NULL, n);
    UNROLL for (int r = 0; r < 2; r++) {
        if (exactly) {
            const __mmask16 nan = _mm512_cmp_ps_mask(low[r], high[r], _CMP_UNORD_Q);
            n[r] = _mm512_mask_mov_epi32(n[r], nan, _mm512_set1_epi32(-1));
        }
        _mm512_storeu_si512(p + r * LANES, n[r]);
        v32_store(sum_to + r * LANES, add_pairs(v32_load(sum + r * LANES), n[r]));
    }
    e->all = _mm512_ternarylogic_epi32(e->all, n[0], n[1], 0xfe);
}
/* Two queries by 32 keys; vector i is of query i / 2, 16 keys or the 16 after them. All four go through a step
 * before any goes through the next. */
INLINE void two_rows(struct exps *e, int exactly) {
    const int u = e->done;
    const float *s = e->s + u / (LANES / 2) * (2 * TILE) + u % (LANES / 2) * (2 * LANES);
    const float *sum = e->sum + u * (2 * LANES);
    float *sum_to = e->sum_to + u * (2 * LANES), *p = e->p + u * (2 * LANES);
    v32 x[4], offset[4];
    __mmask16 mask[4];
    const __mmask16 *const visible = e->mask == ATTN_UKR_MASK_BITS ? mask : NULL;
    e->done++;
    UNROLL for (int i = 0; i < 4; i++) x[i] = v32_load(s + i % 2 * TILE + i / 2 * LANES);
    UNROLL for (int i = 0; i < 4; i++) offset[i] = v32_set(e->offset[2 * u + i / 2]);
    if (e->mod & MOD_ALIBI) {
        const float *const slope = e->offset + ROWS, *const from = slope + ROWS;
        v32 t[4];
        UNROLL for (int i = 0; i < 4; i++) t[i] = e->key[i % 2] - v32_set(from[2 * u + i / 2]);
        UNROLL for (int i = 0; i < 4; i++) t[i] =
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(t[i]), e->magnitude));
        UNROLL for (int i = 0; i < 4; i++) offset[i] = v32_fma(t[i], v32_set(slope[2 * u + i / 2]), offset[i]);
    }
    UNROLL for (int r = 0; r < 2; r++) {
        if (visible) {
            const uint32_t both = visible_of(e->cell[2 * u + r] + e->mask_offset);
            mask[2 * r] = (__mmask16)both, mask[2 * r + 1] = (__mmask16)(both >> LANES);
        }
        if (!adds(e->mask)) continue;
        const struct addends add = addends_of(e->mask, e->cell[2 * u + r] + e->mask_offset);
        offset[2 * r] = _mm512_fnmadd_ps(add.low, e->of_mask, offset[2 * r]);
        offset[2 * r + 1] = _mm512_fnmadd_ps(add.high, e->of_mask, offset[2 * r + 1]);
    }
    if (e->mod & MOD_CAP) {
        const v32 in[4] = {x[0], x[1], x[2], x[3]};
        capped_arguments(&e->capped, exactly, in, offset, NULL, x);
    } else {
        UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_fmsub_ps(x[i], e->factor, offset[i]);
    }
    if (e->degree == ATTN_FWD_TABLE_OF_SUMS) {
        two_rows_by_table(e, exactly, visible, x, sum, sum_to, p);
        return;
    }
    exp2_times(visible, x);
    UNROLL for (int r = 0; r < 2; r++) {
        const __m512i low = _mm512_add_epi32(_mm512_castps_si512(x[2 * r]), e->half),
                      high = _mm512_add_epi32(_mm512_castps_si512(x[2 * r + 1]), e->half);
        v32_store(sum_to + r * LANES, v32_load(sum + r * LANES) + (x[2 * r] + x[2 * r + 1]));
        e->all = _mm512_ternarylogic_epi32(e->all, low, high, 0xfe);
        /* high ones keep their upper 16 bits, those of low ones come down to them */
        _mm512_storeu_si512(p + r * LANES, _mm512_mask_shuffle_epi8(high, 0x3333333333333333, low, e->down));
    }
}
/* step: what s are the products of. */
INLINE void begin_step(struct exps *e, int64_t step, const float *s, float *p, const float *offset, const float *sum,
                       float *sum_to) {
    e->s = s, e->p = p, e->offset = offset, e->sum = sum, e->sum_to = sum_to;
    e->done = e->due = 0;
    e->all = _mm512_setzero_si512();
    if (e->degree == ATTN_FWD_TABLE_OF_SUMS) begin_table(&e->table);
    if (e->mod & MOD_CAP) e->capped.beyond = _mm512_setzero_si512();
    if (e->mod & MOD_ALIBI) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        e->key[0] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_set1_epi32((int32_t)(step * SPAN)), lane));
        e->key[1] = e->key[0] + v32_set(LANES);
    }
}
/* Once more, as a whole; with a cap it may be most steps that need it. */
INLINE __m512i step_again(struct exps *e) {
    e->all = _mm512_setzero_si512();
    for (e->done = 0; e->done < UNITS;) two_rows(e, 1);
    return e->all;
}
static __attribute__((noinline)) __m512i step_exactly(struct exps *e) { return step_again(e); }
/* A step that has met a NaN or numbers that a table may have taken for ones far above (see pairs_by_table), or scores
 * that a cap's polynomial does not serve, is taken again. */
INLINE void finish_step(struct exps *e) {
    while (e->done < UNITS) two_rows(e, 0);
    const __m512i signs = _mm512_set1_epi32((int32_t)0x80008000u);
    const int rare = e->degree == ATTN_FWD_TABLE_OF_SUMS &&
                     ((__mmask16) ~(e->table.ordered[0] & e->table.ordered[1]) | _mm512_test_epi32_mask(e->all, signs));
    if (rare || (e->mod & MOD_CAP && is_beyond_cap(&e->capped))) {
        struct exps copy = *e;
        __asm__("" : "+m"(copy)); /* clang would pass *e itself, and so keep it in memory everywhere */
        if (!(e->mod & MOD_CAP)) {
            e->all = step_exactly(&copy);
            return;
        }
        copy.mask = e->mask, copy.mod = e->mod, copy.degree = e->degree, copy.capped.n_coefs = e->capped.n_coefs;
        e->all = step_again(&copy);
    }
}
/* Some of them, where the tile unit is busy. */
INLINE void deal(struct exps *e) {
    e->due += UNITS;
    if (e->due < e->products) return;
    e->due -= e->products;
    if (e->done < UNITS) two_rows(e, 0);
}
static inline int any_too_large(const struct exps *e) {
    const uint32_t first = e->degree == ATTN_FWD_TABLE_OF_SUMS ? TOO_LARGE >> 16 : 0; /* all is of pairs */
    return _mm512_test_epi32_mask(e->all, _mm512_set1_epi32((int32_t)(TOO_LARGE | first))) != 0;
}
#endif
