/* SPDX-License-Identifier: MIT
 * attn_ukr_bf16.bwd_tile against the entries that it fuses, on random tiles with cut corners, rows without gradients
 * and widths of every kind: the bits of dq, dk and dv; attn_ukr_bf16.bwd_tile_f32 against double loops. Runs on tiles
 * where there are any, and everywhere in emulation. */
#include "attn.h"

#include "base/num.h"
#include "cpu/host/cpu.h"
#include "cpu/ukr/bf16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct attn_ukr_bf16 *const u = &attn_ukr_bf16_amx;

#include "ukr_tests.h"

static void fill(uint16_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = attn_num_f32_bf16((float)uniform());
}
static void *zeros(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    assert_non_null(p);
    return memset(p, 0, (size_t)bytes);
}

/* What rows see: a band of keys; a row in 23 has no gradients. */
static void see_band(int64_t rows, int64_t keys, int64_t shift, float largest, int32_t *seen, float *max,
                     float *delta) {
    for (int64_t r = 0; r < rows; r++) {
        const int64_t lo = r - shift, hi = r + 40 + shift / 2;
        int32_t *to = seen + r / 32 * 64 + r % 32;
        to[0] = (int32_t)(lo < 0 ? 0 : lo < keys ? lo : keys);
        to[32] = (int32_t)(hi < 0 ? 0 : hi < keys ? hi : keys);
        max[r] = r % 23 == 5 ? INFINITY : largest, delta[r] = r % 23 == 5 ? 0 : (float)uniform();
    }
}

