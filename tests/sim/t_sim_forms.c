/* SPDX-License-Identifier: MIT
 * Arithmetic and moves in forms of sm_100 that other libraries' kernels use, in the simulator: each gives the words
 * that a second statement of it gives, written here without the host's rounding modes. usage: t_sim_forms DRIVER */
#include "kernel_mutants.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* 32 threads; %r0 .. %r7 are the eight words of this thread, %d0 .. %d3 the same as pairs, %h0 .. %h7 lower halves;
 * its four results are %o0 .. %o3. s: 1024 bytes of shared memory, %s: 32 of this thread, %g: its words in global
 * memory. */
#define KERNEL(body)                                                                                                   \
    ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n"            \
    ".maxntid 32, 1, 1\n{\n.shared .align 32 .b8 s[1024];\n.reg .pred p, q;\n.reg .b16 %h<8>;\n"                       \
    ".reg .b32 %t, %s, %r<8>, %o<4>, %u<8>;\n.reg .b64 %g, %out, %d<4>, %w<4>;\n.reg .b128 %q0, %q1;\n"                \
    "mov.u32 %t, %tid.x;\nmov.u32 %s, s;\nmad.lo.u32 %s, %t, 32, %s;\nld.param.u64 %g, [in];\n"                        \
    "ld.param.u64 %out, [out];\nmad.wide.u32 %g, %t, 32, %g;\nmad.wide.u32 %out, %t, 16, %out;\n"                      \
    "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%g];\nld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%g+16];\n"                  \
    "ld.global.v2.b64 {%d0, %d1}, [%g];\nld.global.v2.b64 {%d2, %d3}, [%g+16];\n"                                      \
    "cvt.u16.u32 %h0, %r0;\ncvt.u16.u32 %h1, %r1;\ncvt.u16.u32 %h2, %r2;\ncvt.u16.u32 %h3, %r3;\n"                     \
    "cvt.u16.u32 %h4, %r4;\ncvt.u16.u32 %h5, %r5;\ncvt.u16.u32 %h6, %r6;\ncvt.u16.u32 %h7, %r7;\n"                     \
    "mov.b32 %o0, 0;\nmov.b32 %o1, 0;\nmov.b32 %o2, 0;\nmov.b32 %o3, 0;\n" body                                        \
    "st.global.v4.b32 [%out], {%o0, %o1, %o2, %o3};\nret;\n}\n"

enum { LANES = 32, IN = 8, OUT = 4 };
typedef const uint32_t words_in[IN];
static uint32_t in[LANES][IN], got[LANES][OUT];

static float f(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static uint32_t u(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static float bf16(uint32_t w) { return f(w << 16); }
static float f16(uint32_t w) {
    const int e = w >> 10 & 31, m = w & 0x3ff;
    const float size = e == 31 ? m ? NAN : INFINITY : e ? ldexpf((float)(m + 1024), e - 25) : ldexpf((float)m, -24);
    return w & 0x8000 ? -size : size;
}
/* p + c, both exact, as f32 in the rounding n, z, m or p: the nearest of the double sum, then a step where what the sum
 * lost and what the f32 lost say that it is on the wrong side. */
static float sum(double p, double c, char rounding) {
    const double s = p + c, t = s - p, lost = (p - (s - t)) + (c - t);
    float r = (float)s;
    if (!isfinite(s)) return r;
    double off = ((double)r - s) - lost; /* of r from p + c */
    if (rounding == 'n') {
        const float other = nextafterf(r, off > 0 ? -INFINITY : INFINITY);
        const double far = ((double)other - s) - lost;
        uint32_t odd = u(r) & 1;
        return fabs(far) < fabs(off) || (fabs(far) == fabs(off) && odd) ? other : r;
    }
    if (rounding == 'z') rounding = s > 0 || (s == 0 && lost > 0) ? 'm' : 'p';
    if (rounding == 'm' && off > 0) r = nextafterf(r, -INFINITY);
    if (rounding == 'p' && off < 0) r = nextafterf(r, INFINITY);
    return r;
}
/* The smaller (less) or larger of numbers by their order as integers; NaN loses. */
static int64_t order(uint32_t w) { return w >> 31 ? -(int64_t)(w & 0x7fffffff) - 1 : (int64_t)w; }
static uint32_t pick(const uint32_t *w, uint32_t n, int less, int nan_wins) {
    uint32_t best = 0x7fffffff;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(f(w[i]))) {
            if (nan_wins) return 0x7fffffff;
        } else if (isnan(f(best)) || (less ? order(w[i]) < order(best) : order(w[i]) > order(best))) {
            best = w[i];
        }
    }
    return best;
}
#define WANT(name) static void name(const words_in *all, uint32_t t, uint32_t out[OUT])
#define W          all[t]

