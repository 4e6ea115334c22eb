/* SPDX-License-Identifier: MIT
 * mla_fwd's scores on AMX: strips of 32 heads against rows of keys, entry `mla_scores` of attn_ukr_bf16. All strips of
 * 32 rows come one after the other, a chunk of 32 rows x 32 heads each (strip.h):
 *
 *     step n     0                     1 .. 16                               17
 *     tiles      S (c)                 S (c)                                 S (c), first tiles of S (c + 1)
 *     vectors    S (c - 1) stored      P (c - 1), rows 2 n - 2 and 2 n - 1   P (c - 1) transposed
 *                                      W0 s to x, W1 to r, W2 polynomial,
 *                                      W3 2^x; four pairs of rows transposed
 *     copies     W0, W2: rows to come are prefetched; W1, W3: pairs of rows are made, the next rows copied
 *
 * The running max of a head is its largest score of the first chunk in which it has one, not the maximum so far: a
 * chunk's exponentials need not wait for its maximum. It moves only where a chunk's sum passes 2^16, by a power of 2,
 * so that what was rounded before stays exact. */
#include "cpu/amx/sparse/strip.h"

#include <math.h>
#include <string.h>

#define FAR 0x1p16f /* a chunk's sum beyond which its exponents are relative to something larger */

/* A chunk of mla_fwd between its products and its probabilities. */
struct exp_work {
    const struct attn_mla_scores *f;
    int64_t strip, row, rows; /* rows that there are, up to 32 */
    const float *s;
    float *p, *to; /* pairs of rows, their tiles */
    v32 scale;
    __m512i sign; /* of the scale: max is of scores times that */
    float offset[SIDE], max[SIDE], part[SIDE];
};
/* Largest of the chunk's scores, times log2 e, of heads at + 0 .. 15; a NaN is passed over. */
static v32 largest(const struct exp_work *w, int h) {
    v32 most = v32_set(-INFINITY);
    for (int64_t r = 0; r < w->rows; r++) most = v32_max(v32_load(w->s + r * SIDE + h * 16) * w->scale, most);
    return most;
}
/* Rows 2 n and 2 n + 1, heads from 16 h on; those that are not there count as nothing. */
static void exp_two(struct exp_work *w, int64_t n, int h) {
    const float *s = w->s + n * 2 * SIDE + h * 16;
    const v32 offset = v32_load(w->offset + h * 16), none = v32_set(-INFINITY);
    v32 x[2], max = v32_load(w->max + h * 16);
    UNROLL for (int i = 0; i < 2; i++) {
        const v32 raw = v32_load(s + i * SIDE);
        max = v32_max(2 * n + i < w->rows ? (v32)_mm512_xor_epi32((__m512i)raw, w->sign) : none, max);
        x[i] = _mm512_fmsub_ps(raw, w->scale, offset);
    }
    exp2_degree(DEGREE, 2, x);
    UNROLL for (int i = 0; i < 2; i++) {
        if (2 * n + i >= w->rows) x[i] = v32_set(0);
    }
    v32_store(w->max + h * 16, max);
    v32_store(w->part + h * 16, v32_load(w->part + h * 16) + (x[0] + x[1]));
    _mm512_storeu_si512(w->p + n * SIDE + h * 16, zipped(x[0], x[1]));
}
/* What is left of a chunk from pair n of rows on: those, and the two tiles. */
static __attribute__((noinline)) void exp_rest(struct exp_work *w, int64_t n) {
    for (; n < PAIRS; n++) exp_two(w, n, 0), exp_two(w, n, 1);
    turn_tile(w->to, w->p, 0), turn_tile(w->to, w->p, 1);
}
/* Heads that had no score yet are relative to the largest of this chunk. */
static void settle(struct exp_work *w) {
    for (int h = 0; h < 2; h++) {
        float *offset = w->f->offset + w->strip * SIDE + h * 16;
        const __mmask16 none = _mm512_cmp_ps_mask(v32_load(offset), v32_set(-INFINITY), _CMP_EQ_OQ);
        v32_store(offset, _mm512_mask_mov_ps(v32_load(offset), none, largest(w, h)));
    }
}
static void again(struct exp_work *w) {
    const struct attn_mla_scores *f = w->f;
    const int64_t head = w->strip * SIDE;
    const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000u);
    for (int h = 0; h < 2; h++) {
        float *offset = f->offset + head + h * 16, *sum = f->sum + head + h * 16, *rescale = f->rescale + head + h * 16;
        const v32 up = _mm512_roundscale_ps(largest(w, h) - v32_load(w->offset + h * 16), 0x0a); /* whole, upwards */
        const __mmask16 far = _mm512_cmp_ps_mask(up, v32_set(0), _CMP_GT_OQ) &
                              _mm512_cmp_ps_mask(v32_load(w->part + h * 16), v32_set(FAR), _CMP_GT_OQ);
        const v32 moved = _mm512_maskz_mov_ps(far, up), now = v32_load(w->offset + h * 16) + moved,
                  down = _mm512_scalef_ps(v32_set(1), -moved);
        v32_store(w->offset + h * 16, now);
        v32_store(offset, _mm512_mask_mov_ps(v32_load(offset), far, now));
        v32_store(sum, v32_load(sum) * down);
        v32_store(rescale, v32_load(rescale) * down);
        v32_store(w->part + h * 16, v32_set(0));
        float fall[16];
        v32_store(fall, down);
        for (float *p = f->p + w->strip * f->ldp + h * TILE; p < w->to; p += 2 * TILE) /* of the block's rows before */
            for (int i = 0; i < 16; i++) {
                const __m512i pairs = _mm512_loadu_si512(p + i * 16);
                const v32 even = (v32)_mm512_slli_epi32(pairs, 16) * v32_set(fall[i]),
                          odd = (v32)_mm512_and_si512(pairs, high) * v32_set(fall[i]);
                _mm512_storeu_si512(p + i * 16, _mm512_or_si512(_mm512_srli_epi32((__m512i)even, 16),
                                                                _mm512_and_si512((__m512i)odd, high)));
            }
    }
    exp_rest(w, 0);
}
static void exp_begin(struct exp_work *w, int64_t strip, int64_t row) {
    const struct attn_mla_scores *f = w->f;
    const float *offset = f->offset + strip * SIDE;
    const v32 none = v32_set(-INFINITY);
    w->strip = strip, w->row = row;
    w->rows = f->rows.n - row < SIDE ? f->rows.n - row : SIDE;
    w->to = f->p + strip * f->ldp + row / 2 * SIDE;
    if (_mm512_cmp_ps_mask(v32_load(offset), none, _CMP_EQ_OQ) |
        _mm512_cmp_ps_mask(v32_load(offset + 16), none, _CMP_EQ_OQ))
        settle(w);
    for (int h = 0; h < SIDE; h += 16) { /* all scores -inf: probabilities 0, not NaN */
        const v32 t = v32_load(offset + h);
        v32_store(w->offset + h, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, none, _CMP_NEQ_UQ), t));
        v32_store(w->max + h, none);
        v32_store(w->part + h, v32_set(0));
    }
}
/* A NaN among the scores is passed over by the maximum, not by the sum. */
static void exp_end(struct exp_work *w) {
    const struct attn_mla_scores *f = w->f;
    const v32 far = v32_set(FAR);
    if (_mm512_cmp_ps_mask(v32_load(w->part), far, _CMP_NLE_UQ) |
        _mm512_cmp_ps_mask(v32_load(w->part + 16), far, _CMP_NLE_UQ))
        again(w);
    for (int h = 0; h < SIDE; h += 16) {
        float *max = f->max + w->strip * SIDE + h, *sum = f->sum + w->strip * SIDE + h;
        const v32 part = v32_load(w->part + h);
        v32_store(sum, v32_load(sum) + part);
        if (!f->max) continue;
        /* a NaN of rows before stays */
        v32_store(max, v32_max(v32_load(w->max + h) * v32_set(fabsf(f->scale)), v32_load(max)));
        if (!v32_any_nan(part, part)) continue;
        for (int64_t r = 0; r < w->rows; r++)
            for (int i = 0; i < 16; i++)
                if (isnan(w->s[r * SIDE + h + i] * f->scale)) max[i] = NAN;
    }
}

