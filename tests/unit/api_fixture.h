/* SPDX-License-Identifier: MIT
 * For the tests of src/api: an allocator that counts, checks sizes and fails on demand, and one small dense call whose
 * result is computed here by the formula. */
#ifndef API_FIXTURE_H
#define API_FIXTURE_H
#include "attn.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNUSED __attribute__((unused))

/* ---- allocator ---- */

struct hooks {
    _Atomic int64_t live, bytes, calls, wrong_sizes;
    _Atomic int64_t fail_at; /* this call fails, counted from 1; 0 = none */
};
struct block {
    void *base;
    size_t bytes;
};
UNUSED static void *hook_alloc(void *user, size_t bytes, size_t alignment) {
    struct hooks *h = user;
    if (++h->calls == h->fail_at) return NULL;
    if (alignment < sizeof(struct block)) alignment = sizeof(struct block);
    char *base = aligned_alloc(alignment, (bytes + 2 * alignment - 1) / alignment * alignment);
    if (!base) return NULL;
    memset(base, 0xdd, alignment + bytes);
    struct block b = {base, bytes};
    memcpy(base + alignment - sizeof b, &b, sizeof b);
    h->live++;
    h->bytes += (int64_t)bytes;
    return base + alignment;
}
UNUSED static void hook_free(void *user, void *memory, size_t bytes) {
    struct hooks *h = user;
    struct block b;
    memcpy(&b, (char *)memory - sizeof b, sizeof b);
    h->wrong_sizes += b.bytes != bytes;
    h->live--;
    h->bytes -= (int64_t)bytes;
    memset(memory, 0xee, b.bytes);
    free(b.base);
}
UNUSED static attn_ctx_options hooked(struct hooks *h) {
    attn_ctx_options o = {.size = sizeof o, .threads = 2, .alloc = hook_alloc, .free = hook_free, .alloc_user = h};
    return o;
}
UNUSED static void assert_no_leak(const struct hooks *h) {
    assert_int_equal(h->live, 0);
    assert_int_equal(h->bytes, 0);
    assert_int_equal(h->wrong_sizes, 0);
}

/* ---- one call ---- */

enum { HQ = 2, SQ = 3, SK = 5, D = 4 };
struct call {
    attn_problem p;
    attn_args args;
    attn_tensor q, k, v, out, lse;
    float qd[HQ * SQ * D], kd[SK * D], vd[SK * D], od[HQ * SQ * D], ld[HQ * SQ];
};
UNUSED static void call_init(struct call *c) {
    memset(c, 0, sizeof *c);
    assert_int_equal(attn_problem_parse("sdpa_fwd hq=2 hk=1 sq=3 sk=5 d=4 f32 causal bottom_right", &c->p), ATTN_OK);
    const int64_t q[] = {1, HQ, SQ, D}, k[] = {1, 1, SK, D}, l[] = {1, HQ, SQ};
    attn_tensor_contiguous(&c->q, c->qd, ATTN_F32, 4, q);
    attn_tensor_contiguous(&c->k, c->kd, ATTN_F32, 4, k);
    attn_tensor_contiguous(&c->v, c->vd, ATTN_F32, 4, k);
    attn_tensor_contiguous(&c->out, c->od, ATTN_F32, 4, q);
    attn_tensor_contiguous(&c->lse, c->ld, ATTN_F32, 3, l);
    for (int i = 0; i < HQ * SQ * D; i++) c->qd[i] = (float)sin(i * 1.7);
    for (int i = 0; i < SK * D; i++) c->kd[i] = (float)cos(i * 2.3);
    for (int i = 0; i < SK * D; i++) c->vd[i] = (float)sin(i * 0.9 + 1);
    c->args.size = sizeof c->args;
    c->args.q = &c->q;
    c->args.k = &c->k;
    c->args.v = &c->v;
    c->args.out = &c->out;
    c->args.lse = &c->lse;
}
UNUSED static void call_clear(struct call *c) {
    memset(c->od, 0xff, sizeof c->od); /* NaN */
    memset(c->ld, 0xff, sizeof c->ld);
}
UNUSED static void call_verify(const struct call *c) {
    for (int h = 0; h < HQ; h++)
        for (int i = 0; i < SQ; i++) {
            int keys = i + 1 + SK - SQ;
            double score[SK], sum = 0;
            for (int j = 0; j < keys; j++) {
                double s = 0;
                for (int d = 0; d < D; d++) s += (double)c->qd[(h * SQ + i) * D + d] * (double)c->kd[j * D + d];
                score[j] = exp(s / 2); /* 1 / sqrt(4) */
                sum += score[j];
            }
            for (int d = 0; d < D; d++) {
                double o = 0;
                for (int j = 0; j < keys; j++) o += score[j] / sum * (double)c->vd[j * D + d];
                double got = (double)c->od[(h * SQ + i) * D + d];
                if (!(fabs(got - o) < 1e-5)) fail_msg("out[%d,%d,%d] is %g, expected %g", h, i, d, got, o);
            }
            double got = (double)c->ld[h * SQ + i];
            if (!(fabs(got - log(sum)) < 1e-5)) fail_msg("lse[%d,%d] is %g, expected %g", h, i, got, log(sum));
        }
}
/* attn_execute with the plan's workspace. */
UNUSED static attn_status call_execute(struct call *c, const attn_plan *plan) {
    attn_plan_info info = {.size = sizeof info};
    assert_int_equal(attn_plan_get_info(plan, &info), ATTN_OK);
    c->args.workspace_bytes = info.workspace_bytes;
    c->args.workspace = info.workspace_bytes ? aligned_alloc(64, (size_t)(info.workspace_bytes + 63) / 64 * 64) : NULL;
    call_clear(c);
    attn_status status = attn_execute(plan, &c->args);
    free(c->args.workspace);
    c->args.workspace = NULL;
    c->args.workspace_bytes = 0;
    return status;
}

/* ---- environment ---- */

/* Nothing of the caller's environment may speak in these tests: neither the names that the library reads nor those it
 * would warn of, such as the ones that its own build reads. */
UNUSED static void forget_environment(void) {
    extern char **environ;
    for (char **e = environ; *e;) {
        char name[64];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "ATTN_", 5) != 0 || n >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = 0;
        unsetenv(name); /* moves the rest up: the same place is looked at again */
    }
}

/* ---- log sink that keeps every line ---- */

struct lines {
    pthread_mutex_t lock;
    int n, warnings;
    char text[65536];
};
UNUSED static void keep_line(void *user, int32_t level, const char *area, const char *text) {
    struct lines *l = user;
    pthread_mutex_lock(&l->lock);
    l->n++;
    l->warnings += level == ATTN_LOG_WARN;
    size_t length = strlen(l->text);
    snprintf(l->text + length, sizeof l->text - length, "%s: %s\n", area, text);
    pthread_mutex_unlock(&l->lock);
}
#endif
