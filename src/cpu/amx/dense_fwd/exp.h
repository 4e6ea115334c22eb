/* SPDX-License-Identifier: MIT
 * Probabilities of a step of the forward on AMX (fwd.c): 2^(s * factor - offset), two keys by 32 queries at a time,
 * as pairs, and their sums.
 *
 * While tiles are multiplied, multiply-adds and the other instructions of the exponential start once a cycle and not
 * twice; additions, integers and permutations have the other port. So bf16 is rounded by an integer addition and a
 * permutation (ties go away from 0) and not by the conversion, which takes two cycles for two vectors, and the
 * polynomial begins with an addition. The three parts of f32 (bf16x3) are its upper, middle and last bits: nothing is
 * rounded. Where lse is not requested, bf16 has a table (exp_table.h). */
#ifndef ATTN_CPU_AMX_DENSE_FWD_EXP_H
#define ATTN_CPU_AMX_DENSE_FWD_EXP_H
#include "cpu/amx/dense_fwd/exp_table.h"
#include "cpu/amx/dense_fwd/score_mod_fused.h"
#include "cpu/ukr/bf16.h"
#include "cpu/vec/bf16_split_avx512.h"
#include "cpu/vec/exp2_avx512.h"

enum { LANES_ALL = ATTN_FWD_ROWS, UNIT = 1024 };

struct exps {
    v32 factor, times, offset[2], sum[2]; /* arguments are s * times - offset; table: in parts */
    struct exp_table table;
    int origin_last; /* table: 1: its origin is added last, and is not part of offset */
    __m512i half, down;
    const float *s;
    float *p;
    int n_bf16;         /* bf16 parts of a probability: 1, 2 or 3 */
    int degree;         /* attn_fwd_degree */
    int of_keys;        /* tile products of one of Q with K: 1; bf16x2 4, with bf16_accuracy 3; bf16x3 6 */
    int64_t span, done; /* keys of a step; pairs of keys whose exponentials are done */
    struct fused fused;
    const uint16_t *visible;       /* boolean mask of the step: two words of 16 queries for each key */
    int prefetches;                /* 1: every two keys prefetch a line of a mask */
    const char *const *prefetched; /* its rows */
    int64_t prefetch_from;         /* byte offset of the line in each row */
    int64_t due, share;            /* see deal; UNIT is one call of two_keys */
};
INLINE void set_up_exps(struct exps *e, float factor, int n_bf16, int bf16_accuracy, int64_t span) {
    *e = (struct exps){.factor = v32_set(factor), .n_bf16 = n_bf16, .span = span, .done = span / 2};
    e->degree = attn_fwd_degree(n_bf16, bf16_accuracy, 0);
    e->times = v32_set(factor * attn_fwd_parts(e->degree));
    if (e->degree == ATTN_FWD_TABLE) set_up_table(&e->table);
    e->of_keys = n_bf16 == 3 ? 6 : n_bf16 == 1 ? 1 : bf16_accuracy ? 3 : 4;
    e->half = _mm512_set1_epi32(0x8000);
    e->down = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    /* constants that compilers would make again each time, by an instruction of the busy ports */
    __asm__("" : "+v"(e->half), "+v"(e->down));
}

/* Bits whose upper 16 are x, rounded. */
INLINE __m512i rounded(const struct exps *e, v32 x) { return _mm512_add_epi32(_mm512_castps_si512(x), e->half); }
/* Pairs of bf16: the upper 16 bits of odd keys stay, those of even keys move to the lower half. */
INLINE __m512i upper(const struct exps *e, __m512i even, __m512i odd) {
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, e->down);
}
INLINE void store_pairs(const struct exps *e, float *p, v32 even, v32 odd) {
    _mm512_storeu_si512(p, upper(e, rounded(e, even), rounded(e, odd)));
}
/* bf16x2: the first part is cut off the upper 16 bits, the rest is exact and is cut in the same way. 16 bits remain;
 * the error is within 2^-15 and of one sign. */
INLINE void store_bf16x2(const struct exps *e, float *p, v32 even, v32 odd) {
    const __m512i mask = _mm512_set1_epi32((int32_t)0xffff0000u), a = _mm512_castps_si512(even),
                  b = _mm512_castps_si512(odd);
    _mm512_storeu_si512(p, upper(e, a, b));
    even -= _mm512_castsi512_ps(_mm512_and_si512(a, mask));
    odd -= _mm512_castsi512_ps(_mm512_and_si512(b, mask));
    _mm512_storeu_si512(p + e->span / 2 * LANES_ALL, upper(e, _mm512_castps_si512(even), _mm512_castps_si512(odd)));
}
INLINE void store_bf16x3(const struct exps *e, float *p, v32 even, v32 odd) {
    UNROLL for (int t = 0; t < 3; t++) {
        _mm512_storeu_si512(p + t * (e->span / 2 * LANES_ALL),
                            upper(e, _mm512_castps_si512(even), _mm512_castps_si512(odd)));
        if (t < 2) even = below_upper(even), odd = below_upper(odd);
    }
}
/* Exponentials of two keys by 32 queries. Vector i holds 16 queries from 16 (i % 2) on, of key i / 2. Each operation
 * runs over all four vectors before the next one, which hides latencies. */
