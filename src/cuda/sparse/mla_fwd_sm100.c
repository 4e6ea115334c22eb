/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Blackwell, the host's side: kernel rows from kernels/variants/mla_fwd_sm100.def. The device's
 * side: kernels/sm100/mla_fwd/mla_fwd.cu (128 heads a pair of CTAs), kernels/sm100/mla_fwd_h64/mla_fwd_h64.cu (64 heads
 * a CTA). */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/sparse/mla_maps.h"
#include "kernels/params/mla_sm100.h"

static const char combine_symbol[] = "attn_mla_combine_smxx_any";

static uint32_t ctas_of(const struct kp_mla_fwd_sm100_config *c) { return c->heads == KP_SM100_HEADS ? 2 : 1; }
static uint32_t shared_bytes_of(const struct kp_mla_fwd_sm100_config *c) {
    return c->heads == KP_SM100_HEADS ? (uint32_t)KP_MLA_FWD_SM100_SHARED(c->dim)
                                      : (uint32_t)KP_MLA_FWD_H64_SM100_SHARED(c->dim);
}

/* A function of row, problem and device alone: work tiles at once, rows of out, blocks of heads, parts of a query's
 * slots and their tiles, work tiles. */
struct geometry {
    int64_t at_once, rows, blocks, splits, share, works;
};
static struct geometry lay_out(const struct kp_mla_fwd_sm100_config *c, const struct attn_core_device *dev,
                               const attn_problem *p) {
    const int64_t at_once = attn_cuda_limits_of(dev)->n_sms / (int64_t)ctas_of(c),
                  tiles = attn_cuda_blocks(p->topk, KP_SM100_KEYS);
    struct geometry g = {.at_once = at_once > 1 ? at_once : 1, .splits = 1, .share = tiles > 0 ? tiles : 1};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    g.rows = p->batch * p->seq_q * p->heads_q;
    g.blocks = attn_cuda_blocks(p->heads_q, c->heads);
    g.works = p->batch * p->seq_q * g.blocks;
    g.splits = attn_cuda_mla_splits(g.works, tiles, g.at_once, KP_MLA_MAX_SPLITS, 2.5, 0.3);
    g.share = attn_cuda_blocks(g.share, g.splits);
    g.splits = tiles > 0 ? attn_cuda_blocks(tiles, g.share) : 1;
    g.works *= g.splits;
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_fwd_sm100_config *c = k->impl;
    if (attn_cuda_mla_refuse_dim(p, c->dim, why) || attn_cuda_refuse_tensor_maps(dev, why)) return 0;
    return !attn_cuda_mla_refuse(p, why) && !attn_cuda_refuse_image(dev, c->symbol, (int64_t)shared_bytes_of(c), why) &&
           !attn_cuda_refuse_image(dev, combine_symbol, 0, why);
}
static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    return attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_Q, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_KV, role, why);
}

/* Counted, not timed: clocks of a tile of 64 slots at 1.85 GHz, its slowest unit at 0.75 of its rate, and of a work
 * tile's start and end (docs/kernels/mla_fwd_sm100.md). */
static double clocks_of_tile(const struct kp_mla_fwd_sm100_config *c) {
    if (c->heads == KP_SM100_HEADS) return c->dim == 576 ? 1300 : 1170;
    return c->dim == 576 ? 1810 : 1680;
}
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_fwd_sm100_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    const double rounds = (double)g.works / (double)g.at_once;
    return (g.splits > 1 ? 8e-6 : 4e-6) +
           (rounds < 1 ? 1 : rounds) * ((double)g.share * clocks_of_tile(c) / 0.75 + 4000) / 1.85e9;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(k->impl, dev, p);
    return g.splits > 1 ? (uint64_t)(g.splits * g.rows * (KP_MLA_DIM_V + 3)) * sizeof(float) : 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_sm100_config *c = k->impl;
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), shared_bytes_of(c)));
    if (lay_out(c, dev, p).splits <= 1) return ATTN_OK;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(combine_symbol), 0);
}

static attn_status merge_parts(const struct attn_core_device *dev, const struct geometry *g,
                               const struct kp_mla_fwd_sm100 *kp, void *stream) {
    const struct kp_mla_fwd merge = {.in = kp->in,
                                     .out = kp->out,
                                     .lse = kp->lse,
                                     .max_logits = kp->max_logits,
                                     .part_o = kp->part_o,
                                     .part_m = kp->part_m,
                                     .part_l = kp->part_l,
                                     .part_max_logits = kp->part_largest,
                                     .splits = (int32_t)g->splits};
    const struct attn_cuda_grid grid = {
        .x = (uint32_t)attn_cuda_lesser(attn_cuda_blocks(g->rows, 4), INT32_MAX), .y = 1, .z = 1, .threads = 128};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, combine_symbol), &grid, &merge, sizeof merge, stream);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_fwd_sm100_config *c = k->impl;
    const struct geometry g = lay_out(c, dev, p);
    if (g.works == 0) return ATTN_OK;
    struct kp_mla_fwd_sm100 kp = {.works = g.works, .blocks = g.blocks, .splits = g.splits, .share = g.share};
    struct kp_mla *in = &kp.in;
    attn_cuda_mla_inputs(in, p, args);
    kp.out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp.lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp.max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    if (g.splits > 1) {
        const uint64_t numbers = (uint64_t)(g.splits * g.rows) * sizeof(float);
        kp.part_o = (uint64_t)(uintptr_t)args->workspace;
        kp.part_m = kp.part_o + KP_MLA_DIM_V * numbers;
        kp.part_l = kp.part_m + numbers;
        kp.part_largest = kp.part_l + numbers;
    }
    kp.kv_rows = attn_cuda_mla_map_rows(in);
    TRY(attn_cuda_mla_map_heads(dev, "q", in, &in->q, c->dim, (uint32_t)c->heads, 64, &kp.q));
    TRY(attn_cuda_mla_map_keys(dev, in, 64, &kp.kv));
    if (c->heads == KP_SM100_HEADS) {
        TRY(attn_cuda_mla_map_heads(dev, "q", in, &in->q, c->dim, KP_SM100_HEADS, 32, &kp.q_rope));
        TRY(attn_cuda_mla_map_keys(dev, in, 32, &kp.rope));
    }
    const struct attn_cuda_grid grid = {.x = ctas_of(c) * (uint32_t)attn_cuda_lesser(g.works, g.at_once),
                                        .y = 1,
                                        .z = 1,
                                        .threads = c->heads == KP_SM100_HEADS ? KP_MLA_FWD_SM100_THREADS
                                                                              : KP_MLA_FWD_H64_SM100_THREADS,
                                        .cluster = ctas_of(c),
                                        .shared_bytes = shared_bytes_of(c)};
    TRY(attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream));
    return g.splits > 1 ? merge_parts(dev, &g, &kp, args->stream) : ATTN_OK;
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_fwd_sm100_config config_##tail = {.symbol = "attn_mla_fwd_sm100_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_fwd_sm100.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_mla_fwd_sm100_" #tail,                                                                              \
     .arch = "sm100",                                                                                                  \
     .summary = "simulated, not yet run on silicon; D and heads of a work tile as in the name, any topk",              \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .alignment_bytes = 16,                                                                                            \
     .refuses_strides = refuses_strides,                                                                               \
     .features = ATTN_CUDA_SM100A,                                                                                     \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_fwd_sm100_rows[] = {
#include "kernels/variants/mla_fwd_sm100.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_sm100_rows =
    sizeof attn_cuda_mla_fwd_sm100_rows / sizeof attn_cuda_mla_fwd_sm100_rows[0];
