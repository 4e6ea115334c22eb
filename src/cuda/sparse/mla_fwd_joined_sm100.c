/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Blackwell over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/mla_fwd_joined_sm100.def. The device's side: kernels/sm100/mla_fwd/mla_fwd.cu with group.h. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/sparse/mla_joined.h"
#include "cuda/sparse/mla_maps.h"
#include "kernels/params/mla_sm100.h"

enum { ROWS = KP_SM100_HEADS /* of a pair of CTAs */ };

/* Groups, pairs of CTAs at once, groups that are joined at a time, and places in the workspace. */
struct geometry {
    int64_t group, groups, pairs, listed;
    uint64_t marks, end;
};
static struct geometry lay_out(const struct attn_core_device *dev, const attn_problem *p) {
    const int32_t n_sms = attn_cuda_limits_of(dev)->n_sms;
    const int64_t limit = attn_cuda_limits_of(dev)->chunk_limit;
    struct geometry g = {.group = attn_cuda_mla_joined_group(p, ROWS), .pairs = n_sms > 1 ? n_sms / 2 : 1};
    if (!g.group || p->batch <= 0) return (struct geometry){0};
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.listed = attn_cuda_mla_joined_listed(p, ROWS, g.pairs);
    if (limit > 0) g.listed = attn_cuda_lesser(g.listed, limit);
    g.marks = attn_cuda_mla_joined_bytes(dev, p, ROWS, g.listed);
    g.end = g.marks + (uint64_t)g.listed * sizeof(uint64_t);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_fwd_joined_sm100_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why) || attn_cuda_refuse_tensor_maps(dev, why)) return 0;
    return !attn_cuda_mla_refuse(p, why) && !attn_cuda_mla_joined_refuse(dev, p, ROWS, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_FWD_SM100_SHARED(c->dim), why);
}
static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    return attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_Q, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_KV, role, why);
}

/* Counted, not timed: a tile of entries costs what one of slots of 128 heads does in mla_fwd_sm100.c. Queries of 33
 * heads or more have rows that fill 64 without neighbours: joining pays from J = 0.45 on. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_fwd_joined_sm100_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    if (!g.groups) return 1e-6;
    const double entries = p->heads_q <= 32 ? attn_cuda_mla_joined_entries(p, g.group)
                                            : attn_cuda_mla_joined_entries_of_pair(p),
                 tiles = entries / KP_SM100_KEYS + 0.5, rounds = (double)g.groups / (double)g.pairs,
                 launches = (double)(g.groups / g.listed + 1);
    return launches * 4e-6 + attn_cuda_mla_joined_time(dev, p, ROWS) +
           (rounds < 1 ? 1 : rounds) * (tiles * (c->dim == 576 ? 1300 : 1170) / 0.75 + 4000) / 1.85e9;
}

static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    (void)k;
    return attn_cuda_mla_joined_group(p, ROWS);
}
static int64_t union_limit_of(const struct attn_kernel *k, const attn_problem *p) {
    return attn_cuda_mla_joined_limit(p, group_of(k, p));
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k;
    return lay_out(dev, p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_joined_sm100_config *c = k->impl;
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_FWD_SM100_SHARED(c->dim)));
    return attn_cuda_mla_joined_prepare(dev, p, ROWS);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_fwd_joined_sm100_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    const uint64_t memory = (uint64_t)(uintptr_t)args->workspace;
    const uint32_t queries = (uint32_t)g.group, heads = ROWS / queries;
    struct kp_mla_fwd_joined_sm100 kp = {.marks = memory + g.marks};
    struct kp_mla_fwd_sm100 *fwd = &kp.fwd;
    struct kp_mla *in = &fwd->in;
    if (!g.groups) return ATTN_OK;
    attn_cuda_mla_inputs(in, p, args);
    fwd->out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    fwd->lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    fwd->max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    fwd->blocks = fwd->splits = 1;
    fwd->kv_rows = attn_cuda_mla_map_rows(in);
    TRY(attn_cuda_mla_map_queries(dev, "q", in, &in->q, c->dim, heads, queries, 64, &fwd->q));
    TRY(attn_cuda_mla_map_queries(dev, "q", in, &in->q, c->dim, heads, queries, 32, &fwd->q_rope));
    TRY(attn_cuda_mla_map_keys(dev, in, 64, &fwd->kv));
    TRY(attn_cuda_mla_map_keys(dev, in, 32, &fwd->rope));
    for (; kp.from < g.groups; kp.from += g.listed) {
        fwd->works = attn_cuda_lesser(g.listed, g.groups - kp.from);
        const struct attn_cuda_grid grid = {.x = (uint32_t)(2 * attn_cuda_lesser(fwd->works, g.pairs)),
                                            .y = 1,
                                            .z = 1,
                                            .threads = KP_MLA_FWD_SM100_THREADS,
                                            .cluster = 2,
                                            .shared_bytes = (uint32_t)KP_MLA_FWD_SM100_SHARED(c->dim)};
        TRY(attn_cuda_mla_joined_queue(dev, p, args, ROWS, memory, kp.from, kp.from + fwd->works, &kp.joined));
        TRY(attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream));
    }
    return ATTN_OK;
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_fwd_joined_sm100_config config_##tail = {.symbol = "attn_mla_fwd_joined_sm100_" #tail,  \
                                                                        __VA_ARGS__};
#include "kernels/variants/mla_fwd_joined_sm100.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_mla_fwd_joined_sm100_" #tail,                                                                       \
     .arch = "sm100",                                                                                                  \
     .summary = "simulated, not yet run on silicon; D as in the name, to 64 heads; joins lists of neighbouring "       \
                "queries, 128 rows",                                                                                   \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_MLA_JOINED_ROW,                                                                                         \
     .refuses_strides = refuses_strides,                                                                               \
     .features = ATTN_CUDA_SM100A,                                                                                     \
     .impl = &config_##tail},
const struct attn_kernel attn_cuda_mla_fwd_joined_sm100_rows[] = {
#include "kernels/variants/mla_fwd_joined_sm100.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_joined_sm100_rows =
    sizeof attn_cuda_mla_fwd_joined_sm100_rows / sizeof attn_cuda_mla_fwd_joined_sm100_rows[0];
