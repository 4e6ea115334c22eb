/* SPDX-License-Identifier: MIT
 * Dense backward on CUDA, the host's side: kernel rows from kernels/variants/sdpa_bwd_sm80.def, what each refuses, the
 * workspace, and the launches of an execution. The device's side: kernels/sm80/sdpa_bwd.cu and what its header names.
 */
#include "core/problem.h"
#include "cuda/dense/dout.h"
#include "cuda/dense/sdpa.h"

#include <inttypes.h>

enum { MAX_LENGTH = ATTN_CUDA_MAX_LENGTH };
static const char sums_symbol[] = "attn_sdpa_bwd_smxx_sums";

/* What differs with the type: f16 has a factor for dS, made of bounds that prepare finds, undone by convert too. */
struct steps_of_type {
    const char *prepare, *convert, *bias;
    size_t params_bytes; /* of prepare, main and convert */
    int scaled;
};
static const struct steps_of_type *steps_of(const attn_problem *p) {
    static const struct steps_of_type bf16 = {"attn_sdpa_bwd_smxx_prepare", "attn_sdpa_bwd_smxx_convert",
                                              "attn_sdpa_bwd_bias_sm80_bf16", sizeof(struct kp_sdpa_bwd), 0};
    static const struct steps_of_type f16 = {"attn_sdpa_bwd_smxx_prepare_f16", "attn_sdpa_bwd_smxx_convert_f16",
                                             "attn_sdpa_bwd_bias_sm80_f16", sizeof(struct kp_sdpa_bwd_scaled), 1};
    return p->dtype == ATTN_F16 ? &f16 : &bf16;
}

static int wants_bias(const attn_problem *p) { return attn_core_has(p, ATTN_GRAD_MASK | ATTN_GRAD_ALIBI); }
static int wants_sums(const attn_problem *p) { return attn_core_has(p, ATTN_GRAD_SINK | ATTN_GRAD_ALIBI); }

/* How a problem is dealt to CTAs, and where in the workspace what lies: a function of problem and device alone. */
struct geometry {
    int64_t key_tiles, row_tiles, bias_tiles, section, items;
    int64_t bound_tiles; /* of keys, of the rows' tile height: struct kp_sdpa_bwd_scaled */
    int64_t stat_rows;
    struct {
        int64_t lse, shift, share, dsink, dalibi, dq, turns, turns_bytes, row_bounds, key_bounds, undo, end;
    } at;
};

static int64_t take(int64_t *end, int64_t numbers) {
    const int64_t at = *end;
    *end += attn_cuda_blocks(numbers, 64) * 64 * 4;
    return at;
}

static struct geometry lay_out(const struct attn_kernel *k, const struct attn_cuda_limits *l, const attn_problem *p) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    struct geometry g = {0};
    if (p->batch <= 0 || p->heads_q <= 0) return g;
    const int64_t heads = p->batch * p->heads_k, group = p->heads_q / p->heads_k;
    g.key_tiles = attn_cuda_blocks(p->seq_k, c->keys);
    g.row_tiles = attn_cuda_blocks(p->seq_q, c->rows);
    g.bias_tiles = attn_cuda_blocks(p->seq_q, KP_SDPA_BWD_BIAS_TILE);
    g.items = heads * g.key_tiles;
    /* Packed sequences begin at multiples of the tile height, see first_stat_row() of the device's side. */
    g.stat_rows = attn_core_has(p, ATTN_PACKED) ? (attn_cuda_blocks(p->total_q, c->rows) + p->batch + 1) * c->rows
                                                : p->batch * g.row_tiles * c->rows;
    /* Heads dealt together share half of the second-level cache; in order, all: a CTA waits for the key tile before. */
    const int64_t bytes = group * p->seq_q * (2 * (p->dim_qk + p->dim_v) + 4 * c->dim) + 1,
                  fit = l->l2_bytes / 2 / bytes;
    g.section = k->deterministic ? attn_cuda_lesser(heads, INT32_MAX) : attn_cuda_section(heads, 1, fit);

    const int64_t rows = p->heads_q * g.stat_rows;
    int64_t *end = &g.at.end;
    g.at.lse = take(end, rows);
    g.at.shift = take(end, rows);
    g.at.share = take(end, c->full ? rows : 0);
    g.at.dsink = take(end, attn_core_has(p, ATTN_GRAD_SINK) ? rows : 0);
    g.at.dalibi = take(end, attn_core_has(p, ATTN_GRAD_ALIBI) ? p->batch * p->heads_q * g.bias_tiles : 0);
    g.at.turns_bytes = k->deterministic ? (rows / c->rows + 1) * 4 : 0;
    g.at.turns = take(end, g.at.turns_bytes / 4);
    g.at.dq = take(end, rows * c->dim);
    if (!steps_of(p)->scaled) return g;
    g.bound_tiles = attn_cuda_blocks(p->seq_k, c->rows);
    g.at.row_bounds = take(end, 2 * p->batch * p->heads_q * g.row_tiles);
    g.at.key_bounds = take(end, heads * g.bound_tiles);
    g.at.undo = take(end, heads);
    return g;
}

