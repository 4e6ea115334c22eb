/* SPDX-License-Identifier: MIT
 * Integer arithmetic. 16-bit values live in the low half of a 32-bit place whose upper half is zero. */
#include "exec/exec.h"

/* A 16-bit result is cut to its bits; s16 operands are taken from the low half. */
#define S16(x) ((int32_t)(int16_t)(x))
#define INT2(op, expression)                                                                                           \
    SIM_OP2(op##_u16, uint32_t, uint32_t, uint32_t, (expression)&0xffff)                                               \
    SIM_OP2(op##_u32, uint32_t, uint32_t, uint32_t, expression)                                                        \
    SIM_OP2(op##_u64, uint64_t, uint64_t, uint64_t, expression)
INT2(add, a + b)
INT2(sub, a - b)
INT2(mul, a *b)
#define INT2_SIGNED(op, expression)                                                                                    \
    SIM_OP2(op##_s32, int32_t, int32_t, int32_t, expression)                                                           \
    SIM_OP2(op##_s64, int64_t, int64_t, int64_t, expression)
INT2(min, a < b ? a : b)
INT2(max, a > b ? a : b)
INT2_SIGNED(min, a < b ? a : b)
INT2_SIGNED(max, a > b ? a : b)
SIM_OP2(min_s16, uint32_t, uint32_t, uint32_t, (S16(a) < S16(b) ? a : b) & 0xffff)
SIM_OP2(max_s16, uint32_t, uint32_t, uint32_t, (S16(a) > S16(b) ? a : b) & 0xffff)

/* Division by zero gives all ones, and so does the remainder, as the machine does. */
INT2(div, b ? a / b : UINT64_MAX)
INT2(rem, b ? a % b : UINT64_MAX)
#define DIVIDE(T, min) (b == 0 ? (T)-1 : b == -1 ? (T)(0 - (uint64_t)a) : (T)(a / b))
#define REMAINDER      (b == 0 ? -1 : b == -1 ? 0 : a % b)
INT2_SIGNED(div, DIVIDE(int64_t, 0))
INT2_SIGNED(rem, REMAINDER)
SIM_OP2(div_s16, uint32_t, uint32_t, uint32_t, (S16(b) ? (uint32_t)(S16(a) / S16(b)) : 0xffff) & 0xffff)
SIM_OP2(rem_s16, uint32_t, uint32_t, uint32_t, (S16(b) ? (uint32_t)(S16(a) % S16(b)) : 0xffff) & 0xffff)

SIM_OP2(mulhi_u16, uint32_t, uint32_t, uint32_t, (a * b) >> 16)
SIM_OP2(mulhi_s16, uint32_t, uint32_t, uint32_t, ((uint32_t)(S16(a) * S16(b)) >> 16) & 0xffff)
SIM_OP2(mulhi_u32, uint32_t, uint32_t, uint32_t, ((uint64_t)a * b) >> 32)
SIM_OP2(mulhi_s32, int32_t, int32_t, int32_t, ((int64_t)a * b) >> 32)
SIM_OP2(mulhi_u64, uint64_t, uint64_t, uint64_t, ((unsigned __int128)a * b) >> 64)
SIM_OP2(mulhi_s64, int64_t, int64_t, int64_t, ((__int128)a * b) >> 64)
SIM_OP2(wide_u16, uint32_t, uint32_t, uint32_t, a *b)
SIM_OP2(wide_s16, uint32_t, uint32_t, uint32_t, S16(a) * S16(b))
SIM_OP2(wide_u32, uint64_t, uint32_t, uint32_t, (uint64_t)a *b)
SIM_OP2(wide_s32, int64_t, int32_t, int32_t, (int64_t)a *b)

SIM_OP3(mad_u16, uint32_t, uint32_t, uint32_t, uint32_t, (a * b + c) & 0xffff)
SIM_OP3(mad_u32, uint32_t, uint32_t, uint32_t, uint32_t, a *b + c)
SIM_OP3(mad_u64, uint64_t, uint64_t, uint64_t, uint64_t, a *b + c)
SIM_OP3(madhi_u32, uint32_t, uint32_t, uint32_t, uint32_t, (uint32_t)(((uint64_t)a * b) >> 32) + c)
SIM_OP3(madhi_s32, uint32_t, int32_t, int32_t, uint32_t, (uint32_t)(((int64_t)a * b) >> 32) + c)
SIM_OP3(madwide_u16, uint32_t, uint32_t, uint32_t, uint32_t, a *b + c)
SIM_OP3(madwide_s16, uint32_t, uint32_t, uint32_t, uint32_t, (uint32_t)(S16(a) * S16(b)) + c)
SIM_OP3(madwide_u32, uint64_t, uint32_t, uint32_t, uint64_t, (uint64_t)a *b + c)
SIM_OP3(madwide_s32, uint64_t, int32_t, int32_t, uint64_t, (uint64_t)((int64_t)a *b) + c)
SIM_OP3(sad_u32, uint32_t, uint32_t, uint32_t, uint32_t, (a > b ? a - b : b - a) + c)
SIM_OP3(sad_s32, uint32_t, int32_t, int32_t, uint32_t,
        (a > b ? (uint32_t)a - (uint32_t)b : (uint32_t)b - (uint32_t)a) + c)

SIM_OP1(neg_s16, uint32_t, uint32_t, (0 - a) & 0xffff)
SIM_OP1(neg_s32, uint32_t, uint32_t, 0 - a)
SIM_OP1(neg_s64, uint64_t, uint64_t, 0 - a)
SIM_OP1(abs_s16, uint32_t, uint32_t, (S16(a) < 0 ? 0 - a : a) & 0xffff)
SIM_OP1(abs_s32, uint32_t, uint32_t, (int32_t)a < 0 ? 0 - a : a)
SIM_OP1(abs_s64, uint64_t, uint64_t, (int64_t)a < 0 ? 0 - a : a)

#define SAME3(op, handler)                                                                                             \
    {op ".u16", "Hhh", handler##_u16}, {op ".u32", "Www", handler##_u32}, { op ".u64", "Ddd", handler##_u64 }
#define BOTH3(op, handler)                                                                                             \
    SAME3(op, handler), {op ".s16", "Hhh", handler##_u16}, {op ".s32", "Www", handler##_u32}, {                        \
        op ".s64", "Ddd", handler##_u64                                                                                \
    }
#define OWN3(op, handler)                                                                                              \
    SAME3(op, handler), {op ".s16", "Hhh", handler##_s16}, {op ".s32", "Www", handler##_s32}, {                        \
        op ".s64", "Ddd", handler##_s64                                                                                \
    }
const struct sim_op sim_ops_int[] = {
    BOTH3("add", add),
    BOTH3("sub", sub),
    BOTH3("mul.lo", mul),
    OWN3("mul.hi", mulhi),
    OWN3("min", min),
    OWN3("max", max),
    OWN3("div", div),
    OWN3("rem", rem),
    {"mul.wide.u16", "Whh", wide_u16},
    {"mul.wide.s16", "Whh", wide_s16},
    {"mul.wide.u32", "Dww", wide_u32},
    {"mul.wide.s32", "Dww", wide_s32},
    {"mad.lo.u16", "Hhhh", mad_u16},
    {"mad.lo.s16", "Hhhh", mad_u16},
    {"mad.lo.u32", "Wwww", mad_u32},
    {"mad.lo.s32", "Wwww", mad_u32},
    {"mad.lo.u64", "Dddd", mad_u64},
    {"mad.lo.s64", "Dddd", mad_u64},
    {"mad.hi.u32", "Wwww", madhi_u32},
    {"mad.hi.s32", "Wwww", madhi_s32},
    {"mad.wide.u16", "Whhw", madwide_u16},
    {"mad.wide.s16", "Whhw", madwide_s16},
    {"mad.wide.u32", "Dwwd", madwide_u32},
    {"mad.wide.s32", "Dwwd", madwide_s32},
    {"sad.u32", "Wwww", sad_u32},
    {"sad.s32", "Wwww", sad_s32},
    {"neg.s16", "Hh", neg_s16},
    {"neg.s32", "Ww", neg_s32},
    {"neg.s64", "Dd", neg_s64},
    {"abs.s16", "Hh", abs_s16},
    {"abs.s32", "Ww", abs_s32},
    {"abs.s64", "Dd", abs_s64},
};
const uint32_t sim_n_ops_int = sizeof sim_ops_int / sizeof *sim_ops_int;