WANT(three) {
    const uint32_t sizes[3] = {W[0] & 0x7fffffff, W[1] & 0x7fffffff, W[2] & 0x7fffffff};
    out[0] = pick(W, 3, 1, 0), out[1] = pick(W, 3, 0, 0), out[2] = pick(W, 3, 0, 1), out[3] = pick(sizes, 3, 1, 0);
}
WANT(pairs) {
    out[0] = u(sum(f(W[4]), -f(W[6]), 'n')), out[1] = u(sum(f(W[5]), -f(W[7]), 'n'));
    out[2] = u(sum(f(W[4]), f(W[6]), 'z')), out[3] = u(sum(f(W[5]), f(W[7]), 'z'));
}
WANT(pairs_down) {
    out[0] = u(sum((double)f(W[4]) * f(W[6]), 0, 'm')), out[1] = u(sum((double)f(W[5]) * f(W[7]), 0, 'm'));
    out[2] = u(sum((double)f(W[4]) * f(W[6]), f(W[4]), 'p')), out[3] = u(sum((double)f(W[5]) * f(W[7]), f(W[5]), 'p'));
}
WANT(flushed) { /* subnormal numbers count as 0 */
    for (uint32_t i = 0; i < 2; i++) {
        const float a = f(W[i]), b = f(W[6 + i]);
        out[i] = u(sum(fabsf(a) < 0x1p-126f ? copysignf(0, a) : a, -b, 'n'));
    }
}
WANT(mixed) {
    out[0] = u(sum((double)bf16(W[3]) * bf16(W[4] >> 16), f(W[5]), 'n'));
    out[1] = u(sum((double)f16(W[6] & 0x7bff) * f16(W[7] & 0x7bff), f(W[5]), 'z'));
    out[2] = u(sum(bf16(W[3]), -f(W[5]), 'm'));
    out[3] = u(sum(f16(W[6] & 0x7bff), f(W[5]), 'p'));
}
WANT(kinds) {
    const float x = f(W[0]);
    const int c = fpclassify(x);
    out[0] = (uint32_t)(isfinite(x) ? 1 : 0) | (uint32_t)(isinf(x) ? 2 : 0) | (uint32_t)(!isnan(x) ? 4 : 0) |
             (uint32_t)(isnan(x) ? 8 : 0) | (uint32_t)(c == FP_NORMAL ? 16 : 0) |
             (uint32_t)(c == FP_SUBNORMAL ? 32 : 0);
    double wide;
    uint64_t bits = (uint64_t)W[1] << 32 | W[0];
    memcpy(&wide, &bits, 8);
    out[1] = isnan(wide) ? 8 : isinf(wide) ? 2 : 1;
}
WANT(reduced) {
    uint32_t column[2][LANES];
    for (uint32_t l = 0; l < LANES; l++) column[0][l] = all[l][0], column[1][l] = all[l][4] & 0x7fffffff;
    out[0] = pick(column[0], LANES, 0, 0), out[1] = pick(column[0], LANES, 1, 0), out[2] = pick(column[0], LANES, 0, 1);
    out[3] = pick(column[1], LANES, 1, 1);
    (void)t;
}
WANT(around) { memcpy(out, W, 16); }
WANT(upper) { memcpy(out, W + 4, 16); }
WANT(vectors) { out[0] = W[0] + 1, out[1] = W[1] + W[2], out[2] = W[2], out[3] = W[3]; }
WANT(sums) {
    for (uint32_t i = 0; i < OUT; i++) out[i] = u(f(W[4 + i]) + 2.0f);
}

