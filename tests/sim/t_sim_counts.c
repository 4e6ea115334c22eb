/* SPDX-License-Identifier: MIT
 * Counts of small kernels whose work can be told by hand, exact under every policy: each kernel's line says what the
 * launch must have counted. usage: t_sim_counts DRIVER */
#include "kernel_mutants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* %r0 thread, %r1 = 32768 bytes of shared memory, two mbarriers and a slot for tensor memory behind; q: thread 0 of the
 * CTA, first: warp 0; %rd0 = 4096 bytes of global memory; %r3 rank, %r9 the other CTA's shared memory. */
#define OPEN(version, target, threads, words)                                                                          \
    ".version " version "\n.target " target                                                                            \
    "\n.address_size 64\n.visible .entry k(.param .u64 out)\n.maxntid " #threads ", 1, 1\n" words                      \
    "{\n.shared .align 1024 .b8 s[33792];\n.reg .pred p, q, first, never;\n"                                           \
    ".reg .b16 %h<4>;\n.reg .b32 %r<80>;\n.reg .f32 %f<40>;\n.reg .b64 %rd<12>;\nmov.u32 %r0, %tid.x;\n"               \
    "mov.u32 %r1, s;\nld.param.u64 %rd0, [out];\nsetp.eq.u32 q, %r0, 0;\nsetp.lt.u32 first, %r0, 32;\n"                \
    "setp.ne.u32 never, %r0, %r0;\n"
#define WARP80       OPEN("7.8", "sm_80", 32, "")
#define WARP90       OPEN("8.1", "sm_90a", 32, "")
#define GROUP90      OPEN("8.1", "sm_90a", 128, "")
#define GROUP100     OPEN("8.8", "sm_100a", 128, "")
#define PAIR90       OPEN("8.1", "sm_90a", 32, ".reqnctapercluster 2, 1, 1\n") PEER
#define PAIR100      OPEN("8.8", "sm_100a", 128, ".reqnctapercluster 2, 1, 1\n") PEER
#define PEER         "mov.u32 %r3, %cluster_ctarank;\nxor.b32 %r8, %r3, 1;\nmapa.shared::cluster.u32 %r9, %r1, %r8;\n"
#define CLOSE        "ret;\n}\n"
#define CLUSTER      "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
#define INIT         "@q mbarrier.init.shared::cta.b64 [%r1+32768], 1;\n@q fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
#define WAIT         "W:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r1+32768], 0;\n@!p bra W;\n"
#define OWN(step)    "mad.lo.u32 %r10, %r0, " #step ", %r1;\n"
#define PLACE(bytes) "mul.wide.u32 %rd1, %r0, " #bytes ";\nadd.s64 %rd1, %rd1, %rd0;\n"
/* without swizzle: rows of 16 bytes, patterns 128 bytes apart, the second column of units 8192 bytes on */
#define DESC    "and.b32 %r20, %r1, 262143;\nshr.u32 %r20, %r20, 4;\ncvt.u64.u32 %rd2, %r20;\n"
#define DESC90  DESC "add.u64 %rd2, %rd2, 34393292800;\n"
#define DESC100 DESC "add.u64 %rd2, %rd2, 70403137470464;\n"
#define SUMS                                                                                                           \
    "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9, %f10, %f11, %f12, %f13, %f14, %f15, %f16, %f17, %f18, %f19, "  \
    "%f20, %f21, %f22, %f23, %f24, %f25, %f26, %f27, %f28, %f29, %f30, %f31}"
#define TENSOR(n)                                                                                                      \
    "@first tcgen05.alloc.cta_group::" n ".sync.aligned.shared::cta.b32 [%r1+32784], 256;\n" INIT                      \
    "ld.shared.b32 %r4, [%r1+32784];\nshr.u32 %r5, %r0, 5;\nshl.b32 %r5, %r5, 21;\nadd.u32 %r5, %r5, %r4;\n" DESC100
#define FREE(n)                                                                                                        \
    "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"                             \
    "@first tcgen05.dealloc.cta_group::" n ".sync.aligned.b32 %r4, 256;\n"
#define EIGHT "{%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}"

