/* SPDX-License-Identifier: MIT
 * Dense backward in f32 and f64 on CUDA, the host's side: kernel rows from kernels/variants/sdpa_bwd_sm80.f32.def and
 * .f64.def, what they refuse, the workspace, and the launches of an execution. The device's side:
 * kernels/sm80/sdpa_bwd_wide.cu and what its header names. */
#include "base/err.h"
#include "core/problem.h"
#include "cuda/backend/driver.h"
#include "cuda/dense/dout.h"
#include "cuda/dense/f16x2.h"
#include "kernels/params/sdpa_bwd_f16x2_sm90.h"

#include <inttypes.h>
#include <math.h>

enum { MAX_DIM = 512 };

/* The kernel that owns keys and the one that owns queries; NULL where the former makes dQ, too (.sums). */
struct pair {
    const struct kp_sdpa_wide_config *keys, *queries;
};
/* The same on wgmma. */
struct wgmma_pair {
    const struct kp_sdpa_bwd_f16x2_config *keys, *queries;
};
/* A row. `rest`: what serves the heads that kernels of f16x2 operands leave; else NULL. wgmma: what makes the gradients
 * in place of `own`, which says the geometry; else NULL. */
struct bwd_row {
    const struct pair *own, *rest;
    const struct wgmma_pair *wgmma;
};

/* The kernels around them, by dtype. */
struct helpers {
    const char *prepare, *bias, *sums;
};
static const struct helpers *helpers_of(const attn_problem *p) {
    static const struct helpers f32 = {"attn_sdpa_bwd_smxx_prepare_f32", "attn_sdpa_bwd_bias_sm80_f32",
                                       "attn_sdpa_bwd_smxx_sums"};
    static const struct helpers f64 = {"attn_sdpa_bwd_smxx_prepare_f64", "attn_sdpa_bwd_bias_sm80_f64",
                                       "attn_sdpa_bwd_smxx_sums_f64"};
    return p->dtype == ATTN_F64 ? &f64 : &f32;
}

static const char convert_symbol[] = "attn_sdpa_bwd_smxx_convert_f32";

static int wants_bias(const attn_problem *p) { return attn_core_has(p, ATTN_GRAD_MASK | ATTN_GRAD_ALIBI); }
static int wants_sums(const attn_problem *p) { return attn_core_has(p, ATTN_GRAD_SINK | ATTN_GRAD_ALIBI); }

/* ------------------------------------------------------------------ geometry ----------------------- */

/* How one of the two kernels is dealt to CTAs. */
struct deal {
    struct attn_cuda_wide_memory memory;
    int64_t tiles, slices, section, work_tiles;
};

/* A function of problem and device alone, so that workspace and launch agree. */
struct geometry {
    struct deal keys, queries;
    int64_t row_tiles, stat_rows;
    struct {
        int64_t lse, shift, share, dsink, dalibi, dq, end; /* bytes into the workspace */
    } offset;
    struct attn_cuda_f16x2 split;
};

static struct deal deal_of(const struct kp_sdpa_wide_config *c, const struct attn_cuda_limits *l,
                           const attn_problem *p) {
    const int owns_keys = c->side == KP_WIDE_OWN_KEYS;
    const int64_t chunk = KP_WIDE_CHUNK(c->dtype), group = p->heads_k > 0 ? p->heads_q / p->heads_k : 1;
    const int64_t heads = p->batch * (owns_keys ? p->heads_k : p->heads_q),
                  width = owns_keys && p->dim_v > p->dim_qk ? p->dim_v : p->dim_qk;
    struct deal d = {.memory = attn_cuda_wide_bwd_memory(
                         c, l, attn_cuda_blocks(p->dim_qk, chunk) + attn_cuda_blocks(p->dim_v, chunk))};
    d.tiles = attn_cuda_blocks(owns_keys ? p->seq_k : p->seq_q, KP_WIDE_ROWS(*c));
    d.slices = width > 0 ? attn_cuda_blocks(width, c->cols) : 1;
    /* Heads dealt together share half of the second-level cache; those of a group share their keys. */
    const int64_t bytes = (int64_t)attn_dtype_bytes(c->dtype) * (owns_keys ? group * p->seq_q : p->seq_k) *
                              (p->dim_qk + p->dim_v) +
                          1,
                  fit = l->l2_bytes / 2 / bytes;
    d.section = attn_cuda_section(heads, owns_keys ? 1 : group, fit);
    d.work_tiles = d.tiles * d.slices * heads;
    return d;
}

