/* SPDX-License-Identifier: MIT
 * f16 and bf16: every pattern to f32 and back, and the rounding of every point where rounding can go wrong. The
 * expected values are built with ldexp from the fields of the format, not with the conversions under test. */
#include "base/num.h"

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct format {
    const char *name;
    int32_t dtype;
    int bits, bias; /* stored bits of the significand */
    uint16_t (*from_f64)(double);
    uint16_t (*from_f32)(float);
    float (*to_f32)(uint16_t);
};
static uint16_t f32_bf16(float f) { return attn_num_f32_bf16(f); }
static float bf16_f32(uint16_t h) { return attn_num_bf16_f32(h); }
static const struct format formats[] = {
    {"f16", ATTN_F16, 10, 15, attn_num_f64_f16, attn_num_f32_f16, attn_num_f16_f32},
    {"bf16", ATTN_BF16, 7, 127, attn_num_f64_bf16, f32_bf16, bf16_f32},
};

static unsigned infinity_of(const struct format *f) { return (unsigned)(2 * f->bias + 1) << f->bits; }
static double value_of(const struct format *f, unsigned h) {
    unsigned e = (h & 0x7fffu) >> f->bits, m = h & ((1u << f->bits) - 1);
    double sign = h & 0x8000u ? -1 : 1;
    if ((h & 0x7fffu) == infinity_of(f)) return sign * HUGE_VAL;
    if (e == 0) return sign * ldexp(m, 1 - f->bias - f->bits);
    return sign * ldexp(m + (1u << f->bits), (int)e - f->bias - f->bits);
}
static int is_nan_pattern(const struct format *f, unsigned h) { return (h & 0x7fffu) > infinity_of(f); }

static void check_from(const struct format *f, double d, unsigned want) {
    unsigned got = f->from_f64(d);
    if (got != want) fail_msg("%s from f64 %a: 0x%04x, expected 0x%04x", f->name, d, got, want);
}
static void check_from_float(const struct format *f, float x, unsigned want) {
    unsigned got = f->from_f32(x);
    if (got != want) fail_msg("%s from f32 %a: 0x%04x, expected 0x%04x", f->name, (double)x, got, want);
}

static void every_pattern_both_ways(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const struct format *f = &formats[k];
        for (unsigned h = 0; h < 65536; h++) {
            float x = f->to_f32((uint16_t)h);
            if (is_nan_pattern(f, h)) {
                assert_true(isnan(x));
                assert_int_equal(!!signbit(x), h >> 15);
                assert_true(is_nan_pattern(f, f->from_f32(x)));
                assert_true(is_nan_pattern(f, f->from_f64(x)));
                assert_int_equal(f->from_f64(x) >> 15, h >> 15);
                continue;
            }
            double want = value_of(f, h);
            if ((double)x != want || !!signbit(x) != (int)(h >> 15))
                fail_msg("%s 0x%04x is %a, expected %a", f->name, h, (double)x, want);
            check_from(f, want, h);
            check_from_float(f, x, h);
            uint16_t cell[3] = {0x1234, 0, 0x5678};
            attn_num_store(cell, f->dtype, 1, want);
            assert_int_equal(cell[1], h);
            assert_true(attn_num_load(cell, f->dtype, 1) == want);
            assert_int_equal(cell[0] + cell[2], 0x1234 + 0x5678);
        }
    }
}

