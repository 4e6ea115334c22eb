/* SPDX-License-Identifier: MIT
 * Small kernels of sm_90 in the simulator: right ones give the right words and no finding, offences against the
 * protocol of a barrier, a copy or a cluster are named. usage: t_sim_sm90 DRIVER */
#include "kernel_mutants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 64 threads in each of two CTAs, one cluster. s: 2048 bytes of shared memory at %r1; %r0 = thread, %r3 = rank, %rd0 =
 * place of this thread's word, 128 of them, %rd1 = the first; word i is 1000 + i. q: first thread. */
/* clang-format off */
#define KERNEL(body) KERNEL_OF(".minnctapersm 1\n", body)
#define KERNEL_OF(words, body) \
    ".version 8.1\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out)\n.maxntid 64, 1, 1\n" words \
    ".reqnctapercluster 2, 1, 1\n{\n.shared .align 128 .b8 s[2048];\n.reg .pred p, q;\n.reg .b32 %r<30>;\n" \
    ".reg .f32 %f<40>;\n.reg .b64 %rd<10>;\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\nmov.u32 %r3, %cluster_ctarank;\n" \
    "ld.param.u64 %rd1, [out];\nmad.lo.u32 %r4, %r3, 64, %r0;\nmul.wide.u32 %rd0, %r4, 4;\nadd.s64 %rd0, %rd0, %rd1;\n" \
    "setp.eq.u32 q, %r0, 0;\nshl.b32 %r5, %r0, 2;\nadd.u32 %r6, %r1, %r5;\nmov.u32 %r7, 1;\nxor.b32 %r8, %r3, 1;\n" \
    "mapa.shared::cluster.u32 %r9, %r1, %r8;\n" body "ret;\n}\n"
/* clang-format on */
/* The mbarrier is at the start of s, data from byte 128 on. */
#define INIT(n)   "@q mbarrier.init.shared::cta.b64 [%r1], " #n ";\n"
#define FENCE     "@q fence.mbarrier_init.release.cluster;\n"
#define SYNC      "bar.sync 0;\n"
#define ARRIVE    "mbarrier.arrive.shared::cta.b64 _, [%r1];\n"
#define WAIT(n)   "W" #n ":\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r1], " #n ";\n@!p bra W" #n ";\n"
#define CLUSTER   "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
#define EXPECT(n) "@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], " #n ";\n"
#define LOAD      "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd0], 256, [%r1];\n"
#define TAKE      "ld.shared.u32 %r10, [%r6+128];\nst.global.u32 [%rd0], %r10;\n"
#define SEND(who)                                                                                                      \
    "@" who " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9+128], [%rd0], 256, [%r9];\n"
#define STORE "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+128], 256;\n@q cp.async.bulk.commit_group;\n"
/* `body` by thread 0 at one place and by the others at another; the word of the thread that mirrors this one */
#define APART(body) "{\n@q bra ONE;\n" body "bra BOTH;\nONE:\n" body "BOTH:\n}\n"
#define MIRROR(body)                                                                                                   \
    "st.shared.u32 [%r6+128], %r4;\n" APART(                                                                           \
        body) "xor.b32 %r5, %r5, 252;\nadd.u32 %r6, %r1, %r5;\n"                                                       \
              "ld.shared.u32 %r10, [%r6+128];\nxor.b32 %r10, %r10, 63;\nst.global.u32 [%rd0], %r10;\n"

enum { N = 128 };
#define GOES_ON 0x80000000u /* after a finding, with words from 0 on */
static uint32_t words[N];

