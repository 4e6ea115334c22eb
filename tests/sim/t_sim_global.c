/* SPDX-License-Identifier: MIT
 * Order on global memory inside one kernel: small kernels with what orders accesses of warps and CTAs, which must be
 * silent, and without it, which must be told by both sides. usage: t_sim_global DRIVER */
#include "kernel_mutants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Three CTAs of 64 threads. %r0 thread, %r1 CTA, %r2 number of the thread in the grid, %rd1 the first of 1024 words,
 * %rd0 = &word[%r2], %rd2 = &word[%r0], %rd3 = &word[1000], a flag that is 0. Word i is i. q: thread 0; c0, c1: CTA 0,
 * CTA 1; w0, w1: warp 0, 1 of the CTA; s: 512 bytes of shared memory at %r3. */
/* clang-format off */
#define HEAD(target) ".version 8.1\n.target " target "\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n" \
    ".shared .align 128 .b8 s[1024];\n.reg .pred q, c0, c1, w0, w1, p, last;\n.reg .b16 %h<4>;\n.reg .b32 %r<20>;\n" \
    ".reg .f32 %f<4>;\n.reg .b64 %rd<10>;\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\n" \
    "mad.lo.u32 %r2, %r1, 64, %r0;\nld.param.u64 %rd1, [out];\nmul.wide.u32 %rd0, %r2, 4;\nadd.u64 %rd0, %rd0, %rd1;\n" \
    "mul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd2, %rd2, %rd1;\nadd.u64 %rd3, %rd1, 4000;\nsetp.eq.u32 q, %r0, 0;\n" \
    "setp.eq.u32 c0, %r1, 0;\nsetp.eq.u32 c1, %r1, 1;\nsetp.lt.u32 w0, %r0, 32;\nsetp.ge.u32 w1, %r0, 32;\n" \
    "mov.u32 %r3, s;\nmov.f32 %f0, 0f3f800000;\n"
#define K80(body) HEAD("sm_80") body "ret;\n}\n"
#define K90(body) HEAD("sm_90a") body "ret;\n}\n"
/* clang-format on */
#define SYNC "bar.sync 0;\n"
/* The last CTA to come adds up what all have written. `A`: behind the stores, `B`: before the count, `C`: after it. */
#define LAST(A, B, C)                                                                                                  \
    "st.global.u32 [%rd0], %r2;\n" A B "@q atom.global.add.u32 %r5, [%rd3], 1;\n@q st.shared.u32 [%r3], %r5;\n" C SYNC \
    "ld.shared.u32 %r5, [%r3];\nsetp.ne.u32 p, %r5, 2;\n@p bra END;\nld.global.u32 %r6, [%rd2];\n"                     \
    "ld.global.u32 %r7, [%rd2+256];\nld.global.u32 %r8, [%rd2+512];\nadd.u32 %r6, %r6, %r7;\nadd.u32 %r6, %r6, %r8;\n" \
    "st.global.u32 [%rd2+2048], %r6;\nEND:\n"
#define FENCE     "membar.gl;\n"
#define ONE_FENCE "@q fence.acq_rel.gpu;\n"
/* CTA 0 writes and raises the flag, CTA 1 waits for it and reads. */
#define FLAG(raise, poll)                                                                                              \
    "@!c0 bra OTHER;\nst.global.u32 [%rd2], %r0;\n" SYNC "mov.u32 %r5, 1;\n" raise                                     \
    "bra END;\nOTHER:\n@!c1 bra END;\n@!q bra GO;\nPOLL:\n" poll "setp.eq.u32 p, %r6, 0;\n@p bra POLL;\nGO:\n" SYNC    \
    "ld.global.u32 %r7, [%rd2];\nst.global.u32 [%rd2+256], "                                                           \
    "%r7;\nEND:\n"
/* On Hopper: one thread stores 256 bytes of shared memory over its CTA's words, then all read them. */
#define STORE_BULK                                                                                                     \
    "shl.b32 %r4, %r0, 2;\nadd.u32 %r4, %r4, %r3;\nst.shared.u32 [%r4], %r2;\nfence.proxy.async;\n" SYNC               \
    "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r3], 256;\n@q cp.async.bulk.commit_group;\n"
