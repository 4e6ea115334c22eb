/* SPDX-License-Identifier: MIT
 * Microkernels of processors that multiply bf16 without widening it. Their instructions take two products at a time:
 *
 *     c[i] += a[2i] * b[2i] + a[2i+1] * b[2i+1]        sums in f32, denormals count as 0
 *
 * so an operand is made of PAIRS, 32-bit elements that hold two values which follow each other along the summed axis. A
 * bf16 row of q or k is a row of pairs as it stands; an operand summed over rows (v, q and k in the backward) is made
 * of pairs by zipping two rows. Pairs travel as float: the same 32 bits, moved and never computed with. */
#ifndef ATTN_CPU_UKR_BF16_H
#define ATTN_CPU_UKR_BF16_H
#include "attn.h"

#include "cpu/ukr/decode.h"
#include "cpu/ukr/transposed.h"
#include "cpu/vec/softcap.h"

struct attn_bwd_row { /* a row of attn_ukr_bf16.bwd_rows */
    const float *s, *dp;
    float max, delta;
    uint16_t *ds;
};

/* Forward of ATTN_FWD_ROWS query rows against n keys with S transposed: queries lie across the lanes of a vector. f16
 * is split exactly into two bf16 parts, f32 into three, the largest first (bf16x2, bf16x3). Q, K and V then hold n_bf16
 * parts of each number. */
enum { ATTN_FWD_ROWS = 32, ATTN_FWD_STEP = 64, ATTN_FWD_QUEUE = 3 };
/* At this size m * factor is rounded by 1 or more, and so is every exponent that is relative to it. */
#define ATTN_FWD_FAR 0x1p24f
enum {
    ATTN_UKR_MASK_NONE,
    ATTN_UKR_MASK_BITS, /* a byte each */
    ATTN_UKR_MASK_F32,
    ATTN_UKR_MASK_F16,
    ATTN_UKR_MASK_BF16,
    ATTN_UKR_MASK_BIAS /* transposed by the caller */
};
/* Scores of such a strip that are more than product times factor: cap(s * scale) + slope * distance + bias. Arrays hold
 * one value for each lane; keys count from the strip's first. */
struct attn_fwd_score_mod {
    float scale;
    int caps; /* there is a softcap: this one */
    struct attn_softcap cap;
    int alibi; /* 0: none; 1: the distance is key - origin; 2: near - |key - origin| */
    float slope[ATTN_FWD_ROWS], origin[ATTN_FWD_ROWS], near[ATTN_FWD_ROWS];
    int mask;                        /* ATTN_UKR_MASK_.. */
    int64_t mask_bytes;              /* of a cell */
    int64_t mask_keys;               /* cells of a row that may be read */
    const char *cell[ATTN_FWD_ROWS]; /* a mask's row of each query from the first key on, cells side by side: 0 where
                                        * a key is hidden, or what is added to the score */
    uint32_t *bits;                  /* scratch for a boolean mask, n + n / 32 of n rounded up to 64, in turns with
                                        * those of the strip before */
    const float *bias;               /* [n][32] */
    int hides;                       /* bias is 0 or -inf, which takes the score's place whatever that is */
};
/* Keys of a step: half of ATTN_FWD_STEP where the first-level cache would overflow, and for bf16x2 and bf16x3. */
static inline int64_t attn_fwd_span(int64_t depth, int64_t width, int n_bf16) {
    return depth == width && (width == 128 || (width == 64 && n_bf16 > 1)) ? ATTN_FWD_STEP / 2 : ATTN_FWD_STEP;
}
/* Degree of the polynomial for 2^x, or TABLE: from a table, whose argument is one multiply-add of the score.
 * TABLE_OF_SUMS (of_sums): the argument is a sum, in fwd_rowmajor and with ALiBi. */