/* Powers of two by search: the largest not above, or the smallest not below, the size of x. */
static uint32_t power(float x, int up, int finite) {
    if (isnan(x)) return 0xff;
    uint32_t e = 0;
    if (up)
        while (e < 255 && ldexp(1, (int)e - 127) < fabs((double)x)) e++;
    else
        while (e < 255 && ldexp(1, (int)e - 126) <= fabs((double)x)) e++;
    return e > 254 && finite ? 254 : e;
}
WANT(powers) {
    const uint32_t down = power(f(W[0]), 0, 0) << 8 | power(f(W[1]), 0, 0);
    const uint32_t up = power(bf16(W[2] >> 16), 1, 1) << 8 | power(bf16(W[2]), 1, 1);
    out[0] = down << 16 | (power(f(W[0]), 0, 1) << 8 | power(f(W[1]), 0, 1));
    out[1] = up << 16 | (power(f(W[4]), 1, 0) << 8 | power(f(W[2]), 1, 0));
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t e = W[0] >> (8 * i) & 255;
        out[2] |= (e == 255 ? 0x7fff : u(ldexpf(1, (int)e - 127)) >> 16) << (16 * i);
    }
}

/* A number of few bits by search among all of them: the nearest, of two the one whose last bit is 0. */
static float few(uint32_t code, int e, int f) {
    const int exponent = (int)(code >> f & ((1u << e) - 1)), fraction = (int)(code & ((1u << f) - 1)),
              bias = (1 << (e - 1)) - 1;
    const float size =
        ldexpf(exponent ? 1 + ldexpf((float)fraction, -f) : ldexpf((float)fraction, 1 - f), exponent - bias);
    return code >> (e + f) & 1 ? -size : size;
}
static uint32_t to_few(float x, int e, int f) {
    const uint32_t n = 1u << (e + f);
    uint32_t best = n - 1;
    if (isnan(x)) return best;
    for (uint32_t c = 0; c < n && fabsf(x) < few(n - 1, e, f); c++) {
        const double d = fabs((double)few(c, e, f) - fabs((double)x)),
                     least = fabs((double)few(best, e, f) - fabs((double)x));
        if (d < least || (d == least && !(c & 1))) best = c;
    }
    return best | (signbit(x) ? n : 0);
}
static uint32_t half_of(float x) { /* exact */
    const uint32_t b = u(x), e = b >> 23 & 255;
    return (b >> 16 & 0x8000) | (e ? (e - 112) << 10 | (b >> 13 & 0x3ff) : 0);
}
static float nonnegative(float x) { return x < 0 || (x == 0 && signbit(x)) ? 0 : x; }
WANT(small_numbers) {
    const float x = ldexpf(f(W[4] & 0xfff80000), 7), y = ldexpf(f(W[5] & 0xfff80000), 7), a = f(W[0]), b = f(W[1]);
    out[0] = to_few(a, 2, 1) << 4 | to_few(b, 2, 1) | (to_few(x, 2, 1) << 4 | to_few(y, 2, 1)) << 8;
    out[0] |= (to_few(nonnegative(x), 2, 1) << 4 | to_few(nonnegative(a), 2, 1)) << 16;
    out[1] = to_few(a, 2, 3) << 8 | to_few(x, 2, 3) | (to_few(b, 3, 2) << 8 | to_few(y, 3, 2)) << 16;
    out[2] = to_few(nonnegative(y), 2, 3) << 8 | to_few(nonnegative(a), 2, 3);
    out[2] |= (to_few(nonnegative(y), 3, 2) << 8 | to_few(nonnegative(b), 3, 2)) << 16;
}
WANT(small_back) {
    const uint32_t s = W[7] >> 3 & 0x3f3f, q = W[7] & 255;
    out[0] = half_of(few(q >> 4, 2, 1)) << 16 | half_of(few(q & 15, 2, 1));
    out[1] = half_of(few(s >> 8, 2, 3)) << 16 | half_of(few(s & 63, 2, 3));
    out[2] = half_of(few(s >> 8, 3, 2)) << 16 | half_of(few(s & 63, 3, 2));
    out[3] = half_of(nonnegative(few(q >> 4, 2, 1))) << 16 | half_of(nonnegative(few(s & 63, 3, 2)));
}

