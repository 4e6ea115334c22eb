/* SPDX-License-Identifier: MIT
 * What instructions of sm_100 do: compared with what a second statement on the host says, recorded on a device, and a
 * record replayed in the simulator. Each vector runs in a process of its own, since a fault stays in the context.
 * usage: blackwell_golden probe DRIVER                 exit status 77 and a line of words where there is no device
 *        blackwell_golden check DRIVER [NAME]          with the host's statement; NAME: those whose names contain it
 *        blackwell_golden record DRIVER FILE           likewise, and writes a line for each: name, hash, first words
 *        blackwell_golden replay DRIVER FILE           with such a file
 *        blackwell_golden text FOLDER                  writes NAME.ptx of each */
#include "blackwell_golden.h"
#include "../kernel_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kernel_driver cu;
enum { PATIENCE = 300, ABSENT = 77, SHOWN = 8, MAJOR = 75, MINOR = 76 };

static int open_driver(const char *path) {
    char why[300];
    if (kernel_driver_open(&cu, path, why, sizeof why)) {
        printf("no Blackwell device: %s\n", why);
        return -1;
    }
    return 0;
}
/* 0, or ABSENT after a line of words. */
static int probe(void) {
    int n = 0, major = 0, minor = 0;
    char name[256] = "?";
    int r = cu.init(0);
    if (r || cu.count(&n) || n < 1) {
        printf("no Blackwell device: cuInit gives %d, %d devices\n", r, n);
        return ABSENT;
    }
    if (cu.name(name, sizeof name, 0) || cu.attribute(&major, MAJOR, 0) || cu.attribute(&minor, MINOR, 0))
        return ABSENT;
    if (major != 10) {
        printf("no Blackwell device: device 0 is %s of compute capability %d.%d; these vectors need 10.0\n", name,
               major, minor);
        return ABSENT;
    }
    printf("device 0: %s, compute capability %d.%d\n", name, major, minor);
    return 0;
}

static int run(const struct bg_case *c, bg_cells *out) {
    void *context, *module, *function;
    uint64_t image, cells, to;
    static _Alignas(64) uint8_t map[128];
    char log[4096] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    const size_t bytes = 2 * sizeof(bg_cells);
    int r =
        cu.init(0) || cu.retain(&context, 0) || cu.push(context) ? -1 : cu.load(&module, c->text, 2, options, values);
    if (r) {
        fprintf(stderr, "%s: result %d: %s\n", c->name, r, log);
        return r;
    }
    memset(out, 0xee, bytes);
    if ((r = cu.function(&function, module, "k")) || (r = cu.set(function, 8, BG_SHARED)) ||
        (r = cu.alloc(&image, sizeof c->image)) || (r = cu.alloc(&cells, bytes)) || (r = cu.alloc(&to, bytes)) ||
        (r = cu.up(image, c->image, sizeof c->image)) || (r = cu.up(cells, c->cells, bytes)) ||
        (r = cu.up(to, out, bytes)))
        return r;
    const unsigned steps[2] = {1, 1};
    if (c->rank && (r = cu.encode(map, c->type, c->rank, (void *)(uintptr_t)image, c->dims, &c->stride, c->box, steps,
                                  0, c->swizzle, 0, 0)))
        return r;
    void *params[] = {&image, &cells, &to, map};
    struct kernel_attribute cluster = {.id = 4, .value.cluster = {c->ctas, 1, 1}};
    struct kernel_launch l = {.grid = {c->ctas, 1, 1},
                              .block = {128, 1, 1},
                              .shared_bytes = BG_SHARED,
                              .attributes = &cluster,
                              .n_attributes = c->ctas > 1};
    if ((r = cu.launch(&l, function, params, NULL)) || (r = cu.synchronize())) return r;
    return cu.down(out, to, bytes);
}
/* 0, the driver's error, or -1. */
static int run_apart(const struct bg_case *c, bg_cells *out, int *shared_result) {
    fflush(NULL);
    *shared_result = -1;
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE); /* a kernel that waits for ever counts as one that the device ends */
        *shared_result = run(c, out);
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child ? *shared_result : -1;
}

static uint64_t hash(const struct bg_case *c, bg_cells *out, uint32_t first[SHOWN]) {
    uint64_t h = 14695981039346656037u;
    uint32_t n = 0;
    for (uint32_t v = 0; v < c->ctas; v++)
        for (uint32_t l = 0; l < BG_LANES; l++)
            for (uint32_t i = 0; i < BG_COLUMNS; i++) {
                if (!c->care[v][l][i]) continue;
                uint32_t word = out[v][l][i] & c->care[v][l][i];
                if (n < SHOWN) first[n++] = word;
                h = (h ^ word) * 1099511628211u;
            }
    return h;
}
/* Cells that are not as stated; the first is told. */
static uint32_t differ(const struct bg_case *c, const bg_cells *want, bg_cells *out, int tell) {
    uint32_t n = 0;
    for (uint32_t v = 0; v < c->ctas; v++)
        for (uint32_t l = 0; l < BG_LANES; l++)
            for (uint32_t i = 0; i < BG_COLUMNS; i++) {
                if (!((out[v][l][i] ^ want[v][l][i]) & c->care[v][l][i])) continue;
                if (!n++ && tell)
                    printf("FAIL %s: CTA %u, row %u, word %u is %08x; the host says %08x (bits %08x)\n", c->name, v, l,
                           i, out[v][l][i], want[v][l][i], c->care[v][l][i]);
            }
    return n;
}