static int64_t take(int64_t *end, int64_t numbers, const attn_problem *p) {
    const int64_t offset = *end;
    *end += attn_cuda_blocks(numbers, 64) * 64 * (int64_t)attn_dtype_bytes(p->dtype);
    return offset;
}

static struct geometry lay_out(const struct bwd_row *r, const struct attn_cuda_limits *l, const attn_problem *p) {
    struct geometry g = {0};
    if (p->batch <= 0 || p->heads_q <= 0) return g;
    g.keys = deal_of(r->own->keys, l, p);
    if (r->own->queries) g.queries = deal_of(r->own->queries, l, p);
    g.row_tiles = attn_cuda_blocks(p->seq_q, KP_WIDE_STAT_ROWS);
    /* Packed sequences begin at multiples of the tile height, see first_stat_row() of the device's side. */
    g.stat_rows = KP_WIDE_STAT_ROWS * (attn_core_has(p, ATTN_PACKED)
                                           ? attn_cuda_blocks(p->total_q, KP_WIDE_STAT_ROWS) + p->batch + 1
                                           : p->batch * g.row_tiles);
    const int64_t rows = p->heads_q * g.stat_rows;
    g.offset.lse = take(&g.offset.end, rows, p);
    g.offset.shift = take(&g.offset.end, rows, p);
    g.offset.share = take(&g.offset.end, rows, p);
    g.offset.dsink = take(&g.offset.end, attn_core_has(p, ATTN_GRAD_SINK) ? rows : 0, p);
    g.offset.dalibi = take(&g.offset.end,
                           attn_core_has(p, ATTN_GRAD_ALIBI)
                               ? p->batch * p->heads_q * attn_cuda_blocks(p->seq_q, KP_SDPA_BWD_BIAS_TILE)
                               : 0,
                           p);
    g.offset.dq = take(&g.offset.end, r->own->keys->sums ? rows * r->own->keys->cols : 0, p);
    if (r->rest) {
        g.split = attn_cuda_f16x2(p, g.offset.end, ATTN_CUDA_F16X2_COUNT);
        g.split.apart = r->wgmma != NULL;
        g.offset.end = g.split.end;
    }
    return g;
}

/* ------------------------------------------------------------------ what a row says ---------------- */

static int refuse_images(const struct attn_core_device *dev, const struct pair *c, const attn_problem *p,
                         struct attn_text *why) {
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    return attn_cuda_refuse_image(dev, c->keys->symbol, deal_of(c->keys, l, p).memory.bytes, why) ||
           (c->queries && attn_cuda_refuse_image(dev, c->queries->symbol, deal_of(c->queries, l, p).memory.bytes, why));
}

static uint32_t wgmma_bytes(const struct kp_sdpa_bwd_f16x2_config *c) {
    return (uint32_t)KP_SDPA_BWD_F16X2_SHARED(c->dim, c->tile, c->slots);
}
static int refuse_wgmma(const struct attn_core_device *dev, const struct wgmma_pair *c, const attn_problem *p,
                        struct attn_text *why) {
    const char *missing = p->softcap > 0                  ? "softcap"
                          : p->alibi                      ? "ALiBi"
                          : p->mask_dtype                 ? "a mask"
                          : fabs(p->scale) < 1e-30        ? "a scale of 0"
                          : p->dim_qk < 1 || p->dim_v < 1 ? "a head dim of 0"
                          : c->keys->dim > 64 && attn_core_has(p, ATTN_SINK) && !attn_core_has(p, ATTN_LSE_WITH_SINK)
                              ? "a sink outside of lse"
                              : NULL;
    const double longest = p->seq_q > p->seq_k ? (double)p->seq_q : (double)p->seq_k;
    if (missing) attn_text_add(why, "has no code for %s: the sm80 rows do", missing);
    if (missing) return 1;
    if ((double)p->batch * (double)p->heads_q * (longest / KP_SDPA_BWD_F16X2_ROWS + 1) > INT32_MAX ||
        p->total_q > INT32_MAX || p->total_k > INT32_MAX) {
        attn_text_add(why, "counts tiles and packed rows in 31 bits");
        return 1;
    }
    return attn_cuda_refuse_image(dev, c->keys->symbol, wgmma_bytes(c->keys), why) ||
           attn_cuda_refuse_image(dev, c->queries->symbol, wgmma_bytes(c->queries), why) ||
           attn_cuda_refuse_image(dev, attn_cuda_f16x2_apart_symbol, 0, why) || attn_cuda_refuse_tensor_maps(dev, why);
}

