/* SPDX-License-Identifier: MIT
 * A program outside the tree that uses the installed library: causal attention on four queries, the result compared
 * with plain loops. Built as C by consumer_pkgconfig.sh and consumer_cmake.sh; consumer_cpp.cc is its C++ twin. */
#include <attn.h>

#include <math.h>
#include <stdio.h>

enum { HEADS = 2, SEQ = 4, DIM = 3 };

static float q[HEADS][SEQ][DIM], k[1][SEQ][DIM], v[1][SEQ][DIM], out[HEADS][SEQ][DIM], lse[HEADS][SEQ];

static int wrong(const char *what, attn_status status) {
    fprintf(stderr, "%s: %s: %s\n", what, attn_status_name(status), attn_last_error());
    return 1;
}

/* Largest difference to softmax(q k^T / sqrt(DIM)) v over keys j <= i, in double. */
static double compare(void) {
    double worst = 0;
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < SEQ; i++) {
            double p[SEQ], sum = 0;
            for (int j = 0; j <= i; j++) {
                double s = 0;
                for (int c = 0; c < DIM; c++) s += (double)q[h][i][c] * (double)k[0][j][c];
                sum += p[j] = exp(s / sqrt(DIM));
            }
            worst = fmax(worst, fabs(log(sum) - (double)lse[h][i]));
            for (int c = 0; c < DIM; c++) {
                double o = 0;
                for (int j = 0; j <= i; j++) o += p[j] / sum * (double)v[0][j][c];
                worst = fmax(worst, fabs(o - (double)out[h][i][c]));
            }
        }
    }
    return worst;
}

int main(void) {
    for (int i = 0; i < SEQ; i++)
        for (int c = 0; c < DIM; c++) {
            for (int h = 0; h < HEADS; h++) q[h][i][c] = (float)sin(1 + i + 5 * c + 7 * h);
            k[0][i][c] = (float)cos(2 + 3 * i + c);
            v[0][i][c] = (float)(i - 2 * c);
        }
    attn_ctx *ctx;
    attn_status status = attn_ctx_create(NULL, &ctx);
    if (status) return wrong("attn_ctx_create", status);

    attn_problem problem = ATTN_PROBLEM_INIT;
    problem.op = ATTN_OP_SDPA_FWD;
    problem.dtype = ATTN_F32;
    problem.flags = ATTN_CAUSAL;
    problem.batch = 1;
    problem.heads_q = HEADS;
    problem.heads_k = 1;
    problem.seq_q = problem.seq_k = SEQ;
    problem.dim_qk = problem.dim_v = DIM;

    attn_tensor tq, tk, tv, to, tl;
    attn_tensor_contiguous(&tq, q, ATTN_F32, 4, (const int64_t[]){1, HEADS, SEQ, DIM});
    attn_tensor_contiguous(&tk, k, ATTN_F32, 4, (const int64_t[]){1, 1, SEQ, DIM});
    attn_tensor_contiguous(&tv, v, ATTN_F32, 4, (const int64_t[]){1, 1, SEQ, DIM});
    attn_tensor_contiguous(&to, out, ATTN_F32, 4, (const int64_t[]){1, HEADS, SEQ, DIM});
    attn_tensor_contiguous(&tl, lse, ATTN_F32, 3, (const int64_t[]){1, HEADS, SEQ});
    attn_args args = ATTN_ARGS_INIT;
    args.q = &tq;
    args.k = &tk;
    args.v = &tv;
    args.out = &to;
    args.lse = &tl;
    status = attn_run(ctx, ATTN_DEVICE_CPU, &problem, &args);
    if (status) return wrong("attn_run", status);

    double worst = compare();
    attn_ctx_release(ctx);
    printf("C, libattn %u.%u.%u: worst difference %.1e\n", attn_version() >> 16, attn_version() >> 8 & 255,
           attn_version() & 255, worst);
    return worst < 2e-6 ? 0 : 1;
}
