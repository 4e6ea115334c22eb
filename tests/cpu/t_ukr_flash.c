/* SPDX-License-Identifier: MIT
 * Strips of flash attention on the tiles of AMX against a double loop on the same rounded numbers: rows that see any
 * stretch of the keys, keys in several calls, rows that are independent of each other, many strips in one call. Skipped
 * without the instructions; runs in emulation everywhere (cmake/amx.cmake). */
#include "attn.h"

#include "base/num.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/bf16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct attn_ukr_bf16 *const u = &attn_ukr_bf16_amx;

#include "ukr_tests.h"

/* Operands of the transposed softmax in the plain order, and the strip that they make. */
enum { ROWS = ATTN_FWD_ROWS, STEP = ATTN_FWD_STEP };
struct strip {
    int64_t n, d, dv, depth, width, ldk;
    int n_bf16, bf16_accuracy; /* operands are bf16, f16 or f32; probabilities need not be as good */
    int across;                /* keys lie across the lanes */
    float *q, *k, *v;          /* rows of d, ldk and dv, values of that type */
    uint16_t *rows, *kt;       /* keys of bf16 as they are in memory, keys in terms */
    float *qt, *vt, *o, *s, *p;
    float m[ROWS], l[ROWS];
    int32_t seen[2 * ROWS];
    uint32_t *visible;
    const uint8_t *page_missing; /* NULL, or keys that nobody sees */
    int kind;                    /* what makes scores of products */
    char *mask;
    uint32_t *bits; /* scratch */
    struct attn_fwd_score_mod score;
};
enum {
    PLAIN,
    CAP,
    SMALL_CAP,
    LINEAR,
    DISTANCE,
    STEEP, /* grows by more than references are ahead */
    STEEP_DISTANCE_AND_KEPT,
    STEEP_AND_CAP,
    BOOL,
    ADDED_F32,
    ADDED_F16,
    ADDED_BF16,
    CAP_AND_KEPT,
    CAP_AND_ADDED,
    SMALL_CAP_AND_ADDED,
    DISTANCE_AND_ADDED,
    STEEP_AND_ADDED,
    STEEP_CAP_AND_KEPT,
    DISTANCE_CAP_AND_ADDED,
    KINDS
};
/* cap: products beyond what one polynomial serves are some with 4, and most with 0.25. alibi: 2 by distance. */
static const struct {
    int mask, alibi, steep;
    float cap;
} kinds[KINDS] = {
    [CAP] = {0, 0, 0, 4},
    [SMALL_CAP] = {0, 0, 0, 0.25f},
    [LINEAR] = {0, 1, 0, 0},
    [DISTANCE] = {0, 2, 0, 0},
    [STEEP] = {0, 1, 1, 0},
    [STEEP_DISTANCE_AND_KEPT] = {ATTN_UKR_MASK_BITS, 2, 1, 0},
    [STEEP_AND_CAP] = {0, 1, 1, 4},
    [BOOL] = {ATTN_UKR_MASK_BITS, 0, 0, 0},
    [ADDED_F32] = {ATTN_UKR_MASK_F32, 0, 0, 0},
    [ADDED_F16] = {ATTN_UKR_MASK_F16, 0, 0, 0},
    [ADDED_BF16] = {ATTN_UKR_MASK_BF16, 0, 0, 0},
    [CAP_AND_KEPT] = {ATTN_UKR_MASK_BITS, 0, 0, 4},
    [CAP_AND_ADDED] = {ATTN_UKR_MASK_BF16, 0, 0, 4},
    [SMALL_CAP_AND_ADDED] = {ATTN_UKR_MASK_F32, 0, 0, 0.25f},
    [DISTANCE_AND_ADDED] = {ATTN_UKR_MASK_F16, 2, 0, 0},
    [STEEP_AND_ADDED] = {ATTN_UKR_MASK_F32, 1, 1, 0},
    [STEEP_CAP_AND_KEPT] = {ATTN_UKR_MASK_BITS, 2, 1, 4},
    [DISTANCE_CAP_AND_ADDED] = {ATTN_UKR_MASK_BF16, 2, 0, 4},
};
enum { SCALE_INVERSE = 4 };
/* Where column c of a row of Q, a key, a value or a sum is: of Q and V in pairs. */
static int64_t query_cell(const struct strip *t, int64_t r, int64_t c) {
    if (!t->across) return r / 16 * t->depth / 2 * 16 + c / 2 * 16 + r % 16;
    return (r / 16 * t->depth / 32 + c / 32) * 256 + r % 16 * 16 + c % 32 / 2;
}
static int64_t value_cell(const struct strip *t, int64_t j, int64_t c) {
    if (!t->across) return (j / 32 * t->n_bf16 * t->width + c) * 16 + j % 32 / 2;
    return (j / 32 * t->width / 16 + c / 16) * 256 + j % 16 * 16 + c % 16;
}
static int64_t key_cell(const struct strip *t, int64_t j, int64_t c) { /* in elements of 16 bits */
    if (!t->across) return j / 16 * t->n_bf16 * 16 * t->depth + c / 32 * 512 + j % 16 * 32 + c % 32;
    return ((j / 16 * t->depth / 32 + c / 32) * 256 + c % 32 / 2 * 16 + j % 16) * 2 + c % 2;
}
static int64_t sum_cell(const struct strip *t, int64_t r, int64_t c) {
    return t->across ? attn_fwd_rowmajor_cell(r, c) : c * ROWS + r;
}
/* Row r, key j of the mask. */
static int64_t cell(const struct strip *t, int r, int64_t j) { return r * (t->n + 5) + j; }
static double mask_at(const struct strip *t, int r, int64_t j) {
    const int64_t index = cell(t, r, j);
    float f32;
    uint16_t half;
    if (!t->kind) return 0;
    memcpy(&f32, t->mask + 4 * index, sizeof f32), memcpy(&half, t->mask + 2 * index, sizeof half);
    switch (t->score.mask) {
    case ATTN_UKR_MASK_BITS: return t->mask[index] ? 0 : -INFINITY;
    case ATTN_UKR_MASK_F32: return (double)f32;
    case ATTN_UKR_MASK_F16: return (double)attn_num_f16_f32(half);
    case ATTN_UKR_MASK_BF16: return (double)attn_num_bf16_f32(half);
    default: return 0;
    }
}
static void make_score(struct strip *t, int kind) {
    const float scale = 1.0f / SCALE_INVERSE;
    const int steep = kinds[kind].steep;
    t->kind = kind;
    t->score = (struct attn_fwd_score_mod){
        .scale = scale, .mask = kinds[kind].mask, .caps = kinds[kind].cap > 0, .alibi = kinds[kind].alibi};
    if (t->score.caps) t->score.cap = attn_softcap_of((double)kinds[kind].cap, (double)scale);
    t->mask = calloc((size_t)(ROWS * (t->n + 5)), 4), t->bits = calloc((size_t)(t->n + t->n / 32), sizeof *t->bits);
    for (int r = 0; r < ROWS; r++) {
        t->score.slope[r] = (float)(steep ? (uniform() + 1) / 2 : uniform() / 16);
        t->score.origin[r] = (float)(3 * r), t->score.near[r] = (float)(r % 5);
        if (steep) { /* a row's largest is 0 */
            const float first = (float)t->seen[r], last = (float)t->seen[ROWS + r] - 1, origin = (float)(7 * r + 30);
            t->score.origin[r] = t->score.alibi == 1 ? last : origin;
            t->score.near[r] = fmaxf(0, fmaxf(origin - last, first - origin));
        }
        for (int64_t j = 0; j < t->n; j++) {
            const float x = (float)uniform();
            const uint16_t half = t->score.mask == ATTN_UKR_MASK_F16 ? attn_num_f32_f16(x) : attn_num_f32_bf16(x);
            if (t->score.mask == ATTN_UKR_MASK_BITS) { /* nobody keeps a key of every other step, or of some */
                t->mask[cell(t, r, j)] = x > 0 && (t->n <= STEP || j / STEP % (t->n > 8 * STEP ? 8 : 2) != 1);
            } else if (t->score.mask == ATTN_UKR_MASK_F32) {
                memcpy(t->mask + 4 * cell(t, r, j), &x, sizeof x);
            } else {
                memcpy(t->mask + 2 * cell(t, r, j), &half, sizeof half);
            }
        }
    }
}
/* What the kernel is told, of keys from `at` on. */
static void move_score(const struct strip *t, int64_t first_key, struct attn_fwd_score_mod *f) {
    const int mask = t->score.mask, bytes = mask == ATTN_UKR_MASK_BITS ? 1 : mask == ATTN_UKR_MASK_F32 ? 4 : 2;
    *f = t->score;
    f->mask_keys = t->n - first_key, f->mask_bytes = bytes, f->bits = t->bits;
    for (int r = 0; r < ROWS; r++)
        f->cell[r] = t->mask + cell(t, r, first_key) * bytes, f->origin[r] -= (float)first_key;
}
/* Of a product, in units that `factor` counts in. */
static double score_of(const struct strip *t, int r, int64_t j, double x) {
    if (!t->kind) return x;
    x *= (double)t->score.scale;
    if (t->score.caps) x = (double)t->score.cap.cap * tanh(x / (double)t->score.cap.cap);
    const double from = (double)j - (double)t->score.origin[r];
    if (t->score.alibi == 1) x += (double)t->score.slope[r] * from;
    if (t->score.alibi == 2) x += (double)t->score.slope[r] * ((double)t->score.near[r] - fabs(from));
    return x + mask_at(t, r, j);
}
/* Terms of x, `apart` elements from each other; those of three are cut off, the others rounded. */
static void split_to(const struct strip *t, float x, uint16_t *to, int64_t apart) {
    for (int i = 0; i < t->n_bf16; i++, to += apart) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        *to = t->n_bf16 == 3 ? (uint16_t)(bits >> 16) : attn_num_f32_bf16(x);
        x -= attn_num_bf16_f32(*to);
    }
}
static void fill_strip(const struct strip *t, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)uniform();
        if (t->n_bf16 == 1) x[i] = attn_num_bf16_f32(attn_num_f32_bf16(x[i]));
        if (t->n_bf16 == 2) x[i] = attn_num_f16_f32(attn_num_f32_f16(x[i]));
    }
}
static void make_strip(struct strip *t, int64_t steps, int64_t d, int64_t dv, int n_bf16) {
    *t = (struct strip){.n = steps * STEP,
                        .n_bf16 = n_bf16,
                        .d = d,
                        .dv = dv,
                        .depth = (d + 31) / 32 * 32,
                        .width = (dv + 31) / 32 * 32};
    t->ldk = t->depth == 64 && d == 64 ? 64 : t->depth + 3;
    t->q = calloc((size_t)(ROWS * d), 4), t->k = calloc((size_t)(t->n * t->ldk), 4),
    t->v = calloc((size_t)(t->n * dv), 4);
    t->rows = calloc((size_t)(t->n * t->ldk), 2), t->kt = calloc((size_t)(t->n * 3 * t->depth), 2);
    t->qt = calloc((size_t)(ROWS * 3 * t->depth / 2), 4), t->vt = calloc((size_t)(t->n * 3 * t->width / 2), 4);
    t->o = calloc((size_t)(t->width * ROWS), 4), t->s = calloc(2 * STEP * ROWS, 4),
    t->p = calloc(ATTN_FWD_QUEUE * 3 * STEP / 2 * ROWS, 4);
    t->visible = calloc((size_t)t->n, sizeof *t->visible);
    fill_strip(t, t->q, ROWS * d), fill_strip(t, t->v, t->n * dv);
    for (int64_t j = 0; j < t->n; j++) {
        fill_strip(t, t->k + j * t->ldk, d);
        for (int64_t c = 0; n_bf16 != 2 && j >= STEP && steps % 2 && c < d; c++)
            t->k[j * t->ldk + c] *= 8; /* scores far above those of the first step */
    }
    for (int r = 0; r < ROWS; r++) {
        const int32_t a = (int32_t)((uniform() + 1) / 2 * (double)t->n),
                      b = (int32_t)((uniform() + 1) / 2 * (double)t->n);
        t->seen[r] = r % 3 ? (a < b ? a : b) : 0;
        t->seen[ROWS + r] = r % 3 ? (a < b ? b : a) : (int32_t)t->n;
    }
    t->seen[7] = t->seen[ROWS + 7] = 0; /* sees nothing */
}
static void free_strip(struct strip *t) {
    free(t->q), free(t->k), free(t->v), free(t->qt), free(t->vt), free(t->o), free(t->s), free(t->p), free(t->visible);
    free(t->rows), free(t->kt), free(t->mask), free(t->bits);
}
static void pack_strip(struct strip *t) {
    uint16_t *qt = (uint16_t *)(void *)t->qt, *vt = (uint16_t *)(void *)t->vt;
    for (int64_t r = 0; r < ROWS; r++) t->m[r] = -INFINITY, t->l[r] = 0;
    memset(t->o, 0xff, (size_t)(t->width * ROWS) * sizeof *t->o); /* it is `fresh` */
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < t->d; c++) {
            uint16_t *to = qt + query_cell(t, r, c) * 2 + c % 2;
            split_to(t, t->q[r * t->d + c], to, ROWS * t->depth);
        }
    for (int64_t j = 0; j < t->n; j++) {
        for (int64_t c = 0; c < t->dv; c++) {
            uint16_t *to = vt + value_cell(t, j, c) * 2 + (t->across ? j % 32 / 16 : j % 2);
            split_to(t, t->v[j * t->dv + c], to, t->width * 32);
        }
        for (int64_t c = 0; c < t->d; c++) {
            split_to(t, t->k[j * t->ldk + c], t->kt + key_cell(t, j, c), 16 * t->depth);
            t->rows[j * t->ldk + c] = attn_num_f32_bf16(t->k[j * t->ldk + c]);
        }
    }
}
/* Keys at .. at + n; `seen` receives what rows see of them. */
static struct attn_fwd_strip describe_strip(struct strip *t, int64_t first_key, int64_t n, int32_t *seen) {
    for (int r = 0; r < 2 * ROWS; r++) {
        const int64_t x = t->seen[r] - first_key;
        seen[r] = (int32_t)(x < 0 ? 0 : x > n ? n : x);
    }
    const int tiles = t->n_bf16 > 1 || t->d > 64 || t->across; /* of keys; else rows as they are */
    const int64_t n_bf16 = t->n_bf16;
    return (struct attn_fwd_strip){.n = n,
                                   .depth = t->depth,
                                   .width = t->width,
                                   .n_bf16 = t->n_bf16,
                                   .bf16_accuracy = t->bf16_accuracy,
                                   .k = tiles ? t->kt + first_key * n_bf16 * t->depth : t->rows + first_key * t->ldk,
                                   .k_row = tiles ? 32 : t->ldk,
                                   .k_more = 16 * (tiles ? n_bf16 * t->depth : t->ldk),
                                   .k_step = tiles ? 512 : 32,
                                   .k_low = 16 * t->depth,
                                   .q = t->qt,
                                   .v = t->vt + first_key / 2 * n_bf16 * t->width,
                                   .seen = seen,
                                   .factor = 0.8f,
                                   .m = t->m,
                                   .l = t->l,
                                   .o = t->o,
                                   .fresh = first_key == 0,
                                   .visible = t->visible + first_key,
                                   .page_missing = t->page_missing ? t->page_missing + first_key : NULL,
                                   .s = t->s,
                                   .p = t->p};
}
/* The first n keys, then the rest: what is kept between calls counts. watched: `live` is asked for. */
static void run_strip_as(struct strip *t, int64_t n, int watched) {
    pack_strip(t);
    for (int64_t first_key = 0; first_key < t->n; first_key += n) {
        int32_t seen[2 * ROWS];
        if (first_key) n = t->n - n;
        struct attn_fwd_strip f = describe_strip(t, first_key, n, seen);
        struct attn_fwd_score_mod score = t->score;
        if (t->kind) move_score(t, first_key, &score), f.score = &score;
        if (!watched) f.visible = NULL;
        (t->across ? u->fwd_rowmajor : u->fwd)(&f, 1);
    }
}
static void run_strip(struct strip *t, int64_t n) { run_strip_as(t, n, 1); }
static void check_strip(const struct strip *t) {
    /* of a sum of d products, relative; of a probability, before and after it is rounded */
    const int degree = attn_fwd_degree(t->n_bf16, t->bf16_accuracy, t->across || (t->kind && t->score.alibi)),
              by_table = degree <= ATTN_FWD_TABLE_OF_SUMS;
    const double product = (t->n_bf16 == 3 ? 2e-7 : 2e-6) * (double)t->d,
                 table = 0x1p-8 + 0x1p-8 * 0.6932, /* half a spacing of bf16, half a part of an octave */
        exact = by_table      ? table
                : degree == 4 ? 2.95e-6
                              : 2e-7,
                 rounded = t->n_bf16 == 3   ? 4e-7
                           : t->n_bf16 == 2 ? 0x1p-14
                           : by_table       ? table
                                            : 0x1p-8 + 1e-4;
    double *s = malloc((size_t)t->n * sizeof *s);
    for (int r = 0; r < ROWS; r++) {
        double top = -INFINITY, sum = 0, factor = 1;
        for (int64_t j = t->seen[r]; j < t->seen[ROWS + r]; j++) {
            s[j] = 0;
            for (int64_t c = 0; c < t->d; c++) s[j] += (double)t->q[r * t->d + c] * (double)t->k[j * t->ldk + c];
            s[j] = score_of(t, r, j, s[j]);
            top = fmax(top, s[j]);
        }
        for (int64_t j = 0; j < t->n; j++)
            assert_int_equal(t->visible[j] >> r & 1, j >= t->seen[r] && j < t->seen[ROWS + r] &&
                                                         (isnan(mask_at(t, r, j)) || mask_at(t, r, j) > -INFINITY));
        for (int64_t j = t->seen[r]; j < t->seen[ROWS + r]; j++)
            sum += s[j] = top > -INFINITY ? exp2((s[j] - top) * (double)0.8f) : 0;
        if (top == -INFINITY) {
            assert_true(t->m[r] == -INFINITY && t->l[r] == 0);
        } else { /* products of d terms, sums of n; relative to some score of the row, not too far below the largest */
            const float parts = ATTN_FWD_PARTS, product_of = t->m[r] * 0.8f,
                        offset = degree == ATTN_FWD_TABLE ? nearbyintf(product_of * parts) / parts : product_of;
            factor =
                exp2((double)(offset + attn_fwd_below(degree)) - top * (double)0.8f) / (double)attn_fwd_times(degree);
            if (fabsf(product_of) >= attn_fwd_far(degree))
                factor = exp2((double)attn_fwd_below(degree)) / (double)attn_fwd_times(degree);
            assert_true(factor <= (t->score.alibi ? 0x1p33 : 1.003) && factor > 0x1p-17);
            if (t->across) factor *= exp2(ATTN_FWD_ROWMAJOR_AHEAD);
            assert_true(fabs((double)t->l[r] * factor - sum) <= (product + exact) * sum);
        }
        for (int64_t c = 0; c < t->width; c++) {
            double want = 0, size = 1e-30;
            for (int64_t j = t->seen[r]; j < t->seen[ROWS + r] && c < t->dv; j++) {
                const double term = s[j] * (double)t->v[j * t->dv + c];
                want += term, size += fabs(term);
            }
            assert_true(fabs((double)t->o[sum_cell(t, r, c)] * factor - want) <= (rounded + product) * size);
        }
    }
    free(s);
}
static int rows_fit(const struct strip *t) {
    return attn_fwd_rowmajor_fits(t->depth, t->width, t->n_bf16, t->score.mask, t->score.caps, t->score.alibi);
}
static int may_have_bf16_accuracy(const struct strip *t) {
    return t->across || t->n_bf16 > 1 || !t->kind || t->score.mask <= ATTN_UKR_MASK_BITS;
}
static void test_fwd(void **unused) {
    static const struct {
        int64_t steps, first, d, dv;
    } cases[] = {{1, 64, 64, 64},  {3, 64, 32, 96}, {4, 128, 128, 128},
                 {2, 128, 33, 20}, {5, 256, 17, 1}, {3, 192, 288, 160}};
    (void)unused;
    for (size_t run = 0; run < 6 * sizeof cases / sizeof *cases; run++) {
        const size_t i = run / 6;
        const int form = (int)(run % 6);
        struct strip t;
        float m, l, *o;
        make_strip(&t, cases[i].steps, cases[i].d, cases[i].dv, form < 3 ? 1 + form : 1);
        t.bf16_accuracy = form == 3;
        if (form == 4) make_score(&t, BOOL);
        if (form == 5) make_score(&t, ADDED_BF16), t.across = rows_fit(&t);
        run_strip(&t, cases[i].first);
        check_strip(&t);
        /* A row's bits are its own: other rows and the keys that it does not see become NaN, or seen by all others. */
        const int mine = 4;
        m = t.m[mine], l = t.l[mine], o = malloc((size_t)t.width * sizeof *o);
        for (int64_t c = 0; c < t.width; c++) o[c] = t.o[sum_cell(&t, mine, c)];
        for (int r = 0; r < ROWS; r++) {
            if (r == mine) continue;
            memset(t.q + r * t.d, 0xff, (size_t)t.d * sizeof *t.q);
            t.seen[r] = 0, t.seen[ROWS + r] = (int32_t)t.n;
        }
        for (int64_t j = 0; j < t.n; j++)
            if (j < t.seen[mine] || j >= t.seen[ROWS + mine] || (form == 4 && mask_at(&t, mine, j) < 0))
                memset(t.k + j * t.ldk, 0xff, (size_t)t.d * sizeof *t.k), fill_strip(&t, t.v + j * t.dv, t.dv);
        run_strip(&t, cases[i].first);
        assert_true(t.m[mine] == m && t.l[mine] == l && isnan(t.l[mine + 1]));
        for (int64_t c = 0; c < t.width; c++) assert_true(t.o[sum_cell(&t, mine, c)] == o[c]);
        free(o);
        free_strip(&t);
    }
}

