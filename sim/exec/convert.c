/* SPDX-License-Identifier: MIT
 * mov, cvt, cvta. A conversion is three loops over lanes: widen the source, convert, narrow the result; the common ones
 * have a loop of their own. */
#include "exec/exec.h"
#include "exec/formats.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

/* ---- mov ---- */

SIM_OP1(mov_32, uint32_t, uint32_t, a)
SIM_OP1(mov_64, uint64_t, uint64_t, a)

/* Parts of one register to or from several; x: bits of a part. */
SIM_HEAD(unpack) {
    uint32_t part = in->x;
    const uint64_t *wide = W64(in->o[1]);
    const uint32_t *narrow = W32(in->o[1]);
    for (uint32_t i = 0; i < in->n; i++) {
        uint32_t part_offset = w->list[in->list + i];
        EACH_OF(m) {
            uint64_t v = (in->wide ? wide[l] : narrow[l]) >> (part * i);
            W32(part_offset)[l] = part == 16 ? (uint32_t)v & 0xffff : part == 8 ? (uint32_t)v & 0xff : (uint32_t)v;
        }
    }
    return SIM_NEXT;
}
SIM_HEAD(pack) {
    uint32_t part = in->x;
    uint64_t out[SIM_LANES] = {0}, mask = part == 32 ? 0xffffffff : (1u << part) - 1;
    for (uint32_t i = 0; i < in->n; i++) {
        const uint32_t *from = W32(w->list[in->list + i]);
        EACH_LANE out[l] |= (from[l] & mask) << (part * i);
    }
    if (in->wide)
        EACH_OF(m) W64(in->o[0])[l] = out[l];
    else
        EACH_OF(m) W32(in->o[0])[l] = (uint32_t)out[l];
    return SIM_NEXT;
}
SIM_HEAD(read_clock) { /* a time that only grows */
    EACH_OF(m) {
        if (in->wide)
            W64(in->o[0])[l] = w->n_executed;
        else
            W32(in->o[0])[l] = (uint32_t)w->n_executed;
    }
    return SIM_NEXT;
}

SIM_DECODER(mov) {
    enum ptx_type type = sim_last_type(d);
    unsigned bits = 8 * ptx_type_bytes(type);
    sim_want(d, 2, 2);
    if (d->failed) return;
    const struct ptx_operand *to = &d->o[0], *from = &d->o[1];
    const struct ptx_operand *v = to->kind == PTX_VECTOR ? to : from->kind == PTX_VECTOR ? from : NULL;
    in->wide = bits == 64;
    if (bits == 128) {
        sim_decode_mov_128(d, in);
    } else if (v) {
        if (!v->n || bits % v->n || bits > 64) sim_refuse(d, "%u parts of %u bits", v->n, bits);
        if (d->failed) return;
        in->x = (uint8_t)(bits / v->n);
        in->list = d->program->n_list;
        in->n = sim_list(d, v, in->x == 8 ? 16 : in->x, v == to);
        if (v == to)
            in->o[1] = sim_source(d, from, bits), in->exec = unpack;
        else
            in->o[0] = sim_target(d, to, bits), in->exec = pack;
    }
    if (bits == 128 || v) return;
    if (from->kind == PTX_SPECIAL && (!strncmp(from->text, "%clock", 6) || !strcmp(from->text, "%globaltimer"))) {
        in->o[0] = sim_target(d, to, bits);
        in->exec = read_clock;
        return;
    }
    if (bits != 16 && bits != 32 && bits != 64) sim_refuse(d, "a move of %u bits", bits);
    in->o[0] = sim_target(d, to, bits);
    in->o[1] = sim_source(d, from, bits);
    in->exec = bits == 64 ? mov_64 : mov_32;
}

/* ---- cvta: between a window's addresses and generic ones ---- */

