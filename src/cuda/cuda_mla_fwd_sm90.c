/* SPDX-License-Identifier: MIT
 * Sparse MLA forward on Hopper, the host's side: kernel rows from kernels/variants/mla_fwd_sm90.def. The device's side:
 * kernels/sm90/mla_fwd_wgmma.cu. */
#include "core/problem.h"
#include "cuda/cuda_mla.h"
#include "kernels/kparams_mla_sm90.h"

static const char combine_symbol[] = "attn_mla_combine_smxx_any";

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* Who takes what: see struct kp_mla_fwd_sm90. */
struct geometry {
    int64_t items, grid, whole, first_row, rows;
    int32_t parts, length;
};

/* What is left over after whole rounds is cut if that saves at least 8 tiles of 1.7 us each: sums that go through
 * memory and the kernel that merges them take about as long. */
static struct geometry lay_out(const struct attn_cuda_limits *l, const attn_problem *p) {
    struct geometry g = {.parts = 1};
    if (p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0) return g;
    const int64_t blocks = (p->heads_q + 63) / 64, tiles = (p->topk + 63) / 64;
    g.items = p->batch * p->seq_q * blocks;
    g.whole = g.items / l->n_sms;
    const int64_t left = g.items - g.whole * l->n_sms;
    g.grid = g.whole ? l->n_sms : left;
    if (!left) return g;
    const int64_t most = lesser(lesser(l->n_sms / left, tiles), KP_MLA_MAX_SPLITS), length = (tiles + most - 1) / most;
    if (tiles - length < 8) return g;
    g.length = (int32_t)length;
    g.parts = (int32_t)((tiles + length - 1) / length);
    if (!g.whole) g.grid = left * g.parts;
    const int64_t first = g.items - left;
    g.first_row = first / blocks * p->heads_q + first % blocks * 64;
    g.rows = p->batch * p->seq_q * p->heads_q - g.first_row;
    return g;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    if (p->op != k->op || p->dtype != k->dtype) {
        attn_text_add(why, "serves another operator or dtype");
        return 0;
    }
    if (p->dim_qk != c->dim) {
        attn_text_add(why, "made for head dim %d", c->dim);
        return 0;
    }
    return !attn_cuda_mla_refuse(p, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, KP_MLA_FWD_SM90_SHARED(c->dim), why) &&
           !attn_cuda_refuse_image(dev, combine_symbol, 0, why);
}

/* Rounds of items over the multiprocessors; heads are padded to 64, slots to 64. Rates are what was measured. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    const struct geometry g = lay_out(attn_cuda_limits_of(dev), p);
    const double tiles = (double)((p->topk + 63) / 64), tile = 1.7e-6 * (c->dim + 512) / 1088;
    const double rounds = (double)((g.items + (g.grid ? g.grid : 1) - 1) / (g.grid ? g.grid : 1));
    if (g.parts == 1) return 4e-6 + rounds * (1.5e-6 + tiles * tile);
    return 12e-6 + (double)g.whole * (1.5e-6 + tiles * tile) + 1.5e-6 + g.length * tile;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(attn_cuda_limits_of(dev), p);
    (void)k;
    return g.parts > 1 ? (uint64_t)(g.parts * g.rows * (512 + 3)) * sizeof(float) : 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    attn_status status =
        attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim));
    if (status || lay_out(attn_cuda_limits_of(dev), p).parts == 1) return status;
    return attn_cuda_variant_load(dev, attn_cuda_variant_find(combine_symbol), 0);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_mla_fwd_sm90_config *c = k->impl;
    const struct geometry g = lay_out(attn_cuda_limits_of(dev), p);
    if (g.items == 0) return ATTN_OK;
    struct kp_mla_fwd_sm90 kp = {.whole = g.whole, .first_row = g.first_row, .rows = g.rows, .parts = g.parts};
    attn_cuda_mla_inputs(&kp.in, p, args);
    kp.out = attn_cuda_view(p, args, ATTN_ROLE_OUT);
    kp.lse = attn_cuda_view(p, args, ATTN_ROLE_LSE);
    kp.max_logits = attn_cuda_view(p, args, ATTN_ROLE_MAX_LOGITS);
    kp.length = g.length;
    if (g.parts > 1) {
        const uint64_t numbers = (uint64_t)(g.parts * g.rows) * sizeof(float);
        kp.part_o = (uint64_t)(uintptr_t)args->workspace;
        kp.part_m = kp.part_o + 512 * numbers;
        kp.part_l = kp.part_m + numbers;
        kp.part_top = kp.part_l + numbers;
    }
    struct attn_cuda_grid grid = {.x = (uint32_t)g.grid,
                                  .y = 1,
                                  .z = 1,
                                  .threads = KP_MLA_FWD_SM90_THREADS,
                                  .shared_bytes = (uint32_t)KP_MLA_FWD_SM90_SHARED(c->dim)};
    attn_status status = attn_cuda_launch(dev, attn_cuda_variant_find(c->symbol), &grid, &kp, sizeof kp, args->stream);
    if (status || g.parts == 1) return status;
    const struct kp_mla_fwd merge = {.in = kp.in,
                                     .out = kp.out,
                                     .lse = kp.lse,
                                     .max_logits = kp.max_logits,
                                     .part_o = kp.part_o,
                                     .part_m = kp.part_m,
                                     .part_l = kp.part_l,
                                     .part_top = kp.part_top,
                                     .items = g.first_row,
                                     .splits = g.parts};
    grid = (struct attn_cuda_grid){.x = (uint32_t)lesser((g.rows + 3) / 4, INT32_MAX), .y = 1, .z = 1, .threads = 128};
    return attn_cuda_launch(dev, attn_cuda_variant_find(combine_symbol), &grid, &merge, sizeof merge, args->stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_fwd_sm90_config config_##tail = {.symbol = "attn_mla_fwd_sm90_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_fwd_sm90.def"
#undef VARIANT

#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    {.name = "attn_mla_fwd_sm90_" #tail,                                                                               \
     .arch = "sm90",                                                                                                   \
     .summary = "D = the number in the name, any heads, any topk, any strides",                                        \
     .op = ATTN_OP_MLA_FWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_fwd_sm90_rows[] = {
#include "kernels/variants/mla_fwd_sm90.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_fwd_sm90_rows =
    sizeof attn_cuda_mla_fwd_sm90_rows / sizeof attn_cuda_mla_fwd_sm90_rows[0];