/* The same with what makes scores of products. */
static void test_fwd_scores(void **unused) {
    static const int64_t extents[][2] = {{64, 64}, {128, 128}, {40, 72}};
    (void)unused;
    for (size_t x = 0; x < sizeof extents / sizeof *extents; x++)
        for (int kind = PLAIN + 1; kind < KINDS; kind++)
            for (int n_bf16 = 1; n_bf16 <= 2; n_bf16++)
                for (int form = 0; form < 4; form++) {
                    struct strip t;
                    make_strip(&t, form / 2 ? 4 : 1, extents[x][0], extents[x][1], n_bf16);
                    make_score(&t, kind);
                    for (int across = 0; across <= rows_fit(&t); across++) {
                        t.across = across, t.bf16_accuracy = form % 2 && may_have_bf16_accuracy(&t);
                        run_strip(&t, t.n > STEP ? t.n / 2 : t.n);
                        check_strip(&t);
                    }
                    free_strip(&t);
                }
}

/* Strips one after the other in one call give the bits that each gives alone, however many keys they have. */
static void test_fwd_many(void **unused) {
    enum { MANY = 4 };
    static const int64_t steps[MANY] = {3, 1, 2, 5}, extents[][2] = {{64, 64}, {128, 128}, {40, 72}};
    (void)unused;
    for (size_t run = 0; run < 7 * sizeof extents / sizeof *extents; run++) {
        struct strip t[MANY];
        struct attn_fwd_strip job[MANY];
        struct attn_fwd_score_mod score[MANY];
        const int form = (int)(run % 7), which = (int)(run / 7);
        int32_t seen[MANY][2 * ROWS];
        float *o[MANY], m[MANY][ROWS], l[MANY][ROWS];
        for (int i = 0; i < MANY; i++) {
            make_strip(&t[i], steps[i], extents[which][0], extents[which][1], form < 3 ? 1 + form : 1);
            t[i].bf16_accuracy = form == 3;
            if (form == 4) make_score(&t[i], BOOL);
            if (form > 4) make_score(&t[i], form == 5 ? ADDED_F16 : ADDED_F32), t[i].across = rows_fit(&t[i]);
            if (form == 6) t[i].bf16_accuracy = t[i].across;
            run_strip(&t[i], t[i].n);
            const size_t bytes = (size_t)(t[i].width * ROWS) * sizeof **o;
            o[i] = malloc(bytes);
            memcpy(o[i], t[i].o, bytes), memcpy(m[i], t[i].m, sizeof m[i]), memcpy(l[i], t[i].l, sizeof l[i]);
            pack_strip(&t[i]);
            job[i] = describe_strip(&t[i], 0, t[i].n, seen[i]);
            job[i].s = job[0].s, job[i].p = job[0].p;
            if (t[i].kind) move_score(&t[i], 0, &score[i]), job[i].score = &score[i];
        }
        (t->across ? u->fwd_rowmajor : u->fwd)(job, MANY);
        for (int i = 0; i < MANY; i++) {
            assert_memory_equal(o[i], t[i].o, (size_t)(t[i].width * ROWS) * sizeof **o);
            assert_memory_equal(m[i], t[i].m, sizeof m[i]);
            assert_memory_equal(l[i], t[i].l, sizeof l[i]);
            free(o[i]);
            free_strip(&t[i]);
        }
    }
}

