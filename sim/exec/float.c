/* SPDX-License-Identifier: MIT
 * f32 and f64 arithmetic in the default rounding, and the approximate functions. Other roundings: round.c.
 *
 * Approximations: the machine's ex2, lg2, rcp, rsqrt, sin, cos, tanh have errors of a few ulp that are documented but
 * not specified bit by bit; here they are at least as good as documented. */
#include "exec/exec.h"
#include "exec/formats.h"

#include <math.h>

#define FLUSH(x) sim_flush(x)
#define FLOAT2(name, expression)                                                                                       \
    SIM_OP2(name, float, float, float, expression)                                                                     \
    SIM_HEAD(name##_ftz) {                                                                                             \
        float *out = F32(in->o[0]);                                                                                    \
        const float *pa = F32(in->o[1]), *pb = F32(in->o[2]);                                                          \
        SIM_LOOP(float a = FLUSH(pa[l]); float b = FLUSH(pb[l]); out[l] = FLUSH(expression))                           \
    }
FLOAT2(add_f32, a + b)
FLOAT2(sub_f32, a - b)
FLOAT2(mul_f32, a *b)
FLOAT2(div_f32, a / b)
#define FLOAT3(name, expression)                                                                                       \
    SIM_OP3(name, float, float, float, float, expression)                                                              \
    SIM_HEAD(name##_ftz) {                                                                                             \
        float *out = F32(in->o[0]);                                                                                    \
        const float *pa = F32(in->o[1]), *pb = F32(in->o[2]), *pc = F32(in->o[3]);                                     \
        SIM_LOOP(float a = FLUSH(pa[l]); float b = FLUSH(pb[l]); float c = FLUSH(pc[l]); out[l] = FLUSH(expression))   \
    }
FLOAT3(fma_f32, __builtin_fmaf(a, b, c))

/* The number wins over a NaN; -0 is below +0. */
static inline float least(float a, float b) {
    uint32_t both = sim_bits_of(a) | sim_bits_of(b);
    return a < b || b != b ? a : a == b ? sim_float(both) : b;
}
static inline float largest(float a, float b) {
    uint32_t both = sim_bits_of(a) & sim_bits_of(b);
    return a > b || b != b ? a : a == b ? sim_float(both) : b;
}
FLOAT2(min_f32, least(a, b))
FLOAT2(max_f32, largest(a, b))
FLOAT2(min_nan_f32, a != a || b != b ? sim_float(0x7fffffff) : least(a, b))
FLOAT2(max_nan_f32, a != a || b != b ? sim_float(0x7fffffff) : largest(a, b))
/* Of three (PTX ISA: min, max of f32): the same of two, twice; .abs takes their sizes. */
FLOAT3(min3_f32, least(least(a, b), c))
FLOAT3(max3_f32, largest(largest(a, b), c))
FLOAT3(min3_abs_f32, least(least(fabsf(a), fabsf(b)), fabsf(c)))
FLOAT3(max3_abs_f32, largest(largest(fabsf(a), fabsf(b)), fabsf(c)))
#define ANY_NAN (a != a || b != b || c != c)
FLOAT3(min3_nan_f32, ANY_NAN ? sim_float(0x7fffffff) : least(least(a, b), c))
FLOAT3(max3_nan_f32, ANY_NAN ? sim_float(0x7fffffff) : largest(largest(a, b), c))
FLOAT3(min3_nan_abs_f32, ANY_NAN ? sim_float(0x7fffffff) : least(least(fabsf(a), fabsf(b)), fabsf(c)))
FLOAT3(max3_nan_abs_f32, ANY_NAN ? sim_float(0x7fffffff) : largest(largest(fabsf(a), fabsf(b)), fabsf(c)))
SIM_OP1(neg_f32, uint32_t, uint32_t, a ^ 0x80000000)
SIM_OP1(abs_f32, uint32_t, uint32_t, a & 0x7fffffff)
SIM_OP1(neg_ftz_f32, float, float, -FLUSH(a))
SIM_OP1(abs_ftz_f32, float, float, fabsf(FLUSH(a)))
SIM_OP2(copysign_f32, uint32_t, uint32_t, uint32_t, (a & 0x80000000) | (b & 0x7fffffff))

/* 2^x: x = n + f with |f| <= 1/2, a polynomial of degree 7 in f ln 2 (error below 2^-27), then the exponent in two
 * steps so that subnormal results are right. */
