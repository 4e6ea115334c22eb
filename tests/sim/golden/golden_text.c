/* SPDX-License-Identifier: MIT
 * Kernels and operands for golden.c: a lane loads its words, executes the form, stores its words. */
#include "golden.h"

#include <stdio.h>
#include <string.h>

static uint32_t words_of(char c) { return c == 'd' || c == 'e' || c == 'j' || c == 'D' ? 2 : 1; }
static uint32_t words(const char *letters) {
    uint32_t n = 0;
    for (; *letters; letters++) n += words_of(*letters);
    return n;
}
uint32_t golden_words_in(const struct golden_form *f) { return words(f->in); }
uint32_t golden_words_out(const struct golden_form *f) { return words(f->out); }

/* ---- PTX ---- */

struct text {
    char *next;
    size_t left;
};
static void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
#include <stdarg.h>
static void add(struct text *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = vsnprintf(t->next, t->left, format, list);
    va_end(list);
    size_t used = n < 0 || (size_t)n >= t->left ? t->left : (size_t)n;
    t->next += used, t->left -= used;
}
/* The register of an operand: w, d, h or p and its number; outputs with an o before it. */
static char file_of(char c) {
    if (words_of(c) == 2) return 'd';
    return c == 'h' || c == 'g' || c == 'H' ? 'h' : c == 'p' || c == 'P' ? 'p' : 'w';
}
static void body(struct text *t, const struct golden_form *f) {
    if (!f->body) {
        add(t, "%s o%c0", f->op, file_of(f->out[0]));
        for (size_t i = 0; f->in[i]; i++) add(t, ", %c%zu", file_of(f->in[i]), i);
        add(t, ";\n");
        return;
    }
    for (const char *c = f->body; *c; c++) {
        if (*c == '$')
            add(t, "%c%c", file_of(f->in[c[1] - '0']), c[1]), c++;
        else if (*c == '#')
            add(t, "o%c%c", file_of(f->out[c[1] - '0']), c[1]), c++;
        else
            add(t, *c == ';' ? ";\n" : "%c", *c);
    }
}

int golden_ptx(const struct golden_form *f, char *out, size_t bytes) {
    struct text t = {out, bytes};
    add(&t,
        ".version 8.1\n.target sm_%d\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out, .param .u64 "
        "scratch)\n{\n.shared .align 128 .b8 s[4096];\n.reg .b32 r<%d>, w<10>, ow<8>, %%lane, %%mine, %%sh, z;\n"
        ".reg .b64 d<10>, od<8>, %%src, %%dst, x;\n.reg .b16 h<10>, oh<8>;\n.reg .pred p<10>, op<8>;\n",
        f->sm ? f->sm : 80, GOLDEN_WORDS);
    add(&t,
        "mov.u32 %%lane, %%tid.x;\nmov.u32 %%sh, s;\nmad.lo.u32 %%mine, %%lane, 32, %%sh;\nmov.u32 z, %%ctaid.x;\n"
        "mad.lo.u32 z, z, 32, %%lane;\nld.param.u64 %%src, [in];\nmul.wide.u32 x, z, %u;\nadd.u64 %%src, %%src, x;\n"
        "ld.param.u64 %%dst, [scratch];\nmul.wide.u32 x, z, 32;\nadd.u64 %%dst, %%dst, x;\n",
        GOLDEN_WORDS * 4);
    uint32_t n = 0;
    for (size_t i = 0; f->in[i]; i++) {
        char c = f->in[i], file = file_of(c);
        for (uint32_t k = 0; k < words_of(c); k++) add(&t, "ld.global.b32 r%u, [%%src+%u];\n", n + k, 4 * (n + k));
        if (file == 'd')
            add(&t, "mov.b64 d%zu, {r%u, r%u};\n", i, n, n + 1);
        else if (file == 'h')
            add(&t, "cvt.u16.u32 h%zu, r%u;\n", i, n);
        else if (file == 'p')
            add(&t, "and.b32 z, r%u, 1;\nsetp.ne.u32 p%zu, z, 0;\n", n, i);
        else
            add(&t, "mov.b32 w%zu, r%u;\n", i, n);
        n += words_of(c);
    }
    body(&t, f);
    uint32_t n_out = golden_words_out(f);
    add(&t,
        "mov.u32 z, %%ctaid.x;\nmad.lo.u32 z, z, 32, %%lane;\nld.param.u64 %%src, [out];\nmul.wide.u32 x, z, %u;\n"
        "add.u64 %%src, %%src, x;\n",
        4 * n_out);
    uint32_t word = 0;
    for (size_t i = 0; f->out[i]; i++) {
        char file = file_of(f->out[i]);
        if (file == 'd')
            add(&t, "st.global.b64 [%%src+%u], od%zu;\n", 4 * word, i);
        else if (file == 'h')
            add(&t, "cvt.u32.u16 z, oh%zu;\nst.global.b32 [%%src+%u], z;\n", i, 4 * word);
        else if (file == 'p')
            add(&t, "selp.b32 z, 1, 0, op%zu;\nst.global.b32 [%%src+%u], z;\n", i, 4 * word);
        else
            add(&t, "st.global.b32 [%%src+%u], ow%zu;\n", 4 * word, i);
        word += words_of(f->out[i]);
    }
    add(&t, "ret;\n}\n");
    return t.left ? 0 : -1;
}

/* ---- operands ---- */