static int supports(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                    struct attn_text *why) {
    const struct bwd_row *r = k->impl;
    const struct helpers *h = helpers_of(p);
    const struct kp_sdpa_wide_config *c = r->own->keys;
    /* slices would each add all of dQ */
    const int64_t most = r->wgmma ? r->wgmma->keys->dim : c->sums ? c->cols : MAX_DIM;
    if (attn_cuda_sdpa_refuse(p, most, most, why) ||
        (r->wgmma ? refuse_wgmma(dev, r->wgmma, p, why) : refuse_images(dev, r->own, p, why)) ||
        (c->sums && attn_cuda_refuse_image(dev, convert_symbol, 0, why)) ||
        (r->rest && (attn_cuda_f16x2_refuse(p, why) || refuse_images(dev, r->rest, p, why) ||
                     attn_cuda_refuse_image(dev, attn_cuda_f16x2_symbol, 0, why))) ||
        attn_cuda_refuse_image(dev, h->prepare, 0, why) || attn_cuda_padding_refuse(dev, p, why) ||
        attn_cuda_dout_refuse(dev, why) || (wants_sums(p) && attn_cuda_refuse_image(dev, h->sums, 0, why)) ||
        (wants_bias(p) && attn_cuda_refuse_image(dev, h->bias, KP_WIDE_BIAS_SHARED_BYTES(r->own->keys->dtype), why)))
        return 0;
    /* below 2^28 each, and rows of the workspace are far fewer than 2^62 */
    const double rows = (double)p->batch * (double)p->heads_q * ((double)p->seq_q + (double)p->seq_k);
    if (rows > 1e14) {
        attn_text_add(why, "a workspace for %g rows is too large", rows);
        return 0;
    }
    return 1;
}

/* Seven products for five; tiles of 128 rows padded to the width of the row, on multiprocessors that may have none.
 * Rates: flop a cycle at 1.7 GHz, what an H200 was measured at. */
static double wgmma_seconds(const struct wgmma_pair *c, const attn_problem *p, const struct attn_core_amount *amount,
                            const struct attn_cuda_limits *l) {
    const double tiles =
                     (double)attn_cuda_blocks(p->seq_k, KP_SDPA_BWD_F16X2_ROWS) * (double)p->batch * (double)p->heads_k,
                 idle = tiles > 0 ? ceil(tiles / l->n_sms) * l->n_sms / tiles : 1;
    const double padded = 5.0 * c->keys->dim / (double)(3 * p->dim_qk + 2 * p->dim_v);
    return amount->flops * 1.4 * padded * idle / ((c->keys->dim == 64 ? 830 : 840) * 1.7e9 * l->n_sms);
}

/* Rates: flop a cycle at 1.7 GHz, what an H100 was measured at with all products counted that a row forms; those of
 * sums form S and dP once. A tile narrower than the row's columns feeds the tensor cores less. f16x2 operands: three
 * more launches, operands written and read again. */
