/* SPDX-License-Identifier: MIT
 * attn_merge on the CPU: rows of parts, weighted by their lse, in double. A task is a block of rows. No plan: tensors
 * of a merge have any rank, dtypes and strides of their own. */
#include "base/num.h"
#include "cpu/host/cpu.h"

#include <math.h>

enum { COLUMNS = 128, TASK_NUMBERS = 1 << 15 };

struct merge {
    const attn_merge_args *a;
    int32_t axes;        /* that rows are counted along */
    const int64_t *rows; /* their extents */
    int64_t width, n_rows, block;
    struct attn_cpu_counter next;
};

/* First element of row r of a tensor whose first axes are those of the rows. */
static char *row_of(const struct merge *m, const attn_tensor *t, int64_t r) {
    int64_t element = 0;
    for (int32_t a = m->axes - 1; a >= 0; a--) {
        if (m->rows[a] > 1) element += r % m->rows[a] * t->strides[a];
        r /= m->rows[a];
    }
    return (char *)t->data + element * (int64_t)attn_dtype_bytes(t->dtype);
}

static double natural_lse(const struct merge *m, int32_t part, int64_t r) {
    const attn_tensor *t = m->a->lse_parts[part];
    const double x = attn_num_load(row_of(m, t, r), t->dtype, 0);
    return m->a->flags & ATTN_LSE_BASE_2 ? x * 0.69314718055994530942 : x;
}

/* Of a part that is not empty no 0: times an infinity or NaN it must stay one. */
static double weight_of(double lse, double max) {
    if (isinf(lse)) return 0;
    const double w = exp(lse - max);
    return w > 0 ? w : 0x1p-1000;
}

#define ADD(name, T, LOAD)                                                                                             \
    static void name(double *sum, double w, const T *x, int64_t n) {                                                   \
        for (int64_t c = 0; c < n; c++) sum[c] += w * LOAD(x[c]);                                                      \
    }
ADD(add_f32, float, (double))
ADD(add_f64, double, )
ADD(add_bf16, uint16_t, (double)attn_num_bf16_f32)
ADD(add_f16, uint16_t, (double)attn_num_f16_f32)

static void add_columns(double *sum, double w, const char *row, int32_t dtype, int64_t c0, int64_t n) {
    const void *from = row + c0 * (int64_t)attn_dtype_bytes(dtype);
    switch (dtype) {
    case ATTN_F32: add_f32(sum, w, from, n); break;
    case ATTN_F64: add_f64(sum, w, from, n); break;
    case ATTN_F16: add_f16(sum, w, from, n); break;
    default: add_bf16(sum, w, from, n);
    }
}

static void store_columns(const double *sum, char *row, int32_t dtype, int64_t c0, int64_t n) {
    float *to = (float *)(void *)row + c0;
    if (dtype != ATTN_F32)
        for (int64_t c = 0; c < n; c++) attn_num_store(row, dtype, c0 + c, sum[c]);
    else
        for (int64_t c = 0; c < n; c++) to[c] = (float)sum[c];
}

/* A result may be a part: columns are read before they are written, lse last. */
static void merge_row(const struct merge *m, int64_t r) {
    const attn_merge_args *a = m->a;
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < a->n_parts; i++) {
        const double lse = natural_lse(m, i, r);
        if (!isinf(lse) && !(lse <= max)) max = lse; /* a NaN stays: nothing is above it */
        if (isnan(max)) break;
    }
    for (int32_t i = 0; i < a->n_parts && max > -INFINITY; i++) sum += weight_of(natural_lse(m, i, r), max);
    for (int64_t c0 = 0; c0 < m->width; c0 += COLUMNS) {
        const int64_t n = m->width - c0 < COLUMNS ? m->width - c0 : COLUMNS;
        double total[COLUMNS];
        for (int64_t c = 0; c < n; c++) total[c] = isnan(max) ? max : 0;
        for (int32_t i = 0; i < a->n_parts && max > -INFINITY; i++) {
            const double w = weight_of(natural_lse(m, i, r), max);
            if (w > 0) add_columns(total, w / sum, row_of(m, a->out_parts[i], r), a->out_parts[i]->dtype, c0, n);
        }
        store_columns(total, row_of(m, a->out, r), a->out->dtype, c0, n);
    }
    if (!a->lse) return;
    double lse = isnan(max) ? max : max > -INFINITY ? max + log(sum) : max;
    if (lse == -INFINITY && a->flags & ATTN_LSE_EMPTY_PLUS_INF) lse = INFINITY;
    if (a->flags & ATTN_LSE_BASE_2) lse *= 1.44269504088896340736;
    attn_num_store(row_of(m, a->lse, r), a->lse->dtype, 0, lse);
}

static void work(void *arg, int32_t worker) {
    struct merge *m = arg;
    (void)worker;
    for (int64_t t; (t = attn_cpu_next(&m->next)) < (m->n_rows + m->block - 1) / m->block;)
        for (int64_t r = t * m->block; r < m->n_rows && r < (t + 1) * m->block; r++) merge_row(m, r);
}

attn_status attn_cpu_merge(const struct attn_core_device *dev, const attn_merge_args *a) {
    const attn_tensor *like = a->out ? a->out : a->lse;
    struct merge m = {.a = a, .axes = like->rank - (a->out ? 1 : 0), .rows = like->shape, .n_rows = 1};
    m.width = a->out ? like->shape[m.axes] : 0;
    for (int32_t x = 0; x < m.axes; x++) m.n_rows *= like->shape[x];
    const int64_t numbers = (m.width + 8) * a->n_parts; /* of a row */
    m.block = TASK_NUMBERS / numbers + 1;
    if (m.n_rows == 0) return ATTN_OK;
    const double work_numbers = (double)numbers * (double)m.n_rows;
    const int32_t crew = attn_cpu_crew(dev->threads, 8 * work_numbers, 4 * work_numbers, 10e9);
    const uint32_t mode = attn_base_float_begin(dev->subnormals);
    attn_cpu_pool_run(attn_cpu_pool_of(dev), attn_cpu_at_most(crew, (m.n_rows + m.block - 1) / m.block), work, &m);
    attn_base_float_end(mode);
    return ATTN_OK;
}
