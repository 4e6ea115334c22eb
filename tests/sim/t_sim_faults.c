/* SPDX-License-Identifier: MIT
 * The simulator on small kernels: right ones must give the right numbers under every policy and no finding, and each
 * planted fault must be found and named. */
#include "kernel_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kernel_driver cu;

static int open_driver(void **state) {
    (void)state;
    setenv("ATTNSIM_QUIET", "1", 1);
    char why[300];
    void *context;
    if (kernel_driver_open(&cu, ATTN_TEST_SIM, why, sizeof why) || !cu.report) return -1;
    if (cu.init(0) || cu.retain(&context, 0)) return -1;
    return cu.push(context);
}

/* 64 threads; s: 256 words of shared memory; %r0 = thread, %rd0 = its word of the 64-word buffer. */
#define KERNEL(body)                                                                                                   \
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n.shared .align 16 .b8 "     \
    "s[1024];\n.reg .pred p;\n.reg .b16 %h<4>;\n.reg .b32 %r<20>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<8>;\n"              \
    "mov.u32 %r0, %tid.x;\nld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd1, %rd1;\n"                                \
    "mul.wide.u32 %rd0, %r0, 4;\nadd.s64 %rd0, %rd0, %rd1;\nmov.u32 %r1, s;\nshl.b32 %r2, %r0, 2;\n"                   \
    "add.s32 %r3, %r1, %r2;\nxor.b32 %r4, %r2, 252;\nadd.s32 %r4, %r1, %r4;\n" body "ret;\n}\n"

static uint32_t out[64];
/* The launch's result, with findings counted; loads are refused with -1. */
static int run(const char *ptx, const char *policy, uint64_t *findings, int release_first) {
    void *module, *f;
    uint64_t buffer, address;
    setenv("ATTNSIM_POLICY", policy, 1);
    cu.report(NULL, 1);
    if (cu.load(&module, ptx, 0, NULL, NULL)) return -1;
    assert_int_equal(cu.function(&f, module, "k"), 0);
    assert_int_equal(cu.alloc(&buffer, sizeof out), 0);
    for (uint32_t i = 0; i < 64; i++) out[i] = 1000 + i;
    assert_int_equal(cu.up(buffer, out, sizeof out), 0);
    address = buffer;
    if (release_first) cu.freed(buffer);
    struct kernel_launch c = {.grid = {1, 1, 1}, .block = {64, 1, 1}};
    void *params[] = {&address};
    int r = cu.launch(&c, f, params, NULL);
    cu.report(findings, 0);
    if (!release_first && !r) assert_int_equal(cu.down(out, buffer, sizeof out), 0);
    return r;
}

static const char *const policies[] = {"eager", "late", "random"};
/* Copies %rd0's word into shared memory of the thread; the reader takes the word of thread 63 - t. */
#define COPY "cp.async.ca.shared.global [%r3], [%rd0], 4;\ncp.async.commit_group;\n"
#define WAIT "cp.async.wait_group 0;\n"
#define SYNC "bar.sync 0;\n"
#define TAKE "ld.shared.u32 %r5, [%r4];\nst.global.u32 [%rd0], %r5;\n"

static void right_kernel(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        uint64_t n = 1;
        assert_int_equal(run(KERNEL(COPY WAIT SYNC TAKE), policies[i], &n, 0), 0);
        assert_int_equal(n, 0);
        for (uint32_t t = 0; t < 64; t++) assert_int_equal(out[t], 1000 + 63 - t);
    }
}
static void arithmetic(void **state) {
    (void)state;
    uint64_t n;
    /* lanes part and meet again; shuffle; ballot; bit field; conversion */
    assert_int_equal(run(KERNEL("and.b32 %r5, %r0, 1;\nsetp.eq.s32 p, %r5, 0;\n@p bra EVEN;\nadd.s32 %r6, %r0, 100;\n"
                                "bra.uni MEET;\nEVEN:\nmul.lo.s32 %r6, %r0, 7;\nMEET:\n"
                                "shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;\nvote.sync.ballot.b32 %r8, p, -1;\n"
                                "bfe.u32 %r9, %r8, 0, 3;\ncvt.rn.f32.u32 %f1, %r9;\nfma.rn.f32 %f1, %f1, 0f40000000, "
                                "0f3F000000;\ncvt.rzi.u32.f32 %r10, %f1;\nadd.s32 %r7, %r7, %r10;\n"
                                "st.global.u32 [%rd0], %r7;\n"),
                         "eager", &n, 0),
                     0);
    assert_int_equal(n, 0);
    for (uint32_t t = 0; t < 64; t++)
        assert_int_equal(out[t],
                         (t & 1 ? (t ^ 1) * 7 : (t ^ 1) + 100) + 10); /* ballot 0x55555555 & 7 = 5; 2 * 5 + .5 */
}
static void halves(void **state) {
    (void)state;
    uint64_t n;
    assert_int_equal(run(KERNEL("cvt.rn.f32.s32 %f0, %r0;\nmul.f32 %f0, %f0, 0f3DCCCCCD;\ncvt.rn.bf16x2.f32 %r5, %f0, "
                                "%f0;\ncvt.rn.f16.f32 %h0, %f0;\ncvt.u32.u16 %r6, %h0;\nand.b32 %r5, %r5, 0xffff0000;\n"
                                "or.b32 %r5, %r5, %r6;\nst.global.u32 [%rd0], %r5;\n"),
                         "eager", &n, 0),
                     0);
    assert_int_equal(out[1], 0x3dcd0000 | 0x2e66);  /* 0.1 */
    assert_int_equal(out[10], 0x3f800000 | 0x3c00); /* 1 */
    assert_int_equal(out[63], 0x40ca0000 | 0x464d); /* 6.3 */
}

