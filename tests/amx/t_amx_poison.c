/* SPDX-License-Identifier: MIT
 * The transposed forward of the AMX rows (dense/fwd_amx.c) over several blocks and steps, bf16 and f16: numbers against
 * a double loop, and NaN and infinities in q, k and v, which reach the rows that see them and no bit of any other, also
 * where only a mask hides them. */
#include "attn.h"
#include "base/num.h"
#include "cpu/host/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { S = 1300, D = 72, DV = 40, SICK = 700 };
struct run {
    uint16_t q[S * D], k[S * D], v[S * DV];
    float out[S * DV], lse[S];
};

static int f16;
static float *mask; /* with ALiBi; NULL: neither */
static float widen(uint16_t x) { return f16 ? attn_num_f16_f32(x) : attn_num_bf16_f32(x); }
static uint16_t narrow(float x) { return f16 ? attn_num_f32_f16(x) : attn_num_f32_bf16(x); }

static void make(struct run *r) {
    uint64_t state = 7;
    uint16_t *x[] = {r->q, r->k, r->v};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < S * (t == 2 ? DV : D); i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            /* later keys are larger: maxima move in every block */
            const double size = t == 1 ? 1 + 3.0 * i / (S * D) : 1;
            x[t][i] = narrow((float)((double)(int64_t)state * 0x1p-63 * size));
        }
}
static void run(attn_ctx *ctx, struct run *r) {
    attn_tensor q, k, v, out, lse, hide, slopes;
    attn_problem p;
    char text[100];
    float slope = 0.25f;
    attn_args a = ATTN_ARGS_INIT;
    uint16_t *half = malloc(sizeof(uint16_t) * S * DV);
    const int32_t dtype = f16 ? ATTN_F16 : ATTN_BF16;
    attn_tensor_contiguous(&q, r->q, dtype, 4, (const int64_t[]){1, 1, S, D});
    attn_tensor_contiguous(&k, r->k, dtype, 4, (const int64_t[]){1, 1, S, D});
    attn_tensor_contiguous(&v, r->v, dtype, 4, (const int64_t[]){1, 1, S, DV});
    attn_tensor_contiguous(&out, half, dtype, 4, (const int64_t[]){1, 1, S, DV});
    attn_tensor_contiguous(&lse, r->lse, ATTN_F32, 3, (const int64_t[]){1, 1, S});
    a.q = &q, a.k = &k, a.v = &v, a.out = &out, a.lse = &lse;
    attn_tensor_contiguous(&hide, mask, ATTN_F32, 4, (const int64_t[]){1, 1, S, S});
    attn_tensor_contiguous(&slopes, &slope, ATTN_F32, 1, (const int64_t[]){1});
    if (mask) a.mask = &hide, a.alibi = &slopes;
    snprintf(text, sizeof text, "sdpa_fwd b=1 hq=1 sq=1300 d=72 dv=40 %s causal%s", f16 ? "f16" : "bf16",
             mask ? " mask=f32 alibi=linear" : "");
    if (attn_problem_parse(text, &p) || attn_run(ctx, ATTN_DEVICE_CPU, &p, &a)) fail_msg("%s", attn_last_error());
    for (int i = 0; i < S * DV; i++) r->out[i] = widen(half[i]);
    free(half);
}
static attn_ctx *open_ctx(void) {
    attn_ctx_options options = {.size = sizeof options, .threads = 2, .cpu_isa = "amx"};
    attn_ctx *ctx = NULL;
    assert_int_equal(attn_ctx_create(&options, &ctx), ATTN_OK);
    return ctx;
}

static void test_numbers(void **unused) {
    attn_ctx *ctx = open_ctx();
    struct run *r = malloc(sizeof *r);
    double *s = malloc(S * sizeof *s);
    (void)unused;
    make(r);
    run(ctx, r);
    for (int i = 0; i < S; i += i < 70 ? 1 : 41) {
        double top = -INFINITY, sum = 0;
        for (int j = 0; j <= i; j++) {
            s[j] = 0;
            for (int c = 0; c < D; c++) s[j] += (double)widen(r->q[i * D + c]) * (double)widen(r->k[j * D + c]);
            s[j] /= sqrt(D);
            top = fmax(top, s[j]);
        }
        for (int j = 0; j <= i; j++) sum += s[j] = exp(s[j] - top);
        assert_true(fabs((double)r->lse[i] - top - log(sum)) <= 1e-5 * fmax(1, fabs(top)));
        for (int c = 0; c < DV; c++) {
            double want = 0, size = 0;
            for (int j = 0; j <= i; j++) {
                const double term = s[j] / sum * (double)widen(r->v[j * DV + c]);
                want += term, size += fabs(term);
            }
            assert_true(fabs((double)r->out[i * DV + c] - want) <= (f16 ? 0x1p-10 : 0x1p-7) * size);
        }
    }
    free(s), free(r);
    attn_ctx_release(ctx);
}