/* The line of a case in a record: 0 none, 1 a hash, 2 the device ended the kernel. */
static int recorded(FILE *f, const char *name, uint64_t *h) {
    char line[512], is[128], word[32];
    rewind(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%127s %31s", is, word) == 2 && !strcmp(is, name)) {
            *h = strtoull(word, NULL, 16);
            return strcmp(word, "fault") ? 1 : 2;
        }
    return 0;
}

struct counts {
    int agree, failed, unknown, open;
};
static void judge(char mode, const struct bg_case *c, bg_cells *out, int r, FILE *f, struct counts *n) {
    uint32_t first[SHOWN] = {0};
    uint64_t was = 0, now = r ? 0 : hash(c, out, first);
    if (mode == 'r') { /* record */
        if (r) fprintf(f, "%s fault %d\n", c->name, r);
        if (!r) fprintf(f, "%s %016lx", c->name, now);
        for (uint32_t i = 0; i < SHOWN && !r; i++) fprintf(f, " %08x", first[i]);
        if (!r) fprintf(f, "\n");
    }
    if (mode == 'p') { /* replay */
        int kind = recorded(f, c->name, &was);
        if (!kind) {
            printf("%s: no record\n", c->name);
            n->unknown++;
        } else if (c->has_other) {
            n->open++;
        } else if ((kind == 2) != (r != 0) || (kind == 1 && was != now)) {
            printf("FAIL %s: recorded %s %016lx, now result %d %016lx\n", c->name, kind == 2 ? "a fault" : "", was, r,
                   now);
            n->failed++;
        } else {
            n->agree++;
        }
        return;
    }
    if (c->has_other) { /* which of two readings of the ISA a device follows; the simulator takes neither */
        uint32_t a = r ? 1 : differ(c, c->want, out, 0), b = r ? 1 : differ(c, c->other, out, 0);
        printf("%s: %s\n", c->name,
               r    ? "not answered"
               : !a ? "rows move to higher lanes"
               : !b ? "rows move to lower lanes"
                    : "neither reading");
        n->open++;
        if (!r && a && b) n->failed += mode == 'r';
        return;
    }
    if (r) printf("FAIL %s: result %d\n", c->name, r);
    *(r || differ(c, c->want, out, 1) ? &n->failed : &n->agree) += 1;
}

static int write_text(const struct bg_case *c, const char *folder) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.ptx", folder, c->name);
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fputs(c->text, f);
    return fclose(f);
}

int main(int argc, char **argv) {
    int (*const makers[])(uint32_t, struct bg_case *) = {bg_moves, bg_copies, bg_products};
    static const char *const modes[] = {"probe", "check", "record", "replay", "text"};
    static const char letters[] = "bcrpt";
    char mode = 0;
    for (int i = 0; i < 5; i++)
        if (argc > 2 && !strcmp(argv[1], modes[i])) mode = letters[i];
    if (!mode || argc != (mode == 'r' || mode == 'p' ? 4 : mode == 'c' && argc == 4 ? 4 : 3)) {
        fprintf(
            stderr,
            "usage: %s probe DRIVER | check DRIVER [NAME] | record DRIVER FILE | replay DRIVER FILE | text FOLDER\n",
            argv[0]);
        return 2;
    }
    setenv("ATTNSIM_GPU", "b200", 0), setenv("ATTNSIM_QUIET", "1", 0);
    if (mode != 't' && open_driver(argv[2])) return ABSENT;
    if (mode == 'b') return probe();
    FILE *f = mode == 'r' ? fopen(argv[3], "w") : mode == 'p' ? fopen(argv[3], "r") : NULL;
    if ((mode == 'r' || mode == 'p') && !f) {
        perror(argv[3]);
        return 2;
    }
    struct bg_case *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bg_cells *out = mmap(NULL, 2 * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int *result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED || out == MAP_FAILED || result == MAP_FAILED) return 2;
    struct counts n = {0};
    for (size_t k = 0; k < sizeof makers / sizeof *makers; k++)
        for (uint32_t i = 0;; i++) {
            memset(c, 0, sizeof *c);
            c->ctas = 1;
            if (!makers[k](i, c)) break;
            if (mode == 'c' && argc == 4 && !strstr(c->name, argv[3])) continue;
            if (mode == 't') {
                if (write_text(c, argv[2])) return 2;
                continue;
            }
            judge(mode, c, out, run_apart(c, out, result), f, &n);
        }
    if (f) fclose(f);
    if (mode != 't')
        printf("%d vectors agree, %d failed, %d without a record, %d that the ISA leaves open\n", n.agree, n.failed,
               n.unknown, n.open);
    return n.failed != 0;
}
