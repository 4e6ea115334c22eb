/* SPDX-License-Identifier: MIT
 * Dense backward that reads by tensor maps, on Hopper's wgmma and Blackwell's tcgen05, the host's side: kernel rows
 * from kernels/variants/sdpa_bwd_wgmma_sm90.def and sdpa_bwd_sm100.def, what each refuses, and the tensor maps of a
 * launch. The device's side: kernels/sm90/sdpa_bwd/sdpa_bwd.cu, kernels/sm100/sdpa_bwd/sdpa_bwd.cu. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/dense/bwd_steps.h"
#include "cuda/dense/sdpa_map.h"
#include "kernels/params/sdpa_sm100.h"
#include "kernels/params/sdpa_sm90.h"

#include <math.h>

static struct attn_cuda_bwd_main main_of(const struct attn_kernel *k) {
    struct attn_cuda_bwd_main m = {.fours = 1, .row_warps = 4, .dim_warps = 1, .ordered = k->deterministic};
    if (k->features == ATTN_CUDA_SM100A) {
        const struct kp_sdpa_bwd_sm100_config *c = k->impl;
        m.symbol = c->symbol, m.dim = c->dim, m.dim_v = c->dim_v;
        m.score_mod = c->score_mod;
        m.by_columns = c->dim != c->dim_v;
        m.ctas = 1 + c->pair;
        m.keys = KP_SDPA_BWD_SM100_KEYS * m.ctas, m.rows = KP_SDPA_BWD_SM100_ROWS;
        m.box_rows = m.rows / m.ctas;
        m.threads = KP_SDPA_BWD_SM100_THREADS;
        m.shared_bytes = KP_SDPA_BWD_SM100_SHARED(c->dim, c->dim_v, c->stages, c->pair);
    } else {
        const struct kp_sdpa_bwd_sm90_config *c = k->impl;
        m.symbol = c->symbol, m.dim = c->dim, m.dim_v = c->dim_v;
        m.score_mod = c->score_mod;
        m.ctas = 1 + c->pair;
        m.keys = KP_SDPA_BWD_SM90_KEYS(*c), m.rows = c->rows;
        m.row_warps = m.rows / 16;                                   /* a product of 64 rows after the other */
        m.box_rows = c->pair && c->dim <= 192 ? m.rows / 2 : m.rows; /* each CTA of a pair copies half of the rows */
        m.threads = c->pair ? KP_SDPA_BWD_SM90_PAIR_THREADS(*c) : KP_SDPA_BWD_SM90_THREADS(*c);
        m.early = !c->pair; /* clusters are slower so */
        m.shared_bytes = c->pair ? KP_SDPA_BWD_SM90_PAIR_SHARED(*c) : KP_SDPA_BWD_SM90_SHARED(*c);
    }
    return m;
}

/* What is estimated of an SM a second: FLOPs of the products, bytes of memory. */
struct speed {
    double flops, bytes;
};
static struct speed speed_of(const struct attn_kernel *k, int32_t dim) {
    /* counted, not timed: 0.75 of the largest unit, shared memory, for which the tensor unit waits */
    if (k->features == ATTN_CUDA_SM100A) return (struct speed){8192 * 1.85e9 * (dim == 64 ? 0.48 : 0.7), 4.5e10};
    return (struct speed){4096 * 1.7e9 * 0.5, 2e10}; /* of wgmma */
}

/* ------------------------------------------------------------------ what a row refuses ------------- */

/* Rows with softcap always cap; the polynomial of the cap has coefficients of about (scale / softcap)^7. */
static int refuse_softcap(const struct attn_cuda_bwd_main *m, const attn_problem *p, struct attn_text *why) {
    if (m->score_mod && !(p->softcap > 0)) {
        attn_text_add(why, "serves softcap alone: the row without _mod does");
        return 1;
    }
    const double a = p->softcap > 0 ? fabs(p->scale) / p->softcap : 1;
    const int refused = !(a >= 1e-5 && a <= 1e5);
    if (refused) attn_text_add(why, "caps where scale / softcap is 1e-5 to 1e5, which is %g: the sm80 rows do", a);
    return refused;
}