static const struct {
    const char *name, *ptx;
    void (*want)(const words_in *all, uint32_t t, uint32_t out[OUT]);
    int real; /* any NaN for a NaN */
} cases[] = {
    {"three",
     KERNEL("min.f32 %o0, %r0, %r1, %r2;\nmax.f32 %o1, %r0, %r1, %r2;\nmax.NaN.f32 %o2, %r0, %r1, %r2;\n"
            "min.abs.f32 %o3, %r0, %r1, %r2;\n"),
     three, 1},
    {"pairs",
     KERNEL(
         "sub.f32x2 %w0, %d2, %d3;\nmov.b64 {%o0, %o1}, %w0;\nadd.rz.f32x2 %w0, %d2, %d3;\nmov.b64 {%o2, %o3}, %w0;\n"),
     pairs, 0},
    {"pairs_rn",
     KERNEL("sub.rn.f32x2 %w0, %d2, %d3;\nmov.b64 {%o0, %o1}, %w0;\nadd.rz.ftz.f32x2 %w0, %d2, %d3;\n"
            "mov.b64 {%o2, %o3}, %w0;\n"),
     pairs, 0},
    {"pairs_down",
     KERNEL("mul.rm.f32x2 %w0, %d2, %d3;\nmov.b64 {%o0, %o1}, %w0;\nfma.rp.f32x2 %w0, %d2, %d3, %d2;\n"
            "mov.b64 {%o2, %o3}, %w0;\n"),
     pairs_down, 0},
    {"flushed", KERNEL("sub.rn.ftz.f32x2 %w0, %d0, %d3;\nmov.b64 {%o0, %o1}, %w0;\n"), flushed, 1},
    {"mixed",
     KERNEL(
         "{\n.reg .b16 b, low;\nmov.b32 {low, b}, %r4;\nfma.rn.f32.bf16 %o0, %h3, b, %r5;\nand.b16 %h6, %h6, 0x7bff;\n"
         "and.b16 %h7, %h7, 0x7bff;\nfma.rz.f32.f16 %o1, %h6, %h7, %r5;\nsub.rm.f32.bf16 %o2, %h3, %r5;\n"
         "add.rp.f32.f16 %o3, %h6, %r5;\n}\n"),
     mixed, 1},
#define SCALED                                                                                                         \
    "and.b32 %u0, %r4, 0xfff80000;\nmul.f32 %u0, %u0, 0f43000000;\nand.b32 %u1, %r5, 0xfff80000;\n"                    \
    "mul.f32 %u1, %u1, 0f43000000;\n"
    {"small_numbers",
     KERNEL(SCALED "{\n.reg .b8 a, b, c, z;\ncvt.rn.satfinite.e2m1x2.f32 a, %r0, %r1;\n"
                   "cvt.rn.satfinite.e2m1x2.f32 b, %u0, %u1;\ncvt.rn.satfinite.relu.e2m1x2.f32 c, %u0, %r0;\n"
                   "mov.b32 %o0, {a, b, c, 0};\n}\n"
                   "cvt.rn.satfinite.e2m3x2.f32 %h4, %r0, %u0;\ncvt.rn.satfinite.e3m2x2.f32 %h5, %r1, %u1;\n"
                   "mov.b32 %o1, {%h4, %h5};\ncvt.rn.satfinite.relu.e2m3x2.f32 %h4, %u1, %r0;\n"
                   "cvt.rn.satfinite.relu.e3m2x2.f32 %h5, %u1, %r1;\nmov.b32 %o2, {%h4, %h5};\n"),
     small_numbers, 0},
    {"small_back",
     KERNEL("shr.u32 %u0, %r7, 3;\nand.b32 %u0, %u0, 0x3f3f;\ncvt.u16.u32 %h0, %u0;\n{\n.reg .b8 a, b;\n"
            "mov.b16 {a, b}, %h7;\ncvt.rn.f16x2.e2m1x2 %o0, a;\ncvt.rn.f16x2.e2m3x2 %o1, %h0;\n"
            "cvt.rn.f16x2.e3m2x2 %o2, %h0;\ncvt.rn.relu.f16x2.e2m1x2 %u1, a;\ncvt.rn.relu.f16x2.e3m2x2 %u2, %h0;\n}\n"
            "and.b32 %u1, %u1, 0xffff0000;\nand.b32 %u2, %u2, 0xffff;\nor.b32 %o3, %u1, %u2;\n"),
     small_back, 0},
#define TEST(kind, bit) "testp." kind ".f32 p, %r0;\n@p or.b32 %o0, %o0, " #bit ";\n"
#define WIDE(kind, bit) "testp." kind ".f64 p, %d0;\n@p or.b32 %o1, %o1, " #bit ";\n"
    {"kinds",
     KERNEL(TEST("finite", 1) TEST("infinite", 2) TEST("number", 4) TEST("notanumber", 8) TEST("normal", 16)
                TEST("subnormal", 32) WIDE("finite", 1) WIDE("infinite", 2) WIDE("notanumber", 8)),
     kinds, 0},
    {"reduced",
     KERNEL("redux.sync.max.f32 %o0, %r0, -1;\nredux.sync.min.f32 %o1, %r0, -1;\nredux.sync.max.NaN.f32 %o2, %r0, -1;\n"
            "redux.sync.min.abs.NaN.f32 %o3, %r4, -1;\n"),
     reduced, 1},
    {"powers",
     KERNEL("cvt.rz.ue8m0x2.f32 %h4, %r0, %r1;\ncvt.rz.satfinite.ue8m0x2.f32 %h5, %r0, %r1;\nmov.b32 %o0, {%h5, %h4};\n"
            "cvt.rp.satfinite.ue8m0x2.bf16x2 %h4, %r2;\ncvt.rp.ue8m0x2.f32 %h5, %r4, %r2;\nmov.b32 %o1, {%h5, %h4};\n"
            "cvt.rn.bf16x2.ue8m0x2 %o2, %h0;\n"),
     powers, 0},
    {"shared_128",
     KERNEL("mov.b128 %q0, {%d0, %d1};\nst.shared.b128 [%s], %q0;\nld.shared::cta.b128 %q1, [%s];\n"
            "mov.b128 {%w0, %w1}, %q1;\nmov.b64 {%o0, %o1}, %w0;\nmov.b64 {%o2, %o3}, %w1;\n"),
     around, 0},
    {"generic_128",
     KERNEL(
         "{\n.reg .b64 at;\ncvt.u64.u32 at, %s;\ncvta.shared.u64 at, at;\nmov.b128 %q0, {%d0, %d1};\nst.b128 [at+16], %q0;\n"
         "ld.b128 %q1, [at+16];\nmov.b128 {%w0, %w1}, %q1;\nmov.b64 {%o0, %o1}, %w0;\nmov.b64 {%o2, %o3}, %w1;\n}\n"),
     around, 0},
    {"global_128", /* odd lanes alone move the upper words into the lower ones */
     KERNEL(
         "and.b32 %u0, %t, 1;\nsetp.eq.u32 q, %u0, 1;\n@q ld.relaxed.gpu.global.b128 %q1, [%g+16];\n"
         "@!q ld.global.b128 %q1, [%g+16];\nst.global.b128 [%g], %q1;\nld.global.v4.b32 {%o0, %o1, %o2, %o3}, [%g];\n"),
     upper, 0},
    {"vectors",
     KERNEL(
         "{\n.reg .v4 .b32 v;\n.reg .v2 .b32 %v<2>;\nld.global.v4.b32 v, [%g];\nadd.u32 v.x, v.x, 1;\nmov.b32 %v1.y, v.z;\n"
         "mov.b32 %v0.x, v.g;\nadd.u32 v.y, %v0.x, %v1.y;\nst.shared.v4.b32 [%s], v;\n"
         "ld.shared.v4.b32 {%o0, %o1, %o2, %o3}, [%s];\n}\n"),
     vectors, 0},
    {"vector_sums",
     KERNEL("{\n.reg .v4 .f32 x;\nmov.f32 x.x, 0f40000000;\nmov.f32 x.y, x.x;\nmov.f32 x.z, x.x;\nmov.f32 x.w, x.x;\n"
            "red.global.add.v4.f32 [%g+16], x;\nld.relaxed.gpu.global.b32 %o0, [%g+16];\n"
            "ld.relaxed.gpu.global.b32 %o1, [%g+20];\nld.relaxed.gpu.global.b32 %o2, [%g+24];\n"
            "ld.relaxed.gpu.global.b32 %o3, [%g+28];\n}\n"),
     sums, 0},
};