static int equal_bits(float a, float b) { return !memcmp(&a, &b, sizeof a); }
static void test_poison(void **unused) {
    const uint16_t kinds[] = {narrow(INFINITY), narrow(-INFINITY), narrow(NAN)};
    attn_ctx *ctx = open_ctx();
    struct run *well = malloc(sizeof *well), *sick = malloc(sizeof *sick);
    (void)unused;
    make(well);
    well->v[SICK * DV + 5] = 0; /* what the poison stands for in all other sums */
    run(ctx, well);
    for (int kind = 0; kind < 3; kind++) { /* v: one column of the rows that see it */
        *sick = *well;
        sick->v[SICK * DV + 5] = kinds[kind];
        run(ctx, sick);
        for (int i = 0; i < S * DV; i++) {
            const float x = sick->out[i];
            if (i % DV != 5 || i / DV < SICK) {
                assert_true(equal_bits(x, well->out[i]));
            } else { /* an infinity may be lost to a NaN when its weight has shrunk to 0 */
                assert_true(kind == 2 ? isnan(x) : isnan(x) || (isinf(x) && (x > 0) == (kind == 0)));
                if (i / DV == SICK) assert_true(kind == 2 ? isnan(x) : isinf(x));
            }
        }
        assert_memory_equal(sick->lse, well->lse, sizeof well->lse);
    }
    for (int side = 0; side < 2; side++) { /* q: its row; k: the rows that see the key */
        *sick = *well;
        (side ? sick->k : sick->q)[SICK * D + 3] = narrow(NAN);
        run(ctx, sick);
        for (int i = 0; i < S; i++) {
            const int hit = side ? i >= SICK : i == SICK;
            assert_true(hit ? isnan(sick->lse[i]) : equal_bits(sick->lse[i], well->lse[i]));
            for (int c = 0; c < DV; c++)
                assert_true(hit ? isnan(sick->out[i * DV + c])
                                : equal_bits(sick->out[i * DV + c], well->out[i * DV + c]));
        }
    }
    *sick = *well; /* an infinite key: scores of both signs, of which the negative one hides the key */
    sick->k[SICK * D + 3] = narrow(INFINITY);
    run(ctx, sick);
    for (int i = 0; i < S; i++) {
        const float q = widen(sick->q[i * D + 3]);
        if (i < SICK) assert_true(equal_bits(sick->lse[i], well->lse[i]));
        if (i < SICK || fabsf(q) > 0) assert_true(i >= SICK && q > 0 ? isnan(sick->lse[i]) : isfinite(sick->lse[i]));
    }
    free(well), free(sick);
    attn_ctx_release(ctx);
}

/* Keys that a mask hides from all, in each step: their values show in no bit. */
static void test_hidden(void **unused) {
    attn_ctx *ctx = open_ctx();
    struct run *well = malloc(sizeof *well), *sick = malloc(sizeof *sick);
    (void)unused;
    mask = calloc(S * S, sizeof *mask);
    for (int i = 0; i < S; i++)
        for (int j = 7; j < S; j += 29) mask[i * S + j] = -INFINITY;
    make(well);
    *sick = *well;
    for (int j = 7; j < S; j += 29)
        for (int c = 0; c < DV; c++) well->v[j * DV + c] = 0, sick->v[j * DV + c] = narrow(NAN);
    run(ctx, well);
    run(ctx, sick);
    for (int i = 0; i < S * DV; i++) assert_true(equal_bits(sick->out[i], well->out[i]));
    assert_memory_equal(sick->lse, well->lse, sizeof well->lse);
    free(mask), free(well), free(sick);
    mask = NULL;
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_poison),
                                       cmocka_unit_test(test_hidden)};
    if (!(attn_cpu_features("", NULL) & ATTN_CPU_AMX)) {
        printf("no AVX-512 with BF16 on this processor: skipped\n");
        return 77;
    }
    int failed = cmocka_run_group_tests_name("bf16", tests, NULL, NULL);
    f16 = 1;
    return failed + cmocka_run_group_tests_name("f16", tests, NULL, NULL);
}