static inline float power2(float x) {
    float clamped = x < -160 ? -160 : x > 130 ? 130 : x;
    float shifted = clamped + 12582912.0f, n = shifted - 12582912.0f, f = (clamped - n) * 0.693147180559945f;
    float p = 1.0f / 5040;
    p = __builtin_fmaf(p, f, 1.0f / 720);
    p = __builtin_fmaf(p, f, 1.0f / 120);
    p = __builtin_fmaf(p, f, 1.0f / 24);
    p = __builtin_fmaf(p, f, 1.0f / 6);
    p = __builtin_fmaf(p, f, 0.5f);
    p = __builtin_fmaf(p, f, 1.0f);
    p = __builtin_fmaf(p, f, 1.0f);
    int32_t i = (int32_t)n, half = i / 2;
    float r = p * sim_float((uint32_t)(half + 127) << 23) * sim_float((uint32_t)(i - half + 127) << 23);
    return x != x ? sim_float(0x7fffffff) : r;
}
SIM_OP1(ex2_f32, float, float, power2(a))
SIM_OP1(ex2_ftz_f32, float, float, FLUSH(power2(FLUSH(a))))
#define FUNCTION(name, expression)                                                                                     \
    SIM_OP1(name, float, float, expression)                                                                            \
    SIM_HEAD(name##_ftz) {                                                                                             \
        float *out = F32(in->o[0]);                                                                                    \
        const float *pa = F32(in->o[1]);                                                                               \
        SIM_LOOP(float a = FLUSH(pa[l]); out[l] = FLUSH(expression))                                                   \
    }
FUNCTION(lg2_f32, log2f(a))
FUNCTION(rcp_f32, 1.0f / a)
FUNCTION(rsqrt_f32, (float)(1.0 / sqrt((double)a)))
FUNCTION(sqrt_f32, sqrtf(a))
FUNCTION(sin_f32, sinf(a))
FUNCTION(cos_f32, cosf(a))
SIM_OP1(tanh_f32, float, float, tanhf(a))

/* two f32 in one 64-bit register */
#define PAIR(name, n_sources, expression)                                                                              \
    SIM_HEAD(name) {                                                                                                   \
        float *out = F32(in->o[0]);                                                                                    \
        const float *pa = F32(in->o[1]), *pb = F32(in->o[2]), *pc = F32(in->o[(n_sources) == 3 ? 3 : 1]);              \
        for (uint32_t i = 0; i < 2 * SIM_LANES; i++) {                                                                 \
            float a = pa[i], b = pb[i], c = pc[i];                                                                     \
            (void)c;                                                                                                   \
            if (m >> (i / 2) & 1) out[i] = expression;                                                                 \
        }                                                                                                              \
        return SIM_NEXT;                                                                                               \
    }
PAIR(add_f32x2, 2, a + b)
PAIR(mul_f32x2, 2, a *b)
PAIR(fma_f32x2, 3, __builtin_fmaf(a, b, c))

SIM_OP2(add_f64, double, double, double, a + b)
SIM_OP2(sub_f64, double, double, double, a - b)
SIM_OP2(mul_f64, double, double, double, a *b)
SIM_OP2(div_f64, double, double, double, a / b)
SIM_OP3(fma_f64, double, double, double, double, __builtin_fma(a, b, c))
SIM_OP2(min_f64, double, double, double, fmin(a, b))
SIM_OP2(max_f64, double, double, double, fmax(a, b))
SIM_OP1(neg_f64, double, double, -a)
SIM_OP1(abs_f64, double, double, fabs(a))
SIM_OP1(rcp_f64, double, double, 1.0 / a)
SIM_OP1(sqrt_f64, double, double, sqrt(a))
SIM_OP1(rsqrt_f64, double, double, 1.0 / sqrt(a))
SIM_OP2(copysign_f64, double, double, double, copysign(b, a))
/* The approximations of f64 keep the upper 32 bits only. */
static inline double upper(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    u &= UINT64_C(0xffffffff00000000);
    memcpy(&x, &u, 8);
    return x;
}
SIM_OP1(rcp_approx_f64, double, double, upper(1.0 / a))
SIM_OP1(rsqrt_approx_f64, double, double, upper(1.0 / sqrt(a)))

