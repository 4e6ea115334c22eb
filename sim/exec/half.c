/* SPDX-License-Identifier: MIT
 * Arithmetic in f16 and bf16, single and in pairs: computed in f32 and rounded once. A product of two 11-bit numbers is
 * exact in f32; sums and fused products are formed in f64 first, which makes the one rounding right. */
#include "exec/exec.h"
#include "exec/formats.h"

#include <math.h>

static inline float least(float a, float b) { return a < b || b != b ? a : b; }
static inline float largest(float a, float b) { return a > b || b != b ? a : b; }

#define ONE(T, name, expression)                                                                                       \
    static inline uint32_t name##_##T(uint32_t x, uint32_t y, uint32_t z) {                                            \
        double a = (double)sim_from_##T(x & 0xffff), b = (double)sim_from_##T(y & 0xffff),                             \
               c = (double)sim_from_##T(z & 0xffff);                                                                   \
        (void)a, (void)b, (void)c;                                                                                     \
        return sim_to_##T(sim_odd(expression));                                                                        \
    }
#define HANDLERS(T, name)                                                                                              \
    SIM_HEAD(exec_##name##_##T) {                                                                                      \
        uint32_t *out = W32(in->o[0]);                                                                                 \
        const uint32_t *a = W32(in->o[1]), *b = W32(in->o[2]), *c = W32(in->o[3]);                                     \
        EACH_OF(m) out[l] = name##_##T(a[l], b[l], c[l]);                                                              \
        return SIM_NEXT;                                                                                               \
    }                                                                                                                  \
    SIM_HEAD(exec_##name##_##T##x2) {                                                                                  \
        uint32_t *out = W32(in->o[0]);                                                                                 \
        const uint32_t *a = W32(in->o[1]), *b = W32(in->o[2]), *c = W32(in->o[3]);                                     \
        EACH_OF(m)                                                                                                     \
        out[l] = name##_##T(a[l], b[l], c[l]) | name##_##T(a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16;                  \
        return SIM_NEXT;                                                                                               \
    }
#define ALL(name, expression)                                                                                          \
    ONE(f16, name, expression)                                                                                         \
    ONE(bf16, name, expression)                                                                                        \
    HANDLERS(f16, name)                                                                                                \
    HANDLERS(bf16, name)
ALL(add, a + b)
ALL(sub, a - b)
ALL(mul, a *b)
ALL(fma, fma(a, b, c))
ALL(relu_fma, fmax(fma(a, b, c), 0))
ALL(min, (double)least((float)a, (float)b))
ALL(max, (double)largest((float)a, (float)b))
ALL(most, a != a || b != b ? (double)NAN : copysign(fmax(fabs(a), fabs(b)), signbit(a) == signbit(b) ? 1 : -1))
ALL(ex2, exp2(a))
ALL(tanh, tanh(a))
SIM_OP1(neg_16, uint32_t, uint32_t, a ^ 0x8000)
SIM_OP1(neg_16x2, uint32_t, uint32_t, a ^ 0x80008000)
SIM_OP1(abs_16, uint32_t, uint32_t, a & 0x7fff)
SIM_OP1(abs_16x2, uint32_t, uint32_t, a & 0x7fff7fff)

#define ROWS(op, name, n, pairs)                                                                                       \
    {op ".f16", n, exec_##name##_f16}, {op ".f16x2", pairs, exec_##name##_f16x2}, {op ".bf16", n, exec_##name##_bf16}, \
    {                                                                                                                  \
        op ".bf16x2", pairs, exec_##name##_bf16x2                                                                      \
    }
const struct sim_op sim_ops_half[] = {
    ROWS("add", add, "Hhh", "Www"),
    ROWS("add.rn", add, "Hhh", "Www"),
    ROWS("sub", sub, "Hhh", "Www"),
    ROWS("sub.rn", sub, "Hhh", "Www"),
    ROWS("mul", mul, "Hhh", "Www"),
    ROWS("mul.rn", mul, "Hhh", "Www"),
    ROWS("fma.rn", fma, "Hhhh", "Wwww"),
    ROWS("fma.rn.relu", relu_fma, "Hhhh", "Wwww"),
    ROWS("min", min, "Hhh", "Www"),
    ROWS("max", max, "Hhh", "Www"),
    ROWS("max.NaN.xorsign.abs", most, "Hhh", "Www"),
    ROWS("ex2.approx", ex2, "Hh", "Ww"),
    ROWS("tanh.approx", tanh, "Hh", "Ww"),
    {"ex2.approx.ftz.bf16", "Hh", exec_ex2_bf16},
    {"ex2.approx.ftz.bf16x2", "Ww", exec_ex2_bf16x2},
    {"neg.f16", "Hh", neg_16},
    {"neg.bf16", "Hh", neg_16},
    {"neg.f16x2", "Ww", neg_16x2},
    {"neg.bf16x2", "Ww", neg_16x2},
    {"abs.f16", "Hh", abs_16},
    {"abs.bf16", "Hh", abs_16},
    {"abs.f16x2", "Ww", abs_16x2},
    {"abs.bf16x2", "Ww", abs_16x2},
};
const uint32_t sim_n_ops_half = sizeof sim_ops_half / sizeof *sim_ops_half;
