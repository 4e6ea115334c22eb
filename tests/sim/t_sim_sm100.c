/* SPDX-License-Identifier: MIT
 * Small kernels of sm_100 in the simulator: right ones give the right words and no finding, offences against tensor
 * memory, copies, shifts and products are named, and forms that are not modelled are refused with their line.
 * usage: t_sim_sm100 DRIVER */
#include "kernel_mutants.h"
#include "tensor_ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two products of M 128 and N 64, without a mask and with one of 0: 1 where column 3 is the same and not 0. */
#define SECOND "bar.sync 0;\nX:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r6], 1;\n@!p bra X;\n"
#define MASKED(mask)                                                                                                   \
    READY "mov.b32 %r21, 135266320;\nmov.b64 %rd3, 0;\nmov.b32 %r22, %r4;\n" WS("")                                    \
        COMMIT SEE TAKE(3) "mov.b32 %r31, %r30;\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r5+3], {%r0};\n"              \
                           "tcgen05.wait::st.sync.aligned;\n" SYNC                                                     \
                           WS(mask)                                                                                    \
    COMMIT SECOND "bar.warp.sync 0xffffffff;\ntcgen05.fence::after_thread_sync;\n" TAKE(                               \
        3) "setp.eq.u32 p, %r30, %r31;\nsetp.ne.and.u32 p, %r30, 0, p;\nselp.b32 %r30, 1, 0, p;\n" PUT END
#define SHAPE(n) "mov.b32 %r21, " #n ";\n"

#define FLY    "mov.b32 %r31, 0;\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r5+1];\n"
#define LANDED "tcgen05.wait::ld.sync.aligned;\n"
#define HANDED                                                                                                         \
    "shr.u32 %r40, %r0, 5;\nand.b32 %r41, %r0, 31;\nshl.b32 %r41, %r41, 2;\nadd.u32 %r41, %r41, %r1;\n"                \
    "setp.eq.u32 p, %r40, 2;\n@p st.shared.b32 [%r41], %r0;\n@p fence.proxy.async;\n@p bar.arrive 1, 64;\n"            \
    "setp.eq.u32 p, %r40, 0;\n@p bar.sync 1, 64;\n"
#define LOOK                                                                                                           \
    "L:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r6], 0;\n@!p bra L;\ntcgen05.fence::after_thread_sync;\n"       \
    "setp.eq.u32 p, %r40, 3;\n"
#define OVER    "@p st.shared.b32 [%r41], %r0;\n"
#define HALF(a) "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r30}, [%r5+" #a "];\ntcgen05.wait::ld.sync.aligned;\n"

/* A kernel of one warp: asks for another cluster into s, mbarrier at s + 16. Each cluster's word counts who ran it. */
#define PERSIST(body)                                                                                                  \
    ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out)\n.maxntid 32, 1, 1\n{\n"      \
    ".shared .align 16 .b8 s[32];\n.reg .pred p, q, taken;\n.reg .b32 %r<20>;\n.reg .b64 %rd<10>;\n.reg .b128 %q;\n"   \
    "mov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\nmov.u32 %r2, %ctaid.x;\n"                                                  \
    "mov.u32 %r4, 0;\nld.param.u64 %rd0, [out];\nsetp.eq.u32 q, %r0, 0;\n"                                             \
    "@q mbarrier.init.shared::cta.b64 [%r1+16], 1;\n@q fence.mbarrier_init.release.cluster;\nbar.sync 0;\n" body       \
    "ret;\n}\n"
#define ASK                                                                                                            \
    "@q mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+16], 16;\n"                                                  \
    "@q clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r1+16];\n"
#define ANSWER "V:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%r1+16], %r4;\n@!p bra V;\nxor.b32 %r4, %r4, 1;\n"
#define READ                                                                                                           \
    "ld.shared.v2.b64 {%rd1, %rd2}, [%r1];\nmov.b128 %q, {%rd1, %rd2};\n"                                              \
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 taken, %q;\n"
#define NEXT                                                                                                           \
    "@taken clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r2, %r6, %r7, _}, %q;\nbar.sync 0;\n"      \
    "@taken bra RUN;\n"