static double estimate(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                       const struct attn_core_amount *amount) {
    const struct bwd_row *r = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct kp_sdpa_wide_config *c = r->own->keys;
    const double d = (double)p->dim_qk, dv = (double)p->dim_v,
                 slices = (double)(deal_of(c, l, p).slices + (c->sums ? 0 : deal_of(r->own->queries, l, p).slices));
    const double products = d + dv > 0 ? (slices * (d + dv) + 2 * d + dv) / (3 * d + 2 * dv) : 1;
    const double rate = c->dtype == KP_F64 ? k->features & ATTN_CUDA_SM90A ? 88 : 60
                        : c->f16x2         ? 430
                                           : 175,
                 width = d > dv ? d : dv;
    double compute = amount->flops * products / (rate * 1.7e9 * (double)l->n_sms);
    const double memory = amount->bytes / (2e10 * l->n_sms);
    if (c->f16x2 && width < c->cols) compute *= 1 + 0.8 * (1 - width / c->cols);
    if (c->f16x2) compute += 2e-5 + 2 * memory;
    if (r->wgmma) return 3e-5 + wgmma_seconds(r->wgmma, p, amount, l) + 2 * memory;
    return 1e-5 + (compute > memory ? compute : memory) * (1 + 1e-4 * c->cols);
}

static uint64_t dout_offset(const struct geometry *g) { return (uint64_t)g->offset.end; }

static uint64_t workspace(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p) {
    const struct geometry g = lay_out(k->impl, attn_cuda_limits_of(dev), p);
    return dout_offset(&g) + ATTN_CORE_DOUT_BYTES;
}

static attn_status prepare(const struct attn_kernel *k, struct attn_core_device *dev, const attn_problem *p) {
    const struct bwd_row *r = k->impl;
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct helpers *h = helpers_of(p);
    const struct pair *const pairs[] = {r->wgmma ? r->rest : r->own, r->wgmma ? NULL : r->rest};
    const struct {
        const char *symbol;
        int64_t bytes;
        int wanted;
    } images[] = {
        {h->prepare, 0, 1},
        {h->sums, 1024, wants_sums(p)},
        {h->bias, KP_WIDE_BIAS_SHARED_BYTES(r->own->keys->dtype), wants_bias(p)},
        {attn_cuda_f16x2_symbol, 16, r->rest != NULL && !r->wgmma},
        {attn_cuda_f16x2_apart_symbol, 16, r->wgmma != NULL},
        {r->wgmma ? r->wgmma->keys->symbol : NULL, r->wgmma ? wgmma_bytes(r->wgmma->keys) : 0, r->wgmma != NULL},
        {r->wgmma ? r->wgmma->queries->symbol : NULL, r->wgmma ? wgmma_bytes(r->wgmma->queries) : 0, r->wgmma != NULL},
        {convert_symbol, 0, r->own->keys->sums},
    };
    attn_status status = attn_cuda_padding_prepare(dev, p);
    if (!status) status = attn_cuda_dout_prepare(dev);
    for (size_t i = 0; i < 2 && pairs[i] && !status; i++) {
        status = attn_cuda_variant_load(dev, attn_cuda_variant_find(pairs[i]->keys->symbol),
                                        (uint32_t)deal_of(pairs[i]->keys, l, p).memory.bytes);
        if (!status && pairs[i]->queries)
            status = attn_cuda_variant_load(dev, attn_cuda_variant_find(pairs[i]->queries->symbol),
                                            (uint32_t)deal_of(pairs[i]->queries, l, p).memory.bytes);
    }
    for (size_t i = 0; i < sizeof images / sizeof *images && !status; i++)
        if (images[i].wanted)
            status = attn_cuda_variant_load(dev, attn_cuda_variant_find(images[i].symbol), (uint32_t)images[i].bytes);
    return status;
}

/* ------------------------------------------------------------------ launch ------------------------- */