enum { ATTN_FWD_TABLE = 0, ATTN_FWD_TABLE_OF_SUMS = 1 };
static inline int attn_fwd_degree(int n_bf16, int bf16_accuracy, int of_sums) {
    return n_bf16 == 3 ? 5 : !bf16_accuracy || n_bf16 == 2 ? 4 : of_sums ? ATTN_FWD_TABLE_OF_SUMS : ATTN_FWD_TABLE;
}
/* P = times * 2^(s * factor - offset), offset = m * factor + below, each operation ROUNDED to f32. With TABLE offset
 * is also rounded to a multiple of 1 / ATTN_FWD_PARTS, to the nearest even. Where m * factor reaches `far`,
 * P = times * 2^((s - m) * factor - below). */
#define ATTN_FWD_PARTS 128
static inline float attn_fwd_parts(int degree) { return degree <= ATTN_FWD_TABLE_OF_SUMS ? ATTN_FWD_PARTS : 1; }
static inline float attn_fwd_below(int degree) { return degree == 4 ? 6 : 0; }
static inline float attn_fwd_times(int degree) { return degree == 4 ? 74.5f : 1; }
static inline float attn_fwd_far(int degree) { return degree == ATTN_FWD_TABLE ? 0x1p14f : ATTN_FWD_FAR; }
/* With softcap * factor from here on arguments may leave the table. bf16 then has no bf16_accuracy form, nor where
 * masks are added in a pass of their own. */
#define ATTN_FWD_TABLE_CAP 88
/* fwd_rowmajor: added to `below`. */
#define ATTN_FWD_ROWMAJOR_AHEAD 16
struct attn_fwd_strip {
    int64_t n;            /* keys, a multiple of attn_fwd_span */
    int64_t depth, width; /* of keys and of values, rounded up to 32 */
    int n_bf16;           /* 1: bf16; 2: f16 as bf16x2; 3: f32 as bf16x3 */
    /* 1: lse is not requested. Probabilities, and l, are bf16 numbers within 2^-8 + 2^-8 ln 2 and not within 3e-6
     * before they are rounded (bf16x2: the same, but products of two low parts are left out; bf16x3: 2e-7). All
     * strips of a call are alike. */
    int bf16_accuracy;
    const uint16_t *k; /* zeros from D to depth. Elements to the next key, the next 16 keys, the next 32 columns, and
                        * from there to the next term: rows as they are, or whole tiles of 16 x 32, which are loaded
                        * faster; of several terms, and where a step has 32 keys, tiles one after the other */
    int64_t k_row, k_more, k_step, k_low;
    const float *q;      /* [n_bf16][2][depth / 2][16]: pairs along D, transposed, of 16 queries and 16 more */
    const float *v;      /* [n / 32][n_bf16][width][16]: pairs along the keys, transposed; finite, 0 for none */
    const int32_t *seen; /* [2][32]: the first key that a query sees, and one past its last; both in 0 .. n */
    float factor;        /* > 0, scale * log2 e; probabilities are at most 2^16: see attn_fwd_times */
    float *m, *l; /* [32] running max (-inf at first); sum of unrounded probabilities, with a table of rounded ones.
                     * NaN in l: the row is NaN */
    float *o;     /* [width][32] O, not divided by l, transposed */
    int fresh;    /* 1: this is the first block of keys, o is written and not read */
    uint32_t *visible;           /* NULL, or [n], output: bit q is set if query q's score for the key is not -inf */
    const uint8_t *page_missing; /* NULL, or [n]: 1: the key's page is outside the pool, no query sees the key */
    const uint32_t
        *score_override;          /* NULL, or [n]: bit q set: override_scores has the product of query q and the key */
    const float *override_scores; /* [n][32] */
    const struct attn_fwd_score_mod *score; /* NULL: products are scores */
    float *s, *p;                           /* scratch: 2 * STEP * 32, and QUEUE * n_bf16 * STEP / 2 * 32 */
};

