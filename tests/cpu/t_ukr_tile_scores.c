/* SPDX-License-Identifier: MIT
 * attn_ukr_bf16.bwd_tile with scores that need more than a factor, one feature at a time and together, against double
 * loops: dq, dk and dv within what P and dS lose as numbers of bf16. Runs on tiles where there are any, and everywhere
 * in emulation. */
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

#define LOG2_E 1.44269504088896340736
enum { MOST_ROWS = 160, MOST_KEYS = 224, MOST_WIDE = 160 };

static void *zeros(int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    assert_non_null(p);
    return memset(p, 0, (size_t)bytes);
}

struct what {
    int caps, alibi, mask, weighs;
    float scale;
};
/* Operands of a tile: rows as they are, transposed in pairs of rows, panels, zipped. */
struct operand {
    uint16_t *row;
    float *zip, *transposed, *panels;
};
static struct operand make(int64_t n, int64_t most, int64_t w) {
    struct operand x = {zeros(n * most * 2), zeros(n * most * 2), zeros(n * most * 2), zeros(n * most * 2)};
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < w; c++) {
            const uint16_t value = attn_num_f32_bf16((float)uniform());
            x.row[r * most + c] = value;
            ((uint16_t *)(void *)x.zip)[(r / 2 * most + c) * 2 + r % 2] = value;
            ((uint16_t *)(void *)x.transposed)[((r / 32 * w + c) * 16 + r % 32 / 2) * 2 + r % 2] = value;
            ((uint16_t *)(void *)x.panels)[(r / 16 * w / 2 * 16 + c / 2 * 16 + r % 16) * 2 + c % 2] = value;
        }
    return x;
}
static double dot(const uint16_t *a, const uint16_t *b, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += (double)attn_num_bf16_f32(a[c]) * (double)attn_num_bf16_f32(b[c]);
    return sum;
}

/* Of some rows an additive mask hides every key by one low number, which is their max: two roundings of 2^30 apart from
 * each other would make probabilities of 2^64. */
static float low_of(int kind, int64_t r) {
    if (r % 19 != 7 || kind <= ATTN_UKR_MASK_BITS) return 0;
    return kind == ATTN_UKR_MASK_F16 ? -65504 : r % 2 ? -998244352 : -0x1.fep127f;
}
/* Cells of a mask: about a third hidden, whole stretches of keys for some rows. */
static void fill_mask(int kind, int64_t rows, int64_t keys, char *cells, int64_t bytes, double *value) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < keys; k++) {
            const int kept = uniform() > -0.3 && !(r / 32 == 1 && k / 32 == 2) && !(r < 32 && k < 64);
            char *const cell = cells + (r * keys + k) * bytes;
            const float low = low_of(kind, r), any = (float)(3 * uniform());
            const float add = !kept ? -INFINITY : low < 0 ? low : any;
            const uint16_t half = kind == ATTN_UKR_MASK_F16 ? attn_num_f32_f16(add) : attn_num_f32_bf16(add);
            double *const to = &value[r * keys + k];
            *to = 0;
            switch (kind) {
            case ATTN_UKR_MASK_BITS: *cell = (char)(kept ? 1 + r % 5 : 0), *to = kept ? 0 : -INFINITY; break;
            case ATTN_UKR_MASK_F32: memcpy(cell, &add, 4), *to = (double)add; break;
            case ATTN_UKR_MASK_F16: memcpy(cell, &half, 2), *to = (double)attn_num_f16_f32(half); break;
            case ATTN_UKR_MASK_BF16: memcpy(cell, &half, 2), *to = (double)attn_num_bf16_f32(half); break;
            default: break;
            }
        }
}

