/* SPDX-License-Identifier: MIT
 * Registers that share places in the simulator (sim/decode/regalloc.c): each kernel gives the words that it would with
 * a place for every register, under loops, guards, parted lanes and results wider than their sources. usage:
 * t_sim_registers DRIVER
 */
#include "kernel_mutants.h"

#include <stdio.h>
#include <stdlib.h>

/* 64 threads; %t = thread, %rd0 = place of its word, which holds 1000 + thread. The result is %out. */
#define KERNEL(body)                                                                                                   \
    ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 words)\n.maxntid 64, 1, 1\n{\n"      \
    ".reg .pred p, q;\n.reg .b32 %t, %out, %r<30>;\n.reg .b64 %rd<20>;\nmov.u32 %t, %tid.x;\n"                         \
    "ld.param.u64 %rd1, [words];\nmul.wide.u32 %rd2, %t, 4;\nadd.s64 %rd0, %rd1, %rd2;\nand.b32 %r0, %t, 1;\n"         \
    "setp.eq.u32 q, %r0, 1;\n" body "st.global.u32 [%rd0], %out;\nret;\n}\n"

enum { N = 64, UNSET = 0xfbfbfbfb };
static uint32_t words[N];
static uint32_t loop(uint32_t t) { return t + 1 + (t % 4 + 1) * (t + 1) + 7 * (t % 4 + 1); }
static uint32_t guarded(uint32_t t) { return t & 1 ? 3 * t + t + 9 : 5 + t + 9; }
static uint32_t parted(uint32_t t) { return t & 1 ? 100 * t + t : t * t + 3 + t; }
static uint32_t wide(uint32_t t) { return (uint32_t)(((uint64_t)(t + 0x10000001) * (t + 0x10000002)) >> 32) + t; }
static uint32_t halves(uint32_t t) { return ((t + 1) << 16 | (t + 2)) ^ (t + 3); }
static uint32_t unset(uint32_t t) { return t & 1 ? t + 1 : UNSET; }
static uint32_t around(uint32_t t) { return t < 8 ? t + 52 : t + 54; }

static const struct {
    const char *name, *ptx;
    uint32_t (*want)(uint32_t t);
} cases[] = {
    /* %r1 lives over the loop, %r2 and %out around it, %r4 and %r5 inside; lanes leave it after 1 to 4 rounds */
    {"loop",
     KERNEL("add.u32 %r1, %t, 1;\nmov.u32 %out, 0;\nmov.u32 %r2, 0;\nand.b32 %r3, %t, 3;\n"
            "L:\nadd.u32 %r4, %r1, 7;\nadd.u32 %out, %out, %r4;\nsetp.lt.u32 p, %r2, %r3;\nadd.u32 %r5, %r2, 1;\n"
            "mov.u32 %r2, %r5;\n@p bra L;\nadd.u32 %r6, %out, %r1;\nmov.u32 %out, %r6;\n"),
     loop},
    /* the write under a guard leaves the other lanes' value */
    {"guarded",
     KERNEL("mov.u32 %r1, 5;\nmul.lo.u32 %r2, %t, 3;\n@q mov.u32 %r1, %r2;\nadd.u32 %r3, %t, 9;\n"
            "add.u32 %out, %r1, %r3;\n"),
     guarded},
    /* each arm has registers of its own, which the other's may share; %r1 comes through both */
    {"parted",
     KERNEL("add.u32 %r1, %t, 0;\n@q bra ODD;\nmul.lo.u32 %r2, %t, %t;\nadd.u32 %r3, %r2, 3;\nmov.u32 %r9, %r3;\n"
            "bra.uni MET;\nODD:\nmov.u32 %r4, 100;\nmul.lo.u32 %r5, %r4, %t;\nmov.u32 %r9, %r5;\nMET:\n"
            "bar.warp.sync 0xffffffff;\nadd.u32 %out, %r9, %r1;\n"),
     parted},
    /* results of 64 bits from sources of 32 that end there, and back */
    {"wide",
     KERNEL("add.u32 %r1, %t, 0x10000001;\nadd.u32 %r2, %t, 0x10000002;\nmul.wide.u32 %rd3, %r1, %r2;\n"
            "shr.u64 %rd4, %rd3, 32;\ncvt.u32.u64 %r3, %rd4;\ncvt.u64.u32 %rd5, %r3;\ncvt.u64.u32 %rd6, %t;\n"
            "add.s64 %rd7, %rd5, %rd6;\ncvt.u32.u64 %out, %rd7;\n"),
     wide},
    /* several results of one statement; one that nobody reads must not take the place of one that is read */
    {"halves",
     KERNEL("add.u32 %r1, %t, 2;\nadd.u32 %r2, %t, 1;\nshl.b32 %r3, %r2, 16;\nor.b32 %r4, %r3, %r1;\n"
            "add.u32 %r5, %t, 3;\nmov.b64 %rd3, {%r4, %r5};\nmov.b64 {%r6, %r7}, %rd3;\nmov.b64 {%r8, %r9}, %rd3;\n"
            "xor.b32 %out, %r6, %r9;\n"),
     halves},
    /* odd lanes alone write %r1: the others read the pattern of what nobody wrote, whatever came before */
    {"unset", KERNEL("add.u32 %r2, %t, 5;\nsub.u32 %r3, %r2, 4;\n@q mov.u32 %r1, %r3;\nmov.u32 %out, %r1;\n"), unset},
    /* %r2 is written further down in the text than the block that reads it, behind results that end there */
    {"around",
     KERNEL("bra.uni TEST;\nBACK:\nadd.u32 %r5, %t, 50;\nadd.u32 %r6, %r5, 1;\n"
            "sub.u32 %r7, %r6, %t;\nsub.u32 %r8, %r7, 51;\nadd.u32 %r9, %r8, %r6;\nadd.u32 %out, %r9, %r2;\n"
            "bra.uni END;\nTEST:\nadd.u32 %r4, %t, 77;\nsetp.lt.u32 p, %r4, 85;\nmov.u32 %r2, 1;\n@p bra BACK;\n"
            "mov.u32 %r2, 3;\nbra.uni BACK;\nEND:\n"),
     around},
};

static int run(const char *driver, int i) {
    void *module, *function;
    uint64_t address, n = 0;
    int bad = 0;
    for (uint32_t k = 0; k < N; k++) words[k] = 1000 + k;
    setenv("ATTNSIM_QUIET", "1", 1);
    if (kernel_open_driver(driver)) return -1;
    if (cu.load(&module, cases[i].ptx, 0, NULL, NULL) || cu.function(&function, module, "k")) {
        printf("FAIL %s: the module\n", cases[i].name);
        return 1;
    }
    struct kernel_launch l = {.grid = {1, 1, 1}, .block = {N, 1, 1}};
    void *params[] = {&address};
    if (kernel_upload(&address, words, sizeof words)) return 1;
    int r = cu.launch(&l, function, params, NULL);
    const char *text = cu.report(&n, 0);
    if (!r) r = cu.down(words, address, sizeof words);
    for (uint32_t k = 0; k < N && !r && !bad; k++) {
        bad = words[k] != cases[i].want(k);
        if (bad) printf("%s: word %u is %u, not %u\n", cases[i].name, k, words[k], cases[i].want(k));
    }
    if (!r && !n && !bad) return 0;
    printf("FAIL %s: result %d, %llu findings: %s\n", cases[i].name, r, (unsigned long long)n, text);
    return 1;
}

int main(int argc, char **argv) { return kernel_cases_main(argc, argv, (int)(sizeof cases / sizeof *cases), run); }