/* The same with S row-major, keys across the lanes: bf16 with a score_mod, without score_override. Tiles of 1 KiB:
 *     q [2 of 16 queries][depth / 32][16 queries][32]      k [n / 16][depth / 32][16 pairs along D][16 keys]
 *     v [n / 32][width / 16][16 pairs of keys][16]         o [width / 32][2 of 16 queries][2 of 16 columns][16][16]
 * where a pair of keys are two that are 16 apart.
 * n is a multiple of 32. seen, m and l mean the same, but offset has attn_fwd_below + ATTN_FWD_ROWMAJOR_AHEAD. Serves
 * an additive mask whose cells lie side by side along the keys, with or without softcap and ALiBi; and softcap with
 * ALiBi, without a mask or with a boolean one. */
static inline int attn_fwd_rowmajor_fits(int64_t depth, int64_t width, int n_bf16, int mask, int caps, int alibi) {
    const int adds = mask >= ATTN_UKR_MASK_F32 && mask <= ATTN_UKR_MASK_BF16;
    return depth == width && (width == 64 || width == 128) && n_bf16 == 1 &&
           (adds || (caps && alibi && mask <= ATTN_UKR_MASK_BITS));
}
/* Where column d of query r of such an o is. */
static inline int64_t attn_fwd_rowmajor_cell(int64_t r, int64_t d) {
    return d / 32 * 1024 + r / 16 * 512 + d % 32 / 16 * 256 + r % 16 * 16 + d % 16;
}

/* Results of such a strip: o / l in 16 bits, and the logarithms of the sums. */
struct attn_fwd_finish {
    int64_t rows, width; /* queries that exist; columns of the results, a multiple of 32 */
    int tiles;           /* o is that of fwd_rowmajor, results are bf16 */
    int bf16;            /* or f16 */
    float below, times;  /* of attn_fwd_strip, and so are */
    float factor;
    const float *m, *l, *o;
    uint16_t *const *row; /* [rows]: where the results of each go */
    double *lse;          /* NULL, or [32]: receives natural logarithms */
};

/* Up to ATTN_DECODE_AMX_ROWS rows of queries against n keys in one pass, everything from where it is in memory. A step
 * has ATTN_DECODE_AMX_STEP keys. */
enum { ATTN_DECODE_AMX_ROWS = 8, ATTN_DECODE_AMX_STEP = 16, ATTN_DECODE_AMX_WIDTH = 128 /* at most */ };
struct attn_decode_amx {
    int64_t rows, depth, width; /* depth and width: multiples of 32 */
    const float *q;             /* pairs along D */
    int64_t ldq;
    const uint16_t *k, *v;
    int64_t ldk, ldv;
    const int64_t *lo, *hi; /* [rows]: keys that a row sees */
    float factor;           /* > 0; probabilities are 2^((s - m) * factor), rounded to bf16 for their product */
    float *m, *l, *o;       /* of each row, read and written: the running max (-inf: none seen), the sum of unrounded
                       * probabilities, the sum of values, rows ldo apart. If l or a value of o is not finite, the
                       * row must be done otherwise. */
    int64_t ldo;
    /* 1: all rows see the same keys, lo[0] .. hi[0]. 0: the sums of a row are on the grid of steps and depend on
     * nothing but that row. */
    int equal_ranges;
    int prefetch; /* for keys and values to come, those after the last one, too */
};

/* A tile of the plain backward: up to ATTN_BWD_TILE_STRIPS strips of ATTN_BWD_TILE rows against blocks of as many
 * keys. Everything is there in whole strips and blocks: rows and keys that do not exist are zeros. */
enum { ATTN_BWD_TILE = 32, ATTN_BWD_TILE_STRIPS = 16, ATTN_BWD_SPLIT = 3 * 512 };
/* bwd_tile_f32: operands are of what `split_block` makes, 32 x 32 numbers each, as many side by side as a row has: q,
 * dout along rows, their transposes along rows, the transposes of k and v down columns, and k down columns (ldq, ldo,
 * ldk are not read); p, ds and ds_rows hold strips * blocks of them each; P = 2^(s * factor - max). */
/* Scores of a tile that need more than a factor: cap(s * scale) + slope * distance + mask. Arrays of a row each; keys
 * count from the tile's first. */