static void set_geometry(struct kp_sdpa_bwd *kp, const struct geometry *g, const struct kp_sdpa_wide_config *c,
                         const attn_problem *p, const attn_args *args) {
    const uint64_t base = (uint64_t)(uintptr_t)args->workspace;
    const int64_t bias_tiles = attn_cuda_blocks(p->seq_q, KP_SDPA_BWD_BIAS_TILE);
    kp->stat_lse = base + (uint64_t)g->offset.lse;
    kp->stat_shift = base + (uint64_t)g->offset.shift;
    kp->stat_g = base + (uint64_t)g->offset.share;
    kp->dsink_row = kp->dsink ? base + (uint64_t)g->offset.dsink : 0;
    kp->dalibi_tile = kp->dalibi ? base + (uint64_t)g->offset.dalibi : 0;
    kp->dq_sum = c->sums && kp->dq.data ? base + (uint64_t)g->offset.dq : 0;
    kp->dim = c->cols;
    kp->stat_rows = g->stat_rows;
    kp->rows = KP_WIDE_STAT_ROWS;
    kp->row_tiles = (int32_t)g->row_tiles;
    kp->bias_tiles = (int32_t)bias_tiles;
    if (kp->dmask.data && p->seq_q > 0 && p->seq_k > 0)
        kp->mask_tiles = (kp->dmask.batch ? p->batch : 1) * (kp->dmask.head ? p->heads_q : 1) *
                         (kp->dmask.row ? bias_tiles : 1) *
                         (kp->dmask.column ? attn_cuda_blocks(p->seq_k, KP_WIDE_BIAS_KEYS(p->dtype)) : 1);
    kp->alibi_tiles = kp->dalibi ? p->batch * p->heads_q * bias_tiles : 0;
}

static attn_status start(const struct attn_core_device *dev, const char *symbol, int64_t ctas, int64_t threads,
                         int64_t shared_bytes, const void *kp, size_t kp_bytes, void *stream) {
    if (ctas <= 0) return ATTN_OK;
    const struct attn_cuda_grid grid = {.x = (uint32_t)attn_cuda_lesser(ctas, INT32_MAX),
                                        .y = 1,
                                        .z = 1,
                                        .threads = (uint32_t)threads,
                                        .shared_bytes = (uint32_t)shared_bytes};
    return attn_cuda_launch(dev, attn_cuda_variant_of(dev, symbol), &grid, kp, kp_bytes, stream);
}

/* Queue one of the main kernels. kp: all that does not depend on it. */
static attn_status start_main(const struct attn_core_device *dev, const struct kp_sdpa_wide_config *c,
                              const attn_problem *p, struct kp_sdpa_wide_bwd kp, void *stream) {
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const struct deal d = deal_of(c, l, p);
    /* After a kernel of f16x2 operands as many CTAs as run at a time: mostly they find nothing to do. */
    const int64_t most = kp.wide.flags && !c->f16x2 ? (int64_t)l->n_sms * d.memory.ctas : INT32_MAX;
    attn_cuda_wide_numbers(&kp.wide, p, &d.memory);
    if (attn_core_has(p, ATTN_SINK) && !attn_core_has(p, ATTN_LSE_WITH_SINK)) kp.wide.plain = 0; /* shares */
    kp.wide.slices = (int32_t)d.slices;
    kp.bwd.section = (int32_t)d.section;
    kp.tiles = (int32_t)d.tiles;
    kp.work_tiles = d.work_tiles;
    return start(dev, c->symbol, attn_cuda_lesser(d.work_tiles, most), 32 * c->warps, d.memory.bytes, &kp, sizeof kp,
                 stream);
}

static attn_status start_pair(const struct attn_core_device *dev, const struct pair *c, const attn_problem *p,
                              const struct kp_sdpa_wide_bwd *kp, void *stream) {
    attn_status status = ATTN_OK;
    if (kp->bwd.dk.data || kp->bwd.dv.data || kp->bwd.dq_sum) status = start_main(dev, c->keys, p, *kp, stream);
    if (!status && kp->bwd.dq.data && c->queries) status = start_main(dev, c->queries, p, *kp, stream);
    return status;
}

