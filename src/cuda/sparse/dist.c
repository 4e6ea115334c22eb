/* SPDX-License-Identifier: MIT
 * Attention distribution on CUDA, the host's side: kernel rows from kernels/variants/dist_sm80.def, how a problem is
 * dealt to CTAs, and the parameters of a launch. The device's side: kernels/sm80/dist.cu, kernels/smxx/dist_norm.cu. */
#include "cuda/sparse/dist.h"
#include "core/problem.h"

/* A function of problem and device alone. */
struct geometry {
    int64_t queries, blocks, splits, work_tiles, capacity;
};

/* Shares of a query's slots need no merge: each writes its own elements. */
static struct geometry lay_out(const struct kp_mla_config *c, const struct attn_cuda_limits *l, const attn_problem *p) {
    struct geometry g = {.splits = 1};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    g.queries = p->batch * p->seq_q;
    g.blocks = attn_cuda_blocks(p->heads_q, KP_MLA_HEADS(*c));
    g.capacity = attn_cuda_mla_capacity(c, KP_DIST_SHARED(*c), l);
    g.splits = attn_cuda_mla_splits(g.queries, attn_cuda_blocks(p->topk, c->keys), g.capacity, g.capacity, 1, 0);
    g.work_tiles = g.queries * g.splits;
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    return !attn_cuda_mla_refuse(p, why) && !attn_cuda_dist_refuse(dev, c->symbol, KP_DIST_SHARED(*c), why);
}

/* Cycles of a key tile, as in mla_fwd.c. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    if (g.work_tiles == 0) return 1e-6;
    const double heads = KP_MLA_HEADS(*c), per_sm = (double)g.capacity / attn_cuda_limits_of(dev)->n_sms;
    const double products = heads * c->keys * c->dim / 1300.0, copies = c->keys * c->dim * 2 / 40.0;
    const double tile = (products > copies ? products : copies) * per_sm + 800;
    const double rounds = (double)attn_cuda_blocks(g.work_tiles, g.capacity),
                 tiles = (double)attn_cuda_blocks(attn_cuda_blocks(p->topk, c->keys), g.splits);
    return 4e-6 + (p->dist_norm == ATTN_DIST_L1 ? 4e-6 : 0) + rounds * (double)g.blocks * (tiles + 1) * tile / 1.7e9;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_config *c = k->impl;
    return attn_cuda_dist_prepare(dev, c->symbol, KP_DIST_SHARED(*c), p);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    if (g.work_tiles == 0) return ATTN_OK;
    struct kp_dist kp = attn_cuda_dist_params(p, args);
    kp.work_tiles = g.work_tiles;
    kp.blocks = (int32_t)g.blocks;
    kp.splits = (int32_t)g.splits;
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(g.work_tiles, g.capacity),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)KP_MLA_THREADS(*c),
                                        .shared_bytes = (uint32_t)KP_DIST_SHARED(*c)};
    return attn_cuda_dist_launch(dev, c->symbol, &grid, &kp, p, args->stream);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* As in dense/fwd.c: first the configurations, then the rows that point at them. */
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_config config_##tail = {.symbol = "attn_dist_sm80_" #tail, __VA_ARGS__};
#include "kernels/variants/dist_sm80.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_dist_sm80_" #tail,                                                                                  \
     .arch = "sm80",                                                                                                   \
     .summary = "D as in the name, any number of heads (blocks of the last number), any strides",                      \
     .op = ATTN_OP_DIST,                                                                                               \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = ATTN_CUDA_SM80,                                                                                       \
     .impl = &config_##tail,                                                                                           \
     .workspace = attn_cuda_dist_workspace},
const struct attn_kernel attn_cuda_dist_rows[] = {
#include "kernels/variants/dist_sm80.def"
};
#undef VARIANT
const int32_t attn_cuda_n_dist_rows = sizeof attn_cuda_dist_rows / sizeof attn_cuda_dist_rows[0];
