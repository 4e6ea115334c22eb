/* SPDX-License-Identifier: MIT
 * Results of golden.c's forms: equal bits, numbers, approximations, products of matrices. */
#include "golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float single(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static double twice(const uint32_t *u) {
    double d;
    memcpy(&d, u, 8);
    return d;
}
static int64_t order(uint32_t u) { return u >> 31 ? -(int64_t)(u & 0x7fffffff) : (int64_t)u; }

/* ---- matrices ---- */

static double element(const struct golden_form *f, uint32_t word, uint32_t part) {
    uint32_t h = word >> (16 * part) & 0xffff;
    if (strstr(f->op, "tf32")) return (double)single(word & 0xffffe000);
    if (strstr(f->op, "bf16")) return (double)single(h << 16);
    double sign = h >> 15 ? -1 : 1;
    int e = (int)(h >> 10 & 31);
    return sign * (e ? ldexp(1 + (h & 0x3ff) / 1024.0, e - 15) : ldexp(h & 0x3ff, -24));
}
/* Element i of lane 4 g + t: the exact sum, and the largest of its terms. */
static void product(const struct golden_form *f, const uint32_t *in, uint32_t lane, uint32_t i, double *sum,
                    double *top) {
    const uint32_t parts = strstr(f->op, "tf32") ? 1 : 2, k = (uint32_t)f->limit, n_a = k / (2 * parts), n_b = n_a / 2;
    const uint32_t row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    *sum = (double)single(in[lane * GOLDEN_WORDS + n_a + n_b + i]);
    *top = fabs(*sum);
    for (uint32_t j = 0; j < k; j++) {
        uint32_t slice = j / (4 * parts), t = j / parts % 4, part = j % parts;
        double a = element(f, in[(4 * (row % 8) + t) * GOLDEN_WORDS + 2 * slice + row / 8], part);
        double b = element(f, in[(4 * column + t) * GOLDEN_WORDS + n_a + slice], part);
        *sum += a * b;
        *top = fmax(*top, fabs(a * b));
    }
}

/* ---- one lane: how far off, in units of the kind's limit; above 1 is a difference ---- */

static double off_number(const struct golden_form *f, const uint32_t *want, const uint32_t *got) {
    uint32_t n = golden_words_out(f);
    int f64 = strstr(f->op, "f64") && strchr(f->out, 'D') != NULL, f16 = !strcmp(f->in, "qq") || !strcmp(f->in, "qqq");
    int bf16 = strchr(f->in, 'r') != NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (want[i] == got[i]) continue;
        if (f64 && isnan(twice(want + (i & ~1u))) && isnan(twice(got + (i & ~1u)))) continue;
        if (f16 || bf16) {
            uint32_t inf = f16 ? 0x7c00 : 0x7f80;
            int equal = 1;
            for (int h = 0; h < 32; h += 16) {
                uint32_t a = want[i] >> h & 0xffff, b = got[i] >> h & 0xffff;
                equal &= a == b || ((a & 0x7fff) > inf && (b & 0x7fff) > inf);
            }
            if (equal) continue;
        } else if (!f64 && isnan(single(want[i])) && isnan(single(got[i]))) {
            continue;
        }
        return 2;
    }
    return 0;
}

static double off(const struct golden_form *f, const uint32_t *in, uint32_t lane, const uint32_t *want,
                  const uint32_t *got) {
    const uint32_t n = golden_words_out(f);
    float a = single(want[0]), b = single(got[0]);
    switch (f->kind) {
    case G_BITS: return memcmp(want, got, n * 4) ? 2 : 0;
    case G_NUMBER: return off_number(f, want, got);
    case G_ULP:
        if (isnan(a) || isnan(b)) return isnan(a) && isnan(b) ? 0 : 1e9;
        return fabs((double)(order(want[0]) - order(got[0]))) / f->limit;
    case G_NEAR:
        if (isnan(a) || isnan(b)) return isnan(a) && isnan(b) ? 0 : 1e9;
        if (want[0] == got[0]) return 0;
        return fabs((double)a - (double)b) / (f->limit * 0x1p-24 * fmax(1, fabs((double)a)));
    case G_DOUBLE_UPPER: return fabs(twice(want) / twice(got) - 1) / (f->limit * 0x1p-20);
    case G_MMA: break;
    }
    if (getenv("ATTNSIM_MMA")) return memcmp(want, got, n * 4) ? 2 : 0; /* as the machine: every bit */
    double worst = 0;
    for (uint32_t i = 0; i < 4; i++) {
        double sum, top;
        product(f, in, lane, i, &sum, &top);
        /* the machine aligns k + 1 terms to the largest and cuts each off; the simulator rounds k times */
        double unit = ldexp(1, ilogb(top) - 23) * (f->limit + 1);
        worst = fmax(worst, fabs((double)single(want[i]) - (double)single(got[i])) / unit);
        worst = fmax(worst, fabs((double)single(want[i]) - sum) / unit);
    }
    return worst;
}

int golden_compare(const struct golden_form *f, const uint32_t *in, const uint32_t *want, const uint32_t *got,
                   double *worst, int *first) {
    const uint32_t n = golden_words_out(f);
    int bad = 0;
    *worst = 0, *first = -1;
    for (uint32_t i = 0; i < GOLDEN_LANES * GOLDEN_WARPS; i++) {
        uint32_t warp = i / GOLDEN_LANES;
        double x = off(f, in + (size_t)warp * GOLDEN_LANES * GOLDEN_WORDS, i % GOLDEN_LANES, want + (size_t)i * n,
                       got + (size_t)i * n);
        if (!(x <= *worst)) *worst = x;
        if (!(x <= 1) && !bad++) *first = (int)i;
    }
    return bad;
}
