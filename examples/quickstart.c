/* SPDX-License-Identifier: MIT
 * The smallest complete program: causal attention with grouped heads, one call.
 *     cc quickstart.c $(pkg-config --cflags --libs attn) -o quickstart && ./quickstart */
#include <attn.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 1, HQ = 8, HK = 2, S = 512, D = 64 };

int main(void) {
    float *buf = malloc(sizeof(float) * B * S * D * (2 * HQ + 2 * HK));
    for (int i = 0; i < B * S * D * (2 * HQ + 2 * HK); i++) buf[i] = (float)(i % 97) / 97 - 0.5f;

    attn_tensor q, k, v, out;
    attn_tensor_contiguous(&q, buf, ATTN_F32, 4, (const int64_t[]){B, HQ, S, D});
    attn_tensor_contiguous(&k, buf + B * HQ * S * D, ATTN_F32, 4, (const int64_t[]){B, HK, S, D});
    attn_tensor_contiguous(&v, buf + B * (HQ + HK) * S * D, ATTN_F32, 4, (const int64_t[]){B, HK, S, D});
    attn_tensor_contiguous(&out, buf + B * (HQ + 2 * HK) * S * D, ATTN_F32, 4, (const int64_t[]){B, HQ, S, D});

    attn_ctx *ctx;
    attn_problem p;
    attn_args a = ATTN_ARGS_INIT;
    a.q = &q, a.k = &k, a.v = &v, a.out = &out;
    if (attn_ctx_create(NULL, &ctx) || attn_problem_parse("sdpa_fwd b=1 hq=8 hk=2 sq=512 d=64 f32 causal", &p) ||
        attn_run(ctx, ATTN_DEVICE_CPU, &p, &a)) {
        fprintf(stderr, "%s\n", attn_last_error());
        return 1;
    }
    printf("out[0][0][1] = %f %f ...\n", (double)((float *)out.data)[D], (double)((float *)out.data)[D + 1]);
    attn_ctx_release(ctx);
    free(buf);
    return 0;
}