/* Queue one of the kernels on wgmma. a: q, k, v, dout, split. */
static attn_status start_wgmma(const struct attn_core_device *dev, const struct kp_sdpa_bwd_f16x2_config *c,
                               const attn_problem *p, const struct kp_sdpa_wide_bwd *all, const struct kp_view a[],
                               void *stream) {
    const struct attn_cuda_limits *l = attn_cuda_limits_of(dev);
    const int owns_keys = c->side == KP_WIDE_OWN_KEYS, packed = attn_core_has(p, ATTN_PACKED);
    const int64_t rows_q = packed ? p->total_q : p->seq_q, rows_k = packed ? p->total_k : p->seq_k,
                  batch = packed ? 1 : p->batch, heads = p->batch * (owns_keys ? p->heads_k : p->heads_q),
                  group = p->heads_q / p->heads_k;
    const int32_t box_q = owns_keys ? c->tile : KP_SDPA_BWD_F16X2_ROWS,
                  box_k = owns_keys ? KP_SDPA_BWD_F16X2_ROWS : c->tile;
    struct kp_sdpa_bwd_f16x2 kp = {.all = *all};
    struct kp_tensor_map *q = owns_keys ? &kp.other_a : &kp.own_a, *dout = owns_keys ? &kp.other_b : &kp.own_b,
                         *key = owns_keys ? &kp.own_a : &kp.other_a, *v = owns_keys ? &kp.own_b : &kp.other_b;
    const int64_t bytes = 4 * (owns_keys ? group * p->seq_q : p->seq_k) * (p->dim_qk + p->dim_v) + 1;
    kp.all.tiles = (int32_t)attn_cuda_blocks(owns_keys ? p->seq_k : p->seq_q, KP_SDPA_BWD_F16X2_ROWS);
    kp.all.bwd.section = (int32_t)attn_cuda_section(heads, owns_keys ? 1 : group, l->l2_bytes / 2 / bytes);
    kp.all.work_tiles = kp.all.tiles * heads;
    TRY(attn_cuda_f16x2_map(dev, "q", &a[ATTN_CUDA_F16X2_Q], p->dim_qk, rows_q, p->heads_q, batch, box_q, q));
    TRY(attn_cuda_f16x2_map(dev, "k", &a[ATTN_CUDA_F16X2_K], p->dim_qk, rows_k, p->heads_k, batch, box_k, key));
    TRY(attn_cuda_f16x2_map(dev, "v", &a[ATTN_CUDA_F16X2_V], p->dim_v, rows_k, p->heads_k, batch, box_k, v));
    TRY(attn_cuda_f16x2_map(dev, "dout", &a[ATTN_CUDA_F16X2_DOUT], p->dim_v, rows_q, p->heads_q, batch, box_q, dout));
    return start(dev, c->symbol, kp.all.work_tiles, KP_SDPA_BWD_F16X2_THREADS, wgmma_bytes(c), &kp, sizeof kp, stream);
}

/* dq, dk, dv from f16x2 operands; from f32 the heads that these leave. */
static attn_status start_split(const struct attn_core_device *dev, const struct bwd_row *r, const struct geometry *g,
                               const attn_problem *p, const attn_args *args, struct kp_sdpa_wide_bwd kp) {
    const struct kp_view *const from[] = {&kp.bwd.in.q, &kp.bwd.in.k, &kp.bwd.in.v, &kp.bwd.dout};
    struct kp_view to[ATTN_CUDA_F16X2_COUNT];
    const uint64_t sums = kp.bwd.dq_sum;
    if (!kp.bwd.dq.data && !kp.bwd.dk.data && !kp.bwd.dv.data) return ATTN_OK;
    attn_status status = attn_cuda_f16x2_start(dev, &g->split, p, args, &kp.bwd.in, from, to, &kp.wide);
    kp.bwd.dq_sum = 0;
    if (!status) status = start_pair(dev, r->rest, p, &kp, args->stream);
    kp.bwd.dq_sum = sums;
    kp.bwd.in.q = to[ATTN_CUDA_F16X2_Q];
    kp.bwd.in.k = to[ATTN_CUDA_F16X2_K];
    kp.bwd.in.v = to[ATTN_CUDA_F16X2_V];
    kp.bwd.dout = to[ATTN_CUDA_F16X2_DOUT];
    if (r->wgmma) {
        if (!status && (kp.bwd.dk.data || kp.bwd.dv.data))
            status = start_wgmma(dev, r->wgmma->keys, p, &kp, to, args->stream);
        if (!status && kp.bwd.dq.data) status = start_wgmma(dev, r->wgmma->queries, p, &kp, to, args->stream);
        return status;
    }
    if (!status) status = start_pair(dev, r->own, p, &kp, args->stream);
    if (!status && sums)
        status = start(dev, convert_symbol, p->batch * p->heads_q * g->row_tiles, 256, 0, &kp, sizeof kp, args->stream);
    return status;
}

