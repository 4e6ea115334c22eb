/* SPDX-License-Identifier: MIT
 * Up to ATTN_DECODE_ROWS rows of queries against keys in one pass over them, in steps of ATTN_DECODE_KEYS: decode
 * without tiles. Keys and values are read from where they are, each from an address of its own, so that pages, rims and
 * rows of zeros are all the same to it. */
#ifndef ATTN_CPU_UKR_DECODE_H
#define ATTN_CPU_UKR_DECODE_H
#include <stdint.h>

enum { ATTN_DECODE_ROWS = 8, ATTN_DECODE_KEYS = 16, ATTN_DECODE_ROUNDED = 8 };
#define ATTN_DECODE_FAR 16.f /* the largest exponent of a probability */

struct attn_decode {
    int64_t rows, depth, width;
    int64_t keys;   /* KEYS; f32: or fewer, rounded up to 4, where the step has no others */
    const float *q; /* numbers, or pairs of bf16 along D; rows ldq apart */
    int64_t ldq;
    float factor;     /* > 0: probabilities are 2^((s - m) * factor), of pairs rounded to bf16 for their product */
    float *m, *l, *o; /* read and written: [rows] the running max (-inf: none seen); [rows][KEYS] sums of
                       * unrounded probabilities; sums of values, rows ldo apart, `width` rounded up to 16 columns of
                       * them. If l or a value of o is not finite, the row must be done otherwise. */
    int64_t ldo;
    float *l_rounded; /* of pairs, as l: [rows][ROUNDED] sums of P as rounded to bf16 for the product P V */
};
struct attn_ukr_decode {
    /* f32, else NULL. s[rows][KEYS] becomes the lesser of s and the KEYS numbers at most[i]; m, unless NULL, receives
     * each row's largest. A NaN becomes most's number. */
    void (*clip)(int64_t rows, const float *const *most, float *s, float *m);
    /* s[rows][KEYS] = products of all rows with KEYS rows of keys */
    void (*scores)(const struct attn_decode *f, const void *const *k, const void *const *next, float *s);
    /* s, -inf where a row does not see a key, becomes probabilities, and these are multiplied with the values. */
    void (*add_pv)(const struct attn_decode *f, const void *const *v, const void *const *next, const float *s);
};
extern const struct attn_ukr_decode attn_ukr_decode_f32_avx512, attn_ukr_decode_f16_avx512, attn_ukr_decode_bf16_avx512,
    attn_ukr_decode_f32_avx2, attn_ukr_decode_f16_avx2, attn_ukr_decode_bf16_avx2, attn_ukr_decode_avx512bf16;
#endif