struct attn_bwd_score_mod {
    int caps; /* there is a softcap: this one */
    struct attn_softcap cap;
    int alibi;                          /* 0: none; 1: the distance is key - origin - near; 2: |key - origin| - near */
    const float *slope, *origin, *near; /* slope: times log2 e; by distance: less than nothing where it is positive */
    const float *weight;                /* NULL, or what P and dP are multiplied with */
    int mask;                           /* ATTN_UKR_MASK_.., but for BIAS */
    int64_t mask_bytes;                 /* of a cell */
    int64_t mask_keys;                  /* cells of a row that may be read */
    const char *const *cell, *const *next; /* a mask's row from the tile's first key on, and of the tile after it */
    uint32_t *bits;                        /* scratch: [strips][blocks][32] */
};
struct attn_bwd_tile {
    int64_t strips, blocks;
    int64_t depth, width;  /* of q and k, of dout and v, rounded up to 32 */
    const float *q, *dout; /* [rows][ldq], [rows][ldo] pairs along D */
    int64_t ldq, ldo;
    const float *q_transposed, *dout_transposed; /* [strips][depth or width][16]: pairs of rows, transposed */
    const float *kt, *vt;                        /* [2 * blocks][depth or width / 2][16]: pairs along D, transposed */
    const float *k_zip;                          /* [16 * blocks][ldk] pairs of keys */
    int64_t ldk;
    const int32_t *seen;                    /* [strips][2][32]: the tile's first key that a row sees, and the one after
                               * the last; both grow with the row, but for rows that see none */
    const float *max, *delta;               /* [rows]: P = 2^((s - max) * factor), dS = P (dP - delta); +inf: P = 0 */
    const struct attn_bwd_score_mod *score; /* NULL: products are scores; else P = 2^(score log2 e - max), with an
                                               * additive mask e^(score - max), rows without gradients see no key, and
                                               * factor is log2 e, times the scale where there is no cap */
    float factor;                           /* > 0 */
    float *dq;                              /* NULL, or [rows][ldd] */
    int64_t ldd;
    float *dk, *dv;          /* NULL, or [blocks][depth or width][32], transposed */
    float *s;                /* scratch: 4 * 32 * 32 */
    float *p, *ds, *ds_rows; /* scratch: strips * blocks * 512 each */
};

/* Strips of ATTN_MLA_HEADS heads against rows of keys, pairs along D, copied 32 at a time. Operands lie in whole
 * tiles of 1 KiB, which load faster from the second-level cache than two side by side. q, transposed: [strips]
 * [depth / 16][2][16][16 heads]; depth and width count pairs, multiples of 16. */
enum { ATTN_MLA_HEADS = 32 };
struct attn_mla_rows { /* in memory, base + key * stride */
    const char *base;
    const int32_t *key;
    int64_t n, stride;
};
struct attn_mla_copies {
    float *tiles; /* [depth / 16][32][16]: scratch, 32 rows at a time */
    float *zip;   /* [width / 16][ldz]: the first `width` pairs of columns, a multiple of 16, as pairs of rows in tiles,
                   * 32 columns at a time [rows, filled up / 32][2][16][16 columns], zeros where there is no row */
    int64_t ldz, width;
};
struct attn_mla_scores {
    struct attn_mla_rows rows, next; /* next: those of the block after it, of which the first 64 are prefetched */
    struct attn_mla_copies copies;
    int copied; /* 1: the first 32 rows are in copies.tiles already */
    int64_t strips, depth;
    const float *q;
    float scale;
    /* [heads], kept from block to block: the largest scaled score (NULL: not wanted) and the offset of the exponents,
     * both -inf at first; the sum of unrounded probabilities 2^(s scale log2 e - offset). */
    float *max, *offset, *sum;
    float *rescale; /* [heads] receives what this call does to older sums: a power of 2 */
    float *p;       /* [strips][ldp]: pairs of rows in tiles of A [rows, filled up / 32][2][16 heads][16 pairs] */
    int64_t ldp;
    float *s; /* scratch: 32 * 32 + 16 * 32 */
};
struct attn_mla_bwd_scores {
    struct attn_mla_rows rows, next; /* as of attn_mla_scores */
    struct attn_mla_copies copies;
    int copied; /* 1: the first 32 rows are in copies.tiles already */
    int64_t strips, depth, width;
    const float *q, *dout; /* dout as q; NULL: only the sums */
    float scale;
    const float *lse, *g, *c; /* [heads]: p = e^(s scale - lse), dS = p (g dP - c) scale */
    const uint32_t *valid;    /* [strips] bit h: head h exists and has probabilities; else all results are 0 */
    float *x;  /* bf16, A of `add`: [rows, filled up / 32][2 strips][32][16], dS of all strips, then g p */
    float *ds; /* [strips][ld_ds]: dS as p of attn_mla_scores */
    int64_t ld_ds;
    float *sums; /* NULL, or [rows, filled up][16]: the first becomes the sum of p over the heads */
    float *s;    /* scratch: 4 * 32 * 32 + 16 * 32 */
};
/* Where sums go that are complete: bf16 rows of `heads` heads, times a factor of each; 0 where `valid` (a bit of each
 * in words of 32) is not set. */
