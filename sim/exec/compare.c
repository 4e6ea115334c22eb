/* SPDX-License-Identifier: MIT
 * setp: comparisons into predicates, joined with a third predicate on request; testp. */
#include "exec/exec.h"
#include "exec/formats.h"

#include <string.h>

enum compare { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_ };
enum join { ALONE, AND, OR, XOR };
enum { FTZ = 1, NEGATED = 2 };

static enum sim_step finish(struct sim_warp *w, const struct sim_ins *in, uint32_t m, uint32_t result) {
    uint32_t other = ~result;
    if (in->y) {
        uint32_t c = w->p[in->o[4]] ^ (in->z & NEGATED ? SIM_ALL : 0);
        result = in->y == AND ? result & c : in->y == OR ? result | c : result ^ c;
        other = in->y == AND ? other & c : in->y == OR ? other | c : other ^ c;
    }
    w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | (result & m);
    if (in->n) w->p[in->o[1]] = (w->p[in->o[1]] & ~m) | (other & m);
    return SIM_NEXT;
}

#define CASE(word, expression)                                                                                         \
    case word:                                                                                                         \
        EACH_LANE {                                                                                                    \
            T a = pa[l], b = pb[l];                                                                                    \
            r |= (uint32_t)(expression) << l;                                                                          \
        }                                                                                                              \
        break;
#define INTEGER(name, type)                                                                                            \
    SIM_HEAD(name) {                                                                                                   \
        typedef type T;                                                                                                \
        const T *pa = (const T *)(const void *)W32(in->o[2]), *pb = (const T *)(const void *)W32(in->o[3]);            \
        uint32_t r = 0;                                                                                                \
        switch (in->x) {                                                                                               \
            CASE(EQ, a == b)                                                                                           \
            CASE(NE, a != b)                                                                                           \
            CASE(LT, a < b)                                                                                            \
            CASE(LE, a <= b)                                                                                           \
            CASE(GT, a > b)                                                                                            \
            CASE(GE, a >= b)                                                                                           \
        }                                                                                                              \
        return finish(w, in, m, r);                                                                                    \
    }
INTEGER(setp_u32, uint32_t)
INTEGER(setp_s32, int32_t)
INTEGER(setp_u64, uint64_t)
INTEGER(setp_s64, int64_t)

static uint32_t compare_real(enum compare x, uint32_t lt, uint32_t eq, uint32_t unordered) {
    switch (x) {
    case EQ: return eq;
    case NE: return !eq && !unordered;
    case LT: return lt;
    case LE: return lt || eq;
    case GT: return !lt && !eq && !unordered;
    case GE: return !lt && !unordered;
    case EQU: return eq || unordered;
    case NEU: return !eq;
    case LTU: return lt || unordered;
    case LEU: return lt || eq || unordered;
    case GTU: return !lt && !eq;
    case GEU: return !lt;
    case NUM: return !unordered;
    default: return unordered;
    }
}
SIM_HEAD(setp_s16) {
    const uint32_t *pa = W32(in->o[2]), *pb = W32(in->o[3]);
    uint32_t r = 0;
    EACH_LANE {
        int16_t a = (int16_t)pa[l], b = (int16_t)pb[l];
        r |= compare_real((enum compare)in->x, a < b, a == b, 0) << l;
    }
    return finish(w, in, m, r);
}
SIM_HEAD(setp_f32) {
    typedef float T;
    const T *pa = F32(in->o[2]), *pb = F32(in->o[3]);
    T fa[SIM_LANES], fb[SIM_LANES];
    uint32_t r = 0;
    if (in->z & FTZ) {
        EACH_LANE fa[l] = sim_flush(pa[l]), fb[l] = sim_flush(pb[l]);
        pa = fa, pb = fb;
    }
    switch (in->x) {
        CASE(EQ, a == b)
        CASE(NE, a < b || a > b)
        CASE(LT, a < b)
        CASE(LE, a <= b)
        CASE(GT, a > b)
        CASE(GE, a >= b)
        CASE(EQU, !(a < b || a > b))
        CASE(NEU, a != b)
        CASE(LTU, !(a >= b))
        CASE(LEU, !(a > b))
        CASE(GTU, !(a <= b))
        CASE(GEU, !(a < b))
        CASE(NUM, a == a && b == b)
        CASE(NAN_, a != a || b != b)
    }
    return finish(w, in, m, r);
}
#define REAL(name, P, value)                                                                                           \
    SIM_HEAD(name) {                                                                                                   \
        const P *pa = (const P *)(const void *)W32(in->o[2]), *pb = (const P *)(const void *)W32(in->o[3]);            \
        uint32_t r = 0;                                                                                                \
        EACH_LANE {                                                                                                    \
            P x = pa[l];                                                                                               \
            double a = (double)(value);                                                                                \
            x = pb[l];                                                                                                 \
            double b = (double)(value);                                                                                \
            r |= compare_real((enum compare)in->x, a < b, a == b, a != a || b != b) << l;                              \
        }                                                                                                              \
        return finish(w, in, m, r);                                                                                    \
    }