static const struct {
    const char *name, *ptx, *finding; /* finding: NULL = none, and the word of thread t is first + t * step */
    uint32_t first, step;
} cases[] = {
    {"bulk_load", KERNEL(INIT(1) FENCE SYNC EXPECT(256) LOAD WAIT(0) TAKE CLUSTER), NULL, 1000, 1},
    {"arrivals",
     KERNEL("st.shared.u32 [%r6+128], %r4;\n" INIT(64) FENCE SYNC ARRIVE WAIT(
         0) "xor.b32 %r5, %r5, 252;\n"
            "add.u32 %r6, %r1, %r5;\nld.shared.u32 %r10, [%r6+128];\nsub.u32 %r10, %r10, %r10;\n"
            "add.u32 %r10, %r10, %r4;\nst.global.u32 [%rd0], %r10;\n" ARRIVE WAIT(1) CLUSTER),
     NULL, 0, 1},
    {"copies_noinc",
     KERNEL(INIT(64) FENCE SYNC "cp.async.ca.shared.global [%r6+128], [%rd0], 4;\n"
                                "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];\n" WAIT(0) TAKE CLUSTER),
     NULL, 1000, 1},
    {"copies_inc",
     KERNEL(INIT(64) FENCE SYNC "cp.async.ca.shared.global [%r6+128], [%rd0], 4;\n"
                                "cp.async.mbarrier.arrive.shared::cta.b64 [%r1];\n" ARRIVE WAIT(0) TAKE CLUSTER),
     NULL, 1000, 1},
    {"copies_waited_too",
     KERNEL(INIT(64) FENCE SYNC
            "cp.async.ca.shared.global [%r6+128], [%rd0], 4;\n"
            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];\ncp.async.wait_all;\n" TAKE WAIT(0) CLUSTER),
     NULL, 1000, 1},
    /* each CTA sends its 256 bytes to the other: word of thread t is the other's */
    {"cluster_copy",
     KERNEL(
         "ld.global.u32 %r10, [%rd0];\nst.shared.u32 [%r6+128], %r10;\n" INIT(1) FENCE
         "fence.proxy.async;\n" SYNC CLUSTER EXPECT(
             256) "@q cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r9+1024], "
                  "[%r1+128], 256, [%r9];\n" WAIT(0) "ld.shared.u32 %r10, [%r6+1024];\nmov.u32 %r11, 1064;\n"
                                                     "sub.u32 %r11, %r11, %r3;\nst.global.u32 [%rd0], %r10;\n" CLUSTER),
     NULL, 0xffffffff, 0},
    {"remote_store", KERNEL("add.u32 %r12, %r9, %r5;\nst.shared::cluster.u32 [%r12+128], %r4;\n" CLUSTER TAKE), NULL,
     0xfffffffe, 0},
    {"bulk_store",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nfence.proxy.async;\n" SYNC
            "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+128], 256;\n"
            "@q cp.async.bulk.commit_group;\n@q cp.async.bulk.wait_group 0;\n"),
     NULL, 0, 1},
    {"bulk_add",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nfence.proxy.async;\n" SYNC
            "@q cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1+128], 256;\n"
            "@q cp.async.bulk.commit_group;\n@q cp.async.bulk.wait_group.read 0;\n"),
     NULL, 1000, 2},

    /* warps that arrive at the cluster's barrier and end do not stand for the one that is late */
    {"cluster_ended_warps",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nmov.u32 %r10, 0;\nmad.lo.u32 %r11, %r3, 32, %r0;\n"
            "and.b32 %r12, %r11, 96;\nsetp.ne.u32 p, %r12, 32;\n@p bra COME;\nsetp.eq.u32 p, %r3, 0;\n@p bra COME;\n"
            "LATE:\nadd.u32 %r10, %r10, 1;\nsetp.lt.u32 p, %r10, 30000;\n@p bra LATE;\nCOME:\n"
            "barrier.cluster.arrive.aligned;\nsetp.gt.u32 p, %r0, 31;\n@p bra OUT;\nbarrier.cluster.wait.aligned;\n"
            "add.u32 %r12, %r9, %r5;\nld.shared::cluster.u32 %r10, [%r12+128];\nst.global.u32 [%rd0], %r10;\n"
            "ld.shared::cluster.u32 %r10, [%r12+256];\nst.global.u32 [%rd0+128], %r10;\n" CLUSTER "OUT:\n"),
     NULL, 0xfffffffe, 0},
    /* without .aligned: thread 0 comes at a place of its own */
    {"threads_sync", KERNEL(MIRROR("barrier.sync 1, 64;\n")), NULL, 0, 1},
    {"threads_sync_all", KERNEL(MIRROR("barrier.sync 1;\n")), NULL, 0, 1},
    {"threads_sync_ended",
     KERNEL("st.global.u32 [%rd0], %r4;\n@q ret;\nsetp.eq.u32 q, %r0, 1;\n" APART("barrier.sync 1;\n")
                APART("barrier.sync 1, 64;\n")),
     NULL, 0, 1},
    {"threads_arrive",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nst.global.u32 [%rd0], %r4;\nsetp.gt.u32 p, %r0, 31;\n@p bra TAKE;\n"
            "@q bra ONE;\nbarrier.arrive 1, 64;\nbra OUT;\nONE:\nbarrier.arrive 1, 64;\nbra OUT;\nTAKE:\n"
            "barrier.sync 1, 64;\nld.shared.u32 %r10, [%r6];\nst.global.u32 [%rd0+-128], %r10;\nOUT:\n"),
     NULL, 0, 1},
    {"threads_missing",
     KERNEL("setp.eq.u32 p, %r0, 1;\n@p bra WAIT;\nbarrier.sync 1, 64;\nWAIT:\n@p barrier.sync 2, 64;\n"),
     "barrier 2, 1 threads of 64 have come", 0, 0},
    {"threads_cluster",
     KERNEL("st.shared.u32 [%r6+128], %r4;\n" APART(
         "barrier.cluster.arrive;\nbarrier.cluster.wait;\n") "add.u32 %r12, %r9, %r5;\nld.shared::cluster.u32 %r10, [%r12+128];\nst.global.u32 [%rd0], %r10;\n" CLUSTER),
     NULL, 0xfffffffe, 0},
    /* thread 0 of each CTA writes to the other, which waits for its own mbarrier and ends */
    {"copy_is_no_visit",
     KERNEL(INIT(1) FENCE SYNC CLUSTER EXPECT(256) SEND("q")
                WAIT(0) "ld.shared.u32 %r10, [%r6+128];\n"
                        "xor.b32 %r11, %r4, 64;\nadd.u32 %r11, %r11, 1000;\nsetp.ne.u32 p, %r10, %r11;\n@p trap;\n"),
     NULL, 1000, 1},
    {"copy_at_the_end", KERNEL(INIT(1) FENCE SYNC CLUSTER "setp.eq.u32 p, %r4, 0;\n" SEND("p") CLUSTER),
     "CTA rank 1 ends, but a transaction with an mbarrier of CTA rank 1 uses", 0, 0},
    /* a load tells that its issuer had waited for a store of the same bytes: any warp may write them */
    {"load_behind_store",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nfence.proxy.async;\n" INIT(1)
                FENCE SYNC STORE EXPECT(256) "@q cp.async.bulk.wait_group 0;\n" LOAD WAIT(
                    0) "ld.shared.u32 %r10, [%r6+128];\n"
                       "st.shared.u32 [%r6+128], %r0;\nst.global.u32 [%rd0], %r10;\n" CLUSTER),
     NULL, 0, 1},
    {"load_beside_store",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nfence.proxy.async;\n" INIT(1) FENCE SYNC STORE EXPECT(
         256) "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+1024], [%rd0], 256, "
              "[%r1];\n" WAIT(0) "st.shared.u32 [%r6+128], %r0;\n@q cp.async.bulk.wait_group 0;\n" CLUSTER),
     "read by a bulk group", 0, 0},

    /* lanes 0..7 poll, at the place furthest back, for what lanes 8..31 of their warp tell after some work */
    {"lanes_poll_for_lanes",
     KERNEL(INIT(24) FENCE SYNC "st.global.u32 [%rd0], %r4;\nsetp.gt.u32 p, %r0, 31;\n@p bra OUT;\n"
                                "setp.gt.u32 p, %r0, 7;\n@p bra WORK;\n" WAIT(
                                    0) "bra OUT;\nWORK:\nmov.u32 %r10, 0;\nMORE:\nadd.u32 %r10, %r10, 1;\n"
                                       "setp.lt.u32 p, %r10, 300;\n@p bra MORE;\n" ARRIVE "OUT:\n"),
     NULL, 0, 1},

    {"no_init", KERNEL(ARRIVE), "protocol: no mbarrier", 0, 0},
    {"init_unseen", KERNEL(INIT(64) ARRIVE WAIT(0)), "protocol", 0, 0},
    {"init_by_all", /* of a warp, with one count */
     KERNEL("setp.lt.u32 p, %r0, 32;\n@p mbarrier.init.shared::cta.b64 [%r1], 64;\n"
            "st.shared.u32 [%r6+128], %r4;\n" SYNC ARRIVE WAIT(0) TAKE CLUSTER),
     NULL, 0, 1},
    {"init_by_all_counts", /* that differ */
     KERNEL("setp.lt.u32 p, %r0, 32;\nadd.u32 %r10, %r0, 1;\n@p mbarrier.init.shared::cta.b64 [%r1], %r10;\n"),
     "initialises an mbarrier again", 0, 0},
    {"init_twice", KERNEL(INIT(64) INIT(64)), "initialises an mbarrier again", 0, 0},
    {"after_inval", KERNEL(INIT(64) SYNC "@q mbarrier.inval.shared::cta.b64 [%r1];\n" SYNC ARRIVE), "no longer valid",
     0, 0},
    {"too_many", KERNEL(INIT(64) FENCE SYNC "@q mbarrier.arrive.shared::cta.b64 _, [%r1], 65;\n"),
     "arrivals at the mbarrier", 0, 0},
    {"phase_unseen", KERNEL(INIT(64) FENCE SYNC ARRIVE SYNC ARRIVE),
     "advice: arrives at the mbarrier at shared byte 0 in phase 1, whose phase before nobody has waited for", 1000, 1},
    {"tx_overflow",
     KERNEL(INIT(2) FENCE SYNC EXPECT(1048575) "@q mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], "
                                               "16;\n"),
     "would miss 1048591 bytes", 0, 0},
    {"plain_store", KERNEL(INIT(64) FENCE SYNC "@q st.shared.u32 [%r1+4], %r7;\n"), "belongs to the mbarrier", 0, 0},
    {"never_told", KERNEL(INIT(1) FENCE SYNC EXPECT(256) WAIT(0)), "deadlock", 0, 0},
    {"tx_left", KERNEL(INIT(2) FENCE SYNC EXPECT(256) CLUSTER), "advice: the mbarrier ends with 256 bytes missing",
     1000, 1},
    {"no_fence_for_units", KERNEL(INIT(1) SYNC EXPECT(256) LOAD WAIT(0) TAKE CLUSTER), "no fence", 0, 0},
    {"no_wait", KERNEL(INIT(1) FENCE SYNC EXPECT(256) LOAD SYNC TAKE WAIT(0) CLUSTER), "not waited for", 0, 0},
    {"copies_unwaited",
     KERNEL(INIT(64) FENCE SYNC "cp.async.ca.shared.global [%r6+128], [%rd0], 4;\n"
                                "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];\n" TAKE WAIT(0)),
     "not waited for", 0, 0},
    {"no_proxy_fence",
     KERNEL("st.shared.u32 [%r6+128], %r4;\n" SYNC
            "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+128], 256;\n"
            "@q cp.async.bulk.commit_group;\n@q cp.async.bulk.wait_group 0;\n"),
     "proxy", 0, 0},
    {"no_proxy_fence_off",
     KERNEL("st.shared.u32 [%r6+128], %r4;\n" SYNC
            "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+128], 256;\n"
            "@q cp.async.bulk.commit_group;\n@q cp.async.bulk.wait_group 0;\n"),
     NULL, 0, 1},
    {"store_reused",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nfence.proxy.async;\n" SYNC
            "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+128], 256;\n"
            "@q cp.async.bulk.commit_group;\nst.shared.u32 [%r6+128], %r0;\n"
            "@q cp.async.bulk.wait_group 0;\n"),
     "async", 0, 0},
    {"store_unwaited",
     KERNEL("st.shared.u32 [%r6+128], %r4;\nfence.proxy.async;\n" SYNC
            "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+128], 256;\n"
            "@q cp.async.bulk.commit_group;\n"),
     "ends before a bulk group", 0, 0},
    {"odd_size",
     KERNEL(INIT(1) FENCE SYNC "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                               "[%r1+128], [%rd1], 24, [%r1];\n"),
     "multiples of 16", 0, 0},
    {"bulk_bounds",
     KERNEL(INIT(1) FENCE SYNC "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                               "[%r1+128], [%rd1+496], 32, [%r1];\n"),
     "out of bounds", 0, 0},
    {"remote_race", KERNEL("add.u32 %r12, %r9, %r5;\nst.shared::cluster.u32 [%r12+128], %r4;\n" TAKE CLUSTER),
     "shared byte", 0, 0},
    {"remote_gone", KERNEL("add.u32 %r12, %r9, %r5;\nst.shared::cluster.u32 [%r12+128], %r4;\n"), "CTA rank", 0, 0},
    {"rank_unused", KERNEL("mapa.shared::cluster.u32 %r9, %r1, 2;\nst.global.u32 [%rd0], %r4;\n"), NULL, 0, 1},
    {"rank_beyond", KERNEL("mapa.shared::cluster.u32 %r9, %r1, 2;\nst.shared::cluster.u32 [%r9+128], %r4;\n" CLUSTER),
     "out of bounds", 0, 0},
    {"rank_beyond_generic",
     KERNEL(
         "cvt.u64.u32 %rd2, %r1;\ncvta.shared.u64 %rd2, %rd2;\nmapa.u64 %rd2, %rd2, 2;\nst.u32 [%rd2+128], %r4;\n" CLUSTER),
     "out of bounds", 0, 0},
    /* a finding that ends nothing: the barrier still orders, and every wait goes on */
    {"cluster_arrive_twice",
     KERNEL("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
            "barrier.cluster.wait.aligned;\nst.global.u32 [%rd0], %r4;\n"),
     "arrives twice", GOES_ON, 1},
    {"cluster_wait_first", KERNEL("barrier.cluster.wait.aligned;\n"), "without having arrived", 0, 0},
    {"registers_ignored", KERNEL_OF("", "setmaxnreg.dec.sync.aligned.u32 64;\nsetmaxnreg.inc.sync.aligned.u32 32;\n"),
     "advice: setmaxnreg is ignored", 1000, 1},
    {"registers_kept", KERNEL("setmaxnreg.inc.sync.aligned.u32 160;\nsetmaxnreg.dec.sync.aligned.u32 240;\n"), NULL,
     1000, 1},
    {"registers_down", KERNEL("setmaxnreg.dec.sync.aligned.u32 64;\nsetmaxnreg.inc.sync.aligned.u32 32;\n"),
     "setmaxnreg.inc", 0, 0},
};

static int run(const char *driver, int i) {
    void *module, *function;
    uint64_t address, n = 0;
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "h100", 1);
    if (strstr(cases[i].name, "_off")) setenv("ATTNSIM_FENCES", "0", 1);
    if (kernel_open_driver(driver) || cu.load(&module, cases[i].ptx, 0, NULL, NULL) ||
        cu.function(&function, module, "k"))
        return -1;
    for (uint32_t k = 0; k < N; k++) words[k] = 1000 + k;
    struct kernel_launch l = {.grid = {2, 1, 1}, .block = {64, 1, 1}};
    void *params[] = {&address};
    if (kernel_upload(&address, words, sizeof words)) return -1;
    int r = cu.launch(&l, function, params, NULL);
    const char *text = cu.report(&n, 0);
    if (!r) r = cu.down(words, address, sizeof words);
    const int goes_on = cases[i].first == GOES_ON, advice = cases[i].finding && !strncmp(cases[i].finding, "advice", 6);
    if (r && goes_on) r = cu.down(words, address, sizeof words);
    int right = cases[i].finding ? strstr(text, cases[i].finding) != NULL : 1,
        good = right && (cases[i].finding && !advice ? n > 0 : !r && !n);
    for (uint32_t k = 0; k < N && good && (!cases[i].finding || advice || goes_on); k++) {
        uint32_t want = cases[i].first == 0xffffffff   ? 1000 + (k ^ 64)
                        : cases[i].first == 0xfffffffe ? k ^ 64
                                                       : (goes_on ? 0 : cases[i].first) + k * cases[i].step;
        good = words[k] == want;
        if (!good) printf("word %u is %u, not %u\n", k, words[k], want);
    }
    if (good) return 0;
    printf("FAIL %s, %s: result %d, %llu findings: %s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text);
    return 1;
}

/* The table of barrier_trace.h for the first kernel: each word of the list behind the one before it. */
static int check_trace(const char *path) {
    static const char *const order[] = {"kernel\tlaunch\t",
                                        "init 1\t0:0\t0\t1 of 1, 0 bytes\t",
                                        "pass\t0:bar.0\t",
                                        "expect 256\t0:0\t0\t1 of 1, 256 bytes\t",
                                        "arrive 1\t0:0\t0\t0 of 1, 256 bytes\t",
                                        "landed 256\t0:0\t0\t0 of 1, 0 bytes\t",
                                        "phase over 0\t0:0\t1\t1 of 1, 0 bytes\t",
                                        "pass 0\t0:0\t1\t"};
    static char text[1 << 14];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    unlink(path);
    const char *event = text;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        event = strstr(event, order[i]);
        if (event) continue;
        printf("FAIL trace, %s: no \"%s\" in its place:\n%s\n", getenv("ATTNSIM_POLICY"), order[i], text);
        return 1;
    }
    return 0;
}

/* The first kernel's barriers are traced, too. */
static int run_traced(const char *driver, int i) {
    char trace[64];
    if (i) return run(driver, i);
    snprintf(trace, sizeof trace, "t_sim_sm90.%d.trace", (int)getpid());
    setenv("ATTNSIM_TRACE", trace, 1);
    const int r = run(driver, i);
    return r ? r : check_trace(trace);
}

int main(int argc, char **argv) {
    return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run_traced);
}
