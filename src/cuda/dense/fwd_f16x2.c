/* SPDX-License-Identifier: MIT
 * Dense forward of f32 as pairs of f16 on Hopper's wgmma, the host's side: rows from
 * kernels/variants/sdpa_fwd_f16x2_sm90.def. The device's side: kernels/sm90/sdpa_fwd_f16x2/sdpa_fwd_f16x2.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/dense/f16x2.h"
#include "cuda/dense/sdpa_map.h"
#include "kernels/params/sdpa_f16x2_sm90.h"

#include <math.h>

static int32_t rows_of(const struct kp_sdpa_fwd_f16x2_sm90_config *c) { return 64 * c->groups; }
static uint32_t shared_of(const struct kp_sdpa_fwd_f16x2_sm90_config *c) {
    return (uint32_t)KP_SDPA_F16X2_SM90_SHARED(c->dim, c->groups, c->keys, c->q_tiles, c->slots);
}
static struct attn_cuda_f16x2 split_of(const attn_problem *p) {
    struct attn_cuda_f16x2 h = attn_cuda_f16x2(p, 0, 3);
    h.apart = 1;
    return h;
}

/* ------------------------------------------------------------------ what the row refuses ----------- */

static int refuse_features(const attn_problem *p, struct attn_text *why) {
    const char *missing = p->softcap > 0                  ? "softcap"
                          : p->alibi                      ? "ALiBi"
                          : p->mask_dtype                 ? "a mask"
                          : attn_core_has(p, ATTN_PAGED)  ? "pages"
                          : fabs(p->scale) < 1e-30        ? "a scale of 0"
                          : p->dim_qk < 1 || p->dim_v < 1 ? "a head dim of 0"
                                                          : NULL;
    if (missing) attn_text_add(why, "has no code for %s: the sm80 rows do", missing);
    return missing != NULL;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_sdpa_fwd_f16x2_sm90_config *c = k->impl;
    return !attn_cuda_sdpa_refuse(p, c->dim, c->dim, why) && !refuse_features(p, why) &&
           !attn_cuda_sdpa_fwd_refuse_size(rows_of(c), p, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, shared_of(c), why) &&
           !attn_cuda_refuse_image(dev, attn_cuda_f16x2_apart_symbol, 0, why) &&
           !attn_cuda_fwd_rest_refuse(dev, p, why) && !attn_cuda_refuse_tensor_maps(dev, why) &&
           !attn_cuda_padding_refuse(dev, p, why);
}

/* What an H200 was measured at: 200 TFLOP/s at 1.7 GHz; two more launches, and operands written and read again. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_sdpa_fwd_f16x2_sm90_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const double tiles = (double)attn_cuda_blocks(p->seq_q, rows_of(c)) * (double)p->batch * (double)p->heads_q;
    const double idle = tiles > 0 ? ceil(tiles / l->n_sms) * l->n_sms / tiles : 1;
    const double padded = 2.0 * c->dim / (double)(p->dim_qk + p->dim_v), memory = amount->bytes / (2e10 * l->n_sms);
    return 1e-5 + amount->flops * padded * idle / (891 * 1.7e9 * l->n_sms) + 1.5 * memory;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k, (void)dev;
    return (uint64_t)split_of(p).end;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_sdpa_fwd_f16x2_sm90_config *c = k->impl;
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), shared_of(c)));
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(attn_cuda_f16x2_apart_symbol), 16));
    TRY(attn_cuda_fwd_rest_prepare(dev, p));
    return attn_cuda_padding_prepare(dev, p);
}

/* ------------------------------------------------------------------ launch ------------------------- */

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_sdpa_fwd_f16x2_sm90_config *c = k->impl;
    const int empty = p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0, packed = attn_core_has(p, ATTN_PACKED);
    const int64_t rows_q = packed ? p->total_q : p->seq_q, rows_k = packed ? p->total_k : p->seq_k,
                  batch = packed ? 1 : p->batch;
    if (empty && !attn_core_has(p, ATTN_FILL_PADDING)) return ATTN_OK;
    struct kp_sdpa_wide_fwd wide = {0};
    attn_cuda_sdpa_inputs(&wide.fwd.in, p, args);
    attn_cuda_sdpa_results(&wide.fwd, p, args);
    TRY(attn_cuda_padding(dev, p, &wide.fwd, args->stream));
    if (empty) return ATTN_OK;

    const struct attn_cuda_f16x2 h = split_of(p);
    const struct kp_view *const from[] = {&wide.fwd.in.q, &wide.fwd.in.k, &wide.fwd.in.v};
    struct kp_view to[ATTN_CUDA_F16X2_COUNT];
    TRY(attn_cuda_f16x2_start(dev, &h, p, args, &wide.fwd.in, from, to, &wide.wide));
    TRY(attn_cuda_fwd_rest(dev, p, args, &wide));

    struct kp_sdpa_fwd_f16x2 kp = {.maps.fwd = wide.fwd,
                                   .flags = wide.wide.flags,
                                   .unit_q = wide.wide.unit_q,
                                   .unit_k = wide.wide.unit_k,
                                   .unit_v = wide.wide.unit_v,
                                   .blocks_q = wide.wide.blocks_q,
                                   .blocks_k = wide.wide.blocks_k};
    const int64_t pieces = attn_cuda_sdpa_fwd_deal(rows_of(c), 0, p, &kp.maps);
    TRY(attn_cuda_f16x2_map(dev, "q", &to[ATTN_CUDA_F16X2_Q], p->dim_qk, rows_q, p->heads_q, batch, rows_of(c),
                            &kp.maps.q));
    TRY(attn_cuda_f16x2_map(dev, "k", &to[ATTN_CUDA_F16X2_K], p->dim_qk, rows_k, p->heads_k, batch, c->keys,
                            &kp.maps.k));
    TRY(attn_cuda_f16x2_map(dev, "v", &to[ATTN_CUDA_F16X2_V], p->dim_v, rows_k, p->heads_k, batch, KP_F16X2_ROWS,
                            &kp.maps.v));
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(pieces, attn_cuda_limits_of(dev)->n_sms),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)KP_SDPA_F16X2_SM90_THREADS(c->groups),
                                        .shared_bytes = shared_of(c)};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream);
}

/* ------------------------------------------------------------------ rows --------------------------- */

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_fwd_f16x2_sm90_config config_##tail = {.symbol = "attn_sdpa_fwd_f16x2_sm90_" #tail,    \
                                                                       __VA_ARGS__};
#include "kernels/variants/sdpa_fwd_f16x2_sm90.def"
#undef VARIANT

const struct attn_kernel attn_cuda_sdpa_fwd_f16x2_rows[] = {
#define VARIANT(tail, source, ...)                                                                                     \
    {.name = "attn_sdpa_fwd_f16x2_sm90_" #tail,                                                                        \
     .arch = "sm90",                                                                                                   \
     .summary = "wgmma on pairs of f16; D and DV to the number in the name; no softcap, ALiBi, mask, pages",           \
     .op = ATTN_OP_SDPA_FWD,                                                                                           \
     .dtype = ATTN_F32,                                                                                                \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .max_logits = 1,                                                                                                  \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .workspace = workspace},
#include "kernels/variants/sdpa_fwd_f16x2_sm90.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_fwd_f16x2_rows =
    sizeof attn_cuda_sdpa_fwd_f16x2_rows / sizeof attn_cuda_sdpa_fwd_f16x2_rows[0];