/* A tile of the backward gives the bits of gemm and grad. */
static void tile_of(int64_t strips, int64_t blocks, int64_t depth, int64_t width, int64_t shift) {
    const int64_t rows = strips * ATTN_BWD_TILE, keys = blocks * ATTN_BWD_TILE;
    const int64_t most = depth > width ? depth : width;
    struct {
        uint16_t *row; /* [n][most] */
        float *transposed, *zip, *zip_transposed,
            *panels; /* [most/2][n], [n/2][most], [n/32][width][16], [n/16][width/2][16] */
    } x[4] = {{0}};  /* q, dout, k, v */
    for (int i = 0; i < 4; i++) {
        const int64_t n = i < 2 ? rows : keys, w = i % 2 ? width : depth;
        x[i].row = zeros((n * most) * 2);
        fill(x[i].row, n * most);
        x[i].transposed = zeros((n * most) * 2), x[i].zip = zeros((n * most) * 2);
        x[i].zip_transposed = zeros((n * most) * 2), x[i].panels = zeros((n * most) * 2);
        for (int64_t r = 0; r < n; r++)
            for (int64_t c = 0; c < w; c++) {
                const uint16_t value = x[i].row[r * most + c];
                ((uint16_t *)(void *)x[i].transposed)[(c / 2 * n + r) * 2 + c % 2] = value;
                ((uint16_t *)(void *)x[i].zip)[(r / 2 * most + c) * 2 + r % 2] = value;
                ((uint16_t *)(void *)x[i].zip_transposed)[((r / 32 * w + c) * 16 + r % 32 / 2) * 2 + r % 2] = value;
                ((uint16_t *)(void *)x[i].panels)[(r / 16 * w / 2 * 16 + c / 2 * 16 + r % 16) * 2 + c % 2] = value;
            }
    }
    int32_t *seen = zeros(rows * 8);
    float *max = zeros(rows * 4), *delta = zeros(rows * 4), *got[3], *want[3];
    float *s = zeros(4 * 4096), *part[3], *ss = zeros((rows * keys) * 4), *dp = zeros((rows * keys) * 4);
    float *p_zip = zeros((rows * keys) * 2), *ds_zip = zeros((rows * keys) * 2);
    uint16_t *ds = zeros((rows * keys) * 2);
    for (int i = 0; i < 3; i++) {
        part[i] = zeros(rows * keys * 2);
        got[i] = zeros(((i ? keys : rows) * most) * 4);
        want[i] = zeros(((i ? keys : rows) * most) * 4);
        for (int64_t element = 0; element < (i ? keys : rows) * most; element++) want[i][element] = (float)uniform();
        memcpy(got[i], want[i], (size_t)((i ? keys : rows) * most) * 4);
    }
    for (int i = 1; i < 3; i++) { /* dk, dv transposed */
        const int64_t w = i == 1 ? depth : width;
        for (int64_t k = 0; k < keys; k++)
            for (int64_t c = 0; c < w; c++) got[i][(k / 32 * w + c) * 32 + k % 32] = want[i][k * most + c];
    }
    see_band(rows, keys, shift, 3, seen, max, delta);
    u->gemm(rows, keys, depth / 2, (float *)(void *)x[0].row, most / 2, 1, x[2].transposed, keys, ss, keys, 0);
    u->gemm(rows, keys, width / 2, (float *)(void *)x[1].row, most / 2, 1, x[3].transposed, keys, dp, keys, 0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < keys; k++)
            if (k < seen[r / 32 * 64 + r % 32] || k >= seen[r / 32 * 64 + 32 + r % 32]) ss[r * keys + k] = -INFINITY;
    for (int64_t r = 0; r < rows; r += 2) {
        const struct attn_bwd_row two[2] = {
            {ss + r * keys, dp + r * keys, max[r], delta[r], ds + r * keys},
            {ss + (r + 1) * keys, dp + (r + 1) * keys, max[r + 1], delta[r + 1], ds + (r + 1) * keys}};
        u->bwd_rows(p_zip + r / 2 * keys, ds_zip + r / 2 * keys, &two[0], &two[1], keys, 0.3f);
    }
    u->gemm(rows, depth, keys / 2, (float *)(void *)ds, keys / 2, 1, x[2].zip, most, want[0], most, 1);
    u->gemm(keys, depth, rows / 2, ds_zip, 1, keys, x[0].zip, most, want[1], most, 1);
    u->gemm(keys, width, rows / 2, p_zip, 1, keys, x[1].zip, most, want[2], most, 1);
    const struct attn_bwd_tile t = {.strips = strips,
                                    .blocks = blocks,
                                    .depth = depth,
                                    .width = width,
                                    .q = (float *)(void *)x[0].row,
                                    .dout = (float *)(void *)x[1].row,
                                    .ldq = most / 2,
                                    .ldo = most / 2,
                                    .q_transposed = x[0].zip_transposed,
                                    .dout_transposed = x[1].zip_transposed,
                                    .kt = x[2].panels,
                                    .vt = x[3].panels,
                                    .k_zip = x[2].zip,
                                    .ldk = most,
                                    .seen = seen,
                                    .max = max,
                                    .delta = delta,
                                    .factor = 0.3f,
                                    .dq = got[0],
                                    .ldd = most,
                                    .dk = got[1],
                                    .dv = got[2],
                                    .s = s,
                                    .p = part[0],
                                    .ds = part[1],
                                    .ds_rows = part[2]};
    u->bwd_tile(&t);
    for (int64_t element = 0; element < rows * most; element++) assert_true(got[0][element] == want[0][element]);
    for (int i = 1; i < 3; i++) {
        const int64_t w = i == 1 ? depth : width;
        for (int64_t k = 0; k < keys; k++)
            for (int64_t c = 0; c < w; c++)
                assert_true(got[i][(k / 32 * w + c) * 32 + k % 32] == want[i][k * most + c]);
    }
    for (int i = 0; i < 3; i++) free(part[i]), free(got[i]), free(want[i]);
    for (int i = 0; i < 4; i++)
        free(x[i].row), free(x[i].transposed), free(x[i].zip), free(x[i].zip_transposed), free(x[i].panels);
    free(seen), free(max), free(delta), free(s), free(ss), free(dp), free(p_zip), free(ds_zip), free(ds);
}
static void test_tile(void **unused) {
    (void)unused;
    tile_of(1, 1, 32, 32, 0);
    tile_of(4, 3, 64, 64, 1000);
    tile_of(3, 5, 128, 128, 20);
    tile_of(5, 4, 96, 160, 30);
    tile_of(2, 6, 64, 32, 1000);
}

/* x, [n][width], as operands of bwd_tile_f32: as it is and transposed. */
static void split_all(const float *x, int64_t n, int64_t width, float *to, int down, float *transposed,
                      int transposed_down) {
    float square[32 * 32];
    for (int64_t r = 0; r < n; r += 32)
        for (int64_t c = 0; c < width; c += 32) {
            const int64_t block = (r * width / 32 + c) / 32 * ATTN_BWD_SPLIT;
            if (to) u->split_block(to + block, x + r * width + c, width, down);
            for (int64_t i = 0; i < 32; i++)
                for (int64_t j = 0; j < 32; j++) square[j * 32 + i] = x[(r + i) * width + c + j];
            u->split_block(transposed + block, square, 32, transposed_down);
        }
}
static void add(double *to, float *most, double term) { *to += term, *most += (float)fabs(term); }