static const struct {
    const char *name, *gpu, *ptx;
    unsigned ctas, threads;
    const char *counts, *also; /* also: in the JSON, or NULL */
} cases[] = {
    /* warp instructions by class; ex2 by half of a warp counts 16 results; a guard that leaves out all lanes */
    {"arithmetic", "h100",
     WARP80
     "setp.lt.u32 p, %r0, 16;\nmov.f32 %f0, 0f3F800000;\nex2.approx.ftz.f32 %f1, %f0;\nex2.approx.ftz.f32 %f1, %f0;\n"
     "@p ex2.approx.ftz.f32 %f1, %f0;\nlg2.approx.f32 %f2, %f1;\nfma.rn.f32 %f3, %f0, %f1, %f2;\n"
     "@never fma.rn.f32 %f3, %f0, %f1, %f2;\nadd.f32 %f3, %f3, %f1;\nmov.b32 %r9, 0;\n"
     "ex2.approx.ftz.bf16x2 %r9, %r9;\nfma.rn.bf16x2 %r9, %r9, %r9, %r9;\ncvt.rn.bf16x2.f32 %r9, %f1, %f0;\n" CLOSE,
     1, 32, "ex2=144 special=6 fma=2 fma_half=1 cvt=1 moves=4 skipped=1 instructions=20", NULL},
    {"packed", "b200",
     GROUP100 "mov.b64 %rd3, 0;\nfma.rn.f32x2 %rd3, %rd3, %rd3, %rd3;\nadd.rn.f32x2 %rd3, %rd3, %rd3;\n" CLOSE, 1, 128,
     "fma_packed=8 fma=0 instructions=40 moves=12", "\"role\":\"warps 0-3\",\"warps\":4"},
    {"warp_product", "h100",
     WARP80
     "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, "
     "{%f0, %f1, %f2, %f3};\n" CLOSE,
     3, 32, "flops=12288 operand_bytes=0",
     "\"kind\":\"mma.sync\",\"types\":\"f32.bf16.bf16.f32\",\"m\":16,\"n\":8,\"k\":16"},
    /* three products of 64 x 64 x 16: A and B of 2048 bytes each; 4 warps run 6 + 4 + 2 + 3 x 4 + 3 instructions */
    {"wgmma_loop", "h100",
     GROUP90 DESC90 "mov.u32 %r11, 0;\nwgmma.fence.sync.aligned;\nMORE:\n"
                    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS ", %rd2, %rd2, never, 1, 1, 0, 0;\n"
                    "add.u32 %r11, %r11, 1;\nsetp.lt.u32 p, %r11, 3;\n@p bra MORE;\n"
                    "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" CLOSE,
     1, 128, "flops=393216 operand_bytes=12288 commits=4 instructions=108 skipped=4 waits=0",
     "\"kind\":\"wgmma\",\"types\":\"f32.bf16.bf16\",\"m\":64,\"n\":64,\"k\":16,\"ctas\":1,\"a\":\"shared\",\"number\":3}"},
    {"wgmma_registers", "h100",
     GROUP90 DESC90 "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS
                    ", {%r2, %r3, %r4, %r5}, %rd2, never, 1, 1, 0;\n"
                    "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" CLOSE,
     2, 128, "flops=262144 operand_bytes=4096", "\"a\":\"registers\",\"number\":2}"},
    /* M 128, N 64, K 16: two with A in shared memory, one with A in tensor memory */
    {"tensor_product", "b200",
     GROUP100 TENSOR("1") "tcgen05.st.sync.aligned.32x32b.x8.b32 [%r5+64], " EIGHT ";\ntcgen05.wait::st.sync.aligned;\n"
                          "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
                          "mov.b32 %r21, 135266320;\nadd.u32 %r22, %r4, 64;\n"
                          "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd2, %rd2, %r21, never;\n"
                          "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd2, %rd2, %r21, q;\n"
                          "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], [%r22], %rd2, %r21, q;\n"
                          "@q tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+32768];\n" WAIT
                          "tcgen05.fence::after_thread_sync;\n"
                          "tcgen05.ld.sync.aligned.32x32b.x8.b32 " EIGHT ", [%r5];\n"
                          "tcgen05.ld.sync.aligned.16x64b.x1.pack::16b.b32 {%r38}, [%r5];\n"
                          "tcgen05.wait::ld.sync.aligned;\n" FREE("1") CLOSE,
     1, 128,
     "flops=786432 operand_bytes=14336 operand_cells=4096 commits=1 cells_read=5120 cells_written=4096 remote_arrivals=0 "
     "waits=4",
     "\"kind\":\"tcgen05.mma\",\"types\":\"f16\",\"m\":128,\"n\":64,\"k\":16,\"ctas\":1,\"a\":\"tensor\",\"number\":1}"},
    /* collector: A is not read again */
    {"tensor_product_kept", "b200",
     GROUP100 TENSOR(
         "1") "mov.b32 %r21, 135266320;\n"
              "@q tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%r4], %rd2, %rd2, %r21, never;\n"
              "@q tcgen05.mma.cta_group::1.kind::f16.collector::a::lastuse [%r4], %rd2, %rd2, %r21, q;\n"
              "@q tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+32768];\n" WAIT FREE("1")
                  CLOSE,
     1, 128, "flops=524288 operand_bytes=8192", "\"a\":\"kept\",\"number\":1}],\"clocks\":{\"tensor\":64,"},
    /* M 64 of one CTA takes the clocks of M 128 */
    {"tensor_product_half", "b200",
     GROUP100 TENSOR(
         "1") "mov.b32 %r21, 68157456;\n"
              "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd2, %rd2, %r21, never;\n"
              "@q tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+32768];\n" WAIT FREE("1")
                  CLOSE,
     1, 128, "flops=131072 operand_bytes=4096", "\"number\":1}],\"clocks\":{\"tensor\":32,"},
    {"tensor_copy", "b200",
     GROUP100 TENSOR(
         "1") "@q tcgen05.cp.cta_group::1.128x256b [%r4], %rd2;\n"
              "@q tcgen05.cp.cta_group::1.32x128b.warpx4 [%r4], %rd2;\n"
              "@q tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+32768];\n" WAIT FREE("1")
                  CLOSE,
     1, 128, "cell_sources=4608 cells_copied=6144 flops=0", NULL},
    /* M 256, N 128, K 16 of a pair: each CTA has half of the rows; the commit also tells the other CTA */
    {"pair_product", "b200",
     PAIR100 TENSOR("2") CLUSTER
     "mov.b32 %r21, 270532624;\nmov.b16 %h1, 3;\nsetp.eq.and.u32 q, %r3, 0, q;\n"
     "@q tcgen05.mma.cta_group::2.kind::f16 [%r4], %rd2, %rd2, %r21, never;\n"
     "@q tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1+32768], %h1;\n" WAIT
     "tcgen05.fence::after_thread_sync;\n" FREE("2") CLUSTER CLOSE,
     2, 128, "flops=1048576 operand_bytes=12288 commits=1 remote_arrivals=1 waits=8",
     "\"m\":256,\"n\":128,\"k\":16,\"ctas\":2,\"a\":\"shared\",\"number\":1}],\"clocks\":{\"tensor\":128,\"shared memory\":104,"},
    {"bulk", "h100",
     WARP90 INIT
     "@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+32768], 256;\n"
     "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, [%r1+32768];\n" WAIT
     "@q cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1], 128;\n"
     "@q cp.async.bulk.global.shared::cta.bulk_group [%rd0+1024], [%r1], 64;\n"
     "@q cp.async.bulk.commit_group;\n@q cp.async.bulk.wait_group 0;\n" CLOSE,
     1, 32,
     "copied_in=256 copied_out=192 bulk_copies=3 global_read=256 sectors_read=8 reduced_in_bulk=128 global_written=64 "
     "sectors_written=2 arrivals=1 waits=1 barriers=1 multicast=0 remote=0 footprint_read=256 footprint_written=192",
     NULL},
    /* rank 0 loads for both CTAs, each stores a word a lane in the other and reads it back */
    {"cluster", "h100",
     PAIR90 INIT CLUSTER
     "mov.b16 %h1, 3;\n@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+32768], 512;\n"
     "setp.eq.and.u32 q, %r3, 0, q;\n"
     "@q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd0], 512, "
     "[%r1+32768], %h1;\n" WAIT "mad.lo.u32 %r12, %r0, 4, %r9;\nst.shared::cluster.u32 [%r12+1024], %r0;\n"
     "ld.shared::cluster.u32 %r13, [%r12+1024];\nmbarrier.arrive.shared::cluster.b64 _, [%r9+32768];\n" CLUSTER CLOSE,
     2, 32,
     "copied_in=1024 multicast=512 global_read=512 sectors_read=16 remote=512 remote_arrivals=64 arrivals=66 barriers=10 "
     "shared_read=256 shared_written=256 wavefronts=4",
     NULL},
    /* passes: 1; 2 by two words of a bank; 4 of 16 bytes a lane; 1 of one address */
    {"banks", "h100",
     WARP80 OWN(4) "st.shared.u32 [%r10], %r0;\n" OWN(8) "st.shared.u32 [%r10], %r0;\n" OWN(
         16) "st.shared.v4.u32 [%r10], {%r0, %r0, %r0, %r0};\nld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1];\n"
             "atom.shared.add.u32 %r2, [%r1], 1;\n" CLOSE,
     1, 32, "shared_written=768 shared_read=512 shared_atomics=128 wavefronts=9", NULL},
    {"global", "h100",
     WARP90 PLACE(
         16) "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1];\nld.global.f32 %f4, [%rd0];\n"
             "st.global.f32 [%rd1], %f4;\nbar.warp.sync 0xffffffff;\n"
             "red.global.add.v4.f32 [%rd1], {%f0, %f1, %f2, %f3};\natom.global.add.f32 %f5, [%rd0], %f0;\n" CLOSE,
     1, 32,
     "global_read=640 sectors_read=17 global_written=128 sectors_written=16 reductions=64 reduced=640 barriers=0 "
     "footprint_read=512 footprint_written=512",
     NULL},
    /* rows of 64 bytes, 128 apart: 4 lanes a row; the last row is zeroes */
    {"async_copies", "h100",
     WARP80 OWN(16) "and.b32 %r11, %r0, 3;\nshl.b32 %r11, %r11, 4;\nshr.u32 %r12, %r0, 2;\nshl.b32 %r12, %r12, 7;\n"
                    "add.u32 %r11, %r11, %r12;\ncvt.u64.u32 %rd1, %r11;\nadd.s64 %rd1, %rd1, %rd0;\n"
                    "setp.lt.u32 p, %r0, 28;\nselp.b32 %r13, 16, 0, p;\n"
                    "cp.async.cg.shared.global [%r10], [%rd1], 16, %r13;\ncp.async.wait_all;\n" CLOSE,
     1, 32, "copied_async=512 global_read=448 sectors_read=14 async_runs=7", NULL},
    /* warp 1 waits for what warp 0 does late: polls in vain are not its instructions. timeline: 2 clocks each */
    {"polls", "h100",
     OPEN("8.1", "sm_90a", 64, "") INIT "@!first bra WAIT;\nmov.u32 %r11, 0;\nLATE:\nadd.u32 %r11, %r11, 1;\n"
                                        "setp.lt.u32 p, %r11, 30000;\n@p bra LATE;\n"
                                        "@q mbarrier.arrive.shared::cta.b64 _, [%r1+32768];\nbra OUT;\nWAIT:\n" WAIT
                                        "OUT:\n" CLOSE,
     1, 64, "waits=1 instructions=90027 arrivals=1 timeline=180052 waited=180030", "\"role\":\"warp 1\",\"warps\":1"},
};