#define STORED SYNC "ld.global.u32 %r5, [%rd0];\nst.global.u32 [%rd0+2048], %r5;\n"
/* All write their words, one thread brings them into shared memory. */
#define LOAD_BULK(fence)                                                                                               \
    "@q mbarrier.init.shared::cta.b64 [%r3], 1;\n@q fence.mbarrier_init.release.cluster;\nst.global.u32 [%rd0], "      \
    "%r2;\n" fence SYNC "@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;\n"                                \
    "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+128], [%rd0], 256, [%r3];\n"            \
    "W:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r3], 0;\n@!p bra W;\n"

/* A thread waits for a number other than 0 at %rd3. */
#define WAIT_FOR(load) "@!q bra END;\nPOLL:\n" load "setp.eq.u32 p, %r6, 0;\n@p bra POLL;\nEND:\n"
/* CTA 0 and CTA 1 hand a number to and fro; neither can end alone. */
#define TO_AND_FRO                                                                                                     \
    "@!q bra END;\nsetp.gt.u32 p, %r1, 1;\n@p bra END;\nmov.u32 %r7, 0;\nTURN:\nPOLL:\n"                               \
    "ld.acquire.gpu.global.u32 %r6, [%rd3];\nand.b32 %r8, %r6, 1;\nsetp.ne.u32 p, %r8, %r1;\n@p bra POLL;\n"           \
    "add.u32 %r6, %r6, 1;\nst.release.gpu.global.u32 [%rd3], %r6;\nadd.u32 %r7, %r7, 1;\nsetp.lt.u32 p, %r7, 200;\n"   \
    "@p bra TURN;\nEND:\n"

enum { N = 1024 };
static uint32_t words[N];