struct attn_mla_out {
    char *base;
    int64_t heads, stride; /* bytes from head to head */
    const float *factor;
    const uint32_t *valid;
};
/* Rows of heads that become q of attn_mla_scores meanwhile. */
struct attn_mla_turn {
    const char *base; /* NULL: none */
    int64_t heads, stride, depth;
    float *to;
};
/* c[32 strips][columns] (+)= a zip, over rows in pairs; both go on with zeros to a multiple of 16 pairs. */
struct attn_mla_sum {
    int64_t strips, pairs, columns;
    const float *a; /* [strips][lda]: as p of attn_mla_scores */
    int64_t lda;
    const float *zip; /* [columns / 32][ldz]: as zip of attn_mla_copies */
    int64_t ldz;
    float *c;
    int64_t ldc;
    int accumulate;
    const struct attn_mla_out *out; /* NULL, or: instead of to c */
    struct attn_mla_rows next;      /* of which the first 32 are copied during the products, `depth` pairs of each */
    float *tiles;
    int64_t depth;
    struct attn_mla_turn turn;
    int even; /* both over all products, not during the first */
};
/* sums[key of the row][columns] += x panel: each row's sum over `depth` pairs is one chain, rows are added in order. */
struct attn_mla_add {
    int64_t from, to;            /* rows of x; the rest of the first and last 32 is read as well */
    int64_t column, end, narrow; /* blocks of 32 columns; those from `narrow` on have half the depth */
    int64_t depth;               /* a multiple of 32 */
    const float *x;              /* [rows / 32][depth / 16][32][16] */
    const float *panel;          /* [blocks][depth / 16][2][16][16 columns] */
    const int32_t *key;          /* of each row of x */
    float *sums;                 /* of key 0 */
    int64_t ld, ld_block;        /* from key to key, and from block to block */
    float *s;                    /* scratch: 32 * 32 */
};

