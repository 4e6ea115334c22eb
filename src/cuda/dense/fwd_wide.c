/* SPDX-License-Identifier: MIT
 * Dense forward in f32 and f64 on CUDA, the host's side: kernel rows from kernels/variants/sdpa_fwd_sm80.f32.def and
 * .f64.def, how a problem is dealt to CTAs, and the parameters of a launch. The device's side:
 * kernels/sm80/sdpa_fwd_wide.cu. */
#include "core/problem.h"
#include "cuda/dense/f16x2.h"

#include <math.h>

enum { MAX_LENGTH = ATTN_CUDA_MAX_LENGTH, FAR = ATTN_CUDA_FAR, MAX_DIM = 512 };

/* A row. `rest`: what serves the heads that a kernel of f16x2 operands leaves; else NULL. */
struct fwd_row {
    const struct kp_sdpa_wide_config *own, *rest;
};

/* How a problem is dealt to CTAs: a function of problem and device alone, so that workspace and launch agree. */
struct geometry {
    struct attn_cuda_wide_memory memory;
    int64_t pack, row_tiles, heads, splits, slices, section, work_tiles;
    int64_t rows, part_row; /* of a split's results */
};

static struct attn_cuda_wide_memory memory_of(const struct kp_sdpa_wide_config *c, const struct attn_cuda_limits *l,
                                              const attn_problem *p) {
    return attn_cuda_wide_memory(c, l, attn_cuda_blocks(p->dim_qk, KP_WIDE_CHUNK(c->dtype)));
}

/* Key tiles that the longest row tile walks, at most. */
static int64_t key_tiles(const struct kp_sdpa_wide_config *c, const attn_problem *p, int64_t pack) {
    int64_t keys = p->seq_k, queries = KP_WIDE_ROWS(*c) / pack + 1;
    if (p->window_left < FAR && p->window_right < FAR && p->window_left + p->window_right + queries < keys)
        keys = p->window_left + p->window_right + queries;
    if (!attn_core_has(p, ATTN_BOTTOM_RIGHT) && p->window_right < FAR)
        keys = attn_cuda_lesser(keys, p->seq_q + p->window_right);
    return keys <= 0 ? 1 : attn_cuda_blocks(keys, c->keys) + 1;
}

/* The number of splits with the shortest critical path, in key tiles: rounds of CTAs times (tiles of a split + start
 * and end of a CTA), plus the merge, whose traffic grows with the splits. */
static int64_t choose_splits(const struct kp_sdpa_wide_config *c, const attn_problem *p, int64_t tiles, int64_t pack,
                             int64_t capacity) {
    const int64_t n = key_tiles(c, p, pack),
                  most = attn_cuda_lesser(attn_cuda_lesser(n / 2, KP_SDPA_MAX_SPLITS), 2 * capacity / tiles + 1);
    int64_t best = 1;
    double least = (double)(attn_cuda_blocks(tiles, capacity) * (n + 2));
    if (tiles >= capacity) return 1;
    for (int64_t s = 2; s <= most; s++) {
        double cost =
            (double)(attn_cuda_blocks(tiles * s, capacity) * (attn_cuda_blocks(n, s) + 2)) + 2 + 0.1 * (double)s;
        if (cost < least) least = cost, best = s;
    }
    return best;
}

/* whole: without splits, which both kernels of a row with f16x2 operands would write to. */
static struct geometry lay_out(const struct kp_sdpa_wide_config *c, const struct attn_cuda_limits *l,
                               const attn_problem *p, int whole) {
    struct geometry g = {.memory = memory_of(c, l, p), .pack = 1, .splits = 1, .slices = 1};
    const int64_t tile = KP_WIDE_ROWS(*c), group = p->heads_q / p->heads_k;
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    if (p->seq_q <= MAX_LENGTH / group &&
        attn_cuda_blocks(p->seq_q * group, tile) < group * attn_cuda_blocks(p->seq_q, tile))
        g.pack = group;
    g.row_tiles = attn_cuda_blocks(p->seq_q * g.pack, tile);
    g.heads = p->batch * (g.pack == 1 ? p->heads_q : p->heads_k);
    g.slices = p->dim_v > 0 ? attn_cuda_blocks(p->dim_v, c->cols) : 1;
    if (!whole)
        g.splits = choose_splits(c, p, g.row_tiles * g.heads * g.slices, g.pack, (int64_t)l->n_sms * g.memory.ctas);
    /* Heads dealt together share half of the second-level cache; those of a group share their keys. */
    const int64_t bytes = (int64_t)attn_dtype_bytes(c->dtype) * p->seq_k * (p->dim_qk + p->dim_v) + 1,
                  fit = l->l2_bytes / 2 / bytes;
    g.section = attn_cuda_section(g.heads, g.pack == 1 ? group : 1, fit);
    g.work_tiles = g.row_tiles * g.splits * g.slices * g.heads;
    g.rows = p->batch * p->heads_q * p->seq_q;
    g.part_row = (p->dim_v + 3) / 4 * 4;
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct fwd_row *r = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    if (attn_cuda_sdpa_refuse(p, MAX_DIM, MAX_DIM, why) ||
        attn_cuda_refuse_image(dev, r->own->symbol, memory_of(r->own, l, p).bytes, why) ||
        attn_cuda_padding_refuse(dev, p, why))
        return 0;
    if (!r->rest) return !attn_cuda_refuse_image(dev, attn_cuda_sdpa_merge_symbol(dev, r->own->dtype), 0, why);
    return !attn_cuda_f16x2_refuse(p, why) && !attn_cuda_refuse_image(dev, attn_cuda_f16x2_symbol, 0, why) &&
           !attn_cuda_refuse_image(dev, r->rest->symbol, memory_of(r->rest, l, p).bytes, why);
}

