/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Hopper, the host's side: kernel rows from kernels/variants/mla_fwd_sm90.def. The device's side:
 * kernels/sm90/mla_fwd/mla_fwd.cu. */
#include "core/problem.h"
#include "cuda/sparse/mla_fwd_apart.h"
#include "kernels/params/mla_apart.h"
#include "kernels/params/mla_sm90.h"

#include <inttypes.h>

static const char combine_symbol[] = "attn_mla_combine_smxx_any", order_symbol[] = "attn_mla_order_smxx_any";
static const char combine_apart[] = "attn_mla_combine_smxx_apart", order_apart[] = "attn_mla_order_smxx_apart";

/* An execution: its main kernel, its part of the workspace; gate: address of the word that says whether it has work,
 * 0: it has. */
struct execution {
    const struct attn_core_device *dev;
    const attn_problem *p;
    const attn_args *args;
    const char *symbol;
    uint64_t workspace, gate;
};

/* Bytes of lists that are ordered together. */
static const int64_t LIST_BYTES = INT64_C(64) << 20;

static uint64_t round_up(uint64_t x) { return (x + 255) / 256 * 256; }

/* Who takes what: see struct kp_mla_fwd_sm90. */
struct geometry {
    int64_t work_tiles, grid, whole, first_row, rows;
    int32_t parts, length;
    int64_t queries, listed; /* listed: whose lists are ordered together */
    int32_t wave, shift, ranges;
    uint64_t sums, list, lengths, end; /* places in the workspace */
};

/* What is left over after whole rounds is cut if that saves at least 8 tiles of 1.7 us each: sums that go through
 * memory and the kernel that merges them take about as long. */
static void cut_rest(struct geometry *g, int64_t n_sms, const attn_problem *p, int64_t blocks) {
    const int64_t tiles = (p->topk + 63) / 64, left = g->work_tiles - g->whole * n_sms;
    if (!left) return;
    const int64_t most = attn_cuda_lesser(attn_cuda_lesser(n_sms / left, tiles), KP_MLA_MAX_SPLITS),
                  length = (tiles + most - 1) / most;
    if (tiles - length < 8) return;
    g->length = (int32_t)length;
    g->parts = (int32_t)((tiles + length - 1) / length);
    if (!g->whole) g->grid = left * g->parts;
    const int64_t first = g->work_tiles - left;
    g->first_row = first / blocks * p->heads_q + first % blocks * 64;
    g->rows = p->batch * p->seq_q * p->heads_q - g->first_row;
}

/* Slots in order of ranges of keys: the work tiles that the device works on at once, `wave` queries, go through the
 * keys together, every second round in descending order, and find them in the second-level cache
 * (docs/kernels/mla_fwd_sm90.md). */
static void choose_ranges(struct geometry *g, int64_t n_sms, const attn_problem *p, int64_t blocks) {
    const int64_t pair = 2 * n_sms, pairs = LIST_BYTES / (int64_t)sizeof(int32_t) / (p->topk > 0 ? p->topk : 1) / pair;
    g->listed = attn_cuda_lesser(g->queries, (pairs > 0 ? pairs : 1) * pair); /* whole rounds */
    g->wave = (int32_t)(n_sms > blocks ? n_sms / blocks : 1);
    while ((p->seq_k - 1) >> g->shift >= KP_MLA_ORDER_RANGES) g->shift++;
    g->ranges = (int32_t)((p->seq_k - 1) >> g->shift) + 1;
}

static struct geometry lay_out(const struct kp_mla_fwd_sm90_config *c, const struct attn_core_device *dev,
                               const attn_problem *p) {
    struct geometry g = {.parts = 1};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    const int64_t blocks = (p->heads_q + 63) / 64, n_sms = attn_cuda_limits_of(dev)->n_sms;
    g.queries = g.listed = p->batch * p->seq_q;
    g.work_tiles = g.queries * blocks;
    g.whole = g.work_tiles / n_sms;
    g.grid = g.whole ? n_sms : g.work_tiles;
    cut_rest(&g, n_sms, p, blocks);
    if (g.parts > 1) g.end = round_up((uint64_t)(g.parts * g.rows * (512 + 3)) * sizeof(float));
    if (!c->ordered) return g;
    choose_ranges(&g, n_sms, p, blocks);
    g.list = g.end;
    g.lengths = g.list + round_up((uint64_t)(g.listed * p->topk) * sizeof(int32_t));
    g.end = g.lengths + round_up((uint64_t)g.listed * sizeof(int32_t));
    return g;
}

