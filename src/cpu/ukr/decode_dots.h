/* SPDX-License-Identifier: MIT
 * Another way to the products of few rows on pairs: see avx512/decode_dots.c and attn_ukr_bf16.dots and .add_pv. */
#ifndef ATTN_CPU_UKR_DECODE_DOTS_H
#define ATTN_CPU_UKR_DECODE_DOTS_H
#include <stdint.h>
void attn_ukr_decode_dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                          float *c, int64_t ldc);
void attn_ukr_decode_pv(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const uint16_t *b, int64_t ldb,
                        float *c, int64_t ldc);
#endif
