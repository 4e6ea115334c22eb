/* SPDX-License-Identifier: MIT
 * Every entry of every microkernel table that this processor can run, against double loops: values, tails (nothing past
 * n is read or written), NaN and infinity rules, and independence of how a product is cut. */
#include "attn.h"

#include "base/num.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/ukr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAD = 40 };
static uint64_t state = 1;
static double uniform(void) { /* -1 .. 1 */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) * 0x1p-52 - 1;
}

static const struct attn_ukr *table_of(void **state_) { return (const struct attn_ukr *)*state_; }

/* One body for both element types. GUARD is what stands around a result and must survive. */
#define REAL    float
#define F(name) name##_f32
#define EPS     6e-8
#define TINY    1.17549435e-38
#include "t_ukr_tpl.h"
#undef REAL
#undef F
#undef EPS
#undef TINY
#define REAL    double
#define F(name) name##_f64
#define EPS     1.2e-16
#define TINY    2.2250738585072014e-308
#include "t_ukr_tpl.h"

/* The promise of the header over the whole range, and what lies under the smallest normal number is at most that. */
static void test_exp_error(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    double worst = 0;
    for (int step = 0; step < 2000; step++) {
        float x[512], y[512];
        for (int j = 0; j < 512; j++) y[j] = x[j] = (float)(-90.0 + 178.0 * (step * 512 + j) / (2000.0 * 512));
        u->exp_f32(y, 512, 0.0f);
        for (int j = 0; j < 512; j++) {
            double want = exp((double)x[j]);
            if (want < 1.17549435e-38) {
                assert_true(y[j] >= 0 && y[j] <= 1.0001f * (float)1.17549435e-38);
            } else if (x[j] < 88.3f) {
                worst = fmax(worst, fabs((double)y[j] / want - 1) - 3e-9 * fabs((double)x[j]));
            }
        }
    }
    printf("%s: exp_f32 relative error %.2e + 3e-9 |x|\n", u->isa, worst);
    assert_true(worst > 1e-9 && worst <= 2e-7);
    worst = 0;
    for (int step = 0; step < 500; step++) {
        double x[512], y[512];
        for (int j = 0; j < 512; j++) y[j] = x[j] = -708.0 + 1400.0 * (step * 512 + j) / (500.0 * 512);
        u->exp_f64(y, 512, 0.0);
        for (int j = 0; j < 512; j++) worst = fmax(worst, fabs(y[j] / exp(x[j]) - 1));
    }
    printf("%s: exp_f64 relative error %.2e\n", u->isa, worst);
    assert_true(worst <= 6e-16);
}

static void test_widen_narrow(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    static uint16_t h[65536], back[65536];
    static float f[65536];
    for (int flush = 0; flush < 2; flush++) {
        uint32_t mode = attn_base_float_begin(flush ? ATTN_SUBNORMALS_READ : ATTN_SUBNORMALS_EXACT);
        for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
        u->widen(f, h, ATTN_F16, 65536, 1.0f);
        u->narrow(back, ATTN_F16, f, 65536, 1.0f);
        for (int i = 0; i < 65536; i++) {
            int nan = (i & 0x7fff) > 0x7c00;
            assert_true(nan ? f[i] != f[i] : f[i] == attn_num_f16_f32(h[i]));
            assert_true(nan ? (back[i] & 0x7fff) > 0x7c00 : back[i] == h[i]);
        }
        u->widen(f, h, ATTN_BF16, 65536, 1.0f);
        for (int i = 0; i < 65536; i++) assert_int_equal(attn_num_f32_bits(f[i]), (uint32_t)i << 16);
        u->narrow(back, ATTN_BF16, f, 65536, 1.0f);
        for (int i = 0; i < 65536; i++) {
            int nan = (i & 0x7fff) > 0x7f80, subnormal = (i & 0x7f80) == 0;
            if (subnormal && flush) continue; /* results are flushed on purpose */
            assert_true(nan ? (back[i] & 0x7fff) > 0x7f80 : back[i] == h[i]);
        }
        attn_base_float_end(mode);
    }
    for (int n = 0; n <= 70; n++) {
        float x[PAD + 70], y[PAD + 70];
        uint16_t g[PAD + 70], want;
        for (int kind = 0; kind < 2; kind++) {
            int32_t dtype = kind ? ATTN_BF16 : ATTN_F16;
            for (int i = 0; i < PAD + 70; i++) x[i] = (float)(uniform() * exp(10 * uniform())), y[i] = 77, g[i] = 77;
            if (n > 3) x[2] = NAN, x[1] = 1e30f * 1e10f;
            u->narrow(g, dtype, x, n, 0.7f);
            u->widen(y, g, dtype, n, 3.0f);
            for (int i = 0; i < PAD + 70; i++) {
                want = kind ? attn_num_f32_bf16(x[i] * 0.7f) : attn_num_f32_f16(x[i] * 0.7f);
                if (i >= n) {
                    assert_true(g[i] == 77 && y[i] == 77);
                } else if (x[i] != x[i]) {
                    assert_true(y[i] != y[i]);
                } else {
                    assert_true(g[i] == want);
                    assert_true(y[i] == (kind ? attn_num_bf16_f32(want) : attn_num_f16_f32(want)) * 3.0f);
                }
            }
        }
        for (int i = 0; i < PAD + 70; i++) x[i] = (float)uniform(), y[i] = 77;
        u->widen(y, x, ATTN_F32, n, -2.0f);
        for (int i = 0; i < PAD + 70; i++) assert_true(y[i] == (i < n ? x[i] * -2.0f : 77));
        u->narrow(y, ATTN_F32, x, n, 3.0f);
        for (int i = 0; i < PAD + 70; i++) assert_true(y[i] == (i < n ? x[i] * 3.0f : 77));
    }
}