/* ------------------------------------------------------------------ what a row refuses ------------- */

static int refuse_features(const struct kp_sdpa_bwd_config *c, const attn_problem *p, struct attn_text *why) {
    const char *missing = p->softcap > 0  ? "softcap"
                          : p->alibi      ? "ALiBi"
                          : p->mask_dtype ? "a mask"
                          : attn_core_has(p, ATTN_SINK) && !attn_core_has(p, ATTN_LSE_WITH_SINK)
                              ? "a sink that lse excludes"
                              : NULL;
    if (!c->full && missing) attn_text_add(why, "has no code for %s: the _full variants do", missing);
    return !c->full && missing;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    if (attn_cuda_sdpa_refuse(p, c->dim, c->dim, why) || refuse_features(c, p, why) ||
        attn_cuda_refuse_image(dev, c->symbol, KP_SDPA_BWD_SHARED_BYTES(*c), why) ||
        attn_cuda_refuse_image(dev, steps_of(p)->prepare, 0, why) ||
        attn_cuda_refuse_image(dev, steps_of(p)->convert, 0, why) || attn_cuda_padding_refuse(dev, p, why) ||
        attn_cuda_dout_refuse(dev, why) || (wants_sums(p) && attn_cuda_refuse_image(dev, sums_symbol, 0, why)) ||
        (wants_bias(p) && attn_cuda_refuse_image(dev, steps_of(p)->bias, KP_SDPA_BWD_BIAS_SHARED_BYTES, why)))
        return 0;
    /* below 2^28 each, and rows of the workspace are far fewer than 2^62 */
    const int64_t items = p->batch * p->heads_k * attn_cuda_blocks(p->seq_k, c->keys);
    const double numbers = (double)p->batch * (double)p->heads_q * (double)p->seq_q * 1024;
    if (items > INT32_MAX || numbers > 1e17) {
        attn_text_add(why, "%" PRId64 " key tiles or a workspace of %g numbers are too many", items, numbers);
        return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------ estimate, workspace ------------ */

/* The share of the device's rate that the problem's CTAs reach: a multiprocessor without one does nothing, and one of
 * two that fit does two thirds of what both do. */
static double occupancy(const struct kp_sdpa_bwd_config *c, const struct attn_cuda_limits *l, const attn_problem *p) {
    const double items = (double)p->batch * (double)p->heads_k * (double)attn_cuda_blocks(p->seq_k, c->keys),
                 sms = l->n_sms, alone = c->ctas > 1 ? 0.67 : 1;
    if (items >= sms * c->ctas) return 1;
    if (items <= sms) return alone * (items > 1 ? items : 1) / sms;
    return alone + (1 - alone) * (items - sms) / (sms * (c->ctas - 1));
}

/* Rates are fractions of the 1024 multiply-adds a cycle of mma.sync at 1.7 GHz, the padding to the variant's dims
 * counted; fewer warps on a multiprocessor than a row is made for hide less. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double dims = (double)(3 * p->dim_qk + 2 * p->dim_v), peak = 2048 * 1.7e9 * l->n_sms * occupancy(c, l, p);
    const double padding = dims > 0 ? 5 * c->dim / dims : 1;
    const int32_t fit = l->shared_per_sm / (KP_SDPA_BWD_SHARED_BYTES(*c) + 1024);
    const double rate = (c->full ? 0.35 : 0.6) * (fit < c->ctas ? 0.6 : 1) * (k->deterministic ? 0.75 : 1);
    const double compute = amount->flops * padding / (peak * rate);
    const double memory =
        (amount->bytes + 12.0 * (double)(p->batch * p->heads_q) * (double)p->seq_q * c->dim) / (2e10 * l->n_sms);
    return 1e-5 + (compute + memory) * (1 + 1e-4 * c->dim) * (1 + 1e-3 * (128 - c->keys));
}

static uint64_t dout_offset(const struct geometry *g) { return (uint64_t)g->at.end; }

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(k, attn_cuda_limits_of(dev), p);
    return dout_offset(&g) + ATTN_CORE_DOUT_BYTES;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    const struct {
        const char *symbol;
        int64_t bytes;
        int wanted;
    } images[] = {
        {c->symbol, KP_SDPA_BWD_SHARED_BYTES(*c), 1},
        {steps_of(p)->prepare, 0, 1},
        {steps_of(p)->convert, 0, 1},
        {sums_symbol, 1024, wants_sums(p)},
        {steps_of(p)->bias, KP_SDPA_BWD_BIAS_SHARED_BYTES, wants_bias(p)},
    };
    attn_status status = attn_cuda_padding_prepare(dev, p);
    if (!status) status = attn_cuda_dout_prepare(dev);
    for (size_t i = 0; i < sizeof images / sizeof *images && !status; i++)
        if (images[i].wanted)
            status = attn_cuda_variant_load(dev, attn_cuda_variant_find(images[i].symbol), (uint32_t)images[i].bytes);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

/* A launch without its tensors: the plan's note. Grids that depend on which gradients are asked for are 0. */
enum { PREPARE, MAIN, CONVERT, BIAS, SUMS, STEPS };
struct note {
    struct kp_sdpa_bwd_scaled kp;
    struct geometry g;
    struct attn_cuda_work work[STEPS];
};

static void set_outputs(struct kp_sdpa_bwd *kp, const struct geometry *g, const attn_problem *p,
                        const attn_args *args) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    attn_cuda_sdpa_gradients(kp, p, args);
    kp->stat_lse = base + (uint64_t)g->at.lse;
    kp->stat_shift = base + (uint64_t)g->at.shift;
    kp->dsink_row = kp->dsink ? base + (uint64_t)g->at.dsink : 0;
    kp->dalibi_tile = kp->dalibi ? base + (uint64_t)g->at.dalibi : 0;
    kp->dq_sum = kp->dq.data ? base + (uint64_t)g->at.dq : 0;
}

static void set_workspace(struct kp_sdpa_bwd *kp, const struct geometry *g, const struct attn_kernel *k,
                          const attn_problem *p, const attn_args *args) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    kp->stat_g = c->full ? base + (uint64_t)g->at.share : 0;
    kp->turns = k->deterministic && kp->dq_sum && g->row_tiles > 0 ? base + (uint64_t)g->at.turns : 0;
    if (kp->dmask.data && p->seq_q > 0 && p->seq_k > 0)
        kp->mask_items = (kp->dmask.batch ? p->batch : 1) * (kp->dmask.head ? p->heads_q : 1) *
                         (kp->dmask.row ? g->bias_tiles : 1) *
                         (kp->dmask.column ? attn_cuda_blocks(p->seq_k, KP_SDPA_BWD_BIAS_TILE) : 1);
    kp->alibi_items = kp->dalibi ? p->batch * p->heads_q * g->bias_tiles : 0;
}

