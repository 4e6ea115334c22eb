/* SPDX-License-Identifier: MIT
 * Attention distribution on Blackwell over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/dist_joined_sm100.def. The device's side: kernels/sm100/dist/dist.cu with group.h, which leaves sums
 * by entry, and kernels/smxx/mla_bwd_finish.cu, which brings them to slots and divides. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/sparse/dist.h"
#include "cuda/sparse/mla_bwd_joined.h"
#include "cuda/sparse/mla_maps.h"
#include "kernels/params/mla_sm100.h"

enum { COLUMNS = KP_SM100_HEADS /* of a pair of CTAs */ };
/* Of sums of groups at a time, room for the longest unions; what unions that share much leave stays in the second-level
 * cache until the next launch has read it. */
static const int64_t VALUE_BYTES = INT64_C(256) << 20;

/* Groups, pairs of CTAs at once, groups of a launch, entries of a group at most, and places in the workspace. */
struct geometry {
    int64_t group, groups, pairs, listed, entries;
    uint64_t values, end;
};
static struct geometry lay_out(const struct attn_core_device *dev, const attn_problem *p) {
    const int32_t n_sms = attn_cuda_limits_of(dev)->n_sms;
    const int64_t limit = attn_cuda_limits_of(dev)->chunk_limit;
    struct geometry g = {.group = attn_cuda_mla_joined_group(p, COLUMNS), .pairs = n_sms > 1 ? n_sms / 2 : 1};
    if (!g.group || p->batch <= 0) return (struct geometry){0};
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.entries = attn_cuda_blocks(g.group * p->topk, 128) * 128;
    const int64_t bytes = g.group * g.entries * (int64_t)sizeof(float), rounds = VALUE_BYTES / (bytes * g.pairs);
    g.listed = attn_cuda_lesser(attn_cuda_mla_joined_listed(p, COLUMNS, g.pairs), (rounds > 1 ? rounds : 1) * g.pairs);
    if (limit > 0) g.listed = attn_cuda_lesser(g.listed, limit);
    g.values = attn_cuda_mla_joined_bytes(dev, p, COLUMNS, g.listed);
    g.end = g.values + (uint64_t)(g.listed * bytes);
    return g;
}

static const char *finish_symbol(void) { return attn_cuda_mla_bwd_joined_symbols[ATTN_CUDA_MLA_BWD_JOINED_DIST]; }

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_dist_joined_sm100_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why) || attn_cuda_refuse_tensor_maps(dev, why)) return 0;
    return !attn_cuda_mla_refuse(p, why) && !attn_cuda_mla_joined_refuse(dev, p, COLUMNS, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, KP_DIST_SM100_SHARED(c->dim), why) &&
           !attn_cuda_refuse_image(dev, finish_symbol(), 0, why);
}
static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    return attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_Q, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_KV, role, why);
}