/* Offsets and sums of a strip's exponentials, in registers; x[] of two rows is row by row, 16 heads first. The same
 * numbers as exp_two's. */
struct strip {
    v32 offset[2], part[2], max[2];
};
INLINE void strip_in(struct strip *t, const struct exp_work *w) {
    UNROLL for (int h = 0; h < 2; h++) {
        t->offset[h] = v32_load(w->offset + h * 16), t->part[h] = v32_load(w->part + h * 16);
        t->max[h] = v32_load(w->max + h * 16);
    }
}
INLINE void strip_out(const struct strip *t, struct exp_work *w) {
    UNROLL for (int h = 0; h < 2; h++) v32_store(w->part + h * 16, t->part[h]), v32_store(w->max + h * 16, t->max[h]);
}
INLINE void four_0(struct four *e, struct strip *t, const struct exp_work *w, const float *s, int maxima) {
    UNROLL for (int i = 0; i < 4; i++) {
        const v32 raw = v32_load(s + i % 2 * SIDE + i / 2 * 16);
        if (maxima) t->max[i / 2] = v32_max((v32)_mm512_xor_epi32((__m512i)raw, w->sign), t->max[i / 2]);
        e->x[i] = _mm512_fmsub_ps(raw, w->scale, t->offset[i / 2]);
    }
    KEEP(e->x);
}
INLINE void four_4(const struct four *e, struct strip *t, float *p) {
    UNROLL for (int h = 0; h < 2; h++) {
        t->part[h] += e->x[2 * h] + e->x[2 * h + 1];
        _mm512_storeu_si512(p + h * 16, zipped(e->x[2 * h], e->x[2 * h + 1]));
    }
}
/* turn_tile in parts: within four pairs of rows, 4 x 4 numbers at a time and in place; then, of every fourth head from
 * `head` on, the numbers of all pairs. */
