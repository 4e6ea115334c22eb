/* SPDX-License-Identifier: MIT
 * Results of single instructions on a real GPU, and the simulator's held against them:
 *   golden record DRIVER FILE   executes every form on the driver's device 0 and writes the results
 *   golden replay DRIVER FILE   the same, compared with what FILE holds
 *   golden ptx                  the modules, one after the other
 * FILE: a line of text, then for each form its name, the words of a lane, a newline, and the words of all lanes.
 * Operands are not kept: they follow from the form's name. */
#include "golden.h"
#include "../kernel_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = GOLDEN_LANES * GOLDEN_WARPS, MOST_OUT = 8 };
static struct kernel_driver cu;
static uint64_t in_buffer, out_buffer, scratch;
static int arch;

static int open_driver(const char *path, char *name, int name_bytes) {
    void *context = NULL;
    int device = 0, major = 0, minor = 0;
    char why[300];
    if (kernel_driver_open(&cu, path, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return -1;
    }
    if (cu.init(0) || cu.device(&device, 0) || cu.retain(&context, device) || cu.push(context)) return -1;
    if (cu.name(name, name_bytes, device) || cu.attribute(&major, 75, device) || cu.attribute(&minor, 76, device))
        return -1;
    arch = major * 10 + minor;
    return cu.alloc(&in_buffer, LANES * GOLDEN_WORDS * 4) || cu.alloc(&out_buffer, LANES * MOST_OUT * 4) ||
                   cu.alloc(&scratch, LANES * 32)
               ? -1
               : 0;
}

/* 0, or the driver's error. */
static int execute(const struct golden_form *f, const uint32_t *in, uint32_t *out) {
    static char text[16384];
    char log[1000] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)}, *module = NULL, *k = NULL;
    void *params[] = {&in_buffer, &out_buffer, &scratch};
    struct kernel_launch c = {.grid = {GOLDEN_WARPS, 1, 1}, .block = {GOLDEN_LANES, 1, 1}};
    if (golden_ptx(f, text, sizeof text)) return -1;
    int r = cu.load(&module, text, 2, options, values);
    if (r) fprintf(stderr, "%s: %s\n", f->op, log);
    if (!r) r = cu.function(&k, module, "k");
    if (!r) r = cu.up(in_buffer, in, LANES * GOLDEN_WORDS * 4);
    if (!r) r = cu.launch(&c, k, params, NULL);
    if (!r) r = cu.synchronize();
    if (!r) r = cu.down(out, out_buffer, LANES * golden_words_out(f) * 4);
    if (module) cu.unload(module);
    return r;
}

static uint32_t in[LANES * GOLDEN_WORDS], got[LANES * MOST_OUT], want[LANES * MOST_OUT];

static int record(const char *path, const char *name) {
    FILE *file = fopen(path, "wb");
    int failed = 0, done = 0;
    if (!file) return 1;
    fprintf(file, "results of single instructions on %s, sm_%d\n", name, arch);
    for (int i = 0; i < golden_n_forms; i++) {
        const struct golden_form *f = &golden_forms[i];
        if (f->sm > arch) continue;
        golden_inputs(f, in);
        int r = execute(f, in, got);
        if (r) {
            fprintf(stderr, "%s: error %d of the driver\n", f->op, r);
            failed++;
            continue;
        }
        fprintf(file, "%s %u\n", f->op, golden_words_out(f));
        fwrite(got, 4, LANES * golden_words_out(f), file);
        done++;
    }
    printf("%d passed, %d failed\n", done, failed);
    return fclose(file) || failed;
}

static const struct golden_form *find(const char *op) {
    for (int i = 0; i < golden_n_forms; i++)
        if (!strcmp(golden_forms[i].op, op)) return &golden_forms[i];
    return NULL;
}
static void tell(const struct golden_form *f, int lane) {
    printf("  warp %d lane %d:", lane / 32, lane % 32);
    for (uint32_t i = 0; i < golden_words_in(f); i++) printf(" %08x", in[(uint32_t)lane * GOLDEN_WORDS + i]);
    printf(", recorded");
    for (uint32_t i = 0, n = golden_words_out(f); i < n; i++) printf(" %08x", want[(uint32_t)lane * n + i]);
    printf(", now");
    for (uint32_t i = 0, n = golden_words_out(f); i < n; i++) printf(" %08x", got[(uint32_t)lane * n + i]);
    putchar('\n');
}
static int replay(const char *path) {
    FILE *file = fopen(path, "rb");
    char line[200];
    int passed = 0, failed = 0;
    if (!file || !fgets(line, sizeof line, file)) return 1;
    printf("%s", line);
    while (fgets(line, sizeof line, file)) {
        char *space = strrchr(line, ' ');
        unsigned words = space ? (unsigned)strtoul(space + 1, NULL, 10) : 0;
        if (!words || words > MOST_OUT || fread(want, 4, (size_t)LANES * words, file) != (size_t)LANES * words) {
            printf("%s is damaged\n", path);
            failed++;
            break;
        }
        *space = 0;
        const struct golden_form *f = find(line);
        double worst = 0;
        int first = -1, r, bad = LANES;
        if (!f || golden_words_out(f) != words) {
            printf("%s: no such form any more\n", line);
            failed++;
            continue;
        }
        golden_inputs(f, in);
        r = execute(f, in, got);
        if (!r) bad = golden_compare(f, in, want, got, &worst, &first);
        if (f->kind >= G_ULP || bad)
            printf("%-34s %s, at most %.2f of its bound\n", f->op, bad ? "DIFFERS" : "ok", worst);
        if (r) printf("%s: error %d of the driver\n", f->op, r);
        if (!r && bad) printf("  %d of %d lanes\n", bad, LANES), tell(f, first);
        if (bad || r)
            failed++;
        else
            passed++;
    }
    fclose(file);
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}

int main(int argc, char **argv) {
    char name[100] = "", text[16384];
    if (argc == 2 && !strcmp(argv[1], "ptx")) {
        for (int i = 0; i < golden_n_forms; i++)
            if (!golden_ptx(&golden_forms[i], text, sizeof text)) printf("// FORM %s\n%s", golden_forms[i].op, text);
        return 0;
    }
    int records = argc == 4 && !strcmp(argv[1], "record");
    if (argc != 4 || (!records && strcmp(argv[1], "replay"))) {
        fprintf(stderr, "usage: golden record|replay DRIVER FILE\n");
        return 2;
    }
    if (open_driver(argv[2], name, sizeof name)) {
        fprintf(stderr, "the driver does not start\n");
        return 1;
    }
    return records ? record(argv[3], name) : replay(argv[3]);
}
