/* SPDX-License-Identifier: MIT
 * Dense forward of e4m3 on Hopper's wgmma, the host's side: rows from kernels/variants/sdpa_fwd_fp8_sm90.def. The
 * device's side: kernels/sm90/sdpa_fwd_fp8/sdpa_fwd_fp8.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/backend/driver.h"
#include "cuda/dense/sdpa_map.h"
#include "kernels/params/sdpa_fp8_sm90.h"

#include <inttypes.h>
#include <math.h>

static int32_t rows_of(const struct kp_sdpa_fwd_fp8_sm90_config *c) { return 64 * c->groups; }
static uint32_t shared_of(const struct kp_sdpa_fwd_fp8_sm90_config *c) {
    return (uint32_t)KP_SDPA_FP8_SM90_SHARED(c->dim, c->groups, c->keys, c->stages);
}

/* ------------------------------------------------------------------ what the row refuses ----------- */

static int refuse_features(const attn_problem *p, struct attn_text *why) {
    const char *missing = p->softcap > 0                  ? "softcap"
                          : p->alibi                      ? "ALiBi"
                          : p->mask_dtype                 ? "a mask"
                          : attn_core_has(p, ATTN_PAGED)  ? "pages"
                          : p->dim_qk % 2 || p->dim_v % 2 ? "odd head dims"
                          : p->dim_qk < 1 || p->dim_v < 1 ? "a head dim of 0"
                                                          : NULL;
    if (missing) attn_text_add(why, "has no code for %s: on the CPU the rows of e4m3 do", missing);
    return missing != NULL;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct kp_sdpa_fwd_fp8_sm90_config *c = k->impl;
    return !attn_cuda_sdpa_refuse(p, c->dim, c->dim, why) && !refuse_features(p, why) &&
           !attn_cuda_sdpa_fwd_refuse_size(rows_of(c), p, why) &&
           !attn_cuda_refuse_image(dev, c->symbol, shared_of(c), why) && !attn_cuda_refuse_tensor_maps(dev, why) &&
           !attn_cuda_padding_refuse(dev, p, why);
}

/* Clocks of a row, of an H200 at 1.83 GHz: at both ends of a tile of query rows, more where it has hidden keys, and for
 * each tile of its keys. */
static struct attn_cuda_row_clocks clocks_of(const struct kp_sdpa_fwd_fp8_sm90_config *c, int even) {
    const struct attn_cuda_row_clocks d64 = {128, 128, even ? 6000 : 8000, 1832, 1},
                                      d64_r192 = {192, 128, even ? 6400 : 21000, 2267, 1},
                                      d128 = {128, 128, even ? 9000 : 12000, 2210, 1},
                                      d128_r192 = {192, 96, even ? 12000 : 23000, 2220, 1};
    if (c->dim == 64) return c->groups == 3 ? d64_r192 : d64;
    return c->groups == 3 ? d128_r192 : d128;
}

/* The CTA with the most to do. Tiles whose lengths differ are dealt in pairs (attn_cuda_sdpa_fwd_deal). */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct kp_sdpa_fwd_fp8_sm90_config *c = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct attn_cuda_row_clocks clocks =
        clocks_of(c, p->window_left >= ATTN_CUDA_FAR && p->window_right >= ATTN_CUDA_FAR);
    (void)amount;
    return 5e-6 + attn_cuda_sdpa_fwd_clocks(p, l, &clocks) / 1.83e9;
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    (void)k, (void)dev, (void)p;
    return 0;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct kp_sdpa_fwd_fp8_sm90_config *c = k->impl;
    TRY(attn_cuda_variant_load(dev, attn_cuda_variant_find(c->symbol), shared_of(c)));
    return attn_cuda_padding_prepare(dev, p);
}

/* ------------------------------------------------------------------ launch ------------------------- */

static uint64_t scale_of(const attn_tensor *t, int64_t stride[2]) {
    for (int a = 0; a < 2; a++) stride[a] = t->shape[a] > 1 ? t->strides[a] : 0;
    return attn_cuda_address(t);
}

