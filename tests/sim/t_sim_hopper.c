/* SPDX-License-Identifier: MIT
 * hopper_attention.cu in the simulator: right numbers and no finding under every policy and several seeds; and each of
 * its mutants found, by a finding of the kind and at the line that the mark in the source tells, or by its numbers.
 * usage: t_sim_hopper DRIVER PTX SOURCE [mutant [policy [seed]]] */
#include "kernel_mutants.h"

#include <math.h>
#include <string.h>

enum { DIM = 64, ROWS = 256, KEYS = 320, HEADS = 2, SHARED = 49664 + 128 };

static uint16_t q[HEADS][ROWS][DIM], k[HEADS][KEYS][DIM], v[HEADS][KEYS][DIM], o[HEADS][ROWS][DIM];
static float bias[KEYS];

static int map_of(void *map, uint64_t address, uint64_t rows, unsigned box) {
    const uint64_t dims[3] = {DIM, rows, HEADS}, strides[2] = {DIM * 2, rows * DIM * 2};
    const unsigned extent[3] = {DIM, box, 1}, steps[3] = {1, 1, 1};
    return cu.encode(map, 9, 3, (void *)(uintptr_t)address, dims, strides, extent, steps, 0, 3, 0, 0);
}

static int compute(void *function, int mutant) {
    static _Alignas(64) unsigned char maps[4][128];
    uint64_t dq, dk, dv, dout, db;
    int keys = KEYS;
    float scale = 0.125f;
    uint64_t seed = 5;
    kernel_fill(&q[0][0][0], sizeof q / 2, 1), kernel_fill(&k[0][0][0], sizeof k / 2, 2),
        kernel_fill(&v[0][0][0], sizeof v / 2, 3);
    for (int i = 0; i < KEYS; i++) bias[i] = kernel_number(&seed);
    memset(o, 0xee, sizeof o);
    int r = cu.set(function, 8, SHARED);
    if (r) return r;
    if (kernel_upload(&dq, q, sizeof q) || kernel_upload(&dk, k, sizeof k) || kernel_upload(&dv, v, sizeof v) ||
        kernel_upload(&dout, o, sizeof o) || kernel_upload(&db, bias, sizeof bias))
        return -1;
    if ((r = map_of(maps[0], dq, ROWS, 64)) || (r = map_of(maps[1], dk, KEYS, 32)) ||
        (r = map_of(maps[2], dv, KEYS, 32)) || (r = map_of(maps[3], dout, ROWS, 64)))
        return r;
    void *params[] = {maps[0], maps[1], maps[2], maps[3], &db, &keys, &scale, &mutant};
    struct kernel_launch l = {.grid = {ROWS / 128, HEADS, 1}, .block = {384, 1, 1}, .shared_bytes = SHARED};
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
                for (int d = 0; d < DIM; d++) s[j] += (double)kernel_wide(q[h][i][d]) * (double)kernel_wide(k[h][j][d]);
                s[j] = s[j] * 0.125 + (double)bias[j];
                top = fmax(top, s[j]);
            }
            for (int j = 0; j < KEYS; j++) sum += s[j] = exp(s[j] - top);
            for (int d = 0; d < DIM; d++) {
                double x = 0;
                for (int j = 0; j < KEYS; j++) x += s[j] * (double)kernel_wide(v[h][j][d]);
                double e = fabs(x / sum - (double)kernel_wide(o[h][i][d]));
                if (!(e <= worst)) worst = isnan(e) ? INFINITY : e;
            }
        }
    return worst;
}

/* ---- mutants ---- */

static const struct kernel_mutant mutants[] = {
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
    {19, "no wait for the store of O", "unwaited", NULL},
    {20, "no fence after the inits", "proxy", "@20"},
    {21, "the bias announced before its copies are done", "async", "@21"},
    {22, "more registers than there are", "deadlock", "@22"},
    {23, "no wgmma wait before O is used", "async", "@23"},
    {24, "multicast beyond the cluster", "bounds", "@24"},
    {25, "wrong count of a named barrier", "deadlock", NULL},
    {26, "the bias' stage given back by one warp for all", "race", "@26"},
};

int main(int argc, char **argv) {
    const struct kernel_test t = {
        "hopper_attention", "h100", 2.0 / 256, mutants, sizeof mutants / sizeof *mutants, compute, difference};
    return kernel_mutants_main(argc, argv, &t);
}