INLINE void turn_four(float *p, int64_t four, int64_t h) {
    __m512i r[4], t[4];
    p += four * 4 * SIDE + h * 16;
    UNROLL for (int i = 0; i < 4; i++) r[i] = _mm512_loadu_si512(p + i * SIDE);
    UNROLL for (int i = 0; i < 2; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        _mm512_storeu_si512(p + 2 * i * SIDE, _mm512_unpacklo_epi64(t[i], t[2 + i]));
        _mm512_storeu_si512(p + (2 * i + 1) * SIDE, _mm512_unpackhi_epi64(t[i], t[2 + i]));
    }
}
INLINE void turn_all(float *to, const float *p, int head, int64_t h) {
    __m512i v[4], t[4];
    UNROLL for (int i = 0; i < 4; i++) v[i] = _mm512_loadu_si512(p + (4 * i + head) * SIDE + h * 16);
    UNROLL for (int i = 0; i < 2; i++) {
        t[2 * i] = _mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0x44);
        t[2 * i + 1] = _mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0xee);
    }
    to += h * TILE + head * 16;
    UNROLL for (int i = 0; i < 2; i++) {
        _mm512_storeu_si512(to + 8 * i * 16, _mm512_shuffle_i32x4(t[i], t[2 + i], 0x88));
        _mm512_storeu_si512(to + (8 * i + 4) * 16, _mm512_shuffle_i32x4(t[i], t[2 + i], 0xdd));
    }
}

