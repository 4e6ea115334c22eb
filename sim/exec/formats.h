/* SPDX-License-Identifier: MIT
 * Number formats of the device as bits: f16, bf16, tf32, fp8. Written without branches where loops over lanes use them.
 */
#ifndef SIM_FORMATS_H
#define SIM_FORMATS_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float sim_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t sim_bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline float sim_from_bf16(uint32_t h) { return sim_float(h << 16); }
static inline uint32_t sim_to_bf16(float x) { /* nearest even; NaN is 7fff */
    uint32_t u = sim_bits_of(x), r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : r;
}
static inline float sim_from_f16(uint32_t h) {
    uint32_t sign = (h & 0x8000) << 16, body = (h & 0x7fff) << 13;
    /* moving the exponent by 112 as a product also makes subnormals right; infinities and NaN keep theirs */
    float scaled = sim_float(body) * sim_float(UINT32_C(239) << 23); /* 2^112 */
    uint32_t special = body | 0x7f800000;
    return sim_float(sign | ((h & 0x7c00) == 0x7c00 ? special : sim_bits_of(scaled)));
}
static inline uint32_t sim_to_f16(float x) { /* nearest even; NaN is 7fff */
    uint32_t u = sim_bits_of(x), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    uint32_t normal = (a + 0xfff + ((a >> 13) & 1) - (UINT32_C(112) << 23)) >> 13;
    /* below 2^-14: adding 0.5 puts the rounding at 2^-24 */
    uint32_t small = sim_bits_of(sim_float(a) + 0.5f) - sim_bits_of(0.5f);
    uint32_t h = a < (UINT32_C(113) << 23) ? small : a >= 0x477ff000 ? 0x7c00 : normal;
    return a > 0x7f800000 ? 0x7fff : sign | h;
}
/* f64 -> 16 bits through f32 rounded to odd, so that the second rounding sees whether the first was exact. */
static inline float sim_odd(double x) {
    float f = (float)x;
    uint32_t u = sim_bits_of(f);
    double size = x < 0 ? -x : x, got = f < 0 ? -(double)f : (double)f;
    return got != size && f == f && !(u & 1) ? sim_float(got < size ? u | 1 : u - 1) : f;
}
/* To 10 fraction bits, ties away from zero, as cvt.rna does. */
static inline uint32_t sim_to_tf32(float x) {
    uint32_t u = sim_bits_of(x);
    return ((u & 0x7f800000) == 0x7f800000 ? u : u + 0x1000) & 0xffffe000;
}
static inline float sim_from_tf32(uint32_t u) { return sim_float(u & 0xffffe000); }
static inline float sim_flush(float x) { /* .ftz */
    uint32_t u = sim_bits_of(x);
    return (u & 0x7f800000) ? x : sim_float(u & 0x80000000);
}
static inline float sim_from_e4m3(uint32_t b) {
    uint32_t sign = (b & 0x80) << 24, body = (b & 0x7f) << 20;
    if ((b & 0x7f) == 0x7f) return sim_float(sign | 0x7fc00000);
    return sim_float(sign | sim_bits_of(sim_float(body) * sim_float(UINT32_C(247) << 23))); /* 2^120 */
}
static inline float sim_from_e5m2(uint32_t b) { return sim_from_f16((b & 0xff) << 8); }
/* A small number without infinities and NaN: sign, exponent of `e` bits, fraction of `f`. */
static inline float sim_from_small(uint32_t bits, uint32_t e, uint32_t f) {
    uint32_t exponent = bits >> f & ((1u << e) - 1), fraction = bits & ((1u << f) - 1);
    int bias = (1 << (e - 1)) - 1;
    float x = exponent ? ldexpf((float)(fraction | 1u << f), (int)exponent - bias - (int)f)
                       : ldexpf((float)fraction, 1 - bias - (int)f);
    return bits >> (e + f) & 1 ? -x : x;
}
#endif