/* The products with 16-bit rows are those with widened rows, to the bit: same chains. */
static void test_half(void **state_) {
    const struct attn_ukr *u = table_of(state_);
    enum { MOST = 70, LD = 75, ROWS = 40 };
    static uint16_t b[ROWS * LD];
    static float wide[ROWS * LD], a[ROWS * LD], c[ROWS * LD], want[ROWS * LD];
    if (!u->gemm_half) return;
    for (int64_t s = 0; s <= MOST; s++)
        for (int kind = 0; kind < 2; kind++) {
            const int32_t dtype = kind ? ATTN_BF16 : ATTN_F16;
            const int64_t m = s % 17, n = s, k = s % ROWS;
            for (int64_t i = 0; i < ROWS * LD; i++) {
                a[i] = (float)uniform(), c[i] = want[i] = (float)uniform();
                b[i] = i % LD >= n ? 0x7fff
                       : kind      ? attn_num_f32_bf16((float)uniform())
                                   : attn_num_f32_f16((float)uniform());
            }
            u->widen(wide, b, dtype, ROWS * LD, 1);
            u->gemm_half(m, n, k, a, LD, b, LD, dtype, c, LD, (int)(s % 2));
            u->gemm_f32(m, n, k, a, LD, 1, wide, LD, want, LD, (int)(s % 2));
            assert_memory_equal(c, want, sizeof c);
            u->gemm_nt_half(m, k, n, a, LD, b, LD, dtype, c, LD);
            u->gemm_nt_f32(m, k, n, a, LD, wide, LD, want, LD);
            assert_memory_equal(c, want, sizeof c);
        }
}

int main(void) {
    const struct {
        const struct attn_ukr *table;
        uint64_t feature;
    } all[] = {{&attn_ukr_c, ATTN_CPU_C}, {&attn_ukr_avx2, ATTN_CPU_AVX2}, {&attn_ukr_avx512, ATTN_CPU_AVX512}};
    uint64_t have = attn_cpu_features("", NULL);
    int failed = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        void *t = (void *)(uintptr_t)all[i].table;
        if (!(have & all[i].feature)) {
            printf("%s: not on this processor\n", all[i].table->isa);
            continue;
        }
        printf("table %s\n", all[i].table->isa);
#define T(f) cmocka_unit_test_prestate(f, t)
        const struct CMUnitTest tests[] = {
            T(test_gemm_f32),      T(test_gemm_f64),      T(test_gemm_cuts_f32), T(test_gemm_cuts_f64),
            T(test_rows_f32),      T(test_rows_f64),      T(test_special_f32),   T(test_special_f64),
            T(test_transpose_f32), T(test_transpose_f64), T(test_exp_error),     T(test_widen_narrow),
            T(test_half),
        };
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
