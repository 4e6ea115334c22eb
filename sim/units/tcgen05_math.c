/* SPDX-License-Identifier: MIT
 * What a product of tcgen05 does when its moment has come: operands as numbers, sums in f32 in the order of k (whole
 * numbers exactly), blocks of k times their scales. Work of a CTA goes in the order in which it was started. */
#include "checks/report.h"
#include "exec/exec.h"
#include "exec/formats.h"
#include "units/tcgen05_product.h"
#include "units/wgmma_math.h"

#include <stdlib.h>
#include <string.h>

struct numbers { /* a: rows TENSOR_MAX_K apart; b, sums, block: rows n apart */
    float a[256 * TENSOR_MAX_K], b[TENSOR_MAX_K * 256], sums[256 * 256], block[256 * 256];
    int32_t whole[256 * 256];
};

/* out[row * pitch + k], or by_k out[k * pitch + row]. */
static void gather(const uint8_t *shared, const uint32_t *chunks, uint32_t n_chunks, uint32_t inner, int mn_major,
                   enum tensor_format format, int by_k, float *out, uint32_t pitch) {
    const uint32_t per = tensor_per_chunk(format);
    for (uint32_t c = 0; c < n_chunks; c++) {
        float values[32];
        uint32_t outer = c / inner, part = c % inner;
        tensor_widen(shared + chunks[c], format, 0, values);
        for (uint32_t e = 0; e < per; e++) {
            uint32_t row = mn_major ? part * per + e : outer, k = mn_major ? outer : part * per + e;
            out[by_k ? k * pitch + row : row * pitch + k] = values[e];
        }
    }
}

static const char *read_cells(const struct sim_flight *f, const struct tensor_product *p, uint32_t first_n, float *a) {
    const uint32_t column = p->a_cells & 0xffff;
    const char *bad = NULL;
    for (uint32_t m = 0; m < p->m; m++) {
        struct tensor_place place = tensor_place(p, m, first_n);
        const struct sim_tensor_memory *t = tensor_cta(f->w, p->ctas, place.cta)->hopper->tensor;
        for (uint32_t c = 0; c < 2; c++)
            tensor_widen((const uint8_t *)&t->cells[place.lane][column + 4 * c], p->a_format, 1,
                         a + m * TENSOR_MAX_K + c * tensor_per_chunk(p->a_format));
        for (uint32_t c = 0; c < 8; c++)
            if (t->written[place.lane][column + c] != SIM_CELL_WRITTEN) bad = "A";
    }
    return bad;
}

/* Columns of a row of D that follow one another: a group's. */
struct sums_row {
    uint32_t *cells;
    uint8_t *written;
    uint32_t n;
    int disabled;
};
static struct sums_row sums_row(const struct sim_flight *f, const struct tensor_product *p, uint32_t m, uint32_t g) {
    const uint32_t width = p->n / p->groups;
    const struct tensor_place place = tensor_place(p, m, g * width);
    struct sim_tensor_memory *t = tensor_cta(f->w, p->ctas, place.cta)->hopper->tensor;
    const uint32_t column = (p->d & 0xffff) + place.column;
    return (struct sums_row){&t->cells[place.lane][column], &t->written[place.lane][column], width,
                             p->disabled[4 * place.cta + place.lane / 32] >> place.lane % 32 & 1};
}

static const char *load_sums(const struct sim_flight *f, const struct tensor_product *p, struct numbers *x) {
    const char *bad = NULL;
    const float scale = sim_float((127u - p->scale_d) << 23);
    for (uint32_t i = 0; i < p->m * p->groups; i++) {
        const struct sums_row row = sums_row(f, p, i / p->groups, i % p->groups);
        float *sums = x->sums + i * row.n;
        for (uint32_t n = 0; n < row.n && !row.disabled; n++)
            if (row.written[n] != SIM_CELL_WRITTEN) bad = "D";
        if (p->whole)
            memcpy(x->whole + i * row.n, row.cells, row.n * sizeof *row.cells);
        else if (p->half_sums)
            for (uint32_t n = 0; n < row.n; n++) sums[n] = sim_from_f16(row.cells[n] & 0xffff);
        else
            memcpy(sums, row.cells, row.n * sizeof *sums);
        for (uint32_t n = 0; p->scale_d && n < row.n; n++) sums[n] *= scale;
    }
    return bad;
}
static uint32_t add_whole(int32_t before, float sum, int saturate) {
    int64_t s = (int64_t)before + (int64_t)sum; /* below 2^24 in size: the sum in f32 is exact */
    if (saturate) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
    return (uint32_t)s;
}
static void store_sums(const struct sim_flight *f, const struct tensor_product *p, const struct numbers *x) {
    for (uint32_t i = 0; i < p->m * p->groups; i++) {
        const struct sums_row row = sums_row(f, p, i / p->groups, i % p->groups);
        const float *sums = x->sums + i * row.n;
        if (row.disabled) continue;
        memset(row.written, SIM_CELL_WRITTEN, row.n);
        if (p->whole)
            for (uint32_t n = 0; n < row.n; n++)
                row.cells[n] = add_whole(p->accumulate ? x->whole[i * row.n + n] : 0, sums[n], p->saturate);
        else if (p->half_sums)
            for (uint32_t n = 0; n < row.n; n++) row.cells[n] = sim_to_f16(sums[n]);
        else
            memcpy(row.cells, sums, row.n * sizeof *sums);
    }
}

