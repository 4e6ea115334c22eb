/* SPDX-License-Identifier: MIT
 * Attention distribution on Hopper over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/dist_joined_sm90.def. Queries of groups that are left apart are a launch of their own:
 * dist_apart_sm90.def. The device's side: kernels/sm90/dist/dist.cu. */
#include "core/problem.h"
#include "cuda/sparse/dist.h"
#include "cuda/sparse/mla_joined.h"
#include "kernels/params/dist_joined.h"
#include "kernels/params/mla_sm90.h"

static uint32_t shared_bytes(const struct kp_dist_joined_sm90_config *c) {
    return (uint32_t)KP_DIST_SM90_SHARED(c->dim, c->joined);
}
/* Queries of groups left apart: one kernel of 64 columns for a dtype and dim. */
static uint32_t shared_bytes_apart(const struct kp_dist_joined_sm90_config *c) {
    return (uint32_t)KP_DIST_SM90_SHARED(c->dim, 1);
}
static const char *apart_of(const struct kp_dist_joined_sm90_config *c) {
    if (c->dtype == KP_F16) return c->dim == 576 ? "attn_dist_apart_sm90_f16_d576" : "attn_dist_apart_sm90_f16_d512";
    return c->dim == 576 ? "attn_dist_apart_sm90_bf16_d576" : "attn_dist_apart_sm90_bf16_d512";
}

/* Columns of the product: of 64, 4 heads and fewer take half, since 16 queries would have values of 16 unions, unless
 * the lists come in such groups; so do 8 heads and fewer of 128. */
static int64_t columns(const struct kp_dist_joined_sm90_config *c, const attn_problem *p) {
    const int64_t all = 64 * c->joined;
    return p->heads_q > 4 * c->joined || p->group > 8 ? all : all / 2;
}

/* Groups, CTAs, groups at a time, entries of a group at most, and places in the workspace. */
struct geometry {
    int64_t group, groups, grid, listed, row;
    uint64_t work, values, end;
};

static struct geometry lay_out(const struct kp_dist_joined_sm90_config *c, const struct attn_core_device *dev,
                               const attn_problem *p) {
    const int64_t rows = columns(c, p);
    struct geometry g = {.group = attn_cuda_mla_joined_group(p, rows)};
    if (!g.group || p->batch <= 0) return g;
    g.groups = attn_cuda_mla_joined_groups(p, g.group);
    g.grid = attn_cuda_lesser(attn_cuda_limits_of(dev)->n_sms, 2048);
    g.row = attn_cuda_blocks(g.group * p->topk, 128) * 128;
    g.listed = attn_cuda_mla_joined_listed(p, rows, g.grid);
    g.work = attn_cuda_mla_joined_bytes(dev, p, rows, g.listed);
    g.values = g.work + attn_cuda_mla_joined_work_bytes(p, rows, g.listed, g.grid);
    g.end = g.values + (uint64_t)(g.grid * 2 * g.group * g.row) * sizeof(float);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_dist_joined_sm90_config *c = k->impl;
    return !attn_cuda_mla_refuse_dim(p, c->dim, why) && !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_mla_joined_refuse(dev, p, columns(c, p), why) &&
           !attn_cuda_dist_refuse(dev, c->symbol, shared_bytes(c), why) &&
           !attn_cuda_refuse_image(dev, apart_of(c), shared_bytes_apart(c), why) &&
           !attn_cuda_refuse_image(dev, attn_cuda_mla_joined_work_symbol, 0, why);
}