static void set_bounds(struct kp_sdpa_bwd_scaled *kp, const struct geometry *g, const attn_args *args) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    kp->row_bounds = base + (uint64_t)g->at.row_bounds;
    kp->key_bounds = base + (uint64_t)g->at.key_bounds;
    kp->undo = base + (uint64_t)g->at.undo;
}

static void set_geometry(struct kp_sdpa_bwd *kp, const struct geometry *g, const struct kp_sdpa_bwd_config *c) {
    kp->stat_rows = g->stat_rows;
    kp->rows = c->rows;
    kp->dim = c->dim;
    kp->stat_log2 = !c->full;
    kp->row_warps = c->q_rows;
    kp->dim_warps = c->warps / c->q_rows;
    kp->key_tiles = (int32_t)g->key_tiles;
    kp->row_tiles = (int32_t)g->row_tiles;
    kp->bias_tiles = (int32_t)g->bias_tiles;
    kp->section = (int32_t)g->section;
}

static uint32_t grid_of(int64_t ctas) { return (uint32_t)attn_cuda_lesser(ctas < 0 ? 0 : ctas, INT32_MAX); }

static struct attn_cuda_work step(const struct attn_core_device *dev, const char *symbol, size_t params_bytes,
                                  int64_t ctas, int64_t threads, int64_t shared_bytes) {
    return (struct attn_cuda_work){
        .variant = attn_cuda_variant_of(dev, symbol),
        .params_bytes = params_bytes,
        .grid = {
            .x = grid_of(ctas), .y = 1, .z = 1, .threads = (uint32_t)threads, .shared_bytes = (uint32_t)shared_bytes}};
}