/* Rates: flop a cycle at 1.7 GHz, what an H100 was measured at. f16x2 operands: two more launches, operands written and
 * read again, and idle multiprocessors where there is little to do, since keys are not split. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct fwd_row *r = k->impl;
    const struct kp_sdpa_wide_config *c = r->own;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double d = (double)p->dim_qk, dv = (double)p->dim_v, slices = ceil(dv / c->cols);
    const double padding = d + dv > 0 ? ((slices > 1 ? slices : 1) * d + dv) / (d + dv) : 1;
    const double rate = c->dtype == KP_F64 ? k->features & ATTN_CUDA_SM90A ? 105 : 70
                        : c->f16x2         ? 365
                                           : 210,
                 bytes = amount->bytes;
    double compute = amount->flops * padding / (rate * 1.7e9 * (double)l->n_sms);
    const double memory = bytes / (2e10 * l->n_sms);
    if (c->f16x2) {
        const struct geometry g = lay_out(c, l, p, 1);
        const double idle = (double)l->n_sms * g.memory.ctas / ((double)g.work_tiles + 1);
        if (dv < c->cols) compute *= 1 + 0.15 * (1 - dv / c->cols);
        compute = compute * (idle > 1 ? idle : 1) + 1.5e-5 + 3 * memory;
    }
    return 5e-6 + (compute > memory ? compute : memory) * (1 + 1e-4 * c->cols);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct fwd_row *r = k->impl;
    if (r->rest) return (uint64_t)attn_cuda_f16x2(p, 0, 3).end;
    const struct geometry g = lay_out(r->own, attn_cuda_limits_of(dev), p, 0);
    return g.splits > 1 ? (uint64_t)(g.splits * g.rows * (g.part_row + 2)) * attn_dtype_bytes(r->own->dtype) : 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct fwd_row *r = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct geometry g = lay_out(r->own, l, p, r->rest != NULL);
    attn_status status = attn_cuda_variant_load(dev, attn_cuda_variant_find(r->own->symbol), (uint32_t)g.memory.bytes);
    if (!status) status = attn_cuda_padding_prepare(dev, p);
    if (!status && g.splits > 1)
        status =
            attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_sdpa_merge_symbol(dev, r->own->dtype)), 0);
    if (status || !r->rest) return status;
    status = attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_f16x2_symbol), 16);
    if (status) return status;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(r->rest->symbol),
                                  (uint32_t)memory_of(r->rest, l, p).bytes);
}

/* Queue one kernel of at most `most` CTAs. kp: all that does not depend on it. */
static attn_status start(const struct attn_core_device *dev, const struct kp_sdpa_wide_config *c,
                         const struct geometry *g, int64_t most, const attn_problem *p, const attn_args *args,
                         struct kp_sdpa_wide_fwd kp) {
    kp.fwd.work_tiles = g->work_tiles;
    kp.fwd.pack = (int32_t)g->pack;
    kp.fwd.row_tiles = (int32_t)g->row_tiles;
    kp.fwd.splits = (int32_t)g->splits;
    kp.fwd.section = (int32_t)g->section;
    kp.fwd.part_row = (int32_t)g->part_row;
    if (g->splits > 1) {
        const uint64_t size = attn_dtype_bytes(c->dtype);
        kp.fwd.part_o = (uint64_t)(uintptr_t)args->workspace;
        kp.fwd.part_m = kp.fwd.part_o + (uint64_t)(g->splits * g->rows * g->part_row) * size;
        kp.fwd.part_l = kp.fwd.part_m + (uint64_t)(g->splits * g->rows) * size;
    }
    attn_cuda_wide_numbers(&kp.wide, p, &g->memory);
    kp.wide.slices = (int32_t)g->slices;
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(g->work_tiles, most),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)(32 * c->warps),
                                        .shared_bytes = (uint32_t)g->memory.bytes};
    struct attn_cuda_work work[2] = {{attn_cuda_variant_of(dev, c->symbol), &kp, sizeof kp, grid}};
    if (g->splits > 1) work[1] = attn_cuda_sdpa_merge(dev, c->dtype, &kp.fwd);
    return attn_cuda_launch_all(dev, work, g->splits > 1 ? 2 : 1, args->stream);
}