/* Groups of a CTA, one at least: few of them belong to the kernel that cuts queries into parts without joining. Groups
 * of 128 columns pay only where lists share much, which is not known unless the problem hands them over: else they
 * count as sharing nothing. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_dist_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    if (!g.groups) return 1e-6;
    const double entries = c->joined == 2 && !p->group ? (double)(g.group * p->topk)
                                                       : attn_cuda_mla_joined_entries(p, g.group),
                 rounds = (double)g.groups / (double)g.grid, tile = c->joined == 2 ? 2.2e-6 : 1.35e-6;
    return (double)(g.groups / g.listed + 1) * 1e-5 + (p->dist_norm == ATTN_DIST_L1 ? 4e-6 : 0) +
           attn_cuda_mla_joined_time(dev, p, columns(c, p)) +
           (rounds > 1 ? rounds : 1) * (2e-6 + (entries / 64 + 0.5) * tile * c->dim / 576);
}

static int64_t group_of(const struct attn_kernel *k, const attn_problem *p) {
    return attn_cuda_mla_joined_group(p, columns(k->impl, p));
}

static int64_t union_limit_of(const struct attn_kernel *k, const attn_problem *p) {
    return attn_cuda_mla_joined_limit(p, group_of(k, p));
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    return lay_out(k->impl, dev, p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_dist_joined_sm90_config *c = k->impl;
    attn_status status = attn_cuda_dist_prepare(dev, c->symbol, shared_bytes(c), p);
    if (!status) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(apart_of(c)), shared_bytes_apart(c));
    if (!status) status = attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_mla_joined_work_symbol), 0);
    return status ? status : attn_cuda_mla_joined_prepare(dev, p, columns(c, p));
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_dist_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    const uint64_t memory = (uint64_t)(uintptr_t)args->workspace;
    struct kp_dist_apart apart = {.dist = attn_cuda_dist_params(p, args), .work = memory + g.work};
    struct kp_dist_joined_sm90 kp = {.in = apart.dist.in,
                                     .lse = apart.dist.lse,
                                     .dist = apart.dist.dist,
                                     .values = memory + g.values,
                                     .work = apart.work,
                                     .factor = apart.dist.factor,
                                     .row = (int32_t)g.row};
    struct attn_cuda_grid grid = {.y = 1, .z = 1};
    if (!g.groups) return ATTN_OK;
    for (kp.from = 0; kp.from < g.groups; kp.from = kp.until) {
        kp.until = attn_cuda_lesser(kp.from + g.listed, g.groups);
        apart.groups = kp.until - kp.from;
        attn_status status =
            attn_cuda_mla_joined_queue(dev, p, args, columns(c, p), memory, kp.from, kp.until, &kp.joined);
        if (!status) status = attn_cuda_mla_joined_work(dev, p, args, &kp.joined, kp.from, kp.until, g.grid, kp.work);
        grid.x = (uint32_t)g.grid, grid.early = 0;
        grid.threads = KP_DIST_JOINED_SM90_THREADS, grid.shared_bytes = shared_bytes(c);
        if (!status)
            status = attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream);
        grid.early = (uint8_t)attn_cuda_limits_of(dev)->early_launch;
        grid.threads = KP_MLA_FWD_SM90_THREADS, grid.shared_bytes = shared_bytes_apart(c);
        if (!status)
            status = attn_cuda_launch(dev, attn_cuda_variant_of(dev, apart_of(c)), &grid, &apart, sizeof apart,
                                      args->stream);
        if (status) return status;
    }
    return attn_cuda_dist_norm(dev, &apart.dist, p, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_dist_joined_sm90_config config_##tail = {.symbol = "attn_dist_joined_sm90_" #tail,          \
                                                                    __VA_ARGS__};
#include "kernels/variants/dist_joined_sm90.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_dist_joined_sm90_" #tail,                                                                           \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, to 32 heads, h64: to 64; joins the lists of neighbouring queries",        \
     .op = ATTN_OP_DIST,                                                                                               \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_MLA_JOINED_ROW,                                                                                         \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail},
const struct attn_kernel attn_cuda_dist_joined_sm90_rows[] = {
#include "kernels/variants/dist_joined_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_dist_joined_sm90_rows =
    sizeof attn_cuda_dist_joined_sm90_rows / sizeof attn_cuda_dist_joined_sm90_rows[0];
