/* SPDX-License-Identifier: MIT
 * A right kernel with what sm_80 kernels are made of, for t_sim_mutants.c: C = A B^T in tiles that cp.async brings
 * through three stages, ldmatrix, mma, a reduction through shuffles and shared memory.
 *
 * A: 61 rows of 384 bf16 (row 61 to 63 of the tile are filled with zeros), B: 8 rows of 384, out: 61 x 8 f32, then the
 * largest |C|. 4 warps; warp w has rows 16 w and up. Shared memory: 3 stages of 64 rows of A and 8 of B, 144 bytes a
 * row (128 of them data), then 4 words of the reduction. A comment //@NAME marks the line that a report must name. */
#ifndef PIPELINE_PTX_H
#define PIPELINE_PTX_H

enum { PIPELINE_ROWS = 61, PIPELINE_K = 384, PIPELINE_N = 8, PIPELINE_STAGE = 72 * 144 };
static const char pipeline_ptx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out)\n{\n"
    ".shared .align 16 .b8 s[31104];\n.shared .align 16 .b32 top[4];\n"
    ".reg .pred row_ok, b_ok, more, first, last, low;\n"
    ".reg .b32 tid, lane, warp, t, stage, next, base, at, row, column, size, left, bsize, r<16>;\n"
    ".reg .b32 fa<4>, fb<2>, u, from_a, from_b, into_a, into_b, read_a, read_b;\n"
    ".reg .f32 c<4>, big, other;\n.reg .b64 pa, pb, po, x;\n"
    "mov.u32 tid, %tid.x;\nand.b32 lane, tid, 31;\nshr.u32 warp, tid, 5;\n"
    "ld.param.u64 pa, [a];\nld.param.u64 pb, [b];\nld.param.u64 po, [out];\nmov.u32 base, s;\n"
    /* a thread's part of a copy: half a row of A in four pieces; threads 0..63 a piece of B */
    "shr.u32 row, tid, 1;\nsetp.lt.u32 row_ok, row, 61;\nand.b32 u, tid, 1;\nshl.b32 u, u, 6;\n"
    "selp.b32 size, 16, 0, row_ok; //@GUARD_A\n"
    "mul.lo.u32 into_a, row, 144;\nadd.u32 into_a, into_a, u;\n"
    "selp.b32 r0, row, 0, row_ok; //@CLAMP_A\nmul.wide.u32 x, r0, 768;\nadd.u64 pa, pa, x;\ncvt.u64.u32 x, u;\nadd.u64 pa, pa, x;\n"
    "setp.lt.u32 b_ok, tid, 64; //@GUARD_B\nshr.u32 r1, tid, 3;\nand.b32 r2, tid, 7;\nshl.b32 r2, r2, 4;\n"
    "mad.lo.u32 into_b, r1, 144, 9216;\nadd.u32 into_b, into_b, r2;\n"
    "mul.wide.u32 x, r1, 768;\nadd.u64 pb, pb, x;\ncvt.u64.u32 x, r2;\nadd.u64 pb, pb, x;\n"
    /* where a lane reads: ldmatrix.x4 of A, .x2 of B */
    "shl.b32 r3, warp, 4;\nand.b32 r4, lane, 15;\nadd.u32 r3, r3, r4;\nmul.lo.u32 read_a, r3, 144; //@STRIDE\n"
    "shr.u32 r4, lane, 4;\nshl.b32 r4, r4, 4;\nadd.u32 read_a, read_a, r4;\n"
    "and.b32 r4, lane, 7;\nmad.lo.u32 read_b, r4, 144, 9216;\nshr.u32 r4, lane, 3;\nand.b32 r4, r4, 1;\nshl.b32 r4, r4, 4;\n"
    "add.u32 read_b, read_b, r4;\n"
    "mov.f32 c0, 0f00000000;\nmov.f32 c1, 0f00000000;\nmov.f32 c2, 0f00000000;\nmov.f32 c3, 0f00000000;\n"
    /* stages 0 and 1 ahead of the loop */
    "mov.u32 t, 0;\nmov.u32 next, base;\n"
    "AHEAD:\n"
    "add.u32 from_a, next, into_a;\nadd.u32 from_b, next, into_b;\n"
    "cp.async.cg.shared.global [from_a], [pa], 16, size; //@FIRST_A\n"
    "cp.async.cg.shared.global [from_a+16], [pa+16], 16, size;\n"
    "cp.async.cg.shared.global [from_a+32], [pa+32], 16, size;\n"
    "cp.async.cg.shared.global [from_a+48], [pa+48], 16, size;\n"
    "@b_ok cp.async.cg.shared.global [from_b], [pb], 16; //@FIRST_B\n"
    "cp.async.commit_group; //@FIRST_COMMIT\n"
    "add.u64 pa, pa, 128;\nadd.u64 pb, pb, 128;\nadd.u32 next, next, 10368;\nadd.u32 t, t, 1;\n"
    "setp.lt.u32 more, t, 2;\n@more bra AHEAD;\n"
    "mov.u32 t, 0;\nmov.u32 stage, base;\n"
    "LOOP:\n"
    "cp.async.wait_group 1; //@WAIT\n"
    "bar.sync 0; //@BARRIER\n"
    "setp.lt.u32 more, t, 4;\n"
    "@!more bra NO_COPY;\n"
    "add.u32 from_a, next, into_a;\nadd.u32 from_b, next, into_b;\n"
    "cp.async.cg.shared.global [from_a], [pa], 16, size; //@COPY_A\n"
    "cp.async.cg.shared.global [from_a+16], [pa+16], 16, size;\n"
    "cp.async.cg.shared.global [from_a+32], [pa+32], 16, size;\n"
    "cp.async.cg.shared.global [from_a+48], [pa+48], 16, size;\n"
    "@b_ok cp.async.cg.shared.global [from_b], [pb], 16; //@COPY_B\n"
    "add.u64 pa, pa, 128;\nadd.u64 pb, pb, 128;\n"
    "NO_COPY:\n"
    "cp.async.commit_group; //@COMMIT\n"
    "mov.u32 column, 0;\n"
    "STEP:\n"
    "add.u32 at, stage, read_a;\nadd.u32 at, at, column;\n"
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {fa0, fa1, fa2, fa3}, [at]; //@LOAD_A\n"
    "add.u32 at, stage, read_b;\nadd.u32 at, at, column;\n"
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {fb0, fb1}, [at]; //@LOAD_B\n"
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {c0, c1, c2, c3}, {fa0, fa1, fa2, fa3}, {fb0, fb1}, {c0, c1, c2, "
    "c3};\n"
    "add.u32 column, column, 32;\nsetp.lt.u32 low, column, 128;\n@low bra STEP;\n"
    "//@END_STEP\n"
    "add.u32 stage, stage, 10368; //@NEXT_STAGE\nadd.u32 r5, base, 31104;\nsetp.ge.u32 last, stage, r5;\n@last mov.u32 stage, base;\n"
    "add.u32 next, next, 10368;\nsetp.ge.u32 last, next, r5;\n@last mov.u32 next, base; //@WRAP\n"
    "add.u32 t, t, 1; //@COUNT\nsetp.lt.u32 more, t, 6;\n@more bra LOOP;\n"
    /* out: rows g and g + 8, columns 2 c and 2 c + 1 */
    "shl.b32 r6, warp, 4;\nshr.u32 r7, lane, 2;\nadd.u32 r6, r6, r7;\nand.b32 r7, lane, 3;\nshl.b32 r7, r7, 3;\n"
    "mul.wide.u32 x, r6, 32;\nadd.u64 x, po, x;\ncvt.u64.u32 pb, r7;\nadd.u64 x, x, pb;\n"
    "setp.lt.u32 row_ok, r6, 61;\n"
    "@row_ok st.global.v2.f32 [x], {c0, c1}; //@STORE\n"
    "add.u32 r6, r6, 8;\nsetp.lt.u32 row_ok, r6, 61;\n"
    "@row_ok st.global.v2.f32 [x+256], {c2, c3}; //@STORE_LOW\n"
    /* largest |C| of the warp, of the CTA */
    "abs.f32 big, c0;\nabs.f32 c1, c1;\nmax.f32 big, big, c1;\nabs.f32 c2, c2;\nmax.f32 big, big, c2;\n"
    "abs.f32 c3, c3;\nmax.f32 big, big, c3;\n"
    "mov.u32 r8, 16;\n"
    "FOLD:\nmov.b32 r9, big;\nshfl.sync.bfly.b32 r10, r9, r8, 31, -1; //@SHUFFLE\nmov.b32 other, r10;\nmax.f32 big, big, other;\n"
    "shr.u32 r8, r8, 1;\nsetp.ne.u32 more, r8, 0;\n@more bra FOLD;\n"
    "shl.b32 r13, tid, 2;\nadd.u32 r13, r13, base;\nst.shared.f32 [r13], big; //@GIVE\nbar.warp.sync -1; //@WARP_BARRIER\n"
    "xor.b32 r13, r13, 4;\nld.shared.f32 other, [r13]; //@NEIGHBOUR\nmax.f32 big, big, other;\n"
    "setp.eq.u32 first, lane, 0;\nshl.b32 r11, warp, 2;\nmov.u32 r12, top;\nadd.u32 r11, r11, r12; //@PLACE\n"
    "@first st.shared.f32 [r11], big; //@KEEP\n"
    "bar.sync 1, 128; //@LAST_BARRIER\n"
    "setp.eq.u32 first, tid, 0;\n@!first bra DONE;\n"
    "ld.shared.v4.f32 {c0, c1, c2, c3}, [top]; //@TAKE\n"
    "max.f32 c0, c0, c1;\nmax.f32 c2, c2, c3;\nmax.f32 c0, c0, c2;\n"
    "st.global.f32 [po+1952], c0; //@LARGEST\n"
    "DONE:\nret;\n}\n";
#endif
