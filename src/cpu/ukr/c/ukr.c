/* SPDX-License-Identifier: MIT
 * Microkernels for any processor: GNU vectors of 16 bytes, no intrinsics. */
#include "cpu/ukr/ukr.h"

#include "attn.h"

#include "base/num.h"
#include "cpu/vec/portable.h"

/* f16 to f32 without a subnormal f32 on the way: the caller may run with denormals flushed. */
static inline float widen_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) | 0x7f800000u;
    uint32_t small = attn_num_f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = magnitude < 0x400u ? small : magnitude < 0x7c00u ? normal : special;
    return attn_num_bits_f32(sign | bits);
}
static void widen(float *dst, const void *src, int32_t dtype, int64_t n, float factor) {
    const uint16_t *h = (const uint16_t *)src;
    const float *f = (const float *)src;
    switch (dtype) {
    case ATTN_F16:
        for (int64_t j = 0; j < n; j++) dst[j] = widen_f16(h[j]) * factor;
        break;
    case ATTN_BF16:
        for (int64_t j = 0; j < n; j++) dst[j] = attn_num_bf16_f32(h[j]);
        if (attn_num_is_one(factor)) break;
        for (int64_t j = 0; j < n; j++) dst[j] *= factor;
        break;
    case ATTN_E4M3: attn_num_widen_e4m3(dst, src, n, factor); break;
    default:
        if (attn_num_is_one(factor)) {
            memcpy(dst, src, (size_t)n * sizeof *dst);
            break;
        }
        for (int64_t j = 0; j < n; j++) dst[j] = f[j] * factor;
    }
}
static void narrow(void *dst, int32_t dtype, const float *src, int64_t n, float factor) {
    uint16_t *h = (uint16_t *)dst;
    float *f = (float *)dst;
    switch (dtype) {
    case ATTN_F16:
        for (int64_t j = 0; j < n; j++) h[j] = attn_num_f32_f16(src[j] * factor);
        break;
    case ATTN_BF16:
        for (int64_t j = 0; j < n; j++) h[j] = attn_num_f32_bf16(src[j] * factor);
        break;
    default:
        for (int64_t j = 0; j < n; j++) f[j] = src[j] * factor;
    }
}

/* Squares of 8, so that neither side walks a whole column at a time. */
#define TRANSPOSE(name, T)                                                                                             \
    static void name(T *dst, int64_t ld, const T *src, int64_t ld_src, int64_t rows, int64_t cols) {                   \
        for (int64_t r0 = 0; r0 < rows; r0 += 8) {                                                                     \
            int64_t r1 = rows - r0 < 8 ? rows : r0 + 8;                                                                \
            for (int64_t c = 0; c < cols; c++)                                                                         \
                for (int64_t r = r0; r < r1; r++) dst[c * ld + r] = src[r * ld_src + c];                               \
        }                                                                                                              \
    }
TRANSPOSE(transpose_f32, float)
TRANSPOSE(transpose_f64, double)

#define ISA           "c"
#define TABLE         attn_ukr_c
#define MR            6
#define SKINNY        4
#define WIDE          6
#define NT_ROWS       1
#define PREFETCH_ROWS 8
#include "cpu/ukr/ukr_tpl.h"