/* A map of elements of 16 bits, two numbers each: alignment and even head dims leave whole ones. */
static attn_status map_pairs(const struct attn_core_device *dev, const char *name, struct kp_view v, int64_t columns,
                             int64_t rows, int64_t heads, int64_t batch, int32_t box, struct kp_tensor_map *map) {
    v.row /= 2, v.head /= 2, v.batch /= 2;
    return attn_cuda_sdpa_map(dev, name, &v, columns / 2, rows, heads, batch, (uint32_t)box, map);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct kp_sdpa_fwd_fp8_sm90_config *c = k->impl;
    const int empty = p->batch <= 0 || p->heads_q <= 0 || p->seq_q <= 0, packed = attn_core_has(p, ATTN_PACKED);
    const int64_t rows_q = packed ? p->total_q : p->seq_q, rows_k = packed ? p->total_k : p->seq_k,
                  batch = packed ? 1 : p->batch;
    if (empty && !attn_core_has(p, ATTN_FILL_PADDING)) return ATTN_OK;
    struct kp_sdpa_fwd_fp8 kp = {0};
    struct kp_sdpa *in = &kp.maps.fwd.in;
    attn_cuda_sdpa_inputs(in, p, args);
    attn_cuda_sdpa_results(&kp.maps.fwd, p, args);
    TRY(attn_cuda_padding(dev, p, &kp.maps.fwd, args->stream));
    if (empty) return ATTN_OK;
    const int64_t pieces = attn_cuda_sdpa_fwd_deal(rows_of(c), 0, p, &kp.maps);
    kp.q_scale = scale_of(args->q_scale, kp.q_scale_stride);
    kp.k_scale = scale_of(args->k_scale, kp.k_scale_stride);
    kp.v_scale = scale_of(args->v_scale, kp.v_scale_stride);
    TRY(map_pairs(dev, "q", in->q, p->dim_qk, rows_q, p->heads_q, batch, rows_of(c), &kp.maps.q));
    TRY(map_pairs(dev, "k", in->k, p->dim_qk, rows_k, p->heads_k, batch, c->keys, &kp.maps.k));
    TRY(map_pairs(dev, "v", in->v, p->dim_v, rows_k, p->heads_k, batch, c->keys, &kp.maps.v));
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(pieces, attn_cuda_limits_of(dev)->n_sms),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)KP_SDPA_FP8_SM90_THREADS(c->groups),
                                        .shared_bytes = shared_of(c)};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, c->symbol), &grid, &kp, sizeof kp, args->stream);
}

/* ------------------------------------------------------------------ rows --------------------------- */

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_fwd_fp8_sm90_config config_##tail = {.symbol = "attn_sdpa_fwd_fp8_sm90_" #tail,        \
                                                                     __VA_ARGS__};
#include "kernels/variants/sdpa_fwd_fp8_sm90.def"
#undef VARIANT

const struct attn_kernel attn_cuda_sdpa_fwd_fp8_rows[] = {
#define VARIANT(tail, source, ...)                                                                                     \
    {.name = "attn_sdpa_fwd_fp8_sm90_" #tail,                                                                          \
     .arch = "sm90",                                                                                                   \
     .summary = "wgmma of e4m3, P in e4m3; even D and DV to the number in the name; no softcap, ALiBi, mask, pages",   \
     .op = ATTN_OP_SDPA_FWD,                                                                                           \
     .backend = ATTN_BACKEND_CUDA,                                                                                     \
     .dtype = ATTN_E4M3,                                                                                               \
     .math_dtype = ATTN_E4M3,                                                                                          \
     .accumulator_dtype = ATTN_F32,                                                                                    \
     .device_type = ATTN_DEVICE_TYPE_CUDA,                                                                             \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .out_f32 = 1,                                                                                                     \
     .max_logits = 1,                                                                                                  \
     .alignment_bytes = 16,                                                                                            \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &config_##tail,                                                                                           \
     .supports = supports,                                                                                             \
     .estimate = estimate,                                                                                             \
     .workspace = workspace,                                                                                           \
     .prepare = prepare,                                                                                               \
     .launch = launch,                                                                                                 \
     .refuses_strides = attn_cuda_sdpa_fwd_refuses_strides},
#include "kernels/variants/sdpa_fwd_fp8_sm90.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_fwd_fp8_rows =
    sizeof attn_cuda_sdpa_fwd_fp8_rows / sizeof attn_cuda_sdpa_fwd_fp8_rows[0];