static int refuse_features(const struct attn_cuda_bwd_main *m, const attn_problem *p, struct attn_text *why) {
    const char *missing =
        p->softcap > 0 && !m->score_mod ? "softcap"
        : p->alibi                      ? "ALiBi"
        : p->mask_dtype                 ? "a mask"
        : attn_core_has(p, ATTN_SINK) && attn_core_has(p, ATTN_DLSE) && !attn_core_has(p, ATTN_LSE_WITH_SINK)
            ? "dlse with a sink that lse excludes"
        : p->dim_qk < 1 || p->dim_v < 1 ? "a head dim of 0"
                                        : NULL;
    if (missing) attn_text_add(why, "has no code for %s: the sm80 rows do", missing);
    return missing != NULL || refuse_softcap(m, p, why);
}

static int refuse_size(const attn_problem *p, struct attn_text *why) {
    if (p->total_q <= INT32_MAX && p->total_k <= INT32_MAX) return 0;
    attn_text_add(why, "counts packed rows in 31 bits");
    return 1;
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return !refuse_features(&m, p, why) && !refuse_size(p, why) && !attn_cuda_bwd_refuse(dev, &m, p, why) &&
           !attn_cuda_refuse_tensor_maps(dev, why);
}

static int refuses_strides(const attn_problem *p, const attn_args *args, int32_t *role, struct attn_text *why) {
    const attn_tensor *tensors[] = {args->q, args->k, args->v, args->dout};
    static const int32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_DOUT};
    (void)p;
    for (int i = 0; i < 4; i++)
        if (attn_cuda_refuse_axes(tensors[i], why)) {
            *role = roles[i];
            return 1;
        }
    return 0;
}

/* ------------------------------------------------------------------ estimate, workspace ------------ */

/* The padding of head dims and keys counts; so do SMs that have no tile. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct attn_cuda_bwd_main m = main_of(k);
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct speed speed = speed_of(k, m.dim);
    const double dims = (double)(3 * p->dim_qk + 2 * p->dim_v);
    const double padding = dims > 0 ? (3 * m.dim + 2 * m.dim_v) / dims : 1;
    const double key_tiles = (double)attn_cuda_blocks(p->seq_k, m.keys), keys = (double)p->seq_k,
                 tiles = key_tiles * (double)p->batch * (double)p->heads_k;
    const double idle = tiles > 0 ? ceil(tiles / l->n_sms) * l->n_sms / tiles : 1;
    const double padded = amount->flops * padding * (keys > 0 ? key_tiles * m.keys / keys : 1);
    const double compute = padded * idle / (speed.flops * l->n_sms);
    const double memory =
        (amount->bytes + 12.0 * (double)(p->batch * p->heads_q) * (double)p->seq_q * m.dim) / (speed.bytes * l->n_sms);
    return 1e-5 + (compute + memory) * (1 + 1e-4 * m.dim) * (m.ordered ? 1.1 : 1) * (m.score_mod ? 1.2 : 1);
}

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return attn_cuda_bwd_workspace(dev, &m, p);
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct attn_cuda_bwd_main m = main_of(k);
    return attn_cuda_bwd_prepare(dev, &m, p);
}

/* ------------------------------------------------------------------ launch ------------------------- */

static void write_prepared(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                           void *out) {
    const struct attn_cuda_bwd_main m = main_of(k);
    attn_cuda_bwd_write_prepared(dev, &m, p, out);
}

