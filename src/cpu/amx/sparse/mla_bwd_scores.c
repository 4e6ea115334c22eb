/* SPDX-License-Identifier: MIT
 * The scores of mla_bwd and dist on AMX: strips of 32 heads against rows of keys, entry `mla_bwd_scores` of
 * attn_ukr_bf16. All strips of 32 rows come one after the other, a chunk of 32 rows x 32 heads each (strip.h). The
 * vectors' work on a chunk is units of two rows of P or of dS, one a step of the next chunk's, a part after each
 * product. */
#include "cpu/amx/sparse/strip.h"

/* A chunk of mla_bwd or dist between its products and its results. */
struct chunk {
    const struct attn_mla_bwd_scores *f;
    int64_t strip, row, rows; /* rows that there are, up to 32 */
    __mmask16 valid[2];
    const float *s;  /* dP follows S */
    float *held, *p; /* P of two rows; dS as pairs of rows */
};
static void chunk_from(struct chunk *w, int64_t strip, int64_t row, const float *s) {
    const int64_t left = w->f->rows.n - row;
    w->strip = strip, w->row = row, w->rows = left < SIDE ? left : SIDE, w->s = s;
    for (int h = 0; h < 2; h++) w->valid[h] = (__mmask16)(w->f->valid[strip] >> h * 16);
}
INLINE __mmask16 chunk_valid(const struct chunk *w, int64_t row, int h) { return row < w->rows ? w->valid[h] : 0; }
/* P of two rows in four parts; x[] is row by row, 16 heads first, as is everything of two rows below. */
INLINE void exp_part(const struct chunk *w, struct four *e, int64_t row, int part) {
    const struct attn_mla_bwd_scores *f = w->f;
    if (part == 0) {
        const v32 scale = v32_set(f->scale);
        const float *s = w->s + row * SIDE, *lse = f->lse + w->strip * SIDE;
        UNROLL for (int i = 0; i < 4; i++) e->x[i] =
            _mm512_fmsub_ps(v32_load(s + i % 2 * SIDE + i / 2 * 16), scale, v32_load(lse + i / 2 * 16)) *
            v32_set(LOG2_E);
        KEEP(e->x);
    }
    if (part == 1) four_1(e);
    if (part == 2) four_2(e);
    if (part < 3) return;
    four_3(e);
    UNROLL for (int i = 0; i < 4; i++) e->x[i] = _mm512_maskz_mov_ps(chunk_valid(w, row + i % 2, i / 2), e->x[i]);
    for (int i = 0; i < 2 && f->sums; i++) {
        float *to = f->sums + (w->row + row + i) * 16;
        v32 both = e->x[i] + e->x[2 + i];
        if (w->strip) both += v32_load(to);
        if (w->strip + 1 < f->strips) {
            v32_store(to, both);
        } else {
            to[0] = v32_sum(both);
        }
    }
}
/* dS and g P of rows 2 n and 2 n + 1 in four parts; y is dS. */
INLINE void grad_part(const struct chunk *w, struct four *e, int64_t n, int part) {
    const struct attn_mla_bwd_scores *f = w->f;
    const int64_t row = 2 * n, head = w->strip * SIDE;
    float *x = f->x + (w->row * 2 * f->strips + head + row) * 16;
    if (part == 0) {
        const v32 scale = v32_set(f->scale);
        const float *dp = w->s + row * SIDE + CELLS;
        UNROLL for (int i = 0; i < 4; i++) {
            const v32 g = v32_load(f->g + head + i / 2 * 16), c = v32_load(f->c + head + i / 2 * 16);
            const v32 t = _mm512_fmsub_ps(g, v32_load(dp + i % 2 * SIDE + i / 2 * 16), c);
            e->x[i] = v32_load(w->held + i * 16);
            e->y[i] = _mm512_maskz_mul_ps(chunk_valid(w, row + i % 2, i / 2), e->x[i] * t, scale);
        }
        KEEP(e->y);
    }
    if (part == 1) {
        UNROLL for (int i = 0; i < 2; i++)
            _mm512_storeu_si512(x + i * 16, (__m512i)_mm512_cvtne2ps_pbh(e->y[2 + i], e->y[i]));
    }
    if (part == 2) {
        const v32 g[2] = {v32_load(f->g + head), v32_load(f->g + head + 16)};
        UNROLL for (int i = 0; i < 2; i++) _mm512_storeu_si512(
            x + f->strips * SIDE * 16 + i * 16, (__m512i)_mm512_cvtne2ps_pbh(e->x[2 + i] * g[1], e->x[i] * g[0]));
    }
    if (part == 3) {
        UNROLL for (int h = 0; h < 2; h++)
            _mm512_storeu_si512(w->p + n * SIDE + h * 16, zipped(e->y[2 * h], e->y[2 * h + 1]));
    }
}
/* Part of unit n. Of dist's 16: two rows. Of mla_bwd's 34: two rows P, their dS and g P, and so on, then two tiles of
 * dS. */
