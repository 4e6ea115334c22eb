/* SPDX-License-Identifier: MIT
 * The emulation itself: products against a scalar loop, bit for bit, denormals, every kind of misuse; and what a
 * context says when the system refuses the tiles. Nothing here needs AMX. */
#include "amx/amx_emulated.h"
#include "attn.h"
#include "base/num.h"
#include "cpu/amx/tile.h"
#include "cpu/host/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *heard;
static void hear(const char *words) { heard = words; }
static uint64_t state = 1;
static uint32_t bits(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

/* Denormals count as 0 on the way in and out. A result that rounds up to the smallest normal number is not one. */
static float chain(float x, float y, float sum) { return flushed(fmaf(flushed(x), flushed(y), flushed(sum))); }

static struct tile_shapes shapes(void) {
    struct tile_shapes s = {.palette = 1};
    for (int t = 0; t < 8; t++) s.rows[t] = 16, s.row_bytes[t] = 64;
    return s;
}

static void test_product(void **unused) {
    (void)unused;
    for (int round = 0; round < 300; round++) {
        uint16_t a[512], b[512]; /* 16 rows of 16 pairs */
        float c[256], got[256];
        struct tile_shapes s = shapes();
        const int m = 1 + (int)(bits() % 16), n = 1 + (int)(bits() % 16), k = 1 + (int)(bits() % 16);
        s.rows[0] = s.rows[1] = (uint8_t)m, s.rows[2] = (uint8_t)k;
        s.row_bytes[0] = s.row_bytes[2] = (uint16_t)(4 * n), s.row_bytes[1] = (uint16_t)(4 * k);
        for (int i = 0; i < 512; i++) {
            /* exponents near 1, or so small that products and sums are denormal */
            const double scale = round % 3 ? 1 : 0x1p-63;
            a[i] = attn_num_f32_bf16((float)((double)(int32_t)(bits() << 1) * 0x1p-31 * scale));
            b[i] = attn_num_f32_bf16((float)((double)(int32_t)(bits() << 1) * 0x1p-31 * scale));
            if (bits() % 16 == 0) a[i] = (uint16_t)(bits() % 128); /* denormal */
            if (i < 256) c[i] = (float)((double)(int32_t)(bits() << 1) * 0x1p-31 * scale * scale);
        }
        memset(got, 77, sizeof got);
        tile_config(&s);
        tile_load(0, c, 64);
        tile_load(1, a, 64);
        tile_load_once(2, b, 64);
        tile_dpbf16(0, 1, 2);
        tile_store(0, got, 64);
        tile_release();
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                float low = 0, high = 0, want;
                if (i >= m || j >= n) {
                    memset(&want, 77, sizeof want);
                    assert_true(got[16 * i + j] == want);
                    continue;
                }
                for (int l = 0; l < k; l++) {
                    low = chain(attn_num_bf16_f32(a[32 * i + 2 * l]), attn_num_bf16_f32(b[32 * l + 2 * j]), low);
                    high =
                        chain(attn_num_bf16_f32(a[32 * i + 2 * l + 1]), attn_num_bf16_f32(b[32 * l + 2 * j + 1]), high);
                }
                want = flushed(flushed(c[16 * i + j]) + flushed(low + high));
                assert_memory_equal(&got[16 * i + j], &want, sizeof want);
            }
    }
}

#define HEARS(words, ...)                                                                                              \
    do {                                                                                                               \
        heard = NULL;                                                                                                  \
        __VA_ARGS__;                                                                                                   \
        assert_non_null(heard);                                                                                        \
        if (!strstr(heard, words)) fail_msg("\"%s\" instead of \"%s\"", heard, words);                                 \
    } while (0)
