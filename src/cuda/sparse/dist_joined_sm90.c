/* SPDX-License-Identifier: MIT
 * Attention distribution on Hopper over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/dist_joined_sm90.def. Queries of groups that are left apart are a launch of their own:
 * dist_apart_sm90.def. The device's side: kernels/sm90/dist/dist.cu. */
#include "core/problem.h"
#include "cuda/sparse/dist.h"
#include "cuda/sparse/mla_joined.h"
#include "kernels/params/dist_joined.h"
#include "kernels/params/mla_sm90.h"

struct config {
    struct kp_dist_joined_sm90_config joined;
    const char *apart; /* symbol */
};

/* Columns of the product: 4 heads and fewer take half of them, since 16 queries would have values of 16 unions, unless
 * the lists come in such groups. */
static int64_t columns(const attn_problem *p) { return p->heads_q > 4 || p->group > 8 ? 64 : 32; }

/* Groups, CTAs, groups at a time, entries of a group at most, and places in the workspace. */
struct geometry {
    int64_t group, groups, grid, listed, row;
    uint64_t work, values, end;
};

static struct geometry lay_out(const struct attn_core_device *dev, const attn_problem *p) {
    struct geometry g = {.group = attn_cuda_mla_joined_group(p, columns(p))};
    if (!g.group || p->batch <= 0) return g;
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.grid = attn_cuda_lesser(attn_cuda_limits_of(dev)->n_sms, 2048);
    g.row = attn_cuda_blocks(g.group * p->topk, 128) * 128;
    g.listed = attn_cuda_mla_joined_listed(p, columns(p), g.grid);
    g.work = attn_cuda_mla_joined_bytes(dev, p, columns(p), g.listed);
    g.values = g.work + attn_cuda_mla_joined_work_bytes(p, columns(p), g.listed, g.grid);
    g.end = g.values + (uint64_t)(g.grid * 2 * g.group * g.row) * sizeof(float);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct config *c = k->impl;
    const int64_t shared = KP_DIST_SM90_SHARED(c->joined.dim, 1);
    return !attn_cuda_mla_refuse_dim(p, c->joined.dim, why) && !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_mla_joined_refuse(dev, p, columns(p), why) &&
           !attn_cuda_dist_refuse(dev, c->joined.symbol, shared, why) &&
           !attn_cuda_refuse_image(dev, c->apart, shared, why) &&
           !attn_cuda_refuse_image(dev, attn_cuda_mla_joined_work_symbol, 0, why);
}

/* Groups of a CTA, one at least: few of them belong to the kernel that cuts queries into parts without joining. Tiles
 * as in dist_sm90.c. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    if (!g.groups) return 1e-6;
    const double entries = attn_cuda_mla_joined_entries(p, g.group), rounds = (double)g.groups / (double)g.grid;
    return (double)(g.groups / g.listed + 1) * 1e-5 + (p->dist_norm == ATTN_DIST_L1 ? 4e-6 : 0) +
           attn_cuda_mla_joined_time(dev, p, columns(p)) +
           (rounds > 1 ? rounds : 1) * (2e-6 + (entries / 64 + 0.5) * 1.35e-6 * c->joined.dim / 576);
}

static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    (void)k;
    return attn_cuda_mla_joined_group(p, columns(p));
}

static int64_t union_limit_of(const struct attn_kernel *k, const attn_problem *p) {
    return attn_cuda_mla_joined_limit(p, group_of(k, p));
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k;
    return lay_out(dev, p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct config *c = k->impl;
    const uint32_t shared = (uint32_t)KP_DIST_SM90_SHARED(c->joined.dim, 1);
    attn_status status = attn_cuda_dist_prepare(dev, c->joined.symbol, shared, p);
    if (!status) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(c->apart), shared);
    if (!status) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_mla_joined_work_symbol), 0);
    return status ? status : attn_cuda_mla_joined_prepare(dev, p, columns(p));
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    const uint64_t memory = (uint64_t)(uintptr_t)args->workspace;
    struct kp_dist_apart apart = {.dist = attn_cuda_dist_params(p, args), .work = memory + g.work};
    struct kp_dist_joined_sm90 kp = {.in = apart.dist.in,
                                     .lse = apart.dist.lse,
                                     .dist = apart.dist.dist,
                                     .values = memory + g.values,
                                     .work = apart.work,
                                     .factor = apart.dist.factor,
                                     .row = (int32_t)g.row};
    struct attn_cuda_grid grid = {.y = 1,
                                  .z = 1,
                                  .threads = KP_DIST_JOINED_SM90_THREADS,
                                  .shared_bytes = (uint32_t)KP_DIST_SM90_SHARED(c->joined.dim, 1)};
    if (!g.groups) return ATTN_OK;
    for (kp.from = 0; kp.from < g.groups; kp.from = kp.until) {
        kp.until = attn_cuda_lesser(kp.from + g.listed, g.groups);
        apart.groups = kp.until - kp.from;
        attn_status status =
            attn_cuda_mla_joined_queue(dev, p, args, columns(p), memory, kp.from, kp.until, &kp.joined);
        if (!status) status = attn_cuda_mla_joined_work(dev, p, args, &kp.joined, kp.from, kp.until, g.grid, kp.work);
        grid.x = (uint32_t)g.grid, grid.early = 0, grid.threads = KP_DIST_JOINED_SM90_THREADS;
        if (!status)
            status =
                attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->joined.symbol), &grid, &kp, sizeof kp, args->stream);
        grid.early = (uint8_t)attn_cuda_limits_of(dev)->early_launch, grid.threads = KP_MLA_FWD_SM90_THREADS;
        if (!status)
            status =
                attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->apart), &grid, &apart, sizeof apart, args->stream);
        if (status) return status;
    }
    return attn_cuda_dist_norm(dev, &apart.dist, p, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct config config_##tail = {{.symbol = "attn_dist_joined_sm90_" #tail, __VA_ARGS__},               \
                                                "attn_dist_apart_sm90_" #tail};
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
     .union_limit = union_limit_of,                                                                                    \
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
