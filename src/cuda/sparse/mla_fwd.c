/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on CUDA, the host's side: kernel rows from kernels/variants/mla_fwd_sm80.def, how a problem is
 * dealt to CTAs, and the parameters of a launch. The device's side: kernels/sm80/mla_fwd.cu,
 * kernels/smxx/mla_combine.cu. */
#include "core/problem.h"
#include "cuda/sparse/mla.h"

static const char combine_symbol[] = "attn_mla_combine_smxx_any";

/* A function of problem and device alone, so that workspace and launch agree. */
struct geometry {
    int64_t rows, blocks, splits, work_tiles, capacity;
};

static struct geometry lay_out(const struct kp_mla_config *c, const struct attn_cuda_limits *l, const attn_problem *p) {
    struct geometry g = {.splits = 1};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    g.rows = p->batch * p->seq_q * p->heads_q;
    g.blocks = attn_cuda_blocks(p->heads_q, KP_MLA_HEADS(*c));
    g.capacity = attn_cuda_mla_capacity(c, KP_MLA_FWD_SHARED(*c), l);
    g.splits = attn_cuda_mla_splits(p->batch * p->seq_q * g.blocks, attn_cuda_blocks(p->topk, c->keys), g.capacity,
                                    KP_MLA_MAX_SPLITS, 1.5, 0.05);
    /* f32 results: the merging kernel writes them, the other has no registers left for a second form. */
    if (p->out_dtype && g.splits == 1) g.splits = 2;
    g.work_tiles = p->batch * p->seq_q * g.blocks * g.splits;
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    return !attn_cuda_mla_refuse(p, why) && !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_FWD_SHARED(*c), why) &&
           !attn_cuda_refuse_image(dev, combine_symbol, 0, why);
}

/* Cycles of a key tile: products at the rate of mma.sync, or what goes through shared memory, whichever is more, and
 * the barriers between them; docs/kernels/mla_fwd_sm80.md. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    if (g.work_tiles == 0) return 1e-6;
    const double heads = KP_MLA_HEADS(*c), per_sm = (double)g.capacity / attn_cuda_limits_of(dev)->n_sms;
    const double products = heads * c->keys * (c->dim + 512) / 1300.0;
    const double copies = c->keys * c->dim * 2 / 40.0 + heads * c->keys / 4;
    const double tile = (products > copies ? products : copies) * per_sm + 1200;
    const double rounds = (double)attn_cuda_blocks(g.work_tiles, g.capacity),
                 tiles = (double)attn_cuda_blocks(attn_cuda_blocks(p->topk, c->keys), g.splits);
    return 4e-6 + (g.splits > 1 ? 4e-6 : 0) + rounds * (tiles + 1.5) * tile / 1.7e9;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(k->impl, attn_cuda_limits_of(dev), p);
    return g.splits > 1 ? (uint64_t)(g.splits * g.rows * (512 + 3)) * sizeof(float) : 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_config *c = k->impl;
    attn_status status =
        attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_FWD_SHARED(*c));
    if (status || lay_out(c, attn_cuda_limits_of(dev), p).splits <= 1) return status;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(combine_symbol), 0);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_config *c = k->impl;
    const struct geometry g = lay_out(c, attn_cuda_limits_of(dev), p);
    if (g.work_tiles == 0) return ATTN_OK;
    struct kp_mla_fwd kp = {0};
    attn_cuda_mla_inputs(&kp.in, p, args);
    kp.out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp.lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp.max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    kp.work_tiles = g.work_tiles;
    kp.blocks = (int32_t)g.blocks;
    kp.splits = (int32_t)g.splits;
    if (g.splits > 1) {
        const uint64_t numbers = (uint64_t)(g.splits * g.rows) * sizeof(float);
        kp.part_o = (uint64_t)(uintptr_t)args->workspace;
        kp.part_m = kp.part_o + 512 * numbers;
        kp.part_l = kp.part_m + numbers;
        kp.part_max_logits = kp.part_l + numbers;
    }
    struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(g.work_tiles, g.capacity),
                                  .y = 1,
                                  .z = 1,
                                  .threads = (uint32_t)KP_MLA_THREADS(*c),
                                  .shared_bytes = (uint32_t)KP_MLA_FWD_SHARED(*c)};
    attn_status status =
        attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream);
    if (status || g.splits == 1) return status;
    kp.work_tiles = 0; /* all rows are merged */
    grid = (struct attn_cuda_grid){
        .x = (uint32_t)attn_cuda_lesser(attn_cuda_blocks(g.rows, 4), INT32_MAX), .y = 1, .z = 1, .threads = 128};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, combine_symbol), &grid, &kp, sizeof kp, args->stream);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* As in dense/fwd.c: first the configurations, then the rows that point at them. */
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_config config_##tail = {.symbol = "attn_mla_fwd_sm80_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_fwd_sm80.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_mla_fwd_sm80_" #tail,                                                                               \
     .arch = "sm80",                                                                                                   \
     .summary = "D as in the name, any number of heads (blocks of the last number), any strides",                      \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .out_f32 = 1,                                                                                                     \
     .features = ATTN_CUDA_SM80,                                                                                       \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_fwd_rows[] = {
#include "kernels/variants/mla_fwd_sm80.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_rows = sizeof attn_cuda_mla_fwd_rows / sizeof attn_cuda_mla_fwd_rows[0];