/* Words 0 to 2: edges and anything; 3 to 7: numbers of moderate size, whose lower half is anything. */
static void fill(void) {
    static const uint32_t edges[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000,
                                     0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x3f800000, 0xbf800000};
    uint64_t state = 7;
    for (uint32_t l = 0; l < LANES; l++)
        for (uint32_t i = 0; i < IN; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const uint32_t w = (uint32_t)(state >> 32);
            in[l][i] =
                i < 3 ? w % 3 ? edges[w / 3 % 12] : w : (w & 0x80ffffff) + 0x3c000000 + (w >> 24 & 3) * 0x00800000;
        }
}
static int is_equal(uint32_t a, uint32_t b, int real) { return a == b || (real && isnan(f(a)) && isnan(f(b))); }

static int run(const char *driver, int i) {
    void *module, *function;
    uint64_t from, to, n = 0;
    int bad = 0;
    static char log[1024];
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "b200", 1);
    if (kernel_open_driver(driver)) return -1;
    if (cu.load(&module, cases[i].ptx, 2, options, values) || cu.function(&function, module, "k")) {
        printf("FAIL %s: the module: %s\n", cases[i].name, log);
        return 1;
    }
    fill();
    struct kernel_launch l = {.grid = {1, 1, 1}, .block = {LANES, 1, 1}};
    void *params[] = {&from, &to};
    if (kernel_upload(&from, in, sizeof in) || kernel_upload(&to, got, sizeof got)) return -1;
    int r = cu.launch(&l, function, params, NULL);
    const char *text = cu.report(&n, 0);
    if (!r) r = cu.down(got, to, sizeof got);
    for (uint32_t t = 0; t < LANES && !r && !bad; t++) {
        uint32_t want[OUT] = {0};
        cases[i].want((const words_in *)in, t, want);
        for (uint32_t k = 0; k < OUT; k++) {
            if (is_equal(got[t][k], want[k], cases[i].real)) continue;
            printf("%s: lane %u, word %u is %08x, not %08x\n", cases[i].name, t, k, got[t][k], want[k]);
            bad = 1;
        }
    }
    if (!r && !n && !bad) return 0;
    printf("FAIL %s, %s: result %d, %llu findings: %.600s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text);
    return 1;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