static void tile_of(const struct what *f, int64_t strips, int64_t blocks, int64_t depth, int64_t width, int64_t cells,
                    int64_t shift) {
    static const int64_t bytes_of[] = {0, 1, 4, 2, 2};
    const int64_t rows = strips * 32, keys = blocks * 32, bytes = bytes_of[f->mask],
                  most = depth > width ? depth : width;
    const int64_t n[] = {rows, rows, keys, keys}, sums[] = {rows * most, keys * depth, keys * width};
    struct operand x[4];
    float *got[3], *part[3], *s = zeros(4 * 4096), slope[MOST_ROWS], origin[MOST_ROWS], near[MOST_ROWS];
    float weight[MOST_ROWS], max[MOST_ROWS], delta[MOST_ROWS];
    double *want[3], *size[3], *value = zeros(rows * keys * 8), worst = 0;
    int32_t *seen = zeros(rows * 8);
    const char *cell[MOST_ROWS];
    char *mask = zeros(rows * keys * 4 + 64);
    uint32_t *bits = zeros(rows * blocks * 4);
    for (int i = 0; i < 4; i++) x[i] = make(n[i], most, i % 2 ? width : depth);
    for (int i = 0; i < 3; i++) {
        got[i] = zeros(sums[i] * 4), want[i] = zeros(sums[i] * 8), size[i] = zeros(sums[i] * 8);
        part[i] = zeros(rows * keys * 2);
    }
    fill_mask(f->mask, rows, cells, mask, bytes, value);
    const double cap = 2;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t lo = r - shift, hi = r + 40 + shift / 2;
        const int dead = r % 23 == 5 || (shift < 1000 && r / 32 == 2);
        int32_t *to = seen + r / 32 * 64 + r % 32;
        to[0] = (int32_t)(dead || lo < 0 ? 0 : lo < cells ? lo : cells);
        to[32] = (int32_t)(dead || hi < 0 ? 0 : hi < cells ? hi : cells);
        const float low = low_of(f->mask, r);
        max[r] = dead ? INFINITY : low < 0 ? low : 2.5f, delta[r] = dead ? 0 : (float)uniform();
        slope[r] = (float)(0.1 * uniform()), origin[r] = (float)(r - 20), near[r] = f->alibi == 2 ? (float)(r % 3) : 0;
        weight[r] = (float)(0.75 + 0.25 * uniform());
        cell[r] = mask + r * cells * bytes;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = seen[r / 32 * 64 + r % 32]; k < seen[r / 32 * 64 + 32 + r % 32]; k++) {
            const uint16_t *q = x[0].row + r * most, *dout = x[1].row + r * most, *key = x[2].row + k * most;
            const double product = dot(q, key, depth) * (double)f->scale, t = tanh(product / cap);
            double score = (f->caps ? cap * t : product) * LOG2_E, from = (double)k - (double)origin[r];
            if (f->alibi) score += (double)slope[r] * ((f->alibi == 2 ? fabs(from) : from) - (double)near[r]);
            const double past = value[r * cells + k] - (double)max[r];
            score += f->mask > ATTN_UKR_MASK_BITS ? past * LOG2_E : past;
            const double p = exp2(score), g = f->weighs ? (double)weight[r] : 1;
            const double dp = g * dot(dout, x[3].row + k * most, width), chain = f->caps ? 1 - t * t : 1;
            const double ds = p * (dp - (double)delta[r]) * chain;
            /* what dp - delta loses, too */
            const double about = fabs(ds) + 0x1p-12 * p * chain * (fabs(dp) + fabs((double)delta[r]));
            for (int64_t c = 0; c < depth; c++) {
                const double kc = (double)attn_num_bf16_f32(key[c]), qc = (double)attn_num_bf16_f32(q[c]);
                const int64_t element = (k / 32 * depth + c) * 32 + k % 32;
                want[0][r * most + c] += ds * kc, size[0][r * most + c] += about * fabs(kc);
                want[1][element] += ds * qc, size[1][element] += about * fabs(qc);
            }
            for (int64_t c = 0; c < width; c++) {
                const double term = p * g * (double)attn_num_bf16_f32(dout[c]);
                const int64_t element = (k / 32 * width + c) * 32 + k % 32;
                want[2][element] += term, size[2][element] += fabs(term);
            }
        }
    const struct attn_bwd_score_mod score = {.caps = f->caps,
                                             .cap = attn_softcap_of(cap, (double)f->scale),
                                             .alibi = f->alibi,
                                             .slope = slope,
                                             .origin = origin,
                                             .near = near,
                                             .weight = f->weighs ? weight : NULL,
                                             .mask = f->mask,
                                             .mask_bytes = bytes,
                                             .mask_keys = cells,
                                             .cell = cell,
                                             .next = cell,
                                             .bits = bits};
    const struct attn_bwd_tile t = {.strips = strips,
                                    .blocks = blocks,
                                    .depth = depth,
                                    .width = width,
                                    .q = (float *)(void *)x[0].row,
                                    .dout = (float *)(void *)x[1].row,
                                    .ldq = most / 2,
                                    .ldo = most / 2,
                                    .q_transposed = x[0].transposed,
                                    .dout_transposed = x[1].transposed,
                                    .kt = x[2].panels,
                                    .vt = x[3].panels,
                                    .k_zip = x[2].zip,
                                    .ldk = most,
                                    .seen = seen,
                                    .max = max,
                                    .delta = delta,
                                    .score = &score,
                                    .factor = (float)((f->caps ? 1 : (double)f->scale) * LOG2_E),
                                    .dq = got[0],
                                    .ldd = most,
                                    .dk = got[1],
                                    .dv = got[2],
                                    .s = s,
                                    .p = part[0],
                                    .ds = part[1],
                                    .ds_rows = part[2]};
    u->bwd_tile(&t);
    for (int i = 0; i < 3; i++)
        for (int64_t element = 0; element < sums[i]; element++) {
            const double error = fabs((double)got[i][element] - want[i][element]);
            if (error > 0) worst = fmax(worst, error / size[i][element]);
        }
    printf("cap %d alibi %d mask %d weight %d, %d x %d: %.2e of the terms\n", f->caps, f->alibi, f->mask, f->weighs,
           (int)rows, (int)cells, worst);
    assert_true(worst > 0 && worst < 0x1.2p-8);
    for (int i = 0; i < 3; i++) free(got[i]), free(want[i]), free(size[i]), free(part[i]);
    for (int i = 0; i < 4; i++) free(x[i].row), free(x[i].zip), free(x[i].transposed), free(x[i].panels);
    free(s), free(value), free(seen), free(mask), free(bits);
}

