/* SPDX-License-Identifier: MIT
 * Sparse MLA backward on Blackwell, the host's side: kernel rows from kernels/variants/mla_bwd_sm100.def and the tensor
 * maps of a launch. What a launch consists of stands in mla_bwd_steps.c; the device's side:
 * kernels/sm100/mla_bwd/mla_bwd.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/backend/driver.h"
#include "cuda/sparse/mla_bwd.h"
#include "kernels/params/mla_sm100.h"

#include <inttypes.h>
#include <string.h>

static struct attn_cuda_mla_bwd_main main_of(const struct attn_kernel *k) {
    const struct kp_mla_bwd_sm100_config *c = k->impl;
    return (struct attn_cuda_mla_bwd_main){
        .symbol = c->symbol,
        .head_block = KP_SM100_HEADS,
        .dist_blocks = KP_SM100_HEADS / 32, /* a warp's heads */
        .threads = KP_SM100_THREADS,
        .shared_bytes = KP_MLA_BWD_SM100_SHARED(c->dim),
        .ctas = 1,
        .cluster = 2,
        .maps = 1,
        .pairs = c->deterministic ? 4 : 0,
    };
}

/* Rows of kv's map from a batch entry's first row to the next one's: all entries are gathered through one map, so that
 * the batch stride is whole rows. A single key has no stride of its own. */
static int64_t map_rows(int64_t batch, int64_t keys, int64_t batch_stride, int64_t row_stride) {
    if (batch <= 1 || batch_stride == 0) return 0;
    return keys <= 1 ? 1 : batch_stride / row_stride;
}

/* Strides of a tensor map are unsigned and below 2^40 bytes. */
static int refuses_axes(const attn_tensor *t, const char *name, struct attn_text *why) {
    for (int32_t a = 0; a < t->rank - 1; a++)
        if (t->shape[a] > 1 && (t->strides[a] < 0 || t->strides[a] >= INT64_C(1) << 39)) {
            attn_text_add(why, "%s has stride %" PRId64 " in axis %" PRId32 ", a tensor map takes 0 to 2^39 - 1", name,
                          t->strides[a], a);
            return 1;
        }
    return 0;
}
static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    const struct {
        int32_t role;
        const attn_tensor *t;
    } mapped[] = {{ATTN_ROLE_Q, args->q}, {ATTN_ROLE_KV, args->kv}, {ATTN_ROLE_DOUT, args->dout}};
    for (size_t x = 0; x < sizeof mapped / sizeof *mapped; x++) {
        *role = mapped[x].role;
        if (refuses_axes(mapped[x].t, attn_role_name(*role), why)) return 1;
    }
    const struct kp_view kv = attn_cuda_view(p, args, ATTN_ROLE_KV);
    *role = ATTN_ROLE_KV;
    if (p->batch > 1 && p->seq_k > 1 && kv.batch != 0 && (kv.row == 0 || kv.batch % kv.row)) {
        attn_text_add(why,
                      "a batch stride of %" PRId64 " is not whole rows of %" PRId64
                      ", and one tensor map serves all batch entries",
                      kv.batch, kv.row);
        return 1;
    }
    if (p->batch > 1 && kv.row > 0 && kv.batch / kv.row > INT32_MAX / p->batch) {
        attn_text_add(why, "a batch stride of %" PRId64 " rows: a tensor map counts rows in 31 bits",
                      kv.batch / kv.row);
        return 1;
    }
    return 0;
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

/* Counted, not timed: clocks of a tile of 64 slots in both passes at 1.85 GHz, its slowest unit at 0.65 of its rate,
 * and of an item's start and end (docs/kernels/mla_bwd_sm100.md). */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    (void)amount;
    const struct kp_mla_bwd_sm100_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double blocks = (double)((p->heads_q + KP_SM100_HEADS - 1) / KP_SM100_HEADS), clock = 1.85e9;
    const double items = (double)p->batch * (double)p->seq_q * blocks, tiles = (double)((p->topk + 63) / 64);
    const double pairs = l->n_sms > 1 ? l->n_sms / 2 : 1, rounds = items < pairs ? 1 : items / pairs;
    const double rows = items * tiles * 64 * c->dim * 4 / (2e10 * l->n_sms);
    return 2e-5 + rounds * (tiles * 5600 * c->dim / 576 + 12000) / clock + (c->deterministic ? rows : 0);
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

