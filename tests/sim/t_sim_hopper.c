/* SPDX-License-Identifier: MIT
 * hopper_attention.cu in the simulator: right numbers and no finding under every policy and several seeds; and each of
 * its mutants found, by a finding of the kind and at the line that the mark in the source tells, or by its numbers.
 * usage: t_sim_hopper DRIVER PTX SOURCE [mutant [policy [seed]]]
 * Each run is a process of its own: a finding may leave its context unusable. */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DIM = 64, ROWS = 256, KEYS = 320, HEADS = 2, SHARED = 49664 + 128 };
struct launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned n_attributes;
};
static struct {
    int (*init)(unsigned), (*retain)(void **, int), (*push)(void *), (*alloc)(uint64_t *, size_t),
        (*load)(void **, const void *, unsigned, int *, void **), (*function)(void **, void *, const char *),
        (*set)(void *, int, int), (*launch)(const struct launch *, void *, void **, void **),
        (*down)(void *, uint64_t, size_t), (*up)(uint64_t, const void *, size_t), (*synchronize)(void),
        (*encode)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *,
                  int, int, int, int);
    const char *(*report)(uint64_t *, int);
} cu;

static int open_driver(const char *path) {
    static const struct {
        const char *name;
        void *at;
    } names[] = {{"cuInit", &cu.init},
                 {"cuDevicePrimaryCtxRetain", &cu.retain},
                 {"cuCtxPushCurrent_v2", &cu.push},
                 {"cuMemAlloc_v2", &cu.alloc},
                 {"cuModuleLoadDataEx", &cu.load},
                 {"cuModuleGetFunction", &cu.function},
                 {"cuFuncSetAttribute", &cu.set},
                 {"cuLaunchKernelEx", &cu.launch},
                 {"cuMemcpyDtoH_v2", &cu.down},
                 {"cuMemcpyHtoD_v2", &cu.up},
                 {"cuCtxSynchronize", &cu.synchronize},
                 {"cuTensorMapEncodeTiled", &cu.encode},
                 {"attnsim_report", &cu.report}};
    void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL), *context;
    for (size_t i = 0; l && i < sizeof names / sizeof *names; i++) {
        void *at = dlsym(l, names[i].name);
        if (!at && strcmp(names[i].name, "attnsim_report")) return -1; /* a real driver has none */
        memcpy(names[i].at, &at, sizeof at);
    }
    return !l || cu.init(0) || cu.retain(&context, 0) || cu.push(context) ? -1 : 0;
}

/* ---- the problem ---- */

static uint16_t q[HEADS][ROWS][DIM], k[HEADS][KEYS][DIM], v[HEADS][KEYS][DIM], o[HEADS][ROWS][DIM];
static float bias[KEYS];

static float number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1;
}
static float wide(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static void fill(uint16_t *to, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        float x = number(&seed);
        uint32_t u;
        memcpy(&u, &x, 4);
        to[i] = (uint16_t)((u + 0x8000) >> 16);
    }
}
static int map_of(void *map, uint64_t at, uint64_t rows, unsigned box) {
    const uint64_t dims[3] = {DIM, rows, HEADS}, strides[2] = {DIM * 2, rows * DIM * 2};
    const unsigned extent[3] = {DIM, box, 1}, steps[3] = {1, 1, 1};
    return cu.encode(map, 9, 3, (void *)(uintptr_t)at, dims, strides, extent, steps, 0, 3, 0, 0);
}
static int upload(uint64_t *at, const void *from, size_t bytes) {
    return cu.alloc(at, bytes) || cu.up(*at, from, bytes);
}

static int compute(const char *ptx, int mutant) {
    static _Alignas(64) unsigned char maps[4][128];
    uint64_t dq, dk, dv, dout, db;
    void *module, *function;
    int keys = KEYS;
    float scale = 0.125f;
    uint64_t seed = 5;
    fill(&q[0][0][0], sizeof q / 2, 1), fill(&k[0][0][0], sizeof k / 2, 2), fill(&v[0][0][0], sizeof v / 2, 3);
    for (int i = 0; i < KEYS; i++) bias[i] = number(&seed);
    memset(o, 0xee, sizeof o);
    int r = cu.load(&module, ptx, 0, NULL, NULL);
    if (r || (r = cu.function(&function, module, "hopper_attention")) || (r = cu.set(function, 8, SHARED))) return r;
    if (upload(&dq, q, sizeof q) || upload(&dk, k, sizeof k) || upload(&dv, v, sizeof v) ||
        upload(&dout, o, sizeof o) || upload(&db, bias, sizeof bias))
        return -1;
    if ((r = map_of(maps[0], dq, ROWS, 64)) || (r = map_of(maps[1], dk, KEYS, 32)) ||
        (r = map_of(maps[2], dv, KEYS, 32)) || (r = map_of(maps[3], dout, ROWS, 64)))
        return r;
    void *params[] = {maps[0], maps[1], maps[2], maps[3], &db, &keys, &scale, &mutant};
    struct launch l = {.grid = {ROWS / 128, HEADS, 1}, .block = {384, 1, 1}, .shared_bytes = SHARED};
    if ((r = cu.launch(&l, function, params, NULL)) || (r = cu.synchronize())) return r;
    return cu.down(o, dout, sizeof o);
}

