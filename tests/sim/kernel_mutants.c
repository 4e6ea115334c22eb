/* SPDX-License-Identifier: MIT
 * See kernel_mutants.h. */
#include "kernel_mutants.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct kernel_driver cu;

int kernel_open_driver(const char *path) {
    char why[300];
    void *context;
    return kernel_driver_open(&cu, path, why, sizeof why) || cu.init(0) || cu.retain(&context, 0) || cu.push(context)
               ? -1
               : 0;
}

float kernel_number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1;
}
float kernel_wide(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
void kernel_fill(uint16_t *to, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        float x = kernel_number(&seed);
        uint32_t u;
        memcpy(&u, &x, 4);
        to[i] = (uint16_t)((u + 0x8000) >> 16);
    }
}
int kernel_upload(uint64_t *address, const void *from, size_t bytes) {
    return cu.alloc(address, bytes) || cu.up(*address, from, bytes);
}

static int marked(const char *source, const char *mark, const char *text) {
    const char *base = strrchr(source, '/');
    FILE *f = fopen(source, "r");
    char line[512], place[128];
    int n = 0, found = 0;
    while (f && fgets(line, sizeof line, f)) {
        n++;
        const char *comment = strstr(line, "// @");
        if (!comment || !strstr(comment, mark)) continue;
        snprintf(place, sizeof place, "%s:%d)", base ? base + 1 : source, n);
        found |= strstr(text, place) != NULL;
    }
    if (f) fclose(f);
    return found;
}

static char *read_all(const char *path) {
    static char text[1 << 19];
    FILE *f = fopen(path, "r");
    if (!f) return NULL;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* 0: as it should be. */
static int one(char **argv, const struct kernel_test *t, int index, const char *policy, const char *seed, int tell) {
    setenv("ATTNSIM_POLICY", policy, 1), setenv("ATTNSIM_SEED", seed, 1);
    setenv("ATTNSIM_QUIET", tell ? "0" : "1", 1), setenv("ATTNSIM_GPU", t->gpu, 1);
    if (kernel_open_driver(argv[1])) return 2;
    const char *ptx = read_all(argv[2]);
    uint64_t n = 0;
    if (!ptx) return 2;
    void *module, *function;
    int r = cu.load(&module, ptx, 0, NULL, NULL);
    if (!r) r = cu.function(&function, module, t->name);
    if (!r) r = t->compute(function, index < 0 ? 0 : t->mutants[index].number);
    const char *text = cu.report ? cu.report(&n, 0) : "";
    double e = r ? INFINITY : t->difference();
    if (index < 0) {
        if (!r && !n && e <= t->bound) return 0;
        printf("FAIL right kernel, %s, seed %s: result %d, difference %g of %g, %s\n", policy, seed, r, e, t->bound,
               text);
        return 1;
    }
    const char *kind = t->mutants[index].kind, *mark = t->mutants[index].mark;
    char word[32];
    snprintf(word, sizeof word, "attnsim: %s%s:", kind && !strcmp(kind, "bounds") ? "out of " : "", kind ? kind : "");
    int found = !kind ? n > 0 : !strcmp(kind, "numbers") ? n > 0 || e > 4 * t->bound : strstr(text, word) != NULL;
    if (found && (!mark || marked(argv[3], mark, text))) return 0;
    printf("FAIL mutant %d (%s), %s, seed %s: wanted %s at %s; result %d, difference %g, %s\n",
           t->mutants[index].number, t->mutants[index].what, policy, seed, kind ? kind : "a finding",
           mark ? mark : "any line", r, e, text);
    return 1;
}
static int apart(char **argv, const struct kernel_test *t, int index, const char *policy, const char *seed) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int r = one(argv, t, index, policy, seed, 0);
        fflush(stdout);
        _exit(r);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    return !WIFEXITED(status) || WEXITSTATUS(status);
}

int kernel_mutants_main(int argc, char **argv, const struct kernel_test *t) {
    static const char *const policies[] = {"eager", "late", "random"};
    static const char *const seeds[] = {"1", "2", "3", "4", "5", "6", "7", "8"};
    const int n = t->n;
    int failed = 0, runs = 0;
    if (argc < 4) return 2;
    setenv("ATTNSIM_FENCES", "2", 0), setenv("ATTNSIM_WAITS", "2", 0);
    if (argc > 4) {
        int number = atoi(argv[4]), index = -1;
        for (int i = 0; i < n; i++)
            if (t->mutants[i].number == number) index = i;
        return one(argv, t, index, argc > 5 ? argv[5] : "eager", argc > 6 ? argv[6] : "1", 1);
    }
    for (int i = -1; i < n; i++)
        for (int p = 0; p < 3; p++)
            for (int s = 0; s < (p < 2 ? 1 : i < 0 ? 8 : 2); s++, runs++)
                failed += apart(argv, t, i, policies[p], seeds[s]);
    printf("%d mutants, %d runs, %d failed\n", n, runs, failed);
    return failed != 0;
}

int kernel_cases_main(int argc, char **argv, int n, int (*run)(const char *driver, int i)) {
    static const char *const policies[] = {"eager", "late", "random"};
    int failed = 0;
    if (argc < 2) return 2;
    setenv("ATTNSIM_FENCES", "2", 0), setenv("ATTNSIM_WAITS", "2", 0); /* what the letter lacks is a fault */
    for (int i = 0; i < n; i++)
        for (int p = 0; p < 3; p++) {
            setenv("ATTNSIM_POLICY", policies[p], 1);
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                int r = run(argv[1], i);
                if (r < 0) printf("FAIL kernel %d: the driver\n", i);
                fflush(stdout);
                _exit(r != 0);
            }
            int status = 1;
            if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) failed++;
        }
    printf("%d kernels under three policies, %d runs failed\n", n, failed);
    return failed != 0;
}