static attn_status launch(const struct attn_kernel *k, const struct attn_core_device *dev, const attn_problem *p,
                          const attn_args *args) {
    const struct bwd_row *r = k->impl;
    const struct geometry g = lay_out(r, attn_cuda_limits_of(dev), p);
    const struct helpers *h = helpers_of(p);
    struct kp_sdpa_wide_bwd kp = {0};
    struct attn_core_dout room;
    if (p->heads_q <= 0) return ATTN_OK;
    attn_status status = attn_cuda_dout(dev, dout_offset(&g), &args, &room);
    attn_cuda_sdpa_inputs(&kp.bwd.in, p, args);
    attn_cuda_sdpa_gradients(&kp.bwd, p, args);
    set_geometry(&kp.bwd, &g, r->own->keys, p, args);
    const int64_t row_tiles = p->batch * p->heads_q * g.row_tiles,
                  sums = wants_sums(p) ? p->heads_q * (kp.bwd.dalibi && kp.bwd.dalibi_per_batch ? 1 + p->batch : 2) : 0;
    void *stream = args->stream;
    if (!status) status = attn_cuda_padding(dev, p, &kp.bwd, stream);
    if (!status) status = start(dev, h->prepare, row_tiles, 256, 0, &kp.bwd, sizeof kp.bwd, stream);
    if (!status) status = r->rest ? start_split(dev, r, &g, p, args, kp) : start_pair(dev, r->own, p, &kp, stream);
    if (!status && wants_bias(p)) {
        attn_cuda_wide_numbers(&kp.wide, p, &g.keys.memory);
        status = start(dev, h->bias, kp.bwd.mask_tiles + kp.bwd.alibi_tiles, 128,
                       KP_WIDE_BIAS_SHARED_BYTES(r->own->keys->dtype), &kp, sizeof kp, stream);
    }
    if (!status) status = start(dev, h->sums, sums, 256, 1024, &kp.bwd, sizeof kp.bwd, stream);
    return status;
}

/* ------------------------------------------------------------------ rows --------------------------- */

#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_wide_config queries_sm80_##tail = {.symbol = "attn_sdpa_bwd_dq_sm80_" #tail,           \
                                                                   __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_dq_sm80.def"
#undef VARIANT
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_wide_config queries_sm90_##tail = {.symbol = "attn_sdpa_bwd_dq_sm90_" #tail,           \
                                                                   __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_dq_sm90.def"
#undef VARIANT

#define CONFIG(chip, tail, others, ...)                                                                                \
    static const struct kp_sdpa_wide_config keys_##chip##_##tail = {.symbol = "attn_sdpa_bwd_" #chip "_" #tail,        \
                                                                    __VA_ARGS__};                                      \
    static const struct pair pair_##chip##_##tail = {&keys_##chip##_##tail, &queries_##chip##_##tail};                 \
    static const struct bwd_row row_##chip##_##tail = {&pair_##chip##_##tail, others, NULL};
#define VARIANT(tail, source, ...) CONFIG(sm80, tail, NULL, __VA_ARGS__)
#include "kernels/variants/sdpa_bwd_sm80.f32.def"
#include "kernels/variants/sdpa_bwd_sm80.f64.def"
#undef VARIANT
#define VARIANT(tail, source, ...) CONFIG(sm90, tail, NULL, __VA_ARGS__)
#include "kernels/variants/sdpa_bwd_sm90.f64.def"
#undef VARIANT
#define VARIANT(tail, source, ...) CONFIG(sm80, tail, &pair_sm80_f32_d64, __VA_ARGS__)
#include "kernels/variants/sdpa_bwd_sm80.halves.def"
#undef VARIANT
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_wide_config keys_##tail = {.symbol = "attn_sdpa_bwd_sm80_" #tail, __VA_ARGS__};        \
    static const struct pair pair_##tail = {&keys_##tail, NULL};                                                       \
    static const struct bwd_row row_sm80_##tail = {&pair_##tail, &pair_sm80_f32_d64, NULL};