/* A tile of f32 within a few roundings of the sum of its terms' sizes. */
static void tile_f32_of(int64_t strips, int64_t blocks, int64_t depth, int64_t width, int64_t shift) {
    const int64_t rows = strips * 32, keys = blocks * 32, n[] = {rows, rows, keys, keys};
    const int64_t w[] = {depth, width, depth, width}, cells = strips * blocks * ATTN_BWD_SPLIT;
    float *x[4], *along[4], *transposed[4], *part[3], *got[3], *size[3], *s = zeros(4 * 4096);
    double *want[3], worst = 0;
    int32_t *seen = zeros(rows * 8);
    float *top = zeros(rows * 4), *delta = zeros(rows * 4);
    for (int i = 0; i < 4; i++) {
        x[i] = zeros(n[i] * w[i] * 4), along[i] = zeros(n[i] * w[i] * 6), transposed[i] = zeros(n[i] * w[i] * 6);
        for (int64_t element = 0; element < n[i] * w[i]; element++) x[i][element] = (float)uniform();
        split_all(x[i], n[i], w[i], along[i], i >= 2, transposed[i], i >= 2);
    }
    const int64_t sums[] = {rows * depth, keys * depth, keys * width};
    for (int i = 0; i < 3; i++) {
        part[i] = zeros(cells * 4), got[i] = zeros(sums[i] * 4);
        want[i] = zeros(sums[i] * 8), size[i] = zeros(sums[i] * 4);
        for (int64_t element = 0; element < sums[i]; element++) got[i][element] = 0.25f;
    }
    see_band(rows, keys, shift, 1, seen, top, delta);
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *to = seen + r / 32 * 64 + r % 32;
        for (int64_t k = to[0]; k < to[32]; k++) {
            double score = 0, dp = 0;
            for (int64_t c = 0; c < depth; c++) score += (double)x[0][r * depth + c] * (double)x[2][k * depth + c];
            for (int64_t c = 0; c < width; c++) dp += (double)x[1][r * width + c] * (double)x[3][k * width + c];
            const double p = exp2(score * (double)0.3f - (double)top[r]), ds = p * (dp - (double)delta[r]);
            for (int64_t c = 0; c < depth; c++) {
                const int64_t element[] = {r * depth + c, (k / 32 * depth + c) * 32 + k % 32};
                add(&want[0][element[0]], &size[0][element[0]], ds * (double)x[2][k * depth + c]);
                add(&want[1][element[1]], &size[1][element[1]], ds * (double)x[0][r * depth + c]);
            }
            for (int64_t c = 0; c < width; c++) {
                const int64_t element = (k / 32 * width + c) * 32 + k % 32;
                add(&want[2][element], &size[2][element], p * (double)x[1][r * width + c]);
            }
        }
    }
    const struct attn_bwd_tile t = {.strips = strips,
                                    .blocks = blocks,
                                    .depth = depth,
                                    .width = width,
                                    .q = along[0],
                                    .dout = along[1],
                                    .q_transposed = transposed[0],
                                    .dout_transposed = transposed[1],
                                    .kt = transposed[2],
                                    .vt = transposed[3],
                                    .k_zip = along[2],
                                    .seen = seen,
                                    .max = top,
                                    .delta = delta,
                                    .factor = 0.3f,
                                    .dq = got[0],
                                    .ldd = depth,
                                    .dk = got[1],
                                    .dv = got[2],
                                    .s = s,
                                    .p = part[0],
                                    .ds = part[1],
                                    .ds_rows = part[2]};
    u->bwd_tile_f32(&t);
    for (int i = 0; i < 3; i++)
        for (int64_t element = 0; element < sums[i]; element++)
            worst = fmax(worst,
                         fabs((double)got[i][element] - 0.25 - want[i][element]) / ((double)size[i][element] + 0.25));
    printf("relative error of a sum %.2e\n", worst);
    assert_true(worst > 1e-9 && worst < 2e-6);
    for (int i = 0; i < 3; i++) free(part[i]), free(got[i]), free(want[i]), free(size[i]);
    for (int i = 0; i < 4; i++) free(x[i]), free(along[i]), free(transposed[i]);
    free(s), free(seen), free(top), free(delta);
}
static void test_tile_f32(void **unused) {
    (void)unused;
    tile_f32_of(1, 1, 32, 32, 0);
    tile_f32_of(4, 3, 64, 64, 1000);
    tile_f32_of(3, 5, 128, 128, 20);
    tile_f32_of(5, 4, 96, 160, 30);
    tile_f32_of(2, 6, 64, 32, 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tile), cmocka_unit_test(test_tile_f32)};
    return RUN_ON_TILES(tests);
}