/* 1 and the reason if there is nothing to gain from an order, or the lists are not made for it. */
static int refuse_order(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why) {
    const int64_t blocks = (p->heads_q + 63) / 64, n_sms = attn_cuda_limits_of(dev)->n_sms;
    const int64_t wave = n_sms > blocks ? n_sms / blocks : 1;
    if (p->topk > KP_MLA_ORDER_SLOTS)
        attn_text_add(why, "orders lists of at most %d slots", KP_MLA_ORDER_SLOTS);
    else if (4 * (double)p->seq_k * (double)p->dim_qk <= attn_cuda_limits_of(dev)->l2_bytes) /* half of it */
        attn_text_add(why, "orders slots for keys that the second-level cache does not hold");
    else if (2 * attn_cuda_lesser(wave, p->seq_q) * p->topk < p->seq_k)
        attn_text_add(why, "queries that are worked on at once share too few keys");
    else if (p->batch > INT32_MAX / (p->seq_q > 0 ? p->seq_q : 1))
        attn_text_add(why, "orders lists of at most %" PRId32 " queries", INT32_MAX);
    else
        return attn_cuda_refuse_image(dev, order_symbol, 0, why);
    return 1;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    if (attn_cuda_mla_refuse(p, why) || (c->ordered && refuse_order(dev, p, why))) return 0;
    return !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_FWD_SM90_SHARED(c->dim), why) &&
           !attn_cuda_refuse_image(dev, combine_symbol, 0, why);
}

/* Seconds of a tile at D = 576, measured on an H100 (docs/kernels/mla_fwd_sm90.md): keys that the second-level cache
 * holds, does not hold, is far from holding. shared: another item reads the same keys at the same time. */
static double tile_time(int size, int ordered, int shared) {
    static const double plain[3][2] = {{1.97e-6, 1.84e-6}, {2.2e-6, 2.04e-6}, {2.88e-6, 2.2e-6}},
                        in_order[3][2] = {{1.97e-6, 1.84e-6}, {2.07e-6, 1.92e-6}, {2.33e-6, 2.05e-6}};
    return ordered ? in_order[size][shared] : plain[size][shared];
}

/* Rounds of work tiles over the SMs; heads are padded to 64, slots to 64. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    const double keys = 2 * (double)p->seq_k * (double)p->dim_qk, cache = attn_cuda_limits_of(dev)->l2_bytes;
    const int size = keys > 2 * cache ? 2 : keys > cache / 2;
    const double tiles = (double)((p->topk + 63) / 64);
    const double tile = tile_time(size, c->ordered, p->heads_q > 64) * (c->dim + 512) / 1088;
    const double rounds = (double)((g.work_tiles + (g.grid ? g.grid : 1) - 1) / (g.grid ? g.grid : 1));
    const double order = c->ordered ? 2e-6 + 4e-12 * (double)g.queries * (double)p->topk : 0;
    if (g.parts == 1) return 4e-6 + order + rounds * (1.5e-6 + tiles * tile);
    return 12e-6 + order + (double)g.whole * (1.5e-6 + tiles * tile) + 1.5e-6 + g.length * tile;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    return lay_out(k->impl, dev, p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    attn_status status =
        attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim));
    if (!status && c->ordered) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(order_symbol), 0);
    if (status || lay_out(c, dev, p).parts == 1) return status;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(combine_symbol), 0);
}

/* Orders the lists of queries first_query .. first_query + n - 1 and puts them in the place of the caller's. */
static attn_status queue_order(const struct execution *x, const struct geometry *g, const struct kp_mla *in,
                               struct kp_mla *listed, int64_t first_query, int64_t n) {
    const attn_problem *p = x->p;
    const uint64_t before = (uint64_t)first_query * sizeof(int32_t);
    const struct kp_mla_order_apart params = {.order = {.in = *in,
                                                        .list = x->workspace + g->list,
                                                        .lengths = x->workspace + g->lengths,
                                                        .first = (int32_t)first_query,
                                                        .n = (int32_t)n,
                                                        .wave = g->wave,
                                                        .shift = g->shift,
                                                        .ranges = g->ranges},
                                              .gate = x->gate};
    const struct kp_mla_order *kp = &params.order;
    const struct attn_cuda_grid grid = {.x = (uint32_t)n, .y = 1, .z = 1, .threads = 256};
    listed->indices.data = kp->list - before * (uint64_t)p->topk;
    listed->indices.batch = p->seq_q * p->topk, listed->indices.row = p->topk;
    listed->topk_length.data = kp->lengths - before;
    listed->topk_length.batch = p->seq_q, listed->topk_length.row = 1;
    return attn_cuda_launch(x->dev, attn_cuda_variant_find(x->gate ? order_apart : order_symbol), &grid, &params,
                            x->gate ? sizeof params : sizeof *kp, x->args->stream);
}