REAL(setp_f64, double, x)
REAL(setp_f16, uint32_t, sim_from_f16(x & 0xffff))
REAL(setp_bf16, uint32_t, sim_from_bf16(x & 0xffff))

/* PTX ISA: testp: by the exponent and the fraction, f32 in its place or f64 in two words */
enum test { FINITE, INFINITE, NUMBER, NOT_A_NUMBER, NORMAL, SUBNORMAL };
SIM_HEAD(testp) {
    uint32_t r = 0;
    EACH_OF(m) {
        uint64_t a = in->wide ? W64(in->o[1])[l] : W32(in->o[1])[l];
        const int fraction = in->wide ? 52 : 23;
        const uint64_t most = in->wide ? 0x7ff : 0xff, e = a >> fraction & most,
                       f = a & ((UINT64_C(1) << fraction) - 1);
        const int yes[] = {e < most, e == most && !f, e < most || !f, e == most && f, e && e < most, !e && f};
        r |= (uint32_t)yes[in->x] << l;
    }
    w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | r;
    return SIM_NEXT;
}
SIM_DECODER(testp) {
    static const char *const tests[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
    const enum ptx_type type = sim_last_type(d);
    int found = 0;
    for (uint8_t i = 0; i < 6; i++)
        if (sim_word(d, tests[i])) in->x = i, found = 1;
    sim_want(d, 2, 2);
    if (d->failed || !found || (type != PTX_F32 && type != PTX_F64)) return;
    in->wide = type == PTX_F64;
    in->o[0] = sim_target(d, &d->o[0], 1);
    in->o[1] = sim_source(d, &d->o[1], in->wide ? 64 : 32);
    in->exec = testp;
}

SIM_DECODER(setp) {
    static const char *const compares[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                           "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    static const char *const unsigned_only[] = {"lo", "ls", "hi", "hs"};
    static const char *const joins[] = {"", "and", "or", "xor"};
    static const struct {
        enum ptx_type type;
        unsigned bits;
        sim_exec exec;
    } rows[] = {{PTX_B16, 16, setp_u32},  {PTX_U16, 16, setp_u32}, {PTX_S16, 16, setp_s16}, {PTX_B32, 32, setp_u32},
                {PTX_U32, 32, setp_u32},  {PTX_S32, 32, setp_s32}, {PTX_B64, 64, setp_u64}, {PTX_U64, 64, setp_u64},
                {PTX_S64, 64, setp_s64},  {PTX_F32, 32, setp_f32}, {PTX_F64, 64, setp_f64}, {PTX_F16, 16, setp_f16},
                {PTX_BF16, 16, setp_bf16}};
    int found = 0;
    enum ptx_type type = sim_last_type(d);
    for (uint8_t i = 0; i < 14 && !found; i++)
        if (sim_word(d, compares[i])) in->x = i, found = 1;
    for (uint8_t i = 0; i < 4 && !found; i++) /* lower, lower or same, higher, higher or same */
        if (sim_word(d, unsigned_only[i])) in->x = (uint8_t)(LT + i), found = 1;
    if (!found) sim_refuse(d, "no comparison");
    for (uint8_t i = 1; i < 4; i++)
        if (sim_word(d, joins[i])) in->y = i;
    if (sim_word(d, "ftz")) in->z |= FTZ;
    uint32_t sources = in->y ? 3 : 2;
    sim_want(d, sources + 1, sources + 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !d->failed; i++) {
        if (rows[i].type != type) continue;
        const struct ptx_operand *o = d->o;
        in->o[0] = sim_target(d, o++, 1);
        in->n = d->n == sources + 2;
        if (in->n) in->o[1] = sim_target(d, o++, 1);
        in->o[2] = sim_source(d, o++, rows[i].bits);
        in->o[3] = sim_source(d, o++, rows[i].bits);
        if (in->y) {
            struct ptx_operand c = *o;
            if (c.negated) in->z |= NEGATED;
            c.negated = 0;
            in->o[4] = sim_source(d, &c, 1);
        }
        in->exec = rows[i].exec;
        if (in->x >= EQU && rows[i].type < PTX_F16) in->exec = NULL;
    }
}
