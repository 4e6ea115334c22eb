/* SPDX-License-Identifier: MIT
 * Golden cases of mbarriers and clusters: what waits answer step by step, counts of states, transactions that come
 * before they are expected; addresses, ranks, stores and atomics across a cluster. */
#include "hopper_golden.h"

#include <stdio.h>

/* Steps by thread 0; each line of output is one word. */
static void put(struct golden_case *c, uint32_t *word, const char *reg) {
    golden_add(c, "st.global.b32 [%%rd1+%u], %s;\n", 4 * (*word)++, reg);
}
static void ask(struct golden_case *c, uint32_t *word, int parity) {
    golden_add(
        c,
        "mov.u32 %%r22, %d;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%%r20], %%r22;\nselp.u32 %%r22, 1, 0, p;\n",
        parity);
    put(c, word, "%r22");
}
static void arrive(struct golden_case *c, uint32_t *word, const char *form, uint32_t count) {
    golden_add(c, "mbarrier.%s.shared::cta.b64 %%rd8, [%%r20], %u;\nmbarrier.pending_count.b64 %%r22, %%rd8;\n", form,
               count);
    put(c, word, "%r22");
    golden_add(c, "mbarrier.test_wait.shared::cta.b64 p, [%%r20], %%rd8;\nselp.u32 %%r22, 1, 0, p;\n");
    put(c, word, "%r22");
    ask(c, word, 0), ask(c, word, 1);
}

static void machine(struct golden_case *c) {
    uint32_t word = 0;
    golden_add(c,
               "add.u32 %%r20, %%r1, %d;\nsetp.ne.u32 p, %%r0, 0;\n@p bra SKIP;\n"
               "mbarrier.init.shared::cta.b64 [%%r20], 3;\n",
               GOLDEN_IMAGE);
    ask(c, &word, 0), ask(c, &word, 1);
    arrive(c, &word, "arrive", 1), arrive(c, &word, "arrive", 2); /* phase 0 ends */
    arrive(c, &word, "arrive.noComplete", 2);
    arrive(c, &word, "arrive.expect_tx", 64); /* arrivals are complete, bytes are not */
    golden_add(c, "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%%r20], 48;\n");
    ask(c, &word, 0), ask(c, &word, 1);
    golden_add(c, "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%%r20], 16;\n");
    ask(c, &word, 0), ask(c, &word, 1);
    golden_add(c, "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%%r20], 32;\n"); /* before it is expected */
    arrive(c, &word, "arrive", 2);
    arrive(c, &word, "arrive.expect_tx", 32);
    arrive(c, &word, "arrive_drop", 1); /* from now on two */
    arrive(c, &word, "arrive", 2);
    arrive(c, &word, "arrive", 1);
    golden_add(c, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%%r20], 8;\n");
    arrive(c, &word, "arrive", 1);
    golden_add(c, "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%%r20], 8;\n");
    ask(c, &word, 0), ask(c, &word, 1), ask(c, &word, 2), ask(c, &word, 3);
    golden_add(c, "mbarrier.inval.shared::cta.b64 [%%r20];\nSKIP:\nret;\n}\n");
    c->words = word;
}