_Static_assert(COPY_MOST_DEPTH / 16 == PAIRS + 2, "the last step turns what the ones before have made");
INLINE void scores_exp(const struct attn_mla_scores *f, int maxima) {
    struct exp_work w = {.f = f, .p = f->s + CELLS, .scale = v32_set(f->scale * LOG2_E), .s = f->s};
    struct four e;
    struct strip t;
    struct coming c;
    struct asking asking;
    const int64_t steps = f->depth / 16;
    const int turns = steps == PAIRS + 2; /* P during the products: else afterwards */
    float *const k = f->copies.tiles, *pending = NULL;
    int64_t pending_strip = 0, pending_row = 0;
    w.sign = _mm512_set1_epi32(signbit(f->scale) ? INT32_MIN : 0);
    for (int64_t h = 0; h < f->strips * SIDE; h++) f->rescale[h] = 1;
    if (!f->copied) copy_first(k, &f->rows, f->depth);
        /* a step's other work: of this chunk and those to come, then of the chunk before */
#define PREFETCH(h) prefetch_half(&asking, h)
#define COPY_0                                                                                                         \
    do {                                                                                                               \
        zip_unit(&z);                                                                                                  \
        if (copies && n) copy_columns(&c, k, n - 1, 16);                                                               \
    } while (0)
#define COPY_1                                                                                                         \
    do {                                                                                                               \
        zip_unit(&z);                                                                                                  \
        if (last) zip_to(&z, n);                                                                                       \
        if (copies) copy_columns(&c, k, n, 0);                                                                         \
    } while (0)
#define EXP_0                                                                                                          \
    do {                                                                                                               \
        four_0(&e, &t, &w, s, maxima);                                                                                 \
        PREFETCH(0);                                                                                                   \
    } while (0)
#define EXP_1                                                                                                          \
    do {                                                                                                               \
        four_1(&e);                                                                                                    \
        COPY_0;                                                                                                        \
    } while (0)
#define EXP_2                                                                                                          \
    do {                                                                                                               \
        four_2(&e);                                                                                                    \
        PREFETCH(1);                                                                                                   \
        if (turns && n > 4 && n % 4 && n % 4 < 3) turn_four(w.p, n / 4 - 1, n % 4 - 1);                                \
    } while (0)
#define EXP_3                                                                                                          \
    do {                                                                                                               \
        four_3(&e);                                                                                                    \
        COPY_1;                                                                                                        \
        four_4(&e, &t, p);                                                                                             \
        s += 2 * SIDE, p += SIDE;                                                                                      \
    } while (0)
#define TURN(x)                                                                                                        \
    do {                                                                                                               \
        if (overlaps && turns) x;                                                                                      \
    } while (0)
#define TURN_ALL(head) turn_all(w.to, w.p, head, 0), turn_all(w.to, w.p, head, 1)
#define LAST_0                                                                                                         \
    do {                                                                                                               \
        TURN((turn_four(w.p, 3, 0), turn_four(w.p, 3, 1)));                                                            \
        PREFETCH(0);                                                                                                   \
    } while (0)
#define LAST_1                                                                                                         \
    do {                                                                                                               \
        TURN((TURN_ALL(0)));                                                                                           \
        COPY_0;                                                                                                        \
    } while (0)
#define LAST_2                                                                                                         \
    do {                                                                                                               \
        TURN((TURN_ALL(1)));                                                                                           \
        PREFETCH(1);                                                                                                   \
    } while (0)
#define LAST_3                                                                                                         \
    do {                                                                                                               \
        TURN((TURN_ALL(2), TURN_ALL(3)));                                                                              \
        COPY_1;                                                                                                        \
    } while (0)
    for (int64_t row = 0; row < f->rows.n; row += SIDE) {
        struct zipping z = zip_from(&f->copies, row);
        coming_rows(&c, &f->rows, row + SIDE);
        /* a single step has no place in which what comes first could have been copied before it is loaded */
        if (!row || steps == 1) BEGIN(k, f->q);
        for (int64_t strip = 0; strip < f->strips; strip++) {
            const int last = strip + 1 == f->strips, copies = last && c.any;
            const float *a_ = k, *b_ = f->q + strip * f->depth * SIDE, *const next = last ? f->q : b_ + f->depth * SIDE;
            int64_t n = 0, done = 0; /* pairs of rows of the chunk before */
            int overlaps = 0;
            prefetch_from(&asking, &f->rows, &f->next, row + PREFETCH_AHEAD, strip, f->strips);
            STEP(1, OPEN_PENDING, ON_TO(steps > 1 ? a_ + 2 * TILE : k, steps > 1 ? b_ + 2 * TILE : next), PREFETCH(0),
                 COPY_0, PREFETCH(1), COPY_1);
            if (pending) exp_begin(&w, pending_strip, pending_row), overlaps = w.rows == SIDE;
            if (overlaps) {
                const float *s = w.s;
                float *p = w.p;
                strip_in(&t, &w);
                for (n = 1; n < steps - 1; n++) STEP(0, OPEN_PENDING, ON_ALWAYS, EXP_0, EXP_1, EXP_2, EXP_3);
                strip_out(&t, &w);
                done = steps > 2 ? steps - 2 : 0;
            } else {
                for (n = 1; n < steps - 1; n++)
                    STEP(0, OPEN_PENDING, ON_ALWAYS, PREFETCH(0), COPY_0, PREFETCH(1), COPY_1);
            }
            if (steps > 1) STEP(0, OPEN_PENDING, ON_TO(k, next), LAST_0, LAST_1, LAST_2, LAST_3);
            if (copies) copy_columns(&c, k, steps - 1, 16);
            if (pending && !(overlaps && turns)) exp_rest(&w, done);
            if (pending) exp_end(&w);
            pending = f->s, pending_strip = strip, pending_row = row;
        }
    }
    if (!pending) return;
    sums_store(pending, SIDE);
    exp_begin(&w, pending_strip, pending_row);
    exp_rest(&w, 0), exp_end(&w);
#undef PREFETCH
#undef COPY_0
#undef COPY_1
#undef EXP_0
#undef EXP_1
#undef EXP_2
#undef EXP_3
#undef TURN
#undef TURN_ALL
#undef LAST_0
#undef LAST_1
#undef LAST_2
#undef LAST_3
}
void attn_ukr_amx_mla_scores(const struct attn_mla_scores *f) {
    if (f->max) {
        scores_exp(f, 1);
    } else {
        scores_exp(f, 0);
    }
}