/* Bytes of an axis' stride; an axis of one entry has none, and takes any that the driver does. */
static uint64_t bytes_of(int64_t extent, int64_t stride, int64_t otherwise) {
    return 2 * (uint64_t)(extent > 1 ? stride : otherwise);
}

/* [B,SQ,HQ,columns]: boxes of 64 heads x 64 columns. */
static struct attn_cuda_tensor heads_of(const char *name, const struct kp_mla *in, const struct kp_view *v,
                                        int32_t columns) {
    return (struct attn_cuda_tensor){
        .name = name,
        .address = v->data,
        .rank = 4,
        .swizzle = CU_SWIZZLE_128B,
        .size = {(uint64_t)columns, (uint64_t)in->heads_q, (uint64_t)in->seq_q, (uint64_t)in->batch},
        .stride = {bytes_of(in->heads_q, v->head, columns), bytes_of(in->seq_q, v->row, columns),
                   bytes_of(in->batch, v->batch, columns)},
        .box = {64, 64, 1, 1},
    };
}

/* `ds`: the workspace for dS, of `tiles` tiles a CTA. */
static attn_status write_maps(const struct attn_core_device *dev, const struct kp_mla_bwd *kp, uint64_t ds,
                              int64_t ctas, int64_t tiles, struct kp_mla_bwd_sm100 *maps) {
    const struct kp_mla *in = &kp->in;
    const int64_t keys = in->seq_k > 0 ? in->seq_k : 1;
    memset(maps, 0, sizeof *maps);
    maps->bwd = *kp;
    maps->kv_rows = map_rows(in->batch, in->seq_k, in->kv.batch, in->kv.row);
    maps->tiles = tiles;
    maps->ds_data = ds;
    const int64_t rows = maps->kv_rows * (in->batch - 1) + keys, row = in->seq_k > 1      ? in->kv.row
                                                                       : in->kv.batch > 0 ? in->kv.batch
                                                                                          : in->dim_qk;
    struct attn_cuda_tensor kv = {
        .name = "kv",
        .address = in->kv.data,
        .rank = 2,
        .swizzle = CU_SWIZZLE_128B,
        .size = {(uint64_t)in->dim_qk, (uint64_t)rows},
        .stride = {2 * (uint64_t)row},
        .box = {64, 1},
    };
    const struct attn_cuda_tensor q = heads_of("q", in, &in->q, in->dim_qk),
                                  dout = heads_of("dout", in, &kp->dout, KP_MLA_DIM_V),
                                  sums = {
                                      .name = "dS",
                                      .address = ds,
                                      .rank = 2,
                                      .swizzle = CU_SWIZZLE_128B,
                                      .size = {KP_SM100_KEYS, (uint64_t)(ctas * tiles * KP_SM100_HEADS / 2)},
                                      .stride = {2 * KP_SM100_KEYS},
                                      .box = {KP_SM100_KEYS, KP_SM100_HEADS / 2},
                                  };
    TRY(attn_cuda_tensor_map(dev, &q, &maps->q));
    TRY(attn_cuda_tensor_map(dev, &dout, &maps->dout));
    TRY(attn_cuda_tensor_map(dev, &kv, &maps->kv));
    kv.box[0] = 32, kv.swizzle = CU_SWIZZLE_64B;
    TRY(attn_cuda_tensor_map(dev, &kv, &maps->rope));
    return attn_cuda_tensor_map(dev, &sums, &maps->ds);
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
    TRY(write_maps(dev, kp, ds, ctas, tiles, &maps));
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
     .summary = "simulated, not yet run on silicon; D as in the name, 128 heads an item; _det: bit-equal dkv",         \
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