/* Thread 0 of each CTA writes 16 words at its rank. */
static void cluster(struct golden_case *c) {
    c->ctas = 4, c->words = 64;
    golden_add(
        c,
        "mov.u32 %%r10, %%cluster_ctarank;\nmov.u32 %%r11, %%cluster_nctarank;\nshl.b32 %%r12, %%r10, 6;\n"
        "cvt.u64.u32 %%rd5, %%r12;\nadd.u64 %%rd5, %%rd5, %%rd1;\nadd.u32 %%r13, %%r10, 1;\nand.b32 %%r13, %%r13, 3;\n"
        "add.u32 %%r20, %%r1, %d;\nmapa.shared::cluster.u32 %%r14, %%r20, %%r13;\nsetp.ne.u32 p, %%r0, 0;\n"
        "@p bra FIRST;\nmbarrier.init.shared::cta.b64 [%%r20], 1;\nfence.mbarrier_init.release.cluster;\n"
        "add.u32 %%r15, %%r10, 100;\nst.shared.b32 [%%r20+16], %%r15;\nst.shared.b32 [%%r20+20], %%r15;\n"
        "st.shared.b32 [%%r20+24], 0;\nFIRST:\nbarrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;\nsetp.ne.u32 p, %%r0, 0;\n@p bra SECOND;\n"
        "ld.shared::cluster.b32 %%r16, [%%r14+16];\natom.shared::cluster.add.u32 %%r17, [%%r14+20], 7;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%%r20], 8;\nadd.u32 %%r18, %%r14, 24;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%%r18+4], %%r15, [%%r14];\n"
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%%r18], 5, [%%r14];\n"
        "WAIT:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%%r20], 0;\n@!p bra WAIT;\n"
        "ld.shared.b32 %%r19, [%%r20+24];\nld.shared.b32 %%r21, [%%r20+28];\n"
        "st.global.b32 [%%rd5], %%r10;\nst.global.b32 [%%rd5+4], %%r11;\nst.global.b32 [%%rd5+8], %%r16;\n"
        "st.global.b32 [%%rd5+12], %%r17;\nst.global.b32 [%%rd5+16], %%r19;\nst.global.b32 [%%rd5+20], %%r21;\n"
        "st.global.b32 [%%rd5+24], %%r1;\nst.global.b32 [%%rd5+28], %%r14;\n"
        "getctarank.shared::cluster.u32 %%r22, %%r14;\nst.global.b32 [%%rd5+32], %%r22;\nSECOND:\n"
        "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        "setp.ne.u32 p, %%r0, 0;\n@p bra THIRD;\nld.shared.b32 %%r23, [%%r20+20];\n"
        "st.global.b32 [%%rd5+36], %%r23;\nTHIRD:\nret;\n}\n",
        GOLDEN_IMAGE);
}

/* Sums of vectors in global memory: each thread stores 16 bytes of the image and adds 16 others. */
static void vectors(struct golden_case *c) {
    static const char *const forms[] = {"v4.f32 [%rd5], {%r10, %r11, %r12, %r13}",
                                        "v2.f32 [%rd5], {%r10, %r11}",
                                        "noftz.v4.f16x2 [%rd5], {%r10, %r11, %r12, %r13}",
                                        "noftz.v2.bf16x2 [%rd5], {%r10, %r11}",
                                        "noftz.bf16x2 [%rd5], %r10",
                                        "noftz.v8.bf16 [%rd5], {%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7}",
                                        "noftz.v4.f16 [%rd5], {%h0, %h1, %h2, %h3}",
                                        "noftz.bf16 [%rd5], %h0"};
    c->words = 8 * 512;
    golden_add(c, "cvt.u64.u32 %%rd5, %%r2;\nadd.u64 %%rd5, %%rd5, %%rd1;\n");
    for (uint32_t i = 0; i < 8; i++) {
        golden_add(c,
                   "add.u32 %%r9, %%r1, %%r2;\nld.shared.v4.b32 {%%r5, %%r6, %%r7, %%r8}, [%%r9+%u];\n"
                   "ld.shared.v4.b32 {%%r10, %%r11, %%r12, %%r13}, [%%r9+%u];\n"
                   "st.global.v4.b32 [%%rd5], {%%r5, %%r6, %%r7, %%r8};\n"
                   "mov.b32 {%%h0, %%h1}, %%r10;\nmov.b32 {%%h2, %%h3}, %%r11;\nmov.b32 {%%h4, %%h5}, %%r12;\n"
                   "mov.b32 {%%h6, %%h7}, %%r13;\nred.global.add.%s;\nadd.u64 %%rd5, %%rd5, 2048;\n",
                   4096 * i, 4096 * i + 2048, forms[i]);
    }
    golden_add(c, "ret;\n}\n");
}

int golden_barrier(uint32_t i, struct golden_case *c) {
    static const char *const names[] = {"mbarrier_machine", "cluster", "red_vectors"};
    if (i >= 3) return 0;
    snprintf(c->name, sizeof c->name, "%s", names[i]);
    golden_begin(c, i == 2 ? ".reg .b16 %h<8>;" : "");
    golden_fill(c, i == 2 ? 0 : 5);
    if (i == 0)
        machine(c);
    else if (i == 1)
        cluster(c);
    else
        vectors(c);
    return 1;
}