#define RUN "RUN:\nmul.wide.u32 %rd3, %r2, 4;\nadd.u64 %rd3, %rd3, %rd0;\n@q red.global.add.u32 [%rd3], 128;\n"

/* A pair of CTAs of one warp. q: thread 0 of CTA rank 0, whose mbarrier is at %r1 + 32; one: those of rank 1. */
#define PAIR(body)                                                                                                     \
    ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out)\n.explicitcluster\n"          \
    ".reqnctapercluster 2, 1, 1\n.maxntid 32, 1, 1\n{\n.shared .align 16 .b8 s[64];\n.reg .pred p, q, one;\n"          \
    ".reg .b32 %r<20>;\n.reg .b64 %rd<4>;\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, s;\nmov.u32 %r2, %cluster_ctarank;\n"    \
    "setp.eq.u32 one, %r2, 1;\nsetp.eq.u32 q, %r0, 0;\nsetp.eq.and.u32 q, %r2, 0, q;\n"                                \
    "mad.lo.u32 %r3, %r2, 32, %r0;\nld.param.u64 %rd0, [out];\nmad.wide.u32 %rd0, %r3, 4, %rd0;\n"                     \
    "@q mbarrier.init.shared::cta.b64 [%r1+32], 1;\n@q fence.mbarrier_init.release.cluster;\n" body "ret;\n}\n"
#define PAIR_ALLOC(guard, offset, n)                                                                                   \
    guard "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1+" #offset "], " #n ";\n"
#define PAIR_FREE(guard, offset, n)                                                                                    \
    guard "ld.shared.b32 %r4, [%r1+" #offset "];\n" guard "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r4, " #n ";\n"
#define LATER                                                                                                          \
    "mov.u32 %r9, 0;\nZ:\nadd.u32 %r9, %r9, 1;\nsetp.lt.u32 p, %r9, 2000;\nselp.b32 %r8, 1, 0, p;\n"                   \
    "and.b32 %r8, %r8, %r2;\nsetp.ne.u32 p, %r8, 0;\n@p bra Z;\n"
#define CLUSTER "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
#define SHIFTED                                                                                                        \
    "ld.shared.b32 %r4, [%r1];\n@q tcgen05.shift.cta_group::2.down [%r4];\n@q tcgen05.commit.cta_group::2"             \
    ".mbarrier::arrive::one.shared::cluster.b64 [%r1+32];\n@one bra Y;\nW:\nmbarrier.try_wait.parity.shared::cta.b64"  \
    " p, [%r1+32], 0;\n@!p bra W;\nY:\ntcgen05.fence::after_thread_sync;\n" CLUSTER

#define FIFTY "a_name_as_long_as_those_that_templates_have_for_us"

