/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Blackwell, the host's side: kernel rows from kernels/variants/mla_bwd_sm100.def and the tensor
 * maps of a launch. What a launch consists of stands in mla_bwd_steps.c; the device's side:
 * kernels/sm100/mla_bwd/mla_bwd.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/backend/driver.h"
#include "cuda/sparse/mla_bwd.h"
#include "cuda/sparse/mla_maps.h"
#include "kernels/params/mla_sm100.h"

#include <inttypes.h>
#include <string.h>

static struct attn_cuda_mla_bwd_main main_of(const struct attn_kernel *k) {
    const struct kp_mla_bwd_sm100_config *c = k->impl;
    return (struct attn_cuda_mla_bwd_main){
        .symbol = c->symbol,
        .head_block = c->heads,
        .dist_blocks = 4, /* a warp's heads */
        .threads = KP_SM100_THREADS,
        .shared_bytes = KP_MLA_BWD_SM100_SHARED(c->dim, c->heads),
        .ctas = 1,
        .cluster = 2,
        .maps = 1,
        .stored_bytes = c->deterministic ? 4 : 0,
    };
}

static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    return attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_Q, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_DOUT, role, why) ||
           attn_cuda_mla_refuse_map(p, args, ATTN_ROLE_KV, role, why);
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_mla_bwd_sm100_config *c = k->impl;
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    if (attn_cuda_mla_refuse_dim(p, c->dim, why)) return 0;
    if (attn_cuda_refuse_tensor_maps(dev, why)) return 0;
    if (p->topk > INT32_MAX / KP_SM100_HEADS / attn_cuda_limits_of(dev)->n_sms) {
        attn_text_add(why, "topk %" PRId64 ": counts the rows of dS of all multiprocessors in 31 bits", p->topk);
        return 0;
    }
    return !attn_cuda_mla_bwd_refuse(&m, dev, p, why);
}

/* Counted, not timed: clocks of a tile of 64 slots in both passes at 1.85 GHz, its slowest unit at 0.65 of its rate, of
 * 64 heads additions at 16.1 bytes a clock; and of a work tile's start and end (docs/kernels/mla_bwd_sm100.md). */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_bwd_sm100_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double blocks = (double)((p->heads_q + c->heads - 1) / c->heads), clock = 1.85e9;
    const double tile = c->heads == 64 ? 4700 : 5600;
    const double works = (double)p->batch * (double)p->seq_q * blocks, tiles = (double)((p->topk + 63) / 64);
    const double pairs = l->n_sms > 1 ? l->n_sms / 2 : 1, rounds = works < pairs ? 1 : works / pairs;
    const double rows = works * tiles * 64 * c->dim * 4 / (2e10 * l->n_sms);
    return 2e-5 + rounds * (tiles * tile * c->dim / 576 + 12000) / clock + (c->deterministic ? rows : 0);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    return attn_cuda_mla_bwd_workspace(&m, dev, p);
}
static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    (void)p;
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    return attn_cuda_mla_bwd_prepare(&m, dev);
}
static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct attn_cuda_mla_bwd_main m = main_of(k);
    return attn_cuda_mla_bwd_launch(&m, dev, p, args);
}

/* ------------------------------------------------------------------ tensor maps -------------------- */

attn_status attn_cuda_mla_bwd_maps(const struct attn_core_device *dev, const struct kp_mla_bwd *kp, uint64_t ds,
                                   int64_t ctas, int64_t tiles, int64_t queries, int32_t heads,
                                   struct kp_mla_bwd_sm100 *maps) {
    const struct kp_mla *in = &kp->in;
    const uint32_t n = (uint32_t)queries;
    const uint32_t box = heads == KP_SM100_HEADS ? KP_SM100_HEADS / 2 / n : 16; /* heads of a query */
    memset(maps, 0, sizeof *maps);
    maps->bwd = *kp;
    maps->kv_rows = attn_cuda_mla_map_rows(in);
    maps->tiles = tiles;
    maps->ds_data = ds;
    const struct attn_cuda_tensor sums = {
        .name = "dS",
        .address = ds,
        .rank = 2,
        .swizzle = CU_SWIZZLE_128B,
        .size = {KP_SM100_KEYS, (uint64_t)(ctas * tiles * KP_SM100_HEADS / 2)},
        .stride = {2 * KP_SM100_KEYS},
        .box = {KP_SM100_KEYS, KP_SM100_HEADS / 2},
    };
    TRY(attn_cuda_mla_map_queries(dev, "q", in, &in->q, in->dim_qk, box, n, 64, &maps->q));
    TRY(attn_cuda_mla_map_queries(dev, "dout", in, &kp->dout, KP_MLA_DIM_V, box, n, 64, &maps->dout));
    TRY(attn_cuda_mla_map_keys(dev, in, 64, &maps->kv));
    TRY(attn_cuda_mla_map_keys(dev, in, 32, &maps->rope));
    return heads == KP_SM100_HEADS ? attn_cuda_tensor_map(dev, &sums, &maps->ds) : ATTN_OK;
}

attn_status attn_cuda_mla_bwd_mapped(const struct attn_cuda_mla_bwd_main *m, const struct attn_core_device *dev,
                                     const struct kp_mla_bwd *kp, uint64_t ds, int64_t ctas, void *stream) {
    const int64_t tiles = attn_cuda_blocks(kp->in.topk, KP_SM100_KEYS);
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX / 64 * 64),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)m->threads,
                                        .cluster = (uint32_t)m->cluster,
                                        .shared_bytes = (uint32_t)m->shared_bytes};
    struct kp_mla_bwd_sm100 maps;
    if (ctas <= 0) return ATTN_OK;
    TRY(attn_cuda_mla_bwd_maps(dev, kp, ds, ctas, tiles, 1, m->head_block, &maps));
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, m->symbol), &grid, &maps, sizeof maps, stream);
}

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_mla_bwd_sm100_config config_##tail = {.symbol = "attn_mla_bwd_sm100_" #tail, __VA_ARGS__};
#include "kernels/variants/mla_bwd_sm100.def"
#undef VARIANT

/* A line begins with .dtype and .deterministic, members of both. */
#define VARIANT(tail, source, dtype_of_line, deterministic_of_line, ...)                                               \
    {.name = "attn_mla_bwd_sm100_" #tail,                                                                              \
     .arch = "sm100",                                                                                                  \
     .summary = "simulated, not yet run on silicon; D and heads of a work tile as in the name; _det: bit-equal dkv",   \
     .op = ATTN_OP_MLA_BWD,                                                                                            \
     dtype_of_line,                                                                                                    \
     deterministic_of_line,                                                                                            \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .alignment_bytes = 16,                                                                                            \
     .refuses_strides = refuses_strides,                                                                               \
     .features = ATTN_CUDA_SM100A,                                                                                     \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
const struct attn_kernel attn_cuda_mla_bwd_sm100_rows[] = {
#include "kernels/variants/mla_bwd_sm100.def"
};
#undef VARIANT
const int32_t attn_cuda_n_mla_bwd_sm100_rows =
    sizeof attn_cuda_mla_bwd_sm100_rows / sizeof attn_cuda_mla_bwd_sm100_rows[0];
