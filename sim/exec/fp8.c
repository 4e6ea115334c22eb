/* SPDX-License-Identifier: MIT
 * cvt between pairs of small numbers (e4m3, e5m2, e2m3, e3m2, e2m1) and f32 or pairs of f16. To small ones: nearest
 * even, what is too large becomes the largest number (.satfinite, which PTX asks for), NaN is 7f in 8 bits and the
 * largest number in 4 and 6 (PTX ISA, cvt: "conversion to .e2m1x2, .e2m3x2, .e3m2x2"); .relu makes what is negative 0.
 * The first source of two is the upper half, of e2m1 the upper four bits of a byte. */
#include "exec/exec.h"
#include "exec/formats.h"

#include <math.h>

struct layout {
    int fraction, bias;
    float most;
    uint32_t sign, nan; /* the sign's bit; what NaN becomes */
};
static const struct layout e4m3 = {3, 7, 448, 0x80, 0x7f}, e5m2 = {2, 15, 57344, 0x80, 0x7f},
                           e2m3 = {3, 1, 7.5f, 0x20, 0x1f}, e3m2 = {2, 3, 28, 0x20, 0x1f}, e2m1 = {1, 1, 6, 8, 7};

static uint32_t to_small(float x, const struct layout *t) {
    const uint32_t sign = sim_bits_of(x) >> 31 ? t->sign : 0;
    float a = fabsf(x), scale;
    if (x != x) return t->nan;
    if (a > t->most) a = t->most;
    int exponent = a > 0 ? ilogbf(a) : -200;
    if (exponent < 1 - t->bias) exponent = 1 - t->bias; /* subnormal */
    scale = ldexpf(1, t->fraction - exponent);
    uint32_t whole = (uint32_t)nearbyintf(a * scale); /* with the leading 1, which carries into the exponent */
    return sign | (((uint32_t)(exponent + t->bias - 1) << t->fraction) + whole);
}
static inline float relu(float x) { return x > 0 ? x : x != x ? x : 0; }
static inline float low(uint32_t pair) { return sim_from_f16(pair & 0xffff); }
static inline float high(uint32_t pair) { return sim_from_f16(pair >> 16); }

#define BOTH(name)                                                                                                     \
    SIM_OP2(name##_f32, uint32_t, float, float, to_small(a, &name) << 8 | to_small(b, &name))                          \
    SIM_OP2(name##_f32_relu, uint32_t, float, float, to_small(relu(a), &name) << 8 | to_small(relu(b), &name))         \
    SIM_OP1(name##_f16, uint32_t, uint32_t, to_small(high(a), &name) << 8 | to_small(low(a), &name))                   \
    SIM_OP1(name##_f16_relu, uint32_t, uint32_t, to_small(relu(high(a)), &name) << 8 | to_small(relu(low(a)), &name))  \
    SIM_OP1(f16_##name, uint32_t, uint32_t,                                                                            \
            sim_to_f16(sim_from_##name(a >> 8 & 255)) << 16 | sim_to_f16(sim_from_##name(a & 255)))                    \
    SIM_OP1(f16_##name##_relu, uint32_t, uint32_t,                                                                     \
            sim_to_f16(relu(sim_from_##name(a >> 8 & 255))) << 16 | sim_to_f16(relu(sim_from_##name(a & 255))))
BOTH(e4m3)
BOTH(e5m2)

/* shift: of the upper number */
#define SMALL(name, e, f, shift)                                                                                       \
    SIM_OP2(name##_f32, uint32_t, float, float, to_small(a, &name) << (shift) | to_small(b, &name))                    \
    SIM_OP2(name##_f32_relu, uint32_t, float, float, to_small(relu(a), &name) << (shift) | to_small(relu(b), &name))   \
    SIM_OP1(f16_##name, uint32_t, uint32_t,                                                                            \
            sim_to_f16(sim_from_small(a >> (shift), e, f)) << 16 | sim_to_f16(sim_from_small(a, e, f)))                \
    SIM_OP1(f16_##name##_relu, uint32_t, uint32_t,                                                                     \
            sim_to_f16(relu(sim_from_small(a >> (shift), e, f))) << 16 | sim_to_f16(relu(sim_from_small(a, e, f))))
SMALL(e2m3, 2, 3, 8)
SMALL(e3m2, 3, 2, 8)
SMALL(e2m1, 2, 1, 4)

/* PTX ISA, cvt of .ue8m0x2: powers of two from 2^-127 on, 0xff is NaN. Of f32 by its size, to zero or upwards; what is
 * too large becomes 2^127 with .satfinite, else NaN. What the sign of a negative number does is not stated: nothing. */
static uint32_t to_power(float x, int up, int finite) {
    const uint32_t u = sim_bits_of(x) & 0x7fffffff, e = u >> 23, fraction = u & 0x7fffff;
    if (u > 0x7f800000) return 0xff;
    const uint32_t r = e + (uint32_t)(up && (e ? fraction > 0 : fraction > 0x400000));
    return r < 0xff ? r : finite ? 0xfe : 0xff;
}
static inline uint32_t power_bf16(uint32_t e) { return e == 0xff ? 0x7fff : e ? e << 7 : 0x40; }
#define POWERS(name, up, finite)                                                                                       \
    SIM_OP2(name##_f32, uint32_t, float, float, to_power(a, up, finite) << 8 | to_power(b, up, finite))                \
    SIM_OP1(name##_bf16, uint32_t, uint32_t,                                                                           \
            to_power(sim_from_bf16(a >> 16), up, finite) << 8 | to_power(sim_from_bf16(a & 0xffff), up, finite))
POWERS(down, 0, 0)
POWERS(down_finite, 0, 1)
POWERS(up, 1, 0)
POWERS(up_finite, 1, 1)
SIM_OP1(bf16_powers, uint32_t, uint32_t, power_bf16(a >> 8 & 255) << 16 | power_bf16(a & 255))
#define POWER_ROWS(words, name)                                                                                        \
    {"cvt." words ".ue8m0x2.f32", "Hww", name##_f32}, { "cvt." words ".ue8m0x2.bf16x2", "Hw", name##_bf16 }

#define ROWS(name)                                                                                                     \
    {"cvt.rn.satfinite." #name "x2.f32", "Hww", name##_f32},                                                           \
        {"cvt.rn.satfinite.relu." #name "x2.f32", "Hww", name##_f32_relu},                                             \
        {"cvt.rn.f16x2." #name "x2", "Wh", f16_##name}, {                                                              \
        "cvt.rn.relu.f16x2." #name "x2", "Wh", f16_##name##_relu                                                       \
    }
#define ROWS_OF_8(name)                                                                                                \
    ROWS(name), {"cvt.rn.satfinite." #name "x2.f16x2", "Hw", name##_f16}, {                                            \
        "cvt.rn.satfinite.relu." #name "x2.f16x2", "Hw", name##_f16_relu                                               \
    }
const struct sim_op sim_ops_fp8[] = {
    ROWS_OF_8(e4m3),
    ROWS_OF_8(e5m2),
    ROWS(e2m3),
    ROWS(e3m2),
    ROWS(e2m1),
    POWER_ROWS("rz", down),
    POWER_ROWS("rz.satfinite", down_finite),
    POWER_ROWS("rp", up),
    POWER_ROWS("rp.satfinite", up_finite),
    {"cvt.rn.bf16x2.ue8m0x2", "Wh", bf16_powers},
};
const uint32_t sim_n_ops_fp8 = sizeof sim_ops_fp8 / sizeof *sim_ops_fp8;
