/* SPDX-License-Identifier: MIT
 * Golden cases of wgmma: shapes, types, where operands are, every swizzle with both orders, starts inside a swizzle's
 * pattern with and without base offset, distances that tell leading from stride, negations. */
#include "hopper_golden.h"

#include <stdio.h>

struct shape {
    const char *types; /* D, A, B */
    uint8_t k, size, kind, half;
};
static const struct shape shapes[] = {
    {"f32.bf16.bf16", 16, 2, 1, 0}, {"f32.f16.f16", 16, 2, 0, 0},   {"f16.f16.f16", 16, 2, 0, 1},
    {"f32.tf32.tf32", 8, 4, 2, 0},  {"f32.e4m3.e4m3", 32, 1, 3, 0}, {"f32.e5m2.e5m2", 32, 1, 4, 0},
    {"f32.e4m3.e5m2", 32, 1, 3, 0}, {"f16.e4m3.e4m3", 32, 1, 3, 1},
};
struct product {
    uint8_t shape;
    uint16_t n;
    uint8_t registers, trans_a, trans_b, negate_a, negate_b, no_sums;
    uint64_t a, b; /* descriptors, but for the start of the CTA's memory */
};
#define DESC(start, leading, stride, base, mode)                                                                       \
    ((uint64_t)((start) >> 4) | (uint64_t)((leading) >> 4) << 16 | (uint64_t)((stride) >> 4) << 32 |                   \
     (uint64_t)(base) << 49 | (uint64_t)(mode) << 62)

static int choose(uint32_t i, struct product *p, char *name, size_t room) {
    static const uint16_t ns[] = {8, 16, 24, 32, 64, 96, 128, 192, 256};
    static const uint32_t spans[] = {16, 128, 64, 32};
    *p = (struct product){.n = 64};
    if (i < 18) { /* shapes in both 16-bit types, 128-byte swizzle */
        p->shape = i & 1, p->n = ns[i / 2];
        p->a = DESC(0, 16, 1024, 0, 1), p->b = DESC(16384, 16, 1024, 0, 1);
        snprintf(name, room, "wgmma_n%u_%s", p->n, shapes[p->shape].types);
        return 1;
    }
    i -= 18;
    if (i < 16) { /* swizzle x order of A x order of B */
        uint32_t mode = i / 4, span = spans[mode];
        p->trans_a = i & 1, p->trans_b = i >> 1 & 1;
        p->a = DESC(0, p->trans_a && mode ? 8192 : 2048, 8 * span + (mode ? 0 : 128), 0, mode);
        p->b = DESC(24576, p->trans_b && mode ? 8192 : 4096, 8 * span + (mode ? 0 : 384), 0, mode);
        snprintf(name, room, "wgmma_mode%u_ta%u_tb%u", mode, p->trans_a, p->trans_b);
        return 1;
    }
    i -= 16;
    if (i < 12) { /* starts inside a row and at rows of a pattern, base offset told or not; wider strides */
        static const uint32_t starts[] = {32, 64, 96, 128, 384, 640, 128, 384, 512, 1024, 48, 160};
        uint32_t base = i >= 6 && i < 9 ? starts[i] >> 7 : 0;
        p->a = DESC(starts[i], 16, i == 9 ? 2048 : 1024, base, i == 8 ? 2 : 1);
        p->b = DESC(32768 + starts[i], 16, i == 9 ? 2048 : 1024, base, i == 8 ? 2 : 1);
        snprintf(name, room, "wgmma_start%u_base%u", starts[i], base);
        return 1;
    }
    i -= 12;
    if (i < 8) { /* A in registers */
        p->shape = i & 1, p->registers = 1, p->trans_b = i >> 1 & 1, p->n = i & 4 ? 256 : 64;
        p->b = DESC(0, p->trans_b ? 8192 : 16, 1024, 0, 1);
        snprintf(name, room, "wgmma_rs_n%u_tb%u_%s", p->n, p->trans_b, shapes[p->shape].types);
        return 1;
    }
    i -= 8;
    if (i < 12) { /* other types, A in shared memory and in registers */
        p->shape = (uint8_t)(2 + i / 2), p->registers = i & 1, p->n = 32;
        p->a = DESC(0, 16, 1024, 0, 1), p->b = DESC(16384, 16, 1024, 0, 1);
        snprintf(name, room, "wgmma_%s_%s", p->registers ? "rs" : "ss", shapes[p->shape].types);
        return 1;
    }
    i -= 12;
    if (i < 4) {
        p->negate_a = i & 1, p->negate_b = i >> 1 & 1, p->no_sums = i == 3, p->n = 16;
        p->a = DESC(0, 16, 1024, 0, 1), p->b = DESC(16384, 16, 1024, 0, 1);
        snprintf(name, room, "wgmma_na%u_nb%u_d%u", p->negate_a, p->negate_b, !p->no_sums);
        return 1;
    }
    return 0;
}

int golden_wgmma(uint32_t i, struct golden_case *c) {
    struct product p;
    char declarations[64];
    if (!choose(i, &p, c->name, sizeof c->name)) return 0;
    const struct shape *s = &shapes[p.shape];
    uint32_t n = s->half ? p.n / 4u : p.n / 2u;
    snprintf(declarations, sizeof declarations, ".reg .b32 %%d<%u>;\n.reg .b32 %%a<4>;", n);
    golden_begin(c, declarations);
    golden_fill(c, s->kind);
    c->a = p.a, c->b = p.b, c->words = n * 128;
    golden_add(c, "shr.u32 %%r9, %%r1, 4;\ncvt.u64.u32 %%rd5, %%r9;\nadd.u64 %%rd2, %%rd2, %%rd5;\n"
                  "add.u64 %%rd3, %%rd3, %%rd5;\n");
    /* sums start as whole numbers of the thread, A as words of the image */
    golden_add(c, "cvt.rn.f32.u32 %%r10, %%r0;\nmov.b32 %%r11, 0x3c004000;\n");
    for (uint32_t k = 0; k < n; k++) golden_add(c, "mov.b32 %%d%u, %%r%u;\n", k, s->half ? 11 : 10);
    for (uint32_t k = 0; k < 4; k++)
        golden_add(c, "add.u32 %%r12, %%r1, %u;\nadd.u32 %%r12, %%r12, %%r2;\nld.shared.b32 %%a%u, [%%r12];\n",
                   32768 + 4 * k, k);
    golden_add(c, "setp.eq.u32 q, %%r1, %s;\nwgmma.fence.sync.aligned;\n", p.no_sums ? "0" : "%r1");
    golden_add(c, "wgmma.mma_async.sync.aligned.m64n%uk%u.%s {", p.n, s->k, s->types);
    for (uint32_t k = 0; k < n; k++) golden_add(c, "%s%%d%u", k ? ", " : "", k);
    golden_add(c, "}, %s, %%rd3, q, %d, %d", p.registers ? "{%a0, %a1, %a2, %a3}" : "%rd2", p.negate_a ? -1 : 1,
               p.negate_b ? -1 : 1);
    if (s->size == 2 && !p.registers) golden_add(c, ", %u", p.trans_a);
    if (s->size == 2) golden_add(c, ", %u", p.trans_b);
    golden_add(c, ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
                  "shl.b32 %%r13, %%r0, 2;\ncvt.u64.u32 %%rd6, %%r13;\nadd.u64 %%rd6, %%rd6, %%rd1;\n");
    for (uint32_t k = 0; k < n; k++) golden_add(c, "st.global.b32 [%%rd6+%u], %%d%u;\n", k * 512, k);
    golden_add(c, "ret;\n}\n");
    return 1;
}
