/* SPDX-License-Identifier: MIT
 * Time of attn_execute on problems of a few keys against a naive loop that any compiler vectorises, f32, plan cached,
 * one head: median of batches of calls, for each number of threads named. No part of `attn bench`, whose clock counts
 * single calls of microseconds and more.
 * usage: cc -O3 -march=native -Iinclude bench/tiny_cpu.c -lattn -lm && ./a.out [THREADS...] (default: 1 2). With
 * -ffast-math the compiler vectorises the scores, too. */
#define _GNU_SOURCE /* clock_gettime */
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCHES = 101, MOST = 64, WIDTH = 128 };

static float q[MOST * WIDTH], k[MOST * WIDTH], v[MOST * WIDTH], out[MOST * WIDTH], lse[MOST];

static void naive(int64_t sq, int64_t sk, int64_t d) {
    const float scale = 1 / sqrtf((float)d);
    for (int64_t i = 0; i < sq; i++) {
        float s[MOST], max = -INFINITY, sum = 0, *o = out + i * d;
        for (int64_t j = 0; j < sk; j++) {
            float dot = 0;
            for (int64_t c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];
            s[j] = dot * scale;
            if (s[j] > max) max = s[j];
        }
        for (int64_t c = 0; c < d; c++) o[c] = 0;
        for (int64_t j = 0; j < sk; j++) {
            const float p = expf(s[j] - max);
            sum += p;
            for (int64_t c = 0; c < d; c++) o[c] += p * v[j * d + c];
        }
        for (int64_t c = 0; c < d; c++) o[c] /= sum;
        lse[i] = max + logf(sum);
    }
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}
static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct run {
    const attn_plan *plan; /* NULL: the loop */
    const attn_args *args;
    int64_t sq, sk, d;
};
static void once(const struct run *r) {
    if (!r->plan) {
        naive(r->sq, r->sk, r->d);
    } else if (attn_execute(r->plan, r->args)) {
        fprintf(stderr, "%s\n", attn_last_error());
        exit(1);
    }
}
static double median_us(const struct run *r) {
    static double at[BATCHES];
    int calls = 1;
    for (double t = 0; t < 20 && calls < 4096; calls *= 2) {
        t = now_us();
        for (int i = 0; i < calls; i++) once(r);
        t = now_us() - t;
    }
    for (int b = 0; b < BATCHES; b++) {
        const double begin = now_us();
        for (int i = 0; i < calls; i++) once(r);
        at[b] = (now_us() - begin) / calls;
    }
    qsort(at, BATCHES, sizeof *at, ascending);
    return at[BATCHES / 2];
}

static void measure(int32_t threads, int64_t side_q, int64_t side_k, int64_t d) {
    attn_ctx_options options = {.size = sizeof options, .threads = threads};
    attn_plan_info info = {.size = sizeof info};
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_args args = ATTN_ARGS_INIT;
    attn_tensor t[ATTN_ROLE_COUNT];
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    p.op = ATTN_OP_SDPA_FWD, p.dtype = ATTN_F32, p.batch = p.heads_q = p.heads_k = 1;
    p.seq_q = side_q, p.seq_k = side_k, p.dim_qk = p.dim_v = d;
    if (attn_ctx_create(&options, &ctx) || attn_plan_create(ctx, ATTN_DEVICE_CPU, &p, NULL, &plan) ||
        attn_plan_get_info(plan, &info)) {
        fprintf(stderr, "%s\n", attn_last_error());
        exit(1);
    }
    const struct {
        int32_t role;
        float *data;
    } of[] = {{ATTN_ROLE_Q, q}, {ATTN_ROLE_K, k}, {ATTN_ROLE_V, v}, {ATTN_ROLE_OUT, out}, {ATTN_ROLE_LSE, lse}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        int32_t use;
        if (attn_role_tensor(&p, of[i].role, &use, &t[i])) exit(1);
        t[i].data = of[i].data;
        attn_args_set(&args, of[i].role, &t[i]);
    }
    args.workspace_bytes = info.workspace_bytes;
    args.workspace = aligned_alloc(64, (info.workspace_bytes + 127) / 64 * 64);
    const double attn = median_us(&(struct run){plan, &args, side_q, side_k, d});
    const double loop = median_us(&(struct run){NULL, NULL, side_q, side_k, d});
    printf("%7d %4lld %4lld %4lld %9.3f %9.3f %8.2f\n", threads, (long long)side_q, (long long)side_k, (long long)d,
           attn, loop, attn / loop);
    free(args.workspace);
    attn_plan_release(plan);
    attn_ctx_release(ctx);
}

int main(int argc, char **argv) {
    static const int64_t sides[] = {1, 2, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64}, dims[] = {32, 64, 128};
    for (int64_t i = 0; i < MOST * WIDTH; i++) q[i] = k[i] = v[i] = (float)(i % 17) / 17 - 0.5f;
    printf("threads   sq   sk    d   attn us   loop us    ratio\n");
    for (int a = 1; a < argc || a < 3; a++) {
        const int32_t threads = a < argc ? (int32_t)atoi(argv[a]) : a;
        if (argc > 1 && a >= argc) break;
        for (size_t s = 0; s < sizeof sides / sizeof *sides; s++)
            for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) measure(threads, sides[s], sides[s], dims[d]);
    }
    return 0;
}