struct attn_ukr_bf16 {
    /* Around all calls of a thread that work on one task after the other (NULL: nothing to do): the state that products
     * need is made and released. Not nested. */
    void (*begin)(void);
    void (*end)(void);
    int32_t rows, keys; /* of a strip and of a block of the forward's many rows; 0: by the register tile of gemm_f32 */
    /* As gemm_f32 of struct attn_ukr, A and B of pairs and k counting pairs. */
    void (*gemm)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                 int64_t ldb, float *c, int64_t ldc, int accumulate);
    /* For few rows, with B as it is in memory. dots: C[m,n] = A[m,k] B[n,k]^T, k counting pairs, rows of B any number
     * of elements apart. add_pv: C[m,n] += A[m,k] B[k,n] with A of pairs along k, k counting rows of B; if k is odd,
     * A's last pair may hold anything finite in its second half. */
    void (*dots)(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb, float *c,
                 int64_t ldc);
    void (*add_pv)(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                   float *c, int64_t ldc);
    /* Products, softmax and products at once; NULL where it does not pay. */
    void (*decode_tiles)(const struct attn_decode_amx *f);
    const struct attn_ukr_decode *decode; /* the same without tiles, or NULL */
    /* dst[j] = pair (even[j], odd[j]); NULL: zeros. Returns 0 if any value is NaN or infinite. */
    int (*zip)(float *dst, const uint16_t *even, const uint16_t *odd, int64_t n);
    /* A zip of rows of n values, n a multiple of 32, into a row of tiles: dst [n / 32][ld], 16 columns and, a tile
     * after them, 16 more; of any values. */
    void (*zip_blocks)(float *dst, int64_t ld, const uint16_t *even, const uint16_t *odd, int64_t n);
    /* 32 rows of n values, n a multiple of 32, rows ld values apart, as pairs of rows 16 apart in tiles: dst [n / 16]
     * [16][16]. Returns 0 if any value is NaN or infinite. */
    int (*zip_tiles)(float *dst, const uint16_t *rows, int64_t ld, int64_t n);
    /* Pairs of rows that follow each other, transposed: dst [n][16]. */
    int (*turn)(float *dst, const uint16_t *rows, int64_t ld, int64_t n);
    /* A zip of f16 rows, split exactly into high and low bf16 parts (nonfinite: 0). */
    int (*zip_split_f16)(float *high, float *low, const uint16_t *even, const uint16_t *odd, int64_t n);
    /* A row of f16 as bf16x2, every 32 of them `step` elements after the previous ones. Returns 0, with all parts 0, if
     * any value is NaN or infinite. */
    int (*split_f16)(uint16_t *high, uint16_t *low, const uint16_t *x, int64_t n, int64_t step);
    /* At least the largest sum of squares of n rows of bf16, `ld` apart, `width` elements (a multiple of 32), every 32
     * of them `step` elements after those before: the largest of each lane, added up. */
    float (*most_square)(const uint16_t *x, int64_t ld, int64_t n, int64_t width, int64_t step);
    /* The same for f32 as bf16x3, each part `apart` elements after the one before. */
    int (*zip_split_f32)(float *dst, int64_t apart, const float *even, const float *odd, int64_t n);
    int (*split_f32)(uint16_t *dst, int64_t apart, const float *x, int64_t n, int64_t step);
    /* 32 x 32 finite numbers of f32, rows ld apart, as an operand of bwd_tile_f32, ATTN_BWD_SPLIT elements: pairs along
     * rows or down columns. */
    void (*split_block)(float *dst, const float *x, int64_t ld, int down);
    /* 16 rows of n values, n a multiple of 32, as tiles: dst [n / 32][16][32]. */
    void (*stack)(uint16_t *dst, const uint16_t *rows, int64_t ld, int64_t n);
    /* A zip of f32 rows, rounded to nearest even after times factor. */
    void (*zip_f32)(float *dst, const float *even, const float *odd, int64_t n, float factor);
    /* 1 if no value is NaN or infinite. */
    int (*finite)(const uint16_t *x, int64_t n);
    /* p[j] = 2^((s[j] - max) * factor) rounded to bf16; returns the sum of what was not rounded (within 2e-7 relative
     * per element, 1 for s[j] = max). factor > 0. -inf gives exactly 0, a NaN a NaN. */
    float (*exp2)(uint16_t *p, const float *s, int64_t n, float factor, float max);
    /* The sum of p[0 .. n). */
    float (*total)(const uint16_t *p, int64_t n);
    /* The same numbers as exp2's in place, not rounded. */
    float (*exp2_f32)(float *s, int64_t n, float factor, float max);
    /* The same down columns, for two rows (odd NULL: one): dst[j] = pair of 2^((row[j] - max[j]) * factor), added
     * unrounded to sum[j], even before odd, and as rounded to sum_rounded[j]. */
    void (*exp_scores)(float *dst, const float *even, const float *odd, const float *max, float *sum,
                       float *sum_rounded, int64_t n, float factor);
    /* One or two (odd NULL: one) rows of the backward, n columns: P = 2^((s - max) * factor) and dS = P (dP - delta), 0
     * where P is 0; p_zip and ds_zip receive them as pairs of the two rows, ds of each row dS along it. */
    void (*bwd_rows)(float *p_zip, float *ds_zip, const struct attn_bwd_row *even, const struct attn_bwd_row *odd,
                     int64_t n, float factor);
    /* n strips of the online softmax, one after the other, of the same extents, layout and scratch, each with some
     * keys; NULL where it does not pay. Only lanes of a query depend on that query; a key that it does not see adds
     * exactly 0. */
    void (*fwd)(const struct attn_fwd_strip *f, int64_t n);
    void (*fwd_rowmajor)(const struct attn_fwd_strip *f, int64_t n); /* or NULL: with keys across the lanes */
    /* Returns 0, and nothing is written, if some row is empty, not finite or FAR. NULL where fwd and transposed are. */
    int (*finish)(const struct attn_fwd_finish *f);
    const struct attn_ukr_transposed *transposed; /* or NULL */
    /* Adds a tile to the sums of dq, dk and dv; NULL where it does not pay. The same bits as from gemm and grad. */
    void (*bwd_tile)(const struct attn_bwd_tile *t);
    /* The same for f32 as bf16x3. */
    void (*bwd_tile_f32)(const struct attn_bwd_tile *t);
    /* Sparse forward; backward and dist; sums over rows; dKV. NULL where they do not pay. */
    void (*mla_scores)(const struct attn_mla_scores *f);
    void (*mla_bwd_scores)(const struct attn_mla_bwd_scores *f);
    void (*mla_sum)(const struct attn_mla_sum *f);
    void (*mla_add)(const struct attn_mla_add *f);
    /* dst[j] = src[j] rounded to bf16; rows of 32 that follow each other, to rows ld apart. */
    void (*narrow)(uint16_t *dst, const float *src, int64_t n);
    void (*narrow_rows)(uint16_t *dst, int64_t ld, const float *src, int64_t rows);
};
extern const struct attn_ukr_bf16 attn_ukr_bf16_avx512bf16, attn_ukr_bf16_amx;