enum { N = 128, REFUSED = 1, MANY = 2, PAIRED = 3 };
static const struct {
    const char *name, *ptx, *finding; /* finding: NULL = none, and word t is first + step * (t % modulus) */
    uint32_t first, step, modulus;
    int how; /* REFUSED: when loaded, with these words; MANY: 128 CTAs of 32 threads */
} cases[] = {
    {"cp", READY CP("128x128b") COMMIT SEE TAKE(1) PUT END, NULL, 1, 4, 128, 0},
    {"cp_two_units", READY CP("128x256b") COMMIT SEE TAKE(4) PUT END, NULL, 2048, 4, 128, 0},
    {"cp_warpx4", READY CP("32x128b.warpx4") COMMIT SEE TAKE(3) PUT END, NULL, 3, 4, 32, 0},
    {"cp_then_mma", READY CP("32x128b.warpx4") MMA("kind::f16", "") COMMIT SEE TAKE(2) PUT END, NULL, 2, 4, 32, 0},
    {"shift_equal",
     READY "mov.b32 %r30, 7;\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r30};\n"
           "tcgen05.wait::st.sync.aligned;\n" SYNC "@q tcgen05.shift.cta_group::1.down [%r4];\n" COMMIT SEE TAKE(
               0) "mov.b32 %r31, %r30;\n" TAKE(9) "sub.u32 %r31, %r31, 6;\nadd.u32 %r30, %r30, %r31;\n" PUT END,
     NULL, 2305, 1, 128, 0},
    {"collector",
     READY MMA("kind::f16.collector::a::fill", "") MMA("kind::f16.collector::a::use", "")
         MMA("kind::f16.collector::a::lastuse", "") COMMIT SEE TAKE(3) PUT END,
     NULL, 768, 1, 128, 0},
    {"a_of_product_waited",
     READY MMA("kind::f16", "") COMMIT SEE
     "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], [%r22], %rd2, %r21, add;\n" COMMIT "bar.sync 0;\nX:\n"
     "mbarrier.try_wait.parity.shared::cta.b64 p, [%r6], 1;\n@!p bra X;\nbar.warp.sync 0xffffffff;\n"
     "tcgen05.fence::after_thread_sync;\n" TAKE(31) "mov.b32 %r30, 9;\n" PUT END,
     NULL, 9, 0, 1, 0},
    {"pack",
     READY "tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {%r30}, [%r5];\ntcgen05.wait::ld.sync.aligned;\n" PUT END,
     NULL, 0x1000000, 0x10001, 128, 0},
    {"fp8_round", /* 17.0, 18.0 and 1000, -0.001 */
     READY "cvt.rn.satfinite.e4m3x2.f32 %h0, 0f41880000, 0f41900000;\ncvt.rn.satfinite.e5m2x2.f32 %h1, 0f447A0000, "
           "0fBA83126F;\nmov.b32 %r30, {%h0, %h1};\n" PUT END,
     NULL, 0x64945859, 0, 1, 0},
    {"fp8_edges", /* 1e6, NaN; -inf and 2^-10, half of the smallest number */
     READY
     "cvt.rn.satfinite.e4m3x2.f32 %h0, 0f49742400, 0f7FC00000;\ncvt.rn.satfinite.relu.e4m3x2.f32 %h1, 0fFF800000, "
     "0f3A800000;\nmov.b32 %r30, {%h0, %h1};\n" PUT END,
     NULL, 0x00007e7f, 0, 1, 0},
    {"fp8_back", READY "mov.b16 %h0, 0xc8b8;\ncvt.rn.f16x2.e4m3x2 %r30, %h0;\n" PUT END, NULL, 0xc400bc00, 0, 1, 0},
    {"fp8_mma", /* ones times twos, 32 of them, and 5 */
     READY "mov.b32 %r31, 0x38383838;\nmov.b32 %r32, 0x40404040;\nmov.b32 %r33, 0f40A00000;\n"
           "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%r30, %r34, %r35, %r36}, {%r31, %r31, %r31, %r31}, "
           "{%r32, %r32}, {%r33, %r33, %r33, %r33};\n" PUT END,
     NULL, 0x428a0000, 0, 1, 0},

    {"cp_unwaited", READY CP("128x128b") COMMIT "bar.sync 0;\n" TAKE(1) PUT SEE END,
     "async: nothing orders it: reads column 1", 0, 0, 0, 0},
    {"cp_no_fence", READY CP("128x128b") COMMIT WAIT "bar.warp.sync 0xffffffff;\n" TAKE(1) PUT END,
     "proxy: only a fence is missing: reads column 1", 0, 0, 0, 0},
    {"cp_source_unseen", HEAD CELLS DESC CP("128x128b") COMMIT SEE TAKE(1) PUT END, "no fence.proxy.async", 0, 0, 0, 0},
    {"cp_source_reused", READY CP("128x128b") COMMIT "bar.sync 0;\nst.shared.b32 [%r1+64], %r0;\n" SEE END,
     "shared byte 64", 0, 0, 0, 0},
    {"cp_cells_busy", READY "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r0};\n" SYNC CP("128x128b") COMMIT SEE END,
     "async: nothing orders it: writes column 0", 0, 0, 0, 0},
    {"cp_column", READY "add.u32 %r4, %r4, 2;\n" CP("128x128b") "sub.u32 %r4, %r4, 2;\n" COMMIT SEE END,
     "not a multiple of 4", 0, 0, 0, 0},
    {"cp_lane", READY "add.u32 %r4, %r4, 327680;\n" CP("128x128b") COMMIT SEE END, "to lane 5 of tensor memory", 0, 0,
     0, 0},
    {"cp_beyond", READY "add.u32 %r4, %r4, 64;\n" CP("128x128b") COMMIT SEE END, "column 64 of the tensor memory", 0, 0,
     0, 0},
    {"cp_of_all", READY "tcgen05.cp.cta_group::1.128x128b [%r4], %rd2;\n" END, "one thread starts this, not 32", 0, 0,
     0, 0},
    {"cp_of_pair", READY "@q tcgen05.cp.cta_group::2.128x128b [%r4], %rd2;\n" END, "cta_group::2 in a cluster of 1", 0,
     0, 0, 0},
    {"cp_version", READY "mov.b64 %rd2, 64;\n" CP("128x128b") END, "swizzle or version", 0, 0, 0, 0},
    {"cp_far", READY "add.u64 %rd2, %rd2, 2000;\n" CP("128x128b") END, "descriptor of S reaches", 0, 0, 0, 0},
    {"shift_lane", READY "add.u32 %r4, %r4, 327680;\n@q tcgen05.shift.cta_group::1.down [%r4];\n" END,
     "a shift of lanes from 5 on", 0, 0, 0, 0},
    {"shift_read", READY "@q tcgen05.shift.cta_group::1.down [%r4];\n" COMMIT SEE TAKE(1) END,
     "a shift has left what the ISA does not state", 0, 0, 0, 0},
    {"alloc_read_by_lanes", HEAD "@w0 ld.shared.b32 %r30, [%r6+8];\nfence.proxy.async;\n" CELLS TAKE(1) PUT END, NULL,
     256, 1, 128, 0},
    {"alloc_read_by_warps", HEAD "ld.shared.b32 %r30, [%r6+8];\nfence.proxy.async;\n" CELLS END, "shared byte 32776", 0,
     0, 0, 0},
    /* a mov of a register in flight is no use of it, what it hands on is in flight */
    {"moved_in_flight",
     READY FLY "mov.b32 %r31, %r30;\nmov.b64 %rd5, {%r31, %r31};\n" LANDED "mov.b64 {%r30, %r32}, %rd5;\n" PUT END,
     NULL, 256, 1, 128, 0},
    {"moved_and_used", READY FLY "mov.b32 %r31, %r30;\nmov.b32 %r32, %r31;\nadd.u32 %r32, %r32, 1;\n" LANDED END,
     "touches a register that is written by tcgen05.ld", 0, 0, 0, 0},
    {"moved_pair_and_used", READY FLY "mov.b64 %rd5, {%r30, %r31};\nadd.u64 %rd5, %rd5, 1;\n" LANDED END,
     "touches a register that is written by tcgen05.ld", 0, 0, 0, 0},
    {"moved_over", READY FLY "mov.b32 %r30, 0;\n" LANDED END, "touches a register that is written by tcgen05.ld", 0, 0,
     0, 0},
    /* warp 2 writes what a product reads, its issuer alone has waited for that; warp 3 waits for the commit */
    {"commit_tells_acquired", READY HANDED MMA("kind::f16", "") COMMIT LOOK OVER TAKE(1) PUT END, NULL, 256, 1, 128, 0},
    {"commit_of_own_store",
     READY HANDED MMA("kind::f16", "") "@q st.shared.b32 [%r1+16384], %r0;\n" COMMIT LOOK
                                       "@p ld.shared.b32 %r30, [%r1+16384];\n" PUT END,
     "race: reads shared byte 16384, written by CTA rank 0 warp 0", 0, 0, 0, 0},
    {"commit_untold", READY HANDED MMA("kind::f16", "") COMMIT "setp.eq.u32 p, %r40, 3;\n" OVER WAIT END,
     "race: writes shared byte 0, written by CTA rank 0 warp 2", 0, 0, 0, 0},
    /* M 64: 16 lanes of each quarter; the others may be read meanwhile */
    {"halves_apart",
     READY SHAPE(67633168) "sub.u32 %r22, %r22, 32;\n" MMA("kind::f16", "") HALF(1048576)
         COMMIT SEE TAKE(9) "mov.b32 %r30, 9;\n" PUT END,
     NULL, 9, 0, 1, 0},
    {"halves_same", READY SHAPE(67633168) "sub.u32 %r22, %r22, 32;\n" MMA("kind::f16", "") HALF(0) COMMIT SEE END,
     "reads column 0 of the tensor memory of CTA rank 0, written by products", 0, 0, 0, 0},
    {"collector_empty", READY MMA("kind::f16.collector::a::use", "") END, "no earlier product has filled", 0, 0, 0, 0},
    {"collector_other",
     READY MMA("kind::f16.collector::a::fill", "") "add.u64 %rd2, %rd2, 8;\n" MMA("kind::f16.collector::a::lastuse", "")
         END,
     "filled from other operands", 0, 0, 0, 0},
    {"collector_gone",
     READY MMA("kind::f16.collector::a::fill", "") MMA("kind::f16", "") MMA("kind::f16.collector::a::use", "") END,
     "no earlier product has filled", 0, 0, 0, 0},
    {"sums_unwritten", READY "setp.eq.u32 add, %r0, %r0;\n" MMA("kind::f16", "") COMMIT SEE END,
     "the product takes D from cells", 0, 0, 0, 0},
    {"a_of_product",
     READY MMA("kind::f16",
               "") "@q tcgen05.mma.cta_group::1.kind::f16 [%r4], [%r22], %rd2, %r21, add;\n" COMMIT SEE END,
     "reads column 32 of the tensor memory of CTA rank 0, as an operand", 0, 0, 0, 0},
    {"a_unwritten",
     READY "add.u32 %r23, %r4, 48;\nsub.u32 %r22, %r22, 32;\n@q tcgen05.mma.cta_group::1.kind::f16 [%r22], "
           "[%r23], %rd2, %r21, add;\n" COMMIT SEE END,
     "the product takes A from cells", 0, 0, 0, 0},
    {"scales_unwritten",
     READY SHAPE(143130624) "add.u32 %r24, %r4, 40;\nsub.u32 %r22, %r22, 32;\n" MMA("kind::mxf8f6f4.block_scale",
                                                                                    "[%r24], [%r24], ") COMMIT SEE END,
     "the product takes scales from cells", 0, 0, 0, 0},
    {"scales_byte", READY SHAPE(680002688) MMA("kind::mxf4.block_scale", "[%r4], [%r23], ") END,
     "the first byte of the scales", 0, 0, 0, 0},
    {"m_of_scales", READY SHAPE(76021760) MMA("kind::mxf8f6f4.block_scale", "[%r4], [%r23], ") END,
     "M or N that this kind has not", 0, 0, 0, 0},
    {"saturated_halves", READY SHAPE(134742040) MMA("kind::f16", "") END, "saturation", 0, 0, 0, 0},
    {"sparse", READY SHAPE(134742036) MMA("kind::f16", "") END, "sparse A is not modelled", 0, 0, 0, 0},
    {"lane_of_d", READY "add.u32 %r22, %r22, 1048576;\n" MMA("kind::f16", "") END, "begin at lane 0", 0, 0, 0, 0},
    {"pack_beyond",
     READY "tcgen05.ld.sync.aligned.32x32b.x32.pack::16b.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9, "
           "%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17, %r18, %r19, %r20, %r21, %r22, %r23, %r24, %r25, "
           "%r26, %r27, %r28, %r29, %r30, %r31}, [%r5+16];\n" END,
     "column 64 of the tensor memory", 0, 0, 0, 0},

    {"sp", READY "@q tcgen05.mma.sp.cta_group::1.kind::f16 [%r22], %rd2, %rd2, [%r4], %r21, add;\n" END, "mma.sp", 0, 0,
     0, REFUSED},
    {"ashift", READY "@q tcgen05.mma.cta_group::1.kind::f16.ashift [%r22], [%r4], %rd2, %r21, add;\n" END,
     ".ashift is not known", 0, 0, 0, REFUSED},
    {"mask_of_none_number", MASKED(", 0"), NULL, 1, 0, 1, 0},
    {"mask_of_none", MASKED(", %rd3"), NULL, 1, 0, 1, 0},
    /* lane 0 from every warp: the quarter is the warp's own */
    {"lanes_of_the_warp",
     READY "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4+33], {%r0};\ntcgen05.wait::st.sync.aligned;\n" SYNC
           "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r31}, [%r5+33];\n"
           "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r30}, [%r4+3];\ntcgen05.wait::ld.sync.aligned;\n"
           "add.u32 %r30, %r30, %r31;\n" PUT END,
     NULL, 768, 2, 128, 0},
    {"lanes_of_another", READY "xor.b32 %r5, %r5, 2097152;\n" TAKE(3) PUT END, "on: the warp reaches", 0, 0, 0, 0},
    {"lanes_beyond", READY "add.u32 %r5, %r4, 8388608;\n" TAKE(3) PUT END, "from 128 on", 0, 0, 0, 0},
    {"column_mask", READY WS(", %rd2") END, "the zero-column mask 0x", 0, 0, 0, 0},
    {"column_mask_number", READY WS(", 5") END, "a zero-column mask other than 0", 0, 0, 0, REFUSED},
    {"collector_of_b", READY MMA("kind::f16.collector::b0::fill", "") END, "collector buffer of another matrix", 0, 0,
     0, REFUSED},
    {"no_multicast", READY CP("64x128b") END, "not known here", 0, 0, 0, REFUSED},
    {"wrong_multicast", READY CP("128x128b.warpx4") END, "not known here", 0, 0, 0, REFUSED},
    {"half_of_packing", READY CP("128x128b.b8x16") END, "not known here", 0, 0, 0, REFUSED},
    {"scales_of_kind", READY MMA("kind::mxf4.block_scale.scale_vec::4X", "[%r4], [%r4], ") END, "no such scales", 0, 0,
     0, REFUSED},
    {"scales_missing", READY MMA("kind::mxf4nvf4.block_scale", "[%r4], [%r4], ") END, "no such scales", 0, 0, 0,
     REFUSED},
    {"too_few_lanes", READY MMA("kind::f16", "{%r0, %r0}, ") END, "2 registers of lanes, not 4", 0, 0, 0, REFUSED},
    {"long_name",
     ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry " FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY
         FIFTY FIFTY "()\n{\n.reg .b32 %r<3>;\nadd.wrong.s32 %r0, %r1, %r2;\nret;\n}\n",
     "line 7, add.wrong.s32: ", 0, 0, 0, REFUSED},
    {"load_and_reduce", READY "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r30, %r31}, %r32, [%r5];\n" END,
     "tcgen05", 0, 0, 0, REFUSED},
    {"clusters_taken", PERSIST(RUN ASK ANSWER READ NEXT), NULL, 128, 0, 1, MANY},
    {"clusters_unwaited", PERSIST(RUN ASK READ NEXT ANSWER), "async: reads shared byte 0", 0, 0, 0, MANY},
    {"clusters_after_last", PERSIST(RUN ASK ANSWER READ NEXT ASK), "seen that none is left", 0, 0, 0, MANY},
    /* its result is nothing that was asked for; where it is used as an address the use is the finding */
    {"cluster_of_nobody",
     PERSIST("mul.wide.u32 %rd3, %r0, 4;\nadd.u64 %rd3, %rd3, %rd0;\n" ASK ANSWER READ
             "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r6, %q;\nst.global.b32 [%rd3], %r0;\n"
             "st.global.b32 [%rd3+128], %r0;\nst.global.b32 [%rd3+256], %r0;\nst.global.b32 [%rd3+384], %r0;\n"),
     NULL, 0, 1, 32, 0},
    {"cluster_of_nobody_used",
     PERSIST(ASK ANSWER READ "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r6, %q;\n"
                             "mul.wide.u32 %rd3, %r6, 4;\nadd.u64 %rd3, %rd3, %rd0;\nst.global.b32 [%rd3], %r0;\n"),
     "out of bounds", 0, 0, 0, 0},
    /* two warps allocate together: the columns are there in both CTAs, and the same */
    {"pair", PAIR(LATER PAIR_ALLOC("", 0, 64) CLUSTER SHIFTED PAIR_FREE("", 0, 64) "st.global.b32 [%rd0], %r0;\n"),
     NULL, 0, 1, 32, PAIRED},
    {"pair_early", PAIR(LATER PAIR_ALLOC("", 0, 64) SHIFTED PAIR_FREE("", 0, 64)),
     "unwaited: uses tensor memory of CTA rank 1", 0, 0, 0, PAIRED},
    {"pair_of_columns",
     PAIR(PAIR_ALLOC("", 0, 32) PAIR_ALLOC("", 4, 32) PAIR_FREE("@!one ", 0, 32) PAIR_ALLOC("", 8, 32) PAIR_FREE(
         "@one ", 0, 32) CLUSTER PAIR_FREE("", 4, 32) PAIR_FREE("", 8, 32) "st.global.b32 [%rd0], %r4;\n"),
     NULL, 64, 0, 1, PAIRED},
    {"pair_of_sizes",
     PAIR("selp.b32 %r7, 64, 32, one;\ntcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], "
          "%r7;\n"),
     "allocates", 0, 0, 0, PAIRED},
    {"pair_alone", PAIR(PAIR_ALLOC("@!one ", 0, 32)), "the tcgen05.alloc of CTA rank 1", 0, 0, 0, PAIRED},
    {"no_answer",
     PERSIST("mov.b64 %rd1, 5;\nmov.b128 %q, {%rd1, %rd1};\n"
             "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 taken, %q;\n"),
     "is no answer of try_cancel", 0, 0, 0, 0},
};