/* Between each two neighbours: just below the middle goes down, just above goes up, the middle goes to the even one. */
static void ties_between_all_neighbours(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const struct format *f = &formats[k];
        for (unsigned h = 0; h < infinity_of(f); h++) {
            double low = value_of(f, h);
            /* The neighbour of the largest finite value is where the next one would be: from there on it is infinity.
             */
            double high = h + 1 == infinity_of(f) ? ldexp(1, f->bias + 1) : value_of(f, h + 1);
            double middle = low + (high - low) / 2;
            unsigned even = h & 1 ? h + 1 : h;
            for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
                double s = sign ? -1 : 1;
                check_from(f, s * middle, sign | even);
                check_from(f, s * nextafter(middle, 0), sign | h);
                check_from(f, s * nextafter(middle, HUGE_VAL), sign | (h + 1));
                float m = (float)(s * middle);
                assert_true((double)m == s * middle ||
                            f->bias == 127); /* half of the least bf16 is below f32's range */
                if ((double)m != s * middle) continue;
                check_from_float(f, m, sign | even);
                check_from_float(f, nextafterf(m, 0), sign | h);
                check_from_float(f, nextafterf(m, sign ? -HUGE_VALF : HUGE_VALF), sign | (h + 1));
            }
        }
    }
}

/* A double a hair above the middle becomes the middle in f32; rounding that again would go to even, which may be below.
 */
static void doubles_round_once(void **state) {
    (void)state;
    int twice_differs = 0;
    for (size_t k = 0; k < 2; k++) {
        const struct format *f = &formats[k];
        for (unsigned h = 1u << f->bits; h + 1 < infinity_of(f); h += 37) {
            double low = value_of(f, h), high = value_of(f, h + 1), middle = low + (high - low) / 2;
            check_from(f, middle * (1 + 0x1p-40), h + 1);
            check_from(f, middle * (1 - 0x1p-40), h);
            twice_differs += f->from_f32((float)(middle * (1 + 0x1p-40))) != h + 1;
            twice_differs += f->from_f32((float)(middle * (1 - 0x1p-40))) != h;
        }
    }
    assert_true(twice_differs > 100); /* else this test tested nothing */
    assert_int_equal(attn_num_f64_f16(1 + 0x1p-11 + 0x1p-50), 0x3c01);
    assert_int_equal(attn_num_f32_f16((float)(1 + 0x1p-11 + 0x1p-50)), 0x3c00);
    assert_int_equal(attn_num_f64_bf16(1 + 0x1p-8 + 0x1p-50), 0x3f81);
}

static void ends_of_the_range(void **state) {
    (void)state;
    assert_int_equal(attn_num_f64_f16(65504), 0x7bff);
    assert_int_equal(attn_num_f64_f16(65519.999), 0x7bff);
    assert_int_equal(attn_num_f64_f16(65520), 0x7c00);
    assert_int_equal(attn_num_f64_f16(1e300), 0x7c00);
    assert_int_equal(attn_num_f64_f16(-1e300), 0xfc00);
    assert_int_equal(attn_num_f64_f16(0x1p-24), 1);
    assert_int_equal(attn_num_f64_f16(0x1p-25), 0);
    assert_int_equal(attn_num_f64_f16(-0x1.8p-25), 0x8001);
    assert_int_equal(attn_num_f64_f16(5e-324), 0);
    assert_int_equal(attn_num_f64_f16(-0.0), 0x8000);
    assert_int_equal(attn_num_f64_bf16(0x1p-133), 1);
    assert_int_equal(attn_num_f64_bf16(0x1p-134), 0);
    assert_int_equal(attn_num_f64_bf16(0x1.8p-134), 1);
    assert_int_equal(attn_num_f64_bf16(-5e-324), 0x8000);
    assert_int_equal(attn_num_f64_bf16(0x1.ffp127), 0x7f80);
    assert_int_equal(attn_num_f64_bf16(0x1.fefffp127), 0x7f7f);
    assert_int_equal(attn_num_f32_bf16(0x1.fffffep127f), 0x7f80);
    assert_int_equal(attn_num_f32_f16(0x1p-149f), 0);
    assert_true(isnan(attn_num_f16_f32(attn_num_f32_f16(attn_num_bits_f32(0x7f800001u)))));
    assert_true(isnan(attn_num_bf16_f32(attn_num_f32_bf16(attn_num_bits_f32(0xff800001u)))));
    uint64_t payload = 0x7ff0000000000001u; /* the payload is lost, the NaN must not become infinity */
    double nan_value;
    memcpy(&nan_value, &payload, 8);
    assert_int_equal(attn_num_f64_f16(nan_value), 0x7e00);
    assert_int_equal(attn_num_f64_bf16(nan_value), 0x7fc0);
}

