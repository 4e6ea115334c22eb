/* SPDX-License-Identifier: MIT
 * Logic, shifts, bit fields, selections, predicates' logic. */
#include "exec/exec.h"

#define BITS2(op, expression)                                                                                          \
    SIM_OP2(op##_32, uint32_t, uint32_t, uint32_t, expression)                                                         \
    SIM_OP2(op##_64, uint64_t, uint64_t, uint64_t, expression)                                                         \
    SIM_HEAD(op##_pred) {                                                                                              \
        uint32_t a = w->p[in->o[1]], b = w->p[in->o[2]];                                                               \
        w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | ((expression)&m);                                                     \
        return SIM_NEXT;                                                                                               \
    }
BITS2(and, a &b)
BITS2(or, a | b)
BITS2(xor, a ^ b)
SIM_HEAD(not_pred) {
    w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | (~w->p[in->o[1]] & m);
    return SIM_NEXT;
}
SIM_HEAD(mov_pred) {
    w->p[in->o[0]] = (w->p[in->o[0]] & ~m) | (w->p[in->o[1]] & m);
    return SIM_NEXT;
}
SIM_OP1(not_16, uint32_t, uint32_t, ~a & 0xffff)
SIM_OP1(not_32, uint32_t, uint32_t, ~a)
SIM_OP1(not_64, uint64_t, uint64_t, ~a)
SIM_OP1(cnot_16, uint32_t, uint32_t, a == 0)
SIM_OP1(cnot_32, uint32_t, uint32_t, a == 0)
SIM_OP1(cnot_64, uint64_t, uint64_t, a == 0)

/* Amounts beyond the width shift everything out. */
SIM_OP2(shl_16, uint32_t, uint32_t, uint32_t, (b > 15 ? 0 : a << (b & 31)) & 0xffff)
SIM_OP2(shl_32, uint32_t, uint32_t, uint32_t, b > 31 ? 0 : a << (b & 31))
SIM_OP2(shl_64, uint64_t, uint64_t, uint32_t, b > 63 ? 0 : a << (b & 63))
SIM_OP2(shr_u16, uint32_t, uint32_t, uint32_t, b > 15 ? 0 : a >> (b & 31))
SIM_OP2(shr_s16, uint32_t, uint32_t, uint32_t, ((int32_t)(int16_t)a >> (b > 15 ? 15 : b)) & 0xffff)
SIM_OP2(shr_u32, uint32_t, uint32_t, uint32_t, b > 31 ? 0 : a >> (b & 31))
SIM_OP2(shr_s32, int32_t, int32_t, uint32_t, a >> (b > 31 ? 31 : b))
SIM_OP2(shr_u64, uint64_t, uint64_t, uint32_t, b > 63 ? 0 : a >> (b & 63))
SIM_OP2(shr_s64, int64_t, int64_t, uint32_t, a >> (b > 63 ? 63 : b))
static inline uint32_t funnel_left(uint32_t a, uint32_t b, uint32_t n) {
    return n == 0 ? b : n > 31 ? a : b << n | a >> (32 - n);
}
static inline uint32_t funnel_right(uint32_t a, uint32_t b, uint32_t n) {
    return n == 0 ? a : n > 31 ? b : b << (32 - n) | a >> n;
}
SIM_OP3(shf_l_wrap, uint32_t, uint32_t, uint32_t, uint32_t, funnel_left(a, b, c & 31))
SIM_OP3(shf_r_wrap, uint32_t, uint32_t, uint32_t, uint32_t, funnel_right(a, b, c & 31))
SIM_OP3(shf_l_clamp, uint32_t, uint32_t, uint32_t, uint32_t, funnel_left(a, b, c))
SIM_OP3(shf_r_clamp, uint32_t, uint32_t, uint32_t, uint32_t, funnel_right(a, b, c))

static inline uint32_t reverse(uint32_t x) {
    x = (x & 0x55555555) << 1 | ((x >> 1) & 0x55555555);
    x = (x & 0x33333333) << 2 | ((x >> 2) & 0x33333333);
    x = (x & 0x0f0f0f0f) << 4 | ((x >> 4) & 0x0f0f0f0f);
    return __builtin_bswap32(x);
}
SIM_OP1(popc_32, uint32_t, uint32_t, __builtin_popcount(a))
SIM_OP1(popc_64, uint32_t, uint64_t, __builtin_popcountll(a))
SIM_OP1(clz_32, uint32_t, uint32_t, a ? __builtin_clz(a) : 32)
SIM_OP1(clz_64, uint32_t, uint64_t, a ? __builtin_clzll(a) : 64)
SIM_OP1(brev_32, uint32_t, uint32_t, reverse(a))
SIM_OP1(brev_64, uint64_t, uint64_t, (uint64_t)reverse((uint32_t)a) << 32 | reverse((uint32_t)(a >> 32)))
SIM_OP1(bfind_u32, uint32_t, uint32_t, a ? 31 - __builtin_clz(a) : -1)
SIM_OP1(bfind_u64, uint32_t, uint64_t, a ? 63 - __builtin_clzll(a) : -1)
SIM_OP1(bfind_s32, uint32_t, int32_t, (a ^ (a >> 31)) ? 31 - __builtin_clz((uint32_t)(a ^ (a >> 31))) : -1)
SIM_OP1(bfind_shift_u32, uint32_t, uint32_t, a ? __builtin_clz(a) : -1)

/* Positions and lengths of the 32-bit forms are taken modulo 256, those of the 64-bit forms as they are. */
static inline uint64_t field_mask(uint32_t length, uint32_t start, unsigned width) {
    uint64_t ones = length >= width ? UINT64_MAX : (UINT64_C(1) << length) - 1;
    return start >= width ? 0 : ones << start;
}
SIM_HEAD(bfi_32) {
    uint32_t *out = W32(in->o[0]);
    const uint32_t *a = W32(in->o[1]), *b = W32(in->o[2]), *start = W32(in->o[3]), *n = W32(in->o[4]);
    SIM_LOOP(uint32_t mask = (uint32_t)field_mask(n[l] & 255, start[l] & 255, 32);
             uint32_t put = (start[l] & 255) > 31 ? 0 : a[l] << (start[l] & 31); out[l] = (b[l] & ~mask) | (put & mask))
}
SIM_HEAD(bfi_64) {
    uint64_t *out = W64(in->o[0]);
    const uint64_t *a = W64(in->o[1]), *b = W64(in->o[2]);
    const uint32_t *start = W32(in->o[3]), *n = W32(in->o[4]);
    SIM_LOOP(uint64_t mask = field_mask(n[l], start[l], 64); uint64_t put = start[l] > 63 ? 0 : a[l] << (start[l] & 63);
             out[l] = (b[l] & ~mask) | (put & mask))
}
static inline uint64_t extract(uint64_t a, uint32_t start, uint32_t n, unsigned width, int is_signed) {
    if (width == 32) start &= 255, n &= 255; /* 64 bits are made of several instructions, which take all of it */
    start = start > 255 ? 255 : start, n = n > 255 ? 255 : n;
    uint64_t field = start >= width ? 0 : a >> start;
    uint32_t top =
        start + n > width ? width - 1 : start + n - 1; /* the sign is the field's or the number's highest bit */
    uint64_t sign = is_signed && n && (a >> (top > width - 1 ? width - 1 : top) & 1);
    uint64_t mask = n >= 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    if (start + n > width && is_signed && sign) field |= start >= width ? UINT64_MAX : UINT64_MAX << (width - start);
    return (field & mask) | (sign ? ~mask : 0);
}
SIM_OP3(bfe_u32, uint32_t, uint32_t, uint32_t, uint32_t, extract(a, b, c, 32, 0))
SIM_OP3(bfe_s32, uint32_t, uint32_t, uint32_t, uint32_t, extract(a, b, c, 32, 1))
SIM_OP3(bfe_u64, uint64_t, uint64_t, uint32_t, uint32_t, extract(a, b, c, 64, 0))
SIM_OP3(bfe_s64, uint64_t, uint64_t, uint32_t, uint32_t, extract(a, b, c, 64, 1))

static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t s) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t pick = s >> (4 * i) & 15, byte = (uint32_t)(both >> (8 * (pick & 7))) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}
SIM_OP3(prmt_32, uint32_t, uint32_t, uint32_t, uint32_t, permute(a, b, c))
static inline uint32_t logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t out = 0;
    for (unsigned i = 0; i < 8; i++)
        if (table >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return out;
}
SIM_HEAD(lop3_32) {
    uint32_t *out = W32(in->o[0]);
    const uint32_t *a = W32(in->o[1]), *b = W32(in->o[2]), *c = W32(in->o[3]), *t = W32(in->o[4]);
    SIM_LOOP(out[l] = logic3(a[l], b[l], c[l], t[l]))
}
static inline uint32_t dot4(uint32_t a, uint32_t b, uint32_t c) {
    for (unsigned i = 0; i < 32; i += 8) c += (uint32_t)((int8_t)(a >> i) * (int8_t)(b >> i));
    return c;
}
SIM_OP3(dp4a_s32, uint32_t, uint32_t, uint32_t, uint32_t, dot4(a, b, c))

