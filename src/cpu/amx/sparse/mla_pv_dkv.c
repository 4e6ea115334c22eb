/* SPDX-License-Identifier: MIT
 * Sums of the sparse operators on AMX tiles, 32 x 32 at a time, entries `mla_sum` and `mla_add` of attn_ukr_bf16. Tiles
 * are loaded one product ahead; those of sums are stored one by one, between the first products of the next ones.
 *
 *     sum (out, dq): over gathered rows, for strips of heads. a (16 KiB of 256 rows) stays in the first-level cache,
 *     zip passes by, the next sums are prefetched, and the first rows of the next block copied.
 *
 *     add (dKV): over heads, added to rows that lie anywhere while the next sums are multiplied.
 *     tiles    x panel (n)            x panel (n + 1)         32 x 32 sums: 4 KiB in the first-level cache
 *     vectors  rows += sums (n - 1)   rows += sums (n)        x of 32 rows: 16 KiB, stays; panels pass by */
#include "cpu/amx/sparse/row_copy.h"
#include "cpu/amx/sparse/step.h"
#include "cpu/ukr/ukr.h"
#include "cpu/vec/unroll.h"

#include <immintrin.h>

/* C (+)= A B over `steps` times 16 pairs, A and B [steps][2][16][16], and other work: ODD after the first and third
 * product of a step, EVEN after the others, of whether the step is the first. The first tiles of the next product are
 * loaded during the last step. */
#define STEPS(steps, a, b, next_a, next_b, OPEN, ODD, EVEN)                                                            \
    do {                                                                                                               \
        const float *a_ = (a), *b_ = (b);                                                                              \
        int64_t i_ = (steps)-1;                                                                                        \
        STEP(1, OPEN, ON_TO(i_ ? a_ + 2 * TILE : (next_a), i_ ? b_ + 2 * TILE : (next_b)), ODD(1), EVEN(1), ODD(1),    \
             EVEN(1));                                                                                                 \
        for (i_--; i_ > 0; i_--) STEP(0, OPEN, ON_ALWAYS, ODD(0), EVEN(0), ODD(0), EVEN(0));                           \
        if (!i_) STEP(0, OPEN, ON_TO(next_a, next_b), ODD(0), EVEN(0), ODD(0), EVEN(0));                               \
    } while (0)
#define NO_WORK(first) NOTHING