SIM_HEAD(to_generic) {
    uint64_t *out = W64(in->o[0]);
    const uint64_t *a = W64(in->o[1]);
    SIM_LOOP(out[l] = a[l] | (uint64_t)in->imm)
}
SIM_HEAD(from_generic) {
    uint64_t *out = W64(in->o[0]);
    const uint64_t *a = W64(in->o[1]);
    SIM_LOOP(out[l] = a[l] & ~(uint64_t)in->imm)
}
SIM_DECODER(cvta) {
    static const struct {
        const char *word;
        uint64_t window;
    } spaces[] = {{"global", 0},
                  {"const", 0},
                  {"shared", SIM_WINDOW_SHARED},
                  {"shared::cta", SIM_WINDOW_SHARED},
                  {"shared::cluster", SIM_WINDOW_SHARED},
                  {"local", SIM_WINDOW_LOCAL},
                  {"param", SIM_WINDOW_PARAM}};
    int to = sim_word(d, "to"), found = 0;
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (sim_word(d, spaces[i].word)) in->imm = (int64_t)spaces[i].window, found = 1;
    if (sim_last_type(d) != PTX_U64 || !found) sim_refuse(d, "this form is not known here");
    sim_want(d, 2, 2);
    if (d->failed) return;
    in->o[0] = sim_target(d, &d->o[0], 64);
    in->o[1] = sim_source(d, &d->o[1], 64);
    in->exec = to ? from_generic : to_generic;
}

/* ---- cvt ---- */

SIM_OP1(cvt_s64_s32, int64_t, int32_t, a)
SIM_OP1(cvt_u64_u32, uint64_t, uint32_t, a)
SIM_OP1(cvt_u32_u64, uint32_t, uint64_t, a)
SIM_OP1(cvt_u16_u32, uint32_t, uint32_t, a & 0xffff)
SIM_OP1(cvt_f32_f16, float, uint32_t, sim_from_f16(a & 0xffff))
SIM_OP1(cvt_f32_bf16, float, uint32_t, sim_from_bf16(a & 0xffff))
SIM_OP1(cvt_f32_s32, float, int32_t, a)
SIM_OP1(cvt_f32_u32, float, uint32_t, a)
SIM_OP1(cvt_f16_f32, uint32_t, float, sim_to_f16(a))
SIM_OP1(cvt_bf16_f32, uint32_t, float, sim_to_bf16(a))
SIM_OP1(cvt_tf32_f32, uint32_t, float, sim_to_tf32(a))
SIM_OP2(cvt_f16x2, uint32_t, float, float, sim_to_f16(a) << 16 | sim_to_f16(b))
SIM_OP2(cvt_bf16x2, uint32_t, float, float, sim_to_bf16(a) << 16 | sim_to_bf16(b))
static inline float relu(float x) { return x > 0 ? x : x != x ? x : 0; }
SIM_OP2(cvt_f16x2_relu, uint32_t, float, float, sim_to_f16(relu(a)) << 16 | sim_to_f16(relu(b)))
SIM_OP2(cvt_bf16x2_relu, uint32_t, float, float, sim_to_bf16(relu(a)) << 16 | sim_to_bf16(relu(b)))

enum { FTZ = 1, SAT = 2, TO_WHOLE = 4 };
static int is_real(enum ptx_type t) { return t == PTX_F16 || t == PTX_BF16 || t == PTX_F32 || t == PTX_F64; }
static int is_signed(enum ptx_type t) { return t == PTX_S8 || t == PTX_S16 || t == PTX_S32 || t == PTX_S64; }

static int64_t cut(int64_t v, enum ptx_type t) {
    switch (t) {
    case PTX_U8: return (uint8_t)v;
    case PTX_S8: return (int8_t)v;
    case PTX_U16: return (uint16_t)v;
    case PTX_S16: return (int16_t)v;
    case PTX_U32: return (uint32_t)v;
    case PTX_S32: return (int32_t)v;
    default: return v;
    }
}
static void limits(enum ptx_type t, double *low, double *high) {
    int bits = 8 * (int)ptx_type_bytes(t);
    *high = ldexp(1, is_signed(t) ? bits - 1 : bits);
    *low = is_signed(t) ? -*high : 0;
}
static int64_t whole_of(double x, enum ptx_type t) { /* x is whole; out of range goes to the nearest end, NaN to 0 */
    double low, high;
    limits(t, &low, &high);
    if (x != x) return 0;
    if (x <= low) return is_signed(t) ? (int64_t)low : 0;
    if (x >= high) return t == PTX_U64 ? -1 : t == PTX_S64 ? INT64_MAX : (int64_t)(high - 1);
    return t == PTX_U64 ? (int64_t)(uint64_t)x : (int64_t)x;
}
static int64_t clamp_whole(int64_t v, int from_signed, enum ptx_type t) { /* cvt.sat between integers */
    double low, high;
    limits(t, &low, &high);
    if (!from_signed && v < 0) return t == PTX_U64 ? v : cut(t == PTX_S64 ? INT64_MAX : (int64_t)(high - 1), PTX_S64);
    if (t == PTX_U64) return v < 0 ? 0 : v;
    if (t == PTX_S64) return v;
    return (double)v < low ? (int64_t)low : (double)v >= high ? (int64_t)(high - 1) : v;
}

