/* SPDX-License-Identifier: MIT
 * Attention distribution on Hopper over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/dist_joined_sm90.def. The device's side: kernels/sm90/dist/dist.cu, kernels/smxx/dist_slots.cu. */
#include "core/problem.h"
#include "cuda/sparse/dist.h"
#include "cuda/sparse/mla_joined.h"
#include "kernels/params/mla_sm90.h"

static const char slots_symbol[] = "attn_dist_slots_smxx_any";
enum { SLOTS_THREADS = 256, SLOTS_CTAS = 6 /* of an SM, by their shared memory */ };

/* Bytes of values at a time, if one round of groups has no more. */
static const int64_t VALUE_BYTES = INT64_C(256) << 20;

/* Columns of the product: 4 heads and fewer take half of them, since 16 queries would have values of 16 unions, unless
 * the lists come in such groups. */
static int64_t columns(const attn_problem *p) { return p->heads_q > 4 || p->group > 8 ? 64 : 32; }

/* Groups, CTAs, groups at a time, entries of a group at most, and places in the workspace. */
struct geometry {
    int64_t group, groups, grid, listed, row;
    uint64_t values, end;
};

static struct geometry lay_out(const struct attn_core_device *dev, const attn_problem *p) {
    struct geometry g = {.group = attn_cuda_mla_joined_group(p, columns(p))};
    if (!g.group || p->batch <= 0) return g;
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.grid = attn_cuda_lesser(attn_cuda_limits_of(dev)->n_sms, g.groups);
    g.row = attn_cuda_blocks(g.group * p->topk, 128) * 128;
    const int64_t bytes = g.group * g.row * (int64_t)sizeof(float), rounds = VALUE_BYTES / bytes / g.grid;
    g.listed = attn_cuda_lesser(attn_cuda_mla_joined_listed(p, columns(p), g.grid), (rounds > 0 ? rounds : 1) * g.grid);
    g.values = attn_cuda_mla_joined_bytes(dev, p, columns(p), g.listed);
    g.end = g.values + (uint64_t)(g.listed * bytes);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_dist_joined_sm90_config *c = k->impl;
    return !attn_cuda_mla_refuse_dim(p, c->dim, why) && !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_mla_joined_refuse(dev, p, columns(p), why) &&
           !attn_cuda_dist_refuse(dev, c->symbol, KP_DIST_SM90_SHARED(c->dim, 1), why) &&
           !attn_cuda_refuse_image(dev, slots_symbol, 0, why);
}

/* Rounds of groups, tiles as in dist_sm90.c; values are written and read at 2 TB/s. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_dist_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    if (!g.groups) return 1e-6;
    const double entries = attn_cuda_mla_joined_entries(p, g.group), rounds = (double)(g.groups / g.grid + 1);
    const double traffic = 8e-12 / 2 * (double)g.groups * (double)g.group * (entries + (double)p->topk);
    return (double)(g.groups / g.listed + 1) * 8e-6 + (p->dist_norm == ATTN_DIST_L1 ? 4e-6 : 0) +
           attn_cuda_mla_joined_time(dev, p, columns(p)) + traffic +
           rounds * (2e-6 + (entries / 64 + 0.5) * 1.3e-6 * c->dim / 576);
}

static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    (void)k;
    return attn_cuda_mla_joined_group(p, columns(p));
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k;
    return lay_out(dev, p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_dist_joined_sm90_config *c = k->impl;
    attn_status status = attn_cuda_dist_prepare(dev, c->symbol, KP_DIST_SM90_SHARED(c->dim, 1), p);
    if (!status) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(slots_symbol), 0);
    return status ? status : attn_cuda_mla_joined_prepare(dev, p, columns(p));
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_dist_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    const uint64_t memory = (uint64_t)(uintptr_t)args->workspace;
    const struct kp_dist dist = attn_cuda_dist_params(p, args);
    struct kp_dist_joined kp = {.in = dist.in,
                                .lse = dist.lse,
                                .dist = dist.dist,
                                .values = memory + g.values,
                                .factor = dist.factor,
                                .row = (int32_t)g.row};
    const int64_t slots_ctas = (int64_t)attn_cuda_limits_of(dev)->n_sms * SLOTS_CTAS;
    const struct attn_cuda_grid grid = {.x = (uint32_t)g.grid,
                                        .y = 1,
                                        .z = 1,
                                        .threads = KP_MLA_FWD_SM90_THREADS,
                                        .shared_bytes = (uint32_t)KP_DIST_SM90_SHARED(c->dim, 1)};
    if (!g.groups) return ATTN_OK;
    for (kp.from = 0; kp.from < g.groups; kp.from = kp.until) {
        kp.until = attn_cuda_lesser(kp.from + g.listed, g.groups);
        const struct attn_cuda_grid slots = {.x =
                                                 (uint32_t)attn_cuda_lesser((kp.until - kp.from) * g.group, slots_ctas),
                                             .y = 1,
                                             .z = 1,
                                             .threads = SLOTS_THREADS};
        attn_status status =
            attn_cuda_mla_joined_queue(dev, p, args, columns(p), memory, kp.from, kp.until, &kp.joined);
        if (!status)
            status = attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream);
        if (!status)
            status =
                attn_cuda_launch(dev, attn_cuda_variant_of(dev, slots_symbol), &slots, &kp, sizeof kp, args->stream);
        if (status) return status;
    }
    return attn_cuda_dist_norm(dev, &dist, p, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_dist_joined_sm90_config config_##tail = {.symbol = "attn_dist_joined_sm90_" #tail,          \
                                                                    __VA_ARGS__};
#include "kernels/variants/dist_joined_sm90.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_dist_joined_sm90_" #tail,                                                                           \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, to 32 heads, joins the lists of neighbouring queries",                    \
     .op = ATTN_OP_DIST,                                                                                               \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .joins = 1,                                                                                                       \
     .group = group_of,                                                                                                \
     .alignment_bytes = 16,                                                                                            \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_dist_joined_sm90_rows[] = {
#include "kernels/variants/dist_joined_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_dist_joined_sm90_rows =
    sizeof attn_cuda_dist_joined_sm90_rows / sizeof attn_cuda_dist_joined_sm90_rows[0];