static attn_status write_maps(const struct attn_core_device *dev, const struct attn_cuda_bwd_main *m,
                              const attn_problem *p, const struct kp_sdpa_bwd_scaled *kp, void *room) {
    struct kp_sdpa_bwd_column_maps *all = room;
    struct kp_sdpa_bwd_maps *out = &all->rows;
    const struct kp_sdpa *in = &kp->bwd.in;
    const int packed = attn_core_has(p, ATTN_PACKED);
    const int64_t rows_q = packed ? p->total_q : p->seq_q, rows_k = packed ? p->total_k : p->seq_k,
                  batch = packed ? 1 : p->batch;
    const uint32_t rows = (uint32_t)m->box_rows, keys = (uint32_t)(m->keys / m->ctas);
    out->all = *kp;
    TRY(attn_cuda_sdpa_map(dev, "q", &in->q, p->dim_qk, rows_q, p->heads_q, batch, rows, &out->q));
    TRY(attn_cuda_sdpa_map(dev, "k", &in->k, p->dim_qk, rows_k, p->heads_k, batch, keys, &out->k));
    TRY(attn_cuda_sdpa_map(dev, "v", &in->v, p->dim_v, rows_k, p->heads_k, batch, keys, &out->v));
    TRY(attn_cuda_sdpa_map(dev, "dout", &kp->bwd.dout, p->dim_v, rows_q, p->heads_q, batch, rows, &out->dout));
    if (!m->by_columns) return ATTN_OK;
    TRY(attn_cuda_sdpa_narrow_map(dev, "q", &in->q, p->dim_qk, rows_q, p->heads_q, batch, rows, &all->q_columns));
    return attn_cuda_sdpa_narrow_map(dev, "k", &in->k, p->dim_qk, rows_k, p->heads_k, batch, keys, &all->k_columns);
}

static attn_status launch_prepared(const struct attn_kernel *k, const struct attn_core_device *dev,
                                   const attn_problem *p, const void *from, const attn_args *args) {
    const struct attn_cuda_bwd_main m = main_of(k);
    struct kp_sdpa_bwd_column_maps room;
    const struct attn_cuda_bwd_extra extra = {
        .write = write_maps, .room = &room, .bytes = m.by_columns ? sizeof room : sizeof room.rows};
    return attn_cuda_bwd_launch(dev, &m, p, from, args, &extra);
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    struct attn_cuda_bwd_prepared prepared = {0};
    write_prepared(k, dev, p, &prepared);
    return launch_prepared(k, dev, p, &prepared, args);
}

/* ------------------------------------------------------------------ rows --------------------------- */

/* Each variant makes two rows: sums of dQ in any order, and in the order of the key tiles. */
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_bwd_sm90_config config_##tail = {.symbol = "attn_sdpa_bwd_wgmma_sm90_" #tail,          \
                                                                 __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_wgmma_sm90.def"
#undef VARIANT
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_bwd_sm100_config config_sm100_##tail = {.symbol = "attn_sdpa_bwd_sm100_" #tail,        \
                                                                        __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_sm100.def"
#undef VARIANT

#define ROW(stem, tail, architecture, words, feature, config, is_ordered, order, dtype_of_line)                        \
    {.name = "attn_sdpa_bwd_" stem tail,                                                                               \
     .arch = architecture,                                                                                             \
     .summary = words "D and DV to the numbers in the name; no ALiBi, mask; dQ is summed in " order,                   \
     .op = ATTN_OP_SDPA_BWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = is_ordered,                                                                                      \
     .bit_stable = is_ordered,                                                                                         \
     .alignment_bytes = 16,                                                                                            \
     .refuses_strides = refuses_strides,                                                                               \
     .features = feature,                                                                                              \
     .impl = &config,                                                                                                  \
     .workspace = workspace,                                                                                           \
     ATTN_CUDA_PREPARED_AS(struct attn_cuda_bwd_prepared)},
#define ROWS(stem, tail, architecture, words, feature, config, dtype_of_line)                                          \
    ROW(stem, tail, architecture, words, feature, config, 0, "any order", dtype_of_line)                               \
    ROW(stem, tail "_ordered", architecture, words, feature, config, 1, "order", dtype_of_line)
const struct attn_kernel attn_cuda_sdpa_bwd_maps_rows[] = {
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROWS("sm100_", #tail, "sm100", "simulated, not yet run on silicon; softcap: _mod rows; ", ATTN_CUDA_SM100A,        \
         config_sm100_##tail, dtype_of_line)
#include "kernels/variants/sdpa_bwd_sm100.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROWS("wgmma_sm90_", #tail, "sm90", "wgmma; softcap: _mod rows; ", ATTN_CUDA_SM90A, config_##tail, dtype_of_line)
#include "kernels/variants/sdpa_bwd_wgmma_sm90.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_bwd_maps_rows =
    sizeof attn_cuda_sdpa_bwd_maps_rows / sizeof attn_cuda_sdpa_bwd_maps_rows[0];