static int run(const char *driver, int i) {
    void *module, *function;
    uint64_t address, n = 0;
    static uint32_t words[N];
    static char log[4096];
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    setenv("ATTNSIM_QUIET", "1", 1), setenv("ATTNSIM_GPU", "b200", 1), setenv("ATTNSIM_THREADS", "1", 1);
    if (kernel_open_driver(driver)) return -1;
    int r = cu.load(&module, cases[i].ptx, 2, options, values);
    if (cases[i].how == REFUSED) {
        if (r && strstr(log, cases[i].finding) && strstr(log, "line")) return 0;
        printf("FAIL %s: result %d: %s\n", cases[i].name, r, log);
        return 1;
    }
    if (r || cu.function(&function, module, "k")) {
        printf("FAIL %s: result %d: %s\n", cases[i].name, r, log);
        return 1;
    }
    struct kernel_launch l = {.grid = {cases[i].how == MANY     ? 128
                                       : cases[i].how == PAIRED ? 2
                                                                : 1,
                                       1, 1},
                              .block = {strstr(cases[i].ptx, ".maxntid 32,") ? 32 : 128, 1, 1}};
    void *params[] = {&address};
    if (kernel_upload(&address, words, sizeof words)) return -1;
    r = cu.launch(&l, function, params, NULL);
    const char *text = cu.report(&n, 0);
    if (!r) r = cu.down(words, address, sizeof words);
    int good = cases[i].finding ? n > 0 && strstr(text, cases[i].finding) != NULL : !r && !n;
    for (uint32_t k = 0; k < (cases[i].how == PAIRED ? 64 : N) && good && !cases[i].finding; k++) {
        uint32_t want = cases[i].first + cases[i].step * (k % cases[i].modulus);
        good = words[k] == want;
        if (!good) printf("word %u is %08x, not %08x\n", k, words[k], want);
    }
    if (good) return 0;
    printf("FAIL %s, %s: result %d, %llu findings: %.900s\n", cases[i].name, getenv("ATTNSIM_POLICY"), r,
           (unsigned long long)n, text);
    return 1;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
