/* SPDX-License-Identifier: MIT
 * The backward of the AMX rows with scores that need more than a factor (dense/bwd_amx_score.c): NaN in keys and values
 * that a boolean mask or a window hides from every query change no bit of any gradient; NaN in a query reaches its own
 * dq and the keys it sees, and all other rows of dq stay numbers. bf16 and f32. */
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

enum { S = 330, D = 64, SICK = 150, N = S * D };
struct run {
    float q[N], k[N], v[N], dout[N], dq[N], dk[N], dv[N];
};
static int bf16, windowed;
static uint8_t mask[S * S];

static float element(const void *x, int64_t i) {
    return bf16 ? attn_num_bf16_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}
static void tensor(attn_tensor *t, const float *from) {
    void *data = calloc(N, sizeof(float));
    assert_non_null(data);
    for (int i = 0; from && i < N; i++) {
        if (bf16) {
            ((uint16_t *)data)[i] = attn_num_f32_bf16(from[i]);
        } else {
            ((float *)data)[i] = from[i];
        }
    }
    attn_tensor_contiguous(t, data, bf16 ? ATTN_BF16 : ATTN_F32, 4, (const int64_t[]){1, 1, S, D});
}
/* Forward on numbers, then the backward of what is asked for. */
static void run(attn_ctx *ctx, struct run *r) {
    attn_tensor q, k, v, out, dout, lse, dq, dk, dv, hide;
    attn_problem p;
    attn_args a = ATTN_ARGS_INIT;
    float logs[S];
    char text[120];
    tensor(&q, r->q), tensor(&k, r->k), tensor(&v, r->v), tensor(&dout, r->dout);
    tensor(&out, NULL), tensor(&dq, NULL), tensor(&dk, NULL), tensor(&dv, NULL);
    attn_tensor_contiguous(&lse, logs, ATTN_F32, 3, (const int64_t[]){1, 1, S});
    attn_tensor_contiguous(&hide, mask, ATTN_BOOL, 4, (const int64_t[]){1, 1, S, S});
    a.q = &q, a.k = &k, a.v = &v, a.out = &out, a.lse = &lse, a.mask = &hide;
    for (int backward = 0; backward < 2; backward++) {
        snprintf(text, sizeof text, "%s b=1 hq=1 sq=330 d=64 %s softcap=5 mask=bool%s",
                 backward ? "sdpa_bwd" : "sdpa_fwd", bf16 ? "bf16" : "f32", windowed ? " left=60 right=60" : "");
        if (backward) a.dout = &dout, a.dq = &dq, a.dk = &dk, a.dv = &dv;
        if (attn_problem_parse(text, &p) || attn_run(ctx, ATTN_DEVICE_CPU, &p, &a)) fail_msg("%s", attn_last_error());
    }
    for (int i = 0; i < N; i++)
        r->dq[i] = element(dq.data, i), r->dk[i] = element(dk.data, i), r->dv[i] = element(dv.data, i);
    free(q.data), free(k.data), free(v.data), free(dout.data), free(out.data), free(dq.data), free(dk.data),
        free(dv.data);
}
static void make(struct run *r) {
    uint64_t state = 11;
    float *const x[] = {r->q, r->k, r->v, r->dout};
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < N; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x[t][i] = attn_num_bf16_f32(attn_num_f32_bf16((float)((double)(int64_t)state * 0x1p-62)));
        }
    for (int i = 0; i < S * S; i++) mask[i] = (uint8_t)(i % S != SICK && i * 7 % 5 != 0);
}
static void check(attn_ctx *ctx) {
    struct run *well = malloc(sizeof *well), *sick = malloc(sizeof *sick);
    assert_non_null(well);
    assert_non_null(sick);
    make(well);
    run(ctx, well);
    *sick = *well; /* who is hidden from all */
    for (int c = 0; c < D; c++) sick->k[SICK * D + c] = NAN, sick->v[SICK * D + c] = c % 2 ? NAN : INFINITY;
    run(ctx, sick);
    assert_memory_equal(sick->dq, well->dq, sizeof well->dq);
    assert_memory_equal(sick->dk, well->dk, sizeof well->dk);
    assert_memory_equal(sick->dv, well->dv, sizeof well->dv);
    *sick = *well;
    sick->q[SICK * D + 3] = NAN;
    run(ctx, sick);
    for (int i = 0; i < S; i++)
        for (int c = 0; c < D; c++) {
            const int seen = mask[SICK * S + i] && (!windowed || abs(i - SICK) <= 60);
            assert_true(isnan(sick->dq[i * D + c]) == (i == SICK));
            assert_true(isnan(sick->dk[i * D + c]) == seen);
            if (i != SICK) assert_true(fabsf(sick->dq[i * D + c] - well->dq[i * D + c]) <= 0.02f);
        }
    free(well), free(sick);
}
static void test_poison(void **unused) {
    attn_ctx_options options = {.size = sizeof options, .threads = 2, .cpu_isa = "amx"};
    attn_ctx *ctx = NULL;
    (void)unused;
    assert_int_equal(attn_ctx_create(&options, &ctx), ATTN_OK);
    for (bf16 = 0; bf16 < 2; bf16++)
        for (windowed = 0; windowed < 2; windowed++) check(ctx);
    attn_ctx_release(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_poison)};
    if (!(attn_cpu_features("", NULL) & ATTN_CPU_AMX))
        return printf("no AVX-512 BF16 to emulate AMX with: skipped\n"), 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