/* list[0]: bits of the source register, list[1]: of the target; x, y: types; type: rounding, z: flags. */
SIM_HEAD(convert) {
    enum ptx_type to = (enum ptx_type)in->x, from = (enum ptx_type)in->y;
    int flags = in->z, mode = fegetround();
    int64_t v[SIM_LANES] = {0};
    double f[SIM_LANES] = {0};
    EACH_OF(m) {
        uint32_t narrow = W32(in->o[1])[in->count ? 2 * l : l];
        int64_t wide = in->count ? (int64_t)W64(in->o[1])[l] : (int64_t)narrow;
        if (from == PTX_F64)
            f[l] = F64(in->o[1])[l];
        else if (from == PTX_F32)
            f[l] = (double)(flags & FTZ ? sim_flush(sim_float(narrow)) : sim_float(narrow));
        else if (from == PTX_F16)
            f[l] = (double)sim_from_f16(narrow & 0xffff);
        else if (from == PTX_BF16)
            f[l] = (double)sim_from_bf16(narrow & 0xffff);
        else
            v[l] = cut(wide, from);
    }
    /* NaN as a whole number: 0, but where 64 bits take part the smallest signed number */
    unsigned to_bits = 8 * ptx_type_bytes(to);
    int64_t nan = from == PTX_F64 || to_bits == 64 ? (int64_t)(UINT64_C(1) << (to_bits - 1)) : 0;
    fesetround(in->type << 8);
    EACH_OF(m) {
        if (is_real(from) && (flags & TO_WHOLE || !is_real(to))) f[l] = nearbyint(f[l]);
        if (is_real(from) && !is_real(to)) v[l] = f[l] != f[l] ? nan : whole_of(f[l], to);
        if (!is_real(from) && !is_real(to) && flags & SAT) v[l] = clamp_whole(v[l], is_signed(from), to);
        if (is_real(to)) {
            int whole = !is_real(from), negative = whole && from != PTX_U64;
            if (to == PTX_F64) {
                if (whole) f[l] = negative ? (double)v[l] : (double)(uint64_t)v[l];
                memcpy(&v[l], &f[l], 8);
            } else {
                float r = !whole ? (float)f[l] : negative ? (float)v[l] : (float)(uint64_t)v[l];
                if (from == PTX_F64 && to != PTX_F32) r = sim_odd(f[l]);
                if (flags & SAT) r = r > 0 ? (r < 1 ? r : 1) : 0;
                if (flags & FTZ) r = sim_flush(r);
                v[l] = to == PTX_F32 ? sim_bits_of(r) : to == PTX_F16 ? sim_to_f16(r) : sim_to_bf16(r);
                if (from == PTX_F64 && to == PTX_F16 && r != r) v[l] = 0x7e00;
            }
        } else {
            v[l] = cut(v[l], to);
        }
    }
    fesetround(mode);
    EACH_OF(m) {
        if (in->bytes == 64)
            W64(in->o[0])[l] = (uint64_t)v[l];
        else
            W32(in->o[0])[l] = in->bytes == 16 ? (uint32_t)v[l] & 0xffff : (uint32_t)v[l];
    }
    return SIM_NEXT;
}