static void test_scores(void **unused) {
    static const struct what each[] = {{.scale = 0.3f},
                                       {.caps = 1, .scale = 0.3f},
                                       {.caps = 1, .scale = -1.5f},
                                       {.alibi = 1, .scale = 0.3f},
                                       {.alibi = 2, .scale = 0},
                                       {.weighs = 1, .scale = 0.3f},
                                       {.mask = ATTN_UKR_MASK_BITS, .scale = 0.3f},
                                       {.mask = ATTN_UKR_MASK_F32, .scale = 0.3f},
                                       {.mask = ATTN_UKR_MASK_F16, .scale = 0.3f},
                                       {.mask = ATTN_UKR_MASK_BF16, .scale = 0.3f},
                                       {1, 2, ATTN_UKR_MASK_BITS, 0, 0.3f},
                                       {1, 1, ATTN_UKR_MASK_F16, 1, 0.3f}};
    (void)unused;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        tile_of(&each[i], 4, 5, 64, 64, 5 * 32, 1000);
        tile_of(&each[i], 5, 7, 64, 64, 7 * 32 - 19, 30);
        tile_of(&each[i], 3, 3, 128, 128, 3 * 32 - 1, 20);
        tile_of(&each[i], 2, 4, 96, 160, 4 * 32 - 40, 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores)};
    return RUN_ON_TILES(tests);
}