static const struct {
    const char *name, *ptx, *finding, *other; /* finding, other: texts that must be told; NULL: silence */
} cases[] = {
    {"disjoint", K80("ld.global.u32 %r5, [%rd2];\nst.global.u32 [%rd0+1024], %r5;\n"), NULL, NULL},
    {"two_writers", K80("st.global.u32 [%rd2], %r0;\n"), "written by CTA (0,0,0) warp", "nothing orders"},
    {"reads_what_another_writes", K80("@c0 st.global.u32 [%rd2], %r0;\n@c1 ld.global.u32 %r5, [%rd2];\n"),
     "race: reads offset", "written by CTA (0,0,0) warp"},
    {"writes_what_another_reads", K80("@c1 st.global.u32 [%rd2], %r0;\n@c0 ld.global.u32 %r5, [%rd2];\n"),
     "race: writes offset", "read by CTA (0,0,0) warp"},
    {"copies_what_another_writes",
     K80("@c0 st.global.u32 [%rd2], %r0;\nshl.b32 %r4, %r0, 2;\nadd.u32 %r4, %r4, %r3;\n@c1 cp.async.ca.shared.global "
         "[%r4], [%rd2], 4;\ncp.async.wait_all;\n"),
     "race: reads offset", "written by CTA (0,0,0) warp"},
    {"halves_of_a_word",
     K80("mul.lo.u32 %r4, %r1, 2;\ncvt.u64.u32 %rd4, %r4;\nadd.u64 %rd4, %rd4, %rd2;\nmov.b16 %h0, "
         "1;\nsetp.lt.u32 p, %r1, 2;\n@p st.global.u16 [%rd4], %h0;\n"),
     NULL, NULL},
    {"same_half", K80("mov.b16 %h0, 1;\nst.global.u16 [%rd2], %h0;\n"), "written by CTA", NULL},
    {"sums", K80("red.global.add.f32 [%rd2], %f0;\n"), NULL, NULL},
    {"sums_of_bits", K80("red.global.add.f32 [%rd2], %f0;\n"), "race: adds", "order decides bits"},
    {"sums_of_bits_whole_words", K80("red.global.add.u32 [%rd2], 1;\n"), NULL, NULL},
    {"sums_of_bits_maxima", K80("red.global.max.s32 [%rd2], 1;\n"), NULL, NULL},
    {"sums_of_bits_lanes", K80("@c0 red.global.add.f32 [%rd3], %f0;\n"), "add to the same place by one instruction",
     NULL},
    {"sums_of_bits_shared",
     K80("shl.b32 %r4, %r0, 2;\nand.b32 %r4, %r4, 127;\nadd.u32 %r4, %r4, %r3;\n@w0 st.shared.f32 [%r4], %f0;\n" SYNC
         "red.shared.add.f32 [%r4], %f0;\n"),
     "adds to shared byte", "order decides bits"},
    {"sums_of_bits_shared_in_turn",
     K80("shl.b32 %r4, %r0, 2;\nand.b32 %r4, %r4, 127;\nadd.u32 %r4, %r4, %r3;\n@w0 st.shared.f32 [%r4], %f0;\n" SYNC
         "@w0 red.shared.add.f32 [%r4], %f0;\n" SYNC "@w1 red.shared.add.f32 [%r4], %f0;\n"),
     NULL, NULL},
    {"sums_of_bits_in_turn", /* CTA 0, then CTA 1 */
     K80("@c0 red.global.add.f32 [%rd2], %f0;\n" SYNC "mov.u32 %r5, 1;\n@!c0 bra NEXT;\n@q st.release.gpu.global.u32 "
         "[%rd3], %r5;\nbra END;\nNEXT:\n@!c1 bra END;\n@!q bra GO;\nPOLL:\nld.acquire.gpu.global.u32 %r6, [%rd3];\n"
         "setp.eq.u32 p, %r6, 0;\n@p bra POLL;\nGO:\n" SYNC "red.global.add.f32 [%rd2], %f0;\nEND:\n"),
     NULL, NULL},
    {"sums_of_bits_no_turn", /* likewise, with nothing released */
     K80("@c0 red.global.add.f32 [%rd2], %f0;\n" SYNC "mov.u32 %r5, 1;\n@!c0 bra NEXT;\n@q st.relaxed.gpu.global.u32 "
         "[%rd3], %r5;\nbra END;\nNEXT:\n@!c1 bra END;\n@!q bra GO;\nPOLL:\nld.acquire.gpu.global.u32 %r6, [%rd3];\n"
         "setp.eq.u32 p, %r6, 0;\n@p bra POLL;\nGO:\n" SYNC "red.global.add.f32 [%rd2], %f0;\nEND:\n"),
     "race: adds", "as CTA (0,0,0)"},
    {"sums_of_bits_bulk",
     K90("shl.b32 %r4, %r0, 2;\nadd.u32 %r4, %r4, %r3;\nst.shared.f32 [%r4], %f0;\nfence.proxy.async;\n" SYNC
         "@q cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r3], 256;\n@q "
         "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"),
     "race: adds", "a bulk copy"},
    {"sum_and_store", K80("@c0 red.global.add.f32 [%rd2], %f0;\n@c1 st.global.u32 [%rd2], %r0;\n"), "written by CTA",
     NULL},
    {"sum_and_load", K80("@c0 red.global.add.f32 [%rd2], %f0;\n@c1 ld.global.u32 %r5, [%rd2];\n"), "reads offset",
     NULL},
    {"strong_both",
     K80("@c0 st.relaxed.gpu.global.u32 [%rd2], %r0;\n@c1 ld.relaxed.gpu.global.u32 %r5, [%rd2];\n@c1 ld.volatile."
         "global.u32 %r5, [%rd2];\n"),
     NULL, NULL},
    {"strong_in_a_cta", K80("@c0 st.relaxed.cta.global.u32 [%rd2], %r0;\n@c1 ld.relaxed.gpu.global.u32 %r5, [%rd2];\n"),
     "reads offset", NULL},
    /* warps of a CTA */
    {"warps_barrier",
     K80("@!c0 bra END;\n@w0 st.global.u32 [%rd2], %r0;\n" SYNC "@w1 ld.global.u32 %r5, [%rd2-128];\n" SYNC
         "@w0 st.global.u32 [%rd2], %r0;\nEND:\n"),
     NULL, NULL},
    {"warps_no_barrier",
     K80("@!c0 bra END;\n@w0 st.global.u32 [%rd2], %r0;\n@w1 ld.global.u32 %r5, [%rd2-128];\nEND:\n"),
     "race:", "CTA (0,0,0) warp"},
    {"warps_no_barrier_after",
     K80("@!c0 bra END;\n@w0 st.global.u32 [%rd2], %r0;\n" SYNC
         "@w1 ld.global.u32 %r5, [%rd2-128];\n@w0 st.global.u32 [%rd2], %r0;\nEND:\n"),
     "race:", "CTA (0,0,0) warp"},
    /* the last CTA merges */
    {"last", K80(LAST("", SYNC ONE_FENCE, FENCE)), NULL, NULL},
    {"last_no_release", K80(LAST("", SYNC, FENCE)), "race: reads", "written by CTA"},
    {"last_other_threads_release", K80(LAST(FENCE, SYNC, FENCE)), "race: reads", "warp 1"},
    {"last_no_acquire", K80(LAST("", SYNC ONE_FENCE, "")), "race: reads", "written by CTA"},
    {"last_no_barrier", K80(LAST("", ONE_FENCE, FENCE)), "race: reads", "written by CTA"},
    {"last_small_fence", K80(LAST("", SYNC "membar.cta;\n", FENCE)), "race: reads", "written by CTA"},
    /* flags */
    {"flag", K80(FLAG("@q st.release.gpu.global.u32 [%rd3], %r5;\n", "ld.acquire.gpu.global.u32 %r6, [%rd3];\n")), NULL,
     NULL},
    {"flag_sum",
     K80(FLAG("@q red.release.gpu.global.add.u32 [%rd3], %r5;\n", "atom.acquire.gpu.global.or.b32 %r6, [%rd3], 0;\n")),
     NULL, NULL},
    {"flag_fences",
     K80(FLAG("@q fence.acq_rel.gpu;\n@q st.volatile.global.u32 [%rd3], %r5;\n",
              "ld.volatile.global.u32 %r6, [%rd3];\nfence.acq_rel.gpu;\n")),
     NULL, NULL},
    {"flag_no_release",
     K80(FLAG("@q st.relaxed.gpu.global.u32 [%rd3], %r5;\n", "ld.acquire.gpu.global.u32 %r6, [%rd3];\n")),
     "race: reads offset", "written by CTA (0,0,0)"},
    {"flag_no_acquire",
     K80(FLAG("@q st.release.gpu.global.u32 [%rd3], %r5;\n", "ld.relaxed.gpu.global.u32 %r6, [%rd3];\n")),
     "race: reads offset", "written by CTA (0,0,0)"},
    {"flag_weak", K80(FLAG("@q st.global.u32 [%rd3], %r5;\n", "ld.acquire.gpu.global.u32 %r6, [%rd3];\n")),
     "race: reads offset 4000", "written by CTA (0,0,0)"},
    {"flag_sys", K80(FLAG("@q st.release.sys.global.u32 [%rd3], %r5;\n", "ld.acquire.sys.global.u32 %r6, [%rd3];\n")),
     NULL, NULL},
    /* polls */
    {"poll_for_ever", K80(WAIT_FOR("ld.acquire.gpu.global.u32 %r6, [%rd3];\n")), "deadlock: no warp can go on",
     "polls memory that nobody is left to write"},
    {"poll_for_ever_volatile", K80(WAIT_FOR("ld.volatile.global.u32 %r6, [%rd3];\n")), "deadlock: no warp can go on",
     "polls memory"},
    {"poll_for_ever_shared", K80("@q st.shared.u32 [%r3], 0;\n" SYNC WAIT_FOR("ld.volatile.shared.u32 %r6, [%r3];\n")),
     "deadlock: no warp can go on", "polls memory"},
    {"poll_for_ever_atomic", K80(WAIT_FOR("atom.global.or.b32 %r6, [%rd3], 0;\n")), "deadlock: no warp can go on",
     "polls memory"},
    {"poll_for_ever_cas", K80(WAIT_FOR("atom.global.cas.b32 %r6, [%rd3], 1, 0;\n")), "deadlock: no warp can go on",
     "polls memory"},
    {"poll_two_for_ever",
     K80(WAIT_FOR(
         "ld.volatile.global.u32 %r6, [%rd3];\nld.volatile.global.u32 %r5, [%rd3+4];\nor.b32 %r6, %r6, %r5;\n")),
     "deadlock: no warp can go on", "polls memory"},
    {"poll_behind_a_barrier", K80("@q bra GO;\n" SYNC "GO:\n" WAIT_FOR("ld.volatile.global.u32 %r6, [%rd3];\n")),
     "deadlock: no warp can go on", NULL},
    {"poll_while_another_works",
     K80("@!c0 bra END;\n@w1 bra WORK;\nPOLL:\nld.relaxed.gpu.global.u32 %r6, [%rd3];\nsetp.ne.u32 p, %r6, 7;\n@p bra "
         "POLL;\nbra END;\nWORK:\nmov.u32 %r5, 0;\nLOOP:\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 p, %r5, 50000;\n@p bra LOOP;\n"
         "mov.u32 %r5, 7;\nst.relaxed.gpu.global.u32 [%rd3], %r5;\nEND:\n"),
     NULL, NULL},
    {"poll_and_count",
     K80("@!q bra END;\nmov.u32 %r5, 0;\nPOLL:\nld.volatile.global.u32 %r6, [%rd3];\nadd.u32 %r5, %r5, 1;\n"
         "setp.lt.u32 p, %r5, 100000;\n@p bra POLL;\nEND:\n"),
     NULL, NULL},
    {"poll_across_2_threads", K80(TO_AND_FRO), NULL, NULL},
    {"poll_for_ever_3_threads", K80(WAIT_FOR("ld.acquire.gpu.global.u32 %r6, [%rd3];\n")),
     "deadlock: no warp can go on", "polls memory"},
    /* bulk copies */
    {"bulk_store", K90(STORE_BULK "cp.async.bulk.wait_group 0;\n" STORED), NULL, NULL},
    {"bulk_store_read", K90(STORE_BULK "cp.async.bulk.wait_group.read 0;\n" STORED), "race: reads", "a bulk copy"},
    {"bulk_store_late", K90(STORE_BULK STORED "cp.async.bulk.wait_group 0;\n"), "race: reads", "a bulk copy"},
    {"bulk_stores_clash", K90("mov.u64 %rd0, %rd2;\n" STORE_BULK "cp.async.bulk.wait_group 0;\n"), "race: writes",
     "a bulk copy"},
    {"bulk_sums",
     K90("shl.b32 %r4, %r0, 2;\nadd.u32 %r4, %r4, %r3;\nst.shared.f32 [%r4], %f0;\nfence.proxy.async;\n" SYNC
         "@q cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r3], 256;\n@q "
         "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"),
     NULL, NULL},
    {"bulk_load", K90(LOAD_BULK("fence.proxy.async;\n")), NULL, NULL},
    {"bulk_load_global", K90(LOAD_BULK("fence.proxy.async.global;\n")), NULL, NULL},
    {"bulk_load_no_fence", K90(LOAD_BULK("")), "proxy: only a fence is missing: reads offset", "no fence.proxy.async"},
    {"bulk_load_small_fence", K90(LOAD_BULK("fence.proxy.async.shared::cta;\n")),
     "proxy: only a fence is missing: reads offset", "no fence.proxy.async"},
    {"bulk_load_then_write", K90(LOAD_BULK("fence.proxy.async;\n") SYNC "st.global.u32 [%rd0], %r0;\n"), NULL, NULL},
    {"bulk_load_and_write",
     K90("@q mbarrier.init.shared::cta.b64 [%r3], 1;\n@q fence.mbarrier_init.release.cluster;\n" SYNC
         "@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;\n@q cp.async.bulk.shared::cluster.global."
         "mbarrier::complete_tx::bytes [%r3+128], [%rd0], 256, [%r3];\n" SYNC
         "st.global.u32 [%rd0], %r0;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r3], 0;\n@!p bra W;\n"),
     "race: writes", "a bulk copy"},
};