/* Steps that all queries see go another way where nobody asks for `live`: to the same bits. */
static void test_fwd_open(void **unused) {
    (void)unused;
    for (int kind = PLAIN; kind < KINDS; kind++)
        for (int form = 0; form < 4; form++) {
            struct strip t;
            make_strip(&t, 12 + form % 2, form / 2 ? 64 : 128, form / 2 ? 64 : 128, 1);
            if (kind) make_score(&t, kind);
            t.across = rows_fit(&t), t.bf16_accuracy = form % 2 && may_have_bf16_accuracy(&t);
            for (int r = 0; r < ROWS; r++) t.seen[r] = 0, t.seen[ROWS + r] = (int32_t)t.n - r % 3;
            run_strip(&t, t.n);
            check_strip(&t);
            const size_t bytes = (size_t)(t.width * ROWS) * sizeof *t.o;
            float *o = malloc(bytes), l[ROWS];
            memcpy(o, t.o, bytes), memcpy(l, t.l, sizeof l);
            run_strip_as(&t, t.n, 0);
            assert_memory_equal(o, t.o, bytes);
            assert_memory_equal(l, t.l, sizeof l);
            free(o);
            free_strip(&t);
        }
}

/* Keys across the lanes: scores so large that only the largest counts, which moves from step to step, in some rows; and
 * keys that nobody sees, whatever their masks and products are. */
