/* SPDX-License-Identifier: MIT
 * What a full step of the flash strips on tiles costs (src/cpu/amx/dense_fwd/fwd.c, which is part of this file), and
 * its parts: cycles of 64 keys x 32 queries at 2.785 GHz (-DGHZ=3.79 for another clock), loops of full steps
 * over keys and values in the second-level cache, of random numbers and of zeros. For processors with AMX; a neighbour
 * may disturb them.
 *
 *     F="-mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vbmi -mamx-tile -mamx-bf16"
 *     cc -O3 -ffp-contract=off $F -Iinclude -Isrc tests/amx/time_strips.c -o time_strips        a minute or two
 *     ./time_strips 4 1 2 3       4 seconds on each of processors 1, 2 and 3, one after the other
 *
 * Left out with -DNO_VECTORS: exponentials (probabilities are random numbers, or 0); NO_STORES: tile stores;
 * NO_KEYS: loads of keys and values. NEAR_KEYS: these come from one place in the first-level cache. No part of the
 * library. */
#define _GNU_SOURCE
#include "cpu/amx/tile.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(NO_VECTORS)
#define deal deal_all
#include "cpu/amx/dense_fwd/exp.h"
#undef deal
INLINE void deal(struct exps *e) { e->done = e->span / 2; }
#endif
#if defined(NO_STORES)
#undef tile_store
#define tile_store(t, base, stride) ((void)(base))
#endif
#if defined(NO_KEYS)
#undef tile_load_once
#define tile_load_once(t, base, stride) ((void)(base))
#elif defined(NEAR_KEYS)
static float near_keys[1024] __attribute__((aligned(4096)));
#undef tile_load_once
#define tile_load_once(t, base, stride) tile_load(t, near_keys + (t) % 4 * 256, 64)
#endif
#include "cpu/amx/dense_fwd/fwd.c"

/* Of other files, for scores that are made of products: not here. */
void attn_ukr_amx_fwd_score_mod(const struct attn_fwd_strip *f, int64_t n, int extents) {
    (void)f, (void)n, (void)extents;
    abort();
}