static void write_note(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       void *out) {
    const struct kp_sdpa_bwd_config *c = k->impl;
    struct note *note = out;
    const struct geometry g = lay_out(k, attn_cuda_limits_of(dev), p);
    const struct steps_of_type *of = steps_of(p);
    const int64_t row_tiles = p->batch * p->heads_q * g.row_tiles, key_tiles = p->batch * p->heads_k * g.bound_tiles;
    const size_t bytes = sizeof note->kp.bwd;
    note->g = g;
    attn_cuda_sdpa_numbers(&note->kp.bwd.in, p);
    set_geometry(&note->kp.bwd, &g, c);
    note->kp.bound_tiles = (int32_t)g.bound_tiles;
    note->work[PREPARE] = step(dev, of->prepare, of->params_bytes, row_tiles + key_tiles, 256, 0);
    note->work[MAIN] = step(dev, c->symbol, of->params_bytes, g.items, 32 * c->warps, KP_SDPA_BWD_SHARED_BYTES(*c));
    note->work[CONVERT] = step(dev, of->convert, of->params_bytes, row_tiles, 256, 0);
    if (wants_bias(p)) note->work[BIAS] = step(dev, of->bias, bytes, 0, 128, KP_SDPA_BWD_BIAS_SHARED_BYTES);
    if (wants_sums(p)) note->work[SUMS] = step(dev, sums_symbol, bytes, 0, 256, 1024);
}

static attn_status launch_noted(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                                const void *from, const attn_args *args) {
    const struct note *note = from;
    const struct geometry *g = &note->g;
    struct kp_sdpa_bwd_scaled all = note->kp;
    struct kp_sdpa_bwd *kp = &all.bwd;
    struct attn_cuda_work work[STEPS];
    int32_t n = 0;
    struct attn_core_dout room;
    if (p->heads_q <= 0) return ATTN_OK;
    attn_status status = attn_cuda_dout(dev, dout_offset(g), &args, &room);
    if (status) return status;
    attn_cuda_sdpa_tensors(&kp->in, p, args);
    set_outputs(kp, g, p, args);
    set_workspace(kp, g, k, p, args);
    if (steps_of(p)->scaled) set_bounds(&all, g, args);
    status = attn_cuda_padding(dev, p, kp, args->stream);
    if (status) return status;
    const int wanted[STEPS] = {[PREPARE] = 1,
                               [MAIN] = kp->dq.data || kp->dk.data || kp->dv.data,
                               [CONVERT] = kp->dq.data != 0,
                               [BIAS] = wants_bias(p),
                               [SUMS] = wants_sums(p)};
    for (int32_t i = 0; i < STEPS; i++) {
        if (!wanted[i]) continue;
        work[n] = note->work[i];
        work[n].params = &all;
        if (i == BIAS) work[n].grid.x = grid_of(kp->mask_items + kp->alibi_items);
        if (i == SUMS) work[n].grid.x = grid_of(p->heads_q * (kp->dalibi && kp->dalibi_per_batch ? 1 + p->batch : 2));
        n += work[n].grid.x > 0;
    }
    return attn_cuda_launch_all(dev, work, n, args->stream);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct note note = {0};
    write_note(k, dev, p, &note);
    return launch_noted(k, dev, p, &note, args);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* Each variant makes two rows: sums of dQ in any order, and in the order of the key tiles. */
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_bwd_config config_##tail = {.symbol = "attn_sdpa_bwd_sm80_" #tail, __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_sm80.def"
#undef VARIANT

#define ROW(tail, ordered_tail, is_ordered, words, dtype_of_line)                                                      \
    {.name = "attn_sdpa_bwd_sm80_" #tail ordered_tail,                                                                 \
     .arch = "sm80",                                                                                                   \
     .summary = "D and DV to the number in the name, any strides; softcap, ALiBi, mask: _full rows only" words,        \
     .op = ATTN_OP_SDPA_BWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = is_ordered,                                                                                      \
     .bit_stable = is_ordered,                                                                                         \
     .features = ATTN_CUDA_SM80,                                                                                       \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace,                                                                                           \
     ATTN_CUDA_NOTED},
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROW(tail, "", 0, "; dQ is summed in any order", dtype_of_line)                                                     \
    ROW(tail, "_ordered", 1, "; dQ is summed in order", dtype_of_line)
const struct attn_kernel attn_cuda_sdpa_bwd_rows[] = {
#include "kernels/variants/sdpa_bwd_sm80.def"
};
#undef VARIANT
const int32_t attn_cuda_n_sdpa_bwd_rows = sizeof attn_cuda_sdpa_bwd_rows / sizeof attn_cuda_sdpa_bwd_rows[0];