static attn_status queue_merge(const struct execution *x, const struct geometry *g, const struct kp_mla_fwd_sm90 *kp) {
    const struct kp_mla_combine_apart merge = {.fwd = {.in = kp->in,
                                                       .out = kp->out,
                                                       .lse = kp->lse,
                                                       .max_logits = kp->max_logits,
                                                       .part_o = kp->part_o,
                                                       .part_m = kp->part_m,
                                                       .part_l = kp->part_l,
                                                       .part_max_logits = kp->part_max_logits,
                                                       .work_tiles = g->first_row,
                                                       .splits = g->parts},
                                               .gate = x->gate};
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser((g->rows + 3) / 4, INT32_MAX), .y = 1, .z = 1, .threads = 128};
    return attn_cuda_launch(x->dev, attn_cuda_variant_find(x->gate ? combine_apart : combine_symbol), &grid, &merge,
                            x->gate ? sizeof merge : sizeof merge.fwd, x->args->stream);
}

static attn_status execute(const struct execution *x, const struct kp_mla_fwd_sm90_config *c) {
    const attn_problem *p = x->p;
    const attn_args *args = x->args;
    const struct geometry g = lay_out(c, x->dev, p);
    if (g.work_tiles == 0) return ATTN_OK;
    struct kp_mla_fwd_sm90 kp = {.first_row = g.first_row, .rows = g.rows, .length = g.length, .marks = x->gate};
    struct kp_mla in;
    attn_cuda_mla_inputs(&in, p, args);
    kp.in = in;
    kp.out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp.lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp.max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    if (g.parts > 1) {
        const uint64_t numbers = (uint64_t)(g.parts * g.rows) * sizeof(float);
        kp.part_o = x->workspace;
        kp.part_m = kp.part_o + 512 * numbers;
        kp.part_l = kp.part_m + numbers;
        kp.part_max_logits = kp.part_l + numbers;
    }
    const struct attn_cuda_grid grid = {.x = (uint32_t)g.grid,
                                        .y = 1,
                                        .z = 1,
                                        .threads = KP_MLA_FWD_SM90_THREADS,
                                        .shared_bytes = (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim)};
    attn_status status = ATTN_OK;
    for (int64_t begin = 0; begin < g.queries && !status; begin += g.listed) {
        const int64_t n = attn_cuda_lesser(g.listed, g.queries - begin), blocks = g.work_tiles / g.queries;
        const int last = begin + n == g.queries;
        kp.from = begin * blocks, kp.until = (begin + n) * blocks; /* all but the last: whole rounds */
        kp.whole = last ? g.whole - kp.from / g.grid : INT64_MAX;
        kp.parts = last ? g.parts : 1;
        if (c->ordered) status = queue_order(x, &g, &in, &kp.in, begin, n);
        if (!status)
            status = attn_cuda_launch(x->dev, attn_cuda_variant_find(x->symbol), &grid, &kp, sizeof kp, args->stream);
    }
    if (status || g.parts == 1) return status;
    kp.in = in;
    return queue_merge(x, &g, &kp);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    const struct execution x = {
        .dev = dev, .p = p, .args = args, .symbol = c->symbol, .workspace = (uint64_t)(uintptr_t)args->workspace};
    return execute(&x, c);
}

/* ------------------------------------------------------------------ queries left apart ------------- */

