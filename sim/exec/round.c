/* SPDX-License-Identifier: MIT
 * f32 and f64 arithmetic with the words that are rare: directed roundings, .sat. The host's rounding mode is set for
 * the time of the loop; this file is compiled with -frounding-math. */
#include "exec/exec.h"
#include "exec/formats.h"

#include <fenv.h>
#include <math.h>

enum op { ADD, SUB, MUL, FMA, DIV, RCP, SQRT };

static float apply32(enum op op, float a, float b, float c) {
    switch (op) {
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case FMA: return fmaf(a, b, c);
    case DIV: return a / b;
    case RCP: return 1.0f / a;
    default: return sqrtf(a);
    }
}
static double apply64(enum op op, double a, double b, double c) {
    switch (op) {
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case FMA: return fma(a, b, c);
    case DIV: return a / b;
    case RCP: return 1.0 / a;
    default: return sqrt(a);
    }
}
enum { FTZ = 1, SAT = 2 };

SIM_HEAD(rounded_f32) {
    float *out = F32(in->o[0]);
    const float *a = F32(in->o[1]), *b = F32(in->o[2]), *c = F32(in->o[3]);
    int mode = fegetround(), ftz = in->z & FTZ, sat = in->z & SAT;
    fesetround(in->y << 8);
    EACH_OF(m) {
        float r = ftz ? sim_flush(apply32((enum op)in->x, sim_flush(a[l]), sim_flush(b[l]), sim_flush(c[l])))
                      : apply32((enum op)in->x, a[l], b[l], c[l]);
        out[l] = !sat ? r : r > 0 ? (r < 1 ? r : 1) : 0; /* NaN becomes 0 */
    }
    fesetround(mode);
    return SIM_NEXT;
}
SIM_HEAD(rounded_f64) {
    double *out = F64(in->o[0]);
    const double *a = F64(in->o[1]), *b = F64(in->o[2]), *c = F64(in->o[3]);
    int mode = fegetround();
    fesetround(in->y << 8);
    EACH_OF(m) out[l] = apply64((enum op)in->x, a[l], b[l], c[l]);
    fesetround(mode);
    return SIM_NEXT;
}

/* PTX ISA: add, sub, mul, fma of type .f32x2; element i of the place is half i % 2 of lane i / 2. */
SIM_HEAD(rounded_f32x2) {
    float *out = F32(in->o[0]);
    const float *a = F32(in->o[1]), *b = F32(in->o[2]), *c = F32(in->o[3]);
    int mode = fegetround(), ftz = in->z & FTZ;
    fesetround(in->y << 8);
    for (uint32_t i = 0; i < 2 * SIM_LANES; i++) {
        if (!(m >> (i / 2) & 1)) continue;
        out[i] = ftz ? sim_flush(apply32((enum op)in->x, sim_flush(a[i]), sim_flush(b[i]), sim_flush(c[i])))
                     : apply32((enum op)in->x, a[i], b[i], c[i]);
    }
    fesetround(mode);
    return SIM_NEXT;
}
/* PTX ISA, Mixed Precision Floating Point Instructions: add, sub, fma .f32.f16, .f32.bf16: factors or the first summand
 * in 16 bits, the rest and the result in f32. wide: bf16. */
SIM_HEAD(mixed) {
    float *out = F32(in->o[0]);
    const uint32_t *a = W32(in->o[1]), *b = W32(in->o[2]);
    const float *last = F32(in->o[in->x == FMA ? 3 : 2]);
    int mode = fegetround();
    fesetround(in->y << 8);
    EACH_OF(m) {
        float x = in->wide ? sim_from_bf16(a[l] & 0xffff) : sim_from_f16(a[l] & 0xffff), y = last[l];
        if (in->x == FMA) y = in->wide ? sim_from_bf16(b[l] & 0xffff) : sim_from_f16(b[l] & 0xffff);
        float r = apply32((enum op)in->x, x, y, last[l]);
        out[l] = !(in->z & SAT) ? r : r > 0 ? (r < 1 ? r : 1) : 0;
    }
    fesetround(mode);
    return SIM_NEXT;
}

int sim_rounding(struct sim_decoder *d) { /* default: nearest */
    if (sim_word(d, "rn")) return FE_TONEAREST;
    if (sim_word(d, "rz")) return FE_TOWARDZERO;
    if (sim_word(d, "rm")) return FE_DOWNWARD;
    if (sim_word(d, "rp")) return FE_UPWARD;
    return FE_TONEAREST;
}

SIM_DECODER(float) {
    static const struct {
        const char *word;
        enum op op;
        uint32_t n;
    } ops[] = {{"add", ADD, 2}, {"sub", SUB, 2}, {"mul", MUL, 2}, {"fma", FMA, 3},
               {"mad", FMA, 3}, {"div", DIV, 2}, {"rcp", RCP, 1}, {"sqrt", SQRT, 1}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (strcmp(d->part[0], ops[i].word)) continue;
        enum ptx_type type = sim_last_type(d);
        const int mixes = (type == PTX_F16 || type == PTX_BF16) && (ops[i].op <= SUB || !strcmp(ops[i].word, "fma")) &&
                          sim_last_type(d) == PTX_F32;
        const int pairs = type == PTX_F32X2 && ops[i].op <= FMA && strcmp(ops[i].word, "mad");
        if (type != PTX_F32 && type != PTX_F64 && !mixes && !pairs) {
            sim_refuse(d, "this form is not known here");
            return;
        }
        unsigned bits = type == PTX_F32 || mixes ? 32 : 64;
        in->x = (uint8_t)ops[i].op;
        _Static_assert(((FE_UPWARD | FE_DOWNWARD | FE_TOWARDZERO) & ~0xff00) == 0, "modes in eight bits");
        int mode = sim_rounding(d);
        in->y = (uint8_t)(mode >> 8);
        in->z = (uint8_t)(((type == PTX_F32 || pairs) && sim_word(d, "ftz") ? FTZ : 0) |
                          ((type == PTX_F32 || mixes) && sim_word(d, "sat") ? SAT : 0));
        sim_want(d, ops[i].n + 1, ops[i].n + 1);
        if (d->failed) return;
        in->o[0] = sim_target(d, &d->o[0], bits);
        for (uint32_t k = 1; k < 4; k++) {
            const unsigned width = mixes && k != ops[i].n ? 16 : bits; /* the last source of a mixed one is f32 */
            in->o[k] = sim_source(d, &d->o[k <= ops[i].n ? k : 1], width);
        }
        in->wide = type == PTX_BF16;
        in->exec = mixes ? mixed : pairs ? rounded_f32x2 : type == PTX_F32 ? rounded_f32 : rounded_f64;
        return;
    }
}
