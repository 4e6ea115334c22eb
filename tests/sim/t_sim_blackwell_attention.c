/* SPDX-License-Identifier: MIT
 * blackwell_attention.cu in the simulator: right numbers and no finding under every policy and several seeds, and each
 * of its mutants found. usage: t_sim_blackwell_attention DRIVER PTX SOURCE [mutant [policy [seed]]] */
#include "kernel_mutants.h"

#include <math.h>
#include <string.h>

enum { ROWS = 128, KEYS = 320, WIDTH = 64, SHARED = 49280 + 16 };
static const float scale = 0.7f;
static uint16_t q[ROWS][WIDTH], k[KEYS][WIDTH], v[KEYS][WIDTH];
static float o[ROWS][WIDTH];

static int map_of(void *map, uint64_t address, uint64_t rows, unsigned box) {
    const uint64_t dims[2] = {WIDTH, rows}, strides[1] = {WIDTH * 2};
    const unsigned extent[2] = {WIDTH, box}, steps[2] = {1, 1};
    return cu.encode(map, 9, 2, (void *)(uintptr_t)address, dims, strides, extent, steps, 0, 3, 0, 0);
}
static int compute(void *function, int mutant) {
    static _Alignas(64) unsigned char maps[3][128];
    uint64_t dq, dk, dv, dout;
    int tiles = KEYS / 64, r = cu.set(function, 8, SHARED);
    if (r) return r;
    kernel_fill(&q[0][0], sizeof q / 2, 1), kernel_fill(&k[0][0], sizeof k / 2, 2),
        kernel_fill(&v[0][0], sizeof v / 2, 3);
    memset(o, 0xee, sizeof o);
    if (kernel_upload(&dq, q, sizeof q) || kernel_upload(&dk, k, sizeof k) || kernel_upload(&dv, v, sizeof v) ||
        kernel_upload(&dout, o, sizeof o))
        return -1;
    if ((r = map_of(maps[0], dq, ROWS, ROWS)) || (r = map_of(maps[1], dk, KEYS, 64)) ||
        (r = map_of(maps[2], dv, KEYS, 64)))
        return r;
    float s = scale;
    void *params[] = {maps[0], maps[1], maps[2], &dout, &tiles, &s, &mutant};
    struct kernel_launch l = {.grid = {1, 1, 1}, .block = {192, 1, 1}, .shared_bytes = SHARED};
    if ((r = cu.launch(&l, function, params, NULL)) || (r = cu.synchronize())) return r;
    return cu.down(o, dout, sizeof o);
}
/* P is rounded to 8 bits: 2^-9 of each of its terms, and as much again for exp2 and the sums. */
static double difference(void) {
    double worst = 0;
    for (int i = 0; i < ROWS; i++) {
        double p[KEYS], most = -INFINITY, sum = 0;
        for (int j = 0; j < KEYS; j++) {
            p[j] = 0;
            for (int e = 0; e < WIDTH; e++) p[j] += (double)kernel_wide(q[i][e]) * (double)kernel_wide(k[j][e]);
            p[j] *= (double)scale;
            if (p[j] > most) most = p[j];
        }
        for (int j = 0; j < KEYS; j++) sum += p[j] = exp2(p[j] - most);
        for (int e = 0; e < WIDTH; e++) {
            double x = 0, size = 0;
            for (int j = 0; j < KEYS; j++) {
                x += p[j] / sum * (double)kernel_wide(v[j][e]);
                size += p[j] / sum * fabs((double)kernel_wide(v[j][e]));
            }
            double d = fabs(x - (double)o[i][e]) / size;
            if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        }
    }
    return worst;
}

static const struct kernel_mutant mutants[] = {
    {1, "no wait for K", NULL, "@1 "},
    {2, "no wait for V", NULL, "@2 "},
    {3, "no wait for an empty stage of K", NULL, "@3"},
    {4, "no wait for an empty stage of V", NULL, "@4"},
    {5, "no wait for S", NULL, "@5"},
    {6, "wrong parity of the wait for S", NULL, NULL},
    {7, "no fence after the wait for S", "proxy", "@7"},
    {8, "no wait for the load of S", "unwaited", "@8"},
    {9, "no fence before S is free", "proxy", "@9"},
    {10, "S written before it is free", NULL, "@10"},
    {11, "no wait for O before it is scaled", NULL, "@11"},
    {12, "no wait for the load of O", "unwaited", "@12"},
    {13, "no wait for the stores of O and P", "async", "@13"},
    {14, "no wait for the store of P", "async", "@14"},
    {15, "no fence before P is told", "proxy", "@15"},
    {16, "no fence after the wait for P", "proxy", "@16"},
    {17, "no wait for P", NULL, "@17"},
    {18, "lanes of another warp", "bounds", "@18"},
    {19, "P at another column", "uninitialised", "@19"},
    {20, "columns not given back", "protocol", NULL},
    {21, "fewer bytes expected than come", NULL, NULL},
    {22, "stages of K not given back", "deadlock", "@22"},
    {23, "no wait for O at the end", NULL, "@23"},
    {24, "no fence after the last wait for O", "proxy", "@24"},
    {25, "no fence before the columns are given back", "proxy", "@25"},
    {26, "V taken with the wrong order", "numbers", NULL},
    {27, "P told by too few threads", NULL, NULL},
    {28, "O not scaled when the maximum grows", "numbers", NULL},
    {29, "the first product adds to what O held", "uninitialised", "@29"},
    {30, "no fence after the barriers' init", NULL, "@30"},
    {31, "O in columns that were not allocated", "bounds", "@31"},
    {32, "stages of V not given back", "deadlock", NULL},
};

int main(int argc, char **argv) {
    const struct kernel_test t = {
        "blackwell_attention", "b200", 1.0 / 256, mutants, sizeof mutants / sizeof *mutants, compute, difference};
    return kernel_mutants_main(argc, argv, &t);
}