static void test_fwd_rare(void **unused) {
    (void)unused;
    for (int64_t width = 64; width <= 128; width *= 2) {
        struct strip t;
        make_strip(&t, 3, width, width, 1);
        make_score(&t, ADDED_F32);
        t.across = rows_fit(&t);
        assert_true(t.across);
        for (int r = 1; r < ROWS; r += 4)
            for (int64_t j = 0; j < t.n; j++) {
                const float x = (float)(j % 3 * (j / 70 + 1)) * 2e30f;
                memcpy(t.mask + 4 * cell(&t, r, j), &x, sizeof x);
            }
        run_strip(&t, t.n);
        check_strip(&t);
        free_strip(&t);

        static uint8_t page_missing[3 * STEP];
        const size_t bytes = (size_t)(ROWS * width) * sizeof *t.o;
        float *o = malloc(bytes), m[ROWS], l[ROWS];
        make_strip(&t, 3, width, width, 1);
        make_score(&t, ADDED_F32);
        t.across = rows_fit(&t);
        for (int64_t j = 0; j < t.n; j++) page_missing[j] = j % 7 < 2 || j / 32 == 2;
        for (int hidden = 1; hidden >= 0; hidden--) { /* by the mask, then because they are gone */
            for (int64_t j = 0; j < t.n; j++)
                for (int r = 0; r < ROWS && page_missing[j]; r++) {
                    const float x = hidden ? -INFINITY : r % 2 ? NAN : 1e4f;
                    memcpy(t.mask + 4 * cell(&t, r, j), &x, sizeof x);
                }
            t.page_missing = hidden ? NULL : page_missing;
            run_strip(&t, t.n);
            if (hidden) {
                check_strip(&t);
                memcpy(o, t.o, bytes), memcpy(m, t.m, sizeof m), memcpy(l, t.l, sizeof l);
            }
        }
        assert_memory_equal(o, t.o, bytes);
        assert_memory_equal(m, t.m, sizeof m);
        assert_memory_equal(l, t.l, sizeof l);
        for (int64_t j = 0; j < t.n; j++) assert_true(!page_missing[j] || !t.visible[j]);
        free(o);
        free_strip(&t);
    }
}