static int run(const char *driver, int i) {
    enum { JSON = 3, START = 1 };
    static uint32_t words[1024];
    static char log[2048];
    int options[] = {5, 6}, bad = 0;
    void *values[] = {log, (void *)(uintptr_t)sizeof log}, *module, *function, *params[1];
    uint64_t buffer, n = 0;
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", cases[i].gpu, 1), setenv("ATTNSIM_RACES", "0", 1);
    if (kernel_open_driver(driver) || !cu.counts) return -1;
    cu.counts(START);
    int r = cu.load(&module, cases[i].ptx, 2, options, values);
    if (!r) r = cu.function(&function, module, "k");
    struct kernel_launch l = {.grid = {cases[i].ctas, 1, 1}, .block = {cases[i].threads, 1, 1}};
    params[0] = &buffer;
    if (r || kernel_upload(&buffer, words, sizeof words) || (r = cu.launch(&l, function, params, NULL)) ||
        (r = cu.synchronize()) || (cu.report(&n, 0), n)) {
        printf("FAIL %s: result %d: %s %s\n", cases[i].name, r, log, cu.report(&n, 0));
        return 1;
    }
    const char *json = cu.counts(JSON), *sum = json ? strstr(json, "\"sum\":") : NULL;
    for (const char *p = cases[i].counts; sum && *p;) {
        char name[64], key[70];
        unsigned long long want = 0, got = 0;
        if (sscanf(p, " %63[a-z0-9_]=%llu", name, &want) != 2) return -1;
        snprintf(key, sizeof key, "\"%s\":", name);
        const char *found = strstr(sum, key);
        if (!found || sscanf(found + strlen(key), "%llu", &got) != 1 || got != want) {
            printf("FAIL %s, %s: %s is %llu, not %llu\n", cases[i].name, getenv("ATTNSIM_POLICY"), name, got, want);
            bad = 1;
        }
        p += strcspn(p + 1, " ") + 1;
    }
    if (sum && cases[i].also && !strstr(json, cases[i].also)) {
        printf("FAIL %s, %s: no %s in %.3000s\n", cases[i].name, getenv("ATTNSIM_POLICY"), cases[i].also, json);
        bad = 1;
    }
    return !sum || bad;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
