/* SPDX-License-Identifier: MIT
 * blackwell_products.cu in the simulator: right numbers and no finding under every policy and several seeds, and each
 * of its mutants found. usage: t_sim_blackwell_products DRIVER PTX SOURCE [mutant [policy [seed]]] */
#include "kernel_mutants.h"

#include <math.h>
#include <string.h>

enum { ROWS = 128, DEPTH = 320, WIDTH = 64, SHARED = 82048 + 16 };
static const float scale = 0.125f;
static uint16_t a[ROWS][DEPTH], b[ROWS][DEPTH], v[ROWS][WIDTH];
static float o[ROWS][WIDTH];

static int map_of(void *map, uint64_t address, uint64_t columns) {
    const uint64_t dims[2] = {columns, ROWS}, strides[1] = {columns * 2};
    const unsigned extent[2] = {64, ROWS}, steps[2] = {1, 1};
    return cu.encode(map, 9, 2, (void *)(uintptr_t)address, dims, strides, extent, steps, 0, 3, 0, 0);
}
static int compute(void *function, int mutant) {
    static _Alignas(64) unsigned char maps[3][128];
    uint64_t da, db, dv, dout;
    int tiles = DEPTH / 64, r = cu.set(function, 8, SHARED);
    if (r) return r;
    kernel_fill(&a[0][0], sizeof a / 2, 1), kernel_fill(&b[0][0], sizeof b / 2, 2),
        kernel_fill(&v[0][0], sizeof v / 2, 3);
    memset(o, 0xee, sizeof o);
    if (kernel_upload(&da, a, sizeof a) || kernel_upload(&db, b, sizeof b) || kernel_upload(&dv, v, sizeof v) ||
        kernel_upload(&dout, o, sizeof o))
        return -1;
    if ((r = map_of(maps[0], da, DEPTH)) || (r = map_of(maps[1], db, DEPTH)) || (r = map_of(maps[2], dv, WIDTH)))
        return r;
    float s = scale;
    void *params[] = {maps[0], maps[1], maps[2], &dout, &tiles, &s, &mutant};
    struct kernel_launch l = {.grid = {1, 1, 1}, .block = {192, 1, 1}, .shared_bytes = SHARED};
    if ((r = cu.launch(&l, function, params, NULL)) || (r = cu.synchronize())) return r;
    return cu.down(o, dout, sizeof o);
}
/* P is rounded to 8 bits; its values are below 8 in size, and 128 of them meet v below 1. */
static double difference(void) {
    double worst = 0;
    for (int i = 0; i < ROWS; i++) {
        double p[ROWS], size = 0;
        for (int j = 0; j < ROWS; j++) {
            p[j] = 0;
            for (int k = 0; k < DEPTH; k++) p[j] += (double)kernel_wide(a[i][k]) * (double)kernel_wide(b[j][k]);
            p[j] *= (double)scale;
            size += fabs(p[j]);
        }
        for (int d = 0; d < WIDTH; d++) {
            double x = 0;
            for (int j = 0; j < ROWS; j++) x += p[j] * (double)kernel_wide(v[j][d]);
            double e = fabs(x - (double)o[i][d]) / size;
            if (!(e <= worst)) worst = isnan(e) ? INFINITY : e;
        }
    }
    return worst;
}

static const struct kernel_mutant mutants[] = {
    {1, "no wait for a stage", NULL, "@1 "},
    {2, "no wait for an empty stage", NULL, "@2"},
    {3, "no wait for S", NULL, "@3"},
    {4, "no fence after the wait for S", "proxy", "@4"},
    {5, "no wait for the load of S", "unwaited", "@5"},
    {6, "no wait for the store of P", "async", "@6"},
    {7, "no fence before P is told", "proxy", "@7"},
    {8, "no fence after the wait for P", "proxy", "@8"},
    {9, "wrong stride of B's descriptor", NULL, "@9"},
    {10, "V taken with the wrong order", "numbers", NULL},
    {11, "columns not given back", "protocol", NULL},
    {12, "columns that were not allocated", "bounds", "@12"},
    {13, "stages not given back", "deadlock", "@13"},
    {14, "lanes of another warp", "bounds", "@14"},
    {15, "two threads start a product", "divergence", "@15"},
    {16, "more bytes expected than come", "deadlock", "@16"},
    {17, "no fence before the columns are given back", "proxy", "@17"},
};

int main(int argc, char **argv) {
    const struct kernel_test t = {
        "blackwell_products", "b200", 1.0 / 256, mutants, sizeof mutants / sizeof *mutants, compute, difference};
    return kernel_mutants_main(argc, argv, &t);
}
