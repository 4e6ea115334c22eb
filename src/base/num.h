/* SPDX-License-Identifier: MIT
 * Numbers: f16, bf16 and e4m3 to and from f32/f64 (round to nearest even). */
#ifndef ATTN_BASE_NUM_H
#define ATTN_BASE_NUM_H
#include "attn.h"
#include <string.h>

static inline float attn_num_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t attn_num_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
/* A product by 1 is no copy where the processor flushes subnormal numbers. */
static inline int attn_num_is_one(float f) { return f >= 1 && f <= 1; }
static inline float attn_num_bf16_f32(uint16_t h) { return attn_num_bits_f32((uint32_t)h << 16); }
static inline uint16_t attn_num_f32_bf16(float f) {
    uint32_t u = attn_num_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* NaN stays NaN, quiet */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float attn_num_f16_f32(uint16_t h);
uint16_t attn_num_f32_f16(float f);
uint16_t attn_num_f64_f16(double d); /* one rounding, not two */
uint16_t attn_num_f64_bf16(double d);

/* e4m3fn: no infinity; what rounds beyond 448 and what is infinite becomes NaN. */
extern const float attn_num_e4m3[256];
uint8_t attn_num_f64_e4m3(double d);
static inline void attn_num_widen_e4m3(float *dst, const void *src, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++) dst[i] = attn_num_e4m3[((const uint8_t *)src)[i]] * factor;
}

/* Element i of an array of a floating dtype (F32 F16 BF16 F64 E4M3) as double, and back (rounded once). */
double attn_num_load(const void *p, int32_t dtype, int64_t i);
void attn_num_store(void *p, int32_t dtype, int64_t i, double value);
#endif