#define BOTH(op, mode, operands, handler)                                                                              \
    {op mode ".f32", operands, handler}, { op mode ".ftz.f32", operands, handler##_ftz }
const struct sim_op sim_ops_float[] = {
    BOTH("add", "", "Www", add_f32),
    BOTH("add", ".rn", "Www", add_f32),
    BOTH("sub", "", "Www", sub_f32),
    BOTH("sub", ".rn", "Www", sub_f32),
    BOTH("mul", "", "Www", mul_f32),
    BOTH("mul", ".rn", "Www", mul_f32),
    BOTH("fma", ".rn", "Wwww", fma_f32),
    BOTH("mad", ".rn", "Wwww", fma_f32),
    BOTH("div", ".rn", "Www", div_f32),
    BOTH("div", ".full", "Www", div_f32),
    BOTH("div", ".approx", "Www", div_f32),
    BOTH("min", "", "Www", min_f32),
    BOTH("max", "", "Www", max_f32),
    {"min.NaN.f32", "Www", min_nan_f32},
    {"max.NaN.f32", "Www", max_nan_f32},
    {"min.ftz.NaN.f32", "Www", min_nan_f32_ftz},
    {"max.ftz.NaN.f32", "Www", max_nan_f32_ftz},
#define OF_THREE(op, name)                                                                                             \
    {op ".f32", "Wwww", name##3_f32}, {op ".ftz.f32", "Wwww", name##3_f32_ftz},                                        \
        {op ".NaN.f32", "Wwww", name##3_nan_f32}, {op ".ftz.NaN.f32", "Wwww", name##3_nan_f32_ftz},                    \
        {op ".abs.f32", "Wwww", name##3_abs_f32}, {op ".ftz.abs.f32", "Wwww", name##3_abs_f32_ftz},                    \
        {op ".NaN.abs.f32", "Wwww", name##3_nan_abs_f32}, {                                                            \
        op ".ftz.NaN.abs.f32", "Wwww", name##3_nan_abs_f32_ftz                                                         \
    }
    OF_THREE("min", min),
    OF_THREE("max", max),
    {"neg.f32", "Ww", neg_f32},
    {"abs.f32", "Ww", abs_f32},
    {"neg.ftz.f32", "Ww", neg_ftz_f32},
    {"abs.ftz.f32", "Ww", abs_ftz_f32},
    {"copysign.f32", "Www", copysign_f32},
    {"ex2.approx.f32", "Ww", ex2_f32},
    {"ex2.approx.ftz.f32", "Ww", ex2_ftz_f32},
    BOTH("lg2", ".approx", "Ww", lg2_f32),
    BOTH("rcp", ".approx", "Ww", rcp_f32),
    BOTH("rcp", ".rn", "Ww", rcp_f32),
    BOTH("rsqrt", ".approx", "Ww", rsqrt_f32),
    BOTH("sqrt", ".approx", "Ww", sqrt_f32),
    BOTH("sqrt", ".rn", "Ww", sqrt_f32),
    BOTH("sin", ".approx", "Ww", sin_f32),
    BOTH("cos", ".approx", "Ww", cos_f32),
    {"tanh.approx.f32", "Ww", tanh_f32},
    {"add.rn.f32x2", "Ddd", add_f32x2},
    {"mul.rn.f32x2", "Ddd", mul_f32x2},
    {"fma.rn.f32x2", "Dddd", fma_f32x2},
    {"add.f32x2", "Ddd", add_f32x2},
    {"mul.f32x2", "Ddd", mul_f32x2},
};
const uint32_t sim_n_ops_float = sizeof sim_ops_float / sizeof *sim_ops_float;

const struct sim_op sim_ops_double[] = {
    {"add.f64", "Ddd", add_f64},
    {"add.rn.f64", "Ddd", add_f64},
    {"sub.f64", "Ddd", sub_f64},
    {"sub.rn.f64", "Ddd", sub_f64},
    {"mul.f64", "Ddd", mul_f64},
    {"mul.rn.f64", "Ddd", mul_f64},
    {"div.rn.f64", "Ddd", div_f64},
    {"fma.rn.f64", "Dddd", fma_f64},
    {"mad.rn.f64", "Dddd", fma_f64},
    {"min.f64", "Ddd", min_f64},
    {"max.f64", "Ddd", max_f64},
    {"neg.f64", "Dd", neg_f64},
    {"abs.f64", "Dd", abs_f64},
    {"rcp.rn.f64", "Dd", rcp_f64},
    {"sqrt.rn.f64", "Dd", sqrt_f64},
    {"rsqrt.approx.f64", "Dd", rsqrt_f64},
    {"copysign.f64", "Ddd", copysign_f64},
    {"rcp.approx.ftz.f64", "Dd", rcp_approx_f64},
    {"rsqrt.approx.ftz.f64", "Dd", rsqrt_approx_f64},
};
const uint32_t sim_n_ops_double = sizeof sim_ops_double / sizeof *sim_ops_double;
