/* SPDX-License-Identifier: MIT
 * All operators on the emulated tiles through the public calls: the AMX row is what a plan takes unless the cap forbids
 * it, products reach the tiles, and the calling thread is left without a configuration. */
#include "amx/amx_emulated.h"
#include "attn.h"
#include "cpu/host/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const problems[] = {"sdpa_fwd b=1 hq=2 hk=1 sq=40 sk=70 d=64 bf16",
                                       "sdpa_fwd b=1 hq=2 hk=1 sq=40 sk=70 d=64 bf16 causal",
                                       "sdpa_fwd b=1 hq=2 hk=1 sq=40 sk=70 d=64 bf16 softcap=20",
                                       "sdpa_fwd b=1 hq=2 hk=1 sq=40 sk=70 d=64 f16 causal",
                                       "sdpa_bwd b=1 hq=2 hk=1 sq=40 sk=70 d=64 bf16",
                                       "mla_fwd b=1 hq=16 sq=3 sk=200 d=576 dv=512 topk=130 bf16",
                                       "mla_bwd b=1 hq=16 sq=3 sk=200 d=576 dv=512 topk=130 bf16",
                                       "dist b=1 hq=16 sq=3 sk=200 d=576 dv=512 topk=130 bf16"};

static void run(const char *text, const char *cap, int32_t threads) {
    attn_ctx_options options = {.size = sizeof options, .threads = threads, .cpu_isa = cap};
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    attn_problem p;
    attn_plan_info info = {.size = sizeof info};
    attn_args args = ATTN_ARGS_INIT;
    attn_tensor t[ATTN_ROLE_COUNT];
    int32_t use[ATTN_ROLE_COUNT];
    if (attn_ctx_create(&options, &ctx) || attn_problem_parse(text, &p) ||
        attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan) || attn_plan_get_info(plan, &info))
        fail_msg("%s: %s", text, attn_last_error());
    assert_string_equal(info.arch, cap);
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role) {
        assert_int_equal(attn_role_tensor(&p, role, &use[role], &t[role]), ATTN_OK);
        if (use[role] == ATTN_USE_NONE) continue;
        t[role].data = calloc(1, t[role].bytes);
        attn_args_set(&args, role, &t[role]);
    }
    args.workspace_bytes = info.workspace_bytes;
    args.workspace = aligned_alloc(64, (info.workspace_bytes + 63) / 64 * 64);
    const long before = attn_amx_emulated_products();
    if (attn_execute(plan, &args)) fail_msg("%s: %s", text, attn_last_error());
    const long products = attn_amx_emulated_products() - before;
    if ((products > 0) != !strcmp(cap, "amx")) fail_msg("%s on %s: %ld products on tiles", text, cap, products);
    assert_false(attn_amx_emulated_configured());
    for (int32_t role = 0; role < ATTN_ROLE_COUNT; ++role)
        if (use[role] != ATTN_USE_NONE) free(t[role].data);
    free(args.workspace);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
}

static void test_run(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            run(problems[i], "amx", threads);
            run(problems[i], strstr(problems[i], " f16") ? "avx512" : "avx512bf16", threads);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_run)};
    if (attn_cpu_features("", NULL) & ATTN_CPU_AMX) return cmocka_run_group_tests(tests, NULL, NULL);
    printf("no AVX-512 with BF16 on this processor: skipped\n");
    return 77;
}