static inline void attn_ukr_bf16_begin(const struct attn_ukr_bf16 *bf16) {
    if (bf16 && bf16->begin) bf16->begin();
}
static inline void attn_ukr_bf16_end(const struct attn_ukr_bf16 *bf16) {
    if (bf16 && bf16->end) bf16->end();
}

/* The tiles of amx/gemm.c, the entries of attn_ukr_bf16_amx that are not those of attn_ukr_bf16_avx512bf16. */
void attn_ukr_amx_begin(void);
void attn_ukr_amx_end(void);
void attn_ukr_amx_gemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                       int64_t ldb, float *c, int64_t ldc, int accumulate);
void attn_ukr_amx_decode(const struct attn_decode_amx *f);
void attn_ukr_amx_fwd(const struct attn_fwd_strip *f, int64_t n);
void attn_ukr_amx_fwd_rowmajor(const struct attn_fwd_strip *f, int64_t n);
void attn_ukr_amx_fwd_rowmajor_score_mod(const struct attn_fwd_strip *f, int64_t n);
void attn_ukr_amx_bwd_tile(const struct attn_bwd_tile *t);
void attn_ukr_amx_bwd_tile_f32(const struct attn_bwd_tile *t);
void attn_ukr_amx_mla_scores(const struct attn_mla_scores *f);
void attn_ukr_amx_mla_bwd_scores(const struct attn_mla_bwd_scores *f);
void attn_ukr_amx_mla_sum(const struct attn_mla_sum *f);
void attn_ukr_amx_add(const struct attn_mla_add *f);
#endif
