/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Hopper over joined lists of neighbouring queries, the host's side: kernel rows from
 * kernels/variants/mla_fwd_joined_sm90.def. The device's side: kernels/sm90/mla_fwd/mla_fwd.cu. */
#include "cuda/sparse/mla_fwd_apart.h"
#include "cuda/sparse/mla_joined.h"
#include "kernels/params/dist_joined.h"
#include "kernels/params/mla_sm90.h"

enum { ROWS = 64 /* of a tile */ };

/* Groups, CTAs, groups that are joined at a time, and places in the workspace. work: whether most groups are left
 * apart; all queries then go to the launches without joined lists, whose part of the workspace is `apart`. */
struct geometry {
    int64_t groups, grid, listed;
    uint64_t marks, work, apart, end;
};

/* Groups that the operator itself has left apart. The lists that a problem hands over say which groups; these come
 * query by query in the kernel that joins. */
static int may_be_apart(const attn_problem *p) { return !p->group && attn_cuda_mla_joined_any_apart(p, ROWS); }

static struct geometry lay_out(const struct attn_core_device *dev, const attn_problem *p) {
    struct geometry g = {0};
    const int64_t group = attn_cuda_mla_joined_group(p, ROWS);
    if (!group || p->batch <= 0) return g;
    g.groups = attn_cuda_mla_joined_groups(p, group);
    g.grid = attn_cuda_lesser(attn_cuda_limits_of(dev)->n_sms, g.groups);
    g.listed = attn_cuda_mla_joined_listed(p, ROWS, g.grid);
    g.marks = attn_cuda_mla_joined_bytes(dev, p, ROWS, g.listed);
    g.end = g.work = g.marks + ((uint64_t)g.listed * sizeof(uint64_t) + 255) / 256 * 256;
    if (!may_be_apart(p)) return g;
    g.apart = g.work + attn_cuda_mla_joined_work_bytes(p, ROWS, g.listed, 0);
    g.end = g.apart + attn_cuda_mla_fwd_apart_bytes(dev, p);
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_fwd_joined_sm90_config *c = k->impl;
    return !attn_cuda_mla_refuse_dim(p, c->dim, why) && !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_mla_joined_refuse(dev, p, ROWS, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_FWD_SM90_SHARED(c->dim), why) &&
           (!may_be_apart(p) || (!attn_cuda_refuse_image(dev, attn_cuda_mla_joined_work_symbol, 0, why) &&
                                 !attn_cuda_mla_fwd_apart_refuse(dev, p, why)));
}

/* Rounds of groups over the multiprocessors. Seconds of a tile: measured on an H200, and a twentieth. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_fwd_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    if (!g.groups) return 1e-6;
    const double tiles = attn_cuda_mla_joined_entries(p, attn_cuda_mla_joined_group(p, ROWS)) / 64 + 0.5;
    const double keys = 2 * (double)p->seq_k * (double)p->dim_qk, cache = attn_cuda_limits_of(dev)->l2_bytes;
    const double tile = (keys > cache / 2 ? 2.07e-6 : 1.97e-6) * (c->dim + 512) / 1088;
    const double rounds = (double)attn_cuda_blocks(g.groups, g.grid), launches = (double)(g.groups / g.listed + 1);
    return launches * 4e-6 + attn_cuda_mla_joined_time(dev, p, ROWS) + rounds * (1.5e-6 + tiles * tile);
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
    const struct kp_mla_fwd_joined_sm90_config *c = k->impl;
    attn_status status =
        attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim));
    if (!status && may_be_apart(p)) {
        status = attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_mla_joined_work_symbol), 0);
        if (!status) status = attn_cuda_mla_fwd_apart_prepare(dev, p);
    }
    return status ? status : attn_cuda_mla_joined_prepare(dev, p, ROWS);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_fwd_joined_sm90_config *c = k->impl;
    const struct geometry g = lay_out(dev, p);
    const uint64_t memory = (uint64_t)(uintptr_t)args->workspace;
    struct kp_mla_fwd_sm90 kp = {.out = attn_cuda_view(p, args, ATTN_ROLE_OUT),
                                 .lse = attn_cuda_view(p, args, ATTN_ROLE_LSE),
                                 .max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS),
                                 .parts = 1,
                                 .marks = memory + g.marks};
    attn_cuda_mla_inputs(&kp.in, p, args);
    const struct attn_cuda_grid grid = {.x = (uint32_t)g.grid,
                                        .y = 1,
                                        .z = 1,
                                        .threads = KP_MLA_FWD_SM90_THREADS,
                                        .shared_bytes = (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim)};
    for (kp.from = 0; kp.from < g.groups; kp.from = kp.until) {
        kp.until = attn_cuda_lesser(kp.from + g.listed, g.groups);
        attn_status status = attn_cuda_mla_joined_queue(dev, p, args, ROWS, memory, kp.from, kp.until, &kp.joined);
        if (!status && may_be_apart(p)) { /* one time: the limit is for problems whose lists are joined at once */
            const uint64_t gate = memory + g.work + KP_JOINED_WORK_MOST * sizeof(int32_t);
            status = attn_cuda_mla_joined_work(dev, p, args, &kp.joined, kp.from, kp.until, 0, memory + g.work);
            if (!status) status = attn_cuda_mla_fwd_apart_queue(dev, p, args, memory + g.apart, gate);
            kp.part_o = gate;
        }
        if (!status)
            status = attn_cuda_launch(dev, attn_cuda_variant_find(c->symbol), &grid, &kp, sizeof kp, args->stream);
        if (status) return status;
    }
    return ATTN_OK;
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_fwd_joined_sm90_config config_##tail = {.symbol = "attn_mla_fwd_joined_sm90_" #tail,    \
                                                                       __VA_ARGS__};
#include "kernels/variants/mla_fwd_joined_sm90.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_mla_fwd_joined_sm90_" #tail,                                                                        \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, to 32 heads, joins the lists of neighbouring queries",                    \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_MLA_JOINED_ROW,                                                                                         \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail},
const struct attn_kernel attn_cuda_mla_fwd_joined_sm90_rows[] = {
#include "kernels/variants/mla_fwd_joined_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_joined_sm90_rows =
    sizeof attn_cuda_mla_fwd_joined_sm90_rows / sizeof attn_cuda_mla_fwd_joined_sm90_rows[0];