/* The largest difference from sums in double. P is rounded to 8 bits, o once more: 2^-8 of values below 1 each. */
static double difference(void) {
    double worst = 0;
    static double s[KEYS];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < ROWS; i++) {
            double top = -1e30, sum = 0;
            for (int j = 0; j < KEYS; j++) {
                s[j] = 0;
                for (int d = 0; d < DIM; d++) s[j] += (double)wide(q[h][i][d]) * (double)wide(k[h][j][d]);
                s[j] = s[j] * 0.125 + (double)bias[j];
                top = fmax(top, s[j]);
            }
            for (int j = 0; j < KEYS; j++) sum += s[j] = exp(s[j] - top);
            for (int d = 0; d < DIM; d++) {
                double x = 0;
                for (int j = 0; j < KEYS; j++) x += s[j] * (double)wide(v[h][j][d]);
                double e = fabs(x / sum - (double)wide(o[h][i][d]));
                if (!(e <= worst)) worst = isnan(e) ? INFINITY : e;
            }
        }
    return worst;
}
static const double BOUND = 2.0 / 256;

/* ---- mutants ---- */

static const struct {
    int number;
    const char *what, *kind, *mark; /* kind: word of a finding, or "numbers"; mark: in the source, at the line */
} mutants[] = {
    {1, "no wait for K", NULL, "@1 "},
    {2, "no wait for V", NULL, "@2"},
    {3, "no wait for an empty stage", NULL, "@3"},
    {4, "fewer bytes expected than come", NULL, "@4 "},
    {5, "more bytes expected than come", "deadlock", NULL},
    {6, "wrong parity of K's wait", NULL, NULL},
    {7, "no proxy fence before the store of O", "proxy", "@7 "},
    {8, "no barrier before the store of O", "race", "@8"},
    {9, "no wgmma wait before S is used", "async", "@9 "},
    {10, "no wgmma.fence", "async", "@10"},
    {11, "no commit of S", "async", "@11"},
    {12, "a stage given back before P V is done", "async", "@12"},
    {13, "wrong stride of K's descriptor", "async", "@13"},
    {14, "wrong swizzle of K's descriptor", "numbers", NULL},
    {15, "no cluster barrier after the inits", "protocol", "@15"},
    {16, "no cluster barrier at the end", NULL, "@16"},
    {17, "stages given back to the own CTA only", "deadlock", NULL},
    {18, "fewer arrivals at EMPTY than come", NULL, NULL},
    {19, "no wait for the store of O", "protocol", NULL},
    {20, "no fence after the inits", "protocol", "@20"},
    {21, "the bias announced before its copies are done", "async", "@21"},
    {22, "more registers than there are", "deadlock", "@22"},
    {23, "no wgmma wait before O is used", "async", "@23"},
    {24, "multicast beyond the cluster", "bounds", "@24"},
    {25, "wrong count of a named barrier", "deadlock", NULL},
    {26, "the bias' stage given back by one warp for all", "race", "@26"},
};

static int marked(const char *source, const char *mark, const char *text) {
    FILE *f = fopen(source, "r");
    char line[512], place[64];
    int n = 0, found = 0;
    while (f && fgets(line, sizeof line, f)) {
        n++;
        const char *at = strstr(line, "// @");
        if (!at || !strstr(at, mark)) continue;
        snprintf(place, sizeof place, "hopper_attention.cu:%d)", n);
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
static int one(char **argv, int index, const char *policy, const char *seed, int tell) {
    setenv("ATTNSIM_POLICY", policy, 1), setenv("ATTNSIM_SEED", seed, 1);
    setenv("ATTNSIM_QUIET", tell ? "0" : "1", 1);
    if (open_driver(argv[1])) return 2;
    const char *ptx = read_all(argv[2]);
    uint64_t n = 0;
    if (!ptx) return 2;
    int r = compute(ptx, index < 0 ? 0 : mutants[index].number);
    const char *text = cu.report ? cu.report(&n, 0) : "";
    double e = r ? INFINITY : difference();
    if (index < 0) {
        if (!r && !n && e <= BOUND) return 0;
        printf("FAIL right kernel, %s, seed %s: result %d, difference %g of %g, %s\n", policy, seed, r, e, BOUND, text);
        return 1;
    }
    const char *kind = mutants[index].kind, *mark = mutants[index].mark;
    char word[32];
    snprintf(word, sizeof word, "attnsim: %s%s:", kind && !strcmp(kind, "bounds") ? "out of " : "", kind ? kind : "");
    int found = !kind ? n > 0 : !strcmp(kind, "numbers") ? n > 0 || e > 4 * BOUND : strstr(text, word) != NULL;
    if (found && (!mark || marked(argv[3], mark, text))) return 0;
    printf("FAIL mutant %d (%s), %s, seed %s: wanted %s at %s; result %d, difference %g, %s\n", mutants[index].number,
           mutants[index].what, policy, seed, kind ? kind : "a finding", mark ? mark : "any line", r, e, text);
    return 1;
}
static int apart(char **argv, int index, const char *policy, const char *seed) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int r = one(argv, index, policy, seed, 0);
        fflush(stdout);
        _exit(r);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    return !WIFEXITED(status) || WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    static const char *const policies[] = {"eager", "late", "random"};
    static const char *const seeds[] = {"1", "2", "3", "4", "5", "6", "7", "8"};
    const int n = (int)(sizeof mutants / sizeof *mutants);
    int failed = 0, runs = 0;
    if (argc < 4) return 2;
    if (argc > 4) {
        int number = atoi(argv[4]), index = -1;
        for (int i = 0; i < n; i++)
            if (mutants[i].number == number) index = i;
        return one(argv, index, argc > 5 ? argv[5] : "eager", argc > 6 ? argv[6] : "1", 1);
    }
    for (int i = -1; i < n; i++)
        for (int p = 0; p < 3; p++)
            for (int s = 0; s < (p < 2 ? 1 : i < 0 ? 8 : 2); s++, runs++)
                failed += apart(argv, i, policies[p], seeds[s]);
    printf("%d mutants, %d runs, %d failed\n", n, runs, failed);
    return failed != 0;
}