/* As many CTAs as run at a time: mostly they find nothing to do. */
static attn_status start_rest(const struct attn_core_device *dev, const struct kp_sdpa_wide_config *c,
                              const attn_problem *p, const attn_args *args, const struct kp_sdpa_wide_fwd *kp) {
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct geometry g = lay_out(c, l, p, 1);
    return start(dev, c, &g, (int64_t)l->n_sms * g.memory.ctas, p, args, *kp);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct fwd_row *r = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct geometry g = lay_out(r->own, l, p, r->rest != NULL);
    struct kp_sdpa_wide_fwd kp = {0};
    attn_cuda_sdpa_inputs(&kp.fwd.in, p, args);
    attn_cuda_sdpa_results(&kp.fwd, p, args);
    attn_status status = attn_cuda_padding(dev, p, &kp.fwd, args->stream);
    if (status || g.work_tiles == 0) return status;
    if (!r->rest) return start(dev, r->own, &g, INT32_MAX, p, args, kp);

    const struct attn_cuda_f16x2 h = attn_cuda_f16x2(p, 0, 3);
    const struct kp_view *const from[] = {&kp.fwd.in.q, &kp.fwd.in.k, &kp.fwd.in.v};
    struct kp_view to[ATTN_CUDA_F16X2_COUNT];
    status = attn_cuda_f16x2_start(dev, &h, p, args, &kp.fwd.in, from, to, &kp.wide);
    if (!status) status = start_rest(dev, r->rest, p, args, &kp);
    kp.fwd.in.q = to[ATTN_CUDA_F16X2_Q];
    kp.fwd.in.k = to[ATTN_CUDA_F16X2_K];
    kp.fwd.in.v = to[ATTN_CUDA_F16X2_V];
    if (!status) status = start(dev, r->own, &g, INT32_MAX, p, args, kp);
    return status;
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* Passes over the tables of variants: the configurations, then the rows that point at them. */
#define CONFIG(chip, tail, others, ...)                                                                                \
    static const struct kp_sdpa_wide_config config_##chip##_##tail = {.symbol = "attn_sdpa_fwd_" #chip "_" #tail,      \
                                                                      __VA_ARGS__};                                    \
    static const struct fwd_row row_##chip##_##tail = {&config_##chip##_##tail, others};
#define VARIANT(tail, source, ...) CONFIG(sm80, tail, NULL, __VA_ARGS__)
#include "kernels/variants/sdpa_fwd_sm80.f32.def"
#include "kernels/variants/sdpa_fwd_sm80.f64.def"
#undef VARIANT
#define VARIANT(tail, source, ...) CONFIG(sm90, tail, NULL, __VA_ARGS__)
#include "kernels/variants/sdpa_fwd_sm90.f64.def"
#undef VARIANT
#define VARIANT(tail, source, ...) CONFIG(sm80, tail, &config_sm80_f32_d64, __VA_ARGS__)
#include "kernels/variants/sdpa_fwd_sm80.halves.def"
#undef VARIANT

/* Of the rows whose kernels stand elsewhere. */
static const struct kp_sdpa_wide_config *const rest = &config_sm80_f32_d64;
int attn_cuda_fwd_rest_refuse(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why) {
    return attn_cuda_refuse_image(dev, rest->symbol, memory_of(rest, attn_cuda_limits_of(dev), p).bytes, why);
}
attn_status attn_cuda_fwd_rest_prepare(struct attn_core_device *dev, const attn_problem *p) {
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(rest->symbol),
                                  (uint32_t)memory_of(rest, attn_cuda_limits_of(dev), p).bytes);
}
attn_status attn_cuda_fwd_rest(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                               const struct kp_sdpa_wide_fwd *kp) {
    return start_rest(dev, rest, p, args, kp);
}

#define ROW(chip, tail, needs, math, words, dtype_of_line)                                                             \
    {.name = "attn_sdpa_fwd_" #chip "_" #tail,                                                                         \
     .arch = #chip,                                                                                                    \
     .summary = "D and DV to 512; the number in the name is the value columns that a CTA makes at a time" words,       \
     .op = ATTN_OP_SDPA_FWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(math),                                                                                              \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .max_logits = 1,                                                                                                  \
     .features = needs,                                                                                                \
     .impl = &row_##chip##_##tail,                                                                                     \
     .workspace = workspace},
const struct attn_kernel attn_cuda_sdpa_fwd_wide_rows[] = {
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm80, tail, ATTN_CUDA_SM80, ATTN_F32, "; no pages", dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm80.halves.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm80, tail, ATTN_CUDA_SM80, ATTN_F32, "", dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm80.f32.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm90, tail, ATTN_CUDA_SM90A, ATTN_F64, "", dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm90.f64.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm80, tail, ATTN_CUDA_SM80, ATTN_F64, "", dtype_of_line)
#include "kernels/variants/sdpa_fwd_sm80.f64.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_fwd_wide_rows =
    sizeof attn_cuda_sdpa_fwd_wide_rows / sizeof attn_cuda_sdpa_fwd_wide_rows[0];