enum { KEYS = 2048, STRIPS = 4, LOOPS = 4, MOST_PASSES = 4000 };
#if !defined(GHZ)
#define GHZ 2.785
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void *zeros(size_t bytes) {
    const size_t large = 2 << 20;
    char *p = mmap(NULL, bytes + 2 * large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(1);
    p = (char *)(((uintptr_t)p + large - 1) / large * large);
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}
/* bf16, about normal. */
static void fill(void *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = 0;
        uint32_t bits;
        for (int k = 0; k < 6; k++) x += (float)(rand() % 4096) / 4096;
        x = (x - 3) * 1.41f;
        memcpy(&bits, &x, sizeof bits);
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    }
}
/* All steps of a strip but the first ones; returns how many. */
INLINE int64_t steps(int64_t depth, int bf16_accuracy, const struct attn_fwd_strip *f) {
    const int64_t span = attn_fwd_span(depth, depth, 1), parts = depth == 64 ? 1 : QUEUE, to = f->n / span - 1;
    const struct reference r[2] = {{.offset = v32_set(8)}, {.offset = v32_set(8)}};
    struct queue w = {.span = span, .parts = parts};
    struct exps e;
    set_up_exps(&e, f->factor, 1, bf16_accuracy, span);
    set_up_fused(&e.fused, FUSE_NONE, 1, f->factor, NULL);
    deal_times(&e, 2 * (depth / 32 * (span / 16) + span / 32 * (depth / 16)));
    for (int64_t i = 0; i <= parts; i++) w.p[QUEUE - i] = f->p + i * span / 2 * LANES_ALL;
    struct pipeline c = {.w = &w, .place = {f, parts}, .j = parts, .s = f->s, .other = f->s + span * LANES_ALL};
    c.l[0] = c.l[1] = v32_set(0);
    if (full_steps(FUSE_NONE, depth, depth, span, parts, to, f + 1, r, &c, &e)) fprintf(stderr, "sums passed MOST\n");
    if (c.held) store_sums(c.held);
    return to - parts;
}
static __attribute__((noinline)) int64_t d64_out(const struct attn_fwd_strip *f) { return steps(64, 1, f); }
static __attribute__((noinline)) int64_t d64_lse(const struct attn_fwd_strip *f) { return steps(64, 0, f); }
static __attribute__((noinline)) int64_t d128_out(const struct attn_fwd_strip *f) { return steps(128, 1, f); }
static __attribute__((noinline)) int64_t d128_lse(const struct attn_fwd_strip *f) { return steps(128, 0, f); }
static const struct loop {
    const char *name;
    int64_t depth;
    int64_t (*run)(const struct attn_fwd_strip *f);
} loops[LOOPS] = {
    {"D64, only out", 64, d64_out}, {"D64", 64, d64_lse}, {"D128, only out", 128, d128_out}, {"D128", 128, d128_lse}};

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void measure(int cpu, double seconds, void *const *k, void *const *v, void *const *q, float *o, void *const *s) {
    static double cycles[LOOPS][2][MOST_PASSES];
    cpu_set_t set;
    int n = 0;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (const double end = now() + seconds; n < MOST_PASSES && now() < end; n++)
        for (int turn = 0; turn < 2 * LOOPS; turn++) { /* there and back, so that none has a place of its own */
            const int x = n % 2 ? 2 * LOOPS - 1 - turn : turn, zero = x % 2;
            const struct loop *l = &loops[x / 2];
            const int64_t d = l->depth;
            int64_t keys = 0;
            double start = 0;
            for (int64_t strip = -1; strip < STRIPS; strip++) { /* the first one brings everything near */
                const int64_t at_strip = strip < 0 ? 0 : strip;
                const struct attn_fwd_strip f = {.n = KEYS,
                                                 .depth = d,
                                                 .width = d,
                                                 .k = k[zero],
                                                 .k_row = d == 64 ? 64 : 32,
                                                 .k_more = 16 * d,
                                                 .k_step = d == 64 ? 32 : 512,
                                                 .q = (float *)q[zero] + at_strip * 32 * d / 2,
                                                 .v = v[zero],
                                                 .factor = 1.44f / (d == 64 ? 8.0f : 11.3f),
                                                 .o = o + at_strip * 32 * d,
                                                 .s = s[zero],
                                                 .p = (float *)s[zero] + 4096};
                if (strip == 0) start = now();
                const int64_t done = l->run(&f) * attn_fwd_span(d, d, 1);
                if (strip >= 0) keys += done;
            }
            cycles[x / 2][zero][n] = (now() - start) * GHZ * 1e9 / ((double)keys / 64);
        }
    for (int x = 0; x < 2 * LOOPS; x++) {
        double *c = cycles[x / 2][x % 2];
        qsort(c, (size_t)n, sizeof *c, by_value);
        printf("{\"cpu\": %d, \"loop\": \"%s\", \"numbers\": \"%s\", \"best\": %.0f, \"p10\": %.0f, \"median\": %.0f, "
               "\"passes\": %d}\n",
               cpu, loops[x / 2].name, x % 2 ? "zeros" : "random", c[0], c[n / 10], c[n / 2], n);
    }
}
int main(int argc, char **argv) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM) */
    static const struct tile_shapes shapes = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    void *k[2], *v[2], *q[2], *s[2]; /* s: scores and probabilities */
    if (argc < 3) {
        fprintf(stderr, "usage: time_strips SECONDS CPU...\n");
        return 2;
    }
    if (syscall(SYS_arch_prctl, REQUEST, TILE_DATA)) {
        fprintf(stderr, "no tiles: this needs AMX\n");
        return 1;
    }
    for (int zero = 0; zero < 2; zero++) {
        k[zero] = zeros(KEYS * 128 * 2), v[zero] = zeros(KEYS * 128 * 2), q[zero] = zeros(STRIPS * 32 * 128 * 2);
        s[zero] = zeros(64 * 1024);
        if (zero) continue;
        fill(k[0], KEYS * 128), fill(v[0], KEYS * 128), fill(q[0], STRIPS * 32 * 128), fill(s[0], 32 * 1024);
    }
#if defined(NEAR_KEYS)
    fill(near_keys, 2048);
#endif
    tile_config(&shapes);
    for (int i = 2; i < argc; i++) measure(atoi(argv[i]), atof(argv[1]), k, v, q, zeros(STRIPS * 32 * 128 * 4), s);
    tile_release();
    return 0;
}