/* A score that is 100 to 472 octaves above all before it, in a step that all see or in the last: in 16 bits of a table
 * such a probability would have a sign, and be next to nothing. */
static void test_fwd_jumps(void **unused) {
    (void)unused;
    for (int kind = PLAIN; kind < KINDS; kind++)
        for (int form = 0; form < 4; form++) {
            struct strip t;
            make_strip(&t, 10, form / 2 ? 64 : 128, form / 2 ? 64 : 128, 1);
            if (kind) make_score(&t, kind);
            t.across = rows_fit(&t), t.bf16_accuracy = form % 2 && may_have_bf16_accuracy(&t);
            const int64_t high[2] = {5 * STEP + 9, t.n - 3};
            const float unit = 0.8f * (kind ? t.score.scale : 1);
            for (int r = 0; r < ROWS; r++) {
                t.seen[r] = 0, t.seen[ROWS + r] = (int32_t)t.n;
                for (int i = 0; i < 2; i++) {
                    const float octaves = i == r % 2 ? (float)(100 + 12 * r) : 0;
                    t.q[r * t.d + i] = attn_num_bf16_f32(attn_num_f32_bf16(octaves / unit));
                    if (t.score.mask == ATTN_UKR_MASK_BITS) t.mask[cell(&t, r, high[i])] = 1;
                }
            }
            for (int64_t j = 0; j < t.n; j++)
                for (int i = 0; i < 2; i++) t.k[j * t.ldk + i] = j == high[i];
            run_strip_as(&t, t.n, 1), check_strip(&t);
            run_strip_as(&t, t.n, 0), check_strip(&t);
            free_strip(&t);
        }
}