/* Complete sums, 32 x 32 of them, on their way to where results go. */
struct leaving {
    const float *s, *factor;
    uint32_t valid;
    int64_t row, end, stride;
    char *to;
};
static struct leaving leave_from(const struct attn_mla_out *f, const float *s, int64_t strip, int64_t column) {
    const int64_t left = f->heads - strip * SIDE;
    return (struct leaving){.s = s,
                            .factor = f->factor + strip * SIDE,
                            .valid = f->valid[strip],
                            .end = left < SIDE ? left : SIDE,
                            .stride = f->stride,
                            .to = f->base + strip * SIDE * f->stride + column * 2};
}
INLINE void leave_some(struct leaving *w, int64_t rows) {
    for (; rows > 0 && w->row < w->end; rows--, w->row++, w->to += w->stride) {
        const __mmask16 valid = (__mmask16)(0 - (w->valid >> w->row & 1));
        const __m512 factor = _mm512_set1_ps(w->factor[w->row]);
        const float *s = w->s + w->row * SIDE;
        const __m512 low = _mm512_maskz_mul_ps(valid, _mm512_loadu_ps(s), factor),
                     high = _mm512_maskz_mul_ps(valid, _mm512_loadu_ps(s + 16), factor);
        _mm512_storeu_si512(w->to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* What else is done meanwhile: the next rows are copied, then heads transposed, 16 heads x 16 pairs at a time. Lines
 * from memory keep tiles from the second-level cache waiting, the less the further apart they are. */
struct aside {
    struct copying copy;
    const struct attn_mla_turn *turn;
    int64_t head, x, heads, wait; /* heads: filled up, 0 if none is to be transposed */
};
static void prefetch_heads(const struct attn_mla_turn *f, int64_t head, int64_t x) {
    for (int64_t i = 0; i < 16 && head + i < f->heads; i++)
        __builtin_prefetch(f->base + (head + i) * f->stride + x * 4);
}
static void turn_unit(struct aside *w) {
    const struct attn_mla_turn *f = w->turn;
    const char *from = f->base + w->head * f->stride + w->x * 4;
    float *to = f->to + w->head / SIDE * SIDE * f->depth + w->head % SIDE * 16 + w->x * SIDE;
    const int64_t heads = f->heads - w->head < 16 ? f->heads - w->head : 16;
    if (heads == 16 && f->stride % 4 == 0) {
        attn_ukr_avx512.transpose_f32(to, 16, (const float *)(const void *)from, f->stride / 4, 16, 16);
    } else {
        float rows[TILE];
        for (int64_t i = 0; i < 16; i++)
            _mm512_storeu_si512(rows + i * 16,
                                i < heads ? _mm512_loadu_si512(from + i * f->stride) : _mm512_setzero_si512());
        attn_ukr_avx512.transpose_f32(to, 16, rows, 16, 16, 16);
    }
    w->x += 16;
    if (w->x == f->depth) w->x = 0, w->head += 16;
    prefetch_heads(f, w->head, w->x);
}
/* slots: how many times there is something to do. */
static void aside_from(struct aside *w, const struct attn_mla_sum *f, int64_t slots) {
    *w = (struct aside){.turn = &f->turn};
    copy_from(&w->copy, f->tiles, &f->next, f->depth, 0);
    if (f->turn.base) w->heads = (f->turn.heads + SIDE - 1) / SIDE * SIDE, prefetch_heads(&f->turn, 0, 0);
    const int64_t units = w->copy.left * (f->depth / 16) + w->heads / 16 * (f->turn.depth / 16);
    w->wait = f->even ? slots / (units + 1) - 1 : 0;
}
/* Returns how many times to do nothing then. */
static __attribute__((noinline)) int64_t aside_unit(struct aside *w) {
    if (w->copy.left) {
        copy_unit(&w->copy);
    } else if (w->head < w->heads) {
        turn_unit(w);
    } else {
        return INT64_MAX;
    }
    return w->wait;
}

INLINE void sum(const struct attn_mla_sum *f, int leaves) {
    const int64_t steps = (f->pairs + 15) / 16, ldc = f->ldc, pending_ld = leaves ? SIDE : ldc;
    const int64_t each = steps < 16 ? (16 + steps - 1) / steps : 1; /* rows of 32 after two products */
    const int accumulate = f->accumulate;
    _Alignas(64) float stored[CELLS];
    float *pending = NULL;
    struct leaving w = {0};
    struct aside other;
    int64_t wait = 0;
    aside_from(&other, f, 2 * steps * f->strips * (f->columns / SIDE));
    BEGIN(f->a, f->zip);
    for (int64_t strip = 0; strip < f->strips; strip++) {
        for (int64_t column = 0; column < f->columns; column += SIDE) {
            float *to = f->c + strip * SIDE * ldc + column;
            const int within = column + SIDE < f->columns;
            const float *next = within ? to + SIDE : f->c + (strip + 1) * SIDE * ldc;
            int64_t prefetch = (within || strip + 1 < f->strips) && (!leaves || accumulate) ? SIDE : 0;
            struct leaving coming = {0}; /* whose lines are prefetched */
            if (leaves) coming = leave_from(f->out, stored, strip, column);
            const char *line = coming.to;
#define OPEN(t)                                                                                                        \
    do {                                                                                                               \
        if (pending) tile_store(t, pending + TILE_AT(t, pending_ld), pending_ld * 4);                                  \
        if (accumulate) {                                                                                              \
            tile_load_once(t, to + TILE_AT(t, ldc), ldc * 4);                                                          \
        } else {                                                                                                       \
            tile_zero(t);                                                                                              \
        }                                                                                                              \
    } while (0)
#define WORK(first)                                                                                                    \
    do {                                                                                                               \
        for (int64_t r_ = each; r_ > 0 && prefetch > 0; r_--, prefetch--, next += ldc)                                 \
            __builtin_prefetch(next, 1), __builtin_prefetch(next + 16, 1);                                             \
        if (leaves) {                                                                                                  \
            for (int64_t r_ = each; r_ > 0 && coming.end > 0; r_--, coming.end--, line += coming.stride)               \
                __builtin_prefetch(line, 1);                                                                           \
            if (!(first)) leave_some(&w, each);                                                                        \
        }                                                                                                              \
        if (--wait < 0) wait = aside_unit(&other);                                                                     \
    } while (0)
            const float *a = f->a + strip * f->lda, *next_a = within || strip + 1 == f->strips ? a : a + f->lda,
                        *next_b = within ? f->zip + (column / SIDE + 1) * f->ldz : f->zip;
            STEPS(steps, a, f->zip + column / SIDE * f->ldz, next_a, next_b, OPEN, NO_WORK, WORK);
#undef WORK
#undef OPEN
            pending = to;
            if (!leaves) continue;
            leave_some(&w, SIDE);
            pending = stored, w = leave_from(f->out, stored, strip, column);
        }
    }
    if (pending) sums_store(pending, pending_ld);
    if (leaves) leave_some(&w, SIDE);
    while (aside_unit(&other) != INT64_MAX) {
    }
}
void attn_ukr_amx_mla_sum(const struct attn_mla_sum *f) {
    if (f->out) {
        sum(f, 1);
    } else {
        sum(f, 0);
    }
}

/* Sums on their way to the rows of their keys. The rows' lines of the next block are prefetched. */
struct adding {
    const struct attn_mla_add *f;
    int64_t row, end; /* of x */
    const float *s;   /* of `row` */
    float *to;        /* key 0, the block's columns */
    int64_t next;     /* from there to the next block's, 0 if there is none */
};
INLINE void add_row(struct adding *w) {
    float *to = w->to + w->f->key[w->row++] * w->f->ld;
    for (int i = 0; i < SIDE; i += 16) {
        __builtin_prefetch(to + w->next + i, 1);
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(to + i), _mm512_loadu_ps(w->s + i)));
    }
    w->s += SIDE;
}
INLINE void add_some(struct adding *w, int64_t rows) {
    for (; rows > 0 && w->row < w->end; rows--) add_row(w);
}
/* Sums in tiles = x panel; those before go to `late`, and after the first four products, a share after each, to their
 * rows. */
static void block(int64_t depth, const float *x, const float *panel, const float *next_x, const float *next_panel,
                  float *pending, struct adding *w) {
    const int64_t steps = depth / 16, each = steps > 1 ? (SIDE + 4 * steps - 5) / (4 * steps - 4) : 0;
#define WORK(first)                                                                                                    \
    if (!(first)) add_some(w, each)
    STEPS(steps, x, panel, next_x, next_panel, OPEN_PENDING, WORK, WORK);
#undef WORK
    add_some(w, SIDE);
}
void attn_ukr_amx_add(const struct attn_mla_add *f) {
    struct adding w = {.f = f};
    float *pending = NULL;
    const int64_t begin = f->from / SIDE * SIDE;
    if (begin < f->to && f->column < f->end) BEGIN(f->x + begin * f->depth, f->panel + f->column * f->depth * SIDE);
    for (int64_t row = begin; row < f->to; row += SIDE) {
        const int64_t first = row > f->from ? row : f->from, end = row + SIDE < f->to ? row + SIDE : f->to;
        for (int64_t column = f->column; column < f->end; column++) {
            const int within = column + 1 < f->end;
            const float *x = f->x + row * f->depth, *next_x = within || row + SIDE >= f->to ? x : x + SIDE * f->depth;
            block(column < f->narrow ? f->depth : f->depth / 2, x, f->panel + column * f->depth * SIDE, next_x,
                  f->panel + (within ? column + 1 : f->column) * f->depth * SIDE, pending, &w);
            pending = f->s;
            w = (struct adding){.f = f,
                                .row = first,
                                .end = end,
                                .s = f->s + (first - row) * SIDE,
                                .to = f->sums + column * f->ld_block,
                                .next = within ? f->ld_block : 0};
        }
    }
    if (pending) sums_store(pending, SIDE), add_some(&w, SIDE);
}
