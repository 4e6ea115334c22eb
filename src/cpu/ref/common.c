/* SPDX-License-Identifier: MIT
 * Rows, softmax and task dealing of the reference kernels; see ref.h. */
#include "cpu/ref/ref.h"

static const double LN2 = 0.693147180559945309417, LOG2E = 1.44269504088896340736;

void attn_cpu_ref_load(double *dst, const void *src, int32_t dtype, int64_t n) {
    switch (dtype) {
    case ATTN_F32:
        for (int64_t c = 0; c < n; ++c) dst[c] = ((const float *)src)[c];
        break;
    case ATTN_F16:
        for (int64_t c = 0; c < n; ++c) dst[c] = attn_num_f16_f32(((const uint16_t *)src)[c]);
        break;
    case ATTN_BF16:
        for (int64_t c = 0; c < n; ++c) dst[c] = attn_num_bf16_f32(((const uint16_t *)src)[c]);
        break;
    case ATTN_E4M3:
        for (int64_t c = 0; c < n; ++c) dst[c] = attn_num_e4m3[((const uint8_t *)src)[c]];
        break;
    default:
        for (int64_t c = 0; c < n; ++c) dst[c] = ((const double *)src)[c];
        break;
    }
}

void attn_cpu_ref_store(void *dst, int32_t dtype, const double *src, int64_t n, double factor) {
    for (int64_t c = 0; c < n; ++c) attn_num_store(dst, dtype, c, factor * src[c]);
}

void attn_cpu_ref_fill(void *dst, int32_t dtype, int64_t n, double value) {
    for (int64_t c = 0; c < n; ++c) attn_num_store(dst, dtype, c, value);
}

double attn_cpu_ref_sink(const attn_problem *p, const attn_args *args, int64_t h) {
    if (!attn_core_has(p, ATTN_SINK)) return -INFINITY;
    return attn_num_load(args->sink->data, args->sink->dtype, h * args->sink->strides[0]);
}

/* ln(e^a + e^b) for any a and b, infinities and NaN included. */
static double logaddexp(double a, double b) {
    if (isnan(a) || isnan(b)) return NAN;
    double hi = a > b ? a : b, lo = a > b ? b : a;
    if (isinf(hi)) return hi;
    return hi + log1p(exp(lo - hi));
}

double attn_cpu_ref_empty_lse(const attn_problem *p) {
    return attn_core_has(p, ATTN_LSE_EMPTY_PLUS_INF) ? INFINITY : -INFINITY;
}

/* lse as the caller sees it; `natural` excludes the sink and is -inf for a row without visible keys. */
static double outer_lse(const attn_problem *p, double natural, double sink) {
    double lse = attn_core_has(p, ATTN_LSE_WITH_SINK) ? logaddexp(natural, sink) : natural;
    if (lse == -INFINITY) return attn_cpu_ref_empty_lse(p);
    return attn_core_has(p, ATTN_LSE_BASE_2) ? lse * LOG2E : lse;
}

struct attn_cpu_ref_softmax attn_cpu_ref_softmax(const attn_problem *p, double *s, int64_t n, double sink) {
    struct attn_cpu_ref_softmax row = {ATTN_REF_ROW_NORMAL, 0, 0};
    double max = -INFINITY;
    for (int64_t j = 0; j < n && !isnan(max); ++j)
        if (!(s[j] <= max)) max = s[j];  /* also taken when s[j] is NaN, which then stays */
    if (isnan(max) || max == INFINITY) { /* +inf: exp(inf - inf) */
        row.kind = ATTN_REF_ROW_NAN;
        row.denominator = row.lse = NAN;
        return row;
    }
    if (max == -INFINITY) {
        row.kind = ATTN_REF_ROW_EMPTY;
        row.lse = outer_lse(p, -INFINITY, sink);
        return row;
    }
    double sum = 0, part = 0; /* thousands of equal numbers one by one would all be rounded the same way */
    for (int64_t j = 0; j < n; ++j) {
        if (s[j] != -INFINITY) part += s[j] = exp(s[j] - max);
        if (j % ATTN_REF_SUM == ATTN_REF_SUM - 1 || j == n - 1) sum += part, part = 0;
    }
    row.denominator = sum + exp(sink - max);
    row.lse = outer_lse(p, max + log(sum), sink);
    return row;
}

struct attn_cpu_ref_grad attn_cpu_ref_grad(const attn_problem *p, double lse, double dlse, double out_dot_dout,
                                           double sink) {
    struct attn_cpu_ref_grad row = {0};
    if (isinf(lse)) return row;
    row.alive = 1;
    if (attn_core_has(p, ATTN_LSE_BASE_2)) {
        lse *= LN2;
        dlse *= LOG2E; /* lse2 = lse log2(e) */
    }
    int includes = attn_core_has(p, ATTN_LSE_WITH_SINK);
    row.lse = lse;
    row.g = includes ? 1 : 1 / (1 + exp(sink - lse));
    /* exp(sink - lse_total), in the form that also holds for sink = +-inf */
    double p_sink = includes ? exp(sink - lse) : 1 / (1 + exp(lse - sink));
    row.shift = row.g * out_dot_dout - dlse;
    /* a sink of -inf is none: it has no share in what is not finite */
    row.dsink = sink <= -INFINITY && !isnan(lse) ? 0 : p_sink * ((includes ? dlse : 0) - out_dot_dout);
    return row;
}

/* ------------------------------------------------------------------ tasks -------------------------- */

struct run {
    struct attn_cpu_counter counter;
    const struct attn_cpu_ref_tasks *tasks;
    double *scratch;
};

static int64_t padded(int64_t doubles) { return (doubles + 7) / 8 * 8; }

static void work(void *arg, int32_t worker) {
    struct run *run = arg;
    double *scratch = run->scratch + worker * padded(run->tasks->doubles);
    for (int64_t t; (t = attn_cpu_next(&run->counter)) < run->tasks->n_tasks;)
        run->tasks->task(run->tasks->what, t, scratch);
}

void attn_cpu_ref_run(const struct attn_core_device *dev, const attn_args *args,
                      const struct attn_cpu_ref_tasks *tasks) {
    struct run run = {.tasks = tasks, .scratch = args->workspace};
    if (tasks->n_tasks <= 0) return;
    int32_t n = tasks->n_tasks < dev->threads ? (int32_t)tasks->n_tasks : dev->threads;
    attn_cpu_pool_run(attn_cpu_pool_of(dev), n, work, &run);
}

uint64_t attn_cpu_ref_bytes(const struct attn_core_device *dev, int64_t doubles) {
    return (uint64_t)dev->threads * (uint64_t)padded(doubles) * sizeof(double);
}