SIM_HEAD(selp_32) {
    uint32_t *out = W32(in->o[0]), p = w->p[in->o[3]];
    const uint32_t *a = W32(in->o[1]), *b = W32(in->o[2]);
    SIM_LOOP(out[l] = p >> l & 1 ? a[l] : b[l])
}
SIM_HEAD(selp_64) {
    uint64_t *out = W64(in->o[0]);
    uint32_t p = w->p[in->o[3]];
    const uint64_t *a = W64(in->o[1]), *b = W64(in->o[2]);
    SIM_LOOP(out[l] = p >> l & 1 ? a[l] : b[l])
}
SIM_OP3(slct_s32, uint32_t, uint32_t, uint32_t, int32_t, c >= 0 ? a : b)
SIM_OP3(slct_f32, uint32_t, uint32_t, uint32_t, float, c >= 0 ? a : b)

#define LOGIC(op, handler)                                                                                             \
    {op ".b16", "Hhh", handler##_32}, {op ".b32", "Www", handler##_32}, {op ".b64", "Ddd", handler##_64}, {            \
        op ".pred", "Ppp", handler##_pred                                                                              \
    }
#define SELECT(type, wide)                                                                                             \
    { "selp." type, wide == 64 ? "Dddp" : wide == 16 ? "Hhhp" : "Wwwp", wide == 64 ? selp_64 : selp_32 }