static int run(const char *driver, int i) {
    void *module, *function;
    uint64_t address, n = 0;
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "h100", 1);
    const char *several = strstr(cases[i].name, "_threads"); /* of the host, behind their number */
    setenv("ATTNSIM_ORDERED_SUMS", strncmp(cases[i].name, "sums_of_bits", 12) ? "0" : "1", 1);
    setenv("ATTNSIM_THREADS", several ? (char[]){several[-1], 0} : "1", 1);
    if (kernel_open_driver(driver) || cu.load(&module, cases[i].ptx, 0, NULL, NULL) ||
        cu.function(&function, module, "k"))
        return -1;
    for (uint32_t k = 0; k < N; k++) words[k] = k < 1000 ? k : 0;
    struct kernel_launch l = {.grid = {3, 1, 1}, .block = {64, 1, 1}};
    void *params[] = {&address};
    if (kernel_upload(&address, words, sizeof words)) return -1;
    int r = cu.launch(&l, function, params, NULL);
    const char *text = cu.report(&n, 0), *want = cases[i].finding, *other = cases[i].other;
    if (want ? n && strstr(text, want) && (!other || strstr(text, other)) : !r && !n) return 0;
    printf("FAIL %s, %s: result %d, %llu findings: %s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text);
    return 1;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