static const struct sim_op common[] = {
    {"cvt.s64.s32", "Dw", cvt_s64_s32},
    {"cvt.u64.u32", "Dw", cvt_u64_u32},
    {"cvt.u64.s32", "Dw", cvt_s64_s32},
    {"cvt.u32.u64", "Wd", cvt_u32_u64},
    {"cvt.s32.s64", "Wd", cvt_u32_u64},
    {"cvt.u16.u32", "Hw", cvt_u16_u32},
    {"cvt.f32.f16", "Wh", cvt_f32_f16},
    {"cvt.f32.bf16", "Wh", cvt_f32_bf16},
    {"cvt.rn.f32.s32", "Ww", cvt_f32_s32},
    {"cvt.rn.f32.u32", "Ww", cvt_f32_u32},
    {"cvt.rn.f16.f32", "Hw", cvt_f16_f32},
    {"cvt.rn.bf16.f32", "Hw", cvt_bf16_f32},
    {"cvt.rna.tf32.f32", "Ww", cvt_tf32_f32},
    {"cvt.rn.f16x2.f32", "Www", cvt_f16x2},
    {"cvt.rn.bf16x2.f32", "Www", cvt_bf16x2},
    {"cvt.rn.relu.f16x2.f32", "Www", cvt_f16x2_relu},
    {"cvt.rn.relu.bf16x2.f32", "Www", cvt_bf16x2_relu},
};

static int common_form(struct sim_decoder *d, struct sim_ins *in) {
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (strcmp(common[i].name, d->s->opcode)) continue;
        for (uint32_t k = 0; common[i].operands[k]; k++) {
            char c = common[i].operands[k];
            unsigned bits = c == 'H' || c == 'h' ? 16 : c == 'D' || c == 'd' ? 64 : 32;
            if (k >= d->n || (d->o[k].kind == PTX_REG && sim_bits(d, &d->o[k]) != bits)) return 0;
            in->o[k] = k ? sim_source(d, &d->o[k], bits) : sim_target(d, &d->o[k], bits);
        }
        in->exec = common[i].exec;
        d->used = ~0u;
        return 1;
    }
    return 0;
}

SIM_DECODER(cvt) {
    static const struct {
        const char *word;
        int mode;
    } whole[] = {{"rni", FE_TONEAREST}, {"rzi", FE_TOWARDZERO}, {"rmi", FE_DOWNWARD}, {"rpi", FE_UPWARD}};
    if (common_form(d, in)) return;
    enum ptx_type from = sim_last_type(d), to = sim_last_type(d);
    int mode = -1;
    for (size_t i = 0; i < 4; i++)
        if (sim_word(d, whole[i].word)) mode = whole[i].mode, in->z |= TO_WHOLE;
    if (mode < 0) mode = sim_rounding(d);
    in->type = (uint8_t)(mode >> 8);
    if (sim_word(d, "ftz")) in->z |= FTZ;
    if (sim_word(d, "sat")) in->z |= SAT;
    sim_want(d, 2, 2);
    if (d->failed) return;
    unsigned from_bits = sim_bits(d, &d->o[1]), to_bits = sim_bits(d, &d->o[0]);
    unsigned need_from = 8 * ptx_type_bytes(from), need_to = 8 * ptx_type_bytes(to);
    if (!from_bits) from_bits = need_from < 16 ? 16 : need_from;
    if (ptx_type_bytes(from) * 8 > from_bits || need_to > to_bits || to_bits > 64 || from_bits > 64)
        sim_refuse(d, "registers too narrow");
    /* to f16 or bf16 only to nearest: directed roundings of those are not modelled */
    if ((to == PTX_F16 || to == PTX_BF16) && mode != FE_TONEAREST) return;
    in->x = (uint8_t)to, in->y = (uint8_t)from;
    in->count = from_bits == 64;
    in->bytes = (uint8_t)to_bits;
    in->o[0] = sim_target(d, &d->o[0], to_bits);
    in->o[1] = sim_source(d, &d->o[1], from_bits);
    if (from <= PTX_B128 || to <= PTX_B128 || from == PTX_F16X2 || to == PTX_F16X2 || from == PTX_BF16X2 ||
        to == PTX_BF16X2 || from == PTX_F32X2 || to == PTX_F32X2)
        return;
    in->exec = convert;
}
