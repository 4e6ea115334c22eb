/* SPDX-License-Identifier: MIT
 * f16, bf16 and e4m3 conversions by integer arithmetic: right in every floating-point mode (flush-to-zero too) and
 * rounding once, to nearest even. A double that went through f32 first would round twice. Formats: IEEE 754-2008, 3.6;
 * OCP FP8, 2023. */
#include "base/num.h"

#include <math.h>

float attn_num_f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31) return attn_num_bits_f32(sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0)); /* NaN becomes quiet */
    if (e) return attn_num_bits_f32(sign | (e + 112) << 23 | m << 13);
    float magnitude = (float)m * 0x1p-24f; /* subnormal in f16, normal in f32 */
    return attn_num_bits_f32(sign | attn_num_f32_bits(magnitude));
}

/* Round `significand` (leading bit at `top`) * 2^(exponent - top) to a format with `bits` stored bits and bias `bias`.
 */
static uint32_t round_to(uint64_t significand, int top, int exponent, int bits, int bias) {
    int drop = top - bits;
    int e = exponent + bias;
    if (e > 2 * bias) return (uint32_t)(2 * bias + 1) << bits;
    if (e < 1) { /* subnormal: the exponent stays at its least value and the significand moves right */
        drop += 1 - e;
        e = 1;
        if (drop > top + 1) return 0; /* below half of the least subnormal */
    }
    uint64_t kept = significand >> drop, rest = significand & ((UINT64_C(1) << drop) - 1),
             half = UINT64_C(1) << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* kept has its leading bit at `bits` if normal: adding it to exponent e-1 sets exponent e, and a carry out of the
     * significand moves on to the next exponent, infinity included. */
    return (uint32_t)(((uint64_t)(e - 1) << bits) + kept);
}

static uint32_t narrow(double d, int bits, int bias) {
    uint64_t u;
    memcpy(&u, &d, 8);
    int e = (int)(u >> 52 & 0x7ff);
    uint64_t m = u & 0xfffffffffffff;
    uint32_t sign = (uint32_t)(u >> 63) << 15, exponent_mask = (uint32_t)(2 * bias + 1) << bits;
    if (e == 0x7ff) {
        if (!m) return sign | exponent_mask;
        return sign | exponent_mask | 1u << (bits - 1) | (uint32_t)(m >> (52 - bits)); /* quiet, leading payload kept */
    }
    if (e == 0) return sign; /* zero, or a subnormal double: far below every f16 and bf16 */
    return sign | round_to(m | UINT64_C(1) << 52, 52, e - 1023, bits, bias);
}

uint16_t attn_num_f64_f16(double d) { return (uint16_t)narrow(d, 10, 15); }
uint16_t attn_num_f64_bf16(double d) { return (uint16_t)narrow(d, 7, 127); }

uint16_t attn_num_f32_f16(float f) {
    uint32_t u = attn_num_f32_bits(f), m = u & 0x7fffff, sign = u >> 16 & 0x8000;
    int e = (int)(u >> 23 & 0xff);
    if (e == 0xff) return (uint16_t)(sign | 0x7c00 | (m ? 0x200 | m >> 13 : 0));
    if (e == 0) return (uint16_t)sign; /* subnormal f32 are below half of 2^-24 */
    return (uint16_t)(sign | round_to(m | 0x800000, 23, e - 127, 10, 15));
}

/* Eight magnitudes of one exponent (bias 7): 1, 1.125 .. 1.875 times `unit`; both signs. */
#define EIGHT(sign, unit)                                                                                              \
    sign 1.0f * (unit), sign 1.125f * (unit), sign 1.25f * (unit), sign 1.375f * (unit), sign 1.5f * (unit),           \
        sign 1.625f * (unit), sign 1.75f * (unit)
#define BOTH(sign)                                                                                                     \
    sign 0.0f, sign 0x1p-9f, sign 0x2p-9f, sign 0x3p-9f, sign 0x4p-9f, sign 0x5p-9f, sign 0x6p-9f, sign 0x7p-9f,       \
        ALL(sign, 0x1p-6f), ALL(sign, 0x1p-5f), ALL(sign, 0x1p-4f), ALL(sign, 0x1p-3f), ALL(sign, 0x1p-2f),            \
        ALL(sign, 0x1p-1f), ALL(sign, 1.0f), ALL(sign, 2.0f), ALL(sign, 4.0f), ALL(sign, 8.0f), ALL(sign, 16.0f),      \
        ALL(sign, 32.0f), ALL(sign, 64.0f), ALL(sign, 128.0f), EIGHT(sign, 256.0f), sign NAN
#define ALL(sign, unit) EIGHT(sign, unit), sign 1.875f * (unit)
const float attn_num_e4m3[256] = {BOTH(+), BOTH(-)};

uint8_t attn_num_f64_e4m3(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    const int e = (int)(u >> 52 & 0x7ff);
    const uint32_t sign = (uint32_t)(u >> 63) << 7;
    if (e == 0x7ff) return (uint8_t)(sign | 0x7f);
    if (e == 0) return (uint8_t)sign; /* a subnormal double is far below 2^-10 */
    if (e - 1023 > 8) return (uint8_t)(sign | 0x7f);
    const int top = e - 1023 == 8; /* the exponent that IEEE formats keep for infinity: rounded as the one below */
    const uint32_t rounded =
        round_to((u & 0xfffffffffffff) | UINT64_C(1) << 52, 52, e - 1023 - top, 3, 7) + 8u * (uint32_t)top;
    return (uint8_t)(sign | (rounded < 0x7f ? rounded : 0x7f));
}

double attn_num_load(const void *p, int32_t dtype, int64_t i) {
    switch (dtype) {
    case ATTN_E4M3: return attn_num_e4m3[((const uint8_t *)p)[i]];
    case ATTN_F32: return ((const float *)p)[i];
    case ATTN_F16: return attn_num_f16_f32(((const uint16_t *)p)[i]);
    case ATTN_BF16: return attn_num_bf16_f32(((const uint16_t *)p)[i]);
    case ATTN_I32: return ((const int32_t *)p)[i];
    default: return ((const double *)p)[i];
    }
}

void attn_num_store(void *p, int32_t dtype, int64_t i, double value) {
    switch (dtype) {
    case ATTN_F32: ((float *)p)[i] = (float)value; break;
    case ATTN_F16: ((uint16_t *)p)[i] = attn_num_f64_f16(value); break;
    case ATTN_BF16: ((uint16_t *)p)[i] = attn_num_f64_bf16(value); break;
    case ATTN_E4M3: ((uint8_t *)p)[i] = attn_num_f64_e4m3(value); break;
    default: ((double *)p)[i] = value; break;
    }
}