/* Random floats against the definition: the result is one of the two neighbours, and the nearer one. */
static void random_values_go_to_the_nearest(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 2000000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const struct format *f = &formats[i & 1];
        float x = attn_num_bits_f32((uint32_t)(seed >> 32));
        if (!isfinite(x)) continue;
        double limit = value_of(f, infinity_of(f) - 1);
        if (fabs((double)x) > limit) continue;
        unsigned h = f->from_f32(x);
        double got = value_of(f, h), error = fabs(got - (double)x);
        assert_int_equal(h, f->from_f64(x));
        assert_int_equal(h >> 15, !!signbit(x));
        if (h & 0x7fffu) assert_true(error <= fabs(value_of(f, h - 1) - (double)x));
        if ((h & 0x7fffu) + 1 < infinity_of(f)) assert_true(error <= fabs(value_of(f, h + 1) - (double)x));
    }
}

static void other_types_load_and_store(void **state) {
    (void)state;
    float f[2] = {0};
    double d[2] = {0};
    attn_num_store(f, ATTN_F32, 1, 0.1);
    attn_num_store(d, ATTN_F64, 1, 0.1);
    assert_true(f[1] == 0.1f && f[0] == 0 && d[1] == 0.1 && d[0] == 0);
    assert_true(attn_num_load(f, ATTN_F32, 1) == (double)0.1f);
    assert_true(attn_num_load(d, ATTN_F64, 1) == 0.1);
}

static void convert_arrays(void **state) {
    (void)state;
    static const int32_t types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    double source[6] = {1.0, -2.5, 0x1.23456789p-3, 70000.0, HUGE_VAL, -0.0};
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            char from[6 * 8], to[6 * 8 + 1];
            assert_int_equal(attn_convert(from, types[a], source, ATTN_F64, 6), ATTN_OK);
            memset(to, 0x55, sizeof to);
            assert_int_equal(attn_convert(to + 1, types[b], from, types[a], 6), ATTN_OK); /* also misaligned */
            for (int i = 0; i < 6; i++) {
                double x = attn_num_load(from, types[a], i), y;
                char cell[8], want[8];
                memcpy(cell, to + 1 + (size_t)i * attn_dtype_bytes(types[b]), attn_dtype_bytes(types[b]));
                attn_num_store(want, types[b], 0, x);
                assert_memory_equal(cell, want, attn_dtype_bytes(types[b]));
                y = attn_num_load(want, types[b], 0);
                assert_true(i != 0 || y == 1.0);
            }
            int32_t status = attn_convert(from, types[b], from, types[a], 6);
            if (attn_dtype_bytes(types[b]) > attn_dtype_bytes(types[a])) {
                assert_int_equal(status, ATTN_E_OVERLAP);
            } else {
                assert_int_equal(status, ATTN_OK);
                assert_memory_equal(from, to + 1, 6 * attn_dtype_bytes(types[b]));
            }
        }
    }
    assert_int_equal(attn_convert(source, ATTN_F64, source + 1, ATTN_F64, 4), ATTN_E_OVERLAP);
    assert_int_equal(attn_convert(source, ATTN_F64, source, ATTN_I32, 4), ATTN_E_ENUM);
    assert_int_equal(attn_convert(NULL, ATTN_F64, source, ATTN_F32, 4), ATTN_E_ARGUMENT);
    assert_int_equal(attn_convert(NULL, ATTN_F64, NULL, ATTN_F32, 0), ATTN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_both_ways),
        cmocka_unit_test(ties_between_all_neighbours),
        cmocka_unit_test(doubles_round_once),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(random_values_go_to_the_nearest),
        cmocka_unit_test(other_types_load_and_store),
        cmocka_unit_test(convert_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