/* Scale q of row (or column) i, as the part of 32 lanes that computes row m of D finds it: each part has all of them.
 */
static float scale_of(const struct sim_tensor_memory *t, uint32_t cell, uint32_t i, uint32_t part, uint32_t byte,
                      int ue4m3, const char **bad) {
    const uint32_t lane = 32 * part + i % 32, column = (cell & 0xffff) + i / 32;
    if (t->written[lane][column] != SIM_CELL_WRITTEN) *bad = "scales";
    return tensor_scale((uint8_t)(t->cells[lane][column] >> (8 * byte)), ue4m3);
}
static const char *add_scaled(const struct sim_flight *f, const struct tensor_product *p, struct numbers *x) {
    const uint32_t k = p->k / p->n_scales;
    const char *bad = NULL;
    for (uint32_t q = 0; q < p->n_scales; q++) {
        float b_scales[4][256];
        memset(x->block, 0, (size_t)p->m * p->n * sizeof *x->block);
        wgmma_product(x->block, x->a + q * k, x->b + (size_t)q * k * p->n, p->m, p->n, k, TENSOR_MAX_K, p->n);
        for (uint32_t m = 0; m < p->m; m++) {
            struct tensor_place place = tensor_place(p, m, 0);
            const struct sim_tensor_memory *t = tensor_cta(f->w, p->ctas, place.cta)->hopper->tensor;
            const uint32_t part = place.lane / 32;
            float *b = b_scales[part];
            float a = scale_of(t, p->scales_a, place.lane, part, p->id_a + q, p->ue4m3, &bad);
            if (place.lane % 32 == 0)
                for (uint32_t n = 0; n < p->n; n++)
                    b[n] = scale_of(t, p->scales_b, n, part, p->id_b + q, p->ue4m3, &bad);
            for (uint32_t n = 0; n < p->n; n++)
                x->sums[m * p->n + n] += (float)((double)x->block[m * p->n + n] * (double)a * (double)b[n]);
        }
    }
    return bad;
}

int tensor_product_perform(struct sim_flight *f) {
    struct sim_tensor_memory *t = f->w->cta->hopper->tensor;
    const struct tensor_product *p = f->data;
    if (t->n_done != p->number) return 0;
    const uint32_t rows_a = p->m / p->ctas, rows_b = p->n / p->ctas, width = p->n / p->groups;
    const char *bad = NULL, *found;
    struct numbers *x = malloc(sizeof *x);
    if (!x) abort();
    for (uint32_t v = 0; v < p->ctas; v++) {
        const uint8_t *shared = tensor_cta(f->w, p->ctas, v)->shared;
        if (!p->from_cells)
            gather(shared, p->chunks_a, p->n_a, p->mn_a ? rows_a / tensor_per_chunk(p->a_format) : 2, p->mn_a,
                   p->a_format, 0, x->a + v * rows_a * TENSOR_MAX_K, TENSOR_MAX_K);
        gather(shared, p->chunks_b, p->n_b, p->mn_b ? rows_b / tensor_per_chunk(p->b_format) : 2, p->mn_b, p->b_format,
               1, x->b + v * rows_b, p->n);
    }
    if (p->negate)
        for (uint32_t i = 0; i < p->k * p->n; i++) x->b[i] = -x->b[i];
    if (!p->accumulate || p->whole) memset(x->sums, 0, (size_t)p->m * p->n * sizeof *x->sums);
    if (p->accumulate && (found = load_sums(f, p, x))) bad = found;
    for (uint32_t g = 0; g < p->groups; g++) {
        if (p->from_cells && (found = read_cells(f, p, g * width, x->a))) bad = found;
        if (p->n_scales)
            found = add_scaled(f, p, x), bad = found ? found : bad;
        else
            wgmma_product(x->sums + g * width, x->a, x->b + g * width, p->m, width, p->k, TENSOR_MAX_K, p->n);
    }
    store_sums(f, p, x);
    free(x);
    if (bad)
        sim_find(f->w, f->in, 1u << f->lane, SIM_F_UNINITIALISED,
                 "the product takes %s from cells of tensor memory that nobody wrote", bad);
    t->n_done++;
    return 1;
}
