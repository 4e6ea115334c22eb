/* SPDX-License-Identifier: MIT
 * What instructions of sm_90 do, recorded on a device and compared with the simulator: layouts of wgmma's operands and
 * sums, boxes and swizzles of tensor copies, mbarriers. Inputs are small whole numbers, so that sums are exact.
 * usage: hopper_golden record|replay DRIVER FILE [FIRST]      the file has a line for each case: name, hash, first
 * words; FIRST: number of the case to begin with, where a record ended by a fault of the device goes on */
#include "hopper_golden.h"
#include "../kernel_driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kernel_driver cu;

static int open_driver(const char *path) {
    char why[300];
    void *context;
    if (kernel_driver_open(&cu, path, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return -1;
    }
    return cu.init(0) || cu.retain(&context, 0) || cu.push(context);
}

void golden_add(struct golden_case *c, const char *format, ...) {
    size_t n = strlen(c->text);
    va_list list;
    va_start(list, format);
    vsnprintf(c->text + n, sizeof c->text - n, format, list);
    va_end(list);
}
void golden_begin(struct golden_case *c, const char *declarations) {
    c->text[0] = 0;
    golden_add(
        c,
        ".version 8.1\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 s[];\n"
        ".visible .entry k(.param .u64 in, .param .u64 out, .param .u64 a, .param .u64 b,\n"
        ".param .align 64 .b8 map[128])\n.maxntid 128, 1, 1\n{\n.reg .pred p, q;\n.reg .b16 %%k<4>;\n"
        ".reg .b32 %%r<40>;\n.reg .b64 %%rd<20>;\n%s\nmov.u32 %%r0, %%tid.x;\nmov.u32 %%r1, s;\n"
        "ld.param.u64 %%rd0, [in];\nld.param.u64 %%rd1, [out];\nld.param.u64 %%rd2, [a];\n"
        "ld.param.u64 %%rd3, [b];\nshl.b32 %%r2, %%r0, 4;\nadd.u32 %%r3, %%r1, %%r2;\ncvt.u64.u32 %%rd4, %%r2;\n"
        "add.u64 %%rd4, %%rd4, %%rd0;\nmov.u32 %%r4, 0;\nFILL:\nld.global.v4.b32 {%%r5, %%r6, %%r7, %%r8}, [%%rd4];\n"
        "st.shared.v4.b32 [%%r3], {%%r5, %%r6, %%r7, %%r8};\nadd.u32 %%r3, %%r3, 2048;\n"
        "add.u64 %%rd4, %%rd4, 2048;\nadd.u32 %%r4, %%r4, 2048;\nsetp.lt.u32 p, %%r4, %d;\n@p bra FILL;\n"
        "fence.proxy.async;\nbar.sync 0;\n",
        declarations, GOLDEN_IMAGE);
}
void golden_fill(struct golden_case *c, int kind) {
    /* 0, 1, 2, 3, 4, -1, -2, -3 in each format */
    static const uint16_t half[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0xbc00, 0xc000, 0xc200},
                          brain[] = {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0xbf80, 0xc000, 0xc040};
    static const uint8_t e4m3[] = {0, 0x38, 0x40, 0x44, 0x48, 0xb8, 0xc0, 0xc4},
                         e5m2[] = {0, 0x3c, 0x40, 0x42, 0x44, 0xbc, 0xc0, 0xc2};
    uint64_t state = 88172645463325252u;
    for (const char *p = c->name; *p; p++) state = state * 31 + (unsigned char)*p;
    uint32_t step = kind < 2 ? 2 : kind == 2 || kind == 5 ? 4 : 1;
    for (uint32_t i = 0; i < GOLDEN_IMAGE; i += step) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint32_t n = (uint32_t)(state >> 33), word = (uint32_t)brain[n & 7] << 16;
        const void *from = kind == 0   ? (const void *)&half[n & 7]
                           : kind == 1 ? (const void *)&brain[n & 7]
                           : kind == 2 ? (const void *)&word
                           : kind == 3 ? (const void *)&e4m3[n & 7]
                           : kind == 4 ? (const void *)&e5m2[n & 7]
                                       : (const void *)&n;
        memcpy(c->image + i, from, step);
    }
}