#include "kernels/variants/sdpa_bwd_sm80.sums.def"
#undef VARIANT
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_bwd_f16x2_config queries_wgmma_##tail = {                                              \
        .symbol = "attn_sdpa_bwd_dq_f16x2_sm90_" #tail, __VA_ARGS__};
#include "kernels/variants/sdpa_bwd_dq_f16x2_sm90.def"
#undef VARIANT
#define VARIANT(tail, source, ...)                                                                                     \
    static const struct kp_sdpa_bwd_f16x2_config keys_wgmma_##tail = {.symbol = "attn_sdpa_bwd_f16x2_sm90_" #tail,     \
                                                                      __VA_ARGS__};                                    \
    static const struct wgmma_pair wgmma_##tail = {&keys_wgmma_##tail, &queries_wgmma_##tail};                         \
    static const struct bwd_row row_wgmma_##tail = {&pair_sm80_f32_d64, &pair_sm80_f32_d64, &wgmma_##tail};
#include "kernels/variants/sdpa_bwd_f16x2_sm90.def"
#undef VARIANT

#define WIDE "D and DV to 512; the number in the name is the columns of a gradient that a CTA makes at a time"
#define ROW(chip, tail, needs, math, words, ordered, dtype_of_line)                                                    \
    {.name = "attn_sdpa_bwd_" #chip "_" #tail,                                                                         \
     .arch = #chip,                                                                                                    \
     .summary = words,                                                                                                 \
     .op = ATTN_OP_SDPA_BWD,                                                                                           \
     dtype_of_line,                                                                                                    \
     ATTN_CUDA_ROW(math),                                                                                              \
     .deterministic = ordered,                                                                                         \
     .bit_stable = ordered,                                                                                            \
     .features = needs,                                                                                                \
     .impl = &row_##chip##_##tail,                                                                                     \
     .workspace = workspace},
const struct attn_kernel attn_cuda_sdpa_bwd_wide_rows[] = {
#define VARIANT(tail, source, ...)                                                                                     \
    {.name = "attn_sdpa_bwd_f16x2_sm90_" #tail,                                                                        \
     .arch = "sm90",                                                                                                   \
     .summary = "wgmma on pairs of f16; D and DV to the number in the name; no softcap, ALiBi, mask, pages",           \
     .op = ATTN_OP_SDPA_BWD,                                                                                           \
     .dtype = ATTN_F32,                                                                                                \
     ATTN_CUDA_ROW(ATTN_F32),                                                                                          \
     .deterministic = 1,                                                                                               \
     .bit_stable = 1,                                                                                                  \
     .features = ATTN_CUDA_SM90A,                                                                                      \
     .impl = &row_wgmma_##tail,                                                                                        \
     .workspace = workspace},
#include "kernels/variants/sdpa_bwd_f16x2_sm90.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm80, tail, ATTN_CUDA_SM80, ATTN_F32, WIDE, 1, dtype_of_line)
#include "kernels/variants/sdpa_bwd_sm80.f32.def"
#include "kernels/variants/sdpa_bwd_sm80.halves.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...)                                                                      \
    ROW(sm80, tail, ATTN_CUDA_SM80, ATTN_F32, "D and DV to the number in the name; dQ is summed in any order", 0,      \
        dtype_of_line)
#include "kernels/variants/sdpa_bwd_sm80.sums.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm90, tail, ATTN_CUDA_SM90A, ATTN_F64, WIDE, 1, dtype_of_line)
#include "kernels/variants/sdpa_bwd_sm90.f64.def"
#undef VARIANT
#define VARIANT(tail, source, dtype_of_line, ...) ROW(sm80, tail, ATTN_CUDA_SM80, ATTN_F64, WIDE, 1, dtype_of_line)
#include "kernels/variants/sdpa_bwd_sm80.f64.def"
#undef VARIANT
};
const int32_t attn_cuda_n_sdpa_bwd_wide_rows =
    sizeof attn_cuda_sdpa_bwd_wide_rows / sizeof attn_cuda_sdpa_bwd_wide_rows[0];