struct apart_config {
    const char *symbol;
    int32_t dtype, dim, apart;
};
#define VARIANT(tail, source, ...) {.symbol = "attn_mla_fwd_apart_sm90_" #tail, __VA_ARGS__},
static const struct apart_config apart_configs[] = {
#include "kernels/variants/mla_fwd_apart_sm90.def"
};
#undef VARIANT

/* The configuration, with lists in order where that pays. NULL: this build has none. */
static const struct apart_config *apart_config_of(const struct attn_core_device *dev, const attn_problem *p,
                                                  struct kp_mla_fwd_sm90_config *c) {
    struct attn_text unused = {0};
    for (size_t i = 0; i < sizeof apart_configs / sizeof apart_configs[0]; i++) {
        const struct apart_config *a = &apart_configs[i];
        if (a->dtype != p->dtype || a->dim != p->dim_qk) continue;
        *c = (struct kp_mla_fwd_sm90_config){.symbol = a->symbol, .dtype = a->dtype, .dim = a->dim};
        c->ordered = !refuse_order(dev, p, &unused);
        return a;
    }
    return NULL;
}

int attn_cuda_mla_fwd_apart_refuse(const struct attn_core_device *dev, const attn_problem *p, struct attn_text *why) {
    struct kp_mla_fwd_sm90_config c = {0};
    if (apart_config_of(dev, p, &c))
        return attn_cuda_refuse_image(dev, c.symbol, KP_MLA_FWD_SM90_SHARED(c.dim), why) ||
               attn_cuda_refuse_image(dev, combine_apart, 0, why) || attn_cuda_refuse_image(dev, order_apart, 0, why);
    attn_text_add(why, "this build has no kernel for queries whose lists are left apart");
    return 1;
}

uint64_t attn_cuda_mla_fwd_apart_bytes(const struct attn_core_device *dev, const attn_problem *p) {
    struct kp_mla_fwd_sm90_config c = {0};
    return apart_config_of(dev, p, &c) ? lay_out(&c, dev, p).end : 0;
}

attn_status attn_cuda_mla_fwd_apart_prepare(struct attn_core_device *dev, const attn_problem *p) {
    struct kp_mla_fwd_sm90_config c = {0};
    apart_config_of(dev, p, &c);
    attn_status status =
        attn_cuda_variant_load(dev, attn_cuda_variant_find(c.symbol), (uint32_t)KP_MLA_FWD_SM90_SHARED(c.dim));
    if (!status && c.ordered) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(order_apart), 0);
    return status ? status : attn_cuda_variant_load(dev, attn_cuda_variant_find(combine_apart), 0);
}

attn_status attn_cuda_mla_fwd_apart_queue(const struct attn_core_device *dev, const attn_problem *p,
                                          const attn_args *args, uint64_t workspace, uint64_t gate) {
    struct kp_mla_fwd_sm90_config c = {0};
    apart_config_of(dev, p, &c);
    const struct execution x = {
        .dev = dev, .p = p, .args = args, .symbol = c.symbol, .workspace = workspace, .gate = gate};
    return execute(&x, &c);
}

/* ------------------------------------------------------------------ rows --------------------------- */

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_fwd_sm90_config config_##tail = {.symbol = "attn_mla_fwd_sm90_" #tail, __VA_ARGS__},    \
                                               ordered_##tail = {                                                      \
                                                   .symbol = "attn_mla_fwd_sm90_" #tail, .ordered = 1, __VA_ARGS__};
#include "kernels/variants/mla_fwd_sm90.def"
#undef VARIANT

#define ROW(tail, dtype_of_line, words, row_name, row_impl)                                                            \
    {.name = row_name,                                                                                                 \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, any heads, any strides, " words,                                          \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = row_impl,                                                                                                 \
     .workspace = workspace},
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROW(tail, dtype_of_line, "any topk", "attn_mla_fwd_sm90_" #tail, &config_##tail)                                   \
    ROW(tail, dtype_of_line, "topk to 2048, slots in order of ranges of keys", "attn_mla_fwd_sm90_" #tail "_ordered",  \
        &ordered_##tail)
const struct attn_kernel attn_cuda_mla_fwd_sm90_rows[] = {
#include "kernels/variants/mla_fwd_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_sm90_rows =
    sizeof attn_cuda_mla_fwd_sm90_rows / sizeof attn_cuda_mla_fwd_sm90_rows[0];