INLINE void two_keys(struct exps *e, int exactly) {
    const float *s = e->s + e->done * 2 * LANES_ALL;
    float *to = e->p + e->done * LANES_ALL;
    const int table = e->degree == ATTN_FWD_TABLE, keeps = fuse_bool_mask(e->fused.kind);
    __mmask16 mask[4];
    v32 x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = v32_load(s + i * 16);
    if (e->prefetches) _mm_prefetch(e->prefetched[e->done] + e->prefetch_from, _MM_HINT_T1);
    UNROLL for (int i = 0; keeps && i < 4; i++) {
        __mmask16 m = e->visible[e->done * 4 + i];
        __asm__("" : "+Yk"(m)); /* gcc would load it for each use, which takes a busy port */
        mask[i] = m;
    }
    if (fuse_makes(e->fused.kind)) {
        const v32 in[4] = {x[0], x[1], x[2], x[3]};
        fused_arguments(&e->fused, exactly, in, e->offset, keeps && table && !e->origin_last ? mask : NULL, x);
    } else {
        UNROLL for (int i = 0; i < 4; i++) x[i] = _mm512_fmsub_ps(x[i], e->times, e->offset[i % 2]);
    }
    if (table) {
        const v32 origin = v32_set(EXP_TABLE_ORIGIN);
        __m512i pairs[2];
        UNROLL for (int i = 0; i < 4; i++) {
            if (e->origin_last) x[i] = keeps ? _mm512_maskz_add_ps(mask[i], x[i], origin) : _mm512_add_ps(x[i], origin);
        }
        pairs_by_table(&e->table, exactly, x, x + 2, keeps ? mask : NULL, pairs);
        UNROLL for (int h = 0; h < 2; h++) {
            _mm512_storeu_si512(to + h * 16, pairs[h]);
            e->sum[h] = add_pairs(e->sum[h], pairs[h]);
        }
        __asm__ volatile("" : "+v"(e->sum[0]), "+v"(e->sum[1])); /* as below */
        e->done++;
        return;
    }
    if (e->degree == EXP2_FULL) {
        exp2_many(4, x);
        UNROLL for (int i = 0; keeps && i < 4; i++) x[i] = _mm512_maskz_mov_ps(mask[i], x[i]);
    } else {
        exp2_times(keeps ? mask : NULL, x);
    }
    e->sum[0] += x[0] + x[2];
    e->sum[1] += x[1] + x[3];
    /* gcc would put the additions off for several calls, and keep what they add in memory */
    __asm__ volatile("" : "+v"(e->sum[0]), "+v"(e->sum[1]));
    UNROLL for (int h = 0; h < 2; h++) {
        if (e->n_bf16 == 3) {
            store_bf16x3(e, to + h * 16, x[h], x[2 + h]);
        } else if (e->n_bf16 == 2) {
            store_bf16x2(e, to + h * 16, x[h], x[2 + h]);
        } else {
            store_pairs(e, to + h * 16, x[h], x[2 + h]);
        }
    }
    e->done++;
}
INLINE void begin_step(struct exps *e, const float *s, float *p, const v32 *offset) {
    const int table = e->degree == ATTN_FWD_TABLE;
    for (int h = 0; h < 2; h++) {
        e->offset[h] = table ? table_offset(offset[h], e->origin_last) : offset[h], e->sum[h] = v32_set(0);
    }
    if (table) begin_table(&e->table);
    e->s = s, e->p = p, e->done = e->due = 0;
    if (fuse_makes(e->fused.kind)) begin_fused(&e->fused);
}
INLINE void finish_step(struct exps *e) {
    while (e->done < e->span / 2) two_keys(e, 0);
    if (e->degree == ATTN_FWD_TABLE) finish_table(&e->table, e->sum);
}
/* The exponentials of a whole step, with the branches for scores outside the softcap's polynomial and the table. */
struct sums {
    v32 sum[2];
};
static __attribute__((noinline)) struct sums step_exactly(struct exps *e) {
    while (e->done < e->span / 2) two_keys(e, 1);
    if (e->degree == ATTN_FWD_TABLE) finish_table(&e->table, e->sum);
    return (struct sums){{e->sum[0], e->sum[1]}};
}
INLINE void finish_exactly(struct exps *e) {
    struct exps copy = *e;
    copy.table.unsaturated = 0;
    __asm__("" : "+m"(copy)); /* clang would pass *e itself, and so keep it in memory everywhere */
    const struct sums sums = step_exactly(&copy);
    e->sum[0] = sums.sum[0], e->sum[1] = sums.sum[1];
    e->done = e->span / 2;
}
/* Called after each tile product: spreads a step's exponentials evenly over them. deal_times says how many calls a step
 * has. */
INLINE void deal(struct exps *e) {
    e->due += e->share;
    for (; e->due >= UNIT; e->due -= UNIT)
        if (e->done < e->span / 2) two_keys(e, 0);
}
INLINE void deal_times(struct exps *e, int64_t times) { e->share = (e->span / 2 * UNIT + times - 1) / times; }
#endif