/* Counted, not timed: a tile of 256 entries costs what one of slots does in dist_sm100.c for 128 heads, and the second
 * launch writes and reads a number for each entry and query. Pairs of 33 heads and more compete with
 * rows of 64 heads: how much their lists share is not known unless the problem hands over the lists. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_dist_joined_sm100_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    if (!g.groups) return 1e-6;
    const double entries = p->heads_q <= 32 ? attn_cuda_mla_joined_entries(p, g.group)
                                            : attn_cuda_mla_joined_entries_of_pair(p),
                 tiles = entries / KP_DIST_SM100_KEYS + 0.5, rounds = (double)g.groups / (double)g.pairs;
    return (double)(g.groups / g.listed + 1) * 8e-6 + attn_cuda_mla_joined_time(dev, p, COLUMNS) +
           (double)(g.groups * g.group) * (entries + (double)p->topk) * 4 / 3e12 +
           (rounds < 1 ? 1 : rounds) * (tiles * 2900 * 4 / 3 * c->dim / 576 + 2000) / 1.85e9;
}

static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    (void)k;
    return attn_cuda_mla_joined_group(p, COLUMNS);
}
static int64_t union_limit_of(const struct attn_kernel *k, const attn_problem *p) {
    return attn_cuda_mla_joined_limit(p, group_of(k, p));
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k;
    return lay_out(dev, p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_dist_joined_sm100_config *c = k->impl;
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_DIST_SM100_SHARED(c->dim)));
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(finish_symbol()), 0));
    return attn_cuda_mla_joined_prepare(dev, p, COLUMNS);
}

/* Sums to slots. */
static attn_status queue_finish(const struct attn_core_device *dev, const attn_problem *p, const attn_args *args,
                                const struct kp_dist_sm100 *kp) {
    const struct kp_mla_bwd_joined finish = {.bwd = {.in = kp->dist.in,
                                                     .dist = kp->dist.dist,
                                                     .part_dist = kp->values,
                                                     .first = kp->from,
                                                     .n = kp->dist.work_tiles,
                                                     .dist_blocks = 1,
                                                     .dist_norm = p->dist_norm},
                                             .joined = kp->joined};
    return attn_cuda_mla_bwd_joined_step(
        dev, args, finish_symbol(), attn_cuda_blocks(finish.bwd.n * kp->joined.group, ATTN_CUDA_MLA_BWD_JOINED_WARPS),
        &finish, sizeof finish);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_dist_joined_sm100_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    const uint64_t memory = (uint64_t)(uintptr_t)args->workspace;
    struct kp_dist_sm100 kp = {.dist = attn_cuda_dist_params(p, args), .values = memory + g.values};
    if (!g.groups) return ATTN_OK;
    const uint32_t heads = COLUMNS / (uint32_t)g.group, queries = (uint32_t)g.group / 2; /* of a CTA's columns */
    kp.dist.blocks = kp.dist.splits = 1;
    kp.kv_rows = attn_cuda_mla_map_rows(&kp.dist.in);
    TRY(attn_cuda_mla_map_queries(dev, "q", &kp.dist.in, &kp.dist.in.q, c->dim, heads, queries, 64, &kp.q));
    TRY(attn_cuda_mla_map_keys(dev, &kp.dist.in, 64, &kp.kv));
    for (; kp.from < g.groups; kp.from += g.listed) {
        kp.dist.work_tiles = attn_cuda_lesser(g.listed, g.groups - kp.from);
        const struct attn_cuda_grid grid = {.x = (uint32_t)(2 * attn_cuda_lesser(kp.dist.work_tiles, g.pairs)),
                                            .y = 1,
                                            .z = 1,
                                            .threads = KP_DIST_SM100_THREADS,
                                            .cluster = 2,
                                            .shared_bytes = (uint32_t)KP_DIST_SM100_SHARED(c->dim)};
        TRY(attn_cuda_mla_joined_queue(dev, p, args, COLUMNS, memory, kp.from, kp.from + kp.dist.work_tiles,
                                       &kp.joined));
        TRY(attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream));
        TRY(queue_finish(dev, p, args, &kp));
    }
    return ATTN_OK;
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_dist_joined_sm100_config config_##tail = {.symbol = "attn_dist_joined_sm100_" #tail,        \
                                                                     __VA_ARGS__};
#include "kernels/variants/dist_joined_sm100.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_dist_joined_sm100_" #tail,                                                                          \
     .arch = "sm100",                                                                                                  \
     .summary = "simulated, not yet run on silicon; D as in the name, to 64 heads; joins lists of neighbouring "       \
                "queries, 128 columns",                                                                                \
     .op = ATTN_OP_DIST,                                                                                               \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_MLA_JOINED_ROW,                                                                                         \
     .refuses_strides = refuses_strides,                                                                               \
     .features = ATTN_CUDA_SM100A,                                                                                     \
     .impl = &config_##tail},
const struct attn_kernel attn_cuda_dist_joined_sm100_rows[] = {
#include "kernels/variants/dist_joined_sm100.def"
};
#undef VARIANT
const int32_t attn_cuda_n_dist_joined_sm100_rows =
    sizeof attn_cuda_dist_joined_sm100_rows / sizeof attn_cuda_dist_joined_sm100_rows[0];