/* Probabilities from a table: rows of equal scores are exact, and so are scores whose products with the factor pass
 * attn_fwd_far on the way (those are made of eighths: their sums are exact, too). */
static void test_fwd_table(void **unused) {
    (void)unused;
    for (int64_t width = 64; width <= 128; width *= 2) {
        struct strip t;
        make_strip(&t, 4, width, width, 1);
        t.bf16_accuracy = 1;
        for (int r = 0; r < ROWS; r++) t.seen[r] = 0, t.seen[ROWS + r] = (int32_t)t.n;
        for (int64_t i = 0; i < ROWS * width; i++) t.q[i] = (float)(i % width % 2 ? 1 : -1) * (float)(i / width % 5);
        for (int64_t j = 0; j < t.n; j++)
            for (int64_t c = 0; c < width; c++) t.k[j * t.ldk + c] = 0.75f, t.v[j * width + c] = (float)(j % 4 + c);
        run_strip_as(&t, t.n, 0);
        for (int r = 0; r < ROWS; r++) {
            assert_true(t.l[r] == (float)t.n);
            for (int64_t c = 0; c < width; c++) assert_true(t.o[sum_cell(&t, r, c)] == (1.5f + (float)c) * (float)t.n);
        }
        free_strip(&t);

        make_strip(&t, 8, width, width, 1);
        t.bf16_accuracy = 1;
        for (int64_t i = 0; i < ROWS * width; i++) t.q[i] = roundf(t.q[i] * 8) / 8;
        for (int64_t i = 0; i < t.n * t.ldk; i++) t.k[i] = roundf(t.k[i] * 8) / 8;
        for (int r = 0; r < ROWS; r++) { /* 0.8 * 160 * 127 .. 0.8 * 160 * 135: 16256 .. 17280 */
            t.q[r * width] = r % 2 ? 160 : 0;
            t.seen[r] = 0, t.seen[ROWS + r] = (int32_t)t.n - r % 3;
        }
        for (int64_t j = 0; j < t.n; j++) t.k[j * t.ldk] = (float)(127 + j / STEP);
        run_strip(&t, t.n);
        check_strip(&t);
        for (int r = 1; r < ROWS; r += 2) assert_true(t.m[r] * 0.8f > attn_fwd_far(ATTN_FWD_TABLE));
        free_strip(&t);

        /* Arguments that 15 bits do not hold, in steps that all see: far below, and NaN, of a query and of a key. */
        float l[ROWS], *o = malloc((size_t)(t.width * ROWS) * sizeof *o);
        for (int strange = 0; strange < 3; strange++) {
            make_strip(&t, 12, width, width, 1);
            t.bf16_accuracy = 1;
            for (int r = 0; r < ROWS; r++) {
                t.seen[r] = 0, t.seen[ROWS + r] = (int32_t)t.n;
                t.q[r * width] = (float)(r % 5);
            }
            for (int64_t j = 0; j < t.n; j++) t.k[j * t.ldk] = j / STEP % 4 == 2 && j % 7 ? -100 : 0;
            if (strange == 1) t.q[3 * width + 1] = NAN;
            if (strange == 2) t.k[(6 * STEP + 9) * t.ldk + 1] = -NAN;
            run_strip(&t, t.n);
            if (!strange) check_strip(&t);
            memcpy(l, t.l, sizeof l), memcpy(o, t.o, (size_t)(t.width * ROWS) * sizeof *o);
            run_strip_as(&t, t.n, 0);
            for (int r = 0; r < ROWS; r++) {
                assert_int_equal(isnan(t.l[r]), strange == 2 || (strange == 1 && r == 3));
                for (int64_t c = 0; c < t.width && !isnan(t.l[r]); c++)
                    assert_true(t.l[r] == l[r] && t.o[sum_cell(&t, r, c)] == o[sum_cell(&t, r, c)]);
            }
            free_strip(&t);
        }
        free(o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fwd),        cmocka_unit_test(test_fwd_table),
                                       cmocka_unit_test(test_fwd_rare),   cmocka_unit_test(test_fwd_open),
                                       cmocka_unit_test(test_fwd_scores), cmocka_unit_test(test_fwd_many),
                                       cmocka_unit_test(test_fwd_jumps)};
    return RUN_ON_TILES(tests);
}
