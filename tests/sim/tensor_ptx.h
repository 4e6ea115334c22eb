/* SPDX-License-Identifier: MIT
 * The parts of small kernels that use tensor memory (t_sim_sm100.c, t_sim_findings.c), as PTX. */
#ifndef TENSOR_PTX_H
#define TENSOR_PTX_H

/* 128 threads. %r0 thread, %r1 = 32768 bytes of shared memory, %r4 tensor base (64 columns are taken), %r5 that with
 * the warp's lanes, %rd0 place of this thread's word; q: thread 0; mbarrier at %r6. Shared word i holds i, and column c
 * of the first 32 of lane l 256 c + l. */
#define SYNC "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
#define HEAD                                                                                                           \
    ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out)\n.maxntid 128, 1, 1\n{\n"     \
    ".shared .align 1024 .b8 s[33792];\n.reg .pred p, q, w0, add;\n.reg .b16 %h<8>;\n.reg .b32 %r<60>;\n"              \
    ".reg .b64 %rd<12>;\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\nadd.u32 %r6, %r1, 32768;\nld.param.u64 %rd0, [out];\n" \
    "mad.wide.u32 %rd0, %r0, 4, %rd0;\nsetp.eq.u32 q, %r0, 0;\nsetp.lt.u32 w0, %r0, 32;\nsetp.ne.u32 add, %r0, %r0;\n" \
    "@w0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6+8], 64;\n"                                       \
    "@w0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n@q mbarrier.init.shared::cta.b64 [%r6], 1;\n"     \
    "@q fence.mbarrier_init.release.cluster;\nshl.b32 %r10, %r0, 2;\nadd.u32 %r10, %r10, %r1;\nmov.u32 %r11, %r0;\n"   \
    "FILL:\nst.shared.b32 [%r10], %r11;\nadd.u32 %r10, %r10, 512;\nadd.u32 %r11, %r11, 128;\n"                         \
    "setp.lt.u32 p, %r11, 8192;\n@p bra FILL;\n"
#define CELLS                                                                                                          \
    SYNC "ld.shared.b32 %r4, [%r6+8];\nshr.u32 %r5, %r0, 5;\nshl.b32 %r5, %r5, 21;\nadd.u32 %r5, %r5, %r4;\n"          \
         "mov.u32 %r12, 0;\nmov.u32 %r13, %r5;\nmov.u32 %r14, %r0;\nSTORE:\n"                                          \
         "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r13], {%r14};\nadd.u32 %r13, %r13, 1;\nadd.u32 %r14, %r14, 256;\n"   \
         "add.u32 %r12, %r12, 1;\nsetp.lt.u32 p, %r12, 32;\n@p bra STORE;\ntcgen05.wait::st.sync.aligned;\n" SYNC
/* A descriptor of shared memory without swizzle: rows of 16 bytes, patterns 128 bytes apart, the second column of units
 * 8192 bytes on. */
#define DESC                                                                                                           \
    "and.b32 %r20, %r1, 262143;\nshr.u32 %r20, %r20, 4;\ncvt.u64.u32 %rd2, %r20;\n"                                    \
    "add.u64 %rd2, %rd2, 70403137470464;\nmov.b32 %r21, 134742032;\nadd.u32 %r22, %r4, 32;\nadd.u32 %r23, %r4, 8;\n"
#define READY    HEAD "fence.proxy.async;\n" CELLS DESC
#define ONCE     "@q "
#define COMMIT   "@q tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r6];\n"
#define WAIT     "bar.sync 0;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r6], 0;\n@!p bra W;\n"
#define SEE      WAIT "bar.warp.sync 0xffffffff;\ntcgen05.fence::after_thread_sync;\n"
#define TAKE(c)  "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+" #c "];\ntcgen05.wait::ld.sync.aligned;\n"
#define PUT      "st.global.b32 [%rd0], %r30;\n"
#define END      SYNC "@w0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 64;\nret;\n}\n"
#define CP(form) "@q tcgen05.cp.cta_group::1." form " [%r4], %rd2;\n"
/* D 32 .. 63, M 128, N 32, f16, sums in f32 */
#define MMA(words, rest) "@q tcgen05.mma.cta_group::1." words " [%r22], %rd2, %rd2, %r21, " rest "add;\n"
#define WS(mask)         "@q tcgen05.mma.ws.cta_group::1.kind::f16 [%r22], %rd2, %rd2, %r21, add" mask ";\n"
#endif