static void expect(const char *ptx, const char *word, int release_first) {
    for (int i = 0; i < 3; i++) {
        uint64_t n = 0;
        int r = run(ptx, policies[i], &n, release_first);
        if (r <= 0 || !n || !strstr(cu.report(NULL, 0), word))
            fail_msg("%s, %s: result %d, %llu findings: %s", word, policies[i], r, (unsigned long long)n,
                     cu.report(NULL, 0));
    }
}
static void missing_barrier(void **state) {
    (void)state;
    expect(KERNEL("st.shared.u32 [%r3], %r0;\n" TAKE), "shared byte", 0); /* a race, or what nobody wrote so far */
}
static void missing_second_barrier(void **state) {
    (void)state;
    expect(KERNEL("st.shared.u32 [%r3], %r0;\n" SYNC TAKE "st.shared.u32 [%r3], %r2;\n"), "race", 0);
}
static void missing_wait(void **state) {
    (void)state;
    expect(KERNEL(COPY SYNC TAKE), "not waited for", 0);
    expect(KERNEL(COPY COPY "cp.async.wait_group 1;\n" SYNC TAKE), "not waited for", 0);
}
static void copy_without_barrier(void **state) {
    (void)state;
    expect(KERNEL(COPY WAIT TAKE), "shared byte", 0);
}
static void uninitialised(void **state) {
    (void)state;
    expect(KERNEL("ld.shared.u32 %r5, [%r3+512];\nst.global.u32 [%rd0], %r5;\n"), "uninitialised", 0);
}

/* Faults that end a launch stay in the context: each in a process of its own (argument 1). */
static const struct {
    const char *name, *ptx, *word;
    int release_first;
} fatal[] = {
    {"global_bounds", KERNEL("ld.global.u32 %r5, [%rd0+4];\n"), "out of bounds", 0},
    {"shared_bounds", KERNEL("ld.shared.u32 %r5, [%r3+1020];\n"), "out of bounds", 0},
    {"alignment", KERNEL("ld.global.u32 %r5, [%rd0+2];\n"), "misaligned", 0},
    {"freed", KERNEL("ld.global.u32 %r5, [%rd0];\n"), "use after free", 1},
    {"deadlock", KERNEL("setp.lt.u32 p, %r0, 32;\n@p bra L;\nbar.sync 1, 64;\nL:\nbar.sync 2, 64;\n"), "deadlock", 0},
    {"divergent_barrier", KERNEL("setp.lt.u32 p, %r0, 7;\n@p bra L;\nbar.sync 0;\nbra.uni M;\nL:\nbar.sync 1;\nM:\n"),
     "deadlock", 0},
    {"trap", KERNEL("trap;\n"), "trap", 0},
    {"breakpoint", KERNEL("brkpt;\n"), "trap: the kernel reached a breakpoint", 0},
    {"assertion",
     ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n" KERNEL(
         "{\n.param .b64 a;\n.param .b64 b;\n.param .b32 c;\n.param .b64 d;\n.param .b64 e;\n"
         "call.uni __assertfail, (a, b, c, d, e);\n}\n"),
     "trap", 0},
};
static void unknown_instruction(void **state) {
    (void)state;
    uint64_t n;
    assert_int_equal(run(KERNEL("frobnicate.u32 %r5, %r0;\n"), "eager", &n, 0), -1);
    assert_int_equal(run(KERNEL("add.wrong.s32 %r5, %r0, %r0;\n"), "eager", &n, 0), -1);
    assert_int_equal(run(KERNEL("add.s32 %r5, %r99, %r0;\n"), "eager", &n, 0), -1);
    assert_int_equal(run(KERNEL("ld.param.u32 %r5, [out+8];\n"), "eager", &n, 0), -1); /* behind the parameters */
}

int main(int argc, char **argv) {
    if (argc > 1) {
        if (open_driver(NULL)) return 1;
        for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
            if (!strcmp(fatal[i].name, argv[1])) {
                uint64_t n = 0;
                int r = run(fatal[i].ptx, argc > 2 ? argv[2] : "eager", &n, fatal[i].release_first);
                int found = r == (strcmp(fatal[i].name, "assertion") ? 719 : 710) && n &&
                            strstr(cu.report(NULL, 0), fatal[i].word);
                printf("%s: result %d, %llu findings\n%s", argv[1], r, (unsigned long long)n, cu.report(NULL, 0));
                return !found;
            }
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernel),
        cmocka_unit_test(arithmetic),
        cmocka_unit_test(halves),
        cmocka_unit_test(missing_barrier),
        cmocka_unit_test(missing_second_barrier),
        cmocka_unit_test(missing_wait),
        cmocka_unit_test(copy_without_barrier),
        cmocka_unit_test(uninitialised),
        cmocka_unit_test(unknown_instruction),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