INLINE void unit_part(const struct chunk *w, struct four *e, int64_t n, int part, int grad) {
    if (!grad) {
        if (n < PAIRS) exp_part(w, e, 2 * n, part);
    } else if (n >= SIDE) {
        if (n < SIDE + 2 && part == 1) turn_tile(w->f->ds + w->strip * w->f->ld_ds + w->row / 2 * SIDE, w->p, n - SIDE);
    } else if (n % 2) {
        grad_part(w, e, n / 2, part);
    } else {
        exp_part(w, e, n, part);
        if (part < 3) return;
        UNROLL for (int i = 0; i < 4; i++) v32_store(w->held + i * 16, e->x[i]);
    }
}
static __attribute__((noinline)) void units(const struct chunk *w, int64_t n, int grad) {
    struct four e = {0};
    for (; n < (grad ? SIDE + 2 : PAIRS); n++) {
        UNROLL for (int part = 0; part < 4; part++) {
            if (grad) {
                unit_part(w, &e, n, part, 1);
            } else {
                unit_part(w, &e, n, part, 0);
            }
        }
    }
}
INLINE void heads(const struct attn_mla_bwd_scores *f, int grad) {
    const int64_t steps = f->depth / 16, more_steps = grad ? f->width / 16 : 0;
    float held[4 * 16], *const k = f->copies.tiles, *pending = NULL;
    struct chunk w = {.f = f, .held = held, .p = f->s + 4 * CELLS};
    struct four e = {0};
    struct coming c;
    struct asking asking;
    int64_t turn = 0;
    if (!f->copied) copy_first(k, &f->rows, f->depth);
#define OPEN_MORE(t)                                                                                                   \
    do {                                                                                                               \
        tile_store(t, s + TILE_AT(t, SIDE), SIDE * 4);                                                                 \
        tile_zero(t);                                                                                                  \
    } while (0)
        /* n counts the steps of the product. unit is one of the chunk before, whose dP, or dist's S, is there after the
         * first step. Rows are copied during the strip's last product, which is the only one of dist. */
#define UNIT(unit, part)                                                                                               \
    do {                                                                                                               \
        if (pending && (grad || n)) unit_part(&w, &e, unit, part, grad);                                               \
    } while (0)
#define WORK_0(unit, copying)                                                                                          \
    do {                                                                                                               \
        UNIT(unit, 0);                                                                                                 \
        if (prefetches) prefetch_half(&asking, 0);                                                                     \
    } while (0)
#define WORK_1(unit, copying)                                                                                          \
    do {                                                                                                               \
        UNIT(unit, 1);                                                                                                 \
        zip_unit(&z);                                                                                                  \
        if ((copying) && n) copy_columns(&c, k, n - 1, 16);                                                            \
    } while (0)
#define WORK_2(unit, copying)                                                                                          \
    do {                                                                                                               \
        UNIT(unit, 2);                                                                                                 \
        if (prefetches) prefetch_half(&asking, 1);                                                                     \
    } while (0)
#define WORK_3(unit, copying)                                                                                          \
    do {                                                                                                               \
        UNIT(unit, 3);                                                                                                 \
        zip_unit(&z);                                                                                                  \
        if (last && (!grad || !prefetches)) zip_to(&z, n);                                                             \
        if (copying) copy_columns(&c, k, n, 0);                                                                        \
    } while (0)
#define PRODUCT(steps_, next, OPEN, unit, copying)                                                                     \
    do {                                                                                                               \
        const float *a_ = k;                                                                                           \
        int64_t n = 0;                                                                                                 \
        STEP(1, OPEN, ON_TO((steps_) > 1 ? a_ + 2 * TILE : k, (steps_) > 1 ? b_ + 2 * TILE : (next)),                  \
             WORK_0(unit, copying), WORK_1(unit, copying), WORK_2(unit, copying), WORK_3(unit, copying));              \
        for (n = 1; n < (steps_); n++)                                                                                 \
            STEP(0, OPEN, ON_TO(n + 1 < (steps_) ? a_ + 2 * TILE : k, n + 1 < (steps_) ? b_ + 2 * TILE : (next)),      \
                 WORK_0(unit, copying), WORK_1(unit, copying), WORK_2(unit, copying), WORK_3(unit, copying));          \
    } while (0)
    for (int64_t row = 0; row < f->rows.n; row += SIDE) {
        struct zipping z = zip_from(&f->copies, row);
        coming_rows(&c, &f->rows, row + SIDE);
        /* a single step has no place in which what comes first could have been copied before it is loaded */
        if (!row || (grad ? more_steps : steps) == 1) BEGIN(k, f->q);
        for (int64_t strip = 0; strip < f->strips; strip++, turn ^= 1) {
            float *s = f->s + turn * 2 * CELLS;
            const int last = strip + 1 == f->strips, copies = last && c.any;
            const float *const q = f->q + strip * f->depth * SIDE, *const next = last ? f->q : q + f->depth * SIDE,
                               *const o = grad ? f->dout + strip * f->width * SIDE : next, *b_ = q;
            int prefetches = 1;
            prefetch_from(&asking, &f->rows, &f->next, row + PREFETCH_AHEAD, strip, f->strips);
            PRODUCT(steps, o, OPEN_PENDING, grad ? n : n - 1, copies && !grad);
            if (grad) {
                prefetches = 0;
                PRODUCT(more_steps, next, OPEN_MORE, steps + n, copies);
                if (last) zip_to(&z, steps);
            }
            if (copies) {
                const int64_t end = grad ? more_steps : steps;
                copy_columns(&c, k, end - 1, 16);
                for (int64_t n = end; n < steps; n++) copy_columns(&c, k, n, 0), copy_columns(&c, k, n, 16);
            }
            if (pending) units(&w, grad ? steps + more_steps : steps - 1, grad);
            chunk_from(&w, strip, row, s);
            pending = grad ? s + CELLS : s;
        }
    }
    if (pending) sums_store(pending, SIDE), units(&w, 0, grad);
#undef OPEN_MORE
#undef UNIT
#undef WORK_0
#undef WORK_1
#undef WORK_2
#undef WORK_3
#undef PRODUCT
}
void attn_ukr_amx_mla_bwd_scores(const struct attn_mla_bwd_scores *f) {
    if (f->dout) {
        heads(f, 1);
    } else {
        heads(f, 0);
    }
}