const struct sim_op sim_ops_bits[] = {
    LOGIC("and", and),
    LOGIC("or", or),
    LOGIC("xor", xor),
    {"not.pred", "Pp", not_pred},
    {"mov.pred", "Pp", mov_pred},
    {"not.b16", "Hh", not_16},
    {"not.b32", "Ww", not_32},
    {"not.b64", "Dd", not_64},
    {"cnot.b16", "Hh", cnot_16},
    {"cnot.b32", "Ww", cnot_32},
    {"cnot.b64", "Dd", cnot_64},
    {"shl.b16", "Hhw", shl_16},
    {"shl.b32", "Www", shl_32},
    {"shl.b64", "Ddw", shl_64},
    {"shr.b16", "Hhw", shr_u16},
    {"shr.u16", "Hhw", shr_u16},
    {"shr.s16", "Hhw", shr_s16},
    {"shr.b32", "Www", shr_u32},
    {"shr.u32", "Www", shr_u32},
    {"shr.s32", "Www", shr_s32},
    {"shr.b64", "Ddw", shr_u64},
    {"shr.u64", "Ddw", shr_u64},
    {"shr.s64", "Ddw", shr_s64},
    {"shf.l.wrap.b32", "Wwww", shf_l_wrap},
    {"shf.r.wrap.b32", "Wwww", shf_r_wrap},
    {"shf.l.clamp.b32", "Wwww", shf_l_clamp},
    {"shf.r.clamp.b32", "Wwww", shf_r_clamp},
    {"popc.b32", "Ww", popc_32},
    {"popc.b64", "Wd", popc_64},
    {"clz.b32", "Ww", clz_32},
    {"clz.b64", "Wd", clz_64},
    {"brev.b32", "Ww", brev_32},
    {"brev.b64", "Dd", brev_64},
    {"bfind.u32", "Ww", bfind_u32},
    {"bfind.u64", "Wd", bfind_u64},
    {"bfind.s32", "Ww", bfind_s32},
    {"bfind.shiftamt.u32", "Ww", bfind_shift_u32},
    {"bfi.b32", "Wwwww", bfi_32},
    {"bfi.b64", "Dddww", bfi_64},
    {"bfe.u32", "Wwww", bfe_u32},
    {"bfe.s32", "Wwww", bfe_s32},
    {"bfe.u64", "Ddww", bfe_u64},
    {"bfe.s64", "Ddww", bfe_s64},
    {"prmt.b32", "Wwww", prmt_32},
    {"lop3.b32", "Wwwww", lop3_32},
    {"dp4a.s32.s32", "Wwww", dp4a_s32},
    SELECT("b16", 16),
    SELECT("u16", 16),
    SELECT("s16", 16),
    SELECT("b32", 32),
    SELECT("u32", 32),
    SELECT("s32", 32),
    SELECT("f32", 32),
    SELECT("b64", 64),
    SELECT("u64", 64),
    SELECT("s64", 64),
    SELECT("f64", 64),
    {"slct.b32.s32", "Wwww", slct_s32},
    {"slct.u32.s32", "Wwww", slct_s32},
    {"slct.s32.s32", "Wwww", slct_s32},
    {"slct.f32.s32", "Wwww", slct_s32},
    {"slct.f32.f32", "Wwww", slct_f32},
};
const uint32_t sim_n_ops_bits = sizeof sim_ops_bits / sizeof *sim_ops_bits;
