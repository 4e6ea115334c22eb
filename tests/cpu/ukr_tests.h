/* SPDX-License-Identifier: MIT
 * Part of the tests of the pair kernels: random numbers, what has to stand around a group of tests of `u`, the
 * kernels of an instruction set, and a program whose tests all need tiles. The includer has declared u. */
#ifndef ATTN_TESTS_UKR_TESTS_H
#define ATTN_TESTS_UKR_TESTS_H
#include "cpu/host/cpu.h"
#include "cpu/ukr/bf16.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static uint64_t state = 1;
static double uniform(void) { /* -1 .. 1 */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) * 0x1p-52 - 1;
}

static int begin(void **unused) {
    (void)unused;
    attn_ukr_bf16_begin(u);
    return 0;
}
static int end(void **unused) {
    (void)unused;
    attn_ukr_bf16_end(u);
    return 0;
}

/* What main returns: how many failed, or 77, skipped. */
#define RUN_ON_TILES(tests)                                                                                            \
    (attn_cpu_features("", NULL) & ATTN_CPU_AMX ? cmocka_run_group_tests(tests, begin, end)                            \
                                                : (printf("no AMX on this processor: skipped\n"), 77))
#endif