/* Runs a case; 0, or the driver's error. */
static int run(struct golden_case *c, uint32_t *out) {
    void *module, *function;
    uint64_t in, to;
    static _Alignas(64) uint8_t map[128];
    char log[4096] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    int r = cu.load(&module, c->text, 2, options, values);
    if (r) {
        fprintf(stderr, "%s: result %d: %s\n", c->name, r, log);
        return r;
    }
    size_t bytes = GOLDEN_WORDS * 4;
    memset(out, 0xee, bytes);
    if ((r = cu.function(&function, module, "k")) || (r = cu.set(function, 8, GOLDEN_IMAGE + 4096)) ||
        (r = cu.alloc(&in, GOLDEN_IMAGE)) || (r = cu.alloc(&to, bytes)) || (r = cu.up(in, c->image, GOLDEN_IMAGE)) ||
        (r = cu.up(to, out, bytes)))
        return r;
    if (c->rank && (r = cu.encode(map, c->type, c->rank, (void *)(uintptr_t)(c->outputs_map ? to : in), c->dims,
                                  c->strides, c->box, c->steps, 0, c->swizzle, 0, c->fill)))
        return r;
    void *params[] = {&in, &to, &c->a, &c->b, map};
    struct kernel_attribute cluster = {.id = 4, .value.cluster = {c->ctas, 1, 1}};
    struct kernel_launch l = {.grid = {c->ctas, 1, 1},
                              .block = {c->threads, 1, 1},
                              .shared_bytes = GOLDEN_IMAGE + 4096,
                              .attributes = &cluster,
                              .n_attributes = c->ctas > 1};
    if (!(r = cu.launch(&l, function, params, NULL)) && !(r = cu.synchronize())) r = cu.down(out, to, bytes);
    if (!r) r = cu.freed(in) | cu.freed(to) | cu.unload(module);
    return r;
}

static uint64_t hash(const uint32_t *words, uint32_t n) {
    uint64_t h = 14695981039346656037u;
    for (uint32_t i = 0; i < n; i++) h = (h ^ words[i]) * 1099511628211u;
    return h;
}
enum { SHOWN = 8 };

/* 0: no record of it; 1: a hash; 2: the device ended the kernel with a fault. */
static int recorded(FILE *f, const char *name) {
    char line[512], want[96], word[32];
    rewind(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%95s %31s", want, word) == 2 && !strcmp(want, name)) return strcmp(word, "fault") ? 1 : 2;
    return 0;
}
/* In a process of its own: a fault stays in the context. */
static int run_apart(struct golden_case *c, uint32_t *out) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(run(c, out) != 0);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static int compare(FILE *f, const char *name, const uint32_t *out, uint32_t n) {
    char line[512], want[96];
    rewind(f);
    while (fgets(line, sizeof line, f)) {
        uint64_t h;
        int value = 0;
        if (sscanf(line, "%95s %lx %n", want, &h, &value) < 2 || strcmp(want, name)) continue;
        if (h == hash(out, n)) return 0;
        printf("FAIL %s\n  recorded %s  now     ", name, line + value);
        for (uint32_t i = 0; i < SHOWN; i++) printf(" %08x", out[i]);
        printf("\n");
        return 1;
    }
    return 1;
}

int main(int argc, char **argv) {
    static struct golden_case c;
    static uint32_t out[GOLDEN_WORDS];
    int (*const makers[])(uint32_t, struct golden_case *) = {golden_barrier, golden_wgmma, golden_tensor};
    int record = argc >= 4 && !strcmp(argv[1], "record"), failed = 0, passed = 0, unknown = 0;
    uint32_t from = argc == 5 ? (uint32_t)atoi(argv[4]) : 0, number = 0;
    if (argc < 4 || argc > 5 || (!record && strcmp(argv[1], "replay"))) {
        fprintf(stderr, "usage: %s record|replay DRIVER FILE\n", argv[0]);
        return 2;
    }
    if (open_driver(argv[2])) return 2;
    FILE *f = fopen(argv[3], !record ? "r" : from ? "a" : "w");
    if (!f) {
        perror(argv[3]);
        return 2;
    }
    for (size_t k = 0; k < sizeof makers / sizeof *makers; k++)
        for (uint32_t i = 0;; i++, number++) {
            memset(&c, 0, sizeof c);
            c.ctas = 1, c.threads = 128;
            if (!makers[k](i, &c)) break;
            if (number < from) continue;
            int kind = record ? 1 : recorded(f, c.name), refused = kind == 2;
            if (!kind) {
                printf("%s: no record\n", c.name);
                unknown++;
                continue;
            }
            int r = refused ? run_apart(&c, out) : run(&c, out);
            if (refused) {
                if (!r) printf("FAIL %s: a device refuses it\n", c.name);
                *(r ? &passed : &failed) += 1;
                continue;
            }
            if (r) {
                printf("FAIL %s: result %d\n", c.name, r);
                failed++;
                if (record) fprintf(f, "%s fault %d\n", c.name, r);
                if (record && r >= 700) { /* the context is gone: the rest needs a new process */
                    fclose(f);
                    printf("go on with %u\n", number + 1);
                    return 3;
                }
                continue;
            }
            if (record) {
                fprintf(f, "%s %016lx", c.name, hash(out, c.words));
                for (uint32_t w = 0; w < SHOWN; w++) fprintf(f, " %08x", out[w]);
                fprintf(f, "\n");
                passed++;
            } else {
                *(compare(f, c.name, out, c.words) ? &failed : &passed) += 1;
            }
        }
    fclose(f);
    printf("%d cases %s, %d failed, %d without a record\n", passed, record ? "recorded" : "agree", failed, unknown);
    return failed != 0;
}
