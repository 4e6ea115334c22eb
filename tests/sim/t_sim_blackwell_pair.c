/* SPDX-License-Identifier: MIT
 * blackwell_pair.cu in the simulator: right numbers and no finding under every policy and several seeds, and each of
 * its mutants found. usage: t_sim_blackwell_pair DRIVER PTX SOURCE [mutant [policy [seed]]] */
#include "kernel_mutants.h"

#include <math.h>
#include <string.h>

enum { HAVE = 400, ROWS = 256, DEPTH = 320, COLUMNS = 128, SHARED = 49280 + 16 };
static uint16_t a[HAVE][DEPTH], b[COLUMNS][DEPTH];
static int list[ROWS];
static float o[ROWS][COLUMNS];

static int map_of(void *map, uint64_t address, uint64_t rows, unsigned box) {
    const uint64_t dims[2] = {DEPTH, rows}, strides[1] = {DEPTH * 2};
    const unsigned extent[2] = {64, box}, steps[2] = {1, 1};
    return cu.encode(map, 9, 2, (void *)(uintptr_t)address, dims, strides, extent, steps, 0, 3, 0, 0);
}
static int compute(void *function, int mutant) {
    static _Alignas(64) unsigned char maps[2][128];
    uint64_t da, db, di, dout;
    int tiles = DEPTH / 64, r = cu.set(function, 8, SHARED);
    if (r) return r;
    kernel_fill(&a[0][0], sizeof a / 2, 1), kernel_fill(&b[0][0], sizeof b / 2, 2);
    for (int i = 0; i < ROWS; i++) list[i] = i * 7 * 13 % HAVE;
    memset(o, 0xee, sizeof o);
    if (kernel_upload(&da, a, sizeof a) || kernel_upload(&db, b, sizeof b) || kernel_upload(&di, list, sizeof list) ||
        kernel_upload(&dout, o, sizeof o))
        return -1;
    if ((r = map_of(maps[0], da, HAVE, 1)) || (r = map_of(maps[1], db, COLUMNS, 64))) return r;
    void *params[] = {maps[0], maps[1], &di, &dout, &tiles, &mutant};
    struct kernel_launch l = {.grid = {2, 1, 1}, .block = {192, 1, 1}, .shared_bytes = SHARED};
    if ((r = cu.launch(&l, function, params, NULL)) || (r = cu.synchronize())) return r;
    return cu.down(o, dout, sizeof o);
}
/* Sums of 320 terms in f32, in any order: (k + 1) 2^-24 of the terms' sizes. */
static double difference(void) {
    double worst = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            double x = 0, size = 0;
            for (int e = 0; e < DEPTH; e++) {
                double term = (double)kernel_wide(a[list[i]][e]) * (double)kernel_wide(b[j][e]);
                x += term, size += fabs(term);
            }
            double d = fabs(x - (double)o[i][j]) / size;
            if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        }
    return worst;
}

static const struct kernel_mutant mutants[] = {
    {1, "no wait for a stage", NULL, "@1 "},
    {2, "no wait for an empty stage", NULL, "@2"},
    {3, "no wait for D", NULL, "@3"},
    {4, "no fence after the wait for D", "proxy", "@4"},
    {5, "no wait for the load of D", "unwaited", "@5"},
    {6, "fewer bytes expected than come", NULL, NULL},
    {7, "wrong parity of the wait for a stage", NULL, "@7"},
    {8, "stages given back to CTA 0 alone", "deadlock", "@8"},
    {9, "columns of CTA 1 not given back", "protocol", NULL},
    {10, "rows in another order", "numbers", NULL},
    {11, "wrong stride of A's descriptor", NULL, "@11"},
    {12, "CTA 1 tells a barrier that may not be there", NULL, "@12"},
    {13, "CTA 1 ends before its memory was read", NULL, NULL},
    {14, "CTA 1 tells its own barrier", "deadlock", "@19"},
    {15, "columns taken for one CTA", "protocol", NULL},
    {16, "D in columns that were not allocated", "bounds", "@16"},
    {17, "lanes of another warp", "bounds", "@17"},
    {18, "both CTAs fetch the same columns of B", "numbers", NULL},
    {19, "both CTAs start the products", NULL, "@19"},
    {20, "M of 128", NULL, NULL},
};

int main(int argc, char **argv) {
    const struct kernel_test t = {
        "blackwell_pair", "b200", 321.0 / (1 << 24), mutants, sizeof mutants / sizeof *mutants, compute, difference};
    return kernel_mutants_main(argc, argv, &t);
}