static void test_misuse(void **unused) {
    float x[256] = {0};
    struct tile_shapes s = shapes();
    (void)unused;
    attn_amx_emulated_fault = hear;
    HEARS("no tile is configured", tile_load(0, x, 64));
    HEARS("no tile is configured", tile_zero(0));
    HEARS("released without", tile_release());
    s.rows[3] = 17;
    HEARS("larger than 16 rows", tile_config(&s));
    s.rows[3] = 16, s.row_bytes[3] = 68;
    HEARS("larger than 16 rows of 64 bytes", tile_config(&s));
    s.row_bytes[3] = 64, s.palette = 2;
    HEARS("palette 1", tile_config(&s));
    s.palette = 1, s.rows[8] = 4, s.row_bytes[8] = 4;
    HEARS("palette 1", tile_config(&s));
    s.rows[8] = 0, s.row_bytes[8] = 0, s.rows[7] = 0, s.row_bytes[7] = 0, s.rows[6] = 8, s.row_bytes[5] = 32;
    heard = NULL;
    tile_config(&s);
    assert_null(heard);
    assert_true(attn_amx_emulated_configured());
    HEARS("again before", tile_config(&s));
    HEARS("no shape", tile_load(7, x, 64));
    HEARS("no such tile", tile_load(8, x, 64));
    tile_load(0, x, 64);
    tile_load(1, x, 64);
    tile_load(5, x, 64);
    tile_load(6, x, 64);
    HEARS("never written", tile_dpbf16(0, 1, 2));
    HEARS("never written", tile_store(2, x, 64));
    HEARS("not distinct", tile_dpbf16(0, 1, 1));
    HEARS("not distinct", tile_dpbf16(0, 0, 1));
    HEARS("do not fit", tile_dpbf16(0, 1, 6)); /* 16 pairs with 8 rows of pairs */
    HEARS("do not fit", tile_dpbf16(0, 6, 1)); /* 16 rows of sums from 8 */
    HEARS("do not fit", tile_dpbf16(0, 1, 5)); /* 16 columns of sums from 8 */
    HEARS("overlap", tile_store(0, x, 32));
    tile_release();
    assert_false(attn_amx_emulated_configured());
    attn_amx_emulated_fault = NULL;
}

/* The first context of the process is one that the system refuses; caps below AMX do not even ask. */
static void test_refused(void **unused) {
    attn_problem p = ATTN_PROBLEM_INIT;
    (void)unused;
    p.op = ATTN_OP_SDPA_FWD, p.dtype = ATTN_BF16, p.batch = 1, p.heads_q = p.heads_k = 2;
    p.seq_q = p.seq_k = 64, p.dim_qk = p.dim_v = 64;
    attn_amx_emulated_permit = 0;
    for (int capped = 1; capped >= 0; capped--) {
        attn_ctx_options options = {.size = sizeof options, .threads = 1, .cpu_isa = capped ? "avx512bf16" : "amx"};
        attn_plan_options wish = {.size = sizeof wish, .kernel = "*_amx_*", .flags = ATTN_PLAN_STRICT};
        attn_ctx *ctx = NULL;
        attn_plan *plan = NULL;
        assert_int_equal(attn_ctx_create(&options, &ctx), ATTN_OK);
        assert_int_equal(attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, &wish, &plan), ATTN_E_NO_KERNEL);
        const char *words = capped ? "needs amx, which the device lacks or is not allowed to use"
                                   : "needs amx: the system's kernel did not permit AMX";
        if (!strstr(attn_last_error(), words)) fail_msg("%s", attn_last_error());
        attn_ctx_release(ctx);
    }
    assert_true(attn_cpu_amx_denied("") && !attn_cpu_amx_denied("avx512bf16"));
    assert_false(attn_cpu_features("", NULL) & ATTN_CPU_AMX);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_product), cmocka_unit_test(test_misuse),
                                       cmocka_unit_test(test_refused)};
    if (attn_cpu_features("avx512bf16", NULL) & ATTN_CPU_BF16) return cmocka_run_group_tests(tests, NULL, NULL);
    printf("no AVX-512 with BF16 on this processor: skipped\n");
    return 77;
}
