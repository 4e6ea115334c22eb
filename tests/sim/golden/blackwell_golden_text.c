/* SPDX-License-Identifier: MIT
 * The frame of a vector's kernel, see blackwell_golden.h: everything but the instruction itself. */
#include "blackwell_golden.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void bg_add(struct bg_case *c, const char *format, ...) {
    size_t n = strlen(c->text);
    va_list list;
    va_start(list, format);
    vsnprintf(c->text + n, sizeof c->text - n, format, list);
    va_end(list);
}
void bg_registers(struct bg_case *c, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) bg_add(c, "%s%%v%u", i ? ", " : "{", i);
    bg_add(c, "}");
}
static void everybody(struct bg_case *c) { /* what tensor and shared memory hold is seen after it */
    bg_add(c, "fence.proxy.async;\ntcgen05.fence::before_thread_sync;\n%stcgen05.fence::after_thread_sync;\n",
           c->ctas == 2 ? "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" : "bar.sync 0;\n");
}

void bg_head(struct bg_case *c) {
    c->text[0] = 0;
    bg_add(c,
           ".version 8.8\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 s[];\n"
           ".visible .entry k(.param .u64 image, .param .u64 cells, .param .u64 out, .param .align 64 .b8 map[128])\n"
           ".maxntid 128, 1, 1\n%s{\n.reg .pred p, q, warp0, add;\n.reg .b16 %%h<4>;\n.reg .b32 %%r<40>;\n"
           ".reg .b32 %%v<128>;\n.reg .b64 %%rd<20>;\nmov.u32 %%r0, %%tid.x;\nmov.u32 %%r1, s;\n"
           "mov.u32 %%r2, %%cluster_ctarank;\nadd.u32 %%r6, %%r1, %d;\nsetp.lt.u32 warp0, %%r0, 32;\n"
           "setp.eq.u32 q, %%r0, 0;\nld.param.u64 %%rd5, [image];\nld.param.u64 %%rd3, [cells];\n"
           "ld.param.u64 %%rd4, [out];\nmad.wide.u32 %%rd5, %%r2, %d, %%rd5;\nmad.wide.u32 %%rd3, %%r2, %d, %%rd3;\n"
           "mad.wide.u32 %%rd4, %%r2, %d, %%rd4;\nmad.wide.u32 %%rd3, %%r0, %d, %%rd3;\n"
           "mad.wide.u32 %%rd4, %%r0, %d, %%rd4;\n",
           c->ctas == 2 ? ".reqnctapercluster 2, 1, 1\n" : "", BG_IMAGE, BG_IMAGE, BG_LANES * BG_COLUMNS * 4,
           BG_LANES * BG_COLUMNS * 4, BG_COLUMNS * 4, BG_COLUMNS * 4);
}
void bg_begin(struct bg_case *c, uint32_t columns) {
    bg_head(c);
    bg_add(c,
           "@warp0 tcgen05.alloc.cta_group::%u.sync.aligned.shared::cta.b32 [%%r6+8], 512;\n"
           "@warp0 tcgen05.relinquish_alloc_permit.cta_group::%u.sync.aligned;\n"
           "@q mbarrier.init.shared::cta.b64 [%%r6], 1;\n@q fence.mbarrier_init.release.cluster;\n"
           "shl.b32 %%r10, %%r0, 4;\nadd.u32 %%r11, %%r1, %%r10;\ncvt.u64.u32 %%rd6, %%r10;\n"
           "add.u64 %%rd6, %%rd6, %%rd5;\nmov.u32 %%r12, 0;\nFILL:\n"
           "ld.global.v4.b32 {%%r13, %%r14, %%r15, %%r16}, [%%rd6];\n"
           "st.shared.v4.b32 [%%r11], {%%r13, %%r14, %%r15, %%r16};\nadd.u32 %%r11, %%r11, 2048;\n"
           "add.u64 %%rd6, %%rd6, 2048;\nadd.u32 %%r12, %%r12, 2048;\nsetp.lt.u32 p, %%r12, %d;\n@p bra FILL;\n",
           c->ctas, c->ctas, BG_IMAGE);
    everybody(c);
    bg_add(c, "ld.shared.b32 %%r4, [%%r6+8];\nshr.u32 %%r5, %%r0, 5;\nshl.b32 %%r5, %%r5, 21;\n"
              "add.u32 %%r5, %%r5, %%r4;\n");
    for (uint32_t column = 0; column < columns; column += 32) {
        for (uint32_t i = 0; i < 32; i += 4)
            bg_add(c, "ld.global.v4.b32 {%%v%u, %%v%u, %%v%u, %%v%u}, [%%rd3+%u];\n", i, i + 1, i + 2, i + 3,
                   4 * (column + i));
        bg_add(c, "tcgen05.st.sync.aligned.32x32b.x32.b32 [%%r5+%u], ", column);
        bg_registers(c, 32);
        bg_add(c, ";\ntcgen05.wait::st.sync.aligned;\n");
    }
    if (columns) everybody(c);
}
void bg_one(struct bg_case *c) { bg_add(c, "or.b32 %%r10, %%r0, %%r2;\nsetp.ne.u32 p, %%r10, 0;\n@p bra SKIP;\n"); }
void bg_commit(struct bg_case *c) {
    if (c->ctas == 2)
        bg_add(c, "mov.b16 %%h0, 3;\ntcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster."
                  "multicast::cluster.b64 [%%r6], %%h0;\n");
    else
        bg_add(c, "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%%r6];\n");
}
void bg_wait(struct bg_case *c) {
    bg_add(c, "SKIP:\nbar.sync 0;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%%r6], 0;\n@!p bra WAIT;\n"
              "bar.sync 0;\ntcgen05.fence::after_thread_sync;\n");
}
void bg_dump(struct bg_case *c, uint32_t columns) {
    for (uint32_t column = 0; column < columns; column += 32) {
        bg_add(c, "tcgen05.ld.sync.aligned.32x32b.x32.b32 ");
        bg_registers(c, 32);
        bg_add(c, ", [%%r5+%u];\ntcgen05.wait::ld.sync.aligned;\n", column);
        for (uint32_t i = 0; i < 32; i += 4)
            bg_add(c, "st.global.v4.b32 [%%rd4+%u], {%%v%u, %%v%u, %%v%u, %%v%u};\n", 4 * (column + i), i, i + 1, i + 2,
                   i + 3);
    }
}
void bg_end(struct bg_case *c) {
    everybody(c);
    bg_add(c, "@warp0 tcgen05.dealloc.cta_group::%u.sync.aligned.b32 %%r4, 512;\nret;\n}\n", c->ctas);
}

void bg_keep(struct bg_case *c, uint32_t columns) {
    memset(c->care, 0, sizeof c->care);
    memcpy(c->want, c->cells, sizeof c->want);
    for (uint32_t v = 0; v < c->ctas; v++)
        for (uint32_t l = 0; l < BG_LANES; l++) memset(c->care[v][l], 0xff, columns * sizeof c->care[v][l][0]);
}
uint32_t bg_random(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (uint32_t)(*state >> 33);
}
uint64_t bg_seed(const char *name) {
    uint64_t state = 88172645463325252u;
    while (*name) state = state * 31 + (unsigned char)*name++;
    return state | 1;
}