static uint64_t next(uint64_t *s) { /* splitmix64 */
    uint64_t z = (*s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
#define PICK(table, x) ((table)[(x) % (sizeof(table) / sizeof *(table))])

static uint32_t whole(uint64_t x) {
    static const uint32_t edges[] = {0,  1,  2,  0xffffffff, 0x7fffffff, 0x80000000, 0x80000001, 0xff, 0x100, 0xffff,
                                     31, 32, 33, 0x8000,     0xffff8000, 0x00ff00ff, 0xfffffffe, 7,    24,    0x10000};
    uint32_t kind = (uint32_t)(x >> 60);
    return kind < 4 ? PICK(edges, x) : kind < 8 ? (uint32_t)((int32_t)(x % 2001) - 1000) : (uint32_t)x;
}
static uint32_t modest(uint64_t x) { /* 2^-6 .. 2^3 */
    return ((uint32_t)x & 0x807fffff) | (121 + (uint32_t)(x >> 40) % 9) << 23;
}
static uint32_t real(uint64_t x) {
    static const uint32_t edges[] = {
        0,          0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fffffff, 0x00000001, 0x807fffff,
        0x00800000, 0x7f7fffff, 0x3f000000, 0x3fc00000, 0x40200000, 0xbf000000, 0x477fe000, 0x477ff000, 0x322bcc77,
        0x4f000000, 0xcf000000, 0x4f800000, 0x5f000000, 0x33000000, 0x33000001, 0x387fc000, 0x38000000, 0x7f7f8000,
        0x3f808000, 0x3f818000, 0x3f801000, 0x3f803000, 0x40490fdb, 0x7fc00000, 0x0d800000, 0x00400000, 0x80000001};
    uint32_t kind = (uint32_t)(x >> 60);
    return kind < 5 ? PICK(edges, x) : kind < 12 ? modest(x) : (uint32_t)x;
}
static uint64_t wide_real(uint64_t x, int any) {
    static const uint64_t edges[] = {0,
                                     UINT64_C(1) << 63,
                                     UINT64_C(0x3ff0000000000000),
                                     UINT64_C(0xbff0000000000000),
                                     UINT64_C(0x7ff0000000000000),
                                     UINT64_C(0xfff0000000000000),
                                     UINT64_C(0x7ff8000000000000),
                                     1,
                                     UINT64_C(0x47efffffe0000000),
                                     UINT64_C(0x47effffff0000000),
                                     UINT64_C(0x36a0000000000000),
                                     UINT64_C(0x3810000000000000),
                                     UINT64_C(0x43e0000000000000),
                                     UINT64_C(0x41dfffffffc00000),
                                     UINT64_C(0xc1e0000000000000),
                                     UINT64_C(0x3fe0000000000000)};
    uint32_t kind = (uint32_t)(x >> 60);
    uint64_t m = (x & UINT64_C(0x800fffffffffffff)) | (1017 + (x >> 52) % 9) << 52;
    return !any ? m : kind < 4 ? PICK(edges, x) : kind < 12 ? m : x * UINT64_C(0x9e3779b97f4a7c15);
}
static uint64_t wide_whole(uint64_t x) {
    static const uint64_t edges[] = {0,  1, UINT64_MAX, INT64_MAX, UINT64_C(1) << 63, 0xffffffff, UINT64_C(1) << 32,
                                     255};
    uint32_t kind = (uint32_t)(x >> 60);
    return kind < 4 ? PICK(edges, x) : kind < 8 ? (uint64_t)((int64_t)(x % 2001) - 1000) : x * 0x9e3779b97f4a7c15u;
}
static uint32_t half(uint64_t x, int is_bf16) { /* modest */
    uint32_t sign = (uint32_t)x & 0x8000;
    return is_bf16 ? sign | (uint32_t)(121 + (x >> 20) % 9) << 7 | ((uint32_t)x & 0x7f)
                   : sign | (uint32_t)(10 + (x >> 20) % 9) << 10 | ((uint32_t)x & 0x3ff);
}

void golden_inputs(const struct golden_form *f, uint32_t *out) {
    uint64_t seed = 1469598103934665603u;
    for (const char *c = f->op; *c; c++) seed = (seed ^ (unsigned char)*c) * 1099511628211u;
    for (uint32_t lane = 0; lane < GOLDEN_LANES * GOLDEN_WARPS; lane++, out += GOLDEN_WORDS) {
        uint32_t *to = out;
        memset(out, 0, GOLDEN_WORDS * sizeof *out);
        for (const char *c = f->in; *c; c++) {
            uint64_t x = next(&seed), y = next(&seed), v = x;
            switch (*c) {
            case 'w': v = whole(x); break;
            case 'f': v = real(x); break;
            case 't': v = modest(x); break;
            case 'd': v = wide_whole(x); break;
            case 'e': v = wide_real(x, 0); break;
            case 'j': v = wide_real(x, 1); break;
            case 's': v = x >> 61 ? x % 67 : x % 300; break;
            case 'q': v = half(x, 0) | half(y, 0) << 16; break;
            case 'r': v = half(x, 1) | half(y, 1) << 16; break;
            case 'h': v = whole(x) & 0xffff; break;
            default: break; /* g, p: any bits */
            }
            *to++ = (uint32_t)v;
            if (words_of(*c) == 2) *to++ = (uint32_t)(v >> 32);
        }
    }
}
